"""Arithmetic by result: the exact real value of each operation on its inputs, rounded once, ties to even.

`operations` has the functions; `rounding` and `elementary` what they are made of; `fixedpoint` the definition of every
result, in whole numbers.
"""

from numpy_ref.arithmetic.operations import (
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
