"""Wrong versions of gradient checkpointing."""

from collections.abc import Callable
from typing import Any

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table, after, before

AVERAGED = "the mean over the batch was taken, not the sum"
MIXED = "backward_checkpointed uses what another call has kept"
STORED = "activations are stored outside the function"


def positive(z: Any) -> Any:
    """Numbers above 0 for all."""
    return abs(z) + 1


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""

    def linear(change: Callable[..., Any]) -> Replacements:
        return {"linear_backward": lambda g, x, w: change(g, *right.linear_backward(g, x, w))}

    def full(change: Callable[..., Any]) -> Replacements:
        return {"forward_full": after(right.forward_full, lambda kept: change(*kept))}

    def output(change: Callable[[Any], Any]) -> Replacements:
        return {"forward_checkpointed": after(right.forward_checkpointed, change)}

    def back(change: Callable[..., Any]) -> Any:
        return before(right.backward_full, change)

    def back_after(change: Callable[..., Any]) -> Any:
        return after(right.backward_full, lambda gradients: change(*gradients))

    def again(forward: Any = right.forward_full, backward: Any = right.backward_full) -> Replacements:
        return {"backward_checkpointed": lambda g, x, w, b: backward(g, *forward(x, w, b)[1:], w)}

    def in_float32(x: Any) -> Any:
        return arrays.cast(arrays.cast(x, "float32"), "float64")

    def store(key: Any) -> Replacements:
        return again(lambda x, w, b: stored.setdefault(key(x), (x, right.forward_full(x, w, b)))[1])

    def forward_stored(x: Any, w: Any, b: Any) -> Any:
        stored["last"] = right.forward_full(x, w, b)
        return stored["last"][0]

    stored: dict[Any, Any] = {}
    no_biases = before(right.forward_full, lambda x, w, b: (x, w, [v * 0 for v in b]))
    backwards = {
        "the slope of a ReLU at exactly 0 was taken as 1: its mask must be z > 0": back(
            lambda g, a, z, w: (g, a, [x + (x == 0) for x in z], w)
        ),
        "a ReLU's mask is another layer's: activations[i] is what layer i takes, not what it gives": back(
            lambda g, a, z, w: (g, a, a, w)
        ),
        "a ReLU's mask is another layer's: layer i must take pre_activations[i]": back(
            lambda g, a, z, w: (g, a, [z[-1], *z], w)
        ),
        "no ReLU was taken back: each layer's gradient counts only where its z > 0": back(
            lambda g, a, z, w: (g, a, list(map(positive, z)), w)
        ),
        "the last ReLU was left out of the backward pass": back(
            lambda g, a, z, w: (g, a, [*z[:-1], positive(z[-1])], w)
        ),
        "the first ReLU was left out of the backward pass": back(
            lambda g, a, z, w: (g, a, [positive(z[0]), *z[1:]], w)
        ),
        "the lists begin with the last layer: they are in the order of computation": back_after(
            lambda x, w, b: (x, w[::-1], b[::-1])
        ),
        "layers were given z, not its ReLU, when their weights' gradients were taken": back(
            lambda g, a, z, w: (g, [a[0], *z], z, w)
        ),
        AVERAGED: back_after(lambda x, w, b: (x, [v / len(x) for v in w], [v / len(x) for v in b])),
    }
    return {
        "linear-backward-is-exact": [
            (
                "grad_input is grad_output W, without a transpose",
                {"linear_backward": before(right.linear_backward, lambda g, x, w: (g, x, w.T))},
            ),
            (
                "grad_weight is transposed: weights have the shape (outputs, inputs)",
                linear(lambda g, x, w, b: (x, w.T, b)),
            ),
            ("grad_bias was not summed over the batch", linear(lambda g, x, w, b: (x, w, g))),
            ("grad_bias is the mean over the batch; it must be the sum", linear(lambda g, x, w, b: (x, w, g.mean(0)))),
            ("grad_bias was summed over the outputs", linear(lambda g, x, w, b: (x, w, g.sum(1)))),
            (AVERAGED, linear(lambda g, x, w, b: (x, w / len(g), b / len(g)))),
        ],
        "forward-keeps-everything": [
            ("the last layer's ReLU was left out", full(lambda output, a, z: (z[-1], [*a[:-1], z[-1]], z))),
            (
                "x W was computed; with weights of shape (outputs, inputs) it is x W^T",
                {"forward_full": before(right.forward_full, lambda x, w, b: (x, [v.T for v in w], b))},
            ),
            ("the biases were left out", {"forward_full": no_biases}),
            (
                "a ReLU was taken in place: z must stay what it was before",
                full(lambda output, a, z: (output, a, a[1:])),
            ),
            ("x is not among the activations; it must be the first", full(lambda output, a, z: (output, a[1:], z))),
        ],
        "full-gradients-are-exact": [(name, {"backward_full": backward}) for name, backward in backwards.items()],
        "checkpointed-output-is-the-full-one": [
            ("it returns what it should not keep", output(lambda x: (x, [x]))),
            (
                "the last layer's ReLU was left out",
                {"forward_checkpointed": lambda x, w, b: right.forward_full(x, w, b)[2][-1]},
            ),
            ("it is computed in float32", output(in_float32)),
        ],
        "checkpointed-gradients-are-the-full-ones": [
            *[(name, again(backward=backward)) for name, backward in backwards.items()],
            ("the biases were left out when the layers were computed again", again(no_biases)),
            (
                "the layers were computed again in reverse order",
                again(before(right.forward_full, lambda x, w, b: (x, w[::-1], b[::-1]))),
            ),
            (
                "computed again, the values are not the same bits: they are rounded to float32",
                again(after(right.forward_full, lambda kept: (None, list(map(in_float32, kept[1])), kept[2]))),
            ),
        ],
        "calls-do-not-mix": [
            (
                "activations of the last forward pass",
                {"forward_checkpointed": forward_stored} | again(lambda x, w, b: stored["last"]),
                MIXED,
            ),
            ("activations of the first call", store(lambda x: "first"), MIXED),
            ("values were kept for an array, and used again after it had changed", store(id)),
        ],
        "nothing-is-kept": [
            ("the last activations", {"forward_checkpointed": forward_stored}, STORED),
            ("the last output", output(lambda x: stored.update(last=x) or x), STORED),
        ],
        "arguments-are-left-alone": [
            (
                "backward_full writes into grad_output",
                {"backward_full": back(lambda g, a, z, w: (g.__imul__(z[-1] > 0), a, z, w))},
            ),
            (
                "backward_full writes into activations, or removes",
                {"backward_full": back(lambda g, a, z, w: (g, [a.pop(0) for _ in list(a)], z, w))},
            ),
            ("forward_checkpointed writes into x", {"forward_checkpointed": lambda x, w, b: x.__imul__(2)}),
            ("backward_checkpointed writes into weights", {"backward_checkpointed": lambda g, x, w, b: w.reverse()}),
        ],
        "counts-are-right": [
            ("the input counts", {"count_stored_activations": lambda n, c: 1 if c else n}),
            ("is always stored", {"count_stored_activations": lambda n, c: 0 if c else n + 1}),
            ("values before the ReLUs do not count", {"count_stored_activations": lambda n, c: 1 if c else 2 * n + 1}),
            ("expected 2, found 1", {"count_stored_activations": lambda n, c: n + 1 if c else 1}),
            ("must return an int, found bool", {"count_stored_activations": lambda n, c: True if c else n + 1}),
        ],
    }
