"""One set of bits in the port, too, with every thread count, instruction set, kernel and hash seed of this machine.

`torch_port.proof.variants` trains in a process of its own for each variant. Native arithmetic, and functions of torch
that the port avoids, show that the variants are different machines to the numbers; where they do not, a test says so.
"""

import json
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numpy_ref.arithmetic import operations as reference
from numpy_ref.cli import demo
from numpy_ref.data import load_data
from numpy_ref.proof import boundary
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.train import RunState
from parity_tests.arithmetic import corpus
from parity_tests.commands import ROOT, python
from torch_port.proof import variants

torch = pytest.importorskip("torch", reason="torch is missing: the port cannot be run")
import torch_port
from torch_port import train
from torch_port.arithmetic import operations as arithmetic

PACKAGES = ("numpy_ref", "torch_port")
OPERATIONS = ("matmul", "sum", "dot", "exp", "log", "sqrt")
CORPUS = (variants.USUAL, "4 threads", "ATen default", "MKL COMPATIBLE")
FIRST = """
import torch
from torch_port import arithmetic
from parity_tests.arithmetic.corpus import Port
from parity_tests.proof.test_variety_port import digest, large
assert torch.get_num_threads() == 4
print(digest(large(Port(arithmetic))))
"""


def settings(name: str) -> variants.Environment:
    """The environment of a variant of the port."""
    return {name: chosen for group in variants.variants("torch_port").values() for name, chosen in group.items()}[name]


@lru_cache
def found() -> dict[str, dict[str, Any]]:
    """What a process finds by the port in some of the variants that are here; two processes at a time."""

    def report(name: str) -> dict[str, Any]:
        words = ("-m", "parity_tests.arithmetic.corpus", "--json", "torch_port")
        process = python(*words, cwd=ROOT, **variants.ONE_THREAD | settings(name))
        assert (process.returncode, process.stderr) == (0, ""), name
        return json.loads(process.stdout)

    names = [name for name in CORPUS if name in variants.demo_digests("torch_port", "reproducible")]
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(names, pool.map(report, names), strict=True))


def large(implementation: Any) -> dict[str, np.ndarray]:
    """Functions, sums and products large enough for several threads, a square root first."""
    x = np.random.default_rng(6).uniform(0.5, 2, 1 << 18)
    narrow = x.astype(np.float32)
    a = narrow.reshape(512, 512)
    return {
        "sqrt": implementation.sqrt(narrow),
        "wide sqrt": implementation.sqrt(x),
        "exp": implementation.exp(narrow),
        "log": implementation.log(narrow),
        "sum": implementation.sum(narrow, None),
        "matmul": implementation.matmul(a, a),
    }


# Reproducible arithmetic


@pytest.mark.campaign
@pytest.mark.parametrize("package", PACKAGES)
def test_the_demo_has_one_digest_in_every_variant(package):
    digests = variants.demo_digests(package, "reproducible")
    sys.stdout.writelines(f"{name}\n" for name in digests)
    assert digests == dict.fromkeys(digests, demo.DIGEST)
    assert {variants.USUAL, "2 threads", "4 threads", "hash seed 1"} <= digests.keys()


@pytest.mark.campaign
def test_the_recorded_corpus_holds_for_the_port_in_other_variants():
    assert {name: corpus.differences(report) for name, report in found().items()} == {name: [] for name in found()}
    assert {variants.USUAL, "4 threads"} <= found().keys()


def test_another_number_of_threads_after_a_resume_changes_nothing(tmp_path):
    data, before = load_data("digits"), torch.get_num_threads()
    try:
        torch.set_num_threads(4)
        run = torch_port.init_run(demo.CONFIG, data)
        for threads, steps in ((1, 20), (3, 13), (1, demo.STEPS - 33)):
            torch_port.save_checkpoint(tmp_path / "run.safetensors", run)
            torch.set_num_threads(threads)
            run = torch_port.resume_from_full_checkpoint(tmp_path / "run.safetensors", data)
            run = torch_port.train_n_steps(run, data, steps)
    finally:
        torch.set_num_threads(before)
    assert digest(torch_port.snapshot(run)) == demo.DIGEST


def test_a_process_whose_first_computation_runs_on_several_threads_has_the_same_bits():
    """MKL chooses a vector function's kernel at its first call; from several threads, some may take a coarse one."""
    process = python("-c", FIRST, cwd=ROOT, **variants.ONE_THREAD | settings("4 threads"))
    assert (process.returncode, process.stderr) == (0, "")
    assert process.stdout.strip() == digest(large(corpus.Port(arithmetic))) == digest(large(reference))


# Native arithmetic


@pytest.mark.campaign
@pytest.mark.parametrize("group", ["threads", "instruction sets", "kernels"])
def test_native_bits_differ_between_the_variants_so_that_they_were_exercised(group):
    usual = found()[variants.USUAL]["native"]
    differing = {
        name: sorted({case.split("/")[0] for case, value in found()[name]["native"].items() if value != usual[case]})
        for name in variants.variants("torch_port")[group]
        if name in found()
    }
    sys.stdout.writelines(
        f"{name}: native bits differ in {', '.join(ops) or 'nothing'}\n" for name, ops in differing.items()
    )
    if not any(differing.values()):
        pytest.skip(f"{group}: not exercised, native arithmetic has the same bits in every variant")


@pytest.mark.campaign
@pytest.mark.parametrize("package", PACKAGES)
def test_native_runs_in_other_variants_are_within_their_row(package):
    states = variants.short_run_states(package)
    judge_native(states[variants.USUAL], states, "full resume, native, elsewhere")


@pytest.mark.campaign
def test_native_runs_of_the_two_packages_are_within_their_row():
    judge_native(
        variants.short_run_states("numpy_ref")[variants.USUAL],
        variants.short_run_states("torch_port"),
        "NumPy against PyTorch, native",
    )


def judge_native(usual: RunState, states: dict[str, RunState], row: str) -> None:
    """All states are near one, and not all the same; nearer than any that went through half precision."""
    tolerance = boundary.row_named(row).tolerance
    verdicts = {name: compare(usual, state, tolerance=tolerance) for name, state in states.items()}
    sys.stdout.writelines(f"{name}: {verdict}\n" for name, verdict in verdicts.items())
    assert all(verdict.holds for verdict in verdicts.values()), verdicts
    halved = {name: array.astype(np.float16).astype(array.dtype) for name, array in usual.model.items()}
    assert not compare(usual, usual._replace(model=halved), tolerance=tolerance).holds
    if all(verdict.relation == "bitwise" for verdict in verdicts.values()):
        pytest.skip(f"{row}: not exercised, native arithmetic has the same bits in every variant")


# Mutants


@pytest.mark.parametrize("name", OPERATIONS)
def test_the_corpus_sees_an_operation_that_is_torchs_own(name):
    with np.errstate(all="ignore"):
        digests = corpus.case_digests(corpus.results(corpus.implementations("torch_port")[1], corpus.inputs()))
    assert any(digests[case] != value for case, value in corpus.record()["cases"].items() if case.split("/")[0] == name)


@pytest.mark.parametrize("name", ["matmul", "sum", "sqrt", "exp"])  # a logarithm is in the loss alone
def test_the_demo_sees_an_operation_that_is_torchs_own(name, monkeypatch):
    mixed = arithmetic.REPRODUCIBLE._replace(**{name: getattr(arithmetic.NATIVE, name)})
    monkeypatch.setattr(train, "arithmetic_named", lambda name, **_: mixed)
    data = load_data("digits")
    run = torch_port.train_n_steps(torch_port.init_run(demo.CONFIG, data), data, demo.STEPS)
    assert digest(torch_port.snapshot(run)) != demo.DIGEST


# The variants


def test_the_variants_have_names_of_their_own():
    for package in PACKAGES:
        names = [name for group in variants.variants(package).values() for name in group]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("chosen", "answer", "taken"),
    [
        ({}, "", True),
        ({"PYTHONHASHSEED": "1"}, "", True),
        ({"ATEN_CPU_CAPABILITY": "avx2"}, "", True),
        ({"ATEN_CPU_CAPABILITY": "avx512"}, "", False),
        ({"OMP_NUM_THREADS": "2"}, "", True),
        ({"OMP_NUM_THREADS": "4"}, "", False),
        ({"MKL_CBWR": "AVX2"}, "MKL_VERBOSE DGEMM(N,N,64) 1us CNR:AVX2 Dyn:0\n", True),
        ({"MKL_CBWR": "AVX2"}, "MKL_VERBOSE DGEMM(N,N,64) 1us CNR:AUTO Dyn:0\n", False),
        ({"MKL_CBWR": "AVX2"}, "", False),
        ({"OPENBLAS_CORETYPE": "ARMV8"}, "Core: armv8\n", True),
        ({"OPENBLAS_CORETYPE": "ARMV8"}, "Core not found: ARMV8\nCore: Haswell\n", False),
        ({"OPENBLAS_CORETYPE": "ARMV8"}, "", False),
    ],
)
def test_a_variant_counts_when_its_library_took_it(chosen, answer, taken):
    checkpoint: Any = SimpleNamespace(environment={"torch": {"capability": "AVX2", "threads": 2}})
    assert variants._taken(chosen, checkpoint, answer) is taken


def test_without_torch_a_thread_count_is_taken_on_trust():
    checkpoint: Any = SimpleNamespace(environment={})
    assert variants._taken({"OMP_NUM_THREADS": "4"}, checkpoint, "")


def test_kernels_that_the_processor_cannot_run_are_left_out_and_other_ends_are_errors(monkeypatch):
    ended = SimpleNamespace(returncode=-signal.SIGILL, stdout="", stderr="")
    monkeypatch.setattr(variants.subprocess, "run", lambda *words, **more: ended)
    assert variants._states_in("numpy_ref", {}) == {}
    ended.returncode, ended.stderr = -signal.SIGSEGV, "a fault"
    with pytest.raises(RuntimeError, match=r"(?s)numpy_ref with \{'A': '1'\}.*a fault"):
        variants._states_in("numpy_ref", {"A": "1"})


def test_a_process_that_fails_says_why():
    with pytest.raises(RuntimeError, match=r"(?s)expected a process that trains.*PYTHONHASHSEED must be"):
        variants._states_in("numpy_ref", {"PYTHONHASHSEED": "none"})
