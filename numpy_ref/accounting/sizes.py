"""What shapes and counts may be: whole numbers >= 0, below 2**63."""

import math
from collections.abc import Iterable, Sequence

from numpy_ref.checks import whole_number

Shape = Sequence[int]

END = 2**63  # byte counts lie below it, as every file size and allocation does


def elements_of(where: str, shapes: Iterable[Shape]) -> int:
    """The elements of arrays of these shapes."""
    return sum(map(math.prod, checked_shapes(where, shapes)))


def checked_shapes(where: str, shapes: Iterable[Shape]) -> list[tuple[int, ...]]:
    """The same, each a sequence of whole numbers >= 0."""
    checked = []
    for i, shape in enumerate(shapes if isinstance(shapes, Iterable) else [shapes]):
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise ValueError(f"{where}[{i}]: expected a shape, found {shape!r}. Give a list of shapes: [(3, 2)], say.")
        checked.append(tuple(checked_size(f"{where}[{i}]", size) for size in shape))
    return checked


def checked_size(where: str, value: object) -> int:
    """A whole number >= 0, as a Python int."""
    return whole_number(where, value, 0, END)
