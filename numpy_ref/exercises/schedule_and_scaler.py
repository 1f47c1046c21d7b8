"""The exercise `schedule_and_scaler`: a step schedule, a dynamic loss scale, and their resume."""

from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import (
    Arrays,
    Exercise,
    described,
    expect,
    expect_same_bits,
    expect_within,
    law,
    same_tree,
)
from numpy_ref.proof.equivalence import Tolerance

KEYS = ("params", "t", "rate", "scale", "tracker")
SETTINGS: dict[str, Any] = {"rate": 0.1, "scale": 2.0**16, "step_size": 3, "gamma": 0.7, "growth_interval": 4}
FLOAT32_MAX = (2 - 2**-23) * 2.0**127

# Between two right solutions in float64, for weights and gradients below 8 in size and a rate of 0.1: a step rounds the
# quotient, the product and the difference, each by at most 2**-51, also in another order. 20 steps are off by less than
# 2**-44; four times that is allowed. An update made in float32 is off by about 2**-28.
ALLOWANCE = Tolerance(relative=0.0, absolute=2.0**-42)

State = dict[str, Any]
Sequence = list[list[Any]]


def draw_state(seed: int, **values: Any) -> State:
    """A state at the beginning of a run, except for the values that are given."""
    rng = np.random.default_rng(seed)
    params = [rng.standard_normal(shape) for shape in ((3,), (2, 2), (1,))]
    return {"params": params, "t": 0, "rate": SETTINGS["rate"], "scale": SETTINGS["scale"], "tracker": 0, **values}


def draw_grads(seed: int, steps: int, size: float = 4.0) -> Sequence:
    """Gradients; every seventh step has an infinite or NaN element in another array. Large scales overflow besides."""
    rng, shapes = np.random.default_rng([seed, steps]), ((3,), (2, 2), (1,))
    sequence = [[rng.uniform(-size, size, shape).astype(np.float32) for shape in shapes] for _ in range(steps)]
    for i, n in enumerate(range(6, steps, 7)):
        sequence[n][(i + 1) % 3].flat[0] = (np.nan, -np.inf)[i % 2]
    return sequence


def ticked(t: int, rate: float, step_size: int, gamma: float) -> tuple[int, float]:
    """A tick of the schedule."""
    return t + 1, rate * gamma if (t + 1) % step_size == 0 else rate


def rescaled(scale: float, tracker: int, found_inf: bool, interval: int) -> tuple[float, int]:
    """A step of the scaler."""
    if found_inf:
        return scale / 2, 0
    if tracker + 1 < interval:
        return scale, tracker + 1
    return scale * 2 if scale * 2 <= FLOAT32_MAX else scale, 0


def run(state: State, sequence: Sequence) -> State:
    """What training gives."""
    params, t, rate, scale, tracker = (state[key] for key in KEYS)
    for grads in sequence:
        scaled = [(g * scale).astype(np.float16) for g in grads]
        found_inf = not all(bool(np.isfinite(g).all()) for g in scaled)
        if not found_inf:
            params = [p - rate * (g.astype(np.float64) / scale) for p, g in zip(params, scaled, strict=True)]
            t, rate = ticked(t, rate, SETTINGS["step_size"], SETTINGS["gamma"])
        scale, tracker = rescaled(scale, tracker, found_inf, SETTINGS["growth_interval"])
    return dict(zip(KEYS, (params, t, rate, scale, tracker), strict=True))


def read_state(arrays: Arrays, function: str, value: Any) -> State:
    """What a function returned, in NumPy: five keys, arrays, ints and floats."""
    expect(isinstance(value, dict), f"{function} must return a dict, found {described(value)}")
    missing, others = [key for key in KEYS if key not in value], sorted(map(str, set(value) - set(KEYS)))
    text = f"{function} must return the keys {', '.join(KEYS)}"
    expect(not missing, f"{text}; {', '.join(missing)} missing", cause="what is not in the dict is lost")
    expect(not others, f"{text}; {', '.join(others)} besides")
    found = dict(arrays.found(function, {key: value[key] for key in KEYS}))
    for key in ("t", "tracker", "rate", "scale"):
        kind: Any = int if key in ("t", "tracker") else float
        x = found[key].item() if isinstance(found[key], np.ndarray) and found[key].ndim == 0 else found[key]
        right = type(x) is int or (kind is float and type(x) is float)
        expect(right, f"{function}: {key} must be {'an int' if kind is int else 'a float'}, found {described(x)}")
        found[key] = kind(x)
    return found


def trained(solution: Any, arrays: Arrays, state: State, sequence: Sequence) -> State:
    """The solution's own training, from NumPy to NumPy."""
    value = solution.train(arrays.given(state), arrays.given(sequence), dict(SETTINGS))
    return read_state(arrays, "train", value)


def check_train(
    solution: Any, arrays: Arrays, what: str, inputs: list[tuple[State, Sequence]], steps: list[int]
) -> None:
    """Raise unless training gives what it must: all but the parameters exactly, and those within the allowance."""
    found = [trained(solution, arrays, *x) for x in inputs]
    expected = [run(*x) for x in inputs]
    for ours, theirs, step in zip(expected, found, steps, strict=True):
        expect_within(what, ours, theirs, ALLOWANCE, step=step, whole=(expected, found))


def check_pairs(arrays: Arrays, names: tuple[str, str], function: Any, inputs: list[Any], right: Any) -> None:
    """Raise unless a function returns the two numbers that it must, for each of the inputs."""
    what = "schedule_step" if right is ticked else "scaler_step"
    found = []
    for x in inputs:
        value = function(*x)
        wanted = f"{what} must return ({', '.join(names)}); it returned {described(value)}"
        expect(isinstance(value, (tuple, list)) and len(value) == 2, wanted)
        found.append([x.item() if isinstance(x, np.ndarray) and x.ndim == 0 else x for x in arrays.found(what, value)])
    whole = [list(right(*x)) for x in inputs], found
    for x, *pairs in zip(inputs, *whole, strict=True):
        expected, numbers = (dict(zip(names, values, strict=True)) for values in pairs)
        expect_same_bits(f"{what}{x} returned another {' or '.join(names)}", expected, numbers, whole=whole)


@law(
    "Follow t and the rate by hand over two periods.",
    "t counts first; then the rate is multiplied once, if the new t is a multiple of step_size.",
    "t = t + 1; if t % step_size == 0, the rate is rate * gamma, else it stays; return both.",
)
def the_schedule_multiplies_once_a_period(solution: Any, arrays: Arrays) -> None:
    """Each tick adds 1 to t, and multiplies the rate by gamma when t is then a multiple of step_size."""
    inputs = []
    for step_size, gamma in ((3, 0.1), (1, 0.5), (7, 0.9)):
        t, rate = 0, 0.1
        for _ in range(30):
            inputs.append((t, rate, step_size, gamma))
            t, rate = ticked(*inputs[-1])
    check_pairs(arrays, ("t", "rate"), solution.schedule_step, inputs, ticked)


@law(
    "What does the tracker count, and when does it begin anew?",
    "An overflow halves the scale. growth_interval steps in a row without one double it. Either sets the tracker to 0.",
    "If found_inf: return scale / 2, 0. Else count; at growth_interval return scale * 2, 0; before it, scale as it is.",
)
def the_scale_backs_off_and_grows(solution: Any, arrays: Arrays) -> None:
    """An overflow halves the scale, growth_interval steps without one double it, and both set the tracker to 0."""
    rng, inputs = np.random.default_rng(3), []
    for scale, interval in ((2.0**16, 4), (3.0 * 2**30, 1), (2.0**20, 2)):
        tracker = 0
        for _ in range(30):
            inputs.append((scale, tracker, bool(rng.random() < 0.2), interval))
            scale, tracker = rescaled(*inputs[-1])
    check_pairs(arrays, ("scale", "tracker"), solution.scaler_step, inputs, rescaled)


@law(
    "What happens at the smallest and at the largest scales?",
    "Some gradients overflow unless the scale is below 1. And a scale that float32 cannot hold would be infinite.",
    "Halve always; double only if scale * 2 <= FLOAT32_MAX; the tracker is 0 afterwards in each case.",
)
def the_scale_has_no_floor_and_stays_finite(solution: Any, arrays: Arrays) -> None:
    """The scale may fall below 1, and does not grow beyond the largest number of float32."""
    inputs = [(scale, 1, True, 3) for scale in (2.0, 1.0, 0.5, 2.0**-20)]
    inputs += [(scale, 2, False, 3) for scale in (2.0**126, 1.5 * 2.0**126, 2.0**127, FLOAT32_MAX, 2.0**-20)]
    check_pairs(arrays, ("scale", "tracker"), solution.scaler_step, inputs, rescaled)


@law(
    "After a step with an overflow, compare every entry of the state with what it was.",
    "No update was made, so nothing counts it: not t, not the schedule. Only the scaler learns of it.",
    "Look at all scaled gradients with isfinite; update and tick only if all are finite; then the scaler steps.",
)
def an_overflow_skips_the_update(solution: Any, arrays: Arrays) -> None:
    """A step with an infinity or a NaN in a scaled gradient leaves params, t and rate alone, and halves the scale."""
    inputs = []
    for t, tracker in ((4, 2), (5, 3)):
        state = draw_state(4, t=t, rate=0.01, scale=2.0**10, tracker=tracker)
        for array, bad in ((0, np.inf), (1, np.nan), (2, -np.inf), (1, 70.0), (2, -70.0)):  # 70 * 2**10 > 65504
            (grads,) = draw_grads(4, 1)
            grads[array].flat[-1] = bad
            inputs.append((state, [grads]))
    what = "a step with an overflow is not skipped as it must be"
    check_train(solution, arrays, what, inputs, [1] * len(inputs))


@law(
    "Take two steps by hand: which scale and which rate does each of them use?",
    "The gradients are divided by the scale they were multiplied by; the rate is the one before the schedule's tick.",
    "Scale, look for overflows, update with rate * (gradient / scale), tick the schedule, and step the scaler last.",
)
def training_takes_every_step(solution: Any, arrays: Arrays) -> None:
    """Each step scales, looks, updates with the rate of the state, ticks, and finds the next scale, in this order."""
    state, sequence = draw_state(5), draw_grads(5, 20)
    inputs, steps = [(state, sequence[:n]) for n in range(21)], list(range(21))
    for scale in (2.0**16, 2.0**18, 2.0**30, 2.0**-24):  # with gradients that they bring to 2**8 at most
        state, sequence = draw_state(5, scale=scale), draw_grads(5, 9, min(2.0**8 / scale, 4.0))
        inputs, steps = inputs + [(state, sequence[:n]) for n in (1, 9)], [*steps, 1, 9]
    check_train(solution, arrays, "train does not give what its steps make", inputs, steps)


@law(
    "Train two epochs by two calls, and the same gradients by one. Is the state the same?",
    "A call of train begins where its state says, also in the middle of a period and of a growth interval.",
    "Take t, rate, scale and tracker out of the state, never out of the settings.",
)
def calls_go_on_from_the_state(solution: Any, arrays: Arrays) -> None:
    """Training in several calls is bitwise training in one: nothing begins anew with a call."""
    state, sequence = draw_state(6), draw_grads(6, 16)
    for lengths in ((5, 6, 5), (1,) * 16):
        stops = list(accumulate(lengths, initial=0))
        whole = [trained(solution, arrays, state, sequence[:n]) for n in stops]
        inputs = [(x, sequence[a:b]) for x, (a, b) in zip(whole, pairwise(stops), strict=False)]
        found = [trained(solution, arrays, *x) for x in inputs]
        for n, expected, part in zip(stops[1:], whole[1:], found, strict=True):
            expect_same_bits(
                "training in several calls is not training in one", expected, part, step=n, whole=(whole[1:], found)
            )


@law(
    "Change nothing that you are given: which lines write into an argument?",
    "The caller keeps its state, its gradients and its settings for another run.",
    "Copy the parameters first, or make new arrays by p - ...; return a new dict.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes the state, the gradients, the settings or the checkpoint that it is given."""
    state, sequence = draw_state(7, t=2, tracker=1, scale=2.0**12), draw_grads(7, 8)
    calls: dict[str, dict[str, Any]] = {
        "train": {"state": state, "grads_sequence": sequence, "settings": SETTINGS},
        "save_state": {"state": state},
        "restore_state": {"checkpoint": state, "settings": SETTINGS},
    }
    for function, values in calls.items():
        given = arrays.given(values)
        getattr(solution, function)(*given.values())
        for name, value in arrays.found(function, given).items():
            expect_same_bits(f"{function} changed what it was given", {name: values[name]}, {name: value},
                             cause=f"{function} writes into {name} instead of into a copy")  # fmt: skip


@law(
    "Which of the five entries does the next step need?",
    "All of them, as they are: a float32 cannot hold every rate, and the tracker is state like the scale.",
    "Return a dict with the five keys: a list with a copy of each parameter, and the four numbers.",
)
def the_checkpoint_holds_everything(solution: Any, arrays: Arrays) -> None:
    """The checkpoint has all five entries with the values of the state."""
    drawn = ((0, 0, 2.0**-3), (4, 3, 2.0**16), (2**24 + 1, 1999, 2.0**20))
    states = [draw_state(8, t=t, rate=0.1 * 0.1 * 0.1, scale=scale, tracker=tracker) for t, tracker, scale in drawn]
    found = [read_state(arrays, "save_state", solution.save_state(arrays.given(state))) for state in states]
    for state, checkpoint in zip(states, found, strict=True):
        expect_same_bits("the checkpoint is not the state", state, checkpoint, whole=(states, found))


@law(
    "After the save, training goes on. What happens to the arrays in your checkpoint then?",
    "A copied dict holds the same list, and a copied list holds the same arrays.",
    "Copy every parameter's array into a new list, in a new dict, when saving and when restoring.",
)
def the_checkpoint_is_independent(solution: Any, arrays: Arrays) -> None:
    """What happens to the state after the save, or to the restored one, does not reach the checkpoint."""
    state = draw_state(9, t=4, rate=0.01, tracker=2)
    given = arrays.given(state)
    checkpoint = solution.save_state(given)
    change(arrays, given)
    expect_same_bits("the checkpoint changed when the state did", state, read_state(arrays, "save_state", checkpoint),
                     cause="the state's own dict, list or arrays were kept, not copies")  # fmt: skip
    kept = arrays.given(state)
    change(arrays, solution.restore_state(kept, dict(SETTINGS)))
    after = read_state(arrays, "restore_state", kept)
    expect_same_bits("the checkpoint changed when the restored state did", state, after,
                     cause="restore_state hands out the checkpoint's own dict, list or arrays")  # fmt: skip


def change(arrays: Arrays, state: State) -> None:
    """Change everything in a state in place."""
    arrays.overwrite(state)
    if isinstance(state["params"], list):
        state["params"].pop()
    state |= {"t": 99, "rate": 9.0, "scale": 9.0, "tracker": 99}


@law(
    "Restore, and compare with what was saved before any step is taken.",
    "All four numbers come from the checkpoint as they are. A new schedule or scaler must not overwrite them or step.",
    "Begin with a new state for its structure, and then set every entry to the checkpoint's.",
)
def restoring_gives_back_the_state(solution: Any, arrays: Arrays) -> None:
    """A restored state is the one that was saved, in every bit, before a step is taken."""
    state, sequence = draw_state(10), draw_grads(10, 20)
    saved = [trained(solution, arrays, state, sequence[:n]) for n in range(21)]
    found = [restored(solution, arrays, solution.save_state(arrays.given(state))) for state in saved]
    for n, (ours, theirs) in enumerate(zip(saved, found, strict=True)):
        expect_same_bits("the restored state is not the one that was saved", ours, theirs, step=n,
                         whole=(saved, found))  # fmt: skip


def restored(solution: Any, arrays: Arrays, checkpoint: Any) -> State:
    """The state that the solution restores."""
    return read_state(arrays, "restore_state", solution.restore_state(checkpoint, dict(SETTINGS)))


@law(
    "Stop between two decays and between two growths, resume, and go on to the next of each.",
    "The run that went on after the save must not be felt by the one that is resumed.",
    "Keep nothing outside the state: train reads all five entries of it and returns all five.",
)
def a_resume_equals_never_stopping(solution: Any, arrays: Arrays) -> None:
    """Resumed after any step, also twice, training is bitwise training that never stopped."""
    state, sequence = draw_state(11), draw_grads(11, 18)
    whole = [trained(solution, arrays, state, sequence[:n]) for n in range(19)]
    for stop in range(18):
        live = solution.train(arrays.given(state), arrays.given(sequence[:stop]), dict(SETTINGS))
        checkpoint = solution.save_state(live)
        solution.train(live, arrays.given(sequence[stop:]), dict(SETTINGS))  # the donor trains on
        for n in (min(stop + 5, 18), 18):
            at_stop = solution.restore_state(checkpoint, dict(SETTINGS))
            value = solution.train(at_stop, arrays.given(sequence[stop:n]), dict(SETTINGS))
            found = read_state(arrays, "train", value)
            intact = same_tree(whole[stop], restored(solution, arrays, checkpoint))
            expect_same_bits(f"resumed after step {stop}, training is not what it was", whole[n], found, step=n,
                             cause="train takes something from elsewhere, kept from another call" if intact else
                             "the state was not restored: see the law on it")  # fmt: skip


def trace(solution: Any, arrays: Arrays) -> Any:
    """The state after every step of a run, and after a resume."""
    state, sequence = draw_state(12), draw_grads(12, 18)
    states = {f"step {n}": trained(solution, arrays, state, sequence[:n]) for n in range(19)}
    loaded = restored(solution, arrays, solution.save_state(arrays.given(states["step 8"])))
    return states | {"restored": loaded, "resumed": trained(solution, arrays, loaded, sequence[8:])}


STATEMENT = """
Write schedule_step, scaler_step, train, save_state and restore_state. A state is a dict with exactly the keys params,
t, rate, scale and tracker: a list of float64 arrays (or a tuple, in what you return), an int, two floats and an int.
new_state, which begins a run, and scaled_gradients, which stands for a backward pass in float16, are given. The
gradients are float32 and not scaled yet. Nothing that is given may be changed. Arithmetic on rates and scales is that
of Python's floats; the parameters are updated in float64.
"""

IDEA = """
Two small machines run beside the optimizer, and both have a memory. The schedule counts updates and multiplies the
learning rate by gamma every step_size of them. Its memory is the count and the rate. Dynamic loss scaling multiplies
the loss, so that gradients in float16 do not vanish. It doubles the scale after so many steps without an overflow, and
halves it after an overflow, whose update is skipped. Its memory is the scale and a tracker: how many good steps there
were since the scale last changed.

A skipped update did not happen. So it must not be counted, neither by the optimizer's t nor by the schedule; otherwise
the rate decays after fewer updates than was planned. Only the scaler steps in every case. The order matters as well:
gradients are divided by the scale that they were multiplied by, not by the next one.

What is lost in a resume often hides. If the rate is saved but the count is not, nothing shows until the next decay,
which comes at another step; and if the run was stopped exactly at a decay, or no decay follows, nothing ever shows. A
test must therefore stop between two decays and go on past the next. A lost tracker shows only when the scale should
have grown. A scale that begins anew overflows at once, and updates are skipped that were not skipped before. It is as
bad to do too much: a loader that makes a step, or that builds a new schedule after the rate was put back, moves what
it should restore.

Computing the rate anew, as the first rate times a power of gamma, is tempting and nearly the same number. But 0.1
multiplied by 0.1 four times, one after the other, is 1.0000000000000004e-05 in floats, and 0.1 * 0.1**4 ends in a 3.
The run that is resumed is then not bitwise the run that was stopped. What was used is what has to be saved.
"""

EXERCISE = Exercise(
    name="schedule_and_scaler",
    title="Resume a schedule and a loss scale",
    teaches="that a rate, a scale and their two counters are state, and that a skipped update is no update",
    statement=STATEMENT,
    idea=IDEA,
    functions=("schedule_step", "scaler_step", "train", "save_state", "restore_state"),
    laws=(
        the_schedule_multiplies_once_a_period,
        the_scale_backs_off_and_grows,
        the_scale_has_no_floor_and_stays_finite,
        an_overflow_skips_the_update,
        training_takes_every_step,
        calls_go_on_from_the_state,
        arguments_are_left_alone,
        the_checkpoint_holds_everything,
        the_checkpoint_is_independent,
        restoring_gives_back_the_state,
        a_resume_equals_never_stopping,
    ),
    trace=trace,
    allowance=ALLOWANCE,
)
