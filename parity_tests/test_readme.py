"""What the README shows is what the commands print."""

import re
from importlib import import_module
from pathlib import Path

import pytest

import numpy_ref
import torch_port
from numpy_ref.exercises import EXERCISES
from parity_tests import faults
from parity_tests.commands import python
from parity_tests.mutants import FAULTS

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    printed = python("-m", "numpy_ref", "demo", cwd=tmp_path, COLUMNS="200").stdout
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    without_seconds = [re.sub(r" \([0-9.]+ s\)$", "", text.rstrip()) for text in (printed, shown[1])]
    assert without_seconds[0] == without_seconds[1]


def test_the_snippets_run(tmp_path: Path) -> None:
    run, stock = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    process = python("-c", run + "\nprint(run.state.step, new.state.step)", cwd=tmp_path)
    assert (process.stdout, process.stderr) == ("100 0\n", "")
    pytest.importorskip("torch", reason="torch is missing: the second snippet cannot be run")
    process = python(
        "-c", run.replace("numpy_ref as nr", "torch_port as nr") + "\nprint(run.step, new.step)", cwd=tmp_path
    )
    assert (process.stdout, process.stderr) == ("100 0\n", "")
    process = python("-c", stock + "\nprint(type(tree['optimizer'].m['0.weight']), checkpoint['epoch'])", cwd=tmp_path)
    assert (process.stdout, process.stderr) == ("<class 'numpy.ndarray'> 0\n", "")


def test_the_readme_counts_and_names_what_is_there() -> None:
    assert f"{len(FAULTS)} subtler mistakes" in README
    wrong = [import_module(f"parity_tests.exercises.test_{name}").MUTANTS for name in EXERCISES]
    assert f"holds {sum(map(len, wrong))} of them" in README
    packages = [Path(module.__file__).parent for module in (numpy_ref, torch_port)]
    modules = {path.stem for package in packages for path in package.glob("*.py")} - {"__init__", "__main__"}
    assert modules <= set(re.findall(r"`(\w+)\.py`", README))


def test_the_faults_are_those_on_record() -> None:
    *rows, _ = faults.sums(faults.record())
    for group, injected, losses in rows:
        assert f"| {group} | {injected:,} | {losses} |" in README


def test_the_readme_is_no_longer_than_220_lines() -> None:
    assert len(README.splitlines()) <= 220
