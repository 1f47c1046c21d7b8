"""A directory of checkpoints: which is the newest, what may be removed, and what never is; for both packages."""

import os
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import save_file

import numpy_ref
import torch_port
from numpy_ref import store
from numpy_ref.checkpoint import read_checkpoint
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
from parity_tests.implementations import EACH, NO_TORCH
from parity_tests.strategies import small_data

DATA = small_data()
CONFIG = RunConfig(hidden=(3,), batch_size=4, evaluate_every=2)


@pytest.fixture(params=EACH)
def impl(request):
    return request.param


@pytest.fixture
def run(impl):
    return impl.init_run(CONFIG, DATA)


@pytest.fixture
def after(impl):
    """Advance a copy of a run to a step; the run itself stays fresh, also where training uses it up."""

    def advance(run, step):
        copy = impl.restore(run.config, impl.snapshot(run), run_id=run.run_id, fingerprint=run.fingerprint)
        return impl.train_n_steps(copy, DATA, step - run.step)

    return advance


def flip(path, place):
    """Change one bit of a file; the place counts from the end when it is negative."""
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def steps_in(directory):
    return [entry.step for entry in list_checkpoints(directory).entries]


def test_checkpoints_are_ordered_by_the_step_in_the_file_not_by_name_or_date(tmp_path, impl, run, after):
    names = {2: "step-9", 10: "step-10", 7: "z", 11: "a"}  # by name as text the newest would be z, by number step-10
    for step, name in names.items():
        path = tmp_path / f"{name}.safetensors"
        impl.save_checkpoint(path, after(run, step))
        os.utime(path, (2_000_000_000 - step, 2_000_000_000 - step))  # by date it would be step-9
    assert steps_in(tmp_path) == [2, 7, 10, 11]
    assert resume_newest(impl, tmp_path, DATA).run.step == 11


def test_a_step_of_more_than_eight_digits_keeps_all_of_them():
    assert checkpoint_path("run", 47).name == "step-00000047.safetensors"
    assert checkpoint_path("run", 1_234_567_890).name == "step-1234567890.safetensors"


def test_a_run_resumed_from_a_directory_is_the_run_that_was_saved(tmp_path, impl, run, after):
    saved = after(run, 5)
    path = save_newest(impl, tmp_path / "new" / "run", saved, keep=1)
    assert path == tmp_path / "new" / "run" / "step-00000005.safetensors"
    resumed = resume_newest(impl, path.parent, DATA)
    assert (resumed.run.run_id, resumed.path, resumed.passed_over) == (run.run_id, path, [])
    assert digest(impl.snapshot(resumed.run)) == digest(impl.snapshot(saved))


def test_a_temporary_never_counts(tmp_path, impl, run, after):
    with replace_file(checkpoint_path(tmp_path, 3)) as file:  # as another process sees a write that is under way
        file.write(b"half")
        assert len(list(tmp_path.iterdir())) == 1
        assert list_checkpoints(tmp_path) == ([], [])
        check_unused(tmp_path)
        assert resume_newest(impl, tmp_path, DATA) == (None, None, [])
    checkpoint_path(tmp_path, 3).unlink()
    impl.save_checkpoint(tmp_path / ".hidden.safetensors", after(run, 3))
    impl.save_checkpoint(tmp_path / ".step-00000004.safetensors.1-a.partial", after(run, 4))
    assert list_checkpoints(tmp_path) == ([], [])
    before = contents(tmp_path)
    save_newest(impl, tmp_path, after(run, 5), keep=1)
    assert before.items() <= contents(tmp_path).items()


def test_only_checkpoints_of_this_run_are_removed_and_only_the_oldest(tmp_path, impl, run, after):
    impl.save_weights(tmp_path / "step-00000001.safetensors", after(run, 1))
    impl.save_checkpoint(tmp_path / "another.safetensors", impl.init_run(CONFIG, DATA))
    save_file({"w": np.zeros(3)}, tmp_path / "plain.safetensors")
    (tmp_path / "broken.safetensors").write_bytes(b"no checkpoint at all")
    for name in ("notes.txt", "step-00000002.safetensors.bak", "step-00000002", "events.tar", ".x.partial"):
        (tmp_path / name).write_bytes(name.encode())
    (tmp_path / "logs").mkdir()
    foreign = {path.name for path in tmp_path.iterdir()}
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    for step in range(3, 8):
        save_newest(impl, tmp_path, after(run, step), keep=2)
    found = {path.name for path in tmp_path.iterdir()}
    assert found == foreign | {"step-00000006.safetensors", "step-00000007.safetensors"}
    assert files == {name: (tmp_path / name).read_bytes() for name in files}


def test_a_copy_under_a_users_own_name_is_never_removed_and_does_not_count(tmp_path, impl, run, after):
    impl.save_checkpoint(tmp_path / "good one.safetensors", after(run, 1))
    for step in range(2, 6):
        save_newest(impl, tmp_path, after(run, step), keep=2)
    assert steps_in(tmp_path) == [1, 4, 5]


def test_a_file_of_another_kind_or_run_is_never_replaced(tmp_path, impl, run, after):
    path = checkpoint_path(tmp_path, 3)
    writers = (
        lambda: impl.save_weights(path, after(run, 3)),
        lambda: impl.save_checkpoint(path, after(impl.init_run(CONFIG, DATA), 3)),
        lambda: save_file({"w": np.zeros(3)}, path),
    )
    for write in writers:
        write()
        before = contents(tmp_path)
        with pytest.raises(IncompatibleCheckpoint, match=r"step-00000003.safetensors: expected"):
            save_newest(impl, tmp_path, after(run, 3), keep=1)
        assert contents(tmp_path) == before
    impl.save_checkpoint(path, after(run, 3))
    flip(path, -1)
    save_newest(impl, tmp_path, after(run, 3), keep=1)  # this run's own, damaged or not, is
    flip(path, 200)
    save_newest(impl, tmp_path, after(run, 3), keep=1)
    assert resume_newest(impl, tmp_path, DATA).run.step == 3


@pytest.mark.parametrize(("keep", "left"), [(0, [1, 2, 3, 4, 5]), (1, [5]), (2, [4, 5]), (9, [1, 2, 3, 4, 5])])
def test_keep_counts_the_newest_and_zero_keeps_all(tmp_path, impl, run, after, keep, left):
    for step in range(1, 6):
        save_newest(impl, tmp_path, after(run, step), keep=keep)
    assert steps_in(tmp_path) == left


def test_the_checkpoint_just_written_is_never_removed(tmp_path, impl, run, after):
    """After a fall back, damaged files of later steps still stand when an earlier step is saved."""
    for step in (2, 4, 8):
        save_newest(impl, tmp_path, after(run, step), keep=0)
    flip(checkpoint_path(tmp_path, 8), -1)
    resumed, path, passed_over = resume_newest(impl, tmp_path, DATA)
    assert (resumed.step, path, len(passed_over)) == (4, checkpoint_path(tmp_path, 4), 1)
    save_newest(impl, tmp_path, after(resumed, 5), keep=1)
    assert steps_in(tmp_path) == [5, 8]
    assert resume_newest(impl, tmp_path, DATA).run.step == 5


def test_nothing_is_removed_unless_the_new_one_reads_back(tmp_path, impl, run, after, monkeypatch):
    for step in (1, 2, 3):
        save_newest(impl, tmp_path, after(run, step), keep=0)
    before = contents(tmp_path)

    def unreadable(path):
        raise CorruptCheckpoint(f"{path}: damaged by the disk")

    with monkeypatch.context() as patch:
        patch.setattr(store, "read_checkpoint", unreadable)
        with pytest.raises(CorruptCheckpoint, match="damaged by the disk"):
            save_newest(impl, tmp_path, after(run, 4), keep=1)
        assert before.items() <= contents(tmp_path).items()

    def full(path, run):
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(OSError, match="No space left"):
        save_newest(SimpleNamespace(save_checkpoint=full), tmp_path, after(run, 5), keep=1)
    assert before.items() <= contents(tmp_path).items()


def test_what_was_written_is_read_back_from_the_disk(tmp_path, impl, run, after):
    """A disk that writes something else is found out at once."""
    save_newest(impl, tmp_path, after(run, 1), keep=1)

    def lying(path, run):
        impl.save_checkpoint(path, run)
        flip(path, -1)

    with pytest.raises(CorruptCheckpoint, match=r"step-00000002\.safetensors"):
        save_newest(SimpleNamespace(save_checkpoint=lying), tmp_path, after(run, 2), keep=1)
    assert read_checkpoint(checkpoint_path(tmp_path, 1)).step == 1


def test_a_directory_with_several_runs_is_refused_and_both_are_named(tmp_path, impl, run, after):
    other = impl.init_run(CONFIG, DATA)
    impl.save_checkpoint(checkpoint_path(tmp_path, 1), after(run, 1))
    impl.save_checkpoint(checkpoint_path(tmp_path, 2), after(other, 2))
    with pytest.raises(IncompatibleCheckpoint) as caught:
        resume_newest(impl, tmp_path, DATA)
    assert run.run_id in str(caught.value)
    assert other.run_id in str(caught.value)


def test_none_yet_and_none_readable_are_different_answers(tmp_path, impl, run, after):
    assert resume_newest(impl, tmp_path / "missing", DATA) == (None, None, [])
    assert resume_newest(impl, tmp_path, DATA) == (None, None, [])
    (tmp_path / "notes.txt").write_text("step 4")
    impl.save_weights(tmp_path / "weights.safetensors", run)
    assert resume_newest(impl, tmp_path, DATA) == (None, None, [])
    for step, place in ((1, 3), (2, 100), (3, -1)):  # in the header's length, in the header, in the arrays
        impl.save_checkpoint(checkpoint_path(tmp_path, step), after(run, step))
        flip(checkpoint_path(tmp_path, step), place)
    with pytest.raises(CheckpointError) as caught:
        resume_newest(impl, tmp_path, DATA)
    for step in (1, 2, 3):
        assert f"step-0000000{step}.safetensors" in str(caught.value)


@pytest.mark.parametrize("damage", ["empty", "cut", "header", "arrays"])
def test_a_damaged_newest_is_passed_over_with_a_line_that_names_it(tmp_path, impl, run, after, damage):
    saved = {step: after(run, step) for step in (3, 5, 6)}
    for state in saved.values():
        impl.save_checkpoint(checkpoint_path(tmp_path, state.step), state)
    for step in (5, 6):
        path = checkpoint_path(tmp_path, step)
        if damage in ("empty", "cut"):
            path.write_bytes(path.read_bytes()[: 0 if damage == "empty" else -1])
        else:
            flip(path, 200 if damage == "header" else -1)
    resumed, _, passed_over = resume_newest(impl, tmp_path, DATA)
    assert digest(impl.snapshot(resumed)) == digest(impl.snapshot(saved[3]))
    assert sorted(line.split(":")[0] for line in passed_over) == [str(checkpoint_path(tmp_path, s)) for s in (5, 6)]


def test_other_data_is_an_error_and_no_reason_to_fall_back(tmp_path, impl, run, after):
    for step in (1, 2):
        save_newest(impl, tmp_path, after(run, step), keep=0)
    with pytest.raises(IncompatibleCheckpoint, match="fingerprint"):
        resume_newest(impl, tmp_path, small_data(1))


def test_a_used_directory_is_told_by_any_checkpoint_readable_or_not(tmp_path, impl, run, after):
    check_unused(tmp_path / "missing")
    (tmp_path / "notes.txt").write_text("nothing of ours")
    impl.save_weights(tmp_path / "weights.safetensors", run)
    check_unused(tmp_path)
    path = checkpoint_path(tmp_path, 1)
    impl.save_checkpoint(path, after(run, 1))
    with pytest.raises(IncompatibleCheckpoint, match=f"step-00000001.safetensors of run {run.run_id}"):
        check_unused(tmp_path)
    path.write_bytes(b"")
    with pytest.raises(IncompatibleCheckpoint, match=r"step-00000001.safetensors, which cannot be read"):
        check_unused(tmp_path)


def test_a_relative_directory_is_below_the_current_one_at_the_call(tmp_path, impl, run, after, monkeypatch):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    monkeypatch.chdir(first)
    save_newest(impl, "run", after(run, 2), keep=1)
    monkeypatch.chdir(second)
    assert list_checkpoints("run") == ([], [])
    assert resume_newest(impl, "run", DATA) == (None, None, [])
    save_newest(impl, "run", after(run, 3), keep=1)
    assert (steps_in(first / "run"), steps_in(second / "run")) == ([2], [3])
    assert resume_newest(impl, os.path.join("..", "first", "run"), DATA).run.step == 2


@pytest.mark.parametrize("name", ["my run", "Läufe ✓", "ラン", "run [1-3]*", "a'b\"c", "-dash", "run.safetensors"])
def test_a_directory_may_have_any_name(tmp_path, impl, run, after, name):
    for step in (1, 2, 3):
        save_newest(impl, tmp_path / name, after(run, step), keep=2)
    assert steps_in(tmp_path / name) == [2, 3]
    assert resume_newest(impl, str(tmp_path / name), DATA).run.step == 3


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


def test_keeping_all_reads_no_other_header(tmp_path, impl, run, after, monkeypatch):
    save_newest(impl, tmp_path, after(run, 1), keep=0)
    monkeypatch.setattr(store, "list_checkpoints", None)
    save_newest(impl, tmp_path, after(run, 2), keep=0)


@NO_TORCH
def test_both_packages_take_turns_in_one_directory(tmp_path):
    """Each goes on from what the other left and removes what is too old, as if one alone had worked there."""
    start = numpy_ref.init_run(CONFIG, DATA)
    save_newest(numpy_ref, tmp_path, start, keep=2)
    for step, impl in enumerate([torch_port, numpy_ref, torch_port, numpy_ref], 1):
        run = impl.train_n_steps(resume_newest(impl, tmp_path, DATA).run, DATA, 1)
        assert (run.step, run.run_id) == (step, start.run_id)
        save_newest(impl, tmp_path, run, keep=2)
    assert steps_in(tmp_path) == [3, 4]
    assert digest(read_checkpoint(checkpoint_path(tmp_path, 4)).state) == digest(
        numpy_ref.train_n_steps(start, DATA, 4).state
    )
