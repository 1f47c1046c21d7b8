"""Explicit random streams on torch's CPU generator, the same bits as in `numpy_ref.rng`; noise without one: `noise`.

A run owns one stream for each purpose (initial weights, data order, dropout). A stream at rest is a `StreamState`: the
same plain data as in NumPy. `generator_from` makes a live `torch.Generator` of it, every `draw_*` function that takes a
generator advances it, and `stream_state` takes the state out again. Nothing here touches a global generator, and the
default device and type change nothing: a stream lives on the CPU, and its numbers are moved, so that a run on another
device draws the same ones.

torch's CPU generator and NumPy's MT19937 are one engine, and here its draws are torch's own: `torch.rand`,
`torch.randperm` and `torch.randint`.
"""

from collections.abc import Sequence

import numpy as np
import torch

from numpy_ref import rng as reference
from numpy_ref.checks import whole_number
from numpy_ref.rng import WORDS, StreamState, init_stream, stream_key
from torch_port.noise import draw_noise, philox

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

_LAYOUT = np.dtype(  # of the bytes that torch's CPU generator gives as its state; the rest of them does not matter
    {
        "names": ["left", "seeded", "next", "key", "double_is_cached", "float_is_cached"],
        "formats": ["i4", "i4", "u8", ("u8", WORDS), "i4", "?"],
        "offsets": [8, 12, 16, 24, 5040, 5052],
        "itemsize": 5056,
    }
)
_RANDPERM_LIMIT = (2**32 - 1) // 20  # from here on torch's randperm is another algorithm
_LOW_32 = 0xFFFFFFFF


def generator_from(state: StreamState) -> torch.Generator:
    """Make a live generator that continues a stream; drawing from it leaves `state` as it is.

    Returns:
        A generator on the CPU with its own copy of the words. Its `initial_seed()` means nothing.

    Mirror: bitwise, every later draw is the same.

    Example:
        >>> state = init_stream(0, "order")
        >>> bool((draw_uniform(generator_from(state), 3) == draw_uniform(generator_from(state), 3)).all())
        True
    """
    key, pos = reference.stream_state(reference.generator_from(state))  # which refuses what is no state
    record = np.zeros(1, _LAYOUT)
    record["left"], record["seeded"], record["next"], record["key"] = WORDS + 1 - pos, 1, pos, key
    generator = torch.Generator(device="cpu")
    generator.set_state(torch.from_numpy(record.view(np.uint8)))
    return generator


def stream_state(generator: torch.Generator) -> StreamState:
    """Take the state out of a live generator; later draws leave the result as it is.

    Args:
        generator: a generator on the CPU.

    Raises:
        TypeError: It is no generator, or on another device.
        ValueError: The generator has a normal number in store (an odd number of them was drawn), which would be lost.
            Or its bytes were set to a place that no draw leads to.

    Resume: the state is whole, words and position.

    Mirror: bitwise: after the same draws the same words and position, whichever of torch's encodings holds them.

    Example:
        >>> generator = generator_from(init_stream(0, "order"))
        >>> _ = draw_words(generator, 3)
        >>> stream_state(generator).pos
        3
    """
    record = _on_cpu(generator).get_state().numpy().view(_LAYOUT)[0]
    if record["double_is_cached"] or record["float_is_cached"]:
        raise ValueError(
            "generator: expected one without a normal number in store, found one with. "
            "Draw normal numbers from another generator."
        )
    left, following = int(record["left"]), int(record["next"])
    pos = WORDS + 1 - left  # with one left torch makes the next block first; where `next` points is then void
    if left > 1 and following != pos:
        raise ValueError(
            f"generator: expected word {pos} to follow where {left - 1} of {WORDS} are left, found {following}. "
            "Make it with generator_from(state)."
        )
    return StreamState(record["key"].astype(np.uint32), pos)


def draw_words(generator: torch.Generator, n: int) -> torch.Tensor:
    """Draw the engine's next `n` words, untouched.

    Args:
        generator: a generator on the CPU; it advances by `n` words.
        n: how many, at least 0.

    Returns:
        (n,) uint32. For arithmetic convert it to int64: torch has little for this type.

    Raises:
        TypeError: It is no generator, or on another device.
        ValueError: `n` is not a count.

    Mirror: bitwise.

    Example:
        >>> draw_words(generator_from(init_stream(42, "order")), 2)
        tensor([1579580581, 2073083614], dtype=torch.uint32)
    """
    ahead = _on_cpu(generator).clone_state()
    n = whole_number("n", n, 0, 2**63)
    # torch hands out whole words in pairs only, so they come from a copy; the stream itself moves by one word a number.
    pairs = torch.empty(n // 2 + n % 2, dtype=torch.int64, device="cpu").random_(-(2**63), None, generator=ahead)
    torch.rand(n, generator=generator, dtype=torch.float32, device="cpu")
    return torch.stack([pairs >> 32 & _LOW_32, pairs & _LOW_32], dim=1).reshape(-1)[:n].to(torch.uint32)


def draw_uniform(
    generator: torch.Generator, shape: int | Sequence[int], *, dtype: torch.dtype = torch.float32
) -> torch.Tensor:
    """Draw numbers in [0, 1) by `torch.rand`.

    float32: (word mod 2**24) * 2**-24
    float64: ((first word * 2**32 + second word) mod 2**53) * 2**-53

    Raises:
        TypeError: It is no generator, or on another device.
        ValueError: The shape or the type is none of these.

    Mirror: bitwise.

    Example:
        >>> draw_uniform(generator_from(init_stream(42, "dropout")), 3)
        tensor([0.9985, 0.7539, 0.1734])
    """
    if dtype not in (torch.float32, torch.float64):
        raise ValueError(f"dtype: expected torch.float32 or torch.float64, found {dtype}.")
    return torch.rand(_shape(shape), generator=_on_cpu(generator), dtype=dtype, device="cpu")


def draw_permutation(generator: torch.Generator, n: int) -> torch.Tensor:
    """Draw an order of 0..n-1 by `torch.randperm`: Fisher and Yates from the front.

    for i = 0 .. n-2:  swap order[i] with order[i + word mod (n - i)]

    Raises:
        TypeError: It is no generator, or on another device.
        ValueError: `n` is out of range.

    Mirror: bitwise.

    Example:
        >>> draw_permutation(generator_from(init_stream(42, "order")), 6)
        tensor([1, 5, 4, 2, 3, 0])
    """
    n = whole_number("n", n, 0, _RANDPERM_LIMIT)
    return torch.randperm(n, generator=_on_cpu(generator), dtype=torch.int64, device="cpu")


def draw_integers(generator: torch.Generator, shape: int | Sequence[int], high: int) -> torch.Tensor:
    """Draw integers in 0..high-1 by `torch.randint`.

    high < 2**28:  word mod high
    otherwise:     (first word * 2**32 + second word) mod high

    Raises:
        TypeError: It is no generator, or on another device.
        ValueError: The shape or `high` is out of range.

    Mirror: bitwise; the limit 2**28 is that of torch 2.13, seen by test.

    Example:
        >>> draw_integers(generator_from(init_stream(42, "noise")), (2, 3), 10)
        tensor([[2, 9, 9],
                [9, 7, 2]])
    """
    sizes = _shape(shape)
    high = whole_number("high", high, 1, 2**63)
    return torch.randint(0, high, sizes, generator=_on_cpu(generator), dtype=torch.int64, device="cpu")


def draw_bernoulli(generator: torch.Generator, p: float, shape: int | Sequence[int]) -> torch.Tensor:
    """Draw booleans that are true with probability `p`.

    p, rounded to float32;  uniform float32 < p

    Raises:
        TypeError: It is no generator, or on another device.
        ValueError: The shape or `p` is out of range.

    Mirror: bitwise, and with `torch.bernoulli` of a float32 tensor; `bernoulli_(p)` and `F.dropout` draw otherwise.

    Example:
        >>> draw_bernoulli(generator_from(init_stream(42, "dropout")), 0.5, 4)
        tensor([False, False,  True,  True])
    """
    if not 0 <= p <= 1:
        raise ValueError(f"p: expected a probability from 0 to 1, found {p!r}.")
    return draw_uniform(generator, shape) < torch.tensor(p, dtype=torch.float32, device="cpu")


def _on_cpu(generator: torch.Generator) -> torch.Generator:
    """The generator, if it is one of the engine that NumPy shares."""
    if not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        found = f"one on {generator.device}" if isinstance(generator, torch.Generator) else type(generator).__name__
        raise TypeError(
            f"generator: expected a torch.Generator on the CPU, found {found}. Make it with generator_from(state)."
        )
    return generator


def _shape(shape: int | Sequence[int]) -> tuple[int, ...]:
    """A shape as a tuple of sizes."""
    sizes = tuple(shape) if isinstance(shape, Sequence) else (shape,)
    return tuple(whole_number(f"shape[{axis}]", size, 0, 2**63) for axis, size in enumerate(sizes))
