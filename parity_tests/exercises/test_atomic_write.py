"""The exercise `atomic_write`: right solutions pass; wrong ones are caught by the law meant for them, with a reason."""

from pathlib import Path

import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.grader import grade_against
from numpy_ref.exercises.runner import answer
from parity_tests.exercises.solutions import (
    FRAMEWORKS,
    Mutant,
    check_mutant,
    check_stub,
    graded,
    mutants_of,
    mutated,
    reference,
    told,
)
from parity_tests.implementations import NO_TORCH

HOLDS, CRASH = "the-file-holds-the-data", "a-crash-leaves-the-old-or-the-new"
RETURN = "after-the-return-the-new-file-is-on-disk"
BESIDE, WRITERS = "the-temporary-stands-beside-the-target", "two-writers-do-not-meet"
ERROR, LEFT = "an-error-comes-through-and-the-old-file-stays", "nothing-is-left-behind"
MODE = "the-mode-is-that-of-a-plain-open"

TARGET, NAME = "target = os.path.abspath(path)", 'os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")'
NEW, EXCLUSIVE, REMOVE = "os.O_EXCL, 0o666", "os.O_EXCL", "        os.unlink(temporary)\n        raise\n"
WRITE, FLUSH = "            file.write(data)\n", "            file.flush()  # Python's buffer to the kernel\n"
SYNC, REPLACE = (
    "            os.fsync(descriptor)  # the kernel's to the disk\n",
    "        os.replace(temporary, target)\n",
)
DIRECTORY = "        os.fsync(directory_descriptor)  # the new name to the disk\n"
CLOSE, KEEP = "        os.close(directory_descriptor)\n", "            if os.path.exists(target):\n"
CHMOD = "                os.fchmod(descriptor, stat.S_IMODE(os.stat(target).st_mode))\n"
IN_PLACE = ((NAME, "target"), (EXCLUSIVE, "os.O_TRUNC"))

MUTANTS = {
    "written straight to the final name": Mutant(CRASH, "written under its final name", IN_PLACE),
    "written into the old file": Mutant(BESIDE, "the old one was written into", IN_PLACE),
    "the old file is not cut": Mutant(
        HOLDS, "expected 0 bytes, found 2000 bytes", ((NAME, "target"), (" | os.O_EXCL", ""))
    ),
    "only a part is written": Mutant(
        HOLDS, "go on with the rest", ((WRITE, WRITE.replace("file.write(data)", "os.write(descriptor, data)")),)
    ),
    "only a part is written, and it looks complete": Mutant(
        CRASH,
        "the system's write took 1000 of 3000 bytes, as it may, and raised nothing: go on with the rest",
        ((WRITE, WRITE.replace("file.write(data)", "os.write(descriptor, data)")),),
    ),
    "only a part is written where the disk is full": Mutant(
        ERROR,
        "found 1500 of the 3000 bytes of the new content, and no more; the system's write took 1500 of 3000 bytes",
        (('os.fdopen(descriptor, "wb")', 'os.fdopen(descriptor, "wb", buffering=0)'),),
    ),
    "the new content in the old one's place": Mutant(
        ERROR,
        "when fsync of the file fails, the old content must stand, found the new content",
        (*IN_PLACE, (REMOVE, "        raise\n")),
    ),
    "the directory of a bare name": Mutant(
        HOLDS, "the directory of a bare name is the current one", ((TARGET, "target = os.fspath(path)"),)
    ),
    "no fsync": Mutant(CRASH, "it was not synchronised by then", ((SYNC, ""),)),
    "no flush": Mutant(CRASH, "the system had 0 bytes", ((FLUSH, ""),)),
    "fsync before the flush": Mutant(CRASH, "the system had 0 bytes", ((FLUSH + SYNC, SYNC + FLUSH),)),
    "fsync before the write": Mutant(CRASH, "the system had 0 bytes", ((WRITE + FLUSH + SYNC, SYNC + WRITE + FLUSH),)),
    "fsync of the directory for the file's": Mutant(
        CRASH,
        "fsync was called for the directory instead",
        ((SYNC, "            os.fsync(os.open(directory, os.O_RDONLY))\n"),),
    ),
    "fsync of the old file": Mutant(
        CRASH,
        "fsync was called for the old file instead",
        ((SYNC, KEEP + "                os.fsync(os.open(target, os.O_RDONLY))\n"),),
    ),
    "replaced before it is written out": Mutant(
        CRASH, "a crash after os.replace", ((FLUSH + SYNC, f"    {REPLACE}{FLUSH}{SYNC}"), (f"\n{REPLACE}", "\n"))
    ),
    "fsync after the replace": Mutant(
        CRASH, "it was not synchronised by then", ((SYNC, f"    {REPLACE}{SYNC}"), (f"disk\n{REPLACE}", "disk\n"))
    ),
    "the old file is removed first": Mutant(
        CRASH,
        "found no file; the old file was removed before",
        ((REPLACE, f"{KEEP[4:]}            os.unlink(target)\n{REPLACE}"),),
    ),
    "no fsync of the directory": Mutant(
        RETURN, "no fsync of the directory followed it", ((DIRECTORY, "        pass\n"),)
    ),
    "fsync of the directory before the replace": Mutant(
        RETURN,
        "a crash after the return may lose the file",
        ((DIRECTORY, "        pass\n"), (SYNC, SYNC + "            os.fsync(os.open(directory, os.O_RDONLY))\n")),
    ),
    "the temporary in the default directory": Mutant(
        BESIDE,
        "perhaps on another file system",
        (
            (NAME, NAME.replace("directory", "tempfile.gettempdir()")),
            ("import stat\n", "import stat\nimport tempfile\n"),
        ),
    ),
    "a fixed temporary name": Mutant(
        WRITERS,
        "both use the temporary .state.bin.tmp",
        ((NAME, NAME.replace(".{secrets.token_hex(8)}", "")), (EXCLUSIVE, "os.O_TRUNC")),
    ),
    "a fixed temporary name that must be free": Mutant(
        WRITERS, "raises FileExistsError", ((NAME, NAME.replace(".{secrets.token_hex(8)}", "")),)
    ),
    "a name for each process": Mutant(
        WRITERS, "both use the temporary", ((NAME, NAME.replace("secrets.token_hex(8)", "os.getpid()")),)
    ),
    "the error is swallowed": Mutant(ERROR, "the caller hears nothing", ((REMOVE, REMOVE.replace("raise", "return")),)),
    "another error in its place": Mutant(
        ERROR,
        "the temporary was no longer there",
        ((REPLACE, f"{REPLACE}        os.fsync(os.open(directory, os.O_RDONLY))\n"),),
    ),
    "a failed fsync is taken lightly": Mutant(
        ERROR,
        "when fsync of the directory fails",
        (("    finally:\n        os.close", "    except OSError:\n        pass\n    finally:\n        os.close"),),
    ),
    "the old file goes with the temporary": Mutant(
        ERROR, "the old content must stand, found no file", ((REMOVE, "        os.unlink(target)\n" + REMOVE),)
    ),
    "the temporary is left after an error": Mutant(
        LEFT, "when fsync of the file fails, a temporary is left", ((REMOVE, "        raise\n"),)
    ),
    "the temporary is left after Ctrl-C": Mutant(
        LEFT,
        "when Ctrl-C comes before the rename, a temporary is left",
        (("except BaseException", "except Exception"),),
    ),
    "the temporary is left when the rename fails": Mutant(
        LEFT,
        "when the rename fails, a temporary is left",
        ((f"disk\n{REPLACE}", "disk\n"), (REMOVE, f"{REMOVE}    os.replace(temporary, target)\n")),
    ),
    "a copy in place of a rename": Mutant(
        LEFT,
        "a call that worked left .state.bin",
        ((REPLACE, "        shutil.copyfile(temporary, target)\n"), ("import stat\n", "import shutil\nimport stat\n")),
    ),
    "the directory stays open when its fsync fails": Mutant(
        LEFT,
        "when fsync of the directory fails, a descriptor is left open; os.close is passed over",
        ((f"    try:\n{DIRECTORY}    finally:\n{CLOSE}", f"{DIRECTORY[4:]}{CLOSE[4:]}"),),
    ),
    "the directory stays open when its fsync fails before the replace": Mutant(
        LEFT,
        "when fsync of the directory fails, a descriptor is left open",
        (
            (
                REPLACE,
                "        folder = os.open(directory, os.O_RDONLY)\n        os.fsync(folder)\n        os.close(folder)\n"
                + REPLACE,
            ),
        ),
    ),
    "the file stays open when its fsync fails": Mutant(
        LEFT,
        "when fsync of the file fails, a descriptor is left open",
        (
            (
                '        with os.fdopen(descriptor, "wb") as file:\n',
                '        with os.fdopen(os.dup(descriptor), "wb") as file:\n',
            ),
            (SYNC, f"{SYNC}            os.close(descriptor)\n"),
        ),
    ),
    "the directory stays open": Mutant(LEFT, "os.open was called without os.close", ((CLOSE, "        pass\n"),)),
    "mode 0600": Mutant(MODE, "those of a private temporary", ((NEW, NEW.replace("0o666", "0o600")),)),
    "mode 0644": Mutant(
        MODE, "under umask 027 has other permissions", ((WRITE, "            os.fchmod(descriptor, 0o644)\n" + WRITE),)
    ),
    "the mode of the old file is lost": Mutant(
        MODE, "a replaced file of mode 640", ((CHMOD, "                pass\n"),)
    ),
    "the umask stays changed": Mutant(
        MODE, "the umask was 022 before the call and is 000 after", ((TARGET, TARGET + "\n    os.umask(0)"),)
    ),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)


def broken(tmp_path: Path, text: str, framework: str) -> list[object]:
    """What each law says that does not hold, asked in this process."""
    path = tmp_path / "atomic_write.py"
    path.write_text(text)
    laws = exercise_named("atomic_write").laws
    answers = [answer(str(path), "atomic_write", framework, law.name) for law in laws]
    return [value for value in answers if value != {"holds": True}]


def test_the_reference_keeps_every_law(tmp_path: Path) -> None:
    report = graded(tmp_path, "atomic_write", reference("atomic_write", "numpy"), in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("atomic_write").laws)


@NO_TORCH
def test_the_reference_in_torch_keeps_every_law(tmp_path: Path) -> None:
    assert broken(tmp_path, reference("atomic_write", "torch"), "torch") == []


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "atomic_write", mutant, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "atomic_write", framework)


def test_every_law_has_a_mutant_that_it_kills() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named("atomic_write").laws}


PATHS = """
import os, uuid
from pathlib import Path
def atomic_write(path, data):
    path = Path(path)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}")
    try:
        partial.touch(exist_ok=False)
        if path.exists():
            partial.chmod(path.stat().st_mode & 0o7777)
        partial.write_bytes(data)
        with partial.open("rb+") as file:
            os.fsync(file)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
"""
TEMPFILE = """
import tempfile
from contextlib import suppress
from os import close, fchmod, fdatasync, fsync, open as os_open, path as p, rename, stat, umask, unlink
def permissions(path):
    with suppress(FileNotFoundError):
        return stat(path).st_mode & 0o777
    mask = umask(0)
    umask(mask)
    return 0o666 & ~mask
def atomic_write(path, data):
    folder = p.dirname(path) or "."
    file = tempfile.NamedTemporaryFile(dir=folder, prefix="save-", delete=False)
    done = False
    try:
        with file:
            fchmod(file.fileno(), permissions(path))
            for start in range(0, len(data), 700):
                file.write(data[start : start + 700])
            file.flush()
            fdatasync(file.fileno())
        rename(file.name, path)
        done = True
    finally:
        if not done:
            unlink(file.name)
    handle = os_open(folder, 0)
    try:
        fsync(handle)
    finally:
        close(handle)
"""
DESCRIPTORS = """
import os, threading, time
LOCK = threading.Lock()
def write_all(descriptor, data):
    while data:
        data = data[os.write(descriptor, data):]
def atomic_write(path, data):
    path = os.path.realpath(path)
    new = f"{path}.{os.getpid()}-{threading.get_ident()}-{time.monotonic_ns()}"
    mode = os.stat(path).st_mode & 0o777 if os.path.lexists(path) else None
    directory = os.open(os.path.dirname(path), os.O_RDONLY)
    try:
        descriptor = os.open(new, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        try:
            try:
                write_all(descriptor, data)
                os.fsync(descriptor)
                if mode is not None:
                    os.fchmod(descriptor, mode)
            finally:
                os.close(descriptor)
            os.rename(new, path)
        except BaseException as error:
            os.remove(new)
            raise error
        os.fsync(directory)
    finally:
        os.close(directory)
"""
SYNCHRONISED_TWICE = """
import os, secrets, stat
def synchronise(place):
    handle = os.open(place, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
def atomic_write(path, data):
    place = os.path.dirname(os.path.abspath(path))
    new = os.path.join(place, secrets.token_hex())
    with open(new, "xb", buffering=0) as file:
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[file.write(rest):]
            try:
                os.chmod(file.fileno(), stat.S_IMODE(os.stat(path).st_mode))
            except FileNotFoundError:
                pass
            os.fsync(file)
            synchronise(place)
            os.replace(new, path)
        except BaseException:
            os.remove(new)
            raise
    synchronise(new and place)
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    "text",
    [PATHS, TEMPFILE, DESCRIPTORS, SYNCHRONISED_TWICE],
    ids=["pathlib", "tempfile", "descriptors", "the directory synchronised before the rename, too"],
)
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str, framework: str) -> None:
    assert broken(tmp_path, text, framework) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_atomic_write.py"
        paths[framework].write_text(reference("atomic_write", framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated("atomic_write", "numpy", MUTANTS["mode 0600"].changes))
    ours, theirs, exercise = (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named("atomic_write")
    assert grade_against(ours, theirs, exercise).holds
    verdict = grade_against(ours, (wrong, "numpy"), exercise)
    assert (verdict.holds, verdict.leaf) == (False, "first/mode")
