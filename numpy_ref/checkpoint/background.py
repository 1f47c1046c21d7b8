"""Saving a run beside its training: one write at a time, of a snapshot that no training changes."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from types import TracebackType
from typing import Any

from numpy_ref.checkpoint.save_and_resume import FULL, write_run
from numpy_ref.checkpoint.store import Retention, check_retention, checkpoint_path, save_with
from numpy_ref.interrupt import STATUS
from numpy_ref.train import Run, RunState


@contextmanager
def _no_signals() -> Iterator[None]:
    """In this thread no signal that asks to stop is taken: here it could wait long for the main one's attention."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STATUS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class BackgroundWriter:
    """Saves a run beside its training, as `save_newest` does; a context manager, which waits for the last write.

    An error of a write is raised once: at the next `save`, or on leaving the context. An exception that leaves the
    context on its own goes on, with a note of it. The interpreter does not end before the write has. The memory of one
    snapshot is held from the first save until the context is left. Leave the write a core of its own: where BLAS keeps
    every core busy, a loop loses more to a save beside it than to one that it waits for (1.6 times as much on two
    cores, by `python -m parity_tests.benchmarks --rows stall --threads 2`; with one thread 0.54).

    Args:
        impl: the runs' implementation.
        directory: of the run; created if need be.
        retention: which of the run's checkpoints stay.

    Example:
        >>> import tempfile
        >>> from numpy_ref.checkpoint.store import list_checkpoints
        >>> import numpy_ref as impl
        >>> digits = impl.load_data("digits")
        >>> run = impl.init_run(impl.RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     with BackgroundWriter(impl, folder, retention=Retention(keep_last=2)) as writer:
        ...         for _ in range(3):
        ...             run = impl.train_n_steps(run, digits, 1)
        ...             path = writer.save(run)
        ...     [entry.step for entry in list_checkpoints(folder).entries]
        [2, 3]
    """

    def __init__(self, impl: Any, directory: str | os.PathLike[str], *, retention: Retention) -> None:
        check_retention(retention)
        self._impl, self._retention = impl, retention
        self._directory = Path(directory).absolute()  # another may be the current one when the write begins
        self._open = False
        self._thread: Thread | None = None  # of the one write under way
        self._failure: BaseException | None = None  # not raised yet
        self._snapshot: RunState | None = None  # the last one written: its memory serves for the next

    def __enter__(self) -> "BackgroundWriter":
        self._open = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open, self._snapshot = False, None
        failure = self._finish()
        if failure is None:
            return
        if error is None:
            raise failure
        error.add_note(" ".join(["Beside this, a save failed:", str(failure), *failure.__notes__]))

    def save(self, run: Any) -> Path:
        """Take a snapshot of a run and begin to write it; an earlier write is waited for.

        Args:
            run: left as it is; training may go on with it when this returns.

        Returns:
            The file, which is there once the next `save` or the context has been left without an error.

        Raises:
            ValueError: called outside the context.
            Exception: what the earlier write ended with; nothing of this run is written.
        """
        if not self._open:
            raise ValueError(
                "BackgroundWriter: expected save within its context, found it outside.\n"
                "    Write `with BackgroundWriter(...) as writer:`, which waits for the last write."
            )
        failure = self._finish()
        if failure is not None:
            raise failure
        device = getattr(run, "device", None)  # what only the port's runs have
        written_in = self._impl.environment() if device is None else self._impl.environment(device)
        self._snapshot = self._impl.snapshot(run, into=self._snapshot)
        data = Run(run.config, self._snapshot, run.run_id, run.fingerprint)
        # A thread is a daemon if its creator is one, and a daemon is not waited for at the end.
        thread = Thread(target=self._write, args=(data, written_in), daemon=False)
        thread.start()
        self._thread = thread
        return checkpoint_path(self._directory, data.step)

    @_no_signals()
    def _write(self, data: Run, written_in: dict[str, Any]) -> None:
        """Save what no training changes any more; in the thread."""
        try:
            save_with(self._directory, data, lambda path: write_run(path, data, FULL, written_in), self._retention)
        except BaseException as error:
            error.add_note(f"This was the save of {checkpoint_path(self._directory, data.step)}, beside training.")
            self._failure = error

    def _finish(self) -> BaseException | None:
        """Wait for the write under way; what one ended with, once."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        failure, self._failure = self._failure, None
        return failure
