"""Power fails at every moment of a save, of rotation, of a fallback: the old checkpoint opens or the new one."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import numpy_ref
from numpy_ref.checkpoint import store
from numpy_ref.checkpoint.disk import DISK, Disk
from numpy_ref.checkpoint.durable import replace_file
from numpy_ref.proof.power_failure import Event, File, changed, contents
from parity_tests.campaigns import default_of
from parity_tests.checkpoint import crash
from parity_tests.checkpoint.crash import (
    MUTANTS,
    RUN,
    SCENARIOS,
    DeleteBeforeSave,
    Lying,
    Recorder,
    attempt,
    disk_with,
    in_background,
    misread,
    opened_and_gone_on,
    plain,
    record,
    rotation,
    save_over,
)
from parity_tests.implementations import NO_TORCH

OVER = "save over the only one"


@pytest.mark.parametrize("name", default_of(SCENARIOS, "first save", OVER))
def test_from_every_state_of_the_disk_the_old_or_the_new_checkpoint_opens(name):
    tried = attempt(SCENARIOS[name])
    assert tried.faults == []
    assert tried.states > 200


@NO_TORCH
@pytest.mark.parametrize("name", default_of([OVER, "fallback"], OVER))
def test_the_ports_checkpoints_survive_as_well(name):
    import torch_port

    tried = attempt(SCENARIOS[name], impl=torch_port)
    assert tried.faults == []
    assert tried.states > 200


@pytest.mark.parametrize("name", default_of(["first save", "fallback"], "first save"))
def test_from_every_state_the_run_goes_on_and_no_temporary_stays(name):
    assert attempt(SCENARIOS[name], ask=opened_and_gone_on).faults == []


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_write_protocol_with_one_fault_loses_a_checkpoint(mutant):
    """Nothing opens, or what opens is not what was reported as saved."""
    assert attempt(save_over, disk=MUTANTS[mutant], most=1).faults != []


@pytest.mark.campaign
def test_without_flush_a_name_stands_on_an_empty_file():
    fault = attempt(save_over, disk=MUTANTS["without flush"], most=1).faults[0]
    assert fault.after == "rename"
    assert "found 0 bytes" in str(fault.opened)


def test_without_the_directorys_fsync_a_reported_save_is_undone_and_rotation_leaves_none():
    mutant = MUTANTS["without the directory's fsync"]
    (undone,) = attempt(save_over, disk=mutant, most=1).faults
    assert undone.after == "rename"
    faults = attempt(in_background, disk=mutant).faults
    assert any(fault.after == "unlink" and fault.opened is None for fault in faults)


def test_deleting_before_the_save_leaves_none():
    (fault,) = attempt(rotation, acting=DeleteBeforeSave(numpy_ref), most=1).faults
    assert (fault.after, fault.opened) == ("unlink", None)


@pytest.mark.campaign
def test_what_the_disk_kept_otherwise_never_replaces_what_opens(monkeypatch):
    assert attempt(misread, disk=Lying).faults == []
    monkeypatch.setattr(store, "verify_container", lambda path: None)  # delete before verify
    (fault,) = attempt(misread, disk=Lying, most=1).faults
    assert "none can be read" in str(fault.opened)


def test_nothing_is_removed_before_the_new_checkpoints_name_is_on_disk(tmp_path):
    calls = [event.call for event in record(rotation, numpy_ref, tmp_path).events]
    assert calls.count("unlink") == 3
    for i, call in enumerate(calls):
        if call == "unlink":
            assert "fsync directory" in calls[:i][::-1][: calls[:i][::-1].index("rename")]


# The model itself


def test_a_save_is_recorded_call_by_call(tmp_path):
    recorder = Recorder(tmp_path)
    with recorder.recording(), replace_file(tmp_path / "a") as file:
        file.write(b"new")
    calls = [event.call for event in recorder.events]
    assert calls == ["create", "write", "flush", "fsync", "close", "rename", "fsync directory"]
    assert (recorder.events[1].offset, recorder.events[1].data) == (0, b"new")
    assert (recorder.events[5].target, recorder.events[6].name) == ("a", "")


def test_after_the_recording_the_disk_and_the_system_are_as_before(tmp_path):
    functions = [os.rename, os.replace, os.unlink, os.remove, os.mkdir]
    with Recorder(tmp_path).recording():
        assert "fsync" in vars(DISK)
    assert vars(DISK) == {}
    assert [os.rename, os.replace, os.unlink, os.remove, os.mkdir] == functions
    assert DISK.fsync.__func__ is Disk.fsync


def after(*events, state=()):
    """The states that a disk may have after events."""
    model = disk_with(state)
    for event in events:
        model.apply(event)
    return {plain(state) for state in model.states()}


WRITE = Event("write", "a", data=b"xy", buffered=True)


def test_what_is_synchronised_has_one_state_and_what_is_not_has_several():
    steps = {
        Event("create", "a"): {None, b""},
        WRITE: {None, b"", b"xy", b"\0\0", b"x\0", b"\0y"},
        Event("flush", "a"): {None, b"", b"xy", b"\0\0", b"x\0", b"\0y"},
        Event("fsync", "a"): {None, b"xy"},
        Event("fsync directory"): {b"xy"},
    }
    events = list(steps)
    for i, event in enumerate(events):
        assert {dict(state).get("a") for state in after(*events[: i + 1])} == steps[event]


def test_names_change_independently_until_their_directory_is_synchronised():
    before, rename = (("a", b"old"), ("t", b"new")), Event("rename", "t", "a")
    states = {tuple(dict(state).get(name) for name in "at") for state in after(rename, state=before)}
    assert states == {(b"old", b"new"), (b"old", None), (b"new", b"new"), (b"new", None)}
    assert len(after(rename, Event("fsync directory", "elsewhere"), state=before)) == 4
    assert after(rename, Event("fsync directory"), state=before) == {(("a", b"new"),)}


def test_what_lies_in_a_directory_that_is_lost_is_lost():
    events = (Event("mkdir", "d"), Event("create", "d/a"), Event("fsync directory", "d"))
    assert after(*events) == {(), (("d", None), ("d/a", b""))}


def test_an_fsync_without_a_flush_keeps_nothing():
    events = (Event("create", "a"), WRITE, Event("fsync", "a"), Event("close", "a"))
    assert b"" in {dict(state).get("a") for state in after(*events)}


@given(st.binary(max_size=9), st.lists(st.tuples(st.integers(0, 9), st.binary(max_size=5)), min_size=1, max_size=3))
def test_a_torn_file_may_be_the_old_one_the_new_one_or_any_mixture_of_blocks(old, changes):
    found = contents(old, changes, block=4)
    new = changed(old, changes)
    assert {old, new, new[:4], b""} <= set(found)
    assert max(map(len, found)) <= max(len(old), len(new))
    if len(new) >= 8 and len(old) >= 8:
        assert {old[:4] + new[4:8], new[:4] + old[4:8], bytes(4) + new[4:8], new[:2] + old[2:8]} <= {
            content[:8] for content in found
        }


def test_a_large_file_is_torn_at_every_block():
    old, new = b"o" * 4096, b"n" * 8192
    found, padded = contents(old, [(0, new)]), old.ljust(8192, b"\0")
    for start in range(0, 8192, 512):
        before, end = old[start : start + 512] or bytes(512), start + 512
        for lost in (before, bytes(512), new[start : start + 256] + before[256:]):
            assert new[:start] + lost + new[end:] in found
        assert {new[:start], padded[:start] + new[start:end] + padded[end:], padded[:start] + new[start:]} <= set(found)
    assert len(found) > 100


def test_a_change_that_the_recording_misses_is_found_out():
    def unseen(impl, root):
        (root / RUN).mkdir()
        yield {None}
        (root / RUN / "b").write_bytes(b"past the seam")
        yield {None}

    with pytest.raises(AssertionError, match="missed a change"):
        attempt(unseen)


def test_a_file_is_read_as_written_while_the_power_is_on():
    file = File(durable=b"old")
    file.changes = [(1, b"xyz"), (2, None), (3, b"!")]
    assert file.content() == b"ox\0!"
    assert b"old" in file.contents()


@pytest.mark.campaign
def test_the_campaign_counts_states_and_losses(monkeypatch):
    monkeypatch.setattr(crash, "SCENARIOS", {OVER: save_over})
    counted = crash.campaign()
    assert list(counted) == [f"power fails: {OVER}", "a disk keeps other bytes"]
    assert all(states > 200 and losses == 0 for states, losses in counted.values())


def test_no_state_is_left_on_the_disk_of_the_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(crash.tempfile, "tempdir", os.fspath(tmp_path))
    attempt(save_over, disk=MUTANTS["temporary on another file system"], most=1)
    assert list(Path(tmp_path).iterdir()) == []
