"""The exercise `workers`: right solutions pass, and wrong ones are caught by the law meant for them, with a reason."""

from pathlib import Path

import pytest

from numpy_ref.exercises import exercise_named
from parity_tests.exercises.solutions import (
    FRAMEWORKS,
    Mutant,
    check_mutant,
    check_stub,
    graded,
    mutants_of,
    reference,
    told,
)
from parity_tests.implementations import NO_TORCH

WORKER, SAMPLE = "return _generator(seed, 0, epoch, worker_id)", "return _generator(seed, 1, epoch, index)"
FIRST = "def worker_generator("
DRAW = "noise = np.asarray(generator.standard_normal(sample.shape))"
ADD = "return np.asarray(sample + noise.astype(sample.dtype))"
DRAW_TORCH = "noise = torch.randn(sample.shape, generator=generator, dtype=torch.float64)"
ADD_TORCH = "return sample + noise.to(sample.dtype)"
ONE, TAKES = "sample_generator(seed, epoch, index))", "index = order[position]"
POSITIONS, WORKERS, BEGIN = "range(start, len(order)):\n", "(num_workers):\n", "    augmented = {}\n"
SAME, APART, MIX = "the-same-three-begin-the-same-stream", "no-two-streams-are-the-same", "streams-do-not-mix"
NORMAL, OWN, COUNT = (
    "noise-is-new-and-normal",
    "each-sample-has-its-own-noise",
    "the-number-of-workers-changes-nothing",
)
REST = "a-resume-delivers-the-rest"


def made(old: str, new: str, *more: tuple[str, str], law: str = APART, reason: str) -> Mutant:
    return Mutant(law, reason, ((old, new), *more))


def once(old: str, new: str, torch: bool = False) -> tuple[tuple[tuple[str, str], ...], tuple[str, ...]]:
    return ((old, new),), ("torch",) if torch else ("numpy",)


MUTANTS = {
    "the generator is copied into each worker": made(
        WORKER, "return _generator(seed, 0, epoch)", reason="worker_id does not count; every worker has the same stream"
    ),
    "one constant generator for all": made(
        WORKER, "return _generator(0)", reason="seed and epoch and worker_id do not count"
    ),
    "worker id alone": made(WORKER, "return _generator(worker_id)", reason="seed and epoch do not count"),
    "worker id and epoch": made(WORKER, "return _generator(0, 0, epoch, worker_id)", reason="seed does not count"),
    "seed and worker id": made(WORKER, "return _generator(seed, worker_id)", reason="epoch does not count"),
    "seed + worker id": made(
        WORKER, "return _generator(seed + worker_id, 0, epoch)", reason="seed and worker_id are added"
    ),
    "seed + epoch": made(
        WORKER, "return _generator(seed + epoch, 0, worker_id)", reason="seed and epoch are added, and others have"
    ),
    "epoch + worker id": made(
        WORKER, "return _generator(seed, epoch + worker_id)", reason="epoch and worker_id are added"
    ),
    "all three added": made(SAMPLE, "return _generator(seed + epoch + index)", reason="seed and epoch and index are"),
    "weights of 1000": made(
        SAMPLE, "return _generator(seed, epoch * 1000 + index)", reason="the three become one number or text"
    ),
    "digits side by side": made(
        SAMPLE, "return _generator(int(f'{seed}{epoch}{index}'))", reason="the three become one number or text"
    ),
    "exclusive or": made(SAMPLE, "return _generator(seed ^ epoch ^ index)", reason="the three become one number"),
    "a product": made(SAMPLE, "return _generator((seed + 1) * (epoch + 1) * (index + 1))", reason="one number or text"),
    "the index alone": made(SAMPLE, "return _generator(index)", reason="seed and epoch do not count"),
    "the index does not count": made(SAMPLE, "return _generator(seed, 1, epoch)", reason="index does not count"),
    "sorted": made(
        SAMPLE, "return _generator(*sorted([seed, epoch, index]))", reason="the order of the three does not count"
    ),
    "31 bits of the seed": made(
        SAMPLE, "return _generator(seed & 0x7FFFFFFF, 1, epoch, index)",
        reason="only a part of seed counts, as when upper bits are cut off or a remainder is taken: 0 and 2147483648",
    ),
    "the seed's remainder by a prime": made(
        WORKER, "return _generator(seed % (2**31 - 1), 0, epoch, worker_id)",
        reason="only a part of seed counts, as when upper bits are cut off or a remainder is taken: 1 and 2147483648",
    ),
    "the seed's remainder by a power of ten": made(
        WORKER, "return _generator(seed % 10**9, 0, epoch, worker_id)", reason="only a part of seed counts"
    ),
    "16 bits of the epoch": made(
        WORKER, "return _generator(seed, 0, epoch & 0xFFFF, worker_id)", reason="only a part of epoch counts"
    ),
    "8 bits of the worker": made(
        WORKER, "return _generator(seed, 0, epoch, worker_id % 256)",
        reason="only a part of worker_id counts, as when upper bits are cut off or a remainder is taken: 0 and 256",
    ),
    "24 bits of the index": made(
        SAMPLE, "return _generator(seed, 1, epoch, index & 0xFFFFFF)", reason="only a part of index counts"
    ),
    "a hash of 16 bits": made(
        WORKER, "import hashlib\n    text = repr((seed, epoch, worker_id)).encode()\n"
        "    return _generator(int(hashlib.sha256(text).hexdigest()[:4], 16))",
        reason="the three are mixed into too few bits",
    ),
    "streams a hundred draws apart": Mutant(
        APART,
        "one stream begins within the other",
        *once(WORKER, "return np.random.Generator(np.random.PCG64([seed, epoch]).advance(100 * worker_id))"),
    ),
    "streams a hundred thousand draws apart": Mutant(
        APART,
        "8 in a row are the same",
        *once(SAMPLE, "return np.random.Generator(np.random.PCG64([seed, epoch]).advance(100_000 * index))"),
    ),
    "streams of epochs are parts of one": Mutant(
        APART,
        "8 in a row are the same",
        *once(WORKER, "return np.random.Generator(np.random.PCG64([seed, worker_id]).advance(10_000 * epoch))"),
    ),
    "streams of workers are parts of one in torch": Mutant(
        APART,
        "8 in a row are the same",
        *once(
            WORKER,
            "g = _generator(seed, epoch)\n    torch.randn(1024 * worker_id, generator=g, dtype=torch.float64)\n"
            "    return g",
            torch=True,
        ),
    ),
    "streams of workers are parts of one": Mutant(
        APART,
        "one stream begins within the other",
        *once(WORKER, "g = _generator(seed, epoch)\n    g.standard_normal(8 * worker_id)\n    return g"),
    ),
    "64 bits in a seed that takes 32": Mutant(
        APART,
        "seed does not count",
        *once(WORKER, "return torch.Generator().manual_seed((seed << 32) + (epoch << 10) + worker_id)", torch=True),
    ),
    "no seed": Mutant(SAME, "its generator has no seed", *once(WORKER, "return np.random.default_rng()")),
    "no seed in torch": Mutant(
        SAME,
        "its generator has no seed",
        *once(WORKER, "g = torch.Generator()\n    g.seed()\n    return g", torch=True),
    ),
    "the time": made(
        WORKER, "return _generator(seed, 0, epoch, worker_id, int(time.time()))", (FIRST, f"import time\n{FIRST}"),
        law=SAME, reason="it depends on the time or on the process",
    ),
    "the process": made(
        SAMPLE, "return _generator(seed, 1, epoch, index, os.getpid())", (FIRST, f"import os\n{FIRST}"),
        law=SAME, reason="it depends on the time or on the process",
    ),
    "generators are kept": made(
        WORKER,
        "return _kept.setdefault((seed, epoch, worker_id), _generator(seed, 0, epoch, worker_id))",
        (FIRST, f"_kept = {{}}\n{FIRST}"),
        law=SAME,
        reason="or goes on from an earlier call",
    ),
    "streams count the calls": made(
        WORKER, "_calls.append(0)\n    return _generator(seed, 0, epoch, worker_id, len(_calls))",
        (FIRST, f"_calls = []\n{FIRST}"), law=SAME, reason="or goes on from an earlier call",
    ),
    "a hash of a text": made(
        WORKER, "return _generator(abs(hash(f'{seed},{epoch},{worker_id}')))",
        law=SAME, reason="another process gives another result",
    ),
    "the order of a set": made(
        SAMPLE, "return _generator(*[int(x[1:]) for x in {f's{seed}', f'e{epoch}', f'i{index}', 'x1', 'x2', 'x3'}])",
        law=SAME, reason="another process gives another result",
    ),
    "noise of the program's own generator": Mutant(
        SAME,
        "augment draws from elsewhere, not from the generator it is given",
        *once(DRAW, "noise = np.random.standard_normal(sample.shape)"),
    ),
    "noise of the program's own generator in torch": Mutant(
        SAME,
        "augment draws from elsewhere, not from the generator it is given",
        *once(DRAW_TORCH, DRAW_TORCH.replace("generator=generator, ", ""), torch=True),
    ),
    "the program's own generator": Mutant(
        MIX,
        "both draw from one generator",
        (
            (WORKER, "np.random.seed((seed * 7919 + epoch * 104729 + worker_id) % 2**32)"),
            (DRAW, "noise = np.random.standard_normal(sample.shape)"),
        ),
        ("numpy",),
    ),
    "the program's own generator in torch": Mutant(
        MIX,
        "both draw from one generator",
        (
            (WORKER, "torch.manual_seed(seed * 7919 + epoch * 104729 + worker_id)"),
            (DRAW_TORCH, "noise = torch.randn(sample.shape, dtype=torch.float64)"),
        ),
        ("torch",),
    ),
    "one generator for the program, seeded anew": made(
        WORKER, "_one[0] = _generator(seed, 0, epoch, worker_id)\n    return 0",
        (SAMPLE, "_one[0] = _generator(seed, 1, epoch, index)\n    return 0"),
        (FIRST, f"_one = [None]\n{FIRST}"),
        ("    noise = ", "    generator = _one[0]\n    noise = "),
        law=MIX, reason="both draw from one generator",
    ),
    "one number for all elements": Mutant(
        NORMAL, "fewer numbers were drawn", *once(DRAW, "noise = np.float64(generator.standard_normal())")
    ),
    "one number for all elements in torch": Mutant(
        NORMAL,
        "fewer numbers were drawn",
        *once(DRAW_TORCH, DRAW_TORCH.replace("sample.shape", "()"), torch=True),
    ),
    "one number for each row": Mutant(
        NORMAL, "fewer numbers were drawn", *once(DRAW, "noise = generator.standard_normal(sample.shape[-1:])")
    ),
    "the generator is copied before each draw": Mutant(
        NORMAL,
        "the generator does not move on",
        *once(DRAW, "import copy\n    noise = copy.deepcopy(generator).standard_normal(sample.shape)"),
    ),
    "the generator is put back": Mutant(
        NORMAL,
        "the generator does not move on",
        *once(DRAW_TORCH, f"s = generator.get_state()\n    {DRAW_TORCH}\n    generator.set_state(s)", torch=True),
    ),
    "uniform noise": Mutant(NORMAL, "must be near 0", *once(DRAW, "noise = generator.random(sample.shape)")),
    "uniform noise in torch": Mutant(
        NORMAL, "must be near 0", *once(DRAW_TORCH, DRAW_TORCH.replace("randn", "rand"), torch=True)
    ),
    "uniform noise of mean 0 and spread 1": Mutant(
        NORMAL, "the share within 1 is 0.57", *once(DRAW, "noise = 12**0.5 * (generator.random(sample.shape) - 0.5)")
    ),
    "a tenth of the noise": Mutant(NORMAL, "another scale", *once(ADD, f"noise *= 0.1\n    {ADD}")),
    "a twentieth more noise": Mutant(NORMAL, "the spread is 1.05", *once(ADD, f"noise *= 1.05\n    {ADD}")),
    "a twentieth more noise in torch": Mutant(
        NORMAL, "the spread is 1.05", *once(ADD_TORCH, ADD_TORCH.replace("noise", "1.05 * noise"), torch=True)
    ),
    "noise with heavy tails": Mutant(
        NORMAL, "the share within 1 is 0.7", *once(DRAW, "noise = generator.laplace(0.0, 0.5**0.5, sample.shape)")
    ),
    "the sample is changed": Mutant(NORMAL, "added in place", *once(ADD, "sample += noise\n    return sample")),
    "the sample is changed in torch": Mutant(
        NORMAL, "added in place", *once(ADD_TORCH, "sample += noise\n    return sample", torch=True)
    ),
    "float32 becomes float64": Mutant(NORMAL, "type float64", *once(ADD, "return sample + noise")),
    "noise of the shape, without the sample": Mutant(
        NORMAL, "did not add its noise to the sample", *once(ADD, "return noise.astype(sample.dtype)")
    ),
    "noise by position": made(
        ONE, ONE.replace("index", "position"), law=OWN, reason="the noise belongs to the position, not to the index"
    ),
    "the epoch is left out": made(ONE, ONE.replace("epoch", "0"), law=OWN, reason="the epoch does not count"),
    "the seed is left out": made(ONE, ONE.replace("seed", "0"), law=OWN, reason="the seed does not count"),
    "order is ignored": made(TAKES, "index = position", law=OWN, reason="the samples come in the order of the data"),
    "the same noise for all samples": made(
        ONE, ONE.replace("index", "0"), law=OWN, reason="all samples have the noise of index 0"
    ),
    "one generator for the epoch": made(
        ONE, "generator)", (BEGIN, f"{BEGIN}    generator = sample_generator(seed, epoch, 0)\n"),
        law=OWN, reason="one generator serves the whole epoch",
    ),
    "one generator for each index": made(
        ONE, "generators[index])",
        (BEGIN, f"{BEGIN}    generators = {{i: sample_generator(seed, epoch, i) for i in order}}\n"),
        law=OWN, reason="one generator is kept for each index: a sample that comes again gets other noise",
    ),
    "a sample that comes again is kept": made(
        TAKES, f"{TAKES}\n                if index in order[:position]:\n                    continue",
        ("return [augmented[position] for position in range(start, len(order))]",
         "return [augmented[position] for position in sorted(augmented)]"),
        law=OWN, reason="must return 7 arrays; it returned 4 arrays",
    ),
    "samples are changed": made(
        TAKES, f"{TAKES}\n                samples[index] += 1", law=OWN, reason="added to the samples themselves"
    ),
    "streams of workers": made(
        ONE, "generator)", (WORKERS, f"{WORKERS}        generator = worker_generator(seed, epoch, worker_id)\n"),
        law=COUNT, reason="that of the worker's stream, which depends on num_workers",
    ),
    "streams of workers, begun anew": made(
        ONE, ONE.replace("sample_generator", "worker_generator").replace("index", "worker_id"),
        law=COUNT, reason="the beginning of the worker's stream, again for every sample",
    ),
    "the number of workers is mixed in": made(
        ONE, ONE.replace("seed,", "seed + num_workers - 1,"), law=COUNT, reason="is not what it is with one"
    ),
    "only the first worker's positions": made(
        WORKERS, "(1):\n", ("return [augmented[position] for position in range(start, len(order))]",
        "return [augmented[position] for position in sorted(augmented)]"), law=COUNT, reason="must return 8 arrays"
    ),
    "streams of workers in a resume": made(
        ONE, "generator)", (WORKERS, f"{WORKERS}        generator = worker_generator(seed, epoch, worker_id)\n"),
        law=REST, reason="and begins anew in a resume",
    ),
    "positions counted from the resume": made(
        ONE, ONE.replace("index", "position - start"), law=REST, reason="the position after the resume"
    ),
    "the noise of the epoch's beginning": made(
        ONE, ONE.replace("index", "order[position - start]"), law=REST, reason="that of the epoch's first samples"
    ),
    "the whole epoch again": made(
        "in range(start, len(order))]", "in range(len(order))]", (POSITIONS, "range(len(order)):\n"),
        law=REST, reason="must return 5 arrays",
    ),
    "one position too few": made(
        "in range(start, len(order))]", "in range(start + (start > 0), len(order))]",
        law=REST, reason="it returned 4 arrays",
    ),
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, "workers", reference("workers", framework), framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("workers").laws)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named("workers").laws}


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "workers", mutant, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "workers", framework)


LISTS = """
import numpy as np
def worker_generator(seed, epoch, worker_id):
    return np.random.default_rng([seed, epoch, worker_id])
def sample_generator(seed, epoch, index):
    return np.random.default_rng([seed, epoch, index, 1])
def augment(sample, generator):
    return generator.normal(loc=sample).astype(sample.dtype)
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    return tuple(augment(samples[i], sample_generator(seed, epoch, i)) for i in order[start:])
"""
HASHED = """
import hashlib
from numpy.random import Generator, Philox
def keyed(*numbers):
    digest = hashlib.sha256("/".join(map(str, numbers)).encode()).digest()
    return Generator(Philox(key=int.from_bytes(digest[:16], "big")))
def worker_generator(seed, epoch, worker_id):
    return keyed(seed, epoch, worker_id)
sample_generator = lambda seed, epoch, index: keyed(seed, epoch, index)
def augment(sample, generator):
    sample = sample.copy()
    sample += generator.standard_normal(sample.shape, dtype=sample.dtype)
    return sample
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    result = [None] * (len(order) - start)
    for worker_id in reversed(range(num_workers)):
        for p in range(worker_id, len(order), num_workers):
            if p >= start:
                result[p - start] = augment(samples[order[p]], sample_generator(seed, epoch, order[p]))
    return result
"""
SPAWNED = """
import numpy as np
class Stream:
    def __init__(self, sequence):
        self.rng = np.random.RandomState(np.random.MT19937(sequence))
    def draw(self, shape):
        return self.rng.normal(size=shape)
def worker_generator(seed, epoch, worker_id):
    return Stream(np.random.SeedSequence([seed, epoch]).spawn(worker_id + 1)[-1])
def sample_generator(seed, epoch, index):
    return Stream(np.random.SeedSequence([1, index, epoch, seed]))
def augment(sample, generator):
    return np.add(sample, generator.draw(np.shape(sample)), dtype=sample.dtype, casting="same_kind")
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    augmented = []
    while start < len(order):
        augmented += [augment(samples[order[start]], sample_generator(seed, epoch, order[start]))]
        start += 1
    return augmented
"""
OTHER_HASH = """
import zlib, torch
def keyed(*numbers):
    return torch.Generator().manual_seed(zlib.crc32(repr(numbers).encode()))
def worker_generator(seed, epoch, worker_id):
    return keyed(seed, epoch, worker_id)
def sample_generator(seed, epoch, index):
    return keyed(seed, epoch, "sample", index)
def augment(sample, generator):
    return torch.normal(sample, 1.0, generator=generator)
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    return [augment(samples[i], sample_generator(seed, epoch, i)) for i in order[start:]]
"""
THROUGH_NUMPY = """
import numpy as np
import torch
def worker_generator(seed, epoch, worker_id):
    return np.random.default_rng([seed, epoch, worker_id])
def sample_generator(seed, epoch, index):
    return torch.Generator().manual_seed(int(np.random.SeedSequence([seed, epoch, index]).generate_state(1)[0]))
def augment(sample, generator):
    if isinstance(generator, np.random.Generator):
        return sample + torch.from_numpy(generator.standard_normal(tuple(sample.shape))).to(sample.dtype)
    return sample + torch.empty_like(sample).normal_(generator=generator)
def augmented_epoch(samples, order, seed, epoch, num_workers, start):
    return [augment(samples[i], sample_generator(seed, epoch, i)) for i in order[start:]]
"""


@pytest.mark.parametrize("text", [LISTS, HASHED, SPAWNED], ids=["lists", "hashed", "spawned"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "workers", text)) == []


@NO_TORCH
@pytest.mark.parametrize("text", [OTHER_HASH, THROUGH_NUMPY], ids=["another hash", "through NumPy"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "workers", text, "torch")) == []
