"""State that no attribute of the run holds: in classes, in functions that a library calls, under other keys."""

import functools
import itertools
import random  # noqa: TID251 - a user's
import sys
from collections import deque
from enum import Enum
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import numpy as np
from torch.utils.data import DataLoader

from parity_tests.audit import loops_held_elsewhere as loops
from torch_port.audit.loop.expressions import expression
from torch_port.audit.loop.held import is_users, path_of_class
from torch_port.audit.loop.observe import observe, walk
from torch_port.audit.loop.places import MISSING, entry, key_of
from torch_port.audit.loop.restore import put_back
from torch_port.audit.loop.values import decode, encode


def user_module(**held: Any) -> ModuleType:
    """A module of the user's that has these globals; its classes are of it."""
    module = ModuleType(__name__)
    vars(module).update(held)
    return module


def values(run: Any, module: ModuleType | None = None) -> dict[str, Any]:
    return {path: slot.value for path, slot in walk(run, module).slots.items() if not path.startswith("rng/")}


# Whole audits


# Classes


def test_a_class_is_walked_for_state_only() -> None:
    found = values(SimpleNamespace(), loops)
    assert found["globals.Ladder.rung"] == loops.Ladder.rung
    assert found["globals.Ladder.Below.floors"] == loops.Ladder.Below.floors
    assert not any(
        path.startswith(("globals.Ladder.top", "globals.Ladder.climb", "globals.Ladder.unset")) for path in found
    )
    assert not any(path.startswith(("Module.", "Linear.", "DataLoader.", "Random.")) for path in found)


def test_what_a_class_holds_goes_back() -> None:
    class Table:
        size = 3
        rows: list[Any] = [torch.zeros(2)]  # noqa: RUF012
        dice = random.Random(1)

    class Shorter(Table):
        pass

    module = user_module(Table=Table)
    state = Table.dice.getstate()
    seen = walk(SimpleNamespace(a=Shorter()), module)
    assert {"globals.Table.size", "globals.Table.rows[0]", "globals.Table.dice"} <= seen.slots.keys()
    assert seen.slots["globals.Table.rows[0]"].group == "globals.Table.rows"
    assert expression(seen, "globals.Table.rows[0]") == "Table.rows[0]"
    Table.dice.random()
    new = {"globals.Table.size": 5, "globals.Table.rows[0]": torch.ones(2), "globals.Table.dice": state,
           "globals.Table.extra": 1, "Shorter.own": 2}  # fmt: skip
    assert put_back(walk(SimpleNamespace(a=Shorter()), module), new) == []
    assert (Table.size, Table.rows[0].tolist(), Table.dice.getstate()) == (5, [1, 1], state)
    assert (vars(Table)["extra"], vars(Shorter)["own"]) == (1, 2)
    assert put_back(walk(SimpleNamespace(), module), {"globals.Table.extra": MISSING}) == []
    assert not hasattr(Table, "extra")


def test_what_hides_a_class_s_own_does_not_change_it() -> None:
    class Base:
        items: list[int] = []  # noqa: RUF012

    class Sub(Base):
        pass

    run = SimpleNamespace(sub=Sub())
    assert put_back(walk(run, user_module(Sub=Sub)), {"globals.Sub.items": [1], "sub.items": [2]}) == []
    assert (Base.items, Sub.items, run.sub.items) == ([], [1], [2])


def test_classes_are_the_user_s_or_the_library_s() -> None:
    ours = "parity_tests.audit.loops"
    assert is_users("parity_tests.zoo.base", ours)
    for name in ("torch", "torch.nn.modules.module", "numpy", "random", "collections", "hypothesis.core", None):
        assert not is_users(name, ours), name
    assert is_users("hypothesis.core", "hypothesis.strategies")


def test_members_of_an_enum_are_no_state() -> None:
    class Split(Enum):
        TRAIN = 1

    assert values(SimpleNamespace(), user_module(Split=Split)) == {}


# Keys


KEYS = st.one_of(
    st.integers(-3, 3), st.booleans(), st.floats(-2, 2), st.text("01.a-[", min_size=1, max_size=3), st.none(),
    st.binary(max_size=2), st.tuples(st.integers(0, 2), st.text("a]", max_size=1)),
)  # fmt: skip


@given(st.dictionaries(KEYS, st.integers(), max_size=5), st.dictionaries(KEYS, st.integers(), max_size=5))
def test_keys_of_different_types_have_different_paths(one: dict[Any, int], other: dict[Any, int]) -> None:
    def kept(held: dict[Any, int]) -> set[tuple[str, int]]:
        return set(values(SimpleNamespace(d=held)).items())

    typed = [{(repr(key), value) for key, value in held.items()} for held in (one, other)]
    assert len(kept(one)) == len(one)
    assert (kept(one) == kept(other)) == (typed[0] == typed[1])
    seen = walk(SimpleNamespace(d=one))
    for path, slot in seen.slots.items():
        if path.startswith("d"):
            assert eval(expression(seen, path), {"self": SimpleNamespace(d=one)}) == slot.value, path


@given(st.dictionaries(KEYS, st.integers(), max_size=5))
def test_entries_go_back_under_keys_of_their_type(held: dict[Any, int]) -> None:
    run = SimpleNamespace(d={"0": -1, 7: -1})
    gone = dict.fromkeys(values(run).keys() - values(SimpleNamespace(d=held)).keys(), MISSING)
    assert put_back(walk(run), {**values(SimpleNamespace(d=held)), **gone}) == []
    assert sorted(map(repr, run.d.items())) == sorted(map(repr, held.items()))


def test_a_number_of_numpy_is_the_key_that_it_equals() -> None:
    assert entry("d", np.int64(3)) == entry("d", 3) == "d[3]"
    assert entry("d", np.float32(0.5)) == "d[0.5]"
    assert entry("d", object()) == ""
    assert key_of("[(1, 'a')]") == (1, "a")
    assert values(SimpleNamespace(d={3: {"0": [torch.zeros(1)]}})).keys() == {"d[3].0[0]"}


# Functions


def test_functions_that_a_library_calls_are_walked() -> None:
    dice, rolled, rates, noise = random.Random(1), [0], {"now": 1.0}, torch.Generator()

    def collate(samples: Any, *, noise: Any = noise) -> Any:
        return [dice.random(), samples]

    def hook(*args: Any, seen: Any = rolled) -> None:
        seen[0] += 1

    collate.calls = 0  # type: ignore[attr-defined]
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
    for _ in range(3):
        model[0].register_forward_hook(hook).remove()  # the next hook's key is no small number
    model[0].register_forward_hook(hook)
    model[1].weight.register_hook(lambda grad: grad * rates["now"])
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    optimizer.register_step_post_hook(functools.partial(hook, {3}, seen=[5]))
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda epoch: rates["now"]])
    loader = DataLoader([1, 2], collate_fn=collate, worker_init_fn=dice.seed)
    run = SimpleNamespace(loader=loader, model=model, optimizer=optimizer, schedule=schedule)
    seen = walk(run)
    expected = {
        "loader.collate_fn.dice": dice, "loader.collate_fn.__kwdefaults__.noise": noise,
        "loader.collate_fn.calls": 0, "model.0._forward_hooks[0].__kwdefaults__.seen": [0],
        "model.1.weight._backward_hooks[0].rates.now": 1.0,
        "optimizer._optimizer_step_post_hooks[0].keywords.seen": [5],
        "optimizer._optimizer_step_post_hooks[0].args[0]": {3},
    }  # fmt: skip
    assert {path: seen.slots[path].value for path in expected} == expected
    for path in expected:
        assert eval(expression(seen, path), {"self": run}) == expected[path], path
    new = {"model.0._forward_hooks[0].__kwdefaults__.seen": [4], "loader.collate_fn.calls": 2,
           "model.1.weight._backward_hooks[0].rates.now": 0.5,
           "optimizer._optimizer_step_post_hooks[0].args[0]": {4}}  # fmt: skip
    assert put_back(seen, new) == []
    assert next(iter(optimizer._optimizer_step_post_hooks.values())).args == ({4},)
    assert (rolled, collate.calls, rates) == ([4], 2, {"now": 0.5})  # type: ignore[attr-defined]


def test_a_function_s_state_has_the_name_that_an_attribute_gives_it() -> None:
    dice = np.random.default_rng(1)
    run = SimpleNamespace(loader=DataLoader([1, 2], collate_fn=lambda samples: dice.random()), dice=dice)
    assert "dice" in values(run)
    assert "loader.collate_fn.dice" not in values(run)


def test_bound_methods_lead_to_their_objects() -> None:
    dice, order, queue = random.Random(1), np.random.default_rng(1), [1, 2]
    run = SimpleNamespace(a=dice.random, b=order.normal, c=queue.pop, d=random.random, e="a".join)
    seen = walk(run)
    assert seen.slots["a.__self__"].value is dice
    assert seen.slots["b.__self__"].value is order
    assert seen.slots["c.__self__"].value is queue
    assert put_back(seen, {"c.__self__": [9]}) == []
    assert queue == [9]
    assert seen.aliases == {"d.__self__": "rng/python"}  # not twice
    assert not any(path.startswith("e") for path in seen.slots)


def test_a_walk_ends() -> None:
    ring: list[Any] = [1]
    ring.append(ring)
    held: dict[str, Any] = {"ring": ring}

    def collate(samples: Any) -> Any:
        return collate, held, loader

    collate.again = functools.partial(collate, held)  # type: ignore[attr-defined]
    loader = DataLoader([1, 2], collate_fn=collate)
    model = torch.nn.Linear(1, 1)
    held["hook"] = model.register_forward_hook(lambda *args: (model, held))
    run = SimpleNamespace(loader=loader, model=model)
    run.call = functools.partial(run.__init__, run)  # type: ignore[misc]
    assert observe(walk(run)) == observe(walk(run))
    assert len(walk(run).slots) < 60


def test_a_global_function_of_the_user_s_is_walked_and_an_imported_one_is_not() -> None:
    def remembers(x: float, seen: list[float] = []) -> int:  # noqa: B006 - a user's
        seen.append(x)
        return len(seen)

    remembers(2.0)
    found = values(SimpleNamespace(), user_module(remembers=remembers, chain=itertools.chain, path=sys.path.append))
    assert found["globals.remembers.__defaults__[0]"] == [2.0]
    found = values(SimpleNamespace(), user_module(imported=pytest.importorskip))
    assert found == {}


# Deques


@pytest.mark.parametrize("items", [[1.0, 2.0], [torch.zeros(2), torch.ones(2)]])
def test_the_length_of_a_deque_is_seen_and_goes_back(items: list[Any]) -> None:
    one, other = SimpleNamespace(window=deque(items, 2)), SimpleNamespace(window=deque(items))
    leaves = observe(walk(other))
    lost = {path for path, leaf in observe(walk(one)).items() if leaves.get(path) != leaf and "rng" not in path}
    assert lost == ({"window"} if isinstance(items[0], float) else {"window.maxlen"})
    kept = {path: decode(encode(walk(one).slots[path].value)) for path in lost}
    assert put_back(walk(other), kept) == []
    assert (other.window.maxlen, len(other.window)) == (2, 2)
    assert type(decode(encode(deque(items, 3)))) is deque


def test_a_deque_that_others_hold_is_filled_anew() -> None:
    shared = deque([1, 2], 3)
    run = SimpleNamespace(window=shared, again={"it": shared})
    assert put_back(walk(run), {"window": deque([5], 3)}) == []
    assert run.again["it"] == deque([5])


def test_a_class_has_its_own_name_however_it_is_met() -> None:
    def make() -> type:
        class Net:
            count = 1

        return Net

    local, module = make(), user_module(Ladder=loops.Ladder, Net=make(), Other=loops.Small)
    assert path_of_class(loops.Ladder.Below, vars(module)) == "globals.Ladder.Below"
    assert path_of_class(loops.Ladder.Below, {}) == "Ladder.Below"
    assert path_of_class(loops.Small, vars(module)) == "Small"
    assert path_of_class(local, vars(module)) == "Net"
    assert path_of_class(module.Net, vars(module)) == "globals.Net"
    found = values(SimpleNamespace(a=local()), module)
    assert {"Net.count", "globals.Net.count", "globals.Ladder.Below.floors"} <= found.keys()
