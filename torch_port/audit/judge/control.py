"""The control: are two uninterrupted runs equal, and if not, why, and what can a resume be judged by?

Where they are equal, a resume must be too. Where they are with one hash seed only, so must a resume with that of the
uninterrupted run. Else a resume may be as far away as uninterrupted runs are from each other.
"""

from typing import TYPE_CHECKING, NamedTuple

from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.findings import Control, Stop
from torch_port.audit.judge.record import Record

if TYPE_CHECKING:
    from torch_port.audit.judge.audit import Session

HASH_NOTE = "runs with one hash seed are equal, with another they differ: the order of a set or hash() matters"
HASH_ADVICE = "sort what is taken from a set, as in sorted(names), or start every run with the same PYTHONHASHSEED"

SEEDS = {"torch": "torch.manual_seed(0)", "cuda": "torch.manual_seed(0)", "numpy": "numpy.random.seed(0)",
         "python": "random.seed(0)"}  # fmt: skip


class Ground(NamedTuple):
    """What resumes are judged by."""

    control: Control
    passed: set[str]  # paths that differ between uninterrupted runs, and are no results
    one_seed: bool  # only runs with one hash seed are equal

    @property
    def bitwise(self) -> bool:
        """Whether a resume can be asked to be equal in every bit."""
        return self.control.holds or self.one_seed


def ground_of(session: "Session", a: Record, b: Record) -> Ground:
    """Are two uninterrupted runs equal? If not, two more tell why, and how far apart such runs are.

    Args:
        session: of the audit; its second worker has another hash seed than its first.
        a: a run of the first worker, which saved at every stop.
        b: a run of the second, which never saved.
    """
    first, floor, passed = judge.floor_of(a, b)
    if first is None:
        return Ground(Control(True), passed, False)
    session.note("the two differ: two more uninterrupted runs")
    plain = session.run(1, "C", anew=True)  # generators that nobody has seeded are elsewhere there
    saving = session.run(1, "D", save={step: f"{file}.again" for step, file in session.files.items()})
    runs = (a, b, plain, saving)
    for number, one in enumerate(runs):
        for other in runs[number + 1 :]:
            _, more, weak = judge.floor_of(one, other)
            floor = {path: max(floor.get(path, 0.0), more.get(path, 0.0)) for path in floor.keys() | more.keys()}
            passed |= weak
    notes = _notes(session, a, b, plain, saving)
    return Ground(Control(False, first, tuple(notes), floor), passed, notes[:1] == [HASH_NOTE])


def _notes(session: "Session", a: Record, b: Record, plain: Record, saving: Record) -> list[str]:
    """Why uninterrupted runs differ: a seed, a hash, a save with side effects, or a flag."""
    used = session.moving | {*a.facts["used"]}
    seeds = sorted(
        path for path, one in a.at[0].items() if one.kind == "generator" and path in used and b.at[0].get(path) != one
    )
    equal = judge.floor_of(b, plain)[0] is None  # the two with one hash seed
    if seeds and not equal:
        return _unseeded(seeds)
    if equal:
        if judge.floor_of(plain, saving)[0] is not None:
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


def with_one_seed(control: Control, stops: list[Stop]) -> Control:
    """The control of a loop that depends on the hash seed, with what its resumes with one seed showed."""
    wrong = sum(not stop.holds for stop in stops)
    found = f"{wrong} of {len(stops)} resumes differ" if wrong else "every resume is equal"
    return control._replace(notes=(*control.notes, f"with the hash seed of the uninterrupted run {found}"))
