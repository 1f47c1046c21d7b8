"""NumPy's arrays for the laws: `Arrays` of `exercise.py`, where a tree is already what the solution takes."""

from importlib import import_module
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Loss, described

PLAIN = (bool, int, float, str, bytes, type(None))


class NumpyArrays:
    """Arrays of a solution written in NumPy."""

    framework = "numpy"
    kind = "NumPy array"
    xp = np

    def given(self, tree: Any) -> Any:
        """See `Arrays`."""
        return over_leaves(lambda path, leaf: np.array(leaf) if isinstance(leaf, np.ndarray) else leaf, tree)

    def found(self, where: str, tree: Any) -> Any:
        """See `Arrays`; a NumPy scalar is an array without axes."""

        def copied(path: str, leaf: Any) -> Any:
            if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "fiub":
                return np.array(leaf, copy=True, subok=False)
            if isinstance(leaf, PLAIN):
                return leaf
            raise Loss(f"{where} must return {self.kind}s and plain numbers", where=path or where,
                       expected=f"a {self.kind}", found=described(leaf))  # fmt: skip

        return over_leaves(copied, tree, sequence=list)

    def cast(self, array: Any, dtype: str) -> Any:
        """See `Arrays`."""
        return array.astype(dtype)

    def copy(self, array: Any) -> Any:
        """See `Arrays`."""
        return array.copy()

    def overwrite(self, tree: Any) -> None:
        """See `Arrays`."""

        def changed(path: str, leaf: Any) -> Any:
            if isinstance(leaf, np.ndarray) and leaf.flags.writeable:
                leaf[...] = leaf * 2 + 1
            return leaf

        over_leaves(changed, tree)

    def disturb(self) -> None:
        """See `Arrays`."""
        disturb_global_generators()


ARRAYS = NumpyArrays()


def arrays_of(framework: str) -> Arrays:
    """The arrays of "numpy" or of "torch".

    Raises:
        ImportError: the framework is not installed.
    """
    package = {"numpy": "numpy_ref", "torch": "torch_port"}[framework]
    arrays: Arrays = import_module(f"{package}.exercises.arrays").ARRAYS
    return arrays


def disturb_global_generators() -> None:
    """Draw from NumPy's and Python's."""
    np.random.random()  # noqa: NPY002 - a solution that depends on it is to be found out
    import_module("random").random()


def over_leaves(function: Any, tree: Any, path: str = "", *, sequence: type | None = None) -> Any:
    """A tree of the same structure with function(path, leaf) at each leaf; lists and tuples as `sequence`, if given."""
    if isinstance(tree, dict):
        below = {key: f"{path}/{key}" if path else str(key) for key in tree}
        return {key: over_leaves(function, child, below[key], sequence=sequence) for key, child in tree.items()}
    if isinstance(tree, (list, tuple)):
        children = [over_leaves(function, child, f"{path}[{i}]", sequence=sequence) for i, child in enumerate(tree)]
        return (sequence or (list if isinstance(tree, list) else tuple))(children)
    return function(path, tree)
