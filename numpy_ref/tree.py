"""Named leaves of nested state: one path syntax for files, errors and verdicts.

A tree is a NamedTuple or a dict of trees; everything else is a leaf: an array, or a plain int, float or str. A leaf's
path joins the names on the way to it with slashes, as in `optimizer/m/layer0.weight`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

Tree = TypeVar("Tree")


def _items(node: Any) -> Iterator[tuple[str, Any]] | None:
    if isinstance(node, dict):
        return iter(node.items())
    if isinstance(node, tuple) and hasattr(node, "_fields"):
        return iter(zip(node._fields, node, strict=True))
    return None


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """Every leaf of a tree by its path, in the tree's own order.

    Example:
        >>> flatten({"t": 3, "m": {"layer0.bias": 0.5}})
        {'t': 3, 'm/layer0.bias': 0.5}
    """
    items = _items(tree)
    if items is None:
        return {prefix: tree}
    leaves: dict[str, Any] = {}
    for name, child in items:
        leaves.update(flatten(child, f"{prefix}/{name}" if prefix else name))
    return leaves


def map_leaves(function: Callable[[str, Any], Any], tree: Tree, prefix: str = "") -> Tree:
    """A tree of the same structure with function(path, leaf) at each leaf."""
    items = _items(tree)
    if items is None:
        return function(prefix, tree)  # type: ignore[no-any-return]
    new = {name: map_leaves(function, child, f"{prefix}/{name}" if prefix else name) for name, child in items}
    return new if isinstance(tree, dict) else type(tree)(**new)  # type: ignore[return-value]


def unflatten(template: Tree, leaves: Mapping[str, Any]) -> Tree:
    """A tree of the template's structure with the leaves at its paths.

    Raises:
        KeyError: a path of the template is missing from `leaves`.
    """
    return map_leaves(lambda path, _: leaves[path], template)


def copy_tree(tree: Tree, into: Any = None) -> Tree:
    """A tree that shares no array with the given one.

    Args:
        tree: copied.
        into: an earlier copy, which is given up: where it has an array of the same path, type and shape, that one is
            written over, for memory that is new to a process is slow.

    Example:
        >>> old = copy_tree({"w": np.zeros(2)})
        >>> new = copy_tree({"w": np.ones(2)}, into=old)
        >>> new["w"] is old["w"], new["w"]
        (True, array([1., 1.]))
    """
    spare = {} if into is None else flatten(into)

    def copy(path: str, leaf: Any) -> Any:
        if not isinstance(leaf, np.ndarray):
            return leaf
        old = spare.get(path)
        if not isinstance(old, np.ndarray) or (old.dtype, old.shape) != (leaf.dtype, leaf.shape):
            return np.array(leaf)
        np.copyto(old, leaf)
        return old

    return map_leaves(copy, tree)


@dataclass(frozen=True)
class Leaf:
    """The specification of a leaf: the name of its type and, of an array, the shape.

    Example:
        >>> str(Leaf("float32", (2, 3))), str(Leaf("int"))
        ('float32 (2, 3)', 'int')
    """

    kind: str
    shape: tuple[int, ...] | None = None

    def __str__(self) -> str:
        return self.kind if self.shape is None else f"{self.kind} {self.shape}"


def leaf_of(leaf: Any) -> Leaf:
    """What a leaf is."""
    if not isinstance(leaf, np.ndarray):
        return Leaf(type(leaf).__name__)
    return Leaf(leaf.dtype.name if leaf.dtype.isnative else leaf.dtype.str, leaf.shape)


def structure_faults(schema: Mapping[str, Leaf], found: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """What keeps flat leaves from being those of a schema: paths that are missing, and a line for each other fault.

    Args:
        schema: what each leaf must be, by path.
        found: leaves judged.

    Example:
        >>> structure_faults({"t": Leaf("int"), "m": Leaf("float")}, {"t": 1.5, "b": 0})
        (['m'], ['b: not expected', 't: expected int, found float'])
    """
    faults = [f"{printable(path)}: not expected" for path in sorted(found.keys() - schema.keys())]
    for path in sorted(schema.keys() & found.keys()):
        if (got := leaf_of(found[path])) != schema[path]:
            faults.append(f"{path}: expected {schema[path]}, found {got}")
    return sorted(schema.keys() - found.keys()), faults


def printable(name: str) -> str:
    """A name from outside as a message can show it: short, and without what a terminal would obey."""
    return name if name.isprintable() and len(name) <= 200 else f"{name!a:.200}"
