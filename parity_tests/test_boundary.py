"""The declared table: every row has its evidence, and no tolerance is written anywhere else."""

import ast
import json
import re

import pytest

from numpy_ref import boundary
from numpy_ref.boundary import KINDS, ROWS, Row, environment, row_named
from numpy_ref.checkpoint import read_checkpoint, save_checkpoint
from numpy_ref.config import RunConfig
from numpy_ref.equivalence import Tolerance
from numpy_ref.train import init_run
from parity_tests.commands import ROOT
from parity_tests.strategies import small_data

ALLOWANCES = {"rtol", "atol", "rel", "abs", "rel_tol", "abs_tol", "tolerance", "relative", "absolute", "decimal"}
JUDGES = {"approx", "isclose", "allclose", "assert_allclose", "assert_close", "assert_almost_equal"}
JUDGES |= {"assert_array_almost_equal", "assert_array_max_ulp", "assert_array_almost_equal_nulp"}
OF_TOLERANCES = "test_equivalence.py"  # tests the comparison itself, and so makes tolerances; this file, faulty rows


JUDGED = [path for path in sorted((ROOT / "parity_tests").glob("**/*.py"))
          if path.name not in (OF_TOLERANCES, "test_boundary.py")]  # fmt: skip


def fault_of_evidence(row):
    """What is wrong with the evidence of a row, "" if nothing is."""
    file, separator, name = row.evidence.partition("::")
    path = ROOT / file
    if not separator or not path.is_file():
        return f"{row.name}: no file {file}"
    tests = {f.name: f for f in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(f, ast.FunctionDef)}
    if not name.startswith("test_") or name not in tests:
        return f"{row.name}: no test {name} in {file}"
    marks = " ".join(ast.unparse(mark) for mark in tests[name].decorator_list)
    if re.search(r"\bskip\b|\bxfail\b", marks):
        return f"{row.name}: {name} is not run"
    if row.tolerance is not None and f"row_named({row.name!r})" not in ast.unparse(tests[name]):
        return f"{row.name}: {name} does not take its tolerance from the row"
    return ""


def fault_of_tolerance(row):
    """Exactly the rows of the kind "within" carry a number, and it allows something."""
    if row.kind not in KINDS:
        return f"{row.name}: kind {row.kind!r}"
    if (row.kind == "within") != (row.tolerance is not None):
        return f"{row.name}: {row.kind} with tolerance {row.tolerance}"
    if row.tolerance is not None and not all(0 < x < 1 for x in row.tolerance):
        return f"{row.name}: an allowance of {row.tolerance}"
    return ""


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
            if keyword.arg in ALLOWANCES and any(isinstance(n, ast.Constant) and n.value is not None
                                                 and not isinstance(n.value, str) for n in ast.walk(keyword.value))
        ]  # fmt: skip
        if name == "Tolerance" or name in JUDGES or numbers:
            lines.append(node.lineno)
    return sorted(lines)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_every_row_has_a_test_as_its_evidence(row):
    assert fault_of_evidence(row) == ""


SOUND = Row("sound", "a with b", "always", "bitwise", "so it is",
            "parity_tests/test_boundary.py::test_every_row_has_a_test_as_its_evidence")  # fmt: skip


@pytest.mark.parametrize(
    "evidence",
    [
        "",
        "parity_tests/test_boundary.py",
        "parity_tests/test_nowhere.py::test_names_are_unique",
        "parity_tests/test_boundary.py::test_that_nobody_wrote",
        "parity_tests/test_boundary.py::tolerances_written",
        "parity_tests::test_names_are_unique",
    ],
)
def test_a_row_without_evidence_is_found(evidence):
    assert fault_of_evidence(SOUND) == ""
    assert fault_of_evidence(SOUND._replace(evidence=evidence)) != ""


def test_a_row_whose_evidence_ignores_its_tolerance_is_found():
    assert "does not take" in fault_of_evidence(SOUND._replace(kind="within", tolerance=Tolerance(0.1, 0.1)))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_exactly_the_rows_within_carry_a_tolerance(row):
    assert fault_of_tolerance(row) == ""
    some = Tolerance(0.5, 0.5)
    for mutant in (
        row._replace(kind="about"),
        row._replace(tolerance=None if row.tolerance else some),
        row._replace(kind="within", tolerance=Tolerance(0.0, 0.0)),
        row._replace(kind="within", tolerance=Tolerance(float("nan"), 0.5)),
        row._replace(kind="within", tolerance=Tolerance(0.5, float("inf"))),
    ):
        assert fault_of_tolerance(mutant) != ""


def test_names_are_unique_and_no_field_is_empty():
    assert len({row.name for row in ROWS}) == len(ROWS)
    for row in ROWS:
        assert all(text.strip() == text != "" for text in row[:6]), row


def test_a_row_is_found_by_its_name_and_an_unknown_name_is_an_error():
    assert all(row_named(row.name) is row for row in ROWS)
    with pytest.raises(KeyError):
        row_named("no such row")


@pytest.mark.parametrize("path", JUDGED, ids=lambda path: path.name)
def test_no_test_writes_a_tolerance(path):
    assert tolerances_written(path.read_text(encoding="utf-8")) == []


def test_only_the_table_makes_tolerances_in_the_package():
    makers = {path.name for path in (ROOT / "numpy_ref").glob("**/*.py")
              if re.search(r"\bTolerance\((?!NamedTuple)", path.read_text(encoding="utf-8"))}  # fmt: skip
    assert makers == {"boundary.py"}


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
    here = environment()
    assert json.loads(json.dumps(here, allow_nan=False)) == here
    assert {"python", "numpy", "blas", "system", "machine", "cpus", "simd", "threads"} <= here.keys()
    assert here["threads"]["OMP_NUM_THREADS"] == "3"
    assert here["blas"].split()
    assert "None" not in here["blas"]
    run = init_run(RunConfig(hidden=(3,)), small_data())
    save_checkpoint(tmp_path / "a.safetensors", run)
    assert read_checkpoint(tmp_path / "a.safetensors").environment == here
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    save_checkpoint(tmp_path / "b.safetensors", run)
    assert read_checkpoint(tmp_path / "b.safetensors").environment == environment() != here


def test_the_table_says_at_least_what_the_reference_alone_can_show():
    """The rows of the design that need no second framework."""
    names = {row.name: row.kind for row in ROWS}
    wanted = {"full resume": "bitwise", "full resume, native": "bitwise", "threads": "bitwise", "batch": "bitwise"}
    wanted |= {"weights only": "never", "lost state": "never", "other seed": "never"}
    assert wanted.items() <= names.items()
    assert boundary.KINDS == ("bitwise", "within", "statistical", "never")
