"""`python -m parity_tests.benchmarks`: costs as ratios, what is compared measured in turn in one process.

    --rows matmul,save   only these groups
    --threads 2          of every library; default one
    --json               the results and the machine as JSON, as in the committed `record.json`

The exit status is 0 when every goal is met, 1 when one is missed, 2 for a wrong call. Peers come with the extra
`bench`; those that are not installed are named.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from typing import Any

THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
PEERS = ("torch", "safetensors")


def machine() -> dict[str, Any]:
    """Where and when the numbers were taken, and beside what."""
    from numpy_ref.boundary import environment

    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else None
    versions = {}
    for name in PEERS:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {"date": datetime.now(UTC).date().isoformat(), "memory_bytes": memory, "peers": versions} | environment()


def main(words: Sequence[str]) -> int:
    from parity_tests.benchmarks.measure import line, measure
    from parity_tests.benchmarks.rows import ROWS

    groups = list(dict.fromkeys(row.group for row in ROWS))
    given = parser(groups).parse_args(words)
    chosen = given.rows.split(",") if given.rows else groups
    if unknown := sorted(set(chosen) - set(groups)):
        parser(groups).error(f"--rows: expected some of {', '.join(groups)}, found {', '.join(map(repr, unknown))}")
    found = []
    for row in ROWS:
        if row.group in chosen:
            found.append(measure(row))
            if not given.json:
                sys.stdout.write(line(found[-1]) + "\n")
                sys.stdout.flush()
    missed, absent = ([name for result in found for name in result.names(v)] for v in ("missed", "not installed"))
    if given.json:
        rows = [result.as_json() for result in found]
        sys.stdout.write(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    else:
        sys.stdout.write(f"not installed: {'; '.join(absent) or 'none'}\ngoals missed: {'; '.join(missed) or 'none'}\n")
    return 1 if missed else 0


def parser(groups: Sequence[str] = ()) -> argparse.ArgumentParser:
    """What the command takes; without the groups, as far as the threads are concerned."""
    parser = argparse.ArgumentParser(prog="python -m parity_tests.benchmarks", description="Costs as ratios.")
    parser.add_argument("--rows", help=f"groups, separated by commas; default all: {', '.join(groups)}")
    parser.add_argument("--threads", choices=("1", "2"), default="1", help="of every library")
    parser.add_argument("--json", action="store_true", help="results and machine as JSON")
    return parser


def set_threads(words: Sequence[str]) -> None:
    """Tell every library how many threads it has, which must happen before it is loaded."""
    if not {"-h", "--help"} & set(words):
        os.environ.update(dict.fromkeys(THREADS, parser().parse_args(words).threads))


if __name__ == "__main__":
    set_threads(sys.argv[1:])
    sys.exit(main(sys.argv[1:]))
