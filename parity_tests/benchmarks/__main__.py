"""`python -m parity_tests.benchmarks`: costs as ratios, both sides measured in turn in one process, one thread."""

import os
import statistics
import sys
import time

for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")  # before NumPy is loaded

from numpy_ref import RunConfig, init_run, load_data, train_n_steps  # noqa: E402


def step_ratio(rounds: int = 7, steps: int = 60) -> tuple[float, float, float]:
    """Milliseconds of a native and of a reproducible step on the digits, 64-128-128-10, batch 32; and their ratio."""
    data = load_data("digits")
    config = {"hidden": (128, 128), "batch_size": 32, "evaluate_every": 10**9}
    times: dict[str, list[float]] = {"native": [], "reproducible": []}
    for _ in range(rounds):
        for arithmetic, spent in times.items():
            run = train_n_steps(init_run(RunConfig(arithmetic=arithmetic, **config), data), data, 5)
            start = time.perf_counter()
            train_n_steps(run, data, steps)
            spent.append((time.perf_counter() - start) / steps * 1e3)
    ratios = [r / n for n, r in zip(times["native"], times["reproducible"], strict=True)]
    return statistics.median(times["native"]), statistics.median(times["reproducible"]), statistics.median(ratios)


if __name__ == "__main__":
    native, reproducible, ratio = step_ratio()
    sys.stdout.write(
        f"training step on the digits, 64-128-128-10, batch 32, one thread: native {native:.2f} ms, reproducible "
        f"{reproducible:.2f} ms, ratio {ratio:.1f}\n"
    )
