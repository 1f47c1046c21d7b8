"""The exercise `complete_checkpoint`: all of a run in one file, graded by leaving nothing unchanged, leaf by leaf.

The laws train by the loop that is given, that of the reference in the solution's framework; a solution saves and loads.
"""

import io
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from numpy_ref.exercises.exercise import (
    Arrays,
    Exercise,
    Loss,
    described,
    expect,
    expect_same_bits,
    law,
    paired,
    same_tree,
    short,
)
from numpy_ref.exercises.source import REFERENCES
from numpy_ref.proof.equivalence import same_bits

STEPS = 24  # close to five epochs of five steps; the rate falls after 7, 14 and 21
STOPS = ((1,), (5,), (7,), (6, 8), (13, 17, 20))  # in the middle of an epoch, at an end, off the period, twice in one
FILE = "run.ckpt"
UNIT = 2.0**-24  # of float32: half the distance from 1 to the next number


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
                return f"which shows {step} step{'s' * (step > 1)} after the resume, in {loss.where}"
            except Exception as error:  # whatever the loop meets in a run that lacks something
                return f"with which the next steps raise {type(error).__name__}: {short(str(error))}"
        return "which no weight shows within 60 steps"


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
            if not same_tree(expected[key], found[key]):
                what += f" ({given.shows(made(), loaded)})"
            cause = cause_of(given, key, expected[key], found[key], given.run(2))
            expect_same_bits(what, {key: expected[key]}, {key: found[key]}, cause=cause)


def cause_of(given: Given, key: str, expected: Any, found: Any, fresh: Any) -> Callable[[], str]:
    """What finds out why a state is another one after the load into a fresh run."""

    def cause() -> str:
        if isinstance(expected, (int, float)) and type(expected) is not type(found):
            wanted = described(expected).split()[0]
            return f"{key} must be {wanted} again, as it was; it came back as {described(found)}"
        begun = given.picture(fresh)[key]
        if same_tree(begun, found):
            return f"{key} is that of the fresh run: not saved, or not loaded"
        if key in given.module.GENERATORS:
            return "a generator is its state: that has to be saved, and put back"
        try:
            leaves = zip(paired(key, expected, found, key), paired(key, begun, found, key), strict=True)
            changed = {path: (ours, theirs, first) for (path, ours, theirs), (_, first, _) in leaves
                       if not same_bits(ours, theirs)}  # fmt: skip
        except Loss:  # another shape, which is said
            return ""
        names, many = " and ".join(changed), len(changed) > 1
        if all(same_bits(first, theirs) for _, theirs, first in changed.values()):
            return f"{names} {'are those' if many else 'is that'} of the fresh run: not saved, or not loaded"
        kept = rounded([(np.asarray(ours), np.asarray(theirs)) for ours, theirs, _ in changed.values()])
        return f"{names} {'were' if many else 'was'} rounded on the way: {kept}" if kept else ""

    return cause


def rounded(changed: list[tuple[Any, Any]]) -> str:
    """In what numbers were kept on the way, if what they were, rounded so, gives what they are; else ""."""
    for text, kept in roundings():
        if all(ours.dtype == theirs.dtype and theirs.any() and np.array_equal(kept(ours).astype(ours.dtype), theirs)
               for ours, theirs in changed):  # fmt: skip
            return text
    return ""


def roundings() -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Where numbers are rounded, and how."""

    def cut(digits: int) -> Callable[[Any], Any]:
        return lambda x: np.array([float(f"{float(value):.{digits}g}") for value in x.flat]).reshape(x.shape)

    def bfloat16(x: Any) -> Any:
        fraction, exponent = np.frexp(x)
        return np.ldexp(np.round(fraction * 2**8), exponent - 8)

    yield "kept in float32", lambda x: x.astype(np.float32)
    yield "kept in float16", lambda x: x.astype(np.float16)
    yield "kept in bfloat16", bfloat16
    yield from ((f"written with {digits} digits", cut(digits)) for digits in range(16, 1, -1))
    yield from (("written with few decimals", lambda x, n=n: np.round(x, n)) for n in range(16, 1, -1))


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
                at = " and ".join(map(str, stops))
                for key, expected in pictures[step].items():
                    parts = "differs right after the load" if step in stops else "is the first to differ"
                    cause = cause_of(given, key, expected, found[key], given.run(40 + step))
                    expect_same_bits(f"stopped after step {at}, the run is another: {key} {parts}",
                                     {key: expected}, {key: found[key]}, step=step, cause=cause)  # fmt: skip
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
        came = given.picture(second)
        given.train(first, 3)
        given.train(run, 3)
        for what, other in (("", second), (", loaded again", solution.load_everything(path, given.run(10)))):
            expect_same_bits(f"a loaded run changed when another was trained{what}", came, given.picture(other),
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
        here = given.picture(solution.load_everything(place / FILE, given.run(12)))
        shutil.move(place / FILE, elsewhere / "moved")
        loaded = solution.again().load_everything(elsewhere / "moved", given.run(12))  # as in a new process
        expect_same_bits("the file, moved and loaded by a new process, gives another run", here, given.picture(loaded),
                         cause="some of the run is kept outside the file")  # fmt: skip


class Code:
    """Unpickled, it makes a directory: what a file runs where it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = str(mark)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.mark,)


def entries_of(data: bytes) -> dict[str, bytes]:
    """What a file holds, by name, if it is an archive, such as those of NumPy and PyTorch; else all of it, as ""."""
    if not zipfile.is_zipfile(io.BytesIO(data)):
        return {"": data}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(entries: dict[str, bytes]) -> bytes:
    """The inverse of `entries_of`."""
    if list(entries) == [""]:
        return entries[""]
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def with_pickles(data: bytes, mark: Path) -> Iterator[tuple[str, bytes]]:
    """Files that run code where they are unpickled: a pickle, and the file with a pickle for each of its entries."""
    import pickle  # noqa: TID251 - to forbid it

    array = io.BytesIO()
    np.save(array, np.array([Code(mark)], dtype=object))
    entries, code = entries_of(data), pickle.dumps(Code(mark))
    yield "a pickle in its place", code
    for name, entry in entries.items():
        for text, other in (("a pickle", code), ("an array of objects", array.getvalue())):
            # As long as before, for torch may read as many bytes of a tensor as it had.
            yield f"{text} for {name or 'all of it'}", packed({**entries, name: other.ljust(len(entry), b"\0")})


def with_sums(data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Files in which a sum stands for a long number, where it is text of 1 or 4 bytes a digit; and the sum's value."""
    entries = entries_of(data)
    for name, entry in entries.items():
        for match in re.finditer(rb"(?:\d\0\0\0){12,}|\d{12,}", entry):
            digits = match[0].replace(b"\0", b"")
            text = digits[:-2] + b"+1"
            changed = text if len(match[0]) == len(digits) else text.decode().encode("utf-32-le")
            forged = entry[: match.start()] + changed + entry[match.end() :]
            yield text.decode(), int(digits[:-2]) + 1, packed({**entries, name: forged})


def numbers(tree: Any) -> Iterator[int]:
    """The ints in a run's picture."""
    if isinstance(tree, dict):
        for child in tree.values():
            yield from numbers(child)
    elif type(tree) is int:
        yield tree


@law(
    "Whoever can write your file: can they make your program run their code?",
    "Unpickling runs what a file says, and so does eval. np.load(allow_pickle=True) and torch.load(weights_only=False) "
    "unpickle, and the file need not be the one that you wrote.",
    "Save arrays and JSON in NumPy, tensors and plain values in PyTorch: np.load(path), torch.load(weights_only=True).",
)
def loading_runs_no_code_from_the_file(solution: Any, arrays: Arrays) -> None:
    """The load neither unpickles nor evaluates: a file that someone else made cannot run code."""
    import pickle  # noqa: TID251 - to forbid it

    given, used = Given(arrays), []
    danger = "whoever can write the file can run any code where it is loaded"

    class Forbidden:  # a class, since torch derives its own from what is there
        def __new__(cls, *arguments: Any, **named: Any) -> Any:
            used.append(True)
            raise ValueError("unpickling is not allowed")

    with folder() as place, folder() as elsewhere:
        path, mark = place / FILE, elsewhere / "code-ran"
        run = given.run(13, 2)
        run["t"] = 123_456_789_012_345_678  # long, to be found in the file
        solution.save_everything(str(path), run)
        with patch.multiple(pickle, load=Forbidden, loads=Forbidden, Unpickler=Forbidden, _Unpickler=Forbidden):
            try:
                solution.load_everything(str(path), given.run(14))
            except Loss as loss:
                if used:
                    raise Loss("load_everything unpickles the file", place=loss.place, cause=danger) from None
                raise
        expect(not used, "load_everything unpickles the file", cause=danger)
        saved = path.read_bytes()
        for what, data in with_pickles(saved, mark):
            path.write_bytes(data)
            with suppress(Loss):  # such files should be refused
                solution.load_everything(str(path), given.run(14))
            expect(not mark.exists(), f"load_everything runs the code in a file that holds {what}",
                   cause=f"it unpickles what it finds: {danger}")  # fmt: skip
        for text, value, data in with_sums(saved):
            path.write_bytes(data)
            found: Any = {}
            with suppress(Loss):
                found = given.picture(solution.load_everything(str(path), given.run(14)))
            expect(value not in numbers(found), f"load_everything runs text of the file as code: {text} in the file "
                   f"became {value}", cause=f"it uses eval or the like, and {danger}; json.loads reads values and runs "
                   "nothing")  # fmt: skip


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
    "A resume repeats the same operations. Rounding to nearest is off by half a unit at most. Of 8 numbers, how many "
    "additions make a sum, how many sums are compared, and can one be too large while the other is too small?",
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
    cut = 1 + 2.0**-11 + 2.0**-20  # a little above the middle between 1 and the next number of float16; cut off to 1
    terms = np.array([1] + 7 * [UNIT], dtype=np.float32)  # 1 + UNIT is rounded to 1, seven times; the other way round
    moved = float(sum_in_turn(terms[::-1]) - sum_in_turn(terms)) / float(terms.sum(dtype=float))  # 1 + 7 UNIT comes up
    missing = 15 * UNIT  # right ones are at most 14 apart: two sums of 7 additions, each off by a unit at most
    narrow = {
        "resumed": (0.0, ""),
        "rounded": (nearest, "a weight that was rounded to the nearest"),
        "reordered": (moved, "a sum of one large number and seven tiny ones, added up from either end"),
    }
    wide = {
        "resumed": (2.0**-1074, "a run that lost a state: at first that may move a weight by its last digit alone"),
        "rounded": ((cut - 1) / cut, "a weight whose last digits were cut off, not rounded to the nearest"),
        "reordered": (missing / (1 + missing), "a sum of eight from which a small number is missing"),
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
    """The sum of numbers, one after the other, in their own type."""
    total = terms[0]
    for term in terms[1:]:
        total = total + term
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
is said at the top of the file. (atomic_write is an exercise of its own: do that one first, for what is given here shows
most of its answer.) Write save_everything(path, run), which writes all of a run into the one file `path`, a str or a
Path, and returns None; load_everything(path, fresh), which returns the run: the same keys, arrays of the same shapes
and types, int for int and float for float, generators in the same state; and allowance(relation), which returns how
far apart two results may be.

A save leaves the run as it is. If it fails, the error comes through, the old file stays, and nothing is left beside it;
atomic_write does that. `fresh` is a run that new_run made with any seed; it may be changed and returned, and nothing of
the result may depend on it. Loading must run nothing that a file says, whatever the file is: it must neither unpickle
nor evaluate text as code. In PyTorch that is torch.load with weights_only=True. A file may be loaded many times, and be
moved before.

Allowances are judged: one is too narrow if it refuses a right result, and too wide if it takes a wrong one, such as a
resume that lost a state, a weight that was cut off in place of rounded, or a sum from which a small number is missing.
A bound from counting roundings is right, even where results seldom come near it.
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
