"""A tree as leaves by path, each with the kind of state that it is, and an optimizer's by the names of parameters."""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torch import Tensor, nn

from numpy_ref.tree import printable
from torch_port.audit.foreign.leaf import Leaf, components, leaf_of
from torch_port.audit.foreign.naming import bare_names, parameter_names
from torch_port.audit.foreign.recognition import is_model, is_optimizer, kind_by_form, kind_by_words

LEAF_LIMIT = 100_000  # a small file can hold one list a thousand times over, and that one another
RNG_WORDS = re.compile("rng|random|generator|seed|cuda")  # of a path at which 16 bytes are a device generator's state


def leaves_of(tree: Any, *, room: float = math.inf) -> dict[str, Leaf]:
    """The leaves of nested dicts and lists by path, each with the kind of state that it is.

    Args:
        tree: a checkpoint in memory, as a `state_dict()` returns it.
        room: bytes that no tensor may exceed.

    Returns:
        Leaves by path, in the tree's order. They share memory with the tree.

    Raises:
        ValueError: it is nested too deeply, has too many leaves, or a tensor has no room.

    Example:
        >>> model = nn.Linear(2, 1)
        >>> list(leaves_of({"model": model.state_dict(), "epoch": 3}))
        ['model/weight', 'model/bias', 'epoch']
    """
    try:
        return _Walk(tree, room).leaves
    except RecursionError:
        raise ValueError("expected dicts and lists some hundred deep at most, found more") from None


class _Walk:
    """One walk through a tree, depth first."""

    def __init__(self, tree: Any, room: float) -> None:
        self.leaves: dict[str, Leaf] = {}
        self.room = room
        self.open: set[int] = set()  # what is being walked: a list may hold itself
        self.models: dict[str, Mapping[str, Any]] = {}
        self.find_models(tree, "", 0)
        self.walk(tree, "", _Place())

    def find_models(self, node: Any, path: str, depth: int) -> None:
        """The models, which name the parameters of the optimizers; they lie near the root."""
        if is_model(node) and kind_by_words(path) in (None, "best"):
            self.models[path] = node
        elif isinstance(node, Mapping) and depth < 4 and not is_optimizer(node):
            for key, child in node.items():
                self.find_models(child, _join(path, str(key)), depth + 1)

    def walk(self, node: Any, path: str, place: "_Place") -> None:
        """Note a leaf, or go on with what lies below."""
        if not place.sure:
            key = path.rsplit("/", 1)[-1]
            form, words = kind_by_form(node), kind_by_words(key)
            if key == "i" and type(node) is int:  # a loop's; of anything else it can be an index
                words = "counter"
            if form == "model":
                form = words or place.kind or "model"
            if form:
                place = _Place(form, path, sure=True)
            elif words and not place.kind:
                place = _Place(words, path)
        within = id(node) in self.open
        text = f"{type(node).__name__} within itself"
        leaf = Leaf("other", text, (), None) if within else leaf_of(node, rng=bool(RNG_WORDS.search(path)))
        if leaf is not None:
            own = leaf.form == "generator" and place.kind != "generator"
            self.add(path, _Place("generator", path) if own else place, leaf)
            return
        self.open.add(id(node))
        for key, bare, number, child in self.children(node, place.kind):
            inner = place._replace(
                name=_join(place.name, key), bare=_join(place.bare, bare), number=_join(place.number, number)
            )
            self.walk(child, _join(path, key), inner if place.kind else place)
        self.open.discard(id(node))

    def children(self, node: Any, kind: str) -> Iterator[tuple[str, str, str, Any]]:
        """Name, bare name, name by number, and value of each thing below a node."""
        if kind == "optimizer" and is_optimizer(node):
            yield from self.optimizer(node)
            return
        if isinstance(node, Tensor):
            items: dict[str, Any] = components(node)
        elif isinstance(node, nn.Module):
            items = node.state_dict()
        elif isinstance(node, Mapping):
            items = _by_text(node)
        elif isinstance(node, (list, tuple)):
            keys = map(str, getattr(node, "_fields", range(len(node))))
            items = dict(zip(keys, node, strict=True))
        else:
            items = _by_text(vars(node))
        names = list(items)
        for key, bare in zip(names, bare_names(names) if kind in ("model", "ema", "best") else names, strict=True):
            yield key, bare, key, items[key]

    def optimizer(self, node: Mapping[str, Any]) -> Iterator[tuple[str, str, str, Any]]:
        """An optimizer's moments by the name of their parameter, where it is known, and its groups."""
        groups, state = node["param_groups"], node["state"]
        numbers = [number for group in groups for number in group["params"]]
        names = parameter_names(self.models.values(), groups, state, numbers)
        known: dict[Any, str] = dict(zip(numbers, names, strict=True)) if names else {}
        known |= {number: number for number in state if isinstance(number, str)}
        bare = dict(zip(known, bare_names(list(known.values())), strict=True))
        for number, moments in state.items():
            for moment, value in _by_text(moments).items():
                unknown = f"state/{number}/{moment}"
                name, short = (f"{moment}/{x[number]}" if number in x else unknown for x in (known, bare))
                yield name, short, unknown, value
        others = {key: value for key, value in _by_text(node).items() if key not in ("state", "param_groups")}
        for i, group in enumerate(groups):
            for key, value in _by_text(group).items():
                if key == "params" and value and all(number in known for number in value):
                    text, numbered = ", ".join(bare[n] for n in value), leaf_of(value, rng=False)
                    value = Leaf("value", "str", (), text, numbered=numbered)
                others[f"param_groups/{i}/{key}"] = value
        for key, value in others.items():
            if not key.endswith("/param_names"):
                yield key, key, key, value

    def add(self, path: str, place: "_Place", leaf: Leaf) -> None:
        """Note a leaf; a key with a slash in it can make two paths one."""
        if len(self.leaves) >= LEAF_LIMIT:
            raise ValueError(f"expected at most {LEAF_LIMIT:,} leaves, found more")
        if leaf.size > self.room:
            raise ValueError(f"{printable(path)}: expected at most {self.room:,.0f} bytes, found {leaf.size:,}")
        while path in self.leaves:
            path += " (another)"
            place = place._replace(name=f"{place.name} (another)", bare=f"{place.bare} (another)")
        kind, part = place.kind or "other", place.part if place.kind else path
        numbered = leaf.numbered or (leaf if place.number != place.name else None)
        if numbered is not None:
            numbered = numbered._replace(kind=kind, part=part, name=place.number, bare=place.number)
        self.leaves[path] = leaf._replace(kind=kind, part=part, name=place.name, bare=place.bare, numbered=numbered)


class _Place(NamedTuple):
    """Where a walk is."""

    kind: str = ""  # of state; empty until it is known
    part: str = ""  # the path at which it was
    name: str = ""  # from there on
    bare: str = ""
    number: str = ""  # the name where parameters go by their numbers
    sure: bool = False  # told by the form, not by words


def _join(path: str, key: str) -> str:
    return f"{path}/{key}" if path else key


def _by_text(node: Mapping[Any, Any]) -> dict[str, Any]:
    """The items by the text of their keys; 1 and '1' are kept apart."""
    items: dict[str, Any] = {}
    for key, child in node.items():
        text = str(key)
        items[text if text not in items else f"{text} ({type(key).__name__})"] = child
    return items
