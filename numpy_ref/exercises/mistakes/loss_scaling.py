"""Wrong versions of scaling a loss, unscaling gradients and looking for an overflow."""

import math
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table

INVERSE = "the inverse of the scale was rounded to the gradients' type: in float16 it may be 0, infinite, or too short"
POWER = "the scale was taken for a power of two"
ROUNDED = "a loss of float64 was rounded to float32"
LARGE = "large values are taken for infinite ones"
ADDED = "the values are added up, and finite values can have an infinite sum"
SQUARED = "the values are squared, and the square of a finite value can be infinite"
NO_MINUS = "NaN and minus infinity are not looked for"
NO_NAN = "NaN is not looked for: it is neither infinite nor equal to anything, itself included"
FIRST = "only the first array is looked at"
REPLACED = "a value that is not finite was replaced"


def scales(change: Any) -> Replacements:
    """A way to scale the loss."""
    return {"scale_loss": change}


def kind(array: Any) -> str:
    """The type of an array, as in "float32"."""
    return str(array.dtype).rpartition(".")[2]


def below(scale: float) -> float:
    """The largest power of two that is not larger, of whole numbers."""
    return 2.0 ** (int(scale).bit_length() - 1)


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    cast, xp = arrays.cast, arrays.xp

    def half(x: Any) -> Any:
        return cast(xp.asarray(x), "float16")

    def single(x: Any) -> float:
        return float(np.float32(float(x)))

    def if_double(change: Any) -> Replacements:
        def scale_loss(loss: Any, scale: float) -> Any:
            is_double = not isinstance(loss, float) and kind(loss) == "float64"
            return change(loss, scale) if is_double else loss * scale

        return scales(scale_loss)

    def unscales(change: Any) -> Replacements:
        return {"unscale_gradients": change}

    def divides(change: Any) -> Replacements:
        return unscales(lambda gs, scale: [cast(change(cast(g, "float64"), scale), kind(g)) for g in gs])

    def in_own_type(change: Any) -> Replacements:
        return unscales(lambda gs, scale: [cast(change(g, scale), kind(g)) for g in gs])

    def returns(change: Any) -> Replacements:
        return unscales(lambda gs, scale: change(right.unscale_gradients(gs, scale)))

    def own(g: Any, x: float) -> Any:
        return xp.asarray(x, dtype=g.dtype)

    def looks(change: Any) -> Replacements:
        return {"has_inf_or_nan": change}

    def tests(is_bad: Any) -> Replacements:
        return looks(lambda gs: any(bool(is_bad(g)) for g in gs))

    def bad(g: Any) -> Any:
        return ~xp.isfinite(g)

    def in_place(gradients: Any, scale: float) -> Any:
        new = right.unscale_gradients(gradients, scale)
        for g, x in zip(gradients, new, strict=True):
            g[...] = x
        return new

    def refilled(gradients: Any, scale: float) -> Any:
        gradients[:] = right.unscale_gradients(gradients, scale)
        return list(gradients)

    def repairs(gradients: Any) -> Any:
        found = right.has_inf_or_nan(gradients)
        for g in gradients:
            g[xp.isnan(g)] = 0.0
        return found

    table: Table = {
        "scaled-loss-is-the-product": [
            ("it was not scaled", scales(lambda loss, scale: loss * 1)),
            ("it was multiplied by the scale twice", scales(lambda loss, scale: loss * scale * scale)),
            ("it was divided by the scale", scales(lambda loss, scale: loss / scale)),
            ("the scale was added", scales(lambda loss, scale: loss + scale)),
            ("it was converted to float16, which ends at 65504", scales(lambda loss, scale: half(loss * scale))),
            (
                "loss and scale were converted to float16, which ends at 65504",
                scales(lambda loss, scale: half(loss) * half(scale)),
            ),
            ("the loss was rounded to float16", scales(lambda loss, scale: float(half(loss)) * scale)),
            ("the scale was rounded to float16", scales(lambda loss, scale: loss * float(half(scale)))),
            ("the scale was cut to a whole number", scales(lambda loss, scale: loss * int(scale))),
            (POWER, scales(lambda loss, scale: loss * 2.0 ** round(math.log2(scale)))),
            ("the next lower", scales(lambda loss, scale: loss * 2.0 ** math.floor(math.log2(scale))), POWER),
            (
                "the scale was rounded to float32, also where the loss is float64",
                scales(lambda loss, scale: loss * single(scale)),
            ),
            ("the product was rounded to float32", scales(lambda loss, scale: single(loss * scale))),
            (
                "loss and scale were rounded to float32",
                scales(lambda loss, scale: single(single(loss) * single(scale))),
            ),
            (
                "the loss was rounded to float32, also where it is float64",
                scales(lambda loss, scale: single(loss) * scale),
            ),
            (ROUNDED, if_double(lambda loss, scale: cast(cast(loss, "float32") * scale, "float64"))),
            ("and its product", if_double(lambda loss, scale: cast(cast(loss * scale, "float32"), "float64")), ROUNDED),
            (
                "scale_loss was given a float; it returned an array",
                scales(lambda loss, scale: xp.asarray(loss * scale, dtype=getattr(loss, "dtype", xp.float64))),
            ),
            (
                "scale_loss was given an array without axes of float32; it returned float",
                scales(lambda loss, scale: float(loss) * scale),
            ),
            (
                "the type of the loss was changed",
                scales(lambda loss, scale: (loss if isinstance(loss, float) else cast(loss, "float64")) * scale),
            ),
            (
                "must return a number, or an array without axes",
                scales(lambda loss, scale: xp.ones(1) * loss * scale),
            ),
        ],
        "gradients-are-divided-by-the-scale": [
            ("they were multiplied by the scale", divides(lambda g, scale: g * scale)),
            ("they were not unscaled", divides(lambda g, scale: g * 1)),
            ("they were divided by the scale twice", divides(lambda g, scale: g / scale / scale)),
            (
                "only the first array was unscaled",
                unscales(lambda gs, scale: [*right.unscale_gradients(gs[:1], scale), *(g * 1 for g in gs[1:])]),
            ),
            (
                "the scale became infinite in float16, so that every quotient is 0: divide in a wider type",
                in_own_type(lambda g, scale: g / own(g, scale)),
            ),
            (INVERSE, in_own_type(lambda g, scale: g * own(g, 1 / scale))),
            (
                "gradients of float64 were rounded to float32 on the way",
                divides(lambda g, scale: cast(g, "float32") / scale),
            ),
            ("every quotient is 0", divides(lambda g, scale: g * 0)),
            (
                "quotients below 2**-14, the smallest normal number of float16, became 0",
                divides(lambda g, scale: xp.where(abs(g / scale) < 2.0**-14, 0 * g, g / scale)),
            ),
            ("a scale below 1 was taken for 1", divides(lambda g, scale: g / max(scale, 1.0))),
            ("the scale was cut to a whole number, also to 0", divides(lambda g, scale: g / int(scale))),
            ("something small was added to the scale", divides(lambda g, scale: g / (scale + 1e-8))),
            ("a zero lost its sign", divides(lambda g, scale: g / scale + 0.0)),
        ],
        "scales-need-not-be-powers-of-two": [
            ("the scale was cut to a whole number", divides(lambda g, scale: g / int(scale))),
            (POWER, divides(lambda g, scale: g / below(scale))),
            ("the nearest", divides(lambda g, scale: g / 2.0 ** round(math.log2(scale))), POWER),
            ("the next lower", divides(lambda g, scale: g / 2.0 ** math.floor(math.log2(scale))), POWER),
            ("the scale was rounded to float16", divides(lambda g, scale: g / float(half(scale)))),
            ("the inverse of the scale was rounded to float16", divides(lambda g, scale: g * float(half(1 / scale)))),
            (INVERSE, in_own_type(lambda g, scale: g * own(g, 1 / scale))),
            ("the inverse was rounded to six places", divides(lambda g, scale: g * round(1 / scale, 6))),
        ],
        "shapes-and-types-are-kept": [
            ("the array was flattened", returns(lambda new: [x.reshape(-1) for x in new])),
            ("an axis was added", returns(lambda new: [x[None] for x in new])),
            ("gradients[0] is float32 and became float64", returns(lambda new: [cast(x, "float64") for x in new])),
            ("gradients[1] is float16 and became float32", returns(lambda new: [cast(x, "float32") for x in new])),
            (
                "was given 6 arrays and returned 1",
                returns(lambda new: [xp.concatenate([x.reshape(-1) for x in new])] if new else []),
            ),
            ("was given 6 arrays and returned 5", returns(lambda new: [x for x in new if 0 not in x.shape])),
            ("generator", returns(lambda new: (x for x in new))),
        ],
        "arguments-are-left-alone": [
            ("the gradients are divided in place", unscales(in_place), "unscale_gradients changed what it was given"),
            ("the list is refilled", unscales(refilled), "unscale_gradients changed what it was given"),
            (
                "scale_loss changed what it was given",
                scales(lambda loss, scale: loss * scale if isinstance(loss, float) else loss.__imul__(scale)),
            ),
            (
                "hands back the caller's own arrays",
                unscales(lambda gs, scale: gs if scale == 1 else right.unscale_gradients(gs, scale)),
            ),
            ("has_inf_or_nan changed what it was given", looks(repairs)),
        ],
        "infinity-and-nan-survive-unscaling": [
            ("NaN becomes zero", divides(lambda g, scale: xp.nan_to_num(g / scale)), REPLACED),
            (
                "what is not finite becomes zero",
                divides(lambda g, scale: xp.where(xp.isfinite(g), g / scale, 0.0)),
                REPLACED,
            ),
            ("clipped", divides(lambda g, scale: xp.clip(g / scale, -65504.0, 65504.0)), REPLACED),
            (
                "must return a list; it returned None",
                returns(lambda new: None if right.has_inf_or_nan(new) else new),
            ),
        ],
        "every-value-of-every-array-is-looked-at": [
            ("nothing is found at all", looks(lambda gs: False)),
            (NO_NAN, tests(lambda g: xp.isinf(g).any())),
            ("NaN by ==", tests(lambda g: ((g == math.nan) | (abs(g) == math.inf)).any()), NO_NAN),
            ("the largest size is tested", tests(lambda g: abs(g).max() == math.inf), NO_NAN),
            ("infinity is not looked for", tests(lambda g: xp.isnan(g).any())),
            ("minus infinity is not looked for", tests(lambda g: (xp.isnan(g) | (g == math.inf)).any())),
            (NO_MINUS, tests(lambda g: (g == math.inf).any())),
            ("the largest value is tested", tests(lambda g: g.max() == math.inf), NO_MINUS),
            (FIRST, looks(lambda gs: bool(bad(gs[0]).any()))),
            ("only the last array is looked at", looks(lambda gs: bool(bad(gs[-1]).any()))),
            ("only the first element of each array is looked at", tests(lambda g: bad(g).reshape(-1)[0])),
            (
                "the sum is tested for infinity: a NaN in it, or inf - inf, makes it NaN",
                tests(lambda g: xp.isinf(g.sum())),
            ),
            ("all elements must be bad, not any", tests(lambda g: bad(g).all())),
            ("all arrays must be bad, not any", looks(lambda gs: all(bool(bad(g).any()) for g in gs))),
        ],
        "finite-values-are-no-overflow": [
            ("an overflow is found everywhere", looks(lambda gs: True)),
            ("nothing to look at is no overflow: False", looks(lambda gs: not gs or right.has_inf_or_nan(gs))),
            (
                "an array without elements is no overflow: False",
                looks(lambda gs: any(0 in g.shape for g in gs) or right.has_inf_or_nan(gs)),
            ),
            (ADDED, tests(lambda g: bad(g.sum()))),
            ("in float32", tests(lambda g: bad(cast(g, "float32").sum())), ADDED),
            ("in float64", tests(lambda g: bad(cast(g, "float64").sum())), ADDED),
            (SQUARED, tests(lambda g: bad((g * g).sum()))),
            ("squared in float32", tests(lambda g: bad((cast(g, "float32") ** 2).sum())), SQUARED),
            ("squared in float64", tests(lambda g: bad((cast(g, "float64") ** 2).sum())), SQUARED),
            (
                "the values are converted to float32, and float64 holds larger ones",
                tests(lambda g: bad(cast(g, "float32")).any()),
            ),
            (
                "the values are converted to float16, which ends at 65504",
                tests(lambda g: bad(cast(g, "float16")).any()),
            ),
            (LARGE, tests(lambda g: (~(abs(g) <= 65000)).any())),
            ("the largest number counts", tests(lambda g: (~(abs(g) < xp.finfo(g.dtype).max)).any()), LARGE),
            ("the values are scaled again before they are looked at", tests(lambda g: bad(g * 2.0**16).any())),
        ],
        "answer-is-a-bool": [
            ("an array's truth is no bool", looks(lambda gs: xp.asarray(right.has_inf_or_nan(gs)).any())),
            ("the arrays with an overflow were counted", looks(lambda gs: sum(bool(bad(g).any()) for g in gs))),
            ("there is an answer for each array", looks(lambda gs: [bool(bad(g).any()) for g in gs])),
            ("the function ends without a return", looks(lambda gs: right.has_inf_or_nan(gs) or None)),
        ],
    }
    if arrays.framework == "torch":
        table["scaled-loss-is-the-product"] += [
            ("autograd cannot reach the loss", scales(lambda loss, scale: getattr(loss, "data", loss) * scale)),
            (
                "has not the scale for its derivative",
                scales(lambda x, scale: x * scale if isinstance(x, float) else (x * scale).detach() + 0 * x),
            ),
        ]
    return table
