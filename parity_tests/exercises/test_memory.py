"""The exercise `memory`: right solutions pass, and wrong ones are caught by the law meant for them, with a reason."""

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

NAME = "memory"
ELEMENTS, CLASSES, MOMENTS = "elements-are-counted-exactly", "each-class-has-its-width", "optimizers-have-their-moments"
MASTER, FROZEN = "a-master-copy-counts-where-it-is-kept", "frozen-parameters-have-values-alone"
KNOWN, ARGUMENTS = "known-models-have-their-known-size", "arguments-are-left-alone"
PRODUCT = "return math.prod(shape)"
NUMPY = ("import math\n", "import math\n\nimport numpy as np\n")
RESULT = 'return {**memory, "total": sum(memory.values())}'
STATE = 'MOMENTS[optimizer] * widths["moment"]'
COPY = 'if master_weights:\n        state += widths["master"]'
OPTIMIZER = '"optimizer": trained * state,'
TRAINED = "trained = sum(map(count_elements, param_shapes))"


def counted(new: str) -> tuple[tuple[str, str], ...]:
    return ((PRODUCT, new),)


def returned(new: str) -> tuple[tuple[str, str], ...]:
    return ((RESULT, new),)


def state(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((STATE, STATE.replace(old, new)),)


MUTANTS = {
    "() counted as 0": Mutant(ELEMENTS, "() is the shape of a single number", counted(f"{PRODUCT} if shape else 0")),
    "size 0 counted as 1": Mutant(
        ELEMENTS, "a size of 0 was skipped", counted("return math.prod(s or 1 for s in shape)")
    ),
    "sizes added": Mutant(ELEMENTS, "the sizes were added", counted("return sum(shape)")),
    "32 bits": Mutant(ELEMENTS, "an int of 32 bits", counted("return (math.prod(shape) + 2**31) % 2**32 - 2**31")),
    "np.prod in 32 bits": Mutant(
        ELEMENTS, "an int of 32 bits", (NUMPY, (PRODUCT, "return int(np.prod(shape, dtype=np.int32))")), ("numpy",)
    ),
    "np.prod in 64 bits": Mutant(
        ELEMENTS, "an int of 64 bits", (NUMPY, (PRODUCT, "return int(np.prod(shape, dtype=np.int64))")), ("numpy",)
    ),
    "np.prod as it comes": Mutant(
        ELEMENTS, "must be a Python int, found", (NUMPY, (PRODUCT, "return np.prod(shape)")), ("numpy",)
    ),
    "numel of a torch.Size": Mutant(
        ELEMENTS,
        "an int of 64 bits",
        (
            ("import math\n", "import torch\n"),
            (PRODUCT, "return torch.Size(shape).numel()"),
        ),
        ("torch",),
    ),
    "float": Mutant(ELEMENTS, "a float is exact to 2**53 only", counted("return math.prod(shape) / 1")),
    "rounded in a float": Mutant(
        ELEMENTS, "the product was rounded in a float", counted("return int(math.prod(shape, start=1.0))")
    ),
    "activations forgotten": Mutant(CLASSES, "the activations were forgotten", (('kept * widths["activation"]', "0"),)),
    "activations in the parameters' width": Mutant(
        CLASSES,
        "the activations were counted in the parameters' width",
        (('kept * widths["activation"]', 'kept * widths["parameter"]'),),
    ),
    "equal shapes counted once": Mutant(
        CLASSES,
        "shapes that occur twice were counted once, in param_shapes and activation_shapes: each is an array of its own",
        tuple(
            (f"count_elements, {name}_shapes)", f"count_elements, set(map(tuple, {name}_shapes)))")
            for name in ("param", "frozen", "activation")
        ),
    ),
    "equal shapes of parameters counted once": Mutant(
        MOMENTS,
        "counted once, in param_shapes",
        (("elements, param_shapes)", "elements, set(map(tuple, param_shapes)))"),),
    ),
    "equal shapes of activations counted once": Mutant(
        CLASSES,
        "counted once, in activation_shapes",
        (("elements, activation_shapes)", "elements, set(map(tuple, activation_shapes)))"),),
    ),
    "equal shapes of frozen parameters counted once": Mutant(
        FROZEN,
        "counted once, in frozen_shapes",
        (("elements, frozen_shapes)", "elements, set(map(tuple, frozen_shapes)))"),),
    ),
    "gradients in the parameters' width": Mutant(
        CLASSES,
        "the gradients were counted in the parameters' width",
        (('trained * widths["gradient"]', 'trained * widths["parameter"]'),),
    ),
    "bits for bytes": Mutant(
        CLASSES,
        "the result is in bits",
        returned('return {k: 8 * v for k, v in {**memory, "total": sum(memory.values())}.items()}'),
    ),
    "elements for bytes": Mutant(
        CLASSES, "elements were counted, not bytes", ((TRAINED, f"widths = dict.fromkeys(widths, 1)\n    {TRAINED}"),)
    ),
    "total without activations": Mutant(
        CLASSES,
        "the total leaves out the activations",
        returned(RESULT.replace("sum(memory.values())", 'sum(memory.values()) - memory["activations"]')),
    ),
    "total with the optimizer twice": Mutant(
        CLASSES,
        "the total holds the optimizer twice",
        returned(RESULT.replace("sum(memory.values())", 'sum(memory.values()) + memory["optimizer"]')),
    ),
    "no total": Mutant(CLASSES, "must return the keys", returned("return memory")),
    "in mebibytes": Mutant(
        CLASSES,
        "must be a Python int, found float",
        returned('return {k: v / 2**20 for k, v in {**memory, "total": sum(memory.values())}.items()}'),
    ),
    "one moment for Adam": Mutant(
        MOMENTS, "Adam has two moments", state("MOMENTS[optimizer]", "min(MOMENTS[optimizer], 1)")
    ),
    "a moment for plain SGD": Mutant(
        MOMENTS, "one moment too many", state("MOMENTS[optimizer]", "max(MOMENTS[optimizer], 1)")
    ),
    "no moments": Mutant(MOMENTS, "the optimizer's moments were forgotten", state("MOMENTS[optimizer]", "0")),
    "moments in the parameters' width": Mutant(
        MOMENTS, "the moments were counted in the parameters' width", state("moment", "parameter")
    ),
    "moments in the gradients' width": Mutant(
        MOMENTS, "the moments were counted in the gradients' width", state("moment", "gradient")
    ),
    "master copy forgotten": Mutant(MASTER, "the master copy was forgotten", ((COPY, "pass"),)),
    "master copy for Adam alone": Mutant(
        MASTER, "sgd with a master copy has not its bytes", ((COPY, COPY.replace(":", ' and optimizer == "adam":')),)
    ),
    "master copy always": Mutant(
        MASTER, "a master copy was counted where none is kept", ((COPY, COPY.replace("master_weights", "True")),)
    ),
    "master copy in the parameters' width": Mutant(
        MASTER,
        "the master copy was counted in the parameters' width",
        ((COPY, COPY.replace('"master"', '"parameter"')),),
    ),
    "frozen parameters forgotten": Mutant(
        FROZEN, "the frozen parameters were forgotten", (("(trained + frozen) *", "trained *"),)
    ),
    "no activations where no parameter is trained": Mutant(
        FROZEN,
        "with all parameters frozen, a class has not its bytes: activations: expected 280, found 0",
        (('kept * widths["activation"]', 'kept * bool(param_shapes) * widths["activation"]'),),
    ),
    "gradients of frozen parameters": Mutant(
        FROZEN,
        "gradients of frozen parameters were counted",
        (('trained * widths["gradient"]', '(trained + frozen) * widths["gradient"]'),),
    ),
    "optimizer state of frozen parameters": Mutant(
        FROZEN, "moments of frozen parameters were counted", ((OPTIMIZER, '"optimizer": (trained + frozen) * state,'),)
    ),
    "master copies of frozen parameters": Mutant(
        FROZEN,
        "master copies of frozen parameters",
        ((OPTIMIZER, OPTIMIZER.replace("state", 'state + master_weights * frozen * widths["master"]')),),
    ),
    "16 bytes a parameter, whatever it has": Mutant(
        KNOWN,
        "GPT-2, 16 bits, gradients in float32, Adam: not the size",
        returned(RESULT.replace("sum(memory.values())", '16 * trained + memory["activations"]')),
    ),
    "total in a float": Mutant(
        KNOWN,
        "the total was rounded in a float",
        returned(RESULT.replace("sum(memory.values())", "int(sum(memory.values(), 0.0))")),
    ),
    "frozen shapes added to the trained ones": Mutant(
        ARGUMENTS, "it writes into param_shapes", ((TRAINED, f"{TRAINED}\n    param_shapes += frozen_shapes"),)
    ),
    "shapes taken out of the list": Mutant(
        ARGUMENTS,
        "it writes into activation_shapes, or removes",
        (
            (
                TRAINED,
                f"{TRAINED}\n    kept = 0\n    while activation_shapes:\n        kept += "
                "count_elements(activation_shapes.pop())",
            ),
            ("    kept = sum(map(count_elements, activation_shapes))\n", ""),
        ),
    ),
    "a width written": Mutant(ARGUMENTS, "it writes into widths", ((COPY, COPY + '\n    widths["master"] = 0'),)),
    "one dict for all calls": Mutant(
        ARGUMENTS,
        "a dict is kept between calls",
        (
            (RESULT, "_memory.update(memory, total=sum(memory.values()))\n    return _memory"),
            ("def training_memory(", "_memory = {}\n\n\ndef training_memory("),
        ),
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
def count_elements(shape):
    n = 1
    for size in shape:
        n *= size
    return n
def count_all(shapes):
    n = 0
    for shape in shapes:
        n += count_elements(shape)
    return n
def training_memory(param_shapes, frozen_shapes, activation_shapes, widths, optimizer, master_weights):
    trained, frozen = count_all(param_shapes), count_all(frozen_shapes)
    memory = {}
    memory["parameters"] = widths["parameter"] * trained + widths["parameter"] * frozen
    memory["gradients"] = widths["gradient"] * trained
    memory["activations"] = widths["activation"] * count_all(activation_shapes)
    memory["optimizer"] = 0
    if optimizer != "sgd":
        memory["optimizer"] += widths["moment"] * trained
    if optimizer == "adam":
        memory["optimizer"] += widths["moment"] * trained
    if master_weights:
        memory["optimizer"] += widths["master"] * trained
    memory["total"] = memory["parameters"] + memory["gradients"] + memory["activations"] + memory["optimizer"]
    return memory
"""
OBJECTS = """
import numpy as np
def count_elements(shape):
    return int(np.prod(np.array(tuple(shape), dtype=object)))
def training_memory(param_shapes, frozen_shapes, activation_shapes, widths, optimizer, master_weights):
    n, f, a = (int(np.sum(np.array([count_elements(s) for s in shapes], dtype=object)))
               for shapes in (param_shapes, frozen_shapes, activation_shapes))
    k = {"sgd": 0, "sgd_momentum": 1, "adam": 2}[optimizer]
    counts = np.array([n + f, n, a, n * k, n * int(master_weights)], dtype=object)
    sizes = counts * [widths[name] for name in ("parameter", "gradient", "activation", "moment", "master")]
    return {"total": sum(sizes), "optimizer": sizes[3] + sizes[4], "activations": sizes[2], "gradients": sizes[1],
            "parameters": sizes[0]}
"""
PARAMETER_BY_PARAMETER = """
from functools import reduce
from operator import mul
def count_elements(shape):
    return reduce(mul, shape, 1)
def training_memory(param_shapes, frozen_shapes, activation_shapes, widths, optimizer, master_weights):
    total = dict.fromkeys(["parameters", "gradients", "activations", "optimizer"], 0)
    while_trained = [(s, True) for s in param_shapes] + [(s, False) for s in frozen_shapes]
    for shape, trained in while_trained:
        n = count_elements(shape)
        total["parameters"] += n * widths["parameter"]
        if not trained:
            continue
        total["gradients"] += n * widths["gradient"]
        total["optimizer"] += n * widths["moment"] * ("sgd", "sgd_momentum", "adam").index(optimizer)
        total["optimizer"] += n * widths["master"] if master_weights else 0
    for shape in activation_shapes:
        total["activations"] += count_elements(shape) * widths["activation"]
    total["total"] = sum(total.values())
    return total
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("text", [LOOPS, OBJECTS, PARAMETER_BY_PARAMETER], ids=["loops", "objects", "one by one"])
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
    wrong.write_text(mutated(NAME, "numpy", MUTANTS["master copy forgotten"].changes))
    assert grade_against(sides[0], sides[1], exercise, in_process=True).holds
    for side in sides:
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, verdict.leaf) == (False, "case 1/optimizer")
