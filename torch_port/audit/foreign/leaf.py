"""One value of a checkpoint as a leaf: what is compared as one, and the parts of what is not."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from numpy_ref.tree import printable
from torch_port.audit import draws

Array = np.ndarray[Any, np.dtype[Any]]
WITHOUT_DATA = "tensor without data"  # on the device "meta": it has a type and a shape


class Leaf(NamedTuple):
    """One value of a checkpoint."""

    form: str  # "tensor", "packed", "value", "number" (of any type), "numbers", "generator" or "other" (not compared)
    dtype: str  # of its elements; the type's name, or whose generator it is
    shape: tuple[int, ...]
    value: Any
    kind: str = "other"  # of state, one of KINDS
    part: str = ""  # the path of the model, the optimizer... that it belongs to
    name: str = ""  # within that
    bare: str = ""  # the same without what wrappers put before it
    numbered: "Leaf | None" = None  # the same in an optimizer whose parameters' names are not known

    @property
    def size(self) -> int:
        """Bytes of its elements; 0 for what is no tensor."""
        return int(self.value.nbytes) if self.form in ("tensor", "packed") else 0

    def __str__(self) -> str:
        """Its type and shape, or its value."""
        if self.form in ("tensor", "packed"):
            return f"{self.dtype} {self.shape}"
        if self.form in ("value", "number"):
            return printable(repr(self.value))
        return f"{self.shape[0]} numbers" if self.form == "numbers" else f"a {self.dtype}"


def leaf_of(node: Any, *, rng: bool) -> Leaf | None:
    """What is compared as one; None for what has parts."""
    if isinstance(node, Leaf):
        return node
    if isinstance(node, np.generic) and not isinstance(node, (float, complex)):
        node = np.asarray(node)
    if isinstance(node, np.ndarray):
        node = _from_numpy(node)
        if node is None:
            return Leaf("other", "NumPy array", (), None)
    engine = draws.engine_of(node) if isinstance(node, (Tensor, Mapping, tuple, list)) else None
    if engine and (engine != "device" or rng):  # 16 bytes can be anything
        return Leaf("generator", engine, (), node)
    if isinstance(node, Tensor):
        return _tensor(node.detach().resolve_conj().resolve_neg() if node.layout is torch.strided else node.detach())
    if isinstance(node, (list, tuple)) and node and all(type(item) in (bool, int, float) for item in node):
        return Leaf("numbers", "numbers", (len(node),), tuple(node))
    if isinstance(node, (Mapping, list, tuple)):
        return None if node else Leaf("value", type(node).__name__, (), type(node).__name__ + " without items")
    if node is None or isinstance(node, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        return Leaf("value", type(node).__name__, (), node)
    if isinstance(node, nn.Module) or getattr(node, "__dict__", None):
        return None
    return Leaf("other", type(node).__name__, (), None)


def _tensor(tensor: Tensor) -> Leaf | None:
    """A dense tensor; None for one that is made of several."""
    kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None if components(tensor) else Leaf("other", f"tensor of {tensor.layout}", shape, None)
    if tensor.is_meta:
        return Leaf("value", WITHOUT_DATA, shape, f"{kind} {shape}")  # all that there is of it
    if tensor.is_nested:
        return Leaf("other", "nested tensor", shape, None)
    if re.fullmatch(r"(u?int[1-7]|bits\w+|float4\w+)", kind):
        return Leaf("packed", kind, shape, tensor.contiguous().view(torch.uint8).reshape(-1))
    return Leaf("tensor", kind, shape, tensor)


def components(tensor: Tensor) -> dict[str, Any]:
    """The dense tensors that a sparse or quantized one is made of; empty for other layouts."""
    tensor = tensor.detach()
    size = {"size": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return {"indices": whole.indices(), "values": whole.values()} | size
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        rows, columns = tensor.crow_indices(), tensor.col_indices()
        return {"crow_indices": rows, "col_indices": columns, "values": tensor.values()} | size
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        columns, rows = tensor.ccol_indices(), tensor.row_indices()
        return {"ccol_indices": columns, "row_indices": rows, "values": tensor.values()} | size
    if tensor.is_quantized and tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"integers": tensor.int_repr(), "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    if tensor.is_quantized:
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        return {"integers": tensor.int_repr(), "scales": scales, "zero_points": zeros}
    return {}


def _from_numpy(array: Array) -> Tensor | None:
    try:
        return torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("="))))
    except TypeError:
        return None
