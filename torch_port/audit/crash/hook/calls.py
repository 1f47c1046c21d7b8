"""Where Python itself creates, writes, synchronises and renames files: `open`, and the functions of `os`."""

import builtins
import io
import os
from collections.abc import Callable
from typing import Any

from .observer import OPEN, REAL, Observer

_LARGEST_BUFFER = 8 << 20


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


def _opening(observer: Observer) -> Callable[..., Any]:
    """`open` that sees what is written."""

    def opening(
        file: Any,
        mode: str = "r",
        buffering: int = -1,
        encoding: Any = None,
        errors: Any = None,
        newline: Any = None,
        closefd: bool = True,
        opener: Any = None,
    ) -> Any:
        plain = (buffering, encoding, errors, newline, closefd, opener)
        known = isinstance(mode, str) and len(set(mode)) == len(mode) and set(mode) <= set("rwxab+t")
        if not known or not set(mode) & set("wxa+"):
            found = OPEN(file, mode, *plain)
            if known and not isinstance(file, int) and (name := observer.relative(file, follow=True)) is not None:
                observer.paths[found.fileno()] = name
            return found
        if isinstance(file, int) and observer.held(file) is None:
            return OPEN(file, mode, *plain)
        OPEN(os.devnull, mode.replace("x", "w"), buffering, encoding, errors, newline).close()  # its own complaints
        raw_mode = mode.replace("b", "").replace("t", "")
        raw: Raw | None
        if isinstance(file, int) or opener is not None:  # which goes through `os.open`
            raw = Raw(file, raw_mode, closefd, opener)
        else:
            raw = _open_raw(observer, file, raw_mode)
        if raw is None:
            return OPEN(file, mode, *plain)
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


def watch_calls(observer: Observer) -> None:
    """Put the hook before the functions of `os` and `open`."""
    Raw.observer = observer
    builtins.open = io.open = _opening(observer)

    def at(path: Any, directory: int | None = None) -> str | None:
        return observer.relative(path, directory=directory)

    def os_open(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        return observer.opened(path, flags, lambda: REAL["open"](path, flags, mode, dir_fd=dir_fd), directory=dir_fd)

    def os_close(descriptor: int) -> None:
        name = observer.paths.pop(descriptor, None)
        if name is not None and os.path.isfile(observer.absolute(name)):
            observer.quiet("close", name)
        REAL["close"](descriptor)

    def os_dup(descriptor: int) -> int:
        copy = int(REAL["dup"](descriptor))
        if descriptor in observer.paths:
            observer.paths[copy] = observer.paths[descriptor]
        return copy

    def os_write(descriptor: int, data: Any) -> Any:
        name = observer.held(descriptor)
        if name is None:
            return REAL["write"](descriptor, data)
        offset = os.lseek(descriptor, 0, os.SEEK_CUR)
        return observer.write(name, offset, data, lambda part: REAL["write"](descriptor, part))

    def os_pwrite(descriptor: int, data: Any, offset: int) -> Any:
        name = observer.held(descriptor)
        if name is None:
            return REAL["pwrite"](descriptor, data, offset)
        return observer.write(name, offset, data, lambda part: REAL["pwrite"](descriptor, part, offset))

    def os_fsync(descriptor: Any) -> None:
        number = descriptor if isinstance(descriptor, int) else descriptor.fileno()
        observer.synchronised(number, lambda: REAL["fsync"](number))

    def os_sync() -> None:
        observer.event("sync", ("",), REAL["sync"])

    def os_truncate(path: Any, length: int) -> None:
        name = observer.relative(path, follow=True)
        observer.event("truncate", (name,), lambda: REAL["truncate"](path, length), offset=length)

    def renaming(real: Callable[..., None]) -> Callable[..., None]:
        def rename(src: Any, dst: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
            names = (at(src, src_dir_fd), at(dst, dst_dir_fd))
            observer.event("rename", names, lambda: real(src, dst, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd))

        return rename

    def os_link(src: Any, dst: Any, **others: Any) -> None:
        observer.event("link", (at(src), at(dst)), lambda: REAL["link"](src, dst, **others))

    def os_symlink(src: Any, dst: Any, *others: Any, dir_fd: int | None = None) -> None:
        do = lambda: REAL["symlink"](src, dst, *others, dir_fd=dir_fd)  # noqa: E731
        observer.event("symlink", (at(dst, dir_fd),), do, target=os.fsdecode(src))

    def os_unlink(path: Any, *, dir_fd: int | None = None) -> None:
        observer.event("unlink", (at(path, dir_fd),), lambda: REAL["unlink"](path, dir_fd=dir_fd))

    def os_mkdir(path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        observer.event("mkdir", (at(path, dir_fd),), lambda: REAL["mkdir"](path, mode, dir_fd=dir_fd))

    def os_rmdir(path: Any, *, dir_fd: int | None = None) -> None:
        observer.event("rmdir", (at(path, dir_fd),), lambda: REAL["rmdir"](path, dir_fd=dir_fd))

    seen: dict[str, Callable[..., Any]] = {"open": os_open, "close": os_close, "dup": os_dup}
    seen |= {"write": os_write, "pwrite": os_pwrite, "truncate": os_truncate, "ftruncate": os_truncate}
    seen |= {"fsync": os_fsync, "fdatasync": os_fsync, "sync": os_sync}
    seen |= {"rename": renaming(REAL["rename"]), "replace": renaming(REAL["replace"])}
    seen |= {"link": os_link, "symlink": os_symlink, "unlink": os_unlink, "remove": os_unlink}
    seen |= {"mkdir": os_mkdir, "rmdir": os_rmdir}
    for name, function in seen.items():
        if name in REAL:
            setattr(os, name, function)
