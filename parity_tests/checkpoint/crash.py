"""A save is recorded call by call, power fails after each, and what the store then opens is judged.

What a disk may hold then is `numpy_ref.proof.power_failure`.
"""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest.mock import patch

import numpy_ref
from numpy_ref.checkpoint import background, store
from numpy_ref.checkpoint.container import CheckpointError, CorruptCheckpoint
from numpy_ref.checkpoint.disk import DISK, Disk
from numpy_ref.checkpoint.store import Retention
from numpy_ref.config import RunConfig
from numpy_ref.proof import power_failure
from numpy_ref.proof.equivalence import digest
from numpy_ref.proof.power_failure import DiskModel, Event, File
from parity_tests.strategies import small_data

State = tuple[tuple[str, bytes | None], ...]  # content by name, in order of the names; None for a directory


def plain(state: power_failure.State) -> State:
    """A state of the model that can be compared and kept."""
    nodes = {name: node for name, node in state.items() if node is not None}
    assert len(nodes) == len(state)
    return tuple((name, None if node.kind == "directory" else node.data) for name, node in nodes.items())


def disk_with(state: State) -> DiskModel:
    """The model of a disk that holds a state."""
    return DiskModel({name: File("directory") if content is None else File("file", content) for name, content in state})


class Recorder(Disk):
    """The real disk below one directory, recorded. Names are recorded where the system is called, whoever calls it."""

    pauses = ()

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.events: list[Event] = []
        self.opened: dict[int, str] = {}  # names of open files, which a rename changes
        self.kept: list[BinaryIO] = []  # that no id is used twice

    def record(self, call: str, path: str | os.PathLike[str], **more: Any) -> None:
        self.events.append(Event(call, self.relative(path), **more))

    def of(self, call: str, file: BinaryIO, **more: Any) -> None:
        """Record what is done to an open file; one of elsewhere is none of this disk's."""
        if id(file) in self.opened:
            self.events.append(Event(call, self.opened[id(file)], **more))

    def relative(self, path: str | os.PathLike[str]) -> str:
        """A name as the model knows it: from the root, which is the empty one."""
        directory, name = os.path.split(os.path.abspath(path))
        found = os.path.relpath(os.path.join(os.path.realpath(directory), name), self.root)
        return "" if found == "." else found

    def keep(self, file: BinaryIO, path: str) -> BinaryIO:
        self.kept.append(file)
        self.opened[id(file)] = self.relative(path)
        return file

    def open_new(self, path: str, permissions: int | None) -> BinaryIO:
        file = super().open_new(path, permissions)
        self.record("create", path)
        return self.keep(file, path)

    def write(self, file: BinaryIO, data: bytes | memoryview) -> int:
        self.of("write", file, offset=file.tell(), data=bytes(data), buffered=True)
        return super().write(file, data)

    def flush(self, file: BinaryIO) -> None:
        super().flush(file)
        self.of("flush", file)

    def fsync(self, file: BinaryIO) -> None:
        self.of("fsync", file)  # not done: nothing here depends on it

    def close(self, file: BinaryIO) -> None:
        super().close(file)
        self.of("close", file)

    def fsync_directory(self, directory: str) -> None:
        self.record("fsync directory", directory)

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything that is done to files meanwhile goes through this disk."""
        rename, unlink, mkdir = os.rename, os.unlink, os.mkdir

        def renaming(source: Any, target: Any, **others: Any) -> None:
            rename(source, target, **others)
            old, new = self.relative(source), self.relative(target)
            self.record("rename", source, target=new)
            self.opened = {number: new if name == old else name for number, name in self.opened.items()}

        def unlinking(path: Any, **others: Any) -> None:
            unlink(path, **others)
            self.record("unlink", path)
            self.opened = {number: name for number, name in self.opened.items() if name != self.relative(path)}

        def making(path: Any, *others: Any, **more: Any) -> None:
            mkdir(path, *others, **more)
            self.record("mkdir", path)

        with ExitStack() as stack:
            for name in vars(Disk):
                if not name.startswith("_") and name != "pauses":
                    stack.enter_context(patch.object(DISK, name, getattr(self, name), create=True))
            seen = {"rename": renaming, "replace": renaming, "unlink": unlinking, "remove": unlinking, "mkdir": making}
            for name, function in seen.items():
                stack.enter_context(patch.object(os, name, function))
            yield


class FsyncAfterReplace(Recorder):
    def fsync(self, file: BinaryIO) -> None:
        self.late = file

    def replace(self, source: str, target: str) -> None:
        super().replace(source, target)
        super().fsync(self.late)


def without(call: str) -> type[Recorder]:
    """A disk on which a call does nothing."""
    return type(f"Without {call}", (Recorder,), {call: lambda *arguments: None})


class StraightToTheName(Recorder):
    """Writes into the file itself, with every synchronisation that there is."""

    def resolve(self, path: str | os.PathLike[str]) -> str:
        self.target = super().resolve(path)
        return self.target

    def open_new(self, path: str, permissions: int | None) -> BinaryIO:
        return self.truncated(self.target)

    def truncated(self, path: str) -> BinaryIO:
        """A plain open for writing."""
        there = os.path.exists(path)
        file = open(path, "wb")  # noqa: SIM115
        self.record("truncate" if there else "create", path)
        return self.keep(file, path)

    def lock(self, file: BinaryIO, path: str) -> int:
        return os.dup(file.fileno())

    def replace(self, source: str, target: str) -> None:
        pass


class TemporaryElsewhere(StraightToTheName):
    """Writes a temporary on another file system, from which there is no rename: moving it is copying it."""

    def open_new(self, path: str, permissions: int | None) -> BinaryIO:
        self.elsewhere = tempfile.TemporaryDirectory()
        return Disk().open_new(os.path.join(self.elsewhere.name, "temporary"), permissions)

    def replace(self, source: str, target: str) -> None:
        copy = self.truncated(target)
        with open(os.path.join(self.elsewhere.name, "temporary"), "rb") as file:
            self.write(copy, file.read())
        self.flush(copy)
        self.fsync(copy)
        self.close(copy)
        self.elsewhere.cleanup()


class UnlinkBeforeRename(Recorder):
    """What is done where a rename refuses an existing target."""

    def replace(self, source: str, target: str) -> None:
        if os.path.exists(target):
            os.unlink(target)
        os.rename(source, target)


class Lying(Recorder):
    """No fault of a protocol: a disk that keeps something else than it was given."""

    def write(self, file: BinaryIO, data: bytes | memoryview) -> int:
        header = file.tell() == 0  # that one stays sound
        return super().write(file, data if header else bytes([data[0] ^ 1]) + bytes(data[1:]))


class DeleteBeforeSave:
    """An implementation that makes room first."""

    def __init__(self, impl: Any) -> None:
        self.impl = impl

    def __getattr__(self, name: str) -> Any:
        return getattr(self.impl, name)

    def save_checkpoint(self, path: Path, run: Any) -> None:
        for entry in store.list_checkpoints(Path(path).parent).entries:
            os.unlink(entry.path)
        self.impl.save_checkpoint(path, run)


MUTANTS: dict[str, type[Recorder]] = {
    "without flush": without("flush"),
    "without fsync": without("fsync"),
    "fsync after the replace": FsyncAfterReplace,
    "without the directory's fsync": without("fsync_directory"),
    "straight to the final name": StraightToTheName,
    "temporary on another file system": TemporaryElsewhere,
    "unlink before rename": UnlinkBeforeRename,
}
"""Write protocols with one fault each."""

DATA = small_data()
CONFIG = RunConfig(hidden=(3,), batch_size=4, evaluate_every=2)
RUN = "run"  # the directory of the run, below the root
ONE, ALL = Retention(keep_last=1), Retention(keep_last=0)

Scenario = Callable[[Any, Path], Iterator[set[str | None]]]
"""Plays below a directory; each yield says which runs (by digest; None is "none yet") may be opened until the next."""


def runs(impl: Any, last: int) -> list[Any]:
    """One run at the steps 0, 1, ..., `last`."""
    found = [impl.init_run(CONFIG, DATA)]
    while len(found) <= last:
        run = found[-1]
        copy = impl.restore(run.config, impl.snapshot(run), run_id=run.run_id, fingerprint=run.fingerprint)
        found.append(impl.train_n_steps(copy, DATA, 1))
    return found


def digests(impl: Any, *chosen: Any) -> set[str | None]:
    return {digest(impl.snapshot(run)) for run in chosen}


def first_save(impl: Any, root: Path) -> Iterator[set[str | None]]:
    """Into a directory that is not there yet."""
    (run,) = runs(impl, 0)
    yield {None, *digests(impl, run)}
    store.save_newest(impl, root / RUN, run, retention=ONE)
    yield digests(impl, run)


def save_over(impl: Any, root: Path) -> Iterator[set[str | None]]:
    """Over the only checkpoint."""
    old, new = runs(impl, 1)
    (root / RUN).mkdir()
    path = root / RUN / "checkpoint.safetensors"
    impl.save_checkpoint(path, old)
    yield digests(impl, old, new)
    impl.save_checkpoint(path, new)
    yield digests(impl, new)


def rotation(impl: Any, root: Path) -> Iterator[set[str | None]]:
    """Two more steps beside two older ones, of which one is kept."""
    states = runs(impl, 3)
    for run in states[:2]:
        store.save_newest(impl, root / RUN, run, retention=ALL)
    for old, new in pairwise(states[1:]):
        yield digests(impl, old, new)
        store.save_newest(impl, root / RUN, new, retention=ONE)
        yield digests(impl, new)


def misread(impl: Any, root: Path) -> Iterator[set[str | None]]:
    """One more step, on a disk that keeps something else; what was written cannot be read back."""
    old, new = runs(impl, 1)
    store.save_newest(impl, root / RUN, old, retention=ONE)
    yield digests(impl, old)
    with suppress(CorruptCheckpoint):
        store.save_newest(impl, root / RUN, new, retention=ONE)
    yield digests(impl, old)


def in_background(impl: Any, root: Path) -> Iterator[set[str | None]]:
    """One more step, beside training."""
    first, second = runs(impl, 1)
    store.save_newest(impl, root / RUN, first, retention=ONE)
    with background.BackgroundWriter(impl, root / RUN, retention=ONE) as writer:
        yield digests(impl, first, second)
        writer.save(second)
    yield digests(impl, second)


def fallback(impl: Any, root: Path) -> Iterator[set[str | None]]:
    """Past a damaged newest, and on from there to the same step again."""
    first, second = runs(impl, 1)
    for run in (first, second):
        store.save_newest(impl, root / RUN, run, retention=ALL)
    path = store.checkpoint_path(root / RUN, second.step)
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    yield digests(impl, first)
    run = store.resume_newest(impl, root / RUN, DATA, set_aside=True).run
    yield digests(impl, first)
    run = impl.train_n_steps(run, DATA, 1)
    yield digests(impl, first, second)
    store.save_newest(impl, root / RUN, run, retention=ONE)
    yield digests(impl, second)


SCENARIOS: dict[str, Scenario] = {
    "first save": first_save,
    "save over the only one": save_over,
    "rotation": rotation,
    "fallback": fallback,
    "in the background": in_background,
}


class Fault(NamedTuple):
    """A state of the disk from which the store opens what it must not."""

    after: str  # the last call before the power failed
    opened: str | None
    state: State


class Tried(NamedTuple):
    """How many different states of the disk were tried, and those from which a checkpoint was lost."""

    states: int
    faults: list[Fault]


class Played(NamedTuple):
    """A scenario that was recorded; a mark says which runs may be opened from a number of calls on."""

    before: State
    events: list[Event]
    marks: list[tuple[int, set[str | None]]]


def states_of(directory: Path) -> State:
    """What a directory holds."""
    found = {os.fspath(path.relative_to(directory)): path for path in directory.rglob("*")}
    return tuple((name, None if path.is_dir() else path.read_bytes()) for name, path in sorted(found.items()))


def materialise(state: State, directory: Path) -> None:
    """Make a directory hold a state and nothing else; what is as it shall be is left."""
    directory.mkdir(exist_ok=True)
    there, wanted = dict(states_of(directory)), dict(state)
    for name in sorted(there, reverse=True):  # what a directory holds before the directory
        if name not in wanted or (there[name] is None) != (wanted[name] is None):
            (directory / name).rmdir() if there.pop(name) is None else (directory / name).unlink()
    for name, content in state:
        if name not in there and content is None:
            (directory / name).mkdir()
        elif content is not None and there.get(name) != content:
            (directory / name).write_bytes(content)


def opened(impl: Any, directory: Path) -> str | None:
    """The digest of the run that the store opens, None for "none yet", or what it says."""
    try:
        run = store.resume_newest(impl, directory, DATA).run
    except CheckpointError as error:
        return f"{type(error).__name__}: {error}"
    return None if run is None else digest(impl.snapshot(run))


def opened_and_gone_on(impl: Any, directory: Path) -> str | None:
    """As `opened`; and then the run goes on there as it does after any stop, and no temporary is left."""
    answer = opened(impl, directory)
    if answer is not None:
        with (
            Recorder(directory).recording(),
            store.sole_writer(directory),
        ):  # recorded for speed: nothing is synchronised
            run = store.resume_newest(impl, directory, DATA, set_aside=True).run
            run = impl.train_n_steps(run, DATA, 1)
            store.save_newest(impl, directory, run, retention=ONE)
        assert opened(impl, directory) in digests(impl, run)
        assert not any(name.startswith(".") for name in os.listdir(directory))
    return answer


def record(scenario: Scenario, impl: Any, root: Path, disk: type[Recorder] = Recorder) -> Played:
    """Play a scenario in an empty directory and record it."""
    recorder = disk(root)
    play = scenario(impl, root)
    marks = [(0, next(play))]
    before = states_of(root)
    with recorder.recording():
        marks += [(len(recorder.events), allowed) for allowed in play]
    return Played(before, recorder.events, marks)


def attempt(
    scenario: Scenario,
    *,
    impl: Any = numpy_ref,
    acting: Any = None,
    disk: type[Recorder] = Recorder,
    ask: Callable[[Any, Path], str | None] = opened,
    most: int = 0,
) -> Tried:
    """Play a scenario and let the power fail at every moment of it.

    Args:
        scenario: what is done.
        impl: whose runs are saved and opened.
        acting: the implementation that saves; another one if it has a fault.
        disk: the disk that it is done on, right or with a fault.
        ask: what is asked of a directory after the power has failed.
        most: stop at so many faults; 0 is never.
    """
    with tempfile.TemporaryDirectory() as folder:
        root, judged = Path(folder, "played"), Path(folder, "judged")
        root.mkdir()
        played = record(scenario, acting or impl, root, disk)
        model, answers = disk_with(played.before), {}
        faults: dict[tuple[State, frozenset[str | None]], Fault] = {}
        for point in range(len(played.events) + 1):
            if point:
                model.apply(played.events[point - 1])
            call = played.events[point - 1].call if point else "nothing"
            allowed = frozenset([allowed for start, allowed in played.marks if start <= point][-1])
            for state in map(plain, model.states()):
                if state not in answers:
                    materialise(state, judged)
                    answers[state] = ask(impl, judged / RUN)
                if answers[state] not in allowed:
                    faults.setdefault((state, allowed), Fault(call, answers[state], state))
                if most and len(faults) >= most:
                    return Tried(len(answers), list(faults.values()))
        assert plain(model.visible()) == states_of(root), "the recording missed a change"
        return Tried(len(answers), list(faults.values()))


def campaign() -> dict[str, tuple[int, int]]:
    """States of the disk that were tried, and from how many of them a checkpoint was lost, by scenario."""
    tried = {f"power fails: {name}": attempt(scenario) for name, scenario in SCENARIOS.items()}
    tried["a disk keeps other bytes"] = attempt(misread, disk=Lying)
    return {name: (found.states, len(found.faults)) for name, found in tried.items()}
