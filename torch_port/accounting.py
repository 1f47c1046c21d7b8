"""What a training step really holds and computes, measured with torch's own counters, beside the computed numbers.

What follows from shapes exists once, in `numpy_ref.accounting`. Here tensors are counted by their elements, activations
by the hooks of autograd (each storage once, parameters not), operations by `FlopCounterMode`; and GPT-2 is gone through
on the device "meta", where a tensor has a shape and a type but no numbers, so that nothing is allocated or computed.

Measured runs are native: a reproducible product may be made of several float64 ones, which would all be counted.
"""

import math
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from numpy_ref.accounting import (
    GPT2,
    Measured,
    Transformer,
    check_precision,
    file_differences,
    first_batches,
    gpt2_products,
    gpt2_shapes,
    header_bytes,
)
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from torch_port import train
from torch_port.arithmetic.operations import arithmetic_named
from torch_port.checkpoint import save_checkpoint
from torch_port.model import cross_entropy, draw_masks

STEP_BYTES = 8  # of the optimizers' count of steps, a float64 for each parameter


def measure(config: RunConfig, data: Dataset) -> Measured:
    """Bytes and operations of the first step of a run on torch's default device, as they are found.

    Parameters, gradients and the optimizer's state are elements x bytes of their tensors; activations the storages that
    autograd saves in a forward pass and the loss, parameters' own aside; the file that of a real save; operations those
    that `FlopCounterMode` sees of a real step. The peak is the allocator's, on CUDA, less what was there before.

    Args:
        config: of the run; its arithmetic is taken as native.
        data: the data set.

    Mirror:
        `numpy_ref.accounting.measure`; `differences` names what each keeps beyond the other.
    """
    # With no evaluation within the step, and a scale at which no first update is skipped: it makes the moments.
    config = replace(config, arithmetic="native", evaluate_every=2, init_scale=1.0)
    device = torch.get_default_device()
    start = torch.cuda.memory_allocated(device) if device.type == "cuda" else 0
    run = train.init_run(config, data)
    with FlopCounterMode(display=False) as forward:
        activations = _kept_by_a_pass(run, data, first_batches(config, data)[0])
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with FlopCounterMode(display=False) as step:
        run = train.train_n_steps(run, data, 1)
    peak = torch.cuda.max_memory_allocated(device) - start if device.type == "cuda" else None
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.safetensors")
        save_checkpoint(path, run)
        file, header = path.stat().st_size, header_bytes(path)
    parameters = list(run.model.parameters())
    return Measured(
        _nbytes(parameters),
        _nbytes(p.grad for p in parameters if p.grad is not None),
        activations,
        _nbytes(_moments(run.optimizer)),
        file,
        header,
        forward.get_total_flops(),
        step.get_total_flops(),
        peak,
    )


def differences(config: RunConfig, data: Dataset) -> dict[str, dict[str, int]]:
    """By term and cause, what `measure` finds beyond `account_run`, exactly and from shapes.

    Example:
        >>> from numpy_ref.data import load_data
        >>> differences(RunConfig(), load_data("digits"))["optimizer state"]
        {'counts of steps': 48}
    """
    batches, units, classes = first_batches(config, data), sum(config.hidden), data.classes
    batch, sizes = batches[0], (data.inputs.shape[1], *config.hidden, classes)
    norms = len(config.hidden) if config.batch_norm else 0
    half = config.precision != "float32"
    activations = {
        "masks of dropout": batch * units if config.dropout else 0,
        "gradient by the logits": 4 * batch * classes,
    }
    if not config.recompute_segments:
        activations["masks of ReLU"] = batch * units
        if config.dropout and units:
            activations["factor of dropout"] = 2 if half else 4
        if norms:
            activations |= {"normalised inputs": 4 * batch * units, "1 / std of a batch": 4 * units}
        if half:
            activations["16-bit copies of weights"] = 2 * sum(a * b for a, b in pairwise(sizes))
    tensors = 2 * (len(sizes) - 1 + norms)
    return {
        "operands of products": activations,
        "optimizer state": {"counts of steps": STEP_BYTES * tensors},
        "checkpoint file": file_differences(config, data),
    }


def measure_gpt2(size: Transformer = GPT2, *, precision: str = "float32", recompute: bool = False) -> Measured:
    """Bytes and operations of a step on one sequence with the stock Adam, counted on the device "meta".

    Products compute in the precision, softmax and all between the blocks in float32. Recomputed blocks are those of
    `torch.utils.checkpoint` with `use_reentrant=False`.

    Args:
        size: of the model.
        precision: "float32", "float16" or "bfloat16".
        recompute: keep the input of each block alone, and compute the block again in the backward pass.

    Raises:
        ValueError: another precision, or sizes that are none.
    """
    check_precision("measure_gpt2", precision)
    kind: torch.dtype = getattr(torch, precision)
    with torch.device("meta"):
        weights = {name: torch.nn.Parameter(torch.empty(shape)) for name, shape in gpt2_shapes(size).items()}
        tokens = torch.empty(size.context, dtype=torch.int64)
        future = torch.empty(size.context, size.context, dtype=torch.bool)
    with FlopCounterMode(display=False) as counter:
        with _kept(weights.values()) as kept:
            loss = _gpt2_loss(weights, tokens, future, size, kind, recompute)
        activations, forward = sum(kept.values()), counter.get_total_flops()
        loss.backward()  # type: ignore[no-untyped-call]
    optimizer = torch.optim.Adam(weights.values(), foreach=False)
    optimizer.step()
    return Measured(
        _nbytes(weights.values()),
        _nbytes(p.grad for p in weights.values() if p.grad is not None),
        activations,
        _nbytes(_moments(optimizer)),
        None,
        None,
        forward,
        counter.get_total_flops(),
        None,
    )


def gpt2_differences(
    size: Transformer = GPT2, *, precision: str = "float32", recompute: bool = False
) -> dict[str, dict[str, int]]:
    """By term and cause, what `measure_gpt2` finds beyond `account_gpt2`, exactly and from shapes."""
    layers, heads, d, context, vocabulary = size
    half = precision != "float32"
    norms = 1 if recompute else 2 * layers + 1
    activations = {
        "inputs of normalisations": 4 * norms * context * d,
        "means and 1 / std of normalisations": 2 * 4 * norms * context,
        "log-probabilities of the loss": 4 * context * vocabulary,
        "its weight": 4,
        "tokens": 8 * context,
    }
    if half:
        copied = layers * 12 * d * d if not recompute else 0
        activations["16-bit copies of weights"] = 2 * (copied + vocabulary * d)
    if recompute:
        if half:
            activations["inputs of blocks in float32"] = 2 * layers * context * d
    else:
        activations |= {
            "inputs of GELU": (2 if half else 4) * layers * context * 4 * d,
            "mask of attention": context * context,
        }
        if half:
            activations["probabilities in float32"] = 4 * layers * heads * context * context
    # What is computed again ends with the last tensor that the backward pass needs, the input of a block's last one.
    unneeded = gpt2_products(size, head=False)[-1].flops if recompute else 0
    return {
        "operands of products": activations,
        "optimizer state": {"counts of steps": 4 * len(gpt2_shapes(size))},
        "FLOPs, step": {"last product of a block, not needed again": -unneeded},
    }


def _kept_by_a_pass(run: train.Run, data: Dataset, batch: int) -> int:
    """Bytes that a forward pass of a micro-batch and its loss keep."""
    config, device = run.config, run.device
    x, labels = (torch.tensor(array[:batch], device=device) for array in (data.inputs, data.labels))
    masks = draw_masks(run.dropout, config.hidden, batch, config.dropout, device=device)
    with torch.inference_mode(False), torch.enable_grad(), _kept(run.model.parameters()) as kept:
        logits = run.model(x, masks, segments=config.recompute_segments)
        if config.recompute_segments:
            kept |= {_address(mask): mask.nbytes for mask in masks}  # by reference, which no hook sees
        cross_entropy(logits, labels, arithmetic_named("native"), count=batch)
    return sum(kept.values())


@contextmanager
def _kept(parameters: Iterable[torch.Tensor]) -> Iterator[dict[int, int]]:
    """Bytes of each storage that autograd saves within, but for these parameters' own; by its address.

    Addresses are not reused within: what was saved is held until the end.
    """
    own = {_address(p) for p in parameters}
    held: list[torch.Tensor] = []
    sizes: dict[int, int] = {}

    def pack(saved: torch.Tensor) -> torch.Tensor:
        if _address(saved) not in own:
            held.append(saved.detach())
            sizes[_address(saved)] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        yield sizes


def _address(tensor: torch.Tensor) -> int:
    """Which storage it is; on "meta" none has a place in memory."""
    return int(tensor.untyped_storage()._cdata)


def _nbytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _moments(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """All tensors of an optimizer's state."""
    for state in optimizer.state.values():
        yield from (value for value in state.values() if isinstance(value, torch.Tensor))


def _gpt2_loss(
    weights: Mapping[str, torch.Tensor],
    tokens: torch.Tensor,
    future: torch.Tensor,
    size: Transformer,
    kind: torch.dtype,
    recompute: bool,
) -> torch.Tensor:
    """The loss of a sequence that predicts itself, which costs what any other does."""
    x = functional.embedding(tokens, weights["wte"]) + weights["wpe"]
    for i in range(size.layers):
        block = partial(_block, weights, f"block{i}", future, size.heads, kind)
        x = checkpoint(block, x, use_reentrant=False, preserve_rng_state=False) if recompute else block(x)
    logits = _linear(_normalised(x, weights["norm"]), weights["wte"], kind)
    return functional.cross_entropy(logits.float(), tokens)


def _block(
    weights: Mapping[str, torch.Tensor], name: str, future: torch.Tensor, heads: int, kind: torch.dtype, x: torch.Tensor
) -> torch.Tensor:
    """Attention and MLP, each added to its input. Queries are not scaled: that costs no product and keeps nothing."""
    qkv = _linear(_normalised(x, weights[f"{name}.norm1"]), weights[f"{name}.qkv"], kind)
    q, k, v = (part.view(len(x), heads, -1).transpose(0, 1) for part in qkv.chunk(3, dim=1))  # (heads, T, d / heads)
    scores = torch.bmm(q, k.transpose(1, 2)).float().masked_fill(future, -math.inf)
    values = torch.bmm(scores.softmax(2).to(kind), v).transpose(0, 1).flatten(1)  # (T, d)
    x = x + _linear(values, weights[f"{name}.proj"], kind)
    up = _linear(_normalised(x, weights[f"{name}.norm2"]), weights[f"{name}.up"], kind)
    return x + _linear(functional.gelu(up), weights[f"{name}.down"], kind)


def _normalised(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x, weight.shape, weight)


def _linear(x: torch.Tensor, weight: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return x.to(kind) @ weight.to(kind).T
