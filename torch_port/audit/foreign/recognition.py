"""What kind of state a part of a checkpoint is: by the form that torch gives it, or by the words of its key."""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn

from torch_port.audit import draws
from torch_port.audit.foreign.leaf import Leaf

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
