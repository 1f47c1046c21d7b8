"""Which of the lost states make the difference: a minimal set that, put back, makes the resumed run equal.

After the load, every state that differs from the uninterrupted run is a suspect. All are put back; if the run is equal
then, suspects are taken out again one after the other (in halves first), as long as it stays equal. What is left is
minimal: without any one of them the run differs. The last trial of the set itself is a new process.
"""

import itertools
import re
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch_port.audit.judge import compare
from torch_port.audit.judge.control import Evidence
from torch_port.audit.judge.record import DATA, PLACE_IN_GROUPS, Record, batch_file, rest_of_iterators
from torch_port.audit.judge.workers import AuditFailed, Runner

# The kinds in the order in which suspects are cleared: first what is seldom the cause.
CLEARED = (
    *("gradient", "position", "other", "counter", "mode", "generator", "buffer"),
    *("scaler", "schedule", "optimizer", "parameter", "samples"),
)
TRAINED = ".param_groups"  # which tensors an optimizer trains, as one
MOST = 64 * 2**20  # bytes of batches that are kept
MOST_TRIES = 64  # at which suspects that do not suffice are cleared


class Suspect(NamedTuple):
    """States that are lost and put back as one."""

    name: str
    kind: str
    paths: tuple[str, ...]
    rest: Any = None  # what an interrupted iterator still has to issue
    batches: Any = None  # what the loaders deliver from then on, see `samples.Feeder`
    links: Any = None  # path -> what it is the same object or memory as; None: as nothing else


class Found(NamedTuple):
    """What the trials showed."""

    lost: tuple[Suspect, ...]  # where no set is proved: the suspects left
    proved: bool
    harmless: tuple[Suspect, ...]  # differ after the load, and the run is equal without them
    unkept: bool = False  # the batches differ, and could not be kept to be put back


def suspects(evidence: Evidence, resumed: Record, stop: int) -> list[Suspect]:
    """What differs right after the load, by group, the most telling first.

    No generator that is never drawn from, and no setting among the variables of a generator that begins anew.
    """
    a, moving = evidence.a, evidence.moving
    here, there = a.at[stop], resumed.at[stop]
    grouped: dict[str, list[str]] = {}
    for path in compare.differing(here, there, evidence.passed):
        kind = compare.kind_of(path, here, there)
        fixed = kind in compare.MARKS and path not in moving and compare.out_of_sight(path, (a, here), (resumed, there))
        if kind not in ("loss", "samples") and not fixed and (kind != "generator" or path in moving):
            grouped.setdefault(a.groups.get(path) or resumed.groups.get(path) or path, []).append(path)
    found = []
    for name, rest in rest_of_iterators(a, stop).items():
        if not any(ids is None for ids in rest["ids"]):
            found.append(Suspect(f"{name}.position", "position", (), rest={name: rest}))
    links = _links(a, resumed, stop)
    for group, paths in grouped.items():
        kind, name = compare.kind_of(paths[0], here, there), _name(group, paths)
        found.append(Suspect(name, kind, tuple(paths), links=links.pop(group, None)))
    found += [Suspect(group, "other", (), links=one) for group, one in links.items()]
    return sorted(found, key=lambda one: compare.telling(one.name, one.kind))


def _links(a: Record, resumed: Record, stop: int) -> dict[str, dict[str, str | None]]:
    """What is one object, or one memory, in one of the runs only: group -> path -> what it is the same as."""
    here, there = (record.facts.get("aliases", {}).get(str(stop), {}) for record in (a, resumed))
    links: dict[str, dict[str, str | None]] = {}
    for path in here.keys() | there.keys():
        if here.get(path) != there.get(path):
            trained = PLACE_IN_GROUPS.fullmatch(path)
            if trained and (path not in here or path in there):
                continue  # it trains a tensor that the run holds: in another order at most
            if path not in there and compare.out_of_sight(path, (a, a.at[stop]), (resumed, resumed.at[stop])):
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
    lost = tuple(sorted(kept, key=lambda one: compare.telling(one.name, one.kind)))
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


class Batches:
    """The batches of the uninterrupted run, kept by a run like it when they are first asked for."""

    def __init__(self, evidence: Evidence, runner: Runner) -> None:
        self.evidence, self.runner, self.folder = evidence, runner, str(runner.home / "batches")
        self._lock = threading.Lock()
        self._kept: list[Record | None] = []  # one, when it has been tried

    def after(self, step: int) -> dict[str, Any] | None:
        """What the loaders delivered after a step, for `samples.Feeder`; None where not all of it could be kept."""
        with self._lock:
            if not self._kept:
                self._kept.append(self._keep())
        kept = self._kept[0]
        if kept is None:
            return None
        steps = {at: found for at, found in self.evidence.a.deliveries.items() if at > step}
        for at, found in steps.items():
            if found != kept.deliveries.get(at):
                return None
            if not all(batch_file(self.folder, at, n).exists() for n, one in enumerate(found) if one.digest):
                return None
        return {"folder": self.folder, "steps": {str(at): found for at, found in steps.items()}}

    def _keep(self) -> Record | None:
        first = min(map(int, self.evidence.files))
        try:
            return self.runner.run(0, "batches", keep={"folder": self.folder, "after": first, "most": MOST})
        except AuditFailed:
            return None


class Trials:
    """The trials of one stop: the run is resumed with some of the lost states put back; is it equal then?"""

    def __init__(
        self, evidence: Evidence, runner: Runner, resumed: Record, file: str, step: int, workers: Sequence[int]
    ) -> None:
        """See above.

        Args:
            evidence: of the control.
            runner: of the trials.
            resumed: the run in which nothing is put back.
            file: that it loads.
            step: of the stop.
            workers: the worker that makes the trials, and the one that the set found must hold in too.
        """
        self.evidence, self.runner, self.resumed, self.file, self.step = evidence, runner, resumed, file, step
        self.workers = workers
        self.here, self.there = evidence.a.at[step], resumed.at[step]

    def attribute(self, everyone: list[Suspect], batches: Batches, known: Sequence[tuple[str, ...]]) -> Found:
        """A minimal set of suspects that makes the run equal; `known`: such sets of other stops."""
        found, unkept = self._find(everyone, known), False
        if not found.proved and self._gets_other_batches():
            kept = batches.after(self.step)
            unkept = kept is None
            if kept is not None:
                everyone = [Suspect("samples", "samples", (), batches=kept), *everyone]
                found = self._find(everyone, known)
        return found if found.proved else Found(self._left(everyone), False, (), unkept)

    def equal(self, chosen: Sequence[Suspect], worker: int) -> bool:
        """Whether the run is equal with these put back."""
        try:
            return not self.evidence.differs(self._run(chosen, worker), self.step)
        except AuditFailed:
            return False  # what was put back does not fit the run

    def _find(self, everyone: list[Suspect], known: Sequence[tuple[str, ...]]) -> Found:
        names = {one.name for one in everyone}
        guess = next((one for one in known if set(one) <= names), ())
        first, last = self.workers[0], self.workers[-1]
        found = find(lambda chosen: self.equal(chosen, first), everyone, guess)
        if found.proved and last != first and not self.equal(found.lost, last):  # with another hash seed
            found = find(lambda chosen: self.equal(chosen, last), everyone)
        return found

    def _run(self, chosen: Sequence[Suspect], worker: int) -> Record:
        paths = [path for one in chosen for path in one.paths]
        wanted = {
            "file": self.evidence.dumps[str(self.step)],
            "paths": [path for path in paths if path in self.here and self._fits(path)],
            "gone": [path for path in paths if path not in self.here and self._is_gone(path)],
            "links": {path: target for one in chosen for path, target in (one.links or {}).items()},
        }
        rest = {name: ids for one in chosen for name, ids in (one.rest or {}).items()}
        feed = next(({"feed": one.batches} for one in chosen if one.batches), {})
        return self.runner.run(worker, "T", start=self.step, load=self.file, put_back=wanted, rest=rest, **feed)

    def _fits(self, path: str) -> bool:
        """Whether a value can stand in a place; the state of a generator is none for anything else."""
        return self.here[path].kind != "generator" or compare.kind_of(path, self.there) == "generator"

    def _is_gone(self, path: str) -> bool:
        """Whether the uninterrupted run has nothing in a place; an attribute that is None here is some object there."""
        unseen = "/" not in path and path in self.there and self.there[path].dtype == "NoneType"
        return not unseen and not any(other.startswith((f"{path}.", f"{path}[")) for other in self.here)

    def _gets_other_batches(self) -> bool:
        a, b = self.evidence.a.at, self.resumed.at
        return any(a[step].get("samples") != b[step].get("samples") for step in b if step > self.step)

    def _left(self, everyone: list[Suspect]) -> tuple[Suspect, ...]:
        """Of suspects that do not suffice, those that change what follows, and those that could not be put back."""
        stuck: set[str] = set()
        tries = itertools.count(1)

        def same(chosen: Sequence[Suspect]) -> bool:
            if next(tries) > MOST_TRIES:
                return False
            try:
                trial = self._run(chosen, self.workers[0])
            except AuditFailed:
                return False
            wrong = compare.differing(self.here, trial.at[self.step])
            stuck.update({*wrong} & {path for one in chosen for path in one.paths})
            return not self.evidence.compare(trial, self.step, self.resumed).faults

        kept = {id(one) for one in effective(same, everyone)}
        kept |= {id(one) for one in everyone if stuck & {*one.paths} and not self._is_replayed(one)}
        return tuple(one for one in everyone if id(one) in kept)

    def _is_replayed(self, one: Suspect) -> bool:
        """Whether it is the iterator of a loader: what it delivers stands for it."""
        known = self.here | self.there
        return all(f"{path.rpartition('.')[0]}.base_seed" in known for path in one.paths)
