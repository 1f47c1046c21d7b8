"""What the walk sees of a run object, and that every state it sees can be put back."""

import enum
import itertools
import signal
import types
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import numpy as np

from parity_tests.audit.loops import Everything, Loader
from torch_port.audit.judge.record import Leaf, difference, leaf_from_plain
from torch_port.audit.loop.expressions import expression
from torch_port.audit.loop.observe import observe, state_of, walk
from torch_port.audit.loop.places import MISSING
from torch_port.audit.loop.restore import link, make_containers, put_back
from torch_port.audit.loop.values import decode, encode, leaf


class Thing:
    """An object with whatever attributes."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def kept(run: Any) -> dict[str, Any]:
    """All values that can be set, copied as a file keeps them."""
    slots = walk(run).slots
    return {path: encode(state_of(slot.value)) for path, slot in slots.items() if slot.put or slot.drop}


def unsettable(run: Any) -> set[str]:
    return {path for path, slot in walk(run).slots.items() if slot.put is None and slot.drop is None}


@pytest.mark.parametrize("steps", [0, 1, 6])
def test_every_state_of_a_loop_goes_back_to_where_it_was(steps: int) -> None:
    run = Everything()
    for _ in range(steps):
        run.step()
    then, values = observe(walk(run)), kept(run)
    for _ in range(5):
        run.step()
    run.optimizer.zero_grad()
    gone = dict.fromkeys(walk(run).slots.keys() - then.keys(), MISSING)
    assert observe(walk(run)) != then
    assert put_back(walk(run), {**{path: decode(value) for path, value in values.items()}, **gone}) == []
    now = observe(walk(run))
    assert {path for path in now.keys() | then.keys() if now.get(path) != then.get(path)} <= unsettable(run)


def test_a_fresh_run_with_all_states_put_back_goes_on_as_the_other() -> None:
    run = Everything()
    for _ in range(7):
        run.step()
    values = kept(run)
    expected = [run.step()["loss"].item() for _ in range(5)]
    other = Everything()
    assert put_back(walk(other), {path: decode(value) for path, value in values.items()}) == []
    assert [other.step()["loss"].item() for _ in range(5)] == expected


def test_all_kinds_of_state_have_their_paths() -> None:
    run = Everything()
    run.step()
    slots = walk(run).slots
    for path, kind in {
        "model.0.weight": "parameter", "model.0.weight.grad": "gradient", "model.0.weight.requires_grad": "mode",
        "model.1.running_mean": "buffer", "model.1.training": "mode", "optimizer/exp_avg/0.weight": "optimizer",
        "optimizer/step/0.weight": "optimizer", "optimizer/lr": "schedule", "schedule.last_epoch": "schedule",
        "scaler.scale": "scaler", "scaler.growth_tracker": "scaler", "own": "generator", "order.generator": "generator",
        "order.permutation": "other", "order.used": "counter", "epoch": "counter", "average.0.weight": "other",
        "rng/torch": "generator", "rng/numpy": "generator", "rng/python": "generator",
    }.items():  # fmt: skip
        assert slots[path].kind == kind, path
    assert slots["optimizer/exp_avg/0.weight"].group == "optimizer/exp_avg"


PLAIN = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5))
TREES = st.recursive(
    PLAIN,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text("ab.", min_size=1, max_size=3), inner, max_size=4),
        st.tuples(inner, inner),
    ),
    max_leaves=10,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from("uvwxyz"), TREES, max_size=4))
def test_observing_changes_nothing_and_is_repeatable(attributes: dict[str, Any]) -> None:
    run, before = Thing(**attributes), repr(attributes)
    assert observe(walk(run)) == observe(walk(run))
    assert repr(run.__dict__) == before
    for one in observe(walk(run)).values():
        assert leaf_from_plain(list(one)) == one


@given(PLAIN, PLAIN)
def test_other_values_have_other_digests(x: Any, y: Any) -> None:
    same = type(x) is type(y) and repr(x) == repr(y)
    assert (leaf("", x).digest == leaf("", y).digest and type(x) is type(y)) == same
    assert (leaf("", [x]).digest == leaf("", [y]).digest) == (repr(x) == repr(y))


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16", "int64", "uint8", "bool", "complex64"])
@pytest.mark.parametrize("size", [1, 7, 64, 1003])
def test_one_bit_of_a_tensor_is_seen(dtype: str, size: int) -> None:
    a = torch.zeros(size, dtype=getattr(torch, dtype))
    b = a.clone()
    b[size // 2] = 1
    assert leaf("other", a).digest != leaf("other", b).digest
    if dtype == "float32":
        assert leaf("other", a).digest != leaf("other", -a).digest  # -0
        assert leaf("other", a).digest == leaf("other", torch.stack([a, a], 1)[:, 0]).digest  # strides are no value
    assert leaf("other", a) == leaf("other", a.clone())
    assert torch.equal(decode(encode(b)), b)
    assert decode(encode(b)).data_ptr() != b.data_ptr()


@pytest.mark.parametrize(
    "value",
    [
        np.arange(3), np.float32(2), np.zeros(0), np.array(["a"]), {"a": (1, [2.0, None])}, {1, 2}, frozenset("a"),
        torch.zeros(0), torch.tensor(1.5, dtype=torch.bfloat16), np.zeros((2, 0)),
    ],
)  # fmt: skip
def test_values_survive_the_file(value: Any, tmp_path: Any) -> None:
    torch.save(encode(value), tmp_path / "file")
    back = decode(torch.load(tmp_path / "file", weights_only=True))
    assert leaf("", back).digest == leaf("", value).digest
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "generator",
    [np.random.default_rng(1), np.random.RandomState(1), np.random.Generator(np.random.Philox(1)),
     torch.Generator().manual_seed(1)],
)  # fmt: skip
def test_generators_go_back(generator: Any, tmp_path: Any) -> None:
    def draw() -> Any:
        if isinstance(generator, torch.Generator):
            return torch.rand(3, generator=generator).tolist()
        return generator.random(3).tolist() if hasattr(generator, "random") else generator.random_sample(3).tolist()

    run = Thing(deep=[{"inside": generator}])
    torch.save(kept(run), tmp_path / "file")
    then, first = observe(walk(run)), draw()
    assert observe(walk(run))["deep[0].inside"] != then["deep[0].inside"]
    values = torch.load(tmp_path / "file", weights_only=True)
    assert put_back(walk(run), {"deep[0].inside": decode(values["deep[0].inside"])}) == []
    assert draw() == first


def test_closures_methods_iterators_and_slots_are_walked() -> None:
    class Slotted:
        __slots__ = ("count",)

    slotted = Slotted()
    slotted.count = 3
    total = 5

    def counter() -> int:
        nonlocal total
        total += 1
        return total

    def stream() -> Any:
        place = 0
        while True:
            place += 1
            yield place

    numbers, batches = iter([1, 2, 3]), stream()
    next(numbers), next(batches), next(batches)
    run = Thing(slotted=slotted, call=counter, method=Thing(x=1).__init__, numbers=numbers, batches=batches,
                both=enumerate(iter([7])), queue=deque([1, 2]), number=itertools.count(4))  # fmt: skip
    seen = walk(run)
    values = {path: slot.value for path, slot in seen.slots.items()}
    assert values["slotted.count"] == 3
    assert values["call.total"] == 5
    assert values["method.__self__.x"] == 1
    assert values["numbers.position"] == 1
    assert values["batches.place"] == 2
    assert values["number"] == "count(4)"
    assert put_back(seen, {"slotted.count": 8, "call.total": 1, "numbers.position": 2, "queue": [3]}) == []
    assert (slotted.count, counter(), next(numbers), list(run.queue)) == (8, 2, 3, [3])
    assert put_back(walk(run), {"batches.place": 0, "nowhere.x": 1}) == ["batches.place", "nowhere.x"]


def test_cycles_and_shared_objects_count_once() -> None:
    shared = torch.zeros(2)
    run = Thing(a=shared, b=shared, c={"view": shared[:]})
    run.self = run
    seen = walk(run)
    assert seen.aliases == {"self": "", "b": "a", "c.view.data": "a"} or seen.aliases == {"b": "a", "c.view.data": "a"}
    assert "b" not in seen.slots


def test_links_and_containers_are_made_again() -> None:
    model = torch.nn.Linear(2, 2)
    run = Thing(model=model, best={"weight": torch.zeros(2, 2)}, later=None)
    assert link(walk(run), {"best.weight.data": "model.weight"}) == []
    assert run.best["weight"].data_ptr() == model.weight.data_ptr()
    assert link(walk(run), {"best.weight.data": None}) == []
    assert run.best["weight"].data_ptr() != model.weight.data_ptr()
    assert link(walk(run), {"best.weight": "nothing"}) == ["best.weight"]
    make_containers(walk(run), ["later"], {"scaler": "cpu"})
    assert put_back(walk(run), {"later.a.b": 1, "scaler.scale": 8.0}) == []
    assert (run.later, run.scaler.get_scale()) == ({"a.b": 1}, 8.0)


def test_what_is_written_for_a_path_reaches_its_value() -> None:
    total = 5

    def counter() -> int:
        return total

    class Counted(Thing):
        drawn = 2

    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    run = Counted(gs={"noise.a": 1, 3: 4.5}, deep=[{"x": np.zeros(2)}], model=model, call=counter, n=1)
    seen = walk(run, types.ModuleType(__name__))
    for path, slot in seen.slots.items():
        if "/" not in path and not path.endswith("model.requires_grad"):
            found = eval(expression(seen, path), {"self": run, "Counted": Counted})
            assert found is slot.value or found == slot.value, path
    assert expression(seen, "gs.noise.a") == 'self.gs["noise.a"]'
    assert expression(seen, "model.0.weight") == "self.model[0].weight"
    assert (expression(seen, "globals.C"), expression(seen, "Counted.drawn")) == ("C", "Counted.drawn")


def test_an_optimizer_s_state_is_by_name_and_made_where_it_is_missing() -> None:
    run, other = Everything(), Everything()
    run.step()
    values = {path: decode(value) for path, value in kept(run).items() if path.startswith("optimizer/exp_avg/")}
    assert len(values) == 6
    assert put_back(walk(other), values) == []
    for ours, theirs in zip(other.model.parameters(), run.model.parameters(), strict=True):
        assert torch.equal(other.optimizer.state[ours]["exp_avg"], run.optimizer.state[theirs]["exp_avg"])
    assert put_back(walk(other), dict.fromkeys(values, MISSING)) == []
    assert not any("exp_avg" in state for state in other.optimizer.state.values())


def test_the_position_of_a_loader_s_iterator_is_seen() -> None:
    run = Loader()
    run.step()
    slots = walk(run).slots
    assert (slots["batches.position"].value, slots["batches.position"].kind) == (1, "position")
    assert slots["loader.generator"].kind == "generator"


def test_types_shapes_and_devices_differ() -> None:
    a, b = leaf("parameter", torch.zeros(2)), leaf("parameter", torch.zeros(2, dtype=torch.float64))
    assert difference(1, "w", a, b).expected == "float32 [2]"
    assert difference(1, "w", a, b).found == "float64 [2]"
    assert isinstance(a, Leaf)


MUTANTS = [("restore._create", lambda *_: True), ("values._digest", lambda data: ""), ("restore.MISSING", object())]


@pytest.mark.parametrize(("name", "wrong"), MUTANTS)
def test_a_mutant_of_the_walk_is_caught(monkeypatch: pytest.MonkeyPatch, name: str, wrong: Any) -> None:
    monkeypatch.setattr(f"torch_port.audit.loop.{name}", wrong)
    caught = 0
    for check in (
        test_an_optimizer_s_state_is_by_name_and_made_where_it_is_missing,
        lambda: test_one_bit_of_a_tensor_is_seen("float64", 7),
        lambda: test_every_state_of_a_loop_goes_back_to_where_it_was(1),
    ):
        try:
            check()
        except (AssertionError, KeyError):
            caught += 1
    assert caught


class Mode(enum.StrEnum):
    """A text with a name of its own."""

    FAST = "fast"


@pytest.mark.parametrize("value", [Mode.FAST, signal.Handlers.SIG_DFL, [Mode.FAST, 3], True, 2.5, None])
def test_a_value_of_a_class_of_its_own_goes_through_a_file_as_what_it_counts_as(value, tmp_path):
    torch.save(encode(value), tmp_path / "value.pt")
    back = decode(torch.load(tmp_path / "value.pt", weights_only=True))
    assert back == value
    assert type(back) in (str, int, list, bool, float, type(None))
