"""RunConfig: everything that is decided before a run starts, validated once, the same for both packages."""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from numpy_ref.arithmetic.fixedpoint import CASTS

ABOVE_ZERO = 2.0**-150  # the largest number that float32 rounds to zero; as a lower end it is excluded
ABOVE_ONE = 1 + 2.0**-52  # the smallest number above 1
FLOAT32_END = 2.0**128 * (1 - 2.0**-25)  # the smallest that it rounds to infinity


def _field(default: Any, help: str, *, choices: tuple[str, ...] = (), low: float = 0, high: float | None = None) -> Any:
    """A dataclass field; numbers lie in [low, high), or in (low, high) above ABOVE_ZERO. Floats fit into float32."""
    if high is None:
        high = FLOAT32_END if isinstance(default, float) else 2**31
    return dataclasses.field(default=default, metadata={"help": help, "choices": choices, "low": low, "high": high})


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run. Frozen and checked when made; a checkpoint carries them.

    A step is a completed update, or in float16 one that was skipped because a gradient overflowed. It consumes
    `batch_size * accumulation` samples, fewer at the end of an epoch, and its loss is the mean over the samples it
    really consumed.

    Raises:
        ValueError: fields out of range, all of them in one message, or fields that contradict each other.
        TypeError: fields of another type.

    Example:
        >>> RunConfig(optimizer="sgd", learning_rate=0.1).schedule
        'constant'
        >>> RunConfig(beta1=1.5, dropout=1)
        Traceback (most recent call last):
        ...
        ValueError: RunConfig: dropout: expected 0 <= dropout < 1, found 1.0; beta1: expected 0 <= beta1 < 1, found 1.5
    """

    seed: int = _field(0, "seed of every random stream", high=2**64)
    hidden: tuple[int, ...] = _field((128, 128), "sizes of the hidden layers", low=1)
    dropout: float = _field(0.1, "share of hidden units dropped while training", high=1)
    batch_norm: bool = _field(False, "normalise each hidden layer over the batch")
    noise: float = _field(0.0, "half width of the uniform noise added to the inputs while training")
    batch_size: int = _field(32, "samples in a micro-batch", low=1)
    accumulation: int = _field(1, "micro-batches whose gradients make one step", low=1)
    optimizer: str = _field("adam", "update rule", choices=("adam", "adamw", "sgd"))
    learning_rate: float = _field(1e-3, "learning rate before the schedule", low=ABOVE_ZERO)
    beta1: float = _field(0.9, "Adam: decay of the first moment", high=1)
    beta2: float = _field(0.999, "Adam: decay of the second moment", high=1)
    eps: float = _field(1e-8, "Adam: added to the denominator", low=ABOVE_ZERO)
    amsgrad: bool = _field(False, "Adam: divide by the largest second moment so far")
    momentum: float = _field(0.9, "SGD: decay of the momentum buffer; 0 keeps no buffer", high=1)
    dampening: float = _field(0.0, "SGD: share of the gradient kept out of the buffer", high=1)
    nesterov: bool = _field(False, "SGD: look ahead along the buffer")
    weight_decay: float = _field(0.0, "L2 penalty (adam, sgd) or decoupled decay (adamw)")
    schedule: str = _field("constant", "learning rate over the steps", choices=("constant", "step", "warmup_cosine"))
    step_size: int = _field(100, "step schedule: steps between decays", low=1)
    gamma: float = _field(0.5, "step schedule: factor of a decay", low=ABOVE_ZERO)
    warmup_steps: int = _field(10, "warmup_cosine: steps of linear warm-up")
    total_steps: int = _field(1000, "warmup_cosine: step at which the rate reaches zero", low=1)
    evaluate_every: int = _field(25, "steps between evaluations, which keep the best weights so far", low=1)
    arithmetic: str = _field("reproducible", "whose sums and functions", choices=("reproducible", "native"))
    precision: str = _field("float32", "format in which layers compute; weights stay float32", choices=CASTS)
    init_scale: float = _field(2.0**16, "float16: scale of the loss at the start", low=ABOVE_ZERO)
    growth_factor: float = _field(2.0, "float16: factor by which the scale grows", low=ABOVE_ONE)
    backoff_factor: float = _field(
        0.5, "float16: factor by which an overflow shrinks the scale", low=ABOVE_ZERO, high=1
    )
    growth_interval: int = _field(2000, "float16: updates without an overflow before the scale grows", low=1)
    recompute_segments: int = _field(
        0, "segments of layers computed again in the backward pass; 0 keeps all activations"
    )

    def __post_init__(self) -> None:
        faults, wrong_types = [], []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            try:
                object.__setattr__(self, field.name, _plain(value, field.type))
            except TypeError as error:
                wrong_types.append(f"{field.name}: {error}")
            else:
                faults += _out_of_range(field, getattr(self, field.name))
        if wrong_types:
            raise TypeError("RunConfig: " + "; ".join(wrong_types + faults))
        if self.nesterov and (self.momentum == 0 or self.dampening != 0):
            faults.append("nesterov: needs momentum > 0 and dampening 0")
        if self.schedule == "warmup_cosine" and self.warmup_steps >= self.total_steps:
            faults.append(f"warmup_steps: expected less than total_steps {self.total_steps}, found {self.warmup_steps}")
        if self.recompute_segments > (layers := len(self.hidden) + 1):
            faults.append(f"recompute_segments: expected at most {layers} layers, found {self.recompute_segments}")
        if faults:
            raise ValueError("RunConfig: " + "; ".join(faults))

    @property
    def scales_loss(self) -> bool:
        """Whether losses are scaled: float16 alone loses gradients that float32 has."""
        return self.precision == "float16"


def _described(field: "dataclasses.Field[Any]") -> str:
    """A field for the docstring: what it is, its default, and its range."""
    meta = field.metadata
    if meta["choices"]:
        span = f"one of {', '.join(meta['choices'])}"
    elif field.type is bool:
        span = "True or False"
    else:
        low = "> 0" if meta["low"] == ABOVE_ZERO else "> 1" if meta["low"] == ABOVE_ONE else f">= {meta['low']:g}"
        span = low + ("" if meta["high"] in (FLOAT32_END, 2**31) else f", < {meta['high']}")
    return f"        {field.name}: {meta['help']}; {span}; default {field.default!r}."


_FIELDS = "\n".join(map(_described, dataclasses.fields(RunConfig)))
RunConfig.__doc__ = f"{RunConfig.__doc__}\n    Attributes:\n{_FIELDS}\n    "


def _plain(value: Any, kind: Any) -> Any:
    """The value as a plain Python object of the field's type; NumPy numbers and whole floats' ints are converted."""
    value = value.item() if isinstance(value, np.generic) else value
    if kind is bool or kind is str:
        if not isinstance(value, kind):
            raise TypeError(f"expected {kind.__name__}, found {value!r}")
        return value
    if isinstance(kind, types.GenericAlias):  # tuple[int, ...]
        if not isinstance(value, (tuple, list)):
            raise TypeError(f"expected a tuple of whole numbers, found {value!r}")
        return tuple(_plain(v, typing.get_args(kind)[0]) for v in value)
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else int):
        raise TypeError(f"expected {'a number' if kind is float else 'a whole number'}, found {value!r}")
    try:
        return kind(value)
    except OverflowError:  # a whole number beyond float64's range, which _out_of_range refuses
        return math.inf if value > 0 else -math.inf


def _out_of_range(field: dataclasses.Field[Any], value: Any) -> list[str]:
    low, high, choices = (field.metadata[key] for key in ("low", "high", "choices"))
    if choices:
        return [] if value in choices else [f"{field.name}: expected one of {', '.join(choices)}, found {value!r}"]
    if isinstance(value, (bool, str)):
        return []
    open_below = low == ABOVE_ZERO
    for number in value if isinstance(value, tuple) else (value,):
        if not (low < number < high if open_below else low <= number < high):
            end = high if isinstance(number, int) else f"{high:.3g}"
            start = "0 <" if open_below else "1 <" if low == ABOVE_ONE else f"{low} <="
            bounds = f"{start} {field.name} < {end}"
            kind = " in float32" if isinstance(number, float) and high == FLOAT32_END else ""
            return [f"{field.name}: expected {bounds}{kind}, found {value!r}"]
    return []


def encode_config(config: RunConfig) -> dict[str, Any]:
    """The configuration as JSON values."""
    return {name: list(v) if isinstance(v, tuple) else v for name, v in dataclasses.asdict(config).items()}


def decode_config(values: Mapping[str, Any]) -> RunConfig:
    """The configuration from JSON values.

    Raises:
        ValueError, TypeError: a field is unknown, missing, of another type or out of range.
    """
    names = {field.name for field in dataclasses.fields(RunConfig)}
    unknown, missing = sorted(set(values) - names), sorted(names - set(values))
    if unknown or missing:
        raise ValueError(f"RunConfig: unknown fields {unknown}, missing fields {missing}")
    return RunConfig(**values)


def differing_fields(found: RunConfig, expected: RunConfig) -> list[str]:
    """One line for each field in which two configurations differ: `beta1: expected 0.9, found 0.8`."""
    return [
        f"{f.name}: expected {getattr(expected, f.name)!r}, found {getattr(found, f.name)!r}"
        for f in dataclasses.fields(RunConfig)
        if getattr(found, f.name) != getattr(expected, f.name)
    ]


def describe_config(config: RunConfig) -> str:
    """The fields that differ from the defaults, as one line."""
    default = RunConfig()
    fields = [f"{name}={value!r}" for name, value in vars(config).items() if value != getattr(default, name)]
    return ", ".join(fields) or "defaults"
