"""Where a state lives: how another value is put there."""

import ast
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from torch_port.audit.loop.values import PLAIN

MISSING = object()


class Put:
    """Sets one attribute, entry or item, and can remove it."""

    def __init__(self, put: Callable[[Any], None], drop: Callable[[], None] | None = None) -> None:
        self.put, self.drop = put, drop

    def __call__(self, value: Any) -> None:
        """Put a value there."""
        self.put(value)


def entry(path: str, key: Any) -> str:
    """The path of an entry of a dict: `a.b` for a text as its key, `a[0]` for any other; "" where it has none."""
    if isinstance(key, str):
        return f"{path}.{key}" if path and key else path or key
    if isinstance(key, np.generic):
        return entry(path, key.item())  # a dict takes both for one key
    if isinstance(key, int) and not isinstance(key, bool):
        return f"{path}[{int(key)}]"
    return f"{path}[{key!r}]" if _is_key(key) else ""


def train_instead(optimizer: Any, group: int, place: int, parameter: Any) -> None:
    """Let an optimizer train another tensor in a place, with the state that it has for the one there."""
    trained = optimizer.param_groups[group]["params"]
    old, trained[place] = trained[place], parameter
    if old is not parameter and old in optimizer.state:
        optimizer.state[parameter] = optimizer.state.pop(old)


def _is_key(key: Any) -> bool:
    return all(map(_is_key, key)) if isinstance(key, tuple) else isinstance(key, PLAIN)


def key_of(text: str) -> Any:
    """The key in the last brackets of a path, as `entry` writes it.

    Raises:
        ValueError: it is no key that can be read.
    """
    try:
        return ast.literal_eval(text.removeprefix("[").removesuffix("]"))
    except SyntaxError:
        raise ValueError(text) from None


def in_dict(owner: Any, key: Any) -> Put:
    """Sets an entry of a dict."""

    def put(value: Any) -> None:
        if not _refilled(owner.get(key), value):
            owner[key] = value

    return Put(put, lambda: owner.pop(key, None))


def in_list(owner: Any, index: int) -> Put:
    """Sets an item of a list."""
    return Put(lambda value: owner.__setitem__(index, value), lambda: owner.__delitem__(index))


def in_object(owner: Any, name: str) -> Put:
    """Sets an attribute."""

    def put(value: Any) -> None:
        here = getattr(owner, name, None)
        shared = any(here is vars(base).get(name) for base in _bases(owner))  # its own hides it from then on
        if shared or not _refilled(here, value):
            setattr(owner, name, value)

    return Put(put, lambda: delattr(owner, name))


def _bases(owner: Any) -> tuple[type, ...]:
    """The classes from which an object, or a class, has what it does not hold itself."""
    return owner.__mro__[1:] if isinstance(owner, type) else type(owner).__mro__


def refill(owner: Any) -> Put | None:
    """Fills a list or a set that cannot be replaced; None for anything else."""

    def put(value: Any) -> None:
        if isinstance(owner, set) and isinstance(value, set):
            owner.clear()
            owner.update(value)
        elif not _refilled(owner, value):
            raise ValueError(f"there is a {type(owner).__name__}")

    return Put(put) if isinstance(owner, (list, deque, set)) else None


def _refilled(here: Any, value: Any) -> bool:
    """Whether a list could be filled anew: others may hold the same one; a deque only to the same length."""
    lists = isinstance(here, list) and isinstance(value, list)
    if not lists and not (isinstance(here, deque) and isinstance(value, deque) and here.maxlen == value.maxlen):
        return False
    here.clear()
    here.extend(value)
    return True


def into(target: Any, put: Any = None) -> Callable[[Any], None]:
    """Copies into a tensor or an array, or puts another there where the shape has changed."""

    def copy(value: Any) -> None:
        if isinstance(target, np.ndarray) and np.shape(value) == target.shape:
            target[...] = value
        elif isinstance(target, torch.Tensor) and isinstance(value, torch.Tensor) and value.shape == target.shape:
            with torch.no_grad():
                if value.dtype != target.dtype:
                    target.data = value.to(target.device)
                else:
                    target.copy_(value)
        elif put is not None:
            put(value)
        else:
            raise ValueError("it has another shape there")

    return copy


def in_scaler(scaler: Any) -> list[tuple[str, Any, Callable[[Any], None]]]:
    """What a GradScaler goes on with: name, value, and what sets it."""
    factors = [(name, getattr(scaler, name)) for name in ("_growth_factor", "_backoff_factor", "_growth_interval")]
    return [
        ("scale", scaler.get_scale(), _lazy(scaler, "_scale", "_init_scale")),
        ("growth_tracker", scaler._get_growth_tracker(), _lazy(scaler, "_growth_tracker", "_init_growth_tracker")),
        *((name.strip("_"), value, in_object(scaler, name)) for name, value in factors),
    ]


def _lazy(scaler: Any, tensor: str, initial: str) -> Callable[[Any], None]:
    """Sets a value that is a tensor from the first loss on."""

    def put(value: Any) -> None:
        here = getattr(scaler, tensor)
        if here is None:
            setattr(scaler, initial, value)
        else:
            here.fill_(value)

    return put
