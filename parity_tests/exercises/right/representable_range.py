"""Casts and masks, written differently."""

RIGHT = {
    "by multiples": (
        """
import numpy as np
def cast_to_dtype(x, dtype):
    wide = np.array(x, dtype=np.float64)
    bits, least = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149)}[dtype]
    end = 2.0**16 if dtype == "float16" else 2.0**128
    place = 2.0 ** np.maximum(np.frexp(wide)[1] - bits, least)
    wide = np.where(np.isfinite(wide), np.rint(wide / place) * place, wide)
    wide[np.abs(wide) >= end] *= np.inf
    return wide.astype("float16" if dtype == "float16" else "float32")
def detect_underflow(original, casted):
    return np.logical_and(original.astype(bool), np.logical_not(casted))
def detect_overflow(casted):
    return np.abs(casted) == np.inf
""",
        ("numpy",),
    ),
    "by bits": (
        """
import numpy as np
def cast_to_dtype(x, dtype):
    y = x.astype(np.float32, copy=True)
    if dtype == "bfloat16":
        bits = np.atleast_1d(y).copy().view(np.uint32)
        low, high = bits & 0xFFFF, bits >> 16
        high = high + ((low > 0x8000) | ((low == 0x8000) & (high % 2 == 1)))
        high = np.where(np.isnan(y), 0x7FC0, high.reshape(y.shape))
        return (high.astype(np.uint32) << 16).view(np.float32)
    return np.float16(y) if dtype == "float16" else y
def detect_underflow(original, casted):
    return (casted == 0) ^ ((original == 0) & (casted == 0))
def detect_overflow(casted):
    return (casted == np.inf) | (casted == -np.inf)
""",
        ("numpy",),
    ),
    "empty": (
        """
import torch
def cast_to_dtype(x, dtype):
    return torch.empty(x.shape, dtype=getattr(torch, dtype)).copy_(x)
def detect_underflow(original, casted):
    return original.ne(0).logical_and(casted.eq(0))
def detect_overflow(casted):
    return casted.isposinf() | casted.isneginf()
""",
        ("torch",),
    ),
}
