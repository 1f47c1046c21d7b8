"""Arithmetic by result: the exact real value of each operation on its inputs, rounded once, ties to even.

There is then one right answer, so any implementation that reaches it has the same bits: another device, thread count,
instruction set, summation order, batch or framework. Results follow IEEE 754 for infinities and NaN, and every zero
that `matmul` and `sum` return is +0, also one that comes by underflow.

Inputs are float16, bfloat16, float32 or float64 tensors; `kind` names the format of the result, by default that of the
inputs. Results are on the device of the inputs. Nothing here is differentiated: a result is a constant to autograd,
also where an input requires a gradient, so a model calls these functions within a `torch.autograd.Function`. The
definition of `matmul` and `sum` is `fixedpoint.matmul` and `total`, in whole numbers; for float64 they are computed so.
The fast paths below serve the narrower inputs, and the tests hold them to the definition.

How `matmul` and `sum` reach it
-------------------------------
The product of two float32 numbers is exact in float64 (48 bits of 53, exponents -298 to 256), so a float64 product
differs from the exact one only by its additions. With u = 2**-53, any order of adding K terms, and with or without
fused multiply-adds,

    |computed - exact| <= (K - 1) u / (1 - (K - 1) u) * sum |a_k b_k|,        (Higham 2002, section 3.1)

and by Cauchy and Schwarz the last factor is at most |a| |b|, the Euclidean norms. `_certain` takes (K + 2) u 1.01 for
the factor: one u more for each of the roundings of computed - bound and computed + bound, and one part in a hundred for
1 / (1 - K u) and for the norms' own rounding, ample while K < 2**40. Rounding is monotone, so where both ends of that
interval round to the same number of the format, it is the answer. Elsewhere the result stays open and is formed without
error (`rounding`): from slices of the numbers, whose sums and products' sums float64 holds exactly in any order (Ozaki,
Ogita, Oishi, Rump 2012), added up in an expansion and rounded once.

`exp` and `log` evaluate in float64 with a bound on the error, certify in the same way, and hand the few inputs left
to integers (`elementary`). For float64 itself they are a fixed recipe of elementary operations with an error below one
unit in the last place: the same bits everywhere, though not always the nearest. `sqrt` cannot be PyTorch's own, which
is not correctly rounded on every build.
"""

import math
import threading
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.lib.array_utils import normalize_axis_tuple
from torch import Tensor

from numpy_ref.arithmetic import fixedpoint
from numpy_ref.arithmetic.fixedpoint import CASTS, cos_pi, power
from torch_port.arithmetic import elementary
from torch_port.arithmetic.rounding import (
    STORAGE,
    bits_to_count,
    blocks,
    cast,
    described,
    is_plain,
    round_parts,
    round_sums,
    round_to,
    slices,
    top_slice,
)

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


@torch.no_grad()
def matmul(a: Tensor, b: Tensor, *, kind: str | None = None) -> Tensor:
    """Matrix product, correctly rounded.

    c_ij = round(sum_k a_ik b_kj)

    Args:
        a: float16, bfloat16, float32 or float64, shape (M, K).
        b: of the same type and on the same device, shape (K, N).
        kind: format of the result; float64 inputs give float64.

    Raises:
        TypeError: an argument is no tensor of these types, or they differ; an unknown or impossible `kind`.
        ValueError: the shapes do not chain, or the devices differ.

    Mirror:
        `numpy_ref.arithmetic.matmul`, the same bits.

    Example:
        >>> matmul(torch.tensor([[1e8, 1.0, -1e8]]), torch.ones(3, 1))
        tensor([[1.]])
    """
    kind = _checked_kind("matmul", kind, a, b)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        found = f"{tuple(a.shape)} and {tuple(b.shape)}"
        raise ValueError(f"arithmetic.matmul: expected shapes (M, K) and (K, N), found {found}")
    if a.dtype == torch.float64:
        if not (torch.isfinite(a).all() and torch.isfinite(b).all()):
            return _place_nonfinite(matmul(_finite_part(a), _finite_part(b)), a, b)
        exact = fixedpoint.matmul(a.tolist(), b.T.tolist(), kind)
        return a.new_tensor(exact).reshape(len(a), b.shape[1])
    terms = a.shape[1]
    wide_a, wide_b = _widened("a", a), _widened("b", b)
    norm_a, norm_b = _norms(wide_a, 1), _norms(wide_b, 0)
    if not torch.isfinite(norm_a.sum() + norm_b.sum()):  # no finite numbers of these types have an infinite norm
        return _place_nonfinite(matmul(_finite_part(a), _finite_part(b), kind=kind), a, b)
    product = torch.matmul(wide_a, wide_b, out=_SCRATCH.take("product", (len(a), b.shape[1]), a.device))
    out, open_ = _empty_results(product, kind)
    for rows in blocks(len(a), b.shape[1], a.device):
        out[rows], open_[rows] = _certain(product[rows], norm_a[rows, None] * norm_b, terms, kind)
    count = int(torch.count_nonzero(open_))
    if count > 64 and (product[open_] == 0).sum() > max(64, out.numel() >> 10):  # else one by one is cheaper
        count -= _close_empty(out, open_, wide_a, wide_b)
    if _many(count, out.numel(), terms):
        return _matmul_by_slices(wide_a, wide_b, product, norm_b, kind)
    if count:
        _settle(out, open_, wide_a, wide_b, kind)
    return out


def _matmul_by_slices(wide_a: Tensor, wide_b: Tensor, product: Tensor, norm_b: Tensor, kind: str) -> Tensor:
    """The product where float64's own leaves much open: signs, sums that cancel, numbers of very different sizes.

    With a = a1 + a2 and b = b1 + b2, leading slices and rests, a1 b1 is exact, and a1 b2 + a2 b so much smaller that
    the bound on its error, taken in the same way, is too. What even that leaves open is formed without error.
    """
    terms = wide_a.shape[1]
    bits = (53 - bits_to_count(terms)) // 2  # products of two such slices sum exactly
    a1, b1 = top_slice(wide_a, 1, bits), top_slice(wide_b, 0, bits)
    a2, b2 = wide_a - a1, wide_b - b1
    if not (a2.any() or b2.any()):
        return cast(product, kind) + 0  # it was exact
    torch.matmul(a1, b1, out=product)
    low = a1 @ b2
    low += a2 @ wide_b
    norms, norm_b2 = [_norms(x, 1) for x in (a1, a2)], _norms(b2, 0)
    out, open_ = _empty_results(product, kind)
    for rows in blocks(len(out), out.shape[1], out.device):
        scale = norms[0][rows, None] * norm_b2 + norms[1][rows, None] * norm_b
        value = product[rows] + low[rows]
        scale += value.abs() * (2 / terms)  # the addition of the two rounds once more
        out[rows], open_[rows] = _certain(value, scale, 2 * terms, kind)
    count = int(torch.count_nonzero(open_))
    if _many(count, out.numel(), terms):
        slices_a, slices_b = slices(wide_a, 1, bits), slices(wide_b, 0, bits)
        if len(slices_a) * len(slices_b) <= 9:
            return round_parts([x @ y for x in slices_a for y in slices_b], kind, torch.zeros_like(product))
    if count:  # also where exponents lie so far apart that single products need fewer slices
        _settle(out, open_, wide_a, wide_b, kind)
    return out


def _close_empty(out: Tensor, open_: Tensor, wide_a: Tensor, wide_b: Tensor) -> int:
    """Close the open places whose products are all zero, frequent behind ReLU, which no bound can; their number."""
    overlap = (wide_a != 0).float() @ (wide_b != 0).float()  # above 0 where any product is not
    empty = open_ & (overlap == 0)
    out[empty] = 0
    open_[empty] = False
    return int(torch.count_nonzero(empty))


def _many(count: int, size: int, terms: int) -> bool:
    """Whether so many open places cost more one by one than all of them by slices; measured, not exact."""
    return count * terms > size * max(4, terms >> 7)


def _settle(out: Tensor, open_: Tensor, wide_a: Tensor, wide_b: Tensor, kind: str) -> None:
    """Write the products of the open places into `out`, one by one and without error."""
    places = open_.nonzero()
    for part in blocks(len(places), wide_a.shape[1], out.device):
        i, j = places[part].unbind(1)
        out[i, j] = round_sums(wide_a[i] * wide_b.T[j], kind)


@torch.no_grad()
def sum(
    a: Tensor, axis: int | tuple[int, ...] | None = None, *, keepdims: bool = False, kind: str | None = None
) -> Tensor:
    """Sum over axes, correctly rounded.

    s = round(sum of a over the axes)

    Mirror:
        `numpy_ref.arithmetic.sum`, the same bits.

    Example:
        >>> float(sum(torch.tensor([1e8, 1.0, -1e8])))
        1.0
    """
    kind = _checked_kind("sum", kind, a)
    axes = tuple(range(a.ndim)) if axis is None else normalize_axis_tuple(axis, a.ndim)
    kept = tuple(i for i in range(a.ndim) if i not in axes)
    shape = tuple(a.shape[i] for i in kept)
    terms = math.prod(a.shape[i] for i in axes)
    rows = a.permute(kept + axes).reshape(math.prod(shape), terms)
    if a.dtype == torch.float64:
        sums, sizes = rows, None
    else:
        sums, sizes = _sums_and_sizes(rows)
    if not torch.isfinite(sums).all():  # float64 sums of narrower numbers are infinite for no other reason
        finite = torch.isfinite(rows)
        special = torch.where(finite, 0, rows).sum(1).to(STORAGE[kind])  # infinities of one sign, or NaN
        out = torch.where(finite.all(1), sum(_finite_part(rows), 1, kind=kind), special)
    elif sizes is None:
        out = a.new_tensor([fixedpoint.total(row, kind) for row in rows.tolist()])
    else:
        out, open_ = _certain(sums, sizes, min(terms, LONG) + terms // LONG, kind)
        places = open_.nonzero()[:, 0]
        for part in blocks(len(places), terms, a.device):
            out[places[part]] = round_sums(rows[places[part]].double(), kind)
    return out.reshape(tuple(1 if i in axes else n for i, n in enumerate(a.shape)) if keepdims else shape)


def sqrt(a: Tensor) -> Tensor:
    """Square root of a tensor, correctly rounded; NaN below 0, and -0 for -0.

    IEEE 754 requires this of the hardware, but torch.sqrt hands it to the vector library of the build. NumPy passes it
    on, over the same memory, where a tensor can be an array; elsewhere `elementary` takes torch.sqrt for an estimate.

    Mirror:
        `numpy_ref.arithmetic.sqrt`, the same bits.

    Example:
        >>> sqrt(torch.tensor([4.0, 0.25, -1.0]))
        tensor([2.0000, 0.5000,    nan])
    """
    kind = _checked_kind("sqrt", None, a)
    if a.device.type != "cpu" or kind == "bfloat16":
        return elementary.sqrt(a, kind)
    with np.errstate(invalid="ignore"):
        return torch.from_numpy(np.asarray(np.sqrt(a.detach().numpy())))


@torch.no_grad()
def exp(a: Tensor, *, kind: str | None = None) -> Tensor:
    """e**a, correctly rounded; for float64, by a recipe with an error below one unit in the last place.

    k = round(a / ln 2);  r = a - k ln 2;  e**a = 2**k (1 + r + r**2/2! + ... )   in float64

    Mirror:
        `numpy_ref.arithmetic.exp`, the same bits.

    Example:
        >>> exp(torch.tensor([0.0, 1.0, -200.0]))
        tensor([1.0000, 2.7183, 0.0000])
    """
    kind = _checked_kind("exp", kind, a)
    return elementary.exp(a, kind)


@torch.no_grad()
def log(a: Tensor, *, kind: str | None = None) -> Tensor:
    """Natural logarithm, correctly rounded; for float64, by a recipe with an error below one unit in the last place.

    a = m 2**k, 0.7 <= m < 1.42;  s = (m - 1) / (m + 1);  ln a = k ln 2 + 2 (s + s**3/3 + s**5/5 + ...)   in float64

    Mirror:
        `numpy_ref.arithmetic.log`, the same bits.

    Example:
        >>> log(torch.tensor([1.0, 2.0, 0.0]))
        tensor([0.0000, 0.6931,   -inf])
    """
    kind = _checked_kind("log", kind, a)
    return elementary.log(a, kind)


class Arithmetic(NamedTuple):
    """The operations whose bits depend on who carries them out; what a model and an optimizer compute with."""

    name: str
    matmul: Callable[[Tensor, Tensor], Tensor]
    sum: Callable[..., Tensor]
    sqrt: Callable[[Tensor], Tensor]
    exp: Callable[[Tensor], Tensor]
    log: Callable[[Tensor], Tensor]
    precision: str | None = None  # the format that layers compute in; without one, that of their tensors


REPRODUCIBLE = Arithmetic("reproducible", matmul, sum, sqrt, exp, log)
NATIVE = Arithmetic("native", torch.matmul, torch.sum, torch.sqrt, torch.exp, torch.log)


def arithmetic_named(name: str, *, precision: str | None = None) -> Arithmetic:
    """A run's arithmetic; see `numpy_ref.arithmetic.arithmetic_named`. "native" is torch's own."""
    if precision is not None and precision not in CASTS:
        raise ValueError(f"arithmetic: precision: expected one of {', '.join(CASTS)}, or None, found {precision!r}.")
    for arithmetic in (REPRODUCIBLE, NATIVE):
        if arithmetic.name == name:
            return arithmetic._replace(precision=precision)
    raise ValueError(f"arithmetic: expected 'reproducible' or 'native', found {name!r}")


def check_subnormals() -> None:
    """Refuse to go on where the processor flushes subnormal numbers to zero: its elementary results are not IEEE's."""
    for dtype in (torch.float32, torch.float64):
        tiny = torch.full((4,), torch.finfo(dtype).tiny, dtype=dtype, device="cpu")
        if not ((tiny * 0.5).all() and (tiny - tiny * 0.75).all()):
            raise FloatingPointError(
                "reproducible arithmetic needs subnormal numbers, and this process flushes them to zero: found "
                f"{NAMES[dtype]} {float(tiny[0])!r} / 2 == 0. Turn flush-to-zero off with "
                "torch.set_flush_denormal(False) (a library built with -ffast-math sets it when loaded), or use "
                "arithmetic='native'."
            )


NAMES = {dtype: name for name, dtype in STORAGE.items()}


def _checked_kind(name: str, kind: str | None, *tensors: Tensor) -> str:
    """The format of the result, for arguments of one of the types served, on one device."""
    types = [x.dtype if is_plain(x) else None for x in tensors]
    given = NAMES.get(types[0]) if types[0] is not None else None
    if given is None or any(other != types[0] for other in types):
        found = " and ".join(str(t) if t is not None else described(x) for t, x in zip(types, tensors, strict=True))
        raise TypeError(
            f"arithmetic.{name}: expected float32 tensors, or all float16, all bfloat16 or all float64, found {found}; "
            "convert with torch.as_tensor(x, dtype=torch.float32), a sparse one with x.to_dense(), or use "
            "arithmetic.NATIVE"
        )
    if any(x.device != tensors[0].device for x in tensors):
        found = " and ".join(str(x.device) for x in tensors)
        raise ValueError(f"arithmetic.{name}: expected tensors on one device, found {found}; use x.to(device)")
    if any(x.is_meta for x in tensors):
        raise TypeError(f"arithmetic.{name}: expected tensors that hold numbers, found one on the device 'meta'")
    kind = given if kind is None else kind
    if not isinstance(kind, str) or kind not in STORAGE or (kind == "float64") != (given == "float64"):
        offered = "float64" if given == "float64" else "float16, bfloat16 or float32"
        raise TypeError(f"arithmetic.{name}: kind: expected {offered} for {given} inputs, found {kind!r}")
    return kind


class _Scratch(threading.local):
    """Float64 buffers that the calls of one thread share: fresh pages for each would cost more than the arithmetic.

    They grow to the largest matrices multiplied and stay until the thread ends. Devices other than the CPU keep the
    memory that was used before by themselves.
    """

    def __init__(self) -> None:
        self.buffers: dict[str, Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], device: torch.device) -> Tensor:
        """A contiguous tensor of the shape, its content undefined, valid until the name is taken again."""
        if device.type != "cpu":
            return torch.empty(shape, dtype=torch.float64, device=device)
        size = math.prod(shape)
        if name not in self.buffers or len(self.buffers[name]) < size:
            with torch.inference_mode(False):  # else it could not be written to outside of that mode
                self.buffers[name] = torch.empty(size, dtype=torch.float64, device=device)
        return self.buffers[name][:size].view(shape)


_SCRATCH = _Scratch()


def _widened(name: str, a: Tensor) -> Tensor:
    """The matrix in float64, in the memory order that it has."""
    if a.T.is_contiguous():
        return _SCRATCH.take(name, a.T.shape, a.device).copy_(a.T).T
    return _SCRATCH.take(name, a.shape, a.device).copy_(a)


def _norms(x: Tensor, axis: int) -> Tensor:
    """Euclidean norms along an axis, or more by any error of torch.sqrt: the bound holds whatever that returns."""
    return elementary.root((x * x).sum(axis))


def _empty_results(product: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Room for the results, and for which of them stay open."""
    return torch.empty_like(product, dtype=STORAGE[kind]), torch.empty_like(product, dtype=torch.bool)


def _finite_part(a: Tensor) -> Tensor:
    return torch.where(torch.isfinite(a), a, 0)


def _certain(value: Tensor, scale: Tensor, terms: int, kind: str) -> tuple[Tensor, Tensor]:
    """The format's number for `value`, a float64 sum of `terms` terms of sizes `scale` in all; and what stays open.

    The scale is overwritten.
    """
    scale *= (terms + 2) * UNIT * 1.01
    low = cast(value - scale, kind)
    scale += value
    high = cast(scale, kind)
    return high + 0, low != high  # adding +0 makes every zero +0


def _sums_and_sizes(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Sums of each row in float64, and of its sizes, LONG terms at a time and then over the partial sums.

    The sizes are added in float32, whose error for LONG terms is below the part in a hundred that `_certain` allows.
    """
    count, terms = rows.shape
    if terms <= LONG or count == 0:
        return rows.sum(1, dtype=torch.float64), rows.abs().sum(1, dtype=torch.float32).double()
    whole = terms - terms % LONG
    pieces = rows[:, :whole].reshape(-1, LONG)
    parts = [_sums_and_sizes(pieces[block]) for block in blocks(len(pieces), LONG // 2, rows.device)]
    rest = _sums_and_sizes(rows[:, whole:])
    both = [torch.cat(side).reshape(count, -1) for side in zip(*parts, strict=True)]
    return both[0].sum(1) + rest[0], both[1].sum(1) + rest[1]


def _place_nonfinite(clean: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """The product of the finite entries, with the NaNs and infinities that IEEE 754 puts into the exact sum."""

    def meets(x: Tensor, y: Tensor) -> Tensor:
        return (x.float() @ y.float()) > 0

    inf = math.inf
    plus = meets(a == inf, b > 0) | meets(a == -inf, b < 0) | meets(a > 0, b == inf) | meets(a < 0, b == -inf)
    minus = meets(a == inf, b < 0) | meets(a == -inf, b > 0) | meets(a > 0, b == -inf) | meets(a < 0, b == inf)
    nan = a.isnan().any(1, keepdim=True) | b.isnan().any(0) | meets(a.isinf(), b == 0) | meets(a == 0, b.isinf())
    placed = torch.where(plus, inf, torch.where(minus, -inf, clean))
    return torch.where(nan | (plus & minus), math.nan, placed)
