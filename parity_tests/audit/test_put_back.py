"""What a trial puts back beyond plain states: batches, positions, a hash seed; and the losses that are tried."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from parity_tests.audit import loops_of_data as loops
from torch_port.audit import Report, audit
from torch_port.audit.judge import attribution
from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.record import (
    Leaf,
    Record,
    batch_file,
)
from torch_port.audit.judge.workers import Workers
from torch_port.audit.loop import samples
from torch_port.audit.loop.samples import ENDED, Feeder, Keeper

ZOO = "parity_tests.zoo.faulty_data"


def audited(workers: Workers, name: str, at: object = (7,), **options: object) -> Report:
    target = name if ":" in name else f"{loops.__name__}:{name}"
    return audit(target, steps=13, at=at, workers=workers, **{"power": False, **options})


# Batches


def test_batches_that_take_too_much_room_prove_nothing(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attribution, "MOST", 100)
    (stop,) = audited(workers, "DrawsInWorkers").stops
    assert (stop.lost[0], stop.proved) == ("samples", False), stop
    assert "the batches were not put back" in stop.cause


def test_each_pass_of_persistent_workers_is_one_of_its_own(workers: Workers, tmp_path: Path) -> None:
    audited(workers, "Persists", keep=str(tmp_path))
    record = Record(str(next(tmp_path.glob("*-A.json"))))
    passes: dict[int, list[int]] = {}
    for found in record.deliveries.values():
        for one in found:
            passes.setdefault(one.iterator, []).extend(one.ids)
    assert [len(ids) for ids in passes.values()] == [loops.SAMPLES, loops.SAMPLES, 12]
    assert all(len(set(ids)) == len(ids) for ids in passes.values())
    assert len({tuple(ids[:12]) for ids in passes.values()}) == 3


def test_a_batch_of_a_class_is_told_by_what_it_holds() -> None:
    one, other = loops.Batch(torch.ones(2)), loops.Batch(torch.zeros(2))
    one.x, again = {"x": [one, torch.ones(2)]}, loops.Batch(torch.ones(2))  # type: ignore[assignment]
    assert len({samples._digest(batch) for batch in (one, other, again, (again, 1))}) == 4
    assert samples._digest(again) == samples._digest(loops.Batch(torch.ones(2)))


KEPT = st.lists(st.lists(st.tuples(st.sampled_from("ab"), st.booleans()), max_size=4), max_size=4)


@given(KEPT, st.integers(0, 3), st.integers(1, 4000))
def test_what_was_kept_is_delivered_by_loader_and_step(
    tmp_path_factory: pytest.TempPathFactory, given_: list[list[tuple[str, bool]]], after: int, most: int
) -> None:
    folder = str(tmp_path_factory.mktemp("kept"))
    keeper, steps, sizes = Keeper(folder, after, most), {}, 0
    for step, found in enumerate(given_, 1):
        steps[str(step)] = [(name, 0, [step, place], "" if end else "x") for place, (name, end) in enumerate(found)]
        for place, (_, end) in enumerate(found):
            keeper.keep(step, place, ENDED if end else torch.tensor([step, place]))
            file = batch_file(folder, step, place)
            sizes += file.stat().st_size if file.exists() else 0
            assert not (file.exists() and (end or step <= after))
    assert sizes <= most
    whole = all(
        batch_file(folder, int(step), place).exists()
        for step, found in steps.items()
        for place, one in enumerate(found)
        if one[3] and int(step) > after
    )
    feeder = Feeder(folder, {step: found for step, found in steps.items() if int(step) > after})
    for step in range(1, len(given_) + 1) if whole else ():
        for name in "ba":
            for place, (other, end) in enumerate(given_[step - 1]):
                if other != name:
                    continue
                ids, batch = feeder.instead_of(step, name, "own", "own")
                if step <= after:
                    assert (ids, batch) == ("own", "own")
                elif end:
                    assert batch is ENDED
                else:
                    assert (ids, batch.tolist()) == ([step, place], [step, place])
            assert feeder.instead_of(step, name, "own", "own") == ("own", "own")  # it asks for more than there was


# The hash seed


def test_a_loop_that_a_hash_seed_decides_is_judged_with_one(workers: Workers) -> None:
    report = audited(workers, "HashedNoise", [2, 7, (2, 7)], power=True)
    assert report.verdict == "not deterministic"
    assert [stop.relation for stop in report.stops] == ["bitwise"] * 3
    assert report.control is not None
    assert "the order of a set or hash() matters" in report.control.notes[0]
    assert "PYTHONHASHSEED" in report.control.notes[1]
    assert report.control.notes[2] == "with the hash seed of the uninterrupted run every resume is equal"
    assert {state.path: state.needed for state in report.states}["own"] is True
    report = audited(workers, "ForgetsHashedNoise")
    (stop,) = report.stops
    assert (stop.lost, stop.proved) == (("own",), True), stop
    assert report.control is not None
    assert report.control.notes[2] == "with the hash seed of the uninterrupted run 1 of 1 resumes differ"


@pytest.mark.campaign
def test_a_resume_that_needs_the_same_hash_seed_is_told_so(workers: Workers) -> None:
    report = audited(workers, "GroupsFromASet", [3, 7])
    assert report.verdict == "broken"
    assert report.control is not None
    assert report.control.holds
    for stop in report.stops:
        assert stop.proved
        assert stop.lost == ("optimizer/exp_avg", "optimizer/exp_avg_sq"), stop
        assert "with the hash seed of the run that was stopped it is equal" in stop.cause
        assert "sorted(names), or start every run with the same PYTHONHASHSEED" in " ".join(stop.advice)
    (stop,) = audited(workers, "ForgetsAlways", [7]).stops
    assert "hash" not in stop.cause + " ".join(stop.advice)


# Power


@pytest.mark.campaign
def test_a_loss_is_tried_at_several_stops_until_it_is_caught(workers: Workers) -> None:
    report = audited(workers, "Windows", [3, 5, 7], power=True)
    states = {state.path: state for state in report.states}
    assert report.verdict == "bitwise"
    assert (states["total"].needed, states["total"].note) == (True, "its loss is caught")  # not after step 5
    assert (states["last"].needed, states["last"].note) == (False, "its loss changes nothing after steps 3, 5, 7")
    report = audited(workers, "Windows", [5], power=True)
    assert {state.path: state for state in report.states}["total"].note == "its loss changes nothing after step 5"


def test_losses_are_bounded_over_all_stops(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch_port.audit.judge.power.TRIED", 2)
    states = audited(workers, "Windows", [3, 5, 7], power=True).states
    tried = ("its loss is caught", "its loss changes nothing")
    assert sum(state.note.startswith(tried) for state in states) == 2
    assert any("its loss was not tried" in state.note for state in states)


@pytest.mark.campaign
def test_losses_of_a_run_that_is_equal_but_for_rounding_are_judged_by_that(workers: Workers) -> None:
    report = audited(workers, "SavesWithRounding", [3, 5, 7], power=True)
    assert report.verdict == "within", report
    needed = {state.path: state.needed for state in report.states}
    assert needed.items() >= {"total": True, "last": False, "i": True}.items(), report.states


@pytest.mark.campaign
def test_losses_of_a_broken_loop_are_tried_where_the_resume_holds(workers: Workers) -> None:
    report = audited(workers, "ForgetsLate", [3, 7], power=True)
    assert [stop.holds for stop in report.stops] == [True, False]
    states = {state.path: state for state in report.states}
    assert states["i"].needed is True
    assert states["last"].note == "its loss changes nothing after step 3"
    report = audited(workers, "ForgetsAlways", [3, 7], power=True)
    notes = {state.path: state.note for state in report.states}
    assert notes["i"] == "its loss was not tried: no resume holds"


@given(st.integers(2, 5), st.booleans())
def test_a_state_that_is_lost_and_changes_nothing_is_within_any_floor(steps: int, later: bool) -> None:
    def record(value: int, at: int) -> Record:
        found = Record.__new__(Record)
        found.deliveries = {}
        found.at = {
            step: {"m.w": Leaf("parameter", str(step == at and value), "float32", (), "", float(value))}
            for step in range(1, steps + 1)
        }
        return found

    at = 2 if later else 1
    apart = judge.compare(record(1, at), record(2, at), 1).largest
    assert judge.within(apart, {}) is not later
