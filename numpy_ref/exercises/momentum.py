"""The exercise `momentum`: SGD, whose buffers begin as nothing and not as zeros."""

from fractions import Fraction
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
    parts,
    same_tree,
    unsigned,
)
from numpy_ref.exercises.resume import expect_own_type
from numpy_ref.proof.equivalence import Tolerance

NAMES = ("params", "buffers")
SHAPES = ((3,), (2, 4), (), (0, 2))  # one is transposed in memory, one without axes, one without elements
LR = 0.05
SETTINGS: tuple[dict[str, Any], ...] = (
    {"momentum": 0.8, "dampening": 0.5, "nesterov": False},
    {"momentum": 0.8, "dampening": 0.0, "nesterov": True},
    {"momentum": 0.8, "dampening": 0.0, "nesterov": False},
    {},  # the defaults
)
DEFAULTS = {"momentum": 0.9, "dampening": 0.0, "nesterov": False}

# Between a right solution in float64 and the exact values, for weights below 8, buffers below 8 and runs of up to nine
# steps: a step rounds six times, each time by less than 8 u with u = 2**-53, and a buffer's error goes on with the
# factor of the momentum, below ten times in all. 9 * 6 * 8 * 10 u < 2**-40. A rate off by 1e-6 moves weights by 2**-20.
# In float32 u is 2**29 times as large, and so is the allowance.
ALLOWANCE = Tolerance(relative=0.0, absolute=2.0**-40)
ALLOWANCES = {np.float64: ALLOWANCE, np.float32: Tolerance(relative=0.0, absolute=2.0**-11)}

State = dict[str, Any]  # params: a list of arrays; buffers: a list of arrays and None
Grads = list[list[Any]]


def draw_state(seed: int, *, there: str = "all", dtype: Any = np.float64) -> State:
    """Weights with buffers: "all", "some" (only the second's), "zeros" (all, of zeros), or "none"."""
    rng = np.random.default_rng(seed)
    params, buffers = ([normal(rng, shape, dtype) for shape in SHAPES] for _ in NAMES)
    if there == "zeros":
        return {"params": params, "buffers": [np.zeros_like(buffer) for buffer in buffers]}
    kept = [buffer if there == "all" or (there == "some" and i == 1) else None for i, buffer in enumerate(buffers)]
    return {"params": params, "buffers": kept}


def normal(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Normal numbers in an array that is, with two axes, transposed in memory."""
    return np.asarray(rng.standard_normal(shape), order="F").astype(dtype)


def draw_grads(seed: int, steps: int, *, dtype: Any = np.float64) -> Grads:
    """Gradients; the first parameter gets none before the fourth step, the third none in every third; some are zeros.

    Those of the second parameter are zeros in the first step, where it may have no buffer, and in the fifth.
    """
    rng = np.random.default_rng([seed, steps])
    sequence: Grads = [[normal(rng, shape, dtype) for shape in SHAPES] for _ in range(steps)]
    for i, grads in enumerate(sequence):
        grads[1] *= i % 4 != 0
        grads[0] = None if i < 3 else grads[0]
        grads[2] = None if i % 3 == 2 else grads[2]
    return sequence


def exact_run(state: State, sequence: Grads, lr: float, **settings: Any) -> State:
    """The state after the steps, in rational numbers and rounded at the end."""
    settings = DEFAULTS | settings
    exact = np.vectorize(Fraction, otypes=[object])
    momentum, rate, share = (Fraction(x) for x in (settings["momentum"], lr, 1 - settings["dampening"]))
    params: list[Any]
    buffers: list[Any]
    params, buffers = ([None if x is None else exact(x) for x in state[name]] for name in NAMES)
    for grads in sequence:
        for i, grad in enumerate(grads):
            if grad is not None:
                g = exact(grad)
                b = g if buffers[i] is None else momentum * buffers[i] + share * g
                d = g + momentum * b if settings["nesterov"] else b
                params[i], buffers[i] = params[i] - rate * d, b
    lists = ([None if x is None else np.asarray(x).astype(np.float64) for x in values] for values in (params, buffers))
    return dict(zip(NAMES, lists, strict=True))


def read_state(arrays: Arrays, function: str, value: Any, like: State) -> State:
    """What a function returned, in NumPy: two lists of finite arrays of the parameters' shapes and types."""
    found: State = arrays.found(function, parts(function, value, NAMES))
    for name in NAMES:
        what = f"{function}: {name} must hold {len(SHAPES)} arrays of the parameters' shapes"
        count = len(found[name]) if isinstance(found[name], list) else described(found[name])
        expect(count == len(SHAPES), f"{what}; found {count}")
        for i, (array, wanted) in enumerate(zip(found[name], like["params"], strict=True)):
            if array is None and name == "buffers":
                continue
            is_array = isinstance(array, np.ndarray) and array.shape == wanted.shape
            expect(is_array, f"{what}; {name}[{i}] must have the shape {wanted.shape}, found {described(array)}")
            if not np.all(np.isfinite(array)):
                raise Loss(f"{function} returned a value that is not finite", where=f"{name}[{i}]",
                           expected="finite numbers", found=str(array[~np.isfinite(array)][0]))  # fmt: skip
            expect_own_type(function, f"{name}[{i}]", wanted, array)
    return found


def expect_same_buffers(what: str, expected: State, found: State, step: int | None = None) -> None:
    """That the same buffers are there, or not yet there."""
    for i, (ours, theirs) in enumerate(zip(expected["buffers"], found["buffers"], strict=True)):
        if (ours is None) != (theirs is None):
            sides = ["None" if b is None else "an array" + " of zeros" * (not np.any(b)) for b in (ours, theirs)]
            otherwise = "a buffer is there from the first gradient on"
            raise Loss(what, f"buffers[{i}]", step, sides[0], sides[1], trees=(expected, found), otherwise=otherwise)


def train(solution: Any, arrays: Arrays, state: State, sequence: Grads, lr: float = LR, **settings: Any) -> State:
    """The solution's own training, from NumPy to NumPy."""
    given = arrays.given(state)
    value = solution.train_n_steps(*(given[name] for name in NAMES), arrays.given(sequence), lr, **settings)
    return read_state(arrays, "train_n_steps", value, state)


def save(solution: Any, arrays: Arrays, state: State) -> Any:
    """The solution's checkpoint of a state."""
    return solution.save_checkpoint(*(arrays.given(state)[name] for name in NAMES))


def read_checkpoint(arrays: Arrays, checkpoint: Any) -> State:
    """What save_checkpoint returned, in NumPy."""
    expect(isinstance(checkpoint, dict), f"save_checkpoint must return a dict, found {described(checkpoint)}")
    keys = ", ".join(sorted(map(str, checkpoint)))
    expect(set(checkpoint) == set(NAMES), f"the checkpoint must have the keys params and buffers; it has {keys}")
    found: State = arrays.found("save_checkpoint", dict(checkpoint))
    return found


@law(
    "What does the very first step do, when there is no buffer to add to?",
    "The first gradient becomes the buffer as it is: it is not damped. Nesterov's momentum uses the buffer just made.",
    "If the buffer is None, it becomes a copy of the gradient; else momentum b + (1 - dampening) g. Then d, then p.",
)
def step_is_that_of_sgd(solution: Any, arrays: Arrays) -> None:
    """One step gives the exact parameter and buffer, with a buffer and without one, and leaves its arguments alone."""
    for settings in SETTINGS:
        for there, dtype in (("all", np.float64), ("none", np.float64), ("zeros", np.float64),
                             ("all", np.float32), ("none", np.float32)):  # fmt: skip
            for i in (0, 2):
                state, grads = draw_state(1, there=there, dtype=dtype), draw_grads(1, 4, dtype=dtype)[3:]
                arguments = (state["params"][i], grads[0][i], state["buffers"][i])
                given = arrays.given(arguments)
                value = parts("sgd_step", solution.sgd_step(*given, LR, **settings), ("param", "buffer"))
                expect_same_bits("sgd_step changed what it was given", list(arguments), arrays.found("sgd_step", given),
                                 cause="it writes into an argument instead of into a copy")  # fmt: skip
                found = arrays.found("sgd_step", value)
                alone, alone_grads = {name: state[name][i : i + 1] for name in NAMES}, [[grads[0][i]]]
                exact = exact_run(alone, alone_grads, LR, **settings)
                wanted = {"param": exact["params"][0], "buffer": exact["buffers"][0]}
                text = f"sgd_step is not SGD {described_settings(settings, there)}"
                expect_within(text, wanted, found, ALLOWANCES[dtype])
                for name, array in found.items():
                    expect_own_type("sgd_step", name, state["params"][i], array)
                arrays.overwrite(value)
                expect_same_bits(
                    "the buffer is the caller's gradient", list(arguments), arrays.found("sgd_step", given),
                    cause="the gradient itself became the buffer, not a copy: it changes with it",
                )  # fmt: skip


@law(
    "Is there a gradient for every parameter in every step? Is there a buffer for every parameter?",
    "A parameter whose gradient is None keeps its value, and its buffer, or keeps having none.",
    "For each entry of grads_sequence, and each parameter with a gradient: one sgd_step with the settings as given.",
)
def training_is_step_by_step(solution: Any, arrays: Arrays) -> None:
    """Training is exact SGD for each entry of the gradients; a parameter without a gradient stays as it is."""
    cases = (("none", np.float64, 7), ("some", np.float64, 7), ("zeros", np.float64, 2), ("none", np.float32, 2))
    for settings in SETTINGS:
        for there, dtype, steps in cases:
            state, sequence = draw_state(2, there=there, dtype=dtype), draw_grads(2, steps, dtype=dtype)
            for n in range(steps + 1):
                found = train(solution, arrays, state, sequence[:n], **settings)
                exact = exact_run(state, sequence[:n], LR, **settings)
                text = f"train_n_steps is not SGD {described_settings(settings)}"
                expect_same_buffers(text, exact, found, n)
                expect_within(text, exact, found, ALLOWANCES[dtype], step=n)


@law(
    "What is in the list of buffers before the first step? And after it, if a parameter had no gradient?",
    "None is a value that has to be saved, and it is not the same as zeros: dampening tells them apart.",
    "Copy every array of params and of buffers, with its values and type, and keep None where there is None.",
)
def checkpoint_holds_everything(solution: Any, arrays: Arrays) -> None:
    """The checkpoint holds all parameters and buffers unchanged, and None for each buffer that is not there yet."""
    for there in ("all", "some", "zeros", "none"):
        for dtype in (np.float64, np.float32):
            state = draw_state(3, there=there, dtype=dtype)
            found = read_checkpoint(arrays, save(solution, arrays, state))
            text = "the checkpoint is not what was saved"
            for name in NAMES:
                kept, wanted = len(found[name]) if isinstance(found[name], list) else 0, len(SHAPES)
                expect(kept == wanted, text, cause=f"only {kept} of {wanted} {name} were saved")
            expect_same_buffers(text, state, found)
            expect_same_bits(text, state, found, otherwise="the values were changed")


@law(
    "After the save, training goes on. What happens to the arrays in your checkpoint then?",
    "A list that is copied still holds the same arrays, and a slice or a reshaped array is a view of the same memory.",
    "Copy every array of params, and every array of buffers just as well.",
)
def checkpoint_is_independent(solution: Any, arrays: Arrays) -> None:
    """What happens to the caller's lists and arrays after the save does not reach the checkpoint."""
    for what in ("lists", "arrays"):
        given = arrays.given(draw_state(4))
        checkpoint = solution.save_checkpoint(*(given[name] for name in NAMES))
        before = read_checkpoint(arrays, checkpoint)
        if what == "arrays":
            arrays.overwrite(given)
        else:
            for name in NAMES:
                given[name][0] = None
        after = read_checkpoint(arrays, checkpoint)
        lost = [name for name in NAMES if not same_tree(before[name], after[name])]
        how = {"lists": "are the caller's own lists", "arrays": "share memory with the caller's"}[what]
        expect(not lost, f"the checkpoint changed when the caller's {what} did",
               cause=f"{' and '.join(lost)} of the checkpoint {how}: no copy was made")  # fmt: skip


@law(
    "Look for operations that write into an argument: +=, out=, pop, append, or an assignment to an entry.",
    "The list of buffers is the caller's, too: to put the first buffer into it is to change it.",
    "Begin with new lists, params = list(params) and buffers = list(buffers), and never write into an array of theirs.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes what it is given: parameters, buffers, gradients or checkpoint; nor shares memory with it."""
    state, sequence = draw_state(5, there="some"), draw_grads(5, 5)
    calls: dict[str, tuple[Any, ...]] = {
        "train_n_steps": (state["params"], state["buffers"], sequence, LR),
        "resume_from_full_checkpoint": (state, sequence, LR),
        "resume_from_weights_only": (state["params"], sequence, LR),
    }
    for function, values in calls.items():
        for settings in SETTINGS:
            given = arrays.given(values)
            getattr(solution, function)(*given, **settings)
            names = {4: ("params", "buffers", "grads_sequence")}.get(len(values), ("params", "grads_sequence"))
            names = ("checkpoint", "grads_sequence") if "full" in function else names
            for name, ours, theirs in zip(names, values, arrays.found(function, given), strict=False):
                expect_same_bits(f"{function} changed what it was given", {name: ours}, {name: theirs},
                                 cause=f"{function} writes into {name} instead of into a copy")  # fmt: skip
    for steps in (0, 5):
        checkpoint = arrays.given(state)
        value = solution.resume_from_full_checkpoint(checkpoint, arrays.given(sequence[:steps]), LR)
        arrays.overwrite(value)
        expect_same_bits("the checkpoint changes when the resumed run does", state,
                         arrays.found("resume_from_full_checkpoint", checkpoint),
                         cause="what the resume returns are the checkpoint's own arrays")  # fmt: skip


@law(
    "Stop before a parameter has had its first gradient, and compare what the first gradient after the resume does.",
    "A buffer of zeros is not the same as none: with zeros, the first gradient is damped. The settings matter, too.",
    "The steps after a resume are steps like all others: what matters is what they begin from, and every setting.",
)
def full_resume_equals_never_stopping(solution: Any, arrays: Arrays) -> None:
    """A full resume, after any step and any number of times, is bitwise training that never stopped."""
    for settings in SETTINGS:
        for dtype, stops in ((np.float64, (0, 1, 2, 5)), (np.float32, (4,))):
            state, sequence = draw_state(6, there="none", dtype=dtype), draw_grads(6, 8, dtype=dtype)
            live = tuple(arrays.given(state)[name] for name in NAMES)
            for stop, following in zip((0, *stops), (*stops, 8), strict=True):
                checkpoint = solution.save_checkpoint(*live)
                solution.train_n_steps(*live, arrays.given(sequence[stop:]), LR, **settings)  # the donor trains on
                for n in range(following - stop + 1):
                    rest = sequence[stop : stop + n]
                    expected = train(solution, arrays, state, rest, **settings)
                    live = solution.resume_from_full_checkpoint(checkpoint, arrays.given(rest), LR, **settings)
                    found = read_state(arrays, "resume_from_full_checkpoint", live, state)
                    text = f"resumed after step {stop}, training is not what it was {described_settings(settings)}"
                    if not same_tree(expected, found):
                        expect_same_buffers(text, expected, found, stop + n)
                        expect_same_bits(text, expected, found, step=stop + n)
                state = expected


@law(
    "What does a run that has just begun have for its buffers?",
    "It has none, and none is not zeros: its first gradient enters whole, and not damped.",
    "None for every buffer, not zeros_like; the parameters are taken as they are, and every setting is passed on.",
)
def weights_only_is_a_new_run(solution: Any, arrays: Arrays) -> None:
    """A resume from weights alone is a new run without buffers; and it is not the run that was interrupted."""
    for settings in SETTINGS:
        for dtype, steps in ((np.float64, 4), (np.float32, 1)):
            sequence = draw_grads(7, 9, dtype=dtype)
            middle = train(solution, arrays, draw_state(7, there="none", dtype=dtype), sequence[:4], **settings)
            fresh = {"params": middle["params"], "buffers": [None for _ in SHAPES]}
            for n in range(steps + 1):
                rest = sequence[4 : 4 + n]
                given = arrays.given((middle["params"], rest))
                value = solution.resume_from_weights_only(*given, LR, **settings)
                found = read_state(arrays, "resume_from_weights_only", value, middle)
                expected = train(solution, arrays, fresh, rest, **settings)
                text = f"a resume from weights alone is not a new run on them {described_settings(settings)}"
                if not same_tree(unsigned(expected), unsigned(found)):
                    expect_same_buffers(text, expected, found, n)
                    expect_same_bits(text, unsigned(expected), unsigned(found), step=n)
                exact = exact_run(fresh, rest, LR, **settings)
                expect_within("a resume from weights alone has not its exact value", exact, found, ALLOWANCES[dtype],
                              step=n, cause="the steps are not SGD's: see the law on steps")  # fmt: skip
                onward = train(solution, arrays, middle, rest, **settings)
                if n > 0:
                    expect(not same_tree(onward["params"], found["params"]),
                           "a resume from weights alone gave what the full run gives")  # fmt: skip


def described_settings(settings: dict[str, Any], there: str = "") -> str:
    """The settings of a run, in brackets."""
    words = [f"{name} {value}" for name, value in settings.items()] or ["the default settings"]
    buffer = {"none": ["no buffer yet"], "zeros": ["a buffer of zeros"]}.get(there, [])
    return f"({', '.join(words + buffer)})"


def trace(solution: Any, arrays: Arrays) -> Any:
    """The state after every step of a run, of a resumed one and of one from weights alone."""
    states: dict[str, Any] = {}
    for number, settings in enumerate(SETTINGS):
        start, sequence = draw_state(8, there="none"), draw_grads(8, 8)
        run = {f"run {number}, step {n}": train(solution, arrays, start, sequence[:n], **settings) for n in range(9)}
        middle = run[f"run {number}, step 3"]
        values = {
            "resumed": solution.resume_from_full_checkpoint(
                save(solution, arrays, middle), arrays.given(sequence[3:]), LR, **settings
            ),
            "weights only": solution.resume_from_weights_only(
                arrays.given(middle["params"]), arrays.given(sequence[3:]), LR, **settings
            ),
        }
        run |= {f"run {number}, {name}": read_state(arrays, name, value, start) for name, value in values.items()}
        states |= run
    return states


STATEMENT = """
Write sgd_step, save_checkpoint, train_n_steps, resume_from_full_checkpoint and resume_from_weights_only, for SGD with
momentum, dampening and Nesterov's momentum, by the rules that PyTorch documents. The gradients are given. Lists hold an
array for each parameter, float64 or float32, of any shape (also without axes or without elements), in any order in
memory. Types are kept: the parameter and the buffer of float32 stay float32. A buffer is None until its parameter's
first gradient, and one of zeros is there; a gradient is None where a parameter takes no part in a step: then the
parameter and its buffer stay as they are. A gradient of zeros is a gradient. As in PyTorch, Nesterov's momentum goes
with a dampening of 0 only: the two are never given together. A list or a tuple may be returned where a list is asked
for.
"""

IDEA = """
Momentum keeps one array for every parameter, a decaying sum of its gradients: b = momentum b + (1 - dampening) g. What
is b before the first gradient? One could say zeros. PyTorch says: there is none, and the first gradient becomes the
buffer as it is. Without dampening the two are the same number. With dampening 0.5 they are not: from zeros, the first
step is half as long. So "no buffer yet" and "a buffer of zeros" are two states, and the next step tells them apart.

A checkpoint that fills in zeros, because an array is easier to save than nothing, changes the run. It does so only for
parameters that have had no gradient yet: before the first step, or in a layer that was frozen when the checkpoint was
made and is trained later. And only with dampening. Such a fault passes nearly every test, and waits.

The other way round is a fault as well: a buffer that is there, and happens to hold zeros, is no reason to begin anew.

The settings are not in this checkpoint; the caller passes them in every time, and a resume that forgets to pass one on
falls back to a default without a word. The loss goes on falling, with another momentum. A setting that is lost is a
state that is lost. Files of real trainings hold the settings, too, and compare them.

As ever, what is saved must be a copy, what is given must not be written into, and the test is strict: after a resume
anywhere, the same bits as if nothing had happened.
"""

EXERCISE = Exercise(
    name="momentum",
    title="Resume SGD with momentum",
    teaches='that "no buffer yet" is a state of its own, and that settings can be lost',
    statement=STATEMENT,
    idea=IDEA,
    functions=(
        "sgd_step",
        "save_checkpoint",
        "train_n_steps",
        "resume_from_full_checkpoint",
        "resume_from_weights_only",
    ),
    laws=(
        step_is_that_of_sgd,
        training_is_step_by_step,
        checkpoint_holds_everything,
        checkpoint_is_independent,
        arguments_are_left_alone,
        full_resume_equals_never_stopping,
        weights_only_is_a_new_run,
    ),
    trace=trace,
    allowance=ALLOWANCE,
)
