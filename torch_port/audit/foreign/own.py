"""Our own file as a tree, and its optimizer, schedule and scaler by the names that torch has for them.

Torch keeps exp_avg, exp_avg_sq and step for each parameter where we have m, v and one t, and settings in the optimizer
where we have a configuration: so named, our file is aligned with any other of the same run. The paths of leaves stay as
they are in the file; the settings stand below `config`. Plain numbers have no type of torch's here, and are compared by
their value.
"""

from collections.abc import Mapping
from typing import Any

from numpy_ref.checkpoint import save_and_resume as checkpoint
from numpy_ref.checkpoint.container import read_container
from torch_port.audit.foreign.errors import Path
from torch_port.audit.foreign.leaf import Leaf
from torch_port.interop import ADAM_SETTINGS, SGD_SETTINGS
from torch_port.optim import ADAM_MOMENTS, SGD_MOMENTS

MOMENTS = ADAM_MOMENTS | SGD_MOMENTS
GROUP = "param_groups/0"  # ours is one group
# The part and the name of each leaf that has another in torch's state dicts.
PLACES = {
    "optimizer/t": ("optimizer", "step"),
    "schedule/rate": ("optimizer", f"{GROUP}/lr"),
    "schedule/tick": ("schedule", "last_epoch"),
    "scaler/growth_tracker": ("scaler", "_growth_tracker"),
}


def tree_of(path: Path) -> dict[str, Any]:
    """The arrays and scalars of a file, verified whole, with the settings of the optimizer if it has one."""
    arrays, manifest = read_container(path)
    scalars, config = (manifest.get(name) for name in ("scalars", "config"))
    leaves: dict[str, Any] = dict(arrays)
    if isinstance(scalars, dict):  # any file of the format is shown
        leaves |= {name: checkpoint._decode_scalar(path, name, value) for name, value in scalars.items()}
    if isinstance(config, dict) and "optimizer/t" in leaves:
        leaves |= {f"config/{name}": value for name, value in _settings(config).items()}
    return _nested(leaves)


def named_as_in_torch(leaves: Mapping[str, Leaf]) -> dict[str, Leaf]:
    """The leaves of such a tree, each under its own path, with the part and the name that stock objects give it."""
    return {path: _renamed(leaf, *place) if (place := _place(path)) else leaf for path, leaf in leaves.items()}


def _place(path: str) -> tuple[str, str] | None:
    top, _, rest = path.partition("/")
    kind, _, name = rest.partition("/")
    if top == "optimizer" and kind in MOMENTS and name:
        return "optimizer", f"{MOMENTS[kind]}/{name}"
    return ("optimizer", f"{GROUP}/{rest}") if top == "config" else PLACES.get(path)


def _renamed(leaf: Leaf, part: str, name: str) -> Leaf:
    kind = "optimizer" if part == "optimizer" else leaf.kind
    form = "number" if leaf.form == "value" and isinstance(leaf.value, (int, float)) else leaf.form
    new = leaf._replace(form=form, kind=kind, part=part, name=name, bare=name)
    return new._replace(numbered=new)  # it has names beyond doubt, and no numbers to go by instead


def _settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of the optimizer, by torch's names of them."""
    kind = config.get("optimizer")
    values = {**config, "betas": [config.get("beta1"), config.get("beta2")], "initial_lr": config.get("learning_rate")}
    values |= {"maximize": False, "decoupled_weight_decay": kind == "adamw"}
    names = SGD_SETTINGS if kind == "sgd" else ADAM_SETTINGS | {"decoupled_weight_decay"}
    return {name: values.get(name) for name in sorted(names | {"initial_lr", "maximize", "weight_decay"})}


def _nested(flat: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves by path as nested dicts."""
    tree: dict[str, Any] = {}
    for path, leaf in flat.items():
        *folders, name = path.split("/")
        node = tree
        for folder in folders:
            inner = node.setdefault(folder, {})
            node = inner if isinstance(inner, dict) else node.setdefault(f"{folder}/", {})
        node[name] = leaf
    return tree
