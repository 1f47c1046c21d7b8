"""What formats of 16 bits hold: casts by integers, the masks of what they lose, and the number line of gradients."""

import dataclasses
import json
import math
from fractions import Fraction
from itertools import pairwise
from math import copysign, inf, isfinite, nan
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import numpy_ref
from numpy_ref.arithmetic import fixedpoint
from numpy_ref.arithmetic.fixedpoint import CASTS
from numpy_ref.arithmetic.rounding import round_to
from numpy_ref.cli import number_line
from numpy_ref.cli.demo import CONFIG
from numpy_ref.cli.number_line import (
    BAR,
    Limits,
    Shares,
    cast_to_dtype,
    detect_overflow,
    detect_underflow,
    gradients_of,
    limits,
    lines,
    range_of,
    run_range,
)
from numpy_ref.config import RunConfig
from numpy_ref.model import parameters
from numpy_ref.optim import init_sgd, unscale_gradients
from numpy_ref.tree import copy_tree
from parity_tests.oracles import FORMATS, STORED_IN, nearest, same_bytes
from parity_tests.strategies import KINDS, numbers, small_data

DTYPES = (np.float16, np.float32, np.float64)
SIZES = (0, 1, 7, 64, 1003)
SEEDS = st.integers(0, 2**32 - 1)


def above(x, dtype=np.float32):
    """The next number away from zero."""
    return float(np.nextafter(dtype(x), dtype(copysign(inf, x))))


def below(x, dtype=np.float32):
    return float(np.nextafter(dtype(x), dtype(0)))


# Each case: format, type of the input, a number that the type holds, what it becomes.
BOUNDARIES = {
    "float16: half of the smallest is a tie, to 0": ("float16", np.float32, 2.0**-25, 0.0),
    "float16: minus half of the smallest, to -0": ("float16", np.float32, -(2.0**-25), -0.0),
    "float16: above half of the smallest": ("float16", np.float32, above(2.0**-25), 2.0**-24),
    "float16: a tie between subnormals goes up to even": ("float16", np.float32, 1.5 * 2.0**-24, 2.0**-23),
    "float16: a tie between subnormals goes down to even": ("float16", np.float32, 2.5 * 2.0**-24, 2.0**-23),
    "float16: a negative tie goes down to even": ("float16", np.float32, -1.5 * 2.0**-24, -(2.0**-23)),
    "float16: a subnormal that it holds": ("float16", np.float32, 1023 * 2.0**-24, 1023 * 2.0**-24),
    "float16: the last tie between subnormals": ("float16", np.float32, 1023.5 * 2.0**-24, 2.0**-14),
    "float16: a tie beside 1 goes down to even": ("float16", np.float32, 1 + 2.0**-11, 1.0),
    "float16: above a tie beside 1": ("float16", np.float32, above(1 + 2.0**-11), 1 + 2.0**-10),
    "float16: a tie beside 1 goes up to even": ("float16", np.float32, 1 + 3 * 2.0**-11, 1 + 2.0**-9),
    "float16: one rounding of a float64": ("float16", np.float64, 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-10),
    "float16: the largest": ("float16", np.float32, 65504.0, 65504.0),
    "float16: below the tie at the end": ("float16", np.float32, 65519.99, 65504.0),
    "float16: the tie at the end": ("float16", np.float32, 65520.0, inf),
    "float16: the negative tie at the end": ("float16", np.float32, -65520.0, -inf),
    "float16: half of the largest binade": ("float16", np.float32, 32768.0, 32768.0),
    "bfloat16: half of the smallest is a tie, to 0": ("bfloat16", np.float32, 2.0**-134, 0.0),
    "bfloat16: above half of the smallest": ("bfloat16", np.float32, above(2.0**-134), 2.0**-133),
    "bfloat16: a tie between subnormals goes up to even": ("bfloat16", np.float32, 1.5 * 2.0**-133, 2.0**-132),
    "bfloat16: the last tie between subnormals": ("bfloat16", np.float32, 127.5 * 2.0**-133, 2.0**-126),
    "bfloat16: a quarter of the last place": ("bfloat16", np.float32, 1 + 2.0**-9, 1.0),
    "bfloat16: a tie beside 1 goes down to even": ("bfloat16", np.float32, 1 + 2.0**-8, 1.0),
    "bfloat16: a tie beside 1 goes up to even": ("bfloat16", np.float32, 1 + 3 * 2.0**-8, 1 + 2.0**-6),
    "bfloat16: the largest, 3.3895e38": ("bfloat16", np.float32, 255 * 2.0**120, 255 * 2.0**120),
    "bfloat16: below the tie at the end": ("bfloat16", np.float32, below(511 * 2.0**119), 255 * 2.0**120),
    "bfloat16: the tie at the end": ("bfloat16", np.float32, 511 * 2.0**119, inf),
    "bfloat16: the largest float32": ("bfloat16", np.float32, below(inf), inf),
    "float32: half of the smallest is a tie, to 0": ("float32", np.float64, 2.0**-150, 0.0),
    "float32: above half of the smallest": ("float32", np.float64, above(2.0**-150, np.float64), 2.0**-149),
    "float32: a tie beside 1 goes down to even": ("float32", np.float64, 1 + 2.0**-24, 1.0),
    "float32: below the tie at the end": ("float32", np.float64, below(2.0**128 - 2.0**103, np.float64), below(inf)),
    "float32: the tie at the end": ("float32", np.float64, 2.0**128 - 2.0**103, inf),
    "float32: what float64 alone holds": ("float32", np.float64, -1e300, -inf),
    **{
        f"{kind}: {x} of {dtype.__name__}": (kind, dtype, x, x)
        for kind in CASTS
        for dtype in DTYPES
        for x in (0.0, -0.0, 1.0, -1.0, inf, -inf, nan)
    },
    **{f"{kind}: far below the smallest": (kind, np.float64, -1e-300, -0.0) for kind in CASTS},
    **{f"{kind}: a subnormal float64": (kind, np.float64, 5e-324, 0.0) for kind in CASTS},
}


def is_right(name, cast=cast_to_dtype):
    kind, dtype, x, expected = BOUNDARIES[name]
    return same_bytes(cast(np.array([x], dtype), kind), np.array([expected], STORED_IN[kind]))


@pytest.mark.parametrize("name", BOUNDARIES)
def test_a_boundary_is_where_the_format_has_it(name):
    kind, _, x, expected = BOUNDARIES[name]
    assert is_right(name)
    if isfinite(x) and x:  # and the table itself is that of the definition
        assert nearest(Fraction(float(BOUNDARIES[name][1](x))), kind) == expected


RIGHT = SimpleNamespace(**vars(number_line))  # what wrong functions call while they stand in the module


def in_formats(function=cast_to_dtype, **by):
    """The function with fields of every format changed by so much."""
    formats = {
        kind: form._replace(**{field: getattr(form, field) + n for field, n in by.items()})
        for kind, form in number_line.FORMATS.items()
    }

    def changed(*args):
        with mock.patch.dict(number_line.FORMATS, formats):
            return function(*args)

    return changed


def ties_towards(end):
    """A cast that moves every number, and so the ties, a little towards an end before it rounds."""
    return lambda x, kind: cast_to_dtype(np.nextafter(x.astype(np.float64), end(x)), kind)


ties_away, ties_down = ties_towards(lambda x: np.copysign(inf, x)), ties_towards(np.zeros_like)
ties_up = ties_towards(lambda x: inf)


def ties_to_odd(x, kind):
    away = ties_away(x, kind)
    return np.where(away == cast_to_dtype(x, kind), ties_down(x, kind), away)


def then(change):
    """A cast whose results are changed afterwards."""
    return lambda x, kind: change(cast_to_dtype(x, kind)).astype(STORED_IN[kind])


FAULTS = {
    "ties away from zero": (ties_away, "float16: a tie beside 1 goes down to even"),
    "ties towards zero": (ties_down, "float16: a tie beside 1 goes up to even"),
    "ties up": (ties_up, "float16: a negative tie goes down to even"),
    "ties up, to infinity below": (ties_up, "float16: the negative tie at the end"),
    "ties to odd": (ties_to_odd, "bfloat16: half of the smallest is a tie, to 0"),
    "one bit too many dropped": (in_formats(precision=-1), "float16: above a tie beside 1"),
    "one bit too few dropped": (in_formats(precision=1), "bfloat16: a tie beside 1 goes down to even"),
    "overflow from half of it on": (in_formats(largest=-1), "float16: half of the largest binade"),
    "overflow kept finite": (then(lambda y: np.clip(y, -65504, 65504)), "float16: the tie at the end"),
    "sign lost": (then(np.abs), "float32: -1.0 of float16"),
    "sign of zero lost": (then(lambda y: y + 0), "bfloat16: -0.0 of float32"),
    "subnormals from twice the smallest": (in_formats(smallest=1), "float16: above half of the smallest"),
    "subnormals from half of the smallest": (in_formats(smallest=-1), "bfloat16: half of the smallest is a tie, to 0"),
    "no subnormals": (in_formats(smallest=-2000), "bfloat16: a tie between subnormals goes up to even"),
    "subnormals flushed": (
        then(lambda y: np.where(np.abs(y) < 2.0**-14, 0, y)),
        "float16: a subnormal that it holds",
    ),
    "NaN made a number": (then(np.nan_to_num), "float16: nan of float32"),
    "through float32": (
        lambda x, kind: cast_to_dtype(x.astype(np.float32), kind),
        "float16: one rounding of a float64",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_cast_moves_the_boundary_that_is_named(fault):
    cast, name = FAULTS[fault]
    assert not is_right(name, cast)


# Laws of the cast


def halfway(rng, kind, dtype, size):
    """Ties of a format, and what lies beside them in a type, as far as it holds them."""
    bits, smallest, end = FORMATS[kind]
    units = rng.integers(0, 1 << bits, size)
    with np.errstate(all="ignore"):
        x = np.ldexp(2.0 * units + 1, rng.integers(smallest, end - bits + 1, size) - 1).astype(dtype)
        x = np.nextafter(x, rng.choice([0, np.inf], size).astype(dtype)) if rng.random() < 0.5 else x
    return np.where(rng.random(size) < 0.5, x, -x)


@st.composite
def inputs(draw, dtypes=DTYPES):
    """A format, and numbers of a type, many of them at the format's ties."""
    kind, dtype, size = draw(st.sampled_from(CASTS)), draw(st.sampled_from(dtypes)), draw(st.sampled_from(SIZES))
    rng, drawn = np.random.default_rng(draw(SEEDS)), draw(st.sampled_from(["halfway", *KINDS]))
    return kind, halfway(rng, kind, dtype, size) if drawn == "halfway" else numbers(rng, drawn, (size,), dtype)


def by_integers(x, kind):
    """The cast from the exact value, with Python's integers."""
    rounded = [
        copysign(fixedpoint.rounded((m, 1 - d.bit_length()), kind), value) if isfinite(value) else value
        for value in x.tolist()
        for m, d in [value.as_integer_ratio() if isfinite(value) else (0, 1)]
    ]
    return np.array(rounded, STORED_IN[kind])


@given(inputs())
def test_a_cast_is_the_exact_value_rounded_once(case):
    kind, x = case
    assert same_bytes(cast_to_dtype(x, kind), by_integers(x, kind))


@given(inputs(dtypes=(np.float32, np.float64)))
def test_a_cast_is_what_round_to_gives(case):
    kind, x = case
    assert same_bytes(cast_to_dtype(x, kind), round_to(x, kind))


def test_every_float16_and_every_bfloat16_number_is_cast_to_itself():
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = cast_to_dtype(halves, "float32")
    assert same_bytes(wide, halves.astype(np.float32))
    assert same_bytes(cast_to_dtype(wide, "float16"), halves)
    assert same_bytes(cast_to_dtype(halves, "float16"), halves)
    assert same_bytes(cast_to_dtype(halves, "bfloat16"), by_integers(halves, "bfloat16"))
    brains = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    assert same_bytes(cast_to_dtype(brains, "bfloat16"), brains)
    assert same_bytes(cast_to_dtype(brains, "float32"), brains)


@given(inputs())
def test_a_cast_is_idempotent_odd_and_monotone(case):
    kind, x = case
    y = cast_to_dtype(x, kind)
    assert same_bytes(cast_to_dtype(y, kind), y)
    assert same_bytes(cast_to_dtype(-x, kind), -y)
    ordered = y[np.argsort(x, kind="stable")]
    ordered = ordered[~np.isnan(ordered)]
    assert (ordered[1:] >= ordered[:-1]).all()


@pytest.mark.parametrize("kind", CASTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_cast_is_a_new_array_of_its_shape_whatever_the_layout_and_leaves_the_input(kind, dtype):
    plain = np.arange(-6, 6).astype(dtype).reshape(3, 4) / dtype(3)
    expected = by_integers(plain.ravel(), kind).reshape(3, 4)
    for x in (plain, np.asfortranarray(plain), np.repeat(plain, 2, axis=1)[:, ::2], plain[::-1][::-1]):
        kept = x.copy()
        x.flags.writeable = False
        y = cast_to_dtype(x, kind)
        assert type(y) is np.ndarray
        assert same_bytes(y, expected)
        assert same_bytes(x, kept)
        assert not np.shares_memory(x, y)
        assert y.flags.writeable
    for x in (plain[0, 0], np.array(plain[0, 0]), np.zeros((2, 0), dtype)):
        y = cast_to_dtype(x, kind)
        assert type(y) is np.ndarray
        assert (y.shape, y.dtype) == (x.shape, STORED_IN[kind])


# The masks


@given(inputs())
@example(("float16", np.array([1e-8, 1, 1e-9, 2, 0, -0.0], np.float32)))
def test_the_masks_are_where_the_size_lies_beyond_the_format(case):
    kind, x = case
    bits, smallest, end = FORMATS[kind]
    kept, infinite = Fraction(2) ** (smallest - 1), Fraction(2) ** end - Fraction(2) ** (end - bits - 1)
    y = cast_to_dtype(x, kind)
    sizes = [abs(Fraction(value)) if isfinite(value) else None for value in x.tolist()]
    underflow, overflow = detect_underflow(x, y), detect_overflow(y)
    assert underflow.dtype == overflow.dtype == bool
    assert underflow.tolist() == [size is not None and 0 < size <= kept for size in sizes]
    expected = [np.isinf(value) if size is None else size >= infinite for size, value in zip(sizes, x, strict=True)]
    assert overflow.tolist() == expected


def masks(underflow=detect_underflow, overflow=detect_overflow):
    original = np.array([1e-8, -1e-8, 0, -0.0, 0.5, 7e4, -7e4, np.inf, np.nan], np.float32)
    casted = cast_to_dtype(original, "float16")
    found = underflow(original, casted), overflow(casted)
    return ["".join(str(int(x)) for x in mask) for mask in found]


def test_the_masks_of_every_sort_of_number():
    assert masks() == ["110000000", "000001110"]


MASK_FAULTS = {
    "zeros taken for underflow": ({"underflow": lambda x, y: y == 0}, ["111100000", "000001110"]),
    "negative underflow missed": ({"underflow": lambda x, y: (x > 0) & (y == 0)}, ["100000000", "000001110"]),
    "small numbers taken for underflow": (
        {"underflow": lambda x, y: (x != 0) & (np.abs(y) < 1)},
        ["110010000", "000001110"],
    ),
    "NaN taken for overflow": ({"overflow": lambda y: ~np.isfinite(y)}, ["110000000", "000001111"]),
    "negative overflow missed": ({"overflow": lambda y: y == inf}, ["110000000", "000001010"]),
    "the largest taken for overflow": ({"overflow": lambda y: np.abs(y) >= 0.5}, ["110000000", "000011110"]),
}


@pytest.mark.parametrize("fault", MASK_FAULTS)
def test_a_fault_in_a_mask_shows(fault):
    wrong, found = MASK_FAULTS[fault]
    assert masks(**wrong) == found != masks()


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (3, 4)])
def test_masks_are_arrays_of_the_shape(shape):
    x = np.zeros(shape, np.float32)
    for mask in (detect_underflow(x, x), detect_overflow(x)):
        assert type(mask) is np.ndarray
        assert (mask.shape, mask.dtype) == (shape, np.dtype(bool))


# Bad input


@pytest.mark.parametrize("dtype", ["float64", "int8", "half", "FLOAT16", "", None, 16, np.float16, ["float16"]])
def test_an_unknown_format_is_refused(dtype):
    with pytest.raises(ValueError, match="cast_to_dtype: dtype: expected one of float16, bfloat16, float32, found "):
        cast_to_dtype(np.zeros(1, np.float32), dtype)


@pytest.mark.parametrize(
    ("x", "found"),
    [
        ([1.0], "list"),
        (1.0, "float"),
        (None, "NoneType"),
        (np.arange(3), "int64 array"),
        (np.zeros(2, bool), "bool array"),
        (np.zeros(2, complex), "complex128 array"),
        (np.zeros(2, object), "object array"),
        (np.zeros(2, ">f4"), ">f4 array"),
    ],
)
def test_what_is_no_array_of_floats_is_refused(x, found):
    good = np.zeros(3, np.float32)
    for call, where in (
        (lambda: cast_to_dtype(x, "float16"), "cast_to_dtype: x"),
        (lambda: detect_underflow(x, good), "detect_underflow: original"),
        (lambda: detect_underflow(good, x), "detect_underflow: casted"),
        (lambda: detect_overflow(x), "detect_overflow: casted"),
    ):
        with pytest.raises(
            TypeError, match=f"^{where}: expected an array of float16, float32 or float64, found {found}"
        ):
            call()


@pytest.mark.parametrize("shape", [(), (1,), (3, 1), (4,)])
def test_masks_of_two_shapes_are_refused_rather_than_broadcast(shape):
    with pytest.raises(ValueError, match=r"detect_underflow: expected one shape, found \(3,\) and \("):
        detect_underflow(np.zeros(3, np.float32), np.zeros(shape, np.float16))


@pytest.mark.parametrize("scale", [-1.0, -(2.0**-149), inf, -inf, nan])
def test_a_scale_that_no_state_holds_is_refused(scale):
    for call, where in (
        (lambda: unscale_gradients([np.ones(2, np.float32)], scale), "unscale_gradients"),
        (lambda: unscale_gradients({}, scale), "unscale_gradients"),
    ):
        with pytest.raises(ValueError, match=f"^{where}: scale: expected a finite number >= 0, found {scale!r}"):
            call()


# The number line: limits


def test_the_limits_are_those_of_numpys_types_and_of_bfloat16():
    for name, dtype, bits in (("float16", np.float16, 16), ("float32", np.float32, 32), ("float64", np.float64, 64)):
        info = np.finfo(dtype)
        known = [info.smallest_subnormal, info.smallest_normal, info.max, info.eps]
        assert limits(name) == Limits(name, bits, info.nmant + 1, *map(float, known))
    assert limits("bfloat16") == Limits("bfloat16", 16, 8, 2.0**-133, 2.0**-126, 255 * 2.0**120, 2.0**-7)


def test_the_limits_are_numbers_of_the_format_and_what_lies_beyond_is_not():
    for name in CASTS:
        found = limits(name)
        x = np.array([found.smallest_subnormal, found.smallest_normal, found.largest, 1 + found.epsilon])
        assert cast_to_dtype(x, name).tolist() == x.tolist()
        beyond = np.array([found.smallest_subnormal / 2, found.largest * (1 + found.epsilon), 1 + found.epsilon / 2])
        assert cast_to_dtype(beyond, name).tolist() == [0, inf, 1]


# The number line: gradients


def test_the_gradients_are_those_that_the_runs_own_steps_take():
    """SGD's buffer is the gradient after its first step; so each state of the run is handed to SGD for one step."""
    config, data = RunConfig(hidden=(5,), batch_size=4, dropout=0.3, learning_rate=0.05), small_data(samples=12)
    found = list(gradients_of(config, data, 7))  # over the end of the second epoch
    adam = RunConfig(hidden=(5,), batch_size=4, dropout=0.3, learning_rate=0.05, beta1=0.0)
    sgd = RunConfig(hidden=(5,), batch_size=4, dropout=0.3, learning_rate=0.05, optimizer="sgd")
    run = numpy_ref.init_run(adam, data)
    for gradient in found:
        state = copy_tree(run.state)._replace(optimizer=init_sgd(parameters(run.state.model), momentum=sgd.momentum))
        other = numpy_ref.restore(sgd, state, run_id=run.run_id, fingerprint=run.fingerprint)
        buffers = numpy_ref.train_n_steps(other, data, 1).state.optimizer.momentum_buffer
        np.testing.assert_array_equal(gradient, np.concatenate([b.ravel() for b in buffers.values()]))
        run = numpy_ref.train_n_steps(run, data, 1)
    assert len({gradient.tobytes() for gradient in found}) == 7


@pytest.mark.parametrize("setting", ["beta1", "weight_decay"])
def test_momentum_or_decay_would_be_told_from_the_gradients(setting, monkeypatch):
    config, data = RunConfig(hidden=(5,), batch_size=4, weight_decay=0.5), small_data(samples=12)
    right = [g.tobytes() for g in gradients_of(config, data, 2)]
    plain = [g.tobytes() for g in gradients_of(RunConfig(hidden=(5,), batch_size=4), data, 2)]
    assert right == plain
    kept = {setting: getattr(config, setting)}
    monkeypatch.setattr(number_line, "init_run", lambda c, d: numpy_ref.init_run(dataclasses.replace(c, **kept), d))
    assert [g.tobytes() for g in gradients_of(config, data, 2)] != right


def test_the_command_is_deterministic_and_plain_values_go_out():
    result = run_range(steps=3, scale=2.0**20)
    assert result == run_range(steps=3, scale=2.0**20)
    assert result.steps == 3
    assert result.gradients + result.zeros == 3 * (64 * 64 + 64 + 64 * 64 + 64 + 64 * 10 + 10)
    assert sum(result.counts.values()) == sum(result.scaled_counts.values()) == result.gradients
    plain = json.loads(json.dumps(result.as_json()))
    assert plain["formats"][0]["format"] == "float16"
    assert plain["shares"][0] == result.shares[0]._asdict()
    assert set(plain) == set(result._fields)
    expected = range_of(list(gradients_of(CONFIG, numpy_ref.load_data("digits"), 3)), 2.0**20)
    assert result == expected


@pytest.mark.parametrize("scale", [0.0, -1.0, inf, nan, 1e39, 1e-60])
def test_a_scale_that_no_loss_could_have_is_refused(scale):
    with pytest.raises(ValueError, match="run_range: scale: expected a number > 0, finite in float32, found "):
        run_range(steps=1, scale=scale)


@pytest.mark.parametrize("steps", [0, -1, 1.5, True, "3"])
def test_steps_that_are_none_are_refused(steps):
    with pytest.raises(ValueError, match="run_range: steps: expected an integer from 1 to "):
        run_range(steps=steps, scale=1.0)


def test_a_scale_is_taken_as_float32():
    assert run_range(steps=1, scale=1000.1).scale == float(np.float32(1000.1))


# The number line: counts and shares


SMALL = [
    np.array([0, -0.0, 1, -1.5, 2.0**-25, -(2.0**-26), 3 * 2.0**-26, 2.0**-20], np.float32),
    np.array([40000, -1.25 * 2.0**-14, 1.75], np.float32),
]


def test_a_histogram_by_hand():
    result = range_of(SMALL, 2.0)
    assert (result.steps, result.scale, result.gradients, result.zeros) == (2, 2.0, 9, 2)
    assert list(result.counts.items()) == [(-26, 1), (-25, 2), (-20, 1), (-14, 1), (0, 3), (15, 1)]
    assert list(result.scaled_counts.items()) == [(-25, 1), (-24, 2), (-19, 1), (-13, 1), (1, 3), (16, 1)]
    assert result.best_scale == 1.0
    assert result.shares == [
        Shares("float16", 1.0, 2 / 9, 2 / 9, 0.0),  # 2**-25 and 2**-26 are lost; 3 * 2**-26 becomes 2**-24
        Shares("float16", 2.0, 1 / 9, 3 / 9, 1 / 9),
        Shares("bfloat16", 1.0, 0.0, 0.0, 0.0),
        Shares("bfloat16", 2.0, 0.0, 0.0, 0.0),
    ]


@given(SEEDS, st.sampled_from(["wide", "normal", "subnormal", "bits", "huge"]), st.sampled_from([2.0**16, 3.0, 1e-3]))
def test_counts_and_shares_are_those_of_single_numbers(seed, kind, scale):
    rng, scale = np.random.default_rng(seed), float(np.float32(scale))
    gradients = [numbers(rng, kind, (n,)) for n in (7, 0, 64)]
    result = range_of(gradients, scale)
    values = [Fraction(x) for g in gradients for x in g.tolist() if x]
    for counts, factor in ((result.counts, 1), (result.scaled_counts, Fraction(scale))):
        assert list(counts) == sorted(counts)
        assert sum(counts.values()) == len(values)
        for exponent, n in counts.items():
            assert sum(Fraction(2) ** exponent <= abs(x * factor) < Fraction(2) ** (exponent + 1) for x in values) == n
    seen = {(s.format, s.scale) for s in result.shares}
    assert seen == {(k, s) for k in ("float16", "bfloat16") for s in (1.0, scale, result.best_scale)}
    for s in result.shares:
        rounded = [abs(float(nearest(x * Fraction(s.scale), s.format))) for x in values]
        smallest = 2.0 ** (FORMATS[s.format][0] + FORMATS[s.format][1] - 1)
        found = [sum(y == 0 for y in rounded), sum(0 < y < smallest for y in rounded), sum(y == inf for y in rounded)]
        assert [s.lost, s.subnormal, s.overflow] == [n / len(values) for n in found]


@given(st.floats(2.0**-149, 2.0**127, width=32), st.booleans())
@example(65519.0, False)
@example(65520.0, True)
@example(2.0**16, False)
@example(1.0, True)
def test_the_best_scale_is_the_largest_power_of_two_without_overflow(top, negative):
    x = np.array([-top if negative else top, top / 2], np.float32)
    best = range_of([x[1:], x], 1.0).best_scale
    assert best.as_integer_ratio()[0] == 1 or best.as_integer_ratio()[1] == 1
    assert np.frexp(best)[0] == 0.5
    finite = [bool(np.isfinite(cast_to_dtype(x.astype(np.float64) * s, "float16")).all()) for s in (best, 2 * best)]
    assert finite == [True, False]


# Each fault: a function of the module, and a wrong one.
COUNT_FAULTS = {
    "a product that rounds to 2**16": ("_best_scale", lambda top: math.ldexp(1, 16 - math.frexp(top)[1])),
    "the largest of the positive numbers": ("_best_scale", lambda top: RIGHT._best_scale(40000.0)),
    "exponents one too high": ("_histogram", lambda *args: {e + 1: n for e, n in RIGHT._histogram(*args).items()}),
    "counts not scaled": ("_histogram", lambda nonzero, scale: RIGHT._histogram(nonzero, 1.0)),
    "casts not scaled": ("_shares", lambda x, name, scale: RIGHT._shares(x, name, 1.0)._replace(scale=scale)),
    "nothing lost": ("detect_underflow", lambda original, casted: np.zeros(original.shape, bool)),
    "the smallest normal taken for subnormal": (
        "limits",
        lambda name: limits(name)._replace(smallest_normal=limits(name).smallest_normal * (1 + limits(name).epsilon)),
    ),
    "negative numbers taken for zero": (
        "range_of",
        lambda gradients, scale: range_of([np.maximum(g, 0) for g in gradients], scale),
    ),
    "all taken for zeros": ("range_of", lambda *args: range_of(*args)._replace(zeros=13)),
}


@pytest.mark.parametrize("fault", COUNT_FAULTS)
def test_a_fault_in_the_counts_shows(fault, monkeypatch):
    gradients = [*SMALL, np.array([-65530, 2.0**-14], np.float32)]
    right = range_of(gradients, 2.0)
    monkeypatch.setattr(number_line, *COUNT_FAULTS[fault])
    assert number_line.range_of(gradients, 2.0)._replace(formats=right.formats) != right


# The number line: lines


def parsed(text):
    """start, region, two counts and two lengths of bars of each line of the number line, in their order."""
    first = next(i for i, line in enumerate(text) if line.split()[:2] == ["from", "float16"]) + 1
    rows = []
    for line in text[first : text.index("", first)]:
        width = 19 + 9 + 1 + BAR + 1
        left, right = line[19:width], line[width:]
        rows.append(
            (
                line[:6].strip(),
                line[8:17].strip(),
                *[int(s.split()[0]) for s in (left, right)],
                *[s.count("#") for s in (left, right)],
            )
        )
    return rows


def test_the_number_line_marks_float16s_limits_and_draws_what_was_counted():
    rows = parsed(lines(range_of(SMALL, 2.0)))
    assert [row[:2] for row in rows] == [
        ("2^16", "overflow"),
        *[(f"2^{e}", "normal") for e in range(14, -15, -2)],
        *[(f"2^{e}", "subnormal") for e in (-15, -17, -19, -21, -23, -25)],
        ("2^-27", "lost"),
    ]
    drawn = {row[0]: row[2:] for row in rows if any(row[2:])}
    third = -(-BAR // 3)
    assert drawn == {
        "2^16": (0, 1, 0, third),
        "2^14": (1, 0, third, 0),
        "2^0": (3, 3, BAR, BAR),
        "2^-14": (1, 1, third, third),
        "2^-19": (0, 1, 0, third),
        "2^-21": (1, 0, third, 0),
        "2^-25": (2, 3, 2 * BAR // 3 + 1, BAR),
        "2^-27": (1, 0, third, 0),
    }


@given(SEEDS, st.sampled_from(["wide", "normal", "subnormal", "huge"]), st.sampled_from([1.0, 2.0**16, 1e-3, 2.0**100]))
def test_lines_are_narrow_hold_every_gradient_and_none_lies_on_both_sides_of_a_limit(seed, kind, scale):
    result = range_of([numbers(np.random.default_rng(seed), kind, (64,))], float(np.float32(scale)))
    text = lines(result)
    assert max(map(len, text)) <= 100
    assert all(line == line.rstrip() for line in text)
    rows = parsed(text)
    assert sum(row[2] for row in rows) == sum(row[3] for row in rows) == result.gradients
    starts = [int(row[0].removeprefix("2^")) for row in rows]
    assert starts == sorted(starts, reverse=True)
    assert {-25, -14, 16} <= set(starts)
    assert all(1 <= high - low <= 2 for high, low in pairwise(starts))
    named = ["lost" if s < -25 else "subnormal" if s < -14 else "normal" if s < 16 else "overflow" for s in starts]
    assert [row[1] for row in rows] == named
    for column in (2, 3):
        assert all((row[column] > 0) == (row[column + 2] > 0) for row in rows)
        assert max(row[column + 2] for row in rows) == (BAR if result.gradients else 0)


def test_the_text_says_what_was_found():
    text = lines(range_of(SMALL, 2.0))
    for line in (
        "float16   16    11           2^-24               2^-14            65504         2^-10",
        "bfloat16  16    8            2^-133              2^-126           3.38953e+38   2^-7",
        "9 gradients, and 2 that are 0: digits, Adam without momentum, 2 updates;",
        "float16 makes 0 of sizes up to 2^-25, and infinity of 65520 and more",
        "float16   1      22.2 %  22.2 %     0 %",
        "float16   2^1    11.1 %  33.3 %     11.1 %",
        "the largest power of two at which nothing overflows in float16: 1",
    ):
        assert line in text
    assert "scaled by 1000" in "\n".join(lines(range_of(SMALL, 1000.0)))


def test_gradients_that_are_all_zero_are_drawn_too():
    rows = parsed(lines(range_of([np.zeros(3, np.float32)], 2.0)))
    assert not any(n for row in rows for n in row[2:])


DRAWING_FAULTS = {
    "lines that start one binade too high": (
        "_groups",
        lambda exponents: [(start + 1, end + 1, region) for start, end, region in RIGHT._groups(exponents)],
    ),
    "limits of subnormals one binade too high": ("_groups", in_formats(RIGHT._groups, smallest=1)),
    "bars rounded down": ("math", SimpleNamespace(**vars(math) | {"ceil": int})),
    "the first binade of a line left out": (
        "_number_line",
        lambda r: RIGHT._number_line(r._replace(counts={e: n for e, n in r.counts.items() if e % 2})),
    ),
    "from the smallest up": ("_number_line", lambda r: RIGHT._number_line(r)[::-1]),
    "shares for percent": (
        "lines",
        lambda r: lines(r._replace(shares=[s._replace(lost=s.lost / 100) for s in r.shares])),
    ),
    "float16 with one bit fewer": ("lines", in_formats(lines, precision=-1)),
}


@pytest.mark.parametrize("fault", DRAWING_FAULTS)
def test_a_fault_in_the_drawing_shows(fault, monkeypatch):
    found = range_of([*SMALL, np.full(100, 3, np.float32)], 2.0)
    right = lines(found)
    monkeypatch.setattr(number_line, *DRAWING_FAULTS[fault])
    assert number_line.lines(found) != right
