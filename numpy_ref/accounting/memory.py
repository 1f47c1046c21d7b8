"""What a training step holds: exact bytes, in whole numbers from shapes.

Counted, each as (elements) x (bytes an element):

    parameters        every parameter, once; a tied matrix once
    gradients         one element a parameter
    activations       what the forward pass keeps for the backward pass, as the caller lists it; here the operands of
                      products: the inputs of linear layers and, in attention, queries, keys, values and probabilities
    optimizer         the moments, so many elements a parameter
    primary           a float32 copy of the parameters, where these are kept in 16 bits

Not counted: temporary arrays within an operation and the gradients of activations; what other operations keep (masks of
dropout and ReLU, inputs and statistics of normalisations, the loss's probabilities); 16-bit copies that a cast of
float32 parameters makes for a step; buffers such as running statistics; the optimizer's count of steps and the loss
scale, a few bytes each; the batch and its labels, unless listed; gradients accumulated elsewhere than in place;
communication buffers; the allocator's rounding and fragmentation, and a device's own context. `account_rows` sets the
computed numbers beside measured ones and names what makes the difference; the peak of a step is measured alone.
"""

from collections.abc import Iterable
from typing import NamedTuple

from numpy_ref.accounting.sizes import END, Shape, checked_size, elements_of


class Widths(NamedTuple):
    """Bytes an element of each class; 0 where nothing of the class is kept."""

    parameter: int
    gradient: int
    activation: int
    moment: int
    primary: int = 0


class Memory(NamedTuple):
    """Bytes of each class."""

    parameters: int
    gradients: int
    activations: int
    optimizer: int
    primary: int

    @property
    def total(self) -> int:
        """All of it."""
        return sum(self)


class Convention(NamedTuple):
    """A known way of counting the bytes a parameter costs."""

    widths: Widths
    moments: int
    source: str

    @property
    def bytes_per_parameter(self) -> int:
        """All classes but activations."""
        parameter, gradient, _, moment, primary = self.widths
        return parameter + gradient + self.moments * moment + primary


CONVENTIONS = {
    "float32 adam": Convention(
        Widths(4, 4, 4, 4), 2, "4 + 4 + 8 = 16: Stanford CS336, lecture 2; DeepSpeed's documentation on memory"
    ),
    "mixed adam": Convention(
        Widths(2, 2, 2, 4, 4), 2, "2 + 2 + 12 = 16: Rajbhandari, Rasley, Ruwase, He 2020 (ZeRO), section 3.1"
    ),
    "mixed adam, float32 gradients": Convention(
        Widths(2, 4, 2, 4, 4), 2, "2 + 4 + 12 = 18: DeepSpeed's documentation on memory; EleutherAI's cookbook"
    ),
    "float32 sgd": Convention(Widths(4, 4, 4, 4), 1, "4 + 4 + 4 = 12: one buffer, as torch.optim.SGD keeps it"),
    "mixed sgd": Convention(Widths(2, 2, 2, 4, 4), 1, "2 + 2 + 8 = 12: EleutherAI's cookbook, table of optimizers"),
    "mixed sgd, float32 gradients": Convention(
        Widths(2, 4, 2, 4, 4), 1, "2 + 4 + 8 = 14: EleutherAI's cookbook, table of optimizers"
    ),
    "autocast adam": Convention(
        Widths(4, 4, 2, 4),
        2,
        "4 + 4 + 8 = 16: torch.autocast keeps float32 parameters and needs no primary copy; 16-bit ones are temporary",
    ),
    "on disk": Convention(
        Widths(4, 0, 0, 4), 2, "4 + 8 = 12: parameters and both moments, Karpathy's nanoGPT, transformer_sizing"
    ),
}


def account_memory(
    parameter_shapes: Iterable[Shape], activation_shapes: Iterable[Shape], widths: Widths, *, moments: int
) -> Memory:
    """Bytes of a training step, from shapes.

        n = sum of the products of the shapes: () counts 1, a size of 0 counts 0
        parameters = n parameter;  gradients = n gradient;  optimizer = n moments moment;  primary = n primary
        activations = (n of the activations) activation

    Args:
        parameter_shapes: of what is trained, each parameter once.
        activation_shapes: of what is kept between the forward and the backward pass.
        widths: bytes an element, >= 0.
        moments: arrays that the optimizer keeps for each parameter, >= 0: sgd 0, with momentum 1, adam 2, amsgrad 3.

    Returns:
        The bytes of each class, exactly.

    Raises:
        ValueError: a shape is none, a size, a width or `moments` no whole number >= 0; or the bytes are 2**63 or more.

    Source:
        Rajbhandari, Rasley, Ruwase, He 2020 (ZeRO), section 3, for the classes.

    Example:
        >>> memory = account_memory([(3, 2), (3,), ()], [(8, 2)], Widths(4, 4, 4, 4), moments=2)
        >>> memory, memory.total
        (Memory(parameters=40, gradients=40, activations=64, optimizer=80, primary=0), 224)
    """
    n = elements_of("account_memory: parameter_shapes", parameter_shapes)
    kept = elements_of("account_memory: activation_shapes", activation_shapes)
    if not isinstance(widths, Widths):
        raise ValueError(f"account_memory: widths: expected Widths, found {widths!r}. Give Widths(4, 4, 4, 4), say.")
    parameter, gradient, activation, moment, primary = (
        checked_size(f"account_memory: widths.{name}", width) for name, width in widths._asdict().items()
    )
    moments = checked_size("account_memory: moments", moments)
    memory = Memory(n * parameter, n * gradient, kept * activation, n * moments * moment, n * primary)
    if memory.total >= END:
        raise ValueError(
            f"account_memory: expected fewer than 2**63 bytes in all, found {memory.total}. Check the sizes: no "
            "machine holds so much."
        )
    return memory
