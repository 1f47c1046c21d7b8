"""The exercise `momentum`: right solutions pass, wrong ones are caught by the law meant for them, with a reason."""

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

STEP, TRAIN, HOLDS = "step-is-that-of-sgd", "training-is-step-by-step", "checkpoint-holds-everything"
APART, ARGUMENTS = "checkpoint-is-independent", "arguments-are-left-alone"
RESUME, ANEW = "full-resume-equals-never-stopping", "weights-only-is-a-new-run"
BUFFER = "    buffer = grad.copy() if buffer is None else momentum * buffer + (1 - dampening) * grad\n"
DIRECTION = "grad + momentum * buffer if nesterov else buffer\n"
PARAM = "return param - lr * direction, buffer"
SAVE_P, SAVE_B = '"params": [p.copy() for p in params]', '"buffers": [b if b is None else b.copy() for b in buffers]'
IF = "            if grad is not None:\n"
NEW_LISTS = "params, buffers = list(params), list(buffers)"
SAVED = '    saved = save_checkpoint(checkpoint["params"], checkpoint["buffers"])\n'
PASSED = """        saved["params"], saved["buffers"], grads_sequence, lr,
        momentum=momentum, dampening=dampening, nesterov=nesterov,
"""
NOTHING = "nothing: Buffers = [None for _ in params]"
ANEW_PASSED = "copies, nothing, grads_sequence, lr, momentum=momentum, dampening=dampening, nesterov=nesterov\n"


def passing(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((PASSED, PASSED.replace(old, new)),)


MUTANTS = {
    "the first gradient is damped": Mutant(
        STEP,
        "the first gradient was damped",
        ((BUFFER, BUFFER.replace("grad.copy() if", "(1 - dampening) * grad if")),),
    ),
    "dampening left out": Mutant(
        STEP, "the dampening was left out", ((BUFFER, BUFFER.replace("(1 - dampening) * ", "")),)
    ),
    "a buffer of zeros taken for none": Mutant(
        STEP,
        "a buffer of zeros was taken for none",
        ((BUFFER, BUFFER.replace("is None", "is None or not buffer.any()")),),
    ),
    "the first buffer in float64": Mutant(
        STEP,
        "sgd_step changed the type of an array: param: expected float32, found float64",
        ((BUFFER, BUFFER.replace("grad.copy()", "grad.astype(np.float64)")),),
        ("numpy",),  # in torch, .to is the same tensor where the type is the same: another fault
    ),
    "every buffer in float64": Mutant(
        STEP, "sgd_step changed the type of an array: buffer", ((PARAM, PARAM + ".astype(np.float64)"),)
    ),
    "the parameter rounded to float32": Mutant(
        STEP,
        "sgd_step is not SGD (momentum 0.8, dampening 0.5, nesterov False): param",
        ((PARAM, PARAM.replace("param - lr * direction", "(param - lr * direction).astype(np.float32)")),),
    ),
    "dampening for momentum": Mutant(
        STEP, "sgd_step is not SGD", ((BUFFER, BUFFER.replace("momentum * b", "dampening * b")),)
    ),
    "look ahead with the old buffer": Mutant(
        STEP,
        "taken from the buffer before the step",
        (
            (BUFFER, "    old = grad * 0 if buffer is None else buffer\n" + BUFFER),
            (DIRECTION, DIRECTION.replace("m * buffer", "m * old")),
        ),
    ),
    "no look ahead": Mutant(STEP, "Nesterov's momentum was left out", ((DIRECTION, "buffer\n"),)),
    "the rate within the buffer": Mutant(
        STEP,
        "the rate is in the buffer, and not before it",
        (
            (
                BUFFER,
                BUFFER.replace("(1 - dampening) * grad", "lr * (1 - dampening) * grad").replace(
                    "grad.copy()", "lr * grad"
                ),
            ),
            (DIRECTION, "lr * grad + momentum * buffer if nesterov else buffer\n"),
            (PARAM, "return param - direction, buffer"),
        ),
    ),
    "rate off by 1e-6": Mutant(
        STEP, "the learning rate is off by 1e-06", ((PARAM, PARAM.replace("lr *", "(lr + 1e-6) *")),)
    ),
    "the gradient itself becomes the buffer": Mutant(
        STEP, "the gradient itself became the buffer", ((BUFFER, BUFFER.replace("grad.copy() if", "grad if")),)
    ),
    "the buffer is written into": Mutant(
        STEP, "it writes into an argument", ((PARAM, "param -= lr * direction\n    return param, buffer"),)
    ),
    "a missing gradient is zero": Mutant(
        TRAIN,
        "a gradient of None was taken for zeros",
        ((IF, "            grad = params[i] * 0 if grad is None else grad\n" + IF),),
    ),
    "a gradient of zeros is missing": Mutant(
        TRAIN,
        "a gradient of zeros was taken for None",
        ((IF, IF.replace("is not None", "is not None and grad.any()")),),
    ),
    "a buffer of zeros given up": Mutant(
        TRAIN,
        "a buffer of zeros was taken for none",
        ((IF, "            buffers[i] = buffers[i] if buffers[i] is None or buffers[i].any() else None\n" + IF),),
    ),
    "training widens": Mutant(
        TRAIN,
        "train_n_steps changed the type of an array: params[0]: expected float32, found float64",
        ((NEW_LISTS, "params, buffers = [p.astype(np.float64) for p in params], list(buffers)"),),
    ),
    "arrays without axes become vectors": Mutant(
        TRAIN,
        "params[2] must have the shape ()",
        ((NEW_LISTS, "params, buffers = [np.atleast_1d(p) for p in params], list(buffers)"),),
    ),
    "a missing gradient ends the step": Mutant(
        TRAIN, "train_n_steps is not SGD", ((IF, "            if grad is None:\n                break\n" + IF),)
    ),
    "a missing gradient loses the buffer": Mutant(
        TRAIN,
        "a buffer is there from the first gradient on",
        ((IF, "            if grad is None:\n                buffers[i] = None\n" + IF),),
    ),
    "settings not passed to the step": Mutant(
        TRAIN, "no setting was passed on", (("buffers[i], lr, **settings)", "buffers[i], lr)"),)
    ),
    "first step taken twice": Mutant(
        TRAIN, "train_n_steps is not SGD", (("in grads_sequence:\n", "in grads_sequence[:1] + grads_sequence:\n"),)
    ),
    "gradient list consumed twice": Mutant(
        TRAIN, "every gradient was used twice", (("in grads_sequence:\n", "in grads_sequence + grads_sequence:\n"),)
    ),
    "no buffer saved as zeros": Mutant(
        HOLDS,
        '"no buffer yet" was not kept as None',
        ((SAVE_B, '"buffers": [p * 0 if b is None else b.copy() for p, b in zip(params, buffers)]'),),
    ),
    "a buffer of zeros saved as none": Mutant(
        HOLDS, '"no buffer yet" was not kept', ((SAVE_B, '"buffers": [None for b in buffers]'),)
    ),
    "a buffer of zeros saved as no buffer": Mutant(
        HOLDS,
        '"no buffer yet" was not kept',
        ((SAVE_B, '"buffers": [b.copy() if b is not None and b.any() else None for b in buffers]'),),
    ),
    "whole checkpoint in float64": Mutant(
        HOLDS, "the same, but in another type", ((SAVE_P, '"params": [p.astype(np.float64) for p in params]'),)
    ),
    "arrays saved as lists": Mutant(
        HOLDS, "what was an array must be one", ((SAVE_P, '"params": [p.tolist() for p in params]'),)
    ),
    "buffers saved as zeros": Mutant(
        HOLDS, "the buffers were lost", ((SAVE_B, '"buffers": [b if b is None else b * 0 for b in buffers]'),)
    ),
    "missing buffers dropped": Mutant(
        HOLDS, "only 1 of 4 buffers were saved", ((SAVE_B, '"buffers": [b.copy() for b in buffers if b is not None]'),)
    ),
    "whole checkpoint rounded to float32": Mutant(
        HOLDS, "the values were rounded", ((SAVE_P, '"params": [p.astype(np.float32) for p in params]'),)
    ),
    "second and later arrays dropped": Mutant(HOLDS, "only 1 of 4 params were saved", ((SAVE_P, SAVE_P + "[:1]"),)),
    "buffers kept by reference": Mutant(
        APART, "buffers of the checkpoint share memory", ((SAVE_B, '"buffers": list(buffers)'),)
    ),
    "buffers kept as a list": Mutant(
        APART, "buffers of the checkpoint are the caller's own lists", ((SAVE_B, '"buffers": buffers'),)
    ),
    "views of the weights kept": Mutant(
        APART, "params of the checkpoint share memory", ((SAVE_P, '"params": [p[...] for p in params]'),)
    ),
    "the caller's lists are filled": Mutant(ARGUMENTS, "train_n_steps writes into params", ((NEW_LISTS, "pass"),)),
    "the caller's list of buffers is filled": Mutant(
        ARGUMENTS, "train_n_steps writes into buffers", ((NEW_LISTS, "params = list(params)"),)
    ),
    "the checkpoint is trained on": Mutant(
        ARGUMENTS, "are the checkpoint's own arrays", ((SAVED, "    saved = checkpoint\n"),)
    ),
    "the checkpoint is kept up to date": Mutant(
        ARGUMENTS, "writes into checkpoint", ((SAVED, SAVED + '    checkpoint["buffers"] = list(saved["params"])\n'),)
    ),
    "gradients used up": Mutant(
        ARGUMENTS,
        "writes into grads_sequence",
        (("    for grads in grads_sequence:\n", "    while grads_sequence:\n        grads = grads_sequence.pop(0)\n"),),
    ),
    "zeros for none in the resume": Mutant(
        RESUME,
        "a buffer of zeros stood where there was none yet",
        passing('saved["buffers"]', '[p * 0 if b is None else b for p, b in zip(saved["params"], saved["buffers"])]'),
    ),
    "buffers lost": Mutant(
        RESUME,
        "the buffers were lost: the first gradient became",
        passing('saved["buffers"]', '[None for b in saved["buffers"]]'),
    ),
    "buffers of zeros given up in the resume": Mutant(
        RESUME,
        "a buffer of zeros was taken for none",
        passing('saved["buffers"]', '[b if b is None or b.any() else None for b in saved["buffers"]]'),
    ),
    "the resume widens": Mutant(
        RESUME,
        "resume_from_full_checkpoint changed the type of an array: params[0]: expected float32, found float64",
        passing('saved["params"]', '[p.astype(np.float64) for p in saved["params"]]'),
    ),
    "buffers zeroed": Mutant(
        RESUME,
        "zeros stood in their place",
        passing('saved["buffers"]', '[b if b is None else b * 0 for b in saved["buffers"]]'),
    ),
    "momentum lost": Mutant(RESUME, "momentum was not passed on: it was 0.9", passing("momentum=momentum, ", "")),
    "dampening lost": Mutant(RESUME, "dampening was not passed on: it was 0.0", passing("dampening=dampening, ", "")),
    "nesterov lost": Mutant(RESUME, "nesterov was not passed on: it was False", passing(" nesterov=nesterov,", "")),
    "learning rate off by 1e-6": Mutant(RESUME, "the learning rate is off by 1e-06", passing(", lr,", ", lr + 1e-6,")),
    "first gradients skipped": Mutant(
        RESUME, "the first gradients were left out", passing("grads_sequence", "grads_sequence[1:]")
    ),
    "later buffers dropped": Mutant(
        RESUME,
        "the buffers were lost",
        passing('saved["buffers"]', 'saved["buffers"][:1] + [None] * len(saved["buffers"][1:])'),
    ),
    "weights only with buffers of zeros": Mutant(
        ANEW, "a buffer of zeros stood where there was none", ((NOTHING, "nothing = [p * 0 for p in params]"),)
    ),
    "weights only without settings": Mutant(
        ANEW, "no setting was passed on", ((ANEW_PASSED, "copies, nothing, grads_sequence, lr\n"),)
    ),
    "weights only in float64": Mutant(
        ANEW,
        "resume_from_weights_only changed the type of an array",
        (("copies = [p.copy()", "copies = [p.astype(np.float64)"),),
    ),
    "weights only shifted by a constant": Mutant(
        ANEW, "not a new run", (("copies = [p.copy()", "copies = [p + 1e-3"),)
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, "momentum", reference("momentum", framework), framework, in_process=framework == "torch")
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("momentum").laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "momentum", mutant, framework)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named("momentum").laws}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "momentum", framework)


IN_PLACE = """
import copy
import numpy as np
def sgd_step(param, grad, buffer, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    param, buffer = copy.deepcopy(param), copy.deepcopy(buffer)
    if buffer is None:
        buffer = copy.deepcopy(grad)
    else:
        buffer *= momentum
        buffer += (1 - dampening) * grad
    if nesterov:
        param -= lr * grad
        param -= lr * momentum * buffer
    else:
        param -= lr * buffer
    return [param, buffer]
def save_checkpoint(params, buffers):
    return copy.deepcopy(dict(buffers=buffers, params=params))
def train_n_steps(params, buffers, grads_sequence, lr, **settings):
    params, buffers = copy.deepcopy(params), copy.deepcopy(buffers)
    for grads in grads_sequence:
        for i in range(len(params)):
            if grads[i] is None: continue
            params[i], buffers[i] = sgd_step(params[i], grads[i], buffers[i], lr, **settings)
    return params, buffers
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr, **settings):
    return train_n_steps(checkpoint["params"], checkpoint["buffers"], grads_sequence, lr, **settings)
def resume_from_weights_only(params, grads_sequence, lr, **settings):
    return train_n_steps(params, [None] * len(params), grads_sequence, lr, **settings)
"""
TUPLES = """
import numpy as np
def new(arrays):
    return tuple(a if a is None else np.array(a) for a in arrays)
def sgd_step(p, g, b, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    kind = p.dtype
    p, g, b = (a if a is None else np.array(a, dtype=np.float64) for a in (p, g, b))
    b = momentum * b + (1 - dampening) * g if b is not None else 1.0 * g
    p = p - lr * (g + momentum * b) if nesterov else p - lr * b
    return np.asarray(p, dtype=kind), np.asarray(b, dtype=kind)
def save_checkpoint(params, buffers):
    return {"params": new(params), "buffers": new(buffers)}
def train_n_steps(params, buffers, grads_sequence, lr, **settings):
    pairs = list(zip(new(params), new(buffers)))
    for grads in grads_sequence:
        pairs = [(p, b) if g is None else sgd_step(p, g, b, lr, **settings) for (p, b), g in zip(pairs, grads)]
    return tuple(zip(*pairs))
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr, **settings):
    return train_n_steps(*save_checkpoint(**checkpoint).values(), grads_sequence, lr, **settings)
def resume_from_weights_only(params, grads_sequence, lr, **settings):
    return train_n_steps(params, len(params) * (None,), grads_sequence, lr, **settings)
"""
ONE_BY_ONE = """
import numpy
def sgd_step(param, grad, buffer, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    keep, take = (momentum, 1 - dampening) if buffer is not None else (0.0, 1.0)
    if buffer is None:
        buffer = 0 * param
    buffer = take * grad + keep * buffer
    step = buffer * momentum + grad if nesterov else buffer
    return param + step * -lr, buffer
def save_checkpoint(params, buffers):
    return {"buffers": [None if b is None else b + 0 for b in buffers], "params": [p + 0 for p in params]}
def train_n_steps(params, buffers, grads_sequence, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    if not grads_sequence:
        return save_checkpoint(params, buffers)["params"], save_checkpoint(params, buffers)["buffers"]
    first, *rest = grads_sequence
    new_params, new_buffers = [], []
    for p, b, g in zip(params, buffers, first):
        if g is not None:
            p, b = sgd_step(p, g, b, lr, momentum=momentum, dampening=dampening, nesterov=nesterov)
        new_params.append(p)
        new_buffers.append(b)
    return train_n_steps(new_params, new_buffers, rest, lr, momentum=momentum, dampening=dampening, nesterov=nesterov)
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    state = checkpoint["params"], checkpoint["buffers"]
    return train_n_steps(*state, grads_sequence, lr, momentum=momentum, dampening=dampening, nesterov=nesterov)
def resume_from_weights_only(params, grads_sequence, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    state = params, [None for _ in params]
    return train_n_steps(*state, grads_sequence, lr, momentum=momentum, dampening=dampening, nesterov=nesterov)
"""
OPTIMIZER = """
import torch
def train_n_steps(params, buffers, grads_sequence, lr, *, momentum=0.9, dampening=0.0, nesterov=False):
    params = [p.clone() for p in params]
    optimizer = torch.optim.SGD(params, lr=lr, momentum=momentum, dampening=dampening, nesterov=nesterov)
    for p, b in zip(params, buffers):
        if b is not None:
            optimizer.state[p] = {"momentum_buffer": b.clone()}
    for grads in grads_sequence:
        for p, g in zip(params, grads):
            p.grad = g
        optimizer.step()
    return params, [optimizer.state[p].get("momentum_buffer") for p in params]
def sgd_step(param, grad, buffer, lr, **settings):
    (param,), (buffer,) = train_n_steps([param], [buffer], [[grad]], lr, **settings)
    return param, buffer
def save_checkpoint(params, buffers):
    return dict(zip(("params", "buffers"), train_n_steps(params, buffers, [], 0.1)))
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr, **settings):
    return train_n_steps(checkpoint["params"], checkpoint["buffers"], grads_sequence, lr, **settings)
def resume_from_weights_only(params, grads_sequence, lr, **settings):
    return train_n_steps(params, [None] * len(params), grads_sequence, lr, **settings)
"""


@pytest.mark.parametrize("text", [IN_PLACE, TUPLES, ONE_BY_ONE], ids=["in place", "wide tuples", "recursive"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "momentum", text)) == []


@NO_TORCH
@pytest.mark.parametrize("text", [IN_PLACE, ONE_BY_ONE, OPTIMIZER], ids=["in place", "recursive", "torch.optim"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "momentum", text.replace("import numpy", "import torch"), "torch")) == []


@NO_TORCH
def test_the_references_agree_bitwise_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_momentum.py"
        paths[framework].write_text(reference("momentum", framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated("momentum", "numpy", MUTANTS["nesterov lost"].changes))
    ours, theirs, exercise = (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named("momentum")
    assert grade_against(ours, theirs, exercise, in_process=True).relation == "bitwise"
    for side in (ours, theirs):
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, str(verdict.leaf)[:14]) == (False, "run 1, resumed")
