"""Loops for the tests of the audit: one with every kind of state, and for each state one that forgets it."""

import decimal
import os
import random  # noqa: TID251
import threading
import time
from collections import deque
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset

State = dict[str, Any]
SAMPLES, BATCH = 20, 4
X = torch.linspace(-1, 1, SAMPLES * 4).reshape(SAMPLES, 4).sin()
Y = (X.sum(1) > 0).long()


class Order:
    """The samples of an epoch in their order, and how many were used."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(5)
        self.permutation = torch.randperm(SAMPLES, generator=self.generator)
        self.used = 0


class Everything:
    """Resumes; draws from every generator, and has every kind of state. Each name in KEYS is one entry of its file."""

    KEYS: ClassVar[tuple[str, ...]] = (
        "model",
        "optimizer",
        "schedule",
        "scaler",
        "torch",
        "numpy",
        "python",
        "own",
        "order",
        "permutation",
        "used",
        "epoch",
        "average",
        "best",
        "train",
    )
    FORGETS: ClassVar[str] = ""

    def __init__(self) -> None:
        torch.manual_seed(1)  # noqa: TID251
        np.random.seed(2)  # noqa: NPY002
        random.seed(3)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.schedule = lr_scheduler.StepLR(self.optimizer, 10, gamma=0.5)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=16.0, growth_interval=4)
        self.own = np.random.default_rng(4)
        self.order, self.epoch, self.best = Order(), 0, float("inf")
        self.average = {name: value.clone() for name, value in self.model.state_dict().items()}

    def step(self) -> State:
        if self.order.used == SAMPLES:
            self.order.permutation, self.order.used = torch.randperm(SAMPLES, generator=self.order.generator), 0
            self.epoch += 1
            self.model[1].train(self.epoch < 2)  # the statistics are kept from then on
        ids = self.order.permutation[self.order.used : self.order.used + BATCH]
        self.order.used += BATCH
        noise = np.random.standard_normal() + random.random() + self.own.random()  # noqa: NPY002
        loss = nn.functional.cross_entropy(self.model(X[ids] + 0.1 * noise), Y[ids]) * (1 + 0.1 * self.epoch)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        for name, value in self.model.state_dict().items():
            self.average[name].lerp_(value, 0.1) if value.is_floating_point() else self.average[name].copy_(value)
        self.best = min(self.best, loss.item())
        return {"loss": loss, "best": self.best}

    def state_dict(self) -> State:
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict(),
            "torch": torch.get_rng_state(),
            "numpy": _plain_numpy(),
            "python": random.getstate(),
            "own": self.own.bit_generator.state,
            "order": self.order.generator.get_state(),
            "permutation": self.order.permutation,
            "used": self.order.used,
            "epoch": self.epoch,
            "average": self.average,
            "best": self.best,
            "train": self.model[1].training,
        }

    def load_state_dict(self, state: State) -> None:
        state = {name: value for name, value in state.items() if name != self.FORGETS}
        for name in ("model", "optimizer", "schedule", "scaler"):
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        if "numpy" in state:
            np.random.set_state(("MT19937", np.asarray(state["numpy"][0], np.uint32), *state["numpy"][1:]))  # noqa: NPY002
        if "own" in state:
            self.own.bit_generator.state = state["own"]
        if "order" in state:
            self.order.generator.set_state(state["order"])
        self.order.permutation = state.get("permutation", self.order.permutation)
        self.order.used = state.get("used", self.order.used)
        self.epoch, self.best = state.get("epoch", self.epoch), state.get("best", self.best)
        self.average = state.get("average", self.average)
        self.model[1].train(state.get("train", True))
        if "python" in state:
            random.setstate(state["python"])
        if "torch" in state:
            torch.set_rng_state(state["torch"])


def _plain_numpy() -> Any:
    _, key, *rest = np.random.get_state()  # noqa: NPY002
    return (key.tolist(), *rest)


# What the audit must name first for each forgotten entry.
NAMED = {
    "model": ("model",),
    "optimizer": ("optimizer",),
    "schedule": ("schedule",),
    "scaler": ("scaler",),
    "torch": ("rng/torch",),
    "numpy": ("rng/numpy",),
    "python": ("rng/python",),
    "own": ("own",),
    "order": ("order.generator",),
    "permutation": ("order.permutation",),
    "used": ("order.used",),
    "epoch": ("epoch",),
    "average": ("average",),
    "best": ("best",),
    "train": ("model.1.training",),
}
for _name in Everything.KEYS:
    globals()[f"Forgets_{_name}"] = type(f"Forgets_{_name}", (Everything,), {"FORGETS": _name, "__module__": __name__})


class ForgetsMoments(Everything):
    """One kind of the optimizer's state."""

    def load_state_dict(self, state: State) -> None:
        for one in state["optimizer"]["state"].values():
            one["exp_avg_sq"].zero_()
        super().load_state_dict(state)


class ForgetsBuffer(Everything):
    """A buffer that is no weight."""

    def load_state_dict(self, state: State) -> None:
        state["model"]["1.running_var"].fill_(1)
        super().load_state_dict(state)


class Loader(Everything):
    """A DataLoader whose position in the epoch is not saved; its generator is."""

    def __init__(self) -> None:
        super().__init__()
        data = TensorDataset(torch.arange(SAMPLES))
        self.loader = DataLoader(data, BATCH, shuffle=True, generator=torch.Generator().manual_seed(6))
        self.batches: Any = None

    def step(self) -> State:
        if self.batches is None:
            self.batches = iter(self.loader)
        try:
            (ids,) = next(self.batches)
        except StopIteration:
            self.batches = iter(self.loader)
            (ids,) = next(self.batches)
        self.order.permutation, self.order.used = ids, 0
        return super().step()

    def state_dict(self) -> State:
        return {**super().state_dict(), "loader": self.loader.generator.get_state()}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.loader.generator.set_state(state["loader"])


class Accumulates(Everything):
    """Two batches an update: in the middle of a window the gradients are state too."""

    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Linear(4, 2)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.count = 0

    def step(self) -> State:
        ids = torch.arange(BATCH) + self.count % 5 * BATCH
        loss = nn.functional.cross_entropy(self.model(X[ids]), Y[ids])
        loss.backward()
        self.count += 1
        if self.count % 2 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return {"loss": loss}

    def state_dict(self) -> State:
        return {"model": self.model.state_dict(), "count": self.count}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.count = state["count"]


class Plain:
    """A weight, and what the loops below add to it."""

    def __init__(self) -> None:
        torch.manual_seed(1)  # noqa: TID251
        self.model = nn.Linear(4, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.i = 0

    def scale(self) -> Any:
        """What a step's samples are multiplied by."""
        return 1.0

    def step(self) -> State:
        self.optimizer.zero_grad()
        loss = (self.model(X[self.i % 5 * BATCH :][:BATCH] * self.scale()) - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.i += 1
        return {"loss": loss}

    def state_dict(self) -> State:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict(), "i": self.i}

    def load_state_dict(self, state: State) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.i = state["i"]


class Coincides(Plain):
    """A counter that is not saved, and has the value of one that is."""

    def __init__(self) -> None:
        super().__init__()
        self.k = 0

    def scale(self) -> Any:
        self.k += 1
        return 1 + self.k / 8


class Hidden(Plain):
    """A buffer that is in no state_dict, and has the value of the optimizer's step."""

    def __init__(self) -> None:
        super().__init__()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.model.register_buffer("c", torch.zeros(()), persistent=False)

    def scale(self) -> Any:
        self.model.c += 1
        return self.model.c


class Recent(Plain):
    """The last samples, in a deque that is empty at the begin."""

    def __init__(self) -> None:
        super().__init__()
        self.recent: Any = deque(maxlen=3)

    def scale(self) -> Any:
        self.recent.append((self.i, X[self.i] * 2))
        return sum(x for _, x in self.recent)


class RecentList(Recent):
    """In a list of tensors, longer than ten."""

    def __init__(self) -> None:
        super().__init__()
        self.recent = []

    def scale(self) -> Any:
        self.recent = [*self.recent, X[self.i] * 2]
        return sum(x * (place + 1) for place, x in enumerate(self.recent))


class Streams(Plain):
    """Generators of every library, each in a place of its own."""

    KINDS: ClassVar[State] = {
        "torch": lambda: torch.Generator().manual_seed(1),
        "numpy": lambda: np.random.default_rng(1),
        "old": lambda: np.random.RandomState(1),
        "python": lambda: random.Random(1),
    }
    KIND = "torch"

    def __init__(self) -> None:
        super().__init__()
        self.streams = {"noise": self.KINDS[self.KIND]()}

    def scale(self) -> Any:
        one = self.streams["noise"]
        return (
            torch.rand(4, generator=one)
            if self.KIND == "torch"
            else float(one.random_sample() if self.KIND == "old" else one.random())
        )


for _name in Streams.KINDS:
    globals()[f"Streams_{_name}"] = type(f"Streams_{_name}", (Streams,), {"KIND": _name, "__module__": __name__})


class Frames(Plain):
    """A generator function, whose place nothing can set."""

    def __init__(self) -> None:
        super().__init__()
        self.stream = self.rising()

    @staticmethod
    def rising() -> Iterator[float]:
        place = 0
        while True:
            yield 1 + place / 8
            place += 1

    def scale(self) -> Any:
        return next(self.stream)


COUNT = 0


class Counts(Plain):
    """A counter of the module."""

    def scale(self) -> Any:
        global COUNT
        COUNT += 1
        return 1 + COUNT / 8


class Halves(Plain):
    """Saves its weights in another type."""

    def state_dict(self) -> State:
        return {**super().state_dict(), "model": {name: x.half() for name, x in self.model.state_dict().items()}}


class HalvesMoments(Plain):
    """Saves the optimizer's state in another type."""

    def state_dict(self) -> State:
        state = super().state_dict()
        entries = state["optimizer"]["state"]  # the entries themselves are the optimizer's own
        entries.update({key: {"momentum_buffer": one["momentum_buffer"].bfloat16()} for key, one in entries.items()})
        return state


class CastsOnLoading(Plain):
    """The file is whole, and the load makes it narrow."""

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for entry in self.optimizer.state.values():
            entry["momentum_buffer"] = entry["momentum_buffer"].half()


class Ends(Plain):
    """Has only so many steps."""

    def step(self) -> State:
        if self.i == 5:
            raise StopIteration
        return super().step()


class EndsWhenResumed(Plain):
    """The limit of a run is counted from its load."""

    left = 99

    def step(self) -> State:
        if self.left == 0:
            raise StopIteration
        self.left -= 1
        return super().step()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.left = 3


class Precise(Plain):
    """Counts in the precision of decimal numbers, which is in no object of Python."""

    def __init__(self) -> None:
        super().__init__()
        self.notes = {f"note{place}": 0 for place in range(9)}  # differ after a load, and change nothing

    def scale(self) -> Any:
        decimal.getcontext().prec += 1
        return decimal.getcontext().prec / 8

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.notes = dict.fromkeys(self.notes, 1)


class PreciseAndCounting(Precise):
    """Has counters too, which are not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = dict.fromkeys("abcdef", 0)

    def scale(self) -> Any:
        self.counts = {name: count + 1 for name, count in self.counts.items()}
        return super().scale() + sum(self.counts.values()) / 16


class Slow:
    """An optimizer around another, with slow weights; they are saved as bfloat16."""

    def __init__(self, inner: torch.optim.Optimizer) -> None:
        self.inner = inner
        self.fast = [one for group in inner.param_groups for one in group["params"]]
        self.slow = [one.detach().clone() for one in self.fast]
        self.sizes = [torch.tensor(float(one.numel())) for one in self.slow]

    @torch.no_grad()
    def step(self) -> None:
        self.inner.step()
        for slow, fast in zip(self.slow, self.fast, strict=True):
            slow.lerp_(fast, 0.5)
            fast.lerp_(slow, 0.1)

    def state_dict(self) -> State:
        return {"inner": self.inner.state_dict(), "slow": [one.bfloat16() for one in self.slow]}

    def load_state_dict(self, state: State) -> None:
        self.inner.load_state_dict(state["inner"])
        self.slow = [one.float() for one in state["slow"]]

    def zero_grad(self) -> None:
        self.inner.zero_grad()


class SlowWeights(Plain):
    def __init__(self) -> None:
        super().__init__()
        self.optimizer = Slow(torch.optim.SGD(self.model.parameters(), lr=0.1))  # type: ignore[assignment]


class Page:
    """Made in the first step of a process."""

    def __init__(self, first: int) -> None:
        self.first = first


class MakesAPage(Plain):
    """Notes where this process began."""

    def __init__(self) -> None:
        super().__init__()
        self.page: Any = None

    def scale(self) -> Any:
        self.page = self.page or Page(self.i)
        return 1.0


class SavesWithADraw(Everything):
    """To save draws from a generator: the run that saves is another one."""

    def state_dict(self) -> State:
        torch.rand(1)
        return super().state_dict()


class Unseeded(Everything):
    """Starts from the system's own seed."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng()


class LoadsNothing(Everything):
    def load_state_dict(self, state: State) -> None:
        pass


class KeepsThePast(Everything):
    """Not strict, and one key is never read."""

    def state_dict(self) -> State:
        return {**super().state_dict(), "spare": 1}


class OwnFile(Everything):
    """Its own file."""

    def save(self, path: str) -> None:
        torch.save({"version": 1, "run": super().state_dict()}, path)

    def load(self, path: str) -> None:
        super().load_state_dict(torch.load(path, weights_only=True)["run"])

    state_dict = load_state_dict = None  # type: ignore[assignment]


class OnlySaves(Everything):
    """Can write a file of its own, and reads none."""

    def save(self, path: str) -> None:
        raise AssertionError("who can load it?")


class Raises(Everything):
    def step(self) -> State:
        if self.order.used == 12:
            raise ValueError("the third batch")
        return super().step()


class Hangs(Everything):
    def step(self) -> State:
        if self.order.used == 12:
            time.sleep(60)
        return super().step()


class Leaves(Everything):
    def step(self) -> State:
        if self.order.used == 12:
            raise SystemExit("the third batch")
        return super().step()


class Dies(Everything):
    def step(self) -> State:
        if self.order.used == 12:
            os._exit(3)
        return super().step()


class CannotSave(Everything):
    def state_dict(self) -> State:
        return {"function": lambda: 0}


class CannotLoad(Everything):
    def load_state_dict(self, state: State) -> None:
        raise KeyError("nothing")


class CannotBeMade(Everything):
    def __init__(self) -> None:
        raise RuntimeError("no data")


class NoRun:
    def step(self) -> None:
        pass


class HoldsALock(Plain):
    """Saves what no file can hold."""

    def state_dict(self) -> State:
        return {**super().state_dict(), "sampler": {"lock": threading.Lock(), "used": self.i}}


class Book:
    """Says itself that it cannot be saved."""

    def __reduce__(self) -> Any:
        raise ValueError("not now")


class RefusesToBeSaved(Plain):
    def state_dict(self) -> State:
        return {**super().state_dict(), "book": Book()}


class Settings:
    """Of a class that weights_only does not know."""

    def __init__(self) -> None:
        self.rate = 0.1


class SavesAnObject(Plain):
    def state_dict(self) -> State:
        return {**super().state_dict(), "settings": Settings()}


class HoldsItself(Plain):
    """A saved state with a circle in it."""

    def state_dict(self) -> State:
        state = super().state_dict()
        state["whole"] = state
        return state


class Large:
    """A state of 96 MiB, two thirds of which are made anew at every step; it writes down the peak of its process."""

    STATE = 96
    FORGETS: ClassVar[str] = ""

    def __init__(self) -> None:
        self.base = _peak()
        self.weight, self.moment = torch.full((2048, 2048), 0.5), torch.zeros(2048, 2048)
        self.last = torch.zeros(4, 2048, 2048)

    def step(self) -> Any:
        self._note("step")
        del self.last
        self.last = torch.zeros(4, 2048, 2048)
        self.last[0].copy_(self.weight)
        self.moment.mul_(0.9).add_(self.weight, alpha=0.1)
        self.weight.sub_(self.moment, alpha=0.01)
        return self.weight[0, 0]

    def state_dict(self) -> State:
        return {"weight": self.weight, "moment": self.moment, "last": self.last}

    def load_state_dict(self, state: State) -> None:
        for name in state:
            if name != self.FORGETS:
                getattr(self, name).copy_(state[name])
        self._note("load")

    def _note(self, what: str) -> None:
        with open(os.environ["AUDIT_PEAKS"], "a") as file:
            file.write(f"{os.getpid()} {what} {_peak() - self.base}\n")


class ForgetsALot(Large):
    FORGETS = "moment"


def _peak() -> int:
    """The most memory that this process has had, in MiB."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM")) >> 10
