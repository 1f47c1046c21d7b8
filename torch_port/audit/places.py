"""Where a state lives: how another value is put there."""

import re
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

HIDDEN_OF_LOADERS = re.compile(
    r"_DataLoader.*|multiprocessing_context|_dataset_kind|_IterableDataset_.*|timeout|num_workers|pin_memory.*"
    r"|prefetch_factor|drop_last|collate_fn|worker_init_fn|batch_size|in_order|persistent_workers"
)
MISSING = object()


class Put:
    """Sets one attribute, entry or item, and can remove it."""

    def __init__(self, put: Callable[[Any], None], drop: Callable[[], None] | None = None) -> None:
        self.put, self.drop = put, drop

    def __call__(self, value: Any) -> None:
        """Put a value there."""
        self.put(value)


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
        if not _refilled(getattr(owner, name, None), value):
            setattr(owner, name, value)

    return Put(put, lambda: delattr(owner, name))


def _refilled(here: Any, value: Any) -> bool:
    """Whether a list could be filled anew: others may hold the same one, and a deque keeps its length."""
    if not isinstance(here, (list, deque)) or not isinstance(value, list):
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


def lazy(scaler: Any, tensor: str, initial: str) -> Callable[[Any], None]:
    """Sets a value that is a tensor from the first loss on."""

    def put(value: Any) -> None:
        here = getattr(scaler, tensor)
        if here is None:
            setattr(scaler, initial, value)
        else:
            here.fill_(value)

    return put


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
