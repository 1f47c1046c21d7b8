"""The rows on variants of a machine, on CUDA and compilation, and on batches and workers."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import numpy_ref
import torch_port
from numpy_ref.arithmetic import operations as reference_arithmetic
from numpy_ref.cli import demo
from numpy_ref.proof import laws
from numpy_ref.proof.equivalence import Verdict, compare
from numpy_ref.types import Array
from torch_port.arithmetic import operations as arithmetic
from torch_port.proof import variants
from torch_port.proof.judging import InVariants, NotHere, Sides, measures
from torch_port.proof.runs import PACKAGES, RUN, STOP, final_state, moments_of, resume_verdict, short_run_state
from torch_port.proof.sides import compiled_sides, positive_case


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


@measures("threads")
def _threads() -> InVariants:
    return _demo_in("numpy_ref", variants.USUAL, "threads")


@measures("threads, port")
def _threads_of_the_port() -> InVariants:
    return _demo_in("torch_port", variants.USUAL, "threads")


@measures("kernels and instruction sets")
def _kernels() -> InVariants:
    return _demo_in("numpy_ref", "kernels", "instruction sets", "hash seed", "together")


@measures("kernels and instruction sets, port")
def _kernels_of_the_port() -> InVariants:
    return _demo_in("torch_port", "kernels", "instruction sets", "hash seed", "together")


@measures("kernels and instruction sets, native")
def _native_kernels() -> InVariants:
    return _other_bits("numpy_ref")


@measures("kernels and instruction sets, native, port")
def _native_kernels_of_the_port() -> InVariants:
    return _other_bits("torch_port")


def _other_bits(package: str) -> InVariants:
    """The short run as it is, and in those variants that have other bits."""
    expected, found = _short_runs(package)
    others = [name for name in found if not compare(expected[name], found[name]).holds]
    if not others:
        raise NotHere(f"not exercised, native arithmetic has the same bits in every variant: {', '.join(found)}")
    return InVariants({name: expected[name] for name in others}, {name: found[name] for name in others})


@measures("full resume, native, elsewhere")
def _native_elsewhere() -> InVariants:
    numpy, port = (_short_runs(impl.__name__) for impl in PACKAGES)
    return InVariants(numpy.expected | port.expected, numpy.found | port.found)


def _on_cuda() -> torch.device:
    if not torch.cuda.is_available():
        raise NotHere("no CUDA device")
    return torch.device("cuda")


@measures("CUDA")
def _cuda() -> Verdict:
    with _on_cuda():
        found = moments_of(torch_port, RUN, STOP)
    return laws.compare_runs(moments_of(numpy_ref, RUN, STOP), found)


@measures("CUDA, native")
def _native_cuda() -> Sides:
    with _on_cuda():
        found = short_run_state(torch_port)
    expected = {impl.__name__: short_run_state(impl) for impl in PACKAGES}
    return Sides(expected, dict.fromkeys(expected, found))


@measures("CUDA resume")
def _cuda_resume() -> Verdict:
    before = torch.are_deterministic_algorithms_enabled()
    with _on_cuda():
        torch.use_deterministic_algorithms(True)
        try:
            return resume_verdict(torch_port, "native")
        finally:
            torch.use_deterministic_algorithms(before)


@measures("compiled against eager")
def _compiled() -> Sides:
    return compiled_sides(**positive_case(61, 33, 17))


@measures("batch")
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


@measures("workers")
def _workers() -> Sides:
    return Sides(final_state(torch_port, RUN, STOP), final_state(torch_port, RUN, STOP, workers=2))
