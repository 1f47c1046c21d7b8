"""What differs after a load, and what of it matters: nothing is named that changes nothing, nothing is alarming."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from parity_tests.audit import loops
from torch_port.audit import Report, audit
from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.attribution import Suspect, _name, effective
from torch_port.audit.judge.causes import MOST_LINES
from torch_port.audit.judge.record import (
    Delivery,
    Leaf,
    Record,
)
from torch_port.audit.judge.workers import Workers
from torch_port.audit.loop.values import leaf


def audited(workers: Workers, loop: type, at: Sequence[int] = (7,)) -> Report:
    return audit(f"{loop.__module__}:{loop.__name__}", steps=13, at=at, power=False, workers=workers)


# Batches that are fetched again


def run_of(batches: dict[int, list[Any]], named: bool = True, **others: Any) -> Record:
    """A run that got these batches at its steps; `others` are leaves at its last one."""
    record = Record.__new__(Record)
    record.deliveries = {
        step: [Delivery("loader", 0, one if named else None, f"digest of {one}") for one in found]
        for step, found in batches.items()
    }
    record.at = {step: {"samples": leaf("samples", found)} for step, found in batches.items()}
    record.at[max(record.at)].update({path: leaf(kind, value) for path, (kind, value) in others.items()})
    return record


EPOCH = st.permutations(range(6))


@given(EPOCH, st.integers(1, 4), st.integers(1, 6), st.integers(0, 2), st.booleans())
def test_what_is_fetched_again_is_known(order: list[int], stop: int, again: int, ahead: int, named: bool) -> None:
    whole = {1: order[: 1 + ahead]} | {step: order[step + ahead - 1 : step + ahead] for step in range(2, 7)}
    due = whole[stop + 1]
    before = [one for step in range(1, stop + 1) for one in whole[step]]
    head = before[-again:]
    a = run_of(whole, named)
    later = {step: found for step, found in whole.items() if step > stop + 1}
    assert judge.fetched_again(a, run_of({stop + 1: head + due, **later}, named), stop)
    assert not judge.compare(a, run_of({stop + 1: head + due, **later}, named), stop).faults
    for other in (
        [*before, before[0], *due],
        [9, *due],
        head if due else [9],
        due,
    ):
        assert not judge.fetched_again(a, run_of({stop + 1: other, **later}, named), stop)
    if later:  # it goes on differently
        assert judge.compare(a, run_of({stop + 1: head + due, **later, max(later): [9]}, named), stop).faults


@pytest.mark.parametrize(
    ("kind", "fault"), [("gradient", True), ("loss", True), ("parameter", True), ("position", False)]
)
def test_what_follows_from_batches_that_are_fetched_again_tells(kind: str, fault: bool) -> None:
    a = run_of({1: [1], 2: [2], 3: [3]}, x=(kind, 1))
    b = run_of({2: [1, 2], 3: [3]}, x=(kind, 2))
    found = judge.compare(a, b, 1)
    assert [one.path for one in found.faults] == ["samples"] * fault
    assert found.largest.get("samples", 0.0) == 0  # a run that is equal but for rounding is judged by the rest


# What changes nothing


@pytest.mark.campaign
def test_where_nothing_that_differs_matters_nothing_is_named(workers: Workers) -> None:
    (stop,) = audited(workers, loops.Precise).stops
    assert not stop.holds
    assert "model.grad" in stop.differing
    assert len(stop.differing) > 1
    assert (stop.lost, stop.proved) == ((), False), stop
    assert stop.first is not None
    assert stop.first.path == "loss/loss"
    assert "nothing that differs at the load, put back, changes what follows" in stop.cause
    assert "C extension" in stop.cause
    assert 0 < len(stop.advice) <= MOST_LINES
    assert not any("self." in line for line in stop.advice)


def test_what_cannot_be_put_back_stays_suspected(workers: Workers) -> None:
    (stop,) = audited(workers, loops.Frames).stops  # nothing can set a generator function's frame
    assert not stop.holds
    assert "model.grad" in stop.differing
    assert {name.partition(".")[0] for name in stop.lost} == {"stream"}, stop
    assert not stop.proved


NAMES = "abcdefghij"


@given(st.sets(st.sampled_from(NAMES)), st.lists(st.sets(st.sampled_from(NAMES), min_size=1), max_size=3))
def test_what_changes_anything_is_kept(names: set[str], matter: list[set[str]]) -> None:
    tried = []

    def same(chosen: Sequence[Suspect]) -> bool:
        tried.append(chosen)
        return not any(one <= {suspect.name for suspect in chosen} for one in matter)

    everyone = [Suspect(name, "counter", (name,)) for name in sorted(names)]
    found = {one.name for one in effective(same, everyone)}
    assert {name for one in matter for name in one if len(one) == 1} & names <= found  # alone
    assert bool(found) == any(one <= names for one in matter)  # together
    assert all(any(len(one & found) for one in matter) for _ in found)
    assert len(tried) <= max(1, 2 * len(names))


# What changes at all


@given(st.lists(st.sampled_from([None, 1, 2]), min_size=1, max_size=6))
def test_a_path_moves_when_it_has_two_values(values: list[int | None]) -> None:
    record = Record.__new__(Record)
    record.at = {
        step: {} if value is None else {"n": Leaf("counter", str(value), "int", (), "", value)}
        for step, value in enumerate(values)
    }
    assert judge.changing(record) == ({"n"} if len({*values} - {None}) > 1 else set())


# The name of several leaves


@pytest.mark.parametrize(
    ("group", "paths", "name"),
    [
        ("model", ["model.first.weight", "model.first.bias"], "model.first"),
        ("model", ["model.first.weight", "model.firm.weight"], "model"),
        ("model.grad", ["model.first.weight.grad", "model.last.bias.grad"], "model.grad"),
        ("model.training", ["model.training", "model.1.training"], "model.training"),
        ("optimizer/exp_avg", ["optimizer/exp_avg/net.0.bias", "optimizer/exp_avg/net.0.weight"], "optimizer/exp_avg"),
        ("optimizer", ["optimizer.slow[0]", "optimizer.slow[1]"], "optimizer.slow"),
        ("optimizer", ["optimizer.slow[0]"], "optimizer.slow[0]"),
        ("run", ["left.x", "right.x"], "run"),
    ],
)
def test_several_leaves_have_the_longest_common_path(group: str, paths: list[str], name: str) -> None:
    assert _name(group, paths) == name


# A loop that ends


def test_a_loop_that_ends_only_when_it_is_resumed_is_told_so(workers: Workers) -> None:
    report = audited(workers, loops.EndsWhenResumed)
    failure = report.failure
    assert report.verdict == "broken"
    assert failure is not None
    assert failure.phase == "step 11, resumed after step 7"
    assert failure.error == (
        "StopIteration: the loop that was resumed after step 7 ended after step 10; the one that never stopped went on"
    )
