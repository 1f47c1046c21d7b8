"""The exercise `gradient_checkpointing`: gradients from the input alone, bitwise those from everything."""

import gc
import tracemalloc
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import (
    Arrays,
    Exercise,
    Loss,
    described,
    expect,
    expect_same_bits,
    expect_within,
    law,
    parts,
    unsigned,
)
from numpy_ref.proof.equivalence import Tolerance

FULL = ("output", "activations", "pre_activations")
GRADIENTS = ("grad_x", "grad_weights", "grad_biases")
LINEAR = ("grad_input", "grad_weight", "grad_bias")
# Batches and widths; square weights first: they hide wrong shapes, so that the values must tell.
SIZES = ((5, (4, 4, 4, 4)), (3, (4, 6, 2, 5)), (1, (3, 2)))

# Between a right solution in float64 and the exact values. An element is reached through at most 3 layers forward and 3
# back, each a sum of at most 7 terms, so through fewer than 2**6 roundings of 2**-53 each. All sums, taken of absolute
# values, are below 2**5 for these networks (a test says so), so the error is below 2**6 2**-53 2**5 = 2**-42. Each z is
# 0 or further than 2**-12 from it, so the ReLUs agree. A rounding to float32 moves values of size 1 by up to 2**-25.
ALLOWANCE = Tolerance(relative=0.0, absolute=2.0**-42)

Net = dict[str, Any]  # x, weights, biases, and grad, the gradient by the output


def draw_net(seed: int, batch: int, widths: tuple[int, ...], *, dtype: Any = np.float64) -> Net:
    """A network with a batch; in every layer the first unit's weights and bias are 0, so that its z is exactly 0."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> Any:
        return rng.uniform(-1, 1, shape).astype(dtype)

    weights = [draw(n, m) for m, n in pairwise(widths)]
    biases = [draw(n) for n in widths[1:]]
    for values in (*weights, *biases):
        values[0] = 0
    return {"x": draw(batch, widths[0]), "weights": weights, "biases": biases, "grad": draw(batch, widths[-1])}


def nets(seed: int, dtype: Any = np.float64) -> list[Net]:
    """A network of each size."""
    return [draw_net(seed + i, *sizes, dtype=dtype) for i, sizes in enumerate(SIZES)]


def forward(x: Any, weights: list[Any], biases: list[Any]) -> dict[str, Any]:
    """The forward pass, by numbers of any kind."""
    activations, pre_activations = [x], []
    for weight, bias in zip(weights, biases, strict=True):
        z = activations[-1] @ weight.T + bias
        pre_activations.append(z)
        activations.append(np.where(z > 0, z, 0 * z))
    return dict(zip(FULL, (activations[-1], activations, pre_activations), strict=True))


def backward(grad: Any, kept: dict[str, Any], weights: list[Any]) -> dict[str, Any]:
    """The backward pass, by numbers of any kind."""
    by_weights: list[Any] = []
    by_biases: list[Any] = []
    for i in reversed(range(len(weights))):
        grad = grad * (kept["pre_activations"][i] > 0)
        by_weights.insert(0, grad.T @ kept["activations"][i])
        by_biases.insert(0, grad.sum(0))
        grad = grad @ weights[i]
    return dict(zip(GRADIENTS, (grad, by_weights, by_biases), strict=True))


def converted(kind: Any, tree: Any) -> Any:
    """The tree with Fraction or float for each number."""
    if isinstance(tree, dict):
        return {name: converted(kind, part) for name, part in tree.items()}
    if isinstance(tree, list):
        return [converted(kind, part) for part in tree]
    return np.array([kind(x) for x in tree.flat], object if kind is Fraction else np.float64).reshape(tree.shape)


def run_full(solution: Any, arrays: Arrays, given: Net) -> dict[str, Any]:
    """The solution's gradients from everything, in NumPy."""
    kept = parts("forward_full", solution.forward_full(given["x"], given["weights"], given["biases"]), FULL)
    arguments = given["grad"], kept["activations"], kept["pre_activations"], given["weights"]
    return read_gradients(arrays, "backward_full", solution.backward_full(*arguments))


def run_checkpointed(solution: Any, arrays: Arrays, given: Net) -> dict[str, Any]:
    """The solution's gradients from the input alone, in NumPy."""
    value = solution.backward_checkpointed(given["grad"], given["x"], given["weights"], given["biases"])
    return read_gradients(arrays, "backward_checkpointed", value)


def read_gradients(arrays: Arrays, function: str, value: Any) -> dict[str, Any]:
    """What a backward pass returned, in NumPy."""
    found: dict[str, Any] = arrays.found(function, parts(function, value, GRADIENTS))
    return found


def keep(solution: Any, given: Net) -> Any:
    """The solution's forward pass that keeps nothing."""
    return solution.forward_checkpointed(given["x"], given["weights"], given["biases"])


@law(
    "Write out one element of z = input W^T + b, and take its derivative by one element of each of the three.",
    "Each gradient has the shape of what it is by; the batch is summed over in two of them.",
    "By the input grad_output W; by W the transposed grad_output times the input; by b the sum of grad_output's rows.",
)
def linear_backward_is_exact(solution: Any, arrays: Arrays) -> None:
    """linear_backward returns the gradients by input, weight and bias, the latter two summed over the batch."""
    for net in nets(10):
        grad, x, weight = net["grad"], net["x"], np.resize(net["weights"][0], (net["grad"].shape[1], net["x"].shape[1]))
        g, a, w = (converted(Fraction, value) for value in (grad, x, weight))
        exact = converted(float, dict(zip(LINEAR, (g @ w, g.T @ a, g.sum(0)), strict=True)))
        value = solution.linear_backward(*arrays.given((grad, x, weight)))
        found = arrays.found("linear_backward", parts("linear_backward", value, LINEAR))
        expect_within("linear_backward is not exact", exact, found, ALLOWANCE)


@law(
    "How many arrays does each of the two lists hold, and which is the first?",
    "The input is the first activation; after every layer, also the last, comes max(z, 0), in an array of its own.",
    "Begin with [x]; for each layer append z = a W^T + b to one list and max(z, 0), as a new array, to the other.",
)
def forward_keeps_everything(solution: Any, arrays: Arrays) -> None:
    """forward_full returns the output, N + 1 activations that begin with x, and the N values before the ReLUs."""
    for net in nets(20):
        exact = converted(float, forward(*(converted(Fraction, net[name]) for name in ("x", "weights", "biases"))))
        given = arrays.given(net)
        value = solution.forward_full(given["x"], given["weights"], given["biases"])
        found = arrays.found("forward_full", parts("forward_full", value, FULL))
        expect_within("forward_full is not exact", exact, found, ALLOWANCE)


@law(
    "Go through one layer backwards: first its ReLU, then its linear map. Which arrays do the two need?",
    "Layer i takes activations[i] and gives activations[i + 1]; its ReLU passes where pre_activations[i] > 0.",
    "From the last layer to the first: mask the gradient, linear_backward with activations[i], results to the front.",
)
def full_gradients_are_exact(solution: Any, arrays: Arrays) -> None:
    """backward_full returns the exact gradients by x, and by weights and biases in the order of the layers."""
    for net in nets(30):
        kept = forward(net["x"], net["weights"], net["biases"])
        numbers = (net["grad"], {name: kept[name] for name in FULL[1:]}, net["weights"])
        exact = converted(float, backward(*(converted(Fraction, value) for value in numbers)))
        given = arrays.given((net["grad"], kept["activations"], kept["pre_activations"], net["weights"]))
        found = read_gradients(arrays, "backward_full", solution.backward_full(*given))
        expect_within("backward_full is not exact", exact, found, ALLOWANCE)


@law(
    "What does forward_full do that this one may leave out? What may it not leave out?",
    "It is the same chain of layers; only the lists are missing.",
    "In a loop over weights and biases: x = max(x W^T + b, 0); return x.",
)
def checkpointed_output_is_the_full_one(solution: Any, arrays: Arrays) -> None:
    """forward_checkpointed returns the output alone, bitwise that of forward_full."""
    for net in (*nets(40), *nets(40, np.float32)):
        given = arrays.given(net)
        value = keep(solution, given)
        is_one = not isinstance(value, (tuple, list))
        expect(is_one, f"forward_checkpointed must return the output alone; it returned {described(value)}",
               cause="it returns what it should not keep")  # fmt: skip
        full = parts("forward_full", solution.forward_full(given["x"], given["weights"], given["biases"]), FULL)
        expected, found = arrays.found("forward_full", full["output"]), arrays.found("forward_checkpointed", value)
        expect_same_bits("the two forward passes differ", unsigned(expected), unsigned(found))


@law(
    "What would backward_full need, and how can you get it from x?",
    "The same operations on the same numbers in the same order give the same bits, so use the same functions.",
    "Call forward_full on x again, and hand its two lists to backward_full.",
)
def checkpointed_gradients_are_the_full_ones(solution: Any, arrays: Arrays) -> None:
    """backward_checkpointed returns, bit for bit, what backward_full returns after forward_full."""
    for net in (*nets(50), *nets(50, np.float32)):
        given = arrays.given(net)
        keep(solution, given)
        found = run_checkpointed(solution, arrays, given)
        expected = run_full(solution, arrays, given)
        text = "gradients from the input alone are not the full ones"
        otherwise = "computed again, the values are not the same bits: another order, type or function"
        expect_same_bits(text, unsigned(expected), unsigned(found), otherwise=otherwise)


@law(
    "Does anything outside the functions, or in a default argument, remember an earlier call?",
    "backward_checkpointed must work from its arguments as they are now, also when no forward pass came before.",
    "Use no global, no attribute and no cache: compute everything again from x, weights and biases in each call.",
)
def calls_do_not_mix(solution: Any, arrays: Arrays) -> None:
    """backward_checkpointed depends on what its arguments hold, and on no other call."""
    sizes = SIZES[0]
    first, second, third = (arrays.given(draw_net(seed, *sizes)) for seed in (60, 61, 62))

    def check(what: str, given: Net, cause: str) -> None:
        found = run_checkpointed(solution, arrays, given)
        expect_same_bits(what, unsigned(run_full(solution, arrays, given)), unsigned(found), cause=cause)

    for given in (first, second):
        keep(solution, given)
    for given in (first, second, first):
        check("the gradients of two networks mix", given, "backward_checkpointed uses what another call has kept")
    arrays.overwrite(first)
    check("after a change to x and the weights, in place, the gradients are the old ones", first,
          "values were kept for an array, and used again after it had changed")  # fmt: skip
    check("without a forward pass before it, the backward pass is another", third,
          "backward_checkpointed uses what another call has kept")  # fmt: skip


@law(
    "After the forward pass, what is still in memory besides the output?",
    "A list outside the function keeps every array that it holds.",
    "Let each layer's output take the place of the one before, in a variable of the function, and store nothing.",
)
def nothing_is_kept(solution: Any, arrays: Arrays) -> None:
    """After forward_checkpointed has returned, and its output is gone, no activation is in memory."""
    keep(solution, arrays.given(draw_net(70, 1, (1, 1))))  # what a first call sets up does not count
    given = arrays.given(draw_net(71, 64, (64, 64, 64, 64)))
    kind, tracing = type(given["x"]), tracemalloc.is_tracing()

    def held() -> int:
        gc.collect()
        if arrays.framework == "numpy":  # arrays alone: whatever else the process does takes memory too
            elements = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
            return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([elements]).traces)
        return sum(x.numel() * x.element_size() for x in gc.get_objects() if type(x) is kind)

    if not tracing:
        tracemalloc.start()
    try:
        before = held()
        keep(solution, given)
        kept = held() - before
    finally:
        if not tracing:
            tracemalloc.stop()
    one = 64 * 64 * 8
    expect(kept < one // 2, f"forward_checkpointed leaves {kept} bytes behind; one activation here has {one}",
           cause="activations are stored outside the function")  # fmt: skip


@law(
    "Look for what writes into an argument: *=, an assignment to an entry, out=, a method that ends in _, pop.",
    "The same arrays are needed again: by the second forward pass, by the other backward pass, by the caller.",
    "Make a new array for each result, as grad * mask does, and go through the lists without removing anything.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes what it is given."""
    net = draw_net(80, *SIZES[0])
    kept = forward(net["x"], net["weights"], net["biases"])
    chain = {name: net[name] for name in ("x", "weights", "biases")}
    lists = {name: kept[name] for name in FULL[1:]}
    calls: dict[str, dict[str, Any]] = {
        "linear_backward": {"grad_output": net["grad"], "input": net["x"], "weight": net["weights"][0]},
        "forward_full": chain,
        "backward_full": {"grad_output": net["grad"], **lists, "weights": net["weights"]},
        "forward_checkpointed": chain,
        "backward_checkpointed": {"grad_output": net["grad"], **chain},
    }
    for function, values in calls.items():
        given = arrays.given(values)
        getattr(solution, function)(*given.values())
        for name, after in arrays.found(function, given).items():
            expect_same_bits(f"{function} changed what it was given", {name: values[name]}, {name: after},
                             cause=f"{function} writes into {name}, or removes from it")  # fmt: skip


@law(
    "Count the arrays in the list `activations`, for one layer and for two.",
    "The input is one of them; with checkpointing it is the only one.",
    "N layers have N outputs and one input; with checkpointing the outputs are not stored.",
)
def counts_are_right(solution: Any, arrays: Arrays) -> None:
    """N + 1 activations are stored without checkpointing, the input among them, and with it the input alone."""
    for layers in (1, 2, 3, 12, 96):
        for checkpointing, expected in ((False, layers + 1), (True, 1)):
            found = solution.count_stored_activations(layers, checkpointing)
            expect(type(found) is int, f"count_stored_activations must return an int, found {described(found)}")
            if found != expected:
                call = f"count_stored_activations({layers}, {checkpointing})"
                cause = "the input counts, and is always stored; values before the ReLUs do not count"
                raise Loss("the count is another", where=call, expected=expected, found=found, cause=cause)


def trace(solution: Any, arrays: Arrays) -> Any:
    """Outputs and gradients by both ways, for a network of each size."""
    values = {}
    for i, net in enumerate(nets(90)):
        given = arrays.given(net)
        values[f"network {i}"] = {
            "output": arrays.found("forward_checkpointed", keep(solution, given)),
            "full": run_full(solution, arrays, given),
            "checkpointed": run_checkpointed(solution, arrays, given),
        }
    return values


STATEMENT = """
Write linear_backward, forward_full, backward_full, forward_checkpointed, backward_checkpointed and
count_stored_activations for a network of N >= 1 layers, each z = x W^T + b and then max(z, 0), also the last. A batch
has the shape (batch, inputs), a weight (outputs, inputs), a bias (outputs,); all are float64 or float32 and finite.
Lists have one array for each layer, from the first layer on; `activations` has one more, the input, at its beginning.
Where a list is asked for, a tuple will do. Nothing that is given may be changed, and nothing kept from one call to the
next. The checkpointed output and gradients must be the bits of the full ones.
"""

IDEA = """
The backward pass needs what the forward pass computed. The gradient by a layer's weights is a product with that layer's
input, and a ReLU passes a gradient on only where its own input was positive. So training usually keeps the output of
every layer until the gradients have been computed. This memory grows with the number of layers and with the batch, and
in large models it is often more than the weights themselves.

Gradient checkpointing keeps less and computes more. Here it is in its plainest form: the forward pass keeps the input
alone, and when the gradients are asked for, the forward pass is run a second time, now keeping everything, and then the
usual backward pass. For each matrix product of the forward pass the backward pass has two. So three parts of work
become four: a third more.

What is saved is the memory between the two passes. While the backward pass runs, everything is there again, so its peak
is no lower. To lower that, one cuts the network into segments, keeps each segment's input, and computes one segment
again at a time: with about sqrt(N) segments of about sqrt(N) layers, the inputs kept and the one segment computed again
are about sqrt(N) activations each, instead of N.

The gradients must be the same, and not just nearly: the same operations on the same numbers in the same order give the
same bits. If they do not, the second forward pass was not the first. In practice it then drew another dropout mask, or
met weights or running statistics that had changed meanwhile, or computed in another type, or used what some other call
had left behind.
"""

EXERCISE = Exercise(
    name="gradient_checkpointing",
    title="Compute activations again instead of keeping them",
    teaches="what the backward pass needs, and that computing it again gives the same bits",
    statement=STATEMENT,
    idea=IDEA,
    functions=(
        "linear_backward",
        "forward_full",
        "backward_full",
        "forward_checkpointed",
        "backward_checkpointed",
        "count_stored_activations",
    ),
    laws=(
        linear_backward_is_exact,
        forward_keeps_everything,
        full_gradients_are_exact,
        checkpointed_output_is_the_full_one,
        checkpointed_gradients_are_the_full_ones,
        calls_do_not_mix,
        nothing_is_kept,
        arguments_are_left_alone,
        counts_are_right,
    ),
    trace=trace,
    allowance=ALLOWANCE,
)
