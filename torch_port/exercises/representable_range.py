"""Cast to the formats of training, and find what they cannot hold.

Write three functions on tensors of float32, float16 or float64, of any shapes. The formats are "float16", "bfloat16"
and "float32".
"""

import torch

Array = torch.Tensor

TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def cast_to_dtype(x: Array, dtype: str) -> Array:
    """The nearest numbers that a format holds, ties to even.

    Args:
        x: any shape; left as it is. float64 may be rounded to float32 first.
        dtype: "float16", "bfloat16" or "float32".

    Returns:
        A new tensor of the same shape and of the format's type, also where nothing changes. Subnormal numbers are kept,
        and a zero has the sign of what it came from. What would round to more than the format's largest number is
        infinite. Infinity stays infinity, and NaN stays NaN.
    """
    return x.to(TYPES[dtype], copy=True)


def detect_underflow(original: Array, casted: Array) -> Array:
    """Where a cast made zero of a number that was none.

    Args:
        original: before the cast.
        casted: after it, the same shape.

    Returns:
        A tensor of bool, the same shape. Neither argument is changed.
    """
    return (original != 0) & (casted == 0)


def detect_overflow(casted: Array) -> Array:
    """Where a number is infinite, of either sign.

    Args:
        casted: after a cast; left as it is.

    Returns:
        A tensor of bool, the same shape. NaN is no overflow.
    """
    return torch.isinf(casted)
