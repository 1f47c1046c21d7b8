"""The same runs in every variant of a process that one machine offers: threads, instruction sets, kernels, hash seeds.

A variant is the environment of a process, which trains and leaves its final states in checkpoints. Where the library
that a variable speaks to does not take what was asked for, since the processor or the build lacks it, the variant is
left out: a state made by other kernels than its name says would be no evidence.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from importlib import import_module
from pathlib import Path

import numpy_ref
from numpy_ref.checkpoint.save_and_resume import Checkpoint, read_checkpoint
from numpy_ref.cli import demo
from numpy_ref.proof import boundary
from numpy_ref.proof.equivalence import digest
from numpy_ref.train import RunState

__all__ = ["ONE_THREAD", "USUAL", "demo_digests", "short_run_states", "variants"]

Environment = dict[str, str]

USUAL = "as it is"  # the variant that the others are compared with: this process' environment, but for one thread
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
REALLY = {"MKL_DYNAMIC": "FALSE", "OMP_WAIT_POLICY": "PASSIVE"}  # as many threads as asked for, asleep while they wait
TALKATIVE = {"MKL_VERBOSE": "1", "OPENBLAS_VERBOSE": "2"}  # MKL and OpenBLAS print what they have chosen
RUNS = {
    "reproducible": (replace(demo.CONFIG, arithmetic="reproducible"), demo.STEPS),
    "native": (replace(demo.CONFIG, arithmetic="native"), demo.STEPS),
    "short": (boundary.SHORT_RUN, boundary.SHORT_STEPS),
}


def variants(package: str) -> dict[str, dict[str, Environment]]:
    """The environments to try for a package, by group and name; no name is in two groups.

    Example:
        >>> variants("torch_port")["instruction sets"]["ATen avx2"]
        {'ATEN_CPU_CAPABILITY': 'avx2'}
    """
    threads = {f"{n} threads": dict.fromkeys(ONE_THREAD, str(n)) | REALLY for n in (2, 4)}
    if package == "torch_port":
        sets = {f"ATen {name}": {"ATEN_CPU_CAPABILITY": name} for name in ("default", "avx2", "avx512")}
        kernels = {f"MKL {name}": {"MKL_CBWR": name} for name in ("COMPATIBLE", "AVX2", "AVX512")}
    else:
        found = numpy_ref.environment()["simd"]  # beyond the build's baseline, which cannot be turned off
        sets = {"NumPy baseline": {"NPY_DISABLE_CPU_FEATURES": " ".join(found)}} if found else {}
        cores = ("Nehalem", "Haswell", "SkylakeX", "ARMV8", "NEOVERSEN1")
        kernels = {f"OpenBLAS {name}": {"OPENBLAS_CORETYPE": name} for name in cores}
    first = [next(iter(group.values()), {}) for group in (threads, sets, kernels)]
    return {
        USUAL: {USUAL: {}},
        "threads": threads,
        "instruction sets": sets,
        "kernels": kernels,
        "hash seed": {"hash seed 1": {"PYTHONHASHSEED": "1"}},
        "together": {"together": first[0] | first[1] | first[2]},
    }


def demo_digests(package: str, arithmetic: str) -> dict[str, str]:
    """The digest of the demo's final state in every variant that is here, by the variant's name.

    Args:
        package: "numpy_ref" or "torch_port".
        arithmetic: "reproducible" or "native".

    Raises:
        RuntimeError: a process failed.
    """
    return {name: digest(states[arithmetic]) for name, states in _final_states(package).items()}


def short_run_states(package: str) -> dict[str, RunState]:
    """The final state of `boundary.SHORT_RUN` in every variant that is here, by the variant's name.

    Raises:
        RuntimeError: a process failed.
    """
    return {name: states["short"] for name, states in _final_states(package).items()}


@lru_cache
def _final_states(package: str) -> dict[str, dict[str, RunState]]:
    """The states after `RUNS` by variant and run; two processes at a time."""
    named = {name: settings for group in variants(package).values() for name, settings in group.items()}
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda settings: _states_in(package, settings), named.values()))
    return {name: states for name, states in zip(named, found, strict=True) if states}


def _states_in(package: str, settings: Environment) -> dict[str, RunState]:
    """The states in one variant, by run; none where the variant is not here."""
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, "-m", "torch_port.proof.variants", package, folder],
            check=False,
            cwd=Path(numpy_ref.__file__).parent.parent,
            env=os.environ | ONE_THREAD | TALKATIVE | settings,
            capture_output=True,
            text=True,
        )
        if process.returncode == -signal.SIGILL:  # kernels that this processor cannot run
            return {}
        if process.returncode:
            raise RuntimeError(
                f"{package} with {settings}: expected a process that trains and saves, found that it ended with "
                f"{process.returncode}:\n{process.stderr}"
            )
        checkpoints = {name: read_checkpoint(_path(folder, name)) for name in RUNS}
    if not all(_taken(settings, checkpoint, process.stdout + process.stderr) for checkpoint in checkpoints.values()):
        return {}
    return {name: checkpoint.state for name, checkpoint in checkpoints.items() if checkpoint.state is not None}


def _taken(settings: Environment, checkpoint: Checkpoint, said: str) -> bool:
    """Whether the libraries took what a variant asks for: torch's answer is in the checkpoint, the others print it."""
    mkl, openblas = re.search(r"\bCNR:(\w+)", said), re.search(r"^Core: (\w+)", said, re.MULTILINE)
    answers = {"MKL_CBWR": mkl[1] if mkl else "", "OPENBLAS_CORETYPE": openblas[1] if openblas else ""}
    if "torch" in checkpoint.environment:
        torch = checkpoint.environment["torch"]
        answers |= {"ATEN_CPU_CAPABILITY": torch["capability"], "OMP_NUM_THREADS": str(torch["threads"])}
    return all(answers.get(name, value).lower() == value.lower() for name, value in settings.items())


def _path(folder: str, name: str) -> Path:
    return Path(folder) / f"{name}.safetensors"


def _train_and_save(package: str, folder: str) -> None:
    """Carry out `RUNS` in this process."""
    impl = import_module(package)
    data = impl.load_data("digits")
    for name, (config, steps) in RUNS.items():
        impl.save_checkpoint(_path(folder, name), impl.train_n_steps(impl.init_run(config, data), data, steps))


if __name__ == "__main__":
    _train_and_save(*sys.argv[1:])
