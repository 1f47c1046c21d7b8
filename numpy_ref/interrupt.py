"""Asking a run to stop by a signal: the first one sets a flag, which the loop reads between two updates.

A handler that saved by itself would find weights updated and moments not. Here the step, its evaluation and a save that
are under way are finished; then the program saves, if the last save is older, and ends with a status that says so:

    75    after SIGTERM or SIGUSR1 and a good save: run the same command again and it goes on (EX_TEMPFAIL in
          sysexits.h). For Slurm `--signal=USR1@60`, `srun COMMAND` and `scontrol requeue` on 75, for LSF `bsub -Q 75`,
          for systemd `RestartForceExitStatus=75`; in a script `until COMMAND; do s=$?; [ $s = 75 ] || exit $s; done`
    130   after SIGINT and a good save, as shells report an interrupt

Before training, while modules and data are loaded, a signal has its default action. A second signal ends the process at
once by its default action: as soon as Python gets to it, and once the loop has read the flag by the system itself, even
within a call that never returns. Within a save that damages no file: at most a temporary is left, which no reader takes
for a checkpoint. (The first process of a container is not ended by default actions; there only SIGKILL does it.)
"""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self

__all__ = ["STATUS", "Interruption"]

_STATUS_BY_NAME = {"SIGTERM": 75, "SIGINT": 130, "SIGUSR1": 75}

STATUS: dict[signal.Signals, int] = {
    signal.Signals[name]: status for name, status in _STATUS_BY_NAME.items() if name in signal.Signals.__members__
}
"""The signals that ask a run to stop, those that this platform has, each with the exit status after a good save."""


class Interruption:
    """Within it a signal becomes a flag, `requested`; after it every handler is what it was.

    A signal that is ignored stays ignored, as `nohup` and a shell's background jobs want it.

    Attributes:
        requested: the first signal that came, None before.

    Raises:
        ValueError: on entry, in another thread than the main one: only there can Python handle signals.

    Example:
        >>> from numpy_ref import RunConfig, init_run, load_data, train_n_steps
        >>> digits = load_data("digits")
        >>> with Interruption() as interruption:
        ...     run = init_run(RunConfig(hidden=(16,)), digits)
        ...     signal.raise_signal(signal.SIGTERM)
        ...     train_n_steps(run, digits, 100, stop=interruption).step, interruption.requested.name
        (0, 'SIGTERM')
    """

    def __init__(self) -> None:
        self.requested: signal.Signals | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def __call__(self) -> bool:
        """Whether a signal came: what the loop takes as `stop`."""
        if self.requested is None:
            return False
        if _in_main_thread():  # not in the handler: another signal that came with the first would be lost
            for number in self._previous:
                signal.signal(number, signal.SIG_DFL)
        return True

    def __enter__(self) -> Self:
        """Install the handler."""
        if not _in_main_thread():
            raise ValueError(
                f"Interruption: expected the main thread, where Python handles signals, found "
                f"{threading.current_thread().name!r}. Enter it there, or train without it."
            )
        for number in STATUS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's, so it could not go back
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Put back what was there."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """Note the first signal, and let the second do what it does by default."""
        if self.requested is None:
            self.requested = signal.Signals(number)
        else:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)


def _in_main_thread() -> bool:
    """Whether handlers can be changed here."""
    return threading.current_thread() is threading.main_thread()
