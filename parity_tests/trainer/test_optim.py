"""The optimizers' steps against exact rationals, against each operation rounded once, and against torch."""

from fractions import Fraction
from itertools import product as combinations

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from numpy_ref import optim
from numpy_ref.arithmetic.operations import NATIVE, REPRODUCIBLE
from numpy_ref.proof.boundary import row_named
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.tree import flatten
from parity_tests.oracles import same_bytes
from parity_tests.singles import Single, floats, singles
from parity_tests.trainer import updates
from parity_tests.trainer.updates import (
    ADAM_MISTAKES,
    ADAM_ROUNDINGS,
    RATE_IN_THE_BUFFER,
    SGD_MISTAKES,
    plain_reference,
)

STEPS = 3
ADAM = [
    {"amsgrad": amsgrad, "decoupled": decoupled, "weight_decay": decay, "learning_rate": 0.1, **decays}
    for amsgrad, decoupled, decay in combinations((False, True), (False, True), (0.0, 0.1))
    for decays in ({}, {"beta1": 0.5, "beta2": 0.5, "eps": 1e-3}, {"beta1": 0.0, "beta2": 0.9})
]
SGD = [
    {"momentum": momentum, "dampening": dampening, "nesterov": nesterov, "weight_decay": decay, "learning_rate": 0.1}
    for momentum, dampening, nesterov, decay in combinations((0.0, 0.9), (0.0, 0.25), (False, True), (0.0, 0.1))
    if not nesterov or (momentum and not dampening)
]


def name_of(settings):
    return "-".join(f"{name}={value}" for name, value in settings.items() if value and name != "learning_rate")


def weights_and_gradients(seed, size=7, steps=STEPS):
    """Weights and gradients of order 1 that neither vanish nor cancel: the condition of the boundary's row."""
    rng = np.random.default_rng(seed)

    def numbers(low):
        return {
            "a": (rng.uniform(low, 2, size) * rng.choice([-1, 1], size)).astype(np.float32),
            "b": (rng.uniform(low, 2, (2, 3)) * rng.choice([-1, 1], (2, 3))).astype(np.float32),
        }

    return numbers(1), [numbers(0.5) for _ in range(steps)]


def run_adam(params, gradients, settings, *, impl=optim, ops=REPRODUCIBLE):
    """Parameters and states after each step."""
    settings = dict(settings)
    state = impl.init_adam(params, amsgrad=settings.pop("amsgrad"))
    out = []
    for grads in gradients:
        params, state = impl.adam_step(params, state, grads, ops, **settings)
        out.append({"params": params, "state": state})
    return out


def run_sgd(params, gradients, settings, *, impl=optim):
    state = impl.init_sgd(params, momentum=settings["momentum"])
    out = []
    for grads in gradients:
        params, state = impl.sgd_step(params, state, grads, **settings)
        out.append({"params": params, "state": state})
    return out


# The same formulas, in exact rationals and in numbers of another kind


def root(x):
    """A square root to 300 bits."""
    with mpmath.workprec(400):
        return Fraction(int(mpmath.floor(mpmath.sqrt(mpmath.mpf(x.numerator) / x.denominator) * 2**300)), 2**300)


def exact_adam(w, grads, *, learning_rate, amsgrad, decoupled, weight_decay, beta1=0.9, beta2=0.999, eps=1e-8):
    """One weight's values after each step, nothing rounded but the square root to 300 bits."""
    rate, decay, b1, b2, tiny = (Fraction(x) for x in (learning_rate, weight_decay, beta1, beta2, eps))
    m = v = largest = Fraction(0)
    for t, g in enumerate(grads, 1):
        if decoupled:
            w = w * (1 - rate * decay)
        else:
            g = g + decay * w
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        largest = max(largest, v) if amsgrad else v
        w = w - rate * (m / (1 - b1**t)) / (root(largest / (1 - b2**t)) + tiny)
        yield w


def exact_sgd(w, grads, *, learning_rate, momentum, dampening, nesterov, weight_decay):
    rate, mu, damp, decay = (Fraction(x) for x in (learning_rate, momentum, dampening, weight_decay))
    b = None
    for g in grads:
        g = g + decay * w
        b = g if b is None or not momentum else mu * b + (1 - damp) * g
        w = w - rate * (g + mu * b if nesterov else b)
        yield w


def exact_steps(rule, params, gradients, settings):
    """What `rule` gives for every weight, as float64 arrays, one tree a step."""
    out = [{name: np.empty(w.shape) for name, w in params.items()} for _ in gradients]
    for name, w in params.items():
        for place in np.ndindex(w.shape):
            grads = [Fraction(float(g[name][place])) for g in gradients]
            for step, value in enumerate(rule(Fraction(float(w[place])), grads, **settings)):
                out[step][name][place] = float(value)
    return out


def widened(params):
    return {name: w.astype(np.float64) for name, w in params.items()}


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("settings", ADAM, ids=name_of)
def test_steps_equal_exact_rationals(settings, seed):
    params, gradients = weights_and_gradients(seed)
    exact = exact_steps(exact_adam, params, gradients, settings)
    for expected, found in zip(exact, run_adam(params, gradients, settings), strict=True):
        verdict = compare(expected, widened(found["params"]), tolerance=row_named("exact steps").tolerance)
        assert verdict.holds, verdict


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("settings", SGD, ids=name_of)
def test_steps_of_sgd_equal_exact_rationals(settings, seed):
    params, gradients = weights_and_gradients(seed)
    exact = exact_steps(exact_sgd, params, gradients, settings)
    for expected, found in zip(exact, run_sgd(params, gradients, settings), strict=True):
        verdict = compare(expected, widened(found["params"]), tolerance=row_named("exact steps").tolerance)
        assert verdict.holds, verdict


@pytest.mark.parametrize("settings", [*ADAM, *SGD], ids=name_of)
def test_steps_are_those_of_torch_in_float64(settings):
    torch = pytest.importorskip("torch", reason="torch is missing: the steps cannot be compared with its optimizers")
    params, gradients = weights_and_gradients(9)
    live = {name: torch.tensor(w, dtype=torch.float64, requires_grad=True) for name, w in params.items()}
    keywords = {{"learning_rate": "lr"}.get(name, name): value for name, value in settings.items()}
    if "momentum" in settings:
        optimizer = torch.optim.SGD(live.values(), **keywords)
        found = run_sgd(params, gradients, settings)
    else:
        decoupled = keywords.pop("decoupled")
        betas = keywords.pop("beta1", 0.9), keywords.pop("beta2", 0.999)
        optimizer = (torch.optim.AdamW if decoupled else torch.optim.Adam)(live.values(), betas=betas, **keywords)
        found = run_adam(params, gradients, settings)
    for grads, ours in zip(gradients, found, strict=True):
        for name, w in live.items():
            w.grad = torch.tensor(grads[name], dtype=torch.float64)
        optimizer.step()
        theirs = {name: w.detach().numpy() for name, w in live.items()}
        verdict = compare(theirs, widened(ours["params"]), tolerance=row_named("exact steps").tolerance)
        assert verdict.holds, verdict


# Each operation rounded once


def single_adam(w, g, m, v, largest, t, *, learning_rate, amsgrad, decoupled, weight_decay, beta1, beta2, eps):
    """One weight's step in numbers that round to float32 after every operation; coefficients go through float64."""
    correction1 = Single(1 - float(Fraction(beta1) ** t))
    correction2 = Single(1 - float(Fraction(beta2) ** t))
    if weight_decay and decoupled:
        w = w * Single(1 - learning_rate * weight_decay)
    if weight_decay and not decoupled:
        g = g + Single(weight_decay) * w
    m = Single(beta1) * m + Single(1 - beta1) * g
    v = Single(beta2) * v + Single(1 - beta2) * (g * g)
    if amsgrad and v.value > largest.value:
        largest = v
    divisor = ((largest if amsgrad else v) / correction2).apply("sqrt") + Single(eps)
    return w - (Single(learning_rate) * (m / correction1)) / divisor, m, v, largest


def single_sgd(w, g, b, t, *, learning_rate, momentum, dampening, nesterov, weight_decay):
    if weight_decay:
        g = g + Single(weight_decay) * w
    if not momentum:
        return w - Single(learning_rate) * g, b
    b = g if t == 1 else Single(momentum) * b + Single(1 - dampening) * g
    return w - Single(learning_rate) * (g + Single(momentum) * b if nesterov else b), b


def rounded_adam(params, gradients, settings):
    settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8} | settings
    now = {name: [singles(w)] + [singles(np.zeros_like(w)) for _ in range(3)] for name, w in params.items()}
    for t, grads in enumerate(gradients, 1):
        for name, (w, m, v, largest) in now.items():
            for place in np.ndindex(w.shape):
                g = Single(float(grads[name][place]))
                w[place], m[place], v[place], largest[place] = single_adam(
                    w[place], g, m[place], v[place], largest[place], t, **settings
                )
        params, m, v, largest = ({name: floats(arrays[i]) for name, arrays in now.items()} for i in range(4))
        yield {"params": params, "state": optim.AdamState(t, m, v, largest if settings["amsgrad"] else {})}


def rounded_sgd(params, gradients, settings):
    now = {name: [singles(w), singles(np.zeros_like(w))] for name, w in params.items()}
    for t, grads in enumerate(gradients, 1):
        for name, (w, b) in now.items():
            for place in np.ndindex(w.shape):
                w[place], b[place] = single_sgd(w[place], Single(float(grads[name][place])), b[place], t, **settings)
        params, b = ({name: floats(arrays[i]) for name, arrays in now.items()} for i in range(2))
        yield {"params": params, "state": optim.SGDState(t, b if settings["momentum"] else {})}


def awkward(seed, size=5, steps=STEPS):
    """Weights and gradients over many decades, zeros of both signs among them."""
    rng = np.random.default_rng(seed)

    def numbers():
        x = np.ldexp(rng.standard_normal(size), rng.integers(-20, 3, size)).astype(np.float32)
        return {"w": np.where(rng.random(size) < 0.2, rng.choice([0.0, -0.0], size), x).astype(np.float32)}

    return numbers(), [numbers() for _ in range(steps)]


@pytest.mark.parametrize("settings", ADAM, ids=name_of)
@hypothesis_settings(max_examples=hypothesis_settings().max_examples // 3)
@given(seed=st.integers(0, 2**32 - 1))
def test_steps_are_the_formulas_rounded_once_an_operation(settings, seed):
    params, gradients = awkward(seed, size=2)
    found = run_adam(params, gradients, settings)
    for ours, theirs in zip(found, rounded_adam(params, gradients, settings), strict=True):
        verdict = compare(theirs, ours)
        assert verdict.holds, verdict


@pytest.mark.parametrize("settings", SGD, ids=name_of)
@hypothesis_settings(max_examples=hypothesis_settings().max_examples // 3)
@given(seed=st.integers(0, 2**32 - 1))
def test_steps_of_sgd_are_the_formulas_rounded_once_an_operation(settings, seed):
    params, gradients = awkward(seed, size=2)
    found = run_sgd(params, gradients, settings)
    for ours, theirs in zip(found, rounded_sgd(params, gradients, settings), strict=True):
        verdict = compare(theirs, ours)
        assert verdict.holds, verdict


def test_many_steps_and_a_long_vector_are_the_formulas_rounded_once_an_operation():
    settings = {"amsgrad": True, "decoupled": True, "weight_decay": 0.01, "learning_rate": 1e-3}
    params, gradients = awkward(1, size=131, steps=2)  # beyond the vector width
    for ours, theirs in zip(
        run_adam(params, gradients, settings), rounded_adam(params, gradients, settings), strict=True
    ):
        assert compare(theirs, ours).holds
    params, gradients = awkward(2, size=1, steps=100)  # powers of beta far beyond the first ones
    found = run_adam(params, gradients, settings)[-1]
    assert compare(list(rounded_adam(params, gradients, settings))[-1], found).holds


def only_params(steps):
    """The weights after each step, without the state."""
    return {str(i): step["params"] for i, step in enumerate(steps)}


PLAIN = {"amsgrad": False, "decoupled": False, "weight_decay": 0.0, "learning_rate": 0.1}
DAMPED = {"momentum": 0.9, "dampening": 0.25, "nesterov": False, "weight_decay": 0.0, "learning_rate": 0.1}
PLAIN_SGD = {"momentum": 0.0, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0, "learning_rate": 0.1}
ADAM_FAULTS = ADAM_MISTAKES | ADAM_ROUNDINGS
SGD_FAULTS = SGD_MISTAKES | {"rate in the buffer": (updates.DAMPED, {"buffer": RATE_IN_THE_BUFFER})}


@pytest.mark.parametrize(("settings", "parts"), ADAM_FAULTS.values(), ids=ADAM_FAULTS)
def test_a_fault_in_adam_is_told_apart_by_its_bits(settings, parts):
    params, gradients = weights_and_gradients(1)
    settings = PLAIN | settings
    if settings["amsgrad"]:
        gradients[1:] = [{name: g / 8 for name, g in grads.items()} for grads in gradients[1:]]
    expected = only_params(rounded_adam(params, gradients, settings))
    for impl, sound in ((optim, True), (plain_reference(), True), (plain_reference(adam_parts=parts), False)):
        assert compare(expected, only_params(run_adam(params, gradients, settings, impl=impl))).holds == sound


@pytest.mark.parametrize(("settings", "parts"), SGD_FAULTS.values(), ids=SGD_FAULTS)
def test_a_fault_in_sgd_is_told_apart_by_its_bits(settings, parts):
    params, gradients = weights_and_gradients(2)
    settings = PLAIN_SGD | settings
    expected = only_params(rounded_sgd(params, gradients, settings))
    for impl, sound in ((optim, True), (plain_reference(), True), (plain_reference(sgd_parts=parts), False)):
        assert compare(expected, only_params(run_sgd(params, gradients, settings, impl=impl))).holds == sound


# State


def test_the_first_step_of_sgd_takes_the_gradient_undamped_and_t_decides_which_is_first():
    params, (g, _, _) = weights_and_gradients(3)
    start = optim.init_sgd(params, momentum=0.5)
    assert start.t == 0
    assert all((b == 0).all() for b in start.momentum_buffer.values())
    _, first = optim.sgd_step(params, start, g, learning_rate=0.5, momentum=0.5, dampening=0.75)
    assert first.t == 1
    assert digest(first.momentum_buffer) == digest(g)
    _, later = optim.sgd_step(params, start._replace(t=1), g, learning_rate=0.5, momentum=0.5, dampening=0.75)
    assert later.t == 2
    assert digest(later.momentum_buffer) == digest({name: x * np.float32(0.25) for name, x in g.items()})


def test_sgd_without_momentum_keeps_no_buffer_and_counts_its_steps():
    params, gradients = weights_and_gradients(4)
    found = run_sgd(params, gradients, DAMPED | {"momentum": 0.0})
    assert [step["state"] for step in found] == [optim.SGDState(t, {}) for t in (1, 2, 3)]


def test_adam_keeps_the_largest_moments_only_with_amsgrad():
    params, gradients = weights_and_gradients(4)
    assert optim.init_adam(params).v_max == {}
    assert run_adam(params, gradients, PLAIN)[-1]["state"].v_max == {}
    gradients[1:] = [{name: g / 8 for name, g in grads.items()} for grads in gradients[1:]]
    states = [step["state"] for step in run_adam(params, gradients, PLAIN | {"amsgrad": True, "beta2": 0.5})]
    for name in params:
        assert (states[1].v[name] < states[0].v[name]).all()
        assert same_bytes(states[2].v_max[name], states[0].v[name])


def test_amsgrad_keeps_a_nan_once_it_is_there():
    w, g = {"w": np.ones(2, np.float32)}, np.array([np.nan, 1], np.float32)
    found = run_adam(w, [{"w": g}, {"w": np.ones(2, np.float32)}], PLAIN | {"amsgrad": True})
    assert [np.isnan(step["state"].v_max["w"]).tolist() for step in found] == [[True, False]] * 2


@pytest.mark.parametrize("settings", [*ADAM, *SGD], ids=name_of)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_step_leaves_its_arguments_as_they_are_and_shares_nothing_with_them(settings, dtype):
    params, gradients = weights_and_gradients(5)
    run, ops = (run_sgd, {}) if "momentum" in settings else (run_adam, {"ops": NATIVE})
    params = {name: w.astype(dtype) for name, w in params.items()}
    gradients = [{name: g.astype(dtype) for name, g in grads.items()} for grads in gradients]
    given = [*params.values(), *(g for grads in gradients for g in grads.values())]
    before = [array.tobytes() for array in given]
    for array in given:
        array.flags.writeable = False
    states = run(params, gradients, settings, **ops)
    assert [array.tobytes() for array in given] == before
    leaves = [flatten(step) for step in states]
    for i, step in enumerate(leaves):
        for path, leaf in step.items():
            if isinstance(leaf, np.ndarray):
                assert leaf.dtype == dtype, path
                others = given + [x for there in leaves[:i] for x in there.values() if isinstance(x, np.ndarray)]
                assert not any(np.shares_memory(leaf, other) for other in others), path


@pytest.mark.parametrize("settings", [*ADAM, *SGD], ids=name_of)
def test_a_step_from_read_only_state_does_not_write_to_it(settings):
    params, gradients = weights_and_gradients(6)
    run, step = (run_sgd, optim.sgd_step) if "momentum" in settings else (run_adam, optim.adam_step)
    tree = run(params, gradients[:1], settings)[0]
    for leaf in flatten(tree).values():
        if isinstance(leaf, np.ndarray):
            leaf.flags.writeable = False
    before = digest(tree)
    keywords = {name: value for name, value in settings.items() if name != "amsgrad"}
    ops = () if "momentum" in settings else (REPRODUCIBLE,)
    step(tree["params"], tree["state"], gradients[1], *ops, **keywords)
    assert digest(tree) == before


@pytest.mark.parametrize("settings", [PLAIN | {"amsgrad": True}, DAMPED], ids=name_of)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (3, 2, 1)])
def test_arrays_of_any_shape_stay_arrays_of_that_shape(settings, shape):
    params = {"w": np.ones(shape, np.float32)}
    run = run_sgd if "momentum" in settings else run_adam
    for step in run(params, [params] * STEPS, settings):
        for path, leaf in flatten(step).items():
            if not path.endswith("/t"):
                assert isinstance(leaf, np.ndarray), f"{path}: expected an array, found {type(leaf).__name__}"
                assert (leaf.shape, leaf.dtype) == (shape, np.float32), path


@pytest.mark.parametrize("settings", [*ADAM, *SGD], ids=name_of)
def test_a_step_in_place_writes_the_same_bits_over_the_arrays_it_is_given(settings):
    params, gradients = weights_and_gradients(8)
    run, step = (run_sgd, optim.sgd_step) if "momentum" in settings else (run_adam, optim.adam_step)
    first, second = run(params, gradients[:2], settings)
    keywords = {name: value for name, value in settings.items() if name != "amsgrad"}
    ops = () if "momentum" in settings else (REPRODUCIBLE,)
    before = flatten(first)
    new, state = step(first["params"], first["state"], gradients[1], *ops, **keywords, in_place=True)
    after = flatten({"params": new, "state": state})
    assert digest({"params": new, "state": state}) == digest(second)
    assert all(after[path] is leaf for path, leaf in before.items() if isinstance(leaf, np.ndarray))


def test_an_array_that_is_not_contiguous_is_not_written_over():
    params, gradients = weights_and_gradients(8)
    params["b"] = np.asfortranarray(params["b"])
    with pytest.raises(ValueError, match="copy"):
        optim.adam_step(params, optim.init_adam(params), gradients[0], REPRODUCIBLE, learning_rate=0.1, in_place=True)


@pytest.mark.parametrize("block", [1, 5, 7, 8])
@pytest.mark.parametrize("settings", [*ADAM, *SGD], ids=name_of)
def test_the_size_of_the_blocks_changes_no_bit(settings, block, monkeypatch):
    params, gradients = weights_and_gradients(9)
    run = run_sgd if "momentum" in settings else run_adam
    whole = digest(run(params, gradients, settings)[-1])
    monkeypatch.setattr(optim, "BLOCK", block)
    assert digest(run(params, gradients, settings)[-1]) == whole


def test_an_element_that_the_blocks_leave_out_is_seen(monkeypatch):
    real = optim._in_blocks

    def leaving_out(rule, old, grads, in_place):
        new = real(rule, old, grads, in_place)
        for name, w in new[0].items():
            w.flat[optim.BLOCK - 1 :: optim.BLOCK] = old[0][name].flat[optim.BLOCK - 1 :: optim.BLOCK]
        return new

    params, gradients = weights_and_gradients(9)
    whole = digest(run_adam(params, gradients, PLAIN)[-1])
    monkeypatch.setattr(optim, "_in_blocks", leaving_out)
    for block, some in ((1 << 15, False), (6, True), (5, True)):
        monkeypatch.setattr(optim, "BLOCK", block)
        assert (digest(run_adam(params, gradients, PLAIN)[-1]) != whole) == some


# Schedules


def rates(kind, ticks, *, impl=optim, learning_rate, **settings):
    """The rate of each update: of the first, and of those after each tick."""
    start = {name: value for name, value in settings.items() if name in ("warmup_steps", "total_steps")}
    state = impl.init_schedule(kind, learning_rate=learning_rate, **start)
    out = [state.rate]
    for tick in range(ticks):
        assert state.tick == tick
        state = impl.schedule_step(state, kind, learning_rate=learning_rate, **settings)
        out.append(state.rate)
    return out


def torch_rates(ticks, learning_rate, step_size, gamma):
    torch = pytest.importorskip("torch", reason="torch is missing: the schedule cannot be compared with its StepLR")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=learning_rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size, gamma)
    out = [optimizer.param_groups[0]["lr"]]
    for _ in range(ticks):
        optimizer.step()
        schedule.step()
        out.append(optimizer.param_groups[0]["lr"])
    return out


@given(st.floats(1e-5, 10), st.integers(1, 20), st.floats(0.05, 1.1))
def test_the_step_schedule_is_torchs_step_lr(learning_rate, step_size, gamma):
    found = rates("step", 50, learning_rate=learning_rate, step_size=step_size, gamma=gamma)
    assert found == torch_rates(50, learning_rate, step_size, gamma)  # every bit: rates are never NaN or zero


STEP_FAULTS = {  # of the rate, from the tick, the rate before and the settings
    "closed form": lambda tick, rate, start, size, gamma: start * gamma ** (tick // size),
    "a tick late": lambda tick, rate, start, size, gamma: rate if (tick - 1) % size else rate * gamma,
    "another period": lambda tick, rate, start, size, gamma: rate if tick % (size + 1) else rate * gamma,
    "tick lost": lambda tick, rate, start, size, gamma: rate,
}


@pytest.mark.parametrize("name", STEP_FAULTS)
def test_another_step_schedule_is_told_apart(name):
    found = [0.1]
    for tick in range(1, 51):
        found.append(STEP_FAULTS[name](tick, found[-1], 0.1, 3, 0.7))
    assert found != torch_rates(50, 0.1, 3, 0.7) == rates("step", 50, learning_rate=0.1, step_size=3, gamma=0.7)


def once(q):
    """A rational rounded once to float64, as a rational."""
    return Fraction(float(q))


def exact_cosine(n, d):
    """cos(pi n / d) rounded once to float64."""
    with mpmath.workprec(400):
        return once(Fraction(int(mpmath.nint(mpmath.cos(mpmath.pi * n / d) * 2**300)), 2**300))


def warmup_cosine(tick, learning_rate, warmup_steps, total_steps):
    """The documented formula, every operation rounded once to float64."""
    rate = Fraction(learning_rate)
    if tick < warmup_steps:
        return float(once(rate * (tick + 1)) / warmup_steps)
    if tick >= total_steps:
        return 0.0
    cosine = exact_cosine(tick - warmup_steps, total_steps - warmup_steps)
    return float(once(rate * once(1 + cosine)) / 2)


@st.composite
def warmups(draw):
    warmup_steps = draw(st.integers(0, 20))
    return draw(st.floats(1e-5, 10)), warmup_steps, warmup_steps + draw(st.one_of(st.integers(1, 40), st.just(997)))


@given(warmups())
def test_warmup_cosine_is_its_formula_rounded_once_an_operation(drawn):
    learning_rate, warmup_steps, total_steps = drawn
    ticks = min(total_steps, 70) + 5
    found = rates(
        "warmup_cosine", ticks, learning_rate=learning_rate, warmup_steps=warmup_steps, total_steps=total_steps
    )
    assert found == [warmup_cosine(tick, *drawn) for tick in range(ticks + 1)]
    assert found[warmup_steps] == learning_rate
    assert found[:warmup_steps] == sorted(found[:warmup_steps])
    assert found[warmup_steps:] == sorted(found[warmup_steps:], reverse=True)
    assert all(rate == 0 for rate in found[total_steps:])
    assert (np.array(found[:total_steps]) > 0).all()


COSINE_FAULTS = {  # of the rates, from the tick, the rate and both ends
    "from zero": lambda tick, rate, warm, end: warmup_cosine(tick - 1, rate, warm, end) if 0 < tick < warm else None,
    "quotient first": lambda tick, rate, warm, end: rate * ((tick + 1) / warm) if tick < warm else None,
    "longer": lambda tick, rate, warm, end: warmup_cosine(tick, rate, warm, end + warm) if tick >= warm else None,
    "for ever": lambda tick, rate, warm, end: rate if tick == end else None,
}


@pytest.mark.parametrize("name", COSINE_FAULTS)
def test_another_warmup_cosine_is_told_apart(name):
    expected = rates("warmup_cosine", 25, learning_rate=0.1, warmup_steps=6, total_steps=20)
    wrong = [COSINE_FAULTS[name](tick, 0.1, 6, 20) for tick in range(26)]
    found = [right if rate is None else rate for rate, right in zip(wrong, expected, strict=True)]
    assert found != [warmup_cosine(tick, 0.1, 6, 20) for tick in range(26)] == expected


@given(st.floats(1e-5, 10), st.integers(1, 20))
def test_the_constant_schedule_counts_and_keeps_the_rate(learning_rate, step_size):
    assert rates("constant", 30, learning_rate=learning_rate, step_size=step_size) == [learning_rate] * 31
