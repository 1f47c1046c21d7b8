"""A second device for machines that have one only: the CPU's numbers under another name, with an accelerator's rules.

Its tensors are of the device type "lazy", which builds of torch know and none of ours uses. Every operation on them is
the CPU's own, but

    tensors of the two devices do not meet, be it a number without axes; only copies and indices may cross
    what is on the device becomes an array by way of the CPU alone
    x / number is x times the number's reciprocal, as on CUDA

so a run that creates something in the wrong place, or divides by a plain number, fails here as it would there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("lazy", 0)
aten = torch.ops.aten
CROSSING = {aten.copy_.default, aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}


class Elsewhere(torch.Tensor):
    """A tensor of the device, around the one of the CPU that holds its numbers."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Elsewhere":
        size, stride, offset = inner.size(), inner.stride(), inner.storage_offset()
        made: Elsewhere = torch.Tensor._make_wrapper_subclass(
            cls, size, strides=stride, storage_offset=offset, dtype=inner.dtype, device=DEVICE
        )
        made.inner = inner
        return made

    def tolist(self) -> Any:
        """Plain numbers, as every device gives them; torch does not offer it to subclasses."""
        return self.inner.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {})


class _Elsewhere(TorchDispatchMode):
    """Takes over what is created on the device, or moved there, from tensors of the CPU or none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {})


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device exists."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes a tensor of the CPU, and moves that
    try:
        with _Elsewhere():
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def carried_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation's result, on the device that it belongs to."""
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    here = [x for x in tensors if isinstance(x, Elsewhere)]
    if here and len(here) < len(tensors) and func not in CROSSING:
        raise RuntimeError(f"{func}: expected all tensors on one device, found {[str(x.device) for x in tensors]}")
    if func in (aten.div.Tensor, aten.div_.Tensor) and here and not isinstance(args[1], torch.Tensor):
        func, args = getattr(aten, func.overloadpacket.__name__.replace("div", "mul")).Tensor, (args[0], 1 / args[1])
    there = bool(here)
    if kwargs.get("device") is not None:
        there = torch.device(kwargs["device"]).type == DEVICE.type
        kwargs = kwargs | {"device": torch.device("cpu")}
    found = func(*tree_map(_inner, args), **tree_map(_inner, kwargs))
    changed = {id(x.inner): x for x in here}  # what an operation in place gives back is what it was given

    def placed(x: Any) -> Any:
        return changed[id(x)] if id(x) in changed else Elsewhere(x) if isinstance(x, torch.Tensor) else x

    return tree_map(placed, found) if there else found


def _inner(x: Any) -> Any:
    return x.inner if isinstance(x, Elsewhere) else x
