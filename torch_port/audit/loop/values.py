"""The value of a state: what a leaf remembers of it, and the value in full, copied to a file and back."""

import hashlib
import random  # noqa: TID251
from collections import deque
from enum import Enum
from typing import Any

import numpy as np
import torch

from torch_port.audit.judge.record import SAMPLED, Leaf, encode_sample

PLAIN = (bool, int, float, str, bytes, complex, type(None), np.generic, torch.dtype, torch.device, torch.Size)
LONG = 64  # a dict of more plain entries than these is one state
DEEPEST = 24  # lists in lists: one may hold itself
GENERATORS = (torch.Generator, np.random.Generator, np.random.BitGenerator, np.random.RandomState, random.Random)


def is_plain(value: Any, deepest: int = DEEPEST) -> bool:
    """A container of plain values only: one state."""
    if isinstance(value, dict):
        return len(value) > LONG and all(isinstance(x, PLAIN) for x in value.values())
    if not isinstance(value, (list, tuple, set, frozenset, deque)) or not deepest:
        return False
    return all(isinstance(x, PLAIN) or (isinstance(x, (list, tuple)) and is_plain(x, deepest - 1)) for x in value)


def leaf(kind: str, value: Any) -> Leaf:
    """Remember a value: a tensor, an array, a generator, a plain value or a list of them."""
    if isinstance(value, torch.Tensor):
        return _tensor_leaf(kind, value)
    if isinstance(value, np.ndarray) and _shared(value):
        shared = value.flags.c_contiguous and value.flags.writeable
        array = value if shared else np.array(value, order="C")
        return _tensor_leaf(kind, torch.from_numpy(array), str(value.dtype))
    if isinstance(value, np.ndarray):
        data = value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
        return Leaf(kind, _digest(data), str(value.dtype), value.shape)
    if isinstance(value, GENERATORS):
        return Leaf(kind, leaf("", generator_state(value)).digest, generator_name(value))
    if isinstance(value, np.generic):
        value = value.item()
    text = repr(_hashable(value))
    small = isinstance(value, (bool, int, float, str, type(None))) and len(text) <= 120
    numbers = _numbers(value)
    shown = value if small else text if len(text) <= 120 else text[:100] + " ..."
    sample = "" if numbers is None else encode_sample(numbers)
    shape = (len(value),) if isinstance(value, (list, tuple)) else ()
    return Leaf(kind, _digest(text.encode()), type(value).__name__, shape, "", shown, sample)


def generator_name(generator: Any) -> str:
    """The library and the class of a generator."""
    kind = next(one for one in GENERATORS if isinstance(generator, one))
    return f"{kind.__module__.split('.')[0]}.{kind.__name__}"


def generator_state(generator: Any) -> Any:
    """The state of a generator of torch, NumPy or Python."""
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, torch.Generator):
        return generator.get_state()
    return generator.getstate()


def set_generator_state(generator: Any, state: Any) -> None:
    """Put a generator where another of its kind was."""
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    elif isinstance(generator, (np.random.RandomState, torch.Generator)):
        generator.set_state(state)
    else:
        generator.setstate(state)


def process_generators() -> list[tuple[str, Any]]:
    """The generators of the process, each with its path."""
    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return [
        ("rng/python", random._inst),
        ("rng/numpy", np.random.mtrand._rand),
        ("rng/torch", torch.default_generator),
        *((f"rng/cuda:{index}", one) for index, one in enumerate(torch.cuda.default_generators if in_use else ())),
    ]


def generator_states() -> dict[str, str]:
    """The digest of each generator of the process."""
    return {path: leaf("generator", generator).digest for path, generator in process_generators()}


def encode(value: Any, *, copy: bool = True) -> Any:
    """A copy of a value that torch.save and torch.load(weights_only=True) carry.

    Args:
        value: a tensor, an array, a generator, a plain value, or a container of these.
        copy: False: whole tensors and arrays are not copied, as the file is written at once.
    """

    def inner(child: Any) -> Any:
        return encode(child, copy=copy)

    if isinstance(value, torch.Tensor):
        one = value.detach()
        return {"is": "tensor", "of": one if not copy and _is_whole(one) else one.to("cpu", copy=True)}
    if isinstance(value, np.ndarray):
        return {"is": "array", "of": _bytes_of(value, copy), "dtype": value.dtype.str, "shape": value.shape}
    if isinstance(value, GENERATORS):
        return {"is": "generator", "of": inner(generator_state(value))}
    if isinstance(value, np.generic):
        return {"is": "array", **{k: v for k, v in encode(np.asarray(value)).items() if k != "is"}, "scalar": True}
    if isinstance(value, dict):
        return {"is": "dict", "of": [(inner(key), inner(child)) for key, child in value.items()]}
    if isinstance(value, deque):
        return {"is": "deque", "of": [inner(child) for child in value], "maxlen": value.maxlen}
    if isinstance(value, (list, tuple, set, frozenset)):
        return {"is": type(value).__name__, "of": [inner(child) for child in value]}
    if isinstance(value, Enum):  # one that is a text or a number too
        return inner(value.value)
    kinds: tuple[Any, ...] = (int, float, complex, bytes, str)
    for kind in kinds:
        if isinstance(value, kind) and type(value) not in (bool, kind) and not isinstance(value, np.generic):
            return kind(value)
    return value


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor is all of its memory, so that a file with it has no more than it."""
    if tensor.device.type != "cpu" or tensor.layout != torch.strided or tensor.is_quantized:
        return False
    lazy = tensor.is_conj() or tensor.is_neg()
    return not lazy and tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes


def _bytes_of(array: "np.ndarray[Any, Any]", copy: bool) -> torch.Tensor:
    """The bytes of an array, in its own memory where that can be."""
    if not array.size:
        return torch.zeros(0)
    if not copy and array.flags.c_contiguous and array.flags.writeable and array.dtype != object:
        return torch.from_numpy(array.reshape(-1).view(np.uint8))
    return torch.frombuffer(bytearray(array.tobytes()), dtype=torch.uint8)


def decode(coded: Any) -> Any:
    """The value that `encode` copied; a generator as its state."""
    if not isinstance(coded, dict):
        return coded
    kind, of = coded["is"], coded["of"]
    if kind == "array":
        array = np.frombuffer(of.numpy().tobytes(), dtype=np.dtype(coded["dtype"])).reshape(coded["shape"]).copy()
        return array[()] if coded.get("scalar") else array
    if kind == "dict":
        return {decode(key): decode(child) for key, child in of}
    if kind == "tensor":
        return of
    if kind == "generator":
        return decode(of)
    if kind == "deque":
        return deque(map(decode, of), coded["maxlen"])
    return {"list": list, "set": set, "frozenset": frozenset}.get(kind, tuple)(decode(child) for child in of)


def _tensor_leaf(kind: str, tensor: torch.Tensor, dtype: str = "") -> Leaf:
    tensor = tensor.detach()
    name, device = dtype or str(tensor.dtype).removeprefix("torch."), str(tensor.device)
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta:
        return Leaf(kind, "" if tensor.is_meta else _digest(repr(tensor).encode()), name, tuple(tensor.shape), device)
    flat = tensor.resolve_conj().resolve_neg().to("cpu").contiguous()
    flat = flat.as_strided((flat.numel(),), (1,))  # a single element may have any stride
    raw = flat.view(torch.uint8).numpy() if flat.numel() else np.zeros(0, np.uint8)
    places = flat
    if flat.numel() > SAMPLED:
        places = flat[torch.linspace(0, flat.numel() - 1, SAMPLED, dtype=torch.float64).long()]
    places = torch.view_as_real(places).reshape(-1) if places.is_complex() else places
    numbers = places.to(torch.float64).numpy()
    value = float(numbers[0]) if numbers.size == 1 else None
    return Leaf(kind, _digest(raw), name, tuple(tensor.shape), device, value, encode_sample(numbers))


def _shared(array: np.ndarray[Any, Any]) -> bool:
    """Whether torch can read this array's type."""
    return array.dtype.kind in "fiub" and array.dtype.itemsize <= 8 and array.dtype.isnative


def _numbers(value: Any) -> "np.ndarray[Any, Any] | None":
    """A number, or a list of numbers, as float64."""
    if isinstance(value, (bool, int, float)):
        value = [value]
    if not isinstance(value, (list, tuple)) or not value or len(value) > 4096:
        return None
    if not all(isinstance(x, (bool, int, float)) and (x != x or abs(x) < 2.0**1000) for x in value):
        return None
    return np.asarray([float(x) for x in value])


def _hashable(value: Any) -> Any:
    """A value whose repr tells it apart from every other one."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return leaf("", value).digest
    if isinstance(value, dict):
        return [(repr(key), _hashable(child)) for key, child in value.items()]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_hashable(child)) for child in value)
    if isinstance(value, (list, tuple)):
        return [_hashable(child) for child in value]
    return value.item() if isinstance(value, np.generic) else value


def _digest(data: Any) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
