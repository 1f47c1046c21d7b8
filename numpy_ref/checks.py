"""Checks that many arguments need."""

import operator

import numpy as np

from numpy_ref.arithmetic.rounding import PLAIN


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


def float_array(where: str, x: object) -> None:
    """Refuse anything but a plain array of floats: lists and whole numbers have no format to compare."""
    plain = type(x) in PLAIN or isinstance(x, np.generic)
    if not plain or x.dtype not in (np.float16, np.float32, np.float64):  # type: ignore[attr-defined]
        found = f"{x.dtype} array" if type(x) is np.ndarray else type(x).__name__
        swapped = " in the other byte order" if type(x) is np.ndarray and not x.dtype.isnative else ""
        raise TypeError(f"{where}: expected an array of float16, float32 or float64, found {found}{swapped}.")
