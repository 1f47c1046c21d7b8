"""The dict of PyTorch's recipe for a general checkpoint: made of stock objects, and read as the reference's tree."""

from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from torch_port.interop.errors import kind_of, refuse
from torch_port.interop.objects import faults_of_grad_scaler, state_dicts
from torch_port.interop.tensors import region_of
from torch_port.interop.to_tree import tree_of

RECIPE = ("epoch", "model_state_dict", "optimizer_state_dict", "loss")
OPTIONAL = ("scheduler_state_dict", "scaler_state_dict")
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)


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
    refuse(where, [f"{name}: a name of the recipe's; choose another" for name in extras if name in RECIPE + OPTIONAL])
    refuse(where, faults_of_grad_scaler(scaler))
    states = state_dicts(model, optimizer, scheduler, scaler)
    recipe = {"epoch": epoch, "model_state_dict": None, "optimizer_state_dict": None, "loss": loss}
    refuse(where, faults_of_state_dicts(recipe | states))
    return storable(where, recipe | states | extras, copy=True)


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
        refuse(where, [f"checkpoint: expected a dict as load_general returns it, found {kind_of(checkpoint)}"])
    faults = [
        f"{name}: expected a dict, found {kind_of(checkpoint.get(name))}"
        for name in ("model_state_dict", "optimizer_state_dict", *OPTIONAL)
        if not isinstance(checkpoint.get(name, {} if name in OPTIONAL else None), Mapping)
    ]
    refuse(where, faults or _faults_of_optimizer(checkpoint["optimizer_state_dict"]))
    return tree_of(where, checkpoint, _names_in(where, checkpoint, parameter_names), t)


def _names_in(where: str, checkpoint: Mapping[str, Any], given: Sequence[str] | None) -> list[str]:
    """The names of the parameters that a checkpoint numbers, in that order."""
    model, groups = checkpoint["model_state_dict"], checkpoint["optimizer_state_dict"]["param_groups"]
    count = sum(len(group["params"]) for group in groups)
    if given is not None:
        names, source = list(given), "parameter_names"
    elif all("param_names" in group for group in groups):
        names, source = [name for group in groups for name in group["param_names"]], "param_names of the optimizer"
    else:
        names, source = likely_parameters(model), "parameters in the model's state"
    unknown = sorted(map(str, set(names) - model.keys()))
    if len(names) != count or len(set(names)) != count or unknown:
        found = f"{len(set(names))} {source}" + f", of them not in the state: {', '.join(unknown)}" * bool(unknown)
        advice = "give parameter_names, [name for name, _ in model.named_parameters()] if it is over model.parameters()"
        refuse(where, [f"optimizer: expected {count} different names of the model's state, found {found}; {advice}"])
    return names


def likely_parameters(model: Mapping[str, Any]) -> list[str]:
    """The entries of a model's state that are parameters, if it has no buffers but batch normalisation's."""
    names: dict[Any, str] = {}
    for name, tensor in model.items():
        path, _, last = name.rpartition(".")
        counter = f"{path}.num_batches_tracked" if path else "num_batches_tracked"
        statistic = last in ("running_mean", "running_var") and counter in model
        if isinstance(tensor, Tensor) and (tensor.is_floating_point() or tensor.is_complex()) and not statistic:
            names.setdefault(region_of(tensor), name)
    return list(names.values())


def _faults_of_optimizer(state: Mapping[str, Any]) -> list[str]:
    """What makes a dict no state of an optimizer."""
    groups = state.get("param_groups")
    sound = isinstance(groups, list) and all(isinstance(g, dict) and isinstance(g.get("params"), list) for g in groups)
    if sound and isinstance(state.get("state"), dict) and all(isinstance(e, dict) for e in state["state"].values()):
        return []
    return ["optimizer_state_dict: expected the dict of state and param_groups that an optimizer's state_dict() makes"]


def storable(where: str, checkpoint: Mapping[str, Any], *, copy: bool) -> dict[str, Any]:
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
            faults.append(f"{path}: expected a tensor or a plain value, found {kind_of(value)}; convert it")
        return value

    def compact(path: str, value: Tensor) -> Tensor | None:
        tensor = value.detach()  # a parameter would be stored as one
        if type(tensor) is not Tensor or tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            faults.append(
                f"{path}: expected a dense tensor, found {kind_of(value)} of {value.layout} on {value.device}"
            )
            return None
        whole = tensor.untyped_storage().nbytes() == tensor.nbytes
        if whole and not copy and tensor.device.type == "cpu":
            return tensor
        region = region_of(tensor)
        if region not in clones:
            clones[region] = tensor.to("cpu", copy=True)
        return clones[region]

    new = plain("", dict(checkpoint))
    refuse(where, faults)
    return new  # type: ignore[no-any-return]


def no_dicts(checkpoint: Mapping[str, Any]) -> list[str]:
    """The recipe's items that are there and must be dicts, and are not."""
    names = [name for name in (*RECIPE, *OPTIONAL) if name.endswith("_state_dict") and name in checkpoint]
    return [name for name in names if not isinstance(checkpoint[name], dict)]


def faults_of_state_dicts(checkpoint: Mapping[str, Any]) -> list[str]:
    """The same, a line each."""
    return [f"{name}: expected a dict, found {kind_of(checkpoint[name])}" for name in no_dicts(checkpoint)]
