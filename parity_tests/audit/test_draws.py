"""Generators that drifted: the distance is the number of draws that were made, and nothing else is claimed."""

import random  # noqa: TID251  # its states are read, and instances have their own seeds
import warnings
from itertools import islice

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is missing: its generators have no states")

from parity_tests.audit.foreign_cases import calling, like, returning
from torch_port.audit import draws

NUMPY = ("MT19937", "PCG64", "PCG64DXSM", "Philox", "SFC64")
SOURCES = (*NUMPY, "legacy", "torch", "python")


class Engine:
    """A generator of any library behind one face."""

    def __init__(self, source, seed):
        self.source = source
        self.made = {
            "legacy": np.random.RandomState,
            "python": random.Random,
            "torch": lambda seed: torch.Generator().manual_seed(seed),
        }.get(source, lambda seed: np.random.Generator(getattr(np.random, source)(seed)))(seed)

    def draw(self, n, bits=64):
        """Make n draws; of 32 bits where the library has them."""
        if self.source == "torch":
            kind, low, high = (torch.int64, -(2**63), None) if bits == 64 else (torch.int64, 0, 2)
            torch.empty(n, dtype=kind).random_(low, high, generator=self.made)
        elif self.source == "python":
            for _ in range(n):
                self.made.getrandbits(bits)
        elif self.source == "legacy":
            self.made.random_sample(n) if bits == 64 else self.made.randint(0, 2**32, n, dtype=np.uint32)
        elif bits == 64:
            self.made.random(n)
        else:
            self.made.integers(0, 2**32, n, dtype=np.uint32)

    @property
    def state(self):
        if self.source == "torch":
            return self.made.get_state()
        if self.source == "python":
            return self.made.getstate()
        return self.made.get_state() if self.source == "legacy" else self.made.bit_generator.state


def on_device(seed, offset):
    return torch.tensor([*seed.to_bytes(8, "little"), *offset.to_bytes(8, "little")], dtype=torch.uint8)


# Laws


def finds_every_distance(source, seed, before, n, bits):
    engine = Engine(source, seed)
    engine.draw(before, bits)
    first = engine.state
    engine.draw(n, bits)
    last = engine.state
    ahead, behind = draws.drift(first, last), draws.drift(last, first)
    assert ahead.draws == -behind.draws
    assert ahead.draws * ahead.bits == n * bits
    assert ahead.relation == behind.relation == ("apart" if n else "same")
    assert draws.drift(first, first) == draws.drift(last, last) == ("same", 0, 64, "the same")


def finds_a_distance_in_half_words(source, seed, before, n):
    """Where one half word is in store before and after, or after only."""
    engine = Engine(source, seed)
    engine.draw(before, 32)
    first = engine.state
    engine.draw(n, 32)
    found = draws.drift(first, engine.state)
    assert found.draws * found.bits == 32 * n


@pytest.mark.parametrize("source", SOURCES)
def test_another_seed_is_another_stream(source):
    first, last = Engine(source, 1), Engine(source, 2)
    last.draw(3)
    assert draws.drift(first.state, last.state).relation == "another stream"
    assert draws.drift(first.state, last.state).draws is None


@pytest.mark.parametrize("source", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937", "torch"])
def test_a_million_draws_are_searched_either_way(source):
    engine = Engine(source, 5)
    engine.draw(7)
    first = engine.state
    engine.draw(draws.LIMIT - 1)
    assert draws.drift(first, engine.state).text == "ahead by 999,999 64-bit draws"
    assert draws.drift(engine.state, first).text == "behind by 999,999 64-bit draws"
    engine.draw(draws.LIMIT)
    for pair in ((first, engine.state), (engine.state, first)):
        assert draws.drift(*pair).relation in ("far", "another stream")


@pytest.mark.parametrize("source", ["torch", "python", "legacy"])
def test_a_normal_number_in_store_is_part_of_the_state(source):
    engine = Engine(source, 3)
    if source == "torch":
        torch.randn(1, generator=engine.made)
        whole = engine.state
        lost = whole.clone()
        lost[5040] = 0
        other = whole.clone()
        other[5024] ^= 1
    elif source == "python":
        engine.made.gauss(0, 1)
        whole = engine.state
        lost, other = (*whole[:2], None), (*whole[:2], whole[2] + 1)
    else:
        engine.made.standard_normal()
        whole = engine.state
        lost, other = (*whole[:3], 0, 0.0), (*whole[:4], whole[4] + 1)
    words = "at the same draw, but the normal number in store "
    assert draws.drift(whole, lost) == ("store", 0, 64, words + "was lost")
    assert draws.drift(lost, whole).text == words + "is one too many"
    assert draws.drift(whole, other).text == words + "is another"
    assert draws.drift(whole, whole).relation == "same"


def test_a_normal_number_of_type_float_is_part_of_the_state():
    """torch keeps one of type float beside that of type double."""
    lost = Engine("torch", 3).state
    whole = lost.clone()
    whole[5052] = 1
    assert draws.drift(whole, lost).text == "at the same draw, but the normal number in store was lost"


@pytest.mark.parametrize("source", ["PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_a_half_word_in_store_is_part_of_the_state(source):
    engine = Engine(source, 3)
    engine.draw(1, 32)
    whole = engine.state
    lost = whole | {"has_uint32": 0}
    other = whole | {"uinteger": whole["uinteger"] ^ 1}
    assert draws.drift(whole, lost).text == "ahead by one 32-bit draw: the half word in store was lost"
    assert draws.drift(lost, whole).text == "behind by one 32-bit draw"
    assert draws.drift(whole, other).text == "at the same draw, but the half word in store is another"


def test_an_iterator_that_was_made_after_the_restore_is_named():
    """What a loader draws from torch's generator when its iterator is made."""
    for shuffle, words in ((False, "a loader's iterator"), (True, "the iterator of a shuffling loader")):
        torch_state = torch.get_rng_state()
        try:
            before = torch.get_rng_state()
            next(iter(torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)), shuffle=shuffle)))
            after = torch.get_rng_state()
        finally:
            torch.set_rng_state(torch_state)
        count = "2 64-bit draws" if shuffle else "one 64-bit draw"
        assert draws.drift(before, after).text == f"ahead by {count}, as if {words} was made after the restore"
        text = f"behind by {count}, as if {words} was made before the save, and not again"
        assert draws.drift(after, before).text == text


def test_a_device_is_counted_by_its_offset():
    first = on_device(2**40 + 3, 8)
    assert draws.drift(first, on_device(2**40 + 3, 2**33)) == (
        "apart",
        2**33 - 8,
        0,
        f"ahead by an offset of {2**33 - 8:,}",
    )
    assert draws.drift(first, on_device(2**40 + 3, 4)).text == "behind by an offset of 4"
    assert draws.drift(first, first.clone()).relation == "same"
    assert draws.drift(first, on_device(2**40 + 4, 8)).relation == "another stream"


def tells_what_is_no_state():
    sound = Engine("torch", 1).state
    for junk in no_states():
        assert draws.engine_of(junk) is None
        with pytest.raises(ValueError, match="expected the state of a generator of torch, NumPy or Python"):
            draws.drift(sound, junk)
        with pytest.raises(ValueError, match="drift: expected: "):
            draws.drift(junk, sound)


def no_states():
    """What looks like a state, and is none."""
    moved, left = (Engine("torch", 1).state.clone() for _ in range(2))
    moved[16] = 9  # not where as many words are left
    left[8:12] = torch.tensor([0, 0, 1, 0], dtype=torch.uint8)
    pcg, philox, sfc, mersenne = (Engine(name, 1).state for name in ("PCG64", "Philox", "SFC64", "MT19937"))
    version, words, normal = Engine("python", 1).state
    drawn = Engine("torch", 1)
    drawn.draw(1)
    moved[8:12] = drawn.state[8:12]
    return [
        None, 3, "MT19937", b"\0" * 5056, [], {}, (3, (1, 2), None), torch.zeros(5056, dtype=torch.uint8),
        torch.zeros(5056), torch.zeros(5055, dtype=torch.uint8), torch.zeros(1, 5056, dtype=torch.uint8), moved, left,
        np.zeros(5056, np.uint8), {"bit_generator": "PCG64"}, {"bit_generator": "other", "state": {}},
        {"bit_generator": torch.zeros(2)}, pcg | {"state": {"state": 1, "inc": 2}}, pcg | {"has_uint32": 2},
        pcg | {"state": {"state": 2**128, "inc": 1}}, philox | {"buffer_pos": 5}, philox | {"buffer_pos": -1},
        sfc | {"state": {"state": [1, 2, 3]}}, sfc | {"state": {"state": [1, 2, 3, -1]}},
        mersenne | {"state": {"key": mersenne["state"]["key"], "pos": 625}},
        mersenne | {"state": {"key": mersenne["state"]["key"][1:], "pos": 1}},
        (version, (*words[:-1], 625), normal), (version, (2**32, *words[1:]), normal),
        (version, (0,) * 624 + (1,), None),
        ("MT19937", torch.zeros(624), 1, 0, 0.0), (torch.zeros(2), 1, 2, 3, 4), (torch.zeros(2), 1, 2),
    ]  # fmt: skip


@given(
    st.sampled_from(SOURCES),
    st.integers(0, 2**31),
    st.integers(0, 1300),
    st.integers(0, 1300),
    st.sampled_from((32, 64)),
)
@example("torch", 0, 0, 1, 32)
@example("torch", 0, 623, 1, 32)
@example("torch", 0, 624, 624, 32)
@example("python", 0, 624, 0, 32)
@example("legacy", 0, 0, 312, 64)
def test_the_distance_is_the_number_of_draws(source, seed, before, n, bits):
    finds_every_distance(source, seed, before, n, bits)


@given(
    st.sampled_from(("PCG64", "PCG64DXSM", "Philox", "SFC64")), st.integers(0, 99), st.integers(0, 9), st.integers(0, 9)
)
def test_words_in_store_count(source, seed, before, n):
    finds_a_distance_in_half_words(source, seed, before, n)


def test_every_place_of_a_block_is_told_from_every_other():
    engine, states = Engine("torch", 9), []
    for _ in range(1, 1300):
        states.append(engine.state)
        engine.draw(1, 32)
    for at in (0, 1, 622, 623, 624, 625, 1247, 1248, 1249):
        for other in (0, 1, 623, 624, 625, 1247, 1248, 1249):
            found = draws.drift(states[at], states[other])
            assert (found.draws * found.bits if found.draws else 0) == 32 * (other - at)


@pytest.mark.parametrize("name", ["Philox", "PCG64", "PCG64DXSM"])
@pytest.mark.parametrize("steps", [2**40, 2**100, 10**6 + 1])
def test_far_away_in_the_same_stream_is_no_other_stream(name, steps):
    engine = Engine(name, 4)
    first = engine.state
    engine.made.bit_generator.advance(steps)
    assert draws.drift(first, engine.state).text == "ahead in the same stream by more than 1,000,000 draws"
    assert draws.drift(engine.state, first).text == "behind in the same stream by more than 1,000,000 draws"


def test_one_engine_is_one_stream_in_every_library():
    words = Engine("torch", 11)
    words.draw(700)
    key, left = (
        np.frombuffer(words.state.numpy().tobytes(), "<u8", 624, 24),
        int(words.state.numpy()[8:12].view("<i4")[0]),
    )
    numpy = ("MT19937", key.astype(np.uint32), 625 - left, 0, 0.0)
    python = (3, (*map(int, key), 625 - left), None)
    as_dict = {"bit_generator": "MT19937", "state": {"key": key.tolist(), "pos": 625 - left}}
    for state in (numpy, python, as_dict, list(numpy), [3, list(python[1]), None], words.state.numpy()):
        assert draws.drift(words.state, state).relation == "same"
    words.draw(5)
    assert draws.drift(python, words.state).text == "ahead by 5 64-bit draws"


def test_another_engine_is_named():
    found = draws.drift(Engine("PCG64", 1).state, Engine("torch", 1).state)
    assert (found.relation, found.text) == ("another engine", "another engine: MT19937, not PCG64")


def test_whose_state_it_is():
    names = {source: draws.engine_of(Engine(source, 1).state) for source in SOURCES}
    expected = {name: f"NumPy {name}" for name in NUMPY}
    assert names == expected | {"legacy": "NumPy MT19937", "torch": "torch", "python": "Python"}
    assert draws.engine_of(on_device(1, 0)) == "device"


def test_what_is_no_state_is_refused():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tells_what_is_no_state()


def test_states_are_left_as_they_are():
    for source in SOURCES:
        engine = Engine(source, 1)
        engine.draw(3)
        first, text = engine.state, repr(engine.state)
        engine.draw(3)
        draws.drift(first, engine.state)
        assert repr(first) == text


# Mutants


def distance(engine, wrong):
    """A wrong distance of two states, made from the right one."""
    return "_DISTANCES", lambda right: right | {engine: lambda a, b: wrong(right[engine], a, b)}


def read_as(name, change):
    """A reader of states whose answer is changed."""
    return name, calling(lambda right, *x: (state := right(*x)) and change(state))


def changed_first(name, change):
    """A reader that is given something else."""
    return name, calling(lambda right, state, *x: right(change(state), *x))


def none_behind(right, a, b):
    words = right(a, b)
    return None if words is None or words < 0 else words


class Near(int):
    """A distance that is never far."""

    def __abs__(self):
        return 1


def counted(a, b):
    return 2 * draws._signed((int(b.place[3]) - int(a.place[3])) % 2**64, 2**64)


def a_torch_state(right, state):
    return draws._State("torch", "MT19937", None, (np.ones(624), 1)) if hasattr(state, "clone") else right(state)


def sound_increment(state):
    return (
        state | {"state": state["state"] | {"inc": state["state"]["inc"] | 1}} if "PCG64" in state.values() else state
    )


def sound_place(state):
    return state | {"buffer_pos": min(max(state["buffer_pos"], 0), 4)} if "buffer_pos" in state else state


def emptied(state):
    return state._replace(store=b"")


DISTANCE, HALVES, NO_STATE = finds_every_distance, finds_a_distance_in_half_words, tells_what_is_no_state
STREAM, MILLION = test_another_seed_is_another_stream, test_a_million_draws_are_searched_either_way
NORMAL, SINGLE = (
    test_a_normal_number_in_store_is_part_of_the_state,
    test_a_normal_number_of_type_float_is_part_of_the_state,
)
HALF, DEVICE = test_a_half_word_in_store_is_part_of_the_state, test_a_device_is_counted_by_its_offset
ITERATOR = test_an_iterator_that_was_made_after_the_restore_is_named
SHORT, LONG = (1, 3, 5, 64), (1, 3, 700, 64)
BLOCKS = draws.LIMIT // draws.WORDS + 2
MUTANTS = [  # name, what makes the wrong one of the right one, law and what it is held for
    (*distance("MT19937", lambda right, a, b: right(a, b) + a.place[1]), DISTANCE, ("torch", *SHORT)),
    (*distance("MT19937", lambda right, a, b: abs(right(a, b))), DISTANCE, ("python", *LONG)),
    (*distance("MT19937", none_behind), DISTANCE, ("python", *LONG)),
    ("_blocks", calling(lambda right, key: islice(right(key), 2)), DISTANCE, ("torch", 1, 3, 1300, 64)),
    ("_blocks", calling(lambda right, key: islice(right(key), BLOCKS)), MILLION, ("torch",)),
    ("np", lambda np: like(np, array_equal=lambda x, y: x[0] >> 31 == y[0] >> 31), STREAM, ("torch",)),
    (*distance("PCG64", lambda right, a, b: right(a, b._replace(stream=a.stream))), STREAM, ("PCG64",)),
    (
        *distance("PCG64", lambda right, *x: right(*(y._replace(stream=y.stream ^ 2) for y in x))),
        DISTANCE,
        ("PCG64", *SHORT),
    ),
    ("MULTIPLIERS", lambda right: right | {"PCG64": right["PCG64DXSM"]}, DISTANCE, ("PCG64", *SHORT)),
    ("_signed", returning(lambda steps, cycle: steps), DISTANCE, ("Philox", *SHORT)),
    (*read_as("_numpy", lambda x: x._replace(place=x.place // 4 * 4)), DISTANCE, ("Philox", *SHORT)),
    (*distance("PCG64", lambda right, a, b: right(a, b) + 1 - a.half), HALVES, ("PCG64", 1, 2, 3)),
    (*distance("SFC64", none_behind), DISTANCE, ("SFC64", *SHORT)),
    (*distance("SFC64", lambda right, a, b: counted(a, b)), STREAM, ("SFC64",)),
    (*distance("Philox", lambda right, a, b: Near(right(a, b))), MILLION, ("Philox",)),
    (*read_as("_read", emptied), NORMAL, ("torch",)),
    (*read_as("_bytes", emptied), NORMAL, ("torch",)),
    (*read_as("_bytes", lambda x: x._replace(store=x.store[: len(x.store) // 24 * 24])), SINGLE, ()),
    (*read_as("_tuple", emptied), NORMAL, ("python",)),
    ("_normal", returning(lambda state: b""), NORMAL, ("legacy",)),
    (*read_as("_numpy", emptied), HALF, ("PCG64",)),
    ("_reason", returning(lambda *x: ""), HALF, ("SFC64",)),
    ("ITERATORS", lambda right: {1: right[2], 4: right[4]}, ITERATOR, ()),
    (*distance("device", lambda right, a, b: b.place), DEVICE, ()),
    (*distance("device", lambda right, a, b: b.place - a.place), DEVICE, ()),
    ("_bytes", calling(a_torch_state), NO_STATE, ()),
    (*changed_first("_numpy", sound_increment), NO_STATE, ()),
    ("_words", calling(lambda right, name, key, at, x: right(name, key, min(int(at), 624), x)), NO_STATE, ()),
    ("_words", calling(lambda right, name, key, *x: right(name, key if any(key) else [1] * 624, *x)), NO_STATE, ()),
    (*changed_first("_numpy", sound_place), NO_STATE, ()),
]


@pytest.mark.parametrize(
    ("name", "wrong", "law", "arguments"), MUTANTS, ids=[f"{i}-{m[0]}-{m[2].__name__}" for i, m in enumerate(MUTANTS)]
)
def test_every_law_kills_its_mutants(monkeypatch, name, wrong, law, arguments):
    law(*arguments)
    monkeypatch.setattr(draws, name, wrong(getattr(draws, name)))
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError, TypeError)):
        law(*arguments)
