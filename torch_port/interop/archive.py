"""The file of a general checkpoint, by convention `.tar`: written whole or not at all, and checked when it is read."""

import os
import stat
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import torch

from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
)
from numpy_ref.checkpoint.durable import replace_file
from torch_port.interop.errors import Path, fail, kind_of, refuse
from torch_port.interop.recipe import RECIPE, faults_of_state_dicts, no_dicts, storable

DAMAGED = (
    "The file is damaged, or never was a general checkpoint: use another copy or an older one. A file that "
    "save_checkpoint has written is read by resume_from_full_checkpoint."
)


def save_general(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a general checkpoint, whole or not at all; it is on disk when this returns.

    Views are cut out of their storages first, so that a slice does not take its whole storage into the file.

    Args:
        path: the file, by convention `.tar`; replaced if it is there.
        checkpoint: the recipe's items and any others: tensors, numbers, texts, None, and dicts, lists and tuples of
            them. Left as it is. A plain `torch.load` reads the file.

    Raises:
        ValueError: an item of the recipe is missing, or a value could not be loaded again; each one is named, and
            nothing is written.
        OSError: it could not be written; what stood under the name before still does.

    Example:
        >>> import tempfile
        >>> from torch_port.interop import snapshot_general
        >>> model = torch.nn.Linear(2, 1)
        >>> checkpoint = snapshot_general(model, torch.optim.SGD(model.parameters()), epoch=3, loss=0.5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_general(f"{folder}/run.tar", checkpoint)
        ...     load_general(f"{folder}/run.tar")["epoch"]
        3
    """
    where = os.fspath(path)
    if not isinstance(checkpoint, Mapping):
        refuse(where, [f"checkpoint: expected a dict with the recipe's items, found {kind_of(checkpoint)}"])
    faults = [f"{name}: missing; the recipe has {', '.join(RECIPE)}" for name in RECIPE if name not in checkpoint]
    refuse(where, faults + faults_of_state_dicts(checkpoint))
    plain = storable(where, checkpoint, copy=False)
    with replace_file(path) as file:
        try:
            torch.save(plain, file)  # type: ignore[arg-type]  # it has the methods that torch calls
        except RuntimeError as error:
            # torch's writer puts an error of its own over a full disk's.
            cause = error.__context__
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None


def load_general(path: Path) -> dict[str, Any]:
    """Read a general checkpoint onto the CPU, without running any code that the file might hold.

    torch.load itself checks nothing inside the arrays: a flipped bit there is loaded as it is. The archive that torch
    writes has a CRC-32 for each record, though, and those are checked here first. Files older than torch 1.6 are no
    archives and have none; and a CRC-32 finds accidents, not forgery. The container of `numpy_ref` is safe from more.

    Args:
        path: what `save_general` or a `torch.save` of the recipe's dict has written.

    Returns:
        The dict. An optimizer's `load_state_dict` takes tensors over without a copy: load a file again rather than the
        same dict twice.

    Raises:
        CorruptCheckpoint: the file is damaged, or not a checkpoint.
        IncompleteCheckpoint: an item of the recipe is missing.
        IncompatibleCheckpoint: it holds pickled objects other than tensors and plain values.
        CheckpointError: there is no such file, or it cannot be read.
    """
    checkpoint = _read(path)
    if not isinstance(checkpoint, dict):
        fail(CorruptCheckpoint, path, "a dict with the recipe's items", f"a {type(checkpoint).__name__}", DAMAGED)
    if missing := [name for name in RECIPE if name not in checkpoint]:
        found = ", ".join(sorted(map(str, checkpoint))[:8]) or "nothing"
        advice = "A lone state_dict is no general checkpoint: torch.load and load_state_dict take it."
        fail(IncompleteCheckpoint, path, f"{', '.join(missing)} among the items", found, advice)
    for name in no_dicts(checkpoint):
        fail(CorruptCheckpoint, path, f"a dict as {name}", f"a {kind_of(checkpoint[name])}", DAMAGED)
    return checkpoint


def _read(path: Path) -> Any:
    """What a file holds, whatever it is."""
    try:
        # Asked before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            fail(CheckpointError, path, "a file", "a directory or device", "Give the path of one file.")
        with open(path, "rb") as file:
            return _verified(path, file)
    except FileNotFoundError:
        fail(CheckpointError, path, "a checkpoint", "no such file", "Check the path, or save first.")
    except OSError as error:
        advice = "Check the permissions and the disk; the file itself may be sound."
        fail(CheckpointError, path, "a readable file", error.strerror or f"{error}", advice)


def _verified(path: Path, file: BinaryIO) -> Any:
    """What torch.load makes of a file whose records have been checked; any other error is a `CheckpointError`."""
    try:
        damaged = damaged_record(file)
        file.seek(0)
        if damaged is None:
            return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        if foreign := _foreign_objects(path):
            advice = "Loading them could run code: save tensors and plain values, or convert it where you trust it."
            fail(IncompatibleCheckpoint, path, "tensors and plain values", f"objects of {foreign}", advice)
        found = f"{type(error).__name__}: {error}".splitlines()[0]
        fail(CorruptCheckpoint, path, "a file that torch.load can read", found[:200], DAMAGED)
    fail(CorruptCheckpoint, path, "records that agree with their CRC-32", f"another in {damaged!r}", DAMAGED)


def damaged_record(file: BinaryIO) -> str | None:
    """The first record of an archive that disagrees with its CRC-32; None if all agree, or it is no archive."""
    if file.read(4) != b"PK\3\4":  # how torch, too, tells an archive from its older format
        return None
    with zipfile.ZipFile(file) as archive:
        return archive.testzip()


def _foreign_objects(path: Path) -> str:
    """The classes and functions in a file that `torch.load` would not accept."""
    with suppress(Exception):  # of a damaged file nothing can be said
        return ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
    return ""
