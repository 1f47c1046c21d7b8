"""Whole processes: how fast the commands start, and how long the audit and the grader take."""

from functools import partial
from pathlib import Path

from numpy_ref.exercises import EXERCISES, exercise_named
from numpy_ref.exercises.source import reference_text
from parity_tests.benchmarks.measure import OURS, Row, Sides, beyond, installed, process, waited

NOTHING = process("-c", "pass")
FRAMEWORK = process("-c", "import torch")
HELP = process("-m", "numpy_ref", "--help")


def starts(_: Path) -> Sides:
    return {OURS: beyond(waited(HELP), waited(NOTHING))}


def imports(_: Path) -> Sides:
    return {
        OURS: beyond(waited(process("-c", "import numpy_ref")), waited(NOTHING)),
        "import numpy": beyond(waited(process("-c", "import numpy")), waited(NOTHING)),
    }


def imports_of_the_port(_: Path) -> Sides:
    """Every name of the package, since it fetches them only when they are used."""
    names = process("-c", "import torch; from torch_port import *")
    if installed("torch") is None:
        return {OURS: None}
    return {OURS: beyond(waited(names), waited(FRAMEWORK)), "import torch": beyond(waited(FRAMEWORK), waited(NOTHING))}


def demo(folder: Path) -> Sides:
    return {OURS: waited(process("-m", "numpy_ref", "demo", "--figure", folder / "demo.svg"))}


def audit(loop: str, status: int, _: Path) -> Sides:
    work = process("-m", "torch_port", "audit", f"parity_tests.audit.loops:{loop}", "--steps", "24", status=status)
    return {OURS: waited(work) if installed("torch") else None}


def grade(framework: str, folder: Path) -> Sides:
    """The slowest of the exercises' own solutions."""
    if framework == "torch" and installed("torch") is None:
        return {OURS: None}
    paths = [folder / f"{name}.py" for name in EXERCISES]
    for name, path in zip(EXERCISES, paths, strict=True):
        path.write_text(reference_text(exercise_named(name), framework))
    works = [process("-m", "numpy_ref", "grade", path) for path in paths]
    return {OURS: lambda: max(waited(work)() for work in works)}


ROWS = (
    Row("start", "python -m numpy_ref --help, beyond python -c pass", starts, {OURS: 0.4}),
    Row("start", "import numpy_ref, beyond python -c pass", imports, {OURS: 0.15}, rounds=9),
    Row("start", "from torch_port import *, beyond import torch", imports_of_the_port, {OURS: 0.2}),
    Row("demo", "python -m numpy_ref demo", demo, {}, rounds=3),
    Row("audit", "audit of a sound loop, 24 steps", partial(audit, "Everything", 0), {OURS: 30}, rounds=3),
    Row("audit", "audit of a faulty loop, 24 steps", partial(audit, "ForgetsMoments", 1), {OURS: 30}, rounds=3),
    Row("grader", "grade, the slowest of twelve solutions", partial(grade, "numpy"), {OURS: 10}, rounds=1),
    Row("grader", "grade, the slowest of twelve solutions in PyTorch", partial(grade, "torch"), {OURS: 10}, rounds=1),
)
