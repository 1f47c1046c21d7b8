"""Signals: the first is a flag and loses nothing, the second ends the process and damages nothing; both packages."""

import contextlib
import functools
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import numpy_ref
from numpy_ref import interrupt
from numpy_ref.checkpoint import store
from numpy_ref.checkpoint.save_and_resume import read_checkpoint
from numpy_ref.checkpoint.store import checkpoint_path
from numpy_ref.cli import main, training
from numpy_ref.interrupt import STATUS, Interruption
from numpy_ref.proof.equivalence import digest
from parity_tests.commands import ROOT, Answer, python, strict_json
from parity_tests.implementations import EACH

pytestmark = pytest.mark.skipif(os.name == "nt", reason="Windows has no signals between processes")

SIGNALS = list(STATUS)
TOTAL, EVERY = 9, 3
WORDS = ["--hidden", "3", "--batch-size", "4", "--every", EVERY, "--evaluate-every", "2", "--dropout", "0.3"]

CALL, UPDATE, EVALUATION, BETWEEN = "call", "update", "evaluation", "between"
DISK = ["write", "fsync", "replace", "fsync_directory"]
MOMENTS = [CALL, UPDATE, EVALUATION, BETWEEN, *DISK]
LOADING = "loading"


@contextlib.contextmanager
def guarded() -> Iterator[None]:
    """Handlers that no signal may reach, and that must stand again in the end."""

    def reached(number: int, frame: Any) -> None:
        raise AssertionError(f"{signal.Signals(number).name} reached the handler that stood there before")

    before = {number: signal.signal(number, reached) for number in SIGNALS}
    try:
        yield
        assert [signal.getsignal(number) for number in SIGNALS] == [reached] * len(SIGNALS)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# The flag


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted_and_once_it_is_read_each_has_its_default_action(number: signal.Signals) -> None:
    with guarded(), Interruption() as interruption:
        assert (interruption.requested, interruption()) == (None, False)
        signal.raise_signal(number)
        assert signal.SIG_DFL not in {signal.getsignal(each) for each in SIGNALS}  # or one that came with it is lost
        assert (interruption.requested, interruption()) == (number, True)
        assert {signal.getsignal(each) for each in SIGNALS} == {signal.SIG_DFL}


def test_the_statuses_are_those_that_schedulers_and_shells_know() -> None:
    assert {number.name: status for number, status in STATUS.items()} == {"SIGTERM": 75, "SIGINT": 130, "SIGUSR1": 75}
    assert os.EX_TEMPFAIL == 75


def test_handlers_are_what_they_were_after_an_error_too() -> None:
    def fail() -> None:
        with Interruption() as interruption:
            signal.raise_signal(signal.SIGTERM)
            assert interruption()
            raise ZeroDivisionError

    with guarded(), pytest.raises(ZeroDivisionError):
        fail()


def test_an_ignored_signal_stays_ignored() -> None:
    with guarded():
        handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            with Interruption() as interruption:
                signal.raise_signal(signal.SIGINT)
                assert not interruption()
                signal.raise_signal(signal.SIGTERM)
                assert interruption.requested == signal.SIGTERM
                assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
            assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        finally:
            signal.signal(signal.SIGINT, handler)


def test_another_thread_is_refused_with_its_name_and_changes_no_handler() -> None:
    refusals = []

    def enter() -> None:
        try:
            with Interruption():
                pass
        except ValueError as error:
            refusals.append(str(error))

    with guarded():
        thread = threading.Thread(target=enter, name="helper")
        thread.start()
        thread.join()
    (refusal,) = refusals
    assert "expected the main thread" in refusal
    assert "'helper'" in refusal


def test_a_signal_that_another_thread_receives_is_noted() -> None:
    end = threading.Event()
    with guarded(), Interruption() as interruption:
        thread = threading.Thread(target=end.wait)
        thread.start()
        try:
            signal.pthread_kill(thread.ident or 0, signal.SIGUSR1)
            deadline = time.monotonic() + 600
            while not interruption() and time.monotonic() < deadline:
                thread.join(0.01)
            assert interruption.requested == signal.SIGUSR1
        finally:
            end.set()
            thread.join()


def test_a_loop_in_another_thread_can_be_asked_to_stop() -> None:
    answers: list[bool] = []
    with guarded(), Interruption() as interruption:
        signal.raise_signal(signal.SIGTERM)
        thread = threading.Thread(target=lambda: answers.append(interruption()))
        thread.start()
        thread.join()
    assert answers == [True]


SECOND = """
import signal, sys
from numpy_ref.interrupt import Interruption
first, second = (signal.Signals[name] for name in sys.argv[1:])
for number in (first, second):
    signal.signal(number, signal.default_int_handler)  # whatever this process was started with
with Interruption() as interruption:
    {send}
    print("still here")
"""
APART = (
    "signal.raise_signal(first); print('noted', interruption.requested.name, flush=True); signal.raise_signal(second)"
)
TOGETHER = """signal.pthread_sigmask(signal.SIG_BLOCK, [first, second])
    signal.raise_signal(first); signal.raise_signal(second)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [first, second])"""


@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_ends_the_process_as_if_it_had_never_been_handled(
    tmp_path: Path, second: signal.Signals
) -> None:
    done = python("-c", SECOND.format(send=APART), "SIGTERM", second.name, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-second, "noted SIGTERM\n", "")


def test_an_interruption_that_ignores_the_second_signal_is_found(tmp_path: Path) -> None:
    """The test above would see its process go on."""
    ignoring = "Interruption._handle = lambda self, number, frame: setattr(self, 'requested', signal.Signals(number))"
    program = SECOND.format(send=APART).replace("with Interruption", f"{ignoring}\nwith Interruption")
    done = python("-c", program, "SIGTERM", "SIGINT", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "noted SIGTERM\nstill here\n")


def test_two_signals_at_once_end_the_process(tmp_path: Path) -> None:
    """Both have come before Python acts on the first."""
    done = python("-c", SECOND.format(send=TOGETHER), "SIGINT", "SIGTERM", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGTERM, "", "")


def test_the_second_signal_ends_a_call_that_never_returns_to_python(tmp_path: Path) -> None:
    endless = "signal.raise_signal(first); print(interruption(), flush=True); sum(range(10**18))"
    with child(SECOND.format(send=endless), "SIGTERM", "SIGINT", cwd=tmp_path) as process:
        assert process.stdout.readline() == "True\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(600) == -signal.SIGINT


@contextlib.contextmanager
def child(program: str, *words: object, cwd: Path) -> Iterator[Any]:
    """A process that runs a program, with pipes to and from it; it does not outlive this."""
    command = [sys.executable, "-c", program, *map(str, words)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=cwd, env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True, **pipes) as process:
        try:
            yield process
        finally:
            process.kill()


# Training


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set in a file."""
    path = tmp_path_factory.mktemp("data") / "small.npz"
    rng = np.random.default_rng(5)
    np.savez(path, inputs=rng.standard_normal((23, 3)), labels=rng.integers(0, 3, 23))
    return path


@pytest.fixture(scope="module")
def never_stopped(data: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the state after all steps of a run that no signal met."""
    folder = tmp_path_factory.mktemp("never stopped")
    assert train(numpy_ref, data, folder).status == 0
    return final(folder)


def train(impl: Any, data: Path, folder: Path, *words: object) -> Answer:
    """The command in this process."""
    out, err = io.StringIO(), io.StringIO()
    arguments = ["train", "--data", data, "--dir", folder, "--steps", TOTAL, *WORDS, *words]
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main(impl, [str(word) for word in arguments])
    return Answer(status, out.getvalue(), err.getvalue())


def final(folder: Path) -> str:
    """The digest of the state at the end."""
    return digest(read_checkpoint(checkpoint_path(folder, TOTAL)).state)


def place_of(impl: Any, moment: str) -> tuple[str, str]:
    """What is called at a moment of training: its module and its name there."""
    evaluation = "_evaluate" if impl is numpy_ref else "evaluate"
    training = f"{impl.__name__}.train"
    places = {UPDATE: (training, "_train_step"), EVALUATION: (training, evaluation)}
    places |= {LOADING: (impl.__name__, "load_data"), CALL: (impl.__name__, "train_n_steps")}
    places |= {BETWEEN: ("numpy_ref.console", "Progress.show")}
    return places.get(moment, ("numpy_ref.checkpoint.durable", f"Disk.{moment}"))


def step_at(moment: str, visit: int) -> int:
    """The step after which a run stops that a signal meets at this visit of a moment."""
    if moment in (UPDATE, BETWEEN):
        return visit
    if moment == EVALUATION:
        return 2 * visit
    if moment == CALL:
        return EVERY * (visit - 1)  # saved already, unless it is step 0
    return EVERY if moment == "write" else EVERY * visit  # the first save makes more writes than are visited


class Trial:
    """A command during which a signal comes at one visit of a moment, before the work of that moment is done."""

    def __init__(self, impl: Any, moment: str, visit: int, number: signal.Signals) -> None:
        self.impl, self.moment, self.visit, self.number = impl, moment, visit, number
        self.visits = 0
        self.replaced: list[str] = []

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        module, name = place_of(self.impl, self.moment)
        with pytest.MonkeyPatch.context() as patch, guarded():
            _wrap(
                patch,
                "numpy_ref.checkpoint.durable",
                "Disk.replace",
                lambda disk, source, target: self.replaced.append(target),
            )
            _wrap(patch, module, name, self._visit)
            yield

    def _visit(self, *arguments: Any, **options: Any) -> None:
        self.visits += 1
        if self.visits == self.visit:
            os.kill(os.getpid(), self.number)


def _wrap(patch: pytest.MonkeyPatch, module: str, name: str, before: Any) -> None:
    """Have something called before a function of a module or of one of its classes."""
    *path, last = name.split(".")
    owner = functools.reduce(getattr, path, import_module(module))
    real = getattr(owner, last)

    def wrapped(*arguments: Any, **options: Any) -> Any:
        before(*arguments, **options)
        return real(*arguments, **options)

    patch.setattr(owner, last, wrapped)


def stop_told(answer: Answer) -> tuple[str, int, Path] | None:
    """The signal, the step and the file that the command tells of when it stops early."""
    line = r"^interrupted by (\w+) after step (\d+): saved (.*); the same command goes on from it$"
    found = re.search(line, answer.err, re.MULTILINE)
    return None if found is None else (found[1], int(found[2]), Path(found[3]))


def faults_of_stopping(trial: Trial, data: Path, expected: str, *words: object) -> list[str]:
    """What goes wrong when a signal comes and the same command is run again; nothing does."""
    with tempfile.TemporaryDirectory() as temporary:
        folder, faults = Path(temporary), []
        try:
            with trial.under_way():
                answer = train(trial.impl, data, folder, *words)
        except AssertionError as error:
            return [str(error)]
        step = step_at(trial.moment, trial.visit)
        stopped = stop_told(answer)
        if stopped and "--background" in words and trial.moment in DISK:
            step = stopped[1]  # training goes on beside the save, perhaps to its end
        if step < TOTAL and stopped is None and not ("--background" in words and trial.moment in DISK):
            faults.append(f"did not stop after step {step}: {answer}")
        if stopped is None and answer.status != 0:
            faults.append(f"no word of a stop, and no success: {answer}")
        if stopped is not None:
            if stopped != (trial.number.name, step, checkpoint_path(folder, step)) or step >= TOTAL:
                faults.append(f"expected a stop after step {step}, found {stopped}")
            if answer.status != STATUS[trial.number]:
                faults.append(f"expected the status {STATUS[trial.number]}, found {answer.status}")
            if not stopped[2].exists() or read_checkpoint(stopped[2]).step != stopped[1]:
                faults.append(f"{stopped[2]} is not there, or of another step")
        if len(set(trial.replaced)) < len(trial.replaced):
            faults.append(f"a step was saved twice: {trial.replaced}")
        if any(name.startswith(".") for name in os.listdir(folder)):
            faults.append(f"a temporary is left: {os.listdir(folder)}")
        again = train(trial.impl, data, folder, *words)
        if again.status != 0 or (stopped and f"at step {stopped[1]}" not in again.out):
            faults.append(f"the same command does not go on: {again}")
        if final(folder) != expected:
            faults.append("not the run that never stopped")
    return faults


@pytest.mark.parametrize(
    ("impl", "moment"),
    [
        pytest.param(each.values[0], moment, marks=[*each.marks, *([] if moment in here else [pytest.mark.campaign])])
        for each, here in zip(EACH, ([CALL, UPDATE, EVALUATION, "replace"], [UPDATE]), strict=True)
        for moment in MOMENTS
    ],
)
def test_a_signal_at_any_moment_of_training_loses_nothing(
    data: Path, never_stopped: str, impl: Any, moment: str
) -> None:
    """Also when it comes in the last step, evaluation or save, after which nothing is left to stop."""
    last = {UPDATE: TOTAL, BETWEEN: TOTAL, EVALUATION: TOTAL // 2, "write": 5}.get(moment, TOTAL // EVERY)
    words = st.sampled_from([[], ["--background"]])

    @settings(max_examples=6)
    @given(st.integers(1, last), st.sampled_from(SIGNALS), words)
    def law(visit: int, number: signal.Signals, words: list[str]) -> None:
        trial = Trial(impl, moment, visit, number)
        assert faults_of_stopping(trial, data, never_stopped, *words) == []
        assert trial.visits >= visit

    law()


def _late(handler: Any) -> Any:
    """A command that, having told of its stop, does one thing more."""
    real = training._report_stop

    def report(impl: Any, run: Any, *rest: Any) -> int:
        handler(impl, run, *rest)
        return real(impl, run, *rest)

    return report


@contextlib.contextmanager
def _saving_every_so_often(impl: Any, options: Any) -> Iterator[Any]:
    """Saves where a save is due anyway."""

    def save(run: Any) -> Path:
        path = checkpoint_path(options.dir, run.step)
        return path if run.step % EVERY else store.save_newest(impl, options.dir, run, retention=store.Retention(0))

    yield save


def _ended(*arguments: Any) -> None:
    raise KeyboardInterrupt


MUTANTS = {
    "flag ignored": (Interruption, "__call__", lambda self: False),
    "save skipped": (training, "_saving", _saving_every_so_often),
    "saved twice": (training, "_report_stop", _late(lambda impl, run, path, *rest: impl.save_checkpoint(path, run))),
    "step not finished": (Interruption, "_handle", _ended),
    "handlers not put back": (Interruption, "__exit__", lambda self, *error: None),
    "success told": (training, "STATUS", dict.fromkeys(STATUS, 0)),
    "not handled": (Interruption, "__enter__", lambda self: self),
    "nothing noted": (Interruption, "_handle", lambda self, number, frame: None),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_wrong_way_to_stop_is_found(
    data: Path, never_stopped: str, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(*MUTANTS[name])
    assert faults_of_stopping(Trial(numpy_ref, UPDATE, 4, signal.SIGTERM), data, never_stopped) != []


def test_a_stop_is_told_in_json_too_and_quiet_or_not(data: Path, tmp_path: Path) -> None:
    for words in (["--json"], ["--quiet"]):
        folder = tmp_path / words[0]
        with Trial(numpy_ref, UPDATE, 4, signal.SIGUSR1).under_way():
            answer = train(numpy_ref, data, folder, *words)
        assert answer.status == 75
        path = checkpoint_path(folder, 4)
        assert answer.err == f"interrupted by SIGUSR1 after step 4: saved {path}; the same command goes on from it\n"
        told = {"run_id": read_checkpoint(path).run_id, "step": 4, "checkpoint": str(path), "interrupted": "SIGUSR1"}
        assert (strict_json(answer.out) == told) if words == ["--json"] else (answer.out == "")
        assert strict_json(train(numpy_ref, data, folder, "--json").out)["interrupted"] is None


def test_a_command_that_would_refuse_its_own_directory_is_not_promised_to_go_on(data: Path, tmp_path: Path) -> None:
    with Trial(numpy_ref, UPDATE, 4, signal.SIGTERM).under_way():
        answer = train(numpy_ref, data, tmp_path, "--resume", "never")
    assert f"saved {checkpoint_path(tmp_path, 4)}; --resume auto goes on from it" in answer.err


@pytest.mark.parametrize("impl", EACH)
def test_a_signal_before_the_first_update_saves_what_is_not_saved_yet(
    data: Path, tmp_path: Path, never_stopped: str, monkeypatch: pytest.MonkeyPatch, impl: Any
) -> None:
    """A new run at step 0; a resumed one has its file already, and that is left as it is."""
    real = Interruption.__enter__

    def enter(self: Interruption) -> Interruption:
        entered = real(self)
        signal.raise_signal(signal.SIGTERM)
        return entered

    for step in (0, 4):
        with guarded(), monkeypatch.context() as patch:
            patch.setattr(Interruption, "__enter__", enter)
            answer = train(impl, data, tmp_path)
            before = checkpoint_path(tmp_path, step).stat()
            again = train(impl, data, tmp_path)
        for each in (answer, again):
            assert (each.status, stop_told(each)) == (75, ("SIGTERM", step, checkpoint_path(tmp_path, step)))
        assert checkpoint_path(tmp_path, step).stat() == before
        if step == 0:
            with Trial(impl, UPDATE, 4, signal.SIGTERM).under_way():
                assert train(impl, data, tmp_path).status == 75
    assert train(impl, data, tmp_path).status == 0
    assert final(tmp_path) == never_stopped


def test_training_in_another_thread_is_refused_before_any_step(data: Path, tmp_path: Path) -> None:
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(train(numpy_ref, data, tmp_path)))
    thread.start()
    thread.join()
    assert answers[0].status == 2
    assert "expected the main thread" in answers[0].err
    assert os.listdir(tmp_path) == []


# Signals from another process

MEETING = """
import functools, importlib, os, signal, sys
package, module, name, visit, *words = sys.argv[1:]
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever this process was started with
*path, last = name.split(".")
owner = functools.reduce(getattr, path, importlib.import_module(module))
real, visits = getattr(owner, last), []
def met(*arguments, **options):
    visits.append(last)
    while len(visits) == int(visit):
        os.write(1, b"here\\n")
        if os.read(0, 1) == b".":
            break
    return real(*arguments, **options)
setattr(owner, last, met)
from numpy_ref.cli import main
sys.exit(main(importlib.import_module(package), words))
"""


@contextlib.contextmanager
def met(impl: Any, moment: str, visit: int, data: Path, folder: Path, *words: object) -> Iterator[Any]:
    """The command in a process of its own, which stands still at a visit of a moment until it is released."""
    arguments = ["train", "--data", data, "--dir", folder, "--steps", TOTAL, *WORDS, *words, "--quiet"]
    places = [impl.__name__, *place_of(impl, moment), visit]
    with child(MEETING, *places, *arguments, cwd=folder.parent) as process:
        assert process.stdout.readline() == "here\n"
        yield process


def send(process: Any, number: signal.Signals) -> None:
    """Send a signal to a process that stands still; when it answers again it has handled the signal."""
    process.send_signal(number)
    process.stdin.write("?")
    process.stdin.flush()
    assert process.stdout.readline() == "here\n"


def ended(process: Any, again: signal.Signals | None) -> int:
    """The status of a process that ends; signals that come before the loop reads the first are one, so ask again."""
    deadline = time.monotonic() + 600
    while again is not None and process.poll() is None and time.monotonic() < deadline:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1)
        process.send_signal(again)
    return process.wait(600)


NUMPY, TORCH = EACH[0].values[0], EACH[1].values[0]


def with_torch(*values: Any) -> Any:
    return pytest.param(*values, marks=EACH[1].marks)


@pytest.mark.parametrize(
    ("impl", "moment", "number", "words"),
    [
        (NUMPY, UPDATE, signal.SIGTERM, []),
        pytest.param(NUMPY, EVALUATION, signal.SIGINT, [], marks=pytest.mark.campaign),
        pytest.param(NUMPY, "fsync", signal.SIGUSR1, [], marks=pytest.mark.campaign),
        (NUMPY, "write", signal.SIGTERM, ["--background"]),
        with_torch(TORCH, "fsync", signal.SIGTERM, []),
    ],
)
def test_a_process_that_is_asked_to_stop_saves_and_says_so_by_its_status(
    data: Path, tmp_path: Path, never_stopped: str, impl: Any, moment: str, number: signal.Signals, words: list[str]
) -> None:
    folder = tmp_path / "run"
    with met(impl, moment, 2, data, folder, *words) as process:
        send(process, number)
        _, err = process.communicate(".", timeout=600)
    step = step_at(moment, 2)
    stopped = stop_told(Answer(process.returncode, "", err))
    if words:  # training has gone on beside the save
        assert process.returncode == (0 if stopped is None else 75)
    else:
        assert stopped == (number.name, step, checkpoint_path(folder, step))
        assert process.returncode == STATUS[number]
    assert train(impl, data, folder).status == 0
    assert final(folder) == never_stopped


@pytest.mark.parametrize(
    ("impl", "moment", "words"),
    [
        (NUMPY, UPDATE, []),
        pytest.param(NUMPY, "write", [], marks=pytest.mark.campaign),
        (NUMPY, "replace", []),
        pytest.param(NUMPY, "fsync_directory", [], marks=pytest.mark.campaign),
        (NUMPY, "fsync", ["--background"]),
        pytest.param(TORCH, "fsync", [], marks=[*EACH[1].marks, pytest.mark.campaign]),
    ],
)
def test_a_second_signal_ends_the_process_at_once_and_damages_no_file(
    data: Path, tmp_path: Path, never_stopped: str, impl: Any, moment: str, words: list[str]
) -> None:
    folder = tmp_path / "run"
    assert train(NUMPY, data, folder, "--steps", 1).status == 0  # so that one stands there
    with met(impl, moment, 1, data, folder, *words) as process:
        send(process, signal.SIGTERM)
        process.send_signal(signal.SIGINT)
        ended_by = -ended(process, again=signal.SIGINT if words else None)
    # The one that stands still beside training does not know whether the first had been handled.
    assert ended_by in ((signal.SIGINT, signal.SIGTERM) if words else (signal.SIGINT,))
    found = store.survey(folder)
    assert found.resumed is not None
    assert {entry.state for entry in found.entries} == {"whole"}
    assert len(found.stale) == (moment in ("write", "fsync", "replace"))
    assert train(impl, data, folder).status == 0
    assert final(folder) == never_stopped
    assert [name for name in os.listdir(folder) if name.startswith(".")] == []


@pytest.mark.parametrize(
    ("number", "status", "told"), [(signal.SIGTERM, -signal.SIGTERM, ""), (signal.SIGINT, 130, "interrupted\n")]
)
def test_a_signal_before_there_is_anything_to_save_has_its_default_action(
    data: Path, tmp_path: Path, number: signal.Signals, status: int, told: str
) -> None:
    folder = tmp_path / "run"
    with met(NUMPY, LOADING, 1, data, folder) as process:
        process.send_signal(number)
        _, err = process.communicate(timeout=600)
    assert (process.returncode, err, folder.exists()) == (status, told, False)


LOOP = "until {command}; do s=$?; [ $s = 75 ] || exit $s; done"


def test_the_loop_that_the_module_shows_runs_a_command_to_its_end(
    data: Path, tmp_path: Path, never_stopped: str
) -> None:
    """Each process is asked to stop in its fourth update: three processes for nine steps."""
    assert " ".join(LOOP.format(command="COMMAND").split()) in " ".join((interrupt.__doc__ or "").split())
    program = (
        MEETING.partition("def met")[0]
        + (
            "def met(*arguments):\n"
            "    visits.append(os.write(1, b'x'))\n"
            "    if len(visits) == int(visit):\n"
            "        signal.raise_signal(signal.SIGTERM)\n"
            "    return real(*arguments)\n"
            "setattr(owner, last, met)"
        )
        + MEETING.partition("setattr(owner, last, met)")[2]
    )
    words = ["train", "--data", data, "--dir", tmp_path / "run", "--steps", TOTAL, *WORDS, "--quiet"]
    words = [sys.executable, "-c", program, "numpy_ref", *place_of(NUMPY, UPDATE), 4, *words]
    command = LOOP.format(command=shlex.join(map(str, words)))
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600)
    assert (done.stdout, done.stderr.count("interrupted by SIGTERM")) == ("x" * TOTAL, 2)
    assert final(tmp_path / "run") == never_stopped
