"""Solutions as text for the tests of exercises: references, stubs, and the grading of either."""

from functools import cache
from pathlib import Path

import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.grader import Report, grade
from numpy_ref.exercises.source import exercise_of, framework_of, read_solution, reference_text, stub_text
from parity_tests.implementations import NO_TORCH

FRAMEWORKS = [pytest.param("numpy", id="numpy"), pytest.param("torch", id="torch", marks=NO_TORCH)]


@cache
def reference(name: str, framework: str) -> str:
    return reference_text(exercise_named(name), framework)


def graded(folder: Path, name: str, text: str, framework: str = "numpy", *, in_process: bool = True) -> Report:
    """The report on a solution."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return grade(path, exercise_named(name), framework, in_process=in_process)


def told(report: Report) -> list[str]:
    """One line for each broken law: its name, what was lost and the cause."""
    lines = [f"{o.law}: {o.loss}; {o.loss.cause}" for o in report.outcomes if o.loss is not None]
    return [f"fault: {report.fault}"] if report.fault else lines


def check_stub(folder: Path, name: str, framework: str) -> None:
    """The empty stub names its exercise, and fails with one clear line."""
    exercise = exercise_named(name)
    path = folder / "mine.py"
    path.write_text(stub_text(exercise, framework), encoding="utf-8")
    solution = read_solution(path)
    assert (exercise_of(solution), framework_of(solution, "numpy")) == (name, framework)
    report = grade(path, exercise, framework)
    assert (report.holds, report.outcomes) == (False, ())
    assert report.fault.startswith(f"mine.py: nothing is written yet; begin with {exercise.functions[0]} (line ")
