"""What in a saved state no file can hold, or `torch.load(weights_only=True)` refuses: where it is, and what to do."""

import io
import json
import pickle  # noqa: TID251 - it writes only, and to nowhere
import threading
import types
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from torch_port.audit.loop.values import PLAIN
from torch_port.audit.report.words import few

SHOWN = 4  # places in a sentence
CONTAINERS = (dict, OrderedDict, list, tuple, set, frozenset)  # exactly these hold nothing but their items
REBUILD = "save the tensors, numbers and texts that it is made of, and make it anew from them in load_state_dict"
Place = tuple[str, Any]


def note_unsaved(error: BaseException) -> None:
    """Add to an error of `torch.save` which parts of what it was given cannot be saved, and what to do with each."""
    for state in _given(error):
        if found := list(_faults(state, "state", _cannot_be_written)):
            error.add_note(_sentence(found, _describe))


def refused(path: str, state: Any) -> str:
    """The parts of a state that `torch.load(weights_only=True)` refuses, in words; empty where they are not found.

    Args:
        path: of the file, written by torch.save.
        state: what it holds.
    """
    unsafe = set(torch.serialization.get_unsafe_globals_in_checkpoint(path))
    return _sentence(list(_faults(state, "state", lambda value: bool(_names(value) & unsafe), 0)), _describe_refused)


def _given(error: BaseException) -> Iterator[Any]:
    """What the call of `torch.save` that raised this was to save."""
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        if frame.f_code is torch.save.__code__:
            yield frame.f_locals["obj"]
        trace = trace.tb_next


def _faults(
    value: Any, path: str, faulty: Callable[[Any], bool], deepest: int = 24, above: frozenset[int] = frozenset()
) -> Iterator[Place]:
    """The innermost parts that are faulty, not more than so many objects deep."""
    if type(value) in PLAIN or isinstance(value, torch.Tensor) or id(value) in above:
        return
    whole = type(value) in CONTAINERS
    if not whole and not faulty(value):
        return
    found: list[Place] = []
    for place, child in _children(value, path) if whole or deepest else ():
        found += _faults(child, place, faulty, deepest - (not whole), above | {id(value)})
    yield from found
    if not whole and not found:
        yield path, value


def _children(value: Any, path: str) -> Iterator[Place]:
    """The items of a container, the attributes of an object, and how each is written."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield f"{path}[{json.dumps(key) if isinstance(key, str) else repr(key)}]", child
            yield f"the key {key!r} of {path}", key
    elif isinstance(value, (list, tuple, set, frozenset)):
        for index, child in enumerate(value):
            yield f"{path}[{index}]", child
    elif not isinstance(value, (type, types.FunctionType, types.ModuleType)):
        for name, child in getattr(value, "__dict__", {}).items():
            yield f"{path}.{name}", child


class _Pickler(pickle.Pickler):
    """Writes all but the tensors, as torch.save does, to nowhere."""

    def persistent_id(self, value: Any) -> str | None:
        """A name in place of a tensor."""
        return "tensor" if isinstance(value, torch.Tensor) else None


def _cannot_be_written(value: Any) -> bool:
    try:
        _Pickler(io.BytesIO(), protocol=2).dump(value)
    except Exception:
        return True
    return False


def _names(value: Any) -> set[str]:
    """By which names a file may refer to what makes this value."""
    try:
        made = value.__reduce_ex__(2)[0]
    except Exception:
        made = type(value)
    return {_name(one) for one in (value, type(value), made) if hasattr(one, "__qualname__")}


def _sentence(found: list[Place], describe: Callable[[Any], tuple[str, str]]) -> str:
    """Where each is, what it is, and what to do, once for those of which the same is said."""
    said: dict[tuple[str, str], list[str]] = {}
    for path, value in found:
        said.setdefault(describe(value), []).append(path)
    parts = []
    for (what, remedy), paths in said.items():
        verb = "is" if len(paths) == 1 else "each are"
        parts.append(f"{few(paths, SHOWN)} {verb} {what}: {remedy}")
    return "; ".join(parts)


def _describe(value: Any) -> tuple[str, str]:
    """What an object that cannot be saved is, and what to do instead."""
    if isinstance(value, (type(threading.Lock()), type(threading.RLock()))):
        return "a thread lock", "leave it out, and make another one after the load"
    if isinstance(value, io.IOBase):
        return "an open file", "save its name and its tell(), and open and seek() it after the load"
    if isinstance(value, types.GeneratorType):
        return "a generator object", "save how many items it gave, and make it anew and skip those after the load"
    if isinstance(value, types.FunctionType):
        what = "a lambda" if value.__name__ == "<lambda>" else "a function defined within another"
        return what, "leave it out, or define it at the top level of a module"
    if isinstance(value, types.ModuleType):
        return "a module", "leave it out"
    if isinstance(value, torch.Generator):
        return "a torch.Generator", "save its get_state(), and call its set_state(...) in load_state_dict"
    return f"an object of {_name(type(value))}", REBUILD


def _describe_refused(value: Any) -> tuple[str, str]:
    """What an object that weights_only refuses is, and what to do instead."""
    if isinstance(value, np.ndarray):
        return "an array of NumPy", "save torch.from_numpy(...) of it, and take .numpy() of that after the load"
    if isinstance(value, np.generic):
        return "a number of NumPy", "save its .item()"
    itself = isinstance(value, (type, types.FunctionType))
    name = _name(value if itself else type(value))
    what = f"{name} itself" if itself else f"an object of {name}"
    return what, f"{REBUILD}, or allow its class before the load: torch.serialization.add_safe_globals([{name}])"


def _name(cls: Any) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
