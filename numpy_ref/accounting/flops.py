"""What a training step computes: exact floating-point operations, in whole numbers from shapes.

A product of (m, k) and (k, n) counts 2 m k n: one multiplication and one addition a term. The backward pass has two
products of the same size for each one of the forward pass, by the weights and by the input, so that a step is 3 times
the forward pass; what is computed a second time for the backward pass adds its forward cost once more.

Not counted: softmax, normalisation, activation functions, biases, residual sums, scaling, masking, dropout, the loss,
the look-up of embeddings, and the optimizer's update (some 10 operations a parameter). Attention counts whole, without
the half that a causal mask makes needless.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import NamedTuple

from numpy_ref.accounting.sizes import Shape, checked_shapes, checked_size
from numpy_ref.checks import whole_number


class Product(NamedTuple):
    """A matrix product of (m, k) and (k, n), carried out `times` times."""

    m: int
    k: int
    n: int
    times: int = 1

    @property
    def flops(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.k * self.n * self.times


def chain_products(rows: int, weights: Iterable[Shape], *, times: int = 1) -> list[Product]:
    """The products of a chain of linear layers: each one's outputs are the next one's inputs.

    Args:
        rows: of the first input.
        weights: (inputs, outputs) of each layer.
        times: how often the chain is gone through.

    Raises:
        ValueError: a size is no whole number >= 0, or the shapes do not chain.

    Example:
        >>> chain_products(8, [(3, 5), (5, 2)])
        [Product(m=8, k=3, n=5, times=1), Product(m=8, k=5, n=2, times=1)]
    """
    rows, times = checked_size("chain_products: rows", rows), checked_size("chain_products: times", times)
    shapes = checked_shapes("chain_products: weights", weights)
    for i, shape in enumerate(shapes):
        if len(shape) != 2:
            raise ValueError(f"chain_products: weights[{i}]: expected (inputs, outputs), found {shape!r}.")
    for i, (before, after) in enumerate(pairwise(shapes), 1):
        if after[0] != before[1]:
            raise ValueError(
                f"chain_products: weights[{i}]: expected {before[1]} inputs, the outputs of the layer before, found "
                f"{after!r}. Give shapes as (inputs, outputs), in the order of the layers."
            )
    return [Product(rows, inputs, outputs, times) for inputs, outputs in shapes]


def mlp_products(batch: int, inputs: int, hidden: Sequence[int], classes: int) -> list[Product]:
    """The forward products of a multi-layer perceptron.

    Args:
        batch: B.
        inputs: D.
        hidden: the H of each hidden layer.
        classes: C.

    Example:
        >>> forward_flops(mlp_products(32, 64, (128, 128), 10))
        1654784
    """
    return chain_products(batch, pairwise([inputs, *hidden, classes]))


def forward_flops(products: Iterable[Product], *, attention: int = 0) -> int:
    """Operations of a forward pass.

    forward = sum of 2 m k n times + attention

    Args:
        products: sizes >= 0.
        attention: operations of the products of attention, >= 0.

    Raises:
        ValueError: a product is no `Product`, or a size no whole number >= 0.
    """
    forward = checked_size("forward_flops: attention", attention)
    for i, product in enumerate(products):
        where = f"forward_flops: products[{i}]"
        if not isinstance(product, Product):
            raise ValueError(f"{where}: expected a Product, found {product!r}. Give a list of Product(m, k, n).")
        forward += Product(*(checked_size(f"{where}.{name}", x) for name, x in product._asdict().items())).flops
    return forward


def step_flops(
    products: Sequence[Product], *, attention: int = 0, recomputed: int = 0, input_gradient_of_first: bool = True
) -> int:
    """Operations of a training step.

    step = 3 forward + recomputed            less the first product, where nothing asks for its input's gradient

    Args:
        products: of the forward pass, sizes >= 0.
        attention: forward operations of the products of attention, >= 0; their backward pass has two for each, too.
        recomputed: forward operations that are carried out again for the backward pass, from 0 to the whole forward
            pass: those count 4 times in all.
        input_gradient_of_first: whether the backward pass goes through the first product to what is before it, as to an
            embedding; to data it does not. All `times` of the first product are taken to stand there side by side, as
            those of micro-batches do.

    Raises:
        ValueError: as for `forward_flops`, or `recomputed` is more than the forward pass.

    Source:
        Kaplan et al. 2020, section 2.1, for 3 times; Korthikanti et al. 2022, appendix A, for recomputation.

    Example:
        >>> products = mlp_products(32, 64, (128, 128), 10)
        >>> step_flops(products), step_flops(products, input_gradient_of_first=False)
        (4964352, 4440064)
    """
    forward = forward_flops(products, attention=attention)
    again = whole_number("step_flops: recomputed", recomputed, 0, forward + 1)
    skipped = 0 if input_gradient_of_first or not products else products[0].flops
    return 3 * forward + again - skipped
