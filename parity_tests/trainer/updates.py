"""Plain updates of Adam and SGD for arrays and tensors, and the mistakes: each replaces a part of one."""

from collections.abc import Callable, Mapping
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import optim as reference
from numpy_ref.arithmetic.operations import power

Part = Callable[..., Any]


class Given(NamedTuple):
    """The numbers that the parts of an update take: settings, the step, and the type that scalars are rounded to."""

    t: int  # of this update, from 1
    real: Callable[[float], Any]
    settings: Mapping[str, Any]
    sqrt: Callable[[Any], Any] | None = None

    def __getattr__(self, name: str) -> Any:
        return self.settings[name]


def _decay(w: Any, g: Any, s: Given) -> tuple[Any, Any]:
    if s.weight_decay and s.decoupled:
        return w * s.real(1 - s.learning_rate * s.weight_decay), g
    return w, g + s.real(s.weight_decay) * w if s.weight_decay else g


ADAM: dict[str, Part] = {
    "decay": _decay,
    "first": lambda m, g, s: s.real(s.beta1) * m + s.real(1 - s.beta1) * g,
    "square": lambda g, s: s.real(1 - s.beta2) * (g * g),
    "second": lambda v, square, s: s.real(s.beta2) * v + square,
    "largest": lambda v, largest, where: where(v <= largest, largest, v),
    "m_hat": lambda m, s: m / s.real(1 - power(s.beta1, s.t)),
    "v_hat": lambda v, s: v / s.real(1 - power(s.beta2, s.t)),
    "root": lambda v_hat, s: s.sqrt(v_hat) + s.real(s.eps),
    "change": lambda m_hat, root, s: s.real(s.learning_rate) * m_hat / root,
}
SGD: dict[str, Part] = {
    "decay": lambda w, g, s: g + s.real(s.weight_decay) * w if s.weight_decay else g,
    "buffer": lambda b, g, s: g if s.t == 1 else s.real(s.momentum) * b + s.real(1 - s.dampening) * g,
    "direction": lambda g, b, s: g + s.real(s.momentum) * b if s.nesterov else b,
}


def adam(w: Any, g: Any, m: Any, v: Any, largest: Any, where: Any, s: Given, parts: Mapping[str, Part]) -> Any:
    """New weights, both moments and the largest second one, which is None without amsgrad."""
    do = SimpleNamespace(**ADAM | parts)
    w, g = do.decay(w, g, s)
    m, v = do.first(m, g, s), do.second(v, do.square(g, s), s)
    largest = do.largest(v, largest, where) if largest is not None else None
    root = do.root(do.v_hat(v if largest is None else largest, s), s)
    return w - do.change(do.m_hat(m, s), root, s), m, v, largest


def sgd(w: Any, g: Any, b: Any, s: Given, parts: Mapping[str, Part]) -> Any:
    """New weights and buffer, which is None without momentum."""
    do = SimpleNamespace(**SGD | parts)
    g = do.decay(w, g, s)
    b = do.buffer(b, g, s) if b is not None else None
    return w - s.real(s.learning_rate) * (g if b is None else do.direction(g, b, s)), b


def _without_correction(x: Any, s: Given) -> Any:
    return x


# Of each mistake the settings under which it shows, and the wrong part.

AMSGRAD, DECAY = {"amsgrad": True, "beta2": 0.5}, {"weight_decay": 0.1}
DAMPED, AHEAD = {"momentum": 0.9, "dampening": 0.25}, {"momentum": 0.9, "nesterov": True}
ADAM_MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Part]]] = {
    "no correction of m": ({}, {"m_hat": _without_correction}),
    "no correction of v": ({}, {"v_hat": _without_correction}),
    "t from zero": ({}, {"m_hat": lambda m, s: ADAM["m_hat"](m, s._replace(t=max(s.t - 1, 1)))}),
    "t of the next step": ({}, {"m_hat": lambda m, s: ADAM["m_hat"](m, s._replace(t=s.t + 1))}),
    "one beta for both": ({}, {"square": lambda g, s: s.real(1 - s.beta1) * (g * g)}),
    "no maximum": (AMSGRAD, {"largest": lambda v, largest, where: v}),
    "eps in the root": ({"eps": 1e-3}, {"root": lambda v_hat, s: s.sqrt(v_hat + s.real(s.eps))}),
    "no decay": (DECAY, {"decay": lambda w, g, s: (w, g)}),
    "coupled decay": (
        DECAY | {"decoupled": True},
        {"decay": lambda w, g, s: (w, g + s.real(s.weight_decay) * w)},
    ),
    "decay without the rate": (
        DECAY | {"decoupled": True},
        {"decay": lambda w, g, s: (w * s.real(1 - s.weight_decay), g)},
    ),
    "decoupled decay": (DECAY, {"decay": lambda w, g, s: (w * s.real(1 - s.learning_rate * s.weight_decay), g)}),
}
ADAM_ROUNDINGS: dict[str, tuple[dict[str, Any], dict[str, Part]]] = {  # the same in mathematics, with other bits
    "coefficient in float32": (
        {},
        {"first": lambda m, g, s: s.real(s.beta1) * m + (s.real(1) - s.real(s.beta1)) * g},
    ),
    "square from the left": ({"learning_rate": 1.0}, {"square": lambda g, s: s.real(1 - s.beta2) * g * g}),
    "rate after the quotient": ({}, {"change": lambda m_hat, root, s: s.real(s.learning_rate) * (m_hat / root)}),
    "correction outside the root": (
        {"learning_rate": 1.0},
        {
            "v_hat": _without_correction,
            "root": lambda v, s: s.sqrt(v) / s.real((1 - power(s.beta2, s.t)) ** 0.5) + s.real(s.eps),
        },
    ),
    "beta to the t in float32": ({}, {"m_hat": lambda m, s: m / (s.real(1) - s.real(s.beta1) ** s.t)}),
}
ADAM_FUSED: dict[str, dict[str, Part]] = {  # by torch, on some processors
    "lerp": {"first": lambda m, g, s: m.lerp(g, 1 - s.beta1)},
    "addcmul": {
        "square": lambda g, s: g,
        "second": lambda v, g, s: (v * s.real(s.beta2)).addcmul(g, g, value=1 - s.beta2),
    },
    "add with alpha": {"first": lambda m, g, s: (m * s.real(s.beta1)).add(g, alpha=1 - s.beta1)},
}
SGD_MISTAKES: dict[str, tuple[dict[str, Any], dict[str, Part]]] = {
    "damped first step": (
        DAMPED,
        {"buffer": lambda b, g, s: s.real(s.momentum) * b + s.real(1 - s.dampening) * g},
    ),
    "no dampening": (DAMPED, {"buffer": lambda b, g, s: g if s.t == 1 else s.real(s.momentum) * b + g}),
    "t stands": (DAMPED, {"buffer": lambda b, g, s: g}),
    "no look ahead": (AHEAD, {"direction": lambda g, b, s: b}),
    "no decay": (DAMPED | DECAY, {"decay": lambda w, g, s: g}),
}
RATE_IN_THE_BUFFER: Part = lambda b, g, s: SGD["buffer"](b, s.real(s.learning_rate) * g, s)  # noqa: E731


def plain_reference(adam_parts: Mapping[str, Part] = {}, sgd_parts: Mapping[str, Part] = {}) -> Any:
    """`numpy_ref.optim` with the plain updates in place of its own."""

    def adam_step(params: Any, state: Any, grads: Any, ops: Any, **settings: Any) -> Any:
        settings = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0, "decoupled": False} | settings
        new: list[dict[str, Any]] = [{}, {}, {}, {}]
        for name, w in params.items():
            s = Given(state.t + 1, w.dtype.type, settings, ops.sqrt)
            v_max = state.v_max[name] if state.v_max else None
            found = adam(w, grads[name], state.m[name], state.v[name], v_max, np.where, s, adam_parts)
            for arrays, array in zip(new, found, strict=True):
                arrays[name] = array
        params, m, v, v_max = new
        return params, reference.AdamState(state.t + 1, m, v, v_max if state.v_max else {})

    def sgd_step(params: Any, state: Any, grads: Any, **settings: Any) -> Any:
        settings = {"momentum": 0.9, "dampening": 0.0, "nesterov": False, "weight_decay": 0.0} | settings
        new, buffers = {}, {}
        for name, w in params.items():
            b = state.momentum_buffer[name] if state.momentum_buffer else None
            new[name], buffers[name] = sgd(w, grads[name], b, Given(state.t + 1, w.dtype.type, settings), sgd_parts)
        return new, reference.SGDState(state.t + 1, buffers if state.momentum_buffer else {})

    return SimpleNamespace(**vars(reference) | {"adam_step": adam_step, "sgd_step": sgd_step})


def plain_port(optim: ModuleType, adam_parts: Mapping[str, Part] = {}, sgd_parts: Mapping[str, Part] = {}) -> Any:
    """`torch_port.optim` with the plain updates in place of its own."""
    import torch

    def scalars_like(w: Any) -> Any:
        return lambda value: torch.tensor(value, dtype=w.dtype, device=w.device)

    def settings_of(group: dict[str, Any]) -> dict[str, Any]:
        return group | {"learning_rate": float(group["lr"])}

    @torch.no_grad()
    def adam_step(self: Any, closure: Any = None) -> None:
        for group in self.param_groups:
            (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
            settings = settings_of(group) | {"beta1": beta1, "beta2": beta2, "decoupled": decoupled}
            keys = list(optim.ADAM_MOMENTS.values())[: 3 if group["amsgrad"] else 2]
            for w in group["params"]:
                state = self.state[w]
                for key in [] if state else keys:
                    state[key] = torch.zeros_like(w)
                t = int(state.get("step", 0)) + 1
                state["step"] = torch.tensor(float(t), dtype=torch.float64)
                s = Given(t, scalars_like(w), settings, self.ops.sqrt)
                m, v, largest = [*(state[key] for key in keys), None][:3]
                new, *moments = adam(w, w.grad, m, v, largest, torch.where, s, adam_parts)
                w.copy_(new)
                state.update(zip(keys, moments, strict=False))

    @torch.no_grad()
    def sgd_step(self: Any, closure: Any = None) -> None:
        for group in self.param_groups:
            for w in group["params"]:
                state, t = self.state[w], int(self.state[w].get("step", 0)) + 1
                b = state.get("momentum_buffer", torch.zeros_like(w)) if group["momentum"] else None
                new, b = sgd(w, w.grad, b, Given(t, scalars_like(w), settings_of(group)), sgd_parts)
                w.copy_(new)
                state["step"] = torch.tensor(float(t), dtype=torch.float64)
                if b is not None:
                    state["momentum_buffer"] = b.clone()

    class Adam(optim.Adam):  # type: ignore[name-defined, misc]
        step = adam_step

    class AdamW(optim.AdamW):  # type: ignore[name-defined, misc]
        step = adam_step

    class SGD(optim.SGD):  # type: ignore[name-defined, misc]
        step = sgd_step

    return SimpleNamespace(**vars(optim) | {"Adam": Adam, "AdamW": AdamW, "SGD": SGD})
