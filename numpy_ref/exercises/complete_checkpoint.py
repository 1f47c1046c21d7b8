"""The exercise `complete_checkpoint`: all of a run in one file, graded by leaving nothing unchanged, leaf by leaf.

The laws train by the loop that is given, that of the reference in the solution's framework; a solution saves and loads.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, expect_same_bits, law, short
from numpy_ref.exercises.source import REFERENCES

STEPS = 24  # close to five epochs of five steps; the rate falls after 7, 14 and 21
STOPS = ((1,), (5,), (7,), (6, 8), (13, 17, 20))  # in the middle of an epoch, at an end, off the period, twice in one
FILE = "run.ckpt"


class Given:
    """The loop that is given, in the solution's framework."""

    def __init__(self, arrays: Arrays) -> None:
        self.module: Any = import_module(f"{REFERENCES[arrays.framework]}.complete_checkpoint")
        rng = np.random.default_rng(20)
        shapes = (self.module.SAMPLES, self.module.D), (self.module.SAMPLES, self.module.C)
        self.arrays = arrays
        self.data = arrays.given([rng.standard_normal(shape).astype(np.float32) for shape in shapes])

    def run(self, seed: int, steps: int = 0) -> Any:
        """A new run, and trained."""
        return self.train(self.module.new_run(seed), steps)

    def train(self, run: Any, steps: int = 1) -> Any:
        """The run after so many steps more."""
        for _ in range(steps):
            self.module.train_step(run, *self.data)
        return run

    def picture(self, run: Any) -> dict[str, Any]:
        """All of a run in NumPy, the generators as their states; a `Loss` where it is no run."""
        keys = set(self.module.new_run(0))
        expect(isinstance(run, dict), f"load_everything must return a run, which is a dict; found {described(run)}")
        expect(set(run) == keys, f"load_everything must return the keys of a run; {', '.join(sorted(keys ^ set(run)))} "
               "missing or besides")  # fmt: skip
        found: dict[str, Any] = self.arrays.found("load_everything", {key: self.plain(run[key], key) for key in run})
        return found

    def plain(self, value: Any, key: str) -> Any:
        """A generator's state, all else as it is."""
        if key not in self.module.GENERATORS:
            return value
        expect(type(value) is type(self.module.new_run(0)[key]), f"{key} must be a generator, found {described(value)}")
        return value.get_state() if hasattr(value, "get_state") else value.bit_generator.state

    def changes(self) -> dict[str, Callable[[Any], None]]:
        """A change of one leaf of a run, for each of them; training can go on from each."""

        def change(key: str, by: Callable[[Any], Any]) -> Callable[[Any], None]:
            return lambda run: run.update({key: by(run[key])})

        def overwrite(key: str, name: str) -> Callable[[Any], None]:
            return lambda run: self.arrays.overwrite(run[key][name])

        def reverse(run: Any) -> None:
            run["order"] = self.arrays.given(self.arrays.found("order", run["order"])[::-1])

        def draw(key: str) -> Callable[[Any], None]:
            # By the loop itself, so that it is the framework's draw: another run's generator, some steps on.
            return lambda run: run.update({key: self.run(77, 6)[key]})

        return {
            **{f"{key}/{name}": overwrite(key, name) for key in ("params", "m", "v") for name in ("weight", "bias")},
            "t": change("t", lambda t: t + 3),
            "t, so large that float32 does not hold it": change("t", lambda t: 2**24 + 1),
            "rate": change("rate", lambda rate: rate * 1.1),
            "until_drop": change("until_drop", lambda steps: steps + 2),
            "scale": change("scale", lambda scale: scale * 4),
            "good_steps": change("good_steps", lambda steps: (steps + 2) % 4),
            "epoch": change("epoch", lambda epoch: epoch + 2),
            "position": change("position", lambda position: (position + 8) % 20),
            "order": reverse,
            **{key: draw(key) for key in self.module.GENERATORS},
        }

    def shows(self, run: Any, other: Any) -> str:
        """The first step and array where two runs part."""
        for step in range(1, 61):
            self.train(run)
            try:
                self.train(other)
                ours, theirs = self.picture(run)["params"], self.picture(other)["params"]
                expect_same_bits("", {"params": ours}, {"params": theirs})
            except Loss as loss:
                return f"it shows {step} step{'s' * (step > 1)} after the resume, in {loss.where}"
            except Exception as error:  # whatever the loop meets in a run that lacks something
                return f"it shows in the next steps, which raise {type(error).__name__}: {short(str(error))}"
        return "within 60 steps no weight shows it"


@contextmanager
def folder() -> Iterator[Path]:
    """A new directory."""
    expect(os.name == "posix", "this exercise is about POSIX: Linux, macOS; elsewhere it cannot be graded")
    with tempfile.TemporaryDirectory(dir=os.getcwd()) as name:
        yield Path(name)


@law(
    "For each key of a run ask: does the file hold it, and does the load put it back with the type that it had?",
    "The weights alone look fine. m, v, t, rate, scale, the order, the generators and all the counters are state.",
    "Go through every key of the run: arrays by their names, numbers as they are, the state of each generator.",
)
def every_state_is_carried(solution: Any, arrays: Arrays) -> None:
    """Whatever one state of a run is, the loaded run has it, bit for bit: none is left out, guessed or rounded."""
    given = Given(arrays)
    for leaf, change in {"": lambda run: None, **given.changes()}.items():

        def made(change: Any = change) -> Any:
            run = given.run(1, 3)
            change(run)
            return run

        with folder() as place:
            solution.save_everything(str(place / FILE), made())
            loaded = solution.load_everything(str(place / FILE), given.run(2))
        expected, found = given.picture(made()), given.picture(loaded)
        what = f"{leaf} was changed before the save, and is not what comes back" if leaf else "not all comes back"
        for key in sorted(expected, key=lambda key: key != leaf.split("/")[0].split(",")[0]):  # that one first
            expect_same_bits(what, {key: expected[key]}, {key: found[key]},
                             cause=lambda: cause_of(given, key, expected, found, made(), loaded))  # fmt: skip # noqa: B023


def cause_of(given: Given, key: str, expected: Any, found: Any, run: Any, loaded: Any) -> str:
    """Why a state may be another one after the load, and where that would be seen."""
    fresh = given.picture(given.run(2))
    plain = isinstance(expected[key], (int, float))
    texts = []
    if plain and type(expected[key]) is not type(found[key]):
        texts.append(f"{key} must be {described(expected[key]).split()[0]} again, as it was; it came back as "
                     f"{described(found[key])}")  # fmt: skip
    elif repr(found[key]) == repr(fresh[key]):
        texts.append(f"{key} is that of the fresh run: it was not saved, or not loaded")
    elif key in given.module.GENERATORS:
        texts.append("a generator is its state: that has to be saved, and put back")
    return "; ".join([*texts, given.shows(run, loaded)])


@law(
    "Stop, load and train on: at which step, and in which array, does the run part from the one that went on?",
    "A run may stop anywhere: in the middle of an epoch, just before the rate falls, twice in one epoch.",
    "Do not compute one state from another, as position from t: skipped steps count for one of them and not the other.",
)
def a_resumed_run_is_the_run_that_never_stopped(solution: Any, arrays: Arrays) -> None:
    """Interrupted at any steps, any number of times, a run goes on bitwise as if nothing had happened."""
    given = Given(arrays)
    run = given.run(3)
    pictures = [given.picture(run)] + [given.picture(given.train(run)) for _ in range(STEPS)]
    for stops in STOPS:
        run = given.run(3)
        with folder() as place:
            for step in range(STEPS + 1):
                if step in stops:
                    solution.save_everything(str(place / FILE), run)
                    run = solution.load_everything(str(place / FILE), given.run(40 + step))
                found = given.picture(run)
                for key, expected in pictures[step].items():
                    text = f"stopped after step {' and '.join(map(str, stops))}, the run is another"
                    expect_same_bits(text, {key: expected}, {key: found[key]}, step=step,
                                     cause=f"{key} is the first to differ" if step not in stops else
                                     f"{key} differs right after the load")  # fmt: skip
                if step < STEPS:
                    given.train(run)


@law(
    "The fresh run was made with some seed. What of it is still there after the load?",
    "Both generators, and the order that one of them drew, belong to the saved run, not to the fresh one.",
    "Put back the generators' states from the file; neither seed nor re-draw anything.",
)
def the_seed_of_the_fresh_run_does_not_matter(solution: Any, arrays: Arrays) -> None:
    """The loaded run is the same whatever run was made to load it into: of any seed, new or trained."""
    given = Given(arrays)
    with folder() as place:
        solution.save_everything(str(place / FILE), given.run(4, 8))
        first = given.picture(solution.load_everything(str(place / FILE), given.run(4)))
        for what, fresh in {"seed 5": given.run(5), "seed 6, trained": given.run(6, 9)}.items():
            other = given.picture(solution.load_everything(str(place / FILE), fresh))
            for key, expected in first.items():
                text = f"loaded into a run of the same seed and into one of {what}, a run is not the same"
                expect_same_bits(text, {key: expected}, {key: other[key]}, cause=f"{key} came from the fresh run")


@law(
    "What is different about the run after a save, and about an earlier loaded run after a later load?",
    "Drawing from a generator changes it, and a run that is kept outside the functions is shared.",
    "Read states with .bit_generator.state or .get_state(), never draw; make new arrays at every load.",
)
def saving_and_loading_change_nothing(solution: Any, arrays: Arrays) -> None:
    """A save leaves the run as it is, and what is done to one loaded run reaches neither the file nor another one."""
    given = Given(arrays)
    with folder() as place:
        run, path = given.run(7, 6), str(place / FILE)
        before = given.picture(run)
        solution.save_everything(path, run)
        expect_same_bits("the save changed the run", before, given.picture(run),
                         cause="a save that draws from a generator, or writes into the run")  # fmt: skip
        first = solution.load_everything(path, given.run(8))
        second = solution.load_everything(path, given.run(9))
        given.train(first, 3)
        given.train(run, 3)
        for what, other in (("", second), (", loaded again", solution.load_everything(path, given.run(10)))):
            expect_same_bits(f"a loaded run changed when another was trained{what}", before, given.picture(other),
                             cause="two runs share arrays or generators, or the run was kept in memory")  # fmt: skip


@law(
    "Look into the directory after a save. What is its name, and is it alone?",
    "numpy.savez appends .npz to a path that lacks it; and a second file is one that gets lost.",
    "Write into an io.BytesIO, and hand its getvalue() to atomic_write(path, ...).",
)
def one_file_holds_it_all(solution: Any, arrays: Arrays) -> None:
    """All of a run is in the one file of the name that was given, which may be moved and be loaded from there."""
    given = Given(arrays)
    with folder() as place, folder() as elsewhere:
        for path in (place / FILE, str(place / FILE)):
            solution.save_everything(path, given.run(11, 4))
            names = sorted(os.listdir(place))
            expect(names == [FILE], f"a save must make the one file {FILE}; found {', '.join(names) or 'none'}",
                   cause="the name was changed, or part of the run went into another file")  # fmt: skip
        shutil.move(place / FILE, elsewhere / "moved")
        loaded = solution.load_everything(elsewhere / "moved", given.run(12))
        expected = given.picture(given.run(11, 4))
        expect_same_bits(
            "the file, moved, does not hold the run",
            expected,
            given.picture(loaded),
            cause="some of the run is kept outside the file",
        )


@law(
    "Whoever can write your file: can they make your program run their code?",
    "Unpickling runs what the file says. np.load(allow_pickle=True) and torch.load(weights_only=False) unpickle.",
    "Save arrays and JSON in NumPy, tensors and plain values in PyTorch: np.load(path), torch.load(weights_only=True).",
)
def loading_runs_no_code_from_the_file(solution: Any, arrays: Arrays) -> None:
    """The load does not unpickle: a file that someone else made cannot run code."""
    import pickle  # noqa: TID251 - to forbid it

    given, used = Given(arrays), []

    class Forbidden:  # a class, since torch derives its own from what is there
        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            used.append(True)
            raise ValueError("unpickling is not allowed")

    with folder() as place:
        solution.save_everything(str(place / FILE), given.run(13, 2))
        with patch.multiple(pickle, load=Forbidden, loads=Forbidden, Unpickler=Forbidden, _Unpickler=Forbidden):
            try:
                solution.load_everything(str(place / FILE), given.run(14))
            except Loss as loss:
                if used:
                    raise Loss("load_everything unpickles the file", place=loss.place, cause="whoever can write the "
                               "file can run any code where it is loaded") from None  # fmt: skip
                raise
        expect(not used, "load_everything unpickles the file")


@law(
    "The disk is full in the middle of a save. What is under the name?",
    "Opening the final name for writing destroys the old checkpoint before the new one is there.",
    "Make all the bytes first, in memory, and hand them to atomic_write.",
)
def an_interrupted_save_leaves_the_old_file(solution: Any, arrays: Arrays) -> None:
    """If the disk is full at any byte of a save, the old file stays, whole, and nothing is beside it."""
    import resource  # POSIX alone has it

    given = Given(arrays)
    with folder() as place:
        path = place / FILE
        solution.save_everything(str(path), given.run(15, 5))
        old, run, size = path.read_bytes(), given.run(15, 8), path.stat().st_size
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        for limit in (0, 1, size // 3, size // 2, size - 200):
            came = False
            try:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
                solution.save_everything(str(path), run)
            except Loss as loss:
                if not isinstance(loss.__context__, (OSError, RuntimeError)):  # of the system, or torch's own for it
                    raise
                came = True
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
            now = path.read_bytes() if path.exists() else b""
            expect(now == old, f"the disk was full after {limit} bytes, and the old file is gone: {len(now)} of "
                   f"{len(old)} bytes are there", cause="it was written under its final name")  # fmt: skip
            expect(came, f"the disk was full after {limit} bytes, and save_everything returned as if all were well")
            beside = sorted(set(os.listdir(place)) - {FILE})
            expect(
                not beside, f"the disk was full after {limit} bytes, and {', '.join(beside)} is left beside the file"
            )


@law(
    "For each relation: what is the largest distance between two right results? And the smallest that a fault makes?",
    "A resume repeats the same operations. Rounding to nearest is off by half a unit at most; 8 numbers: 7 additions.",
    "float16 has 11 binary digits, float32 has 24: half a unit is 2**-11 and 2**-24 of the number, for each rounding.",
)
def allowances_are_neither_narrow_nor_wide(solution: Any, arrays: Arrays) -> None:
    """Each allowance takes all right results and no wrong one."""
    said = {}
    for relation in ("resumed", "rounded", "reordered"):
        said[relation] = solution.allowance(relation)
        number = isinstance(said[relation], (int, float, np.floating)) and not isinstance(said[relation], bool)
        text = f"allowance({relation!r}) must be a number from 0 on, found {described(said[relation])}"
        expect(number and 0 <= said[relation] < np.inf, text)

    rng = np.random.default_rng(16)
    weights = np.array([1 + 2.0**-11, *rng.uniform(1, 2, 1000)])
    nearest = float(np.max(np.abs(weights.astype(np.float16) - weights) / weights))
    cut = 1 + 2.0**-10 - 2.0**-23  # cut off to 1 by what does not round to the nearest
    terms = (rng.standard_normal((4000, 8)) * 2.0 ** rng.integers(-8, 8, (4000, 8))).astype(np.float32)
    one_way, other = (sum_in_turn(terms[:, order]) for order in (np.arange(8), np.arange(8)[::-1]))
    moved = float(np.max(np.abs(one_way.astype(float) - other) / np.abs(terms.astype(float)).sum(1)))
    narrow = {
        "resumed": (0.0, ""),
        "rounded": (nearest, "a weight that was rounded to the nearest"),
        "reordered": (moved, "a sum of eight numbers that was added up in reverse"),
    }
    wide = {
        "resumed": (2.0**-1074, "a run that lost a state: at first that may move a weight by its last digit alone"),
        "rounded": ((cut - 1) / cut, "a weight whose last digits were cut off, not rounded to the nearest"),
        "reordered": (2.0**-17 / (1 + 2.0**-17), "a sum of eight from which the smallest number is missing"),
    }
    for relation, value in said.items():
        least, refused = narrow[relation]
        most, taken = wide[relation]
        expect(value >= least, f"allowance({relation!r}) is too narrow: {float(value):.3g} refuses {refused}",
               cause=f"right results are {least:.3g} apart")  # fmt: skip
        expect(value < most, f"allowance({relation!r}) is too wide: {float(value):.3g} takes {taken}",
               cause=f"that fault makes a distance of {most:.3g}" if relation != "resumed" else
               "the same operations on the same bits give the same bits")  # fmt: skip


def sum_in_turn(terms: Any) -> Any:
    """The sums of rows, one number after the other, in the rows' own type."""
    total = terms[:, 0]
    for i in range(1, terms.shape[1]):
        total = total + terms[:, i]
    return total


def trace(solution: Any, arrays: Arrays) -> Any:
    """What comes back of a run, but for the generators, whose states are each framework's own; and the allowances."""
    given = Given(arrays)
    run, rng = given.run(17), np.random.default_rng(17)
    shapes = {"weight": (given.module.D, given.module.C), "bias": (given.module.C,)}
    for key in ("params", "m", "v"):
        run[key] = arrays.given({name: rng.random(shape).astype(np.float32) for name, shape in shapes.items()})
    run |= {"t": 9, "rate": 0.1, "order": arrays.given(rng.permutation(given.module.SAMPLES)), "position": 8}
    with folder() as place:
        solution.save_everything(str(place / FILE), run)
        loaded = given.picture(solution.load_everything(str(place / FILE), given.run(18)))
    plain = {key: value for key, value in loaded.items() if key not in given.module.GENERATORS}
    plain |= {key: np.array(value) for key, value in plain.items() if isinstance(value, (int, float))}
    relations = ("resumed", "rounded", "reordered")
    return plain | {f"allowance {name}": np.array(float(solution.allowance(name))) for name in relations}


STATEMENT = """
A training loop is given: new_run(seed), train_step(run, inputs, targets) and atomic_write(path, data); what a run holds
is said at the top of the file. Write save_everything(path, run), which writes all of a run into the one file `path`, a
str or a Path, and returns None; load_everything(path, fresh), which returns the run: the same keys, arrays of the same
shapes and types, int for int and float for float, generators in the same state; and allowance(relation), which
returns how far apart two results may be.

A save leaves the run as it is. If it fails, the error comes through, the old file stays, and nothing is left beside it;
atomic_write does that. `fresh` is a run that new_run made with any seed; it may be changed and returned, and nothing of
the result may depend on it. Loading must not unpickle: in PyTorch that is torch.load with weights_only=True. A file may
be loaded many times, and be moved before.

Allowances are judged: one is too narrow if it refuses a right result, and too wide if it takes a wrong one, such as a
resume that lost a state, a weight that was cut off in place of rounded, or a sum from which a small number is missing.
"""

IDEA = """
A run is more than a model. Ask of everything in the program that outlives a step: if it were another, would the next
steps be others? Adam's moments and its t: yes. The learning rate and the steps until it falls: yes, though only later.
The loss scale: as long as it is a power of two and nothing is too large or too small for float16, no weight shows it;
then one run skips a step and the other does not. The place within the epoch and the order drawn for it, or samples are
seen twice and others never. The generators, not as seeds but as states, because they have been drawn from.

What is forgotten does not complain. The load succeeds, the loss looks as usual, and what is missing is filled by the
run that was just made: its seed, its first learning rate, its zeros. So a test that makes the fresh run with the same
seed can pass although nothing was loaded, and a test that stops at the end of an epoch cannot see a lost position. This
one changes every state, one at a time, and looks whether the change comes back; it makes the fresh run with another
seed; and it stops in the middle.

The file has its own duties. It is one, under the name that was asked for. It is replaced whole, or a full disk costs
both checkpoints, the old and the new. It is data: a pickle is a program, which runs when it is loaded.

At last, how equal is equal? A resume on the same machine repeats the same operations on the same bits, so the allowance
is zero, and any other hides a lost state. Where something does differ, count the roundings: one rounding to nearest is
off by at most half a unit in the last place, and a sum of eight in another order differs by at most as many roundings
as both sums have additions. Wider than that is no caution. It is a test that passes what it should find.
"""

EXERCISE = Exercise(
    name="complete_checkpoint",
    title="All of a run, in one file",
    teaches="everything a run has to save, and how equal a resumed one must be: the project of this section",
    statement=STATEMENT,
    idea=IDEA,
    functions=("save_everything", "load_everything", "allowance"),
    laws=(
        every_state_is_carried,
        a_resumed_run_is_the_run_that_never_stopped,
        the_seed_of_the_fresh_run_does_not_matter,
        saving_and_loading_change_nothing,
        one_file_holds_it_all,
        loading_runs_no_code_from_the_file,
        an_interrupted_save_leaves_the_old_file,
        allowances_are_neither_narrow_nor_wide,
    ),
    trace=trace,
    needs_files=True,
)
