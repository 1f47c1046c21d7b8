"""Saves and loads of named arrays, beside other formats; how much memory a save takes; how long `inspect` does."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

from numpy_ref import RunConfig, init_run, load_data, save_checkpoint
from numpy_ref.checkpoint.container import read_manifest
from numpy_ref.train import Run
from parity_tests.benchmarks.formats import FORMATS, LOADS_LAZILY, Arrays, Format, remove, state
from parity_tests.benchmarks.measure import OURS, Reading, Row, Sides, process, waited

GIGABYTE = (48, (2048, 2543))  # arrays and their shape: weights and two moments of 16 layers, 10^9 bytes
SMALL = (5000, (256,))  # arrays of 1 KB


def formats(makers: dict[str, Callable[[], Format]]) -> dict[str, Format | None]:
    """Each format, or None where what it needs is not installed."""
    found: dict[str, Format | None] = {}
    for name, make in makers.items():
        try:
            found[name] = make()
        except ModuleNotFoundError:
            found[name] = None
    return found


def saved(form: Format, arrays: Arrays, path: Path) -> Reading:
    """Seconds of a save to a file that is not there, on a disk that has nothing else to do."""
    save = waited(partial(form.save, path, form.own(arrays)))

    def reading() -> float:
        os.sync()
        seconds = save()
        remove(path)
        return seconds

    return reading


def loaded(form: Format, arrays: Arrays, path: Path) -> Reading:
    """Seconds of a load of a file that the system has in its memory."""
    own = form.own(arrays)
    form.save(path, own)
    return waited(partial(form.load, path, own))


def saves(count: int, shape: tuple[int, ...], folder: Path) -> Sides:
    arrays = state(count, shape)
    return {name: form and saved(form, arrays, folder / "file") for name, form in formats(FORMATS).items()}


def loads(count: int, shape: tuple[int, ...], folder: Path) -> Sides:
    arrays = state(count, shape)
    return {
        name: form and loaded(form, arrays, folder / f"{i}")
        for i, (name, form) in enumerate(formats(FORMATS | LOADS_LAZILY).items())
    }


def memory(count: int, shape: tuple[int, ...], folder: Path) -> Sides:
    def reading(name: str) -> Reading:
        words = (name, folder / "file", count, *shape)
        work = process("-m", "parity_tests.benchmarks.formats", *map(str, words))

        def mebibytes() -> float:
            found = float(str(work()))
            remove(folder / "file")
            return found

        return mebibytes

    return {name: form and reading(name) for name, form in formats(FORMATS).items()}


def large_run(width: int = 7868) -> Run:
    """A run whose state takes 10^9 bytes: weights, two moments, and the best weights."""
    return init_run(RunConfig(hidden=(width, width)), load_data("digits"))


def inspected(width: int, folder: Path) -> Sides:
    path = folder / "run.safetensors"
    save_checkpoint(path, large_run(width))
    return {
        OURS: waited(process("-m", "numpy_ref", "inspect", path)),
        "its header alone": waited(partial(read_manifest, path)),
    }


def _at_most(ratio: float, names: tuple[str, ...]) -> dict[str, float]:
    return dict.fromkeys(names, ratio)


SAVERS = ("torch.save", "np.savez", "safetensors", "torch DCP")
LOADERS = ("torch.save", "np.savez", "safetensors")
ROWS = (
    Row("save", "save 1 GB in 48 arrays", partial(saves, *GIGABYTE), {"plain write": 1 / 0.95} | _at_most(1, SAVERS)),
    Row("save", "save 5,000 arrays of 1 KB", partial(saves, *SMALL), _at_most(1, SAVERS), rounds=15),
    Row("load", "load and verify 1 GB in 48 arrays", partial(loads, *GIGABYTE), _at_most(1.1, LOADERS), rounds=15),
    Row("load", "load and verify 5,000 arrays of 1 KB", partial(loads, *SMALL), _at_most(1.1, LOADERS), rounds=15),
    Row("load", "inspect 1 GB, the whole command", partial(inspected, 7868), {OURS: 0.5}),
    Row("memory", "memory of a save of 1 GB", partial(memory, *GIGABYTE), {OURS: 64}, unit="MiB", rounds=3),
)
