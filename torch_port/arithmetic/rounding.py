"""From exact parts to one rounding: error-free sums of float64 tensors, and casts that round once.

A format is named as in `fixedpoint.FORMATS`; each is a type of PyTorch's own. Powers of two and neighbouring numbers
are made in the bits, through integer views, so that nothing rests on how a device's library computes them.
"""

from math import ceil, fsum, log2

import torch
from torch import Tensor

from numpy_ref.arithmetic import fixedpoint

BLOCK = 1 << 15  # numbers that one thread works on at once: what the passes over them share stays in the cache
DEVICE_BLOCK = 1 << 24  # elsewhere only memory counts

PLAIN = (Tensor, torch.nn.Parameter)  # other subclasses mean more than their numbers

STORAGE = {
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
}


def blocks(count: int, width: int, device: torch.device) -> list[slice]:
    """Ranges of rows of a width that make blocks."""
    block = BLOCK * torch.get_num_threads() if device.type == "cpu" else DEVICE_BLOCK
    step = max(1, block // max(width, 1))
    return [slice(start, start + step) for start in range(0, count, step)]


@torch.no_grad()
def round_to(x: Tensor, kind: str) -> Tensor:
    """A float64 or float32 tensor rounded once, to the nearest number of a format, ties to even.

    float32 is PyTorch's own cast. Its casts from float64 to 16 bits go through float32 and round twice, so here that
    float32 is rounded to odd, which cannot hide on which side of a tie the number lies (Boldo, Melquiond 2008). From
    there float16 is PyTorch's own cast again, and bfloat16 is made by integers:

        bits = bits + 0x7FFF + (bit 16 of bits);  the low 16 bits are cut off

    Returns:
        A new tensor of the format's type, on the same device.

    Example:
        >>> round_to(torch.tensor([1 + 2**-8, 1 + 2**-8 + 2**-40, 3.4e38], dtype=torch.float64), "bfloat16")
        tensor([1.0000, 1.0078,    inf], dtype=torch.bfloat16)
    """
    if not is_plain(x) or x.dtype not in (torch.float32, torch.float64):
        found = x.dtype if is_plain(x) else described(x)
        raise TypeError(f"round_to: expected a float32 or float64 tensor, found {found}; convert it first")
    if not isinstance(kind, str) or kind not in STORAGE:
        raise TypeError(f"round_to: kind: expected one of {', '.join(STORAGE)}, found {kind!r}")
    return cast(x, kind)


def is_plain(x: object) -> bool:
    """Whether it is a dense tensor, or a parameter, and its memory holds its numbers."""
    return type(x) in PLAIN and isinstance(x, Tensor) and x.layout == torch.strided and not x.is_neg()


def described(x: object) -> str:
    """What was found in place of a plain tensor."""
    if type(x) not in PLAIN or not isinstance(x, Tensor):
        return type(x).__name__
    return "a negated tensor (use x.resolve_neg())" if x.is_neg() else f"a {x.layout} tensor"


def cast(x: Tensor, kind: str) -> Tensor:
    """`round_to` of what is known to be right."""
    if kind in ("float32", "float64"):
        return x.to(STORAGE[kind], copy=True)
    odd = _odd_float32(x)
    if kind == "float16":
        return odd.to(torch.float16)
    bits = odd.view(torch.int32)
    lifted = (bits + (0x7FFF + ((bits >> 16) & 1))) >> 16
    return torch.where(torch.isnan(x), torch.nan, lifted.to(torch.int16).view(torch.bfloat16))


def _odd_float32(x: Tensor) -> Tensor:
    """float32 of a float64 tensor, rounded to odd: cut off, and where that is not exact, with the last bit set."""
    near = x.to(torch.float32)
    if x.dtype == torch.float32:
        return near
    bits = near.view(torch.int32) - (near.abs() > x.abs()).int()  # the neighbour towards zero has the next lower bits
    return (bits | (near != x)).view(torch.float32)  # NaN differs from itself and stays NaN


def bits_to_count(terms: int) -> int:
    """Bits by which a sum of so many terms can outgrow one of them."""
    return ceil(log2(max(terms, 2)))


def top_slice(a: Tensor, axis: int, bits: int) -> Tensor:
    """The leading part of a float64 tensor: multiples of a power of two no more than 2**bits times it.

    The power is chosen for each row or column from the largest entry along `axis`, so that 2**(53 - bits) entries of
    the slice add up exactly in any order. What is left, a - slice, is exact and at most half a power. Adding and taking
    away 1.5 * 2**52 times the power rounds to its multiples, for bits <= 51: then the sum stays where the power is
    float64's spacing.
    """
    exponents = a.abs().amax(axis, keepdim=True).view(torch.int64) >> 52  # as float64 stores them
    anchor = (((exponents + (53 - bits)) << 52) | (1 << 51)).view(torch.float64)  # the last bit makes it 1.5 times
    head = a + anchor
    head -= anchor
    return head


def slices(a: Tensor, axis: int, bits: int) -> list[Tensor]:
    """All the slices of a float64 tensor, which add up to it exactly."""
    parts: list[Tensor] = []
    rest = a
    while rest.any():
        parts.append(top_slice(rest, axis, bits))
        rest = rest - parts[-1]
    return parts


def round_sums(x: Tensor, kind: str) -> Tensor:
    """The exact sum of each row of a float64 tensor, rounded once; rows whose sums do not leave float64's range."""
    if x.numel() <= 1024:  # the plain way: float64 sums rounded once each, and the sign of what they leave out
        highs = [fsum(row) for row in x.tolist()]
        rests = [fsum([*row, -high]) for row, high in zip(x.tolist(), highs, strict=True)]
        sums = [fixedpoint.total(both, kind) for both in zip(highs, rests, strict=True)]
        return x.new_tensor(sums).to(STORAGE[kind])  # which holds them: nothing is rounded again
    bits = 52 - bits_to_count(x.shape[1])
    return round_parts([s.sum(1) for s in slices(x, 1, bits)], kind, x.new_zeros(len(x)))


def _two_sum(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded sum and its exact error (Knuth)."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


def round_parts(parts: list[Tensor], kind: str, zeros: Tensor) -> Tensor:
    """The exact sum of float64 tensors of the shape of `zeros`, rounded once to 32 bits or fewer; zeros are +0.

    Each part is added into an expansion: terms that do not overlap, from small to large, whose exact sum is the sum so
    far (Shewchuk 1997, theorem 10). Coming back from the large end, `high` gathers terms until an addition leaves a
    first error, `rest`; what lies below is smaller than the last bit of that error and cannot change its sign. So the
    exact sum lies between `high` and its neighbour on the side of `rest`, and the odd one of these two is the sum
    rounded to odd; rounding that to at most 51 bits is one rounding of the sum (Boldo, Melquiond 2008).
    """
    expansion: list[Tensor] = []
    for part in parts:
        carry = part
        for i, term in enumerate(expansion):
            carry, expansion[i] = _two_sum(carry, term)
        expansion.append(carry)
    high = rest = zeros
    for term in reversed(expansion):
        s, error = _two_sum(high, term)
        exact_so_far = rest == 0
        high, rest = torch.where(exact_so_far, s, high), torch.where(exact_so_far, error, rest)
    toward_zero = (rest != 0) & ((rest < 0) != (high < 0))
    odd = ((high.view(torch.int64) - toward_zero.long()) | (rest != 0)).view(torch.float64)
    return cast(odd, kind) + 0
