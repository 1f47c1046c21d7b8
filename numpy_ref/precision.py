"""Formats of 16 bits: what they can hold, and dynamic loss scaling, which keeps gradients within it.

Gradients are small, and in float16 many vanish. So the loss is multiplied by a scale before the backward pass, and the
gradients by its inverse before the update. The scale is found by trial, by the rules of `torch.amp.GradScaler`: it
shrinks whenever a gradient overflows, and that update is skipped; it grows after many updates without one.

    scaled loss -> backward pass -> has_inf_or_nan of the scaled gradients -> unscale_gradients, update  (or neither)
                -> scaler_step

bfloat16 has the range of float32 and needs no scale. NumPy lacks it: its numbers are carried in float32 arrays.

Long, for the formats, the scale and its inverse are one chain, and each function says what torch does there.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from numpy_ref.arithmetic.fixedpoint import FORMATS
from numpy_ref.arithmetic.rounding import PLAIN, STORAGE
from numpy_ref.checks import number, whole_number

__all__ = [
    "ScalerState",
    "cast_to_dtype",
    "decode_scaler",
    "detect_overflow",
    "detect_underflow",
    "encode_scaler",
    "faults_of_scaler",
    "has_inf_or_nan",
    "init_scaler",
    "scale_loss",
    "scaler_step",
    "unscale_gradients",
]

Array = np.ndarray[Any, np.dtype[Any]]
Gradients = TypeVar("Gradients", list[Array], dict[str, Array])
Loss = TypeVar("Loss", bound=Any)


@np.errstate(over="ignore", invalid="ignore")  # infinities and NaN are carried through and put back at the end
def cast_to_dtype(x: Array, dtype: str) -> Array:
    """The nearest numbers of a format, ties to even, by integers; `rounding.round_to` is the fast way to the same.

        x = significand 2**exponent, both whole             the format keeps `precision` bits of the significand, fewer
        drop = bits below the format's last place           where the last place is the smallest subnormal
        kept = (significand + half of the last place - 1 + (last bit kept)) >> drop

    Args:
        x: float16, float32 or float64, any shape; left as it is.
        dtype: "float16", "bfloat16" or "float32".

    Returns:
        A new array of the format's type; bfloat16 is carried in float32. What rounds past the range is infinite, what
        is at most half of the smallest subnormal is zero with its sign, and NaN stays NaN.

    Raises:
        TypeError: `x` is no such array.
        ValueError: an unknown format.

    Mirror:
        `torch.Tensor.to`: the same bits for every float32 and every float16, and for float64 except where torch rounds
        twice, which `torch_port.precision.cast_to_dtype` does not.

    Example:
        >>> cast_to_dtype(np.array([1e-8, 65519.99, 65520, 1 + 2**-11], np.float32), "float16").tolist()
        [0.0, 65504.0, inf, 1.0]
    """
    _check_array("cast_to_dtype: x", x)
    if not isinstance(dtype, str) or dtype not in CASTS:
        raise ValueError(f"cast_to_dtype: dtype: expected one of {', '.join(CASTS)}, found {dtype!r}.")
    form = FORMATS[dtype]
    wide = x.astype(np.float64)
    bits = wide.view(np.int64) & (2**63 - 1)
    exponent = np.maximum(bits >> 52, 1) - 1075
    significand = (bits & (2**52 - 1)) | ((bits >> 52 > 0).astype(np.int64) << 52)
    drop = np.clip(np.maximum(53 - form.precision, form.smallest - exponent), 0, 54)
    kept = (significand + (np.int64(1) << drop >> 1) - 1 + (significand >> drop & 1)) >> drop
    size = np.ldexp(kept.astype(np.float64), exponent + drop)
    size = np.where(size >= 2.0**form.largest, np.inf, size)
    return np.asarray(np.where(np.isfinite(wide), np.copysign(size, wide), wide)).astype(STORAGE[dtype])


CASTS = ("float16", "bfloat16", "float32")


def detect_underflow(original: Array, casted: Array) -> Array:
    """Where a cast made zero of a number that was none.

    Args:
        original: before the cast, any shape.
        casted: after it, the same shape.

    Returns:
        bool, the shape.

    Raises:
        TypeError: an argument is no array of floats.
        ValueError: the shapes differ.

    Example:
        >>> x = np.array([1e-8, 1.0, 0.0], np.float32)
        >>> detect_underflow(x, cast_to_dtype(x, "float16"))
        array([ True, False, False])
    """
    _check_array("detect_underflow: original", original)
    _check_array("detect_underflow: casted", casted)
    if original.shape != casted.shape:
        raise ValueError(f"detect_underflow: expected one shape, found {original.shape} and {casted.shape}.")
    return np.asarray((original != 0) & (casted == 0))


def detect_overflow(casted: Array) -> Array:
    """Where a cast number is infinite.

    Args:
        casted: after a cast, any shape.

    Returns:
        bool, the shape.

    Raises:
        TypeError: no array of floats.

    Example:
        >>> detect_overflow(cast_to_dtype(np.array([65504, 65520, -1e30], np.float32), "float16"))
        array([False,  True,  True])
    """
    _check_array("detect_overflow: casted", casted)
    return np.asarray(np.isinf(casted))


class ScalerState(NamedTuple):
    """State of dynamic loss scaling.

    Resume:
        Without `scale` the first updates overflow and are skipped again, or small gradients vanish; without
        `growth_tracker` the scale grows later than it would have.
    """

    scale: float  # a float32 number
    growth_tracker: int  # updates without an overflow since the scale last changed


def init_scaler(*, init_scale: float = 2.0**16) -> ScalerState:
    """The state before the first update.

    Args:
        init_scale: > 0, rounded to float32, in which it must be finite and not 0.

    Raises:
        ValueError: it is not.
    """
    scale = _float32(number("init_scaler: init_scale", init_scale))
    if not 0 < scale < np.inf:
        raise ValueError(f"init_scaler: init_scale: expected a number > 0, finite in float32, found {init_scale!r}.")
    return ScalerState(scale, 0)


def scale_loss(loss: Loss, scale: float) -> Loss:
    """The loss times the scale: what the backward pass starts from.

    Args:
        loss: a number, or an array without axes; in float16 it becomes float32, the scale's type, as in torch.
        scale: of the state, >= 0.

    Returns:
        The product, a new object.

    Raises:
        ValueError: a scale that is negative, infinite or NaN.

    Example:
        >>> scale_loss(0.5, 1024.0)
        512.0
    """
    check_scale("scale_loss", scale)
    # As a float32 scalar: NumPy would take a plain number to float16, where 2**16 is infinite.
    with np.errstate(all="ignore"):  # an overflow is what `has_inf_or_nan` is for
        return loss * (scale if type(loss) in (int, float) else np.float32(scale))  # type: ignore[no-any-return]


def unscale_gradients(gradients: Gradients, scale: float) -> Gradients:
    """The gradients times the inverse of the scale.

        inverse = 1 / scale        formed in float64, rounded to float32
        g = g inverse              rounded to the gradient's own type; of float16 once, through float32

    Args:
        gradients: arrays of any shapes, in a list or by name; left as they are.
        scale: of the state, >= 0.

    Returns:
        New arrays of the same shapes and types.

    Raises:
        ValueError: a scale that is negative, infinite or NaN.
        TypeError: a single array, or arrays of other types than floats.

    Source:
        `torch.amp.GradScaler.unscale_`: multiplied, not divided, which differs unless the scale is a power of two. It
        refuses gradients in float16: weights that are trained with a scale are to be float32.

    Example:
        >>> unscale_gradients([np.array([1024, 2048], np.float32)], 1024.0)
        [array([1., 2.], dtype=float32)]
    """
    check_scale("unscale_gradients", scale)
    _check_gradients("unscale_gradients", gradients)
    for i, g in gradients.items() if isinstance(gradients, dict) else enumerate(gradients):
        _check_array(f"unscale_gradients: gradients[{i!r}]", g)
    with np.errstate(all="ignore"):  # a scale of 0 has an infinite inverse
        inverse = np.float32(np.float64(1) / np.float64(scale))
        if isinstance(gradients, dict):
            return {name: _times(g, inverse) for name, g in gradients.items()}
        return [_times(g, inverse) for g in gradients]


def has_inf_or_nan(gradients: Iterable[Array] | Mapping[str, Array]) -> bool:
    """Whether any element of any gradient is infinite or NaN; False when there is none.

    Asked of the scaled gradients, as torch does: unscaling may hide an overflow, or make one when the scale is below 1.

    Example:
        >>> has_inf_or_nan([np.ones(2), np.array([np.nan])]), has_inf_or_nan([])
        (True, False)
    """
    _check_gradients("has_inf_or_nan", gradients)
    arrays = gradients.values() if isinstance(gradients, Mapping) else gradients
    return not all(bool(np.isfinite(g).all()) for g in arrays)


def scaler_step(
    state: ScalerState,
    found_inf: bool,
    *,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> ScalerState:
    """The scale of the next update.

        scale = scale backoff_factor, tracker = 0      after an overflow; there is no floor
        tracker = tracker + 1                          otherwise; and if it is then growth_interval:
        scale = scale growth_factor, tracker = 0       the new scale only if it is finite

    Args:
        state: left as it is.
        found_inf: of this update's scaled gradients.
        growth_factor: > 1.
        backoff_factor: in (0, 1).
        growth_interval: >= 1.

    Returns:
        The state for the next update; products are formed in float64 and rounded to float32.

    Raises:
        ValueError: a setting out of its range, or a state that no scaler has.

    Source:
        `torch.amp.GradScaler.update`.

    Example:
        >>> state = ScalerState(scale=8.0, growth_tracker=1)
        >>> scaler_step(state, False, growth_interval=2), scaler_step(state, True)
        (ScalerState(scale=16.0, growth_tracker=0), ScalerState(scale=4.0, growth_tracker=0))
    """
    if faults := faults_of_scaler(state):
        raise ValueError(f"scaler_step: {'; '.join(faults)}.")
    if not number("scaler_step: growth_factor", growth_factor) > 1:
        raise ValueError(f"scaler_step: growth_factor: expected a number > 1, found {growth_factor!r}.")
    if not 0 < number("scaler_step: backoff_factor", backoff_factor) < 1:
        raise ValueError(f"scaler_step: backoff_factor: expected a number in (0, 1), found {backoff_factor!r}.")
    growth_interval = whole_number("scaler_step: growth_interval", growth_interval, 1, 2**31)
    if found_inf:
        return ScalerState(_float32(state.scale * backoff_factor), 0)
    tracker = state.growth_tracker + 1
    if tracker != growth_interval:  # so a tracker beyond a shortened interval never meets it, as in torch
        return ScalerState(state.scale, tracker)
    candidate = _float32(state.scale * growth_factor)
    return ScalerState(candidate if np.isfinite(candidate) else state.scale, 0)


def faults_of_scaler(state: ScalerState) -> list[str]:
    """What a scaler could not go on from, a line each.

    Args:
        state: of any values.

    Returns:
        No line where the scale is a finite float32 number >= 0 and the tracker an int from 0 to 2**31 - 1.
    """
    faults, (scale, tracker) = [], state
    if type(scale) is not float or not 0 <= scale < np.inf or _float32(scale) != scale:
        faults.append(f"scaler/scale: expected a finite float32 number >= 0, found {scale!r}")
    if type(tracker) is not int or not 0 <= tracker < 2**31:
        faults.append(f"scaler/growth_tracker: expected an int from 0 to {2**31 - 1}, found {tracker!r}")
    return faults


def encode_scaler(
    state: ScalerState | None,
    *,
    growth_factor: float = 2.0,
    backoff_factor: float = 0.5,
    growth_interval: int = 2000,
) -> dict[str, Any]:
    """The five entries of the stock scaler's state dict; none for a disabled scaler, which has no state.

    Args:
        state: of an enabled scaler, or None.
        growth_factor: as for `scaler_step`.
        backoff_factor: likewise.
        growth_interval: likewise.

    Source:
        `torch.amp.GradScaler.state_dict`, which loads it.

    Example:
        >>> encode_scaler(init_scaler())["scale"], encode_scaler(None)
        (65536.0, {})
    """
    if state is None:
        return {}
    return {
        "scale": state.scale,
        "growth_factor": growth_factor,
        "backoff_factor": backoff_factor,
        "growth_interval": growth_interval,
        "_growth_tracker": state.growth_tracker,
    }


def decode_scaler(values: Mapping[str, Any]) -> tuple[ScalerState, dict[str, Any]]:
    """The state of an enabled scaler, and its settings, from a stock state dict; the inverse of `encode_scaler`.

    Returns:
        The state, its scale rounded to float32, and the settings as `scaler_step` takes them.

    Raises:
        ValueError: an empty dict, which a disabled scaler leaves; missing entries; values out of their ranges.

    Source:
        `torch.amp.GradScaler.load_state_dict`, which takes any values and refuses the empty dict alone.

    Example:
        >>> decode_scaler(encode_scaler(ScalerState(8.0, 3), growth_interval=5))[0]
        ScalerState(scale=8.0, growth_tracker=3)
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"decode_scaler: expected a dict, found {type(values).__name__}.")
    if not values:
        raise ValueError(
            "decode_scaler: expected the state of an enabled scaler, found the empty one of a disabled scaler. Save "
            "with loss scaling enabled, or start with init_scaler."
        )
    names = ("growth_factor", "backoff_factor", "growth_interval")
    if missing := sorted({"scale", "_growth_tracker", *names} - values.keys()):
        raise ValueError(f"decode_scaler: missing {', '.join(missing)}; a scaler goes on with five entries.")
    scale = values["scale"]
    state = ScalerState(_float32(scale) if type(scale) in (int, float) else scale, values["_growth_tracker"])
    if faults := faults_of_scaler(state):
        raise ValueError(f"decode_scaler: {'; '.join(faults)}.")
    settings = {name: values[name] for name in names}
    scaler_step(state, False, **settings)  # refuses settings out of their ranges
    return state, settings


def _float32(value: float) -> float:
    """The nearest float32 number, as a Python float; infinite where float32 is."""
    with np.errstate(all="ignore"):
        try:
            return float(np.float32(value))
        except OverflowError:  # a whole number beyond float64
            return float(np.copysign(np.inf, 1 if value > 0 else -1))


def _times(g: Array, inverse: np.float32) -> Array:
    """The product in the wider of the two types, rounded to the gradient's own."""
    return np.asarray(g * inverse).astype(g.dtype, copy=False)


def check_scale(where: str, scale: float) -> None:
    """Refuse what no scaler's state holds; 0 is where a scale ends that shrinks for ever."""
    if not 0 <= number(f"{where}: scale", scale) < np.inf:
        raise ValueError(f"{where}: scale: expected a finite number >= 0, found {scale!r}.")


def check_precision(where: str, precision: str | None) -> None:
    """Refuse what is no format that layers compute in."""
    if precision is not None and precision not in CASTS:
        raise ValueError(f"{where}: precision: expected one of {', '.join(CASTS)}, or None, found {precision!r}.")


def _check_array(where: str, x: object) -> None:
    """Refuse what is no plain array of floats; lists and whole numbers have no format that could be compared."""
    plain = type(x) in PLAIN or isinstance(x, np.generic)
    if not plain or x.dtype not in (np.float16, np.float32, np.float64):  # type: ignore[attr-defined]
        found = f"{x.dtype} array" if type(x) is np.ndarray else type(x).__name__
        swapped = " in the other byte order" if type(x) is np.ndarray and not x.dtype.isnative else ""
        raise TypeError(f"{where}: expected an array of float16, float32 or float64, found {found}{swapped}.")


def _check_gradients(where: str, gradients: object) -> None:
    """Refuse an array that stands alone."""
    if isinstance(gradients, (np.ndarray, np.generic)):
        raise TypeError(f"{where}: expected a list or a dict of arrays, found a single array. Put it into a list.")
