"""Checks that many arguments need."""

import operator

import numpy as np


def whole_number(where: str, value: object, low: int, end: int) -> int:
    """An integer with low <= value < end, as a Python int; a boolean or a float is no integer."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = low - 1
    if isinstance(value, (bool, np.bool_)) or not low <= number < end:
        raise ValueError(f"{where}: expected an integer from {low} to {end - 1}, found {value!r}.")
    return number


def number(where: str, value: object) -> float:
    """A real number, as it is; a boolean or a text is none."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise ValueError(f"{where}: expected a number, found {value!r}.")
    return value  # type: ignore[return-value]
