"""What the files of a script tell of a resume that differs: what was lost, in words, and the lines to add.

    saved     at the stop
    changes   to that, when it is loaded and saved again with no step between; None: that could not be tried
    ends      what differs between the end of the resumed run and that of the one that never stopped

Nothing is proved: a state that is in no file is not seen.
"""

import math
from collections.abc import Mapping, Sequence

from torch_port.audit import foreign
from torch_port.audit.judge.causes import POSITION_ADVICE
from torch_port.audit.judge.findings import Difference, Stop

SHOWN = 3  # changes in a sentence
COMES_BACK = "all that is in the file comes back when it is loaded: what is lost is not in it, or not in full"
CHANGES = "it is in the file, and is another when the file is loaded and saved again with no step between"
NOT_ALL = "all that was read comes back when it is loaded: what is lost is not in it, or in what was not read: "
GROUPS = {  # kinds that torch saves whole: what tells their form, and what loads them
    "optimizer": ("param_groups/0/lr", "optimizer.load_state_dict(...),"),
    "scheduler": ("last_epoch", "scheduler.load_state_dict(...), after the optimizer's,"),
    "scaler": ("_growth_tracker", "scaler.load_state_dict(...),"),
}
UNTRIED = "whether a load brings back all that is in the file could not be tried: no resume without a step between"
NARROW = ("float16", "bfloat16")
LINES = {
    "model": "save model.state_dict(), and load it with strict=True",
    "optimizer": "save optimizer.state_dict(), and load it: optimizer.load_state_dict(...)",
    "generator": "save the state of each generator that is drawn from (torch.get_rng_state(), np.random.get_state(), "
    "random.getstate()), and set it last in the load",
    "position": POSITION_ADVICE,
    "counter": "save the step and the epoch, and go on from them",
    "scheduler": "if there is a scheduler: save scheduler.state_dict(), and load it after the optimizer's",
    "scaler": "if the loss is scaled: save scaler.state_dict(), and load it",
    "ema": "if there is a moving average of the weights: save it, and load it",
    "best": "if the best result so far decides anything: save it, and set it in the load",
}

Tree = Mapping[str, foreign.Leaf]


def stop_of(
    place: tuple[int, ...],
    saved: Tree,
    changes: Sequence[foreign.Change] | None,
    ends: Sequence[Difference],
    unread: Sequence[str] = (),
) -> Stop:
    """One resume.

    Args:
        place: the steps after which it was stopped.
        saved: what was saved at the first of them.
        changes: see above.
        ends: see above; none where the two are equal.
        unread: files that were saved beside these, of which nothing is known.
    """
    if not ends:
        return Stop(place, True, "bitwise")
    counted = miscounted(saved, ends)
    changes = None if changes is None else sorted(changes, key=lambda change: _order(saved[change.path]))
    lost = tuple(dict.fromkeys(part_of(change.path) for change in changes or ()))
    first = differences(place[0], _part(changes, lost[0]))[0] if changes else worst(ends)
    differing = tuple(change.path for change in changes or ())
    cause, lines = _cause(saved, changes, unread), _lines(saved, differing)
    if unread and not lost:
        lines = ()  # what is missing cannot be told
    if counted is not None:  # all else that differs at the end may follow from that
        first, said, line = counted, *_other_end(place[-1], counted)
        cause, lines = (f"{said}; {cause}", (line, *lines)) if lost else (said, (line,))
    return Stop(place, False, "differs", first, lost, False, cause, lines, differing=differing)


def miscounted(saved: Tree, ends: Sequence[Difference]) -> Difference | None:
    """The file's own counter of steps, where the resumed run did not end at the step it should."""
    counters = {path for path, leaf in saved.items() if leaf.kind == "counter"}
    counted = (one for one in ends if one.path in counters and one.expected == one.step and type(one.found) is int)
    return next(counted, None)


def _other_end(stop: int, counted: Difference) -> tuple[str, str]:
    """That a resumed run ended at another step, and what to change, in words."""
    steps, found = counted.step, counted.found
    if found == steps - stop:
        line = "the resume counts all steps, and seems to be given those that are left: {steps}, not {left}"
    elif found == steps + stop:
        line = "the resume counts the steps that are left, and seems to be given all: {left}, not {steps}"
    else:
        line = "see what --resume is given: {steps} are the steps in all, {left} those that are left to it"
    return f"the resumed run did not end at step {steps}: {counted.path} is {found} then, not {steps}", line


def part_of(path: str) -> str:
    """The part of a file that a leaf belongs to."""
    return "/".join(path.split("/")[:2])


def differences(step: int, changes: Sequence[foreign.Change]) -> list[Difference]:
    """Changes as differences, the largest first, those without a distance last."""
    found = [Difference(step, c.path, _plain(c.a), _plain(c.b), float(c.distance), c.ulps) for c in changes]
    return sorted(found, key=_size, reverse=True)


def worst(found: Sequence[Difference]) -> Difference | None:
    """The leaf that is furthest apart, of those that have a distance if there are any."""
    return max(found, key=_size, default=None)


def _size(found: Difference) -> tuple[bool, float]:
    return math.isfinite(found.distance), found.distance


def _order(leaf: foreign.Leaf) -> int:
    """Sorts leaves by their kind: what an update needs beside the weights comes first, they follow from it."""
    order = ("generator", "position", "scheduler", "scaler", "optimizer", "ema", "best", "counter", "model")
    return order.index(leaf.kind) if leaf.kind in order else len(order)


def _part(changes: Sequence[foreign.Change], part: str) -> list[foreign.Change]:
    return [change for change in changes if part_of(change.path) == part]


def _cause(saved: Tree, changes: Sequence[foreign.Change] | None, unread: Sequence[str]) -> str:
    """What is known, in words."""
    if changes:
        shown = [f"{c.path}{_kind(saved[c.path])} is {_text(c.b)} then, not {_text(c.a)}" for c in changes[:SHOWN]]
        more = f", and {len(changes) - SHOWN} more" if len(changes) > SHOWN else ""
        return f"{CHANGES}: {'; '.join(shown)}{more}"
    said = [UNTRIED if changes is None else NOT_ALL + ", ".join(unread) if unread else COMES_BACK]
    narrow = {
        part_of(path): leaf.dtype
        for path, leaf in saved.items()
        if leaf.dtype in NARROW and leaf.kind in ("model", "optimizer", "ema")
    }
    said += [f"{part} is {dtype} in the file: rounded, if the run has it in float32" for part, dtype in narrow.items()]
    if not unread and (lacks := [text.partition(":")[0].partition(";")[0] for text in foreign.lacks(saved)]):
        said.append(f"the file has {', '.join(lacks)}")
    return "; ".join(said)


def _lines(saved: Tree, lost: Sequence[str]) -> tuple[str, ...]:
    """The lines to add or change, where these leaves were lost."""
    if lost:
        return tuple(dict.fromkeys(_load(saved, path) for path in lost))
    kinds = {leaf.kind for leaf in saved.values()}
    return tuple(line for kind, line in LINES.items() if kind not in kinds)


def _load(saved: Tree, path: str) -> str:
    """What is to be loaded: a leaf's part of the file, or all of the optimizer, scheduler or scaler that it is of."""
    leaf = saved[path]
    told, how = GROUPS.get(leaf.kind, ("", ""))
    if told and any(other.name == told and other.part == leaf.part for other in saved.values()):
        where = f"{leaf.part} is in the saved file" if leaf.part else "it is in the saved file"
        return f"{where}: load it with {how} last if something else sets it too"
    return f"{part_of(path)} is in the saved file: load it, last if something else sets it too"


def _kind(leaf: foreign.Leaf) -> str:
    """The kind of a leaf, where it belongs to a part that is named."""
    return f" ({leaf.kind})" if leaf.part else ""


def _text(value: object) -> str:
    return value if isinstance(value, str) else repr(value)


def _plain(value: object) -> bool | int | float | str | None:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)
