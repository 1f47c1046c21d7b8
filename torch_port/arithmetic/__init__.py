"""Arithmetic by result: the exact real value of each operation on its inputs, rounded once, ties to even.

The mirror of `numpy_ref.arithmetic`, on tensors. `operations` has the functions; `rounding` and `elementary` what they
are made of.
"""

from torch_port.arithmetic.operations import (
    NATIVE,
    REPRODUCIBLE,
    Arithmetic,
    arithmetic_named,
    check_subnormals,
    cos_pi,
    exp,
    log,
    matmul,
    power,
    round_to,
    sqrt,
    sum,
)

__all__ = [
    "NATIVE",
    "REPRODUCIBLE",
    "Arithmetic",
    "arithmetic_named",
    "check_subnormals",
    "cos_pi",
    "exp",
    "log",
    "matmul",
    "power",
    "round_to",
    "sqrt",
    "sum",
]
