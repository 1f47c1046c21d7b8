"""Wrong versions of the reference solutions, one table an exercise: what the grader names, and what its tests hold.

The module of an exercise's name here defines

    def mistakes(right, arrays) -> Table

where `right` is the reference solution as a module and `arrays` its framework's `Arrays`. Each mistake is a few
functions that stand in for those of the reference, mostly one of its functions with something changed before or after.
"""

import time
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.arrays import arrays_of
from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, expect_same_bits, paired
from numpy_ref.exercises.learner import Functions
from numpy_ref.exercises.source import reference_text

SEARCH = 2.0  # seconds for looking through the wrong versions that are meant for other laws


Replacements = dict[str, Any]  # by name in the reference; mostly functions


class Mistake(NamedTuple):
    """A wrong version of a reference solution."""

    law: str  # the one that is meant to break
    name: str  # no other of the law has it
    functions: Replacements
    seen: str  # the cause that is said where the law gives none; words of what the law says where it does


Row = tuple[str, Replacements] | tuple[str, Replacements, str]
Table = dict[str, list[Row]]  # by law: name, replacements, and the words a person sees if not the name


def before(function: Callable[..., Any], change: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is called with other positional arguments: those that change(*arguments) returns."""
    return lambda *arguments, **named: function(*change(*arguments), **named)


def after(function: Callable[..., Any], change: Callable[[Any], Any]) -> Callable[..., Any]:
    """A function whose result is changed."""
    return lambda *arguments, **named: change(function(*arguments, **named))


def reference_module(exercise: Exercise, framework: str) -> ModuleType:
    """The reference solution as a new module, which remembers nothing."""
    module = ModuleType(f"reference_{exercise.name}")
    exec(compile(reference_text(exercise, framework), f"reference {exercise.name}", "exec"), vars(module))
    return module


def mistakes_of(exercise: Exercise, arrays: Arrays) -> dict[tuple[str, str], Mistake]:
    """The table of an exercise, by law and name; empty where it has none."""
    module = f"{__name__}.{exercise.name}"
    if find_spec(module) is None:
        return {}
    table = import_module(module).mistakes(reference_module(exercise, arrays.framework), arrays)
    return {(law, row[0]): Mistake(law, row[0], row[1], (*row, row[0])[2]) for law in table for row in table[law]}


def wrong_version(exercise: Exercise, arrays: Arrays, law: str, name: str) -> Functions:
    """The reference solution with a mistake."""

    def load() -> dict[str, Any]:
        module = reference_module(exercise, arrays.framework)
        vars(module).update(mistakes_of(exercise, arrays)[law, name].functions)
        return {function: getattr(module, function) for function in exercise.functions}

    return Functions(Path("wrong version"), exercise, load)


@cache
def lost(name: str, framework: str, law: str, by: tuple[str, str]) -> Loss | None:
    """What the wrong version of a law and a name loses by a law; by one for two processes, in two runs."""
    exercise, arrays = exercise_named(name), arrays_of(framework)
    values = []
    for _ in range(exercise.law(law).processes):
        value, loss = wrong_version(exercise, arrays, *by).outcome(exercise.law(law).check, arrays)
        if loss is not None:
            return loss
        values.append(value)
    try:
        expect_same_bits("another process gives another result", values[0], values[-1])
    except Loss as loss:
        return loss
    return None


def likely_cause(loss: Loss, exercise: Exercise, law: str, arrays: Arrays) -> str:
    """What is seen of the wrong version that leads a law to the same loss; what the law says otherwise if none does.

    The versions meant for the law come first, and then all others, while time lasts. A function that raises, or
    returns what it must not, is no matter of wrong numbers: that is said already.
    """
    if loss.place:
        return ""
    table = mistakes_of(exercise, arrays)
    own = [mistake for mistake in table.values() if mistake.law == law]
    others = [mistake for mistake in table.values() if mistake.law != law and loss.trees is not None]
    seen = nearest(loss, [(mistake, lost(exercise.name, arrays.framework, law, mistake[:2])) for mistake in own])
    end = time.monotonic() + SEARCH
    while others and not seen and time.monotonic() < end:
        mistake = others.pop(0)
        seen = nearest(loss, [(mistake, lost(exercise.name, arrays.framework, law, mistake[:2]))])
    return seen if seen and seen not in str(loss) else loss.otherwise


def nearest(loss: Loss, losses: list[tuple[Mistake, Loss | None]]) -> str:
    """What is seen of the mistakes whose loss is nearest, all of them if it is the same; "" if none is near."""
    gaps = [(apart(loss, other), mistake.seen) for mistake, other in losses if other is not None]
    least = min((gap for gap, _ in gaps), default=np.inf)
    return " or: ".join(dict.fromkeys(seen for gap, seen in gaps if gap < NEAR and gap <= least + _ROUNDING))


_ROUNDING = 2.0**-20  # what two right solutions in float32 may be apart
NEAR = 1 / 16  # two losses are of one kind if their results are this much nearer to each other than to the right one


def apart(loss: Loss, other: Loss) -> float:
    """How far apart two losses of a law are: 0 if they say the same, infinite if they differ in more than in numbers.

    1 is the distance between the expected and the found result.
    """
    if (loss.what, loss.step, loss.cause) != (other.what, other.step, other.cause):
        return np.inf
    if loss.trees is None or other.trees is None:
        same = all(str(getattr(loss, key)) == str(getattr(other, key)) for key in ("where", "expected", "found"))
        return 0.0 if same else np.inf
    scale, found = _distance(*loss.trees), _distance(loss.trees[1], other.trees[1])
    if np.isfinite(scale):
        return found / scale if scale else 0.0 if not found else np.inf
    return 0.0 if found < _ROUNDING else np.inf  # the result has another structure, or other types


def _distance(a: Any, b: Any) -> float:
    """The largest distance of two numbers in trees that are otherwise the same; infinite if they are not."""
    largest = 0.0
    try:
        for _, x, y in paired("", a, b):
            if getattr(x, "dtype", type(x)) != getattr(y, "dtype", type(y)):
                return np.inf
            if isinstance(x, np.ndarray) and x.dtype.kind == "f":
                with np.errstate(all="ignore"):
                    gap = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(np.float64(x) - np.float64(y)))
                largest = float(np.maximum(largest, np.max(gap, initial=0.0)))  # NaN stays
            elif not np.array_equal(x, y):
                return np.inf
    except Loss:
        return np.inf
    return np.inf if np.isnan(largest) else largest
