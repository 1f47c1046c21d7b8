"""What a crashed script is told: each crash and what became of it, the reasons, and what could not be seen."""

import os
import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from numpy_ref.console import BROKEN, FAILED, HOLDS, say
from numpy_ref.tree import printable
from torch_port.audit.crash.disk import Event
from torch_port.audit.crash.points import shape
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
