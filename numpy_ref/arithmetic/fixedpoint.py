"""Arithmetic on whole numbers: the definition of every result, on every machine, whatever its C library.

A *scaled* number is a pair (m, e) of integers that stands for m * 2**e. Every finite float is one exactly, and so is
every sum of products of floats; `rounded` turns a scaled number into the nearest float of a format. `total` and
`matmul` define what the functions of these names in `arithmetic` return, `exp` and `log` settle the few inputs that the
fast paths there cannot, `power` and `cos_pi` serve optimizers and schedules. Both packages use this module: it knows no
framework.

`exp`, `log` and `cos_pi` carry a real number x as the integer nearest x * 2**BITS. Every step is off by a few units of
2**-BITS, so a result is right to about 180 bits; rounding that once gives the correctly rounded float unless the exact
value lies within 2**-180 of a tie, which no float32 and no quotient of a schedule is known to do.
"""

import math
import operator
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

BITS = 192
ONE = 1 << BITS

Scaled = tuple[int, int]


class Format(NamedTuple):
    """A binary floating-point format of IEEE 754, or bfloat16."""

    precision: int  # bits of the significand, the hidden one included
    smallest: int  # exponent of the smallest subnormal
    largest: int  # everything from 2**largest on is infinite


FORMATS = {
    "float16": Format(11, -24, 16),
    "bfloat16": Format(8, -133, 128),
    "float32": Format(24, -149, 128),
    "float64": Format(53, -1074, 1024),
}
CASTS = ("float16", "bfloat16", "float32")  # those that layers can compute in


def rounded(number: Scaled, kind: str) -> float:
    """The float of a format nearest to a scaled number, ties to even; zero is +0, and beyond the range is infinite.

    Args:
        number: (m, e) for m * 2**e.
        kind: one of FORMATS.

    Returns:
        A Python float that the format holds.

    Example:
        >>> rounded((2**24 + 1, 0), "float32"), rounded((65520, 0), "float16"), rounded((1, -25), "float16")
        (16777216.0, inf, 0.0)
    """
    m, e = number
    form, size = FORMATS[kind], abs(m)
    if size.bit_length() + e < form.smallest:  # below half of the smallest, however far
        return 0.0
    unit = max(size.bit_length() + e - form.precision, form.smallest)  # exponent of the last place
    shift = unit - e
    if shift > 0:
        quotient, rest = size >> shift, size & ((1 << shift) - 1)
        half = 1 << (shift - 1)
        size = quotient + (rest > half or (rest == half and quotient & 1))
    else:
        size <<= -shift
    if size and size.bit_length() + unit > form.largest:
        return math.inf if m > 0 else -math.inf
    return math.ldexp(size if m > 0 else -size, unit) if size else 0.0


def scaled(values: Sequence[float]) -> tuple[list[int], int]:
    """Finite floats as integers over one power of two: values[i] = integers[i] * 2**exponent, exactly.

    Example:
        >>> scaled([0.5, 3.0])
        ([1, 6], -1)
    """
    ratios = [value.as_integer_ratio() for value in values]
    places = max((denominator.bit_length() - 1 for _, denominator in ratios), default=0)
    return [numerator << (places - denominator.bit_length() + 1) for numerator, denominator in ratios], -places


def total(values: Sequence[float], kind: str) -> float:
    """The exact sum of finite floats, rounded once."""
    integers, exponent = scaled(values)
    return rounded((sum(integers), exponent), kind)


def matmul(rows: Sequence[Sequence[float]], columns: Sequence[Sequence[float]], kind: str) -> list[list[float]]:
    """The exact inner products of every row with every column, each rounded once."""
    left, right = [scaled(row) for row in rows], [scaled(column) for column in columns]
    return [[rounded((sum(map(operator.mul, a, b)), e + f), kind) for b, f in right] for a, e in left]


def _atanh(numerator: int, denominator: int) -> int:
    """Inverse hyperbolic tangent of a fraction below 1/3 in size, by its series."""
    term = (numerator << BITS) // denominator
    square = (term * term) >> BITS
    sum_, n = 0, 1
    while term not in (0, -1):  # a negative term is floored, so it ends at -1
        sum_ += term // n
        term = (term * square) >> BITS
        n += 2
    return sum_


def _arctan_of_inverse(n: int) -> int:
    """Arctangent of 1/n by its series."""
    term, sum_, k = ONE // n, 0, 1
    while term:
        sum_ += term // k if k % 4 == 1 else -(term // k)
        term //= n * n
        k += 2
    return sum_


LN2 = 2 * _atanh(1, 3)  # ln 2 = 2 atanh(1/3)
PI = 4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))  # Machin 1706


def exp(x: float) -> Scaled:
    """e**x, to about 180 bits, for a float32 value x between -200 and 200."""
    numerator, denominator = float(x).as_integer_ratio()
    fixed = (numerator << BITS) // denominator
    k = (2 * fixed + LN2) // (2 * LN2)
    rest = fixed - k * LN2
    term, sum_, n = ONE, 0, 0
    while term not in (0, -1):
        sum_ += term
        n += 1
        term = ((term * rest) >> BITS) // n
    return sum_, k - BITS


def log(x: float) -> Scaled:
    """Natural logarithm of a positive float x, to about 180 bits."""
    numerator, denominator = float(x).as_integer_ratio()
    k = numerator.bit_length() - denominator.bit_length()
    numerator, denominator = (numerator, denominator << k) if k >= 0 else (numerator << -k, denominator)
    if 3 * numerator > 4 * denominator:  # bring the rest to between 2/3 and 4/3, where the series is short
        denominator, k = 2 * denominator, k + 1
    return 2 * _atanh(numerator - denominator, numerator + denominator) + k * LN2, -BITS


@lru_cache(maxsize=64, typed=True)
def power(base: float, n: int) -> float:
    """base**n for a whole n >= 0, correctly rounded to float64: bias correction's beta**t.

    By repeated squaring of integers cut to 256 bits, so the relative error before the one rounding is below
    n * 2**-250. (`math.pow` differs between C libraries.)

    Args:
        base: a finite float.
        n: exponent, a whole number >= 0.

    Returns:
        A Python float; values beyond float64's range become infinite, or zero.

    Raises:
        ValueError: base is not finite, or n is negative.

    Example:
        >>> power(0.9, 2) == 0.81
        True
        >>> power(0.999, 0)
        1.0
    """
    if not hasattr(n, "__index__") or n < 0 or not math.isfinite(base):
        raise ValueError(f"power: expected a finite base and a whole n >= 0, found {base!r} and {n!r}")
    n = operator.index(n)
    result, exponent = 1, 0
    for k in range(n.bit_length()):
        if n >> k & 1:
            square, shift = _squared(base, k)
            result, exponent = _cut(result * square, exponent + shift)
    return rounded((result, exponent), "float64")


@lru_cache(maxsize=256)
def _squared(base: float, k: int) -> Scaled:
    """The base squared k times, each time cut to 256 bits; kept, for every step of a run asks for the same ones."""
    if k == 0:
        numerator, denominator = float(base).as_integer_ratio()
        return numerator, 1 - denominator.bit_length()
    square, shift = _squared(base, k - 1)
    return _cut(square * square, 2 * shift)


def _cut(m: int, e: int) -> Scaled:
    """The number m * 2**e with m cut to 256 bits."""
    excess = m.bit_length() - 256
    return (m >> excess, e + excess) if excess > 0 else (m, e)


def cos_pi(numerator: int, denominator: int) -> float:
    """cos(pi * numerator / denominator), correctly rounded to float64: the cosine of a schedule.

    Args:
        numerator: steps done, 0 <= numerator <= denominator.
        denominator: steps in all, >= 1.

    Raises:
        ValueError: they are not.

    Example:
        >>> cos_pi(0, 7), cos_pi(1, 2), cos_pi(7, 7)
        (1.0, 0.0, -1.0)
        >>> cos_pi(1, 3)
        0.5
    """
    if not 0 <= numerator <= denominator or denominator < 1:
        raise ValueError(f"cos_pi: expected 0 <= numerator <= denominator, found {numerator!r} / {denominator!r}")
    if 2 * numerator == denominator:
        return 0.0
    if 2 * numerator > denominator:
        return -cos_pi(denominator - numerator, denominator)
    if 3 * numerator == denominator:
        return 0.5
    angle = PI * numerator // denominator
    square = (angle * angle) >> BITS
    term, sum_, n = ONE, 0, 0
    while term:
        sum_ += term if n % 4 == 0 else -term
        n += 2
        term = ((term * square) >> BITS) // (n * (n - 1))
    return rounded((sum_, -BITS), "float64")
