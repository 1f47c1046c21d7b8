"""What objects, classes and functions hold that is state of the loop, and what the walk passes over.

A hook, a collate function or a factor of a rate is called by the library's object that holds it; what it closes over is
state of the loop as any other. Classes hold counters and generators that all of their objects share.
"""

import dis
import functools
import re
import site
import sys
import sysconfig
import threading
import types
from enum import Enum
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import Optimizer
from torch.utils.data import DataLoader

from torch_port.audit.loop.places import MISSING, in_dict, in_object, refill
from torch_port.audit.loop.values import PLAIN

HIDDEN_OF_MODULES = re.compile(
    r"_parameters|_buffers|_modules|_non_persistent.*|.*_hooks.*|_backward.*|training|_is_full.*"
    r"|call_super_init|dump_patches|T_destination|_compiled_call_impl|_version"
)
HIDDEN_OF_OPTIMIZERS = re.compile(
    r"state|param_groups|defaults|.*_hooks.*|_zero_grad.*|_patch.*|_warned.*|_opt_called"
    r"|_step_count|_need_device.*|_params$|_numel_cache"
)
HIDDEN_OF_SCHEDULES = re.compile(r"_get_lr_called.*|_is_initial|verbose|.*lr_lambdas|anneal_func|mode_worse")
HIDDEN_OF_LOADERS = re.compile(
    r"_DataLoader.*|multiprocessing_context|_dataset_kind|_IterableDataset_.*|timeout|num_workers|pin_memory.*"
    r"|prefetch_factor|drop_last|collate_fn|worker_init_fn|batch_size|in_order|persistent_workers"
)
UNSEEN = (
    *(type, types.ModuleType, types.GenericAlias, types.CodeType, re.Pattern),
    *(torch.autograd.graph.Node, type(threading.Lock()), type(threading.RLock())),
)
OPAQUE = {  # packages of the standard library: what others than the loop change, in their own time
    *("threading", "queue", "_queue", "concurrent", "multiprocessing", "subprocess", "asyncio", "_asyncio"),
    *("socket", "selectors", "sqlite3", "io", "_io"),
}
FEED = {"queue", "_queue", "concurrent", "multiprocessing", "subprocess", "asyncio", "_asyncio"}
HOLD_NOTHING = (
    *("pathlib", "logging", "datetime", "re", "typing", "inspect", "weakref", "_weakref", "argparse", "abc"),
    *("collections.abc", "torch._C", "functools", "operator", "enum"),
)


def holds_nothing(cls: type) -> bool:
    """Whether a class is of a module whose objects hold no state of a loop."""
    return any(cls.__module__ == name or cls.__module__.startswith(name + ".") for name in HOLD_NOTHING)


def is_opaque(cls: type) -> bool:
    """Whether the objects of a class are threads, queues, executors, processes, files and the like."""
    return any(_package(base) in OPAQUE for base in cls.__mro__)


def feeds(cls: type) -> bool:
    """Whether the objects of a class bring what a thread or another process makes: queues, executors, threads."""
    return issubclass(cls, threading.Thread) or any(_package(base) in FEED for base in cls.__mro__)


def own_of_library(cls: type) -> "re.Pattern[str]":
    """The attributes of an opaque object that are not the user's: all, or in a user's class those its base sets."""
    libraries = tuple(base for base in cls.__mro__ if _package(base) in sys.stdlib_module_names)
    return re.compile(".*", re.DOTALL) if cls in libraries else _set_by(libraries)


@functools.cache
def _set_by(classes: tuple[type, ...]) -> "re.Pattern[str]":
    """The attributes that the methods of classes set."""
    methods = [one for cls in classes for one in vars(cls).values() if isinstance(one, types.FunctionType)]
    names = {
        found.argval for method in methods for found in dis.get_instructions(method) if found.opname == "STORE_ATTR"
    }
    return re.compile("|".join(map(re.escape, sorted(names))) or r"(?!)")


def _package(cls: type) -> str:
    return cls.__module__.partition(".")[0]


def attributes_of(owner: Any) -> list[tuple[str, Any]]:
    """The attributes an object itself holds."""
    found = dict(getattr(owner, "__dict__", {}))
    for cls in type(owner).__mro__:
        slots = cls.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            value = getattr(owner, name, MISSING)
            if name not in ("__dict__", "__weakref__") and value is not MISSING:
                found.setdefault(name, value)
    if isinstance(owner, DataLoader):
        found = {name: found[name] for name in found if not HIDDEN_OF_LOADERS.fullmatch(name)}
        found = {**({"generator": found["generator"]} if "generator" in found else {}), **found}  # its first name
    return list(found.items())


PATHS = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = tuple({*PATHS, *site.getsitepackages(), site.getusersitepackages()})


@functools.cache
def is_users(name: str | None, module: str) -> bool:
    """Whether a module is of the user's own code: of the package of the audited one, or not installed.

    Args:
        name: of the module of a class or a function.
        module: name of the module that the audit was pointed to.
    """
    if name is None:
        return False
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names or package in ("torch", "numpy"):
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    installed = file is None or any(Path(file).is_relative_to(folder) for folder in LIBRARIES)
    return package == module.partition(".")[0] or not installed


def path_of_class(cls: type, module: dict[str, Any]) -> str:
    """Where a class stands: under its own name, among the globals of the audited module if it is there.

    Args:
        cls: the class.
        module: those globals.
    """
    name = cls.__qualname__.rpartition("<locals>.")[2]
    outer = module.get(name.partition(".")[0])
    within = isinstance(outer, type) and (outer.__module__, outer.__qualname__) == (
        cls.__module__,
        cls.__qualname__[: len(outer.__qualname__)],
    )
    return f"globals.{name}" if outer is cls or (within and "." in name) else name


def held_by_class(cls: type) -> list[tuple[str, Any]]:
    """The attributes of a class that may be state: no functions, properties and the like, no members of an enum."""
    return (
        []
        if issubclass(cls, Enum)
        else [
            (name, value)
            for name, value in list(vars(cls).items())
            if not name.startswith("__") and not hasattr(type(value), "__get__")
        ]
    )


def methods_of_class(cls: type) -> list[tuple[str, Any]]:
    """The functions that a class defines, whatever they are wrapped in: they have closures and defaults."""
    found: list[tuple[str, Any]] = []
    for name, value in [] if issubclass(cls, Enum) else list(vars(cls).items()):
        inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        sides = (inner.fget, inner.fset, inner.fdel) if isinstance(inner, property) else (inner,)
        found += [(name, side) for side in sides if isinstance(side, (types.FunctionType, types.MethodType))]
    return found


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
