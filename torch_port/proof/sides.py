"""The stock classes and ours on given values, and the values that the rows are about."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from numpy_ref import rng as reference_rng
from numpy_ref.types import Array, Arrays
from torch_port import model, optim, rng
from torch_port.arithmetic import operations as arithmetic
from torch_port.arithmetic.rounding import STORAGE
from torch_port.proof.judging import NotHere, Sides


def positive_case(batch: int, inputs: int, outputs: int) -> Arrays:
    """What a linear layer takes, between 1/2 and 1."""
    generator = np.random.default_rng(batch)
    shapes = {"x": (batch, inputs), "weight": (outputs, inputs), "bias": (outputs,), "grad": (batch, outputs)}
    return {name: generator.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}


def linear_sides(x: Array, weight: Array, bias: Array, grad: Array, *, network: Any = model) -> Sides:
    """Output and gradients of `nn.Linear` and of ours.

    Args:
        x: (B, D).
        weight: (H, D).
        bias: (H,).
        grad: (B, H), the gradient by the output.
        network: the module whose `Linear` is judged.
    """
    skip_init: Any = torch.nn.utils.skip_init  # the stock layer would draw from the global generator
    stock = skip_init(torch.nn.Linear, *weight.T.shape)
    ours = network.Linear(*weight.T.shape)
    return Sides(*(_layer_results(layer, x, {"weight": weight, "bias": bias}, grad) for layer in (stock, ours)))


def compiled_sides(x: Array, weight: Array, bias: Array, grad: Array, *, network: Any = model) -> Sides:
    """Output and gradients of our native layer, and of the same compiled into one graph; arguments of `linear_sides`.

    Raises:
        NotHere: nothing can be compiled.
    """
    eager, other = (module.Linear(*weight.T.shape, ops=arithmetic.NATIVE) for module in (model, network))
    parameters = {"weight": weight, "bias": bias}
    try:
        found = _layer_results(other, x, parameters, grad, torch.compile(other, fullgraph=True))
    except torch._dynamo.exc.BackendCompilerFailed as error:
        raise NotHere(f"torch.compile cannot compile: {str(error).splitlines()[0]}") from None
    return Sides(_layer_results(eager, x, parameters, grad), found)


def autocast_sides(x: Array, weight: Array, bias: Array, grad: Array, *, precision: str, network: Any = model) -> Sides:
    """Output and gradients of `nn.Linear` in autocast, and of our layer on cast inputs; arguments of `linear_sides`."""
    stock, ours = (module.Linear(*weight.T.shape) for module in (torch.nn, network))
    dtype, parameters = STORAGE[precision], {"weight": weight, "bias": bias}

    def in_autocast(inputs: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype):
            return stock(inputs).float()  # type: ignore[no-any-return]

    expected = _layer_results(stock, x, parameters, grad, in_autocast)
    return Sides(expected, _layer_results(ours, x, parameters, grad, lambda inputs: ours(inputs.to(dtype)).float()))


def batch_norm_case(batch: int, outputs: int, seed: int) -> Arrays:
    """What the row of batch normalisation is about: inputs between -2 and 2, all else between 1/2 and 1."""
    generator = np.random.default_rng(seed)
    given = positive_case(batch, 1, outputs)
    z = generator.uniform(-2, 2, (batch, outputs)).astype(np.float32)
    return {"z": z, "weight": given["weight"][:, 0], "bias": given["bias"], "grad": given["grad"]}


def batch_norm_sides(z: Array, weight: Array, bias: Array, grad: Array, *, network: Any = model) -> Sides:
    """Output, gradients and running statistics of `nn.BatchNorm1d` in training, and of ours; z and grad are (B, H)."""
    stock, ours = torch.nn.BatchNorm1d(z.shape[1]), network.BatchNorm(z.shape[1])
    return Sides(*(_layer_results(layer, z, {"weight": weight, "bias": bias}, grad) for layer in (stock, ours)))


def _layer_results(layer: torch.nn.Module, x: Array, parameters: Arrays, grad: Array, call: Any = None) -> Arrays:
    """What a layer with these parameters makes of x and of the gradient by its output, and its buffers."""
    layer.load_state_dict({name: torch.tensor(array) for name, array in parameters.items()}, strict=False)
    inputs = torch.tensor(x, requires_grad=True)
    output = (layer if call is None else call)(inputs)
    output.backward(torch.tensor(grad))
    results = {"output": output, "by input": inputs.grad}
    results |= {f"by {name}": parameter.grad for name, parameter in layer.named_parameters()}
    return arrays_of(results | dict(layer.named_buffers()))


def cross_entropy_sides(logits: Array, labels: Array, *, network: Any = model) -> Sides:
    """Mean loss and gradient of `torch.nn.functional.cross_entropy` and of ours; logits (B, C), labels (B,)."""
    targets, results = torch.tensor(labels), []
    for loss_of in (
        torch.nn.functional.cross_entropy,
        lambda z, y: network.cross_entropy(z, y, arithmetic.REPRODUCIBLE, count=len(y)),
    ):
        z = torch.tensor(logits, requires_grad=True)
        loss = loss_of(z, targets)
        loss.backward()
        results.append(arrays_of({"loss": loss, "by logits": z.grad}))
    return Sides(*results)


VARIANTS: dict[str, dict[str, bool]] = {  # of the stock optimizers
    "single-tensor": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


def weights_and_gradients(size: int, seed: int, steps: int = 3) -> tuple[Array, list[Array]]:
    """What the rows of the optimizers are about: weights between 1 and 2, gradients between 3/4 and 1, of any sign."""
    generator = np.random.default_rng(seed)

    def numbers(low: float, high: float) -> Array:
        return np.asarray(generator.uniform(low, high, size) * generator.choice([-1, 1], size), np.float32)

    return numbers(1, 2), [numbers(0.75, 1) for _ in range(steps)]


def optimizer_sides(
    kind: str,
    variant: str,
    settings: Mapping[str, Any],
    weights: Array,
    grads: Sequence[Array],
    *,
    optimizers: Any = optim,
) -> Sides:
    """Weights and moments after each step of a stock optimizer and of ours.

    Args:
        kind: "Adam", "AdamW" or "SGD".
        variant: of the stock one, a name in VARIANTS.
        settings: of both constructors.
        weights: at the start.
        grads: of each step.
        optimizers: the module whose class is judged.
    """
    stock = steps_of(getattr(torch.optim, kind), dict(settings) | VARIANTS[variant], weights, grads)
    return Sides(stock, steps_of(getattr(optimizers, kind), settings, weights, grads))


def steps_of(kind: Any, settings: Mapping[str, Any], weights: Array, grads: Sequence[Array]) -> dict[str, Arrays]:
    """Weights and moments of an optimizer after each step, in the weights' type."""
    w = torch.nn.Parameter(torch.tensor(weights))
    optimizer, results = kind([w], **settings), {}
    for t, g in enumerate(grads, 1):
        w.grad = torch.tensor(g)
        optimizer.step()
        state = {name: value for name, value in optimizer.state[w].items() if name != "step" and value is not None}
        results[f"step {t}"] = arrays_of({"weights": w} | state)
    return results


def epochs_sides(state: reference_rng.StreamState, samples: int, batch_size: int, *, epochs: int = 3) -> Sides:
    """The orders of a stock shuffling loader, epoch by epoch, and those predicted in NumPy, from one generator's state.

    An iterator first draws a base seed of two words, then the order, and at its end another order that it drops.
    """
    generator, theirs = reference_rng.generator_from(state), rng.generator_from(state)
    loader = DataLoader(TensorDataset(torch.arange(samples)), batch_size, shuffle=True, generator=theirs)
    expected, found = {}, {}
    for epoch in range(epochs):
        expected[f"epoch {epoch}"] = np.array([int(index) for (batch,) in loader for index in batch])
        reference_rng.draw_words(generator, 2)
        found[f"epoch {epoch}"] = reference_rng.draw_permutation(generator, samples)
        reference_rng.draw_permutation(generator, samples)
    return Sides(expected, found)


def kept_units(kind: str, state: reference_rng.StreamState, keep: float, units: int) -> Array:
    """Which units "dropout", "bernoulli_" or "ours" keep with the probability `keep`, from a CPU generator's state."""
    generator = rng.generator_from(state)
    if kind == "ours":
        return rng.draw_bernoulli(generator, keep, units).numpy()
    if kind == "bernoulli_":
        return torch.empty(units, device="cpu").bernoulli_(keep, generator=generator).bool().numpy()
    with torch.random.fork_rng(devices=[]):  # F.dropout draws from the global generator only
        torch.set_rng_state(generator.get_state())
        return torch.nn.functional.dropout(torch.ones(units, device="cpu"), 1 - keep).bool().numpy()


def share_by_chance(kept: int, units: int, keep: float) -> float:
    """A bound on the probability that so many of independent units, or a number further off, are kept (Hoeffding)."""
    return min(1.0, 2 * math.exp(-2 * units * (kept / units - keep) ** 2))


def arrays_of(tensors: Mapping[str, Any]) -> Arrays:
    """Independent NumPy arrays."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
