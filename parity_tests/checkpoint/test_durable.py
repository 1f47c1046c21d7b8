"""The write protocol, call by call: its order, what each failure leaves behind, and the file that results."""

import errno
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from numpy_ref.checkpoint import disk as system
from numpy_ref.checkpoint import durable
from numpy_ref.checkpoint.disk import DISK, Disk
from numpy_ref.checkpoint.durable import (
    TEMPORARY_SUFFIX,
    DurabilityUnknown,
    make_directory,
    remove_stale,
    rename_durably,
    replace_file,
    stale_temporaries,
)

CALLS = (
    "resolve",
    "mode",
    "open_new",
    "lock",
    "write",
    "seek",
    "flush",
    "fsync",
    "close",
    "replace",
    "fsync_directory",
)
PROTOCOL = ["open_new", "write", "flush", "fsync", "close", "replace", "fsync_directory"]
posix = pytest.mark.skipif(os.name == "nt", reason="POSIX permissions and links")


class RecordingDisk(Disk):
    """The real disk; every call is noted, and chosen ones fail: {method: error, or errors one after another}."""

    pauses = ()

    def __init__(self, failures=None):
        self.calls = []
        self.arguments = []
        self.failures = {name: list(e) if isinstance(e, list) else [e] for name, e in (failures or {}).items()}

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if not callable(method) or name.startswith("_"):
            return method

        def recorded(*arguments):
            self.calls.append(name)
            self.arguments.append(arguments)
            if self.failures.get(name):
                raise self.failures[name].pop(0)
            return method(*arguments)

        return recorded


def save(path, data=b"new", disk=DISK):
    with replace_file(path, disk=disk) as file:
        file.write(data)


def protocol_of(calls):
    """The calls whose order matters for durability."""
    return [call for call in calls if call in PROTOCOL]


def test_calls_come_in_the_order_that_makes_them_durable(tmp_path):
    disk = RecordingDisk()
    save(tmp_path / "a", disk=disk)
    assert disk.calls == [
        *("resolve", "mode", "open_new", "lock", "write", "flush", "fsync"),
        *("close", "replace", "unlock", "fsync_directory"),
    ]
    assert protocol_of(disk.calls) == PROTOCOL
    directory = os.path.realpath(tmp_path)
    assert disk.arguments[-1] == (directory,)
    source, target = disk.arguments[-3]
    assert (target, os.path.dirname(source)) == (os.path.join(directory, "a"), directory)


def test_the_kernel_begins_with_what_is_written_and_the_order_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(durable, "_WRITEBACK_BYTES", 1000)
    disk = RecordingDisk()
    with replace_file(tmp_path / "a", disk=disk) as file:
        for size in (600, 600, 999, 1, 5000, 999):
            file.write(bytes(size))
        file.seek(0)
        file.write(b"x" * 999)
        file.write(b"y")
    begun = [a[1:] for call, a in zip(disk.calls, disk.arguments, strict=True) if call == "begin_writeback"]
    assert begun == [(0, 1200), (1200, 1000), (2200, 5000), (0, 1000)]
    calls = [call for call in disk.calls if call not in ("write", "seek", "begin_writeback")]
    assert calls == [
        "resolve",
        "mode",
        "open_new",
        "lock",
        "flush",
        "fsync",
        "close",
        "replace",
        "unlock",
        "fsync_directory",
    ]
    assert disk.calls.index("flush") > max(i for i, call in enumerate(disk.calls) if call == "begin_writeback")
    assert (tmp_path / "a").read_bytes() == b"x" * 999 + b"y" + bytes(7199)


@pytest.mark.parametrize("kind", ["refused", "absent"])
def test_advice_that_the_system_does_not_take_changes_nothing(tmp_path, monkeypatch, kind):
    def refused(*arguments):
        raise OSError(errno.ENOSYS, "no such call")

    monkeypatch.setattr(durable, "_WRITEBACK_BYTES", 1)
    if kind == "refused":
        monkeypatch.setattr(os, "posix_fadvise", refused, raising=False)
    else:
        monkeypatch.delattr(os, "posix_fadvise", raising=False)
    save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"


@pytest.mark.parametrize(
    "mutant",
    [
        [step for step in PROTOCOL if step != missing]
        for missing in ("flush", "fsync", "close", "replace", "fsync_directory")
    ]
    + [
        ["open_new", "write", "flush", "close", "replace", "fsync", "fsync_directory"],
        ["open_new", "write", "fsync", "flush", "close", "replace", "fsync_directory"],
        ["open_new", "write", "flush", "fsync", "close", "fsync_directory", "replace"],
        ["open_new", "write", "flush", "fsync", "replace", "close", "fsync_directory"],
    ],
    ids=" ".join,
)
def test_a_writer_that_lacks_or_moves_a_step_is_caught_by_the_order(tmp_path, mutant):
    # The same protocol with one fault, run for real, judged as the test above judges ours.
    disk = RecordingDisk()
    temporary, target = os.fspath(tmp_path / "t"), os.fspath(tmp_path / "a")
    file = None
    for step in mutant:
        if step == "open_new":
            file = disk.open_new(temporary, None)
        elif step == "write":
            disk.write(file, b"new")
        elif step == "replace":
            disk.replace(temporary, target)
        elif step == "fsync_directory":
            disk.fsync_directory(os.fspath(tmp_path))
        elif step != "fsync" or not file.closed:
            getattr(disk, step)(file)
        else:
            disk.calls.append("fsync")  # of the file under its new name
    file.close()
    assert protocol_of(disk.calls) == mutant
    assert protocol_of(disk.calls) != PROTOCOL


def test_nothing_reaches_the_target_before_the_replace(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    with replace_file(path) as file:
        file.write(b"new")
        file.flush()
        assert path.read_bytes() == b"old"
        temporaries = [name for name in os.listdir(tmp_path) if name != "a"]
        assert len(temporaries) == 1
        assert temporaries[0].startswith(f".a.{os.getpid()}-")
        assert temporaries[0].endswith(TEMPORARY_SUFFIX)
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_the_body_may_seek_back_and_overwrite(tmp_path):
    with replace_file(tmp_path / "a") as file:
        assert file.write(b"....body") == 8
        assert file.seek(0) == 0
        file.write(b"head")
        assert (file.tell(), file.seek(0, os.SEEK_END)) == (4, 8)
        assert file.seekable()
        assert file.writable()
    assert (tmp_path / "a").read_bytes() == b"headbody"


@pytest.mark.parametrize("old", [b"old", None], ids=["replacing", "creating"])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
@pytest.mark.parametrize("call", CALLS[:-1])
def test_failure_of_any_call_before_the_replace_keeps_the_old_file_and_leaves_no_temporary(tmp_path, call, kind, old):
    path, error = tmp_path / "a", kind(errno.EIO, "input/output error")
    if old is not None:
        path.write_bytes(old)
    disk = RecordingDisk({call: error})

    def run():
        with replace_file(path, disk=disk) as file:
            file.write(b"new")
            file.seek(0)

    with pytest.raises(kind) as caught:
        run()
    assert os.listdir(tmp_path) == ([] if old is None else ["a"])
    assert old is None or path.read_bytes() == old
    assert disk.calls.count("fsync") <= 1
    assert "replace" not in disk.calls or call == "replace"
    if kind is OSError:
        assert os.path.realpath(caught.value.filename) == os.path.realpath(path)


@pytest.mark.parametrize("error", [ValueError("body"), KeyboardInterrupt(), SystemExit(3), GeneratorExit()], ids=repr)
def test_failure_of_the_body_keeps_the_old_file_and_leaves_no_temporary(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def run():
        with replace_file(path) as file:
            file.write(b"x" * 100_000)
            raise error

    with pytest.raises(type(error)) as caught:
        run()
    assert caught.value is error
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_error_without_a_path_gets_one_and_says_that_the_old_file_stands(tmp_path):
    disk = RecordingDisk({"write": OSError(errno.ENOSPC, "No space left on device")})
    with pytest.raises(OSError, match="No space left") as caught:
        save(tmp_path / "a", disk=disk)
    assert caught.value.errno == errno.ENOSPC
    assert str(tmp_path / "a") in str(caught.value)
    assert "was not replaced" in caught.value.__notes__[0]


def test_a_path_that_an_error_of_the_body_names_is_kept(tmp_path):
    with pytest.raises(FileNotFoundError, match="elsewhere"), replace_file(tmp_path / "a"):
        (tmp_path / "elsewhere").read_bytes()


def test_fsync_is_never_tried_again(tmp_path):
    disk = RecordingDisk({"fsync": OSError(errno.EIO, "input/output error")})
    with pytest.raises(OSError, match="input/output"):
        save(tmp_path / "a", disk=disk)
    assert disk.calls.count("fsync") == 1
    assert os.listdir(tmp_path) == []


def test_failure_of_the_directory_fsync_says_that_durability_is_unknown(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    disk = RecordingDisk({"fsync_directory": OSError(errno.EIO, "input/output error")})
    with pytest.raises(DurabilityUnknown, match=r"has been replaced .* durability is unknown") as caught:
        save(path, disk=disk)
    assert (caught.value.errno, caught.value.filename) == (errno.EIO, os.path.realpath(path))
    assert path.read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]
    assert disk.calls.count("fsync_directory") == 1


def test_a_temporary_that_cannot_be_removed_is_named_and_hides_no_error(tmp_path):
    disk = RecordingDisk({"fsync": OSError(errno.EIO, "first"), "unlink": OSError(errno.EACCES, "second")})
    with pytest.raises(OSError, match="first") as caught:
        save(tmp_path / "a", disk=disk)
    (left,) = os.listdir(tmp_path)
    assert any(left in note and "second" in note for note in caught.value.__notes__)


def test_a_temporary_of_another_process_is_never_touched(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "urandom", bytes)
    taken = tmp_path / f".a.{os.getpid()}-{'00' * 8}{TEMPORARY_SUFFIX}"
    taken.write_bytes(b"another's")
    with pytest.raises(FileExistsError):
        save(tmp_path / "a")
    assert taken.read_bytes() == b"another's"


def test_a_stale_temporary_is_neither_used_nor_moved(tmp_path):
    stale = tmp_path / f".a.1-0000000000000000{TEMPORARY_SUFFIX}"
    stale.write_bytes(b"stale")
    save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert stale.read_bytes() == b"stale"


@pytest.mark.parametrize("refusals", [0, 1, 2, 3])
def test_a_refused_replace_is_tried_again_as_often_as_the_disk_has_pauses(tmp_path, refusals):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    disk = RecordingDisk({"replace": [PermissionError(errno.EACCES, "held open")] * refusals})
    disk.pauses = (0.0, 0.0)
    if refusals < 3:
        save(path, disk=disk)
        assert path.read_bytes() == b"new"
    else:
        with pytest.raises(PermissionError, match="held open"):
            save(path, disk=disk)
        assert path.read_bytes() == b"old"
    assert disk.calls.count("replace") == min(refusals, 2) + 1
    assert disk.calls.count("sleep") == min(refusals, 2)
    assert os.listdir(tmp_path) == ["a"]


@posix
def test_a_refused_replace_is_final_where_refusals_do_not_pass():
    assert Disk.pauses == ()


@posix
@pytest.mark.parametrize(("umask", "expected"), [(0o022, 0o644), (0o027, 0o640)])
def test_a_new_file_has_the_mode_of_a_plain_open(tmp_path, umask, expected):
    before = os.umask(umask)
    try:
        save(tmp_path / "a")
    finally:
        os.umask(before)
    assert stat.S_IMODE(os.stat(tmp_path / "a").st_mode) == expected


@posix
@pytest.mark.parametrize("mode", [0o640, 0o666, 0o600, 0o444])
def test_a_replaced_file_keeps_its_mode(tmp_path, mode):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    path.chmod(mode)
    before = os.umask(0o027)
    try:
        save(path)
    finally:
        os.umask(before)
    assert path.read_bytes() == b"new"
    assert stat.S_IMODE(path.stat().st_mode) == mode


@posix
@pytest.mark.parametrize("dangling", [False, True])
def test_a_symbolic_link_stays_one_and_its_target_is_replaced(tmp_path, dangling):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(Path("real") / "a")
    if not dangling:
        (tmp_path / "real" / "a").write_bytes(b"old")
    disk = RecordingDisk()
    save(tmp_path / "link", disk=disk)
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real" / "a").read_bytes() == b"new"
    assert disk.arguments[-1] == (os.path.realpath(tmp_path / "real"),)


@posix
def test_what_a_link_points_to_keeps_its_mode(tmp_path):
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "real").chmod(0o640)
    (tmp_path / "link").symlink_to("real")
    save(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o640


@posix
def test_a_hard_link_is_parted_from_its_other_names(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    (tmp_path / "b").hardlink_to(tmp_path / "a")
    save(tmp_path / "a")
    assert ((tmp_path / "a").read_bytes(), (tmp_path / "b").read_bytes()) == (b"new", b"old")


@posix
def test_a_loop_of_links_is_refused_and_kept(tmp_path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError, match=r"\ba\b"):
        save(tmp_path / "a")
    assert sorted(os.listdir(tmp_path)) == ["a", "b"]


@pytest.mark.parametrize(
    "name", ["with space", "ümläut-☃", ".hidden", "a.tar", "-rf", "x" * 250, "☃" * 80, "a.partial"]
)
def test_any_legal_name_is_written(tmp_path, name):
    save(tmp_path / name)
    assert os.listdir(tmp_path) == [name]


def test_a_relative_path_means_the_directory_of_the_start(tmp_path, monkeypatch):
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path)
    with replace_file("a") as file:
        os.chdir("other")
        file.write(b"new")
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_missing_directory_is_named_with_what_to_do(tmp_path):
    with pytest.raises(FileNotFoundError, match="create it first") as caught:
        save(tmp_path / "missing" / "a")
    assert caught.value.filename == os.path.realpath(tmp_path / "missing" / "a")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_named_with_what_to_do(tmp_path, code):
    # Injected, for tests may run as root, whom no permission stops.
    disk = RecordingDisk({"open_new": OSError(code, os.strerror(code))})
    with pytest.raises(OSError, match="cannot be written") as caught:
        save(tmp_path / "a", disk=disk)
    assert caught.value.errno == code
    assert caught.value.filename == os.path.realpath(tmp_path / "a")


def test_a_directory_is_never_replaced(tmp_path):
    (tmp_path / "a").mkdir()
    with pytest.raises(IsADirectoryError, match="give a file's name"):
        save(tmp_path / "a")
    assert os.listdir(tmp_path) == ["a"]


@posix
def test_a_pipe_is_never_replaced(tmp_path):
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="plain file"):
        save(tmp_path / "a")
    assert stat.S_ISFIFO(os.stat(tmp_path / "a").st_mode)


@posix
@pytest.mark.parametrize(
    ("code", "falls_back"), [(None, False), (errno.ENOTSUP, True), (errno.EINVAL, True), (errno.EIO, False)]
)
def test_full_synchronisation_is_tried_first_and_replaced_only_where_it_is_not_offered(
    tmp_path, monkeypatch, code, falls_back
):
    calls = []

    def full_synchronisation(descriptor, command):
        calls.append(command)
        if code is not None:
            raise OSError(code, os.strerror(code))

    monkeypatch.setattr(system.fcntl, "F_FULLFSYNC", "full", raising=False)
    monkeypatch.setattr(system.fcntl, "fcntl", full_synchronisation)
    monkeypatch.setattr(os, "fsync", lambda descriptor: calls.append("fsync"))
    if code == errno.EIO:
        with pytest.raises(OSError, match=r"[Ii]nput/output"):
            save(tmp_path / "a")
        assert calls == ["full"]
        assert os.listdir(tmp_path) == []
    else:
        save(tmp_path / "a")  # once for the file, once for the directory
        assert calls == ["full", "fsync"] * 2 if falls_back else ["full"] * 2


WRITER = (
    "import sys, time; from numpy_ref.checkpoint.durable import replace_file\n"
    "with replace_file(sys.argv[1]) as file:\n"
    "    file.write(b'half')\n"
    "    print('writing', flush=True)\n"
    "    time.sleep(600)\n"
)


def start_writer(path):
    """A process that is in the midst of a save."""
    root = Path(durable.__file__).parents[2]
    writer = subprocess.Popen([sys.executable, "-c", WRITER, os.fspath(path)], cwd=root, stdout=subprocess.PIPE)
    assert writer.stdout.readline() == b"writing\n"
    return writer


def kill(writer):
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()


@posix
def test_a_temporary_is_stale_once_its_writer_is_dead_and_not_before(tmp_path):
    dead, alive = start_writer(tmp_path / "a"), start_writer(tmp_path / "b")
    try:
        assert stale_temporaries(tmp_path) == remove_stale(tmp_path) == []
        assert len(os.listdir(tmp_path)) == 2
        kill(dead)
        (stale,) = stale_temporaries(tmp_path)
        assert stale.startswith(f".a.{dead.pid}-")
        assert remove_stale(tmp_path) == [stale]
        (left,) = os.listdir(tmp_path)
        assert left.startswith(f".b.{alive.pid}-")
    finally:
        kill(alive)
    assert remove_stale(tmp_path) == [left]
    assert os.listdir(tmp_path) == []


def test_files_of_others_are_never_stale(tmp_path):
    token = "0123456789abcdef"
    names = ["a", "a.partial", ".a.partial", f".a.1-{token}", f"a.1-{token}.partial", f".a.x-{token}.partial"]
    names += [
        f".a.1-{token[1:]}.partial",
        f".a.1-{token.upper()}.partial",
        f".a.1-{token}.partial.bak",
        f".1-{token}.partial",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"another's")
    (tmp_path / f".d.1-{token}.partial").mkdir()
    (tmp_path / f".l.1-{token}.partial").symlink_to("a")
    before = sorted(os.listdir(tmp_path))
    assert stale_temporaries(tmp_path) == remove_stale(tmp_path) == []
    assert sorted(os.listdir(tmp_path)) == before


@posix
@pytest.mark.parametrize("name", ["a", "a b", "ümläut\n☃"])
@pytest.mark.parametrize("mode", [0o600, 0o444])
def test_stale_temporaries_of_any_name_and_mode_are_removed(tmp_path, name, mode):
    stale = tmp_path / f".{name}.1-0123456789abcdef.partial"
    stale.write_bytes(b"half")
    stale.chmod(mode)
    assert stale_temporaries(tmp_path) == remove_stale(tmp_path) == [stale.name]
    assert os.listdir(tmp_path) == []


class MeddlingDisk(Disk):
    """The real disk; a cleaner is at work just before the chosen call."""

    def __init__(self, call, meddle):
        self.call, self.meddle = call, meddle

    def __getattribute__(self, name):
        method = super().__getattribute__(name)
        if name != super().__getattribute__("call"):
            return method

        def meddled(*arguments):
            self.meddle()
            return method(*arguments)

        return meddled


@posix
@pytest.mark.parametrize("call", ["lock", "write", "flush", "fsync", "close", "replace", "unlock", "fsync_directory"])
def test_a_cleaner_at_any_moment_of_a_save_harms_nothing(tmp_path, call):
    (tmp_path / "a").write_bytes(b"old")
    removed = []

    def clean():
        if not removed:  # at the next attempt it comes too late
            removed.extend(remove_stale(tmp_path))

    save(tmp_path / "a", disk=MeddlingDisk(call, clean))
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]
    assert len(removed) == (call == "lock")  # between its creation and its lock a temporary looks like a dead writer's


@posix
def test_a_writer_whose_every_temporary_is_taken_gives_up_and_says_so(tmp_path):
    (tmp_path / "a").write_bytes(b"old")
    with pytest.raises(BlockingIOError, match="no file can be created") as caught:
        save(tmp_path / "a", disk=MeddlingDisk("lock", lambda: remove_stale(tmp_path)))
    assert caught.value.filename == os.path.realpath(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["a"]


@posix
def test_a_cleaner_that_comes_second_does_not_remove_the_name_again(tmp_path):
    """It has opened the file before the first removed it; meanwhile the name is another file's."""
    stale = tmp_path / ".a.1-0123456789abcdef.partial"
    stale.write_bytes(b"stale")

    def overtake():
        stale.unlink()
        stale.write_bytes(b"another's")

    assert remove_stale(tmp_path, disk=MeddlingDisk("lock", overtake)) == []
    assert stale.read_bytes() == b"another's"


@posix
def test_cleaners_beside_writers_harm_nothing(tmp_path):
    done, faults = threading.Event(), []

    def write(writer):
        try:
            for turn in range(60):
                save(tmp_path / str(writer), content(writer, turn))
        except OSError as error:
            faults.append(error)

    def clean():
        while not done.is_set():
            remove_stale(tmp_path)

    cleaner = threading.Thread(target=clean)
    writers = [threading.Thread(target=write, args=(writer,)) for writer in range(2)]
    for thread in (cleaner, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    cleaner.join()
    assert faults == []
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {str(w): content(w, 59) for w in range(2)}


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK])
def test_without_locks_a_save_succeeds_and_nothing_is_called_stale(tmp_path, code):
    disk = RecordingDisk()
    disk.lock = refusing(code)
    save(tmp_path / "a", disk=disk)
    assert (tmp_path / "a").read_bytes() == b"new"
    (tmp_path / ".a.1-0123456789abcdef.partial").write_bytes(b"half")
    assert stale_temporaries(tmp_path, disk=disk) == remove_stale(tmp_path, disk=disk) == []
    assert len(os.listdir(tmp_path)) == 2


def refusing(code):
    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    return refuse


def test_a_stale_temporary_that_cannot_be_removed_stays_and_is_not_reported(tmp_path):
    (tmp_path / ".a.1-0123456789abcdef.partial").write_bytes(b"half")
    disk = Disk()
    disk.unlink = refusing(errno.EACCES)
    assert remove_stale(tmp_path, disk=disk) == []
    assert len(os.listdir(tmp_path)) == 1


def test_no_descriptor_is_left_open(tmp_path):
    def opened():
        return sorted(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else []

    before = opened()
    save(tmp_path / "a")
    (tmp_path / ".a.1-0123456789abcdef.partial").write_bytes(b"half")
    stale_temporaries(tmp_path)
    remove_stale(tmp_path)
    for call in ("open_new", "lock", "write", "flush", "fsync", "close", "replace", "fsync_directory"):
        with pytest.raises(OSError, match="injected"):
            save(tmp_path / "a", disk=RecordingDisk({call: OSError(errno.EIO, "injected")}))
    assert opened() == before


@pytest.mark.parametrize("most", [1, 7, 64])
def test_a_short_write_is_continued(tmp_path, most):
    disk = Disk()
    disk.write = lambda file, data: file.write(data[:most])
    with replace_file(tmp_path / "a", disk=disk) as file:
        assert file.write(bytes(range(256))) == 256
        assert file.write(b"") == 0
    assert (tmp_path / "a").read_bytes() == bytes(range(256))


def test_a_write_that_takes_nothing_is_an_error(tmp_path):
    disk = Disk()
    disk.write = lambda file, data: 0
    with pytest.raises(OSError, match="took none of the bytes") as caught:
        save(tmp_path / "a", disk=disk)
    assert caught.value.filename == os.path.realpath(tmp_path / "a")
    assert os.listdir(tmp_path) == []


def test_a_replace_that_took_place_and_reported_a_failure_is_told_as_unknown(tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def replace(source, target):
        os.replace(source, target)
        raise OSError(errno.EIO, "the answer was lost")

    disk = Disk()
    disk.replace = replace
    with pytest.raises(DurabilityUnknown, match=r"the answer was lost, .* unknown") as caught:
        save(tmp_path / "a", disk=disk)
    assert caught.value.filename == os.path.realpath(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_temporary_that_vanished_before_the_replace_makes_nothing_unknown(tmp_path):
    (tmp_path / "a").write_bytes(b"old")

    def vanish():
        for path in tmp_path.glob(".a.*"):
            path.unlink()

    def close(file):
        file.close()
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    disk = MeddlingDisk("fsync", vanish)
    disk.close = close
    with pytest.raises(OSError, match="Input/output") as caught:
        save(tmp_path / "a", disk=disk)
    assert not isinstance(caught.value, DurabilityUnknown)
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_file_renamed_durably_has_one_name_and_no_other_is_lost(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    (tmp_path / "b").write_bytes(b"b")
    with pytest.raises(FileExistsError):
        rename_durably(tmp_path / "a", tmp_path / "b")
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(FileExistsError):
        rename_durably(tmp_path / "a", tmp_path / "dangling")
    disk = RecordingDisk()
    rename_durably(tmp_path / "a", tmp_path / "c", disk=disk)
    assert disk.calls == ["resolve", "resolve", "rename", "fsync_directory"]
    (tmp_path / "d").mkdir()
    disk = RecordingDisk()
    rename_durably(tmp_path / "c", tmp_path / "d" / "c", disk=disk)
    assert disk.arguments[-2:] == [(os.path.realpath(tmp_path / "d"),), (os.path.realpath(tmp_path),)]
    assert (tmp_path / "d" / "c").read_bytes() == b"a"
    assert sorted(os.listdir(tmp_path)) == ["b", "d", "dangling"]


@posix
def test_a_renamed_link_is_renamed_itself(tmp_path):
    (tmp_path / "real").write_bytes(b"real")
    (tmp_path / "link").symlink_to("real")
    rename_durably(tmp_path / "link", tmp_path / "other")
    assert (tmp_path / "other").is_symlink()
    assert sorted(os.listdir(tmp_path)) == ["other", "real"]


def test_a_rename_that_may_be_undone_says_so(tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    disk = RecordingDisk({"fsync_directory": OSError(errno.EIO, "input/output error")})
    with pytest.raises(DurabilityUnknown, match=r"new name, but its durability is unknown"):
        rename_durably(tmp_path / "a", tmp_path / "b", disk=disk)
    assert os.listdir(tmp_path) == ["b"]


def test_each_directory_that_is_made_is_made_durable_before_the_next(tmp_path):
    disk, root = RecordingDisk(), os.path.realpath(tmp_path)
    make_directory(tmp_path / "a b" / "ü" / "c", disk=disk)
    made = [(call, *a) for call, a in zip(disk.calls, disk.arguments, strict=True) if call not in ("resolve", "mode")]
    assert made == [
        *(("make_directory", f"{root}/a b"), ("fsync_directory", root)),
        *(("make_directory", f"{root}/a b/ü"), ("fsync_directory", f"{root}/a b")),
        *(("make_directory", f"{root}/a b/ü/c"), ("fsync_directory", f"{root}/a b/ü")),
    ]
    disk = RecordingDisk()
    make_directory(tmp_path / "a b" / "ü" / "c", disk=disk)
    assert "make_directory" not in disk.calls


def test_a_directory_that_another_process_makes_meanwhile_is_no_error(tmp_path):
    make_directory(tmp_path / "a", disk=MeddlingDisk("make_directory", lambda: (tmp_path / "a").mkdir()))
    assert os.listdir(tmp_path) == ["a"]


class Windows:
    """The module `os` as it is there, as far as this module asks; anything that is not there fails."""

    name = "nt"
    O_BINARY = 0  # not 0 there, where it matters

    def __getattr__(self, name: str) -> Any:
        if name in ("fchmod", "O_DIRECTORY", "O_NONBLOCK"):
            raise AttributeError(name)
        return getattr(os, name)


def test_on_windows_nothing_is_called_that_is_not_there(tmp_path, monkeypatch):
    """Through the seam alone; not run on that system."""
    for module in (system, durable):
        monkeypatch.setattr(module, "os", Windows())
    monkeypatch.setattr(system, "fcntl", None)
    (tmp_path / "a").write_bytes(b"old")
    save(tmp_path / "a")
    assert (tmp_path / "a").read_bytes() == b"new"
    (tmp_path / ".a.1-0123456789abcdef.partial").write_bytes(b"half")
    assert stale_temporaries(tmp_path) == remove_stale(tmp_path) == []
    rename_durably(tmp_path / "a", tmp_path / "b")
    make_directory(tmp_path / "c" / "d")
    assert sorted(os.listdir(tmp_path)) == [".a.1-0123456789abcdef.partial", "b", "c"]


def content(writer, turn):
    return f"{writer}:{turn}:".encode() * 1000


def assert_one_complete_file(path, writers, turns):
    found = path.read_bytes()
    assert found in {content(writer, turns - 1) for writer in writers}
    assert os.listdir(path.parent) == [path.name]


def test_threads_that_write_one_name_leave_one_complete_file(tmp_path):
    path, turns, seen = tmp_path / "a", 20, []
    save(path, content(0, 0))
    whole = {content(writer, turn) for writer in range(3) for turn in range(turns)}

    def write(writer):
        for turn in range(turns):
            save(path, content(writer, turn))
            seen.append(path.read_bytes() in whole)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 3 * turns
    assert all(seen)
    assert_one_complete_file(path, range(3), turns)


@pytest.mark.campaign
def test_processes_that_write_one_name_leave_one_complete_file(tmp_path):
    path, turns = tmp_path / "a", 50
    script = (
        "import sys; from numpy_ref.checkpoint.durable import replace_file\n"
        "for turn in range(int(sys.argv[3])):\n"
        "    with replace_file(sys.argv[1]) as file:\n"
        "        file.write(f'{sys.argv[2]}:{turn}:'.encode() * 1000)\n"
    )
    root = Path(durable.__file__).parents[2]
    writers = [
        subprocess.Popen([sys.executable, "-c", script, os.fspath(path), str(writer), str(turns)], cwd=root)
        for writer in range(2)
    ]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert_one_complete_file(path, range(2), turns)
