"""Checkpoints: a run to a file and back.

save_and_resume     a run's state as named leaves, and what is checked when it comes back
container, chunks   the file format, and its bytes
durable, disk       one file replaced atomically; the system calls that this makes
store, background   a directory of checkpoints; saves beside training
"""

from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
)
from numpy_ref.checkpoint.save_and_resume import (
    Checkpoint,
    read_checkpoint,
    resume_from_full_checkpoint,
    resume_from_weights_only,
    save_checkpoint,
    save_weights,
)

__all__ = [
    "Checkpoint",
    "CheckpointError",
    "CorruptCheckpoint",
    "IncompatibleCheckpoint",
    "IncompleteCheckpoint",
    "read_checkpoint",
    "resume_from_full_checkpoint",
    "resume_from_weights_only",
    "save_checkpoint",
    "save_weights",
]
