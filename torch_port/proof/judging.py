"""What a measurement finds, and whether it is what its row says."""

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy_ref.proof.boundary import Row, row_named
from numpy_ref.proof.equivalence import Verdict, compare


class Measured(NamedTuple):
    """A row of the boundary as this machine shows it."""

    row: str  # its name
    kind: str
    holds: bool | None  # None where it cannot be measured here
    figure: str  # what was found
    share: float | None  # of the allowance that was used, for a row of the kind "within"
    note: str  # in which variants of a process, or why not at all


class Sides(NamedTuple):
    """Two trees that a row relates; each has its cases at the top."""

    expected: Any
    found: Any


class InVariants(Sides):
    """Two sides whose cases are variants of a process, so that their names are worth telling."""


class Chance(NamedTuple):
    """The outcome of a statistical test: how probable what was seen, or more, is by chance alone."""

    probability: float
    figure: str


class NotHere(Exception):
    """This machine lacks what the measurement needs; the message says what."""


Finding = Sides | Verdict | Chance
MEASURES: dict[str, Callable[[], Finding]] = {}  # by the row's name


def measures(name: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Enter a function as the one that measures a row."""

    def enter(function: Callable[[], Finding]) -> Callable[[], Finding]:
        MEASURES[row_named(name).name] = function
        return function

    return enter


def measure(row: Row) -> Measured:
    """Measure a row on this machine, or say why that is not possible."""
    try:
        return judge(row, MEASURES[row.name]())
    except NotHere as error:
        return Measured(row.name, row.kind, None, "", None, str(error))


def judge(row: Row, finding: Finding) -> Measured:
    """Whether what was found is what the row says. Of a row of the kind "never", every case must differ."""
    share, note = None, ", ".join(finding.expected) if isinstance(finding, InVariants) else ""
    if isinstance(finding, Chance):
        holds = finding.probability > (row.false_alarms or 0)
        figure = f"{finding.figure}: by chance with probability {finding.probability:.2g}"
    elif isinstance(finding, Verdict):  # of a law, which knows itself what it asks for
        holds, figure = finding.holds, str(finding._replace(cause=""))
    elif row.kind == "never":
        verdicts = [compare(finding.expected[case], finding.found[case]) for case in finding.expected]
        holds, figure = not any(verdict.holds for verdict in verdicts), str(verdicts[0])
    else:
        verdict = compare(finding.expected, finding.found, tolerance=row.tolerance)
        holds, figure = verdict.holds, str(verdict)
        if row.tolerance is not None:
            share = verdict.share
        if verdict.relation == "within":
            allowed = verdict.distance / verdict.share
            figure = f"{verdict.distance:.2g} apart of {allowed:.2g} allowed, in {verdict.leaf}"
    return Measured(row.name, row.kind, holds, figure, share, note)
