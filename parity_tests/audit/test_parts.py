"""The audit's parts: what they may import."""

import ast
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import resolve_name
from pathlib import Path

import pytest

import torch_port

HOME = Path(torch_port.__file__).parents[1]
AUDIT = HOME / "torch_port" / "audit"


def name_of(file: Path) -> str:
    """The dotted name of a module."""
    return ".".join(file.relative_to(HOME).with_suffix("").parts).removesuffix(".__init__")


MODULES = {name_of(file): file.read_text(encoding="utf-8") for file in AUDIT.rglob("*.py")}


def imports(text: str, package: str = "", *, everywhere: bool) -> set[str]:
    """The modules that a text imports, at its top level or everywhere; of `from a import b` both a and a.b."""
    found: set[str] = set()
    tree = ast.parse(text)
    for node in ast.walk(tree) if everywhere else tree.body:
        if isinstance(node, ast.Import):
            found |= {one.name for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            home = resolve_name("." * node.level + (node.module or ""), package or None)
            found |= {home, *(f"{home}.{one.name}" for one in node.names)}
    return found


def uses(texts: dict[str, str]) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports anywhere; `from package import module` is of the module."""
    graph = {}
    for name, text in texts.items():
        package = name if any(one.startswith(f"{name}.") for one in texts) else name.rpartition(".")[0]
        found = imports(text, package, everywhere=True) & texts.keys()
        graph[name] = {one for one in found if not any(other.startswith(f"{one}.") for other in found)} - {name}
    return graph


def reached(name: str) -> set[str]:
    """What is imported when a module is: its own imports at top level, and those of every module of ours on the way."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        file = HOME.joinpath(*one.split("."))
        source = next((path for path in (file.with_suffix(".py"), file / "__init__.py") if path.is_file()), None)
        if one.split(".")[0] in ("torch_port", "numpy_ref") and source is not None:
            parts = one.split(".")
            parents = {".".join(parts[:i]) for i in range(1, len(parts))}
            waiting += imports(source.read_text(encoding="utf-8"), one, everywhere=False) | parents
    return seen


JUDGE = sorted(name for name in MODULES if name.startswith("torch_port.audit.judge"))


@pytest.mark.parametrize("name", JUDGE)
def test_the_judge_never_imports_torch(name):
    direct = imports(MODULES[name], everywhere=True) | reached(name)
    assert not {one for one in direct if one.split(".")[0] == "torch"}


def test_the_audit_has_no_cycle_of_imports():
    try:
        TopologicalSorter(uses(MODULES)).prepare()
    except CycleError as error:
        pytest.fail(" -> ".join(error.args[1]))


def test_a_cycle_and_an_import_of_torch_are_seen():
    late = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.b import B\n"
    graph = uses({"p": "", "p.a": late, "p.b": "def f():\n    from p import a\n"})
    assert graph == {"p": set(), "p.a": {"p.b"}, "p.b": {"p.a"}}
    with pytest.raises(CycleError):
        TopologicalSorter(graph).prepare()
    assert "torch" in reached("torch_port.audit.loop.values")
    assert "numpy" in reached("torch_port.audit.judge.fold")
    assert sys.modules["torch_port"] is torch_port
