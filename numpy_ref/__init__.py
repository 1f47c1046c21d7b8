"""Training that resumes as if it had never stopped, in NumPy one can read.

    data = load_data("digits")
    run = init_run(RunConfig(), data)
    run = train_n_steps(run, data, 100)
    save_checkpoint("run.safetensors", run)
    run = resume_from_full_checkpoint("run.safetensors", data)              # goes on, bit for bit
    run = resume_from_weights_only("run.safetensors", data, RunConfig())    # another run on the same weights

    train, model, optim       the run and its loop; one pass forward and back; one update
    rng, noise, data          random streams; draws by key; samples, their order and the position in it
    config, tree, checks      settings; names of leaves; checks of arguments
    types                     what signatures share
    machine                   all that native bits may depend on
    arithmetic                every result rounded once
    checkpoint                a run to a file and back; atomic writes; a directory of checkpoints
    proof                     equality, the laws about resuming, and the declared boundary
    accounting                bytes and FLOPs of a step
    exercises                 exercises and their grader
    cli, console, interrupt   commands, output, signals

Example:
    >>> from numpy_ref import RunConfig, init_run, load_data, train_n_steps
    >>> digits = load_data("digits")
    >>> train_n_steps(init_run(RunConfig(hidden=(16,)), digits), digits, 3).state.step
    3
"""

from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
)
from numpy_ref.checkpoint.save_and_resume import (
    read_checkpoint,
    resume_from_full_checkpoint,
    resume_from_weights_only,
    save_checkpoint,
    save_weights,
)
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, init_dataset, load_data
from numpy_ref.machine import environment
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
