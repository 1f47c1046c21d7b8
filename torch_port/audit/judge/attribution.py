"""Which of the lost states make the difference: a minimal set that, put back, makes the resumed run equal.

After the load, every state that differs from the uninterrupted run is a suspect. All are put back; if the run is equal
then, suspects are taken out again one after the other (in halves first), as long as it stays equal. What is left is
minimal: without any one of them the run differs. The last trial of the set itself is a new process.
"""

import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.paths import DATA, PLACE_IN_GROUPS
from torch_port.audit.judge.record import Record, rest_of_iterators

# The kinds in the order in which suspects are cleared: first what is seldom the cause.
CLEARED = ("gradient", "position", "other", "counter", "mode", "generator", "buffer", "scaler", "schedule", "optimizer",
           "parameter", "samples")  # fmt: skip
TRAINED = ".param_groups"  # which tensors an optimizer trains, as one


class Suspect(NamedTuple):
    """States that are lost and put back as one."""

    name: str
    kind: str
    paths: tuple[str, ...]
    rest: Any = None  # what an interrupted iterator still has to issue
    batches: Any = None  # what the loaders deliver from then on, see `batches.Feeder`
    links: Any = None  # path -> what it is the same object or memory as; None: as nothing else


class Found(NamedTuple):
    """What the trials showed."""

    lost: tuple[Suspect, ...]  # where no set is proved: the suspects left
    proved: bool
    harmless: tuple[Suspect, ...]  # differ after the load, and the run is equal without them


def suspects(a: Record, resumed: Record, stop: int, passed: set[str], moving: set[str]) -> list[Suspect]:
    """What differs right after the load, by group, the most telling first.

    No generator that is never drawn from, and no setting among the variables of a generator that begins anew.
    """
    here, there = a.at[stop], resumed.at[stop]
    grouped: dict[str, list[str]] = {}
    for path in judge.differing(here, there, passed):
        kind = judge.kind_of(path, here, there)
        fixed = kind in judge.MARKS and path not in moving and judge.out_of_sight(path, (a, here), (resumed, there))
        if kind not in ("loss", "samples") and not fixed and (kind != "generator" or path in moving):
            grouped.setdefault(a.groups.get(path) or resumed.groups.get(path) or path, []).append(path)
    found = []
    for name, rest in rest_of_iterators(a, stop).items():
        if not any(ids is None for ids in rest["ids"]):
            found.append(Suspect(f"{name}.position", "position", (), rest={name: rest}))
    links = _links(a, resumed, stop)
    for group, paths in grouped.items():
        kind, name = judge.kind_of(paths[0], here, there), _name(group, paths)
        found.append(Suspect(name, kind, tuple(paths), links=links.pop(group, None)))
    found += [Suspect(group, "other", (), links=one) for group, one in links.items()]
    return sorted(found, key=lambda one: judge.telling(one.name, one.kind))


def _links(a: Record, resumed: Record, stop: int) -> dict[str, dict[str, str | None]]:
    """What is one object, or one memory, in one of the runs only: group -> path -> what it is the same as."""
    here, there = (record.facts.get("aliases", {}).get(str(stop), {}) for record in (a, resumed))
    links: dict[str, dict[str, str | None]] = {}
    for path in here.keys() | there.keys():
        if here.get(path) != there.get(path):
            trained = PLACE_IN_GROUPS.fullmatch(path)
            if trained and (path not in here or path in there):
                continue  # it trains a tensor that the run holds: in another order at most
            if path not in there and judge.out_of_sight(path, (a, a.at[stop]), (resumed, resumed.at[stop])):
                continue  # a variable of a generator that begins anew
            whose = path.removesuffix(DATA)
            group = trained[1] + TRAINED if trained else a.groups.get(whose) or resumed.groups.get(whose) or whose
            links.setdefault(group, {})[path] = here.get(path)
    return links


def find(equal: Callable[[Sequence[Suspect]], bool], all_of_them: list[Suspect], known: Sequence[str] = ()) -> Found:
    """A minimal set of suspects that makes the run equal.

    Args:
        equal: a trial: is the run equal with these put back?
        all_of_them: the suspects.
        known: names of a set found at another stop, which is tried first.
    """
    guess = [one for one in all_of_them if one.name in known]
    kept = guess if guess and equal(guess) else None
    if kept is None:
        if not all_of_them or not equal(all_of_them):
            return Found(tuple(all_of_them), False, ())
        kept = all_of_them
    kept = _minimal(equal, kept)
    lost = tuple(sorted(kept, key=lambda one: judge.telling(one.name, one.kind)))
    return Found(lost, True, tuple(one for one in all_of_them if one not in lost))


def effective(same: Callable[[Sequence[Suspect]], bool], some: list[Suspect]) -> list[Suspect]:
    """The suspects that change anything when they are put back, alone or, where none does alone, together.

    Args:
        same: a trial: is the run as it is when nothing is put back?
        some: suspects.
    """
    if not some or same(some):
        return []
    half = len(some) // 2
    parts = [*effective(same, some[:half]), *effective(same, some[half:])] if half else []
    return parts or some


def _minimal(equal: Callable[[Sequence[Suspect]], bool], kept: list[Suspect]) -> list[Suspect]:
    """Take out chunks, halving their size, while the run stays equal."""
    order = sorted(kept, key=lambda one: CLEARED.index(one.kind) if one.kind in CLEARED else 0)
    size = max(1, len(order) // 2)
    while True:
        place = 0
        while place < len(order):
            without = order[:place] + order[place + size :]
            if len(order) > 1 and without and equal(without):
                order = without
            else:
                place += size
        if size == 1:
            return order
        size = max(1, size // 2)


def _name(group: str, paths: list[str]) -> str:
    """The longest path that all have in common; of an optimizer's state its name."""
    if len(paths) == 1 or "/" in group:
        return paths[0] if len(paths) == 1 else group
    ends = (".requires_grad", ".grad", ".training")
    end = next((end for end in ends if all(path.endswith(end) for path in paths)), "")
    parts = [re.findall(r"[.\[]?[^.\[]+", path.removesuffix(end)) for path in paths]
    same = itertools.takewhile(lambda level: len({*level}) == 1, zip(*parts, strict=False))
    common = "".join(level[0] for level in same)
    return common + end if common else group
