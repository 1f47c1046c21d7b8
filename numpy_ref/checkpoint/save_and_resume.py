"""Checkpoints: a run's whole state, or its weights, to one file and back.

A full checkpoint holds every leaf of `RunState`: arrays in the container, plain numbers and texts in its manifest,
beside the configuration, the run's id, the data's fingerprint and the environment. Loading is all or nothing:
everything is read and verified before a run is made of it.
"""

import math
import re
import reprlib
from os import PathLike
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import train
from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
    read_container,
    write_container,
)
from numpy_ref.checkpoint.durable import replace_file
from numpy_ref.config import RunConfig, decode_config, differing_fields, encode_config
from numpy_ref.data import Dataset
from numpy_ref.machine import environment
from numpy_ref.optim import ScalerState, faults_of_scaler
from numpy_ref.rng import generator_from
from numpy_ref.train import Run, RunState
from numpy_ref.tree import Leaf, copy_tree, flatten, printable, structure_faults, unflatten
from numpy_ref.types import Array

__all__ = [
    "Checkpoint",
    "read_checkpoint",
    "resume_from_full_checkpoint",
    "resume_from_weights_only",
    "save_checkpoint",
    "save_weights",
]

Path = str | PathLike[str]

FULL, WEIGHTS = "full", "weights"
UNUSABLE = "The file is of no use: take another checkpoint."
UNSAVED = "Nothing was written: mend the state, save again."
HEX = "float "  # marks a float among the scalars: "float 0x1.8p+1"
FIELDS = {
    "kind": str,
    "run_id": str,
    "step": int,
    "fingerprint": str,
    "config": dict,
    "scalars": dict,
    "environment": dict,
}


class Checkpoint(NamedTuple):
    """A file's verified content."""

    kind: str  # "full" or "weights"
    run_id: str
    step: int
    config: RunConfig
    fingerprint: str  # of the data set
    environment: dict[str, Any]  # in which it was written
    model: dict[str, Array]
    state: RunState | None  # all of it, model included; None for the kind "weights"


def save_checkpoint(path: Path, run: Run) -> None:
    """Write a full checkpoint, whole or not at all; it is on disk when this returns.

    Args:
        path: the file; replaced if it is there.
        run: left as it is.

    Raises:
        ValueError: the state could not be loaded again: leaves missing, of another shape or type, or counters that
            contradict one another; all of them are named, and nothing is written.
        OSError: it could not be written; what stood under the name before still does.

    Resume:
        `resume_from_full_checkpoint` on this file goes on as if the run had never stopped.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/run.safetensors", train.train_n_steps(run, digits, 2))
        ...     resumed = resume_from_full_checkpoint(f"{folder}/run.safetensors", digits)
        >>> resumed.state.step, resumed.state.optimizer.t
        (2, 2)
    """
    write_run(path, run, FULL, environment())


def save_weights(path: Path, run: Run) -> None:
    """Write a checkpoint of the kind "weights": the model alone, for another run.

    Args:
        path: the file; what stands there is replaced once the new one is whole and on the disk.
        run: left as it is.

    Raises:
        OSError: as for `save_checkpoint`.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/weights.safetensors", run)
        ...     resume_from_weights_only(f"{folder}/weights.safetensors", digits, run.config).state.step
        0
    """
    write_run(path, run, WEIGHTS, environment())


def resume_from_full_checkpoint(path: Path, data: Dataset, *, expect: RunConfig | None = None) -> Run:
    """Continue a run as if it had never stopped; its configuration comes from the file.

    Args:
        path: a full checkpoint.
        data: the data set the run was started on.
        expect: refuse the file if its configuration is another one.

    Returns:
        The run, at the step at which it was saved.

    Raises:
        CheckpointError: no such file, damaged (`CorruptCheckpoint`), without a state that a resume needs
            (`IncompleteCheckpoint`), or of another configuration, data set, model or version
            (`IncompatibleCheckpoint`).

    Mirror:
        `torch_port.resume_from_full_checkpoint` reads the same files.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_checkpoint(f"{folder}/run.safetensors", train.train_n_steps(run, digits, 2))
        ...     resumed = resume_from_full_checkpoint(f"{folder}/run.safetensors", digits, expect=run.config)
        >>> train.train_n_steps(resumed, digits, 1).state.step
        3
    """
    run = read_run(path, data, expect=expect)
    train.check_run(run.config, data)
    return run


def read_run(path: Path, data: Dataset, *, expect: RunConfig | None) -> Run:
    """All that is checked of a file on a full resume, of either package; see `resume_from_full_checkpoint`."""
    checkpoint = read_checkpoint(path)
    state = checkpoint.state
    if state is None:
        absent = sorted(set(RunState._fields) - {"model"})
        raise IncompleteCheckpoint(
            f"{path}: missing {', '.join(absent)}; a full resume needs every field of RunState.\n"
            f"    This file has kind {checkpoint.kind!r}: use resume_from_weights_only, or save with save_checkpoint."
        )
    if expect is not None and (fields := differing_fields(checkpoint.config, expect)):
        raise IncompatibleCheckpoint(
            f"{path}: the run in the file has another configuration: {'; '.join(fields)}.\n"
            "    Resume without these settings to continue it, or start another run in another place."
        )
    if checkpoint.fingerprint != data.fingerprint:
        raise IncompatibleCheckpoint(
            f"{path}: expected the data set with fingerprint {checkpoint.fingerprint}, found {data.fingerprint}.\n"
            "    Give the data that the run was started on; on other data it would be another run."
        )
    samples, ends = len(data.labels), (data.inputs.shape[1], data.classes)
    if state.data.consumed >= samples or _ends(checkpoint.config, state.model) != ends:
        raise CorruptCheckpoint(
            f"{path}: expected a position below {samples} and a model from {ends[0]} inputs to {ends[1]} classes, "
            f"found {state.data.consumed} and {_ends(checkpoint.config, state.model)}.\n"
            "    The file contradicts itself: use another checkpoint."
        )
    window = checkpoint.config.batch_size * checkpoint.config.accumulation
    steps = state.data.epoch * -(-samples // window) + state.data.consumed // window
    if state.step != steps:
        raise CorruptCheckpoint(f"{path}: {_misplaced(checkpoint.config, state)} among {samples}.\n    {UNUSABLE}")
    return Run(checkpoint.config, state, checkpoint.run_id, checkpoint.fingerprint)


def resume_from_weights_only(path: Path, data: Dataset, config: RunConfig) -> Run:
    """Start a new run from the weights in a file: everything else is fresh. Not a continuation, and not meant as one.

    Args:
        path: a checkpoint of either kind; only its model is used, batch normalisation's statistics included.
        data: the data set of the new run.
        config: its configuration; the file's own does not matter.

    Returns:
        A run at step 0 with a new id.

    Raises:
        CheckpointError: as for a full resume, or the file's model is not the one that `config` and `data` make; every
            leaf that differs is named.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/weights.safetensors", train.train_n_steps(run, digits, 2))
        ...     new = resume_from_weights_only(f"{folder}/weights.safetensors", digits, RunConfig(hidden=(16,)))
        >>> new.state.step
        0
    """
    model = read_weights(path, data, config)
    run = train.init_run(config, data)
    return run._replace(state=with_weights(run.state, model))


def read_weights(path: Path, data: Dataset, config: RunConfig) -> dict[str, Array]:
    """The model in a file, checked to be one of this configuration and data; see `resume_from_weights_only`."""
    model = read_checkpoint(path).model
    wanted = train.schema(config, data.inputs.shape[1], data.classes).model
    advice = "Give the configuration of the model in the file."
    _check_structure(path, flatten(wanted, "model"), flatten(model, "model"), advice)
    return model


def with_weights(state: RunState, model: dict[str, Array]) -> RunState:
    """A state at step 0 with a model, the best one so far."""
    return state._replace(model=model, best=state.best._replace(model=copy_tree(model)))


def read_checkpoint(path: Path) -> Checkpoint:
    """Read a file of either kind and verify all of it, whatever run or data it belongs to.

    Args:
        path: a checkpoint, full or of weights alone.

    Returns:
        What the file holds; `state` is None where it holds the weights alone.

    Raises:
        CheckpointError: as for `resume_from_full_checkpoint`, as far as the file alone can tell.

    Example:
        >>> import tempfile
        >>> from numpy_ref.data import load_data
        >>> digits = load_data("digits")
        >>> run = train.init_run(RunConfig(hidden=(16,)), digits)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     save_weights(f"{folder}/weights.safetensors", run)
        ...     checkpoint = read_checkpoint(f"{folder}/weights.safetensors")
        >>> checkpoint.kind, checkpoint.state
        ('weights', None)
    """
    arrays, manifest = read_container(path)
    _check_manifest(path, manifest, UNUSABLE)
    config = _decoded_config(path, manifest["config"])
    kind, step = manifest["kind"], manifest["step"]
    scalars = {name: _decode_scalar(path, name, value) for name, value in manifest["scalars"].items()}
    model, state = _verified(path, kind, config, step, arrays | scalars, UNUSABLE)
    run_id, fingerprint, written_in = (manifest[name] for name in ("run_id", "fingerprint", "environment"))
    return Checkpoint(kind, run_id, step, config, fingerprint, written_in, model, state)


def write_run(path: Path, run: Run, kind: str, written_in: dict[str, Any]) -> None:
    """Write a run to a file of a kind, with the environment it is written in: what both packages save with."""
    train.check_kind("save", run)
    leaves = flatten(run.state) if kind == FULL else flatten(run.state.model, "model")
    manifest = {
        "kind": kind,
        "run_id": run.run_id,
        "step": run.state.step,
        "config": encode_config(run.config),
        "scalars": {n: _encode_scalar(path, n, x) for n, x in leaves.items() if not isinstance(x, np.ndarray)},
        "fingerprint": run.fingerprint,
        "environment": written_in,
    }
    try:  # what would be refused when it is loaded is refused now
        _check_manifest(path, manifest, UNSAVED)
        _verified(path, kind, run.config, run.state.step, leaves, UNSAVED)
    except CheckpointError as error:
        raise ValueError(str(error)) from error
    with replace_file(path) as file:
        write_container(file, {name: x for name, x in leaves.items() if isinstance(x, np.ndarray)}, manifest)


def _verified(
    path: Path, kind: str, config: RunConfig, step: int, leaves: dict[str, Any], advice: str
) -> tuple[dict[str, Array], RunState | None]:
    """The model and the state of these leaves, which are all there, fit the configuration and one another."""
    model = {name.removeprefix("model/"): leaf for name, leaf in leaves.items() if name.startswith("model/")}
    schema = train.schema(config, *_checked_ends(path, config, model, advice))
    if kind == WEIGHTS:
        _check_structure(path, flatten(schema.model, "model"), leaves, advice)
        return {name: model[name] for name in schema.model}, None
    _check_structure(path, flatten(schema), leaves, advice)
    state = unflatten(schema, leaves)
    _check_values(path, config, state, step, advice)
    return state.model, state


def _encode_scalar(path: Path, name: str, leaf: Any) -> Any:
    """A plain value for JSON; floats in hexadecimal, which is exact and knows infinity."""
    if type(leaf) is float:
        return HEX + leaf.hex()
    if type(leaf) in (int, str):
        return leaf
    found = reprlib.repr(leaf)
    raise ValueError(f"{path}: {name}: expected an array, int, float or str, found {found}.\n    {UNSAVED}")


def _decode_scalar(path: Path, name: str, value: Any) -> Any:
    """The inverse of `_encode_scalar`."""
    if type(value) is str and value.startswith(HEX):
        try:
            return float.fromhex(value.removeprefix(HEX))
        except (ValueError, OverflowError):
            raise CorruptCheckpoint(
                f"{path}: {printable(name)}: expected a float in hexadecimal, found {reprlib.repr(value)}.\n"
                "    Use another checkpoint."
            ) from None
    return value


def _check_manifest(path: Path, manifest: dict[str, Any], advice: str) -> None:
    """The fields are all there and of their types."""
    missing = sorted(FIELDS.keys() - manifest.keys())
    if missing:
        raise IncompleteCheckpoint(
            f"{path}: missing {', '.join(missing)} in the manifest.\n    Write checkpoints with save_checkpoint."
        )
    faults = [
        f"{name}: expected {kind.__name__}, found {reprlib.repr(manifest[name])}"
        for name, kind in FIELDS.items()
        if type(manifest[name]) is not kind
    ]
    if not faults and manifest["kind"] not in (FULL, WEIGHTS):
        faults.append(f"kind: expected 'full' or 'weights', found {reprlib.repr(manifest['kind'])}")
    for name, digits in (("run_id", 32), ("fingerprint", 64)):
        if not faults and not re.fullmatch(f"[0-9a-f]{{{digits}}}", manifest[name]):
            faults.append(f"{name}: expected {digits} hexadecimal digits, found {manifest[name]!a:.80}")
    if faults:
        raise CorruptCheckpoint(f"{path}: {'; '.join(faults)}.\n    {advice}")


def _decoded_config(path: Path, values: dict[str, Any]) -> RunConfig:
    try:
        return decode_config(values)
    except (ValueError, TypeError) as error:
        raise IncompatibleCheckpoint(
            f"{path}: the configuration is not one of this version: {ascii(str(error))[1:-1]:.2000}.\n"
            "    Use the version of the program that wrote it."
        ) from error


def _ends(config: RunConfig, model: dict[str, Array]) -> tuple[int, int]:
    """D and C of a model."""
    return model["layer0.weight"].shape[1], model[f"layer{len(config.hidden)}.weight"].shape[0]


def _checked_ends(path: Path, config: RunConfig, model: dict[str, Any], advice: str) -> tuple[int, int]:
    """D and C of a model whose weights chain through the configuration's hidden sizes."""
    names = [f"layer{i}.weight" for i in range(len(config.hidden) + 1)]
    if absent := [f"model/{name}" for name in names if name not in model]:
        raise IncompleteCheckpoint(
            f"{path}: missing {', '.join(absent)}; the configuration has hidden layers {config.hidden}.\n    {advice}"
        )
    shapes = [np.shape(model[name]) for name in names]
    # Without a size of 0: with one, a file of no data asks for biases of any size.
    chain = all(len(shape) == 2 and 0 not in shape for shape in shapes)
    if (
        not chain
        or tuple(s[0] for s in shapes[:-1]) != config.hidden
        or tuple(s[1] for s in shapes[1:]) != config.hidden
    ):
        raise IncompatibleCheckpoint(
            f"{path}: expected weights for hidden layers {config.hidden}, found shapes {shapes}.\n    {advice}"
        )
    return int(shapes[0][1]), int(shapes[-1][0])


def _check_structure(path: Path, wanted: dict[str, Leaf], found: dict[str, Any], advice: str) -> None:
    """Every leaf that is wanted is there, of its shape and type, and no other."""
    missing, faults = structure_faults(wanted, found)
    if missing:
        raise IncompleteCheckpoint(
            f"{path}: missing {', '.join(missing)}; a resume needs every one of them.\n    {advice}"
        )
    if faults:
        raise IncompatibleCheckpoint(f"{path}: {'; '.join(faults)}.\n    {advice}")


def _misplaced(config: RunConfig, state: RunState) -> str:
    window = config.batch_size * config.accumulation
    found = f"found epoch {state.data.epoch}, sample {state.data.consumed}"
    return f"data: expected a position that {state.step} steps of {window} samples lead to, {found}"


def _check_values(path: Path, config: RunConfig, state: RunState, step: int, advice: str) -> None:
    """Counters and generators in their ranges, and in agreement with one another."""
    faults = []
    counts = {"step": state.step, "optimizer/t": state.optimizer.t, "schedule/tick": state.schedule.tick}
    counts |= {"data/epoch": state.data.epoch, "data/consumed": state.data.consumed, "best/step": state.best.step}
    faults += [f"{name}: expected >= 0, found {value}" for name, value in counts.items() if value < 0]
    faults += [f"{name}: expected below 2**63" for name, value in counts.items() if value >= 2**63]
    updates = state.optimizer.t if config.scales_loss else step  # with a scaler, some steps were skipped
    wanted = {"step": step, "optimizer/t": updates, "schedule/tick": updates}
    faults += [
        f"{name}: expected {n} as {'in the manifest' if n == step else 'optimizer/t'}, found {counts[name]}"
        for name, n in wanted.items()
        if counts[name] != n
    ]
    if updates > step:
        faults.append(f"optimizer/t: expected at most the step {step}, found {updates}")
    if isinstance(state.scaler, ScalerState):
        faults += faults_of_scaler(state.scaler)
        end = min(config.growth_interval - 1, updates)
        if not faults and state.scaler.growth_tracker > end:
            faults.append(f"scaler/growth_tracker: expected at most {end}, found {state.scaler.growth_tracker}")
    if state.best.step > state.step:
        faults.append(f"best/step: expected at most {state.step}, found {state.best.step}")
    if not faults:
        # An epoch is a whole number of windows, the last one perhaps short: so many steps lead to just this position.
        windows, beside = divmod(state.data.consumed, config.batch_size * config.accumulation)
        earlier, epochs = step - windows, state.data.epoch
        if beside or (earlier % epochs or earlier // epochs <= windows if epochs else earlier):
            faults.append(_misplaced(config, state))
    if math.isnan(state.best.loss):
        faults.append("best/loss: expected a number or infinity, found nan")
    faults += train.faults_of_mode(state)
    if not state.schedule.rate >= 0:
        faults.append(f"schedule/rate: expected a rate >= 0, found {state.schedule.rate}")
    for name, stream in state.rng._asdict().items():
        try:
            generator_from(stream)
        except ValueError as error:
            faults.append(f"rng/{name}/{str(error).rstrip('.?')}")
    if faults:
        raise CorruptCheckpoint(f"{path}: {'; '.join(faults)}.\n    {advice}")
