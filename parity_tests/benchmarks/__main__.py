"""`python -m parity_tests.benchmarks`: costs as ratios, both sides measured in turn in one process, one thread.

    --rows matmul,step   only these groups
    --json               the results and the machine as JSON, as in the committed `record.json`

The exit status is 0 when every goal is met, 1 when one is missed, 2 for a wrong call.
"""

import argparse
import json
import os
import platform
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")


def processor() -> str:
    """The processor's name, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def machine() -> dict[str, Any]:
    """Where and when the numbers were taken."""
    from numpy_ref.boundary import environment

    return {"date": datetime.now(UTC).date().isoformat(), "processor": processor()} | environment()


def main(words: Sequence[str]) -> int:
    from parity_tests.benchmarks.measure import line, measure
    from parity_tests.benchmarks.rows import ROWS

    groups = list(dict.fromkeys(row.group for row in ROWS))
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests.benchmarks", description="Costs as ratios, one thread."
    )
    parser.add_argument("--rows", default=",".join(groups), help=f"groups, separated by commas: {', '.join(groups)}")
    parser.add_argument("--json", action="store_true", help="results and machine as JSON")
    given = parser.parse_args(words)
    chosen = given.rows.split(",")
    if unknown := sorted(set(chosen) - set(groups)):
        parser.error(f"--rows: expected some of {', '.join(groups)}, found {', '.join(map(repr, unknown))}")
    found = []
    for row in ROWS:
        if row.group in chosen:
            found.append(measure(row))
            if not given.json:
                sys.stdout.write(line(found[-1]) + "\n")
                sys.stdout.flush()
    missed = [result.name for result in found if result.verdict == "missed"]
    if given.json:
        rows = [result._asdict() | {"verdict": result.verdict} for result in found]
        sys.stdout.write(json.dumps({"machine": machine(), "rows": rows}, indent=1) + "\n")
    else:
        sys.stdout.write(f"goals missed: {'; '.join(missed) or 'none'}\n")
    return 1 if missed else 0


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # before NumPy is loaded
    sys.exit(main(sys.argv[1:]))
