"""The numbers that the laws of the exercise `representable_range` expect."""

from fractions import Fraction

import numpy as np

from numpy_ref.exercises.representable_range import FORMATS, nearest
from parity_tests import oracles


def test_the_laws_expect_what_exact_fractions_give() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 300, np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    for dtype in FORMATS:
        expected = [float(oracles.nearest(Fraction(float(v)), dtype)) for v in x]
        assert nearest(x, dtype).tolist() == expected
