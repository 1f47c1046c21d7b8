"""What a loop does, without the audit: run on, or stop, go through a file into a fresh object, and run on.

A picture is every state of a loop, a digest under the path that the audit would give it.
"""

import copy
import hashlib
import json
import random  # noqa: TID251 - its state is looked at
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from parity_tests.zoo import (  # noqa: F401 - they fill LOOPS
    everything,
    faulty_data,
    faulty_elsewhere,
    faulty_model,
    faulty_updates,
    sound,
    sound_elsewhere,
)
from parity_tests.zoo.base import GLOBAL, LOOPS, STEPS

Picture = dict[str, str]
PLAIN = (bool, int, float, str, type(None))
NO_STATE = {"optimizer", "_is_initial", "_get_lr_called_within_step", "lr_lambdas", "_anneal_func_type"}


def loop_of(name: str) -> Any:
    """The class or function that makes a loop."""
    module, attribute = LOOPS[name].target.split(":")
    return getattr(import_module(module), attribute)


@contextmanager
def own_process() -> Iterator[None]:
    """Leaves the process's generators as they were."""
    kept = {name: get() for name, (get, _) in GLOBAL.items()}
    try:
        yield
    finally:
        for name, (_, put) in GLOBAL.items():
            put(kept[name])


ALIVE: list[nn.Module] = []  # so that no address is used twice
TAKEN: dict[str, Any] = {}  # the state of a loop that its entry says how to give back


def uninterrupted(name: str, saves: Mapping[int, Path]) -> dict[int, Picture]:
    """The pictures after each step of a run that saves after some steps and goes on."""
    loop, back, pictures = loop_of(name)(), LOOPS[name].back, {}
    ALIVE[:] = [value for value in vars(loop).values() if isinstance(value, nn.Module)]
    begin = back and copy.deepcopy(back.take(loop))
    for step in range(1, STEPS + 1):
        result = loop.step()
        pictures[step] = picture(loop) | {"loss": digest(result)}
        if path := saves.get(step):
            loop.save(str(path)) if hasattr(loop, "save") else torch.save(loop.state_dict(), path)
            if back:
                TAKEN[name] = copy.deepcopy(back.take(loop))
    if back:
        back.give(loop, begin)  # a class or module has it as in a new process
    return pictures


def resumed(name: str, at: int, path: Path, *, given_back: bool = False) -> dict[int, Picture]:
    """The pictures after the load, and after each later step."""
    loop, back = loop_of(name)(), LOOPS[name].back
    begin = back and copy.deepcopy(back.take(loop))
    loop.load(str(path)) if hasattr(loop, "load") else loop.load_state_dict(torch.load(path, weights_only=True))
    if back and given_back:
        back.give(loop, copy.deepcopy(TAKEN[name]))
    pictures = {at: picture(loop)}
    for step in range(at + 1, STEPS + 1):
        result = loop.step()
        pictures[step] = picture(loop) | {"loss": digest(result)}
    if back:
        back.give(loop, begin)
    return pictures


def differing(a: dict[int, Picture], b: dict[int, Picture], at: int) -> dict[int, list[str]]:
    """The paths that differ after each step from `at` on; the loss of step `at` was before the stop."""
    found = {}
    for step in range(at, STEPS + 1):
        paths = sorted(path for path in a[step].keys() | b[step].keys() if a[step].get(path) != b[step].get(path))
        if step == at:
            paths = [path for path in paths if path != "loss"]
        if paths:
            found[step] = paths
    return found


def picture(loop: Any) -> Picture:
    """Every state of a loop and of the process; gradients where the loop saves them, for else they are left over."""
    found: Picture = {}
    seen = {id(loop)}
    models = [value for value in vars(loop).values() if isinstance(value, nn.Module)]
    names = {id(one): name for model in models for name, one in reversed(list(model.named_parameters()))}
    for name, value in vars(loop).items():
        if name != "iterator":
            _look(found, name, value, names, seen)
    if "gradients" not in getattr(loop, "values", ()):
        found = {path: one for path, one in found.items() if not path.endswith(".grad")}
    return found | {f"rng/{name}": digest(get()) for name, (get, _) in GLOBAL.items()}


def _look(found: Picture, path: str, value: Any, names: dict[int, str], seen: set[int]) -> None:
    if isinstance(value, PLAIN):
        found[path] = digest(value)
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (torch.Tensor, torch.Generator, np.random.Generator, np.random.RandomState, random.Random)):
        found[path] = digest(value)
    elif isinstance(value, nn.Module):
        found |= {f"{path}.{name}": digest(one) for name, one in value.state_dict().items()}
        for name, module in value.named_modules():
            found[f"{path}.{name}.training" if name else f"{path}.training"] = digest(module.training)
        for name, parameter in value.named_parameters():
            found[f"{path}.{name}.requires_grad"] = digest(parameter.requires_grad)
            if parameter.grad is not None:
                found[f"{path}.{name}.grad"] = digest(parameter.grad)
    elif isinstance(value, torch.optim.Optimizer):
        for number, group in enumerate(value.param_groups):
            found |= {f"{path}/{key}/{number}": digest(one) for key, one in group.items() if key != "params"}
            for parameter in group["params"]:
                entries = value.state.get(parameter, {})
                found |= {f"{path}/{key}/{names[id(parameter)]}": digest(one) for key, one in entries.items()}
    elif isinstance(value, torch.amp.GradScaler):
        found |= {f"{path}.{key}": digest(one) for key, one in value.state_dict().items()}
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _look(found, f"{path}.{key}", one, names, seen)
    elif isinstance(value, (list, tuple)):
        for index, one in enumerate(value):
            _look(found, f"{path}[{index}]", one, names, seen)
    elif isinstance(value, (LRScheduler, ReduceLROnPlateau)) or type(value).__module__.startswith("parity_tests."):
        for key, one in vars(value).items():
            if key not in NO_STATE:
                _look(found, f"{path}.{key}", one, names, seen)


def digest(value: Any) -> str:
    """A digest that tells every other value apart: bits, types and shapes."""
    if isinstance(value, torch.Tensor):
        value = value.to_dense() if value.is_sparse else value
        bits = value.detach().contiguous().view(-1).view(torch.uint8) if value.numel() else torch.empty(0)
        return hashlib.sha256(f"{value.dtype}{list(value.shape)}".encode() + bits.numpy().tobytes()).hexdigest()
    if isinstance(value, torch.Generator):
        return digest(value.get_state())
    if isinstance(value, np.random.Generator):
        return digest(value.bit_generator.state)
    if isinstance(value, random.Random):
        return digest(value.getstate())
    if isinstance(value, np.random.RandomState):
        name, key, *rest = value.get_state()
        return digest([name, key.tolist(), *rest])
    return hashlib.sha256(repr(value).encode()).hexdigest()


if __name__ == "__main__":  # `NAME AT FILE run|resume`: the pictures as JSON, from a process of its own
    _, chosen, stop, file, way = sys.argv
    made = uninterrupted(chosen, {int(stop): Path(file)}) if way == "run" else resumed(chosen, int(stop), Path(file))
    sys.stdout.write(json.dumps(made))
