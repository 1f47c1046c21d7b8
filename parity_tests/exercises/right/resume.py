"""Adam, written differently."""

RIGHT = {
    "in place": (
        """
import copy
import numpy as xp
def adam(p, g, m, v, t, lr):
    m *= 0.9
    m += 0.1 * g
    v *= 0.999
    v += 0.001 * g**2
    p -= lr / (1 - 0.9**t) * m / (xp.sqrt(v) / (1 - 0.999**t) ** 0.5 + 1e-8)
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
    m_list, v_list = ([xp.zeros_like(p) for p in params] for _ in range(2))
    return train_n_steps(params, m_list, v_list, 1, grads_sequence, lr)
""",
        ("numpy", "torch"),
    ),
    "wide tuples": (
        """
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
""",
        ("numpy",),
    ),
    "torch.optim": (
        """
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
""",
        ("torch",),
    ),
}
