"""Loops that resume bit for bit, with state in places and of kinds that those of `sound` lack."""

import copy
import json
import random  # noqa: TID251 - a user's
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from parity_tests.zoo.base import (
    BATCH,
    SAMPLES,
    Loop,
    State,
    X,
    Y,
    seed_process,
    sound,
)


@sound
class FitsACurve(Loop):
    """L-BFGS, with its history, in float64."""

    parts = ("model", "optimizer")
    make_model = lambda self: nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)).double()  # noqa: E731

    def make_optimizer(self) -> torch.optim.Optimizer:
        settings: State = {"max_iter": 3, "history_size": 4, "line_search_fn": "strong_wolfe"}
        return torch.optim.LBFGS(self.model.parameters(), **settings)

    def closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(X.double(), Y)
        loss.backward()
        return loss

    def step(self) -> float:
        return self.optimizer.step(self.closure).item()


@dataclass
class Player:
    """One of two adversaries: a net and its optimizer."""

    net: nn.Module
    optimizer: torch.optim.Optimizer

    def minimise(self, loss: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@sound
class Duel:
    """Two optimizers, a spectral norm, noise from NumPy."""

    def __init__(self) -> None:
        seed_process()
        spectral = parametrizations.spectral_norm
        artist = nn.Sequential(nn.Linear(2, 6), nn.ReLU(), nn.Linear(6, 2))
        critic = nn.Sequential(spectral(nn.Linear(2, 6)), nn.LeakyReLU(), nn.Linear(6, 1))
        self.artist = Player(artist, torch.optim.Adam(artist.parameters(), lr=0.01, betas=(0.0, 0.9)))
        self.critic = Player(critic, torch.optim.RMSprop(critic.parameters(), lr=0.01, centered=True))
        self.noise = np.random.default_rng(63)

    def draw(self) -> torch.Tensor:
        return torch.from_numpy(self.noise.standard_normal((5, 2), dtype=np.float32))

    def step(self) -> dict[str, float]:
        fake = self.artist.net(self.draw())
        loss = (1 - self.critic.net(self.draw() + 2)).relu() + (1 + self.critic.net(fake.detach())).relu()
        lost = self.critic.minimise(loss.mean())
        return {"critic": lost, "artist": self.artist.minimise(-self.critic.net(fake).mean())}

    def state_dict(self) -> State:
        state = {
            f"{name}.{part}": getattr(player, part).state_dict()
            for name, player in (("artist", self.artist), ("critic", self.critic))
            for part in vars(player)
        }
        return state | {"noise": json.dumps(self.noise.bit_generator.state)}

    def load_state_dict(self, state: State) -> None:
        self.noise.bit_generator.state = json.loads(state.pop("noise"))
        for name, value in state.items():
            player, part = name.split(".")
            getattr(getattr(self, player), part).load_state_dict(value)


@sound
class ExploresLess(Loop):
    """A replay buffer of a fixed length, an exploration that decays, python's generator in an object."""

    values = (*Loop.values, "epsilon", "place")
    make_optimizer = lambda self: torch.optim.Adagrad(self.model.parameters(), lr=0.1)  # noqa: E731

    def __init__(self) -> None:
        super().__init__()
        self.memory: deque[tuple[float, float, float, int]] = deque(maxlen=12)
        self.dice, self.epsilon, self.place = random.Random(66), 1.0, (0.5, -0.5, 0.0)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        scores = self.model(torch.tensor([*self.place, 1.0]))
        action = self.dice.randrange(2) if self.dice.random() < self.epsilon else int(scores.argmax())
        self.epsilon = max(0.05, 0.9 * self.epsilon)
        self.memory.append((*self.place, action))
        self.place = (self.dice.gauss(0, 1), 0.5 * self.place[0], x[0, 0].item())
        batch = torch.tensor(self.dice.choices(self.memory, k=4))
        return super().loss(batch, batch[:, 3].long())

    def state_dict(self) -> State:
        return super().state_dict() | {"memory": list(self.memory), "dice": self.dice.getstate()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.memory.extend(state["memory"])
        self.dice.setstate(state["dice"])


@sound
class TwoAverages(Loop):
    """An exponential average that teaches and an equal one, a cosine with restarts, normalised batches."""

    norm = True
    parts = (*Loop.parts, "ema", "swa")

    def __init__(self) -> None:
        super().__init__()
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        self.swa = AveragedModel(self.model)

    def make_schedule(self) -> Any:
        return lr_scheduler.CosineAnnealingWarmRestarts(self.optimizer, T_0=4, T_mult=2)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        soft = self.ema.eval()(x).detach().softmax(1)
        return super().loss(x, y) + functional.cross_entropy(self.model(x), soft)

    def update(self, loss: torch.Tensor) -> None:
        super().update(loss)
        self.ema.update_parameters(self.model)
        if self.steps % 4 == 3:
            self.swa.update_parameters(self.model)

    def state_dict(self) -> State:
        return super().state_dict() | {"mode": self.ema.training}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.ema.train(state["mode"])


class Batches(IterableDataset[torch.Tensor]):
    """The samples in their order, from one of the batches on."""

    def __init__(self, first: int = 0) -> None:
        self.first = first

    def __iter__(self) -> Iterator[torch.Tensor]:
        yield from torch.arange(BATCH * self.first, SAMPLES).split(BATCH)


@sound
class ReadsOn(Loop):
    """A recurrent net with its hidden state, and a loader that is made again where the last one stopped."""

    parts = ("model", "optimizer", "schedule")
    values = (*Loop.values, "hidden", "read")
    make_model = lambda self: nn.ModuleDict({"lstm": nn.LSTM(4, 5), "head": nn.Linear(5, 2)})  # noqa: E731
    make_order = lambda self: self  # noqa: E731

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.read = (torch.zeros(1, 5), torch.zeros(1, 5)), 0
        self.batches = self.open()

    def open(self) -> Iterator[torch.Tensor]:
        return iter(DataLoader(Batches(self.read), batch_size=None))

    def draw(self) -> torch.Tensor:
        if self.read == SAMPLES // BATCH:
            self.read = 0
            self.batches = self.open()
        self.read += 1
        return next(self.batches)

    def loss(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out, (hidden, cells) = self.model["lstm"](x, self.hidden)
        self.hidden = (hidden.detach(), cells.detach())
        return functional.cross_entropy(self.model["head"](out), y)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.batches = self.open()


@sound
class SparseWords(Loop):
    """Sparse gradients, samples by weight; the epoch's order is drawn again, and its head skipped."""

    parts = ("model", "optimizer", "second")
    values = (*Loop.values, "head", "done")

    def __init__(self) -> None:
        super().__init__()
        self.second = torch.optim.SparseAdam(self.model["words"].parameters(), lr=0.05)
        bags = torch.randint(0, 15, (18, 3), generator=torch.Generator().manual_seed(74))
        self.sampler = WeightedRandomSampler(torch.arange(1.0, 19.0), 18, generator=torch.Generator().manual_seed(75))
        self.loader = DataLoader(TensorDataset(bags, bags.sum(1) % 2), 3, sampler=self.sampler)
        self.begin()

    def make_model(self) -> nn.Module:
        return nn.ModuleDict({"words": nn.EmbeddingBag(15, 4, mode="sum", sparse=True), "out": nn.Linear(4, 2)})

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.model["out"].parameters(), lr=0.05)

    def begin(self) -> None:
        self.head, self.done, self.rest = self.sampler.generator.get_state(), 0, iter(self.loader)

    def step(self) -> float:
        if self.done == len(self.loader):
            self.begin()
        bags, labels = next(self.rest)
        self.done += 1
        loss = functional.cross_entropy(self.model["out"](self.model["words"](bags)), labels)
        self.model.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.second.step()
        return loss.item()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.sampler.generator.set_state(self.head)
        self.begin()
        self.done = state["done"]
        self.rest = islice(self.rest, self.done, None)


@dataclass
class Clipping:
    """The norms of the last gradients, and how many were clipped."""

    norms: list[float] = field(default_factory=list)
    clipped: int = 0

    def limit(self, norm: float) -> float:
        self.norms = [*self.norms[-7:], norm]
        quantile = float(np.quantile(self.norms, 0.7))
        self.clipped += norm > quantile
        return quantile


@sound
class FlatMinima(Loop):
    """A rate that a search found, steps from where the loss is worst nearby, gradients clipped by what was seen."""

    def __init__(self) -> None:
        super().__init__()
        self.clipping = Clipping()

    def make_optimizer(self) -> torch.optim.Optimizer:
        rate = min((0.01, 0.1, 0.3), key=self.after_a_trial)
        return torch.optim.SGD(self.model.parameters(), lr=rate, momentum=0.9)

    def after_a_trial(self, rate: float) -> float:
        model = copy.deepcopy(self.model)
        optimizer = torch.optim.SGD(model.parameters(), lr=rate)
        for _ in range(3):
            functional.cross_entropy(model(X), Y).backward()
            optimizer.step()
        return functional.cross_entropy(model(X), Y).item()

    def step(self) -> float:
        ids = self.order.draw()
        parameters = list(self.model.parameters())
        first = self.loss(X[ids], Y[ids])
        moves = [0.05 * grad / (grad.norm() + 1e-6) for grad in torch.autograd.grad(first, parameters)]
        before = [parameter.detach().clone() for parameter in parameters]
        torch._foreach_add_([parameter.data for parameter in parameters], moves)
        self.optimizer.zero_grad()
        self.loss(X[ids], Y[ids]).backward()
        torch._foreach_copy_([parameter.data for parameter in parameters], before)
        norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm().item()
        nn.utils.clip_grad_norm_(parameters, self.clipping.limit(norm))
        self.optimizer.step()
        self.schedule.step()
        return first.item()

    def state_dict(self) -> State:
        return super().state_dict() | {"clipping": asdict(self.clipping)}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.clipping = Clipping(**state["clipping"])


@sound
class CachesFeatures(Loop):
    """Features that are computed when they are first asked for, and how long the last steps took: neither is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: dict[int, torch.Tensor] = {}
        self.seconds: deque[float] = deque(maxlen=10)

    def features(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = torch.arange(4).mul(0.1 * (index + 1)).sin()
        return self.cache[index]

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.stack([self.features(index) for index in ids.tolist()])

    def step(self) -> float:
        start = time.perf_counter()
        loss = super().step()
        self.seconds.append(time.perf_counter() - start)
        return loss


TOTALS = {"samples": 0, "mean": 0.0}


class Slower:
    """A rule for the learning rate that counts what it was asked; a LambdaLR saves an object like it."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, tick: int) -> float:
        self.asked += 1
        return 1 / (1 + 0.1 * self.asked)


@sound
def regression_with_numpy() -> SimpleNamespace:
    """A mean in a global dict, the legacy generator, a rule with a state; arrays and JSON in one file of NumPy's."""
    dice = np.random.RandomState(81)
    model = nn.Linear(3, 1).double()
    model.load_state_dict({"weight": torch.from_numpy(dice.normal(size=(1, 3))), "bias": torch.zeros(1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rates = lr_scheduler.LambdaLR(optimizer, Slower())

    def step() -> float:
        x = torch.from_numpy(dice.normal(size=(3, 3)))
        TOTALS["samples"] += 3
        TOTALS["mean"] += (x.mean().item() - TOTALS["mean"]) * 3 / TOTALS["samples"]
        loss = functional.mse_loss(model(x - TOTALS["mean"])[:, 0], x[:, 0] - x[:, 1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rates.step()
        return loss.item()

    def save(path: str) -> None:
        name, key, *rest = dice.get_state()
        text = json.dumps([rates.state_dict(), optimizer.state_dict(), TOTALS, name, rest])
        with open(path, "wb") as file:
            np.savez(file, text=np.array(text), key=key, **{k: v.numpy() for k, v in model.state_dict().items()})

    def load(path: str) -> None:
        with np.load(path) as kept:
            model.load_state_dict({key: torch.from_numpy(kept[key]) for key in ("weight", "bias")})
            ticks, groups, totals, name, rest = json.loads(str(kept["text"]))
            dice.set_state((name, kept["key"], *rest))
        rates.load_state_dict(ticks)
        optimizer.load_state_dict(groups)
        TOTALS.update(totals)

    return SimpleNamespace(model=model, step=step, save=save, load=load)
