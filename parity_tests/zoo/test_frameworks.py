"""The blocks of `docs/frameworks.md`: each is whole, and the audit says of it what the tables say, where it can run."""

import ast
import re
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: the loops are torch's")

from torch_port.audit import audit

TEXT = (Path(__file__).parents[2] / "docs" / "frameworks.md").read_text()
BLOCKS = dict(re.findall(r"```python\n# (\w+)\.py\n(.*?)```", TEXT, re.DOTALL))
ROWS = re.findall(r"^\| `(\w+)\.py:(\w+)` \| ([\d, ]+) \| (.*) \|$", TEXT, re.MULTILINE)
SHARED = {"my_training", "paced"}


def imported(name):
    """The modules that a block imports, and those that its imported blocks do."""
    nodes = list(ast.walk(ast.parse(BLOCKS[name])))
    direct = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    direct |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return direct.union(*(imported(one) for one in direct & BLOCKS.keys()))


def methods(name, loop):
    """The methods of a class of a block, its own and those of its bases in other blocks."""
    tree = ast.parse(BLOCKS[name])
    found = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == loop)
    own = {node.name for node in found.body if isinstance(node, ast.FunctionDef)}
    origin = {alias.name: node.module for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    bases = [base.id for base in found.bases if isinstance(base, ast.Name) and origin.get(base.id) in BLOCKS]
    return own.union(*(methods(origin[base], base) for base in bases))


def can_run(name):
    return all(find_spec(module.split(".")[0]) for module in imported(name) if module not in BLOCKS)


@pytest.fixture
def files(tmp_path, monkeypatch):
    for name, code in BLOCKS.items():
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", ":".join([str(tmp_path), *filter(None, sys.path)]))
    return tmp_path


@pytest.mark.parametrize("name", BLOCKS)
def test_a_block_is_python_and_imports_what_exists(name):
    compile(BLOCKS[name], f"{name}.py", "exec")
    known = {*BLOCKS, *sys.stdlib_module_names, "torch", "lightning", "accelerate", "transformers"}
    assert {module.split(".")[0] for module in imported(name)} <= known
    for node in ast.walk(ast.parse(BLOCKS[name])):
        if isinstance(node, ast.ImportFrom) and node.module in BLOCKS:
            there = ast.parse(BLOCKS[node.module]).body
            names = {part.id for line in there for part in ast.walk(line) if isinstance(part, ast.Name)}
            names |= {line.name for line in there if isinstance(line, ast.ClassDef)}
            assert {alias.name for alias in node.names} <= names


@pytest.mark.parametrize("name", sorted(BLOCKS.keys() - SHARED))
def test_a_block_is_a_loop_that_the_tables_have(name):
    loops = {loop for block, loop, *_ in ROWS if block == name}
    assert loops, "no table has it"
    assert all({"step", "save", "load"} <= methods(name, loop) for loop in loops)


def test_each_framework_has_a_sound_loop_and_a_faulty_one():
    for library in ("lightning", "accelerate", "transformers"):
        says = [row[3] == "bitwise" for row in ROWS if any(m.split(".")[0] == library for m in imported(row[0]))]
        assert {*says} == {True, False}


RUN = [row for row in ROWS if can_run(row[0])]

if RUN:  # where no framework is installed there is nothing to run

    @pytest.mark.parametrize(("name", "loop", "stops", "says"), RUN)
    def test_the_audit_says_what_the_table_says(files, name, loop, stops, says):
        report = audit(f"{files / name}.py:{loop}", at=[int(stop) for stop in stops.split(", ")], power=False)
        assert report.failure is None, report.failure
        if says == "bitwise":
            assert report.verdict == "bitwise", report.stops
            return
        named = set(re.findall("`(.*?)`", says))
        for stop in report.stops:
            assert not stop.holds
            if says.startswith("lost"):
                assert stop.proved, stop
                assert named <= set(stop.lost)
            else:
                assert says.startswith("first")
                assert stop.first.path in named
