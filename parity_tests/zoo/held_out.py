"""Faulty loops that were written without a look at the audit: one fault each. More in `held_out_more` and `_last`.

They have nothing in common, as the loops of many users: what a fault loses lies in a deque, a closure, a class, a
module, a sampler, an iterator. That each lost it, and nothing else, is proved without the audit. Sound ones are in
`held_out_sound` and `held_out_sound_more`.

The audit's first verdicts on them: 24 of 24 faulty loops reported, 19 with the lost state first; 11 of 12 sound ones
passed. It was mended on the rest, so what `python -m parity_tests.zoo --held-out` prints now is no longer a first one.
"""

import copy
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from parity_tests.zoo.base import Fault, State

HELD_FAULTS: dict[str, Fault] = {}
HELD_SOUND: dict[str, str] = {}


def held_fault(named: str, report: str, lost: str, *, at: int = 7) -> Callable[[Any], Any]:
    """Register a faulty loop, a class or a function that makes one; `named` as in the zoo's own registry."""

    def register(loop: Any) -> Any:
        target = f"{loop.__module__}:{loop.__name__}"
        HELD_FAULTS[loop.__name__] = Fault(target, tuple(named.split()), report, lost, (at,), False)
        return loop

    return register


def held_sound(loop: Any) -> Any:
    """Register a loop without a fault."""
    HELD_SOUND[loop.__name__] = f"{loop.__module__}:{loop.__name__}"
    return loop


def fill_registries() -> None:
    """Import the modules whose loops register themselves."""
    for name in ("held_out_more", "held_out_last", "held_out_sound", "held_out_sound_more"):
        import_module(f"parity_tests.zoo.{name}")


def normal(*shape: int, seed: int) -> torch.Tensor:
    """Numbers to learn from."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def seed_torch(seed: int) -> None:
    """As users do."""
    torch.manual_seed(seed)  # noqa: TID251 - a user's


@dataclass
class QuantileClipper:
    """Clips gradients at the median of the last norms."""

    norms: deque[float] = field(default_factory=lambda: deque(maxlen=5))

    def clip(self, parameters: Iterable[nn.Parameter]) -> None:
        parameters = list(parameters)
        self.norms.append(math.sqrt(sum(p.grad.square().sum().item() for p in parameters)))
        nn.utils.clip_grad_norm_(parameters, sorted(self.norms)[len(self.norms) // 2])


@held_fault("*norms *clipper", "B49", "the window of the last norms comes back without its length")
class ClippedConvNet:
    def __init__(self) -> None:
        seed_torch(11)
        self.net = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 16, 3))
        self.adamax = torch.optim.Adamax(self.net.parameters(), lr=0.01)
        self.clipper = QuantileClipper()
        self.batch = 0
        self.images, self.labels = normal(24, 1, 6, 6, seed=1), torch.arange(24) % 3

    def step(self) -> float:
        ids = torch.arange(4) + 4 * (self.batch % 6)
        self.batch += 1
        loss = functional.cross_entropy(self.net(self.images[ids]), self.labels[ids])
        self.adamax.zero_grad()
        loss.backward()
        self.clipper.clip(self.net.parameters())
        self.adamax.step()
        return loss.item()

    def state_dict(self) -> State:
        return {"net": self.net.state_dict(), "adamax": self.adamax.state_dict(), "batch": self.batch,
                "norms": list(self.clipper.norms)}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.net.load_state_dict(state["net"])
        self.adamax.load_state_dict(state["adamax"])
        self.batch = state["batch"]
        self.clipper.norms = deque(state["norms"])


class KeyBank:
    """The keys of the last batches, the oldest overwritten first."""

    def __init__(self, size: int, width: int) -> None:
        self.keys = functional.normalize(normal(size, width, seed=2), dim=1)
        self.cursor = 0

    def push(self, keys: torch.Tensor) -> None:
        self.keys[self.cursor : self.cursor + len(keys)] = keys
        self.cursor = (self.cursor + len(keys)) % len(self.keys)


@held_fault("*bank.cursor *cursor", "B163", "where in the bank of keys the next ones go")
class MomentumContrast:
    def __init__(self) -> None:
        seed_torch(12)
        self.query = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 4))
        self.key = copy.deepcopy(self.query).requires_grad_(False)
        self.rmsprop = torch.optim.RMSprop(self.query.parameters(), lr=0.003)
        self.bank = KeyBank(20, 4)
        self.views = torch.Generator().manual_seed(4)

    def step(self) -> torch.Tensor:
        x = torch.randn(4, 6, generator=self.views)
        q = functional.normalize(self.query(x + 0.1 * torch.randn(4, 6, generator=self.views)), dim=1)
        with torch.no_grad():
            for slow, fast in zip(self.key.parameters(), self.query.parameters(), strict=True):
                slow.mul_(0.9).add_(fast, alpha=0.1)
            k = functional.normalize(self.key(x), dim=1)
        logits = torch.cat([(q * k).sum(1, keepdim=True), q @ self.bank.keys.T], dim=1) / 0.2
        loss = functional.cross_entropy(logits, torch.zeros(4, dtype=torch.long))
        self.rmsprop.zero_grad()
        loss.backward()
        self.rmsprop.step()
        self.bank.push(k)
        return loss.detach()

    def save(self, path: str) -> None:
        torch.save({"query": self.query.state_dict(), "key": self.key.state_dict(), "keys": self.bank.keys,
                    "rmsprop": self.rmsprop.state_dict(), "views": self.views.get_state()}, path)  # fmt: skip

    def load(self, path: str) -> None:
        kept = torch.load(path)
        for name in ("query", "key", "rmsprop"):
            getattr(self, name).load_state_dict(kept[name])
        self.bank.keys = kept["keys"]
        self.views.set_state(kept["views"])


@held_fault("*hidden", "B127", "the hidden state that each window of the series takes over from the last one")
def truncated_gru() -> SimpleNamespace:
    seed_torch(13)
    model = nn.ModuleDict({"gru": nn.GRU(3, 6, batch_first=True), "head": nn.Linear(6, 3)})
    optimizer = torch.optim.NAdam(model.parameters(), lr=0.01)
    series = normal(2, 200, 3, seed=3).cumsum(1) * 0.1
    hidden, position = torch.zeros(1, 2, 6), 0

    def step() -> float:
        nonlocal hidden, position
        window = series[:, position : position + 8]
        out, after = model["gru"](window[:, :-1], hidden)
        loss = functional.mse_loss(model["head"](out), window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        hidden, position = after.detach(), position + 7
        return loss.item()

    def state_dict() -> State:
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "position": position}

    def load_state_dict(state: State) -> None:
        nonlocal position
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        position = state["position"]

    return SimpleNamespace(model=model, step=step, state_dict=state_dict, load_state_dict=load_state_dict)


class GapFiller(nn.Module):
    """A transformer's layer that sees a sentence with gaps; where they are is drawn anew now and then."""

    def __init__(self, length: int) -> None:
        super().__init__()
        self.words = nn.Embedding(12, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.out = nn.Linear(8, 12)
        self.register_buffer("gaps", torch.zeros(length, dtype=torch.bool), persistent=False)
        self.draw_gaps()

    def draw_gaps(self) -> None:
        self.gaps = torch.rand(self.gaps.shape) < 0.4
        self.gaps[0] = True

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        out = self.out(self.layer(self.words(ids.masked_fill(self.gaps, 0))))
        return functional.cross_entropy(out[:, self.gaps].flatten(0, 1), ids[:, self.gaps].flatten())


@held_fault("*gaps", "B86", "where the gaps are: a buffer that is not persistent")
class FillsGaps:
    def __init__(self) -> None:
        seed_torch(14)
        self.net = GapFiller(9)
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=0.01)
        self.sched = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(self.opt, T_0=6)
        self.i = 0

    def step(self) -> float:
        if self.i % 5 == 0:
            self.net.draw_gaps()
        self.i += 1
        self.opt.zero_grad()
        loss = self.net(torch.randint(1, 12, (3, 9)))
        loss.backward()
        self.opt.step()
        self.sched.step()
        return float(loss.detach())

    def state_dict(self) -> State:
        parts = {name: getattr(self, name).state_dict() for name in ("net", "opt", "sched")}
        return parts | {"i": self.i, "rng": torch.get_rng_state()}

    def load_state_dict(self, state: State) -> None:
        for name in ("net", "opt", "sched"):
            getattr(self, name).load_state_dict(state[name])
        self.i = state["i"]
        torch.set_rng_state(state["rng"])


@held_fault("*_u *_v *players*critic", "B86", "the spectral norm's vectors: buffers, and only parameters were saved")
class Adversaries:
    def __init__(self) -> None:
        seed_torch(15)
        spectral = nn.utils.parametrizations.spectral_norm
        self.players = {
            "artist": nn.Sequential(nn.Linear(3, 8), nn.LeakyReLU(0.2), nn.Linear(8, 2)),
            "critic": nn.Sequential(spectral(nn.Linear(2, 8)), nn.LeakyReLU(0.2), spectral(nn.Linear(8, 1))),
        }
        self.optimizers = {name: torch.optim.Adam(player.parameters(), lr=0.01, betas=(0.5, 0.9))
                           for name, player in self.players.items()}  # fmt: skip
        self.noise = torch.Generator().manual_seed(5)

    def play(self, name: str, loss: torch.Tensor) -> float:
        self.optimizers[name].zero_grad()
        loss.backward()
        self.optimizers[name].step()
        return loss.item()

    def step(self) -> tuple[float, float]:
        artist, critic = self.players["artist"], self.players["critic"]
        real = torch.randn(6, 2, generator=self.noise) * 0.5 + 1
        fake = artist(torch.randn(6, 3, generator=self.noise))
        wins = functional.softplus(-critic(real)).mean() + functional.softplus(critic(fake.detach())).mean()
        return self.play("critic", wins), self.play("artist", functional.softplus(-critic(fake)).mean())

    def state_dict(self) -> State:
        weights = {name: {key: one.detach() for key, one in player.named_parameters()}
                   for name, player in self.players.items()}  # fmt: skip
        return {"weights": weights, "noise": self.noise.get_state(),
                "optimizers": {name: one.state_dict() for name, one in self.optimizers.items()}}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        for name, player in self.players.items():
            player.load_state_dict(state["weights"][name], strict=False)
            self.optimizers[name].load_state_dict(state["optimizers"][name])
        self.noise.set_state(state["noise"])


class Bigram(nn.Module):
    """The next word's scores, by the embedding of the words themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.mix = nn.Linear(6, 6)
        self.decoder = nn.Linear(6, 10, bias=False)
        self.decoder.weight = self.embedding.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.decoder(torch.tanh(self.mix(self.embedding(ids))))


@held_fault("*model.decoder *model.embedding *tied*", "B91",
            "that the decoder is the embedding: the load assigns two parameters")  # fmt: skip
class TiedBigram:
    def __init__(self) -> None:
        seed_torch(16)
        self.model = Bigram()
        self.optimizer = self.make_optimizer()
        self.at = 0
        self.text = torch.randint(0, 10, (300,), generator=torch.Generator().manual_seed(6))

    def make_optimizer(self) -> torch.optim.Optimizer:
        trained = [self.model.embedding, self.model.mix]  # the decoder is the embedding
        return torch.optim.Adagrad([p for module in trained for p in module.parameters()], lr=0.1)

    def step(self) -> float:
        ids, self.at = self.text[self.at : self.at + 9], self.at + 8
        loss = functional.cross_entropy(self.model(ids[:-1]), ids[1:])
        self.model.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def save(self, path: str) -> None:
        torch.save((self.model.state_dict(), self.optimizer.state_dict(), self.at), path)

    def load(self, path: str) -> None:
        weights, moments, self.at = torch.load(path)
        self.model.load_state_dict(weights, assign=True)
        self.optimizer = self.make_optimizer()
        self.optimizer.load_state_dict(moments)


@held_fault("*target", "B127", "the target net, which the load takes from the online one")
class QLearner:
    def __init__(self) -> None:
        seed_torch(18)
        self.online = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2))
        self.target = copy.deepcopy(self.online)
        self.sgd = torch.optim.SGD(self.online.parameters(), lr=0.05, momentum=0.9)
        self.dice = np.random.default_rng(7)
        self.replay: list[tuple[list[float], int, float, list[float]]] = []
        self.place, self.updates = [0.0, 0.0, 1.0], 0

    def act(self) -> None:
        greedy = int(self.online(torch.tensor(self.place)).argmax())
        action = greedy if self.dice.random() > 0.3 else int(self.dice.integers(2))
        after = [0.8 * self.place[0] + (action - 0.5), self.place[0], float(self.dice.normal())]
        self.replay.append((self.place, action, -abs(after[0]), after))
        self.place = after

    def step(self) -> float:
        for _ in range(2):
            self.act()
        chosen = [self.replay[i] for i in self.dice.integers(len(self.replay), size=4)]
        here, action, reward, after = (torch.tensor(column) for column in zip(*chosen, strict=True))
        with torch.no_grad():
            wanted = reward + 0.9 * self.target(after).amax(1)
        loss = functional.smooth_l1_loss(self.online(here)[torch.arange(4), action], wanted)
        self.sgd.zero_grad()
        loss.backward()
        self.sgd.step()
        self.updates += 1
        if self.updates % 6 == 0:
            self.target.load_state_dict(self.online.state_dict())
        return loss.item()

    def state_dict(self) -> State:
        return {"online": self.online.state_dict(), "sgd": self.sgd.state_dict(), "dice": self.dice.bit_generator.state,
                "replay": list(self.replay), "place": self.place, "updates": self.updates}  # fmt: skip

    def load_state_dict(self, state: State) -> None:
        self.online.load_state_dict(state["online"])
        self.target.load_state_dict(state["online"])
        self.sgd.load_state_dict(state["sgd"])
        self.dice.bit_generator.state = state["dice"]
        self.replay, self.place, self.updates = list(state["replay"]), state["place"], state["updates"]
