"""PyTorch's own classes as third witness: ours are theirs within the rows of the boundary, and faults are not.

Where the bits agree, other files hold the law: draws and the loader's order in test_rng, StepLR in test_optim,
GradScaler in test_precision; the steps in float64 and what a stock optimizer loads in test_optim and test_parity_optim.
"""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from numpy_ref.proof.boundary import row_named
from numpy_ref.proof.equivalence import compare
from numpy_ref.rng import init_stream
from parity_tests.trainer.updates import ADAM_MISTAKES, SGD_MISTAKES, plain_port

torch = pytest.importorskip("torch", reason="torch is missing: its classes cannot be compared with ours")
from torch.nn.functional import linear

from torch_port import model, optim
from torch_port import proof as measures
from torch_port.arithmetic import operations as arithmetic

SEEDS = st.integers(0, 2**32 - 1)
SIZES = st.one_of(st.sampled_from([1, 7, 64]), st.integers(1, 64))


def uniform(seed, low, high, **shapes):
    """Arrays of float32 numbers between two ends."""
    rng = np.random.default_rng(seed)
    return {name: rng.uniform(low, high, shape).astype(np.float32) for name, shape in shapes.items()}


# Layers


def for_linear(batch, inputs, outputs, seed):
    """Values between 1/2 and 1, as the rows of linear layers ask for."""
    return uniform(seed, 0.5, 1, x=(batch, inputs), weight=(outputs, inputs), bias=outputs, grad=(batch, outputs))


@given(SIZES, SIZES, SIZES, SEEDS)
@example(64, 64, 64, 0)
def test_stock_linear_lies_within_its_row(batch, inputs, outputs, seed):
    sides = measures.linear_sides(**for_linear(batch, inputs, outputs, seed))
    verdict = compare(*sides, tolerance=row_named("stock Linear").tolerance)
    assert verdict.holds, verdict


def with_gradient(tensor, change):
    """The tensor, with its gradient changed on the way back."""
    tensor = tensor * 1
    tensor.register_hook(change)
    return tensor


LINEAR_FAULTS = {
    "weight as it is": lambda x, w, b: linear(x, w.T, b),
    "no bias": lambda x, w, b: linear(x, w, 0 * b),
    "weight too large": lambda x, w, b: linear(x, w * 1.02, b),
    "gradient by the input": lambda x, w, b: linear(with_gradient(x, lambda g: g.flip(1)), w, b),
    "gradient by the weight": lambda x, w, b: linear(x, with_gradient(w, lambda g: g.T), b),
    "gradient by the bias": lambda x, w, b: linear(x, w, with_gradient(b, lambda g: g / 7)),
}


def layers_with(fault):
    """A module whose linear layer computes as the stock one does, but for a fault."""

    class Linear(model.Linear):
        def forward(self, x):
            return fault(x, self.weight.to(x.dtype), self.bias.to(x.dtype))

    return SimpleNamespace(Linear=Linear)


@pytest.mark.parametrize("fault", LINEAR_FAULTS)
def test_a_fault_in_the_linear_layer_exceeds_the_row(fault):
    sides = measures.linear_sides(**for_linear(7, 7, 7, 0), network=layers_with(LINEAR_FAULTS[fault]))
    assert not compare(*sides, tolerance=row_named("stock Linear").tolerance).holds


@pytest.mark.parametrize("row", ["stock autocast, float16", "stock autocast, bfloat16"])
@given(SIZES, SIZES, SIZES, SEEDS)
@example(64, 64, 64, 0)
def test_stock_autocast_lies_within_its_row(row, batch, inputs, outputs, seed):
    case = for_linear(batch, inputs, outputs, seed)
    verdict = compare(*measures.autocast_sides(**case, precision=row.split()[-1]), tolerance=row_named(row).tolerance)
    assert verdict.holds, verdict


@pytest.mark.parametrize("row", ["stock autocast, float16", "stock autocast, bfloat16"])
@pytest.mark.parametrize("fault", LINEAR_FAULTS)
def test_a_fault_in_a_layer_of_16_bits_exceeds_its_row(row, fault):
    network = layers_with(LINEAR_FAULTS[fault])
    sides = measures.autocast_sides(**for_linear(7, 7, 7, 0), precision=row.split()[-1], network=network)
    assert not compare(*sides, tolerance=row_named(row).tolerance).holds


def for_batch_norm(batch, outputs, seed):
    """Inputs between -2 and 2, all else between 1/2 and 1, as the row of batch normalisation asks for."""
    z = uniform(seed, -2, 2, z=(batch, outputs))
    return z | uniform([seed, 1], 0.5, 1, weight=outputs, bias=outputs, grad=(batch, outputs))


@given(st.integers(2, 16), SIZES, SEEDS)
@example(16, 33, 0)
def test_stock_batch_norm_lies_within_its_row(batch, outputs, seed):
    case = for_batch_norm(batch, outputs, seed)
    keep = case["z"].std(axis=0) >= 0.5
    assume(keep.any())
    case = {name: np.ascontiguousarray(array[..., keep]) for name, array in case.items()}
    verdict = compare(*measures.batch_norm_sides(**case), tolerance=row_named("stock BatchNorm1d").tolerance)
    assert verdict.holds, verdict


def with_buffer(name, change):
    """Batch normalisation that changes a buffer afterwards."""

    def forward(layer, z):
        out = model.BatchNorm.forward(layer, z)
        with torch.no_grad():
            layer.get_buffer(name).copy_(change(layer.get_buffer(name), z))
        return out

    return forward


def with_weights_gradient(layer, z):
    layer.weight.register_hook(lambda g: g.flip(0))
    return model.BatchNorm.forward(layer, z)


BATCH_NORM_FAULTS = {
    "biased variance": with_buffer("running_var", lambda var, z: var - 0.1 * z.var(0) / len(z)),
    "shares swapped": with_buffer("running_mean", lambda mean, z: mean * 9),
    "batches not counted": with_buffer("num_batches_tracked", lambda n, z: n - 1),
    "large eps": lambda layer, z: torch.nn.functional.batch_norm(
        z, None, None, layer.weight, layer.bias, training=True, eps=0.1
    ),
    "statistics as constants": lambda layer, z: (
        (z - z.mean(0).detach()) / z.std(0, correction=0).detach() * layer.weight + layer.bias
    ),
    "gradient by the input": lambda layer, z: model.BatchNorm.forward(layer, with_gradient(z, lambda g: g * 1.1)),
    "gradient by the weight": with_weights_gradient,
}


@pytest.mark.parametrize("fault", BATCH_NORM_FAULTS)
def test_a_fault_in_batch_normalisation_exceeds_the_row(fault):
    network = SimpleNamespace(BatchNorm=type("BatchNorm", (model.BatchNorm,), {"forward": BATCH_NORM_FAULTS[fault]}))
    sides = measures.batch_norm_sides(**for_batch_norm(16, 33, 0), network=network)
    assert not compare(*sides, tolerance=row_named("stock BatchNorm1d").tolerance).holds


# The loss


def for_cross_entropy(batch, classes, seed):
    """Logits between -2 and 2, as the row asks for, and labels."""
    labels = np.random.default_rng([seed, 1]).integers(0, classes, batch)
    return uniform(seed, -2, 2, logits=(batch, classes)) | {"labels": labels}


@given(st.integers(1, 16), st.integers(2, 16), SEEDS)
@example(16, 16, 0)
def test_stock_cross_entropy_lies_within_its_row(batch, classes, seed):
    sides = measures.cross_entropy_sides(**for_cross_entropy(batch, classes, seed))
    verdict = compare(*sides, tolerance=row_named("stock cross_entropy").tolerance)
    assert verdict.holds, verdict


LOSS_FAULTS = {
    "sum": lambda z, y, ops, count: model.cross_entropy(z, y, ops, count=1),
    "gradient of the sum": lambda z, y, ops, count: model.cross_entropy(
        with_gradient(z, lambda g: g * count), y, ops, count=count
    ),
    "no label in the gradient": lambda z, y, ops, count: model.cross_entropy(
        with_gradient(z, lambda g: g.abs()), y, ops, count=count
    ),
    "logits not shifted": lambda z, y, ops, count: model.cross_entropy(z, y, ops, count=count) - z.max(1)[0].mean(),
}


@pytest.mark.parametrize("fault", LOSS_FAULTS)
def test_a_fault_in_the_loss_exceeds_the_row(fault):
    network = SimpleNamespace(cross_entropy=LOSS_FAULTS[fault])
    sides = measures.cross_entropy_sides(**for_cross_entropy(16, 10, 0), network=network)
    assert not compare(*sides, tolerance=row_named("stock cross_entropy").tolerance).holds


# Optimizers


def judged(kind, options, tolerance, *, seed=0, size=64, variants=tuple(measures.VARIANTS), optimizers=optim):
    """The verdicts on an optimizer, by variant of the stock one."""
    given = measures.weights_and_gradients(size, seed)
    sides = [measures.optimizer_sides(kind, name, options, *given, optimizers=optimizers) for name in variants]
    return {name: compare(*pair, tolerance=tolerance) for name, pair in zip(variants, sides, strict=True)}


def assert_all_hold(verdicts):
    assert all(verdict.holds for verdict in verdicts.values()), verdicts


COMMON = {"lr": st.floats(1e-4, 1 / 16), "weight_decay": st.one_of(st.just(0.0), st.floats(1e-4, 1 / 16))}
ADAM = st.fixed_dictionaries(
    COMMON
    | {
        "betas": st.tuples(st.one_of(st.just(0.9), st.floats(0, 0.9)), st.sampled_from([0.999, 0.9, 0.5, 0.0])),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "amsgrad": st.booleans(),
    }
)
SGD = st.fixed_dictionaries(COMMON | {"momentum": st.sampled_from([0.9, 0.5, 0.0]), "dampening": st.just(0.0)}).flatmap(
    lambda options: st.sampled_from(
        [options, options | {"dampening": 0.25}] + ([options | {"nesterov": True}] if options["momentum"] else [])
    )
)
SIZES_OF_STEPS = st.sampled_from([1, 7, 64, 1003])


@given(ADAM, SIZES_OF_STEPS, SEEDS)
def test_stock_adam_lies_within_its_row(options, size, seed):
    assert_all_hold(judged("Adam", options, row_named("stock Adam").tolerance, size=size, seed=seed))


@given(ADAM, SIZES_OF_STEPS, SEEDS)
def test_stock_adamw_lies_within_its_row(options, size, seed):
    assert_all_hold(judged("AdamW", options, row_named("stock AdamW").tolerance, size=size, seed=seed))


@given(SGD, SIZES_OF_STEPS, SEEDS)
def test_stock_sgd_lies_within_its_row(options, size, seed):
    assert_all_hold(judged("SGD", options, row_named("stock SGD").tolerance, size=size, seed=seed))


DECAYING = {"lr": 1 / 16, "weight_decay": 1 / 16}


@pytest.mark.parametrize("name", ADAM_MISTAKES)
def test_a_mistake_in_adam_exceeds_its_row(name):
    settings, parts = ADAM_MISTAKES[name]
    kind, betas = "AdamW" if settings.get("decoupled") else "Adam", (0.9, settings.get("beta2", 0.999))
    options = {key: settings[key] for key in ("eps", "amsgrad") if key in settings} | {"betas": betas}
    if name == "no maximum":
        options["betas"] = (0.9, 0.0)
    judge_mistake(kind, options, plain_port(optim, parts))


@pytest.mark.parametrize("name", SGD_MISTAKES)
def test_a_mistake_in_sgd_exceeds_its_row(name):
    settings, parts = SGD_MISTAKES[name]
    judge_mistake("SGD", settings, plain_port(optim, sgd_parts=parts))


def judge_mistake(kind, options, optimizers):
    tolerance = row_named(f"stock {kind}").tolerance
    options = options | DECAYING
    for sound in (optim, plain_port(optim)):
        assert_all_hold(judged(kind, options, tolerance, optimizers=sound))
    assert not any(verdict.holds for verdict in judged(kind, options, tolerance, optimizers=optimizers).values())


# Dropout


@given(st.sampled_from(["dropout", "bernoulli_"]), st.sampled_from([0.1, 0.5, 0.9]), st.integers(0, 2**64 - 1))
def test_stock_dropout_keeps_the_share_and_other_units(kind, keep, seed):
    units, state = 2**18, init_stream(seed, "dropout")
    kept = measures.kept_units(kind, state, keep, units)
    alarms = row_named("stock dropout").false_alarms
    assert measures.share_by_chance(int(kept.sum()), units, keep) > alarms
    assert not np.array_equal(kept, measures.kept_units("ours", state, keep, units))


@pytest.mark.parametrize("wrong", [0.49, 0.51])
def test_a_share_that_is_one_in_a_hundred_off_is_told_apart(wrong):
    units, alarms = 2**18, row_named("stock dropout").false_alarms
    for keep, chance in ((0.5, True), (wrong, False)):
        kept = measures.kept_units("ours", init_stream(3, "dropout"), keep, units)
        assert (measures.share_by_chance(int(kept.sum()), units, 0.5) > alarms) == chance


def test_dropout_leaves_the_global_generator_where_it_was():
    before = torch.get_rng_state()
    measures.kept_units("dropout", init_stream(3, "dropout"), 0.5, 100)
    assert torch.equal(torch.get_rng_state(), before)


# torch.compile


@pytest.fixture
def compiler():
    """torch.compile as in a fresh process; it warns of what torch itself does."""
    torch.compiler.reset()
    yield
    torch.compiler.reset()


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_layer_lies_within_its_row():
    try:
        sides = measures.compiled_sides(**for_linear(61, 33, 17, 0))
    except measures.NotHere as error:
        pytest.skip(str(error))
    verdict = compare(*sides, tolerance=row_named("compiled against eager").tolerance)
    assert verdict.holds, verdict
    sides = measures.compiled_sides(**for_linear(61, 33, 17, 0), network=layers_with(LINEAR_FAULTS["no bias"]))
    assert not compare(*sides, tolerance=row_named("compiled against eager").tolerance).holds


@pytest.mark.usefixtures("compiler")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("ops", "breaks"), [(arithmetic.REPRODUCIBLE, True), (arithmetic.NATIVE, False)])
def test_reproducible_arithmetic_breaks_the_graph_and_native_does_not(ops, breaks):
    graphs = []

    def as_it_is(graph, inputs):
        graphs.append(graph)
        return graph.forward

    layer = torch.compile(model.Linear(7, 5, ops=ops), fullgraph=True, backend=as_it_is)
    if breaks:
        with pytest.raises(torch._dynamo.exc.Unsupported):
            layer(torch.ones(3, 7))
    else:
        layer(torch.ones(3, 7))
        assert len(graphs) == 1
