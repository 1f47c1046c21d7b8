"""The reasons of faults: when a crash does harm, by the events, or what was not synchronised; and what to change."""

from collections.abc import Sequence

from torch_port.audit.crash.disk import Event
from torch_port.audit.crash.points import Point, shape
from torch_port.audit.crash.report import LOST, NO_WAY_BACK, RESUMED, Cause, Trial


def causes_of(
    trials: Sequence[Trial], points: Sequence[Point], events: Sequence[Event], saves: int
) -> tuple[Cause, ...]:
    """The faults, each with its reason: from which event to which a crash does harm, or what was not synchronised.

    Args:
        trials: by point.
        points: of the record.
        events: the record.
        saves: in it.
    """
    faults = [trial for trial in trials if trial.judgement != RESUMED]
    kills = [trial for trial in trials if trial.how.startswith("killed before")]
    harmed = {trial.point: trial.judgement != RESUMED for trial in kills}
    kept = {trial.point: trial.saves_kept for trial in kills}
    later = [trial for trial in kills if 0 < points[trial.point].published < saves]
    if faults and later and (all(t.judgement == NO_WAY_BACK for t in later) or not any(t.saves_kept for t in later)):
        first = next((trial for trial in later if trial.judgement != RESUMED), faults[0])
        crash = f"stopped at any time after the first save, as before {first.event}"
        return (Cause(first.judgement, crash, first.detail, len(faults), _LOADS),)
    found: dict[tuple[str, ...], list[tuple[Trial, str, str]]] = {}
    for trial in faults:
        crash, advice = _reason(trial, points, events, harmed, kept)
        if crash:
            kind = () if advice in (_BYTES, _NAMES) else (shape(crash),)
            found.setdefault((trial.judgement, advice, *kind), []).append((trial, crash, advice))
    causes = []
    for same in found.values():
        # What is not synchronised does harm when the name changes, and at any time after.
        first, crash, advice = min(same, key=lambda item: _ORDER.get(item[0].event.partition(" ")[0], 2))
        causes.append(Cause(first.judgement, crash, first.detail, len(same), advice))
    return tuple(sorted(causes, key=lambda cause: cause.judgement != NO_WAY_BACK))


_ORDER = {"rename": 0, "write": 1}
_LOADS = "no crash is needed for that: the script does not load what it saves, or saves too little; `audit` tells which"
_BYTES = "os.fsync the file before its name is given or changed, and before an older one is deleted"
_NAMES = "os.fsync the directory after a name in it has changed, and before an older file is deleted"
_STRAIGHT = "write to a temporary beside it, os.fsync, then os.replace: never into the file itself"
_DELETED = "delete an older checkpoint only when the new one is whole and synchronised"
_TOGETHER = (
    "the files of one save do not change together, and must change together: write one file, or give the directory "
    "that holds them its name last, or write the pointer to the others last"
)
_START = "load the newest whole checkpoint at the start"


def _reason(
    trial: Trial, points: Sequence[Point], events: Sequence[Event], harmed: dict[int, bool], kept: dict[int, int | None]
) -> tuple[str, str]:
    """When a fault happens and what to change; nothing where another fault explains it."""
    number = trial.point
    if number == len(points):
        return "started again after its end", _START
    over = number + 1 == len(points) or points[number + 1].saved > points[number].saved
    if trial.how.startswith("power"):
        if not over and (harmed.get(number) or harmed.get(number + 1)):
            return "", ""  # a kill does it as well
        return f"after {trial.event}, {trial.how.replace(' after it', '')}", _BYTES if "bytes" in trial.how else _NAMES
    if not harmed.get(number) and not harmed.get(number + 1):
        return f"{trial.how.replace(' it', '')} {trial.event}", _STRAIGHT
    start = end = number if harmed.get(number) else number + 1
    while harmed.get(start - 1):
        start -= 1
    # Where a finished save was lost before it counted as one: back to the event that lost it.
    before = next((n for n in range(start - 1, -1, -1) if kept.get(n) != kept[start]), -1)
    if trial.judgement == LOST and (kept.get(before) or 0) > (kept[start] or 0):
        start = before + 1
    while harmed.get(end + 1):
        end += 1
    if start == 0:
        return f"killed before {points[start].named}", _TOGETHER
    before = max((n for n in harmed if n < start), default=0)  # what was tried last; one event after it does the harm
    openings = [events[points[n].start] for n in range(before, start)]
    latest = "" if before == start - 1 else "at the latest "
    later = "" if end + 1 in harmed or end + 1 == len(points) else " or later"
    crash = f"killed {latest}after {points[start - 1].named} and before {points[end].named} was done{later}"
    if any(event.call in ("unlink", "rmdir") for event in openings):
        return crash, _DELETED
    closing = events[points[end].start].name
    temporary = any(event.call == "rename" and event.name == closing for event in events[points[end].start :])
    if not temporary and any(event.call in ("create", "truncate") and event.name == closing for event in openings):
        return crash, _STRAIGHT
    return crash, _TOGETHER
