"""RunConfig: what it refuses, in which words, and that it survives JSON."""

import dataclasses
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref import config as config_module
from numpy_ref.config import RunConfig, decode_config, describe_config, differing_fields, encode_config
from parity_tests.strategies import run_configs

FIELDS = {field.name: field for field in dataclasses.fields(RunConfig)}
FLOATS = [name for name, field in FIELDS.items() if field.type is float]
WHOLE = [name for name, field in FIELDS.items() if field.type is int]
FLAGS = [name for name, field in FIELDS.items() if field.type is bool]
WORDS = [name for name, field in FIELDS.items() if field.type is str]
BELOW_ONE = ["dropout", "beta1", "beta2", "momentum", "dampening"]
ABOVE_ZERO = ["learning_rate", "eps", "gamma", "init_scale", "backoff_factor"]
FROM_ONE = ["batch_size", "accumulation", "step_size", "total_steps", "evaluate_every", "growth_interval"]
HUGE = pytest.param(10**400, id="10**400")

OUT_OF_RANGE = [
    *((name, value) for name in FLOATS for value in (-0.5, -5e-324, math.inf, -math.inf, math.nan)),
    *((name, value) for name in BELOW_ONE for value in (1.0, 1.5)),
    *((name, value) for name in ABOVE_ZERO for value in (0.0, -0.0)),
    *((name, value) for name in FROM_ONE for value in (0, -1)),
    *((name, -1) for name in ("seed", "warmup_steps", "recompute_segments")),
    *(("growth_factor", value) for value in (1.0, 0.0)),
    ("backoff_factor", 1.0),
    ("seed", 2**64),
    *(("hidden", value) for value in ((0,), (3, -1), (4, 0, 4))),
    *((name, value) for name in WORDS for value in ("", "Adam", "none")),
]
OTHER_TYPE = [
    *((name, value) for name in FLOATS for value in ("0.5", None, True, np.True_, 1j, np.array([0.5]))),
    *((name, value) for name in WHOLE for value in ("1", None, True, np.True_, 1.0, np.float32(1), np.array([1]))),
    *((name, value) for name in FLAGS for value in (0, 1, "yes", None, np.int64(1))),
    *((name, value) for name in WORDS for value in (None, 1, b"adam", ("adam",))),
    *(("hidden", value) for value in (3, "12", None, {3: 4}, (1.0,), (True,), ("3",), ((3,),), np.array([3, 4]))),
]


def culprit(name: str, value: object) -> object:
    """What an error about the field shows: the element at fault where only that is of another type."""
    value = value.item() if isinstance(value, np.generic) else value
    return value[0] if name == "hidden" and isinstance(value, tuple) else value


@pytest.mark.parametrize(("name", "value"), OUT_OF_RANGE)
def test_a_value_out_of_range_is_refused_by_name_with_what_was_expected_and_found(name, value):
    with pytest.raises(ValueError, match=r"^RunConfig: ") as caught:
        RunConfig(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"RunConfig: {name}: expected ")
    assert message.endswith(f", found {value!r}")
    assert ";" not in message


@pytest.mark.parametrize(("name", "value"), OTHER_TYPE)
def test_a_value_of_another_type_is_refused_by_name_with_what_was_expected_and_found(name, value):
    with pytest.raises(TypeError, match=r"^RunConfig: ") as caught:
        RunConfig(**{name: value})
    message = str(caught.value)
    assert message.startswith(f"RunConfig: {name}: expected ")
    assert message.endswith(f", found {culprit(name, value)!r}")


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("value", [math.inf, math.nan, np.float32(math.inf), np.float64(math.nan), HUGE])
def test_no_field_takes_a_number_that_is_not_a_finite_float(name, value):
    with pytest.raises(ValueError, match=f"RunConfig: {name}: expected .*, found"):
        RunConfig(**{name: value})


def test_every_field_at_fault_is_named_at_once_in_the_fields_order():
    bad = {
        name: next(value for field, value in OUT_OF_RANGE if field == name)
        for name in FIELDS
        if FIELDS[name].type is not bool
    }
    with pytest.raises(ValueError, match=r"^RunConfig: ") as caught:
        RunConfig(**bad)
    assert [part.split(":")[0] for part in str(caught.value).removeprefix("RunConfig: ").split("; ")] == list(bad)


def test_every_field_of_another_type_is_named_at_once_in_the_fields_order():
    with pytest.raises(TypeError, match=r"^RunConfig: ") as caught:
        RunConfig(**dict.fromkeys(FIELDS))
    assert [part.split(":")[0] for part in str(caught.value).removeprefix("RunConfig: ").split("; ")] == list(FIELDS)


def test_a_field_of_another_type_does_not_hide_one_out_of_range():
    with pytest.raises(TypeError, match=r"seed: expected .*batch_size: expected"):
        RunConfig(seed="zero", batch_size=0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"nesterov": True, "momentum": 0.0}, "nesterov"),
        ({"nesterov": True, "dampening": 0.5}, "nesterov"),
        ({"schedule": "warmup_cosine", "warmup_steps": 5, "total_steps": 5}, "warmup_steps"),
        ({"schedule": "warmup_cosine", "warmup_steps": 6, "total_steps": 5}, "warmup_steps"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(values, named):
    with pytest.raises(ValueError, match=f"RunConfig: {named}: "):
        RunConfig(**values)
    without = {name: value for name, value in values.items() if name not in ("nesterov", "schedule")}
    assert isinstance(RunConfig(**without), RunConfig)  # each value is fine where the other setting is not used


def test_no_more_segments_than_layers_are_computed_again():
    assert RunConfig(hidden=(3, 3), recompute_segments=3).recompute_segments == 3
    with pytest.raises(ValueError, match="RunConfig: recompute_segments: expected at most 3 layers, found 4"):
        RunConfig(hidden=(3, 3), recompute_segments=4)


def test_the_ends_of_every_range_are_taken():
    lowest = {"seed": 0, "hidden": (), "warmup_steps": 0, "noise": 0.0, "weight_decay": 0.0, "recompute_segments": 0}
    lowest |= {"growth_factor": math.nextafter(1.0, 2.0)}
    lowest |= dict.fromkeys(BELOW_ONE, 0.0) | dict.fromkeys(FROM_ONE, 1)
    highest = {"seed": 2**64 - 1, "hidden": (1, 1)} | dict.fromkeys(BELOW_ONE, math.nextafter(1.0, 0.0))
    for values in (lowest, highest):
        made = RunConfig(**values)
        assert {name: getattr(made, name) for name in values} == values


def test_numpy_numbers_become_plain_ones():
    made = RunConfig(
        seed=np.uint64(2**64 - 1),
        hidden=[np.int32(3), np.uint8(4)],
        dropout=np.float64(0.25),
        batch_norm=np.False_,
        noise=np.int64(1),
        batch_size=np.int16(5),
        optimizer=np.str_("sgd"),
        learning_rate=np.float32(0.125),
        momentum=0,
    )
    kinds = {name: type(getattr(made, name)) for name in FIELDS}
    assert kinds == {name: tuple if name == "hidden" else field.type for name, field in FIELDS.items()}
    assert made.hidden == (3, 4)
    assert [type(size) for size in made.hidden] == [int, int]
    assert (made.seed, made.noise, made.batch_size, made.learning_rate) == (2**64 - 1, 1.0, 5, 0.125)


def test_it_is_frozen_and_takes_no_positional_or_unknown_argument():
    made = RunConfig()
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.seed = 1
    with pytest.raises(TypeError):
        RunConfig(1)
    with pytest.raises(TypeError, match="warmup"):
        RunConfig(warmup=3)
    assert hash(made) == hash(RunConfig())
    with pytest.raises(ValueError, match="batch_size"):
        dataclasses.replace(made, batch_size=0)  # checked again


@given(run_configs(), st.floats(1e-45, 3e38))
def test_it_survives_json(pair, rate):
    config = dataclasses.replace(pair[0], learning_rate=rate)
    text = json.dumps(encode_config(config), allow_nan=False)
    found = decode_config(json.loads(text))
    assert found == config
    assert differing_fields(found, config) == []
    assert json.dumps(encode_config(found)) == text
    assert all(type(getattr(found, name)) is type(getattr(config, name)) for name in FIELDS)


def test_decoding_takes_every_field_and_no_other():
    values = encode_config(RunConfig())
    assert list(values) == list(FIELDS)
    with pytest.raises(ValueError, match=r"unknown fields \['colour'\], missing fields \['beta1', 'seed'\]"):
        decode_config({name: v for name, v in values.items() if name not in ("seed", "beta1")} | {"colour": 1})
    with pytest.raises(ValueError, match="beta1: expected 0 <= beta1 < 1, found 1"):
        decode_config(values | {"beta1": 1.0})
    with pytest.raises(TypeError, match="seed: expected a whole number, found '0'"):
        decode_config(values | {"seed": "0"})


@given(run_configs(), run_configs())
def test_differing_fields_names_each_with_both_values(first, second):
    found, expected = first[0], second[0]
    lines = differing_fields(found, expected)
    names = [name for name in FIELDS if getattr(found, name) != getattr(expected, name)]
    assert [line.split(":")[0] for line in lines] == names
    for name, line in zip(names, lines, strict=True):
        assert line == f"{name}: expected {getattr(expected, name)!r}, found {getattr(found, name)!r}"


@pytest.mark.parametrize(
    ("check", "accepted"),
    [
        ("_out_of_range", {"learning_rate": 2.0**-150}),
        ("_out_of_range", {"noise": config_module.FLOAT32_END}),
        ("_out_of_range", {"batch_size": 0}),
        ("_plain", {"seed": True}),
    ],
)
def test_a_check_left_out_would_be_seen(monkeypatch, check, accepted):
    with pytest.raises((ValueError, TypeError)):
        RunConfig(**accepted)
    replaced = {"_out_of_range": lambda field, value: [], "_plain": lambda value, kind: value}
    monkeypatch.setattr(config_module, check, replaced[check])
    RunConfig(**accepted)


def test_a_configuration_is_described_by_what_is_not_a_default():
    assert describe_config(RunConfig()) == "defaults"
    assert describe_config(RunConfig(hidden=(8,), optimizer="sgd")) == "hidden=(8,), optimizer='sgd'"
