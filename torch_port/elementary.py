"""sqrt, exp and log from elementary operations in float64, over tensors; `arithmetic` documents what they return.

The narrow forms serve results of 32 bits or fewer: a root or a series with a bound on its error. For exp and log the
bound certifies nearly every result; the few left go to integers (`fixedpoint`), so that every one is correctly rounded.
The wide forms serve float64: for the root an estimate that integers correct, for exp and log a fixed recipe whose error
stays below one unit in the last place. The series are those of `numpy_ref.elementary`, and so are the bounds.
"""

from collections.abc import Callable
from math import inf, nan

import torch
from torch import Tensor

from numpy_ref import fixedpoint
from numpy_ref.elementary import (
    EXP_SERIES,
    EXP_STAGES,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    LOG_SERIES,
    LOG_STAGES,
    ROOT_HALF_BITS,
    ROUND,
    Stage,
)
from torch_port.rounding import STORAGE, blocks, cast

ONE_BITS = 1023 << 52  # of 1.0


def sqrt(a: Tensor, kind: str) -> Tensor:
    """Square root; see `arithmetic.sqrt`."""
    if kind == "float64":
        return _in_blocks(a, kind, _sqrt_wide)
    # The root of a number of 24 bits is no closer than 2**-51 of it to a tie of 24 bits: in units of its last place the
    # number is whole and below 2**48, and the square of a tie is whole but for 1/4.
    return _in_blocks(a, kind, lambda block: cast(root(block.double()), kind))


def exp(a: Tensor, kind: str) -> Tensor:
    """e**a; see `arithmetic.exp`."""
    if kind == "float64":
        return _in_blocks(a, kind, _exp_wide)
    return _certified(a, kind, _exp_series, EXP_STAGES, fixedpoint.exp)


def log(a: Tensor, kind: str) -> Tensor:
    """Natural logarithm; see `arithmetic.log`."""
    if kind == "float64":
        return _in_blocks(a, kind, _log_wide)
    return _certified(a, kind, _log_series, LOG_STAGES, fixedpoint.log)


def _in_blocks(a: Tensor, kind: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of one argument over a tensor of any shape, a block at a time."""
    out, source = a.new_empty(a.numel(), dtype=STORAGE[kind]), a.reshape(-1)
    for block in blocks(len(source), 1, a.device):
        out[block] = function(source[block])
    return out.reshape(a.shape)


def _certified(
    a: Tensor,
    kind: str,
    series: Callable[[Tensor, Stage], Tensor],
    stages: tuple[Stage, ...],
    exact: Callable[[float], fixedpoint.Scaled],
) -> Tensor:
    """The nearest numbers of the format: by a short series, what that leaves open by a long one, the rest by integers.

    A stage settles an entry when both ends of its error's interval round to the same number.
    """
    out, source, places = a.new_empty(a.numel(), dtype=STORAGE[kind]), a.reshape(-1), []
    for block in blocks(len(source), 1, a.device):
        out[block], left = _settle(series, source[block], stages[0], kind)
        places.append(left + block.start)
    open_ = torch.cat(places) if places else a.new_empty(0, dtype=torch.int64)
    for stage in stages[1:]:
        out[open_], left = _settle(series, source[open_], stage, kind)
        open_ = open_[left]
    if len(open_):
        settled = [fixedpoint.rounded(exact(x), kind) for x in source[open_].tolist()]
        out[open_] = torch.tensor(settled, dtype=torch.float64, device=a.device).to(out.dtype)  # exact: it holds them
    return out.reshape(a.shape)


def _settle(series: Callable[[Tensor, Stage], Tensor], a: Tensor, stage: Stage, kind: str) -> tuple[Tensor, Tensor]:
    """One stage over a block: the results, and the places of those that it leaves open."""
    y = series(a, stage)
    low, out = cast(y * (1 - stage[2]), kind), cast(y * (1 + stage[2]), kind)
    places = (low != out).nonzero()[:, 0]
    return out, places[~torch.isnan(y[places])]


def root(x: Tensor) -> Tensor:
    """Square roots in float64: right to 2**-52 of them, and below the exact ones by no more than roundings.

    torch.sqrt gives an estimate y > 0 only: builds with MKL are often off by one unit in the last place, and thousands
    have been seen. One of Newton's steps, (y + x/y) / 2, is no less than the root for any y; it squares y's relative
    error, which is taken to be below 2**-30, and rounds by at most 1.5 2**-53. Zeros of both signs, infinity and NaN
    come out as IEEE 754 has them, and NaN below 0.
    """
    estimate = torch.sqrt(x)
    mean = x / estimate.clamp(2.0**-500, 2.0**500)  # beyond these are only 0 and infinity
    mean += estimate
    mean *= 0.5
    return mean


def _sqrt_wide(a: Tensor) -> Tensor:
    """From a = m 4**k, 1 <= m < 4: the estimate is at most one unit of 2**-52 off, and whole numbers tell which way.

    With m = M 2**-52 and the estimate Z 2**-52, the next ties are passed where M 2**52 - Z**2 > Z or <= -Z. int64 has
    the difference, which is small, though both its terms are cut to their last 64 bits.
    """
    usual = (a > 0) & (a < inf)
    small = a < 2.0**-1022
    x = torch.where(usual, torch.where(small, a * 2.0**54, a), 1.0)
    bits = x.view(torch.int64)
    k = (bits - ONE_BITS) >> 53
    m = (bits - (k << 53)).view(torch.float64)
    z = (root(m) * 2.0**52).long()
    rest = ((m * 2.0**52).long() << 52) - z * z
    z += (rest > z).long() - (rest <= -z).long()
    near = z.double() * _power_of_two(k - 52 - 27 * small.long())
    return torch.where(usual, near, torch.where((a == 0) | (a == inf), a, nan))


def _exp_series(a: Tensor, stage: Stage) -> Tensor:
    """2**k (1 + r + ... + r**power/power!) in float64."""
    power, ln2, _ = stage
    x = a.clamp(-200, 200).double()  # beyond, the result is 0 or infinite as it is here
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
    exponents = shifted.view(torch.int64)
    exponents <<= 52
    exponents += ONE_BITS
    y *= shifted  # by now 2**k, far from both ends of float64's range
    return y


def _exp_wide(a: Tensor) -> Tensor:
    """Beside the last addition's rounding, at most 0.3 units: of r**2/2! + ..., below 0.07, and of what 1 + r lost.

    2**k is applied in two halves, the second rounding only where the result is subnormal.
    """
    x = a.clamp(-800.0, 800.0)
    k = torch.round(x * LOG2_E)
    high, low = x - k * LN2_HIGH, k * LN2_LOW  # the first is exact
    r = high - low
    y = torch.full_like(r, EXP_SERIES[0])
    for coefficient in EXP_SERIES[1:-2]:
        y = y * r + coefficient
    one_r = 1 + r
    lost = (r - (one_r - 1)) + ((high - r) - low)
    half = torch.floor(k * 0.5)
    near = one_r + (lost + y * (r * r))
    return _power_of_two(k - half) * (_power_of_two(half) * near)


def _power_of_two(k: Tensor) -> Tensor:
    """2**k for whole -1022 <= k <= 1023; for a NaN, anything."""
    return ((k.long() + 1023) << 52).view(torch.float64)


def _parts_of_log(x: Tensor) -> tuple[Tensor, Tensor]:
    """Give m - 1 and k of positive finite x = m 2**k, 0.7 <= m < 1.42, x normal in float64."""
    bits = x.view(torch.int64)
    k = (bits - ROOT_HALF_BITS) >> 52
    return (bits - (k << 52)).view(torch.float64) - 1, k.double()


def _log_series(a: Tensor, stage: Stage) -> Tensor:
    """K ln 2 + 2 s (1 + s**2/3 + ... + s**power/(power + 1)) in float64; what is not positive and finite apart."""
    power, ln2, _ = stage
    inside = (a > 0) & (a < inf)
    usual = bool(inside.all())
    f, k = _parts_of_log((a if usual else torch.where(inside, a, 1)).double())
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
    return y if usual else torch.where(inside, y, _edge_of_log(a))


def _edge_of_log(a: Tensor) -> Tensor:
    """-infinity at zeros, NaN below; infinity and NaN as they are."""
    return torch.where(a == 0, -inf, torch.where(a < 0, nan, a)).double()


def _log_wide(a: Tensor) -> Tensor:
    """ln(1 + f) = f - (f**2/2 - s (f**2/2 + R)), R = 2 s**2/3 + ...: f is exact, and the rest small beside it."""
    usual = (a > 0) & (a < inf)
    small = a < 2.0**-1022
    x = torch.where(usual, torch.where(small, a * 2.0**54, a), 1.0)
    f, k = _parts_of_log(x)
    k -= 54 * small.long()
    s = f / (f + 2)
    square = s * s
    y = torch.full_like(s, LOG_SERIES[0])
    for coefficient in LOG_SERIES[1:-1]:
        y = y * square + coefficient
    half = 0.5 * f * f
    near = k * LN2_HIGH - ((half - (s * (half + y * square) + k * LN2_LOW)) - f)
    return torch.where(usual, near, _edge_of_log(a))
