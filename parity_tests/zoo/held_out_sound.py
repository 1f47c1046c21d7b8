"""Loops that resume bit for bit, as different from each other and from the zoo's as the faulty ones of `held_out`."""

import json
import random  # noqa: TID251 - a user's
from collections import deque
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.nn.utils import parametrizations
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from parity_tests.zoo.base import State
from parity_tests.zoo.held_out import held_sound, normal, seed_torch


@held_sound
class FitsACurve:
    """L-BFGS, with its history."""

    def __init__(self) -> None:
        seed_torch(61)
        self.net = nn.Sequential(nn.Linear(1, 5), nn.Tanh(), nn.Linear(5, 1)).double()
        self.lbfgs = torch.optim.LBFGS(self.net.parameters(), max_iter=3, history_size=4, line_search_fn="strong_wolfe")
        self.x = torch.linspace(-2, 2, 20, dtype=torch.float64)[:, None]

    def closure(self) -> torch.Tensor:
        self.lbfgs.zero_grad()
        loss = functional.mse_loss(self.net(self.x), self.x.sin())
        loss.backward()
        return loss

    def step(self) -> float:
        return self.lbfgs.step(self.closure).item()

    def save(self, path: str) -> None:
        torch.save((self.net.state_dict(), self.lbfgs.state_dict()), path)

    def load(self, path: str) -> None:
        net, lbfgs = torch.load(path)
        self.net.load_state_dict(net)
        self.lbfgs.load_state_dict(lbfgs)


@dataclass
class Player:
    """One of two adversaries: a net and what trains it."""

    net: nn.Module
    optimizer: torch.optim.Optimizer

    def minimise(self, loss: torch.Tensor) -> float:
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


@held_sound
class Duel:
    """Two optimizers, a spectral norm, noise from NumPy."""

    def __init__(self) -> None:
        seed_torch(62)
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
        return {
            "critic": self.critic.minimise(loss.mean()),
            "artist": self.artist.minimise(-self.critic.net(fake).mean()),
        }

    def state_dict(self) -> State:
        players = {name: [getattr(self, name).net.state_dict(), getattr(self, name).optimizer.state_dict()]
                   for name in ("artist", "critic")}  # fmt: skip
        return {**players, "noise": json.dumps(self.noise.bit_generator.state)}

    def load_state_dict(self, state: State) -> None:
        for name in ("artist", "critic"):
            getattr(self, name).net.load_state_dict(state[name][0])
            getattr(self, name).optimizer.load_state_dict(state[name][1])
        self.noise.bit_generator.state = json.loads(state["noise"])


@held_sound
def small_transformer() -> Any:
    """Dropout, bfloat16 under autocast, a warm-up before a cosine."""
    seed_torch(64)
    words, layer, out = nn.Embedding(9, 8), nn.TransformerEncoderLayer(8, 2, 12, dropout=0.2), nn.Linear(8, 9)
    model = nn.Sequential(words, layer, out)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    rates = lr_scheduler.SequentialLR(optimizer, [lr_scheduler.LinearLR(optimizer, 0.1, total_iters=6),
                                                  lr_scheduler.CosineAnnealingLR(optimizer, 18)], [6])  # fmt: skip

    def step() -> float:
        ids = torch.randint(0, 9, (7, 3))
        with torch.autocast("cpu", torch.bfloat16):
            scores = model(ids)
            loss = functional.cross_entropy(scores[:-1].flatten(0, 1), ids[:-1].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), 0.05)
        optimizer.step()
        rates.step()
        return loss.item()

    parts = {"model": model, "optimizer": optimizer, "rates": rates}

    def state_dict() -> State:
        return {name: part.state_dict() for name, part in parts.items()} | {"rng": torch.random.get_rng_state()}

    def load_state_dict(state: State) -> None:
        for name, part in parts.items():
            part.load_state_dict(state[name])
        torch.random.set_rng_state(state["rng"])

    return SimpleNamespace(**parts, step=step, state_dict=state_dict, load_state_dict=load_state_dict)


@held_sound
class ExploresLess:
    """A replay buffer of a fixed length, an exploration that decays, a target, python's own generator."""

    def __init__(self) -> None:
        seed_torch(65)
        self.q = nn.ModuleDict({"online": nn.Linear(2, 3), "target": nn.Linear(2, 3)})
        self.optimizer = torch.optim.Adagrad(self.q["online"].parameters(), lr=0.1)
        self.memory: deque[tuple[float, float, int, float]] = deque(maxlen=12)
        self.dice, self.epsilon, self.place = random.Random(66), 1.0, (0.5, -0.5)

    def step(self) -> float:
        scores = self.q["online"](torch.tensor(self.place))
        action = self.dice.randrange(3) if self.dice.random() < self.epsilon else int(scores.argmax())
        self.epsilon = max(0.05, 0.9 * self.epsilon)
        self.memory.append((*self.place, action, self.place[0] * (action - 1)))
        self.place = (self.dice.gauss(0, 1), 0.5 * self.place[0])
        batch = torch.tensor(self.dice.choices(self.memory, k=4))
        with torch.no_grad():
            wanted = batch[:, 3] + 0.5 * self.q["target"](batch[:, :2]).amax(1)
        loss = functional.mse_loss(self.q["online"](batch[:, :2]).gather(1, batch[:, 2:3].long())[:, 0], wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        for slow, fast in zip(self.q["target"].parameters(), self.q["online"].parameters(), strict=True):
            slow.data.lerp_(fast.data, 0.05)
        return loss.item()

    def state_dict(self) -> State:
        return {"q": self.q.state_dict(), "optimizer": self.optimizer.state_dict(), "memory": list(self.memory),
                "dice": self.dice.getstate(), "epsilon": self.epsilon, "place": self.place}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.q.load_state_dict(state["q"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.memory.clear()
        self.memory.extend(state["memory"])
        self.dice.setstate(state["dice"])
        self.epsilon, self.place = state["epsilon"], state["place"]


@held_sound
class TwoAverages:
    """An exponential average that teaches and an equal one, a cosine with restarts, normalised batches."""

    def __init__(self) -> None:
        seed_torch(67)
        self.net = nn.Sequential(nn.Conv1d(2, 4, 3), nn.BatchNorm1d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
        self.ema = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
        self.swa = AveragedModel(self.net)
        self.opt = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.5, dampening=0.1)
        self.rates = lr_scheduler.CosineAnnealingWarmRestarts(self.opt, T_0=4, T_mult=2)
        self.n = 0

    def step(self) -> float:
        x = normal(6, 2, 6, seed=70 + self.n % 5)
        soft = self.ema.eval()(x).detach().softmax(1)
        loss = functional.cross_entropy(self.net(x), x.sum(2).argmax(1)) + functional.cross_entropy(self.net(x), soft)
        self.opt.zero_grad()
        loss.backward()
        self.opt.step()
        self.rates.step()
        self.n += 1
        self.ema.update_parameters(self.net)
        if self.n % 4 == 0:
            self.swa.update_parameters(self.net)
        return loss.item()

    def state_dict(self) -> State:
        parts = {name: getattr(self, name).state_dict() for name in ("net", "ema", "swa", "opt", "rates")}
        return {**parts, "n": self.n, "modes": {"net": self.net.training, "ema": self.ema.training}}

    def load_state_dict(self, state: State) -> None:
        for name in ("net", "ema", "swa", "opt", "rates"):
            getattr(self, name).load_state_dict(state[name])
        self.n = state["n"]
        for name, mode in state["modes"].items():
            getattr(self, name).train(mode)
