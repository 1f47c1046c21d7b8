"""One process a law: what a learner's file answers to it there.

A process has a directory of its own to work in, a time limit, and an answer that does not mix with what it prints; when
it is over, it and what it started are ended. Where there are no processes (a browser's Python) the laws run in this
one: without a limit, and only for exercises that need no files.
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from numpy_ref.exercises.arrays import PLAIN
from numpy_ref.exercises.exercise import Exercise, Loss, short
from numpy_ref.exercises.runner import answer, decoded, encoded

NOTHING = encoded(None)
_LIMIT_AFTER = 1.0  # once a law did not end, for those begun later
_START = 60.0  # seconds that starting Python and importing the framework may take
_GRACE = 1.0  # seconds from the child's own clock to ours
_PRINTED = 2000  # characters of a solution's output that are kept
_ANSWER = 1 << 24  # bytes of an answer that are read
_ROOT = Path(__file__).parent.parent.parent
_MARK = "EXERCISE_LAW"  # the environment variable by which what a solution started is found


def ask_all(
    file: Path,
    exercise: Exercise,
    framework: str,
    laws: list[str],
    limit: float,
    in_process: bool | None,
    note: Callable[[int, int], None] = lambda done, total: None,
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
        answers = []
        for value in pool.map(ask, laws, range(len(laws))):
            answers.append(value)
            note(len(answers), len(laws))
        return answers


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
        decoded(value.get("value", NOTHING))
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
