"""Gradient checkpointing: keep only the inputs of segments, and compute the rest again in the backward pass.

The layers are cut into consecutive segments. The forward pass forgets what lies within them, so between the passes an
activation a segment is kept instead of several a layer; the backward pass computes one segment after the other again,
from its input. The gradients are those of the plain backward pass, bit for bit, since the same numbers come again.

They come again only if nothing is drawn anew. Dropout masks are either drawn outside and handed in, and kept; or drawn
within from a generator, and then the stream's state at the start of each segment is kept instead, and drawn from again
without moving the generator. Batch normalisation's running statistics are moved by the forward pass alone.

With n layers of one size, about sqrt(n) segments hold the least at the height of the backward pass: as many inputs as
a segment has layers.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isqrt
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import model as network
from numpy_ref.arithmetic.operations import Arithmetic
from numpy_ref.checks import whole_number
from numpy_ref.precision import check_precision
from numpy_ref.rng import StreamState, generator_from, stream_state

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]


def square_root_rule(layers: int) -> int:
    """The number of segments to take without a reason for another: the whole number nearest to sqrt(layers).

    Example:
        >>> [square_root_rule(n) for n in (1, 3, 16, 100)]
        [1, 2, 4, 10]
    """
    root = isqrt(whole_number("square_root_rule: layers", layers, 1, 2**31))
    return root + (layers > root * (root + 1))


def segments_of(layers: int, segments: int) -> list[range]:
    """Consecutive ranges of layers, as even as possible, the longer ones first.

    Args:
        layers: >= 1.
        segments: from 1 to `layers`.

    Raises:
        ValueError: a number out of its range.

    Example:
        >>> segments_of(5, 2)
        [range(0, 3), range(3, 5)]
    """
    layers = whole_number("segments_of: layers", layers, 1, 2**31)
    segments = whole_number("segments_of: segments", segments, 1, layers + 1)
    size, longer = divmod(layers, segments)
    starts = [size * s + min(s, longer) for s in range(segments + 1)]
    return [range(start, end) for start, end in pairwise(starts)]


class Kept(NamedTuple):
    """What the forward pass keeps for the backward pass."""

    segments: list[range]
    inputs: list[Array]  # of each segment, (B, H before it)
    masks: list[Array]  # of each hidden layer, (B, H); none where they are drawn again, or nothing is dropped
    streams: list[StreamState]  # where they are drawn again: the stream at the start of each segment
    training: bool
    dropout: float
    precision: str | None


def forward(
    model: Mapping[str, Array],
    x: Array,
    ops: Arithmetic,
    *,
    segments: int,
    training: bool,
    masks: Sequence[Array] = (),
    generator: np.random.Generator | None = None,
    dropout: float = 0.0,
    precision: str | None = None,
) -> tuple[Array, Kept, Arrays]:
    """`model.forward`, which keeps the inputs of segments only.

    Args:
        model: as `init_model` makes it.
        x: (B, D).
        ops: the arithmetic.
        segments: from 1, which keeps `x` alone, to the number of linear layers.
        training: as for `model.forward`.
        masks: in training with dropout one bool array (B, H) for each hidden layer.
        generator: draws the masks, layer by layer, in place of `masks`; advanced, but not outside training.
        dropout: the share the masks drop.
        precision: as for `model.forward`.

    Returns:
        logits (B, C); what `backward` needs; batch normalisation's new buffers.

    Raises:
        ValueError: `segments` out of its range, or both masks and a generator.

    Mirror:
        `torch_port.recompute.forward`, the same bits under reproducible arithmetic.
    """
    check_precision("recompute.forward", precision)
    if generator is not None and len(masks):
        raise ValueError("recompute.forward: expected masks or a generator that draws them, found both.")
    if generator is None:
        network.check_masks(masks, network.depth_of(model) - 1 if dropout else 0, training=training)
    depth = network.depth_of(model)
    if not (training and dropout):
        generator = None  # nothing to draw
    kept = Kept(segments_of(depth, segments), [], list(masks) if training else [], [], training, dropout, precision)
    buffers: Arrays = {}
    x = network.rounded(x, precision)
    for layers in kept.segments:
        kept.inputs.append(x)
        if generator is not None:
            kept.streams.append(stream_state(generator))
            masks = _drawn(model, layers, generator, kept, len(x))
        x, cache, new = network.forward_layers(
            model, x, ops, layers, training=training, masks=masks, dropout=dropout, precision=precision
        )
        del cache  # before the next segment's is there
        buffers |= new
    return x, kept, buffers


def backward(model: Mapping[str, Array], kept: Kept, grad: Array, ops: Arithmetic) -> Arrays:
    """`model.backward`, which computes the segments again, the last one first.

    Args:
        model: the arrays of the forward pass.
        kept: of the forward pass.
        grad: (B, C), the gradient by the logits.
        ops: the arithmetic.

    Returns:
        name to array, the names and shapes of `parameters(model)`, the bits of the plain backward pass.
    """
    grads: Arrays = {}
    grad = network.rounded(grad, kept.precision)
    for s in reversed(range(len(kept.segments))):
        new, grad = network.backward_layers(model, _cache_again(model, kept, s, ops), grad, ops)
        grads |= new
    return {name: grads[name] for name in network.parameters(model)}


def _cache_again(model: Mapping[str, Array], kept: Kept, s: int, ops: Arithmetic) -> network.Cache:
    """The cache of a segment, computed again from its input; the logits are not needed again."""
    layers, x, masks = kept.segments[s], kept.inputs[s], kept.masks
    if kept.streams:
        masks = _drawn(model, layers, generator_from(kept.streams[s]), kept, len(x))
    hidden = range(layers.start, min(layers.stop, network.depth_of(model) - 1))
    _, cache, _ = network.forward_layers(
        model, x, ops, hidden, training=kept.training, masks=masks, dropout=kept.dropout, precision=kept.precision
    )
    return cache._replace(layers=layers)


def _drawn(
    model: Mapping[str, Array], layers: range, generator: np.random.Generator, kept: Kept, batch: int
) -> list[Array]:
    """Masks of the hidden layers of a segment, drawn now; those before them are not looked at."""
    sizes = [len(model[f"layer{i}.bias"]) for i in layers if i < network.depth_of(model) - 1]
    return [np.zeros(0, bool)] * layers.start + network.draw_masks(generator, sizes, batch, kept.dropout)
