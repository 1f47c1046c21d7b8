"""Trials of one stop: the run is resumed with some of the lost states put back; is it equal then?"""

import itertools
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.attribution import Found, Suspect, effective, find
from torch_port.audit.judge.record import Record, batch_file
from torch_port.audit.judge.workers import AuditFailed

if TYPE_CHECKING:
    from torch_port.audit.judge.audit import Session

MOST = 64 * 2**20  # bytes of batches that are kept
MOST_TRIES = 64  # at which suspects that do not suffice are cleared


class Batches:
    """The batches of the uninterrupted run, kept by a run like it when they are first asked for."""

    def __init__(self, session: "Session") -> None:
        self.session, self.folder = session, str(session.home / "batches")
        self.lock = threading.Lock()
        self.kept: Record | None = None
        self.tried = False

    def after(self, step: int) -> dict[str, Any] | None:
        """What the loaders delivered after a step, for `batches.Feeder`; None where not all of it could be kept."""
        with self.lock:
            if not self.tried:
                self.tried = True
                self._keep()
        if self.kept is None:
            return None
        steps = {at: found for at, found in self.session.a.deliveries.items() if at > step}
        for at, found in steps.items():
            if found != self.kept.deliveries.get(at):
                return None
            if not all(batch_file(self.folder, at, n).exists() for n, one in enumerate(found) if one.digest):
                return None
        return {"folder": self.folder, "steps": {str(at): found for at, found in steps.items()}}

    def _keep(self) -> None:
        first = min(map(int, self.session.files))
        try:
            self.kept = self.session.run(0, "batches", keep={"folder": self.folder, "after": first, "most": MOST})
        except AuditFailed:
            self.kept = None


class Trials:
    """The trials of one stop."""

    def __init__(self, session: "Session", resumed: Record, file: str, step: int, workers: Sequence[int]) -> None:
        """See above.

        Args:
            session: of the audit.
            resumed: the run in which nothing is put back.
            file: that it loads.
            step: of the stop.
            workers: the worker that makes the trials, and the one that the set found must hold in too.
        """
        self.session, self.resumed, self.file, self.step, self.workers = session, resumed, file, step, workers

    def attribute(self, everyone: list[Suspect]) -> Found:
        """A minimal set of suspects that makes the run equal."""
        found = self._find(everyone)
        if not found.proved and (batches := self._batches()) is not None:
            everyone = [batches, *everyone]
            found = self._find(everyone)
        if not found.proved:
            return Found(self._left(everyone), False, ())
        self.session.known.append(tuple(one.name for one in found.lost))
        self.session.harmless |= {name for one in found.harmless for name in (one.name, *one.paths)}
        self.session.lost |= {path for one in found.lost for path in one.paths}
        return found

    def equal(self, chosen: Sequence[Suspect], worker: int) -> bool:
        """Whether the run is equal with these put back."""
        try:
            return not self.session.differs(self._run(chosen, worker), self.step)
        except AuditFailed:
            return False  # what was put back does not fit the run

    def _find(self, everyone: list[Suspect]) -> Found:
        names = {one.name for one in everyone}
        known = next((found for found in self.session.known if set(found) <= names), ())
        first, last = self.workers[0], self.workers[-1]
        found = find(lambda chosen: self.equal(chosen, first), everyone, known)
        if found.proved and last != first and not self.equal(found.lost, last):  # with another hash seed
            found = find(lambda chosen: self.equal(chosen, last), everyone)
        return found

    def _run(self, chosen: Sequence[Suspect], worker: int) -> Record:
        here = self.session.a.at[self.step]
        paths = [path for one in chosen for path in one.paths]
        wanted = {
            "file": self.session.dumps[str(self.step)],
            "paths": [path for path in paths if path in here and self._fits(path)],
            "gone": [path for path in paths if path not in here and self._is_gone(path)],
            "links": {path: target for one in chosen for path, target in (one.links or {}).items()},
        }
        rest = {name: ids for one in chosen for name, ids in (one.rest or {}).items()}
        feed = next(({"feed": one.batches} for one in chosen if one.batches), {})
        return self.session.run(worker, "T", start=self.step, load=self.file, put_back=wanted, rest=rest, **feed)

    def _fits(self, path: str) -> bool:
        """Whether a value can stand in a place; the state of a generator is none for anything else."""
        here, there = self.session.a.at[self.step], self.resumed.at[self.step]
        return here[path].kind != "generator" or judge.kind_of(path, there) == "generator"

    def _is_gone(self, path: str) -> bool:
        """Whether the uninterrupted run has nothing in a place; an attribute that is None here is some object there."""
        here, there = self.session.a.at[self.step], self.resumed.at[self.step]
        unseen = "/" not in path and path in there and there[path].dtype == "NoneType"
        return not unseen and not any(other.startswith((f"{path}.", f"{path}[")) for other in here)

    def _batches(self) -> Suspect | None:
        """The batches as one more suspect, where the resumed run gets other ones."""
        a, b = self.session.a.at, self.resumed.at
        steps = [step for step in b if step > self.step]
        if all(a[step].get("samples") == b[step].get("samples") for step in steps):
            return None
        batches = self.session.batches.after(self.step)
        return None if batches is None else Suspect("samples", "samples", (), batches=batches)

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
            wrong = judge.differing(self.session.a.at[self.step], trial.at[self.step])
            stuck.update({*wrong} & {path for one in chosen for path in one.paths})
            return not judge.compare(
                self.resumed, trial, self.step, passed=self.session.ground.passed, moving=self.session.moving
            ).faults

        left = effective(same, everyone)
        kept = {id(one) for one in left}
        kept |= {id(one) for one in everyone if stuck & {*one.paths} and not self._is_replayed(one)}
        return tuple(one for one in everyone if id(one) in kept)

    def _is_replayed(self, one: Suspect) -> bool:
        """Whether it is the iterator of a loader: what it delivers stands for it."""
        known = self.session.a.at[self.step] | self.resumed.at[self.step]
        return all(f"{path.rpartition('.')[0]}.base_seed" in known for path in one.paths)
