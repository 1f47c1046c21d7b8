"""The exercise `workers`: noise for several workers, the same in every run of a seed and another for each of them."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np

from numpy_ref.equivalence import Tolerance, same_bits
from numpy_ref.exercises.exercise import Arrays, Exercise, described, expect, expect_same_bits, expect_within, law

Key = tuple[int, int, int]  # seed, epoch, worker_id or index

# Triples that meet when their numbers are added, weighted by 100, 1000 or 2**16, multiplied, or written side by side. A
# right solution that mixes them into 32 bits meets by chance in one of 2**32 pairs; these are fewer than 2**18.
MEETING = (0, 1, 2, 11, 100, 1000, 10_000, 2**16)
KEYS: dict[str, tuple[str, list[Key]]] = {
    "worker_generator": ("worker_id", list(product(MEETING, MEETING, (0, 1, 2, 3, 11, 100)))),
    "sample_generator": ("index", list(product(MEETING, MEETING, MEETING))),
}
LENGTH = 32  # numbers of each stream; two that share more than a quarter of them overlap

# The sum of a sample and noise, each below 8 in size: rounded once or twice in float64, it is off by at most 2**-49.
ALLOWANCE = Tolerance(relative=0.0, absolute=2.0**-48)
# The mean and the spread of n standard normal numbers are off by 1 / sqrt(n) and 1 / sqrt(2 n); eight times that is
# exceeded by chance once in 10**15 times.
DRAWS = 64 * 64
OFF = 8 / DRAWS**0.5

SEED, EPOCH = 3, 2
ORDER = [5, 2, 7, 0, 3, 6, 1, 4]
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


def delivered(solution: Any, arrays: Arrays, num_workers: int, start: int) -> list[Any]:
    """What the solution delivers of the epoch from a position on."""
    samples, order = arrays.given(draw_samples()), list(ORDER)
    value = solution.augmented_epoch(samples, order, SEED, EPOCH, num_workers, start)
    expect_same_bits("augmented_epoch changed its samples", draw_samples(), arrays.found("augmented_epoch", samples),
                     cause="the noise is added to the samples themselves")  # fmt: skip
    expect(order == ORDER, "augmented_epoch changed the order it was given")
    found = arrays.found("augmented_epoch", value)
    count = f"{len(found)} arrays" if isinstance(found, list) else described(found)
    wanted = len(ORDER) - start
    expect(count == f"{wanted} arrays", f"from position {start} of {len(ORDER)} on, augmented_epoch must return "
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
    "Call it twice with the same three numbers. Is the noise the same?",
    "A generator without a seed, the clock, the process's number and a generator that was used before all differ.",
    "Make a new generator in every call, from seed, epoch and the third number alone.",
)
def the_same_three_begin_the_same_stream(solution: Any, arrays: Arrays) -> None:
    """The same seed, epoch and worker_id, or index, always begin the same stream."""
    for function, key in product(KEYS, ((0, 0, 0), (3, 2, 1))):
        streams = []
        for n in (0, 0, 1):
            with surroundings(n):
                streams.append(noise(solution, arrays, getattr(solution, function)(*key)))
        causes = ("its generator has no seed, or goes on from an earlier call",
                  "it depends on the time or on the process")  # fmt: skip
        for again, cause in zip(streams[1:], causes, strict=True):
            expect_same_bits(f"{function}{key} began another stream when it was called again",
                             {"noise": streams[0]}, {"noise": again}, cause=cause)  # fmt: skip


@law(
    "Compare workers 0 and 1, epochs 0 and 1, seeds 0 and 1; and worker 1 of seed 0 with worker 0 of seed 1.",
    "All three numbers count, and sums, products, or digits put side by side are the same for several triples.",
    "Mix them by what is made for it: np.random.SeedSequence takes several numbers, hashlib takes a text of all three.",
)
def no_two_streams_are_the_same(solution: Any, arrays: Arrays) -> None:
    """Two streams that differ in seed, epoch, or in worker_id or index, have nothing in common."""
    for function, (third, keys) in KEYS.items():
        names = ("seed", "epoch", third)
        owners: dict[float, Key] = {}
        pairs: list[tuple[Key, Key]] = []
        most = 0  # numbers that two of them share
        for key in keys:
            stream = noise(solution, arrays, getattr(solution, function)(*key)).tolist()
            shared = Counter(owners[x] for x in stream if x in owners)
            pairs += [(other, key) for other, count in shared.items() if count > LENGTH / 4]
            most = max(most, *shared.values(), 0)
            owners |= {x: key for x in stream if x not in owners}
        if pairs:
            first, second = min(pairs, key=lambda pair: len(differing(pair)))
            told = " and ".join(", ".join(f"{n} {x}" for n, x in zip(names, k, strict=True)) for k in (first, second))
            expect(
                False,
                f"{function}: {told} share their noise",
                cause=meeting_cause(names, pairs) if most == LENGTH else "one stream begins within the other",
            )


def differing(pair: tuple[Key, Key]) -> list[int]:
    """Which of the three numbers two keys differ in."""
    return [i for i in range(3) if pair[0][i] != pair[1][i]]


def meeting_cause(names: tuple[str, str, str], pairs: list[tuple[Key, Key]]) -> str:
    """What streams that meet have in common."""
    ignored = sorted({i for pair in pairs for i in differing(pair) if len(differing(pair)) == 1})
    if ignored:
        text = f"{' and '.join(names[i] for i in ignored)} {'do' if len(ignored) > 1 else 'does'} not count"
        of_all = "; every worker has the same stream, as with a generator that is copied into each"
        return text + (of_all if 2 in ignored and names[2] == "worker_id" else "")
    summed = [pair for pair in pairs if sum(pair[0]) == sum(pair[1])]
    if len(summed) == len(pairs):
        which = sorted({i for pair in pairs for i in differing(pair)})
        return f"{' and '.join(names[i] for i in which)} are added, and others have the same sum"
    return "the three become one number or text that others become, too"


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
        zeros, generator = np.zeros((64, 64), dtype), solution.worker_generator(SEED, EPOCH, 0)
        first, second = (augmented(solution, arrays, zeros, generator).astype(np.float64) for _ in range(2))
        expect(len(np.unique(first)) > DRAWS / 2, "augment added the same number to many elements",
               cause="fewer numbers were drawn than the sample has elements")  # fmt: skip
        expect(not same_bits(first, second), "two calls of augment with one generator added the same noise",
               cause="the generator does not move on: it was copied or begun anew")  # fmt: skip
        text = f"of {DRAWS} numbers of noise, the {{}} is {{:.3f}} and must be near {{}}"
        expect(bool(abs(first.mean()) < OFF), text.format("mean", first.mean(), 0), cause="the noise is not normal")
        expect(bool(abs(first.std() - 1) < OFF), text.format("spread", first.std(), 1), cause="another scale or kind")
        tails = np.abs(first).max()
        expect(bool(tails > 2), f"the largest of {DRAWS} numbers of noise is {tails:.3f}", cause="it is not normal")
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
    """An epoch is each sample of the order, augmented by a new generator of its index."""
    check_epoch(solution, arrays, 1, 0, f"{CALL} does not give each sample the noise of its index")


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


def check_epoch(solution: Any, arrays: Arrays, num_workers: int, start: int, what: str) -> None:
    """Raise unless the epoch from a position on is made of the samples' own streams."""
    found = delivered(solution, arrays, num_workers, start)
    samples, running = draw_samples(), dict[int, Any]()

    def rebuilt(generator_of: Callable[[int], Any], indices: list[int] = ORDER) -> list[Any]:
        return [augmented(solution, arrays, samples[indices[p]], generator_of(p)) for p in range(start, len(ORDER))]

    def of_sample(index: int, *, seed: int = SEED, epoch: int = EPOCH) -> Any:
        return solution.sample_generator(seed, epoch, index)

    def of_worker(worker_id: int) -> Any:
        return solution.worker_generator(SEED, EPOCH, worker_id)

    def kept(number: int, make: Callable[[int], Any]) -> Any:
        if number not in running:
            running[number] = make(number)
        return running[number]

    choices: dict[str, Callable[[int], Any]] = {
        "the noise is that of the worker's stream, which depends on num_workers and begins anew in a resume":
            lambda p: kept(p % num_workers, of_worker),
        "the noise is the beginning of the worker's stream, again for every sample":
            lambda p: of_worker(p % num_workers),
        "one generator serves the whole epoch": lambda p: kept(-1, lambda _: of_sample(0)),
        "the epoch does not count": lambda p: of_sample(ORDER[p], epoch=0),
        "the seed does not count": lambda p: of_sample(ORDER[p], seed=0),
        "the noise belongs to the position, not to the index": of_sample,
        "the noise belongs to the position after the resume, not to the index": lambda p: of_sample(p - start),
        "the noise is that of the epoch's first samples": lambda p: of_sample(ORDER[p - start]),
        "all samples have the noise of index 0": lambda p: of_sample(0),
    }  # fmt: skip

    def cause() -> str:
        for text, generator_of in choices.items():
            if all(map(same_bits, rebuilt(generator_of), found)):
                return text
        in_order = all(map(same_bits, rebuilt(of_sample, sorted(ORDER)), found))
        return "the samples come in the order of the data" if in_order else ""

    expected = rebuilt(lambda p: of_sample(ORDER[p]))
    expect_same_bits(what, {"augmented": expected}, {"augmented": found}, cause=cause)


STATEMENT = """
Write worker_generator, sample_generator, augment and augmented_epoch. The first two make a generator (in NumPy a
np.random.Generator, in PyTorch a torch.Generator) from three ints, each from 0 to 2**32 - 1; worker_id stays below
1000. Two that differ in any of the three must begin different streams, also when their sums or their digits agree.
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
A generator can be poorer than its seed: PyTorch's generator on the CPU keeps only the lowest 32 bits of it.

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
