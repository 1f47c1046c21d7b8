"""Where gradients fall among the numbers of 16 bits, before and after the loss is scaled: a table and a number line.

The gradients are those of a float32 run on the digits, every parameter's at every step, counted over powers of two;
what the formats would lose of them is found by casting them.
"""

import dataclasses
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.arithmetic.fixedpoint import FORMATS
from numpy_ref.checks import whole_number
from numpy_ref.cli.demo import CONFIG
from numpy_ref.config import ABOVE_ZERO, FLOAT32_END, RunConfig
from numpy_ref.console import aligned
from numpy_ref.data import Dataset, load_data
from numpy_ref.precision import cast_to_dtype, detect_overflow, detect_underflow
from numpy_ref.train import init_run, train_n_steps

Array = np.ndarray[Any, np.dtype[Any]]

BAR = 28  # characters of the longest bar


class Limits(NamedTuple):
    """What a format holds."""

    format: str
    bits: int
    significand: int  # bits, the hidden one included
    smallest_subnormal: float
    smallest_normal: float
    largest: float
    epsilon: float  # from 1 to the next number


class Shares(NamedTuple):
    """What becomes of scaled gradients that are not 0 in a format, each a share of them."""

    format: str
    scale: float
    lost: float  # cast to 0
    subnormal: float  # kept with fewer bits
    overflow: float


class Range(NamedTuple):
    """All that the command shows."""

    formats: list[Limits]
    steps: int
    scale: float
    gradients: int  # elements that are not 0
    zeros: int
    counts: dict[int, int]  # of gradients from 2**exponent to below 2**(exponent + 1) in size
    scaled_counts: dict[int, int]
    shares: list[Shares]  # as they are, scaled, and scaled by best_scale
    best_scale: float  # the largest power of two at which nothing overflows in float16

    def as_json(self) -> dict[str, Any]:
        """Plain values, by name."""
        named = {"formats": [f._asdict() for f in self.formats], "shares": [s._asdict() for s in self.shares]}
        return self._asdict() | named


def run_range(*, steps: int, scale: float) -> Range:
    """Train on the digits and look at the gradients.

    Args:
        steps: updates, >= 1.
        scale: of the loss, > 0; rounded to float32.

    Raises:
        ValueError: they are not.
    """
    steps = whole_number("run_range: steps", steps, 1, 2**31)
    if not ABOVE_ZERO < scale < FLOAT32_END:
        raise ValueError(f"run_range: scale: expected a number > 0, finite in float32, found {scale!r}.")
    gradients = list(gradients_of(CONFIG, load_data("digits"), steps))
    return range_of(gradients, float(np.float32(scale)))


def gradients_of(config: RunConfig, data: Dataset, steps: int) -> Iterator[Array]:
    """The elements of all gradients of each step, of a run by Adam without momentum.

    With beta1 = 0 the first moment is 0 m + 1 g, the gradient itself.
    """
    run = init_run(dataclasses.replace(config, optimizer="adam", beta1=0.0, weight_decay=0.0), data)
    for _ in range(steps):
        run = train_n_steps(run, data, 1)
        adam: Any = run.state.optimizer
        yield np.concatenate([m.ravel() for m in adam.m.values()])


def range_of(gradients: Sequence[Array], scale: float) -> Range:
    """Count and cast gradients.

    Args:
        gradients: float32, finite, an array a step.
        scale: a float32 number > 0.
    """
    nonzero = [g[g != 0].astype(np.float64) for g in gradients]  # which holds their products with a scale exactly
    best = _best_scale(max((float(np.abs(g).max(initial=0)) for g in nonzero), default=0.0))
    scales = list(dict.fromkeys([1.0, scale, best]))
    count = sum(g.size for g in nonzero)
    return Range(
        formats=[limits(name) for name in FORMATS],
        steps=len(gradients),
        scale=scale,
        gradients=count,
        zeros=sum(g.size for g in gradients) - count,
        counts=_histogram(nonzero, 1.0),
        scaled_counts=_histogram(nonzero, scale),
        shares=[_shares(nonzero, name, s) for name in ("float16", "bfloat16") for s in scales],
        best_scale=best,
    )


def limits(name: str) -> Limits:
    """The limits of a format, from its definition.

    Example:
        >>> limits("float16").largest, limits("bfloat16").epsilon
        (65504.0, 0.0078125)
    """
    precision, smallest, largest = FORMATS[name]
    exponents = largest - (smallest + precision - 1)  # of normal numbers; two more are kept for others
    return Limits(
        name,
        precision + (exponents + 2).bit_length() - 1,  # the sign takes the hidden bit's place
        precision,
        math.ldexp(1, smallest),
        math.ldexp(1, smallest + precision - 1),
        math.ldexp(2**precision - 1, largest - precision),
        math.ldexp(1, 1 - precision),
    )


def _best_scale(top: float) -> float:
    """The largest power of two whose product with a number is finite in float16."""
    power = FORMATS["float16"].largest - math.frexp(top)[1]  # the product is below 2**16, and may yet round to it
    overflow = detect_overflow(cast_to_dtype(np.array([math.ldexp(top, power)]), "float16"))
    return math.ldexp(1, power - int(overflow[0]))


def _histogram(nonzero: Sequence[Array], scale: float) -> dict[int, int]:
    """How many scaled numbers lie in each binade, in ascending order of the exponents."""
    counts: Counter[int] = Counter()
    for g in nonzero:
        exponents, found = np.unique(np.frexp(g * scale)[1] - 1, return_counts=True)
        counts.update(dict(zip(exponents.tolist(), found.tolist(), strict=True)))
    return dict(sorted(counts.items()))


def _shares(nonzero: Sequence[Array], name: str, scale: float) -> Shares:
    """What a cast of the scaled numbers loses."""
    found = np.zeros(4, np.int64)
    for g in nonzero:
        scaled = g * scale
        casted = cast_to_dtype(scaled, name)
        lost, small = detect_underflow(scaled, casted), np.abs(casted) < limits(name).smallest_normal
        masks = (lost, small & ~lost, detect_overflow(casted), np.ones(g.shape, bool))
        found += [np.count_nonzero(mask) for mask in masks]
    lost, subnormal, overflow = (found[:3] / max(found[3], 1)).tolist()
    return Shares(name, scale, lost, subnormal, overflow)


def lines(result: Range) -> list[str]:
    """The table, the number line and the shares as text, at most 100 characters wide."""
    head = ("format", "bits", "significand", "smallest subnormal", "smallest normal", "largest", "epsilon")
    formats = [
        (f.format, str(f.bits), str(f.significand), *(_shown(x) for x in f[3:5]), f"{f.largest:.6g}", _shown(f.epsilon))
        for f in result.formats
    ]
    shares = [
        (s.format, _shown(s.scale), *(f"{100 * share:.3g} %" for share in (s.lost, s.subnormal, s.overflow)))
        for s in result.shares
    ]
    precision, smallest, end = FORMATS["float16"]  # halfway beyond its ends, ties to even make 0 and infinity
    lost, infinite = math.ldexp(1, smallest - 1), math.ldexp(2 ** (precision + 1) - 1, end - precision - 1)
    return [
        *aligned([head, *formats]),
        "",
        f"{result.gradients:,} gradients, and {result.zeros:,} that are 0: digits, Adam without momentum, "
        f"{result.steps} updates;",
        f"float16 makes 0 of sizes up to {_shown(lost)}, and infinity of {infinite:.6g} and more",
        "",
        *_number_line(result),
        "",
        *aligned([("cast to", "scale", "lost", "subnormal", "overflow"), *shares]),
        "",
        f"the largest power of two at which nothing overflows in float16: {_shown(result.best_scale)}",
    ]


def _number_line(result: Range) -> list[str]:
    """A line for each two binades, or one below a limit of float16 that would part them, from the largest down."""
    sides = (result.counts, result.scaled_counts)
    groups = _groups(sorted({exponent for counts in sides for exponent in counts}))
    heights = [[sum(n for e, n in counts.items() if start <= e < end) for start, end, _ in groups] for counts in sides]
    tops = [max(height) for height in heights]
    drawn = [f"{'from':>6}  {'float16':<9} {'gradients':>9} {'':<{BAR}} scaled by {_shown(result.scale)}"]
    for (start, _, region), *pair in reversed(list(zip(groups, *heights, strict=True))):
        bars = [f"{n:>9} {'#' * math.ceil(n * BAR / max(top, 1)):<{BAR}}" for n, top in zip(pair, tops, strict=True)]
        drawn.append(f"{f'2^{start}':>6}  {region:<9} {bars[0]} {bars[1]}".rstrip())
    return drawn


def _groups(exponents: Sequence[int]) -> list[tuple[int, int, str]]:
    """Ranges of exponents, in ascending order, and what float16 does with numbers in them."""
    precision, smallest, end = FORMATS["float16"]
    kept, normal = smallest - 1, smallest + precision - 1  # 2**kept itself is a tie, and lost
    low, high = min(exponents, default=kept), max(exponents, default=end)
    regions = {
        "lost": reversed(range(kept - 2, min(low, kept - 1) - 2, -2)),
        "subnormal": range(kept, normal, 2),
        "normal": range(normal, end, 2),
        "overflow": range(end, max(high, end) + 1, 2),
    }
    starts = [(start, region) for region, places in regions.items() for start in places]
    ends = [start for start, _ in starts[1:]] + [starts[-1][0] + 2]
    return [(start, stop, region) for (start, region), stop in zip(starts, ends, strict=True)]


def _shown(x: float) -> str:
    """A number, as a power of two where it is one."""
    fraction, exponent = math.frexp(x)
    return f"2^{exponent - 1}" if fraction == 0.5 and x != 1 else f"{x:.6g}"
