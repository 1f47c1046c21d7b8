"""Grade a learner's file: hold it to each law of its exercise, one process a law, and report what was lost.

The grader is for those who want to learn: a law and the file that it judges share a process, and a file that sets out
to forge its verdict can.
"""

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from numpy_ref.exercises.exercise import Exercise, Loss, expect_same_bits, paired
from numpy_ref.exercises.processes import NOTHING, ask_all
from numpy_ref.exercises.runner import TRACE, decoded
from numpy_ref.exercises.source import FileFault, read_solution, unwritten
from numpy_ref.proof.equivalence import Verdict, compare

LIMIT = 5.0  # seconds a law may take; right solutions need hundredths
_BY_PROCESS = (
    "it depends on the process: hash() of a text and the order of a set are others in every one, "
    "as are id(), the clock and the process's number"
)


class Outcome(NamedTuple):
    """One law, and what came of it."""

    law: str
    claim: str
    holds: bool
    loss: Loss | None = None
    printed: str = ""  # the beginning of what the solution printed


class Report(NamedTuple):
    """All laws, or why there are none."""

    file: Path
    exercise: str
    framework: str
    outcomes: tuple[Outcome, ...] = ()
    fault: str = ""  # why the file cannot be graded at all

    @property
    def holds(self) -> bool:
        """Whether every law does."""
        return not self.fault and all(outcome.holds for outcome in self.outcomes)


def grade(
    path: str | os.PathLike[str],
    exercise: Exercise,
    framework: str = "numpy",
    *,
    limit: float = LIMIT,
    in_process: bool | None = None,
    note: Callable[[int, int], None] = lambda done, total: None,
) -> Report:
    """Hold a file to every law of an exercise.

    Args:
        path: the learner's file.
        exercise: what it solves.
        framework: "numpy" or "torch".
        limit: seconds for each law.
        in_process: run the laws in this process; default is to do so where there are no others.
        note: told how many of the laws' processes have answered, and of how many.

    Raises:
        ImportError: the framework is not installed.
    """
    _check_installed(framework)
    file = Path(path).absolute()
    report = Report(file, exercise.name, framework)
    fault = _static_fault(file, exercise)
    if fault:
        return report._replace(fault=fault)
    names = [law.name for law in exercise.laws for _ in range(law.processes)]
    answers = ask_all(file, exercise, framework, names, limit, in_process, note)
    for value in answers:
        if "fault" in value:
            return report._replace(fault=value["fault"])
    outcomes = []
    for law in exercise.laws:
        value = _joined([value for name, value in zip(names, answers, strict=True) if name == law.name])
        loss = Loss(**value["loss"]) if "loss" in value else None
        outcomes.append(Outcome(law.name, law.claim, loss is None, loss, value.get("printed", "")))
    return report._replace(outcomes=tuple(outcomes))


def grade_against(
    ours: tuple[Path, str],
    theirs: tuple[Path, str],
    exercise: Exercise,
    *,
    limit: float = LIMIT,
    in_process: bool | None = None,
) -> Verdict:
    """Compare what two solutions, each a file and its framework, compute on the exercise's own inputs.

    Returns:
        A verdict that holds when they agree bitwise, or within the allowance of the exercise; where they do not, it
        tells of the first array that differs.

    Raises:
        FileFault: one of the two cannot be graded, or a call to it fails.
    """
    traces = []
    for path, framework in (ours, theirs):
        _check_installed(framework)
        file = path.absolute()
        fault = _static_fault(file, exercise)
        value: dict[str, Any] = {"fault": fault} if fault else {}
        value = value or ask_all(file, exercise, framework, [TRACE], limit, in_process)[0]
        if "holds" not in value:
            raise FileFault(value.get("fault") or f"{Loss(**value['loss'])}")
        traces.append(decoded(value.get("value", NOTHING)))
    try:
        pairs = list(paired("the two return other things", *traces))
    except Loss as loss:
        return Verdict(False, "differs", None, loss.where, loss.expected, loss.found, cause=loss.what)
    verdicts = [compare({path: a}, {path: b}, tolerance=exercise.allowance) for path, a, b in pairs]
    broken = [verdict for verdict in verdicts if not verdict.holds]
    return broken[0] if broken else max(verdicts, key=lambda verdict: (verdict.relation != "bitwise", verdict.share))


def _check_installed(framework: str) -> None:
    """Raise ImportError, as an import would, where a framework is missing."""
    if find_spec(framework) is None:
        raise ModuleNotFoundError(f"No module named {framework!r}", name=framework)


def _static_fault(file: Path, exercise: Exercise) -> str:
    """What makes a file ungradable and shows without running it; "" if nothing does."""
    try:
        solution = read_solution(file)
        empty = unwritten(solution, exercise)
    except FileFault as fault:
        return str(fault)
    if len(empty) == len(exercise.functions):
        return f"{file.name}: nothing is written yet; begin with {empty[0]}"
    return ""


def _joined(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The answer of a law from those of its processes: the first that is no pass, or that differs from another."""
    for value in answers:
        if "holds" not in value:
            return value
    for value in answers[1:]:
        try:
            ours, theirs = (decoded(each.get("value", NOTHING)) for each in (answers[0], value))
            expect_same_bits("another process gives another result", ours, theirs, cause=_BY_PROCESS)
        except Loss as loss:
            return {"loss": loss.as_dict(), "printed": value.get("printed", "")}
    return answers[0]
