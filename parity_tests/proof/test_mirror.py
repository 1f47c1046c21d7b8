"""The rule of the mirror: what computes exists twice and agrees, all else once; the reference never needs torch."""

import ast
import inspect
import os
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import numpy_ref
import torch_port
from numpy_ref.exercises import EXERCISES, exercise_named
from numpy_ref.proof.boundary import row_named
from parity_tests.commands import ROOT, python
from parity_tests.implementations import NO_TORCH

SIGNATURES = {  # the same names, signatures, order of definitions: the module in each package
    "arithmetic": ("arithmetic.operations", "arithmetic.operations"),
    "rng": ("rng", "rng"),
    "noise": ("noise", "noise"),
    "precision": ("precision", "precision"),
    "train": ("train", "train"),
    "checkpoint": ("checkpoint.save_and_resume", "checkpoint"),
}
IN_ITS_OWN_FORM = {
    "data",
    "model",
    "optim",
    "machine",
    "proof",
    "recompute",
    "accounting",
    "exercises",
} | {"__main__"}  # the same module name
OF_PYTORCH = {"audit", "interop"}  # of torch_port alone
LIVE = {"Run"}  # data in the reference; in the port it holds live objects, and so takes others
ONLY_IN_THE_PORT = {"check_boundary", "on_device"}
TWINS = SIGNATURES.keys() | IN_ITS_OWN_FORM


def twins(name: str) -> list[ModuleType]:
    """The module of the reference and that of the port."""
    return [import_module(f"{p}.{m}") for p, m in zip(("numpy_ref", "torch_port"), SIGNATURES[name], strict=True)]


def modules_of(package: ModuleType) -> set[str]:
    """The names of a package's modules."""
    return {module.name for module in pkgutil.iter_modules(package.__path__)}


def faults_of_modules(reference: set[str], port: set[str]) -> list[str]:
    """Modules that stand alone and should not, or that have a twin and should not."""
    faults = [f"{name}: in one package only" for name in TWINS & (reference ^ port)]
    faults += [f"{name}: of PyTorch, and in numpy_ref" for name in OF_PYTORCH & reference]
    return sorted(faults + [f"{name}: in torch_port, and not listed" for name in port - TWINS - OF_PYTORCH])


def faults_of_names(reference: Any, port: Any) -> list[str]:
    """Public names that one of two modules lacks, or that mean another thing in it."""
    ours, theirs = public(reference), public(port)
    faults = [f"{name}: in one module only" for name in sorted(ours ^ theirs)]
    for name in sorted(ours & theirs):
        faults += faults_of_pair(name, getattr(reference, name), getattr(port, name))
    return faults


def public(module: Any) -> set[str]:
    """What `__all__` names; without one, what the module itself defines and does not mark as private."""
    names = getattr(module, "__all__", None) or definitions(inspect.getsource(module))
    return {name for name in names if name[0] != "_"}


def faults_of_pair(name: str, ours: Any, theirs: Any) -> list[str]:
    """What is not alike in two objects of one name: what the port takes from the reference is the same object."""
    if ours is theirs:
        return []
    if callable(theirs) and theirs.__module__.split(".")[0] == "numpy_ref":
        return [f"{name}: another object of numpy_ref"]
    if kind(ours) != kind(theirs):
        return [f"{name}: {kind(ours)} and {kind(theirs)}"]
    if not callable(ours):
        return []
    if name not in LIVE and signature(ours) != signature(theirs):
        return [f"{name}: {signature(ours)} and {signature(theirs)}"]
    methods = [public_methods(ours), public_methods(theirs)]
    return [
        fault
        for method in sorted(methods[0].keys() & methods[1].keys())
        for fault in faults_of_pair(f"{name}.{method}", methods[0][method], methods[1][method])
    ]


def kind(thing: Any) -> str:
    """Whether it is a class or a function; of plain values the value, of others the type's name."""
    if callable(thing):
        return "a class" if inspect.isclass(thing) else "a function"
    return repr(thing) if type(thing).__module__ == "builtins" else type(thing).__name__


def public_methods(thing: Any) -> dict[str, Any]:
    """The public methods that a class defines itself; of a function, none."""
    members = vars(thing) if inspect.isclass(thing) else {}
    return {name: member for name, member in members.items() if name[0] != "_" and inspect.isfunction(member)}


def signature(function: Any) -> list[tuple[str, str, str]]:
    """Name, kind and default of each parameter, but no annotation."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind.description, without_framework(repr(p.default))) for p in parameters]


def without_framework(default: str) -> str:
    """`numpy.float32` and `torch.float32` are one default, "float32"."""
    named = re.fullmatch(r"<class 'numpy\.(\w+)'>|torch\.(\w+)", default)
    return default if named is None else named[1] or named[2]


def definitions(source: str) -> list[str]:
    """What a module defines itself, in the order of its lines."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.append(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names += [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
    return names


def fault_of_order(public: set[str], reference: str, port: str) -> str:
    """The first public name in another place, among those that both sources define; "" if there is none."""
    common = public.intersection(definitions(reference), definitions(port))
    orders = [[name for name in definitions(source) if name in common] for source in (reference, port)]
    return next((f"{found} stands where {name} does" for name, found in zip(*orders, strict=True) if name != found), "")


@NO_TORCH
@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_twins_have_the_same_public_names_signatures_and_order_of_definitions(name: str) -> None:
    reference, port = twins(name)
    assert faults_of_names(reference, port) == []
    assert fault_of_order(public(reference), inspect.getsource(reference), inspect.getsource(port)) == ""


@NO_TORCH
@pytest.mark.parametrize("name", sorted(modules_of(import_module("torch_port.exercises")) - {"arrays"}))
def test_references_of_an_exercise_have_the_same_public_names_signatures_and_order_of_definitions(name: str) -> None:
    modules = (f"numpy_ref.exercises.solutions.{name}", f"torch_port.exercises.{name}")
    reference, port = map(import_module, modules)
    names = {name for name in public(reference) if inspect.isfunction(getattr(reference, name))}  # of aliases, none
    assert set(exercise_named(name).functions) <= names
    assert [
        fault for each in sorted(names) for fault in faults_of_pair(each, *(vars(m)[each] for m in (reference, port)))
    ] == []
    assert fault_of_order(names, inspect.getsource(reference), inspect.getsource(port)) == ""


def test_every_exercise_has_its_references() -> None:
    assert modules_of(import_module("numpy_ref.exercises.solutions")) == set(EXERCISES)
    assert modules_of(import_module("torch_port.exercises")) <= {"arrays", *EXERCISES}  # where they differ


def test_what_computes_has_a_twin_and_what_handles_files_and_verdicts_has_none() -> None:
    assert faults_of_modules(modules_of(numpy_ref), modules_of(torch_port)) == []


# A module and a twin that may differ from it so far; each mutant is the twin with one fault.

ORDERED = """
def draw(state): ...
def step(state): ...
"""


class State:
    def __init__(self, t): ...
    def later(self, n, *, by=1): ...


class PortState:
    def __init__(self, t: float): ...
    def later(self, n, *, by=1): ...
    def sooner(self): ...


class OfTorch:
    """Prints as one of torch's types does."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"torch.{self.name}"


FLOAT32, FLOAT64 = OfTorch("float32"), OfTorch("float64")


def made(**names: Any) -> Any:
    return SimpleNamespace(__all__=sorted(names), **names)


def draw(state, n, *, dtype=np.float32): ...
def port_draw(state: PortState, n: int, *, dtype=FLOAT32): ...


REFERENCE = {"STEPS": 3, "State": State, "draw": draw, "row_named": row_named}
PORT = REFERENCE | {"State": PortState, "draw": port_draw}


def test_twins_may_differ_in_annotations_further_methods_and_the_framework_of_a_type() -> None:
    assert faults_of_names(made(**REFERENCE), made(**PORT)) == []


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("further", 1),
        ("STEPS", 4),
        ("STEPS", 3.0),
        ("STEPS", lambda: 3),
        ("State", lambda t: t),
        ("draw", lambda state, m, *, dtype=np.float32: m),
        ("draw", lambda n, state, *, dtype=np.float32: n),
        ("draw", lambda state, n, dtype=np.float32: n),
        ("draw", lambda state, n, *, dtype: n),
        ("draw", lambda state, n, *, dtype=FLOAT64: n),
        ("draw", lambda state, n, *, dtype=np.float32, **settings: n),
        ("row_named", exercise_named),
    ],
)
def test_another_name_signature_or_object_in_a_twin_is_found(name: str, wrong: Any) -> None:
    assert [f.split(":")[0] for f in faults_of_names(made(**REFERENCE), made(**PORT | {name: wrong}))] == [name]
    if name in PORT:
        fewer = {other: thing for other, thing in PORT.items() if other != name}
        assert faults_of_names(made(**REFERENCE), made(**fewer)) == [f"{name}: in one module only"]


def test_another_signature_of_a_method_is_found() -> None:
    wrong = type("Wrong", (), {"__init__": PortState.__init__, "later": lambda self, n, *, by=2: n})
    assert [f.split(":")[0] for f in faults_of_names(made(**REFERENCE), made(**PORT | {"State": wrong}))] == [
        "State.later"
    ]


def test_another_order_of_definitions_is_found() -> None:
    names = {"draw", "step"}
    later = "def helper(): ...\ndef step(state): ...\ndraw: object = None"
    assert fault_of_order(names, ORDERED, ORDERED) == ""
    assert fault_of_order(names, ORDERED, later) == "step stands where draw does"


@pytest.mark.parametrize("name", sorted(TWINS))
def test_a_module_without_its_twin_is_found(name: str) -> None:
    assert faults_of_modules(TWINS | {"store"}, TWINS | OF_PYTORCH) == []
    assert faults_of_modules(TWINS, TWINS - {name}) == [f"{name}: in one package only"]
    assert faults_of_modules(TWINS - {name}, TWINS) == [f"{name}: in one package only"]


def test_a_second_module_for_what_exists_once_is_found() -> None:
    assert faults_of_modules(TWINS | {"cli"}, TWINS | {"cli"}) == ["cli: in torch_port, and not listed"]
    assert faults_of_modules(TWINS | {"interop"}, TWINS | {"interop"}) == ["interop: of PyTorch, and in numpy_ref"]


# A process in which torch cannot be imported.

IMPORT_ALL = """
import importlib, pkgutil, sys
package = importlib.import_module(sys.argv[1])
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".") if "__main__" not in m.name]
for name in names:
    importlib.import_module(name)
print(len(names))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose torch ends the process that imports it, and with packages that do so."""
    folder = tmp_path_factory.mktemp("without_torch")
    (folder / "torch.py").write_text("raise SystemExit('torch was imported')\n")
    for package, source in (("eager", "import torch"), ("lenient", "try: import torch\nexcept ImportError: pass")):
        (folder / package).mkdir()
        (folder / package / "__init__.py").touch()
        (folder / package / "arithmetic.py").write_text(source)
    return folder


def without_torch(folder: Path, *words: object) -> tuple[int, str]:
    """The status and all that Python says to these words where torch cannot be imported."""
    done = python(*words, cwd=folder, PYTHONPATH=os.pathsep.join(map(str, (folder, ROOT))))
    return done.returncode, done.stdout + done.stderr


def test_every_module_of_the_reference_is_imported_where_torch_cannot_be(folder: Path) -> None:
    others = [path for path in (ROOT / "numpy_ref").glob("**/*.py") if path.name != "__main__.py"]
    assert without_torch(folder, "-c", IMPORT_ALL, "numpy_ref") == (0, f"{len(others) - 1}\n")  # the package itself


@pytest.mark.parametrize("package", ["eager", "lenient"])
def test_a_package_with_a_module_that_imports_torch_is_found(folder: Path, package: str) -> None:
    assert without_torch(folder, "-c", IMPORT_ALL, package) == (1, "torch was imported\n")
    assert without_torch(folder, "-c", f"import {package}") == (0, "")


@pytest.mark.parametrize("package", ["numpy_ref", "torch_port"])
def test_help_needs_no_torch(folder: Path, package: str) -> None:
    status, said = without_torch(folder, "-m", package, "--help")
    assert status == 0
    assert f"python -m {package}" in said


def test_importing_the_port_alone_imports_no_torch(folder: Path) -> None:
    assert without_torch(folder, "-c", "import torch_port; print(len(dir(torch_port)))") == (
        0,
        f"{len(torch_port.__all__)}\n",
    )
    assert without_torch(folder, "-c", "import torch_port; torch_port.RunConfig(), torch_port.load_data") == (0, "")
    assert without_torch(folder, "-c", "import torch_port; torch_port.init_run") == (1, "torch was imported\n")


@NO_TORCH
def test_every_name_of_the_port_is_there_and_no_other() -> None:
    assert all(getattr(torch_port, name) is not None for name in torch_port.__all__)
    assert dir(torch_port) == torch_port.__all__ == sorted(torch_port.__all__)
    with pytest.raises(AttributeError, match="no attribute 'no_such_name'"):
        torch_port.no_such_name  # noqa: B018


@NO_TORCH
def test_both_packages_have_the_same_names_but_for_devices_and_measurements() -> None:
    assert public(torch_port) == public(numpy_ref) | ONLY_IN_THE_PORT
    for name in numpy_ref.__all__:
        taken = getattr(torch_port, name)
        assert taken.__module__.startswith("torch_port.") or taken is getattr(numpy_ref, name)
