"""`python -m parity_tests.benchmarks`: costs as ratios, what is compared measured in turn in one process.

    --rows matmul,save   only these groups
    --threads 2          of every library; default one
    --json               the results and the machine as JSON
    --record FILE        put them into a record, in place of its rows of these groups; `record.json` and
                         `record_2_threads.json` beside this file are committed

The exit status is 0 when every goal is met, 1 when one is missed, 2 for a wrong call. Peers come with the extra
`bench`; those that are not installed are named. A record says under `limits` what keeps each missed goal from being
met, which a person writes: a new one is empty.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
PEERS = ("torch", "safetensors")


def machine() -> dict[str, Any]:
    """Where and when the numbers were taken, and beside what."""
    from numpy_ref.machine import environment

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    versions = {}
    for name in PEERS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"date": datetime.now(UTC).date().isoformat(), "memory_bytes": memory, "peers": versions} | environment()


def main(words: Sequence[str]) -> int:
    from numpy_ref.checkpoint.durable import replace_file
    from parity_tests.benchmarks.measure import Result, line, measure
    from parity_tests.benchmarks.rows import ROWS

    groups = list(dict.fromkeys(row.group for row in ROWS))
    usage = parser(groups)
    given = usage.parse_args(words)
    chosen = groups if given.rows is None else given.rows.split(",")
    if unknown := sorted(set(chosen) - set(groups)):
        usage.error(f"--rows: expected some of {', '.join(groups)}, found {', '.join(map(repr, unknown))}")
    here = machine()
    try:
        record = given.record and _record(given.record)
    except (OSError, ValueError) as error:
        usage.error(f"--record: {given.record}: {error}")
    if record and set(chosen) != set(groups) and _undated(record["machine"]) != _undated(here):
        usage.error(f"--record: {given.record} is of another machine, other versions or threads: measure all")
    found: list[Result] = []
    for group in (group for group in groups if group in chosen):
        for row in (row for row in ROWS if row.group == group):
            found.append(measure(row))
            if not given.json:
                sys.stdout.write(line(found[-1]) + "\n")
                sys.stdout.flush()
        results = {"machine": here, "rows": [result.as_json() for result in found]}
        if given.record:  # what is measured is kept if the rest is interrupted
            with replace_file(given.record) as file:
                file.write((json.dumps(_merged(record, results, groups), indent=1) + "\n").encode())
    missed, absent = ([name for result in found for name in result.names(v)] for v in ("missed", "not installed"))
    if given.json:
        sys.stdout.write(json.dumps(results, indent=1) + "\n")
    else:
        sys.stdout.write(f"not installed: {'; '.join(absent) or 'none'}\ngoals missed: {'; '.join(missed) or 'none'}\n")
    return 1 if missed else 0


def _record(path: Path) -> dict[str, Any] | None:
    """A record that is there already.

    Raises:
        ValueError: what is there is none, or there is no such directory.
    """
    folder = path.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise ValueError("expected a directory that is there and can be written")
    if not path.exists():
        return None
    record = json.loads(path.read_text())
    if not isinstance(record, dict) or record.keys() != {"machine", "rows", "limits"}:
        raise ValueError("expected a record, with machine, rows and limits")
    return record


def _undated(machine: dict[str, Any]) -> dict[str, Any]:
    """What two measurements of one record have in common."""
    return {key: value for key, value in machine.items() if key != "date"}


def _merged(record: dict[str, Any] | None, results: dict[str, Any], groups: Sequence[str]) -> dict[str, Any]:
    """A record with new results of some groups, in the order of all of them."""
    old = set(groups) - {row["group"] for row in results["rows"]}
    kept = [row for row in (record or {}).get("rows", []) if row["group"] in old]
    rows = sorted([*kept, *results["rows"]], key=lambda row: groups.index(row["group"]))
    missed = dict.fromkeys(row["name"] for row in rows for side in row["sides"] if side["verdict"] == "missed")
    said = (record or {}).get("limits", {})
    return {"machine": results["machine"], "rows": rows, "limits": {name: said.get(name, "") for name in missed}}


def parser(groups: Sequence[str] = ()) -> argparse.ArgumentParser:
    """What the command takes; without the groups, as far as the threads are concerned."""
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests.benchmarks",
        description="Costs as ratios to those of other ways, which the extra `bench` installs: pip install '.[bench]'.",
        epilog="Exit status: 0 every goal is met, 1 one is missed, 2 wrong usage, 130 an interrupt. "
        "Example: python -m parity_tests.benchmarks --rows exp,log",
    )
    parser.add_argument("--rows", help=f"groups, separated by commas; default all: {', '.join(groups)}")
    parser.add_argument("--threads", choices=("1", "2"), default="1", help="of every library")
    parser.add_argument("--json", action="store_true", help="results and machine as JSON")
    parser.add_argument("--record", type=Path, metavar="FILE", help="put results and machine into a record")
    return parser


def set_threads(words: Sequence[str]) -> None:
    """Tell every library how many threads it has, which must happen before it is loaded."""
    if not {"-h", "--help"} & set(words):
        os.environ.update(dict.fromkeys(THREADS, parser().parse_args(words).threads))


if __name__ == "__main__":
    set_threads(sys.argv[1:])
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        sys.exit(130)
