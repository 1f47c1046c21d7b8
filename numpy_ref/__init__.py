"""Training that resumes as if it had never stopped, in NumPy one can read.

    data = load_data("digits")
    run = init_run(RunConfig(), data)
    run = train_n_steps(run, data, 100)
    save_checkpoint("run.safetensors", run)
    run = resume_from_full_checkpoint("run.safetensors", data)              # goes on, bit for bit
    run = resume_from_weights_only("run.safetensors", data, RunConfig())    # another run on the same weights

The rooms:

    train, optim, model, recompute                  the run and its state; one step; gradient checkpointing
    config, checks, tree                            settings, and the names of leaves
    rng, noise, data, data_files                    streams, draws by key, samples and their order, users' files
    checkpoint, store, background                   state to file; a directory of them; saves beside training
    container, chunks, durable, disk                the format, its bytes, safe writes, the system's calls
    interrupt                                       signals
    arithmetic, elementary, rounding, fixedpoint    every result rounded once
    equivalence, laws, boundary                     what equal means, what a resume must hold, what is promised
    precision, accounting                           16 bits; bytes and FLOPs
    cli, console, demo, walk, exercises             commands, what they print, what they show and teach
    figure, drawing, number_line                    pictures

Example:
    >>> from numpy_ref import RunConfig, init_run, load_data, train_n_steps
    >>> digits = load_data("digits")
    >>> train_n_steps(init_run(RunConfig(hidden=(16,)), digits), digits, 3).state.step
    3
"""

from numpy_ref.boundary import environment
from numpy_ref.checkpoint import (
    read_checkpoint,
    resume_from_full_checkpoint,
    resume_from_weights_only,
    save_checkpoint,
    save_weights,
)
from numpy_ref.config import RunConfig
from numpy_ref.container import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint, IncompleteCheckpoint
from numpy_ref.data import Dataset, init_dataset, load_data
from numpy_ref.train import Evaluation, Run, RunState, StepRecord, evaluate, init_run, restore, snapshot, train_n_steps

__all__ = [
    "CheckpointError",
    "CorruptCheckpoint",
    "Dataset",
    "Evaluation",
    "IncompatibleCheckpoint",
    "IncompleteCheckpoint",
    "Run",
    "RunConfig",
    "RunState",
    "StepRecord",
    "environment",
    "evaluate",
    "init_dataset",
    "init_run",
    "load_data",
    "read_checkpoint",
    "restore",
    "resume_from_full_checkpoint",
    "resume_from_weights_only",
    "save_checkpoint",
    "save_weights",
    "snapshot",
    "train_n_steps",
]
