"""A decoder of the kind of GPT-2, from its sizes: shapes, products, and what it keeps."""

from typing import NamedTuple

from numpy_ref.accounting.flops import Product
from numpy_ref.accounting.sizes import END, checked_size
from numpy_ref.checks import whole_number


class Transformer(NamedTuple):
    """Sizes of a decoder of the kind of GPT-2, without biases; T context, d width, V vocabulary."""

    layers: int = 12
    heads: int = 12
    width: int = 768
    context: int = 1024
    vocabulary: int = 50257


GPT2 = Transformer()  # 124 million parameters


def gpt2_shapes(size: Transformer = GPT2) -> dict[str, tuple[int, ...]]:
    """Name to shape of each parameter; the head is the token embedding, and counts once.

    Source:
        Radford et al. 2019, without biases, as Karpathy's nanoGPT trains it.

    Example:
        >>> import math
        >>> sum(math.prod(shape) for shape in gpt2_shapes().values())
        124337664
    """
    layers, _, d, context, vocabulary = checked(size)
    shapes: dict[str, tuple[int, ...]] = {"wte": (vocabulary, d), "wpe": (context, d)}
    for i in range(layers):
        shapes |= {
            f"block{i}.norm1": (d,),
            f"block{i}.qkv": (3 * d, d),
            f"block{i}.proj": (d, d),
            f"block{i}.norm2": (d,),
            f"block{i}.up": (4 * d, d),
            f"block{i}.down": (d, 4 * d),
        }
    return shapes | {"norm": (d,)}


def gpt2_products(size: Transformer = GPT2, *, head: bool = True) -> list[Product]:
    """The forward products of one sequence, those of attention left to `gpt2_attention`; without the head on demand.

    Example:
        >>> from numpy_ref.accounting.flops import forward_flops, step_flops
        >>> forward_flops(gpt2_products(), attention=gpt2_attention())
        291648307200
        >>> blocks = forward_flops(gpt2_products(head=False), attention=gpt2_attention())
        >>> step_flops(gpt2_products(), attention=gpt2_attention(), recomputed=blocks)
        1087545802752
    """
    layers, _, d, context, vocabulary = checked(size)
    blocks = [Product(context, k, n, layers) for k, n in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))]
    return [*blocks, Product(context, d, vocabulary)] if head else blocks


def gpt2_attention(size: Transformer = GPT2) -> int:
    """Forward operations of attention in one sequence: queries by keys and probabilities by values, for each head."""
    layers, heads, d, context, _ = checked(size)
    return 2 * Product(context, d // heads, context, layers * heads).flops


def gpt2_activations(size: Transformer = GPT2, *, recompute: bool = False) -> list[tuple[int, ...]]:
    """Shapes of what one sequence keeps for the backward pass: operands of products, or the inputs of blocks alone.

    Args:
        size: of the model.
        recompute: keep the input of each block, and compute the block again in the backward pass.
    """
    layers, heads, d, context, _ = checked(size)
    stream: tuple[int, ...] = (context, d)
    block = [
        stream,  # of qkv
        (context, 3 * d),  # queries, keys and values
        (heads, context, context),  # probabilities
        stream,  # of proj
        stream,  # of up
        (context, 4 * d),  # of down
    ]
    return ([stream] if recompute else block) * layers + [stream]  # of the head


def palm_flops(parameters: int, size: Transformer = GPT2) -> int:
    """Operations of a training step a token, in closed form: 6 parameters + 12 layers heads (width of a head) context.

    Args:
        parameters: all but the positions' embedding, >= 0.
        size: of the model.

    Source:
        Chowdhery et al. 2022 (PaLM), appendix B.

    Example:
        >>> palm_flops(123551232)
        854553600
    """
    layers, heads, d, context, _ = checked(size)
    return 6 * checked_size("palm_flops: parameters", parameters) + 12 * layers * heads * (d // heads) * context


def checked(size: Transformer) -> Transformer:
    """Sizes >= 1 of which the heads divide the width."""
    size = Transformer(*(whole_number(f"Transformer.{name}", x, 1, END) for name, x in size._asdict().items()))
    if size.width % size.heads:
        raise ValueError(
            f"Transformer: expected heads that divide the width, found {size.heads} for {size.width}. Choose others."
        )
    return size
