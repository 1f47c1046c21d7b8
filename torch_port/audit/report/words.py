"""What a report says, in words that the terminal and the page share; from the report alone.

Text that comes from the user's code (paths, values, errors) is shown with its unprintable characters escaped.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

from torch_port.audit.judge.findings import Control, Difference, Report, State, Stop

HEAD = ("state", "kind", "saved", "restored", "needed", "note")
REFUSED = "torch.load(weights_only=True) refuses the saved state"  # so begins a warning

Fact = tuple[str, str]


def verdict(report: Report) -> str:
    """The verdict in one sentence.

    Example:
        >>> verdict(Report("my:Run", 24, "bitwise", stops=(Stop((7,), True, "bitwise"),)))
        'HOLDS, bitwise: my:Run, resumed at 1 stop in 24 steps, equals the run that never stopped.'
    """
    refused = any(text.startswith(REFUSED) for text in report.warnings)
    more = f" But {REFUSED}, see the warnings." if refused else ""
    return clean(" ".join(SENTENCES[report.verdict](report).split()) + more)


def _bitwise(report: Report) -> str:
    return f"HOLDS, bitwise: {_resumed(report)} equals the run that never stopped."


def _within(report: Report) -> str:
    return (
        f"HOLDS, within noise: {_resumed(report)} is as close to the run that never stopped as two uninterrupted runs "
        "are to each other."
    )


def _resumed(report: Report) -> str:
    return f"{report.target}, resumed at {counted(len(report.stops), 'stop')} in {counted(report.steps, 'step')},"


def _broken(report: Report) -> str:
    """The first stop that does not hold: where it differs, and what was lost."""
    broken = [stop for stop in report.stops if not stop.holds]
    if not broken:
        return f"DOES NOT HOLD: {report.target} does not resume as if it had never stopped, see the warnings."
    first, count = broken[0], len(report.stops)
    more = f"; {len(broken)} of {count} stops do not hold" if count > 1 else ""
    if first.relation == "raises" and first.first:
        return (
            f"DOES NOT HOLD: {report.target}, resumed {where(first)}, raises, where the run that never stopped goes on"
            f"{more.replace('differ', 'do not hold')}: {first.first.path}: {first.first.found}"
        )
    lost = f", for it lost {few(first.lost, 3)} ({'proved' if first.proved else 'suspected, not proved'})"
    return (
        f"DOES NOT HOLD: {report.target}, resumed {where(first)}, differs from the run that never stopped"
        f"{_from(first.first)}{lost if first.lost else ''}"
        f"{more}."
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


def facts(stop: Stop, shown: int | None) -> Iterator[Fact]:
    """What is known of a resume, as names and texts."""
    if stop.relation == "raises" and stop.first is not None:
        yield "raises", f"{stop.first.path}: {stop.first.found}"
    elif stop.first is not None:
        at_load = ", as soon as it is loaded" if stop.first.step in stop.at else ""
        yield "first difference", f"step {stop.first.step}{at_load}, in {stop.first.path}"
        yield "never stopped", repr(stop.first.expected)
        yield "resumed", repr(stop.first.found)
        yield "distance", _distance(stop.first)
    if stop.lost:
        yield "lost", few(stop.lost, shown)
        if stop.proved:
            yield (
                "proved",
                "with this put back, in a new process, the resumed run is equal; with any part missing it is not",
            )
        else:
            yield "NOT proved", "it is suspected: no trial in a new process has shown that putting it back is enough"
    elif not stop.holds and stop.relation != "raises":
        yield "lost", "not known"
    if stop.cause:
        yield "cause", stop.cause
    if stop.differing:
        yield "differ at the load", f"{counted(len(stop.differing), 'state')}: {few(stop.differing, shown)}"
    if apart := [(step, size) for step, size in stop.curve if size != 0]:
        text = ", ".join(f"{size:.3g} at step {step}" for step, size in apart[:1] + apart[1:][-1:])
        yield "divergence", f"largest relative distance of a leaf: {text}"


def control_facts(control: Control, shown: int | None) -> Iterator[Fact]:
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
        yield "noise floor", few([f"{path} {size:.3g}" for path, size in floor], shown)


def _distance(first: Difference) -> str:
    units = "" if first.ulps is None else f", {counted(first.ulps, 'unit')} in the last place"
    return f"{first.distance:.3g}{units}" if math.isfinite(first.distance) else f"none that is a number{units}"


def power(states: Sequence[State]) -> str:
    """What a pass means: how many states would have been missed."""
    needed, harmless, untried = (sum(state.needed is x for state in states) for x in (True, False, None))
    return (
        f"needed: without it the resumed run differs. {counted(needed, 'state')} needed, {harmless} not needed here, "
        f"{untried} not tried"
    )


def ran(report: Report) -> str:
    """What was done, and how long it took."""
    return f"{counted(report.steps, 'step')}, {counted(len(report.stops), 'stop')}, {report.seconds:.1f} s"


def where(stop: Stop) -> str:
    """The steps of a stop."""
    steps = " and ".join(filter(None, (", ".join(map(str, stop.at[:-1])), *map(str, stop.at[-1:]))))
    return f"after step{'s' if len(stop.at) > 1 else ''} {steps}"


def is_silent(stop: Stop) -> bool:
    """Whether there is nothing to say but that it holds."""
    return stop.holds and not (stop.first or stop.lost or stop.cause or stop.advice or stop.differing)


def alike(stops: Sequence[Stop]) -> Iterator[tuple[str, list[Stop]]]:
    """Stops with one outcome and its title, in the order of the first of each; those that do not hold come first."""
    found: dict[Any, list[Stop]] = {}
    for stop in sorted(stops, key=lambda stop: stop.holds):
        silent = is_silent(stop)
        key = (stop.holds, stop.relation, silent) + (
            () if silent else (stop.lost, stop.proved, stop.cause, stop.advice)
        )
        found.setdefault(key, []).append(stop)
    for same in found.values():
        yield title(same if is_silent(same[0]) else same[:1], len(same)), same


def title(stops: Sequence[Stop], count: int) -> str:
    """The outcome of stops that are alike; `count` of them, not all of which may be given."""
    outcome = f"holds, {stops[0].relation}" if stops[0].holds else f"DOES NOT HOLD, {stops[0].relation}"
    more = f", and so at {counted(count - len(stops), 'more stop')}" if count > len(stops) else ""
    return clean(f"stopped {', '.join(map(where, stops))}: {outcome}{more}")


def answers(state: State) -> tuple[str, str, str]:
    """Saved, restored and needed, in words."""
    said = {True: "yes", False: "no"}
    return (
        said.get(state.saved, "unknown"),  # type: ignore[arg-type]
        said.get(state.restored, "not compared"),  # type: ignore[arg-type]
        said.get(state.needed, "not tried"),  # type: ignore[arg-type]
    )


def groups(states: Sequence[State]) -> list[list[State]]:
    """States about which the same is said, what is amiss first."""
    found: dict[Any, list[State]] = {}
    for state in states:
        found.setdefault(state[1:], []).append(state)
    return sorted(found.values(), key=lambda group: rank(group[0]))


def rank(state: State) -> tuple[bool, bool, bool]:
    """Sorts states: what is amiss first."""
    return state.restored is not False, state.needed is not True, state.saved is not False


def cells(group: Sequence[State]) -> tuple[str, ...]:
    """A row of the table, for states about which the same is said."""
    return (few([state.path for state in group], 2), group[0].kind, *answers(group[0]), group[0].note)


def clean(text: str) -> str:
    """The text with every unprintable character, a line's end among them, as its escape."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def counted(n: int, noun: str) -> str:
    """A number of things."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def few(names: Sequence[str], shown: int | None) -> str:
    """The first names, and how many more there are; None: all of them."""
    rest = len(names[shown:]) if shown else 0
    return ", ".join(names[: len(names) - rest]) + (f" and {rest} more" if rest else "")
