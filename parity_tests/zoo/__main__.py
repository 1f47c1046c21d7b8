"""`python -m parity_tests.zoo`: what the audit and, where they are installed, three other tools say of every loop.

    --loop NAME          one loop
    --tools audit,...    only these
    --jobs N             so many loops at once
    --json               results and versions as JSON
    --record FILE        keep what the file has of these versions and add what is missing, as for record.json

For a faulty loop: `named` is a fault whose first named state is the lost one, `found` a fault that is named otherwise.
Precision is the share of faulty loops among those reported, recall the share of the faulty ones that are reported.
The exit status is 0 when the audit names every fault and reports no sound loop, 1 when not, 2 for a wrong call.
"""

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

Cell = dict[str, Any]
ONE_THREAD = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
ALONE = threading.Lock()  # for a tool that runs loops in this process


def cell_of_audit(name: str, workers: Any = None) -> Cell:
    """What our audit says of a loop, in workers that several audits share if there are some."""
    from parity_tests.zoo.proof import LOOPS
    from torch_port.audit import audit

    loop = LOOPS[name]
    report = audit(loop.target, at=(loop.at,) if loop.faulty else (7, 10), power=False, workers=workers)
    first = next((stop for stop in report.stops if not stop.holds), None)
    named = report.failure.phase if report.failure else ""
    if first is not None:
        named = first.lost[0] if first.lost else first.first.path if first.first else ""
    return {
        "verdict": verdict(name, "none" if report.holds else "fault", named),
        "named": named,
        "proved": bool(first and first.proved),
        "lost": list(first.lost) if first else [],
    }


def cell_of_other(tool: str, name: str) -> Cell:
    """What another tool says."""
    from parity_tests.zoo import others, proof

    if tool == "pytest-torch":
        with ALONE, proof.own_process():
            outcome = others.by_pytest_torch(name)
    else:
        outcome = others.TOOLS[tool][1](name)
    return {"verdict": verdict(name, outcome.says, outcome.named), "named": outcome.named}


def verdict(name: str, says: str, named: str) -> str:
    """In one word."""
    from parity_tests.zoo.base import LOOPS

    if says == "abstains":
        return "abstains"
    loop = LOOPS[name]
    if not loop.faulty:
        return "sound" if says == "none" else "false alarm"
    return "missed" if says == "none" else "named" if loop.names(named) else "found"


def summary(rows: dict[str, dict[str, Cell]], tool: str) -> str:
    """Precision and recall of a tool."""
    cells = [row[tool]["verdict"] for row in rows.values() if tool in row]
    reported, alarms = cells.count("named") + cells.count("found"), cells.count("false alarm")
    abstained = sum(row[tool]["verdict"] == "abstains" and row["faulty"] for row in rows.values() if tool in row)
    faulty = reported + cells.count("missed") + abstained
    sound = len(cells) - faulty
    share = f"{reported / (reported + alarms):.0%}" if reported + alarms else "-"
    recall = f"{reported / faulty:.0%}" if faulty else "-"
    return (
        f"{tool}: precision {share}, recall {recall}; {reported} of {faulty} faulty loops reported, "
        f"{cells.count('named')} with the lost state first; {alarms} of {sound} sound loops reported"
    )


def versions() -> dict[str, str]:
    """What the results depend on."""
    import platform
    from importlib import metadata

    from parity_tests.zoo.others import installed

    packages = {name: metadata.version(name) for name in ("torch", "numpy")}
    return {"python": platform.python_version()} | packages | installed()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests.zoo", description="Verdicts on every loop of the zoo."
    )
    parser.add_argument("--loop", help="one loop, by its name")
    parser.add_argument("--tools", help="audit, and the other tools that are installed; by default all of them")
    parser.add_argument("--jobs", type=int, default=2, help="loops at once; default 2")
    parser.add_argument("--json", action="store_true", help="results and versions as JSON")
    parser.add_argument("--record", type=Path, help="a file of results to add to")
    given = parser.parse_args(words)

    from parity_tests.zoo.others import installed
    from parity_tests.zoo.proof import LOOPS

    names = [given.loop] if given.loop else [*LOOPS]
    if unknown := set(names) - set(LOOPS):
        parser.error(f"--loop: expected one of {', '.join(LOOPS)}, found {unknown.pop()!r}")
    known = ["audit", *installed()]
    tools = given.tools.split(",") if given.tools else known
    if unknown := set(tools) - set(known):
        parser.error(f"--tools: expected some of {', '.join(known)}, found {', '.join(sorted(unknown))}")

    kept = json.loads(given.record.read_text()) if given.record and given.record.exists() else {}
    rows: dict[str, dict[str, Any]] = kept.get("rows", {}) if kept.get("versions") == versions() else {}
    lock = threading.Lock()

    def fill(place: tuple[str, str]) -> None:
        tool, name = place
        start = time.monotonic()
        cell = cell_of_audit(name) if tool == "audit" else cell_of_other(tool, name)
        with lock:
            row = rows.setdefault(name, {"faulty": LOOPS[name].faulty, "report": LOOPS[name].report})
            row[tool] = cell | {"seconds": round(time.monotonic() - start, 1)}
            if given.record:
                ordered = {name: rows[name] for name in LOOPS if name in rows}
                given.record.write_text(json.dumps({"versions": versions(), "rows": ordered}, indent=1) + "\n")
            if not given.json:
                shown = f" ({cell['named']})" if cell["named"] else ""
                sys.stdout.write(f"{name:28}{row['report'] or 'sound':7}{tool:14}{cell['verdict']}{shown}\n")
                sys.stdout.flush()

    places = [(tool, name) for name in names for tool in tools if tool not in rows.get(name, {})]
    with ThreadPoolExecutor(given.jobs) as pool:
        list(pool.map(fill, places))
    chosen = {name: rows[name] for name in names}
    if given.json:
        sys.stdout.write(json.dumps({"versions": versions(), "rows": chosen}, indent=1) + "\n")
    else:
        sys.stdout.write("\n".join(summary(chosen, tool) for tool in tools) + "\n")
    ours = [row["audit"]["verdict"] for row in chosen.values() if "audit" in row]
    return 0 if set(ours) <= {"named", "sound"} else 1


if __name__ == "__main__":
    os.environ.update(dict.fromkeys(ONE_THREAD, "1"))  # before NumPy is loaded
    sys.exit(main(sys.argv[1:]))
