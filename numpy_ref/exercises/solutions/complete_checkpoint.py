"""Save and load all of a training run, and say how near two results must be.

Write three functions: `save_everything`, `load_everything` and `allowance`. The loop is given: `new_run` makes a run,
`train_step` takes one step of it, and `atomic_write` replaces a file (that is an exercise of its own: do it before
this one, which shows most of its answer). A run is a dict:

    params, m, v                        dicts of float32 arrays, "weight" (D, C) and "bias" (C,): weights and moments
    t                                   int, index of Adam's next step; a step that is skipped is not counted
    rate, until_drop                    float, int: the learning rate, and in how many steps it is halved
    scale, good_steps                   float, int: the loss scale, and steps since it was changed
    epoch, position, order              int, int, int64 array: this epoch's order of the samples, how many are used
    order_generator, dropout_generator  numpy.random.Generator
"""

import io
import json
import os
import secrets
from typing import Any

import numpy as np

ARRAYS = ("params", "m", "v")
PLAIN = ("t", "rate", "until_drop", "scale", "good_steps", "epoch", "position")
GENERATORS = ("order_generator", "dropout_generator")

SAMPLES, D, C, BATCH = 20, 5, 2, 4
HALVED_EVERY, GROWN_EVERY = 7, 4

Run = dict[str, Any]


def new_run(seed: int) -> Run:
    """A run before its first step."""
    rng = np.random.default_rng([seed, 0])
    order_generator = np.random.default_rng([seed, 1])
    shapes = {"weight": (D, C), "bias": (C,)}
    return {
        "params": {name: rng.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()},
        "m": {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()},
        "v": {name: np.zeros(shape, dtype=np.float32) for name, shape in shapes.items()},
        "t": 1,
        "rate": 0.05,
        "until_drop": HALVED_EVERY,
        "scale": 2.0**14,
        "good_steps": 0,
        "epoch": 0,
        "position": 0,
        "order": order_generator.permutation(SAMPLES),
        "order_generator": order_generator,
        "dropout_generator": np.random.default_rng([seed, 2]),
    }


def train_step(run: Run, inputs: np.ndarray[Any, Any], targets: np.ndarray[Any, Any]) -> None:
    """One step of a linear model with dropout, by Adam, in place; gradients are float16, times the loss scale."""
    if run["position"] == SAMPLES:
        run["epoch"] += 1
        run["position"] = 0
        run["order"] = run["order_generator"].permutation(SAMPLES)
    batch = run["order"][run["position"] : run["position"] + BATCH]
    run["position"] += BATCH
    keep = 0.9 if run["epoch"] < 2 else 0.5
    kept = run["dropout_generator"].random((BATCH, D)) < keep
    x = inputs[batch] * kept / np.float32(keep)
    errors = x @ run["params"]["weight"] + run["params"]["bias"] - targets[batch]
    grads = {"weight": x.T @ errors / BATCH, "bias": errors.sum(0) / BATCH}
    scaled = {name: (g * run["scale"]).astype(np.float16) for name, g in grads.items()}
    if all(np.isfinite(g).all() for g in scaled.values()):
        for name, p in run["params"].items():
            g, m, v = scaled[name].astype(np.float32) / run["scale"], run["m"][name], run["v"][name]
            m += (g - m) * (1 - 0.9)
            v += (g * g - v) * (1 - 0.999)
            m_hat, v_hat = m / (1 - 0.9 ** run["t"]), v / (1 - 0.999 ** run["t"])
            p -= run["rate"] * m_hat / (np.sqrt(v_hat) + 1e-8)
        run["t"] += 1
        run["good_steps"] += 1
        if run["good_steps"] == GROWN_EVERY:
            run["scale"], run["good_steps"] = run["scale"] * 2, 0
    else:  # too large for float16: skip the step
        run["scale"], run["good_steps"] = run["scale"] / 2, 0
    run["until_drop"] -= 1
    if run["until_drop"] == 0:
        run["rate"], run["until_drop"] = run["rate"] / 2, HALVED_EVERY


def atomic_write(path: str | os.PathLike[str], data: bytes) -> None:
    """Make the file at `path` hold `data`: if that fails, it holds what it held."""
    temporary = f"{os.path.abspath(path)}.{secrets.token_hex(8)}.tmp"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    directory = os.open(os.path.dirname(temporary), os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def save_everything(path: str | os.PathLike[str], run: Run) -> None:
    """Write all of a run into one file.

    Args:
        path: the file, exactly: nothing is appended to its name. If one is there, it is replaced whole or not at all.
        run: the run, which is left as it is.
    """
    plain = {key: run[key] for key in PLAIN}
    states = {key: run[key].bit_generator.state for key in GENERATORS}
    text = json.dumps({**plain, **states})
    arrays = {f"{key}/{name}": array for key in ARRAYS for name, array in run[key].items()}
    buffer = io.BytesIO()
    np.savez(buffer, text=np.array(text), order=run["order"], **arrays)
    atomic_write(path, buffer.getvalue())


def load_everything(path: str | os.PathLike[str], fresh: Run) -> Run:
    """The run that `save_everything` wrote; training it on is training that never stopped.

    Args:
        path: the file. It is not trusted. Nothing in it may run as code: unpickle nothing, evaluate no text.
        fresh: a run that `new_run` made, of any seed. It may be changed, and returned.

    Returns:
        A run with the keys, types and values of the one that was saved.
    """
    run = dict(fresh)
    with np.load(path, allow_pickle=False) as file:
        plain = json.loads(file["text"].item())
        run["order"] = file["order"]
        for key in ARRAYS:
            run[key] = {name: file[f"{key}/{name}"] for name in fresh[key]}
    for key in PLAIN:
        run[key] = plain[key]
    for key in GENERATORS:
        run[key] = np.random.default_rng()
        run[key].bit_generator.state = plain[key]
    return run


def allowance(relation: str) -> float:
    """How far apart two results may be, at most, before something is wrong; neither wider nor narrower than needed.

    Args:
        relation: "resumed": a weight after a resume, beside the same after no interruption, on the same machine.
            "rounded": a weight rounded to float16 (to the nearest, no overflow or underflow), beside itself; relative
            to the weight. "reordered": the sum of 8 float32 numbers added up in one order, beside the same in another;
            relative to the sum of their absolute values.

    Returns:
        The largest distance that is right.
    """
    unit = {"float16": 2.0**-11, "float32": 2.0**-24}  # half the distance from 1 to the next number
    return {"resumed": 0.0, "rounded": unit["float16"], "reordered": 2 * (8 - 1) * unit["float32"]}[relation]
