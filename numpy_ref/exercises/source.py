"""Files of solutions as text: the stub made from a reference, the marker in it, and what can be told without running.

The reference is the one place where signatures and docstrings are written: the stub is the reference with the bodies
of the functions that the exercise asks for left out, and the private helpers with them.
"""

import ast
import io
import re
import tokenize
import warnings
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from numpy_ref.exercises import EXERCISES
from numpy_ref.exercises.exercise import Exercise, short

REFERENCES = {"numpy": "numpy_ref.exercises.solutions", "torch": "torch_port.exercises"}
TITLES = {"numpy": "NumPy", "torch": "PyTorch"}
LARGEST = 1 << 20  # bytes of a solution; the references have a few thousand

_MARKER = re.compile(r"^#\s*exercise:\s*(\w+),\s*in:\s*(\w+)", re.MULTILINE)


class FileFault(Exception):
    """Why a file cannot be graded at all, in one line."""


class Solution(NamedTuple):
    """A file as text."""

    path: Path
    text: str
    tree: ast.Module


def reference_text(exercise: Exercise, framework: str) -> str:
    """The source of a reference solution; it is found and not imported.

    Where `torch_port.exercises` has none, it is the one in NumPy in PyTorch's words.
    """
    path = _folder(REFERENCES[framework]) / f"{exercise.name}.py"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    text = (_folder(REFERENCES["numpy"]) / f"{exercise.name}.py").read_text(encoding="utf-8")
    for word, other in _IN_TORCH:
        text = re.sub(word, other, text)
    return text if re.search(r"\bAny\b", text.replace(_IMPORT, "")) else text.replace(_IMPORT, "")


_IMPORT = "from typing import Any\n\n"
_IN_TORCH = (  # what NumPy calls otherwise than PyTorch
    (r"import numpy as np", "import torch"),
    (r"np\.ndarray\[Any, Any\]", "torch.Tensor"),
    (r"\bnp\.", "torch."),
    (r"\.copy\(\)", ".clone()"),
    (r"\.astype\(", ".to("),
    (r"\b(NumPy )?arrays\b", "tensors"),
    (r"\ban array\b", "a tensor"),
    (r"\bthe array\b", "the tensor"),
)


def _folder(package: str) -> Path:
    """Where the files of a package are."""
    spec = find_spec(package)
    return Path(next(iter((spec and spec.submodule_search_locations) or [])))


def signatures(exercise: Exercise) -> dict[str, ast.FunctionDef]:
    """The functions to write, by name, as the reference in NumPy defines them."""
    tree = ast.parse(reference_text(exercise, "numpy"))
    found = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    return {name: found[name] for name in exercise.functions}


def shown(arguments: ast.arguments) -> str:
    """Arguments without their annotations.

    Example:
        >>> shown(ast.parse("def f(params: list, *, momentum: float = 0.9): ...").body[0].args)
        'params, *, momentum=0.9'
    """
    return ast.unparse(_Bare().visit(deepcopy(arguments)))


class _Bare(ast.NodeTransformer):
    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(node.arg)


def stub_text(exercise: Exercise, framework: str) -> str:
    """What a learner starts from: the reference with empty bodies.

    Args:
        exercise: the exercise.
        framework: "numpy" or "torch".
    """
    text = reference_text(exercise, framework)
    lines: list[str | None] = list(text.splitlines())
    for node in ast.parse(text).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        if node.name in exercise.functions:
            last = node.body[0].end_lineno or 0  # of the docstring
            lines[last : node.end_lineno] = [
                "    raise NotImplementedError",
                *[None] * ((node.end_lineno or 0) - last - 1),
            ]
        elif node.name.startswith("_"):
            lines[node.lineno - 1 : node.end_lineno] = [None] * ((node.end_lineno or 0) - node.lineno + 1)
    body = re.sub(r"\n{4,}", "\n\n\n", "\n".join(line for line in lines if line is not None))
    body = re.sub(r"  # (type: ignore|fmt: ).*", "", body)  # of our tools
    return f"# exercise: {exercise.name}, in: {framework}\n{body.rstrip()}\n"


def read_solution(path: Path) -> Solution:
    """A learner's file as text.

    Raises:
        FileFault: it cannot be read, or is no Python.
    """
    try:
        if not path.is_file():
            raise FileFault(
                f"{short(str(path))}: expected a Python file, found {'a directory' if path.is_dir() else 'none'}"
            )
        if path.stat().st_size > LARGEST:
            raise FileFault(f"{path.name}: expected at most {LARGEST} bytes, found {path.stat().st_size}")
        data = path.read_bytes()
    except (OSError, ValueError) as error:
        raise FileFault(f"{short(str(path))}: cannot be read: {getattr(error, 'strerror', None) or error}") from None
    try:
        text = data.decode(tokenize.detect_encoding(io.BytesIO(data).readline)[0])
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(data, str(path))
            compile(data, str(path), "exec", dont_inherit=True)  # tells more than the parser: a return outside, say
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        text = f"not Python: bytes that are not {error.encoding}; save it as UTF-8"
        raise FileFault(f"{path.name}:{number}: {text}") from None
    except SyntaxError as error:
        line = f":{error.lineno}" if error.lineno else ""
        raise FileFault(f"{path.name}{line}: not Python: {short(error.msg)}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise FileFault(f"{path.name}: not Python: {short(str(error)) or type(error).__name__}") from None
    return Solution(path, text, tree)


def exercise_of(solution: Solution) -> str:
    """The name of the exercise that a file solves: its marker's, else its own.

    Raises:
        ValueError: neither names one.
    """
    marker = _MARKER.search(solution.text)
    name = marker[1] if marker else solution.path.stem
    if name not in EXERCISES:
        raise ValueError(
            f"{solution.path.name}: which exercise is it? Say --exercise NAME, one of {', '.join(EXERCISES)}; "
            f"the file's {'marker' if marker else 'name'} says {short(name)!r}"
        )
    return name


def claimed(path: Path) -> tuple[str | None, str | None]:
    """The exercise and the framework that a file's marker and name claim, also of one that is no Python."""
    try:
        with open(path, "rb") as file:
            marker = _MARKER.search(file.read(LARGEST).decode("utf-8", "replace"))
    except OSError:
        marker = None
    name, framework = marker.groups() if marker else (path.stem, None)
    return name if name in EXERCISES else None, framework if framework in TITLES else None


def framework_of(solution: Solution, default: str) -> str:
    """The framework of a file: what its marker says, else what it imports, else the default."""
    marker = _MARKER.search(solution.text)
    if marker and marker[2] in TITLES:
        return marker[2]
    imported = _imports(solution)
    return "torch" if "torch" in imported else "numpy" if "numpy" in imported else default


def _imports(solution: Solution) -> set[str]:
    """The packages that a file imports."""
    found = set()
    for node in ast.walk(solution.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add((node.module or "").partition(".")[0])
    return found


def unwritten(solution: Solution, exercise: Exercise) -> list[str]:
    """The functions of the exercise that are still empty where they are last defined, with their lines."""
    last: dict[str, ast.AST] = {}
    nodes = [node for node in ast.walk(solution.tree) if isinstance(node, (ast.stmt, ast.Name, ast.alias))]
    for node in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
        last |= dict.fromkeys(_names(node, exercise.functions), node)
    functions = filter(None, map(last.get, exercise.functions))
    return [
        f"{node.name} (line {node.lineno})"
        for node in functions
        if isinstance(node, ast.FunctionDef) and all(map(_is_empty, node.body))
    ]


def _names(node: ast.AST, wanted: tuple[str, ...]) -> tuple[str, ...]:
    """The names that a statement, or a part of one, gives a value."""
    if isinstance(node, ast.alias):
        return wanted if node.name == "*" else (node.asname or node.name,)
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return (node.name,)
    return (node.id,) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) else ()


def _is_empty(line: ast.stmt) -> bool:
    """Whether a statement does nothing yet: a docstring, `...`, `pass`, or NotImplementedError."""
    if isinstance(line, ast.Raise):
        return "NotImplementedError" in ast.unparse(line)
    return isinstance(line, ast.Pass) or (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
