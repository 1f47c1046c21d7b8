"""Generators that drifted: the distance is the number of draws that were made, and nothing else is claimed."""

import random  # noqa: TID251  # its states are read, and instances have their own seeds
import warnings

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is missing: its generators have no states")

from parity_tests.witnesses import with_fault
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


# Laws, each for a module that may have a fault


def finds_every_distance(module, source, seed, before, n, bits):
    engine = Engine(source, seed)
    engine.draw(before, bits)
    first = engine.state
    engine.draw(n, bits)
    last = engine.state
    ahead, behind = module.drift(first, last), module.drift(last, first)
    assert ahead.draws == -behind.draws
    assert ahead.draws * ahead.bits == n * bits
    assert ahead.relation == behind.relation == ("apart" if n else "same")
    assert module.drift(first, first) == module.drift(last, last) == ("same", 0, 64, "the same")


def finds_a_distance_in_half_words(module, source, seed, before, n):
    """Where one half word is in store before and after, or after only."""
    engine = Engine(source, seed)
    engine.draw(before, 32)
    first = engine.state
    engine.draw(n, 32)
    found = module.drift(first, engine.state)
    assert found.draws * found.bits == 32 * n


def tells_another_stream(module, source):
    first, last = Engine(source, 1), Engine(source, 2)
    last.draw(3)
    assert module.drift(first.state, last.state).relation == "another stream"
    assert module.drift(first.state, last.state).draws is None


def searches_a_million_draws(module, source):
    engine = Engine(source, 5)
    engine.draw(7)
    first = engine.state
    engine.draw(draws.LIMIT - 1)
    assert module.drift(first, engine.state).text == "ahead by 999,999 64-bit draws"
    assert module.drift(engine.state, first).text == "behind by 999,999 64-bit draws"
    engine.draw(draws.LIMIT)
    for pair in ((first, engine.state), (engine.state, first)):
        assert module.drift(*pair).relation in ("far", "another stream")


def tells_a_lost_normal_number(module, source):
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
    assert module.drift(whole, lost) == ("store", 0, 64, words + "was lost")
    assert module.drift(lost, whole).text == words + "is one too many"
    assert module.drift(whole, other).text == words + "is another"
    assert module.drift(whole, whole).relation == "same"


def tells_a_lost_float(module):
    """torch keeps one of type float beside that of type double."""
    lost = Engine("torch", 3).state
    whole = lost.clone()
    whole[5052] = 1
    assert module.drift(whole, lost).text == "at the same draw, but the normal number in store was lost"


def tells_a_lost_half_word(module, source):
    engine = Engine(source, 3)
    engine.draw(1, 32)
    whole = engine.state
    lost = whole | {"has_uint32": 0}
    other = whole | {"uinteger": whole["uinteger"] ^ 1}
    assert module.drift(whole, lost).text == "ahead by one 32-bit draw: the half word in store was lost"
    assert module.drift(lost, whole).text == "behind by one 32-bit draw"
    assert module.drift(whole, other).text == "at the same draw, but the half word in store is another"


def names_the_iterator(module):
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
        assert module.drift(before, after).text == f"ahead by {count}, as if {words} was made after the restore"
        text = f"behind by {count}, as if {words} was made before the save, and not again"
        assert module.drift(after, before).text == text


def counts_a_device_by_its_offset(module):
    first = on_device(2**40 + 3, 8)
    assert module.drift(first, on_device(2**40 + 3, 2**33)) == (
        "apart",
        2**33 - 8,
        0,
        f"ahead by an offset of {2**33 - 8:,}",
    )
    assert module.drift(first, on_device(2**40 + 3, 4)).text == "behind by an offset of 4"
    assert module.drift(first, first.clone()).relation == "same"
    assert module.drift(first, on_device(2**40 + 4, 8)).relation == "another stream"


def tells_what_is_no_state(module):
    sound = Engine("torch", 1).state
    for junk in no_states():
        assert module.engine_of(junk) is None
        with pytest.raises(ValueError, match="expected the state of a generator of torch, NumPy or Python"):
            module.drift(sound, junk)
        with pytest.raises(ValueError, match="drift: expected: "):
            module.drift(junk, sound)


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


# The module itself


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
    finds_every_distance(draws, source, seed, before, n, bits)


@given(
    st.sampled_from(("PCG64", "PCG64DXSM", "Philox", "SFC64")), st.integers(0, 99), st.integers(0, 9), st.integers(0, 9)
)
def test_words_in_store_count(source, seed, before, n):
    finds_a_distance_in_half_words(draws, source, seed, before, n)


def test_every_place_of_a_block_is_told_from_every_other():
    engine, states = Engine("torch", 9), []
    for _ in range(1, 1300):
        states.append(engine.state)
        engine.draw(1, 32)
    for at in (0, 1, 622, 623, 624, 625, 1247, 1248, 1249):
        for other in (0, 1, 623, 624, 625, 1247, 1248, 1249):
            found = draws.drift(states[at], states[other])
            assert (found.draws * found.bits if found.draws else 0) == 32 * (other - at)


@pytest.mark.parametrize("source", SOURCES)
def test_another_seed_is_another_stream(source):
    tells_another_stream(draws, source)


@pytest.mark.parametrize("source", ["PCG64", "PCG64DXSM", "Philox", "SFC64", "MT19937", "torch"])
def test_a_million_draws_are_searched_either_way(source):
    searches_a_million_draws(draws, source)


@pytest.mark.parametrize("name", ["Philox", "PCG64", "PCG64DXSM"])
@pytest.mark.parametrize("steps", [2**40, 2**100, 10**6 + 1])
def test_far_away_in_the_same_stream_is_no_other_stream(name, steps):
    engine = Engine(name, 4)
    first = engine.state
    engine.made.bit_generator.advance(steps)
    assert draws.drift(first, engine.state).text == "ahead in the same stream by more than 1,000,000 draws"
    assert draws.drift(engine.state, first).text == "behind in the same stream by more than 1,000,000 draws"


@pytest.mark.parametrize("source", ["torch", "python", "legacy"])
def test_a_normal_number_in_store_is_part_of_the_state(source):
    tells_a_lost_normal_number(draws, source)


def test_a_normal_number_of_type_float_is_part_of_the_state():
    tells_a_lost_float(draws)


@pytest.mark.parametrize("source", ["PCG64", "PCG64DXSM", "Philox", "SFC64"])
def test_a_half_word_in_store_is_part_of_the_state(source):
    tells_a_lost_half_word(draws, source)


def test_an_iterator_that_was_made_after_the_restore_is_named():
    names_the_iterator(draws)


def test_a_device_is_counted_by_its_offset():
    counts_a_device_by_its_offset(draws)


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
        tells_what_is_no_state(draws)


def test_states_are_left_as_they_are():
    for source in SOURCES:
        engine = Engine(source, 1)
        engine.draw(3)
        first, text = engine.state, repr(engine.state)
        engine.draw(3)
        draws.drift(first, engine.state)
        assert repr(first) == text


MUTANTS = [
    ("+ at_b - at_a", "+ at_b", finds_every_distance, ("torch", 1, 3, 5, 64)),
    ("sign * block", "block", finds_every_distance, ("python", 1, 3, 700, 64)),
    ("(from_b, key_a, -1)", "(from_b, key_b, -1)", finds_every_distance, ("python", 1, 3, 700, 64)),
    ("range(2 * LIMIT // WORDS + 2)", "range(2)", finds_every_distance, ("torch", 1, 3, 1300, 64)),
    ("range(2 * LIMIT // WORDS + 2)", "range(LIMIT // WORDS + 2)", searches_a_million_draws, ("torch",)),
    ("if np.array_equal(key, wanted)", "if key[0] >> 31 == wanted[0] >> 31", tells_another_stream, ("torch",)),
    ("stream:\n        return None\n    place", "stream:\n        pass\n    place", tells_another_stream, ("PCG64",)),
    ("(factor + 1) * addend", "factor * addend", finds_every_distance, ("PCG64", 1, 3, 5, 64)),
    ("0x2360ED051FC65DA44385DF649FCCF645", "0xDA942042E4DD58B5", finds_every_distance, ("PCG64", 1, 3, 5, 64)),
    ("if steps <= cycle // 2 else steps - cycle", "", finds_every_distance, ("Philox", 1, 3, 5, 64)),
    ("4 * counter + at", "4 * counter", finds_every_distance, ("Philox", 1, 3, 5, 64)),
    (
        "2 * _signed(steps, CYCLE) + a.half",
        "2 * _signed(steps, CYCLE) + 1",
        finds_a_distance_in_half_words,
        ("PCG64", 1, 2, 3),
    ),
    ("(a, b) if steps >= 0 else (b, a)", "(a, b)", finds_every_distance, ("SFC64", 1, 3, 5, 64)),
    ("2 * steps + a.half - b.half if same else None", "2 * steps", tells_another_stream, ("SFC64",)),
    ("if abs(words) > 2 * LIMIT:", "if False:", searches_a_million_draws, ("Philox",)),
    ("a.store == b.store", "True", tells_a_lost_normal_number, ("torch",)),
    ("if any(raw[5040:5044])", "if False", tells_a_lost_normal_number, ("torch",)),
    ("if raw[5052]", "if False", tells_a_lost_float, ()),
    ("if state[2] is None", "if True", tells_a_lost_normal_number, ("python",)),
    ('if state.get("has_gauss")', "if False", tells_a_lost_normal_number, ("legacy",)),
    ('to_bytes(4, "little") if half', 'to_bytes(4, "little") if False', tells_a_lost_half_word, ("PCG64",)),
    ("if words == 1 and a.half", "if words == 2 and a.half", tells_a_lost_half_word, ("SFC64",)),
    ('{2: "a loader', '{1: "a loader', names_the_iterator, ()),
    ("int(b.place - a.place)", "int(b.place)", counts_a_device_by_its_offset, ()),
    ("if a.stream == b.stream else None", "", counts_a_device_by_its_offset, ()),
    ("left > 1 and following != WORDS + 1 - left", "False", tells_what_is_no_state, ()),
    ("and increment % 2", "", tells_what_is_no_state, ()),
    ("not 0 <= int(at) <= WORDS", "False", tells_what_is_no_state, ()),
    ("or not words.any()", "", tells_what_is_no_state, ()),
    ("if not 0 <= at <= 4:", "if False:", tells_what_is_no_state, ()),
]


@pytest.mark.parametrize(
    ("old", "new", "law", "arguments"), MUTANTS, ids=[f"{i}-{m[2].__name__}" for i, m in enumerate(MUTANTS)]
)
def test_every_law_kills_its_mutants(old, new, law, arguments):
    law(draws, *arguments)
    with pytest.raises((AssertionError, pytest.fail.Exception, ValueError, TypeError)):
        law(with_fault(draws, old, new), *arguments)
