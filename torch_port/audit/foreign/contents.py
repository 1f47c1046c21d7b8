"""What kinds of state a checkpoint holds, and what a resume from it would lack."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from numpy_ref.console import aligned
from numpy_ref.tree import printable
from torch_port.audit.foreign.files import Foreign, read
from torch_port.audit.foreign.leaves import KINDS, Leaf
from torch_port.interop.errors import Path

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
            | ({"value": plain(leaf.value)} if leaf.form in ("value", "number") else {})
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
        count = f"{len(file.leaves):,} {'leaf' if len(file.leaves) == 1 else 'leaves'}"
        lines = [
            f"{file.path}: {file.origin}, {file.size:,} bytes, {count}",
            "",
            *columns(rows),
            "",
        ]
        return lines + (["A resume from this file would lack:"] if self.lacks else []) + [f"  {x}" for x in self.lacks]


def kinds(leaves: Mapping[str, Leaf]) -> list[Kind]:
    """The parts of a checkpoint, in the order of KINDS.

    Example:
        >>> import torch
        >>> from torch_port.audit.foreign import leaves_of
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
        >>> import torch
        >>> from torch_port.audit.foreign import leaves_of
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


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines; a cell of more than 60 characters moves its own line alone."""
    return aligned(rows, [min(60, max(map(len, column))) for column in zip(*rows, strict=True)])


def plain(value: Any) -> Any:
    """A value that JSON has."""
    return value if value is None or type(value) in (bool, int, float, str) else printable(repr(value))
