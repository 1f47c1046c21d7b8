"""The command line: what each command prints and leaves behind, and what it does with a user's mistakes.

Commands that train are held to it with either package; what handles files only is one code for both.
"""

import dataclasses
import io
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from threading import Event
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

import numpy_ref
import torch_port
from numpy_ref import cli, console
from numpy_ref import train as training
from numpy_ref.checkpoint import durable, store
from numpy_ref.checkpoint.container import write_container
from numpy_ref.checkpoint.save_and_resume import (
    read_checkpoint,
    resume_from_full_checkpoint,
    save_checkpoint,
    save_weights,
)
from numpy_ref.checkpoint.store import checkpoint_path, sole_writer
from numpy_ref.cli.options import SIZES
from numpy_ref.config import RunConfig
from numpy_ref.console import FAILED
from numpy_ref.data import load_data
from numpy_ref.proof.boundary import ROWS, row_named
from numpy_ref.train import Evaluation
from parity_tests.commands import ROOT, call, python, strict_json
from parity_tests.implementations import EACH, NO_TORCH

VERBS = ["demo", "walk", "train", "account", "inspect", "verify", "diff", "range", "boundary", "exercises", "grade"]
SETTINGS = {  # for each field of RunConfig a value other than its default, and the words that ask for it
    "seed": (2**64 - 1, ["--seed", str(2**64 - 1)]),
    "hidden": ((5, 3), ["--hidden", "5,3"]),
    "dropout": (0.25, ["--dropout", "0.25"]),
    "batch_norm": (True, ["--batch-norm"]),
    "noise": (0.125, ["--noise", "0.125"]),
    "batch_size": (4, ["--batch-size", "4"]),
    "accumulation": (3, ["--accumulation", "3"]),
    "optimizer": ("adamw", ["--optimizer", "adamw"]),
    "learning_rate": (0.0625, ["--learning-rate", "0.0625"]),
    "beta1": (0.5, ["--beta1", "0.5"]),
    "beta2": (0.75, ["--beta2", "0.75"]),
    "eps": (1e-3, ["--eps", "1e-3"]),
    "amsgrad": (True, ["--amsgrad"]),
    "momentum": (0.5, ["--momentum", "0.5"]),
    "dampening": (0.25, ["--dampening", "0.25"]),
    "nesterov": (True, ["--nesterov"]),
    "weight_decay": (0.5, ["--weight-decay", ".5"]),
    "schedule": ("step", ["--schedule", "step"]),
    "step_size": (7, ["--step-size", "7"]),
    "gamma": (0.75, ["--gamma", "0.75"]),
    "warmup_steps": (3, ["--warmup-steps", "3"]),
    "total_steps": (77, ["--total-steps", "77"]),
    "evaluate_every": (4, ["--evaluate-every", "4"]),
    "arithmetic": ("native", ["--arithmetic", "native"]),
    "precision": ("float16", ["--precision", "float16"]),
    "init_scale": (1024.0, ["--init-scale", "1024"]),
    "growth_factor": (1.5, ["--growth-factor", "1.5"]),
    "backoff_factor": (0.25, ["--backoff-factor", "0.25"]),
    "growth_interval": (5, ["--growth-interval", "5"]),
    "recompute_segments": (1, ["--recompute-segments", "1"]),
}


ON_FILES = pytest.mark.parametrize("impl", EACH[:1])  # one code for both packages, and a file that either may write


def samples(n=23, inputs=3, classes=3):
    rng = np.random.default_rng(5)
    return rng.standard_normal((n, inputs)), rng.integers(0, classes, n)


@pytest.fixture
def small(tmp_path):
    """A small data set in a file of its own."""
    path = tmp_path / "small.npz"
    x, y = samples()
    np.savez(path, inputs=x, labels=y)
    return path


@pytest.fixture(params=EACH)
def impl(request):
    return request.param


@pytest.fixture
def train_with(capsys, small, tmp_path):
    """Train a small run with an implementation, in the directory `name` below tmp_path."""

    def run(impl, steps, *words, name="run", data=small):
        # A run that is resumed takes these from its file, and they agree with it.
        settings = ["--data", data, "--dir", tmp_path / name, "--hidden", "4", "--batch-size", "5"]
        return call(capsys, "train", "--steps", steps, *settings, *words, impl=impl)

    return run


@pytest.fixture
def train(train_with, impl):
    """The same with each implementation."""
    return partial(train_with, impl)


def other_package(**more):
    """An implementation that computes as numpy_ref does, with more names."""
    names = {name: getattr(numpy_ref, name) for name in numpy_ref.__all__} | more
    return SimpleNamespace(**names, __all__=list(names), __name__="other", __doc__="Another one.\n")


def names_in(directory):
    return sorted(path.name for path in directory.iterdir())


def states_of(directory):
    """Content and date of every file."""
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in directory.iterdir()}


def flip(path, place=-1):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def step(directory, number):
    return checkpoint_path(directory, number)


# Help and wrong usage


def test_the_commands_are_these_under_the_name_of_the_package(capsys, impl):
    answer = call(capsys, "--help", impl=impl)
    assert answer.status == 0
    own = ["audit", "crash"] if impl is torch_port else []
    assert re.findall(r"^    (\w+)(?: |$)", answer.out, re.MULTILINE) == VERBS + own
    assert answer.out.startswith(f"usage: python -m {impl.__name__} ")
    assert f"First try: python -m {impl.__name__} demo" in " ".join(answer.out.split())
    assert impl.__doc__.splitlines()[0] in " ".join(answer.out.split())


@pytest.mark.parametrize("verb", VERBS)
def test_every_help_has_an_example_that_the_command_accepts(capsys, monkeypatch, verb, impl):
    monkeypatch.setenv("COLUMNS", "200")
    answer = call(capsys, verb, "--help", impl=impl)
    assert answer.status == 0
    (words,) = re.findall(rf"^Example: python -m {impl.__name__} (.*)$", answer.out, re.MULTILINE)
    options = cli.parser_of(impl).parse_args(shlex.split(words))
    assert options.verb == verb


def test_devices_and_measuring_are_offered_only_where_the_package_has_them(capsys):
    with_both = other_package(on_device=None, check_boundary=None)
    for impl, there in ((numpy_ref, False), (with_both, True), (torch_port, True)):
        for verb in VERBS:
            out = call(capsys, verb, "--help", impl=impl).out
            assert ("--device" in out) == (there and verb in ("demo", "train", "account"))
            assert ("--check" in out) == (there and verb == "boundary")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "VERB"),
        (["retrain"], "demo"),
        (["verify"], "file"),
        (["verify", "--all"], "--all"),
        (["verify", "FILE", "--all", "DIR"], "not allowed with"),
        (["inspect"], "file"),
        (["diff", "only-one"], "b"),
        (["boundary", "--no-such-option"], "--no-such-option"),
        (["boundary", "--row", "no such row"], "full resume"),
        (["train", "--device", "cpu"], "--device"),
        (["train", "--steps"], "expected one argument"),
        (["train", "--steps", "-1"], "expected a whole number >= 0, found '-1'"),
        (["train", "--steps", "1e3"], "expected a whole number >= 0, found '1e3'"),
        (["train", "--every", "often"], "expected a whole number >= 0, found 'often'"),
        (["train", "--keep", "1.5"], "expected a whole number >= 0, found '1.5'"),
        (["train", "--keep-every", "-2"], "expected a whole number >= 0, found '-2'"),
        (["train", "--resume", "maybe"], "auto, never, required"),
        (["train", "--hidden", "4;4"], "expected sizes such as 128,128, found '4;4'"),
        (["train", "--optimizer", "lion"], "adam, adamw, sgd"),
        (["train", "--learning-rate", "fast"], "float"),
        (["train", "--batch-size", "1.5"], "int"),
    ],
)
def test_wrong_usage_exits_2_and_says_what_was_expected(capsys, monkeypatch, tmp_path, words, expected):
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, *words)
    assert (answer.status, answer.out) == (2, "")
    assert expected.replace("'", "") in answer.err.replace("'", "")  # argparse quotes choices in some versions only
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--beta1", "1.5", "--batch-size", "0"],
            ["batch_size: expected 1 <= batch_size < 2147483648, found 0", "beta1"],
        ),
        (["--learning-rate", "nan"], ["learning_rate", "nan"]),
        (["--learning-rate", "0"], ["learning_rate: expected 0 < learning_rate", "found 0.0"]),
        (["--seed", "-1"], ["seed: expected 0 <= seed", "found -1"]),
        (["--hidden", "4,0"], ["hidden: expected 1 <= hidden < 2147483648, found (4, 0)"]),
        (["--nesterov", "--momentum", "0"], ["nesterov: needs momentum > 0"]),
        (["--schedule", "warmup_cosine", "--warmup-steps", "9"], ["warmup_steps: expected less than total_steps 6"]),
        (["--batch-norm", "--batch-size", "6"], ["batch_norm", "at least 2 samples"]),
    ],
)
def test_settings_out_of_range_exit_2_all_in_one_message(train, tmp_path, words, expected):
    answer = train(6, *words)
    assert (answer.status, answer.out) == (2, "")
    for part in expected:
        assert part in answer.err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", SETTINGS)
def test_every_setting_has_an_option_and_reaches_the_run(capsys, small, tmp_path, name, impl):
    assert SETTINGS.keys() == {field.name for field in dataclasses.fields(RunConfig)}
    value, words = SETTINGS[name]
    assert value != getattr(RunConfig(), name)
    answer = call(capsys, "train", "--data", small, "--dir", tmp_path / "run", "--steps", 0, *words, impl=impl)
    assert answer.status == 0
    assert read_checkpoint(step(tmp_path / "run", 0)).config == RunConfig(**{name: value})
    assert f"{name}={value!r}" in answer.out  # and is told


def test_a_switch_can_be_turned_off_by_name(train, tmp_path):
    assert train(0, "--no-amsgrad", "--no-batch-norm", "--no-nesterov").status == 0
    assert read_checkpoint(step(tmp_path / "run", 0)).config == RunConfig(hidden=(4,), batch_size=5)


def test_the_cosine_ends_at_the_total_unless_told_otherwise(train, tmp_path):
    words = ["--schedule", "warmup_cosine", "--warmup-steps", "2"]
    assert train(6, *words).status == 0
    assert read_checkpoint(step(tmp_path / "run", 6)).config.total_steps == 6
    assert train(6, *words, "--total-steps", "9", name="other").status == 0
    assert read_checkpoint(step(tmp_path / "other", 6)).config.total_steps == 9
    assert train(8, *words).status == 0  # goes on under the schedule that it was started with
    assert read_checkpoint(step(tmp_path / "run", 8)).config.total_steps == 6


# Training


@pytest.mark.parametrize("head", ["", "width,height,depth,class\n"])
def test_training_takes_a_csv_file(train, tmp_path, head):
    x, y = samples()
    path = tmp_path / "my samples.csv"
    rows = [",".join(map(repr, [*map(float, a), int(b)])) for a, b in zip(x, y, strict=True)]
    path.write_text(head + "\n".join(rows) + "\n", encoding="utf-8")
    answer = train(5, "--json", data=path)
    assert answer.status == 0
    assert strict_json(answer.out)["step"] == 5
    assert train(5, name="from npz").status == 0  # the same samples, so the same run
    runs = [read_checkpoint(step(tmp_path / name, 5)) for name in ("run", "from npz")]
    assert runs[0].fingerprint == runs[1].fingerprint == load_data(path).fingerprint


def test_the_defaults_reach_96_percent_on_held_out_digits(capsys, tmp_path):
    answer = call(capsys, "train", "--arithmetic", "native", "--dir", tmp_path / "run", "--json")
    assert (answer.status, answer.err) == (0, "")
    told = strict_json(answer.out)
    assert told["step"] == 1000
    assert told["test_accuracy"] >= 0.96
    assert told["checkpoint"] == str(step(tmp_path / "run", 1000))
    assert read_checkpoint(told["checkpoint"]).run_id == told["run_id"]
    assert names_in(tmp_path / "run") == [f"step-{n:08d}.safetensors" for n in (800, 900, 1000)]


@pytest.mark.parametrize(
    ("every", "keep", "left"),
    [(10, 0, [10, 20, 30, 40, 47]), (10, 2, [40, 47]), (0, 3, [47]), (47, 0, [47]), (20, 1, [47])],
)
def test_checkpoints_bear_their_step_come_every_so_often_and_at_the_end(train, tmp_path, every, keep, left):
    assert train(47, "--every", every, "--keep", keep).status == 0
    assert names_in(tmp_path / "run") == [f"step-{n:08d}.safetensors" for n in left]
    assert [read_checkpoint(step(tmp_path / "run", n)).step for n in left] == left


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (["--keep", 1, "--keep-every", 20], [20, 40, 47]),
        (["--keep", 1, "--keep-every", 20, "--keep-best"], [20, 30, 40, 47]),
        (["--keep", 1, "--keep-best"], [30, 47]),
        (["--keep", 2, "--no-keep-best"], [40, 47]),
    ],
)
def test_checkpoints_are_kept_as_asked(train, tmp_path, words, left):
    """The best weights are those of step 25, where alone they are evaluated; step 30 holds them first."""
    assert train(47, "--every", 10, "--evaluate-every", 25, *words).status == 0
    assert names_in(tmp_path / "run") == [f"step-{n:08d}.safetensors" for n in left]


def test_training_goes_on_while_a_checkpoint_is_written_beside_it(train, tmp_path, monkeypatch):
    further, real = Event(), durable.Disk.fsync

    def fsync(disk, file):
        assert further.wait(600)
        real(disk, file)

    def show(self, record):
        if record.step == 5:
            further.set()

    monkeypatch.setattr(durable.Disk, "fsync", fsync)
    monkeypatch.setattr(console.Progress, "show", show)
    assert train(8, "--every", 4, "--background").status == 0
    assert names_in(tmp_path / "run") == [f"step-{n:08d}.safetensors" for n in (4, 8)]


def test_a_checkpoint_written_beside_training_is_the_one_written_between_steps(capsys, train, tmp_path):
    for name, words in (("beside", ["--background"]), ("between", [])):
        assert train(25, "--every", 5, "--keep", 0, *words, name=name).status == 0
    for n in (5, 10, 15, 20, 25):
        assert call(capsys, "diff", step(tmp_path / "beside", n), step(tmp_path / "between", n)).status == 0


def test_a_write_beside_training_that_fails_fails_the_command(train, tmp_path, monkeypatch):
    """The last one too, which no later save could tell of."""
    real = durable.Disk.fsync
    for fails in (2, 3):
        calls = []

        def fsync(disk, file, calls=calls, fails=fails):
            calls.append(file)
            if len(calls) == fails:
                raise OSError(28, "No space left on device")
            real(disk, file)

        monkeypatch.setattr(durable.Disk, "fsync", fsync)
        answer = train(12, "--every", 4, "--background", name=f"fails {fails}")
        assert answer.status == 2
        assert "No space left on device" in answer.err
        assert f"step-{4 * fails:08d}" in answer.err
        assert names_in(tmp_path / f"fails {fails}") == [f"step-{n:08d}.safetensors" for n in range(4, 4 * fails, 4)]
        monkeypatch.setattr(durable.Disk, "fsync", real)
        assert train(12, "--every", 4, "--background", name=f"fails {fails}").status == 0


def test_after_a_resume_checkpoints_stay_on_multiples(train, tmp_path):
    train(7)
    assert train(25, "--every", 10, "--keep", 0).status == 0
    assert names_in(tmp_path / "run") == [f"step-{n:08d}.safetensors" for n in (7, 10, 20, 25)]


@pytest.mark.parametrize("total", [12, 5, 0])
def test_steps_is_the_total_and_a_run_already_there_changes_no_file(train, tmp_path, total):
    assert train(12).status == 0
    before = states_of(tmp_path / "run")
    answer = train(total)
    assert answer.status == 0
    assert "nothing to do: the run is at step 12" in answer.out
    assert f"--steps {total} is the total" in answer.out
    assert states_of(tmp_path / "run") == before
    told = strict_json(train(total, "--json").out)
    assert (told["step"], told["checkpoint"]) == (12, None)


@pytest.mark.parametrize(
    "words",
    [
        ["--dropout", "0.3", "--noise", "0.1", "--evaluate-every", "4"],
        ["--optimizer", "sgd", "--schedule", "step", "--step-size", "5"],
        ["--optimizer", "adamw", "--amsgrad", "--weight-decay", "0.1", "--accumulation", "2"],
        ["--arithmetic", "native", "--schedule", "warmup_cosine", "--total-steps", "40", "--warmup-steps", "4"],
    ],
    ids=lambda words: words[1],
)
def test_a_bigger_total_goes_on_as_if_it_had_never_stopped(capsys, train, tmp_path, words):
    assert train(17, *words, name="never stopped").status == 0
    for total in (1, 6, 7, 17):
        assert train(total, *words).status == 0
    ends = [step(tmp_path / name, 17) for name in ("never stopped", "run")]
    answer = call(capsys, "diff", *ends)
    assert answer.status == 0
    assert "bitwise: the training state is the same" in answer.out
    assert "run_id" in answer.out
    told = strict_json(call(capsys, "diff", *ends, "--json").out)
    assert (told["bitwise"], told["leaves"], list(told["apart"])) == (True, [], ["run_id"])
    assert call(capsys, "diff", ends[0], step(tmp_path / "run", 7)).status == 1


def test_never_refuses_a_directory_that_holds_another_run(train, tmp_path):
    assert train(4, "--resume", "never").status == 0
    before = states_of(tmp_path / "run")
    for total in (4, 9):
        answer = train(total, "--resume", "never")
        assert (answer.status, answer.out) == (1, "")
        assert "step-00000004.safetensors of run" in answer.err
        assert "--resume auto" in answer.err
    assert states_of(tmp_path / "run") == before


def test_required_refuses_a_directory_without_a_run(train, tmp_path):
    answer = train(4, "--resume", "required")
    assert (answer.status, answer.out) == (1, "")
    assert "found none yet" in answer.err
    assert not (tmp_path / "run").exists()
    train(4)
    assert train(6, "--resume", "required").status == 0
    assert step(tmp_path / "run", 6).exists()


def test_another_configuration_is_refused_with_every_field_named_and_nothing_lost(train, tmp_path):
    train(6)
    before = states_of(tmp_path / "run")
    changed = ["--beta1", "0.8", "--seed", "1", "--batch-norm", "--hidden", "4,4"]
    answer = train(9, *changed)
    assert (answer.status, answer.out) == (1, "")
    for line in (
        "beta1: expected 0.8, found 0.9",
        "seed: expected 1, found 0",
        "batch_norm: expected True, found False",
        "hidden: expected (4, 4), found (4,)",
    ):
        assert line in answer.err
    assert "beta2" not in answer.err
    assert states_of(tmp_path / "run") == before
    assert train(9, "--beta1", "0.9").status == 0  # said again, and the same


def test_a_damaged_newest_checkpoint_is_passed_over_loudly(capsys, train, tmp_path):
    for name in ("run", "sound"):
        train(30, "--every", 10, name=name)
    flip(step(tmp_path / "run", 30))
    answer = train(30)
    assert answer.status == 0
    assert re.search(r"^passed over: .*step-00000030\.safetensors: ", answer.err, re.MULTILINE)
    assert "at step 20" in answer.out
    assert call(capsys, "diff", *(step(tmp_path / name, 30) for name in ("run", "sound"))).status == 0
    flip(step(tmp_path / "run", 30), 200)
    quiet = train(30, "--quiet")
    assert "passed over" in quiet.err  # quiet or not
    kept = [f"step-00000030.safetensors.damaged{n}" for n in ("", "-2")]
    assert [name for name in names_in(tmp_path / "run") if "damaged" in name] == kept


def test_where_all_are_damaged_nothing_starts_anew(train, tmp_path):
    train(30, "--every", 10)
    for number, place in ((10, -1), (20, 200), (30, 2)):
        flip(step(tmp_path / "run", number), place)
    before = states_of(tmp_path / "run")
    for mode in ("auto", "required", "never"):
        answer = train(40, "--resume", mode)
        assert (answer.status, answer.out) == (1, "")
        for number in (10, 20, 30) if mode != "never" else ():
            assert f"step-000000{number}.safetensors" in answer.err
        assert states_of(tmp_path / "run") == before


def test_other_data_is_refused(train, tmp_path):
    train(3)
    other = tmp_path / "other.npz"
    x, y = samples()
    x[0, 0] += 1
    np.savez(other, x=x, y=y)
    before = states_of(tmp_path / "run")
    answer = train(5, data=other)
    assert (answer.status, answer.out) == (1, "")
    assert "fingerprint" in answer.err
    assert "data" in answer.err
    assert states_of(tmp_path / "run") == before


@NO_TORCH
def test_a_run_goes_from_package_to_package_and_back_as_if_it_had_never_left(capsys, train_with, tmp_path):
    words = ["--dropout", "0.3", "--noise", "0.1", "--batch-norm", "--schedule", "step", "--step-size", "5"]
    words += ["--accumulation", "2", "--amsgrad", "--evaluate-every", "4"]
    turns = [(1, numpy_ref), (6, torch_port), (7, numpy_ref), (12, torch_port), (17, numpy_ref)]
    for total, impl in turns:
        answer = train_with(impl, total, *words)
        assert (answer.status, "row: " in answer.out) == (0, total > 1)
        if total > 1:
            row = row_named("saved in one, resumed in the other")
            assert f"\nrow: {row.name}: bitwise ({row.conditions})\n" in answer.out
    for impl in (numpy_ref, torch_port):
        assert train_with(impl, 17, *words, name=impl.__name__).status == 0
        told = call(capsys, "diff", step(tmp_path / "run", 17), step(tmp_path / impl.__name__, 17), "--json", impl=impl)
        assert told.status == 0
        assert strict_json(told.out)["leaves"] == []


def test_a_resume_says_which_row_of_the_boundary_applies_and_aloud_when_it_is_less_than_bitwise(
    train_with,
):
    train = partial(train_with, numpy_ref)
    train(2)
    row = row_named("full resume")
    assert f"\nrow: full resume: bitwise ({row.conditions})\n" in train(3).out
    assert "row: " not in train(3).out  # nothing goes on
    train(2, "--arithmetic", "native", name="native")
    row = row_named("full resume, native")
    assert f"\nrow: full resume, native: bitwise ({row.conditions})\n" in train(3, name="native").out
    here = numpy_ref.environment()
    elsewhere = other_package(environment=lambda: here | {"machine": "another"})
    row = row_named("full resume, native, elsewhere")
    answer = train_with(elsewhere, 4, "--quiet", name="native")
    assert (answer.out, answer.err) == ("", f"row: {row.name}: {row.kind} ({row.conditions})\n")


def test_an_interrupt_where_there_is_nothing_to_save_ends_as_shells_report_it(train_with, tmp_path):
    def interrupted(source):
        raise KeyboardInterrupt

    answer = train_with(other_package(load_data=interrupted), 4)
    assert answer == (130, "", "interrupted\n")
    assert not (tmp_path / "run").exists()


def test_a_directory_that_cannot_hold_checkpoints_is_refused_before_any_training(train, tmp_path, monkeypatch, impl):
    """Not after hours, with the run lost."""
    trained = []
    real = impl.train_n_steps

    def noted(run, data, n, **options):
        trained.append(n)
        return real(run, data, n, **options)

    monkeypatch.setattr(impl, "train_n_steps", noted)
    (tmp_path / "file").write_text("no directory")
    for name in ("file", "file/below"):
        answer = train(5, name=name)
        assert answer.status != 0
        assert str(tmp_path / "file") in answer.err
        assert "expected a directory" in answer.err
    assert trained == []
    assert (tmp_path / "file").read_text() == "no directory"


def test_a_processor_that_flushes_subnormals_is_refused_with_a_message(train, tmp_path, monkeypatch):
    def flushing():
        raise FloatingPointError("expected subnormal numbers, found them flushed to zero")

    monkeypatch.setattr(training, "check_subnormals", flushing)
    answer = train(2)
    assert answer.status in (1, 2)
    assert "flushed to zero" in answer.err
    assert not (tmp_path / "run").exists()
    assert train(2, "--arithmetic", "native").status == 0


def test_progress_goes_to_standard_error_and_ends_at_the_total(train):
    answer = train(30)
    lines = answer.err.splitlines()
    assert [int(re.match(r"step (\d+)/30  loss \d", line)[1]) for line in lines] == list(range(3, 31, 3))
    assert "step 30: test accuracy" in answer.out
    assert train(35, "--quiet") == (0, "", "")
    told = train(40, "--json")
    assert told.err == ""
    assert strict_json(told.out)["step"] == 40


def test_progress_is_one_line_on_a_terminal(train, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    answer = train(8)
    assert answer.err.startswith("\rstep 1/8")
    assert answer.err.endswith("\n")
    assert answer.err.count("\n") == 1
    assert "step 8/8" in answer.err


# Looking at checkpoints


@pytest.mark.parametrize(
    ("words", "ratio"),
    [
        (["--optimizer", "adam"], 3),
        (["--optimizer", "adamw", "--batch-norm"], 3),
        (["--optimizer", "sgd"], 2),
        (["--optimizer", "sgd", "--momentum", "0"], 1),
        (["--optimizer", "sgd", "--momentum", "0", "--batch-norm"], 1),
    ],
)
def test_inspect_tells_the_ratio_to_the_model(capsys, train, tmp_path, words, ratio):
    train(2, *words)
    path = step(tmp_path / "run", 2)
    answer = call(capsys, "inspect", path)
    assert (answer.status, answer.err) == (0, "")
    assert f"{ratio}.00 times" in answer.out
    assert strict_json(call(capsys, "inspect", path, "--json").out)["model_and_optimizer_over_model"] == ratio


@ON_FILES
def test_inspect_shows_every_leaf_with_its_type_shape_and_size(capsys, train, tmp_path):
    train(3)
    path = step(tmp_path / "run", 3)
    checkpoint = read_checkpoint(path)
    answer = call(capsys, "inspect", path)
    told = strict_json(call(capsys, "inspect", path, "--json").out)
    for name, array in checkpoint.model.items():
        row = f"model/{name}  {array.dtype}  {array.shape}  {array.nbytes}"
        assert row in re.sub(r" {2,}", "  ", answer.out)
        entry = {"dtype": str(array.dtype), "shape": list(array.shape), "bytes": array.nbytes}
        assert told["leaves"][f"model/{name}"] == entry
    assert re.search(r"^optimizer/t +value +3$", answer.out, re.MULTILINE)
    assert re.search(r"^best/loss +value +inf$", answer.out, re.MULTILINE)  # as a number, not as it is stored
    assert re.search(rf"^file +{path.stat().st_size:,}$", answer.out, re.MULTILINE)
    assert told["file_bytes"] == path.stat().st_size
    assert told["bytes"]["model"] == sum(x.nbytes for x in checkpoint.model.values())
    assert (told["kind"], told["step"], told["run_id"]) == ("full", 3, checkpoint.run_id)
    assert told["scalars"]["optimizer/t"] == 3
    assert told["environment"] == checkpoint.environment
    assert told["config"]["batch_size"] == 5


@ON_FILES
def test_inspect_takes_a_weights_file_and_says_so(capsys, train, tmp_path, small):
    train(2)
    run = resume_from_full_checkpoint(step(tmp_path / "run", 2), load_data(small))
    save_weights(tmp_path / "weights.safetensors", run)
    answer = call(capsys, "inspect", tmp_path / "weights.safetensors")
    assert answer.status == 0
    assert "kind weights" in answer.out
    assert "1.00 times" in answer.out
    assert "optimizer/" not in answer.out


@ON_FILES
def test_verify_holds_for_a_file_as_written_and_fails_at_any_flipped_byte(capsys, train, tmp_path):
    train(2)
    path = step(tmp_path / "run", 2)
    answer = call(capsys, "verify", path)
    assert (answer.status, answer.err) == (0, "")
    assert answer.out.startswith("holds: full checkpoint of run")
    told = strict_json(call(capsys, "verify", path, "--json").out)
    assert (told["holds"], told["step"], told["bytes"]) == (True, 2, path.stat().st_size)
    whole = path.read_bytes()
    for place in (0, 8, len(whole) // 2, len(whole) - 1):
        flip(path, place)
        answer = call(capsys, "verify", path)
        assert (answer.status, answer.out) == (1, "")
        assert str(path) in answer.err
        path.write_bytes(whole)
    path.write_bytes(whole[:-1])
    assert call(capsys, "verify", path).status == 1


def lines_of(answer, start):
    """What stands after the lines that begin so, up to the first bracket."""
    return re.findall(rf"^{start}: ([^(\n]*?)(?: \(.*)?$", answer.out, re.MULTILINE)


@pytest.mark.parametrize("words", [("--keep", "2"), ("--keep-every", "5"), ("--keep-best",)])
def test_verify_of_one_file_refuses_to_be_told_what_a_directory_keeps(capsys, tmp_path, words):
    answer = call(capsys, "verify", tmp_path / "file", *words)
    assert answer.status == 2
    assert "--all DIR" in answer.err


@pytest.mark.parametrize("words", [("inspect", "."), ("verify", "."), ("diff", ".", ".")])
@pytest.mark.parametrize("impl", EACH)
def test_a_directory_in_place_of_a_file_is_no_verdict(capsys, tmp_path, impl, words):
    verb, *places = words
    answer = call(capsys, verb, *(tmp_path / place for place in places), impl=impl)
    assert answer.status == FAILED
    assert "expected a file, found a directory" in answer.err


@ON_FILES
def test_verify_all_of_a_sound_directory_holds_and_says_what_a_resume_takes_and_what_may_go(capsys, train, tmp_path):
    folder = tmp_path / "run"
    train(47, "--every", 10, "--keep", 0)
    before = states_of(folder)
    answer = call(capsys, "verify", "--all", folder, "--keep", 2, "--keep-every", 30)
    assert (answer.status, answer.err) == (0, "")
    run_id = read_checkpoint(step(folder, 47)).run_id
    for n in (10, 20, 30, 40, 47):
        row = f"{step(folder, n).name}  {n}  {run_id[:8]}  {step(folder, n).stat().st_size:,}  whole\n"
        assert row in re.sub(r" {2,}", "  ", answer.out)
    assert "a resume goes on from step-00000047.safetensors: the newest that can be read" in answer.out
    assert lines_of(answer, "may be deleted") == [step(folder, n).name for n in (10, 20)]
    assert "--keep 2 --keep-every 30" in answer.out
    assert lines_of(answer, "holds") == [f"{folder} can be resumed, and nothing is damaged"]
    told = strict_json(call(capsys, "verify", "--all", folder, "--keep", 2, "--keep-every", 30, "--json").out)
    assert (told["holds"], told["resumed"]) == (True, str(step(folder, 47)))
    assert told["superfluous"] == [str(step(folder, n)) for n in (10, 20)]
    assert [(e["path"], e["step"], e["run_id"], e["bytes"], e["state"]) for e in told["entries"]] == [
        (str(step(folder, n)), n, run_id, step(folder, n).stat().st_size, "whole") for n in (10, 20, 30, 40, 47)
    ]
    assert states_of(folder) == before
    assert lines_of(call(capsys, "verify", "--all", folder), "may be deleted") == [
        step(folder, n).name
        for n in (10, 20)  # as train with its defaults would
    ]
    assert lines_of(call(capsys, "verify", "--all", folder, "--keep", 0), "may be deleted") == []


@ON_FILES
def test_verify_all_names_what_is_damaged_not_ours_set_aside_or_left_by_the_dead(capsys, train, tmp_path, small):
    folder = tmp_path / "run"
    train(30, "--every", 10)
    run = resume_from_full_checkpoint(step(folder, 10), load_data(small))
    save_weights(folder / "weights.safetensors", run)
    (folder / "notes.txt").write_text("mine")
    (folder / f".{step(folder, 20).name}.1-0123456789abcdef.partial").write_bytes(b"half")
    (folder / f"{step(folder, 20).name}.damaged").write_bytes(b"half")
    flip(step(folder, 30))
    before = states_of(folder)
    answer = call(capsys, "verify", "--all", folder)
    assert (answer.status, answer.err) == (1, "")
    assert re.search(
        r"^step-00000030\.safetensors +30 +\w+ +[\d,]+ +damaged: expected arrays", answer.out, re.MULTILINE
    )
    assert re.search(r"^weights\.safetensors +- +- +[\d,]+ +not ours: ", answer.out, re.MULTILINE)
    assert "a resume goes on from step-00000020.safetensors: the newest that can be read, after 1" in answer.out
    temporaries = [name for name in names_in(folder) if name.startswith(".")]
    assert lines_of(answer, "may be deleted") == [f"{step(folder, 20).name}.damaged", *temporaries]
    assert lines_of(answer, "does not hold") == ["1 damaged"]
    assert "notes.txt" not in answer.out
    told = strict_json(call(capsys, "verify", "--all", folder, "--json").out)
    assert (told["holds"], told["resumed"]) == (False, str(step(folder, 20)))
    assert [entry["state"].partition(":")[0] for entry in told["entries"]] == ["not ours", "whole", "whole", "damaged"]
    assert told["set_aside"] == [str(folder / f"{step(folder, 20).name}.damaged")]
    assert told["stale"] == [str(folder / name) for name in temporaries]
    assert states_of(folder) == before
    train(30)  # what verify says, train does
    answer = call(capsys, "verify", "--all", folder)
    assert answer.status == 0
    assert lines_of(answer, "holds") == [f"{folder} can be resumed, and nothing else is damaged"]
    assert [name for name in names_in(folder) if name.startswith(".")] == []


@ON_FILES
def test_verify_all_does_not_hold_where_there_is_nothing_to_go_on_from(capsys, train, tmp_path):
    train(2)
    folder = tmp_path / "run"
    flip(step(folder, 2))
    (tmp_path / "empty").mkdir()
    cases = [("empty", "there is no checkpoint yet", "nothing to go on from")]
    cases += [("run", "a resume refuses: expected a readable checkpoint", "1 damaged")]
    for name, why, verdict in cases:
        answer = call(capsys, "verify", "--all", tmp_path / name)
        assert (answer.status, answer.err) == (1, "")
        assert f"a resume goes on from nothing: {why}" in answer.out
        assert lines_of(answer, "does not hold") == [verdict]
        told = call(capsys, "verify", "--all", tmp_path / name, "--json")
        assert told.status == 1
        assert (strict_json(told.out)["holds"], strict_json(told.out)["resumed"]) == (False, None)
    train(3, name="other")
    step(tmp_path / "other", 3).rename(step(folder, 3))
    train(4, name="third")
    step(tmp_path / "third", 4).rename(step(folder, 4))
    step(folder, 2).unlink()
    answer = call(capsys, "verify", "--all", folder)  # two runs, both whole
    assert answer.status == 1
    assert "a resume refuses: expected the checkpoints of one run, found those of 2" in answer.out
    (tmp_path / "file").touch()
    assert call(capsys, "verify", "--all", tmp_path / "file").status == 2


@ON_FILES
def test_diff_names_the_leaf_and_both_values(capsys, train, tmp_path, small):
    train(4)
    path, other = step(tmp_path / "run", 4), tmp_path / "other.safetensors"
    run = resume_from_full_checkpoint(path, load_data(small))
    weight = run.state.model["layer0.bias"]
    old = weight[2].item()
    weight.view(np.uint32)[2] ^= 1
    save_checkpoint(other, run)
    answer = call(capsys, "diff", path, other)
    assert answer.status == 1
    (row,) = [line for line in answer.out.splitlines() if line.startswith("model/")]
    assert row.split()[:3] == ["model/layer0.bias", repr(old), repr(weight[2].item())]
    assert row.split()[-1] == "1"  # unit in the last place
    assert "1 leaf of the training state differs" in answer.out
    told = strict_json(call(capsys, "diff", path, other, "--json").out)
    assert (told["bitwise"], told["apart"]) == (False, {})
    (leaf,) = told["leaves"]
    assert (leaf["leaf"], leaf["a"], leaf["b"], leaf["ulps"]) == ("model/layer0.bias", old, weight[2].item(), 1)
    assert call(capsys, "diff", path, path) == (0, "bitwise: the training state is the same\n", "")


@ON_FILES
def test_diff_of_weights_compares_weights_and_tells_kinds_apart(capsys, train, tmp_path, small):
    train(2)
    path = step(tmp_path / "run", 2)
    run = resume_from_full_checkpoint(path, load_data(small))
    for name in ("a", "b"):
        save_weights(tmp_path / f"{name}.safetensors", run)
    assert call(capsys, "diff", tmp_path / "a.safetensors", tmp_path / "b.safetensors").status == 0
    answer = call(capsys, "diff", path, tmp_path / "a.safetensors")
    assert answer.status == 1
    assert re.search(r"^optimizer/t +'a leaf' +'none'", answer.out, re.MULTILINE)
    assert re.search(r"^kind +full +weights", answer.out, re.MULTILINE)
    assert not re.search(r"^model/", answer.out, re.MULTILINE)
    told = strict_json(call(capsys, "diff", path, tmp_path / "a.safetensors", "--json").out)
    assert told["apart"] == {"kind": ["full", "weights"]}
    assert {leaf["distance"] for leaf in told["leaves"]} == {"inf"}


@ON_FILES
def test_what_must_differ_is_shown_apart_and_does_not_count(capsys, train, tmp_path, monkeypatch):
    train(3)
    monkeypatch.setenv("OMP_NUM_THREADS", "17")
    train(3, name="other")
    answer = call(capsys, "diff", step(tmp_path / "run", 3), step(tmp_path / "other", 3))
    assert answer.status == 0
    assert "17" in answer.out
    told = strict_json(call(capsys, "diff", step(tmp_path / "run", 3), step(tmp_path / "other", 3), "--json").out)
    assert list(told["apart"]) == ["environment/threads", "run_id"]


def test_boundary_shows_every_row(capsys):
    answer = call(capsys, "boundary")
    assert (answer.status, answer.err) == (0, "")
    text = " ".join(answer.out.split())
    for row in ROWS:
        allowance = (
            f" {row.tolerance.absolute:.2g} + {row.tolerance.relative:.2g} times the value" if row.tolerance else ""
        )
        alarms = f", false alarms {row.false_alarms:g}" if row.false_alarms else ""
        loose = f" loose by {row.loose}" if row.loose else ""
        told = f"{row.compared}; {row.conditions} because {row.reason}{loose} evidence {row.evidence}"
        assert f"{row.name}: {row.kind}{allowance}{alarms} {told}" in text
    assert {row.kind for row in ROWS} >= {"within", "statistical"}
    assert any(row.loose for row in ROWS)
    rows = strict_json(call(capsys, "boundary", "--json").out)
    assert [(row["name"], row["kind"], row["evidence"]) for row in rows] == [(r.name, r.kind, r.evidence) for r in ROWS]
    assert [row["tolerance"] and list(row["tolerance"]) for row in rows] == [
        list(r.tolerance) if r.tolerance else None for r in ROWS
    ]


def test_boundary_shows_the_rows_that_are_asked_for(capsys):
    names = [ROWS[3].name, ROWS[1].name]
    words = [word for name in names for word in ("--row", name)]
    told = strict_json(call(capsys, "boundary", "--json", *words).out)
    assert [row["name"] for row in told] == [ROWS[1].name, ROWS[3].name]
    out = call(capsys, "boundary", *words).out
    assert re.findall(r"^(\S.*): (?:bitwise|within|statistical|never)", out, re.MULTILINE) == names[::-1]


class Measured(NamedTuple):
    """What `check_boundary` yields."""

    row: str
    kind: str
    holds: bool | None
    figure: str
    share: float | None
    note: str


MEASURED = {
    True: Measured(ROWS[0].name, "bitwise", True, "0 of 12 leaves differ", None, ""),
    False: Measured(ROWS[2].name, "within", False, "3 units in the last place", 1.25, "the worst is layer0.weight"),
    None: Measured(ROWS[4].name, "never", None, "", None, "needs a CUDA device"),
}


def measuring(*results):
    """A package whose measurements have these results."""
    asked = []

    def check_boundary(names):
        asked.append(list(names))
        yield from results

    return other_package(check_boundary=check_boundary, asked=asked)


@pytest.mark.parametrize(
    ("results", "status"),
    [((True,), 0), ((True, None), 0), ((True, False, None), 1), ((False,), 1), ((None, None), 2), ((), 2)],
)
def test_measured_rows_give_the_verdict_and_nothing_measured_is_none(capsys, monkeypatch, results, status):
    """An exit of 0 must not mean that nothing was looked at."""
    monkeypatch.setenv("COLUMNS", "160")
    results = [MEASURED[holds] for holds in results]
    answer = call(capsys, "boundary", "--check", impl=measuring(*results))
    counts = Counter(result.holds for result in results)
    assert answer.status == status
    assert ("none of these rows can be measured" in answer.err) == (status == 2)
    measured = counts[True] + counts[False]
    assert f"{counts[True]} of {measured} measured rows hold, {counts[None]} not measured" in answer.out
    lines = answer.out.splitlines()
    for result, line in zip(results, lines[1:], strict=False):
        verdict = {True: "holds", False: "BROKEN", None: "not measured"}[result.holds]
        share = ["125%"] if result.share else []
        found = "; ".join(filter(None, (result.figure, result.note)))
        assert re.split(r" {2,}", line) == [result.row, result.kind, verdict, *share, found]
        assert line.index(verdict) == lines[0].index("here")
    told = call(capsys, "boundary", "--check", "--json", impl=measuring(*results))
    assert told.status == status
    verdict = strict_json(told.out)
    assert verdict["holds"] is {0: True, 1: False, 2: None}[status]
    assert verdict["rows"] == [result._asdict() for result in results]


def test_the_rows_that_are_asked_for_are_measured_and_no_other(capsys):
    impl = measuring(MEASURED[True])
    call(capsys, "boundary", "--check", "--row", ROWS[2].name, "--row", ROWS[0].name, impl=impl)
    call(capsys, "boundary", "--check", impl=impl)
    assert impl.asked == [[ROWS[0].name, ROWS[2].name], [row.name for row in ROWS]]


def test_a_measured_row_is_shown_before_the_next_is_measured(monkeypatch):
    """Some take minutes, and a pipe is buffered."""
    pipe, seen = io.BytesIO(), []

    def check_boundary(names):
        for result in (MEASURED[True], MEASURED[False]):
            yield result
            seen.append(result.row in pipe.getvalue().decode())

    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(pipe))
    assert cli.main(other_package(check_boundary=check_boundary), ["boundary", "--check"]) == 1
    assert seen == [True, True]


def test_a_terminal_is_told_how_many_rows_are_done_and_how_long_the_rest_takes(capsys, monkeypatch):
    impl = measuring(MEASURED[True], MEASURED[False])
    quiet = call(capsys, "boundary", "--check", impl=impl)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    rows, gone = len(ROWS), "\r\x1b[K"
    answer = call(capsys, "boundary", "--check", impl=impl)
    first, second, third, rest = answer.err.split(gone)
    assert first == f"\rrows: 0 of {rows}\x1b[K"
    assert re.fullmatch(rf"\rrows: 1 of {rows}, about \d+ s left\x1b\[K", second)
    assert re.fullmatch(rf"\rrows: 2 of {rows}, about \d+ s left\x1b\[K", third)
    assert (rest, answer.out) == ("", quiet.out)
    assert (quiet.err, call(capsys, "boundary", "--check", "--json", impl=impl).err) == ("", "")


def account_with(capsys, small, *words, impl=numpy_ref):
    return call(capsys, "account", "--data", small, "--hidden", "5", "--batch-size", "4", *words, impl=impl)


@pytest.mark.parametrize("words", [["--precision", "float16"], pytest.param([], marks=pytest.mark.campaign)])
def test_account_ends_with_how_many_rows_are_measured_and_what_they_show(capsys, small, words, impl):
    answer, found = (account_with(capsys, small, *words, *more, impl=impl) for more in ([], ["--json"]))
    rows = strict_json(found.out)["rows"]
    measured = [row for row in rows if row["measured"] is not None]
    torch = impl is torch_port
    assert strict_json(found.out) == {"explained": True, "measured": len(measured), "rows": rows}
    assert {row["model"] for row in measured} == ({"MLP", "GPT-2"} if torch else {"MLP"})
    derived = [row for row in measured if row["computed"] is not None]
    assert [row["explained"] for row in rows] == [True if row in derived else None for row in rows]
    verdict = f"{len(measured)} of {len(rows)} rows measured; every difference of those is accounted for"
    peak = ", but for the peak, which is not derived" if len(derived) < len(measured) else ""
    assert bool(peak) != torch  # the port counts one on CUDA alone
    hint = [] if torch else ["GPT-2's step is measured by: python -m torch_port account"]
    assert answer.out.splitlines()[-2:][-1 - len(hint) :] == [verdict + peak, *hint]


def test_account_shows_the_precision_and_the_segments_that_are_asked_for_and_else_the_whole_variety(capsys, small):
    def kinds(*words):
        rows = strict_json(account_with(capsys, small, "--json", *words).out)["rows"]
        return {(row["model"], row["precision"], row["recompute"]) for row in rows}

    both = ["--precision", "float16", "--recompute-segments", "2"]
    assert kinds(*both) == {("MLP", "float16", "2 segments"), ("GPT-2", "float16", "blocks")}
    assert {kind[2] for kind in kinds("--recompute-segments", "0")} == {"nothing"}
    assert len(kinds("--precision", "float32")) == 4
    assert len(kinds()) == 10
    answer = account_with(capsys, small, "--recompute-segments", "3")
    assert (answer.status, answer.out) == (2, "")
    assert "recompute_segments" in answer.err


def test_account_offers_the_settings_that_its_numbers_depend_on_and_refuses_the_others(capsys, small, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    out = call(capsys, "account", "--help").out
    assert "settings of the run that its bytes and operations depend on:" in out
    assert "resumed" not in out
    for name, (_, words) in SETTINGS.items():
        assert (f"--{name.replace('_', '-')}" in out) == (name in SIZES)
        answer = call(capsys, "account", "--data", small, "--precision", "float32", *words)
        assert (answer.status == 2 and f"unrecognized arguments: {' '.join(words)}" in answer.err) == (
            name not in SIZES
        )


def test_account_fails_for_a_difference_that_is_not_accounted_for(capsys, small, monkeypatch):
    from numpy_ref import accounting

    real = accounting.account_rows

    def off_by_one(*arguments, **settings):
        first, *rest = real(*arguments, **settings)
        return [first._replace(measured=first.measured + 1), *rest]

    monkeypatch.setattr(accounting, "account_rows", off_by_one)
    answer = account_with(capsys, small)
    assert answer.status == 1
    assert "54 of 86 rows measured; a difference is NOT accounted for" in answer.out
    answer = account_with(capsys, small, "--json")
    found = strict_json(answer.out)
    assert (answer.status, found["explained"], found["rows"][0]["explained"]) == (1, False, False)


def test_json_has_no_word_for_infinity_or_nan(train, monkeypatch, impl):
    monkeypatch.setattr(impl, "evaluate", lambda run, data: Evaluation(float("nan"), 0.5))
    told = strict_json(train(1, "--json").out)
    assert (told["test_loss"], told["test_accuracy"]) == ("nan", 0.5)


# A user's mistakes


MADE = [
    "folder.csv",
    "empty.csv",
    "empty.npz",
    "binary.csv",
    "latin.csv",
    "text.csv",
    "few.csv",
    "labels.csv",
    "nan.csv",
]
MADE += ["other.npz", "objects.npz", "x.txt"]


def make_unusable_data(folder):
    """Files that are not what a command wants."""
    (folder / "folder.csv").mkdir()
    (folder / "empty.csv").touch()
    (folder / "empty.npz").touch()
    (folder / "binary.csv").write_bytes(bytes(range(256)) * 4)
    (folder / "latin.csv").write_bytes("größe,klasse\n1,0\n".encode("latin-1"))
    (folder / "text.csv").write_text("a,b\nc,d\n" * 3)
    (folder / "few.csv").write_text("1,0\n2,1\n")
    (folder / "labels.csv").write_text("1,0\n2,-1\n3,1\n4,0\n5,0.5\n")
    (folder / "nan.csv").write_text("1,0\n2,1\nnan,1\n4,0\n5,1\n")
    (folder / "x.txt").write_text("1,0\n")
    np.savez(folder / "other.npz", a=np.zeros(3))
    np.savez(folder / "objects.npz", x=np.array([[{}]] * 6, object), y=np.zeros(6))


@pytest.mark.parametrize(
    ("words", "names"),
    [
        *((f"train --data {name}", name) for name in ["missing.csv", "missing.npz", ".", *MADE]),
        ("train --hidden 99999999999999999999", "99999999999999999999"),
        *((f"{verb} {name}", name) for verb in ("verify", "inspect") for name in ("missing", "folder.csv", "few.csv")),
        ("diff missing few.csv", "missing"),
        ("diff few.csv missing", "few.csv"),
        ("verify ''", "expected a file, found a directory"),
    ],
)
def test_a_users_mistake_gets_one_clear_message_and_no_traceback(capsys, monkeypatch, tmp_path, words, names):
    make_unusable_data(tmp_path)
    assert names_in(tmp_path) == sorted(MADE)
    monkeypatch.chdir(tmp_path)
    before = names_in(tmp_path)
    extra = ["--steps", "1"] if words.startswith("train") else []
    answer = call(capsys, *shlex.split(words), *extra)
    assert answer.status in (1, 2)
    assert answer.out == ""
    assert names in answer.err
    assert len(answer.err.splitlines()) <= 2
    assert "Traceback" not in answer.err
    assert names_in(tmp_path) == before


def test_more_than_any_memory_holds_gets_one_clear_message_and_no_traceback(capsys, monkeypatch, tmp_path, impl):
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "train", "--hidden", "2000000000,2000000000", impl=impl)
    assert (answer.status, answer.out) == (2, "")
    assert "allocate" in answer.err
    assert len(answer.err.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_any_other_error_of_the_packages_is_a_bug_and_not_hidden(capsys):
    def broken(source):
        raise RuntimeError("a run that has been used up")

    with pytest.raises(RuntimeError, match="used up"):
        call(capsys, "train", impl=other_package(load_data=broken))


@pytest.mark.parametrize("manifest", [{}, {"scalars": 3}, {"scalars": [1]}, {"config": 3, "kind": "full"}])
def test_a_file_with_a_strange_manifest_is_no_reason_for_a_traceback(capsys, tmp_path, manifest):
    path = tmp_path / "forged.safetensors"
    with open(path, "wb") as file:
        write_container(file, {"w": np.zeros(2), "model/x": np.zeros(0)}, manifest)
    for words in (["verify", path], ["diff", path, path]):
        assert call(capsys, *words).status == 1
    for words in (["inspect", path], ["inspect", path, "--json"]):
        assert call(capsys, *words).status in (0, 1)
    assert store.list_checkpoints(tmp_path).entries == []


def test_the_status_of_the_process_is_that_of_the_command(tmp_path):
    process = python("-m", "numpy_ref", "verify", "missing", cwd=tmp_path)
    assert (process.returncode, process.stdout) == (2, "")
    assert process.stderr.startswith("missing: expected a checkpoint, found no such file.")
    assert python("-m", "numpy_ref", cwd=tmp_path).returncode == 2
    assert python("-m", "numpy_ref", "boundary", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize("buffered", ["", "1"])
@pytest.mark.parametrize("words", ["boundary", "train --hidden 3 --steps 1"])
def test_output_to_a_closed_pipe_ends_quietly(tmp_path, words, buffered):
    """As in `... | head -0`: whether the pipe is found closed at a write or at the last flush."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        process = python("-m", "numpy_ref", *words.split(), cwd=tmp_path, stdout=writing, PYTHONUNBUFFERED=buffered)
    finally:
        os.close(writing)
    assert process.returncode in (0, 141)  # written before the pipe was found closed, or as shells report it
    assert not re.search("Traceback|Exception|BrokenPipe", process.stderr)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a device that is always full")
@pytest.mark.parametrize("buffered", ["", "1"])
def test_output_to_a_full_disk_fails_with_a_message(tmp_path, buffered):
    with open("/dev/full", "w") as full:
        process = python("-m", "numpy_ref", "boundary", cwd=tmp_path, stdout=full, PYTHONUNBUFFERED=buffered)
    assert process.returncode in (1, 2)
    assert "No space left" in process.stderr
    assert not re.search("Traceback|Exception", process.stderr)


# Help without weight


@pytest.mark.parametrize("package", ["numpy_ref", "torch_port"])
@pytest.mark.parametrize("words", ["['train', '--help']", "['boundary']"])
def test_help_and_import_load_no_heavy_package(tmp_path, words, package):
    program = (
        f"import sys, {package} as package\n"
        f"words = {words}\n"
        "from numpy_ref.cli import main\n"
        "try:\n    main(package, words) if words else None\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'matplotlib', 'rich', 'numpy_ref.cli.demo', 'numpy_ref.cli.figure'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)\n"
    )
    process = python("-c", program, cwd=tmp_path)
    assert (process.returncode, process.stderr) == (0, "[]\n")


def test_without_torch_the_port_shows_what_needs_none_and_says_what_the_rest_needs(capsys, tmp_path, small):
    """In a directory where `import torch` fails as it does when torch is not installed."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    path = step(tmp_path / "run", 1)
    words = ["--data", small, "--dir", path.parent, "--hidden", "3"]
    assert call(capsys, "train", "--steps", 1, *words).status == 0
    before = names_in(tmp_path)

    for help in (["--help"], ["train", "--help"]):
        process = python("-m", "torch_port", *help, cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
        assert (process.returncode, process.stderr) == (0, "")
        assert process.stdout.startswith("usage: python -m torch_port")
    program = (
        "import sys, torch_port\n"
        "from numpy_ref.cli import main\n"
        f"path, words = {str(path)!r}, {list(map(str, words))!r}\n"
        "light = [['inspect', path], ['verify', path], ['diff', path, path], ['boundary']]\n"
        "heavy = [['train', '--steps', '2', *words], ['demo'], ['train', '--data', 'missing.csv', '--json']]\n"
        "statuses = [main(torch_port, words) for words in light + heavy]\n"
        "print(statuses, file=sys.stderr)"
    )
    process = python("-c", program, cwd=tmp_path, PYTHONDONTWRITEBYTECODE="1")
    *refusals, statuses = process.stderr.splitlines()
    assert statuses == str([0, 0, 0, 0, 2, 2, 2])
    line = "torch_port needs PyTorch, and cannot import it: No module named 'torch'; install the 'torch' extra, "
    assert refusals == [line + "pip install '.[torch]'"] * 3
    assert (names_in(tmp_path), names_in(path.parent)) == (before, [path.name])


# Devices


def test_a_run_is_made_and_resumed_and_trained_on_the_device_that_is_asked_for(train_with):
    places, made = [], []

    @contextmanager
    def on_device(name):
        places.append(name)
        try:
            yield
        finally:
            places.pop()

    def noting(name):
        def noted(*words, **options):
            made.append((name, *places))
            return getattr(numpy_ref, name)(*words, **options)

        return noted

    names = ("init_run", "resume_from_full_checkpoint", "train_n_steps", "evaluate")
    impl = other_package(on_device=on_device, **{name: noting(name) for name in names})
    assert train_with(impl, 1, "--device", "here:1").status == 0
    assert train_with(impl, 2).status == 0
    first, second = [(name, "here:1") for name in names], [(name, "cpu") for name in names]
    assert made == [first[0], *first[2:], *second[1:]]


def test_the_demo_and_its_other_process_are_on_the_device_that_is_asked_for(capsys, monkeypatch, tmp_path):
    from numpy_ref.cli import demo

    places, seen = [], []

    @contextmanager
    def on_device(name):
        places.append(name)
        try:
            yield
        finally:
            places.pop()

    def noted(impl, directory, words, note):
        seen.append((impl.__name__, *places, *words))
        raise ValueError("enough")

    monkeypatch.setattr(demo, "run_demo", noted)
    words = ["demo", "--figure", tmp_path / "demo.svg"]
    assert call(capsys, *words, "--device", "here:1", impl=other_package(on_device=on_device)).status == 2
    assert call(capsys, *words, impl=numpy_ref).status == 2
    assert seen == [("other", "here:1", "--device", "here:1"), ("numpy_ref",)]


@NO_TORCH
@pytest.mark.parametrize("name", ["nowhere", "cuda:99", "xpu", "meta", ""])
@pytest.mark.parametrize("verb", ["train", "demo"])
def test_a_device_that_is_not_there_is_refused_before_anything_is_written(capsys, monkeypatch, tmp_path, verb, name):
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, verb, "--device", name, impl=torch_port)
    assert (answer.status, answer.out) == (2, "")
    assert len(answer.err.splitlines()) == 1
    assert f"found {name!r}" in answer.err
    assert list(tmp_path.iterdir()) == []


# Tables


def cells(text):
    """The cells of tables of either kind, and the lines around them."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    found = {cell.strip() for line in text.splitlines() for cell in re.split(r"[│┃|]|\s{2,}", line)}
    return {cell for cell in found if cell and not set(cell) <= set("-━─┏┓┗┛┡┩╇┳┻├┤┼┴┬└┘┌┐╞╡╪ ")}


def on_a_terminal(monkeypatch):
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "600")
    monkeypatch.setenv("TERM", "xterm")


@ON_FILES
def test_rich_draws_the_same_table_on_a_terminal_only(capsys, train, tmp_path, monkeypatch):
    train(2)
    train(3, name="other")
    monkeypatch.setenv("COLUMNS", "600")
    commands = [
        ["inspect", step(tmp_path / "run", 2)],
        ["diff", step(tmp_path / "run", 2), step(tmp_path / "other", 3)],
    ]
    for words in commands:
        monkeypatch.undo()
        monkeypatch.setenv("COLUMNS", "600")
        plain = call(capsys, *words)
        on_a_terminal(monkeypatch)
        drawn = call(capsys, *words)
        assert plain.status == drawn.status
        assert "━" in drawn.out
        assert "━" not in plain.out
        assert cells(drawn.out) == cells(plain.out)


def test_json_stays_json_on_a_terminal(capsys, monkeypatch):
    on_a_terminal(monkeypatch)
    assert len(strict_json(call(capsys, "boundary", "--json").out)) == len(ROWS)


@ON_FILES
def test_without_rich_a_terminal_gets_plain_text(capsys, train, tmp_path, monkeypatch):
    train(2)
    path = step(tmp_path / "run", 2)
    monkeypatch.setenv("COLUMNS", "600")
    on_a_terminal(monkeypatch)
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)
    on_terminal = call(capsys, "inspect", path)
    assert on_terminal.status == 0
    assert "━" not in on_terminal.out
    monkeypatch.setattr(sys.stdout, "isatty", lambda: False)
    assert call(capsys, "inspect", path) == on_terminal


def test_a_narrow_table_wraps_its_last_column_and_loses_no_word(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    words = call(capsys, "boundary").out.split()
    for row in ROWS:
        assert set(row.reason.split()) <= set(words)


@pytest.mark.parametrize("terminal", [False, True])
@pytest.mark.parametrize("name", ["[red]w", "w[/red]", ":smile:", "w['a']"])
def test_a_leaf_is_shown_by_its_name_whatever_it_is(capsys, tmp_path, monkeypatch, name, terminal):
    path = tmp_path / "other.safetensors"
    with open(path, "wb") as file:
        write_container(file, {name: np.zeros(2)}, {})
    if terminal:
        on_a_terminal(monkeypatch)
    answer = call(capsys, "inspect", path)
    assert answer.status == 0
    assert name in cells(answer.out)


def test_no_command_needs_the_extra(tmp_path):
    """In a process that has neither of its packages."""
    program = (
        "import sys\n"
        "sys.modules['rich'] = sys.modules['matplotlib'] = None\n"
        "import numpy_ref\n"
        "from numpy_ref.cli import main\n"
        "path = 'run/step-00000001.safetensors'\n"
        "start = ['train', '--steps', '1', '--hidden', '3']\n"
        "commands = [start, ['inspect', path], ['verify', path], ['diff', path, path]]\n"
        "sys.exit(max(main(numpy_ref, words) for words in commands))"
    )
    process = python("-c", program, cwd=tmp_path)
    assert process.returncode == 0
    assert "3.00 times" in process.stdout


def test_a_second_process_in_a_directory_is_told_so_and_harms_nothing(train, tmp_path):
    train(4)
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    with sole_writer(tmp_path / "run"):
        for policy in ("auto", "never", "required"):
            answer = train(8, "--resume", policy)
            assert answer.status == 1
            assert "found another process at it" in answer.err
    assert {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before
    assert train(8).status == 0


@ON_FILES
def test_two_runs_of_other_settings_differ_though_their_states_agree(capsys, train, tmp_path):
    train(0)
    train(0, "--beta1", "0.5", name="other")
    answer = call(capsys, "diff", step(tmp_path / "run", 0), step(tmp_path / "other", 0))
    assert answer.status == 1
    assert "bitwise: the training state is the same" in answer.out
    assert "config/beta1" in answer.out


def test_errors_are_json_too_when_json_is_asked_for(capsys, tmp_path):
    for words in (["verify", "missing"], ["inspect", "missing"], ["train", "--data", "missing.csv"]):
        answer = call(capsys, *words, "--json")
        assert answer.status != 0
        told = strict_json(answer.out)
        assert told["holds"] is False
        assert "missing" in told["error"]


def test_steps_beyond_the_end_of_the_schedule_are_announced(train):
    train(20, "--schedule", "warmup_cosine")
    assert "from step 20 on the schedule's rate is zero" in train(25).err


# What a stranger's machine does


@pytest.mark.skipif(sys.platform == "win32", reason="a locale of POSIX")
def test_a_name_that_the_locale_cannot_print_is_escaped_and_costs_nothing(tmp_path):
    words = ("train", "--steps", "2", "--dir", "rün", "--hidden", "3")
    for verb in (words, ("verify", "--all", "rün"), ("inspect", "rün/step-00000002.safetensors")):
        done = python("-m", "numpy_ref", *verb, cwd=tmp_path, LC_ALL="C", PYTHONIOENCODING="ascii", PYTHONUTF8="0")
        assert (done.returncode, "Traceback" in done.stderr) == (0, False)
        assert re.search(r"r(\\xfc|\\udcc3\\udcbc)n", done.stdout)


@pytest.mark.skipif(sys.platform == "win32", reason="a closed pipe of POSIX")
def test_a_run_whose_reader_of_errors_is_gone_goes_on_to_its_end(tmp_path):
    ours, theirs = os.pipe()
    os.close(ours)
    words = [sys.executable, "-m", "numpy_ref", "train", "--steps", "20", "--dir", "run", "--hidden", "3"]
    env = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": ""}
    with os.fdopen(theirs, "w") as closed:
        done = subprocess.run(
            words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=closed, text=True, timeout=600
        )
    assert done.returncode == 0
    assert "step 20" in done.stdout
    assert [path.name for path in (tmp_path / "run").glob("*.safetensors")] == ["step-00000020.safetensors"]


def test_wrong_usage_is_told_as_json_too(capsys):
    answer = call(capsys, "train", "--steps", "abc", "--json")
    assert answer.status == FAILED
    assert strict_json(answer.out) == {
        "holds": False,
        "error": "argument --steps: expected a whole number >= 0, found 'abc'",
    }
    assert "usage: python -m numpy_ref train" in answer.err
    assert call(capsys, "train", "--steps", "abc").out == ""


@pytest.mark.parametrize(
    "words", [("inspect", "nope"), ("verify", "nope"), ("diff", "nope", "nope"), ("verify", "--all", "nope")]
)
def test_what_is_not_there_is_no_verdict(capsys, monkeypatch, tmp_path, words):
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, *words)
    assert (answer.status, answer.out) == (FAILED, "")
    assert answer.err.startswith("nope: expected ")


def test_a_refusal_of_the_system_names_the_path_and_says_what_to_do(capsys, monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    answer = call(capsys, "walk", "--figures", "file")
    assert answer.status == FAILED
    assert answer.err == "file: the system refuses: File exists.\n    Check the path, its permissions and the disk.\n"
