"""Gradient checkpointing: keep the input alone, and compute the rest again when the gradients need it.

Write six functions for a network of N layers. Each layer is z = x W^T + b, followed by a ReLU, max(z, 0); the last
one has its ReLU, too. Weights have the shape (outputs, inputs), biases (outputs,), and a batch has one sample a row.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Arrays = list[Array]
Gradients = tuple[Array, Arrays, Arrays]  # by the input, the weights, the biases; lists from the first layer on


def linear_backward(grad_output: Array, input: Array, weight: Array) -> tuple[Array, Array, Array]:
    """The gradients of one linear layer, z = input W^T + b, without its ReLU.

    Args:
        grad_output: the gradient by z, of shape (batch, outputs).
        input: the layer's input, of shape (batch, inputs).
        weight: W, of shape (outputs, inputs).

    Returns:
        (grad_input, grad_weight, grad_bias), of the shapes (batch, inputs), (outputs, inputs) and (outputs,). Those by
        the weight and the bias are sums over the batch.
    """
    return grad_output @ weight, grad_output.T @ input, grad_output.sum(0)


def forward_full(x: Array, weights: Arrays, biases: Arrays) -> tuple[Array, Arrays, Arrays]:
    """The forward pass that keeps everything.

    Args:
        x: the input, of shape (batch, inputs).
        weights: list of N arrays of shape (outputs, inputs).
        biases: list of N arrays of shape (outputs,).

    Returns:
        (output, activations, pre_activations): the output of the last ReLU; a list of N + 1 arrays, x first and then
        what each ReLU returns; a list of N arrays, each layer's z.
    """
    activations, pre_activations = [x], []
    for weight, bias in zip(weights, biases, strict=True):
        z = activations[-1] @ weight.T + bias
        pre_activations.append(z)
        activations.append(z.clip(min=0))
    return activations[-1], activations, pre_activations


def backward_full(grad_output: Array, activations: Arrays, pre_activations: Arrays, weights: Arrays) -> Gradients:
    """The backward pass from what `forward_full` kept.

    Args:
        grad_output: the gradient by the output, of its shape.
        activations: list of N + 1 arrays, the input first.
        pre_activations: list of N arrays.
        weights: list of N arrays.

    Returns:
        (grad_x, grad_weights, grad_biases); the two lists begin with the first layer's. The slope of a ReLU is 1 where
        z > 0, and 0 elsewhere, also at exactly 0.
    """
    grad = grad_output
    grad_weights, grad_biases = [], []
    for i in reversed(range(len(weights))):
        grad = grad * (pre_activations[i] > 0)
        grad, grad_weight, grad_bias = linear_backward(grad, activations[i], weights[i])
        grad_weights.append(grad_weight)
        grad_biases.append(grad_bias)
    return grad, grad_weights[::-1], grad_biases[::-1]


def forward_checkpointed(x: Array, weights: Arrays, biases: Arrays) -> Array:
    """The forward pass that keeps nothing.

    Args:
        x: as in `forward_full`.
        weights: as in `forward_full`.
        biases: as in `forward_full`.

    Returns:
        The output alone, bitwise that of `forward_full`. Nothing is stored for later, anywhere.
    """
    for weight, bias in zip(weights, biases, strict=True):
        x = (x @ weight.T + bias).clip(min=0)
    return x


def backward_checkpointed(grad_output: Array, x: Array, weights: Arrays, biases: Arrays) -> Gradients:
    """The backward pass from the input alone: it computes again what the forward pass did not keep.

    Args:
        grad_output: the gradient by the output.
        x: the input.
        weights: list of N arrays.
        biases: list of N arrays.

    Returns:
        (grad_x, grad_weights, grad_biases), bitwise what `backward_full` returns after `forward_full`.
    """
    _, activations, pre_activations = forward_full(x, weights, biases)
    return backward_full(grad_output, activations, pre_activations, weights)


def count_stored_activations(num_layers: int, use_checkpointing: bool) -> int:
    """How many activations are stored from the end of the forward pass to the start of the backward pass.

    Args:
        num_layers: N, at least 1.
        use_checkpointing: False for `forward_full`, True for `forward_checkpointed`, whose caller stores x.

    Returns:
        The length of `activations`, an int; the input counts, the values before the ReLUs do not.
    """
    return 1 if use_checkpointing else num_layers + 1
