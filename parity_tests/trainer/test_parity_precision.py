"""The port's casts, masks and loss scaling: the reference's bits, and states that stock GradScaler takes and gives."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref import precision as reference
from numpy_ref.precision import ScalerState
from parity_tests.oracles import same_bytes
from parity_tests.strategies import KINDS, numbers
from parity_tests.witnesses import with_fault

torch = pytest.importorskip("torch", reason="torch is missing: the port's precision cannot be run")
from torch_port import precision as port

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
    return reference.cast_to_dtype(x, "bfloat16") if name == "bfloat16" else np.asarray(x)


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


@st.composite
def arrays(draw):
    """A type's name and numbers of it."""
    name, kind = draw(st.sampled_from(list(TYPES))), draw(st.sampled_from(KINDS))
    return name, drawn(np.random.default_rng(draw(SEEDS)), name, kind, (draw(st.sampled_from(SIZES)),))


def beside_ties(name, kind):
    """Ties of a format and their neighbours, as far as a type holds them."""
    bits, smallest = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149)}[kind]
    dtype, odd = TYPES[name][0], np.arange(2 ** (bits - 1), 2 ** (bits - 1) + 300) * 2.0 + 1
    ties = [np.ldexp(odd, e) for e in (-bits, smallest - 1, -1)] + [np.ldexp(np.arange(9.0), smallest - 1)]
    with np.errstate(all="ignore"):
        x = np.concatenate([*ties, [65504, 65519.99, 65520, 255 * 2.0**120, 511 * 2.0**119]]).astype(dtype)
        x = np.concatenate([x, np.nextafter(x, dtype(0)), np.nextafter(x, dtype(np.inf)), dtype([np.nan])])
    x = np.concatenate([x, -x])
    return reference.cast_to_dtype(x, "bfloat16") if name == "bfloat16" else x


# The cast


def same_cast(x, name, kind, impl=port):
    """The port's cast is of the format's type, and has the reference's bits."""
    found = impl.cast_to_dtype(tensor(x, name), kind)
    return found.dtype == TYPES[kind][1] and same_bytes(array(found), reference.cast_to_dtype(x, kind))


@given(arrays(), st.sampled_from(reference.CASTS))
def test_a_cast_has_the_references_bits(case, kind):
    name, x = case
    assert same_cast(x, name, kind)


@pytest.mark.parametrize("kind", reference.CASTS)
@pytest.mark.parametrize("name", TYPES)
def test_a_cast_has_the_references_bits_at_ties_and_beside_them(name, kind):
    assert same_cast(beside_ties(name, kind), name, kind)


@pytest.mark.parametrize("kind", reference.CASTS)
@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_a_cast_of_every_number_of_16_bits_is_torchs_own_and_the_references(name, kind):
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16).view(TYPES[name][1])
    found = port.cast_to_dtype(every, kind)
    assert same_bytes(array(found), array(every.to(TYPES[kind][1])))
    assert same_bytes(array(found), reference.cast_to_dtype(array(every), kind))


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_torchs_own_cast_of_float32_is_the_references_and_of_float64_rounds_twice(kind):
    single, double = (beside_ties(name, kind) for name in ("float32", "float64"))
    own = array(torch.tensor(single).to(TYPES[kind][1]))
    assert same_bytes(own, reference.cast_to_dtype(single, kind))
    twice = array(torch.tensor(double).to(TYPES[kind][1]))
    assert not same_bytes(twice, reference.cast_to_dtype(double, kind))
    with np.errstate(over="ignore"):
        assert same_bytes(twice, reference.cast_to_dtype(double.astype(np.float32), kind))


@pytest.mark.parametrize("kind", reference.CASTS)
@pytest.mark.parametrize("name", TYPES)
def test_a_cast_is_a_new_tensor_without_a_graph_whatever_the_layout_and_leaves_the_input(name, kind):
    rng = np.random.default_rng(3)
    for shape in SHAPES:
        x = drawn(rng, name, "special", shape)
        for given_ in layouts(x, name):
            found = port.cast_to_dtype(given_, kind)
            assert type(found) is torch.Tensor
            assert (found.dtype, found.device, found.shape) == (TYPES[kind][1], given_.device, given_.shape)
            assert not found.requires_grad
            assert same_bytes(array(found), reference.cast_to_dtype(x, kind))
            assert same_bytes(array(given_), x)
            assert not found.numel() or found.data_ptr() != given_.data_ptr()


# The masks


def same_masks(x, name, kind, impl=port):
    casted = reference.cast_to_dtype(x, kind)
    found = impl.detect_underflow(tensor(x, name), tensor(casted, kind)), impl.detect_overflow(tensor(casted, kind))
    expected = reference.detect_underflow(x, casted), reference.detect_overflow(casted)
    return all(f.dtype == torch.bool and same_bytes(array(f), e) for f, e in zip(found, expected, strict=True))


@given(arrays(), st.sampled_from(reference.CASTS))
def test_the_masks_are_the_references(case, kind):
    name, x = case
    assert same_masks(x, name, kind)


@pytest.mark.parametrize("name", TYPES)
def test_masks_have_the_shape_and_no_graph_whatever_the_layout(name):
    for shape in SHAPES:
        x = drawn(np.random.default_rng(4), name, "special", shape)
        casted = reference.cast_to_dtype(x, "float16")
        for given_ in layouts(x, name):
            underflow = port.detect_underflow(given_, port.cast_to_dtype(given_, "float16"))
            overflow = port.detect_overflow(given_)
            assert not underflow.requires_grad
            assert not overflow.requires_grad
            assert same_bytes(array(underflow), reference.detect_underflow(x, casted))
            assert same_bytes(array(overflow), reference.detect_overflow(x))


# Loss scaling


def same_loss(x, name, scale, impl=port):
    """Of a loss without axes; in 16 bits it becomes float32 on both sides."""
    found, expected = impl.scale_loss(tensor(x, name), scale), reference.scale_loss(x[()], scale)
    return found.shape == () and same_bytes(array(found), np.asarray(expected))


@given(SEEDS, st.sampled_from(list(TYPES)), st.sampled_from(["normal", "wide", "bits", "special"]), SCALES)
def test_a_scaled_loss_has_the_references_bits(seed, name, kind, scale):
    assert same_loss(drawn(np.random.default_rng(seed), name, kind, ()), name, scale)


@given(st.floats(allow_nan=False), SCALES)
def test_a_scaled_plain_number_is_the_references(loss, scale):
    found, expected = port.scale_loss(loss, scale), reference.scale_loss(loss, scale)
    assert type(found) is type(expected) is float
    assert same_bytes(np.array(found), np.array(expected))


@pytest.mark.parametrize("name", TYPES)
def test_a_scaled_loss_stays_in_the_graph_and_its_gradients_are_scaled(name):
    w = torch.arange(-3.0, 4.0, dtype=TYPES[name][1]).requires_grad_()
    loss = (w * w).sum()
    scaled = port.scale_loss(loss, 1024.0)
    scaled.backward()
    assert scaled is not loss
    assert scaled.dtype == torch.promote_types(w.dtype, torch.float32)
    assert w.grad.dtype == w.dtype
    assert w.grad.tolist() == (2048 * w).tolist()


def carried(gradients, name, scale):
    """The reference's gradients; of bfloat16, carried in float32, rounded once more."""
    found = reference.unscale_gradients(gradients, scale)
    return [reference.cast_to_dtype(g, "bfloat16") for g in found] if name == "bfloat16" else found


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


# Mutants: each fault of the port, and the law that it breaks.


def casts_hold(impl, name="float32"):
    return all(same_cast(beside_ties(name, kind), name, kind, impl) for kind in reference.CASTS)


def special():
    return np.array([0, -0.0, 1e-8, -1e-8, 0.5, 7e4, -7e4, np.inf, -np.inf, np.nan], np.float32)


def only_of(impl, bad):
    return impl.has_inf_or_nan([torch.tensor([1.0, bad])])


def of_a_graph():
    return torch.ones(2).requires_grad_() * 1


def is_new(impl):
    x = torch.ones(3)
    return impl.cast_to_dtype(x, "float32").data_ptr() != x.data_ptr()


THIRDS = [np.arange(1, 1004, dtype=np.float16)]
LAWS = {
    "a cast of float64 rounds once": lambda impl: casts_hold(impl, "float64"),
    "a cast of float32 rounds to even": lambda impl: casts_hold(impl),
    "a cast is new": is_new,
    "a cast has no graph": lambda impl: not impl.cast_to_dtype(of_a_graph(), "float16").requires_grad,
    "the masks are right": lambda impl: same_masks(special(), "float32", "float16", impl),
    "a loss in float16 becomes float32": lambda impl: same_loss(np.array(0.7, np.float16), "float16", 2.0**16, impl),
    "a loss stays in the graph": lambda impl: impl.scale_loss(of_a_graph().sum(), 2.0).requires_grad,
    "float16 is unscaled through float32": lambda impl: same_unscaled(THIRDS, "float16", 3.0, impl),
    "float32 is multiplied": lambda impl: same_unscaled([THIRDS[0].astype(np.float32)], "float32", 3.0, impl),
    "float64 stays wide": lambda impl: same_unscaled([THIRDS[0].astype(float) / 7], "float64", 3.0, impl),
    "the inverse is of the float64 scale": lambda impl: all(
        same_unscaled([np.ones(1, np.float32)], "float32", 1 + k / 1000, impl) for k in range(100)
    ),
    "unscaled gradients have no graph": lambda impl: not impl.unscale_gradients([of_a_graph()], 2.0)[0].requires_grad,
    "infinity is found": lambda impl: only_of(impl, torch.inf) and only_of(impl, -torch.inf),
    "NaN is found": lambda impl: only_of(impl, torch.nan),
}
FAULTS = {
    "float64 by torch's cast": ("x.dtype == torch.float64", "False", "a cast of float64 rounds once"),
    "truncated": (
        "x.detach().to(STORAGE[dtype], copy=True)",
        "(x.detach().float().view(torch.int32) & -0x2000).view(torch.float32).to(STORAGE[dtype], copy=True)",
        "a cast of float32 rounds to even",
    ),
    "a view for a copy": (", copy=True", "", "a cast is new"),
    "a cast in the graph": ("x.detach().to(STORAGE", "x.to(STORAGE", "a cast has no graph"),
    "zeros taken for underflow": ("(original != 0) & (casted == 0)", "casted == 0", "the masks are right"),
    "negative underflow missed": ("(original != 0)", "(original > 0)", "the masks are right"),
    "NaN taken for overflow": ("casted.isinf()", "~casted.isfinite()", "the masks are right"),
    "negative overflow missed": ("casted.isinf()", "casted.isposinf()", "the masks are right"),
    "a plain number for a scale": (
        "loss * torch.tensor(scale, dtype=torch.float32, device=loss.device)",
        "loss * scale",
        "a loss in float16 becomes float32",
    ),
    "a scale in float64": (
        "torch.tensor(scale, dtype=torch.float32",
        "torch.tensor(scale, dtype=torch.float64",
        "a loss in float16 becomes float32",
    ),
    "a loss out of the graph": ("return loss * torch", "return loss.detach() * torch", "a loss stays in the graph"),
    "half products": (
        "g.detach().to(torch.promote_types(g.dtype, torch.float32))",
        "g.detach()",
        "float16 is unscaled through float32",
    ),
    "the wide type returned": (".to(g.dtype)", "", "float16 is unscaled through float32"),
    "divided": ("(wide * inverse.to(wide))", "(wide / (1 / inverse.to(wide)))", "float32 is multiplied"),
    "narrowed": ("torch.promote_types(g.dtype, torch.float32)", "torch.float32", "float64 stays wide"),
    "the inverse in float64": (".reciprocal().float()", ".reciprocal()", "float64 stays wide"),
    "the inverse of the float32 scale": (
        ".reciprocal().float()",
        ".float().reciprocal()",
        "the inverse is of the float64 scale",
    ),
    "gradients in the graph": ("wide = g.detach()", "wide = g", "unscaled gradients have no graph"),
    "infinity overlooked": ("g.isfinite()", "(~g.isnan())", "infinity is found"),
    "NaN overlooked": ("g.isfinite()", "(~g.isinf())", "NaN is found"),
}


@pytest.mark.parametrize("law", LAWS)
def test_the_port_keeps(law):
    assert LAWS[law](port)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_port_breaks_the_law_that_is_named(fault):
    old, new, law = FAULTS[fault]
    assert not LAWS[law](with_fault(port, old, new))


# Bad input


@pytest.mark.parametrize("dtype", ["float64", "half", "", None, torch.float16, ["float16"]])
def test_an_unknown_format_is_refused(dtype):
    with pytest.raises(ValueError, match="cast_to_dtype: dtype: expected one of float16, bfloat16, float32, found "):
        port.cast_to_dtype(torch.zeros(1), dtype)


@pytest.mark.parametrize(
    ("x", "found"),
    [
        ([1.0], "list"),
        (np.zeros(3), "ndarray"),
        (torch.arange(3), "a tensor of torch.int64"),
        (torch.zeros(3, dtype=torch.complex64), "a tensor of torch.complex64"),
    ],
)
def test_what_is_no_tensor_of_floats_is_refused(x, found):
    good = torch.zeros(3)
    for call, where in (
        (lambda: port.cast_to_dtype(x, "float16"), "cast_to_dtype: x"),
        (lambda: port.detect_underflow(x, good), "detect_underflow: original"),
        (lambda: port.detect_underflow(good, x), "detect_underflow: casted"),
        (lambda: port.detect_overflow(x), "detect_overflow: casted"),
    ):
        with pytest.raises(TypeError, match=f"^{where}: expected a tensor of .*float64, found {found}"):
            call()


def test_masks_of_two_shapes_and_scales_that_no_state_holds_are_refused():
    with pytest.raises(ValueError, match=r"detect_underflow: expected one shape, found \(3,\) and \(1,\)"):
        port.detect_underflow(torch.zeros(3), torch.zeros(1))
    for scale in (-1.0, torch.inf, torch.nan):
        with pytest.raises(ValueError, match=r"^scale_loss: scale: expected a finite number >= 0"):
            port.scale_loss(torch.ones(()), scale)
        with pytest.raises(ValueError, match=r"^unscale_gradients: scale: expected a finite number >= 0"):
            port.unscale_gradients([], scale)


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
    scaler.load_state_dict(port.encode_scaler(state, **settings))
    assert scaler.state_dict() == port.encode_scaler(state, **settings)
    for gradient in gradients:
        stock_update(scaler, gradient)
        state = port.scaler_step(state, not np.isfinite(gradient), **settings)
        assert port.decode_scaler(scaler.state_dict()) == (state, settings)
    later = torch.amp.GradScaler("cpu")
    stock_update(later, 1.0)  # and after its first use, into its tensors
    later.load_state_dict(port.encode_scaler(state, **settings))
    assert later.state_dict() == port.encode_scaler(state, **settings)


def test_a_new_stock_scaler_has_the_state_and_the_settings_of_ours():
    stock = torch.amp.GradScaler("cpu").state_dict()
    assert stock == port.encode_scaler(port.init_scaler())
    assert list(stock) == list(port.encode_scaler(port.init_scaler()))
    assert port.decode_scaler(stock)[0] == port.init_scaler()


def test_a_disabled_scaler_has_no_state_and_an_enabled_one_does_not_go_on_from_none():
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    assert disabled.state_dict() == port.encode_scaler(None) == {}
    disabled.load_state_dict(port.encode_scaler(ScalerState(3.0, 1)))  # and takes any, without a word
    disabled.load_state_dict(port.encode_scaler(None))
    assert disabled.state_dict() == {}
    with pytest.raises(RuntimeError, match="The source state dict is empty"):
        torch.amp.GradScaler("cpu").load_state_dict(port.encode_scaler(None))
    with pytest.raises(ValueError, match="decode_scaler: expected the state of an enabled scaler, found the empty one"):
        port.decode_scaler(disabled.state_dict())


def test_what_stock_loads_without_a_word_is_refused():
    whole = port.encode_scaler(ScalerState(8.0, 3))
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
            port.decode_scaler(whole | {name: bad})
    for name in whole:
        with pytest.raises(ValueError, match=f"decode_scaler: missing {name};"):
            port.decode_scaler({key: value for key, value in whole.items() if key != name})


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
        port.scaler_step(port.init_scaler(), False, **{setting: value})


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
    assert port.decode_scaler(state)[0] == ScalerState(3.0, 0)


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
