"""Writers that are killed, and readers beside a writer, as real processes: `python -m parity_tests.checkpoint.kills`.

A child saves a run step by step until SIGKILL ends it: at a random moment, or before each of its calls to the disk in
turn. Then the newest checkpoint must be whole and hold the state that was being saved or, if that save had not
returned, the one before. Readers read one name while a writer replaces it: whole, of one save, and never an older one.
The children are forks of this process, for speed: call it from one that has a single thread.
"""

import argparse
import json
import mmap
import os
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import numpy_ref
from numpy_ref.checkpoint import store
from numpy_ref.checkpoint.background import BackgroundWriter
from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.checkpoint.disk import DISK
from numpy_ref.checkpoint.durable import TEMPORARY_SUFFIX
from numpy_ref.checkpoint.save_and_resume import read_checkpoint
from numpy_ref.config import RunConfig
from numpy_ref.proof.equivalence import digest
from parity_tests.strategies import small_data

CONFIG = RunConfig(hidden=(3,), batch_size=4, evaluate_every=5)
DATA = small_data(1)
STEPS = 48  # saves before a child starts anew in an empty directory
KEEP = store.Retention(keep_last=2)
WINDOW = 0.008  # seconds: of a save's order

Save = Callable[[Any, Any, Path, Any], None]  # (implementation, progress, directory, runs)


class Progress:
    """Two counts that survive a child: the save that it began last, and the last one that returned."""

    def __init__(self) -> None:
        self._cells = memoryview(mmap.mmap(-1, 16)).cast("q")

    begun = property(lambda self: self._cells[0], lambda self, n: self._cells.__setitem__(0, n))
    done = property(lambda self: self._cells[1], lambda self, n: self._cells.__setitem__(1, n))


def one_name(impl: Any, progress: Progress, folder: Path, runs: Any) -> None:
    """Replace one file."""
    for index, run in runs:
        progress.begun = index
        impl.save_checkpoint(folder / "run.safetensors", run)
        progress.done = index


def rotation(impl: Any, progress: Progress, folder: Path, runs: Any) -> None:
    """Save into a directory that keeps two."""
    with store.sole_writer(folder):
        for index, run in runs:
            progress.begun = index
            store.save_newest(impl, folder, run, retention=KEEP)
            progress.done = index


def background(impl: Any, progress: Progress, folder: Path, runs: Any) -> None:
    """Save into a directory from a thread: a save has returned when the next one is taken."""
    with store.sole_writer(folder), BackgroundWriter(impl, folder, retention=KEEP) as writer:
        for index, run in runs:
            progress.begun = index
            writer.save(run)
            progress.done = index - 1


SAVES: dict[str, Save] = {"one name": one_name, "a directory": rotation, "a directory, from a thread": background}


class Outcome(NamedTuple):
    """What came of the kills of one kind."""

    kills: int
    within: int  # of them, those that left a temporary file
    losses: list[str]


class Killing:
    """Children of one implementation that save in one way, each killed, and what they left behind judged.

    Args:
        impl: whose `save_checkpoint` writes.
        save: the way.
        folder: an empty directory.
    """

    def __init__(self, impl: Any, save: Save, folder: Path) -> None:
        self.impl, self.save, self.folder = impl, save, folder / "run"
        self.folder.mkdir()
        run = numpy_ref.init_run(CONFIG, DATA)
        self.runs, self.digests = [], []
        for _ in range(STEPS):
            run = numpy_ref.train_n_steps(run, DATA, 1)
            self.digests.append(digest(run.state))
            self.runs.append(impl.restore(run.config, run.state, run_id=run.run_id, fingerprint=run.fingerprint))
        impl.save_checkpoint(folder / "first", self.runs[0])  # what is imported late is there before the first fork
        self.progress = Progress()
        self.progress.done = -1
        self.kills = self.within = 0
        self.losses: list[str] = []

    def at_random_moments(self, count: int, rng: np.random.Generator) -> Outcome:
        """Kill so many children, each a little after it began its first save; no more once five were lost."""
        while self.kills < count and len(self.losses) < 5:
            child = self._fork(lambda: None, STEPS)
            late = time.monotonic() + 5
            while self.progress.begun == self.progress.done and time.monotonic() < late:
                time.sleep(1e-4)
            time.sleep(rng.uniform(0, WINDOW))
            os.kill(child, signal.SIGKILL)
            self._judge(child)
        return Outcome(self.kills, self.within, self.losses)

    def at_each_call(self) -> Outcome:
        """Kill before the first call to the disk of three saves, then before the second, until none is left."""
        number = 0
        while True:
            number += 1
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            self.progress.done = -1
            child = self._fork(lambda number=number: _die_at_call(number), 3)
            if not self._judge(child) or len(self.losses) >= 5:
                return Outcome(self.kills, self.within, self.losses)

    def _fork(self, prepare: Callable[[], None], count: int) -> int:
        """Start a child that goes on from what stands; in an empty directory where there is nothing more to save."""
        first = self.progress.done + 1
        if first >= STEPS:
            shutil.rmtree(self.folder)
            self.folder.mkdir()
            self.progress.done, first = -1, 0
        self.progress.begun = self.progress.done
        if child := os.fork():
            return child
        try:
            prepare()
            self.save(self.impl, self.progress, self.folder, list(enumerate(self.runs[first : first + count], first)))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)

    def _judge(self, child: int) -> bool:
        """Note what a dead child has left; whether it was killed."""
        _, status = os.waitpid(child, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        if status and not killed:
            self.losses.append(f"the writer failed with status {status}")
        begun, done = self.progress.begun, self.progress.done
        self.kills += killed
        self.within += bool(self._temporaries())
        try:
            index = self._standing()
        except CheckpointError as error:
            self.losses.append(f"while save {begun} was written: {error}")
            self.progress.done = STEPS  # start anew
            return killed
        # With a thread, two saves may be on their way: the one begun, and the one before it that had not returned.
        if not done <= index <= begun:
            self.losses.append(f"found save {index} after {done} had returned and {begun} had begun")
        with store.sole_writer(self.folder):  # its lock has died with its holder
            pass
        if left := self._temporaries():
            self.losses.append(f"temporaries of a dead writer stay: {left}")
        self.progress.done = index
        return killed

    def _temporaries(self) -> list[str]:
        return [name for name in os.listdir(self.folder) if name.endswith(TEMPORARY_SUFFIX)]

    def _standing(self) -> int:
        """Which save is the newest of those that stand, each of them read whole; -1 if there is none."""
        listing = store.list_checkpoints(self.folder)
        if listing.damaged:
            raise listing.damaged[0][1]
        newest = -1
        for entry in listing.entries:
            mark = digest(read_checkpoint(entry.path).state)
            if mark not in self.digests:
                raise CheckpointError(f"{entry.path}: a state that nobody saved")
            newest = max(newest, self.digests.index(mark))
        return newest


def _die_at_call(number: int) -> None:
    """Let this process kill itself before that call to the disk."""
    calls = 0

    def dying(call: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == number:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*arguments)

        return counted

    for name, method in vars(type(DISK)).items():
        if callable(method) and not name.startswith("_"):
            setattr(DISK, name, dying(getattr(DISK, name)))


def kill(impl: Any, save: Save, *, count: int | None, directory: Path | None = None, seed: int = 0) -> Outcome:
    """Kill `count` children at random moments, or for None one at each call.

    Args:
        impl: whose `save_checkpoint` writes.
        save: one of `SAVES`, or another.
        count: of kills.
        directory: where a temporary one is made; the system's by default.
        seed: of the moments.
    """
    with tempfile.TemporaryDirectory(dir=directory) as folder:
        killing = Killing(impl, save, Path(folder))
        return (
            killing.at_each_call() if count is None else killing.at_random_moments(count, np.random.default_rng(seed))
        )


class Reading(NamedTuple):
    """What came of readers beside a writer."""

    overwrites: int
    reads: int
    losses: list[str]


def read_beside(
    save: Callable[[Path, Any], None], *, overwrites: int = 2000, readers: int = 3, directory: Path | None = None
) -> Reading:
    """Let readers read one name while a writer replaces it.

    Args:
        save: how to write a run.
        overwrites: how often, each with the state of another step.
        readers: processes that read.
        directory: where a temporary one is made; by default in memory, where there is such a place.
    """
    shm = Path("/dev/shm")
    run = numpy_ref.init_run(RunConfig(hidden=(), batch_size=4, optimizer="sgd"), DATA)
    runs = [run]
    for _ in range(overwrites):
        runs.append(run := numpy_ref.train_n_steps(run, DATA, 1))
    digests = {run.state.step: digest(run.state) for run in runs}
    progress = Progress()
    with tempfile.TemporaryDirectory(dir=directory or (shm if os.access(shm, os.W_OK) else None)) as folder:
        path = Path(folder) / "run.safetensors"
        numpy_ref.save_checkpoint(path, runs[0])
        pipes = []
        for _ in range(readers):
            source, sink = os.pipe()
            pipes.append(source)
            if os.fork() == 0:
                try:
                    os.write(sink, json.dumps(_read_until_done(path, digests, progress)).encode())
                finally:
                    os._exit(0)
            os.close(sink)
        for run in runs[1:]:
            save(path, run)
        progress.done = 1
        answers = []
        for source in pipes:
            with open(source, "rb") as file:
                answers.append(json.loads(file.read() or b'[0, ["a reader died"]]'))
            os.wait()
    return Reading(overwrites, sum(reads for reads, _ in answers), [loss for _, losses in answers for loss in losses])


def _read_until_done(path: Path, digests: dict[int, str], progress: Progress) -> tuple[int, list[str]]:
    """Read until the writer has ended, and once more; the number of reads, and the first few that were wrong."""
    reads, step, losses = 0, 0, []
    ended = False
    while not ended and len(losses) < 5:
        ended = progress.done == 1
        reads += 1
        try:
            found = read_checkpoint(path)
        except CheckpointError as error:
            losses.append(str(error))
            continue
        if digest(found.state) != digests.get(found.step):
            losses.append(f"step {found.step} with a state that nobody saved")
        if found.step < step:
            losses.append(f"step {found.step} after step {step}")
        step = found.step
    if not losses and step != max(digests):
        losses.append(f"step {step} at the end")
    return reads, losses


def outcomes(impl: Any, count: int, directory: Path | None = None, seed: int = 0) -> Iterator[tuple[str, Outcome]]:
    """The kills of every kind, `count` of them at random moments in each way of saving."""
    for number, (name, save) in enumerate(SAVES.items()):
        at_random = kill(impl, save, count=count, directory=directory, seed=seed + number)
        yield f"writer of {name}, killed at a random moment", at_random
        if save is not background:  # its calls come in another order each time
            yield f"writer of {name}, killed before each call", kill(impl, save, count=None, directory=directory)


def campaign(count: int = 150) -> dict[str, tuple[int, int]]:
    """For each kind, how many kills or overwrites there were and what was lost."""
    found = {kind: (outcome.kills, len(outcome.losses)) for kind, outcome in outcomes(numpy_ref, count)}
    beside = read_beside(numpy_ref.save_checkpoint)
    return found | {"overwrites beside three readers": (beside.overwrites, len(beside.losses))}


def main(words: list[str] | None = None) -> int:
    """Print the table; 0 if nothing is lost."""
    parser = argparse.ArgumentParser("python -m parity_tests.checkpoint.kills", description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=150, help="kills at random moments, for each way of saving")
    parser.add_argument("--overwrites", type=int, default=2000, help="beside three readers")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--impl", default="numpy_ref", choices=("numpy_ref", "torch_port"), help="whose writers")
    parser.add_argument("--directory", type=Path, help="where to write; by default the system's temporary directory")
    options = parser.parse_args(words)
    impl = import_module(options.impl)
    lost: list[str] = []
    for kind, found in outcomes(impl, options.count, options.directory, options.seed):
        lost += found.losses
        figures = f"{found.kills:>5} kills, {found.within:>4} with a temporary left, {len(found.losses)} losses"
        sys.stdout.write(f"{kind:<65} {figures}\n")
        sys.stdout.flush()
    if options.overwrites:
        beside = read_beside(numpy_ref.save_checkpoint, overwrites=options.overwrites, directory=options.directory)
        lost += beside.losses
        figures = f"{beside.overwrites:>5} overwrites, {beside.reads} reads, {len(beside.losses)} losses"
        sys.stdout.write(f"{'one name beside three readers':<65} {figures}\n")
    sys.stdout.write("".join(f"    {loss}\n" for loss in dict.fromkeys(lost[:10])))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
