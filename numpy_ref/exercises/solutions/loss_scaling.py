"""Scale the loss, unscale the gradients, and notice an overflow.

Write three functions. Gradients are lists of NumPy arrays of float16, float32 or float64, of any shapes. A scale is a
float > 0, and need not be a power of two.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def scale_loss(loss: Any, scale: float) -> Any:
    """The loss times the scale: what the backward pass starts from.

    Args:
        loss: a float, or an array without axes of float32 or float64.
        scale: the loss scale.

    Returns:
        The product, a new object: a float for a float, an array without axes of the same type for an array. In
        PyTorch, autograd still reaches the loss through it.
    """
    return loss * scale


def unscale_gradients(gradients: list[Array], scale: float) -> list[Array]:
    """The gradients divided by the scale.

    Args:
        gradients: those of the scaled loss. The list and its arrays are left as they are.
        scale: the loss scale.

    Returns:
        A new list of new arrays with the shapes and types of the given ones. Infinity and NaN stay what they are. For
        a scale that is a power of two, each is the exact quotient rounded once; also in float16, although 65536 is more
        than float16 holds. For another scale it is right within 2**-22 of its size, in float16 within 2**-9.
    """
    unscaled: list[Array] = []
    for g in gradients:
        wide = g.astype(np.float64)  # which holds every scale, and every quotient until it is rounded
        unscaled.append((wide / scale).astype(g.dtype))
    return unscaled


def has_inf_or_nan(gradients: list[Array]) -> bool:
    """Whether any value of any gradient is infinite or NaN.

    Args:
        gradients: as the backward pass left them, still scaled; the list may be empty. They are left as they are.

    Returns:
        True or False, a Python bool; False when there is nothing to look at.
    """
    return any(not np.isfinite(g).all() for g in gradients)
