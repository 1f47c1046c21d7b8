"""Saving beside training: what is written is the moment of the call, one write at a time, and no error is lost."""

import errno
import gc
import os
import signal
import threading
import weakref
from dataclasses import replace
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

import numpy_ref
import torch_port
from numpy_ref.checkpoint import background, read_checkpoint, store
from numpy_ref.checkpoint.background import BackgroundWriter
from numpy_ref.checkpoint.container import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint
from numpy_ref.checkpoint.disk import DISK, Disk
from numpy_ref.checkpoint.store import Retention, checkpoint_path, list_checkpoints, resume_newest, save_newest
from numpy_ref.config import RunConfig
from numpy_ref.interrupt import STATUS
from numpy_ref.proof.equivalence import digest
from numpy_ref.tree import flatten
from parity_tests.commands import python
from parity_tests.implementations import EACH, NO_TORCH
from parity_tests.strategies import small_data

DATA = small_data()
CONFIG = RunConfig(hidden=(3,), batch_size=4, evaluate_every=2, batch_norm=True, dropout=0.3)
PATIENCE = 60  # seconds after which a test that waits for a thread has failed


@pytest.fixture(params=EACH)
def impl(request):
    return request.param


@pytest.fixture
def run(impl):
    return impl.init_run(CONFIG, DATA)


def contents(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def steps_in(directory):
    return [entry.step for entry in list_checkpoints(directory).entries]


def set_disk(monkeypatch, name, method):
    """Let a call of the disk be this; the method takes the real one first."""
    real = getattr(Disk, name)
    monkeypatch.setattr(DISK, name, lambda *arguments: method(lambda: real(DISK, *arguments)), raising=False)


class Gate:
    """A disk that does not begin a write before it is let."""

    def __init__(self, monkeypatch):
        self.reached, self.open = threading.Event(), threading.Event()
        set_disk(monkeypatch, "open_new", self.wait)

    def wait(self, go_on):
        self.reached.set()
        assert self.open.wait(PATIENCE)
        return go_on()


class Slowest:
    """A thread that does nothing before it is waited for: the slowest disk there can be."""

    alive = 0  # threads begun and not waited for
    most = 0

    def __init__(self, target, args, daemon):
        self.work = lambda: target(*args)

    def start(self):
        Slowest.alive += 1
        Slowest.most = max(Slowest.most, Slowest.alive)

    def join(self):
        self.work()
        Slowest.alive -= 1


def failing(failures, code=errno.ENOSPC):
    """A call of the disk that fails so many times."""

    def call(go_on):
        if failures:
            failures.pop()
            raise OSError(code, os.strerror(code))
        return go_on()

    return call


# The moment of the call


def test_save_returns_before_anything_is_written_and_training_goes_on_beside_it(tmp_path, impl, run, monkeypatch):
    run = impl.train_n_steps(run, DATA, 5)
    impl.save_checkpoint(tmp_path / "at once", run)
    gate = Gate(monkeypatch)
    with BackgroundWriter(impl, tmp_path / "run", retention=Retention(1)) as writer:
        path = writer.save(run)
        assert gate.reached.wait(PATIENCE)  # nothing has been written so far: all that training waited for is a copy
        run = impl.train_n_steps(run, DATA, 7)
        assert list((tmp_path / "run").iterdir()) == []
        gate.open.set()
    assert path == checkpoint_path(tmp_path / "run", 5)
    assert path.read_bytes() == (tmp_path / "at once").read_bytes()
    assert read_checkpoint(path).state.optimizer.t == 5
    assert run.step == 12


def moment_law(impl, directory, monkeypatch):
    """The file holds the state at the call, whatever happens to the run afterwards."""
    monkeypatch.setattr(background, "Thread", Slowest)
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, 5)
    expected = digest(impl.snapshot(run))
    try:
        with BackgroundWriter(impl, directory, retention=Retention(1)) as writer:
            path = writer.save(run)
            if isinstance(run, numpy_ref.Run):  # its training changes no run; a user can
                run.state.model["layer0.weight"][0, 0] += 1
            else:
                impl.train_n_steps(run, DATA, 4)
    except ValueError:  # a state that contradicts itself is refused
        return False
    return digest(read_checkpoint(path).state) == expected


def test_the_moment_of_the_call_is_saved_even_by_the_slowest_disk(tmp_path, impl, monkeypatch):
    assert moment_law(impl, tmp_path, monkeypatch)


def test_a_snapshot_by_reference_is_caught(tmp_path, impl, monkeypatch):
    live = (lambda run: run.state) if impl is numpy_ref else import_module(f"{impl.__name__}.train").live_state
    replaced = {"snapshot": lambda run, into=None: live(run)}
    mutant = SimpleNamespace(**{name: getattr(impl, name) for name in impl.__all__} | replaced)
    assert not moment_law(mutant, tmp_path, monkeypatch)


def test_a_directory_written_beside_training_is_the_one_that_save_newest_writes(tmp_path, impl, run):
    retention, steps = Retention(2, keep_every=4, keep_best=True), [1, 2, 1, 3, 2, 1, 1]
    start, run_id = impl.snapshot(run), run.run_id
    with BackgroundWriter(impl, tmp_path / "beside", retention=retention) as writer:
        for n in steps:
            run = impl.train_n_steps(run, DATA, n)
            writer.save(run)
    again = impl.restore(CONFIG, start, run_id=run_id, fingerprint=DATA.fingerprint)
    for n in steps:
        again = impl.train_n_steps(again, DATA, n)
        save_newest(impl, tmp_path / "at once", again, retention=retention)
    assert contents(tmp_path / "beside") == contents(tmp_path / "at once")
    resumed = resume_newest(impl, tmp_path / "beside", DATA).run
    assert digest(impl.snapshot(resumed)) == digest(impl.snapshot(run))


def test_a_relative_directory_is_below_the_current_one_when_the_writer_was_made(tmp_path, run, impl, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    gate = Gate(monkeypatch)
    with BackgroundWriter(impl, "my läufe", retention=Retention(1)) as writer:
        path = writer.save(run)
        monkeypatch.chdir(tmp_path / "elsewhere")
        gate.open.set()
    assert path == checkpoint_path(tmp_path / "my läufe", 0)
    assert read_checkpoint(path).step == 0
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_what_was_written_is_held_no_longer(tmp_path):
    kept = []

    def snapshot(run, into):
        state = numpy_ref.snapshot(run, into=into)
        kept.append(weakref.ref(state.model["layer0.weight"]))
        return state

    impl = SimpleNamespace(snapshot=snapshot, environment=numpy_ref.environment)
    with BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer:
        writer.save(numpy_ref.init_run(CONFIG, DATA))
    gc.collect()
    assert (writer._thread, kept[0]()) == (None, None)


def test_each_save_after_the_first_uses_the_memory_of_the_one_before(tmp_path, impl, monkeypatch):
    monkeypatch.setattr(background, "Thread", Slowest)
    run, places, expected = impl.init_run(CONFIG, DATA), [], []
    with BackgroundWriter(impl, tmp_path, retention=Retention(0)) as writer:
        for _ in range(3):
            run = impl.train_n_steps(run, DATA, 1)
            expected.append(digest(impl.snapshot(run)))
            path = writer.save(run)
            leaves = flatten(writer._snapshot)
            places.append({name: leaf.ctypes.data for name, leaf in leaves.items() if isinstance(leaf, np.ndarray)})
    assert places[0] == places[1] == places[2]
    assert len(places[0]) > 12
    found = [digest(read_checkpoint(checkpoint_path(tmp_path, step)).state) for step in (1, 2, 3)]
    assert (found, path) == (expected, checkpoint_path(tmp_path, 3))


def test_the_memory_of_another_run_serves_where_it_fits(impl):
    other = impl.snapshot(impl.init_run(replace(CONFIG, hidden=(5,)), DATA))
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, 3)
    assert digest(impl.snapshot(run, into=other)) == digest(impl.snapshot(run))


# One write at a time


def one_at_a_time_law(directory, monkeypatch):
    """No write begins before the one before it has ended, and each is there in the end."""
    monkeypatch.setattr(background, "Thread", Slowest)
    monkeypatch.setattr(Slowest, "alive", 0)
    monkeypatch.setattr(Slowest, "most", 0)
    run = numpy_ref.init_run(CONFIG, DATA)
    with BackgroundWriter(numpy_ref, directory, retention=Retention(0)) as writer:
        for _ in range(3):
            run = numpy_ref.train_n_steps(run, DATA, 1)
            writer.save(run)
    return (Slowest.most, Slowest.alive, steps_in(directory)) == (1, 0, [1, 2, 3])


def test_at_most_one_write_is_under_way_and_leaving_waits_for_the_last(tmp_path, monkeypatch):
    assert one_at_a_time_law(tmp_path, monkeypatch)


@pytest.mark.parametrize("method", ["_finish", "__exit__"])
def test_a_writer_that_does_not_wait_is_caught(tmp_path, monkeypatch, method):
    monkeypatch.setattr(BackgroundWriter, method, lambda self, *error: None)
    assert not one_at_a_time_law(tmp_path, monkeypatch)


def test_outside_its_context_a_writer_refuses(tmp_path, impl, run):
    writer = BackgroundWriter(impl, tmp_path, retention=Retention(1))
    with pytest.raises(ValueError, match="expected save within its context, found it outside"):
        writer.save(run)
    with writer:
        writer.save(run)
    with pytest.raises(ValueError, match="expected save within its context, found it outside"):
        writer.save(run)
    assert steps_in(tmp_path) == [0]


# Errors


@pytest.mark.parametrize("call", ["open_new", "write", "flush", "fsync", "replace"])
def test_an_error_is_raised_once_at_the_next_save_and_names_the_file(tmp_path, impl, run, monkeypatch, call):
    monkeypatch.setattr(background, "Thread", Slowest)  # each write is made when the next save waits for it
    with BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer:
        writer.save(run)
        run = impl.train_n_steps(run, DATA, 1)
        path = writer.save(run)
        set_disk(monkeypatch, call, failing([True]))
        run = impl.train_n_steps(run, DATA, 1)
        with pytest.raises(OSError, match="No space left") as caught:
            writer.save(run)
        assert f"This was the save of {path}, beside training." in caught.value.__notes__
        assert contents(tmp_path).keys() == {"step-00000000.safetensors"}  # nor is a temporary left
        writer.save(run)
    assert contents(tmp_path).keys() == {"step-00000002.safetensors"}


@pytest.mark.parametrize("call", ["open_new", "write", "flush", "fsync", "replace", "fsync_directory"])
def test_an_error_of_the_last_write_is_raised_on_leaving_and_the_good_checkpoint_stands(
    tmp_path, impl, run, monkeypatch, call
):
    save_newest(impl, tmp_path, run, retention=Retention(1))
    good = digest(impl.snapshot(run))
    set_disk(monkeypatch, call, failing([True], errno.EIO))
    with (
        pytest.raises(OSError, match=os.strerror(errno.EIO)) as caught,
        BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer,
    ):
        path = writer.save(impl.train_n_steps(run, DATA, 1))
    assert any(str(path) in note for note in caught.value.__notes__)
    assert 0 in steps_in(tmp_path)
    assert digest(read_checkpoint(checkpoint_path(tmp_path, 0)).state) == good
    resume_newest(impl, tmp_path, DATA)


def test_an_exception_of_the_training_itself_goes_on_with_a_note_of_the_save_that_failed(
    tmp_path, impl, run, monkeypatch
):
    def training(error):
        with BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer:
            writer.save(run)
            raise error

    for error in (FloatingPointError("diverged"), KeyboardInterrupt()):
        set_disk(monkeypatch, "fsync", failing([True]))
        with pytest.raises(type(error)) as caught:
            training(error)
        assert caught.value is error
        assert "Beside this, a save failed: [Errno 28] No space left on device" in error.__notes__[0]
        assert str(checkpoint_path(tmp_path, 0)) in error.__notes__[0]
        assert list(tmp_path.iterdir()) == []
    with pytest.raises(ZeroDivisionError) as caught:
        training(ZeroDivisionError())
    assert not hasattr(caught.value, "__notes__")
    assert steps_in(tmp_path) == [0]


def test_what_the_disk_did_not_keep_and_what_may_not_be_replaced_are_errors_too(tmp_path, impl, run, monkeypatch):
    save_newest(impl, tmp_path, run, retention=Retention(1))
    run = impl.train_n_steps(run, DATA, 1)
    path = checkpoint_path(tmp_path, 1)
    impl.save_weights(path, run)
    with (
        pytest.raises(IncompatibleCheckpoint, match="found kind 'weights'"),
        BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer,
    ):
        writer.save(run)
    path.unlink()

    def damaging(go_on):
        go_on()
        content = bytearray(path.read_bytes())
        content[-1] ^= 1
        path.write_bytes(content)

    set_disk(monkeypatch, "replace", damaging)
    with (
        pytest.raises(CorruptCheckpoint, match=r"step-00000001.safetensors"),
        BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer,
    ):
        writer.save(run)
    assert contents(tmp_path).keys() == {"step-00000000.safetensors", "step-00000001.safetensors"}


def test_a_state_that_could_not_be_loaded_is_refused_and_told(tmp_path):
    run = numpy_ref.init_run(CONFIG, DATA)
    broken = run._replace(state=run.state._replace(mode="both"))
    with (
        pytest.raises(ValueError, match="mode: expected 'train' or 'eval', found 'both'"),
        BackgroundWriter(numpy_ref, tmp_path, retention=Retention(1)) as writer,
    ):
        writer.save(broken)
    assert list(tmp_path.iterdir()) == []


@NO_TORCH
def test_a_run_that_training_has_used_up_is_refused_at_once(tmp_path):
    run = torch_port.init_run(CONFIG, DATA)
    torch_port.train_n_steps(run, DATA, 1)
    with BackgroundWriter(torch_port, tmp_path, retention=Retention(1)) as writer:
        with pytest.raises(RuntimeError, match="expected a live run"):
            writer.save(run)
        assert list(tmp_path.iterdir()) == []


def errors_law(directory, monkeypatch):
    """How often the error of one failed write is raised, with a save after it and with none."""
    raised = []
    for later in (0, 2):
        with monkeypatch.context() as patch:
            set_disk(patch, "fsync", failing([True]))
            run = numpy_ref.init_run(CONFIG, DATA)
            try:
                with BackgroundWriter(numpy_ref, directory, retention=Retention(1)) as writer:
                    writer.save(run)
                    for _ in range(later):
                        try:
                            writer.save(run)
                        except OSError:
                            raised.append("at a save")
            except OSError:
                raised.append("on leaving")
    return raised


def raised_again(self, real=BackgroundWriter._finish):
    failure = self._failure = real(self) or self._failure
    return failure


def swallowed_on_leaving(self, *error, real=BackgroundWriter._finish):
    real(self)


def swallowed_at_the_next_save(self, run, real=BackgroundWriter.save):
    self._finish()
    return real(self, run)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("_finish", lambda self, real=BackgroundWriter._finish: real(self) and None),
        ("_finish", raised_again),
        ("__exit__", swallowed_on_leaving),
        ("save", swallowed_at_the_next_save),
    ],
)
def test_an_error_that_is_swallowed_or_raised_twice_is_caught(tmp_path, monkeypatch, method, wrong):
    assert errors_law(tmp_path / "ours", monkeypatch) == ["on leaving", "at a save"]
    monkeypatch.setattr(BackgroundWriter, method, wrong)
    assert errors_law(tmp_path / "mutant", monkeypatch) != ["on leaving", "at a save"]


# The end of the process

LEFT_OPEN = """
import sys, threading
import numpy_ref
from numpy_ref.checkpoint import background, store
from numpy_ref.checkpoint.disk import DISK, Disk
from parity_tests.strategies import small_data

directory, creator, fault = sys.argv[1:]
if fault:
    daemon = {"daemon": True, "none": None}[fault]
    background.Thread = lambda target, args, **more: threading.Thread(target=target, args=args, daemon=daemon)

def open_new(*arguments):
    threading.main_thread().join()  # nothing is written before the main thread has come to its end
    threading.Event().wait(0.3)  # and some time after, in which a thread that is not waited for dies
    return Disk.open_new(DISK, *arguments)

DISK.open_new = open_new
data = small_data()
run = numpy_ref.init_run(numpy_ref.RunConfig(hidden=(3,), batch_size=4), data)
writer = background.BackgroundWriter(numpy_ref, directory, retention=store.Retention(1)).__enter__()
if creator == "main":
    writer.save(run)
else:
    thread = threading.Thread(target=writer.save, args=(run,), daemon=True)
    thread.start()
    thread.join()
"""


@pytest.mark.parametrize(("creator", "fault"), [("main", ""), ("daemon", ""), ("main", "daemon"), ("daemon", "none")])
def test_the_interpreter_ends_after_the_write_even_if_the_context_is_never_left(tmp_path, creator, fault):
    done = python("-c", LEFT_OPEN, tmp_path / "run", creator, fault, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert steps_in(tmp_path / "run") == ([] if fault else [0])


KILLED = """
import os, signal, sys
import numpy_ref
from numpy_ref.checkpoint import background, store
from numpy_ref.checkpoint.disk import DISK
from parity_tests.strategies import small_data

directory, call = sys.argv[1:]
data = small_data()
run = numpy_ref.init_run(numpy_ref.RunConfig(hidden=(3,), batch_size=4), data)
with store.sole_writer(directory):
    with background.BackgroundWriter(numpy_ref, directory, retention=store.Retention(1)) as writer:
        for _ in range(2):
            run = numpy_ref.train_n_steps(run, data, 1)
            writer.save(run)
    setattr(DISK, call, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
    with background.BackgroundWriter(numpy_ref, directory, retention=store.Retention(1)) as writer:
        run = numpy_ref.train_n_steps(run, data, 1)
        writer.save(run)
        numpy_ref.train_n_steps(run, data, 1000)
"""


@pytest.mark.parametrize("call", ["write", "fsync", "replace", "fsync_directory", "unlink"])
def test_a_kill_during_a_write_leaves_the_previous_checkpoint_or_the_new_one(tmp_path, call):
    done = python("-c", KILLED, tmp_path, call, cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL, done.stderr
    replaced = call in ("fsync_directory", "unlink")
    resumed = resume_newest(numpy_ref, tmp_path, DATA)
    assert (resumed.run.step, resumed.passed_over) == (3 if replaced else 2, [])
    told = store.survey(tmp_path)
    assert [file.state for file in told.entries] == ["whole"] * (2 if replaced else 1)
    assert len(told.stale) == (0 if replaced else 1)
    with store.sole_writer(tmp_path):
        assert store.survey(tmp_path).stale == []
    assert steps_in(tmp_path) == ([2, 3] if replaced else [2])
    save_newest(numpy_ref, tmp_path, numpy_ref.train_n_steps(resumed.run, DATA, 2), retention=Retention(1))
    assert steps_in(tmp_path) == [resumed.run.step + 2]


def test_a_reader_beside_the_writer_sees_whole_checkpoints_that_never_grow_older(tmp_path, impl, run):
    """Some hundred reads while every save removes what was the newest before."""
    save_newest(impl, tmp_path, run, retention=Retention(1))
    done, seen, faults = threading.Event(), [], []

    def read():
        while not done.is_set():
            try:
                found = resume_newest(numpy_ref, tmp_path, DATA)
                seen.append(found.run.step)
                faults.extend(found.passed_over)
            except CheckpointError as error:
                faults.append(str(error))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        with BackgroundWriter(impl, tmp_path, retention=Retention(1)) as writer:
            for _ in range(40):
                run = impl.train_n_steps(run, DATA, 1)
                writer.save(run)
    finally:
        done.set()
        reader.join()
    assert faults == []
    assert seen == sorted(seen)


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="threads here have no masks of signals")
def test_the_thread_leaves_signals_to_the_main_one(tmp_path, monkeypatch):
    masks = []
    real = background.write_run
    monkeypatch.setattr(
        background, "write_run", lambda *a: masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, ())) or real(*a)
    )
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with BackgroundWriter(numpy_ref, tmp_path, retention=Retention(1)) as writer:
        writer.save(numpy_ref.init_run(CONFIG, DATA))
    assert set(STATUS) <= set(masks[0])
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
