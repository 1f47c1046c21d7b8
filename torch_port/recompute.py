"""Gradient checkpointing: keep only the inputs of segments, and compute the rest again in the backward pass.

`torch.utils.checkpoint` does it, with `use_reentrant=False`. By itself it repeats what is drawn from the global
generators alone. Here masks are either drawn outside and handed in; or drawn within from an explicit generator, whose
state is put back before a segment is computed again, and forward again after it. Batch normalisation's running
statistics are moved by the forward pass alone.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from numpy_ref.recompute import segments_of, square_root_rule
from torch_port.arithmetic.rounding import STORAGE
from torch_port.model import MLP, BatchNorm, draw_masks

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

    contexts = partial(_contexts, model, generator)
    for layers in cuts:
        x = checkpoint(segment, x, layers, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return x


def _drawn(model: MLP, layers: range, generator: torch.Generator, x: torch.Tensor) -> list[torch.Tensor]:
    """Masks of the hidden layers of a segment, drawn now; those before them are not looked at."""
    if not model.drops:
        return []
    sizes = [model.get_submodule(f"layer{i}").out_features for i in layers if i < model.depth - 1]
    masks = draw_masks(generator, sizes, len(x), model.dropout, device=x.device)  # type: ignore[arg-type]
    return [torch.empty(0)] * layers.start + masks


def _contexts(model: MLP, generator: torch.Generator | None) -> tuple[AbstractContextManager[Any], "_Repetition"]:
    """What surrounds the forward pass of a segment that begins now, and its repetitions."""
    return nullcontext(), _Repetition(model, generator)


class _Repetition(AbstractContextManager[None]):
    """The modes and the stream as now, statistics left as they are; afterwards all is as it was before.

    Entered once in every backward pass: with `retain_graph` there may be several.
    """

    def __init__(self, model: MLP, generator: torch.Generator | None) -> None:
        self.modes = [(module, module.training) for module in model.modules()]
        self.generator = generator
        self.start = None if generator is None else generator.get_state()

    def __enter__(self) -> None:
        names = ("training", "track_running_stats")
        self.flags = [
            (part, name, getattr(part, name)) for part, _ in self.modes for name in names if hasattr(part, name)
        ]
        for module, training in self.modes:
            module.training = training
            if isinstance(module, BatchNorm):
                module.track_running_stats = False
        if self.generator is not None and self.start is not None:
            self.now = self.generator.get_state()
            self.generator.set_state(self.start)

    def __exit__(self, *error: object) -> None:
        for module, name, flag in self.flags:
            setattr(module, name, flag)
        if self.generator is not None:
            self.generator.set_state(self.now)
