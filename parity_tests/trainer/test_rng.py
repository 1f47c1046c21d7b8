"""Streams: torch's bits, whole states, distinct names; Philox and the stateless noise."""

import hashlib
import json

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref import rng
from numpy_ref.rng import (
    StreamState,
    draw_bernoulli,
    draw_integers,
    draw_noise,
    draw_permutation,
    draw_uniform,
    draw_words,
    generator_from,
    init_stream,
    philox,
    stream_key,
    stream_state,
)

torch = pytest.importorskip("torch", reason="torch is missing: the draws cannot be compared with its CPU generator")

HIGHS = (1, 2, 10, 3 * 2**20, 2**28 - 1, 2**28, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1)
EDGES = (0, 1, 2, 3, 622, 623, 624, 625, 1247, 1248, 1249)  # words drawn around the ends of the engine's block
SIZES = (0, 1, 2, 7, 15, 16, 17, 64, 623, 1003)

seeds = st.integers(0, 2**64 - 1)
names = st.sampled_from(["weights", "order", "dropout", ""]) | st.text(max_size=8).filter(lambda t: t.isprintable())
words_drawn = st.sampled_from(EDGES) | st.integers(0, 1300)
sizes = st.sampled_from(SIZES) | st.integers(0, 300)
highs = st.sampled_from(HIGHS) | st.integers(1, 2**63 - 1)
probabilities = st.sampled_from([0.0, 0.1, 0.5, 1.0]) | st.floats(0, 1)


def torch_twin(state):
    """torch's CPU generator at the same point of the same stream, through its 5056 bytes."""
    raw = np.zeros(5056, np.uint8)
    fields = raw[:16].view(np.int32)
    fields[2], fields[3] = (
        max(625 - state.pos, 1),
        1,
    )  # words left before the next block, counted in torch's way; seeded
    raw[16:24].view(np.uint64)[:] = state.pos
    raw[24:5016].view(np.uint64)[:] = state.key
    generator = torch.Generator()
    generator.set_state(torch.from_numpy(raw))
    return generator


def torch_point(generator):
    """Where torch's CPU generator stands, as a `StreamState`."""
    raw = generator.get_state().numpy()
    left, following = int(raw[8:12].view(np.int32)[0]), int(raw[16:24].view(np.uint64)[0])
    return StreamState(raw[24:5016].view(np.uint64).astype(np.uint32), 624 if left == 1 else following)


def started(seed, name, drawn):
    generator = generator_from(init_stream(seed, name))
    draw_words(generator, drawn)
    return generator


def same(ours, theirs):
    theirs = theirs.numpy()
    return ours.dtype == theirs.dtype and ours.shape == theirs.shape and ours.tobytes() == theirs.tobytes()


def same_state(one, other):
    return one.pos == other.pos and one.key.dtype == other.key.dtype and one.key.tobytes() == other.key.tobytes()


# Each law takes the function under test, so that the mutants below can be put in its place.


def uniform_law(draw, generator, size):
    twin = torch_twin(stream_state(generator))
    return same(draw(generator, size), torch.rand(size, generator=twin)) and at_one_point(generator, twin)


def wide_uniform_law(draw, generator, size):
    twin = torch_twin(stream_state(generator))
    theirs = torch.rand(size, generator=twin, dtype=torch.float64)
    return same(draw(generator, size, dtype=np.float64), theirs) and at_one_point(generator, twin)


def permutation_law(draw, generator, size):
    twin = torch_twin(stream_state(generator))
    return same(draw(generator, size), torch.randperm(size, generator=twin)) and at_one_point(generator, twin)


def integers_law(draw, generator, size, high):
    twin = torch_twin(stream_state(generator))
    theirs = torch.randint(0, high, (size,), generator=twin)
    return same(draw(generator, size, high), theirs) and at_one_point(generator, twin)


def bernoulli_law(draw, generator, p, size):
    state = stream_state(generator)
    twin, other = torch_twin(state), torch_twin(state)
    ours = draw(generator, p, size)
    sampled = torch.bernoulli(torch.full((size,), p, dtype=torch.float32), generator=other) == 1
    theirs = torch.rand(size, generator=twin) < torch.tensor(p, dtype=torch.float32)
    return same(ours, theirs) and same(ours, sampled) and at_one_point(generator, twin)


def at_one_point(generator, twin):
    return same_state(stream_state(generator), torch_point(twin))


@given(seeds, names, words_drawn, sizes)
def test_uniform_float32_equals_torch_rand(seed, name, drawn, size):
    assert uniform_law(draw_uniform, started(seed, name, drawn), size)


@given(seeds, names, words_drawn, sizes)
def test_uniform_float64_equals_torch_rand(seed, name, drawn, size):
    assert wide_uniform_law(draw_uniform, started(seed, name, drawn), size)


@given(seeds, names, words_drawn, sizes)
def test_permutation_equals_torch_randperm(seed, name, drawn, size):
    assert permutation_law(draw_permutation, started(seed, name, drawn), size)


@given(seeds, names, words_drawn, sizes, highs)
@example(0, "order", 1, 64, 2**28 - 1)
@example(0, "order", 1, 64, 2**28)
def test_integers_equal_torch_randint(seed, name, drawn, size, high):
    assert integers_law(draw_integers, started(seed, name, drawn), size, high)


@given(seeds, names, words_drawn, sizes, probabilities)
def test_bernoulli_equals_torch_rand_below_p_and_torch_bernoulli(seed, name, drawn, size, p):
    assert bernoulli_law(draw_bernoulli, started(seed, name, drawn), p, size)


@given(seeds, words_drawn, st.lists(st.integers(0, 4), max_size=3))
def test_shapes_are_filled_in_c_order_as_torch_does(seed, drawn, shape):
    generator = started(seed, "weights", drawn)
    twin = torch_twin(stream_state(generator))
    assert same(draw_uniform(generator, tuple(shape)), torch.rand(shape, generator=twin))
    assert same(draw_integers(generator, shape, 10), torch.randint(0, 10, shape, generator=twin))
    assert same(draw_bernoulli(generator, 0.5, shape), torch.rand(shape, generator=twin) < 0.5)


@given(seeds, words_drawn)
def test_words_are_torchs_words(seed, drawn):
    generator = started(seed, "order", drawn)
    twin = torch_twin(stream_state(generator))
    ours = draw_words(generator, 701)
    assert ours.dtype == np.uint32
    # randint over 2**32 numbers takes two words and keeps the second
    assert ours[1::2].tolist() == torch.randint(0, 2**32, (350,), generator=twin).tolist()


@pytest.mark.parametrize("size", [65_536, 65_537, 100_003, 1_000_000])  # also where a place takes more than 16 bits
def test_permutation_of_a_large_set_equals_torch_randperm(size):
    assert permutation_law(draw_permutation, started(3, "order", 5), size)


def swaps_one_by_one(generator, n):
    """The definition of `draw_permutation`, on Python's integers."""
    order = list(range(n))
    for i, word in enumerate(draw_words(generator, max(n - 1, 0)).tolist()):
        j = i + word % (n - i)
        order[i], order[j] = order[j], order[i]
    return np.array(order, np.int64)


def definition_law(draw, state, n):
    ours, theirs = generator_from(state), generator_from(state)
    order = draw(ours, n)
    expected = swaps_one_by_one(theirs, n)
    alike = order.dtype == expected.dtype and order.tolist() == expected.tolist()
    return alike and same_state(stream_state(ours), stream_state(theirs))


@pytest.mark.parametrize("size", [0, 1, 2, 623, 624, 625, 10_000, 65_535, 65_536, 65_537, 100_000])
@pytest.mark.parametrize("drawn", [0, 1, 623, 624])
def test_permutation_of_any_size_equals_the_swaps_one_by_one(size, drawn):
    assert definition_law(draw_permutation, stream_state(started(size, "order", drawn)), size)


@given(
    st.lists(st.floats(0, 1, exclude_max=True), max_size=60).map(
        lambda r: [i + int(u * (len(r) - i)) for i, u in enumerate(r)]
    )
)
@example([4, 4, 4, 4, 4])
@example([1, 2, 3, 4, 4])
@example([0, 1, 2, 3, 4])
@example([3, 3, 2, 4, 4])
def test_the_order_after_any_swaps_is_that_of_swapping_one_by_one(partners):
    order = list(range(len(partners)))
    for i, j in enumerate(partners):
        order[i], order[j] = order[j], order[i]
    given = np.array(partners, np.int64)
    assert rng._after_swaps(given).tolist() == order
    assert given.tolist() == partners


def follow_swaps(partners, *, rounds=60, direction=1):
    """The fast path once more, in a form that can be made wrong."""
    held = np.arange(partners.size)
    held[partners[::direction]] = np.arange(partners.size)[::direction]
    for _ in range(rounds):
        held = held[held]
    by_partner = np.argsort(partners, kind="stable")
    order = partners.copy()
    again = np.flatnonzero(np.diff(partners[by_partner]) == 0)
    order[by_partner[again + 1]] = held[by_partner[again]]
    return order


@pytest.mark.parametrize("fault", [{"rounds": 0}, {"rounds": 1}, {"direction": -1}])
def test_a_shortcut_through_the_swaps_is_seen(monkeypatch, fault):
    state = init_stream(0, "order")
    monkeypatch.setattr(rng, "_after_swaps", follow_swaps)
    assert all(definition_law(draw_permutation, state, size) for size in SIZES)
    monkeypatch.setattr(rng, "_after_swaps", lambda partners: follow_swaps(partners, **fault))
    assert not all(definition_law(draw_permutation, state, size) for size in SIZES)


DRAWS = {
    "words": lambda generator, n: draw_words(generator, n),
    "uniform": lambda generator, n: draw_uniform(generator, n),
    "wide": lambda generator, n: draw_uniform(generator, n, dtype=np.float64),
    "permutation": lambda generator, n: draw_permutation(generator, n),
    "integers": lambda generator, n: draw_integers(generator, n, 10),
    "long integers": lambda generator, n: draw_integers(generator, n, 2**40 + 7),
    "bernoulli": lambda generator, n: draw_bernoulli(generator, 0.3, n),
}


def through_text(state):
    """A state as a checkpoint would hold it: plain numbers, no array."""
    key, pos = json.loads(json.dumps([state.key.tolist(), state.pos]))
    return StreamState(np.array(key, np.uint32), pos)


def pos_dropped(state):
    return StreamState(state.key, 624)


def never_saved(state):
    return None


def draws_with_saves(seed, plan, save):
    """The draws of a plan, with the generator rebuilt from its saved state before each."""
    generator = generator_from(init_stream(seed, "order"))
    drawn = []
    for kind, size in plan:
        state = save(stream_state(generator))
        generator = generator if state is None else generator_from(state)
        drawn.append(DRAWS[kind](generator, size).tobytes())
    return drawn


plans = st.lists(st.tuples(st.sampled_from(sorted(DRAWS)), words_drawn), min_size=1, max_size=6)


@given(seeds, plans)
def test_draws_with_a_save_before_each_equal_never_saving(seed, plan):
    assert draws_with_saves(seed, plan, through_text) == draws_with_saves(seed, plan, never_saved)


@pytest.mark.parametrize("drawn", EDGES)
def test_a_save_after_any_number_of_words_equals_never_saving(drawn):
    plan = [("words", drawn), ("uniform", 1300)]
    assert draws_with_saves(1, plan, through_text) == draws_with_saves(1, plan, never_saved)


def test_a_dropped_position_is_seen():
    plan = [("words", 5), ("uniform", 3)]
    assert draws_with_saves(1, plan, pos_dropped) != draws_with_saves(1, plan, never_saved)


def key_of_32_bits(seed, name):
    return stream_key(seed & 0xFFFFFFFF, name)


def key_without_name(seed, name):
    return stream_key(seed, "")


def key_of_joined_text(seed, name):
    return stream_key(0, f"{seed}{name}")


def distinct_law(derive):
    """Many (seed, name), chosen to be close or to read alike, have as many keys."""
    pairs = [(seed, name) for seed in range(40) for name in ("", "weights", "order", "dropout", "0", "1", "order\0")]
    pairs += [(seed + step, "order") for seed in (7, 2**63 - 1) for step in (2**8, 2**31, 2**32, 2**40, 2**62)]
    pairs += [(7, "ordér"), (7, "Order"), (2**64 - 1, "order")]
    return len({derive(*pair)[1:].tobytes() for pair in pairs}) == len(pairs)


def test_streams_of_different_seeds_or_names_differ():
    assert distinct_law(stream_key)
    assert stream_key(7, "order").tolist() != stream_key(2**40 + 7, "order").tolist()


@pytest.mark.parametrize("mutant", [key_of_32_bits, key_without_name, key_of_joined_text])
def test_a_key_that_ignores_part_of_seed_or_name_is_seen(mutant):
    assert not distinct_law(mutant)


@given(seeds, names)
def test_a_fresh_stream_is_624_uint32_words_with_the_top_bit_set_and_none_handed_out(seed, name):
    key, pos = init_stream(seed, name)
    assert (key.dtype, key.shape, pos) == (np.uint32, (624,), 624)
    assert key[0] >> 31 == 1
    assert key.tolist() == stream_key(np.uint64(seed), name).tolist()
    assert len(set(key.tolist())) > 600


@given(seeds, names)
def test_a_key_is_the_declared_hash_of_seed_and_name(seed, name):
    message = b"bitwise-resume stream, version 1\0" + seed.to_bytes(8, "little") + name.encode()
    digest = hashlib.shake_256(message).digest(2496)
    words = [int.from_bytes(digest[at : at + 4], "little") for at in range(0, 2496, 4)]
    assert stream_key(seed, name).tolist() == [words[0] | 2**31, *words[1:]]


def test_a_released_stream_stays_as_it_was():
    # Golden: guards against a change, which would change every run; proves nothing else.
    assert draw_words(generator_from(init_stream(42, "order")), 3).tolist() == [1579580581, 2073083614, 39863842]


def test_drawing_leaves_the_state_it_started_from_alone():
    state = init_stream(5, "order")
    before = state.key.copy()
    generator = generator_from(state)
    draw_words(generator, 1000)
    assert state.key.tolist() == before.tolist()


def test_writing_into_a_state_does_not_reach_a_generator_made_of_it():
    state, untouched = init_stream(5, "order"), init_stream(5, "order")
    generator = generator_from(state)
    state.key[:] = 1
    assert draw_words(generator, 700).tolist() == draw_words(generator_from(untouched), 700).tolist()


def test_a_state_taken_is_independent_of_the_generator():
    generator = started(5, "order", 10)
    taken, again = stream_state(generator), stream_state(generator)
    taken.key[:] = 1
    assert same_state(stream_state(generator), again)
    draw_words(generator, 1000)
    assert draw_words(generator_from(again), 700).tolist() == draw_words(started(5, "order", 10), 700).tolist()


def test_two_generators_of_one_state_do_not_share_it():
    state = init_stream(5, "order")
    one, other = generator_from(state), generator_from(state)
    draw_words(one, 3)
    assert stream_state(other).pos == 624


def test_a_read_only_key_is_enough():
    state = init_stream(5, "order")
    state.key.flags.writeable = False
    assert draw_words(generator_from(state), 1).size == 1


KEY = stream_key(0, "order")
LOW_BITS_ONLY = np.zeros(624, np.uint32)
LOW_BITS_ONLY[0] = 2**31 - 1


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (
            StreamState(KEY.astype(np.uint64), 1),
            r"key: expected a uint32 array of shape \(624,\), found uint64 \(624,\)",
        ),
        (StreamState(KEY.astype(">u4"), 1), "key: expected a uint32 array"),
        (StreamState(KEY.view(np.uint8), 1), r"found uint8 \(2496,\)"),
        (StreamState(KEY[:-1], 1), r"found uint32 \(623,\)"),
        (StreamState(KEY.reshape(1, 624), 1), r"found uint32 \(1, 624\)"),
        (StreamState(KEY.tolist(), 1), "found list"),
        (StreamState(KEY, -1), "pos: expected an integer from 1 to 624, found -1"),
        (StreamState(KEY, 0), "pos: expected an integer from 1 to 624, found 0"),
        (StreamState(KEY, 625), "pos: expected an integer from 1 to 624, found 625"),
        (StreamState(KEY, 1.0), r"pos: .* found 1\.0"),
        (StreamState(KEY, True), r"pos: .* found True"),
        (StreamState(KEY, None), r"pos: .* found None"),
        (StreamState(np.zeros(624, np.uint32), 624), "found the all-zero one"),
        (StreamState(LOW_BITS_ONLY, 624), "found the all-zero one"),
    ],
)
def test_a_state_that_is_none_is_refused(state, message):
    with pytest.raises(ValueError, match=message):
        generator_from(state)


def test_a_state_of_the_top_bit_alone_is_a_state():
    key = np.zeros(624, np.uint32)
    key[0] = 2**31
    assert draw_words(generator_from(StreamState(key, 624)), 2000).any()


def test_an_all_zero_state_would_hand_out_zeros_for_ever():
    engine = np.random.MT19937(0)
    engine.state = {"bit_generator": "MT19937", "state": {"key": LOW_BITS_ONLY, "pos": 624}}
    assert not engine.random_raw(5000).any()


@pytest.mark.parametrize(
    "other", [np.random.Generator(np.random.PCG64(0)), np.random.RandomState(0), torch.Generator(), None]
)
def test_a_generator_on_another_engine_is_refused(other):
    for use in (
        stream_state,
        lambda g: draw_words(g, 1),
        lambda g: draw_uniform(g, 1),
        lambda g: draw_permutation(g, 2),
    ):
        with pytest.raises(TypeError, match="expected one over MT19937, found"):
            use(other)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None, True, np.float64(3)])
def test_a_seed_that_is_no_64_bit_number_is_refused(seed):
    for use in (lambda s: init_stream(s, "order"), lambda s: draw_noise(s, 0, [0], 1)):
        with pytest.raises(ValueError, match="seed: expected an integer from 0 to 18446744073709551615, found"):
            use(seed)


@pytest.mark.parametrize("name", [None, 3, b"order", "\ud800"])
def test_a_name_that_is_no_text_is_refused(name):
    with pytest.raises(ValueError, match=r"name|surrogates"):
        init_stream(0, name)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda g: draw_words(g, -1), "n: expected"),
        (lambda g: draw_words(g, 1.5), "n: expected"),
        (lambda g: draw_permutation(g, -1), "n: expected an integer from 0 to 214748363"),
        (lambda g: draw_permutation(g, 214748364), "n: expected an integer from 0 to 214748363"),
        (lambda g: draw_uniform(g, (2, -1)), r"shape\[1\]: expected"),
        (lambda g: draw_uniform(g, 2.0), r"shape\[0\]: expected"),
        (lambda g: draw_uniform(g, 2, dtype=np.float16), "dtype: expected float32 or float64, found float16"),
        (lambda g: draw_integers(g, 2, 0), "high: expected"),
        (lambda g: draw_integers(g, 2, 2**63), "high: expected"),
        (lambda g: draw_bernoulli(g, -0.1, 2), "p: expected a probability"),
        (lambda g: draw_bernoulli(g, float("nan"), 2), "p: expected a probability"),
    ],
)
def test_a_draw_out_of_range_is_refused_and_draws_nothing(draw, message):
    generator = started(0, "order", 3)
    with pytest.raises(ValueError, match=message):
        draw(generator)
    assert stream_state(generator).pos == 3


def high_bits(generator, size):
    return generator.random(size, dtype=np.float32)


def low_word_first(generator, size, dtype):
    words = draw_words(generator, 2 * size).astype(np.uint64)
    return ((words[1::2] << np.uint64(32) | words[0::2]) & np.uint64(2**53 - 1)).astype(dtype) * 2.0**-53


def numpys_random(generator, size, dtype):
    return generator.random(size, dtype=dtype)


def numpys_permutation(generator, size):
    return generator.permutation(size)


def from_the_back(generator, size):
    order = np.arange(size)
    for i, word in zip(range(size - 1, 0, -1), draw_words(generator, max(size - 1, 0)).tolist(), strict=True):
        order[[i, word % (i + 1)]] = order[[word % (i + 1), i]]
    return order


def numpys_integers(generator, size, high):
    return generator.integers(0, high, size)


def one_word_up_to_32_bits(generator, size, high):
    if high >= 2**32:
        return draw_integers(generator, size, high)
    return (draw_words(generator, size) % np.uint32(high)).astype(np.int64)


@pytest.mark.parametrize(
    ("law", "mutant", "rest"),
    [
        (uniform_law, high_bits, [64]),
        (wide_uniform_law, low_word_first, [64]),
        (wide_uniform_law, numpys_random, [64]),
        (permutation_law, numpys_permutation, [64]),
        (permutation_law, from_the_back, [64]),
        (integers_law, numpys_integers, [64, 10]),
        (integers_law, one_word_up_to_32_bits, [64, 2**28]),
    ],
)
def test_a_draw_that_is_not_torchs_is_seen(law, mutant, rest):
    assert not law(mutant, started(0, "order", 1), *rest)


def test_a_bernoulli_draw_that_keeps_p_in_float64_is_seen():
    def mutant(generator, p, size):
        return draw_uniform(generator, size).astype(np.float64) < p

    drawn = float(draw_uniform(started(0, "dropout", 0), 50).max())  # at least 1/2, so float32 has no number between
    p = drawn + 2.0**-30
    assert bernoulli_law(draw_bernoulli, started(0, "dropout", 0), p, 50)
    assert not bernoulli_law(mutant, started(0, "dropout", 0), p, 50)


# What torch makes of a seed, and what its sampler and loader draw


def seeded_state(seed):
    """Where `torch.Generator().manual_seed(seed)` starts: Knuth's recurrence on the seed's low 32 bits."""
    words = [seed % 2**32]
    for i in range(1, 624):
        words.append((1812433253 * (words[-1] ^ words[-1] >> 30) + i) % 2**32)
    return StreamState(np.array(words, np.uint32), 624)


torch_seeds = st.sampled_from([0, 1, 42, 2**31, 2**32 - 1, 2**32, 2**40 + 7]) | seeds
points = st.sampled_from([0, 624, 1248]) | words_drawn  # at the first three a state of torch has two encodings


@given(torch_seeds)
def test_a_seed_of_torch_starts_the_recurrence_of_its_low_32_bits(seed):
    assert same_state(torch_point(torch.Generator().manual_seed(seed)), seeded_state(seed))
    assert same_state(seeded_state(seed), seeded_state(seed % 2**32))


@given(torch_seeds, points, sizes, highs, probabilities)
def test_every_draw_is_torchs_from_a_seed_of_torch(seed, drawn, size, high, p):
    generator, twin = generator_from(seeded_state(seed)), torch.Generator().manual_seed(seed)
    assert same(draw_uniform(generator, drawn), torch.rand(drawn, generator=twin))
    assert same(draw_uniform(generator, size), torch.rand(size, generator=twin))
    assert same(draw_uniform(generator, size, dtype=np.float64), torch.rand(size, generator=twin, dtype=torch.float64))
    assert same(draw_permutation(generator, size), torch.randperm(size, generator=twin))
    assert same(draw_integers(generator, size, high), torch.randint(0, high, (size,), generator=twin))
    bernoulli = torch.bernoulli(torch.full((size,), p, dtype=torch.float32), generator=twin)
    assert same(draw_bernoulli(generator, p, size), bernoulli == 1)
    assert at_one_point(generator, twin)


def next_word_of(generator):
    """Where torch's own bytes say that the next word lies: 0 when freshly seeded, else how many were handed out."""
    return int(generator.get_state().numpy()[16:24].view(np.uint64)[0])


@given(torch_seeds, points, words_drawn)
def test_a_state_of_torch_goes_on_here(seed, drawn, size):
    twin = torch.Generator().manual_seed(seed)
    torch.rand(drawn, generator=twin)
    generator = generator_from(torch_point(twin))
    assert same(draw_uniform(generator, size), torch.rand(size, generator=twin))
    assert at_one_point(generator, twin)


@given(torch_seeds, points, words_drawn)
def test_a_state_of_ours_goes_on_in_torch_and_comes_back(seed, drawn, size):
    generator = generator_from(seeded_state(seed))
    draw_words(generator, drawn)
    twin = torch_twin(stream_state(generator))
    assert at_one_point(generator, twin)
    assert same(draw_uniform(generator, size), torch.rand(size, generator=twin))
    back = generator_from(torch_point(twin))
    assert draw_words(back, 700).tolist() == draw_words(generator, 700).tolist()


def test_the_end_of_a_block_is_one_point_in_both_of_torchs_encodings():
    fresh, spent = torch.Generator().manual_seed(5), torch_twin(seeded_state(5))
    assert (next_word_of(fresh), next_word_of(spent)) == (0, 624)
    assert fresh.get_state().tolist() != spent.get_state().tolist()
    assert same_state(torch_point(fresh), torch_point(spent))
    assert torch.rand(2000, generator=fresh).tolist() == torch.rand(2000, generator=spent).tolist()
    drawn = torch.Generator().manual_seed(5)
    torch.rand(624, generator=drawn)
    assert next_word_of(drawn) == 624  # not freshly seeded any more
    assert torch_point(drawn).pos == 624


def epoch_of_a_loader(generator, n, *, words_first=2, permutations_after=1):
    """The order that a stock shuffling loader takes from a generator, which it leaves where the loader leaves it.

    An iterator first takes a 64-bit base seed for workers, also without any; a sampler that is run to its end takes one
    permutation more, of which it uses nothing.
    """
    draw_words(generator, words_first)
    order = draw_permutation(generator, n)
    for _ in range(permutations_after):
        draw_permutation(generator, n)
    return order


def loader_law(epoch, seed, drawn, n, batch_size, drop_last, epochs=3):
    generator = generator_from(seeded_state(seed))
    draw_words(generator, drawn)
    twin = torch_twin(stream_state(generator))
    samples = torch.utils.data.TensorDataset(torch.arange(n))
    loader = torch.utils.data.DataLoader(samples, batch_size, shuffle=True, drop_last=drop_last, generator=twin)
    for _ in range(epochs):
        seen = [int(index) for (batch,) in loader for index in batch]
        order = epoch(generator, n).tolist()
        kept = n - n % batch_size if drop_last else n
        if seen != order[:kept] or not at_one_point(generator, twin):
            return False
    return True


@given(torch_seeds, points, st.integers(1, 150), st.integers(1, 20), st.booleans())
@example(7, 0, 103, 10, False)
def test_the_order_of_a_stock_shuffling_loader_is_drawn_here_too(seed, drawn, n, batch_size, drop_last):
    assert loader_law(epoch_of_a_loader, seed, drawn, n, batch_size, drop_last)


@given(torch_seeds, points, st.integers(1, 150), st.integers(0, 5))
def test_an_epoch_of_a_stock_loader_left_early_draws_no_second_permutation(seed, drawn, n, batches):
    generator = generator_from(seeded_state(seed))
    draw_words(generator, drawn)
    twin = torch_twin(stream_state(generator))
    samples = torch.utils.data.TensorDataset(torch.arange(n))
    left = iter(torch.utils.data.DataLoader(samples, 10, shuffle=True, generator=twin))
    batches = min(batches, n // 10)
    seen = [int(index) for _ in range(batches) for index in next(left)[0]]
    if batches:
        order = epoch_of_a_loader(generator, n, permutations_after=0)
        assert seen == order[: 10 * batches].tolist()
    else:
        draw_words(generator, 2)  # the iterator's base seed; the sampler waits for the first batch
    assert at_one_point(generator, twin)


@pytest.mark.parametrize("fault", [{"words_first": 0}, {"words_first": 1}, {"permutations_after": 0}])
def test_a_loaders_order_without_what_else_it_draws_is_seen(fault):
    def mutant(generator, n):
        return epoch_of_a_loader(generator, n, **fault)

    assert loader_law(epoch_of_a_loader, 7, 0, 103, 10, False)
    assert not loader_law(mutant, 7, 0, 103, 10, False)


# Philox and the noise


def plain_philox(counter, key, rounds=10):
    """Philox 4x32 on Python's integers, word by word."""
    x0, x1, x2, x3 = counter
    k0, k1 = key
    for turn in range(rounds):
        high0, low0 = divmod(0xD2511F53 * x0, 2**32)
        high1, low1 = divmod(0xCD9E8D57 * x2, 2**32)
        bump0, bump1 = (k0 + turn * 0x9E3779B9) % 2**32, (k1 + turn * 0xBB67AE85) % 2**32
        x0, x1, x2, x3 = high1 ^ x1 ^ bump0, low1, high0 ^ x3 ^ bump1, low0
    return [x0, x1, x2, x3]


def hexadecimal(text):
    return [int(word, 16) for word in text.split()]


KNOWN_ANSWERS = [  # the Random123 library's own
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN_ANSWERS)
def test_philox_gives_the_published_answers(counter, key, answer):
    counter, key, answer = map(hexadecimal, (counter, key, answer))
    assert philox(np.array([counter], np.uint32), np.array(key, np.uint32)).tolist() == [answer]
    assert plain_philox(counter, key) == answer
    assert plain_philox(counter, key, rounds=9) != answer  # the mutant that the answers kill


words = st.integers(0, 2**32 - 1)


@given(st.lists(st.tuples(words, words, words, words), max_size=9), st.tuples(words, words))
def test_philox_equals_the_same_rule_on_plain_integers(counters, key):
    block = np.array(counters, np.uint32).reshape(-1, 4)
    result = philox(block, np.array(key, np.uint32))
    assert result.dtype == np.uint32
    assert result.tolist() == [plain_philox(counter, key) for counter in counters]
    assert block.tolist() == [list(counter) for counter in counters]


@pytest.mark.parametrize(
    ("counter", "key"),
    [
        (np.zeros((1, 4), np.int64), np.zeros(2, np.uint32)),
        (np.zeros(4, np.uint32), np.zeros(2, np.uint32)),
        (np.zeros((1, 3), np.uint32), np.zeros(2, np.uint32)),
        (np.zeros((1, 4), np.uint32), np.zeros(2, np.uint64)),
        (np.zeros((1, 4), np.uint32), np.zeros(3, np.uint32)),
    ],
)
def test_philox_refuses_other_shapes_and_types(counter, key):
    with pytest.raises(ValueError, match=r"(counter|key): expected uint32 of shape"):
        philox(counter, key)


sample_indices = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63 - 1]) | st.integers(0, 2**63 - 1)
epochs = st.sampled_from([0, 1, 2**32 - 1]) | words


@given(seeds, epochs, st.lists(sample_indices, max_size=5), st.integers(0, 13))
def test_noise_follows_the_declared_rule(seed, epoch, indices, n):
    noise = draw_noise(seed, epoch, indices, n)
    assert (noise.dtype, noise.shape) == (np.float32, (len(indices), n))
    for row, index in zip(noise.tolist(), indices, strict=True):
        blocks = [[block, epoch, index % 2**32, index >> 32] for block in range(4)]
        drawn = [word for block in blocks for word in plain_philox(block, [seed % 2**32, seed >> 32])]
        assert row == [(word >> 8) / 2**24 for word in drawn[:n]]


def split_law(draw):
    """Whatever the order and the split among workers, a sample gets the noise that it gets alone."""
    indices = [5, 2**33, 0, 5, 3, 4, 2**33 + 1]
    whole = draw(9, 2, indices, 6)
    alone = [draw(9, 2, [index], 6)[0] for index in indices]
    shuffled = draw(9, 2, indices[::-1], 6)[::-1]
    workers = [row for start in range(0, len(indices), 2) for row in draw(9, 2, indices[start : start + 2], 6)]
    return all(np.array_equal(whole, np.stack(rows)) for rows in (alone, shuffled, workers))


def test_noise_does_not_depend_on_order_split_or_workers():
    assert split_law(draw_noise)


def varied_law(draw):
    """Noise differs between any two of: seeds that agree in 32 bits, epochs, samples that agree in 32 bits."""
    cases = [(s, e, i) for s in (1, 2**40 + 1, 2**32) for e in (0, 1) for i in (0, 1, 2**32, 2**32 + 1)]
    return len({draw(s, e, [i], 8).tobytes() for s, e, i in cases}) == len(cases)


def test_noise_differs_between_seeds_epochs_and_samples():
    assert varied_law(draw_noise)


def copied_generator(seed, epoch, indices, n):
    return draw_uniform(generator_from(init_stream(seed, "noise")), (len(indices), n))


def same_every_epoch(seed, epoch, indices, n):
    return draw_noise(seed, 0, indices, n)


def low_half_of_index(seed, epoch, indices, n):
    return draw_noise(seed, epoch, [index % 2**32 for index in indices], n)


def test_noise_from_a_generator_copied_into_each_worker_is_seen():
    assert not split_law(copied_generator)


@pytest.mark.parametrize("mutant", [copied_generator, same_every_epoch, low_half_of_index])
def test_noise_that_ignores_epoch_or_index_is_seen(mutant):
    assert not varied_law(mutant)


def test_noise_lies_in_the_unit_interval_and_is_even():
    noise = draw_noise(3, 1, np.arange(500), 40)
    assert noise.min() >= 0
    assert noise.max() < 1
    counts, _ = np.histogram(noise, bins=10, range=(0, 1))
    assert ((counts - 2000.0) ** 2 / 2000).sum() < 40  # chi-squared with 9 degrees of freedom; a fixed draw


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int64, np.uint64, ">i4"])
def test_noise_takes_indices_of_any_integer_type(dtype):
    assert draw_noise(1, 1, np.array([3, 100], dtype), 2).tolist() == draw_noise(1, 1, [3, 100], 2).tolist()


@pytest.mark.parametrize(
    ("epoch", "indices", "n", "message"),
    [
        (-1, [0], 1, "epoch: expected"),
        (2**32, [0], 1, "epoch: expected"),
        (0, [0], -1, "n: expected"),
        (0, [3, -1], 1, "indices: expected sample indices of at least 0, found -1 at 1"),
        (0, [0.0], 1, "indices: expected a list of integers, found float64"),
        (0, [True], 1, "indices: expected a list of integers, found bool"),
        (0, [[0]], 1, r"indices: expected a list of integers, found int64 of shape \(1, 1\)"),
        (0, 3, 1, "indices: expected a list of integers"),
    ],
)
def test_noise_out_of_range_is_refused(epoch, indices, n, message):
    with pytest.raises(ValueError, match=message):
        draw_noise(0, epoch, indices, n)


def test_nothing_here_touches_numpys_global_generator():
    before = json.dumps(np.random.get_state(legacy=False), default=np.ndarray.tolist)  # noqa: NPY002
    draw_permutation(started(0, "order", 1), 50)
    draw_noise(0, 0, [1], 5)
    assert json.dumps(np.random.get_state(legacy=False), default=np.ndarray.tolist) == before  # noqa: NPY002
