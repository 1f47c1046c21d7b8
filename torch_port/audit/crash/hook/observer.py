"""What one program does to the files below one directory, in order: the record of it, and the kill.

One JSON line is written for every call that changes or synchronises something, and the bytes into a file of their own.
What was written by C++ or Rust is seen as files that have changed, at the next call that is seen or at the end. The
process kills itself by SIGKILL before one of these calls, or in the middle of a write, where it is told to.
"""

import io
import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NoReturn

IGNORED = ("__pycache__", ".git", ".venv")
"""Directories that are neither copied nor watched."""

REAL: dict[str, Any] = {name: getattr(os, name) for name in dir(os)}
"""The functions of `os`, as they were before they were watched; so is OPEN."""
OPEN = io.open
WRITING = os.O_WRONLY | os.O_RDWR

Key = tuple[int, ...]  # what a look at a file tells of it


class Observer:
    """Records, and kills where it is told to.

    Attributes:
        keep: whether the bytes that are written are recorded too.
        paths: the name, from the root, of every file descriptor that was opened through this hook.
    """

    def __init__(self, root: str, folder: str, kill: int, torn: int, main: int, keep: bool) -> None:
        self.root, self.folder, self.keep = os.path.realpath(root), folder, keep
        self.kill, self.torn = (kill, torn) if main == os.getpid() else (-1, -1)
        self.lock = threading.RLock()
        self.paths: dict[int, str] = {}
        self.count = 0 if main == os.getpid() else -1  # of events; only those of the first process are counted
        self.group: tuple[str, str] | None = None  # the writes that go on
        self.grown = 0  # bytes of them
        self.streams: dict[int, tuple[int, int]] = {}  # by process: the log and the bytes
        self.busy = 0  # the thread that is within a call which is recorded already
        self.known = self._scan()

    # What is below the root.

    def relative(self, path: Any, *, follow: bool = False, directory: int | None = None) -> str | None:
        """A name as the record has it, from the root, which is the empty one; None outside."""
        if isinstance(path, int):
            return self.paths.get(path)
        path = os.fsdecode(path)
        if directory is not None:
            if directory not in self.paths:
                return None
            path = os.path.join(self.root, self.paths[directory], path)
        path = os.path.abspath(path)
        above, name = os.path.split(path)
        path = os.path.realpath(path) if follow else os.path.join(os.path.realpath(above), name)
        found = os.path.relpath(path, self.root)
        if found.startswith("..") or any(part in IGNORED for part in found.split(os.sep)):
            return None
        return "" if found == "." else found

    def absolute(self, name: str) -> str:
        """Where a name stands."""
        return os.path.join(self.root, name)

    def _scan(self) -> dict[str, Key]:
        """Every name below the root, and what a look tells of it."""
        found: dict[str, Key] = {}
        folders = [""]
        while folders:
            above = folders.pop()
            with os.scandir(self.absolute(above)) as entries:
                for entry in entries:
                    if entry.name in IGNORED:
                        continue
                    name = os.path.join(above, entry.name)
                    key = self._key(name)
                    if key is not None:
                        found[name] = key
                        if key[0] == stat.S_IFDIR:
                            folders.append(name)
        return found

    def _key(self, name: str) -> Key | None:
        try:
            seen = os.lstat(self.absolute(name))
        except OSError:
            return None
        kind = stat.S_IFMT(seen.st_mode)
        return (kind,) if kind == stat.S_IFDIR else (kind, seen.st_ino, seen.st_size, seen.st_mtime_ns)

    def _learn(self, *names: str) -> None:
        """These are now as they are."""
        for name in filter(None, names):
            key = self._key(name)
            if key is None:
                self.known.pop(name, None)
            else:
                self.known[name] = key

    def look(self) -> None:
        """Record what has changed and was not seen to."""
        now = self._scan()
        for name in sorted(self.known.keys() - now.keys(), reverse=True):
            self._enter("unlink", name)
            self.record("unlink", name, native=True)
        for name in sorted(now):
            if now[name] == self.known.get(name):
                continue
            kind = now[name][0]
            if kind == stat.S_IFDIR:
                self._enter("mkdir", name)
                self.record("mkdir", name, native=True)
            elif kind == stat.S_IFLNK:
                self._enter("symlink", name)
                self.record("symlink", name, target=os.readlink(self.absolute(name)), native=True)
            elif kind == stat.S_IFREG:
                self._wrote(name, now[name][2])
        self.known = now

    def _wrote(self, name: str, size: int) -> None:
        """Record that something that was not seen wrote a file; a kill undoes what it can of that first."""
        path, before = self.absolute(name), self.known.get(name)
        if before is not None and before[:2] != (self._key(name) or ())[:2]:  # another file was renamed to this name
            self._enter("rename", name)
            return self._replaced(name)
        if self._enter("write", name, die=False):
            if self.torn >= 0:
                REAL["truncate"](path, size // 2)
            elif before is None:
                REAL["unlink"](path)
            elif before[2] <= size:
                REAL["truncate"](path, before[2])
            _die()
        self.record("write", name, data=self._content(name), whole=True, native=True)
        self.record("close", name)

    def _content(self, name: str) -> bytes:
        """What a file holds, where that is recorded."""
        if not self.keep:
            return b""
        with OPEN(self.absolute(name), "rb") as file:
            return bytes(file.read())

    def _replaced(self, name: str) -> None:
        """Record that a file was written beside a name and renamed to it; the name of what is gone is not known."""
        temporary = f"{name}.temporary"
        self.record("create", temporary, native=True)
        self.record("write", temporary, data=self._content(name), whole=True, native=True, index=-1)
        self.record("rename", temporary, target=name, native=True, index=-1)
        self._learn(name)

    def replacing(self, name: str, do: Callable[[], Any]) -> Any:
        """Let a library write a file beside a name and rename it; only the moment before can be killed at."""
        with self.lock:
            self.look()
            self._enter("create", name)
            found = do()
            self._replaced(name)
            return found

    # The record.

    def record(self, call: str, name: str, *, data: bytes = b"", index: int | None = None, **more: Any) -> None:
        """Write one line."""
        log, blob = self._streams()
        line = {"call": call, "name": name, "index": self.count - 1 if index is None else index, "out": _printed()}
        if data and self.keep:
            line |= {"pid": os.getpid(), "at": os.lseek(blob, 0, os.SEEK_END), "size": len(data)}
            rest = memoryview(data)
            while rest:
                rest = rest[REAL["write"](blob, rest) :]
        REAL["write"](log, json.dumps(line | more).encode() + b"\n")

    def _streams(self) -> tuple[int, int]:
        """The log, which processes share, and this one's file of bytes."""
        pid = os.getpid()
        if pid not in self.streams:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            names = ("log", f"bytes.{pid}")
            log, blob = (REAL["open"](os.path.join(self.folder, name), flags, 0o600) for name in names)
            self.streams[pid] = log, blob
        return self.streams[pid]

    def _enter(self, call: str, name: str, *, die: bool = True) -> bool:
        """Count an event; writes to one file that follow each other are one. Whether it is the one to kill at."""
        group = (call, name) if call == "write" else None
        if group is None or group != self.group:
            self.group, self.grown = group, 0
            if self.count >= 0:
                self.count += 1
        here = self.kill >= 0 and self.count - 1 == self.kill
        if here and die and (self.torn < 0 or call != "write"):
            _die()
        return here

    def event(self, call: str, names: tuple[str | None, ...], do: Callable[[], Any], **more: Any) -> Any:
        """Do what changes names, recorded; what lies outside the root is only done."""
        inside = [name for name in names if name is not None]
        if self.busy == threading.get_ident() or len(inside) < len(names):
            return do()
        with self.lock:
            self.look()
            self._enter(call, inside[0])
            self.busy = threading.get_ident()
            try:
                result = do()
            finally:
                self.busy = 0
            if len(inside) > 1:
                more["target"] = inside[1]
            self.record(call, inside[0], **more)
            if call == "rename":
                self._moved(*inside)
            else:
                self._learn(*inside)
            return result

    def _moved(self, old: str, new: str) -> None:
        """A name is now another, and so are those below it."""

        def moved(name: str) -> str:
            return new + name[len(old) :] if name == old or name.startswith(old + os.sep) else name

        self.known.pop(new, None)
        self.known = {moved(name): key for name, key in self.known.items()}
        self.paths = {descriptor: moved(name) for descriptor, name in self.paths.items()}

    def held(self, descriptor: int) -> str | None:
        """The name of an open file, if it still stands there; a number may be another file's by now."""
        name = self.paths.get(descriptor)
        try:
            same = name is not None and os.path.samestat(os.fstat(descriptor), os.stat(self.absolute(name)))
        except OSError:
            same = False
        return name if same else None

    def write(self, name: str, offset: int, data: Any, do: Callable[[Any], int | None]) -> int | None:
        """Write into a file, recorded."""
        data = bytes(data)
        with self.lock:
            if self.group != ("write", name):
                self.look()
            if self._enter("write", name) and self.grown + len(data) > self.torn:
                do(data[: max(self.torn - self.grown, 0)])
                _die()
            taken = do(data)
            size = len(data) if taken is None else taken
            self.grown += size
            self.record("write", name, data=data[:size], offset=offset)
            self._learn(name)
            return taken

    def quiet(self, call: str, name: str) -> None:
        """Record what changes nothing on the disk, and that what follows is another write."""
        with self.lock:
            self.look()
            self.group = None
            self.record(call, name)

    def opened(self, path: Any, flags: int, do: Callable[[], int], *, directory: int | None = None) -> int:
        """Open a file, recorded if that creates or empties it."""
        name = self.relative(path, follow=not flags & os.O_EXCL, directory=directory)
        if self.busy == threading.get_ident():
            return do()
        if name is None:
            if flags & WRITING:
                self.record("outside", os.path.abspath(os.fsdecode(path)), index=-1)
            descriptor = do()
            self.paths.pop(descriptor, None)  # an old number again
            return descriptor
        there = os.path.lexists(self.absolute(name))
        if flags & os.O_CREAT and not there:
            descriptor = int(self.event("create", (name,), do))
        elif flags & os.O_TRUNC and there and flags & WRITING:
            descriptor = int(self.event("truncate", (name,), do, offset=0))
        else:
            descriptor = do()
        self.paths[descriptor] = name
        if flags & os.O_APPEND:
            self.quiet("append", name)
        return descriptor

    def synchronised(self, descriptor: int, do: Callable[[], None]) -> None:
        """Synchronise a file or a directory; whatever Python object it was opened by."""
        name = self.held(descriptor)
        is_directory = name is not None and os.path.isdir(self.absolute(name))
        self.event("fsync directory" if is_directory else "fsync", (name,), do)


def _die() -> NoReturn:
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


def _printed() -> int:
    """How far standard output has come: the length of the file that it goes to."""
    with suppress(Exception):  # closed, none, or the script's own
        sys.stdout.flush()
    try:
        return os.fstat(1).st_size
    except OSError:
        return 0
