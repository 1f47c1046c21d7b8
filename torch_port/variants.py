"""The same run in every variant of a process that one machine offers: threads, instruction sets, kernels, hash seeds.

A variant is the environment of a process, which trains and leaves its final state in a checkpoint. Where the library
that a variable speaks to does not take what was asked for, since the processor or the build lacks it, the variant is
left out: a state made by other kernels than its name says would be no evidence.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import numpy_ref
from numpy_ref import boundary, demo
from numpy_ref.checkpoint import Checkpoint, read_checkpoint
from numpy_ref.config import RunConfig, decode_config, encode_config
from numpy_ref.equivalence import digest
from numpy_ref.train import RunState

Environment = dict[str, str]

USUAL = "as it is"  # the variant that the others are compared with: this process' environment, but for one thread
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
TALKATIVE = {"MKL_VERBOSE": "1", "OPENBLAS_VERBOSE": "2"}  # MKL and OpenBLAS say what they have chosen


def variants(package: str) -> dict[str, dict[str, Environment]]:
    """The environments to try for a package, by group and name; no name is in two groups.

    Example:
        >>> variants("torch_port")["threads"]["2 threads"]["OMP_NUM_THREADS"]
        '2'
    """
    threads = {f"{n} threads": dict.fromkeys(ONE_THREAD, str(n)) | {"MKL_DYNAMIC": "FALSE"} for n in (2, 4)}
    if package == "torch_port":
        sets = {f"ATen {name}": {"ATEN_CPU_CAPABILITY": name} for name in ("default", "avx2", "avx512")}
        kernels = {f"MKL {name}": {"MKL_CBWR": name} for name in ("COMPATIBLE", "AVX2", "AVX512")}
    else:
        found = boundary.environment()["simd"]  # beyond the build's baseline, which cannot be turned off
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
    """The digest of the demo's final state in every variant, by the variant's name.

    Args:
        package: "numpy_ref" or "torch_port".
        arithmetic: "reproducible" or "native".

    Raises:
        RuntimeError: a process failed.
    """
    states = _final_states(package, replace(demo.CONFIG, arithmetic=arithmetic), demo.STEPS)
    return {name: digest(state) for name, state in states.items()}


def short_run_states(package: str) -> dict[str, RunState]:
    """The final state of the boundary's short run, native, in every variant, by the variant's name.

    Raises:
        RuntimeError: a process failed.
    """
    return _final_states(package, boundary.SHORT_RUN, boundary.SHORT_STEPS)


def _final_states(package: str, config: RunConfig, steps: int) -> dict[str, RunState]:
    """The state after a run from its start, in every variant that is here; two processes at a time."""
    named = {name: settings for group in variants(package).values() for name, settings in group.items()}
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda settings: _final_state(package, config, steps, settings), named.values())
        return {name: state for name, state in zip(named, found, strict=True) if state is not None}


def _final_state(package: str, config: RunConfig, steps: int, settings: Environment) -> RunState | None:
    """The state after a run in one variant; None where the variant is not here."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run.safetensors"
        words = [package, json.dumps(encode_config(config)), str(steps), str(path)]
        process = subprocess.run(
            [sys.executable, "-m", "torch_port.variants", *words],
            check=False,
            cwd=Path(numpy_ref.__file__).parent.parent,
            env=os.environ | ONE_THREAD | TALKATIVE | settings,
            capture_output=True,
            text=True,
        )
        if process.returncode == -signal.SIGILL:  # kernels that this processor cannot run
            return None
        if process.returncode:
            raise RuntimeError(
                f"{package}, {settings}: expected a run of {steps} steps, found that its process ended with "
                f"{process.returncode}:\n{process.stderr}"
            )
        checkpoint = read_checkpoint(path)
    return checkpoint.state if _taken(settings, checkpoint, process.stdout + process.stderr) else None


def _taken(settings: Environment, checkpoint: Checkpoint, said: str) -> bool:
    """Whether the libraries took what a variant asks for: torch's answer is in the checkpoint, the others print it."""
    torch, mkl, openblas = checkpoint.environment.get("torch"), r"\bCNR:(\w+)", r"^Core: (\w+)"
    answers = {
        "MKL_CBWR": next(iter(re.findall(mkl, said)), ""),
        "OPENBLAS_CORETYPE": next(iter(re.findall(openblas, said, re.MULTILINE)), ""),
    }
    if torch is not None:
        answers |= {"ATEN_CPU_CAPABILITY": torch["capability"], "OMP_NUM_THREADS": str(torch["threads"])}
    return all(answers.get(name, value).lower() == value.lower() for name, value in settings.items())


def _main(package: str, config: str, steps: str, path: str) -> None:
    """Train in this process, from the start, and save; the words are those of `_final_state`."""
    impl = import_module(package)
    data = impl.load_data("digits")
    run = impl.init_run(decode_config(json.loads(config)), data)
    impl.save_checkpoint(path, impl.train_n_steps(run, data, int(steps)))


if __name__ == "__main__":
    _main(*sys.argv[1:])
