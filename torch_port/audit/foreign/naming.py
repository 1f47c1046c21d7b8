"""The names of parameters: what wrappers put before them, and which of them an optimizer's numbers stand for."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from torch import Tensor

from torch_port import interop

WRAPPERS = ("module.", "_orig_mod.", "model.")
MOMENTS = {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "square_avg", "grad_avg", "exp_inf", "sum"}


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
