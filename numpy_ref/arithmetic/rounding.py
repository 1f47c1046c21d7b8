"""From exact parts to one rounding: error-free sums of float64 arrays, and casts that round once.

A format is named as in `fixedpoint.FORMATS`. NumPy has no bfloat16, so its numbers are carried in float32 arrays.
"""

from math import ceil, fsum, log2
from typing import Any

import numpy as np

from numpy_ref.types import Array

BLOCK = 1 << 13  # numbers worked on at once: what the passes over them share stays in the cache

PLAIN = (np.ndarray, np.memmap)  # other subclasses, such as masked arrays, mean more than their numbers

STORAGE: dict[str, Any] = {
    "float16": np.float16,
    "bfloat16": np.float32,
    "float32": np.float32,
    "float64": np.float64,
}


def blocks(count: int, width: int) -> list[slice]:
    """Ranges of rows of a width that make blocks."""
    step = max(1, BLOCK // max(width, 1))
    return [slice(start, start + step) for start in range(0, count, step)]


def round_to(x: Array, kind: str) -> Array:
    """A float64 or float32 array rounded once, to the nearest number of a format, ties to even.

    float16 and float32 are NumPy's own casts. bfloat16 goes through float32 rounded to odd, which cannot hide on which
    side of a bfloat16 tie the number lies (Boldo, Melquiond 2008), and then by integers:

        bits = bits + 0x7FFF + (bit 16 of bits);  the low 16 bits are cut off

    Args:
        x: float64 or float32; NaN stays NaN, what rounds past the range becomes infinite.
        kind: "float16", "bfloat16", "float32" or "float64".

    Returns:
        An array of the format's storage type; bfloat16 in float32.

    Raises:
        TypeError: `x` is no such array, or `kind` no such format.

    Example:
        >>> round_to(np.array([1 + 2**-8, 1 + 2**-8 + 2**-40, 3.4e38]), "bfloat16")
        array([1.       , 1.0078125,       inf], dtype=float32)
    """
    if type(x) not in PLAIN or x.dtype not in (np.float32, np.float64) or not x.dtype.isnative:
        found = x.dtype if isinstance(x, np.ndarray) and type(x) in PLAIN else type(x).__name__
        raise TypeError(f"round_to: expected a float32 or float64 array, found {found}; convert it first")
    if not isinstance(kind, str) or kind not in STORAGE:
        raise TypeError(f"round_to: kind: expected one of {', '.join(STORAGE)}, found {kind!r}")
    with np.errstate(over="ignore", under="ignore"):
        return cast(x, kind)


def cast(x: Array, kind: str) -> Array:
    """`round_to` within a caller's own `errstate`."""
    if kind != "bfloat16":
        return x.astype(STORAGE[kind])
    bits = _odd_float32(x).view(np.uint32)
    lifted = (bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))) & np.uint32(0xFFFF0000)
    return np.where(np.isnan(x), np.float32(np.nan), lifted.view(np.float32))


def _odd_float32(x: Array) -> Array:
    """float32 of a float64 array, rounded to odd: where it is not exact, the neighbour with an odd significand."""
    near = x.astype(np.float32)
    if x.dtype == np.float32:
        return near
    even = (near.view(np.uint32) & 1) == 0
    beside = np.nextafter(near, np.where(x > near, np.float32(np.inf), np.float32(-np.inf)))
    return np.where(even & (near != x), beside, near)  # NaN differs from itself and stays NaN


def bits_to_count(terms: int) -> int:
    """Bits by which a sum of so many terms can outgrow one of them."""
    return ceil(log2(max(terms, 2)))


def top_slice(a: Array, axis: int, bits: int) -> Array:
    """The leading part of a float64 array: multiples of a power of two no more than 2**bits times it.

    The power is chosen for each row or column from the largest entry along `axis`, so that 2**(53 - bits) entries of
    the slice add up exactly in any order. What is left, a - slice, is exact and at most half a power. Adding and taking
    away 1.5 * 2**52 times the power rounds to its multiples, for bits <= 51: then the sum stays where the power is
    float64's spacing.
    """
    top = np.maximum(a.max(axis=axis, keepdims=True, initial=0.0), -a.min(axis=axis, keepdims=True, initial=0.0))
    anchor = np.ldexp(1.5, 52 + np.frexp(top)[1] - bits)
    head: Array = a + anchor
    head -= anchor
    return head


def slices(a: Array, axis: int, bits: int) -> list[Array]:
    """All the slices of a float64 array, which add up to it exactly."""
    parts: list[Array] = []
    rest = a
    while rest.any():
        parts.append(top_slice(rest, axis, bits))
        rest = rest - parts[-1]
    return parts


def round_sums(x: Array, kind: str) -> Array:
    """The exact sum of each row of a float64 array, rounded once; rows whose sums do not leave float64's range."""
    if x.size <= 1024:  # the plain way: float64 sums rounded once each, and the sign of what they leave out
        highs = [fsum(row) for row in x.tolist()]
        rests = [fsum([*row, -high]) for row, high in zip(x.tolist(), highs, strict=True)]
        return round_parts([np.array(highs), np.array(rests)], kind, x.shape[:1])
    return round_parts([s.sum(1) for s in slices(x, 1, 52 - bits_to_count(x.shape[1]))], kind, x.shape[:1])


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its exact error (Knuth)."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


def round_parts(parts: list[Array], kind: str, shape: tuple[int, ...]) -> Array:
    """The exact sum of float64 arrays of one shape, entry by entry, rounded once to 32 bits or fewer; zeros are +0.

    Each part is added into an expansion: terms that do not overlap, from small to large, whose exact sum is the sum so
    far (Shewchuk 1997, theorem 10). Coming back from the large end, `high` gathers terms until an addition leaves a
    first error, `rest`; what lies below is smaller than the last bit of that error and cannot change its sign. So the
    exact sum lies between `high` and its neighbour on the side of `rest`, and the odd one of these two is the sum
    rounded to odd; rounding that to at most 51 bits is one rounding of the sum (Boldo, Melquiond 2008).
    """
    expansion: list[Array] = []
    for part in parts:
        carry = part
        for i, term in enumerate(expansion):
            carry, expansion[i] = _two_sum(carry, term)
        expansion.append(carry)
    high = rest = np.zeros(shape)
    for term in reversed(expansion):
        s, error = _two_sum(high, term)
        exact_so_far = rest == 0
        high, rest = np.where(exact_so_far, s, high), np.where(exact_so_far, error, rest)
    even = np.asarray((high.view(np.int64) & 1) == 0)
    toward = np.where(rest > 0, np.inf, -np.inf)
    odd = np.where((rest != 0) & even, np.nextafter(high, toward), high)
    return np.asarray(cast(odd, kind) + STORAGE[kind](0))
