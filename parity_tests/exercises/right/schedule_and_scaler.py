"""A schedule and a loss scaler, written differently."""

RIGHT = {
    "in place": (
        """
import copy
import numpy as np
def scaled_gradients(grads, scale):
    with np.errstate(over="ignore"):
        return [(g * scale).astype(np.float16) for g in grads]
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
""",
        ("numpy",),
    ),
    "recursive": (
        """
import copy
import numpy as np
def scaled_gradients(grads, scale):
    with np.errstate(over="ignore"):
        return [(g * scale).astype(np.float16) for g in grads]
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
""",
        ("numpy",),
    ),
    "torch's own rules": (
        """
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
""",
        ("torch",),
    ),
}
