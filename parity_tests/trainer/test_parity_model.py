"""The port's module: loss, gradients and statistics are the reference's in every type, and it draws nothing."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref import model as reference
from numpy_ref.arithmetic.operations import REPRODUCIBLE
from numpy_ref.proof.equivalence import compare
from numpy_ref.rng import generator_from, init_stream, stream_state
from parity_tests.oracles import same_bytes
from parity_tests.strategies import numbers

torch = pytest.importorskip("torch", reason="torch is missing: the port's module cannot be run")
from torch_port import model as port
from torch_port import rng as port_rng
from torch_port.arithmetic import operations as arithmetic

DROPOUT = 0.25
DTYPES = {"float16": np.float16, "float32": np.float32, "float64": np.float64}


def drawn_model(rng, inputs, hidden, classes, batch_norm, dtype):
    """Arrays away from their first values."""
    model = reference.blank_model(inputs, hidden, classes, batch_norm=batch_norm)
    for name, array in model.items():
        scales = name.endswith("_var") or (name.startswith("norm") and name.endswith("weight"))
        if not name.endswith("tracked"):
            model[name] = rng.uniform(0.5 if scales else -1, 2 if scales else 1, array.shape).astype(dtype)
    return model


def expected_pass(model, x, labels, masks, *, training):
    with np.errstate(all="ignore"):
        logits, cache, buffers = reference.forward(
            model, x, REPRODUCIBLE, training=training, masks=masks, dropout=DROPOUT if masks else 0.0
        )
        loss, grad = reference.cross_entropy(logits, labels, REPRODUCIBLE, count=len(labels) + 3)
        grads = reference.backward(model, cache, grad, REPRODUCIBLE)
    return {"logits": logits, "loss": loss, "grads": grads, "model": model | buffers}


def found_pass(model, x, labels, masks, *, training, ops=arithmetic.REPRODUCIBLE):
    inputs, *hidden, classes = sizes_of(model)
    batch_norm = any(name.startswith("norm") for name in model)
    module = port.MLP(inputs, hidden, classes, batch_norm=batch_norm, dropout=DROPOUT if masks else 0.0, ops=ops)
    module.to(torch.from_numpy(x).dtype)
    module.load_state_dict({name: torch.tensor(array) for name, array in model.items()})
    module.train(training)
    logits = module(torch.tensor(x), [torch.tensor(mask) for mask in masks])
    loss = port.cross_entropy(logits, torch.tensor(labels), ops, count=len(labels) + 3)
    loss.backward()
    grads = {name: p.grad.numpy() for name, p in module.named_parameters()}
    state = {name: array.numpy() for name, array in module.state_dict().items()}
    return {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(), "grads": grads, "model": state}


def sizes_of(model):
    weights = [array for name, array in model.items() if name.startswith("layer") and name.endswith(".weight")]
    return [weights[0].shape[1], *(w.shape[0] for w in weights)]


@st.composite
def passes(draw):
    """A model, a batch, masks, and whether the pass is one of training."""
    rng, dtype = np.random.default_rng(draw(st.integers(0, 2**32 - 1))), DTYPES[draw(st.sampled_from(list(DTYPES)))]
    largest = 9 if dtype == np.float64 else 70  # whole numbers take their time
    inputs, batch = draw(st.integers(1, largest)), draw(st.integers(2, largest))
    hidden = draw(st.lists(st.integers(1, largest), max_size=2))
    model = drawn_model(rng, inputs, hidden, 4, draw(st.booleans()), dtype)
    x = numbers(rng, draw(st.sampled_from(["normal", "relu", "signs", "ties", "special"])), (batch, inputs), dtype)
    masks = [rng.random((batch, h)) >= DROPOUT for h in hidden] if draw(st.booleans()) else []
    return (model, x, rng.integers(0, 4, batch), masks), draw(st.booleans())


def wide_case(seed=0):
    """Beyond the registers, with everything in it."""
    rng, hidden = np.random.default_rng(seed), (67, 33)
    model = drawn_model(rng, 129, hidden, 10, True, np.float32)
    x = rng.standard_normal((65, 129)).astype(np.float32)
    return (model, x, rng.integers(0, 10, 65), [rng.random((65, h)) >= DROPOUT for h in hidden]), True


@given(passes())
@example(wide_case())
def test_loss_gradients_and_statistics_are_the_references(case):
    arguments, training = case
    verdict = compare(expected_pass(*arguments, training=training), found_pass(*arguments, training=training))
    assert verdict.holds, verdict


def test_a_module_without_hidden_layers_is_the_references():
    rng = np.random.default_rng(0)
    arguments = drawn_model(rng, 5, (), 3, True, np.float32), rng.random((7, 5), np.float32), np.arange(7) % 3, []
    assert compare(expected_pass(*arguments, training=True), found_pass(*arguments, training=True)).holds


REAL, STATISTICS, BATCH_NORM = port._real, port._statistics, port.BatchNorm.forward
LINEAR, BY_LINEAR = port._Linear.forward, port._Linear.backward
NORMALISE, CROSS_ENTROPY = port._Normalise.forward, port._CrossEntropy.forward


def stock_linear(ctx, x, weight, bias, ops):
    LINEAR(ctx, x, weight, bias, ops)
    return torch.nn.functional.linear(x, weight, bias)


def bias_by_a_stock_sum(ctx, g):
    by_input, by_weight, *_ = BY_LINEAR(ctx, g)
    return by_input, by_weight, g.sum(0), None


def relu_that_keeps_zeros(condition, first, second):
    return torch.where(condition & (second != 0) if second.requires_grad else condition, first, second)


def scaled_by_a_quotient():
    """A `where` in which dropout divides what the ReLU before it gave, whose last argument alone has a gradient."""
    last = []

    def where(condition, first, second):
        if second.requires_grad:
            last[:] = [torch.where(condition, first, second)]
            return last[0]
        return torch.where(condition, last[0] / (1 - DROPOUT), second)

    return where


def torch_with(where):
    return SimpleNamespace(**vars(torch) | {"where": where})


def stock_variance(ctx, z, weight, bias, mean, var, training, ops):
    return NORMALISE(ctx, z, weight, bias, mean, z.var(0, unbiased=False) if training else var, training, ops)


def divided_by_the_root(ctx, z, weight, bias, mean, var, training, ops):
    std = ops.sqrt(var + REAL(port.NORM_EPS, z))
    x_hat = (z - mean) / std
    ctx.save_for_backward(x_hat, REAL(1, z) / std, weight)
    ctx.training, ctx.ops = training, ops
    return x_hat * weight + bias


def lerped(norm, z):
    mean = norm.running_mean.clone()
    out = BATCH_NORM(norm, z)
    if norm.training:
        with torch.no_grad():
            norm.running_mean.copy_(mean.lerp_(STATISTICS(z, norm.ops)[0], port.NORM_MOMENTUM))
    return out


def not_counted(norm, z):
    count = norm.num_batches_tracked.clone()
    out = BATCH_NORM(norm, z)
    norm.num_batches_tracked.copy_(count)
    return out


def loss_by_the_batch(ctx, logits, labels, ops, count):
    CROSS_ENTROPY(ctx, logits, labels, ops, count)
    return CROSS_ENTROPY(SimpleNamespace(save_for_backward=[].append), logits, labels, ops, len(labels))


def gradient_by_a_product(ctx, logits, labels, ops, count):
    saved = []
    CROSS_ENTROPY(SimpleNamespace(save_for_backward=saved.append), logits, labels, ops, 1)
    loss = CROSS_ENTROPY(ctx, logits, labels, ops, count)
    ctx.save_for_backward(saved[0] * (1 / REAL(count, logits)))
    return loss


FAULTS = {
    "stock linear": (port._Linear, "forward", staticmethod(stock_linear)),
    "stock relu's gradient at -0": (port, "torch", torch_with(relu_that_keeps_zeros)),
    "mean": (port, "_statistics", lambda z, ops: (z.mean(0), STATISTICS(z, ops)[1])),
    "variance": (port._Normalise, "forward", staticmethod(stock_variance)),
    "running variance without Bessel's correction": (
        port,
        "_real",
        lambda value, like: REAL(65 if value == 64 else value, like),  # of 65 samples
    ),
    "statistics by lerp": (port.BatchNorm, "forward", lerped),
    "batches not counted": (port.BatchNorm, "forward", not_counted),
    "gradient of the bias by a stock sum": (port._Linear, "backward", staticmethod(bias_by_a_stock_sum)),
    "division by the root": (port._Normalise, "forward", staticmethod(divided_by_the_root)),
    "dropout scaled after": (port, "torch", torch_with(scaled_by_a_quotient())),
    "loss by the batch": (port._CrossEntropy, "forward", staticmethod(loss_by_the_batch)),
    "gradient by a product": (port._CrossEntropy, "forward", staticmethod(gradient_by_a_product)),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_module_with_another_operation_is_told_apart(monkeypatch, fault):
    arguments, training = wide_case()
    arguments[1][0] = 0  # a row of zeros meets the gate at its edge
    model = arguments[0]
    model["layer0.bias"][:9] = 0
    model["norm0.bias"][:9] = 0
    model["norm0.running_mean"][:9] = 0
    both = []
    for mode in (training, False):
        expected = expected_pass(*arguments, training=mode)
        assert compare(expected, found_pass(*arguments, training=mode)).holds
        with monkeypatch.context() as patch:
            patch.setattr(*fault)
            both.append(compare(expected, found_pass(*arguments, training=mode)).holds)
    assert not all(both)


def test_stock_cross_entropy_has_other_bits():
    arguments, _ = wide_case()
    found = found_pass(*arguments, training=True)
    logits = torch.tensor(found["logits"], requires_grad=True)
    labels = torch.tensor(arguments[2])
    stock = torch.nn.functional.cross_entropy(logits, labels, reduction="sum") / (len(labels) + 3)
    stock.backward()
    ours = torch.tensor(found["logits"], requires_grad=True)
    port.cross_entropy(ours, labels, arithmetic.REPRODUCIBLE, count=len(labels) + 3).backward()
    assert not torch.equal(ours.grad, logits.grad)


# Draws


@given(st.integers(0, 2**64 - 1), st.integers(1, 9), st.lists(st.integers(1, 70), max_size=2), st.booleans())
def test_first_weights_and_the_stream_after_them_are_the_references(seed, inputs, hidden, batch_norm):
    ours, theirs = port_rng.generator_from(init_stream(seed, "weights")), generator_from(init_stream(seed, "weights"))
    module = port.init_model(ours, inputs, hidden, 3, batch_norm=batch_norm)
    expected = reference.init_model(theirs, inputs, hidden, 3, batch_norm=batch_norm)
    found = {name: tensor.numpy() for name, tensor in module.state_dict().items()}
    assert list(found) == list(expected)
    assert compare(expected, found).holds
    assert compare(stream_state(theirs), port_rng.stream_state(ours)).holds


@given(st.integers(0, 2**32), st.lists(st.integers(1, 70), max_size=2), st.integers(1, 33), st.sampled_from([0.0, 0.3]))
def test_masks_and_the_stream_after_them_are_the_references(seed, hidden, batch, dropout):
    ours, theirs = port_rng.generator_from(init_stream(seed, "dropout")), generator_from(init_stream(seed, "dropout"))
    found = port.draw_masks(ours, hidden, batch, dropout)
    expected = reference.draw_masks(theirs, hidden, batch, dropout)
    assert len(found) == len(expected)
    assert all(same_bytes(x, y.numpy()) for x, y in zip(expected, found, strict=True))
    assert compare(stream_state(theirs), port_rng.stream_state(ours)).holds


def test_making_a_module_and_running_it_moves_no_global_generator():
    before = torch.get_rng_state()
    arguments, training = wide_case()
    found_pass(*arguments, training=training)
    assert torch.equal(torch.get_rng_state(), before)
    torch.nn.Linear(3, 3)  # the stock layer draws
    assert not torch.equal(torch.get_rng_state(), before)
    torch.set_rng_state(before)


def test_masks_are_left_out_of_evaluation():
    arguments, _ = wide_case()
    found = found_pass(*arguments, training=False)
    assert compare(found, found_pass(*arguments[:3], [], training=False)).holds


# Bad input


def test_masks_that_would_drop_nothing_or_too_little_are_refused():
    module = port.MLP(3, (4, 5), 2, dropout=0.5)
    with pytest.raises(ValueError, match="masks: expected 2, one for each hidden layer with dropout, found 0"):
        module(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"masks: expected 2, .* found 1"):
        module(torch.ones(2, 3), [torch.ones(2, 4, dtype=torch.bool)])
    module.eval()(torch.ones(2, 3))
    port.MLP(3, (4,), 2)(torch.ones(2, 3))


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, -1], "labels: expected 0 to 2, found -1 to 0"),
        ([0, 3], "labels: expected 0 to 2, found 0 to 3"),
        ([0], "expected logits .* and whole labels"),
        ([0.0, 1.0], "expected logits .* and whole labels"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    with pytest.raises(ValueError, match=message):
        port.cross_entropy(torch.ones(2, 3), torch.tensor(labels), arithmetic.REPRODUCIBLE, count=2)


def test_an_unknown_format_is_refused_when_the_arithmetic_is_made():
    with pytest.raises(ValueError, match=r"precision: expected one of float16, .*, or None, found 'fp16'"):
        arithmetic.arithmetic_named("reproducible", precision="fp16")
