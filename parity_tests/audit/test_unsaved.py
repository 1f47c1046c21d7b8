"""What in a saved state cannot be saved is named: where it is, what it is, and what to do."""

import io
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

import numpy as np

from parity_tests.audit import loops
from torch_port.audit import audit
from torch_port.audit.judge.workers import Workers
from torch_port.audit.loop.unsaved import note_unsaved, refused
from torch_port.audit.loop.worker import describe


class Config:
    """A class of the user's."""

    def __init__(self, rate: Any) -> None:
        self.rate, self.itself = rate, self


def told(state: Any) -> str:
    """What is said when this is saved; empty where it can be."""
    try:
        torch.save(state, io.BytesIO())
    except Exception as error:
        note_unsaved(error)
        return describe(error)[0]
    return ""


UNSAVED = {
    "a thread lock": threading.Lock,
    "an open file": lambda: open(__file__),  # noqa: SIM115
    "a generator object": lambda: (x for x in ()),
    "a lambda": lambda: lambda: 0,
}


@pytest.mark.parametrize("what", UNSAVED)
def test_the_place_the_thing_and_the_remedy_are_named(what: str) -> None:
    thing = UNSAVED[what]()
    state = {"model": {"w": torch.zeros(3)}, "sampler": [1, {"inner": thing}], "config": Config((2, thing))}
    said = told(state)
    assert f'state["sampler"][1]["inner"], state["config"].rate[1] each are {what}: ' in said, said
    assert said.endswith(("after the load", "top level of a module"))
    assert 'state["model"]' not in said
    if hasattr(thing, "close"):
        thing.close()


KEYS = st.text("ab\"' .", min_size=1, max_size=3) | st.integers(-3, 3)


@given(st.lists(KEYS, min_size=1, max_size=4), st.booleans())
def test_what_is_written_reaches_the_thing(keys: list[Any], listed: bool) -> None:
    lock = threading.Lock()
    inner: Any = [7, lock] if listed else lock
    for key in reversed(keys):
        inner = {key: inner, "other": torch.ones(2)} if key != "other" else {key: inner}
    place = told(inner).partition("object: ")[2].partition(" is a thread lock")[0]
    assert eval(place, {"state": inner}) is lock


def test_what_can_be_saved_is_not_named() -> None:
    whole = {"a": 1, "b": [Config(2), torch.zeros(2)], "c": {1, 2}}
    assert told(whole) == ""


def test_what_weights_only_refuses_is_named_with_its_class(tmp_path: Path) -> None:
    path = str(tmp_path / "state.pt")
    safe = {"a": 1, "w": torch.zeros(2), "n": None, "deep": [({"x": 1.5},)]}
    state = safe | {"config": [Config(2)], "loss": torch.nn.functional.relu, "x": np.zeros(2), "y": np.float64(1)}
    for one in (safe, state):
        torch.save(one, path)
        said = refused(path, one)
        assert bool(said) == (one is state)
    assert f'state["config"][0] is an object of {__name__}.Config: save the tensors' in said
    assert f"add_safe_globals([{__name__}.Config])" in said
    assert 'state["loss"] is torch.nn.functional.relu itself' in said
    assert 'state["x"] is an array of NumPy: save torch.from_numpy(...) of it' in said
    assert 'state["y"] is a number of NumPy: save its .item()' in said
    assert not any(f'state["{key}"]' in said for key in safe)


def test_a_failing_save_within_the_user_s_own_is_looked_into_too() -> None:
    def save(path: Any) -> None:
        torch.save({"run": {"lock": threading.Lock()}}, path)

    with pytest.raises(TypeError) as caught:
        save(io.BytesIO())
    note_unsaved(caught.value)
    assert 'state["run"]["lock"] is a thread lock' in describe(caught.value)[0]
    with pytest.raises(ValueError, match="own") as other:
        raise ValueError("the user's own")
    note_unsaved(other.value)
    assert describe(other.value)[0] == "ValueError: the user's own"


def test_an_audit_names_them() -> None:
    with Workers() as workers:

        def audited(name: str) -> Any:
            return audit(f"{loops.__name__}:{name}", steps=4, at=[2], power=False, workers=workers)

        failure = audited("HoldsALock").failure
        assert failure.phase == "save after step 2"
        assert 'state["sampler"]["lock"] is a thread lock: leave it out' in failure.error
        assert "cannot pickle" in failure.error
        own = audited("RefusesToBeSaved").failure
        assert (own.phase, own.error) == ("save after step 2", f"ValueError: not now: {BOOK}")
        assert "in __reduce__" in own.traceback
        assert "loops.py" in own.traceback
        report = audited("SavesAnObject")
        assert report.verdict == "bitwise"
        said = [line for line in report.warnings if "refuses" in line]
        assert len(said) == 1
        assert f'state["settings"] is an object of {loops.__name__}.Settings' in said[0]
        assert audited("HoldsItself").verdict == "bitwise"


BOOK = (
    f'state["book"] is an object of {loops.__name__}.Book: save the tensors, numbers and texts that it is made of, '
    "and make it anew from them in load_state_dict"
)
