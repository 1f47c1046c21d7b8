"""What a disk may hold after power fails, by the events of one run: a few states of the many that POSIX allows.

Bytes that were written and not yet synchronised may be lost, all or half of them; a name that was changed in a
directory and not yet synchronised may be what it was, whatever became of the other names.
"""

import os
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

RECENT = 3
"""Files, and changes of names, that are lost one at a time: the newest; beside these, all at once."""

Change = tuple[int, bytes | None]  # bytes at an offset; None cuts or extends the file to that size


class Event(NamedTuple):
    """One call that changes or synchronises something."""

    call: str
    name: str
    target: str = ""  # of a rename or link; what a symbolic link says
    offset: int = 0
    data: bytes = b""
    whole: bool = False  # the data is all that the file holds
    native: bool = False  # seen only after it was done
    order: int = -1  # among those that the script can be killed at
    printed: int = 0  # bytes on standard output before it

    def __str__(self) -> str:
        return f"{self.call} {self.name or '.'}" + (f" -> {self.target}" if self.target else "")


class Node(NamedTuple):
    """What stands under a name."""

    kind: str  # "file", "directory" or "link"
    data: bytes  # of a file, or what a link says
    stamp: int  # the event that changed it last


State = dict[str, Node | None]
"""Nodes by name; None for a file that is as it was before the run, where it was."""


class _File:
    """A file, directory or link: what is on the disk, and what was changed since."""

    def __init__(self, kind: str, stamp: int, data: bytes = b"", origin: Path | None = None, name: str = "") -> None:
        self.kind, self.stamp, self.origin, self.name = kind, stamp, origin, name
        self._durable: bytes | None = None if origin else data
        self.changes: list[Change] = []

    @property
    def durable(self) -> bytes:
        if self._durable is None:
            assert self.origin is not None
            self._durable = self.origin.read_bytes()
        return self._durable

    @property
    def unsynchronised(self) -> int:
        """Bytes."""
        return sum(len(data) for _, data in self.changes if data is not None)

    def content(self, *, lost: str = "") -> bytes:
        """The bytes of it; without those that were not synchronised, or with half of them. Sizes are as cut last."""
        changes = self.changes
        if lost:
            changes = list(_first(changes, 0 if lost == "all" else self.unsynchronised // 2))
        return changed(self.durable, changes)

    def changes_by(self, event: Event) -> list[Change]:
        """What a write or a truncation changes."""
        if event.call == "truncate":
            return [(event.offset, None)]
        if not event.whole:
            return [(event.offset, event.data)]
        old = self.content()
        return [(len(old), event.data[len(old) :])] if event.data.startswith(old) else [(0, None), (0, event.data)]

    def synchronise(self) -> None:
        if self.changes:
            self._durable, self.changes = self.content(), []

    def node(self, name: str, lost: str = "") -> Node | None:
        if self.origin is not None and self.name == name and self._durable is None and not self.changes:
            return None
        return Node(self.kind, self.content(lost=lost) if self.kind == "file" else self.durable, self.stamp)


class _Renaming(NamedTuple):
    """A change of a name that the directory has not been synchronised after."""

    number: int  # of the event
    event: Event
    name: str
    before: _File | None
    after: _File | None


def digest(state: State) -> str:
    """One for all states that a reader cannot tell apart: names, bytes, and which file was changed after which."""
    stamps = sorted({node.stamp for node in state.values() if node is not None and node.kind == "file"})
    order = {stamp: i for i, stamp in enumerate(stamps)}
    found = sha256()
    for name, node in sorted(state.items()):
        parts: tuple[Any, ...] = (name, "as it was")
        if node is not None:
            parts = (name, node.kind, sha256(node.data).hexdigest(), order.get(node.stamp))
        found.update(repr(parts).encode())
    return found.hexdigest()


def changed(content: bytes, changes: list[Change]) -> bytes:
    """A content after changes."""
    found = bytearray(content)
    for offset, data in changes:
        if data is None:
            del found[offset:]
        found.extend(bytes(max(offset - len(found), 0)))
        if data is not None:
            found[offset : offset + len(data)] = data
    return bytes(found)


def _first(changes: list[Change], size: int) -> Iterator[Change]:
    """Changes up to so many bytes; cuts are no bytes."""
    for offset, data in changes:
        if data is None:
            yield offset, None
        elif size:
            yield offset, data[:size]
            size -= len(data[:size])


class Disk:
    """Follows events, and says what may be found if power fails now."""

    def __init__(self, before: Path, names: list[tuple[str, str]]) -> None:
        """Start from a directory.

        Args:
            before: it, which must stay as it is.
            names: the name and kind of everything below it.
        """
        self.names: dict[str, _File] = {}
        self.pending: list[_Renaming] = []
        self.number = 0
        for name, kind in names:
            path = before / name
            data = os.fsencode(os.readlink(path)) if kind == "link" else b""
            self.names[name] = _File(kind, 0, data, path if kind == "file" else None, name)

    def apply(self, event: Event) -> None:
        """Do what a call did."""
        self.number += 1
        call, name = event.call, event.name
        if call == "create":
            self._name(event, name, _File("file", self.number))
        elif call == "mkdir":
            self._name(event, name, _File("directory", self.number))
        elif call == "symlink":
            self._name(event, name, _File("link", self.number, os.fsencode(event.target)))
        elif call in ("unlink", "rmdir"):
            self._name(event, name, None)
        elif call == "link":
            self._name(event, event.target, self.names.get(name))
        elif call == "rename":
            self._rename(event)
        elif call in ("write", "truncate"):
            self._write(event)
        elif call == "fsync" and name in self.names:
            self.names[name].synchronise()
        elif call == "fsync directory":
            self.pending = [change for change in self.pending if os.path.dirname(change.name) != name]
        elif call == "sync":
            self.pending = []
            for file in self.names.values():
                file.synchronise()

    def _name(self, event: Event, name: str, file: _File | None) -> None:
        self.pending.append(_Renaming(self.number, event, name, self.names.get(name), file))
        if file is None:
            self.names.pop(name, None)
        else:
            self.names[name] = file

    def _rename(self, event: Event) -> None:
        below = [name for name in self.names if name.startswith(event.name + os.sep)]
        for name in [event.name, *below]:
            if name in self.names:
                self._name(event, event.target + name[len(event.name) :], self.names[name])
                self._name(event, name, None)

    def _write(self, event: Event) -> None:
        if event.name not in self.names:  # nobody saw it come
            self._name(event, event.name, _File("file", self.number))
        file = self.names[event.name]
        file.stamp = self.number
        file.changes += file.changes_by(event)

    def visible(self) -> State:
        """What a reader finds while the power is on."""
        return self._state(self.names)

    def torn(self, writes: list[Event]) -> State:
        """What a reader finds where a process was killed in the middle of writes to a file, which come next."""
        name = writes[0].name
        content = self.names[name].content() if name in self.names else b""
        after = _File("file", self.number + 1, content)
        for event in writes:
            after.changes += after.changes_by(event)
        after.changes = list(_first(after.changes, after.unsynchronised // 2))
        return self.visible() | {name: after.node(name)}

    def lost(self) -> Iterator[tuple[str, State]]:
        """What may be found if power fails now, beside what a reader finds; each with what has been lost."""
        unsynced = {id(file): (name, file) for name, file in self.names.items() if file.changes}
        files = sorted(unsynced.values(), key=lambda item: -item[1].stamp)
        if files:
            yield "un-fsynced bytes lost", self._state(self.names, dict.fromkeys(unsynced, "all"))
            yield "half of the un-fsynced bytes lost", self._state(self.names, dict.fromkeys(unsynced, "half"))
        for name, file in files[:RECENT] if len(files) > 1 else []:
            yield f"un-fsynced bytes of {name} lost", self._state(self.names, {id(file): "all"})
        numbers = list(dict.fromkeys(change.number for change in reversed(self.pending)))
        events = {change.number: change.event for change in self.pending}
        alone = [number for number in numbers if events[number].call not in ("unlink", "rmdir")]
        for number in alone[:RECENT]:  # what was removed and is there again hides nothing
            event = events[number]
            yield f"{event} lost", self._state(self._undone({number}))
        if len(numbers) > 1:
            yield "every un-fsynced change of a name lost", self._state(self._undone(set(numbers)))

    def _undone(self, numbers: set[int]) -> dict[str, _File]:
        """The names without some of the changes; what a later change that stays says goes first."""
        names = dict(self.names)
        for change in reversed(self.pending):
            if change.number in numbers and names.get(change.name) is change.after:
                if change.before is None:
                    names.pop(change.name, None)
                else:
                    names[change.name] = change.before
        return names

    def _state(self, names: dict[str, _File], lost: dict[int, str] | None = None) -> State:
        """What can be reached."""
        found: State = {}
        for name, file in sorted(names.items()):
            above = os.path.dirname(name)
            if not above or (above in found and names[above].kind == "directory"):
                found[name] = file.node(name, (lost or {}).get(id(file), ""))
        return found
