"""The exercise `flops`: right solutions pass, and wrong ones are caught by the law meant for them, with a reason."""

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

NAME = "flops"
PRODUCT_LAW, FORWARD_LAW = "a-product-counts-twice-its-terms", "forward-is-products-and-attention"
STEP_LAW, DATA, AGAIN = (
    "a-step-is-three-forward-passes",
    "data-need-no-gradient",
    "what-is-computed-again-counts-once-more",
)
KNOWN, ARGUMENTS = "known-models-have-their-known-cost", "arguments-are-left-alone"
NUMPY = ("from collections.abc import Sequence\n", "from collections.abc import Sequence\n\nimport numpy as np\n")
PRODUCT = "return 2 * m * k * n"
SUM = "return sum(matmul_flops(*product) for product in matmuls) + attention_forward"
STEP = "step = 3 * forward_flops(matmuls, attention_forward) + recomputed_forward"
SKIP = "if matmuls and not input_gradient:\n        step -= matmul_flops(*matmuls[0])"
END = "    return step\n"


def product(new: str) -> tuple[tuple[str, str], ...]:
    return ((PRODUCT, new),)


def total(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((SUM, SUM.replace(old, new)),)


def step(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((STEP, STEP.replace(old, new)),)


def skip(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((SKIP, SKIP.replace(old, new)),)


MUTANTS = {
    "m k n without the 2": Mutant(PRODUCT_LAW, "the 2 of 2 m k n was left out", product("return m * k * n")),
    "2 k - 1 operations an element": Mutant(
        PRODUCT_LAW, "the first addition counts, too", product("return m * n * (2 * k - 1)")
    ),
    "k left out": Mutant(PRODUCT_LAW, "k was left out", product("return 2 * m * n")),
    "sizes added": Mutant(PRODUCT_LAW, "the sizes were added", product("return 2 * (m + k + n)")),
    "float": Mutant(PRODUCT_LAW, "a float is exact to 2**53 only", product("return 2.0 * m * k * n")),
    "rounded in a float": Mutant(
        PRODUCT_LAW, "the result was rounded in a float", product("return int(2.0 * m * k * n)")
    ),
    "np.prod in 32 bits": Mutant(
        PRODUCT_LAW,
        "overflowed in an int of 32 bits",
        (NUMPY, (PRODUCT, "return int(np.prod([2, m, k, n], dtype=np.int32))")),
        ("numpy",),
    ),
    "np.prod in 64 bits": Mutant(
        PRODUCT_LAW,
        "overflowed in an int of 64 bits",
        (NUMPY, (PRODUCT, "return int(np.prod([2, m, k, n]))")),
        ("numpy",),
    ),
    "a NumPy int": Mutant(
        PRODUCT_LAW, "ints of a fixed size overflow", (NUMPY, (PRODUCT, "return np.prod([2, m, k, n])")), ("numpy",)
    ),
    "torch.prod": Mutant(
        PRODUCT_LAW,
        "overflowed in an int of 64 bits",
        (
            ("from collections.abc import Sequence\n", "from collections.abc import Sequence\n\nimport torch\n"),
            (PRODUCT, "return torch.tensor([2, m, k, n]).prod().item()"),
        ),
        ("torch",),
    ),
    "attention forgotten": Mutant(FORWARD_LAW, "; attention was forgotten", total(" + attention_forward", "")),
    "attention halved for a causal mask": Mutant(
        FORWARD_LAW, "attention was halved", total("attention_forward", "attention_forward // 2")
    ),
    "attention twice": Mutant(
        FORWARD_LAW, "attention was counted twice", total("attention_forward", "2 * attention_forward")
    ),
    "equal products once": Mutant(
        FORWARD_LAW, "products of the same sizes were counted once", total("in matmuls", "in set(map(tuple, matmuls))")
    ),
    "the whole step as the forward pass": Mutant(
        FORWARD_LAW, "that is the whole step", ((SUM, f"{SUM.replace('return ', 'return 3 * (')})"),)
    ),
    "backward pass once": Mutant(STEP_LAW, "the backward pass was counted once", step("3 *", "2 *")),
    "backward pass forgotten": Mutant(STEP_LAW, "the backward pass was forgotten", step("3 *", "1 *")),
    "attention without a backward pass": Mutant(
        STEP_LAW, "the backward pass of attention was forgotten", step("attention_forward)", "0) + attention_forward")
    ),
    "attention with one backward product": Mutant(
        STEP_LAW,
        "the backward pass of attention was counted once",
        step("attention_forward)", "0) + 2 * attention_forward"),
    ),
    "attention forgotten in the step": Mutant(STEP_LAW, "; attention was forgotten", step("attention_forward)", "0)")),
    "the data's gradient counted": Mutant(
        DATA, "gradient by the input of the first product was counted", skip("if matmuls and not", "if False and not")
    ),
    "the data's gradient never counted": Mutant(
        DATA, "gradient by the input of the first product was left out", skip(" and not input_gradient", "")
    ),
    "the whole backward pass of the first product left out": Mutant(
        DATA, "has still one gradient", skip("step -=", "step -= 2 *")
    ),
    "the first product left out": Mutant(DATA, "the whole first product was left out", skip("step -=", "step -= 3 *")),
    "no gradients by inputs at all": Mutant(
        DATA,
        "gradients by the inputs of all products were left out",
        skip("matmul_flops(*matmuls[0])", "forward_flops(matmuls, 0)"),
    ),
    "the last product's left out": Mutant(DATA, "the last product's was left out", skip("[0]", "[-1]")),
    "no products at all": Mutant(DATA, "training_flops raised IndexError", skip("if matmuls and not", "if not")),
    "recomputation forgotten": Mutant(AGAIN, "what is computed again was forgotten", step(" + recomputed_forward", "")),
    "recomputation three times": Mutant(
        AGAIN, "counted three times more", step("recomputed_forward", "3 * recomputed_forward")
    ),
    "recomputation twice": Mutant(AGAIN, "counted twice more", step("recomputed_forward", "2 * recomputed_forward")),
    "the whole forward pass again": Mutant(
        AGAIN,
        "the whole forward pass was computed again",
        step("recomputed_forward", "bool(recomputed_forward) * forward_flops(matmuls, attention_forward)"),
    ),
    "step rounded in a float": Mutant(
        KNOWN, "the result was rounded in a float", ((END, "    return int(float(step))\n"),)
    ),
    "step in 64 bits": Mutant(
        KNOWN, "overflowed in an int of 64 bits", ((END, "    return (step + 2**63) % 2**64 - 2**63\n"),)
    ),
    "thousands dropped": Mutant(
        KNOWN,
        "GPT-2: not the step that is known",
        ((END, "    return step if step < 10**9 else step // 1000 * 1000\n"),),
    ),
    "the first product taken out": Mutant(
        ARGUMENTS, "it writes into matmuls, or removes from it", skip("*matmuls[0]", "*matmuls.pop(0)")
    ),
    "products sorted": Mutant(
        ARGUMENTS, "forward_flops changed what it was given", ((SUM, f"matmuls.sort(reverse=True)\n    {SUM}"),)
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, NAME, reference(NAME, framework), framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named(NAME).laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, NAME, mutant, framework)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named(NAME).laws}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, NAME, framework)


LOOPS = """
def matmul_flops(m, k, n):
    flops = 0
    for operation in ("multiply", "add"):
        flops += m * k * n
    return flops
def forward_flops(matmuls, attention_forward):
    flops = attention_forward
    for m, k, n in matmuls:
        flops += matmul_flops(m, k, n)
    return flops
def training_flops(matmuls, attention_forward, recomputed_forward, input_gradient):
    flops = forward_flops(matmuls, attention_forward) + 2 * attention_forward + recomputed_forward
    for i, (m, k, n) in enumerate(matmuls):
        flops += matmul_flops(k, m, n)
        if i > 0 or input_gradient:
            flops += matmul_flops(m, n, k)
    return flops
"""
OBJECTS = """
import numpy as np
def matmul_flops(m, k, n):
    return int(np.multiply.reduce(np.array([m, k, n, 2], dtype=object)))
def forward_flops(matmuls, attention_forward):
    sizes = np.array([tuple(p) for p in matmuls], dtype=object).reshape(-1, 3)
    return int((2 * sizes[:, 0] * sizes[:, 1] * sizes[:, 2]).sum()) + attention_forward
def training_flops(matmuls, attention_forward, recomputed_forward, input_gradient):
    first = 0 if input_gradient else forward_flops(matmuls[:1], 0)
    return forward_flops(matmuls, attention_forward) * 3 - first + recomputed_forward
"""
RECURSIVE = """
def matmul_flops(m, k, n):
    return (m * k * n) << 1
def forward_flops(matmuls, attention_forward):
    if len(matmuls) == 0:
        return attention_forward
    first, *rest = matmuls
    return forward_flops(rest, attention_forward + matmul_flops(*first))
def training_flops(matmuls, attention_forward, recomputed_forward, input_gradient):
    forward = forward_flops(matmuls, attention_forward)
    by_weights = forward
    by_inputs = forward if input_gradient else forward_flops(matmuls[1:], attention_forward)
    return sum((forward, by_weights, by_inputs, recomputed_forward))
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("text", [LOOPS, OBJECTS, RECURSIVE], ids=["loops", "objects", "recursive"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str, framework: str) -> None:
    assert told(graded(tmp_path, NAME, text, framework)) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    exercise, sides = exercise_named(NAME), []
    for framework in ("numpy", "torch"):
        path = tmp_path / f"{framework}_solution.py"
        path.write_text(reference(NAME, framework))
        sides.append((path, framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated(NAME, "numpy", MUTANTS["recomputation forgotten"].changes))
    assert grade_against(*sides, exercise, in_process=True).holds
    for side in sides:
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, verdict.leaf) == (False, "step 2")
