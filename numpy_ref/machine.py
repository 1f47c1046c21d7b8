"""The machine a run computes on: all that the bits of native arithmetic may depend on."""

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np


def environment() -> dict[str, Any]:
    """What the bits of native arithmetic may depend on, as JSON values; recorded in every checkpoint.

    Returns:
        The versions of Python, NumPy and its BLAS; the system, the machine and its processor, the instruction sets that
        NumPy found there, and how many processors this process may use; and the variables, of those that are set, by
        which threads and kernels are chosen. No name of a person, a host or a path.

    Mirror:
        `torch_port.environment` has the same, and torch's part under "torch".

    Example:
        >>> sorted(environment())
        ['blas', 'cpus', 'kernels', 'machine', 'numpy', 'processor', 'python', 'simd', 'system', 'threads']
    """
    import platform  # slow, and needed here alone

    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    blas = config["Build Dependencies"]["blas"]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    kernels = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "MKL_CBWR", "ATEN_CPU_CAPABILITY")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "system": platform.system(),
        "machine": platform.machine(),
        "processor": _processor(),
        "cpus": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "simd": config.get("SIMD Extensions", {}).get("found", []),
        "threads": {name: os.environ[name] for name in threads if name in os.environ},
        "kernels": {name: os.environ[name] for name in kernels if name in os.environ},
    }


@cache
def _processor() -> str:
    """The processor's name, by which libraries choose kernels; Python knows it on some systems only."""
    import platform

    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
