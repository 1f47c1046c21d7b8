"""What the commands print, lines, tables, JSON and progress, and the verdict that is their exit status.

Tables are plain text; on a terminal, and with the `cli` extra, rich draws them.
"""

import json
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from numpy_ref.train import StepRecord

HOLDS, BROKEN, FAILED = 0, 1, 2  # the verdict holds, it does not, wrong usage or a refusal by the system


class OutputLost(Exception):
    """Standard output took no more; `reason` says why."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(f"standard output: {reason.strerror or reason}")
        self.reason = reason


def say(text: str) -> None:
    """Print a line.

    Raises:
        OutputLost: a closed pipe, or a full disk.
    """
    try:
        sys.stdout.write(text + "\n")
    except OSError as error:
        raise OutputLost(error) from error


def flush() -> None:
    """Hand over what was printed.

    Raises:
        OutputLost: as for `say`.
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        raise OutputLost(error) from error


def warn(text: str) -> None:
    """Print a line on standard error."""
    tell(f"{text}\n")


def tell(text: str) -> None:
    """Print on standard error; where nobody reads that any more, the work goes on all the same."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:  # a closed pipe: what is left of it must not fail again when the process ends
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stderr.fileno())
    except (ValueError, AttributeError):  # closed in this process, or none
        pass


def say_json(value: Any) -> None:
    """Print one JSON value; JSON has no infinity and no NaN, so they become text."""
    say(json.dumps(_finite(value), indent=2))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _finite(child) for name, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(child) for child in value]
    return str(value) if isinstance(value, float) and not abs(value) < float("inf") else value


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; where the room ends, cells go on in the next line and none is cut."""
    if sys.stdout.isatty():
        try:
            from rich.console import Console
            from rich.table import Table
            from rich.text import Text
        except ImportError:
            pass
        else:
            drawn = Table()
            for name in head:
                drawn.add_column(name, overflow="fold")
            for row in rows:
                drawn.add_row(*map(Text, row))  # as texts: a name in brackets is no markup
            Console().print(drawn)
            return
    widths = widths_of([head, *rows])
    for row in [head, ["-" * w for w in widths], *rows]:
        say(wrapped(row, widths))


def widths_of(rows: Sequence[Sequence[str]]) -> list[int]:
    """The width of each column; the last one is at most as wide as the terminal leaves, and at least 30."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    room = shutil.get_terminal_size((120, 24)).columns - sum(widths[:-1]) - 2 * (len(widths) - 1)
    return [*widths[:-1], min(widths[-1], max(room, 30))]


def wrapped(row: Sequence[str], widths: Sequence[int]) -> str:
    """A row of a table as text; a last cell that is wider than its column goes on in lines of its own."""
    lines = textwrap.wrap(row[-1], widths[-1]) or [""]
    cells = [[*row[:-1], lines[0]], *([*[""] * (len(row) - 1), line] for line in lines[1:])]
    return "\n".join(aligned(cells, widths))


def aligned(rows: Sequence[Sequence[str]], widths: Sequence[int] | None = None) -> list[str]:
    """Rows as lines; by default each column is as wide as its widest cell."""
    widths = widths or [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


class Progress:
    """One line that is rewritten on a terminal, and one line every tenth of the way elsewhere; on standard error."""

    def __init__(self, start: int, total: int, *, quiet: bool) -> None:
        self.start, self.total, self.quiet = start, total, quiet
        self.begun, self.shown, self.live = time.perf_counter(), 0.0, sys.stderr.isatty()

    def show(self, record: StepRecord) -> None:
        """Tell of a step, if it is time to."""
        now = time.perf_counter()
        tenth = max(1, (self.total - self.start) // 10)
        due = now - self.shown > 0.1 if self.live else (record.step - self.start) % tenth == 0
        if self.quiet or not (due or record.step == self.total):
            return
        self.shown = now
        left = (now - self.begun) / (record.step - self.start) * (self.total - record.step)
        text = f"step {record.step}/{self.total}  loss {record.loss:.4f}  rate {record.rate:.2e}  {left:.0f} s left"
        if record.scale != 1 or record.skipped:
            text += f"  scale {record.scale:.4g}" + ", skipped" * record.skipped
        tell(f"\r{text}\x1b[K" if self.live else f"{text}\n")

    def end(self) -> None:
        """Leave the line."""
        if self.live and not self.quiet:
            tell("\n")


class Waiting:
    """How many parts are done, and about how long the rest takes: a line of standard error, on a terminal only."""

    def __init__(self, what: str, *, quiet: bool) -> None:
        self.what, self.begun, self.live = what, time.perf_counter(), sys.stderr.isatty() and not quiet

    def tell(self, done: int, total: int) -> None:
        """Write the line over the last one."""
        if self.live:
            passed = time.perf_counter() - self.begun
            left = f", about {passed / done * (total - done):.0f} s left" if done else ""
            tell(f"\r{self.what}: {done} of {total}{left}\x1b[K")

    def end(self) -> None:
        """Clear the line."""
        if self.live:
            tell("\r\x1b[K")
