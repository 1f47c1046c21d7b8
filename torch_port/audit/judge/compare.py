"""Are two runs equal after a stop, and what differs first? On records alone, without torch.

Results (weights, moments, rates, modes, losses, samples) must be equal. A number or tensor of the run object must be,
if it changes in the uninterrupted run: what never changes is a setting. Generators, positions of iterators and
gradients differ in sound loops too (a new iterator draws a seed that nobody uses); they are suspects, and count by what
they change. So does what an iterator holds, where only one of the runs shows it: another iterator may give the same.
"""

import math
from collections import Counter
from collections.abc import Iterable, Set
from typing import Any, NamedTuple

from torch_port.audit.judge.findings import Difference
from torch_port.audit.judge.record import Delivery, Leaf, Record, difference, relative_distance

# The kinds in the order in which they tell what happened: causes before effects.
TELLING = (
    *("mode", "samples", "loss", "position", "generator", "schedule", "scaler", "buffer", "optimizer", "parameter"),
    *("other", "counter", "gradient"),
)
RESULTS = {"parameter", "buffer", "optimizer", "schedule", "scaler", "mode", "samples", "loss"}
MARKS = {"counter", "other"}
SHOWN = (RESULTS | MARKS) - {"samples", "loss"}  # by their values
NO_RESULTS = ("_step_count", "_last_lr", "initial_lr", "num_bad_epochs_")


class Comparison(NamedTuple):
    """Two runs after a stop."""

    faults: tuple[Difference, ...]  # at the first step that differs, the most telling first
    curve: tuple[tuple[int, float], ...]
    largest: dict[str, float]  # path -> largest distance at any step after the stop


def kind_of(path: str, *records: dict[str, Leaf]) -> str:
    """The kind of a leaf in the first of the records that has it."""
    return next((record[path].kind for record in records if path in record), "other")


def changing(record: Record) -> set[str]:
    """The paths that have two values in a run; one that is there only from some step on may be a setting all the same.

    What a step creates brings its settings with it.
    """
    latest: dict[str, Leaf] = {}
    moves = set()
    for step in sorted(record.at):
        moves |= {path for path, one in record.at[step].items() if latest.get(path, one) != one}
        latest.update(record.at[step])
    return moves


def moved(here: dict[str, Leaf], there: dict[str, Leaf]) -> bool:
    """Whether anything that is judged by its value has another one at another moment."""
    return any(kind_of(path, here, there) in SHOWN for path in differing(here, there))


def differing(a: dict[str, Leaf], b: dict[str, Leaf], passed: Iterable[str] = ()) -> list[str]:
    """The paths at which two moments differ, the most telling first."""
    hidden = set(passed)
    paths = [path for path in a.keys() | b.keys() if path not in hidden and not _same(a.get(path), b.get(path))]
    return sorted(paths, key=lambda path: telling(path, kind_of(path, a, b)))


def telling(path: str, kind: str) -> tuple[int, int, str]:
    """Sorts paths: causes before effects, what the user named before what is derived from it."""
    return TELLING.index(kind) if kind in TELLING else len(TELLING), path.count("._"), path


def compare(
    a: Record, b: Record, stop: int, *, passed: Iterable[str] = (), moving: Set[str] | None = None
) -> Comparison:
    """Compare a resumed run with the uninterrupted one at every step after a stop.

    Args:
        a: the uninterrupted run.
        b: the resumed one.
        stop: the step after which it was stopped.
        passed: paths not to be judged, as they differ between two uninterrupted runs.
        moving: `changing(a)`, where it is known already.
    """
    moves = changing(a) if moving is None else moving
    hidden, again = set(passed), fetched_again(a, b, stop)
    faults: list[tuple[Difference, ...]] = []  # of each step that differs
    curve: list[tuple[int, float]] = []
    largest: dict[str, float] = {}
    used = not again  # whether something follows from what was fetched once more
    for step in sorted(b.at):
        if step < stop:
            continue
        here, there = a.at.get(step, {}), b.at.get(step, {})
        apart, found = 0.0, []
        for path in differing(here, there, hidden):
            if step == stop and path.startswith(("loss", "samples")):
                continue  # of the step before the load
            kind, anew = kind_of(path, here, there), again and step == stop + 1 and path == "samples"
            matters = judged(path, kind, moves) and not (kind in MARKS and out_of_sight(path, (a, here), (b, there)))
            used |= step > stop and not anew and (matters or kind == "gradient")
            if not matters:
                continue
            one = difference(step, path, here.get(path), there.get(path))
            found.append(one)
            if anew:
                continue
            apart = max(apart, relative_distance(one, here.get(path)))
            if step > stop:  # a state that is lost and changes nothing is no fault
                largest[path] = max(largest.get(path, 0.0), one.distance)
        curve.append((step, apart))
        if found and step > stop:
            faults.append(tuple(found))
    return Comparison(faults[0] if faults and used else (), tuple(curve), largest)


def fetched_again(a: Record, b: Record, stop: int) -> bool:
    """Whether the first step after a stop fetches what it should and, once more, batches from before the stop.

    A loop that has read ahead, or that skips the head of an epoch only when it needs a batch, holds none of them after
    the load. If they are used once more, what follows from that tells.
    """

    def key(one: Delivery) -> str:
        return one.digest if one.ids is None else repr(one.ids)  # random changes to a sample are drawn anew

    anew = [(key(one), one.digest) for one in b.deliveries.get(stop + 1, ()) if one.digest]
    for one in a.deliveries.get(stop + 1, ()):
        if one.digest and (key(one), one.digest) not in anew:
            return False
        if one.digest:
            anew.remove((key(one), one.digest))
    before = Counter(key(one) for step, found in a.deliveries.items() if step <= stop for one in found if one.digest)
    return bool(anew) and Counter(name for name, _ in anew) <= before


def at_load(stop: int, lost: Iterable[Any], here: dict[str, Leaf], there: dict[str, Leaf]) -> Difference | None:
    """The first lost leaf with a value of its own, as it differs right after the load: the cause of all later ones."""
    for one in lost:
        for path in one.paths:
            if one.kind in SHOWN and not _same(here.get(path), there.get(path)):
                return difference(stop, path, here.get(path), there.get(path))
    return None


def judged(path: str, kind: str, moves: Set[str]) -> bool:
    """Whether a leaf of this kind must be equal."""
    if kind in RESULTS:
        return not path.endswith(NO_RESULTS)
    return kind in MARKS and path in moves


def out_of_sight(path: str, *moments: tuple[Record, dict[str, Leaf]]) -> bool:
    """Whether a path lies in an iterator, or a generator's frame, and is not there at all of the moments of two runs.

    A loop that skips what was used may do so by another iterator, under which the same variables have other paths or
    none; one that begins anew has none of them yet.
    """
    if all(path in leaves for _, leaves in moments):
        return False
    return any(
        one.kind == "position" and path.startswith((f"{within}.", f"{within}["))
        for record, leaves in moments
        for place, one in leaves.items()
        for within in (record.groups.get(place, place),)
    )


def floor_of(a: Record, b: Record) -> tuple[Difference | None, dict[str, float], set[str]]:
    """Two uninterrupted runs: the first result that differs, the largest distance by path, and paths to pass over.

    Clocks, names of files and the like differ from run to run and change no result: these paths are passed over.
    """
    everything = compare(a, b, min(a.at) - 1, moving=set().union(*(found.keys() for found in a.at.values())))
    paths = set(everything.largest)
    kinds = {path: kind_of(path, *a.at.values(), *b.at.values()) for path in paths}
    strong = {path for path in paths if kinds[path] in RESULTS and (kinds[path] != "loss" or path == "loss")}
    if not strong:
        return None, {}, paths
    found = compare(a, b, min(a.at) - 1, passed=paths - strong)
    return found.faults[0] if found.faults else None, found.largest, paths - strong


def is_rounding(floor: dict[str, float], record: Record) -> bool:
    """Whether a noise floor is small enough to judge by: each leaf to a hundredth of its size, and the same samples."""
    last = record.at[max(record.at)]
    return all(
        relative_distance(Difference(0, path, None, None, apart), last.get(path)) < 0.01
        for path, apart in floor.items()
    )


def within(largest: dict[str, float], floor: dict[str, float]) -> bool:
    """Whether no leaf is further away than twice what two uninterrupted runs are apart at most, by path."""
    return all(math.isfinite(apart) and apart <= 2 * floor.get(path, 0.0) for path, apart in largest.items())


def _same(a: Leaf | None, b: Leaf | None) -> bool:
    return (
        a is not None
        and b is not None
        and a.digest == b.digest
        and (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device)
    )
