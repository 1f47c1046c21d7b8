"""The port's optimizers and schedules: the reference's bits for all options, and torch's own state-dict keys."""

import copy

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref import optim as reference
from numpy_ref.arithmetic.operations import REPRODUCIBLE
from numpy_ref.proof.equivalence import compare
from parity_tests.strategies import numbers
from parity_tests.trainer.updates import ADAM, ADAM_FUSED, ADAM_ROUNDINGS, SGD_MISTAKES, plain_port

torch = pytest.importorskip("torch", reason="torch is missing: the port's optimizers cannot be run")
from torch_port import optim
from torch_port.arithmetic import operations as arithmetic

SHAPES = {"a": (), "b": (7,), "c": (1003,), "d": (13, 65)}  # within and beyond the registers
OF_ADAM = st.fixed_dictionaries(
    {
        "learning_rate": st.sampled_from([1e-3, 0.05]),
        "beta1": st.sampled_from([0.0, 0.9]),
        "beta2": st.sampled_from([0.9, 0.999]),
        "eps": st.sampled_from([1e-8, 1e-3]),
        "weight_decay": st.sampled_from([0.0, 0.1]),
    }
)
OF_SGD = st.fixed_dictionaries(
    {
        "learning_rate": st.sampled_from([1e-3, 0.05]),
        "momentum": st.sampled_from([0.0, 0.5, 0.9]),
        "dampening": st.sampled_from([0.0, 0.25]),
        "nesterov": st.booleans(),
        "weight_decay": st.sampled_from([0.0, 0.1]),
    }
).filter(lambda s: not s["nesterov"] or (s["momentum"] and not s["dampening"]))


def weights_and_gradients(seed, steps=3, kind="normal", dtype=np.float32):
    rng = np.random.default_rng(seed)

    def drawn(kind):
        return {name: np.asarray(numbers(rng, kind, shape, dtype)) for name, shape in SHAPES.items()}

    return drawn("normal"), [drawn(kind) for _ in range(steps)]


def live(params):
    return {name: torch.nn.Parameter(torch.tensor(w)) for name, w in params.items()}


def stepped(optimizer, weights, gradients):
    """The weights after each step, as arrays."""
    for grads in gradients:
        for name, w in weights.items():
            w.grad = torch.tensor(grads[name])
        optimizer.step()
        yield {name: w.detach().numpy().copy() for name, w in weights.items()}


def moments(optimizer, weights, key):
    return {name: optimizer.state[w][key].numpy().copy() for name, w in weights.items()}


def adam_pair(settings, amsgrad, decoupled, params, gradients, impl=None, ops=None):
    """After each step: weights and moments of the reference, and of the port."""
    impl, ops = impl or optim, ops or arithmetic.REPRODUCIBLE
    weights = live(params)
    optimizer = (impl.AdamW if decoupled else impl.Adam)(
        weights.values(),
        settings["learning_rate"],
        (settings["beta1"], settings["beta2"]),
        settings["eps"],
        settings["weight_decay"],
        amsgrad,
        ops=ops,
    )
    state = reference.init_adam(params, amsgrad=amsgrad)
    for grads, found in zip(gradients, stepped(optimizer, weights, gradients), strict=True):
        with np.errstate(all="ignore"):
            params, state = reference.adam_step(params, state, grads, REPRODUCIBLE, decoupled=decoupled, **settings)
        v_max = moments(optimizer, weights, "max_exp_avg_sq") if amsgrad else {}
        t = {int(optimizer.state[w]["step"]) for w in weights.values()}
        ours = reference.AdamState(
            t.pop(), moments(optimizer, weights, "exp_avg"), moments(optimizer, weights, "exp_avg_sq"), v_max
        )
        assert not t
        yield {"w": params, "s": state}, {"w": found, "s": ours}


def sgd_pair(settings, params, gradients, impl=None):
    weights, own = live(params), dict(settings)
    optimizer = (impl or optim).SGD(weights.values(), own.pop("learning_rate"), **own)
    state = reference.init_sgd(params, momentum=settings["momentum"])
    for grads, found in zip(gradients, stepped(optimizer, weights, gradients), strict=True):
        with np.errstate(all="ignore"):
            params, state = reference.sgd_step(params, state, grads, **settings)
        buffers = moments(optimizer, weights, "momentum_buffer") if settings["momentum"] else {}
        t = {int(optimizer.state[w]["step"]) for w in weights.values()}
        yield {"w": params, "s": state}, {"w": found, "s": reference.SGDState(t.pop(), buffers)}


KINDS = st.sampled_from(["normal", "relu", "wide", "subnormal", "special"])
SEEDS = st.integers(0, 2**32 - 1)


@given(OF_ADAM, st.booleans(), st.booleans(), SEEDS, KINDS)
def test_adam_is_the_references(settings, amsgrad, decoupled, seed, kind):
    for expected, found in adam_pair(settings, amsgrad, decoupled, *weights_and_gradients(seed, kind=kind)):
        verdict = compare(expected, found)
        assert verdict.holds, verdict


@given(OF_SGD, SEEDS, KINDS)
def test_sgd_is_the_references(settings, seed, kind):
    for expected, found in sgd_pair(settings, *weights_and_gradients(seed, kind=kind)):
        verdict = compare(expected, found)
        assert verdict.holds, verdict


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_the_steps_are_the_references_in_other_types(dtype):
    settings = {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "eps": 1e-3, "weight_decay": 0.1}
    params, gradients = weights_and_gradients(3, dtype=dtype)
    for decoupled in (False, True):
        assert all(compare(*sides).holds for sides in adam_pair(settings, True, decoupled, params, gradients))
    settings = {"learning_rate": 0.05, "momentum": 0.9, "dampening": 0.25, "nesterov": False, "weight_decay": 0.1}
    assert all(compare(*sides).holds for sides in sgd_pair(settings, params, gradients))


@pytest.mark.parametrize("block", [5, 8])
def test_the_size_of_the_blocks_changes_no_bit(block, monkeypatch):
    monkeypatch.setattr(optim, "BLOCK", block)
    for amsgrad in (False, True):
        assert all(compare(*sides).holds for sides in adam_pair(UPDATE, amsgrad, False, *weights_and_gradients(1)))
    settings = {"learning_rate": 0.05, "momentum": 0.9, "dampening": 0.25, "nesterov": False, "weight_decay": 0.1}
    assert all(compare(*sides).holds for sides in sgd_pair(settings, *weights_and_gradients(1)))


def test_tensors_in_any_layout_are_updated_as_a_whole():
    params, gradients = weights_and_gradients(1)
    params, gradients = {"w": params["d"]}, [{"w": one["d"]} for one in gradients]
    turned = {"w": torch.nn.Parameter(torch.tensor(params["w"]).T.contiguous().T)}
    plain = live(params)
    assert not turned["w"].is_contiguous()
    pairs = (stepped(optim.Adam(weights.values(), 0.05), weights, gradients) for weights in (turned, plain))
    assert all(compare(want, found).holds for found, want in zip(*pairs, strict=True))


# Mutants, one for each arithmetic trap of an update.

UPDATE = {"learning_rate": 0.05, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.1}
ADAM_FAULTS = ADAM_FUSED | {name: parts for name, (_, parts) in ADAM_ROUNDINGS.items()}


def same_adam(adam_parts, update=UPDATE, dtype=np.float32):
    """Whether plain updates with some parts replaced are the reference's, at each of four steps."""
    params, gradients = weights_and_gradients(1, steps=4, dtype=dtype)
    impl = plain_port(optim, adam_parts)
    return all(compare(*sides).holds for sides in adam_pair(update, False, False, params, gradients, impl))


@pytest.mark.parametrize("name", ADAM_FAULTS)
def test_an_update_with_another_operation_is_told_apart(name):
    assert same_adam({})
    same = same_adam(ADAM_FAULTS[name])
    if same and torch.backends.cpu.get_cpu_capability() == "DEFAULT" and name in ADAM_FUSED:
        pytest.skip(f"{name}: not exercised, these kernels do not fuse")
    assert not same


def test_an_update_with_the_stock_root_is_told_apart():
    params, gradients = weights_and_gradients(1, steps=4)
    ops = arithmetic.REPRODUCIBLE._replace(sqrt=torch.sqrt)
    assert not all(compare(*sides).holds for sides in adam_pair(UPDATE, False, False, params, gradients, ops=ops))


def test_a_float16_update_with_python_scalars_is_told_apart():
    scalars = {
        name: lambda *given, part=part: part(*given[:-1], given[-1]._replace(real=float))
        for name, part in ADAM.items()
        if name != "largest"
    }
    settings = UPDATE | {"eps": 1e-3}
    assert same_adam({}, settings, np.float16)
    assert not same_adam(scalars, settings, np.float16)


@pytest.mark.parametrize("name", SGD_MISTAKES)
def test_an_update_of_sgd_with_a_mistake_is_told_apart(name):
    settings, parts = SGD_MISTAKES[name]
    settings = {"learning_rate": 0.05, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0} | settings
    for replaced, sound in (({}, True), (parts, False)):
        sides = sgd_pair(settings, *weights_and_gradients(1), plain_port(optim, sgd_parts=replaced))
        assert all(compare(*pair).holds for pair in sides) == sound


# State dicts


def test_a_stock_optimizer_loads_the_ports_state_and_goes_on_and_back():
    params, gradients = weights_and_gradients(1, steps=3)
    for ours, stock, options in (
        (optim.Adam, torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (optim.AdamW, torch.optim.AdamW, {"lr": 0.01}),
        (optim.SGD, torch.optim.SGD, {"lr": 0.01, "momentum": 0.9}),
    ):
        weights = live(params)
        optimizer = ours(weights.values(), **options)
        list(stepped(optimizer, weights, gradients))
        saved = optimizer.state_dict()
        other = stock(weights.values(), **options)
        list(stepped(other, weights, gradients))  # so that its own keys are there
        assert set(other.state_dict()["state"][0]) <= set(saved["state"][0])
        assert set(saved["state"][0]) - set(other.state_dict()["state"][0]) <= {"step"}  # stock SGD does not count
        other.load_state_dict(copy.deepcopy(saved))
        list(stepped(other, weights, gradients))
        again = ours(weights.values(), **options)
        again.load_state_dict(saved)
        assert int(again.state[weights["a"]]["step"]) == 3


@pytest.mark.parametrize("kind", ["Adam", "SGD"])
def test_a_loaded_dictionary_does_not_follow_the_optimizer_as_it_follows_a_stock_one(kind):
    params, gradients = weights_and_gradients(1, steps=2)
    options = {"lr": 0.01} | ({"momentum": 0.9} if kind == "SGD" else {})
    changed = {}
    for module in (optim, torch.optim):
        weights = live(params)
        optimizer = getattr(optim, kind)(weights.values(), **options)
        list(stepped(optimizer, weights, gradients))
        saved = copy.deepcopy(optimizer.state_dict())
        before = copy.deepcopy(saved)
        other = getattr(module, kind)(weights.values(), **options)
        other.load_state_dict(saved)
        list(stepped(other, weights, gradients))
        changed[module.__name__] = not all(
            torch.equal(x, before["state"][i][key]) for i, entry in saved["state"].items() for key, x in entry.items()
        )
    assert changed == {"torch_port.optim": False, "torch.optim": True}


def test_stock_sgd_state_without_a_count_is_refused():
    params, gradients = weights_and_gradients(1, steps=1)
    weights = live(params)
    stock = torch.optim.SGD(weights.values(), lr=0.1, momentum=0.9)
    list(stepped(stock, weights, gradients))
    optimizer = optim.SGD(weights.values(), lr=0.1, momentum=0.9)
    optimizer.load_state_dict(stock.state_dict())
    with pytest.raises(ValueError, match="stock SGD does not count"):
        list(stepped(optimizer, weights, gradients))


def test_the_count_of_steps_is_exact_where_float32s_is_not():
    params, gradients = weights_and_gradients(1, steps=1)
    weights = live(params)
    optimizer = optim.Adam(weights.values())
    list(stepped(optimizer, weights, gradients))
    saved = optimizer.state_dict()
    for entry in saved["state"].values():
        entry["step"] = torch.full_like(entry["step"], 2**24)
    optimizer.load_state_dict(saved)
    list(stepped(optimizer, weights, gradients))
    assert int(optimizer.state[weights["a"]]["step"]) == 2**24 + 1 != int(torch.tensor(2.0**24) + 1)


def test_a_parameter_without_a_gradient_is_refused_by_its_place():
    weights = live(weights_and_gradients(1)[0])
    for optimizer in (optim.Adam(weights.values()), optim.SGD(weights.values())):
        with pytest.raises(ValueError, match=r"found none for those at \[0, 1, 2, 3\]"):
            optimizer.step()


@pytest.mark.parametrize("kind", [optim.Adam, optim.SGD])
def test_what_the_rule_does_not_have_is_refused_rather_than_ignored(kind):
    w = torch.nn.Parameter(torch.ones(2))
    w.grad = torch.ones(2)
    optimizer = kind([w], lr=0.1)
    optimizer.param_groups[0]["maximize"] = True
    with pytest.raises(ValueError, match="maximize: expected False, found True"):
        optimizer.step()
    optimizer.param_groups[0]["maximize"] = False
    w.grad = torch.ones(2).to_sparse()
    with pytest.raises(ValueError, match=r"expected a dense gradient .* found none for those at \[0\]"):
        optimizer.step()
    assert w.tolist() == [1.0, 1.0]


def test_a_closure_is_evaluated_with_gradients_before_the_step():
    for kind in (optim.Adam, optim.SGD):
        w = torch.nn.Parameter(torch.ones(1))
        optimizer = kind([w], lr=0.5)

        def closure(w=w, optimizer=optimizer):
            optimizer.zero_grad()
            loss = (w * w).sum()
            loss.backward()
            return loss

        assert float(optimizer.step(closure).detach()) == 1.0
        assert float(w.detach()) < 1


# Schedules


@given(
    st.sampled_from(["constant", "step", "warmup_cosine"]),
    st.sampled_from([0.05, 1e-3, 0.1]),
    st.integers(1, 5),
    st.sampled_from([0.5, 0.9, 1.1]),
    st.integers(0, 5),
    st.integers(6, 20),
)
def test_a_schedule_gives_the_references_rates(kind, rate, step_size, gamma, warmup_steps, total_steps):
    settings = {
        "step_size": step_size,
        "gamma": gamma,
        "warmup_steps": warmup_steps,
        "total_steps": total_steps,
    }
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([w], lr=rate)
    schedule = optim.init_schedule(optimizer, kind, **settings)
    state = reference.init_schedule(kind, learning_rate=rate, warmup_steps=warmup_steps, total_steps=total_steps)
    for _ in range(25):
        assert (schedule.last_epoch, optimizer.param_groups[0]["lr"]) == tuple(state)
        w.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        state = reference.schedule_step(state, kind, learning_rate=rate, **settings)


def test_the_closed_form_of_a_step_schedule_is_told_apart():
    w = torch.nn.Parameter(torch.ones(1))
    optimizer = optim.SGD([w], lr=0.1)
    schedule = optim.init_schedule(optimizer, "step", step_size=1, gamma=0.9)
    rates = []
    for _ in range(20):
        w.grad = torch.ones(1)
        optimizer.step()
        schedule.step()
        rates.append(optimizer.param_groups[0]["lr"])
    assert rates != [0.1 * 0.9**k for k in range(1, 21)]
