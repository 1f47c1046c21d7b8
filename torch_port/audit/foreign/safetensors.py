"""Files of the safetensors format, whose header must account for every byte."""

import json
import math
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from numpy_ref.checkpoint.container import HEADER_LIMIT, CorruptCheckpoint
from numpy_ref.tree import printable
from torch_port.audit.foreign.errors import DAMAGED, Path, fail, first_line
from torch_port.audit.foreign.leaf import Leaf

# What the format names, and torch's type of it; of less than 8 bits there is none, or a packed one.
TYPES = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "BF16": torch.bfloat16, "C64": torch.complex64}
TYPES |= {f"{x[0].upper()}{n}": getattr(torch, f"{x}{n}") for x in ("uint", "int", "float") for n in (16, 32, 64)}
TYPES |= {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}
TYPES |= {"F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz}
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}

Places = dict[str, tuple[str, tuple[int, ...], int, int]]  # type, shape, first and last byte of each array


def is_header(start: bytes) -> bool:
    """Whether the first 9 bytes of a file are those of this format."""
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= HEADER_LIMIT


def header_of(path: Path, file: BinaryIO, size: int) -> tuple[Places, dict[str, str]]:
    """Where each array lies, and the metadata; the file then stands at its data."""
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        fail(CorruptCheckpoint, path, f"a header of {length} bytes", f"{size - 8}", DAMAGED)
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
        metadata = header.pop("__metadata__", {})
        _check(_is_metadata(metadata), "__metadata__", "texts by name", metadata)
        return _places(header, size - 8 - length), metadata
    except (ValueError, RecursionError) as error:
        fault = f"{error}" if type(error) is ValueError else first_line(error)
        fail(CorruptCheckpoint, path, "a header of the safetensors format", fault, DAMAGED)


def tensors_of(path: Path, file: BinaryIO, places: Places) -> dict[str, Any]:
    """The arrays of a file that stands at its data; those of less than 8 bits an element as leaves."""
    data = np.empty(max((end for *_, end in places.values()), default=0), np.uint8)
    if file.readinto(data.data) != data.size:  # type: ignore[attr-defined]
        fail(CorruptCheckpoint, path, f"{data.size} bytes of data", "fewer", DAMAGED)
    tree: dict[str, Any] = {}
    for name, (code, shape, begin, end) in places.items():
        if code == "BOOL" and begin < end and int(data[begin:end].max()) > 1:
            fail(CorruptCheckpoint, path, f"booleans 0 and 1 in {printable(name)}", "others", DAMAGED)
        part = torch.from_numpy(data[begin:end])
        if code in PACKED_BITS:
            tree[name] = Leaf("packed", code, shape, part)
        else:
            tree[name] = _shaped(path, name, part, TYPES[code], shape)
    return tree


def _shaped(path: Path, name: str, data: Tensor, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Bytes as a tensor; copied if they lie where torch would not have such numbers."""
    try:
        if data.numel() == 0:
            return torch.empty(shape, dtype=kind, device="cpu")
        return (data.clone() if data.data_ptr() % kind.itemsize else data).view(kind).reshape(shape)
    except RuntimeError as error:
        fail(CorruptCheckpoint, path, f"a shape that torch has for {printable(name)}", first_line(error), DAMAGED)


def _places(header: dict[str, Any], size: int) -> Places:
    """Where the arrays lie, which together must be all of the data."""
    places = {}
    for name, entry in header.items():
        shown = printable(name)
        _check(isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}, shown, "an entry", entry)
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        known = isinstance(code, str) and (code in TYPES or code in PACKED_BITS)
        _check(known, f"{shown}/dtype", "a type of the format", code)
        for key, counts in (("shape", shape), ("data_offsets", offsets)):
            _check(_are_counts(counts), f"{shown}/{key}", "a list of counts", counts)
        bits = PACKED_BITS[code] if code in PACKED_BITS else 8 * TYPES[code].itemsize
        _check(len(offsets) == 2 and offsets[0] <= offsets[1], f"{shown}/data_offsets", "a begin and an end", offsets)
        _check(max(shape, default=0) < 2**63, f"{shown}/shape", "counts below 2**63", shape)
        total = math.prod(shape) * bits
        _check(total == 8 * (offsets[1] - offsets[0]), shown, f"{total / 8:g} bytes of data", offsets)
        places[name] = (code, tuple(shape), offsets[0], offsets[1])
    end = 0
    for name, (_, _, begin, last) in sorted(places.items(), key=lambda item: item[1][2:]):
        _check(begin == end, f"{printable(name)}/data_offsets", f"data from {end} on", begin)
        end = last
    _check(end == size, "the data", f"{end} bytes for the arrays", size)
    return places


def _is_metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) is int and item >= 0 for item in value)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("one key twice in an object")
    return dict(pairs)


def _check(holds: bool, where: str, expected: str, found: Any) -> None:
    if not holds:
        raise ValueError(f"{where}: expected {expected}, found {found!a:.100}")
