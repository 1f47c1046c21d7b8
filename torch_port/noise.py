"""Stateless noise on any device: a function of (seed, epoch, sample index), the same bits as in `numpy_ref.noise`.

Augmentation noise is no stream, and there is nothing of it to save: any order of the samples gives the same rows.
"""

import numpy as np
import numpy.typing as npt
import torch

from numpy_ref.checks import whole_number

__all__ = ["draw_noise", "philox"]

_PHILOX_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_32 = 0xFFFFFFFF
_LOW_16 = 0xFFFF


def philox(counter: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
    """Scramble counters into words: Philox 4x32 with 10 rounds, in integer operations only.

    Ten times, for a counter (a, b, c, d) and a key (k, m):
        p = 0xD2511F53 * a,  q = 0xCD9E8D57 * c          64-bit products, in halves high and low
        (a, b, c, d) = (high(q) ^ b ^ k, low(q), high(p) ^ d ^ m, low(p))
        (k, m) = (k + 0x9E3779B9, m + 0xBB67AE85)        modulo 2**32

    Args:
        counter: (n, 4) uint32, on any device.
        key: (2,) uint32.

    Returns:
        (n, 4) uint32, one row for each counter, on the counters' device.

    Mirror: bitwise.

    Example:
        >>> words = philox(torch.zeros((1, 4), dtype=torch.uint32), torch.zeros(2, dtype=torch.uint32))
        >>> " ".join(f"{word:08x}" for word in words[0].tolist())
        '6627e8d5 e169c58d bc57ac4c 9b00dbd8'
    """
    for where, tensor, expected in (("counter", counter, "(n, 4)"), ("key", key, "(2,)")):
        fits = tensor.ndim == 2 and tensor.shape[1] == 4 if where == "counter" else tensor.shape == (2,)
        if tensor.dtype != torch.uint32 or not fits:
            found = f"{tensor.dtype} {tuple(tensor.shape)}"
            raise ValueError(f"{where}: expected torch.uint32 of shape {expected}, found {found}.")
    a, b, c, d = counter.to(torch.int64).unbind(1)
    k, m = key.tolist()
    for _ in range(10):
        high_p, low_p = _product(_PHILOX_MULTIPLIERS[0], a)
        high_q, low_q = _product(_PHILOX_MULTIPLIERS[1], c)
        a, b, c, d = high_q ^ b ^ k, low_q, high_p ^ d ^ m, low_p
        k, m = (k + _PHILOX_KEY_STEPS[0]) % 2**32, (m + _PHILOX_KEY_STEPS[1]) % 2**32
    return torch.stack([a, b, c, d], dim=1).to(torch.uint32)


def draw_noise(seed: int, epoch: int, indices: torch.Tensor | npt.ArrayLike, n: int) -> torch.Tensor:
    """Draw `n` numbers in [0, 1) for each sample, from nothing but (seed, epoch, sample index).

    key     = (seed mod 2**32, seed div 2**32)
    counter = (block, epoch, index mod 2**32, index div 2**32)     block 0, 1, ...: four numbers each
    number  = (word div 2**8) * 2**-24

    Returns:
        (B, n) float32, on the device of the indices when these are a tensor, otherwise on the CPU. A row depends on its
        own index only, and begins in the same way for every `n`.

    Mirror: bitwise, on every device.

    Example:
        >>> draw_noise(42, 0, [5, 3], 2)
        tensor([[0.4825, 0.4091],
                [0.0403, 0.4456]])
        >>> draw_noise(42, 0, torch.tensor([3]), 1)
        tensor([[0.0403]])
    """
    seed = whole_number("seed", seed, 0, 2**64)
    epoch = whole_number("epoch", epoch, 0, 2**32)
    n = whole_number("n", n, 0, 2**34 + 1)
    device = indices.device if isinstance(indices, torch.Tensor) else torch.device("cpu")
    samples = np.asarray(indices.tolist() if isinstance(indices, torch.Tensor) else indices)
    if samples.size == 0:
        samples = samples.astype(np.int64)  # an empty list arrives as float64
    if samples.ndim != 1 or samples.dtype.kind not in "iu":
        raise ValueError(f"indices: expected a list of integers, found {samples.dtype} of shape {samples.shape}.")
    if (samples < 0).any():
        row = int((samples < 0).argmax())
        raise ValueError(f"indices: expected sample indices of at least 0, found {int(samples[row])} at {row}.")
    wide = torch.from_numpy(samples.astype(np.uint64).view(np.int64)).to(device)
    blocks = -(-n // 4)
    counter = torch.empty((samples.size, blocks, 4), dtype=torch.int64, device=device)
    counter[:, :, 0] = torch.arange(blocks, dtype=torch.int64, device=device)
    counter[:, :, 1] = epoch
    counter[:, :, 2] = (wide & _LOW_32)[:, None]
    counter[:, :, 3] = (wide >> 32 & _LOW_32)[:, None]
    key = torch.tensor([seed % 2**32, seed >> 32], dtype=torch.uint32, device="cpu")
    words = philox(counter.reshape(-1, 4).to(torch.uint32), key).to(torch.int64)
    numbers = (words >> 8).to(torch.float32) * 2.0**-24
    return numbers.reshape(samples.size, 4 * blocks)[:, :n].contiguous()


def _product(multiplier: int, words: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The high and low 32 bits of multiplier * words; in halves of the multiplier, since int64 has but 63 bits."""
    low = (multiplier & _LOW_16) * words
    high = (multiplier >> 16) * words + (low >> 16)
    return high >> 16, (high & _LOW_16) << 16 | low & _LOW_16
