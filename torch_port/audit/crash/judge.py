"""Crashes at points of the reference run, and what came after each: the script is started again until it ends.

What a kill leaves is known from the record of the reference run: the directory as it stood before an event, or in the
middle of a write. So is what power loss may leave. Many crashes leave the same directory, in which the script need be
started only once. Where the record does not tell all that was done, the script is run and kills itself for good.
"""

import os
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import partial
from pathlib import Path
from shutil import rmtree
from typing import NamedTuple

from numpy_ref.proof.power_failure import DiskModel, State
from torch_port.audit.crash.bench import Bench, Event, Refused, digest, materialise, unlike
from torch_port.audit.crash.reference import CHANGES, Reference, chosen, published, refer, shape, written
from torch_port.audit.crash.report import LOST, NO_WAY_BACK, RESUMED, Report, Trial, causes_of, limits

JOBS = min(os.cpu_count() or 1, 4)
"""Runs at once, where nothing else is said."""
_STEP = re.compile(r"\b(?:global[_ ]?step|step|iteration|iter|epoch)\b\D{0,4}(\d+)", re.IGNORECASE)
_END = "the end of the run"


def crash(
    command: Sequence[str],
    *,
    directory: str | os.PathLike[str] = ".",
    limit: int = 24,
    timeout: float = 300.0,
    restarts: int = 3,
    jobs: int = JOBS,
    compare: Sequence[str] = (),
    may_lose: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Crash a script at the file events of its saves, and judge whether it comes back.

    Args:
        command: the words that start it, as at a shell's prompt in `directory`.
        directory: it is copied, and the script runs in copies; it must write below it.
        limit: events that are tried: those of the first save and of the last, and an even spread over the others. 0:
            all.
        timeout: seconds for one run.
        restarts: starts after a crash, before there is no way back; one that fails and changes nothing is the last.
        jobs: runs at once.
        compare: patterns of the files to compare at the end; default is all that the run wrote, except files that it
            appends to and those that two uninterrupted runs write differently. One that is of no file is refused.
        may_lose: finished saves that a crash may cost.
        progress: told what is being done.

    Returns:
        The report. A script that fails without a crash, or writes nothing that can be compared, has the verdict
        "failed"; one whose own checkpoint differs between two uninterrupted runs, "not deterministic".

    Raises:
        ValueError: there is no command, or no such directory.
        OSError: the directory cannot be copied.
    """
    source = Path(directory).resolve()
    if not command:
        raise ValueError("crash: expected a command after --, found none; for example: crash -- python train.py")
    if not source.is_dir():
        raise ValueError(f"{directory}: expected a directory to copy, found {'a file' if source.exists() else 'none'}")
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        # Every word that names the directory names the copy instead.
        bench = Bench(Path(folder).resolve(), source, tuple(command), timeout)
        try:
            reference = refer(bench, compare, jobs, progress)
        except Refused as refused:
            verdict, error = refused.args
            return Report(tuple(command), verdict, 0.0, 0, "", 0, 0, (), (), (), limits([]), error)
        points, events, saves = reference.points, reference.ran.events, len(reference.saves)
        tried = chosen(points, limit)
        trials = Judge(bench, reference, restarts, may_lose).all(tried, jobs, progress)
        return Report(
            tuple(command),
            "broken" if any(trial.judgement != RESUMED for trial in trials) else "holds",
            reference.ran.seconds,
            saves,
            reference.saved_as,
            len(points),
            len(tried),
            tuple(reference.compared),
            causes_of(trials, points, events, saves),
            tuple(trials),
            limits(events, reference.notes, explained=reference.explained),
        )


class Crash(NamedTuple):
    """One crash."""

    point: int
    event: str
    how: str  # as a trial tells it
    over: int  # saves that are not to be lost
    printed: int  # bytes on standard output before it
    key: str  # of what it leaves; two crashes with one key leave the same


class After(NamedTuple):
    """What became of a directory in which the script was started again."""

    ended: bool
    detail: str  # why not, or how the end differs
    equal: bool
    saves: int  # until its end
    output: str
    starts: int
    note: str = ""  # on the crash itself


Leave = Callable[[], tuple[Path, str]]  # makes the directory that a crash leaves; a note on the crash


class Judge:
    """Crashes the script at points of its reference run."""

    def __init__(self, bench: Bench, reference: Reference, restarts: int, may_lose: int) -> None:
        self.bench, self.reference, self.restarts, self.may_lose = bench, reference, restarts, may_lose
        # Started anew, it does what the reference run did.
        anew = After(True, "", True, len(reference.saves), reference.ran.output, 1)
        self.known = {digest(bench.disk().visible()): anew}

    def all(self, chosen: list[int], jobs: int, progress: Callable[[str], None]) -> list[Trial]:
        """Every crash at these points, and a start after the end, in order."""
        crashes: list[Crash] = []
        running: dict[Future[After], str] = {}
        started = time.monotonic()

        def collect() -> None:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                self.known[running[future]] = future.result()
                del running[future]
            done = sum(number < crashes[-1].point for number in chosen)
            left = (time.monotonic() - started) * (len(chosen) - done) / max(done, 1)
            progress(f"crashes at event {done} of {len(chosen)}" + (f", about {left:.0f} s left" if done else ""))

        with ThreadPoolExecutor(jobs) as pool:
            try:
                for crash, leave in self._crashes(chosen):
                    crashes.append(crash)
                    if crash.key not in self.known and crash.key not in running.values():
                        running[pool.submit(self._start_again, leave)] = crash.key
                    while len(running) > jobs:  # a state of the disk may be large: few of them wait
                        collect()
                while running:
                    collect()
            finally:
                if running:
                    self.bench.stop()
        finished = self.known[crashes[-1].key].saves  # by a run that is started when all is done
        finished = finished if finished < len(self.reference.saves) else 0  # else it does not resume
        return [self._trial(crash, self.known[crash.key], finished) for crash in crashes]

    def _crashes(self, chosen: list[int]) -> Iterator[tuple[Crash, Leave]]:
        """Each crash, and how what it leaves is made."""
        events, points = self.reference.ran.events, self.reference.points
        disk, done = self.bench.disk(), 0
        seen: set[tuple[int, str]] = set()
        for number, point in enumerate(points):
            for event in events[done : point.start]:
                disk.apply(event)
            if number in chosen:
                yield from self._kills(number, disk)
            for event in events[point.start : point.end]:
                disk.apply(event)
            if number in chosen:
                yield from self._losses(number, disk, seen)
            done = point.end
        saves = len(self.reference.saves)
        key = digest(self.reference.last) if self.reference.explained else _END
        end = lambda: (self.bench.fresh(self.reference.end), "")  # noqa: E731
        yield Crash(len(points), _END, "started again after it", saves, sys.maxsize, key), end

    def _kills(self, number: int, disk: DiskModel) -> Iterator[tuple[Crash, Leave]]:
        """Processes that are killed before an event, and in the middle of a write."""
        point = self.reference.points[number]
        events = self.reference.ran.events[point.start : point.end]
        first, size = events[0], written(events)
        if first.order < 0:  # of another process, which does not stop with this one
            return
        hows = [("killed before it", -1)]
        if first.call == "write" and size > 1:
            hows.append(("killed in the middle of it", size // 2))
        for how, torn in hows:
            key = f"{number} {how}"
            leave: Leave = partial(self._kill, first, torn)
            if self.reference.explained:
                state = disk.visible() if torn < 0 else disk.torn(events)
                key, leave = digest(state), partial(self._made, state)
            yield Crash(number, point.named, how, point.saved, first.printed, key), leave

    def _losses(self, number: int, disk: DiskModel, seen: set[tuple[int, str]]) -> Iterator[tuple[Crash, Leave]]:
        """Power that fails after an event; the same states of the disk are told of once."""
        point = self.reference.points[number]
        printed = self.reference.ran.events[point.start].printed
        plain, over = digest(disk.visible()), self._saved_after(number)
        for how, state in disk.lost():
            key = digest(state)
            if key != plain and (over, key) not in seen:
                seen.add((over, key))
                crash = Crash(number, point.named, f"power lost after it: {how}", over, printed, key)
                yield crash, partial(self._made, state)

    def _saved_after(self, number: int) -> int:
        """Saves that are over once an event has happened: what it belongs to is not, until the next one begins."""
        points = self.reference.points
        return points[number + 1].saved if number + 1 < len(points) else len(self.reference.saves)

    def _made(self, state: State) -> tuple[Path, str]:
        """A directory that holds a state."""
        place = self.bench.fresh()
        materialise(state, place)
        return place, ""

    def _kill(self, event: Event, torn: int) -> tuple[Path, str]:
        """A directory in which the script has killed itself."""
        place = self.bench.fresh()
        ran = self.bench.run(place, kill=event.order, torn=torn)
        return place, "" if ran.killed else f" (not reached: it ended with status {ran.status})"

    def _start_again(self, leave: Leave) -> After:
        """Start the script until it ends."""
        place, note = leave()
        starts = saves = 0
        while True:
            starts += 1
            ran = self.bench.run(place)
            saves += sum(shape(name) == self.reference.saved_as for name, *_ in published(ran.events))
            unchanged = not any(event.call in CHANGES for event in ran.events)
            failed = ran.status is not None and ran.status > 0  # by itself: all that it changed has been seen
            # What failed and changed nothing fails again.
            if ran.status == 0 or starts == self.restarts or (unchanged and (failed or starts > 1)):
                break
        if ran.status != 0:
            said = next((line for line in reversed(ran.output.splitlines()) if line.strip()), "nothing")
            why = "had not ended in time" if ran.status is None else f"ended with status {ran.status}"
            times = f", {starts} times of {starts}" if starts > 1 else ""
            rmtree(place)
            return After(False, f"{why}{times}; it said: {said}", False, saves, ran.output, starts, note)
        found = [(name, unlike(self.reference.end / name, place / name)) for name in self.reference.compared]
        different = [f"{name}: {how}" for name, how in found if how]
        rmtree(place)
        return After(True, "; ".join(different[:3]), not different, saves, ran.output, starts, note)

    def _trial(self, crash: Crash, after: After, finished: int) -> Trial:
        """Judge; `finished` are the saves of a run that finds all done."""
        number, event, how = crash.point, crash.event, crash.how + after.note
        if not after.equal:
            detail = f"ended with other files: {after.detail}" if after.ended else after.detail
            return Trial(number, event, how, NO_WAY_BACK, detail, None, None, after.starts)
        saves = len(self.reference.saves)
        # A run that finds all done may save once more all the same; so may every other one at its end.
        kept = max(0, saves - after.saves)
        lost = max(0, min(crash.over, saves - finished) - kept)
        steps = _steps_again(self.reference.ran.output, crash.printed, after.output)
        again = "" if steps is None else f", {steps} steps done again"
        if lost > self.may_lose and steps != 0:
            detail = f"{lost} of {crash.over} finished saves lost{again}; equal in the end"
            return Trial(number, event, how, LOST, detail, kept, steps, after.starts)
        return Trial(number, event, how, RESUMED, f"equal in the end{again}", kept, steps, after.starts)


def _steps_again(reference: str, printed: int, output: str) -> int | None:
    """How many steps were printed before the crash and again after it; None where no steps are printed."""
    before = reference.encode()[:printed].decode(errors="ignore")
    prefixes = Counter(prefix for prefix, _ in _steps(reference))
    if not prefixes:
        return None
    main = prefixes.most_common(1)[0][0]
    sets = [{number for prefix, number in _steps(text) if prefix == main} for text in (before, output)]
    return len(sets[0] & sets[1])


def _steps(text: str) -> Iterator[tuple[str, int]]:
    """Each line that tells of a step: what stands before the number, digits left out, and the number."""
    for line in re.split(r"[\r\n]+", text):
        if (match := _STEP.search(line)) is not None:
            yield shape(line[: match.start(1)]), int(match[1])
