"""The rule of the mirror: modules that exist twice agree, what exists once has no twin, and NumPy's needs no torch."""

import ast
import inspect
import os
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import numpy_ref
import torch_port
from parity_tests.commands import ROOT, python
from parity_tests.implementations import NO_TORCH
from parity_tests.witnesses import with_fault

SIGNATURES = ("arithmetic", "rng", "precision", "train", "checkpoint")  # the same names, signatures, order
NAMES = ("data", "model", "optim", "elementary", "rounding", "boundary", "__main__")  # each in its framework's form
PYTORCHS_OWN = {"interop", "variants"}
LIVE = {"Run"}  # holds live objects in the port, and so is made otherwise
ONLY_IN_THE_PORT = {"check_boundary", "on_device"}


def modules_of(package: ModuleType) -> set[str]:
    """The names of a package's modules."""
    return {module.name for module in pkgutil.iter_modules(package.__path__)}


def faults_of_modules(reference: set[str], port: set[str]) -> list[str]:
    """Modules that should have a twin and have none, or have one and should not."""
    twins = set(SIGNATURES) | set(NAMES)
    lone = [f"{name}: in one package only" for name in sorted(twins & (reference ^ port))]
    own = [f"{name}: PyTorch's own, and in numpy_ref" for name in sorted(PYTORCHS_OWN & reference)]
    return lone + own + [f"{name}: not listed as a twin" for name in sorted(port - twins - PYTORCHS_OWN)]


def faults_of_names(reference: Any, port: Any) -> list[str]:
    """Public names that one of two modules lacks, or that are not the same kind of thing with the same signature."""
    ours, theirs = set(reference.__all__), set(port.__all__)
    faults = [f"{name}: in one module only" for name in sorted(ours ^ theirs)]
    for name in sorted(ours & theirs):
        faults += faults_of_pair(name, getattr(reference, name), getattr(port, name))
    return faults


def faults_of_pair(name: str, ours: Any, theirs: Any) -> list[str]:
    """What is not alike in two objects of one name: nothing if they are one object."""
    if ours is theirs:
        return []
    if origin(theirs).startswith("numpy_ref"):
        return [f"{name}: another object of numpy_ref"]
    if inspect.isclass(ours) != inspect.isclass(theirs) or callable(ours) != callable(theirs):
        return [f"{name}: {type(ours).__name__} and {type(theirs).__name__}"]
    if not callable(ours):
        return [] if type(ours).__name__ == type(theirs).__name__ else [f"{name}: values of two types"]
    if name not in LIVE and (signs := [signature(ours), signature(theirs)])[0] != signs[1]:
        return [f"{name}: {signs[0]} and {signs[1]}"]
    if not inspect.isclass(ours):
        return []
    methods = [public_functions(ours), public_functions(theirs)]
    return [
        fault
        for method in sorted(methods[0].keys() & methods[1].keys())
        for fault in faults_of_pair(f"{name}.{method}", methods[0][method], methods[1][method])
    ]


def origin(thing: Any) -> str:
    """The module that a function or class is defined in; of a value, the empty name."""
    return str(getattr(thing, "__module__", "")) if callable(thing) else ""


def public_functions(kind: type) -> dict[str, Any]:
    """The public methods that a class itself defines."""
    return {name: item for name, item in vars(kind).items() if name[0] != "_" and inspect.isfunction(item)}


def signature(function: Any) -> list[tuple[str, str, str]]:
    """Name, kind and default of each parameter; annotations do not count, nor whose type a default is."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.name, without_framework(repr(p.default))) for p in parameters]


def without_framework(default: str) -> str:
    """`numpy.float32` and `torch.float32` as float32."""
    named = re.fullmatch(r"<class 'numpy\.(\w+)'>|torch\.(\w+)", default)
    return default if named is None else named[1] or named[2]


def definitions(source: str) -> list[str]:
    """What a module defines itself, in the order of its lines."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return names


def fault_of_order(public: set[str], reference: str, port: str) -> str:
    """The first public name that the port defines in another place among those that both sources define, or ""."""
    common = public & set(definitions(reference)) & set(definitions(port))
    orders = [[name for name in definitions(source) if name in common] for source in (reference, port)]
    return next((f"{found}: expected {wanted}" for wanted, found in zip(*orders, strict=True) if wanted != found), "")


def imports_of_torch(source: str) -> list[int]:
    """The lines of a source that import torch or the port, in whatever way."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Call):  # import_module("torch"), __import__("torch")
            names = [a.value for a in node.args if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            names = names if "import" in ast.unparse(node.func) else []
        else:
            continue
        if any(name.split(".")[0] in ("torch", "torch_port") for name in names):
            lines.append(node.lineno)
    return lines


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder before all others on the path, from which torch ends the process that imports it."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    return folder


def run_without_torch(folder: Path, *words: object) -> str:
    """What Python says against these words where torch cannot be imported, "" if nothing."""
    done = python(*words, cwd=folder, PYTHONPATH=os.pathsep.join([str(folder), str(ROOT)]))
    return "" if done.returncode == 0 else done.stderr or f"status {done.returncode}"


IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
modules = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".") if "__main__" not in m.name]
for name in modules:
    importlib.import_module(name)
print(len(modules))
"""


def twins(names: tuple[str, ...]) -> list[str]:
    """Those of the names that the reference has by now."""
    return [name for name in names if name in modules_of(numpy_ref)]


def module_from(source: str, name: str = "a_module") -> ModuleType:
    """A module made of a source text."""
    module = ModuleType(name)
    exec(compile(source, name, "exec"), module.__dict__)
    return module


def test_what_computes_on_arrays_has_a_twin_of_its_name_and_what_does_not_has_none() -> None:
    assert faults_of_modules(modules_of(numpy_ref), modules_of(torch_port)) == []


@pytest.mark.parametrize("name", [*SIGNATURES, *NAMES])
def test_a_module_without_its_twin_is_found(name: str) -> None:
    both = set(SIGNATURES) | set(NAMES)
    assert faults_of_modules(both | {"store"}, both | PYTORCHS_OWN) == []
    assert faults_of_modules(both, both - {name}) == [f"{name}: in one package only"]
    assert faults_of_modules(both - {name}, both) == [f"{name}: in one package only"]


@pytest.mark.parametrize("name", ["container", "durable", "store", "equivalence", "laws", "cli", "config", "tree"])
def test_a_second_module_for_files_or_verdicts_is_found(name: str) -> None:
    both = set(SIGNATURES) | set(NAMES)
    assert faults_of_modules(both | {name}, both | {name}) == [f"{name}: not listed as a twin"]


def test_a_module_of_pytorchs_own_in_the_reference_is_found() -> None:
    both = set(SIGNATURES) | set(NAMES) | {"interop"}
    assert faults_of_modules(both, both) == ["interop: PyTorch's own, and in numpy_ref"]


@NO_TORCH
@pytest.mark.parametrize("name", twins(SIGNATURES))
def test_twins_have_the_same_public_names_signatures_and_order_of_definitions(name: str) -> None:
    reference, port = (import_module(f"{package}.{name}") for package in ("numpy_ref", "torch_port"))
    assert faults_of_names(reference, port) == []
    assert fault_of_order(set(reference.__all__), inspect.getsource(reference), inspect.getsource(port)) == ""


@NO_TORCH
@pytest.mark.parametrize(
    ("module", "old", "new", "fault"),
    [
        ("train", "n: int, *, on_step", "n: int, on_step", "train_n_steps"),  # another kind of parameter
        ("train", "| None = None) -> Run:", "| None) -> Run:", "train_n_steps"),  # without its default
        ("train", "evaluate(run: Run, data: D", "evaluate(run: Run, dataset: D", "evaluate"),
        ("train", "    hidden: int", "    hidden: int", ""),
    ][:3],
)
def test_another_signature_in_the_port_is_found(module: str, old: str, new: str, fault: str) -> None:
    reference, port = (import_module(f"{package}.{module}") for package in ("numpy_ref", "torch_port"))
    found = faults_of_names(reference, with_fault(port, old, new))
    assert [line.split(":")[0] for line in found] == [fault]
