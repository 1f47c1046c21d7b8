"""The exercise `representable_range`: casts to formats of 16 bits, and masks of what they cannot hold."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, expect_same_bits, law
from numpy_ref.proof.equivalence import same_bits


class Format(NamedTuple):
    """What a format holds."""

    precision: int  # bits of the significand
    smallest: int  # exponent of the smallest number
    normal: float  # the smallest number that has all its bits
    largest: float
    end: float  # midway between the largest number and the next place


FORMATS = {
    "float16": Format(11, -24, 2.0**-14, 65504.0, 65520.0),
    "bfloat16": Format(8, -133, 2.0**-126, 255 * 2.0**120, 511 * 2.0**119),
    "float32": Format(24, -149, 2.0**-126, (2**24 - 1) * 2.0**104, (2**25 - 1) * 2.0**103),
}
STORED: dict[str, Any] = {"float16": np.float16, "bfloat16": np.float32, "float32": np.float32}
SHORT = ("float16", "bfloat16")
NAN_LOST = "NaN became something else: rounding its bits can carry out of them, so put NaN aside before"

Array = np.ndarray[Any, Any]
Rule = Callable[[Array], Array]  # from numbers of last places to whole numbers of them


def nearest(x: Any, dtype: str, rule: Rule = np.rint) -> Array:
    """The numbers of a format by a rule of rounding; in float64, where all but the rule is exact."""
    precision, smallest, _, largest, _ = FORMATS[dtype]
    wide = np.asarray(x, np.float64)
    place = np.ldexp(1.0, np.maximum(np.frexp(wide)[1] - precision, smallest))
    rounded = rule(wide / place) * place
    return np.where(np.abs(rounded) > largest, np.copysign(np.inf, wide), rounded).astype(STORED[dtype])


def expect_cast(solution: Any, arrays: Arrays, x: Array, dtype: str) -> None:
    """Hold a cast to the nearest numbers; the loss tells which number became what."""
    value, expected = solution.cast_to_dtype(arrays.given(x), dtype), nearest(x, dtype)
    found = arrays.found("cast_to_dtype", value)
    expect(isinstance(found, np.ndarray), f"cast_to_dtype must return an array; it returned {described(found)}")
    wanted = f"torch.{dtype}" if arrays.framework == "torch" else str(np.dtype(STORED[dtype]))
    if str(value.dtype) != wanted:
        raise Loss(f"cast_to_dtype to {dtype!r} returned another type", where="dtype", expected=wanted,
                   found=str(value.dtype), cause="the type says what is stored")  # fmt: skip
    if same_bits(expected, found):
        return
    expect_same_bits("cast_to_dtype returned another shape", np.zeros(x.shape), np.zeros(found.shape))
    at = next(i for i in range(x.size) if not same_bits(expected.flat[i], found.flat[i]))
    lost = np.any(np.isnan(x) & ~np.isnan(found))
    trees = [{"numbers": y, "negative": np.signbit(y) & ~np.isnan(y)} for y in (expected, found)]
    raise Loss(f"a cast to {dtype} is not the nearest number", where=f"x = {x.flat[at].item()!r}",
               expected=expected.flat[at].item(), found=found.flat[at].item(),
               cause=NAN_LOST if lost else "", trees=trees)  # fmt: skip


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
        step = 2.0 ** FORMATS[dtype].smallest
        last = FORMATS[dtype].normal / step
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
        largest, tie = FORMATS[dtype].largest, np.float32(FORMATS[dtype].end)
        before, after = (np.nextafter(tie, np.float32(to)) for to in (0, np.inf))
        near = [largest, before, tie, after, (largest + float(tie)) / 2, largest / 1.3, largest / 2]
        expect_cast(solution, arrays, signed([*near, 7e4, 1e30, 3.4e38]), dtype)


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
            x = np.array([[0.1, -2.5, 1 + 2**-9], [3e-6, -0.0, 1000.7]], np.float32)
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
        calls = {"cast_to_dtype": (given, dtype), "detect_underflow": (given, casted), "detect_overflow": (casted,)}
        for function, arguments in calls.items():
            value = getattr(solution, function)(*arguments)
            for text, cause in (("changed what it was given", "it works in place"),
                                ("returned what it was given", "what comes back is no new array")):  # fmt: skip
                now = {"x": arrays.found(function, given), "casted": arrays.found(function, casted)}
                expect_same_bits(f"{function} {text}", {"x": x, "casted": nearest(x, dtype)}, now, cause=cause)
                if arrays.found(function, value).dtype.kind == "f":
                    arrays.overwrite(value)


def expect_mask(arrays: Arrays, function: str, value: Any, wanted: Array, x: Array) -> None:
    """Hold a mask to what it must flag; the loss tells of the first number where it differs."""
    found = arrays.found(function, value)
    is_mask = isinstance(found, np.ndarray) and found.shape == wanted.shape
    expect(is_mask, f"{function} must return an array of shape {wanted.shape}; it returned {described(found)}")
    if np.array_equal(found != 0, wanted):
        return
    at = int(np.argmax((found != 0).reshape(-1) != wanted.reshape(-1)))
    raise Loss(f"{function} flags what it must not" if found.flat[at] else f"{function} misses one",
               where=f"{x.flat[at].item()!r}", expected=bool(wanted.flat[at]), found=bool(found.flat[at]),
               trees=((x, wanted), (x, found != 0)))  # fmt: skip


@law(
    "A zero was a zero before. Is it an underflow?",
    "Two things must be true at once: the number was not zero, and its cast is. Its size and its sign do not matter.",
    "It is (original != 0) & (casted == 0), with & and not with `and`, which takes no arrays.",
)
def underflow_is_what_became_zero(solution: Any, arrays: Arrays) -> None:
    """Underflow is flagged where a number that was not zero became zero, and nowhere else."""
    numbers = [1e-8, 1, 1e-9, 2, 0, -0.0, -1e-8, 6e-8, 2**-25, -5e-6, np.nan, np.inf, 7e4, 1.0001, 1e-45]
    x = np.array(numbers, np.float32)
    for dtype in ("float16", "float32", "bfloat16"):
        casted = nearest(x, dtype)
        value = solution.detect_underflow(arrays.given(x), arrays.given(casted))
        expect_mask(arrays, "detect_underflow", value, (x != 0) & (casted == 0), x)


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
        value = solution.detect_overflow(arrays.given(casted))
        expect_mask(arrays, "detect_overflow", value, np.isinf(casted), casted)


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
