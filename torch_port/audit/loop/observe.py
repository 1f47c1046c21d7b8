"""A run object as an ordered map of its states: path -> Slot, each with its value and the way to put another there.

The walk follows attributes, containers, closures and iterators from the run object and the module's globals, then the
user's functions that a library's object calls and the user's classes with their methods, and adds the generators of
the process. Every object counts once, under the first path that reaches it. What a library keeps for itself (caches) is
passed over; an object that cannot be looked into is listed in `opaque`.
"""

import functools
import itertools
import re
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.optim.optimizer import Optimizer
from torch.utils.data.dataloader import _BaseDataLoaderIter

from torch_port.audit.judge.record import DATA, Leaf, join, place_in_groups
from torch_port.audit.loop.held import (
    BOUND,
    HIDDEN_OF_MODULES,
    HIDDEN_OF_OPTIMIZERS,
    HIDDEN_OF_SCHEDULES,
    UNSEEN,
    attributes_of,
    called_by,
    held_by,
    held_by_class,
    holds_nothing,
    is_opaque,
    is_users,
    methods_of_class,
    own_of_library,
    path_of_class,
)
from torch_port.audit.loop.places import entry, in_dict, in_list, in_object, in_scaler, into
from torch_port.audit.loop.values import (
    GENERATORS,
    PLAIN,
    generator_state,
    is_plain,
    leaf,
    process_generators,
    set_generator_state,
)

DEEPEST = 24
MOST = 20_000  # slots
NAME = re.compile(r"[^.\[]+")
HOLDERS = (type, types.FunctionType)  # what is under them has a name of its own
LINKED = (torch.Tensor, torch.nn.Module, Optimizer, dict, list, *GENERATORS)  # what is better not held twice


class Slot(NamedTuple):
    """A state where it lives."""

    kind: str
    group: str  # states that are lost and put back as one
    value: Any
    put: Callable[[Any], None] | None = None  # None: it can be seen, not set
    drop: Callable[[], None] | None = None  # remove it, where it may be missing


class Seen(NamedTuple):
    """What a walk found."""

    slots: dict[str, Slot]
    objects: dict[str, Any]  # path -> what stands there; a state that is not there yet is created in one of them
    opaque: tuple[str, ...]
    aliases: dict[str, str]  # second path -> first, of what is one object, or one memory


def walk(run: Any, module: types.ModuleType | None = None) -> Seen:
    """Every state that a run object, its module's globals and the process hold, in the order in which they are met."""
    return _Walker(module).whole(run)


def observe(seen: Seen) -> dict[str, Leaf]:
    """What is remembered of every state."""
    return {path: leaf(slot.kind, slot.value) for path, slot in seen.slots.items()}


class _Walker:
    """One walk; every object once."""

    def __init__(self, module: types.ModuleType | None) -> None:
        self.user, self.globals = (module.__name__, vars(module)) if module else ("", {})
        self.slots: dict[str, Slot] = {}
        self.objects: dict[str, Any] = {}
        self.opaque: dict[str, str] = {}
        self.aliases: dict[str, str] = {}
        self.at: dict[int, str] = {}  # id -> first path
        self.memory: dict[Any, str] = {}  # where a tensor lies -> first path
        self.keep: list[Any] = []  # so that no id is used twice
        self.names: dict[int, str] = {}  # id of a parameter -> its name
        self.later: deque[Callable[[], None]] = deque()  # optimizers, when all parameters have their names; functions
        self.classes: dict[type, None] = {}  # those that were met, in their order

    def whole(self, run: Any) -> Seen:
        for path, generator in process_generators():
            self.at[id(generator)] = path
            self.objects[path] = generator
        self.visit("", run, 0, None)
        for name, value in self.globals.items():
            of_others = isinstance(value, types.FunctionType) and not is_users(value.__module__, self.user)
            if not name.startswith("__") and not of_others:
                self.visit(f"globals.{name}", value, 1, in_dict(self.globals, name))
        self._all_later()
        self._all_classes()
        for path, generator in process_generators():
            self.add(path, "generator", generator, functools.partial(set_generator_state, generator))
        return Seen(self.slots, self.objects, tuple(self.opaque), self.aliases)

    def _all_later(self) -> None:
        while self.later:
            self.later.popleft()()

    def _all_classes(self) -> None:
        """What the user's classes hold, and the classes that are met there."""
        done: set[type] = set()
        while self.user and (waiting := [cls for cls in self.classes if cls not in done]):
            done.update(waiting)
            for cls in waiting:
                self.classes |= dict.fromkeys(cls.__mro__)
                if is_users(cls.__module__, self.user):
                    path = path_of_class(cls, self.globals)
                    self.objects[path] = cls
                    for name, child in held_by_class(cls):
                        self.visit(f"{path}.{name}", child, 1, in_object(cls, name))
                    for name, method in methods_of_class(cls):
                        self.visit(f"{path}.{name}", method, 1, None)
            self._all_later()

    def add(self, path: str, kind: str, value: Any, put: Any = None, *, group: str = "", drop: Any = None) -> None:
        if path not in self.slots and len(self.slots) < MOST:
            self.slots[path] = Slot(kind, group or path, value, put, drop)

    def visit(self, path: str, value: Any, depth: int, put: Any) -> None:
        if isinstance(value, PLAIN) or is_plain(value):
            self.add(path, "counter", value, put, drop=put and getattr(put, "drop", None))
            if isinstance(value, (list, deque)):
                self.keep.append(value)
                self.objects[path] = value
            return
        if isinstance(value, type):
            self.classes[value] = None
        if isinstance(value, UNSEEN) or depth > DEEPEST or len(self.slots) >= MOST:
            return
        if id(value) in self.at:
            if isinstance(value, LINKED):
                self.aliases.setdefault(path, self.at[id(value)])
            return
        self.at[id(value)] = path
        self.keep.append(value)
        self.objects[path] = value
        self.classes[type(value)] = None
        if isinstance(value, torch.Tensor):
            self._tensor(path, value, put)
        elif isinstance(value, np.ndarray):
            self.add(path, "other", value, into(value), group=self._top(path))
        elif isinstance(value, GENERATORS):
            self.add(path, "generator", value, functools.partial(set_generator_state, value))
        elif isinstance(value, torch.nn.Module):
            self._module(path, value, depth)
        elif isinstance(value, Optimizer):
            for number, group in enumerate(value.param_groups):  # who holds one holds what `_optimizer` shows
                self.objects[self.at.setdefault(id(group), f"{path}.param_groups[{number}]")] = group
            self.later.append(lambda: self._optimizer(path, value, depth))
        elif isinstance(value, (LRScheduler, ReduceLROnPlateau)):
            self._attributes(path, value, depth, HIDDEN_OF_SCHEDULES, "schedule", path)
        elif isinstance(value, GradScaler):
            for name, held, set_it in in_scaler(value) if value.is_enabled() else ():
                self.add(join(path, name), "scaler", held, set_it, group=path)
        elif isinstance(value, _BaseDataLoaderIter):
            self._position(path, value)
        elif is_opaque(type(value)):
            self.opaque[path] = type(value).__name__
            self._attributes(path, value, depth, own_of_library(type(value)))
        else:
            self._container(path, value, depth, put)

    def _container(self, path: str, value: Any, depth: int, put: Any) -> None:
        if isinstance(value, dict):
            for key in list(value):
                if place := entry(path, key):
                    self.visit(place, value[key], depth + 1, in_dict(value, key))
        elif isinstance(value, (list, deque)):
            if isinstance(value, deque):
                resize = put and (lambda most: put(deque(value, most)))
                self.add(f"{path}.maxlen", "counter", value.maxlen, resize)
            for index, child in enumerate(value):
                self.visit(f"{path}[{index}]", child, depth + 1, in_list(value, index))
        elif isinstance(value, (tuple, set, frozenset)):
            for index, child in enumerate(value):
                self.visit(f"{path}[{index}]", child, depth + 1, None)
        elif isinstance(value, (types.FunctionType, functools.partial, *BOUND)):
            for name, child, set_it in held_by(value):
                self.visit(join(path, name), child, depth + 1, set_it)
        elif isinstance(value, types.GeneratorType):
            self._frame(path, value, depth)
        elif isinstance(value, Iterator) and type(value).__module__ in ("builtins", "itertools"):
            self._iterator(path, value, depth)
        elif hasattr(value, "__dict__") or hasattr(type(value), "__slots__"):
            if not holds_nothing(type(value)):
                self._attributes(path, value, depth, re.compile(r"(?!)"))
        elif not holds_nothing(type(value)) and not callable(value) and not path.endswith("._abc_impl"):
            self.opaque[path] = type(value).__name__

    def _attributes(
        self, path: str, owner: Any, depth: int, hidden: "re.Pattern[str]", kind: str = "", group: str = ""
    ) -> None:
        for name, child in attributes_of(owner):
            if hidden.fullmatch(name):
                continue
            place, put = join(path, name), in_object(owner, name)
            if kind and (isinstance(child, PLAIN) or is_plain(child)):
                self.add(place, kind, child, put, group=group, drop=put.drop)
            else:
                self.visit(place, child, depth + 1, put)
        self._called(path, owner, depth)

    def _called(self, path: str, owner: Any, depth: int) -> None:
        """The user's functions that a library's object calls, after all that has a name without them."""
        for name, function in called_by(owner):
            self.later.append(functools.partial(self.visit, join(path, name), function, depth + 1, None))

    def _tensor(self, path: str, value: torch.Tensor, put: Any) -> None:
        parameter = isinstance(value, torch.nn.Parameter) or (value.requires_grad and value.is_leaf)
        if parameter:
            self._parameter(path, path, value, self._top(path))
        else:
            self.add(path, "other", value, into(value, put), group=self._top(path), drop=getattr(put, "drop", None))
            self._memory(path, value)

    def _top(self, path: str) -> str:
        """The attribute of the run object, of a class or of its methods, or the global that a path lies under."""
        first = NAME.match(path, len("globals.") if path.startswith("globals.") else 0)
        end = first.end() if first else len(path)
        while isinstance(self.objects.get(path[:end]), HOLDERS) and (inner := NAME.match(path, end + 1)):
            end = inner.end()
        return path[:end]

    def _memory(self, path: str, value: torch.Tensor) -> None:
        """Note who else has this very memory."""
        if value.layout == torch.strided and value.numel():
            place = (value.data_ptr(), tuple(value.shape))
            if self.memory.setdefault(place, path) != path:
                self.aliases.setdefault(path + DATA, self.memory[place])

    def _parameter(self, path: str, name: str, value: torch.Tensor, group: str) -> None:
        self.names[id(value)] = name
        self.at.setdefault(id(value), path)
        self.objects[path] = value
        self._memory(path, value)
        self.add(path, "parameter", value, into(value), group=group)
        self.add(
            f"{path}.requires_grad", "mode", value.requires_grad, value.requires_grad_, group=f"{group}.requires_grad"
        )
        if value.grad is not None:
            put = in_object(value, "grad")
            copy, drop = lambda new: put(new.to(value.device)), lambda: setattr(value, "grad", None)
            self.add(f"{path}.grad", "gradient", value.grad, copy, group=f"{group}.grad", drop=drop)
        self._called(path, value, 1)

    def _module(self, path: str, root: torch.nn.Module, depth: int) -> None:
        for name, module in root.named_modules():
            place = join(path, name)
            self.at.setdefault(id(module), place)
            self.objects[place] = module
            self.add(
                join(place, "training"),
                "mode",
                module.training,
                in_object(module, "training"),
                group=join(path, "training"),
            )
        for name, parameter in root.named_parameters():
            if id(parameter) not in self.names:
                self._parameter(join(path, name), name, parameter, path)
        for name, parameter in root.named_parameters(remove_duplicate=False):
            if (place := join(path, name)) != self.at[id(parameter)]:  # tied weights
                self.objects.setdefault(place, parameter)
                self.aliases.setdefault(place, self.at[id(parameter)])
        for name, buffer in root.named_buffers():
            if id(buffer) not in self.at:
                self.at[id(buffer)] = join(path, name)
                self.keep.append(buffer)
                self.objects[join(path, name)] = buffer
                self._memory(join(path, name), buffer)
                self.add(join(path, name), "buffer", buffer, into(buffer))
        for name, module in root.named_modules():
            for attribute, child in attributes_of(module):
                if not HIDDEN_OF_MODULES.fullmatch(attribute) and not attribute.startswith("_flat_weight"):
                    put = in_object(module, attribute)
                    self.visit(join(join(path, name), attribute), child, depth + 1, put)
            self.classes[type(module)] = None
            self._called(join(path, name), module, depth)

    def _optimizer(self, path: str, optimizer: Optimizer, depth: int) -> None:
        for number, group in enumerate(optimizer.param_groups):
            tail = f"/{number}" if len(optimizer.param_groups) > 1 else ""
            for key, value in group.items():
                if key != "params" and (isinstance(value, (*PLAIN, torch.Tensor)) or is_plain(value)):
                    kind = "schedule" if key in ("lr", "initial_lr") else "optimizer"
                    put = into(value) if isinstance(value, torch.Tensor) else in_dict(group, key)
                    self.add(f"{path}/{key}{tail}", kind, value, put, group=f"{path}/{key}")
            for place, parameter in enumerate(group["params"]):
                name = self.names.setdefault(id(parameter), f"group{number}.{place}")
                if id(parameter) in self.at:
                    self.aliases[f"{path}{place_in_groups(number, place)}"] = self.at[id(parameter)]
                state = optimizer.state.get(parameter, {})
                self.objects[f"{path}//{name}"] = (optimizer, parameter)
                for key, value in state.items():
                    self._moment(f"{path}/{key}", name, value, state, key)
        self._attributes(path, optimizer, depth, HIDDEN_OF_OPTIMIZERS)

    def _moment(self, group: str, name: str, value: Any, state: Any, key: Any) -> None:
        held = in_dict(state, key)
        put = into(value, held) if isinstance(value, torch.Tensor) else held
        self.add(f"{group}/{name}", "optimizer", value, put, group=group, drop=held.drop)

    def _position(self, path: str, iterator: Any) -> None:
        self.add(join(path, "position"), "position", int(iterator._num_yielded), group=path)
        self.add(join(path, "base_seed"), "position", getattr(iterator, "_base_seed", None), group=path)

    def _frame(self, path: str, generator: Any, depth: int) -> None:
        frame = generator.gi_frame
        line = None if frame is None else frame.f_lineno
        self.add(join(path, "line"), "position", line, group=path)
        for name, child in list(frame.f_locals.items()) if frame is not None else ():
            if isinstance(child, PLAIN) or is_plain(child):
                self.add(join(path, name), "position", child, group=path)
            else:
                self.visit(join(path, name), child, depth + 1, None)

    def _iterator(self, path: str, value: Any, depth: int) -> None:
        if isinstance(value, itertools.count):
            self.add(path, "position", repr(value), group=path)
            return
        try:
            _, inside, *place = value.__reduce__()
        except Exception:
            self.opaque[path] = type(value).__name__
            return
        if place:
            self.add(join(path, "position"), "position", place[0], value.__setstate__, group=path)
        for index, child in enumerate(inside):
            if isinstance(child, Iterator):
                self.visit(f"{path}[{index}]", child, depth + 1, None)


def state_of(value: Any) -> Any:
    """The value to keep of a slot: a generator's state, else the value."""
    return generator_state(value) if isinstance(value, GENERATORS) else value
