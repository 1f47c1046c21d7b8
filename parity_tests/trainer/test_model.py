"""The network against differences of its loss, against its formulas rounded once an operation, and against torch."""

from fractions import Fraction
from functools import partial
from itertools import pairwise
from itertools import product as combinations
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref import model as network
from numpy_ref.arithmetic.operations import NATIVE, REPRODUCIBLE, arithmetic_named
from numpy_ref.proof.boundary import row_named
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.rng import draw_uniform, generator_from, init_stream, stream_state
from parity_tests.oracles import nearest_float32, same_bytes
from parity_tests.singles import Single, floats, product, singles, total

DROPOUT = 0.25


def drawn_model(rng, inputs, hidden, classes, batch_norm, dtype=np.float32):
    """A model whose every array, batch normalisation's included, is away from its first value."""
    model = network.init_model(
        generator_from(init_stream(0, "weights")), inputs, hidden, classes, batch_norm=batch_norm
    )
    for name, array in model.items():
        if name.endswith("tracked"):
            continue
        scales = name.endswith("_var") or (name.startswith("norm") and name.endswith("weight"))
        model[name] = rng.uniform(0.5 if scales else -1, 2 if scales else 1, array.shape).astype(dtype)
    return model


def drawn_batch(rng, batch, inputs, hidden, classes, dropout, dtype=np.float32):
    """Inputs, labels and masks."""
    x = rng.standard_normal((batch, inputs)).astype(dtype)
    masks = [rng.random((batch, h)) >= DROPOUT for h in hidden] if dropout else []
    return x, rng.integers(0, classes, batch), masks


def loss_and_gradients(model, x, labels, masks, ops, *, training, impl=network):
    logits, kept, buffers = impl.forward(
        model, x, ops, training=training, masks=masks, dropout=DROPOUT if len(masks) else 0.0
    )
    loss, grad = impl.cross_entropy(logits, labels, ops, count=len(labels))
    return loss, impl.backward(model, kept, grad, ops), logits, kept[0], buffers


# Gradients


STEP = 2.0**-17  # of the differences; the boundary's row says what follows from it
CASES = list(combinations(((), (5,), (5, 4)), (False, True), (False, True), (False, True)))


def gradients_and_differences(hidden, batch_norm, training, dropout, impl=network):
    """Float64 gradients by backward, and central differences of the loss; no unit may change sides of its kink."""
    rng = np.random.default_rng([len(hidden), batch_norm, training, dropout])
    model = drawn_model(rng, 3, hidden, 4, batch_norm, np.float64)
    x, labels, masks = drawn_batch(rng, 8, 3, hidden, 4, dropout, np.float64)
    _, grads, _, cache, _ = loss_and_gradients(model, x, labels, masks, NATIVE, training=training, impl=impl)
    sides = [layer.z > 0 for layer in cache.hidden]
    differences = {}
    for name, w in network.parameters(model).items():
        differences[name] = np.empty_like(w)
        for place in np.ndindex(w.shape):
            ends = []
            for side in (1, -1):
                moved = w.copy()
                moved[place] += side * STEP
                loss, _, _, cache, _ = loss_and_gradients(
                    model | {name: moved}, x, labels, masks, NATIVE, training=training
                )
                ends.append((float(moved[place]), float(loss)))
                for layer, side_before in zip(cache.hidden, sides, strict=True):
                    assert ((layer.z > 0) == side_before).all(), "a unit crosses its kink: choose other data"
            (right, loss_right), (left, loss_left) = ends
            differences[name][place] = (loss_right - loss_left) / (right - left)
    return differences, grads


@pytest.mark.parametrize(("hidden", "batch_norm", "training", "dropout"), CASES)
def test_gradients_equal_central_differences(hidden, batch_norm, training, dropout):
    differences, grads = gradients_and_differences(hidden, batch_norm, training, dropout)
    assert {name: g.dtype for name, g in grads.items()} == dict.fromkeys(differences, np.dtype(np.float64))
    verdict = compare(differences, grads, tolerance=row_named("gradients").tolerance)
    assert verdict.holds, verdict


def backward_from(layer=None, **cache):
    """A backward pass that goes wrong about what was kept: functions of a layer's cache, or values of the whole."""

    def backward(model, kept, grad, ops):
        hidden = [one._replace(**layer(one)) if layer else one for one in kept[0].hidden]
        return network.backward(model, [kept[0]._replace(hidden=hidden, **cache)], grad, ops)

    return {"backward": backward}


def backward_without(number):
    """A backward pass in which one of the five sums of a normalised layer is zero: the third is the mean."""

    def backward(model, kept, grad, ops):
        numbers = iter(range(-1, 100))  # the last layer has one

        def summed(a, **axes):
            return ops.sum(a, **axes) * (next(numbers) % 5 != number - 1)

        return network.backward(model, kept, grad, ops._replace(sum=summed))

    return {"backward": backward}


def backward_without_gamma(model, kept, grad, ops):
    ones = {n: np.ones_like(w) for n, w in model.items() if n.startswith("norm") and n.endswith(".weight")}
    return network.backward(model | ones, kept, grad, ops)


def loss_with(other):
    """A loss with another gradient: other(gradient, labels, count)."""

    def cross_entropy(logits, labels, ops, *, count):
        loss, grad = network.cross_entropy(logits, labels, ops, count=count)
        return loss, other(grad, labels, count)

    return {"cross_entropy": cross_entropy}


PASSES = {name: getattr(network, name) for name in ("forward", "cross_entropy", "backward")}
OPEN = backward_from(lambda layer: {"z": np.ones_like(layer.z)})
LEFT_OUT = {  # functions in place of others, and a case
    "scale of dropout": (backward_from(scale=np.float64(1)), ((5, 4), False, True, True)),
    "mask": (backward_from(masks=[np.ones((8, 5), bool)]), ((5,), False, True, True)),
    "gate": (OPEN, ((5, 4), False, True, False)),
    "gate after normalisation": (OPEN, ((5,), True, False, False)),
    "mean": (backward_without(3), ((5, 4), True, True, False)),
    "slope": (backward_without(4), ((5,), True, True, False)),
    "both": (backward_from(training=False), ((5,), True, True, False)),
    "both, where none belongs": (backward_from(training=True), ((5,), True, False, False)),
    "standard deviation": (
        backward_from(lambda layer: {"inverse_std": np.ones_like(layer.inverse_std)}),
        ((5, 4), True, True, True),
    ),
    "gamma": ({"backward": backward_without_gamma}, ((5,), True, True, False)),
    "count": (loss_with(lambda grad, labels, count: grad * count), ((), False, True, False)),
    "label": (loss_with(lambda grad, labels, count: grad + np.eye(4)[labels] / count), ((), False, True, False)),
}


@pytest.mark.parametrize(("functions", "case"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_gradient_with_a_term_left_out_exceeds_the_tolerance(functions, case):
    differences, grads = gradients_and_differences(*case, impl=SimpleNamespace(**PASSES | functions))
    assert not compare(differences, grads, tolerance=row_named("gradients").tolerance).holds


# Exact cases


def test_a_case_worked_by_hand_has_its_exact_loss_and_gradients():
    # Two samples, two inputs, two hidden units, two classes whose last weights agree: every p is 1/2.
    model = {
        "layer0.weight": np.array([[1, 2], [-1, 1]], np.float32),
        "layer0.bias": np.array([0, -1], np.float32),
        "layer1.weight": np.array([[2, -4], [2, -4]], np.float32),
        "layer1.bias": np.array([3, 3], np.float32),
    }
    x, labels = np.array([[1, 1], [-2, 2]], np.float32), np.array([0, 1])
    loss, grads, logits, cache, _ = loss_and_gradients(model, x, labels, [], REPRODUCIBLE, training=True)
    # z = [[3, -1], [2, 3]], so the layer gives [[3, 0], [2, 3]] and the logits are 9 twice and -5 twice.
    assert same_bytes(cache.last, np.array([[3, 0], [2, 3]], np.float32))
    assert same_bytes(logits, np.array([[9, 9], [-5, -5]], np.float32))
    with mpmath.workprec(200):
        log_2 = Fraction(int(mpmath.floor(mpmath.log(2) * 2**150)), 2**150)
    assert same_bytes(loss, np.asarray(nearest_float32(log_2)))
    # By the logits: [[-1/4, 1/4], [1/4, -1/4]]; the two classes have one row of weights, so all below it cancels.
    expected = {
        "layer0.weight": np.zeros((2, 2), np.float32),
        "layer0.bias": np.zeros(2, np.float32),
        "layer1.weight": np.array([[-0.25, 0.75], [0.25, -0.75]], np.float32),
        "layer1.bias": np.zeros(2, np.float32),
    }
    assert digest(grads) == digest(expected)


def test_a_second_case_by_hand_sends_a_gradient_through_scale_mask_and_gate():
    # One sample and logits of 0 twice by a bias, so p = 1/2; a mask that keeps the first and third of three units.
    model = {
        "layer0.weight": np.array([[1], [1], [-1]], np.float32),
        "layer0.bias": np.array([0, 0, 0], np.float32),
        "layer1.weight": np.array([[1, 5, 3], [-1, 7, 2]], np.float32),
        "layer1.bias": np.array([-4, 4], np.float32),
    }
    x, labels, masks = np.array([[2]], np.float32), np.array([1]), [np.array([[True, False, True]])]
    logits, kept, _ = network.forward(model, x, REPRODUCIBLE, training=True, masks=masks, dropout=0.5)
    assert same_bytes(kept[0].last, np.array([[4, 0, 0]], np.float32))  # 2 doubled, dropped, gated
    assert same_bytes(logits, np.zeros((1, 2), np.float32))
    _, grad = network.cross_entropy(logits, labels, REPRODUCIBLE, count=1)
    grads = network.backward(model, kept, grad, REPRODUCIBLE)
    # By the logits (1/2, -1/2); by the hidden units (1, -1, 1/2), then doubled, dropped, gated: (2, 0, 0).
    expected = {
        "layer0.weight": np.array([[4], [0], [0]], np.float32),
        "layer0.bias": np.array([2, 0, 0], np.float32),
        "layer1.weight": np.array([[2, 0, 0], [-2, 0, 0]], np.float32),
        "layer1.bias": np.array([0.5, -0.5], np.float32),
    }
    for name, array in expected.items():
        assert (grads[name] == array).all(), name


def witness(model, x, labels, masks, training):
    """Loss, gradients, logits and buffers by the documented formulas, every operation rounded once in plain Python."""
    p = {name: singles(array) for name, array in model.items() if not name.endswith("tracked")}
    relu = np.frompyfunc(lambda s: s if s.value > 0 else Single(0.0), 1, 1)
    apply = np.frompyfunc(lambda s, name: s.apply(name), 2, 1)
    column = np.frompyfunc(lambda *terms: total(terms), len(labels), 1)  # sum over the batch
    batch, zero, one = Single(len(labels)), Single(0.0), Single(1.0)
    scale = Single(1 / (1 - DROPOUT))
    depth = sum(name.startswith("layer") and name.endswith("weight") for name in model)
    x, trail, buffers = singles(x), [], {}
    for i in range(depth - 1):
        z = before = product(x, p[f"layer{i}.weight"].T) + p[f"layer{i}.bias"]
        x_hat = std_inverse = None
        if f"norm{i}.weight" in model:
            mean, var = p[f"norm{i}.running_mean"], p[f"norm{i}.running_var"]
            if training:
                take, keep = Single(0.1), Single(0.9)
                mean = column(*z) / batch
                deviations = z - mean
                squares = column(*(deviations * deviations))
                var = squares / batch
                buffers[f"norm{i}.running_mean"] = keep * p[f"norm{i}.running_mean"] + take * mean
                unbiased = squares / Single(len(labels) - 1)
                buffers[f"norm{i}.running_var"] = keep * p[f"norm{i}.running_var"] + take * unbiased
            std_inverse = one / apply(var + Single(1e-5), "sqrt")
            x_hat = (z - mean) * std_inverse
            before = x_hat * p[f"norm{i}.weight"] + p[f"norm{i}.bias"]
        trail.append((x, before, x_hat, std_inverse))
        x = relu(before)
        if len(masks):
            x = np.where(masks[i], x * scale, zero)
    logits = product(x, p[f"layer{depth - 1}.weight"].T) + p[f"layer{depth - 1}.bias"]
    losses, g = [], np.empty_like(logits)
    for k, label in enumerate(labels):
        top = max(s.value for s in logits[k])
        shifted = [s - Single(top) for s in logits[k]]
        e = [s.apply("exp") for s in shifted]
        whole = total(e)
        losses.append(whole.apply("log") - shifted[label])
        g[k] = [(s / whole - one if c == label else s / whole) / batch for c, s in enumerate(e)]
    grads = {f"layer{depth - 1}.weight": product(g.T, x), f"layer{depth - 1}.bias": column(*g)}
    for i in reversed(range(depth - 1)):
        x, before, x_hat, std_inverse = trail[i]
        g = product(g, p[f"layer{i + 1}.weight"])
        if len(masks):
            g = np.where(masks[i], g * scale, zero)
        g = np.where(np.vectorize(lambda s: s.value > 0)(before), g, zero)
        if x_hat is not None:
            grads[f"norm{i}.weight"], grads[f"norm{i}.bias"] = column(*(g * x_hat)), column(*g)
            g = g * p[f"norm{i}.weight"]
            if training:
                mean, slope = column(*g) / batch, column(*(g * x_hat)) / batch
                g = (g - mean) - x_hat * slope
            g = g * std_inverse
        grads |= {f"layer{i}.weight": product(g.T, x), f"layer{i}.bias": column(*g)}
    loss = total(losses) / batch
    arrays = {name: floats(grads[name]) for name in network.parameters(model)}
    return np.float32(loss.value), arrays, floats(logits), {name: floats(b) for name, b in buffers.items()}


@pytest.mark.parametrize(("hidden", "batch_norm", "training", "dropout"), CASES)
def test_loss_gradients_and_buffers_are_the_formulas_rounded_once_an_operation(hidden, batch_norm, training, dropout):
    rng = np.random.default_rng([7, len(hidden), batch_norm, training, dropout])
    model = drawn_model(rng, 3, hidden, 3, batch_norm)
    x, labels, masks = drawn_batch(rng, 7, 3, hidden, 3, dropout and training)
    expected = witness(model, x, labels, masks, training)
    loss, grads, logits, _, buffers = loss_and_gradients(model, x, labels, masks, REPRODUCIBLE, training=training)
    counted = {name: buffers.pop(name) for name in list(buffers) if name.endswith("tracked")}
    assert same_bytes(logits, expected[2])
    assert same_bytes(loss, np.asarray(expected[0]))
    assert list(grads) == list(expected[1])
    assert digest(grads) == digest(expected[1])
    assert digest(buffers) == digest(expected[3])
    assert all(count == 1 for count in counted.values())
    assert len(counted) == (len(hidden) if batch_norm and training else 0)


def plain_normalisation(unbiased=lambda squares, count: squares / (count - 1), centred=None):
    """Batch normalisation in training, of float32 numbers, with a part in another way."""
    centred = centred or (lambda z, mean, inverse_std: (z - mean) * inverse_std)

    def normalise(model, name, z, ops, *, training):
        count, keep, take = np.float32(len(z)), np.float32(0.9), np.float32(0.1)
        mean = ops.sum(z, axis=0) / count
        squares = ops.sum((z - mean) * (z - mean), axis=0)
        moved = {"running_mean": mean, "running_var": unbiased(squares, count)}
        buffers = {f"{name}.{key}": keep * model[f"{name}.{key}"] + take * x for key, x in moved.items()}
        buffers[f"{name}.num_batches_tracked"] = np.asarray(model[f"{name}.num_batches_tracked"] + 1)
        inverse_std = 1 / ops.sqrt(squares / count + np.float32(1e-5))
        x_hat = centred(z, mean, inverse_std)
        return x_hat * model[f"{name}.weight"] + model[f"{name}.bias"], x_hat, inverse_std, buffers

    return normalise


def loss_by_logarithms_of_quotients(logits, labels, ops, *, count):
    e = ops.exp(logits - logits.max(axis=1, keepdims=True))
    losses = -ops.log(e / ops.sum(e, axis=1, keepdims=True))[np.arange(len(labels)), labels]
    return ops.sum(losses) / np.float32(count), CROSS_ENTROPY(logits, labels, ops, count=count)[1]


def loss_times_the_inverse_of_the_count(logits, labels, ops, *, count):
    _, grad = CROSS_ENTROPY(logits, labels, ops, count=1)
    return CROSS_ENTROPY(logits, labels, ops, count=count)[0], grad * (1 / np.float32(count))


CROSS_ENTROPY = network.cross_entropy
OTHER_ORDERS = {
    "eps": ("NORM_EPS", 0.0),
    "biased variance": ("_normalise", plain_normalisation(unbiased=lambda squares, count: squares / count)),
    "centre": (
        "_normalise",
        plain_normalisation(centred=lambda z, mean, inverse_std: z * inverse_std - mean * inverse_std),
    ),
    "loss": ("cross_entropy", loss_by_logarithms_of_quotients),
    "count": ("cross_entropy", loss_times_the_inverse_of_the_count),
}


def digest_of_passes():
    rng = np.random.default_rng(5)
    passes = {}
    for i in range(20):
        model = drawn_model(rng, 3, (5, 4), 3, True)
        x, labels, masks = drawn_batch(rng, 7, 3, (5, 4), 3, True)
        loss, grads, _, _, buffers = loss_and_gradients(model, x, labels, masks, REPRODUCIBLE, training=True)
        passes[str(i)] = {"loss": loss, "grads": grads, "buffers": buffers}
    return digest(passes)


@pytest.mark.parametrize(("name", "other"), OTHER_ORDERS.values(), ids=OTHER_ORDERS)
def test_another_order_of_operations_has_other_bits(monkeypatch, name, other):
    expected = digest_of_passes()
    with monkeypatch.context() as patch:
        patch.setattr(network, "_normalise", plain_normalisation())
        assert digest_of_passes() == expected
    monkeypatch.setattr(network, name, other)
    assert digest_of_passes() != expected


# Zeros and NaN


@pytest.mark.parametrize("ops", [REPRODUCIBLE, NATIVE], ids=lambda ops: ops.name)
def test_relu_gives_plus_zero_for_both_zeros_and_keeps_nan(ops):
    model = network.init_model(generator_from(init_stream(0, "weights")), 1, (4,), 2, batch_norm=True)
    model["layer0.weight"] = np.array([[0], [0], [-1], [1]], np.float32)
    model["layer0.bias"] = np.array([0, 0, 0, 0], np.float32)
    model["norm0.bias"] = np.array([0, -0.0, 0, 0], np.float32)
    model["norm0.weight"] = np.array([1, -1, 1, 1], np.float32)
    x = np.array([[1], [np.nan]], np.float32)
    (cache,) = network.forward(model, x, ops, training=False)[1]
    assert np.signbit(cache.hidden[0].z[0]).tolist() == [False, True, True, False]  # both zeros are there
    assert (cache.hidden[0].z[0, :2] == 0).all()
    positive = cache.hidden[0].z[0, 3]
    assert same_bytes(cache.last[0], np.array([0, 0, 0, positive], np.float32))
    assert np.isnan(cache.last[1]).all()


def test_relu_by_a_maximum_would_be_seen(monkeypatch):
    model = network.init_model(generator_from(init_stream(0, "weights")), 1, (1,), 2, batch_norm=True)
    model |= {"layer0.weight": np.zeros((1, 1), np.float32), "layer0.bias": np.zeros(1, np.float32)}
    model |= {"norm0.weight": np.array([-1], np.float32), "norm0.bias": np.array([-0.0], np.float32)}
    x = np.ones((1, 1), np.float32)
    last = [network.forward(model, x, REPRODUCIBLE, training=False)[1][0].last]
    numpy = vars(np) | {"where": lambda condition, zero, z: np.where(condition & (z != 0), zero, z)}
    monkeypatch.setattr(network, "np", SimpleNamespace(**numpy))
    last.append(network.forward(model, x, REPRODUCIBLE, training=False)[1][0].last)
    assert [np.signbit(array).item() for array in last] == [False, True]


@pytest.mark.parametrize("ops", [REPRODUCIBLE, NATIVE], ids=lambda ops: ops.name)
@pytest.mark.parametrize("others", [(), (-200.0,), (-1.0, -0.0)])
def test_the_loss_does_not_depend_on_the_sign_of_a_zero_that_is_the_maximum(ops, others):
    found = set()
    for zeros in combinations((0.0, -0.0), repeat=2):
        for row in ([*zeros, *others], [*others, *zeros]):
            for label in (row.index(0.0), len(row) - 1 - row[::-1].index(0.0)):
                loss, grad = network.cross_entropy(np.array([row], np.float32), np.array([label]), ops, count=1)
                assert not np.signbit(loss)
                found.add((loss.tobytes(), np.sort(grad).tobytes()))
    assert len(found) == 1


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_a_certain_answer_has_the_loss_plus_zero(zero):
    logits = np.array([[zero, -200], [-200, zero]], np.float32)
    loss, grad = network.cross_entropy(logits, np.array([0, 1]), REPRODUCIBLE, count=2)
    assert same_bytes(loss, np.zeros((), np.float32))
    assert same_bytes(grad, np.zeros((2, 2), np.float32))


def test_the_loss_of_logits_far_apart_or_shifted_is_finite_and_the_same():
    logits = np.array([[1, 2, 3], [0, -5, 2]], np.float32)
    labels = np.array([2, 0])
    loss, grad = network.cross_entropy(logits, labels, REPRODUCIBLE, count=2)
    for shift in (2.0**20, -(2.0**20)):
        again = network.cross_entropy(logits + np.float32(shift), labels, REPRODUCIBLE, count=2)
        assert same_bytes(again[0], loss)
        assert same_bytes(again[1], grad)
    far, _ = network.cross_entropy(np.array([[3e38, -3e37]], np.float32), np.array([1]), REPRODUCIBLE, count=1)
    assert np.isfinite(far)


# Batches


@st.composite
def batches(draw):
    """A model, a batch for it, and how it is used; batch sizes straddle the vector width."""
    hidden = draw(st.sampled_from([(), (1,), (7,), (9, 4)]))
    inputs, classes, batch = draw(st.integers(1, 9)), draw(st.integers(2, 5)), draw(st.sampled_from([2, 3, 7, 33, 64]))
    batch_norm, dropout = draw(st.booleans()), draw(st.booleans())
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    model = drawn_model(rng, inputs, hidden, classes, batch_norm)
    return model, *drawn_batch(rng, batch, inputs, hidden, classes, dropout), rng


def permutation_changes(case, ops, training):
    """What of a pass changes when the samples are permuted: names of rows, sums and gradients."""
    model, x, labels, masks, rng = case
    order = rng.permutation(len(labels))
    first = loss_and_gradients(model, x, labels, masks, ops, training=training)
    moved = [mask[order] for mask in masks]
    second = loss_and_gradients(model, x[order], labels[order], moved, ops, training=training)
    pairs = {"logits": (first[2][order], second[2]), "loss": (first[0], second[0])}
    pairs |= {name: (g, second[1][name]) for name, g in first[1].items()}
    pairs |= {name: (b, second[4][name]) for name, b in first[4].items()}
    return [name for name, (a, b) in pairs.items() if not same_bytes(np.asarray(a), np.asarray(b))]


@given(batches(), st.booleans())
def test_permuting_the_samples_permutes_the_rows_and_changes_no_sum(case, training):
    assert permutation_changes(case, REPRODUCIBLE, training) == []


def test_permuting_the_samples_changes_native_sums():
    rng = np.random.default_rng(3)
    model = drawn_model(rng, 9, (9, 4), 5, True)
    case = (model, *drawn_batch(rng, 1003, 9, (9, 4), 5, True), rng)
    assert permutation_changes(case, REPRODUCIBLE, True) == []
    assert permutation_changes(case, NATIVE, True) != []


@given(batches())
def test_a_row_does_not_depend_on_the_other_rows(case):
    model, x, labels, masks, rng = case
    for training in (False, True):
        if training and any(name.startswith("norm") for name in model):
            continue
        dropout = DROPOUT if masks else 0.0
        logits = network.forward(model, x, REPRODUCIBLE, training=training, masks=masks, dropout=dropout)[0]
        _, grad = network.cross_entropy(logits, labels, REPRODUCIBLE, count=len(labels))
        some = np.sort(rng.choice(len(labels), rng.integers(1, len(labels)), replace=False))
        part = network.forward(
            model, x[some], REPRODUCIBLE, training=training, masks=[m[some] for m in masks], dropout=dropout
        )[0]
        assert same_bytes(part, logits[some])
        assert same_bytes(network.cross_entropy(part, labels[some], REPRODUCIBLE, count=len(labels))[1], grad[some])


def test_with_batch_statistics_a_row_does_depend_on_the_others():
    rng = np.random.default_rng(4)
    model = drawn_model(rng, 3, (5,), 3, True)
    x, _, _ = drawn_batch(rng, 7, 3, (5,), 3, False)
    whole, part = (network.forward(model, x[:n], REPRODUCIBLE, training=True)[0] for n in (7, 6))
    assert not same_bytes(whole[:6], part)


# Modes and buffers


@given(batches())
def test_outside_training_nothing_is_dropped_drawn_or_updated(case):
    model, x, _, masks, _ = case
    before = digest({"model": model, "x": x})
    for array in (x, *model.values()):
        array.flags.writeable = False
    plain = network.forward(model, x, REPRODUCIBLE, training=False)
    masked = network.forward(model, x, REPRODUCIBLE, training=False, masks=masks, dropout=DROPOUT)
    assert plain[2] == masked[2] == {}
    assert same_bytes(plain[0], masked[0])
    assert digest({"model": model, "x": x}) == before


def test_masks_dropped_outside_training_would_be_seen(monkeypatch):
    rng = np.random.default_rng(2)
    model = drawn_model(rng, 3, (5,), 3, False)
    x, _, masks = drawn_batch(rng, 7, 3, (5,), 3, True)
    plain = network.forward(model, x, REPRODUCIBLE, training=False)[0]
    through = network._through
    monkeypatch.setattr(
        network, "_through", lambda model, segment, *rest: through(model, segment._replace(masks=masks), *rest)
    )
    dropped = network.forward(model, x, REPRODUCIBLE, training=False, masks=masks, dropout=DROPOUT)[0]
    assert not same_bytes(dropped, plain)


@given(batches())
def test_a_pass_leaves_its_arguments_as_they_are(case):
    model, x, labels, masks, _ = case
    for array in (x, labels, *masks, *model.values()):
        array.flags.writeable = False
    dropout = DROPOUT if masks else 0.0
    logits, kept, buffers = network.forward(model, x, REPRODUCIBLE, training=True, masks=masks, dropout=dropout)
    logits.flags.writeable = False
    _, grad = network.cross_entropy(logits, labels, REPRODUCIBLE, count=len(labels))
    grad.flags.writeable = False
    grads = network.backward(model, kept, grad, REPRODUCIBLE)
    for name, array in (grads | buffers).items():
        assert not any(np.shares_memory(array, given) for given in (x, grad, *model.values())), name


@given(batches())
def test_gradients_and_buffers_have_the_types_and_shapes_of_what_they_belong_to(case):
    model, x, labels, masks, _ = case
    _, grads, _, _, buffers = loss_and_gradients(model, x, labels, masks, REPRODUCIBLE, training=True)
    assert list(grads) == list(network.parameters(model))
    assert set(buffers) == set(model) - set(grads)
    for name, array in (grads | buffers).items():
        assert isinstance(array, np.ndarray), f"{name}: expected an array, found {type(array)}"
        assert (array.dtype, array.shape) == (model[name].dtype, model[name].shape), name


@pytest.mark.parametrize("batch", [2, 3, 5, 65])
def test_running_statistics_are_those_of_torch(batch):
    # Powers of two for the batch's mean and for its unbiased variance, and statistics that start at zero: what is left
    # is one rounded product each, so that the two must agree in every bit.
    torch = pytest.importorskip("torch", reason="torch is missing: running statistics cannot be compared with its own")
    rng = np.random.default_rng(batch)
    deviation = np.zeros((batch, 4), np.float32)
    deviation[:2] = [[1, 2, 0.25, 8], [-1, -2, -0.25, -8]]  # 2 d d / (batch - 1), and batch - 1 is a power of two
    centre = np.array([0.5, -4, 16, 0], np.float32)
    z = (centre + deviation)[rng.permutation(batch)]
    model = {
        "layer0.weight": np.eye(4, dtype=np.float32),
        "layer0.bias": np.zeros(4, np.float32),
        "norm0.weight": np.ones(4, np.float32),
        "norm0.bias": np.zeros(4, np.float32),
        "norm0.running_mean": np.zeros(4, np.float32),
        "norm0.running_var": np.zeros(4, np.float32),
        "norm0.num_batches_tracked": np.array(0, np.int64),
        "layer1.weight": np.ones((2, 4), np.float32),
        "layer1.bias": np.zeros(2, np.float32),
    }
    _, _, buffers = network.forward(model, z, REPRODUCIBLE, training=True)
    norm = torch.nn.BatchNorm1d(4)
    norm.running_var.zero_()
    norm.train()(torch.from_numpy(z.copy()))
    for name in network.BUFFERS:
        assert same_bytes(np.asarray(buffers[f"norm0.{name}"]), getattr(norm, name).numpy()), name


# First weights and masks


@given(st.integers(0, 2**64 - 1), st.integers(1, 9), st.lists(st.integers(1, 9), max_size=3), st.booleans())
def test_first_weights_lie_within_their_bounds_in_the_documented_order(seed, inputs, hidden, batch_norm):
    model = network.init_model(generator_from(init_stream(seed, "weights")), inputs, hidden, 3, batch_norm=batch_norm)
    sizes = [inputs, *hidden, 3]
    names = []
    for i, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        names += [f"layer{i}.weight", f"layer{i}.bias"]
        assert model[f"layer{i}.weight"].shape == (fan_out, fan_in)
        for name in names[-2:]:
            bound = np.float32(1 / np.sqrt(fan_in))
            assert model[name].dtype == np.float32
            assert ((-bound <= model[name]) & (model[name] < bound)).all()
        if batch_norm and i < len(hidden):
            names += [f"norm{i}.{name}" for name in ("weight", "bias", *network.BUFFERS)]
    assert list(model) == names
    assert list(network.parameters(model)) == [name for name in names if not name.endswith(network.BUFFERS)]
    assert network.depth_of(model) == len(hidden) + 1


@given(st.integers(0, 2**64 - 1), st.lists(st.integers(1, 9), max_size=3), st.integers(1, 9))
def test_masks_are_drawn_only_with_dropout_one_word_a_unit(seed, hidden, batch):
    start = init_stream(seed, "dropout")
    generator = generator_from(start)
    assert network.draw_masks(generator, hidden, batch, 0.0) == []
    assert digest(stream_state(generator)) == digest(start)
    masks = network.draw_masks(generator, hidden, batch, DROPOUT)
    assert [mask.shape for mask in masks] == [(batch, h) for h in hidden]
    words = generator_from(start)
    words.bit_generator.random_raw(batch * sum(hidden))
    assert digest(stream_state(generator)) == digest(stream_state(words))


@given(st.integers(0, 2**64 - 1), st.integers(1, 9), st.sampled_from([0.1, 0.25, 0.9]))
def test_a_unit_stays_where_its_uniform_number_lies_below_the_share_kept(seed, batch, dropout):
    start = init_stream(seed, "dropout")
    numbers = generator_from(start)
    for mask in network.draw_masks(generator_from(start), (5, 3), batch, dropout):
        assert (mask == (draw_uniform(numbers, mask.shape) < np.float32(1 - dropout))).all()


def test_dropping_what_should_stay_would_be_seen(monkeypatch):
    def masks():
        return network.draw_masks(generator_from(init_stream(0, "dropout")), (64,), 7, DROPOUT)[0]

    expected, draw = masks(), network.draw_bernoulli
    monkeypatch.setattr(network, "draw_bernoulli", lambda generator, p, shape: draw(generator, 1 - p, shape))
    assert (masks() != expected).any()


@pytest.mark.parametrize(
    ("dropout", "given"), [(0.5, []), (0.5, [np.ones((2, 3), bool)]), (0.0, [np.ones((2, 3), bool)] * 2)]
)
def test_masks_that_would_drop_nothing_or_too_little_are_refused(dropout, given):
    model, x = network.blank_model(3, (3, 3), 2), np.ones((2, 3), np.float32)
    expected = 2 if dropout else 0
    for forward in (network.forward, partial(network.forward, segments=2)):
        with pytest.raises(ValueError, match=f"masks: expected {expected}, .* found {len(given)}. Draw them"):
            forward(model, x, REPRODUCIBLE, training=True, masks=given, dropout=dropout)


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=r"precision: expected one of float16, .*, or None, found 'fp16'"):
        arithmetic_named("reproducible", precision="fp16")
