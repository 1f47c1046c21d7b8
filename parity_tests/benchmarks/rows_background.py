"""What a training loop loses to a save beside it; the first save, which takes memory of its own, is not counted."""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import numpy_ref
from numpy_ref.checkpoint.background import BackgroundWriter
from numpy_ref.checkpoint.store import Retention, save_newest
from numpy_ref.train import Run
from numpy_ref.tree import flatten
from parity_tests.benchmarks.formats import one_process, remove
from parity_tests.benchmarks.measure import OURS, Reading, Row, Sides
from parity_tests.benchmarks.rows_arithmetic import installed
from parity_tests.benchmarks.rows_disk import large_run
from parity_tests.benchmarks.rows_training import SIZES, own_steps

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


def distributed(run: Run) -> Save:
    """The same arrays by PyTorch's `async_save`."""
    torch, module = import_module("torch"), import_module("torch.distributed.checkpoint")
    leaves = flatten(run.state)
    tensors = {name: torch.from_numpy(leaf) for name, leaf in leaves.items() if isinstance(leaf, np.ndarray)}

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
        "torch DCP async_save": side(distributed(run)) if installed("torch") else None,
    }


def losses(width: int, folder: Path) -> Sides:
    return stalls(partial(lost, own_steps("numpy_ref", SIZES[1], "native")), width, folder)


GOALS = {"its own synchronous save": 0.15, "torch DCP async_save": 1.0}
ROWS = (
    Row("stall", "stall by the call that begins a save of 1 GB", partial(stalls, call, 7868), GOALS),
    Row("stall", "time that a loop loses to a save of 1 GB beside it", partial(losses, 7868), GOALS),
)
