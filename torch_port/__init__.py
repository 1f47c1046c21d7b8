"""The PyTorch port of `numpy_ref`: PyTorch as people write it, and the same bits.

    run = init_run(RunConfig(), data)                                   # nn.Module, Optimizer, LRScheduler, DataLoader
    run = train_n_steps(run, data, 100)                                 # advances them; the run handed in is used up
    save_checkpoint("run.safetensors", run)                             # the file that numpy_ref writes and reads
    run = resume_from_full_checkpoint("run.safetensors", data)          # goes on, bit for bit, wherever it came from

New runs live on torch's default device: `with torch.device("cuda"): run = init_run(...)`, or `on_device("cuda")`. The
names below are fetched when they are used, so that help, `inspect` and `verify` start without torch.

The rooms; what has the name of a room of `numpy_ref` is its twin, and files and verdicts are there alone:

    train, optim, model, data, recompute            the run and its state, as PyTorch's objects; one step; its loader
    rng, noise                                      streams, and draws by key
    checkpoint                                      a run to file and back
    arithmetic, elementary, rounding                every result rounded once
    precision, accounting                           16 bits; bytes and FLOPs
    boundary, measures, variants                    what is promised, measured here, on the machines within this one
    interop                                         stock objects, and the `.tar` of PyTorch's recipe
    audit                                           any training loop: does it resume?
    exercises                                       what a learner writes in PyTorch
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy_ref import (
        CheckpointError,
        CorruptCheckpoint,
        Dataset,
        Evaluation,
        IncompatibleCheckpoint,
        IncompleteCheckpoint,
        RunConfig,
        RunState,
        StepRecord,
        init_dataset,
        load_data,
        read_checkpoint,
    )
    from torch_port.boundary import check_boundary, environment, on_device
    from torch_port.checkpoint import (
        resume_from_full_checkpoint,
        resume_from_weights_only,
        save_checkpoint,
        save_weights,
    )
    from torch_port.train import Run, evaluate, init_run, restore, snapshot, train_n_steps

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
    "check_boundary",
    "environment",
    "evaluate",
    "init_dataset",
    "init_run",
    "load_data",
    "on_device",
    "read_checkpoint",
    "restore",
    "resume_from_full_checkpoint",
    "resume_from_weights_only",
    "save_checkpoint",
    "save_weights",
    "snapshot",
    "train_n_steps",
]

_HOMES = {
    "torch_port.train": ("Run", "evaluate", "init_run", "restore", "snapshot", "train_n_steps"),
    "torch_port.checkpoint": (
        "resume_from_full_checkpoint",
        "resume_from_weights_only",
        "save_checkpoint",
        "save_weights",
    ),
    "torch_port.boundary": ("check_boundary", "environment", "on_device"),
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'torch_port' has no attribute {name!r}")
    home = next((module for module, names in _HOMES.items() if name in names), "numpy_ref")
    try:
        return getattr(import_module(home), name)
    except ImportError as error:
        if error.name == "torch":
            error.add_note("torch_port needs PyTorch: install the 'torch' extra, pip install '.[torch]'")
        raise


def __dir__() -> list[str]:
    return __all__
