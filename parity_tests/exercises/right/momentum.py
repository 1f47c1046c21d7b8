"""SGD with momentum, written differently."""

RIGHT = {
    "recursive": (
        """
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
""",
        ("numpy", "torch"),
    ),
    "wide tuples": (
        """
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
""",
        ("numpy",),
    ),
    "torch.optim": (
        """
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
""",
        ("torch",),
    ),
}
