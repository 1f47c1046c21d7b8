"""Wrong casts and masks."""

from collections.abc import Callable
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Row, Table
from numpy_ref.exercises.representable_range import FORMATS, NAN_LOST, SHORT, STORED, Rule, nearest

Changes = dict[str, Callable[[Any, Any, Any], Any]]  # (x, its nearest numbers, the format) -> what is returned instead

THROUGH = "they went through {}, which holds other numbers"
RULES: dict[str, Rule] = {
    "digits beyond the format were cut off: the nearest number is asked for": np.trunc,
    "ties were rounded away from zero: they go to the even neighbour": lambda q: np.copysign(np.floor(abs(q) + 0.5), q),
    "ties were rounded toward zero: they go to the even neighbour": lambda q: np.copysign(np.ceil(abs(q) - 0.5), q),
    "ties were rounded up: they go to the even neighbour": lambda q: np.copysign(np.floor(q + 0.5), q),
    "ties were rounded to the odd neighbour": lambda q: np.where(q % 1 == 0.5, np.rint(q - 1) + 1, np.rint(q)),
    "numbers were rounded down": np.floor,
    "numbers were rounded up": np.ceil,
    "numbers were rounded away from zero": lambda q: np.copysign(np.ceil(abs(q)), q),
    "one bit too few was kept": lambda q: 2 * np.rint(q / 2),
}
FLUSHED: Changes = {
    "subnormal numbers were made zero: the format holds them": lambda x, y, f: np.where(abs(x) < f.normal, y * 0, y),
    "subnormal numbers were made zero, without a sign": lambda x, y, f: np.where(abs(x) < f.normal, 0, y),
}
SMALL: Changes = {
    "the sign of zero was lost": lambda x, y, f: y + y.dtype.type(0),
    "all below the smallest number became zero": lambda x, y, f: np.where(abs(x) < 2.0**f.smallest, y * 0, y),
    "half of the smallest number was kept: zero is its even neighbour": lambda x, y, f: np.where(
        abs(x) == 2.0 ** (f.smallest - 1), np.copysign(2.0**f.smallest, x), y
    ),
}
LARGE: Changes = {
    "all beyond the largest number became infinite: up to half a place further it is the nearest": (
        lambda x, y, f: np.where(abs(x) > f.largest, np.copysign(np.inf, x), y)
    ),
    "the largest number became infinite": lambda x, y, f: np.where(abs(x) >= f.largest, np.copysign(np.inf, x), y),
    "numbers were clipped to the largest: what rounds beyond it is infinite": (
        lambda x, y, f: np.clip(y, -f.largest, f.largest)
    ),
    "the sign of infinity was lost": lambda x, y, f: np.where(np.isinf(y), np.inf, y),
    "the tie at the end went to the largest number: infinity is its even neighbour": (
        lambda x, y, f: np.where(abs(x) == f.end, np.copysign(f.largest, x), y)
    ),
}
STAY: Changes = {
    NAN_LOST: lambda x, y, f: ((x.view(np.uint32) + 0x7FFF) & 0xFFFF0000).view(np.float32),
    "expected nan, found inf": lambda x, y, f: np.where(np.isnan(x), np.inf, y),
    "expected nan, found 0.0": lambda x, y, f: np.where(np.isnan(x), 0, y),
    "infinity became the largest number": lambda x, y, f: np.where(np.isinf(x), np.copysign(f.largest, x), y),
}


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    xp, cast = arrays.xp, right.cast_to_dtype

    def casts(changes: Changes, *formats: str, after: str = "") -> list[Row]:
        """Rows in which one format alone is cast otherwise, in NumPy's numbers; `after`: what is rounded is changed."""

        def one(text: str, wrong: str) -> Row:
            def cast_to_dtype(x: Any, dtype: str) -> Any:
                if dtype != wrong:
                    return cast(x, dtype)
                given = arrays.found("cast_to_dtype", x)
                rounded = nearest(given, dtype)
                changed = changes[text](rounded if after else given, rounded, FORMATS[dtype])
                y = arrays.given(np.asarray(changed, STORED[dtype]))
                return arrays.cast(y, dtype) if arrays.framework == "torch" else y

            return f"{text} ({wrong}{after})", {"cast_to_dtype": cast_to_dtype}, text

        return [one(text, dtype) for text in changes for dtype in formats or SHORT]

    def by(rule: Rule, dtype: str) -> Callable[[Any, Any, Any], Any]:
        return lambda x, y, f: nearest(x, dtype, rule)

    def through(other: str, dtype: str) -> list[Row]:
        return casts({THROUGH.format(other): lambda x, y, f: nearest(nearest(x, other), dtype)}, dtype)

    def casted(change: Callable[[Any], Any], dtype: str = "float16") -> Replacements:
        return {"cast_to_dtype": lambda x, d: change(cast(x, d)) if d == dtype else cast(x, d)}

    def tiny(y: Any) -> Any:
        return xp.finfo(y.dtype).tiny

    under: dict[str, Callable[[Any, Any], Any]] = {
        "numbers that were zero before are flagged": lambda x, y: y == 0,
        "subnormal numbers are flagged, which are small and not zero": lambda x, y: (x != 0) & (abs(y) < tiny(y)),
        "subnormal numbers are flagged, and zeros": lambda x, y: abs(y) < tiny(y),
        "every number that the cast changed is flagged": lambda x, y: x != y,
        "small numbers are flagged by their size, whatever became of them": lambda x, y: (x != 0) & (abs(x) < 2**-24),
        "negative numbers are left out": lambda x, y: (x > 0) & (y == 0),
        "the mask is the other way round": lambda x, y: (x == 0) | (y != 0),
        "nothing is flagged": lambda x, y: (x != 0) & (x == 0),
        "must return an array of shape (15,)": lambda x, y: ((x != 0) & (y == 0)).any(),
    }
    over: dict[str, Callable[[Any], Any]] = {
        "NaN is flagged, which is not infinite": lambda y: ~xp.isfinite(y),
        "minus infinity is left out": lambda y: y == np.inf,
        "the largest number is flagged, which is finite": lambda y: abs(y) >= xp.finfo(y.dtype).max,
        "numbers are flagged that are finite in this format, though not in float16": lambda y: abs(y) > 65504,
        "NaN is flagged in place of infinity": xp.isnan,
        "the mask is the other way round": lambda y: ~xp.isinf(y),
        "nothing is flagged": lambda y: xp.isinf(y) & xp.isnan(y),
        "must return an array of shape (9,)": lambda y: xp.argwhere(xp.isinf(y)),
    }

    table: Table = {
        "numbers-go-to-the-nearest": [
            *[row for text, rule in RULES.items() for dtype in SHORT for row in casts({text: by(rule, dtype)}, dtype)],
            *casts({THROUGH.format("float16"): by(np.rint, "float16")}, "bfloat16"),
            *through("bfloat16", "float16"),
        ],
        "small-numbers-are-kept-or-become-zero": [
            *casts(FLUSHED),
            *casts(FLUSHED, after=", rounded"),
            *casts(SMALL),
            *through("float16", "bfloat16"),
        ],
        "large-numbers-become-infinite-from-the-tie-on": casts(LARGE),
        "infinity-and-nan-stay": casts(STAY),
        "types-and-shapes-are-those-asked-for": [
            ("to 'float16' returned another type", casted(lambda y: arrays.cast(y, "float32"))),
            ("to 'bfloat16' returned another type", casted(lambda y: arrays.cast(y, "float64"), "bfloat16")),
            ("cast_to_dtype returned another shape", casted(lambda y: y.reshape(-1))),
            ("another shape: result: expected shape (), found shape (1,)", casted(xp.atleast_1d)),
            ("must return an array", casted(lambda y: y.tolist())),
            *through("float16", "float32"),
        ],
        "arguments-are-left-alone": [
            ("cast_to_dtype returned what it was given", {"cast_to_dtype": lambda x, d: x}),
            ("cast_to_dtype changed what it was given", {"cast_to_dtype": lambda x, d: cast(x.__imul__(2), d)}),
            ("detect_underflow changed what it was given", {"detect_underflow": lambda x, y: x.__imul__(2) == y}),
        ],
        "underflow-is-what-became-zero": [(text, {"detect_underflow": mask}) for text, mask in under.items()],
        "overflow-is-infinity": [(text, {"detect_overflow": mask}) for text, mask in over.items()],
        "masks-are-arrays-of-bool": [
            ("detect_overflow must return an array of bool", {"detect_overflow": lambda y: xp.isinf(y) * 1.0}),
            ("detect_underflow must return an array of bool", {"detect_underflow": lambda x, y: (x != y) * 1}),
            ("it returned list", {"detect_underflow": lambda x, y: (x != y).tolist()}),
            ("of shape (2, 3)", {"detect_overflow": lambda y: xp.isinf(y).reshape(-1)}),
        ],
    }
    if arrays.framework == "numpy":  # torch's bfloat16 holds nothing else
        table["numbers-go-to-the-nearest"] += casts({"nothing was rounded": lambda x, y, f: x}, "bfloat16")
    return table
