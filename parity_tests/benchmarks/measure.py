"""Two ways to one end, timed in turn in one process, so that a slow moment falls on both.

Their times are the processor's, of one thread: what else the machine does counts for little. A process is timed by the
clock on the wall.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

Work = Callable[[], object]


class Row(NamedTuple):
    """What is timed: `prepare` gives our side and the one it is compared with, or our side alone."""

    group: str  # what --rows selects by
    name: str
    against: str  # what the other side is; "" where there is none
    goal: float | None  # the ratio may be at most this; None where only the number is wanted
    prepare: Callable[[], tuple[Work, ...]]
    steps: int = 1  # of what the times are given for, in one call


class Result(NamedTuple):
    """Medians in milliseconds, and of the ratios in each round the median, the smallest and the largest."""

    group: str
    name: str
    against: str
    goal: float | None
    rounds: int
    ours_ms: float
    other_ms: float | None
    ratio: float | None
    smallest: float | None
    largest: float | None

    @property
    def verdict(self) -> str:
        """ "met" or "missed" where there is a goal."""
        if self.goal is None or self.ratio is None:
            return "no goal"
        return "met" if self.ratio <= self.goal else "missed"


def measure(row: Row, *, seconds: float = 1.5) -> Result:
    """Time a row, in at least 5 rounds and otherwise for about so many seconds.

    The sides are called once before that, and in each round so often that a short call is not lost in the clock.
    """
    sides = row.prepare()
    clock = time.process_time if row.against else time.perf_counter
    first = [_spent(side, 1, clock) for side in sides]
    calls = [max(1, int(5e-3 / max(spent, 1e-6))) for spent in first]
    times: list[list[float]] = [[] for _ in sides]
    begun = time.perf_counter()
    while len(times[0]) < 5 or (time.perf_counter() - begun < seconds and len(times[0]) < 41):
        for side, count, spent in zip(sides, calls, times, strict=True):
            spent.append(_spent(side, count, clock) / row.steps)
    ours, other = times[0], times[1] if len(times) > 1 else None
    ratios = [a / b for a, b in zip(ours, other, strict=True)] if other else None
    return Result(
        *(row.group, row.name, row.against, row.goal, len(ours)),
        ours_ms=1e3 * statistics.median(ours),
        other_ms=1e3 * statistics.median(other) if other else None,
        ratio=statistics.median(ratios) if ratios else None,
        smallest=min(ratios) if ratios else None,
        largest=max(ratios) if ratios else None,
    )


def _spent(work: Work, count: int, clock: Callable[[], float]) -> float:
    """Seconds of one call, the mean of some."""
    start = clock()
    for _ in range(count):
        work()
    return (clock() - start) / count


def process(*words: str) -> Work:
    """A whole process of Python."""

    def work() -> Any:
        return subprocess.run([sys.executable, *words], check=True, capture_output=True)

    return work


def line(result: Result) -> str:
    """A result as a person reads it."""
    if result.other_ms is None or result.ratio is None:
        return f"{result.name}: {result.ours_ms / 1e3:.2f} s"
    goal = "" if result.goal is None else f", goal {result.goal:g}: {result.verdict}"
    return (
        f"{result.name}: {result.against} {result.other_ms:.3g} ms, reproducible {result.ours_ms:.3g} ms, "
        f"ratio {result.ratio:.1f} ({result.smallest:.1f} to {result.largest:.1f}){goal}"
    )
