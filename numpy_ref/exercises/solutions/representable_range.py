"""Cast to the formats of training, and find what they cannot hold.

Write three functions on NumPy arrays of float32, float16 or float64, of any shapes. The formats are "float16",
"bfloat16" and "float32". NumPy has no bfloat16: its numbers, which are those of float32 with 16 bits fewer, are carried
in arrays of float32.
"""

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


def cast_to_dtype(x: Array, dtype: str) -> Array:
    """The nearest numbers that a format holds, ties to even.

    Args:
        x: any shape; left as it is. float64 may be rounded to float32 first.
        dtype: "float16", "bfloat16" or "float32".

    Returns:
        A new array of the same shape, also where nothing changes; of type float32 for "bfloat16". Subnormal numbers are
        kept, and a zero has the sign of what it came from. What would round to more than the format's largest number is
        infinite. Infinity stays infinity, and NaN stays NaN.
    """
    if dtype == "bfloat16":
        return _to_bfloat16(x.astype(np.float32))
    return x.astype(dtype)


def _to_bfloat16(x: Array) -> Array:
    """float32 rounded to its upper 16 bits: half of their last place is added, one bit less if that place is even."""
    bits = x.view(np.uint32)
    rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000
    return np.where(np.isnan(x), x, rounded.view(np.float32))  # a NaN would be carried to zero or infinity


def detect_underflow(original: Array, casted: Array) -> Array:
    """Where a cast made zero of a number that was none.

    Args:
        original: before the cast.
        casted: after it, the same shape.

    Returns:
        An array of bool, the same shape. Neither argument is changed.
    """
    return np.asarray((original != 0) & (casted == 0))


def detect_overflow(casted: Array) -> Array:
    """Where a number is infinite, of either sign.

    Args:
        casted: after a cast; left as it is.

    Returns:
        An array of bool, the same shape. NaN is no overflow.
    """
    return np.asarray(np.isinf(casted))
