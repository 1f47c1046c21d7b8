"""The port's loss scaling: the reference's bits, and states that stock GradScaler takes and gives."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref import optim as reference
from numpy_ref.cli.number_line import cast_to_dtype
from numpy_ref.optim import ScalerState
from parity_tests.oracles import same_bytes
from parity_tests.strategies import KINDS, numbers

torch = pytest.importorskip("torch", reason="torch is missing: the port's optim cannot be run")
from torch_port import optim as port

TYPES = {
    "float16": (np.float16, torch.float16),
    "bfloat16": (np.float32, torch.bfloat16),
    "float32": (np.float32, torch.float32),
    "float64": (np.float64, torch.float64),
}
SIZES = (0, 1, 7, 64, 1003)
SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.one_of(  # float32 numbers, as a state holds them
    st.sampled_from([2.0**16, 1.0, 3.0, float(np.float32(0.7)), 2.0**-149, 2.0**127, 0.0]),
    st.floats(2.0**-120, 2.0**120, width=32),
)


def drawn(rng, name, kind, shape):
    """An array of a type's numbers; those of bfloat16 are carried in float32."""
    x = numbers(rng, kind, shape, TYPES[name][0])
    return cast_to_dtype(x, "bfloat16") if name == "bfloat16" else np.asarray(x)


def tensor(x, name):
    return torch.tensor(x).to(TYPES[name][1])


def array(t):
    """A tensor's numbers; those of bfloat16 in float32."""
    return (t.float() if t.dtype == torch.bfloat16 else t).detach().numpy()


def layouts(x, name):
    """The numbers as tensors that lie differently in memory, some of which autograd follows."""
    yield tensor(x, name)
    yield tensor(x, name).requires_grad_()
    yield torch.nn.Parameter(tensor(x, name))
    yield tensor(np.repeat(x[..., None], 2, axis=-1), name)[..., 0]  # a view with gaps
    yield (tensor(x, name).requires_grad_() * 1)[...]  # of a graph
    if x.ndim > 1:
        yield tensor(np.ascontiguousarray(x.swapaxes(0, 1)), name).swapaxes(0, 1)
    if x.ndim == 4:
        yield tensor(x, name).contiguous(memory_format=torch.channels_last)


SHAPES = ((), (0,), (2, 0, 3), (1,), (7,), (5, 13), (2, 3, 4, 5))


# Loss scaling


def carried(gradients, name, scale):
    """The reference's gradients; of bfloat16, carried in float32, rounded once more."""
    found = reference.unscale_gradients(gradients, scale)
    return [cast_to_dtype(g, "bfloat16") for g in found] if name == "bfloat16" else found


def same_unscaled(xs, name, scale, impl=port):
    found = impl.unscale_gradients([tensor(x, name) for x in xs], scale)
    types = {g.dtype for g in found} <= {TYPES[name][1]}
    return types and all(map(same_bytes, map(array, found), carried(xs, name, scale)))


@given(SEEDS, st.sampled_from(list(TYPES)), st.sampled_from(KINDS), SCALES)
def test_unscaled_gradients_have_the_references_bits(seed, name, kind, scale):
    rng = np.random.default_rng(seed)
    assert same_unscaled([drawn(rng, name, kind, (n,)) for n in SIZES], name, scale)


@pytest.mark.parametrize("name", TYPES)
def test_unscaled_gradients_are_new_whatever_the_layout_and_keep_names_and_arguments(name):
    for shape in SHAPES:
        x = drawn(np.random.default_rng(5), name, "special", shape)
        (expected,) = carried([x], name, 3.0)
        for given_ in layouts(x, name):
            (listed,), named = port.unscale_gradients([given_], 3.0), port.unscale_gradients({"w": given_}, 3.0)
            assert list(named) == ["w"]
            for found in (listed, named["w"]):
                assert (found.dtype, found.shape, found.requires_grad) == (given_.dtype, given_.shape, False)
                assert same_bytes(array(found), expected)
                assert not found.numel() or found.data_ptr() != given_.data_ptr()
            assert same_bytes(array(given_), x)
        (copied,) = port.unscale_gradients([tensor(x, name)], 1.0)
        assert same_bytes(array(copied), x)
    assert port.unscale_gradients([], 1.0) == []
    assert port.unscale_gradients({}, 1.0) == {}


@given(SEEDS, st.sampled_from(list(TYPES)), st.sampled_from([None, np.inf, -np.inf, np.nan]), st.integers(0, 1002))
def test_an_infinity_or_nan_is_found_where_the_reference_finds_it(seed, name, bad, place):
    xs = [drawn(np.random.default_rng(seed), name, "normal", (n,)) for n in SIZES]
    if bad is not None:
        xs[-1][place] = bad
    tensors = [tensor(x, name) for x in xs]
    for found in (tensors, dict(enumerate(tensors)), iter(tensors), tuple(tensors)):
        assert port.has_inf_or_nan(found) is reference.has_inf_or_nan(xs) is (bad is not None)
    assert port.has_inf_or_nan([]) is port.has_inf_or_nan({}) is False


def test_float16_gradients_that_stock_refuses_are_unscaled():
    g = torch.tensor([3.0, 6.0], dtype=torch.float16)
    assert port.unscale_gradients([g], 3.0)[0].tolist() == [1.0, 2.0]
    w = torch.zeros(2, dtype=torch.float16, requires_grad=True)
    scaler, optimizer = used(w), torch.optim.SGD([w], lr=1.0)
    with pytest.raises(ValueError, match="Attempting to unscale FP16 gradients"):
        scaler.unscale_(optimizer)


# Mutants: other ways to unscale, each with cases whose bits differ


def unscaled_by(rule):
    """`unscale_gradients` with another rule of (gradient, scale)."""
    return SimpleNamespace(unscale_gradients=lambda gradients, scale: [rule(g, scale) for g in gradients])


def inverse(scale, dtype=torch.float32):
    return torch.tensor(scale, dtype=torch.float64).reciprocal().to(dtype)


THIRDS = np.arange(1, 1004, dtype=np.float16)
WIDE = THIRDS.astype(np.float64) / 7
FAULTS = {  # the rule, and cases
    "half products": (lambda g, scale: g * inverse(scale).to(g), [(THIRDS, "float16", 3.0)]),
    "the wide type returned": (lambda g, scale: g.float() * inverse(scale), [(THIRDS, "float16", 3.0)]),
    "divided": (lambda g, scale: g / scale, [(THIRDS.astype(np.float32), "float32", 3.0)]),
    "narrowed": (lambda g, scale: (g.float() * inverse(scale)).to(g), [(WIDE, "float64", 3.0)]),
    "the inverse in float64": (lambda g, scale: g * inverse(scale, torch.float64), [(WIDE, "float64", 3.0)]),
    "the inverse of the float32 scale": (
        lambda g, scale: g * torch.tensor(scale).reciprocal(),
        [(np.ones(1, np.float32), "float32", 1 + k / 1000) for k in range(100)],
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_another_way_to_unscale_is_told_apart(fault):
    rule, cases = FAULTS[fault]
    assert all(same_unscaled([x], name, scale) for x, name, scale in cases)
    assert not all(same_unscaled([x], name, scale, unscaled_by(rule)) for x, name, scale in cases)


# Bad input


def test_scales_that_no_state_holds_and_what_is_no_tensor_of_floats_are_refused():
    for scale in (-1.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match=r"^unscale_gradients: scale: expected a finite number >= 0"):
            port.unscale_gradients([], scale)
    for g in (torch.arange(3), np.zeros(3), torch.zeros(3, dtype=torch.complex64)):
        with pytest.raises(TypeError, match=r"^unscale_gradients: gradients\['w'\]: expected a tensor of floats"):
            port.unscale_gradients({"w": g}, 2.0)


# States in the stock scaler's form


SETTINGS = st.fixed_dictionaries(
    {
        "growth_factor": st.sampled_from([2.0, 1.5, 1.1]),
        "backoff_factor": st.sampled_from([0.5, 0.3]),
        "growth_interval": st.integers(1, 5),
    }
)
STATES = st.builds(ScalerState, st.floats(2.0**-149, 2.0**100, width=32), st.integers(0, 4))


def used(w, **options):
    """A stock scaler after its first scaled loss, when its state has become tensors."""
    scaler = torch.amp.GradScaler("cpu", **options)
    scaler.scale(torch.ones(()))
    w.grad = torch.ones_like(w)
    return scaler


def stock_update(scaler, gradient):
    """One update of a stock scaler by a gradient."""
    w = torch.zeros(1, requires_grad=True)
    scaler.scale(torch.ones(()))
    w.grad = torch.tensor([gradient])
    scaler.step(torch.optim.SGD([w], lr=1.0))
    scaler.update()


@given(STATES, SETTINGS, st.lists(st.sampled_from([1.0, np.inf, np.nan]), max_size=5))
def test_a_stock_scaler_loads_a_state_before_its_first_use_goes_on_and_gives_it_back(state, settings, gradients):
    scaler = torch.amp.GradScaler("cpu", init_scale=7.0)
    scaler.load_state_dict(reference.encode_scaler(state, **settings))
    assert scaler.state_dict() == reference.encode_scaler(state, **settings)
    for gradient in gradients:
        stock_update(scaler, gradient)
        state = reference.scaler_step(state, not np.isfinite(gradient), **settings)
        assert reference.decode_scaler(scaler.state_dict()) == (state, settings)
    later = torch.amp.GradScaler("cpu")
    stock_update(later, 1.0)  # and after its first use, into its tensors
    later.load_state_dict(reference.encode_scaler(state, **settings))
    assert later.state_dict() == reference.encode_scaler(state, **settings)


def test_a_new_stock_scaler_has_the_state_and_the_settings_of_ours():
    stock = torch.amp.GradScaler("cpu").state_dict()
    assert stock == reference.encode_scaler(reference.init_scaler())
    assert list(stock) == list(reference.encode_scaler(reference.init_scaler()))
    assert reference.decode_scaler(stock)[0] == reference.init_scaler()


def test_a_disabled_scaler_has_no_state_and_an_enabled_one_does_not_go_on_from_none():
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    assert disabled.state_dict() == reference.encode_scaler(None) == {}
    disabled.load_state_dict(reference.encode_scaler(ScalerState(3.0, 1)))  # and takes any, without a word
    disabled.load_state_dict(reference.encode_scaler(None))
    assert disabled.state_dict() == {}
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        torch.amp.GradScaler("cpu").load_state_dict(reference.encode_scaler(None))
    with pytest.raises(ValueError, match="decode_scaler: expected the state of an enabled scaler, found the empty one"):
        reference.decode_scaler(disabled.state_dict())


def test_what_stock_loads_without_a_word_is_refused():
    whole = reference.encode_scaler(ScalerState(8.0, 3))
    stock = torch.amp.GradScaler("cpu")
    for name, bad in (
        ("scale", -1.0),
        ("scale", np.nan),
        ("growth_factor", 0.5),
        ("backoff_factor", 2.0),
        ("growth_interval", 0),
        ("_growth_tracker", -1),
    ):
        stock.load_state_dict(whole | {name: bad})
        with pytest.raises(ValueError, match=f"{name.removeprefix('_')}: expected"):
            reference.decode_scaler(whole | {name: bad})
    for name in whole:
        with pytest.raises(ValueError, match=f"decode_scaler: missing {name};"):
            reference.decode_scaler({key: value for key, value in whole.items() if key != name})


# Facts of the stock scaler that a run relies on


def test_stock_refuses_to_unscale_twice_to_unscale_after_a_step_and_to_step_twice():
    w = torch.zeros(1, requires_grad=True)
    scaler, optimizer = used(w), torch.optim.SGD([w], lr=1.0)
    scaler.unscale_(optimizer)
    with pytest.raises(RuntimeError, match="already been called on this optimizer since the last update"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="already been called since the last update"):
        scaler.step(optimizer)
    with pytest.raises(RuntimeError, match="is being called after step"):
        scaler.unscale_(optimizer)
    scaler.update()
    w.grad = torch.ones(1)
    scaler.unscale_(optimizer)  # a new update may


def test_stock_refuses_an_update_or_a_step_without_a_scaled_loss_and_without_gradients_it_has_looked_at():
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    fresh = torch.amp.GradScaler("cpu")
    with pytest.raises(AssertionError, match="_scale is None"):
        fresh.update()
    w.grad = torch.ones(1)
    with pytest.raises(AssertionError, match="_scale is None"):
        fresh.step(optimizer)
    scaler = used(w)
    with pytest.raises(AssertionError, match="No inf checks were recorded prior to update"):
        scaler.update()
    w.grad = None
    with pytest.raises(AssertionError, match="No inf checks were recorded for this optimizer"):
        scaler.step(optimizer)


@pytest.mark.parametrize(("setting", "value"), [("growth_factor", 1.0), ("backoff_factor", 1.0)])
def test_stock_refuses_by_an_assertion_the_factors_that_ours_refuses_by_a_value_error(setting, value):
    with pytest.raises(AssertionError, match="factor must be"):
        torch.amp.GradScaler("cpu", **{setting: value})
    with pytest.raises(ValueError, match=f"scaler_step: {setting}: expected"):
        reference.scaler_step(reference.init_scaler(), False, **{setting: value})


@pytest.mark.parametrize(("gradient", "steps"), [(1.0, 2), (np.inf, 1), (np.nan, 1)])
def test_stock_skips_an_update_with_an_overflow_and_adams_count_with_it(gradient, steps):
    w = torch.zeros(1, requires_grad=True)
    scaler, optimizer = used(w), torch.optim.Adam([w], lr=1.0)
    scaler.step(optimizer)
    scaler.update()
    before = w.detach().clone()
    w.grad = torch.tensor([gradient])
    scaler.step(optimizer)
    scaler.update()
    assert int(optimizer.state[w]["step"]) == steps
    assert torch.equal(w.detach(), before) == (steps == 1)


def test_stock_asks_the_scaled_gradients_and_multiplies_by_the_inverse():
    w = torch.zeros(2, requires_grad=True)
    scaler, optimizer = used(w, init_scale=3.0), torch.optim.SGD([w], lr=1.0)
    g = torch.tensor([1.0, 7.0])
    w.grad = g.clone()
    scaler.unscale_(optimizer)
    assert torch.equal(w.grad, port.unscale_gradients([g], 3.0)[0])
    state = scaler.state_dict()
    assert reference.decode_scaler(state)[0] == ScalerState(3.0, 0)


def test_a_disabled_stock_scaler_passes_everything_through():
    w = torch.zeros(1, requires_grad=True)
    disabled, optimizer = torch.amp.GradScaler("cpu", enabled=False), torch.optim.SGD([w], lr=1.0)
    loss = torch.tensor(0.7)
    assert disabled.scale(loss) is loss
    w.grad = torch.tensor([np.inf])
    disabled.step(optimizer)  # an overflow goes into the weights
    disabled.update()
    assert disabled.get_scale() == 1.0
    assert torch.isinf(w.detach()).all()
