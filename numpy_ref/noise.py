"""Stateless noise: a function of (seed, epoch, sample index), so that neither a worker nor a resume can move it.

Augmentation noise is no stream, and there is nothing of it to save: any order of the samples gives the same rows.
"""

import numpy as np
import numpy.typing as npt

from numpy_ref.checks import whole_number

__all__ = ["draw_noise", "philox"]

_PHILOX_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_PHILOX_KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
_LOW_32 = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: npt.NDArray[np.uint32], key: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """Scramble counters into words: Philox 4x32 with 10 rounds, in integer operations only.

    Ten times, for a counter (a, b, c, d) and a key (k, m):
        p = 0xD2511F53 * a,  q = 0xCD9E8D57 * c          64-bit products, in halves high and low
        (a, b, c, d) = (high(q) ^ b ^ k, low(q), high(p) ^ d ^ m, low(p))
        (k, m) = (k + 0x9E3779B9, m + 0xBB67AE85)        modulo 2**32

    Args:
        counter: (n, 4) uint32.
        key: (2,) uint32.

    Returns:
        (n, 4) uint32, one row for each counter.

    Raises:
        ValueError: A shape or a type is another.

    Mirror: bitwise.

    Source: Salmon, Moraes, Dror, Shaw 2011, section 3.3; the known answers of the authors' Random123 library.

    Example:
        >>> words = philox(np.zeros((1, 4), np.uint32), np.zeros(2, np.uint32))
        >>> " ".join(f"{word:08x}" for word in words[0].tolist())
        '6627e8d5 e169c58d bc57ac4c 9b00dbd8'
    """
    for where, array, expected in (("counter", counter, "(n, 4)"), ("key", key, "(2,)")):
        fits = array.ndim == 2 and array.shape[1] == 4 if where == "counter" else array.shape == (2,)
        if array.dtype != np.uint32 or not fits:
            raise ValueError(f"{where}: expected uint32 of shape {expected}, found {array.dtype} {array.shape}.")
    a, b, c, d = counter.astype(np.uint64).T
    k, m = (int(word) for word in key)
    for _ in range(10):
        p, q = _PHILOX_MULTIPLIERS[0] * a, _PHILOX_MULTIPLIERS[1] * c
        a, b, c, d = (q >> _HALF) ^ b ^ np.uint64(k), q & _LOW_32, (p >> _HALF) ^ d ^ np.uint64(m), p & _LOW_32
        k, m = (k + _PHILOX_KEY_STEPS[0]) % 2**32, (m + _PHILOX_KEY_STEPS[1]) % 2**32
    return np.stack([a, b, c, d], axis=1).astype(np.uint32)


def draw_noise(seed: int, epoch: int, indices: npt.ArrayLike, n: int) -> npt.NDArray[np.float32]:
    """Draw `n` numbers in [0, 1) for each sample, from nothing but (seed, epoch, sample index).

    key     = (seed mod 2**32, seed div 2**32)
    counter = (block, epoch, index mod 2**32, index div 2**32)     block 0, 1, ...: four numbers each
    number  = (word div 2**8) * 2**-24

    Args:
        seed: 0 <= seed < 2**64.
        epoch: 0 <= epoch < 2**32.
        indices: (B,) integers, each at least 0: the samples, in any order, repeats allowed.
        n: numbers for each sample, 0 <= n <= 2**34.

    Returns:
        (B, n) float32. A row depends on its own index only, and begins in the same way for every `n`.

    Raises:
        ValueError: An argument is out of range, or the indices are not a list of integers.

    Resume: there is no state to lose; any worker, worker count, split or resume point gives the same rows.

    Mirror: bitwise.

    Source: Salmon, Moraes, Dror, Shaw 2011.

    Example:
        >>> draw_noise(42, 0, [5, 3], 2)
        array([[0.48247302, 0.40905166],
               [0.04030836, 0.4456259 ]], dtype=float32)
        >>> draw_noise(42, 0, [3], 1)
        array([[0.04030836]], dtype=float32)
    """
    seed = whole_number("seed", seed, 0, 2**64)
    epoch = whole_number("epoch", epoch, 0, 2**32)
    n = whole_number("n", n, 0, 2**34 + 1)
    samples = np.asarray(indices)
    if samples.size == 0:
        samples = samples.astype(np.int64)  # an empty list arrives as float64
    if samples.ndim != 1 or samples.dtype.kind not in "iu":
        raise ValueError(f"indices: expected a list of integers, found {samples.dtype} of shape {samples.shape}.")
    if (samples < 0).any():
        row = int((samples < 0).argmax())
        raise ValueError(f"indices: expected sample indices of at least 0, found {int(samples[row])} at {row}.")
    wide = samples.astype(np.uint64)
    blocks = -(-n // 4)
    counter = np.empty((samples.size, blocks, 4), np.uint32)
    counter[:, :, 0] = np.arange(blocks, dtype=np.uint32)
    counter[:, :, 1] = epoch
    counter[:, :, 2] = (wide & _LOW_32)[:, None]
    counter[:, :, 3] = (wide >> _HALF)[:, None]
    words = philox(counter.reshape(-1, 4), np.array([seed % 2**32, seed >> 32], np.uint32))
    numbers = (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    return np.ascontiguousarray(numbers.reshape(samples.size, 4 * blocks)[:, :n])
