"""A report as lines for a terminal, and as values for JSON; from the report alone.

Both begin with the verdict. No text that comes from the user's code can move a cursor.
"""

import json
import textwrap
from collections.abc import Sequence
from typing import Any

from torch_port.audit.judge.findings import Report, Stop, as_plain
from torch_port.audit.report import words

WIDTH = 120
LABEL = 18  # columns of a fact's name
SHOWN = 12  # names in a terminal's line; the page and JSON have them all


def as_json(report: Report) -> dict[str, Any]:
    """The report's fields and whether it holds; JSON has no infinity and no NaN, so they become text.

    Example:
        >>> as_json(Report("my:Run", 24, "bitwise", seconds=float("inf")))["seconds"]
        'inf'
    """
    text = json.dumps({"holds": report.holds} | as_plain(report))
    plain: dict[str, Any] = json.loads(text, parse_constant=lambda name: str(float(name)))
    return plain


def lines(report: Report) -> list[str]:
    """The report for a terminal, 120 columns wide; lines of code are not wrapped, so that they can be copied."""
    found = textwrap.wrap(words.verdict(report), WIDTH, break_on_hyphens=False)
    if report.failure is not None:
        found += ["", *_wrapped("phase", report.failure.phase), *_wrapped("error", report.failure.error)]
        found += [f"    {words.clean(line)}" for line in report.failure.traceback.splitlines()]
    for title, stops in words.alike(report.stops):
        found += ["", *textwrap.wrap(title, WIDTH, subsequent_indent="  ")]
        if not words.is_silent(stops[0]):
            for name, text in words.facts(stops[0], SHOWN):
                found += _wrapped(name, text)
            found += _advice(stops[0])
            for stop in stops[1:]:
                unknown = "holds" if stop.holds else "no first difference is known"
                found += _wrapped(words.where(stop), str(stop.first) if stop.first else unknown)
    if report.states:
        head, rows = words.HEAD, [words.cells(group) for group in words.groups(report.states)]
        found += ["", *_columns(head, rows, (48, 12, 7, 12, 9)), *_fold("  ", words.power(report.states))]
    if report.warnings:
        found += ["", *(line for text in report.warnings for line in _wrapped("warning", text))]
    if report.control is not None:
        found += [""]
        for name, text in words.control_facts(report.control, SHOWN):
            found += _wrapped(name, text)
    return [*found, "", words.ran(report)]


def _fold(start: str, text: str, later: str | None = None) -> list[str]:
    """The text in lines, the first behind `start`."""
    room = textwrap.TextWrapper(
        WIDTH, initial_indent=start, subsequent_indent=start if later is None else later, break_on_hyphens=False
    )
    return room.wrap(words.clean(text)) or [start.rstrip()]


def _wrapped(name: str, text: str) -> list[str]:
    """A fact in lines: its name, and the text beside it."""
    return _fold(f"  {name:<{LABEL}}  ", text, " " * (LABEL + 4))


def _advice(stop: Stop) -> list[str]:
    """The lines to add, each as it is."""
    starts = ("change", *[""] * (len(stop.advice) - 1))
    return [f"  {start:<{LABEL}}  {words.clean(line)}" for start, line in zip(starts, stop.advice, strict=False)]


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], most: Sequence[int]) -> list[str]:
    """A table; no column but the last is wider than `most` says, and a cell goes on in the next line."""
    rows = [[words.clean(cell) for cell in row] for row in rows]
    widths = [min(top, max(len(row[i]) for row in [head, *rows])) for i, top in enumerate(most)]
    widths.append(WIDTH - sum(widths) - 2 * len(widths))
    found = []
    for row in [head, ["-" * max(width, 1) for width in [*widths[:-1], len(head[-1])]], *rows]:
        folded = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for i in range(max(1, *map(len, folded))):
            cells = (cell[i] if i < len(cell) else "" for cell in folded)
            found.append("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    return found
