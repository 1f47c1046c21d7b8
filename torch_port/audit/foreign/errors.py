"""One clear error for a file: where, what was expected, what was found, what to do."""

import os
from typing import NoReturn

from numpy_ref.checkpoint.container import CheckpointError

Path = str | os.PathLike[str]

DAMAGED = "The file is damaged, or never was a checkpoint: use another copy or an older one."


def fail(kind: type[CheckpointError], path: Path, expected: str, found: str, advice: str) -> NoReturn:
    """Raise a `CheckpointError`: where, what was expected, what was found, what to do."""
    raise kind(f"{os.fspath(path)}: expected {expected}, found {found}.\n    {advice}") from None


def first_line(error: Exception) -> str:
    """An error's type and the first line of what it says, printable."""
    message = f"{error}".rpartition("WeightsUnpickler error:")[2].strip()
    text = f"{type(error).__name__}: {message}".splitlines()[0][:200]
    return text if text.isprintable() else ascii(text)
