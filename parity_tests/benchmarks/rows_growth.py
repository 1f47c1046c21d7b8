"""How time and memory grow: exponents of the size, by least squares of logarithms; and what a step costs late in a run.

An exponent of 1 is linear, one of 0 constant. Small sizes fit into a cache, or are lost in what a call costs anyway; so
the exponent between the two largest stands beside that of all.
"""

import tracemalloc
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from numpy_ref import RunConfig, init_dataset, init_run, load_data, resume_from_full_checkpoint, save_checkpoint
from numpy_ref.arithmetic.operations import REPRODUCIBLE
from numpy_ref.optim import adam_step, init_adam
from numpy_ref.train import Run, train_n_steps
from parity_tests.benchmarks.measure import OURS, Row, Sides, Work, spent
from parity_tests.benchmarks.rows_disk import ours, state

Task = Callable[[int, Path], Work]  # for a size, in a folder
Measure = Callable[[Work], float]

LARGEST = "between the two largest"
TINY = RunConfig(hidden=(4,), batch_size=4, evaluate_every=2**31 - 1)


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The power of the size that fits best."""
    x, y = (np.log(np.maximum(numbers, 1e-12)) for numbers in (sizes, values))
    return float(np.polyfit(x, y, 1)[0])


def seconds(work: Work) -> float:
    """The shorter of two readings."""
    reading = spent(work)
    return min(reading(), reading())


def mebibytes(work: Work) -> float:
    """The largest memory that a call takes, as Python and NumPy count it."""
    work()
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1] / 2**20
    finally:
        tracemalloc.stop()


def grows(task: Task, sizes: Sequence[int], measure: Measure, folder: Path) -> Sides:
    values: list[float] = []

    def over_all() -> float:
        values[:] = [measure(task(size, folder)) for size in sizes]
        return exponent(sizes, values)

    return {OURS: over_all, LARGEST: lambda: exponent(sizes[-2:], values[-2:])}


def adam(parameters: int, _: Path) -> Work:
    """An Adam step of ten arrays."""
    params = {f"w{i}": np.full(parameters // 10, 0.5, np.float32) for i in range(10)}
    moments = init_adam(params)
    return partial(adam_step, params, moments, params, REPRODUCIBLE, learning_rate=1e-3)


def saving(parameters: int, folder: Path) -> Work:
    """A save of weights and moments."""
    arrays = state(30, (parameters // 10,))
    return partial(ours().save, folder / "state", arrays)


def loading(parameters: int, folder: Path) -> Work:
    """The load of what `saving` saved."""
    saving(parameters, folder)()
    return partial(ours().load, folder / "state", {})


def deep(arrays: int) -> Run:
    """A run of layers of eight units, with so many arrays in its model."""
    return init_run(RunConfig(hidden=(8,) * (arrays // 2 - 1), batch_size=4, dropout=0.0), load_data("digits"))


def deep_step(arrays: int, _: Path) -> Work:
    return partial(train_n_steps, deep(arrays), load_data("digits"), 1)


def deep_save(arrays: int, folder: Path) -> Work:
    return partial(save_checkpoint, folder / "run", deep(arrays))


def deep_resume(arrays: int, folder: Path) -> Work:
    deep_save(arrays, folder)()
    return partial(resume_from_full_checkpoint, folder / "run", load_data("digits"))


def steps(n: int, _: Path) -> Work:
    digits = load_data("digits")
    return partial(train_n_steps, init_run(TINY, digits), digits, n)


def samples(n: int, _: Path) -> Work:
    """A data set, and the first step on it."""
    inputs, labels = np.full((n, 16), 0.5, np.float32), np.arange(n) % 10

    def work() -> Any:
        data = init_dataset(inputs, labels)
        return train_n_steps(init_run(TINY, data), data, 1)

    return work


def late_step(early: int, late: int, _: Path) -> Sides:
    """Steps of a tiny network, where next to nothing but what a step costs anyway is measured."""
    digits = load_data("digits")
    first = train_n_steps(init_run(TINY, digits), digits, early)
    last = train_n_steps(first, digits, late - early)
    return {
        OURS: spent(partial(train_n_steps, last, digits, 50), steps=50),
        f"a step after {early}": spent(partial(train_n_steps, first, digits, 50), steps=50),
    }


def _rows(of: str, task: Task, sizes: Sequence[int], *, time: dict[str, float], memory: dict[str, float]) -> list[Row]:
    """The rows of a task, with what their exponents may be at most."""
    span = f"{of}, {sizes[0]:,} to {sizes[-1]:,}"
    kinds = (("time", seconds, time), ("memory", mebibytes, memory))
    return [
        Row("growth", f"{kind} of {span}", partial(grows, task, sizes, measure), goals, unit="", rounds=1)
        for kind, measure, goals in kinds
    ]


PARAMETERS = tuple(10**n for n in range(5, 9))
ARRAYS = tuple(10**n for n in range(1, 5))
LINEAR, CONSTANT = {OURS: 1.1, LARGEST: 1.2}, {LARGEST: 0.1}
ROWS = (
    *_rows("an Adam step, parameters", adam, PARAMETERS, time=LINEAR, memory=LINEAR),
    *_rows("a save, parameters", saving, PARAMETERS, time=LINEAR, memory=CONSTANT),
    *_rows("a load, parameters", loading, PARAMETERS, time=LINEAR, memory=LINEAR),
    *_rows("a training step, arrays", deep_step, ARRAYS, time=LINEAR, memory=LINEAR),
    *_rows("a save, arrays", deep_save, ARRAYS, time=LINEAR, memory=LINEAR),
    *_rows("a resume, arrays", deep_resume, ARRAYS, time=LINEAR, memory=LINEAR),
    *_rows("training, steps", steps, ARRAYS, time=LINEAR, memory=CONSTANT),
    *_rows("data, samples", samples, tuple(10**n for n in range(3, 7)), time=LINEAR, memory=LINEAR),
    Row("growth", "a step of a tiny network after 10,000", partial(late_step, 10, 10_000), {"a step after 10": 1.1}),
)
