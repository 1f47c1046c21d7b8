"""A directory of checkpoints of one run, ordered by the step in each file, never by its name or date.

What loads or saves a run takes the implementation as its first argument, as the laws do. There is no link to the latest
checkpoint, which could dangle: the newest is found by reading headers.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
    read_manifest,
    verify_container,
)
from numpy_ref.checkpoint.disk import DISK
from numpy_ref.checkpoint.durable import make_directory, remove_stale, rename_durably, stale_temporaries
from numpy_ref.checkpoint.save_and_resume import FULL, read_checkpoint
from numpy_ref.data import Dataset

try:
    import fcntl
except ImportError:  # Windows: no lock there
    fcntl = None  # type: ignore[assignment]

SUFFIX = ".safetensors"
DAMAGED = ".damaged"  # follows the name of a checkpoint that is set aside, which no longer ends with SUFFIX

T = TypeVar("T")


class Retention(NamedTuple):
    """Which checkpoints of a run stay; the newest always does."""

    keep_last: int  # the newest so many; 0: all
    keep_every: int = 0  # and those whose step is a multiple of it; 0: none for that
    keep_best: bool = False  # and the first that holds the best weights the newest knows of


class Entry(NamedTuple):
    """A file whose header is sound and says that it is a full checkpoint."""

    path: Path
    step: int
    run_id: str
    best_step: int  # that of its best weights


class Listing(NamedTuple):
    """What a directory holds: checkpoints from the oldest step to the newest, and files that could not be read."""

    entries: list[Entry]
    damaged: list[tuple[Path, CheckpointError]]


class Resumed(NamedTuple):
    """What a directory goes on from; without a run where there is no checkpoint yet."""

    run: Any
    path: Path | None  # of the checkpoint
    passed_over: list[str]  # one line for each file that could not be read


class Found(NamedTuple):
    """A file that could be a checkpoint, read to its last byte."""

    path: Path
    step: int | None  # None, as the next two are, unless the header is that of a full checkpoint
    run_id: str | None
    best_step: int | None
    size: int  # bytes
    state: str  # "whole", "damaged: REASON" or "not ours: REASON"


class Survey(NamedTuple):
    """What a directory holds, what a resume would make of it, and what need not stay."""

    entries: list[Found]  # from the oldest step to the newest, after those without a step
    stale: list[Path]  # temporaries of dead writers
    set_aside: list[Path]
    resumed: Path | None  # what a resume would go on from
    why: str  # that one, or none
    superfluous: list[Path]  # what may be deleted under the retention


def checkpoint_path(directory: str | os.PathLike[str], step: int) -> Path:
    """Where the checkpoint of a step goes.

    Example:
        >>> checkpoint_path("run", 47).name
        'step-00000047.safetensors'
    """
    return Path(directory) / f"step-{step:08d}{SUFFIX}"


def list_checkpoints(directory: str | os.PathLike[str]) -> Listing:
    """The checkpoints of a directory by their headers; one that does not exist holds none."""
    found = _each(directory, _entry)
    entries = [entry for _, entry in found if isinstance(entry, Entry)]
    damaged = [(path, error) for path, error in found if isinstance(error, CheckpointError)]
    return Listing(sorted(entries, key=lambda entry: (entry.step, entry.path.name)), damaged)


def superfluous(entries: list[Entry], retention: Retention) -> list[Entry]:
    """What a retention does not keep, in each run apart. A copy under a user's own name is never among it.

    Args:
        entries: from the oldest step to the newest, as `list_checkpoints` gives them.
        retention: what stays.

    Raises:
        ValueError: a negative count.

    Example:
        >>> run = [Entry(checkpoint_path("run", step), step, "a", best_step=20) for step in (10, 20, 30, 40)]
        >>> [entry.step for entry in superfluous(run, Retention(keep_last=1))]
        [10, 20, 30]
        >>> [entry.step for entry in superfluous(run, Retention(keep_last=1, keep_every=30, keep_best=True))]
        [20]
    """
    check_retention(retention)
    gone = []
    for run_id in sorted({entry.run_id for entry in entries}):
        own = [e for e in entries if e.run_id == run_id and e.path.name == checkpoint_path("", e.step).name]
        first_best = next((entry for entry in own if entry.best_step == own[-1].best_step), None)
        for entry in own[: -retention.keep_last]:  # none of them for 0
            every = retention.keep_every > 0 and entry.step % retention.keep_every == 0
            if not every and not (retention.keep_best and entry is first_best):
                gone.append(entry)
    return gone


def survey(directory: str | os.PathLike[str], *, retention: Retention | None = None) -> Survey:
    """Read all of every checkpoint in a directory, and change nothing.

    Args:
        directory: of a run, which may be going on; one that does not exist holds nothing.
        retention: what shall stay; everything, if None.
    """
    looks: dict[Path, tuple[Found, CheckpointError | None]] = {}

    def read(path: Path) -> None:
        if path not in looks:
            looks[path] = _look(path)
        if (error := looks[path][1]) is not None:
            raise error

    _each(directory, read)
    resumed = None
    try:
        _, resumed, passed_over = _newest(directory, read)
        why = "the newest that can be read" if resumed else "there is no checkpoint yet"
        why += f", after {len(passed_over)} that cannot" if passed_over else ""
    except CheckpointError as error:
        why = f"a resume refuses: {_reason(error, directory)}"
    found = [found for path, (found, _) in looks.items() if os.path.lexists(path)]
    whole = {file.path for file in found if file.state == "whole"}
    entries = [entry for entry in list_checkpoints(directory).entries if entry.path in whole]
    names = _names(directory)
    return Survey(
        sorted(found, key=lambda file: (-1 if file.step is None else file.step, file.path.name)),
        [Path(directory, name) for name in sorted(stale_temporaries(directory))] if names else [],
        [Path(directory, name) for name in names if _is_own(name.partition(DAMAGED)[0]) and DAMAGED in name],
        resumed,
        why,
        [entry.path for entry in superfluous(entries, retention)] if retention is not None else [],
    )


def resume_newest(impl: Any, directory: str | os.PathLike[str], data: Dataset, *, set_aside: bool = False) -> Resumed:
    """Continue from the newest checkpoint that can be read whole.

    Args:
        impl: the implementation that goes on; which one wrote the file does not matter.
        directory: of the run.
        data: the data set the run was started on.
        set_aside: rename damaged files that were passed over to NAME.damaged, for whoever holds the directory as its
            `sole_writer`. Nothing is deleted, and what is sound, or has a user's own name, stays where it is.

    Returns:
        The run and its file, or None for both where there is no checkpoint yet; and what was passed over.

    Raises:
        CheckpointError: there are checkpoints and none can be read, or they belong to several runs
            (`IncompatibleCheckpoint`), or the newest readable one is for other data.
    """
    run, found, passed_over = _newest(directory, lambda path: impl.resume_from_full_checkpoint(path, data))
    lines = []
    for path, error in passed_over:
        damaged = isinstance(error, CorruptCheckpoint) and _is_own(path.name)
        lines.append(f"{error}\n    {_set_aside(path)}" if set_aside and damaged else str(error))
    return Resumed(run, found, lines)


def prepare(directory: str | os.PathLike[str]) -> None:
    """Create the directory and write into it once: what cannot be saved is found out before training, not after.

    Raises:
        CheckpointError: it is a link to nowhere, perhaps to a disk that is not mounted: a run may be there.
        OSError: no checkpoint can be written there.
    """
    _check_link(directory)
    try:
        make_directory(directory)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(b"0")
    except OSError as error:
        message = f"expected a directory that can be written, found {error.strerror}; choose another"
        raise OSError(error.errno, message, os.fspath(directory)) from error


@contextmanager
def sole_writer(directory: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the directory for one run; the lock is the system's and ends with its holder, however that ends.

    Temporaries that killed writers have left are removed on entry.

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
    place = os.path.abspath(directory)
    _HELD[place] = [descriptor]
    try:
        remove_stale(directory)
        yield
    finally:
        for held in _HELD.pop(place):
            os.close(held)


_HELD: dict[str, list[int]] = {}  # by path: the open directories whose locks this process has, the one in use last


def _follow_lock(directory: str | os.PathLike[str]) -> None:
    """See that the directory at a path is the one that is held: it may have been moved or removed since.

    Raises:
        CheckpointError: another directory stands there.
    """
    held = _HELD.get(os.path.abspath(directory))
    if not held:
        return
    if not os.path.isdir(directory):  # removed or moved away: a new one, and ours
        make_directory(directory)
        descriptor = os.open(directory, os.O_RDONLY)
        held.append(descriptor)
        with suppress(BlockingIOError):  # then another run was quicker, and what follows finds that out
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        held.pop()
        os.close(descriptor)
    if not os.path.samestat(os.fstat(held[-1]), os.stat(directory)):
        raise CheckpointError(
            f"{directory}: expected the directory that this run holds, found that it was moved or removed and another "
            "one stands there, perhaps another run's.\n    What was saved is where it was moved to: continue it there."
        )


def save_newest(impl: Any, directory: str | os.PathLike[str], run: Any, *, retention: Retention) -> Path:
    """Save a run under its step, read it back, and only then remove what the retention does not keep.

    Args:
        impl: the run's implementation.
        directory: of the run; created if need be.
        run: left as it is.
        retention: which of this run's checkpoints stay, up to this step. No other file is ever removed.

    Returns:
        The checkpoint's file.

    Raises:
        CheckpointError: what was read back is not what was written, or under the step's name stands a sound file that
            is no checkpoint of this run (`IncompatibleCheckpoint`). Nothing has been removed.
        OSError: it could not be written, and nothing has been removed; or it could, and an older one not be removed.
        ValueError: a state or a retention that is not sound; nothing has been written.
    """
    return save_with(directory, run, lambda path: impl.save_checkpoint(path, run), retention)


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


def _each(directory: str | os.PathLike[str], read: Callable[[Path], T]) -> list[tuple[Path, T | CheckpointError]]:
    """Every file that could be a checkpoint, by name, with what reading it gives."""
    while True:
        found: list[tuple[Path, T | CheckpointError]] = []
        for name in _names(directory):
            path = Path(directory) / name
            if not name.endswith(SUFFIX) or name.startswith("."):
                continue
            try:
                found.append((path, read(path)))
            except CheckpointError as error:
                if not os.path.lexists(path):
                    break  # its writer has removed it just now, and so there is a newer one: look again
                found.append((path, error))
        else:
            return found


def _check_link(directory: str | os.PathLike[str]) -> None:
    """Refuse a link to nowhere: what is there cannot be reached, and is not "none yet"."""
    if os.path.islink(directory) and not os.path.exists(directory):
        raise CheckpointError(
            f"{directory}: expected a directory or nothing, found a link to {os.readlink(directory)!r}, which is not "
            "there.\n    Mount the disk that it leads to, or remove the link."
        )


def _names(directory: str | os.PathLike[str]) -> list[str]:
    """The names in a directory, sorted; none if it does not exist."""
    _check_link(directory)
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def _entry(path: Path) -> Entry | None:
    """What a header says; None for a file that is sound and no full checkpoint."""
    _, manifest = read_manifest(path)
    if manifest.get("kind") != FULL:
        return None
    step, run_id, scalars = (manifest.get(name) for name in ("step", "run_id", "scalars"))
    best_step = scalars.get("best/step") if isinstance(scalars, dict) else None
    if type(step) is int and type(run_id) is str and type(best_step) is int:
        return Entry(path, step, run_id, best_step)
    raise IncompleteCheckpoint(
        f"{path}: expected step, run_id and best/step of a full checkpoint, found {step!r:.80}, {run_id!r:.80} and "
        f"{best_step!r:.80}.\n    Write checkpoints with save_checkpoint."
    )


def _newest(
    directory: str | os.PathLike[str], read: Callable[[Path], T]
) -> tuple[T | None, Path | None, list[tuple[Path, CheckpointError]]]:
    """What reading the newest readable checkpoint gives, its file, and what was passed over; see `resume_newest`."""
    entries, passed_over = list_checkpoints(directory)
    runs = sorted({entry.run_id for entry in entries})
    if len(runs) > 1:
        raise IncompatibleCheckpoint(
            f"{directory}: expected the checkpoints of one run, found those of {len(runs)}: {', '.join(runs)}.\n"
            "    Move all but one run elsewhere."
        )
    for entry in reversed(entries):
        try:
            return read(entry.path), entry.path, passed_over
        except IncompatibleCheckpoint:
            raise  # sound, but for other data: an older one is no better
        except CheckpointError as error:
            if not os.path.lexists(entry.path):
                return _newest(directory, read)  # its writer has removed it just now, and so there is a newer one
            passed_over.append((entry.path, error))
    if passed_over:
        raise CheckpointError(
            f"{directory}: expected a readable checkpoint, found {len(passed_over)} and none can be read:\n    "
            + "\n    ".join(str(error) for _, error in passed_over)
            + "\n    Move them away to start anew."
        )
    return None, None, []


def _look(path: Path) -> tuple[Found, CheckpointError | None]:
    """A file as a survey shows it, and why it cannot be read, if so."""
    entry, fault = None, None
    try:
        entry = _entry(path)
        if entry is None:
            verify_container(path)
        else:
            read_checkpoint(path)
        state = "not ours: sound, but no full checkpoint" if entry is None else "whole"
    except CheckpointError as error:
        fault = error
        kind = "not ours" if isinstance(error, IncompatibleCheckpoint) else "damaged"
        state = f"{kind}: {_reason(error, path)}"
    size = 0
    with suppress(OSError):
        size = path.stat().st_size
    step, run_id, best_step = (None, None, None) if entry is None else entry[1:]
    return Found(path, step, run_id, best_step, size, state), fault


def _reason(error: CheckpointError, place: str | os.PathLike[str]) -> str:
    """An error in one line, without the place where it is told."""
    return str(error).partition("\n")[0].removeprefix(f"{os.fspath(place)}: ").rstrip(".:")


def _is_own(name: str) -> bool:
    """Whether a file's name is that of a step's checkpoint."""
    digits = name.removeprefix("step-").removesuffix(SUFFIX)
    return digits.isascii() and digits.isdigit() and name == checkpoint_path("", int(digits)).name


def _set_aside(path: Path) -> str:
    """Rename a damaged file so that discovery ignores it; says what has come of it."""
    target, n = path.with_name(path.name + DAMAGED), 1
    while True:
        try:
            rename_durably(path, target)
            return f"It is kept as {target}."
        except FileExistsError:
            n += 1
            target = path.with_name(f"{path.name}{DAMAGED}-{n}")
        except OSError as error:
            return f"It could not be set aside: {error}."


def check_retention(retention: Retention) -> None:
    """Refuse counts that mean nothing."""
    if min(retention.keep_last, retention.keep_every) < 0:
        raise ValueError(f"expected keep_last >= 0 and keep_every >= 0, found {retention}")


def save_with(directory: str | os.PathLike[str], run: Any, write: Callable[[Path], None], retention: Retention) -> Path:
    """Write a run's checkpoint, read it back chunk by chunk, and only then remove what is superfluous."""
    check_retention(retention)
    _follow_lock(directory)
    make_directory(directory)
    path = checkpoint_path(directory, run.step)
    _check_replaceable(path, run.run_id)
    write(path)
    verify_container(path)
    if retention.keep_last == 0:
        return path
    # Later steps do not count, or else this one could be superfluous: a resume has passed them over as damaged.
    entries = [e for e in list_checkpoints(directory).entries if e.run_id == run.run_id and e.step <= run.step]
    _VERIFIED.add(_content(path))
    if superfluous(entries, retention):  # a damaged one neither counts nor goes
        entries = [entry for entry in entries if _is_whole(entry.path)]
    for entry in superfluous(entries, retention):
        try:
            DISK.unlink(os.fspath(entry.path))
        except FileNotFoundError:
            pass
        except OSError as error:
            error.add_note(f"{path} has been saved; an older checkpoint could not be removed.")
            raise
    return path


_VERIFIED: set[tuple[int, ...]] = set()  # content that this process has read whole, so that it is read once


def _content(path: Path) -> tuple[int, ...]:
    """What tells a file's content from another's without reading it."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def _is_whole(path: Path) -> bool:
    """Whether every byte of a file is as it was written; one that has gone meanwhile is not."""
    try:
        if _content(path) not in _VERIFIED:
            verify_container(path)
            _VERIFIED.add(_content(path))
    except (CheckpointError, FileNotFoundError):
        return False
    return True


def _check_replaceable(path: Path, run_id: str) -> None:
    """Refuse to write over a sound file that is no checkpoint of this run."""
    try:
        _, manifest = read_manifest(path)
    except IncompatibleCheckpoint:
        raise  # sound, and another program's or another version's
    except CheckpointError:
        return  # nothing there, or damaged
    kind, found = manifest.get("kind"), manifest.get("run_id")
    if (kind, found) != (FULL, run_id):
        raise IncompatibleCheckpoint(
            f"{path}: expected a full checkpoint of run {run_id} or no file, found kind {kind!r} of run {found}.\n"
            "    Move it away, or choose another directory."
        )
