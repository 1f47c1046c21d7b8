"""Arithmetic by result: the exact real value of each operation on its inputs, rounded once, ties to even.

There is then one right answer, so any implementation that reaches it has the same bits: another BLAS, thread count,
instruction set, summation order, batch or framework. Results follow IEEE 754 for infinities and NaN, and every zero
that `matmul` and `sum` return is +0, also one that comes by underflow.

Inputs are float16, float32 or float64 arrays; `kind` names the format of the result, by default that of the inputs.
bfloat16 numbers are carried in float32 arrays: give such arrays and `kind="bfloat16"`. The definition of `matmul` and
`sum` is `fixedpoint.matmul` and `total`, in whole numbers; for float64 they are computed so. The fast paths below serve
the narrower inputs, and the tests hold them to the definition.

How `matmul` and `sum` reach it
-------------------------------
The product of two float32 numbers is exact in float64 (48 bits of 53, exponents -298 to 256), so a float64 product
differs from the exact one only by its additions. With u = 2**-53 and any order of adding K terms,

    |computed - exact| <= (K - 1) u / (1 - (K - 1) u) * sum |a_k b_k|,        (Higham 2002, section 3.1)

and by Cauchy and Schwarz the last factor is at most |a| |b|, the Euclidean norms. `_certain` takes (K + 2) u 1.01 for
the factor: one u more for each of the roundings of computed - bound and computed + bound, and one part in a hundred for
1 / (1 - K u) and for the norms' own rounding, ample while K < 2**40. Rounding is monotone, so where both ends of that
interval round to the same number of the format, it is the answer. Elsewhere the result stays open and is formed without
error (`rounding`): from slices of the numbers, whose sums and products' sums float64 holds exactly in any order (Ozaki,
Ogita, Oishi, Rump 2012), added up in an expansion and rounded once.

`exp` and `log` evaluate in float64 with a bound on the error, certify in the same way, and hand the few inputs left
to integers (`elementary`). For float64 itself they are a fixed recipe of elementary operations with an error below one
unit in the last place: the same bits everywhere, though not always the nearest.
"""

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from numpy_ref.arithmetic import elementary, fixedpoint
from numpy_ref.arithmetic.fixedpoint import CASTS, cos_pi, power
from numpy_ref.arithmetic.rounding import (
    PLAIN,
    STORAGE,
    bits_to_count,
    blocks,
    cast,
    round_parts,
    round_sums,
    round_to,
    slices,
    top_slice,
)
from numpy_ref.types import Array

__all__ = [
    "NATIVE",
    "REPRODUCIBLE",
    "Arithmetic",
    "arithmetic_named",
    "check_subnormals",
    "cos_pi",
    "exp",
    "log",
    "matmul",
    "power",
    "round_to",
    "sqrt",
    "sum",
]


UNIT = 2.0**-53  # unit roundoff of float64
LONG = 1 << 12  # terms added at once in a long sum, so that the bound on its error stays small


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def matmul(a: Array, b: Array, *, kind: str | None = None) -> Array:
    """Matrix product, correctly rounded.

    c_ij = round(sum_k a_ik b_kj)

    Args:
        a: float16, float32 or float64, shape (M, K).
        b: of the same type, shape (K, N).
        kind: format of the result; float64 inputs give float64.

    Returns:
        Shape (M, N); zeros are +0, a sum over K = 0 terms is 0.

    Raises:
        TypeError: an argument is no array of these types, or they differ; an unknown or impossible `kind`.
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
    kind = _checked_kind("matmul", kind, a, b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ValueError(f"arithmetic.matmul: expected shapes (M, K) and (K, N), found {a.shape} and {b.shape}")
    if a.dtype == np.float64:
        if not (np.isfinite(a).all() and np.isfinite(b).all()):
            return _place_nonfinite(matmul(_finite_part(a), _finite_part(b)), a, b)
        exact = fixedpoint.matmul(a.tolist(), b.T.tolist(), kind)
        return np.array(exact, np.float64).reshape(len(a), b.shape[1])
    terms = a.shape[1]
    wide_a, wide_b = _widened("a", a), _widened("b", b)
    norm_a, norm_b = np.sqrt(np.einsum("ik,ik->i", wide_a, wide_a)), np.sqrt(np.einsum("kj,kj->j", wide_b, wide_b))
    if not math.isfinite(norm_a.sum() + norm_b.sum()):  # no finite numbers of these types have an infinite norm
        return _place_nonfinite(matmul(_finite_part(a), _finite_part(b), kind=kind), a, b)
    product = np.matmul(wide_a, wide_b, out=_SCRATCH.take("product", (len(a), b.shape[1])))
    out, open_ = np.empty(product.shape, STORAGE[kind]), np.empty(product.shape, bool)
    for rows in blocks(len(a), b.shape[1]):
        out[rows], open_[rows] = _certain(product[rows], norm_a[rows, None] * norm_b, terms, kind)
    count = int(np.count_nonzero(open_))
    if count > 64 and np.count_nonzero(product[open_] == 0) > max(64, out.size >> 10):  # else one by one is cheaper
        count -= _close_empty(out, open_, wide_a, wide_b)
    if _many(count, out.size, terms):
        return _matmul_by_slices(wide_a, wide_b, product, norm_b, kind)
    if count:
        _settle(out, open_, wide_a, wide_b, kind)
    return out


def _matmul_by_slices(wide_a: Array, wide_b: Array, product: Array, norm_b: Array, kind: str) -> Array:
    """The product where float64's own leaves much open: signs, sums that cancel, numbers of very different sizes.

    With a = a1 + a2 and b = b1 + b2, leading slices and rests, a1 b1 is exact, and a1 b2 + a2 b so much smaller that
    the bound on its error, taken in the same way, is too. What even that leaves open is formed without error.
    """
    terms = wide_a.shape[1]
    bits = (53 - bits_to_count(terms)) // 2  # products of two such slices sum exactly
    a1, b1 = top_slice(wide_a, 1, bits), top_slice(wide_b, 0, bits)
    a2, b2 = wide_a - a1, wide_b - b1
    if not (a2.any() or b2.any()):
        return np.asarray(cast(product, kind) + STORAGE[kind](0))  # it was exact
    np.matmul(a1, b1, out=product)
    low = a1 @ b2
    low += a2 @ wide_b
    norms = [np.sqrt(np.einsum("ik,ik->i", x, x)) for x in (a1, a2)]
    norm_b2 = np.sqrt(np.einsum("kj,kj->j", b2, b2))
    out, open_ = np.empty(product.shape, STORAGE[kind]), np.empty(product.shape, bool)
    for rows in blocks(*product.shape):
        scale = norms[0][rows, None] * norm_b2 + norms[1][rows, None] * norm_b
        value = product[rows] + low[rows]
        scale += np.abs(value) * (2 / terms)  # the addition of the two rounds once more
        out[rows], open_[rows] = _certain(value, scale, 2 * terms, kind)
    count = int(np.count_nonzero(open_))
    if _many(count, out.size, terms):
        slices_a, slices_b = slices(wide_a, 1, bits), slices(wide_b, 0, bits)
        if len(slices_a) * len(slices_b) <= 9:
            return round_parts([x @ y for x in slices_a for y in slices_b], kind, out.shape)
    if count:  # also where exponents lie so far apart that single products need fewer slices
        _settle(out, open_, wide_a, wide_b, kind)
    return out


def _close_empty(out: Array, open_: Array, wide_a: Array, wide_b: Array) -> int:
    """Close the open places whose products are all zero, frequent behind ReLU, which no bound can; their number."""
    overlap = (wide_a != 0).astype(np.float32) @ (wide_b != 0).astype(np.float32)  # above 0 where any product is not
    empty = open_ & (overlap == 0)
    out[empty] = 0
    open_[empty] = False
    return int(np.count_nonzero(empty))


def _many(count: int, size: int, terms: int) -> bool:
    """Whether so many open places cost more one by one than all of them by slices; measured, not exact."""
    return count * terms > size * max(4, terms >> 7)


def _settle(out: Array, open_: Array, wide_a: Array, wide_b: Array, kind: str) -> None:
    """Write the products of the open places into `out`, one by one and without error."""
    places = np.flatnonzero(open_)
    for part in blocks(len(places), wide_a.shape[1] >> 2):  # four at once: slices take many calls
        i, j = np.divmod(places[part], out.shape[1])
        out[i, j] = round_sums(wide_a[i] * wide_b.T[j], kind)


@np.errstate(over="ignore", under="ignore", invalid="ignore")
def sum(
    a: Array, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False, kind: str | None = None
) -> Array:
    """Sum over axes, correctly rounded.

    s = round(sum of a over the axes)

    Args:
        a: float16, float32 or float64, any shape.
        axis: the axes summed over; None for all.
        keepdims: keep the summed axes with size 1.
        kind: format of the result; float64 inputs give float64.

    Returns:
        The shape of `numpy.sum`; zeros are +0, an empty sum is 0.

    Raises:
        TypeError: `a` is no array of these types; an unknown or impossible `kind`.
        ValueError: there is no such axis.

    Mirror:
        `torch_port.arithmetic.sum`, the same bits.

    Source:
        Rump, Ogita, Oishi 2008, accurate floating-point summation.

    Example:
        >>> float(sum(np.array([1e8, 1.0, -1e8], np.float32)))
        1.0
    """
    kind = _checked_kind("sum", kind, a)
    axes = tuple(range(a.ndim)) if axis is None else normalize_axis_tuple(axis, a.ndim)
    kept = tuple(i for i in range(a.ndim) if i not in axes)
    shape = tuple(a.shape[i] for i in kept)
    terms = math.prod(a.shape[i] for i in axes)
    rows = a.transpose(kept + axes).reshape(math.prod(shape), terms)
    if a.dtype == np.float64:
        sums, sizes = rows, None
    else:
        sums, sizes = _sums_and_sizes(rows)
    if not np.isfinite(sums).all():  # float64 sums of narrower numbers are infinite for no other reason
        special = np.add.reduce(rows, axis=1, where=~np.isfinite(rows))  # infinities of one sign, or NaN
        out = np.where(np.isfinite(rows).all(axis=1), sum(_finite_part(rows), 1, kind=kind), special)
    elif sizes is None:
        out = np.array([fixedpoint.total(row, kind) for row in rows.tolist()], np.float64)
    else:
        out, open_ = _certain(sums, sizes, min(terms, LONG) + terms // LONG, kind)
        (places,) = np.nonzero(open_)
        for part in blocks(len(places), terms):
            out[places[part]] = round_sums(rows[places[part]].astype(np.float64), kind)
    out = out.astype(STORAGE[kind], copy=False)
    return out.reshape(tuple(1 if i in axes else n for i, n in enumerate(a.shape)) if keepdims else shape)


def sqrt(a: Array) -> Array:
    """Square root of a float16, float32 or float64 array, correctly rounded; NaN below 0, and -0 for -0.

    IEEE 754 requires this of the hardware, and NumPy passes it on; float16 goes through float32, whose 24 bits are
    enough that the second rounding is innocuous (Figueroa 1995).
    """
    _checked_kind("sqrt", None, a)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.sqrt(a))


def exp(a: Array, *, kind: str | None = None) -> Array:
    """e**a, correctly rounded; for float64, by a recipe with an error below one unit in the last place.

    k = round(a / ln 2);  r = a - k ln 2;  e**a = 2**k (1 + r + r**2/2! + ... )   for float64

    Args:
        a: float16, float32 or float64, any shape.
        kind: format of the result; float64 inputs give float64.

    Returns:
        The same shape; in float32 infinite above 88.72, subnormal below -87.33, zero below -103.97; NaN stays NaN.

    Raises:
        TypeError: as for `sum`.

    Mirror:
        `torch_port.arithmetic.exp`, the same bits.

    Example:
        >>> exp(np.array([0.0, 1.0, -200.0], np.float32))
        array([1.       , 2.7182817, 0.       ], dtype=float32)
    """
    kind = _checked_kind("exp", kind, a)
    return elementary.exp(a, kind)


def log(a: Array, *, kind: str | None = None) -> Array:
    """Natural logarithm, correctly rounded; for float64, by a recipe with an error below one unit in the last place.

    a = m 2**k, 0.7 <= m < 1.42;  s = (m - 1) / (m + 1);  ln a = k ln 2 + 2 (s + s**3/3 + s**5/5 + ...)   for float64

    Args:
        a: float16, float32 or float64, any shape.
        kind: format of the result; float64 inputs give float64.

    Returns:
        The same shape: -infinity for zeros of either sign, NaN below; infinity stays, NaN stays.

    Raises:
        TypeError: as for `sum`.

    Mirror:
        `torch_port.arithmetic.log`, the same bits.

    Example:
        >>> log(np.array([1.0, 2.0, 0.0], np.float32))
        array([0.       , 0.6931472,      -inf], dtype=float32)
    """
    kind = _checked_kind("log", kind, a)
    return elementary.log(a, kind)


class Arithmetic(NamedTuple):
    """The operations whose bits depend on who carries them out; what a model and an optimizer compute with."""

    name: str
    matmul: Callable[[Array, Array], Array]
    sum: Callable[..., Array]
    sqrt: Callable[[Array], Array]
    exp: Callable[[Array], Array]
    log: Callable[[Array], Array]
    precision: str | None = None  # the format that layers compute in; without one, that of their arrays


REPRODUCIBLE = Arithmetic("reproducible", matmul, sum, sqrt, exp, log)
NATIVE = Arithmetic("native", np.matmul, np.sum, np.sqrt, np.exp, np.log)


def arithmetic_named(name: str, *, precision: str | None = None) -> Arithmetic:
    """A run's arithmetic.

    Args:
        name: `RunConfig.arithmetic`: "reproducible" (as defined here) or "native" (NumPy's own).
        precision: `RunConfig.precision`, the format that layers compute in; by default that of their arrays.

    Raises:
        ValueError: an unknown name or format.
    """
    if precision is not None and precision not in CASTS:
        raise ValueError(f"arithmetic: precision: expected one of {', '.join(CASTS)}, or None, found {precision!r}.")
    for arithmetic in (REPRODUCIBLE, NATIVE):
        if arithmetic.name == name:
            return arithmetic._replace(precision=precision)
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


NAMES = {np.dtype(name): name for name in ("float16", "float32", "float64")}


def _checked_kind(name: str, kind: str | None, *arrays: Array) -> str:
    """The format of the result, for arguments of one of the types served."""
    types = [x.dtype if type(x) in PLAIN or isinstance(x, np.generic) else None for x in arrays]
    given = NAMES.get(types[0]) if types[0] is not None else None
    if given is None or any(other != types[0] for other in types):
        found = " and ".join(str(t) if t is not None else type(x).__name__ for t, x in zip(types, arrays, strict=True))
        raise TypeError(
            f"arithmetic.{name}: expected float32 arrays, or all float16 or all float64, found {found}; convert with "
            "numpy.asarray(x, numpy.float32), or use arithmetic.NATIVE"
        )
    kind = given if kind is None else kind
    if not isinstance(kind, str) or kind not in STORAGE or (kind == "float64") != (given == "float64"):
        offered = "float64" if given == "float64" else "float16, bfloat16 or float32"
        raise TypeError(f"arithmetic.{name}: kind: expected {offered} for {given} inputs, found {kind!r}")
    return kind


class _Scratch(threading.local):
    """Float64 buffers that the calls of one thread share: fresh pages for each would cost more than the arithmetic.

    They grow to the largest matrices multiplied and stay until the thread ends.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Array] = {}

    def take(self, name: str, shape: tuple[int, ...]) -> Array:
        """A contiguous array of the shape, its content undefined, valid until the name is taken again."""
        size = math.prod(shape)
        if name not in self.buffers or self.buffers[name].size < size:
            self.buffers[name] = np.empty(size)
        return self.buffers[name][:size].reshape(shape)


_SCRATCH = _Scratch()


def _widened(name: str, a: Array) -> Array:
    """The matrix in float64, in the memory order that it has."""
    flip = a.flags.f_contiguous and not a.flags.c_contiguous
    wide = _SCRATCH.take(name, a.T.shape if flip else a.shape)
    np.copyto(wide, a.T if flip else a)
    return wide.T if flip else wide


def _finite_part(a: Array) -> Array:
    return np.where(np.isfinite(a), a, a.dtype.type(0))


def _certain(value: Array, scale: Array, terms: int, kind: str) -> tuple[Array, Array]:
    """The format's number for `value`, a float64 sum of `terms` terms of sizes `scale` in all; and what stays open.

    The scale is overwritten.
    """
    scale *= (terms + 2) * UNIT * 1.01
    low, high = cast(value - scale, kind), cast(np.add(value, scale, out=scale), kind)
    return high + STORAGE[kind](0), low != high  # adding +0 makes every zero +0


def _sums_and_sizes(rows: Array) -> tuple[Array, Array]:
    """Sums of each row in float64, and of its sizes, LONG terms at a time and then over the partial sums.

    The sizes are added in float32, whose error for LONG terms is below the part in a hundred that `_certain` allows.
    """
    count, terms = rows.shape
    if terms <= LONG or count == 0:
        sizes = np.add.reduce(np.abs(rows), axis=1, dtype=np.float32)
        return np.add.reduce(rows, axis=1, dtype=np.float64), sizes.astype(np.float64)
    whole = terms - terms % LONG
    pieces = rows[:, :whole].reshape(-1, LONG)
    parts = [_sums_and_sizes(pieces[block]) for block in blocks(len(pieces), LONG // 2)]
    rest = _sums_and_sizes(rows[:, whole:])
    both = [np.concatenate(side).reshape(count, -1) for side in zip(*parts, strict=True)]
    return np.add.reduce(both[0], axis=1) + rest[0], np.add.reduce(both[1], axis=1) + rest[1]


def _place_nonfinite(clean: Array, a: Array, b: Array) -> Array:
    """The product of the finite entries, with the NaNs and infinities that IEEE 754 puts into the exact sum."""

    def meets(x: Array, y: Array) -> Array:
        return np.asarray((x.astype(np.float32) @ y.astype(np.float32)) > 0)

    inf = clean.dtype.type(np.inf)
    plus = meets(a == inf, b > 0) | meets(a == -inf, b < 0) | meets(a > 0, b == inf) | meets(a < 0, b == -inf)
    minus = meets(a == inf, b < 0) | meets(a == -inf, b > 0) | meets(a > 0, b == -inf) | meets(a < 0, b == inf)
    nan = (
        np.isnan(a).any(1, keepdims=True) | np.isnan(b).any(0) | meets(np.isinf(a), b == 0) | meets(a == 0, np.isinf(b))
    )
    return np.select([nan | (plus & minus), plus, minus], [clean.dtype.type(np.nan), inf, -inf], clean)
