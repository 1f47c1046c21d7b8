"""The classes and functions that a file asks for: those that are allowed by name, and the rest, which are refused."""

import builtins
import importlib
import json
import pickletools
import re
import shlex
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from operator import attrgetter
from typing import Any, BinaryIO, NoReturn

import numpy as np
import torch

from numpy_ref.checkpoint.container import IncompatibleCheckpoint
from numpy_ref.tree import printable
from torch_port.interop.errors import Path, fail

OF_A_SCRIPT = (
    "of the script that saved the file itself, so no other program can import it, and it cannot be allowed. Save a "
    "plain dict in its place, as of vars(args)."
)
# Code of these modules acts on the machine; who wants it run need not compare it.
NEVER = "os posix nt sys subprocess shutil socket importlib runpy pty ctypes pickle _pickle webbrowser commands"


def refused(file: BinaryIO, allowed: list[Any], message: str) -> list[str]:
    """The classes and functions that a file asks for and torch does not let it have."""
    names = set(re.findall(r"GLOBAL ([\w.]+)", message))
    with suppress(Exception), torch.serialization.safe_globals(allowed):  # only an archive can be asked
        file.seek(0)
        names |= set(torch.serialization.get_unsafe_globals_in_checkpoint(file))
    if "Unsupported operand" in message:
        with suppress(Exception):  # parsed, and not run
            file.seek(0)
            names |= _globals(file)
    return sorted({name if "." in name else f"builtins.{name}" for name in names})


def _globals(file: BinaryIO) -> set[str]:
    """The classes and functions that a plain pickle asks for."""
    names, texts = set(), ["", ""]
    for code, argument, _ in pickletools.genops(file):
        if code.name == "GLOBAL":
            names.add(str(argument).replace(" ", "."))
        elif code.name == "STACK_GLOBAL":
            names.add(".".join(texts))
        elif isinstance(argument, str):
            texts = [texts[1], argument]
    return names


def refuse(path: Path, names: list[str]) -> NoReturn:
    """Name what a file asks for, and how to let it have that."""
    shown = ", ".join(map(printable, names))
    if any(_acts(name) for name in names):
        advice = "Loading it would run commands on this machine, and nothing allows that here: do not trust this file."
    elif own := [printable(name) for name in names if _is_of_a_script(name)]:
        advice = f"{', '.join(own)}: {OF_A_SCRIPT}"
    else:
        options = " ".join(f"--allow {shlex.quote(printable(name))}" for name in names)
        advice = (
            "Loading them runs their code. If you know each of them and trust the file, allow them by name: "
            f"{options} (in Python: allow={json.dumps(names)}). Or save tensors and plain values."
        )
    fail(IncompatibleCheckpoint, path, "tensors and plain values", f"a file that asks for {shown}", advice)


def _is_of_a_script(name: str) -> bool:
    """Whether a name is of a script that was run, and not of the one that runs now."""
    module, _, last = name.rpartition(".")
    if module.split(".")[0] != "__main__":
        return False
    with suppress(ImportError, AttributeError, ValueError):
        return not _imported(module, last)
    return True


def _acts(name: str) -> bool:
    """Whether a name is of what acts on the machine."""
    top = name.split(".")[0]
    if top in ("builtins", "__builtin__"):
        return not isinstance(getattr(builtins, name.split(".")[-1], None), type)
    return top in NEVER.split()


def allowed_by_name(names: Sequence[str]) -> list[Any]:
    """The classes and functions of these names, as torch's list of safe globals takes them."""
    if isinstance(names, str):
        raise ValueError(f"allow: expected a list of names, found {names!r}")
    faults: list[str] = []
    found: list[Any] = []
    for name in names:
        module, _, last = name.rpartition(".")
        if _acts(name):
            faults.append(f"{name}: acts on the machine, and is never allowed here")
            continue
        try:
            thing = _imported(module.replace("numpy.core", "numpy._core"), last)
        except (ImportError, AttributeError, ValueError):
            what = "expected the full name of a class or function that can be imported"
            faults.append(f"{name}: {OF_A_SCRIPT if _is_of_a_script(name) else what}")
            continue
        found.append((dict_of if thing is defaultdict else thing, name))
        if thing is np.dtype:
            found += [kind for kind in vars(np.dtypes).values() if isinstance(kind, type)]
    if faults:
        raise ValueError("allow: mend each of these:\n    " + "\n    ".join(sorted(faults)))
    return found


def dict_of(*_: Any) -> dict[Any, Any]:
    """What stands in for a `defaultdict`, which torch's restricted unpickler does not fill."""
    return {}


def _imported(module: str, name: str) -> Any:
    """A class or function; one within a class has the class's name in its module's."""
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        outer, _, inner = module.rpartition(".")
        if not outer:
            raise
        return attrgetter(f"{inner}.{name}")(importlib.import_module(outer))
