"""A directory of checkpoints: which is the newest, what may be removed, and what never is; for both packages."""

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from safetensors.numpy import save_file

import numpy_ref
import torch_port
from numpy_ref.checkpoint import background, read_checkpoint, store
from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    read_container,
    write_container,
)
from numpy_ref.checkpoint.disk import DISK
from numpy_ref.checkpoint.durable import DurabilityUnknown, replace_file
from numpy_ref.checkpoint.store import (
    Entry,
    Retention,
    check_unused,
    checkpoint_path,
    list_checkpoints,
    resume_newest,
    save_newest,
    sole_writer,
    superfluous,
    survey,
)
from numpy_ref.config import RunConfig
from numpy_ref.data import Position
from numpy_ref.proof.equivalence import digest
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


def at(run, step, best_step=0):
    """A reference run as if it had been trained to a step, and found its best weights at another."""
    windows = -(-len(DATA.labels) // CONFIG.batch_size)
    state = run.state._replace(
        step=step,
        optimizer=run.state.optimizer._replace(t=step),
        schedule=run.state.schedule._replace(tick=step),
        data=Position(step // windows, step % windows * CONFIG.batch_size),
        best=run.state.best._replace(step=best_step),
    )
    return run._replace(state=state)


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
    path = save_newest(impl, tmp_path / "new" / "run", saved, retention=Retention(1))
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
    save_newest(impl, tmp_path, after(run, 5), retention=Retention(1))
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
        save_newest(impl, tmp_path, after(run, step), retention=Retention(2))
    found = {path.name for path in tmp_path.iterdir()}
    assert found == foreign | {"step-00000006.safetensors", "step-00000007.safetensors"}
    assert files == {name: (tmp_path / name).read_bytes() for name in files}


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
            save_newest(impl, tmp_path, after(run, 3), retention=Retention(1))
        assert contents(tmp_path) == before
    impl.save_checkpoint(path, after(run, 3))
    flip(path, -1)
    save_newest(impl, tmp_path, after(run, 3), retention=Retention(1))  # this run's own, damaged or not, is
    flip(path, 200)
    save_newest(impl, tmp_path, after(run, 3), retention=Retention(1))
    assert resume_newest(impl, tmp_path, DATA).run.step == 3


def test_nothing_is_removed_unless_the_new_one_reads_back(tmp_path, impl, run, after, monkeypatch):
    for step in (1, 2, 3):
        save_newest(impl, tmp_path, after(run, step), retention=Retention(0))
    before = contents(tmp_path)

    def unreadable(path):
        raise CorruptCheckpoint(f"{path}: damaged by the disk")

    with monkeypatch.context() as patch:
        patch.setattr(store, "verify_container", unreadable)
        with pytest.raises(CorruptCheckpoint, match="damaged by the disk"):
            save_newest(impl, tmp_path, after(run, 4), retention=Retention(1))
        assert before.items() <= contents(tmp_path).items()

    def full(path, run):
        raise OSError(28, "No space left on device", str(path))

    with pytest.raises(OSError, match="No space left"):
        save_newest(SimpleNamespace(save_checkpoint=full), tmp_path, after(run, 5), retention=Retention(1))
    assert before.items() <= contents(tmp_path).items()


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
        save_newest(impl, tmp_path, after(run, step), retention=Retention(0))
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
    save_newest(impl, "run", after(run, 2), retention=Retention(1))
    monkeypatch.chdir(second)
    assert list_checkpoints("run") == ([], [])
    assert resume_newest(impl, "run", DATA) == (None, None, [])
    save_newest(impl, "run", after(run, 3), retention=Retention(1))
    assert (steps_in(first / "run"), steps_in(second / "run")) == ([2], [3])
    assert resume_newest(impl, os.path.join("..", "first", "run"), DATA).run.step == 2


@pytest.mark.parametrize("name", ["my Läufe ✓", "run [1-3]*", "-run.safetensors"])
def test_a_directory_may_have_any_name(tmp_path, impl, run, after, name):
    for step in (1, 2, 3):
        save_newest(impl, tmp_path / name, after(run, step), retention=Retention(2))
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
    save_newest(impl, tmp_path, after(run, 1), retention=Retention(0))
    monkeypatch.setattr(store, "list_checkpoints", None)
    save_newest(impl, tmp_path, after(run, 2), retention=Retention(0))


@NO_TORCH
def test_both_packages_take_turns_in_one_directory(tmp_path):
    """Each goes on from what the other left and removes what is too old, as if one alone had worked there."""
    start = numpy_ref.init_run(CONFIG, DATA)
    save_newest(numpy_ref, tmp_path, start, retention=Retention(2))
    for step, impl in enumerate([torch_port, numpy_ref, torch_port, numpy_ref], 1):
        run = impl.train_n_steps(resume_newest(impl, tmp_path, DATA).run, DATA, 1)
        assert (run.step, run.run_id) == (step, start.run_id)
        save_newest(impl, tmp_path, run, retention=Retention(2))
    assert steps_in(tmp_path) == [3, 4]
    assert digest(read_checkpoint(checkpoint_path(tmp_path, 4)).state) == digest(
        numpy_ref.train_n_steps(start, DATA, 4).state
    )


# What a retention keeps


def kept(entries, retention):
    """What stays, by its definition; the entries of one run, none under a user's own name."""
    best = min((e.step for e in entries if e.best_step == entries[-1].best_step), default=None)
    return [
        entry
        for rank, entry in enumerate(reversed(entries))
        if retention.keep_last == 0
        or rank < retention.keep_last
        or (retention.keep_every and entry.step % retention.keep_every == 0)
        or (retention.keep_best and entry.step == best)
    ][::-1]


def retention_law(module, entries, retention):
    """Exactly what is not kept is superfluous, in each run apart and beside copies of a user's."""
    gone = module.superfluous(entries, retention)
    for run_id in "ab":
        own = [e for e in entries if e.run_id == run_id and e.path == checkpoint_path("run", e.step)]
        if [e for e in own if e not in gone] != kept(own, retention) or (own and own[-1] in gone):
            return False
    return all(entry.path == checkpoint_path("run", entry.step) for entry in gone)


retentions = st.builds(Retention, st.integers(0, 3), st.integers(0, 4), st.booleans())


@st.composite
def listings(draw):
    """Entries of two runs, perhaps with copies under other names, sorted as a listing is."""
    path = st.sampled_from(["", "copy.safetensors"])
    names = draw(st.dictionaries(st.integers(0, 12), st.tuples(st.sampled_from("ab"), path, st.integers(0, 3))))
    return [
        Entry(Path("run", name) if name else checkpoint_path("run", step), step, run_id, best)
        for step, (run_id, name, best) in sorted(names.items())
    ]


def entry_of(step, best=0, run_id="a"):
    return Entry(checkpoint_path("run", step), step, run_id, best)


LINE = [entry_of(step, best) for step, best in ((0, 0), (2, 1), (3, 1), (5, 4), (6, 4), (8, 4), (9, 4))]
RETENTIONS = [Retention(0, 2, True), Retention(1), Retention(2, 3), Retention(2, 0, True), Retention(9)]
LISTINGS = [
    LINE,
    [*LINE[:3], Entry(Path("run", "mine.safetensors"), 4, "a", 3), *LINE[3:]],
    sorted([*LINE, entry_of(1, 0, "b"), entry_of(7, 3, "b"), entry_of(12, 3, "b")], key=lambda e: e.step),
]


@given(listings(), retentions)
@example(LISTINGS[1], Retention(1))
@example(LISTINGS[2], Retention(2, 3, True))
def test_superfluous_is_what_is_not_kept_and_never_the_newest_a_copy_or_a_reason_for_another_run(entries, retention):
    assert retention_law(store, entries, retention)


def merged(entries, retention):
    runs = {entry.path: entry for entry in entries}
    return [runs[e.path] for e in superfluous([entry._replace(run_id="a") for entry in entries], retention)]


def with_copies(entries, retention):
    own = {checkpoint_path("run", entry.step): entry for entry in entries}
    return [
        own[e.path] for e in superfluous([e._replace(path=checkpoint_path("run", e.step)) for e in entries], retention)
    ]


SUPERFLUOUS_FAULTS = {
    "one fewer": lambda entries, r: superfluous(entries, r._replace(keep_last=max(r.keep_last - 1, 1))),
    "oldest": lambda entries, r: entries[r.keep_last :],
    "no multiples": lambda entries, r: superfluous(entries, r._replace(keep_every=0)),
    "all multiples": lambda entries, r: superfluous(entries, r._replace(keep_every=1)),
    "no best": lambda entries, r: superfluous(entries, r._replace(keep_best=False)),
    "any best": lambda entries, r: [e for e in superfluous(entries, r) if e.best_step != entries[-1].best_step],
    "runs as one": merged,
    "copies counted": with_copies,
}


@pytest.mark.parametrize("name", SUPERFLUOUS_FAULTS)
def test_a_wrong_choice_of_what_is_superfluous_is_caught(name):
    mutant = SimpleNamespace(superfluous=SUPERFLUOUS_FAULTS[name])
    assert not all(retention_law(mutant, entries, retention) for entries in LISTINGS for retention in RETENTIONS)


@pytest.mark.parametrize("retention", [Retention(-1), Retention(1, -2)])
def test_a_negative_count_is_refused_before_anything_is_written(tmp_path, impl, run, retention):
    for refused in (
        lambda: superfluous([], retention),
        lambda: save_newest(impl, tmp_path / "run", run, retention=retention),
        lambda: background.BackgroundWriter(impl, tmp_path / "run", retention=retention),
    ):
        with pytest.raises(ValueError, match=r"expected keep_last >= 0 and keep_every >= 0, found Retention"):
            refused()
    assert list(tmp_path.iterdir()) == []


# Any directory

RUN = numpy_ref.init_run(CONFIG, DATA)
OTHER = numpy_ref.init_run(CONFIG, DATA)


def damaged(place):
    def write(path, step, best):
        numpy_ref.save_checkpoint(path, at(RUN, step, best))
        flip(path, place)

    return write


WRITERS: dict[str, Callable] = {
    "own": lambda path, step, best: numpy_ref.save_checkpoint(path, at(RUN, step, best)),
    "copy": lambda path, step, best: numpy_ref.save_checkpoint(path.with_name("mine.safetensors"), at(RUN, step, best)),
    "header damaged": damaged(200),
    "arrays damaged": damaged(-1),
    "weights": lambda path, step, best: numpy_ref.save_weights(path, at(RUN, step)),
    "other run": lambda path, step, best: numpy_ref.save_checkpoint(path, at(OTHER, step)),
    "plain": lambda path, step, best: save_file({"w": np.zeros(step + 1)}, path),
    "text": lambda path, step, best: path.with_suffix(".txt").write_text("notes"),
    "hidden": lambda path, step, best: numpy_ref.save_checkpoint(path.with_name(f".{path.name}"), at(RUN, step)),
    "set aside": lambda path, step, best: path.with_name(path.name + store.DAMAGED).write_bytes(b"damaged"),
    "directory": lambda path, step, best: path.mkdir(),
}
FOREIGN = ("weights", "other run", "plain", "directory")


class Case(NamedTuple):
    """A directory, {step: (kind, best step)}, and what is saved into it."""

    files: dict[int, tuple[str, int]]
    step: int
    retention: Retention


@st.composite
def cases(draw):
    files = draw(st.dictionaries(st.integers(1, 9), st.tuples(st.sampled_from(list(WRITERS)), st.integers(0, 1))))
    return Case(files, draw(st.integers(1, 9)), draw(retentions))


def directory_faults(module, case):
    """What a save into a directory does that it should not."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for step, (kind, best) in case.files.items():
            WRITERS[kind](checkpoint_path(directory, step), step, best)
        before, foreign = files_in(directory), case.files.get(case.step, ("", 0))[0] in FOREIGN
        path = checkpoint_path(directory, case.step)
        own = {s: b for s, (kind, b) in case.files.items() if kind == "own" and s < case.step}
        line = [
            Entry(checkpoint_path(directory, s), s, RUN.run_id, b) for s, b in sorted((own | {case.step: 1}).items())
        ]
        stays = {entry.path.name for entry in kept(line, case.retention)}
        try:
            module.save_newest(numpy_ref, directory, at(RUN, case.step, 1), retention=case.retention)
        except (CheckpointError, OSError):
            return [] if foreign and files_in(directory) == before else ["refused"]
        after = files_in(directory)
        names = (before.keys() - {entry.path.name for entry in line}) | stays
        changed = [name for name in (before.keys() & after.keys()) - {path.name} if before[name] != after[name]]
        faults = {
            "a foreign file is replaced": foreign,
            "not the retained set": after.keys() != names,
            "another file is changed": changed,
            "the new one is lost": path.name not in after or read_checkpoint(path).state.best.step != 1,
        }
        return [fault for fault, found in faults.items() if found]


def files_in(directory):
    return {path.name: path.read_bytes() if path.is_file() else None for path in directory.iterdir()}


CASES = [
    Case({1: ("own", 0), 2: ("own", 1), 3: ("arrays damaged", 1), 4: ("other run", 0)}, 5, Retention(1, 0, True)),
    Case({1: ("other run", 0), 2: ("own", 1), 3: ("other run", 1), 4: ("own", 0)}, 5, Retention(1)),
    Case({1: ("own", 0), 2: ("header damaged", 1), 3: ("copy", 1), 4: ("own", 0), 5: ("weights", 0)}, 6, Retention(1)),
    Case({1: ("own", 0), 6: ("own", 0), 8: ("arrays damaged", 1)}, 5, Retention(1)),
    Case({1: ("own", 0), 4: ("plain", 0), 7: ("set aside", 0)}, 4, Retention(1)),
    Case({1: ("own", 0), 4: ("other run", 0)}, 4, Retention(1)),
    Case({1: ("own", 0), 2: ("own", 0), 3: ("own", 0), 4: ("header damaged", 0)}, 4, Retention(2)),
]


@given(cases())
@example(CASES[0])
@example(CASES[2])
def test_after_a_save_the_retained_set_is_there_and_everything_else_is_as_it_was(case):
    assert directory_faults(store, case) == []


def as_one_run(directory):
    entries, damaged = list_checkpoints(directory)
    return [entry._replace(run_id=RUN.run_id) for entry in entries], damaged


SAVE_FAULTS = {
    "another run's removed": {"list_checkpoints": lambda directory: store.Listing(*as_one_run(directory))},
    "another run's replaced": {"_check_replaceable": lambda path, run_id: None},
    "all but one removed": {"superfluous": lambda entries, r: entries[:-1]},
    "none removed": {"superfluous": lambda entries, r: []},
}


@pytest.mark.parametrize("name", SAVE_FAULTS)
def test_a_save_that_removes_or_replaces_too_much_or_too_little_is_caught(name, monkeypatch):
    for function, wrong in SAVE_FAULTS[name].items():
        monkeypatch.setattr(store, function, wrong)
    assert any(directory_faults(store, case) for case in CASES)


# What a resume does, and a survey that says so before


def answer(function):
    """What a function gives, or the error it ends with, in one line."""
    try:
        return function()
    except CheckpointError as error:
        return str(error).partition("\n")[0]


def survey_faults(module, case):
    """What a survey of a directory says that a resume or a save then does not do."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder)
        for step, (kind, best) in case.files.items():
            WRITERS[kind](checkpoint_path(directory, step), step, best)
        before = files_in(directory)
        told = module.survey(directory, retention=case.retention)
        resumed = answer(lambda: store.resume_newest(numpy_ref, directory, DATA))
        refused = isinstance(resumed, str)
        states = {file.path.name: file.state.partition(":")[0] for file in told.entries}
        kinds = {checkpoint_path("", step).name: kind for step, (kind, _) in case.files.items() if kind in STATES}
        own = {
            file.step: file.best_step for file in told.entries if file.state == "whole" and file.run_id == RUN.run_id
        }
        line = [Entry(checkpoint_path(directory, s), s, RUN.run_id, best) for s, best in own.items()]
        line = [entry for entry in line if entry.path.exists()]
        gone = [entry.path for entry in line if entry not in kept(line, case.retention)]
        faults = {
            "it changed something": files_in(directory) != before,
            "another one is resumed": told.resumed != (None if refused else resumed.path),
            "another reason": refused and resumed.removeprefix(f"{directory}: ").rstrip(".:") not in told.why,
            "a wrong state": any(states[name] != STATES[kind] for name, kind in kinds.items()),
            "a wrong size": any(
                f.state != "whole" or f.size != f.path.stat().st_size for f in told.entries if f.step in own
            ),
            "another choice of what may go": [p for p in told.superfluous if p in {e.path for e in line}] != gone,
            "a damaged one may go": any(
                file.state != "whole" and file.path in told.superfluous for file in told.entries
            ),
            "not set aside": {p.name for p in told.set_aside} != {n for n in before if n.endswith(store.DAMAGED)},
            "a hidden file or another counts": states.keys()
            != {n for n in before if n[0] != "." and n.endswith("tensors")},
        }
        return [fault for fault, found in faults.items() if found]


STATES = {"own": "whole", "other run": "whole", "header damaged": "damaged", "arrays damaged": "damaged"}
STATES |= {"weights": "not ours", "plain": "not ours", "directory": "damaged"}
SURVEYED = [
    *CASES,
    Case({}, 1, Retention(0)),
    Case({1: ("hidden", 0), 2: ("text", 0), 3: ("set aside", 0), 4: ("weights", 0)}, 1, Retention(1)),
    Case({1: ("own", 0), 2: ("hidden", 0), 3: ("set aside", 0)}, 1, Retention(1)),
    Case({1: ("arrays damaged", 0), 2: ("header damaged", 0)}, 1, Retention(1)),
    Case({1: ("own", 0), 2: ("own", 0), 3: ("arrays damaged", 0)}, 1, Retention(1)),
]


@given(cases())
@example(SURVEYED[-1])
@example(SURVEYED[-2])
@example(CASES[0])
def test_a_survey_changes_nothing_and_says_what_a_resume_and_a_retention_would_do(case):
    assert survey_faults(store, case) == []


SURVEY_FAULTS = {
    "resumes from none": lambda found: found._replace(resumed=None),
    "another reason": lambda found: found._replace(why=""),
    "none may go": lambda found: found._replace(superfluous=[]),
    "all may go": lambda found: found._replace(superfluous=[file.path for file in found.entries]),
    "none set aside": lambda found: found._replace(set_aside=[]),
    "all whole": lambda found: found._replace(entries=[file._replace(state="whole") for file in found.entries]),
    "no size": lambda found: found._replace(entries=[file._replace(size=0) for file in found.entries]),
}


@pytest.mark.parametrize("name", SURVEY_FAULTS)
def test_a_survey_that_is_wrong_is_caught(name):
    mutant = SimpleNamespace(survey=lambda *given, **options: SURVEY_FAULTS[name](survey(*given, **options)))
    assert any(survey_faults(mutant, case) for case in SURVEYED)


def test_a_survey_tells_step_run_best_and_size_and_why(tmp_path):
    assert survey(tmp_path / "missing") == ([], [], [], None, "there is no checkpoint yet", [])
    for step, best in ((3, 0), (5, 4), (8, 4)):
        numpy_ref.save_checkpoint(checkpoint_path(tmp_path, step), at(RUN, step, best))
    paths = [checkpoint_path(tmp_path, step) for step in (3, 5, 8)]
    flip(paths[2], -1)
    entries, stale, aside, resumed, why, gone = survey(tmp_path, retention=Retention(1))
    assert [(f.path, f.step, f.run_id, f.best_step) for f in entries] == [
        (path, step, RUN.run_id, best) for path, step, best in zip(paths, (3, 5, 8), (0, 4, 4), strict=True)
    ]
    assert [file.size for file in entries] == [path.stat().st_size for path in paths]
    assert [file.state for file in entries[:2]] == ["whole", "whole"]
    assert entries[2].state.startswith("damaged: expected arrays as they were written, found ")
    assert (stale, aside, gone) == ([], [], [paths[0]])
    assert (resumed, why) == (paths[1], "the newest that can be read, after 1 that cannot")
    assert survey(tmp_path).superfluous == []


# Damaged files are set aside


def test_damaged_checkpoints_are_set_aside_once_something_is_resumed_and_a_line_says_so(tmp_path, impl, run, after):
    for step in (1, 2, 3, 4):
        impl.save_checkpoint(checkpoint_path(tmp_path, step), after(run, step))
    flip(checkpoint_path(tmp_path, 3), 200)
    flip(checkpoint_path(tmp_path, 4), -1)
    before = contents(tmp_path)
    plain = resume_newest(impl, tmp_path, DATA)
    assert contents(tmp_path) == before  # a reader renames nothing
    resumed = resume_newest(impl, tmp_path, DATA, set_aside=True)
    assert (resumed.path, resumed.run.step) == (plain.path, 2)
    aside = [f"step-0000000{step}.safetensors.damaged" for step in (3, 4)]
    for line, told, name in zip(resumed.passed_over, plain.passed_over, aside, strict=True):
        assert line == f"{told}\n    It is kept as {tmp_path / name}."
    moved = {name + (".damaged" if name[12] in "34" else ""): content for name, content in before.items()}
    assert contents(tmp_path) == moved
    assert resume_newest(impl, tmp_path, DATA).passed_over == []
    assert survey(tmp_path).set_aside == [tmp_path / name for name in aside]
    for step in (3, 4, 5):
        save_newest(impl, tmp_path, after(resumed.run, step), retention=Retention(1))
    assert steps_in(tmp_path) == [5]
    assert set(aside) <= contents(tmp_path).keys()  # nor is it ever removed


def test_a_name_that_is_taken_is_never_written_over(tmp_path):
    save_newest(numpy_ref, tmp_path, at(RUN, 1), retention=Retention(0))
    for n in range(3):
        checkpoint_path(tmp_path, 2).write_bytes(b"damage %d" % n)
        assert len(resume_newest(numpy_ref, tmp_path, DATA, set_aside=True).passed_over) == 1
    aside = survey(tmp_path).set_aside
    assert [path.suffix for path in aside] == [".damaged", ".damaged-2", ".damaged-3"]
    assert [path.read_bytes() for path in aside] == [b"damage 0", b"damage 1", b"damage 2"]


def test_what_is_sound_or_has_a_users_name_or_may_be_sound_is_not_set_aside(tmp_path):
    numpy_ref.save_checkpoint(checkpoint_path(tmp_path, 1), at(RUN, 1))
    save_file({"w": np.zeros(3)}, checkpoint_path(tmp_path, 2))  # another program's
    checkpoint_path(tmp_path, 3).mkdir()
    checkpoint_path(tmp_path, 4).symlink_to("nowhere")
    (tmp_path / "mine.safetensors").write_bytes(b"damaged")
    numpy_ref.save_weights(checkpoint_path(tmp_path, 5), at(RUN, 5))
    before = sorted(path.name for path in tmp_path.iterdir())
    resumed = resume_newest(numpy_ref, tmp_path, DATA, set_aside=True)
    assert (resumed.run.step, len(resumed.passed_over)) == (1, 4)
    assert sorted(path.name for path in tmp_path.iterdir()) == before


@pytest.mark.parametrize("files", [{1: ("arrays damaged", 0), 2: ("header damaged", 0)}, {1: ("header damaged", 0)}])
def test_where_none_can_be_read_nothing_is_set_aside_or_the_next_start_would_find_none(tmp_path, files):
    for step, (kind, best) in files.items():
        WRITERS[kind](checkpoint_path(tmp_path, step), step, best)
    before = contents(tmp_path)
    for _ in range(2):
        with pytest.raises(CheckpointError, match="none can be read"):
            resume_newest(numpy_ref, tmp_path, DATA, set_aside=True)
        assert contents(tmp_path) == before


def test_setting_aside_is_durable_and_a_failure_of_it_is_told_and_stops_nothing(tmp_path, monkeypatch):
    for step in (1, 2):
        save_newest(numpy_ref, tmp_path, at(RUN, step), retention=Retention(0))
    flip(checkpoint_path(tmp_path, 2), -1)
    calls = []

    def refuse(source, target):
        raise PermissionError(13, "Permission denied", source)

    with monkeypatch.context() as patch:
        patch.setattr(DISK, "rename", refuse, raising=False)
        resumed = resume_newest(numpy_ref, tmp_path, DATA, set_aside=True)
        assert resumed.run.step == 1
        assert "It could not be set aside: " in resumed.passed_over[0]
    with monkeypatch.context() as patch:
        patch.setattr(DISK, "fsync_directory", calls.append, raising=False)
        resume_newest(numpy_ref, tmp_path, DATA, set_aside=True)
    assert calls == [os.path.realpath(tmp_path)]


def aside_law(module, directory):
    """Only a writer sets aside, only damaged files of its own, and never over another."""
    directory.mkdir()
    for step, kind in enumerate(["own", "plain", "header damaged", "arrays damaged", "directory"], 1):
        WRITERS[kind](checkpoint_path(directory, step), step, 0)
    (directory / "mine.safetensors").write_bytes(b"damaged")
    (directory / "step-00000003.safetensors.damaged").write_bytes(b"an earlier one")
    before = files_in(directory)
    module.resume_newest(numpy_ref, directory, DATA)
    if files_in(directory) != before:
        return False
    module.resume_newest(numpy_ref, directory, DATA, set_aside=True)
    moved = {"step-00000003.safetensors": ".damaged-2", "step-00000004.safetensors": ".damaged"}
    return files_in(directory) == {name + moved.get(name, ""): content for name, content in before.items()}


def resuming(**replaced):
    return SimpleNamespace(resume_newest=lambda *given, **options: resume_newest(*given, **(options | replaced)))


@pytest.mark.parametrize("always", [True, False])
def test_setting_aside_at_another_time_is_caught(tmp_path, always):
    assert aside_law(store, tmp_path / "ours")
    assert not aside_law(resuming(set_aside=always), tmp_path / "mutant")


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("_is_own", lambda name: True),
        ("CorruptCheckpoint", CheckpointError),
        ("rename_durably", os.replace),
        ("rename_durably", lambda path, target: path.unlink()),
    ],
)
def test_setting_aside_the_wrong_file_or_over_another_is_caught(tmp_path, monkeypatch, function, wrong):
    monkeypatch.setattr(store, function, wrong)
    assert not aside_law(store, tmp_path / "mutant")


# Whoever reads while another writes


def late_reader(module, impl, directory, monkeypatch, runs):
    """What a reader finds whose listing is old when it reads, first a header, then a whole file: the writer rotates."""
    save_newest(impl, directory, runs[1], retention=Retention(1))
    real_header, real_resume, late = module.read_manifest, impl.resume_from_full_checkpoint, []

    def rotate(step, path):
        if step not in late and path == checkpoint_path(directory, step - 1):
            late.append(step)
            save_newest(impl, directory, runs[step], retention=Retention(1))

    def header(path):
        rotate(2, path)
        return real_header(path)

    def resume(path, data):
        rotate(3, path)
        return real_resume(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(module, "read_manifest", header)
        found = answer(
            lambda: module.resume_newest(SimpleNamespace(resume_from_full_checkpoint=resume), directory, DATA)
        )
    return late, found


def test_a_reader_that_comes_too_late_for_a_file_looks_again(tmp_path, impl, run, after, monkeypatch):
    runs = {step: after(run, step) for step in (1, 2, 3)}
    late, (resumed, path, passed_over) = late_reader(store, impl, tmp_path, monkeypatch, runs)
    assert (late, resumed.step, path, passed_over) == ([2, 3], 3, checkpoint_path(tmp_path, 3), [])


def test_a_reader_that_does_not_look_again_is_caught(tmp_path, monkeypatch):
    runs = {step: at(RUN, step) for step in (1, 2, 3)}
    path = SimpleNamespace(**vars(os.path) | {"lexists": lambda path: True})
    monkeypatch.setattr(store, "os", SimpleNamespace(**vars(os) | {"path": path}))
    _, found = late_reader(store, numpy_ref, tmp_path, monkeypatch, runs)
    assert found[1:] != (checkpoint_path(tmp_path, 3), [])


def test_a_survey_beside_a_writer_tells_no_damage(tmp_path, monkeypatch):
    save_newest(numpy_ref, tmp_path, at(RUN, 1), retention=Retention(1))
    real, steps = store.read_checkpoint, iter(range(2, 6))

    def rotating(path):
        if reading and (step := next(steps, None)):
            reading.clear()
            save_newest(numpy_ref, tmp_path, at(RUN, step), retention=Retention(1))
            reading.append(True)
        return real(path)

    reading = [True]
    monkeypatch.setattr(store, "read_checkpoint", rotating)
    told = survey(tmp_path)
    assert [(file.step, file.state) for file in told.entries] == [(5, "whole")]
    assert (told.resumed, told.why) == (checkpoint_path(tmp_path, 5), "the newest that can be read")


@pytest.mark.parametrize("at_once", [2, 3])
def test_writers_of_one_step_at_once_leave_one_whole_checkpoint(tmp_path, at_once):
    """Held apart by no lock, as two processes were that did not ask for it."""
    failures, together = [], Barrier(at_once)

    def save():
        try:
            for step in range(1, 16):
                together.wait()
                save_newest(numpy_ref, tmp_path, at(RUN, step), retention=Retention(2))
        except (OSError, CheckpointError) as error:
            failures.append(error)

    threads = [Thread(target=save) for _ in range(at_once)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (failures, steps_in(tmp_path), len(contents(tmp_path))) == ([], [14, 15], 2)
    assert resume_newest(numpy_ref, tmp_path, DATA).run.step == 15


# What killed writers leave, and links


def test_the_sole_writer_removes_what_killed_writers_left_and_nothing_else(tmp_path):
    """A killed writer holds no lock; a living one does, here the one whose context is open."""
    left = tmp_path / ".step-00000003.safetensors.4711-0123456789abcdef.partial"
    left.write_bytes(b"half")
    for name in (".x.partial", "step-00000003.safetensors.1-a.partial", ".step-00000004.safetensors"):
        (tmp_path / name).write_bytes(b"a user's")
    with replace_file(checkpoint_path(tmp_path, 4)) as file:
        file.write(b"half")
        living = {path.name for path in tmp_path.iterdir()} - {left.name}
        assert survey(tmp_path).stale == [left]
        with sole_writer(tmp_path):
            assert {path.name for path in tmp_path.iterdir()} == living
        assert survey(tmp_path).stale == []


def test_a_dangling_link_is_told_and_never_a_fresh_start(tmp_path):
    link = checkpoint_path(tmp_path, 7)
    link.symlink_to("step-00000006.safetensors")
    with pytest.raises(CheckpointError, match=r"step-00000007.safetensors: expected a checkpoint, found no such file"):
        resume_newest(numpy_ref, tmp_path, DATA)
    link.unlink()
    link.symlink_to(link.name)  # to itself
    with pytest.raises(CheckpointError, match=r"step-00000007.safetensors: expected a readable file"):
        resume_newest(numpy_ref, tmp_path, DATA)
    save_newest(numpy_ref, tmp_path, at(RUN, 2), retention=Retention(1))
    resumed = resume_newest(numpy_ref, tmp_path, DATA)
    assert (resumed.run.step, len(resumed.passed_over)) == (2, 1)


def test_a_directory_that_is_moved_resumes_for_nothing_points_into_it(tmp_path):
    for step in (1, 2, 3):
        save_newest(numpy_ref, tmp_path / "run", at(RUN, step), retention=Retention(2))
    (tmp_path / "run").rename(tmp_path / "moved")
    assert not any(path.is_symlink() for path in (tmp_path / "moved").iterdir())
    assert resume_newest(numpy_ref, tmp_path / "moved", DATA).path == checkpoint_path(tmp_path / "moved", 3)


def test_a_new_run_in_an_old_ones_directory_loses_nothing_and_is_told_apart(tmp_path):
    numpy_ref.save_checkpoint(checkpoint_path(tmp_path, 700), at(OTHER, 700))
    for step in (100, 200):
        save_newest(numpy_ref, tmp_path, at(RUN, step), retention=Retention(1))
    assert steps_in(tmp_path) == [200, 700]
    with pytest.raises(IncompatibleCheckpoint, match="those of 2"):
        resume_newest(numpy_ref, tmp_path, DATA)


@pytest.mark.parametrize("change", [{"step": "3"}, {"run_id": None}, {"scalars": []}, {"scalars": {}}])
def test_a_full_checkpoint_whose_header_lacks_what_orders_it_is_told_and_never_passed_in_silence(tmp_path, change):
    path = checkpoint_path(tmp_path, 3)
    numpy_ref.save_checkpoint(path, at(RUN, 3))
    arrays, manifest = read_container(path)
    with replace_file(path) as file:
        write_container(file, arrays, manifest | change)
    assert list_checkpoints(tmp_path).entries == []
    with pytest.raises(CheckpointError, match="expected step, run_id and best/step of a full checkpoint"):
        resume_newest(numpy_ref, tmp_path, DATA)


# Failures of a save


def test_an_older_one_that_cannot_be_removed_is_named_and_the_new_one_stands(tmp_path, monkeypatch):
    for step in (1, 2):
        save_newest(numpy_ref, tmp_path, at(RUN, step), retention=Retention(0))

    def refuse(path):
        raise PermissionError(1, "Operation not permitted", path)

    monkeypatch.setattr(DISK, "unlink", refuse, raising=False)
    with pytest.raises(PermissionError, match=r"step-00000001.safetensors") as caught:
        save_newest(numpy_ref, tmp_path, at(RUN, 3), retention=Retention(1))
    new = checkpoint_path(tmp_path, 3)
    assert caught.value.__notes__ == [f"{new} has been saved; an older checkpoint could not be removed."]
    assert steps_in(tmp_path) == [1, 2, 3]


def test_nothing_is_removed_while_the_new_ones_durability_is_unknown(tmp_path, monkeypatch):
    save_newest(numpy_ref, tmp_path, at(RUN, 1), retention=Retention(1))

    def refuse(directory):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(DISK, "fsync_directory", refuse, raising=False)
    with pytest.raises(DurabilityUnknown):
        save_newest(numpy_ref, tmp_path, at(RUN, 2), retention=Retention(1))
    assert steps_in(tmp_path) == [1, 2]


def verified_law(module, directory):
    """A disk that writes something else costs no checkpoint that stood before."""

    def lying(path, run):
        numpy_ref.save_checkpoint(path, run)
        flip(path, -1)

    save_newest(numpy_ref, directory, at(RUN, 1), retention=Retention(1))
    try:
        module.save_newest(SimpleNamespace(save_checkpoint=lying), directory, at(RUN, 2), retention=Retention(1))
    except CorruptCheckpoint:
        return steps_in(directory) == [1, 2]
    return False


@pytest.mark.parametrize("check", [lambda path: None, store.read_manifest], ids=["not at all", "the header"])
def test_a_save_that_is_not_verified_before_the_deletion_is_caught(tmp_path, monkeypatch, check):
    assert verified_law(store, tmp_path / "ours")
    monkeypatch.setattr(store, "verify_container", check)
    assert not verified_law(store, tmp_path / "mutant")


# What a run that goes on for days may meet


def test_a_damaged_checkpoint_takes_no_place_of_a_whole_one_and_is_not_removed(tmp_path, impl, run, after):
    retention = Retention(keep_last=3)
    for step in (1, 2, 3, 4, 5):
        save_newest(impl, tmp_path, after(run, step), retention=Retention(keep_last=0))
    for step in (3, 4):
        flip(checkpoint_path(tmp_path, step), -1)
    may_go = [entry.step for entry in survey(tmp_path, retention=retention).superfluous]
    save_newest(impl, tmp_path, after(run, 6), retention=retention)
    assert [entry.step for entry in list_checkpoints(tmp_path).entries] == [2, 3, 4, 5, 6]
    assert may_go == []
    assert survey(tmp_path, retention=retention).superfluous == []


def test_rotation_that_trusts_headers_is_caught(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_is_whole", lambda path: True)
    run = numpy_ref.init_run(CONFIG, DATA)
    for step in (1, 2, 3):
        save_newest(numpy_ref, tmp_path, numpy_ref.train_n_steps(run, DATA, step), retention=Retention(keep_last=0))
    flip(checkpoint_path(tmp_path, 2), -1)
    save_newest(numpy_ref, tmp_path, numpy_ref.train_n_steps(run, DATA, 4), retention=Retention(keep_last=3))
    assert not checkpoint_path(tmp_path, 1).exists()  # a whole one, in whose place a damaged one stays


def test_each_checkpoint_is_read_whole_once_in_a_process(tmp_path, monkeypatch):
    run, reads = numpy_ref.init_run(CONFIG, DATA), []
    verify = store.verify_container
    monkeypatch.setattr(store, "verify_container", lambda path: reads.append(path.name) or verify(path))
    for step in range(1, 7):
        save_newest(numpy_ref, tmp_path, numpy_ref.train_n_steps(run, DATA, step), retention=Retention(keep_last=2))
    assert reads == [checkpoint_path("", step).name for step in range(1, 7)]


@pytest.mark.skipif(store.fcntl is None, reason="this system has no locks")
def test_a_directory_that_was_moved_away_is_made_anew_and_held(tmp_path, impl, run, after):
    directory = tmp_path / "run"
    directory.mkdir()
    with sole_writer(directory):
        save_newest(impl, directory, after(run, 1), retention=Retention(2))
        directory.rename(tmp_path / "moved")
        save_newest(impl, directory, after(run, 2), retention=Retention(2))
        with pytest.raises(CheckpointError, match="found another process"), sole_writer(directory):
            pass
        save_newest(impl, directory, after(run, 3), retention=Retention(2))
    assert [entry.step for entry in list_checkpoints(directory).entries] == [2, 3]
    assert [entry.step for entry in list_checkpoints(tmp_path / "moved").entries] == [1]
    with sole_writer(directory):
        pass


@pytest.mark.skipif(store.fcntl is None, reason="this system has no locks")
def test_a_run_never_writes_into_the_directory_of_another_that_took_the_place_of_its_own(tmp_path, impl, run, after):
    directory = tmp_path / "run"
    directory.mkdir()
    with sole_writer(directory):
        directory.rename(tmp_path / "moved")
        directory.mkdir()
        with pytest.raises(CheckpointError, match="was moved or removed and another one stands there"):
            save_newest(impl, directory, after(run, 1), retention=Retention(2))
    assert os.listdir(directory) == []


def test_a_link_to_nowhere_is_not_none_yet(tmp_path, impl):
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "unmounted")
    for use in (lambda: resume_newest(impl, link, DATA), lambda: survey(link), lambda: store.prepare(link)):
        with pytest.raises(CheckpointError, match="found a link to"):
            use()
    assert not (tmp_path / "unmounted").exists()
