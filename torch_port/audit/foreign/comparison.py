"""Two checkpoints side by side: which leaf is beside which, how far apart, and what of each kind of state is equal."""

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from numpy_ref.tree import printable
from torch_port.audit import draws
from torch_port.audit.foreign.contents import columns, plain
from torch_port.audit.foreign.files import read
from torch_port.audit.foreign.leaves import KINDS, WITHOUT_DATA, Array, Leaf
from torch_port.interop.errors import Path

ALONE = ("missing", "extra")
CHUNK = 1 << 18  # elements that are compared at a time

Leaves = Mapping[str, Leaf]
Item = tuple[str, Leaf]  # a leaf and its path


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
    kinds: dict[str, dict[str, int]]  # of each kind of state how many leaves are equal, differ, are missing or extra
    notes: tuple[str, ...] = ()

    @property
    def bitwise(self) -> bool:
        """Whether every leaf is there on both sides, was compared, and is equal."""
        return not self.changes and not self.uncompared

    def json(self) -> dict[str, Any]:
        """The same as plain values."""
        leaves = [change._asdict() | {"a": plain(change.a), "b": plain(change.b)} for change in self.changes]
        return self._asdict() | {"bitwise": self.bitwise, "changes": leaves}

    def lines(self) -> list[str]:
        """The same as lines of text: first the leaves that both have, then those that one has."""
        lines = [f"not compared: {printable(path)}" for path in self.uncompared]
        lines += [f"note: {note}" for note in self.notes]
        if self.bitwise:
            return [f"bitwise: all {self.same} leaves are the same", *lines]
        rows: list[Sequence[str]] = [("leaf", "what", "a", "b", "distance", "units in the last place")]
        rows += [_row(change) for change in sorted(self.changes, key=lambda change: change.change in ALONE)]
        counts = [(kind, *map(str, counts.values())) for kind, counts in self.kinds.items()]
        kinds = columns([("kind", "equal", "differ", "only in a", "only in b"), *counts])
        leaves = f"{len(self.changes)} {'leaf differs' if len(self.changes) == 1 else 'leaves differ'}"
        table = [*columns(rows), "", *kinds, ""] if self.changes else []
        return [*table, f"{leaves}, {self.same} equal", *lines]


def _row(change: Change) -> tuple[str, ...]:
    """A change as a row of the table."""
    path = printable(change.path) + (f" (in b: {printable(change.other)})" if change.other else "")
    what = change.change if change.elements == 1 else f"{change.change}, {change.elements:,} elements"
    far = f"{change.distance:.3g}" if change.distance < math.inf else ""
    sides = [x if isinstance(x, str) else repr(x) for x in (change.a, change.b)]
    return (path, what, *map(printable, sides), far, "" if change.ulps is None else f"{change.ulps:,}")


def differences(a: Leaves, b: Leaves) -> list[Change]:
    """Every leaf that is not bitwise equal, sorted by path; leaves are aligned by part and name.

    Args:
        a: leaves as `leaves_of` gives them.
        b: likewise.

    Returns:
        One change for each; of a tensor its worst element. -0 differs from +0, and all NaNs are equal.

    Example:
        >>> import torch
        >>> from torch_port.audit.foreign import leaves_of
        >>> a, b = ({"w": torch.tensor([1.0, x])} for x in (2.0, 2.0000002))
        >>> [(c.path, c.change, c.ulps) for c in differences(leaves_of(a), leaves_of(b))]
        [('w', 'value', 1)]
    """
    return list(_compare(a, b).changes)


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
    notes = [f"the metadata differ: {x.metadata} and {y.metadata}"] if x.metadata != y.metadata else []
    empty = {path for file in (x, y) for path, leaf in file.leaves.items() if leaf.dtype == WITHOUT_DATA}
    notes += [f"{path} has no data: its type and shape were compared" for path in sorted(empty)]
    return _compare(x.leaves, y.leaves)._replace(a=x.path, b=y.path, notes=tuple(map(printable, notes)))


def _compare(a: Leaves, b: Leaves) -> Diff:
    """The changes, sorted by path, and what is equal."""
    changes, uncompared = [], []
    kinds = {kind: {"equal": 0, "differ": 0, "missing": 0, "extra": 0} for kind in KINDS}
    for here, there in align(a, b):
        if here and there:
            (path, leaf), (other, found) = here, there
            change = change_of(path, leaf, found)
            if change:
                changes.append(change._replace(other=other if other != path else ""))
            elif leaf.form == "other":
                uncompared.append(path)
                continue
            what = "differ" if change else "equal"
        elif here:
            (path, leaf), what = here, "missing"
            changes.append(Change(path, what, f"{leaf}", "none"))
        elif there:
            (path, leaf), what = there, "extra"
            changes.append(Change(path, what, "none", f"{leaf}"))
        kinds[leaf.kind][what] += 1
    changes.sort(key=lambda change: (change.path, change.change, change.other))
    same = sum(counts["equal"] for counts in kinds.values())
    kinds = {kind: counts for kind, counts in kinds.items() if any(counts.values())}
    return Diff("", "", tuple(changes), same, tuple(sorted(uncompared)), kinds)


# Which leaf is beside which: by part and name, and what is left without the prefixes of wrappers


def align(a: Leaves, b: Leaves) -> list[tuple[Item | None, Item | None]]:
    """Each leaf of both sides, beside the one of the other side that it is held against, or None."""
    parts = _parts(a, b)
    a = {path: leaf._replace(part=parts.get(leaf.part, leaf.part)) for path, leaf in a.items()}
    # Moments go by number in an optimizer of which only one side knows the parameters' names.
    unnamed = {leaf.part for leaf in a.values() if leaf.numbered} ^ {leaf.part for leaf in b.values() if leaf.numbered}
    a, b = ({path: _by_number(leaf, unnamed) for path, leaf in leaves.items()} for leaves in (a, b))
    pairs = _pairs(a, b)
    taken = set(pairs.values())
    alone = [path for path in a if path not in pairs], [path for path in b if path not in taken]
    counts = _counts(a, alone[0], b, alone[1])
    counts += [(x, y) for y, x in _counts(b, alone[1], a, alone[0])]
    counted = {path for path, _ in counts}, {path for _, path in counts}
    return [
        *(((x, a[x]), (y, b[y])) for x, y in (*pairs.items(), *counts)),
        *(((path, a[path]), None) for path in alone[0] if path not in counted[0]),
        *((None, (path, b[path])) for path in alone[1] if path not in counted[1]),
    ]


def _parts(a: Leaves, b: Leaves) -> dict[str, str]:
    """Which part of b a part of a is, where its path is another: the only one left of its kind, on both sides."""
    sides = [{leaf.part: leaf.kind for leaf in leaves.values()} for leaves in (a, b)]
    alone = [{part: kind for part, kind in side.items() if part not in other} for side, other in (sides, sides[::-1])]
    renamed = {}
    for kind in ("model", "optimizer", "scheduler", "scaler", "ema"):
        here, there = ([part for part, its in side.items() if its == kind] for side in alone)
        if len(here) == len(there) == 1:
            renamed[here[0]] = there[0]
    return renamed


def _by_number(leaf: Leaf, unnamed: set[str]) -> Leaf:
    return leaf.numbered._replace(part=leaf.part) if leaf.numbered and leaf.part in unnamed else leaf


def _pairs(a: Leaves, b: Leaves) -> dict[str, str]:
    """For paths of a those of b: by part and name, and the rest by part and bare name."""
    by_name = {(leaf.part, leaf.name): path for path, leaf in b.items()}
    pairs = {path: by_name[x.part, x.name] for path, x in a.items() if (x.part, x.name) in by_name}
    taken = set(pairs.values())
    by_bare = {(leaf.part, leaf.bare): path for path, leaf in b.items() if path not in taken}
    for path, leaf in a.items():
        if path not in pairs and (leaf.part, leaf.bare) in by_bare:
            pairs[path] = by_bare.pop((leaf.part, leaf.bare))
    return pairs


def _counts(a: Leaves, alone: list[str], b: Leaves, others: list[str]) -> list[tuple[str, str]]:
    """A count of updates of a that stands for all parameters, beside that of each in b."""
    counts = {a[path].part: path for path in alone if (a[path].form, a[path].name) == ("number", "step")}
    return [
        (counts[b[path].part], path)
        for path in others
        if b[path].part in counts and "step" in (b[path].name.split("/")[0], b[path].name.split("/")[-1])
    ]


# How far apart two leaves are: the worst element, its distance, and that in units in the last place


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
