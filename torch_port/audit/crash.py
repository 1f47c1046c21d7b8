"""Whether a training script, unmodified, comes back after a crash at any file event of its saves.

    python -m torch_port crash -- python train.py --steps 40

The script runs to its end twice, once watched (see `events`) and once not: the files at its end are what every other
run must end with. Then, for each event of its saves, it is started in a fresh copy of the directory and kills itself
there, before the event and in the middle of a write; and directories are made that power loss could have left after
the event (see `disk`). In each it is started again until it ends. Three judgements: it *resumed* from a whole
checkpoint and ended equal; *work lost*: equal in the end, and yet it did again what a finished save held; *no way
back*: it fails each time, or ends with something else.
"""

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from numpy_ref.console import say_json, warn
from numpy_ref.container import CheckpointError
from torch_port.audit import events as hook
from torch_port.audit.crash_report import (
    CHANGES,
    LOST,
    NO_WAY_BACK,
    RESUMED,
    Point,
    Report,
    Trial,
    as_json,
    causes_of,
    limits,
    print_report,
    shape,
)
from torch_port.audit.disk import Disk, Event, State

_STEP = re.compile(r"\b(?:global[_ ]?step|step|iteration|iter|epoch)\b\D{0,4}(\d+)", re.IGNORECASE)
_FOREIGN = (".pt", ".pth", ".tar", ".bin", ".ckpt", ".safetensors")
_SYNCHRONISES = ("fsync", "fsync directory", "sync")


class Ran(NamedTuple):
    """One run of the script."""

    status: int | None  # None: it was still running when its time was over
    output: str
    events: list[Event]
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether it killed itself."""
        return self.status == -signal.SIGKILL


class _Refused(Exception):
    """The script cannot be judged: the verdict, and why."""


def crash(
    command: Sequence[str],
    *,
    directory: str | os.PathLike[str] = ".",
    limit: int = 24,
    timeout: float = 300.0,
    restarts: int = 3,
    jobs: int = 2,
    compare: Sequence[str] = (),
    may_lose: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Crash a script at the file events of its saves, and judge whether it comes back.

    Args:
        command: the words that start it, as at a shell's prompt in `directory`.
        directory: it is copied, and the script runs in copies; it must write below it.
        limit: events that are tried; those of the second save first, then the last and the first. 0: all.
        timeout: seconds for one run.
        restarts: starts after a crash, before there is no way back.
        jobs: runs at once.
        compare: patterns of the files to compare at the end; default is all that the run wrote, except files that it
            appends to and those that two uninterrupted runs write differently.
        may_lose: finished saves that a crash may cost.
        progress: told what is being done.

    Returns:
        The report. A script that fails without a crash, or writes nothing, has the verdict "failed"; one whose own
        checkpoint differs between two uninterrupted runs, "not deterministic".

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
        bench = _Bench(Path(folder).resolve(), source, tuple(command), timeout)
        try:
            plan = _reference(bench, compare, progress)
        except _Refused as refused:
            verdict, error = refused.args
            return Report(tuple(command), verdict, 0.0, 0, "", 0, 0, (), (), (), limits([]), error)
        chosen = _chosen(plan.points, limit)
        trials = _Judge(bench, plan, restarts, may_lose).all(chosen, jobs, progress)
        return Report(
            tuple(command),
            "broken" if any(trial.judgement != RESUMED for trial in trials) else "holds",
            plan.reference.seconds,
            len(plan.saves),
            plan.saved_as,
            len(plan.points),
            len(chosen),
            tuple(plan.compared),
            causes_of(trials, plan.points, plan.reference.events, len(plan.saves)),
            tuple(trials),
            limits(plan.reference.events, plan.notes),
        )


class _Bench:
    """Runs the script in copies of its directory."""

    def __init__(self, folder: Path, source: Path, command: tuple[str, ...], timeout: float) -> None:
        self.folder, self.source, self.command, self.timeout = folder, source, command, timeout
        self.running: set[int] = set()
        self.stopped = False
        self.pristine = folder / "pristine"
        self.hook = folder / "hook"
        self.hook.mkdir()
        shutil.copyfile(str(hook.__file__), self.hook / "sitecustomize.py")
        _copy(source, self.pristine)
        for name, kind in names_in(self.pristine):  # a link out of the directory leads where it did
            link = self.pristine / name
            if kind == "link" and not (source / name).resolve().is_relative_to(source):
                link.unlink()
                link.symlink_to((source / name).resolve())

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        self.stopped = True
        for number in list(self.running):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)

    def fresh(self, name: str) -> Path:
        """A copy of the directory as it was."""
        copy = self.folder / name
        _copy(self.pristine, copy)
        return copy

    def run(self, place: Path, *, kill: int = -1, torn: int = -1, watched: bool = True, keep: bool = False) -> Ran:
        """Run the script to its end, or until its time is over.

        Args:
            place: where.
            kill: the index of the event that it kills itself at.
            torn: in the middle of the write, after so many bytes; -1: before the event.
            watched: whether the hook is there.
            keep: whether the record holds the bytes too.
        """
        if self.stopped:
            raise _Refused("failed", "stopped")
        log = Path(tempfile.mkdtemp(prefix="log-", dir=self.folder))
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        if watched:
            path = [os.fspath(self.hook), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(path)
            orders = {"root": os.fspath(place), "folder": os.fspath(log), "kill": kill, "torn": torn, "keep": keep}
            environment[hook.VARIABLE] = json.dumps(orders)
        command = [self._moved(word, place) for word in self.command]
        started = time.perf_counter()
        with open(log / "output", "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status: int | None = None
            self.running.add(process.pid)
            try:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(self.timeout)
            finally:  # and whatever it has started
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.running.discard(process.pid)
        seconds = time.perf_counter() - started
        found = Ran(status, (log / "output").read_text(errors="replace"), _read(log), seconds)
        shutil.rmtree(log)
        return found

    def _moved(self, word: str, place: Path) -> str:
        """A word of the command, in the copy."""
        if word == os.fspath(self.source) or word.startswith(os.fspath(self.source) + os.sep):
            return os.fspath(place) + word[len(os.fspath(self.source)) :]
        return word


def _copy(source: Path, target: Path) -> None:
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*hook.IGNORED))


def _read(log: Path) -> list[Event]:
    """The record of a run."""
    found = []
    path = log / "log"
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        data = b""
        if "size" in entry:
            with open(log / f"bytes.{entry['pid']}", "rb") as file:
                file.seek(entry["at"])
                data = file.read(entry["size"])
        found.append(
            Event(
                entry["call"],
                entry["name"],
                entry.get("target", ""),
                entry.get("offset", 0),
                data,
                entry.get("whole", False),
                entry.get("native", False),
                entry["index"],
                entry["out"],
            )
        )
    return found


def names_in(directory: Path) -> list[tuple[str, str]]:
    """The name and kind of everything below a directory."""
    found = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if not set(relative.parts) & set(hook.IGNORED):
            kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
            found.append((os.fspath(relative), kind))
    return found


# What the script does when nothing happens to it.


class _Plan(NamedTuple):
    """The reference run."""

    reference: Ran
    end: Path  # the directory as it left it
    points: list[Point]
    saves: list[tuple[int, int]]  # of the main file: where in the record it was opened, and published
    saved_as: str
    compared: list[str]
    notes: list[str]


def _reference(bench: _Bench, compare: Sequence[str], progress: Callable[[str], None]) -> _Plan:
    """Run the script twice without a crash."""
    progress("reference run")
    end = bench.fresh("reference")
    reference = bench.run(end, keep=True)
    _check_ended(reference, bench)
    if not reference.events:
        raise _Refused(
            "failed",
            "the hook was not loaded: the command must start Python, without -I, -E or -S, on this machine",
        )
    saves, saved_as = _saves(reference.events, {name for name, _ in names_in(end)})
    if not saves:
        raise _Refused("failed", "the script wrote no file below the directory that was copied; see --dir")
    progress("second reference run, not watched")
    other = bench.fresh("control")
    _check_ended(bench.run(other, watched=False), bench)
    disk = Disk(bench.pristine, names_in(bench.pristine))
    for event in reference.events:
        disk.apply(event)
    notes = _missed(disk, end)
    compared, unequal = _to_compare(reference.events, end, other, compare)
    if any(shape(name) == saved_as for name, _ in unequal) or (unequal and not compared):
        name, how = next(item for item in unequal if shape(item[0]) == saved_as or not compared)
        raise _Refused(
            "not deterministic",
            f"two uninterrupted runs end differently: {name}: {how}; no resumed run can be judged until they agree",
        )
    notes += [f"not compared, for two uninterrupted runs write it differently: {name}" for name, _ in unequal]
    return _Plan(reference, end, _points(reference.events, saves), saves, saved_as, compared, notes)


def _check_ended(ran: Ran, bench: _Bench) -> None:
    if ran.status is None:
        raise _Refused("failed", f"the script had not ended after {bench.timeout:g} s, without a crash; see --timeout")
    if ran.status != 0:
        raise _Refused("failed", f"the script ended with status {ran.status}, without a crash:\n{_tail(ran.output)}")


def _tail(output: str) -> str:
    return "\n".join(output.rstrip().splitlines()[-12:])


def _published(events: list[Event]) -> Iterator[tuple[str, int, int, int]]:
    """Each time that a file has got its content: its name, where it was opened, where it was done, bytes."""
    opened: dict[str, tuple[int, int]] = {}  # where, and bytes since
    for i, event in enumerate(events):
        name = event.name
        if event.call in ("create", "truncate") and (event.call == "create" or event.offset == 0):
            opened[name] = (i, 0)
        elif event.call == "write":
            start, size = opened.get(name, (i, 0))
            opened[name] = (start, size + len(event.data))
        elif event.call == "rename" and name in opened:
            start, size = opened.pop(name)
            yield event.target, start, i, size
        elif event.call == "close" and name in opened:
            renamed = next((e for e in events[i + 1 :] if name in (e.name, e.target) and e.call in CHANGES), None)
            if renamed is None or renamed.call != "rename" or renamed.name != name:
                start, size = opened.pop(name)
                yield name, start, i, size


def _saves(events: list[Event], present: set[str]) -> tuple[list[tuple[int, int]], str]:
    """The saves: each opening and publication of the kind of file that holds the most bytes, and stays."""
    appended = {event.name for event in events if event.call == "append"}
    sizes: Counter[str] = Counter()
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, end, size in _published(events):
        if name not in appended:
            sizes[shape(name)] += size
            found.setdefault(shape(name), []).append((start, end))
    stay = {shape(name) for name in present}
    kinds = [kind for kind in found if kind in stay] or list(found)
    if not kinds:
        return [], ""
    main = max(kinds, key=lambda kind: sizes[kind])
    return found[main], main


def _points(events: list[Event], saves: list[tuple[int, int]]) -> list[Point]:
    """What a crash can come before or after."""
    groups: list[tuple[int, int]] = []
    for i, event in enumerate(events):
        if event.call not in CHANGES + _SYNCHRONISES:
            continue
        last = events[groups[-1][1] - 1] if groups else None
        if (
            last is not None
            and groups[-1][1] == i
            and (event.call, event.name, event.order) == (last.call, last.name, last.order)
            and event.call == "write"
        ):
            groups[-1] = (groups[-1][0], i + 1)
        else:
            groups.append((i, i + 1))
    points = []
    for start, end in groups:
        number = sum(opened <= start for opened, _ in saves)
        begun = saves[number - 1][0] if number else 0
        over = sum(done < begun for _, done in saves)
        event = events[start]
        size = sum(len(e.data) for e in events[start:end])
        text = f"{event} ({size} bytes)" if event.call == "write" else str(event)
        points.append(Point(start, end, number, over, sum(done < start for _, done in saves), text))
    return points


def _chosen(points: list[Point], limit: int) -> list[int]:
    """The points to try: all of a save together, for what goes wrong is where two events meet."""
    if not limit or len(points) <= limit:
        return list(range(len(points)))
    last = max(point.save for point in points)
    ranked: list[int] = []
    for save in dict.fromkeys([min(2, last), last, *range(last + 1)]):  # with what follows the one before it
        ranked += [i for i, point in enumerate(points) if point.save == save or save == point.published + 1]
    return sorted(list(dict.fromkeys(ranked))[:limit])


def _missed(disk: Disk, end: Path) -> list[str]:
    """What the record does not explain."""
    seen, there = disk.visible(), dict(names_in(end))
    notes = [f"{name} changed, and no event says so" for name in sorted(seen.keys() ^ there.keys())]
    for name in sorted(seen.keys() & there.keys()):
        node = seen[name]
        if node is not None and node.kind == "file" and (end / name).read_bytes() != node.data:
            notes.append(f"{name} holds other bytes than the events wrote")
    return notes


def _to_compare(
    events: list[Event], end: Path, other: Path, patterns: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """The files to compare at the end, and those that cannot be, each with how two runs differ in it."""
    touched = {name for event in events if event.call in CHANGES for name in (event.name, event.target)}
    appended = {event.name for event in events if event.call == "append"}
    compared, unequal = [], []
    for name, kind in names_in(end):
        wanted = any(Path(name).match(pattern) for pattern in patterns) if patterns else name not in appended
        if kind == "directory" or name not in touched or not wanted:
            continue
        how = unlike(end / name, other / name)
        if how:
            unequal.append((name, how))
        else:
            compared.append(name)
    return compared, unequal


def unlike(expected: Path, found: Path) -> str:
    """How two files differ, leaf by leaf where both can be read so; nothing where they do not."""
    if expected.is_symlink() or found.is_symlink():
        links = [os.readlink(path) if path.is_symlink() else "no link" for path in (expected, found)]
        return "" if links[0] == links[1] else f"expected a link to {links[0]}, found {links[1]}"
    if not found.is_file():
        return "missing"
    if expected.read_bytes() == found.read_bytes():
        return ""
    if expected.suffix not in _FOREIGN:
        return "its bytes differ"
    from torch_port.audit import foreign

    try:
        found_out = foreign.diff(expected, found)
    except CheckpointError:
        return "its bytes differ"
    if found_out.bitwise:
        return ""
    changes = found_out.changes
    return f"{len(changes)} leaves differ, first {changes[0].path}" if changes else "its bytes differ"


# Crashes.


class _After(NamedTuple):
    """What became of a directory in which the script was started again."""

    ended: bool
    detail: str  # why not, or how the end differs
    equal: bool
    saves: int  # until its end
    output: str
    starts: int


class _Judge:
    """Crashes the script at points of its reference run."""

    def __init__(self, bench: _Bench, plan: _Plan, restarts: int, may_lose: int) -> None:
        self.bench, self.plan, self.restarts, self.may_lose = bench, plan, restarts, may_lose
        self.known: dict[str, _After] = {}
        self.at_the_end = 0  # saves of a run that is started when all is done

    def all(self, chosen: list[int], jobs: int, progress: Callable[[str], None]) -> list[Trial]:
        """Every crash at these points, and a start after the end, in order."""
        after = self._start_again(self._copy_of_end())
        self.at_the_end = after.saves if after.saves < len(self.plan.saves) else 0  # else it does not resume
        found = [self._trial(len(self.plan.points), "the end of the run", "started again after it", after)]
        work = [*self._kills(chosen), *self._power(chosen)]
        with ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(do) for do in work]
            try:
                for i, future in enumerate(running, 1):
                    found.append(future.result())
                    progress(f"{i} of {len(work)} crashes")
            finally:
                for future in running:
                    future.cancel()
                if not all(future.done() for future in running):
                    self.bench.stop()
        return sorted(found, key=lambda trial: trial.point)

    def _copy_of_end(self) -> Path:
        place = self.bench.folder / "again"
        _copy(self.plan.end, place)
        return place

    def _kills(self, chosen: list[int]) -> Iterator[Callable[[], Trial]]:
        """Processes that are killed for good: before each event, and in the middle of each write."""
        events = self.plan.reference.events
        for number in chosen:
            point = self.plan.points[number]
            first = events[point.start]
            if first.order < 0:
                continue
            yield self._kill(number, "killed before it", -1)
            size = sum(len(event.data) for event in events[point.start : point.end])
            if first.call == "write" and size > 1:
                yield self._kill(number, "killed in the middle of it", size // 2)

    def _kill(self, number: int, how: str, torn: int) -> Callable[[], Trial]:
        point = self.plan.points[number]
        index = self.plan.reference.events[point.start].order

        def do() -> Trial:
            place = self.bench.fresh(f"kill-{number}-{torn}")
            ran = self.bench.run(place, kill=index, torn=torn)
            after = self._start_again(place)
            if not ran.killed:
                how_else = f"{how} (not reached: it ended with status {ran.status})"
                return self._trial(number, point.named, how_else, after)
            return self._trial(number, point.named, how, after)

        return do

    def _power(self, chosen: list[int]) -> Iterator[Callable[[], Trial]]:
        """Directories that power loss may leave after each event; the same ones are tried once."""
        disk = Disk(self.bench.pristine, names_in(self.bench.pristine))
        events, done = self.plan.reference.events, 0
        seen: set[tuple[int, str]] = set()
        for number, point in enumerate(self.plan.points):
            for event in events[done : point.end]:
                disk.apply(event)
            done = point.end
            if number not in chosen:
                continue
            plain = _digest(disk.visible())
            for how, state in disk.lost():
                key = _digest(state)
                saved = self._saved_after(number)
                if key != plain and (saved, key) not in seen:
                    seen.add((saved, key))
                    yield self._lose(number, how, state, key)

    def _lose(self, number: int, how: str, state: State, key: str) -> Callable[[], Trial]:
        point = self.plan.points[number]

        def do() -> Trial:
            if key not in self.known:  # it was not there yet, or is being tried at this moment
                place = self.bench.fresh(f"power-{number}-{key[:16]}")
                materialise(state, place)
                self.known[key] = self._start_again(place)
            return self._trial(number, point.named, f"power lost after it: {how}", self.known[key])

        return do

    def _saved_after(self, number: int) -> int:
        """Saves that are over once an event has happened: what it belongs to is not, until the next one begins."""
        points = self.plan.points
        return points[number + 1].saved if number + 1 < len(points) else len(self.plan.saves)

    def _start_again(self, place: Path) -> _After:
        """Start the script until it ends."""
        starts = saves = 0
        while True:
            starts += 1
            ran = self.bench.run(place)
            saves += sum(shape(name) == self.plan.saved_as for name, *_ in _published(ran.events))
            same = starts > 1 and not any(event.call in CHANGES for event in ran.events)
            if ran.status == 0 or starts == self.restarts or same:  # what failed twice and changed nothing fails again
                break
        if ran.status != 0:
            said = next((line for line in reversed(ran.output.splitlines()) if line.strip()), "nothing")
            why = "had not ended in time" if ran.status is None else f"ended with status {ran.status}"
            shutil.rmtree(place)
            return _After(
                False, f"{why}, {starts} times of {starts}; it said: {said}", False, saves, ran.output, starts
            )
        different = [(name, unlike(self.plan.end / name, place / name)) for name in self.plan.compared]
        different = [(name, how) for name, how in different if how]
        shutil.rmtree(place)
        detail = "; ".join(f"{name}: {how}" for name, how in different[:3])
        return _After(True, detail, not different, saves, ran.output, starts)

    def _trial(self, number: int, event: str, how: str, after: _After) -> Trial:
        """Judge."""
        points, saves = self.plan.points, len(self.plan.saves)
        at_end = number == len(points)
        point = None if at_end else points[number]
        if at_end:
            over, printed = saves, sys.maxsize
        else:
            assert point is not None
            over = self._saved_after(number) if how.startswith("power") else point.saved
            printed = self.plan.reference.events[point.start].printed
        if not after.equal:
            detail = f"ended with other files: {after.detail}" if after.ended else after.detail
            return Trial(number, event, how, NO_WAY_BACK, detail, None, None, after.starts)
        # A run that finds all done may save once more all the same; so may every other one at its end.
        kept = max(0, saves - after.saves)
        lost = max(0, min(over, saves - self.at_the_end) - kept)
        steps = _steps_again(self.plan.reference.output, printed, after.output)
        again = "" if steps is None else f", {steps} steps done again"
        if lost > self.may_lose and steps != 0:
            detail = f"{lost} of {over} finished saves lost{again}; equal in the end"
            return Trial(number, event, how, LOST, detail, kept, steps, after.starts)
        detail = f"equal in the end{again}"
        return Trial(number, event, how, RESUMED, detail, kept, steps, after.starts)


def _digest(state: State) -> str:
    found = sha256()
    for name, node in sorted(state.items()):
        parts = (name, "as it was") if node is None else (name, node.kind, sha256(node.data).hexdigest())
        found.update(repr(parts).encode())
    return found.hexdigest()


def materialise(state: State, place: Path) -> None:
    """Make a copy of the directory as it was hold a state; what was changed last is newest."""
    for name, kind in sorted(names_in(place), reverse=True):
        node = state.get(name)
        if name not in state or (node is not None and node.kind != "directory"):
            (place / name).rmdir() if kind == "directory" else (place / name).unlink()
    now = time.time_ns()
    last = max((node.stamp for node in state.values() if node is not None), default=0)
    for name, node in sorted(state.items()):
        path = place / name
        if node is None:
            continue
        if node.kind == "directory":
            path.mkdir(exist_ok=True)
        elif node.kind == "link":
            path.symlink_to(os.fsdecode(node.data))
        else:
            path.write_bytes(node.data)
            stamp = now - (last - node.stamp) * 1_000_000
            os.utime(path, ns=(stamp, stamp))


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


# The verb.


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb; `--json` is there already."""
    text = "the directory to copy and run in; the command is as in it (default: this one)"
    parser.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help=text)
    text = "events to try, whole saves together; 0: all (default: %(default)s)"
    parser.add_argument("--limit", type=int, default=24, metavar="N", help=text)
    text = "seconds for one run (default: %(default)s)"
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help=text)
    text = "starts after a crash before there is no way back (default: %(default)s)"
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help=text)
    text = "runs at once (default: %(default)s)"
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help=text)
    text = "finished saves that a crash may cost (default: %(default)s)"
    parser.add_argument("--may-lose", type=int, default=0, metavar="N", help=text)
    text = "a pattern of files to compare at the end; may be given again (default: all that the run writes whole)"
    parser.add_argument("--compare", action="append", default=[], metavar="PATTERN", help=text)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts the script")


def run_crash(impl: Any, options: argparse.Namespace) -> int:
    """Crash a script, and print the judgement."""
    for name, least in {"limit": 0, "timeout": 0.0, "restarts": 1, "jobs": 1, "may_lose": 0}.items():
        value = getattr(options, name)
        if value < least or (name == "timeout" and value == 0):
            raise ValueError(f"--{name.replace('_', '-')}: expected at least {least or 'a little'}, found {value}")
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    live = sys.stderr.isatty() and not options.json
    report = crash(
        command,
        directory=options.dir,
        limit=options.limit,
        timeout=options.timeout,
        restarts=options.restarts,
        jobs=options.jobs,
        compare=options.compare,
        may_lose=options.may_lose,
        progress=_tell if live else lambda text: None,
    )
    if live:
        sys.stderr.write("\r\x1b[K")
    if options.json:
        say_json(as_json(report))
    elif report.error:
        warn(f"{report.verdict}: {report.error}")
    else:
        print_report(report)
    return report.status


def _tell(text: str) -> None:
    sys.stderr.write(f"\r{text}\x1b[K")
    sys.stderr.flush()
