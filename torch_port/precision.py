"""Formats of 16 bits: what they can hold, and dynamic loss scaling, which keeps gradients within it.

The functions of `numpy_ref.precision` on tensors, for those who write their own loop; a run uses PyTorch's own
`torch.amp.GradScaler`, which follows the same rules. What is made of plain numbers, the scaler's state and step, exists
once and is the reference's.
"""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor

from numpy_ref.precision import (
    CASTS,
    ScalerState,
    check_scale,
    decode_scaler,
    encode_scaler,
    faults_of_scaler,
    init_scaler,
    scaler_step,
)
from torch_port.arithmetic.rounding import STORAGE, round_to

__all__ = [
    "ScalerState",
    "cast_to_dtype",
    "decode_scaler",
    "detect_overflow",
    "detect_underflow",
    "encode_scaler",
    "faults_of_scaler",
    "has_inf_or_nan",
    "init_scaler",
    "scale_loss",
    "scaler_step",
    "unscale_gradients",
]

Gradients = TypeVar("Gradients", list[Tensor], dict[str, Tensor])
Loss = TypeVar("Loss", bound=Any)


def cast_to_dtype(x: Tensor, dtype: str) -> Tensor:
    """The nearest numbers of a format, ties to even.

    Args:
        x: float16, bfloat16, float32 or float64, any shape; left as it is.
        dtype: "float16", "bfloat16" or "float32".

    Returns:
        A new tensor of the format's type on the same device. What rounds past the range is infinite, what is at most
        half of the smallest subnormal is zero with its sign, and NaN stays NaN.

    Raises:
        TypeError: `x` is no such tensor.
        ValueError: an unknown format.

    Mirror:
        Bitwise `numpy_ref.precision.cast_to_dtype`.

    Example:
        >>> cast_to_dtype(torch.tensor([1e-8, 65519.99, 65520, 1 + 2**-11]), "float16").tolist()
        [0.0, 65504.0, inf, 1.0]
    """
    _check_tensor("cast_to_dtype: x", x)
    if not isinstance(dtype, str) or dtype not in CASTS:
        raise ValueError(f"cast_to_dtype: dtype: expected one of {', '.join(CASTS)}, found {dtype!r}.")
    if x.dtype == torch.float64:
        return round_to(x.detach(), dtype)  # PyTorch goes to 16 bits through float32, and rounds twice
    return x.detach().to(STORAGE[dtype], copy=True)


def detect_underflow(original: Tensor, casted: Tensor) -> Tensor:
    """Where a cast made zero of a number that was none.

    Args:
        original: before the cast, any shape.
        casted: after it, the same shape.

    Returns:
        bool, the shape.

    Raises:
        TypeError: an argument is no tensor of floats.
        ValueError: the shapes differ.

    Example:
        >>> x = torch.tensor([1e-8, 1.0, 0.0])
        >>> detect_underflow(x, cast_to_dtype(x, "float16"))
        tensor([ True, False, False])
    """
    _check_tensor("detect_underflow: original", original)
    _check_tensor("detect_underflow: casted", casted)
    if original.shape != casted.shape:
        shapes = f"{tuple(original.shape)} and {tuple(casted.shape)}"
        raise ValueError(f"detect_underflow: expected one shape, found {shapes}.")
    return (original != 0) & (casted == 0)


def detect_overflow(casted: Tensor) -> Tensor:
    """Where a cast number is infinite.

    Args:
        casted: after a cast, any shape.

    Returns:
        bool, the shape.

    Raises:
        TypeError: no tensor of floats.

    Example:
        >>> detect_overflow(cast_to_dtype(torch.tensor([65504, 65520, -1e30]), "float16"))
        tensor([False,  True,  True])
    """
    _check_tensor("detect_overflow: casted", casted)
    return casted.isinf()


def scale_loss(loss: Loss, scale: float) -> Loss:
    """The loss times the scale: what the backward pass starts from.

    Args:
        loss: a number, or a tensor without axes, for autograd; in float16 it becomes float32, the scale's type.
        scale: of the state, >= 0.

    Returns:
        The product, a new object.

    Raises:
        ValueError: a scale that is negative, infinite or NaN.

    Mirror:
        Bitwise `numpy_ref.precision.scale_loss`.

    Example:
        >>> scale_loss(torch.tensor(0.5), 1024.0)
        tensor(512.)
    """
    check_scale("scale_loss", scale)
    if not isinstance(loss, Tensor):
        return loss * scale  # type: ignore[no-any-return]
    return loss * torch.tensor(scale, dtype=torch.float32, device=loss.device)  # type: ignore[return-value]


def unscale_gradients(gradients: Gradients, scale: float) -> Gradients:
    """The gradients times the inverse of the scale.

        inverse = 1 / scale        formed in float64, rounded to float32
        g = g inverse              rounded to the gradient's own type; of 16 bits once, through float32

    Args:
        gradients: tensors of any shapes, in a list or by name; left as they are.
        scale: of the state, >= 0.

    Returns:
        New tensors of the same shapes, types and devices.

    Raises:
        ValueError: a scale that is negative, infinite or NaN.
        TypeError: a single tensor, or tensors of other types than floats.

    Mirror:
        Bitwise `numpy_ref.precision.unscale_gradients`.

    Source:
        `torch.amp.GradScaler.unscale_`: multiplied, not divided, which differs unless the scale is a power of two. It
        refuses gradients in float16: weights that are trained with a scale are to be float32.

    Example:
        >>> unscale_gradients([torch.tensor([1024.0, 2048.0])], 1024.0)
        [tensor([1., 2.])]
    """
    check_scale("unscale_gradients", scale)
    _check_gradients("unscale_gradients", gradients)
    for i, g in gradients.items() if isinstance(gradients, dict) else enumerate(gradients):
        _check_tensor(f"unscale_gradients: gradients[{i!r}]", g)
    inverse = torch.tensor(scale, dtype=torch.float64, device="cpu").reciprocal().float()
    if isinstance(gradients, dict):
        return {name: _times(g, inverse) for name, g in gradients.items()}
    return [_times(g, inverse) for g in gradients]


def has_inf_or_nan(gradients: Iterable[Tensor] | Mapping[str, Tensor]) -> bool:
    """Whether any element of any gradient is infinite or NaN; False when there is none.

    Asked of the scaled gradients, as torch does: unscaling may hide an overflow, or make one when the scale is below 1.

    Example:
        >>> has_inf_or_nan([torch.ones(2), torch.tensor([torch.nan])]), has_inf_or_nan([])
        (True, False)
    """
    _check_gradients("has_inf_or_nan", gradients)
    tensors = gradients.values() if isinstance(gradients, Mapping) else gradients
    return not all(bool(g.isfinite().all()) for g in tensors)


def _times(g: Tensor, inverse: Tensor) -> Tensor:
    """The product in the wider of the two types, rounded to the gradient's own."""
    wide = g.detach().to(torch.promote_types(g.dtype, torch.float32))
    return (wide * inverse.to(wide)).to(g.dtype)


def _check_tensor(where: str, x: object) -> None:
    """Refuse what is no tensor of floats; whole numbers have no format that could be compared."""
    if not isinstance(x, Tensor) or x.dtype not in STORAGE.values():
        found = f"a tensor of {x.dtype}" if isinstance(x, Tensor) else type(x).__name__
        raise TypeError(f"{where}: expected a tensor of float16, bfloat16, float32 or float64, found {found}.")


def _check_gradients(where: str, gradients: object) -> None:
    """Refuse a tensor that stands alone."""
    if isinstance(gradients, Tensor):
        raise TypeError(f"{where}: expected a list or a dict of tensors, found a single tensor. Put it into a list.")
