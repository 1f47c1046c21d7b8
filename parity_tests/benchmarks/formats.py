"""Named arrays to the disk and back, in our format and in those that people use; a save is on disk when it returns."""

import os
import shutil
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.checkpoint.container import read_container, write_container
from numpy_ref.checkpoint.durable import replace_file
from parity_tests.benchmarks.measure import OURS

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


def plain() -> Format:
    """The bytes of the arrays one after the other, and nothing else."""

    def save(path: Path, arrays: Arrays) -> None:
        with open(path, "wb") as file:
            for array in arrays.values():
                file.write(array.data)
            synchronise(file)

    def load(path: Path, arrays: Arrays) -> Arrays:
        with open(path, "rb") as file:
            return {name: np.fromfile(file, a.dtype, a.size).reshape(a.shape) for name, a in arrays.items()}

    return Format(dict, save, load)


def torch_save() -> Format:
    torch = import_module("torch")

    def save(path: Path, tensors: Any) -> None:
        with open(path, "wb") as file:
            torch.save(tensors, file)
            synchronise(file)

    return Format(_tensors, save, lambda path, _: torch.load(path, weights_only=True))


def torch_mapped() -> Format:
    """As `torch_save`; what is loaded is read when it is used."""
    torch = import_module("torch")
    return torch_save()._replace(load=lambda path, _: torch.load(path, weights_only=True, mmap=True))


def savez() -> Format:
    def save(path: Path, arrays: Arrays) -> None:
        with open(path, "wb") as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
            synchronise(file)

    def load(path: Path, _: Arrays) -> Arrays:
        with np.load(path) as file:
            return {name: file[name] for name in file.files}

    return Format(dict, save, load)


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


if __name__ == "__main__":  # NAME PATH COUNT SHAPE...: the peak of a save, in a process of its own
    _, chosen, target, number, *sizes = sys.argv
    sys.stdout.write(f"{peak(chosen, Path(target), state(int(number), tuple(map(int, sizes))))}\n")
