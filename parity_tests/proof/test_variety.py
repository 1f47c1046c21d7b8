"""One set of bits with every thread count, BLAS kernel, instruction set and hash seed that this machine can offer.

Each variant is a process of its own that computes the demo's run and the corpus, reproducible and native. Where native
arithmetic shows the same bits in all variants of a group, the group has not been exercised, and its test says so.
"""

import json
import os
import platform
import re
import sys
from functools import lru_cache, partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from numpy_ref.arithmetic import fixedpoint
from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.proof.equivalence import digest
from parity_tests.arithmetic import corpus
from parity_tests.commands import ROOT, python
from parity_tests.oracles import exact_function, exact_matmul, exact_sum, same_bytes

CORES = (  # what OPENBLAS_CORETYPE may name; a build has kernels for some of them, and takes a near one for others
    *("Prescott", "Core2", "Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX", "Cooperlake", "SapphireRapids"),
    *("ARMV8", "CORTEXA57", "NEOVERSEN1", "NEOVERSEV1", "VORTEX"),
)
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
PROBE = (
    "import numpy as np\n"
    "for dtype in (np.float64, np.float32):\n"
    "    a = np.ones((70, 70), dtype)\n"
    "    assert (a @ a @ a[0])[0] == 70 * (a[0] @ a[0])\n"
)
OPERATIONS = ("matmul", "sum", "dot", "exp", "log", "sqrt")
X86 = platform.machine().lower() in ("x86_64", "amd64")


def instruction_sets() -> list[str]:
    """The sets beyond its baseline that NumPy was built for and this processor has, each needing those before it."""
    config: dict[str, Any] = np.show_config(mode="dicts")  # type: ignore[assignment]
    return list(config.get("SIMD Extensions", {}).get("found", []))


def kernel(core: str) -> str | None:
    """The kernels that OpenBLAS takes for the name of a core; None where there are none or they cannot run here."""
    probe = python("-c", PROBE, cwd=ROOT, **ONE_THREAD, OPENBLAS_CORETYPE=core, OPENBLAS_VERBOSE="2")
    if probe.returncode or "not found" in probe.stdout + probe.stderr:  # an illegal instruction ends a process
        return None
    said = re.findall(r"^Core: (\S+)", probe.stdout + probe.stderr, re.MULTILINE)
    return said[-1] if said else None


@lru_cache
def kernels() -> dict[str, str]:
    """A name of a core for each of the different kernels that can run here."""
    return {taken: core for core in reversed(CORES) if (taken := kernel(core)) is not None}


@lru_cache
def variants() -> dict[str, dict[str, dict[str, str]]]:
    """Environments by group and name, all with one thread unless they say otherwise."""
    sets = instruction_sets()
    lost = [" ".join(sets[i:]) for i in sorted({0, len(sets) // 3, 2 * len(sets) // 3, len(sets) - 1}) if sets]
    without = {f"without {features}": {"NPY_DISABLE_CPU_FEATURES": features} for features in lost}
    threads = {f"{n} threads": dict.fromkeys(ONE_THREAD, str(n)) for n in (2, 4)}
    cores = {f"{taken} kernels": {"OPENBLAS_CORETYPE": core} for taken, core in kernels().items()}
    groups = {
        "threads": threads,
        "kernels": cores,
        "instruction sets": without,
        "hash seed": {f"hash seed {n}": {"PYTHONHASHSEED": str(n)} for n in (0, 1)},
    }
    if cores and without:
        (slowest, core), (bare, features) = list(cores.items())[-1], next(iter(without.items()))
        groups["together"] = {f"2 threads, {slowest}, {bare}": threads["2 threads"] | core | features}
    return {"as it is": {"as it is": {}}} | groups


@lru_cache
def found(group: str, name: str) -> dict[str, Any]:
    """What a process finds in a variant."""
    process = python(
        "-m", "parity_tests.arithmetic.corpus", "--json", cwd=ROOT, **(ONE_THREAD | variants()[group][name])
    )
    assert (process.returncode, process.stderr) == (0, ""), name
    return json.loads(process.stdout)


def exercised(group: str) -> dict[str, list[str]]:
    """For each variant of a group, the operations on whose native bits it differs from the process as it is."""
    usual = found("as it is", "as it is")["native"]
    return {
        name: sorted(
            {case.split("/")[0] for case, value in found(group, name)["native"].items() if value != usual[case]}
        )
        for name in variants()[group]
    }


OF_A_CAMPAIGN = ["threads", "kernels", "instruction sets", "hash seed"]


@pytest.mark.parametrize(
    "group", ["as it is", "together", *(pytest.param(group, marks=pytest.mark.campaign) for group in OF_A_CAMPAIGN)]
)
def test_the_demo_and_the_corpus_have_one_digest_in_every_variant(group):
    if not variants().get(group):
        pytest.skip(f"{group}: not exercised, this machine and this NumPy offer no second choice")
    assert {name: corpus.differences(found(group, name)) for name in variants()[group]} == {
        n: [] for n in variants()[group]
    }


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("group", "operations"),
    [("threads", {"dot", "matmul"}), ("kernels", {"matmul"}), ("instruction sets", {"exp", "log"})],
)
def test_native_bits_differ_between_the_variants_so_that_they_were_exercised(group, operations):
    processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    choices = {
        "threads": processors if kernels() else 1,  # OpenBLAS is known to split long work among threads
        "kernels": len(kernels()),
        "instruction sets": 1 + len(instruction_sets()),
    }
    if choices[group] == 1 or not variants()[group]:
        pytest.skip(f"{group}: not exercised, only one choice can run here")
    differing = exercised(group)
    sys.stdout.writelines(
        f"{name}: native bits differ in {', '.join(ops) or 'nothing'}\n" for name, ops in differing.items()
    )
    if not X86 and not any(differing.values()):
        pytest.skip(f"{group}: not exercised, native arithmetic has the same bits in every variant")
    assert any(operations & set(differ) for differ in differing.values()), differing


@pytest.mark.campaign
def test_two_processes_of_one_variant_have_the_same_native_bits():
    again = found.__wrapped__("as it is", "as it is")
    assert again["native"] == found("as it is", "as it is")["native"]


def test_a_kernel_that_cannot_run_is_left_out(monkeypatch):
    class Ended:
        returncode, stdout, stderr = -4, "", "Core: SkylakeX\n"  # SIGILL, after OpenBLAS has named its choice

    class Fine(Ended):
        returncode = 0

    class Unknown(Ended):
        returncode, stderr = 0, "Core not found: VORTEX\nCore: SkylakeX\n"

    class Other(Ended):
        returncode, stderr = 0, ""

    answers = {}
    for process in (Ended, Fine, Unknown, Other):
        monkeypatch.setattr("parity_tests.proof.test_variety.python", lambda *words, process=process, **more: process)
        answers[process] = kernel("SkylakeX")
    assert answers == {Ended: None, Fine: "SkylakeX", Unknown: None, Other: None}


def test_a_digest_that_differs_is_seen_and_named():
    report = found("as it is", "as it is")
    assert corpus.differences(report) == []
    case = "matmul/float32/normal/float32/64"
    assert corpus.differences(report | {"cases": report["cases"] | {case: "0" * 16}}) == [case]
    assert corpus.differences(report | {"results": "0"}) == ["results"]
    assert corpus.differences(report | {"inputs": "0"}) == ["inputs"]
    assert corpus.differences(report | {"demo": "0"}) == ["demo"]
    assert corpus.differences(report | {"cases": report["native"]})[:1] != []


# The corpus


def test_the_corpus_has_every_type_kind_and_width():
    arrays = corpus.inputs()
    listed = list(corpus.cases(arrays))
    assert len({case.name for case in listed}) == len(listed)
    assert {case.operation for case in listed} == set(OPERATIONS)
    assert {case.kind for case in listed} == {"float16", "bfloat16", "float32", "float64"}
    widths = {case.arrays[0].shape[1] for case in listed if case.operation == "matmul"}
    assert widths >= {1, 7, 64, 129, 1003}
    assert {case.name for case in listed} == set(corpus.record()["cases"])
    assert corpus.record()["reason"].strip()
    assert all(not a.dtype.hasobject for a in arrays.values())
    special = arrays["float32/special/a"]
    assert np.isnan(special).any()
    assert np.isinf(special).any()
    assert (np.signbit(special) & (special == 0)).any()
    assert ((arrays["float32/subnormal/a"] != 0) & (np.abs(arrays["float32/subnormal/a"]) < 2.0**-126)).any()


def test_the_command_compares_with_the_record_and_says_what_differs(capsys, monkeypatch, tmp_path):
    assert corpus.main([]) == 0
    assert "as recorded" in capsys.readouterr().out
    changed = corpus.record()
    changed["cases"]["exp/float32/normal/float32"] = "0" * 16
    monkeypatch.setattr(corpus, "RECORD", tmp_path / "corpus.json")
    corpus.RECORD.write_text(json.dumps(changed))
    assert corpus.main([]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == ["  exp/float32/normal/float32 differs"]


def test_the_record_is_made_anew_with_a_reason_only(capsys, monkeypatch, tmp_path):
    for name in ("RECORD", "INPUTS"):
        monkeypatch.setattr(corpus, name, tmp_path / getattr(corpus, name).name)
    for words in (["--regenerate"], ["--regenerate", " "], ["--anew"]):
        assert corpus.main(words) == 2
        assert "REASON" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert corpus.main(["--regenerate", "a test"]) == 0
    assert corpus.record()["reason"] == "a test"
    assert corpus.record()["inputs"] == digest(corpus.inputs())


def test_the_recorded_products_and_sums_are_the_exact_ones():
    """The record was made by the code that it guards; rationals that know nothing of it give the same bits."""
    arrays = corpus.inputs()
    found_here = corpus.results(arithmetic, arrays)
    assert corpus.case_digests(found_here) == corpus.record()["cases"]
    for case in corpus.cases(arrays):
        if case.arrays[0].shape[-1] > 64 or case.operation not in ("matmul", "sum", "dot"):
            continue
        a = case.arrays[0]
        if case.operation == "matmul":
            expected = exact_matmul(a, case.arrays[1], case.kind)
        elif case.operation == "dot":
            expected = np.asarray(exact_sum(list(zip(a.tolist(), case.arrays[1].tolist(), strict=True)), case.kind))
        else:
            rows = [a.ravel()] if case.axis is None else list(np.moveaxis(a, case.axis, -1))
            sums = [exact_sum([(x, 1.0) for x in row.tolist()], case.kind) for row in rows]
            expected = np.array(sums).reshape(() if case.axis is None else (len(rows),))
        assert same_bytes(found_here[case.name], expected), case.name


@pytest.mark.campaign
def test_the_recorded_long_products_and_sums_are_the_exact_ones():
    """By the definition in whole numbers; rationals would take long."""
    arrays = corpus.inputs()
    found_here = corpus.results(arithmetic, arrays)
    for case in corpus.cases(arrays):
        a, answer = case.arrays[0], found_here[case.name]
        if case.operation not in ("matmul", "sum", "dot") or a.shape[-1] <= 64 or not np.isfinite(a).all():
            continue
        if case.operation == "sum":
            rows = [a.ravel()] if case.axis is None else list(np.moveaxis(a, case.axis, -1))
            expected = np.array([fixedpoint.total(row.tolist(), case.kind) for row in rows])
        else:
            a, b = np.atleast_2d(a), case.arrays[1].reshape(a.shape[-1], -1)
            expected = np.array(fixedpoint.matmul(a.tolist(), b.T.tolist(), case.kind))
        assert same_bytes(answer, expected.astype(answer.dtype).reshape(answer.shape)), case.name


@pytest.mark.campaign
def test_the_recorded_functions_are_the_exact_ones():
    """Every eleventh number with a finite result; in float64 the recipe is what is recorded."""
    arrays = corpus.inputs()
    found_here = corpus.results(arithmetic, arrays)
    for case in corpus.cases(arrays):
        if case.operation not in ("exp", "log", "sqrt") or (case.kind == "float64" and case.operation != "sqrt"):
            continue
        given, answers = case.arrays[0].ravel()[::11], found_here[case.name].ravel()[::11]
        for x, y in zip(given, answers, strict=True):
            if np.isfinite(x) and np.isfinite(y) and abs(x) < 1e4:
                assert y == exact_function(case.operation, x, case.kind), (case.name, x)


@pytest.mark.parametrize("name", ["matmul", "sum", "dot", "exp", "log"])
def test_an_implementation_with_one_native_operation_is_seen(name):
    mixed = SimpleNamespace(**{each: getattr(arithmetic, each) for each in OPERATIONS if each != "dot"})
    mixed.dot = partial(corpus.inner_product, arithmetic)
    setattr(mixed, name, getattr(corpus.Native(arithmetic.NATIVE), name))
    with np.errstate(all="ignore"):
        digests = corpus.case_digests(corpus.results(mixed, corpus.inputs()))
    wrong = {case for case, value in corpus.record()["cases"].items() if digests[case] != value}
    assert wrong
    assert {case.split("/")[0] for case in wrong} == {name}
