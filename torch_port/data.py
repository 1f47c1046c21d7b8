"""Samples, the order of an epoch and the position in it, for a stock `DataLoader`.

Sizes: N training samples, D inputs, B indices.

A data set is the reference's: NumPy arrays, checked and fingerprinted once (`numpy_ref.data`). What a `DataLoader` asks
for is here: a dataset of samples by (epoch, index), so that a sample's noise needs no state, and a batch sampler whose
position counts samples that the loop has consumed, not those that workers have already fetched. Iterating over the
sampler is the reference's `epoch_order` and `window_indices`, and its `advance` is theirs.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from numpy_ref.checks import whole_number
from numpy_ref.data import Dataset, Position
from torch_port.rng import StreamState, draw_noise, draw_permutation, generator_from, init_stream, stream_state

Place = tuple[int, int]  # epoch, index of a training sample


class Batch(NamedTuple):
    """Some training samples."""

    inputs: torch.Tensor  # (B, D) float32
    labels: torch.Tensor  # (B,) int64
    samples: torch.Tensor  # (B,) int64, their indices


class Samples(TorchDataset[Batch]):
    """The training samples by epoch and index, the noise of that epoch added; holds no random state.

    Args:
        data: the data set.
        seed: of the noise.
        noise: half its width; 0 for none.
    """

    def __init__(self, data: Dataset, *, seed: int = 0, noise: float = 0.0) -> None:
        self.data, self.seed, self.noise = data, seed, noise

    def __len__(self) -> int:
        return len(self.data.labels)

    def __getitem__(self, place: Place) -> Batch:
        return self.__getitems__([place])

    def __getitems__(self, places: list[Place]) -> Batch:
        """A whole batch of one epoch at once."""
        epoch, indices = places[0][0], [index for _, index in places]
        x = torch.from_numpy(self.data.inputs[indices])  # a copy: the data set itself is read-only
        if self.noise:
            u = draw_noise(self.seed, epoch, indices, x.shape[1])
            x = x + (2 * u - 1) * torch.tensor(self.noise, dtype=x.dtype, device=x.device)
        return Batch(x, torch.from_numpy(self.data.labels[indices]), torch.tensor(indices, device="cpu"))


class PositionedSampler(Sampler[list[Place]]):
    """Batches of the rest of an epoch; iterating draws from a copy of the order's generator, and moves nothing.

    Args:
        samples: N.
        batch_size: B, at least 1; fewer at the end of an epoch.
        order: the order stream at the start of the epoch.
        position: where the loop stands.

    Raises:
        ValueError: a number is out of range, or the position lies outside the epoch.

    Attributes:
        order: the order stream at the start of this epoch.
        position: epoch, and samples consumed in it; moved by `advance` alone.

    Resume: these two are what a checkpoint holds. Any number of new iterators, in any number of workers, goes on alike.
    """

    def __init__(self, samples: int, batch_size: int, order: StreamState, position: Position) -> None:
        self.samples = whole_number("samples", samples, 1, 2**63)
        self.batch_size = whole_number("batch_size", batch_size, 1, 2**63)
        whole_number("position.epoch", position.epoch, 0, 2**63)
        whole_number("position.consumed", position.consumed, 0, samples)
        self.order, self.position = order, position

    def __iter__(self) -> Iterator[list[Place]]:
        epoch, consumed = self.position
        rest = draw_permutation(generator_from(self.order), self.samples)[consumed:].tolist()
        for start in range(0, len(rest), self.batch_size):
            yield [(epoch, index) for index in rest[start : start + self.batch_size]]

    def __len__(self) -> int:
        return -(-(self.samples - self.position.consumed) // self.batch_size)

    def advance(self, count: int) -> None:
        """Consume `count` samples; the end of an epoch is at once the start of the next.

        Raises:
            ValueError: so many samples are not left in this epoch.
        """
        epoch, consumed = self.position
        consumed += whole_number("count", count, 1, self.samples - consumed + 1)
        if consumed < self.samples:
            self.position = Position(epoch, consumed)
            return
        generator = generator_from(self.order)
        draw_permutation(generator, self.samples)
        self.order, self.position = stream_state(generator), Position(epoch + 1, 0)


def init_loader(samples: Samples, sampler: PositionedSampler, *, workers: int = 0) -> DataLoader[Any]:
    """A stock loader over the rest of the sampler's epoch; it yields `Batch`es.

    The seed that a loader hands to its workers is drawn from a generator of this epoch's own, since making an iterator
    draws it: a stream that the run goes on with would be moved by that.

    Args:
        samples: what is loaded.
        sampler: in which order, and from where.
        workers: processes that load ahead; 0 loads in this one. No count changes any sample.

    Raises:
        ValueError: `workers` is no count.
    """
    workers = whole_number("workers", workers, 0, 2**15)
    seeds = generator_from(init_stream(samples.seed, f"workers of epoch {sampler.position.epoch}"))
    return DataLoader(samples, batch_sampler=sampler, num_workers=workers, collate_fn=_as_it_is, generator=seeds)


def _as_it_is(batch: Any) -> Any:
    """The samples come together already."""
    return batch
