"""One process a law: what a learner's file answers to it there.

A process has a directory of its own to work in, a time limit and a memory limit; when it is over, it and what it
started are ended. Where there are no processes (a browser's Python) the laws run in this one: without a limit, and only
for exercises that need no files.
"""

import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

from numpy_ref.exercises.child import GRACE
from numpy_ref.exercises.exercise import Exercise, Loss, short
from numpy_ref.exercises.mistakes import SEARCH
from numpy_ref.exercises.runner import answer, encoded

NOTHING = encoded(None)
_LIMIT_AFTER = 1.0  # once a law did not end, for those begun later
_START = 60.0  # seconds that starting Python and importing the framework may take
_PRINTED = 2000  # characters of a solution's output that are kept
_ROOT = Path(__file__).parent.parent.parent


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

    def request(law: str) -> dict[str, Any]:
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


def _ask_here(request: dict[str, Any]) -> dict[str, Any]:
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


def _ask_child(request: dict[str, Any], number: int, limit: float) -> dict[str, Any]:
    """The answer from a process of its own; the number chooses how Python hashes there."""
    own = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    own["PYTHONHASHSEED"] = str(number + 1)
    own["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    printed, late = bytearray(), False
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        work = Path(folder) / "work"
        work.mkdir()
        question = json.dumps({"limit": limit, "request": request})
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "numpy_ref.exercises.child", question, folder],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=work,
            env=os.environ | own,
            start_new_session=True,  # where there are sessions: so that all it starts can be ended
        )
        listener = threading.Thread(target=_keep, args=(child.stdout, printed), daemon=True)
        listener.start()
        try:
            child.wait(_START + limit + SEARCH)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            status = _end(child)
        listener.join(GRACE)  # a process that got away may hold it open
        begun = (Path(folder) / "started").exists()
        value: dict[str, Any] = {}
        with contextlib.suppress(OSError, ValueError):  # it may have left none
            value = json.loads((Path(folder) / "answer").read_bytes())
    text = printed.decode("utf-8", "replace")[:_PRINTED]
    if not value and not begun:
        why = "Python did not start in time" if late else short(text[-300:])
        return {"fault": f"the process that grades did not start: {why}"}
    if not value:
        late = late or -status == getattr(signal, "SIGALRM", None)
        what = f"did not end within {limit:g} s" if late else f"ended the process that grades it, {_said(status)}"
        value = {"loss": Loss(what, place=Path(request["path"]).name).as_dict(), "late": late}
    return value | {"printed": text}


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


def _said(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"by {signal.Signals(-status).name}"
    except ValueError:
        return f"by signal {-status}"
