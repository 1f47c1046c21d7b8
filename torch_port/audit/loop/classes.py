"""What the user's classes hold themselves: counters and generators that all of their objects share, and methods."""

import functools
import site
import sys
import sysconfig
import types
from enum import Enum
from pathlib import Path
from typing import Any

PATHS = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
LIBRARIES = tuple({*PATHS, *site.getsitepackages(), site.getusersitepackages()})


@functools.cache
def is_users(name: str | None, module: str) -> bool:
    """Whether a module is of the user's own code: of the package of the audited one, or not installed.

    Args:
        name: of the module of a class or a function.
        module: name of the module that the audit was pointed to.
    """
    if name is None:
        return False
    package = name.partition(".")[0]
    if package in sys.stdlib_module_names or package in ("torch", "numpy"):
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    installed = file is None or any(Path(file).is_relative_to(folder) for folder in LIBRARIES)
    return package == module.partition(".")[0] or not installed


def path_of_class(cls: type, module: dict[str, Any]) -> str:
    """Where a class stands: under its own name, among the globals of the audited module if it is there.

    Args:
        cls: the class.
        module: those globals.
    """
    name = cls.__qualname__.rpartition("<locals>.")[2]
    outer = module.get(name.partition(".")[0])
    within = isinstance(outer, type) and (outer.__module__, outer.__qualname__) == (
        cls.__module__, cls.__qualname__[: len(outer.__qualname__)])  # fmt: skip
    return f"globals.{name}" if outer is cls or (within and "." in name) else name


def held_by_class(cls: type) -> list[tuple[str, Any]]:
    """The attributes of a class that may be state: no functions, properties and the like, no members of an enum."""
    return [] if issubclass(cls, Enum) else [
        (name, value) for name, value in list(vars(cls).items())
        if not name.startswith("__") and not hasattr(type(value), "__get__")
    ]  # fmt: skip


def methods_of_class(cls: type) -> list[tuple[str, Any]]:
    """The functions that a class defines, whatever they are wrapped in: they have closures and defaults."""
    found: list[tuple[str, Any]] = []
    for name, value in [] if issubclass(cls, Enum) else list(vars(cls).items()):
        inner = value.__func__ if isinstance(value, (staticmethod, classmethod)) else value
        sides = (inner.fget, inner.fset, inner.fdel) if isinstance(inner, property) else (inner,)
        found += [(name, side) for side in sides if isinstance(side, (types.FunctionType, types.MethodType))]
    return found
