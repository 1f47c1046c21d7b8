"""How the path of a state is written; without torch."""

import re

PLACE_IN_GROUPS = re.compile(r"(.*)\.param_groups\[(\d+)\]\.params\[(\d+)\]")

DATA = ".data"  # the memory of a tensor: two may share it, and be two tensors all the same


def join(path: str, name: str) -> str:
    """The path of what has a name under a path; either may be empty."""
    return f"{path}.{name}" if path and name else path or name


def place_in_groups(group: int, place: int) -> str:
    """Where an optimizer holds a tensor that it trains, as the end of a path."""
    return f".param_groups[{group}].params[{place}]"
