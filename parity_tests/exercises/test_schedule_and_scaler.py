"""The exercise `schedule_and_scaler`: right solutions pass, and wrong ones are caught by the law meant for them."""

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

NAME = "schedule_and_scaler"
TICK, DECAY = "    t = t + 1\n    if t % step_size == 0:\n", "        rate = rate * gamma\n"
BACKOFF, COUNT = "        return scale / 2, 0\n", "    tracker = tracker + 1\n"
WAIT, GROW = "    if tracker < growth_interval:\n", "(scale * 2 if scale * 2 <= FLOAT32_MAX else scale), 0"
START = 't, rate, scale, tracker = state["t"], state["rate"], state["scale"], state["tracker"]\n    for'
BEGIN = 'params = [p.copy() for p in state["params"]]\n    t, rate'
LOOK, SKIP = "not all(bool(np.isfinite(g).all()) for g in scaled)", "        if not found_inf:\n"
UPDATE = (
    "            params = [p - rate * (g.astype(np.float64) / scale) for p, g in zip(params, scaled, strict=True)]\n"
)
TICKS = '            t, rate = schedule_step(t, rate, settings["step_size"], settings["gamma"])\n'
STEPS = '        scale, tracker = scaler_step(scale, tracker, found_inf, settings["growth_interval"])\n'
SAVE = '        "params": [p.copy() for p in state["params"]],\n'
SAVED_T, SAVED_RATE = '        "t": state["t"],\n', '        "rate": state["rate"],\n'
SAVED_SCALE, SAVED_TRACKER = '        "scale": state["scale"],\n', '        "tracker": state["tracker"],\n'
NEW = 'state = new_state(checkpoint["params"], settings)\n'
PUT_T, PUT_RATE = '    state["t"] = checkpoint["t"]\n', '    state["rate"] = checkpoint["rate"]\n'
PUT_SCALE, PUT_TRACKER = '    state["scale"] = checkpoint["scale"]\n', '    state["tracker"] = checkpoint["tracker"]\n'
SCHEDULE, SCALER = "the-schedule-multiplies-once-a-period", "the-scale-backs-off-and-grows"
LIMITS, OVERFLOW, TRAIN = (
    "the-scale-has-no-floor-and-stays-finite",
    "an-overflow-skips-the-update",
    "training-takes-every-step",
)
CALLS, ARGUMENTS, HOLDS = "calls-go-on-from-the-state", "arguments-are-left-alone", "the-checkpoint-holds-everything"
APART, RESTORE = "the-checkpoint-is-independent", "restoring-gives-back-the-state"
RESUME = "a-resume-equals-never-stopping"


def fault(law: str, reason: str, old: str, new: str, *more: tuple[str, str]) -> Mutant:
    return Mutant(law, reason, ((old, new), *more))


MUTANTS = {
    "decay off by one: late": fault(
        SCHEDULE, "t is looked at before it grows", TICK, "    t = t + 1\n    if (t - 1) % step_size == 0:\n"
    ),
    "decay off by one: early": fault(
        SCHEDULE, "one tick too early", TICK, "    t = t + 1\n    if (t + 1) % step_size == 0:\n"
    ),
    "decay at every tick": fault(SCHEDULE, "the rate decays at every tick", TICK, "    t = t + 1\n    if True:\n"),
    "no decay": fault(SCHEDULE, "the rate never decays", DECAY, "        pass\n"),
    "closed form on a rate that has decayed": fault(
        SCHEDULE, "all decays so far are made again", DECAY, "        rate = rate * gamma ** (t // step_size)\n"
    ),
    "t does not grow": fault(SCHEDULE, "t does not grow", "    return t, rate\n", "    return t - 1, rate\n"),
    "backoff without resetting the tracker": fault(
        SCALER, "the tracker is kept after an overflow", BACKOFF, "        return scale / 2, tracker\n"
    ),
    "growth without resetting the tracker": fault(
        SCALER, "the tracker is kept after a growth", GROW, GROW.replace(", 0", ", tracker")
    ),
    "no backoff": fault(SCALER, "the scale does not back off", BACKOFF, "        return scale, 0\n"),
    "grows without the finite check of the gradients": fault(
        SCALER, "found_inf is not looked at", "    if found_inf:\n", "    if False:\n"
    ),
    "growth where backoff is meant": fault(SCALER, "the scale grows instead", BACKOFF, "        return scale * 2, 0\n"),
    "growth one step late": fault(SCALER, "grows one step too late", WAIT, "    if tracker <= growth_interval:\n"),
    "growth one step early": fault(SCALER, "grows one step too early", WAIT, "    if tracker < growth_interval - 1:\n"),
    "no growth": fault(SCALER, "or never", WAIT, "    if True:\n"),
    "floor at 1": fault(
        LIMITS, "the scale is kept from falling below 1", BACKOFF, "        return max(scale / 2, 1.0), 0\n"
    ),
    "growth beyond float32": fault(LIMITS, "beyond what float32 holds", GROW, "scale * 2, 0"),
    "tracker kept at the limit": fault(
        LIMITS,
        "the tracker is kept at the limit",
        GROW,
        "scale * 2 if scale * 2 <= FLOAT32_MAX else scale, 0 if scale * 2 <= FLOAT32_MAX else tracker",
    ),
    "a growth that is refused below the limit": fault(
        LIMITS, "returned another scale", GROW, GROW.replace("scale * 2 <=", "scale * 4 <=")
    ),
    "schedule ticked on a skipped step": fault(
        OVERFLOW,
        "the schedule ticks although the update is skipped",
        TICKS,
        TICKS.replace("            t, rate", "        t, rate"),
    ),
    "t advanced on a skipped step": fault(
        OVERFLOW, "t counts an update that is skipped", TICKS, f"{TICKS}        else:\n            t = t + 1\n"
    ),
    "rate decayed on a skipped step": fault(
        OVERFLOW,
        "the rate decays although the update is skipped",
        TICKS,
        f"{TICKS}        else:\n{TICKS.replace('t, rate =', '_, rate =')}",
    ),
    "no update is skipped": fault(
        OVERFLOW,
        "the update is made in spite of an overflow",
        SKIP + UPDATE,
        UPDATE.replace("            params", "        params") + SKIP,
    ),
    "the unscaled gradients are looked at": fault(
        OVERFLOW, "expected", LOOK, LOOK.replace("in scaled", "in grads")
    ),
    "only the first array is looked at": fault(
        OVERFLOW, "only the first array is looked at", LOOK, LOOK.replace("in scaled", "in scaled[:1]")
    ),
    "NaN is not looked for": fault(
        OVERFLOW, "infinity is looked for, NaN is not", LOOK, "any(bool(np.isinf(g).any()) for g in scaled)"
    ),
    "the scaler does not learn of the overflow": fault(
        OVERFLOW,
        "the scaler does not step when the update is skipped",
        STEPS,
        f"        if not found_inf:\n    {STEPS}",
    ),
    "gradients are not unscaled": fault(
        TRAIN, "the gradients are not divided by the scale", UPDATE, UPDATE.replace(" / scale", "")
    ),
    "divided in float16": Mutant(
        TRAIN,
        "the gradients are divided in float16, where a scale above 65504 is infinite",
        ((UPDATE, UPDATE.replace("(g.astype(np.float64) / scale)", "(g / np.float16(scale)).astype(np.float64)")),),
        ("numpy",),
    ),
    "divided by a tensor of float16": Mutant(
        TRAIN,
        "the gradients are divided in float16, where a scale above 65504 is infinite",
        ((UPDATE, UPDATE.replace("(g.astype(np.float64) / scale)", "(g / torch.tensor(scale).half()).double()")),),
        ("torch",),
    ),
    "quotient in float16": Mutant(
        TRAIN,
        "train does not give",
        ((UPDATE, UPDATE.replace("(g.astype(np.float64) / scale)", "(g / scale).double()")),),
        ("torch",),
    ),
    "inverse in float16": Mutant(
        TRAIN,
        "multiplied by the inverse scale in float16",
        ((UPDATE, UPDATE.replace("(g.astype(np.float64) / scale)", "(g * np.float16(1 / scale)).astype(np.float64)")),),
        ("numpy",),
    ),
    "unscaled by the next scale": fault(
        TRAIN,
        "divided by the scale of the next step",
        SKIP + UPDATE + TICKS + STEPS,
        STEPS + SKIP + UPDATE + TICKS,
    ),
    "schedule before the update": fault(
        TRAIN, "the schedule ticks before the update", UPDATE + TICKS, TICKS + UPDATE
    ),
    "rate of the settings": fault(
        TRAIN, "train does not give", UPDATE, UPDATE.replace("p - rate", 'p - settings["rate"]')
    ),
    "updates in float32": fault(TRAIN, "train does not give", UPDATE, UPDATE.replace("np.float64", "np.float32")),
    "the last gradients are left out": fault(
        TRAIN, "train does not give", "in grads_sequence:", "in grads_sequence[:-1]:"
    ),
    "scale reset each epoch": fault(
        CALLS,
        "the scale begins anew with every call",
        START,
        START.replace('state["scale"], state["tracker"]', 'settings["scale"], 0'),
    ),
    "tracker reset each epoch": fault(
        CALLS, "the tracker begins anew with every call", START, START.replace('state["tracker"]', "0")
    ),
    "schedule reset each epoch": fault(
        CALLS,
        "the schedule begins anew with every call",
        START,
        START.replace('state["t"], state["rate"]', '0, settings["rate"]'),
    ),
    "the state is trained on in place": fault(
        ARGUMENTS,
        "train writes into state",
        '    return {"params": params, "t": t, "rate": rate, "scale": scale, "tracker": tracker}\n',
        '    state["t"] = t\n'
        '    return {"params": params, "t": t, "rate": rate, "scale": scale, "tracker": tracker}\n',
    ),
    "parameters are updated in place": fault(
        ARGUMENTS,
        "train writes into state",
        BEGIN,
        'params = list(state["params"])\n    t, rate',
        (
            UPDATE,
            "            for p, g in zip(params, scaled):\n"
            "                p -= rate * (g.astype(np.float64) / scale)\n",
        ),
    ),
    "gradients used up": fault(
        ARGUMENTS,
        "train writes into grads_sequence",
        "    for grads in grads_sequence:\n",
        "    while grads_sequence:\n        grads = grads_sequence.pop(0)\n",
    ),
    "settings are kept up to date": fault(
        ARGUMENTS, "train writes into settings", STEPS, f'{STEPS}        settings["rate"] = rate\n'
    ),
    "the checkpoint is emptied": fault(
        ARGUMENTS, "restore_state writes into checkpoint", PUT_T, f'{PUT_T}    checkpoint["t"] = 0\n'
    ),
    "tracker not saved": fault(HOLDS, "tracker missing", SAVED_TRACKER, ""),
    "scale not saved": fault(HOLDS, "scale missing", SAVED_SCALE, ""),
    "rate not saved": fault(HOLDS, "rate missing", SAVED_RATE, ""),
    "tracker saved as zero": fault(HOLDS, "the tracker was lost", SAVED_TRACKER, '        "tracker": 0,\n'),
    "scale saved with a floor": fault(
        HOLDS, "kept from falling below 1", SAVED_SCALE, '        "scale": max(state["scale"], 1.0),\n'
    ),
    "t saved as the next": fault(HOLDS, "t is one too large", SAVED_T, '        "t": state["t"] + 1,\n'),
    "rate saved in float32": Mutant(
        HOLDS,
        "the rate was rounded to float32",
        ((SAVED_RATE, '        "rate": float(np.float32(state["rate"])),\n'),),
        ("numpy",),
    ),
    "rate saved in a float32 tensor": Mutant(
        HOLDS,
        "the rate was rounded to float32",
        ((SAVED_RATE, '        "rate": torch.tensor(state["rate"]),\n'),),
        ("torch",),
    ),
    "parameters saved in float32": fault(
        HOLDS, "the checkpoint is not the state", SAVE, SAVE.replace(".copy()", ".astype(np.float32)")
    ),
    "shallow copy": fault(
        APART, "the checkpoint changed when the state did", SAVE, '        "params": list(state["params"]),\n'
    ),
    "list kept": fault(APART, "changed when the state did", SAVE, '        "params": state["params"],\n'),
    "the state is its own checkpoint": fault(
        APART, "own dict, list or arrays", f"    return {{\n{SAVE}", f"    return state\n    return {{\n{SAVE}"
    ),
    "the checkpoint's own arrays go on": fault(
        APART, "hands out the checkpoint's own", NEW, 'state = dict(params=checkpoint["params"])\n'
    ),
    "tracker not restored": fault(RESTORE, "the tracker was lost", PUT_TRACKER, ""),
    "scale not restored": fault(RESTORE, "the scale began anew", PUT_SCALE, ""),
    "scaler not restored": fault(RESTORE, "the scaler began anew", PUT_SCALE + PUT_TRACKER, ""),
    "schedule not restored": fault(RESTORE, "the schedule began anew", PUT_T + PUT_RATE, ""),
    "rate not restored": fault(RESTORE, "the rate began anew", PUT_RATE, ""),
    "tick lost while the rate is kept": fault(RESTORE, "t was lost while the rate was kept", PUT_T, ""),
    "rate recomputed from the base": fault(
        RESTORE,
        "which rounds otherwise",
        PUT_RATE,
        '    state["rate"] = settings["rate"] * settings["gamma"] ** (checkpoint["t"] // settings["step_size"])\n',
    ),
    "restore steps the scaler": fault(
        RESTORE,
        "loading made a step of the scaler",
        PUT_TRACKER,
        f"{PUT_TRACKER}    state['scale'], state['tracker'] = scaler_step("
        "state['scale'], state['tracker'], False, settings['growth_interval'])\n",
    ),
    "restore steps the scaler as after an overflow": fault(
        RESTORE,
        "as after an overflow",
        PUT_TRACKER,
        f"{PUT_TRACKER}    state['scale'], state['tracker'] = scaler_step("
        "state['scale'], state['tracker'], True, settings['growth_interval'])\n",
    ),
    "restore ticks the schedule": fault(
        RESTORE,
        "loading made a tick of the schedule",
        PUT_RATE,
        f"{PUT_RATE}    state['t'], state['rate'] = schedule_step("
        "state['t'], state['rate'], settings['step_size'], settings['gamma'])\n",
    ),
    "a new schedule and scaler after the load": fault(
        RESTORE,
        "the restored state is not the one that was saved",
        "    return state\n",
        "    return new_state(state['params'], settings)\n",
    ),
    "nothing but the parameters is restored": fault(
        RESUME, "the state was not restored", PUT_T + PUT_RATE + PUT_SCALE + PUT_TRACKER, ""
    ),
    "the scaler lives outside the state": fault(
        RESUME,
        "train takes something from elsewhere",
        STEPS,
        f"{STEPS}        _scaler[:] = [scale, tracker]\n",
        (START, START[:-7] + "    scale, tracker = _scaler if t and _scaler else (scale, tracker)\n    for"),
        ("def train(", "_scaler = []\n\n\ndef train("),
    ),
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, NAME, reference(NAME, framework), framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named(NAME).laws)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named(NAME).laws}


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, NAME, mutant, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, NAME, framework)


GIVEN = """
import copy
import numpy as np
def scaled_gradients(grads, scale):
    with np.errstate(over="ignore"):
        return [(g * scale).astype(np.float16) for g in grads]
"""
IN_PLACE = """
def schedule_step(t, rate, step_size, gamma):
    t += 1
    return t, rate * (gamma if t % step_size == 0 else 1.0)
def scaler_step(scale, tracker, found_inf, growth_interval):
    if found_inf:
        scale, tracker = 0.5 * scale, 0
    else:
        tracker += 1
        if tracker == growth_interval:
            tracker = 0
            if 2 * scale < 2.0**128:
                scale *= 2
    return [scale, tracker]
def train(state, grads_sequence, settings):
    state = copy.deepcopy(state)
    for grads in grads_sequence:
        scaled = scaled_gradients(grads, state["scale"])
        bad = sum(int((~np.isfinite(g)).sum()) for g in scaled) > 0
        if not bad:
            for p, g in zip(state["params"], scaled):
                g = g.astype(np.float64)
                g *= 1 / state["scale"]
                g *= state["rate"]
                p -= g
            state["t"], state["rate"] = schedule_step(
                state["t"], state["rate"], settings["step_size"], settings["gamma"])
        state["scale"], state["tracker"] = scaler_step(
            state["scale"], state["tracker"], bad, settings["growth_interval"])
    return state
save_state = copy.deepcopy
def restore_state(checkpoint, settings):
    return copy.deepcopy(checkpoint)
"""
TUPLES = """
def schedule_step(t, rate, step_size, gamma):
    return (t + 1, rate if (t + 1) % step_size else rate * gamma)
def scaler_step(scale, tracker, found_inf, growth_interval):
    if found_inf:
        return np.float64(scale) / 2, np.int64(0)
    if tracker + 1 == growth_interval:
        with np.errstate(over="ignore"):
            grown = np.float32(scale) * np.float32(2)
        return float(grown if np.isfinite(grown) else scale), 0
    return scale, tracker + 1
def step(state, grads, settings):
    scale = state["scale"]
    scaled = scaled_gradients(grads, scale)
    total = sum(np.abs(g.astype(float)).sum() for g in scaled)
    following = scaler_step(scale, state["tracker"], not np.isfinite(total), settings["growth_interval"])
    new = dict(state, scale=following[0], tracker=following[1])
    if np.all([np.all(np.isfinite(g)) for g in scaled]):
        factor = state["rate"] / scale
        new["params"] = tuple(p - factor * g.astype(float) for p, g in zip(state["params"], scaled))
        new["t"], new["rate"] = schedule_step(state["t"], state["rate"], settings["step_size"], settings["gamma"])
    return new
def save_state(state):
    return {k: tuple(np.array(p) for p in v) if k == "params" else v for k, v in state.items()}
def train(state, grads_sequence, settings):
    state = save_state(state)
    for grads in grads_sequence:
        state = step(state, grads, settings)
    return state
def restore_state(checkpoint, settings):
    return save_state(checkpoint)
"""
RECURSIVE = """
def schedule_step(t, rate, step_size, gamma):
    t = 1 + t
    while t % step_size == 0:
        return t, gamma * rate
    return t, rate
def scaler_step(scale, tracker, found_inf, growth_interval):
    grown = min(scale * 2, float(np.finfo(np.float32).max))
    grown = grown if grown == scale * 2 else scale
    return ((scale, tracker + 1), (grown, 0))[tracker + 1 >= growth_interval] if not found_inf else (scale * 0.5, 0)
def train(state, grads_sequence, settings):
    state = restore_state(state, settings)
    if not len(grads_sequence):
        return state
    p, t, r, s, k = (state[key] for key in ("params", "t", "rate", "scale", "tracker"))
    g = [np.asarray(x, dtype=np.float64) for x in scaled_gradients(grads_sequence[0], s)]
    finite = all(np.isfinite(x).all() for x in g)
    if finite:
        p = [np.subtract(a, r * b / s) for a, b in zip(p, g)]
        t, r = schedule_step(t, r, settings["step_size"], settings["gamma"])
    s, k = scaler_step(s, k, not finite, settings["growth_interval"])
    return train({"tracker": k, "scale": s, "rate": r, "t": t, "params": p}, grads_sequence[1:], settings)
def save_state(state):
    return dict(state, params=[p + 0 for p in state["params"]])
def restore_state(checkpoint, settings):
    return save_state(checkpoint)
"""
STOCK = """
import copy
import torch
def schedule_step(t, rate, step_size, gamma):
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=rate)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size, gamma)
    schedule.last_epoch = t
    optimizer.step()
    schedule.step()
    return t + 1, optimizer.param_groups[0]["lr"]
def scaler_step(scale, tracker, found_inf, growth_interval):
    s = torch.full((), scale, dtype=torch.float32)
    k = torch.full((), tracker, dtype=torch.int32)
    torch._amp_update_scale_(s, k, torch.full((), float(found_inf)), 2.0, 0.5, growth_interval)
    return s.item(), k.item()
def train(state, grads_sequence, settings):
    state = copy.deepcopy(state)
    for grads in grads_sequence:
        scaled = [(g * state["scale"]).to(torch.float16) for g in grads]
        bad = any((~torch.isfinite(g)).any().item() for g in scaled)
        if not bad:
            optimizer = torch.optim.SGD(state["params"], lr=state["rate"])
            for p, g in zip(state["params"], scaled):
                p.grad = g.double() / state["scale"]
            optimizer.step()
            for p in state["params"]:
                p.grad = None
            state["t"], state["rate"] = schedule_step(
                state["t"], state["rate"], settings["step_size"], settings["gamma"])
        state["scale"], state["tracker"] = scaler_step(
            state["scale"], state["tracker"], bad, settings["growth_interval"])
    return state
save_state = copy.deepcopy
def restore_state(checkpoint, settings):
    return copy.deepcopy(checkpoint)
"""


@pytest.mark.parametrize("text", [IN_PLACE, TUPLES, RECURSIVE], ids=["in place", "tuples", "recursive"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, NAME, GIVEN + text)) == []


@NO_TORCH
@pytest.mark.parametrize("text", [IN_PLACE, STOCK], ids=["in place", "torch's own rules"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    given = "import copy\nimport torch\ndef scaled_gradients(grads, scale):\n"
    given += "    return [(g * scale).half() for g in grads]\n"
    text = text.replace("g.astype(np.float64)", "g.double()").replace("np.", "torch.")
    assert told(graded(tmp_path, NAME, given + text, "torch")) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_{NAME}.py"
        paths[framework].write_text(reference(NAME, framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated(NAME, "numpy", MUTANTS["tracker not restored"].changes))
    ours, theirs, exercise = (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named(NAME)
    assert grade_against(ours, theirs, exercise, in_process=True).holds
    for side in (ours, theirs):
        verdict = grade_against(side, (wrong, "numpy"), exercise, in_process=True)
        assert (verdict.holds, verdict.leaf) == (False, "restored/tracker")
