"""exp and log from elementary operations in float64, over arrays; `arithmetic` documents what they return.

The narrow forms serve results of 32 bits or fewer: a series with a bound on its error, which certifies nearly every
result; the few left go to integers (`fixedpoint`), so that every one is correctly rounded. The wide forms serve
float64: a fixed recipe whose error stays below one unit in the last place.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_ref import fixedpoint
from numpy_ref.rounding import STORAGE, blocks, cast

Array = np.ndarray[Any, np.dtype[Any]]


def _series(terms: list[tuple[int, int]]) -> list[float]:
    """The quotients, each rounded once, the last term first as Horner's rule wants them."""
    return [numerator / denominator for numerator, denominator in reversed(terms)]


EXP_SERIES = _series([(1, math.factorial(n)) for n in range(14)])  # 1 + r + ... + r**13/13!
LOG_SERIES = _series([(2, n) for n in range(1, 26, 2)])  # 2 + 2 s**2/3 + ... + 2 s**24/25
LN2_HIGH = (fixedpoint.LN2 >> (fixedpoint.BITS - 32)) / 2**32  # 32 bits: k LN2_HIGH is exact for |k| < 2**21
LN2_LOW = (fixedpoint.LN2 - (int(LN2_HIGH * 2**32) << (fixedpoint.BITS - 32))) / fixedpoint.ONE
LOG2_E = fixedpoint.ONE / fixedpoint.LN2
ROOT_HALF_BITS = int(np.float64(0.7071067811865476).view(np.int64))
NARROW = 2.0**-45  # relative error that the certificate of exp and log allows


def exp(a: Array, kind: str) -> Array:
    """e**a; see `arithmetic.exp`."""
    return _in_blocks(a, kind, _exp_wide, _exp_narrow)


def log(a: Array, kind: str) -> Array:
    """Natural logarithm; see `arithmetic.log`."""
    return _in_blocks(a, kind, _log_wide, _log_narrow)


def _in_blocks(a: Array, kind: str, wide: Callable[[Array], Array], narrow: Callable[[Array, str], Array]) -> Array:
    """A function of one argument over an array of any shape, a block at a time."""
    out = np.empty(a.shape, STORAGE[kind])
    flat, source = out.reshape(-1), a.reshape(-1)
    with np.errstate(all="ignore"):
        for block in blocks(source.size, 1):
            x = source[block]
            flat[block] = wide(x) if kind == "float64" else narrow(x, kind)
    return out


def _exp_narrow(a: Array, kind: str) -> Array:
    """Up to r**11/11!, which for |r| <= 0.35 stops 2**-47 short; the roundings stay below 2**-50, both relative."""
    x = np.clip(a.astype(np.float64), -200.0, 200.0)  # beyond, the result is 0 or infinite as it is here
    k = np.rint(x * LOG2_E)
    x -= k * LN2_HIGH
    x -= k * LN2_LOW
    y = np.full_like(x, EXP_SERIES[2])
    for coefficient in EXP_SERIES[3:]:
        y *= x
        y += coefficient
    y *= _power_of_two(k)
    return _certified(a, y, kind, fixedpoint.exp)


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


def _log_narrow(a: Array, kind: str) -> Array:
    """Up to 2 s**16/17, which for |s| <= 0.172 stops 2**-49 short; the roundings stay below 2**-50, both relative."""
    usual = (a > 0) & (a < np.inf)
    f, k = _parts_of_log(np.where(usual, a, a.dtype.type(1)).astype(np.float64))
    s = f / (f + 2)
    square = s * s
    y = np.full_like(s, LOG_SERIES[4])
    for coefficient in LOG_SERIES[5:]:
        y *= square
        y += coefficient
    y *= s
    y += k * LN2_LOW
    y += k * LN2_HIGH
    out = _certified(a, y, kind, fixedpoint.log)
    return out if usual.all() else np.where(usual, out, _edge_of_log(a, usual))


def _edge_of_log(a: Array, usual: Array) -> Array:
    """-infinity at zeros, NaN below, infinity and NaN as they are."""
    return np.where(a == 0, -np.inf, np.where(a < 0, np.nan, np.where(usual, 0, a))).astype(a.dtype)


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
    return np.where(usual, near, _edge_of_log(a, usual))


def _certified(a: Array, y: Array, kind: str, exact: Callable[[float], tuple[int, int]]) -> Array:
    """The format's number for `y`, within NARROW relative of exact(a); `exact` decides where that is not enough."""
    low, out = cast(y * (1 - NARROW), kind), cast(y * (1 + NARROW), kind)
    open_ = low != out
    if open_.any():
        for i in np.flatnonzero(open_ & ~np.isnan(y)):
            out[i] = fixedpoint.rounded(exact(float(a[i])), kind)
    return out
