"""Exercises on training that resumes, and the grader that says what a solution lost.

One module an exercise holds what is asked and the laws that a solution must keep; `solutions` holds the reference in
NumPy, `torch_port.exercises` the one in PyTorch where it differs in more than words, and `mistakes` the wrong versions,
by which the grader names what was lost.

    exercise, arrays             the words in which laws are written, and what they need of a framework
    source, learner              a file as text, and as functions that are called
    grader                       a file held to all laws, or to another file
    processes, child, runner     a law put to a file in a process of its own
    watched_disk                 what a crash may leave of a file, for `atomic_write`
    commands                     the verbs `exercises` and `grade`
"""

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy_ref.exercises.exercise import Exercise

_IN_ORDER = (
    "resume",
    "momentum",
    "atomic_write",
    "data_order",
    "workers",
    "schedule_and_scaler",
    "loss_scaling",
    "representable_range",
    "gradient_checkpointing",
    "complete_checkpoint",
    "memory",
    "flops",
)
EXERCISES = tuple(name for name in _IN_ORDER if (Path(__file__).parent / f"{name}.py").is_file())


def exercise_named(name: str) -> "Exercise":
    """The exercise of a name.

    Raises:
        ValueError: there is none of that name.
    """
    if name not in EXERCISES:
        raise ValueError(f"expected the name of an exercise, one of {', '.join(EXERCISES)}; found {name!r}")
    exercise: Exercise = import_module(f"{__name__}.{name}").EXERCISE
    return exercise
