"""Verdicts on loops as users write them: no fault passes unseen, no sound loop is blamed, and the words can be used."""

import functools
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from parity_tests.audit import loops
from parity_tests.audit import loops_of_users as users
from torch_port.audit import Report, audit
from torch_port.audit.judge.causes import advice
from torch_port.audit.judge.states import FIRST_VALUE
from torch_port.audit.judge.workers import Workers
from torch_port.audit.loop.expressions import within
from torch_port.audit.loop.observe import walk
from torch_port.audit.loop.restore import link
from torch_port.audit.report import words


def audited(workers: Workers, loop: Any, **options: Any) -> Report:
    target = loop if isinstance(loop, str) else f"{loop.__module__}:{loop.__qualname__}"
    return audit(target, **{"steps": 8, "at": (4,), "power": False, "workers": workers, **options})


def user_module(**held: Any) -> ModuleType:
    """A module of the user's that has these globals; its classes are of it."""
    module = ModuleType(__name__)
    vars(module).update(held)
    return module


# What methods close over


def test_methods_are_found_whatever_they_are_wrapped_in() -> None:
    plain, of_class, static, read, written = ([n] for n in range(5))

    class Run:
        def step(self, held: list[int] = plain) -> None: ...

        @classmethod
        def make(cls, held: list[int] = of_class) -> None: ...

        @staticmethod
        def help(held: list[int] = static) -> None: ...

        @property
        def rate(self) -> list[int]:
            return read

        @rate.setter
        def rate(self, value: int) -> None:
            written.append(value)

    found = [slot.value for slot in walk(Run(), user_module()).slots.values() if isinstance(slot.value, list)]
    for held in (plain, of_class, static, read, written):
        assert any(held is one for one in found), (held, found)


# Nothing to judge by


def test_a_run_of_which_nothing_is_seen_gets_no_verdict(workers: Workers) -> None:
    report = audited(workers, users.NothingMoves)
    assert (report.verdict, report.status) == ("failed", 2), report
    assert report.failure is not None
    assert report.failure.phase == "two uninterrupted runs"


# Seeds

UNSEEDED = """
import random

import numpy as np
import torch

{at_import}
w = {drawn}
class Run:
    def __init__(self):
        self.w, self.n = w, 0
    def step(self):
        self.n += 1
        return self.w * self.n
    def state_dict(self):
        return {{"w": self.w, "n": self.n}}
    def load_state_dict(self, state):
        self.w, self.n = state["w"], state["n"]
"""
DRAWS = {
    "torch": ("torch.manual_seed(0)", "torch.rand(()).item()"),
    "numpy": ("np.random.seed(0)", "float(np.random.rand())"),
    "python": ("random.seed(0)", "random.random()"),
}


@pytest.mark.campaign
@pytest.mark.parametrize(("library", "early"), [("torch", True), ("torch", False), ("numpy", True), ("python", False)])
def test_what_is_not_seeded_is_told_by_its_name(workers: Workers, tmp_path: Path, library: str, early: bool) -> None:
    seed, drawn = DRAWS[library]
    text = UNSEEDED if early else UNSEEDED.replace("= w, 0", "= {drawn}, 0").replace("\nw = {drawn}", "")
    (tmp_path / "unseeded.py").write_text(text.format(at_import="", drawn=drawn))
    report = audited(workers, f"{tmp_path}/unseeded.py:Run")
    assert (report.verdict, report.status) == ("not deterministic", 1), report
    assert report.control is not None
    assert report.control.notes[0] == f"not seeded: {library}"
    assert seed in report.control.notes[1].replace("numpy.random", "np.random")
    (tmp_path / "seeded.py").write_text(text.format(at_import=seed, drawn=drawn))
    assert audited(workers, f"{tmp_path}/seeded.py:Run").verdict == "bitwise"


# A resume that raises


@pytest.mark.parametrize(
    ("loop", "phase", "error"),
    [
        (users.RaisesOnLoading, "load after step 4", "ValueError: no such state"),
        (users.RaisesLater, "step 7, resumed after step 4", "ValueError: three steps after the load"),
    ],
)
def test_a_resume_that_raises_is_no_resume(workers: Workers, loop: type, phase: str, error: str) -> None:
    report = audited(workers, loop, at=(4, 5))
    assert (report.verdict, report.status) == ("broken", 1), report
    assert [(stop.holds, stop.relation) for stop in report.stops] == [(False, "raises")] * 2
    assert report.failure is not None
    assert report.failure[:2] == (phase, error)
    assert 'loops_of_users.py", line' in report.failure.traceback
    assert words.verdict(report).startswith("DOES NOT HOLD:")
    assert [name for name, _ in words.facts(report.stops[0], None)] == ["raises"]
    assert report.warnings == ()


def test_where_the_run_that_never_stopped_raises_there_is_no_verdict(workers: Workers) -> None:
    report = audited(workers, users.RaisesAnyway)
    assert (report.verdict, report.status) == ("failed", 2)
    assert report.failure is not None
    assert report.failure[:2] == ("step 6", "ValueError: the sixth step")


# Threads and the like


def test_of_what_the_standard_library_runs_only_the_user_s_part_is_seen(tmp_path: Path) -> None:
    class Fetcher(threading.Thread):
        def __init__(self) -> None:
            super().__init__()
            self.position = 3

    with open(tmp_path / "log", "w") as log:
        run = SimpleNamespace(a=threading.Event(), b=queue.Queue(), c=Fetcher(), d=log, e=threading.Lock())
        seen = walk(run)
    assert [path for path in seen.slots if not path.startswith("rng/")] == ["c.position"]
    assert set(seen.opaque) == {"a", "b", "c", "d"}


# What is saved


def test_what_is_as_in_a_fresh_run_at_every_stop_is_not_told_to_be_saved_or_restored(workers: Workers) -> None:
    report = audited(workers, users.CountsToZero, at=(2, 4))
    (odd,) = (state for state in report.states if state.path == "odd")
    assert (odd.saved, odd.restored) == (False, None), odd
    assert odd.note == FIRST_VALUE


# What the optimizer trains, and tied weights


def test_tensors_are_tied_and_untied_by_object_and_by_memory() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, bias=False) for _ in range(2)))
    run = SimpleNamespace(model=model)
    assert link(walk(run), {"model.1.weight": "model.0.weight"}) == []
    assert model[1].weight is model[0].weight
    assert walk(run).aliases == {"model.1.weight": "model.0.weight"}
    assert link(walk(run), {"model.1.weight": None}) == []
    assert model[1].weight is not model[0].weight
    assert isinstance(model[1].weight, torch.nn.Parameter)
    assert not walk(run).aliases
    held = model[1].weight
    assert link(walk(run), {"model.1.weight.data": "model.0.weight"}) == []
    assert model[1].weight is held
    assert walk(run).aliases == {"model.1.weight.data": "model.0.weight"}
    assert link(walk(run), {"model.1.weight.data": None}) == []
    assert not walk(run).aliases


def test_what_is_no_copy_is_not_told_to_be_saved(workers: Workers) -> None:
    report = audited(workers, users.BestByReference)
    (stop,) = report.stops
    assert (stop.lost, stop.proved) == (("best",), True), stop
    assert "is no copy of self.model.bias" in stop.advice[0]
    best = next(state for state in report.states if state.path == "best")
    assert best.saved is False
    assert "it is the memory of model.bias" in best.note


# Words


def test_a_file_that_is_refused_is_told_in_the_headline(workers: Workers) -> None:
    report = audited(workers, loops.SavesAnObject)
    assert report.holds, report
    assert words.verdict(report).endswith(f"But {words.REFUSED}, see the warnings.")
    assert words.REFUSED not in words.verdict(audited(workers, loops.Everything, steps=8))


def test_where_a_variable_of_a_function_lives_is_told() -> None:
    def numbers(held: list[object]) -> Iterator[int]:
        dice = held
        yield len(dice)

    def counted(x: int, calls: list[object] = [None, {}], *, last: list[object] = [{}]) -> int:  # noqa: B006
        return x + len(calls) + len(last)

    begun = numbers([{}])
    next(begun)
    seen = walk(SimpleNamespace(numbers=begun, counted=counted, partly=functools.partial(counted, calls=[{}])))
    here = "test_where_a_variable_of_a_function_lives_is_told.<locals>"
    assert within(seen, "numbers.dice") == f"dice, a variable of the generator {here}.numbers,"
    assert within(seen, "counted.__defaults__[0]") == f"calls, a default of {here}.counted,"
    assert within(seen, "counted.__kwdefaults__.last") == f"last, a default of {here}.counted,"
    assert within(seen, "partly.keywords.calls") == ""
    words_of = {"numbers.dice": within(seen, "numbers.dice")}
    line = advice("numbers.dice", "generator", None, {}, "numpy.Generator", words_of)
    assert line.startswith("keep dice, a variable of the generator")
