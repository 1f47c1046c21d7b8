"""A directory whose calls are watched: what of a file a crash may leave, and errors where they can occur.

At every call of Python's `os` the directory is looked at, and `numpy_ref.proof.power_failure` keeps account of what of
it a disk must have by now.
"""

import errno
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Loss, expect
from numpy_ref.proof.power_failure import DiskModel, Event, File

CALLS = ("open", "write", "fsync", "fdatasync", "replace", "rename", "link", "unlink", "remove", "truncate", "close")
NAME = "state.bin"
OLD, NEW, OTHER = (np.random.default_rng(size).bytes(size) for size in (2000, 3000, 2500))
TAKEN = 1000  # bytes that os.write takes at most, as it may
MOST = 5  # calls of one kind that are let fail, one at a time

Hook = Callable[[str, Any], None]  # before a call: its name, and its first argument


class WatchedFile(File):
    """A file of the directory, kept open so that its number is not used twice."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__()
        self.number = number
        self.stream = open(path, "rb", buffering=0)  # noqa: SIM115

    def look(self) -> None:
        """Take note of what a reader finds in it."""
        found = os.pread(self.stream.fileno(), 1 << 20, 0)
        self.changes = [] if found == self.durable else [(0, None), (0, found)]


class Disk:
    """A directory in which one file matters, and what a crash may leave of that.

    Args:
        folder: the directory; it holds the old file or nothing.
        hook: called before each call; what it raises, the call raises.
    """

    def __init__(self, folder: str, hook: Hook = lambda call, argument: None) -> None:
        expect(os.name == "posix", "this exercise is about POSIX: Linux, macOS; elsewhere it cannot be graded")
        self.folder, self.path, self.hook, self.last = folder, os.path.join(folder, NAME), hook, "the start"
        self.files: dict[int, WatchedFile] = {}  # all that were seen
        self.synchronised: list[str] = []  # what fsync was called for
        self.early: dict[int, int] = {}  # bytes that a file had when it was synchronised and was not complete
        self.cut: dict[int, tuple[int, int]] = {}  # where os.write took fewer bytes than it was given the last time
        self.old = self.standing()
        self.stranger = False  # whether a file took the name that was not seen beside it before
        self.fault: Loss | None = None  # at the first moment at which a crash loses the file
        self.scan()
        for file in self.files.values():
            file.look()
            file.synchronise()
        self.model = DiskModel({NAME: self.files[self.old]} if self.old else {})
        self.allowed = [NEW, self.files[self.old].durable if self.old else None]

    def standing(self) -> int | None:
        """The number of the file that has the name."""
        return os.stat(self.path).st_ino if os.path.exists(self.path) else None

    def scan(self) -> None:
        """Take note of the files that are there."""
        for entry in os.scandir(self.folder):
            if entry.is_file() and entry.inode() not in self.files:
                self.files[entry.inode()] = WatchedFile(entry.path, entry.inode())

    def look(self) -> None:
        """Take note of the files that are there, and of the one that has the name."""
        standing = self.standing()
        self.stranger |= standing is not None and standing not in self.files
        self.scan()
        file = None if standing is None else self.files[standing]
        if file is not self.model.names.get(NAME):
            self.model.give(Event("rename", target=NAME), NAME, file)

    def crash(self) -> None:
        """Take note if the power may fail now and the file be none of those allowed."""
        self.look()
        for file in [] if self.fault else self.model.values(NAME):
            if not isinstance(file, WatchedFile):
                if None not in self.allowed:
                    cause = (
                        "the old file was removed before the new one took its name; os.replace does both in one step"
                    )
                    self.lose("no file", cause)
                continue
            file.look()
            if not file.changes and file.durable in self.allowed:
                continue
            if file.number != self.old:
                sure = len(file.durable)
                self.lose(f"a file of which {sure} of {len(NEW)} bytes are certain", self.why(file.number))
            elif not file.changes:
                self.lose("the old content", "the new name is not on disk: no fsync of the directory followed it")
            else:
                self.lose("a mixture", "the file was written under its final name; write a temporary, rename it")

    def lose(self, found: str, cause: str) -> None:
        """Keep the first fault."""
        wanted = "the old content or the new" if len(self.allowed) > 1 else "the new content"
        self.fault = self.fault or Loss(
            f"a crash after {self.last} may lose the file", NAME, None, wanted, found, cause=cause
        )

    def why(self, file: int) -> str:
        """Why the content of a new file that has the name is not on disk."""
        if file in self.cut:
            return short_write(*self.cut[file])
        text = "the new file took its name before its content was on disk: "
        if file in self.early:
            return f"{text}when fsync was called, the system had {self.early[file]} bytes, the others were not flushed"
        others = " and ".join(dict.fromkeys(self.synchronised))
        return text + (f"fsync was called for {others} instead" if others else "it was not synchronised by then")

    def synchronise(self, file: int) -> None:
        """What an fsync does, to the account alone."""
        number = os.fstat(file).st_ino
        if number in self.files:
            known = self.files[number]
            known.look()
            known.synchronise()
            if known.durable != NEW:
                self.early[number] = len(known.durable)
        elif number == os.stat(self.folder).st_ino:
            self.model.apply(Event("fsync directory"))
        kind = "the old file" if number == self.old else "a file" if number in self.files else "the directory"
        self.synchronised.append(kind)

    def write(self, real: Any, descriptor: int, data: bytes) -> int:
        """What os.write may do: take fewer bytes than it is given."""
        file, taken = os.fstat(descriptor).st_ino, int(real(descriptor, data[:TAKEN]))
        self.cut.pop(file, None)
        if taken < len(data):
            self.cut[file] = taken, len(data)
        return taken

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch the calls of `os`, also where a solution has imported them by name."""

        def watching(call: str, real: Any) -> Any:
            def wrapped(*arguments: Any, **named: Any) -> Any:
                first = [*arguments, *named.values()][0]
                self.crash()
                self.hook(call, first)
                self.last = f"os.{call}"
                if call in ("fsync", "fdatasync"):
                    return self.synchronise(first if isinstance(first, int) else first.fileno())
                return self.write(real, first, arguments[1]) if call == "write" else real(*arguments, **named)

            return wrapped

        spaces = [vars(os), *(vars(module) for name, module in [*sys.modules.items()] if name.startswith("solution_"))]
        changed = []
        for call in CALLS:
            real = getattr(os, call)
            for space in spaces:
                changed += [(space, name, real, watching(call, real)) for name in space if space[name] is real]
        try:
            for space, name, _, wrapped in changed:
                space[name] = wrapped
            yield
            self.crash()
        finally:
            for space, name, real, _ in changed:
                space[name] = real
            for file in self.files.values():
                file.stream.close()


def short_write(taken: int, given: int) -> str:
    """Why a file is cut short although no call failed."""
    return f"the system's write took {taken} of {given} bytes, as it may, and raised nothing: go on with the rest"


@contextmanager
def folder_with(old: bytes | None) -> Iterator[str]:
    """A new directory, with the old file or with nothing."""
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as folder:
        if old is not None:
            Path(folder, NAME).write_bytes(old)
        yield folder


def raised(solution: Any, path: Any, data: bytes) -> BaseException | None:
    """What the call raised, as it was; a `Loss` for what no system raises."""
    try:
        solution.atomic_write(path, data)
    except KeyboardInterrupt as error:
        return error
    except Loss as loss:
        if not isinstance(loss.__context__, OSError):
            raise
        return loss.__context__
    return None


def errors() -> dict[str, tuple[BaseException, Callable[[str, Any], bool]]]:
    """Where an error is put in: the error, and before which calls it comes."""

    def is_directory(argument: Any) -> bool:
        return stat.S_ISDIR(os.fstat(argument if isinstance(argument, int) else argument.fileno()).st_mode)

    def of(*calls: str, directory: bool | None = None) -> Callable[[str, Any], bool]:
        return lambda call, first: call in calls and directory in (None, call[0] == "f" and is_directory(first))

    synchronise, rename = ("fsync", "fdatasync"), ("replace", "rename")
    return {
        "fsync of the file fails": (OSError(errno.EIO, "the disk failed"), of(*synchronise, directory=False)),
        "the rename fails": (PermissionError(errno.EACCES, "not permitted"), of(*rename)),
        "Ctrl-C comes before the rename": (KeyboardInterrupt(), of(*rename)),
        "fsync of the directory fails": (OSError(errno.EIO, "the disk failed"), of(*synchronise, directory=True)),
        "the disk is full": (OSError(errno.EFBIG, "no room"), lambda call, first: False),
    }


@contextmanager
def no_room(full: bool) -> Iterator[None]:
    """The system lets no file become longer than 1500 bytes."""
    import resource  # POSIX alone has it

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1500 if full else soft, hard))
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


class FailingCall:
    """A hook that raises an error before one of the calls that it applies to, and notes what must stand then."""

    disk: Disk

    def __init__(self, chosen: int, error: BaseException, applies: Callable[[str, Any], bool]) -> None:
        self.chosen, self.error, self.applies = chosen, error, applies
        self.calls, self.stands = 0, OLD

    def __call__(self, call: str, first: Any) -> None:
        """Raise the error if this is the chosen call."""
        if not self.applies(call, first):
            return
        self.calls += 1
        if self.calls == self.chosen + 1:
            # Before the rename that is the old content, also where the directory is synchronised then, too.
            self.stands = OLD if self.disk.standing() in (None, self.disk.old) else NEW
            raise self.error


def failing(solution: Any) -> Iterator[tuple[str, BaseException, bytes, BaseException | None, str]]:
    """Let the call fail at each place: the place, the error, what must stand, what was raised, and the directory."""
    for where, (error, applies) in errors().items():
        full = where == "the disk is full"
        for chosen in range(1 if full else MOST):
            fails = FailingCall(chosen, error, applies)
            with folder_with(OLD) as folder:
                disk = fails.disk = Disk(folder, fails)
                with disk.watched(), no_room(full):
                    came = raised(solution, disk.path, NEW)
                if not full and fails.calls <= chosen:  # there is no such call any more
                    break
                yield where, error, fails.stands, came, folder
