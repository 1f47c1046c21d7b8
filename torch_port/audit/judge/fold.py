"""The audit of one loop, from the control to the report, in two worker processes.

    first worker    the uninterrupted run A, which saves at every stop; half of the trials
    second worker   another hash seed: the run B, which never saves, and every resume

A loop whose runs are equal with one hash seed only is resumed in the first worker. Each run is a fork of a process that
has imported torch and the user's module, and nothing more, or a new process where that cannot be.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import ExitStack
from pathlib import Path

from torch_port.audit.judge import compare
from torch_port.audit.judge.attribution import Batches
from torch_port.audit.judge.control import Evidence, check_moves, control, with_one_seed
from torch_port.audit.judge.findings import Control, Report, Stop
from torch_port.audit.judge.power import power
from torch_port.audit.judge.resume import Judged, judge, resume, told
from torch_port.audit.judge.states import states
from torch_port.audit.judge.stops import Stops, checked_stops
from torch_port.audit.judge.workers import AuditFailed, Runner, Workers


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
        runner = Runner(workers or held.enter_context(Workers()), target, home, steps, timeout, note)
        report = _fold(held.enter_context(runner), stops, power)
    return report._replace(seconds=time.monotonic() - began)


def _fold(runner: Runner, stops: Stops | None, with_power: bool) -> Report:
    """Every stage after the other."""
    shown: Control | None = None
    jobs: list[Future[Judged]] = []
    try:
        evidence = control(runner, stops)
        shown = evidence.control
        check_moves(evidence)
        batches = Batches(evidence, runner)
        known: tuple[tuple[str, ...], ...] = ()
        for place, stop in enumerate(evidence.stops):
            runner.note(f"resume after step {', '.join(map(str, stop))}")
            resumed = resume(evidence, runner, stop)
            jobs.append(runner.submit(judge, evidence, runner, resumed, place, batches, known))
            if not known:  # what is found at one stop is tried first at the next ones
                wait(jobs)
                known = tuple(
                    job.result().stop.lost for job in jobs if not job.exception() and job.result().stop.proved
                )
        judged = [job.result() for job in jobs]
        found = tuple(one.stop for one in judged)
        if evidence.one_seed:
            shown = with_one_seed(shown, found)
        warnings = _warnings(evidence, runner, judged)
        table = states(evidence, judged)
        if with_power:
            runner.note("detector power: what would be caught")
            table = power(evidence, runner, found, table)
    except AuditFailed as stopped:
        done = tuple(job.result().stop for job in jobs if not job.exception())
        return Report(runner.target, runner.steps, "failed", shown, done, failure=told(stopped.failure))
    failure = next((one.failure for one in judged if one.failure), None)
    verdict = _verdict(evidence, found)
    return Report(runner.target, runner.steps, verdict, shown, found, table, warnings, failure)


def _warnings(evidence: Evidence, runner: Runner, judged: Sequence[Judged]) -> tuple[str, ...]:
    """What the runs noted, and what the load at the middle stop does beyond its result."""
    a = evidence.a
    step = sorted(map(int, evidence.files))[len(evidence.files) // 2]
    warnings = list(a.facts["warnings"])
    for one in judged:
        warnings += one.record.facts["warnings"] if one.record else []
    try:
        changes = compare.moved(a.at[0], a.at[step])
        load = evidence.files[str(step)]
        warnings += runner.run(1, "K", start=step, steps=step, load=load, checks=True, changes=changes).facts[
            "warnings"
        ]
    except AuditFailed as failed:
        if not any(one.failure for one in judged):
            phase, error = failed.failure.phase, failed.failure.error
            warnings.append(f"{phase}, after the state was loaded and saved again: {error}")
    passed = sorted(path for path in evidence.passed if a.at[runner.steps].get(path) is not None)
    if passed:
        warnings.append(f"not judged, as two uninterrupted runs differ there: {', '.join(passed[:6])}")
    if opaque := a.facts["opaque"]:
        warnings.append(f"not covered, as the audit cannot look into it: {', '.join(opaque[:6])}")
    return tuple(dict.fromkeys(warnings))


def _verdict(evidence: Evidence, stops: Sequence[Stop]) -> str:
    equal = evidence.control.holds
    if not equal and not compare.is_rounding(evidence.control.floor, evidence.a):
        return "not deterministic"
    if not all(stop.holds for stop in stops):
        return "broken"
    return "bitwise" if equal else "within"
