"""What a disk may hold after power fails, enumerated over the calls of a save, and what the store opens from there.

The model promises no more than POSIX does. Bytes that were written and not yet synchronised may be there or not, block
by block, torn within a block, zeros in their place, and the file may have its old size, its new one or any between.
A name that was changed in a directory and not yet synchronised may have any of the values it had since the directory
was synchronised last, whatever the other names have: a rename is two such changes. Power may fail after any call; in
the midst of one is no different, for what it changes is unsynchronised until it returns.
"""

import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import pairwise, product
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest.mock import patch

import numpy as np

import numpy_ref
from numpy_ref.checkpoint import background, store
from numpy_ref.checkpoint.container import CheckpointError, CorruptCheckpoint
from numpy_ref.checkpoint.disk import DISK, Disk
from numpy_ref.checkpoint.store import Retention
from numpy_ref.config import RunConfig
from numpy_ref.proof.equivalence import digest
from parity_tests.strategies import small_data

BLOCK = 512
"""Bytes that a disk writes as one, and yet may tear in the middle."""

EXHAUSTIVE = 1000  # contents of one file: below it all are tried, above it a selection

Change = tuple[int, bytes | None]  # bytes at an offset; None cuts or extends the file to that size
State = tuple[tuple[str, bytes | None], ...]  # content by name, in order of the names; None for a directory


class Event(NamedTuple):
    """One call that changes or synchronises something."""

    call: str
    name: str = ""
    target: str = ""  # of a rename
    file: int = 0
    change: Change = (0, b"")


class File:
    """What one file holds: on disk, in the kernel, and in Python's buffer."""

    def __init__(self, durable: bytes = b"") -> None:
        self.durable = durable
        self.kernel: list[Change] = []
        self.buffer: list[Change] = []

    def content(self) -> bytes:
        """What a reader finds while the power is on."""
        return changed(self.durable, self.kernel)

    def contents(self) -> list[bytes]:
        """What may be found after power has failed; what is in the buffer may have reached the kernel by itself."""
        return contents(self.durable, self.kernel + self.buffer)


def changed(content: bytes, changes: Iterable[Change]) -> bytes:
    """A content after changes."""
    for offset, data in changes:
        if data is None:
            content = content[:offset].ljust(offset, b"\0")
        else:
            content = content.ljust(offset, b"\0")
            content = content[:offset] + data + content[offset + len(data) :]
    return content


def contents(old: bytes, changes: list[Change], *, block: int = BLOCK) -> list[bytes]:
    """The contents that a file may have after power failed between the first of the changes and its fsync."""
    if not changes:
        return [old]
    new = changed(old, changes)
    length = max(len(old), len(new))
    sizes = sorted({len(old), len(new), *range(0, length, block)})
    starts = range(0, length, block)
    whole, nothing = ([x.ljust(length, b"\0")[start : start + block] for start in starts] for x in (new, old))
    pieces = []
    for after, before in zip(whole, nothing, strict=True):
        middle = len(after) // 2
        torn = (after[:middle] + before[middle:], before[:middle] + after[middle:])
        pieces.append(list(dict.fromkeys([after, before, bytes(len(after)), *torn])))
    if len(sizes) * np.prod([float(len(values)) for values in pieces]) <= EXHAUSTIVE:
        return list(dict.fromkeys(b"".join(choice)[:size] for choice in product(*pieces) for size in sizes))
    chosen = [whole, nothing, [bytes(len(values[0])) for values in pieces]]
    for i, values in enumerate(pieces):
        chosen += [[*nothing[:i], whole[i], *nothing[i + 1 :]], [*nothing[:i], *whole[i:]]]
        for value in values:  # one block alone as it must not be, and the last one that was reached
            chosen += [[*whole[:i], value, *whole[i + 1 :]], [*whole[:i], value, *nothing[i + 1 :]]]
    rng = np.random.default_rng(len(pieces))
    chosen += [[values[rng.integers(len(values))] for values in pieces] for _ in range(32)]
    found = [b"".join(choice)[:size] for choice in (whole, nothing) for size in sizes]
    found += [changed(old, changes[:i]) for i in range(len(changes))]
    found += [b"".join(choice)[: len(new)] for choice in chosen]
    return list(dict.fromkeys(found))


class Model:
    """A disk whose power may fail at any moment."""

    def __init__(self, state: State) -> None:
        self.files = {number: File(content or b"") for number, (_, content) in enumerate(state)}
        self.names: dict[str, list[int | None]] = {name: [number] for number, (name, _) in enumerate(state)}
        self.directories = {number for number, (_, content) in enumerate(state) if content is None}

    def apply(self, event: Event) -> None:
        """Do what a call does."""
        call, name = event.call, event.name
        if call in ("create", "make_directory"):
            self._name(name, event.file)
            self.files[event.file] = File()
            self.directories |= {event.file} if call == "make_directory" else set()
        elif call == "truncate":  # the file keeps its first number; this is another
            number = self.current(name)
            assert number is not None
            self.files[event.file] = self.files[number]
            self.files[number].kernel.append((0, None))
        elif call == "rename":
            self._name(event.target, self.current(name))
            self._name(name, None)
        elif call == "unlink":
            self._name(name, None)
        elif call == "fsync_directory":
            for other, values in self.names.items():
                if os.path.dirname(other) == name:
                    del values[:-1]
        else:
            self._change(self.files.setdefault(event.file, File()), call, event.change)

    def _change(self, file: File, call: str, change: Change) -> None:
        if call == "write":
            file.buffer.append(change)
        elif call in ("flush", "close"):
            file.kernel += file.buffer
            file.buffer = []
        elif call == "fsync":
            file.durable, file.kernel = file.content(), []

    def _name(self, name: str, file: int | None) -> None:
        self.names.setdefault(name, [None]).append(file)

    def current(self, name: str) -> int | None:
        """The file of a name while the power is on."""
        return self.names.get(name, [None])[-1]

    def visible(self) -> State:
        """What a reader finds while the power is on."""
        chosen = {name: values[-1] for name, values in self.names.items()}
        return self._state(chosen, {number: file.content() for number, file in self.files.items()})

    def states(self) -> Iterator[State]:
        """What the disk may hold if the power fails now."""
        possible = {number: file.contents() for number, file in self.files.items()}
        plain = {number: file.content() for number, file in self.files.items()}
        for choice in product(*(dict.fromkeys(values) for values in self.names.values())):
            chosen = dict(zip(self.names, choice, strict=True))
            yield self._state(chosen, plain)
            for number in sorted({number for number in choice if number is not None}):  # torn one at a time
                for content in possible[number]:
                    yield self._state(chosen, plain | {number: content})

    def _state(self, chosen: dict[str, int | None], content: dict[int, bytes]) -> State:
        """The names that can be reached, each with its content."""
        reached: dict[str, bytes | None] = {}
        for name, number in sorted(chosen.items()):
            above = os.path.dirname(name)
            if number is not None and (not above or (above in reached and reached[above] is None)):
                reached[name] = None if number in self.directories else content[number]
        return tuple(sorted(reached.items()))


class Recorder(Disk):
    """The real disk below one directory, recorded. Names are recorded where the system is called, whoever calls it."""

    pauses = ()

    def __init__(self, root: Path) -> None:
        self.root = os.path.realpath(root)
        self.events: list[Event] = []
        self.numbers: dict[int, int] = {}  # of open files
        self.kept: list[Any] = []  # that no id is used twice

    def record(self, call: str, name: str = "", target: str = "", file: int = 0, change: Change = (0, b"")) -> None:
        self.events.append(Event(call, name, target, file, change))

    def relative(self, path: str | os.PathLike[str]) -> str:
        """A name as the model knows it: from the root, which is the empty one."""
        directory, name = os.path.split(os.path.abspath(path))
        found = os.path.relpath(os.path.join(os.path.realpath(directory), name), self.root)
        return "" if found == "." else found

    def number(self, thing: Any) -> int:
        """A number for a file or directory, above those of the files that were there."""
        self.kept.append(thing)
        return self.numbers.setdefault(id(thing), 1000 + len(self.numbers))

    def open_new(self, path: str, permissions: int | None) -> BinaryIO:
        file = super().open_new(path, permissions)
        self.record("create", self.relative(path), file=self.number(file))
        return file

    def write(self, file: BinaryIO, data: bytes | memoryview) -> int:
        self.record("write", file=self.number(file), change=(file.tell(), bytes(data)))
        return super().write(file, data)

    def flush(self, file: BinaryIO) -> None:
        super().flush(file)
        self.record("flush", file=self.number(file))

    def fsync(self, file: BinaryIO) -> None:
        self.record("fsync", file=self.number(file))  # not done: nothing here depends on it

    def close(self, file: BinaryIO) -> None:
        super().close(file)
        self.record("close", file=self.number(file))

    def fsync_directory(self, directory: str) -> None:
        self.record("fsync_directory", self.relative(directory))

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Everything that is done to files meanwhile goes through this disk."""
        rename, unlink, mkdir = os.rename, os.unlink, os.mkdir

        def renaming(source: Any, target: Any, **others: Any) -> None:
            rename(source, target, **others)
            self.record("rename", self.relative(source), self.relative(target))

        def unlinking(path: Any, **others: Any) -> None:
            unlink(path, **others)
            self.record("unlink", self.relative(path))

        def making(path: Any, *others: Any, **more: Any) -> None:
            mkdir(path, *others, **more)
            self.record("make_directory", self.relative(path), file=self.number([path]))

        with ExitStack() as stack:
            for name in vars(Disk):
                if not name.startswith("_") and name != "pauses":
                    stack.enter_context(patch.object(DISK, name, getattr(self, name), create=True))
            for name, function in {
                "rename": renaming,
                "replace": renaming,
                "unlink": unlinking,
                "remove": unlinking,
                "mkdir": making,
            }.items():
                stack.enter_context(patch.object(os, name, function))
            yield


class WithoutFlush(Recorder):
    def flush(self, file: BinaryIO) -> None:
        pass


class WithoutFsync(Recorder):
    def fsync(self, file: BinaryIO) -> None:
        pass


class FsyncAfterReplace(Recorder):
    def fsync(self, file: BinaryIO) -> None:
        self.late = file

    def replace(self, source: str, target: str) -> None:
        super().replace(source, target)
        super().fsync(self.late)


class WithoutDirectoryFsync(Recorder):
    def fsync_directory(self, directory: str) -> None:
        pass


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
        self.record("truncate" if there else "create", self.relative(path), file=self.number(file))
        return file

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
    "without flush": WithoutFlush,
    "without fsync": WithoutFsync,
    "fsync after the replace": FsyncAfterReplace,
    "without the directory's fsync": WithoutDirectoryFsync,
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
        model, answers = Model(played.before), {}
        faults: dict[tuple[State, frozenset[str | None]], Fault] = {}
        for point in range(len(played.events) + 1):
            if point:
                model.apply(played.events[point - 1])
            call = played.events[point - 1].call if point else "nothing"
            allowed = frozenset([allowed for start, allowed in played.marks if start <= point][-1])
            for state in model.states():
                if state not in answers:
                    materialise(state, judged)
                    answers[state] = ask(impl, judged / RUN)
                if answers[state] not in allowed:
                    faults.setdefault((state, allowed), Fault(call, answers[state], state))
                if most and len(faults) >= most:
                    return Tried(len(answers), list(faults.values()))
        assert model.visible() == states_of(root), "the recording missed a change"
        return Tried(len(answers), list(faults.values()))


def campaign() -> dict[str, tuple[int, int]]:
    """States of the disk that were tried, and from how many of them a checkpoint was lost, by scenario."""
    tried = {f"power fails: {name}": attempt(scenario) for name, scenario in SCENARIOS.items()}
    tried["a disk keeps other bytes"] = attempt(misread, disk=Lying)
    return {name: (found.states, len(found.faults)) for name, found in tried.items()}
