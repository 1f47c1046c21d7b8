"""The loop: any split of the steps is the same run, the run handed in is left alone, every sample once an epoch."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref import model as network
from numpy_ref import train
from numpy_ref.arithmetic.operations import arithmetic_named
from numpy_ref.config import RunConfig
from numpy_ref.data import init_dataset, load_data
from numpy_ref.proof.equivalence import compare, digest, same_bits
from numpy_ref.rng import draw_noise, generator_from, init_stream, stream_state
from numpy_ref.tree import flatten
from parity_tests.oracles import same_bytes
from parity_tests.strategies import run_configs, small_data

CONFIG = RunConfig(hidden=(5,), dropout=0.3, batch_size=4, accumulation=2, evaluate_every=3, seed=7, noise=0.125)
NORMALISED = replace(CONFIG, batch_norm=True, batch_size=5)


def advanced(config, data, steps):
    """The run after `steps` updates, and their records."""
    records = []
    run = train.train_n_steps(train.init_run(config, data), data, steps, on_step=records.append)
    return run, records


def in_mode(run, mode):
    return train.restore(run.config, run.state._replace(mode=mode), run_id=run.run_id, fingerprint=run.fingerprint)


def arrays_of(tree):
    return {path: leaf for path, leaf in flatten(tree).items() if isinstance(leaf, np.ndarray)}


def shared(a, b):
    """Paths of two trees whose arrays share memory; an array of no elements shares none."""
    return [(p, q) for p, x in arrays_of(a).items() for q, y in arrays_of(b).items() if np.shares_memory(x, y)]


# Splits


@given(run_configs(), st.lists(st.integers(0, 5), min_size=1, max_size=5))
def test_n_steps_equal_any_split_of_them(pair, parts):
    config, data = pair
    whole, records = advanced(config, data, sum(parts))
    run, again = train.init_run(config, data), []
    for n in parts:
        run = train.train_n_steps(run, data, n, on_step=again.append)
    verdict = compare(whole.state, run.state)
    assert verdict.holds, verdict
    assert digest(whole.state) == digest(run.state)
    assert digest({str(r.step): r for r in records}) == digest({str(r.step): r for r in again})
    assert [record.step for record in records] == list(range(1, sum(parts) + 1))
    assert run.state.step == sum(parts)


def order_drawn_once_a_call(run, data, n):
    drawn = train.data_module.epoch_order(run.state.rng.order, len(data.labels))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.data_module, "epoch_order", lambda *given: drawn)
        return train.train_n_steps(run, data, n)


def dropout_started_over_at_each_call(run, data, n):
    rng = run.state.rng._replace(dropout=init_stream(run.config.seed, "dropout"))
    return train.train_n_steps(run._replace(state=run.state._replace(rng=rng)), data, n)


def evaluation_counted_from_the_call(run, data, n):
    return evaluation_moved(run, data, n, by=-run.step)


def evaluation_moved(run, data, n, *, by):
    """A run whose evaluations count `by` steps more than are completed, all else as it should be."""
    moved = run._replace(state=run.state._replace(step=run.step + by))
    state = train.train_n_steps(moved, data, n).state
    best = state.best
    if best.loss < run.state.best.loss:
        best = best._replace(step=best.step - by)
    return run._replace(state=state._replace(step=run.step + n, best=best))


@pytest.mark.parametrize(
    "train_n_steps",
    [order_drawn_once_a_call, dropout_started_over_at_each_call, evaluation_counted_from_the_call],
)
def test_state_kept_outside_the_run_breaks_a_split(train_n_steps):
    data = small_data()
    run = train.init_run(replace(CONFIG, evaluate_every=5), data)
    whole = train_n_steps(run, data, 8)
    parts = train_n_steps(train_n_steps(run, data, 4), data, 4)  # split inside the second epoch
    assert digest(whole.state) != digest(parts.state)


# The run handed in


@given(run_configs(), st.integers(0, 3), st.integers(0, 4))
def test_training_never_changes_its_argument_and_shares_no_memory_with_it(pair, before, steps):
    config, data = pair
    run, _ = advanced(config, data, before)
    for array in arrays_of(run.state).values():
        array.flags.writeable = False
    first, reference = digest(run.state), train.snapshot(run)
    assert shared(reference, run.state) == []
    after = train.train_n_steps(run, data, steps)
    assert digest(run.state) == first
    assert compare(reference, run.state).holds
    assert shared(run.state, after.state) == []
    assert shared(after.state, data._asdict()) == []
    assert (after.config, after.run_id, after.fingerprint) == (run.config, run.run_id, run.fingerprint)


@given(run_configs(), st.integers(0, 6))
def test_no_two_leaves_of_a_state_share_memory(pair, steps):
    config, data = pair
    run, _ = advanced(config, data, steps)
    assert [(p, q) for p, q in shared(run.state, run.state) if p != q] == []


@given(run_configs(), st.integers(1, 6))
def test_every_leaf_keeps_its_type_shape_and_place(pair, steps):
    config, data = pair
    run, _ = advanced(config, data, steps)
    start, end = flatten(train.init_run(config, data).state), flatten(run.state)
    assert list(start) == list(end)
    for path, leaf in start.items():
        assert type(end[path]) is type(leaf), f"{path}: expected {type(leaf)}, found {type(end[path])}"
        if isinstance(leaf, np.ndarray):
            assert (end[path].dtype, end[path].shape) == (leaf.dtype, leaf.shape), path
            assert end[path].dtype.kind != "f" or np.isfinite(end[path]).all(), path


@pytest.mark.parametrize("steps", [0, 1])
def test_a_loop_that_copies_nothing_shares_memory(monkeypatch, steps):
    data = small_data()
    run, _ = advanced(CONFIG, data, 1)
    monkeypatch.setattr(train, "copy_tree", lambda tree: tree)
    assert shared(run.state, train.train_n_steps(run, data, steps).state) != []


def test_restore_and_snapshot_are_inverse_and_copy():
    data = small_data()
    run, _ = advanced(NORMALISED, data, 4)
    state = train.snapshot(run)
    again = train.restore(run.config, state, run_id=run.run_id, fingerprint=run.fingerprint)
    assert compare(run.state, again.state).holds
    assert (again.config, again.run_id, again.fingerprint) == (run.config, run.run_id, run.fingerprint)
    assert shared(state, again.state) == shared(state, run.state) == []


def test_runs_have_ids_of_their_own_and_equal_states():
    data = small_data()
    runs = [train.init_run(CONFIG, data) for _ in range(2)]
    assert runs[0].run_id != runs[1].run_id
    assert all(len(run.run_id) == 32 and set(run.run_id) <= set("0123456789abcdef") for run in runs)
    assert digest(runs[0].state) == digest(runs[1].state)
    assert runs[0].fingerprint == data.fingerprint


# Samples


def windows_of(samples, config):
    """The documented window sizes of one epoch."""
    size = config.batch_size * config.accumulation
    return [min(size, samples - start) for start in range(0, samples, size)]


@given(run_configs(), st.integers(1, 3))
def test_every_epoch_sees_every_sample_once_in_windows_of_the_documented_sizes(pair, epochs):
    config, data = pair
    n = len(data.labels)
    sizes = windows_of(n, config)
    run, records = advanced(config, data, min(epochs * len(sizes), 40))
    assert [len(record.samples) for record in records] == (sizes * epochs)[: len(records)]
    for start in range(0, len(records) - len(sizes) + 1, len(sizes)):
        epoch = np.concatenate([record.samples for record in records[start : start + len(sizes)]])
        assert np.sort(epoch).tolist() == list(range(n))
    whole, rest = divmod(len(records), len(sizes))
    assert run.state.data == (whole, sum(sizes[:rest]))


def test_epochs_have_different_orders():
    config = replace(CONFIG, batch_size=64, accumulation=1)
    _, records = advanced(config, small_data(), 3)
    assert len({tuple(record.samples.tolist()) for record in records}) == 3


@given(run_configs(dropout=0.0, batch_norm=False, noise=0.0))
def test_a_window_of_accumulated_batches_sees_the_samples_of_one_large_batch(pair):
    config, data = pair
    large = replace(config, batch_size=config.batch_size * config.accumulation, accumulation=1)
    ours, theirs = (advanced(c, data, 5)[1] for c in (config, large))
    assert [r.samples.tolist() for r in ours] == [r.samples.tolist() for r in theirs]
    assert [r.rate for r in ours] == [r.rate for r in theirs]


def exact_step(batch_size, accumulation):
    """One step of gradient descent whose every sum is exact: weights of zero make each p 1/2, inputs are whole."""
    rng = np.random.default_rng(0)
    data = init_dataset(rng.integers(-3, 4, (10, 3)), np.arange(10) % 2)  # 8 samples to train on
    config = RunConfig(
        hidden=(),
        dropout=0.0,
        batch_size=batch_size,
        accumulation=accumulation,
        optimizer="sgd",
        momentum=0.0,
        learning_rate=0.5,
        evaluate_every=100,
    )
    run = train.init_run(config, data)
    zeros = {name: np.zeros_like(w) for name, w in run.state.model.items()}
    run = train.restore(config, run.state._replace(model=zeros), run_id=run.run_id, fingerprint=run.fingerprint)
    records = []
    run = train.train_n_steps(run, data, 1, on_step=records.append)
    return run.state.model, records[0]


@pytest.mark.parametrize(("batch_size", "accumulation"), [(1, 8), (2, 4), (4, 2), (3, 3), (5, 2), (7, 2)])
def test_accumulated_gradients_are_those_of_the_whole_window(batch_size, accumulation):
    model, record = exact_step(batch_size, accumulation)
    whole, reference = exact_step(8, 1)
    assert record.samples.tolist() == reference.samples.tolist()
    assert digest(model) == digest(whole)
    assert any(w.any() for w in whole.values())


def loss_of_a_mean_over(count):
    cross_entropy = network.cross_entropy
    return lambda logits, labels, ops, **_: cross_entropy(logits, labels, ops, count=count(labels))


def gradients_where(taken):
    """Those of some micro-batches, by their number of samples, and zeros in place of the others'."""
    backward = network.backward
    return lambda *given: {name: g * taken(len(given[2])) for name, g in backward(*given).items()}


@pytest.mark.parametrize(
    ("function", "wrong"),
    [
        ("cross_entropy", loss_of_a_mean_over(len)),
        ("cross_entropy", loss_of_a_mean_over(lambda labels: 9)),
        ("backward", gradients_where(lambda samples: samples < 3)),
        ("backward", gradients_where(lambda samples: samples == 3)),
    ],
    ids=["of the micro-batch", "of a full window", "of the last micro-batch alone", "of full micro-batches alone"],
)
def test_a_fault_in_the_accumulation_is_seen(monkeypatch, function, wrong):
    whole, _ = exact_step(8, 1)
    monkeypatch.setattr(network, function, wrong)
    assert digest(exact_step(3, 3)[0]) != digest(whole)  # of 8 samples


@given(run_configs(dropout=0.0, batch_norm=False, accumulation=1))
def test_the_record_holds_the_loss_before_the_update_the_rate_and_the_samples(pair):
    config, data = pair
    run, _ = advanced(config, data, 3)
    records = []
    train.train_n_steps(run, data, 1, on_step=records.append)
    (record,) = records
    x = data.inputs[record.samples]
    if config.noise:
        u = draw_noise(config.seed, run.state.data.epoch, record.samples, x.shape[1])
        x = x + (2 * u - 1) * np.float32(config.noise)
    ops = arithmetic_named(config.arithmetic, precision=config.precision)
    logits, _, _ = network.forward(run.state.model, x, ops, training=True)
    loss, _ = network.cross_entropy(logits, data.labels[record.samples], ops, count=len(x))
    scale = run.state.scaler.scale if config.scales_loss else 1.0
    assert record[:5] == (4, float(loss), run.state.schedule.rate, record.samples, scale)


# Evaluation


@given(run_configs(), st.integers(0, 5))
def test_evaluation_draws_nothing_and_changes_nothing(pair, steps):
    config, data = pair
    run, _ = advanced(config, data, steps)
    for array in arrays_of(run.state).values():
        array.flags.writeable = False
    before = digest(run.state)
    found = train.evaluate(run, data)
    assert digest(run.state) == before
    assert found == train.evaluate(run, data) == train.evaluate(in_mode(run, "eval"), data)
    assert (type(found.loss), type(found.accuracy)) == (float, float)
    ops = arithmetic_named(config.arithmetic, precision=config.precision)
    logits, _, _ = network.forward(run.state.model, data.test_inputs, ops, training=False)
    right = sum(int(np.argmax(row) == label) for row, label in zip(logits, data.test_labels, strict=True))
    assert found.accuracy == right / len(data.test_labels)


@given(run_configs(), st.integers(0, 7), st.sampled_from([1, 2, 1000]))
def test_evaluating_more_or_less_often_changes_no_leaf_but_the_best(pair, steps, evaluate_every):
    config, data = pair
    other = replace(config, evaluate_every=evaluate_every)
    ours, theirs = (advanced(c, data, steps) for c in (config, other))
    assert digest(ours[0].state._replace(best=0)) == digest(theirs[0].state._replace(best=0))
    assert digest({str(r.step): r for r in ours[1]}) == digest({str(r.step): r for r in theirs[1]})


def evaluation_that_updates(patch):
    evaluate = train._evaluate

    def updating(model, data, ops):
        model["layer0.bias"] += 1
        return evaluate(model, data, ops)

    patch.setattr(train, "_evaluate", updating)


def evaluation_that_draws(patch):
    evaluate, generator_of, drawn = train._evaluate, train.generator_from, []

    def drawing(*given):
        drawn.append(1)
        return evaluate(*given)

    def moved(stream):
        generator = generator_of(stream)
        if drawn:
            generator.bit_generator.random_raw(drawn.pop())
        return generator

    patch.setattr(train, "_evaluate", drawing)
    patch.setattr(train, "generator_from", moved)


@pytest.mark.parametrize("fault", [evaluation_that_updates, evaluation_that_draws])
def test_an_evaluation_that_draws_or_updates_would_be_seen(monkeypatch, fault):
    data, found = small_data(), []
    for evaluate_every in (1, 1000):
        with monkeypatch.context() as patch:
            fault(patch)
            state = advanced(replace(CONFIG, evaluate_every=evaluate_every), data, 4)[0].state
        found.append(digest(state._replace(best=0)))
    assert found[0] != found[1]


def best_recomputed(config, data, steps):
    """The best over the evaluations, from runs of one step each."""
    run = train.init_run(config, data)
    best = train.Best(float("inf"), 0, train.snapshot(run).model)
    for step in range(1, steps + 1):
        run = train.train_n_steps(run, data, 1)
        if step % config.evaluate_every == 0:
            loss = train.evaluate(run, data).loss
            if loss < best.loss:
                best = train.Best(loss, step, train.snapshot(run).model)
    return best


@given(run_configs(), st.integers(0, 12))
def test_the_best_is_a_copy_of_the_first_minimum_over_the_evaluations(pair, steps):
    config, data = pair
    run, _ = advanced(config, data, steps)
    verdict = compare(best_recomputed(config, data, steps), run.state.best)
    assert verdict.holds, verdict
    assert shared(run.state.best, run.state.model) == []
    assert (run.state.best.step == 0) == (steps < config.evaluate_every)


def losses_compared(less):
    """A fault in which loss is less than which."""
    evaluate = train._evaluate

    class Loss(float):
        __hash__ = float.__hash__

        def __lt__(self, other):
            return less(float(self), float(other))

    def evaluation(*given):
        found = evaluate(*given)
        return found._replace(loss=Loss(found.loss))

    return train, "_evaluate", evaluation


def evaluation_in_training():
    forward = network.forward
    return network, "forward", lambda *given, **options: forward(*given, **options | {"training": True})


def first_model_kept():
    real, models = train.Best, []

    def best(loss, step, model):
        models.append(model)
        return real(loss, step, models[0])

    return train, "Best", best


BEST_FAULTS = {  # how often it is evaluated, and a function in place of another
    "the newest": (1, losses_compared(lambda loss, best: True)),
    "the largest": (1, losses_compared(lambda loss, best: loss > best or best == float("inf"))),
    "the first model": (2, first_model_kept()),
    "by statistics of the batch": (2, evaluation_in_training()),
}


def bests(config, data, train_n_steps=train.train_n_steps):
    """The best after each number of steps, from the start."""
    run = train.init_run(config, data)
    found = [train_n_steps(run, data, steps).state.best for steps in range(9)]
    return [digest(best._replace(loss=float(best.loss))) for best in found]


@pytest.mark.parametrize(("evaluate_every", "fault"), BEST_FAULTS.values(), ids=BEST_FAULTS)
def test_another_best_is_told_apart(monkeypatch, evaluate_every, fault):
    data = small_data(samples=25)  # 20 to train on
    config = replace(NORMALISED, learning_rate=0.5, evaluate_every=evaluate_every)
    expected = [digest(best_recomputed(config, data, steps)) for steps in range(9)]
    assert bests(config, data) == expected
    monkeypatch.setattr(*fault)
    assert bests(config, data) != expected


def test_an_evaluation_a_step_too_early_is_told_apart():
    data = small_data(samples=25)
    config = replace(NORMALISED, learning_rate=0.5, evaluate_every=2)
    assert bests(config, data, partial(evaluation_moved, by=1)) != bests(config, data)


def test_a_best_that_is_no_copy_would_be_seen(monkeypatch):
    data, copy = small_data(), train.copy_tree
    monkeypatch.setattr(train, "copy_tree", lambda tree: tree if isinstance(tree, dict) else copy(tree))
    run, _ = advanced(replace(CONFIG, evaluate_every=1), data, 1)
    assert shared(run.state.best, run.state.model) != []


# Mode


@given(run_configs(batch_norm=False), st.integers(0, 3), st.integers(1, 4))
def test_mode_eval_trains_without_dropout_and_noise(pair, before, steps):
    config, data = pair
    run, _ = advanced(config, data, before)
    quiet = replace(config, dropout=0.0, noise=0.0)
    silent = train.restore(quiet, run.state, run_id=run.run_id, fingerprint=run.fingerprint)
    expected = train.train_n_steps(silent, data, steps).state
    found = train.train_n_steps(in_mode(run, "eval"), data, steps).state
    assert found.mode == "eval"
    assert expected.mode == "train"
    assert digest(found._replace(mode="train")) == digest(expected)
    assert digest(found.rng.dropout) == digest(run.state.rng.dropout)


@given(run_configs(batch_norm=True, hidden=(4,)), st.integers(1, 3), st.integers(1, 4))
def test_mode_eval_trains_with_running_statistics_and_keeps_them(pair, before, steps):
    config, data = pair
    run, _ = advanced(config, data, before)
    records = []
    found = train.train_n_steps(in_mode(run, "eval"), data, steps, on_step=records.append).state
    assert found.mode == "eval"
    for name in network.BUFFERS:
        assert same_bits(found.model[f"norm0.{name}"], run.state.model[f"norm0.{name}"])
    assert digest(found.rng.dropout) == digest(run.state.rng.dropout)
    ops, first = arithmetic_named(config.arithmetic, precision=config.precision), records[0].samples
    if config.accumulation == 1:
        logits, _, _ = network.forward(run.state.model, data.inputs[first], ops, training=False)
        loss, _ = network.cross_entropy(logits, data.labels[first], ops, count=len(first))
        assert records[0].loss == float(loss)
    trained = train.train_n_steps(run, data, steps).state
    assert int(trained.model["norm0.num_batches_tracked"]) > int(found.model["norm0.num_batches_tracked"])


def step_with(given=None, settings=None, result=None):
    """A step that is given another state or other settings, or changes the state after it."""
    step = train._train_step

    def wrong(state, config, *rest):
        new, record = step(state._replace(**given or {}), replace(config, **settings or {}), *rest)
        return new._replace(mode="eval")._replace(**result(new) if result else {}), record

    return wrong


def masks_drawn(state):
    generator = generator_from(state.rng.dropout)
    generator.bit_generator.random_raw()
    return {"rng": state.rng._replace(dropout=stream_state(generator))}


MODE_FAULTS = {
    "train after a step": step_with(result=lambda state: {"mode": "train"}),
    "as in training": step_with({"mode": "train"}),
    "noise": step_with({"mode": "train"}, {"dropout": 0.0}),
    "units dropped": step_with({"mode": "train"}, {"noise": 0.0}),
    "masks drawn": step_with(result=masks_drawn),
}


@pytest.mark.parametrize("wrong", MODE_FAULTS.values(), ids=MODE_FAULTS)
def test_a_fault_in_the_mode_is_seen(monkeypatch, wrong):
    data = small_data()
    run = in_mode(advanced(CONFIG, data, 2)[0], "eval")
    expected = train.train_n_steps(run, data, 2).state
    monkeypatch.setattr(train, "_train_step", wrong)
    assert digest(train.train_n_steps(run, data, 2).state) != digest(expected)


# Refusals


@pytest.mark.parametrize("n", [-1, True, False, np.True_, 1.0, np.float64(2), "1", None, [1], np.array([1])])
def test_a_number_of_steps_that_is_no_whole_number_is_refused(n):
    data = small_data()
    run = train.init_run(CONFIG, data)
    with pytest.raises(ValueError, match=r"^train_n_steps: n: expected a whole number >= 0, found "):
        train.train_n_steps(run, data, n)


@pytest.mark.parametrize("n", [0, 2, np.int64(2), np.uint8(2)])
def test_a_whole_number_of_steps_is_taken(n):
    data = small_data()
    assert train.train_n_steps(train.init_run(CONFIG, data), data, n).state.step == n


def test_other_data_are_refused_with_both_fingerprints():
    data, other = small_data(0), small_data(1)
    run = train.init_run(CONFIG, data)
    for call in (lambda: train.train_n_steps(run, other, 1), lambda: train.evaluate(run, other)):
        with pytest.raises(ValueError, match=f"{data.fingerprint}, found {other.fingerprint}"):
            call()
    with pytest.raises(ValueError, match="fingerprint"):
        train.train_n_steps(run, other, 0)


@pytest.mark.parametrize("accumulation", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 6, 7, 18, 19, 20])
def test_batch_normalisation_is_refused_where_a_micro_batch_has_one_sample(batch_size, accumulation):
    data = small_data(samples=23)  # 19 to train on
    config = replace(CONFIG, batch_norm=True, batch_size=batch_size, accumulation=accumulation)
    _, records = advanced(replace(config, batch_norm=False), data, 19)
    refused = any(len(record.samples) % batch_size == 1 % batch_size for record in records)
    assert refused == (batch_size in (1, 2, 3, 6, 18))
    if refused:
        with pytest.raises(ValueError, match="batch_norm: expected at least 2 samples in every batch"):
            train.init_run(config, data)
    else:
        run, _ = advanced(config, data, 19)
        assert all(np.isfinite(leaf).all() for leaf in arrays_of(run.state.model).values())


def test_flushing_subnormals_to_zero_is_refused_under_reproducible_arithmetic_alone():
    torch = pytest.importorskip("torch", reason="torch is missing: nothing here can turn flush-to-zero on")
    data = small_data()
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers to zero")
    try:
        with pytest.raises(FloatingPointError, match="reproducible arithmetic needs subnormal numbers"):
            train.init_run(CONFIG, data)
        native = train.init_run(replace(CONFIG, arithmetic="native"), data)
    finally:
        torch.set_flush_denormal(False)
    assert native.state.step == 0
    assert train.init_run(CONFIG, data).state.step == 0


# Arithmetic


@given(run_configs(arithmetic="native"), st.integers(0, 6))
def test_both_arithmetics_start_from_the_same_weights_and_draw_the_same(pair, steps):
    native, data = pair
    exact = replace(native, arithmetic="reproducible")
    assert digest(train.init_run(native, data).state) == digest(train.init_run(exact, data).state)
    ours, theirs = (advanced(config, data, steps) for config in (native, exact))
    assert [r.samples.tolist() for r in ours[1]] == [r.samples.tolist() for r in theirs[1]]
    assert [r.rate for r in ours[1]] == [r.rate for r in theirs[1]]
    for name in ("rng", "data", "schedule"):
        assert digest(getattr(ours[0].state, name)) == digest(getattr(theirs[0].state, name)), name


@given(run_configs())
def test_a_run_starts_as_documented(pair):
    config, data = pair
    state = train.init_run(config, data).state
    assert (state.step, state.mode, state.data, state.schedule.tick) == (0, "train", (0, 0), 0)
    assert (state.best.loss, state.best.step, state.optimizer.t) == (float("inf"), 0, 0)
    assert digest(state.best.model) == digest(state.model)
    assert digest(state.rng) == digest({name: init_stream(config.seed, name) for name in ("order", "dropout")})
    assert digest(state) == digest(train.init_state(config, data.inputs.shape[1], data.classes))
    weights = network.init_model(
        generator_from(init_stream(config.seed, "weights")),
        data.inputs.shape[1],
        config.hidden,
        data.classes,
        batch_norm=config.batch_norm,
    )
    assert digest(state.model) == digest(weights)


def test_another_seed_has_other_weights_order_and_masks():
    data = small_data()
    states = [train.init_run(replace(CONFIG, seed=seed), data).state for seed in (7, 8)]
    assert not same_bytes(states[0].model["layer0.weight"], states[1].model["layer0.weight"])
    assert not (states[0].rng.order.key == states[1].rng.order.key).all()
    assert not (states[0].rng.dropout.key == states[1].rng.dropout.key).all()


# The whole


def test_300_steps_on_the_digits_reach_90_percent():
    digits = load_data("digits")
    run, records = advanced(RunConfig(arithmetic="native"), digits, 300)
    assert train.evaluate(run, digits).accuracy >= 0.9
    assert records[-1].loss < records[0].loss
    assert run.state.best.loss <= train.evaluate(run, digits).loss
