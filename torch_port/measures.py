"""What the rows of the boundary relate, as this machine shows it: one function a row.

A measuring function takes nothing and gives what `measure` judges by the row's kind: two sides, the verdict of a law,
or a probability. Where tests ask for many cases, the sides are made from given values by a public function. All of it
runs from the installed packages alone, and each row within seconds.
"""

import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import numpy_ref
import torch_port
from numpy_ref import arithmetic as reference_arithmetic
from numpy_ref import boundary, demo, laws, precision
from numpy_ref import model as reference_model
from numpy_ref import optim as reference_optim
from numpy_ref import rng as reference_rng
from numpy_ref.boundary import Row, row_named
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.equivalence import Verdict, compare
from torch_port import arithmetic, model, optim, rng, variants
from torch_port.boundary import Measured
from torch_port.rounding import STORAGE

Array = np.ndarray[Any, np.dtype[Any]]
Arrays = dict[str, Array]


class Sides(NamedTuple):
    """Two trees that a row relates; each has its cases at the top."""

    expected: Any
    found: Any


class InVariants(Sides):
    """Two sides whose cases are variants of a process, so that their names are worth telling."""


class Chance(NamedTuple):
    """The outcome of a statistical test: how probable what was seen, or more, is by chance alone."""

    probability: float
    figure: str


class NotHere(Exception):
    """This machine lacks what the measurement needs; the message says what."""


Finding = Sides | Verdict | Chance
MEASURES: dict[str, Callable[[], Finding]] = {}  # by the row's name


def _measures(name: str) -> Callable[[Callable[[], Finding]], Callable[[], Finding]]:
    """Enter a function as the one that measures a row."""

    def enter(function: Callable[[], Finding]) -> Callable[[], Finding]:
        MEASURES[row_named(name).name] = function
        return function

    return enter


def measure(row: Row) -> Measured:
    """Measure a row on this machine, or say why that is not possible."""
    try:
        return judge(row, MEASURES[row.name]())
    except NotHere as error:
        return Measured(row.name, row.kind, None, "", None, str(error))


def judge(row: Row, finding: Finding) -> Measured:
    """Whether what was found is what the row says. Of a row of the kind "never", every case must differ."""
    share, note = None, ", ".join(finding.expected) if isinstance(finding, InVariants) else ""
    if isinstance(finding, Chance):
        holds = finding.probability > (row.false_alarms or 0)
        figure = f"{finding.figure}: by chance with probability {finding.probability:.2g}"
    elif isinstance(finding, Verdict):  # of a law, which knows itself what it asks for
        holds, figure = finding.holds, str(finding._replace(cause=""))
    elif row.kind == "never":
        verdicts = [compare(finding.expected[case], finding.found[case]) for case in finding.expected]
        holds, figure = not any(verdict.holds for verdict in verdicts), str(verdicts[0])
    else:
        verdict = compare(finding.expected, finding.found, tolerance=row.tolerance)
        holds, figure = verdict.holds, str(verdict)
        if row.tolerance is not None:
            share = verdict.share
        if verdict.relation == "within":
            allowed = verdict.distance / verdict.share
            figure = f"{verdict.distance:.2g} apart of {allowed:.2g} allowed, in {verdict.leaf}"
    return Measured(row.name, row.kind, holds, figure, share, note)


# The stock classes and ours, on given values


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
    return _arrays(results | dict(layer.named_buffers()))


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
        results.append(_arrays({"loss": loss, "by logits": z.grad}))
    return Sides(*results)


VARIANTS: dict[str, dict[str, bool]] = {  # of the stock optimizers
    "single-tensor": {"foreach": False, "fused": False},
    "foreach": {"foreach": True, "fused": False},
    "fused": {"foreach": False, "fused": True},
}


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
    stock = _steps(getattr(torch.optim, kind), dict(settings) | VARIANTS[variant], weights, grads)
    return Sides(stock, _steps(getattr(optimizers, kind), settings, weights, grads))


def _steps(kind: Any, settings: Mapping[str, Any], weights: Array, grads: Sequence[Array]) -> dict[str, Arrays]:
    """Weights and moments of an optimizer after each step, in the weights' type."""
    w = torch.nn.Parameter(torch.tensor(weights))
    optimizer, results = kind([w], **settings), {}
    for t, g in enumerate(grads, 1):
        w.grad = torch.tensor(g)
        optimizer.step()
        state = {name: value for name, value in optimizer.state[w].items() if name != "step" and value is not None}
        results[f"step {t}"] = _arrays({"weights": w} | state)
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


# One function a row

RUN = RunConfig(
    hidden=(16,), dropout=0.3, batch_norm=True, batch_size=256, schedule="step", step_size=5, amsgrad=True,
    weight_decay=0.01, noise=0.1, evaluate_every=3, seed=5,
)  # fmt: skip
STOP, STEPS = 8, 4  # in the second epoch, between two decays, after the first evaluations
PACKAGES: list[Any] = [numpy_ref, torch_port]


@cache
def _digits() -> Dataset:
    return numpy_ref.load_data("digits")


def _first_failure(verdicts: Sequence[Verdict]) -> Verdict:
    """The first verdict that does not hold; else the last."""
    return next((verdict for verdict in verdicts if not verdict.holds), verdicts[-1])


def _of_a_law(
    law: Callable[..., Verdict], *arguments: Any, arithmetic: str = "reproducible", **settings: Any
) -> Verdict:
    """A law about resuming, held to an implementation (the first argument) on the digits."""
    impl, *others = arguments
    with tempfile.TemporaryDirectory() as folder:
        return law(impl, replace(RUN, arithmetic=arithmetic), _digits(), folder, *others, **settings)


def _resume(impl: Any, arithmetic: str) -> Verdict:
    return _of_a_law(laws.check_resume, impl, arithmetic=arithmetic, stops=[3, STOP], steps=STOP + STEPS)


def _moments(impl: Any, config: RunConfig, steps: int) -> list[laws.Moment]:
    return list(laws.follow(impl, impl.init_run(config, _digits()), _digits(), steps))


def _final(impl: Any, config: RunConfig, steps: int, workers: int = 0) -> Any:
    """The state after a run from its start."""
    run = impl.init_run(config, _digits())
    if workers:
        run.workers = workers
    return impl.snapshot(impl.train_n_steps(run, _digits(), steps))


def _short(impl: Any) -> Any:
    return _final(impl, boundary.SHORT_RUN, boundary.SHORT_STEPS)


@_measures("full resume")
def _full_resume() -> Verdict:
    return _resume(numpy_ref, "reproducible")


@_measures("full resume, port")
def _full_resume_of_the_port() -> Verdict:
    return _resume(torch_port, "reproducible")


@_measures("full resume, native")
def _full_native_resume() -> Verdict:
    return _first_failure([_resume(impl, "native") for impl in PACKAGES])


@_measures("saved in one, resumed in the other")
def _handed_over() -> Sides:
    run, data = numpy_ref.init_run(RUN, _digits()), _digits()
    with tempfile.TemporaryDirectory() as folder:
        for i in range(4):
            here, there = PACKAGES[i % 2], PACKAGES[1 - i % 2]
            here.save_checkpoint(f"{folder}/{i}.safetensors", here.train_n_steps(run, data, 2))
            run = there.resume_from_full_checkpoint(f"{folder}/{i}.safetensors", data)
    return Sides(_final(numpy_ref, RUN, 8), numpy_ref.snapshot(run))


@_measures("weights only")
def _weights_only() -> Verdict:
    return _first_failure(
        [_of_a_law(laws.check_weights_only_differs, impl, stop=STOP, steps=STEPS) for impl in PACKAGES]
    )


@_measures("lost state")
def _lost_state() -> Verdict:
    losses = [prefix for prefix in demo.LOSSES.values() if prefix != "rng/dropout"]
    return _first_failure([_lost(impl, prefix) for impl, prefix in product(PACKAGES, losses)])


@_measures("unrestored generator")
def _unrestored_generator() -> Verdict:
    return _first_failure([_lost(impl, "rng/dropout") for impl in PACKAGES])


def _lost(impl: Any, prefix: str) -> Verdict:
    return _of_a_law(laws.check_lost_state_is_caught, impl, prefix, stop=STOP, steps=STEPS)


@_measures("unrestored generator, loss")
def _loss_without_the_generator() -> Chance:
    signs = loss_differences(without_generator)
    higher = sum(x > 0 for x in signs)
    return Chance(signs_by_chance(signs), f"the loss is higher for {higher} of {len(signs)} seeds")


@_measures("other seed")
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


@_measures("NumPy against the port")
def _numpy_against_the_port() -> Verdict:
    sgd = replace(RUN, optimizer="sgd", amsgrad=False, nesterov=True, accumulation=2, schedule="warmup_cosine")
    configs = [RUN, replace(RUN, optimizer="adamw", hidden=(70, 67), batch_norm=False), sgd]
    return _first_failure(
        [laws.compare_runs(*(_moments(impl, config, STOP) for impl in PACKAGES)) for config in configs]
    )


@_measures("NumPy against PyTorch, native")
def _native_numpy_against_pytorch() -> Sides:
    return Sides(_short(numpy_ref), _short(torch_port))


@_measures("streams")
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


# Machines


def _demo_in(package: str, *groups: str) -> InVariants:
    """The committed digest, and that of each variant of these groups that is here."""
    digests = variants.demo_digests(package, "reproducible")
    names = [name for group in groups for name in variants.variants(package)[group] if name in digests]
    if not names:
        raise NotHere(f"no variant of {' and '.join(groups)} can run here")
    return InVariants(dict.fromkeys(names, demo.DIGEST), {name: digests[name] for name in names})


def _short_runs(package: str) -> InVariants:
    """The final state of the short run as it is, and in each variant that is here."""
    found = {f"{package} with {name}": state for name, state in variants.short_run_states(package).items()}
    usual = found.pop(f"{package} with {variants.USUAL}")
    if not found:
        raise NotHere("no second variant can run here")
    return InVariants(dict.fromkeys(found, usual), found)


@_measures("threads")
def _threads() -> InVariants:
    return _demo_in("numpy_ref", variants.USUAL, "threads")


@_measures("threads, port")
def _threads_of_the_port() -> InVariants:
    return _demo_in("torch_port", variants.USUAL, "threads")


@_measures("kernels and instruction sets")
def _kernels() -> InVariants:
    return _demo_in("numpy_ref", "kernels", "instruction sets", "hash seed", "together")


@_measures("kernels and instruction sets, port")
def _kernels_of_the_port() -> InVariants:
    return _demo_in("torch_port", "kernels", "instruction sets", "hash seed", "together")


@_measures("kernels and instruction sets, native")
def _native_kernels() -> InVariants:
    return _other_bits("numpy_ref")


@_measures("kernels and instruction sets, native, port")
def _native_kernels_of_the_port() -> InVariants:
    return _other_bits("torch_port")


def _other_bits(package: str) -> InVariants:
    """The short run as it is, and in those variants that have other bits."""
    expected, found = _short_runs(package)
    others = [name for name in found if not compare(expected[name], found[name]).holds]
    if not others:
        raise NotHere(f"not exercised, native arithmetic has the same bits in every variant: {', '.join(found)}")
    return InVariants({name: expected[name] for name in others}, {name: found[name] for name in others})


@_measures("full resume, native, elsewhere")
def _native_elsewhere() -> InVariants:
    numpy, port = (_short_runs(impl.__name__) for impl in PACKAGES)
    return InVariants(numpy.expected | port.expected, numpy.found | port.found)


def _on_cuda() -> torch.device:
    if not torch.cuda.is_available():
        raise NotHere("no CUDA device")
    return torch.device("cuda")


@_measures("CUDA")
def _cuda() -> Verdict:
    with _on_cuda():
        found = _moments(torch_port, RUN, STOP)
    return laws.compare_runs(_moments(numpy_ref, RUN, STOP), found)


@_measures("CUDA, native")
def _native_cuda() -> Sides:
    with _on_cuda():
        found = _short(torch_port)
    return Sides({impl.__name__: _short(impl) for impl in PACKAGES}, {impl.__name__: found for impl in PACKAGES})


@_measures("CUDA resume")
def _cuda_resume() -> Verdict:
    before = torch.are_deterministic_algorithms_enabled()
    with _on_cuda():
        torch.use_deterministic_algorithms(True)
        try:
            return _resume(torch_port, "native")
        finally:
            torch.use_deterministic_algorithms(before)


@_measures("compiled against eager")
def _compiled() -> Sides:
    return compiled_sides(**_positive(61, 33, 17))


def _positive(batch: int, inputs: int, outputs: int) -> Arrays:
    """What a linear layer takes, between 1/2 and 1."""
    generator = np.random.default_rng(batch)
    shapes = {"x": (batch, inputs), "weight": (outputs, inputs), "bias": (outputs,), "grad": (batch, outputs)}
    return {name: generator.uniform(0.5, 1, shape).astype(np.float32) for name, shape in shapes.items()}


# Batches and workers


@_measures("batch")
def _batch() -> Sides:
    generator = np.random.default_rng(0)
    a, b = (generator.standard_normal(shape).astype(np.float32) for shape in ((64, 1003), (1003, 7)))
    expected, found = {}, {}
    implementations: list[tuple[Any, Callable[[Array], Any]]] = [
        (reference_arithmetic, np.asarray),
        (arithmetic, torch.tensor),
    ]
    for impl, made in implementations:
        x, w = made(a), made(b)
        expected[impl.__name__] = {"product": np.asarray(impl.matmul(x, w)[:5]), "sum": np.asarray(impl.sum(x, 1)[:5])}
        found[impl.__name__] = {"product": np.asarray(impl.matmul(x[:5], w)), "sum": np.asarray(impl.sum(x[:5], 1))}
    return Sides(expected, found)


@_measures("workers")
def _workers() -> Sides:
    return Sides(_final(torch_port, RUN, STOP), _final(torch_port, RUN, STOP, workers=2))


# The stock classes


def _drawn(*pairs: tuple[Callable[[np.random.Generator], Any], Callable[[torch.Generator], torch.Tensor]]) -> Sides:
    """What NumPy and torch draw, three rounds of the pairs from one state."""
    state = reference_rng.init_stream(7, "order")
    here, there = reference_rng.generator_from(state), rng.generator_from(state)
    rounds = [(f"draw {i} of {n}", pair) for n in range(3) for i, pair in enumerate(pairs)]
    expected = {name: stock(there).numpy() for name, (_, stock) in rounds}
    return Sides(expected, {name: ours(here) for name, (ours, _) in rounds})


def _stock_uniform(generator: torch.Generator, dtype: torch.dtype) -> torch.Tensor:
    return torch.rand(1003, generator=generator, dtype=dtype, device="cpu")


@_measures("stock rand")
def _stock_rand() -> Sides:
    return _drawn(
        (lambda g: reference_rng.draw_uniform(g, 1003), lambda g: _stock_uniform(g, torch.float32)),
        (lambda g: reference_rng.draw_uniform(g, 1003, dtype=np.float64), lambda g: _stock_uniform(g, torch.float64)),
    )


@_measures("stock randperm")
def _stock_randperm() -> Sides:
    return _drawn(
        (lambda g: reference_rng.draw_permutation(g, 1003), lambda g: torch.randperm(1003, generator=g, device="cpu"))
    )


@_measures("stock randint")
def _stock_randint() -> Sides:
    def pair(high: int) -> tuple[Callable[[np.random.Generator], Any], Callable[[torch.Generator], torch.Tensor]]:
        return (
            lambda g: reference_rng.draw_integers(g, 64, high),
            lambda g: torch.randint(high, (64,), generator=g, device="cpu"),
        )

    return _drawn(pair(10), pair(2**28), pair(2**40))


@_measures("stock bernoulli")
def _stock_bernoulli() -> Sides:
    p = torch.full((1003,), 0.3, dtype=torch.float32, device="cpu")
    return _drawn(
        (lambda g: reference_rng.draw_bernoulli(g, 0.3, 1003), lambda g: torch.bernoulli(p, generator=g).bool())
    )


@_measures("stock dropout")
def _stock_dropout() -> Chance:
    units, state, chances = 2**18, reference_rng.init_stream(11, "dropout"), []
    for kind, keep in product(("dropout", "bernoulli_"), (0.5, 0.9)):
        kept = kept_units(kind, state, keep, units)
        if np.array_equal(kept, kept_units("ours", state, keep, units)):
            return Chance(0.0, f"{kind} keeps the very units that rand < p keeps")
        chances.append((share_by_chance(int(kept.sum()), units, keep), f"{kind} keeps {kept.mean():.4f} for {keep}"))
    return Chance(*min(chances))


@_measures("stock DataLoader")
def _stock_data_loader() -> Sides:
    return epochs_sides(reference_rng.init_stream(7, "order"), 103, 10)


@_measures("stock StepLR")
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


@_measures("stock GradScaler")
def _stock_grad_scaler() -> Sides:
    settings: dict[str, Any] = {"growth_factor": 1.7, "backoff_factor": 0.3, "growth_interval": 2}
    scaler, state = torch.amp.GradScaler("cpu", init_scale=3e4, **settings), precision.init_scaler(init_scale=3e4)
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
        unscaled = precision.unscale_gradients([g], state.scale)[0]
        overflow = precision.has_inf_or_nan([g])
        here = here if overflow else here - unscaled
        state = precision.scaler_step(state, overflow, **settings)
        theirs = scaler.state_dict()
        stock_state = precision.ScalerState(theirs["scale"], theirs["_growth_tracker"])
        expected[f"step {t}"] = {
            "state": stock_state,
            "gradient": w.grad.numpy().copy(),
            "w": w.detach().numpy().copy(),
        }
        found[f"step {t}"] = {"state": state, "gradient": unscaled, "w": here}
    return Sides(expected, found)


@_measures("stock Linear")
def _stock_linear() -> Sides:
    return linear_sides(**_positive(61, 64, 33))


@_measures("stock autocast, float16")
def _stock_autocast_float16() -> Sides:
    return autocast_sides(**_positive(61, 64, 33), precision="float16")


@_measures("stock autocast, bfloat16")
def _stock_autocast_bfloat16() -> Sides:
    return autocast_sides(**_positive(61, 64, 33), precision="bfloat16")


@_measures("stock BatchNorm1d")
def _stock_batch_norm() -> Sides:
    return batch_norm_sides(**batch_norm_case(16, 33, 0))


@_measures("stock cross_entropy")
def _stock_cross_entropy() -> Sides:
    generator = np.random.default_rng(0)
    return cross_entropy_sides(generator.uniform(-2, 2, (16, 10)).astype(np.float32), generator.integers(0, 10, 16))


@_measures("stock Adam")
def _stock_adam() -> Sides:
    return _optimizer_cases("Adam", {"lr": 0.06, "weight_decay": 0.05})


@_measures("stock AdamW")
def _stock_adamw() -> Sides:
    return _optimizer_cases("AdamW", {"lr": 0.06, "weight_decay": 0.05})


@_measures("stock SGD")
def _stock_sgd() -> Sides:
    return _optimizer_cases("SGD", {"lr": 0.06, "weight_decay": 0.05, "momentum": 0.9, "dampening": 0.25})


def weights_and_gradients(size: int, seed: int, steps: int = 3) -> tuple[Array, list[Array]]:
    """What the rows of the optimizers are about: weights between 1 and 2, gradients between 3/4 and 1, of any sign."""
    generator = np.random.default_rng(seed)

    def numbers(low: float, high: float) -> Array:
        return np.asarray(generator.uniform(low, high, size) * generator.choice([-1, 1], size), np.float32)

    return numbers(1, 2), [numbers(0.75, 1) for _ in range(steps)]


def _optimizer_cases(kind: str, settings: Mapping[str, Any]) -> Sides:
    given = weights_and_gradients(1003, 0)
    sides = {variant: optimizer_sides(kind, variant, settings, *given) for variant in VARIANTS}
    return Sides(*({name: both[i] for name, both in sides.items()} for i in (0, 1)))


def batch_norm_case(batch: int, outputs: int, seed: int) -> Arrays:
    """What the row of batch normalisation is about: inputs between -2 and 2, all else between 1/2 and 1."""
    generator = np.random.default_rng(seed)
    given = _positive(batch, 1, outputs)
    z = generator.uniform(-2, 2, (batch, outputs)).astype(np.float32)
    return {"z": z, "weight": given["weight"][:, 0], "bias": given["bias"], "grad": given["grad"]}


# Mathematics


@_measures("gradients")
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


@_measures("exact steps")
def _exact_steps() -> Sides:
    """Float64 stands for the rationals: what it rounds is 2**29 times smaller."""
    weights, grads = weights_and_gradients(1003, 1)
    expected, found = {}, {}
    cases: dict[str, dict[str, Any]] = {"Adam": {}, "AdamW": {}, "SGD": {"momentum": 0.9}}
    for kind, settings in cases.items():
        rule, settings = getattr(optim, kind), settings | {"lr": 0.1, "weight_decay": 0.1}
        exact = _steps(rule, settings, weights.astype(np.float64), [g.astype(np.float64) for g in grads])
        rounded = _steps(rule, settings, weights, grads)
        expected[kind] = {step: results["weights"] for step, results in exact.items()}
        found[kind] = {step: results["weights"].astype(np.float64) for step, results in rounded.items()}
    return Sides(expected, found)


def _arrays(tensors: Mapping[str, Any]) -> Arrays:
    """Independent NumPy arrays."""
    return {name: np.array(tensor.detach().cpu().numpy()) for name, tensor in tensors.items()}
