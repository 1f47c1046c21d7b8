"""From torch's state dicts to the reference's tree."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from numpy_ref.checks import whole_number
from numpy_ref.optim import AdamState, ScalerState, ScheduleState, SGDState, faults_of_scaler
from torch_port.interop.errors import refuse
from torch_port.interop.tensors import Array, arrays_of, check_arrays
from torch_port.optim import ADAM_MOMENTS

# What the settings of a parameter group tell an optimizer from any other by.
ADAM_SETTINGS = {"betas", "eps", "amsgrad"}
SGD_SETTINGS = {"momentum", "dampening", "nesterov"}

NO_GRADIENT = "leave parameters that get no gradient out of the optimizer"
COUNT = "the number of completed updates: t=scheduler.last_epoch, if your loop ticks the scheduler once an update"


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
