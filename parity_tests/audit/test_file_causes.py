"""What the files of a script tell of a resume that differs."""

import pytest

torch = pytest.importorskip("torch")

from torch_port.audit import foreign
from torch_port.audit.judge.findings import Difference
from torch_port.audit.script.file_causes import COMES_BACK, LINES, UNTRIED, miscounted, stop_of

MODEL = {"model": {"layer.weight": torch.ones(3, 2), "layer.bias": torch.ones(2)}}
STATE = {
    "exp_avg": torch.ones(3, 2), "exp_avg_sq": torch.ones(3, 2), "step": torch.tensor(4.0),
}  # fmt: skip
OPTIMIZER = {"optimizer": {"state": {0: STATE}, "param_groups": [{"lr": 0.1, "params": [0, 1]}]}}
ENDS = [Difference(8, "a", 1.0, 2.0, 1.0), Difference(8, "b", 1.0, 4.0, 3.0)]


def read(*trees: dict) -> dict:
    return foreign.leaves_of({key: value for tree in trees for key, value in tree.items()})


def test_equal_ends_are_a_stop_that_holds() -> None:
    assert stop_of((3,), read(MODEL), None, []).holds


def test_what_a_load_changes_is_the_first_difference_and_comes_before_what_follows_from_it() -> None:
    saved = read(MODEL, OPTIMIZER, {"epoch": 3})
    moved = {"model": {**MODEL["model"], "layer.bias": torch.full((2,), 9.0)}}
    entries = {**STATE, "exp_avg": torch.zeros(3, 2)}
    found = read(moved, {"optimizer": {**OPTIMIZER["optimizer"], "state": {0: entries}}}, {"epoch": 3})
    stop = stop_of((3, 5), saved, foreign.differences(saved, found), ENDS)
    assert stop.lost[0].startswith("optimizer/exp_avg"), stop
    assert stop.lost[-1].startswith("model")
    assert (stop.first.step, stop.first.expected, stop.first.found) == (3, 1.0, 0.0)
    assert "(optimizer) is 0.0 then, not 1.0" in stop.cause
    assert stop.advice[0].startswith("optimizer is in the saved file: load it with optimizer.load_state_dict(...)")
    assert len(stop.advice) == 1 + sum(part.startswith("model") for part in stop.lost), "of the optimizer once"
    assert not stop.proved


@pytest.mark.parametrize("whole", [True, False])
def test_a_scheduler_is_named_whole_where_it_has_the_form_of_one(whole: bool) -> None:
    before = {"last_epoch": 3, "_step_count": 4} if whole else {"_step_count": 4, "other": 3}
    saved, moved = (read({"scheduler": state}) for state in (before, dict.fromkeys(before, 0)))
    advice = stop_of((3,), saved, foreign.differences(saved, moved), ENDS).advice
    if whole:
        (line,) = advice
        assert line.startswith("scheduler is in the saved file: load it with scheduler.load_state_dict(...), after")
    else:
        assert [line.split(" ")[0] for line in advice] == ["scheduler/_step_count", "scheduler/other"]


def test_what_the_file_lacks_is_told_with_the_lines_to_add() -> None:
    stop = stop_of((3,), read(MODEL), [], ENDS)
    assert stop.first == ENDS[1]  # the worst of the end
    assert stop.cause.startswith(COMES_BACK)
    assert "the file has no optimizer, " in stop.cause
    assert stop.advice == tuple(line for kind, line in LINES.items() if kind != "model")
    fuller = stop_of((3,), read(MODEL, OPTIMIZER, {"epoch": 3}), [], ENDS)
    assert "no optimizer" not in fuller.cause
    assert LINES["optimizer"] not in fuller.advice
    assert LINES["counter"] not in fuller.advice
    assert LINES["generator"] in fuller.advice
    assert stop_of((3,), read(MODEL), None, ENDS).cause.startswith(UNTRIED)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_narrow_type_in_the_file_is_told(dtype: torch.dtype) -> None:
    narrow = {"model": {name: value.to(dtype) for name, value in MODEL["model"].items()}}
    cause = stop_of((3,), read(narrow), [], ENDS).cause
    name = str(dtype).removeprefix("torch.")
    assert (f"is {name} in the file: rounded" in cause) == (dtype != torch.float32), cause


@pytest.mark.parametrize(("found", "line"), [(5, "{steps}, not {left}"), (11, "{left}, not {steps}"), (9, "--resume")])
def test_a_run_that_ended_at_another_step_is_told_first(found: int, line: str) -> None:
    saved = read(MODEL, {"epoch": 3})
    ends = [*ENDS, Difference(8, "epoch", 8, found, 8.0 - found)]
    stop = stop_of((3,), saved, [], ends)
    assert stop.first == ends[-1], "not the worst"
    assert stop.cause == f"the resumed run did not end at step 8: epoch is {found} then, not 8"
    assert len(stop.advice) == 1
    assert line in stop.advice[0]
    for other in (Difference(8, "epoch", 2, 1, 1.0), Difference(8, "model/layer.bias", 8, found, 1.0)):
        assert miscounted(saved, [other]) is None, "an epoch that is no step, or no counter"


def test_what_a_load_loses_is_told_beside_the_other_end() -> None:
    saved = read(MODEL, {"epoch": 3})
    moved = read({"model": {**MODEL["model"], "layer.bias": torch.full((2,), 9.0)}}, {"epoch": 3})
    ends = [Difference(8, "epoch", 8, 5, 3.0)]
    stop = stop_of((3,), saved, foreign.differences(saved, moved), ends)
    assert stop.cause.startswith("the resumed run did not end at step 8")
    assert "model" in stop.cause
    assert stop.first == ends[0]
    assert len(stop.advice) == 2
