"""The exercise `workers`: noise for several workers, the same in every run of a seed and another for each of them."""

import copy
import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, expect_same_bits, expect_within, law
from numpy_ref.proof.equivalence import Tolerance, same_bits

Key = tuple[int, int, int]  # seed, epoch, worker_id or index

# Numbers whose triples meet when they are added, weighted by 100, 1000 or 2**16, multiplied, or put side by side; and
# numbers that are 0 or 1 to what cuts off upper bits, or keeps a remainder by a power of ten, 2**31 - 1 or 2**32 - 1.
MEETING = (0, 1, 2, 11, 100, 1000, 10_000, 2**16)
FAR = (*(2**n for n in range(32)), *(10**n for n in range(10)), 2**31 - 1, 2**32 - 1)


def draw_keys(last: int) -> list[Key]:
    """Triples to compare, the third number up to the last allowed."""
    far = [(at, x) for at, x in product(range(3), FAR) if at < 2 or x <= last]
    thirds = [x for x in (*MEETING, 3) if x <= last]
    apart = [replaced((0, 0, 0), at, x) for at, x in far]
    return list(dict.fromkeys([*product(MEETING, MEETING, thirds), *apart]))


def replaced(key: Key, at: int, x: int) -> Key:
    """The key with another number in one place."""
    first, second, third = (x if i == at else number for i, number in enumerate(key))
    return first, second, third


# A right solution that mixes the three into 32 bits meets by chance in one of 2**32 pairs; these are fewer than 2**19.
KEYS = {"worker_generator": ("worker_id", draw_keys(999)), "sample_generator": ("index", draw_keys(2**32 - 1))}
LENGTH = 32  # numbers of each stream; two that share more than a quarter of them overlap

# Long streams have nothing in common if no 8 numbers in a row come in two of them (which is no chance in any type).
NEAR: list[Key] = [(0, 0, 0), (0, 0, 1), (0, 0, 2), (0, 0, 7), (0, 1, 0), (1, 0, 0)]
LONG, ROW = 2**17, 8
MULTIPLIERS = np.random.default_rng(2).integers(0, 2**63, ROW, dtype=np.uint64) * np.uint64(2) + np.uint64(1)

# The sum of a sample and noise, each below 8 in size: rounded once or twice in float64, it is off by at most 2**-49.
ALLOWANCE = Tolerance(relative=0.0, absolute=2.0**-48)
# The mean and the spread of n standard normal numbers are off by 1 / sqrt(n) and 1 / sqrt(2 n); eight times that is
# exceeded by chance once in 10**15 times; and so is that of the share within 1, 0.6827, which is off by half as much.
DRAWS = 512 * 512
OFF = 8 / DRAWS**0.5

SEED, EPOCH = 3, 2
ORDER = [5, 2, 7, 0, 3, 6, 1, 4]
AGAIN = [5, 2, 5, 0, 2, 2, 7]  # with samples that come more than once
CALL = f"augmented_epoch with seed {SEED} and epoch {EPOCH}"


def draw_samples() -> list[Any]:
    """Eight samples of different shapes."""
    rng = np.random.default_rng(1)
    return [rng.standard_normal(shape) for shape in ((3,), (2, 4), (1,), (5,), (2, 2), (7,), (1, 3), (4,))]


def augmented(solution: Any, arrays: Arrays, sample: Any, generator: Any) -> Any:
    """The sample, augmented by the solution."""
    found = arrays.found("augment", solution.augment(arrays.given(sample), generator))
    like = isinstance(found, np.ndarray) and (found.shape, found.dtype) == (sample.shape, sample.dtype)
    expect(like, f"augment must return {described(sample)}, like its sample; it returned {described(found)}")
    return found


def noise(solution: Any, arrays: Arrays, generator: Any, shape: Any = LENGTH) -> Any:
    """The next noise of a generator: what is added to zeros."""
    return augmented(solution, arrays, np.zeros(shape), generator)


def delivered(solution: Any, arrays: Arrays, num_workers: int, start: int, indices: list[int]) -> list[Any]:
    """What the solution delivers of the epoch from a position on."""
    samples, order = arrays.given(draw_samples()), list(indices)
    value = solution.augmented_epoch(samples, order, SEED, EPOCH, num_workers, start)
    expect_same_bits("augmented_epoch changed its samples", draw_samples(), arrays.found("augmented_epoch", samples),
                     cause="the noise is added to the samples themselves")  # fmt: skip
    expect(order == indices, "augmented_epoch changed the order it was given")
    found = arrays.found("augmented_epoch", value)
    count = f"{len(found)} arrays" if isinstance(found, list) else described(found)
    wanted = len(order) - start
    expect(count == f"{wanted} arrays", f"from position {start} of {len(order)} on, augmented_epoch must return "
           f"{wanted} arrays; it returned {count}")  # fmt: skip
    return list(found)


@contextmanager
def surroundings(n: int) -> Iterator[None]:
    """What a process may look at, as of another time and in another process for each n."""
    clocks = ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns")
    looked_at = [(time, name) for name in clocks] + [(os, "getpid")]
    saved = [getattr(module, name) for module, name in looked_at]
    try:
        for module, name in looked_at:
            setattr(module, name, lambda: 1_700_000_000 + 12_345 * n)
        yield
    finally:
        for (module, name), function in zip(looked_at, saved, strict=True):
            setattr(module, name, function)


@law(
    "Call it twice with the same three numbers, and in two runs of Python. Is the noise the same?",
    "No seed, the clock, the process's number, hash() of a text, what was drawn before: all differ from call to call.",
    "Make a new generator in every call, from seed, epoch and the third number alone; draw from it, and no other.",
    processes=2,
)
def the_same_three_begin_the_same_stream(solution: Any, arrays: Arrays) -> Any:
    """The same seed, epoch and worker_id, or index, always begin the same stream, in every process."""
    begun: dict[str, Any] = {}
    for function, key in product(KEYS, ((0, 0, 0), (3, 2, 1), (2**31, 10, 7))):
        make, streams = getattr(solution, function), []
        for n in (0, 0, 1):
            with surroundings(n):
                streams.append(noise(solution, arrays, make(*key)))

        what, first = f"the noise after {function}{key} is another when all is called again", {"noise": streams[0]}
        twins = [noise(solution, arrays, twin_of(generator)) for generator in [make(*key)] * 2]
        expect(same_bits(*twins), what, cause="augment draws from elsewhere, not from the generator it is given")
        expect_same_bits(what, first, {"noise": streams[1]},
                         cause="its generator has no seed, or goes on from an earlier call")  # fmt: skip
        expect_same_bits(what, first, {"noise": streams[2]}, cause="it depends on the time or on the process")
        begun[f"{function}{key}"] = streams[0]
    return begun


def twin_of(generator: Any) -> Any:
    """Another generator in the same state."""
    if not hasattr(generator, "set_state"):
        return copy.deepcopy(generator)
    twin = type(generator)()
    twin.set_state(generator.get_state())
    return twin


@law(
    "Compare workers 0 and 1, epochs 0 and 1, seeds 0 and 1; and worker 1 of seed 0 with worker 0 of seed 1.",
    "All three numbers count, and sums, products, or digits put side by side are the same for several triples.",
    "Mix them by what is made for it: np.random.SeedSequence takes several numbers, hashlib takes a text of all three.",
)
def no_two_streams_are_the_same(solution: Any, arrays: Arrays) -> None:
    """Two streams that differ in seed, epoch, or in worker_id or index, have no 8 numbers in a row in common."""
    for function, (third, keys) in KEYS.items():
        names, make = ("seed", "epoch", third), getattr(solution, function)

        def stream(key: Key, length: int = LENGTH, make: Any = make) -> Any:
            return noise(solution, arrays, make(*key), length)

        pairs, most = meetings({key: stream(key) for key in keys})
        if pairs:
            first, second = min(pairs, key=lambda pair: len(differing(pair)))
            where = f"{told(names, first)} and {told(names, second)}"
            part = [f"{names[i]} does not count, or only a part of it" for i in differing((first, second))]
            others = "the three become one number or text that others become, too, or are mixed into too few bits"
            raise Loss(f"{function}: two streams share their noise", where, None, "no such pair", f"{len(pairs)} pairs",
                       cause="" if most == LENGTH else WITHIN, otherwise=others if part[1:] else part[0])  # fmt: skip
        if meeting := meeting_rows([stream(key, LONG) for key in NEAR]):
            both = " and ".join(told(names, NEAR[i]) for i in meeting)
            text = f"of their first {LONG} numbers, {ROW} in a row are the same"
            expect(False, f"{function}: {both} share their noise: {text}", cause=WITHIN)


WITHIN = "one stream begins within the other"


def told(names: tuple[str, str, str], key: Key) -> str:
    """A key in words."""
    return ", ".join(f"{name} {x}" for name, x in zip(names, key, strict=True))


def meetings(streams: dict[Key, Any]) -> tuple[list[tuple[Key, Key]], int]:
    """The pairs of streams that overlap, and how many numbers two of them share at most."""
    owners: dict[float, Key] = {}
    pairs: list[tuple[Key, Key]] = []
    most = 0
    for key, stream in streams.items():
        numbers = stream.tolist()
        shared = Counter(owners[x] for x in numbers if x in owners)
        pairs += [(other, key) for other, count in shared.items() if count > LENGTH / 4]
        most = max(most, *shared.values(), 0)
        owners |= {x: key for x in numbers if x not in owners}
    return pairs, most


def meeting_rows(streams: list[Any]) -> list[int]:
    """Two streams that share ROW numbers in a row, or none."""
    rows = []
    for stream in streams:  # a number for every row: the same for the same, and but for one in 2**64 another for others
        bits = np.ascontiguousarray(stream).view(np.uint64)
        count = bits.size - ROW + 1
        rows.append(sum((bits[i : i + count] * m for i, m in enumerate(MULTIPLIERS)), np.zeros(count, np.uint64)))
    numbers, owners = np.concatenate(rows), np.repeat(np.arange(len(rows)), [len(row) for row in rows])
    by_number = np.argsort(numbers, kind="stable")
    numbers, owners = numbers[by_number], owners[by_number]
    at = np.flatnonzero((numbers[1:] == numbers[:-1]) & (owners[1:] != owners[:-1]))
    return [int(owners[at[0]]), int(owners[at[0] + 1])] if at.size else []


def differing(pair: tuple[Key, Key]) -> list[int]:
    """Which of the three numbers two keys differ in."""
    return [i for i in range(3) if pair[0][i] != pair[1][i]]


@law(
    "Make two generators and use them in turns. Does each give what it gives alone?",
    "A generator of the whole program, or one that is kept outside the functions, is shared by everyone who draws.",
    "Draw from the generator that augment is given, and from no other.",
)
def streams_do_not_mix(solution: Any, arrays: Arrays) -> None:
    """What a generator gives does not depend on what others have drawn."""
    for function in KEYS:
        make, keys = getattr(solution, function), ((SEED, EPOCH, 0), (SEED, EPOCH, 1))
        alone = []
        for key in keys:
            generator = make(*key)
            alone.append([noise(solution, arrays, generator) for _ in range(3)])
        generators = [make(*key) for key in keys]
        rounds = [[noise(solution, arrays, generator) for generator in generators] for _ in range(3)]
        in_turns = [list(stream) for stream in zip(*rounds, strict=True)]
        expect_same_bits(f"two generators of {function} that take turns give what neither gives alone",
                         {"noise": alone}, {"noise": in_turns},
                         cause="both draw from one generator: the program's own, or one kept outside")  # fmt: skip


@law(
    "Look at the noise of a sample of many elements, and at that of the next sample.",
    "Each element needs a draw of its own, and the generator must not be begun anew. The sample is the caller's.",
    "Draw standard normal numbers of sample.shape, give them the sample's type, and add them into a new array.",
)
def noise_is_new_and_normal(solution: Any, arrays: Arrays) -> None:
    """The noise is standard normal, another in each element and each call, and added to a copy of the sample."""
    for dtype in (np.float64, np.float32):
        zeros, generator = np.zeros((512, 512), dtype), solution.worker_generator(SEED, EPOCH, 0)
        first, second = (augmented(solution, arrays, zeros, generator).astype(np.float64) for _ in range(2))
        expect(len(np.unique(first)) > DRAWS / 2, "augment added the same number to many elements",
               cause="fewer numbers were drawn than the sample has elements")  # fmt: skip
        expect(not same_bits(first, second), "two calls of augment with one generator added the same noise",
               cause="the generator does not move on: it was copied or begun anew")  # fmt: skip
        text = f"of {DRAWS} numbers of noise, the {{}} is {{:.3f}} and must be near {{}}"
        expect(bool(abs(first.mean()) < OFF), text.format("mean", first.mean(), 0), cause="the noise is not normal")
        expect(bool(abs(first.std() - 1) < OFF), text.format("spread", first.std(), 1), cause="another scale or kind")
        share = (np.abs(first) < 1).mean()
        expect(bool(abs(share - 0.6827) < OFF), text.format("share within 1", share, 0.6827), cause="it is not normal")
    sample = draw_samples()[1]
    given, key = arrays.given(sample), (SEED, EPOCH, 1)
    value = solution.augment(given, solution.worker_generator(*key))
    expect_same_bits("augment changed its sample", {"sample": sample}, {"sample": arrays.found("augment", given)},
                     cause="the noise is added in place")  # fmt: skip
    exact = sample + noise(solution, arrays, solution.worker_generator(*key), sample.shape)
    expect_within("augment did not add its noise to the sample", {"augmented": exact},
                  {"augmented": arrays.found("augment", value)}, ALLOWANCE)  # fmt: skip


@law(
    "Which sample's noise does each position get?",
    "The noise belongs to the sample's index in the data, wherever the order puts it and whatever was drawn before.",
    "For each position: index = order[position]; augment samples[index] with a new sample_generator of that index.",
)
def each_sample_has_its_own_noise(solution: Any, arrays: Arrays) -> None:
    """An epoch is each sample of the order, augmented by a new generator of its index, also when it comes again."""
    check_epoch(solution, arrays, 1, 0, f"{CALL} does not give each sample the noise of its index")
    what = f"{CALL} does not give a sample that comes again the noise of its index"
    for num_workers, start in ((1, 0), (2, 0), (2, 1)):
        check_epoch(solution, arrays, num_workers, start, what, AGAIN)


@law(
    "Deliver the same epoch with 1, 2 and 5 workers, and compare.",
    "Which worker adds the noise depends on how many there are, so the noise must not depend on the worker.",
    "Leave num_workers and worker_id out of whatever chooses the generator.",
)
def the_number_of_workers_changes_nothing(solution: Any, arrays: Arrays) -> None:
    """An epoch is the same whatever the number of workers."""
    for num_workers in (2, 3, 5, 11):
        check_epoch(solution, arrays, num_workers, 0, f"with {num_workers} workers, {CALL} is not what it is with one")


@law(
    "Begin in the middle, and compare with the end of the whole epoch.",
    "After a resume no generator has drawn what came before, so the noise must not need it.",
    "Position p means order[p], also when the first position wanted is not 0.",
)
def a_resume_delivers_the_rest(solution: Any, arrays: Arrays) -> None:
    """From any position on, an epoch is the rest of the whole one."""
    for num_workers, start in ((1, 3), (2, 5), (3, 1), (2, 7), (2, 8)):
        check_epoch(solution, arrays, num_workers, start, f"resumed at position {start}, {CALL} is not the rest of it")


def check_epoch(
    solution: Any, arrays: Arrays, num_workers: int, start: int, what: str, order: list[int] = ORDER
) -> None:
    """Raise unless the epoch from a position on is made of the samples' own streams."""
    found, samples = delivered(solution, arrays, num_workers, start, order), draw_samples()

    def is_made(sample: Any, index: int, function: str, key: Key) -> bool:
        """Whether this is the sample of an index with the noise of a new generator."""
        generator = getattr(solution, function)(*key)
        return same_bits(augmented(solution, arrays, samples[index], generator), sample)

    if all(is_made(x, i, "sample_generator", (SEED, EPOCH, i)) for x, i in zip(found, order[start:], strict=True)):
        return
    seeds = {"": (SEED, EPOCH), " in epoch 0": (SEED, 0), " of seed 0": (0, EPOCH)}
    noises = {f"{i}{of}": ("sample_generator", (*seeds[of], i)) for of in seeds for i in range(len(samples))}
    noises |= {f"worker {i}": ("worker_generator", (SEED, EPOCH, i)) for i in range(num_workers)}
    shapes, names = [sample.shape for sample in samples], []
    for index, x in zip(order[start:], found, strict=True):
        at = shapes.index(x.shape) if getattr(x, "shape", None) in shapes else None
        name = next((name for name, made in noises.items() if at is not None and is_made(x, at, *made)), "no other")
        names.append(name if at == index else f"{name} for the sample {at}")
    own, of = ", ".join(map(str, order[start:])), ", ".join(names)
    raise Loss(what, "the noise is that of", None, own, of, trees=({"of": own}, {"of": of}))


STATEMENT = """
Write worker_generator, sample_generator, augment and augmented_epoch. The first two make a generator (in NumPy a
np.random.Generator, in PyTorch a torch.Generator) from three ints, each from 0 to 2**32 - 1; worker_id stays below
1000. Two that differ in any of the three, in whichever bit, must begin streams that have nothing in common: among the
first hundred thousand numbers, no 8 in a row of one are 8 in a row of the other. An index may come in order again.
augment adds standard normal noise to a copy of a sample. augmented_epoch returns what a loader delivers from a position
on, a list of arrays; a tuple will do as well. Nothing that is given is changed, except that a generator moves on.
"""

IDEA = """
A loader's workers are copies of one process. A generator that was made before they started is copied with everything
else, and then all workers draw the same noise: with four of them, every flip, crop and noise comes four times. Nothing
fails, and the loss looks fine; there is just less variety than one believes. Giving each worker its id as a seed mends
that and breaks two other things: every epoch repeats the noise of the first, and so does every run, whatever its seed.

So the seed of a stream must be made of all three: the run's seed, the epoch and the worker. Adding them is the next
mistake: worker 1 of run 0 is then worker 0 of run 1, and the runs that are averaged over seeds share most of their
noise. Multiplying by 1000 helps until something counts to 1000. What is made for it is a hash: it mixes its input so
thoroughly that the outputs of inputs which differ anywhere look unrelated. NumPy's SeedSequence is one, for several
numbers at once; hashlib has others, for bytes. Python's own hash() of a text is another one in every process.
A generator can be poorer than its seed: PyTorch's generator on the CPU keeps only the lowest 32 bits of it. And pieces
of one stream, a thousand numbers for each worker, run into each other once a worker draws more.

Streams of workers have two limits. What a sample gets depends on how many workers there are, and on how much its worker
has drawn before: a resume in the middle of an epoch would have to draw all that again, or save every worker's state.
A stream for every sample, from seed, epoch and the sample's index, has neither. The noise is then a function of three
numbers that every checkpoint holds anyway: it is the same on one worker or on eight, and a resume needs no past.

The price is a new generator for every sample, which takes about a hundred-thousandth of a second. And a sample that
comes twice in one epoch gets the same noise both times.
"""

EXERCISE = Exercise(  # without a trace: two right solutions draw different noise
    name="workers",
    title="Noise for several workers",
    teaches="why copied and added seeds repeat noise, and how a stream for each sample survives a resume",
    statement=STATEMENT,
    idea=IDEA,
    functions=("worker_generator", "sample_generator", "augment", "augmented_epoch"),
    laws=(
        the_same_three_begin_the_same_stream,
        no_two_streams_are_the_same,
        streams_do_not_mix,
        noise_is_new_and_normal,
        each_sample_has_its_own_noise,
        the_number_of_workers_changes_nothing,
        a_resume_delivers_the_rest,
    ),
)
