"""Two checkpoints side by side: what differs, leaf by leaf, and how many of each kind of state are equal."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from numpy_ref.tree import printable
from torch_port.audit.foreign.alignment import align
from torch_port.audit.foreign.distance import Change, change_of
from torch_port.audit.foreign.errors import Path
from torch_port.audit.foreign.files import read
from torch_port.audit.foreign.leaf import WITHOUT_DATA, Leaf
from torch_port.audit.foreign.recognition import KINDS
from torch_port.audit.foreign.text import aligned, plain

ALONE = ("missing", "extra")


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
        kinds = aligned([("kind", "equal", "differ", "only in a", "only in b"), *counts])
        leaves = f"{len(self.changes)} {'leaf differs' if len(self.changes) == 1 else 'leaves differ'}"
        table = [*aligned(rows), "", *kinds, ""] if self.changes else []
        return [*table, f"{leaves}, {self.same} equal", *lines]


def _row(change: Change) -> tuple[str, ...]:
    """A change as a row of the table."""
    path = printable(change.path) + (f" (in b: {printable(change.other)})" if change.other else "")
    what = change.change if change.elements == 1 else f"{change.change}, {change.elements:,} elements"
    far = f"{change.distance:.3g}" if change.distance < math.inf else ""
    sides = [x if isinstance(x, str) else repr(x) for x in (change.a, change.b)]
    return (path, what, *map(printable, sides), far, "" if change.ulps is None else f"{change.ulps:,}")


def differences(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> list[Change]:
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


def _compare(a: Mapping[str, Leaf], b: Mapping[str, Leaf]) -> Diff:
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
