"""The exercise `representable_range`: casts to formats of 16 bits, and masks of what they cannot hold.

Long, for every wrong way to round is written out, so that a law can say which of them a cast took.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, expect_same_bits, law
from numpy_ref.proof.equivalence import same_bits

# A format: bits of the significand, exponent of the smallest number, the largest number.
FORMATS = {
    "float16": (11, -24, 65504.0),
    "bfloat16": (8, -133, 255 * 2.0**120),
    "float32": (24, -149, (2**24 - 1) * 2.0**104),
}
STORED: dict[str, Any] = {"float16": np.float16, "bfloat16": np.float32, "float32": np.float32}
SHORT = ("float16", "bfloat16")

Array = np.ndarray[Any, Any]
Rule = Callable[[Array], Array]  # from numbers of last places to whole numbers of them


def nearest(x: Any, dtype: str, rule: Rule = np.rint) -> Array:
    """The numbers of a format by a rule of rounding; in float64, where all but the rule is exact."""
    precision, smallest, largest = FORMATS[dtype]
    wide = np.asarray(x, np.float64)
    place = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - precision, smallest))
    rounded = rule(wide / place) * place
    return np.where(np.abs(rounded) > largest, np.copysign(np.inf, wide), rounded).astype(STORED[dtype])


def away(q: Array) -> Array:
    """Whole numbers, with ties away from zero."""
    return np.copysign(np.floor(np.abs(q) + 0.5), q)


def toward(q: Array) -> Array:
    """Whole numbers, with ties toward zero."""
    return np.copysign(np.ceil(np.abs(q) - 0.5), q)


def up(q: Array) -> Array:
    """Whole numbers, with ties up."""
    return np.copysign(np.floor(q + 0.5), q)


def faults_of_casts(x: Array, dtype: str) -> Iterator[tuple[str, Array]]:
    """What people write for a cast, and what comes of it."""
    precision, smallest, largest = FORMATS[dtype]
    right, kind = nearest(x, dtype), STORED[dtype]
    size, end = np.abs(x.astype(np.float64)), largest + 2.0 ** (np.frexp(largest)[1] - precision - 1)
    yield "nothing was rounded", x.astype(kind)
    yield (
        "the tie at the end went to the largest number: infinity is its even neighbour",
        np.where(size == end, np.copysign(kind(largest), right), right),
    )
    yield "digits beyond the format were cut off: the nearest number is asked for", nearest(x, dtype, np.trunc)
    yield "ties were rounded away from zero: they go to the even neighbour", nearest(x, dtype, away)
    yield "ties were rounded toward zero: they go to the even neighbour", nearest(x, dtype, toward)
    yield "ties were rounded up: they go to the even neighbour", nearest(x, dtype, up)
    yield "numbers were rounded down", nearest(x, dtype, np.floor)
    yield "numbers were rounded up", nearest(x, dtype, np.ceil)
    for other in SHORT:
        text = f"they went through {other}, which holds other numbers"
        yield text, nearest(x, other).astype(kind)
        yield text, nearest(nearest(x, other), dtype)
    for tiny in (np.abs(right), size):
        flushed = tiny < 2.0 ** (smallest + precision - 1)
        yield "subnormal numbers were made zero: the format holds them", np.where(flushed, right * kind(0), right)
        yield "subnormal numbers were made zero, without a sign", np.where(flushed, kind(0), right)
    yield "the sign of zero was lost", right + kind(0)
    infinite = np.copysign(kind(np.inf), right)
    text = "all beyond the largest number became infinite: up to half a place further it is the nearest"
    yield text, np.where(size > largest, infinite, right)
    yield text, np.where(size >= largest, infinite, right)
    finite = np.clip(right, -kind(largest), kind(largest))
    yield "infinity became the largest number", np.where(np.isinf(x), finite, right)
    yield "numbers were clipped to the largest: what rounds beyond it is infinite", finite
    yield "the sign of infinity was lost", np.where(np.isinf(right), kind(np.inf), right)


def cast_cause(x: Array, dtype: str, found: Array) -> str:
    """Why a cast may have given other numbers."""
    if np.any(np.isnan(x) & ~np.isnan(found)):
        return "NaN became something else: rounding its bits can carry out of them, so put NaN aside before"
    return next((text for text, fault in faults_of_casts(x, dtype) if same_bits(fault, found)), "")


def cast(solution: Any, arrays: Arrays, x: Array, dtype: str) -> Array:
    """The solution's cast, from NumPy to NumPy."""
    value = solution.cast_to_dtype(arrays.given(x), dtype)
    found = arrays.found("cast_to_dtype", value)
    expect(isinstance(found, np.ndarray), f"cast_to_dtype must return an array; it returned {described(found)}")
    wanted = f"torch.{dtype}" if arrays.framework == "torch" else str(np.dtype(STORED[dtype]))
    what = f"cast_to_dtype to {dtype!r} returned another type"
    if str(value.dtype) != wanted:
        raise Loss(what, where="dtype", expected=wanted, found=str(value.dtype), cause="the type says what is stored")
    assert isinstance(found, np.ndarray)
    return found


def expect_cast(solution: Any, arrays: Arrays, x: Array, dtype: str) -> None:
    """Hold a cast to the nearest numbers; the loss tells which number became what."""
    found, expected = cast(solution, arrays, x, dtype), nearest(x, dtype)
    if same_bits(expected, found):
        return
    expect_same_bits("cast_to_dtype returned another shape", np.zeros(x.shape), np.zeros(found.shape))
    at = next(i for i in range(x.size) if not same_bits(expected.flat[i], found.flat[i]))
    raise Loss(f"a cast to {dtype} is not the nearest number", where=f"x = {x.flat[at].item()!r}",
               expected=expected.flat[at].item(), found=found.flat[at].item(),
               cause=cast_cause(x, dtype, found))  # fmt: skip


def signed(values: list[Any]) -> Array:
    """float32 numbers, each with both signs."""
    x = np.array(values, np.float32)
    return np.concatenate([x, -x])


@law(
    "Between which two neighbours does 1.0006 lie in float16? Which is nearer? And 1 + 2**-11, midway between two?",
    "Round to the nearest, not toward zero, and a tie to the neighbour whose last bit is 0, so that errors cancel.",
    "A library's own cast does this. By hand, for bfloat16: bits + 0x7FFF + (bit 16 of bits), then clear the low 16.",
)
def numbers_go_to_the_nearest(solution: Any, arrays: Arrays) -> None:
    """A number of ordinary size becomes the nearest that the format holds, and a tie the even one of its neighbours."""
    rng = np.random.default_rng(1)
    for dtype in SHORT:
        precision = FORMATS[dtype][0]
        steps = [k + d for k in (0, 1, 2, 3, 62, 127) for d in (0.5, 0.0, 0.25, 0.75, 0.5 - 2**-10, 0.5 + 2**-10)]
        near = [(1 + step * 2.0 ** (1 - precision)) * 2.0**e for step in steps for e in (0, -9, 14)]
        drawn = rng.uniform(1, 2, 200) * 2.0 ** rng.integers(-14, 14, 200)
        expect_cast(solution, arrays, signed([*near, *drawn]), dtype)


@law(
    "What is the smallest number of float16 above zero? It is not the 6.1e-5 that finfo calls tiny.",
    "Below its smallest normal number a format goes on in even steps. Half of the smallest step is a tie: to zero.",
    "Use no threshold: round to multiples of 2**-24 in float16, of 2**-133 in bfloat16, and keep the sign of x.",
)
def small_numbers_are_kept_or_become_zero(solution: Any, arrays: Arrays) -> None:
    """Small numbers become the nearest subnormal number or a zero of their sign; half of the smallest becomes zero."""
    rng = np.random.default_rng(2)
    for dtype in SHORT:
        precision, smallest, _ = FORMATS[dtype]
        step, last = 2.0**smallest, 2 ** (precision - 1)
        above_half = np.nextafter(np.float32(step / 2), np.float32(1))
        steps = [0.5, 0, 0.25, 0.75, 1, 1.5, 2.5, 3.5, last - 1.5, last - 1, last - 0.5, last]
        drawn = rng.uniform(0, last, 100) * step
        expect_cast(solution, arrays, signed([*(k * step for k in steps), above_half, *drawn, 2.0**-149]), dtype)


@law(
    "What are 65519 and 65520 in float16? The largest number is 65504; the next would be 65536.",
    "What is nearer to the largest number than to the next place is the largest. From the tie on it is infinite.",
    "Compare with nothing before rounding. float16 is infinite from 65520 on, bfloat16 from 511 * 2.0**119 on.",
)
def large_numbers_become_infinite_from_the_tie_on(solution: Any, arrays: Arrays) -> None:
    """What rounds beyond the largest number is infinite with its sign, from the tie on and not before."""
    for dtype in SHORT:
        precision, _, largest = FORMATS[dtype]
        tie = np.float32(largest + 2.0 ** (np.frexp(largest)[1] - precision - 1))
        before, after = (np.nextafter(tie, np.float32(to)) for to in (0, np.inf))
        values = [
            largest,
            before,
            tie,
            after,
            (largest + float(tie)) / 2,
            largest / 1.3,
            largest / 2,
            7e4,
            1e30,
            3.4e38,
        ]
        expect_cast(solution, arrays, signed(values), dtype)


@law(
    "What are infinity, minus infinity and NaN after your cast?",
    "The bits of infinity have nothing to round. Those of NaN may have, and rounding up may carry out of them.",
    "Where x is NaN, return NaN, whatever the rounding of its bits gives; every other number takes the usual way.",
)
def infinity_and_nan_stay(solution: Any, arrays: Arrays) -> None:
    """Infinity stays infinity with its sign, and NaN, whatever its bits, stays NaN."""
    nan = np.array([0x7FC00000, 0x7F800001, 0x7FFFFFFF, 0xFFFFFFFF, 0xFF80FFFF, 0x7F808000], np.uint32)
    for dtype in FORMATS:
        expect_cast(solution, arrays, np.concatenate([signed([np.inf, 1.0]), nan.view(np.float32)]), dtype)


@law(
    "Print dtype and shape of what comes back, for each format, for x of float16, float32 and float64.",
    "The result has the format's type, and what float32 holds is not changed by a cast to float32.",
    'For "float16" and "float32" it is the library\'s own cast to that type. Work on whole arrays: so shapes stay.',
)
def types_and_shapes_are_those_asked_for(solution: Any, arrays: Arrays) -> None:
    """The result has the type of the format and the shape of x, whatever the type of x."""
    for dtype in FORMATS:
        for kind in (np.float32, np.float16, np.float64):
            x = np.array(
                [[0.1, -2.5, 1 + 2**-9], [3e-6, -0.0, 1000.7]], np.float16 if kind == np.float16 else np.float32
            )
            for shaped in (x, x.reshape(3, 2, 1), x[0, 0], x[:0]):
                expect_cast(solution, arrays, np.array(shaped, kind), dtype)
    expect_cast(solution, arrays, signed([0.1, 1e-45, 1e-40, 3.4028235e38, 16777217.0]), "float32")


@law(
    "Does x change? And does x change later, when the result does?",
    "A cast to the type that x has already may return x itself, or a view of it.",
    "Work on a copy, and ask for one where there is nothing to convert: copy(), clone(), or a cast with copy=True.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes what it is given, and what comes back shares nothing with it."""
    x = np.array([1e-8, -1e-8, 1.5, 70000.0, np.nan, -np.inf, 0.0, 1 + 2**-9], np.float32)
    for dtype in FORMATS:
        given, casted = arrays.given(x), arrays.given(nearest(x, dtype))
        calls: list[tuple[str, Any]] = [
            ("cast_to_dtype", (given, dtype)), ("detect_underflow", (given, casted)), ("detect_overflow", (casted,)),
        ]  # fmt: skip
        for function, arguments in calls:
            value = getattr(solution, function)(*arguments)
            for text, cause in (("changed what it was given", "it works in place"),
                                ("returned what it was given", "what comes back is no new array")):  # fmt: skip
                now = {"x": arrays.found(function, given), "casted": arrays.found(function, casted)}
                expect_same_bits(f"{function} {text}", {"x": x, "casted": nearest(x, dtype)}, now, cause=cause)
                if arrays.found(function, value).dtype.kind == "f":
                    arrays.overwrite(value)


def expect_mask(
    arrays: Arrays, function: str, value: Any, wanted: Array, x: Array, faults: list[tuple[str, Any]]
) -> None:
    """Hold a mask to what it must flag; the loss tells of the first number where it differs."""
    found = arrays.found(function, value)
    is_mask = isinstance(found, np.ndarray) and found.shape == wanted.shape
    expect(is_mask, f"{function} must return an array of shape {wanted.shape}; it returned {described(found)}")
    if np.array_equal(found != 0, wanted):
        return
    cause = next((text for text, fault in faults if np.array_equal(fault, found != 0)), "")
    at = int(np.argmax((found != 0).reshape(-1) != wanted.reshape(-1)))
    raise Loss(f"{function} flags what it must not" if found.flat[at] else f"{function} misses one",
               where=f"{x.flat[at].item()!r}", expected=bool(wanted.flat[at]), found=bool(found.flat[at]),
               cause=cause)  # fmt: skip


@law(
    "A zero was a zero before. Is it an underflow?",
    "Two things must be true at once: the number was not zero, and its cast is. Its size and its sign do not matter.",
    "It is (original != 0) & (casted == 0), with & and not with `and`, which takes no arrays.",
)
def underflow_is_what_became_zero(solution: Any, arrays: Arrays) -> None:
    """Underflow is flagged where a number that was not zero became zero, and nowhere else."""
    x = np.array(
        [1e-8, 1, 1e-9, 2, 0, -0.0, -1e-8, 6e-8, 2**-25, -5e-6, np.nan, np.inf, 7e4, 1.0001, 1e-45], np.float32
    )
    for dtype in ("float16", "float32", "bfloat16"):
        casted = nearest(x, dtype)
        tiny = 2.0 ** (FORMATS[dtype][1] + FORMATS[dtype][0] - 1)
        value = solution.detect_underflow(arrays.given(x), arrays.given(casted))
        expect_mask(arrays, "detect_underflow", value, (x != 0) & (casted == 0), x, [
            ("numbers that were zero before are flagged", casted == 0),
            ("subnormal numbers are flagged, which are small and not zero", (x != 0) & (abs(casted) < tiny)),
            ("subnormal numbers are flagged, which are small and not zero", abs(casted) < tiny),
            ("every number that the cast changed is flagged", x != casted),
            ("small numbers are flagged by their size, whatever became of them", (x != 0) & (abs(x) < 2**-24)),
            ("small numbers are flagged by their size, whatever became of them", (x != 0) & (abs(x) <= 2**-25)),
            ("negative numbers are left out", (x > 0) & (casted == 0)),
            ("the mask is the other way round", (x == 0) | (casted != 0)),
            ("nothing is flagged", np.zeros(x.shape, bool)),
        ])  # fmt: skip


@law(
    "Is NaN an overflow? Is 65504?",
    "Only infinity is, of both signs. The largest number is a number, and NaN has another cause.",
    "Test each number for infinity: isinf, neither isfinite nor a threshold.",
)
def overflow_is_infinity(solution: Any, arrays: Arrays) -> None:
    """Overflow is flagged where the cast is infinite, of either sign, and nowhere else."""
    x = np.array([1.0, 70000.0, -65504.0, 65504.0, np.nan, 0.0, np.inf, -np.inf, 3.4e38], np.float32)
    for dtype in FORMATS:
        casted = nearest(x, dtype)
        largest = FORMATS[dtype][2]
        value = solution.detect_overflow(arrays.given(casted))
        expect_mask(arrays, "detect_overflow", value, np.isinf(casted), casted, [
            ("NaN is flagged, which is not infinite", ~np.isfinite(casted)),
            ("minus infinity is left out", casted == np.inf),
            ("the largest number is flagged, which is finite", abs(casted) >= largest),
            ("numbers are flagged that are finite in this format, though not in float16", abs(casted) > 65504),
            ("numbers are flagged that are finite in this format, though not in float16", abs(casted) >= 65504),
            ("NaN is flagged in place of infinity", np.isnan(casted)),
            ("the mask is the other way round", ~np.isinf(casted)),
            ("nothing is flagged", np.zeros(x.shape, bool)),
        ])  # fmt: skip


@law(
    "Print dtype and shape of a mask.",
    "A mask is an array of bool as large as the numbers: not 0.0 and 1.0, nor the places, nor one answer for all.",
    "Return the comparison itself: without any(), where(), or a conversion.",
)
def masks_are_arrays_of_bool(solution: Any, arrays: Arrays) -> None:
    """A mask is an array of bool of the shape of the numbers, also without axes or elements."""
    x = np.array([[1e-8, 1.0, 0.0], [70000.0, np.inf, np.nan]], np.float32)
    for dtype in FORMATS:
        for shaped in (x, x.reshape(3, 1, 2), x[0, 0], x[:0]):
            given = arrays.given(np.array(shaped))
            casted = solution.cast_to_dtype(given, dtype)
            for function, arguments in (("detect_underflow", (given, casted)), ("detect_overflow", (casted,))):
                found = arrays.found(function, getattr(solution, function)(*arguments))
                is_mask = isinstance(found, np.ndarray) and (found.dtype, found.shape) == (np.bool_, shaped.shape)
                what = f"{function} must return an array of bool of shape {shaped.shape}"
                expect(is_mask, f"{what}; it returned {described(found)}")


def trace(solution: Any, arrays: Arrays) -> Any:
    """Casts of drawn bits, and their masks."""
    x = np.random.default_rng(3).integers(0, 2**32, (4, 256), np.uint32).view(np.float32)
    x = np.concatenate([x, (x.view(np.uint32) % 2**29 + 2**29 - 2**28).view(np.float32)])  # more of them near float16
    found = {}
    for dtype in FORMATS:
        given = arrays.given(x)
        casted = solution.cast_to_dtype(given, dtype)
        values = (casted, solution.detect_underflow(given, casted), solution.detect_overflow(casted))
        names = ("cast", "underflow", "overflow")
        found[dtype] = {name: arrays.found(name, value) for name, value in zip(names, values, strict=True)}
    return found


STATEMENT = """
Write cast_to_dtype, detect_underflow and detect_overflow. `x` is an array of float32, float16 or float64 and of any
shape; `dtype` is "float16", "bfloat16" or "float32". A cast gives the nearest number that the format holds, and of two
that are equally near the one whose last bit is 0; it returns a new array of the shape of x. The result has the format's
type; in NumPy, which has no bfloat16, that is float32 with values that bfloat16 holds. detect_underflow(original,
casted) and detect_overflow(casted) return arrays of bool: where a number that was not zero became zero, and where a
number is infinite. Nothing that is given is changed.
"""

IDEA = """
A floating-point number is a whole number of a fixed count of bits, times a power of two. float32 has 24 such bits,
float16 has 11, bfloat16 has 8; the first is not stored, because it is always 1. The bits give the precision: about
seven decimal digits, three, and two. What is left of the storage gives the range of the powers: float16 ends at 65504,
bfloat16 has the powers of float32. So float16 is the finer of the two and bfloat16 the wider, and which one loses a
number depends on its size: 70000 is infinite in float16 and 70144 in bfloat16, while 1 + 2**-9 stays in float16 and is
1 in bfloat16.

At the lower end the first bit may be 0. Such numbers are called subnormal; they lie in even steps, each with fewer bits
than the one before it, down to the smallest: 2**-24 in float16, 2**-133 in bfloat16. Half of the smallest is just as
near to zero, and becomes zero. This is what happens to small gradients in float16, and why they are scaled.

A cast takes the nearest number. If two are equally near, it takes the one whose last bit is 0: then half of such ties
go up and half go down, where "always up" would push every sum in one direction. The same rule holds at the upper end.
After 65504 the next number would be 65536, which float16 lacks. What is nearer to 65504 stays; from 65520 on, which
lies midway, it is infinite. bfloat16 overflows, too, although it has the powers of float32: the largest float32 is
3.4028e38, the largest bfloat16 3.3895e38, and from the middle between that and 2**128 on, all is infinite.

Neither loss is reported. Zero and infinity are proper values, and training goes on with them. A mask makes them
visible: zero now and not before is an underflow; infinite is an overflow. NaN is neither. It says that a calculation
had no answer, and a cast hands it on.
"""

EXERCISE = Exercise(
    name="representable_range",
    title="What 16 bits can hold",
    teaches="how float16 and bfloat16 round, where they end, and how to see what was lost",
    statement=STATEMENT,
    idea=IDEA,
    functions=("cast_to_dtype", "detect_underflow", "detect_overflow"),
    laws=(
        numbers_go_to_the_nearest,
        small_numbers_are_kept_or_become_zero,
        large_numbers_become_infinite_from_the_tie_on,
        infinity_and_nan_stay,
        types_and_shapes_are_those_asked_for,
        arguments_are_left_alone,
        underflow_is_what_became_zero,
        overflow_is_infinity,
        masks_are_arrays_of_bool,
    ),
    trace=trace,
)
