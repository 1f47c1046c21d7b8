"""The floating-point operations of a training step, from the sizes of its matrix products.

Write three functions. A product of an (m, k) and a (k, n) matrix is given as (m, k, n), a tuple or a list of ints >= 0.
All results are Python ints, and exact.
"""

from collections.abc import Sequence

Product = Sequence[int]  # (m, k, n)


def matmul_flops(m: int, k: int, n: int) -> int:
    """The operations of one matrix product: a multiplication and an addition for each of its terms.

    Args:
        m: rows of the left matrix.
        k: its columns, and the rows of the right one.
        n: columns of the right matrix.

    Returns:
        2 m k n, an int, exact however large.
    """
    return 2 * m * k * n


def forward_flops(matmuls: list[Product], attention_forward: int) -> int:
    """The operations of a forward pass.

    Excluded: the look-up of embeddings, biases, residual sums, softmax, normalisations, activation functions, dropout
    and the loss.

    Args:
        matmuls: the products of the forward pass in their order, but those within attention. Each one counts, also if
            another has the same sizes. The list may be empty.
        attention_forward: the operations of the products within attention, an int. They are taken as they are: also
            where a mask hides half of the scores, nothing is halved.

    Returns:
        An int.
    """
    return sum(matmul_flops(*product) for product in matmuls) + attention_forward


def training_flops(
    matmuls: list[Product], attention_forward: int, recomputed_forward: int, input_gradient: bool
) -> int:
    """The operations of a training step: the forward pass, the backward pass, and what is computed again for it.

    For each product of the forward pass, those within attention too, the backward pass has two of the same size: one
    for the gradient by each of the two matrices. Excluded, besides what `forward_flops` excludes: the optimizer.

    Args:
        matmuls: as in `forward_flops`.
        attention_forward: as in `forward_flops`.
        recomputed_forward: the operations of that part of the forward pass which is computed a second time because its
            activations were not kept; an int from 0 to the whole forward pass.
        input_gradient: whether the gradient by the input of the first product is computed. It is not if that input is
            data: then one of the two backward products of matmuls[0] is left out, if there is a matmuls[0].

    Returns:
        An int.
    """
    step = 3 * forward_flops(matmuls, attention_forward) + recomputed_forward
    if matmuls and not input_gradient:
        step -= matmul_flops(*matmuls[0])
    return step
