"""The rows on gradients and optimizers against mathematics."""

from typing import Any

import numpy as np

from numpy_ref import model as reference_model
from numpy_ref import rng as reference_rng
from numpy_ref.arithmetic import operations as reference_arithmetic
from numpy_ref.types import Arrays
from torch_port import optim
from torch_port.proof.judging import Sides, measures
from torch_port.proof.sides import steps_of, weights_and_gradients


@measures("gradients")
def _gradients() -> Sides:
    """Central differences in every weight of a small model, and `backward`."""
    generator, step = np.random.default_rng(0), 2.0**-17
    start = reference_model.init_model(
        reference_rng.generator_from(reference_rng.init_stream(0, "weights")), 3, (5,), 4
    )
    weights = {name: array.astype(np.float64) for name, array in start.items()}
    x, labels = generator.standard_normal((8, 3)), generator.integers(0, 4, 8)

    def passed(weights: Arrays) -> tuple[float, Arrays]:
        ops = reference_arithmetic.NATIVE
        logits, made, _ = reference_model.forward(weights, x, ops, training=True)
        loss, grad = reference_model.cross_entropy(logits, labels, ops, count=8)
        return float(loss), reference_model.backward(weights, made, grad, ops)

    differences = {name: np.empty_like(array) for name, array in weights.items()}
    for name, array in weights.items():
        for place in np.ndindex(array.shape):
            ends = [array.copy(), array.copy()]
            for end, sign in zip(ends, (1, -1), strict=True):
                end[place] += sign * step
            right, left = (passed(weights | {name: end})[0] for end in ends)
            differences[name][place] = (right - left) / (ends[0][place] - ends[1][place])
    return Sides(differences, passed(weights)[1])


@measures("exact steps")
def _exact_steps() -> Sides:
    """Float64 stands for the rationals: what it rounds is 2**29 times smaller."""
    weights, grads = weights_and_gradients(1003, 1)
    expected, found = {}, {}
    cases: dict[str, dict[str, Any]] = {"Adam": {}, "AdamW": {}, "SGD": {"momentum": 0.9}}
    for kind, settings in cases.items():
        rule, settings = getattr(optim, kind), settings | {"lr": 0.1, "weight_decay": 0.1}
        exact = steps_of(rule, settings, weights.astype(np.float64), [g.astype(np.float64) for g in grads])
        rounded = steps_of(rule, settings, weights, grads)
        expected[kind] = {step: results["weights"] for step, results in exact.items()}
        found[kind] = {step: results["weights"].astype(np.float64) for step, results in rounded.items()}
    return Sides(expected, found)
