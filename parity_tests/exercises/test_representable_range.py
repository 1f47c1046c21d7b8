"""The exercise `representable_range`: right solutions pass, and wrong ones are caught by the law meant for them."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.grader import grade_against
from numpy_ref.exercises.representable_range import FORMATS, nearest
from parity_tests import oracles
from parity_tests.exercises.solutions import (
    FRAMEWORKS,
    Mutant,
    check_mutant,
    check_stub,
    graded,
    mutants_of,
    mutated,
    reference,
    told,
)
from parity_tests.implementations import NO_TORCH

ROUND, LIBRARY = "rounded = (bits + (0x7FFF + ((bits >> 16) & 1))) & 0xFFFF0000", "return x.astype(dtype)"
NAN, BFLOAT16 = "return np.where(np.isnan(x), x, rounded.view(np.float32))", "return _to_bfloat16(x.astype(np.float32))"
TORCH, UNDER, OVER = "return x.to(TYPES[dtype], copy=True)", "(original != 0) & (casted == 0)", "np.isinf(casted)"
NEAREST, SMALL, LARGE = (
    "numbers-go-to-the-nearest",
    "small-numbers-are-kept-or-become-zero",
    "large-numbers-become-infinite-from-the-tie-on",
)
STAY, TYPES, ARGUMENTS = (
    "infinity-and-nan-stay",
    "types-and-shapes-are-those-asked-for",
    "arguments-are-left-alone",
)
UNDERFLOW, OVERFLOW, MASKS = "underflow-is-what-became-zero", "overflow-is-infinity", "masks-are-arrays-of-bool"


def in_numpy(law: str, reason: str, *changes: tuple[str, str]) -> Mutant:
    return Mutant(law, reason, changes, ("numpy",))


def in_torch(law: str, reason: str, new: str) -> Mutant:
    return Mutant(law, reason, ((TORCH, new),), ("torch",))


def rounds(law: str, reason: str, new: str) -> Mutant:
    return in_numpy(law, reason, (ROUND, f"rounded = {new}"))


def flags(law: str, reason: str, old: str, new: str) -> Mutant:
    return Mutant(law, reason, ((old, new),))


MUTANTS = {
    "bits cut off": rounds(NEAREST, "digits beyond the format were cut off", "bits & 0xFFFF0000"),
    "ties away": rounds(NEAREST, "ties were rounded away from zero", "(bits + 0x8000) & 0xFFFF0000"),
    "ties toward zero": rounds(NEAREST, "ties were rounded toward zero", "(bits + 0x7FFF) & 0xFFFF0000"),
    "ties up": rounds(NEAREST, "ties were rounded up", "(bits + 0x8000 - (bits >> 31)) & 0xFFFF0000"),
    "ties to odd": rounds(
        NEAREST, "a cast to bfloat16 is not the nearest number", "(bits + 0x8000 - ((bits >> 16) & 1)) & 0xFFFF0000"
    ),
    "always to the next": rounds(NEAREST, "is not the nearest number", "(bits + 0xFFFF) & 0xFFFF0000"),
    "a bit too few": rounds(
        NEAREST, "is not the nearest number", "(bits + (0xFFFF + ((bits >> 17) & 1))) & 0xFFFE0000"
    ),
    "bfloat16 is float32": in_numpy(NEAREST, "nothing was rounded", (BFLOAT16, "return x.astype(np.float32)")),
    "bfloat16 through float16": in_numpy(
        NEAREST, "they went through float16", (BFLOAT16, "return x.astype(np.float16).astype(np.float32)")
    ),
    "bfloat16 rounded from float16": in_numpy(
        SMALL,
        "they went through float16",
        (BFLOAT16, "return _to_bfloat16(x.astype(np.float16).astype(np.float32))"),
    ),
    "float16 through bfloat16": in_numpy(
        NEAREST, "they went through bfloat16", (LIBRARY, "return _to_bfloat16(x.astype(np.float32)).astype(dtype)")
    ),
    "float16 cut off": in_numpy(
        NEAREST,
        "digits beyond the format were cut off",
        (
            LIBRARY,
            "bits = x.astype(np.float32).view(np.uint32) & 0xFFFFE000\n    return bits.view(np.float32).astype(dtype)",
        ),
    ),
    "float16 through bfloat16 in torch": in_torch(
        NEAREST, "they went through bfloat16", "return x.to(torch.bfloat16).to(TYPES[dtype], copy=True)"
    ),
    "bfloat16 through float16 in torch": in_torch(
        NEAREST,
        "they went through float16",
        "return x.to(TYPES[dtype] if dtype == 'float32' else torch.float16).to(TYPES[dtype])",
    ),
    "cut off in torch": in_torch(
        NEAREST,
        "digits beyond the format were cut off",
        "if dtype == 'bfloat16':\n        return (x.view(torch.int32) & ~0xFFFF).view(torch.float32).bfloat16()\n    "
        + TORCH,
    ),
    "subnormal numbers flushed": in_numpy(
        SMALL,
        "subnormal numbers were made zero: the format holds them",
        (LIBRARY, "return np.where(abs(x) < 2.0**-14, x * 0, x).astype(dtype)"),
    ),
    "subnormal numbers flushed without a sign": in_numpy(
        SMALL,
        "subnormal numbers were made zero, without a sign",
        (NAN, "return np.where(abs(x) < 2.0**-126, np.float32(0), rounded.view(np.float32))"),
    ),
    "flushed in torch": in_torch(
        SMALL,
        "subnormal numbers were made zero: the format holds them",
        "y = x.to(TYPES[dtype], copy=True)\n    return torch.where(y.abs() < torch.finfo(TYPES[dtype]).tiny, y * 0, y)",
    ),
    "zero loses its sign": in_numpy(
        SMALL, "the sign of zero was lost", (LIBRARY, "return x.astype(dtype) + np.float16(0)")
    ),
    "zero loses its sign in torch": in_torch(SMALL, "the sign of zero was lost", "return x.to(TYPES[dtype]) + 0.0"),
    "all below the smallest is zero": in_numpy(
        SMALL, "is not the nearest number", (LIBRARY, "return np.where(abs(x) < 2.0**-24, x * 0, x).astype(dtype)")
    ),
    "half of the smallest is kept": in_numpy(
        SMALL,
        "is not the nearest number",
        (LIBRARY, "return np.where(abs(x) == 2.0**-25, np.copysign(np.float32(2.0**-24), x), x).astype(dtype)"),
    ),
    "infinite from the largest on": in_numpy(
        LARGE,
        "all beyond the largest number became infinite",
        (LIBRARY, "return np.where(abs(x) > 65504, np.copysign(np.inf, x), x).astype(dtype)"),
    ),
    "infinite at the largest": in_torch(
        LARGE,
        "all beyond the largest number became infinite",
        "y = x.to(TYPES[dtype], copy=True)\n"
        "    end = torch.finfo(TYPES[dtype]).max\n"
        "    return torch.where(x.abs() > end, torch.copysign(torch.full_like(y, torch.inf), y), y)",
    ),
    "clipped": in_numpy(
        LARGE, "numbers were clipped to the largest", (LIBRARY, "return np.clip(x, -65504, 65504).astype(dtype)")
    ),
    "clipped in torch": in_torch(
        LARGE,
        "numbers were clipped to the largest",
        "return x.clamp(-torch.finfo(TYPES[dtype]).max, torch.finfo(TYPES[dtype]).max).to(TYPES[dtype])",
    ),
    "bfloat16 never overflows": in_numpy(
        LARGE,
        "numbers were clipped to the largest",
        (NAN, "return np.clip(rounded.view(np.float32), -255 * 2.0**120, 255 * 2.0**120).astype(np.float32)"),
    ),
    "infinity without a sign": in_numpy(
        LARGE,
        "the sign of infinity was lost",
        (LIBRARY, "y = x.astype(dtype)\n    return np.where(np.isinf(y), np.inf, y).astype(dtype)"),
    ),
    "65520 is finite": in_numpy(
        LARGE,
        "the tie at the end went to the largest number",
        (LIBRARY, "return np.where(abs(x) == 65520, np.copysign(np.float32(65504), x), x).astype(dtype)"),
    ),
    "NaN carries over": in_numpy(STAY, "NaN became something else", (NAN, "return rounded.view(np.float32)")),
    "NaN becomes infinite": in_numpy(
        STAY, "NaN became something else", (NAN, NAN.replace("x, r", "np.float32(np.inf), r"))
    ),
    "NaN becomes zero": in_numpy(STAY, "NaN became something else", (LIBRARY, "return np.nan_to_num(x.astype(dtype))")),
    "NaN becomes zero in torch": in_torch(
        STAY, "NaN became something else", "return x.to(TYPES[dtype]).nan_to_num(0.0)"
    ),
    "infinity becomes the largest": in_numpy(
        STAY,
        "infinity became the largest number",
        (LIBRARY, "return np.where(np.isinf(x), np.copysign(np.finfo(dtype).max, x), x).astype(dtype)"),
    ),
    "bfloat16 in float64": in_numpy(
        TYPES,
        "returned another type: dtype: expected float32, found float64",
        (BFLOAT16, "return _to_bfloat16(x.astype(np.float32)).astype(np.float64)"),
    ),
    "float16 in float32": in_numpy(
        TYPES, "expected float16, found float32", (LIBRARY, "return x.astype(dtype).astype(np.float32)")
    ),
    "bfloat16 in float32 in torch": in_torch(
        TYPES,
        "expected torch.bfloat16, found torch.float32",
        "return x.to(TYPES[dtype]).to(torch.float16 if dtype == 'float16' else torch.float32, copy=True)",
    ),
    "bfloat16 for both": in_torch(TYPES, "expected torch.float16, found torch.bfloat16", "return x.bfloat16()"),
    "flattened": in_numpy(TYPES, "another shape", (LIBRARY, "return x.ravel().astype(dtype)")),
    "an axis added": in_torch(TYPES, "another shape", "return torch.atleast_1d(x).to(TYPES[dtype], copy=True)"),
    "numbers of Python": in_numpy(TYPES, "must return an array", (LIBRARY, "return x.astype(dtype).tolist()")),
    "float32 through float16": in_numpy(
        TYPES, "they went through float16", (LIBRARY, "return x.astype(np.float16).astype(dtype)")
    ),
    "float32 itself": in_numpy(
        ARGUMENTS, "cast_to_dtype returned what it was given", (LIBRARY, "return x.astype(dtype, copy=False)")
    ),
    "float32 itself in torch": in_torch(
        ARGUMENTS, "cast_to_dtype returned what it was given", "return x.to(TYPES[dtype])"
    ),
    "rounded in place": in_numpy(
        ARGUMENTS,
        "cast_to_dtype changed what it was given",
        (ROUND, f"{ROUND}\n    bits[...] = rounded"),
        (BFLOAT16, "return _to_bfloat16(x)"),
    ),
    "small numbers removed in place": Mutant(
        ARGUMENTS,
        "detect_underflow changed what it was given",
        ((UNDER, f"{UNDER} | (original.__setitem__(casted == 0, 0.0) is not None)"),),
    ),
    "zeros flagged": flags(UNDERFLOW, "numbers that were zero before", UNDER, "casted == 0"),
    "subnormal numbers flagged": flags(
        UNDERFLOW,
        "subnormal numbers are flagged",
        UNDER,
        "(original != 0) & (abs(casted) < np.finfo(casted.dtype).tiny)",
    ),
    "every change flagged": flags(UNDERFLOW, "every number that the cast changed", UNDER, "original != casted"),
    "small numbers flagged": flags(
        UNDERFLOW, "small numbers are flagged by their size", UNDER, "(original != 0) & (abs(original) < 2.0**-24)"
    ),
    "negative numbers left out": flags(
        UNDERFLOW, "negative numbers are left out", UNDER, "(original > 0) & (casted == 0)"
    ),
    "underflow turned round": flags(UNDERFLOW, "the other way round", UNDER, "(original == 0) | (casted != 0)"),
    "nothing underflows": flags(UNDERFLOW, "nothing is flagged", UNDER, "(original != 0) & (original == 0)"),
    "one answer for all": flags(
        UNDERFLOW, "must return an array of shape (15,)", UNDER, "((original != 0) & (casted == 0)).any()"
    ),
    "NaN flagged": flags(OVERFLOW, "NaN is flagged", OVER, "~np.isfinite(casted)"),
    "no minus infinity": flags(OVERFLOW, "minus infinity is left out", OVER, "casted == np.inf"),
    "largest flagged": flags(
        OVERFLOW, "the largest number is flagged", OVER, "abs(casted) >= np.finfo(casted.dtype).max"
    ),
    "65504 flagged": flags(OVERFLOW, "the largest number is flagged", OVER, "abs(casted) >= 65504"),
    "beyond 65504 flagged": flags(OVERFLOW, "finite in this format", OVER, "abs(casted) > 65504"),
    "NaN in place of infinity": flags(OVERFLOW, "NaN is flagged in place", OVER, "np.isnan(casted)"),
    "places": Mutant(OVERFLOW, "must return an array of shape (9,)", ((OVER, "np.argwhere(np.isinf(casted))"),)),
    "overflow as floats": flags(MASKS, "must return an array of bool", OVER, "np.isinf(casted).astype(np.float32)"),
    "underflow as numbers": flags(
        MASKS, "must return an array of bool", UNDER, "((original != 0) & (casted == 0)).astype(np.int64)"
    ),
    "underflow as a list": in_numpy(MASKS, "it returned list", (f"np.asarray({UNDER})", f"({UNDER}).tolist()")),
    "overflow flattened": flags(MASKS, "of shape (2, 3)", OVER, "np.isinf(casted).reshape(-1)"),
}


def test_the_laws_expect_what_exact_fractions_give() -> None:
    x = np.random.default_rng(0).integers(0, 2**32, 300, np.uint32).view(np.float32)
    x = x[np.isfinite(x)]
    for dtype in FORMATS:
        expected = [float(oracles.nearest(Fraction(float(v)), dtype)) for v in x]
        assert nearest(x, dtype).tolist() == expected


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    text = reference("representable_range", framework)
    report = graded(tmp_path, "representable_range", text, framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("representable_range").laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "representable_range", mutant, framework)


def test_every_law_has_a_mutant() -> None:
    laws = {law.name for law in exercise_named("representable_range").laws}
    assert {mutant.law for mutant in MUTANTS.values()} == laws


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "representable_range", framework)


BY_MULTIPLES = """
import numpy as np
def cast_to_dtype(x, dtype):
    wide = np.array(x, dtype=np.float64)
    bits, least = {"float16": (11, -24), "bfloat16": (8, -133), "float32": (24, -149)}[dtype]
    end = 2.0**16 if dtype == "float16" else 2.0**128
    place = 2.0 ** np.maximum(np.frexp(wide)[1] - bits, least)
    wide = np.where(np.isfinite(wide), np.rint(wide / place) * place, wide)
    wide[np.abs(wide) >= end] *= np.inf
    return wide.astype("float16" if dtype == "float16" else "float32")
def detect_underflow(original, casted):
    return np.logical_and(original.astype(bool), np.logical_not(casted))
def detect_overflow(casted):
    return np.abs(casted) == np.inf
"""
BY_BITS = """
import numpy as np
def cast_to_dtype(x, dtype):
    y = x.astype(np.float32, copy=True)
    if dtype == "bfloat16":
        bits = np.atleast_1d(y).copy().view(np.uint32)
        low, high = bits & 0xFFFF, bits >> 16
        high = high + ((low > 0x8000) | ((low == 0x8000) & (high % 2 == 1)))
        high = np.where(np.isnan(y), 0x7FC0, high.reshape(y.shape))
        return (high.astype(np.uint32) << 16).view(np.float32)
    return np.float16(y) if dtype == "float16" else y
def detect_underflow(original, casted):
    return (casted == 0) ^ ((original == 0) & (casted == 0))
def detect_overflow(casted):
    return (casted == np.inf) | (casted == -np.inf)
"""
BY_ELEMENTS = """
import numpy as np
from fractions import Fraction
from math import copysign, isfinite
def one(x, bits, least, largest):
    if x == 0 or not isfinite(x):
        return x
    exponent = least
    while abs(Fraction(x)) >= Fraction(2) ** (exponent + bits):
        exponent += 1
    y = round(Fraction(x) / Fraction(2) ** exponent) * Fraction(2) ** exponent
    return copysign(float(abs(y)) if abs(y) <= largest else float("inf"), x)
def cast_to_dtype(x, dtype):
    if dtype == "bfloat16":
        values = [one(v, 8, -133, 255 * 2**120) for v in x.ravel().tolist()]
        return np.array(values, np.float32).reshape(x.shape)
    return np.array(x, dtype=getattr(np, dtype))
def detect_underflow(original, casted):
    return np.array([a != 0 and b == 0 for a, b in zip(original.flat, casted.flat)], bool).reshape(original.shape)
def detect_overflow(casted):
    return np.isposinf(casted) | np.isneginf(casted)
"""
IN_TORCH = """
import torch
def cast_to_dtype(x, dtype):
    return getattr(x.detach().clone(), {"float16": "half", "bfloat16": "bfloat16", "float32": "float"}[dtype])()
def detect_underflow(original, casted):
    return torch.logical_and(original.bool(), ~casted.bool())
def detect_overflow(casted):
    return casted.abs().eq(torch.inf)
"""
WITH_EMPTY = """
import torch
def cast_to_dtype(x, dtype):
    return torch.empty(x.shape, dtype=getattr(torch, dtype)).copy_(x)
def detect_underflow(original, casted):
    return original.ne(0).logical_and(casted.eq(0))
def detect_overflow(casted):
    return casted.isposinf() | casted.isneginf()
"""


@pytest.mark.parametrize("text", [BY_MULTIPLES, BY_BITS, BY_ELEMENTS], ids=["by multiples", "by bits", "by elements"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "representable_range", text)) == []


@NO_TORCH
@pytest.mark.parametrize("text", [IN_TORCH, WITH_EMPTY], ids=["methods", "empty"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "representable_range", text, "torch")) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_representable_range.py"
        paths[framework].write_text(reference("representable_range", framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated("representable_range", "numpy", MUTANTS["bits cut off"].changes))
    ours, theirs = (paths["numpy"], "numpy"), (paths["torch"], "torch")
    exercise = exercise_named("representable_range")
    assert grade_against(ours, theirs, exercise, in_process=True).holds
    for side in (ours, theirs):
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, (verdict.leaf or "")[:13]) == (False, "bfloat16/cast")
