"""Where a loop is to be found, checked before any process starts; nothing of it is imported here."""

import importlib.machinery
import importlib.util
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

__tracebackhide__ = True  # of every frame here: pytest shows a wrong loop where the test gives it
FORM = "'module:Name' or 'path/file.py:Name'"


def target_of(loop: Any) -> str:
    """Where new processes find a loop: by its module if they find that by its name, otherwise by its file.

    Args:
        loop: a class or function at the top level of a module; or text, which is checked and is the answer.

    Raises:
        ValueError: text of another form, or of what is not there.
        TypeError: a class or function that no other process can import.

    Example:
        >>> target_of("module")
        Traceback (most recent call last):
        ValueError: 'module': expected 'module:Name' or 'path/file.py:Name' as the loop
    """
    if isinstance(loop, str):
        _check(loop)
        return loop
    name, module = getattr(loop, "__qualname__", ""), getattr(loop, "__module__", None)
    home = sys.modules.get(module) if isinstance(module, str) else None
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    if home is None or found is not loop:
        raise TypeError(
            f"expected a class or function that is a module's own, by its name, found {loop!r}.\n"
            "    The loop is run in new processes, which import it: define it at the top level of a module, or give "
            "'path/file.py:Name'."
        )
    file = getattr(home, "__file__", None)
    if file is None:
        raise TypeError(f"expected a module with a file, found {home!r}, where {name} is defined")
    by_name = home.__name__ != "__main__" and _file_of(home.__name__) == Path(file).resolve()
    return f"{home.__name__ if by_name else Path(file).resolve()}:{name}"


def _check(target: str) -> None:
    """Refuse text that names no loop, or a file or module that is not there."""
    where, _, name = target.rpartition(":")
    is_file = where.endswith(".py")
    if not _is_dotted(name) or not (is_file or _is_dotted(where)):
        raise ValueError(f"{target!r}: expected {FORM} as the loop")
    if is_file:
        if not Path(where).is_file():
            raise ValueError(f"{target!r}: expected a file, found none at {Path(where).absolute()}")
        return
    top = where.partition(".")[0]  # what lies below it, the package itself may decide when it is imported
    given = list(dict.fromkeys(_given()))
    if importlib.machinery.PathFinder.find_spec(top, given) is None and not _is_found_here(top):
        raise ValueError(
            f"{target!r}: expected a module that Python finds, found no {top} in {', '.join(given)}, nor installed; "
            "a file elsewhere is given as 'path/file.py:Name'"
        )


def _is_dotted(name: str) -> bool:
    return all(part.isidentifier() for part in name.split("."))


def _is_found_here(module: str) -> bool:
    """Whether this process finds it, by whatever finders are installed."""
    return module in sys.modules or importlib.util.find_spec(module) is not None


def _given() -> list[str]:
    """Where a new process that is started here looks first."""
    return [os.getcwd(), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]


def _file_of(module: str) -> Path | None:
    """The file that a new process finds under a module's name."""
    library = sysconfig.get_path("stdlib")
    installed = sys.path[sys.path.index(library) :] if library in sys.path else []  # what comes behind the library
    places: Any = _given() + installed
    parts = module.split(".")
    for i in range(len(parts)):
        found = importlib.machinery.PathFinder.find_spec(".".join(parts[: i + 1]), places)
        if found is None:
            return None
        places = found.submodule_search_locations or []
    return Path(found.origin).resolve() if found is not None and found.origin is not None else None
