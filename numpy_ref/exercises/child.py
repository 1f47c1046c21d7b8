"""A process that holds a learner's file to one law: `python -m numpy_ref.exercises.child`, started by the grader.

Its arguments are the question as JSON and a directory, where it makes the file `started` and leaves its answer. What
the law needs is imported before the clock starts, and the process ends when the time is up.
"""

import json
import os
import signal
import sys
import threading
from pathlib import Path
from typing import Any

from numpy_ref.exercises.arrays import arrays_of
from numpy_ref.exercises.exercise import Loss
from numpy_ref.exercises.runner import answer

GRACE = 1.0  # seconds until a process is ended that holds on to the interpreter
_MEMORY = 2 << 30  # bytes a solution may take


def main() -> None:
    """Answer the one question."""
    asked, folder = json.loads(sys.argv[1]), Path(sys.argv[2])
    limit, request = asked["limit"], asked["request"]
    sys.argv, sys.dont_write_bytecode = [""], True
    main_thread, over, lock = threading.get_ident(), threading.Event(), threading.Lock()

    def finish(value: dict[str, Any]) -> None:
        with lock:  # the first to come: the law's end or the clock's
            (folder / "writing").write_text(json.dumps(value))
            os.replace(folder / "writing", folder / "answer")
            os._exit(0)

    def ring() -> None:
        if not over.wait(limit):
            finish(_late(limit, main_thread, Path(request["path"])))

    def judged() -> None:
        over.set()
        _alarm(0.0)

    try:
        arrays_of(request["framework"])
    except ImportError as error:
        finish({"fault": f"{request['framework']} cannot be imported: {error}"})
    _limit_memory()
    (folder / "started").touch()
    threading.Thread(target=ring, daemon=True).start()
    _alarm(limit + GRACE)
    try:
        value = answer(**request, judged=judged)
    except BaseException as error:  # an interrupt that the learner's code made
        value = {"loss": Loss(f"ended by {type(error).__name__}", place=Path(request["path"]).name).as_dict()}
    finish(value)


def _alarm(seconds: float) -> None:
    """Where there are alarms: have the system end this process then, even in a call that never returns; 0 is never."""
    if hasattr(signal, "setitimer"):
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _late(limit: float, thread: int, path: Path) -> dict[str, Any]:
    """The answer of the clock: where the learner's code is when the time is up."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_filename != str(path):
        frame = frame.f_back
    place = f"{path.name}:{frame.f_lineno}" if frame is not None else path.name
    return {"loss": Loss(f"did not end within {limit:g} s", place=place).as_dict(), "late": True}


def _limit_memory() -> None:
    """Where the system can: a solution that takes without end meets a MemoryError, and the machine does not swap."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, resource.getrlimit(resource.RLIMIT_DATA)[1]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    except (ImportError, ValueError, OSError):
        pass


if __name__ == "__main__":
    main()
