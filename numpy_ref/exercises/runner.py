"""One law on one file, in this process: a question and an answer, both plain enough for JSON."""

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.arrays import arrays_of
from numpy_ref.exercises.learner import learner
from numpy_ref.exercises.mistakes import likely_cause
from numpy_ref.exercises.source import FileFault

TRACE = "trace"  # asked for in place of a law: what the solution computes on the exercise's own inputs


def answer(
    path: str, exercise: str, framework: str, law: str, *, judged: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """Hold a file to one law; `judged` is called when the file has had its say, before the cause is looked for.

    Returns:
        {"loss": the fields of a Loss}, {"fault": why the file cannot be graded at all}, or {"holds": True} with what
        the law's function returned, if anything, or the trace, as "value".
    """
    chosen, arrays = exercise_named(exercise), arrays_of(framework)
    try:
        solution = learner(Path(path), chosen)
        check = chosen.trace if law == TRACE else chosen.law(law).check
        assert check is not None
        value, loss = solution.outcome(check, arrays)
    except FileFault as fault:
        return {"fault": str(fault)}
    judged()
    if loss is not None:
        if law != TRACE:
            loss.cause = loss.cause or likely_cause(loss, chosen, law, arrays)
        return {"loss": loss.as_dict()}
    return {"holds": True} if value is None else {"holds": True, "value": encoded(value)}


def encoded(tree: Any) -> Any:
    """A tree of arrays as JSON can hold it.

    Example:
        >>> decoded(encoded({"m": [np.float64([0.5]), 3]}))
        {'m': [array([0.5]), 3]}
    """
    if isinstance(tree, dict):
        return {"dict": {str(key): encoded(child) for key, child in tree.items()}}
    if isinstance(tree, (list, tuple)):
        return {"list": [encoded(child) for child in tree]}
    if isinstance(tree, np.ndarray):
        return {"array": [tree.dtype.str, list(tree.shape), base64.b64encode(tree.tobytes()).decode()]}
    if isinstance(tree, bytes):
        return {"bytes": base64.b64encode(tree).decode()}
    return {"plain": tree}


def decoded(value: dict[str, Any]) -> Any:
    """The inverse of `encoded`; an exception for what it did not make."""
    ((kind, inner),) = value.items()
    if kind == "dict":
        return {key: decoded(child) for key, child in inner.items()}
    if kind == "list":
        return [decoded(child) for child in inner]
    if kind == "array":
        return np.frombuffer(base64.b64decode(inner[2]), inner[0]).reshape(inner[1])
    if kind == "bytes":
        return base64.b64decode(inner)
    return inner
