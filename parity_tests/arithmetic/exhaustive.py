"""Every float32 there is.

`python -m parity_tests.arithmetic.exhaustive [TASK ...] [--jobs N] [--state FILE] [--record FILE]`.

Holds `arithmetic.exp`, `log`, `sqrt` and `rounding.round_to` to the correctly rounded result on all 2**32 inputs, by
methods of its own. A result is right where the exact value lies between the midpoints to both neighbouring numbers of
the format, which float64 holds exactly. Only `round_to` meets ties: e**x and ln x are irrational but for x = 0 and
x = 1, whose answers are known beforehand, and the square of a midpoint needs more bits than a float32 has.

`number_line.cast_to_dtype` is held to two other casts, PyTorch's own and `rounding.cast`, on every float32 and, towards
float32, on every float16. All NaN are one.

The exact values of e**x and ln x come as an unevaluated sum of two float64 numbers with a relative error below
BOUNDS, derived where they are computed; where a midpoint lies within the bound, mpmath decides.

The inputs are done in chunks of 2**22. The state file gets a line for each finished chunk, so a run may be interrupted
and goes on where it was. The record keeps the outcome, with digests of the sources that it is true of; a run of some
tasks replaces these in it and leaves the others.
"""

import argparse
import ast
import contextlib
import hashlib
import inspect
import io
import json
import multiprocessing
import os
import platform
import sys
import tokenize
from collections.abc import Callable, Iterable, Sequence
from datetime import date
from fractions import Fraction
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import mpmath
import numpy as np

from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.arithmetic import rounding
from numpy_ref.cli import number_line
from numpy_ref.types import Array
from parity_tests.oracles import FORMATS, STORED_IN, exact_function, nearest

HERE = Path(__file__).parent
SOURCES = [
    Path(arithmetic.__file__).with_name(name)
    for name in ("operations.py", "elementary.py", "rounding.py", "fixedpoint.py")
]
ALIASES = ("Array", "Arrays", "__all__")
CHUNK = 1 << 22  # inputs that are done, or done again, as one
CHUNKS = range(2**32 // CHUNK)
BLOCK = 1 << 14  # inputs worked on at once, so that the passes over them stay in the cache
EXAMPLES = 5  # wrong results shown of a chunk

CASTS = {"cast float16": "float16", "cast bfloat16": "bfloat16", "cast from float16": "float32"}
TASKS = ("exp", "log", "sqrt", "float16", "bfloat16", *CASTS)
SHORT = ("cast from float16",)  # tasks whose inputs have 16 bits; those of the others have 32
BOUNDS = {"exp": 2.0**-84, "log": 2.0**-82}
EXP_STEPS = 1 << 10  # table entries per unit
EXP_ENDS = (-104, 89)  # beyond, e**x < 2**-150 is nearest to 0, and e**x > 2**128 is infinite
LOG_STEPS = 1 << 14


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded sum and its exact error (Knuth)."""
    total = a + b
    of_b = total - a
    return total, (a - (total - of_b)) + (b - of_b)


def two_product(a: Array, b: Array) -> tuple[Array, Array]:
    """The rounded product and its exact error (Dekker 1971, by Veltkamp's halves); nothing here under- or overflows."""
    product = a * b
    shifted_a, shifted_b = a * 134217729.0, b * 134217729.0  # 2**27 + 1
    a1, b1 = shifted_a - (shifted_a - a), shifted_b - (shifted_b - b)
    a2, b2 = a - a1, b - b1
    return product, ((a1 * b1 - product) + a1 * b2 + a2 * b1) + a2 * b2


def in_two(value: mpmath.mpf) -> tuple[float, float]:
    """A number as a sum of two float64, right to 2**-104 of it, the second at most 2**-52 of the first."""
    return float(value), float(value - float(value))


@cache
def exp_table() -> Array:
    """e**(i / EXP_STEPS) in two parts, over the whole range."""
    first, last = (EXP_STEPS * end for end in EXP_ENDS)
    with mpmath.workprec(140):
        return np.array([in_two(mpmath.exp(mpmath.mpf(i) / EXP_STEPS)) for i in range(first, last + 1)]).T.copy()


@cache
def log_table() -> tuple[Array, tuple[float, float]]:
    """ln(i / LOG_STEPS) from 0.75 to 1.5 in two parts; and ln 2 as a multiple of 2**-40 and the rest."""
    with mpmath.workprec(140):
        places = range(3 * LOG_STEPS // 4, 3 * LOG_STEPS // 2 + 1)
        entries = [in_two(mpmath.log(mpmath.mpf(i) / LOG_STEPS)) for i in places]
        ln2 = mpmath.log(2)
        high = int(ln2 * 2**40) / 2**40
        return np.array(entries).T.copy(), (high, float(ln2 - high))


def exp_in_two(x: Array) -> tuple[Array, Array]:
    """e**x as high + low, for float32 numbers within EXP_ENDS, in float64.

    x = i / 1024 + r exactly, |r| <= 2**-11, and e**x = T (1 + r + r**2/2 + p), T = T1 + T2 from the table. As r has at
    most 24 bits, r**2/2 is exact, and so are r + r**2/2 = e1 + e2, T1 e1 and its sum with T1. With u = 2**-53, what is
    lost beside T is, in units of 2**-35.5 u = 2**-88.5, as |p| < 2**-35.5: 4.1 in p (r**3, 1/6, one sum, one product;
    the later terms are 2**-13 smaller), 1 in e2 + p, 1 in its product with T1, 4 x 1.1 in the sums of the small parts,
    2 for T2 p left out; the series' next term, r**8/8!, is below 2**-103. Together 12.5, below 2**-84.8.
    """
    i = np.rint(x * EXP_STEPS)
    r = x - i / EXP_STEPS
    high, low = exp_table()[:, i.astype(np.int64) - EXP_STEPS * EXP_ENDS[0]]
    square = r * r
    p = (square * r) * (1 / 6 + r * (1 / 24 + r * (1 / 120 + r * (1 / 720 + r / 5040))))
    half = 0.5 * square
    e1 = r + half
    e2 = (half - (e1 - r)) + p  # |r| > r**2/2, so the bracket is the exact error
    product, rest = two_product(high, e1)
    value = high + product
    return value, ((high - value) + product) + (rest + (low + (high * e2 + low * e1)))


def log_in_two(x: Array) -> tuple[Array, Array]:
    """ln x as high + low, for positive finite float32 numbers, in float64.

    x = m 2**k exactly, 0.75 <= m < 1.5, c the table's entry next to m, and ln x = k ln 2 + ln c + 2 s + p with
    s = (m - c) / (m + c), |s| < 2**-15.5, and p = 2 (s**3/3 + s**5/5), so |p| < 2**-32.6 |2 s|; the next term is below
    2**-95 |2 s|. The division's rest is taken along, so s is right to 2**-104 of it. p has 8.1 u of its size, u =
    2**-53: three of s rounded, five roundings. The large parts are summed with their exact errors. Never is a part more
    than 2.5 times the result: with k = 0 and c = 1 that is 2 s + p, with other c at least |2 s| / 1.0001 and 0.49 ln c,
    with other k at least 0.28. The sums of the small parts lose 1.1 u of |p| at the last one; before it, as in k ln 2
    with 40 + 53 bits, only other k lose as much as 2**-88. Together below 9.2 u 2**-32.6 + 2**-88, below 2**-82.3.
    """
    bits = x.view(np.int64)
    k = ((bits + (1 << 51)) >> 52) - 1023
    m = (bits - (k << 52)).view(np.float64)
    (table, (ln2_high, ln2_low)), i = log_table(), np.rint(m * LOG_STEPS)
    high, low = table[:, i.astype(np.int64) - 3 * LOG_STEPS // 4]
    c = i / LOG_STEPS
    numerator, denominator = m - c, m + c
    s = numerator / denominator
    product, rest = two_product(s, denominator)
    s_low = ((numerator - product) - rest) / denominator
    square = s * s
    p = (2 * s) * (square * (1 / 3 + square * (1 / 5)))
    first, error = two_sum(k * ln2_high, high)
    value, error2 = two_sum(first, 2 * s)
    return value, p + (error + error2 + low + k * ln2_low + 2 * s_low)


def midpoints(size: Array, kind: str) -> tuple[Array, Array]:
    """Halfway from numbers >= 0 of a format down and up to their neighbours, in float64; infinity counts as 2**end.

    Float64 numbers in order have their bits in order, so half a step of the format is half a step in the bits; only
    where the format is subnormal is the step the same for all. Below 0 lies minus the smallest number.
    """
    digits, smallest, end = FORMATS[kind]
    value = np.where(np.isinf(size), 2.0**end, size.astype(np.float64))
    half, bits, normal = 1 << (52 - digits), value.view(np.int64), 2.0 ** (smallest + digits - 1)
    below = np.where(value <= normal, value - 2.0 ** (smallest - 1), (bits - half).view(np.float64))
    above = np.where(value < normal, value + 2.0 ** (smallest - 1), (bits + half).view(np.float64))
    return below, np.where(np.isinf(size), np.inf, above)


def patterns(name: str, first: int, count: int) -> Array:
    """Inputs of a task: so many neighbouring bit patterns."""
    bits = np.arange(first, first + count, dtype=np.int64)
    return bits.astype(np.uint16).view(np.float16) if name in SHORT else bits.astype(np.uint32).view(np.float32)


def inputs(name: str) -> int:
    """How many inputs a task has."""
    return 2**16 if name in SHORT else 2**32


def torchs_cast(x: Array, kind: str) -> Array:
    """PyTorch's own cast; bfloat16 as float32 with the same bits."""
    import torch  # here, for the other tasks do without

    found = torch.from_numpy(x).to(getattr(torch, kind))
    if kind != "bfloat16":
        return np.asarray(found.numpy())
    return (found.view(torch.int16).numpy().astype(np.uint32) << 16).view(np.float32)


WITNESSES: dict[str, Callable[[Array, str], Array]] = {"rounding.cast": rounding.cast, "torch": torchs_cast}


def compute(name: str, x: Array) -> Array:
    """What is judged."""
    if name in CASTS:
        return number_line.cast_to_dtype(x, CASTS[name])
    return rounding.round_to(x, name) if name in FORMATS else getattr(arithmetic, name)(x)


def known(name: str, x: Array) -> tuple[Array, Array]:
    """Where the answer is known beforehand, and the answer.

    For |x| < 2**-26, |e**x - 1| is below 2**-25, half the distance from 1 to the next number; for EXP_ENDS, see there.
    Of a cast nothing is: the witnesses answer for infinities and NaN too.
    """
    if name in CASTS:
        return np.zeros(x.shape, bool), np.zeros(x.shape, STORED_IN[CASTS[name]])
    usual = (x > 0) & (x < np.inf)
    if name == "exp":
        usual = (np.abs(x) >= 2.0**-26) & (x > EXP_ENDS[0]) & (x < EXP_ENDS[1])
        answer = np.where(np.isnan(x), x, np.where(x >= EXP_ENDS[1], np.inf, np.where(x <= EXP_ENDS[0], 0.0, 1.0)))
    elif name == "log":
        usual &= x != 1
        answer = np.where(x == 1, 0.0, np.where(x == 0, -np.inf, np.where(x < 0, np.nan, x)))
    elif name == "sqrt":
        answer = np.where(x < 0, np.nan, x)
    else:
        usual, answer = np.isfinite(x), np.where(np.isnan(x), np.nan, np.copysign(np.inf, x))
    return ~usual, answer.astype(STORED_IN.get(name, np.float32))


def judge(name: str, x: Array, found: Array) -> tuple[Array, Array]:
    """Elsewhere, which results are right, and which are left to mpmath."""
    if name in CASTS:
        agreed = [same(found, witness(x, CASTS[name])) for witness in WITNESSES.values()]
        return np.logical_and.reduce(agreed), np.zeros(x.shape, bool)
    size, sign, wide = np.abs(found), np.copysign(1.0, found), x.astype(np.float64)
    below, above = midpoints(size, name if name in FORMATS else "float32")
    if name == "sqrt":
        return (below * below < wide) & (wide < above * above) & (found > 0), np.zeros(x.shape, bool)
    if name in BOUNDS:
        high, low = (sign * part for part in (exp_in_two if name == "exp" else log_in_two)(wide))
        slack = np.minimum((high - below) + low, (above - high) - low)  # high - below is exact where small (Sterbenz)
        return (slack > BOUNDS[name] * high) & (high > 0), np.abs(slack) <= BOUNDS[name] * high
    wide *= sign
    bits = found.view(np.uint16) if name == "float16" else found.view(np.uint32) >> 16
    right = ((below < wide) & (wide < above)) | (((wide == below) | (wide == above)) & (bits & 1 == 0))
    if name == "bfloat16":
        right &= found.view(np.uint32) & 0xFFFF == 0  # else it is no bfloat16 number
    return right & (np.signbit(found) == np.signbit(x)), np.zeros(x.shape, bool)


def expected(name: str, x: Array) -> dict[str, Array]:
    """The right result for one input in an array of one, slowly; of a cast what each witness says, by its name."""
    if name in CASTS:
        return {f" by {by}": witness(x, CASTS[name]) for by, witness in WITNESSES.items()}
    settled, answer = known(name, x)
    if not settled[0] and name in FORMATS:
        answer = np.copysign(np.array([nearest(Fraction(float(x[0])), name)]), np.copysign(1, x).astype(answer.dtype))
    elif not settled[0]:
        answer = np.array([exact_function(name, x[0])])
    return {"": answer}


def same(a: Array, b: Array) -> Array:
    """Equal bits; any NaN equals any NaN."""
    return (a.view(f"u{a.itemsize}") == b.view(f"u{b.itemsize}")) | (np.isnan(a) & np.isnan(b))


def shown(value: Any) -> str:
    bits = int(value.view(f"u{value.itemsize}"))
    return "nan" if np.isnan(value) else f"{value!s} ({bits:#0{2 + 2 * value.itemsize}x})"


class Outcome(NamedTuple):
    task: str
    chunk: int
    inputs: int
    undecided: int
    wrong: int
    seconds: float
    examples: list[str]


@np.errstate(all="ignore")
def check(name: str, first: int, count: int) -> Outcome:
    """Judge a task's results for `count` bit patterns from `first` on."""
    began, undecided, wrong, examples = perf_counter(), 0, 0, []
    for start in range(first, first + count, BLOCK):
        x = patterns(name, start, min(BLOCK, first + count - start))
        found = compute(name, x)
        settled, answer = known(name, x)
        if found.dtype != answer.dtype:
            raise TypeError(f"{name}: expected {answer.dtype}, found {found.dtype}")
        right, open_ = same(found, answer), np.zeros(x.shape, bool)
        if not settled.all():
            rest = ~settled if settled.any() else slice(None)
            right[rest], open_[rest] = judge(name, x[rest], found[rest])
        undecided += int(np.count_nonzero(open_))
        for i in np.flatnonzero(~right):
            if not open_[i] and len(examples) == EXAMPLES:
                wrong += 1
                continue
            answers = expected(name, x[i : i + 1]).items()
            if apart := [f"{shown(y[0])}{by}" for by, y in answers if not same(found[i : i + 1], y)[0]]:
                wrong += 1
                examples.append(f"{name} of {shown(x[i])}: expected {' and '.join(apart)}, found {shown(found[i])}")
    return Outcome(name, first // CHUNK, count, undecided, wrong, perf_counter() - began, examples[:EXAMPLES])


def check_chunk(work: tuple[str, int]) -> Outcome:
    return check(work[0], work[1] * CHUNK, min(CHUNK, inputs(work[0])))


class Definition(NamedTuple):
    text: str  # its lines, without comments and docstrings
    uses: set[tuple[str, str]]  # (module, name) of all that it may refer to


def digest(paths: Iterable[Path], roots: Iterable[str]) -> str:
    """SHA-256 of the definitions that these top-level names rest on, directly or through others of the files.

    Folders, imports, docstrings, comments, type aliases and definitions that nothing here uses do not count.
    """
    defined = {
        (path.stem, name): definition
        for path in paths
        for name, definition in definitions(path.read_text(encoding="utf-8"), path.stem).items()
    }
    used, found = set[tuple[str, str]](), [place for place in defined if place[1] in set(roots)]
    while found:
        place = found.pop()
        if place not in used and place in defined:
            used.add(place)
            found += defined[place].uses
    texts = sorted((name, defined[module, name].text) for module, name in used)
    return hashlib.sha256("\0".join(text for _, text in texts).encode()).hexdigest()


def definitions(source: str, module: str) -> dict[str, Definition]:
    """Each top-level function, class and constant of a module, by name; type aliases are left out."""
    tree = ast.parse(source)
    imported = {
        alias.asname or alias.name: (str(node.module).rpartition(".")[2], alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    comments = {
        token.start[0]: token.start[1]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = [line[: comments.get(number)].rstrip() for number, line in enumerate(source.splitlines(), 1)]
    for node in ast.walk(tree):
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            text = node.body[0]
            lines[text.lineno - 1 : text.end_lineno] = [""] * ((text.end_lineno or 0) - text.lineno + 1)
    found = {}
    for node in tree.body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)):
            names = [node.name]
        else:
            targets = [getattr(node, "target", None), *getattr(node, "targets", [])]
            names = [n.id for target in targets if target for n in ast.walk(target) if isinstance(n, ast.Name)]
        first = min([node.lineno, *(decorator.lineno for decorator in getattr(node, "decorator_list", []))])
        inside = list(ast.walk(node))
        uses = {imported.get(n.id, (module, n.id)) for n in inside if isinstance(n, ast.Name)}
        uses |= {
            (imported[n.value.id][1], n.attr)
            for n in inside
            if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in imported
        }
        definition = Definition("\n".join(filter(None, lines[first - 1 : node.end_lineno])), uses)
        found |= {name: definition for name in names if name not in ALIASES}
    return found


def source(name: str) -> str:
    """SHA-256 of the code and tables that a task's outcome rests on."""
    if name not in CASTS:
        return digest(SOURCES, ["round_to" if name in FORMATS else name])
    (cast,) = definitions(inspect.getsource(number_line.cast_to_dtype), "number_line").values()
    tables = map(repr, (number_line.CASTS, number_line.FORMATS, number_line.STORAGE))
    return hashlib.sha256("\0".join([cast.text, *tables]).encode()).hexdigest()


def read_state(path: Path, stamps: dict[str, str]) -> dict[tuple[str, int], Outcome]:
    """The finished chunks of these sources; a line cut short by an interruption is passed over."""
    done = {}
    for line in path.read_text().splitlines() if path.exists() else []:
        with contextlib.suppress(json.JSONDecodeError):
            entry = json.loads(line)
            stamp, outcome = entry.pop("stamp"), Outcome(**entry)
            if stamp == stamps.get(outcome.task):
                done[outcome.task, outcome.chunk] = outcome
    return done


def merged(path: Path, run: dict[str, Any]) -> list[dict[str, Any]]:
    """The runs of a record, whose tasks the new run takes over where it did them again."""
    runs = json.loads(path.read_text())["runs"] if path.exists() else []
    for old in runs:
        old["tasks"] = {task: total for task, total in old["tasks"].items() if task not in run["tasks"]}
    return [*(old for old in runs if old["tasks"]), run]


def processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def main(words: Sequence[str] | None = None, *, chunks: Iterable[int] = CHUNKS) -> int:
    """Run the command; 0 when every result is right, else 1 at the first chunk with a wrong one."""
    parser = argparse.ArgumentParser("python -m parity_tests.arithmetic.exhaustive", description=__doc__.split("\n")[0])
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"of {', '.join(TASKS)}; all by default")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes; by default one a core")
    parser.add_argument("--state", type=Path, default=HERE / "exhaustive.state", help="file of finished chunks")
    parser.add_argument("--record", type=Path, help="write the outcome to this file")
    options = parser.parse_args(words)
    tasks = list(dict.fromkeys(options.tasks)) or list(TASKS)
    if unknown := sorted(set(tasks) - set(TASKS)):
        parser.error(f"TASK: expected {', '.join(TASKS)}, found {', '.join(map(repr, unknown))}")
    if options.jobs < 1:
        parser.error(f"--jobs: expected a whole number >= 1, found {options.jobs}")
    if find_spec("torch") is None and not CASTS.keys().isdisjoint(tasks):
        parser.error(f"TASK: {', '.join(CASTS)} need PyTorch, which is missing; name the others")
    began, sources = perf_counter(), {task: source(task) for task in tasks}
    stamps = {
        task: f"{sources[task]} {hashlib.sha256(Path(__file__).read_bytes()).hexdigest()} numpy {np.__version__}"
        for task in tasks
    }
    done = read_state(options.state, stamps)
    mixed = sorted(chunks, key=lambda c: c * 389 % 1024)  # so that the time left can be told
    wanted = [(task, chunk) for chunk in mixed for task in tasks if chunk * CHUNK < inputs(task)]
    todo = [work for work in wanted if work not in done]
    resumed, outcome = len(wanted) - len(todo), None
    with contextlib.ExitStack() as stack:
        state = stack.enter_context(options.state.open("a"))
        state.write("\n")  # the last line may have been cut short
        results: Iterable[Outcome] = map(check_chunk, todo)
        if options.jobs > 1 and todo:
            pool = stack.enter_context(multiprocessing.get_context("spawn").Pool(options.jobs))
            results = pool.imap_unordered(check_chunk, todo)
        for finished, outcome in enumerate(results, 1):
            done[outcome.task, outcome.chunk] = outcome
            if outcome.wrong:
                break
            state.write(json.dumps(outcome._asdict() | {"stamp": stamps[outcome.task]}) + "\n")
            state.flush()
            if finished % 64 == 0 or finished == len(todo):
                left = (perf_counter() - began) / finished * (len(todo) - finished)
                progress = f"{resumed + finished} of {len(wanted)} chunks, about {left / 60:.1f} minutes left"
                sys.stderr.write(f"\r{progress:<60}" + ("\n" if finished == len(todo) else ""))
                sys.stderr.flush()
    record: dict[str, Any] = {"tasks": {}}
    for task in tasks:
        outcomes = [done[work] for work in wanted if work[0] == task and work in done]
        total = {key: sum(getattr(o, key) for o in outcomes) for key in ("inputs", "undecided", "wrong", "seconds")}
        total["seconds"] = round(total["seconds"], 1)
        record["tasks"][task] = total | {"source_sha256": sources[task]}
        summary = "{}: {inputs} inputs, {undecided} undecided, {wrong} wrong, {seconds} s"
        sys.stdout.write(summary.format(task, **total) + "\n")
    if outcome is not None and outcome.wrong:
        sys.stdout.write("\n".join([f"{outcome.wrong} wrong in one chunk; its first:", *outcome.examples]) + "\n")
        return 1
    if options.record:
        record |= {"wall_seconds": round(perf_counter() - began, 1), "resumed_chunks": resumed, "jobs": options.jobs}
        record |= {"date": date.today().isoformat(), "numpy": np.__version__, "python": platform.python_version()}
        record |= {"processor": processor(), "cores": os.cpu_count()}
        if not CASTS.keys().isdisjoint(tasks):
            record["torch"] = version("torch")
        options.record.write_text(json.dumps({"runs": merged(options.record, record)}, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
