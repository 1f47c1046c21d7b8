"""The audit of one loop: control, resumes, attribution, checks and detector power, in two worker processes.

    first worker    the uninterrupted run A, which saves at every stop; half of the trials
    second worker   another hash seed: the run B, which never saves, and every resume

Both are forks of a process that has imported torch and the user's module, and nothing more.
"""

import re
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch_port.audit import judge
from torch_port.audit.attribution import Found, Suspect, find, suspects
from torch_port.audit.causes import WORDS_UNPROVED, advice, cause
from torch_port.audit.findings import Control, Failure, Report, Stop
from torch_port.audit.record import Record
from torch_port.audit.states import is_saved, power_of, states_of
from torch_port.audit.workers import AuditFailed, Workers

Stops = list[tuple[int, ...]]


def audit_target(
    target: str,
    *,
    steps: int,
    at: Sequence[int | Sequence[int]] | None,
    every_step: bool,
    timeout: float,
    keep: str | None,
    power: bool,
    workers: Workers | None,
    note: Callable[[str], None],
) -> Report:
    """See `torch_port.audit.audit`."""
    began = time.monotonic()
    stops = None if at is None and not every_step else checked_stops(range(1, steps) if every_step else at or (), steps)
    with ExitStack() as held:
        home = Path(keep or held.enter_context(tempfile.TemporaryDirectory(prefix="audit-"))).absolute()
        home.mkdir(parents=True, exist_ok=True)
        session = Session(target, steps, home, workers or held.enter_context(Workers()), note)
        session.open(timeout)
        try:
            report = session.audit(stops, power)
        except AuditFailed as stopped:
            done = tuple(session.stops)
            report = Report(target, steps, "failed", session.control, done, failure=told(stopped.failure))
        finally:
            session.close()
    return report._replace(seconds=time.monotonic() - began)


def told(failure: Failure) -> Failure:
    """The failure; of a loop that was at its end, how many steps it has."""
    step = re.fullmatch(r"step (\d+)", failure.phase)
    if step is None or not failure.error.startswith("StopIteration") or int(step[1]) < 3:
        return failure
    last = int(step[1]) - 1
    return failure._replace(error=f"{failure.error}: the loop ended after {last} steps; use --steps {last}")


class Session:
    """One audit: its workers, and what it knows so far."""

    def __init__(self, target: str, steps: int, home: Path, workers: Workers, note: Callable[[str], None]) -> None:
        self.target, self.steps, self.home, self.note = target, steps, home, note
        self.workers, self.pool = workers.all, workers.pool
        self.control: Control | None = None
        self.stops: list[Stop] = []
        self.records: dict[int, Record] = {}  # stop -> the run resumed there
        self.known: list[tuple[str, ...]] = []  # minimal sets found so far
        self.harmless: set[str] = set()
        self.count = 0
        self.jobs: list[Future[Any]] = []

    def open(self, limit: float) -> None:
        """Let the workers import the target."""
        for worker in self.workers:
            worker.open(self.target, self.home, limit)

    def close(self) -> None:
        """Be done with the target."""
        for job in self.jobs:
            wait([job])
        for worker in self.workers:
            worker.leave()

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do something in a thread; the session does not end before."""
        self.jobs.append(self.pool.submit(function, *arguments))
        return self.jobs[-1]

    def run(self, worker: int, name: str, **spec: Any) -> Record:
        """A run in a worker."""
        self.count += 1
        spec["record"] = str(self.home / f"{self.count:04d}-{name}.json")
        return self.workers[worker].run({"steps": self.steps, "start": 0, **spec})

    def audit(self, stops: Stops | None, power: bool) -> Report:
        """Control, resumes and what follows from them."""
        self.note("two uninterrupted runs")
        plain = self.submit(self.run, 1, "B")
        if stops is None:
            stops = choose_stops(plain.result(), self.steps)
        flat = sorted({step for stop in stops for step in stop})
        self.files = {str(step): str(self.home / f"saved-{step}.pt") for step in flat}
        self.dumps = {str(step): str(self.home / f"dump-{step}.pt") for step in flat}
        self.a = self.run(0, "A", save=self.files, dump=self.dumps)
        self.b = plain.result()
        self.moving = judge.changing(self.a) | judge.changing(self.b)
        self.control = self._control()
        jobs: list[Future[Stop]] = []
        for place, stop in enumerate(stops):
            self.note(f"resume after step {', '.join(map(str, stop))}")
            resumed = self._resume(stop)
            jobs.append(self.submit(self._judge, stop, *resumed, place))
            self.stops = [job.result() for job in jobs]
        warnings = self._check(flat[len(flat) // 2])
        states = states_of(self)
        if power and self._verdict() == "bitwise":
            self.note("detector power: what would be caught")
            states = power_of(self, states, flat[len(flat) // 2])
        return Report(
            self.target, self.steps, self._verdict(), self.control, tuple(self.stops), states, tuple(warnings)
        )

    def _control(self) -> Control:
        """Are two uninterrupted runs equal? If not, two more tell why, and how far apart such runs are."""
        first, floor, self.passed = judge.floor_of(self.a, self.b)
        if first is None:
            return Control(True)
        self.note("the two differ: two more uninterrupted runs")
        plain, saving = self.run(1, "C"), self.run(1, "D", save={k: f"{v}.again" for k, v in self.files.items()})
        runs = (self.a, self.b, plain, saving)
        for number, one in enumerate(runs):
            for other in runs[number + 1 :]:
                _, more, passed = judge.floor_of(one, other)
                floor = {path: max(floor.get(path, 0.0), more.get(path, 0.0)) for path in floor.keys() | more.keys()}
                self.passed |= passed
        return Control(False, first, tuple(self._notes(plain, saving)), floor)

    def _notes(self, plain: Record, saving: Record) -> list[str]:
        """Why uninterrupted runs differ: a seed, a hash, a save with side effects, or a flag."""
        seeds = sorted(
            path for path, one in self.a.at[0].items()
            if one.kind == "generator" and path in self.moving and self.b.at[0].get(path) != one
        )  # fmt: skip
        if seeds:
            return [f"not seeded when the run is constructed: {', '.join(seeds)}"]
        if judge.floor_of(self.b, plain)[0] is None:
            if judge.floor_of(plain, saving)[0] is not None:
                return ["runs that do not save are equal: to save changes the run"]
            return ["runs with one hash seed are equal, with another they differ: the order of a set or hash() matters"]
        return list(self.a.facts["flags"])

    def _resume(self, stop: tuple[int, ...]) -> tuple[Record, str, int]:
        """Stop and resume, several times if asked to; the last record, and the file and step it began at."""
        file = self.files[str(stop[0])]
        for step, until in zip(stop, (*stop[1:], self.steps), strict=True):
            again = str(self.home / f"saved-{'-'.join(map(str, stop))}-{until}.pt")
            wanted = {"save": {str(until): again}} if until != self.steps else {}
            try:
                record = self.run(1, "R", start=step, steps=until, load=file, drift=self.dumps[str(step)], **wanted)
            except AuditFailed as stopped:
                failure = stopped.failure
                where = "" if failure.phase.startswith("load") else f", resumed after step {step}"
                raise AuditFailed(failure._replace(phase=failure.phase + where)) from None
            if self._faulty(record, step):
                break
            if until != self.steps:
                file = again
        return record, file, step

    def _faulty(self, record: Record, step: int) -> bool:
        return bool(self._compare(record, step).faults)

    def _compare(self, record: Record, step: int) -> judge.Comparison:
        return judge.compare(self.a, record, step, passed=self.passed, moving=self.moving)

    def _judge(self, stop: tuple[int, ...], record: Record, file: str, step: int, worker: int) -> Stop:
        """What a resume showed and, if it differs, why."""
        found = self._compare(record, step)
        self.records.setdefault(step, record)
        open_to_doubt = suspects(self.a, record, step, self.passed, self.moving)
        differing = tuple(one.name for one in open_to_doubt)
        if not found.faults:
            self.harmless |= {one.name for one in open_to_doubt}
            return Stop(stop, True, "bitwise", curve=found.curve, differing=differing)
        first = found.faults[0]
        assert self.control is not None
        if not self.control.holds:
            near = judge.within(found.largest, self.control.floor)
            text = "" if near else "further apart than two uninterrupted runs"
            return Stop(stop, near, "within" if near else "differs", first, cause=text, curve=found.curve,
                        differing=differing)  # fmt: skip
        result = self._attribute(open_to_doubt, file, step, worker % 2, record)
        here, there = self.a.at[step], record.at[step]
        drift = record.facts.get("drift", {})
        if result.proved:
            causes = "; ".join(cause(one.name, one.kind, here, there, drift, one.links) for one in result.lost)
        else:
            if first.path == "samples":
                result = result._replace(lost=(Suspect("samples", "samples", ()), *result.lost))
            likely = [cause(one.name, one.kind, here, there, drift, one.links) for one in result.lost[:1]]
            causes = "; ".join([WORDS_UNPROVED, *likely])
        saved = self._saved(step)
        written = self.a.facts.get("written", {})
        unsaved = self.a.facts.get("unsaved buffers", ())  # no state_dict() has them
        kinds = {one.name: "other" if one.name in unsaved else one.kind for one in result.lost}
        lines = tuple(dict.fromkeys(
            self._other_type(one, step)
            or advice(one.name, kinds[one.name], saved(one), written, here[one.name].dtype if one.name in here else "")
            for one in result.lost
        ))  # fmt: skip
        lost = tuple(one.name for one in result.lost)
        return Stop(stop, False, "differs", first, lost, result.proved, causes, lines, differing, found.curve)

    def _attribute(self, all_of_them: list[Suspect], file: str, step: int, worker: int, resumed: Record) -> Found:
        def trial(chosen: Sequence[Suspect], worker: int = worker) -> Record:
            here = self.a.at[step]
            paths = [path for one in chosen for path in one.paths]
            wanted = {
                "file": self.dumps[str(step)],
                "paths": [path for path in paths if path in here],
                "gone": [
                    path
                    for path in paths
                    if path not in here and not any(p.startswith((f"{path}.", f"{path}[")) for p in here)
                ],
                "links": {path: target for one in chosen for path, target in (one.links or {}).items()},
            }
            rest = {name: ids for one in chosen for name, ids in (one.rest or {}).items()}
            return self.run(worker, "T", start=step, load=file, put_back=wanted, rest=rest)

        def equal(chosen: Sequence[Suspect], worker: int = worker) -> bool:
            try:
                return not self._faulty(trial(chosen, worker), step)
            except AuditFailed:
                return False  # what was put back does not fit the run

        known = next((names for names in self.known if set(names) <= {one.name for one in all_of_them}), ())
        found = find(equal, all_of_them, known)
        if not found.proved and len(found.lost) > 1:
            found = found._replace(lost=self._without_idle_gradients(found.lost, trial, resumed, step))
        if found.proved and worker != 1 and not equal(found.lost, 1):  # with another hash seed
            found = find(lambda chosen: equal(chosen, 1), all_of_them)
        if found.proved:
            self.known.append(tuple(one.name for one in found.lost))
            self.harmless |= {one.name for one in found.harmless}
        return found

    def _without_idle_gradients(
        self, lost: tuple[Suspect, ...], trial: Callable[[Sequence[Suspect]], Record], resumed: Record, step: int
    ) -> tuple[Suspect, ...]:
        """The suspects but for gradients that change nothing when they are put back: the next step drops them."""
        idle = [one for one in lost if one.kind == "gradient"]
        others = tuple(one for one in lost if one.kind != "gradient")
        try:
            same = bool(idle and others) and not judge.compare(resumed, trial(idle), step, moving=self.moving).faults
        except AuditFailed:
            same = False
        return others if same else lost

    def _other_type(self, one: Suspect, step: int) -> str | None:
        """The line to change where a tensor is saved in another type than it has."""
        here, types = self.a.at[step], self.a.facts.get("saved types", {}).get(str(step), {})
        for path in one.paths:
            if path in here and here[path].device and types.get(path, here[path].dtype) != here[path].dtype:
                return f"{one.name} is saved as {types[path]}: save it in {here[path].dtype}"
        return None

    def _saved(self, step: int) -> Callable[[Suspect], bool | None]:
        """Whether all of a suspect's values stand in the saved state."""
        facts = self.a.facts.get("saved", {}).get(str(step))

        def saved(one: Suspect) -> bool | None:
            if facts is None or not one.paths:
                return None if facts is None else False
            here = self.a.at[step]
            found = {is_saved(facts, path, here[path]) for path in one.paths if path in here} or {False}
            return False if False in found else None if None in found else True

        return saved

    def _check(self, step: int) -> list[str]:
        """What the load at one stop does beyond its result."""
        warnings = list(self.a.facts["warnings"])
        for record in self.records.values():
            warnings += record.facts["warnings"]
        try:
            checked = self.run(1, "K", start=step, steps=step, load=self.files[str(step)], checks=True)
            warnings += checked.facts["warnings"]
        except AuditFailed as failed:
            warnings.append(
                f"{failed.failure.phase}, after the state was loaded and saved again: {failed.failure.error}"
            )
        passed = sorted(path for path in self.passed if self.a.at[self.steps].get(path) is not None)
        if passed:
            warnings.append(f"not judged, as two uninterrupted runs differ there: {', '.join(passed[:6])}")
        opaque = self.a.facts["opaque"]
        if opaque:
            warnings.append(f"not covered, as the audit cannot look into it: {', '.join(opaque[:6])}")
        return list(dict.fromkeys(warnings))

    def _verdict(self) -> str:
        assert self.control is not None
        if not self.control.holds and not judge.is_rounding(self.control.floor, self.a):
            return "not deterministic"
        if not all(stop.holds for stop in self.stops):
            return "broken"
        return "bitwise" if self.control.holds else "within"


def checked_stops(at: Any, steps: int) -> Stops:
    """The stops as tuples, each rising.

    Raises:
        ValueError: none, or one that does not lie between the first step and the last but one.
    """
    stops = [(stop,) if isinstance(stop, int) else tuple(stop) for stop in at]
    wrong = [
        stop for stop in stops if list(stop) != sorted(set(stop)) or not stop or not 1 <= stop[0] <= stop[-1] < steps
    ]
    if wrong or not stops:
        shown = ", ".join(map(str, (step for stop in wrong for step in stop))) or "none"
        raise ValueError(f"at: expected rising steps from 1 to {steps - 1}, found {shown}")
    return list(dict.fromkeys(stops))


def choose_stops(record: Any, steps: int) -> Stops:
    """The first step, the last but one, and between them a step inside an epoch and the boundary nearest to the middle.

    Boundaries are where an iterator of a DataLoader ends or a learning rate changes.
    """
    ends = {step - 1 for step, found in record.deliveries.items() if any(one.digest == "" for one in found)}
    rates = [path for path in record.at[max(record.at)] if "/lr" in path]
    moved = {step for step in range(1, steps) for path in rates
             if record.at[step].get(path) != record.at.get(step - 1, {}).get(path)}  # fmt: skip
    bounds = {step for step in ends | (moved if len(moved) < steps // 2 else set()) if 1 <= step < steps}
    middle = steps // 2
    inside = sorted(set(range(2, steps - 1)) - bounds, key=lambda step: (abs(step - middle), step))
    chosen = {1, steps - 1, *inside[:1]}
    if bounds:
        chosen.add(min(bounds, key=lambda step: (abs(step - middle), step)))
    third = [step for step in inside if abs(step - middle) >= 3]
    chosen.update(third[:1])
    single: Stops = [(step,) for step in sorted(chosen) if 1 <= step < steps]
    return [*single, (single[0][0], single[-1][0])] if len(single) > 2 else single
