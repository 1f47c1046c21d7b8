"""A file of any program, opened and told by its content, as leaves by path.

Of the safetensors format the header must account for every byte. Our own file is named as torch names things: torch
keeps exp_avg, exp_avg_sq and step for each parameter where we have m, v and one t, and settings in the optimizer where
we have a configuration, so that it is aligned with any other file of the same run. The paths of leaves stay as they are
in the file; the settings stand below `config`. Plain numbers have no type of torch's there, and are compared by value.
"""

import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import torch
from torch import Tensor

from numpy_ref.checkpoint import save_and_resume as checkpoint
from numpy_ref.checkpoint.container import FORMAT, HEADER_LIMIT, CheckpointError, CorruptCheckpoint, read_container
from numpy_ref.tree import printable
from torch_port.audit.foreign.archive import DAMAGED, check_archive, load
from torch_port.audit.foreign.leaves import Leaf, leaves_of
from torch_port.audit.foreign.refusal import allowed_by_name
from torch_port.interop import ADAM_SETTINGS, SGD_SETTINGS
from torch_port.interop.errors import Path, fail, first_line, opened
from torch_port.optim import ADAM_MOMENTS, SGD_MOMENTS

ROOM = 64  # a tensor may show so many times the bytes of its file, as an expanded one does


class Foreign(NamedTuple):
    """What a file holds."""

    path: str
    origin: str  # which program's format
    size: int  # bytes
    leaves: dict[str, Leaf]
    metadata: dict[str, str]  # of a safetensors file


def read(path: Path, *, allow: Sequence[str] = ()) -> Foreign:
    """Read a checkpoint of any program onto the CPU, without running any code that it might hold.

    The name's suffix does not matter: the content tells the format. The records of an archive that torch has written
    are held against their CRC-32 first, which torch.load does not do. A file of the safetensors format has no checksum;
    its header must account for every byte.

    Args:
        path: a file of torch.save, old or new, or of safetensors.
        allow: full names of classes and functions that the file may use beside tensors and plain values, such as
            "argparse.Namespace". Their code runs: name only what you know. "numpy.dtype" stands for all types of NumPy.

    Returns:
        Its leaves by path, in the file's order.

    Raises:
        CorruptCheckpoint: the file is damaged, or no checkpoint.
        IncompatibleCheckpoint: it asks for classes or functions that are not allowed; they are named.
        CheckpointError: there is no such file, or it cannot be read.
        ValueError: a name in `allow` is of nothing, or of what acts on the machine.
    """
    allowed = allowed_by_name(allow)
    try:
        with opened(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > _memory():
                raise MemoryError
            if size == 0:
                fail(CorruptCheckpoint, path, "a checkpoint", "an empty file", DAMAGED)
            start = file.read(9)
            file.seek(0)
            if start[:4] == b"PK\3\4":
                check_archive(path, file, size)
                file.seek(0)
                return _foreign(path, "torch.save", size, load(path, file, allowed))
            if not is_header(start):
                return _foreign(path, "torch.save before 1.6", size, load(path, file, allowed))
            places, metadata = header_of(path, file, size)
            if metadata.get("format") == FORMAT:
                found = _foreign(path, FORMAT, size, tree_of(path))
                return found._replace(leaves=named_as_in_torch(found.leaves))
            return _foreign(path, "safetensors", size, tensors_of(path, file, places), metadata)
    except MemoryError:
        advice = "Read it on a machine with more memory."
        fail(CheckpointError, path, "a file that fits into memory", f"{os.stat(path).st_size:,} bytes", advice)


def _memory() -> float:
    """Bytes that the machine has."""
    with suppress(AttributeError, OSError, ValueError):  # not on every system
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def _foreign(path: Path, origin: str, size: int, tree: Any, metadata: dict[str, str] | None = None) -> Foreign:
    try:
        leaves = leaves_of(tree, room=ROOM * size + (1 << 24))
    except ValueError as error:
        fail(CorruptCheckpoint, path, "a checkpoint that can be shown", f"one that cannot: {error}", DAMAGED)
    return Foreign(os.fspath(path), origin, size, leaves, metadata or {})


# Of the safetensors format

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


# Our own

MOMENTS = ADAM_MOMENTS | SGD_MOMENTS
GROUP = "param_groups/0"  # ours is one group
# The part and the name of each leaf that has another in torch's state dicts.
PLACES = {
    "optimizer/t": ("optimizer", "step"),
    "schedule/rate": ("optimizer", f"{GROUP}/lr"),
    "schedule/tick": ("schedule", "last_epoch"),
    "scaler/growth_tracker": ("scaler", "_growth_tracker"),
}


def tree_of(path: Path) -> dict[str, Any]:
    """The arrays and scalars of a file, verified whole, with the settings of the optimizer if it has one."""
    arrays, manifest = read_container(path)
    scalars, config = (manifest.get(name) for name in ("scalars", "config"))
    leaves: dict[str, Any] = dict(arrays)
    if isinstance(scalars, dict):  # any file of the format is shown
        leaves |= {name: checkpoint._decode_scalar(path, name, value) for name, value in scalars.items()}
    if isinstance(config, dict) and "optimizer/t" in leaves:
        leaves |= {f"config/{name}": value for name, value in _settings(config).items()}
    return _nested(leaves)


def named_as_in_torch(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The leaves of such a tree, each under its own path, with the part and the name that stock objects give it."""
    return {path: _renamed(leaf, *place) if (place := _place(path)) else leaf for path, leaf in leaves.items()}


def _place(path: str) -> tuple[str, str] | None:
    top, _, rest = path.partition("/")
    kind, _, name = rest.partition("/")
    if top == "optimizer" and kind in MOMENTS and name:
        return "optimizer", f"{MOMENTS[kind]}/{name}"
    return ("optimizer", f"{GROUP}/{rest}") if top == "config" else PLACES.get(path)


def _renamed(leaf: Leaf, part: str, name: str) -> Leaf:
    kind = "optimizer" if part == "optimizer" else leaf.kind
    form = "number" if leaf.form == "value" and isinstance(leaf.value, (int, float)) else leaf.form
    new = leaf._replace(form=form, kind=kind, part=part, name=name, bare=name)
    return new._replace(numbered=new)  # it has names beyond doubt, and no numbers to go by instead


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the optimizer, by torch's names of them."""
    kind = config.get("optimizer")
    values = {**config, "betas": [config.get("beta1"), config.get("beta2")], "initial_lr": config.get("learning_rate")}
    values |= {"maximize": False, "decoupled_weight_decay": kind == "adamw"}
    names = SGD_SETTINGS if kind == "sgd" else ADAM_SETTINGS | {"decoupled_weight_decay"}
    return {name: values.get(name) for name in sorted(names | {"initial_lr", "maximize", "weight_decay"})}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path as nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            inner = node.setdefault(folder, {})
            node = inner if isinstance(inner, dict) else node.setdefault(f"{folder}/", {})
        node[name] = leaf
    return tree
