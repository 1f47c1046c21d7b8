"""A report as one page of HTML: no script, nothing from elsewhere, with the divergence plotted as inline SVG.

Text that comes from the user's code has its markup escaped: it cannot run.
"""

import math
from collections.abc import Iterable, Sequence
from html import escape

from torch_port.audit.judge.findings import Report, State, Stop
from torch_port.audit.report import words

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
    parts = [f"<h1>{_text(words.verdict(report))}</h1>", f"<p>{_text(words.ran(report))}</p>"]
    if report.failure is not None:
        parts += ["<h2>Failure</h2>", _list([("phase", report.failure.phase), ("error", report.failure.error)])]
        parts += _code(report.failure.traceback.splitlines())
    if report.stops:
        parts.append("<h2>Stops</h2>")
    for i, stop in enumerate(sorted(report.stops, key=lambda stop: stop.holds)):
        parts.append(f"<details{' open' if i == 0 or not words.is_silent(stop) else ''}>")
        parts.append(f"<summary>{_text(words.title([stop], 1))}</summary>")
        parts.append(_list(words.facts(stop, None)))
        if stop.advice:
            parts += ["<p>Lines to add or change:</p>", *_code(stop.advice)]
        parts += [plot(stop, report.steps), "</details>"]
    if report.states:
        parts += ["<h2>States</h2>", f"<p>{_text(words.power(report.states))}</p>", _states(report.states)]
    if report.warnings:
        parts += ["<h2>Warnings</h2>", "<ul>", *(f"<li>{_text(text)}</li>" for text in report.warnings), "</ul>"]
    if report.control is not None:
        parts += ["<h2>Control</h2>", _list(words.control_facts(report.control, None))]
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
    name = _text(f"Largest relative distance of a leaf from the run that never stopped, stopped {words.where(stop)}")
    return (
        f'<svg viewBox="0 0 720 290" width="720" role="img" aria-label="{name}"><text x="{left}" y="12">{name}</text>'
        f'{"".join(parts)}<text x="{(left + right) / 2}" y="285" text-anchor="middle">step</text></svg>'
    )


def _text(text: str) -> str:
    """Text as it may stand in a page, also within quotes."""
    return escape(words.clean(text))


def _list(facts: Iterable[words.Fact]) -> str:
    return "<dl>" + "".join(f"<dt>{_text(name)}</dt><dd>{_text(text)}</dd>" for name, text in facts) + "</dl>"


def _code(texts: Sequence[str]) -> list[str]:
    return ["<pre>" + "\n".join(map(_text, texts)) + "</pre>"] if texts else []


def _states(states: Sequence[State]) -> str:
    """The table of all states, what is amiss first and underlined."""
    found = ["<table><thead><tr>", *(f"<th>{name}</th>" for name in words.HEAD), "</tr></thead><tbody>"]
    for state in sorted(states, key=words.rank):
        answers = (f"<strong>{cell}</strong>" if cell == "no" else cell for cell in words.answers(state)[:2])
        cells = (_text(state.path), _text(state.kind), *answers, words.answers(state)[2], _text(state.note))
        found.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    return "\n".join([*found, "</tbody></table>"])
