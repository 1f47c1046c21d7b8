"""The exercise `loss_scaling`: three functions around a backward pass, and what they can hide or lose."""

from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import (
    Arrays,
    Exercise,
    Loss,
    described,
    expect,
    expect_same_bits,
    expect_within,
    law,
)
from numpy_ref.proof.equivalence import Tolerance

TYPES = (np.float32, np.float64, np.float16)

# A scale that is a power of two changes exponents only: dividing and multiplying by the inverse give the same bits.
# Any other is rounded up to three times, for the scale, its inverse and the product, each by at most half a unit in
# the last place: 3 * 2**-24 of the value in float32, 3 * 2**-11 in float16. PyTorch's own scaler has the inverse in
# float32 for float64 gradients, too. The next power of two is allowed; a scale off by 1e-6 lies beyond it.
ALLOWANCE = Tolerance(relative=2.0**-22, absolute=0.0)
ALLOWANCE_16 = Tolerance(relative=2.0**-9, absolute=0.0)
# A scaled loss in float64 is rounded once, by at most 2**-53 of its size. One in float32 is rounded for the scale and
# for the product, by 2 * 2**-24.
ALLOWANCE_64 = Tolerance(relative=2.0**-51, absolute=0.0)

Gradients = list[Any]
Place = tuple[str, Gradients]  # where the value is that matters, and gradients that hold it


def draw_gradients(seed: int, dtype: Any, low: int = -4, high: int = 14) -> Gradients:
    """Gradients of several shapes: sizes from 2**low to 2**high, one without axes, one without elements."""
    rng = np.random.default_rng(seed)
    shapes: list[tuple[int, ...]] = [(3,), (2, 4), (1,), (), (2, 1, 3), (0, 2)]
    return [np.asarray(rng.uniform(1, 2, s) * 2.0 ** rng.integers(low, high, s)).astype(dtype) for s in shapes]


def quotients(gradients: Gradients, scale: float) -> Gradients:
    """The gradients divided in float64 and rounded to their own types."""
    with np.errstate(all="ignore"):
        return [np.asarray(g.astype(np.float64) / scale).astype(g.dtype) for g in gradients]


def unscale(solution: Any, arrays: Arrays, gradients: Gradients, scale: float) -> Gradients:
    """The solution's unscaling, from NumPy to NumPy."""
    found = arrays.found("unscale_gradients", solution.unscale_gradients(arrays.given(gradients), scale))
    expect(isinstance(found, list), f"unscale_gradients must return a list; it returned {described(found)}")
    return list(found)


def scaled(solution: Any, arrays: Arrays, loss: Any, scale: float) -> Any:
    """The solution's scaled loss: a Python float, or an array without axes in NumPy."""
    value = solution.scale_loss(arrays.given(loss), scale)
    is_float = isinstance(loss, float) and isinstance(value, float)  # as a NumPy scalar of float64 is, too
    found = float(value) if is_float or type(value) is int else arrays.found("scale_loss", value)
    is_number = isinstance(found, float) or (isinstance(found, np.ndarray) and found.shape == ())
    expect(is_number, f"scale_loss must return a number, or an array without axes; it returned {described(found)}")
    return found


LOSSES = (0.5, 0.1, -3.25, 0.0, np.array(0.7, np.float32), np.array(-2.1, np.float64))
SCALES = (1.0, 1024.0, 2.0**16, 1000.5, 0.3, 2.0**-20, 3e6)


def kind_of(loss: Any) -> str:
    """What a loss is: "float", or the type of an array."""
    return str(loss.dtype.name) if isinstance(loss, np.ndarray) else "float"


@law(
    "Write out loss_scaled = ... for a loss of 0.5 and a scale of 1024. It must be 512.",
    "Multiply once, in the loss's own type. A scale may have a fraction, and be more than float16 holds.",
    "Return loss * scale, and convert neither of the two: a float stays a float, and an array keeps its type.",
)
def scaled_loss_is_the_product(solution: Any, arrays: Arrays) -> None:
    """The scaled loss is the loss times the scale, of the loss's own type; in PyTorch autograd still reaches it."""
    cases = [(loss, scale) for loss in LOSSES for scale in SCALES]
    found = [scaled(solution, arrays, *case) for case in cases]

    def allowed(kind: str) -> Tolerance:
        return ALLOWANCE if kind == "float32" else ALLOWANCE_64

    whole = [np.array(float(loss) * scale) for loss, scale in cases], [np.array(float(value)) for value in found]
    for (loss, scale), exact, value in zip(cases, *whole, strict=True):
        what = f"scale_loss({loss:g}, {scale:g}) is not their product"
        expect_within(what, exact, value, allowed(kind_of(loss)), whole=whole)
    for (loss, _), value in zip(cases, found, strict=True):
        told = f"an array without axes of {loss.dtype}" if isinstance(loss, np.ndarray) else "a float"
        by_type = "item() and float() make a float of an array, and np.asarray an array of a float"
        kinds = (kind_of(loss), kind_of(value))
        expect(kinds[0] == kinds[1], f"scale_loss was given {told}; it returned {described(value)}",
               cause=by_type if "float" in kinds else "the type of the loss was changed")  # fmt: skip
    if arrays.framework == "torch":
        tensor = arrays.given(np.array(0.5, np.float32)).requires_grad_()
        product = solution.scale_loss(tensor, 1024.0)
        out_of_graph = "item(), detach() and float() take the number out of the graph: then no gradient can be formed"
        expect(bool(getattr(product, "requires_grad", False)), "autograd cannot reach the loss", cause=out_of_graph)
        product.backward()
        expect_same_bits("the scaled loss has not the scale for its derivative", np.array(1024.0, np.float32),
                         arrays.found("scale_loss", tensor.grad))  # fmt: skip


def check_unscaling(solution: Any, arrays: Arrays, cases: list[tuple[Gradients, float]], exactly: bool) -> None:
    """Raise unless all gradients are divided by their scales."""
    found = [unscale(solution, arrays, *case) for case in cases]
    whole = [quotients(*case) for case in cases], found
    for (gradients, scale), expected, value in zip(cases, *whole, strict=True):
        what = f"with a scale of {scale:g}, the gradients are not divided by it"
        if exactly:
            expect_same_bits(what, {"gradients": expected}, {"gradients": value}, whole=whole)
        else:
            exact = {"gradients": [np.asarray(g.astype(np.float64) / scale) for g in gradients]}
            allowance = ALLOWANCE_16 if gradients[0].dtype == np.float16 else ALLOWANCE
            expect_within(what, exact, {"gradients": value}, allowance, whole=whole)


@law(
    "A gradient of the scaled loss is too large by the scale. What undoes that?",
    "Divide every array by the scale once. In float16 the scale 65536 itself is infinite, though the quotient is not.",
    "For each g: form g / scale in float32 or float64, and convert the quotient back to the type of g.",
)
def gradients_are_divided_by_the_scale(solution: Any, arrays: Arrays) -> None:
    """Unscaled gradients are the given ones divided by the scale, to the bit where the scale is a power of two."""
    drawn = [(scale, -4, 14) for scale in (1024.0, 1.0, 2.0**16, 2.0**20, 0.5, 2.0**25)]
    drawn += [(2.0**-20, -24, -6)]  # whose quotients are as large again
    cases = []
    for dtype in TYPES:
        for i, (scale, low, high) in enumerate(drawn):
            gradients = draw_gradients(i, dtype, low, high)
            gradients[0][0] = -0.0
            cases.append((gradients, scale))
    check_unscaling(solution, arrays, cases, exactly=True)


@law(
    "Try a scale of 1000.5: is what comes back right to six digits?",
    "A scale is any float > 0: neither its whole part, nor its exponent, nor what float16 keeps of it is enough.",
    "Divide by the scale as it was given, or multiply by 1 / scale formed in float32 or float64.",
)
def scales_need_not_be_powers_of_two(solution: Any, arrays: Arrays) -> None:
    """For any scale the unscaled gradients are right, but for the last places."""
    drawn = [(scale, -4, 14) for scale in (3.0, 1000.5, 0.3, 1536.0)]
    drawn += [(3e6, 9, 15), (3e-6, -23, -4)]  # whose quotients are normal numbers in float16, too
    cases = [
        (draw_gradients(10 + i, dtype, low, high), scale)
        for dtype in TYPES
        for i, (scale, low, high) in enumerate(drawn)
    ]
    check_unscaling(solution, arrays, cases, exactly=False)


@law(
    "Print shape and dtype of every gradient before and after.",
    "A list comes back, as long as the given one; arrays without axes or without elements are arrays, too.",
    "Work on each array by itself, without ravel or concatenate, and convert the result to the type of that array.",
)
def shapes_and_types_are_kept(solution: Any, arrays: Arrays) -> None:
    """Every unscaled gradient has the shape and the type of its own, and there are as many as were given."""
    mixed = [draw_gradients(20, dtype)[i] for i, dtype in enumerate((np.float32, np.float16, np.float64) * 2)]
    for gradients in (mixed, mixed[1:2], []):
        found = unscale(solution, arrays, gradients, 1024.0)
        text = f"unscale_gradients was given {len(gradients)} arrays and returned {len(found)}"
        expect(len(found) == len(gradients), text, cause="it joins arrays, or leaves some out")
        for i, (g, x) in enumerate(zip(gradients, found, strict=True)):
            shape = described(x) if not isinstance(x, np.ndarray) else "" if x.shape == g.shape else f"shape {x.shape}"
            cause = "the array was flattened, or an axis was added or taken away"
            expect(not shape, f"gradients[{i}] has the shape {g.shape} and became {shape}", cause=cause)
            cause = "the quotient was left in the type it was formed in"
            expect(x.dtype == g.dtype, f"gradients[{i}] is {g.dtype} and became {x.dtype}", cause=cause)


@law(
    "Look for /=, *=, out=, copy=False and assignments to entries.",
    "The caller may still need the scaled gradients. A scale of 1 is no reason to hand back the same arrays.",
    "Build a new list of new arrays, also where nothing is to be changed.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes what it is given, and what comes back shares no array with it."""
    for scale in (1024.0, 1.0):
        loss, gradients = np.array(0.75, np.float32), [*draw_gradients(30, np.float32), np.array([np.nan, np.inf])]
        given_loss, given = arrays.given(loss), arrays.given(gradients)
        calls = {"scale_loss": (given_loss, scale), "has_inf_or_nan": (given,), "unscale_gradients": (given, scale)}
        for function, arguments in calls.items():
            value = getattr(solution, function)(*arguments)
            now = {"loss": arrays.found(function, given_loss), "gradients": arrays.found(function, given)}
            expect_same_bits(f"{function} changed what it was given", {"loss": loss, "gradients": gradients}, now,
                             cause="it works in place, or writes into the list")  # fmt: skip
            arrays.overwrite(value)
            now = {"loss": arrays.found(function, given_loss), "gradients": arrays.found(function, given)}
            expect_same_bits(f"what {function} returned is what it was given", {"loss": loss, "gradients": gradients},
                             now, cause="it hands back the caller's own arrays, not new ones")  # fmt: skip


@law(
    "What should training see when a gradient has overflowed?",
    "An update with an overflow is skipped by the caller. Unscaling neither repairs values nor decides.",
    "Leave out nan_to_num, clipping and every branch on finite values: infinity divided by the scale is infinity.",
)
def infinity_and_nan_survive_unscaling(solution: Any, arrays: Arrays) -> None:
    """Infinity and NaN are the same after unscaling, so that an overflow stays visible."""
    for dtype in TYPES:
        bad = [np.array([1.0, np.inf, np.nan], dtype), np.array([[-np.inf, 2.0]], dtype), np.array([4.0], dtype)]
        found = unscale(solution, arrays, bad, 1024.0)
        expect_same_bits("unscaling hides an overflow", {"gradients": quotients(bad, 1024.0)}, {"gradients": found},
                         cause="a value that is not finite was replaced, or the array with it")  # fmt: skip


def holes() -> list[Place]:
    """Gradients with one value that is not finite, or a pair, in each place of each array; and with NaN everywhere."""
    shapes: list[tuple[int, ...]] = [(3,), (2, 4), (2,), ()]
    places = [("gradients that are NaN everywhere", [np.full(s, np.nan, np.float32) for s in shapes])]
    for values in ((np.nan,), (np.inf,), (-np.inf,), (np.inf, -np.inf)):
        for i, shape in enumerate(shapes):
            for at in range(int(np.prod(shape)) - len(values) + 1):
                gradients = [np.full(s, 0.5, np.float32) for s in shapes]
                gradients[i].reshape(-1)[at : at + len(values)] = values
                index = [int(k) for k in np.unravel_index(at, shape)]
                where = f"gradients[{i}]{index or ''}"
                places.append((f"{where}, where there is {' and '.join(map(str, values))}", gradients))
    return places


def judge(solution: Any, arrays: Arrays, places: list[Place], bad: bool) -> None:
    """Ask has_inf_or_nan of gradients that are all bad or all good."""
    found = [bool(solution.has_inf_or_nan(arrays.given(gradients))) for _, gradients in places]
    expected = [bad] * len(places)
    if found != expected:
        what = "has_inf_or_nan misses an overflow" if bad else "has_inf_or_nan sees an overflow where there is none"
        where = places[found.index(not bad)][0]
        raise Loss(what, where=where, expected=bad, found=not bad, trees=(expected, found))


@law(
    "Put a NaN, then an infinity, then a minus infinity into the last array. Is each of them found?",
    "One bad value anywhere is enough. A sum or a maximum may hide it: inf - inf is NaN, and max may pass NaN over.",
    "Test every element with isfinite, and return True as soon as one array is not finite throughout.",
)
def every_value_of_every_array_is_looked_at(solution: Any, arrays: Arrays) -> None:
    """One infinity, minus infinity or NaN in any place of any array is found."""
    judge(solution, arrays, holes(), True)


@law(
    "Which of your tests can be true of a large finite number?",
    "Large values are allowed: a sum, a square or a shorter type may overflow where no value did.",
    "Test the elements themselves, in their own type, and return False at the end, after the loop.",
)
def finite_values_are_no_overflow(solution: Any, arrays: Arrays) -> None:
    """Finite values are never taken for an overflow, however large, and neither is an empty list or array."""
    places: list[Place] = [("no gradients", []), ("an array without elements", [np.zeros((0, 3), np.float32)])]
    for dtype in TYPES:
        largest, name = np.finfo(dtype).max, np.dtype(dtype).name
        some, small = (np.array([[by, -2 * by], [0, 3 * by]], dtype) for by in (1.0, 1e-3))
        places += [(f"ordinary {name}", [some, some[0]]), (f"small {name}", [small])]
        places += [(f"a large {name}", [some, np.array([4 * np.sqrt(largest)], dtype)])]
        places += [(f"a million in {name}", [some, np.array([1e6], dtype)])] if dtype != np.float16 else []
        places += [(f"1e100 in {name}", [some, np.array([1e100], dtype)])] if dtype == np.float64 else []
        for sign in (1, -1):
            places += [(f"the largest {name}", [some, np.array([sign * largest, 0], dtype)])]
            places += [(f"the largest {name}, several times", [some, np.full((2, 3), sign * largest)])]
    judge(solution, arrays, places, False)


@law(
    "Print type(has_inf_or_nan(gradients)).",
    "A function without a return gives None, and an array's any() and all() give an array's kind of truth.",
    "Return True in the branch that found a bad value, return False after the loop; else convert by bool(...).",
)
def answer_is_a_bool(solution: Any, arrays: Arrays) -> None:
    """The answer is True or False, and nothing that merely counts as one."""
    good, bad = np.ones(3, np.float32), np.array([1.0, np.nan], np.float32)
    for gradients in ([good], [bad], [good, bad], [], [np.array(1.0)], [np.zeros(0)]):
        value = solution.has_inf_or_nan(arrays.given(gradients))
        what = f"has_inf_or_nan must return True or False, a Python bool; it returned {described(value)}"
        cause = "the function ends without a return" if value is None else "an array's truth is no bool: convert it"
        expect(type(value) is bool, what, cause="" if isinstance(value, (int, list)) else cause)


def trace(solution: Any, arrays: Arrays) -> Any:
    """Scaled losses, unscaled gradients and answers, for drawn scales."""
    rng = np.random.default_rng(40)
    found: dict[str, Any] = {}
    for n, scale in enumerate((1.0, 1024.0, 2.0**16, *rng.uniform(1, 2**16, 3).tolist())):
        gradients = draw_gradients(40 + n, np.float32)
        found[f"scale {scale:g}"] = {
            "scaled loss": np.array(scaled(solution, arrays, float(rng.standard_normal()), scale)),
            "unscaled": unscale(solution, arrays, gradients, scale),
        }
    found["found"] = [bool(solution.has_inf_or_nan(arrays.given(gradients))) for _, gradients in holes()]
    return found


STATEMENT = """
Write scale_loss, unscale_gradients and has_inf_or_nan. `loss` is a float, or an array without axes of float32 or
float64; the scaled loss is again a float, or an array of the same type, and right but for its last place or two.
`scale` is a float > 0 and often a power of two; `gradients` is a list, possibly empty, of arrays of float16, float32 or
float64 and any shapes. unscale_gradients returns a list (or a tuple) of new arrays with the shapes and types of the
given ones; with a power of two it is the exact quotient rounded once, with another scale it may be off by 2**-22 of its
size, in float16 by 2**-9. has_inf_or_nan returns True or False. Nothing that is given is changed.
"""

IDEA = """
Gradients are small, and float16 is short of small numbers: its smallest is 2**-24, about 6e-8, and what is at most half
of that becomes zero. A weight whose gradient is zero does not learn, and nothing reports it. At the other end there is
room: float16 reaches 65504, and gradients are seldom near it.

So the loss is multiplied by a scale, say 65536, before the backward pass. Every gradient is a derivative of the loss,
so by the chain rule each comes out multiplied by the same scale, and the small ones are where float16 can hold them.
Before the update they are divided by the scale again, in a type that holds the quotient: the update must not know that
there was a scale.

A power of two is the usual scale, because it changes only the exponent of a number: as long as nothing leaves the
range, scaling and unscaling return the very same bits. With any other scale both round, and it makes a small difference
whether one divides or multiplies by the inverse.

The scale may be too large. Then some gradient is more than 65504 and becomes infinite, and infinity less infinity, or
zero times infinity, is NaN. One such value in one array spoils the model for good: the moments of Adam never recover
from NaN. So before any update all gradients are looked at, every element of every array. If one is not finite, the
update is skipped and the scale is halved; after many updates without that, it is doubled. Looking has its traps. NaN
equals nothing, not even itself. A maximum may pass it over. A sum can be infinite though every term is finite. And
nothing may be repaired before the look: an overflow that has been replaced by zero is seen by nobody.
"""

EXERCISE = Exercise(
    name="loss_scaling",
    title="Scale the loss, and notice an overflow",
    teaches="why small gradients need a scale in float16, and how an overflow is found without being hidden",
    statement=STATEMENT,
    idea=IDEA,
    functions=("scale_loss", "unscale_gradients", "has_inf_or_nan"),
    laws=(
        scaled_loss_is_the_product,
        gradients_are_divided_by_the_scale,
        scales_need_not_be_powers_of_two,
        shapes_and_types_are_kept,
        arguments_are_left_alone,
        infinity_and_nan_survive_unscaling,
        every_value_of_every_array_is_looked_at,
        finite_values_are_no_overflow,
        answer_is_a_bool,
    ),
    trace=trace,
    allowance=Tolerance(relative=2 * ALLOWANCE.relative, absolute=0.0),
)
