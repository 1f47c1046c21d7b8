"""What hypothesis draws: matrices of every awkward kind, and runs with a data set they are valid for."""

from typing import Any

import numpy as np
from hypothesis import strategies as st

from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, init_dataset

KINDS = ("normal", "relu", "signs", "wide", "subnormal", "bits", "ties", "special", "huge", "cancelling")


# For each type: exponents of "wide", "subnormal" and "huge" numbers, and far scales whose sums end in ties.
SCALES = {
    np.dtype(np.float16): ((-20, 12), (-24, -12), (8, 14), (0, 0, 1, 5, 11)),
    np.dtype(np.float32): ((-120, 100), (-149, -60), (60, 126), (0, 0, 1, 12, 24)),
    np.dtype(np.float64): ((-1000, 900), (-1074, -500), (500, 1022), (0, 0, 1, 26, 53)),
}


def numbers(rng: np.random.Generator, kind: str, shape: tuple[int, ...], dtype: Any = np.float32) -> np.ndarray:
    """Numbers of one kind; "ties" and "cancelling" aim at what a single rounding gets wrong."""
    dtype = np.dtype(dtype)
    wide, subnormal, huge, far = SCALES[dtype]
    normal = rng.standard_normal(shape).astype(dtype)
    if kind == "relu":
        return np.where(normal <= 0, dtype.type(0), normal)
    if kind == "signs":
        return np.sign(normal) * rng.integers(0, 2, shape).astype(dtype)
    if kind in ("wide", "subnormal", "huge"):
        ends = {"wide": wide, "subnormal": subnormal, "huge": huge}[kind]
        with np.errstate(over="ignore", under="ignore"):
            scaled = np.ldexp(normal, rng.integers(*ends, shape).astype(np.int32)).astype(dtype)
        return np.where(np.isfinite(scaled), scaled, dtype.type(1))
    if kind == "ties":
        return (rng.integers(-3, 4, shape) * np.exp2(rng.choice(far, shape))).astype(dtype)
    if kind in ("bits", "special"):
        words = rng.integers(0, 1 << 32, (2, *shape), dtype=np.uint64)
        bits = ((words[0] << np.uint64(32)) | words[1]).astype(f"u{dtype.itemsize}").view(dtype)
        if kind == "bits":
            return np.where(np.isfinite(bits), bits, dtype.type(1))
        rare = rng.choice(np.array([np.inf, -np.inf, np.nan, 0.0, -0.0], dtype), shape)
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
def factors(
    draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, largest: int = 70, dtype: Any = np.float32
) -> tuple[np.ndarray, np.ndarray]:
    """Two matrices whose shapes chain; sizes 0 and 1 included, and enough terms to leave the vector width."""
    kind = draw(st.sampled_from(kinds))
    m, n = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    k = draw(st.one_of(st.integers(0, 3), st.integers(4, largest)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    a, b = numbers(rng, kind, (m, k), dtype), numbers(rng, kind, (k, n), dtype)
    if kind == "cancelling" and k > 1:
        half = k // 2
        a[:, half : 2 * half] = a[:, :half]
        b[half : 2 * half] = -b[:half]
        if draw(st.booleans()):
            b[half] = np.nextafter(b[half], b.dtype.type(9))
    return _layout(draw, a), _layout(draw, b)


@st.composite
def vectors(draw: st.DrawFn, kinds: tuple[str, ...] = KINDS, dtype: Any = np.float32) -> np.ndarray:
    """An array of one to three axes, sizes 0 and 1 included."""
    kind = draw(st.sampled_from(kinds))
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 2, 3, 7, 33]), min_size=1, max_size=3)))
    return _layout(draw, numbers(np.random.default_rng(draw(st.integers(0, 2**32 - 1))), kind, shape, dtype))


def small_data(seed: int = 0, *, samples: int = 23, inputs: int = 3, classes: int = 3) -> Dataset:
    """A data set of standard normal inputs and uniform labels; every fifth sample is held out."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((samples, inputs)).astype(np.float32)
    return init_dataset(x, rng.integers(0, classes, samples), classes=classes)


@st.composite
def run_configs(draw: st.DrawFn, *, arithmetic: str | None = None, **fixed: Any) -> tuple[RunConfig, Dataset]:
    """A configuration and a data set that it can be trained on.

    Args:
        draw: hypothesis' own.
        arithmetic: "reproducible" or "native"; drawn when None.
        fixed: fields of RunConfig to take as they are; what depends on them is drawn to fit.
    """
    if arithmetic is not None:
        fixed["arithmetic"] = arithmetic
    chosen: dict[str, Any] = {}

    def pick(name: str, strategy: st.SearchStrategy[Any]) -> Any:
        chosen[name] = fixed[name] if name in fixed else draw(strategy, label=name)
        return chosen[name]

    data = small_data(
        draw(st.integers(0, 2**32 - 1), label="data seed"),
        samples=draw(st.integers(10, 40), label="samples"),
        inputs=draw(st.integers(1, 7), label="inputs"),
        classes=draw(st.integers(2, 4), label="classes"),
    )
    n = len(data.labels)
    pick("arithmetic", st.sampled_from(["reproducible", "native"]))
    pick("seed", st.one_of(st.integers(0, 3), st.integers(0, 2**64 - 1)))
    pick("hidden", st.lists(st.integers(1, 9), max_size=2).map(tuple))
    pick("dropout", st.sampled_from([0.0, 0.3]))
    pick("noise", st.sampled_from([0.0, 0.125, 0.3]))
    if pick("batch_norm", st.booleans()):  # a batch of one sample has no variance
        pick("batch_size", st.sampled_from([b for b in range(2, n + 3) if n % b != 1]))
    else:
        pick("batch_size", st.one_of(st.integers(1, 7), st.integers(1, n + 2)))
    pick("accumulation", st.integers(1, 3))
    pick("learning_rate", st.sampled_from([0.05, 0.01, 1e-3]))
    pick("weight_decay", st.sampled_from([0.0, 0.01, 0.1]))
    if pick("optimizer", st.sampled_from(["adam", "adamw", "sgd"])) == "sgd":
        if (
            pick("momentum", st.sampled_from([0.9, 0.5] if fixed.get("nesterov") else [0.9, 0.5, 0.0])) > 0
            and fixed.get("dampening", 0.0) == 0
        ):
            pick("nesterov", st.booleans())
        if not chosen.get("nesterov", False):
            pick("dampening", st.sampled_from([0.0, 0.25]))
    else:
        pick("amsgrad", st.booleans())
        pick("beta1", st.sampled_from([0.0, 0.8, 0.9]))
        pick("beta2", st.sampled_from([0.9, 0.999]))
        pick("eps", st.sampled_from([1e-8, 1e-3]))
    if pick("precision", st.sampled_from(["float32", "float32", "bfloat16", "float16"])) == "float16":
        pick("init_scale", st.sampled_from([2.0**10, 2.0**16, 2.0**24, 1e5 + 0.1]))  # from 2**16 on some overflow
        pick("growth_factor", st.sampled_from([2.0, 1.5]))
        pick("backoff_factor", st.sampled_from([0.5, 0.3]))
        pick("growth_interval", st.integers(1, 3))
    pick("recompute_segments", st.integers(0, len(chosen["hidden"]) + 1))
    schedule = pick("schedule", st.sampled_from(["constant", "step", "warmup_cosine"]))
    if schedule == "step":
        pick("step_size", st.integers(2, 5))
        pick("gamma", st.sampled_from([0.5, 0.9, 1.1]))
    elif schedule == "warmup_cosine":
        pick("total_steps", st.integers(10, 40))
        pick("warmup_steps", st.integers(0, min(5, chosen["total_steps"] - 1)))
    pick("evaluate_every", st.integers(1, 5))
    return RunConfig(**(chosen | fixed)), data
