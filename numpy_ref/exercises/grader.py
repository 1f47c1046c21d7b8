"""Grade a learner's file: hold it to each law of its exercise, one process a law, and report what was lost.

A process has a directory of its own to work in, a time limit, and an answer that does not mix with what it prints; when
it is over, it and what it started are ended. Where there are no processes (a browser's Python) the laws run in this
one: without a limit, and only for exercises that need no files.

The grader is for those who want to learn, and is no examination hall. A law and the file that it judges share a
process, and a file that sets out to forge its verdict can: by the frames above it, by the memory of the process. What
comes from the process is checked, so that a forgery takes nothing down, but it may still be believed. Likewise, what a
file starts is found by its session and its environment, and a process that leaves both may live on.
"""

import contextlib
import io
import json
import os
import queue
import secrets
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, NamedTuple

from numpy_ref.equivalence import Verdict, compare
from numpy_ref.exercises.arrays import PLAIN
from numpy_ref.exercises.exercise import Exercise, Loss, expect_same_bits, paired, short
from numpy_ref.exercises.runner import TRACE, answer, decoded, encoded
from numpy_ref.exercises.source import FileFault, own_import, read_solution, unwritten

LIMIT = 5.0  # seconds a law may take; right solutions need hundredths
_LIMIT_AFTER = 1.0  # once a law did not end, for those begun later
_START = 60.0  # seconds that starting Python and importing the framework may take
_GRACE = 1.0  # seconds from the child's own clock to ours
_PRINTED = 2000  # characters of a solution's output that are kept
_ANSWER = 1 << 24  # bytes of an answer that are read
_ROOT = Path(__file__).parent.parent.parent
_MARK = "EXERCISE_LAW"  # the environment variable by which what a solution started is found
_NOTHING = encoded(None)
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
) -> Report:
    """Hold a file to every law of an exercise.

    Args:
        path: the learner's file.
        exercise: what it solves.
        framework: "numpy" or "torch".
        limit: seconds for each law.
        in_process: run the laws in this process; default is to do so where there are no others.

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
    answers = _ask_all(file, exercise, framework, names, limit, in_process)
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
        value = value or _ask_all(file, exercise, framework, [TRACE], limit, in_process)[0]
        if "holds" not in value:
            raise FileFault(value.get("fault") or f"{Loss(**value['loss'])}")
        traces.append(decoded(value.get("value", _NOTHING)))
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
    if module := own_import(solution):
        return f"{module}; a solution must not use this project's own packages"
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
            ours, theirs = (decoded(each.get("value", _NOTHING)) for each in (answers[0], value))
            expect_same_bits("another process gives another result", ours, theirs, cause=_BY_PROCESS)
        except Loss as loss:
            return {"loss": loss.as_dict(), "printed": value.get("printed", "")}
    return answers[0]


def _ask_all(
    file: Path, exercise: Exercise, framework: str, laws: list[str], limit: float, in_process: bool | None
) -> list[dict[str, Any]]:
    """The answer to each question, in order; where there are no processes, one for a law that is asked repeatedly."""

    def request(law: str) -> dict[str, str]:
        return {"path": str(file), "exercise": exercise.name, "framework": framework, "law": law}

    if in_process if in_process is not None else sys.platform == "emscripten":
        if exercise.needs_files:
            return [{"fault": f"{exercise.name} needs files and processes, which this Python lacks"}]
        here = {law: _ask_here(request(law)) for law in dict.fromkeys(laws)}
        return [here[law] for law in laws]
    late = threading.Event()

    def ask(law: str, number: int) -> dict[str, Any]:
        value = _ask_child(request(law), number, min(limit, _LIMIT_AFTER) if late.is_set() else limit)
        if value.get("late"):
            late.set()
        return value

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with ThreadPoolExecutor(max_workers=cores) as pool:
        return list(pool.map(ask, laws, range(len(laws))))


def _ask_here(request: dict[str, str]) -> dict[str, Any]:
    """The answer from this process, with what a solution changes in it put back."""
    printed, folder, path = _Beginning(), os.getcwd(), list(sys.path)
    try:
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            value = answer(**request)
    finally:
        os.chdir(folder)
        sys.path[:] = path
    return value | {"printed": printed.getvalue()}


class _Beginning(io.StringIO):
    """A text stream that keeps the beginning."""

    def write(self, text: str) -> int:
        super().write(text[: max(0, _PRINTED - self.tell())])
        return len(text)


def _ask_child(request: dict[str, str], number: int, limit: float) -> dict[str, Any]:
    """The answer from a process of its own; the number chooses how Python hashes there."""
    begin, end, name = secrets.token_hex(16), secrets.token_hex(16), Path(request["path"]).name
    question = f"{json.dumps({'limit': limit, 'request': request})}\n{begin}\n{end}\n".encode()
    own = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own |= {"PYTHONHASHSEED": str(number + 1), _MARK: begin}
    search = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    answers: queue.Queue[dict[str, Any]] = queue.Queue()
    printed, begun = bytearray(), False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "numpy_ref.exercises.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=folder,
            env=os.environ | own | {"PYTHONPATH": search},
            start_new_session=True,  # where there are sessions: so that all it starts can be ended
        )
        threading.Thread(target=_hear, args=(child.stdout, (begin, end), answers), daemon=True).start()
        listener = threading.Thread(target=_keep, args=(child.stderr, printed), daemon=True)
        listener.start()
        try:
            assert child.stdin is not None
            with contextlib.suppress(OSError), child.stdin:
                child.stdin.write(question)
            value = answers.get(timeout=_START)
            if begun := "started" in value:
                value = answers.get(timeout=limit + _GRACE)
        except queue.Empty:
            what = f"did not end within {limit:g} s" if begun else "Python did not start in time"
            value = {"law": request["law"], "loss": Loss(what, place=name).as_dict(), "late": True}
        finally:
            status = _end(child)
            _end_marked(begin)
        listener.join(_GRACE)  # a process that got away may hold it open
    text = printed.decode("utf-8", "replace")[:_PRINTED]
    if "ended" in value and not begun:
        return {"fault": f"the process that grades did not start: {short(text[-300:])}"}
    if "ended" in value:
        value = {"loss": Loss(f"ended the process that grades it, {_said(status)}", place=name).as_dict()}
    elif begun and not _is_answer(value, request["law"]):
        what = "meddles with the process that grades it: its answer is no verdict"
        value = {"loss": Loss(what, place=name).as_dict()}
    return value | {"printed": text}


def _is_answer(value: Any, law: str) -> bool:
    """Whether a process answered as `answer` does: what it holds was in the hands of the learner's code."""
    try:
        if value["law"] != law:
            return False
        if "loss" in value:
            loss = Loss(**value["loss"])
            texts = (loss.what, loss.where, loss.cause, loss.place)
            numbers = (loss.step, loss.distance, loss.ulps)
            return (
                all(isinstance(text, str) for text in texts)
                and all(isinstance(number, (int, float, type(None))) for number in numbers)
                and all(isinstance(side, PLAIN) for side in (loss.expected, loss.found))
            )
        if "fault" in value:
            return isinstance(value["fault"], str)
        decoded(value.get("value", _NOTHING))
        return value["holds"] is True
    except Exception:  # of whatever kind: it was not made by us
        return False


def _hear(stream: IO[bytes], tokens: tuple[str, str], answers: queue.Queue[dict[str, Any]]) -> None:
    """Pass on that the law has begun, the answer, and then that there will be no more."""
    begin, end = tokens
    with stream:
        while line := stream.readline(_ANSWER):
            token, _, text = line.partition(b" ")
            with contextlib.suppress(ValueError, RecursionError):
                if token == begin.encode():
                    answers.put({"started": True})
                elif token == end.encode():
                    answers.put(json.loads(text))
    answers.put({"ended": True})


def _keep(stream: IO[bytes], printed: bytearray) -> None:
    """Read all, keep the beginning."""
    with stream:
        while data := stream.read1(1 << 16):  # type: ignore[attr-defined]
            printed.extend(data[: max(0, 4 * _PRINTED - len(printed))])


def _end(child: subprocess.Popen[bytes]) -> int:
    """End a process and what it started; its exit status, its own if it was over."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.kill()
    return child.wait()


def _end_marked(mark: str) -> None:
    """End what a solution started and put into a session of its own, where the system shows environments."""
    words = f"{_MARK}={mark}".encode()
    for _ in range(10):  # until none is left: one may start another meanwhile
        left = [file.parent for file in Path("/proc").glob("[0-9]*/environ") if words in _content(file).split(b"\0")]
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(int(process.name), signal.SIGKILL)
        if not left:
            return


def _content(file: Path) -> bytes:
    """The bytes of a file; none where it cannot be read."""
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _said(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
