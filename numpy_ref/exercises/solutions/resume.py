"""Resume Adam from a checkpoint, bit for bit.

Write four functions. Parameters, first moments `m_list`, second moments `v_list` and the gradients of a step are lists
of NumPy arrays, one for each parameter, float64 or float32, of any shapes. Types are kept: what comes back for a
float32 parameter is float32. `t` is the 1-based index of the next step, an int: 1 before the first.
`adam_step` is given.
"""

from typing import Any

import numpy as np

Arrays = list[np.ndarray[Any, Any]]
State = tuple[Arrays, Arrays, Arrays, int]  # params, m_list, v_list, t


def adam_step(
    params: Arrays,
    grads: Arrays,
    m_list: Arrays,
    v_list: Arrays,
    t: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
) -> tuple[Arrays, Arrays, Arrays]:
    """One update of Adam, the `t`-th; returns new lists and leaves the old ones as they are.

    m = beta1 m + (1 - beta1) g                    v = beta2 v + (1 - beta2) g g
    m_hat = m / (1 - beta1**t)                     v_hat = v / (1 - beta2**t)
    p = p - lr m_hat / (sqrt(v_hat) + eps)
    """
    new_params: Arrays = []
    new_m: Arrays = []
    new_v: Arrays = []
    for p, g, m, v in zip(params, grads, m_list, v_list, strict=True):
        m = beta1 * m + (1 - beta1) * g
        v = beta2 * v + (1 - beta2) * (g * g)
        m_hat = m / (1 - beta1**t)
        v_hat = v / (1 - beta2**t)
        new_params.append(p - lr * m_hat / (np.sqrt(v_hat) + eps))
        new_m.append(m)
        new_v.append(v)
    return new_params, new_m, new_v


def save_checkpoint(params: Arrays, m_list: Arrays, v_list: Arrays, t: int) -> dict[str, Any]:
    """What a full resume needs, independent of the arguments.

    Args:
        params: list of arrays.
        m_list: their first moments.
        v_list: their second moments.
        t: index of the next step, an int.

    Returns:
        A dict with the keys "params", "m_list", "v_list" and "t". Whatever is done to the arguments later, it keeps its
        values.
    """
    return {
        "params": [p.copy() for p in params],
        "m_list": [m.copy() for m in m_list],
        "v_list": [v.copy() for v in v_list],
        "t": t,
    }


def train_n_steps(
    params: Arrays, m_list: Arrays, v_list: Arrays, t: int, grads_sequence: list[Arrays], lr: float
) -> State:
    """Take one step of Adam for each entry of `grads_sequence`.

    Args:
        params: list of arrays.
        m_list: their first moments.
        v_list: their second moments.
        t: index of the next step.
        grads_sequence: a list with one entry for each step: a list with one gradient for each parameter. It may be
            empty.
        lr: the learning rate.

    Returns:
        The state after the last step, (params, m_list, v_list, t), every array of the type it had. The arguments are
        left as they are.
    """
    for grads in grads_sequence:
        params, m_list, v_list = adam_step(params, grads, m_list, v_list, t, lr)
        t = t + 1
    return params, m_list, v_list, t


def resume_from_full_checkpoint(checkpoint: dict[str, Any], grads_sequence: list[Arrays], lr: float) -> State:
    """Go on from a checkpoint as if training had never stopped.

    Args:
        checkpoint: what `save_checkpoint` returned. It is left as it is: another resume may need it.
        grads_sequence: the gradients of the steps to come.
        lr: the learning rate.

    Returns:
        (params, m_list, v_list, t), bitwise what uninterrupted training gives.
    """
    saved = save_checkpoint(**checkpoint)  # a copy, so that nothing that is returned belongs to the checkpoint
    return train_n_steps(saved["params"], saved["m_list"], saved["v_list"], saved["t"], grads_sequence, lr)


def resume_from_weights_only(params: Arrays, grads_sequence: list[Arrays], lr: float) -> State:
    """Start a new run on old weights: moments of zero, and the first step is step 1.

    Args:
        params: list of arrays.
        grads_sequence: the gradients of the steps to come.
        lr: the learning rate.

    Returns:
        (params, m_list, v_list, t) of the new run, its moments of the parameters' types. The arguments are left as
        they are.
    """
    copies = [p.copy() for p in params]
    m_list = [np.zeros_like(p) for p in params]
    v_list = [np.zeros_like(p) for p in params]
    return train_n_steps(copies, m_list, v_list, 1, grads_sequence, lr)
