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
from numpy_ref.rounding import STORAGE, cast

Array = np.ndarray[Any, np.dtype[Any]]


Stage = tuple[int, tuple[float, ...], float]


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
# Each stage: the last power taken, what ln 2 is taken for, and a bound on the relative error. For |r| <= 0.3466 the
# series of exp stops about r**9/9! < 2**-32.2 and r**14/14! < 2**-57 short, and e**r is at least 0.707: below 2**-31.6
# relative; for |s| <= 0.1716 that of log stops, relative to 2 s, s**12/13 < 2**-34 and s**26/27 < 2**-70 short. The
# roundings stay below 2**-50, and k times that of ln 2 below 2**-45.
LN2 = fixedpoint.LN2 / fixedpoint.ONE
EXP_STAGES: tuple[Stage, ...] = ((8, (LN2,), 2.0**-31), (13, (LN2_HIGH, LN2_LOW), 2.0**-48))
LOG_STAGES: tuple[Stage, ...] = ((10, (LN2,), 2.0**-32), (24, (LN2_LOW, LN2_HIGH), 2.0**-48))
BLOCK = 1 << 15  # larger than for products: there are many passes and few arrays


def exp(a: Array, kind: str) -> Array:
    """e**a; see `arithmetic.exp`."""
    if kind == "float64":
        return _in_blocks(a, kind, _exp_wide)
    return _certified(a, kind, _exp_series, EXP_STAGES, fixedpoint.exp)


def log(a: Array, kind: str) -> Array:
    """Natural logarithm; see `arithmetic.log`."""
    if kind == "float64":
        return _in_blocks(a, kind, _log_wide)
    return _certified(a, kind, _log_series, LOG_STAGES, fixedpoint.log)


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
    series: Callable[[Array, Stage], Array],
    stages: tuple[Stage, ...],
    exact: Callable[[float], fixedpoint.Scaled],
) -> Array:
    """The nearest numbers of the format: by a short series, what that leaves open by a long one, the rest by integers.

    A stage settles an entry when both ends of its error's interval round to the same number.
    """
    out, source, places = np.empty(a.size, STORAGE[kind]), a.reshape(-1), [np.arange(0)]
    for start in range(0, a.size, BLOCK):
        out[start : start + BLOCK], left = _settle(series, source[start : start + BLOCK], stages[0], kind)
        places.append(left + start)
    open_ = np.concatenate(places)
    for stage in stages[1:]:
        out[open_], left = _settle(series, source[open_], stage, kind)
        open_ = open_[left]
    for i in open_:
        out[i] = fixedpoint.rounded(exact(float(source[i])), kind)
    return out.reshape(a.shape)


def _settle(series: Callable[[Array, Stage], Array], a: Array, stage: Stage, kind: str) -> tuple[Array, Array]:
    """One stage over a block: the results, and the places of those that it leaves open."""
    y = series(a, stage)
    low, out = cast(y * (1 - stage[2]), kind), cast(y * (1 + stage[2]), kind)
    places = np.flatnonzero(low != out)
    return out, places[~np.isnan(y[places])]


def _exp_series(a: Array, stage: Stage) -> Array:
    """2**k (1 + r + ... + r**power/power!) in float64."""
    power, ln2, _ = stage
    x = np.clip(a, -200, 200).astype(np.float64)  # beyond, the result is 0 or infinite as it is here
    shifted = x * LOG2_E
    shifted += ROUND  # leaves k in the lowest bits
    k = shifted - ROUND
    for part in ln2:
        x -= k * part
    coefficients = EXP_SERIES[-1 - power :]
    y = x * coefficients[0]
    for coefficient in coefficients[1:-1]:
        y += coefficient
        y *= x
    y += coefficients[-1]
    exponents = shifted.view(np.int64)
    exponents <<= 52
    bits = y.view(np.int64)
    bits += exponents  # times 2**k, far from both ends of float64's range; for a NaN nothing is added
    return y


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


def _log_series(a: Array, stage: Stage) -> Array:
    """K ln 2 + 2 s (1 + s**2/3 + ... + s**power/(power + 1)) in float64; what is not positive and finite apart."""
    power, ln2, _ = stage
    usual = bool(a.size) and 0 < a.min() and a.max() < np.inf
    inside = True if usual else (a > 0) & (a < np.inf)
    f, k = _parts_of_log((a if usual else np.where(inside, a, a.dtype.type(1))).astype(np.float64))
    s = f / (f + 2)
    square = s * s
    coefficients = LOG_SERIES[-1 - power // 2 :]
    y = square * coefficients[0]
    for coefficient in coefficients[1:-1]:
        y += coefficient
        y *= square
    y += coefficients[-1]
    y *= s
    for part in ln2:
        y += k * part
    return y if usual else np.where(inside, y, _edge_of_log(a))


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
