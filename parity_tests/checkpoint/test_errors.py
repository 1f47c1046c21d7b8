"""Each call of a save fails in turn: the old checkpoint or the new one opens, and the error says which and why."""

import errno
import os

import pytest

from numpy_ref.checkpoint import disk, durable, store
from numpy_ref.checkpoint.disk import Disk
from numpy_ref.checkpoint.durable import DurabilityUnknown
from parity_tests.checkpoint import errors
from parity_tests.checkpoint.errors import CODES, REAL, Fault, FaultyDisk, each, in_a_process, kinds, with_fault
from parity_tests.implementations import EACH

KINDS = ("save_checkpoint", "save_newest")


def text(error):
    """All that an error says."""
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


def saved(fault, found):
    """Whether the new checkpoint had its name when the fault came."""
    call = found.calls[fault.place]
    renamed = found.calls.index("replace") if "replace" in found.calls else len(found.calls)
    return fault.place > renamed or (call == "replace" and fault.late)


def check(kind, fault, root, found):
    """The law for one fault."""
    error, call = found.error, found.calls[fault.place]
    assert found.left == []
    assert found.calls.count("fsync") <= 1
    if fault.taken == 1 or call == "unlock":  # a write is continued; a lock given up late is nobody's loss
        assert error is None
        assert found.opened == "new"
        return
    assert error is not None
    code = fault.code or errno.EIO
    assert error.errno == code
    if fault.taken is None:
        assert os.strerror(code) in text(error)
    assert os.path.join(os.path.realpath(root), kind.path) in text(error) or call in ("resolve", "mode")
    assert os.path.join(os.path.realpath(root), errors.RUN) in text(error)
    if not saved(fault, found):
        assert found.opened == "old"
        assert not isinstance(error, DurabilityUnknown)
        assert call in ("resolve", "mode") or "what stood there before still does" in text(error)
        assert "replace" not in found.calls[fault.place + 1 :]
    else:
        assert found.opened == "new"
        assert isinstance(error, DurabilityUnknown) == (call != "unlink")
        assert "unknown" in text(error) or "has been saved; an older checkpoint could not be removed" in text(error)


@pytest.mark.parametrize("impl", EACH)
@pytest.mark.parametrize("name", KINDS)
def test_whichever_call_of_a_save_fails_the_old_checkpoint_opens_or_the_new_and_the_error_says_so(impl, name):
    kind, tried = kinds(impl)[name], 0
    for fault, root, found in each(kind, impl):
        check(kind, fault, root, found)
        tried += 1
    assert tried > 100


@pytest.mark.parametrize("name", KINDS)
def test_before_the_replace_the_old_file_is_unchanged_to_the_byte(tmp_path, name):
    kind = kinds()[name]
    (tmp_path / "whole").mkdir()
    calls = with_fault(kind, None, tmp_path / "whole").calls
    begun, done = calls.index("write"), calls.index("replace")
    assert done - begun > 5
    with FaultyDisk().in_place():
        kind.prepare(tmp_path)
    (before,) = [path.read_bytes() for path in (tmp_path / errors.RUN).iterdir()]
    for index in range(begun, done):
        found = errors.outcome(kind, tmp_path, FaultyDisk(Fault(index, errno.ENOSPC)))
        assert found.error is not None
        assert [path.read_bytes() for path in (tmp_path / errors.RUN).iterdir()] == [before]


@pytest.mark.parametrize("call", ["flush", "fsync", "replace", "fsync_directory", "unlink"])
@pytest.mark.parametrize("code", CODES)
def test_after_a_failure_the_same_save_succeeds(tmp_path, call, code):
    kind = kinds()["save_newest"]
    (tmp_path / "none").mkdir()
    index = with_fault(kind, None, tmp_path / "none").calls.index(call)
    (tmp_path / "a").mkdir()
    assert with_fault(kind, Fault(index, code), tmp_path / "a").error is not None
    again = errors.outcome(kind, tmp_path / "a", FaultyDisk())
    assert (again.error, again.opened, again.left) == (None, "new", [])


# Writers with one fault


def lost(name):
    return [found.opened for fault, _, found in each(kinds()[name]) if found.opened not in ("old", "new")]


def test_a_writer_that_replaces_whatever_happened_before_is_caught(monkeypatch):
    """As if errors of the write were ignored."""
    write = durable.ReplacementFile.write

    def careless(self, data):
        try:
            return write(self, data)
        except OSError:
            return len(data)

    monkeypatch.setattr(durable.ReplacementFile, "write", careless)
    assert lost("save_checkpoint") != []


def test_a_writer_that_trusts_a_short_write_is_caught(monkeypatch):
    monkeypatch.setattr(durable.ReplacementFile, "write", lambda self, data: self._disk.write(self._file, data))
    assert lost("save_checkpoint") != []


def test_a_writer_that_leaves_its_temporary_is_caught(monkeypatch):
    monkeypatch.setattr(durable, "_discard", lambda *arguments: True)
    kind = kinds()["save_checkpoint"]
    assert any(found.left for _, _, found in each(kind))


def test_a_writer_that_tries_fsync_again_is_caught(monkeypatch):
    class Again(FaultyDisk):
        def _noted(self, name, method):
            noted = super()._noted(name, method)

            def call(*arguments):
                try:
                    return noted(*arguments)
                except OSError:
                    if name != "fsync":
                        raise
                    return noted(*arguments)

            return call

    monkeypatch.setattr(errors, "FaultyDisk", Again)
    assert any(found.calls.count("fsync") > 1 for _, _, found in each(kinds()["save_checkpoint"]))


def test_deleting_before_a_save_that_fails_is_caught():
    kind = kinds()["save_newest"]

    def delete_first(root):
        for entry in store.list_checkpoints(root / errors.RUN).entries:
            entry.path.unlink()
        return kind.save(root)

    assert any(found.opened.startswith("lost") for _, _, found in each(kind._replace(save=delete_first)))


# Real limits


@pytest.mark.skipif(os.name == "nt", reason="limits of POSIX systems")
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(("limit", "code"), list(zip(REAL, ("EFBIG", "ENOSPC", "EROFS"), strict=True)), ids=REAL)
def test_a_save_that_a_real_limit_stops_leaves_the_old_checkpoint_and_says_why(tmp_path, limit, code, name):
    answer = in_a_process(limit, name, tmp_path)
    if answer is None:
        pytest.skip("this system lets nobody mount a file system of his own")
    assert answer["code"] == code
    assert (answer["opened"], answer["left"]) == ("old", [])
    assert os.strerror(getattr(errno, code)) in answer["error"]
    assert os.path.join(os.path.realpath(tmp_path), kinds()[name].path) in answer["error"]


# The seam itself


def test_a_call_that_fails_late_has_done_its_work(tmp_path):
    for late, there in ((False, False), (True, True)):
        with FaultyDisk(Fault(0, errno.EIO, late)).in_place(), pytest.raises(OSError, match="Input/output"):
            disk.DISK.make_directory(os.fspath(tmp_path / f"late {late}"))
        assert (tmp_path / f"late {late}").is_dir() == there


def test_after_the_faults_the_disk_is_as_before():
    with FaultyDisk().in_place():
        assert "write" in vars(disk.DISK)
    assert vars(disk.DISK) == {}
    assert disk.DISK.write.__func__ is Disk.write


def test_the_campaign_counts_faults_and_losses_by_kind(monkeypatch):
    one = kinds()["save_checkpoint"]
    monkeypatch.setattr(errors, "kinds", lambda: {"save_checkpoint": one})
    monkeypatch.setattr(errors, "REAL", REAL[:1])
    counted = errors.campaign()
    assert set(counted) == {f"a call fails: {errno.errorcode[code]}" for code in CODES} | {
        "a call fails: a short write",
        REAL[0],
    }
    assert all(injected > 0 and losses == 0 for injected, losses in counted.values())
