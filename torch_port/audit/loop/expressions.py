"""What is written in a method of the run to reach the state at a path: `self.streams["noise"]`."""

import json
import re
import types

from torch_port.audit.loop.observe import Seen


def expression(seen: Seen, path: str) -> str:
    """What is written in a method of the run to reach a path: `self.count`, `self.streams["noise"]`, `COUNT`."""
    places = [place for place in range(len(path) - 1, 0, -1) if path[place] in ".["]
    place = next((place for place in places if path[:place] in seen.objects), 0)
    if not place:
        bare = path.startswith("globals.") or isinstance(seen.objects.get(path), type)
        return path.removeprefix("globals.") if bare else f"self.{path}"
    owner, name = seen.objects[path[:place]], path[place:]
    before = expression(seen, path[:place])
    if hook := re.fullmatch(r"\.(\w+_hooks)\[(\d+)\]", name):  # see `held.called_by`
        return f"[*{before}.{hook[1]}.values()][{hook[2]}]"
    if name.startswith("["):
        return f"{before}{name}"
    name = name.removeprefix(".")
    if isinstance(owner, dict):
        return f"{before}[{json.dumps(name)}]"
    if isinstance(owner, types.FunctionType) and name in owner.__code__.co_freevars:
        if _is_method(seen, path[:place]):
            return name  # the other methods of the class see it too
        return f"{before}.__closure__[{owner.__code__.co_freevars.index(name)}].cell_contents"
    return before + "".join(f"[{part}]" if part.isdigit() else f".{part}" for part in name.split("."))


def within(seen: Seen, path: str) -> str:
    """What a path is, in words, where no line of the run's methods reaches it: a variable of a function; else ""."""
    for place in (place for place in range(len(path) - 1, 0, -1) if path[place] in ".["):
        owner = seen.objects.get(path[:place])
        name = re.split(r"[.\[/]", path[place:].removeprefix("."))[0]
        if isinstance(owner, types.GeneratorType):
            return f"{name}, a variable of the generator {owner.__qualname__},"
        if not isinstance(owner, types.FunctionType):
            continue
        if name in ("__defaults__", "__kwdefaults__"):
            return f"{_default(owner, path[place:])}, a default of {owner.__qualname__},"
        if name in owner.__code__.co_freevars and not _is_method(seen, path[:place]):
            return f"{name}, a variable that {owner.__qualname__} closes over,"
    return ""


def _default(function: types.FunctionType, place: str) -> str:
    """The name of the argument whose default is meant."""
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    if found := re.match(r"\.__defaults__\[(\d+)\]", place):
        return names[len(names) - len(function.__defaults__ or ()) + int(found[1])]
    return place.split(".")[2] if place.count(".") > 1 else "what is"


def _is_method(seen: Seen, path: str) -> bool:
    """Whether the function at a path is of a class."""
    return isinstance(seen.objects.get(path.rpartition(".")[0]), type)
