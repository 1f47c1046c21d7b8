"""Torch's state dicts as the reference's tree and back, part by part, without shared memory."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from numpy_ref.checks import whole_number
from numpy_ref.optim import AdamState, ScheduleState, SGDState
from numpy_ref.precision import ScalerState, faults_of_scaler
from torch_port.interop.errors import kind_of, refuse
from torch_port.optim import ADAM_MOMENTS, SGD_MOMENTS

Array = np.ndarray[Any, np.dtype[Any]]

# What the settings of a parameter group tell an optimizer from any other by.
ADAM_SETTINGS = {"betas", "eps", "amsgrad"}
SGD_SETTINGS = {"momentum", "dampening", "nesterov"}

FLOAT32_COUNTS = 2**24  # below it; there 1 more is lost, and stock Adam's float32 `step` stands still
NO_GRADIENT = "leave parameters that get no gradient out of the optimizer"
COUNT = "the number of completed updates: t=scheduler.last_epoch, if your loop ticks the scheduler once an update"


# Tensors and arrays


def arrays_of(path: str, tensors: Mapping[str, Any], faults: list[str]) -> dict[str, Array]:
    """Independent arrays of these tensors."""
    arrays = {}
    for name, tensor in tensors.items():
        if fault := fault_of_tensor(tensor):
            faults.append(f"{path}/{name}: {fault}")
        else:
            arrays[name] = np.array(tensor.detach().cpu().numpy(), order="C")
    return arrays


def fault_of_tensor(tensor: object) -> str | None:
    """Why a tensor cannot become an array, None if it can."""
    if not isinstance(tensor, Tensor):
        return f"expected a tensor, found {kind_of(tensor)}"
    if is_lazy(tensor):
        return "expected an initialised tensor, found a lazy one; run the module once first"
    if tensor.is_meta or tensor.layout is not torch.strided or _dtype(tensor) is None:
        found = f"{tensor.dtype} of layout {tensor.layout} on {tensor.device}"
        return f"expected a dense tensor of a type that NumPy has, found {found}; convert it, or use save_general"
    return None


def _dtype(tensor: Tensor) -> "np.dtype[Any] | None":
    """The NumPy type of a tensor, None where there is none, as for bfloat16."""
    try:
        return torch.empty(0, dtype=tensor.dtype).numpy().dtype
    except (TypeError, RuntimeError):
        return None


def check_arrays(path: str, arrays: Any, tensors: Mapping[str, Any], faults: list[str]) -> bool:
    """Whether there is an array for each tensor, of its shape and type, and no other; if not, why, in `faults`."""
    if not isinstance(arrays, Mapping):
        faults.append(f"{path}: expected a dict of arrays, found {kind_of(arrays)}")
        return False
    new = [f"{path}/{name}: missing" for name in tensors.keys() - arrays.keys()]
    new += [f"{path}/{name}: not expected" for name in arrays.keys() - tensors.keys()]
    for name in tensors.keys() & arrays.keys():
        array, tensor = arrays[name], tensors[name]
        if fault := fault_of_tensor(tensor):
            new.append(f"{path}/{name}: {fault}")
            continue
        expected = f"{_dtype(tensor)} {tuple(tensor.shape)}"
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else kind_of(array)
        if expected != found:
            new.append(f"{path}/{name}: expected {expected}, found {found}")
    faults += new
    return not new


def tensor_of(array: Array) -> Tensor:
    """An independent tensor."""
    return torch.from_numpy(np.array(array, order="C"))


def region_of(tensor: Tensor) -> tuple[Any, ...]:
    """Which part of which memory a tensor shows, and how: equal for tied tensors, and for none that is empty."""
    start = tensor.untyped_storage().data_ptr() if tensor.numel() else object()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


# From state dicts to the tree


def tree_of(where: str, states: Mapping[str, Any], names: list[str], t: int | None) -> dict[str, Any]:
    """The tree of some state dicts; `names` are those of the optimizer's parameters, in its order."""
    faults: list[str] = []
    tree: dict[str, Any] = {"model": arrays_of("model", states["model_state_dict"], faults)}
    if t is not None:
        t = whole_number(f"{where}: t", t, 0, 2**63)
        if "optimizer_state_dict" not in states:
            faults.append("t: given, but no optimizer is")
    refuse(where, faults)
    if "optimizer_state_dict" in states:
        state = states["optimizer_state_dict"]
        tree["optimizer"] = _optimizer_state(state, names, states["model_state_dict"], t, faults)
    if "scheduler_state_dict" in states:
        groups = states["optimizer_state_dict"]["param_groups"]
        tree["schedule"] = _schedule_state(states["scheduler_state_dict"], groups, faults)
    if "scaler_state_dict" in states:
        tree["scaler"] = _scaler_state(states["scaler_state_dict"], faults)
    refuse(where, faults)
    return tree


def _optimizer_state(
    state: Mapping[str, Any], names: list[str], model: Mapping[str, Tensor], t: int | None, faults: list[str]
) -> AdamState | SGDState | None:
    """The reference's state of Adam or SGD, from that of an optimizer whose parameters have these names."""
    groups = state["param_groups"]
    numbers = [number for group in groups for number in group["params"]]
    entries = {name: state["state"].get(number, {}) for name, number in zip(names, numbers, strict=True)}
    entries = {name: entries[name] for name in model if name in entries}
    faults += [f"optimizer: {name} is not in the model's state" for name in names if name not in entries]
    faults += [f"optimizer: state of parameter {n!r}, which is in no group" for n in state["state"] if n not in numbers]
    settings = settings_of(groups, faults)
    if settings is None or len(entries) != len(names):
        return None
    adam, optional = settings
    if adam:
        return _adam_state(entries, model, t, faults, amsgrad=optional)
    return _sgd_state(entries, model, t, faults, momentum=optional)


def settings_of(groups: Sequence[Mapping[str, Any]], faults: list[str]) -> tuple[bool, bool] | None:
    """Whether the groups are Adam's rather than SGD's, and whether they have the moments that are optional there."""
    adam = all(group.keys() >= ADAM_SETTINGS for group in groups)
    if not adam and not all(group.keys() >= SGD_SETTINGS for group in groups):
        settings = ", ".join(sorted({key for group in groups for key in group} - {"params"}))
        faults.append(f"optimizer: expected the settings of Adam, AdamW or SGD, found {settings}")
        return None
    flag = "amsgrad" if adam else "momentum"
    flags = {bool(group[flag]) for group in groups}
    if len(flags) > 1:
        faults.append(f"optimizer: expected {flag} in all parameter groups or in none, found both")
        return None
    return adam, True in flags


def _adam_state(
    entries: Mapping[str, Any], model: Mapping[str, Tensor], t: int | None, faults: list[str], *, amsgrad: bool
) -> AdamState:
    """Adam's state; a parameter without an entry has been updated 0 times."""
    keys = {kind: key for kind, key in ADAM_MOMENTS.items() if amsgrad or kind != "v_max"}
    expected = {"step", *keys.values()}
    counts: dict[int, list[str]] = {}
    for name, entry in entries.items():
        if entry and entry.keys() != expected:
            found = ", ".join(sorted(map(str, entry)))
            faults.append(f"optimizer: {name}: expected {', '.join(sorted(expected))}, found {found}")
        elif (count := _count(entry.get("step", 0))) is None:
            faults.append(f"optimizer/t: expected a count below the type's last exact one, found {entry['step']!r}")
        else:
            counts.setdefault(count, []).append(name)
    if len(counts) > 1:
        each = "; ".join(f"{count} for {', '.join(names)}" for count, names in sorted(counts.items()))
        faults.append(f"optimizer/t: expected one number of updates for all parameters, found {each}; {NO_GRADIENT}")
    elif t is not None and t not in counts:
        faults.append(f"optimizer/t: expected {t} as given, found {', '.join(map(str, counts))}")
    moments = {
        kind: _moments(kind, {n: e.get(key) for n, e in entries.items()}, model, faults) for kind, key in keys.items()
    }
    return AdamState(max(counts, default=0), **({"v_max": {}} | moments))


def _count(step: object) -> int | None:
    """A number of updates; None if it is none, or stands where adding 1 to its type changes nothing any more."""
    if not isinstance(step, (int, float)) and not (isinstance(step, Tensor) and step.numel() == 1):
        return None
    value = float(step)
    end = 2 / torch.finfo(step.dtype).eps if isinstance(step, Tensor) and step.is_floating_point() else 2**53
    return int(value) if value.is_integer() and 0 <= value < end else None


def _sgd_state(
    entries: Mapping[str, Any], model: Mapping[str, Tensor], t: int | None, faults: list[str], *, momentum: bool
) -> SGDState:
    """SGD's state; a `step` that another class has left in it, which the stock one does not advance, says nothing."""
    buffers = {name: entry.get("momentum_buffer") for name, entry in entries.items()}
    present = [name for name, buffer in buffers.items() if buffer is not None]
    absent = [name for name, buffer in buffers.items() if buffer is None]
    if present and not momentum:
        faults.append(f"optimizer: expected no momentum_buffer without momentum, found those of {', '.join(present)}")
    elif present and absent:
        faults.append(
            "optimizer/momentum_buffer: expected all or, before the first update, none, "
            f"found none for {', '.join(absent)}; {NO_GRADIENT}"
        )
    if momentum and not present:
        if t:
            faults.append(f"optimizer/t: expected 0, for there is no momentum_buffer yet, found {t} as given")
        t = 0
    elif t is None or (t == 0 and present):
        faults.append(f"optimizer/t: stock SGD does not count its updates, and has made some: give t, {COUNT}")
    return SGDState(t or 0, _moments("momentum_buffer", buffers, model, faults) if momentum else {})


def _moments(
    kind: str, tensors: Mapping[str, Tensor | None], model: Mapping[str, Tensor], faults: list[str]
) -> dict[str, Array]:
    """One kind of moment by parameter name; zeros where the optimizer has made none yet."""
    made = {name: torch.zeros_like(model[name]) if tensor is None else tensor for name, tensor in tensors.items()}
    arrays = arrays_of(f"optimizer/{kind}", made, faults)
    check_arrays(f"optimizer/{kind}", arrays, {name: model[name] for name in arrays}, faults)
    return arrays


def _schedule_state(
    state: Mapping[str, Any], groups: Sequence[Mapping[str, Any]], faults: list[str]
) -> ScheduleState | None:
    """StepLR's tick, and the rate at which the optimizer will make its next update."""
    tick = state.get("last_epoch")
    if not isinstance(tick, int) or tick < 0 or not state.keys() >= {"step_size", "gamma"}:
        faults.append(f"schedule: expected the state of StepLR, found {dict(state)}")
        return None
    rates = [group.get("lr") for group in groups]
    if any(type(rate) not in (int, float) for rate in rates) or len(set(rates)) != 1:
        faults.append(f"schedule/rate: expected one plain learning rate in all parameter groups, found {rates}")
        return None
    return ScheduleState(tick, float(rates[0]))  # type: ignore[arg-type]


def _scaler_state(state: Mapping[str, Any], faults: list[str]) -> ScalerState | None:
    """The scale, as float32 has it, and the tracker."""
    scale, tracker = state.get("scale"), state.get("_growth_tracker")
    if not isinstance(scale, (int, float)) or not isinstance(tracker, int):
        faults.append(f"scaler: expected the state of an enabled GradScaler, found {dict(state)}; leave it out")
        return None
    scaler = ScalerState(torch.tensor(scale, dtype=torch.float32).item(), tracker)
    faults += faults_of_scaler(scaler)
    return scaler


# From the tree to state dicts


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
