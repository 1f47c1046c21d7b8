"""Loops that resume bit for bit: what the audit says of them must be that they hold."""

import copy
import random  # noqa: TID251 - a user's
import time
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler

from parity_tests.zoo.base import (
    GLOBAL,
    STEPS,
    Accumulating,
    Averaging,
    Dropping,
    Loop,
    Net,
    Noisy,
    Scaling,
    X,
    sound,
)
from parity_tests.zoo.faulty_data import Drawing, EpochOrder, NumpyGenerator, Working
from parity_tests.zoo.faulty_model import Counting, Logging, Tied


@sound
class Plain(Loop):
    """As it is."""


@sound
class Accumulated(Accumulating):
    """Windows of four micro-batches, over the ends of epochs."""


@sound
class Averaged(Averaging):
    """An average of the weights."""


@sound
class Scaled(Scaling):
    """float16 under a loss scale."""


@sound
class DropsOut(Dropping):
    """Dropout from torch's generator."""


@sound
class AllGenerators(Dropping):
    """Draws from all three generators of the process."""

    streams = tuple(GLOBAL)

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        noise = np.random.standard_normal()  # noqa: NPY002 - a user's
        return X[ids] * (1.0 if random.random() < 0.5 else -1.0) + noise


@sound
class OwnDropout(Noisy):
    """Masks from a generator of the loop's own."""

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        return X[ids] * (torch.rand(len(ids), 4, generator=self.noise) < 0.7)


@sound
class OwnNumpyGenerator(NumpyGenerator):
    """PCG64, half words and all."""


@sound
class TwoOptimizers(Loop):
    """One for each layer."""

    parts = (*Loop.parts, "second")

    def __init__(self) -> None:
        super().__init__()
        self.second = torch.optim.SGD(self.model.last.parameters(), lr=0.05, momentum=0.9, nesterov=True)

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.model.first.parameters(), lr=0.01, amsgrad=True)

    def update(self, loss: torch.Tensor) -> None:
        self.second.zero_grad()
        super().update(loss)
        self.second.step()


@sound
class TiedWeights(Loop):
    """A weight with two names."""

    make_model = lambda self: Tied()  # noqa: E731


@sound
class FrozenLayer(Loop):
    """The first layer is never trained, and not the optimizer's."""

    def make_model(self) -> nn.Module:
        model = Net()
        model.first.requires_grad_(False)
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(self.model.last.parameters(), lr=0.01, momentum=0.5)


@sound
class BatchNorm(Loop):
    """Running statistics."""

    norm = True


class BySample(Drawing):
    """Noise that is a function of the sample."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index] + float(np.random.default_rng(index).normal()), index


@sound
class Workers(Working):
    """Two workers a loader; the rest of the epoch is fetched by a new one."""

    make_data = lambda self: BySample()  # noqa: E731


@sound
class OrderOfEpoch(Loop):
    """A sampler with a position, whose order is a function of the epoch."""

    make_order = lambda self: EpochOrder()  # noqa: E731


@sound
class OneCycle(Loop):
    """A schedule that moves the momentum too."""

    def make_schedule(self) -> Any:
        return lr_scheduler.OneCycleLR(self.optimizer, 0.05, total_steps=STEPS + 1)


@sound
class Chained(Loop):
    """Warm-up, then a cosine."""

    def make_schedule(self) -> Any:
        warm = lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=5)
        return lr_scheduler.SequentialLR(
            self.optimizer, [warm, lr_scheduler.CosineAnnealingLR(self.optimizer, 19)], [5]
        )


@sound
class BestSoFar(Loop):
    """Keeps a copy of the best weights, and stops learning after bad steps."""

    values = (*Loop.values, "best_loss", "bad", "best")

    def __init__(self) -> None:
        super().__init__()
        self.best_loss, self.bad, self.best = float("inf"), 0, copy.deepcopy(self.model.state_dict())

    def update(self, loss: torch.Tensor) -> None:
        if self.bad < 6:
            super().update(loss)
        self.bad += 1
        if loss.item() < self.best_loss:
            self.best_loss, self.bad, self.best = loss.item(), 0, copy.deepcopy(self.model.state_dict())


@sound
class CountsEpochs(Counting):
    """The epoch's number is in the loss."""


@sound
class Logs(Logging):
    """Records of every fifth step, as a dict."""


@sound
class OwnFile(Dropping):
    """Its own file format."""

    def save(self, path: str) -> None:
        torch.save({"format": 1, "run": self.state_dict()}, path)

    def load(self, path: str) -> None:
        self.load_state_dict(torch.load(path, weights_only=True)["run"])


@sound
class Times(Loop):
    """Measures its own time, which is no state of the training."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def step(self) -> Any:
        start = time.perf_counter()
        loss = super().step()
        self.seconds += time.perf_counter() - start
        return loss
