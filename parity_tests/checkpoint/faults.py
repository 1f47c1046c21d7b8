"""The faults injected into saving, resuming and reading, by kind: how many, and how many lost a checkpoint.

python -m parity_tests.checkpoint.faults             inject them all, print the table; status 0 when nothing was lost
python -m parity_tests.checkpoint.faults --record    the same, and write it to faults.json, which the README shows
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from numpy_ref.console import table
from parity_tests.checkpoint import crash, damage, errors, kills

RECORD = Path(__file__).with_name("faults.json")
CAMPAIGNS: dict[str, Callable[[], dict[str, tuple[int, int]]]] = {
    "power fails: the states that a disk may then hold": crash.campaign,
    "a call of a save fails, the disk is full, read-only, or the file too large": errors.campaign,
    "a writer is killed by SIGKILL, or overwrites beside three readers": kills.campaign,
    "a file is damaged: bytes, lengths, sections, headers that lie": damage.campaign,
}


class Line(NamedTuple):
    """One kind of fault."""

    group: str  # of CAMPAIGNS
    kind: str
    injected: int
    losses: int


def lines() -> Iterator[Line]:
    """Carry out every campaign."""
    for group, campaign in CAMPAIGNS.items():
        for kind, (injected, losses) in campaign().items():
            yield Line(group, kind, injected, losses)


def sums(found: Sequence[Line]) -> list[tuple[str, int, int]]:
    """Group, faults injected and losses, and all of them at the end: the README's table."""
    rows = [
        (
            group,
            sum(line.injected for line in found if line.group == group),
            sum(line.losses for line in found if line.group == group),
        )
        for group in dict.fromkeys(line.group for line in found)
    ]
    return [*rows, ("all", sum(row[1] for row in rows), sum(row[2] for row in rows))]


def record() -> list[Line]:
    """What was found when it was last recorded."""
    return [Line(**line) for line in json.loads(RECORD.read_text())]


def main(words: list[str]) -> int:
    if words not in ([], ["--record"]):
        asked = not {"-h", "--help"}.isdisjoint(words)
        stream = sys.stdout if asked else sys.stderr
        stream.write("usage: python -m parity_tests.checkpoint.faults [--record]\n" + (f"\n{__doc__}" if asked else ""))
        return 0 if asked else 2
    start, found = time.perf_counter(), list(lines())
    rows = [(line.kind, line.injected, line.losses) for line in found]
    for each in (rows, sums(found)):
        table(("fault", "injected", "losses"), [(name, f"{n:,}", str(lost)) for name, n, lost in each])
        sys.stdout.write("\n")
    sys.stdout.write(f"{time.perf_counter() - start:.0f} s\n")
    if words:
        RECORD.write_text(json.dumps([line._asdict() for line in found], indent=1) + "\n")
    return 1 if any(line.losses or not line.injected for line in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
