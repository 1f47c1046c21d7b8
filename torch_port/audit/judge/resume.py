"""One resume: the run is stopped and goes on in a new process; what differs then, and why."""

import math
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch_port.audit.judge import compare
from torch_port.audit.judge.attribution import Batches, Found, Suspect, Trials, suspects
from torch_port.audit.judge.causes import (
    FEEDING_ADVICE,
    HIDDEN_ADVICE,
    MOST_LINES,
    WORDS_UNPROVED,
    advice,
    cause,
    hidden_words,
    keys_unmatched,
    link_advice,
    other_type,
)
from torch_port.audit.judge.control import HASH_ADVICE, Evidence
from torch_port.audit.judge.findings import Difference, Failure, Stop
from torch_port.audit.judge.record import Record
from torch_port.audit.judge.stored import all_saved
from torch_port.audit.judge.workers import AuditFailed, Runner

HASH_CAUSE = "with the hash seed of the run that was stopped it is equal: the order of a set, or hash(), decides here"
UNKEPT = "the batches were not put back: they are too large, or cannot be saved"


OWN_PHASES = ("construct", "load", "step", "save")  # in which the user's code runs; a hang may be a limit too short


class Resumed(NamedTuple):
    """The last part of a run that was stopped."""

    stop: tuple[int, ...]
    record: Record | Failure  # a failure where the user's code raised, or ended the process
    file: str  # that it loaded
    step: int  # of the stop


class Judged(NamedTuple):
    """What one resume showed."""

    stop: Stop
    step: int  # after which its last part was resumed
    record: Record | None = None  # of its last part
    lost: frozenset[str] = frozenset()  # leaves that are proved to be lost
    harmless: frozenset[str] = frozenset()  # names and leaves that differ, and are not missed here
    failure: Failure | None = None  # of the user's code


def resume(evidence: Evidence, runner: Runner, stop: tuple[int, ...]) -> Resumed:
    """Stop and resume, several times if asked to, until a part of the run differs."""
    file = evidence.files[str(stop[0])]
    for step, until in zip(stop, (*stop[1:], runner.steps), strict=True):
        again = str(runner.home / f"saved-{'-'.join(map(str, stop))}-{until}.pt")
        wanted = {"save": {str(until): again}} if until != runner.steps else {}
        drift = evidence.dumps[str(step)]
        try:
            record = runner.run(evidence.resumer, "R", start=step, steps=until, load=file, drift=drift, **wanted)
        except AuditFailed as stopped:
            failure = stopped.failure
            where = "" if "load after" in failure.phase else f", resumed after step {step}"
            failure = told(failure._replace(phase=failure.phase + where))
            if failure.phase.startswith(OWN_PHASES):
                return Resumed(stop, failure, file, step)
            raise AuditFailed(failure) from None
        if evidence.differs(record, step):
            break
        if until != runner.steps:
            file = again
    return Resumed(stop, record, file, step)


def told(failure: Failure) -> Failure:
    """The failure; of a loop that was at its end, how many steps it has."""
    step = re.fullmatch(r"step (\d+)(, resumed after step (\d+))?", failure.phase)
    if step is None or not failure.error.startswith("StopIteration"):
        return failure
    last = int(step[1]) - 1
    if step[2]:
        where = f"the loop that was resumed after step {step[3]} ended after step {last}"
        return failure._replace(error=f"{failure.error}: {where}; the one that never stopped went on")
    if last < 2:
        return failure
    return failure._replace(error=f"{failure.error}: the loop ended after {last} steps; use --steps {last}")


def judge(
    evidence: Evidence,
    runner: Runner,
    resumed: Resumed,
    place: int,
    batches: Batches,
    known: Sequence[tuple[str, ...]],
) -> Judged:
    """What a resume showed and, if it differs, why.

    Args:
        evidence: of the control.
        runner: of the trials.
        resumed: see `resume`.
        place: of the stop among all of them; the workers take turns with the trials.
        batches: of the uninterrupted run.
        known: minimal sets found at other stops.
    """
    stop, record, _, step = resumed
    if isinstance(record, Failure):
        return _raised(evidence, runner, resumed, record)
    found = evidence.compare(record, step)
    doubtful = suspects(evidence, record, step)
    differing = tuple(one.name for one in doubtful)
    if not found.faults:
        equal = Stop(stop, True, "bitwise", curve=found.curve, differing=differing)
        return Judged(equal, step, record, harmless=_names(doubtful))
    first = found.faults[0]
    if not evidence.bitwise:
        near = compare.within(found.largest, evidence.control.floor)
        relation, text = ("within", "") if near else ("differs", "further apart than two uninterrupted runs")
        return Judged(
            Stop(stop, near, relation, first, cause=text, curve=found.curve, differing=differing), step, record
        )
    by_hash = _is_equal_with_one_seed(evidence, runner, resumed)
    workers = (evidence.resumer,) if by_hash or evidence.one_seed else (place % 2, evidence.resumer)
    result = Trials(evidence, runner, record, resumed.file, step, workers).attribute(doubtful, batches, known)
    leaves = frozenset(path for one in result.lost for path in one.paths) if result.proved else frozenset()
    if not result.proved and first.path == "samples" and all(one.kind != "samples" for one in result.lost):
        result = result._replace(lost=(Suspect("samples", "samples", ()), *result.lost))
    causes, lines = _causes(evidence.a, result, record, step), _lines(evidence.a, result, record, step)
    if by_hash:
        causes, lines = [*(causes if result.proved else []), HASH_CAUSE], (HASH_ADVICE,)
    if result.proved and not by_hash:
        first = compare.at_load(step, result.lost, evidence.a.at[step], record.at[step]) or first
    lost = tuple(one.name for one in result.lost) or (() if by_hash else tuple(evidence.a.facts["feeding"]))
    why = Stop(stop, False, "differs", first, lost, result.proved, "; ".join(causes), lines, differing, found.curve)
    return Judged(why, step, record, leaves, _names(result.harmless))


def _names(some: Sequence[Suspect]) -> frozenset[str]:
    return frozenset(name for one in some for name in (one.name, *one.paths))


def _raised(evidence: Evidence, runner: Runner, resumed: Resumed, failure: Failure) -> Judged:
    """A resume that the user's code ended, where it lets the run that never stopped go on."""
    first = Difference(resumed.step, failure.phase, "no error", failure.error, math.inf)
    by_hash = _is_equal_with_one_seed(evidence, runner, resumed)
    cause, lines = (HASH_CAUSE, (HASH_ADVICE,)) if by_hash else ("", ())
    stop = Stop(resumed.stop, False, "raises", first, cause=cause, advice=lines)
    return Judged(stop, resumed.step, failure=failure)


def _is_equal_with_one_seed(evidence: Evidence, runner: Runner, resumed: Resumed) -> bool:
    """Whether it is only another hash seed that makes a resume differ."""
    if evidence.one_seed or resumed.step != resumed.stop[0]:  # it has the very seed with which its file was saved
        return False
    try:
        same = runner.run(0, "H", start=resumed.step, load=resumed.file)
    except AuditFailed:
        return False
    return not evidence.differs(same, resumed.step)


def _causes(a: Record, result: Found, record: Record, step: int) -> list[str]:
    """What was lost in words; of a set that is not proved the likeliest."""
    here, there, drift = a.at[step], record.at[step], record.facts.get("drift", {})
    shown = result.lost if result.proved else result.lost[:1]
    types = a.facts.get("saved types", {}).get(str(step), {})
    said = [cause(one.name, one.kind, here, there, drift, one.links, types) for one in shown]
    heard = record.facts.get("unmatched", {})
    said = [one + keys_unmatched(suspect.paths, heard)[0] for suspect, one in zip(shown, said, strict=True)]
    if result.proved:
        return said
    words = WORDS_UNPROVED if said else hidden_words(a.facts["opaque"], a.facts["feeding"])
    return [words, *said, *([UNKEPT] if result.unkept else [])]


def _lines(a: Record, result: Found, record: Record, step: int) -> tuple[str, ...]:
    """The lines to add or change; not many where nothing is proved."""
    if not result.lost:
        return (FEEDING_ADVICE,) if a.facts["feeding"] else HIDDEN_ADVICE
    here, there, facts = a.at[step], record.at[step], a.facts
    types = facts.get("saved types", {}).get(str(step), {})
    saved, written = _saved(a, step), facts.get("written", {})
    unsaved = facts.get("unsaved buffers", ())  # no state_dict() has them
    lines = []
    for one in result.lost:
        kind = "other" if one.name in unsaved else one.kind
        dtype = here[one.name].dtype if one.name in here else ""
        keys = keys_unmatched(one.paths, record.facts.get("unmatched", {}))[1]
        other = other_type(one.name, one.paths, here, there, types)
        if one.links:
            lines.append(link_advice(one.links, written))
            continue
        line = advice(one.name, kind, saved(one), written, dtype, facts.get("within", {}))
        lines.append(keys or (other[1] if other else line))
    return tuple(dict.fromkeys(lines))[: None if result.proved else MOST_LINES]


def _saved(a: Record, step: int) -> Callable[[Suspect], bool | None]:
    """Whether all of a suspect's values stand in the saved state, at this stop and at every other."""
    everywhere = a.facts.get("saved", {})

    def saved(one: Suspect) -> bool | None:
        if str(step) not in everywhere:
            return None
        if not any(path in a.at[step] for path in one.paths):
            return False
        return all_saved(a, one.paths)

    return saved
