"""More loops of the kind of `held_out`, with one fault each."""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.utils.data import DataLoader, Dataset, IterableDataset

from parity_tests.zoo.base import State
from parity_tests.zoo.held_out import held_fault, normal, seed_torch


@dataclass
class TwoTowers:
    """Scores of pairs from two nets of one shape."""

    towers: nn.ModuleDict
    optimizer: torch.optim.Optimizer
    seen: int = 0

    def step(self) -> float:
        left, right = normal(5, 4, seed=100 + self.seen % 7), normal(5, 4, seed=200 + self.seen % 7)
        scores = self.towers["user"](left) @ self.towers["item"](right).T
        loss = functional.cross_entropy(scores, torch.arange(5))
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        self.seen += 1
        return loss.item()

    def save(self, path: str) -> None:
        kept = {"towers": self.towers.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**kept, "seen": self.seen}, path)

    def load(self, path: str) -> None:
        kept = torch.load(path, weights_only=True)
        self.towers.load_state_dict(kept["towers"])
        self.optimizer = rmsprop(self.towers, sorted(self.towers))
        self.optimizer.load_state_dict(kept["optimizer"])
        self.seen = kept["seen"]


def rmsprop(towers: nn.ModuleDict, names: list[str]) -> torch.optim.Optimizer:
    """With the towers' parameters in the order of their names."""
    return torch.optim.RMSprop([p for name in names for p in towers[name].parameters()], lr=0.005, momentum=0.5)


@held_fault("optimizer", "B88", "whose moments they are: the load rebuilds the optimizer, with the towers sorted")
def make_two_towers() -> TwoTowers:
    seed_torch(17)
    towers = nn.ModuleDict({name: nn.Linear(4, 3) for name in ("user", "item")})
    return TwoTowers(towers, rmsprop(towers, ["user", "item"]))


class Curriculum:
    """How long the sums are: one more number for each three that were solved."""

    solved: ClassVar[int] = 0

    @classmethod
    def length(cls) -> int:
        return 2 + cls.solved // 3

    @classmethod
    def tell(cls, loss: float) -> None:
        cls.solved += loss < 4.0


@held_fault("*solved *Curriculum", "B163", "how many sums were solved, which the curriculum's class counts")
class LearnsSums:
    def __init__(self) -> None:
        seed_torch(19)
        self.net = nn.RNN(1, 5, batch_first=True)
        self.head = nn.Linear(5, 1)
        self.optim = torch.optim.Adadelta([*self.net.parameters(), *self.head.parameters()], lr=1.0)
        self.numbers = torch.Generator().manual_seed(8)

    def step(self) -> float:
        x = torch.randn(4, Curriculum.length(), 1, generator=self.numbers)
        _, last = self.net(x)
        loss = functional.mse_loss(self.head(last[0]), x.sum(1))
        self.optim.zero_grad()
        loss.backward()
        self.optim.step()
        Curriculum.tell(loss.item())
        return loss.item()

    def state_dict(self) -> State:
        kept = {name: getattr(self, name).state_dict() for name in ("net", "head", "optim")}
        return {**kept, "numbers": self.numbers.get_state()}

    def load_state_dict(self, state: State) -> None:
        for name in ("net", "head", "optim"):
            getattr(self, name).load_state_dict(state[name])
        self.numbers.set_state(state["numbers"])


BASELINE = {"mean": 0.0, "count": 0}


def advantage(reward: float) -> float:
    """How much better a reward is than those before it."""
    gain = reward - BASELINE["mean"]
    BASELINE["count"] += 1
    BASELINE["mean"] += gain / BASELINE["count"]
    return gain


@held_fault("*BASELINE", "B163", "the mean of the rewards, in a dict of the module")
class PolicyGradient:
    def __init__(self, seed: int = 21) -> None:
        self.dice = torch.Generator().manual_seed(seed)
        self.policy = nn.Bilinear(2, 2, 3)
        for parameter in self.policy.parameters():
            nn.init.normal_(parameter, generator=self.dice)
        self.actor = SimpleNamespace(asgd=torch.optim.ASGD(self.policy.parameters(), lr=0.1, t0=4))

    def step(self) -> float:
        state = torch.randn(2, generator=self.dice)
        scores = self.policy(state, state).log_softmax(0)
        action = int(torch.multinomial(scores.detach().exp(), 1, generator=self.dice))
        gain = advantage(float(state[0]) * (action - 1) + 1.0)
        self.actor.asgd.zero_grad()
        (-gain * scores[action]).backward()
        self.actor.asgd.step()
        return gain

    def state_dict(self) -> State:
        return {"policy": self.policy.state_dict(), "asgd": self.actor.asgd.state_dict(), "dice": self.dice.get_state()}

    def load_state_dict(self, state: State) -> None:
        self.policy.load_state_dict(state["policy"])
        self.actor.asgd.load_state_dict(state["asgd"])
        self.dice.set_state(state["dice"])


def cautious_rate() -> tuple[Callable[[int], float], Callable[[float], None]]:
    """A rule for the learning rate, and who tells it of losses: it takes smaller steps after each worse one."""
    caution = {"factor": 1.0, "last": math.inf}

    def rule(tick: int) -> float:
        return caution["factor"] / (1 + 0.01 * tick)

    def tell(loss: float) -> None:
        caution["factor"] *= 0.7 if loss > caution["last"] else 1.0
        caution["last"] = loss

    return rule, tell


@held_fault(
    "*caution *lr_lambdas *rule *tell",
    "B23",
    "what the rule of the learning rate has seen: a LambdaLR keeps no closure",
)
class CautiousRegression:
    def __init__(self) -> None:
        seed_torch(22)
        self.model = nn.Sequential(nn.Linear(3, 7), nn.Hardswish(), nn.LayerNorm(7), nn.Linear(7, 1))
        self.optimizer = torch.optim.RAdam(self.model.parameters(), lr=0.05)
        rule, self.tell = cautious_rate()
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, rule)

    def step(self) -> float:
        x = normal(6, 3, seed=self.scheduler.last_epoch)
        loss = functional.l1_loss(self.model(x)[:, 0], x.sin().sum(1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.tell(loss.item())
        self.scheduler.step()
        return loss.item()

    def state_dict(self) -> State:
        return {name: part.state_dict() for name, part in vars(self).items() if hasattr(part, "state_dict")}

    def load_state_dict(self, state: State) -> None:
        for name, kept in state.items():
            getattr(self, name).load_state_dict(kept)


@held_fault("*shards samples", "B67", "which shard is the next: the position of an endless iterator")
class ReadsShards:
    def __init__(self) -> None:
        seed_torch(20)
        self.model = nn.Sequential(nn.Linear(5, 6), nn.GroupNorm(2, 6), nn.SiLU(), nn.Linear(6, 1))
        self.optimizer = torch.optim.Rprop(self.model.parameters(), lr=0.01)
        self.shards: Iterator[torch.Tensor] = itertools.cycle(normal(5, 8, 5, seed=9))
        self.done = 0

    def step(self) -> float:
        x = next(self.shards)
        loss = functional.mse_loss(self.model(x), x.prod(1, keepdim=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.done += 1
        return loss.item()

    def state_dict(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "done": self.done}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.done = state["done"]


class Lines(IterableDataset[torch.Tensor]):
    """The lines of some files, one after the other."""

    def __init__(self, files: list[str]) -> None:
        self.files = files

    def __iter__(self) -> Iterator[torch.Tensor]:
        for text in self.files:
            for line in text.split("/"):
                yield torch.tensor([ord(sign) - 97 for sign in line])


@held_fault("*lines *stream samples", "B161", "how far the stream of lines was read", at=9)
class CharacterModel:
    files: ClassVar[list[str]] = ["decide/cabbie/abacab/dacaba", "facade/decade/beaded", "bedded/faceda/cabbed/abbacd"]

    def __init__(self) -> None:
        seed_torch(23)
        self.net = nn.ModuleList([nn.Embedding(12, 5), nn.LSTM(5, 6, batch_first=True), nn.Linear(6, 12)])
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.3, momentum=0.8, nesterov=True)
        self.lines = iter(DataLoader(Lines(self.files), batch_size=2))
        self.epoch = 0

    def next_lines(self) -> torch.Tensor:
        batch = next(self.lines, None)
        if batch is None:
            self.epoch += 1
            self.lines = iter(DataLoader(Lines(self.files), batch_size=2))
            batch = next(self.lines)
        return batch

    def step(self) -> torch.Tensor:
        ids = self.next_lines()
        out, _ = self.net[1](self.net[0](ids[:, :-1]))
        loss = functional.cross_entropy(self.net[2](out).flatten(0, 1), ids[:, 1:].flatten())
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def save(self, path: str) -> None:
        torch.save({"net": self.net.state_dict(), "opt": self.opt.state_dict(), "epoch": self.epoch}, path)

    def load(self, path: str) -> None:
        kept = torch.load(path)
        self.net.load_state_dict(kept["net"])
        self.opt.load_state_dict(kept["opt"])
        self.epoch = kept["epoch"]


class Corrupted(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """A vector without some of its numbers, and the whole one."""

    def __init__(self, vectors: torch.Tensor, seed: int) -> None:
        self.vectors, self.holes = vectors, np.random.RandomState(seed)

    def __len__(self) -> int:
        return len(self.vectors)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        kept = torch.from_numpy(self.holes.uniform(size=self.vectors.shape[1]) < 0.7)
        return self.vectors[index] * kept, self.vectors[index]


@held_fault("*holes *dataset", "B40", "the dataset's own generator, from which the holes are drawn")
class DenoisingAutoencoder:
    def __init__(self) -> None:
        seed_torch(24)
        self.coder = nn.Sequential(nn.Linear(6, 3), nn.ELU(), nn.Linear(3, 6))
        self.adam = torch.optim.Adam(self.coder.parameters(), lr=0.01, amsgrad=True)
        self.order = torch.Generator().manual_seed(25)
        self.loader = DataLoader(Corrupted(normal(10, 6, seed=26), 27), 5, shuffle=True, generator=self.order)

    def step(self) -> list[float]:
        """An epoch."""
        losses = []
        for x, whole in self.loader:
            loss = functional.mse_loss(self.coder(x), whole)
            self.adam.zero_grad()
            loss.backward()
            self.adam.step()
            losses.append(loss.item())
        return losses

    def state_dict(self) -> State:
        return {"coder": self.coder.state_dict(), "adam": self.adam.state_dict(), "order": self.order.get_state()}

    def load_state_dict(self, state: State) -> None:
        self.coder.load_state_dict(state["coder"])
        self.adam.load_state_dict(state["adam"])
        self.order.set_state(state["order"])


class Compose:
    """Transformations, one after the other."""

    def __init__(self, *parts: Any) -> None:
        self.parts = parts

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.parts:
            x = part(x)
        return x


class Drawn:
    """A transformation by a number from a generator of its own."""

    def __init__(self, seed: int, change: Callable[[torch.Tensor, float], torch.Tensor]) -> None:
        self.generator, self.change = torch.Generator().manual_seed(seed), change

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.change(x, float(torch.rand((), generator=self.generator)))


@held_fault("*parts[1]", "B47", "the generator of a transformation within a composed one within the composed one")
class AugmentsImages:
    def __init__(self) -> None:
        seed_torch(28)
        weight_norm = parametrizations.weight_norm
        self.net = nn.Sequential(
            weight_norm(nn.Conv2d(1, 3, 2)), nn.GELU(), nn.Flatten(), weight_norm(nn.Linear(27, 2))
        )
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.005)
        self.count = 0
        self.augment = Compose(
            Drawn(29, lambda x, u: x.flip(-1) if u < 0.5 else x),
            Compose(lambda x: x - x.mean(), Drawn(30, lambda x, u: x * (0.5 + u))),
            Drawn(31, lambda x, u: x.roll(int(u * 4), dims=-2)),
        )

    def step(self) -> float:
        x = self.augment(normal(4, 1, 4, 4, seed=self.count % 6))
        loss = functional.cross_entropy(self.net(x), torch.tensor([0, 1, 0, 1]))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.count += 1
        return loss.item()

    def state_dict(self) -> State:
        drawn = [part.generator.get_state() for part in self.augment.parts if isinstance(part, Drawn)]
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict(), "count": self.count, "augment": drawn}

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        self.count = state["count"]
        for part, kept in zip((p for p in self.augment.parts if isinstance(p, Drawn)), state["augment"], strict=True):
            part.generator.set_state(kept)
