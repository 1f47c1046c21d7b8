"""Adam, AdamW, SGD and schedules as torch's own classes, each update in the reference's order and rounding.

The optimizers are the stock ones but for `step`: their constructors, parameter groups and state-dict keys are torch's,
so that a stock optimizer loads their state. Three things differ: `step` is counted in float64, exact to 2**53 where
float32 stops at 2**24; SGD counts it too; and a state dict that is loaded is copied. An update uses elementary
operations only: `lerp`, `addcmul` and `add` with `alpha` fuse a multiplication and an addition on some processors and
not on others. Every rule is elementwise, so that it may be evaluated block by block.

A run scales its loss by `torch.amp.GradScaler`; `unscale_gradients` is for those who write their own loop.
"""

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ConstantLR, LRScheduler, StepLR

from numpy_ref.optim import check_scale
from torch_port.arithmetic.operations import REPRODUCIBLE, Arithmetic, cos_pi, power
from torch_port.arithmetic.rounding import STORAGE

Parameters = Iterable[torch.nn.Parameter]
Gradients = TypeVar("Gradients", list[Tensor], dict[str, Tensor])

BLOCK = 1 << 15  # numbers that a rule works on at once, so that its passes over them stay in the cache

# The reference's name of each kind of moment, and torch's.
ADAM_MOMENTS = {"m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq"}
SGD_MOMENTS = {"momentum_buffer": "momentum_buffer"}

Closure = Callable[[], float]


class _Copying(torch.optim.Optimizer):
    """An optimizer that keeps no tensor of a state dict it is given; the stock ones train on in the caller's."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a copy of the state."""
        super().load_state_dict(copy.deepcopy(state_dict))


class Adam(_Copying, torch.optim.Adam):
    """Adam with the update of `numpy_ref.optim.adam_step`.

    Args:
        params: what is trained; every one needs a gradient at every step.
        lr: the rate.
        betas: decay of the first and of the second moments.
        eps: added to the denominator.
        weight_decay: L2 penalty.
        amsgrad: divide by the largest second moment so far.
        ops: the arithmetic; only its square root is used.

    Mirror:
        Bitwise `numpy_ref.optim.adam_step` under reproducible arithmetic.

    Source:
        Kingma, Ba 2015, algorithm 1; Reddi, Kale, Kumar 2018 (amsgrad).

    Example:
        >>> w = torch.nn.Parameter(torch.ones(2))
        >>> w.grad = torch.tensor([3.0, -5.0])
        >>> Adam([w], lr=0.25).step()
        >>> w.tolist()
        [0.75, 1.25]
    """

    decoupled = False

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        amsgrad: bool = False,
        *,
        ops: Arithmetic = REPRODUCIBLE,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            betas=betas,
            eps=eps,
            weight_decay=weight_decay,
            amsgrad=amsgrad,
            foreach=False,
            fused=False,
            decoupled_weight_decay=self.decoupled,
        )
        self.ops = ops

    def __getstate__(self) -> dict[str, Any]:
        """What a copy takes along: torch's part, and the arithmetic."""
        return super().__getstate__() | {"ops": self.ops}

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One update; see `numpy_ref.optim.adam_step` for the rule.

        Raises:
            ValueError: a parameter has no gradient, so that its count of steps would fall behind the others', or a
                sparse one; or a group asks for what the rule does not have, `maximize`.
        """
        loss = _evaluated(closure)
        for group in self.param_groups:
            for p in _with_gradients(group):
                state = self.state[p]
                if not state:
                    state["step"] = _steps(0)
                    for kind, key in ADAM_MOMENTS.items():
                        if kind != "v_max" or group["amsgrad"]:
                            state[key] = torch.zeros_like(p)
                _adam_update(p, state, group, self.ops)
        return loss


class AdamW(Adam):
    """Adam with decoupled weight decay; everything else as in `Adam`.

    Source:
        Loshchilov, Hutter 2019, algorithm 2.
    """

    decoupled = True

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        ops: Arithmetic = REPRODUCIBLE,
    ) -> None:
        super().__init__(params, lr, betas, eps, weight_decay, amsgrad, ops=ops)


def _adam_update(w: Tensor, state: dict[str, Any], group: dict[str, Any], ops: Arithmetic) -> None:
    """The reference's `adam_step` for one parameter, in place; the letters are the paper's."""
    t, real = int(state["step"]) + 1, _scalars_like(w)
    (beta1, beta2), learning_rate, weight_decay = group["betas"], float(group["lr"]), group["weight_decay"]
    correction1, correction2 = 1 - power(beta1, t), 1 - power(beta2, t)

    def rule(w: Tensor, m: Tensor, v: Tensor, *v_max: Tensor, g: Tensor) -> None:
        """The update of some elements, each intermediate result in the memory of the one before."""
        new = w
        if weight_decay and group["decoupled_weight_decay"]:
            new = w * real(1 - learning_rate * weight_decay)
        elif weight_decay:
            g = g + real(weight_decay) * w
        m *= real(beta1)
        m += real(1 - beta1) * g
        square = g * g
        square *= real(1 - beta2)
        v *= real(beta2)
        v += square
        for largest in v_max:
            largest.copy_(torch.where(v <= largest, largest, v))  # NaN stays
        change = m / real(correction1)
        change *= real(learning_rate)
        root = ops.sqrt((v_max[0] if v_max else v) / real(correction2))
        root += real(group["eps"])
        change /= root
        torch.sub(new, change, out=w)

    kinds = ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")[: 3 if group["amsgrad"] else 2]
    _in_blocks(rule, w, [state[kind] for kind in kinds])
    state["step"] = _steps(t)


class SGD(_Copying, torch.optim.SGD):
    """SGD with momentum, with the update of `numpy_ref.optim.sgd_step`.

    Args:
        params: what is trained; every one needs a gradient at every step.
        lr: the rate.
        momentum: decay of the buffer; 0 keeps none.
        dampening: share of the gradient kept out of the buffer after the first step.
        weight_decay: L2 penalty.
        nesterov: use the gradient corrected by the buffer.

    Mirror:
        Bitwise `numpy_ref.optim.sgd_step`. A stock SGD that loads this one's state carries `step` along and does not
        advance it: count its updates yourself, and set `step` when you come back.

    Example:
        >>> w = torch.nn.Parameter(torch.ones(1))
        >>> w.grad = torch.ones(1)
        >>> optimizer = SGD([w], lr=0.5, momentum=0.9)
        >>> optimizer.step(), optimizer.step(), w
        (None, None, Parameter containing:
        tensor([-0.4500], requires_grad=True))
    """

    def __init__(
        self,
        params: Parameters,
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
    ) -> None:
        super().__init__(
            params,
            lr=lr,
            momentum=momentum,
            dampening=dampening,
            weight_decay=weight_decay,
            nesterov=nesterov,
            foreach=False,
            fused=False,
        )

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:  # type: ignore[override]
        """One update; see `numpy_ref.optim.sgd_step` for the rule.

        Raises:
            ValueError: as for `Adam`; or a parameter has a buffer without a count of steps, as stock SGD leaves it.
        """
        loss = _evaluated(closure)
        for group in self.param_groups:
            for p in _with_gradients(group):
                state = self.state[p]
                if "step" not in state:
                    if state.get("momentum_buffer") is not None:
                        raise ValueError(
                            "SGD: expected `step` beside `momentum_buffer`, found none: stock SGD does not count. "
                            "Set optimizer.state[p]['step'] to the number of completed updates."
                        )
                    state["step"] = _steps(0)
                if group["momentum"] and state.get("momentum_buffer") is None:
                    state["momentum_buffer"] = torch.zeros_like(p)
                _sgd_update(p, state, group)
        return loss


def _sgd_update(w: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
    """The reference's `sgd_step` for one parameter, in place."""
    t, momentum, real = int(state["step"]), group["momentum"], _scalars_like(w)

    def rule(w: Tensor, *buffer: Tensor, g: Tensor) -> None:
        """The update of some elements."""
        if group["weight_decay"]:
            g = g + real(group["weight_decay"]) * w
        d = g
        for b in buffer:
            b.copy_(g if t == 0 else real(momentum) * b + real(1 - group["dampening"]) * g)
            d = g + real(momentum) * b if group["nesterov"] else b
        w -= real(float(group["lr"])) * d

    _in_blocks(rule, w, [state["momentum_buffer"]] if momentum else [])
    state["step"] = _steps(t + 1)


class WarmupCosineLR(LRScheduler):
    """Linear warm-up, then half a cosine down to 0; the reference's `warmup_cosine`, with its own cosine.

    rate = base (tick + 1) / warmup_steps                                                  while tick < warmup_steps
    rate = base (1 + cos(pi (tick - warmup_steps) / (total_steps - warmup_steps))) / 2     and 0 from total_steps on

    Args:
        optimizer: whose rates are set.
        warmup_steps: of the warm-up.
        total_steps: above `warmup_steps`.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, warmup_steps: int, total_steps: int) -> None:
        self.warmup_steps, self.total_steps = warmup_steps, total_steps
        super().__init__(optimizer)

    def get_lr(self) -> list[float | Tensor]:
        """The rates at this tick."""
        return [self._rate(float(base)) for base in self.base_lrs]

    def _rate(self, base: float) -> float:
        if self.last_epoch < self.warmup_steps:
            return base * (self.last_epoch + 1) / self.warmup_steps
        length = self.total_steps - self.warmup_steps
        return base * (1 + cos_pi(min(self.last_epoch - self.warmup_steps, length), length)) / 2


def init_schedule(
    optimizer: torch.optim.Optimizer,
    kind: str,
    *,
    step_size: int = 100,
    gamma: float = 0.5,
    warmup_steps: int = 10,
    total_steps: int = 1000,
) -> LRScheduler:
    """The schedule of that kind over an optimizer: stock `StepLR`, stock `ConstantLR`, or `WarmupCosineLR`.

    Its `last_epoch` counts completed updates, and the rate of the next one is the optimizer's.
    """
    if kind == "step":
        return StepLR(optimizer, step_size, gamma)
    if kind == "warmup_cosine":
        return WarmupCosineLR(optimizer, warmup_steps, total_steps)
    return ConstantLR(optimizer, factor=1.0, total_iters=0)


def unscale_gradients(gradients: Gradients, scale: float) -> Gradients:
    """The gradients times the inverse of the scale.

        inverse = 1 / scale        formed in float64, rounded to float32
        g = g inverse              rounded to the gradient's own type; of 16 bits once, through float32

    Returns:
        New tensors of the same shapes, types and devices.

    Mirror:
        Bitwise `numpy_ref.optim.unscale_gradients`.

    Example:
        >>> unscale_gradients([torch.tensor([1024.0, 2048.0])], 1024.0)
        [tensor([1., 2.])]
    """
    check_scale("unscale_gradients", scale)
    _check_gradients("unscale_gradients", gradients)
    for i, g in gradients.items() if isinstance(gradients, dict) else enumerate(gradients):
        if not isinstance(g, Tensor) or g.dtype not in STORAGE.values():
            found = f"a tensor of {g.dtype}" if isinstance(g, Tensor) else type(g).__name__
            raise TypeError(f"unscale_gradients: gradients[{i!r}]: expected a tensor of floats, found {found}.")
    inverse = torch.tensor(scale, dtype=torch.float64, device="cpu").reciprocal().float()
    if isinstance(gradients, dict):
        return {name: _times(g, inverse) for name, g in gradients.items()}
    return [_times(g, inverse) for g in gradients]


def has_inf_or_nan(gradients: Iterable[Tensor] | Mapping[str, Tensor]) -> bool:
    """Whether any element of any gradient is infinite or NaN; False when there is none.

    Asked of the scaled gradients, as torch does: unscaling may hide an overflow, or make one when the scale is below 1.

    Example:
        >>> has_inf_or_nan([torch.ones(2), torch.tensor([torch.nan])]), has_inf_or_nan([])
        (True, False)
    """
    _check_gradients("has_inf_or_nan", gradients)
    tensors = gradients.values() if isinstance(gradients, Mapping) else gradients
    return not all(bool(g.isfinite().all()) for g in tensors)


def _times(g: Tensor, inverse: Tensor) -> Tensor:
    """The product in the wider of the two types, rounded to the gradient's own."""
    wide = g.detach().to(torch.promote_types(g.dtype, torch.float32))
    return (wide * inverse.to(wide)).to(g.dtype)


def _check_gradients(where: str, gradients: object) -> None:
    """Refuse a tensor that stands alone."""
    if isinstance(gradients, Tensor):
        raise TypeError(f"{where}: expected a list or a dict of tensors, found a single tensor. Put it into a list.")


def _evaluated(closure: Closure | None) -> float | None:
    """The loss, where the caller hands over a function that computes it, as torch's optimizers allow."""
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _with_gradients(group: dict[str, Any]) -> list[torch.nn.Parameter]:
    """The group's parameters, which all have gradients, for a rule that goes down."""
    grads = [p.grad for p in group["params"]]
    without = [i for i, grad in enumerate(grads) if grad is None or grad.is_sparse]
    if without:
        raise ValueError(
            f"optimizer: expected a dense gradient for each of {len(grads)} parameters, found none for those at "
            f"{without}. Leave out of the optimizer what is not trained."
        )
    if group["maximize"]:
        raise ValueError("optimizer: maximize: expected False, found True. Minimise the negative instead.")
    return list(group["params"])


def _in_blocks(rule: Callable[..., None], w: Tensor, moments: Sequence[Tensor]) -> None:
    """A rule over a parameter and what goes with it, in place; on the CPU a block at a time."""
    assert w.grad is not None
    tensors = [w.detach(), *moments, w.grad]
    if w.device.type != "cpu" or not all(tensor.is_contiguous() for tensor in tensors):
        return rule(*tensors[:-1], g=w.grad)
    for *block, g in zip(*(torch.split(tensor.view(-1), BLOCK) for tensor in tensors), strict=True):
        rule(*block, g=g)


def _steps(t: int) -> Tensor:
    """A count of updates, exact to 2**53, whatever type a loaded one had; on the CPU, as torch keeps it."""
    return torch.full((), t, dtype=torch.float64, device="cpu")


def _scalars_like(w: Tensor) -> Callable[[float], Tensor]:
    """Numbers as tensors of a parameter's type, on its device, rounded once."""
    return cache(lambda value: torch.tensor(value, dtype=w.dtype, device=w.device))
