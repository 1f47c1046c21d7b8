"""Arithmetic by result: the exact real value of each operation on its inputs, rounded once to float32, ties to even.

There is then one right answer, so any implementation that reaches it has the same bits: another BLAS, thread count,
instruction set, summation order, batch or framework. Results follow IEEE 754 for infinities and NaN, and every zero
that `matmul`, `sum` and `dot` return is +0, also one that comes by underflow.

How `matmul` and `sum` reach it
-------------------------------
The product of two float32 numbers is exact in float64 (48 bits of 53, exponents -298 to 256), so a float64 product
differs from the exact one only by its additions. With u = 2**-53 and any order of adding K terms,

    |computed - exact| <= (K - 1) u / (1 - (K - 1) u) * sum |a_k b_k|,        (Higham 2002, section 3.1)

and by Cauchy and Schwarz the last factor is at most |a| |b|, the Euclidean norms. `_certain` takes (K + 2) u 1.01 for
the factor: one u more for each of the roundings of computed - bound and computed + bound, and one part in a hundred for
1 / (1 - K u) and for the norms' own rounding, ample while K < 2**40. Rounding is monotone, so where both ends of that
interval round to the same float32, it is the answer. Elsewhere the result stays open and is formed without error:

* `_slices` splits numbers into slices narrow enough that sums of K of them, or of K products of two, are exact in
  float64 in any order (Ozaki, Ogita, Oishi, Rump 2012);
* `_round_once` adds such exact parts into an expansion that holds the exact total (Shewchuk 1997), rounds it to odd in
  float64 and that to float32, which together is one rounding (Boldo, Melquiond 2008).

`exp` and `log` evaluate in float64 with a bound on the error, certify in the same way, and hand the few inputs left
to integers (`fixedpoint`).
"""

from collections.abc import Callable
from math import ceil, log2
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from numpy_ref import fixedpoint
from numpy_ref.fixedpoint import cos_pi, power

__all__ = [
    "NATIVE",
    "REPRODUCIBLE",
    "Arithmetic",
    "arithmetic_named",
    "check_subnormals",
    "cos_pi",
    "dot",
    "exp",
    "log",
    "matmul",
    "power",
    "sqrt",
    "sum",
]

Array = np.ndarray[Any, np.dtype[Any]]

UNIT = 2.0**-53  # unit roundoff of float64
CHUNK = 1 << 18  # numbers worked on at once where an exact path gathers


def matmul(a: Array, b: Array) -> Array:
    """Matrix product, correctly rounded.

    c_ij = round(sum_k a_ik b_kj)

    Args:
        a: float32, shape (M, K).
        b: float32, shape (K, N).

    Returns:
        float32, shape (M, N); zeros are +0, a sum over K = 0 terms is 0.

    Raises:
        TypeError: an argument is not a float32 array.
        ValueError: the shapes do not chain.

    Mirror:
        `torch_port.arithmetic.matmul`, the same bits.

    Source:
        Ozaki, Ogita, Oishi, Rump 2012, error-free transformation of matrix multiplication.

    Example:
        >>> a = np.array([[1e8, 1.0, -1e8]], np.float32)
        >>> matmul(a, np.ones((3, 1), np.float32))
        array([[1.]], dtype=float32)
    """
    _check("matmul", a, b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"arithmetic.matmul: expected shapes (M, K) and (K, N), found {a.shape} and {b.shape}")
    wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
    norm_a = np.sqrt(np.einsum("ik,ik->i", wide_a, wide_a))
    norm_b = np.sqrt(np.einsum("kj,kj->j", wide_b, wide_b))
    if not (np.isfinite(norm_a).all() and np.isfinite(norm_b).all()):  # no finite float32 has an infinite norm
        clean = matmul(np.where(np.isfinite(a), a, np.float32(0)), np.where(np.isfinite(b), b, np.float32(0)))
        return _place_nonfinite(clean, a, b)
    product = wide_a @ wide_b
    out, open_ = _certain(product, norm_a[:, None] * norm_b, a.shape[1])
    count = np.count_nonzero(open_)
    if count == 0:
        return out
    if count <= out.size >> 6:
        _settle_one_by_one(out, open_, wide_a, wide_b)
        return out
    bits = (53 - _bits_to_count(a.shape[1])) // 2  # products of two such slices sum exactly
    slices_a, slices_b = _slices(wide_a, 1, bits), _slices(wide_b, 0, bits)
    if len(slices_a) * len(slices_b) <= 9:
        return _round_once([x @ y for x in slices_a for y in slices_b], out.shape)
    _settle_one_by_one(out, open_, wide_a, wide_b)  # exponents spread far: the products one by one need fewer slices
    return out


def sum(a: Array, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False) -> Array:
    """Sum over axes, correctly rounded.

    s = round(sum of a over the axes)

    Args:
        a: float32, any shape.
        axis: the axes summed over; None for all.
        keepdims: keep the summed axes with size 1.

    Returns:
        float32, the shape of `numpy.sum`; zeros are +0, an empty sum is 0.

    Raises:
        TypeError: `a` is not a float32 array.

    Mirror:
        `torch_port.arithmetic.sum`, the same bits.

    Source:
        Rump, Ogita, Oishi 2008, accurate floating-point summation.

    Example:
        >>> float(sum(np.array([1e8, 1.0, -1e8], np.float32)))
        1.0
    """
    _check("sum", a)
    axes = tuple(range(a.ndim)) if axis is None else normalize_axis_tuple(axis, a.ndim)
    kept = tuple(i for i in range(a.ndim) if i not in axes)
    shape = tuple(a.shape[i] for i in kept)
    rows = a.transpose(kept + axes).reshape(int(np.prod(shape)), int(np.prod([a.shape[i] for i in axes])))
    with np.errstate(invalid="ignore"):
        total = np.add.reduce(rows, axis=1, dtype=np.float64)
    if np.isfinite(total).all():  # float32 numbers cannot overflow a float64 sum
        out, open_ = _certain(total, np.add.reduce(np.abs(rows), axis=1, dtype=np.float64), rows.shape[1])
        (where,) = np.nonzero(open_)
        for part in _chunks(len(where), rows.shape[1]):
            out[where[part]] = _round_sums(rows[where[part]].astype(np.float64))
    else:
        with np.errstate(invalid="ignore"):
            special = rows.sum(axis=1, where=~np.isfinite(rows))  # infinities of one sign, or NaN
        out = np.where(np.isfinite(rows).all(axis=1), sum(np.where(np.isfinite(rows), rows, 0), 1), special)
    return out.reshape(tuple(1 if i in axes else n for i, n in enumerate(a.shape)) if keepdims else shape)


def dot(a: Array, b: Array) -> Array:
    """Inner product of two float32 vectors of shape (K,), correctly rounded; a 0-dimensional array.

    Raises:
        TypeError: an argument is not a float32 array.
        ValueError: the shapes are not (K,) and (K,).

    Example:
        >>> float(dot(np.array([3.0, 4.0], np.float32), np.array([3.0, 4.0], np.float32)))
        25.0
    """
    _check("dot", a, b)
    if a.ndim != 1 or a.shape != b.shape:
        raise ValueError(f"arithmetic.dot: expected two vectors of one length, found shapes {a.shape} and {b.shape}")
    return matmul(a[None, :], b[:, None]).reshape(())


def sqrt(a: Array) -> Array:
    """Square root of a float32 array, correctly rounded; NaN below 0, and -0 for -0.

    IEEE 754 requires this of the hardware, and NumPy passes it on.
    """
    _check("sqrt", a)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(a))


def exp(a: Array) -> Array:
    """e**a of a float32 array, correctly rounded.

    k = round(a / ln 2);  r = a - k ln 2;  e**a = 2**k (1 + r + r**2/2! + ... + r**13/13!)   in float64

    The series stops 2**-57 short for |r| <= 0.35; its roundings and those of r stay below 2**-50 relative, and the
    certificate allows 2**-48. What it leaves open goes to integers.

    Returns:
        float32 of the same shape: infinity above 88.72, subnormal below -87.33, zero below -103.97; NaN stays NaN.

    Mirror:
        `torch_port.arithmetic.exp`, the same bits.

    Example:
        >>> exp(np.array([0.0, 1.0, -200.0], np.float32))
        array([1.       , 2.7182817, 0.       ], dtype=float32)
    """
    _check("exp", a)
    x = np.clip(a.astype(np.float64), -200.0, 200.0)  # beyond, the float32 result is 0 or infinite as it is here
    k = np.rint(x * 1.4426950408889634)
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    y = np.full_like(r, EXP_SERIES[0])
    for coefficient in EXP_SERIES[1:]:
        y *= r
        y += coefficient
    nan = np.isnan(x)
    y *= np.ldexp(1.0, np.where(nan, 0.0, k).astype(np.int32))
    return _certified(a, y, nan, fixedpoint.exp)


def log(a: Array) -> Array:
    """Natural logarithm of a float32 array, correctly rounded.

    a = m 2**k, 0.7 <= m < 1.42;  s = (m - 1) / (m + 1);  ln a = k ln 2 + 2 (s + s**3/3 + ... + s**21/21)   in float64

    The series stops 2**-60 short for |s| <= 0.172; the certificate allows 2**-48 relative. What it leaves open goes
    to integers.

    Returns:
        float32 of the same shape: -infinity for zeros of either sign, NaN below; infinity stays, NaN stays.

    Mirror:
        `torch_port.arithmetic.log`, the same bits.

    Example:
        >>> log(np.array([1.0, 2.0, 0.0], np.float32))
        array([0.       , 0.6931472,      -inf], dtype=float32)
    """
    _check("log", a)
    usual = (a > 0) & (a < np.inf)
    m, k = np.frexp(np.where(usual, a, np.float32(1)).astype(np.float64))
    low = m < 0.7071067811865476
    m, k = np.where(low, 2 * m, m), k - low
    s = (m - 1) / (m + 1)
    square = s * s
    y = np.full_like(s, LOG_SERIES[0])
    for coefficient in LOG_SERIES[1:]:
        y *= square
        y += coefficient
    y = k * LN2_HIGH + (k * LN2_LOW + y * s)
    out = _certified(a, np.where(usual, y, 0.0), ~usual, fixedpoint.log)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(usual, out, np.log(np.where(usual, np.float32(1), a))))  # exact: inf, -inf or NaN


class Arithmetic(NamedTuple):
    """The operations whose bits depend on who carries them out; what a model and an optimizer compute with."""

    name: str
    matmul: Callable[[Array, Array], Array]
    sum: Callable[..., Array]
    sqrt: Callable[[Array], Array]
    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]


REPRODUCIBLE = Arithmetic("reproducible", matmul, sum, sqrt, exp, log)
NATIVE = Arithmetic("native", np.matmul, np.sum, np.sqrt, np.exp, np.log)


def arithmetic_named(name: str) -> Arithmetic:
    """The arithmetic that `RunConfig.arithmetic` names: "reproducible" (as defined here) or "native" (NumPy's own)."""
    for arithmetic in (REPRODUCIBLE, NATIVE):
        if arithmetic.name == name:
            return arithmetic
    raise ValueError(f"arithmetic: expected 'reproducible' or 'native', found {name!r}")


def check_subnormals() -> None:
    """Refuse to go on where the processor flushes subnormal numbers to zero: its elementary results are not IEEE's.

    Raises:
        FloatingPointError: a sum or a product of float32 or float64 that is subnormal comes out as zero.
    """
    for dtype in (np.float32, np.float64):
        tiny = np.full(4, np.finfo(dtype).tiny)
        if not ((tiny * dtype(0.5)).all() and (tiny - tiny * dtype(0.75)).all()):
            raise FloatingPointError(
                "reproducible arithmetic needs subnormal numbers, and this process flushes them to zero: found "
                f"{dtype.__name__} {tiny[0]!r} / 2 == 0. Turn flush-to-zero off (a library built with -ffast-math sets "
                "it when loaded; torch.set_flush_denormal(False)), or use arithmetic='native'."
            )


def _series(terms: list[tuple[int, int]]) -> list[float]:
    return [numerator / denominator for numerator, denominator in reversed(terms)]


def _factorials(n: int) -> list[int]:
    values = [1]
    for i in range(1, n + 1):
        values.append(values[-1] * i)
    return values


EXP_SERIES = _series([(1, f) for f in _factorials(13)])
LOG_SERIES = _series([(2, n) for n in range(1, 22, 2)])
LN2_HIGH = (fixedpoint.LN2 >> (fixedpoint.BITS - 32)) / 2**32  # 32 bits: k LN2_HIGH is exact for |k| < 2**21
LN2_LOW = (fixedpoint.LN2 - (int(LN2_HIGH * 2**32) << (fixedpoint.BITS - 32))) / fixedpoint.ONE


def _check(name: str, *arrays: Array) -> None:
    found = [f"{x.dtype}" if isinstance(x, np.ndarray) else type(x).__name__ for x in arrays]
    if any(kind != "float32" for kind in found):
        raise TypeError(
            f"arithmetic.{name}: expected float32 arrays, found {' and '.join(found)}; convert with "
            "numpy.asarray(x, numpy.float32), or use arithmetic.NATIVE"
        )


def _to_float32(x: Array) -> Array:
    with np.errstate(over="ignore", under="ignore"):
        return x.astype(np.float32)


def _certain(value: Array, scale: Array, terms: int) -> tuple[Array, Array]:
    """float32 of `value`, a float64 sum of `terms` exact terms whose sizes add to at most `scale`; and what is open."""
    bound = scale * ((terms + 2) * UNIT * 1.01)
    low, high = _to_float32(value - bound), _to_float32(value + bound)
    return high + np.float32(0), low != high  # adding +0 makes every zero +0


def _certified(a: Array, y: Array, settled: Array, exact: Callable[[float], Any]) -> Array:
    """float32 of `y`, within 2**-48 relative of exact(a); `exact` decides where that is not enough."""
    low, out = _to_float32(y * (1 - 2.0**-48)), _to_float32(y * (1 + 2.0**-48))
    open_ = (low != out) & ~settled
    if open_.any():
        values, index = np.unique(a[open_], return_inverse=True)
        out[open_] = np.array([_nearest(exact(float(v))) for v in values], np.float32)[index]
    return np.asarray(out)


def _nearest(value: Any) -> np.float32:
    """The float32 nearest to a Fraction in float32's range that is no tie."""
    near = np.float32(float(value))
    around = [near, np.nextafter(near, np.float32(-np.inf)), np.nextafter(near, np.float32(np.inf))]
    return min(around, key=lambda c: abs(type(value)(float(c)) - value))


def _place_nonfinite(clean: Array, a: Array, b: Array) -> Array:
    """The product of the finite entries, with the NaNs and infinities that IEEE 754 puts into the exact sum."""

    def meets(x: Array, y: Array) -> Array:
        return np.asarray((x.astype(np.float32) @ y.astype(np.float32)) > 0)

    inf = np.float32(np.inf)
    plus = meets(a == inf, b > 0) | meets(a == -inf, b < 0) | meets(a > 0, b == inf) | meets(a < 0, b == -inf)
    minus = meets(a == inf, b < 0) | meets(a == -inf, b > 0) | meets(a > 0, b == -inf) | meets(a < 0, b == inf)
    nan = (
        np.isnan(a).any(1, keepdims=True) | np.isnan(b).any(0) | meets(np.isinf(a), b == 0) | meets(a == 0, np.isinf(b))
    )
    return np.select([nan | (plus & minus), plus, minus], [np.float32(np.nan), inf, -inf], clean)


def _settle_one_by_one(out: Array, open_: Array, wide_a: Array, wide_b: Array) -> None:
    """Write the correctly rounded products of the open entries into `out`."""
    rows, columns = np.nonzero(open_)
    for part in _chunks(len(rows), wide_a.shape[1]):
        i, j = rows[part], columns[part]
        out[i, j] = _round_sums(wide_a[i] * wide_b.T[j])


def _chunks(count: int, width: int) -> list[slice]:
    step = max(1, CHUNK // max(width, 1))
    return [slice(start, start + step) for start in range(0, count, step)]


def _bits_to_count(terms: int) -> int:
    return ceil(log2(max(terms, 2)))


def _round_sums(x: Array) -> Array:
    """float32 nearest to the exact sum of each row of a float64 array."""
    return _round_once([s.sum(1) for s in _slices(x, 1, 52 - _bits_to_count(x.shape[1]))], x.shape[:1])


def _slices(a: Array, axis: int, bits: int) -> list[Array]:
    """Float64 arrays that add up to `a` exactly, each a multiple of a power of two no more than 2**bits times it.

    The power is chosen for each row or column from the largest entry left along `axis`, so that 2**(53 - bits) entries
    of a slice add up exactly in any order. Adding and taking away 1.5 * 2**52 times the power rounds to its multiples,
    for bits <= 51: then the sum stays where the power is float64's spacing.
    """
    slices: list[Array] = []
    rest = a
    while True:
        top = np.abs(rest).max(axis=axis, keepdims=True, initial=0.0)
        if not top.any():
            return slices
        anchor = np.ldexp(1.5, 52 + np.frexp(top)[1] - bits)
        head = (rest + anchor) - anchor
        slices.append(head)
        rest = rest - head  # exact: half a power at most is left


def _two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its exact error (Knuth)."""
    s = a + b
    z = s - a
    return s, (a - (s - z)) + (b - z)


def _round_once(parts: list[Array], shape: tuple[int, ...]) -> Array:
    """float32 nearest to the exact sum of float64 arrays of one shape, entry by entry; zeros are +0.

    Each part is added into an expansion: terms that do not overlap, from small to large, whose exact sum is the sum so
    far (Shewchuk 1997, theorem 10). Coming back from the large end, `high` gathers terms until an addition leaves a
    first error, `rest`; what lies below is smaller than the last bit of that error and cannot change its sign. So the
    exact sum lies between `high` and its neighbour on the side of `rest`, and the odd one of these two is the sum
    rounded to odd.
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
    return _to_float32(odd) + np.float32(0)
