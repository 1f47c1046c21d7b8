"""What the walk passes over: what a library keeps for itself, and objects that hold no state of a loop."""

import dis
import functools
import re
import sys
import threading
import types

import torch

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
