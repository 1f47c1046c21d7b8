"""Slow, exact answers that know nothing of the code they judge: rationals from the standard library, and mpmath."""

from fractions import Fraction
from math import copysign, inf, isinf, isnan, nan

import mpmath
import numpy as np


def nearest_float32(q: Fraction) -> np.float32:
    """The float32 nearest to a rational, ties to even, from the definition of the format alone; zero is +0."""
    size = abs(q)
    exponent = -149
    if size:
        exponent = max(-149, size.numerator.bit_length() - size.denominator.bit_length() - 24)
        while size >= Fraction(2) ** (exponent + 24):
            exponent += 1
        while exponent > -149 and size < Fraction(2) ** (exponent + 23):
            exponent -= 1
    units = round(size / Fraction(2) ** exponent)  # Python rounds a Fraction's ties to even
    value = units * Fraction(2) ** exponent
    if value >= Fraction(2) ** 128:
        return np.float32(-inf if q < 0 else inf)
    return np.float32(float(value) * (-1 if q < 0 and value else 1))


def exact_sum(terms: list[tuple[float, float]]) -> np.float32:
    """The correctly rounded sum of products x * y under IEEE 754's rules for infinities and NaN."""
    total, infinities = Fraction(0), set()
    for x, y in terms:
        if isnan(x) or isnan(y) or (isinf(x) and y == 0) or (isinf(y) and x == 0):
            return np.float32(nan)
        if isinf(x) or isinf(y):
            infinities.add(copysign(1.0, x) * copysign(1.0, y))
        else:
            total += Fraction(x) * Fraction(y)
    if len(infinities) == 2:
        return np.float32(nan)
    return np.float32(infinities.pop() * inf) if infinities else nearest_float32(total)


def exact_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    rows, columns = a.tolist(), b.T.tolist()
    out = np.empty((a.shape[0], b.shape[1]), np.float32)
    for i, row in enumerate(rows):
        for j, column in enumerate(columns):
            out[i, j] = exact_sum(list(zip(row, column, strict=True)))
    return out


def exact_function(name: str, x: np.float32) -> np.float32:
    """mpmath's exp, log or sqrt of a finite positive result, rounded once to float32."""
    with mpmath.workprec(400):
        value = getattr(mpmath, name)(mpmath.mpf(float(x)))
        sign, mantissa, exponent, _ = value._mpf_
        return nearest_float32(Fraction(-int(mantissa) if sign else int(mantissa)) * Fraction(2) ** int(exponent))


def same_bytes(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal shape, type and bits; any NaN equals any NaN."""
    a, b = np.asarray(a), np.asarray(b)
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    nan_a, nan_b = np.isnan(a), np.isnan(b)
    zero = a.dtype.type(0)
    return bool((nan_a == nan_b).all()) and np.where(nan_a, zero, a).tobytes() == np.where(nan_b, zero, b).tobytes()
