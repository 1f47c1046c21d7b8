"""What the rows of the boundary relate, as this machine shows it: one function a row.

A measuring function takes nothing and gives what `measure` judges by the row's kind: two sides, the verdict of a law,
or a probability. Where tests ask for many cases, the sides are made from given values by a public function. All of it
runs from the installed packages alone, and each row within seconds.

    judging        what a measurement finds, and whether it is what its row says
    runs, machines, stock, mathematics     the functions, by the table's parts
    sides          the stock classes and ours, on given values
"""

from collections.abc import Iterator, Sequence

from numpy_ref.proof.boundary import ROWS
from torch_port.proof import machines, mathematics, runs, stock
from torch_port.proof.judging import MEASURES, Chance, InVariants, Measured, NotHere, Sides, judge, measure
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
    "Measured",
    "NotHere",
    "Sides",
    "autocast_sides",
    "batch_norm_case",
    "batch_norm_sides",
    "check_boundary",
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


def check_boundary(names: Sequence[str] | None = None) -> Iterator[Measured]:
    """Measure rows of the boundary on this machine, one by one as they are asked for.

    Args:
        names: of the rows; all of them when None.

    Raises:
        ValueError: there is no row of such a name.

    Example:
        >>> [measured] = check_boundary(["stock StepLR"])
        >>> measured.holds, measured.figure
        (True, 'bitwise')
    """
    rows = {row.name: row for row in ROWS}
    unknown = sorted(set(names or ()) - rows.keys())
    if unknown:
        known = ", ".join(map(repr, rows))
        raise ValueError(
            f"check_boundary: expected names of rows, found {', '.join(map(repr, unknown))}. Rows: {known}"
        )
    return (measure(rows[name]) for name in (rows if names is None else names))
