"""The declared table: every row has its evidence, holds where it can be measured, and no tolerance stands elsewhere."""

import ast
import json
import math
import re
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest

import numpy_ref
from numpy_ref import model as network
from numpy_ref.checkpoint.save_and_resume import read_checkpoint, save_checkpoint
from numpy_ref.cli import demo
from numpy_ref.config import RunConfig
from numpy_ref.exercises import EXERCISES
from numpy_ref.machine import environment
from numpy_ref.proof import boundary, laws
from numpy_ref.proof.boundary import (
    KINDS,
    ROWS,
    SHORT_KINK,
    SHORT_RUN,
    SHORT_SIZES,
    SHORT_STEPS,
    Row,
    row_for,
    row_named,
    short_run_drift,
)
from numpy_ref.proof.equivalence import Tolerance
from numpy_ref.train import init_run
from parity_tests.commands import ROOT, SOURCES
from parity_tests.proof.mutants import losing, resuming
from parity_tests.strategies import small_data
from parity_tests.trainer.updates import plain_port

ALLOWANCES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "tolerance", "relative", "absolute", "decimal"}
JUDGES = {"approx", "isclose", "allclose", "assert_allclose", "assert_close", "assert_almost_equal"}
JUDGES |= {"assert_array_almost_equal", "assert_array_max_ulp", "assert_array_almost_equal_nulp"}
# These test the comparison itself, or what takes a tolerance, and so make some; this file makes faulty rows.
OF_TOLERANCES = ("test_equivalence.py", "test_grader.py", "test_boundary.py")


JUDGED = [path for path in sorted((SOURCES / "parity_tests").glob("**/*.py")) if path.name not in OF_TOLERANCES]


def fault_of_evidence(row):
    """What is wrong with the evidence of a row, "" if nothing is."""
    file, separator, name = row.evidence.partition("::")
    path = SOURCES / file
    if not separator or not path.is_file():
        return f"{row.name}: no file {file}"
    tests = {f.name: f for f in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(f, ast.FunctionDef)}
    if not name.startswith("test_") or name not in tests:
        return f"{row.name}: no test {name} in {file}"
    marks = " ".join(ast.unparse(mark) for mark in tests[name].decorator_list)
    if re.search(r"\bskip\b|\bxfail\b", marks):
        return f"{row.name}: {name} is not run"
    named = repr(row.name) in ast.unparse(tests[name]) and "row_named(" in path.read_text(encoding="utf-8")
    if (row.tolerance or row.false_alarms) and not named:
        return f"{row.name}: {name} does not take its number from the row"
    return ""


def fault_of_numbers(row):
    """Exactly the rows of the kind "within" carry a tolerance, and it allows something; the statistical ones a rate."""
    if row.kind not in KINDS:
        return f"{row.name}: kind {row.kind!r}"
    if (row.kind == "within") != (row.tolerance is not None):
        return f"{row.name}: {row.kind} with tolerance {row.tolerance}"
    if row.tolerance is not None and not (all(0 <= x < 1 for x in row.tolerance) and any(row.tolerance)):
        return f"{row.name}: an allowance of {row.tolerance}"
    if row.loose and row.tolerance is None:
        return f"{row.name}: nothing is allowed, and yet {row.loose!r} is loose"
    if (row.kind == "statistical") != (row.false_alarms is not None):
        return f"{row.name}: {row.kind} with false alarms {row.false_alarms}"
    if row.false_alarms is not None and not 0 < row.false_alarms <= 0.01:
        return f"{row.name}: false alarms {row.false_alarms}"
    return ""


def fault_of_allowance(row, share):
    """More than a hundredth of an allowance is used, or the row says what makes it loose."""
    return "" if share > 1 / 100 or row.loose else f"{row.name}: {share:.2%} of the allowance is used, nothing is loose"


def tolerances_written(source):
    """The lines of a source that write a tolerance, or trust the default one of somebody else's comparison."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call):
            continue
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        numbers = [
            keyword
            for keyword in node.keywords
            if keyword.arg in ALLOWANCES
            and any(
                isinstance(n, ast.Constant) and n.value is not None and not isinstance(n.value, str)
                for n in ast.walk(keyword.value)
            )
        ]
        if name == "Tolerance" or name in JUDGES or numbers:
            lines.append(node.lineno)
    return sorted(lines)


def test_every_row_has_a_test_as_its_evidence():
    assert [fault for row in ROWS if (fault := fault_of_evidence(row))] == []


SOUND = Row(
    "sound",
    "a with b",
    "always",
    "bitwise",
    "so it is",
    "parity_tests/proof/test_boundary.py::test_every_row_has_a_test_as_its_evidence",
)


@pytest.mark.parametrize(
    "evidence",
    [
        "",
        "parity_tests/proof/test_boundary.py",
        "parity_tests/test_nowhere.py::test_names_are_unique",
        "parity_tests/proof/test_boundary.py::test_that_nobody_wrote",
        "parity_tests/proof/test_boundary.py::tolerances_written",
        "parity_tests::test_names_are_unique",
    ],
)
def test_a_row_without_evidence_is_found(evidence):
    assert fault_of_evidence(SOUND) == ""
    assert fault_of_evidence(SOUND._replace(evidence=evidence)) != ""


def test_a_row_whose_evidence_ignores_its_tolerance_is_found():
    assert "does not take" in fault_of_evidence(SOUND._replace(kind="within", tolerance=Tolerance(0.1, 0.1)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_exactly_the_rows_within_carry_a_tolerance_and_the_statistical_ones_a_rate_of_false_alarms(row):
    assert fault_of_numbers(row) == ""
    some = Tolerance(0.5, 0.5)
    for mutant in (
        row._replace(kind="about"),
        row._replace(tolerance=None if row.tolerance else some),
        row._replace(kind="within", tolerance=Tolerance(0.0, 0.0)),
        row._replace(kind="within", tolerance=Tolerance(float("nan"), 0.5)),
        row._replace(kind="within", tolerance=Tolerance(0.5, float("inf"))),
        row._replace(false_alarms=None if row.false_alarms else 0.01),
        row._replace(kind="statistical", tolerance=None, loose="", false_alarms=0.5),
        row._replace(kind="never", tolerance=None, loose="a sum", false_alarms=None),
    ):
        assert fault_of_numbers(mutant) != ""


def test_names_are_unique_and_no_field_is_empty():
    assert len({row.name for row in ROWS}) == len(ROWS) > 30
    for row in ROWS:
        assert all(text.strip() == text != "" for text in row[:6]), row


def test_a_row_is_found_by_its_name_and_an_unknown_name_is_an_error():
    assert all(row_named(row.name) is row for row in ROWS)
    with pytest.raises(KeyError):
        row_named("no such row")


def test_no_test_writes_a_tolerance():
    found = {path.name: tolerances_written(path.read_text(encoding="utf-8")) for path in JUDGED}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_only_the_table_makes_tolerances_in_the_packages_and_exercises_for_what_learners_write():
    paths = [path for package in ("numpy_ref", "torch_port") for path in (ROOT / package).glob("**/*.py")]
    makers = [path for path in paths if re.search(r"\bTolerance\((?!NamedTuple)", path.read_text(encoding="utf-8"))]
    exercises = {ROOT / "numpy_ref" / "exercises" / f"{name}.py" for name in EXERCISES}
    assert set(makers) - exercises == {ROOT / "numpy_ref" / "proof" / "boundary.py"}


@pytest.mark.parametrize(
    "line",
    [
        "np.testing.assert_allclose(a, b)",
        "np.allclose(a, b, rtol=1e-5)",
        "assert a == pytest.approx(b)",
        "assert a == approx(b, 2**-20)",
        "compare(a, b, tolerance=Tolerance(1e-3, 0))",
        "compare(a, b, tolerance=equivalence.Tolerance(*numbers))",
        "close(a, b, atol=-2.0**-20)",
        "judge(a, b, rel_tol=f(1e-6))",
        "torch.testing.assert_close(a, b)",
    ],
)
def test_a_tolerance_in_a_test_is_found(line):
    assert set(tolerances_written(f"x = 1\n{line}\n")) == {2}


@pytest.mark.parametrize(
    "line",
    ["compare(a, b)", "compare(a, b, tolerance=row_named('gradients').tolerance)", "f(tolerance=None)", "abs(a - b)"],
)
def test_a_tolerance_from_the_table_passes(line):
    assert tolerances_written(line) == []


def test_the_environment_is_plain_json_and_stands_in_every_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Haswell")
    here = environment()
    assert json.loads(json.dumps(here, allow_nan=False)) == here
    assert {"python", "numpy", "blas", "system", "machine", "processor", "cpus", "simd"} <= here.keys()
    assert here["threads"]["OMP_NUM_THREADS"] == "3"
    assert here["kernels"]["OPENBLAS_CORETYPE"] == "Haswell"
    assert here["cpus"] >= 1
    assert here["blas"].split()
    assert "None" not in here["blas"]
    run = init_run(RunConfig(hidden=(3,)), small_data())
    save_checkpoint(tmp_path / "a.safetensors", run)
    assert read_checkpoint(tmp_path / "a.safetensors").environment == here
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    save_checkpoint(tmp_path / "b.safetensors", run)
    assert read_checkpoint(tmp_path / "b.safetensors").environment == environment() != here


# Which row applies


HERE = {"python": "3.11.7", "numpy": "2.4", "machine": "x86_64", "cpus": 2, "threads": {}}
ONE = HERE | {"threads": {"OMP_NUM_THREADS": "1"}}
CPU = HERE | {"torch": {"version": "2.13", "device": "cpu", "threads": 2, "deterministic": False}}
GPU = HERE | {"torch": {"version": "2.13", "device": "cuda", "threads": 2, "name": "A", "deterministic": True}}


def other(end, **changes):
    """The environment with another part; torch's parts by a name with an underscore before."""
    parts = {name[1:]: value for name, value in changes.items() if name[0] == "_"}
    changed = end | {name: value for name, value in changes.items() if name[0] != "_"}
    return changed | ({"torch": end["torch"] | parts} if parts else {})


@pytest.mark.parametrize(
    ("saved", "now", "reproducible", "native"),
    [
        (HERE, HERE, "full resume", "full resume, native"),
        (HERE, other(HERE, numpy="2.5"), "full resume", "full resume, native, elsewhere"),
        (HERE, other(HERE, machine="arm64"), "full resume", "full resume, native, elsewhere"),
        (HERE, ONE, "full resume", "full resume, native, elsewhere"),
        (HERE, other(HERE, python="3.12"), "full resume", "full resume, native"),
        (HERE, other(HERE, cpus=4), "full resume", "full resume, native, elsewhere"),
        (ONE, other(ONE, cpus=4), "full resume", "full resume, native"),
        (
            other(ONE, threads={"MKL_NUM_THREADS": "1"}),
            other(ONE, threads={"MKL_NUM_THREADS": "1"}, cpus=4),
            "full resume",
            "full resume, native, elsewhere",
        ),
        (
            other(ONE, threads={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}),
            other(ONE, threads={"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "4"}, cpus=4),
            "full resume",
            "full resume, native, elsewhere",
        ),
        (CPU, CPU, "full resume, port", "full resume, native"),
        (CPU, other(CPU, cpus=4, python="3.12"), "full resume, port", "full resume, native"),
        (CPU, other(CPU, _threads=1), "full resume, port", "full resume, native, elsewhere"),
        (CPU, other(CPU, _deterministic=True), "full resume, port", "full resume, native, elsewhere"),
        (HERE, CPU, "saved in one, resumed in the other", "NumPy against PyTorch, native"),
        (CPU, HERE, "saved in one, resumed in the other", "NumPy against PyTorch, native"),
        (GPU, GPU, "CUDA", "CUDA resume"),
        (GPU, other(GPU, _name="B"), "CUDA", "CUDA, native"),
        (other(GPU, _deterministic=False), other(GPU, _deterministic=False), "CUDA", "CUDA, native"),
        (GPU, CPU, "CUDA", "CUDA, native"),
        (CPU, GPU, "CUDA", "CUDA, native"),
        (HERE, GPU, "CUDA", "CUDA, native"),
        (GPU, HERE, "CUDA", "CUDA, native"),
        (HERE, {}, "full resume", "full resume, native, elsewhere"),
    ],
)
def test_the_row_of_a_resume_follows_from_the_two_environments(saved, now, reproducible, native):
    assert row_for(saved, now, arithmetic="reproducible").name == reproducible
    assert row_for(saved, now, arithmetic="native").name == native


# The short run


def sizes_and_kink():
    """What the short run's sizes are at most, and how near a hidden unit comes to its kink."""
    data = numpy_ref.load_data("digits")
    config = replace(SHORT_RUN, arithmetic="reproducible")
    moments = list(laws.follow(numpy_ref, init_run(config, data), data, SHORT_STEPS))
    found, kink = dict.fromkeys(SHORT_SIZES._fields, 0.0), np.inf
    for before, after in pairwise(moments):
        w0, b0, w1, b1 = (before.state.model[f"layer{i}.{name}"] for i in (0, 1) for name in ("weight", "bias"))
        x, labels = data.inputs[after.record.samples], data.labels[after.record.samples]
        logits, kept, _ = network.forward(
            before.state.model, x, numpy_ref.arithmetic.operations.REPRODUCIBLE, training=True
        )
        hidden, p = kept[0].last, np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        new = {
            "weight0": max(abs(w0).max(), abs(b0).max()),
            "weight1": max(abs(w1).max(), abs(b1).max()),
            "terms": (x != 0).sum(axis=1).max() + 1,
            "pixels": x.sum(axis=1).max() + 1,
            "product0": (x @ abs(w0).T + abs(b0)).max(),
            "hidden": hidden.sum(axis=1).max() + 1,
            "product1": (hidden @ abs(w1).T + abs(b1)).max(),
            "outward": abs(w1).sum(axis=1).max(),
            "unit": hidden.mean(axis=0).max(),
            "error": abs(p - np.eye(10)[labels]).mean(axis=0).max(),
            "probability": p.max(),
        }
        found = {name: max(size, float(new[name])) for name, size in found.items()}
        kink = min(kink, float(abs(kept[0].hidden[0].z).min()))
        assert 0 <= x.min() <= x.max() <= 1
    return found, kink


def test_the_short_run_stays_below_the_sizes_that_its_allowance_is_derived_from():
    found, kink = sizes_and_kink()
    sizes = SHORT_SIZES._asdict()
    assert {name for name, size in found.items() if size > sizes[name]} == set()
    assert {name for name, size in found.items() if size < sizes[name] / 2} == set()  # nor are these far too large
    assert kink > SHORT_KINK


def test_the_sizes_bound_what_the_derivation_says_of_gradients():
    s, step, u = SHORT_SIZES, SHORT_STEPS, boundary.U
    slope, drift = 2 * s.probability * (1 - s.probability), short_run_drift()
    a, c = drift + 2 * step * u * s.weight0, drift + 2 * step * u * s.weight1
    logits = s.hidden * c + s.outward * s.pixels * a
    assert slope <= 1 / 3
    assert slope * s.unit + s.error / s.outward <= 1 / 3  # of a weight in the last layer
    assert s.weight1 * logits + 2 * c <= logits / 3  # of one in the first
    assert s.pixels * a + 2 * s.terms * s.product0 * u < SHORT_KINK  # how far a hidden unit can be off
    assert SHORT_RUN.optimizer == "sgd"
    assert SHORT_RUN.momentum == SHORT_RUN.weight_decay == SHORT_RUN.dropout == 0
    assert SHORT_RUN.evaluate_every > SHORT_STEPS  # the best so far is a matter of which loss is smaller


# Measured

CAMPAIGN = pytest.mark.campaign


@pytest.fixture(scope="module")
def measures():
    pytest.importorskip("torch", reason="torch is missing: the rows cannot be measured")
    from torch_port import proof as measures

    return measures


# The compiled row is held in test_stock; the others run many processes.
OF_A_CAMPAIGN = {"compiled against eager", "full resume, native, elsewhere"}
OF_A_CAMPAIGN |= {row.name for row in ROWS if row.name.startswith(("threads", "kernels and instruction sets"))}
MEASURED = [pytest.param(r, id=r.name, marks=[CAMPAIGN] if r.name in OF_A_CAMPAIGN else []) for r in ROWS]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch.compile's own
@pytest.mark.parametrize("row", MEASURED)
def test_every_row_that_this_machine_can_measure_holds_and_no_allowance_is_slack(measures, row):
    from torch_port.proof import check_boundary

    [found] = check_boundary([row.name])
    assert (found.row, found.kind) == (row.name, row.kind)
    if found.holds is None:
        pytest.skip(found.note)
    assert found.holds, found
    assert found.figure
    assert (found.share is not None) == (row.kind == "within")
    if found.share is not None:
        assert fault_of_allowance(row, found.share) == ""


def test_a_slack_allowance_is_found():
    row = row_named("stock Linear")
    assert fault_of_allowance(row, 0.02) == fault_of_allowance(row._replace(loose="a sum"), 0.0) == ""
    assert fault_of_allowance(row, 0.002) != ""


def test_every_row_has_a_measuring_function_and_all_are_asked_in_the_tables_order(measures, monkeypatch):
    from torch_port.proof import check_boundary

    assert set(measures.MEASURES) == {row.name for row in ROWS}
    monkeypatch.setattr(measures, "measure", lambda row: row.name)
    assert list(check_boundary()) == [row.name for row in ROWS]
    assert list(check_boundary(["workers", "batch"])) == ["workers", "batch"]
    assert list(check_boundary([])) == []


def test_unknown_rows_are_refused_at_once_with_the_names_that_there_are(measures):
    from torch_port.proof import check_boundary

    with pytest.raises(ValueError, match=r"found 'a', 'b'\. Rows: 'full resume', .*'exact steps'"):
        check_boundary(["b", "batch", "a"])


def test_what_cannot_be_measured_here_says_why(measures, monkeypatch):
    def absent():
        raise measures.NotHere("no such machine")

    monkeypatch.setitem(measures.MEASURES, "CUDA", absent)
    found = measures.measure(row_named("CUDA"))
    assert (found.holds, found.share, found.note) == (None, None, "no such machine")


@pytest.mark.parametrize(
    ("kind", "found", "holds"),
    [
        ("bitwise", {"a": [1.0], "b": [1.0]}, True),
        ("bitwise", {"a": [1.0], "b": [1.25]}, False),
        ("within", {"a": [1.0], "b": [1.25]}, True),
        ("within", {"a": [1.0], "b": [1.75]}, False),
        ("within", {"a": [1.0]}, False),
        ("never", {"a": [1.25], "b": [1.25]}, True),
        ("never", {"a": [1.25], "b": [1.0]}, False),
    ],
)
def test_two_sides_are_judged_by_the_rows_kind(measures, kind, found, holds):
    row = SOUND._replace(kind=kind, tolerance=Tolerance(0.5, 0.0) if kind == "within" else None)
    sides = measures.Sides(
        *({name: np.array(x) for name, x in side.items()} for side in ({"a": [1.0], "b": [1.0]}, found))
    )
    assert measures.judge(row, sides).holds is holds


def test_a_probability_is_judged_by_the_rate_of_false_alarms(measures):
    row = SOUND._replace(kind="statistical", false_alarms=0.01)
    assert [measures.judge(row, measures.Chance(p, "seen")).holds for p in (0.011, 0.01, 0.0)] == [True, False, False]


def wrong(module, **replaced):
    """A module with other functions in place of some of its own; each gets what the real one gives."""

    def change(name):
        real, of = getattr(module, name), replaced[name]
        return lambda *given, **options: of(real(*given, **options))

    return SimpleNamespace(**vars(module) | {name: change(name) for name in replaced})


def closed_form(state):
    return state._replace(rate=0.1 * 0.7 ** (state.tick // 3))


PERMUTED = {"draw_permutation": lambda order: order[::-1]}
CHANGE = {"change": lambda m, root, s: m * s.real(0.1 + 0.01 * (m.dtype.itemsize == 4)) / root}
FAULTS = {  # of a row: where its measurement finds a module, and how the module's results are changed
    "stock rand": ("stock", "reference_rng", {"draw_uniform": lambda u: u / 2}),
    "stock randperm": ("stock", "reference_rng", PERMUTED),
    "stock randint": ("stock", "reference_rng", {"draw_integers": lambda n: n + 1}),
    "stock bernoulli": ("stock", "reference_rng", {"draw_bernoulli": lambda kept: ~kept}),
    "stock DataLoader": ("sides", "reference_rng", PERMUTED),
    "streams": ("runs", "rng", {"draw_integers": lambda n: n + 1}),
    "stock StepLR": ("stock", "reference_optim", {"schedule_step": closed_form}),
    "stock GradScaler": ("stock", "reference_optim", {"scaler_step": lambda state: state._replace(growth_tracker=1)}),
    "gradients": (
        "mathematics",
        "reference_model",
        {"backward": lambda grads: {name: g * 2 for name, g in grads.items()}},
    ),
    "exact steps": ("mathematics", "optim", CHANGE),
}


@pytest.mark.parametrize("row", FAULTS)
def test_a_fault_breaks_the_measured_row(measures, monkeypatch, row):
    place, name, changes = FAULTS[row]
    room = import_module(f"{measures.__name__}.{place}")
    module = getattr(room, name)
    monkeypatch.setattr(room, name, plain_port(module, changes) if changes is CHANGE else wrong(module, **changes))
    assert measures.measure(row_named(row)).holds is False


def test_a_resume_that_loses_a_state_breaks_the_rows_of_full_resumes(measures, monkeypatch):
    forgetful = {impl.__name__: resuming(impl, losing("rng/order")) for impl in measures.runs.PACKAGES}
    for name, impl in forgetful.items():
        impl.__name__ = name
        monkeypatch.setattr(measures.runs, name, impl)
    monkeypatch.setattr(measures.runs, "PACKAGES", list(forgetful.values()))
    rows = ["full resume", "full resume, port", "full resume, native", "saved in one, resumed in the other"]
    assert [measures.measure(row_named(row)).holds for row in rows] == [False] * 4


def test_a_state_that_is_not_lost_breaks_the_rows_of_lost_ones(measures, monkeypatch):
    monkeypatch.setattr(laws, "lose", lambda state, fresh, prefix: state)
    rows = ["lost state", "unrestored generator"]
    assert [measures.measure(row_named(row)).holds for row in rows] == [False] * 2


def test_a_native_port_breaks_the_row_of_the_two_packages(measures, monkeypatch):
    from torch_port import train
    from torch_port.arithmetic import operations as arithmetic

    monkeypatch.setattr(train, "arithmetic_named", lambda name, **_: arithmetic.NATIVE)
    assert measures.measure(row_named("NumPy against the port")).holds is False
    monkeypatch.setattr(measures.machines, "reference_arithmetic", np)
    assert measures.measure(row_named("batch")).holds is False


def test_variants_are_named_and_where_no_bit_differs_nothing_was_exercised(measures, monkeypatch):
    usual, others = {"w": np.ones(3, np.float32)}, {"w": np.full(3, 1 + 2.0**-20, np.float32)}
    states = {"as it is": usual, "2 threads": usual, "other kernels": others}
    monkeypatch.setattr(measures.machines.variants, "short_run_states", lambda package: states)
    row = row_named("kernels and instruction sets, native, port")
    found = measures.measure(row)
    assert (found.holds, found.note) == (True, "torch_port with other kernels")
    assert measures.measure(row_named("full resume, native, elsewhere")).holds
    states["other kernels"] = {"w": np.full(3, 1.5, np.float32)}
    assert measures.measure(row_named("full resume, native, elsewhere")).holds is False
    states["other kernels"] = usual
    found = measures.measure(row)
    assert found.holds is None
    assert "not exercised" in found.note
    del states["2 threads"], states["other kernels"]
    assert measures.measure(row).note == "no second variant can run here"


@pytest.mark.parametrize("row", ["threads, port", "kernels and instruction sets"])
def test_a_digest_that_differs_breaks_the_row_of_its_variants(measures, monkeypatch, row):
    names = {
        name
        for package in ("numpy_ref", "torch_port")
        for group in measures.machines.variants.variants(package).values()
        for name in group
    }
    digests = dict.fromkeys(names, demo.DIGEST)
    monkeypatch.setattr(measures.machines.variants, "demo_digests", lambda package, arithmetic: digests)
    assert measures.measure(row_named(row)).holds
    digests["4 threads" if "threads" in row else "together"] = "0" * 64
    assert measures.measure(row_named(row)).holds is False
    digests.clear()
    assert measures.measure(row_named(row)).holds is None


def test_an_unrestored_generator_changes_the_loss_by_chance_alone(measures):
    alarms = row_named("unrestored generator, loss").false_alarms
    differences = measures.loss_differences(measures.without_generator)
    assert all(differences)
    assert measures.signs_by_chance(differences) > alarms

    def without_dropout(stopped, fresh, data):
        return stopped._replace(state=stopped.state._replace(mode="eval"))

    def without_steps(stopped, fresh, data):
        return numpy_ref.train_n_steps(fresh, data, 10)

    for fault in (without_dropout, without_steps):
        assert measures.signs_by_chance(measures.loss_differences(fault)) < alarms


def test_the_probabilities_are_those_of_coins(measures):
    assert measures.signs_by_chance([1.0] * 10) == measures.signs_by_chance([-1.0] * 10 + [0.0]) == 2 / 2**10
    assert measures.signs_by_chance([1.0, -1.0]) == measures.signs_by_chance([]) == 1
    assert measures.signs_by_chance([1.0] * 3 + [-1.0]) == 2 * 5 / 2**4
    for kept in (400, 450, 500, 550, 600):  # against the exact probability for a fair coin
        tail = sum(math.comb(1000, k) for k in range(1001) if abs(k - 500) >= abs(kept - 500)) / 2**1000
        assert tail <= measures.share_by_chance(kept, 1000, 0.5)
