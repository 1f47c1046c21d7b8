"""Streams of the port: NumPy's bits in every draw, state and noise, at any place and carried either way."""

import contextlib
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref import rng
from numpy_ref.rng import StreamState, init_stream, stream_key
from parity_tests.oracles import same_bytes

torch = pytest.importorskip("torch", reason="torch is missing: there is no port to compare")
from torch_port import rng as port

SIZES = (1, 7, 64, 1003)
PLACES = (0, 1, 2, 622, 623, 624, 625, 1247, 1248, 1249)  # words drawn around the ends of the engine's block
HIGHS = (1, 2, 10, 2**28 - 1, 2**28, 2**31, 2**32 - 1, 2**32, 2**40 + 7, 2**63 - 1)
NO_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device: these stay unmeasured")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.cuda, NO_CUDA])]

seeds = st.sampled_from([0, 1, 7, 2**32, 2**40 + 7, 2**64 - 1]) | st.integers(0, 2**64 - 1)
names = st.sampled_from(["weights", "order", "dropout", ""]) | st.text(max_size=8).filter(lambda t: t.isprintable())
places = st.sampled_from(PLACES) | st.integers(0, 1300)
sizes = st.sampled_from((0, *SIZES, 16, 17, 623, 624)) | st.integers(0, 300)
shapes = sizes | st.lists(st.integers(0, 5), max_size=3).map(tuple)
highs = st.sampled_from(HIGHS) | st.integers(1, 2**63 - 1)
words = st.integers(0, 2**32 - 1)


def float64(impl):
    return np.float64 if impl is rng else torch.float64


DRAWS = {  # by the package and the size; those with another parameter have laws of their own too
    "words": lambda impl, g, n: impl.draw_words(g, n),
    "uniform": lambda impl, g, n: impl.draw_uniform(g, n),
    "wide uniform": lambda impl, g, n: impl.draw_uniform(g, n, dtype=float64(impl)),
    "permutation": lambda impl, g, n: impl.draw_permutation(g, n),
    "integers": lambda impl, g, n: impl.draw_integers(g, n, 10),
    "long integers": lambda impl, g, n: impl.draw_integers(g, n, 2**40 + 7),
    "bernoulli": lambda impl, g, n: impl.draw_bernoulli(g, 0.3, n),
}
draws = st.sampled_from(sorted(DRAWS))
plans = st.lists(st.tuples(draws, places), min_size=1, max_size=6)


def same(theirs, ours):
    """NumPy's array and the port's tensor: one shape, type and bits; streams are drawn on the CPU."""
    return ours.device.type == "cpu" and ours.is_contiguous() and same_bytes(theirs, ours.numpy())


def same_state(one, other):
    return one.pos == other.pos and type(one.pos) is type(other.pos) is int and same_bytes(one.key, other.key)


def faulty(**replaced):
    """The port with other functions in place of some of its own."""
    return SimpleNamespace(**{**vars(port), **replaced})


# The laws. Each takes the port as an argument, so that the mutants below can be put in its place.


def draw_law(impl, draw, seed=3, name="order", place=5):
    """A draw at a place of a stream gives NumPy's numbers, and leaves the stream where NumPy leaves it."""
    theirs, ours = rng.generator_from(init_stream(seed, name)), impl.generator_from(impl.init_stream(seed, name))
    rng.draw_words(theirs, place)
    impl.draw_words(ours, place)
    expected = draw(rng, theirs)
    return same(expected, draw(impl, ours)) and same_state(rng.stream_state(theirs), impl.stream_state(ours))


def states_law(impl, seed, plan):
    """After every draw of a plan both packages show the same state."""
    theirs, ours = rng.generator_from(init_stream(seed, "order")), impl.generator_from(init_stream(seed, "order"))
    alike = [same_state(rng.stream_state(theirs), impl.stream_state(ours))]
    for kind, size in plan:
        DRAWS[kind](rng, theirs, size)
        DRAWS[kind](impl, ours, size)
        alike.append(same_state(rng.stream_state(theirs), impl.stream_state(ours)))
    return all(alike)


def carried_law(impl, seed, plan):
    """A stream that changes the package before every draw goes on as if it had stayed in NumPy."""
    stayed, state = rng.generator_from(init_stream(seed, "order")), init_stream(seed, "order")
    for turn, (kind, size) in enumerate(plan):
        package = impl if turn % 2 == 0 else rng
        generator = package.generator_from(state)
        drawn, expected = DRAWS[kind](package, generator, size), DRAWS[kind](rng, stayed, size)
        if not same_bytes(expected, np.asarray(drawn)):
            return False
        state = package.stream_state(generator)
    return same_state(state, rng.stream_state(stayed))


def position_law(impl, key, pos):
    """From a position on, three blocks of words and the state after each draw are NumPy's."""
    state = StreamState(key, pos)
    theirs, ours = rng.generator_from(state), impl.generator_from(state)
    for size in (1, 622, 1003):
        if not same(rng.draw_words(theirs, size), impl.draw_words(ours, size)):
            return False
        if not same_state(rng.stream_state(theirs), impl.stream_state(ours)):
            return False
    return True


# Draws


@given(seeds, names, places, draws, sizes)
def test_every_draw_equals_numpys_and_so_does_the_state_after_it(seed, name, place, kind, size):
    assert draw_law(port, lambda impl, g: DRAWS[kind](impl, g, size), seed, name, place)


@given(seeds, places, shapes, highs)
@example(0, 1, 64, 2**28 - 1)
@example(0, 1, 64, 2**28)
def test_integers_equal_numpys(seed, place, shape, high):
    assert draw_law(port, lambda impl, g: impl.draw_integers(g, shape, high), seed, place=place)


@given(seeds, places, shapes)
def test_tensors_of_any_shape_are_filled_as_numpys_arrays(seed, place, shape):
    for given_shape in (shape, list(shape), torch.Size(shape)) if isinstance(shape, tuple) else (shape,):
        assert draw_law(port, lambda impl, g, s=given_shape: impl.draw_uniform(g, s), seed, place=place)
    assert draw_law(port, lambda impl, g: impl.draw_uniform(g, shape, dtype=float64(impl)), seed, place=place)


@pytest.mark.parametrize("size", [65_536, 65_537, 100_003])
def test_a_permutation_of_a_large_set_equals_numpys(size):
    assert draw_law(port, lambda impl, g: impl.draw_permutation(g, size))


# States


@given(seeds, plans)
def test_states_after_the_same_draws_are_the_same_bytes(seed, plan):
    assert states_law(port, seed, plan)


@given(seeds, plans)
def test_a_stream_carried_between_the_packages_equals_one_that_stays(seed, plan):
    assert carried_law(port, seed, plan)
    assert carried_law(port, seed, [("words", 0), *plan])  # the other package first


def made_block(seed):
    """A block of words that MT19937 made."""
    generator = rng.generator_from(init_stream(seed, "order"))
    rng.draw_words(generator, 1)
    return rng.stream_state(generator).key


@pytest.mark.parametrize("seed", [0, 2**40 + 7])
def test_a_stream_goes_on_alike_from_every_position(seed):
    key = made_block(seed)
    assert [pos for pos in range(1, 625) if not position_law(port, key, pos)] == []


@given(seeds, st.integers(1, 624), st.booleans())
def test_a_state_put_into_a_generator_comes_out_the_same(seed, pos, made):
    state = StreamState(made_block(seed) if made else stream_key(seed, "order"), pos)
    before = state.key.copy()
    generator = port.generator_from(state)
    assert same_state(port.stream_state(generator), state)
    port.draw_words(generator, 700)
    assert state.key.tolist() == before.tolist()


def test_position_0_is_refused_in_both_for_no_draw_ends_there_and_torch_cannot_hold_it():
    for impl in (rng, port):
        with pytest.raises(ValueError, match="pos: expected an integer from 1 to 624, found 0"):
            impl.generator_from(StreamState(made_block(0), 0))
    record = np.zeros(1, port._LAYOUT)
    record["left"], record["seeded"], record["key"] = 625, 1, made_block(0)
    with pytest.raises(RuntimeError, match="Invalid mt19937 state"):
        torch.Generator(device="cpu").set_state(torch.from_numpy(record.view(np.uint8)))


@given(st.integers(0, 2**64 - 1), st.sampled_from([0, 624, 1248]) | places)
def test_a_generator_seeded_by_torch_goes_on_in_numpy(seed, place):
    ours = torch.Generator(device="cpu").manual_seed(seed)
    torch.rand(place, generator=ours)
    theirs = rng.generator_from(port.stream_state(ours))
    assert same(rng.draw_uniform(theirs, 700), torch.rand(700, generator=ours))
    assert same_state(rng.stream_state(theirs), port.stream_state(ours))


def test_two_encodings_of_one_point_are_one_state():
    fresh = torch.Generator(device="cpu").manual_seed(5)
    again = port.generator_from(port.stream_state(fresh))
    assert fresh.get_state().tolist() != again.get_state().tolist()
    assert same_state(port.stream_state(fresh), port.stream_state(again))
    assert port.draw_words(fresh, 2000).tolist() == port.draw_words(again, 2000).tolist()


def test_a_state_taken_is_independent_of_the_generator():
    generator = port.generator_from(init_stream(5, "order"))
    taken, again = port.stream_state(generator), port.stream_state(generator)
    taken.key[:] = 1
    assert same_state(port.stream_state(generator), again)
    port.draw_words(generator, 1000)
    assert same_state(again, init_stream(5, "order"))


def test_writing_into_a_state_does_not_reach_a_generator_made_of_it():
    state = init_stream(5, "order")
    generator, other = port.generator_from(state), port.generator_from(state)
    state.key[:] = 1
    assert port.draw_words(generator, 700).tolist() == port.draw_words(other, 700).tolist()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_generator_with_a_normal_number_in_store_is_refused(dtype):
    generator = port.generator_from(init_stream(0, "weights"))
    torch.randn(2, generator=generator, dtype=dtype, device="cpu")
    assert port.stream_state(generator).pos == 4
    torch.randn(1, generator=generator, dtype=dtype, device="cpu")
    with pytest.raises(ValueError, match="generator: expected one without a normal number in store, found one with"):
        port.stream_state(generator)


def test_a_place_that_no_draw_leads_to_is_refused():
    raw = port.generator_from(StreamState(stream_key(0, "order"), 620)).get_state()
    raw[16:24].view(torch.int64)[0] = 3
    generator = torch.Generator(device="cpu")
    generator.set_state(raw)
    with pytest.raises(ValueError, match="generator: expected word 620 to follow where 4 of 624 are left, found 3"):
        port.stream_state(generator)


# What is refused

KEY = stream_key(0, "order")


@pytest.mark.parametrize(
    "state",
    [
        StreamState(KEY.astype(np.uint64), 1),
        StreamState(KEY[:-1], 1),
        StreamState(torch.zeros(624, dtype=torch.uint32), 1),
        StreamState(KEY, -1),
        StreamState(KEY, 625),
        StreamState(KEY, 1.0),
        StreamState(KEY, None),
        StreamState(np.zeros(624, np.uint32), 624),
    ],
)
def test_what_is_no_state_is_refused_with_numpys_words(state):
    with pytest.raises(ValueError, match=r"key|pos") as theirs:
        rng.generator_from(state)
    with pytest.raises(ValueError, match=r"key|pos") as ours:
        port.generator_from(state)
    assert str(ours.value) == str(theirs.value)


class Elsewhere(torch.Generator):
    """Stands for a generator on an accelerator, on machines that have none."""

    device = torch.device("cuda")


@pytest.mark.parametrize(
    ("other", "found"),
    [(Elsewhere(), "one on cuda"), (np.random.Generator(np.random.MT19937(0)), "Generator"), (None, "NoneType")],
)
def test_what_is_no_generator_on_the_cpu_is_refused(other, found):
    uses = [port.stream_state, *(lambda g, draw=draw: draw(port, g, 2) for draw in DRAWS.values())]
    for use in uses:
        with pytest.raises(TypeError, match=f"generator: expected a torch.Generator on the CPU, found {found}. Make"):
            use(other)


REFUSED = {
    "words below 0": lambda impl, g: impl.draw_words(g, -1),
    "half a word": lambda impl, g: impl.draw_words(g, 1.5),
    "permutation below 0": lambda impl, g: impl.draw_permutation(g, -1),
    "permutation by torch's other algorithm": lambda impl, g: impl.draw_permutation(g, 214748364),
    "negative size": lambda impl, g: impl.draw_uniform(g, (2, -1)),
    "size that is a float": lambda impl, g: impl.draw_uniform(g, 2.0),
    "integers below 0": lambda impl, g: impl.draw_integers(g, 2, 0),
    "integers of 64 bits": lambda impl, g: impl.draw_integers(g, 2, 2**63),
    "negative p": lambda impl, g: impl.draw_bernoulli(g, -0.1, 2),
    "p above 1": lambda impl, g: impl.draw_bernoulli(g, 1.1, 2),
    "p that is NaN": lambda impl, g: impl.draw_bernoulli(g, float("nan"), 2),
}


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_a_draw_out_of_range_is_refused_with_numpys_words_and_draws_nothing(case):
    state = StreamState(KEY, 3)
    theirs, ours = rng.generator_from(state), port.generator_from(state)
    with pytest.raises(ValueError, match="expected") as expected:
        REFUSED[case](rng, theirs)
    with pytest.raises(ValueError, match="expected") as found:
        REFUSED[case](port, ours)
    assert str(found.value) == str(expected.value)
    assert same_state(port.stream_state(ours), state)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.int64, np.float32, None])
def test_a_uniform_type_that_is_neither_is_refused(dtype):
    with pytest.raises(ValueError, match=r"dtype: expected torch.float32 or torch.float64, found"):
        port.draw_uniform(port.generator_from(init_stream(0, "order")), 2, dtype=dtype)


# Philox and the noise


def hexadecimal(text):
    return [int(word, 16) for word in text.split()]


KNOWN_ANSWERS = [  # the Random123 library's own
    ("0 0 0 0", "0 0", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def answers_law(impl, device="cpu"):
    found = [
        impl.philox(
            torch.tensor([hexadecimal(counter)], dtype=torch.uint32, device=device),
            torch.tensor(hexadecimal(key), dtype=torch.uint32, device=device),
        ).tolist()
        for counter, key, _ in KNOWN_ANSWERS
    ]
    return found == [[hexadecimal(answer)] for _, _, answer in KNOWN_ANSWERS]


@pytest.mark.parametrize("device", DEVICES)
def test_philox_gives_the_published_answers(device):
    assert answers_law(port, device)


@given(st.lists(st.tuples(words, words, words, words), max_size=9), st.tuples(words, words))
def test_philox_equals_numpys(counters, key):
    block, pair = np.array(counters, np.uint32).reshape(-1, 4), np.array(key, np.uint32)
    ours = torch.from_numpy(block.copy())
    assert same(rng.philox(block, pair), port.philox(ours, torch.from_numpy(pair)))
    assert ours.tolist() == block.tolist()


@pytest.mark.parametrize(
    ("counter", "key"),
    [
        (torch.zeros((1, 4), dtype=torch.int64), torch.zeros(2, dtype=torch.uint32)),
        (torch.zeros(4, dtype=torch.uint32), torch.zeros(2, dtype=torch.uint32)),
        (torch.zeros((1, 3), dtype=torch.uint32), torch.zeros(2, dtype=torch.uint32)),
        (torch.zeros((1, 4), dtype=torch.uint32), torch.zeros(2, dtype=torch.int64)),
        (torch.zeros((1, 4), dtype=torch.uint32), torch.zeros(3, dtype=torch.uint32)),
    ],
)
def test_philox_refuses_other_shapes_and_types(counter, key):
    with pytest.raises(ValueError, match=r"(counter|key): expected torch.uint32 of shape .*, found torch\.u?int"):
        port.philox(counter, key)


indices = st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1]) | st.integers(0, 2**64 - 1)


def noise_law(impl, seed, epoch, samples, n):
    """Noise is NumPy's, whole and for each sample alone."""
    expected = rng.draw_noise(seed, epoch, samples, n)
    alone = [impl.draw_noise(seed, epoch, samples[i : i + 1], n) for i in range(len(samples))]
    pieces = torch.cat([torch.empty((0, n), dtype=torch.float32, device="cpu"), *alone])
    return same(expected, impl.draw_noise(seed, epoch, samples, n)) and same(expected, pieces)


@given(seeds, words, st.lists(indices, max_size=5), st.sampled_from((0, 3, 4, 5, *SIZES)))
def test_noise_equals_numpys_and_is_each_samples_own(seed, epoch, samples, n):
    assert noise_law(port, seed, epoch, np.array(samples, np.uint64), n)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.uint32, torch.int64, torch.uint64])
def test_noise_takes_indices_of_any_integer_type_and_stays_on_their_device(device, dtype):
    noise = port.draw_noise(1, 1, torch.tensor([3, 100], dtype=dtype, device=device), 5)
    assert noise.device.type == device
    assert same(rng.draw_noise(1, 1, [3, 100], 5), noise.cpu())


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, ">i4", np.uint64])
def test_noise_takes_numpys_indices_too_also_read_only_ones(dtype):
    samples = np.array([3, 100], dtype)
    samples.flags.writeable = False
    assert same(rng.draw_noise(1, 1, samples, 5), port.draw_noise(1, 1, samples, 5))


def test_noise_of_no_samples_has_no_rows():
    for empty in ([], np.zeros(0), torch.tensor([])):
        assert same(np.zeros((0, 3), np.float32), port.draw_noise(1, 1, empty, 3))


@pytest.mark.parametrize(
    ("seed", "epoch", "samples", "n"),
    [
        (-1, 0, [0], 1),
        (0, -1, [0], 1),
        (0, 2**32, [0], 1),
        (0, 0, [0], -1),
        (0, 0, [3, -1], 1),
        (0, 0, [0.0], 1),
        (0, 0, [True], 1),
        (0, 0, [2**64], 1),
        (0, 0, [[0]], 1),
        (0, 0, 3, 1),
    ],
)
def test_noise_out_of_range_is_refused_with_numpys_words(seed, epoch, samples, n):
    with pytest.raises(ValueError, match="expected") as theirs:
        rng.draw_noise(seed, epoch, samples, n)
    with pytest.raises(ValueError, match="expected") as ours:
        port.draw_noise(seed, epoch, samples, n)
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("samples", [torch.tensor([0.5]), torch.tensor([True]), torch.tensor([[1]]), torch.tensor(1)])
def test_noise_for_a_tensor_that_is_no_list_of_integers_is_refused(samples):
    with pytest.raises(ValueError, match="indices: expected a list of integers, found"):
        port.draw_noise(0, 0, samples, 1)


# What is around a stream leaves it alone, and is left alone


@contextlib.contextmanager
def surroundings(device, dtype):
    """Another default device and type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    torch.set_default_device(device)
    try:
        yield
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(before)


def surrounded_law(impl):
    """Default device and type change nothing: every draw and state is NumPy's."""
    with surroundings("meta", torch.float64):
        try:
            drawn = all(draw_law(impl, lambda m, g, draw=draw: draw(m, g, 7)) for draw in DRAWS.values())
            return drawn and noise_law(impl, 3, 1, np.arange(7), 5)
        except (NotImplementedError, RuntimeError, TypeError):  # torch's own, of a tensor on the wrong device
            return False


def test_the_default_device_and_type_change_nothing():
    assert surrounded_law(port)


SURROUNDED = {
    "uniform": {"draw_uniform": lambda g, shape, dtype=None: torch.rand(shape, generator=g, device="cpu")},
    "permutation": {"draw_permutation": lambda g, n: torch.randperm(n, generator=g)},
    "integers": {"draw_integers": lambda g, shape, high: torch.randint(0, high, (shape,), generator=g)},
    "noise": {"draw_noise": lambda *given: torch.empty_like(port.draw_noise(*given), device=None)},
}


@pytest.mark.parametrize("name", SURROUNDED)
def test_a_draw_that_follows_the_default_device_or_type_is_seen(name):
    assert not surrounded_law(faulty(**SURROUNDED[name]))


def global_states():
    name, key, *rest = np.random.get_state()  # noqa: NPY002 - looked at, not drawn from
    return torch.get_rng_state().tolist(), (name, key.tolist(), *rest)


def global_law(impl):
    """No draw moves a global generator."""
    before = global_states()
    for draw in DRAWS.values():
        draw(impl, impl.generator_from(init_stream(0, "order")), 7)
    impl.draw_noise(0, 0, [1], 5)
    return global_states() == before


def test_no_draw_touches_a_global_generator():
    assert global_law(port)


GLOBAL = {
    "words": {"draw_words": lambda g, n: torch.rand(n)},
    "uniform": {"draw_uniform": lambda g, shape, dtype=None: torch.rand(shape)},
    "permutation": {"draw_permutation": lambda g, n: torch.randperm(n)},
    "integers": {"draw_integers": lambda g, shape, high: torch.randint(0, high, (shape,))},
}


@pytest.mark.parametrize("name", GLOBAL)
def test_a_draw_from_the_global_generator_is_seen(name):
    with torch.random.fork_rng(devices=[]):
        assert not global_law(faulty(**GLOBAL[name]))


# Mutants: each is one thing that people write in the port's place


def numpys_permutation(generator, n):
    engine = rng.generator_from(port.stream_state(generator))
    port.draw_words(generator, max(n - 1, 0))
    return torch.from_numpy(engine.permutation(n))


def bernoulli_in_place(generator, p, shape):
    return torch.empty(shape, dtype=torch.bool).bernoulli_(p, generator=generator)


def as_dropout(generator, p, shape):
    """What `F.dropout` keeps, with the global generator at the stream's point."""
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(generator.get_state())
        kept = torch.nn.functional.dropout(torch.ones(shape), 1 - p) != 0
        generator.set_state(torch.get_rng_state())
    return kept


def p_in_float64(generator, p, shape):
    return port.draw_uniform(generator, shape).to(torch.float64) < p


def random_bits_of_31(generator, n):
    return torch.empty(n, dtype=torch.int32).random_(generator=generator).to(torch.uint32)


def words_by_randint(generator, n):
    return torch.randint(0, 2**32, (n,), generator=generator).to(torch.uint32)


def one_word_more(generator, n):
    return port.draw_words(generator, n + n % 2)[:n]


def halves_swapped(generator, n):
    words = port.draw_words(generator, n + n % 2)
    return torch.stack([words[1::2], words[::2]], dim=1).reshape(-1)[:n]


@pytest.mark.parametrize(
    ("kind", "mutant"),
    [
        ("permutation", faulty(draw_permutation=numpys_permutation)),
        ("bernoulli", faulty(draw_bernoulli=bernoulli_in_place)),
        ("bernoulli", faulty(draw_bernoulli=as_dropout)),
        ("words", faulty(draw_words=random_bits_of_31)),
        ("words", faulty(draw_words=words_by_randint)),
        ("words", faulty(draw_words=one_word_more)),
        ("words", faulty(draw_words=halves_swapped)),
        ("integers", faulty(draw_integers=lambda g, shape, high: port.draw_integers(g, shape, high) + 1)),
    ],
    ids=lambda value: value if isinstance(value, str) else "mutant",
)
def test_a_draw_that_is_not_the_streams_is_seen(kind, mutant):
    assert all(draw_law(port, lambda impl, g, n=n: DRAWS[kind](impl, g, n)) for n in SIZES)
    assert not all(draw_law(mutant, lambda impl, g, n=n: DRAWS[kind](impl, g, n), place=0) for n in SIZES)


def test_a_bernoulli_draw_that_keeps_p_in_float64_is_seen():
    drawn = float(rng.draw_uniform(rng.generator_from(init_stream(0, "dropout")), 50).max())
    p = drawn + 2.0**-30  # at least 1/2, so float32 has no number between
    case = {"draw": lambda impl, g: impl.draw_bernoulli(g, p, 50), "seed": 0, "name": "dropout", "place": 0}
    assert draw_law(port, **case)
    assert not draw_law(faulty(draw_bernoulli=p_in_float64), **case)


def seeds_law(impl):
    """Seeds that agree in their low 32 bits start different streams."""
    started = [impl.generator_from(impl.init_stream(seed, "order")) for seed in (7, 2**32 + 7, 2**40 + 7)]
    return len({tuple(impl.draw_words(generator, 4).tolist()) for generator in started}) == 3


def by_manual_seed(seed, name):
    return port.stream_state(torch.Generator(device="cpu").manual_seed(seed))


def test_a_stream_started_by_manual_seed_which_keeps_32_bits_is_seen():
    assert seeds_law(port)
    assert not seeds_law(faulty(init_stream=by_manual_seed))
    assert not draw_law(faulty(init_stream=by_manual_seed), lambda impl, g: impl.draw_words(g, 7))


PLAN = [("words", 5), ("uniform", 3), ("words", 616), ("permutation", 64), ("bernoulli", 7)]  # the third ends a block


def fresh_law(impl):
    """A generator that torch has just seeded stands at the end of a block."""
    return impl.stream_state(torch.Generator(device="cpu").manual_seed(0)).pos == 624


def holds(law, *case):
    try:
        return law(*case)
    except ValueError:  # the mutant's own, of a state that it made wrong
        return False


def with_position(change):
    return {"generator_from": lambda state: port.generator_from(state._replace(pos=change(state.pos)))}


POSITION_LOST = {"stream_state": lambda generator: port.stream_state(generator)._replace(pos=rng.WORDS)}


@pytest.mark.parametrize(
    ("law", "fault"),
    [
        (states_law, POSITION_LOST),
        (carried_law, POSITION_LOST),
        (carried_law, with_position(lambda pos: rng.WORDS)),
        (carried_law, with_position(lambda pos: max(pos - 1, 1))),
        (carried_law, with_position(lambda pos: min(pos + 1, rng.WORDS))),
    ],
)
def test_a_state_without_its_position_is_seen(law, fault):
    assert holds(law, port, 0, PLAN)
    assert not holds(law, faulty(**fault), 0, PLAN)


def test_a_position_taken_as_torch_writes_it_is_seen():
    assert fresh_law(port)
    assert not fresh_law(faulty(stream_state=lambda generator: StreamState(KEY, 0)))


def test_another_number_of_rounds_or_key_in_philox_is_seen():
    assert not answers_law(faulty(philox=lambda counter, key: port.philox(port.philox(counter, key), key)))
    assert not answers_law(faulty(philox=lambda counter, key: port.philox(counter, torch.stack([key[1], key[0]]))))


NOISE_FAULTS = {
    "epoch": lambda seed, epoch, samples, n: port.draw_noise(seed, 0, samples, n),
    "high half of the index": lambda seed, epoch, samples, n: port.draw_noise(seed, epoch, samples % 2**32, n),
    "high half of the seed": lambda seed, epoch, samples, n: port.draw_noise(seed % 2**32, epoch, samples, n),
    "each sample's own": lambda seed, epoch, samples, n: port.draw_noise(seed, epoch, np.arange(len(samples)), n),
}


@pytest.mark.parametrize("name", NOISE_FAULTS)
def test_noise_that_leaves_something_out_is_seen(name):
    case = (2**40 + 7, 3, np.array([5, 2**33 + 5]), 6)
    assert noise_law(port, *case)
    assert not noise_law(faulty(draw_noise=NOISE_FAULTS[name]), *case)
