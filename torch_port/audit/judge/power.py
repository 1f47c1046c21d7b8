"""The power of the audit on one loop: each restored state is lost in turn, as a fresh run has it; is it caught?

A loss may show after one stop and not after another, so that it is tried at several, the middle one first, until it is
caught. Only where the resume itself holds does a loss tell anything.
"""

from collections.abc import Sequence

from torch_port.audit.judge import compare
from torch_port.audit.judge.control import Evidence
from torch_port.audit.judge.findings import State, Stop
from torch_port.audit.judge.record import Record
from torch_port.audit.judge.workers import AuditFailed, Runner

TRIED = 36  # losses, over all stops
FIRST = 24  # of them at the first one tried
CAUGHT, UNTRIED, FRESH = "its loss is caught", "its loss could not be tried", "a fresh run has the same"
TOO_MANY = f"its loss was not tried: {TRIED} others were"


def power(evidence: Evidence, runner: Runner, stops: Sequence[Stop], states: tuple[State, ...]) -> tuple[State, ...]:
    """The states, with whether the loss of each restored one is caught."""
    steps, why = _steps(evidence, stops)
    if not steps:
        note = f"its loss was not tried: {why}"
        return tuple(one._replace(note=one.note or note) if one.restored else one for one in states)
    waiting = [one for one in states if one.restored]
    caught: dict[str, bool | None] = {}
    tried: dict[str, list[int]] = {}
    left = TRIED
    for step in steps:
        lost = [one for one in waiting if one.path not in caught and _moved(evidence.a, one, step)]
        lost = lost[: min(FIRST, left)]
        jobs = [runner.submit(_is_caught, evidence, runner, number, step, one) for number, one in enumerate(lost)]
        for one, job in zip(lost, jobs, strict=True):
            found = job.result()
            tried.setdefault(one.path, []).append(step)
            if found is not False:
                caught[one.path] = found
        left -= len(lost)
    return tuple(_told(evidence.a, one, steps, tried, caught) if one.restored else one for one in states)


def _steps(evidence: Evidence, stops: Sequence[Stop]) -> tuple[list[int], str]:
    """The steps at which losses are tried, the middle one first; if there are none, why."""
    if not evidence.bitwise and not compare.is_rounding(evidence.control.floor, evidence.a):
        return [], "two uninterrupted runs differ"
    wrong = {stop.at[0] for stop in stops if not stop.holds}
    right = sorted({step for stop in stops if stop.holds for step in stop.at} - wrong)
    if not right:
        return [], "no resume holds"
    return list(dict.fromkeys((right[len(right) // 2], right[0], right[-1]))), ""


def _told(
    a: Record, one: State, steps: list[int], tried: dict[str, list[int]], caught: dict[str, bool | None]
) -> State:
    """A state with what the trials of its loss showed."""
    if one.path in caught:
        return one._replace(needed=caught[one.path], note=CAUGHT if caught[one.path] else UNTRIED)
    if one.path in tried:
        where = ", ".join(map(str, sorted(tried[one.path])))
        many = "s" if len(tried[one.path]) > 1 else ""
        return one._replace(needed=False, note=f"its loss changes nothing after step{many} {where}")
    moved = any(_moved(a, one, step) for step in steps)
    return one._replace(note=TOO_MANY if moved else FRESH)


def _paths(a: Record, one: State, step: int) -> list[str]:
    """The leaves of a state at a step."""
    return [path for path, group in a.groups.items() if group == one.path and path in a.at[step]]


def _moved(a: Record, one: State, step: int) -> bool:
    """Whether a fresh run has anything else there."""
    return any(a.at[0].get(path) != a.at[step][path] for path in _paths(a, one, step))


def _is_caught(evidence: Evidence, runner: Runner, number: int, step: int, one: State) -> bool | None:
    """Whether the run that has lost a state is told from the uninterrupted one; None where it could not be lost."""
    worker, lose = 0 if evidence.one_seed else number % 2, _paths(evidence.a, one, step)
    try:
        record = runner.run(worker, "P", start=step, load=evidence.files[str(step)], lose=lose)
    except AuditFailed:
        return True  # it cannot even go on
    return None if record.facts.get("not put back") else evidence.differs(record, step)
