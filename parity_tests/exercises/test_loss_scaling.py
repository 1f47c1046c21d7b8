"""The exercise `loss_scaling`: right solutions pass, and wrong ones are caught by the law meant for them."""

from pathlib import Path

import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.grader import grade_against
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

SCALE, QUOTIENT, UNSCALED = "return loss * scale", "(wide / scale)", "    return unscaled\n"
WIDE, LOOK = "wide = g.astype(np.float64)", "return any(not np.isfinite(g).all() for g in gradients)"
PRODUCT, DIVIDED, ANY_SCALE = (
    "scaled-loss-is-the-product",
    "gradients-are-divided-by-the-scale",
    "scales-need-not-be-powers-of-two",
)
SHAPES, ARGUMENTS, SURVIVE = (
    "shapes-and-types-are-kept",
    "arguments-are-left-alone",
    "infinity-and-nan-survive-unscaling",
)
EVERY, FINITE, BOOL = (
    "every-value-of-every-array-is-looked-at",
    "finite-values-are-no-overflow",
    "answer-is-a-bool",
)


def scales(new: str) -> tuple[tuple[str, str], ...]:
    return ((SCALE, new),)


def divides(new: str) -> tuple[tuple[str, str], ...]:
    return ((QUOTIENT, new),)


def returns(new: str) -> tuple[tuple[str, str], ...]:
    return ((UNSCALED, f"    {new}\n"),)


def looks(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((LOOK, LOOK.replace(old, new)),)


MUTANTS = {
    "loss not scaled": Mutant(PRODUCT, "it was not scaled", scales("return loss * 1")),
    "loss scaled twice": Mutant(PRODUCT, "multiplied by the scale twice", scales("return loss * scale * scale")),
    "loss divided": Mutant(PRODUCT, "divided by the scale", scales("return loss / scale")),
    "scale added": Mutant(PRODUCT, "the scale was added", scales("return loss + scale")),
    "scaled loss in float16": Mutant(
        PRODUCT,
        "it was converted to float16, which ends at 65504",
        scales("return np.float16(loss * scale)"),
        ("numpy",),
    ),
    "loss in float16": Mutant(
        PRODUCT, "the loss was rounded to float16", scales("return np.float64(np.float16(loss)) * scale"), ("numpy",)
    ),
    "loss and scale in float16": Mutant(
        PRODUCT,
        "loss and scale were converted to float16",
        scales("return np.float16(loss) * np.float16(scale)"),
        ("numpy",),
    ),
    "whole part of the scale": Mutant(
        PRODUCT, "the scale was cut to a whole number", scales("return loss * int(scale)")
    ),
    "a power of two for the scale": Mutant(
        PRODUCT,
        "the scale was taken for a power of two",
        scales("import math\n    return loss * 2.0 ** round(math.log2(scale))"),
    ),
    "scale rounded to float32": Mutant(
        PRODUCT,
        "the scale was rounded to float32, also where the loss is float64",
        scales("return loss * float(np.float32(scale))"),
        ("numpy",),
    ),
    "scale in a tensor of float32": Mutant(
        PRODUCT,
        "the scale was rounded to float32, also where the loss is float64",
        scales("return loss * torch.tensor(scale).item()"),
        ("torch",),
    ),
    "product rounded to float32": Mutant(
        PRODUCT, "the product was rounded to float32", scales("return float(np.float32(loss * scale))"), ("numpy",)
    ),
    "loss of float64 in float32": Mutant(
        PRODUCT,
        "a loss of float64 was rounded to float32",
        scales(
            "if getattr(loss, 'dtype', None) != np.float64:\n        return loss * scale\n"
            "    return (loss.astype(np.float32) * scale).astype(np.float64)"
        ),
    ),
    "an array for a float": Mutant(
        PRODUCT,
        "scale_loss was given a float; it returned an array",
        scales("return np.asarray(loss * scale)"),
        ("numpy",),
    ),
    "a tensor for a float": Mutant(
        PRODUCT,
        "scale_loss was given a float; it returned an array",
        scales("return loss * torch.tensor(scale, dtype=getattr(loss, 'dtype', torch.float64))"),
        ("torch",),
    ),
    "a float for an array": Mutant(
        PRODUCT,
        "scale_loss was given an array without axes of float32; it returned float",
        scales("return float(loss) * scale"),
    ),
    "float64 for float32": Mutant(
        PRODUCT,
        "the type of the loss was changed",
        scales("return loss * scale if isinstance(loss, float) else loss.astype(np.float64) * scale"),
    ),
    "a tensor in float16": Mutant(
        PRODUCT, "it was converted to float16", scales("return torch.as_tensor(loss * scale).half()"), ("torch",)
    ),
    "loss is a vector": Mutant(
        PRODUCT, "must return a number, or an array without axes", scales("return np.ones(1) * loss * scale")
    ),
    "loss taken out of the graph": Mutant(
        PRODUCT, "autograd cannot reach the loss", scales("return getattr(loss, 'data', loss) * scale"), ("torch",)
    ),
    "the scale reaches the number, not the derivative": Mutant(
        PRODUCT,
        "has not the scale for its derivative",
        scales("return (loss * scale).detach() + 0 * loss if torch.is_tensor(loss) else loss * scale"),
        ("torch",),
    ),
    "multiplies": Mutant(DIVIDED, "they were multiplied by the scale", divides("(wide * scale)")),
    "not unscaled": Mutant(DIVIDED, "they were not unscaled", divides("(wide * 1)")),
    "unscaled twice": Mutant(DIVIDED, "divided by the scale twice", divides("(wide / scale / scale)")),
    "only the first array unscaled": Mutant(
        DIVIDED, "only the first array was unscaled", divides("(wide / scale if not unscaled else wide * 1)")
    ),
    "scale infinite in float16": Mutant(
        DIVIDED, "the scale became infinite in float16", ((f"{WIDE}  #", "wide = g  #"),), ("numpy",)
    ),
    "scale in the gradient's type": Mutant(
        DIVIDED, "the scale became infinite in float16", divides("(g / torch.tensor(scale, dtype=g.dtype))"), ("torch",)
    ),
    "inverse in the gradient's type": Mutant(
        DIVIDED,
        "the inverse of the scale was rounded to the gradients' type",
        divides("(g * g.dtype.type(1 / scale))"),
        ("numpy",),
    ),
    "inverse in the tensor's type": Mutant(
        DIVIDED,
        "the inverse of the scale was rounded to the gradients' type",
        divides("(g * (torch.ones((), dtype=g.dtype) / scale))"),
        ("torch",),
    ),
    "float64 by way of float32": Mutant(
        DIVIDED,
        "gradients of float64 were rounded to float32 on the way",
        divides("(wide.astype(np.float32) / scale)"),
    ),
    "zero for everything": Mutant(DIVIDED, "every quotient is 0", divides("(wide * 0)")),
    "subnormal quotients become 0": Mutant(
        DIVIDED,
        "quotients below 2**-14, the smallest normal number of float16, became 0",
        divides("np.where(abs(wide / scale) < 2.0**-14, 0 * wide, wide / scale)"),
    ),
    "a scale below 1 is taken for 1": Mutant(
        DIVIDED, "a scale below 1 was taken for 1", divides("(wide / max(scale, 1.0))")
    ),
    "scale cut to a whole number, also to 0": Mutant(
        DIVIDED, "the scale was cut to a whole number", divides("(wide / int(scale))")
    ),
    "something small added to the scale": Mutant(
        DIVIDED, "the gradients are not divided by it", divides("(wide / (scale + 1e-8))")
    ),
    "zeros lose their sign": Mutant(DIVIDED, "expected -0.0, found 0.0", divides("(wide / scale + 0.0)")),
    "scale cut to a whole number": Mutant(
        ANY_SCALE, "the scale was cut to a whole number", divides("(wide / int(scale))")
    ),
    "scale taken for a power of two": Mutant(
        ANY_SCALE,
        "the scale was taken for a power of two",
        divides("(wide / 2.0 ** (int(scale).bit_length() - 1))"),
    ),
    "inverse in float16": Mutant(
        ANY_SCALE,
        "the inverse of the scale was rounded to float16",
        divides("(wide * float(np.float16(1 / scale)))"),
        ("numpy",),
    ),
    "inverse too short in the gradient's type": Mutant(
        ANY_SCALE,
        "the inverse of the scale was rounded to the gradients' type",
        divides("(g * g.dtype.type(1 / scale))"),
        ("numpy",),
    ),
    "scale rounded to the nearest power of two": Mutant(
        ANY_SCALE,
        "the scale was taken for a power of two",
        divides("(wide / 2.0 ** round(__import__('math').log2(scale)))"),
    ),
    "inverse rounded to six places": Mutant(
        ANY_SCALE, "the gradients are not divided by it", divides("(wide * round(1 / scale, 6))")
    ),
    "flattened": Mutant(SHAPES, "the array was flattened", returns("return [x.reshape(-1) for x in unscaled]")),
    "an axis added": Mutant(SHAPES, "an axis was added", returns("return [x[None] for x in unscaled]")),
    "left in float64": Mutant(
        SHAPES, "gradients[0] is float32 and became float64", returns("return [x.astype(np.float64) for x in unscaled]")
    ),
    "all in float32": Mutant(
        SHAPES, "gradients[1] is float16 and became float32", returns("return [x.astype(np.float32) for x in unscaled]")
    ),
    "joined to one array": Mutant(
        SHAPES,
        "was given 6 arrays and returned 1",
        returns("return [np.concatenate([x.reshape(-1) for x in unscaled])] if unscaled else []"),
    ),
    "arrays without elements left out": Mutant(
        SHAPES, "was given 6 arrays and returned 5", returns("return [x for x in unscaled if 0 not in x.shape]")
    ),
    "a generator": Mutant(SHAPES, "generator", returns("return (x for x in unscaled)")),
    "in place": Mutant(
        ARGUMENTS,
        "unscale_gradients changed what it was given",
        returns("for g, x in zip(gradients, unscaled):\n        g[...] = x\n    return unscaled"),
    ),
    "the list is refilled": Mutant(
        ARGUMENTS,
        "unscale_gradients changed what it was given",
        returns("gradients[:] = unscaled\n    return unscaled"),
    ),
    "loss in place": Mutant(
        ARGUMENTS,
        "scale_loss changed what it was given",
        scales("if not isinstance(loss, float):\n        loss *= scale\n        return loss\n    return loss * scale"),
    ),
    "a scale of 1 hands back the same arrays": Mutant(
        ARGUMENTS, "hands back the caller's own arrays", returns("return gradients if scale == 1 else unscaled")
    ),
    "the look repairs": Mutant(
        ARGUMENTS,
        "has_inf_or_nan changed what it was given",
        looks(
            "return",
            "found = "
            + LOOK.removeprefix("return ")
            + "\n    for g in gradients:\n        g[np.isnan(g)] = 0.0\n    return found or",
        ),
    ),
    "NaN becomes zero": Mutant(
        SURVIVE, "a value that is not finite was replaced", divides("np.nan_to_num(wide / scale)")
    ),
    "what is not finite becomes zero": Mutant(
        SURVIVE, "unscaling hides an overflow", divides("np.where(np.isfinite(wide), wide / scale, 0.0)")
    ),
    "clipped": Mutant(SURVIVE, "unscaling hides an overflow", divides("np.clip(wide / scale, -65504.0, 65504.0)")),
    "nothing after an overflow": Mutant(
        SURVIVE,
        "must return a list; it returned None",
        returns("return None if has_inf_or_nan(unscaled) else unscaled"),
    ),
    "only the first array": Mutant(EVERY, "only the first array is looked at", looks("gradients)", "gradients[:1])")),
    "only the last array": Mutant(EVERY, "only the last array is looked at", looks("gradients)", "gradients[-1:])")),
    "only infinity": Mutant(EVERY, "NaN is not looked for", looks("not np.isfinite(g).all()", "np.isinf(g).any()")),
    "only NaN": Mutant(EVERY, "infinity is not looked for", looks("not np.isfinite(g).all()", "np.isnan(g).any()")),
    "NaN by ==": Mutant(
        EVERY,
        "NaN is not looked for",
        looks("not np.isfinite(g).all()", "((g == float('nan')) | (abs(g) == float('inf'))).any()"),
    ),
    "no minus infinity": Mutant(
        EVERY,
        "minus infinity is not looked for",
        looks("not np.isfinite(g).all()", "(np.isnan(g) | (g == np.inf)).any()"),
    ),
    "largest value": Mutant(
        EVERY, "NaN and minus infinity are not looked for", looks("not np.isfinite(g).all()", "np.max(g) == np.inf")
    ),
    "largest size": Mutant(
        EVERY, "NaN is not looked for", looks("not np.isfinite(g).all()", "np.max(np.abs(g)) == np.inf")
    ),
    "only the first element": Mutant(
        EVERY, "only the first element", looks("np.isfinite(g).all()", "np.isfinite(g.reshape(-1)[:1]).all()")
    ),
    "sum tested for infinity": Mutant(
        EVERY, "inf - inf, makes it NaN", looks("not np.isfinite(g).all()", "np.isinf(g.sum())")
    ),
    "all elements must be bad": Mutant(
        EVERY, "all elements must be bad", looks("np.isfinite(g).all()", "np.isfinite(g).any()")
    ),
    "all arrays must be bad": Mutant(EVERY, "all arrays must be bad", looks("any(", "all(")),
    "answer after the first array": Mutant(
        EVERY,
        "only the first array is looked at",
        looks("return", "for g in gradients:\n        return not bool(np.isfinite(g).all())\n    return"),
    ),
    "nothing found": Mutant(EVERY, "nothing is found at all", looks("return", "return False and")),
    "always found": Mutant(FINITE, "an overflow is found everywhere", looks("return", "return True or")),
    "an empty list counts": Mutant(
        FINITE, "nothing to look at is no overflow", looks("return", "return not gradients or")
    ),
    "an empty array counts": Mutant(
        FINITE, "an array without elements is no overflow", looks("for g", "or 0 in g.shape for g")
    ),
    "sum tested": Mutant(FINITE, "the values are added up", looks("np.isfinite(g)", "np.isfinite(g.sum())")),
    "squares tested": Mutant(FINITE, "the values are squared", looks("np.isfinite(g)", "np.isfinite((g * g).sum())")),
    "squares tested in float32": Mutant(
        FINITE, "the values are squared", looks("np.isfinite(g)", "np.isfinite((g.astype(np.float32) ** 2).sum())")
    ),
    "norm tested": Mutant(
        FINITE, "the values are squared", looks("np.isfinite(g)", "np.isfinite((g.astype(np.float64) ** 2).sum())")
    ),
    "sum tested in float64": Mutant(
        FINITE, "the values are added up", looks("np.isfinite(g)", "np.isfinite(g.astype(np.float64).sum())")
    ),
    "converted to float32": Mutant(
        FINITE, "the values are converted to float32", looks("np.isfinite(g)", "np.isfinite(g.astype(np.float32))")
    ),
    "converted to float16": Mutant(
        FINITE, "the values are converted to float16", looks("np.isfinite(g)", "np.isfinite(g.astype(np.float16))")
    ),
    "large values counted": Mutant(
        FINITE, "large values are taken for infinite", looks("np.isfinite(g)", "(abs(g) <= 65000)")
    ),
    "largest number counted": Mutant(
        FINITE, "large values are taken for infinite", looks("np.isfinite(g)", "(abs(g) < np.finfo(g.dtype).max)")
    ),
    "looked at after scaling again": Mutant(
        FINITE, "sees an overflow where there is none", looks("np.isfinite(g)", "np.isfinite(g * 2.0**16)")
    ),
    "NumPy's bool": Mutant(
        BOOL,
        "an array's truth is no bool",
        looks(LOOK, f"return np.any([{LOOK[11:-1]}])"),
        ("numpy",),
    ),
    "a tensor": Mutant(
        BOOL,
        "an array's truth is no bool",
        looks(LOOK, "bad = [not torch.isfinite(g).all() for g in gradients]\n    return torch.tensor(bad).any()"),
        ("torch",),
    ),
    "a number": Mutant(BOOL, "it returned int 0", looks("any(", "sum(")),
    "a list": Mutant(BOOL, "it returned list", looks("any(", "list(")),
    "None for False": Mutant(
        BOOL, "the function ends without a return", ((LOOK, LOOK.replace("return", "if") + ":\n        return True"),)
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, "loss_scaling", reference("loss_scaling", framework), framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("loss_scaling").laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "loss_scaling", mutant, framework)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named("loss_scaling").laws}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "loss_scaling", framework)


IN_PLACE = """
import copy
import numpy as np
def scale_loss(loss, scale):
    return scale * loss
def unscale_gradients(gradients, scale):
    result = copy.deepcopy(gradients)
    for i, g in enumerate(result):
        g = np.array(g, dtype=np.float32 if g.dtype == np.float16 else g.dtype)
        g /= scale
        result[i] = g.astype(gradients[i].dtype)
    return result
def has_inf_or_nan(gradients):
    for g in gradients:
        if bool(np.isinf(g).any() or np.isnan(g).any()):
            return True
    return False
"""
INVERSE = """
import numpy as np
def scale_loss(loss, scale):
    return np.multiply(loss, scale)
def unscale_gradients(gradients, scale):
    inverse = np.float32(1 / np.float64(scale))
    return tuple(np.asarray(g * inverse).astype(g.dtype, copy=False) for g in gradients)
def has_inf_or_nan(gradients):
    return not all(bool(np.isfinite(g).all()) for g in gradients)
"""
BY_ELEMENTS = """
import math
import numpy as np
def scale_loss(loss, scale):
    if isinstance(loss, float):
        return math.fsum([loss * scale])
    return np.array(loss.item() * scale, loss.dtype)
def unscale_gradients(gradients, scale):
    def one(g):
        return np.array([x * (1 / scale) for x in g.ravel().tolist()], np.float64).astype(g.dtype).reshape(g.shape)
    return [*map(one, gradients)]
def has_inf_or_nan(gradients):
    return sum(not math.isfinite(x) for g in gradients for x in g.ravel().tolist()) > 0
"""
STOCK = """
import torch
def scale_loss(loss, scale):
    return loss * torch.full((), scale, dtype=loss.dtype) if isinstance(loss, torch.Tensor) else loss * scale
def unscale_gradients(gradients, scale):
    copies = [g.clone() for g in gradients]
    if copies:
        inverse = torch.full((), scale).double().reciprocal().float()
        for g in copies:
            torch._amp_foreach_non_finite_check_and_unscale_([g], torch.zeros(()), inverse)
    return copies
def has_inf_or_nan(gradients):
    found = torch.zeros(())
    for g in gradients:
        torch._amp_foreach_non_finite_check_and_unscale_([g.clone()], found, torch.ones(()))
    return found.item() > 0
"""


@pytest.mark.parametrize("text", [IN_PLACE, INVERSE, BY_ELEMENTS], ids=["in place", "inverse", "by elements"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "loss_scaling", text)) == []


IN_TORCH = """
import torch
def scale_loss(loss, scale):
    return scale * loss
def unscale_gradients(gradients, scale):
    return tuple((g.float() if g.dtype == torch.float16 else g).mul(1 / scale).to(g.dtype) for g in gradients)
def has_inf_or_nan(gradients):
    return True in [bool((g - g).isnan().any()) for g in gradients]
"""


@NO_TORCH
@pytest.mark.parametrize("text", [IN_TORCH, STOCK], ids=["inverse", "torch.amp"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "loss_scaling", text, "torch")) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_loss_scaling.py"
        paths[framework].write_text(reference("loss_scaling", framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated("loss_scaling", "numpy", MUTANTS["scale cut to a whole number"].changes))
    ours, theirs, exercise = (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named("loss_scaling")
    assert grade_against(ours, theirs, exercise, in_process=True).holds
    for side in (ours, theirs):
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, "unscaled" in (verdict.leaf or "")) == (False, True)
