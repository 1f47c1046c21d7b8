"""Equal or not: comparisons of trees of arrays, and the verdict on them.

*Bitwise* means the same structure, shapes, types and bytes: -0 differs from +0, and all NaNs are equal.
"""

import hashlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.tree import flatten
from numpy_ref.types import Array


class Tolerance(NamedTuple):
    """An allowance: |found - expected| <= absolute + relative |expected|. Written in `boundary.py` only."""

    relative: float
    absolute: float


class Verdict(NamedTuple):
    """The outcome of a comparison or a law.

    Where something differs, `step` is the first step at which it does and `leaf` the worst leaf there: the one whose
    worst element uses most of the allowance, or lies furthest apart when there is none.
    """

    holds: bool  # does the law hold, or are the two sides equal as asked
    relation: str  # "bitwise", "within" or "differs"
    step: int | None = None
    leaf: str | None = None
    expected: Any = None  # the worst element's two values, or what is missing
    found: Any = None
    distance: float = 0.0  # between the two
    ulps: int | None = None  # the same in units in the last place
    share: float = 0.0  # of the allowance used, where there is one
    leaves: tuple[str, ...] = ()  # all that differ at that step, sorted
    cause: str = ""  # the likely cause, in words

    def __str__(self) -> str:
        """One line a person can read."""
        if self.relation == "bitwise":
            return "bitwise"
        if self.relation == "within":
            return f"within, {self.share:.0%} of the allowance used, most in {self.leaf}"
        where = f"differs at step {self.step}" if self.step is not None else "differs"
        size = f", {self.ulps} units in the last place" if self.ulps is not None else ""
        text = f"{where} in {self.leaf}: expected {self.expected!r}, found {self.found!r}"
        text += f" (distance {self.distance:.3g}{size})"
        others = f"; {len(self.leaves) - 1} more leaves differ" if len(self.leaves) > 1 else ""
        return text + others + (f". Likely cause: {self.cause}" if self.cause else "")


def same_bits(a: Any, b: Any) -> bool:
    """Whether two leaves are bitwise equal."""
    if type(a) is not type(b):
        return False
    if type(a) is int:  # of any size
        return bool(a == b)
    x, y = np.asarray(a), np.asarray(b)
    return x.dtype == y.dtype and x.shape == y.shape and _canonical_bytes(x) == _canonical_bytes(y)


def digest(tree: Any) -> str:
    """SHA-256 over the sorted paths of a tree's leaves, with their types, shapes and bytes; all NaNs count as one.

    Example:
        >>> digest({"a": 1, "b": 0.5}) == digest({"b": 0.5, "a": 1}), digest({"t": 1}) == digest({"t": 1.0})
        (True, False)
    """
    sha = hashlib.sha256()
    for path, leaf in sorted(flatten(tree).items()):
        large = type(leaf) is int and not -(2**63) <= leaf < 2**64  # beyond NumPy's own: its digits
        array = np.asarray(str(leaf).encode() if isinstance(leaf, str) or large else leaf)
        array = array.astype(array.dtype.newbyteorder("<"))
        kind = array.dtype.str if isinstance(leaf, np.ndarray) else type(leaf).__name__
        sha.update(f"{path}\0{kind}\0{array.shape}\0".encode())
        sha.update(_canonical_bytes(array))
    return sha.hexdigest()


def differences(expected: Any, found: Any, *, tolerance: Tolerance | None = None) -> list[Verdict]:
    """One verdict for each leaf that is not bitwise equal, sorted by path; `compare` sums them up."""
    here, there = flatten(expected), flatten(found)
    verdicts = []
    for path in sorted(here.keys() | there.keys()):
        if path not in there:
            verdicts.append(Verdict(False, "differs", None, path, "a leaf", "none", distance=np.inf, share=np.inf))
        elif path not in here:
            verdicts.append(Verdict(False, "differs", None, path, "no leaf", "one", distance=np.inf, share=np.inf))
        elif not same_bits(here[path], there[path]):
            verdicts.append(_difference(path, here[path], there[path], tolerance))
    return verdicts


def compare(expected: Any, found: Any, *, tolerance: Tolerance | None = None) -> Verdict:
    """Compare two trees leaf by leaf: bitwise, or within a tolerance if one is given.

    Args:
        expected: a tree of arrays and plain values.
        found: the tree judged.
        tolerance: for floating-point leaves; structure, shapes, types and all other leaves stay exact.

    Returns:
        A verdict that holds when every leaf is equal, or within the tolerance.
    """
    verdicts = differences(expected, found, tolerance=tolerance)
    if not verdicts:
        return Verdict(True, "bitwise")
    worst = max(verdicts, key=lambda v: (v.share, v.distance))
    holds = all(v.holds for v in verdicts)
    return worst._replace(
        holds=holds, relation="within" if holds else "differs", leaves=tuple(str(v.leaf) for v in verdicts)
    )


def _difference(path: str, expected: Any, found: Any, tolerance: Tolerance | None) -> Verdict:
    """How far two leaves that are not bitwise equal are apart."""
    x, y = np.asarray(expected), np.asarray(found)
    if type(expected) is not type(found) or x.dtype != y.dtype or x.shape != y.shape:
        sides = _describe(expected), _describe(found)
        return Verdict(False, "differs", None, path, *sides, distance=np.inf, share=np.inf)
    if x.dtype.kind not in "fiub":
        return Verdict(False, "differs", None, path, expected, found, distance=np.inf, share=np.inf)
    with np.errstate(all="ignore"):
        a, b = x.astype(np.float64), y.astype(np.float64)
        apart = np.where((np.isnan(a) & np.isnan(b)) | (a == b), 0.0, np.abs(b - a))
        apart = np.where(np.isnan(apart), np.inf, apart)
        share = np.zeros_like(apart)
        if tolerance is not None:
            allowed = tolerance.absolute + tolerance.relative * np.abs(a) if x.dtype.kind == "f" else 0.0
            share = np.where(apart == 0, 0.0, apart / allowed)
    steps = np.abs(_ordered(x).astype(np.float64) - _ordered(y).astype(np.float64))  # tells -0 from +0, too
    place = np.unravel_index(np.lexsort((steps.ravel(), apart.ravel(), share.ravel()))[-1], x.shape)
    holds = tolerance is not None and bool(share[place] <= 1)
    return Verdict(
        holds,
        "within" if holds else "differs",
        None,
        path,
        x[place].item(),
        y[place].item(),
        distance=float(apart[place]),
        ulps=abs(int(_ordered(x)[place]) - int(_ordered(y)[place])) if x.dtype.kind == "f" else None,
        share=float(share[place]),
    )


def _describe(leaf: Any) -> str:
    return f"{leaf.dtype} {leaf.shape}" if isinstance(leaf, np.ndarray) else f"{type(leaf).__name__} {leaf!r}"


def _ordered(x: Array) -> Array:
    """Integers in the order of the floats, neighbours one apart, -0 just below +0; other types as they are."""
    if x.dtype.kind != "f":
        return x
    bits = x.view(np.dtype(f"i{x.dtype.itemsize}"))
    return np.asarray(bits ^ np.where(bits < 0, np.iinfo(bits.dtype).max, 0).astype(bits.dtype))


def _canonical_bytes(x: Array) -> bytes:
    """The bytes with every NaN replaced by one."""
    return (np.where(np.isnan(x), x.dtype.type(np.nan), x) if x.dtype.kind == "f" else x).tobytes()


def is_below(path: str, prefix: str) -> bool:
    """Whether a leaf's path is the prefix or lies below it."""
    return path == prefix or path.startswith(prefix + "/")


def largest_distance(a: Any, b: Any) -> float:
    """The largest distance between elements of two trees of the same structure."""
    return max((compare({"x": x}, {"x": y}).distance for x, y in paired_leaves(a, b)), default=0.0)


def paired_leaves(a: Any, b: Any) -> Iterator[tuple[Any, Any]]:
    """The leaves of two trees of one structure, side by side."""
    other = flatten(b)
    return ((leaf, other[path]) for path, leaf in flatten(a).items())
