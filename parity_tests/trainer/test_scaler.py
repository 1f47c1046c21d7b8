"""Loss scaling: its laws, and the same bits as stock torch.amp.GradScaler over drawn sequences of gradients."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref.cli.number_line import cast_to_dtype
from numpy_ref.optim import (
    ScalerState,
    decode_scaler,
    encode_scaler,
    has_inf_or_nan,
    init_scaler,
    scaler_step,
    unscale_gradients,
)
from parity_tests.oracles import same_bytes
from parity_tests.strategies import numbers

SIZES = (1, 7, 64, 1003)
LARGEST, SMALLEST = float(np.finfo(np.float32).max), 2.0**-149
NON_FINITE = (np.inf, -np.inf, np.nan)


@st.composite
def scalings(draw):
    """Settings, an initial scale, and gradients: some finite in every element, some with one element that is not."""
    settings = {
        "growth_factor": draw(st.sampled_from([2.0, 1.5, 1.1, 1e30])),
        "backoff_factor": draw(st.sampled_from([0.5, 0.3, 0.999])),
        "growth_interval": draw(st.integers(1, 4)),
    }
    scale = draw(st.sampled_from([2.0**16, 1.0, 3.0, 1e5 + 0.1, 0.7, SMALLEST, LARGEST, LARGEST / 2]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    steps = []
    for kind in draw(st.lists(st.sampled_from(["finite", "finite", *NON_FINITE]), min_size=1, max_size=9)):
        grads = {f"w{n}": numbers(rng, draw(st.sampled_from(["normal", "wide", "bits"])), (n,)) for n in SIZES}
        if kind != "finite":
            array = grads[f"w{draw(st.sampled_from(SIZES))}"]
            array[rng.integers(array.size)] = kind
        steps.append(grads)
    return SimpleNamespace(settings=settings, scale=scale, steps=steps, reload=draw(st.integers(0, len(steps) - 1)))


RULES = SimpleNamespace(
    init_scaler=init_scaler, unscale_gradients=unscale_gradients, has_inf_or_nan=has_inf_or_nan, scaler_step=scaler_step
)


def records(case, impl=RULES):
    """What each step leaves: weights, unscaled gradients, a scaled loss, and the state."""
    state = impl.init_scaler(init_scale=case.scale)
    params = {name: np.zeros_like(g) for name, g in case.steps[0].items()}
    for grads in case.steps:
        with np.errstate(all="ignore"):
            scaled_loss = np.float32(0.3) * np.float32(state.scale)
        unscaled = impl.unscale_gradients(grads, state.scale)
        found_inf = impl.has_inf_or_nan(grads)
        if not found_inf:
            with np.errstate(all="ignore"):
                params = {name: w - unscaled[name] for name, w in params.items()}
        state = impl.scaler_step(state, found_inf, **case.settings)
        yield params, unscaled, scaled_loss, state


def stock_records(case):
    """The same from torch.amp.GradScaler, replaced before one step by a fresh one that loads its state."""
    torch = pytest.importorskip("torch", reason="torch is missing: its GradScaler cannot be compared")
    scaler = torch.amp.GradScaler("cpu", init_scale=case.scale, **case.settings)
    live = {name: torch.zeros(g.shape, requires_grad=True) for name, g in case.steps[0].items()}
    optimizer = torch.optim.SGD(live.values(), lr=1.0, foreach=False)
    for i, grads in enumerate(case.steps):
        if i == case.reload:
            state = scaler.state_dict()
            scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
            scaler.load_state_dict(state)  # before its first use: its scale is no tensor yet
        scaled_loss = scaler.scale(torch.tensor(0.3)).numpy()
        for name, w in live.items():
            w.grad = torch.tensor(grads[name])
        scaler.unscale_(optimizer)
        unscaled = {name: w.grad.numpy().copy() for name, w in live.items()}
        scaler.step(optimizer)
        scaler.update()
        params = {name: w.detach().numpy().copy() for name, w in live.items()}
        state = scaler.state_dict()
        yield params, unscaled, scaled_loss, ScalerState(state["scale"], state["_growth_tracker"])


def same(a, b):
    """Equal bits throughout one step's record."""
    arrays = all(same_bytes(a[i][name], b[i][name]) for i in (0, 1) for name in a[0])
    return arrays and same_bytes(a[2], b[2]) and a[3] == b[3]


def agree(case, impl=RULES):
    return all(map(same, stock_records(case), records(case, impl)))


@given(case=scalings())
def test_every_step_has_the_bits_of_torchs_scaler(case):
    for theirs, ours in zip(stock_records(case), records(case), strict=True):
        assert same(theirs, ours), (theirs[3], ours[3])


def scripted(kinds, *, scale):
    """Gradients 0.7, 1.4, 2.1, ... where a step's kind is "finite", else that kind in every element."""

    def gradient(kind, n):
        whole = np.arange(1, n + 1, dtype=np.float32) * np.float32(0.7)
        return whole if kind == "finite" else np.full_like(whole, kind)

    steps = [{f"w{n}": gradient(kind, n) for n in SIZES} for kind in kinds]
    return SimpleNamespace(settings={"growth_interval": 2}, scale=scale, steps=steps, reload=0)


UP, DOWN = ["finite"] * 4, [np.inf] * 3


def then(change):
    """A step that ends otherwise: change(state before, state after, whether a gradient overflowed)."""

    def step(state, found_inf, **settings):
        return change(state, scaler_step(state, found_inf, **settings), found_inf)

    return {"scaler_step": step}


def refused(old, new, found_inf):
    """Whether the scale would have grown beyond float32."""
    return not found_inf and new.growth_tracker == 0 and new.scale == old.scale


def later(state, found_inf, *, growth_interval, **settings):
    return scaler_step(state, found_inf, growth_interval=growth_interval + 1, **settings)


def wide_step(state, found_inf, **settings):
    return ScalerState(state.scale * (0.5 if found_inf else 1), 0)


def divided(gradients, scale):
    return {name: g / np.float32(scale) for name, g in gradients.items()}


def found_by(test):
    return {"has_inf_or_nan": lambda gradients: any(test(g).any() for g in gradients.values())}


FAULTS = {  # kinds of steps, a scale, and functions in place of others
    "a floor at 1": (DOWN, 1.0, then(lambda old, new, bad: new._replace(scale=max(1.0, new.scale)))),
    "growth without finite check": (
        UP[:2],
        LARGEST,
        then(lambda old, new, bad: new._replace(scale=np.inf) if refused(old, new, bad) else new),
    ),
    "tracker kept when growth is refused": (
        UP,
        LARGEST,
        then(lambda old, new, bad: old if refused(old, new, bad) else new),
    ),
    "tracker not reset on overflow": (
        ["finite", np.nan, "finite"],
        8.0,
        then(lambda old, new, bad: new._replace(growth_tracker=old.growth_tracker) if bad else new),
    ),
    "interval off by one": (UP, 8.0, {"scaler_step": later}),
    "tracker not reset by growth": (
        UP,
        8.0,
        then(lambda old, new, bad: new if bad else new._replace(growth_tracker=old.growth_tracker + 1)),
    ),
    "infinity overlooked": (["finite", -np.inf], 8.0, found_by(np.isnan)),
    "NaN overlooked": (["finite", np.nan], 8.0, found_by(np.isinf)),
    "divided": (UP, 3.0, {"unscale_gradients": divided}),
    "scale in float64": (
        DOWN,
        1e5 + 0.1,
        {"init_scaler": lambda init_scale: ScalerState(init_scale, 0), "scaler_step": wide_step},
    ),
}


@pytest.mark.parametrize(("kinds", "scale", "functions"), FAULTS.values(), ids=FAULTS)
def test_a_fault_in_the_rules_is_told_from_torchs_scaler(kinds, scale, functions):
    case = scripted(kinds, scale=scale)
    assert agree(case)
    assert not agree(case, SimpleNamespace(**vars(RULES) | functions))


# Laws


@given(
    grads=st.lists(st.integers(0, 2**32 - 1), max_size=3), place=st.integers(0, 1002), bad=st.sampled_from(NON_FINITE)
)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_one_bad_element_anywhere_is_found_and_the_answer_is_a_bool(dtype, grads, place, bad):
    arrays = [numbers(np.random.default_rng(seed), "normal", (1003,), dtype) for seed in grads]
    assert has_inf_or_nan(arrays) is False
    assert has_inf_or_nan(dict(enumerate(arrays))) is False
    if arrays:
        arrays[-1][place] = bad
        assert has_inf_or_nan(arrays) is True
        assert has_inf_or_nan(dict(enumerate(arrays))) is True


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@given(seed=st.integers(0, 2**32 - 1), power=st.integers(-8, 8), container=st.sampled_from(["list", "dict"]))
def test_unscaling_undoes_scaling_by_a_power_of_two_and_keeps_shapes_types_and_arguments(dtype, seed, power, container):
    rng, scale = np.random.default_rng(seed), 2.0**power
    grads = {str(shape): numbers(rng, "signs", shape, dtype) for shape in ((), (0,), (1,), (7, 9), (2, 0))}
    given = {name: np.asarray(g * dtype(scale)) for name, g in grads.items()}
    before = {name: g.tobytes() for name, g in given.items()}
    for g in given.values():
        g.flags.writeable = False
    if container == "list":
        found = unscale_gradients(list(given.values()), scale)
        assert type(found) is list
        found = dict(zip(given, found, strict=True))
    else:
        found = unscale_gradients(given, scale)
    for name, g in grads.items():
        assert isinstance(found[name], np.ndarray)
        assert same_bytes(found[name], g)
        assert not np.shares_memory(found[name], given[name])
        assert given[name].tobytes() == before[name]


def test_a_scale_of_1_is_the_identity_and_still_copies():
    g = np.array([1.5, -0.0, np.inf], np.float32)
    (found,) = unscale_gradients([g], 1.0)
    assert same_bytes(found, g)
    assert not np.shares_memory(found, g)


def test_float16_is_unscaled_with_one_rounding_through_float32():
    g = np.arange(1, 2048, dtype=np.float16)
    (found,) = unscale_gradients([g], 3.0)
    assert same_bytes(found, (g.astype(np.float32) * np.float32(1 / 3)).astype(np.float16))
    assert not same_bytes(found, g * np.float16(1 / 3))


@given(
    scale=st.floats(SMALLEST, LARGEST, width=32),
    found=st.lists(st.booleans(), max_size=40),
    interval=st.integers(1, 5),
)
@example(scale=SMALLEST, found=[True], interval=1)
def test_the_scale_stays_a_finite_float32_and_the_tracker_below_the_interval(scale, found, interval):
    state = ScalerState(scale, 0)
    for found_inf in found:
        state = scaler_step(state, found_inf, growth_interval=interval)
        assert type(state.scale) is float
        assert type(state.growth_tracker) is int
        assert state.scale == float(np.float32(state.scale)) < np.inf
        assert 0 <= state.growth_tracker < interval


def test_the_scale_falls_below_1_and_at_last_to_0_and_a_zero_scale_makes_no_warning():
    state = ScalerState(1.0, 0)
    for _ in range(150):
        state = scaler_step(state, True)
    assert state == ScalerState(0.0, 0)
    assert np.isnan(unscale_gradients([np.zeros(1, np.float32)], state.scale)[0]).all()


def test_a_tracker_beyond_a_shortened_interval_never_meets_it_as_in_torch():
    torch = pytest.importorskip("torch", reason="torch is missing: its GradScaler cannot be compared")
    scaler = torch.amp.GradScaler("cpu", growth_interval=3)
    scaler.load_state_dict(scaler.state_dict() | {"_growth_tracker": 7})
    w = torch.zeros(1, requires_grad=True)
    optimizer, state = torch.optim.SGD([w], lr=1.0), ScalerState(2.0**16, 7)
    for _ in range(4):
        scaler.scale(torch.ones(()))
        w.grad = torch.ones(1)
        scaler.step(optimizer)
        scaler.update()
        state = scaler_step(state, False, growth_interval=3)
        assert state == ScalerState(scaler.get_scale(), scaler.state_dict()["_growth_tracker"])


@pytest.mark.parametrize("scale", [0.0, -1.0, np.inf, np.nan, 1e39, 1e-60])
def test_a_scale_that_is_none_in_float32_is_refused(scale):
    with pytest.raises(ValueError, match="init_scaler: init_scale: expected a number > 0, finite in float32, found "):
        init_scaler(init_scale=scale)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"growth_factor": 1.0}, "growth_factor: expected a number > 1, found 1.0"),
        ({"growth_factor": np.nan}, "growth_factor: expected a number > 1, found nan"),
        ({"backoff_factor": 1.0}, r"backoff_factor: expected a number in \(0, 1\), found 1.0"),
        ({"backoff_factor": 0.0}, r"backoff_factor: expected a number in \(0, 1\), found 0.0"),
        ({"growth_interval": 0}, "growth_interval: expected an integer from 1 to .* found 0"),
        ({"growth_interval": 2.5}, "growth_interval: expected an integer from 1 to .* found 2.5"),
    ],
)
def test_a_setting_out_of_range_is_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        scaler_step(init_scaler(), False, **setting)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: init_scaler(init_scale="a"), ValueError, "init_scaler: init_scale: expected a number, found 'a'"),
        (lambda: init_scaler(init_scale=True), ValueError, "init_scaler: init_scale: expected a number, found True"),
        (lambda: init_scaler(init_scale=10**400), ValueError, "init_scaler: init_scale: expected a number > 0, finite"),
        (lambda: unscale_gradients([], "a"), ValueError, "scale: expected a number, found 'a'"),
        (lambda: unscale_gradients([], np.nan), ValueError, "unscale_gradients: scale: expected a finite number >= 0"),
        (lambda: unscale_gradients(np.ones(3), 2.0), TypeError, "expected a list or a dict of arrays, found a single"),
        (lambda: has_inf_or_nan(np.ones(3)), TypeError, "expected a list or a dict of arrays, found a single array"),
        (
            lambda: unscale_gradients({"w": np.array([4, 6])}, 2.0),
            TypeError,
            r"unscale_gradients: gradients\['w'\]: expected an array of float16, .* found int64 array",
        ),
        (
            lambda: scaler_step(ScalerState(-8.0, 0), False),
            ValueError,
            "scaler/scale: expected a finite float32 number",
        ),
        (lambda: scaler_step(ScalerState(8.0, -1), True), ValueError, "scaler/growth_tracker: expected an int from 0"),
        (lambda: scaler_step(init_scaler(), False, growth_factor="2"), ValueError, "growth_factor: expected a number"),
        (lambda: decode_scaler([1, 2]), ValueError, "decode_scaler: expected a dict, found list"),
        (
            lambda: decode_scaler(encode_scaler(init_scaler()) | {"scale": 10**400}),
            ValueError,
            "scaler/scale: expected a finite float32 number",
        ),
        (
            lambda: cast_to_dtype(np.ma.array([1.0, 2.0], mask=[0, 1]), "float16"),
            TypeError,
            "found MaskedArray",
        ),
        (lambda: cast_to_dtype(np.ones(2, ">f4"), "float16"), TypeError, "found >f4 array in the other byte"),
    ],
)
def test_bad_input_gets_one_clear_error(call, error, message):
    with pytest.raises(error, match=message):
        call()
