"""Reproducible operations as multiples of what they stand in for, and of what else there is."""

from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np

from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.rng import draw_permutation, generator_from, init_stream
from parity_tests.benchmarks.measure import OURS, Row, Sides, spent

Array = np.ndarray
PRODUCT = "float64 BLAS, casts included"  # a.astype(float64) @ b.astype(float64)


def installed(name: str) -> ModuleType | None:
    """A peer, or None where it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        return None


def factors(kind: str, n: int) -> tuple[Array, Array]:
    """Two n by n matrices of float32."""
    rng = np.random.default_rng(n)
    a, b = (rng.standard_normal((n, n)).astype(np.float32) for _ in range(2))
    if kind == "relu":
        a = np.where(a <= 0, np.float32(0), a)
    elif kind == "signs":
        a, b = np.sign(a), np.sign(b)
    elif kind == "cancelling":  # each product and its negative, but for the last bit of one number in 32
        half = n // 2
        a[:, half:], b[half:] = a[:, :half], -b[:half]
        b[half::32] = np.nextafter(b[half::32], np.float32(9))
    elif kind == "wide":
        a, b = (np.ldexp(x, rng.integers(-60, 60, x.shape, np.int32)) for x in (a, b))
    return a, b


def product(kind: str, n: int, _: Path) -> Sides:
    a, b = factors(kind, n)
    torch = installed("torch")
    return {
        OURS: spent(partial(arithmetic.matmul, a, b)),
        PRODUCT: spent(lambda: a.astype(np.float64) @ b.astype(np.float64)),
        "float32 BLAS": spent(partial(np.matmul, a, b)),
        "torch.matmul": spent(partial(torch.matmul, torch.from_numpy(a), torch.from_numpy(b))) if torch else None,
    }


def long_sum(_: Path) -> Sides:
    a = np.random.default_rng(0).standard_normal(10**7).astype(np.float32)
    torch = installed("torch")
    return {
        OURS: spent(partial(arithmetic.sum, a)),
        "np.sum": spent(partial(np.sum, a)),
        "torch.sum": spent(partial(torch.sum, torch.from_numpy(a))) if torch else None,
    }


def function(name: str, _: Path) -> Sides:
    a = 5 * np.random.default_rng(0).standard_normal(10**6).astype(np.float32)
    a = np.abs(a) if name == "log" else a
    torch = installed("torch")
    return {
        OURS: spent(partial(getattr(arithmetic, name), a)),
        f"np.{name} of float64": spent(partial(getattr(np, name), a.astype(np.float64))),
        f"np.{name} of float32": spent(partial(getattr(np, name), a)),
        f"torch.{name}": spent(partial(getattr(torch, name), torch.from_numpy(a))) if torch else None,
    }


def permutation(_: Path) -> Sides:
    ours, other = (generator_from(init_stream(0, "order")) for _ in range(2))
    return {
        OURS: spent(partial(draw_permutation, ours, 10**6)),
        "Generator.permutation": spent(partial(other.permutation, 10**6)),
    }


def _product_rows(kind: str, sizes: tuple[int, ...], goal: dict[str, float], small: dict[str, float]) -> list[Row]:
    return [
        Row("matmul", f"matmul, {kind}, {n} x {n}", partial(product, kind, n), small if n <= 128 else goal)
        for n in sizes
    ]


ROWS = (
    *_product_rows("normal", (64, 128, 512, 1024, 2048), {PRODUCT: 2.5}, {PRODUCT: 5}),
    *_product_rows("relu", (64, 128, 512, 1024, 2048), {PRODUCT: 2.5}, {PRODUCT: 5}),
    *_product_rows("signs", (64, 128, 512, 1024, 2048), {PRODUCT: 6}, {PRODUCT: 6}),
    *_product_rows("cancelling", (64, 128, 512, 1024), {PRODUCT: 40}, {PRODUCT: 40}),
    *_product_rows("wide", (128, 512), {}, {}),
    Row("sum", "sum over 10^7", long_sum, {"np.sum": 8}),
    *(Row(name, f"{name} over 10^6", partial(function, name), {f"np.{name} of float64": 6}) for name in ("exp", "log")),
    Row("permutation", "permutation of 10^6", permutation, {"Generator.permutation": 10}),
)
