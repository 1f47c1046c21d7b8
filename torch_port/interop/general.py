"""PyTorch's recipe for a general checkpoint: its dict, made of stock objects and read as the tree, and its file.

The file, by convention `.tar`, is written whole or not at all, and checked when it is read.
"""

import os
import zipfile
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer

from numpy_ref.checkpoint.container import CorruptCheckpoint, IncompatibleCheckpoint, IncompleteCheckpoint
from numpy_ref.checkpoint.durable import replace_file
from torch_port.interop.errors import Path, fail, kind_of, opened, refuse
from torch_port.interop.objects import faults_of_grad_scaler, state_dicts
from torch_port.interop.trees import region_of, tree_of

RECIPE = ("epoch", "model_state_dict", "optimizer_state_dict", "loss")
OPTIONAL = ("scheduler_state_dict", "scaler_state_dict")
PLAIN = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size)
DAMAGED = (
    "The file is damaged, or never was a general checkpoint: use another copy or an older one. A file that "
    "save_checkpoint has written is read by resume_from_full_checkpoint."
)


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
        >>> from torch_port.interop import snapshot_general
        >>> model = torch.nn.Linear(2, 1)
        >>> checkpoint = snapshot_general(model, torch.optim.SGD(model.parameters()), epoch=3, loss=0.5)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_general(f"{folder}/run.tar", checkpoint)
        ...     load_general(f"{folder}/run.tar")["epoch"]
        3
    """
    where = os.fspath(path)
    if not isinstance(checkpoint, Mapping):
        refuse(where, [f"checkpoint: expected a dict with the recipe's items, found {kind_of(checkpoint)}"])
    faults = [f"{name}: missing; the recipe has {', '.join(RECIPE)}" for name in RECIPE if name not in checkpoint]
    refuse(where, faults + faults_of_state_dicts(checkpoint))
    plain = storable(where, checkpoint, copy=False)
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
    with opened(path) as file:
        checkpoint = _verified(path, file)
    if not isinstance(checkpoint, dict):
        fail(CorruptCheckpoint, path, "a dict with the recipe's items", f"a {type(checkpoint).__name__}", DAMAGED)
    if missing := [name for name in RECIPE if name not in checkpoint]:
        found = ", ".join(sorted(map(str, checkpoint))[:8]) or "nothing"
        advice = "A lone state_dict is no general checkpoint: torch.load and load_state_dict take it."
        fail(IncompleteCheckpoint, path, f"{', '.join(missing)} among the items", found, advice)
    for name in no_dicts(checkpoint):
        fail(CorruptCheckpoint, path, f"a dict as {name}", f"a {kind_of(checkpoint[name])}", DAMAGED)
    return checkpoint


def _verified(path: Path, file: BinaryIO) -> Any:
    """What torch.load makes of a file whose records have been checked; any other error is a `CheckpointError`."""
    try:
        damaged = damaged_record(file)
        file.seek(0)
        if damaged is None:
            return torch.load(file, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # a damaged file makes torch.load raise nearly anything
        if foreign := _foreign_objects(path):
            advice = "Loading them could run code: save tensors and plain values, or convert it where you trust it."
            fail(IncompatibleCheckpoint, path, "tensors and plain values", f"objects of {foreign}", advice)
        found = f"{type(error).__name__}: {error}".splitlines()[0]
        fail(CorruptCheckpoint, path, "a file that torch.load can read", found[:200], DAMAGED)
    fail(CorruptCheckpoint, path, "records that agree with their CRC-32", f"another in {damaged!r}", DAMAGED)


def damaged_record(file: BinaryIO) -> str | None:
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
