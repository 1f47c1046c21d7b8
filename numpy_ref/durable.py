"""Replacing one file atomically and durably: a crash at any moment leaves the old content or the new, never a mixture.

The order is the whole of it. `flush` moves Python's buffer to the kernel, `fsync` moves the kernel's to the disk; only
then may the name change, or a crash can leave the new name on an empty file. The rename is itself a write, into the
directory, so the directory is synchronised last; before that, a crash can bring the old file back.
"""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

if os.name != "nt":
    import fcntl

__all__ = ["DISK", "TEMPORARY_SUFFIX", "Disk", "DurabilityUnknown", "ReplacementFile", "replace_file"]

TEMPORARY_SUFFIX = ".partial"
"""Every temporary is named `.NAME.PID-TOKEN.partial`: a leading dot and this suffix, which no checkpoint has."""

_NAME_BYTES = 100  # of NAME in a temporary's name, so that a long legal name does not become one that is too long
_NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY)


class DurabilityUnknown(OSError):
    """The file was replaced, but the directory could not be synchronised: a crash now may bring the old file back."""


class Disk:
    """The system calls that a replacement makes, one method each, so that a test can record them or let them fail.

    Attributes:
        pauses: Seconds to wait before each further attempt of a replace that is refused with PermissionError. Windows
            refuses while a reader has the file open; elsewhere a refusal is final, so there are none.
    """

    pauses: tuple[float, ...] = (0.01, 0.05, 0.1, 0.5, 1.0) if os.name == "nt" else ()

    def resolve(self, path: str | os.PathLike[str]) -> str:
        """The absolute path with every symbolic link followed; the last part need not exist."""
        return os.path.realpath(path)

    def mode(self, path: str) -> int | None:
        """The type and permission bits of what stands at `path`, None when nothing does."""
        try:
            return os.stat(path).st_mode
        except FileNotFoundError:
            return None

    def open_new(self, path: str, permissions: int | None) -> BinaryIO:
        """Create a file that did not exist, with exactly these permissions, or with what the umask leaves for None."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
        descriptor = os.open(path, flags, 0o666 if permissions is None else permissions)
        try:
            # Changed only if need be: a file system without permissions refuses to change them.
            if permissions is not None and stat.S_IMODE(os.fstat(descriptor).st_mode) != permissions:
                os.fchmod(descriptor, permissions)
            return os.fdopen(descriptor, "wb")
        except BaseException:
            os.close(descriptor)
            raise

    def write(self, file: BinaryIO, data: bytes) -> int:
        """Write all of `data`, perhaps only into Python's buffer."""
        return file.write(data)

    def seek(self, file: BinaryIO, offset: int, whence: int) -> int:
        """Move the position and return it."""
        return file.seek(offset, whence)

    def flush(self, file: BinaryIO) -> None:
        """Hand Python's buffer to the kernel."""
        file.flush()

    def fsync(self, file: BinaryIO) -> None:
        """Wait until the disk has what the kernel has of this file."""
        _synchronise(file.fileno())

    def close(self, file: BinaryIO) -> None:
        """Close the file; closing a closed one does nothing."""
        file.close()

    def replace(self, source: str, target: str) -> None:
        """Give `source` the name `target`, in one step, whatever stood there."""
        os.replace(source, target)

    def fsync_directory(self, directory: str) -> None:
        """Wait until the disk has the directory's names; Windows offers no such call, and nothing is done there."""
        if os.name == "nt":
            return
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            _synchronise(descriptor)
        finally:
            os.close(descriptor)

    def unlink(self, path: str) -> None:
        """Remove a name."""
        os.unlink(path)

    def sleep(self, seconds: float) -> None:
        """Wait before another attempt of a refused replace."""
        time.sleep(seconds)


DISK = Disk()
"""The real disk, which every function uses unless told otherwise."""


def _synchronise(descriptor: int) -> None:
    """Synchronise once: after a failed fsync the kernel may drop the pages, and a second one would report success."""
    # On macOS fsync stops at the drive's volatile cache; F_FULLFSYNC goes through it, where the file system has it.
    full = None if os.name == "nt" else getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
    os.fsync(descriptor)


class ReplacementFile:
    """What the body of `replace_file` writes into: a seekable binary writer whose every call goes through the disk."""

    def __init__(self, file: BinaryIO, disk: Disk) -> None:
        self._file = file
        self._disk = disk

    def write(self, data: bytes) -> int:
        """Write all of `data` at the position; returns its length."""
        return self._disk.write(self._file, data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position; returns it."""
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
        DurabilityUnknown: The file has been replaced, but the directory could not be synchronised.
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
    target = disk.resolve(path)
    directory, name = os.path.split(target)
    # Not the process id alone: two containers that share a directory may both be process 1.
    token = f"{os.getpid()}-{os.urandom(8).hex()}"
    short = os.fsencode(name)[:_NAME_BYTES].decode("utf-8", "ignore")
    temporary = os.path.join(directory, f".{short}.{token}{TEMPORARY_SUFFIX}")

    permissions = _permissions_to_keep(disk, target)
    file: BinaryIO | None = None
    try:
        try:
            file = disk.open_new(temporary, permissions)
        except OSError as error:
            raise OSError(error.errno, _advice(error, directory), target) from error
        yield ReplacementFile(file, disk)
        disk.flush(file)
        disk.fsync(file)
        disk.close(file)
        _replace(disk, temporary, target)
    except BaseException as error:
        # A name that was already taken is another's file, however unlikely: not ours to remove.
        if file is not None or not isinstance(error, FileExistsError):
            _discard(disk, file, temporary, error)
        if isinstance(error, OSError):
            error.add_note(f"{target} was not replaced: what stood there before still does.")
            if error.filename is None and error.errno is not None:
                error.filename = target
        raise
    try:
        disk.fsync_directory(directory)
    except OSError as error:
        message = (
            f"the file has been replaced and is complete, but its durability is unknown: synchronising the directory "
            f"failed ({error.strerror or error}), and a crash may bring the old file back; check the disk, save again"
        )
        raise DurabilityUnknown(error.errno, message, target) from error


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


def _discard(disk: Disk, file: BinaryIO | None, temporary: str, error: BaseException) -> None:
    """Remove the temporary without hiding the error that made it useless."""
    if file is not None:
        # Closing flushes, which may fail again for the same reason; the descriptor is released all the same.
        with suppress(OSError):
            disk.close(file)
    try:
        disk.unlink(temporary)
    except FileNotFoundError:
        pass
    except OSError as failure:
        error.add_note(
            f"The temporary file {temporary} could not be removed ({failure.strerror or failure}): remove it."
        )
