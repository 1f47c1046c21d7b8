"""Resume a learning-rate schedule and a dynamic loss scale.

Write five functions. A state is a dict with the keys

    "params"     list of float64 arrays, one for each parameter, of any shapes
    "t"          completed updates, an int; it counts the schedule's ticks as well
    "rate"       learning rate of the next update, a float
    "scale"      loss scale of the next step, a float
    "tracker"    steps without an overflow since the scale last changed, an int

and settings are a dict with the keys "rate" and "scale" (those a run begins with), "step_size", "gamma" and
"growth_interval". `new_state` and `scaled_gradients` are given.
"""

from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]
State = dict[str, Any]
Settings = dict[str, Any]

FLOAT32_MAX = (2 - 2**-23) * 2.0**127  # the largest finite number of float32, in which scales are kept


def new_state(params: Arrays, settings: Settings) -> State:
    """The state of a run that begins, with copies of the parameters."""
    return {
        "params": [p.copy() for p in params],
        "t": 0,
        "rate": settings["rate"],
        "scale": settings["scale"],
        "tracker": 0,
    }


def scaled_gradients(grads: Arrays, scale: float) -> Arrays:
    """What a backward pass in float16 makes of a scaled loss: scaled gradients, infinite where they overflow."""
    return [(g * scale).astype(np.float16) for g in grads]


def schedule_step(t: int, rate: float, step_size: int, gamma: float) -> tuple[int, float]:
    """One tick of the step schedule, after an update.

    t = t + 1
    rate = rate * gamma        when t is a multiple of step_size

    Returns:
        The new (t, rate). The rate is multiplied each time anew: PyTorch's StepLR does the same.
    """
    t = t + 1
    if t % step_size == 0:
        rate = rate * gamma
    return t, rate


def scaler_step(scale: float, tracker: int, found_inf: bool, growth_interval: int) -> tuple[float, int]:
    """The loss scale of the next step, as PyTorch's GradScaler finds it.

    scale = scale / 2, tracker = 0        after an overflow, and there is no smallest scale
    tracker = tracker + 1                 after any other step; when it then is growth_interval,
    scale = scale * 2, tracker = 0        but the scale stays as it is if twice of it is above FLOAT32_MAX

    Returns:
        The new (scale, tracker).
    """
    if found_inf:
        return scale / 2, 0
    tracker = tracker + 1
    if tracker < growth_interval:
        return scale, tracker
    return (scale * 2 if scale * 2 <= FLOAT32_MAX else scale), 0


def train(state: State, grads_sequence: list[Arrays], settings: Settings) -> State:
    """Take one step for each entry of `grads_sequence`.

    In each step: scale the gradients by `scaled_gradients` with the scale of the state. If any element of any of them
    is infinite or NaN, the update is skipped: params, t and rate stay as they are. Otherwise p = p - rate * g for each
    parameter, with the gradient in float64 divided by the scale again, and then the schedule ticks. In either case the
    scaler steps at the end.

    Args:
        state: left as it is.
        grads_sequence: a list with one entry for each step: a list with one float32 gradient for each parameter. It may
            be empty; left as it is.
        settings: of the run; left as they are.

    Returns:
        The state after the last step, a new dict.
    """
    params = [p.copy() for p in state["params"]]
    t, rate, scale, tracker = state["t"], state["rate"], state["scale"], state["tracker"]
    for grads in grads_sequence:
        scaled = scaled_gradients(grads, scale)
        found_inf = not all(bool(np.isfinite(g).all()) for g in scaled)
        if not found_inf:
            params = [p - rate * (g.astype(np.float64) / scale) for p, g in zip(params, scaled, strict=True)]
            t, rate = schedule_step(t, rate, settings["step_size"], settings["gamma"])
        scale, tracker = scaler_step(scale, tracker, found_inf, settings["growth_interval"])
    return {"params": params, "t": t, "rate": rate, "scale": scale, "tracker": tracker}


def save_state(state: State) -> State:
    """A checkpoint: a dict with the keys of a state, independent of it.

    Args:
        state: left as it is; whatever is done to it later, the checkpoint keeps its values.
    """
    return {
        "params": [p.copy() for p in state["params"]],
        "t": state["t"],
        "rate": state["rate"],
        "scale": state["scale"],
        "tracker": state["tracker"],
    }


def restore_state(checkpoint: State, settings: Settings) -> State:
    """The state that was saved, ready to go on from: `train` must continue as if it had never stopped.

    Args:
        checkpoint: what `save_state` returned; left as it is, and nothing that is returned belongs to it.
        settings: of the run, for a new state to fill in.
    """
    state = new_state(checkpoint["params"], settings)
    state["t"] = checkpoint["t"]
    state["rate"] = checkpoint["rate"]
    state["scale"] = checkpoint["scale"]
    state["tracker"] = checkpoint["tracker"]
    return state
