"""The boundary of reproducibility: what matches bitwise, within a tolerance, only statistically, or never.

This is the only place where a tolerance is written. Every row names the test that is its evidence.
"""

import os
import platform
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.equivalence import Tolerance

KINDS = ("bitwise", "within", "statistical", "never")


class Row(NamedTuple):
    """One line of the declared table."""

    name: str
    compared: str  # the two sides
    conditions: str  # under which the row holds
    kind: str  # one of KINDS
    reason: str  # where the kind, or the number, comes from
    evidence: str  # file::test below the repository
    tolerance: Tolerance | None = None  # of a row of the kind "within"


ROWS = (
    Row(
        "full resume",
        "a run resumed from a full checkpoint, with one that never stopped (numpy_ref)",
        "reproducible arithmetic; any save point, any number of stops, any machine",
        "bitwise",
        "every result is the exact value rounded once, and every state is in the file",
        "parity_tests/test_laws.py::test_resume_after_any_steps_equals_never_stopping",
    ),
    Row(
        "full resume, native",
        "a run resumed from a full checkpoint, with one that never stopped (numpy_ref)",
        "native arithmetic; the same NumPy build, processor and thread count",
        "bitwise",
        "the same calls on the same values in the same process environment",
        "parity_tests/test_laws.py::test_resume_after_any_steps_equals_never_stopping",
    ),
    Row(
        "threads",
        "the demo's final state with 1, 2 and 4 BLAS threads",
        "reproducible arithmetic",
        "bitwise",
        "a correctly rounded sum does not depend on the order of its terms",
        "parity_tests/test_demo.py::test_the_final_state_has_one_digest_with_any_number_of_threads",
    ),
    Row(
        "kernels and instruction sets",
        "the demo's final state, and a fixed corpus of products, sums and functions, with every BLAS kernel, NumPy "
        "instruction set and thread count that a machine can run",
        "reproducible arithmetic; OPENBLAS_CORETYPE, NPY_DISABLE_CPU_FEATURES, 1, 2 and 4 threads, in processes of "
        "their own",
        "bitwise",
        "each result is the exact value rounded once, or a fixed recipe of elementary operations; none depends on the "
        "order of additions",
        "parity_tests/test_variety.py::test_the_demo_and_the_corpus_have_one_digest_in_every_variant",
    ),
    Row(
        "kernels and instruction sets, native",
        "the same corpus in native arithmetic, with another BLAS kernel, instruction set or thread count",
        "x86-64, NumPy with OpenBLAS, more than one choice; where there is none the row is not exercised",
        "never",
        "kernels add in different orders, and exp and log have other code for other registers; some pairs agree, "
        "never all",
        "parity_tests/test_variety.py::test_native_bits_differ_between_the_variants_so_that_they_were_exercised",
    ),
    Row(
        "batch",
        "a row of a product or a sum, with the same row in another batch",
        "reproducible arithmetic, float32",
        "bitwise",
        "a correctly rounded sum does not depend on what else is computed",
        "parity_tests/test_arithmetic.py::test_matmul_does_not_depend_on_order_batch_or_side",
    ),
    Row(
        "streams",
        "draws of numpy_ref.rng, with torch's CPU generator in the same state",
        "uniform, permutation, integers, Bernoulli",
        "bitwise",
        "one engine, and the same words made into numbers in the same way",
        "parity_tests/test_rng.py::test_every_draw_is_torchs_at_any_place_of_a_stream",
    ),
    Row(
        "weights only",
        "a run resumed from weights only, with one that never stopped",
        "at least one more step",
        "never",
        "moments, t, schedule, order, position and dropout start anew",
        "parity_tests/test_laws.py::test_a_resume_from_weights_only_is_another_run",
    ),
    Row(
        "lost state",
        "a resume that loses one state, with a whole one",
        "a save point at which that state differs from a fresh run's, and at least one more step",
        "never",
        "every leaf of RunState is one that training reads",
        "parity_tests/test_laws.py::test_each_lost_state_is_caught_and_named",
    ),
    Row(
        "other seed",
        "a resume that goes on with another seed, with a whole one",
        "at least one more step with shuffled data",
        "never",
        "the streams are functions of the seed",
        "parity_tests/test_laws.py::test_a_resume_with_another_seed_is_caught",
    ),
    Row(
        "gradients",
        "gradients of the model, with central differences",
        "native arithmetic, float64, differences of 2**-17, losses of order 1, no unit near its kink",
        "within",
        "truncation h**2/6 times the third derivative (2**-34 times a factor taken as 16), rounding 2**-53/h = 2**-36",
        "parity_tests/test_model.py::test_gradients_equal_central_differences",
        Tolerance(relative=2.0**-30, absolute=2.0**-30),
    ),
    Row(
        "exact steps",
        "three steps of an optimizer in float32, with the same steps in exact rationals",
        "gradients of order 1, learning rate at most 1/8, no small divisor but eps",
        "within",
        "three steps, each of at most 3 roundings of the weight itself, and 8 of a displacement of at most 6/8 (SGD; "
        "Adam: 16 of 1/8)",
        "parity_tests/test_optim.py::test_steps_of_sgd_equal_exact_rationals",
        Tolerance(relative=9 * 2.0**-24, absolute=18 * 2.0**-24),
    ),
)


def row_named(name: str) -> Row:
    """The row of that name.

    Raises:
        KeyError: there is none.
    """
    return {row.name: row for row in ROWS}[name]


def row_for(saved: Mapping[str, Any], now: Mapping[str, Any], *, arithmetic: str) -> Row:
    """The row that relates a run saved in one environment, and resumed in another, to one that never stopped.

    Args:
        saved: the environment in the checkpoint.
        now: the one that goes on, from `environment` of the package that resumes.
        arithmetic: of the run, "reproducible" or "native".

    Example:
        >>> here = environment()
        >>> row_for(here, here, arithmetic="native").name
        'full resume, native'
        >>> row_for(here | {"machine": "another"}, here, arithmetic="reproducible").name
        'full resume'
    """
    ends = [end.get("torch") or {} for end in (saved, now)]
    packages = ["torch" in end for end in (saved, now)]
    devices = [end.get("device", "cpu") for end in ends]
    if arithmetic == "reproducible":
        if "cuda" in devices:
            return row_named("CUDA")
        if packages[0] != packages[1]:
            return row_named("saved in one, resumed in the other")
        return row_named("full resume, port" if packages[1] else "full resume")
    if packages[0] != packages[1] or devices[0] != devices[1]:
        return row_named("CUDA, native" if "cuda" in devices else "NumPy against PyTorch, native")
    if dict(saved) == dict(now):
        return row_named("CUDA resume" if devices[1] == "cuda" else "full resume, native")
    return row_named("full resume, native, elsewhere")


def environment() -> dict[str, Any]:
    """What the bits of native arithmetic may depend on, as JSON values; recorded in every checkpoint."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    blas = config["Build Dependencies"]["blas"]
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS")
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "blas": f"{blas.get('name')} {blas.get('version')}",
        "system": platform.system(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "simd": config.get("SIMD Extensions", {}).get("found", []),
        "threads": {name: os.environ[name] for name in threads if name in os.environ},
    }
