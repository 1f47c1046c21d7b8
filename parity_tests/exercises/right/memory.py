"""The memory of a training step, written differently."""

RIGHT = {
    "objects": (
        """
import numpy as np
def count_elements(shape):
    return int(np.prod(np.array(tuple(shape), dtype=object)))
def training_memory(param_shapes, frozen_shapes, activation_shapes, widths, optimizer, master_weights):
    n, f, a = (int(np.sum(np.array([count_elements(s) for s in shapes], dtype=object)))
               for shapes in (param_shapes, frozen_shapes, activation_shapes))
    k = {"sgd": 0, "sgd_momentum": 1, "adam": 2}[optimizer]
    counts = np.array([n + f, n, a, n * k, n * int(master_weights)], dtype=object)
    sizes = counts * [widths[name] for name in ("parameter", "gradient", "activation", "moment", "master")]
    return {"total": sum(sizes), "optimizer": sizes[3] + sizes[4], "activations": sizes[2], "gradients": sizes[1],
            "parameters": sizes[0]}
""",
        ("numpy",),
    ),
    "one by one": (
        """
from functools import reduce
from operator import mul
def count_elements(shape):
    return reduce(mul, shape, 1)
def training_memory(param_shapes, frozen_shapes, activation_shapes, widths, optimizer, master_weights):
    total = dict.fromkeys(["parameters", "gradients", "activations", "optimizer"], 0)
    while_trained = [(s, True) for s in param_shapes] + [(s, False) for s in frozen_shapes]
    for shape, trained in while_trained:
        n = count_elements(shape)
        total["parameters"] += n * widths["parameter"]
        if not trained:
            continue
        total["gradients"] += n * widths["gradient"]
        total["optimizer"] += n * widths["moment"] * ("sgd", "sgd_momentum", "adam").index(optimizer)
        total["optimizer"] += n * widths["master"] if master_weights else 0
    for shape in activation_shapes:
        total["activations"] += count_elements(shape) * widths["activation"]
    total["total"] = sum(total.values())
    return total
""",
        ("numpy", "torch"),
    ),
}
