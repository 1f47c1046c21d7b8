"""Slow, exact answers that know nothing of the code they judge: rationals from the standard library, and mpmath."""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, nan

import mpmath
import numpy as np

# Bits of the significand, exponent of the smallest subnormal, first power of two that is infinite.
FORMATS = {
    "float16": (11, -24, 16),
    "bfloat16": (8, -133, 128),
    "float32": (24, -149, 128),
    "float64": (53, -1074, 1024),
}
STORED_IN = {"float16": np.float16, "bfloat16": np.float32, "float32": np.float32, "float64": np.float64}


def nearest(q: Fraction, kind: str = "float32") -> np.floating:
    """The number of a format nearest to a rational, ties to even, from the format's definition alone; zero is +0."""
    bits, smallest, end = FORMATS[kind]
    size = abs(q)
    exponent = smallest
    if size:
        exponent = max(smallest, size.numerator.bit_length() - size.denominator.bit_length() - bits)
        while size >= Fraction(2) ** (exponent + bits):
            exponent += 1
        while exponent > smallest and size < Fraction(2) ** (exponent + bits - 1):
            exponent -= 1
    units = round(size / Fraction(2) ** exponent)  # Python rounds a Fraction's ties to even
    value = units * Fraction(2) ** exponent
    if value >= Fraction(2) ** end:
        return STORED_IN[kind](-inf if q < 0 else inf)
    return STORED_IN[kind](float(value) * (-1 if q < 0 and value else 1))


def nearest_float32(q: Fraction) -> np.floating:
    return nearest(q, "float32")


def exact_sum(terms: list[tuple[float, float]], kind: str = "float32") -> np.floating:
    """The correctly rounded sum of products x * y under IEEE 754's rules for infinities and NaN."""
    total, infinities, real = Fraction(0), set(), STORED_IN[kind]
    for x, y in terms:
        if isnan(x) or isnan(y) or (isinf(x) and y == 0) or (isinf(y) and x == 0):
            return real(nan)
        if isinf(x) or isinf(y):
            infinities.add(copysign(1.0, x) * copysign(1.0, y))
        else:
            total += Fraction(x) * Fraction(y)
    if len(infinities) == 2:
        return real(nan)
    return real(infinities.pop() * inf) if infinities else nearest(total, kind)


def exact_matmul(a: np.ndarray, b: np.ndarray, kind: str = "float32") -> np.ndarray:
    rows, columns = a.tolist(), b.T.tolist()
    out = np.empty((a.shape[0], b.shape[1]), STORED_IN[kind])
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            out[i, j] = exact_sum(list(zip(row, column, strict=True)), kind)
    return out


def exact_function(name: str, x: np.floating, kind: str = "float32") -> np.floating:
    """mpmath's exp, log or sqrt, rounded once; for arguments with a finite result."""
    with mpmath.workprec(400):
        value = getattr(mpmath, name)(mpmath.mpf(float(x)))
        sign, mantissa, exponent, _ = value._mpf_
        return nearest(Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent), kind)


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shape, type and bits; any NaN equals any NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    zero = a.dtype.type(0)
    return bool((nan_a == nan_b).all()) and np.where(nan_a, zero, a).tobytes() == np.where(nan_b, zero, b).tobytes()
