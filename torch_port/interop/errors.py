"""One ValueError for all faults of what is handed in; and files of others, whose every error has four parts."""

import os
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from os import PathLike
from typing import BinaryIO, NoReturn

from numpy_ref.checkpoint.container import CheckpointError

Path = str | PathLike[str]


def kind_of(value: object) -> str:
    """Its type, by name."""
    return type(value).__name__


def refuse(where: str, faults: Iterable[str]) -> None:
    """Raise one ValueError for all faults, if there are any."""
    if faults := sorted(faults):
        raise ValueError(f"{where}: nothing was done; mend each of these:\n    " + "\n    ".join(faults))


def fail(kind: type[CheckpointError], path: Path, expected: str, found: str, advice: str) -> NoReturn:
    """Raise a `CheckpointError`: where, what was expected, what was found, what to do."""
    raise kind(f"{os.fspath(path)}: expected {expected}, found {found}.\n    {advice}") from None


def first_line(error: Exception) -> str:
    """An error's type and the first line of what it says, printable."""
    message = f"{error}".rpartition("WeightsUnpickler error:")[2].strip()
    text = f"{type(error).__name__}: {message}".splitlines()[0][:200]
    return text if text.isprintable() else ascii(text)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """A file to read; what the system says against it is a `CheckpointError`."""
    try:
        # Asked before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            fail(CheckpointError, path, "a file", "a directory or device", "Give the path of one file.")
        with open(path, "rb") as file:
            yield file
    except FileNotFoundError:
        fail(CheckpointError, path, "a checkpoint", "no such file", "Check the path, or save first.")
    except OSError as error:
        advice = "Check the permissions and the disk; the file itself may be sound."
        fail(CheckpointError, path, "a readable file", error.strerror or f"{error}", advice)
