"""A tree as leaves by path: each one value, its kind of state, and an optimizer's by the names of parameters.

A kind is told by the form that torch gives a part, or by the words of its key.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from numpy_ref.tree import printable
from torch_port import interop
from torch_port.audit import draws

Array = np.ndarray[Any, np.dtype[Any]]
WITHOUT_DATA = "tensor without data"  # on the device "meta": it has a type and a shape
LEAF_LIMIT = 100_000  # a small file can hold one list a thousand times over, and that one another
RNG_WORDS = re.compile("rng|random|generator|seed|cuda")  # of a path at which 16 bytes are a device generator's state
KINDS = ("model", "optimizer", "scheduler", "scaler", "generator", "counter", "position", "ema", "best", "other")
# Words of a key that tell what lies below it where its form does not; the first that fits.
WORDS = {
    "other": "config cfg args hparams settings version size max",
    "generator": "rng random generator generators",
    "optimizer": "optimizer optimizers optim",
    "scheduler": "scheduler schedulers schedule",
    "scaler": "scaler",
    "ema": "ema swa averaged shadow",
    "best": "best",
    "position": "position offset sampler loader dataloader batch samples consumed cursor seen order permutation",
    "counter": "epoch epochs step steps iteration iterations iter iters it update updates loops t",
}
SCALER_KEYS = {"scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"}
LOADER_KEYS = {"_iterator_finished", "_sampler_iter_state", "_sampler_iter_yielded", "_num_yielded", "_snapshot"}
WRAPPERS = ("module.", "_orig_mod.", "model.")
MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "exp_inf", "sum"}


class Leaf(NamedTuple):
    """One value of a checkpoint."""

    form: str  # "tensor", "packed", "value", "number" (of any type), "numbers", "generator" or "other" (not compared)
    dtype: str  # of its elements; the type's name, or whose generator it is
    shape: tuple[int, ...]
    value: Any
    kind: str = "other"  # of state, one of KINDS
    part: str = ""  # the path of the model, the optimizer... that it belongs to
    name: str = ""  # within that
    bare: str = ""  # the same without what wrappers put before it
    numbered: "Leaf | None" = None  # the same in an optimizer whose parameters' names are not known

    @property
    def size(self) -> int:
        """Bytes of its elements; 0 for what is no tensor."""
        return int(self.value.nbytes) if self.form in ("tensor", "packed") else 0

    def __str__(self) -> str:
        """Its type and shape, or its value."""
        if self.form in ("tensor", "packed"):
            return f"{self.dtype} {self.shape}"
        if self.form in ("value", "number"):
            return printable(repr(self.value))
        return f"{self.shape[0]} numbers" if self.form == "numbers" else f"a {self.dtype}"


def leaf_of(node: Any, *, rng: bool) -> Leaf | None:
    """What is compared as one; None for what has parts."""
    if isinstance(node, Leaf):
        return node
    if isinstance(node, np.generic) and not isinstance(node, (float, complex)):
        node = np.asarray(node)
    if isinstance(node, np.ndarray):
        node = _from_numpy(node)
        if node is None:
            return Leaf("other", "NumPy array", (), None)
    engine = draws.engine_of(node) if isinstance(node, (Tensor, Mapping, tuple, list)) else None
    if engine and (engine != "device" or rng):  # 16 bytes can be anything
        return Leaf("generator", engine, (), node)
    if isinstance(node, Tensor):
        return _tensor(node.detach().resolve_conj().resolve_neg() if node.layout is torch.strided else node.detach())
    if isinstance(node, (list, tuple)) and node and all(type(item) in (bool, int, float) for item in node):
        return Leaf("numbers", "numbers", (len(node),), tuple(node))
    if isinstance(node, (Mapping, list, tuple)):
        return None if node else Leaf("value", type(node).__name__, (), type(node).__name__ + " without items")
    if node is None or isinstance(node, (bool, int, float, complex, str, bytes, torch.dtype, torch.device)):
        return Leaf("value", type(node).__name__, (), node)
    if isinstance(node, nn.Module) or getattr(node, "__dict__", None):
        return None
    return Leaf("other", type(node).__name__, (), None)


def _tensor(tensor: Tensor) -> Leaf | None:
    """A dense tensor; None for one that is made of several."""
    kind, shape = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return None if components(tensor) else Leaf("other", f"tensor of {tensor.layout}", shape, None)
    if tensor.is_meta:
        return Leaf("value", WITHOUT_DATA, shape, f"{kind} {shape}")  # all that there is of it
    if tensor.is_nested:
        return Leaf("other", "nested tensor", shape, None)
    if re.fullmatch(r"(u?int[1-7]|bits\w+|float4\w+)", kind):
        return Leaf("packed", kind, shape, tensor.contiguous().view(torch.uint8).reshape(-1))
    return Leaf("tensor", kind, shape, tensor)


def components(tensor: Tensor) -> dict[str, Any]:
    """The dense tensors that a sparse or quantized one is made of; empty for other layouts."""
    tensor = tensor.detach()
    size = {"size": list(tensor.shape)}
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return {"indices": whole.indices(), "values": whole.values()} | size
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        rows, columns = tensor.crow_indices(), tensor.col_indices()
        return {"crow_indices": rows, "col_indices": columns, "values": tensor.values()} | size
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        columns, rows = tensor.ccol_indices(), tensor.row_indices()
        return {"ccol_indices": columns, "row_indices": rows, "values": tensor.values()} | size
    if tensor.is_quantized and tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        return {"integers": tensor.int_repr(), "scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    if tensor.is_quantized:
        scales, zeros = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        return {"integers": tensor.int_repr(), "scales": scales, "zero_points": zeros}
    return {}


def _from_numpy(array: Array) -> Tensor | None:
    try:
        return torch.from_numpy(np.array(array.astype(array.dtype.newbyteorder("="))))
    except TypeError:
        return None


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
            form, words = kind_by_form(node), kind_by_key(key, node)
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


def kind_by_form(node: Any) -> str | None:
    """The kind of what has the form that torch gives it."""
    if isinstance(node, nn.Module) or is_model(node):
        return "model"
    if not isinstance(node, Mapping):
        return None
    if is_optimizer(node):
        return "optimizer"
    if SCALER_KEYS <= node.keys():
        return "scaler"
    if "last_epoch" in node and not isinstance(node["last_epoch"], Mapping):
        return "scheduler"
    return "position" if LOADER_KEYS & {key for key in node if isinstance(key, str)} else None


def kind_by_words(path: str) -> str | None:
    """The kind that the words of a key tell."""
    words = re.findall(r"[a-z]+", re.sub(r"([a-z])([A-Z])", r"\1 \2", path).lower())
    return next((kind for kind, known in WORDS.items() if not set(words).isdisjoint(known.split())), None)


def kind_by_key(key: str, node: Any) -> str | None:
    """The kind that a key tells; `i` is a loop's count if it is an int, else it can be an index."""
    return "counter" if key == "i" and type(node) is int else kind_by_words(key)


def is_model(node: Any) -> bool:
    """A dict of tensors by name, not all of them of generators or without axes."""
    if not isinstance(node, Mapping) or not node or not all(isinstance(key, str) for key in node):
        return False
    tensors = [v for k, v in node.items() if not k.endswith("_extra_state")]
    if not all(isinstance(x, (Tensor, np.ndarray)) or (isinstance(x, Leaf) and x.form == "packed") for x in tensors):
        return False
    return any(len(x.shape) and draws.engine_of(x) in (None, "device") for x in tensors)


def is_optimizer(node: Any) -> bool:
    """The `state_dict()` of an optimizer, whose groups number or name the parameters."""
    if not isinstance(node, Mapping) or not {"state", "param_groups"} <= node.keys():
        return False
    groups, state = node["param_groups"], node["state"]
    if not isinstance(groups, (list, tuple)) or not isinstance(state, Mapping):
        return False
    numbered = all(isinstance(group, Mapping) and isinstance(group.get("params"), list) for group in groups)
    plain = numbered and all(type(number) in (int, str) for group in groups for number in group["params"])
    return plain and all(isinstance(moments, Mapping) for moments in state.values())


def bare_names(names: list[str]) -> list[str]:
    """The names without what wrappers put before all of them or, of a compiled module, within; all stay different."""
    bare = [name.replace("_orig_mod.", "") for name in names]
    while prefix := next((p for p in WRAPPERS if bare and all(name.startswith(p) for name in bare)), None):
        bare = [name.removeprefix(prefix) for name in bare]
    return bare if len(set(bare)) == len(bare) else names


def parameter_names(
    models: Iterable[Mapping[str, Any]], groups: Sequence[Any], state: Mapping[Any, Any], numbers: Sequence[Any]
) -> list[str] | None:
    """The names of the parameters that an optimizer numbers, if the file tells them beyond doubt."""
    if any(isinstance(number, str) for number in numbers) or len(set(numbers)) != len(numbers):
        return None
    if all(isinstance(group.get("param_names"), list) for group in groups):
        names = [str(name) for group in groups for name in group["param_names"]]
        return names if len(names) == len(numbers) == len(set(names)) else None
    found = []
    for model in models:
        with suppress(Exception):  # sparse and other tensors have no place in memory to tell tied ones by
            names = interop.likely_parameters(model)
            if len(names) == len(numbers) and _shapes_fit(dict(zip(numbers, names, strict=True)), state, model):
                found.append(names)
    return found[0] if found and all(names == found[0] for names in found) else None


def _shapes_fit(names: Mapping[Any, str], state: Mapping[Any, Any], model: Mapping[str, Any]) -> bool:
    """Whether all moments that have their parameter's shape have it."""
    return all(
        number in names and value.shape == model[names[number]].shape
        for number, moments in state.items()
        for moment, value in moments.items()
        if moment in MOMENTS and isinstance(value, Tensor)
    )
