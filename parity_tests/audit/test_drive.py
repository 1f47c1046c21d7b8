"""The audit of whole loops, each run in worker processes."""

import json
import os
import random  # noqa: TID251
import signal
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import numpy as np

from parity_tests.audit import loops
from torch_port.audit import Report, audit
from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.attribution import Suspect, find
from torch_port.audit.judge.findings import as_plain
from torch_port.audit.judge.record import (
    Leaf,
    Record,
    difference,
    ulps_between,
)
from torch_port.audit.judge.stops import checked_stops
from torch_port.audit.judge.stored import is_saved
from torch_port.audit.judge.workers import Workers

STEPS = 13  # the rate is halved after the tenth


def audited(workers: Workers, name: str, at: object = (7,), **options: object) -> Report:
    return audit(f"{loops.__name__}:{name}", steps=STEPS, at=at, workers=workers, **{"power": False, **options})


def test_a_loop_that_saves_everything_is_bitwise_at_every_step(workers: Workers) -> None:
    report = audited(workers, "Everything", None, every_step=True)
    assert (report.verdict, report.status, report.first_lost) == ("bitwise", 0, None), report
    assert [stop.at for stop in report.stops] == [(step,) for step in range(1, STEPS)]
    assert json.loads(json.dumps(as_plain(report))) == as_plain(report)


@pytest.mark.campaign
def test_several_stops_in_one_run_and_chosen_stops(workers: Workers) -> None:
    assert audited(workers, "Everything", [(3, 7, 12), 5]).verdict == "bitwise"
    chosen = audited(workers, "Loader", None)
    assert {1, STEPS - 1} < {step for stop in chosen.stops for step in stop.at}
    assert any(len(stop.at) > 1 for stop in chosen.stops)
    assert (chosen.verdict, chosen.first_lost) == ("broken", "loader.position")


@pytest.mark.campaign
@pytest.mark.parametrize("name", loops.NAMED)
def test_a_forgotten_state_is_named_first_and_proved(workers: Workers, name: str) -> None:
    (stop,) = audited(workers, f"Forgets_{name}", [{"train": 12, "best": 9}.get(name, 7)]).stops
    assert not stop.holds
    assert stop.proved, stop
    assert stop.lost[0].startswith(loops.NAMED[name]), stop
    assert all(one.startswith(loops.NAMED[name]) for one in stop.lost), stop  # and nothing else
    assert stop.cause
    assert stop.advice


PARTS = st.sampled_from(["a", "b", "count", "k"])


@given(PARTS, PARTS, st.sampled_from(["", "_"]), st.booleans())
def test_a_number_is_saved_under_its_own_name_only(name: str, other: str, mark: str, equal: bool) -> None:
    one = Leaf("counter", "7", "int", (), "", 7)
    found = is_saved({f"run.{other}": "7" if equal else "8", "9": "9"}, f"order.{mark}{name}", one)
    assert found is ((True if name == other else None) if equal else False)
    weight = Leaf("other", "7", "float32", (3,), "cpu")
    assert is_saved({f"run.{other}": "7"}, name, weight) is True  # its bytes tell
    buffer = weight._replace(kind="buffer")
    assert is_saved({f"model.1.{other}": "7"}, f"model.1.{name}", buffer) is (True if name == other else None)
    assert is_saved({"optimizer.state.0.step": "7"}, "optimizer/step/0.weight", one) is True


def test_a_loop_that_ends_early_is_told_its_steps(workers: Workers) -> None:
    failure = audited(workers, "Ends", [2]).failure
    assert failure is not None
    assert failure.error == "StopIteration: the loop ended after 5 steps; use --steps 5"


def test_the_drift_of_a_generator_is_counted(workers: Workers) -> None:
    (stop,) = audited(workers, "Forgets_own").stops
    assert "behind by 7 64-bit draws" in stop.cause


def test_a_save_with_side_effects_and_a_missing_seed_are_no_deterministic_loop(workers: Workers) -> None:
    saving = audited(workers, "SavesWithADraw")
    assert (saving.verdict, saving.status) == ("not deterministic", 1)
    assert saving.control is not None
    assert "to save changes the run" in saving.control.notes[0]
    assert saving.control.first is not None
    assert saving.control.first.step == 8
    unseeded = audited(workers, "Unseeded")
    assert unseeded.verdict == "not deterministic"
    assert unseeded.control is not None
    assert unseeded.control.notes == ("not seeded when the run is constructed: own",)
    assert unseeded.control.floor


def test_power_tells_which_losses_are_caught(workers: Workers) -> None:
    report = audited(workers, "Everything", power=True)
    needed = {state.path: state.needed for state in report.states}
    for path in ("rng/torch", "rng/numpy", "own", "optimizer/exp_avg", "order.used", "model", "average", "schedule"):
        assert needed[path], (path, report.states)
    assert all(state.saved for state in report.states if state.path in ("own", "model", "order.generator"))


def test_loads_are_checked(workers: Workers) -> None:
    assert "load_state_dict changed nothing" in audited(workers, "LoadsNothing").warnings
    said = audited(workers, "KeepsThePast").warnings
    assert not any("live values" in line for line in said)  # they are written at once
    assert not any("changed nothing" in line or "loaded and saved again" in line for line in said)
    again = audited(workers, "Forgets_best").warnings
    assert "a state that is loaded and saved again differs: 'best'" in again


@pytest.mark.parametrize(
    ("name", "phase", "error"),
    [
        ("Raises", "step 4", "ValueError: the third batch"),
        ("Leaves", "step 4", "SystemExit: the third batch"),
        ("Dies", "step 4", "the process ended with status 3"),
        ("CannotSave", "save after step 7", "local object"),
        ("CannotLoad", "load after step 7", "KeyError: 'nothing'"),
        ("CannotBeMade", "construct", "RuntimeError: no data"),
        ("NoRun", "construct", "it lacks state_dict, load_state_dict"),
        ("Nobody", "import", "has no attribute 'Nobody'"),
    ],
)
def test_the_user_s_failure_is_told_with_its_phase(workers: Workers, name: str, phase: str, error: str) -> None:
    if name == "CannotSave":
        name_of_test_loop = f"{loops.__name__}:{name}"
        report = audit(name_of_test_loop, steps=STEPS, at=[7], workers=workers)
    else:
        report = audited(workers, name)
    resumes = phase.startswith("load")  # and the run that never stopped goes on
    assert (report.verdict, report.status) == (("broken", 1) if resumes else ("failed", 2))
    assert report.failure is not None
    assert report.failure.phase == phase
    assert error in report.failure.error
    assert "torch_port/audit" not in report.failure.traceback
    if name in ("Raises", "Leaves", "CannotLoad", "CannotBeMade"):
        assert 'loops.py", line' in report.failure.traceback
    assert json.loads(json.dumps(as_plain(report))) == as_plain(report)


def test_a_hang_is_told_with_the_user_s_frames(workers: Workers) -> None:
    report = audited(workers, "Hangs", timeout=4.0)
    assert report.failure is not None
    assert report.failure.phase == "hang in step 4"
    assert "time.sleep(60)" in report.failure.traceback
    assert "torch_port/audit" not in report.failure.traceback
    assert audited(workers, "Everything").verdict == "bitwise"  # the workers go on


@pytest.mark.campaign
def test_the_process_is_as_it_was(workers: Workers) -> None:
    def state() -> object:
        return (
            torch.get_rng_state().tolist(),
            random.getstate(),
            np.random.get_state()[1].tolist(),  # noqa: NPY002
            os.getcwd(),
            torch.get_num_threads(),
            torch.are_deterministic_algorithms_enabled(),
            dict(os.environ),
            signal.getsignal(signal.SIGINT),
            signal.getsignal(signal.SIGALRM),
            signal.getsignal(signal.SIGCHLD),
        )

    before = state()
    audited(workers, "Everything")
    assert state() == before
    with Workers() as own:
        assert audited(own, "Dies").verdict == "failed"
        processes = [worker.process for worker in own.all]
    assert all(process.returncode is not None for process in processes)
    assert not [
        thread for thread in threading.enumerate() if thread.name.startswith("ThreadPool") and not thread.daemon
    ][4:]


@pytest.mark.parametrize("at", [[], [0], [STEPS], [(7, 3)], [()], [(3, 3)]])
def test_stops_that_are_none_are_refused(at: list[object]) -> None:
    with pytest.raises(ValueError, match=f"expected rising steps from 1 to {STEPS - 1}"):
        checked_stops(at, STEPS)
    with pytest.raises(ValueError, match="module:Name"):
        audit("nothing")
    with pytest.raises(TypeError, match="top level of a module"):
        audit(lambda: None)


NAMES = tuple("abcdefghij")


@given(st.sets(st.sampled_from(NAMES)), st.sets(st.sampled_from(NAMES), min_size=1))
def test_exactly_the_needed_suspects_are_found(needed: set[str], given_: set[str]) -> None:
    everyone = [Suspect(name, "counter", (name,)) for name in sorted(given_)]
    found = find(lambda chosen: needed <= {one.name for one in chosen}, everyone)
    assert found.proved == (needed <= given_)
    if needed and found.proved:
        assert {one.name for one in found.lost} == needed
    guessed = find(lambda chosen: needed <= {one.name for one in chosen}, everyone, tuple(given_))
    assert {one.name for one in guessed.lost} == {one.name for one in found.lost}


@given(st.lists(st.sets(st.sampled_from(NAMES), min_size=1), min_size=1, max_size=4))
def test_of_several_ways_a_minimal_one_is_found(ways: list[set[str]]) -> None:
    def equal(chosen: list[Suspect] | tuple[Suspect, ...]) -> bool:
        return any(way <= {one.name for one in chosen} for way in ways)

    found = find(equal, [Suspect(name, "counter", (name,)) for name in NAMES])
    assert found.proved
    assert equal(found.lost)
    for one in found.lost:
        assert len(found.lost) == 1 or not equal([other for other in found.lost if other != one])


@given(st.floats(-(2.0**100), 2.0**100, width=32), st.integers(0, 1000))
def test_distances_count_the_numbers_between(x: float, steps: int) -> None:
    y = np.float32(x)
    for _ in range(steps % 50):
        y = np.nextafter(y, np.float32(np.inf))
    assert ulps_between(x, float(y), "float32") in (steps % 50, steps % 50 + (x <= 0 <= y))  # the two zeros


def _record(values: list[tuple[float, int]]) -> Record:
    """A run with a weight, a counter and a generator."""
    record = Record.__new__(Record)
    record.deliveries = {}
    record.at = {
        step: {
            "model.w": Leaf("parameter", str(weight), "float32", (), "cpu", weight),
            "count": Leaf("counter", str(count), "int", (), "", count),
            "rng/torch": Leaf("generator", str(step + len(values)), "Generator"),
        }
        for step, (weight, count) in enumerate(values)
    }
    return record


RUNS = st.lists(st.tuples(st.floats(-1, 1, width=32), st.integers(0, 3)), min_size=3, max_size=6)


@given(RUNS, st.data())
def test_a_result_that_differs_is_seen_at_its_first_step(values: list[tuple[float, int]], data: st.DataObject) -> None:
    step = data.draw(st.integers(1, len(values) - 1))
    other = [(w + 2, c) if place >= step else (w, c) for place, (w, c) in enumerate(values)]
    a, b = _record(values), _record(other)
    found = judge.compare(a, b, 0)
    assert [(one.step, one.path) for one in found.faults] == [(step, "model.w")]
    assert not judge.compare(a, a, 0).faults
    lone = [(w, c + 9) if place >= step else (w, c) for place, (w, c) in enumerate(values)]
    counts = {c for _, c in values}
    assert bool(judge.compare(a, _record(lone), 0).faults) == (len(counts) > 1)  # what never changes is a setting


MUTANTS = [
    ("compare.judged", lambda path, kind, moves: False),
    ("compare._same", lambda a, b: a is not None and b is not None),
    ("attribution._minimal", lambda equal, kept: kept),
    ("attribution._minimal", lambda equal, kept: kept[:1]),
    ("stored.last_name", lambda path: ""),
]


@pytest.mark.parametrize(("name", "wrong"), MUTANTS)
def test_a_mutant_of_the_judge_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, wrong: object) -> None:
    monkeypatch.setattr(f"torch_port.audit.judge.{name}", wrong)
    caught = 0
    for check in (
        test_exactly_the_needed_suspects_are_found,
        test_of_several_ways_a_minimal_one_is_found,
        test_a_result_that_differs_is_seen_at_its_first_step,
        test_a_number_is_saved_under_its_own_name_only,
    ):
        try:
            check()
        except BaseException:  # hypothesis wraps several failures in a group
            caught += 1
    assert caught


def test_a_difference_says_what_it_can() -> None:
    a, b = Leaf("counter", "1", "int", (), "", 1), Leaf("counter", "2", "int", (), "", 2)
    assert difference(3, "n", a, None).found == "nothing"
    assert difference(3, "n", a, b).expected == 1
    assert str(difference(3, "n", a, None)) == "step 3: n: expected 1, found 'nothing'"
