"""The exercise `resume`: four functions around a step of Adam, and what a resume can lose."""

from decimal import Decimal, localcontext
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
from numpy_ref.proof.equivalence import Tolerance

NAMES = ("params", "m_list", "v_list", "t")
SHAPES = ((3,), (2, 4), (0, 2), ())  # one is transposed in memory, one without elements, one without axes
LR = 0.05

# Between a right solution in float64 and the exact values, for weights of size 1 and runs of up to 12 steps. With
# u = 2**-53: moments are off by at most 4 u a step, the root of the second by half of that, and the bias correction
# 1 - beta2**t, which is near t / 1000, by 1000 u / t for the rounding of the power; written as 0.001, 1 - beta2 is off
# by 500 u. A step is at most about LR long, so 12 of them are off by less than 12 LR 600 u < 2**-44. Sixteen times that
# is allowed. A rate off by 1e-6 moves the weights by 1e-7 = 2**-23, a rounding to float32 by 2**-25. Where a state is
# drawn with t > 1, steps are up to ten times as long, and the bias correction is off by less than a tenth as much.
# In float32 u is 2**29 times as large, and so is the allowance.
ALLOWANCE = Tolerance(relative=0.0, absolute=2.0**-40)
ALLOWANCES = {np.float64: ALLOWANCE, np.float32: Tolerance(relative=0.0, absolute=2.0**-11)}

State = dict[str, Any]  # params, m_list, v_list: lists of arrays; t: an int


def draw_state(seed: int, *, t: int = 1, dtype: Any = np.float64) -> State:
    """Weights with moments, those of a new run when t is 1."""
    rng = np.random.default_rng(seed)
    draws = (
        (rng.standard_normal, rng.standard_normal, rng.random) if t > 1 else (rng.standard_normal, np.zeros, np.zeros)
    )
    lists = [[np.asarray(draw(shape), order="F").astype(dtype) for shape in SHAPES] for draw in draws]
    return dict(zip(NAMES, (*lists, t), strict=True))


def draw_grads(seed: int, steps: int, *, dtype: Any = np.float64) -> list[list[Any]]:
    """Gradients; in the first array, one element's are always zero, and one's are as small as Adam's eps."""
    rng = np.random.default_rng([seed, steps])
    sequence = [[np.asarray(rng.standard_normal(shape)) for shape in SHAPES] for _ in range(steps)]
    for grads in sequence:
        grads[0][0] = 0.0
        grads[0][-1] *= 1e-8
    return [[g.astype(dtype) for g in grads] for grads in sequence]


def exact_run(state: State, sequence: list[list[Any]], lr: float) -> State:
    """The state after the steps, by 50 decimal digits and rounded at the end."""
    with localcontext() as context:
        context.prec = 50
        beta1, beta2, eps, rate = map(Decimal, (0.9, 0.999, 1e-8, lr))
        p, m, v = ([[Decimal(float(x)) for x in array.flat] for array in state[name]] for name in NAMES[:3])
        for t, grads in enumerate(sequence, start=state["t"]):
            for i, array in enumerate(grads):
                for k, g in enumerate(map(Decimal, array.ravel().tolist())):
                    m[i][k] = beta1 * m[i][k] + (1 - beta1) * g
                    v[i][k] = beta2 * v[i][k] + (1 - beta2) * g * g
                    m_hat, v_hat = m[i][k] / (1 - beta1**t), v[i][k] / (1 - beta2**t)
                    p[i][k] -= rate * m_hat / (v_hat.sqrt() + eps)
    arrays = [
        [np.array(list(map(float, values))).reshape(x.shape) for values, x in zip(lists, state["params"], strict=True)]
        for lists in (p, m, v)
    ]
    return dict(zip(NAMES, (*arrays, state["t"] + len(sequence)), strict=True))


def read_state(arrays: Arrays, function: str, value: Any, like: State) -> State:
    """What a function returned, in NumPy; four parts, arrays of the right shapes and types, finite, and an int t."""
    state = parts(function, value, NAMES)
    t = whole(function, state.pop("t"))
    found = arrays.found(function, state)
    for name in NAMES[:3]:
        what = f"{function}: {name} must hold {len(like[name])} arrays of the parameters' shapes"
        count = len(found[name]) if isinstance(found[name], list) else described(found[name])
        expect(count == len(like[name]), f"{what}; found {count}")
        for i, (array, wanted) in enumerate(zip(found[name], like[name], strict=True)):
            is_array = isinstance(array, np.ndarray) and array.shape == wanted.shape
            expect(is_array, f"{what}; {name}[{i}] must have the shape {wanted.shape}, found {described(array)}")
            if not np.all(np.isfinite(array)):
                raise Loss(f"{function} returned a value that is not finite", where=f"{name}[{i}]",
                           expected="finite numbers", found=str(array[~np.isfinite(array)][0]))  # fmt: skip
            expect_own_type(function, f"{name}[{i}]", wanted, array)
    return {**found, "t": t}


def expect_own_type(function: str, where: str, wanted: Any, array: Any) -> None:
    """That an array that came back has the type it must have; wanted has it."""
    if array.dtype == wanted.dtype:
        return
    cause = "types are kept: zeros_like, copy and numbers of Python leave float32 as it is; zeros and float64 do not"
    if array.dtype.kind != "f" or array.dtype.itemsize < wanted.dtype.itemsize:
        cause = "types are kept: the values were rounded to one that holds less"
    raise Loss(f"{function} changed the type of an array", where=where, expected=str(wanted.dtype),
               found=str(array.dtype), cause=cause)  # fmt: skip


def whole(function: str, t: Any) -> int:
    """The t that a function returned."""
    cause = "0.9**t is then a float64 of NumPy, which turns float32 arrays into float64" * isinstance(t, np.integer)
    expect(type(t) is int, f"{function}: t must be an int, found {described(t)}", cause=cause)
    return int(t)


def train(solution: Any, arrays: Arrays, state: State, sequence: list[list[Any]], lr: float = LR) -> State:
    """The solution's own training, from NumPy to NumPy."""
    given = arrays.given(state)
    value = solution.train_n_steps(*(given[name] for name in NAMES), arrays.given(sequence), lr)
    return read_state(arrays, "train_n_steps", value, state)


def read_checkpoint(arrays: Arrays, checkpoint: Any) -> State:
    """What save_checkpoint returned, in NumPy."""
    expect(isinstance(checkpoint, dict), f"save_checkpoint must return a dict, found {described(checkpoint)}")
    missing, others = set(NAMES) - set(checkpoint), set(checkpoint) - set(NAMES)
    text = f"the checkpoint must have the keys {', '.join(NAMES)}"
    expect(not missing, f"{text}; {', '.join(sorted(missing))} missing")
    expect(not others, f"{text}; {', '.join(sorted(map(str, others)))} besides")
    t = whole("save_checkpoint", checkpoint["t"])
    found: State = arrays.found("save_checkpoint", {name: checkpoint[name] for name in NAMES[:3]})
    return found | {"t": t}


@law(
    "Which four things does the next step of Adam need?",
    "Every array of every list belongs in the checkpoint, with the values and the type it has, and t as the int it is.",
    'Return {"params": ..., "m_list": ..., "v_list": ..., "t": t}, each list with a copy of each of its arrays.',
)
def checkpoint_holds_everything(solution: Any, arrays: Arrays) -> None:
    """The checkpoint holds all parameters, all moments and t, without a change to any value, shape or type."""
    for dtype, t in ((np.float64, 5), (np.float32, 258), (np.float64, 2**24 + 2)):
        state = draw_state(1, t=t, dtype=dtype)
        given = arrays.given(state)
        found = read_checkpoint(arrays, solution.save_checkpoint(*(given[name] for name in NAMES)))
        for name in NAMES[:3]:
            kept, all_of_them = len(found[name]) if isinstance(found[name], list) else 0, len(state[name])
            cause = f"only {kept} of {all_of_them} arrays were saved" if kept < all_of_them else ""
            text = f"the checkpoint's {name} are not those that were saved"
            expect(isinstance(found[name], list) and len(found[name]) == len(state[name]), text, cause=cause)
            for i, (ours, theirs) in enumerate(zip(state[name], found[name], strict=True)):
                expect_same_bits(text, {f"{name}[{i}]": ours}, {f"{name}[{i}]": theirs})
        expect_same_bits("the checkpoint's t is not the one that was saved", {"t": t}, {"t": found["t"]},
                         cause="t was stored in a type that cannot count so far, or was changed")  # fmt: skip


@law(
    "After the save, training goes on. What happens to the arrays in your checkpoint then?",
    "A list that is copied still holds the same arrays, and a slice or a reshaped array is a view of the same memory.",
    "Copy every single array: those of params, and those of m_list and v_list just as well.",
)
def checkpoint_is_independent(solution: Any, arrays: Arrays) -> None:
    """What happens to the caller's lists and arrays after the save does not reach the checkpoint."""
    for what in ("lists", "arrays"):
        given = arrays.given(draw_state(2, t=5))
        checkpoint = solution.save_checkpoint(*(given[name] for name in NAMES))
        before = read_checkpoint(arrays, checkpoint)
        if what == "arrays":
            arrays.overwrite(given)
        else:
            for name in NAMES[:3]:
                given[name].reverse()
                given[name].pop()
        after = read_checkpoint(arrays, checkpoint)
        lost = [name for name in NAMES[:3] if not same_tree(before[name], after[name])]
        how = {"lists": "are the caller's own lists: the list was kept, not a new one",
               "arrays": "share memory with the caller's: references or views were kept, not copies"}[what]  # fmt: skip
        expect_same_bits(f"the checkpoint changed when the caller's {what} did", before, after,
                         cause=f"{' and '.join(lost)} of the checkpoint {how}")  # fmt: skip


@law(
    "Look for operations that write into an argument: +=, out=, pop, append, or an assignment to an entry.",
    "The caller still needs what it hands in: the state to go on from, the gradients for another run.",
    "Let every function copy what it changes, before it changes it, and go through the gradients without removing any.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes what it is given: parameters, moments, gradients or checkpoint."""
    state, sequence = draw_state(3, t=4), draw_grads(3, 3)
    checkpoint = arrays.given(state)
    calls: dict[str, tuple[Any, ...]] = {
        "save_checkpoint": tuple(state.values()),
        "train_n_steps": (*state.values(), sequence, LR),
        "resume_from_weights_only": (state["params"], sequence, LR),
    }
    for function, values in calls.items():
        arguments = arrays.given(values)
        getattr(solution, function)(*arguments)
        names = ("params", "grads_sequence") if len(values) == 3 else (*NAMES, "grads_sequence")
        for name, ours, theirs in zip(names, values, arrays.found(function, arguments), strict=False):
            expect_same_bits(f"{function} changed what it was given", {name: ours}, {name: theirs},
                             cause=f"{function} writes into {name} instead of into a copy")  # fmt: skip
    gradients = arrays.given(sequence)
    solution.resume_from_full_checkpoint(checkpoint, gradients, LR)
    found = arrays.found("resume_from_full_checkpoint", gradients)
    expect_same_bits("resume_from_full_checkpoint changed what it was given", {"grads_sequence": sequence},
                     {"grads_sequence": found}, cause="it writes into the gradients, or removes some")  # fmt: skip


@law(
    "Take one step by hand and compare. Is t right at the first step, and does it grow by one?",
    "With gradients g, step t divides m by 1 - 0.9**t and v by 1 - 0.999**t, and there are as many steps as gradients.",
    "For each entry of grads_sequence: one adam_step with t and the rate that was given, then t = t + 1.",
)
def steps_are_those_of_adam(solution: Any, arrays: Arrays) -> None:
    """Training takes one exact step of Adam for each entry of the gradients, at the given rate, and counts it in t."""
    for seed, t, steps, dtype in ((4, 1, 12, np.float64), (5, 7, 5, np.float64), (6, 97, 6, np.float64),
                                  (7, 5000, 2, np.float64), (8, 1, 4, np.float32)):  # fmt: skip
        state, sequence = draw_state(seed, t=t, dtype=dtype), draw_grads(seed, steps, dtype=dtype)
        for n in range(steps + 1):
            found = train(solution, arrays, state, sequence[:n])
            exact = exact_run(state, sequence[:n], LR)
            expect_same_bits("train_n_steps returned another t", {"t": exact["t"]}, {"t": found["t"]}, step=n,
                             cause=f"{n} gradients were given, so t must grow by {n}")  # fmt: skip
            expect_within("train_n_steps is not Adam", exact, found, ALLOWANCES[dtype], step=n)


@law(
    "Compare, after the first step, what the resumed run has with what the uninterrupted one has.",
    "Everything that changes during training has to come back: the weights, both moments of every array, and t.",
    "The steps after a resume are steps like all others: what matters is what they begin from, and at which rate.",
)
def full_resume_equals_never_stopping(solution: Any, arrays: Arrays) -> None:
    """A full resume, after any step and any number of times, is bitwise training that never stopped."""
    for dtype, stops in ((np.float64, (3,)), (np.float64, (1, 4, 5, 8)), (np.float32, (6,)), (np.float64, (0, 9))):
        start, sequence = draw_state(6, dtype=dtype), draw_grads(6, 9, dtype=dtype)
        live = tuple(arrays.given(start)[name] for name in NAMES)
        state = start
        for stop, following in zip((0, *stops), (*stops, 9), strict=True):
            whole_run = [train(solution, arrays, state, sequence[stop : stop + n]) for n in range(following - stop + 1)]
            checkpoint = solution.save_checkpoint(*live)
            solution.train_n_steps(*live, arrays.given(sequence[stop:]), LR)  # the donor trains on
            for n, expected in enumerate(whole_run):
                rest = sequence[stop : stop + n]
                live = solution.resume_from_full_checkpoint(checkpoint, arrays.given(rest), LR)
                found = read_state(arrays, "resume_from_full_checkpoint", live, state)

                def run(state: State, sequence: list[Any], lr: float) -> State:
                    return train(solution, arrays, state, sequence, lr)

                expect_same_bits(f"resumed after step {stop}, training is not what it was", expected, found,
                                 step=stop + n)  # fmt: skip
            state = whole_run[-1]


@law(
    "Resume twice from the same checkpoint. Is the second run the first?",
    "The checkpoint may be needed again, so neither a step of the resumed run nor its caller may write into it.",
    "Copy the arrays out of the checkpoint before training on them, also when there is no step to take; assign no key.",
)
def resume_leaves_the_checkpoint(solution: Any, arrays: Arrays) -> None:
    """A resume does not change the checkpoint, and shares no array with it."""
    state, sequence = draw_state(7, t=3), draw_grads(7, 4)
    for n in (4, 0):
        checkpoint = arrays.given(state)
        value = solution.resume_from_full_checkpoint(checkpoint, arrays.given(sequence[:n]), LR)
        expect_same_bits("the checkpoint changed in the resume", state, read_checkpoint(arrays, checkpoint),
                         cause="the resume trains on the checkpoint's own arrays, or writes its keys")  # fmt: skip
        arrays.overwrite(value)
        expect_same_bits("the checkpoint changes when the resumed run does", state, read_checkpoint(arrays, checkpoint),
                         cause="what the resume returns are the checkpoint's own arrays")  # fmt: skip


@law(
    "What does a run that has just begun have for its moments and for t?",
    "The moments are zeros, and the first step is step 1, whatever went before.",
    "zeros_like gives zeros of a parameter's shape and of its type; the parameters are taken as they are.",
)
def weights_only_is_a_new_run(solution: Any, arrays: Arrays) -> None:
    """A resume from weights alone is a new run: moments of zero, t = 1; and it is not the run that was interrupted."""
    for dtype, steps in ((np.float64, 5), (np.float32, 2)):
        start, sequence = draw_state(8, dtype=dtype), draw_grads(8, 9, dtype=dtype)
        middle = train(solution, arrays, start, sequence[:4])
        m_list, v_list = ([np.zeros_like(x) for x in middle["params"]] for _ in range(2))
        fresh = dict(zip(NAMES, (middle["params"], m_list, v_list, 1), strict=True))
        for n in range(steps + 1):
            rest = sequence[4 : 4 + n]
            value = solution.resume_from_weights_only(arrays.given(middle["params"]), arrays.given(rest), LR)
            found = read_state(arrays, "resume_from_weights_only", value, middle)
            expected = train(solution, arrays, fresh, rest)
            expect_same_bits("a resume from weights alone is not a new run on them", unsigned(expected),
                             unsigned(found), step=n)  # fmt: skip
            expect_within("a resume from weights alone has not its exact value", exact_run(fresh, rest, LR), found,
                          ALLOWANCES[dtype], step=n,
                          cause="the steps are not Adam's: see the law on steps")  # fmt: skip
            onward = train(solution, arrays, middle, rest)
            if n > 0:
                expect(not same_tree(onward["params"], found["params"]),
                       "a resume from weights alone gave what the full run gives")  # fmt: skip


@law(
    "Does anything outside the functions remember an earlier call?",
    "A list in a default argument, or a name outside the functions, lives from one call to the next.",
    "Take everything from the arguments and return everything; make new lists inside the functions.",
)
def runs_do_not_mix(solution: Any, arrays: Arrays) -> None:
    """Two runs that take turns are what each is alone: no function remembers a call."""
    starts = [draw_state(seed, t=seed) for seed in (9, 10)]
    sequences = [draw_grads(seed, 6) for seed in (9, 10)]
    runs = list(zip(starts, sequences, strict=True))

    def save(state: State) -> Any:
        return solution.save_checkpoint(*(arrays.given(state)[name] for name in NAMES))

    def resume(checkpoint: Any, sequence: list[list[Any]]) -> State:
        value = solution.resume_from_full_checkpoint(checkpoint, arrays.given(sequence[3:]), LR)
        return read_state(arrays, "resume_from_full_checkpoint", value, starts[0])

    def begin(start: State, sequence: list[list[Any]]) -> State:
        return train(solution, arrays, start, sequence[:2])

    def go_on(state: State, sequence: list[list[Any]]) -> State:
        return train(solution, arrays, state, sequence[2:3])

    alone = [(go_on(begin(start, grads), grads), resume(save(start), grads)) for start, grads in runs]
    states = [begin(start, grads) for start, grads in runs]
    checkpoints = [save(start) for start, _ in runs]
    for i, (_, grads) in enumerate(runs):
        found = go_on(states[i], grads), resume(checkpoints[i], grads)
        for what, ours, theirs in zip(("runs", "checkpoints"), alone[i], found, strict=True):
            expect_same_bits(f"the {what} of two runs mix", ours, theirs,
                             cause="a function keeps something from one call to the next")  # fmt: skip


def trace(solution: Any, arrays: Arrays) -> Any:
    """The state after every step of a run, of a resumed one and of one from weights alone."""
    start, sequence = draw_state(11), draw_grads(11, 8)
    states = {f"step {n}": train(solution, arrays, start, sequence[:n]) for n in range(9)}
    checkpoint = solution.save_checkpoint(*(arrays.given(states["step 3"])[name] for name in NAMES))
    runs = {
        "resumed": solution.resume_from_full_checkpoint(checkpoint, arrays.given(sequence[3:]), LR),
        "weights only": solution.resume_from_weights_only(
            arrays.given(states["step 3"]["params"]), arrays.given(sequence[3:]), LR
        ),
    }
    return states | {name: read_state(arrays, name, value, start) for name, value in runs.items()}


STATEMENT = """
Write save_checkpoint, train_n_steps, resume_from_full_checkpoint and resume_from_weights_only around a step of Adam.
The gradients of every step are given. Lists hold one array for each parameter; arrays are float64 or float32, of any
shape (also without axes or without elements), in any order in memory. Types are kept: what comes back for a float32
parameter is float32, and so are its moments. A list or a tuple may be returned where a list is asked for. `t` is the
1-based index of the next step, so it is 1 before the first and n + 1 after n (PyTorch's `step` counts the steps that
are done: t = step + 1); it is Python's int. The rates of decay are 0.9 and 0.999, and eps is 1e-8. `grads_sequence` is
a list, and may be empty.
"""

IDEA = """
A model's weights are not the state of its training. Adam keeps two more numbers for every weight: m, a running mean of
its gradients, which is the direction, and v, a running mean of their squares, which is the scale. Both begin at zero
and are too small at first, which the bias correction mends: step t divides m by 1 - 0.9**t and v by 1 - 0.999**t.
So t is state, too: at t = 1 the two divisors are 0.1 and 0.001, at t = 1000 about 1 and 0.63.

A checkpoint that leaves out any of the four loads without a complaint, and the loss looks fine. But the run is another
one. Without m, the direction of the last steps is forgotten. Without v, the first step divides by a number that is far
too small and jumps. With t reset to 1 the moments, which are full, are divided as if they were new. With all three
gone, the first step moves every weight by the learning rate, whatever its gradient: m_hat is g and sqrt(v_hat) is |g|.

A type can change just as quietly. Moments of float64 beside a float32 parameter make it float64 in the first step: it
takes twice the memory, and the run is another one. np.zeros makes such moments; zeros_like takes the array's own type.

The other half of the exercise is memory. An array is a reference. A checkpoint that keeps the list, or a copied list of
the same arrays, or views of them, is no picture of a moment: it changes with every step that works in place. That shows
late, when the checkpoint is needed. The same holds on the way back: a resume that trains on the checkpoint's own arrays
uses it up, and the second resume starts somewhere else.

The test of a resume is strict and simple: stop after any step, resume, and the weights, moments and t must be the same
bits as if nothing had happened. Nearly equal is a different run that has not yet drifted apart.
"""

EXERCISE = Exercise(
    name="resume",
    title="Resume Adam from a checkpoint",
    teaches="what a checkpoint must hold besides the weights, and that it must hold copies",
    statement=STATEMENT,
    idea=IDEA,
    functions=("save_checkpoint", "train_n_steps", "resume_from_full_checkpoint", "resume_from_weights_only"),
    laws=(
        checkpoint_holds_everything,
        checkpoint_is_independent,
        arguments_are_left_alone,
        steps_are_those_of_adam,
        full_resume_equals_never_stopping,
        resume_leaves_the_checkpoint,
        weights_only_is_a_new_run,
        runs_do_not_mix,
    ),
    trace=trace,
    allowance=ALLOWANCE,
)
