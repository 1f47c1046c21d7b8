"""Optimizers, learning-rate schedules and loss scaling as pure functions of their state.

Parameters and gradients are dicts from a parameter's name to its array; moments are keyed by the same names. Evaluation
order follows PyTorch's documented algorithms, one rounding an operation and no fused multiply-add, so that the
distance to `torch.optim` stays at rounding. Numbers such as `1 - beta1` are formed in float64 and rounded once, to the
arrays' type. Every rule is elementwise, so that it may be evaluated block by block.

Gradients are small, and in float16 many vanish. So the loss is multiplied by a scale before the backward pass, and the
gradients by its inverse before the update. The scale is found by trial, by the rules of `torch.amp.GradScaler`: it
shrinks whenever a gradient overflows, and that update is skipped; it grows after many updates without one.

    scaled loss -> backward pass -> has_inf_or_nan of the scaled gradients -> unscale_gradients, update  (or neither)
                -> scaler_step

bfloat16 has the range of float32 and needs no scale.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np

from numpy_ref.arithmetic.operations import Arithmetic, cos_pi, power
from numpy_ref.checks import float_array, number, whole_number
from numpy_ref.types import Array, Arrays

Gradients = TypeVar("Gradients", list[Array], dict[str, Array])

BLOCK = 1 << 15  # numbers that a rule works on at once, so that its passes over them stay in the cache


class AdamState(NamedTuple):
    """State of Adam and AdamW.

    Resume:
        Without `t`, bias correction starts again as in the first step and the next steps have the wrong length.
        Without `m` the direction is forgotten; without `v` every element loses its own step size.
    """

    t: int  # completed updates
    m: Arrays  # first moments
    v: Arrays  # second moments
    v_max: Arrays  # largest second moments so far; empty without amsgrad


def init_adam(params: Mapping[str, Array], *, amsgrad: bool = False) -> AdamState:
    """The state before the first update: t = 0, moments zero."""
    return AdamState(0, _zeros(params), _zeros(params), _zeros(params) if amsgrad else {})


def adam_step(
    params: Mapping[str, Array],
    state: AdamState,
    grads: Mapping[str, Array],
    ops: Arithmetic,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    in_place: bool = False,
) -> tuple[Arrays, AdamState]:
    """One update of Adam, or of AdamW when `decoupled`.

        t = t + 1
        g = g + weight_decay w                    (Adam)        w = w (1 - learning_rate weight_decay)      (AdamW)
        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g g
        m_hat = m / (1 - beta1**t)                v_hat = v / (1 - beta2**t)       (amsgrad: of the largest v so far)
        w = w - (learning_rate m_hat) / (sqrt(v_hat) + eps)

    Args:
        params: name to array, any shapes.
        state: the state with moments of the same names and shapes.
        grads: gradients of the same names and shapes.
        ops: the arithmetic; only its square root is used.
        learning_rate: > 0.
        beta1: in [0, 1).
        beta2: in [0, 1).
        eps: > 0.
        weight_decay: >= 0.
        decoupled: shrink the weights directly instead of through the gradient.
        in_place: write over the arrays of `params` and `state`, which the caller gives up; each must be contiguous.

    Returns:
        New parameters and a new state; the arguments are left as they are, unless in place.

    Mirror:
        `torch_port.optim.Adam` and `AdamW`, the same bits under reproducible arithmetic.

    Source:
        Kingma, Ba 2015, algorithm 1; Loshchilov, Hutter 2019, algorithm 2; Reddi, Kale, Kumar 2018 (amsgrad). Against
        `torch.optim.Adam`: there the learning rate is divided by 1 - beta1**t and sqrt(v) by sqrt(1 - beta2**t), which
        rounds differently.

    Example:
        >>> from numpy_ref.arithmetic.operations import REPRODUCIBLE
        >>> w, g = {"w": np.ones(2, np.float32)}, {"w": np.array([3, -5], np.float32)}
        >>> w, state = adam_step(w, init_adam(w), g, REPRODUCIBLE, learning_rate=0.25)
        >>> w["w"], state.t
        (array([0.75, 1.25], dtype=float32), 1)
    """
    t = state.t + 1
    correction1, correction2 = 1 - power(beta1, t), 1 - power(beta2, t)

    def rule(new: list[Array], w: Array, m: Array, v: Array, *v_max: Array, g: Array) -> None:
        """The update of some elements, each result in memory that is there already; the new arrays may be the old."""
        real = w.dtype.type
        new_w, new_m, new_v, *new_max = new
        if weight_decay and decoupled:
            w = np.multiply(w, real(1 - learning_rate * weight_decay), out=new_w)
        elif weight_decay:
            g = g + real(weight_decay) * w
        change = g * real(1 - beta1)
        m = np.multiply(m, real(beta1), out=new_m)
        m += change
        square = np.multiply(g, g, out=change)
        square *= real(1 - beta2)
        v = np.multiply(v, real(beta2), out=new_v)
        v += square
        for largest, target in zip(v_max, new_max, strict=True):
            v = target
            np.copyto(v, np.where(new_v <= largest, largest, new_v))  # NaN stays
        root = ops.sqrt(np.divide(v, real(correction2), out=square))
        root += real(eps)
        change = np.divide(m, real(correction1), out=change)
        change *= real(learning_rate)
        change /= root
        np.subtract(w, change, out=new_w)

    old = [params, *(moments for moments in (state.m, state.v, state.v_max) if moments)]
    new, m, v, *v_max = _in_blocks(rule, old, grads, in_place)
    return new, AdamState(t, m, v, *v_max or [{}])


class SGDState(NamedTuple):
    """State of SGD with momentum. Zero buffers with t == 0 mean "no buffer yet"; without momentum there are none.

    Resume:
        Without the buffer the next updates forget the direction; without `t` the first gradient enters undamped again.
    """

    t: int  # completed updates
    momentum_buffer: Arrays


def init_sgd(params: Mapping[str, Array], *, momentum: float = 0.9) -> SGDState:
    """The state before the first update: t = 0, buffers zero, or none without momentum."""
    return SGDState(0, _zeros(params) if momentum else {})


def sgd_step(
    params: Mapping[str, Array],
    state: SGDState,
    grads: Mapping[str, Array],
    *,
    learning_rate: float,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    in_place: bool = False,
) -> tuple[Arrays, SGDState]:
    """One update of SGD with momentum.

        t = t + 1
        g = g + weight_decay w
        b = g                                     in the first update
        b = momentum b + (1 - dampening) g        after it
        d = g + momentum b                        (Nesterov)       d = b
        w = w - learning_rate d

    Args:
        params: name to array, any shapes.
        state: the state with buffers of the same names and shapes.
        grads: gradients of the same names and shapes.
        learning_rate: > 0.
        momentum: in [0, 1); 0 for plain gradient descent.
        dampening: in [0, 1).
        nesterov: use the gradient corrected by the buffer.
        weight_decay: >= 0.
        in_place: as for `adam_step`.

    Returns:
        New parameters and a new state; the arguments are left as they are, unless in place.

    Mirror:
        `torch_port.optim.SGD`, the same bits.

    Source:
        Sutskever, Martens, Dahl, Hinton 2013, with the learning rate outside the buffer as in `torch.optim.SGD`.

    Example:
        >>> w, g = {"w": np.ones(1, np.float32)}, {"w": np.ones(1, np.float32)}
        >>> w, state = sgd_step(w, init_sgd(w), g, learning_rate=0.5)
        >>> w, state = sgd_step(w, state, g, learning_rate=0.5)
        >>> w["w"], state.momentum_buffer["w"]
        (array([-0.45], dtype=float32), array([1.9], dtype=float32))
    """

    def rule(new: list[Array], w: Array, *b: Array, g: Array) -> None:
        """The update of some elements."""
        real = w.dtype.type
        if weight_decay:
            g = g + real(weight_decay) * w
        d = g
        for old_b, new_b in zip(b, new[1:], strict=True):
            np.copyto(new_b, g if state.t == 0 else real(momentum) * old_b + real(1 - dampening) * g)
            d = g + real(momentum) * new_b if nesterov else new_b
        np.subtract(w, real(learning_rate) * d, out=new[0])

    old = [params, *([state.momentum_buffer] if state.momentum_buffer else [])]
    new, *buffers = _in_blocks(rule, old, grads, in_place)
    return new, SGDState(state.t + 1, *buffers or [{}])


class ScheduleState(NamedTuple):
    """Where a schedule stands.

    Resume:
        Without it the rate jumps back to its first value and decays again from there.
    """

    tick: int  # completed updates, the unit of every schedule here
    rate: float  # learning rate of the next update


def init_schedule(kind: str, *, learning_rate: float, warmup_steps: int = 10, total_steps: int = 1000) -> ScheduleState:
    """The schedule before the first update."""
    if kind == "warmup_cosine":
        return ScheduleState(0, _warmup_cosine(0, learning_rate, warmup_steps, total_steps))
    return ScheduleState(0, learning_rate)


def schedule_step(
    state: ScheduleState,
    kind: str,
    *,
    learning_rate: float,
    step_size: int = 100,
    gamma: float = 0.5,
    warmup_steps: int = 10,
    total_steps: int = 1000,
) -> ScheduleState:
    """One tick of a schedule, once a completed update.

        constant        rate = learning_rate
        step            rate = rate gamma         at every step_size-th tick
        warmup_cosine   rate = learning_rate (tick + 1) / warmup_steps                        while tick < warmup_steps
                        rate = learning_rate (1 + cos(pi (tick - warmup_steps) / (total_steps - warmup_steps))) / 2
                        and 0 from total_steps on

    Mirror:
        The step schedule multiplies as the stock `torch.optim.lr_scheduler.StepLR` does, the same bits.

    Example:
        >>> state = init_schedule("step", learning_rate=0.25)
        >>> for _ in range(3):
        ...     state = schedule_step(state, "step", learning_rate=0.25, step_size=2, gamma=0.5)
        >>> state
        ScheduleState(tick=3, rate=0.125)
    """
    tick, rate = state.tick + 1, state.rate
    if kind == "step" and tick % step_size == 0:
        rate = rate * gamma
    if kind == "warmup_cosine":
        rate = _warmup_cosine(tick, learning_rate, warmup_steps, total_steps)
    return ScheduleState(tick, rate)


def _warmup_cosine(tick: int, learning_rate: float, warmup_steps: int, total_steps: int) -> float:
    if tick < warmup_steps:
        return learning_rate * (tick + 1) / warmup_steps
    length = total_steps - warmup_steps
    return learning_rate * (1 + cos_pi(min(tick - warmup_steps, length), length)) / 2


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
        float_array(f"unscale_gradients: gradients[{i!r}]", g)
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


def _check_gradients(where: str, gradients: object) -> None:
    """Refuse an array that stands alone."""
    if isinstance(gradients, (np.ndarray, np.generic)):
        raise TypeError(f"{where}: expected a list or a dict of arrays, found a single array. Put it into a list.")


def _in_blocks(
    rule: Callable[..., None], old: Sequence[Mapping[str, Array]], grads: Mapping[str, Array], in_place: bool
) -> list[Arrays]:
    """A rule over every parameter and what goes with it, a block at a time: what they become."""
    new: list[Arrays] = [{} for _ in old]
    for name, w in old[0].items():
        before = [arrays[name] for arrays in old]
        after = before if in_place else [np.empty(array.shape, w.dtype) for array in before]
        for arrays, array in zip(new, after, strict=True):
            arrays[name] = array
        # A small array as it is: one that cannot be written over goes on, and is refused.
        small = w.ndim and w.size <= BLOCK and w.shape == grads[name].shape
        if small and all(array.flags.c_contiguous for array in after):
            rule(after, *before, g=grads[name])
            continue
        g = grads[name].reshape(-1)
        sources = [array.reshape(-1) for array in before]
        targets = [array.reshape(-1, copy=False) for array in after]
        for start in range(0, w.size, BLOCK):
            block = slice(start, start + BLOCK)
            rule([target[block] for target in targets], *(source[block] for source in sources), g=g[block])
    return new


def _zeros(params: Mapping[str, Array]) -> Arrays:
    return {name: np.zeros(w.shape, w.dtype) for name, w in params.items()}
