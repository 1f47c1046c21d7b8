"""Noise for several workers, right and written differently."""

RIGHT = {
    "hashed": (
        """
import hashlib
from numpy.random import Generator, Philox
def keyed(*numbers):
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return Generator(Philox(key=int.from_bytes(digest[:16], "big")))
def worker_generator(seed, epoch, worker_id):
    return keyed(seed, epoch, worker_id)
sample_generator = lambda seed, epoch, index: keyed(seed, epoch, index)
def augment(sample, generator):
    sample = sample.copy()
    sample += generator.standard_normal(sample.shape, dtype=sample.dtype)
    return sample
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    result = [None] * (len(order) - start)
    for worker_id in reversed(range(num_workers)):
        for p in range(worker_id, len(order), num_workers):
            if p >= start:
                result[p - start] = augment(samples[order[p]], sample_generator(seed, epoch, order[p]))
    return result
""",
        ("numpy",),
    ),
    "spawned": (
        """
import numpy as np
class Stream:
    def __init__(self, sequence):
        self.rng = np.random.RandomState(np.random.MT19937(sequence))
    def draw(self, shape):
        return self.rng.normal(size=shape)
def worker_generator(seed, epoch, worker_id):
    return Stream(np.random.SeedSequence([seed, epoch]).spawn(worker_id + 1)[-1])
def sample_generator(seed, epoch, index):
    return Stream(np.random.SeedSequence([1, index, epoch, seed]))
def augment(sample, generator):
    return np.add(sample, generator.draw(np.shape(sample)), dtype=sample.dtype, casting="same_kind")
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    augmented = []
    while start < len(order):
        augmented += [augment(samples[order[start]], sample_generator(seed, epoch, order[start]))]
        start += 1
    return augmented
""",
        ("numpy",),
    ),
    "through NumPy": (
        """
from numpy import random
import torch
def worker_generator(seed, epoch, worker_id):
    return random.default_rng([seed, epoch, worker_id])
def sample_generator(seed, epoch, index):
    return torch.Generator().manual_seed(int(random.SeedSequence([seed, epoch, index]).generate_state(1)[0]))
def augment(sample, generator):
    if isinstance(generator, random.Generator):
        return sample + torch.from_numpy(generator.standard_normal(tuple(sample.shape))).to(sample.dtype)
    return sample + torch.empty_like(sample).normal_(generator=generator)
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    return [augment(samples[i], sample_generator(seed, epoch, i)) for i in order[start:]]
""",
        ("torch",),
    ),
}
