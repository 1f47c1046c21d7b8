"""Stock objects: which the tree has a place for, and their state as the tree and back."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler, StepLR
from torch.optim.optimizer import Optimizer

from torch_port.interop.errors import kind_of, refuse
from torch_port.interop.trees import set_model, set_optimizer, set_scaler, set_schedule, tree_of


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
    return tree_of(where, state_dicts(model, optimizer, scheduler, scaler), names, t)


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
        >>> import numpy as np
        >>> model = nn.Linear(2, 1, bias=False)
        >>> load_into_stock({"model": {"weight": np.array([[1, 2]], np.float32)}}, model)
        >>> model.weight.tolist()
        [[1.0, 2.0]]
    """
    where = "load_into_stock"
    _check_objects(where, model, optimizer, scheduler, scaler)
    if not isinstance(tree, Mapping):
        refuse(where, [f"tree: expected a dict of its parts, found {kind_of(tree)}"])
    given = {"model": model, "optimizer": optimizer, "schedule": scheduler, "scaler": scaler}
    wanted = {part for part, thing in given.items() if thing is not None}
    faults = [f"{part}: missing in the tree, but its object is given" for part in wanted - tree.keys()]
    faults += [f"{part}: in the tree, but no object for it is given" for part in tree.keys() - wanted]
    refuse(where, faults)
    states = state_dicts(model, optimizer, scheduler, scaler)
    set_model(tree["model"], model, states["model_state_dict"], faults)
    if optimizer is not None:
        names, parameters = _names_of(where, model, optimizer), dict(model.named_parameters())
        set_optimizer(
            tree["optimizer"], {name: parameters[name] for name in names}, states["optimizer_state_dict"], faults
        )
    if scheduler is not None:
        groups = states["optimizer_state_dict"]["param_groups"]
        set_schedule(tree["schedule"], groups, states["scheduler_state_dict"], faults)
    if scaler is not None:
        set_scaler(tree["scaler"], states["scaler_state_dict"], faults)
    refuse(where, faults)
    model.load_state_dict(states["model_state_dict"])
    if optimizer is not None:
        optimizer.load_state_dict(states["optimizer_state_dict"])
    if scheduler is not None:
        scheduler.load_state_dict(states["scheduler_state_dict"])
    if scaler is not None:
        scaler.load_state_dict(states["scaler_state_dict"])


def _check_objects(
    where: str, model: nn.Module, optimizer: Optimizer | None, scheduler: LRScheduler | None, scaler: GradScaler | None
) -> None:
    """Refuse what the tree has no place for, by type."""
    faults = []
    if not isinstance(model, nn.Module):
        faults.append(f"model: expected a torch.nn.Module, found {kind_of(model)}")
    # Exactly these: a subclass may keep more, or other, state.
    if optimizer is not None and type(optimizer) not in (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD):
        found = f"{type(optimizer).__module__}.{kind_of(optimizer)}"
        advice = (
            "torch_port.snapshot takes out a run of its own, and a stock optimizer loads the state_dict of one of it"
        )
        faults.append(f"optimizer: expected torch.optim.Adam, AdamW or SGD, found {found}; {advice}")
    if scheduler is not None and type(scheduler) is not StepLR:
        faults.append(f"schedule: expected torch.optim.lr_scheduler.StepLR, found {kind_of(scheduler)}")
    elif scheduler is not None and scheduler.optimizer is not optimizer:
        faults.append("schedule: expected a scheduler of the optimizer that is given, found one of another")
    if scaler is not None and not isinstance(scaler, GradScaler):
        faults.append(f"scaler: expected a torch.amp.GradScaler, found {kind_of(scaler)}")
    else:
        faults += faults_of_grad_scaler(scaler)
    refuse(where, faults)


def faults_of_grad_scaler(scaler: GradScaler | None) -> list[str]:
    """A scaler in the middle of a step has more state than its state_dict."""
    if scaler is None or not scaler.is_enabled() or not scaler._per_optimizer_states:
        return []
    return ["scaler: expected a scaler whose update() has ended the step, found one within a step"]


def state_dicts(
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
    refuse(where, faults)
    return [names[id(p)] for group in optimizer.param_groups for p in group["params"]]
