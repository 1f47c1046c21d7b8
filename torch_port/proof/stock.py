"""The rows on the stock classes of PyTorch."""

from collections.abc import Callable, Mapping
from itertools import product
from typing import Any

import numpy as np
import torch

from numpy_ref import optim as reference_optim
from numpy_ref import rng as reference_rng
from torch_port import rng
from torch_port.proof.judging import Chance, Sides, measures
from torch_port.proof.sides import (
    VARIANTS,
    autocast_sides,
    batch_norm_case,
    batch_norm_sides,
    cross_entropy_sides,
    epochs_sides,
    kept_units,
    linear_sides,
    optimizer_sides,
    positive_case,
    share_by_chance,
    weights_and_gradients,
)


def _drawn(*pairs: tuple[Callable[[np.random.Generator], Any], Callable[[torch.Generator], torch.Tensor]]) -> Sides:
    """What NumPy and torch draw, three rounds of the pairs from one state."""
    state = reference_rng.init_stream(7, "order")
    here, there = reference_rng.generator_from(state), rng.generator_from(state)
    rounds = [(f"draw {i} of {n}", pair) for n in range(3) for i, pair in enumerate(pairs)]
    expected = {name: stock(there).numpy() for name, (_, stock) in rounds}
    return Sides(expected, {name: ours(here) for name, (ours, _) in rounds})


def _stock_uniform(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(1003, generator=generator, dtype=dtype, device="cpu")


@measures("stock rand")
def _stock_rand() -> Sides:
    return _drawn(
        (lambda g: reference_rng.draw_uniform(g, 1003), lambda g: _stock_uniform(g, torch.float32)),
        (lambda g: reference_rng.draw_uniform(g, 1003, dtype=np.float64), lambda g: _stock_uniform(g, torch.float64)),
    )


@measures("stock randperm")
def _stock_randperm() -> Sides:
    return _drawn(
        (lambda g: reference_rng.draw_permutation(g, 1003), lambda g: torch.randperm(1003, generator=g, device="cpu"))
    )


@measures("stock randint")
def _stock_randint() -> Sides:
    def pair(high: int) -> tuple[Callable[[np.random.Generator], Any], Callable[[torch.Generator], torch.Tensor]]:
        return (
            lambda g: reference_rng.draw_integers(g, 64, high),
            lambda g: torch.randint(high, (64,), generator=g, device="cpu"),
        )

    return _drawn(pair(10), pair(2**28), pair(2**40))


@measures("stock bernoulli")
def _stock_bernoulli() -> Sides:
    p = torch.full((1003,), 0.3, dtype=torch.float32, device="cpu")
    return _drawn(
        (lambda g: reference_rng.draw_bernoulli(g, 0.3, 1003), lambda g: torch.bernoulli(p, generator=g).bool())
    )


@measures("stock dropout")
def _stock_dropout() -> Chance:
    units, state, chances = 2**18, reference_rng.init_stream(11, "dropout"), []
    for kind, keep in product(("dropout", "bernoulli_"), (0.5, 0.9)):
        kept = kept_units(kind, state, keep, units)
        if np.array_equal(kept, kept_units("ours", state, keep, units)):
            return Chance(0.0, f"{kind} keeps the very units that rand < p keeps")
        chances.append((share_by_chance(int(kept.sum()), units, keep), f"{kind} keeps {kept.mean():.4f} for {keep}"))
    return Chance(*min(chances))


@measures("stock DataLoader")
def _stock_data_loader() -> Sides:
    return epochs_sides(reference_rng.init_stream(7, "order"), 103, 10)


@measures("stock StepLR")
def _stock_step_lr() -> Sides:
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    stock = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7)
    state = reference_optim.init_schedule("step", learning_rate=0.1)
    expected, found = {}, {}
    for tick in range(20):
        optimizer.step()
        stock.step()
        state = reference_optim.schedule_step(state, "step", learning_rate=0.1, step_size=3, gamma=0.7)
        expected[f"tick {tick}"], found[f"tick {tick}"] = optimizer.param_groups[0]["lr"], state.rate
    return Sides(expected, found)


@measures("stock GradScaler")
def _stock_grad_scaler() -> Sides:
    settings: dict[str, Any] = {"growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2}
    scaler, state = torch.amp.GradScaler("cpu", init_scale=3e4, **settings), reference_optim.init_scaler(init_scale=3e4)
    w = torch.zeros(3, requires_grad=True)
    optimizer, here = torch.optim.SGD([w], lr=1.0), np.zeros(3, np.float32)
    expected, found = {}, {}
    for t, bad in enumerate([1.0, 1.0, np.inf, 1.0, np.nan, -np.inf, 1.0, 1.0, 1.0]):
        g = np.array([0.1, bad, 1e5], np.float32)
        w.grad = torch.tensor(g)
        scaler.scale(torch.tensor(1.0))
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        unscaled = reference_optim.unscale_gradients([g], state.scale)[0]
        overflow = reference_optim.has_inf_or_nan([g])
        here = here if overflow else here - unscaled
        state = reference_optim.scaler_step(state, overflow, **settings)
        theirs = scaler.state_dict()
        stock_state = reference_optim.ScalerState(theirs["scale"], theirs["_growth_tracker"])
        expected[f"step {t}"] = {
            "state": stock_state,
            "gradient": w.grad.numpy().copy(),
            "w": w.detach().numpy().copy(),
        }
        found[f"step {t}"] = {"state": state, "gradient": unscaled, "w": here}
    return Sides(expected, found)


@measures("stock Linear")
def _stock_linear() -> Sides:
    return linear_sides(**positive_case(61, 64, 33))


@measures("stock autocast, float16")
def _stock_autocast_float16() -> Sides:
    return autocast_sides(**positive_case(61, 64, 33), precision="float16")


@measures("stock autocast, bfloat16")
def _stock_autocast_bfloat16() -> Sides:
    return autocast_sides(**positive_case(61, 64, 33), precision="bfloat16")


@measures("stock BatchNorm1d")
def _stock_batch_norm() -> Sides:
    return batch_norm_sides(**batch_norm_case(16, 33, 0))


@measures("stock cross_entropy")
def _stock_cross_entropy() -> Sides:
    generator = np.random.default_rng(0)
    return cross_entropy_sides(generator.uniform(-2, 2, (16, 10)).astype(np.float32), generator.integers(0, 10, 16))


@measures("stock Adam")
def _stock_adam() -> Sides:
    return _optimizer_cases("Adam", {"lr": 0.06, "weight_decay": 0.05})


@measures("stock AdamW")
def _stock_adamw() -> Sides:
    return _optimizer_cases("AdamW", {"lr": 0.06, "weight_decay": 0.05})


@measures("stock SGD")
def _stock_sgd() -> Sides:
    return _optimizer_cases("SGD", {"lr": 0.06, "weight_decay": 0.05, "momentum": 0.9, "dampening": 0.25})


def _optimizer_cases(kind: str, settings: Mapping[str, Any]) -> Sides:
    given = weights_and_gradients(1003, 0)
    sides = {variant: optimizer_sides(kind, variant, settings, *given) for variant in VARIANTS}
    return Sides(*({name: both[i] for name, both in sides.items()} for i in (0, 1)))
