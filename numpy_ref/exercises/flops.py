"""The exercise `flops`: the floating-point operations of a training step, exactly, from the sizes of its products."""

from typing import Any, NamedTuple

from numpy_ref.accounting import gpt2_attention, gpt2_products, mlp_products
from numpy_ref.exercises.exercise import Arrays, Exercise, Loss, described, expect, expect_same_bits, law

MATMULS = ((8, 3, 5), (8, 5, 7), (8, 5, 7), (8, 7, 2))  # two have the same sizes
ATTENTION = 1102  # a number that nothing else here gives


class Case(NamedTuple):
    """The arguments of training_flops."""

    matmuls: tuple[tuple[int, ...], ...] = MATMULS
    attention: int = ATTENTION
    recomputed: int = 0
    input_gradient: bool = True


def product(m: int, k: int, n: int) -> int:
    """2 m k n."""
    return 2 * m * k * n


def forward(case: Case) -> int:
    """A forward pass."""
    return sum(product(*sizes) for sizes in case.matmuls) + case.attention


def step(case: Case) -> int:
    """A training step."""
    skipped = product(*case.matmuls[0]) if case.matmuls and not case.input_gradient else 0
    return 3 * forward(case) + case.recomputed - skipped


def expect_count(what: str, call: str, exact: int, found: Any) -> None:
    """Hold a count to the exact one, which is an int."""
    if type(found) is not int:
        cause = "a float is exact to 2**53 only" if isinstance(found, float) else "ints of a fixed size overflow"
        raise Loss(f"{call} must be a Python int, found {described(found)}", cause=cause)
    expect_same_bits(what, {call: exact}, {call: found})


def expect_step(what: str, solution: Any, case: Case, exact: int | None = None) -> None:
    """Hold the solution's step to the exact one."""
    found = solution.training_flops(list(case.matmuls), *case[1:])
    shown = f"{len(case.matmuls)} matmuls" if len(case.matmuls) > 4 else list(case.matmuls)
    call = f"training_flops({shown}, {', '.join(map(str, case[1:]))})"
    expect_count(what, call, step(case) if exact is None else exact, found)


@law(
    "How many multiplications has one element of the product, and how many additions?",
    "There are m n elements with k terms each; a term counts a multiplication and an addition.",
    "It is 2 m k n, by Python's own ints.",
)
def a_product_counts_twice_its_terms(solution: Any, arrays: Arrays) -> None:
    """matmul_flops returns 2 m k n, an exact int."""
    for m, k, n in ((2, 3, 7), (1, 1, 1), (4, 0, 3), (1024, 768, 50257), (3**15, 3**14, 3**13)):
        found = solution.matmul_flops(m, k, n)
        expect_count("a product is not 2 m k n", f"matmul_flops({m}, {k}, {n})", product(m, k, n), found)


@law(
    "What does the sum run over, and what comes to it?",
    "Every product of the list counts, also if another has its sizes; attention is given whole and stays whole.",
    "Sum matmul_flops over the list and add attention_forward once.",
)
def forward_is_products_and_attention(solution: Any, arrays: Arrays) -> None:
    """forward_flops returns the sum over all the products, plus attention as it is given."""
    for case in (Case(), Case(attention=0), Case(matmuls=()), Case(matmuls=(), attention=0)):
        found = solution.forward_flops(list(case.matmuls), case.attention)
        call = f"forward_flops({list(case.matmuls)}, {case.attention})"
        expect_count("the forward pass is another", call, forward(case), found)


@law(
    "Given the gradient by C = A B, how many products does it take to get those by A and by B?",
    "The backward pass costs twice the forward pass, attention included; so a step costs three times as much.",
    "With all gradients and nothing computed again, return 3 times forward_flops.",
)
def a_step_is_three_forward_passes(solution: Any, arrays: Arrays) -> None:
    """A step costs 3 forward passes, attention included: the backward pass has two products for each one."""
    for case in (Case(), Case(attention=0), Case(matmuls=())):
        expect_step("a step is not three forward passes", solution, case)


@law(
    "Whose gradient does nobody need, if the input of the network is data?",
    "The first product alone loses one of its two backward products; by its weights there is still a gradient.",
    "Without input_gradient subtract matmul_flops of matmuls[0] once, unless the list is empty.",
)
def data_need_no_gradient(solution: Any, arrays: Arrays) -> None:
    """Without input_gradient, one backward product of matmuls[0] is left out, and nothing else."""
    expect_step("with input_gradient, a step is another", solution, Case())
    for case in (Case(), Case(MATMULS[:1], 0), Case(recomputed=700), Case(matmuls=())):
        expect_step("without input_gradient, a step is another", solution, case._replace(input_gradient=False))


@law(
    "How often, in all, is a product carried out whose result was not kept?",
    "What is computed again costs its forward operations once more: four times in all instead of three.",
    "Add recomputed_forward once.",
)
def what_is_computed_again_counts_once_more(solution: Any, arrays: Arrays) -> None:
    """The given part of the forward pass that is computed again adds its operations once."""
    for recomputed in (0, 700, forward(Case())):
        expect_step("with a part computed again, a step is another", solution, Case(recomputed=recomputed))


@law(
    "Compare with the numbers that are known for GPT-2. Where do they part?",
    "One sequence: the forward pass is 291,648,307,200, a step 874,944,921,600; no float is needed for either.",
    "Let all arithmetic be that of Python's ints, also in the sum.",
)
def known_models_have_their_known_cost(solution: Any, arrays: Arrays) -> None:
    """For 1,024 tokens GPT-2 takes 874,944,921,600 operations a step; with blocks again, 1,087,545,802,752."""
    sizes = tuple(tuple(p[:3]) for p in gpt2_products() for _ in range(p.times))
    gpt2 = Case(sizes, gpt2_attention())
    blocks = 212_600_881_152  # the forward pass but for the head
    found = solution.forward_flops(list(gpt2.matmuls), gpt2.attention)
    expect_count("GPT-2: not the forward pass that is known", "forward_flops(49 matmuls, ...)", 291_648_307_200, found)
    expect_step("GPT-2: not the step that is known", solution, gpt2, 874_944_921_600)
    again = gpt2._replace(recomputed=blocks)
    expect_step("GPT-2, its blocks computed again: not the step that is known", solution, again, 1_087_545_802_752)
    digits = Case(tuple(tuple(p[:3]) for p in mlp_products(32, 64, (128, 128), 10)), 0, input_gradient=False)
    expect_step("a network of 64, 128, 128 and 10 units: not the step that is known", solution, digits, 4_440_064)
    large = Case(((3**15, 3**14, 3**13), (1, 1, 1)), 3**36, 3**30, input_gradient=False)
    expect_step("a model of 10**20 operations: not its exact step", solution, large)


@law(
    "Look for what takes something out of the list, sorts it, or adds to it.",
    "The caller still needs its list of products.",
    "Go through the list without changing it; matmuls[0] is its first entry, which pop would remove.",
)
def arguments_are_left_alone(solution: Any, arrays: Arrays) -> None:
    """No function changes its list of products."""
    for function, others in (("forward_flops", (ATTENTION,)), ("training_flops", (ATTENTION, 0, False))):
        given = [list(sizes) for sizes in MATMULS]
        getattr(solution, function)(given, *others)
        expect(given == [list(sizes) for sizes in MATMULS],
               f"{function} changed what it was given: matmuls was {list(map(list, MATMULS))}, and is {given}",
               cause="it writes into matmuls, or removes from it")  # fmt: skip


def trace(solution: Any, arrays: Arrays) -> Any:
    """The counts of some cases."""
    cases = [
        Case(recomputed=recomputed, input_gradient=gradient) for recomputed in (0, 700) for gradient in (True, False)
    ]
    steps = {f"step {i}": solution.training_flops(list(case.matmuls), *case[1:]) for i, case in enumerate(cases)}
    return steps | {
        "matmul": solution.matmul_flops(3**15, 3**14, 3**13),
        "forward": solution.forward_flops(list(MATMULS), ATTENTION),
    }


STATEMENT = """
Write matmul_flops, forward_flops and training_flops. A product is (m, k, n), a tuple or a list of ints >= 0, for an
(m, k) matrix times a (k, n) matrix; the list of products may be empty, and holds all but those within attention, whose
operations are given as one number. All results are exact Python ints. Nothing that is given may be changed.
"""

IDEA = """
Nearly all the arithmetic of a large language model is in its matrix products, and these can be counted before a run,
from sizes alone. An element of the product of an (m, k) and a (k, n) matrix is a sum of k terms. Each term is one
multiplication and one addition, so the product takes 2 m k n operations. (The first addition is to zero. It counts by
convention, since hardware usually multiplies and adds in one instruction.)

The backward pass takes twice as much. If C = A B, then the gradient by A is the gradient by C times B transposed, and
that by B is A transposed times the gradient by C: two products with the same three sizes, and so the same count. A step
is three forward passes. For a model of N weights, each of which multiplies every one of D tokens, this is the
well-known 6 N D: 2 N for a token in the forward pass, and 4 N in the backward pass. Attention multiplies activations by
activations, which N says nothing of; it is given apart here, and its products have two gradients each as well.

Two things change the three. What the forward pass did not keep is computed again, once, so that part counts four times.
And the gradient by the data is seldom needed; without it, the first product has one backward product less.

An estimate is only of use if it says what it leaves out. Here these are softmax, normalisations, activation functions,
biases, residual sums, dropout, the loss, the look-up of embeddings and the optimizer's update. A causal mask makes half
of attention's scores needless, but a plain product computes them all the same, so nothing is halved.
"""

EXERCISE = Exercise(
    name="flops",
    title="Count the operations of a training step",
    teaches="what a step computes: two operations a term, three forward passes, a fourth where nothing was kept",
    statement=STATEMENT,
    idea=IDEA,
    functions=("matmul_flops", "forward_flops", "training_flops"),
    laws=(
        a_product_counts_twice_its_terms,
        forward_is_products_and_attention,
        a_step_is_three_forward_passes,
        data_need_no_gradient,
        what_is_computed_again_counts_once_more,
        known_models_have_their_known_cost,
        arguments_are_left_alone,
    ),
    trace=trace,
)
