"""Explicit random streams, the same bits as torch's CPU generator; noise without one: `noise`.

A run owns one stream for each purpose (initial weights, data order, dropout). A stream at rest is a `StreamState`:
plain data that a checkpoint can hold. `generator_from` makes a live `numpy.random.Generator` of it, every `draw_*`
function that takes a generator advances it, and `stream_state` takes the state out again. Nothing here touches a global
generator.

NumPy's MT19937 and torch's CPU generator are one engine. What differs is how words become numbers, so the `draw_*`
functions follow torch: where a function of `numpy.random.Generator` has the same purpose, its bits are others.
"""

import hashlib
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from numpy_ref.checks import whole_number
from numpy_ref.noise import draw_noise, philox

__all__ = [
    "WORDS",
    "StreamState",
    "draw_bernoulli",
    "draw_integers",
    "draw_noise",
    "draw_permutation",
    "draw_uniform",
    "draw_words",
    "generator_from",
    "init_stream",
    "philox",
    "stream_key",
    "stream_state",
]

WORDS = 624  # 32-bit words in the state of MT19937
_RANDPERM_LIMIT = (2**32 - 1) // 20  # from here on torch's randperm is another algorithm
_TWO_WORD_RANGE = 2**28  # from here on torch's randint takes two words a number, to keep the modulo fair
_TOP_BIT = np.uint32(0x80000000)
_HALF = np.uint64(32)


class StreamState(NamedTuple):
    """One stream at rest: MT19937's words and how many of them have been handed out.

    Attributes:
        key: (624,) uint32, the engine's current block of words.
        pos: 1..624, the next word to hand out; at 624 the engine makes the next block first. No draw ends at 0, and
            torch could not hold it.

    Resume: without `key` the run repeats or leaves its stream; without `pos` it hands out up to 623 numbers again.
    """

    key: npt.NDArray[np.uint32]
    pos: int


def stream_key(seed: int, name: str) -> npt.NDArray[np.uint32]:
    """Derive the 624 words that start the stream called `name` of a run seeded with `seed`.

    message = a fixed label, the seed as 8 little-endian bytes, the name in UTF-8
    key     = SHAKE-256(message), 2496 bytes read as little-endian words
    key[0] |= 2**31, the only bit of key[0] that the engine uses: so the state is never all zero

    Args:
        seed: 0 <= seed < 2**64. All 64 bits count.
        name: any text; the label and the seed have fixed lengths, so two pairs never share a message.

    Returns:
        (624,) uint32.

    Raises:
        ValueError: The seed is not an integer in range, or the name is not text that UTF-8 can write.

    Mirror: bitwise, the key is the same in both packages (`torch.Generator.manual_seed` keeps 32 bits of a seed).

    Source: FIPS 202 (SHAKE-256); Matsumoto and Nishimura 1998 (the unused bits of the first word).

    Example:
        >>> bool((stream_key(7, "order") == stream_key(2**40 + 7, "order")).all())
        False
    """
    seed = whole_number("seed", seed, 0, 2**64)
    if not isinstance(name, str):
        raise ValueError(f"name: expected the stream's name as text, found {name!r}.")
    message = b"bitwise-resume stream, version 1\0" + seed.to_bytes(8, "little") + name.encode("utf-8")
    key = np.frombuffer(hashlib.shake_256(message).digest(4 * WORDS), dtype="<u4").astype(np.uint32)
    key[0] |= _TOP_BIT
    return key


def init_stream(seed: int, name: str) -> StreamState:
    """Start the stream called `name` of a run: the words of `stream_key`, none handed out yet.

    Args:
        seed: 0 <= seed < 2**64.
        name: the stream's purpose, such as "weights", "order" or "dropout".

    Returns:
        The state before the first draw, with `pos` 624.

    Raises:
        ValueError: See `stream_key`.

    Resume: calling this again instead of restoring a state starts the stream over: every draw repeats.

    Mirror: bitwise.

    Example:
        >>> draw_words(generator_from(init_stream(42, "order")), 2)
        array([1579580581, 2073083614], dtype=uint32)
    """
    return StreamState(stream_key(seed, name), WORDS)


def generator_from(state: StreamState) -> np.random.Generator:
    """Make a live generator that continues a stream; drawing from it leaves `state` as it is.

    Args:
        state: a stream at rest.

    Returns:
        A generator over MT19937 with its own copy of the words.

    Raises:
        ValueError: The key is not (624,) uint32, the position is not an integer in 1..624, or the state is the all-zero
            one, which hands out zeros for ever.

    Resume: a failure here is a failure to resume; going on with a fresh generator would be another experiment.

    Mirror: bitwise, every later draw is the same.

    Example:
        >>> state = init_stream(0, "order")
        >>> bool(draw_words(generator_from(state), 1) == draw_words(generator_from(state), 1))
        True
    """
    key = state.key
    if not isinstance(key, np.ndarray) or key.dtype != np.uint32 or key.shape != (WORDS,):
        found = f"{key.dtype} {key.shape}" if isinstance(key, np.ndarray) else type(key).__name__
        raise ValueError(f"key: expected a uint32 array of shape ({WORDS},), found {found}. Restore it unconverted.")
    pos = whole_number("pos", state.pos, 1, WORDS + 1)
    if not key[0] & _TOP_BIT and not key[1:].any():
        raise ValueError("key: expected a state of MT19937, found the all-zero one. Was it ever filled?")
    engine = np.random.MT19937(0)
    engine.state = {"bit_generator": "MT19937", "state": {"key": key, "pos": pos}}
    return np.random.Generator(engine)


def stream_state(generator: np.random.Generator) -> StreamState:
    """Take the state out of a live generator; later draws leave the result as it is.

    Args:
        generator: a generator over MT19937.

    Returns:
        The stream at rest, sharing no memory with the generator.

    Raises:
        TypeError: The generator runs on another engine.

    Resume: the state is whole; MT19937 under `Generator` caches no half word and no normal.

    Mirror: bitwise, as words and position (torch's own 5056 bytes have more than one encoding of a state).

    Example:
        >>> generator = generator_from(init_stream(0, "order"))
        >>> _ = draw_words(generator, 3)
        >>> stream_state(generator).pos
        3
    """
    state = _engine(generator).state["state"]
    return StreamState(np.array(state["key"], dtype=np.uint32), int(state["pos"]))


def draw_words(generator: np.random.Generator, n: int) -> npt.NDArray[np.uint32]:
    """Draw the engine's next `n` words, untouched.

    Args:
        generator: a generator over MT19937; it advances by `n` words.
        n: how many, at least 0.

    Returns:
        (n,) uint32.

    Raises:
        TypeError: The generator runs on another engine.
        ValueError: `n` is not a count.

    Mirror: bitwise.

    Example:
        >>> draw_words(generator_from(init_stream(42, "dropout")), 0).shape
        (0,)
    """
    engine = _engine(generator)
    words: npt.NDArray[np.uint64] = engine.random_raw(whole_number("n", n, 0, 2**63))
    return words.astype(np.uint32)


def draw_uniform(
    generator: np.random.Generator, shape: int | Sequence[int], *, dtype: npt.DTypeLike = np.float32
) -> npt.NDArray[Any]:
    """Draw numbers in [0, 1), equal to `torch.rand`.

    float32: (word mod 2**24) * 2**-24
    float64: ((first word * 2**32 + second word) mod 2**53) * 2**-53

    Args:
        generator: a generator over MT19937; it advances by one word a number, two for float64.
        shape: a size, or one size for each axis.
        dtype: float32 or float64.

    Returns:
        An array of that shape and type, filled in C order. Every value is exact.

    Raises:
        TypeError: The generator runs on another engine.
        ValueError: The shape or the type is none of these.

    Mirror: bitwise with `torch.rand` on the CPU; `Generator.random` has other bits.

    Example:
        >>> draw_uniform(generator_from(init_stream(42, "dropout")), 3)
        array([0.99853814, 0.7538528 , 0.17342246], dtype=float32)
    """
    sizes = _shape(shape)
    count = math.prod(sizes)
    if np.dtype(dtype) == np.float32:
        low = draw_words(generator, count) & np.uint32(2**24 - 1)
        return (low.astype(np.float32) * np.float32(2.0**-24)).reshape(sizes)
    if np.dtype(dtype) == np.float64:
        wide = _draw_double_words(generator, count) & np.uint64(2**53 - 1)
        return (wide.astype(np.float64) * 2.0**-53).reshape(sizes)
    raise ValueError(f"dtype: expected float32 or float64, found {np.dtype(dtype)}.")


def draw_permutation(generator: np.random.Generator, n: int) -> npt.NDArray[np.int64]:
    """Draw an order of 0..n-1, equal to `torch.randperm`: Fisher and Yates from the front.

    for i = 0 .. n-2:  swap order[i] with order[i + word mod (n - i)]

    Args:
        generator: a generator over MT19937; it advances by n - 1 words (none for n = 0).
        n: 0 <= n < 214748364. From there on torch has another algorithm.

    Returns:
        (n,) int64.

    Raises:
        TypeError: The generator runs on another engine.
        ValueError: `n` is out of range.

    Mirror: bitwise with `torch.randperm` on the CPU; `Generator.permutation` gives another order.

    Source: Fisher and Yates 1938; Durstenfeld 1964.

    Example:
        >>> draw_permutation(generator_from(init_stream(42, "order")), 6)
        array([1, 5, 4, 2, 3, 0])
    """
    n = whole_number("n", n, 0, _RANDPERM_LIMIT)
    words = draw_words(generator, max(n - 1, 0))
    partners: npt.NDArray[np.int64] = np.arange(n)
    partners[:-1] += (words % np.arange(n, 1, -1, dtype=np.uint32)).astype(np.int64)
    return _after_swaps(partners)


def draw_integers(generator: np.random.Generator, shape: int | Sequence[int], high: int) -> npt.NDArray[np.int64]:
    """Draw integers in 0..high-1, equal to `torch.randint(0, high, shape)`.

    high < 2**28:  word mod high
    otherwise:     (first word * 2**32 + second word) mod high

    Args:
        generator: a generator over MT19937; it advances by one word a number, two from `high` = 2**28 on.
        shape: a size, or one size for each axis.
        high: 1 <= high < 2**63.

    Returns:
        An int64 array of that shape, filled in C order.

    Raises:
        TypeError: The generator runs on another engine.
        ValueError: The shape or `high` is out of range.

    Mirror: bitwise with `torch.randint` on the CPU; the limit 2**28 is that of torch 2.13, seen by test.

    Example:
        >>> draw_integers(generator_from(init_stream(42, "noise")), (2, 3), 10)
        array([[2, 9, 9],
               [9, 7, 2]])
    """
    sizes = _shape(shape)
    high = whole_number("high", high, 1, 2**63)
    count = math.prod(sizes)
    words = draw_words(generator, count) if high < _TWO_WORD_RANGE else _draw_double_words(generator, count)
    return (words.astype(np.uint64) % np.uint64(high)).astype(np.int64).reshape(sizes)


def draw_bernoulli(generator: np.random.Generator, p: float, shape: int | Sequence[int]) -> npt.NDArray[np.bool_]:
    """Draw booleans that are true with probability `p`.

    p, rounded to float32;  uniform float32 < p

    Args:
        generator: a generator over MT19937; it advances by one word a boolean, whatever `p` is.
        p: 0 <= p <= 1.
        shape: a size, or one size for each axis.

    Returns:
        A boolean array of that shape, filled in C order.

    Raises:
        TypeError: The generator runs on another engine.
        ValueError: The shape or `p` is out of range.

    Mirror: bitwise with `torch.rand(shape) < p` and with `torch.bernoulli` of a float32 tensor on the CPU;
        `bernoulli_(p)` and `F.dropout` draw otherwise.

    Example:
        >>> draw_bernoulli(generator_from(init_stream(42, "dropout")), 0.5, 4)
        array([False, False,  True,  True])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability from 0 to 1, found {p!r}.")
    uniform: npt.NDArray[np.float32] = draw_uniform(generator, shape)
    return uniform < np.float32(p)


def _after_swaps(partners: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Where 0..n-1 stand after swapping places i and partners[i] >= i, for i = 0, 1, ...; without a loop over them.

    Step i puts what place i holds into its partner, and what the partner holds into place i, which no later step
    touches. So the order at i is what the step before i with the same partner put there, or else the partner itself.
    And place i holds, when its step comes, what the last step before it with partner i put there, or else i. (Of a step
    that is its own partner nobody asks what it held: it is the last one with that partner.)
    """
    steps = np.arange(partners.size)
    held = steps.copy()
    held[partners] = steps  # an earlier step that held the same number; of steps with one partner the last is kept
    while not np.array_equal(earlier := held[held], held):
        held = earlier  # at last the first step that held it, whose own number it is
    low, high = partners.astype(np.uint16), (partners >> 16).astype(np.uint16)  # NumPy sorts 16 bits by counting
    by_partner = np.lexsort((low, high))  # stable: steps with one partner stay in order
    again = np.flatnonzero(np.diff(partners[by_partner]) == 0)
    order = partners.copy()
    order[by_partner[again + 1]] = held[by_partner[again]]
    return order


def _engine(generator: np.random.Generator) -> np.random.MT19937:
    """The engine under a generator, if it is the one that torch shares."""
    engine = getattr(generator, "bit_generator", None)
    if not isinstance(engine, np.random.MT19937):
        found = type(generator if engine is None else engine).__name__
        raise TypeError(f"generator: expected one over MT19937, found {found}. Make it with generator_from(state).")
    return engine


def _draw_double_words(generator: np.random.Generator, n: int) -> npt.NDArray[np.uint64]:
    """The next `n` 64-bit numbers of a stream, the high word of each first."""
    words = draw_words(generator, 2 * n).astype(np.uint64)
    return (words[0::2] << _HALF) | words[1::2]


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of sizes."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    return tuple(whole_number(f"shape[{axis}]", size, 0, 2**63) for axis, size in enumerate(sizes))
