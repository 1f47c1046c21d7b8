"""The last loops of the kind of `held_out`, with one fault each."""

import copy
import json
import math
import random  # noqa: TID251 - a user's
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset, WeightedRandomSampler

from parity_tests.zoo.base import State
from parity_tests.zoo.held_out import held_fault, normal, seed_torch


@held_fault("*sampler samples", "B58", "the sampler's epoch, which is only set when an epoch begins")
class RankOneOfTwo:
    def __init__(self) -> None:
        seed_torch(31)
        x = normal(20, 4, seed=32)
        self.data = TensorDataset(x, x.norm(dim=1, keepdim=True))
        self.sampler = DistributedSampler(self.data, num_replicas=2, rank=1, seed=33)
        self.loader = DataLoader(self.data, batch_size=2, sampler=self.sampler)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.PReLU(), nn.Linear(6, 1))
        self.optimizer = torch.optim.Adam(self.net.parameters(), lr=0.02)
        self.epoch, self.batch, self.batches = 0, 0, iter(self.loader)

    def step(self) -> float:
        if self.batch == len(self.loader):
            self.epoch, self.batch = self.epoch + 1, 0
            self.sampler.set_epoch(self.epoch)
            self.batches = iter(self.loader)
        x, y = next(self.batches)
        self.batch += 1
        loss = functional.mse_loss(self.net(x), y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> State:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(),
                "progress": [self.epoch, self.batch]}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.epoch, self.batch = state["progress"]
        self.batches = islice(iter(self.loader), self.batch, None)


@held_fault("*weights", "B127", "how hard each sample was, by which the next ones are chosen")
class PrefersTheHard:
    def __init__(self) -> None:
        seed_torch(34)
        self.x = normal(16, 2, seed=35)
        self.y = (self.x.prod(1) > 0).long()
        self.model = nn.Sequential(nn.Linear(2, 6), nn.Softplus(), nn.Linear(6, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
        self.chance = torch.Generator().manual_seed(36)
        self.sampler = WeightedRandomSampler(torch.ones(16), num_samples=4, generator=self.chance)

    def step(self) -> float:
        ids = list(self.sampler)
        losses = functional.cross_entropy(self.model(self.x[ids]), self.y[ids], reduction="none")
        self.optimizer.zero_grad()
        losses.mean().backward()
        self.optimizer.step()
        self.sampler.weights[ids] = losses.detach().double()
        return losses.sum().item()

    def save(self, path: str) -> None:
        torch.save([self.model.state_dict(), self.optimizer.state_dict(), self.chance.get_state()], path)

    def load(self, path: str) -> None:
        model, optimizer, chance = torch.load(path)
        self.model.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)
        self.chance.set_state(chance)


@dataclass
class Patience:
    """Halves the learning rate when two losses in a row were no better than the best one."""

    best: float = math.inf
    bad: int = 0

    def after_step(self, trainer: Any, loss: float) -> None:
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)
        if self.bad == 2:
            self.bad = 0
            for group in trainer.optimizer.param_groups:
                group["lr"] *= 0.5


class Trainer:
    """Trains, and tells others of it."""

    def __init__(self, net: nn.Module, callbacks: list[Any]) -> None:
        self.net, self.callbacks, self.steps = net, callbacks, 0
        self.optimizer = torch.optim.NAdam(net.parameters(), lr=0.05)

    def fit_batch(self) -> float:
        x = normal(4, 3, seed=40 + self.steps % 9)
        loss = functional.huber_loss(self.net(x)[:, 0], x.amax(1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.steps += 1
        for callback in self.callbacks:
            callback.after_step(self, loss.item())
        return loss.item()


@held_fault("*callbacks[0] *best *bad *patience", "B31", "the best loss, and how many were worse, in a callback", at=9)
class Experiment:
    def __init__(self) -> None:
        seed_torch(39)
        self.trainer = Trainer(nn.Sequential(nn.Linear(3, 5), nn.Mish(), nn.Linear(5, 1)), [Patience()])

    def step(self) -> float:
        return self.trainer.fit_batch()

    def state_dict(self) -> State:
        trainer = self.trainer
        return {"net": trainer.net.state_dict(), "optimizer": trainer.optimizer.state_dict(), "steps": trainer.steps}

    def load_state_dict(self, state: State) -> None:
        self.trainer.net.load_state_dict(state["net"])
        self.trainer.optimizer.load_state_dict(state["optimizer"])
        self.trainer.steps = state["steps"]


class Lookahead:
    """Slow weights that the fast ones return to, halfway, after each five steps."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner, self.ticks = inner, 0
        self.fast = [p for group in inner.param_groups for p in group["params"]]
        self.slow = [p.detach().clone() for p in self.fast]

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        self.ticks += 1
        if self.ticks % 5 == 0:
            for slow, fast in zip(self.slow, self.fast, strict=True):
                fast.copy_(slow.lerp_(fast, 0.5))

    def state_dict(self) -> State:
        return {"inner": self.inner.state_dict(), "ticks": self.ticks, "slow": [one.bfloat16() for one in self.slow]}

    def load_state_dict(self, state: State) -> None:
        self.inner.load_state_dict(state["inner"])
        self.ticks, self.slow = state["ticks"], [one.float() for one in state["slow"]]


@held_fault("*slow", "B95", "the last bits of the slow weights, which are stored as bfloat16")
def lookahead() -> SimpleNamespace:
    seed_torch(41)
    net = nn.Sequential(nn.Conv1d(1, 3, 3), nn.Tanh(), nn.Flatten(), nn.Linear(18, 1))
    optimizer = Lookahead(torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9))
    numbers = torch.Generator().manual_seed(42)

    def step() -> float:
        x = torch.randn(5, 1, 8, generator=numbers)
        net.zero_grad()
        loss = functional.mse_loss(net(x)[:, 0], x[:, 0].max(1).values)
        loss.backward()
        optimizer.step()
        return loss.item()

    def state_dict() -> State:
        return {"net": net.state_dict(), "optimizer": optimizer.state_dict(), "numbers": numbers.get_state()}

    def load_state_dict(state: State) -> None:
        net.load_state_dict(state["net"])
        optimizer.load_state_dict(state["optimizer"])
        numbers.set_state(state["numbers"])

    return SimpleNamespace(
        net=net, optimizer=optimizer, step=step, state_dict=state_dict, load_state_dict=load_state_dict
    )


class Teacher:
    """A student's average, which follows it the slower the longer it has."""

    def __init__(self, student: nn.Module) -> None:
        self.net = copy.deepcopy(student).requires_grad_(False)
        self.updates = 0

    def follow(self, student: nn.Module) -> None:
        self.updates += 1
        decay = min(0.99, (1 + self.updates) / (10 + self.updates))
        for mine, its in zip(self.net.parameters(), student.parameters(), strict=True):
            mine.mul_(decay).add_(its.detach(), alpha=1 - decay)


@held_fault("*updates", "B163", "how often the teacher was updated, on which its decay depends")
class MeanTeacher:
    def __init__(self) -> None:
        seed_torch(43)
        self.student = nn.Sequential(nn.Linear(4, 6), nn.CELU(), nn.Dropout(0.2), nn.Linear(6, 3))
        self.teacher = Teacher(self.student)
        self.optimizer = torch.optim.Adam(self.student.parameters(), lr=0.02)

    def step(self) -> float:
        x = torch.randn(6, 4)
        loss = functional.cross_entropy(self.student(x), x[:, :3].argmax(1))
        loss = loss + functional.mse_loss(self.student(x + 0.1 * torch.randn(6, 4)), self.teacher.net(x))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.teacher.follow(self.student)
        return loss.item()

    def save(self, path: str) -> None:
        torch.save({"student": self.student.state_dict(), "teacher": self.teacher.net.state_dict(),
                    "optimizer": self.optimizer.state_dict(), "rng": torch.get_rng_state()}, path)  # fmt: skip

    def load(self, path: str) -> None:
        kept = torch.load(path)
        self.student.load_state_dict(kept["student"])
        self.teacher.net.load_state_dict(kept["teacher"])
        self.optimizer.load_state_dict(kept["optimizer"])
        torch.set_rng_state(kept["rng"])


@held_fault("*n_averaged", "B86", "how many weights are in the average: only the module within it was saved")
class AveragesAndLearnsFromIt:
    def __init__(self) -> None:
        seed_torch(44)
        self.net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU6(), nn.Linear(8, 2))
        self.swa = AveragedModel(self.net)
        self.opt = torch.optim.Adagrad(self.net.parameters(), lr=0.1)
        self.tick = 0

    def step(self) -> float:
        x = normal(8, 3, seed=self.tick % 10)
        with torch.no_grad():
            soft = self.swa(x).softmax(1)
        out = self.net(x)
        loss = functional.cross_entropy(out, x[:, :2].argmax(1)) + functional.cross_entropy(out, soft)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.tick += 1
        if self.tick % 3 == 0:
            self.swa.update_parameters(self.net)
        return loss.item()

    def state_dict(self) -> State:
        return {"net": self.net.state_dict(), "swa": self.swa.module.state_dict(), "opt": self.opt.state_dict(),
                "tick": self.tick}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.swa.module.load_state_dict(state["swa"])
        self.opt.load_state_dict(state["opt"])
        self.tick = state["tick"]


@held_fault("*usual", "B49", "the layers' usual activations: their numbers as keys come back from JSON as text")
class SteadyActivations:
    def __init__(self) -> None:
        seed_torch(45)
        self.net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 1))
        self.optimizer = torch.optim.Adamax(self.net.parameters(), lr=0.02)
        self.usual: dict[int, float] = {}
        self.penalty: Any = 0.0
        self.numbers = torch.Generator().manual_seed(46)
        for layer in (1, 3):
            self.net[layer].register_forward_hook(self.hook(layer))

    def hook(self, layer: int) -> Callable[..., None]:
        def compare(module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
            mean = output.mean()
            usual = self.usual.get(layer, mean.item())
            self.penalty = self.penalty + (mean - usual) ** 2
            self.usual[layer] = 0.8 * usual + 0.2 * mean.item()

        return compare

    def step(self) -> float:
        x = torch.randn(4, 4, generator=self.numbers)
        self.penalty = 0.0
        loss = functional.mse_loss(self.net(x)[:, 0], x.sum(1)) + self.penalty
        self.penalty = 0.0
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, path: str) -> None:
        torch.save({"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict(),
                    "numbers": self.numbers.get_state(), "json": json.dumps({"usual": self.usual})}, path)  # fmt: skip

    def load(self, path: str) -> None:
        kept = torch.load(path)
        self.net.load_state_dict(kept["net"])
        self.optimizer.load_state_dict(kept["optimizer"])
        self.numbers.set_state(kept["numbers"])
        self.usual = json.loads(kept["json"])["usual"]


class SignsOnly(torch.autograd.Function):
    """Lets the signs of a gradient through, and what that loses with the next one."""

    residual: ClassVar[dict[str, torch.Tensor]] = {}

    @staticmethod
    def forward(ctx: Any, weight: torch.Tensor, name: str) -> torch.Tensor:
        ctx.name = name
        return weight.clone()

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        wanted = grads[0] + SignsOnly.residual.get(ctx.name, torch.zeros(()))
        sent = wanted.sign() * wanted.abs().mean()
        SignsOnly.residual[ctx.name] = wanted - sent
        return sent, None


@held_fault("*residual *SignsOnly", "B127", "what compression left of the gradients, in a class attribute")
class CompressesGradients:
    def __init__(self) -> None:
        seed_torch(47)
        self.layers = nn.ParameterDict({"into": torch.randn(5, 3) * 0.5, "out": torch.randn(2, 5) * 0.5})
        self.optimizer = torch.optim.SGD(self.layers.parameters(), lr=0.1)
        self.step_number = 0

    def step(self) -> float:
        x = normal(6, 3, seed=50 + self.step_number % 8)
        into, out = (SignsOnly.apply(weight, name) for name, weight in self.layers.items())
        loss = functional.cross_entropy(functional.linear(functional.linear(x, into).tanh(), out), x.argmax(1) % 2)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.step_number += 1
        return loss.item()

    def state_dict(self) -> State:
        return {"layers": self.layers.state_dict(), "optimizer": self.optimizer.state_dict(), "n": self.step_number}

    def load_state_dict(self, state: State) -> None:
        self.layers.load_state_dict(state["layers"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_number = state["n"]


def mixing(seed: int) -> Callable[[list[Any]], tuple[torch.Tensor, torch.Tensor]]:
    """A collate function that mixes each sample with its neighbour."""
    dice = random.Random(seed)

    def collate(samples: list[Any]) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = (torch.stack(column) for column in zip(*samples, strict=True))
        share = dice.betavariate(0.4, 0.4)
        return share * x + (1 - share) * x.roll(1, 0), share * y + (1 - share) * y.roll(1, 0)

    return collate


@held_fault("*collate_fn *dice *collate", "B40", "the generator that a loader's collate function closes over")
def mixup_run() -> Any:
    weights = torch.Generator().manual_seed(48)
    order = torch.Generator().manual_seed(49)
    model = nn.Linear(3, 1)
    for parameter in model.parameters():
        nn.init.uniform_(parameter, generator=weights)
    x = normal(12, 3, seed=51)
    loader = DataLoader(TensorDataset(x, x.abs().sum(1)), 6, shuffle=True, generator=order, collate_fn=mixing(52))
    return Epochs(model, torch.optim.Adadelta(model.parameters()), loader, order)


@dataclass
class Epochs:
    """Trains an epoch a step."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    loader: Any
    order: torch.Generator

    def step(self) -> Iterator[float] | list[float]:
        return [self.update(x, y) for x, y in self.loader]

    def update(self, x: torch.Tensor, y: torch.Tensor) -> float:
        loss = functional.mse_loss(self.model(x)[:, 0], y)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(),
                "order": self.order.get_state()}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.order.set_state(state["order"])
