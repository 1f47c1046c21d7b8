"""Replacing one file atomically and durably: a crash at any moment leaves the old content or the new, never a mixture.

The order is the whole of it. `flush` moves Python's buffer to the kernel, `fsync` moves the kernel's to the disk; only
then may the name change, or a crash can leave the new name on an empty file. The rename is itself a write, into the
directory, so the directory is synchronised last; before that, a crash can bring the old file back.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple

from numpy_ref.checkpoint.disk import DISK, NOT_OFFERED, Disk

__all__ = [
    "TEMPORARY_SUFFIX",
    "DurabilityUnknown",
    "ReplacementFile",
    "make_directory",
    "remove_stale",
    "rename_durably",
    "replace_file",
    "stale_temporaries",
]

TEMPORARY_SUFFIX = ".partial"
"""Every temporary is named `.NAME.PID-TOKEN.partial`: a leading dot and this suffix, which no checkpoint has."""

_NAME_BYTES = 100  # of NAME in a temporary's name, so that a long legal name does not become one that is too long
_TEMPORARY = re.compile(r"\..*\.\d+-[0-9a-f]{16}" + re.escape(TEMPORARY_SUFFIX), re.DOTALL)
_WRITEBACK_BYTES = 32 << 20  # after so many the kernel is asked to begin with them: less is left for fsync to wait for
_ATTEMPTS = 10  # at a temporary that no cleaner takes; each needs one within the moment between two system calls


class DurabilityUnknown(OSError):
    """A name was changed, but the directory could not be synchronised: a crash now may undo the change."""


class ReplacementFile:
    """What the body of `replace_file` writes into: a seekable binary writer whose every call goes through the disk."""

    def __init__(self, file: BinaryIO, disk: Disk) -> None:
        self._file = file
        self._disk = disk
        self._fresh = 0  # bytes before the position that the kernel has not been asked to begin with

    def write(self, data: bytes | memoryview) -> int:
        """Write all of `data` at the position; returns its length."""
        rest = memoryview(data).cast("B")
        length = len(rest)
        while rest:
            taken = self._disk.write(self._file, rest)
            if taken <= 0:
                raise OSError(errno.EIO, "the disk took none of the bytes that were written")
            rest = rest[taken:]
        self._fresh += length
        if self._fresh >= _WRITEBACK_BYTES:
            self._disk.begin_writeback(self._file, self._file.tell() - self._fresh, self._fresh)
            self._fresh = 0
        return length

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position; returns it."""
        self._fresh = 0
        return self._disk.seek(self._file, offset, whence)

    def tell(self) -> int:
        """The position."""
        return self._file.tell()

    def flush(self) -> None:
        """Hand what was written to the kernel; `replace_file` does so itself at the end."""
        self._disk.flush(self._file)

    def seekable(self) -> bool:
        """Always true."""
        return True

    def writable(self) -> bool:
        """Always true."""
        return True


@contextmanager
def replace_file(path: str | os.PathLike[str], *, disk: Disk = DISK) -> Iterator[ReplacementFile]:
    """Write a file so that it appears under its name whole, on disk, or not at all.

    The rule, in this order: create a temporary beside the target; the body writes into it; flush; fsync the file;
    close; replace the target; fsync the directory. A failure before the replace removes the temporary and leaves the
    old file as it was. A symbolic link keeps being one, and what it points to is replaced; a hard link is parted from
    its other names. The permissions are those of the file replaced, or what a plain `open` gives a new file.

    Args:
        path: The file to create or replace. Its directory must exist.
        disk: The system calls to use.

    Yields:
        A seekable binary writer. It is closed here: leave it open.

    Raises:
        DurabilityUnknown: The file has been replaced, but the directory could not be synchronised; or the replace
            reported a failure and yet may have taken place.
        OSError: Nothing has been replaced; `filename` and the notes of the error say which file was meant.

    Source: POSIX.1-2017, `rename` and `fsync`; Apple's manual page fsync(2) for F_FULLFSYNC.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replace_file(os.path.join(folder, "note")) as file:
        ...         _ = file.write(b"whole")
        ...     os.listdir(folder)
        ['note']
    """
    target = _resolved(disk, path)
    directory, name = os.path.split(target)
    permissions = _permissions_to_keep(disk, target)
    replacing = False
    try:
        temporary = _create(disk, directory, name, permissions)
    except OSError as error:
        message = f"{_advice(error, directory)}; nothing was replaced: what stood there before still does"
        raise OSError(error.errno, message, target) from error
    try:
        yield ReplacementFile(temporary.file, disk)
        disk.flush(temporary.file)
        disk.fsync(temporary.file)
        disk.close(temporary.file)
        replacing = True
        _replace(disk, temporary.path, target)
    except BaseException as error:
        there = _discard(disk, temporary.file, temporary.path, error)
        if not isinstance(error, OSError):
            raise
        if replacing and not there:  # a network's file system may lose the answer to a rename that it has done
            message = (
                f"replacing the file reported {error.strerror or error}, and yet the temporary has gone: it is unknown "
                "whether the old file stands there or the new one, either of them whole; check the disk, save again"
            )
            raise DurabilityUnknown(error.errno, message, target) from error
        error.add_note(f"{target} was not replaced: what stood there before still does.")
        if error.filename is None and error.errno is not None:
            error.filename = target
        raise
    finally:
        if temporary.lock is not None:
            with suppress(OSError):
                disk.unlock(temporary.lock)
    _synchronise_directory(disk, directory, target, "the file has been replaced and is complete")


def rename_durably(source: str | os.PathLike[str], target: str | os.PathLike[str], *, disk: Disk = DISK) -> None:
    """Give a file another name, which must be free; a crash afterwards does not bring the old name back.

    Between the look at the free name and the rename another process could take it: hold the directory.

    Raises:
        FileExistsError: The name is taken.
        DurabilityUnknown: The file has its new name, but a directory could not be synchronised.
        OSError: It could not be renamed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with replace_file(os.path.join(folder, "a")) as file:
        ...         _ = file.write(b"whole")
        ...     rename_durably(os.path.join(folder, "a"), os.path.join(folder, "b"))
        ...     os.listdir(folder)
        ['b']
    """
    # Directories are resolved and the names are not: a symbolic link is renamed itself.
    old, new = (os.path.join(_resolved(disk, os.path.dirname(p)), os.path.basename(p)) for p in (source, target))
    disk.rename(old, new)
    for directory in dict.fromkeys((os.path.dirname(new), os.path.dirname(old))):
        _synchronise_directory(disk, directory, new, "it has its new name")


def make_directory(path: str | os.PathLike[str], *, disk: Disk = DISK) -> None:
    """Create a directory and those above it, where missing; a crash afterwards does not take them away again.

    Raises:
        DurabilityUnknown: A directory was created, but the one above it could not be synchronised.
        OSError: It could not be created.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     make_directory(os.path.join(folder, "a", "b"))
        ...     os.listdir(os.path.join(folder, "a"))
        ['b']
    """
    directory = _resolved(disk, path)
    above = os.path.dirname(directory)
    if disk.mode(directory) is not None:
        return
    make_directory(above, disk=disk)
    with suppress(FileExistsError):  # of another process, at this moment
        disk.make_directory(directory)
    _synchronise_directory(disk, above, directory, "the directory has been created")


def stale_temporaries(directory: str | os.PathLike[str], *, disk: Disk = DISK) -> list[str]:
    """The names of temporaries in a directory whose writers are dead: nobody holds their locks.

    Where the system or the file system has no locks, no writer can be told dead, and none is listed.

    Raises:
        OSError: The directory cannot be listed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, replace_file(os.path.join(folder, "note")):
        ...     len(os.listdir(folder)), stale_temporaries(folder)
        (1, [])
    """
    return _stale(disk, directory, remove=False)


def remove_stale(directory: str | os.PathLike[str], *, disk: Disk = DISK) -> list[str]:
    """Remove the temporaries of dead writers; one that cannot be removed stays. Returns the names of those removed.

    Raises:
        OSError: The directory cannot be listed.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with open(os.path.join(folder, ".note.1-0123456789abcdef.partial"), "wb") as file:
        ...         _ = file.write(b"half")
        ...     remove_stale(folder), os.listdir(folder)
        (['.note.1-0123456789abcdef.partial'], [])
    """
    return _stale(disk, directory, remove=True)


class _Temporary(NamedTuple):
    """A file that is being written; without a lock where the file system has none."""

    path: str
    file: BinaryIO
    lock: int | None


def _create(disk: Disk, directory: str, name: str, permissions: int | None, *, attempts: int = _ATTEMPTS) -> _Temporary:
    """Create a temporary and lock it; another one if a cleaner took it for a dead writer's before it was locked."""
    # Not the process id alone: two containers that share a directory may both be process 1.
    token = f"{os.getpid()}-{os.urandom(8).hex()}"
    short = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    path = os.path.join(directory, f".{short}.{token}{TEMPORARY_SUFFIX}")
    file: BinaryIO | None = None
    try:
        file = disk.open_new(path, permissions)
        return _Temporary(path, file, _lock(disk, file, path))
    except BaseException as error:
        # A name that was already taken is another's file, however unlikely: not ours to remove.
        if file is not None or not isinstance(error, FileExistsError):
            _discard(disk, file, path, error)
        if not isinstance(error, BlockingIOError) or attempts == 1:
            raise
    return _create(disk, directory, name, permissions, attempts=attempts - 1)


def _lock(disk: Disk, file: BinaryIO, path: str) -> int | None:
    """A writer's lock on its temporary, None where there are no locks: there no temporary can be called stale."""
    try:
        return disk.lock(file, path)
    except OSError as error:
        if error.errno not in NOT_OFFERED:
            raise
        return None


def _stale(disk: Disk, directory: str | os.PathLike[str], *, remove: bool) -> list[str]:
    """The names of dead writers' temporaries, in order."""
    names = sorted(name for name in disk.list(os.fspath(directory)) if _TEMPORARY.fullmatch(name))
    return [name for name in names if _is_stale(disk, os.path.join(directory, name), remove=remove)]


def _is_stale(disk: Disk, path: str, *, remove: bool) -> bool:
    """Whether a temporary's writer is dead; if so it is removed where asked for, under its lock."""
    try:
        file = disk.open(path)
    except OSError:
        return False
    try:
        lock = disk.lock(file, path)
        try:
            if remove:
                disk.unlink(path)
        finally:
            disk.unlock(lock)
        return True
    except OSError:
        return False
    finally:
        disk.close(file)


def _synchronise_directory(disk: Disk, directory: str, path: str, done: str) -> None:
    """Synchronise a directory after a change in it that has been made whatever happens here."""
    try:
        disk.fsync_directory(directory)
    except OSError as error:
        message = (
            f"{done}, but its durability is unknown: synchronising the directory failed ({error.strerror or error}), "
            "and a crash may undo it; check the disk, save again"
        )
        raise DurabilityUnknown(error.errno, message, path) from error


def _resolved(disk: Disk, path: str | os.PathLike[str]) -> str:
    """The file meant, wherever links lead."""
    try:
        return disk.resolve(path)
    except OSError as error:
        message = f"the path cannot be resolved ({error.strerror or error}); give an absolute one"
        raise OSError(error.errno, message, os.fspath(path)) from error


def _permissions_to_keep(disk: Disk, target: str) -> int | None:
    """The permissions of the file to be replaced; what is no plain file must not be replaced by one."""
    try:
        mode = disk.mode(target)
    except OSError as error:
        raise OSError(error.errno, _advice(error, os.path.dirname(target)), target) from error
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "expected a file to write, found a directory; give a file's name", target)
    if mode is not None and not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "expected a plain file or none, found a device, pipe or socket", target)
    # Windows knows only the read-only flag, which would forbid the replace itself.
    return None if mode is None or os.name == "nt" else mode & 0o777


def _advice(error: OSError, directory: str) -> str:
    """Why no temporary could be created in this directory, and what to do about it."""
    if error.errno == errno.ENOENT:
        return f"the directory {directory!r} does not exist; create it first, or give another path"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"the directory {directory!r} cannot be written ({error.strerror}); change that, or give another path"
    return f"no file can be created in {directory!r} ({error.strerror or error}); mend that, or give another path"


def _replace(disk: Disk, source: str, target: str) -> None:
    """Replace, trying again after each pause that the disk allows for a refusal."""
    for pause in disk.pauses:
        try:
            return disk.replace(source, target)
        except PermissionError:
            disk.sleep(pause)
    return disk.replace(source, target)


def _discard(disk: Disk, file: BinaryIO | None, temporary: str, error: BaseException) -> bool:
    """Remove the temporary without hiding the error that made it useless; false if it had gone already."""
    if file is not None:
        # Closing flushes, which may fail again for the same reason; the descriptor is released all the same.
        with suppress(OSError):
            disk.close(file)
    try:
        disk.unlink(temporary)
    except FileNotFoundError:
        return False
    except OSError as failure:
        error.add_note(
            f"The temporary file {temporary} could not be removed ({failure.strerror or failure}): remove it."
        )
    return True
