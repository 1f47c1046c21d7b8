"""A process that holds a learner's file to one law: `python -m numpy_ref.exercises.child`, started by the grader.

The question comes on standard input. Before any code of the learner runs, standard output is put aside for the answer
and both of the learner's outputs go where standard error went. The answer is one line that names the law and begins
with a token, which waits on standard input and is read only when the law is over. What the law needs is imported before
the clock starts, and a thread ends the process when the time is up.
"""

import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from numpy_ref.exercises.exercise import Loss
from numpy_ref.exercises.runner import answer, arrays_of

_MEMORY = 2 << 30  # bytes a solution may take


def main() -> None:
    """Answer the one question."""
    channel, question = os.dup(1), os.fdopen(os.dup(0), "rb", buffering=0)  # unbuffered: a line is read, and no more
    asked = json.loads(question.readline())
    limit, request = asked["limit"], asked["request"]
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.argv, sys.dont_write_bytecode = [""], True
    write, leave, dumps, lock = os.write, os._exit, json.dumps, threading.Lock()  # the learner may replace the names

    def say(value: dict[str, Any]) -> None:
        token = question.readline().strip().decode()
        line = memoryview(f"\n{token} {dumps(value)}\n".encode())
        while line:
            line = line[write(channel, line) :]

    def finish(value: dict[str, Any]) -> None:
        with lock:  # the first to come: the law's end or the clock's
            say(value | {"law": request["law"]})
            leave(0)

    try:
        arrays_of(request["framework"])
    except ImportError as error:
        finish({"fault": f"{request['framework']} cannot be imported: {error}"})
    _limit_memory()
    say({"started": True})
    main_thread, path = threading.get_ident(), Path(request["path"])

    def ring() -> None:
        sleep(limit)
        finish(_late(limit, main_thread, path))

    sleep = time.sleep
    threading.Thread(target=ring, daemon=True).start()
    try:
        value = answer(**request)
    except BaseException as error:  # an interrupt that the learner's code made
        value = {"loss": Loss(f"ended by {type(error).__name__}", place=path.name).as_dict()}
    finish(value)


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
