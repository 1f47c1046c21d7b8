"""A solution's functions, each call watched, so that whatever goes wrong has one line and a place.

Nothing here trusts a learner's file: its exceptions become a `Loss`, and an exit is an exception.
"""

import ast
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from numpy_ref.exercises.arrays import PLAIN
from numpy_ref.exercises.exercise import Arrays, Check, Exercise, Loss, described, short
from numpy_ref.exercises.source import FileFault, shown, signatures


class Functions:
    """The functions that an exercise asks for, as attributes.

    Args:
        path: the file they are from; a loss names places in it.
        exercise: says which functions there are.
        load: makes them, by name; another call makes others that know nothing of what the first were asked.
    """

    def __init__(self, path: Path, exercise: Exercise, load: Callable[[], Mapping[str, Any]]) -> None:
        self._path, self._exercise, self._load = path, exercise, load
        self._last = ("", "", "")  # the last call's function, its place, and what it returned in words
        for name, function in load().items():
            setattr(self, name, self._watched(name, function))

    def again(self) -> "Functions":
        """The same, loaded once more: they know nothing of what these were asked."""
        return Functions(self._path, self._exercise, self._load)

    def outcome(self, check: Check, arrays: Arrays) -> tuple[Any, Loss | None]:
        """What a law's function returns, and the loss that it raises."""
        try:
            with np.errstate(all="ignore"):
                return check(self, arrays), None
        except FileFault:
            raise
        except Loss as loss:
            return None, loss
        except Exception as error:  # met by the law itself, in what came back
            return None, self._unreadable(error)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the exercise asks for no function {name!r}")

    def _unreadable(self, error: Exception) -> Loss:
        """What an exception means that a law met in what was returned to it."""
        name, place, found = self._last
        cause = f"reading it raised {said_by(error)}"
        if not name:
            return Loss("the law could not begin", place=self._path.name, cause=cause)
        where, wanted = place_of(error.__traceback__, self._path) or place, signatures(self._exercise)[name].returns
        what = f"what came back cannot be read; {name} was called last"
        expected = ast.unparse(wanted) if wanted else "what its docstring says"
        return Loss(what, "result", expected=expected, found=found, place=where, cause=cause)

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose exceptions are losses."""
        place = _defined(self._path, function)

        def call(*arguments: Any, **named: Any) -> Any:
            try:
                value = function(*arguments, **named)
                self._last = (name, place, _outlined(value))
                return value
            except (Loss, KeyboardInterrupt):
                raise
            except NotImplementedError as error:
                where = place_of(error.__traceback__, self._path)
                raise Loss(f"{name} is not written yet", place=where) from None
            except BaseException as error:
                where = place_of(error.__traceback__, self._path) or self._path.name
                raise Loss(f"{name} raised {said_by(error)}", place=where) from None

        return call


def learner(path: Path, exercise: Exercise) -> Functions:
    """The functions of a learner's file.

    Raises:
        FileFault: the file cannot be run, lacks a function, or one takes other arguments.
    """
    return Functions(path, exercise, partial(_functions_of, path, exercise))


def _functions_of(path: Path, exercise: Exercise) -> dict[str, Any]:
    with np.errstate():  # whatever the file sets for the whole process
        module = _run(path)
    functions = {}
    for name, definition in signatures(exercise).items():
        function = getattr(module, name, None)
        if function is None:
            raise FileFault(f"{path.name}: {name} is missing; it must be {name}({shown(definition.args)})")
        if not callable(function):
            raise FileFault(f"{path.name}: {name} must be a function, found {type(function).__name__}")
        _check_signature(path, name, function, definition.args)
        functions[name] = function
    return functions


def _run(path: Path) -> ModuleType:
    """The module that a file makes."""
    module = ModuleType(f"solution_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # as classes of the module expect
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last: files beside it may be imported, and hide nothing
    try:
        with warnings.catch_warnings(action="ignore"):
            code = compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
        exec(code, module.__dict__)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        where = place_of(error.__traceback__, path) or path.name
        raise FileFault(f"{where}: cannot be imported: {said_by(error)}") from None
    return module


def _check_signature(path: Path, name: str, function: Callable[..., Any], wanted: ast.arguments) -> None:
    """Refuse a function that cannot be called as the exercise says."""
    positional = [argument.arg for argument in wanted.posonlyargs + wanted.args]
    by_name = [argument.arg for argument in wanted.kwonlyargs]
    try:
        inspect.signature(function).bind(*positional, **dict.fromkeys(by_name))
    except TypeError as error:
        found = short(str(inspect.signature(function))) if inspect.isfunction(function) else "what cannot take these"
        raise FileFault(
            f"{_defined(path, function)}: {name} must take ({shown(wanted)}), found {found}: {short(str(error))}"
        ) from None
    except ValueError:  # a builtin without a signature: the call will tell
        pass


def _defined(path: Path, function: Callable[..., Any]) -> str:
    """Where a function is defined."""
    code = getattr(function, "__code__", None)
    return path.name + (f":{code.co_firstlineno}" if code is not None else "")


def _outlined(value: Any) -> str:
    """A value in words, without going into it: an exercise may measure how long arrays live, and how fast calls are."""
    kind = type(value)  # exactly: what is derived from these may answer anything
    if kind in (list, tuple, dict):
        return f"a {kind.__name__} of {len(value)} entries"
    return described(value) if kind in (np.ndarray, *PLAIN) else f"a {kind.__name__}"


def place_of(trace: TracebackType | None, path: Path) -> str:
    """The innermost place in a file that a traceback passes, as in "resume.py:12"; "" if it does not."""
    lines = [line for frame, line in traceback.walk_tb(trace) if frame.f_code.co_filename == str(path)]
    return f"{path.name}:{lines[-1]}" if lines else ""


def said_by(error: BaseException) -> str:
    """An exception on one line."""
    if isinstance(error, SystemExit):
        return "SystemExit: it ends the program; return instead"
    name = type(error).__name__
    try:
        text = short(str(error))
    except Exception:  # a learner's own exception may do anything
        text = ""
    return f"{name}: {text}" if text else name
