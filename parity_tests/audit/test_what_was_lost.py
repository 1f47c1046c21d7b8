"""What was lost, in words, and the first difference: the cause before what follows from it."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from parity_tests.audit import loops
from torch_port.audit import Report, audit
from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.attribution import Suspect
from torch_port.audit.judge.causes import cause, keys_unmatched, other_type
from torch_port.audit.judge.record import Leaf, difference
from torch_port.audit.judge.stored import is_saved
from torch_port.audit.judge.workers import Workers
from torch_port.audit.loop.checks import other_types
from torch_port.audit.loop.values import leaf


def audited(workers: Workers, name: str, at: int) -> Report:
    return audit(f"{loops.__name__}:{name}", steps=at + 2, at=[at], power=False, workers=workers)


def test_the_first_difference_is_the_lost_state_as_soon_as_it_is_loaded(workers: Workers) -> None:
    (stop,) = audited(workers, "Forgets_optimizer", 4).stops
    assert stop.first is not None
    assert (stop.first.step, stop.first.path.partition("/")[0]) == (4, "optimizer")
    (stop,) = audited(workers, "Forgets_own", 4).stops  # a generator has no value to show: what it changes is shown
    assert stop.first is not None
    assert (stop.first.step, stop.first.path) == (5, "loss/loss")


TENSOR = torch.linspace(-1, 1, 7)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("size", [1, 7, 64])
def test_a_tensor_of_another_type_in_the_file_is_known_by_its_value(dtype: torch.dtype, size: int) -> None:
    one, other = torch.linspace(0.1, 1, size), torch.linspace(0.2, 1, size) + 1
    tensors = {"optimizer/step/w": one, "average.w": other}
    leaves = {path: leaf("", tensor) for path, tensor in tensors.items()}
    name = str(dtype).removeprefix("torch.")
    saved = {"optimizer": {"state": {0: {"step": one.to(dtype)}}}, "average": {"w": other}}
    assert other_types(saved, tensors, leaves) == {"optimizer/step/w": name}
    if size == 1:  # one number may be any: the name must fit
        assert other_types({"count": one.to(dtype)}, tensors, leaves) == {}
    assert other_types({"step": TENSOR.to(dtype)}, {"step": one}, leaves | {"step": leaf("", one)}) == {}


def test_what_keeps_its_value_is_not_called_rounded() -> None:
    here, there = {"n": leaf("", torch.tensor(2.0))}, {"n": leaf("", torch.tensor(2.0, dtype=torch.float16))}
    assert cause("n", "other", here, there, {}) == "n is float16 after the load and float32 in the run"
    there = {"n": leaf("", torch.tensor(3.0, dtype=torch.float16))}
    assert cause("n", "other", here, there, {}).endswith(": rounded")
    assert other_type("n", ["n"], here, here, {}) is None
    shown = difference(3, "n", here["n"], leaf("", torch.tensor(2.0, dtype=torch.float64)))
    assert (shown.expected, shown.found, shown.distance) == ("2.0 in float32", "2.0 in float64", 0.0)


def test_a_list_is_written_as_it_is() -> None:
    here, there = {"seen": leaf("", [1, 2])}, {"seen": leaf("", ["a"])}
    assert cause("seen", "counter", here, there, {}) == "seen is ['a'] after the load, not [1, 2]"
    here, there = {"name": leaf("", "x")}, {"name": leaf("", "y")}
    assert cause("name", "counter", here, there, {}) == "name is 'y' after the load, not 'x'"


def _leaf(kind: str, value: Any) -> Leaf:
    return leaf(kind, value)


def test_within_a_step_samples_and_loss_come_before_what_they_change() -> None:
    kinds = ["parameter", "optimizer", "loss", "samples", "mode", "counter"]
    order = sorted(kinds, key=lambda kind: judge.telling("x", kind))
    assert order == ["mode", "samples", "loss", "optimizer", "parameter", "counter"]
    here = {"rng/torch": _leaf("generator", torch.Generator().manual_seed(1)), "best": _leaf("counter", 1)}
    there = {"rng/torch": _leaf("generator", torch.Generator().manual_seed(2)), "best": _leaf("counter", 2)}
    lost = [Suspect("rng/torch", "generator", ("rng/torch",)), Suspect("best", "counter", ("best",))]
    first = judge.at_load(3, lost, here, there)
    assert first is not None
    assert (first.step, first.path, first.expected, first.found) == (3, "best", 1, 2)
    assert judge.at_load(3, lost[:1], here, there) is None


def test_of_values_that_are_equal_the_one_with_the_names_is_saved() -> None:
    model, target = "model.0.weight", "nets[1].0.weight"
    leaves = {path: Leaf("parameter", "7", "float32", (2,), "cpu") for path in (model, target)}
    for saved, found in [
        ({model: "7"}, (True, False)),
        ({model: "7", "other.0.weight": "7"}, (True, True)),  # one for each
        ({"weights.0.weight": "7"}, (None, None)),
        ({model: "8"}, (False, False)),
    ]:
        assert tuple(is_saved(saved, path, one, leaves) for path, one in leaves.items()) == found, saved


def test_keys_are_told_to_be_mended_as_they_differ() -> None:
    for missing, unexpected, line in [
        (["a", "b"], ["m.a", "m.b"], "take 'm.' from the beginning of the saved keys"),
        (["m.a", "m.b"], ["a", "b"], "put 'm.' before the saved keys"),
        (["a"], ["z"], "give the saved keys the names that the module has"),
        (["a"], [], "save net.state_dict() with all of its keys"),
    ]:
        end, line_to_change = keys_unmatched(["net.a", "net.m.a"], {"net": (missing, unexpected)})
        assert end
        assert line_to_change.startswith(line)
    assert keys_unmatched(["other.a"], {"net": (["a"], [])}) == ("", "")
