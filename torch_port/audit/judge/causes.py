"""What was lost, in words, and the line to add: one table by kind, and what the values tell beside it."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch_port.audit.judge.record import DATA, PLACE_IN_GROUPS, Leaf, join
from torch_port.audit.report.words import few

SHOWN = 4  # keys in a sentence
OWN_COUNTS = ("line", "position", "base_seed")  # of any generator or iterator
Leaves = dict[str, Leaf]


class Cause(NamedTuple):
    """What is said of a lost state of one kind; names in braces are filled in."""

    words: str  # empty: how its values differ tells
    advice: str  # the line to add


POSITION_ADVICE = (
    "save how many batches of this epoch were used and the state of the shuffling generator at its begin; "
    "after the load make the same order and skip that many"
)
_STATE_DICT = Cause("", 'save {place}.state_dict(), and load it: {place}.load_state_dict(state["{key}"])')
_STRICT = Cause("", "save {place}.state_dict() with all of its buffers, and load it with strict=True")
_VALUE = Cause("", "save {own}, and set it in load_state_dict{shared}")
CAUSES = {
    "samples": Cause(
        "the loop gets other batches: what the dataset, the sampler or a loader's worker draws or counts is not "
        "restored",
        "save what the dataset and the sampler draw from or count; make what a worker draws depend on the sample's "
        "index and a saved epoch only",
    ),
    "position": Cause("{owner} was in the middle of its data{stood}, and begins anew after the load", POSITION_ADVICE),
    "generator": Cause("{path} is not where it was{drift}", "save {save}, and {restore}"),
    "gradient": Cause(
        "gradients were being accumulated in {path}, and are gone after the load",
        "stop only between accumulation windows, or save the gradients too",
    ),
    "optimizer": _STATE_DICT,
    "schedule": _STATE_DICT,
    "scaler": _STATE_DICT,
    "parameter": _STRICT,
    "buffer": _STRICT,
    "mode": Cause("", "call {module}.train() (or .eval()) after the load, as the loop had it"),
    "requires_grad": Cause("", "set {own} again in load_state_dict from the step or a saved flag"),
    "counter": _VALUE,
    "other": _VALUE,
}
_CALL, _SET = "call {} last in load_state_dict", 'put it back last in load_state_dict: {} = state["{{key}}"]'
GENERATORS = {  # of a process by its path, any other by its class: what is saved, and how it is restored
    "rng/torch": ("torch.get_rng_state()", _CALL.format("torch.set_rng_state(...)")),
    "rng/numpy": ("np.random.get_state()", _CALL.format("np.random.set_state(...)")),
    "rng/python": ("random.getstate()", _CALL.format("random.setstate(...)")),
    "rng/cuda": ("torch.cuda.get_rng_state_all()", _CALL.format("torch.cuda.set_rng_state_all(...)")),
    "numpy.Generator": ("{own}.bit_generator.state", _SET.format("{own}.bit_generator.state")),
    "numpy.BitGenerator": ("{own}.state", _SET.format("{own}.state")),
    "random.Random": ("{own}.getstate()", _CALL.format('{own}.setstate(state["{key}"])')),
    "": ("{own}.get_state()", _CALL.format('{own}.set_state(state["{key}"])')),
}


def cause(
    path: str,
    kind: str,
    here: Leaves,
    there: Leaves,
    drift: dict[str, str],
    links: dict[str, str | None] | None = None,
    types: Mapping[str, str] = {},
) -> str:
    """One lost state in words.

    Args:
        path: of the state, or the common part of several.
        kind: of the state.
        here: the uninterrupted run's leaves at the stop.
        there: the resumed run's right after the load.
        drift: path of a generator -> how far it is from where it should be.
        links: path -> the path it should be one object or one memory with; None: with nothing.
        types: path -> its type in the file, where it is another than in the run.
    """
    if links:
        place, target = _telling(links)
        place = place.removesuffix(DATA)
        if trained := PLACE_IN_GROUPS.fullmatch(place):
            return f"{trained[1]} trains other tensors after the load than the run has: not {target}, but a former one"
        if target is None:
            return f"{place} shares its memory with another state after the load, and did not before the stop"
        if target in here and here[target].device:
            return f"{place} shares its memory with {target} before the stop, and not after the load"
        return f"{place} is {target} itself before the stop, and something of its own after the load"
    if words := CAUSES[kind].words if kind in CAUSES else "":
        owner = path.removesuffix(".position")
        counts = [
            name[len(owner) + 1 :]
            for name, one in here.items()
            if name.startswith(f"{owner}.") and one.kind == "position" and one.dtype == "int"
        ]
        counts = [name for name in counts if name not in OWN_COUNTS]
        stood = f" (where {', '.join(counts)} stood)" if counts else ""
        return words.format(path=path, owner=owner, stood=stood, drift=f": {drift[path]}" if path in drift else "")
    a, b = here.get(path), there.get(path)
    items, later = _items(path, here), _items(path, there)
    if items != later and not (items and later):
        return f"{path} held {_count(items)} at the stop, and holds {_count(later)} after the load"
    if a is not None and b is None:
        return f"{path} does not exist after the load"
    if a is None and b is not None and b.dtype == "NoneType":
        return f"{path} is None after the load"
    if a is None and b is not None:
        return f"{path} exists after the load, and did not before the stop"
    below = [name for name in {**here, **there} if name.startswith((f"{path}/", f"{path}.", f"{path}["))]
    if other := other_type(path, [path, *below], here, there, types):
        return other[0]
    if a is not None and b is not None and (a.dtype, a.device) != (b.dtype, b.device) and a.shape:
        return f"{path} is {b.dtype} on {b.device or 'cpu'} after the load, not {a.dtype} on {a.device or 'cpu'}"
    if a is not None and b is not None and a.value is not None and b.value is not None:
        return f"{path} is {_shown(b)} after the load, not {_shown(a)}"
    gone = bool(below) and not any(name in there for name in below)
    return f"{path} is {'empty' if gone else 'not what it was'} after the load"


def keys_unmatched(paths: Sequence[str], heard: Mapping[str, Sequence[Sequence[str]]]) -> tuple[str, str]:
    """Where a load with strict=False leaves states as they were: the end of its cause, and the line to change.

    Args:
        paths: of the lost leaves.
        heard: path of a module -> the keys that were missing, and those that matched nothing.
    """
    for owner, (missing, unexpected) in heard.items():
        if not {*paths} & {join(owner, key) for key in missing}:
            continue
        if not unexpected:
            return (
                f": its load with strict=False finds no {few(missing, SHOWN)} in the saved state",
                f"save {owner}.state_dict() with all of its keys, and load it with strict=True",
            )
        more = {key.removesuffix(missing[0]) for key in unexpected if key.endswith(missing[0])}
        less = {key.removesuffix(unexpected[0]) for key in missing if key.endswith(unexpected[0])}
        line = "give the saved keys the names that the module has"
        if any({*missing} <= {key.removeprefix(prefix) for key in unexpected} for prefix in more):
            line = f"take {min(more, key=len)!r} from the beginning of the saved keys"
        elif any({*unexpected} <= {key.removeprefix(prefix) for key in missing} for prefix in less):
            line = f"put {min(less, key=len)!r} before the saved keys"
        return (
            f": its load with strict=False matches nothing with the saved {few(unexpected, SHOWN)}, and finds no "
            f"{few(missing, SHOWN)}",
            f"{line}, and load {owner} with strict=True, which raises where keys do not match",
        )
    return "", ""


def _telling(links: dict[str, str | None]) -> tuple[str, str | None]:
    """The link that tells most: one that was there before the stop, and the first of these."""
    return min(links.items(), key=lambda one: (one[1] is None, one[0]))


def link_advice(links: dict[str, str | None], written: Mapping[str, str]) -> str:
    """What to do where two states are one before the stop only, or after the load only.

    Args:
        links: as for `cause`.
        written: as for `advice`.
    """
    place, target = _telling(links)
    here = _code(place.removesuffix(DATA), written)
    if trained := PLACE_IN_GROUPS.fullmatch(place):
        owner = _code(trained[1], written)
        return (
            f"load the model without assign=True, or make {owner} anew over the model's parameters after the model's "
            f"load, and then call {owner}.load_state_dict(...)"
        )
    if target is None:
        return f"give {here} a copy of its own in load_state_dict, by .clone()"
    there = _code(target, written)
    if place.endswith(DATA):
        return (
            f"{here} is no copy of {there}, and changes with it: keep a copy, by .clone(), and save it, or take it "
            f"anew from {there} after the load"
        )
    return f"make the two one again, last in load_state_dict: {here} = {there}"


def other_type(
    name: str, paths: Sequence[str], here: Leaves, there: Leaves, types: Mapping[str, str]
) -> tuple[str, str] | None:
    """Where tensors change their type on the way: what was done to them, and the line to change; else None.

    Args:
        name: of the state.
        paths: of its leaves.
        here: as for `cause`.
        there: as for `cause`.
        types: as for `cause`.
    """
    for path in paths:
        a, b = here.get(path), there.get(path)
        if a is None or not a.device:
            continue
        if types.get(path, a.dtype) != a.dtype:
            words = f"{name} is {types[path]} in the file and {a.dtype} in the run{_rounded(a, b, types[path])}"
            return words, f"{name} is saved as {types[path]}: save it in {a.dtype}"
        if b is not None and b.device and b.dtype != a.dtype:
            words = f"{name} is {b.dtype} after the load and {a.dtype} in the run{_rounded(a, b, b.dtype)}"
            caster = f"{name.split('/')[0]}.load_state_dict" if "/" in name else "the load"
            return words, f"{caster} makes {name} {b.dtype}: set it again from the saved state after that, in {a.dtype}"
    return None


def _rounded(a: Leaf, b: Leaf | None, narrow: str) -> str:
    """Whether what goes through another type is rounded, as the end of a sentence."""
    bits = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}  # of the significand
    kept = a.value is not None and b is not None and a.value == b.value
    return ": rounded" if not kept and bits.get(narrow, 99) < bits.get(a.dtype, 0) else ""


def _shown(one: Leaf) -> str:
    """A small value as it is written; of a list there is its text already."""
    return repr(one.value) if one.dtype == "str" or not isinstance(one.value, str) else one.value


def _items(path: str, leaves: Leaves) -> int:
    """How many items of a list were looked into."""
    return len({name[len(path) :].partition("]")[0] for name in leaves if name.startswith(f"{path}[")})


def _count(items: int) -> str:
    return "nothing" if not items else f"{items} item{'' if items == 1 else 's'}"


def advice(
    path: str,
    kind: str,
    saved: bool | None,
    written: Mapping[str, str] = {},
    dtype: str = "",
    within: Mapping[str, str] = {},
) -> str:
    """The line to add.

    Args:
        path: of the lost state.
        kind: its kind.
        saved: whether the saved dict has it; None where that cannot be told.
        written: path -> what is written to reach it, where that is not `self.path`.
        dtype: the library and the class of a generator.
        within: path -> what it is in words, where no line of the run's methods reaches it.
    """
    if kind == "other" and "optimizer" in path.split("."):
        return f"load into the optimizer that {path} refers to, or make {path.rpartition('.')[0]} anew after it"
    if saved and kind not in ("mode", "position"):
        return f"{path} is in the saved state: load it, last if something else sets it too"
    place = path.split("/")[0]
    if kind not in ("position", "samples") and (inner := within.get(path) or within.get(place)):
        return f"keep {inner} in an attribute of the run: save that, and set it in load_state_dict"
    if "/" not in path:
        place = ".".join(path.split(".")[: 2 if path.startswith("globals.") else 1])
    if path.endswith("requires_grad") and kind == "mode":
        kind = "requires_grad"
    own, key = _code(path, written), (path if kind == "generator" else place).rpartition(".")[2]
    group = "rng/cuda" if path.startswith("rng/cuda") else path if path in GENERATORS else dtype
    save, restore = (text.format(own=own, key=key) for text in GENERATORS.get(group, GENERATORS[""]))
    return CAUSES.get(kind, _VALUE).advice.format(
        place=_code(place, written),
        key=key,
        own=own,
        module=_code(path.removesuffix(".training"), written),
        save=save,
        restore=restore,
        shared=f" (global {own})" if path.startswith("globals.") and own.isidentifier() else "",
    )


def _code(path: str, written: Mapping[str, str]) -> str:
    """What is written to reach a path."""
    return written.get(path, f"self.{path}")


WORDS_UNPROVED = (
    "no state that can be put back makes the run equal, so that this is suspected only, and what the audit does not "
    "see may be lost too"
)
MOST_LINES = 5  # of advice on what is suspected only
HIDDEN_ADVICE = (
    "see what computes the first difference: it reads a state that the file does not have",
    "a library or a C extension with a state or a generator of its own: save that, or seed it by the step's number",
    "a file, a database or a server that the steps write to: save what they read there, or its path and position",
    "the clock, the process's id, an environment variable: put a saved value in its place",
    "what only a function or an object that nothing holds knows: keep it in an attribute of the run",
)


FEEDING_ADVICE = (
    "the position of a queue or a thread: save how many batches were consumed, and after the load start what fills it "
    "at that one"
)


def hidden_words(opaque: Sequence[str], feeding: Sequence[str] = ()) -> str:
    """Where nothing that differs at the load changes what follows: that the cause is hidden, and where it may be.

    Args:
        opaque: paths of the run into which the audit cannot look.
        feeding: those of them that bring what a thread or another process makes.
    """
    if feeding:
        return (
            f"nothing that differs at the load, put back, changes what follows: {few(feeding, 3)}, into which the "
            "audit cannot look, probably holds it: what fills it begins anew after the load"
        )
    where = f"{', '.join(opaque[:3])} (which the audit cannot look into), " if opaque else ""
    return (
        "nothing that differs at the load, put back, changes what follows: the loop depends on what the audit does "
        f"not see: {where}the state of a C extension or of another process, a file, time, or an object that the run "
        "does not hold"
    )
