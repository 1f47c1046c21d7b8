"""The memory of a training step, in bytes, from shapes alone.

Write two functions. A shape is a tuple or a list of sizes, each an int >= 0; in PyTorch it may be a torch.Size. All
results are Python ints, and exact.
"""

import math
from collections.abc import Sequence

Shape = Sequence[int]

MOMENTS = {"sgd": 0, "sgd_momentum": 1, "adam": 2}  # arrays that each optimizer keeps for a parameter, of its shape


def count_elements(shape: Shape) -> int:
    """How many elements an array has.

    Args:
        shape: of the array. () is that of a single number; a size may be 0.

    Returns:
        An int, exact however large.
    """
    return math.prod(shape)


def training_memory(
    param_shapes: list[Shape],
    frozen_shapes: list[Shape],
    activation_shapes: list[Shape],
    widths: dict[str, int],
    optimizer: str,
    master_weights: bool,
) -> dict[str, int]:
    """The bytes that a training step holds.

    Included, each as elements times bytes an element: all parameters; a gradient for each trained parameter; the
    activations that are listed; the optimizer's moments, and a master copy if one is kept, for each trained parameter.
    Excluded: temporary arrays, buffers such as running statistics, the optimizer's count of steps, the loss scale, the
    batch, and what an allocator adds.

    Args:
        param_shapes: of the parameters that are trained.
        frozen_shapes: of the parameters that are not: they have no gradient, no moments and no master copy.
        activation_shapes: of what the forward pass keeps for the backward pass.
        widths: bytes an element, ints, by the keys "parameter", "gradient", "activation", "moment" and "master".
        optimizer: a key of `MOMENTS`.
        master_weights: whether the optimizer keeps a copy of its own of each trained parameter, as training in 16 bits
            may do.

    Returns:
        A dict of bytes with the keys "parameters", "gradients", "activations", "optimizer" (moments and master copy)
        and "total", the sum of the four.
    """
    trained = sum(map(count_elements, param_shapes))
    frozen = sum(map(count_elements, frozen_shapes))
    kept = sum(map(count_elements, activation_shapes))
    state = MOMENTS[optimizer] * widths["moment"]
    if master_weights:
        state += widths["master"]
    memory = {
        "parameters": (trained + frozen) * widths["parameter"],
        "gradients": trained * widths["gradient"],
        "activations": kept * widths["activation"],
        "optimizer": trained * state,
    }
    return {**memory, "total": sum(memory.values())}
