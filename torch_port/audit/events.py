"""What one program does to the files below one directory, in order: the hook that `crash` lays on a script's path.

A copy of this file goes there under the name `sitecustomize.py`, so it needs the standard library alone. It acts only
where CRASH_EVENTS says so: it writes one JSON line for every call that changes or synchronises something, and the bytes
into a file of their own. Calls are seen where Python makes them: `open` for writing, `os.open` and their writes,
truncations, fsync, names that change. What C++ and Rust write is seen in `torch.save` and safetensors when they are
called, and anywhere else as files that have changed, at the next call that is seen or at the end. The process kills
itself by SIGKILL before one of these calls, or in the middle of a write, where it is told to.
"""

import atexit
import builtins
import importlib.util
import io
import json
import os
import signal
import stat
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib.machinery import PathFinder
from types import ModuleType
from typing import Any, NoReturn

VARIABLE = "CRASH_EVENTS"
IGNORED = ("__pycache__", ".git", ".venv")
"""Directories that are neither copied nor watched."""

_REAL: dict[str, Any] = {name: getattr(os, name) for name in dir(os)}
_OPEN = io.open
_WRITING = os.O_WRONLY | os.O_RDWR
_LARGEST_BUFFER = 8 << 20

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
        if (
            before is not None and before[:2] != (self._key(name) or ())[:2]
        ):  # another file has been renamed to this name
            self._enter("rename", name)
            return self._replaced(name)
        if self._enter("write", name, die=False):
            if self.torn >= 0:
                _REAL["truncate"](path, size // 2)
            elif before is None:
                _REAL["unlink"](path)
            elif before[2] <= size:
                _REAL["truncate"](path, before[2])
            _die()
        with _OPEN(path, "rb") as file:
            self.record("write", name, data=file.read(), whole=True, native=True)
        self.record("close", name)

    def _replaced(self, name: str) -> None:
        """Record that a file was written beside a name and renamed to it; the name of what is gone is not known."""
        with _OPEN(self.absolute(name), "rb") as file:
            data = file.read()
        temporary = f"{name}.temporary"
        self.record("create", temporary, native=True)
        self.record("write", temporary, data=data, whole=True, native=True, index=-1)
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
                rest = rest[_REAL["write"](blob, rest) :]
        _REAL["write"](log, json.dumps(line | more).encode() + b"\n")

    def _streams(self) -> tuple[int, int]:
        """The log, which processes share, and this one's file of bytes."""
        pid = os.getpid()
        if pid not in self.streams:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
            names = ("log", f"bytes.{pid}")
            log, blob = (_REAL["open"](os.path.join(self.folder, name), flags, 0o600) for name in names)
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
            if flags & _WRITING:
                self.record("outside", os.path.abspath(os.fsdecode(path)), index=-1)
            descriptor = do()
            self.paths.pop(descriptor, None)  # an old number again
            return descriptor
        there = os.path.lexists(self.absolute(name))
        if flags & os.O_CREAT and not there:
            descriptor = int(self.event("create", (name,), do))
        elif flags & os.O_TRUNC and there and flags & _WRITING:
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


class Raw(io.FileIO):
    """A file that is written by Python, below the buffer: what comes here goes to the kernel."""

    observer: Observer

    def write(self, data: Any, /) -> Any:
        """Write through."""
        name = self.observer.held(self.fileno())
        if name is None:
            return super().write(data)
        offset = os.fstat(self.fileno()).st_size if "a" in self.mode else self.tell()
        return self.observer.write(name, offset, data, super().write)

    def truncate(self, size: int | None = None, /) -> int:
        """Cut or extend the file."""
        size = self.tell() if size is None else size
        do = super().truncate
        name = self.observer.paths.get(self.fileno())
        return int(self.observer.event("truncate", (name,), lambda: do(size), offset=size))

    def close(self) -> None:
        """Close the file; closing a closed one does nothing."""
        name = None if self.closed else self.observer.paths.get(self.fileno())
        if name is not None:
            self.observer.quiet("close", name)  # first: what C wrote through the same descriptor is still its own
            if self.closefd:
                self.observer.paths.pop(self.fileno(), None)
        super().close()


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


def _opening(observer: Observer) -> Callable[..., Any]:
    """`open` that sees what is written."""

    def opening(
        file: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, errors: Any = None, newline: Any = None,
        closefd: bool = True, opener: Any = None,
    ) -> Any:  # fmt: skip
        plain = (buffering, encoding, errors, newline, closefd, opener)
        known = isinstance(mode, str) and len(set(mode)) == len(mode) and set(mode) <= set("rwxab+t")
        if not known or not set(mode) & set("wxa+"):
            found = _OPEN(file, mode, *plain)
            if known and not isinstance(file, int) and (name := observer.relative(file, follow=True)) is not None:
                observer.paths[found.fileno()] = name
            return found
        if isinstance(file, int) and observer.held(file) is None:
            return _OPEN(file, mode, *plain)
        _OPEN(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()  # its own complaints
        raw_mode = mode.replace("b", "").replace("t", "")
        raw: Raw | None
        if isinstance(file, int) or opener is not None:  # which goes through `os.open`
            raw = Raw(file, raw_mode, closefd, opener)
        else:
            raw = _open_raw(observer, file, raw_mode)
        if raw is None:
            return _OPEN(file, mode, *plain)
        return _buffered(raw, mode, buffering, encoding, errors, newline)

    return opening


def _open_raw(observer: Observer, file: Any, mode: str) -> Raw | None:
    """A file by its name, recorded as the system call is; None outside the root."""
    flags = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}
    letter = mode.replace("+", "")
    files: list[Raw] = []

    def do() -> int:
        files.append(Raw(file, mode))
        return files[0].fileno()

    if observer.relative(file, follow=letter != "x") is None:
        observer.record("outside", os.path.abspath(os.fsdecode(file)), index=-1)
        return None
    observer.opened(file, flags[letter] | (os.O_RDWR if "+" in mode else os.O_WRONLY), do)
    return files[0]


def _buffered(raw: Raw, mode: str, buffering: int, encoding: Any, errors: Any, newline: Any) -> Any:
    """What `open` puts around a raw file."""
    binary = "b" in mode
    lines = buffering == 1 or (buffering < 0 and raw.isatty())
    if buffering == 0:
        return raw
    size = buffering
    if buffering < 0 or lines:
        size = max(min(os.fstat(raw.fileno()).st_blksize, _LARGEST_BUFFER), io.DEFAULT_BUFFER_SIZE)
    buffer = io.BufferedRandom(raw, size) if "+" in mode else io.BufferedWriter(raw, size)
    if binary:
        return buffer
    text = io.TextIOWrapper(buffer, encoding, errors, newline, line_buffering=lines)
    text.mode = mode  # type: ignore[misc]
    return text


def _patch(observer: Observer) -> None:
    """Put the hook before the functions of `os` and `open`."""
    Raw.observer = observer
    builtins.open = io.open = _opening(observer)

    def at(path: Any, directory: int | None = None) -> str | None:
        return observer.relative(path, directory=directory)

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return observer.opened(path, flags, lambda: _REAL["open"](path, flags, mode, dir_fd=dir_fd), directory=dir_fd)

    def os_close(descriptor: int) -> None:
        name = observer.paths.pop(descriptor, None)
        if name is not None and os.path.isfile(observer.absolute(name)):
            observer.quiet("close", name)
        _REAL["close"](descriptor)

    def os_dup(descriptor: int) -> int:
        copy = int(_REAL["dup"](descriptor))
        if descriptor in observer.paths:
            observer.paths[copy] = observer.paths[descriptor]
        return copy

    def os_write(descriptor: int, data: Any) -> Any:
        name = observer.held(descriptor)
        if name is None:
            return _REAL["write"](descriptor, data)
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        return observer.write(name, offset, data, lambda part: _REAL["write"](descriptor, part))

    def os_pwrite(descriptor: int, data: Any, offset: int) -> Any:
        name = observer.held(descriptor)
        if name is None:
            return _REAL["pwrite"](descriptor, data, offset)
        return observer.write(name, offset, data, lambda part: _REAL["pwrite"](descriptor, part, offset))

    def os_fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        observer.synchronised(number, lambda: _REAL["fsync"](number))

    def os_sync() -> None:
        observer.event("sync", ("",), _REAL["sync"])

    def os_truncate(path: Any, length: int) -> None:
        name = observer.relative(path, follow=True)
        observer.event("truncate", (name,), lambda: _REAL["truncate"](path, length), offset=length)

    def renaming(real: Callable[..., None]) -> Callable[..., None]:
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            names = (at(src, src_dir_fd), at(dst, dst_dir_fd))
            observer.event("rename", names, lambda: real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd))

        return rename

    def os_link(src: Any, dst: Any, **others: Any) -> None:
        observer.event("link", (at(src), at(dst)), lambda: _REAL["link"](src, dst, **others))

    def os_symlink(src: Any, dst: Any, *others: Any, dir_fd: int | None = None) -> None:
        do = lambda: _REAL["symlink"](src, dst, *others, dir_fd=dir_fd)  # noqa: E731
        observer.event("symlink", (at(dst, dir_fd),), do, target=os.fsdecode(src))

    def os_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        observer.event("unlink", (at(path, dir_fd),), lambda: _REAL["unlink"](path, dir_fd=dir_fd))

    def os_mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        observer.event("mkdir", (at(path, dir_fd),), lambda: _REAL["mkdir"](path, mode, dir_fd=dir_fd))

    def os_rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        observer.event("rmdir", (at(path, dir_fd),), lambda: _REAL["rmdir"](path, dir_fd=dir_fd))

    seen: dict[str, Callable[..., Any]] = {
        "open": os_open, "close": os_close, "dup": os_dup, "write": os_write, "pwrite": os_pwrite,
        "fsync": os_fsync, "fdatasync": os_fsync, "sync": os_sync, "truncate": os_truncate, "ftruncate": os_truncate,
        "rename": renaming(_REAL["rename"]), "replace": renaming(_REAL["replace"]), "link": os_link,
        "symlink": os_symlink, "unlink": os_unlink, "remove": os_unlink, "mkdir": os_mkdir, "rmdir": os_rmdir,
    }  # fmt: skip
    for name, function in seen.items():
        if name in _REAL:
            setattr(os, name, function)


def _patch_torch(observer: Observer, module: ModuleType) -> None:
    """`torch.save` to a path opens it and writes it in C++."""
    writer: Any = module._open_zipfile_writer_file

    class Writer(writer):  # type: ignore[misc]
        def __init__(self, name: str) -> None:
            _native_open(observer, name, lambda: writer.__init__(self, name))
            self.seen = observer.relative(name, follow=True)

        def __exit__(self, *others: Any) -> None:
            writer.__exit__(self, *others)
            if self.seen is not None:
                observer.quiet("close", self.seen)

    module._open_zipfile_writer_file = Writer  # type: ignore[attr-defined]


def _patch_safetensors(observer: Observer, module: ModuleType) -> None:
    """`save_file` is written in Rust: newer versions rename a temporary, older ones write straight to the name."""
    serialize: Any = module.serialize_file
    numbers = []
    probe = os.path.join(observer.folder, f"probe.{os.getpid()}")
    for _ in range(2):
        serialize({}, probe)
        numbers.append(os.stat(probe).st_ino)
    renames = numbers[0] != numbers[1]

    def serialize_file(tensors: Any, filename: Any, *others: Any, **more: Any) -> Any:
        def do() -> Any:
            return serialize(tensors, filename, *others, **more)

        name = observer.relative(filename, follow=True)
        if name is None:
            return do()
        if renames:
            return observer.replacing(name, do)
        found = do()
        observer.quiet("close", name)
        return found

    module.serialize_file = serialize_file  # type: ignore[attr-defined]


def _native_open(observer: Observer, path: str, do: Callable[[], Any]) -> None:
    """An `open` in C++, which creates or empties."""
    name = observer.relative(path, follow=True)
    if name is not None and os.path.lexists(observer.absolute(name)):
        observer.event("truncate", (name,), do, offset=0)
    else:
        observer.event("create", (name,), do)


_NATIVE = {"torch.serialization": _patch_torch, "safetensors": _patch_safetensors}


class _Finder:
    """Patches a module as soon as it has been imported."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        self.looking = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name not in _NATIVE or self.looking:
            return None
        self.looking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self.looking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _NATIVE[name](self.observer, module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _forked(observer: Observer) -> None:
    """A fork records, and is not counted."""
    observer.lock = threading.RLock()
    observer.count = observer.kill = -1


def install(orders: dict[str, Any]) -> Observer:
    """Start to observe this process."""
    main = orders.setdefault("main", os.getpid())
    os.environ[VARIABLE] = json.dumps(orders)  # processes that this one starts are not the first
    observer = Observer(orders["root"], orders["folder"], orders["kill"], orders["torn"], main, orders["keep"])
    observer.record("start", "", index=-1)
    _patch(observer)
    sys.meta_path.insert(0, _Finder(observer))
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=lambda: _forked(observer))
    atexit.register(lambda: observer.quiet("end", ""))
    return observer


def _chain() -> None:
    """Run the `sitecustomize` that this file stands before."""
    here = os.path.dirname(os.path.abspath(__file__))
    spec = PathFinder.find_spec("sitecustomize", [path for path in sys.path if os.path.abspath(path) != here])
    if spec is not None and spec.loader is not None:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    _chain()
    if VARIABLE in os.environ:
        install(json.loads(os.environ[VARIABLE]))
