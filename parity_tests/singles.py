"""Float32 numbers in plain Python, whose every operation is the exact result, rounded once."""

from fractions import Fraction
from math import copysign
from typing import Any

import numpy as np

from parity_tests.oracles import exact_function, exact_sum, nearest_float32


class Single:
    """A finite float32 number in plain Python: each operation is the rational result, rounded once."""

    __slots__ = ("value",)

    def __init__(self, value: float) -> None:
        self.value = float(nearest_float32(Fraction(value)))
        if self.value == 0:
            self.value = copysign(0.0, value)

    def __add__(self, other: "Single") -> "Single":
        if not isinstance(other, Single):
            return NotImplemented  # an array of them: NumPy goes through it
        if self.value == other.value == 0:
            return Single(self.value + other.value)  # the one zero that is -0: both are
        return Single(float(nearest_float32(Fraction(self.value) + Fraction(other.value))))

    def __neg__(self) -> "Single":
        return Single(-self.value)

    def __sub__(self, other: "Single") -> "Single":
        if not isinstance(other, Single):
            return NotImplemented
        return self + -other

    def __mul__(self, other: "Single") -> "Single":
        if not isinstance(other, Single):
            return NotImplemented
        size = nearest_float32(abs(Fraction(self.value) * Fraction(other.value)))
        return Single(copysign(float(size), copysign(1, self.value) * copysign(1, other.value)))

    def __truediv__(self, other: "Single") -> "Single":
        if not isinstance(other, Single):
            return NotImplemented
        size = nearest_float32(abs(Fraction(self.value) / Fraction(other.value)))
        return Single(copysign(float(size), copysign(1, self.value) * copysign(1, other.value)))

    def apply(self, name: str) -> "Single":
        """mpmath's exp, log or sqrt, rounded once; exact where the result is."""
        exact = {"exp": {0.0: 1.0}, "log": {1.0: 0.0}, "sqrt": {0.0: 0.0}}[name]
        return Single(exact[self.value] if self.value in exact else float(exact_function(name, np.float32(self.value))))


def singles(array: Any) -> np.ndarray:
    """An array of float32 numbers as an array of Single."""
    return np.frompyfunc(lambda x: Single(float(x)), 1, 1)(np.asarray(array))


def floats(array: np.ndarray) -> np.ndarray:
    """The inverse of `singles`."""
    return np.vectorize(lambda s: np.float32(s.value), otypes=[np.float32])(array)


def total(terms: Any) -> Single:
    """The correctly rounded sum of many."""
    return Single(float(exact_sum([(term.value, 1.0) for term in terms])))


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The matrix product of two arrays of Single, each element rounded once."""
    out = np.empty((a.shape[0], b.shape[1]), object)
    for i, row in enumerate(a):
        for j, column in enumerate(b.T):
            terms = [(x.value, y.value) for x, y in zip(row, column, strict=True)]
            out[i, j] = Single(float(exact_sum(terms)))
    return out
