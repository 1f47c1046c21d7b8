"""A learner's file, run: its functions, each call watched, so that whatever goes wrong has one line and a place.

Nothing here trusts the file. Its exceptions become a `Loss`; an exit is an exception; names of the framework or of
Python that it replaces are put back, and that it did so is said.
"""

import ast
import builtins
import inspect
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Exercise, Loss, short
from numpy_ref.exercises.source import FileFault, shown, signatures


class Learner:
    """The functions of a learner's file, as attributes.

    Args:
        path: the file.
        exercise: says which functions there must be.
        modules: those that the file must leave as they are, besides Python's own builtins.

    Raises:
        FileFault: the file cannot be run, lacks a function, or one takes other arguments.
    """

    def __init__(self, path: Path, exercise: Exercise, modules: tuple[Any, ...] = ()) -> None:
        self._path, self._exercise, self._modules = path, exercise, modules
        self._saved = [(m, {k: v for k, v in vars(m).items() if callable(v)}) for m in (builtins, *modules)]
        with np.errstate():  # whatever the file sets for the whole process
            module = self._run()
        for name, arguments in signatures(exercise).items():
            function = getattr(module, name, None)
            if function is None:
                raise FileFault(f"{path.name}: {name} is missing; it must be {name}({shown(arguments)})")
            if not callable(function):
                raise FileFault(f"{path.name}: {name} must be a function, found {type(function).__name__}")
            self._check_signature(name, function, arguments)
            setattr(self, name, self._watched(name, function))

    def again(self) -> "Learner":
        """The same file, run anew: its functions know nothing of what these were asked."""
        return Learner(self._path, self._exercise, self._modules)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the exercise asks for no function {name!r}")

    def _run(self) -> ModuleType:
        """The module that the file makes."""
        module = ModuleType(f"solution_{self._path.stem}")
        module.__file__ = str(self._path)
        sys.modules[module.__name__] = module  # as classes of the module expect
        if str(self._path.parent) not in sys.path:
            sys.path.append(str(self._path.parent))  # last: files beside it may be imported, and hide nothing
        try:
            with warnings.catch_warnings(action="ignore"):
                code = compile(self._path.read_bytes(), str(self._path), "exec", dont_inherit=True)
            with self._unchanged():
                exec(code, module.__dict__)
        except Loss as loss:
            raise FileFault(str(loss)) from None
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            where = place_of(error.__traceback__, self._path) or self._path.name
            raise FileFault(f"{where}: cannot be imported: {said_by(error)}") from None
        return module

    def _check_signature(self, name: str, function: Callable[..., Any], wanted: ast.arguments) -> None:
        """Refuse a function that cannot be called as the exercise says."""
        positional = [argument.arg for argument in wanted.posonlyargs + wanted.args]
        by_name = [argument.arg for argument in wanted.kwonlyargs]
        try:
            inspect.signature(function).bind(*positional, **dict.fromkeys(by_name))
        except TypeError as error:
            code = getattr(function, "__code__", None)
            line = f":{code.co_firstlineno}" if code is not None else ""
            found = (
                short(str(inspect.signature(function))) if inspect.isfunction(function) else "what cannot take these"
            )
            raise FileFault(
                f"{self._path.name}{line}: {name} must take ({shown(wanted)}), found {found}: {short(str(error))}"
            ) from None
        except ValueError:  # a builtin without a signature: the call will tell
            pass

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose exceptions are losses."""

        def call(*arguments: Any, **named: Any) -> Any:
            try:
                with self._unchanged():
                    return function(*arguments, **named)
            except (Loss, KeyboardInterrupt):
                raise
            except NotImplementedError as error:
                place = place_of(error.__traceback__, self._path)
                raise Loss(f"{name} is not written yet", place=place) from None
            except BaseException as error:
                place = place_of(error.__traceback__, self._path) or self._path.name
                raise Loss(f"{name} raised {said_by(error)}", place=place) from None

        return call

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Put back what the code within replaces in the libraries, and say that it did."""
        try:
            yield
        finally:
            replaced = []
            for module, saved in self._saved:
                now = vars(module)
                for key in [key for key, value in saved.items() if now.get(key, saved) is not value]:
                    now[key] = saved[key]
                    replaced.append(f"{module.__name__}.{key}")
            if replaced:
                text = f"replaces {', '.join(sorted(replaced)[:3])}; a solution must leave the libraries as they are"
                raise Loss(text, place=self._path.name)


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
