"""Ways to one end, measured in turn, so that a slow moment falls on each of them.

A reading is one measurement: seconds, MiB or an exponent. With one thread, work is timed by the processor's clock, for
which what else the machine does counts for little; with more, and for processes and disks, by the clock on the wall.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

Work = Callable[[], object]
Reading = Callable[[], float]
Sides = dict[str, Reading | None]  # ours first; None is a peer that is not installed

OURS = "ours"
SHORT = 5e-3  # seconds that one timing lasts at least


def installed(name: str) -> ModuleType | None:
    """A peer, or None where it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


class Row(NamedTuple):
    """What is measured, and what for."""

    group: str  # what --rows selects by
    name: str
    prepare: Callable[[Path], Sides]  # in a folder that is removed when the row has been measured
    goals: Mapping[str, float]  # ours may be at most so many times that side; OURS, or what is no time, at most so much
    unit: str = "s"  # of a reading: "s", "MiB", or "" for a plain number
    rounds: int = 5  # at least


class Side(NamedTuple):
    """Over the rounds: median and extremes of a side's readings, and of ours as multiples of them, round by round."""

    name: str
    goal: float | None
    reading: tuple[float, float, float] | None  # median, smallest, largest; None where it could not be measured
    ratio: tuple[float, float, float] | None  # None for ours, for what is no time, and beside what was not measured

    @property
    def verdict(self) -> str:
        """ "met", "missed", "no goal" or "not installed"."""
        if self.reading is None:
            return "not installed"
        if self.goal is None:
            return "no goal"
        return "met" if (self.ratio or self.reading)[0] <= self.goal else "missed"


class Result(NamedTuple):
    """A row as it was measured."""

    group: str
    name: str
    unit: str
    rounds: int
    sides: list[Side]

    def as_json(self) -> dict[str, Any]:
        """As the record holds it."""
        sides = [side._asdict() | {"verdict": side.verdict} for side in self.sides]
        return self._asdict() | {"sides": sides}

    def names(self, verdict: str) -> list[str]:
        """The sides with this verdict, as one line each."""
        return [f"{self.name}, {side.name}" for side in self.sides if side.verdict == verdict]


def measure(row: Row, *, seconds: float = 1.5) -> Result:
    """Measure a row in at least its rounds and otherwise for about so many seconds, every second round backwards."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        try:
            sides = row.prepare(Path(folder))
        except ModuleNotFoundError:
            sides = dict.fromkeys([OURS, *row.goals])
        present = {name: reading for name, reading in sides.items() if reading is not None}
        readings: dict[str, list[float]] = {name: [] for name in present}
        begun, rounds = time.perf_counter(), 0
        while present and (rounds < row.rounds or (time.perf_counter() - begun < seconds and rounds < 41)):
            for name in list(present)[:: -1 if rounds % 2 else 1]:
                readings[name].append(present[name]())
            rounds += 1
    return Result(row.group, row.name, row.unit, rounds, [_side(row, name, readings) for name in sides])


def _side(row: Row, name: str, readings: Mapping[str, list[float]]) -> Side:
    """Medians and extremes, from the readings of the rounds."""
    ours, found, ratio = readings.get(OURS), readings.get(name), None
    if ours and found and name != OURS and row.unit == "s":
        ratio = _middle([a / b for a, b in zip(ours, found, strict=True)])
    return Side(name, row.goals.get(name), _middle(found) if found else None, ratio)


def _middle(values: list[float]) -> tuple[float, float, float]:
    return statistics.median(values), min(values), max(values)


def threads() -> int:
    """How many threads the libraries were told to use."""
    return int(os.environ.get("OMP_NUM_THREADS", "1"))


def spent(work: Work, *, steps: int = 1) -> Reading:
    """Seconds of one of the steps in a call: called once before, and then so often that the clock is fine enough."""
    clock = time.process_time if threads() == 1 else time.perf_counter
    calls = 0

    def seconds(count: int) -> float:
        start = clock()
        for _ in range(count):
            work()
        return (clock() - start) / count

    def reading() -> float:
        nonlocal calls
        if not calls:
            work()
            first = seconds(1)
            calls = max(1, int(SHORT / max(first, 1e-6)))
            if calls == 1:
                return first / steps
        return seconds(calls) / steps

    return reading


def waited(work: Work) -> Reading:
    """Seconds of one call by the clock on the wall."""

    def reading() -> float:
        start = time.perf_counter()
        work()
        return time.perf_counter() - start

    return reading


def beyond(reading: Reading, base: Reading) -> Reading:
    """How much more one reading is than another, taken right after it."""
    return lambda: reading() - base()


def process(*words: str | Path, status: int = 0) -> Work:
    """A whole process of Python, which ends with this status, and keeps what it compiles, as everybody's does."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}

    def work() -> str:
        done = subprocess.run([sys.executable, *map(str, words)], capture_output=True, text=True, env=env)
        if done.returncode != status:
            raise RuntimeError(f"{' '.join(map(str, words))}: status {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout

    return work


def line(result: Result) -> str:
    """A result as a person reads it: ours, and below it each side that it is compared with."""
    lines = [result.name]
    for side in result.sides:
        told = f"    {side.name:<26} "
        if side.reading is None:
            told += "not installed"
        else:
            told += _spread(side.reading, result.unit)
            told += f", ratio {_spread(side.ratio)}" if side.ratio else ""
            told += "" if side.goal is None else f", goal {side.goal:.4g}: {side.verdict}"
        lines.append(told)
    return "\n".join(lines)


def _spread(values: tuple[float, float, float], unit: str = "") -> str:
    """Median and extremes; seconds in the unit that suits the median."""
    factor, shown = 1.0, unit
    if unit == "s":
        factor, shown = next(((f, u) for f, u in ((1.0, "s"), (1e3, "ms")) if values[0] * f >= 1), (1e6, "us"))
    middle, low, high = (f"{factor * value:.3g}" for value in values)
    return f"{middle}{f' {shown}' if shown else ''} ({low} to {high})"
