"""Small loops as users write them: methods that close over the model, threads, tied weights, loads that raise."""

import array
import copy
import itertools
import queue
import threading
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from parity_tests.audit.loops_held_elsewhere import Small, State


def momentum_in_a_closure(keeps: bool = False) -> Any:
    """A run whose methods close over all that it has, and whose step returns nothing; it forgets the momentum."""
    model = nn.Linear(2, 1)
    nn.init.constant_(model.weight, 0.5)
    nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    count = {"steps": 0}

    class Run:
        def step(self) -> None:
            count["steps"] += 1
            optimizer.zero_grad()
            (model(torch.tensor([[0.1 * count["steps"], 1.0]])) - 1).square().sum().backward()
            optimizer.step()

        def state_dict(self) -> State:
            return {"model": model.state_dict(), "steps": count["steps"], "optimizer": optimizer.state_dict()}

        def load_state_dict(self, state: State) -> None:
            model.load_state_dict(state["model"])
            count["steps"] = state["steps"]
            if keeps:
                optimizer.load_state_dict(state["optimizer"])

    return Run()


def momentum_that_is_kept() -> Any:
    """The same, sound."""
    return momentum_in_a_closure(keeps=True)


class CountsInADefault(Small):
    """A default of a method counts its calls."""

    def factor(self, calls: list[int] = [0]) -> float:  # noqa: B006
        calls[0] += 1
        return 1 + 0.1 * calls[0]


class CountsInAClosure(Small):
    """A function that the run holds counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.counted = self.counter()

    @staticmethod
    def counter() -> Any:
        calls = 0

        def counted() -> float:
            nonlocal calls
            calls += 1
            return 1 + 0.1 * calls

        return counted

    def factor(self) -> float:
        return self.counted()


class NothingMoves:
    """Nothing of it can be seen."""

    def step(self) -> None:
        pass

    def state_dict(self) -> State:
        return {}

    def load_state_dict(self, state: State) -> None:
        pass


class OnlyALoss(NothingMoves):
    """Sound; it counts where the audit cannot look, and only its loss is seen."""

    def __init__(self) -> None:
        self.count = array.array("q", [0])

    def step(self) -> float:
        self.count[0] += 1
        return float(self.count[0])

    def state_dict(self) -> State:
        return {"count": self.count[0]}

    def load_state_dict(self, state: State) -> None:
        self.count[0] = state["count"]


class Prefetches(Small):
    """Sound: a thread makes the next factor, which follows from the number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.thread: threading.Thread | None = None
        self.next: torch.Tensor | None = None

    def fetch(self, step: int) -> None:
        def make() -> None:
            self.next = torch.full((), 1 + 0.1 * step)

        self.thread = threading.Thread(target=make)
        self.thread.start()

    def factor(self) -> Any:
        if self.thread is None:
            self.fetch(self.steps)
            assert self.thread is not None
        self.thread.join()
        made = self.next
        self.fetch(self.steps + 1)
        self.thread.join()  # it may be done with it, or not, when the run is looked at
        return made


class Assigns(Small):
    """After the load the optimizer trains the tensors that the model had before it."""

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"], assign=True)
        self.optimizer.load_state_dict(state["optimizer"])
        self.steps = state["steps"]


class Tied(Small):
    """Sound: two layers with one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.model: Any = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(2)))
        nn.init.constant_(self.model[0].weight, 0.25)
        self.model[1].weight = self.model[0].weight
        self.make_optimizer()

    def make_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)


class Unties(Tied):
    """Its load makes the second weight another one, of the same value."""

    def load_state_dict(self, state: State) -> None:
        self.model[1].weight = nn.Parameter(torch.zeros(2, 2))
        self.model.load_state_dict(copy.deepcopy(state["model"]))
        self.make_optimizer()
        self.steps = state["steps"]


class UntiesInOneMemory(Tied):
    """Its load makes two parameters, in one memory as the file has it."""

    def make_optimizer(self) -> None:
        self.optimizer = torch.optim.SGD([self.model[0].weight], lr=0.05)

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"], assign=True)
        self.make_optimizer()
        self.steps = state["steps"]


class BestByReference(Small):
    """Its best weights are the live ones, and it saves them under no name of theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.best: State | None = None

    def step(self) -> float:
        loss = super().step()
        if self.steps == 2:
            self.best = self.model.state_dict()
        return loss


class RaisesOnLoading(Small):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        raise ValueError("no such state")


class RaisesLater(Small):
    """It raises three steps after a load."""

    def __init__(self) -> None:
        super().__init__()
        self.left: int | None = None

    def factor(self) -> float:
        if self.left is not None:
            self.left -= 1
            if not self.left:
                raise ValueError("three steps after the load")
        return 1.0

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.left = 3


class RaisesAnyway(Small):
    """The run that never stopped raises too."""

    def factor(self) -> float:
        if self.steps == 6:
            raise ValueError("the sixth step")
        return 1.0


class SkipsByAnother(Small):
    """Sound: after the load its generator is a slice of a new one, that skips what was used."""

    def __init__(self) -> None:
        super().__init__()
        self.factors: Iterator[torch.Tensor] = self.make()

    @staticmethod
    def make() -> Iterator[torch.Tensor]:
        held = torch.ones(2)
        while True:
            held = held + torch.tensor([0.1, 1.0])
            yield held[0]

    def factor(self) -> Any:
        return next(self.factors)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.factors = itertools.islice(self.make(), self.steps, None)


class SkipsTooFew(SkipsByAnother):
    """The same, one short."""

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.factors = itertools.islice(self.make(), self.steps - 1, None)


class TakesTheModel(Small):
    """Every fourth step its target becomes equal to the model; it is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.models = [self.model, copy.deepcopy(self.model)]

    def factor(self) -> Any:
        return self.models[1].weight.detach().sum()

    def step(self) -> float:
        loss = super().step()
        if self.steps % 4 == 0:
            self.models[1].load_state_dict(self.model.state_dict())
        return loss


class CountsToZero(Small):
    """It tells odd steps from even ones, and saves that not; after an even step a fresh run has the same."""

    def __init__(self) -> None:
        super().__init__()
        self.odd = 0

    def factor(self) -> float:
        self.odd = 1 - self.odd
        return 1 + 0.1 * self.odd


class LoadsUnderAPrefix(Small):
    """It saves its model as DataParallel would, and matches nothing on loading."""

    def state_dict(self) -> State:
        state = super().state_dict()
        return {**state, "model": {f"module.{name}": one for name, one in state["model"].items()}}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"], strict=False)
        super().load_state_dict({**state, "model": self.model.state_dict()})


class FedByAThread(Small):
    """A thread fills its queue, from the begin after every load."""

    def __init__(self) -> None:
        super().__init__()
        self.queue: queue.Queue[float] = queue.Queue(2)
        threading.Thread(target=self.fill, args=(self.queue,), daemon=True).start()

    @staticmethod
    def fill(waiting: Any) -> None:
        for n in itertools.count():
            waiting.put(1 + 0.1 * n)

    def factor(self) -> float:
        return self.queue.get()


class TrainsInAGenerator(Small):
    """Its loop is a generator, whose epoch is lost; it sets the rate there."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = self.train()

    def train(self) -> Iterator[float]:
        for epoch in itertools.count(1):
            settings = {"floor": 0.0}
            for group in self.optimizer.param_groups:
                group["lr"] = 0.1 * 0.5**epoch + settings["floor"]
            for n in range(3):
                loss = (self.model(torch.tensor([0.1 * n, 1.0])) - 1).square().sum()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                yield loss.item()

    def step(self) -> float:
        return next(self.loop)
