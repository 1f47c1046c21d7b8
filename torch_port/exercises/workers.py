"""Noise for several workers: independent streams that every run of one seed draws again.

Write four functions. `seed`, `epoch`, `worker_id` and `index` are ints from 0 to 2**32 - 1. A stream is the sequence of
numbers that a new generator gives.
"""

import hashlib

import torch


def worker_generator(seed: int, epoch: int, worker_id: int) -> torch.Generator:
    """A new generator for what one worker draws in one epoch.

    Args:
        seed: of the run.
        epoch: whose draws these are.
        worker_id: which worker draws them.

    Returns:
        A generator that depends on the three numbers and on nothing else: the same three always begin the same stream,
        in any process, at any time and whatever was drawn before. Any other three begin another stream. (A generator on
        the CPU takes in 32 bits of its seed, so any two streams have a chance of 1 in 2**32 to be the same.)
    """
    return _generator(seed, 0, epoch, worker_id)


def sample_generator(seed: int, epoch: int, index: int) -> torch.Generator:
    """A new generator for the noise of one sample in one epoch, whichever worker adds it.

    Args:
        seed: of the run.
        epoch: whose noise this is.
        index: of the sample in the data.

    Returns:
        A generator that depends on the three numbers and on nothing else, as `worker_generator` does on its own.
    """
    return _generator(seed, 1, epoch, index)


def augment(sample: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Add standard normal noise, drawn from the generator.

    Args:
        sample: a tensor of float32 or float64; left as it is.
        generator: what one of the two functions above returned. It moves on: the next call gets other noise.

    Returns:
        A new tensor of the sample's shape and type, with its own noise in each element.
    """
    noise = torch.randn(sample.shape, generator=generator, dtype=torch.float64)
    return sample + noise.to(sample.dtype)


def augmented_epoch(
    samples: list[torch.Tensor], order: list[int], seed: int, epoch: int, num_workers: int, start: int
) -> list[torch.Tensor]:
    """What a loader delivers from a position of an epoch on; position p is the work of worker p % num_workers.

    Args:
        samples: the data, a list of tensors of any shapes; left as it is.
        order: the epoch's order, a list of indices into `samples`, some of which may come again; left as it is.
        seed: of the run.
        epoch: which epoch it is.
        num_workers: how many workers share the positions, at least 1.
        start: the first position that is wanted, from 0 to len(order).

    Returns:
        One tensor for each of the positions start, start + 1, ..., len(order) - 1: `samples[order[position]]`,
        augmented by noise from a new `sample_generator` of its index. Neither num_workers nor start changes the noise.
    """
    augmented = {}
    for worker_id in range(num_workers):
        for position in range(start, len(order)):
            if position % num_workers == worker_id:
                index = order[position]
                augmented[position] = augment(samples[index], sample_generator(seed, epoch, index))
    return [augmented[position] for position in range(start, len(order))]


def _generator(seed: int, *key: int) -> torch.Generator:
    """A generator of a seed and further numbers, all of which are mixed."""
    digest = hashlib.sha256(repr((seed, *key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))
