"""exp and log from elementary operations in float64, over arrays; `arithmetic` documents what they return.

The wide forms serve float64: a fixed recipe whose error stays below one unit in the last place. The narrow forms serve
results of 32 bits or fewer: from a table, with a bound on the error, which certifies nearly every result; of the few
left, the wide form certifies nearly all, and the rest go to integers (`fixedpoint`), so that every one is correctly
rounded.
"""

import math
from collections.abc import Callable

import numpy as np

from numpy_ref.arithmetic import fixedpoint
from numpy_ref.arithmetic.rounding import STORAGE, cast
from numpy_ref.types import Array


def _series(terms: list[tuple[int, int]]) -> list[float]:
    """The quotients, each rounded once, the last term first as Horner's rule wants them."""
    return [numerator / denominator for numerator, denominator in reversed(terms)]


EXP_SERIES = _series([(1, math.factorial(n)) for n in range(14)])  # 1 + r + ... + r**13/13!
LOG_SERIES = _series([(2, n) for n in range(1, 26, 2)])  # 2 + 2 s**2/3 + ... + 2 s**24/25
LN2_HIGH = (fixedpoint.LN2 >> (fixedpoint.BITS - 32)) / 2**32  # 32 bits: k LN2_HIGH is exact for |k| < 2**21
LN2_LOW = (fixedpoint.LN2 - (int(LN2_HIGH * 2**32) << (fixedpoint.BITS - 32))) / fixedpoint.ONE
LOG2_E = fixedpoint.ONE / fixedpoint.LN2
ROUND = 1.5 * 2**52  # adding it rounds to whole numbers
ROOT_HALF_BITS = int(np.float64(0.7071067811865476).view(np.int64))
EXP_BITS = 9  # the table of exp has 2**EXP_BITS steps from 1 to 2
LOG_BITS = 6  # and that of log 2**LOG_BITS from each power of two to the next
STEPS = (fixedpoint.ONE << EXP_BITS) / fixedpoint.LN2  # a STEPS counts the steps of e**a
# Bounds on the relative errors of the short forms, derived at each, and of the wide ones, 16 units in the last place.
SHORT, WIDE = 2.0**-34, 2.0**-48
BLOCK = 1 << 16  # larger than for products: there are many passes and few arrays


def exp(a: Array, kind: str) -> Array:
    """e**a; see `arithmetic.exp`."""
    if kind == "float64":
        return _in_blocks(a, kind, _exp_wide)
    return _certified(a, kind, _exp_short, _exp_wide, fixedpoint.exp)


def log(a: Array, kind: str) -> Array:
    """Natural logarithm; see `arithmetic.log`."""
    if kind == "float64":
        return _in_blocks(a, kind, _log_wide)
    return _certified(a, kind, _log_short, _log_wide, fixedpoint.log)


@np.errstate(all="ignore")
def _in_blocks(a: Array, kind: str, function: Callable[[Array], Array]) -> Array:
    """A function of one argument over an array of any shape, a block at a time."""
    out, source = np.empty(a.size, STORAGE[kind]), a.reshape(-1)
    for start in range(0, a.size, BLOCK):
        out[start : start + BLOCK] = function(source[start : start + BLOCK])
    return out.reshape(a.shape)


@np.errstate(all="ignore")
def _certified(
    a: Array,
    kind: str,
    short: Callable[[Array], Array],
    wide: Callable[[Array], Array],
    exact: Callable[[float], fixedpoint.Scaled],
) -> Array:
    """The nearest numbers of the format: by the short form, the few left by the wide one, the rest by integers.

    A form settles an entry when both ends of its error's interval round to the same number.
    """
    out, source, places = np.empty(a.size, STORAGE[kind]), a.reshape(-1), [np.arange(0)]
    for start in range(0, a.size, BLOCK):
        out[start : start + BLOCK], left = _settle(short(source[start : start + BLOCK]), SHORT, kind)
        places.append(left + start)
    open_ = np.concatenate(places)
    if open_.size:
        out[open_], left = _settle(wide(source[open_].astype(np.float64)) * (1 + WIDE), WIDE, kind)
        open_ = open_[left]
    for i in open_[~np.isnan(out[open_])]:
        out[i] = fixedpoint.rounded(exact(float(source[i])), kind)
    return out.reshape(a.shape)


def _settle(upper: Array, bound: float, kind: str) -> tuple[Array, Array]:
    """The results of a form, given 1 + bound times as large, and the places of those that it leaves open, NaN included.

    That is the outer end of the error's interval. (1 + bound) (1 - 2 bound) is less than 1 - bound, the inner end.
    """
    out = cast(upper, kind)
    upper *= 1 - 2 * bound
    return out, np.flatnonzero(out != cast(upper, kind))


def _exp_wide(a: Array) -> Array:
    """Beside the last addition's rounding, at most 0.3 units: of r**2/2! + ..., below 0.07, and of what 1 + r lost.

    2**k is applied in two halves, the second rounding only where the result is subnormal.
    """
    x = np.clip(a, -800.0, 800.0)
    k = np.rint(x * LOG2_E)
    high, low = x - k * LN2_HIGH, k * LN2_LOW  # the first is exact
    r = high - low
    y = np.full_like(r, EXP_SERIES[0])
    for coefficient in EXP_SERIES[1:-2]:
        y = y * r + coefficient
    one_r = 1 + r
    lost = (r - (one_r - 1)) + ((high - r) - low)
    half = np.floor(k / 2)
    near = one_r + (lost + y * (r * r))
    return _power_of_two(k - half) * (_power_of_two(half) * near)


def _power_of_two(k: Array) -> Array:
    """2**k for whole -1022 <= k <= 1023; for a NaN, anything."""
    return ((k.astype(np.int64) + 1023) << 52).view(np.float64)


def _parts_of_log(x: Array) -> tuple[Array, Array]:
    """Give m - 1 and k of positive finite x = m 2**k, 0.7 <= m < 1.42, x normal in float64."""
    bits = x.view(np.int64)
    k = (bits - ROOT_HALF_BITS) >> 52
    return (bits - (k << 52)).view(np.float64) - 1, k.astype(np.float64)


def _edge_of_log(a: Array) -> Array:
    """-infinity at zeros, NaN below; infinity and NaN as they are."""
    return np.where(a == 0, -np.inf, np.where(a < 0, np.nan, a)).astype(np.float64)


def _log_wide(a: Array) -> Array:
    """ln(1 + f) = f - (f**2/2 - s (f**2/2 + R)), R = 2 s**2/3 + ...: f is exact, and the rest small beside it."""
    usual = (a > 0) & (a < np.inf)
    small = a < 2.0**-1022
    x = np.where(usual, np.where(small, a * 2.0**54, a), 1.0)
    f, k = _parts_of_log(x)
    k -= 54.0 * (small & usual)
    s = f / (f + 2)
    square = s * s
    y = np.full_like(s, LOG_SERIES[0])
    for coefficient in LOG_SERIES[1:-1]:
        y = y * square + coefficient
    half = 0.5 * f * f
    near = k * LN2_HIGH - ((half - (s * (half + y * square) + k * LN2_LOW)) - f)
    return np.where(usual, near, _edge_of_log(a))


# 2**(j / 2**EXP_BITS) with what the short form of exp multiplies by, as bits, less what its shift of k will add.
EXP_TABLE = _exp_wide(np.arange(1 << EXP_BITS) / STEPS) * ((1 + SHORT) / (2 * STEPS**2))
EXP_TABLE = EXP_TABLE.view(np.int64) - (np.arange(1 << EXP_BITS) << (52 - EXP_BITS))


def _exp_short(a: Array) -> Array:
    """(1 + SHORT) 2**(k / 2**EXP_BITS) ((1 + r)**2 + 1) / 2 for a = k ln 2 / 2**EXP_BITS + r, |r| <= ln 2 / 1024.

    Relative to e**r = 1 + r + r**2/2! + ... it stops short by less than |r|**3/6 (1 + 2 |r|) < 2**-34.1. The roundings
    of a STEPS and of STEPS move r by less than 2**-44; all the others together are below 2**-49.
    """
    y = np.clip(a, -200, 200).astype(np.float64)  # beyond, the result is 0 or infinite as it is here
    y *= STEPS  # from here on, r STEPS: the sum is (r STEPS + STEPS)**2 + STEPS**2 over 2 STEPS**2
    shifted = y + ROUND  # leaves k in the lowest bits
    y -= shifted - ROUND
    y += STEPS
    y *= y
    y += STEPS**2
    k = shifted.view(np.int64)
    power = EXP_TABLE.take(k & ((1 << EXP_BITS) - 1))
    k <<= 52 - EXP_BITS
    power += k  # the whole part of k / 2**EXP_BITS reaches the exponent, far from both ends of float64's range
    y *= power.view(np.float64)
    return y


# ln of each float32 number with LOG_BITS bits after the leading one, by sign, exponent and these bits; NaN for what is
# not positive, normal and finite.
LOG_TABLE = np.full(1 << (9 + LOG_BITS), np.nan)
_entries = np.arange(1 << LOG_BITS, 255 << LOG_BITS, dtype=np.uint32)
LOG_TABLE[_entries] = _log_wide((_entries << (23 - LOG_BITS)).view(np.float32).astype(np.float64)) * (1 + SHORT)


def _log_short(a: Array) -> Array:
    """(1 + SHORT) (ln c + 2 s + 2 s**3/3), c the nearest number in the table, s = (a - c) / (a + c).

    NaN where c is not positive, normal and finite. The sum stops short by less than 2 |s|**5/5 (1 + s**2), |s| < 2**-8
    but for subnormal a. Where c = 1 and ln c = 0, that is s**4/5 (1 + s**2) < 2**-34.3 relative to 2 s. Elsewhere
    |ln a| > 2**-7.01, and the error is again below 2**-34.3 of it; or a lies between 1 - 2**-7 and 1 - 2**-8, where
    |ln a| > 2**-8 and |s| < 2**-8.9. ln c is right to some units in the last place, and not much above 2 |ln a|: with
    all other roundings, below 2**-49.
    """
    a = a.astype(np.float32, copy=False)
    entries = a.view(np.uint32) + (1 << (22 - LOG_BITS))
    entries &= (1 << 32) - (1 << (23 - LOG_BITS))
    near = entries.view(np.float32)
    s, c = (a - near).astype(np.float64), near.astype(np.float64)  # both exact
    entries >>= 23 - LOG_BITS
    c *= 2
    c += s
    s /= c
    y = np.square(s, out=c)
    y *= 2 / 3 * (1 + SHORT)
    y += 2 * (1 + SHORT)
    y *= s
    y += LOG_TABLE.take(entries.astype(np.intp))
    return y
