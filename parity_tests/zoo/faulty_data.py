"""Faults of generators, of the order of the data, of the position in it, and of a loader's workers."""

import json
import random  # noqa: TID251 - the loops are users': they draw from the process's generators
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from parity_tests.zoo.base import (
    BATCH,
    SAMPLES,
    Accumulating,
    Dropping,
    Loop,
    Noisy,
    Order,
    State,
    X,
    fault,
    get_numpy,
    seed_process,
    set_numpy,
)


@fault("rng/torch", "B40", "torch's generator, from which dropout draws, is not in the file")
class ForgetsTorchGenerator(Dropping):
    streams = ()


class NumpyNoise(Loop):
    """Noise on the inputs from NumPy's global generator."""

    streams = ("numpy",)

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        return X[ids] + torch.from_numpy(np.random.standard_normal((BATCH, 1))).float()  # noqa: NPY002 - a user's


@fault("rng/numpy", "B40", "NumPy's global generator, from which noise is drawn, is not in the file")
class ForgetsNumpyGenerator(NumpyNoise):
    streams = ()


class PythonFlips(Loop):
    """Flips the inputs' signs by python's generator."""

    streams = ("python",)

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        return X[ids] * (1.0 if random.random() < 0.5 else -1.0)


@fault("rng/python", "B40", "python's generator, which flips the inputs, is not in the file")
class ForgetsPythonGenerator(PythonFlips):
    streams = ()


@fault("rng/torch", "B41", "the generator is restored only where batches are skipped: not at an epoch's end", at=10)
class RestoresOnlyInMidEpoch(Dropping):
    def load_state_dict(self, state: State) -> None:
        if state["order"]["consumed"] == SAMPLES:
            state["rng"] = {}
        super().load_state_dict(state)


@fault("rng/torch", "B43", "batches are skipped by fetching them, which draws from the restored generator")
class SkipsByFetching(Loop):
    streams = ("torch",)

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        return X[ids] + 0.1 * torch.randn(len(ids), 1)

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for ids in self.order.permutation[: self.order.consumed].split(BATCH):
            self.inputs(ids)


@fault("rng/torch", "B44", "everything is seeded again after the load")
class SeedsAfterLoading(Dropping):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        seed_process()


@fault("load", "B46", "the generator's state has another dtype after the load", raises=True)
class ConvertsTheState(Dropping):
    def load_state_dict(self, state: State) -> None:
        state["rng"] = {"torch": state["rng"]["torch"].long()}
        super().load_state_dict(state)


@fault("ranks[1]", "B47", "each rank has a generator, and only the first one's is in the file")
class SavesTheFirstRank(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.ranks = [self.noise, torch.Generator().manual_seed(8)]

    def draw(self) -> torch.Tensor:
        return torch.cat([torch.randn(2, generator=self.ranks[0]), torch.randn(1, generator=self.ranks[1])])


@fault("load", "B49", "python's state went through JSON, which has no tuples", raises=True)
class StoresAsJson(PythonFlips):
    def state_dict(self) -> State:
        state = super().state_dict()
        return state | {"rng": {"python": json.loads(json.dumps(state["rng"]["python"]))}}


@fault("rng/numpy", "B50", "a generator that cannot be restored is passed over")
class SwallowsTheFailure(NumpyNoise):
    def state_dict(self) -> State:
        return super().state_dict() | {"rng": {"numpy": get_numpy() | {"rest": []}}}

    def load_state_dict(self, state: State) -> None:
        kept = state.pop("rng")["numpy"]
        super().load_state_dict(state)
        with suppress(Exception):
            set_numpy(kept)


@fault("noise", "B52", "the second of a pair of normals, which the legacy generator keeps, is not in the file")
class DropsTheSecondNormal(Noisy):
    def make_noise(self) -> Any:
        return np.random.RandomState(7)

    def draw(self) -> torch.Tensor:
        return torch.from_numpy(self.noise.standard_normal(3)).float()

    @property
    def noise_state(self) -> Any:
        _, key, position, *_ = self.noise.get_state()
        return {"key": key.tolist(), "position": position}

    @noise_state.setter
    def noise_state(self, state: Any) -> None:
        self.noise.set_state(("MT19937", np.array(state["key"], np.uint32), state["position"]))


class NumpyGenerator(Noisy):
    """An odd number of draws of 32 bits from PCG64 in each step."""

    def make_noise(self) -> Any:
        return np.random.default_rng(7)

    def draw(self) -> torch.Tensor:
        return torch.from_numpy(self.noise.integers(-5, 5, 3, dtype=np.int32)).float()

    @property
    def noise_state(self) -> Any:
        return self.noise.bit_generator.state

    @noise_state.setter
    def noise_state(self, state: Any) -> None:
        self.noise.bit_generator.state = state


@fault("noise", "B52", "the half word that PCG64 keeps is not in the file")
class DropsTheHalfWord(NumpyGenerator):
    def state_dict(self) -> State:
        state = super().state_dict()
        state["noise_state"] |= {"has_uint32": 0, "uinteger": 0}
        return state


@fault("noise", "B53", "integers of 128 bits go through an array of floats")
class StoresWideIntegersAsFloats(NumpyGenerator):
    def state_dict(self) -> State:
        state = super().state_dict()
        words = state["noise_state"]["state"]
        return state | {"words": torch.tensor([float(words["state"]), float(words["inc"])], dtype=torch.float64)}

    def load_state_dict(self, state: State) -> None:
        wide, increment = (int(word) for word in state["words"].tolist())
        state["noise_state"]["state"] = {"state": wide, "inc": increment}
        super().load_state_dict(state)


@fault("order.generator", "B55", "shuffles are drawn in a fork that starts from the seed in each process")
class ForksFromTheSeed(Loop):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.order.generator = Order().generator


@fault("rng/torch", "B56", "an evaluation after the load draws from the training generator")
class EvaluatesOnResume(Dropping):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for _ in DataLoader(range(SAMPLES), batch_size=BATCH):  # an iterator draws its base seed
            pass


class EpochOrder(Order):
    """The order is a function of the epoch alone."""

    def shuffled(self) -> torch.Tensor:
        return torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(100 + self.epoch))

    def at(self, epoch: int, consumed: int) -> None:
        self.epoch = epoch
        self.permutation = self.shuffled()
        self.consumed = consumed


class OrderedByEpoch(Loop):
    make_order = lambda self: EpochOrder()  # noqa: E731


@fault("order.epoch order.permutation", "B58", "the loader that skips starts at epoch 0: another epoch's order")
class ShufflesAsInEpochZero(OrderedByEpoch):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.order.at(0, self.order.consumed)


@fault("order.epoch order.permutation", "B59", "the epoch is counted up before it is over")
class ShufflesAsInTheNextEpoch(OrderedByEpoch):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.order.at(self.order.epoch + 1, self.order.consumed)


class SkippingOrder(Order):
    """Skips the head of an epoch that was trained before."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = 0

    def begin(self) -> None:
        super().begin()
        self.consumed = self.skip


@fault("order.skip", "B61", "the head is skipped in every later epoch too")
class SkipsInEachEpoch(Loop):
    make_order = lambda self: SkippingOrder()  # noqa: E731

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.order.skip = self.order.consumed


class CumulativeOrder(Order):
    """Shuffles what the epoch before left."""

    def shuffled(self) -> torch.Tensor:
        return self.permutation[super().shuffled()]


@fault("order.permutation", "B62", "the order is shuffled on from epoch to epoch, and the resume starts from none")
class ShufflesTheUnshuffled(Loop):
    make_order = lambda self: CumulativeOrder()  # noqa: E731

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.order.permutation = torch.arange(SAMPLES)


@fault("order.epoch order.permutation", "B64", "an epoch that is over is counted again: the next one is skipped", at=10)
class SkipsTheNextEpoch(OrderedByEpoch):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        if self.order.consumed == SAMPLES:
            self.order.at(self.order.epoch + 1, SAMPLES)


@fault("order", "B67", "neither generator nor position is in the file: the head is trained again")
class ReplaysTheHead(Loop):
    forgets = ("order",)


@fault("index", "B68", "an update at each second index, and the index starts at 0", at=8)
class EnumeratesAnew(Accumulating):
    def __init__(self) -> None:
        super().__init__()
        self.index = 0

    def update(self, loss: torch.Tensor) -> None:
        (loss / 2).backward()
        if (self.index + 1) % 2 == 0:
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
        self.index = (self.index + 1) % 5


@fault("noise", "B70", "the generator is advanced by one scalar draw for each sample, not by the draws there were")
class CountsScalarDraws(Noisy):
    values = Loop.values

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        for _ in range(self.steps * BATCH):
            torch.randn((), generator=self.noise)


class WholeWindows(Order):
    """Only as many batches of an epoch as fill windows of two."""

    def __init__(self) -> None:
        super().__init__()
        self.limit = SAMPLES // BATCH // 2 * 2 * BATCH

    def draw(self) -> torch.Tensor:
        if self.consumed >= self.limit:
            self.begin()
        return super().draw()


@fault("order.limit", "B71", "the dropped remainder is computed on what is left of the epoch", at=6)
class DropsAnotherRemainder(Loop):
    make_order = lambda self: WholeWindows()  # noqa: E731

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        batches = (SAMPLES - self.order.consumed) // BATCH
        self.order.limit = min(SAMPLES, self.order.consumed + batches // 2 * 2 * BATCH) - BATCH


class Drawing(Dataset[tuple[torch.Tensor, int]]):
    """Samples with noise, drawn by each worker."""

    def __init__(self) -> None:
        self.generator = np.random.default_rng(11)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index] + float(self.generator.normal()), index


class Working(Loop):
    """Two workers fetch the rest of the epoch, from an iterator that is made when it is needed."""

    workers = 2

    def __init__(self) -> None:
        super().__init__()
        self.data = self.make_data()
        self.iterator: Any = None

    def make_data(self) -> Any:
        return Drawing()

    def make_loader(self, rest: list[int]) -> Any:
        settings: Any = {"num_workers": self.workers, "worker_init_fn": self.init_worker}
        generator = torch.Generator().manual_seed(self.order.epoch)
        return DataLoader(self.data, BATCH, sampler=rest, generator=generator, **settings)

    @staticmethod
    def init_worker(worker: int) -> None:
        """What a worker does first."""

    def inputs(self, ids: torch.Tensor) -> torch.Tensor:
        if self.iterator is None or self.order.consumed == BATCH:
            self.iterator = None  # ends its workers
            self.iterator = iter(self.make_loader(self.order.permutation[self.order.consumed - BATCH :].tolist()))
        batch, found = next(self.iterator)
        assert found.tolist() == ids.tolist()
        return batch


@fault("samples", "B73", "each worker draws from its copy of the dataset's generator, which starts anew at the resume")
class CopiesGeneratorsToWorkers(Working):
    pass


class GlobalNoise(Drawing):
    """Noise from the worker's own NumPy generator."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[index] + float(np.random.standard_normal()), index  # noqa: NPY002 - a user's


@fault("samples", "B74", "a worker's seed is its number: the resume starts its stream again")
class SeedsWorkersByNumber(Working):
    make_data = lambda self: GlobalNoise()  # noqa: E731

    @staticmethod
    def init_worker(worker: int) -> None:
        np.random.seed(worker)  # noqa: NPY002 - a user's


class FirstOfWorker(Drawing):
    """Noise by the seed of the worker and the sample: the same whenever it is asked for."""

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        info = get_worker_info()
        seed = (info.id if info else 0) * SAMPLES + index
        return X[index] + float(np.random.default_rng(seed).normal()), index


@fault("workers samples", "B76", "another number of workers after the load, and noise that depends on them", at=10)
class ChangesTheWorkerCount(Working):
    make_data = lambda self: FirstOfWorker()  # noqa: E731

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.workers = 1


class Stream(IterableDataset[torch.Tensor]):
    """Batches of samples in their order, dealt out to the workers; `offset` of them are skipped."""

    def __init__(self) -> None:
        self.offset = 0

    def __iter__(self) -> Any:
        info = get_worker_info()
        first, apart = (info.id, info.num_workers) if info else (0, 1)
        for batch in range(self.offset + first, SAMPLES // BATCH, apart):
            yield torch.arange(batch * BATCH, (batch + 1) * BATCH)


class Streaming(Loop):
    """Two persistent workers; the loop counts the batches of the epoch."""

    parts = ("model", "optimizer", "schedule")
    values = (*Loop.values, "batches")

    def __init__(self) -> None:
        super().__init__()
        self.stream = Stream()
        self.base = torch.Generator().manual_seed(1)
        self.loader = DataLoader(self.stream, None, num_workers=2, persistent_workers=True, generator=self.base)
        self.order, self.iterator, self.batches = self, None, 0

    def begin(self) -> Any:
        """An iterator over the rest of the epoch; it draws a base seed, which nothing here depends on."""
        iterator = iter(self.loader)
        self.base.manual_seed(1)
        return iterator

    def draw(self) -> torch.Tensor:
        if self.iterator is None:
            self.iterator = self.begin()
        try:
            ids = next(self.iterator)
        except StopIteration:
            self.stream.offset = self.batches = 0
            self.iterator = self.begin()
            ids = next(self.iterator)
        self.batches += 1
        return ids


@fault("samples stream.offset", "B65", "persistent workers keep the offset of the resume in later epochs")
class WorkersKeepTheOffset(Streaming):
    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.stream.offset = self.batches


@fault("samples stream.offset batches", "B77", "the position is set when the workers have started with the old one")
class SetsPositionTooLate(Streaming):
    def __init__(self) -> None:
        super().__init__()
        self.iterator = self.begin()

    def load_state_dict(self, state: State) -> None:
        super().load_state_dict(state)
        self.stream.offset = self.batches
