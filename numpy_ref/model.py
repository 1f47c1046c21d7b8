"""A multi-layer perceptron, its loss and its gradients, as pure functions of named arrays.

Sizes: B batch, D inputs, H hidden, C classes. A hidden layer is linear, batch normalisation if wanted, ReLU, dropout;
the last layer is linear. Weights have PyTorch's layout, (outputs, inputs). Dropout masks are drawn outside and handed
in, so that a forward pass consumes no randomness. Everything works in the type of the arrays it is given.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.arithmetic import Arithmetic
from numpy_ref.rng import draw_bernoulli, draw_uniform

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

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
    """The arrays of a model in their order, shapes and types, all zero: what a checkpoint must hold."""
    model: Arrays = {}
    for i, (fan_in, fan_out) in enumerate(pairwise([inputs, *hidden, classes])):
        model[f"layer{i}.weight"] = np.zeros((fan_out, fan_in), np.float32)
        model[f"layer{i}.bias"] = np.zeros(fan_out, np.float32)
        if batch_norm and i < len(hidden):
            for name in ("weight", "bias", "running_mean", "running_var"):
                model[f"norm{i}.{name}"] = np.zeros(fan_out, np.float32)
            model[f"norm{i}.num_batches_tracked"] = np.array(0, np.int64)
    return model


def parameters(model: Mapping[str, Array]) -> Arrays:
    """The arrays that an optimizer changes: all but batch normalisation's buffers."""
    return {name: array for name, array in model.items() if not name.endswith(BUFFERS)}


def draw_masks(generator: np.random.Generator, hidden: Sequence[int], batch: int, dropout: float) -> list[Array]:
    """Which hidden units stay, one bool array (B, H) a hidden layer; no draw and no mask without dropout.

    Resume:
        If the generator's state is lost, other units are dropped from the first step on.
    """
    return [draw_bernoulli(generator, 1 - dropout, (batch, h)) for h in hidden] if dropout else []


class LayerCache(NamedTuple):
    """What the backward pass needs of one hidden layer."""

    x: Array  # (B, H before) its input
    z: Array  # (B, H) before the ReLU
    x_hat: Array | None  # (B, H) normalised, with batch normalisation
    inverse_std: Array | None  # (H,)


class Cache(NamedTuple):
    """What the backward pass needs of a forward pass."""

    hidden: list[LayerCache]
    last: Array  # (B, H) input of the last layer
    masks: list[Array]
    scale: float  # factor of the units that stay
    training: bool


def forward(
    model: Mapping[str, Array],
    x: Array,
    ops: Arithmetic,
    *,
    training: bool,
    masks: Sequence[Array] = (),
    dropout: float = 0.0,
) -> tuple[Array, Cache, Arrays]:
    """Logits of a batch.

        z = x W^T + b
        z = gamma (z - mean) / sqrt(variance + eps) + beta      with batch normalisation
        x = z where z > 0, else 0                               x = x / (1 - dropout) where the mask keeps, else 0

    Args:
        model: as `init_model` makes it.
        x: (B, D).
        ops: the arithmetic.
        training: normalise with the batch's statistics and drop units; else with the running ones, nothing dropped.
        masks: one (B, H) a hidden layer, or none.
        dropout: the share the masks drop.

    Returns:
        logits (B, C); the cache for `backward`; batch normalisation's new buffers (none outside training).
    """
    hidden, buffers = [], {}
    masks = list(masks) if training else []
    scale = 1 / (1 - dropout)
    depth = depth_of(model)
    for i in range(depth - 1):
        z = _linear(model, i, x, ops)
        x_hat = inverse_std = None
        if f"norm{i}.weight" in model:
            z, x_hat, inverse_std, new = _normalise(model, f"norm{i}", z, ops, training=training)
            buffers.update(new)
        hidden.append(LayerCache(x, z, x_hat, inverse_std))
        x = np.where(z <= 0, z.dtype.type(0), z)  # +0 for either zero, and NaN stays
        if masks:
            x = np.where(masks[i], x * x.dtype.type(scale), x.dtype.type(0))
    return _linear(model, depth - 1, x, ops), Cache(hidden, x, masks, scale, training), buffers


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


def backward(model: Mapping[str, Array], cache: Cache, grad: Array, ops: Arithmetic) -> Arrays:
    """Gradients of the loss by every parameter.

        dW = g^T x;  db = sum of g over the batch;  dx = g W
        through dropout: g / (1 - dropout) where kept, else 0;  through ReLU: 0 where z <= 0
        through batch normalisation, with n = g gamma:
            dgamma = sum(g x_hat);  dbeta = sum(g)
            dz = (n - sum(n) / B - x_hat sum(n x_hat) / B) / std      in training;  n / std outside

    Args:
        model: the arrays of the forward pass.
        cache: of the forward pass.
        grad: (B, C), the gradient by the logits.
        ops: the arithmetic.

    Returns:
        name to array, the names and shapes of `parameters(model)`.
    """
    real, last = grad.dtype.type, len(cache.hidden)
    grads = _linear_gradients(last, cache.last, grad, ops)
    for i in reversed(range(last)):
        layer = cache.hidden[i]
        grad = ops.matmul(grad, model[f"layer{i + 1}.weight"])
        if cache.masks:
            grad = np.where(cache.masks[i], grad * real(cache.scale), real(0))
        grad = np.where(layer.z <= 0, real(0), grad)
        if layer.x_hat is not None and layer.inverse_std is not None:
            grads[f"norm{i}.weight"] = ops.sum(grad * layer.x_hat, axis=0)
            grads[f"norm{i}.bias"] = ops.sum(grad, axis=0)
            grad = grad * model[f"norm{i}.weight"]
            if cache.training:  # the batch's statistics depend on every sample
                batch = real(len(grad))
                mean, slope = ops.sum(grad, axis=0) / batch, ops.sum(grad * layer.x_hat, axis=0) / batch
                grad = (grad - mean) - layer.x_hat * slope
            grad = grad * layer.inverse_std
        grads |= _linear_gradients(i, layer.x, grad, ops)
    return {name: grads[name] for name in parameters(model)}


def depth_of(model: Mapping[str, Array]) -> int:
    """The number of linear layers."""
    return sum(name.startswith("layer") and name.endswith(".weight") for name in model)


def _linear(model: Mapping[str, Array], i: int, x: Array, ops: Arithmetic) -> Array:
    return ops.matmul(x, model[f"layer{i}.weight"].T) + model[f"layer{i}.bias"]


def _linear_gradients(i: int, x: Array, grad: Array, ops: Arithmetic) -> Arrays:
    return {f"layer{i}.weight": ops.matmul(grad.T, x), f"layer{i}.bias": ops.sum(grad, axis=0)}


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
