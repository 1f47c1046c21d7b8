"""Each exercise: right solutions keep every law, and each wrong version breaks the one meant for it and is named."""

from contextlib import chdir
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from numpy_ref.exercises import EXERCISES, exercise_named
from numpy_ref.exercises.exercise import Loss, expect_same_bits
from numpy_ref.exercises.grader import grade_against
from numpy_ref.exercises.mistakes import Mistake, mistakes_of, nearest, wrong_version
from numpy_ref.exercises.runner import answer, arrays_of
from numpy_ref.exercises.source import reference_text
from parity_tests.exercises.solutions import check_stub, graded, told
from parity_tests.implementations import HAVE_TORCH, NO_TORCH

FRAMEWORKS = ["numpy", *(["torch"] if HAVE_TORCH else [])]
CONVERTED = [name for name in EXERCISES if find_spec(f"numpy_ref.exercises.mistakes.{name}")]
EACH = [(name, framework) for name in CONVERTED for framework in FRAMEWORKS]
MISTAKES = [
    (name, framework, *key)
    for name, framework in EACH
    for key in mistakes_of(exercise_named(name), arrays_of(framework))
]


def right_solutions() -> list[Any]:
    found = []
    for name in CONVERTED:
        if find_spec(f"parity_tests.exercises.right.{name}"):
            for key, (text, frameworks) in import_module(f"parity_tests.exercises.right.{name}").RIGHT.items():
                found += [pytest.param(name, each, text, id=f"{name}: {key}-{each}") for each in frameworks]
    return [each for each in found if each.values[1] in FRAMEWORKS]


@cache
def losses(name: str, framework: str, law: str) -> list[tuple[Mistake, Loss | None]]:
    """What each wrong version meant for a law loses by it."""
    table = mistakes_of(exercise_named(name), arrays_of(framework)).values()
    return [(mistake, lost(name, framework, mistake)) for mistake in table if mistake.law == law]


def lost(name: str, framework: str, mistake: Mistake) -> Loss | None:
    """What a wrong version loses by the law meant for it; of a law for two processes, in two runs."""
    exercise, arrays = exercise_named(name), arrays_of(framework)
    law, values = exercise.law(mistake.law), []
    for _ in range(law.processes):
        with TemporaryDirectory() as folder, chdir(folder):
            value, loss = wrong_version(exercise, arrays, law.name, mistake.name).outcome(law.check, arrays)
        if loss is not None:
            return loss
        values.append(value)
    try:
        expect_same_bits("another process gives another result", values[0], values[-1])
    except Loss as loss:
        return loss
    return None


@pytest.mark.parametrize(("name", "framework", "law", "mistake"), MISTAKES, ids=lambda value: value)
def test_a_wrong_version_breaks_the_law_meant_for_it_and_is_named(
    name: str, framework: str, law: str, mistake: str
) -> None:
    of_law = losses(name, framework, law)
    seen, loss = next((each.seen, loss) for each, loss in of_law if each.name == mistake)
    assert loss is not None
    cause = loss.cause or nearest(loss, of_law)
    assert seen in f"{loss}; {cause}", cause


@pytest.mark.parametrize("name", CONVERTED)
def test_every_law_has_a_wrong_version(name: str) -> None:
    exercise = exercise_named(name)
    assert {law for law, _ in mistakes_of(exercise, arrays_of("numpy"))} == {law.name for law in exercise.laws}


def broken(folder: Path, name: str, text: str, framework: str) -> list[Any]:
    """What each law says that a solution does not keep, asked in this process."""
    path = folder / f"{name}.py"
    path.write_text(text, encoding="utf-8")
    with chdir(folder):
        answers = [answer(str(path), name, framework, law.name) for law in exercise_named(name).laws]
    return [value for value in answers if "holds" not in value]


@pytest.mark.parametrize("name", CONVERTED)
def test_the_reference_keeps_every_law(tmp_path: Path, name: str) -> None:
    report = graded(tmp_path, name, reference_text(exercise_named(name), "numpy"), in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named(name).laws)


@NO_TORCH
@pytest.mark.parametrize("name", CONVERTED)
def test_the_reference_in_torch_keeps_every_law(tmp_path: Path, name: str) -> None:
    assert broken(tmp_path, name, reference_text(exercise_named(name), "torch"), "torch") == []


@pytest.mark.parametrize(("name", "framework", "text"), right_solutions())
def test_right_solutions_that_are_written_differently_keep_every_law(
    tmp_path: Path, name: str, framework: str, text: str
) -> None:
    text = text.replace("import numpy", "import torch") if framework == "torch" else text
    assert broken(tmp_path, name, text, framework) == []


@pytest.mark.parametrize(("name", "framework"), EACH)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, name: str, framework: str) -> None:
    check_stub(tmp_path, name, framework)


@NO_TORCH
@pytest.mark.parametrize("name", [name for name in CONVERTED if exercise_named(name).trace])
def test_the_references_of_the_two_frameworks_agree(tmp_path: Path, name: str) -> None:
    exercise = exercise_named(name)
    sides = [(tmp_path / f"{framework}_{name}.py", framework) for framework in ("numpy", "torch")]
    for path, framework in sides:
        path.write_text(reference_text(exercise, framework))
    assert grade_against(*sides, exercise, in_process=not exercise.needs_files).holds
