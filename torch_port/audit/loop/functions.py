"""What functions hold: closures, defaults, attributes, bound objects; and who holds the user's functions.

A hook, a collate function or a factor of a rate is called by the library's object that holds it; what it closes over is
state of the loop as any other.
"""

import functools
import types
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from torch_port.audit.loop.places import in_dict, in_object, refill
from torch_port.audit.loop.values import PLAIN

BOUND = (types.MethodType, types.BuiltinMethodType, types.MethodWrapperType)
CALLS: tuple[tuple[type, tuple[str, ...]], ...] = (  # of which class which attributes hold the user's functions
    (DataLoader, ("collate_fn", "worker_init_fn")),
    (LRScheduler, ("lr_lambdas",)),
    (torch.nn.Module, ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")),
    (Optimizer, ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")),
    (torch.Tensor, ("_backward_hooks", "_post_accumulate_grad_hooks")),
)
Held = list[tuple[str, Any, Any]]  # place, value, what puts another there


def called_by(owner: Any) -> list[tuple[str, Any]]:
    """The user's functions that a library's object calls, each with its place: `collate_fn`, `_forward_hooks[0]`.

    Hooks are numbered in their order: the keys under which torch keeps them count those of the whole process.
    """
    found = []
    for name in next((names for cls, names in CALLS if isinstance(owner, cls)), ()):
        held = getattr(owner, name, None)
        many = held.values() if isinstance(held, dict) else held if isinstance(held, list) else None
        places = [(name, held)] if many is None else [(f"{name}[{at}]", one) for at, one in enumerate(many)]
        found += [(place, one) for place, one in places if one is not None and not is_library(one)]
    return found


def is_library(function: Any) -> bool:
    """Whether a function, or the class of an object that is called, is of torch or NumPy."""
    if isinstance(function, BOUND):
        return False
    return f"{getattr(function, '__module__', None)}.".startswith(("torch.", "numpy."))


def held_by(function: Any) -> Held:
    """What a function can keep from one call to the next."""
    if isinstance(function, BOUND):
        owner = getattr(function, "__self__", None)
        return [("__self__", owner, refill(owner))] if _may_change(owner) else []
    if isinstance(function, functools.partial):
        return [("func", function.func, None), *_items("args", function.args), ("keywords", function.keywords, None)]
    if is_library(function):
        return []
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    full = [(name, cell) for name, cell in cells if _is_full(cell)]
    held: Held = [(name, cell.cell_contents, in_object(cell, "cell_contents")) for name, cell in full]
    held += _items("__defaults__", function.__defaults__ or ())
    if _may_change(tuple((function.__kwdefaults__ or {}).values())):
        held.append(("__kwdefaults__", function.__kwdefaults__, None))
    own = vars(function)
    return held + [(name, own[name], in_dict(own, name)) for name in list(own) if not name.startswith("__")]


def _items(name: str, values: tuple[Any, ...]) -> Held:
    """Those of what is fixed that can change themselves."""
    return [(f"{name}[{at}]", value, refill(value)) for at, value in enumerate(values) if _may_change(value)]


def _is_full(cell: types.CellType) -> bool:
    try:
        _ = cell.cell_contents
    except ValueError:
        return False
    return True


def _may_change(value: Any) -> bool:
    """Whether it can be another while it stays where it is; a plain list can."""
    if isinstance(value, (tuple, frozenset)):
        return any(map(_may_change, value))
    return not isinstance(value, (*PLAIN, types.ModuleType))
