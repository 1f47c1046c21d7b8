"""More sound loops of the kind of `held_out_sound`."""

import copy
import json
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import islice
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, IterableDataset, TensorDataset, WeightedRandomSampler

from parity_tests.zoo.base import State
from parity_tests.zoo.held_out import held_sound, normal, seed_torch


class Windows(IterableDataset[torch.Tensor]):
    """A series cut into windows, from one of them on."""

    def __init__(self, series: torch.Tensor, first: int = 0) -> None:
        self.series, self.first = series, first

    def __iter__(self) -> Iterator[torch.Tensor]:
        for start in range(8 * self.first, len(self.series) - 8, 8):
            yield self.series[start : start + 9]


@held_sound
class ReadsOn:
    """A recurrent net with its hidden state, and a loader that is made again where the last one stopped."""

    def __init__(self) -> None:
        seed_torch(68)
        self.lstm, self.head = nn.LSTM(2, 5), nn.Linear(5, 2)
        self.opt = torch.optim.NAdam([*self.lstm.parameters(), *self.head.parameters()], lr=0.02)
        self.hidden = (torch.zeros(1, 5), torch.zeros(1, 5))
        self.read = 0
        self.windows = self.open()

    def open(self) -> Iterator[torch.Tensor]:
        return iter(DataLoader(Windows(normal(90, 2, seed=69), self.read), batch_size=None))

    def step(self) -> torch.Tensor:
        window = next(self.windows, None)
        if window is None:
            self.read, self.windows = 0, iter(())
            self.windows = self.open()
            window = next(self.windows)
        self.read += 1
        out, hidden = self.lstm(window[:-1], self.hidden)
        self.hidden = (hidden[0].detach(), hidden[1].detach())
        loss = functional.mse_loss(self.head(out), window[1:])
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        return loss.detach()

    def save(self, path: str) -> None:
        torch.save({"lstm": self.lstm.state_dict(), "head": self.head.state_dict(), "opt": self.opt.state_dict(),
                    "hidden": self.hidden, "read": self.read}, path)  # fmt: skip

    def load(self, path: str) -> None:
        kept = torch.load(path)
        for name in ("lstm", "head", "opt"):
            getattr(self, name).load_state_dict(kept[name])
        self.hidden, self.read = kept["hidden"], kept["read"]
        self.windows = self.open()


class Queued(nn.Module):
    """An encoder, a slow copy of it, and a queue of keys with its pointer, all in one module."""

    def __init__(self) -> None:
        super().__init__()
        self.fast = nn.Sequential(parametrizations.weight_norm(nn.Linear(5, 6)), nn.SELU(), nn.Linear(6, 3))
        self.slow = nn.Sequential(nn.Linear(5, 6), nn.SELU(), nn.Linear(6, 3)).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(3, 14))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.long))

    def forward(self, x: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        q, k = functional.normalize(self.fast(x)), functional.normalize(self.slow(other))
        scores = torch.cat([(q * k).sum(1)[:, None], q @ self.queue.clone()], 1) * 4
        loss = functional.cross_entropy(scores, torch.zeros(len(x), dtype=torch.long))
        places = (torch.arange(len(k)) + self.pointer) % self.queue.shape[1]
        self.queue[:, places] = k.T
        self.pointer += len(k)
        return loss


@held_sound
class QueuesKeys:
    """The state of a queue in buffers, views from a generator of the loop's own."""

    def __init__(self) -> None:
        seed_torch(71)
        self.net = Queued()
        self.opt = torch.optim.Adamax(self.net.fast.parameters())
        self.views = torch.Generator().manual_seed(72)

    def step(self) -> float:
        x = torch.randn(4, 5, generator=self.views)
        loss = self.net(x, x + 0.2 * torch.randn(4, 5, generator=self.views))
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        for slow, fast in zip((self.net.slow[0].weight, self.net.slow[2].weight),
                              (self.net.fast[0].weight, self.net.fast[2].weight), strict=True):  # fmt: skip
            slow.lerp_(fast.detach(), 0.1)
        return loss.item()

    def state_dict(self) -> State:
        return {"net": self.net.state_dict(), "opt": self.opt.state_dict(), "views": self.views.get_state()}

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.opt.load_state_dict(state["opt"])
        self.views.set_state(state["views"])


@held_sound
class SparseWords:
    """Sparse gradients, samples by weight; the epoch's order is drawn again, and its head skipped."""

    def __init__(self) -> None:
        seed_torch(73)
        self.model = nn.ModuleDict({"words": nn.EmbeddingBag(15, 4, mode="sum", sparse=True), "out": nn.Linear(4, 2)})
        self.optimizers = [torch.optim.SparseAdam(self.model["words"].parameters(), lr=0.05),
                           torch.optim.Adam(self.model["out"].parameters(), lr=0.05)]  # fmt: skip
        bags = torch.randint(0, 15, (18, 3), generator=torch.Generator().manual_seed(74))
        self.sampler = WeightedRandomSampler(torch.arange(1.0, 19.0), 18, generator=torch.Generator().manual_seed(75))
        self.loader = DataLoader(TensorDataset(bags, bags.sum(1) % 2), 3, sampler=self.sampler)
        self.begin()

    def begin(self) -> None:
        self.order, self.done, self.rest = self.sampler.generator.get_state(), 0, iter(self.loader)

    def step(self) -> float:
        if self.done == len(self.loader):
            self.begin()
        bags, labels = next(self.rest)
        self.done += 1
        loss = functional.cross_entropy(self.model["out"](self.model["words"](bags)), labels)
        self.model.zero_grad()
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
        return loss.item()

    def save(self, path: str) -> None:
        torch.save({"model": self.model.state_dict(), "optimizers": [one.state_dict() for one in self.optimizers],
                    "order": self.order, "done": self.done}, path)  # fmt: skip

    def load(self, path: str) -> None:
        kept = torch.load(path)
        self.model.load_state_dict(kept["model"])
        for optimizer, state in zip(self.optimizers, kept["optimizers"], strict=True):
            optimizer.load_state_dict(state)
        self.sampler.generator.set_state(kept["order"])
        self.begin()
        self.done = kept["done"]
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


@held_sound
class FlatMinima:
    """A rate that a search found, steps from where the loss is worst nearby, gradients clipped by what was seen."""

    def __init__(self) -> None:
        seed_torch(76)
        self.net = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 1))
        self.sgd = torch.optim.SGD(
            self.net.parameters(), lr=min((0.01, 0.1, 0.3), key=self.after_a_trial), momentum=0.9
        )
        self.clipping, self.seen = Clipping(), 0

    def after_a_trial(self, rate: float) -> float:
        net = copy.deepcopy(self.net)
        optimizer = torch.optim.SGD(net.parameters(), lr=rate)
        for seed in range(3):
            self.loss(net, seed).backward()
            optimizer.step()
        return self.loss(net, 3).item()

    def loss(self, net: nn.Module, seed: int) -> torch.Tensor:
        x = normal(5, 3, seed=80 + seed)
        return functional.mse_loss(net(x)[:, 0], x.square().sum(1))

    def step(self) -> float:
        parameters = list(self.net.parameters())
        first = self.loss(self.net, self.seen % 7)
        moves = [0.05 * grad / (grad.norm() + 1e-6) for grad in torch.autograd.grad(first, parameters)]
        before = [parameter.detach().clone() for parameter in parameters]
        torch._foreach_add_([parameter.data for parameter in parameters], moves)
        self.sgd.zero_grad()
        self.loss(self.net, self.seen % 7).backward()
        torch._foreach_copy_([parameter.data for parameter in parameters], before)
        norm = torch.cat([parameter.grad.flatten() for parameter in parameters]).norm().item()
        nn.utils.clip_grad_norm_(parameters, self.clipping.limit(norm))
        self.sgd.step()
        self.seen += 1
        return first.item()

    def state_dict(self) -> State:
        return {"net": self.net.state_dict(), "sgd": self.sgd.state_dict(), "clipping": asdict(self.clipping),
                "seen": self.seen}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.sgd.load_state_dict(state["sgd"])
        self.clipping, self.seen = Clipping(**state["clipping"]), state["seen"]


@held_sound
class StopsEarly:
    """float16 with a loss scale, a rate that falls on a plateau, and the best weights, which it ends with."""

    def __init__(self) -> None:
        seed_torch(77)
        self.net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8, 1))
        self.opt = torch.optim.RMSprop(self.net.parameters(), lr=0.02)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=4)
        self.plateau = lr_scheduler.ReduceLROnPlateau(self.opt, factor=0.5, patience=1)
        self.best: State = {"loss": float("inf"), "weights": copy.deepcopy(self.net.state_dict()), "bad": 0}
        self.n, self.stopped = 0, False

    def step(self) -> float:
        x = normal(4, 1, 4, 4, seed=90 + self.n % 4)
        self.n += 1
        with torch.autocast("cpu", torch.float16):
            loss = functional.mse_loss(self.net(x).float()[:, 0], x.amax((1, 2, 3)))
        if self.stopped:
            return loss.item()
        self.opt.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.opt)
        self.scaler.update()
        self.plateau.step(loss.item())
        self.remember(loss.item())
        return loss.item()

    def remember(self, loss: float) -> None:
        if loss < self.best["loss"]:
            self.best = {"loss": loss, "weights": copy.deepcopy(self.net.state_dict()), "bad": 0}
        self.best["bad"] += 1
        if self.best["bad"] > 8:
            self.stopped = True
            self.net.load_state_dict(self.best["weights"])

    def state_dict(self) -> State:
        parts = {name: getattr(self, name).state_dict() for name in ("net", "opt", "scaler", "plateau")}
        return parts | {"best": self.best, "n": self.n, "stopped": self.stopped}

    def load_state_dict(self, state: State) -> None:
        for name in ("net", "opt", "scaler", "plateau"):
            getattr(self, name).load_state_dict(state[name])
        self.best, self.n, self.stopped = copy.deepcopy(state["best"]), state["n"], state["stopped"]


@held_sound
class CachesFeatures:
    """Features that are computed when they are first asked for, and how long the last steps took: neither is saved."""

    def __init__(self) -> None:
        seed_torch(78)
        self.coder = nn.Sequential(nn.Linear(8, 3), nn.Sigmoid(), nn.Linear(3, 8))
        self.optimizer = torch.optim.RAdam(self.coder.parameters(), lr=0.02)
        self.cache: dict[int, torch.Tensor] = {}
        self.took: deque[float] = deque(maxlen=10)
        self.order = np.random.default_rng(79)

    def features(self, index: int) -> torch.Tensor:
        if index not in self.cache:
            self.cache[index] = torch.arange(8).mul(0.1 * (index + 1)).sin()
        return self.cache[index]

    def step(self) -> float:
        start = time.perf_counter()
        x = torch.stack([self.features(index) for index in self.order.choice(20, 3, replace=False).tolist()])
        loss = functional.mse_loss(self.coder(x), x)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.took.append(time.perf_counter() - start)
        return loss.item()

    def state_dict(self) -> State:
        return {"coder": self.coder.state_dict(), "optimizer": self.optimizer.state_dict(),
                "order": self.order.bit_generator.state}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.coder.load_state_dict(state["coder"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.bit_generator.state = state["order"]


TOTALS = {"samples": 0, "mean": 0.0}


class Slower:
    """A rule for the learning rate that counts what it was asked; a LambdaLR saves an object like it."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, tick: int) -> float:
        self.asked += 1
        return 1 / (1 + 0.1 * self.asked)


@held_sound
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
