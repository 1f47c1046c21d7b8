"""A file of any program, opened and told by its content, as leaves by path."""

import math
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from numpy_ref.checkpoint.container import FORMAT, CheckpointError, CorruptCheckpoint
from torch_port.audit.foreign import archive, own, safetensors
from torch_port.audit.foreign.errors import DAMAGED, Path, fail
from torch_port.audit.foreign.leaf import Leaf
from torch_port.audit.foreign.refusal import allowed_by_name
from torch_port.audit.foreign.walk import leaves_of

ROOM = 64  # a tensor may show so many times the bytes of its file, as an expanded one does


class Foreign(NamedTuple):
    """What a file holds."""

    path: str
    origin: str  # which program's format
    size: int  # bytes
    leaves: dict[str, Leaf]
    metadata: dict[str, str]  # of a safetensors file


def read(path: Path, *, allow: Sequence[str] = ()) -> Foreign:
    """Read a checkpoint of any program onto the CPU, without running any code that it might hold.

    The name's suffix does not matter: the content tells the format. The records of an archive that torch has written
    are held against their CRC-32 first, which torch.load does not do. A file of the safetensors format has no checksum;
    its header must account for every byte.

    Args:
        path: a file of torch.save, old or new, or of safetensors.
        allow: full names of classes and functions that the file may use beside tensors and plain values, such as
            "argparse.Namespace". Their code runs: name only what you know. "numpy.dtype" stands for all types of NumPy.

    Returns:
        Its leaves by path, in the file's order.

    Raises:
        CorruptCheckpoint: the file is damaged, or no checkpoint.
        IncompatibleCheckpoint: it asks for classes or functions that are not allowed; they are named.
        CheckpointError: there is no such file, or it cannot be read.
        ValueError: a name in `allow` is of nothing, or of what acts on the machine.
    """
    allowed = allowed_by_name(allow)
    try:
        # Asked before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            fail(CheckpointError, path, "a file", "a directory or device", "Give the path of one file.")
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size > _memory():
                raise MemoryError
            if size == 0:
                fail(CorruptCheckpoint, path, "a checkpoint", "an empty file", DAMAGED)
            start = file.read(9)
            file.seek(0)
            if start[:4] == b"PK\3\4":
                archive.check_archive(path, file, size)
                file.seek(0)
                return _foreign(path, "torch.save", size, archive.load(path, file, allowed))
            if not safetensors.is_header(start):
                return _foreign(path, "torch.save before 1.6", size, archive.load(path, file, allowed))
            places, metadata = safetensors.header_of(path, file, size)
            if metadata.get("format") == FORMAT:
                found = _foreign(path, FORMAT, size, own.tree_of(path))
                return found._replace(leaves=own.named_as_in_torch(found.leaves))
            return _foreign(path, "safetensors", size, safetensors.tensors_of(path, file, places), metadata)
    except FileNotFoundError:
        fail(CheckpointError, path, "a checkpoint", "no such file", "Check the path, or save first.")
    except OSError as error:
        advice = "Check the permissions and the disk; the file itself may be sound."
        fail(CheckpointError, path, "a readable file", error.strerror or f"{error}", advice)
    except MemoryError:
        advice = "Read it on a machine with more memory."
        fail(CheckpointError, path, "a file that fits into memory", f"{os.stat(path).st_size:,} bytes", advice)


def _memory() -> float:
    """Bytes that the machine has."""
    with suppress(AttributeError, OSError, ValueError):  # not on every system
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return math.inf


def _foreign(path: Path, origin: str, size: int, tree: Any, metadata: dict[str, str] | None = None) -> Foreign:
    try:
        leaves = leaves_of(tree, room=ROOM * size + (1 << 24))
    except ValueError as error:
        fail(CorruptCheckpoint, path, "a checkpoint that can be shown", f"one that cannot: {error}", DAMAGED)
    return Foreign(os.fspath(path), origin, size, leaves, metadata or {})
