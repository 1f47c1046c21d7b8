"""What a run really holds and computes, measured in NumPy; its twin is `torch_port.accounting`."""

import tempfile
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import model as network
from numpy_ref import train
from numpy_ref.accounting.account import blank_model_of, first_batches, kept_inputs
from numpy_ref.accounting.flops import Product, forward_flops
from numpy_ref.arithmetic.operations import Arithmetic, arithmetic_named
from numpy_ref.checkpoint import save_and_resume as checkpoint
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, epoch_order
from numpy_ref.rng import WORDS, generator_from
from numpy_ref.tree import flatten
from numpy_ref.types import Array


class Measured(NamedTuple):
    """What a run really holds and does; bytes, or operations."""

    parameters: int
    gradients: int
    activations: int  # all that is kept between the forward and the backward pass of the first micro-batch
    optimizer: int
    checkpoint: int | None  # the file
    header: int | None  # of it: the length and the JSON
    forward_flops: int  # of the first micro-batch
    step_flops: int
    peak: int | None  # the most that was held at once during the step, where that is counted


def measure(config: RunConfig, data: Dataset) -> Measured:
    """Bytes and operations of the first step of a run, as they are found.

    Parameters, gradients and moments are the bytes of their arrays; activations what NumPy holds more after the forward
    pass and the loss than before, by tracemalloc; the file that of a real save; operations those of the products that a
    real step asks of its arithmetic; the peak is all that Python allocated at once, its own small
    objects included, so that it moves a little from run to run.

    Args:
        config: of the run; arithmetic is taken as native, in which no product is made of several, and the loss scale
            as 1, so that no update is skipped.
        data: the data set.

    Mirror:
        `torch_port.accounting.measure`; `differences` names what each keeps beyond the other.
    """
    config = replace(config, arithmetic="native", init_scale=1.0)
    counted: list[Product] = []

    def matmul(a: Array, b: Array) -> Array:
        counted.append(Product(a.shape[0], a.shape[1], b.shape[1]))
        return np.asarray(np.matmul(a, b))

    ops = arithmetic_named("native", precision=config.precision)._replace(matmul=matmul)
    with _tracing():
        start, _ = tracemalloc.get_traced_memory()
        run = train.init_run(config, data)
        order, next_order = epoch_order(run.state.rng.order, len(data.labels))
        activations, gradients = _one_pass(run, data, ops, order[: first_batches(config, data)[0]])
        forward = forward_flops(counted[: len(config.hidden) + 1])
        counted.clear()
        tracemalloc.reset_peak()
        state, _ = train._train_step(run.state, config, data, ops, order, next_order)
        peak = tracemalloc.get_traced_memory()[1] - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.safetensors")
        checkpoint.save_checkpoint(path, run._replace(state=state))
        file, header = path.stat().st_size, header_bytes(path)
    parameters = nbytes_of(network.parameters(state.model))
    optimizer = nbytes_of(state.optimizer)
    return Measured(parameters, gradients, activations, optimizer, file, header, forward, forward_flops(counted), peak)


def differences(config: RunConfig, data: Dataset) -> dict[str, dict[str, int]]:
    """By term and cause, what `measure` finds beyond `account_run`, exactly and from shapes.

    A checkpoint's header is left out: its length stands in the file, and in `Measured`. What a file holds beyond the
    account is there at the peak too; an update writes over the state.

    Example:
        >>> from numpy_ref.data import load_data
        >>> differences(RunConfig(), load_data("digits"))["operands of products"]["masks of dropout"]
        8192
    """
    batches, units, classes = first_batches(config, data), sum(config.hidden), data.classes
    batch, last = batches[0], config.hidden[-1] if config.hidden else data.inputs.shape[1]
    width = 2 if config.precision == "float16" else 4
    activations = {
        "masks of dropout": batch * units if config.dropout else 0,
        "gradient by the logits": 4 * batch * classes,
    }
    flops = {}
    if config.precision == "bfloat16":
        sizes = (data.inputs.shape[1], *config.hidden)
        activations["bfloat16 in arrays of float32"] = 2 * batch * sum(sizes[i] for i in kept_inputs(config))
    if config.recompute_segments:
        flops["logits, not computed again"] = -sum(2 * batch * last * classes for batch in batches)
    else:
        activations |= {"inputs of ReLU": width * batch * units, "factor of dropout": width}
        if config.batch_norm:
            activations |= {"normalised inputs": 4 * batch * units, "1 / std of a batch": 4 * units}
    file = file_differences(config, data)
    terms = ("operands of products", "peak of the step", "checkpoint file", "FLOPs, step")
    return dict(zip(terms, (activations, dict(file), file, flops), strict=True))


def file_differences(config: RunConfig, data: Dataset) -> dict[str, int]:
    """What a checkpoint's arrays hold beyond parameters and moments, by cause."""
    model = blank_model_of(config, data)
    weights = nbytes_of(network.parameters(model))
    buffers = nbytes_of(model) - weights
    return {
        "best weights so far": weights,
        "buffers of batch normalisation, twice": 2 * buffers,
        "generators of order and dropout": 2 * 4 * WORDS,
    }


def header_bytes(path: Path) -> int:
    """How much of a checkpoint is its header: the 8 bytes of the length, and the JSON."""
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


@np.errstate(all="ignore")  # as in training
def _one_pass(run: train.Run, data: Dataset, ops: Arithmetic, samples: Array) -> tuple[int, int]:
    """Bytes that a forward pass of these samples and its loss keep, and bytes of the gradients."""
    config, model = run.config, run.state.model
    before = _held_by_numpy()
    x = data.inputs[samples]
    masks = network.draw_masks(generator_from(run.state.rng.dropout), config.hidden, len(samples), config.dropout)
    logits, kept, buffers = network.forward(
        model, x, ops, training=True, masks=masks, dropout=config.dropout, segments=config.recompute_segments
    )
    loss, grad = network.cross_entropy(logits, data.labels[samples], ops, count=len(samples))
    del x, logits, buffers, loss
    held = _held_by_numpy() - before
    return held, nbytes_of(network.backward(model, kept, grad, ops))


@contextmanager
def _tracing() -> Iterator[None]:
    """Memory is traced; whoever traces it already goes on."""
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        yield
    finally:
        if not running:
            tracemalloc.stop()


def _held_by_numpy() -> int:
    """Bytes of all the arrays' elements that are traced."""
    numpy = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([numpy]).traces)


def nbytes_of(tree: Any) -> int:
    """Bytes of a tree's arrays."""
    return sum(leaf.nbytes for leaf in flatten(tree).values() if isinstance(leaf, np.ndarray))
