"""Gradient checkpointing, written differently."""

RIGHT = {
    "recursive": (
        """
import numpy as np
def linear_backward(grad_output, input, weight):
    return (np.einsum("bo,oi->bi", grad_output, weight), np.einsum("bo,bi->oi", grad_output, input),
            np.einsum("bo->o", grad_output))
def relu(z):
    return (z + abs(z)) / 2
def forward_full(x, weights, biases):
    if not weights:
        return x, [x], []
    z = np.einsum("bi,oi->bo", x, weights[0]) + biases[0]
    output, a, zs = forward_full(relu(z), weights[1:], biases[1:])
    return output, [x] + a, [z] + zs
def backward_full(grad_output, activations, pre_activations, weights):
    if not weights:
        return grad_output, [], []
    g, ws, bs = backward_full(grad_output, activations[1:], pre_activations[1:], weights[1:])
    g, w, b = linear_backward(np.where(pre_activations[0] > 0, g, 0), activations[0], weights[0])
    return g, [w] + ws, [b] + bs
def forward_checkpointed(x, weights, biases):
    return forward_full(x, weights, biases)[0]
def backward_checkpointed(grad_output, x, weights, biases):
    if not weights:
        return grad_output, [], []
    z = np.einsum("bi,oi->bo", x, weights[0]) + biases[0]
    g, ws, bs = backward_checkpointed(grad_output, relu(z), weights[1:], biases[1:])
    g, w, b = linear_backward(np.where(z > 0, g, 0), x, weights[0])
    return g, [w] + ws, [b] + bs
def count_stored_activations(num_layers, use_checkpointing):
    return 1 + num_layers * (not use_checkpointing)
""",
        ("numpy", "torch"),
    ),
    "wide, in place": (
        """
import numpy as np
def wide(*trees):
    return [np.array(t, np.float64) if isinstance(t, np.ndarray) else [wide(x)[0] for x in t] for t in trees]
def linear_backward(grad_output, input, weight):
    g, x, w = wide(grad_output, input, weight)
    return [g @ w, (x.T @ g).T, np.ones(len(g)) @ g]
def forward_full(x, weights, biases):
    x, weights, biases = wide(x, weights, biases)
    activations, pre = [x], []
    for w, b in zip(weights, biases):
        z = x @ w.T
        z += b
        pre.append(z.copy())
        x = np.maximum(z, 0, out=z)
        activations.append(x)
    return x, activations, pre
def backward_full(grad_output, activations, pre_activations, weights):
    g, activations, z, weights = wide(grad_output, activations, pre_activations, weights)
    ws, bs = [], []
    while weights:
        g *= np.heaviside(z.pop(), 0)
        activations.pop()
        g, w, b = linear_backward(g, activations[-1], weights.pop())
        ws.insert(0, w)
        bs.insert(0, b)
    return g, ws, bs
def forward_checkpointed(x, weights, biases):
    output, _, _ = forward_full(x, weights, biases)
    return output
def backward_checkpointed(grad_output, x, weights, biases):
    _, a, z = forward_full(x, weights, biases)
    return backward_full(grad_output, a, z, weights)
def count_stored_activations(num_layers, use_checkpointing):
    if use_checkpointing:
        return 1
    return num_layers + 1
""",
        ("numpy",),
    ),
    "functional": (
        """
import torch
import torch.nn.functional as F
def linear_backward(grad_output, input, weight):
    return grad_output.matmul(weight), grad_output.t().mm(input), grad_output.sum(dim=0)
def forward_full(x, weights, biases):
    activations, pre = [x], []
    for w, b in zip(weights, biases):
        pre.append(F.linear(activations[-1], w, b))
        activations.append(torch.relu(pre[-1]))
    return activations[-1], activations, pre
def backward_full(grad_output, activations, pre_activations, weights):
    g, ws, bs = grad_output, [], []
    for a, z, w in zip(activations[-2::-1], pre_activations[::-1], weights[::-1]):
        g = g.masked_fill(z <= 0, 0)
        g, gw, gb = linear_backward(g, a, w)
        ws, bs = [gw, *ws], [gb, *bs]
    return g, ws, bs
@torch.no_grad()
def forward_checkpointed(x, weights, biases):
    for w, b in zip(weights, biases):
        x = F.linear(x, w, b).relu_()
    return x
def backward_checkpointed(grad_output, x, weights, biases):
    return backward_full(grad_output, *forward_full(x, weights, biases)[1:], weights)
def count_stored_activations(num_layers, use_checkpointing):
    return [num_layers + 1, 1][use_checkpointing]
""",
        ("torch",),
    ),
}
