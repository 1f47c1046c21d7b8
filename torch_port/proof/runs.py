"""The rows on resuming and on the two packages."""

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np

import numpy_ref
import torch_port
from numpy_ref import rng as reference_rng
from numpy_ref.cli import demo
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.proof import boundary, laws
from numpy_ref.proof.equivalence import Verdict
from numpy_ref.types import Arrays
from torch_port import rng
from torch_port.proof.judging import Chance, Sides, measures

RUN = RunConfig(
    hidden=(16,),
    dropout=0.3,
    batch_norm=True,
    batch_size=256,
    schedule="step",
    step_size=5,
    amsgrad=True,
    weight_decay=0.01,
    noise=0.1,
    evaluate_every=3,
    seed=5,
)
STOP, STEPS = 8, 4  # in the second epoch, between two decays, after the first evaluations
PACKAGES: list[Any] = [numpy_ref, torch_port]


@cache
def _digits() -> Dataset:
    return numpy_ref.load_data("digits")


def first_failure(verdicts: Sequence[Verdict]) -> Verdict:
    """The first verdict that does not hold; else the last."""
    return next((verdict for verdict in verdicts if not verdict.holds), verdicts[-1])


def _of_a_law(
    law: Callable[..., Verdict], *arguments: Any, arithmetic: str = "reproducible", **settings: Any
) -> Verdict:
    """A law about resuming, held to an implementation (the first argument) on the digits."""
    impl, *others = arguments
    with tempfile.TemporaryDirectory() as folder:
        return law(impl, replace(RUN, arithmetic=arithmetic), _digits(), folder, *others, **settings)


def resume_verdict(impl: Any, arithmetic: str) -> Verdict:
    """Whether a full resume is the run that never stopped."""
    return _of_a_law(laws.check_resume, impl, arithmetic=arithmetic, stops=[3, STOP], steps=STOP + STEPS)


def moments_of(impl: Any, config: RunConfig, steps: int) -> list[laws.Moment]:
    """The states and records of a run, step by step."""
    return list(laws.follow(impl, impl.init_run(config, _digits()), _digits(), steps))


def final_state(impl: Any, config: RunConfig, steps: int, workers: int = 0) -> Any:
    """The state after a run from its start."""
    run = impl.init_run(config, _digits())
    if workers:
        run.workers = workers
    return impl.snapshot(impl.train_n_steps(run, _digits(), steps))


def short_run_state(impl: Any) -> Any:
    """The state after the short run, which the rows on native runs are about."""
    return final_state(impl, boundary.SHORT_RUN, boundary.SHORT_STEPS)


@measures("full resume")
def _full_resume() -> Verdict:
    return resume_verdict(numpy_ref, "reproducible")


@measures("full resume, port")
def _full_resume_of_the_port() -> Verdict:
    return resume_verdict(torch_port, "reproducible")


@measures("full resume, native")
def _full_native_resume() -> Verdict:
    return first_failure([resume_verdict(impl, "native") for impl in PACKAGES])


@measures("saved in one, resumed in the other")
def _handed_over() -> Sides:
    run, data = numpy_ref.init_run(RUN, _digits()), _digits()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(4):
            here, there = PACKAGES[i % 2], PACKAGES[1 - i % 2]
            here.save_checkpoint(f"{folder}/{i}.safetensors", here.train_n_steps(run, data, 2))
            run = there.resume_from_full_checkpoint(f"{folder}/{i}.safetensors", data)
    return Sides(final_state(numpy_ref, RUN, 8), numpy_ref.snapshot(run))


@measures("weights only")
def _weights_only() -> Verdict:
    return first_failure(
        [_of_a_law(laws.check_weights_only_differs, impl, stop=STOP, steps=STEPS) for impl in PACKAGES]
    )


@measures("lost state")
def _lost_state() -> Verdict:
    losses = [prefix for prefix in demo.LOSSES.values() if prefix != "rng/dropout"]
    return first_failure([_lost(impl, prefix) for impl, prefix in product(PACKAGES, losses)])


@measures("unrestored generator")
def _unrestored_generator() -> Verdict:
    return first_failure([_lost(impl, "rng/dropout") for impl in PACKAGES])


def _lost(impl: Any, prefix: str) -> Verdict:
    return _of_a_law(laws.check_lost_state_is_caught, impl, prefix, stop=STOP, steps=STEPS)


def signs_by_chance(signs: Sequence[float]) -> float:
    """The exact probability that fair coins fall as unevenly as these numbers' signs, or more; zeros count not."""
    positive, n = sum(x > 0 for x in signs), sum(x != 0 for x in signs)
    fewer = min(positive, n - positive)
    return min(1.0, 2 * sum(math.comb(n, k) for k in range(fewer + 1)) / 2.0**n)


def loss_differences(resume: Callable[[Any, Any, Dataset], Any], *, seeds: int = 24, stop: int = 20) -> list[float]:
    """Held-out losses of resumed native runs less those of whole ones, for a fixed set of seeds.

    Args:
        resume: makes the resumed run from the stopped one, a fresh one and the data.
        seeds: 0, 1, ... of the runs.
        stop: the step of the stop; the runs are twice as long.
    """
    data, differences = _digits(), []
    for seed in range(seeds):
        config = RunConfig(hidden=(16,), dropout=0.5, batch_size=64, arithmetic="native", seed=seed)
        fresh = numpy_ref.init_run(config, data)
        stopped = numpy_ref.train_n_steps(fresh, data, stop)
        ends = [numpy_ref.train_n_steps(run, data, stop) for run in (resume(stopped, fresh, data), stopped)]
        resumed, whole = (numpy_ref.evaluate(run, data).loss for run in ends)
        differences.append(resumed - whole)
    return differences


def without_generator(stopped: Any, fresh: Any, data: Dataset) -> Any:
    """A resume that leaves the dropout generator as a fresh run has it."""
    return stopped._replace(state=laws.lose(stopped.state, fresh.state, "rng/dropout"))


@measures("unrestored generator, loss")
def _loss_without_the_generator() -> Chance:
    signs = loss_differences(without_generator)
    higher = sum(x > 0 for x in signs)
    return Chance(signs_by_chance(signs), f"the loss is higher for {higher} of {len(signs)} seeds")


@measures("other seed")
def _other_seed() -> Sides:
    config, data = replace(RUN, batch_norm=False), _digits()
    run = numpy_ref.train_n_steps(numpy_ref.init_run(config, data), data, STOP)
    with tempfile.TemporaryDirectory() as folder:
        numpy_ref.save_checkpoint(f"{folder}/a.safetensors", run)
        resumes = {
            impl.__name__: laws.resume_with_loss(impl, f"{folder}/a.safetensors", data, "rng", seed=config.seed + 1)
            for impl in PACKAGES
        }
    whole = numpy_ref.train_n_steps(run, data, STEPS).state.model
    found = {impl.__name__: _after(impl, resumes[impl.__name__]) for impl in PACKAGES}
    return Sides(dict.fromkeys(found, whole), found)


def _after(impl: Any, run: Any) -> Arrays:
    model_arrays: Arrays = impl.snapshot(impl.train_n_steps(run, _digits(), STEPS)).model
    return model_arrays


@measures("NumPy against the port")
def _numpy_against_the_port() -> Verdict:
    sgd = replace(RUN, optimizer="sgd", amsgrad=False, nesterov=True, accumulation=2, schedule="warmup_cosine")
    configs = [RUN, replace(RUN, optimizer="adamw", hidden=(70, 67), batch_norm=False), sgd]
    return first_failure(
        [laws.compare_runs(*(moments_of(impl, config, STOP) for impl in PACKAGES)) for config in configs]
    )


@measures("NumPy against PyTorch, native")
def _native_numpy_against_pytorch() -> Sides:
    return Sides(short_run_state(numpy_ref), short_run_state(torch_port))


@measures("streams")
def _streams() -> Sides:
    draws: dict[str, Callable[[Any, Any], Any]] = {
        "uniform": lambda impl, generator: impl.draw_uniform(generator, (3, 67)),
        "permutation": lambda impl, generator: impl.draw_permutation(generator, 1003),
        "integers": lambda impl, generator: impl.draw_integers(generator, 64, 2**40),
        "bernoulli": lambda impl, generator: impl.draw_bernoulli(generator, 0.3, 129),
    }
    results = []
    for impl in (reference_rng, rng):
        generator = impl.generator_from(reference_rng.init_stream(3, "order"))
        drawn = {f"{name} {i}": np.asarray(draws[name](impl, generator)) for i in range(3) for name in draws}
        results.append(drawn | {"state": impl.stream_state(generator)})
    return Sides(*results)
