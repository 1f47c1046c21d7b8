"""What is written in a method of the run to reach the state at a path: `self.streams["noise"]`."""

import json
import re
import types

from torch_port.audit.observe import Seen


def expression(seen: Seen, path: str) -> str:
    """What is written in a method of the run to reach a path: `self.count`, `self.streams["noise"]`, `COUNT`."""
    places = [place for place in range(len(path) - 1, 0, -1) if path[place] in ".["]
    place = next((place for place in places if path[:place] in seen.objects), 0)
    if not place:
        bare = path.startswith("globals.") or isinstance(seen.objects.get(path), type)
        return path.removeprefix("globals.") if bare else f"self.{path}"
    owner, name = seen.objects[path[:place]], path[place:]
    before = expression(seen, path[:place])
    if hook := re.fullmatch(r"\.(\w+_hooks)\[(\d+)\]", name):  # see `functions.called_by`
        return f"[*{before}.{hook[1]}.values()][{hook[2]}]"
    if name.startswith("["):
        return f"{before}{name}"
    name = name.removeprefix(".")
    if isinstance(owner, dict):
        return f"{before}[{json.dumps(name)}]"
    if isinstance(owner, types.FunctionType) and name in owner.__code__.co_freevars:
        return f"{before}.__closure__[{owner.__code__.co_freevars.index(name)}].cell_contents"
    return before + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))
