"""What is timed, and the goals: reproducible operations as multiples of what they stand in for."""

import os
import tempfile
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np

from numpy_ref import RunConfig, arithmetic, load_data
from numpy_ref.data import Dataset, init_dataset
from numpy_ref.rng import draw_permutation, generator_from, init_stream
from parity_tests.benchmarks.measure import Row, Work, process

Array = np.ndarray
PRODUCT = "float64 BLAS, casts included,"  # a.astype(float64) @ b.astype(float64)


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


def product(kind: str, n: int) -> tuple[Work, Work]:
    a, b = factors(kind, n)
    return partial(arithmetic.matmul, a, b), lambda: a.astype(np.float64) @ b.astype(np.float64)


def long_sum() -> tuple[Work, Work]:
    a = np.random.default_rng(0).standard_normal(10**7).astype(np.float32)
    return partial(arithmetic.sum, a), partial(np.sum, a)


def function(name: str) -> tuple[Work, Work]:
    a = 5 * np.random.default_rng(0).standard_normal(10**6).astype(np.float32)
    a = np.abs(a) if name == "log" else a
    return partial(getattr(arithmetic, name), a), partial(getattr(np, name), a.astype(np.float64))


def training(package: str, data: Callable[[], Dataset], steps: int, **config: Any) -> tuple[Work, Work]:
    impl, loaded = import_module(package), data()

    def side(name: str) -> Work:
        run = impl.init_run(RunConfig(arithmetic=name, evaluate_every=10**9, **config), loaded)

        def work() -> None:
            nonlocal run  # the port's is used up
            run = impl.train_n_steps(run, loaded, steps)

        return work

    return side("reproducible"), side("native")


def random_images() -> Dataset:
    rng = np.random.default_rng(0)
    return init_dataset(rng.random((2560, 784), np.float32), rng.integers(0, 10, 2560), classes=10)


def permutation() -> tuple[Work, Work]:
    ours, other = (generator_from(init_stream(0, "order")) for _ in range(2))
    return partial(draw_permutation, ours, 10**6), partial(other.permutation, 10**6)


def whole_demo() -> tuple[Work]:
    def work() -> None:
        with tempfile.TemporaryDirectory() as folder:
            process("-m", "numpy_ref", "demo", "--figure", os.path.join(folder, "demo.svg"))()

    return (work,)


def _product_row(kind: str, n: int, goal: float | None) -> Row:
    return Row("matmul", f"matmul, {kind}, {n} x {n}", PRODUCT, goal, partial(product, kind, n))


DIGITS = {"hidden": (128, 128), "batch_size": 32}
IMAGES = {"hidden": (1024, 1024), "batch_size": 256}
STEPS = (
    ("on the digits, 64-128-128-10, batch 32", partial(load_data, "digits"), 60, DIGITS),
    ("on random images, 784-1024-1024-10, batch 256", random_images, 4, IMAGES),
)
ROWS = (
    *(_product_row(kind, n, 5 if n == 128 else 2.5) for kind in ("normal", "relu") for n in (128, 512, 1024, 2048)),
    *(_product_row("signs", n, 6) for n in (128, 512, 1024)),
    *(_product_row("cancelling", n, 40) for n in (128, 512)),
    *(_product_row("wide", n, None) for n in (128, 512)),
    Row("sum", "sum over 10^7", "np.sum", 8, long_sum),
    *(Row(name, f"{name} over 10^6", f"np.{name} of float64", 6, partial(function, name)) for name in ("exp", "log")),
    *(
        Row(
            group,
            f"{name} {sizes}, one thread",
            "native",
            goal,
            partial(training, package, data, steps, **config),
            steps,
        )
        for group, package, name, goals in (
            ("step", "numpy_ref", "training step", (6, 3)),
            ("port", "torch_port", "training step of the port", (5, 3)),
        )
        for goal, (sizes, data, steps, config) in zip(goals, STEPS, strict=True)
    ),
    Row("permutation", "permutation of 10^6", "Generator.permutation", 10, permutation),
    Row("process", "python -m numpy_ref --help", "", None, lambda: (process("-m", "numpy_ref", "--help"),)),
    Row("process", "python -m numpy_ref demo", "", None, whole_demo),
)
