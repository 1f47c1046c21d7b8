"""What the rows of the boundary relate, as this machine shows it: one function a row.

A measuring function takes nothing and gives what `measure` judges by the row's kind: two sides, the verdict of a law,
or a probability. Where tests ask for many cases, the sides are made from given values by a public function. All of it
runs from the installed packages alone, and each row within seconds.

    judging        what a measurement finds, and whether it is what its row says
    runs, machines, stock, mathematics     the functions, by the table's parts
    sides          the stock classes and ours, on given values
"""

from torch_port.proof import machines, mathematics, runs, stock
from torch_port.proof.judging import MEASURES, Chance, InVariants, NotHere, Sides, judge, measure
from torch_port.proof.runs import loss_differences, signs_by_chance, without_generator
from torch_port.proof.sides import (
    VARIANTS,
    autocast_sides,
    batch_norm_case,
    batch_norm_sides,
    compiled_sides,
    cross_entropy_sides,
    epochs_sides,
    kept_units,
    linear_sides,
    optimizer_sides,
    share_by_chance,
    weights_and_gradients,
)

__all__ = [
    "MEASURES",
    "VARIANTS",
    "Chance",
    "InVariants",
    "NotHere",
    "Sides",
    "autocast_sides",
    "batch_norm_case",
    "batch_norm_sides",
    "compiled_sides",
    "cross_entropy_sides",
    "epochs_sides",
    "judge",
    "kept_units",
    "linear_sides",
    "loss_differences",
    "machines",
    "mathematics",
    "measure",
    "optimizer_sides",
    "runs",
    "share_by_chance",
    "signs_by_chance",
    "stock",
    "weights_and_gradients",
    "without_generator",
]
