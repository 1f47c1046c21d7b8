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

from numpy_ref.exercises.arrays import PLAIN
from numpy_ref.exercises.exercise import Exercise, Loss, described, short
from numpy_ref.exercises.source import OWN, FileFault, shown, signatures


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
        self._wanted = signatures(exercise)
        self._last = ("", "", "")  # the last call's function, its place, and what it returned in words
        self._name = f"solution_{path.stem}"
        self._loaded = {name: module for name, module in sys.modules.items() if name != self._name}
        self._own = [name for name in self._loaded if name.partition(".")[0] in OWN]
        self._saved = [(m, {k: v for k, v in vars(m).items() if callable(v)}) for m in (builtins, *modules)]
        with np.errstate():  # whatever the file sets for the whole process
            module = self._run()
        for name, definition in self._wanted.items():
            arguments = definition.args
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

    def unreadable(self, error: Exception) -> Loss:
        """What an exception means that a law met in what was returned to it."""
        name, place, found = self._last
        cause = f"reading it raised {said_by(error)}"
        if not name:
            return Loss("the law could not begin", place=self._path.name, cause=cause)
        where, wanted = place_of(error.__traceback__, self._path) or place, self._wanted[name].returns
        what = f"what came back cannot be read; {name} was called last"
        expected = ast.unparse(wanted) if wanted else "what its docstring says"
        return Loss(what, "result", expected=expected, found=found, place=where, cause=cause)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"the exercise asks for no function {name!r}")

    def _run(self) -> ModuleType:
        """The module that the file makes."""
        module = ModuleType(self._name)
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
            found = (
                short(str(inspect.signature(function))) if inspect.isfunction(function) else "what cannot take these"
            )
            raise FileFault(
                f"{self._place(function)}: {name} must take ({shown(wanted)}), found {found}: {short(str(error))}"
            ) from None
        except ValueError:  # a builtin without a signature: the call will tell
            pass

    def _place(self, function: Callable[..., Any]) -> str:
        """Where a function is defined."""
        code = getattr(function, "__code__", None)
        return self._path.name + (f":{code.co_firstlineno}" if code is not None else "")

    def _watched(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose exceptions are losses."""
        place = self._place(function)

        def call(*arguments: Any, **named: Any) -> Any:
            try:
                with self._unchanged():
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

    @contextmanager
    def _unchanged(self) -> Iterator[None]:
        """Hide our packages from the code within; put back what it replaces in the libraries, and say that it did."""
        for name in self._own:
            sys.modules.pop(name, None)
        sys.meta_path.insert(0, _REFUSAL)
        try:
            yield
        finally:
            sys.modules.update(self._loaded)
            if _REFUSAL in sys.meta_path:
                sys.meta_path.remove(_REFUSAL)
            replaced = []
            for module, saved in self._saved:
                now = vars(module)
                for key in [key for key, value in saved.items() if now.get(key, saved) is not value]:
                    now[key] = saved[key]
                    replaced.append(f"{module.__name__}.{key}")
            if replaced:
                text = f"replaces {', '.join(sorted(replaced)[:3])}; a solution must leave the libraries as they are"
                raise Loss(text, place=self._path.name)


class _Refusal:
    """Refuses to import this project's own packages: with them, others would do the work."""

    def find_spec(self, name: str, *_: Any) -> None:
        """See `importlib.abc.MetaPathFinder`."""
        if name.partition(".")[0] in OWN:
            raise ImportError(f"{short(name)}: a solution must not use this project's own packages")


_REFUSAL: Any = _Refusal()


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
