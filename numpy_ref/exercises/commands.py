"""The verbs `exercises` and `grade`: what they take, and what they print.

A pass is recorded beside the file, in `.exercises.json`: the exercise and framework, the file's name and its SHA-256.
The reference solution is shown only where such a record stands.
"""

import argparse
import hashlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from numpy_ref.checkpoint.durable import replace_file
from numpy_ref.console import BROKEN, FAILED, HOLDS, Waiting, say, say_json, table, warn
from numpy_ref.exercises import EXERCISES, exercise_named
from numpy_ref.exercises.exercise import Exercise
from numpy_ref.exercises.grader import Outcome, Report, grade, grade_against
from numpy_ref.exercises.source import (
    TITLES,
    FileFault,
    claimed,
    exercise_of,
    framework_of,
    read_solution,
    reference_text,
    stub_text,
)

RECORD = ".exercises.json"


def add_arguments(exercises: argparse.ArgumentParser, grade: argparse.ArgumentParser) -> None:
    """The options of the two verbs; `--json` is there already."""
    text = "start: write the file to fill in; show: what is asked, and why; solution: the reference, after a pass"
    exercises.add_argument("action", nargs="?", choices=("start", "show", "solution"), help=text)
    exercises.add_argument("name", nargs="?", choices=EXERCISES, metavar="NAME", help=", ".join(EXERCISES))
    exercises.add_argument("--torch", action="store_true", help="in PyTorch (default: in the framework of the program)")
    text = "the file that start writes; it must not be there (default: NAME.py, or NAME_torch.py)"
    exercises.add_argument("--out", type=Path, metavar="FILE", help=text)

    grade.add_argument("file", type=Path, metavar="FILE")
    text = "what the file solves (default: what its first line says, else its name)"
    grade.add_argument("--exercise", choices=EXERCISES, metavar="NAME", help=text)
    text = "compare with this solution instead, in the same framework or the other"
    grade.add_argument("--against", type=Path, metavar="FILE", help=text)
    text = "for each broken law, hints up to this level"
    grade.add_argument("--hint", type=int, choices=(1, 2, 3), default=0, metavar="1|2|3", help=text)


def run_exercises(impl: Any, options: argparse.Namespace) -> int:
    """List the exercises, or start, show or solve one."""
    framework = "torch" if options.torch else _default(impl)
    if options.action is None:
        return _list(impl, options)
    if options.name is None:
        raise ValueError(f"exercises {options.action}: expected the name of an exercise, one of {', '.join(EXERCISES)}")
    exercise = exercise_named(options.name)
    if options.action == "start":
        return _start(impl, exercise, framework, options)
    if options.action == "show":
        text = f"{exercise.title}\n\n{exercise.statement.strip()}\n\n{exercise.idea.strip()}"
    elif (passed := _passed(Path())) and _key(exercise.name, framework) in passed:
        text = reference_text(exercise, framework)
    else:
        warn(
            f"{exercise.name}: the solution in {TITLES[framework]} is shown after a pass that is recorded in "
            f"this directory: python -m {impl.__name__} grade {_file_name(exercise.name, framework)}"
        )
        return FAILED
    if options.json:
        say_json({"name": exercise.name, "framework": framework, "text": text})
    else:
        say(text.rstrip())
    return HOLDS


def run_grade(impl: Any, options: argparse.Namespace) -> int:
    """Grade a file, or compare two."""
    for path in (options.file, options.against):
        if path is not None and not path.is_file():
            raise ValueError(f"{path}: expected a file, found {'a directory' if path.is_dir() else 'none'}")
    try:
        solution = read_solution(options.file)
        exercise = exercise_named(options.exercise or exercise_of(solution))
        framework = framework_of(solution, _default(impl))
        if options.against is not None:
            return _compare(impl, exercise, framework, options)
    except FileFault as fault:
        return _refuse(str(fault), options)
    waiting = Waiting("laws", quiet=options.json)
    try:
        report = grade(options.file, exercise, framework, note=waiting.tell)
    finally:
        waiting.end()
    if report.holds:
        _record(report)
    if options.json:
        say_json(as_json(report, exercise, options.hint))
    else:
        _print(report, exercise, options.hint)
    return HOLDS if report.holds else BROKEN


def as_json(report: Report, exercise: Exercise, hint: int = 0) -> dict[str, Any]:
    """A report as JSON has it."""
    return {
        "holds": report.holds,
        "file": str(report.file),
        "exercise": report.exercise,
        "framework": report.framework,
        "error": report.fault or None,
        "laws": [
            {
                "law": outcome.law,
                "claim": outcome.claim,
                "holds": outcome.holds,
                "lost": outcome.loss and outcome.loss.as_dict() | {"text": str(outcome.loss)},
                "hints": list(_hints(exercise, outcome, hint)),
                "printed": outcome.printed,
            }
            for outcome in report.outcomes
        ],
    }


def _print(report: Report, exercise: Exercise, hint: int) -> None:
    say(f"{exercise.title}, in {TITLES[report.framework]}: {report.file.name}")
    if report.fault:
        say(f"cannot be graded: {report.fault}")
        return
    for outcome in report.outcomes:
        say(f"  {'holds' if outcome.holds else 'LOST '}  {outcome.claim}")
        if outcome.loss is not None:
            say(f"         {outcome.loss}")
            if outcome.loss.cause:
                say(f"         likely cause: {outcome.loss.cause}")
            for line in outcome.printed.splitlines()[:5]:
                say(f"         printed: {line if line.isprintable() else ascii(line)}")
        for level, text in enumerate(_hints(exercise, outcome, hint), start=1):
            say(f"         hint {level}: {text}")
    broken = sum(not outcome.holds for outcome in report.outcomes)
    if not broken:
        say(f"every law holds; the reference solution: exercises solution {report.exercise}")
    else:
        more = "" if hint == 3 else f"; more help: --hint {hint + 1}"
        say(f"{broken} of {len(report.outcomes)} laws do not hold{more}")


def _hints(exercise: Exercise, outcome: Outcome, level: int) -> tuple[str, ...]:
    return () if outcome.holds else exercise.law(outcome.law).hints[:level]


def _compare(impl: Any, exercise: Exercise, framework: str, options: argparse.Namespace) -> int:
    """Compare two solutions on the same inputs."""
    if exercise.trace is None:
        raise ValueError(f"{exercise.name}: its solutions are graded one by one; leave --against out")
    other = framework_of(read_solution(options.against), _default(impl))
    verdict = grade_against((options.file, framework), (options.against, other), exercise)
    if options.json:
        say_json(verdict._asdict() | {"text": str(verdict)})
    else:
        sides = (
            f"{path.name} in {TITLES[name]}" for path, name in ((options.file, framework), (options.against, other))
        )
        say(f"{' against '.join(sides)}: {verdict}")
    return HOLDS if verdict.holds else BROKEN


def _refuse(text: str, options: argparse.Namespace) -> int:
    """Say why a file cannot be graded."""
    if options.json:
        name, framework = claimed(options.file)
        head = {"holds": False, "file": str(options.file.absolute()), "exercise": options.exercise or name}
        say_json(head | {"framework": framework, "error": text, "laws": []})
    else:
        say(f"cannot be graded: {text}")
    return BROKEN


def _list(impl: Any, options: argparse.Namespace) -> int:
    passed = _passed(Path())
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(EXERCISES, start=1):
        exercise = exercise_named(name)
        done = [title + _since(passed[_key(name, key)]) for key, title in TITLES.items() if _key(name, key) in passed]
        rows.append({"number": number, "name": name, "teaches": exercise.teaches, "passed": done})
    if options.json:
        say_json(rows)
        return HOLDS
    table(
        ("", "exercise", "passed", "what it teaches"),
        [(str(row["number"]), row["name"], ", ".join(row["passed"]) or "-", row["teaches"]) for row in rows],
    )
    say(f"\nBegin: python -m {impl.__name__} exercises start {EXERCISES[0]}")
    return HOLDS


def _start(impl: Any, exercise: Exercise, framework: str, options: argparse.Namespace) -> int:
    """Write the file to fill in, unless one is there."""
    path = options.out or Path(_file_name(exercise.name, framework))
    if path.suffix == ".py" and path.stem in sys.stdlib_module_names | set(TITLES):
        raise ValueError(f"{path}: beside such a file, import {path.stem} finds it and not the library; choose another")
    try:
        with open(path, "x", encoding="utf-8") as file:
            file.write(stub_text(exercise, framework))
    except FileExistsError:
        raise ValueError(f"{path}: it is there already, and is left as it is; choose another name by --out") from None
    if find_spec(framework) is None:
        warn(f"grading it needs {TITLES[framework]}, which is not installed here")
    if options.json:
        say_json({"file": str(path), "exercise": exercise.name, "framework": framework})
    else:
        say(f"{path}: fill in {', '.join(exercise.functions)}\nThen: python -m {impl.__name__} grade {path}")
    return HOLDS


def _default(impl: Any) -> str:
    return "torch" if impl.__name__ == "torch_port" else "numpy"


def _file_name(name: str, framework: str) -> str:
    return f"{name}.py" if framework == "numpy" else f"{name}_{framework}.py"


def _key(name: str, framework: str) -> str:
    return f"{name} in {TITLES[framework]}"


def _passed(folder: Path) -> dict[str, Any]:
    """The record of a directory; empty where there is none."""
    path = folder / RECORD
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError:
        record = None
    if not isinstance(record, dict):
        raise ValueError(f"{path}: expected the record of passed exercises, found something else; delete it")
    return record


def _since(entry: Any) -> str:
    """Whether the file that passed is another by now."""
    try:
        same = hashlib.sha256(Path(entry["file"]).read_bytes()).hexdigest() == entry["sha256"]
    except (OSError, TypeError, KeyError, ValueError):
        return " (the file is gone)"
    return "" if same else " (changed since)"


def _record(report: Report) -> None:
    """Note a pass beside the file; where that is not possible, say so: the verdict stands."""
    try:
        record = _passed(report.file.parent)
        sha = hashlib.sha256(report.file.read_bytes()).hexdigest()
        record[_key(report.exercise, report.framework)] = {"file": report.file.name, "sha256": sha}
        with replace_file(report.file.parent / RECORD) as file:
            file.write(json.dumps(record, indent=2, sort_keys=True).encode())
    except (OSError, ValueError) as error:
        warn(f"the pass is not recorded: {error}")
