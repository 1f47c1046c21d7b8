"""Checkpoints of any origin: read without running what they hold, compared by name, and what a resume would lack.

    read       a file of torch.save (old or new) or of safetensors -> Foreign: its leaves by path
    diff       two files -> Diff: every leaf that is missing, extra, of another type or shape, or of another value
    inspect    one file -> Inspection: the kinds of state in it, and those that are not

A path is made of the file's own keys, `model_state_dict/layer0.weight`. An optimizer numbers its parameters; where the
file tells their names, its moments go by them: `optimizer_state_dict/exp_avg/layer0.weight`. Two files are aligned by
part (the one model, the one optimizer) and by name; what is left, by name without `module.`, `_orig_mod.`, `model.`.
"""

import importlib
import json
import math
import os
import pickletools
import re
import shlex
import stat
import warnings
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, BinaryIO, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from numpy_ref.container import (
    FORMAT,
    HEADER_LIMIT,
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    read_container,
)
from numpy_ref.tree import printable
from torch_port import interop
from torch_port.audit import draws

__all__ = [
    "Change",
    "Diff",
    "Foreign",
    "Inspection",
    "Kind",
    "Leaf",
    "diff",
    "differences",
    "inspect",
    "kinds",
    "lacks",
    "leaves_of",
    "read",
]

Path = str | os.PathLike[str]
Array = np.ndarray[Any, np.dtype[Any]]

LEAF_LIMIT = 100_000  # a small file can hold one list a thousand times over, and that one another
CHUNK = 1 << 18  # elements that are compared at a time
ROOM = 64  # a tensor may show so many times the bytes of its file, as an expanded one does

DAMAGED = "The file is damaged, or never was a checkpoint: use another copy or an older one."
OLD = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."  # how torch.save began its files before 1.6
LFS = b"version https://git-lfs"
PACKERS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\0": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
# What the safetensors format names, and torch's type of it; of less than 8 bits there is none, or a packed one.
SAFETENSORS = {"BOOL": torch.bool, "U8": torch.uint8, "I8": torch.int8, "BF16": torch.bfloat16, "C64": torch.complex64}
SAFETENSORS |= {f"{x[0].upper()}{n}": getattr(torch, f"{x}{n}") for x in ("uint", "int", "float") for n in (16, 32, 64)}
SAFETENSORS |= {"F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu}
SAFETENSORS |= {"F8_E4M3FNUZ": torch.float8_e4m3fnuz, "F8_E5M2FNUZ": torch.float8_e5m2fnuz}
PACKED_BITS = {"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6}
# Code of these modules acts on the machine; who wants it run need not compare it.
NEVER = "os posix nt sys subprocess shutil socket importlib runpy pty ctypes pickle _pickle webbrowser commands"

WRAPPERS = ("module.", "_orig_mod.", "model.")
SCALER_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
LOADER_KEYS = {"_iterator_finished", "_sampler_iter_state", "_sampler_iter_yielded", "_num_yielded", "_snapshot"}
MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "exp_inf", "sum"}
RNG_WORDS = re.compile("rng|random|generator|seed|cuda")  # of a path at which 16 bytes are a device generator's state
# Words of a key that tell what lies below it where its form does not; the first that fits.
WORDS = {
    "other": "config cfg args hparams settings version size max",
    "generator": "rng random generator generators",
    "optimizer": "optimizer optimizers optim",
    "scheduler": "scheduler schedulers schedule",
    "scaler": "scaler",
    "ema": "ema swa averaged shadow",
    "best": "best",
    "position": "position offset sampler loader dataloader batch samples consumed cursor seen order permutation",
    "counter": "epoch epochs step steps iteration iterations iter iters it update updates loops t",
}
KINDS = ("model", "optimizer", "scheduler", "scaler", "generator", "counter", "position", "ema", "best", "other")
LACKS = {
    "model": "no model: there are no weights to go on from",
    "optimizer": "no optimizer: its moments and counts start anew, and the first updates have another size",
    "scheduler": "no scheduler: the learning rate starts over; needed only if the loop has one",
    "scaler": "no loss scaler: the scale starts over, and updates are skipped; needed only where the loss is scaled",
    "generator": "no random generator: dropout, shuffling and augmentation draw other numbers",
    "counter": "no epoch or step: the loop cannot know where it was",
    "position": "no position in the data: a run that stopped within an epoch sees samples twice, or never",
    "ema": "no moving average of the weights; needed only if the loop keeps one",
    "best": "no best result so far: the next one counts as the best; needed only if the loop keeps one",
}


class Leaf(NamedTuple):
    """One value of a checkpoint."""

    form: str  # "tensor", "packed", "value", "numbers", "generator" or "other"; the last is not compared
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
        if self.form == "value":
            return printable(repr(self.value))
        return f"{self.shape[0]} numbers" if self.form == "numbers" else f"a {self.dtype}"


class Foreign(NamedTuple):
    """What a file holds."""

    path: str
    origin: str  # which program's format
    size: int  # bytes
    leaves: dict[str, Leaf]
    metadata: dict[str, str]  # of a safetensors file


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


class Diff(NamedTuple):
    """How two files differ."""

    a: str
    b: str
    changes: tuple[Change, ...]
    same: int  # leaves that are bitwise equal
    uncompared: tuple[str, ...]  # paths of leaves that cannot be compared
    notes: tuple[str, ...] = ()

    @property
    def bitwise(self) -> bool:
        """Whether every leaf is there on both sides, was compared, and is equal."""
        return not self.changes and not self.uncompared

    def json(self) -> dict[str, Any]:
        """The same as plain values."""
        leaves = [change._asdict() | {"a": _plain(change.a), "b": _plain(change.b)} for change in self.changes]
        return self._asdict() | {"bitwise": self.bitwise, "changes": leaves}

    def lines(self) -> list[str]:
        """The same as lines of text."""
        rows: list[tuple[str, ...]] = [("leaf", "what", "a", "b", "distance", "units in the last place")]
        for c in self.changes:
            path = printable(c.path) + (f" (in b: {printable(c.other)})" if c.other else "")
            what = c.change if c.elements == 1 else f"{c.change}, {c.elements:,} elements"
            far = f"{c.distance:.3g}" if c.distance < math.inf else ""
            sides = [x if isinstance(x, str) else repr(x) for x in (c.a, c.b)]
            rows.append((path, what, *map(printable, sides), far, "" if c.ulps is None else f"{c.ulps:,}"))
        lines = _aligned(rows) if self.changes else []
        count = (
            f"{len(self.changes)} {'leaf differs' if len(self.changes) == 1 else 'leaves differ'}, {self.same} equal"
        )
        lines.append(f"bitwise: all {self.same} leaves are the same" if self.bitwise else count)
        lines += [f"not compared: {printable(path)}" for path in self.uncompared]
        return lines + [f"note: {note}" for note in self.notes]


class Kind(NamedTuple):
    """One part of a checkpoint."""

    kind: str  # one of KINDS
    path: str
    leaves: int
    bytes: int  # of its tensors
    text: str  # what it holds


class Inspection(NamedTuple):
    """What kinds of state a file holds."""

    file: Foreign
    kinds: tuple[Kind, ...]
    lacks: tuple[str, ...]  # what a resume would lack, in words

    def json(self) -> dict[str, Any]:
        """The same as plain values."""
        leaves = {
            path: {"kind": leaf.kind, "dtype": leaf.dtype, "shape": list(leaf.shape), "bytes": leaf.size}
            | ({"value": _plain(leaf.value)} if leaf.form == "value" else {})
            for path, leaf in self.file.leaves.items()
        }
        head = {name: getattr(self.file, name) for name in ("path", "origin", "metadata")}
        return head | {
            "file_bytes": self.file.size,
            "leaves": leaves,
            "kinds": [kind._asdict() for kind in self.kinds],
            "lacks": list(self.lacks),
        }

    def lines(self) -> list[str]:
        """The same as lines of text."""
        file = self.file
        rows = [("kind", "where", "leaves", "bytes", "what")]
        rows += [(k.kind, printable(k.path) or ".", f"{k.leaves:,}", f"{k.bytes:,}", k.text) for k in self.kinds]
        lines = [
            f"{file.path}: {file.origin}, {file.size:,} bytes, {len(file.leaves):,} leaves",
            "",
            *_aligned(rows),
            "",
        ]
        return lines + (["A resume from this file would lack:"] if self.lacks else []) + [f"  {x}" for x in self.lacks]


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
    allowed = _allowed(allow)
    try:
        # Asked before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            _fail(CheckpointError, path, "a file", "a directory or device", "Give the path of one file.")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _memory():
                raise MemoryError
            if size == 0:
                _fail(CorruptCheckpoint, path, "a checkpoint", "an empty file", DAMAGED)
            start = file.read(9)
            file.seek(0)
            if start[:4] == b"PK\3\4":
                return _archive(path, file, size, allowed)
            if _is_safetensors(start):
                return _safetensors(path, file, size)
            tree = _load(path, file, allowed)
            return _foreign(path, "torch.save before 1.6", size, tree)
    except FileNotFoundError:
        _fail(CheckpointError, path, "a checkpoint", "no such file", "Check the path, or save first.")
    except OSError as error:
        advice = "Check the permissions and the disk; the file itself may be sound."
        _fail(CheckpointError, path, "a readable file", error.strerror or f"{error}", advice)
    except MemoryError:
        advice = "Read it on a machine with more memory."
        _fail(CheckpointError, path, "a file that fits into memory", f"{os.stat(path).st_size:,} bytes", advice)


def leaves_of(tree: Any, *, room: float = math.inf) -> dict[str, Leaf]:
    """The leaves of nested dicts and lists by path, each with the kind of state that it is.

    Args:
        tree: a checkpoint in memory, as a `state_dict()` returns it.
        room: bytes that no tensor may exceed.

    Returns:
        Leaves by path, in the tree's order. They share memory with the tree.

    Raises:
        ValueError: it is nested too deeply, has too many leaves, or a tensor has no room.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> list(leaves_of({"model": model.state_dict(), "epoch": 3}))
        ['model/weight', 'model/bias', 'epoch']
    """
    try:
        return _Walk(tree, room).leaves
    except RecursionError:
        raise ValueError("expected dicts and lists some hundred deep at most, found more") from None


def differences(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> list[Change]:
    """Every leaf that is not bitwise equal, sorted by path; leaves are aligned by part and name.

    Args:
        a: leaves as `leaves_of` gives them.
        b: likewise.

    Returns:
        One change for each; of a tensor its worst element. -0 differs from +0, and all NaNs are equal.

    Example:
        >>> a, b = ({"w": torch.tensor([1.0, x])} for x in (2.0, 2.0000002))
        >>> [(c.path, c.change, c.ulps) for c in differences(leaves_of(a), leaves_of(b))]
        [('w', 'value', 1)]
    """
    return _compare(a, b)[0]


def diff(a: Path, b: Path, *, allow: Sequence[str] = ()) -> Diff:
    """Compare two checkpoints of any origin leaf by leaf.

    Args:
        a: a file, as for `read`.
        b: likewise; of another format if need be.
        allow: as for `read`.

    Returns:
        The differences; `lines` and `json` show them.

    Raises:
        CheckpointError: as `read`.
    """
    x, y = read(a, allow=allow), read(b, allow=allow)
    changes, same, uncompared = _compare(x.leaves, y.leaves)
    notes = [f"the metadata differ: {x.metadata} and {y.metadata}"] if x.metadata != y.metadata else []
    return Diff(x.path, y.path, tuple(changes), same, tuple(uncompared), tuple(map(printable, notes)))


def kinds(leaves: Mapping[str, Leaf]) -> list[Kind]:
    """The parts of a checkpoint, in the order of KINDS.

    Example:
        >>> [(k.kind, k.path, k.text) for k in kinds(leaves_of({"model": {"w": torch.zeros(2, 3)}, "epoch": 3}))]
        [('model', 'model', '6 numbers, float32'), ('counter', 'epoch', '3')]
    """
    parts: dict[tuple[str, str], dict[str, Leaf]] = {}
    for path, leaf in leaves.items():
        part = path.split("/")[0] if leaf.kind == "other" else leaf.part  # settings can be many
        parts.setdefault((leaf.kind, part), {})[path] = leaf
    found = [
        Kind(kind, part, len(inside), sum(leaf.size for leaf in inside.values()), _text(kind, inside))
        for (kind, part), inside in parts.items()
    ]
    return sorted(found, key=lambda part: KINDS.index(part.kind))


def lacks(leaves: Mapping[str, Leaf]) -> list[str]:
    """What a resume from a checkpoint would lack, in words.

    Example:
        >>> lacks(leaves_of({"w": torch.zeros(2)}))[0]
        'no optimizer: its moments and counts start anew, and the first updates have another size'
    """
    by_kind: dict[str, list[Leaf]] = {}
    for leaf in leaves.values():
        by_kind.setdefault(leaf.kind, []).append(leaf)
    found = [text for kind, text in LACKS.items() if kind not in by_kind]
    if "optimizer" in by_kind and all(leaf.name.startswith("param_groups") for leaf in by_kind["optimizer"]):
        found.append("no moments or counts in the optimizer: none was made yet, or they were lost")
    engines = {leaf.dtype for leaf in by_kind.get("generator", []) if leaf.form == "generator"}
    if engines:
        rest = [name for name in ("torch", "NumPy", "Python") if not any(e.startswith(name) for e in engines)]
        if rest:
            found.append(f"no generator of {' or '.join(rest)}; needed only if the loop or its data draw from it")
    return found


def inspect(path: Path, *, allow: Sequence[str] = ()) -> Inspection:
    """Tell what kinds of state a checkpoint of any origin holds, and what a resume would lack.

    Args:
        path: as for `read`.
        allow: as for `read`.

    Returns:
        The kinds and the lacks; `lines` and `json` show them.

    Raises:
        CheckpointError: as `read`.
    """
    file = read(path, allow=allow)
    return Inspection(file, tuple(kinds(file.leaves)), tuple(lacks(file.leaves)))


# Files of torch.save


def _archive(path: Path, file: BinaryIO, size: int, allowed: list[Any]) -> Foreign:
    """The archive that torch has written since 1.6, its records checked."""
    try:
        with zipfile.ZipFile(file) as archive:
            records = archive.infolist()
            if sum(record.file_size for record in records) > size:
                _fail(
                    CorruptCheckpoint, path, "records as torch writes them", "more than the file has room for", DAMAGED
                )
        file.seek(0)
        damaged = interop._damaged_record(file)
    except CheckpointError:
        raise
    except Exception as error:  # zipfile raises nearly anything
        file.seek(max(0, size - (1 << 16)))
        whole = b"PK\5\6" in file.read()  # what an archive ends with
        found = f"a damaged one ({_first_line(error)})" if whole else "one without its end: it was cut short"
        _fail(CorruptCheckpoint, path, "a whole archive", found, DAMAGED)
    if damaged is not None:
        _fail(CorruptCheckpoint, path, "records that agree with their CRC-32", f"another in {damaged!r}", DAMAGED)
    file.seek(0)
    return _foreign(path, "torch.save", size, _load(path, file, allowed))


def _load(path: Path, file: BinaryIO, allowed: list[Any]) -> Any:
    """What torch's restricted unpickler makes of a file; any error but of the system is a `CheckpointError`."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals(allowed):
            warnings.simplefilter("ignore")
            return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, MemoryError):
        raise
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        if "allocate memory" in f"{error}":
            raise MemoryError from None
        file.seek(0)
        start = file.read(1024)
        if _is_text(start) and not _is_pickle(file):  # its letters can read like calls
            found = "text that points to a file of Git LFS: fetch that" if start.startswith(LFS) else "text"
            _fail(CorruptCheckpoint, path, "a file of torch.save or safetensors", found, DAMAGED)
        if names := _refused(file, allowed, f"{error}"):
            _refuse(path, names)
        if found := _known_form(file, start):
            _fail(CorruptCheckpoint, path, "a file of torch.save or safetensors", found, DAMAGED)
        if "Unsupported operand" in f"{error}":
            advice = "If you trust it, load it with the program that wrote it, and torch.save tensors and plain values."
            _fail(IncompatibleCheckpoint, path, "a file of torch.save", "what torch refuses to unpickle", advice)
        found = "one of before 1.6 that is damaged or was cut short" if start.startswith(OLD) else _first_line(error)
        _fail(CorruptCheckpoint, path, "a file of torch.save or safetensors", found, DAMAGED)


def _is_text(start: bytes) -> bool:
    """Whether bytes are printable text, but for a letter that is cut at their end."""
    text = start.decode(errors="ignore")
    return len(start) - len(text.encode()) < 4 and all(x.isprintable() or x in "\t\r\n" for x in text)


def _is_pickle(file: BinaryIO) -> bool:
    """Whether a file has a whole pickle at its start; it is parsed, and not run."""
    file.seek(0)
    try:
        return all(True for _ in pickletools.genops(file))
    except Exception:  # it raises nearly anything
        return False


def _known_form(file: BinaryIO, start: bytes) -> str:
    """What a file is that torch could not load, in words; empty if it is none of these."""
    length = int.from_bytes(start[:8], "little")
    if not any(start):
        return "zeros at its start: it was never written, or lost"
    if start.startswith(b"PK\3\4"):
        with zipfile.ZipFile(file) as archive:
            held = any(name.endswith("/data.pkl") for name in archive.namelist())
        return "" if held else "a zip archive that torch has not written: it has no data.pkl"
    if start[257:262] == b"ustar":
        return "a tar archive: extract the checkpoint from it"
    if packed := next((name for magic, name in PACKERS.items() if start.startswith(magic)), None):
        return f"a file that {packed} has compressed: expand it"
    if start[8:9] == b"{" and length > HEADER_LIMIT:
        return f"a safetensors header of {length:,} bytes, where at most {HEADER_LIMIT:,} are allowed"
    return ""


def _refused(file: BinaryIO, allowed: list[Any], message: str) -> list[str]:
    """The classes and functions that a file asks for and torch does not let it have."""
    names = set(re.findall(r"GLOBAL ([\w.]+)", message))
    with suppress(Exception), torch.serialization.safe_globals(allowed):  # only an archive can be asked
        file.seek(0)
        names |= set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    if "Unsupported operand" in message:
        with suppress(Exception):  # parsed, and not run
            file.seek(0)
            names |= _globals(file)
    return sorted({name if "." in name else f"builtins.{name}" for name in names})


def _globals(file: BinaryIO) -> set[str]:
    """The classes and functions that a plain pickle asks for."""
    names, texts = set(), ["", ""]
    for code, argument, _ in pickletools.genops(file):
        if code.name == "GLOBAL":
            names.add(str(argument).replace(" ", "."))
        elif code.name == "STACK_GLOBAL":
            names.add(".".join(texts))
        elif isinstance(argument, str):
            texts = [texts[1], argument]
    return names


def _refuse(path: Path, names: list[str]) -> NoReturn:
    """Name what a file asks for, and how to let it have that."""
    shown = ", ".join(map(printable, names))
    if any(_acts(name) for name in names):
        advice = "Loading it would run commands on this machine, and nothing allows that here: do not trust this file."
    else:
        options = " ".join(f"--allow {shlex.quote(printable(name))}" for name in names)
        advice = (
            "Loading them runs their code. If you know each of them and trust the file, allow them by name: "
            f"{options} (in Python: allow={json.dumps(names)}). Or save tensors and plain values."
        )
    _fail(IncompatibleCheckpoint, path, "tensors and plain values", f"a file that asks for {shown}", advice)


def _acts(name: str) -> bool:
    """Whether a name is of what acts on the machine."""
    top = name.split(".")[0]
    return top in NEVER.split() or (top in ("builtins", "__builtin__") and not isinstance(_builtin(name), type))


def _builtin(name: str) -> Any:
    import builtins

    return getattr(builtins, name.split(".")[-1], None)


def _allowed(names: Sequence[str]) -> list[Any]:
    """The classes and functions of these names, as torch's list of safe globals takes them."""
    if isinstance(names, str):
        raise ValueError(f"allow: expected a list of names, found {names!r}")
    faults: list[str] = []
    found: list[Any] = []
    for name in names:
        module, _, last = name.rpartition(".")
        if _acts(name):
            faults.append(f"{name}: acts on the machine, and is never allowed here")
            continue
        try:
            thing = _imported(module.replace("numpy.core", "numpy._core"), last)
        except (ImportError, AttributeError, ValueError):
            faults.append(f"{name}: expected the full name of a class or function that can be imported")
            continue
        found.append((thing, name))
        if thing is np.dtype:
            found += [kind for kind in vars(np.dtypes).values() if isinstance(kind, type)]
    if faults:
        raise ValueError("allow: mend each of these:\n    " + "\n    ".join(sorted(faults)))
    return found


def _imported(module: str, name: str) -> Any:
    """A class or function; one within a class has the class's name in its module's."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        outer, _, inner = module.rpartition(".")
        if not outer:
            raise
        return attrgetter(f"{inner}.{name}")(importlib.import_module(outer))


# Files of safetensors


def _memory() -> float:
    """Bytes that the machine has."""
    with suppress(AttributeError, OSError, ValueError):  # not on every system
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def _is_safetensors(start: bytes) -> bool:
    return len(start) == 9 and start[8:] == b"{" and int.from_bytes(start[:8], "little") <= HEADER_LIMIT


def _safetensors(path: Path, file: BinaryIO, size: int) -> Foreign:
    """A file of the safetensors format, whose header must account for every byte; our own is verified whole."""
    length = int.from_bytes(file.read(8), "little")
    if length > size - 8:
        _fail(CorruptCheckpoint, path, f"a header of {length} bytes", f"{size - 8}", DAMAGED)
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_once)
        metadata = header.pop("__metadata__", {})
        _check(_is_metadata(metadata), "__metadata__", "texts by name", metadata)
        places = _places(header, size - 8 - length)
    except (ValueError, RecursionError) as error:
        _fail(CorruptCheckpoint, path, "a header of the safetensors format", _first_line(error), DAMAGED)
    if metadata.get("format") == FORMAT:
        arrays, manifest = read_container(path)
        scalars = manifest.get("scalars")
        tree = _nested({**arrays, **(scalars if isinstance(scalars, dict) else {})})
        return _foreign(path, FORMAT, size, tree)
    data = np.empty(size - 8 - length, np.uint8)
    if file.readinto(data.data) != data.size:  # type: ignore[attr-defined]
        _fail(CorruptCheckpoint, path, f"{data.size} bytes of data", "fewer", DAMAGED)
    tree = {}
    for name, (code, shape, begin, end) in places.items():
        if code == "BOOL" and begin < end and int(data[begin:end].max()) > 1:
            _fail(CorruptCheckpoint, path, f"booleans 0 and 1 in {printable(name)}", "others", DAMAGED)
        part = torch.from_numpy(data[begin:end])
        if code in PACKED_BITS:
            tree[name] = Leaf("packed", code, shape, part)
        else:
            tree[name] = _shaped(path, name, part, SAFETENSORS[code], shape)
    return _foreign(path, "safetensors", size, tree, metadata)


def _shaped(path: Path, name: str, data: Tensor, kind: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    """Bytes as a tensor; copied if they lie where torch would not have such numbers."""
    try:
        if data.numel() == 0:
            return torch.empty(shape, dtype=kind, device="cpu")
        return (data.clone() if data.data_ptr() % kind.itemsize else data).view(kind).reshape(shape)
    except RuntimeError as error:
        _fail(CorruptCheckpoint, path, f"a shape that torch has for {printable(name)}", _first_line(error), DAMAGED)


def _places(header: dict[str, Any], size: int) -> dict[str, tuple[str, tuple[int, ...], int, int]]:
    """The type, shape, first and last byte of each array, which together must be all of the data."""
    places = {}
    for name, entry in header.items():
        shown = printable(name)
        _check(isinstance(entry, dict) and entry.keys() == {"dtype", "shape", "data_offsets"}, shown, "an entry", entry)
        code, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        known = isinstance(code, str) and (code in SAFETENSORS or code in PACKED_BITS)
        _check(known, f"{shown}/dtype", "a type of the format", code)
        for key, counts in (("shape", shape), ("data_offsets", offsets)):
            _check(_are_counts(counts), f"{shown}/{key}", "a list of counts", counts)
        bits = PACKED_BITS[code] if code in PACKED_BITS else 8 * SAFETENSORS[code].itemsize
        _check(len(offsets) == 2 and offsets[0] <= offsets[1], f"{shown}/data_offsets", "a begin and an end", offsets)
        _check(max(shape, default=0) < 2**63, f"{shown}/shape", "counts below 2**63", shape)
        total = math.prod(shape) * bits
        _check(total == 8 * (offsets[1] - offsets[0]), shown, f"{total / 8:g} bytes of data", offsets)
        places[name] = (code, tuple(shape), offsets[0], offsets[1])
    end = 0
    for name, (_, _, begin, last) in sorted(places.items(), key=lambda item: item[1][2:]):
        _check(begin == end, f"{printable(name)}/data_offsets", f"data from {end} on", begin)
        end = last
    _check(end == size, "the arrays", f"all of {size} bytes", end)
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


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Our own file's leaves, which have their paths as names, as nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            inner = node.setdefault(folder, {})
            node = inner if isinstance(inner, dict) else node.setdefault(f"{folder}/", {})
        node[name] = leaf
    return tree


# Leaves


class _Walk:
    """One walk through a tree, depth first."""

    def __init__(self, tree: Any, room: float) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.room = room
        self.open: set[int] = set()  # what is being walked: a list may hold itself
        self.models: dict[str, Mapping[str, Any]] = {}
        self.find_models(tree, "", 0)
        self.walk(tree, "", _Place())

    def find_models(self, node: Any, path: str, depth: int) -> None:
        """The models, which name the parameters of the optimizers; they lie near the root."""
        if _is_model(node) and _kind_by_words(path) in (None, "best"):
            self.models[path] = node
        elif isinstance(node, Mapping) and depth < 4 and not _is_optimizer(node):
            for key, child in node.items():
                self.find_models(child, _join(path, str(key)), depth + 1)

    def walk(self, node: Any, path: str, place: "_Place") -> None:
        """Note a leaf, or go on with what lies below."""
        if not place.sure:
            key = path.rsplit("/", 1)[-1]
            form, words = _kind_by_form(node), _kind_by_words(key)
            if key == "i" and type(node) is int:  # a loop's; of anything else it can be an index
                words = "counter"
            if form == "model":
                form = words or place.kind or "model"
            if form:
                place = _Place(form, path, sure=True)
            elif words and not place.kind:
                place = _Place(words, path)
        within = id(node) in self.open
        text = f"{type(node).__name__} within itself"
        leaf = Leaf("other", text, (), None) if within else _leaf(node, rng=bool(RNG_WORDS.search(path)))
        if leaf is not None:
            own = leaf.form == "generator" and place.kind != "generator"
            self.add(path, _Place("generator", path) if own else place, leaf)
            return
        self.open.add(id(node))
        for key, bare, number, child in self.children(node, place.kind):
            inner = place._replace(
                name=_join(place.name, key), bare=_join(place.bare, bare), number=_join(place.number, number)
            )
            self.walk(child, _join(path, key), inner if place.kind else place)
        self.open.discard(id(node))

    def children(self, node: Any, kind: str) -> Iterator[tuple[str, str, str, Any]]:
        """Name, bare name, name by number, and value of each thing below a node."""
        if kind == "optimizer" and _is_optimizer(node):
            yield from self.optimizer(node)
            return
        if isinstance(node, Tensor):
            items: dict[str, Any] = _components(node)
        elif isinstance(node, nn.Module):
            items = node.state_dict()
        elif isinstance(node, Mapping):
            items = _by_text(node)
        elif isinstance(node, (list, tuple)):
            keys = map(str, getattr(node, "_fields", range(len(node))))
            items = dict(zip(keys, node, strict=True))
        else:
            items = _by_text(vars(node))
        names = list(items)
        for key, bare in zip(names, _bare(names) if kind in ("model", "ema", "best") else names, strict=True):
            yield key, bare, key, items[key]

    def optimizer(self, node: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
        """An optimizer's moments by the name of their parameter, where it is known, and its groups."""
        groups, state = node["param_groups"], node["state"]
        numbers = [number for group in groups for number in group["params"]]
        names = self.parameter_names(groups, state, numbers)
        known: dict[Any, str] = dict(zip(numbers, names, strict=True)) if names else {}
        known |= {number: number for number in state if isinstance(number, str)}
        bare = dict(zip(known, _bare(list(known.values())), strict=True))
        for number, moments in state.items():
            for moment, value in _by_text(moments).items():
                unknown = f"state/{number}/{moment}"
                name, short = (f"{moment}/{x[number]}" if number in x else unknown for x in (known, bare))
                yield name, short, unknown, value
        others = {key: value for key, value in _by_text(node).items() if key not in ("state", "param_groups")}
        for i, group in enumerate(groups):
            for key, value in _by_text(group).items():
                if key == "params" and value and all(number in known for number in value):
                    text, numbered = ", ".join(bare[n] for n in value), _leaf(value, rng=False)
                    value = Leaf("value", "str", (), text, numbered=numbered)
                others[f"param_groups/{i}/{key}"] = value
        for key, value in others.items():
            if not key.endswith("/param_names"):
                yield key, key, key, value

    def parameter_names(self, groups: list[Any], state: Mapping[Any, Any], numbers: list[Any]) -> list[str] | None:
        """The names of the parameters that an optimizer numbers, if the file tells them beyond doubt."""
        if any(isinstance(number, str) for number in numbers) or len(set(numbers)) != len(numbers):
            return None
        if all(isinstance(group.get("param_names"), list) for group in groups):
            names = [str(name) for group in groups for name in group["param_names"]]
            return names if len(names) == len(numbers) == len(set(names)) else None
        found = []
        for model in self.models.values():
            with suppress(Exception):  # sparse and other tensors have no place in memory to tell tied ones by
                names = interop._likely_parameters(model)
                if len(names) == len(numbers) and _shapes_fit(dict(zip(numbers, names, strict=True)), state, model):
                    found.append(names)
        return found[0] if found and all(names == found[0] for names in found) else None

    def add(self, path: str, place: "_Place", leaf: Leaf) -> None:
        """Note a leaf; a key with a slash in it can make two paths one."""
        if len(self.leaves) >= LEAF_LIMIT:
            raise ValueError(f"expected at most {LEAF_LIMIT:,} leaves, found more")
        if leaf.size > self.room:
            raise ValueError(f"{printable(path)}: expected at most {self.room:,.0f} bytes, found {leaf.size:,}")
        while path in self.leaves:
            path += " (another)"
        kind, part = place.kind or "other", place.part if place.kind else path
        numbered = leaf.numbered or (leaf if place.number != place.name else None)
        if numbered is not None:
            numbered = numbered._replace(kind=kind, part=part, name=place.number, bare=place.number)
        self.leaves[path] = leaf._replace(kind=kind, part=part, name=place.name, bare=place.bare, numbered=numbered)


class _Place(NamedTuple):
    """Where a walk is."""

    kind: str = ""  # of state; empty until it is known
    part: str = ""  # the path at which it was
    name: str = ""  # from there on
    bare: str = ""
    number: str = ""  # the name where parameters go by their numbers
    sure: bool = False  # told by the form, not by words


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


def _by_text(node: Mapping[Any, Any]) -> dict[str, Any]:
    """The items by the text of their keys; 1 and '1' are kept apart."""
    items: dict[str, Any] = {}
    for key, child in node.items():
        text = str(key)
        items[text if text not in items else f"{text} ({type(key).__name__})"] = child
    return items


def _leaf(node: Any, *, rng: bool) -> Leaf | None:
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
        return None if _components(tensor) else Leaf("other", f"tensor of {tensor.layout}", shape, None)
    if tensor.is_meta or tensor.is_nested:
        return Leaf("other", "tensor without data" if tensor.is_meta else "nested tensor", shape, None)
    if re.fullmatch(r"(u?int[1-7]|bits\w+|float4\w+)", kind):
        return Leaf("packed", kind, shape, tensor.contiguous().view(torch.uint8).reshape(-1))
    return Leaf("tensor", kind, shape, tensor)


def _components(tensor: Tensor) -> dict[str, Any]:
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


# Kinds of state


def _is_model(node: Any) -> bool:
    """A dict of tensors by name, not all of them of generators or without axes."""
    if not isinstance(node, Mapping) or not node or not all(isinstance(key, str) for key in node):
        return False
    tensors = [v for k, v in node.items() if not k.endswith("_extra_state")]
    if not all(isinstance(x, (Tensor, np.ndarray)) or (isinstance(x, Leaf) and x.form == "packed") for x in tensors):
        return False
    return any(len(x.shape) and draws.engine_of(x) in (None, "device") for x in tensors)


def _is_optimizer(node: Any) -> bool:
    if not isinstance(node, Mapping) or not {"state", "param_groups"} <= node.keys():
        return False
    groups, state = node["param_groups"], node["state"]
    if not isinstance(groups, (list, tuple)) or not isinstance(state, Mapping):
        return False
    numbered = all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)
    plain = numbered and all(type(number) in (int, str) for group in groups for number in group["params"])
    return plain and all(isinstance(moments, Mapping) for moments in state.values())


def _kind_by_form(node: Any) -> str | None:
    """The kind of what has the form that torch gives it."""
    if isinstance(node, nn.Module) or _is_model(node):
        return "model"
    if not isinstance(node, Mapping):
        return None
    if _is_optimizer(node):
        return "optimizer"
    if SCALER_KEYS <= node.keys():
        return "scaler"
    if "last_epoch" in node and not isinstance(node["last_epoch"], Mapping):
        return "scheduler"
    return "position" if LOADER_KEYS & {key for key in node if isinstance(key, str)} else None


def _kind_by_words(path: str) -> str | None:
    """The kind that the words of a key tell."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", path).lower())
    return next((kind for kind, known in WORDS.items() if not set(words).isdisjoint(known.split())), None)


def _shapes_fit(names: Mapping[Any, str], state: Mapping[Any, Any], model: Mapping[str, Any]) -> bool:
    """Whether all moments that have their parameter's shape have it."""
    return all(
        number in names and value.shape == model[names[number]].shape
        for number, moments in state.items()
        for moment, value in moments.items()
        if moment in MOMENTS and isinstance(value, Tensor)
    )


def _bare(names: list[str]) -> list[str]:
    """The names without what wrappers put before all of them or, of a compiled module, within; all stay different."""
    bare = [name.replace("_orig_mod.", "") for name in names]
    while prefix := next((p for p in WRAPPERS if bare and all(name.startswith(p) for name in bare)), None):
        bare = [name.removeprefix(prefix) for name in bare]
    return bare if len(set(bare)) == len(bare) else names


def _text(kind: str, leaves: Mapping[str, Leaf]) -> str:
    """What a part holds, in a few words."""
    values = list(leaves.values())
    tensors = [leaf for leaf in values if leaf.form in ("tensor", "packed")]
    if kind == "optimizer":
        return _optimizer_text(values)
    if kind in ("model", "ema", "best") and tensors:
        count = sum(math.prod(leaf.shape) for leaf in tensors)
        return f"{count:,} numbers, {', '.join(sorted({leaf.dtype for leaf in tensors}))}"
    if kind in ("scheduler", "scaler"):
        wanted = ("last_epoch", "_last_lr", "scale", "_growth_tracker")
        found = {leaf.name: leaf for leaf in values if leaf.name in wanted}
        return ", ".join(f"{name} {_short(leaf)}" for name, leaf in found.items()) or _short(values[0])
    engines = [leaf.dtype for leaf in values if leaf.form == "generator"]
    if engines:
        return ", ".join(engines)
    return _short(values[0]) if len(values) == 1 else ""


def _optimizer_text(leaves: list[Leaf]) -> str:
    moments: dict[str, list[Leaf]] = {}
    for leaf in leaves:
        if not leaf.name.startswith("param_groups"):
            parts = leaf.name.split("/")
            moments.setdefault(parts[2] if parts[0] == "state" and len(parts) > 2 else parts[0], []).append(leaf)
    texts = [f"{name} of {len(found)}" for name, found in moments.items() if name != "step"]
    steps = {float(x.value) for x in moments.get("step", []) if len(x.shape) == 0 and _is_number(x.value)}
    texts += [f"step {' and '.join(f'{step:g}' for step in sorted(steps)[:3])}"] if steps else []
    rates = [_short(leaf) for leaf in leaves if re.fullmatch(r"param_groups/\d+/lr", leaf.name)]
    return ", ".join(texts or ["no moments"]) + (f", lr {' and '.join(dict.fromkeys(rates))}" if rates else "")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1)


def _short(leaf: Leaf) -> str:
    if leaf.form == "numbers" and len(leaf.value) <= 4:
        return printable(", ".join(map(repr, leaf.value)))
    if leaf.form == "tensor" and leaf.shape == ():
        return f"{leaf.value.item()!r}"
    return str(leaf)


# Comparison


def _compare(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> tuple[list[Change], int, list[str]]:
    """The changes sorted by path, how many leaves are equal, and the paths of those that cannot be compared."""
    changes, same, uncompared = [], 0, []
    a, b = _alike(a, b)
    for here, there in _pairs(a, b):
        if here is None or there is None:
            leaf = a[here] if here is not None else b[there or ""]
            sides = ("none", str(leaf)) if here is None else (str(leaf), "none")
            changes.append(Change(here or there or "", "extra" if here is None else "missing", *sides))
        elif change := _change(here, a[here], b[there]):
            changes.append(change._replace(other=there if there != here else ""))
        elif a[here].form == "other":
            uncompared.append(here)
        else:
            same += 1
    return sorted(changes, key=lambda change: (change.path, change.change)), same, sorted(uncompared)


def _alike(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> tuple[Mapping[str, Leaf], Mapping[str, Leaf]]:
    """Both sides with the moments by number in optimizers of which only one knows the parameters' names."""
    parts = _parts(a, b)
    named = {parts.get(leaf.part, leaf.part) for leaf in a.values() if leaf.numbered}
    named ^= {leaf.part for leaf in b.values() if leaf.numbered}
    return (
        {path: leaf.numbered or leaf if parts.get(leaf.part, leaf.part) in named else leaf for path, leaf in a.items()},
        {path: leaf.numbered or leaf if leaf.part in named else leaf for path, leaf in b.items()},
    )


def _pairs(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> list[tuple[str | None, str | None]]:
    """Paths side by side, None where there is no such leaf: by part and name, and the rest by part and bare name."""
    parts = _parts(a, b)
    places = [
        {
            path: (parts.get(leaf.part, leaf.part) if leaves is a else leaf.part, leaf.name)
            for path, leaf in leaves.items()
        }
        for leaves in (a, b)
    ]
    by_name = {place: path for path, place in places[1].items()}
    pairs: dict[str, str] = {path: by_name[place] for path, place in places[0].items() if place in by_name}
    taken = set(pairs.values())
    by_bare = {(leaf.part, leaf.bare): path for path, leaf in b.items() if path not in taken}
    for path, (part, _) in places[0].items():
        if path not in pairs and (part, a[path].bare) in by_bare:
            pairs[path] = by_bare.pop((part, a[path].bare))
    taken = set(pairs.values())
    return [*((path, pairs.get(path)) for path in a), *((None, path) for path in b if path not in taken)]


def _parts(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> dict[str, str]:
    """Which part of b a part of a is, where its path is another: the only one left of its kind, on both sides."""
    sides = [{leaf.part: leaf.kind for leaf in leaves.values()} for leaves in (a, b)]
    alone = [{part: kind for part, kind in side.items() if part not in other} for side, other in (sides, sides[::-1])]
    renamed = {}
    for kind in ("model", "optimizer", "scheduler", "scaler", "ema"):
        here, there = ([part for part, its in side.items() if its == kind] for side in alone)
        if len(here) == len(there) == 1:
            renamed[here[0]] = there[0]
    return renamed


def _change(path: str, a: Leaf, b: Leaf) -> Change | None:
    """How two leaves differ, if they do."""
    if a.form == b.form == "other":
        return None if a.dtype == b.dtype else Change(path, "type", a.dtype, b.dtype)
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


# Text and errors


def _foreign(path: Path, origin: str, size: int, tree: Any, metadata: dict[str, str] | None = None) -> Foreign:
    try:
        leaves = leaves_of(tree, room=ROOM * size + (1 << 24))
    except ValueError as error:
        _fail(CorruptCheckpoint, path, "a checkpoint that can be shown", f"one that cannot: {error}", DAMAGED)
    return Foreign(os.fspath(path), origin, size, leaves, metadata or {})


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with their cells below one another."""
    widths = [min(60, max(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _plain(value: Any) -> Any:
    """A value that JSON has."""
    return value if value is None or type(value) in (bool, int, float, str) else printable(repr(value))


def _first_line(error: Exception) -> str:
    message = f"{error}".rpartition("WeightsUnpickler error:")[2].strip()
    text = f"{type(error).__name__}: {message}".splitlines()[0][:200]
    return text if text.isprintable() else ascii(text)


def _fail(kind: type[CheckpointError], path: Path, expected: str, found: str, advice: str) -> NoReturn:
    """Raise a `CheckpointError`: where, what was expected, what was found, what to do."""
    raise kind(f"{os.fspath(path)}: expected {expected}, found {found}.\n    {advice}") from None
