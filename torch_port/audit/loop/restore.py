"""Values put where their paths point: what makes a lost state whole again in a trial."""

import re
from collections import deque
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from torch_port.audit.judge.record import DATA, PLACE_IN_GROUPS
from torch_port.audit.loop.observe import Seen
from torch_port.audit.loop.places import MISSING, in_dict, in_object, key_of, train_instead


def put_back(seen: Seen, values: dict[str, Any]) -> list[str]:
    """Put values where their paths point, `MISSING` for a state that is to go; returns the paths that could not be."""
    failed = []
    gone = sorted((path for path in values if values[path] is MISSING), key=_natural, reverse=True)  # last items first
    kept = sorted((path for path in values if values[path] is not MISSING), key=_natural)
    order = [*gone, *sorted(kept, key=lambda path: path in seen.slots and seen.slots[path].kind == "generator")]
    for path in order:
        slot, value = seen.slots.get(path), values[path]
        try:
            if slot is None:
                done = value is MISSING or _create(seen, path, value)
            elif value is MISSING:
                done = slot.drop is not None
                if slot.drop is not None:
                    slot.drop()
            else:
                done = slot.put is not None
                if slot.put is not None:
                    slot.put(value)
        except Exception:  # a value that does not fit there is not put back, whatever its owner says of it
            done = False
        if not done:
            failed.append(path)
    return failed


def link(seen: Seen, links: dict[str, str | None]) -> list[str]:
    """Make each path the very object or memory of its target, or its own for None; returns those that cannot be."""
    return [
        path
        for path, target in links.items()
        if not (_unlink(seen, path) if target is None else _link(seen, path, seen.objects.get(target)))
    ]


def _link(seen: Seen, path: str, there: Any) -> bool:
    """Make a path the very object, or memory, that stands at another."""
    if there is None:
        return False
    if trained := PLACE_IN_GROUPS.fullmatch(path):
        optimizer, group, place = seen.objects.get(trained[1]), int(trained[2]), int(trained[3])
        if optimizer is None or place >= len(optimizer.param_groups[group]["params"]):
            return False
        train_instead(optimizer, group, place, there)
        return True
    return _create(seen, _place(seen, path), there.detach() if path.endswith(DATA) else there)


def _unlink(seen: Seen, path: str) -> bool:
    """Give a path a tensor, or memory, of its own."""
    whose = path.removesuffix(DATA)
    here = seen.slots[whose].value if whose in seen.slots else seen.objects.get(seen.aliases.get(whose, ""))
    if not isinstance(here, torch.Tensor):
        return False
    one = here.detach().clone()
    other = path == whose and isinstance(here, torch.nn.Parameter)
    return _create(seen, _place(seen, path), torch.nn.Parameter(one) if other else one)


def _place(seen: Seen, path: str) -> str:
    """Where a tensor is put for its memory: a parameter stays, as others refer to it."""
    whose = path.removesuffix(DATA)
    return path if isinstance(seen.objects.get(whose), torch.nn.Parameter) else whose


def make_containers(seen: Seen, dicts: list[str], scalers: dict[str, str]) -> None:
    """Make the dicts and the scalers that are not there yet."""
    for path in dicts:
        if path not in seen.objects:
            fresh: dict[Any, Any] = {}
            if _create(seen, path, fresh):
                seen.objects[path] = fresh
    for path, device in scalers.items():
        if path not in seen.objects:
            _create(seen, path, GradScaler(device))


def _create(seen: Seen, path: str, value: Any) -> bool:
    """Make a state that is not there: of an optimizer, an attribute or an entry."""
    if "/" in path and not path.startswith("rng/"):
        head, key, name = [*path.split("/", 2), ""][:3]
        optimizer, parameter = seen.objects.get(f"{head}//{name}", (None, None))
        if optimizer is not None:
            on_device = isinstance(value, torch.Tensor) and value.shape == parameter.shape
            optimizer.state[parameter][key] = value.to(parameter.device, copy=True) if on_device else value
            return True
    if path.endswith(".grad") and isinstance(seen.objects.get(path[:-5]), torch.Tensor):
        seen.objects[path[:-5]].grad = value.to(seen.objects[path[:-5]].device)
        return True
    for place in (place for place in range(len(path), -1, -1) if path[place : place + 1] in (".", "[") or place == 0):
        owner, name = seen.objects.get(path[:place]), path[place:].removeprefix(".")  # a key may have dots
        if owner is not None:
            return _create_in(owner, path[place:].startswith("["), name, value)
    return False


def _create_in(owner: Any, is_item: bool, name: str, value: Any) -> bool:
    """Make an item, an entry or an attribute of an object."""
    if isinstance(owner, (list, deque)) and re.fullmatch(r"\[\d+\]", name):
        owner.append(value)
    elif isinstance(owner, dict):
        in_dict(owner, key_of(name) if is_item else name)(value)
    elif hasattr(owner, "__dict__") and not set(".[/") & set(name):
        in_object(owner, name)(value)
    else:
        return False
    return True


def _natural(path: str) -> list[tuple[int, str]]:
    """A key that orders item 2 before item 10."""
    return [(int(part) if part.isdigit() else -1, part) for part in re.split(r"(\d+)", path)]
