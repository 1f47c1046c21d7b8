"""What a disk may hold after power fails, by the events that changed it: the one model of it that this project has.

The model promises no more than POSIX does. Bytes that were written and not yet synchronised may be there or not, block
by block, torn within a block, zeros in their place, and the file may have its old size, its new one or any between.
A name that was changed in a directory and not yet synchronised may have any of the values it had since the directory
was synchronised last, whatever the other names have: a rename is two such changes. Power may fail after any call; in
the midst of one is no different, because what it changes is unsynchronised until it returns.

`DiskModel.states` enumerates them, for files of a few blocks; `DiskModel.lost` takes a few that a user would meet.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import NamedTuple

import numpy as np

__all__ = ["BLOCK", "RECENT", "Change", "DiskModel", "Event", "File", "Node", "State", "changed", "contents"]

BLOCK = 512
"""Bytes that a disk writes as one, and yet may tear in the middle."""
RECENT = 3
"""Files, and changes of names, that `lost` loses one at a time: the newest; beside these, all at once."""
EXHAUSTIVE = 1000  # contents of one file: below it all are tried, above it a selection

Change = tuple[int, bytes | None]  # bytes at an offset; None cuts or extends the file to that size


@dataclass(frozen=True)
class Event:
    """One call that changes or synchronises something. Names are paths from the root, which is the empty one."""

    call: str  # create, truncate, write, flush, close, fsync, rename, link, symlink, unlink, mkdir, rmdir, ...
    name: str = ""
    target: str = ""  # of a rename or link; what a symbolic link says
    offset: int = 0
    data: bytes = b""
    whole: bool = False  # the data is all that the file holds
    buffered: bool = False  # the process holds the data back until a flush or close; yet some may go

    def __str__(self) -> str:
        return f"{self.call} {self.name or '.'}" + (f" -> {self.target}" if self.target else "")


class Node(NamedTuple):
    """What stands under a name."""

    kind: str  # "file", "directory" or "link"
    data: bytes  # of a file, or what a link says
    stamp: int  # the event that changed it last


State = dict[str, Node | None]
"""Nodes by name; None for a file that is as it was before the first event, where it was."""


def changed(content: bytes, changes: Iterable[Change]) -> bytes:
    """A content after changes."""
    found = bytearray(content)
    for offset, data in changes:
        if data is None:
            del found[offset:]
        found.extend(bytes(max(offset - len(found), 0)))
        if data is not None:
            found[offset : offset + len(data)] = data
    return bytes(found)


def contents(old: bytes, changes: list[Change], *, block: int = BLOCK) -> list[bytes]:
    """The contents that a file may have after power failed between the first of the changes and its fsync."""
    if not changes:
        return [old]
    new = changed(old, changes)
    length = max(len(old), len(new))
    sizes = sorted({len(old), len(new), *range(0, length, block)})
    starts = range(0, length, block)
    whole, nothing = ([x.ljust(length, b"\0")[start : start + block] for start in starts] for x in (new, old))
    pieces = []
    for after, before in zip(whole, nothing, strict=True):
        middle = len(after) // 2
        torn = (after[:middle] + before[middle:], before[:middle] + after[middle:])
        pieces.append(list(dict.fromkeys([after, before, bytes(len(after)), *torn])))
    if len(sizes) * prod(len(values) for values in pieces) <= EXHAUSTIVE:
        return list(dict.fromkeys(b"".join(choice)[:size] for choice in product(*pieces) for size in sizes))
    chosen = [whole, nothing, [bytes(len(values[0])) for values in pieces]]
    for i, values in enumerate(pieces):
        chosen += [[*nothing[:i], whole[i], *nothing[i + 1 :]], [*nothing[:i], *whole[i:]]]
        for value in values:  # one block alone as it must not be, and the last one that was reached
            chosen += [[*whole[:i], value, *whole[i + 1 :]], [*whole[:i], value, *nothing[i + 1 :]]]
    rng = np.random.default_rng(len(pieces))
    chosen += [[values[rng.integers(len(values))] for values in pieces] for _ in range(32)]
    found = [b"".join(choice)[:size] for choice in (whole, nothing) for size in sizes]
    found += [changed(old, changes[:i]) for i in range(len(changes))]
    found += [b"".join(choice)[: len(new)] for choice in chosen]
    return list(dict.fromkeys(found))


class File:
    """A file, directory or link: what of it is on the disk, and what was changed since.

    Args:
        kind: "file", "directory" or "link".
        durable: its content on the disk, or what a link says.
        origin: instead of `durable`, the file that holds it, which must stay as it is, and the name of it.
        stamp: the event that changed it last.
    """

    def __init__(
        self, kind: str = "file", durable: bytes = b"", *, origin: tuple[Path, str] | None = None, stamp: int = 0
    ) -> None:
        self.kind, self.origin, self.stamp = kind, origin, stamp
        self._durable: bytes | None = None if origin else durable
        self.changes: list[Change] = []
        self.buffer: list[Change] = []  # of the process that writes

    @property
    def durable(self) -> bytes:
        """What is on the disk."""
        if self._durable is None:
            assert self.origin is not None
            self._durable = self.origin[0].read_bytes()
        return self._durable

    @property
    def unsynchronised(self) -> int:
        """Bytes."""
        return sum(len(data) for _, data in self.changes if data is not None)

    def content(self, most: int | None = None) -> bytes:
        """What a reader finds while the power is on; with so many of the unsynchronised bytes, and sizes as cut."""
        return changed(self.durable, self.changes if most is None else _first(self.changes, most))

    def contents(self) -> list[bytes]:
        """What may be found after power has failed; what is in the buffer may have reached the kernel by itself."""
        return contents(self.durable, self.changes + self.buffer)

    def changes_by(self, event: Event) -> list[Change]:
        """What a write or a truncation changes."""
        if event.call == "truncate":
            return [(event.offset, None)]
        if not event.whole:
            return [(event.offset, event.data)]
        old = self.content()
        return [(len(old), event.data[len(old) :])] if event.data.startswith(old) else [(0, None), (0, event.data)]

    def flush(self) -> None:
        """Hand the buffer to the kernel."""
        self.changes, self.buffer = self.changes + self.buffer, []

    def synchronise(self) -> None:
        """Put on the disk what the kernel has."""
        if self.changes:
            self._durable, self.changes = self.content(), []

    def node(self, name: str, data: bytes | None = None) -> Node | None:
        """The file under a name, with another content if one is given."""
        if data is None:
            if self.origin is not None and self.origin[1] == name and self._durable is None and not self.changes:
                return None
            data = self.content()
        return Node(self.kind, data, self.stamp)


def _first(changes: list[Change], size: int) -> Iterator[Change]:
    """Changes up to so many bytes; cuts are no bytes."""
    for offset, data in changes:
        if data is None:
            yield offset, None
        elif size:
            yield offset, data[:size]
            size -= len(data[:size])


class _Naming(NamedTuple):
    """A change of a name that the directory has not been synchronised after."""

    number: int  # of the event
    event: Event
    name: str
    before: File | None
    after: File | None


class DiskModel:
    """A disk whose power may fail at any moment.

    Args:
        names: what is on it; a directory stands before what it holds.
    """

    def __init__(self, names: Mapping[str, File]) -> None:
        self.names = dict(names)
        self.pending: list[_Naming] = []
        self.number = 0

    def apply(self, event: Event) -> None:
        """Do what a call did."""
        self.number += 1
        call, name = event.call, event.name
        if call == "create":
            self.give(event, name, File(stamp=self.number))
        elif call == "mkdir":
            self.give(event, name, File("directory", stamp=self.number))
        elif call == "symlink":
            self.give(event, name, File("link", os.fsencode(event.target), stamp=self.number))
        elif call in ("unlink", "rmdir"):
            self.give(event, name, None)
        elif call == "link":
            self.give(event, event.target, self.names.get(name))
        elif call == "rename":
            self._rename(event)
        elif call in ("write", "truncate"):
            self._write(event)
        elif call == "fsync directory":
            self.pending = [change for change in self.pending if os.path.dirname(change.name) != name]
        elif call == "sync":
            self.pending = []
            for file in self.names.values():
                file.synchronise()
        elif name in self.names:
            if call == "fsync":
                self.names[name].synchronise()
            elif call in ("flush", "close"):
                self.names[name].flush()

    def give(self, event: Event, name: str, file: File | None) -> None:
        """Let a name be another file's, or no file's."""
        self.pending.append(_Naming(self.number, event, name, self.names.get(name), file))
        if file is None:
            self.names.pop(name, None)
        else:
            self.names[name] = file

    def _rename(self, event: Event) -> None:
        below = [name for name in self.names if name.startswith(event.name + os.sep)]
        for name in [event.name, *below]:
            if name in self.names:
                self.give(event, event.target + name[len(event.name) :], self.names[name])
                self.give(event, name, None)

    def _write(self, event: Event) -> None:
        if event.name not in self.names:  # nobody saw it come
            self.give(event, event.name, File(stamp=self.number))
        file = self.names[event.name]
        file.stamp = self.number
        changes = file.buffer if event.buffered else file.changes
        changes += file.changes_by(event)

    def values(self, name: str) -> list[File | None]:
        """The files that may have a name after power has failed, the newest last; None: no file may."""
        changes = [change for change in self.pending if change.name == name]
        if not changes:
            return [self.names.get(name)]
        return list(dict.fromkeys([changes[0].before, *(change.after for change in changes)]))

    def visible(self) -> State:
        """What a reader finds while the power is on."""
        return self._state(self.names)

    def torn(self, writes: Sequence[Event]) -> State:
        """What a reader finds where a process was killed in the middle of writes to a file, which come next."""
        name = writes[0].name
        after = File(durable=self.names[name].content() if name in self.names else b"", stamp=self.number + 1)
        for event in writes:
            after.changes += after.changes_by(event)
        return self.visible() | {name: after.node(name, after.content(after.unsynchronised // 2))}

    def states(self) -> Iterator[State]:
        """What the disk may hold if the power fails now; of the files one at a time is torn."""
        values = {name: self.values(name) for name in sorted({*self.names, *(c.name for c in self.pending)})}
        files = {file for found in values.values() for file in found if file is not None}
        plain, possible = {file: file.content() for file in files}, {file: file.contents() for file in files}
        for choice in product(*values.values()):
            chosen = {name: file for name, file in zip(values, choice, strict=True) if file is not None}
            yield self._state(chosen, plain)
            for file in dict.fromkeys(chosen.values()):
                for content in possible[file]:
                    yield self._state(chosen, plain | {file: content})

    def lost(self) -> Iterator[tuple[str, State]]:
        """What may be found if power fails now, beside what a reader finds; each with what has been lost."""
        unsynced = {file: name for name, file in self.names.items() if file.changes}
        files = sorted(unsynced, key=lambda file: -file.stamp)
        if files:
            yield "un-fsynced bytes lost", self._state(self.names, {file: file.content(0) for file in files})
            halves = {file: file.content(file.unsynchronised // 2) for file in files}
            yield "half of the un-fsynced bytes lost", self._state(self.names, halves)
        for file in files[:RECENT] if len(files) > 1 else []:
            yield f"un-fsynced bytes of {unsynced[file]} lost", self._state(self.names, {file: file.content(0)})
        events = {change.number: change.event for change in reversed(self.pending)}
        alone = [number for number, event in events.items() if event.call not in ("unlink", "rmdir")]
        for number in alone[:RECENT]:  # what was removed and is there again hides nothing
            yield f"{events[number]} lost", self._state(self._undone({number}))
        if len(events) > 1:
            yield "every un-fsynced change of a name lost", self._state(self._undone(set(events)))

    def _undone(self, numbers: set[int]) -> dict[str, File]:
        """The names without some of the changes; what a later change that stays says goes first."""
        names = dict(self.names)
        for change in reversed(self.pending):
            if change.number in numbers and names.get(change.name) is change.after:
                if change.before is None:
                    names.pop(change.name, None)
                else:
                    names[change.name] = change.before
        return names

    def _state(self, names: Mapping[str, File], contents: Mapping[File, bytes] | None = None) -> State:
        """What can be reached, files with other contents if some are given."""
        found: State = {}
        for name, file in sorted(names.items()):
            above = os.path.dirname(name)
            if not above or (above in found and names[above].kind == "directory"):
                found[name] = file.node(name, (contents or {}).get(file))
        return found
