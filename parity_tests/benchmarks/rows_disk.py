"""Named arrays to the disk and back, beside the formats that people use; the memory of a save; saves beside a loop.

A save is on disk when it returns. What a loop loses to a save beside it does not count the first save, which takes
memory of its own.
"""

import os
import shutil
import sys
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import numpy_ref
from numpy_ref import RunConfig, init_run, load_data, save_checkpoint
from numpy_ref.checkpoint.background import BackgroundWriter
from numpy_ref.checkpoint.container import read_container, read_manifest, write_container
from numpy_ref.checkpoint.durable import replace_file
from numpy_ref.checkpoint.store import Retention, save_newest
from numpy_ref.train import Run
from numpy_ref.tree import flatten
from parity_tests.benchmarks.measure import OURS, Reading, Row, Sides, installed, process, waited
from parity_tests.benchmarks.rows_compute import SIZES, own_steps

Arrays = dict[str, np.ndarray]
MIB = 1 << 20


class Format(NamedTuple):
    """One way to store arrays."""

    own: Callable[[Arrays], Any]  # the arrays as the format's users have them, sharing memory; not part of a save
    save: Callable[[Path, Any], object]  # what `own` gave, to a file or directory that is not there
    load: Callable[[Path, Any], Any]  # fresh copies of it all, by name


def ours() -> Format:
    """With checksums, to another name first, and the directory synchronised; read with every byte verified."""

    def save(path: Path, arrays: Arrays) -> None:
        with replace_file(path) as file:
            write_container(file, arrays, {})

    return Format(dict, save, lambda path, _: read_container(path)[0])


def written(write: Callable[[Any, Any], object]) -> Callable[[Path, Any], None]:
    """A save that writes to an open file and waits until the disk has it."""

    def save(path: Path, arrays: Any) -> None:
        with open(path, "wb") as file:
            write(file, arrays)
            synchronise(file)

    return save


def plain() -> Format:
    """The bytes of the arrays one after the other, and nothing else."""

    def load(path: Path, arrays: Arrays) -> Arrays:
        with open(path, "rb") as file:
            return {name: np.fromfile(file, a.dtype, a.size).reshape(a.shape) for name, a in arrays.items()}

    return Format(dict, written(lambda file, arrays: [file.write(array.data) for array in arrays.values()]), load)


def torch_save() -> Format:
    torch = import_module("torch")
    save = written(lambda file, tensors: torch.save(tensors, file))
    return Format(_tensors, save, lambda path, _: torch.load(path, weights_only=True))


def torch_mapped() -> Format:
    """As `torch_save`; what is loaded is read when it is used."""
    torch = import_module("torch")
    return torch_save()._replace(load=lambda path, _: torch.load(path, weights_only=True, mmap=True))


def savez() -> Format:
    def load(path: Path, _: Arrays) -> Arrays:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    return Format(dict, written(lambda file, arrays: np.savez(file, **arrays)), load)


def safetensors() -> Format:
    module = import_module("safetensors.numpy")

    def save(path: Path, arrays: Arrays) -> None:
        module.save_file(arrays, path)
        with open(path, "rb+") as file:
            synchronise(file)

    return Format(dict, save, lambda path, _: module.load_file(path))


def distributed() -> Format:
    """PyTorch's distributed checkpoint in a single process; its writer synchronises its files itself."""
    torch, module = import_module("torch"), import_module("torch.distributed.checkpoint")

    def save(path: Path, tensors: Any) -> None:
        with one_process():
            module.save(tensors, checkpoint_id=path, no_dist=True)

    def load(path: Path, tensors: Any) -> Any:
        found = {name: torch.empty_like(tensor) for name, tensor in tensors.items()}
        with one_process():
            module.load(found, checkpoint_id=path, no_dist=True)
        return found

    return Format(_tensors, save, load)


FORMATS = {
    OURS: ours,
    "plain write": plain,
    "torch.save": torch_save,
    "np.savez": savez,
    "safetensors": safetensors,
    "torch DCP": distributed,
}
LOADS_LAZILY = {"torch.load, mmap": torch_mapped}


def synchronise(file: Any) -> None:
    """Wait until the disk has the file."""
    file.flush()
    os.fsync(file.fileno())


def remove(path: Path) -> None:
    """Remove a file or a directory."""
    shutil.rmtree(path) if path.is_dir() else path.unlink()


def one_process() -> Any:
    """Without the warning that there is only one."""
    return warnings.catch_warnings(action="ignore")


def state(count: int, shape: tuple[int, ...]) -> Arrays:
    """Arrays of float32 like those of Adam: weights, first and second moments."""
    rng, kinds = np.random.default_rng(0), ("model", "m", "v")
    return {f"{kinds[i % 3]}/layer{i // 3:04d}": rng.random(shape, np.float32) for i in range(count)}


def peak(name: str, path: Path, arrays: Arrays) -> float:
    """MiB that a save takes beside what is there already, in this process, which Linux tells."""
    form = FORMATS[name]()
    warm, own = path.with_name("warm"), form.own(arrays)
    form.save(warm, form.own(state(3, (4,))))  # what a first save loads
    remove(warm)
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    before = _resident("VmRSS")
    form.save(path, own)
    return (_resident("VmHWM") - before) / MIB


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(f"{field}:"))


def _tensors(arrays: Arrays) -> Any:
    torch = import_module("torch")
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


GIGABYTE = (48, (2048, 2543))  # arrays and their shape: weights and two moments of 16 layers, 10^9 bytes
SMALL = (5000, (256,))  # arrays of 1 KB


def made(makers: dict[str, Callable[[], Format]]) -> dict[str, Format | None]:
    """Each format, or None where what it needs is not installed."""

    def one(make: Callable[[], Format]) -> Format | None:
        try:
            return make()
        except ModuleNotFoundError:
            return None

    return {name: one(make) for name, make in makers.items()}


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
    return {name: form and saved(form, arrays, folder / "file") for name, form in made(FORMATS).items()}


def loads(count: int, shape: tuple[int, ...], folder: Path) -> Sides:
    arrays = state(count, shape)
    return {
        name: form and loaded(form, arrays, folder / f"{i}")
        for i, (name, form) in enumerate(made(FORMATS | LOADS_LAZILY).items())
    }


def memory(count: int, shape: tuple[int, ...], folder: Path) -> Sides:
    def reading(name: str) -> Reading:
        words = (name, folder / "file", count, *shape)
        work = process("-m", "parity_tests.benchmarks.rows_disk", *map(str, words))

        def mebibytes() -> float:
            found = float(str(work()))
            remove(folder / "file")
            return found

        return mebibytes

    return {name: form and reading(name) for name, form in made(FORMATS).items()}


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


Begun = Callable[[], bool]  # whether a save that was begun has ended
Save = Callable[[Path], Begun]

KEEP = Retention(keep_last=1)


def synchronous(run: Run) -> Save:
    """A save that the loop waits for."""

    def save(path: Path) -> Begun:
        save_newest(numpy_ref, path, run, retention=KEEP)
        return lambda: True

    return save


def background(run: Run) -> Save:
    """The same by `BackgroundWriter`, one for all saves to a directory, as a loop has it."""
    writers: dict[Path, BackgroundWriter] = {}

    def save(path: Path) -> Begun:
        if path not in writers:
            writers[path] = BackgroundWriter(numpy_ref, path, retention=KEEP).__enter__()
        before = set(threading.enumerate())
        file = writers[path].save(run)
        threads = set(threading.enumerate()) - before

        def ended() -> bool:
            if any(thread.is_alive() for thread in threads):
                return False
            if not file.exists():
                writers.pop(path).__exit__(None, None, None)  # raises what the save ended with
            return True

        return ended

    return save


def asynchronous(run: Run) -> Save:
    """The same arrays by PyTorch's `async_save`."""
    module = import_module("torch.distributed.checkpoint")
    tensors = _tensors({name: leaf for name, leaf in flatten(run.state).items() if isinstance(leaf, np.ndarray)})

    def save(path: Path) -> Begun:
        quiet = ExitStack()
        quiet.enter_context(one_process())  # until it has ended, for it warns in a thread of its own
        future = module.async_save(tensors, checkpoint_id=path, no_dist=True)

        def ended() -> bool:
            if not future.done():
                return False
            quiet.close()
            future.result()  # raises what the save ended with
            return True

        return ended

    return save


def call(save: Save, path: Path) -> float:
    """Seconds until the loop may go on."""
    start = time.perf_counter()
    ended = save(path)
    seconds = time.perf_counter() - start
    while not ended():
        time.sleep(0.01)
    return seconds


def lost(step: Callable[[], Any], save: Save, path: Path) -> float:
    """Seconds that steps take longer because of a save, from its beginning to its end."""
    usual = []
    for _ in range(30):
        start = time.perf_counter()
        step()
        usual.append(time.perf_counter() - start)
    steps, start = 0, time.perf_counter()
    ended = save(path)
    while not ended():
        step()
        steps += 1
    return time.perf_counter() - start - steps * median(usual)


def stalls(reading: Callable[[Save, Path], float], width: int, folder: Path) -> Sides:
    run = large_run(width)

    def side(save: Save) -> Reading:
        def once() -> float:
            seconds = reading(save, folder / "run")
            remove(folder / "run")
            return seconds

        once()
        return once

    return {
        OURS: side(background(run)),
        "its own synchronous save": side(synchronous(run)),
        "torch DCP async_save": side(asynchronous(run)) if installed("torch") else None,
    }


def losses(width: int, folder: Path) -> Sides:
    return stalls(partial(lost, own_steps("numpy_ref", SIZES[1], "native")), width, folder)


LOADERS = dict.fromkeys(("torch.save", "np.savez", "safetensors"), 1.1)
SAVERS = dict.fromkeys((*LOADERS, "torch DCP"), 1)
GOALS = {"its own synchronous save": 0.15, "torch DCP async_save": 1.0}
ROWS = (
    Row("save", "save 1 GB in 48 arrays", partial(saves, *GIGABYTE), {"plain write": 1 / 0.95} | SAVERS),
    Row("save", "save 5,000 arrays of 1 KB", partial(saves, *SMALL), SAVERS, rounds=15),
    Row("load", "load and verify 1 GB in 48 arrays", partial(loads, *GIGABYTE), LOADERS, rounds=15),
    Row("load", "load and verify 5,000 arrays of 1 KB", partial(loads, *SMALL), LOADERS, rounds=15),
    Row("load", "inspect 1 GB, the whole command", partial(inspected, 7868), {OURS: 0.5}),
    Row("memory", "memory of a save of 1 GB", partial(memory, *GIGABYTE), {OURS: 64}, unit="MiB", rounds=3),
    Row("stall", "stall by the call that begins a save of 1 GB", partial(stalls, call, 7868), GOALS),
    Row("stall", "time that a loop loses to a save of 1 GB beside it", partial(losses, 7868), GOALS),
)

if __name__ == "__main__":  # NAME PATH COUNT SHAPE...: the peak of a save, in a process of its own
    _, chosen, target, number, *sizes = sys.argv
    sys.stdout.write(f"{peak(chosen, Path(target), state(int(number), tuple(map(int, sizes))))}\n")
