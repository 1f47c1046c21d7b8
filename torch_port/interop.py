"""Stock PyTorch state as the reference's tree and back, and the general checkpoint of the PyTorch recipe in and out.

The tree names its parts as `RunState` does, one for each object that is given:

    model       name -> array                  parameters and persistent buffers, in the order of `state_dict`
    optimizer   AdamState or SGDState          moments by parameter name, in the same order
    schedule    ScheduleState                  StepLR's last_epoch, and the rate of the next update
    scaler      ScalerState                    of torch.amp.GradScaler

Settings (betas, momentum, step_size, growth_factor, and the learning rate where no scheduler is given) are no state:
they stay with the objects. A general checkpoint is the recipe's dict, with settings and state as torch has them:

    snapshot_general -> save_general -> FILE.tar -> load_general -> load_state_dict of each object, or tree_from_general
    load_into_stock, then snapshot_general: a tree as a general checkpoint
"""

import os
import stat
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parameter import is_lazy
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.optim.optimizer import Optimizer

from numpy_ref.checks import whole_number
from numpy_ref.container import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint, IncompleteCheckpoint
from numpy_ref.durable import replace_file
from numpy_ref.optim import AdamState, ScheduleState, SGDState
from numpy_ref.precision import ScalerState, faults_of_scaler
from torch_port.optim import ADAM_MOMENTS, SGD_MOMENTS

__all__ = [
    "load_general",
    "load_into_stock",
    "save_general",
    "snapshot_general",
    "state_from_stock",
    "tree_from_general",
]

Path = str | PathLike[str]
Array = np.ndarray[Any, np.dtype[Any]]

# What the settings of a parameter group tell an optimizer from any other by.
ADAM_SETTINGS = {"betas", "eps", "amsgrad"}
SGD_SETTINGS = {"momentum", "dampening", "nesterov"}
FLOAT32_COUNTS = 2**24  # below it; there 1 more is lost, and stock Adam's float32 `step` stands still

RECIPE = ("epoch", "model_state_dict", "optimizer_state_dict", "loss")
OPTIONAL = ("scheduler_state_dict", "scaler_state_dict")
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)

DAMAGED = (
    "The file is damaged, or never was a general checkpoint: use another copy or an older one. A file that "
    "save_checkpoint has written is read by resume_from_full_checkpoint."
)
NO_GRADIENT = "leave parameters that get no gradient out of the optimizer"
COUNT = "the number of completed updates: t=scheduler.last_epoch, if your loop ticks the scheduler once an update"


def state_from_stock(
    model: nn.Module,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    scaler: GradScaler | None = None,
    *,
    t: int | None = None,
) -> dict[str, Any]:
    """The state of stock objects as the reference's tree.

    Stock optimizers make their state in the first step. Before it Adam's is t = 0 and zero moments here, and so is that
    of SGD with momentum. SGD does not count its updates, so that after the first one `t` must be given.

    Args:
        model: any module whose parameters and persistent buffers are dense and of a type that NumPy has.
        optimizer: stock Adam, AdamW or SGD over parameters of the model; several parameter groups are as good as one.
        scheduler: stock StepLR of that optimizer; then all groups must have one learning rate.
        scaler: an enabled GradScaler, between its `update` and the next `scale`.
        t: completed updates of SGD; for others it may be given, and must agree.

    Returns:
        A part for each object given, with copies: no later step of the objects changes them.

    Raises:
        ValueError: the tree has no place for what was found, or `t` is not known; every offender is named.

    Resume:
        The model's mode, non-persistent buffers, random generators and the position in the data are not in the tree.

    Mirror:
        The types are those of `numpy_ref.optim` and `numpy_ref.precision`.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> tree = state_from_stock(model, torch.optim.Adam(model.parameters()))
        >>> tree["optimizer"].t, tree["optimizer"].m
        (0, {'weight': array([[0., 0.]], dtype=float32)})
    """
    where = "state_from_stock"
    _check_objects(where, model, optimizer, scheduler, scaler)
    names = [] if optimizer is None else _names_of(where, model, optimizer)
    return _tree(where, _state_dicts(model, optimizer, scheduler, scaler), names, t)


def load_into_stock(
    tree: Mapping[str, Any],
    model: nn.Module,
    optimizer: Optimizer | None = None,
    scheduler: LRScheduler | None = None,
    scaler: GradScaler | None = None,
) -> None:
    """Set stock objects to a tree's state, the inverse of `state_from_stock`, so that training goes on bit for bit.

    Everything is checked before anything is set. The optimizer's groups get the schedule's rate; StepLR's `last_epoch`,
    `_step_count` and `_last_lr` follow from it and the tick. Settings, `initial_lr` among them, stay as they are: make
    the objects as for the first start, the scheduler included, and load then.

    Args:
        tree: a part for each object given, and no other; nothing loaded shares memory with it.
        model: whose parameters and persistent buffers have the tree's names, shapes and types.
        optimizer: stock Adam, AdamW or SGD, as the tree's part is.
        scheduler: stock StepLR of that optimizer.
        scaler: an enabled GradScaler.

    Raises:
        ValueError: tree and objects do not fit; every offender is named, and nothing has been changed.

    Example:
        >>> model = nn.Linear(2, 1, bias=False)
        >>> load_into_stock({"model": {"weight": np.array([[1, 2]], np.float32)}}, model)
        >>> model.weight.tolist()
        [[1.0, 2.0]]
    """
    where = "load_into_stock"
    _check_objects(where, model, optimizer, scheduler, scaler)
    if not isinstance(tree, Mapping):
        _refuse(where, [f"tree: expected a dict of its parts, found {_kind(tree)}"])
    given = {"model": model, "optimizer": optimizer, "schedule": scheduler, "scaler": scaler}
    wanted = {part for part, thing in given.items() if thing is not None}
    faults = [f"{part}: missing in the tree, but its object is given" for part in wanted - tree.keys()]
    faults += [f"{part}: in the tree, but no object for it is given" for part in tree.keys() - wanted]
    _refuse(where, faults)
    states = _state_dicts(model, optimizer, scheduler, scaler)
    _set_model(tree["model"], model, states["model_state_dict"], faults)
    if optimizer is not None:
        names, parameters = _names_of(where, model, optimizer), dict(model.named_parameters())
        _set_optimizer(
            tree["optimizer"], {name: parameters[name] for name in names}, states["optimizer_state_dict"], faults
        )
    if scheduler is not None:
        groups = states["optimizer_state_dict"]["param_groups"]
        _set_schedule(tree["schedule"], groups, states["scheduler_state_dict"], faults)
    if scaler is not None:
        _set_scaler(tree["scaler"], states["scaler_state_dict"], faults)
    _refuse(where, faults)
    model.load_state_dict(states["model_state_dict"])
    if optimizer is not None:
        optimizer.load_state_dict(states["optimizer_state_dict"])
    if scheduler is not None:
        scheduler.load_state_dict(states["scheduler_state_dict"])
    if scaler is not None:
        scaler.load_state_dict(states["scaler_state_dict"])


def snapshot_general(
    model: nn.Module,
    optimizer: Optimizer,
    scheduler: LRScheduler | None = None,
    scaler: GradScaler | None = None,
    *,
    epoch: int,
    loss: float | Tensor,
    **extras: Any,
) -> dict[str, Any]:
    """The dict of PyTorch's recipe for a general checkpoint, independent of the objects: no later step changes it.

    Args:
        model: any module.
        optimizer: any optimizer.
        scheduler: goes under "scheduler_state_dict".
        scaler: goes under "scaler_state_dict".
        epoch: for the loop's own use.
        loss: likewise.
        extras: further items, such as `rng_state=torch.get_rng_state()`, that `save_general` can store.

    Returns:
        The recipe's four items, those of scheduler and scaler if given, and the extras. Every tensor is a copy on the
        CPU without the rest of a storage it was a view of; what was one tensor under two names (tied weights) is again.

    Raises:
        ValueError: something could not be loaded again, or an extra has a name of the recipe's; each one is named.

    Source:
        PyTorch tutorials, "Saving and loading a general checkpoint".

    Example:
        >>> model = nn.Linear(2, 1)
        >>> list(snapshot_general(model, torch.optim.SGD(model.parameters()), epoch=3, loss=0.5))
        ['epoch', 'model_state_dict', 'optimizer_state_dict', 'loss']
    """
    where = "snapshot_general"
    _refuse(where, [f"{name}: a name of the recipe's; choose another" for name in extras if name in RECIPE + OPTIONAL])
    _refuse(where, _faults_of_scaler(scaler))
    states = _state_dicts(model, optimizer, scheduler, scaler)
    recipe = {"epoch": epoch, "model_state_dict": None, "optimizer_state_dict": None, "loss": loss}
    _refuse(where, _faults_of_state_dicts(recipe | states))
    return _storable(where, recipe | states | extras, copy=True)


def save_general(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write a general checkpoint, whole or not at all; it is on disk when this returns.

    Views are cut out of their storages first, so that a slice does not take its whole storage into the file.

    Args:
        path: the file, by convention `.tar`; replaced if it is there.
        checkpoint: the recipe's items and any others: tensors, numbers, texts, None, and dicts, lists and tuples of
            them. Left as it is. A plain `torch.load` reads the file.

    Raises:
        ValueError: an item of the recipe is missing, or a value could not be loaded again; each one is named, and
            nothing is written.
        OSError: it could not be written; what stood under the name before still does.

    Example:
        >>> import tempfile
        >>> model = nn.Linear(2, 1)
        >>> checkpoint = snapshot_general(model, torch.optim.SGD(model.parameters()), epoch=3, loss=0.5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_general(f"{folder}/run.tar", checkpoint)
        ...     load_general(f"{folder}/run.tar")["epoch"]
        3
    """
    where = os.fspath(path)
    if not isinstance(checkpoint, Mapping):
        _refuse(where, [f"checkpoint: expected a dict with the recipe's items, found {_kind(checkpoint)}"])
    faults = [f"{name}: missing; the recipe has {', '.join(RECIPE)}" for name in RECIPE if name not in checkpoint]
    _refuse(where, faults + _faults_of_state_dicts(checkpoint))
    plain = _storable(where, checkpoint, copy=False)
    with replace_file(path) as file:
        try:
            torch.save(plain, file)  # type: ignore[arg-type]  # it has the methods that torch calls
        except RuntimeError as error:
            # torch's writer puts an error of its own over a full disk's.
            cause = error.__context__
            while cause is not None and not isinstance(cause, OSError):
                cause = cause.__context__
            raise cause or error from None


def load_general(path: Path) -> dict[str, Any]:
    """Read a general checkpoint onto the CPU, without running any code that the file might hold.

    torch.load itself checks nothing inside the arrays: a flipped bit there is loaded as it is. The archive that torch
    writes has a CRC-32 for each record, though, and those are checked here first. Files older than torch 1.6 are no
    archives and have none; and a CRC-32 finds accidents, not forgery. The container of `numpy_ref` is safe from more.

    Args:
        path: what `save_general` or a `torch.save` of the recipe's dict has written.

    Returns:
        The dict. An optimizer's `load_state_dict` takes tensors over without a copy: load a file again rather than the
        same dict twice.

    Raises:
        CorruptCheckpoint: the file is damaged, or not a checkpoint.
        IncompleteCheckpoint: an item of the recipe is missing.
        IncompatibleCheckpoint: it holds pickled objects other than tensors and plain values.
        CheckpointError: there is no such file, or it cannot be read.
    """
    checkpoint = _read(path)
    if not isinstance(checkpoint, dict):
        _fail(CorruptCheckpoint, path, "a dict with the recipe's items", f"a {type(checkpoint).__name__}", DAMAGED)
    if missing := [name for name in RECIPE if name not in checkpoint]:
        found = ", ".join(sorted(map(str, checkpoint))[:8]) or "nothing"
        advice = "A lone state_dict is no general checkpoint: torch.load and load_state_dict take it."
        _fail(IncompleteCheckpoint, path, f"{', '.join(missing)} among the items", found, advice)
    for name in _no_dicts(checkpoint):
        _fail(CorruptCheckpoint, path, f"a dict as {name}", f"a {_kind(checkpoint[name])}", DAMAGED)
    return checkpoint


def tree_from_general(
    checkpoint: Mapping[str, Any], *, parameter_names: Sequence[str] | None = None, t: int | None = None
) -> dict[str, Any]:
    """The reference's tree from a general checkpoint that stock code wrote, or any other of its kind.

    Such a file numbers the optimizer's parameters in the order in which the optimizer was given them. Their names are,
    in this order of preference: `parameter_names`; the optimizer's own, if it was made from `named_parameters()`; or
    the floating-point entries of the model's state without the running statistics of batch normalisation, each tied
    parameter once. The last is right for an optimizer over all of `model.parameters()`, and is used only if the number
    of names and all shapes fit; an optimizer that was given them in another order needs `parameter_names`.

    Args:
        checkpoint: as `load_general` returns it; an item of the optional ones makes its part of the tree.
        parameter_names: names of the optimizer's parameters, in its order, as in the model's state.
        t: as in `state_from_stock`.

    Returns:
        The tree, as `state_from_stock` makes it, independent of the checkpoint.

    Raises:
        ValueError: as `state_from_stock`; or names and parameters do not fit.
    """
    where = "tree_from_general"
    if not isinstance(checkpoint, Mapping):
        _refuse(where, [f"checkpoint: expected a dict as load_general returns it, found {_kind(checkpoint)}"])
    faults = [
        f"{name}: expected a dict, found {_kind(checkpoint.get(name))}"
        for name in ("model_state_dict", "optimizer_state_dict", *OPTIONAL)
        if not isinstance(checkpoint.get(name, {} if name in OPTIONAL else None), Mapping)
    ]
    _refuse(where, faults or _faults_of_optimizer(checkpoint["optimizer_state_dict"]))
    return _tree(where, checkpoint, _names_in(where, checkpoint, parameter_names), t)


# What the objects are


def _check_objects(
    where: str, model: nn.Module, optimizer: Optimizer | None, scheduler: LRScheduler | None, scaler: GradScaler | None
) -> None:
    """Refuse what the tree has no place for, by type."""
    faults = []
    if not isinstance(model, nn.Module):
        faults.append(f"model: expected a torch.nn.Module, found {_kind(model)}")
    # Exactly these: a subclass may keep more, or other, state.
    if optimizer is not None and type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        found = f"{type(optimizer).__module__}.{_kind(optimizer)}"
        advice = (
            "torch_port.snapshot takes out a run of its own, and a stock optimizer loads the state_dict of one of it"
        )
        faults.append(f"optimizer: expected torch.optim.Adam, AdamW or SGD, found {found}; {advice}")
    if scheduler is not None and type(scheduler) is not StepLR:
        faults.append(f"schedule: expected torch.optim.lr_scheduler.StepLR, found {_kind(scheduler)}")
    elif scheduler is not None and scheduler.optimizer is not optimizer:
        faults.append("schedule: expected a scheduler of the optimizer that is given, found one of another")
    if scaler is not None and not isinstance(scaler, GradScaler):
        faults.append(f"scaler: expected a torch.amp.GradScaler, found {_kind(scaler)}")
    else:
        faults += _faults_of_scaler(scaler)
    _refuse(where, faults)


def _faults_of_scaler(scaler: GradScaler | None) -> list[str]:
    """A scaler in the middle of a step has more state than its state_dict."""
    if scaler is None or not scaler.is_enabled() or not scaler._per_optimizer_states:
        return []
    return ["scaler: expected a scaler whose update() has ended the step, found one within a step"]


def _state_dicts(
    model: nn.Module, optimizer: Optimizer | None, scheduler: LRScheduler | None, scaler: GradScaler | None
) -> dict[str, Any]:
    """The recipe's items for these objects: new dicts of the live tensors."""
    objects = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler}
    return {f"{name}_state_dict": thing.state_dict() for name, thing in objects.items() if thing is not None}


def _names_of(where: str, model: nn.Module, optimizer: Optimizer) -> list[str]:
    """The names of an optimizer's parameters, in its order; a tied parameter has the first of its names."""
    names = {id(p): name for name, p in model.named_parameters()}
    faults = [
        f"optimizer: param_groups[{i}]['params'][{j}] of shape {tuple(p.shape)} is no parameter of the model"
        for i, group in enumerate(optimizer.param_groups)
        for j, p in enumerate(group["params"])
        if id(p) not in names
    ]
    _refuse(where, faults)
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]


def _names_in(where: str, checkpoint: Mapping[str, Any], given: Sequence[str] | None) -> list[str]:
    """The names of the parameters that a checkpoint numbers, in that order."""
    model, groups = checkpoint["model_state_dict"], checkpoint["optimizer_state_dict"]["param_groups"]
    count = sum(len(group["params"]) for group in groups)
    if given is not None:
        names, source = list(given), "parameter_names"
    elif all("param_names" in group for group in groups):
        names, source = [name for group in groups for name in group["param_names"]], "param_names of the optimizer"
    else:
        names, source = _likely_parameters(model), "parameters in the model's state"
    unknown = sorted(map(str, set(names) - model.keys()))
    if len(names) != count or len(set(names)) != count or unknown:
        found = f"{len(set(names))} {source}" + f", of them not in the state: {', '.join(unknown)}" * bool(unknown)
        advice = "give parameter_names, [name for name, _ in model.named_parameters()] if it is over model.parameters()"
        _refuse(where, [f"optimizer: expected {count} different names of the model's state, found {found}; {advice}"])
    return names


def _likely_parameters(model: Mapping[str, Any]) -> list[str]:
    """The entries of a model's state that are parameters, if it has no buffers but batch normalisation's."""
    names: dict[Any, str] = {}
    for name, tensor in model.items():
        path, _, last = name.rpartition(".")
        counter = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
        statistic = last in ("running_mean", "running_var") and counter in model
        if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()) and not statistic:
            names.setdefault(_region(tensor), name)
    return list(names.values())


# From torch's state dicts to the tree


def _tree(where: str, states: Mapping[str, Any], names: list[str], t: int | None) -> dict[str, Any]:
    """The tree of some state dicts; `names` are those of the optimizer's parameters, in its order."""
    faults: list[str] = []
    tree: dict[str, Any] = {"model": _arrays("model", states["model_state_dict"], faults)}
    if t is not None:
        t = whole_number(f"{where}: t", t, 0, 2**63)
        if "optimizer_state_dict" not in states:
            faults.append("t: given, but no optimizer is")
    _refuse(where, faults)
    if "optimizer_state_dict" in states:
        state = states["optimizer_state_dict"]
        tree["optimizer"] = _optimizer_state(state, names, states["model_state_dict"], t, faults)
    if "scheduler_state_dict" in states:
        groups = states["optimizer_state_dict"]["param_groups"]
        tree["schedule"] = _schedule_state(states["scheduler_state_dict"], groups, faults)
    if "scaler_state_dict" in states:
        tree["scaler"] = _scaler_state(states["scaler_state_dict"], faults)
    _refuse(where, faults)
    return tree


def _arrays(path: str, tensors: Mapping[str, Any], faults: list[str]) -> dict[str, Array]:
    """Independent arrays of these tensors."""
    arrays = {}
    for name, tensor in tensors.items():
        if fault := _fault_of_tensor(tensor):
            faults.append(f"{path}/{name}: {fault}")
        else:
            arrays[name] = np.array(tensor.detach().cpu().numpy(), order="C")
    return arrays


def _fault_of_tensor(tensor: object) -> str | None:
    """Why a tensor cannot become an array, None if it can."""
    if not isinstance(tensor, Tensor):
        return f"expected a tensor, found {_kind(tensor)}"
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


def _faults_of_optimizer(state: Mapping[str, Any]) -> list[str]:
    """What makes a dict no state of an optimizer."""
    groups = state.get("param_groups")
    sound = isinstance(groups, list) and all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in groups)
    if sound and isinstance(state.get("state"), dict) and all(isinstance(e, dict) for e in state["state"].values()):
        return []
    return ["optimizer_state_dict: expected the dict of state and param_groups that an optimizer's state_dict() makes"]


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
    settings = _settings(groups, faults)
    if settings is None or len(entries) != len(names):
        return None
    adam, optional = settings
    if adam:
        return _adam_state(entries, model, t, faults, amsgrad=optional)
    return _sgd_state(entries, model, t, faults, momentum=optional)


def _settings(groups: Sequence[Mapping[str, Any]], faults: list[str]) -> tuple[bool, bool] | None:
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
    arrays = _arrays(f"optimizer/{kind}", made, faults)
    _check_arrays(f"optimizer/{kind}", arrays, {name: model[name] for name in arrays}, faults)
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


# From the tree to torch's state dicts


def _set_model(arrays: Any, model: nn.Module, state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's arrays into a model's state dict."""
    if not _check_arrays("model", arrays, state, faults):
        return
    first: dict[int, str] = {}
    for name, live in model.state_dict(keep_vars=True).items():
        other = first.setdefault(id(live), name)
        if arrays[name].tobytes() != arrays[other].tobytes():
            faults.append(f"model/{name}: expected the value of {other}, to which the model ties it, found another")
        state[name] = _tensor(arrays[name])


def _set_optimizer(optimizer: Any, parameters: Mapping[str, Tensor], state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's moments and count into the state dict of an optimizer over these parameters, in its order."""
    groups = state["param_groups"]
    settings = _settings(groups, faults)
    if settings is None:
        return
    adam, optional = settings
    expected, keys = (AdamState, ADAM_MOMENTS) if adam else (SGDState, SGD_MOMENTS)
    if type(optimizer) is not expected:
        faults.append(f"optimizer: expected {expected.__name__}, found {_kind(optimizer)}")
        return
    t = optimizer.t
    if type(t) is not int or not 0 <= t < 2**53:
        faults.append(f"optimizer/t: expected an int from 0 to {2**53 - 1}, found {t!r}")
        return
    absent = set() if optional else {"v_max", "momentum_buffer"}  # without amsgrad, or momentum
    sound = [
        _check_arrays(f"optimizer/{kind}", getattr(optimizer, kind), {} if kind in absent else parameters, faults)
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
        moments = {key: _tensor(getattr(optimizer, kind)[name]) for kind, key in keys.items() if kind not in absent}
        if adam:
            # Of a plain number torch makes a tensor of the type that it counts in; a float64 one it takes as it is.
            step = float(t) if t < FLOAT32_COUNTS else torch.tensor(t, dtype=torch.float64, device="cpu")
            state["state"][number] = {"step": step, **moments}
        elif moments:
            state["state"][number] = moments


def _set_schedule(schedule: Any, groups: list[dict[str, Any]], state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's tick and rate into a StepLR's state dict and into the groups of its optimizer."""
    if type(schedule) is not ScheduleState:
        faults.append(f"schedule: expected ScheduleState, found {_kind(schedule)}")
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


def _set_scaler(scaler: Any, state: dict[str, Any], faults: list[str]) -> None:
    """Put the tree's scale and tracker into a GradScaler's state dict."""
    if type(scaler) is not ScalerState:
        faults.append(f"scaler: expected ScalerState, found {_kind(scaler)}")
        return
    if not state:
        faults.append("scaler: expected an enabled GradScaler, found a disabled one")
    faults += faults_of_scaler(scaler)
    state |= {"scale": scaler.scale, "_growth_tracker": scaler.growth_tracker}


def _check_arrays(path: str, arrays: Any, tensors: Mapping[str, Any], faults: list[str]) -> bool:
    """Whether there is an array for each tensor, of its shape and type, and no other; if not, why, in `faults`."""
    if not isinstance(arrays, Mapping):
        faults.append(f"{path}: expected a dict of arrays, found {_kind(arrays)}")
        return False
    new = [f"{path}/{name}: missing" for name in tensors.keys() - arrays.keys()]
    new += [f"{path}/{name}: not expected" for name in arrays.keys() - tensors.keys()]
    for name in tensors.keys() & arrays.keys():
        array, tensor = arrays[name], tensors[name]
        if fault := _fault_of_tensor(tensor):
            new.append(f"{path}/{name}: {fault}")
            continue
        expected = f"{_dtype(tensor)} {tuple(tensor.shape)}"
        found = f"{array.dtype} {array.shape}" if isinstance(array, np.ndarray) else _kind(array)
        if expected != found:
            new.append(f"{path}/{name}: expected {expected}, found {found}")
    faults += new
    return not new


def _tensor(array: Array) -> Tensor:
    """An independent tensor."""
    return torch.from_numpy(np.array(array, order="C"))


# Files


def _storable(where: str, checkpoint: Mapping[str, Any], *, copy: bool) -> dict[str, Any]:
    """A checkpoint of compact tensors and plain values alone, or one error for all that is anything else."""
    faults: list[str] = []
    clones: dict[Any, Tensor] = {}

    def plain(path: str, value: Any) -> Any:
        if isinstance(value, Tensor):
            return compact(path, value)
        if type(value) in (dict, OrderedDict, Counter):
            keys = [key for key in value if type(key) not in (str, int)]
            faults.extend(f"{path}: expected keys that are str or int, found {key!r}" for key in keys)
            new = type(value)({key: plain(f"{path}/{key}" if path else str(key), x) for key, x in value.items()})
            if hasattr(value, "_metadata"):  # the versions of a model's modules
                new._metadata = plain(f"{path}/_metadata", value._metadata)
            return new
        if type(value) in (list, tuple):
            return type(value)(plain(f"{path}/{i}", item) for i, item in enumerate(value))
        if type(value) not in PLAIN:
            faults.append(f"{path}: expected a tensor or a plain value, found {_kind(value)}; convert it")
        return value

    def compact(path: str, value: Tensor) -> Tensor | None:
        tensor = value.detach()  # a parameter would be stored as one
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            faults.append(f"{path}: expected a dense tensor, found {_kind(value)} of {value.layout} on {value.device}")
            return None
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        if whole and not copy and tensor.device.type == "cpu":
            return tensor
        region = _region(tensor)
        if region not in clones:
            clones[region] = tensor.to("cpu", copy=True)
        return clones[region]

    new = plain("", dict(checkpoint))
    _refuse(where, faults)
    return new  # type: ignore[no-any-return]


def _region(tensor: Tensor) -> tuple[Any, ...]:
    """Which part of which memory a tensor shows, and how: equal for tied tensors, and for none that is empty."""
    start = tensor.untyped_storage().data_ptr() if tensor.numel() else object()
    return start, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.device


def _read(path: Path) -> Any:
    """What a file holds, whatever it is."""
    try:
        # Asked before opening: opening a pipe would wait for a writer.
        if not stat.S_ISREG(os.stat(path).st_mode):
            _fail(CheckpointError, path, "a file", "a directory or device", "Give the path of one file.")
        with open(path, "rb") as file:
            return _verified(path, file)
    except FileNotFoundError:
        _fail(CheckpointError, path, "a checkpoint", "no such file", "Check the path, or save first.")
    except OSError as error:
        advice = "Check the permissions and the disk; the file itself may be sound."
        _fail(CheckpointError, path, "a readable file", error.strerror or f"{error}", advice)


def _verified(path: Path, file: BinaryIO) -> Any:
    """What torch.load makes of a file whose records have been checked; any other error is a `CheckpointError`."""
    try:
        damaged = _damaged_record(file)
        file.seek(0)
        if damaged is None:
            return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        if foreign := _foreign_objects(path):
            advice = "Loading them could run code: save tensors and plain values, or convert it where you trust it."
            _fail(IncompatibleCheckpoint, path, "tensors and plain values", f"objects of {foreign}", advice)
        found = f"{type(error).__name__}: {error}".splitlines()[0]
        _fail(CorruptCheckpoint, path, "a file that torch.load can read", found[:200], DAMAGED)
    _fail(CorruptCheckpoint, path, "records that agree with their CRC-32", f"another in {damaged!r}", DAMAGED)


def _damaged_record(file: BinaryIO) -> str | None:
    """The first record of an archive that disagrees with its CRC-32; None if all agree, or it is no archive."""
    if file.read(4) != b"PK\3\4":  # how torch, too, tells an archive from its older format
        return None
    with zipfile.ZipFile(file) as archive:
        return archive.testzip()


def _foreign_objects(path: Path) -> str:
    """The classes and functions in a file that `torch.load` would not accept."""
    with suppress(Exception):  # of a damaged file nothing can be said
        return ", ".join(sorted(torch.serialization.get_unsafe_globals_in_checkpoint(path)))
    return ""


# Errors


def _no_dicts(checkpoint: Mapping[str, Any]) -> list[str]:
    """The recipe's items that are there and must be dicts, and are not."""
    names = [name for name in (*RECIPE, *OPTIONAL) if name.endswith("_state_dict") and name in checkpoint]
    return [name for name in names if not isinstance(checkpoint[name], dict)]


def _faults_of_state_dicts(checkpoint: Mapping[str, Any]) -> list[str]:
    return [f"{name}: expected a dict, found {_kind(checkpoint[name])}" for name in _no_dicts(checkpoint)]


def _kind(value: object) -> str:
    return type(value).__name__


def _refuse(where: str, faults: Iterable[str]) -> None:
    """Raise one ValueError for all faults, if there are any."""
    if faults := sorted(faults):
        raise ValueError(f"{where}: nothing was done; mend each of these:\n    " + "\n    ".join(faults))


def _fail(kind: type[CheckpointError], path: Path, expected: str, found: str, advice: str) -> NoReturn:
    """Raise a `CheckpointError`: where, what was expected, what was found, what to do."""
    raise kind(f"{os.fspath(path)}: expected {expected}, found {found}.\n    {advice}")
