"""Elementary functions of one number in integers: the same value on every machine, whatever its C library.

A real number x is carried as the integer nearest x * 2**BITS. Every step below is off by a few units of 2**-BITS, so a
result is right to about 180 bits; rounding that once gives the correctly rounded float unless the exact value lies
within 2**-180 of a tie, which no float of up to 53 bits is known to do.

`power` and `cos_pi` serve the optimizers' bias correction and the schedules; `exp` and `log` settle the few float32
inputs that the fast paths of `arithmetic` cannot. Both packages use this module: it knows no framework.
"""

from fractions import Fraction
from functools import lru_cache

BITS = 192
ONE = 1 << BITS


def _atanh(numerator: int, denominator: int) -> int:
    """Inverse hyperbolic tangent of a fraction below 1/3 in size, by its series."""
    term = (numerator << BITS) // denominator
    square = (term * term) >> BITS
    total, n = 0, 1
    while term not in (0, -1):  # a negative term is floored, so it ends at -1
        total += term // n
        term = (term * square) >> BITS
        n += 2
    return total


def _arctan_of_inverse(n: int) -> int:
    """Arctangent of 1/n by its series."""
    term, total, k = ONE // n, 0, 1
    while term:
        total += term // k if k % 4 == 1 else -(term // k)
        term //= n * n
        k += 2
    return total


LN2 = 2 * _atanh(1, 3)  # ln 2 = 2 atanh(1/3)
PI = 4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))  # Machin 1706


def exp(x: float) -> Fraction:
    """e**x, to about 180 bits, for a float32 value x between -200 and 200."""
    numerator, denominator = float(x).as_integer_ratio()
    fixed = (numerator << BITS) // denominator
    k = (2 * fixed + LN2) // (2 * LN2)
    rest = fixed - k * LN2
    term, total, n = ONE, 0, 0
    while term not in (0, -1):
        total += term
        n += 1
        term = ((term * rest) >> BITS) // n
    return Fraction(total, ONE) * Fraction(2) ** k


def log(x: float) -> Fraction:
    """Natural logarithm of a positive float x, to about 180 bits."""
    numerator, denominator = float(x).as_integer_ratio()
    k = numerator.bit_length() - denominator.bit_length()
    numerator, denominator = (numerator, denominator << k) if k >= 0 else (numerator << -k, denominator)
    if 3 * numerator > 4 * denominator:  # bring the rest to between 2/3 and 4/3, where the series is short
        denominator, k = 2 * denominator, k + 1
    return Fraction(2 * _atanh(numerator - denominator, numerator + denominator) + k * LN2, ONE)


@lru_cache(maxsize=4096)
def power(base: float, n: int) -> float:
    """base**n for a whole n >= 0, correctly rounded to float64: bias correction's beta**t.

    By repeated squaring of integers cut to 256 bits, so the relative error before the one rounding is below
    n * 2**-250. (`math.pow` differs between C libraries.)

    Args:
        base: a finite float.
        n: exponent, a whole number >= 0.

    Returns:
        A Python float; values beyond float64's range become infinite, or zero.

    Example:
        >>> power(0.9, 2) == 0.81
        True
        >>> power(0.999, 0)
        1.0
    """
    if n < 0:
        raise ValueError(f"power: n: expected a whole number >= 0, found {n!r}")
    numerator, denominator = float(base).as_integer_ratio()
    square, shift = numerator, 1 - denominator.bit_length()  # base = square * 2**shift
    result, exponent = 1, 0
    while n:
        if n & 1:
            result, exponent = _cut(result * square, exponent + shift)
        square, shift = _cut(square * square, 2 * shift)
        n >>= 1
    size = result.bit_length() + exponent
    if result == 0 or size < -1080:
        return 0.0
    if size > 1025:
        return float("inf") if result > 0 else float("-inf")
    try:
        return (result << max(exponent, 0)) / (1 << max(-exponent, 0))  # int / int rounds once
    except OverflowError:
        return float("inf") if result > 0 else float("-inf")


def _cut(m: int, e: int) -> tuple[int, int]:
    """The number m * 2**e with m cut to 256 bits."""
    excess = m.bit_length() - 256
    return (m >> excess, e + excess) if excess > 0 else (m, e)


def cos_pi(numerator: int, denominator: int) -> float:
    """cos(pi * numerator / denominator), correctly rounded to float64: the cosine of a schedule.

    Args:
        numerator: steps done, 0 <= numerator <= denominator.
        denominator: steps in all, >= 1.

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
    term, total, n = ONE, 0, 0
    while term:
        total += term if n % 4 == 0 else -term
        n += 2
        term = ((term * square) >> BITS) // (n * (n - 1))
    return total / ONE
