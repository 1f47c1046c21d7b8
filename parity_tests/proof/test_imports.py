"""Who imports whom, read from the sources: no circle, no proof below training, no torch in the reference."""

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from parity_tests.commands import ROOT

Graph = Mapping[str, Iterable[str]]


def imported(source: str) -> set[str]:
    """The names a source imports by a statement or a call, on any level; not those for type checkers alone."""
    names: set[str] = set()
    waiting: list[ast.AST] = [ast.parse(source)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        waiting += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and "import" in ast.unparse(node.func):
            names |= {a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)}
    return names


def graph_of(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """The modules that each module imports; a name that is no module here counts as the module that holds it."""
    graph = {}
    for module, source in sources.items():
        holders = {name if name in sources else name.rpartition(".")[0] or name for name in imported(source)}
        graph[module] = holders - {module}
    return graph


def sources(package: str) -> dict[str, str]:
    """The sources of a package by the name of the module."""
    paths = sorted((ROOT / package).glob("**/*.py"))
    return {name_of(path): path.read_text(encoding="utf-8") for path in paths}


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def reached(graph: Graph, start: str) -> set[str]:
    """Everything a module imports, directly or through others."""
    found: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        module = waiting.pop()
        if module not in found:
            found.add(module)
            waiting += graph.get(module, ())
    return found


def cycles(graph: Graph) -> list[list[str]]:
    """The groups of modules that import each other."""
    reach = {module: reached(graph, module) for module in graph}
    groups = {tuple(sorted(other for other in reach[m] if m in reach.get(other, ()))) for m in graph}
    return [list(group) for group in sorted(groups) if group]


def within(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def importers(graph: Graph, of: str, below: Iterable[str] = ("",)) -> list[str]:
    """The modules below some names that import a package, directly or through others."""
    judged = [m for m in graph if any(name == "" or within(m, name) for name in below)]
    return sorted(m for m in judged if any(within(other, of) for other in reached(graph, m)))


GRAPH = graph_of(sources("numpy_ref") | sources("torch_port"))
BELOW_PROOF = ("numpy_ref.train", "numpy_ref.checkpoint")


def test_no_modules_import_each_other() -> None:
    assert len(GRAPH) > 100
    assert cycles(GRAPH) == []


def test_training_and_checkpoints_never_import_the_proof() -> None:
    assert set(BELOW_PROOF) <= GRAPH.keys()
    assert importers(GRAPH, "numpy_ref.proof", BELOW_PROOF) == []


def test_the_reference_never_imports_torch() -> None:
    reference = {module: found for module, found in GRAPH.items() if within(module, "numpy_ref")}
    assert importers(reference, "torch") == importers(reference, "torch_port") == []


# Mutants


def test_a_circle_is_found_whole() -> None:
    made = {"a": {"b"}, "b": {"c", "numpy"}, "c": {"d"}, "d": {"b"}}
    assert cycles(made) == [["b", "c", "d"]]
    assert cycles(made | {"d": set()}) == []


def test_an_import_of_the_proof_through_others_is_found() -> None:
    made = {"train": {"tree"}, "tree": {"proof.laws"}, "proof.laws": set(), "proofs": {"train"}}
    assert importers(made, "proof", ("train",)) == ["train"]
    assert importers(made | {"tree": {"proofs"}, "proofs": set()}, "proof", ("train",)) == []


@pytest.mark.parametrize(
    "line",
    [
        "import os, torch as t",
        "import torch.nn",
        "from torch import nn",
        "def f():\n    import torch",
        "if TYPE_CHECKING:\n    pass\nelse:\n    import torch",
        "import_module('torch.nn')",
        "__import__('torch')",
    ],
)
def test_an_import_of_torch_is_found(line: str) -> None:
    assert importers(graph_of({"module": f"x = 1\n{line}\n"}), "torch") == ["module"]


def test_the_word_alone_and_an_import_for_type_checkers_are_no_imports() -> None:
    source = "'''torch'''\nimport torchless\nx = f('torch')\nif TYPE_CHECKING:\n    import torch\n"
    assert imported(source) == {"torchless"}
