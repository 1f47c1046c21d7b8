"""One resume: the run is stopped and goes on in a new process; what differs then, and why."""

import math
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.attribution import Found, Suspect, suspects
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
from torch_port.audit.judge.control import HASH_ADVICE
from torch_port.audit.judge.findings import Difference, Failure, Stop
from torch_port.audit.judge.record import Record
from torch_port.audit.judge.states import all_saved
from torch_port.audit.judge.trials import Trials
from torch_port.audit.judge.workers import AuditFailed

if TYPE_CHECKING:
    from torch_port.audit.judge.audit import Session

HASH_CAUSE = "with the hash seed of the run that was stopped it is equal: the order of a set, or hash(), decides here"
UNKEPT = "the batches were not put back: they are too large, or cannot be saved"


OWN_PHASES = ("construct", "load", "step", "save")  # in which the user's code runs; a hang may be a limit too short


class Resumed(NamedTuple):
    """The last part of a run that was stopped."""

    record: Record | Failure  # a failure where the user's code raised, or ended the process
    file: str  # that it loaded
    step: int  # of the stop


def resume(session: "Session", stop: tuple[int, ...]) -> Resumed:
    """Stop and resume, several times if asked to, until a part of the run differs."""
    file = session.files[str(stop[0])]
    for step, until in zip(stop, (*stop[1:], session.steps), strict=True):
        again = str(session.home / f"saved-{'-'.join(map(str, stop))}-{until}.pt")
        wanted = {"save": {str(until): again}} if until != session.steps else {}
        drift = session.dumps[str(step)]
        try:
            record = session.run(session.resumer, "R", start=step, steps=until, load=file, drift=drift, **wanted)
        except AuditFailed as stopped:
            failure = stopped.failure
            where = "" if "load after" in failure.phase else f", resumed after step {step}"
            failure = told(failure._replace(phase=failure.phase + where))
            if failure.phase.startswith(OWN_PHASES):
                return Resumed(failure, file, step)
            raise AuditFailed(failure) from None
        if session.differs(record, step):
            break
        if until != session.steps:
            file = again
    return Resumed(record, file, step)


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


def judged(session: "Session", stop: tuple[int, ...], resumed: Resumed, place: int) -> Stop:
    """What a resume showed and, if it differs, why.

    Args:
        session: of the audit.
        stop: the steps.
        resumed: see `resume`.
        place: of the stop among all of them; the workers take turns with the trials.
    """
    record, _, step = resumed
    if isinstance(record, Failure):
        return _raised(session, stop, resumed, record)
    found = session.compare(record, step)
    session.records.setdefault(step, record)
    open_to_doubt = suspects(session.a, record, step, session.ground.passed, session.moving)
    differing = tuple(one.name for one in open_to_doubt)
    if not found.faults:
        session.harmless |= {name for one in open_to_doubt for name in (one.name, *one.paths)}
        return Stop(stop, True, "bitwise", curve=found.curve, differing=differing)
    first = found.faults[0]
    if not session.ground.bitwise:
        near = judge.within(found.largest, session.ground.control.floor)
        text = "" if near else "further apart than two uninterrupted runs"
        return Stop(stop, near, "within" if near else "differs", first, cause=text, curve=found.curve,
                    differing=differing)  # fmt: skip
    by_hash = _is_equal_with_one_seed(session, resumed, stop)
    workers = (session.resumer,) if by_hash or session.ground.one_seed else (place % 2, session.resumer)
    result = Trials(session, record, resumed.file, step, workers).attribute(open_to_doubt)
    if not result.proved and first.path == "samples" and all(one.kind != "samples" for one in result.lost):
        result = result._replace(lost=(Suspect("samples", "samples", ()), *result.lost))
    causes, lines = _causes(session, result, record, step), _lines(session, result, record, step)
    if by_hash:
        causes, lines = [*(causes if result.proved else []), HASH_CAUSE], (HASH_ADVICE,)
    if result.proved and not by_hash:
        first = judge.at_load(step, result.lost, session.a.at[step], record.at[step]) or first
    lost = tuple(one.name for one in result.lost) or (() if by_hash else tuple(session.a.facts["feeding"]))
    return Stop(stop, False, "differs", first, lost, result.proved, "; ".join(causes), lines, differing, found.curve)


def _raised(session: "Session", stop: tuple[int, ...], resumed: Resumed, failure: Failure) -> Stop:
    """A resume that the user's code ended, where it lets the run that never stopped go on."""
    session.failure = session.failure or failure
    first = Difference(resumed.step, failure.phase, "no error", failure.error, math.inf)
    by_hash = _is_equal_with_one_seed(session, resumed, stop)
    cause, lines = (HASH_CAUSE, (HASH_ADVICE,)) if by_hash else ("", ())
    return Stop(stop, False, "raises", first, cause=cause, advice=lines)


def _is_equal_with_one_seed(session: "Session", resumed: Resumed, stop: tuple[int, ...]) -> bool:
    """Whether it is only another hash seed that makes a resume differ."""
    if session.ground.one_seed or resumed.step != stop[0]:  # it has the very seed with which its file was saved
        return False
    try:
        same = session.run(0, "H", start=resumed.step, load=resumed.file)
    except AuditFailed:
        return False
    return not session.differs(same, resumed.step)


def _causes(session: "Session", result: Found, record: Record, step: int) -> list[str]:
    """What was lost in words; of a set that is not proved the likeliest."""
    here, there, drift = session.a.at[step], record.at[step], record.facts.get("drift", {})
    shown = result.lost if result.proved else result.lost[:1]
    types = session.a.facts.get("saved types", {}).get(str(step), {})
    said = [cause(one.name, one.kind, here, there, drift, one.links, types) for one in shown]
    heard = record.facts.get("unmatched", {})
    said = [one + keys_unmatched(suspect.paths, heard)[0] for suspect, one in zip(shown, said, strict=True)]
    if result.proved:
        return said
    unkept = session.batches.tried and session.batches.after(step) is None
    words = WORDS_UNPROVED if said else hidden_words(session.a.facts["opaque"], session.a.facts["feeding"])
    return [words, *said, *([UNKEPT] if unkept else [])]


def _lines(session: "Session", result: Found, record: Record, step: int) -> tuple[str, ...]:
    """The lines to add or change; not many where nothing is proved."""
    if not result.lost:
        return (FEEDING_ADVICE,) if session.a.facts["feeding"] else HIDDEN_ADVICE
    here, there, facts = session.a.at[step], record.at[step], session.a.facts
    types = facts.get("saved types", {}).get(str(step), {})
    saved, written = _saved(session, step), facts.get("written", {})
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


def _saved(session: "Session", step: int) -> Callable[[Suspect], bool | None]:
    """Whether all of a suspect's values stand in the saved state, at this stop and at every other."""
    everywhere = session.a.facts.get("saved", {})

    def saved(one: Suspect) -> bool | None:
        if str(step) not in everywhere:
            return None
        if not any(path in session.a.at[step] for path in one.paths):
            return False
        return all_saved(session, one.paths)

    return saved
