"""The exercise `gradient_checkpointing`: right solutions pass, and wrong ones are caught with the reason."""

from pathlib import Path

import numpy as np
import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises import gradient_checkpointing as exercise
from numpy_ref.exercises.grader import grade_against
from parity_tests.exercises.solutions import (
    FRAMEWORKS,
    Mutant,
    check_mutant,
    check_stub,
    graded,
    mutants_of,
    mutated,
    reference,
    told,
)
from parity_tests.implementations import NO_TORCH

NAME = "gradient_checkpointing"
LINEAR, FORWARD, FULL = "linear-backward-is-exact", "forward-keeps-everything", "full-gradients-are-exact"
OUTPUT, SAME = "checkpointed-output-is-the-full-one", "checkpointed-gradients-are-the-full-ones"
MIX, KEPT, ARGUMENTS, COUNTS = "calls-do-not-mix", "nothing-is-kept", "arguments-are-left-alone", "counts-are-right"
LAYER = "        pre_activations.append(z)\n        activations.append(z.clip(min=0))\n"
MASKED = "grad * (pre_activations[i] > 0)"
LISTS = "return grad, grad_weights[::-1], grad_biases[::-1]"
CHAIN = "        x = (x @ weight.T + bias).clip(min=0)\n    return x\n"
STORE, KEEP = "def forward_checkpointed(", "_kept = {}\n\n\ndef forward_checkpointed("
AGAIN = "_, activations, pre_activations = forward_full(x, weights, biases)"
THEN = "    return backward_full(grad_output, activations, pre_activations, weights)"
COUNT = "return 1 if use_checkpointing else num_layers + 1"


def mask(new: str) -> tuple[tuple[str, str], ...]:
    return ((MASKED, new),)


def kept(forward: str, backward: str) -> tuple[tuple[str, str], ...]:
    return ((STORE, KEEP), (CHAIN, forward), (AGAIN, f"_, activations, pre_activations = {backward}"))


MUTANTS = {
    "weight transposed": Mutant(LINEAR, "grad_output W, without a transpose", (("@ weight,", "@ weight.T,"),)),
    "gradient by the weight transposed": Mutant(
        LINEAR, "grad_weight is transposed", (("grad_output.T @ input", "input.T @ grad_output"),)
    ),
    "gradient by the bias not summed": Mutant(LINEAR, "grad_bias was not summed", (("output.sum(0)", "output"),)),
    "gradient by the bias averaged": Mutant(LINEAR, "grad_bias is the mean", (("output.sum(0)", "output.mean(0)"),)),
    "gradient by the bias summed over outputs": Mutant(LINEAR, "shape (4,)", (("output.sum(0)", "output.sum(1)"),)),
    "last ReLU left out": Mutant(
        FORWARD,
        "the last layer's ReLU was left out",
        ((LAYER, LAYER.replace("(z.clip(min=0))", "(z.clip(min=0) if len(activations) < len(weights) else z)")),),
    ),
    "weights not transposed in the forward pass": Mutant(
        FORWARD, "it is x W^T", (("activations[-1] @ weight.T", "activations[-1] @ weight"),)
    ),
    "biases left out": Mutant(
        FORWARD,
        "the biases were left out",
        (("z = activations[-1] @ weight.T + bias", "z = activations[-1] @ weight.T"),),
    ),
    "ReLU in place": Mutant(
        FORWARD,
        "a ReLU was taken in place",
        ((LAYER, LAYER.replace("activations.append(z.clip(min=0))", "z *= z > 0\n        activations.append(z)")),),
    ),
    "input not among the activations": Mutant(
        FORWARD,
        "x is not among the activations",
        (("return activations[-1], activations,", "return activations[-1], activations[1:],"),),
    ),
    "slope 1 at zero": Mutant(FULL, "at exactly 0 was taken as 1", mask("grad * (pre_activations[i] >= 0)")),
    "mask from the activation of the layer below": Mutant(
        FULL, "a ReLU's mask is another layer's: activations[i]", mask("grad * (activations[i] > 0)")
    ),
    "mask from the layer below": Mutant(
        FULL, "layer i must take pre_activations[i]", mask("grad * (pre_activations[i - 1] > 0)")
    ),
    "no mask": Mutant(FULL, "no ReLU was taken back", mask("grad * 1")),
    "last ReLU not taken back": Mutant(
        FULL, "the last ReLU was left out of the backward", mask("(" + MASKED + " if i < len(weights) - 1 else grad)")
    ),
    "first ReLU not taken back": Mutant(
        FULL, "the first ReLU was left out of the backward", mask("(" + MASKED + " if i > 0 else grad)")
    ),
    "gradients in the order of computation": Mutant(
        FULL, "the lists begin with the last layer", ((LISTS, LISTS.replace("[::-1]", "")),)
    ),
    "values before the ReLU as a layer's input": Mutant(
        FULL,
        "layers were given z",
        (
            (
                "linear_backward(grad, activations[i],",
                "linear_backward(grad, pre_activations[i - 1] if i > 0 else activations[0],",
            ),
        ),
    ),
    "gradients averaged over the batch": Mutant(
        FULL,
        "the mean over the batch was taken",
        (("(grad_weight)", "(grad_weight / len(grad))"), ("(grad_bias)", "(grad_bias / len(grad))")),
    ),
    "everything returned by the checkpointed pass": Mutant(
        OUTPUT, "it returns what it should not keep", ((CHAIN, CHAIN.replace("return x", "return x, [x]")),)
    ),
    "last ReLU left out of the checkpointed pass": Mutant(
        OUTPUT,
        "the last layer's ReLU was left out",
        ((CHAIN, "        z = x @ weight.T + bias\n        x = z.clip(min=0)\n    return z\n"),),
    ),
    "checkpointed pass in float32": Mutant(
        OUTPUT,
        "the two forward passes differ",
        ((CHAIN, CHAIN.replace("\n    return", ".astype(np.float32).astype(np.float64)\n    return")),),
    ),
    "computed again without biases": Mutant(
        SAME, "the biases were left out when", ((AGAIN, AGAIN.replace("biases)", "[0 * b for b in biases])")),)
    ),
    "computed again in reverse order": Mutant(
        SAME,
        "computed again in reverse order",
        ((AGAIN, AGAIN.replace("weights, biases", "weights[::-1], biases[::-1]")),),
    ),
    "computed again in float32": Mutant(
        SAME,
        "computed again, the values are not the same bits",
        ((AGAIN, AGAIN + "\n    activations = [a.astype(np.float32).astype(np.float64) for a in activations]"),),
    ),
    "checkpointed gradients in the order of computation": Mutant(
        SAME,
        "the lists begin with the last layer",
        ((THEN, THEN.replace("return", "a, b, c =") + "\n    return a, b[::-1], c[::-1]"),),
    ),
    "mask of another layer in the checkpointed pass": Mutant(
        SAME,
        "a ReLU's mask is another layer's: activations[i]",
        ((THEN, THEN.replace(", pre_activations,", ", activations,")),),
    ),
    "activations of the last forward pass used": Mutant(
        MIX,
        "the gradients of two networks mix",
        kept("        pass\n    _kept[0] = forward_full(x, weights, biases)\n    return _kept[0][0]\n", "_kept[0]"),
    ),
    "activations of the first call used for ever": Mutant(
        MIX, "the gradients of two networks mix", kept(CHAIN, "_kept.setdefault(0, forward_full(x, weights, biases))")
    ),
    "activations kept by the identity of x": Mutant(
        MIX,
        "used again after it had changed",
        kept(CHAIN, "_kept.setdefault(id(x), (x, forward_full(x, weights, biases)))[1]"),
    ),
    "activations kept outside": Mutant(
        KEPT,
        "activations are stored outside",
        kept(
            CHAIN.replace("    return", "        _kept[len(_kept)] = x\n    return"), "forward_full(x, weights, biases)"
        ),
    ),
    "the last activations kept outside": Mutant(
        KEPT,
        "activations are stored outside",
        kept(CHAIN.replace("    return", "        _kept[0] = x\n    return"), "forward_full(x, weights, biases)"),
    ),
    "grad_output masked in place": Mutant(
        ARGUMENTS, "backward_full writes into grad_output", (("grad = " + MASKED, MASKED.replace("grad *", "grad *=")),)
    ),
    "output taken out of the list": Mutant(
        ARGUMENTS,
        "into activations, or removes",
        (("    grad = grad_output\n", "    grad = grad_output\n    activations.pop()\n"),),
    ),
    "x overwritten": Mutant(
        ARGUMENTS, "forward_checkpointed writes into x", ((CHAIN, CHAIN.replace("x = (", "x[...] = (")),)
    ),
    "weights reversed in place": Mutant(
        ARGUMENTS,
        "backward_checkpointed writes into weights",
        ((THEN, THEN.replace("return", "value =") + "\n    weights.reverse()\n    return value"),),
    ),
    "the input not counted": Mutant(
        COUNTS, "the input counts", ((COUNT, "return 1 if use_checkpointing else num_layers"),)
    ),
    "nothing counted with checkpointing": Mutant(COUNTS, "is always stored", ((COUNT, COUNT.replace("1 if", "0 if")),)),
    "values before the ReLUs counted": Mutant(
        COUNTS, "values before the ReLUs do not", ((COUNT, COUNT.replace("num_layers", "2 * num_layers")),)
    ),
    "the two counts exchanged": Mutant(
        COUNTS, "count_stored_activations(1, False): expected 2, found 1", ((COUNT, COUNT.replace("if", "if not")),)
    ),
    "a truth value for the count": Mutant(
        COUNTS, "must return an int, found bool", ((COUNT, COUNT.replace("1 if", "True if")),)
    ),
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_reference_keeps_every_law(tmp_path: Path, framework: str) -> None:
    report = graded(tmp_path, NAME, reference(NAME, framework), framework, in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named(NAME).laws)


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, NAME, mutant, framework)


def test_every_law_has_a_mutant() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {law.name for law in exercise_named(NAME).laws}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, NAME, framework)


def test_the_networks_are_within_the_bounds_from_which_the_allowance_is_derived() -> None:
    for seed in range(10, 100, 10):
        for net in exercise.nets(seed):
            z = exercise.forward(net["x"], net["weights"], net["biases"])["pre_activations"]
            assert all(np.all((part == 0) | (np.abs(part) > 2.0**-12)) for part in z)
            assert all(np.any(part == 0) for part in z)
            weights, biases = ([np.abs(part) for part in net[name]] for name in ("weights", "biases"))
            sums = exercise.forward(np.abs(net["x"]), weights, biases)
            back = exercise.backward(np.abs(net["grad"]), sums, weights, lambda a, z, i: 1)
            arrays = (*sums["activations"], back["grad_x"], *back["grad_weights"], *back["grad_biases"])
            assert all(np.all(part < 2.0**5) for part in arrays)


ONE_LAYER_AT_A_TIME = """
import numpy as np
def linear_backward(grad_output, input, weight):
    return np.dot(grad_output, weight), np.dot(input.T, grad_output).T, np.add.reduce(grad_output)
def layer(x, w, b):
    z = np.dot(x, w.T) + b
    return z, np.maximum(z, 0)
def forward_full(x, weights, biases):
    a, z = (x,), ()
    for w, b in zip(weights, biases):
        pre, post = layer(a[-1], w, b)
        a, z = a + (post,), z + (pre,)
    return [a[-1], a, z]
def backward_full(grad_output, activations, pre_activations, weights):
    g, ws, bs = grad_output.copy(), [None] * len(weights), [None] * len(weights)
    for i in range(len(weights) - 1, -1, -1):
        g[activations[i + 1] <= 0] = 0
        g, ws[i], bs[i] = linear_backward(g, activations[i], weights[i])
    return g, tuple(ws), tuple(bs)
def forward_checkpointed(x, weights, biases):
    for w, b in zip(weights, biases):
        _, x = layer(x, w, b)
    return x
def backward_checkpointed(grad_output, x, weights, biases):
    return backward_full(grad_output, *forward_full(x, weights, biases)[1:], weights)
def count_stored_activations(num_layers, use_checkpointing):
    return len(range(1 if use_checkpointing else num_layers + 1))
"""
RECURSIVE = """
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
"""
WIDE = """
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
"""
FUNCTIONAL = """
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
"""


@pytest.mark.parametrize(
    "text", [ONE_LAYER_AT_A_TIME, RECURSIVE, WIDE], ids=["one layer at a time", "recursive", "wide, in place"]
)
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert told(graded(tmp_path, NAME, text)) == []


@NO_TORCH
@pytest.mark.parametrize("text", [FUNCTIONAL, RECURSIVE], ids=["functional", "recursive"])
def test_differently_written_right_solutions_in_torch_pass(tmp_path: Path, text: str) -> None:
    text = text.replace("import numpy as np\n", "import torch\n").replace("np.", "torch.")
    assert told(graded(tmp_path, NAME, text, "torch")) == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_solution.py"
        paths[framework].write_text(reference(NAME, framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated(NAME, "numpy", MUTANTS["slope 1 at zero"].changes))
    assert grade_against(
        (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named(NAME), in_process=True
    ).holds
    for framework, path in paths.items():
        assert not grade_against((path, framework), (wrong, "numpy"), exercise_named(NAME), in_process=True).holds
