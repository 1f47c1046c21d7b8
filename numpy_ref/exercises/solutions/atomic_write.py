"""Write a file so that a crash leaves the old content or the new, and a return means that the new one is on disk.

Write one function. It is called with the bytes of a checkpoint, such as those of a file that was written into an
`io.BytesIO`. It is about a POSIX system: Linux, macOS.
"""

import os
import secrets
import stat


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace the file at `path`, or create it, by way of a temporary file in the same directory.

    Args:
        path: the file, as text or as a Path; it may be a bare name. It is no symbolic link; its directory exists.
        data: what it shall hold, all of it.

    Returns:
        None, when a crash can no longer bring the old file back. There is no temporary then, and no descriptor is left
        open. A file that was there keeps its permissions; a new one has those that `open(path, "wb")` would give it.

    Raises:
        OSError: as the system raised it. Unless the name was taken already, the old file is as it was. Whatever is
            raised, KeyboardInterrupt too, no temporary is left, and no descriptor open.
    """
    target = os.path.abspath(path)
    directory, name = os.path.split(target)
    temporary = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if os.path.exists(target):
                os.fchmod(descriptor, stat.S_IMODE(os.stat(target).st_mode))
            file.write(data)
            file.flush()  # Python's buffer to the kernel
            os.fsync(descriptor)  # the kernel's to the disk
        os.replace(temporary, target)
    except BaseException:
        os.unlink(temporary)
        raise
    directory_descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(directory_descriptor)  # the new name to the disk
    finally:
        os.close(directory_descriptor)
