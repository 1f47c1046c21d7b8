"""sqrt, exp and log from elementary operations in float64, over tensors; `arithmetic` documents what they return.

The wide forms serve float64: for the root an estimate that integers correct, for exp and log a fixed recipe whose error
stays below one unit in the last place. The narrow forms serve results of 32 bits or fewer: a root, or values from a
table, with a bound on the error. For exp and log the bound certifies nearly every result; of the few left, the wide
form certifies nearly all, and the rest go to integers (`fixedpoint`), so that every one is correctly rounded. Series,
tables and bounds are those of `numpy_ref.arithmetic.elementary`.
"""

from collections.abc import Callable
from functools import lru_cache
from math import inf, nan

import torch
from torch import Tensor

from numpy_ref.arithmetic import fixedpoint
from numpy_ref.arithmetic.elementary import (
    EXP_BITS,
    EXP_SERIES,
    EXP_TABLE,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    LOG_BITS,
    LOG_SERIES,
    LOG_TABLE,
    ROOT_HALF_BITS,
    ROUND,
    SHORT,
    STEPS,
    WIDE,
)
from torch_port.arithmetic.rounding import STORAGE, blocks, cast

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
    return _certified(a, kind, _exp_short, _exp_wide, fixedpoint.exp)


def log(a: Tensor, kind: str) -> Tensor:
    """Natural logarithm; see `arithmetic.log`."""
    if kind == "float64":
        return _in_blocks(a, kind, _log_wide)
    return _certified(a, kind, _log_short, _log_wide, fixedpoint.log)


def _in_blocks(a: Tensor, kind: str, function: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of one argument over a tensor of any shape, a block at a time."""
    out, source = a.new_empty(a.numel(), dtype=STORAGE[kind]), a.reshape(-1)
    for block in blocks(len(source), 1, a.device):
        out[block] = function(source[block])
    return out.reshape(a.shape)


def _certified(
    a: Tensor,
    kind: str,
    short: Callable[[Tensor], Tensor],
    wide: Callable[[Tensor], Tensor],
    exact: Callable[[float], fixedpoint.Scaled],
) -> Tensor:
    """The nearest numbers of the format: by the short form, the few left by the wide one, the rest by integers.

    A form settles an entry when both ends of its error's interval round to the same number.
    """
    out, source, places = a.new_empty(a.numel(), dtype=STORAGE[kind]), a.reshape(-1), []
    for block in blocks(len(source), 1, a.device):
        out[block], left = _settle(short(source[block]), SHORT, kind)
        places.append(left + block.start)
    open_ = torch.cat(places) if places else a.new_empty(0, dtype=torch.int64)
    if len(open_):
        out[open_], left = _settle(wide(source[open_].double()) * (1 + WIDE), WIDE, kind)
        open_ = open_[left]
        open_ = open_[~torch.isnan(out[open_])]
    if len(open_):
        settled = [fixedpoint.rounded(exact(x), kind) for x in source[open_].tolist()]
        out[open_] = torch.tensor(settled, dtype=torch.float64, device=a.device).to(out.dtype)  # exact: it holds them
    return out.reshape(a.shape)


def _settle(upper: Tensor, bound: float, kind: str) -> tuple[Tensor, Tensor]:
    """The results of a form, given 1 + bound times as large, and the places of those that it leaves open, NaN included.

    That is the outer end of the error's interval. (1 + bound) (1 - 2 bound) is less than 1 - bound, the inner end.
    """
    out = cast(upper, kind)
    upper *= 1 - 2 * bound
    return out, (out != cast(upper, kind)).nonzero()[:, 0]


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


@lru_cache
def _tables(device: torch.device) -> tuple[Tensor, Tensor]:
    """EXP_TABLE and LOG_TABLE on a device."""
    return torch.tensor(EXP_TABLE, device=device), torch.tensor(LOG_TABLE, device=device)


def _exp_short(a: Tensor) -> Tensor:
    """(1 + SHORT) 2**(k / 2**EXP_BITS) ((1 + r)**2 + 1) / 2 for a = k ln 2 / 2**EXP_BITS + r, |r| <= ln 2 / 1024."""
    y = a.clamp(-200, 200).double()  # beyond, the result is 0 or infinite as it is here
    y *= STEPS  # from here on, r STEPS: the sum is (r STEPS + STEPS)**2 + STEPS**2 over 2 STEPS**2
    shifted = y + ROUND  # leaves k in the lowest bits
    y -= shifted - ROUND
    y += STEPS
    y *= y
    y += STEPS**2
    k = shifted.view(torch.int64)
    power = _tables(a.device)[0][k & ((1 << EXP_BITS) - 1)]
    k <<= 52 - EXP_BITS
    power += k  # the whole part of k / 2**EXP_BITS reaches the exponent, far from both ends of float64's range
    y *= power.view(torch.float64)
    return y


def _log_short(a: Tensor) -> Tensor:
    """(1 + SHORT) (ln c + 2 s + 2 s**3/3), c the nearest number in the table, s = (a - c) / (a + c).

    NaN where c is not positive, normal and finite.
    """
    a = a.float()
    entries = a.view(torch.int32) + (1 << (22 - LOG_BITS))
    entries &= -1 << (23 - LOG_BITS)
    near = entries.view(torch.float32)
    s, c = (a - near).double(), near.double()  # both exact
    entries >>= 23 - LOG_BITS
    entries &= (1 << (9 + LOG_BITS)) - 1  # the sign's bit too
    c *= 2
    c += s
    s /= c
    y = s * s
    y *= 2 / 3 * (1 + SHORT)
    y += 2 * (1 + SHORT)
    y *= s
    y += _tables(a.device)[1][entries.long()]
    return y
