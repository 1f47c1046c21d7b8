"""The exercise `resume`: right solutions pass, and wrong ones are caught by the law meant for them, with a reason."""

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

SAVE_P, SAVE_M, SAVE_V = ("[p.copy() for p in params],", "[m.copy() for m in m_list],", "[v.copy() for v in v_list],")
FULL = 'return train_n_steps(saved["params"], saved["m_list"], saved["v_list"], saved["t"], grads_sequence, lr)'
ZERO_M, ZERO_V = '[np.zeros_like(m) for m in saved["m_list"]]', '[np.zeros_like(v) for v in saved["v_list"]]'
WEIGHTS = "return train_n_steps(copies, m_list, v_list, 1, grads_sequence, lr)"
STEP = "    params, m_list, v_list = adam_step(params, grads, m_list, v_list, t, lr)\n        t = t + 1"
HOLDS, APART, ARGUMENTS = "checkpoint-holds-everything", "checkpoint-is-independent", "arguments-are-left-alone"
ADAM, RESUME, LEAVES = "steps-are-those-of-adam", "full-resume-equals-never-stopping", "resume-leaves-the-checkpoint"
ANEW, MIX = "weights-only-is-a-new-run", "runs-do-not-mix"


def resumes(old: str, new: str) -> tuple[tuple[str, str], ...]:
    return ((FULL, FULL.replace(old, new)),)


MUTANTS = {
    "m and v kept by reference": Mutant(
        APART,
        "m_list and v_list of the checkpoint share memory",
        ((SAVE_M, "list(m_list),"), (SAVE_V, "list(v_list),")),
    ),
    "list kept": Mutant(APART, "m_list of the checkpoint are the caller's own lists", ((SAVE_M, "m_list,"),)),
    "list kept, its arrays copied into it": Mutant(
        APART,
        "v_list of the checkpoint are the caller's own lists",
        ((SAVE_V, "v_list,"), ("    return {\n", "    v_list[:] = [v.copy() for v in v_list]\n    return {\n")),
    ),
    "shallow copy": Mutant(
        APART,
        "params and m_list and v_list of the checkpoint share memory",
        ((SAVE_P, "list(params),"), (SAVE_M, "list(m_list),"), (SAVE_V, "list(v_list),")),
    ),
    "view kept": Mutant(APART, "params of the checkpoint share memory", ((SAVE_P, "[p[...] for p in params],"),)),
    "reshaped view kept": Mutant(
        APART, "v_list of the checkpoint share memory", ((SAVE_V, "[v.reshape(v.shape) for v in v_list],"),)
    ),
    "whole checkpoint rounded to float32": Mutant(
        HOLDS,
        "the values were rounded to float32",
        tuple((old, old.replace(".copy()", ".astype(np.float32)")) for old in (SAVE_P, SAVE_M, SAVE_V)),
    ),
    "whole checkpoint in float64": Mutant(
        HOLDS,
        "the values are the same, but float32 became float64",
        tuple((old, old.replace(".copy()", ".astype(np.float64)")) for old in (SAVE_P, SAVE_M, SAVE_V)),
    ),
    "arrays saved as lists": Mutant(
        HOLDS, "what was an array must be one", ((SAVE_P, SAVE_P.replace(".copy()", ".tolist()")),)
    ),
    "arrays saved flat": Mutant(HOLDS, "shapes are kept", ((SAVE_P, SAVE_P.replace("p.copy()", "p.reshape(-1)")),)),
    "values saved as they lie in memory": Mutant(
        HOLDS,
        "is transposed in memory",
        ((SAVE_M, SAVE_M.replace("m.copy()", 'm.ravel(order="K").copy().reshape(m.shape)')),),
        ("numpy",),
    ),
    "arrays without elements left out": Mutant(
        HOLDS, "only 3 of 4 arrays were saved", ((SAVE_P, SAVE_P.replace("],", " if 0 not in p.shape],")),)
    ),
    "second and later arrays dropped": Mutant(
        HOLDS,
        "only 1 of 4 arrays were saved",
        tuple((old, old.replace("],", "][:1],")) for old in (SAVE_P, SAVE_M, SAVE_V)),
    ),
    "last moment dropped": Mutant(HOLDS, "only 3 of 4 arrays were saved", ((SAVE_M, SAVE_M.replace("],", "][:-1],")),)),
    "moments saved as zeros": Mutant(HOLDS, "zeros were saved", ((SAVE_M, "[m * 0 for m in m_list],"),)),
    "t not saved": Mutant(HOLDS, "t missing", (('        "t": t,\n', ""),)),
    "another key": Mutant(HOLDS, "step besides", (('        "t": t,\n', '        "t": t,\n        "step": t - 1,\n'),)),
    "t counted in float16": Mutant(HOLDS, "t must be an int", (('        "t": t,\n', '        "t": float(t),\n'),)),
    "t counted in float32": Mutant(
        HOLDS,
        "cannot count so far",
        (('        "t": t,\n', '        "t": int(np.zeros(1).astype(np.float32)[0] + t + 2**24) - 2**24,\n'),),
    ),
    "t saved as steps done": Mutant(HOLDS, "or was changed", (('        "t": t,\n', '        "t": t - 1,\n'),)),
    "the arguments are trained on": Mutant(
        ARGUMENTS,
        "train_n_steps writes into params",
        (
            (STEP, STEP + "\n        for old, new in zip(given, params):\n            old[...] = new"),
            ("    for grads in grads_sequence:\n", "    given = params\n    for grads in grads_sequence:\n"),
        ),
    ),
    "the caller's list is refilled": Mutant(
        ARGUMENTS,
        "train_n_steps writes into m_list",
        (
            ("    for grads in grads_sequence:\n", "    old = m_list\n    for grads in grads_sequence:\n"),
            ("    return params, m_list, v_list, t\n", "    old[:] = m_list\n    return params, m_list, v_list, t\n"),
        ),
    ),
    "gradients taken out of the caller's list": Mutant(
        ARGUMENTS,
        "train_n_steps writes into grads_sequence",
        (("    for grads in grads_sequence:\n", "    while grads_sequence:\n        grads = grads_sequence.pop(0)\n"),),
    ),
    "gradients used up in the resume": Mutant(
        ARGUMENTS, "or removes some", ((FULL, f"grads_sequence.reverse()\n    {FULL}"),)
    ),
    "no bias correction": Mutant(
        ADAM,
        "the bias correction was left out",
        (("m_hat = m / (1 - beta1**t)\n        v_hat = v / (1 - beta2**t)", "m_hat, v_hat = m, v"),),
    ),
    "no bias correction of m": Mutant(
        ADAM,
        "train_n_steps is not Adam: step 1, params",
        (("m_hat = m / (1 - beta1**t)\n        v_hat", "m_hat = m\n        v_hat"),),
    ),
    "no bias correction after a hundred steps": Mutant(
        ADAM,
        "the bias correction was left out from t = 100 on",
        ((", t, lr)\n        t", ", t if t < 100 else 10**9, lr)\n        t"),),
    ),
    "t reset after twenty steps": Mutant(
        ADAM, "so t must grow by 1", ((STEP, STEP.replace("t + 1", "t + 1 if t < 20 else 1")),)
    ),
    "t in NumPy": Mutant(
        ADAM, "0.9**t is then a float64 of NumPy", ((STEP, STEP.replace("t + 1", "np.int64(t + 1)")),), ("numpy",)
    ),
    "training widens": Mutant(
        ADAM,
        "changed the type of an array: params[0]: expected float32, found float64; types are kept: zeros_like",
        (
            (
                "    for grads in grads_sequence:\n",
                "    params = [p.astype(np.float64) for p in params]\n    for grads in grads_sequence:\n",
            ),
        ),
    ),
    "training rounds to float32": Mutant(
        ADAM,
        "types are kept: the values were rounded",
        (
            (
                "    for grads in grads_sequence:\n",
                "    v_list = [v.astype(np.float32) for v in v_list]\n    for grads in grads_sequence:\n",
            ),
        ),
    ),
    "arrays without axes become vectors": Mutant(
        ADAM,
        "params[3] must have the shape ()",
        (
            (
                "    for grads in grads_sequence:\n",
                "    params = [np.atleast_1d(p) for p in params]\n    for grads in grads_sequence:\n",
            ),
        ),
    ),
    "eps within the root": Mutant(
        ADAM, "train_n_steps is not Adam: step 1, params[0][2]", (("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat + eps)"),)
    ),
    "no eps": Mutant(
        ADAM, "train_n_steps returned a value that is not finite", (("(np.sqrt(v_hat) + eps)", "np.sqrt(v_hat)"),)
    ),
    "rate off by 1e-6 in every step": Mutant(
        ADAM, "the learning rate is off by 1e-06", ((", t, lr)\n        t", ", t, lr + 1e-6)\n        t"),)
    ),
    "default rate": Mutant(
        ADAM, "the learning rate is off by -0.049", ((", t, lr)\n        t", ", t, 0.001)\n        t"),)
    ),
    "t raised before the step": Mutant(
        ADAM,
        "t is one too large in every step",
        ((STEP, "    t = t + 1\n        params, m_list, v_list = adam_step(params, grads, m_list, v_list, t, lr)"),),
    ),
    "t never raised": Mutant(
        ADAM, "1 gradients were given, so t must grow by 1", ((STEP, STEP.replace("t = t + 1", "pass")),)
    ),
    "t raised at the end": Mutant(
        ADAM,
        "handed to every step the same",
        (
            (STEP, STEP.replace("t = t + 1", "pass")),
            ("    return params, m_list, v_list, t\n", "    return params, m_list, v_list, t + len(grads_sequence)\n"),
        ),
    ),
    "gradient list consumed twice": Mutant(
        ADAM, "t must grow by", (("in grads_sequence:\n", "in list(grads_sequence) + list(grads_sequence):\n"),)
    ),
    "gradients through an iterator that is used up": Mutant(
        ADAM,
        "were the gradients used up before",
        (
            (
                "    for grads in grads_sequence:\n",
                "    steps = iter(grads_sequence)\n    end = t + sum(1 for _ in steps)\n    for grads in steps:\n",
            ),
            ("    return params, m_list, v_list, t\n", "    return params, m_list, v_list, end\n"),
        ),
    ),
    "m and v change places": Mutant(
        RESUME,
        "m and v change places",
        resumes('saved["m_list"], saved["v_list"]', 'saved["v_list"], [abs(m) for m in saved["m_list"]]'),
    ),
    "v zeroed": Mutant(RESUME, "v was lost", resumes('saved["v_list"]', ZERO_V)),
    "m zeroed": Mutant(RESUME, "m was lost", resumes('saved["m_list"]', ZERO_M)),
    "m and v zeroed": Mutant(
        RESUME, "m and v were lost: moments of zero", resumes('saved["m_list"], saved["v_list"]', f"{ZERO_M}, {ZERO_V}")
    ),
    "weights only in a full resume": Mutant(
        RESUME,
        "the first step moved every weight by the learning rate",
        resumes(FULL, 'return resume_from_weights_only(saved["params"], grads_sequence, lr)'),
    ),
    "t reset": Mutant(RESUME, "t was reset to 1", resumes('saved["t"]', "1")),
    "t off by one": Mutant(RESUME, "t is one too large", resumes('saved["t"]', 'saved["t"] + 1')),
    "t one too small": Mutant(RESUME, "t is one too small", resumes('saved["t"]', 'max(saved["t"] - 1, 1)')),
    "the resume widens": Mutant(
        RESUME,
        "resume_from_full_checkpoint changed the type of an array: m_list[0]: expected float32, found float64",
        resumes('saved["m_list"]', '[m.astype(np.float64) for m in saved["m_list"]]'),
    ),
    "learning rate off by 1e-6": Mutant(RESUME, "the learning rate is off by 1e-06", resumes(", lr)", ", lr + 1e-6)")),
    "learning rate off by a millionth of it": Mutant(
        RESUME, "the learning rate is off by 5e-08", resumes(", lr)", ", lr * (1 + 1e-6))")
    ),
    "first gradients skipped": Mutant(
        RESUME, "the first gradients were left out", resumes("grads_sequence", "grads_sequence[1:]")
    ),
    "moments of later arrays dropped": Mutant(
        RESUME,
        "of the second and later arrays were lost",
        resumes(
            FULL,
            'saved["m_list"][1:] = [x * 0 for x in saved["m_list"][1:]]\n'
            '    saved["v_list"][1:] = [x * 0 for x in saved["v_list"][1:]]\n    ' + FULL,
        ),
    ),
    "checkpoint overwritten by the resume": Mutant(
        LEAVES,
        "or writes its keys",
        ((FULL, FULL.replace("return ", "checkpoint['t'] = saved['t'] + 1; return ")),),
    ),
    "checkpoint kept up to date": Mutant(
        LEAVES,
        "or writes its keys",
        (
            (
                FULL,
                FULL.replace("return ", "state = ")
                + '\n    checkpoint.update(zip(("params", "m_list", "v_list", "t"), state))'
                "\n    return state",
            ),
        ),
    ),
    "the checkpoint's own arrays go on": Mutant(
        LEAVES, "are the checkpoint's own arrays", (("saved = save_checkpoint(**checkpoint)", "saved = checkpoint"),)
    ),
    "weights only keeps t": Mutant(
        ANEW, "t was kept: the new run began with t = 5", ((WEIGHTS, WEIGHTS.replace(" 1,", " 5,")),)
    ),
    "weights only shifted by a constant": Mutant(
        ANEW, "every weight is off by the same number, 0.001", (("copies = [p.copy() for", "copies = [p + 1e-3 for"),)
    ),
    "weights only begins at t = 0": Mutant(ANEW, "t was reset to 0", ((WEIGHTS, WEIGHTS.replace(" 1,", " 0,")),)),
    "weights only with another rate": Mutant(
        ANEW, "the learning rate is off by -0.049", ((WEIGHTS, WEIGHTS.replace("lr)", "0.001)")),)
    ),
    "weights only with moments of ones": Mutant(
        ANEW, "not a new run", (("m_list = [np.zeros_like(p)", "m_list = [np.ones_like(p)"),)
    ),
    "weights only with moments of float64": Mutant(
        ANEW,
        "resume_from_weights_only changed the type of an array: v_list[0]: expected float32, found float64",
        (("v_list = [np.zeros_like(p)", "v_list = [np.zeros_like(p, dtype=np.float64)"),),
    ),
    "weights only in float64": Mutant(
        ANEW,
        "resume_from_weights_only changed the type of an array: params[0]",
        (("copies = [p.copy()", "copies = [p.astype(np.float64)"),),
    ),
    "the last save is remembered, and resumed": Mutant(
        MIX,
        "the checkpoints of two runs mix",
        (
            ("saved = save_checkpoint(**checkpoint)", "saved = {**checkpoint, **_last}"),
            ("    return {\n", "    _last.update(params=params, m_list=m_list, v_list=v_list, t=t)\n    return {\n"),
            ("def save_checkpoint(", "_last = {}\n\n\ndef save_checkpoint("),
        ),
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, "resume", reference("resume", framework), framework, in_process=False)  # as users do
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("resume").laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "resume", mutant, framework)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named("resume").laws}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "resume", framework)


IN_PLACE = """
import copy
import numpy as np
def adam(p, g, m, v, t, lr):
    m *= 0.9
    m += 0.1 * g
    v *= 0.999
    v += 0.001 * g**2
    p -= lr / (1 - 0.9**t) * m / (np.sqrt(v) / np.sqrt(1 - 0.999**t) + 1e-8)
def save_checkpoint(params, m_list, v_list, t):
    return copy.deepcopy(dict(params=params, m_list=m_list, v_list=v_list, t=t))
def train_n_steps(params, m_list, v_list, t, grads_sequence, lr):
    params, m_list, v_list = copy.deepcopy((params, m_list, v_list))
    for grads in grads_sequence:
        for p, g, m, v in zip(params, grads, m_list, v_list):
            adam(p, g, m, v, t, lr)
        t += 1
    return params, m_list, v_list, t
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr):
    return train_n_steps(**checkpoint, grads_sequence=grads_sequence, lr=lr)
def resume_from_weights_only(params, grads_sequence, lr):
    m_list, v_list = ([np.zeros_like(p) for p in params] for _ in range(2))
    return train_n_steps(params, m_list, v_list, 1, grads_sequence, lr)
"""
WIDE = """
import numpy as np
def copies(arrays):
    return tuple(np.array(a) for a in arrays)
def save_checkpoint(params, m_list, v_list, t):
    return {"t": int(t), "v_list": copies(v_list), "m_list": copies(m_list), "params": copies(params)}
def step(p, g, m, v, t, lr):
    kinds = p.dtype, m.dtype, v.dtype
    p, g, m, v = (np.array(x, dtype=np.float64) for x in (p, g, m, v))
    b, c = 1 - np.array([0.9, 0.999]) ** t
    m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * np.square(g)
    p = p - lr * (m / b) / (np.sqrt(v / c) + 1e-8)
    return tuple(np.asarray(x, dtype=kind) for x, kind in zip((p, m, v), kinds))
def train_n_steps(params, m_list, v_list, t, grads_sequence, lr):
    for now, grads in enumerate(grads_sequence, start=t):
        new = [step(*arrays, now, lr) for arrays in zip(params, grads, m_list, v_list)]
        params, m_list, v_list = zip(*new)
    return [copies(params), copies(m_list), copies(v_list), t + len(grads_sequence)]
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr):
    return train_n_steps(*(checkpoint[k] for k in ("params", "m_list", "v_list", "t")), grads_sequence, lr)
def resume_from_weights_only(params, grads_sequence, lr):
    z = [np.zeros(np.shape(p), dtype=p.dtype) for p in params]
    return train_n_steps(params, z, z, 1, grads_sequence, lr)
"""
RECURSIVE = """
from numpy import float32, sqrt, zeros_like
def save_checkpoint(params, m_list, v_list, t):
    new = lambda arrays: [a + 0 for a in arrays]
    return {"params": new(params), "m_list": new(m_list), "v_list": new(v_list), "t": t}
def one(p, g, m, v, t, lr):
    kind = p.dtype.type
    m = m + (g - m) * kind(1 - 0.9)
    v = v + (g * g - v) * kind(1 - 0.999)
    rate = kind(lr) / kind(1 - 0.9**t)
    return p - rate * m / (sqrt(v / kind(1 - 0.999**t)) + kind(1e-8)), m, v
def train_n_steps(params, m_list, v_list, t, grads_sequence, lr):
    if len(grads_sequence) == 0:
        c = save_checkpoint(params, m_list, v_list, t)
        return c["params"], c["m_list"], c["v_list"], t
    new = [one(p, g, m, v, t, lr) for p, g, m, v in zip(params, grads_sequence[0], m_list, v_list)]
    return train_n_steps(*map(list, zip(*new)), t + 1, grads_sequence[1:], lr)
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr):
    return train_n_steps(*[checkpoint[k] for k in ("params", "m_list", "v_list", "t")], grads_sequence, lr)
def resume_from_weights_only(params, grads_sequence, lr):
    zeros = list(map(zeros_like, params))
    return train_n_steps(params, zeros, zeros, 1, grads_sequence, lr)
"""
OPTIMIZER = """
import torch
def run(params, m_list, v_list, t, grads_sequence, lr):
    params = [p.clone() for p in params]
    optimizer = torch.optim.Adam(params, lr=lr)
    for p, m, v in zip(params, m_list, v_list):
        optimizer.state[p] = {"step": torch.tensor(t - 1.0), "exp_avg": m.clone(), "exp_avg_sq": v.clone()}
    for grads in grads_sequence:
        for p, g in zip(params, grads):
            p.grad = g
        optimizer.step()
    state = [optimizer.state[p] for p in params]
    return params, [s["exp_avg"] for s in state], [s["exp_avg_sq"] for s in state], t + len(grads_sequence)
def save_checkpoint(params, m_list, v_list, t):
    return dict(zip(("params", "m_list", "v_list"), run(params, m_list, v_list, t, [], 0.1)), t=t)
def train_n_steps(params, m_list, v_list, t, grads_sequence, lr):
    return run(params, m_list, v_list, t, grads_sequence, lr)
def resume_from_full_checkpoint(checkpoint, grads_sequence, lr):
    return run(**checkpoint, grads_sequence=grads_sequence, lr=lr)
def resume_from_weights_only(params, grads_sequence, lr):
    zeros = [p * 0 for p in params]
    return run(params, zeros, zeros, 1, grads_sequence, lr)
"""


@pytest.mark.parametrize("text", [IN_PLACE, WIDE, RECURSIVE], ids=["in place", "wide tuples", "recursive"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, "resume", text)) == []


def test_a_number_in_place_of_an_array_without_axes_is_named(tmp_path: Path) -> None:
    (line,) = told(graded(tmp_path, "resume", IN_PLACE.replace("np.zeros_like(p)", "0 * p")))
    assert line.startswith(ANEW)
    assert "only arrays without axes are wrong" in line


@NO_TORCH
@pytest.mark.parametrize("text", [IN_PLACE, RECURSIVE, OPTIMIZER], ids=["in place", "recursive", "torch.optim"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    text = text.replace("import numpy as np\n", "import torch\n").replace("np.sqrt(v)", "torch.sqrt(v)")
    text = text.replace("np.zeros_like", "torch.zeros_like")
    text = text.replace("np.sqrt(1 - 0.999**t)", "(1 - 0.999**t) ** 0.5")
    text = text.replace("from numpy import float32,", "from torch import").replace(
        "kind = p.dtype.type", "kind = float"
    )
    assert told(graded(tmp_path, "resume", text, "torch")) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_resume.py"
        paths[framework].write_text(reference("resume", framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated("resume", "numpy", MUTANTS["learning rate off by 1e-6"].changes))
    ours, theirs, exercise = (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named("resume")
    assert grade_against(ours, theirs, exercise, in_process=True).holds
    for side in (ours, theirs):
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, verdict.leaf and verdict.leaf.partition("/")[0]) == (False, "resumed")
