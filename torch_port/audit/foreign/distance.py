"""How far apart two leaves are: the worst element, its distance, and that in units in the last place."""

import math
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from torch_port.audit import draws
from torch_port.audit.foreign.leaf import Array, Leaf

CHUNK = 1 << 18  # elements that are compared at a time


class Change(NamedTuple):
    """One leaf that differs between two files."""

    path: str
    change: str  # "missing" in b, "extra" in b, "type", "dtype", "shape", "value" or "generator"
    a: Any  # of the worst element, or in words
    b: Any
    distance: float = math.inf
    ulps: int | None = None  # the distance in units in the last place
    elements: int = 1  # that differ
    other: str = ""  # the path in b, where it is spelled otherwise


def change_of(path: str, a: Leaf, b: Leaf) -> Change | None:
    """How two leaves differ, if they do."""
    if a.form == b.form == "other":
        return None if a.dtype == b.dtype else Change(path, "type", a.dtype, b.dtype)
    if "number" in (a.form, b.form):
        return _numbers(path, a, b)
    if a.form != b.form:
        sides = [f"{x.dtype} {x}" if x.form == "value" else str(x) for x in (a, b)]
        return Change(path, "type", sides[0], sides[1])
    if a.form == "generator":
        drift = draws.drift(a.value, b.value)
        apart = float(abs(drift.draws)) if drift.relation == "apart" and drift.draws is not None else math.inf
        return None if drift.relation == "same" else Change(path, "generator", a.dtype, drift.text, apart)
    if a.form == "value":
        return _values(path, a.value, b.value)
    if a.shape != b.shape:
        return Change(path, "shape", str(a), str(b))
    if a.form == "numbers":
        found = [c for x, y in zip(a.value, b.value, strict=True) if (c := _values(path, x, y))]
        worst = max(found, key=lambda c: c.distance, default=None)
        return None if worst is None else worst._replace(elements=len(found))
    if a.dtype != b.dtype:
        return Change(path, "dtype", str(a), str(b))
    return _tensors(path, a, b)


def _numbers(path: str, a: Leaf, b: Leaf) -> Change | None:
    """Two numbers by their value alone, whatever types they have."""
    x, y = (leaf.value.item() if leaf.form == "tensor" and leaf.shape == () else leaf.value for leaf in (a, b))
    if not isinstance(x, (int, float)) or not isinstance(y, (int, float)):
        return Change(path, "type", f"{a.dtype} {a}", f"{b.dtype} {b}")
    return None if x == y or (x != x and y != y) else Change(path, "value", x, y, abs(float(x) - float(y)))


def _values(path: str, a: Any, b: Any) -> Change | None:
    """Two plain values."""
    if type(a) is not type(b):
        return Change(path, "type", f"{type(a).__name__} {a!r}", f"{type(b).__name__} {b!r}")
    if type(a) is float:
        worst = _worst(torch.tensor([a], dtype=torch.float64), torch.tensor([b], dtype=torch.float64))
        return None if worst is None else Change(path, "value", *worst)
    if a == b:
        return None
    if type(a) is int:
        with suppress(OverflowError):
            return Change(path, "value", a, b, float(abs(a - b)))
    return Change(path, "value", a, b)


def _tensors(path: str, a: Leaf, b: Leaf) -> Change | None:
    """The worst element of two tensors of one type and shape."""
    x, y = a.value.reshape(-1), b.value.reshape(-1)
    if x.is_complex():
        x, y = (torch.view_as_real(z).reshape(-1) for z in (x, y))
    count, worst = 0, None
    for start in range(0, x.numel(), CHUNK):
        found = _worst(x[start : start + CHUNK], y[start : start + CHUNK])
        if found is not None:
            count += found[4]
            worst = max(worst or found, found, key=lambda one: (one[2], one[3] or 0))
    if worst is None:
        return None
    if a.form == "packed":
        return Change(path, "value", f"{a}", "other bytes", elements=count)
    return Change(path, "value", *worst[:4], elements=count)


def _worst(x: Tensor, y: Tensor) -> tuple[Any, Any, float, int | None, int] | None:
    """The values, distance and units in the last place of the worst element, and how many differ; None if none does."""
    floating = x.is_floating_point()
    codes = [_codes(z) for z in (x, y)]
    apart = codes[0] != codes[1]
    if not apart.any():
        return None
    values = [np.asarray(z.to(torch.float64).numpy()) for z in (x, y)]
    if floating:
        apart &= ~(np.isnan(values[0]) & np.isnan(values[1]))
    places = np.flatnonzero(apart)
    if not places.size:
        return None
    with np.errstate(all="ignore"):
        distance = np.abs(values[1][places] - values[0][places])
        distance = np.where(values[1][places] == values[0][places], 0.0, distance)
        distance = np.where(np.isnan(distance), np.inf, distance)
        steps = np.abs(codes[1][places].astype(np.float64) - codes[0][places].astype(np.float64))
    last = np.lexsort((steps, distance))[-1]
    place = int(places[last])
    a, b = (z[place].item() for z in (x, y))
    if not floating:
        return a, b, float(abs(int(a) - int(b))), None, places.size
    return a, b, float(distance[last]), abs(int(codes[1][place]) - int(codes[0][place])), places.size


def _codes(x: Tensor) -> Array:
    """Integers in the order of the numbers, neighbours one apart, -0 just below +0."""
    if not x.is_floating_point():
        return np.asarray(x.numpy())
    if x.dtype is torch.float8_e8m0fnu:  # no sign
        return np.asarray(x.contiguous().view(torch.uint8).numpy())
    size = x.element_size()
    bits = x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[size]).numpy()
    return np.asarray(bits ^ np.where(bits < 0, np.iinfo(bits.dtype).max, 0).astype(bits.dtype))
