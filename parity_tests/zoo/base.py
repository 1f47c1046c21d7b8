"""A small loop that resumes bit for bit. Every loop of the zoo is this one with one thing changed.

Twenty samples, batches of four: five steps an epoch; a net of 4-8-2; Adam; the rate is halved every ten steps.
A loop seeds the process's generators when it is made, as users do: it belongs in a process of its own.
"""

import copy
import random  # noqa: TID251 - the loops are users': they draw from the process's generators
import re
import sys
from collections.abc import Callable
from functools import partial
from types import FunctionType
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import nn

SAMPLES, BATCH, INPUTS, HIDDEN, CLASSES, STEPS = 20, 4, 4, 8, 2, 24
X = torch.randn(SAMPLES, INPUTS, generator=torch.Generator().manual_seed(1))
Y = (X.sum(1) > 0).long()

State = dict[str, Any]


def get_at(loop: Any, path: str) -> Any:
    """What lies under a path: of attributes, indices, and variables of closures. `globals` is the loop's module."""
    value = loop
    for key in path.split("."):
        if isinstance(value, FunctionType):
            value = _cells(value)[key].cell_contents
        elif key == "globals":
            value = sys.modules[type(loop).__module__]
        else:
            value = value[int(key)] if key.isdigit() else getattr(value, key)
    return value


def set_at(loop: Any, path: str, value: Any) -> None:
    """Put a value under a path whose end is no index."""
    *before, key = path.split(".")
    owner = get_at(loop, ".".join(before)) if before else loop
    if isinstance(owner, FunctionType):
        _cells(owner)[key].cell_contents = value
    else:
        setattr(owner, key, value)


def _cells(function: FunctionType) -> State:
    return dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))


class Back(NamedTuple):
    """How the lost state is taken from the loop that stops, and given back to the one that resumes."""

    take: Callable[[Any], Any]
    give: Callable[[Any, Any], Any]


class Entry(NamedTuple):
    """A loop of the registry. A sound one loses nothing and names no state."""

    name: str
    target: str
    named: tuple[str, ...] = ()  # beginnings of paths, one of which must be named first; the phase in which it raises
    report: str = ""
    lost: str = ""  # in words
    at: int = 7  # a stop at which it shows
    raises: bool = False  # the resume ends in the user's own error
    back: Back | None = None

    @property
    def faulty(self) -> bool:
        return bool(self.named)

    @property
    def proved(self) -> bool:
        """True if the audit must prove what was lost. Where the resume raises there is no run to be equal."""
        return self.faulty and not self.raises

    def names(self, path: str) -> bool:
        """Whether a path lies under one of the beginnings; a star in them stands for any text."""
        ends = "" if self.raises else "[./\\[]"
        return any(re.match(re.escape(start).replace(r"\*", ".*") + f"($|{ends})", path) for start in self.named)


LOOPS: dict[str, Entry] = {}


def fault(
    named: str, report: str, lost: str, *, at: int = 7, raises: bool = False, back: str | Back | None = None
) -> Callable[[Any], Any]:
    """Register a faulty loop, a class or a function that makes one.

    `named` holds the beginnings of paths, separated by blanks; if the loop raises, the phase in which it does.
    `back` says how the lost state is given back, if the proof needs it: the path where it lies, or two functions.
    """
    if isinstance(back, str):
        back = Back(partial(get_at, path=back), lambda loop, lost, path=back: set_at(loop, path, lost))

    def register(loop: Any) -> Any:
        starts = (named,) if raises else tuple(named.split())
        return _registered(loop, named=starts, report=report, lost=lost, at=at, raises=raises, back=back)

    return register


def sound(loop: Any) -> Any:
    """Register a loop without a fault."""
    return _registered(loop)


def _registered(loop: Any, **fields: Any) -> Any:
    LOOPS[loop.__name__] = Entry(loop.__name__, f"{loop.__module__}:{loop.__name__}", **fields)
    return loop


class Net(nn.Module):
    """4-8-2, with batch normalisation and dropout where a loop wants them."""

    def __init__(self, *, dropout: float = 0.0, norm: bool = False) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, HIDDEN)
        self.norm = nn.BatchNorm1d(HIDDEN) if norm else nn.Identity()
        self.drop = nn.Dropout(dropout)
        self.last = nn.Linear(HIDDEN, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.drop(torch.relu(self.norm(self.first(x)))))


class Order:
    """The shuffled samples of each epoch, and how far into them the loop is."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)
        self.permutation = torch.arange(SAMPLES)
        self.consumed = SAMPLES
        self.epoch = -1

    def draw(self) -> torch.Tensor:
        """The next batch's samples."""
        if self.consumed >= len(self.permutation):
            self.begin()
        self.consumed += BATCH
        return self.permutation[self.consumed - BATCH : self.consumed]

    def begin(self) -> None:
        """Start the next epoch."""
        self.epoch += 1
        self.consumed = 0
        self.permutation = self.shuffled()

    def shuffled(self) -> torch.Tensor:
        """This epoch's order."""
        return torch.randperm(SAMPLES, generator=self.generator)

    def state_dict(self) -> State:
        state = {name: value for name, value in vars(self).items() if name != "generator"}
        return state | {"generator": self.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        vars(self).update({name: value for name, value in state.items() if name != "generator"})
        self.generator.set_state(state["generator"])


def get_numpy() -> State:
    """NumPy's global state in types that load safely."""
    name, key, *rest = np.random.get_state()  # noqa: NPY002 - a user's
    return {"name": name, "key": key.tolist(), "rest": rest}


def set_numpy(state: State) -> None:
    np.random.set_state((state["name"], np.array(state["key"], np.uint32), *state["rest"]))  # noqa: NPY002


GLOBAL = {
    "torch": (torch.get_rng_state, torch.set_rng_state),
    "numpy": (get_numpy, set_numpy),
    "python": (random.getstate, random.setstate),
}


def seed_process() -> None:
    """Seed the process's generators, as users do."""
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    torch.manual_seed(5)  # noqa: TID251


def schedule_by(rule: Callable[[int], float]) -> Callable[[torch.optim.Optimizer], Any]:
    """A schedule whose rate is `rule(tick)` times the first one."""
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, rule)


class Loop:
    """The sound loop. A subclass changes one thing."""

    dropout: ClassVar[float] = 0.0
    norm: ClassVar[bool] = False
    parts: ClassVar[tuple[str, ...]] = ("model", "optimizer", "schedule", "order")  # have a state_dict
    values: ClassVar[tuple[str, ...]] = ("steps",)  # are state themselves; a path too
    streams: ClassVar[tuple[str, ...]] = ()  # the process's generators that the loop draws from
    forgets: ClassVar[tuple[str, ...]] = ()  # what the file lacks

    def __init__(self) -> None:
        seed_process()
        self.model = self.make_model()
        self.optimizer = self.make_optimizer()
        self.schedule = self.make_schedule()
        self.order = self.make_order()
        self.steps = 0

    def make_model(self) -> nn.Module:
        return Net(dropout=self.dropout, norm=self.norm)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model.parameters(), lr=0.01)

    def make_schedule(self) -> Any:
        return torch.optim.lr_scheduler.StepLR(self.optimizer, step_size=10, gamma=0.5)

    def make_order(self) -> Any:
        return Order()

    def step(self) -> Any:
        ids = self.order.draw()
        loss = self.loss(self.inputs(ids), Y[ids])
        self.update(loss)
        self.steps += 1
        return loss.item()

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        """The samples as the net sees them."""
        return X[ids]

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.model(x), y)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()

    def state_dict(self) -> State:
        state: State = {name: getattr(self, name).state_dict() for name in self.parts}
        state |= {name: get_at(self, name) for name in self.values}
        state |= {"rng": {name: GLOBAL[name][0]() for name in self.streams}}
        return {name: value for name, value in state.items() if name not in self.forgets}

    def load_state_dict(self, state: State) -> None:
        for name in self.parts:
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        for name in self.values:
            if name in state:
                set_at(self, name, state[name])
        for name, value in state.get("rng", {}).items():
            GLOBAL[name][1](value)


class Noisy(Loop):
    """Noise on the inputs, from a generator that a subclass makes."""

    values = (*Loop.values, "noise_state")

    def __init__(self) -> None:
        super().__init__()
        self.noise = self.make_noise()

    def make_noise(self) -> Any:
        return torch.Generator().manual_seed(7)

    def draw(self) -> torch.Tensor:
        """Three numbers, an odd count, for three of the batch's four samples."""
        return torch.randn(3, generator=self.noise)

    @property
    def noise_state(self) -> Any:
        return self.noise.get_state()

    @noise_state.setter
    def noise_state(self, state: Any) -> None:
        self.noise.set_state(state)

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        x = X[ids].clone()
        x[:3, 0] += self.draw()
        return x


class Accumulating(Loop):
    """A step is a micro-batch; the window's gradients and its count are state."""

    window: ClassVar[int] = 4
    values = (*Loop.values, "pending", "gradients")

    def __init__(self) -> None:
        super().__init__()
        self.pending = 0

    @property
    def gradients(self) -> State:
        named = self.model.named_parameters()
        return {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}

    @gradients.setter
    def gradients(self, state: State) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.grad = state[name].clone() if name in state else None

    def update(self, loss: torch.Tensor) -> None:
        (loss / self.window).backward()
        self.pending += 1
        if self.pending == self.window:
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.pending = 0


class Averaging(Loop):
    """An exponential moving average of the weights beside them."""

    parts = (*Loop.parts, "average")

    def __init__(self) -> None:
        super().__init__()
        self.average = copy.deepcopy(self.model)

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        with torch.no_grad():
            for kept, new in zip(self.average.parameters(), self.model.parameters(), strict=True):
                kept.lerp_(new, 0.1)


class Scaling(Loop):
    """Layers in float16 under autocast, and a loss scale that grows every third step and overflows."""

    parts = (*Loop.parts, "scaler")

    def __init__(self) -> None:
        super().__init__()
        self.scaler = self.make_scaler()

    def make_scaler(self) -> Any:
        return torch.amp.GradScaler("cpu", init_scale=2.0**15, growth_interval=3)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", torch.float16):
            return super().loss(x, y)

    def update(self, loss: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()


class Dropping(Loop):
    """Dropout from the process's generator, which is saved."""

    dropout = 0.3
    streams = ("torch",)
