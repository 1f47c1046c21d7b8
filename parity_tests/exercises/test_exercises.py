"""Each exercise: right solutions keep every law, and each wrong version breaks the one meant for it and is named."""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from numpy_ref.exercises import EXERCISES, exercise_named
from numpy_ref.exercises.arrays import arrays_of
from numpy_ref.exercises.grader import grade_against
from numpy_ref.exercises.mistakes import lost, mistakes_of, nearest
from numpy_ref.exercises.runner import answer
from numpy_ref.exercises.source import reference_text
from parity_tests.exercises.solutions import check_stub, graded, told
from parity_tests.implementations import HAVE_TORCH, NO_TORCH

FRAMEWORKS = ["numpy", *(["torch"] if HAVE_TORCH else [])]
EACH = [(name, framework) for name in EXERCISES for framework in FRAMEWORKS]
MISTAKES = [
    (name, framework, *key)
    for name, framework in EACH
    for key in mistakes_of(exercise_named(name), arrays_of(framework))
]


def right_solutions() -> list[Any]:
    found = []
    for name in EXERCISES:
        if find_spec(f"parity_tests.exercises.right.{name}"):
            for key, (text, frameworks) in import_module(f"parity_tests.exercises.right.{name}").RIGHT.items():
                found += [pytest.param(name, each, text, id=f"{name}: {key}-{each}") for each in frameworks]
    return [each for each in found if each.values[1] in FRAMEWORKS]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


def broken(folder: Path, name: str, text: str, framework: str) -> list[Any]:
    """What each law says that does not hold, asked in this process."""
    path = folder / f"{name}.py"
    path.write_text(text)
    answers = [answer(str(path), name, framework, law.name) for law in exercise_named(name).laws]
    return [value for value in answers if "holds" not in value]


@pytest.mark.parametrize(("name", "framework", "law", "mistake"), MISTAKES, ids=lambda value: value)
def test_a_wrong_version_breaks_the_law_meant_for_it_and_is_named(
    name: str, framework: str, law: str, mistake: str
) -> None:
    exercise, arrays = exercise_named(name), arrays_of(framework)
    table, loss = mistakes_of(exercise, arrays), lost(name, framework, law, (law, mistake))
    assert loss is not None
    of_law = [(each, lost(name, framework, law, each[:2])) for each in table.values() if each.law == law]
    cause = loss.cause or nearest(loss, of_law)
    assert table[law, mistake].seen in f"{loss}; {cause}"


@pytest.mark.parametrize("name", EXERCISES)
def test_every_law_has_a_wrong_version(name: str) -> None:
    exercise = exercise_named(name)
    assert {law for law, _ in mistakes_of(exercise, arrays_of("numpy"))} == {law.name for law in exercise.laws}


@pytest.mark.parametrize(("name", "framework"), EACH)
def test_the_reference_keeps_every_law(tmp_path: Path, name: str, framework: str) -> None:
    exercise = exercise_named(name)
    if framework == "torch":
        assert broken(tmp_path, name, reference_text(exercise, framework), framework) == []
        return
    report = graded(tmp_path, name, reference_text(exercise, framework), framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise.laws)


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
@pytest.mark.parametrize("name", [name for name in EXERCISES if exercise_named(name).trace])
def test_the_references_of_the_two_frameworks_agree(tmp_path: Path, name: str) -> None:
    exercise = exercise_named(name)
    sides = [(tmp_path / f"{framework}_{name}.py", framework) for framework in ("numpy", "torch")]
    for path, framework in sides:
        path.write_text(reference_text(exercise, framework))
    assert grade_against(*sides, exercise, in_process=not exercise.needs_files).holds
