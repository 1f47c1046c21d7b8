"""A multi-layer perceptron and its loss as `nn.Module` and autograd, bit for bit the reference's.

Sizes: B batch, D inputs, H hidden, C classes. A hidden layer is linear, batch normalisation if wanted, ReLU, dropout;
the last layer is linear. Where the bits of a stock kernel depend on the machine (products, sums, exp, log), a function
of ours stands in, with the backward pass of `numpy_ref.model`; all else is autograd's. State-dict keys are the
reference's names: `layer0.weight` (H, D), `layer0.bias`, `norm0.weight`, ... Dropout masks are drawn outside and handed
in, so that a forward pass consumes no randomness.

Gradient checkpointing is done by `torch.utils.checkpoint`, with `use_reentrant=False`. By itself it repeats what is
drawn from the global generators alone. Here an explicit generator's state is put back before a segment is computed
again, and forward again after it.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from numpy_ref.model import NORM_EPS, NORM_MOMENTUM, segments_of
from torch_port.arithmetic.operations import REPRODUCIBLE, Arithmetic
from torch_port.arithmetic.rounding import STORAGE
from torch_port.rng import draw_bernoulli, draw_uniform


class Linear(nn.Linear):
    """`nn.Linear` with the arithmetic given; zero when made, since initial weights are drawn from a stream."""

    def __init__(self, in_features: int, out_features: int, *, ops: Arithmetic = REPRODUCIBLE) -> None:
        super().__init__(in_features, out_features, dtype=torch.float32)
        self.ops = ops

    def reset_parameters(self) -> None:
        """Zeros, where the stock layer draws from the global generator."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give x W^T + b, (B, D) to (B, H), in the type of x; weights of another one are copied to it."""
        return _apply(_Linear, x, self.weight.to(x.dtype), self.bias.to(x.dtype), self.ops)


class BatchNorm(nn.BatchNorm1d):
    """`nn.BatchNorm1d` over (B, H) with the arithmetic given."""

    def __init__(self, num_features: int, *, ops: Arithmetic = REPRODUCIBLE) -> None:
        super().__init__(num_features, eps=NORM_EPS, momentum=NORM_MOMENTUM, dtype=torch.float32)
        self.ops = ops

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """(z - mean) / std weight + bias; in training by the batch's statistics, which move the running ones.

        Not those of a module whose `track_running_stats` is off: its statistics stay as they are.
        """
        mean, var = running_mean, running_var = self.get_buffer("running_mean"), self.get_buffer("running_var")
        batches = self.get_buffer("num_batches_tracked")
        if self.training:
            with torch.no_grad():
                mean, squares = _statistics(z, self.ops)
                var = squares / _real(len(z), z)
        if self.training and self.track_running_stats:
            with torch.no_grad():
                keep, take = _real(1 - NORM_MOMENTUM, z), _real(NORM_MOMENTUM, z)
                running_mean.copy_(keep * running_mean + take * mean)
                running_var.copy_(keep * running_var + take * (squares / _real(len(z) - 1, z)))
                batches.add_(1)
        return _apply(_Normalise, z, self.weight, self.bias, mean, var, self.training, self.ops)


class MLP(nn.Module):
    """Linear layers with batch normalisation if wanted, ReLU and dropout between them.

    Args:
        inputs: D.
        hidden: the H of each hidden layer.
        classes: C.
        batch_norm: add `norm{i}` after each hidden layer.
        dropout: the share that the masks drop.
        ops: the arithmetic; for its precision see `numpy_ref.model.forward`.
    """

    def __init__(
        self,
        inputs: int,
        hidden: Sequence[int],
        classes: int,
        *,
        batch_norm: bool = False,
        dropout: float = 0.0,
        ops: Arithmetic = REPRODUCIBLE,
    ) -> None:
        super().__init__()
        self.depth, self.dropout, self.ops = len(hidden) + 1, dropout, ops
        self.scale = 1 / (1 - dropout)
        for i, (fan_in, fan_out) in enumerate(pairwise([inputs, *hidden, classes])):
            self.add_module(f"layer{i}", Linear(fan_in, fan_out, ops=ops))
            if batch_norm and i < len(hidden):
                self.add_module(f"norm{i}", BatchNorm(fan_out, ops=ops))

    def forward(
        self,
        x: torch.Tensor,
        masks: Sequence[torch.Tensor] = (),
        *,
        generator: torch.Generator | None = None,
        segments: int = 0,
    ) -> torch.Tensor:
        """Logits (B, C) of (B, D).

        Args:
            x: (B, D).
            masks: in training with dropout one bool tensor (B, H) for each hidden layer, as `draw_masks` draws them;
                outside training they do not count.
            generator: draws the masks, layer by layer, in place of `masks`; advanced once, by this call and not by the
                backward pass, and not outside training.
            segments: of layers to compute again in the backward pass, at most all linear layers; 0 keeps all
                activations. The model may be in another mode by then, but must have the same numbers: a change of
                weights in between is not noticed.

        Raises:
            ValueError: `segments` out of its range, another number of masks, which would drop nothing, or too little,
                or both masks and a generator.

        Mirror:
            Bitwise `numpy_ref.model.forward` and `backward` under reproducible arithmetic.
        """
        cuts = segments_of(self.depth, segments) if segments else [range(self.depth)]
        if generator is not None and len(masks):
            raise ValueError("MLP: expected masks or a generator that draws them, found both.")
        expected = self.depth - 1 if self.drops else 0
        if generator is None and len(masks) != expected and self.training:
            raise ValueError(
                f"MLP: masks: expected {expected}, one for each hidden layer with dropout, found {len(masks)}. "
                "Draw them with draw_masks, or switch to model.eval()."
            )
        through = partial(self._through, tuple(masks), generator)  # the caller's list may be another by then
        contexts = partial(_contexts, self, generator)
        x = x if self.ops.precision is None else x.to(STORAGE[self.ops.precision])
        for layers in cuts:
            if segments:
                x = checkpoint(through, layers, x, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
            else:
                x = through(layers, x)
        return x

    def _through(
        self, masks: Sequence[torch.Tensor], generator: torch.Generator | None, layers: range, x: torch.Tensor
    ) -> torch.Tensor:
        """`forward` through consecutive layers, from the first one's input to the output of the last of them."""
        kind = next(self.parameters()).dtype
        if generator is not None and self.drops:
            sizes = [self.get_submodule(f"layer{i}").out_features for i in layers if i < self.depth - 1]
            drawn = draw_masks(generator, sizes, len(x), self.dropout, device=x.device)  # type: ignore[arg-type]
            masks = [torch.empty(0)] * layers.start + drawn
        scale = torch.tensor(self.scale, dtype=kind, device=x.device).to(x.dtype)
        for i in layers:
            z = self.get_submodule(f"layer{i}")(x)
            if i == self.depth - 1:
                x = z.to(kind)
                break
            if hasattr(self, f"norm{i}"):
                z = self.get_submodule(f"norm{i}")(z.to(kind)).to(z.dtype)
            x = torch.where(z <= 0, torch.zeros_like(z), z)  # +0 for either zero, and NaN stays
            if self.drops:
                x = torch.where(masks[i], x * scale, torch.zeros_like(x))
        return x

    @property
    def drops(self) -> bool:
        """Whether a forward pass takes masks."""
        return self.training and self.scale != 1


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


def init_model(generator: torch.Generator, inputs: int, hidden: Sequence[int], classes: int, **settings: Any) -> MLP:
    """Weights and biases uniform in [-1/sqrt(inputs of the layer), 1/sqrt(inputs of the layer)), float32.

    w = (2 u - 1) bound, u uniform in [0, 1) with 24 bits

    Returns:
        The module, on torch's default device, in training mode.

    Mirror:
        Bitwise `numpy_ref.model.init_model`.
    """
    model = MLP(inputs, hidden, classes, **settings)
    with torch.no_grad():
        for i, fan_in in enumerate([inputs, *hidden]):
            bound = torch.tensor(1 / math.sqrt(fan_in), dtype=torch.float32, device="cpu")
            layer = model.get_submodule(f"layer{i}")
            for parameter in (layer.weight, layer.bias):
                assert isinstance(parameter, torch.Tensor)
                parameter.copy_((2 * draw_uniform(generator, parameter.shape) - 1) * bound)
    return model


def draw_masks(
    generator: torch.Generator, hidden: Sequence[int], batch: int, dropout: float, *, device: torch.device | str = "cpu"
) -> list[torch.Tensor]:
    """Which hidden units stay, one bool tensor (B, H) a hidden layer; no draw and no mask without dropout.

    The draws are made on the CPU, wherever the model lives, so that every device drops the same units.
    """
    return [draw_bernoulli(generator, 1 - dropout, (batch, h)).to(device) for h in hidden] if dropout else []


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor, ops: Arithmetic, *, count: int) -> torch.Tensor:
    """Softmax cross-entropy summed over the batch and divided by `count`, for autograd.

        s = logits - max of the row;  e = exp(s);  p = e / sum of the row of e
        loss = sum(log(sum e) - s[label]) / count            gradient = (p - [label]) / count

    Returns:
        The loss, 0-dimensional.

    Raises:
        ValueError: the labels are not (B,) whole numbers in 0..C-1.

    Mirror:
        Bitwise `numpy_ref.model.cross_entropy` under reproducible arithmetic.
    """
    classes = logits.shape[-1]
    if logits.ndim != 2 or labels.shape != logits.shape[:1] or labels.is_floating_point() or labels.is_complex():
        found = f"{tuple(logits.shape)} and {labels.dtype} {tuple(labels.shape)}"
        raise ValueError(f"cross_entropy: expected logits (B, C) and whole labels (B,), found {found}")
    if len(labels) and not (0 <= int(labels.min()) and int(labels.max()) < classes):
        ends = f"{int(labels.min())} to {int(labels.max())}"
        raise ValueError(f"cross_entropy: labels: expected 0 to {classes - 1}, found {ends}")
    return _apply(_CrossEntropy, logits, labels, ops, count)


def _apply(function: type[torch.autograd.Function], *arguments: Any) -> torch.Tensor:
    """`Function.apply`, which has no types."""
    result: torch.Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]
    return result


def _real(value: float, like: torch.Tensor) -> torch.Tensor:
    """A number rounded to a tensor's type, on its device: CUDA divides by other scalars through their reciprocals."""
    return torch.tensor(value, dtype=like.dtype, device=like.device)


def _statistics(z: torch.Tensor, ops: Arithmetic) -> tuple[torch.Tensor, torch.Tensor]:
    """The batch's mean, and the sum of the squared distances from it."""
    mean = ops.sum(z, axis=0) / _real(len(z), z)
    return mean, ops.sum((z - mean) * (z - mean), axis=0)


class _Linear(torch.autograd.Function):
    """x W^T + b;  dx = g W;  dW = g^T x;  db = sum of g over the batch."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, ops: Arithmetic) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        ctx.ops = ops
        return ops.matmul(x, weight.T) + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        by_input = ctx.ops.matmul(g, weight) if ctx.needs_input_grad[0] else None
        return by_input, ctx.ops.matmul(g.T, x), ctx.ops.sum(g, axis=0), None


class _Normalise(torch.autograd.Function):
    """x_hat = (z - mean) / std;  x_hat weight + bias;  in training the batch's statistics depend on every sample:

    with n = g weight:  dz = (n - sum(n) / B - x_hat sum(n x_hat) / B) / std;  outside training  dz = n / std
    """

    @staticmethod
    def forward(
        ctx: Any,
        z: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor,
        mean: torch.Tensor,
        var: torch.Tensor,
        training: bool,
        ops: Arithmetic,
    ) -> torch.Tensor:
        inverse_std = _real(1, z) / ops.sqrt(var + _real(NORM_EPS, z))
        x_hat = (z - mean) * inverse_std
        ctx.save_for_backward(x_hat, inverse_std, weight)
        ctx.training, ctx.ops = training, ops
        return x_hat * weight + bias

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (x_hat, inverse_std, weight), ops = ctx.saved_tensors, ctx.ops
        by_weight, by_bias = ops.sum(g * x_hat, axis=0), ops.sum(g, axis=0)
        g = g * weight
        if ctx.training:
            batch = _real(len(g), g)
            mean, slope = ops.sum(g, axis=0) / batch, ops.sum(g * x_hat, axis=0) / batch
            g = (g - mean) - x_hat * slope
        return g * inverse_std, by_weight, by_bias, None, None, None, None


class _CrossEntropy(torch.autograd.Function):
    """The loss, with its gradient formed on the way."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, labels: torch.Tensor, ops: Arithmetic, count: int) -> torch.Tensor:
        rows, one, number = torch.arange(len(labels), device=labels.device), _real(1, logits), _real(count, logits)
        shifted = logits - logits.amax(dim=1, keepdim=True)  # whichever zero wins: exp and 0 - s take either
        e = ops.exp(shifted)
        total = ops.sum(e, axis=1, keepdims=True)
        losses = ops.log(total)[:, 0] - shifted[rows, labels]
        grad = e / total
        grad[rows, labels] = grad[rows, labels] - one
        ctx.save_for_backward(grad / number)
        return ops.sum(losses) / number

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, g: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (grad,) = ctx.saved_tensors
        return grad * g, None, None, None
