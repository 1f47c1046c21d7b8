"""Loops for the tests of the audit: what loaders deliver, what a hash seed decides, what is lost without harm."""

from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from parity_tests.audit.loops import BATCH, SAMPLES, Plain, State, X


class Batch:
    """A batch of the user's own class."""

    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def pin(self) -> None:
        """Something that a tuple does not have."""


class Numbered(Dataset[torch.Tensor]):
    """Numbers, with what the dataset itself counts or draws added where it is asked for."""

    def __init__(self, noise: bool) -> None:
        self.generator = np.random.default_rng(1) if noise else None

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> torch.Tensor:
        drawn = 0.0 if self.generator is None else float(self.generator.random())
        return torch.tensor(1 + index / SAMPLES + drawn)


class Loads(Plain):
    """A factor from a loader in each step; the position in the epoch is counted, and skipped to after a load."""

    workers, persistent, noise, shuffle = 0, False, False, False

    def __init__(self) -> None:
        super().__init__()
        self.data = DataLoader(
            Numbered(self.noise),
            BATCH,
            shuffle=self.shuffle,
            num_workers=self.workers,
            collate_fn=self.collate,
            persistent_workers=self.persistent,
            generator=torch.Generator().manual_seed(1),
        )
        self.batches = iter(self.data)
        self.used = 0

    @staticmethod
    def collate(samples: list[torch.Tensor]) -> Any:
        return torch.stack(samples)

    def scale(self) -> Any:
        if self.used == SAMPLES // BATCH:
            self.batches, self.used = iter(self.data), 0
        self.used += 1
        batch = next(self.batches)
        return (batch.x if isinstance(batch, Batch) else batch).mean()

    def state_dict(self) -> State:
        return {**super().state_dict(), "used": self.used}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.batches, self.used = iter(self.data), state["used"]
        for _ in range(self.used):
            next(self.batches)


class Persists(Loads):
    """Workers that pass over the data again and again, in another order each time."""

    workers, persistent, shuffle = 1, True, True


class SkipsLate(Loads):
    """Skips what was used only when the first batch after a load is asked for."""

    shuffle = True

    def __init__(self) -> None:
        super().__init__()
        self.begin()

    def begin(self) -> None:
        self.start = self.data.generator.get_state()
        self.batches, self.used = iter(self.data), 0

    def scale(self) -> Any:
        if self.used == SAMPLES // BATCH:
            self.begin()
        self.used += 1
        return next(self.batches).mean()

    def state_dict(self) -> State:
        return {**super().state_dict(), "start": self.start}

    def load_state_dict(self, state: State) -> None:
        Plain.load_state_dict(self, state)
        self.data.generator.set_state(state["start"])
        self.begin()
        self.used = state["used"]
        self.batches = islice(self.batches, self.used, None)


class TrainsAgain(SkipsLate):
    """Fetches the last batch once more, and trains on it."""

    def scale(self) -> Any:
        found = super().scale()
        return (found + next(self.batches).mean()) / 2 if self.again else found

    again = False

    def step(self) -> State:
        found = super().step()
        self.again = False
        return found

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict({**state, "used": state["used"] - 1})
        self.used, self.again = state["used"], True


class DrawsInWorkers(Loads):
    """Each pass has a worker of its own, which copies the dataset's generator; batches of the user's own class."""

    workers, noise = 1, True

    def load_state_dict(self, state: State) -> None:
        Plain.load_state_dict(self, state)
        self.data = DataLoader(
            torch.utils.data.Subset(self.data.dataset, range(state["used"] * BATCH, SAMPLES)),
            BATCH,
            num_workers=1,
            collate_fn=self.collate,
        )
        self.batches, self.used = iter(self.data), state["used"]
        self.data = DataLoader(Numbered(True), BATCH, num_workers=1, collate_fn=self.collate)

    @staticmethod
    def collate(samples: list[torch.Tensor]) -> Any:
        return Batch(torch.stack(samples))


class HashedNoise(Plain):
    """A stream that is seeded by the hash of its name."""

    def __init__(self) -> None:
        super().__init__()
        self.own = np.random.default_rng(hash("noise") % 2**32)

    def scale(self) -> Any:
        return 1 + float(self.own.random())

    def state_dict(self) -> State:
        return {**super().state_dict(), "own": self.own.bit_generator.state}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.own.bit_generator.state = state["own"]


class ForgetsHashedNoise(HashedNoise):
    load_state_dict = Plain.load_state_dict


class GroupsFromASet(Plain):
    """Adam's groups in the order of a set of names: a file fits only a process with the same hash seed."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.ModuleDict({f"part{place}": torch.nn.Linear(4, 4) for place in range(6)})
        groups: list[Any] = [{"params": list(self.model[name].parameters())} for name in set(self.model)]
        self.optimizer = torch.optim.Adam(groups, lr=0.1)

    def step(self) -> State:
        self.optimizer.zero_grad()
        x = X[self.i % 5 * BATCH :][:BATCH]
        for part in self.model.values():
            x = x + part(x).tanh()
        loss = (x - 1).square().mean()
        loss.backward()
        self.optimizer.step()
        self.i += 1
        return {"loss": loss}


class Windows(Plain):
    """A sum over windows of five steps, which a new window does not look at; and a note that nothing looks at."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.last = 0.0, 0.0

    def scale(self) -> Any:
        self.total = 1.0 if self.i % 5 == 0 else self.total + self.i
        self.last = self.total / 2
        return 1 + self.total / 16

    def state_dict(self) -> State:
        return {**super().state_dict(), "total": self.total, "last": self.last}

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.total, self.last = state["total"], state["last"]


class SavesWithRounding(Windows):
    """To save moves the weights a little: uninterrupted runs are equal but for rounding."""

    def state_dict(self) -> State:
        state = super().state_dict()
        state["model"] = {name: value.clone() for name, value in state["model"].items()}
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(1 + 1e-6)
        return state


class ForgetsLate(Windows):
    """Forgets the sum from the middle of the run on."""

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict({**state, "total": state["total"] if state["i"] < 6 else 0.0})


class ForgetsAlways(Windows):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict({**state, "total": -1.0})
