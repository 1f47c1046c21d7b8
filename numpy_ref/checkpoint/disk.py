"""The system calls that replacing a file makes, one method each, so that a test can record them or let them fail."""

import errno
import os
import stat
import time
from contextlib import suppress
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # Windows, a browser: no locks there
    fcntl = None  # type: ignore[assignment]

__all__ = ["DISK", "NOT_OFFERED", "Disk"]

NOT_OFFERED = (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP, errno.ENOTTY, errno.ENOLCK)
"""What a system answers that has no such call, or not for this file."""


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

    def open(self, path: str) -> BinaryIO:
        """Open a file that is there, for its lock alone."""
        flags = getattr(os, "O_NONBLOCK", 0)  # nothing is waited for, whatever it is
        try:
            descriptor = os.open(path, os.O_RDWR | flags)  # on NFS only what may write may lock
        except PermissionError:
            descriptor = os.open(path, os.O_RDONLY | flags)
        return os.fdopen(descriptor, "rb", buffering=0)

    def lock(self, file: BinaryIO, path: str) -> int:
        """Lock an open file that stands at `path`, without waiting.

        Returns:
            A descriptor that holds the lock, also after the file is closed, until `unlock` or the end of the process.

        Raises:
            BlockingIOError: Another holds the lock, or the file no longer stands there.
            OSError: There are no locks here, or another cause.
        """
        if fcntl is None:
            raise OSError(errno.ENOTSUP, "there are no such locks on this system")
        lock = os.dup(file.fileno())
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Looked up after locking: whoever held the lock before may have removed the name.
            if not _stands_at(lock, path):
                raise BlockingIOError(errno.EAGAIN, "the file no longer has this name", path)
        except BaseException:
            os.close(lock)
            raise
        return lock

    def unlock(self, lock: int) -> None:
        """Give up a lock."""
        os.close(lock)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> int:
        """Write `data`, perhaps only into Python's buffer; returns how many bytes of it were taken."""
        return file.write(data)

    def begin_writeback(self, file: BinaryIO, offset: int, length: int) -> None:
        """Let the kernel begin to move these bytes to the disk, where it takes such advice; nothing is waited for.

        What goes wrong with it is told by `fsync`, as for bytes that the kernel moves by itself.
        """
        if hasattr(os, "posix_fadvise"):
            with suppress(OSError):
                # Linux begins to write what is dirty there, and drops from its memory what is clean.
                os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_DONTNEED)

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

    def rename(self, source: str, target: str) -> None:
        """Give `source` a name that is free."""
        if os.path.lexists(target):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), target)
        os.rename(source, target)

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

    def list(self, directory: str) -> list[str]:
        """The names in a directory."""
        return os.listdir(directory)

    def make_directory(self, path: str) -> None:
        """Create a directory in one that is there."""
        os.mkdir(path)

    def sleep(self, seconds: float) -> None:
        """Wait before another attempt of a refused replace."""
        time.sleep(seconds)


DISK = Disk()
"""The real disk, which every function uses unless told otherwise."""


def _stands_at(descriptor: int, path: str) -> bool:
    """Whether a name is that of an open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _synchronise(descriptor: int) -> None:
    """Synchronise once: after a failed fsync the kernel may drop the pages, and a second one would report success."""
    # On macOS fsync stops at the drive's volatile cache; F_FULLFSYNC goes through it, where the file system has it.
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError as error:
            if error.errno not in NOT_OFFERED:
                raise
    os.fsync(descriptor)
