"""The audit of one loop: control, resumes, attribution, checks and detector power, in two worker processes.

    first worker    the uninterrupted run A, which saves at every stop; half of the trials
    second worker   another hash seed: the run B, which never saves, and every resume

A loop whose runs are equal with one hash seed only is resumed in the first worker. Each run is a fork of a process that
has imported torch and the user's module, and nothing more, or a new process where that cannot be.
"""

import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.control import Ground, ground_of, with_one_seed
from torch_port.audit.judge.findings import Control, Failure, Report, Stop
from torch_port.audit.judge.power import power_of
from torch_port.audit.judge.record import Record
from torch_port.audit.judge.resume import judged, resume, told
from torch_port.audit.judge.states import states_of
from torch_port.audit.judge.stops import Stops, checked_stops, choose_stops
from torch_port.audit.judge.trials import Batches
from torch_port.audit.judge.workers import AuditFailed, Workers

NOTHING_MOVES = (
    "nothing that the audit sees changes from step to step, so that every resume would look equal: return the loss "
    "from step(), or hold the model and the optimizer as attributes of the run"
)


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
            done = tuple(job.result() for job in session.judging if not job.exception())
            report = Report(target, steps, "failed", session.control, done, failure=told(stopped.failure))
        finally:
            session.close()
    return report._replace(seconds=time.monotonic() - began)


class Session:
    """One audit: its workers, and what it knows so far."""

    a: Record  # the uninterrupted run
    ground: Ground
    files: dict[str, str]  # step -> what the user saves there
    dumps: dict[str, str]  # step -> every value there
    moving: set[str]  # paths that change in the uninterrupted run

    def __init__(self, target: str, steps: int, home: Path, workers: Workers, note: Callable[[str], None]) -> None:
        self.target, self.steps, self.home, self.note = target, steps, home, note
        self.workers, self.pool = workers.all, workers.pool
        self.control: Control | None = None
        self.failure: Failure | None = None  # of the first resume that raised
        self.stops: list[Stop] = []  # when all of them are judged
        self.records: dict[int, Record] = {}  # stop -> the run resumed there
        self.known: list[tuple[str, ...]] = []  # minimal sets found so far
        self.lost: set[str] = set()  # leaves that are proved to be lost at some stop
        self.harmless: set[str] = set()  # names and leaves that differ, and are not missed there
        self.batches = Batches(self)
        self.numbers = itertools.count(1)
        self.jobs: list[Future[Any]] = []
        self.judging: list[Future[Stop]] = []

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
        spec["record"] = str(self.home / f"{next(self.numbers):04d}-{name}.json")
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
        b = plain.result()
        self.moving = judge.changing(self.a) | judge.changing(b)
        self.ground = ground_of(self, self.a, b)
        self.control = self.ground.control
        self._check_moves()
        for place, stop in enumerate(stops):
            self.note(f"resume after step {', '.join(map(str, stop))}")
            self.judging.append(self.submit(judged, self, stop, resume(self, stop), place))
            if not self.known:  # what is found at one stop is tried first at the next ones
                wait(self.judging)
        self.stops = [job.result() for job in self.judging]
        if self.ground.one_seed:
            self.control = with_one_seed(self.control, self.stops)
        warnings = self._check(flat[len(flat) // 2])
        states = states_of(self)
        if power:
            self.note("detector power: what would be caught")
            states = power_of(self, states)
        return Report(
            self.target, self.steps, self._verdict(), self.control, tuple(self.stops), states, tuple(warnings),
            self.failure,
        )  # fmt: skip

    @property
    def resumer(self) -> int:
        """The worker of resumes: that with another hash seed, where this changes no uninterrupted run."""
        return 0 if self.ground.one_seed else 1

    def compare(self, record: Record, step: int) -> judge.Comparison:
        """A run resumed after a step beside the uninterrupted one."""
        return judge.compare(self.a, record, step, passed=self.ground.passed, moving=self.moving)

    def differs(self, record: Record, step: int) -> bool:
        """Whether a resumed run is further from the uninterrupted one than another uninterrupted one would be."""
        found = self.compare(record, step)
        if self.ground.bitwise:
            return bool(found.faults)
        return not judge.within(found.largest, self.ground.control.floor)

    def _check_moves(self) -> None:
        """Refuse a run of which nothing that is seen changes: every resume would be equal, whatever it lost."""
        kinds = {judge.kind_of(path, *self.a.at.values()) for path in self.moving - self.ground.passed}
        if not kinds & (judge.RESULTS | judge.MARKS):
            raise AuditFailed(Failure("two uninterrupted runs", NOTHING_MOVES))

    def _check(self, step: int) -> list[str]:
        """What the load at one stop does beyond its result."""
        warnings = list(self.a.facts["warnings"])
        for record in self.records.values():
            warnings += record.facts["warnings"]
        try:
            changes = judge.moved(self.a.at[0], self.a.at[step])
            checked = self.run(1, "K", start=step, steps=step, load=self.files[str(step)], checks=True, changes=changes)
            warnings += checked.facts["warnings"]
        except AuditFailed as failed:
            warnings += [] if self.failure else [
                f"{failed.failure.phase}, after the state was loaded and saved again: {failed.failure.error}"
            ]  # fmt: skip
        passed = sorted(path for path in self.ground.passed if self.a.at[self.steps].get(path) is not None)
        if passed:
            warnings.append(f"not judged, as two uninterrupted runs differ there: {', '.join(passed[:6])}")
        opaque = self.a.facts["opaque"]
        if opaque:
            warnings.append(f"not covered, as the audit cannot look into it: {', '.join(opaque[:6])}")
        return list(dict.fromkeys(warnings))

    def _verdict(self) -> str:
        control = self.ground.control
        if not control.holds and not judge.is_rounding(control.floor, self.a):
            return "not deterministic"
        if not all(stop.holds for stop in self.stops):
            return "broken"
        return "bitwise" if control.holds else "within"
