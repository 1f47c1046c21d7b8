"""Small loops whose lost state no attribute of theirs holds: a class, a function that a library's object calls."""

import functools
import json
import random  # noqa: TID251 - a user's
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import nn
from torch.utils.data import DataLoader

State = dict[str, Any]


class Small:
    """Sound: SGD on a line of weights; the input and the target follow from the number of steps."""

    def __init__(self) -> None:
        self.model = nn.Linear(2, 1)
        nn.init.constant_(self.model.weight, 0.5)
        nn.init.zeros_(self.model.bias)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.steps = 0

    def x(self) -> torch.Tensor:
        """This step's input."""
        return torch.tensor([[self.steps % 3, 1.0]])

    def factor(self) -> float:
        """What the loss is multiplied by."""
        return 1.0

    def step(self) -> float:
        self.steps += 1
        self.optimizer.zero_grad()
        loss = (self.model(self.x()) - 1).square().sum() * self.factor()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "steps": self.steps}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


class Ladder:
    """A counter that a class keeps, beside a constant, a property and a class of its own."""

    rung: ClassVar[int] = 0
    height: ClassVar[float] = 0.1
    __slots__ = ("unset",)

    class Below:
        """Within another class."""

        floors: ClassVar[list[float]] = []

    @property
    def top(self) -> int:
        return 9

    @classmethod
    def climb(cls) -> float:
        cls.rung += 1
        cls.Below.floors.append(0.1)
        return 1 + cls.rung * cls.height


class Climbs(Small):
    """A class counts its steps."""

    def factor(self) -> float:
        return Ladder.climb()


class KeepsRungs(Climbs):
    """Sound: it saves what the class counts."""

    def state_dict(self) -> State:
        return super().state_dict() | {"rung": Ladder.rung, "floors": list(Ladder.Below.floors)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        Ladder.rung, Ladder.Below.floors = state["rung"], list(state["floors"])


class Doubled(torch.autograd.Function):
    """Adds to each gradient what it was before."""

    before: ClassVar[State] = {}

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        last, Doubled.before["out"] = Doubled.before.get("out", torch.zeros(())), grads[0].clone()
        return grads[0] + 0.5 * last


class KeepsGradients(Small):
    """A class of torch's, made the user's, keeps the gradients."""

    def step(self) -> float:
        self.steps += 1
        self.optimizer.zero_grad()
        loss = (Doubled.apply(self.model(self.x())) - 1).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.item()


class NumbersAsText(Small):
    """The numbers that are its keys come back from JSON as text."""

    def __init__(self) -> None:
        super().__init__()
        self.usual: dict[int, float] = {}

    def factor(self) -> float:
        place = self.steps % 2
        self.usual[place] = self.usual.get(place, 0.0) + 0.1
        return 1 + self.usual[place]

    def state_dict(self) -> State:
        return super().state_dict() | {"usual": json.dumps(self.usual)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.usual = json.loads(state["usual"])


class Collates(Small):
    """The partial function that its loader calls has a generator."""

    def __init__(self) -> None:
        super().__init__()
        self.loader = DataLoader([1.0, 2.0], 2, collate_fn=functools.partial(self.collate, dice=random.Random(3)))

    @staticmethod
    def collate(samples: list[float], dice: random.Random) -> torch.Tensor:
        return torch.tensor([[dice.random() * one for one in samples]])

    def x(self) -> torch.Tensor:
        return next(iter(self.loader))


class Hooked(Small):
    """A hook closes over how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        calls = 0

        def hook(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return output * (1 + calls / 10)

        self.model.register_forward_hook(hook)


class Rated(Small):
    """The function of its rate closes over how often it was called."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.counted())

    @staticmethod
    def counted() -> Callable[[int], float]:
        calls = 0

        def factor(epoch: int) -> float:
            nonlocal calls
            calls += 1
            return 1 / calls

        return factor

    def step(self) -> float:
        loss = super().step()
        self.schedule.step()
        return loss

    def state_dict(self) -> State:
        return super().state_dict() | {"schedule": self.schedule.state_dict()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.schedule.load_state_dict(state["schedule"])
