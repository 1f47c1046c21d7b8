"""Replacing a file, right and written differently."""

RIGHT = {
    "tempfile": (
        """
import tempfile
from contextlib import suppress
from os import close, fchmod, fdatasync, fsync, open as os_open, path as p, rename, stat, umask, unlink
def permissions(path):
    with suppress(FileNotFoundError):
        return stat(path).st_mode & 0o777
    mask = umask(0)
    umask(mask)
    return 0o666 & ~mask
def atomic_write(path, data):
    folder = p.dirname(path) or "."
    file = tempfile.NamedTemporaryFile(dir=folder, prefix="save-", delete=False)
    done = False
    try:
        with file:
            fchmod(file.fileno(), permissions(path))
            for start in range(0, len(data), 700):
                file.write(data[start : start + 700])
            file.flush()
            fdatasync(file.fileno())
        rename(file.name, path)
        done = True
    finally:
        if not done:
            unlink(file.name)
    handle = os_open(folder, 0)
    try:
        fsync(handle)
    finally:
        close(handle)
""",
        ("numpy",),
    ),
    "descriptors": (
        """
import os, threading, time
LOCK = threading.Lock()
def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data):]
def atomic_write(path, data):
    path = os.path.realpath(path)
    new = f"{path}.{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
    mode = os.stat(path).st_mode & 0o777 if os.path.lexists(path) else None
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
                if mode is not None:
                    os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
            os.rename(new, path)
        except BaseException as error:
            os.remove(new)
            raise error
        os.fsync(directory)
    finally:
        os.close(directory)
""",
        ("numpy",),
    ),
    "the directory synchronised before the rename, too": (
        """
import os, secrets, stat
def synchronise(place):
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
def atomic_write(path, data):
    place = os.path.dirname(os.path.abspath(path))
    new = os.path.join(place, secrets.token_hex())
    with open(new, "xb", buffering=0) as file:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest):]
            try:
                os.chmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            except FileNotFoundError:
                pass
            os.fsync(file)
            synchronise(place)
            os.replace(new, path)
        except BaseException:
            os.remove(new)
            raise
    synchronise(new and place)
""",
        ("numpy",),
    ),
}
