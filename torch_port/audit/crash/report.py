"""What a crashed script is told: each crash and what became of it, the reasons, and what was not seen."""

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy_ref.console import BROKEN, FAILED, HOLDS, say
from numpy_ref.tree import printable
from torch_port.audit.crash.bench import Event
from torch_port.audit.crash.reference import Point, shape
from torch_port.audit.report.words import clean

RESUMED, LOST, NO_WAY_BACK = "resumed", "work lost", "no way back"


class Trial(NamedTuple):
    """One crash, and what became of the run."""

    point: int
    event: str
    how: str  # "killed before it", "killed in the middle of it", "power lost after it: ..."
    judgement: str
    detail: str
    saves_kept: int | None = None  # that it did not have to do again; None: it did not end, or not equal
    steps_again: int | None = None  # printed before the crash and again after it, where the script prints steps
    starts: int = 1  # until it ended


class Cause(NamedTuple):
    """Faults that have one reason."""

    judgement: str
    crash: str  # when it must happen, by the events
    detail: str  # of the first
    trials: int
    advice: str


class Report(NamedTuple):
    """What was found about one script."""

    command: tuple[str, ...]
    verdict: str  # "holds", "broken", "not deterministic" or "failed"
    seconds: float  # of the reference run
    saves: int
    saved_as: str  # names of what is saved, digits as #
    events: int
    tried: int  # of them
    compared: tuple[str, ...]  # files
    causes: tuple[Cause, ...]
    trials: tuple[Trial, ...]
    not_seen: tuple[str, ...]
    error: str = ""

    @property
    def holds(self) -> bool:
        """Whether every crash was survived."""
        return self.verdict == "holds"

    @property
    def status(self) -> int:
        """The exit status."""
        return HOLDS if self.holds else BROKEN if self.verdict == "broken" else FAILED


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


def limits(events: list[Event], notes: Sequence[str] = (), *, explained: bool = True) -> tuple[str, ...]:
    """What the events cannot tell; `explained`: kills were made from them."""
    natives = sorted({shape(event.target or event.name) for event in events if event.native})
    ignored = ("/dev/", "/proc/", "/sys/")
    outside = {event.name for event in events if event.call == "outside" and not event.name.startswith(ignored)}
    outside = {name for name in outside if os.path.exists(name)}  # what is there no more does no harm
    found = [
        "Calls are seen where Python makes them. What C++ or Rust writes is seen in torch.save and safetensors; "
        "elsewhere (tofile, memory maps, child programs) only as a file that has changed, at the next call that is "
        "seen, as one write",
        "What a kill leaves is made from the record of the reference run, and not by a signal"
        if explained
        else "The script kills itself at the events, for they do not tell all that it did",
        "Kills come at events of the first Python process; what others write is there as they have left it",
        "Power loss is made from the record of the reference run: a few of the states that POSIX allows, not all; no "
        "disk that lies about an fsync, no other machine that writes to the same directory",
    ]
    if natives:
        found.append("Seen only afterwards: " + ", ".join(natives[:8]))
    if outside:
        names = ", ".join(sorted(outside)[:4]) + (", ..." if len(outside) > 4 else "")
        found.append(f"Written outside the directory, and left there from run to run: {names}")
    return (*found, *notes)


def as_json(report: Report) -> dict[str, Any]:
    """A report as JSON has it."""
    found = report._asdict() | {"holds": report.holds, "causes": [cause._asdict() for cause in report.causes]}
    found["trials"] = [trial._asdict() for trial in report.trials]
    return found if report.error else {name: value for name, value in found.items() if name != "error"}


def print_report(report: Report) -> None:
    """The same as lines of text."""
    tried = f"{report.tried} of {report.events} events tried"
    if report.tried < report.events:
        tried += ", an even spread from the first save to the last; --limit 0 tries all"
    saves = f"{report.saves} saves of {printable(report.saved_as)}"
    say(f"{' '.join(report.command)}: {report.seconds:.1f} s, {saves}, {tried}")
    say(f"compared at the end: {', '.join(map(printable, report.compared))}")
    counts = Counter(trial.judgement for trial in report.trials)
    told = ", ".join(f"{counts[name]} {name}" for name in (RESUMED, LOST, NO_WAY_BACK) if counts[name])
    say(f"{len(report.trials)} crashes: {told}")
    for cause in report.causes:
        say("")
        _say(f"{cause.judgement}: {cause.crash}" + (f" ({cause.trials} crashes like it)" if cause.trials > 1 else ""))
        _say(cause.detail, "    ")
        _say(f"to change: {cause.advice}", "    ")
    say("")
    say("not seen:")
    for line in report.not_seen:
        _say(line, "    ")
    say("holds" if report.holds else "does not hold")


def _say(text: str, indent: str = "") -> None:
    """Lines as wide as a page; what a terminal would obey is shown instead."""
    say(textwrap.fill(clean(text), 118, initial_indent=indent, subsequent_indent=indent + "  "))
