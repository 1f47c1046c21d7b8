"""Gradient checkpointing: keep only the inputs of segments, and compute the rest again in the backward pass.

`torch.utils.checkpoint` does it, with `use_reentrant=False`. By itself it repeats what is drawn from the global
generators alone. Here masks are either drawn outside and handed in; or drawn within from an explicit generator, whose
state is put back before a segment is computed again, and forward again after it. Batch normalisation's running
statistics are moved by the forward pass alone.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from numpy_ref.recompute import segments_of, square_root_rule
from torch_port.model import MLP, BatchNorm, draw_masks
from torch_port.rounding import STORAGE

__all__ = ["forward", "segments_of", "square_root_rule"]


def forward(
    model: MLP,
    x: torch.Tensor,
    masks: Sequence[torch.Tensor] = (),
    *,
    segments: int,
    generator: torch.Generator | None = None,
) -> torch.Tensor:
    """`model(x, masks)`, which keeps the inputs of segments only.

    Args:
        model: in training or evaluation mode.
        x: (B, D).
        masks: as for the model.
        segments: from 1, which keeps `x` alone, to the number of linear layers.
        generator: draws the masks, layer by layer, in place of `masks`; advanced once, by this call and not by the
            backward pass, and not outside training.

    Returns:
        Logits (B, C). A backward pass from them gives the gradients of the plain one, bit for bit. The model may be in
        another mode by then, but must have the same numbers: a change of weights in between is not noticed.

    Raises:
        ValueError: `segments` out of its range, another number of masks, or both masks and a generator.

    Mirror:
        Bitwise `numpy_ref.recompute.forward` and `backward` under reproducible arithmetic.
    """
    cuts = segments_of(model.depth, segments)
    if generator is None:
        model.check_masks(masks)
    elif len(masks):
        raise ValueError("recompute.forward: expected masks or a generator that draws them, found both.")
    masks = tuple(masks)  # the caller's list may be another by the backward pass
    x = x if model.precision is None else x.to(STORAGE[model.precision])

    def segment(x: torch.Tensor, layers: range) -> torch.Tensor:
        return model.forward_layers(x, masks if generator is None else _drawn(model, layers, generator, x), layers)

    for layers in cuts:
        contexts = _contexts(model, generator)
        x = checkpoint(segment, x, layers, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return x


def _drawn(model: MLP, layers: range, generator: torch.Generator, x: torch.Tensor) -> list[torch.Tensor]:
    """Masks of the hidden layers of a segment, drawn now; those before them are not looked at."""
    if not model.drops:
        return []
    sizes = [model.get_submodule(f"layer{i}").out_features for i in layers if i < model.depth - 1]
    masks = draw_masks(generator, sizes, len(x), model.dropout, device=x.device)  # type: ignore[arg-type]
    return [torch.empty(0)] * layers.start + masks


def _contexts(
    model: MLP, generator: torch.Generator | None
) -> Callable[[], tuple[AbstractContextManager[Any], AbstractContextManager[Any]]]:
    """What surrounds the forward pass of a segment, and its repetition."""
    start = None if generator is None else generator.get_state()
    modes = [(module, module.training) for module in model.modules()]
    return lambda: (nullcontext(), _repeating(modes, generator, start))


@contextmanager
def _repeating(
    modes: list[tuple[nn.Module, bool]], generator: torch.Generator | None, start: torch.Tensor | None
) -> Iterator[None]:
    """The modes and the stream of the forward pass, statistics left as they are; afterwards all as it was before."""
    names = ("training", "track_running_stats")
    flags = [(module, name, getattr(module, name)) for module, _ in modes for name in names if hasattr(module, name)]
    now = None if generator is None else generator.get_state()
    try:
        for module, training in modes:
            module.training = training
            if isinstance(module, BatchNorm):
                module.track_running_stats = False
        if generator is not None and start is not None:
            generator.set_state(start)
        yield
    finally:
        for module, name, flag in flags:
            setattr(module, name, flag)
        if generator is not None and now is not None:
            generator.set_state(now)
