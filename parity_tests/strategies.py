"""What hypothesis draws: float32 matrices of every awkward kind."""

import numpy as np
from hypothesis import strategies as st

KINDS = ("normal", "relu", "signs", "wide", "subnormal", "bits", "ties", "special", "huge", "cancelling")


def float32_numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of one kind; "ties" and "cancelling" aim at what a single rounding gets wrong."""
    normal = rng.standard_normal(shape).astype(np.float32)
    if kind == "relu":
        return np.where(normal <= 0, np.float32(0), normal)
    if kind == "signs":
        return np.sign(normal) * rng.integers(0, 2, shape).astype(np.float32)
    if kind == "wide":
        return np.ldexp(normal, rng.integers(-120, 100, shape)).astype(np.float32)
    if kind == "subnormal":
        return np.ldexp(normal, rng.integers(-149, -60, shape)).astype(np.float32)
    if kind == "huge":
        return np.ldexp(normal, rng.integers(60, 126, shape)).astype(np.float32)
    if kind == "ties":  # few bits at two far scales: sums that end exactly between two float32 numbers
        return (rng.integers(-3, 4, shape) * np.exp2(rng.choice([0, 0, 1, 12, 24], shape))).astype(np.float32)
    if kind in ("bits", "special"):
        bits = rng.integers(0, 1 << 32, shape, dtype=np.uint64).astype(np.uint32).view(np.float32)
        if kind == "bits":
            return np.where(np.isfinite(bits), bits, np.float32(1))
        rare = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], np.float32), shape)
        return np.where(rng.random(shape) < 0.1, rare, normal)
    return normal


def _layout(draw: st.DrawFn, a: np.ndarray) -> np.ndarray:
    layout = draw(st.sampled_from(["C", "F", "strided", "reversed"]))
    if layout == "F":
        return np.asfortranarray(a)
    if layout == "strided":
        return np.repeat(a, 2, axis=-1)[..., ::2]
    return np.ascontiguousarray(a[::-1])[::-1] if layout == "reversed" else a


@st.composite
def factors(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, largest: int = 70) -> tuple[np.ndarray, np.ndarray]:
    """Two float32 matrices whose shapes chain; sizes 0 and 1 included, and enough terms to leave the vector width."""
    kind = draw(st.sampled_from(kinds))
    m, n = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    k = draw(st.one_of(st.integers(0, 3), st.integers(4, largest)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    a, b = float32_numbers(rng, kind, (m, k)), float32_numbers(rng, kind, (k, n))
    if kind == "cancelling" and k > 1:
        half = k // 2
        a[:, half : 2 * half] = a[:, :half]
        b[half : 2 * half] = -b[:half]
        if draw(st.booleans()):
            b[half] = np.nextafter(b[half], np.float32(9))
    return _layout(draw, a), _layout(draw, b)


@st.composite
def vectors(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS) -> np.ndarray:
    """A float32 array of one to three axes, sizes 0 and 1 included."""
    kind = draw(st.sampled_from(kinds))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 33]), min_size=1, max_size=3)))
    return _layout(draw, float32_numbers(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), kind, shape))
