"""Runs the user's loop: `python -m torch_port.audit.loop.worker` serves one target after the other.

    this process      has imported torch
    a target's        a fork of it, has imported the user's module
    a run's           a fork of that, or a new process where that is asked for or a fork is not safe (threads, a GPU)

A request is a line of JSON on standard input (see `trial.Spec`); when its run has ended, one line on standard output
says whether it failed; the rest is in its record. What the user's code prints goes to a file.
"""

import faulthandler
import importlib
import importlib.util
import json
import os
import random  # noqa: TID251 - the state of the user's
import subprocess
import sys
import threading
import traceback
import types
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from torch_port.audit.judge.findings import Failure

OURS = str(Path(__file__).parents[1])


class Phase:
    """Says where the user's code is, in a file that outlives this process, and limits the time it may take there."""

    def __init__(self, record: Path, limit: float) -> None:
        self.path = record.with_suffix(".phase")
        self.traces = open(record.with_suffix(".hang"), "w")  # noqa: SIM115
        self.limit = limit

    def enter(self, name: str) -> None:
        """The user's code is about to run."""
        self.name = name
        self.path.write_text(name)
        faulthandler.dump_traceback_later(self.limit, exit=True, file=self.traces)

    def leave(self) -> None:
        """Ours again."""
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """Serve targets until standard input ends; each in a child, so that nothing of it stays here."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    _redirect()
    importlib.import_module("torch_port.audit.loop.trial")  # and with it torch, at no cost to the user's time limit
    importlib.import_module("torch._dynamo")  # the first optimizer imports it: once here, not once in each child
    while line := _line(requests):
        first = json.loads(line)
        if not hasattr(os, "fork"):
            return _serve(first, requests, answers)
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = _serve(first, requests, answers)
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        if status:
            spec = {"record": first["record"], "limit": first["limit"]}
            _note_status(spec, os.waitstatus_to_exitcode(status))
            answers.write(json.dumps({"failure": failure_of(spec)}) + "\n")
    return 0


def _serve(first: dict[str, Any], requests: BinaryIO, answers: TextIO) -> int:
    """Import one target, and run its requests until one is empty."""
    output = os.open(first["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)
    sys.stdout.flush()
    phase, failure, unseeded = Phase(Path(first["record"]), first["limit"]), None, _generator_states()
    try:
        phase.enter("import")
        module, factory = find_target(first["target"])
        phase.leave()
    except BaseException as error:  # SystemExit too
        phase.leave()
        failure = Failure("import", *describe(error))
    answers.write(json.dumps({"failure": failure}) + "\n")
    if failure is not None:
        return 0
    forks = can_fork()
    while (line := _line(requests)) and (spec := json.loads(line)):
        if forks and not spec.get("anew"):
            _in_fork(spec, factory, module, unseeded)
        else:
            _in_new_process(spec, first["target"])
        answers.write(json.dumps({"failure": failure_of(spec)}) + "\n")
    return 0


def _generator_states() -> dict[str, str]:
    """Where the generators of the process are, before the user's code can have seeded them."""
    from torch_port.audit.loop.values import generator_states

    return generator_states()


def _line(requests: BinaryIO) -> bytes:
    """One line, and not a byte more: the next may be for another process."""
    found = bytearray()
    while not found.endswith(b"\n") and (byte := requests.read(1)):
        found += byte
    return bytes(found)


def find_target(target: str) -> tuple[types.ModuleType, Any]:
    """The module and the class or function that `module:Name` or `path/file.py:Name` points to."""
    where, _, name = target.rpartition(":")
    if where.endswith(".py"):
        path = Path(where).resolve()
        sys.path.insert(0, str(path.parent))
        where = path.stem
        spec = importlib.util.spec_from_file_location(where, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise FileNotFoundError(f"{path}: there is no such file")
        module = importlib.util.module_from_spec(spec)
        sys.modules[where] = module
        spec.loader.exec_module(module)
    else:
        sys.path.insert(0, os.getcwd())
        module = importlib.import_module(where)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target}: expected a class, or a function that returns a run, found {type(found).__name__}")
    return module, found


def describe(error: BaseException) -> tuple[str, str]:
    """An exception in one line with its notes, and its traceback without our frames."""
    report = traceback.TracebackException.from_exception(error)
    for one in _chain(report):
        one.stack = traceback.StackSummary.from_list(
            [frame for frame in one.stack if not frame.filename.startswith((OURS, "<frozen importlib"))]
        )
    whole = "".join(report.format())
    notes, report.__notes__ = report.__notes__ or [], None
    line = "".join(report.format_exception_only()).strip()
    return ": ".join([line, *notes]), whole


def _chain(report: "traceback.TracebackException | None") -> list[traceback.TracebackException]:
    return [] if report is None else [report, *_chain(report.__cause__), *_chain(report.__context__)]


def can_fork() -> bool:
    """Whether a fork of this process is as good as a new one."""
    import torch

    in_use = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return hasattr(os, "fork") and threading.active_count() == 1 and not in_use


def failure_of(spec: dict[str, Any]) -> Failure | None:
    """Why a run left no whole record: what it says itself, a hang, or its end."""
    record = Path(spec["record"])
    if record.exists():
        found = json.loads(record.read_text())["failure"]
        return None if found is None else Failure(*found)
    phase = record.with_suffix(".phase")
    name = phase.read_text() if phase.exists() else "start"
    hang = record.with_suffix(".hang")
    if hang.exists() and hang.stat().st_size:
        error = f"no end within {spec['limit']:g} s"
        return Failure(f"hang in {name}", error, _frames(hang.read_text()))
    ended = record.with_suffix(".status")
    return Failure(name, ended.read_text() if ended.exists() else "the process ended")


def _frames(text: str) -> str:
    """The user's frames of what faulthandler wrote, in Python's usual order, with their lines."""
    import linecache
    import re

    found = re.findall(r'  File "(.*)", line (\d+) in (.*)', text.split("Current thread")[-1])
    kept = [(file, int(line), name) for file, line, name in reversed(found) if not file.startswith(OURS)]
    lines = [
        f'  File "{file}", line {line}, in {name}\n    {linecache.getline(file, line).strip()}'
        for file, line, name in kept
        if not file.startswith("<frozen")
    ]
    return "\n".join(["Traceback (most recent call last):", *lines])


def _in_fork(spec: dict[str, Any], factory: Any, module: types.ModuleType, unseeded: dict[str, str]) -> None:
    state = random.getstate()
    child = os.fork()
    if child == 0:
        try:
            random.setstate(state)  # Python seeds it anew in a fork; the user's module may have seeded it
            _run(spec, factory, module, unseeded)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)
    _, status = os.waitpid(child, 0)
    _note_status(spec, os.waitstatus_to_exitcode(status))


def _in_new_process(spec: dict[str, Any], target: str) -> None:
    command = [sys.executable, "-m", "torch_port.audit.loop.worker", "--one", target]
    done = subprocess.run(command, input=json.dumps(spec), text=True, check=False)
    _note_status(spec, done.returncode)


def _note_status(spec: dict[str, Any], code: int) -> None:
    text = f"the process ended with status {code}" if code >= 0 else f"the process was ended by signal {-code}"
    Path(spec["record"]).with_suffix(".status").write_text(text)


def _one(target: str) -> int:
    """A run in a process of its own."""
    spec, unseeded = json.loads(sys.stdin.read()), _generator_states()
    module, factory = find_target(target)
    _run(spec, factory, module, unseeded)
    return 0


def _run(spec: dict[str, Any], factory: Any, module: types.ModuleType, unseeded: dict[str, str]) -> None:
    from torch_port.audit.loop import trial

    record = Path(spec["record"])
    phase = Phase(record, spec["limit"])
    run = trial.Trial(cast(trial.Spec, spec), factory, module, phase, unseeded)
    failure = None
    try:
        run.execute()
    except BaseException as error:  # SystemExit and KeyboardInterrupt too: whatever the user's code raises
        failure = Failure(phase.name, *describe(error))
    phase.leave()
    run.write(record, failure)


def _redirect() -> None:
    """The user's code reads nothing, and prints nowhere but to a file."""
    for number, flags in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
        os.dup2(os.open(os.devnull, flags), number)


if __name__ == "__main__":
    sys.exit(_one(sys.argv[2]) if sys.argv[1:2] == ["--one"] else main())
