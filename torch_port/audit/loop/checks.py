"""What a load does beyond its result: does it read every key, change anything, give back what it was given?"""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from torch_port.audit.judge.record import Leaf
from torch_port.audit.judge.stored import last_name
from torch_port.audit.loop.observe import Seen, observe, walk
from torch_port.audit.loop.values import GENERATORS, leaf
from torch_port.audit.report.words import few

SHOWN = 4  # names in a sentence


class Watched(dict[Any, Any]):
    """A dict that remembers which of its keys were read."""

    def __init__(self, state: dict[Any, Any]) -> None:
        super().__init__(state)
        self.read: set[Any] = set()

    def __getitem__(self, key: Any) -> Any:
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key: Any, default: Any = None) -> Any:
        """As a dict's."""
        self.read.add(key)
        return super().get(key, default)

    def pop(self, key: Any, *default: Any) -> Any:
        """As a dict's."""
        self.read.add(key)
        return super().pop(key, *default)

    def items(self) -> Any:
        """As a dict's."""
        self.read |= set(self)
        return super().items()

    def values(self) -> Any:
        """As a dict's."""
        self.read |= set(self)
        return super().values()

    def copy(self) -> Any:
        """As a dict's."""
        self.read |= set(self)
        return super().copy()

    def keys(self) -> Any:
        """As a dict's; who takes the keys is taken to read them (`dict(state)`, `{**state}`)."""
        self.read |= set(self)
        return super().keys()

    def __iter__(self) -> Iterator[Any]:
        """As a dict's; as it is one of its own, `dict(state)` asks for the keys and does not copy past them."""
        return super().__iter__()


def flat(state: Any, path: str = "", above: frozenset[int] = frozenset()) -> dict[str, Leaf]:
    """The leaves of a saved state by path; `above`: the ids of the objects that hold it."""
    if id(state) in above:
        return {}
    if isinstance(state, (torch.Tensor, np.ndarray, *GENERATORS)):
        return {path: leaf("", state)}
    if isinstance(state, dict):
        children = [(f"{path}.{key}" if path else str(key), child) for key, child in state.items()]
    elif isinstance(state, (list, tuple)) and not all(
        isinstance(x, (bool, int, float, str, type(None))) for x in state
    ):
        children = [(f"{path}[{index}]", child) for index, child in enumerate(state)]
    elif hasattr(state, "__dict__") and not isinstance(state, type):
        children = [(f"{path}.{key}", child) for key, child in vars(state).items()]
    else:
        return {path: leaf("", state)}
    return {name: one for place, child in children for name, one in flat(child, place, above | {id(state)}).items()}


def digests(state: Any) -> dict[str, str]:
    """The digests of all that a saved state holds, the states of generators as a whole too."""
    found = {path: one.digest for path, one in flat(state).items()}
    waiting = [("", state)] if isinstance(state, (dict, list, tuple)) else []
    while waiting:
        path, one = waiting.pop()
        children = list(one.items() if isinstance(one, dict) else enumerate(one))
        waiting += [(f"{path}.{key}", child) for key, child in children if isinstance(child, (dict, list, tuple))]
        if children and not any(isinstance(child, torch.Tensor) for _, child in children):
            found[f"{path}.*"] = leaf("", one).digest
    return found


def other_types(state: Any, tensors: dict[str, torch.Tensor], leaves: dict[str, Leaf]) -> dict[str, str]:
    """The type in a saved state of each tensor that stands there in another type than it has.

    It is known by its value: cast to that type, it is the saved one. A single number must have its name too.

    Args:
        state: what is saved.
        tensors: of the run, by path.
        leaves: of these.
    """
    saved: dict[tuple[str, tuple[int, ...]], dict[str, set[str]]] = {}
    for path, one in flat(state).items():
        if one.device and "float" in one.dtype:
            names = saved.setdefault((one.dtype, one.shape), {}).setdefault(one.digest, set())
            names.add(last_name(path))
    kinds = {dtype for dtype, _ in saved}
    found = {}
    for path, tensor in tensors.items():
        shape = tuple(tensor.shape)
        own = str(tensor.dtype).removeprefix("torch.")
        if not tensor.is_floating_point() or leaves[path].digest in saved.get((own, shape), ()):
            continue
        for dtype in sorted(kinds - {own}):
            if (dtype, shape) in saved:
                cast = leaf("", tensor.detach().to(getattr(torch, dtype)))
                names = saved[dtype, shape].get(cast.digest, set())
                if names and (tensor.numel() > 1 or last_name(path) in names):
                    found[path] = dtype
    return found


def checked_load(trial: Any, state: Any, step: int) -> list[str]:
    """Load with every check on; the run is of no use afterwards.

    Args:
        trial: the trial whose run loads.
        state: what `torch.load` gave.
        step: of the file.

    Returns:
        Warnings, one line each.
    """
    run, module, said = trial.run, trial.module, []
    given = flat(state)
    before = observe(walk(run, module))
    watched = Watched(state) if type(state) is dict else state
    with Unmatched() as unmatched:
        run.load_state_dict(watched)
    after = observe(walk(run, module))
    if before == after and trial.spec.get("changes"):
        said.append("load_state_dict changed nothing")
    if isinstance(watched, Watched) and (unread := [key for key in state if key not in watched.read]):
        said.append(f"load_state_dict never reads {_names(unread)}")
    said += unmatched.said
    trial.phase.enter(f"save after the load of step {step}")
    back = flat(run.state_dict())
    if changed := sorted(path for path in given.keys() | back.keys() if not _same(given.get(path), back.get(path))):
        said.append(f"a state that is loaded and saved again differs: {_names(changed)}")
    trial.phase.leave()
    return said


class Unmatched:
    """Hears what `load_state_dict(strict=False)` of any module leaves unmatched."""

    def __init__(self) -> None:
        self.found: list[tuple[Any, list[str], list[str]]] = []  # module, keys that were missing, that matched nothing

    @property
    def said(self) -> list[str]:
        """The same as warnings."""
        said = []
        for module, missing, unexpected in self.found:
            name = type(module).__name__
            if missing:
                said.append(f"{name}.load_state_dict: not in the saved state: {_names(missing)}")
            if unexpected:
                said.append(f"{name}.load_state_dict: matched nothing: {_names(unexpected)}")
        return said

    def by_path(self, seen: Seen) -> dict[str, tuple[list[str], list[str]]]:
        """The same by the path of the module, of those that the run holds."""
        paths = {id(one): path for path, one in reversed(seen.objects.items())}
        return {paths[id(module)]: keys for module, *keys in self.found if id(module) in paths}  # type: ignore[misc]

    def __enter__(self) -> "Unmatched":
        self.original = original = torch.nn.Module.load_state_dict
        heard_so_far = self.found

        def heard(module: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(module, *args, **kwargs)
            if found.missing_keys or found.unexpected_keys:
                heard_so_far.append((module, list(found.missing_keys), list(found.unexpected_keys)))
            return found

        torch.nn.Module.load_state_dict = heard  # type: ignore[method-assign, assignment]
        return self

    def __exit__(self, *_: object) -> None:
        torch.nn.Module.load_state_dict = self.original  # type: ignore[method-assign]


def _same(a: Leaf | None, b: Leaf | None) -> bool:
    return a is not None and b is not None and a.digest == b.digest


def _names(names: list[Any]) -> str:
    return few([repr(name) for name in names], SHOWN)
