"""Checkpoints: a live run's whole state, or its weights, to the file that `numpy_ref` writes and reads, and back.

What handles files exists once, in `numpy_ref.checkpoint`; here a run becomes the reference's state on its way out, and
the reference's state a run on its way in. So a run saved in one package is resumed in the other, bit for bit.
"""

from os import PathLike

from numpy_ref import train as reference
from numpy_ref.checkpoint import save_and_resume as files
from numpy_ref.checkpoint.save_and_resume import Checkpoint, read_checkpoint
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from torch_port import train
from torch_port.machine import environment
from torch_port.train import Run

__all__ = [
    "Checkpoint",
    "read_checkpoint",
    "resume_from_full_checkpoint",
    "resume_from_weights_only",
    "save_checkpoint",
    "save_weights",
]

Path = str | PathLike[str]


def save_checkpoint(path: Path, run: Run) -> None:
    """Write a full checkpoint, whole or not at all; it is on disk when this returns.

    Resume:
        `resume_from_full_checkpoint` of either package on this file goes on as if the run had never stopped.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/run.safetensors", train.train_n_steps(run, digits, 2))
        ...     resumed = resume_from_full_checkpoint(f"{folder}/run.safetensors", digits)
        >>> resumed.step, resumed.schedule.last_epoch
        (2, 2)
    """
    files.write_run(path, _as_data(run), files.FULL, environment(run.device))


def save_weights(path: Path, run: Run) -> None:
    """Write a checkpoint of the kind "weights": the model alone, for another run.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/weights.safetensors", run)
        ...     resume_from_weights_only(f"{folder}/weights.safetensors", digits, run.config).step
        0
    """
    files.write_run(path, _as_data(run), files.WEIGHTS, environment(run.device))


def resume_from_full_checkpoint(path: Path, data: Dataset, *, expect: RunConfig | None = None) -> Run:
    """Continue a run as if it had never stopped, on torch's default device; its configuration comes from the file.

    Raises:
        CheckpointError: see `numpy_ref.resume_from_full_checkpoint`.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/run.safetensors", train.train_n_steps(run, digits, 2))
        ...     resumed = resume_from_full_checkpoint(f"{folder}/run.safetensors", digits, expect=run.config)
        >>> train.train_n_steps(resumed, digits, 1).step
        3
    """
    found = files.read_run(path, data, expect=expect)
    train.check_run(found.config, data)
    return train.live_run(found.config, found.state, run_id=found.run_id, fingerprint=found.fingerprint)


def resume_from_weights_only(path: Path, data: Dataset, config: RunConfig) -> Run:
    """Start a new run from the weights in a file: everything else is fresh. Not a continuation, and not meant as one.

    Raises:
        CheckpointError: see `numpy_ref.resume_from_weights_only`.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/weights.safetensors", train.train_n_steps(run, digits, 2))
        ...     new = resume_from_weights_only(f"{folder}/weights.safetensors", digits, RunConfig(hidden=(16,)))
        >>> new.step
        0
    """
    model = files.read_weights(path, data, config)
    run = train.init_run(config, data)
    state = files.with_weights(train.live_state(run), model)
    return train.live_run(config, state, run_id=run.run_id, fingerprint=run.fingerprint)


def _as_data(run: Run) -> reference.Run:
    """The run as the reference has it: its state is data, here that of the live objects, for a save takes no copy."""
    return reference.Run(run.config, train.live_state(run), run.run_id, run.fingerprint)
