"""The exercise `memory`: the bytes of a training step, exactly, from shapes."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.accounting import gpt2_shapes
from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, expect_same_bits, law

CLASSES = ("parameters", "gradients", "activations", "optimizer")
MOMENTS = {"sgd": 0, "sgd_momentum": 1, "adam": 2}
PRIMES = {"parameter": 2, "gradient": 3, "activation": 5, "moment": 7, "master": 11}  # so that no two can be exchanged
ALL_FLOAT32 = {"parameter": 4, "gradient": 4, "activation": 4, "moment": 4, "master": 4}
MIXED = {"parameter": 2, "gradient": 2, "activation": 2, "moment": 4, "master": 4}

# Equal shapes in each list, since two arrays may have one.
TRAINED = ((3, 2), (3,), (), (3,))  # 13 elements
FROZEN = ((4, 5), (1,), (4, 5))  # 41
KEPT = ((8, 2), (8, 3), (8, 2))  # 56


class Case(NamedTuple):
    """The arguments of training_memory."""

    trained: Sequence[Any] = TRAINED
    frozen: Sequence[Any] = ()
    kept: Sequence[Any] = ()
    widths: dict[str, int] = PRIMES
    optimizer: str = "sgd"
    master: bool = False


def account(case: Case) -> dict[str, int]:
    """The exact bytes."""
    trained, frozen, kept = (sum(map(math.prod, shapes)) for shapes in case[:3])
    widths = case.widths
    memory = {
        "parameters": (trained + frozen) * widths["parameter"],
        "gradients": trained * widths["gradient"],
        "activations": kept * widths["activation"],
        "optimizer": trained * (MOMENTS[case.optimizer] * widths["moment"] + case.master * widths["master"]),
    }
    return memory | {"total": sum(memory.values())}


def whole(what: str, value: Any) -> int:
    """A result, which must be an int."""
    if type(value) is not int:
        kind = type(value).__name__
        cause = "a float is exact to 2**53 only" if isinstance(value, float) else "ints of a fixed size overflow"
        raise Loss(f"{what} must be a Python int, found {described(value)}", cause=f"{cause}, and this is a {kind}")
    return int(value)


def expect_account(what: str, solution: Any, case: Case, known: dict[str, int] | None = None) -> None:
    """Hold the solution's account of a case to the exact one; `known` are numbers that it must have besides."""
    memory = solution.training_memory(*arguments(case))
    keys = (*CLASSES, "total")
    expect(isinstance(memory, dict), f"training_memory must return a dict, found {described(memory)}")
    shown = f"training_memory must return the keys {', '.join(keys)}"
    expect(set(memory) == set(keys), f"{shown}; found {', '.join(sorted(map(str, memory)))}")
    found = {name: whole(f"training_memory: {name}", memory[name]) for name in keys}
    expect_same_bits(what, account(case) | (known or {}), found)


def arguments(case: Case) -> list[Any]:
    """The arguments, in new containers."""
    return [*map(list, case[:3]), dict(case.widths), case.optimizer, case.master]


@law(
    "How many elements has an array of shape (2, 3)? One of shape (2, 3, 0)? And one of shape ()?",
    "The count is the product of the sizes, and the product of no sizes is 1; Python's own ints do not overflow.",
    "Start at 1 and multiply by each size, or let math.prod do it; NumPy's and PyTorch's prod work in 64 bits.",
)
def elements_are_counted_exactly(solution: Any, arrays: Arrays) -> None:
    """count_elements returns the product of the sizes, an exact int: 1 for (), 0 if a size is 0."""
    shapes = [
        (2, 3),
        (5,),
        [4, 1, 6],
        (),
        (0,),
        (3, 0, 2),
        (50257, 768),
        (2**16, 2**16),
        (3**21, 3**21),
        (2**33, 2**33),
    ]
    real = [arrays.given(np.zeros(shape)).shape for shape in ((2, 3), (), (0, 4))]
    names = [f"count_elements({tuple(shape)})" for shape in (*shapes, *real)]
    exact = [math.prod(shape) for shape in (*shapes, *real)]
    found = [whole(what, solution.count_elements(shape)) for what, shape in zip(names, (*shapes, *real), strict=True)]
    for what, ours, theirs in zip(names, exact, found, strict=True):
        expect_same_bits("elements are counted wrongly", {what: ours}, {what: theirs}, whole=(exact, found))


@law(
    "There are five widths. Which of them goes with which class?",
    "parameters, gradients and activations have each a width of their own; the total is the sum of the four classes.",
    "Multiply each count of elements by its own width, in bytes, and sum the four for the total.",
)
def each_class_has_its_width(solution: Any, arrays: Arrays) -> None:
    """Each class is its elements times its own width, in bytes, and the total is the sum of the four."""
    for optimizer in ("sgd", "adam"):
        expect_account("a class has not its bytes", solution, Case(kept=KEPT, optimizer=optimizer))
    expect_account("there is nothing, and it has bytes", solution, Case(trained=()))


@law(
    "What does each optimizer remember of a parameter from one step to the next?",
    "Plain SGD remembers nothing, SGD with momentum one array of the parameter's shape, Adam two.",
    "The optimizer's bytes are the trained elements times MOMENTS[optimizer] times the width of a moment.",
)
def optimizers_have_their_moments(solution: Any, arrays: Arrays) -> None:
    """The optimizer keeps 0, 1 or 2 moments for each trained parameter: sgd, sgd_momentum, adam."""
    for optimizer in MOMENTS:
        expect_account(f"{optimizer} has not its bytes", solution, Case(optimizer=optimizer))


@law(
    "Who keeps the master copy, and whose copy is it?",
    "If there is one, it has an element for each trained parameter, also with plain SGD, in a width of its own.",
    "With master_weights, add the trained elements times the width of the master copy to the optimizer's bytes.",
)
def a_master_copy_counts_where_it_is_kept(solution: Any, arrays: Arrays) -> None:
    """A master copy adds its width for each trained parameter to the optimizer if it is kept, and else nothing."""
    for optimizer in MOMENTS:
        for master in (True, False):
            what = f"{optimizer} {'with' if master else 'without'} a master copy has not its bytes"
            expect_account(what, solution, Case(optimizer=optimizer, master=master))


@law(
    "A parameter is frozen. What of it must be in memory, and what need not?",
    "The forward pass needs its values; without an update there is no gradient, no moment and no master copy.",
    "Count frozen elements for the parameters only; for the gradients and the optimizer count the trained ones.",
)
def frozen_parameters_have_values_alone(solution: Any, arrays: Arrays) -> None:
    """A frozen parameter adds its own bytes: no gradient, no moments and no master copy."""
    for master in (False, True):
        case = Case(frozen=FROZEN, kept=KEPT, optimizer="adam", master=master)
        expect_account("with frozen parameters, a class has not its bytes", solution, case)
    none_trained = Case(trained=(), frozen=FROZEN, kept=KEPT)
    expect_account("with all parameters frozen, a class has not its bytes", solution, none_trained)


@law(
    "Count the parameters of GPT-2 from its shapes, and compare with the number that is known.",
    "Per trained parameter it is 4 + 4 + 8 = 16 bytes in float32, and 2 + 2 + 8 + 4 = 16 with a master copy.",
    "No number of bytes a parameter may be written into the code: it follows from the widths and the optimizer.",
)
def known_models_have_their_known_size(solution: Any, arrays: Arrays) -> None:
    """GPT-2 with 124,337,664 parameters needs 1,989,402,624 bytes with Adam in float32, before activations."""
    shapes: list[Any] = list(gpt2_shapes().values())
    totals = [
        ("float32, Adam", Case(shapes, widths=ALL_FLOAT32, optimizer="adam"), 1_989_402_624),
        ("16 bits, Adam", Case(shapes, widths=MIXED, optimizer="adam", master=True), 1_989_402_624),
        ("16 bits, gradients in float32, Adam",
         Case(shapes, widths=MIXED | {"gradient": 4}, optimizer="adam", master=True), 2_238_077_952),
        ("float32, SGD with momentum", Case(shapes, widths=ALL_FLOAT32, optimizer="sgd_momentum"), 1_492_051_968),
        ("16 bits, SGD with momentum",
         Case(shapes, widths=MIXED, optimizer="sgd_momentum", master=True), 1_492_051_968),
    ]  # fmt: skip
    for name, case, total in totals:
        expect_account(f"GPT-2, {name}: not the size that is known", solution, case, {"total": total})
    large = Case([(2**30, 2**11)] * 3, [(3**20,)], [(2**33 + 1, 2**21)], widths=MIXED, optimizer="adam", master=True)
    expect_account("a model of 2**42 parameters: not its exact size", solution, large)


@law(
    "Look for what takes something out of a list, sorts it, or adds to it.",
    "The caller still needs its shapes and widths.",
    "Go through the lists without changing them, and put the results into a new dict.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """training_memory changes none of its lists and no width, and returns a new dict each time."""
    case = Case(frozen=FROZEN, kept=KEPT, optimizer="adam", master=True)
    given = arguments(case)
    first, second = (solution.training_memory(*given) for _ in range(2))
    names = ("param_shapes", "frozen_shapes", "activation_shapes", "widths")
    for name, before, after in zip(names, arguments(case), given, strict=False):
        expect(before == after, f"training_memory changed what it was given: {name} was {before}, and is {after}",
               cause=f"it writes into {name}, or removes from it")  # fmt: skip
    expect(first is not second, "training_memory returned the same dict twice", cause="a dict is kept between calls")


def trace(solution: Any, arrays: Arrays) -> Any:
    """The accounts of some cases."""
    cases = [Case(frozen=FROZEN, kept=KEPT, optimizer=optimizer, master=master)
             for optimizer in MOMENTS for master in (False, True)]  # fmt: skip
    return {f"case {i}": solution.training_memory(*arguments(case)) for i, case in enumerate(cases)}


STATEMENT = """
Write count_elements and training_memory. Shapes are tuples or lists of ints >= 0, and in PyTorch may be torch.Size; the
three lists of shapes may be empty. Each entry is an array of its own, also where two have the same shape; a tied
parameter is listed once. Widths are bytes an element, ints >= 0. The result is a dict with the keys parameters,
gradients, activations, optimizer and total, all exact Python ints. Nothing that is given may be changed.
"""

IDEA = """
Whether a training run fits into memory can be told before it starts, from shapes alone, and to the byte. Four things
take most of it: the parameters; a gradient for each that is trained; what the forward pass keeps for the backward pass;
and what the optimizer remembers from step to step. Each is a number of elements times the bytes of an element.

The first surprise is the optimizer. Adam keeps two numbers for every parameter, so in float32 a parameter costs not 4
bytes but 4 + 4 + 8 = 16. The second is 16-bit training: with values and gradients of 2 bytes one expects half. But a
step is often smaller than half the gap between neighbouring 16-bit numbers, and would be lost; so the optimizer usually
keeps its moments in float32, and a float32 master copy of the parameters: 2 + 2 + 8 + 4 = 16 again. What shrinks are
the activations, and they depend on the batch, while the rest does not.

A frozen parameter takes part in the forward pass but is never updated. It costs its own bytes and nothing else, which
is why training a few parameters of a large model needs so much less memory.

Exact means exact. A shape of () is one number, not none. A size of 0 makes an empty array. Products of sizes outgrow 32
bits in any large model, and a float holds whole numbers without gaps only up to 2**53; Python's ints have no such end.
The sum is still not all that a device holds: temporary arrays, buffers and the allocator's rounding come on top, and
the docstring says what is left out, for a number without that says little.
"""

EXERCISE = Exercise(
    name="memory",
    title="Account for the memory of a training step",
    teaches="what a parameter costs: its value, gradient, moments and master copy, and activations besides",
    statement=STATEMENT,
    idea=IDEA,
    functions=("count_elements", "training_memory"),
    laws=(
        elements_are_counted_exactly,
        each_class_has_its_width,
        optimizers_have_their_moments,
        a_master_copy_counts_where_it_is_kept,
        frozen_parameters_have_values_alone,
        known_models_have_their_known_size,
        arguments_are_left_alone,
    ),
    trace=trace,
)
