"""A directory of checkpoints: which is the newest, what may be removed, and what never is."""

import os

import numpy as np
import pytest
from safetensors.numpy import save_file

from numpy_ref import store
from numpy_ref.checkpoint import read_checkpoint, save_checkpoint, save_weights
from numpy_ref.config import RunConfig
from numpy_ref.container import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint
from numpy_ref.durable import replace_file
from numpy_ref.equivalence import digest
from numpy_ref.store import (
    check_unused,
    checkpoint_path,
    list_checkpoints,
    resume_newest,
    save_newest,
    sole_writer,
)
from numpy_ref.train import init_run, train_n_steps
from parity_tests.strategies import small_data

DATA = small_data()
CONFIG = RunConfig(hidden=(3,), batch_size=4, evaluate_every=2)


@pytest.fixture
def run():
    return init_run(CONFIG, DATA)


def after(run, step):
    return train_n_steps(run, DATA, step - run.state.step)


def flip(path, place):
    """Change one bit of a file; the place counts from the end when it is negative."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def steps_in(directory):
    return [entry.step for entry in list_checkpoints(directory).entries]


def test_checkpoints_are_ordered_by_the_step_in_the_file_not_by_name_or_date(tmp_path, run):
    names = {2: "step-9", 10: "step-10", 7: "z", 11: "a"}  # by name as text the newest would be z, by number step-10
    for step, name in names.items():
        path = tmp_path / f"{name}.safetensors"
        save_checkpoint(path, after(run, step))
        os.utime(path, (2_000_000_000 - step, 2_000_000_000 - step))  # by date it would be step-9
    assert steps_in(tmp_path) == [2, 7, 10, 11]
    assert resume_newest(tmp_path, DATA)[0].state.step == 11


def test_a_step_of_more_than_eight_digits_keeps_all_of_them():
    assert checkpoint_path("run", 47).name == "step-00000047.safetensors"
    assert checkpoint_path("run", 1_234_567_890).name == "step-1234567890.safetensors"


def test_a_run_resumed_from_a_directory_is_the_run_that_was_saved(tmp_path, run):
    saved = after(run, 5)
    path = save_newest(tmp_path / "new" / "run", saved, keep=1)
    assert path == tmp_path / "new" / "run" / "step-00000005.safetensors"
    resumed, passed_over = resume_newest(path.parent, DATA)
    assert (resumed.run_id, digest(resumed.state), passed_over) == (run.run_id, digest(saved.state), [])


def test_a_temporary_never_counts(tmp_path, run):
    with replace_file(checkpoint_path(tmp_path, 3)) as file:  # as another process sees a write that is under way
        file.write(b"half")
        assert len(list(tmp_path.iterdir())) == 1
        assert list_checkpoints(tmp_path) == ([], [])
        check_unused(tmp_path)
        assert resume_newest(tmp_path, DATA) == (None, [])
    checkpoint_path(tmp_path, 3).unlink()
    save_checkpoint(tmp_path / ".hidden.safetensors", after(run, 3))
    save_checkpoint(tmp_path / ".step-00000004.safetensors.1-a.partial", after(run, 4))
    assert list_checkpoints(tmp_path) == ([], [])
    before = contents(tmp_path)
    save_newest(tmp_path, after(run, 5), keep=1)
    assert before.items() <= contents(tmp_path).items()


def test_only_checkpoints_of_this_run_are_removed_and_only_the_oldest(tmp_path, run):
    save_weights(tmp_path / "step-00000001.safetensors", after(run, 1))
    save_checkpoint(tmp_path / "another.safetensors", init_run(CONFIG, DATA))
    save_file({"w": np.zeros(3)}, tmp_path / "plain.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no checkpoint at all")
    for name in ("notes.txt", "step-00000002.safetensors.bak", "step-00000002", "events.tar", ".x.partial"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "logs").mkdir()
    foreign = {path.name for path in tmp_path.iterdir()}
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for step in range(3, 8):
        save_newest(tmp_path, after(run, step), keep=2)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == foreign | {"step-00000006.safetensors", "step-00000007.safetensors"}
    assert files == {name: (tmp_path / name).read_bytes() for name in files}


def test_a_copy_under_a_users_own_name_is_never_removed_and_does_not_count(tmp_path, run):
    save_checkpoint(tmp_path / "good one.safetensors", after(run, 1))
    for step in range(2, 6):
        save_newest(tmp_path, after(run, step), keep=2)
    assert steps_in(tmp_path) == [1, 4, 5]


def test_a_file_of_another_kind_or_run_is_never_replaced(tmp_path, run):
    path = checkpoint_path(tmp_path, 3)
    writers = (
        lambda: save_weights(path, after(run, 3)),
        lambda: save_checkpoint(path, after(init_run(CONFIG, DATA), 3)),
        lambda: save_file({"w": np.zeros(3)}, path),
    )
    for write in writers:
        write()
        before = contents(tmp_path)
        with pytest.raises(IncompatibleCheckpoint, match=r"step-00000003.safetensors: expected"):
            save_newest(tmp_path, after(run, 3), keep=1)
        assert contents(tmp_path) == before
    save_checkpoint(path, after(run, 3))
    flip(path, -1)
    save_newest(tmp_path, after(run, 3), keep=1)  # this run's own, damaged or not, is
    flip(path, 200)
    save_newest(tmp_path, after(run, 3), keep=1)
    assert resume_newest(tmp_path, DATA)[0].state.step == 3


@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3, 4, 5]), (1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_keep_counts_the_newest_and_zero_keeps_all(tmp_path, run, keep, left):
    for step in range(1, 6):
        save_newest(tmp_path, after(run, step), keep=keep)
    assert steps_in(tmp_path) == left


def test_the_checkpoint_just_written_is_never_removed(tmp_path, run):
    """After a fall back, damaged files of later steps still stand when an earlier step is saved."""
    for step in (2, 4, 8):
        save_newest(tmp_path, after(run, step), keep=0)
    flip(checkpoint_path(tmp_path, 8), -1)
    resumed, passed_over = resume_newest(tmp_path, DATA)
    assert (resumed.state.step, len(passed_over)) == (4, 1)
    save_newest(tmp_path, after(resumed, 5), keep=1)
    assert steps_in(tmp_path) == [5, 8]
    assert resume_newest(tmp_path, DATA)[0].state.step == 5


def test_nothing_is_removed_unless_the_new_one_reads_back(tmp_path, run, monkeypatch):
    for step in (1, 2, 3):
        save_newest(tmp_path, after(run, step), keep=0)
    before = contents(tmp_path)

    def unreadable(path):
        raise CorruptCheckpoint(f"{path}: damaged by the disk")

    with monkeypatch.context() as patch:
        patch.setattr(store, "read_checkpoint", unreadable)
        with pytest.raises(CorruptCheckpoint, match="damaged by the disk"):
            save_newest(tmp_path, after(run, 4), keep=1)
        assert before.items() <= contents(tmp_path).items()

    def full(path, run):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(store, "save_checkpoint", full)
    with pytest.raises(OSError, match="No space left"):
        save_newest(tmp_path, after(run, 5), keep=1)
    assert before.items() <= contents(tmp_path).items()


def test_what_was_written_is_read_back_from_the_disk(tmp_path, run, monkeypatch):
    """A disk that writes something else is found out at once."""
    save_newest(tmp_path, after(run, 1), keep=1)

    def lying(path, run):
        save_checkpoint(path, run)
        flip(path, -1)

    monkeypatch.setattr(store, "save_checkpoint", lying)
    with pytest.raises(CorruptCheckpoint, match=r"step-00000002\.safetensors"):
        save_newest(tmp_path, after(run, 2), keep=1)
    assert read_checkpoint(checkpoint_path(tmp_path, 1)).step == 1


def test_a_directory_with_several_runs_is_refused_and_both_are_named(tmp_path, run):
    other = init_run(CONFIG, DATA)
    save_checkpoint(checkpoint_path(tmp_path, 1), after(run, 1))
    save_checkpoint(checkpoint_path(tmp_path, 2), after(other, 2))
    with pytest.raises(IncompatibleCheckpoint) as caught:
        resume_newest(tmp_path, DATA)
    assert run.run_id in str(caught.value)
    assert other.run_id in str(caught.value)


def test_none_yet_and_none_readable_are_different_answers(tmp_path, run):
    assert resume_newest(tmp_path / "missing", DATA) == (None, [])
    assert resume_newest(tmp_path, DATA) == (None, [])
    (tmp_path / "notes.txt").write_text("step 4")
    save_weights(tmp_path / "weights.safetensors", run)
    assert resume_newest(tmp_path, DATA) == (None, [])
    for step, place in ((1, 3), (2, 100), (3, -1)):  # in the header's length, in the header, in the arrays
        save_checkpoint(checkpoint_path(tmp_path, step), after(run, step))
        flip(checkpoint_path(tmp_path, step), place)
    with pytest.raises(CheckpointError) as caught:
        resume_newest(tmp_path, DATA)
    for step in (1, 2, 3):
        assert f"step-0000000{step}.safetensors" in str(caught.value)


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "arrays"])
def test_a_damaged_newest_is_passed_over_with_a_line_that_names_it(tmp_path, run, damage):
    saved = {step: after(run, step) for step in (3, 5, 6)}
    for state in saved.values():
        save_checkpoint(checkpoint_path(tmp_path, state.state.step), state)
    for step in (5, 6):
        path = checkpoint_path(tmp_path, step)
        if damage in ("empty", "cut"):
            path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -1])
        else:
            flip(path, 200 if damage == "header" else -1)
    resumed, passed_over = resume_newest(tmp_path, DATA)
    assert digest(resumed.state) == digest(saved[3].state)
    assert sorted(line.split(":")[0] for line in passed_over) == [str(checkpoint_path(tmp_path, s)) for s in (5, 6)]


def test_other_data_is_an_error_and_no_reason_to_fall_back(tmp_path, run):
    for step in (1, 2):
        save_newest(tmp_path, after(run, step), keep=0)
    with pytest.raises(IncompatibleCheckpoint, match="fingerprint"):
        resume_newest(tmp_path, small_data(1))


def test_a_used_directory_is_told_by_any_checkpoint_readable_or_not(tmp_path, run):
    check_unused(tmp_path / "missing")
    (tmp_path / "notes.txt").write_text("nothing of ours")
    save_weights(tmp_path / "weights.safetensors", run)
    check_unused(tmp_path)
    path = checkpoint_path(tmp_path, 1)
    save_checkpoint(path, after(run, 1))
    with pytest.raises(IncompatibleCheckpoint, match=f"step-00000001.safetensors of run {run.run_id}"):
        check_unused(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(IncompatibleCheckpoint, match=r"step-00000001.safetensors, which cannot be read"):
        check_unused(tmp_path)


def test_a_relative_directory_is_below_the_current_one_at_the_call(tmp_path, run, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    save_newest("run", after(run, 2), keep=1)
    monkeypatch.chdir(second)
    assert list_checkpoints("run") == ([], [])
    assert resume_newest("run", DATA) == (None, [])
    save_newest("run", after(run, 3), keep=1)
    assert (steps_in(first / "run"), steps_in(second / "run")) == ([2], [3])
    assert resume_newest(os.path.join("..", "first", "run"), DATA)[0].state.step == 2


@pytest.mark.parametrize("name", ["my run", "Läufe ✓", "ラン", "run [1-3]*", "a'b\"c", "-dash", "run.safetensors"])
def test_a_directory_may_have_any_name(tmp_path, run, name):
    for step in (1, 2, 3):
        save_newest(tmp_path / name, after(run, step), keep=2)
    assert steps_in(tmp_path / name) == [2, 3]
    assert resume_newest(str(tmp_path / name), DATA)[0].state.step == 3


def test_a_directory_that_cannot_be_listed_is_an_error_and_not_an_empty_one(tmp_path, monkeypatch):
    def refused(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))

    monkeypatch.setattr(os, "listdir", refused)
    with pytest.raises(PermissionError):
        list_checkpoints(tmp_path)


def test_one_process_at_a_time_writes(tmp_path):
    with sole_writer(tmp_path), pytest.raises(CheckpointError, match="found another process"), sole_writer(tmp_path):
        pass
    with sole_writer(tmp_path):
        assert list(tmp_path.iterdir()) == []


def test_keeping_all_reads_no_other_header(run, tmp_path, monkeypatch):
    save_newest(tmp_path, after(run, 1), keep=0)
    monkeypatch.setattr(store, "list_checkpoints", None)
    save_newest(tmp_path, after(run, 2), keep=0)
