"""A directory of checkpoints of one run, ordered by the step in each file, never by its name or date.

What loads or saves a run takes the implementation as its first argument, as the laws do.
"""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from numpy_ref.checkpoint import read_checkpoint
from numpy_ref.container import CheckpointError, IncompatibleCheckpoint, read_manifest
from numpy_ref.data import Dataset

try:
    import fcntl
except ImportError:  # Windows: no lock there
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".safetensors"


class Entry(NamedTuple):
    """A file whose header is sound and says that it is a full checkpoint."""

    path: Path
    step: int
    run_id: str


class Listing(NamedTuple):
    """What a directory holds: checkpoints from the oldest step to the newest, and files that could not be read."""

    entries: list[Entry]
    damaged: list[tuple[Path, CheckpointError]]


class Resumed(NamedTuple):
    """What a directory goes on from; without a run where there is no checkpoint yet."""

    run: Any
    path: Path | None  # of the checkpoint
    passed_over: list[str]  # one line for each newer file that could not be read


def checkpoint_path(directory: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint of a step goes.

    Example:
        >>> checkpoint_path("run", 47).name
        'step-00000047.safetensors'
    """
    return Path(directory) / f"step-{step:08d}{SUFFIX}"


def list_checkpoints(directory: str | os.PathLike[str]) -> Listing:
    """The checkpoints of a directory by their headers; one that does not exist holds none."""
    entries, damaged = [], []
    try:
        names = os.listdir(directory)
    except FileNotFoundError:
        names = []
    for name in sorted(names):
        path = Path(directory) / name
        if not name.endswith(SUFFIX) or name.startswith("."):
            continue
        try:
            _, manifest = read_manifest(path)
        except CheckpointError as error:
            damaged.append((path, error))
            continue
        step, run_id = manifest.get("step"), manifest.get("run_id")
        if manifest.get("kind") == "full" and type(step) is int and type(run_id) is str:
            entries.append(Entry(path, step, run_id))
    return Listing(sorted(entries, key=lambda entry: (entry.step, entry.path.name)), damaged)


def resume_newest(impl: Any, directory: str | os.PathLike[str], data: Dataset) -> Resumed:
    """Continue from the newest checkpoint that can be read whole.

    Args:
        impl: the implementation that goes on; which one wrote the file does not matter.
        directory: of the run.
        data: the data set the run was started on.

    Returns:
        The run and its file, or None for both where there is no checkpoint yet; and what was passed over.

    Raises:
        CheckpointError: there are checkpoints and none can be read, or they belong to several runs
            (`IncompatibleCheckpoint`), or the newest readable one is for other data.
    """
    entries, damaged = list_checkpoints(directory)
    faults = [str(error) for _, error in damaged]
    runs = sorted({entry.run_id for entry in entries})
    if len(runs) > 1:
        raise IncompatibleCheckpoint(
            f"{directory}: expected the checkpoints of one run, found those of {len(runs)}: {', '.join(runs)}.\n"
            "    Move all but one run elsewhere."
        )
    for entry in reversed(entries):
        try:
            return Resumed(impl.resume_from_full_checkpoint(entry.path, data), entry.path, faults)
        except IncompatibleCheckpoint:
            raise  # sound, but for other data: an older one is no better
        except CheckpointError as error:
            faults.append(str(error))
    if faults:
        raise CheckpointError(
            f"{directory}: expected a readable checkpoint, found {len(faults)} and none can be read:\n    "
            + "\n    ".join(faults)
            + "\n    Move them away to start anew."
        )
    return Resumed(None, None, [])


def prepare(directory: str | os.PathLike[str]) -> None:
    """Create the directory and write into it once: what cannot be saved is found out before training, not after.

    Raises:
        OSError: no checkpoint can be written there.
    """
    try:
        Path(directory).mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"0")
    except OSError as error:
        message = f"expected a directory that can be written, found {error.strerror}; choose another"
        raise OSError(error.errno, message, os.fspath(directory)) from error


@contextmanager
def sole_writer(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the directory for one run; the lock is the system's and ends with its holder, however that ends.

    Raises:
        CheckpointError: another process holds it.
    """
    if fcntl is None:
        yield
        return
    descriptor = os.open(directory, os.O_RDONLY)  # the directory itself: no file of ours is left behind
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise CheckpointError(
            f"{directory}: expected to be the only run that writes here, found another process at it.\n"
            "    Wait for it, stop it, or choose another directory."
        ) from error
    try:
        yield
    finally:
        os.close(descriptor)


def save_newest(impl: Any, directory: str | os.PathLike[str], run: Any, *, keep: int) -> Path:
    """Save a run under its step, read it back, and only then remove its oldest checkpoints beyond `keep`.

    Args:
        impl: the run's implementation.
        directory: of the run; created if need be.
        run: left as it is.
        keep: full checkpoints of this run to keep, this one included; 0 keeps all. Other files are never removed.
    """
    Path(directory).mkdir(parents=True, exist_ok=True)
    path = checkpoint_path(directory, run.step)
    _check_replaceable(path, run)
    impl.save_checkpoint(path, run)
    read_checkpoint(path)
    if keep == 0:
        return path
    own = [
        entry
        for entry in list_checkpoints(directory).entries
        if entry.run_id == run.run_id and entry.path == checkpoint_path(directory, entry.step)  # no copy of a user's
    ]
    for entry in own[:-keep]:
        if entry.path != path:
            entry.path.unlink(missing_ok=True)
    return path


def _check_replaceable(path: Path, run: Any) -> None:
    """Refuse to write over a sound file that is no checkpoint of this run."""
    try:
        _, manifest = read_manifest(path)
    except IncompatibleCheckpoint:
        raise  # sound, and another program's or another version's
    except CheckpointError:
        return  # nothing there, or damaged
    kind, run_id = manifest.get("kind"), manifest.get("run_id")
    if (kind, run_id) != ("full", run.run_id):
        raise IncompatibleCheckpoint(
            f"{path}: expected a full checkpoint of run {run.run_id} or no file, found kind {kind!r} of run {run_id}.\n"
            "    Move it away, or choose another directory."
        )


def check_unused(directory: str | os.PathLike[str]) -> None:
    """Refuse a directory that already holds checkpoints, readable or not.

    Raises:
        IncompatibleCheckpoint: it does.
    """
    entries, damaged = list_checkpoints(directory)
    if entries or damaged:
        found = [f"{entry.path.name} of run {entry.run_id}" for entry in entries[-1:]]
        found += [f"{path.name}, which cannot be read" for path, _ in damaged[:1]]
        raise IncompatibleCheckpoint(
            f"{directory}: expected no checkpoint, found {' and '.join(found)}.\n"
            "    Choose another directory, or --resume auto to continue that run."
        )
