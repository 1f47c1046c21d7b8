"""What a report looks like: lines for a terminal, one page of HTML, and values for JSON; from the report alone.

Each begins with the verdict. Text that comes from the user's code (paths, values, errors) is shown with its unprintable
characters escaped, and in the page with its markup escaped: it can neither move a cursor nor run.
"""

import json
import math
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from torch_port.audit.findings import Control, Difference, Report, State, Stop, as_plain

WIDTH = 120
LABEL = 18  # columns of a fact's name
SHOWN = 12  # names in a terminal's line; the page and JSON have them all
HEAD = ("state", "kind", "saved", "restored", "needed", "note")

Fact = tuple[str, str]


def as_json(report: Report) -> dict[str, Any]:
    """The report's fields and whether it holds; JSON has no infinity and no NaN, so they become text.

    Example:
        >>> as_json(Report("my:Run", 24, "bitwise", seconds=float("inf")))["seconds"]
        'inf'
    """
    text = json.dumps({"holds": report.holds} | as_plain(report))
    plain: dict[str, Any] = json.loads(text, parse_constant=lambda name: str(float(name)))
    return plain


def verdict(report: Report) -> str:
    """The verdict in one sentence.

    Example:
        >>> verdict(Report("my:Run", 24, "bitwise", stops=(Stop((7,), True, "bitwise"),)))
        'HOLDS, bitwise: my:Run, resumed at 1 stop in 24 steps, equals the run that never stopped.'
    """
    return _clean(" ".join(SENTENCES[report.verdict](report).split()))


def _bitwise(report: Report) -> str:
    return f"HOLDS, bitwise: {_resumed(report)} equals the run that never stopped."


def _within(report: Report) -> str:
    return (
        f"HOLDS, within noise: {_resumed(report)} is as close to the run that never stopped as two uninterrupted runs "
        "are to each other."
    )


def _resumed(report: Report) -> str:
    return f"{report.target}, resumed at {_count(len(report.stops), 'stop')} in {_count(report.steps, 'step')},"


def _broken(report: Report) -> str:
    """The first stop that does not hold: where it differs, and what was lost."""
    broken = [stop for stop in report.stops if not stop.holds]
    if not broken:
        return f"DOES NOT HOLD: {report.target} does not resume as if it had never stopped, see the warnings."
    first, count = broken[0], len(report.stops)
    lost = f", for it lost {_few(first.lost, 3)} ({'proved' if first.proved else 'suspected, not proved'})"
    return (
        f"DOES NOT HOLD: {report.target}, resumed {_where(first)}, differs from the run that never stopped"
        f"{_from(first.first)}{lost if first.lost else ''}"
        f"{f'; {len(broken)} of {count} stops differ' if count > 1 else ''}."
    )


def _unequal(report: Report) -> str:
    start = _from(report.control.first if report.control else None)
    return f"NOT DETERMINISTIC: two uninterrupted runs of {report.target} differ{start}, before any resume."


def _failed(report: Report) -> str:
    why = f": {report.failure.phase}: {report.failure.error}" if report.failure else ""
    return f"NO VERDICT: {report.target} could not be audited{why}"


def _from(first: Difference | None) -> str:
    return "" if first is None else f" from step {first.step} on, first in {first.path}"


SENTENCES = {
    "bitwise": _bitwise,
    "within": _within,
    "broken": _broken,
    "not deterministic": _unequal,
    "failed": _failed,
}


def lines(report: Report) -> list[str]:
    """The report for a terminal, 120 columns wide; lines of code are not wrapped, so that they can be copied."""
    found = textwrap.wrap(verdict(report), WIDTH, break_on_hyphens=False)
    if report.failure is not None:
        found += ["", *_wrapped("phase", report.failure.phase), *_wrapped("error", report.failure.error)]
        found += [f"    {_clean(line)}" for line in report.failure.traceback.splitlines()]
    for title, stops in _alike(report.stops):
        found += ["", *textwrap.wrap(title, WIDTH, subsequent_indent="  ")]
        if not _is_silent(stops[0]):
            for name, text in _facts(stops[0], SHOWN):
                found += _wrapped(name, text)
            found += _advice(stops[0])
            for stop in stops[1:]:
                unknown = "holds" if stop.holds else "no first difference is known"
                found += _wrapped(_where(stop), str(stop.first) if stop.first else unknown)
    if report.states:
        head, rows = HEAD, [_cells(group) for group in _groups(report.states)]
        found += ["", *_columns(head, rows, (48, 12, 7, 12, 9)), *_fold("  ", _power(report.states))]
    if report.warnings:
        found += ["", *(line for text in report.warnings for line in _wrapped("warning", text))]
    if report.control is not None:
        found += [""]
        for name, text in _control_facts(report.control, SHOWN):
            found += _wrapped(name, text)
    return [*found, "", _ran(report)]


# Facts, for both


def _facts(stop: Stop, shown: int | None) -> Iterator[Fact]:
    """What is known of a resume, as names and texts."""
    if stop.first is not None:
        at_load = ", as soon as it is loaded" if stop.first.step in stop.at else ""
        yield "first difference", f"step {stop.first.step}{at_load}, in {stop.first.path}"
        yield "never stopped", repr(stop.first.expected)
        yield "resumed", repr(stop.first.found)
        yield "distance", _distance(stop.first)
    if stop.lost:
        yield "lost", _few(stop.lost, shown)
        if stop.proved:
            yield (
                "proved",
                "with this put back, in a new process, the resumed run is equal; with any part missing it is not",
            )
        else:
            yield "NOT proved", "it is suspected: no trial in a new process has shown that putting it back is enough"
    elif not stop.holds:
        yield "lost", "not known"
    if stop.cause:
        yield "cause", stop.cause
    if stop.differing:
        yield "differ at the load", f"{_count(len(stop.differing), 'state')}: {_few(stop.differing, shown)}"
    if apart := [(step, size) for step, size in stop.curve if size != 0]:
        text = ", ".join(f"{size:.3g} at step {step}" for step, size in apart[:1] + apart[1:][-1:])
        yield "divergence", f"largest relative distance of a leaf: {text}"


def _control_facts(control: Control, shown: int | None) -> Iterator[Fact]:
    """What two uninterrupted runs showed."""
    if control.holds:
        yield "control", "two uninterrupted runs, in two processes, are equal"
    else:
        yield "control", "two uninterrupted runs, in two processes, DIFFER"
    if control.first is not None:
        yield "first difference", str(control.first)
    for note in control.notes:
        yield "note", note
    if control.floor:
        floor = sorted(control.floor.items(), key=lambda item: -item[1] if item[1] == item[1] else -math.inf)
        yield "noise floor", _few([f"{path} {size:.3g}" for path, size in floor], shown)


def _distance(first: Difference) -> str:
    units = "" if first.ulps is None else f", {_count(first.ulps, 'unit')} in the last place"
    return f"{first.distance:.3g}{units}" if math.isfinite(first.distance) else f"none that is a number{units}"


def _power(states: Sequence[State]) -> str:
    """What a pass means: how many states would have been missed."""
    needed, harmless, untried = (sum(state.needed is x for state in states) for x in (True, False, None))
    return (
        f"needed: without it the resumed run differs. {_count(needed, 'state')} needed, {harmless} not needed here, "
        f"{untried} not tried"
    )


def _ran(report: Report) -> str:
    return f"{_count(report.steps, 'step')}, {_count(len(report.stops), 'stop')}, {report.seconds:.1f} s"


def _where(stop: Stop) -> str:
    steps = " and ".join(filter(None, (", ".join(map(str, stop.at[:-1])), *map(str, stop.at[-1:]))))
    return f"after step{'s' if len(stop.at) > 1 else ''} {steps}"


def _is_silent(stop: Stop) -> bool:
    """Whether there is nothing to say but that it holds."""
    return stop.holds and not (stop.first or stop.lost or stop.cause or stop.advice or stop.differing)


def _alike(stops: Sequence[Stop]) -> Iterator[tuple[str, list[Stop]]]:
    """Stops with one outcome and its title, in the order of the first of each; those that do not hold come first."""
    groups: dict[Any, list[Stop]] = {}
    for stop in sorted(stops, key=lambda stop: stop.holds):
        silent = _is_silent(stop)
        key = (stop.holds, stop.relation, silent) + (
            () if silent else (stop.lost, stop.proved, stop.cause, stop.advice)
        )
        groups.setdefault(key, []).append(stop)
    for alike in groups.values():
        yield _title(alike if _is_silent(alike[0]) else alike[:1], len(alike)), alike


def _title(stops: Sequence[Stop], count: int) -> str:
    outcome = f"holds, {stops[0].relation}" if stops[0].holds else f"DOES NOT HOLD, {stops[0].relation}"
    more = f", and so at {_count(count - len(stops), 'more stop')}" if count > len(stops) else ""
    return _clean(f"stopped {', '.join(map(_where, stops))}: {outcome}{more}")


def _answers(state: State) -> tuple[str, str, str]:
    """Saved, restored and needed, in words."""
    said = {True: "yes", False: "no"}
    return (
        said.get(state.saved, "unknown"),  # type: ignore[arg-type]
        said.get(state.restored, "not compared"),  # type: ignore[arg-type]
        said.get(state.needed, "not tried"),  # type: ignore[arg-type]
    )


def _groups(states: Sequence[State]) -> list[list[State]]:
    """States about which the same is said, what is amiss first."""
    groups: dict[Any, list[State]] = {}
    for state in states:
        groups.setdefault(state[1:], []).append(state)
    return sorted(groups.values(), key=lambda group: _rank(group[0]))


def _rank(state: State) -> tuple[bool, bool, bool]:
    return state.restored is not False, state.needed is not True, state.saved is not False


def _cells(group: Sequence[State]) -> tuple[str, ...]:
    return (_few([state.path for state in group], 2), group[0].kind, *_answers(group[0]), group[0].note)


# Text


def _clean(text: str) -> str:
    """The text with every unprintable character, a line's end among them, as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def _count(n: int, noun: str) -> str:
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def _few(names: Sequence[str], shown: int | None) -> str:
    """The first names, and how many more there are; None: all of them."""
    rest = len(names[shown:]) if shown else 0
    return ", ".join(names[: len(names) - rest]) + (f" and {rest} more" if rest else "")


def _fold(start: str, text: str, later: str | None = None) -> list[str]:
    """The text in lines, the first behind `start`."""
    room = textwrap.TextWrapper(
        WIDTH, initial_indent=start, subsequent_indent=start if later is None else later, break_on_hyphens=False
    )
    return room.wrap(_clean(text)) or [start.rstrip()]


def _wrapped(name: str, text: str) -> list[str]:
    """A fact in lines: its name, and the text beside it."""
    return _fold(f"  {name:<{LABEL}}  ", text, " " * (LABEL + 4))


def _advice(stop: Stop) -> list[str]:
    """The lines to add, each as it is."""
    starts = ("change", *[""] * (len(stop.advice) - 1))
    return [f"  {start:<{LABEL}}  {_clean(line)}" for start, line in zip(starts, stop.advice, strict=False)]


def _columns(head: Sequence[str], rows: Sequence[Sequence[str]], most: Sequence[int]) -> list[str]:
    """A table; no column but the last is wider than `most` says, and a cell goes on in the next line."""
    rows = [[_clean(cell) for cell in row] for row in rows]
    widths = [min(top, max(len(row[i]) for row in [head, *rows])) for i, top in enumerate(most)]
    widths.append(WIDTH - sum(widths) - 2 * len(widths))
    found = []
    for row in [head, ["-" * max(width, 1) for width in [*widths[:-1], len(head[-1])]], *rows]:
        folded = [textwrap.wrap(cell, width, break_on_hyphens=False) for cell, width in zip(row, widths, strict=True)]
        for i in range(max(1, *map(len, folded))):
            cells = (cell[i] if i < len(cell) else "" for cell in folded)
            found.append("  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True)).rstrip())
    return found


# The page

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; } h2 { font-size: 1.1rem; margin-top: 2rem; }
code, pre, td:first-child, dd { font-family: ui-monospace, monospace; font-size: 13px; overflow-wrap: anywhere; }
pre { padding: .6rem; border: 1px solid; overflow-x: auto; }
dl { display: grid; grid-template-columns: 10rem 1fr; gap: .15rem 1rem; } dd { margin: 0; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .1rem .8rem .1rem 0; vertical-align: top; }
tr { border-bottom: 1px solid; } strong { text-decoration: underline; }
svg { max-width: 100%; height: auto; } svg text { font-size: 11px; fill: currentColor; }
summary { font-weight: bold; margin-top: 1rem; }
"""


def html(report: Report) -> str:
    """The report as one page: no script, nothing from elsewhere, readable without colour."""
    parts = [f"<h1>{_text(verdict(report))}</h1>", f"<p>{_text(_ran(report))}</p>"]
    if report.failure is not None:
        parts += ["<h2>Failure</h2>", _list([("phase", report.failure.phase), ("error", report.failure.error)])]
        parts += _code(report.failure.traceback.splitlines())
    if report.stops:
        parts.append("<h2>Stops</h2>")
    for i, stop in enumerate(sorted(report.stops, key=lambda stop: stop.holds)):
        parts.append(f"<details{' open' if i == 0 or not _is_silent(stop) else ''}>")
        parts.append(f"<summary>{_text(_title([stop], 1))}</summary>")
        parts.append(_list(_facts(stop, None)))
        if stop.advice:
            parts += ["<p>Lines to add or change:</p>", *_code(stop.advice)]
        parts += [plot(stop, report.steps), "</details>"]
    if report.states:
        parts += ["<h2>States</h2>", f"<p>{_text(_power(report.states))}</p>", _states(report.states)]
    if report.warnings:
        parts += ["<h2>Warnings</h2>", "<ul>", *(f"<li>{_text(text)}</li>" for text in report.warnings), "</ul>"]
    if report.control is not None:
        parts += ["<h2>Control</h2>", _list(_control_facts(report.control, None))]
    return "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
            f"<title>Audit of {_text(report.target)}</title>",
            f"<style>{STYLE}</style></head><body>",
            *parts,
            "</body></html>\n",
        ]
    )


def plot(stop: Stop, steps: int) -> str:
    """The divergence of a resumed run, step by step, as an SVG element; empty where there is nothing to draw.

    The scale is logarithmic, with a line below it for steps that are equal and one above it for differences that are
    no number.
    """
    if not stop.curve:
        return ""
    sizes = [size for _, size in stop.curve if math.isfinite(size) and size > 0]
    low = math.floor(math.log10(min(sizes, default=1e-8)))
    high = max(math.ceil(math.log10(max(sizes, default=1))), low + 1)
    left, right, top, bottom = 90, 690, 40, 220  # of the logarithmic scale; equal steps lie below it
    start, end = min(step for step, _ in stop.curve), max(steps, *(step for step, _ in stop.curve))

    def x(step: int) -> float:
        return left + (right - left) * (step - start) / max(end - start, 1)

    def y(size: float) -> float:
        if not math.isfinite(size):
            return top - 20
        return bottom + 25 if size <= 0 else level(math.log10(size))

    def level(power: float) -> float:
        return bottom - (bottom - top) * (power - low) / (high - low)

    every = max(1, -(-(high - low) // 6))
    levels = [(f"1e{power}", level(power)) for power in range(low, high + 1, every)] + [("equal", bottom + 25)]
    if any(not math.isfinite(size) for _, size in stop.curve):
        levels.append(("no number", top - 20))
    marks = sorted({start + round((end - start) * i / 6) for i in range(7)})
    parts = [
        f'<line x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}" stroke="currentColor" stroke-width="0.3"/>'
        f'<text x="{left - 8}" y="{at + 4:.1f}" text-anchor="end">{name}</text>'
        for name, at in levels
    ]
    parts += [f'<text x="{x(step):.1f}" y="265" text-anchor="middle">{step}</text>' for step in marks]
    points = " ".join(f"{x(step):.1f},{y(size):.1f}" for step, size in stop.curve)
    parts.append(f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"/>')
    parts += [
        f'<circle cx="{x(step):.1f}" cy="{y(size):.1f}" r="3" fill="currentColor"><title>step {step}: '
        f"{'equal' if size == 0 else f'{size:.3g}'}</title></circle>"
        for step, size in stop.curve
    ]
    name = _text(f"Largest relative distance of a leaf from the run that never stopped, stopped {_where(stop)}")
    return (
        f'<svg viewBox="0 0 720 290" width="720" role="img" aria-label="{name}"><text x="{left}" y="12">{name}</text>'
        f'{"".join(parts)}<text x="{(left + right) / 2}" y="285" text-anchor="middle">step</text></svg>'
    )


def _text(text: str) -> str:
    """Text as it may stand in a page, also within quotes."""
    return escape(_clean(text))


def _list(facts: Iterable[Fact]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in facts) + "</dl>"


def _code(texts: Sequence[str]) -> list[str]:
    return ["<pre>" + "\n".join(map(_text, texts)) + "</pre>"] if texts else []


def _states(states: Sequence[State]) -> str:
    """The table of all states, what is amiss first and underlined."""
    found = ["<table><thead><tr>", *(f"<th>{name}</th>" for name in HEAD), "</tr></thead><tbody>"]
    for state in sorted(states, key=_rank):
        answers = (f"<strong>{cell}</strong>" if cell == "no" else cell for cell in _answers(state)[:2])
        cells = (_text(state.path), _text(state.kind), *answers, _answers(state)[2], _text(state.note))
        found.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*found, "</tbody></table>"])
