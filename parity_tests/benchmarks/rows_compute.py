"""Reproducible operations, steps of optimizers and of training, as multiples of what they stand in for.

Beside both packages: NumPy, stock PyTorch, and the other way to equal bits.
"""

from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import RunConfig, load_data
from numpy_ref import model as network
from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.arithmetic.operations import REPRODUCIBLE
from numpy_ref.data import Dataset, init_dataset
from numpy_ref.optim import adam_step, init_adam
from numpy_ref.rng import draw_permutation, generator_from, init_stream
from parity_tests.benchmarks.measure import OURS, Row, Sides, Work, installed, spent

Array = np.ndarray
PRODUCT = "float64 BLAS, casts included"  # a.astype(float64) @ b.astype(float64)


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


WORDS = 7  # a parameter's traffic in one step of Adam: w, g, m, v are read, and w, m, v written


class Size(NamedTuple):
    """A network, its batch, and how many steps one timing takes."""

    inputs: int
    hidden: tuple[int, ...]
    batch: int
    steps: int

    def __str__(self) -> str:
        return f"{'-'.join(map(str, (self.inputs, *self.hidden, 10)))}, batch {self.batch}"


SIZES = (Size(64, (128,), 32, 60), Size(784, (256, 256), 128, 20), Size(784, (1024, 1024), 256, 8))


def images(size: Size) -> Dataset:
    """The digits, or random images."""
    if size.inputs == 64:
        return load_data("digits")
    rng = np.random.default_rng(0)
    return init_dataset(rng.random((2560, size.inputs), np.float32), rng.integers(0, 10, 2560), classes=10)


def config(size: Size, arithmetic: str) -> RunConfig:
    """Adam, no dropout, nothing evaluated."""
    return RunConfig(
        hidden=size.hidden, batch_size=size.batch, dropout=0.0, arithmetic=arithmetic, evaluate_every=2**31 - 1
    )


def own_steps(package: str, size: Size, arithmetic: str) -> Work:
    """Some steps of a run of a package."""
    impl, data = import_module(package), images(size)
    run = impl.init_run(config(size, arithmetic), data)

    def work() -> Any:
        nonlocal run  # the port's is used up
        run = impl.train_n_steps(run, data, size.steps)
        return run

    return work


def stock_steps(size: Size, **adam: bool) -> Work:
    """As many steps of the same network as PyTorch is written by everybody."""
    torch, data = import_module("torch"), images(size)
    x, labels = torch.tensor(data.inputs), torch.tensor(data.labels)
    ends = (size.inputs, *size.hidden, 10)
    layers: list[Any] = []
    for fan_in, fan_out in pairwise(ends):
        layers += [torch.nn.Linear(fan_in, fan_out), torch.nn.ReLU()]
    model = torch.nn.Sequential(*layers[:-1])
    optimizer = torch.optim.Adam(model.parameters(), **adam)

    def batches() -> Iterator[Any]:
        while True:
            yield from torch.randperm(len(labels)).split(size.batch)

    order = batches()

    def work() -> float:
        loss = 0.0
        for _ in range(size.steps):
            samples = next(order)
            optimizer.zero_grad()
            result = torch.nn.functional.cross_entropy(model(x[samples]), labels[samples])
            result.backward()
            optimizer.step()
            loss = result.item()
        return loss

    return work


def rank_one_products(a: Array, b: Array) -> Array:
    """A matrix product with the same bits everywhere in the other way: one order of additions, each one rounded."""
    out = np.zeros((len(a), b.shape[1]), a.dtype)
    term = np.empty_like(out)
    for column, row in zip(a.T, b, strict=True):
        np.multiply(column[:, None], row, out=term)
        out += term
    return out


def fixed_order_step(size: Size) -> Work:
    """One step with `rank_one_products` for every matrix product."""
    data, ops = images(size), REPRODUCIBLE._replace(matmul=rank_one_products)
    run = import_module("numpy_ref").init_run(config(size, "reproducible"), data)
    model, state = run.state.model, run.state.optimizer

    def work() -> Any:
        nonlocal model, state
        x, labels = data.inputs[: size.batch], data.labels[: size.batch]
        logits, cache, _ = network.forward(model, x, ops, training=True)
        loss, grad = network.cross_entropy(logits, labels, ops, count=len(labels))
        grads = network.backward(model, cache, grad, ops)
        model, state = adam_step(model, state, grads, ops, learning_rate=1e-3)
        return float(loss)

    return work


def native(size: Size, _: Path) -> Sides:
    torch = installed("torch")
    return {
        OURS: spent(own_steps("numpy_ref", size, "native"), steps=size.steps),
        "stock PyTorch": spent(stock_steps(size), steps=size.steps) if torch else None,
        "stock PyTorch, foreach": spent(stock_steps(size, foreach=True), steps=size.steps) if torch else None,
        "stock PyTorch, fused": spent(stock_steps(size, fused=True), steps=size.steps) if torch else None,
    }


def reproducible(package: str, size: Size, _: Path) -> Sides:
    torch = installed("torch")
    return {
        OURS: spent(own_steps(package, size, "reproducible"), steps=size.steps),
        "its own native": spent(own_steps(package, size, "native"), steps=size.steps),
        "stock PyTorch": spent(stock_steps(size), steps=size.steps) if torch else None,
    }


def other_way(package: str, size: Size, _: Path) -> Sides:
    return {
        OURS: spent(own_steps(package, size, "reproducible"), steps=size.steps),
        "sums of rank-1 products": spent(fixed_order_step(size)),
    }


def numbers(count: int, each: int) -> list[Array]:
    """Arrays for the parameters of an optimizer, or for their gradients."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal(each, np.float32) for _ in range(count)]


def stock_adam(make: Callable[..., Any], count: int, each: int, **settings: bool) -> Work:
    """A step of an optimizer of PyTorch's interface."""
    torch = import_module("torch")
    params = [torch.nn.Parameter(torch.tensor(array)) for array in numbers(count, each)]
    for p, gradient in zip(params, numbers(count, each), strict=True):
        p.grad = torch.tensor(gradient)
    optimizer = make(params, **settings)
    return lambda: optimizer.step()


def own_adam(count: int, each: int) -> Work:
    """A step of `numpy_ref.optim`, in place as that of a training loop is."""
    params, grads = ({f"w{i}": array for i, array in enumerate(numbers(count, each))} for _ in range(2))
    state = init_adam(params)

    def work() -> Any:
        nonlocal params, state
        params, state = adam_step(params, state, grads, REPRODUCIBLE, learning_rate=1e-3, in_place=True)
        return params

    return work


def bandwidth(parameters: int) -> Callable[[], float]:
    """Seconds to move as many words as Adam must, at the speed of an addition in place: two read, one written over."""
    target, source = (np.zeros(parameters, np.float32) for _ in range(2))
    addition = spent(lambda: np.add(target, source, out=target))
    return lambda: addition() * WORDS / 3


def beside_adam(count: int, each: int) -> Sides:
    torch = installed("torch")
    kinds = {"single tensor": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
    stock: Sides = {
        f"torch.optim.Adam, {name}": spent(stock_adam(torch.optim.Adam, count, each, **settings)) if torch else None
        for name, settings in kinds.items()
    }
    return stock | {f"memory, {WORDS} words each": bandwidth(count * each)}


def adam(count: int, each: int, _: Path) -> Sides:
    ours: Sides = {OURS: spent(own_adam(count, each))}
    return ours | beside_adam(count, each)


def adam_of_the_port(count: int, each: int, _: Path) -> Sides:
    ours: Sides = {OURS: spent(stock_adam(import_module("torch_port.optim").Adam, count, each))}
    return ours | beside_adam(count, each)


def _named(of: str, size: Size) -> str:
    return f"reproducible training step{of}, {size}"


def _product_rows(kind: str, sizes: tuple[int, ...], goal: dict[str, float], small: dict[str, float]) -> list[Row]:
    return [
        Row("matmul", f"matmul, {kind}, {n} x {n}", partial(product, kind, n), small if n <= 128 else goal)
        for n in sizes
    ]


FOREACH = "torch.optim.Adam, foreach"
PACKAGES = (("numpy_ref", ""), ("torch_port", " of the port"))
ROWS = (
    *_product_rows("normal", (64, 128, 512, 1024, 2048), {PRODUCT: 2.5}, {PRODUCT: 5}),
    *_product_rows("relu", (64, 128, 512, 1024, 2048), {PRODUCT: 2.5}, {PRODUCT: 5}),
    *_product_rows("signs", (64, 128, 512, 1024, 2048), {PRODUCT: 6}, {PRODUCT: 6}),
    *_product_rows("cancelling", (64, 128, 512, 1024), {PRODUCT: 40}, {PRODUCT: 40}),
    *_product_rows("wide", (128, 512), {}, {}),
    Row("sum", "sum over 10^7", long_sum, {"np.sum": 8}),
    *(Row(name, f"{name} over 10^6", partial(function, name), {f"np.{name} of float64": 6}) for name in ("exp", "log")),
    Row("permutation", "permutation of 10^6", permutation, {"Generator.permutation": 10}),
    *(
        Row("adam", f"Adam step{of}, 16 M parameters in {n}", partial(side, n, (1 << 24) // n), {FOREACH: goal})
        for of, side, goal in (("", adam, 0.8), (" of the port", adam_of_the_port, 1.2))
        for n in (1, 16)
    ),
    *(
        Row("native", f"native training step, {size}", partial(native, size), {"stock PyTorch": goal})
        for size, goal in zip(SIZES, (0.5, 0.9, 1.1), strict=True)
    ),
    *(
        Row("reproducible", _named(of, size), partial(reproducible, package, size), {"its own native": goal})
        for package, of in PACKAGES
        for size, goal in zip(SIZES, (5, 3, 2.5), strict=True)
    ),
    *(
        Row("otherway", _named(of, SIZES[-1]), partial(other_way, package, SIZES[-1]), {"sums of rank-1 products": 0.1})
        for package, of in PACKAGES
    ),
)
