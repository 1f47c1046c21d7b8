"""One ValueError for all faults of what is handed in, and errors of files in the project's four parts."""

import os
from collections.abc import Iterable
from os import PathLike
from typing import NoReturn

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
    raise kind(f"{os.fspath(path)}: expected {expected}, found {found}.\n    {advice}")
