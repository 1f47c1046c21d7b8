"""A multi-layer perceptron, its loss and its gradients, as pure functions of named arrays.

Sizes: B batch, D inputs, H hidden, C classes. A hidden layer is linear, batch normalisation if wanted, ReLU, dropout;
the last layer is linear. Weights have PyTorch's layout, (outputs, inputs). Dropout masks are drawn outside and handed
in, so that a forward pass consumes no randomness. Everything works in the type of the arrays it is given, but for what
the arithmetic computes in a format of 16 bits.

Gradient checkpointing: the layers can be cut into consecutive segments. The forward pass then forgets what lies within
them, so between the passes an activation a segment is kept instead of several a layer; the backward pass computes one
segment after the other again, from its input. The gradients are those of the plain backward pass, bit for bit, since
the same numbers come again. Masks are either handed in, and kept; or drawn within from a generator, and then the
stream's state at the start of each segment is kept instead, and drawn from again without moving the generator. Batch
normalisation's running statistics are moved by the forward pass alone. With n layers of one size, about sqrt(n)
segments hold the least at the height of the backward pass: as many inputs as a segment has layers.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.arithmetic.operations import Arithmetic
from numpy_ref.arithmetic.rounding import STORAGE, cast
from numpy_ref.checks import whole_number
from numpy_ref.rng import StreamState, draw_bernoulli, draw_uniform, generator_from, stream_state
from numpy_ref.tree import Leaf
from numpy_ref.types import Array, Arrays

BUFFERS = ("running_mean", "running_var", "num_batches_tracked")  # of batch normalisation: state, but no parameters
NORM_EPS = 1e-5
NORM_MOMENTUM = 0.1


def init_model(
    generator: np.random.Generator, inputs: int, hidden: Sequence[int], classes: int, *, batch_norm: bool = False
) -> Arrays:
    """Weights and biases uniform in [-1/sqrt(inputs of the layer), 1/sqrt(inputs of the layer)), float32.

    w = (2 u - 1) bound, u uniform in [0, 1) with 24 bits

    Args:
        generator: the stream of initial weights; advanced.
        inputs: D.
        hidden: the H of each hidden layer.
        classes: C.
        batch_norm: add `norm{i}` with weight 1, bias 0 and running statistics.

    Returns:
        name to array: `layer0.weight` (H, D), `layer0.bias` (H,), `norm0.weight` (H,), ..., up to the last layer's.
    """
    model = blank_model(inputs, hidden, classes, batch_norm=batch_norm)
    for i, fan_in in enumerate([inputs, *hidden]):
        bound = np.float32(1 / math.sqrt(fan_in))
        for name in (f"layer{i}.weight", f"layer{i}.bias"):
            model[name] = (2 * draw_uniform(generator, model[name].shape) - 1) * bound
    for name in model:
        if name.startswith("norm") and name.endswith((".weight", ".running_var")):
            model[name] = np.ones_like(model[name])
    return model


def blank_model(inputs: int, hidden: Sequence[int], classes: int, *, batch_norm: bool = False) -> Arrays:
    """The arrays of a model in their order, shapes and types, all zero."""
    leaves = model_leaves(inputs, hidden, classes, batch_norm=batch_norm)
    return {name: np.zeros(leaf.shape or (), leaf.kind) for name, leaf in leaves.items()}


def model_leaves(inputs: int, hidden: Sequence[int], classes: int, *, batch_norm: bool = False) -> dict[str, Leaf]:
    """The schema of a model: its arrays in their order, with types and shapes."""
    leaves = {}
    for i, (fan_in, fan_out) in enumerate(pairwise([inputs, *hidden, classes])):
        leaves[f"layer{i}.weight"] = Leaf("float32", (fan_out, fan_in))
        leaves[f"layer{i}.bias"] = Leaf("float32", (fan_out,))
        if batch_norm and i < len(hidden):
            for name in ("weight", "bias", "running_mean", "running_var"):
                leaves[f"norm{i}.{name}"] = Leaf("float32", (fan_out,))
            leaves[f"norm{i}.num_batches_tracked"] = Leaf("int64", ())
    return leaves


def parameters(model: Mapping[str, Array]) -> Arrays:
    """The arrays that an optimizer changes: all but batch normalisation's buffers."""
    return {name: array for name, array in model.items() if not name.endswith(BUFFERS)}


def draw_masks(generator: np.random.Generator, hidden: Sequence[int], batch: int, dropout: float) -> list[Array]:
    """Which hidden units stay, one bool array (B, H) a hidden layer; no draw and no mask without dropout.

    Resume:
        If the generator's state is lost, other units are dropped from the first step on.
    """
    return [draw_bernoulli(generator, 1 - dropout, (batch, h)) for h in hidden] if dropout else []


def square_root_rule(layers: int) -> int:
    """The number of segments to take without a reason for another: the whole number nearest to sqrt(layers).

    Example:
        >>> [square_root_rule(n) for n in (1, 3, 16, 100)]
        [1, 2, 4, 10]
    """
    root = math.isqrt(whole_number("square_root_rule: layers", layers, 1, 2**31))
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


class LayerCache(NamedTuple):
    """What the backward pass needs of one hidden layer."""

    x: Array  # (B, H before) its input
    z: Array  # (B, H) before the ReLU
    x_hat: Array | None  # (B, H) normalised, with batch normalisation
    inverse_std: Array | None  # (H,)


class Cache(NamedTuple):
    """What the backward pass needs of a forward pass through some of the layers."""

    layers: range
    hidden: list[LayerCache]  # of the hidden ones among them
    last: Array  # (B, H) input of the last layer; of layers before it, their output
    masks: list[Array]  # of all hidden layers
    scale: Array  # factor of the units that stay, without axes
    training: bool


class Segment(NamedTuple):
    """What is kept of layers that are computed again in the backward pass."""

    layers: range
    x: Array  # (B, H before) their input
    masks: list[Array]  # of all hidden layers; none where they are drawn again, or nothing is dropped
    stream: StreamState | None  # where they are drawn again: the stream before the first of them
    training: bool
    dropout: float


Kept = list[Cache | Segment]


def forward(
    model: Mapping[str, Array],
    x: Array,
    ops: Arithmetic,
    *,
    training: bool,
    masks: Sequence[Array] = (),
    generator: np.random.Generator | None = None,
    dropout: float = 0.0,
    segments: int = 0,
) -> tuple[Array, Kept, Arrays]:
    """Logits of a batch.

        z = x W^T + b
        z = gamma (z - mean) / sqrt(variance + eps) + beta      with batch normalisation
        x = z where z > 0, else 0                               x = x / (1 - dropout) where the mask keeps, else 0

    Args:
        model: as `init_model` makes it.
        x: (B, D).
        ops: the arithmetic. With a precision everything from a linear layer to the next is rounded to that format:
            inputs, copies of weights, outputs, and the gradients by them. Weights, batch normalisation and logits keep
            the model's type.
        training: normalise with the batch's statistics and drop units; else with the running ones, nothing dropped.
        masks: in training with dropout one bool array (B, H) for each hidden layer; outside training they do not count.
        generator: draws the masks, layer by layer, in place of `masks`; advanced, but not outside training.
        dropout: the share the masks drop.
        segments: of layers to compute again in the backward pass, at most all linear layers; 0 keeps all activations.

    Returns:
        logits (B, C); what `backward` needs, one part for each segment; batch normalisation's new buffers (none outside
        training).

    Raises:
        ValueError: `segments` out of its range, in training another number of masks than there are layers to drop from,
            or both masks and a generator.

    Mirror:
        `torch_port.model.MLP.forward`, the same bits under reproducible arithmetic.
    """
    depth = depth_of(model)
    cuts = segments_of(depth, segments) if segments else [range(depth)]
    if generator is not None and len(masks):
        raise ValueError("forward: expected masks or a generator that draws them, found both.")
    expected = depth - 1 if dropout else 0
    if training and generator is None and len(masks) != expected:
        raise ValueError(
            f"forward: masks: expected {expected}, one for each hidden layer with dropout, found {len(masks)}. "
            "Draw them with draw_masks."
        )
    if not (training and dropout):
        generator = None  # nothing to draw
    masks = list(masks) if training else []
    kept: Kept = []
    buffers: Arrays = {}
    x = rounded(x, ops.precision)
    for layers in cuts:
        stream = stream_state(generator) if generator is not None and segments else None
        segment = Segment(layers, x, masks, stream, training, dropout)
        x, cache, new = _through(model, segment, ops, generator)
        kept.append(segment if segments else cache)
        del cache  # before the next segment's is there
        buffers |= new
    return x, kept, buffers


def _through(
    model: Mapping[str, Array], segment: Segment, ops: Arithmetic, generator: np.random.Generator | None
) -> tuple[Array, Cache, Arrays]:
    """`forward` through the layers of a segment, from its input to the output of the last of them."""
    layers, x, masks, _, training, dropout = segment
    hidden, buffers = [], {}
    depth, kind, precision = depth_of(model), model["layer0.weight"].dtype, ops.precision
    if generator is not None:
        sizes = [len(model[f"layer{i}.bias"]) for i in layers if i < depth - 1]
        masks = [np.zeros(0, bool)] * layers.start + draw_masks(generator, sizes, len(x), dropout)
    scale = rounded(np.asarray(1 / (1 - dropout), kind), precision)
    for i in layers:
        if i == depth - 1:
            break
        z = _linear(model, i, x, ops)
        x_hat = inverse_std = None
        if f"norm{i}.weight" in model:
            z, x_hat, inverse_std, new = _normalise(
                model, f"norm{i}", z.astype(kind, copy=False), ops, training=training
            )
            z = rounded(z, precision)
            buffers.update(new)
        hidden.append(LayerCache(x, z, x_hat, inverse_std))
        x = np.where(z <= 0, z.dtype.type(0), z)  # +0 for either zero, and NaN stays
        if masks:
            x = np.where(masks[i], rounded(x * scale, precision), x.dtype.type(0))
    cache = Cache(layers, hidden, x, masks, scale, training)
    if depth - 1 in layers:
        x = _linear(model, depth - 1, x, ops).astype(kind, copy=False)
    return x, cache, buffers


def cross_entropy(logits: Array, labels: Array, ops: Arithmetic, *, count: int) -> tuple[Array, Array]:
    """Softmax cross-entropy summed over the batch and divided by `count`, and its gradient.

        s = logits - max of the row;  e = exp(s);  p = e / sum of the row of e
        loss = sum(log(sum e) - s[label]) / count            gradient = (p - [label]) / count

    Args:
        logits: (B, C).
        labels: (B,), whole numbers in 0..C-1.
        ops: the arithmetic.
        count: samples that the step's loss is a mean of; B, or more with accumulation.

    Returns:
        loss, 0-dimensional; gradient (B, C).
    """
    real, rows = logits.dtype.type, np.arange(len(labels))
    shifted = logits - logits.max(axis=1, keepdims=True)  # whichever zero wins a maximum: exp and 0 - s take either
    e = ops.exp(shifted)
    total = ops.sum(e, axis=1, keepdims=True)
    losses = ops.log(total)[:, 0] - shifted[rows, labels]
    grad = e / total
    grad[rows, labels] = grad[rows, labels] - real(1)
    return np.asarray(ops.sum(losses) / real(count)), grad / real(count)


def backward(model: Mapping[str, Array], kept: Kept, grad: Array, ops: Arithmetic) -> Arrays:
    """Gradients of the loss by every parameter; segments are computed again, the last one first.

        dW = g^T x;  db = sum of g over the batch;  dx = g W
        through dropout: g / (1 - dropout) where kept, else 0;  through ReLU: 0 where z <= 0
        through batch normalisation, with n = g gamma:
            dgamma = sum(g x_hat);  dbeta = sum(g)
            dz = (n - sum(n) / B - x_hat sum(n x_hat) / B) / std      in training;  n / std outside

    Args:
        model: the arrays of the forward pass.
        kept: of the forward pass.
        grad: (B, C), the gradient by the logits.
        ops: the arithmetic of the forward pass.

    Returns:
        name to array, the names and shapes of `parameters(model)`.
    """
    grads: Arrays = {}
    grad = rounded(grad, ops.precision)
    for part in reversed(kept):
        new, grad = _back(model, _again(model, part, ops) if isinstance(part, Segment) else part, grad, ops)
        grads |= new
    return {name: grads[name] for name in parameters(model)}


def _again(model: Mapping[str, Array], segment: Segment, ops: Arithmetic) -> Cache:
    """The cache of a segment, computed again from its input; the logits are not needed again."""
    layers, stream = segment.layers, segment.stream
    hidden = range(layers.start, min(layers.stop, depth_of(model) - 1))
    generator = None if stream is None else generator_from(stream)
    return _through(model, segment._replace(layers=hidden), ops, generator)[1]._replace(layers=layers)


def _back(model: Mapping[str, Array], cache: Cache, grad: Array, ops: Arithmetic) -> tuple[Arrays, Array]:
    """`backward` through the layers of a cache.

    Args:
        model: the arrays of the forward pass.
        cache: of a pass through consecutive layers.
        grad: the gradient by what the linear layer after them gives; with the last layer among them, by the logits.
        ops: the arithmetic.

    Returns:
        Gradients by the parameters of these layers; the gradient by what the first one's linear layer gives.
    """
    grads: Arrays = {}
    depth, inner, precision = depth_of(model), _in_precision(ops), ops.precision
    if depth - 1 in cache.layers:
        grads = _linear_gradients(model, depth - 1, cache.last, grad, inner)
    real = grad.dtype.type
    for i, layer in reversed(list(zip(cache.layers, cache.hidden, strict=False))):
        grad = inner.matmul(grad, rounded(model[f"layer{i + 1}.weight"], precision))
        if cache.masks:
            grad = np.where(cache.masks[i], rounded(grad * cache.scale, precision), real(0))
        grad = np.where(layer.z <= 0, real(0), grad)
        if layer.x_hat is not None and layer.inverse_std is not None:
            grad = grad.astype(layer.x_hat.dtype, copy=False)
            grads[f"norm{i}.weight"] = ops.sum(grad * layer.x_hat, axis=0)
            grads[f"norm{i}.bias"] = ops.sum(grad, axis=0)
            grad = grad * model[f"norm{i}.weight"]
            if cache.training:  # the batch's statistics depend on every sample
                batch = grad.dtype.type(len(grad))
                mean, slope = ops.sum(grad, axis=0) / batch, ops.sum(grad * layer.x_hat, axis=0) / batch
                grad = (grad - mean) - layer.x_hat * slope
            grad = rounded(grad * layer.inverse_std, precision)
        grads |= _linear_gradients(model, i, layer.x, grad, inner)
    return grads, grad


def depth_of(model: Mapping[str, Array]) -> int:
    """The number of linear layers."""
    return sum(name.startswith("layer") and name.endswith(".weight") for name in model)


def rounded(x: Array, precision: str | None) -> Array:
    """The array in a format; itself where it is in it already, or where none is given."""
    if precision is None or (precision != "bfloat16" and x.dtype == STORAGE[precision]):
        return x
    return np.asarray(cast(x, precision))


def _in_precision(ops: Arithmetic) -> Arithmetic:
    """The arithmetic whose products and sums end in its 16-bit format, rounded once; native ones through float32."""
    precision = ops.precision
    if precision in (None, "float32"):
        return ops
    if ops.name == "reproducible":
        return ops._replace(
            matmul=partial(arithmetic.matmul, kind=precision), sum=partial(arithmetic.sum, kind=precision)
        )
    wide = partial(np.asarray, dtype=np.float32)
    return ops._replace(
        matmul=lambda a, b: rounded(ops.matmul(wide(a), wide(b)), precision),
        sum=lambda a, **axes: rounded(np.asarray(ops.sum(wide(a), **axes)), precision),
    )


def _linear(model: Mapping[str, Array], i: int, x: Array, ops: Arithmetic) -> Array:
    weight, bias = (rounded(model[f"layer{i}.{name}"], ops.precision) for name in ("weight", "bias"))
    return rounded(_in_precision(ops).matmul(x, weight.T) + bias, ops.precision)


def _linear_gradients(model: Mapping[str, Array], i: int, x: Array, grad: Array, ops: Arithmetic) -> Arrays:
    kind = model[f"layer{i}.weight"].dtype
    by_weight, by_bias = ops.matmul(grad.T, x), ops.sum(grad, axis=0)
    return {f"layer{i}.weight": by_weight.astype(kind, copy=False), f"layer{i}.bias": by_bias.astype(kind, copy=False)}


def _normalise(
    model: Mapping[str, Array], name: str, z: Array, ops: Arithmetic, *, training: bool
) -> tuple[Array, Array, Array, Arrays]:
    """Batch normalisation: the output, what the backward pass needs, and the new buffers."""
    real, count = z.dtype.type, len(z)
    mean, var = model[f"{name}.running_mean"], model[f"{name}.running_var"]
    buffers: Arrays = {}
    if training:
        old_mean, old_var, keep, take = mean, var, real(1 - NORM_MOMENTUM), real(NORM_MOMENTUM)
        mean = ops.sum(z, axis=0) / real(count)
        squares = ops.sum((z - mean) * (z - mean), axis=0)
        var = squares / real(count)
        buffers = {
            f"{name}.running_mean": keep * old_mean + take * mean,
            f"{name}.running_var": keep * old_var + take * (squares / real(count - 1)),
            f"{name}.num_batches_tracked": np.asarray(model[f"{name}.num_batches_tracked"] + 1),  # stays an array
        }
    inverse_std = real(1) / ops.sqrt(var + real(NORM_EPS))
    x_hat = (z - mean) * inverse_std
    return x_hat * model[f"{name}.weight"] + model[f"{name}.bias"], x_hat, inverse_std, buffers
