"""Runs of the script: each in a copy of its directory, watched by the hook, within its time."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

from torch_port.audit.crash import hook
from torch_port.audit.crash.directory import copy, names_in
from torch_port.audit.crash.disk import Disk, Event

_HOOK = Path(hook.__file__).parent


class Refused(Exception):
    """The script cannot be judged: the verdict, and why."""


class Ran(NamedTuple):
    """One run of the script."""

    status: int | None  # None: it was still running when its time was over
    output: str
    events: list[Event]
    seconds: float

    @property
    def killed(self) -> bool:
        """Whether it killed itself."""
        return self.status == -signal.SIGKILL


class Bench:
    """Runs the script in copies of its directory."""

    def __init__(self, folder: Path, source: Path, command: tuple[str, ...], timeout: float) -> None:
        self.folder, self.source, self.command, self.timeout = folder, source, command, timeout
        self.running: set[int] = set()
        self.stopped = False
        self.pristine = folder / "pristine"
        self.path = folder / "hook"
        self.path.mkdir()
        shutil.copyfile(_HOOK / "sitecustomize.py", self.path / "sitecustomize.py")
        self.numbers = count()
        copy(source, self.pristine)
        for name, kind in names_in(self.pristine):  # a link out of the directory leads where it did
            link = self.pristine / name
            if kind == "link" and not (source / name).resolve().is_relative_to(source):
                link.unlink()
                link.symlink_to((source / name).resolve())

    def stop(self) -> None:
        """End what runs, and start nothing more."""
        self.stopped = True
        for number in list(self.running):
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(number, signal.SIGKILL)

    def fresh(self, source: Path | None = None) -> Path:
        """A new copy of the directory as it was, or of another."""
        place = self.folder / f"copy-{next(self.numbers)}"
        copy(source or self.pristine, place)
        return place

    def disk(self) -> Disk:
        """The directory as it was, to follow events on."""
        return Disk(self.pristine, names_in(self.pristine))

    def run(self, place: Path, *, kill: int = -1, torn: int = -1, watched: bool = True, keep: bool = False) -> Ran:
        """Run the script to its end, or until its time is over.

        Args:
            place: where.
            kill: the index of the event that it kills itself at.
            torn: in the middle of the write, after so many bytes; -1: before the event.
            watched: whether the hook is there.
            keep: whether the record holds the bytes too.
        """
        if self.stopped:
            raise Refused("failed", "stopped")
        log = Path(tempfile.mkdtemp(prefix="log-", dir=self.folder))
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        if watched:
            path = [os.fspath(self.path), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(path)
            orders = {"hook": os.fspath(_HOOK), "root": os.fspath(place), "folder": os.fspath(log)}
            environment[hook.VARIABLE] = json.dumps(orders | {"kill": kill, "torn": torn, "keep": keep})
        command = [self._moved(word, place) for word in self.command]
        started = time.perf_counter()
        with open(log / "output", "wb") as output:
            process = subprocess.Popen(
                command,
                cwd=place,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            status: int | None = None
            self.running.add(process.pid)
            if self.stopped:  # since it was asked
                self.stop()
            try:
                with suppress(subprocess.TimeoutExpired):
                    status = process.wait(self.timeout)
            finally:  # and whatever it has started
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.running.discard(process.pid)
        seconds = time.perf_counter() - started
        found = Ran(status, (log / "output").read_text(errors="replace"), _read(log), seconds)
        shutil.rmtree(log)
        return found

    def _moved(self, word: str, place: Path) -> str:
        """A word of the command, in the copy."""
        if word == os.fspath(self.source) or word.startswith(os.fspath(self.source) + os.sep):
            return os.fspath(place) + word[len(os.fspath(self.source)) :]
        return word


def _read(log: Path) -> list[Event]:
    """The record of a run."""
    found = []
    path = log / "log"
    for line in path.read_text().splitlines() if path.exists() else []:
        entry = json.loads(line)
        data = b""
        if "size" in entry:
            with open(log / f"bytes.{entry['pid']}", "rb") as file:
                file.seek(entry["at"])
                data = file.read(entry["size"])
        found.append(
            Event(
                entry["call"],
                entry["name"],
                entry.get("target", ""),
                entry.get("offset", 0),
                data,
                entry.get("whole", False),
                entry.get("native", False),
                entry["index"],
                entry["out"],
            )
        )
    return found
