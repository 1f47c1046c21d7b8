"""The PyTorch port of `numpy_ref`: PyTorch as people write it, and the same bits.

    run = init_run(RunConfig(), data)                                   # nn.Module, Optimizer, LRScheduler, DataLoader
    run = train_n_steps(run, data, 100)                                 # advances them; the run handed in is used up
    save_checkpoint("run.safetensors", run)                             # the file that numpy_ref writes and reads
    run = resume_from_full_checkpoint("run.safetensors", data)          # goes on, bit for bit, wherever it came from

New runs live on torch's default device: `with torch.device("cuda"): run = init_run(...)`, or `on_device("cuda")`. The
names below are fetched when they are used, so that help, `inspect` and `verify` start without torch.

A module has the name of its twin in `numpy_ref`. Files and verdicts are handled there alone. PyTorch's alone are:

    proof           the rows of the boundary measured here, also in other variants of a process
    interop         stock objects, and the `.tar` of PyTorch's recipe
    audit           any training loop: does it resume?
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
    from torch_port.checkpoint import (
        resume_from_full_checkpoint,
        resume_from_weights_only,
        save_checkpoint,
        save_weights,
    )
    from torch_port.machine import environment, on_device
    from torch_port.proof import check_boundary
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
    "torch_port.machine": ("environment", "on_device"),
    "torch_port.proof": ("check_boundary",),
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
