"""Each call of a save fails in turn: what is left, what the error says, and what opens then."""

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from unittest.mock import patch

import numpy_ref
from numpy_ref.checkpoint import store
from numpy_ref.checkpoint.disk import DISK, Disk
from numpy_ref.proof.equivalence import digest
from parity_tests.checkpoint.crash import ONE, RUN, opened, runs
from parity_tests.commands import SOURCES

CODES = (errno.ENOSPC, errno.EIO, errno.EACCES, errno.EDQUOT, errno.EINTR)


class Fault(NamedTuple):
    """Which call of a save fails, and how."""

    place: int
    code: int = 0
    late: bool = False  # after it has done its work: only the answer is lost
    taken: int | None = None  # no failure, but a write that takes so few bytes

    def __str__(self) -> str:
        return "a short write" if self.taken is not None else errno.errorcode[self.code]


class FaultyDisk(Disk):
    """The real disk, on which one call fails; every call is noted. Nothing is synchronised, for speed."""

    pauses = ()

    def __init__(self, fault: Fault | None = None) -> None:
        self.fault = fault
        self.calls: list[str] = []

    def fsync(self, file: BinaryIO) -> None:
        pass

    def fsync_directory(self, directory: str) -> None:
        pass

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """Everything that is saved meanwhile goes through this disk."""
        with ExitStack() as stack:
            for name in vars(Disk):
                if not name.startswith("_") and name != "pauses":
                    stack.enter_context(patch.object(DISK, name, self._noted(name, getattr(self, name))))
            yield

    def _noted(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            fault = self.fault if self.fault is not None and self.fault.place == len(self.calls) else None
            self.calls.append(name)
            if fault is None:
                return method(*arguments)
            if fault.taken is not None:
                file, data = arguments
                return method(file, data[: fault.taken]) if fault.taken else 0
            if fault.late:
                result = method(*arguments)
                if name == "open_new":  # the caller never sees it
                    result.close()
                if name == "lock":
                    os.close(result)
            paths = [argument for argument in arguments if isinstance(argument, str)]
            raise OSError(fault.code, os.strerror(fault.code), *paths[:1])  # as the system's calls name theirs

        return call


class Kind(NamedTuple):
    """A way to save the state `new` where `old` is."""

    old: Any
    new: Any
    prepare: Callable[[Path], object]
    save: Callable[[Path], object]
    path: str  # of the new checkpoint, from the root


def kinds(impl: Any = numpy_ref) -> dict[str, Kind]:
    """The ways to save that faults are tried on: over the only checkpoint, and beside it, which is then removed."""
    old, new = runs(impl, 1)
    path = f"{RUN}/checkpoint.safetensors"

    def prepare(root: Path) -> None:
        (root / RUN).mkdir()
        impl.save_checkpoint(root / path, old)

    return {
        "save_checkpoint": Kind(old, new, prepare, lambda root: impl.save_checkpoint(root / path, new), path),
        "save_newest": Kind(
            old,
            new,
            lambda root: store.save_newest(impl, root / RUN, old, retention=ONE),
            lambda root: store.save_newest(impl, root / RUN, new, retention=ONE),
            os.fspath(store.checkpoint_path(RUN, new.step)),
        ),
    }


class Outcome(NamedTuple):
    """What a save with a fault left."""

    error: OSError | None
    opened: str  # "old", "new", or what the store says
    left: list[str]  # temporaries
    calls: list[str]


def outcome(kind: Kind, root: Path, disk: FaultyDisk | None = None, *, impl: Any = numpy_ref) -> Outcome:
    """Save below a prepared directory, where it may fail, and then open what is there."""
    error: OSError | None = None
    with nullcontext() if disk is None else disk.in_place():
        try:
            kind.save(root)
        except OSError as raised:
            error = raised
    names = {digest(impl.snapshot(kind.old)): "old", digest(impl.snapshot(kind.new)): "new"}
    answer = opened(impl, root / RUN)
    left = [name for name in os.listdir(root / RUN) if name.startswith(".")]
    return Outcome(error, names.get(str(answer), f"lost: {answer}"), left, [] if disk is None else disk.calls)


def with_fault(kind: Kind, fault: Fault | None, root: Path, *, impl: Any = numpy_ref) -> Outcome:
    """Prepare a directory of its own, and save on a disk with a fault, or with none."""
    with FaultyDisk().in_place():
        kind.prepare(root)
    return outcome(kind, root, FaultyDisk(fault), impl=impl)


def faults(calls: list[str]) -> Iterator[Fault]:
    """Every call with every code, before it has done its work and after; every write with too few bytes taken."""
    for index, call in enumerate(calls):
        for code in CODES:
            yield from (Fault(index, code, late) for late in (False, True))
        if call == "write":
            yield from (Fault(index, taken=taken) for taken in (0, 1))


def each(kind: Kind, impl: Any = numpy_ref) -> Iterator[tuple[Fault, Path, Outcome]]:
    """Every fault of a save, and what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "none").mkdir()
        calls = with_fault(kind, None, Path(folder, "none"), impl=impl).calls
        for number, fault in enumerate(faults(calls)):
            root = Path(folder, str(number))
            root.mkdir()
            yield fault, root, with_fault(kind, fault, root, impl=impl)


REAL = ("a limit on the size of files", "a file system that is full", "a directory that is read-only")


def really(limit: str, name: str, root: str) -> None:
    """Save under a real limit, in a process that has its own mounts, and print what came of it."""
    kind = kinds()[name]
    if limit == REAL[1]:  # room for one checkpoint and no second one
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20k", "none", root], check=True)
    kind.prepare(Path(root))
    if limit == REAL[0]:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))  # Python ignores the signal of it
    if limit == REAL[2]:
        directory = os.path.join(root, RUN)
        subprocess.run(["mount", "--bind", directory, directory], check=True)
        subprocess.run(["mount", "-o", "remount,bind,ro", directory], check=True)
    found = outcome(kind, Path(root))
    error = found.error
    told = None if error is None else f"{error} {' '.join(getattr(error, '__notes__', []))}"
    code = None if error is None or error.errno is None else errno.errorcode[error.errno]
    sys.stdout.write(json.dumps({"code": code, "error": told, "opened": found.opened, "left": found.left}))


def in_a_process(limit: str, name: str, root: Path) -> dict[str, Any] | None:
    """What `really` prints; None where such a limit cannot be set."""
    script = "import sys; from parity_tests.checkpoint.errors import really; really(*sys.argv[1:])"
    command = [sys.executable, "-c", script, limit, name, os.fspath(root)]
    if limit != REAL[0]:
        if shutil.which("unshare") is None:
            return None
        command = ["unshare", "--user", "--map-root-user", "--mount", *command]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, timeout=120)
    if done.returncode != 0 and ("unshare" in done.stderr or "'mount'" in done.stderr):
        return None
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def campaign() -> dict[str, tuple[int, int]]:
    """Faults injected, and how many of them lost a checkpoint, by kind."""
    results = [(f"a call fails: {fault}", found.opened) for kind in kinds().values() for fault, _, found in each(kind)]
    for limit in REAL:
        for name in kinds():
            with tempfile.TemporaryDirectory() as folder:
                answer = in_a_process(limit, name, Path(folder))
            results += [] if answer is None else [(limit, answer["opened"])]
    names = dict.fromkeys(name for name, _ in results)
    return {
        name: (
            sum(other == name for other, _ in results),
            sum(other == name and found not in ("old", "new") for other, found in results),
        )
        for name in names
    }
