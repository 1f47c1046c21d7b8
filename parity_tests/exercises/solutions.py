"""Solutions as text for the tests of exercises: references, mutants of them, and the grading of either."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.exercise import Loss
from numpy_ref.exercises.grader import Report, grade
from numpy_ref.exercises.runner import answer
from numpy_ref.exercises.source import reference_text
from parity_tests.implementations import HAVE_TORCH, NO_TORCH

FRAMEWORKS = [pytest.param("numpy", id="numpy"), pytest.param("torch", id="torch", marks=NO_TORCH)]
IN_TORCH = (
    (r"\.astype\(np\.(\w+)\)", r".to(torch.\1)"),
    (r"\.copy\(\)", ".clone()"),
    (r"\bnp\.", "torch."),
)


class Mutant(NamedTuple):
    """A reference with a fault, written for NumPy; what catches it, and words of the reason that must be told."""

    law: str
    reason: str
    changes: tuple[tuple[str, str], ...]  # (old, new), each old once in the reference
    frameworks: tuple[str, ...] = ("numpy", "torch")


def in_framework(text: str, framework: str) -> str:
    """A piece of a solution in NumPy as it is written in the framework."""
    for old, new in IN_TORCH if framework == "torch" else ():
        text = re.sub(old, new, text)
    return text


@cache
def reference(name: str, framework: str) -> str:
    return reference_text(exercise_named(name), framework)


def mutated(name: str, framework: str, changes: tuple[tuple[str, str], ...]) -> str:
    """The reference with pieces replaced, each of which it must hold exactly once."""
    text = reference(name, framework)
    for change in changes:
        old, new = (in_framework(piece, framework) for piece in change)
        if text.count(old) != 1:
            raise ValueError(f"{name}: expected {old!r} once, found it {text.count(old)} times. Rewrite the mutant.")
        text = text.replace(old, new)
    return text


def graded(folder: Path, name: str, text: str, framework: str = "numpy", *, in_process: bool = True) -> Report:
    """The report on a solution."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    return grade(path, exercise_named(name), framework, in_process=in_process)


def told(report: Report) -> list[str]:
    """One line for each broken law: its name, what was lost and the cause."""
    lines = [f"{o.law}: {o.loss}; {o.loss.cause}" for o in report.outcomes if o.loss is not None]
    return [f"fault: {report.fault}"] if report.fault else lines


def mutants_of(mutants: dict[str, Mutant]) -> list[object]:
    """Parameters (mutant, framework)."""
    return [
        pytest.param(mutant, framework, id=f"{framework}: {name}", marks=() if framework == "numpy" else NO_TORCH)
        for name, mutant in mutants.items()
        for framework in mutant.frameworks
        if framework == "numpy" or HAVE_TORCH
    ]


def check_mutant(folder: Path, name: str, mutant: Mutant, framework: str) -> None:
    """The law meant for a mutant breaks, and says why."""
    path = folder / f"{name}.py"
    path.write_text(mutated(name, framework, mutant.changes), encoding="utf-8")
    value = answer(str(path), name, framework, mutant.law)
    law = exercise_named(name).law(mutant.law)
    if "loss" not in value and law.processes > 1:
        loss = grade(path, replace(exercise_named(name), laws=(law,)), framework, in_process=False).outcomes[0].loss
        assert loss is not None, "every process gives the same"
    else:
        assert "loss" in value, value
        loss = Loss(**value["loss"])
    text = f"{loss}; {loss.cause}"
    assert mutant.reason in text, text


def check_stub(folder: Path, name: str, framework: str) -> None:
    """The empty stub names its exercise, and fails with one clear line."""
    from numpy_ref.exercises.source import exercise_of, framework_of, read_solution, stub_text

    exercise = exercise_named(name)
    path = folder / "mine.py"
    path.write_text(stub_text(exercise, framework), encoding="utf-8")
    solution = read_solution(path)
    assert (exercise_of(solution), framework_of(solution, "numpy")) == (name, framework)
    report = grade(path, exercise, framework)
    assert (report.holds, report.outcomes) == (False, ())
    assert report.fault.startswith(f"mine.py: nothing is written yet; begin with {exercise.functions[0]} (line ")
