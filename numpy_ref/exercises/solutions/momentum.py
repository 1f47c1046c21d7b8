"""Resume SGD with momentum, where "no buffer yet" is a state of its own.

Write five functions. Parameters, momentum buffers and the gradients of a step are lists of NumPy arrays, one for each
parameter, float64 or float32, of any shapes; types are kept. A buffer is None until the parameter's first gradient,
which may be zeros; a gradient is None where the parameter takes no part in the step.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Params = list[Array]
Buffers = list[Array | None]
Grads = list[Array | None]


def sgd_step(
    param: Array,
    grad: Array,
    buffer: Array | None,
    lr: float,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> tuple[Array, Array]:
    """One update of one parameter.

    b = g                                      where there is no buffer yet: the gradient as it is
    b = momentum b + (1 - dampening) g         otherwise
    d = g + momentum b                         with Nesterov's momentum, with the new b
    d = b                                      without
    p = p - lr d

    Args:
        param: the parameter.
        grad: its gradient.
        buffer: its momentum buffer, or None if it has none yet.
        lr: the learning rate.
        momentum: > 0.
        dampening: in [0, 1); 0 where nesterov is true.
        nesterov: look one step ahead.

    Returns:
        The new parameter and the new buffer. They share no memory with the arguments, which are left as they are.
    """
    buffer = grad.copy() if buffer is None else momentum * buffer + (1 - dampening) * grad
    direction = grad + momentum * buffer if nesterov else buffer
    return param - lr * direction, buffer


def save_checkpoint(params: Params, buffers: Buffers) -> dict[str, Any]:
    """What a full resume needs, independent of the arguments.

    Args:
        params: list of arrays.
        buffers: their momentum buffers, each an array or None.

    Returns:
        A dict with the keys "params" and "buffers". A buffer that is not there yet is None in it.
    """
    return {"params": [p.copy() for p in params], "buffers": [b if b is None else b.copy() for b in buffers]}


def train_n_steps(
    params: Params,
    buffers: Buffers,
    grads_sequence: list[Grads],
    lr: float,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> tuple[Params, Buffers]:
    """Take one step of SGD for each entry of `grads_sequence`.

    Args:
        params: list of arrays.
        buffers: their momentum buffers, each an array or None.
        grads_sequence: a list with one entry for each step: a list with a gradient for each parameter, or None for one
            that is left as it is in this step, with its buffer. It may be empty.
        lr: the learning rate.
        momentum: as for `sgd_step`.
        dampening: as for `sgd_step`.
        nesterov: as for `sgd_step`.

    Returns:
        (params, buffers) after the last step. The arguments are left as they are.
    """
    params, buffers = list(params), list(buffers)
    settings: dict[str, Any] = {"momentum": momentum, "dampening": dampening, "nesterov": nesterov}
    for grads in grads_sequence:
        for i, grad in enumerate(grads):
            if grad is not None:
                params[i], buffers[i] = sgd_step(params[i], grad, buffers[i], lr, **settings)
    return params, buffers


def resume_from_full_checkpoint(
    checkpoint: dict[str, Any],
    grads_sequence: list[Grads],
    lr: float,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> tuple[Params, Buffers]:
    """Go on from a checkpoint as if training had never stopped.

    Args:
        checkpoint: what `save_checkpoint` returned. It is left as it is.
        grads_sequence: the gradients of the steps to come.
        lr: the learning rate.
        momentum: as for `sgd_step`.
        dampening: as for `sgd_step`.
        nesterov: as for `sgd_step`.

    Returns:
        (params, buffers), bitwise what uninterrupted training gives; they share no memory with the checkpoint.
    """
    saved = save_checkpoint(checkpoint["params"], checkpoint["buffers"])
    return train_n_steps(
        saved["params"],
        saved["buffers"],
        grads_sequence,
        lr,
        momentum=momentum,
        dampening=dampening,
        nesterov=nesterov,
    )


def resume_from_weights_only(
    params: Params,
    grads_sequence: list[Grads],
    lr: float,
    *,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
) -> tuple[Params, Buffers]:
    """Start a new run on old weights: there is no buffer yet.

    Args:
        params: list of arrays.
        grads_sequence: the gradients of the steps to come.
        lr: the learning rate.
        momentum: as for `sgd_step`.
        dampening: as for `sgd_step`.
        nesterov: as for `sgd_step`.

    Returns:
        (params, buffers) of the new run. The arguments are left as they are.
    """
    copies = [p.copy() for p in params]
    nothing: Buffers = [None for _ in params]
    return train_n_steps(copies, nothing, grads_sequence, lr, momentum=momentum, dampening=dampening, nesterov=nesterov)
