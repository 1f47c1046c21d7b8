"""Dynamic loss scaling as pure functions: the rules of `torch.amp.GradScaler`.

Small gradients vanish in float16. So the loss is multiplied by a scale before the backward pass, and the gradients are
multiplied by its inverse before the update. The scale is found by trial: it shrinks whenever a gradient overflows, and
that update is skipped; it grows after many updates without one.

    scaled loss -> backward pass -> has_inf_or_nan of the scaled gradients -> unscale_gradients, update  (or neither)
                -> scaler_step
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import numpy as np

from numpy_ref.checks import whole_number

Array = np.ndarray[Any, np.dtype[Any]]
Gradients = TypeVar("Gradients", list[Array], dict[str, Array])
Loss = TypeVar("Loss", bound=Any)


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
    scale = _float32(init_scale)
    if not 0 < scale < np.inf:
        raise ValueError(f"init_scaler: init_scale: expected a number > 0, finite in float32, found {init_scale!r}.")
    return ScalerState(scale, 0)


def scale_loss(loss: Loss, scale: float) -> Loss:
    """The loss times the scale: what the backward pass starts from.

    Args:
        loss: a number, or an array without axes; in float16 it becomes float32, the scale's type, as in torch.
        scale: of the state.

    Returns:
        The product, a new object.

    Example:
        >>> scale_loss(0.5, 1024.0)
        512.0
    """
    # As a float32 scalar: NumPy would take a plain number to float16, where 2**16 is infinite.
    with np.errstate(all="ignore"):  # an overflow is what `has_inf_or_nan` is for
        return loss * (scale if isinstance(loss, (int, float)) else np.float32(scale))  # type: ignore[no-any-return]


def unscale_gradients(gradients: Gradients, scale: float) -> Gradients:
    """The gradients times the inverse of the scale.

        inverse = 1 / scale        formed in float64, rounded to float32
        g = g inverse              rounded to the gradient's own type; of float16 once, through float32

    Args:
        gradients: arrays of any shapes, in a list or by name; left as they are.
        scale: of the state.

    Returns:
        New arrays of the same shapes and types.

    Source:
        `torch.amp.GradScaler.unscale_`: multiplied, not divided, which differs unless the scale is a power of two.

    Example:
        >>> unscale_gradients([np.array([1024, 2048], np.float32)], 1024.0)
        [array([1., 2.], dtype=float32)]
    """
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
        ValueError: a setting out of its range.

    Source:
        `torch.amp.GradScaler.update`.

    Example:
        >>> state = ScalerState(scale=8.0, growth_tracker=1)
        >>> scaler_step(state, False, growth_interval=2), scaler_step(state, True)
        (ScalerState(scale=16.0, growth_tracker=0), ScalerState(scale=4.0, growth_tracker=0))
    """
    if not growth_factor > 1:
        raise ValueError(f"scaler_step: growth_factor: expected a number > 1, found {growth_factor!r}.")
    if not 0 < backoff_factor < 1:
        raise ValueError(f"scaler_step: backoff_factor: expected a number in (0, 1), found {backoff_factor!r}.")
    growth_interval = whole_number("scaler_step: growth_interval", growth_interval, 1, 2**31)
    if found_inf:
        return ScalerState(_float32(state.scale * backoff_factor), 0)
    tracker = state.growth_tracker + 1
    if tracker != growth_interval:  # so a tracker beyond a shortened interval never meets it, as in torch
        return ScalerState(state.scale, tracker)
    candidate = _float32(state.scale * growth_factor)
    return ScalerState(candidate if np.isfinite(candidate) else state.scale, 0)


def _float32(value: float) -> float:
    """The nearest float32 number, as a Python float; infinite where float32 is."""
    with np.errstate(all="ignore"):
        return float(np.float32(value))


def _times(g: Array, inverse: np.float32) -> Array:
    """The product in the wider of the two types, rounded to the gradient's own."""
    return np.asarray(g * inverse).astype(g.dtype, copy=False)
