"""Tensors and arrays: which can become which, without shared memory, and what memory a tensor shows."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from torch_port.interop.errors import kind_of

Array = np.ndarray[Any, np.dtype[Any]]


def arrays_of(path: str, tensors: Mapping[str, Any], faults: list[str]) -> dict[str, Array]:
    """Independent arrays of these tensors."""
    arrays = {}
    for name, tensor in tensors.items():
        if fault := fault_of_tensor(tensor):
            faults.append(f"{path}/{name}: {fault}")
        else:
            arrays[name] = np.array(tensor.detach().cpu().numpy(), order="C")
    return arrays


def fault_of_tensor(tensor: object) -> str | None:
    """Why a tensor cannot become an array, None if it can."""
    if not isinstance(tensor, Tensor):
        return f"expected a tensor, found {kind_of(tensor)}"
    if is_lazy(tensor):
        return "expected an initialised tensor, found a lazy one; run the module once first"
    if tensor.is_meta or tensor.layout is not torch.strided or _dtype(tensor) is None:
        found = f"{tensor.dtype} of layout {tensor.layout} on {tensor.device}"
        return f"expected a dense tensor of a type that NumPy has, found {found}; convert it, or use save_general"
    return None


def _dtype(tensor: Tensor) -> "np.dtype[Any] | None":
    """The NumPy type of a tensor, None where there is none, as for bfloat16."""
    try:
        return torch.empty(0, dtype=tensor.dtype).numpy().dtype
    except (TypeError, RuntimeError):
        return None


def check_arrays(path: str, arrays: Any, tensors: Mapping[str, Any], faults: list[str]) -> bool:
    """Whether there is an array for each tensor, of its shape and type, and no other; if not, why, in `faults`."""
    if not isinstance(arrays, Mapping):
        faults.append(f"{path}: expected a dict of arrays, found {kind_of(arrays)}")
        return False
    new = [f"{path}/{name}: missing" for name in tensors.keys() - arrays.keys()]
    new += [f"{path}/{name}: not expected" for name in arrays.keys() - tensors.keys()]
    for name in tensors.keys() & arrays.keys():
        array, tensor = arrays[name], tensors[name]
        if fault := fault_of_tensor(tensor):
            new.append(f"{path}/{name}: {fault}")
            continue
        expected = f"{_dtype(tensor)} {tuple(tensor.shape)}"
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else kind_of(array)
        if expected != found:
            new.append(f"{path}/{name}: expected {expected}, found {found}")
    faults += new
    return not new


def tensor_of(array: Array) -> Tensor:
    """An independent tensor."""
    return torch.from_numpy(np.array(array, order="C"))


def region_of(tensor: Tensor) -> tuple[Any, ...]:
    """Which part of which memory a tensor shows, and how: equal for tied tensors, and for none that is empty."""
    start = tensor.untyped_storage().data_ptr() if tensor.numel() else object()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device
