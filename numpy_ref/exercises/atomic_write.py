"""The exercise `atomic_write`: replacing a file, and what a crash or an error at any moment may leave.

The laws run a solution on real files, in a directory that is watched meanwhile.
"""

import os
import stat
import threading
from collections.abc import Callable
from contextlib import chdir
from pathlib import Path
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, expect, law
from numpy_ref.exercises.watched_disk import NAME, NEW, OLD, OTHER, Disk, failing, folder_with, raised


@law(
    "Does it hold for a bare name, for a Path, and for data of any length? Does os.write take all that it is given?",
    "os.write returns how many bytes it took, which may be fewer; the directory of a bare name is \"\", not \".\".",
    "Use os.path.abspath(path) before os.path.split, and a file object's write or a loop around os.write.",
)  # fmt: skip
def the_file_holds_the_data(solution: Any, arrays: Arrays) -> None:
    """The file holds the data, byte for byte, whatever stood there, however the path is given."""
    kinds: dict[str, Callable[[str], Any]] = {"text": str, "a Path": Path, "a bare name": os.path.basename}
    for kind, path_as in kinds.items():
        for old, data in ((None, NEW), (OLD, b""), (OLD, b"a\r\nb\n\x00\xff"), (b"", NEW * 40)):
            with folder_with(old) as folder, chdir(folder):
                disk = Disk(folder)
                with disk.watched():
                    error = raised(solution, path_as(disk.path), data)
                said = f"atomic_write raised {type(error).__name__}: {error}"
                expect(error is None, f"the path is {kind}: {said}")
                found = Path(NAME).read_bytes() if os.path.exists(NAME) else None
                if found != data:
                    there = "no file" if found is None else f"{len(found)} bytes"
                    other = ", and others" if found is not None and len(found) == len(data) else ""
                    raise Loss("the file does not hold the data", NAME, None, f"{len(data)} bytes", there + other)


@law(
    "Imagine that the power fails after each of your lines. What stands under the name, and is all of it on disk?",
    "Only a rename replaces a file in one step, and only what fsync has put on disk is sure to be in the renamed file.",
    "Write a temporary, flush it, fsync its descriptor, and only then os.replace(temporary, path).",
)
def a_crash_leaves_the_old_or_the_new(solution: Any, arrays: Arrays) -> None:
    """Whenever the power fails, the file holds the old content or the new, whole; or is not there, if it was not."""
    for old in (OLD, None):
        with folder_with(old) as folder:
            disk = Disk(folder)
            with disk.watched():
                solution.atomic_write(disk.path, NEW)
            if disk.fault:
                raise disk.fault


@law(
    "A rename is a write, too. Into what?",
    "The name is in the directory: until that is synchronised, a crash may bring the old file back.",
    "os.open opens a directory, too, for reading only. After the rename, synchronise it by its descriptor, and close "
    "that, also when the fsync fails.",
)
def after_the_return_the_new_file_is_on_disk(solution: Any, arrays: Arrays) -> None:
    """Once the function has returned, no crash brings the old file back."""
    with folder_with(OLD) as folder:
        disk = Disk(folder)
        with disk.watched():
            solution.atomic_write(disk.path, NEW)
            disk.look()
            disk.allowed, disk.fault, disk.last = [NEW], None, "the return"
        if disk.fault:
            raise disk.fault


@law(
    "In which directory does your temporary stand? Where is it by default?",
    "A rename works within one file system; from another it fails, or becomes a copy, which a crash cuts short.",
    "Make the temporary's path by os.path.join(directory, ...), or give tempfile dir=directory.",
)
def the_temporary_stands_beside_the_target(solution: Any, arrays: Arrays) -> None:
    """The file that takes the name was written in the same directory, under another name."""
    with folder_with(OLD) as folder:
        disk = Disk(folder)
        with disk.watched():
            solution.atomic_write(disk.path, NEW)
        expect(disk.standing() != disk.old, "no new file took the name: the old one was written into")
        expect(not disk.stranger, "the file that took the name was not in its directory before",
               cause="the temporary is in another directory, perhaps on another file system")  # fmt: skip


@law(
    "What if two savers write the same file at once, in two threads or two processes?",
    "A temporary of a fixed name is shared: one truncates what the other writes, and renames it away.",
    "Put something into the name that no other call has, such as secrets.token_hex(8), or use tempfile.mkstemp.",
)
def two_writers_do_not_meet(solution: Any, arrays: Arrays) -> None:
    """While one call is at work, another may write the same file: each has a temporary of its own."""
    with folder_with(OLD) as folder:
        path, outcome, writers = os.path.join(folder, NAME), list[Any](), list[threading.Thread]()

        def write() -> None:
            try:
                outcome.append(raised(solution, path, OTHER))
            except Loss as loss:
                outcome.append(loss)

        def hook(call: str, first: Any) -> None:
            if not writers and call in ("fsync", "fdatasync", "replace", "rename"):
                writers.append(threading.Thread(target=write, daemon=True))
                writers[0].start()
                writers[0].join(1.0)  # a solution may let one wait for the other

        disk = Disk(folder, hook)
        with disk.watched():
            outcome.append(raised(solution, path, NEW))
            for writer in writers:
                writer.join(1.0)
        for trouble in filter(None, outcome):
            said = getattr(trouble, "strerror", trouble)  # without the path, which is another each time
            raise Loss(f"while two calls write the same file, one raises {type(trouble).__name__}: {said}")
        found = Path(path).read_bytes()
        if found not in (NEW, OTHER):
            raise Loss("two calls left what is the data of neither", NAME, None, "those of one", f"{len(found)} bytes")


@law(
    "Let each call in your function fail, one after the other. Who hears of it?",
    "Whoever calls must know that nothing was saved, and the old file must stand, for it is all there is.",
    "Clean up in `except BaseException:` around what comes before the replace, and end that with a bare `raise`.",
)
def an_error_comes_through_and_the_old_file_stays(solution: Any, arrays: Arrays) -> None:
    """When a call fails before the name is taken, the old file stands, and the error itself comes through."""
    for where, error, stands, came, folder in failing(solution):
        found = Path(folder, NAME).read_bytes() if NAME in os.listdir(folder) else None
        kept = {OLD: "the old content", NEW: "the new content", None: "no file"}
        cut = found if found and found not in kept and NEW.startswith(found) else b""
        kept[cut] = f"{len(cut)} of the {len(NEW)} bytes of the new content, and no more"
        expect(found == stands, f"when {where}, {kept[stands]} must stand, found {kept.get(found, 'a mixture')}")
        same = type(came) is type(error) and getattr(came, "errno", 0) == getattr(error, "errno", 0)
        what = "the caller hears nothing: the error was swallowed" if came is None else f"the caller hears {came!r}"
        again = "the temporary was no longer there to be removed" if isinstance(came, FileNotFoundError) else ""
        expect(same, f"when {where}, {error!r} must come through; {what}", cause=again)


@law(
    "What stands in the directory after a call that failed, and after many of them?",
    "Every failed save leaves a file as large as a checkpoint, unless it is removed; Ctrl-C is no Exception.",
    "In `except BaseException:` os.unlink(temporary) and raise; it must not matter at which line the error came.",
)
def nothing_is_left_behind(solution: Any, arrays: Arrays) -> None:
    """After a call, whether it worked or failed, there is no temporary, and no descriptor is left open."""
    before = descriptors()
    with folder_with(OLD) as folder:
        solution.atomic_write(os.path.join(folder, NAME), NEW)
        left = sorted(set(os.listdir(folder)) - {NAME})
        expect(not left, f"a call that worked left {', '.join(left)} in the directory")
    expect(descriptors() <= before, "a call left a descriptor open", cause="os.open was called without os.close")
    for where, *_, folder in failing(solution):
        left = sorted(set(os.listdir(folder)) - {NAME})
        expect(not left, f"when {where}, a temporary is left: {', '.join(left)}")
        expect(descriptors() <= before, f"when {where}, a descriptor is left open",
               cause="os.close is passed over when the call before it raises: it belongs into finally")  # fmt: skip


def descriptors() -> set[int]:
    """The open descriptors."""

    def is_open(descriptor: int) -> bool:
        try:
            os.fstat(descriptor)
        except OSError:
            return False
        return True

    return set(filter(is_open, range(256)))


@law(
    "Who may read your file? Compare with one that open(path, 'wb') makes.",
    "tempfile makes files that only their owner may read, and the rename keeps that.",
    "Create with mode 0o666, of which the umask takes its part; where a file was, give the temporary its permissions.",
)
def the_mode_is_that_of_a_plain_open(solution: Any, arrays: Arrays) -> None:
    """A new file has the permissions that open would give it, a replaced one keeps its own, and the umask stays."""
    for umask, old in ((0o022, None), (0o027, None), (0o022, 0o640), (0o077, 0o644)):
        with folder_with(None if old is None else OLD) as folder:
            path = Path(folder, NAME)
            if old is not None:
                path.chmod(old)
            saved = os.umask(umask)
            try:
                solution.atomic_write(str(path), NEW)
            finally:
                after = os.umask(saved)
            expect(after == umask, f"the umask was {umask:03o} before the call and is {after:03o} after it")
            wanted, found = 0o666 & ~umask if old is None else old, stat.S_IMODE(path.stat().st_mode)
            what = f"a new file under umask {umask:03o}" if old is None else f"a replaced file of mode {old:03o}"
            if found != wanted:
                raise Loss(f"{what} has other permissions", NAME, None, f"{wanted:03o}", f"{found:03o}")


def trace(solution: Any, arrays: Arrays) -> Any:
    """Content and permissions after a first call and after a second."""
    found = {}
    with folder_with(None) as folder:
        for name, data in (("first", NEW), ("second", OTHER)):
            path = os.path.join(folder, NAME)
            solution.atomic_write(path, data)
            mode = stat.S_IMODE(os.stat(path).st_mode)
            found[name] = {"content": np.fromfile(path, np.uint8), "mode": np.array(mode)}
    return found


STATEMENT = """
Write atomic_write(path, data): it makes the file at `path` hold the bytes `data`, all of them, and returns None. `path`
is a str or a Path, absolute or relative, and no symbolic link; its directory exists; a file may stand there or not. The
temporary stands in the same directory, under a name that no other call has: two calls may write the same file at once.
When the function returns, the new file and its name are on disk, no temporary is there, and no descriptor is open. When
a call of the system fails, its error comes through; unless the name was taken already, the old file stands as it was.
No temporary is left then, and no descriptor open, whatever was raised. A file that was there keeps its permissions; a
new one gets those that open(path, "wb") gives. Synchronise by os.fsync. Files may be opened, written and renamed by os,
open, pathlib or tempfile.
"""

IDEA = """
Open the final name for writing, and the old checkpoint is gone before the first byte of the new one is there. If the
process is killed then, or the power fails, or the disk is full, there is none. So the new content goes into another
file, and when that is complete it takes the name. A rename replaces in one step: whoever looks sees the old or the new.

That holds while the machine runs. A crash of the machine is harder, because written does not mean on disk. A file
object's write may end in Python's buffer. flush, or close, hands the buffer to the system, which keeps it in memory and
writes it when it sees fit, often seconds later. os.fsync waits until the disk has it. And the system may put the rename
on disk before the content: after the crash, a file of the right name is empty. Hence the order: write, flush, fsync,
and only then the rename. An fsync before the flush synchronises what is not there yet.

The rename changes the directory, which is written later, too. Until the directory is synchronised, a crash can bring
the old file back. That is no damage, but a save that was reported is lost. So the directory is opened, synchronised and
closed last.

The temporary has to be in the same directory, since a rename does not cross file systems: it fails there, and what
looks like a move is a copy, which can be cut short. Its name has to be its own, or two savers write into one file.
Private temporaries are readable by their owner alone, and the rename keeps that, so the permissions have to be set. And
when anything fails, an error or Ctrl-C, the temporary goes and the error stays: a save that failed in silence is found
out when the checkpoint is needed.
"""

EXERCISE = Exercise(
    name="atomic_write",
    title="Replace a file whole",
    teaches="in which order a file is written, synchronised and renamed, so that a crash leaves one that is whole",
    statement=STATEMENT,
    idea=IDEA,
    functions=("atomic_write",),
    laws=(
        the_file_holds_the_data,
        a_crash_leaves_the_old_or_the_new,
        after_the_return_the_new_file_is_on_disk,
        the_temporary_stands_beside_the_target,
        two_writers_do_not_meet,
        an_error_comes_through_and_the_old_file_stays,
        nothing_is_left_behind,
        the_mode_is_that_of_a_plain_open,
    ),
    trace=trace,
    needs_files=True,
)
