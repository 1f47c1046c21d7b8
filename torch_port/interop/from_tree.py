"""From the reference's tree to torch's state dicts."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from numpy_ref.optim import AdamState, ScalerState, ScheduleState, SGDState, faults_of_scaler
from torch_port.interop.errors import kind_of
from torch_port.interop.tensors import check_arrays, tensor_of
from torch_port.interop.to_tree import settings_of
from torch_port.optim import ADAM_MOMENTS, SGD_MOMENTS

FLOAT32_COUNTS = 2**24  # below it; there 1 more is lost, and stock Adam's float32 `step` stands still


def set_model(arrays: Any, model: nn.Module, state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's arrays into a model's state dict."""
    if not check_arrays("model", arrays, state, faults):
        return
    first: dict[int, str] = {}
    for name, live in model.state_dict(keep_vars=True).items():
        other = first.setdefault(id(live), name)
        if arrays[name].tobytes() != arrays[other].tobytes():
            faults.append(f"model/{name}: expected the value of {other}, to which the model ties it, found another")
        state[name] = tensor_of(arrays[name])


def set_optimizer(optimizer: Any, parameters: Mapping[str, Tensor], state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's moments and count into the state dict of an optimizer over these parameters, in its order."""
    groups = state["param_groups"]
    settings = settings_of(groups, faults)
    if settings is None:
        return
    adam, optional = settings
    expected, keys = (AdamState, ADAM_MOMENTS) if adam else (SGDState, SGD_MOMENTS)
    if type(optimizer) is not expected:
        faults.append(f"optimizer: expected {expected.__name__}, found {kind_of(optimizer)}")
        return
    t = optimizer.t
    if type(t) is not int or not 0 <= t < 2**53:
        faults.append(f"optimizer/t: expected an int from 0 to {2**53 - 1}, found {t!r}")
        return
    absent = set() if optional else {"v_max", "momentum_buffer"}  # without amsgrad, or momentum
    sound = [
        check_arrays(f"optimizer/{kind}", getattr(optimizer, kind), {} if kind in absent else parameters, faults)
        for kind in keys
    ]
    if not all(sound):
        return
    if adam and t >= FLOAT32_COUNTS and any(group.get("fused") or group.get("capturable") for group in groups):
        faults.append(f"optimizer/t: expected below {FLOAT32_COUNTS} for a fused or capturable Adam, found {t}")
    state["state"] = {}
    if t == 0:  # no state yet: stock SGD takes its first gradient undamped only if it finds no buffer
        if any(moment.any() for kind in keys for moment in getattr(optimizer, kind).values()):
            faults.append("optimizer/t: expected more than 0, for the moments are not all zero, found 0")
        return
    for number, name in zip((n for group in groups for n in group["params"]), parameters, strict=True):
        moments = {key: tensor_of(getattr(optimizer, kind)[name]) for kind, key in keys.items() if kind not in absent}
        if adam:
            # Of a plain number torch makes a tensor of the type that it counts in; a float64 one it takes as it is.
            step = float(t) if t < FLOAT32_COUNTS else torch.tensor(t, dtype=torch.float64, device="cpu")
            state["state"][number] = {"step": step, **moments}
        elif moments:
            state["state"][number] = moments


def set_schedule(schedule: Any, groups: list[dict[str, Any]], state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's tick and rate into a StepLR's state dict and into the groups of its optimizer."""
    if type(schedule) is not ScheduleState:
        faults.append(f"schedule: expected ScheduleState, found {kind_of(schedule)}")
        return
    if type(schedule.tick) is not int or schedule.tick < 0:
        faults.append(f"schedule/tick: expected an int >= 0, found {schedule.tick!r}")
    if type(schedule.rate) is not float or not 0 <= schedule.rate < np.inf:
        faults.append(f"schedule/rate: expected a finite float >= 0, found {schedule.rate!r}")
    if any(isinstance(group["lr"], Tensor) for group in groups):
        faults.append("schedule/rate: expected plain learning rates in the optimizer, found a tensor")
    for group in groups:
        group["lr"] = schedule.rate
    # StepLR counts its own construction as the first step.
    rates = [schedule.rate] * len(groups)
    state |= {"last_epoch": schedule.tick, "_step_count": schedule.tick + 1, "_last_lr": rates}


def set_scaler(scaler: Any, state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's scale and tracker into a GradScaler's state dict."""
    if type(scaler) is not ScalerState:
        faults.append(f"scaler: expected ScalerState, found {kind_of(scaler)}")
        return
    if not state:
        faults.append("scaler: expected an enabled GradScaler, found a disabled one")
    faults += faults_of_scaler(scaler)
    state |= {"scale": scaler.scale, "_growth_tracker": scaler.growth_tracker}
