"""The port's sampler and loader give the reference's samples, from any position, with any number of workers."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from numpy_ref import data as reference
from numpy_ref.data import Position
from numpy_ref.proof.equivalence import same_bits
from numpy_ref.rng import draw_noise, generator_from, init_stream, stream_state
from parity_tests.oracles import same_bytes
from parity_tests.strategies import small_data

torch = pytest.importorskip("torch", reason="torch is missing: the port's loader cannot be run")
from torch_port import data as port
from torch_port import rng as port_rng


def visits(n, size, batches, stops, workers=0):
    """(epoch, samples) of the loader's batches; at each stop the loop is rebuilt from what it would save."""
    samples = port.Samples(small_data(samples=n + n // 4))
    n = len(samples)
    order, position, loader, seen = init_stream(3, "order"), Position(0, 0), None, []
    sampler = port.PositionedSampler(n, size, order, position)
    for batch in range(batches):
        if batch in stops:
            sampler, loader = port.PositionedSampler(n, size, sampler.order, sampler.position), None
        if loader is None or sampler.position.consumed == 0:
            loader = iter(port.init_loader(samples, sampler, workers=workers))
        window = next(loader).samples.tolist()
        seen.append((sampler.position.epoch, window))
        sampler.advance(len(window))
    return seen


def expected_visits(n, size, batches):
    """The same by the reference's pure functions, never stopped."""
    n = len(small_data(samples=n + n // 4).labels)
    position, state, seen = Position(0, 0), init_stream(3, "order"), []
    for _ in range(batches):
        order, after = reference.epoch_order(state, n)
        window = reference.window_indices(order, position.consumed, size)
        seen.append((position.epoch, window.tolist()))
        position, state = reference.advance(position, state, n, len(window), after)
    return seen


@given(st.integers(8, 40), st.integers(1, 12), st.integers(1, 12), st.sets(st.integers(0, 11)))
@example(20, 4, 12, {4, 5})  # the end of an epoch
@example(20, 4, 12, set(range(12)))
def test_any_number_of_stops_gives_the_references_batches(n, size, batches, stops):
    assert visits(n, size, batches, stops) == expected_visits(n, size, batches)


@settings(max_examples=4)
@given(st.integers(8, 40), st.integers(1, 6), st.sets(st.integers(0, 5), max_size=2))
def test_two_workers_give_the_batches_of_none(n, size, stops):
    assert visits(n, size, 6, stops, workers=2) == expected_visits(n, size, 6)


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**32 - 1), st.lists(st.integers(0, 18), min_size=1), st.booleans())
def test_a_sample_with_its_noise_is_the_references(seed, epoch, indices, noisy):
    data, noise = small_data(samples=24), 0.3 if noisy else 0.0
    batch = port.Samples(data, seed=seed, noise=noise).__getitems__([(epoch, i) for i in indices])
    x = data.inputs[indices]
    if noisy:
        x = x + (2 * draw_noise(seed, epoch, indices, x.shape[1]) - 1) * np.float32(noise)
    assert same_bytes(batch.inputs.numpy(), x)
    assert batch.labels.tolist() == data.labels[indices].tolist()
    assert batch.samples.tolist() == indices


def test_the_workers_make_the_noise_that_the_process_itself_makes():
    data, batches = small_data(samples=24), {}
    for workers in (0, 2):
        sampler = port.PositionedSampler(len(data.labels), 4, init_stream(1, "order"), Position(3, 4))
        loader = port.init_loader(port.Samples(data, seed=5, noise=0.3), sampler, workers=workers)
        batches[workers] = [batch.inputs.numpy().tobytes() for batch in loader]
    assert batches[0] == batches[2]
    assert len(batches[0]) == len(loader)


def test_iterating_moves_neither_position_nor_stream_nor_a_global_generator():
    sampler = port.PositionedSampler(19, 4, init_stream(1, "order"), Position(2, 8))
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - that it is left alone
    for workers in (0, 2):
        list(port.init_loader(port.Samples(small_data(samples=23)), sampler, workers=workers))
    assert sampler.position == Position(2, 8)
    assert same_bits(sampler.order.key, init_stream(1, "order").key)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002


@given(st.integers(1, 40), st.data())
def test_consuming_is_the_references_and_no_more_than_the_epoch_has(n, data):
    start, state = Position(4, data.draw(st.integers(0, n - 1))), init_stream(9, "order")
    count = data.draw(st.integers(1, n - start.consumed))
    sampler = port.PositionedSampler(n, 3, state, start)
    sampler.advance(count)
    position, order = reference.advance(start, state, n, count, reference.epoch_order(state, n)[1])
    assert sampler.position == position
    assert same_bits(sampler.order.key, order.key)
    assert sampler.order.pos == order.pos
    for wrong in (0, -1, n - sampler.position.consumed + 1, 1.5):
        with pytest.raises(ValueError, match="count"):
            sampler.advance(wrong)


@pytest.mark.parametrize(
    ("sizes", "position", "message"),
    [
        ((0, 4), Position(0, 0), "samples: expected"),
        ((19, 0), Position(0, 0), "batch_size: expected"),
        ((19, "3"), Position(0, 0), "batch_size: expected"),
        ((19, 4), Position(0, 19), r"position\.consumed: expected"),
        ((19, 4), Position(-1, 0), r"position\.epoch: expected"),
    ],
)
def test_a_sampler_outside_the_epoch_is_refused(sizes, position, message):
    with pytest.raises(ValueError, match=message):
        port.PositionedSampler(*sizes, init_stream(1, "order"), position)


# Mutants: what people write, and what it gives.


def test_a_permutation_from_another_engine_is_told_apart(monkeypatch):
    def other(generator, n):
        return torch.from_numpy(generator_from(port_rng.stream_state(generator)).permutation(n))

    monkeypatch.setattr(port, "draw_permutation", other)
    assert visits(30, 4, 6, set()) != expected_visits(30, 4, 6)


def test_a_generator_restored_before_an_iterator_that_draws_from_it_gives_another_order():
    """A stock loader draws its workers' seed when an iterator is made, so its order begins one draw later."""
    state, data = init_stream(3, "order"), torch.utils.data.TensorDataset(torch.arange(19))
    restored = port_rng.generator_from(state)
    loader = torch.utils.data.DataLoader(data, batch_size=19, shuffle=True, generator=restored)
    found = next(iter(loader))[0].tolist()
    assert found != port_rng.draw_permutation(port_rng.generator_from(state), 19).tolist()
    after = generator_from(state)
    after.bit_generator.random_raw(2)  # the seed, two words
    assert found == port_rng.draw_permutation(port_rng.generator_from(stream_state(after)), 19).tolist()


def test_a_loader_that_draws_its_seed_from_the_orders_generator_moves_it():
    generator = port_rng.generator_from(init_stream(3, "order"))
    before = port_rng.stream_state(generator)
    iter(torch.utils.data.DataLoader([0, 1], generator=generator))
    assert port_rng.stream_state(generator).pos != before.pos


def test_a_position_of_what_was_fetched_would_skip_samples():
    """With workers the sampler runs ahead of the loop: what it has issued is not what was consumed."""
    issued = []

    class Counting(port.PositionedSampler):
        def __iter__(self):
            for batch in super().__iter__():
                issued.append(len(batch))
                yield batch

    sampler = Counting(19, 2, init_stream(3, "order"), Position(0, 0))
    loader = iter(port.init_loader(port.Samples(small_data(samples=23)), sampler, workers=2))
    next(loader)
    sampler.advance(2)
    assert sum(issued) > sampler.position.consumed == 2
