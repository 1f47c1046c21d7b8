"""What shapes say that a step holds and computes: of a run of ours, and of GPT-2."""

from typing import NamedTuple

from numpy_ref import model as network
from numpy_ref.accounting.flops import forward_flops, mlp_products, step_flops
from numpy_ref.accounting.gpt2 import GPT2, Transformer, gpt2_activations, gpt2_attention, gpt2_products, gpt2_shapes
from numpy_ref.accounting.memory import CONVENTIONS, Memory, account_memory
from numpy_ref.arithmetic.fixedpoint import CASTS
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.types import Array


def first_batches(config: RunConfig, data: Dataset) -> list[int]:
    """Samples in each micro-batch of the first step."""
    window = min(config.batch_size * config.accumulation, len(data.labels))
    return [min(config.batch_size, window - start) for start in range(0, window, config.batch_size)]


def kept_inputs(config: RunConfig) -> list[int]:
    """The linear layers whose inputs are kept: all of them, or with recomputation the first of each segment."""
    depth = len(config.hidden) + 1
    if not config.recompute_segments:
        return list(range(depth))
    return [layers.start for layers in network.segments_of(depth, config.recompute_segments)]


class Account(NamedTuple):
    """What shapes say that a run holds and does."""

    memory: Memory
    checkpoint: int  # bytes on disk: parameters and moments
    forward_flops: int  # of the first micro-batch
    step_flops: int


def account_run(config: RunConfig, data: Dataset) -> Account:
    """Bytes and operations of the first step of a run, from its configuration and the data's sizes alone.

    Activations are the inputs of the linear layers, or with recomputation those of the segments, of one micro-batch, in
    the format that the layers compute in. What is computed again is the whole forward pass. The first layer's input is
    data: no gradient by it is formed.

    Example:
        >>> from numpy_ref.data import load_data
        >>> account = account_run(RunConfig(), load_data("digits"))
        >>> account.memory.parameters, account.memory.activations, account.step_flops
        (104488, 40960, 4440064)
    """
    shapes = [w.shape for w in network.parameters(blank_model_of(config, data)).values()]
    sizes = data.inputs.shape[1], config.hidden, data.classes
    passes = [mlp_products(batch, *sizes) for batch in first_batches(config, data)]
    widths = CONVENTIONS["float32 adam" if config.precision == "float32" else "autocast adam"].widths
    again = bool(config.recompute_segments)
    kept = [(passes[0][i].m, passes[0][i].k) for i in kept_inputs(config)]
    moments = int(config.momentum > 0) if config.optimizer == "sgd" else 2 + config.amsgrad
    return Account(
        account_memory(shapes, kept, widths, moments=moments),
        account_memory(shapes, [], CONVENTIONS["on disk"].widths, moments=moments).total,
        forward_flops(passes[0]),
        sum(step_flops(p, recomputed=again * forward_flops(p), input_gradient_of_first=False) for p in passes),
    )


def account_gpt2(size: Transformer = GPT2, *, precision: str = "float32", recompute: bool = False) -> Account:
    """Bytes and operations of a step on one sequence, with Adam and float32 parameters.

    Args:
        size: of the model.
        precision: in which products are computed: "float32", or "float16" or "bfloat16" as autocast does.
        recompute: keep the input of each block alone, and compute the block again in the backward pass.

    Raises:
        ValueError: another precision, or sizes that are none.
    """
    check_precision("account_gpt2", precision)
    shapes, kept = gpt2_shapes(size).values(), gpt2_activations(size, recompute=recompute)
    attention, blocks = gpt2_attention(size), gpt2_products(size, head=False)
    convention = CONVENTIONS["float32 adam" if precision == "float32" else "autocast adam"]
    again = forward_flops(blocks, attention=attention) if recompute else 0
    return Account(
        account_memory(shapes, kept, convention.widths, moments=convention.moments),
        account_memory(shapes, [], CONVENTIONS["on disk"].widths, moments=convention.moments).total,
        forward_flops(gpt2_products(size), attention=attention),
        step_flops(gpt2_products(size), attention=attention, recomputed=again),
    )


def check_precision(where: str, precision: object) -> None:
    """Refuse what no product is computed in."""
    if precision not in CASTS:
        raise ValueError(f"{where}: precision: expected one of {', '.join(CASTS)}, found {precision!r}. Choose one.")


def blank_model_of(config: RunConfig, data: Dataset) -> dict[str, Array]:
    """A model of the run's shapes, without values worth having."""
    return network.blank_model(data.inputs.shape[1], config.hidden, data.classes, batch_norm=config.batch_norm)
