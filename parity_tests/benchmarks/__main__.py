"""`python -m parity_tests.benchmarks`: costs as ratios, both sides measured in turn in one process, one thread."""

import os
import statistics
import subprocess
import sys
import tempfile
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


def seconds(*words: str, rounds: int = 3) -> float:
    """Seconds of a whole process, the median of some."""
    spent = []
    for _ in range(rounds):
        start = time.perf_counter()
        subprocess.run([sys.executable, *words], check=True, capture_output=True)
        spent.append(time.perf_counter() - start)
    return statistics.median(spent)


if __name__ == "__main__":
    native, reproducible, ratio = step_ratio()
    sys.stdout.write(
        f"training step on the digits, 64-128-128-10, batch 32, one thread: native {native:.2f} ms, reproducible "
        f"{reproducible:.2f} ms, ratio {ratio:.1f}\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        figure = os.path.join(folder, "demo.svg")
        for words in (("--help",), ("demo", "--figure", figure)):
            sys.stdout.write(f"python -m numpy_ref {words[0]}: {seconds('-m', 'numpy_ref', *words):.2f} s\n")
