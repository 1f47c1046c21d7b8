"""Optimizers and learning-rate schedules as pure functions of their state.

Parameters and gradients are dicts from a parameter's name to its array; moments are keyed by the same names. Evaluation
order follows PyTorch's documented algorithms, one rounding an operation and no fused multiply-add, so that the
distance to `torch.optim` stays at rounding. Numbers such as `1 - beta1` are formed in float64 and rounded once, to the
arrays' type. Every rule is elementwise, so that it may be evaluated block by block.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.arithmetic.operations import Arithmetic, cos_pi, power

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]

BLOCK = 1 << 15  # numbers that a rule works on at once, so that its passes over them stay in the cache


class AdamState(NamedTuple):
    """State of Adam and AdamW.

    Resume:
        Without `t`, bias correction starts again as in the first step and the next steps have the wrong length.
        Without `m` the direction is forgotten; without `v` every element loses its own step size.
    """

    t: int  # completed updates
    m: Arrays  # first moments
    v: Arrays  # second moments
    v_max: Arrays  # largest second moments so far; empty without amsgrad


def init_adam(params: Mapping[str, Array], *, amsgrad: bool = False) -> AdamState:
    """The state before the first update: t = 0, moments zero."""
    return AdamState(0, _zeros(params), _zeros(params), _zeros(params) if amsgrad else {})


def adam_step(
    params: Mapping[str, Array],
    state: AdamState,
    grads: Mapping[str, Array],
    ops: Arithmetic,
    *,
    learning_rate: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    in_place: bool = False,
) -> tuple[Arrays, AdamState]:
    """One update of Adam, or of AdamW when `decoupled`.

        t = t + 1
        g = g + weight_decay w                    (Adam)        w = w (1 - learning_rate weight_decay)      (AdamW)
        m = beta1 m + (1 - beta1) g
        v = beta2 v + (1 - beta2) g g
        m_hat = m / (1 - beta1**t)                v_hat = v / (1 - beta2**t)       (amsgrad: of the largest v so far)
        w = w - (learning_rate m_hat) / (sqrt(v_hat) + eps)

    Args:
        params: name to array, any shapes.
        state: the state with moments of the same names and shapes.
        grads: gradients of the same names and shapes.
        ops: the arithmetic; only its square root is used.
        learning_rate: > 0.
        beta1: in [0, 1).
        beta2: in [0, 1).
        eps: > 0.
        weight_decay: >= 0.
        decoupled: shrink the weights directly instead of through the gradient.
        in_place: write over the arrays of `params` and `state`, which the caller gives up; each must be contiguous.

    Returns:
        New parameters and a new state; the arguments are left as they are, unless in place.

    Mirror:
        `torch_port.optim.Adam` and `AdamW`, the same bits under reproducible arithmetic.

    Source:
        Kingma, Ba 2015, algorithm 1; Loshchilov, Hutter 2019, algorithm 2; Reddi, Kale, Kumar 2018 (amsgrad). Against
        `torch.optim.Adam`: there the learning rate is divided by 1 - beta1**t and sqrt(v) by sqrt(1 - beta2**t), which
        rounds differently.

    Example:
        >>> from numpy_ref.arithmetic.operations import REPRODUCIBLE
        >>> w, g = {"w": np.ones(2, np.float32)}, {"w": np.array([3, -5], np.float32)}
        >>> w, state = adam_step(w, init_adam(w), g, REPRODUCIBLE, learning_rate=0.25)
        >>> w["w"], state.t
        (array([0.75, 1.25], dtype=float32), 1)
    """
    t = state.t + 1
    correction1, correction2 = 1 - power(beta1, t), 1 - power(beta2, t)

    def rule(new: list[Array], w: Array, m: Array, v: Array, *v_max: Array, g: Array) -> None:
        """The update of some elements, each result in memory that is there already; the new arrays may be the old."""
        real = w.dtype.type
        new_w, new_m, new_v, *new_max = new
        if weight_decay and decoupled:
            w = np.multiply(w, real(1 - learning_rate * weight_decay), out=new_w)
        elif weight_decay:
            g = g + real(weight_decay) * w
        change = g * real(1 - beta1)
        m = np.multiply(m, real(beta1), out=new_m)
        m += change
        square = np.multiply(g, g, out=change)
        square *= real(1 - beta2)
        v = np.multiply(v, real(beta2), out=new_v)
        v += square
        for largest, target in zip(v_max, new_max, strict=True):
            v = target
            np.copyto(v, np.where(new_v <= largest, largest, new_v))  # NaN stays
        root = ops.sqrt(np.divide(v, real(correction2), out=square))
        root += real(eps)
        change = np.divide(m, real(correction1), out=change)
        change *= real(learning_rate)
        change /= root
        np.subtract(w, change, out=new_w)

    old = [params, *(moments for moments in (state.m, state.v, state.v_max) if moments)]
    new, m, v, *v_max = _in_blocks(rule, old, grads, in_place)
    return new, AdamState(t, m, v, *v_max or [{}])


class SGDState(NamedTuple):
    """State of SGD with momentum. Zero buffers with t == 0 mean "no buffer yet"; without momentum there are none.

    Resume:
        Without the buffer the next updates forget the direction; without `t` the first gradient enters undamped again.
    """

    t: int  # completed updates
    momentum_buffer: Arrays


def init_sgd(params: Mapping[str, Array], *, momentum: float = 0.9) -> SGDState:
    """The state before the first update: t = 0, buffers zero, or none without momentum."""
    return SGDState(0, _zeros(params) if momentum else {})


def sgd_step(
    params: Mapping[str, Array],
    state: SGDState,
    grads: Mapping[str, Array],
    *,
    learning_rate: float,
    momentum: float = 0.9,
    dampening: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    in_place: bool = False,
) -> tuple[Arrays, SGDState]:
    """One update of SGD with momentum.

        t = t + 1
        g = g + weight_decay w
        b = g                                     in the first update
        b = momentum b + (1 - dampening) g        after it
        d = g + momentum b                        (Nesterov)       d = b
        w = w - learning_rate d

    Args:
        params: name to array, any shapes.
        state: the state with buffers of the same names and shapes.
        grads: gradients of the same names and shapes.
        learning_rate: > 0.
        momentum: in [0, 1); 0 for plain gradient descent.
        dampening: in [0, 1).
        nesterov: use the gradient corrected by the buffer.
        weight_decay: >= 0.
        in_place: as for `adam_step`.

    Returns:
        New parameters and a new state; the arguments are left as they are, unless in place.

    Mirror:
        `torch_port.optim.SGD`, the same bits.

    Source:
        Sutskever, Martens, Dahl, Hinton 2013, with the learning rate outside the buffer as in `torch.optim.SGD`.

    Example:
        >>> w, g = {"w": np.ones(1, np.float32)}, {"w": np.ones(1, np.float32)}
        >>> w, state = sgd_step(w, init_sgd(w), g, learning_rate=0.5)
        >>> w, state = sgd_step(w, state, g, learning_rate=0.5)
        >>> w["w"], state.momentum_buffer["w"]
        (array([-0.45], dtype=float32), array([1.9], dtype=float32))
    """

    def rule(new: list[Array], w: Array, *b: Array, g: Array) -> None:
        """The update of some elements."""
        real = w.dtype.type
        if weight_decay:
            g = g + real(weight_decay) * w
        d = g
        for old_b, new_b in zip(b, new[1:], strict=True):
            np.copyto(new_b, g if state.t == 0 else real(momentum) * old_b + real(1 - dampening) * g)
            d = g + real(momentum) * new_b if nesterov else new_b
        np.subtract(w, real(learning_rate) * d, out=new[0])

    old = [params, *([state.momentum_buffer] if state.momentum_buffer else [])]
    new, *buffers = _in_blocks(rule, old, grads, in_place)
    return new, SGDState(state.t + 1, *buffers or [{}])


class ScheduleState(NamedTuple):
    """Where a schedule stands.

    Resume:
        Without it the rate jumps back to its first value and decays again from there.
    """

    tick: int  # completed updates, the unit of every schedule here
    rate: float  # learning rate of the next update


def init_schedule(kind: str, *, learning_rate: float, warmup_steps: int = 10, total_steps: int = 1000) -> ScheduleState:
    """The schedule before the first update."""
    if kind == "warmup_cosine":
        return ScheduleState(0, _warmup_cosine(0, learning_rate, warmup_steps, total_steps))
    return ScheduleState(0, learning_rate)


def schedule_step(
    state: ScheduleState,
    kind: str,
    *,
    learning_rate: float,
    step_size: int = 100,
    gamma: float = 0.5,
    warmup_steps: int = 10,
    total_steps: int = 1000,
) -> ScheduleState:
    """One tick of a schedule, once a completed update.

        constant        rate = learning_rate
        step            rate = rate gamma         at every step_size-th tick
        warmup_cosine   rate = learning_rate (tick + 1) / warmup_steps                        while tick < warmup_steps
                        rate = learning_rate (1 + cos(pi (tick - warmup_steps) / (total_steps - warmup_steps))) / 2
                        and 0 from total_steps on

    Mirror:
        The step schedule multiplies as the stock `torch.optim.lr_scheduler.StepLR` does, the same bits.

    Example:
        >>> state = init_schedule("step", learning_rate=0.25)
        >>> for _ in range(3):
        ...     state = schedule_step(state, "step", learning_rate=0.25, step_size=2, gamma=0.5)
        >>> state
        ScheduleState(tick=3, rate=0.125)
    """
    tick, rate = state.tick + 1, state.rate
    if kind == "step" and tick % step_size == 0:
        rate = rate * gamma
    if kind == "warmup_cosine":
        rate = _warmup_cosine(tick, learning_rate, warmup_steps, total_steps)
    return ScheduleState(tick, rate)


def _warmup_cosine(tick: int, learning_rate: float, warmup_steps: int, total_steps: int) -> float:
    if tick < warmup_steps:
        return learning_rate * (tick + 1) / warmup_steps
    length = total_steps - warmup_steps
    return learning_rate * (1 + cos_pi(min(tick - warmup_steps, length), length)) / 2


def _in_blocks(
    rule: Callable[..., None], old: Sequence[Mapping[str, Array]], grads: Mapping[str, Array], in_place: bool
) -> list[Arrays]:
    """A rule over every parameter and what goes with it, a block at a time: what they become."""
    new: list[Arrays] = [{} for _ in old]
    for name, w in old[0].items():
        before = [arrays[name] for arrays in old]
        after = before if in_place else [np.empty(array.shape, w.dtype) for array in before]
        for arrays, array in zip(new, after, strict=True):
            arrays[name] = array
        # A small array as it is: one that cannot be written over goes on, and is refused.
        small = w.ndim and w.size <= BLOCK and w.shape == grads[name].shape
        if small and all(array.flags.c_contiguous for array in after):
            rule(after, *before, g=grads[name])
            continue
        g = grads[name].reshape(-1)
        sources = [array.reshape(-1) for array in before]
        targets = [array.reshape(-1, copy=False) for array in after]
        for start in range(0, w.size, BLOCK):
            block = slice(start, start + BLOCK)
            rule([target[block] for target in targets], *(source[block] for source in sources), g=g[block])
    return new


def _zeros(params: Mapping[str, Array]) -> Arrays:
    return {name: np.zeros(w.shape, w.dtype) for name, w in params.items()}
