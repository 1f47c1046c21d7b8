"""Runs of the script, each in a copy of its directory, watched by the hook; and what a directory holds.

A directory is copied, listed, made to hold what a crash leaves, and compared at the end.
"""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.proof import power_failure
from numpy_ref.proof.power_failure import DiskModel, File, State
from torch_port.audit.crash import hook
from torch_port.audit.crash.hook import IGNORED

_HOOK = Path(hook.__file__).parent
_FOREIGN = (".pt", ".pth", ".tar", ".bin", ".ckpt", ".safetensors")


@dataclass(frozen=True)
class Event(power_failure.Event):
    """One call of the script that changes or synchronises something."""

    native: bool = False  # seen only after it was done
    order: int = -1  # among those that the script can be killed at
    printed: int = 0  # bytes on standard output before it


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

    def disk(self) -> DiskModel:
        """The directory as it was, to follow events on."""
        names: dict[str, File] = {}
        for name, kind in names_in(self.pristine):
            path = self.pristine / name
            if kind == "link":
                names[name] = File(kind, os.fsencode(os.readlink(path)))
            else:
                names[name] = File(kind, origin=(path, name) if kind == "file" else None)
        return DiskModel(names)

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
        told = {name: entry[name] for name in ("call", "name", "target", "offset", "whole", "native") if name in entry}
        found.append(Event(**told, data=data, order=entry["index"], printed=entry["out"]))
    return found


def copy(source: Path, target: Path) -> None:
    """Copy what is watched; dates and modes stay, and links are links."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED))


def names_in(directory: Path) -> list[tuple[str, str]]:
    """The name and kind of everything below a directory."""
    found = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if not set(relative.parts) & set(IGNORED):
            kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
            found.append((os.fspath(relative), kind))
    return found


def materialise(state: State, place: Path) -> None:
    """Make a copy of the directory as it was hold a state; what was changed last is newest."""
    for name, kind in sorted(names_in(place), reverse=True):
        node = state.get(name)
        if name not in state or (node is not None and node.kind != "directory"):
            (place / name).rmdir() if kind == "directory" else (place / name).unlink()
    now = time.time_ns()
    last = max((node.stamp for node in state.values() if node is not None), default=0)
    for name, node in sorted(state.items()):
        path = place / name
        if node is None:
            continue
        if node.kind == "directory":
            path.mkdir(exist_ok=True)
        elif node.kind == "link":
            path.symlink_to(os.fsdecode(node.data))
        else:
            path.write_bytes(node.data)
            stamp = now - (last - node.stamp) * 1_000_000
            os.utime(path, ns=(stamp, stamp))


def unexplained(state: State, place: Path) -> list[str]:
    """What a directory holds otherwise than a state that was made from the record of what was done to it."""
    there = dict(names_in(place))
    notes = [f"{name} changed, and no event says so" for name in sorted(state.keys() ^ there.keys())]
    files = {name: node for name, node in state.items() if name in there and node is not None and node.kind == "file"}
    for name, node in sorted(files.items()):
        if (place / name).read_bytes() != node.data:
            notes.append(f"{name} holds other bytes than the events wrote")
    return notes


def unlike_a_copy(state: State, place: Path) -> list[str]:
    """What a directory that was made from a state would lack: dates that were set, permission to execute."""
    notes, latest = [], 0
    nodes = [(node.stamp, name) for name, node in state.items() if node is not None and node.kind == "file"]
    seen = [(stamp, (place / name).stat(), name) for stamp, name in nodes if (place / name).is_file()]
    for _, found, name in sorted(seen, key=lambda item: (item[0], item[1].st_mtime_ns)):
        if found.st_mtime_ns < latest:
            notes.append(f"{name} has an older date than what was written before it")
        if found.st_mode & 0o111:
            notes.append(f"{name} may be executed, and no event says so")
        latest = max(latest, found.st_mtime_ns)
    return notes


def unlike(expected: Path, found: Path) -> str:
    """How two files differ, leaf by leaf where both can be read so; nothing where they do not."""
    if expected.is_symlink() or found.is_symlink():
        links = [os.readlink(path) if path.is_symlink() else "no link" for path in (expected, found)]
        return "" if links[0] == links[1] else f"expected a link to {links[0]}, found {links[1]}"
    if not found.is_file():
        return "missing"
    if expected.read_bytes() == found.read_bytes():
        return ""
    if expected.suffix not in _FOREIGN:
        return "its bytes differ"
    from torch_port.audit import foreign

    try:
        found_out = foreign.diff(expected, found)
    except CheckpointError:
        return "its bytes differ"
    if found_out.bitwise:
        return ""
    changes = found_out.changes
    return f"{len(changes)} leaves differ, first {changes[0].path}" if changes else "its bytes differ"


def digest(state: State) -> str:
    """One for all states that a reader cannot tell apart: names, bytes, and which file was changed after which."""
    stamps = sorted({node.stamp for node in state.values() if node is not None and node.kind == "file"})
    order = {stamp: i for i, stamp in enumerate(stamps)}
    found = sha256()
    for name, node in sorted(state.items()):
        parts: tuple[Any, ...] = (name, "as it was")
        if node is not None:
            parts = (name, node.kind, sha256(node.data).hexdigest(), order.get(node.stamp))
        found.update(repr(parts).encode())
    return found.hexdigest()
