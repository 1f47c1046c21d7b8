"""The words in which exercises are written: a law, what a broken one says was lost, and comparisons that say it.

A law is a function of a solution and of its framework's arrays, and is written once for every framework:

    @law("a first hint", "a plainer one", "the plainest")
    def nothing_changes(solution, arrays):
        '''One sentence that a right solution makes true.'''
        given = arrays.given(draw_state())                        # in the solution's framework
        found = arrays.found("f", solution.f(given))              # a copy, in NumPy
        expect_same_bits("f", expected, found, cause="...")

It returns when it holds and raises `Loss` when it does not.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np

from numpy_ref.proof.equivalence import Tolerance, compare, same_bits
from numpy_ref.tree import printable


class Arrays(Protocol):
    """What a law needs of a framework. Trees are lists, tuples and dicts of arrays and plain values."""

    framework: str
    kind: str  # what the framework calls an array, as in "NumPy array"
    xp: Any  # the framework's module, for functions of the same name in all: zeros_like, sqrt, isfinite

    def given(self, tree: Any) -> Any:
        """The tree in new containers, each NumPy array as a new array of the framework."""

    def found(self, where: str, tree: Any) -> Any:
        """A copy in NumPy of what a solution returned; tuples become lists.

        Raises:
            Loss: something in it is neither an array of the framework nor a plain value.
        """

    def cast(self, array: Any, dtype: str) -> Any:
        """An array as another type, such as "float32"; in torch it is the same array where it has the type."""

    def copy(self, array: Any) -> Any:
        """A copy of an array of the framework."""

    def overwrite(self, tree: Any) -> None:
        """Change every array of the tree in place, where it may be written."""

    def disturb(self) -> None:
        """Draw from the global generators, as any other code may."""


Check = Callable[[Any, Arrays], Any]


@dataclass(frozen=True)
class Law:
    """One thing that a right solution does."""

    check: Check
    hints: tuple[str, str, str]  # each says more than the one before; none is the solution
    processes: int = 1  # more: the check returns a tree of NumPy arrays and plain values, the same in each of them

    @property
    def name(self) -> str:
        """The law's name, as in "checkpoint-is-independent"."""
        return self.check.__name__.replace("_", "-")

    @property
    def claim(self) -> str:
        """What a right solution makes true, in a sentence."""
        return (self.check.__doc__ or self.name).partition("\n")[0]


def law(*hints: str, processes: int = 1) -> Callable[[Check], Law]:
    """Make a law of a function whose docstring is its claim; three hints, each saying more.

    Args:
        hints: the three.
        processes: how many run it, each with another seed for Python's hashes. With more than one, what the function
            returns must be bitwise the same in all; where there are no processes it runs once.
    """
    first, second, third = hints
    return lambda check: Law(check, (first, second, third), processes)


@dataclass(frozen=True)
class Exercise:
    """What is asked, and how it is judged."""

    name: str
    title: str
    teaches: str  # a line for the list
    statement: str  # what to write
    idea: str  # why, in half a page
    functions: tuple[str, ...]  # those to write; the reference's other public names are given
    laws: tuple[Law, ...]
    trace: Check | None = None  # what two solutions must agree on: (solution, arrays) -> {name: tree of NumPy arrays}
    allowance: Tolerance | None = None  # between two right solutions' traces; without one they agree bitwise
    needs_files: bool = False

    def law(self, name: str) -> Law:
        """The law of a name."""
        return next(law for law in self.laws if law.name == name)


@dataclass(eq=False)
class Loss(Exception):
    """What a broken law says, in the learner's terms."""

    what: str
    where: str = ""  # the array and the place in it, as in "m_list[1][0, 2]"
    step: int | None = None  # the first at which it shows
    expected: Any = None  # plain numbers or texts
    found: Any = None
    distance: float | None = None
    ulps: int | None = None  # the same in units in the last place
    cause: str = ""
    place: str = ""  # in the learner's file, as in "resume.py:12"
    trees: Any = None  # the expected and the found tree, whole; not printed
    otherwise: str = ""  # the cause, unless a wrong version leads to the same

    def __str__(self) -> str:
        """One line a person can read."""
        text = f"{self.place}: {self.what}" if self.place else self.what
        if self.where:
            at = f"step {self.step}, " if self.step is not None else ""
            text += f": {at}{self.where}: expected {self.expected}, found {self.found}"
            if self.distance is not None:
                near = self.ulps is not None and self.ulps < 1_000_000  # more say nothing to a reader
                size = f", {self.ulps} units in the last place" if near else ""
                text += f" (distance {self.distance:.3g}{size})"
        return text

    def as_dict(self) -> dict[str, Any]:
        """The fields, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name not in _UNTOLD}


_UNTOLD = ("trees", "otherwise")


Cause = str | Callable[[], str]  # a text, or what finds it when it is needed


def expect(condition: bool, what: str, *, cause: str = "", otherwise: str = "") -> None:
    """Raise `Loss` with this text unless the condition is true."""
    if not condition:
        raise Loss(what, cause=cause, otherwise=otherwise)


def expect_same_bits(
    what: str,
    expected: Any,
    found: Any,
    *,
    step: int | None = None,
    cause: Cause = "",
    otherwise: str = "",
    whole: Any = None,
) -> None:
    """Compare two trees of NumPy arrays and plain values bit for bit.

    Args:
        what: what it would mean for them to differ, as in "the checkpoint changed".
        expected: the tree as it must be; its arrays are called by their paths, as in m_list[1].
        found: the tree judged.
        step: said with a difference.
        cause: said with a difference; a function is called only then.
        otherwise: said where there is no cause, and no wrong version of the exercise leads to the same.
        whole: (expected, found) of the whole law, by which wrong versions are told apart; default: the two trees.

    Raises:
        Loss: they differ; it tells of the first leaf that does, and of the worst element there.
    """
    try:
        for path, ours, theirs in paired(what, expected, found):
            if not same_bits(ours, theirs):
                raise _difference(what, path, ours, theirs)
    except Loss as loss:
        raise _explained(loss, step, cause, otherwise, whole or (expected, found)) from None


def expect_within(
    what: str,
    exact: Any,
    found: Any,
    allowance: Tolerance,
    *,
    step: int | None = None,
    cause: Cause = "",
    otherwise: str = "",
    whole: Any = None,
) -> None:
    """Compare as `expect_same_bits` does, but floating-point arrays of any type within an allowance of exact values."""
    try:
        for path, ours, theirs in paired(what, exact, found):
            if isinstance(ours, np.ndarray) and ours.dtype.kind == "f":
                theirs = theirs.astype(ours.dtype)
            if not compare({path: ours}, {path: theirs}, tolerance=allowance).holds:
                raise _difference(what, path, ours, theirs)
    except Loss as loss:
        raise _explained(loss, step, cause, otherwise, whole or (exact, found)) from None


def paired(what: str, expected: Any, found: Any, path: str = "") -> Iterator[tuple[str, Any, Any]]:
    """The leaves of two trees side by side.

    Raises:
        Loss: the trees have another structure, or arrays another shape.
    """
    if isinstance(expected, dict):
        _expect_like(what, path, expected, found, sorted(map(str, expected)), sorted(map(str, _keys(found))))
        for key, child in expected.items():
            yield from paired(what, child, found[key], f"{path}/{key}" if path else str(key))
    elif isinstance(expected, (list, tuple)):
        _expect_like(what, path, [], found, f"{len(expected)} entries", f"{_size(found)} entries")
        for i, child in enumerate(expected):
            yield from paired(what, child, found[i], f"{path}[{i}]")
    elif isinstance(expected, np.ndarray):
        shape = f"shape {found.shape}" if isinstance(found, np.ndarray) else "no array"
        _expect_like(what, path, expected, found, f"shape {expected.shape}", shape)
        yield path, expected, found
    else:
        yield path, expected, found


def same_tree(a: Any, b: Any) -> bool:
    """Whether two trees are bitwise equal."""
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same_tree(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return isinstance(b, (list, tuple)) and len(a) == len(b) and all(map(same_tree, a, b))
    return same_bits(a, b)


def unsigned(tree: Any) -> Any:
    """The tree with +0 for -0, which a right solution may have where a zero came by a product."""
    if isinstance(tree, dict):
        return {key: unsigned(child) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        return [unsigned(child) for child in tree]
    return tree + 0.0 if isinstance(tree, np.ndarray) and tree.dtype.kind == "f" else tree


def wrapped(value: int, bits: int) -> int:
    """An int as one of so many bits keeps it."""
    half = 1 << (bits - 1)
    return (value + half) % (2 * half) - half


def parts(function: str, value: Any, names: Sequence[str]) -> dict[str, Any]:
    """What a function returned, by the names of its parts.

    Raises:
        Loss: it is no tuple or list of so many.
    """
    wanted = f"{function} must return ({', '.join(names)})"
    expect(isinstance(value, (tuple, list)), f"{wanted}; it returned {described(value)}")
    expect(len(value) == len(names), f"{wanted}; it returned {len(value)} values")
    return dict(zip(names, value, strict=True))


def described(value: Any) -> str:
    """A value in a few words."""
    if isinstance(value, np.ndarray):
        return f"an array of shape {value.shape} and type {value.dtype}"
    return "None" if value is None else f"{type(value).__name__} {short(value)}"


def short(value: Any) -> str:
    r"""A value on one line, cut where it gets long; for one that cannot say what it is, a word.

    Example:
        >>> short("two\nlines"), short([1, 2])
        ('two lines', '[1, 2]')
    """
    try:
        text = value if isinstance(value, str) else repr(value)
        return printable(" ".join(text.split()))
    except Exception:  # a learner's own class may do anything
        return "(without a text)"


def _keys(tree: Any) -> list[Any]:
    return list(tree) if isinstance(tree, dict) else []


def _size(tree: Any) -> int:
    return len(tree) if isinstance(tree, (list, tuple)) else 0


def _expect_like(what: str, path: str, expected: Any, found: Any, ours: Any, theirs: Any) -> None:
    """Raise unless the two are of one kind of container and have the same of what names their children."""
    kinds = (list, tuple) if isinstance(expected, list) else type(expected)
    if not isinstance(found, kinds):
        wanted = "a dict" if isinstance(expected, dict) else "a list" if isinstance(expected, list) else "an array"
        raise Loss(what, where=path or "result", expected=wanted, found=described(found))
    if ours != theirs:
        raise Loss(what, where=path or "result", expected=short(ours), found=short(theirs))


def _explained(loss: Loss, step: int | None, cause: Cause, otherwise: str, trees: Any) -> Loss:
    """The loss with its step, and with the cause after what the values themselves tell."""
    text, by_values = cause if isinstance(cause, str) else cause(), loss.otherwise
    loss.step, loss.trees = step, trees
    loss.cause = "; ".join(filter(None, (by_values, text))) if text else ""
    loss.otherwise = "; ".join(filter(None, (by_values, otherwise)))
    return loss


def _difference(what: str, path: str, expected: Any, found: Any) -> Loss:
    """The loss that says how two leaves that are not equal differ."""
    loss = Loss(what, path or "result")
    if not isinstance(expected, np.ndarray) or expected.dtype != found.dtype:
        sides = (x.dtype if isinstance(x, np.ndarray) else short(x) for x in (expected, found))
        loss.expected, loss.found = map(str, sides)
        return loss
    ours, theirs = expected.reshape(-1), found.reshape(-1)
    if expected.dtype.kind in "fiub":
        elements = [compare({"x": ours[i : i + 1]}, {"x": theirs[i : i + 1]}) for i in range(ours.size)]
        at = max(range(ours.size), key=lambda i: (elements[i].distance, not elements[i].holds))
        worst = elements[at]
        loss.expected, loss.found, loss.distance, loss.ulps = worst.expected, worst.found, worst.distance, worst.ulps
    else:
        at = int(np.argmax(ours != theirs))
        loss.expected, loss.found = short(ours[at].item()), short(theirs[at].item())
    if expected.ndim:
        loss.where += f"[{', '.join(str(int(i)) for i in np.unravel_index(at, expected.shape))}]"
    if expected.dtype.kind == "f" and np.isnan(theirs[at]):
        loss.otherwise = "not a number: zero divided by zero, infinity less infinity, or the root of a negative number"
    return loss
