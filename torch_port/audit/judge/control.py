"""The control: are two uninterrupted runs equal, and if not, why, and what can a resume be judged by?

Where they are equal, a resume must be too. Where they are with one hash seed only, so must a resume with that of the
uninterrupted run. Else a resume may be as far away as uninterrupted runs are from each other.
"""

from collections.abc import Sequence
from typing import NamedTuple

from torch_port.audit.judge import compare
from torch_port.audit.judge.findings import Control, Failure, Stop
from torch_port.audit.judge.record import Record
from torch_port.audit.judge.stops import Stops, choose_stops
from torch_port.audit.judge.workers import AuditFailed, Runner

HASH_NOTE = "runs with one hash seed are equal, with another they differ: the order of a set or hash() matters"
HASH_ADVICE = "sort what is taken from a set, as in sorted(names), or start every run with the same PYTHONHASHSEED"
NOTHING_MOVES = (
    "nothing that the audit sees changes from step to step, so that every resume would look equal: return the loss "
    "from step(), or hold the model and the optimizer as attributes of the run"
)
SEEDS = {
    "torch": "torch.manual_seed(0)",
    "cuda": "torch.manual_seed(0)",
    "numpy": "numpy.random.seed(0)",
    "python": "random.seed(0)",
}


class Evidence(NamedTuple):
    """The uninterrupted run, and what resumes are judged by."""

    a: Record  # the uninterrupted run
    stops: Stops
    files: dict[str, str]  # step -> what the user saves there
    dumps: dict[str, str]  # step -> every value there
    moving: frozenset[str]  # paths that change in an uninterrupted run
    control: Control
    passed: frozenset[str]  # paths that differ between uninterrupted runs, and are no results
    one_seed: bool  # only runs with one hash seed are equal

    @property
    def bitwise(self) -> bool:
        """Whether a resume can be asked to be equal in every bit."""
        return self.control.holds or self.one_seed

    @property
    def resumer(self) -> int:
        """The worker of resumes: that with another hash seed, where this changes no uninterrupted run."""
        return 0 if self.one_seed else 1

    def compare(self, record: Record, step: int, against: Record | None = None) -> compare.Comparison:
        """A run resumed after a step beside the uninterrupted one, or another."""
        return compare.compare(against or self.a, record, step, passed=self.passed, moving=self.moving)

    def differs(self, record: Record, step: int) -> bool:
        """Whether a resumed run is further from the uninterrupted one than another uninterrupted one would be."""
        found = self.compare(record, step)
        return bool(found.faults) if self.bitwise else not compare.within(found.largest, self.control.floor)


def control(runner: Runner, stops: Stops | None) -> Evidence:
    """Two uninterrupted runs; where they differ, two more tell why, and how far apart such runs are."""
    runner.note("two uninterrupted runs")
    plain = runner.submit(runner.run, 1, "B")  # never saves
    if stops is None:
        stops = choose_stops(plain.result(), runner.steps)
    flat = sorted({step for stop in stops for step in stop})
    files = {str(step): str(runner.home / f"saved-{step}.pt") for step in flat}
    dumps = {str(step): str(runner.home / f"dump-{step}.pt") for step in flat}
    a = runner.run(0, "A", save=files, dump=dumps)
    b: Record = plain.result()
    moving = frozenset(compare.changing(a) | compare.changing(b))
    first, floor, passed = compare.floor_of(a, b)
    found, one_seed = Control(True), False
    if first is not None:
        runner.note("the two differ: two more uninterrupted runs")
        again = runner.run(1, "C", anew=True)  # generators that nobody has seeded are elsewhere there
        saving = runner.run(1, "D", save={step: f"{file}.again" for step, file in files.items()})
        runs = (a, b, again, saving)
        for number, one in enumerate(runs):
            for other in runs[number + 1 :]:
                _, more, weak = compare.floor_of(one, other)
                floor = {path: max(floor.get(path, 0.0), more.get(path, 0.0)) for path in floor.keys() | more.keys()}
                passed |= weak
        notes = _notes(moving, a, b, again, saving)
        found, one_seed = Control(False, first, tuple(notes), floor), notes[:1] == [HASH_NOTE]
    return Evidence(a, stops, files, dumps, moving, found, frozenset(passed), one_seed)


def check_moves(evidence: Evidence) -> None:
    """Refuse a run of which nothing that is seen changes: every resume would be equal, whatever it lost."""
    kinds = {compare.kind_of(path, *evidence.a.at.values()) for path in evidence.moving - evidence.passed}
    if not kinds & (compare.RESULTS | compare.MARKS):
        raise AuditFailed(Failure("two uninterrupted runs", NOTHING_MOVES))


def with_one_seed(found: Control, stops: Sequence[Stop]) -> Control:
    """The control of a loop that depends on the hash seed, with what its resumes with one seed showed."""
    wrong = sum(not stop.holds for stop in stops)
    text = f"{wrong} of {len(stops)} resumes differ" if wrong else "every resume is equal"
    return found._replace(notes=(*found.notes, f"with the hash seed of the uninterrupted run {text}"))


def _notes(moving: frozenset[str], a: Record, b: Record, plain: Record, saving: Record) -> list[str]:
    """Why uninterrupted runs differ: a seed, a hash, a save with side effects, or a flag."""
    used = moving | {*a.facts["used"]}
    seeds = sorted(
        path for path, one in a.at[0].items() if one.kind == "generator" and path in used and b.at[0].get(path) != one
    )
    equal = compare.floor_of(b, plain)[0] is None  # the two with one hash seed
    if seeds and not equal:
        return _unseeded(seeds)
    if equal:
        if compare.floor_of(plain, saving)[0] is not None:
            return ["runs that do not save are equal: to save changes the run"]
        return [HASH_NOTE, HASH_ADVICE]
    return list(a.facts["flags"])


def _unseeded(paths: list[str]) -> list[str]:
    """Which generators nobody has seeded, and the lines that do."""
    owns = [path for path in paths if not path.startswith("rng/")]
    names = [path.removeprefix("rng/").partition(":")[0] for path in paths if path not in owns]
    said = [f"not seeded when the run is constructed: {', '.join(owns)}"] if owns else []
    if names:
        lines = dict.fromkeys(SEEDS[name] for name in names)
        said += [f"not seeded: {', '.join(dict.fromkeys(names))}", f"call {', '.join(lines)} before anything is drawn"]
    return said
