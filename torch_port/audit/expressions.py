"""What is written in a method of the run to reach the state at a path: `self.streams["noise"]`."""

import json
import types

from torch_port.audit.observe import Seen


def expression(seen: Seen, path: str) -> str:
    """What is written in a method of the run to reach a path: `self.count`, `self.streams["noise"]`, `COUNT`."""
    places = [place for place in range(len(path) - 1, 0, -1) if path[place] in ".["]
    place = next((place for place in places if path[:place] in seen.objects), 0)
    if not place:
        run = seen.objects.get("")
        of_class = path.partition(".")[0] in {cls.__name__ for cls in type(run).__mro__}
        return path.removeprefix("globals.") if of_class or path.startswith("globals.") else f"self.{path}"
    owner, name = seen.objects[path[:place]], path[place:].removeprefix(".")
    before = expression(seen, path[:place])
    if isinstance(owner, dict):
        key = next((key for key in owner if str(key) == name), name)
        return f"{before}[{json.dumps(key) if isinstance(key, str) else repr(key)}]"
    if name.startswith("["):
        return f"{before}{name}"
    if isinstance(owner, types.FunctionType) and name in owner.__code__.co_freevars:
        return f"{before}.__closure__[{owner.__code__.co_freevars.index(name)}].cell_contents"
    return before + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))
