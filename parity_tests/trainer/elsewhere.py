"""A second device for machines that have one only: the CPU's numbers under another name, with an accelerator's rules.

Its tensors are of the device type "lazy", which builds of torch know and none of ours uses. Every operation on them is
the CPU's own, but

    tensors of the two devices do not meet, be it a number without axes; only copies and indices may cross
    a generator of the CPU does not fill them
    what is on the device becomes an array by way of the CPU alone
    x / number is x times the number's reciprocal, as on CUDA

so a run that creates something in the wrong place, or divides by a plain number, fails here as it would there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

DEVICE = torch.device("lazy", 0)
aten = torch.ops.aten
CROSSING = {aten.copy_.default, aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default}
TIMES = {aten.div.Tensor: aten.mul.Tensor, aten.div_.Tensor: aten.mul_.Tensor}


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


class _Arrivals(TorchDispatchMode):
    """Takes over what is created on the device, or moved there, from tensors of the CPU or none."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return carried_out(func, args, kwargs or {})


@contextmanager
def elsewhere() -> Iterator[torch.device]:
    """The device exists."""
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # torch.tensor makes a tensor of the CPU, and moves that
    try:
        with _Arrivals():
            yield DEVICE
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def carried_out(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """An operation's result, on the device that it belongs to."""
    here: dict[int, Elsewhere] = {}
    others: list[str] = []

    def inner(x: Any) -> Any:
        if isinstance(x, Elsewhere):
            here[id(x.inner)] = x
            return x.inner
        if isinstance(x, torch.Tensor):
            others.append(str(x.device))
        return x

    args, kwargs = mapped(inner, args), mapped(inner, kwargs)
    if here and others and func not in CROSSING:
        raise RuntimeError(f"{func}: expected all tensors on one device, found {DEVICE} and {', '.join(others)}")
    stays = bool(here)
    if (device := kwargs.get("device")) is not None:
        stays = torch.device(device).type == DEVICE.type
        kwargs |= {"device": torch.device("cpu")} if stays else {}
    if (here or stays) and kwargs.get("generator") is not None:
        raise RuntimeError(f"{func}: expected a generator of {DEVICE}, found one of {kwargs['generator'].device}")
    if here and func in TIMES and not isinstance(args[1], torch.Tensor):
        func, args = TIMES[func], (args[0], 1 / args[1])

    def placed(x: Any) -> Any:
        if not isinstance(x, torch.Tensor):
            return x
        return here[id(x)] if id(x) in here else Elsewhere(x)  # an operation in place gives back what it was given

    found = func(*args, **kwargs)
    return mapped(placed, found) if stays else found


def mapped(function: Any, tree: Any) -> Any:
    """Nested lists, tuples and dicts with the function of each item."""
    if isinstance(tree, (list, tuple)):
        return type(tree)([mapped(function, item) for item in tree])
    if isinstance(tree, dict):
        return {name: mapped(function, item) for name, item in tree.items()}
    return function(tree)
