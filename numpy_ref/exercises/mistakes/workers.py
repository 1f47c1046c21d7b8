"""Wrong versions of noise for several workers."""

import hashlib
import os
import time
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table, before
from numpy_ref.exercises.workers import WITHIN, twin_of

NO_SEED = "its generator has no seed, or goes on from an earlier call"
OF_WORKER = "the noise is that of the worker's stream, which depends on num_workers and begins anew in a resume"
BEGINNING = "the noise is the beginning of the worker's stream, again for every sample"
ONE_NUMBER = "the three become one number or text that others become, too"
OUTSIDE = "it depends on the time or on the process"
PART = "only a part of {} counts, as when upper bits are cut off or a remainder is taken"
SHARED = "both draw from one generator"
STAYS = "the generator does not move on: it was copied or begun anew"


class Epoch(NamedTuple):
    """The arguments of augmented_epoch but for the samples."""

    order: list[int]
    seed: int
    epoch: int
    num_workers: int
    start: int


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    xp, numpy = arrays.xp, arrays.framework == "numpy"
    kept: dict[Any, Any] = {}
    calls, shared = count(), right._generator(0)
    salt = time.perf_counter_ns()  # another for each wrong version, as that of hash() is for each process

    def worker(numbers: Any) -> Replacements:
        return {"worker_generator": lambda *key: right._generator(*numbers(*key))}

    def sample(numbers: Any) -> Replacements:
        return {"sample_generator": lambda *key: right._generator(*numbers(*key))}

    def hashed(*key: int) -> list[int]:
        return [int(hashlib.sha256(repr(key).encode()).hexdigest()[:4], 16)]

    def later(each: int) -> Replacements:
        def worker_generator(seed: int, epoch: int, worker_id: int) -> Any:
            generator = right._generator(seed, epoch)
            drawn((each * worker_id,), generator)
            return generator

        return {"worker_generator": worker_generator}

    def advanced(by: Any) -> Any:
        def generator(*key: int) -> Any:
            seed, ahead = by(*key)
            return np.random.Generator(np.random.PCG64(seed).advance(ahead))

        return generator

    def seeded_anew(*key: int) -> int:
        kept["one"] = right._generator(*key)
        return 0

    def drawn(shape: Any, generator: Any) -> Any:
        return right.augment(xp.zeros(shape, dtype=xp.float64), generator)

    def uniform(shape: Any, generator: Any) -> Any:
        return generator.random(shape) if numpy else xp.rand(shape, generator=generator, dtype=xp.float64)

    def augment(noise: Any) -> Replacements:
        def augmented(sample: Any, generator: Any) -> Any:
            return sample + arrays.cast(noise(sample.shape, generator), str(sample.dtype).split(".")[-1])

        return {"augment": augmented}

    def scaled(by: float) -> Replacements:
        return augment(lambda shape, g: by * drawn(shape, g))

    def epoch(generators: Any, positions: Any = lambda e: range(e.start, len(e.order))) -> Replacements:
        def augmented_epoch(samples: Any, *arguments: Any) -> Any:
            e = Epoch(*arguments)
            generator_of = generators(e)
            return [right.augment(samples[e.order[p]], generator_of(p)) for p in positions(e)]

        return {"augmented_epoch": augmented_epoch}

    def own(e: Epoch) -> Any:
        return lambda p: right.sample_generator(e.seed, e.epoch, e.order[p])

    def noise(numbers: Any) -> Replacements:
        return epoch(lambda e: lambda p: right.sample_generator(*numbers(e, p)))

    def of_workers(e: Epoch) -> Any:
        streams = [right.worker_generator(e.seed, e.epoch, i) for i in range(e.num_workers)]
        return lambda p: streams[p % e.num_workers]

    def of_indices(e: Epoch) -> Any:
        streams = {i: right.sample_generator(e.seed, e.epoch, i) for i in e.order}
        return lambda p: streams[e.order[p]]

    def of_epoch(e: Epoch) -> Any:
        stream = right.sample_generator(e.seed, e.epoch, 0)
        return lambda p: stream

    def epoch_on(change: Any) -> Replacements:
        return {"augmented_epoch": before(right.augmented_epoch, change)}

    table: Table = {
        "the-same-three-begin-the-same-stream": [
            ("no seed", worker(lambda *key: [next(calls)]), NO_SEED),
            (
                "generators are kept",
                {"worker_generator": lambda *key: kept.setdefault(key, right._generator(*key))},
                NO_SEED,
            ),
            ("the time", worker(lambda *key: [*key, int(time.time())]), OUTSIDE),
            ("the process", sample(lambda *key: [*key, os.getpid()]), OUTSIDE),
            ("another process gives another result", worker(lambda *key: [abs(hash(f"{salt}{key}"))])),
            (
                "augment draws from elsewhere, not from the generator it is given",
                {"augment": lambda x, g: right.augment(x, shared)},
            ),
        ],
        "no-two-streams-are-the-same": [
            ("worker_id does not count; every worker has the same stream", worker(lambda s, e, i: [s, e])),
            ("seed and epoch and worker_id do not count", worker(lambda *key: [0])),
            ("seed and epoch do not count", worker(lambda seed, epoch, i: [i])),
            ("seed does not count", worker(lambda seed, epoch, i: [0, epoch, i])),
            ("epoch does not count", worker(lambda seed, epoch, i: [seed, i])),
            ("seed and worker_id are added, and others have the same sum", worker(lambda s, e, i: [s + i, e])),
            ("seed and epoch are added, and others have the same sum", worker(lambda s, e, i: [s + e, i])),
            ("epoch and worker_id are added, and others have the same sum", worker(lambda s, e, i: [s, e + i])),
            ("seed and epoch and index are added, and others have the same sum", sample(lambda *key: [sum(key)])),
            ("weights of 1000", sample(lambda s, e, i: [s, e * 1000 + i]), ONE_NUMBER),
            ("digits side by side", sample(lambda *key: [int("".join(map(str, key)))]), ONE_NUMBER),
            ("exclusive or", sample(lambda s, e, i: [s ^ e ^ i]), ONE_NUMBER),
            ("a product", sample(lambda s, e, i: [(s + 1) * (e + 1) * (i + 1)]), ONE_NUMBER),
            ("the index alone", sample(lambda s, e, i: [i]), "seed and epoch do not count"),
            ("index does not count", sample(lambda s, e, i: [s, e])),
            ("the order of the three does not count: they are sorted, or it is lost", sample(lambda *key: sorted(key))),
            ("31 bits of the seed", sample(lambda s, e, i: [s & 0x7FFFFFFF, e, i]), PART.format("seed")),
            ("the remainder by a prime", worker(lambda s, e, i: [s % (2**31 - 1), e, i]), PART.format("seed")),
            ("the remainder by a power of ten", worker(lambda s, e, i: [s % 10**9, e, i]), PART.format("seed")),
            ("16 bits of the epoch", worker(lambda s, e, i: [s, e & 0xFFFF, i]), PART.format("epoch")),
            ("8 bits of the worker", worker(lambda s, e, i: [s, e, i % 256]), PART.format("worker_id")),
            ("24 bits of the index", sample(lambda s, e, i: [s, e, i & 0xFFFFFF]), PART.format("index")),
            ("few of very many pairs meet: the three are mixed into too few bits", worker(hashed)),
            ("streams a thousand draws apart", later(1024), WITHIN),
        ],
        "streams-do-not-mix": [
            (
                "one generator for the program, seeded anew",
                {
                    "worker_generator": seeded_anew,
                    "sample_generator": seeded_anew,
                    "augment": lambda x, g: right.augment(x, kept["one"]),
                },
                SHARED,
            )
        ],
        "noise-is-new-and-normal": [
            ("fewer numbers were drawn", augment(lambda shape, g: drawn((), g))),
            ("one number for each row", augment(lambda shape, g: drawn(shape[-1:], g)), "fewer numbers were drawn"),
            (STAYS, {"augment": lambda x, g: right.augment(x, twin_of(g))}),
            ("uniform noise", augment(uniform), "must be near 0; the noise is not normal"),
            (
                "uniform noise of mean 0 and spread 1",
                augment(lambda shape, g: 12**0.5 * (uniform(shape, g) - 0.5)),
                "the share within 1 is 0.57",
            ),
            ("a tenth of the noise", scaled(0.1), "another scale or kind"),
            ("a twentieth more noise", scaled(1.05), "the spread is 1.05"),
            ("the noise is added in place", {"augment": lambda x, g: x.__iadd__(right.augment(x * 0, g))}),
            ("type float64", {"augment": lambda x, g: x + drawn(x.shape, g)}),
            ("did not add its noise to the sample", {"augment": lambda x, g: right.augment(x * 0, g)}),
        ],
        "each-sample-has-its-own-noise": [
            ("the noise belongs to the position, not to the index", noise(lambda e, p: (e.seed, e.epoch, p))),
            ("the epoch does not count", noise(lambda e, p: (e.seed, 0, e.order[p]))),
            ("the seed does not count", noise(lambda e, p: (0, e.epoch, e.order[p]))),
            ("the samples come in the order of the data", epoch_on(lambda x, order, *rest: (x, sorted(order), *rest))),
            ("all samples have the noise of index 0", noise(lambda e, p: (e.seed, e.epoch, 0))),
            ("one generator serves the whole epoch", epoch(of_epoch)),
            ("one generator is kept for each index: a sample that comes again gets other noise", epoch(of_indices)),
            (
                "must return 7 arrays; it returned 4 arrays",
                epoch_on(lambda x, order, *rest: (x, list(dict.fromkeys(order)), *rest)),
            ),
            (
                "the noise is added to the samples themselves",
                epoch_on(lambda samples, *rest: ([x.__iadd__(1) for x in samples], *rest)),
            ),
        ],
        "the-number-of-workers-changes-nothing": [
            (OF_WORKER, epoch(of_workers)),
            (BEGINNING, epoch(lambda e: lambda p: right.worker_generator(e.seed, e.epoch, p % e.num_workers))),
            (
                "num_workers is mixed into the noise",
                noise(lambda e, p: (e.seed + e.num_workers - 1, e.epoch, e.order[p])),
            ),
            ("must return 8 arrays", epoch(own, lambda e: range(e.start, len(e.order), e.num_workers))),
        ],
        "a-resume-delivers-the-rest": [
            (OF_WORKER, epoch(of_workers)),
            ("the noise belongs to the position after the resume", noise(lambda e, p: (e.seed, e.epoch, p - e.start))),
            (
                "the noise is that of the epoch's first samples",
                noise(lambda e, p: (e.seed, e.epoch, e.order[p - e.start])),
            ),
            ("must return 5 arrays", epoch(own, lambda e: range(len(e.order)))),
            ("it returned 4 arrays", epoch(own, lambda e: range(e.start + (e.start > 0), len(e.order)))),
        ],
    }
    if numpy:
        table["no-two-streams-are-the-same"] += [
            ("streams eight draws apart", later(8), WITHIN),
            (
                "streams 100,000 draws apart",
                {"sample_generator": advanced(lambda s, e, i: ([s, e], 100_000 * i))},
                WITHIN,
            ),
            (
                "streams of epochs are parts of one",
                {"worker_generator": advanced(lambda s, e, i: ([s, i], 10_000 * e))},
                WITHIN,
            ),
        ]
        table["noise-is-new-and-normal"] += [
            (
                "noise with heavy tails",
                augment(lambda shape, g: g.laplace(0.0, 0.5**0.5, shape)),
                "the share within 1 is 0.7",
            )
        ]
    else:
        table["no-two-streams-are-the-same"] += [
            (
                "64 bits in a seed that takes 32",
                {"worker_generator": lambda s, e, i: xp.Generator().manual_seed((s << 32) + (e << 10) + i)},
                "seed does not count",
            )
        ]
    return table
