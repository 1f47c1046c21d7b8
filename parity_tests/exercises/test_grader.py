"""The grader: malformed files get one line and take nothing down; a pass is recorded, and no solution is shown."""

import argparse
import json
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import numpy_ref
import torch_port
from numpy_ref.exercises import EXERCISES, commands, exercise_named, grader, mistakes, processes
from numpy_ref.exercises.arrays import ARRAYS
from numpy_ref.exercises.exercise import Loss, expect_same_bits, expect_within
from numpy_ref.exercises.grader import Report, grade, grade_against
from numpy_ref.exercises.learner import learner
from numpy_ref.exercises.mistakes import likely_cause, lost
from numpy_ref.exercises.runner import decoded, encoded
from numpy_ref.exercises.source import exercise_of, framework_of, read_solution, reference_text, stub_text
from numpy_ref.proof.equivalence import Tolerance
from parity_tests.commands import ROOT, strict_json
from parity_tests.exercises.solutions import FRAMEWORKS, graded, reference, told

RESUME = exercise_named("resume")
ONE_LAW = replace(RESUME, laws=RESUME.laws[:1])  # checkpoint-holds-everything: it calls save_checkpoint alone
STATE = "params, m_list, v_list, t"
LONG = 60.0  # seconds, where the limit is not what is tested: hundreds of times what a law takes


def with_function(name: str, arguments: str, body: str, *, first: str = "") -> str:
    """The reference with one function replaced by one of this body; `right` is the reference's own."""
    reference_first = f"{first}\n{reference('resume', 'numpy')}\nright = {name}\n"
    return f"{reference_first}def {name}({arguments}):\n    {body}\n"


def saving(code: str, *, first: str = "") -> str:
    """The reference whose save_checkpoint begins with this code, in a file that begins with that."""
    return with_function("save_checkpoint", STATE, f"{code}\n    return right({STATE})", first=first)


def training(value: str) -> str:
    """The reference whose train_n_steps returns this, of the state it came to."""
    arguments = f"{STATE}, grads_sequence, lr"
    return with_function("train_n_steps", arguments, f"{STATE} = right({arguments})\n    return {value}")


def line_of(folder: Path, text: str, *, limit: float = LONG) -> str:
    """All that the report on one law says, by a process of its own; "" when it holds."""
    path = folder / "resume.py"
    path.write_text(text, encoding="utf-8")
    report = grade(path, ONE_LAW, "numpy", limit=limit, in_process=False)
    return "\n".join(told(report))


# Files that would take a careless grader down. Each gets one line; none hangs, and the next is graded as ever.

HOSTILE = {
    "endless loop": ("while True: pass", "did not end within 0.5 s"),
    "endless loop that catches all": (
        "while True:\n        try: time.sleep(0.01)\n        except BaseException: pass",
        "did not end within 0.5 s",
    ),
    "exit": ("sys.exit(0)", "raised SystemExit: it ends the program"),
    "exit at once": ("os._exit(0)", "ended the process that grades it, exit status 0"),
    "abort": ("os.abort()", "by SIGABRT"),
    "endless recursion": ("save_checkpoint(params, m_list, v_list, t)", "raised RecursionError"),
    "memory without end": ("x = [np.empty(1 << 27) for _ in range(99)]", "raised MemoryError"),
    "print storm": ("while True: print('x' * 10000)", "did not end within 0.5 s"),
    "question": ("input('really? ')", "raised EOFError"),
    "control characters": ("raise ValueError('\\x1b[2J' + 'x' * 999)", "raised ValueError: '\\x1b[2Jxxx"),
}
IMPORTS = "import builtins, os, subprocess, sys, threading, time, atexit, warnings\nimport numpy as np"


@pytest.mark.skipif(sys.platform == "win32", reason="signals and limits of POSIX")
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_gets_one_line_and_does_not_take_the_grader_down(tmp_path: Path, name: str) -> None:
    code, said = HOSTILE[name]
    line = line_of(tmp_path, saving(code, first=IMPORTS), limit=0.5 if "0.5" in said else LONG)
    assert said in line
    assert line != ""
    assert line.count("\n") == 0
    assert line.isprintable()
    assert len(line) < 400


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="looks into /proc")
def test_a_process_that_a_solution_leaves_over_is_ended(tmp_path: Path) -> None:
    sleep = "[sys.executable, '-c', 'import time; time.sleep(60)']"
    code = f"""child = subprocess.Popen({sleep})
    open({str(tmp_path / "pid")!r}, "w").write(str(child.pid))"""
    assert line_of(tmp_path, saving(code, first=IMPORTS)) == ""
    pid = int((tmp_path / "pid").read_text())
    for _ in range(100):  # init reaps it in its own time
        if not Path(f"/proc/{pid}").exists() or "State:\tZ" in Path(f"/proc/{pid}/status").read_text():
            return
        time.sleep(0.05)
    raise AssertionError("it lives on")


def test_the_place_of_an_endless_loop_is_told(tmp_path: Path) -> None:
    text = saving("while True:\n        pass", first=IMPORTS)
    number = next(n for n, line in enumerate(text.splitlines(), 1) if "while True" in line)
    line = line_of(tmp_path, text, limit=0.3)
    assert f"resume.py:{number}: did not end" in line or f"resume.py:{number + 1}: did not end" in line


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("while True: pass", "did not end within 0.5 s"),
        ("import sys; sys.exit()", "resume.py:1: cannot be imported: SystemExit: it ends the program"),
        ("import os; os._exit(0)", "ended the process that grades it"),
        ("1 / 0", "fault: resume.py:1: cannot be imported: ZeroDivisionError: division by zero"),
        ("import no_such_module", "fault: resume.py:1: cannot be imported: ModuleNotFoundError: No module named"),
    ],
)
def test_a_file_that_cannot_be_imported_gets_one_line(tmp_path: Path, code: str, said: str) -> None:
    line = line_of(tmp_path, f"{code}\n{reference('resume', 'numpy')}", limit=0.5 if "0.5" in said else LONG)
    assert said in line
    assert line.count("\n") == 0


def test_processes_hash_in_their_own_ways_and_a_law_for_two_is_held_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    path, seen = tmp_path / "resume.py", tmp_path / "seen"
    seen.mkdir()
    path.write_text(f"open({str(seen)!r} + f'/{{hash(chr(97))}}', 'x').close()\n" + reference("resume", "numpy"))
    law = replace(RESUME.laws[0], processes=2)
    report = grade(path, replace(RESUME, laws=(law, RESUME.laws[1])), limit=LONG, in_process=False)
    assert told(report) == []
    assert [outcome.law for outcome in report.outcomes] == [law.name for law in RESUME.laws[:2]]
    assert len(list(seen.iterdir())) == 3


def test_a_law_for_several_processes_holds_if_each_passes_and_all_return_the_same() -> None:
    same, other = ({"holds": True, "value": encoded({"a": [np.array([x]), 3]}), "printed": ""} for x in (0.0, -0.0))
    lost = {"loss": Loss("x").as_dict()}
    assert grader._joined([same]) == same
    assert grader._joined([same, dict(same)]) == same
    assert grader._joined([same, lost]) == lost
    assert grader._joined([lost, same]) == lost
    loss = Loss(**grader._joined([same, same, other])["loss"])
    assert str(loss).startswith("another process gives another result: a[0][0]: expected 0.0, found -0.0")
    assert "hash() of a text" in loss.cause
    assert "loss" in grader._joined([same, {"holds": True}])


HARMLESS = """
import atexit, os, sys, threading, time, warnings
import numpy as np
np.random.seed(0)
np.seterr(all="raise")
np.set_printoptions(precision=1)
warnings.simplefilter("error")
sys.setrecursionlimit(10**6)
os.chdir(os.sep)
print("hello", flush=True)
print("x" * 100_000, file=sys.stderr)
threading.Thread(target=time.sleep, args=(60,)).start()
atexit.register(lambda: time.sleep(60))
open(os.path.join(os.environ.get("TMPDIR", "/tmp"), "left over by a solution"), "w").close()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="paths of POSIX")
def test_what_a_right_solution_does_besides_changes_no_verdict(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    path = tmp_path / "resume.py"
    path.write_text(HARMLESS + reference("resume", "numpy"))
    counts: list[tuple[int, int]] = []
    report = grade(path, RESUME, limit=LONG, in_process=False, note=lambda *count: counts.append(count))
    assert told(report) == []
    assert [done for done, _ in counts] == list(range(1, len(counts) + 1))
    assert {total for _, total in counts} == {len(counts)}
    assert all(outcome.printed.startswith("hello\nxxx") for outcome in report.outcomes)
    assert all(len(outcome.printed) <= 2000 for outcome in report.outcomes)
    assert {file.name for file in tmp_path.iterdir()} == {"resume.py", "left over by a solution"}  # no __pycache__


def test_what_a_solution_writes_goes_to_a_directory_of_its_own(tmp_path: Path) -> None:
    assert line_of(tmp_path, saving("open('state', 'x').close()", first="import os\nassert os.listdir() == []")) == (
        "checkpoint-holds-everything: resume.py:" + line_number(saving("open('state', 'x')"), "'state'", 1)
        + ": save_checkpoint raised FileExistsError: [Errno 17] File exists: 'state'; "
    )  # fmt: skip
    assert {file.name for file in tmp_path.iterdir()} == {"resume.py"}


def line_number(text: str, words: str, more: int = 0) -> str:
    return str(next(n for n, line in enumerate(text.splitlines(), 1) if words in line) + more)


def test_a_file_beside_the_solution_may_be_imported_and_hides_no_library(tmp_path: Path) -> None:
    (tmp_path / "numpy.py").write_text("raise ImportError")
    (tmp_path / "helper.py").write_text("VALUE = 1")
    assert line_of(tmp_path, "import helper\nassert helper.VALUE\n" + reference("resume", "numpy")) == ""


def test_once_a_law_did_not_end_those_begun_later_get_less_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "_LIMIT_AFTER", 0.25)
    path = tmp_path / "resume.py"
    path.write_text(saving("while True: pass"))
    report = grade(path, RESUME, limit=1.0, in_process=False)
    assert "did not end within 0.25 s" in told(report)[-1]
    assert sum("did not end" in line for line in told(report)) >= 6  # of eight laws, those that save


def test_of_two_definitions_the_last_counts(tmp_path: Path) -> None:
    stub, solution = stub_text(RESUME, "numpy"), reference("resume", "numpy")
    rest = solution.partition('"""\n\n')[2].replace("from __future__", "#")
    for whole in (f"{stub}\n{rest}", f"{stub}\nif True:\n    from right import *"):
        (tmp_path / "right.py").write_text(solution)
        assert told(graded(tmp_path, "resume", whole)) == []
    (line,) = told(graded(tmp_path, "resume", f"{solution}\n\n{stub}"))
    number = len(solution.splitlines()) + 2 + int(line_number(stub, "def save_checkpoint"))
    assert line == f"fault: resume.py: nothing is written yet; begin with save_checkpoint (line {number})"


# Files that are malformed. Each gets one line, with the place.

MALFORMED = {
    "a syntax error": ("def f(:\n", "fault: resume.py:1: not Python: invalid syntax"),
    "a syntax error that only the compiler finds": ("\nreturn 1\n", "fault: resume.py:2: not Python: 'return' outside"),
    "null bytes": ("x = 1\0\n", "fault: resume.py: not Python: source code"),
    "an unknown encoding": ("# coding: no-such\n", "fault: resume.py: not Python: unknown encoding: no-such"),
    "brackets without end": ("(" * 5000, "fault: resume.py:1: not Python: too many nested parentheses"),
    "a formula without end": ("x = " + "-" * 100_000 + "1", "fault: resume.py: not Python: "),
    "nothing": (
        "",
        "fault: resume.py: save_checkpoint is missing; it must be save_checkpoint(params, m_list, v_list, t)",
    ),
    "too much": ("#" * (1 << 20) + "##", "expected at most 1048576 bytes, found 1048578"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_file_gets_one_line(tmp_path: Path, name: str) -> None:
    text, said = MALFORMED[name]
    line = told(graded(tmp_path, "resume", text))
    assert len(line) == 1
    assert said in line[0]
    assert len(line[0]) < 300


def test_what_is_no_text_gets_one_line_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "resume.py"
    path.write_bytes(reference("resume", "numpy").encode() + b"# \xff\n")
    number = len(path.read_bytes().splitlines())
    line = f"resume.py:{number}: not Python: bytes that are not utf-8; save it as UTF-8"
    assert grade(path, RESUME).fault == line
    path.write_bytes(b"# coding: latin-1\n" + path.read_bytes())
    assert grade(path, RESUME, in_process=True).holds


def test_what_is_no_file_gets_one_line(tmp_path: Path) -> None:
    assert "found a directory" in grade(tmp_path, RESUME).fault
    assert "found none" in grade(tmp_path / "no.py", RESUME).fault
    assert "\n" not in grade(tmp_path / "a\nb\0", RESUME).fault
    (tmp_path / "latin.py").write_bytes(b"x = '\xe9'\n")
    assert "latin.py" in grade(tmp_path / "latin.py", RESUME).fault


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("del save_checkpoint", "save_checkpoint is missing; it must be save_checkpoint(params,"),
        ("save_checkpoint = 3", "save_checkpoint must be a function, found int"),
        ("def save_checkpoint(params, m, v): 1", "must take (params, m_list, v_list, t), found"),
        ("def save_checkpoint(params, m, v, t, u): 1", "missing a required argument: 'u'"),
        ("def save_checkpoint(params, m, v, *, t): 1", "too many positional arguments"),
    ],
)
def test_a_missing_function_or_a_wrong_signature_is_one_fault_with_its_place(
    tmp_path: Path, code: str, said: str
) -> None:
    text = f"{reference('resume', 'numpy')}\n{code}\n"
    (line,) = told(graded(tmp_path, "resume", text))
    assert said in line
    assert line.startswith(f"fault: resume.py:{len(text.splitlines())}" if "def" in code else "fault: resume.py:")


def test_other_names_defaults_and_rests_of_arguments_are_no_fault(tmp_path: Path) -> None:
    text = (
        reference("resume", "numpy")
        + "\n_save = save_checkpoint\nsave_checkpoint = lambda *rest, **more: _save(*rest, **more)\n"
    )
    assert told(graded(tmp_path, "resume", text)) == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("None", "train_n_steps must return (params, m_list, v_list, t); it returned None"),
        ("params, m_list, v_list", "it returned 3 values"),
        ("params, m_list, v_list, float(t)", "t must be an int, found float"),
        ("params, m_list, v_list, True", "t must be an int, found bool True"),
        ("params[:1], m_list, v_list, t", "arrays of the parameters' shapes; found 1"),
        ("[p.ravel() for p in params], m_list, v_list, t", "params[1] must have the shape (2, 4), found an array of"),
        ("params, [1] * len(m_list), v_list, t", "m_list[0] must have the shape (3,), found int 1"),
        ("params, ['a'] * len(m_list), v_list, t", "m_list[0] must have the shape (3,), found str a"),
        ("params, [object()] * len(m_list), v_list, t", "must return NumPy arrays and plain numbers: m_list[0]"),
        ("params, [m.astype(object) for m in m_list], v_list, t", "must return NumPy arrays"),
        ("params, m_list, [v * np.nan for v in v_list], t", "a value that is not finite: v_list[0]: expected finite"),
        ("zip(params), m_list, v_list, t", "must return NumPy arrays and plain numbers"),
    ],
)  # fmt: skip
def test_a_wrong_return_gets_one_line(tmp_path: Path, value: str, said: str) -> None:
    lines = [line for line in told(graded(tmp_path, "resume", training(value))) if line.startswith("steps-are")]
    assert len(lines) == 1
    assert said in lines[0]
    assert len(lines[0]) < 400


def test_an_object_that_answers_nothing_gets_one_line(tmp_path: Path) -> None:
    hostile = (
        "class Odd(list):\n    def __len__(self): raise ValueError\n    __iter__ = __getitem__ = __repr__ = __len__\n"
    )
    assert any(
        "what came back cannot be read" in x for x in told(graded(tmp_path, "resume", hostile + training("Odd()")))
    )
    text = training("[x := [], x.append(x)][:1] * 3 + [t]")
    assert any("RecursionError" in line for line in told(graded(tmp_path, "resume", text)))


def test_what_a_law_cannot_read_is_told_with_its_place_and_kind(tmp_path: Path) -> None:
    def trips(solution: Any, arrays: Any) -> None:
        solution.save_checkpoint([], [], [], 1)["params"].dtype  # noqa: B018 - a list has none

    path = tmp_path / "resume.py"
    path.write_text(reference("resume", "numpy"))
    solution = learner(path, RESUME)
    assert str(solution.outcome(lambda *_: 1 / 0, ARRAYS)[1]) == "resume.py: the law could not begin"
    loss = solution.outcome(trips, ARRAYS)[1]
    assert loss is not None
    assert str(loss) == (
        f"resume.py:{line_number(path.read_text(), 'def save_checkpoint')}: what came back cannot be read; "
        "save_checkpoint was called last: result: expected dict[str, Any], found a dict of 4 entries"
    )
    assert loss.cause == "reading it raised AttributeError: 'list' object has no attribute 'dtype'"


def test_an_exception_is_told_with_its_place_and_a_function_not_yet_written_too(tmp_path: Path) -> None:
    arguments = "params, grads_sequence, lr"
    text = with_function("resume_from_weights_only", arguments, "params[7]")
    where = len(text.splitlines())
    said = f"resume.py:{where}: resume_from_weights_only raised IndexError: list index out of range; "
    assert f"weights-only-is-a-new-run: {said}" in told(graded(tmp_path, "resume", text))
    text = with_function("resume_from_weights_only", arguments, "(lambda: 1)()\n    raise NotImplementedError")
    lines = told(graded(tmp_path, "resume", text))
    assert f"weights-only-is-a-new-run: resume.py:{where + 1}: resume_from_weights_only is not written yet; " in lines
    assert not any("full-resume" in line for line in lines)


# Why a law broke.


def test_the_likely_cause_is_the_wrong_version_that_leads_to_the_same(tmp_path: Path) -> None:
    text = with_function(
        "resume_from_full_checkpoint",
        "checkpoint, grads_sequence, lr",
        "saved = checkpoint | {'v_list': [0 * v for v in checkpoint['v_list']]}\n"
        "    return right(saved, grads_sequence, lr)",
    )
    (line,) = told(graded(tmp_path, "resume", text))
    assert line.startswith("full-resume-equals-never-stopping: resumed after step")
    assert line.endswith("; v was lost: second moments of zero, so the first steps are far too long")
    (line,) = told(graded(tmp_path, "resume", text.replace("0 * v", "0.123 * v")))
    assert line.endswith("; ")  # no wrong version does the same


def test_the_likely_cause_may_be_a_mistake_that_is_meant_for_another_law(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mistakes, "SEARCH", 600.0)
    by = ("steps-are-those-of-adam", "the learning rate is off by 1e-06")
    law = "weights-only-is-a-new-run"
    loss = lost("resume", "numpy", law, by)
    assert loss is not None
    loss.cause = ""
    assert likely_cause(loss, RESUME, law, ARRAYS) == by[1]


# Where there are no processes and no threads.


def test_without_processes_laws_run_in_this_one_and_leave_it_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise OSError("there are none")

    monkeypatch.setattr(sys, "platform", "emscripten")
    monkeypatch.setattr(subprocess, "Popen", refuse)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    folder, path, errors = Path.cwd(), list(sys.path), np.geterr()
    text = 'import os\nos.chdir("/")\nnp_ = __import__("numpy")\nnp_.seterr(all="ignore")\nprint("hello" * 999)\n'
    (tmp_path / "resume.py").write_text(text + reference("resume", "numpy"))
    report = grade(tmp_path / "resume.py", RESUME)
    assert told(report) == []
    assert all(outcome.printed.startswith("hellohello") and len(outcome.printed) == 2000 for outcome in report.outcomes)
    assert (Path.cwd(), sys.path, np.geterr()) == (folder, path, errors)
    (tmp_path / "resume.py").write_text("import sys\nsys.exit()\n")
    assert "cannot be imported" in grade(tmp_path / "resume.py", RESUME).fault


def test_without_processes_an_exercise_that_needs_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "resume.py").write_text(reference("resume", "numpy"))
    report = grade(tmp_path / "resume.py", replace(RESUME, needs_files=True), in_process=True)
    assert report.fault == "resume needs files and processes, which this Python lacks"


# What a loss says.


def test_a_loss_names_the_first_array_and_the_worst_element() -> None:
    here = {"m": [np.zeros(2), np.zeros((2, 3))], "t": 3}
    there = {"m": [np.zeros(2), np.array([[0, 1e-9, 0], [0, 0, -4.0]])], "t": 4}
    with pytest.raises(Loss) as caught:
        expect_same_bits("it changed", here, there, step=7, cause=lambda: "a reason")
    loss = caught.value
    assert (loss.where, loss.step, loss.expected, loss.found, loss.distance) == ("m[1][1, 2]", 7, 0.0, -4.0, 4.0)
    assert loss.cause == "a reason"
    assert str(loss).startswith("it changed: step 7, m[1][1, 2]: expected 0.0, found -4.0 (distance 4)")


@pytest.mark.parametrize(
    ("expected", "found", "where"),
    [
        ({"a": 1}, {"a": True}, "a"),
        ({"a": 1}, {"a": 1.0}, "a"),
        ({"a": 1}, {"b": 1}, "result"),
        ({"a": [1, 2]}, {"a": [1]}, "a"),
        ({"a": [1]}, {"a": 1}, "a"),
        ({"a": np.zeros(2)}, {"a": [0.0, 0.0]}, "a"),
        ({"a": np.zeros(2)}, {"a": np.zeros((2, 1))}, "a"),
        ({"a": np.zeros(2)}, {"a": np.zeros(2, np.float32)}, "a"),
        ({"a": np.zeros(2)}, {"a": np.array([0.0, -0.0])}, "a[1]"),
        ({"a": np.zeros(2)}, {"a": np.array([np.nan, 0.0])}, "a[0]"),
        ({"a": np.array([1, 2])}, {"a": np.array([1, 3])}, "a[1]"),
        ({"a": np.array([True])}, {"a": np.array([False])}, "a[0]"),
        ({"a": np.array(1.0)}, {"a": np.array(2.0)}, "a"),
        ({"a": "x"}, {"a": "y"}, "a"),
    ],
)  # fmt: skip
def test_every_kind_of_difference_is_a_loss(expected: Any, found: Any, where: str) -> None:
    expect_same_bits("same", expected, expected)
    with pytest.raises(Loss) as caught:
        expect_same_bits("same", expected, found)
    assert caught.value.where == where
    json.dumps(caught.value.as_dict())


def test_within_an_allowance_is_no_loss_and_beyond_it_is() -> None:
    allowance = Tolerance(0.0, 0.25)
    expect_within("w", {"a": np.ones(2)}, {"a": np.array([1.25, 1.0], np.float32)}, allowance)
    with pytest.raises(Loss, match=r"w: a\[0\]: expected 1.0, found 1.5"):
        expect_within("w", {"a": np.ones(2)}, {"a": np.array([1.5, 1.0])}, allowance)


def test_what_is_sent_between_processes_comes_back_bit_for_bit() -> None:
    tree = {
        "a": [np.array([[1.5, -0.0, np.nan]], np.float16), 3, "x"],
        "b": {"c": np.array(True), "d": np.zeros((0, 2))},
    }
    expect_same_bits("sent", tree, decoded(json.loads(json.dumps(encoded(tree)))))


# Which exercise, which framework.


@pytest.mark.parametrize(
    ("name", "text", "exercise", "framework"),
    [
        ("resume.py", "", "resume", "numpy"),
        ("a.py", "# exercise: resume, in: torch\n", "resume", "torch"),
        ("a.py", "#!/usr/bin/env python\n\n#exercise:resume,in:numpy\nimport torch", "resume", "numpy"),
        ("resume.py", "import torch.nn", "resume", "torch"),
        ("resume.py", "from torch import nn\nimport numpy", "resume", "torch"),
        ("a.py", "# exercise: resume, in: jax\nimport numpy", "resume", "numpy"),
    ],
)
def test_exercise_and_framework_are_those_of_the_marker_else_of_name_and_imports(
    tmp_path: Path, name: str, text: str, exercise: str, framework: str
) -> None:
    (tmp_path / name).write_text(text)
    solution = read_solution(tmp_path / name)
    assert (exercise_of(solution), framework_of(solution, "numpy")) == (exercise, framework)


@pytest.mark.parametrize("text", ["", "# exercise: knitting, in: numpy\n"])
def test_a_file_of_no_exercise_is_asked_for_one(tmp_path: Path, text: str) -> None:
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ValueError, match="which exercise is it"):
        exercise_of(read_solution(tmp_path / "mine.py"))


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("name", EXERCISES)
def test_no_text_for_learners_holds_a_line_of_the_solution(name: str, framework: str) -> None:
    import ast

    exercise, text = exercise_named(name), reference_text(exercise_named(name), framework)
    told_to_learners = [exercise.statement, exercise.idea, *(hint for law in exercise.laws for hint in law.hints)]
    told_to_learners.append(stub_text(exercise, framework))
    given = set(stub_text(exercise, framework).splitlines())
    secret = {
        line.strip()
        for node in ast.parse(text).body
        if isinstance(node, ast.FunctionDef) and (node.name in exercise.functions or node.name[0] == "_")
        for line in text.splitlines()[(node.body[0].end_lineno or 0) : node.end_lineno]
    }
    secret = {line for line in secret if len(line) > 24 and not line.startswith("#")} - {line.strip() for line in given}
    assert secret
    assert not [line for line in secret for words in told_to_learners if line in words]


@pytest.mark.parametrize("name", EXERCISES)
def test_every_exercise_has_a_claim_three_hints_a_law_and_the_same_functions_in_both_packages(name: str) -> None:
    import ast

    exercise = exercise_named(name)
    assert exercise.name == name
    assert len({law.name for law in exercise.laws}) == len(exercise.laws)
    for law in exercise.laws:
        assert law.claim.endswith(".")
        assert len(law.hints) == 3
        assert all(law.hints)
    trees = [ast.parse(reference_text(exercise, framework)) for framework in ("numpy", "torch")]
    ours, theirs = ({n.name: n for n in tree.body if isinstance(n, ast.FunctionDef)} for tree in trees)
    assert set(exercise.functions) <= set(ours)
    assert [n for n in ours if n[0] != "_"] == [n for n in theirs if n[0] != "_"]
    for function in exercise.functions:
        assert ast.get_docstring(ours[function])
        names = [[a.arg for a in side[function].args.args + side[function].args.kwonlyargs] for side in (ours, theirs)]
        assert names[0] == names[1]


# The verbs.


class Answer(NamedTuple):
    status: int
    out: str
    err: str


@pytest.fixture
def verb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs a verb in a directory of its own; laws run in this process, which is faster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(commands, "grade", partial(grade, in_process=True))
    monkeypatch.setattr(commands, "grade_against", partial(grade_against, in_process=True))

    def run(*words: object, impl: Any = numpy_ref) -> Answer:
        parser = argparse.ArgumentParser()
        verbs = parser.add_subparsers(dest="verb", required=True)
        parsers = [verbs.add_parser(name) for name in ("exercises", "grade")]
        for each in parsers:
            each.add_argument("--json", action="store_true")
        commands.add_arguments(*parsers)
        options = parser.parse_args([str(word) for word in words])
        run = commands.run_exercises if options.verb == "exercises" else commands.run_grade
        status = run(impl, options)
        return Answer(status, *capsys.readouterr())

    return run


def test_start_writes_the_stub_and_never_over_a_file(verb: Any, tmp_path: Path) -> None:
    assert verb("exercises", "start", "resume").status == 0
    assert (tmp_path / "resume.py").read_text() == stub_text(RESUME, "numpy")
    (tmp_path / "resume.py").write_text("mine")
    with pytest.raises(ValueError, match=r"resume\.py: it is there already"):
        verb("exercises", "start", "resume")
    assert (tmp_path / "resume.py").read_text() == "mine"
    assert verb("exercises", "start", "resume", impl=torch_port).status == 0
    assert (tmp_path / "resume_torch.py").read_text() == stub_text(RESUME, "torch")
    assert verb("exercises", "start", "resume", "--torch", "--out", "other.py").status == 0
    assert (tmp_path / "other.py").read_text() == stub_text(RESUME, "torch")


def test_start_show_and_solution_need_a_name(verb: Any) -> None:
    for action in ("start", "show", "solution"):
        with pytest.raises(ValueError, match="expected the name of an exercise"):
            verb("exercises", action)


def test_a_pass_is_recorded_and_only_then_is_the_solution_shown(verb: Any, tmp_path: Path) -> None:
    assert verb("exercises", "solution", "resume")[:2] == (2, "")
    (tmp_path / "resume.py").write_text(saving("t = t + 0.5"))
    status, out, _ = verb("grade", "resume.py")
    assert status == 1
    assert "LOST   The checkpoint holds all parameters, all moments and t" in out
    assert "1-based" not in out
    assert "hint" not in out.replace("--hint 1", "")
    assert not (tmp_path / ".exercises.json").exists()
    (tmp_path / "resume.py").write_text(reference("resume", "numpy"))
    status, out, _ = verb("grade", "resume.py")
    assert (status, out.count("holds  ")) == (0, len(RESUME.laws))
    assert "NumPy" in verb("exercises").out
    assert verb("exercises", "solution", "resume").out == reference("resume", "numpy")
    assert verb("exercises", "solution", "resume", "--torch").status == 2
    (tmp_path / "resume.py").write_text("other")
    assert "changed since" in verb("exercises").out
    (tmp_path / "resume.py").unlink()
    assert "gone" in verb("exercises").out


def test_a_damaged_or_unwritable_record_costs_no_verdict(verb: Any, tmp_path: Path) -> None:
    (tmp_path / "resume.py").write_text(reference("resume", "numpy"))
    for text in ("[]", "{", "\0"):
        (tmp_path / ".exercises.json").write_text(text)
        status, _, err = verb("grade", "resume.py")
        assert status == 0
        assert "the pass is not recorded" in err
        with pytest.raises(ValueError, match="delete it"):
            verb("exercises")


@pytest.mark.parametrize("level", [1, 2, 3])
def test_hints_come_up_to_the_level_asked_for(verb: Any, tmp_path: Path, level: int) -> None:
    (tmp_path / "resume.py").write_text(saving("raise ValueError"))
    out = verb("grade", "resume.py", "--hint", level).out
    hints = RESUME.laws[0].hints
    assert [hint in out for hint in hints] == [n <= level for n in (1, 2, 3)]


def test_json_is_one_value_with_every_law_what_was_lost_and_the_hints(verb: Any, tmp_path: Path) -> None:
    (tmp_path / "resume.py").write_text(saving("print('hi'); params = [p * np.inf for p in params]"))
    status, out, err = verb("grade", "resume.py", "--json", "--hint", 2)
    value = strict_json(out)
    assert (status, err, value["holds"], value["exercise"], value["framework"]) == (1, "", False, "resume", "numpy")
    first = value["laws"][0]
    assert (first["holds"], first["hints"], first["printed"]) == (False, list(RESUME.laws[0].hints[:2]), "hi\n")
    assert (first["lost"]["where"], first["lost"]["found"]) == ("params[0][0]", "inf")
    (tmp_path / "resume.py").write_text("def f(:")
    status, out, _ = verb("grade", "resume.py", "--json")
    value = strict_json(out)
    assert (status, value["error"]) == (1, "resume.py:1: not Python: invalid syntax")
    assert (value["file"], value["exercise"], value["laws"]) == (str(tmp_path / "resume.py"), "resume", [])
    (tmp_path / "mine.py").write_text("# exercise: momentum, in: torch\n(")
    value = strict_json(verb("grade", "mine.py", "--json").out)
    assert (value["exercise"], value["framework"]) == ("momentum", "torch")
    assert strict_json(verb("grade", "mine.py", "--json", "--exercise", "resume").out)["exercise"] == "resume"
    assert [row["name"] for row in strict_json(verb("exercises", "--json").out)] == list(EXERCISES)


@pytest.mark.parametrize("text", ["def f(:", "1 / 0", ""])
def test_why_a_file_cannot_be_graded_is_on_standard_output_whatever_it_is(verb: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "resume.py").write_text(text)
    status, out, err = verb("grade", "resume.py")
    assert (status, err) == (1, "")
    assert out.splitlines()[-1].startswith("cannot be graded: resume.py")


def test_start_says_at_once_what_grading_will_lack(verb: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "find_spec", lambda name: None)
    status, out, err = verb("exercises", "start", "resume", "--torch")
    assert status == 0
    assert err == "grading it needs PyTorch, which is not installed here\n"
    assert "fill in save_checkpoint" in out


@pytest.mark.parametrize("name", ["numpy.py", "torch.py", "json.py"])
def test_start_makes_no_file_that_hides_a_library(verb: Any, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="finds it and not the library"):
        verb("exercises", "start", "resume", "--out", name)
    assert not (tmp_path / name).exists()


def test_a_file_that_is_not_there_is_a_matter_of_usage(verb: Any, tmp_path: Path) -> None:
    (tmp_path / "resume.py").write_text(reference("resume", "numpy"))
    for words in (("no.py",), (tmp_path,), ("resume.py", "--against", "no.py")):
        with pytest.raises(ValueError, match="expected a file, found"):
            verb("grade", *words)


def test_show_tells_what_is_asked_and_why(verb: Any) -> None:
    out = verb("exercises", "show", "resume").out
    assert RESUME.statement.strip() in out
    assert RESUME.idea.strip() in out


def test_two_solutions_are_compared_on_the_same_inputs(verb: Any, tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("# exercise: resume, in: numpy\n" + reference("resume", "numpy"))
    (tmp_path / "b.py").write_text(reference("resume", "numpy"))
    assert verb("grade", "a.py", "--against", "b.py")[:2] == (0, "a.py in NumPy against b.py in NumPy: bitwise\n")
    (tmp_path / "b.py").write_text(with_function("adam_step", "*state", "return right(*state[:-1], state[-1] + 1e-6)"))
    status, out, _ = verb("grade", "a.py", "--against", "b.py")
    assert status == 1
    assert "differs in step 1/params[0]" in out
    assert strict_json(verb("grade", "a.py", "--against", "b.py", "--json").out)["holds"] is False
    (tmp_path / "b.py").write_text(saving("1 / 0"))
    status, out, _ = verb("grade", "a.py", "--against", "b.py")
    assert status == 1
    assert "save_checkpoint raised ZeroDivisionError" in out


def test_a_framework_that_is_missing_is_an_import_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numpy_ref.exercises.grader.find_spec", lambda name: None)
    (tmp_path / "resume.py").write_text(reference("resume", "numpy"))
    with pytest.raises(ImportError, match="torch"):
        grade(tmp_path / "resume.py", RESUME, "torch")
    with pytest.raises(ImportError, match="torch"):
        grade_against((tmp_path / "resume.py", "torch"), (tmp_path / "resume.py", "torch"), RESUME)


def test_grading_in_numpy_imports_no_torch(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise SystemExit('torch was imported')")
    line = line_of(tmp_path, "import sys\nassert 'torch' not in sys.modules\n" + reference("resume", "numpy"))
    assert line == ""
    assert (ROOT / "numpy_ref").is_dir()


def test_a_report_without_outcomes_or_faults_holds() -> None:
    assert Report(Path(), "resume", "numpy").holds
    assert not Report(Path(), "resume", "numpy", fault="x").holds
