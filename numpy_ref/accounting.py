"""What a training step holds and computes: exact bytes and floating-point operations, in whole numbers from shapes.

Memory
------
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

Operations
----------
A product of (m, k) and (k, n) counts 2 m k n: one multiplication and one addition a term. The backward pass has two
products of the same size for each one of the forward pass, by the weights and by the input, so that a step is 3 times
the forward pass; what is computed a second time for the backward pass adds its forward cost once more.

Not counted: softmax, normalisation, activation functions, biases, residual sums, scaling, masking, dropout, the loss,
the look-up of embeddings, and the optimizer's update (some 10 operations a parameter). Attention counts whole, without
the half that a causal mask makes needless.
"""

import math
import tempfile
import tracemalloc
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import checkpoint, train
from numpy_ref import model as network
from numpy_ref import recompute as checkpointing
from numpy_ref.arithmetic import Arithmetic, arithmetic_named
from numpy_ref.checks import whole_number
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, epoch_order
from numpy_ref.precision import CASTS
from numpy_ref.rng import WORDS, generator_from
from numpy_ref.tree import flatten

Array = np.ndarray[Any, np.dtype[Any]]
Shape = Sequence[int]

END = 2**63  # byte counts lie below it, as every file size and allocation does


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
    n = _elements("account_memory: parameter_shapes", parameter_shapes)
    kept = _elements("account_memory: activation_shapes", activation_shapes)
    if not isinstance(widths, Widths):
        raise ValueError(f"account_memory: widths: expected Widths, found {widths!r}. Give Widths(4, 4, 4, 4), say.")
    parameter, gradient, activation, moment, primary = (
        _size(f"account_memory: widths.{name}", width) for name, width in widths._asdict().items()
    )
    moments = _size("account_memory: moments", moments)
    memory = Memory(n * parameter, n * gradient, kept * activation, n * moments * moment, n * primary)
    if memory.total >= END:
        raise ValueError(
            f"account_memory: expected fewer than 2**63 bytes in all, found {memory.total}. Check the sizes: no "
            "machine holds so much."
        )
    return memory


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
    rows, times = _size("chain_products: rows", rows), _size("chain_products: times", times)
    shapes = _shapes("chain_products: weights", weights)
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
    forward = _size("forward_flops: attention", attention)
    for i, product in enumerate(products):
        where = f"forward_flops: products[{i}]"
        if not isinstance(product, Product):
            raise ValueError(f"{where}: expected a Product, found {product!r}. Give a list of Product(m, k, n).")
        forward += Product(*(_size(f"{where}.{name}", x) for name, x in product._asdict().items())).flops
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
        >>> sum(math.prod(shape) for shape in gpt2_shapes().values())
        124337664
    """
    layers, _, d, context, vocabulary = _checked(size)
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
        >>> forward_flops(gpt2_products(), attention=gpt2_attention())
        291648307200
        >>> blocks = forward_flops(gpt2_products(head=False), attention=gpt2_attention())
        >>> step_flops(gpt2_products(), attention=gpt2_attention(), recomputed=blocks)
        1087545802752
    """
    layers, _, d, context, vocabulary = _checked(size)
    blocks = [Product(context, k, n, layers) for k, n in ((d, 3 * d), (d, d), (d, 4 * d), (4 * d, d))]
    return [*blocks, Product(context, d, vocabulary)] if head else blocks


def gpt2_attention(size: Transformer = GPT2) -> int:
    """Forward operations of attention in one sequence: queries by keys and probabilities by values, for each head."""
    layers, heads, d, context, _ = _checked(size)
    return 2 * Product(context, d // heads, context, layers * heads).flops


def gpt2_activations(size: Transformer = GPT2, *, recompute: bool = False) -> list[tuple[int, ...]]:
    """Shapes of what one sequence keeps for the backward pass: operands of products, or the inputs of blocks alone.

    Args:
        size: of the model.
        recompute: keep the input of each block, and compute the block again in the backward pass.
    """
    layers, heads, d, context, _ = _checked(size)
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
    layers, heads, d, context, _ = _checked(size)
    return 6 * _size("palm_flops: parameters", parameters) + 12 * layers * heads * (d // heads) * context


def first_batches(config: RunConfig, data: Dataset) -> list[int]:
    """Samples in each micro-batch of the first step."""
    window = min(config.batch_size * config.accumulation, len(data.labels))
    return [min(config.batch_size, window - start) for start in range(0, window, config.batch_size)]


def kept_inputs(config: RunConfig) -> list[int]:
    """The linear layers whose inputs are kept: all of them, or with recomputation the first of each segment."""
    depth = len(config.hidden) + 1
    if not config.recompute_segments:
        return list(range(depth))
    return [layers.start for layers in checkpointing.segments_of(depth, config.recompute_segments)]


class Account(NamedTuple):
    """What shapes say that a run holds and does."""

    memory: Memory
    checkpoint: int  # bytes on disk: parameters and moments
    forward_flops: int  # of the first micro-batch
    step_flops: int


def account_run(config: RunConfig, data: Dataset) -> Account:
    """Bytes and operations of the first step of a run, from its configuration and the data's sizes alone.

    Activations are the inputs of the linear layers, or with recomputation those of the segments, of one micro-batch, in
    the format that the layers compute in. What is computed again is the whole forward pass. The first layer's input is
    data: no gradient by it is formed.

    Example:
        >>> from numpy_ref.data import load_data
        >>> account = account_run(RunConfig(), load_data("digits"))
        >>> account.memory.parameters, account.memory.activations, account.step_flops
        (104488, 40960, 4440064)
    """
    shapes = [w.shape for w in network.parameters(_blank_model(config, data)).values()]
    sizes = data.inputs.shape[1], config.hidden, data.classes
    passes = [mlp_products(batch, *sizes) for batch in first_batches(config, data)]
    widths = CONVENTIONS["float32 adam" if config.precision == "float32" else "autocast adam"].widths
    again = bool(config.recompute_segments)
    kept = [(passes[0][i].m, passes[0][i].k) for i in kept_inputs(config)]
    moments = int(config.momentum > 0) if config.optimizer == "sgd" else 2 + config.amsgrad
    return Account(
        account_memory(shapes, kept, widths, moments=moments),
        account_memory(shapes, [], CONVENTIONS["on disk"].widths, moments=moments).total,
        forward_flops(passes[0]),
        sum(step_flops(p, recomputed=again * forward_flops(p), input_gradient_of_first=False) for p in passes),
    )


def account_gpt2(size: Transformer = GPT2, *, precision: str = "float32", recompute: bool = False) -> Account:
    """Bytes and operations of a step on one sequence, with Adam and float32 parameters.

    Args:
        size: of the model.
        precision: in which products are computed: "float32", or "float16" or "bfloat16" as autocast does.
        recompute: keep the input of each block alone, and compute the block again in the backward pass.

    Raises:
        ValueError: another precision, or sizes that are none.
    """
    check_precision("account_gpt2", precision)
    shapes, kept = gpt2_shapes(size).values(), gpt2_activations(size, recompute=recompute)
    attention, blocks = gpt2_attention(size), gpt2_products(size, head=False)
    convention = CONVENTIONS["float32 adam" if precision == "float32" else "autocast adam"]
    again = forward_flops(blocks, attention=attention) if recompute else 0
    return Account(
        account_memory(shapes, kept, convention.widths, moments=convention.moments),
        account_memory(shapes, [], CONVENTIONS["on disk"].widths, moments=convention.moments).total,
        forward_flops(gpt2_products(size), attention=attention),
        step_flops(gpt2_products(size), attention=attention, recomputed=again),
    )


def check_precision(where: str, precision: object) -> None:
    """Refuse what no product is computed in."""
    if precision not in CASTS:
        raise ValueError(f"{where}: precision: expected one of {', '.join(CASTS)}, found {precision!r}. Choose one.")


class Measured(NamedTuple):
    """What a run really holds and does; bytes, or operations."""

    parameters: int
    gradients: int
    activations: int  # all that is kept between the forward and the backward pass of the first micro-batch
    optimizer: int
    checkpoint: int | None  # the file
    header: int | None  # of it: the length and the JSON
    forward_flops: int  # of the first micro-batch
    step_flops: int
    peak: int | None  # the most that was held at once during the step, where that is counted


def measure(config: RunConfig, data: Dataset) -> Measured:
    """Bytes and operations of the first step of a run, as they are found.

    Parameters, gradients and moments are the bytes of their arrays; activations what NumPy holds more after the forward
    pass and the loss than before, by tracemalloc; the file that of a real save; operations those of the products that a
    real step asks of its arithmetic; the peak is all that Python allocated at once, its own small
    objects included, so that it moves a little from run to run.

    Args:
        config: of the run; arithmetic is taken as native, in which no product is made of several, and the loss scale
            as 1, so that no update is skipped.
        data: the data set.

    Mirror:
        `torch_port.accounting.measure`; `differences` names what each keeps beyond the other.
    """
    config = replace(config, arithmetic="native", init_scale=1.0)
    counted: list[Product] = []

    def matmul(a: Array, b: Array) -> Array:
        counted.append(Product(a.shape[0], a.shape[1], b.shape[1]))
        return np.asarray(np.matmul(a, b))

    ops = arithmetic_named("native")._replace(matmul=matmul)
    with _tracing():
        start, _ = tracemalloc.get_traced_memory()
        run = train.init_run(config, data)
        order, next_order = epoch_order(run.state.rng.order, len(data.labels))
        activations, gradients = _one_pass(run, data, ops, order[: first_batches(config, data)[0]])
        forward = forward_flops(counted[: len(config.hidden) + 1])
        counted.clear()
        tracemalloc.reset_peak()
        state, _ = train._train_step(run.state, config, data, ops, order, next_order)
        peak = tracemalloc.get_traced_memory()[1] - start
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.safetensors")
        checkpoint.save_checkpoint(path, run._replace(state=state))
        file, header = path.stat().st_size, header_bytes(path)
    parameters = _nbytes(network.parameters(state.model))
    optimizer = _nbytes(state.optimizer)
    return Measured(parameters, gradients, activations, optimizer, file, header, forward, forward_flops(counted), peak)


def differences(config: RunConfig, data: Dataset) -> dict[str, dict[str, int]]:
    """By term and cause, what `measure` finds beyond `account_run`, exactly and from shapes.

    A checkpoint's header is left out: its length stands in the file, and in `Measured`. At the peak it is the whole
    state before the step: an update makes new arrays beside it, and the account has them once.

    Example:
        >>> from numpy_ref.data import load_data
        >>> differences(RunConfig(), load_data("digits"))["operands of products"]["masks of dropout"]
        8192
    """
    batches, units, classes = first_batches(config, data), sum(config.hidden), data.classes
    batch, last = batches[0], config.hidden[-1] if config.hidden else data.inputs.shape[1]
    width = 2 if config.precision == "float16" else 4
    activations = {
        "masks of dropout": batch * units if config.dropout else 0,
        "gradient by the logits": 4 * batch * classes,
    }
    flops = {}
    if config.precision == "bfloat16":
        sizes = (data.inputs.shape[1], *config.hidden)
        activations["bfloat16 in arrays of float32"] = 2 * batch * sum(sizes[i] for i in kept_inputs(config))
    if config.recompute_segments:
        flops["logits, not computed again"] = -sum(2 * batch * last * classes for batch in batches)
    else:
        activations |= {"inputs of ReLU": width * batch * units, "factor of dropout": width}
        if config.batch_norm:
            activations |= {"normalised inputs": 4 * batch * units, "1 / std of a batch": 4 * units}
    memory, file = account_run(config, data).memory, file_differences(config, data)
    peak = {"parameters and moments before the step": memory.parameters + memory.optimizer} | file
    terms = ("operands of products", "peak of the step", "checkpoint file", "FLOPs, step")
    return dict(zip(terms, (activations, peak, file, flops), strict=True))


def file_differences(config: RunConfig, data: Dataset) -> dict[str, int]:
    """What a checkpoint's arrays hold beyond parameters and moments, by cause."""
    model = _blank_model(config, data)
    weights = _nbytes(network.parameters(model))
    buffers = _nbytes(model) - weights
    return {
        "best weights so far": weights,
        "buffers of batch normalisation, twice": 2 * buffers,
        "generators of order and dropout": 2 * 4 * WORDS,
    }


def header_bytes(path: Path) -> int:
    """How much of a checkpoint is its header: the 8 bytes of the length, and the JSON."""
    with path.open("rb") as file:
        return 8 + int.from_bytes(file.read(8), "little")


class Row(NamedTuple):
    """One line of the table: a number computed from shapes, and beside it what was found."""

    model: str
    precision: str
    recompute: str  # what is computed again in the backward pass
    term: str
    computed: int | None  # None for the peak, which is not derived from shapes
    measured: int | None  # None where this implementation cannot carry it out here
    causes: dict[str, int]  # of the difference, or of the peak: what is known to be there, and the rest

    @property
    def difference(self) -> int | None:
        """Measured less computed."""
        return None if self.measured is None or self.computed is None else self.measured - self.computed

    @property
    def explained(self) -> bool | None:
        """Whether the causes account for the difference to the last byte, or operation; None where there is none."""
        return None if self.difference is None else self.difference == sum(self.causes.values())

    @property
    def reason(self) -> str:
        """The causes that are there, as one line."""
        if self.term == "all of these" and any(self.causes.values()):
            return "as above"
        return "; ".join(f"{size:+,} {cause}" for cause, size in self.causes.items() if size)


def account_rows(
    impl: Any, data: Dataset, config: RunConfig | None = None, *, precision: str = "", segments: int | None = None
) -> list[Row]:
    """Computed beside measured: a run's first step, and GPT-2's, which `torch_port` alone measures.

    Args:
        impl: the implementation, a package.
        data: of the run.
        config: of the run, by default `RunConfig()`; its precision and recomputation are replaced by the next two.
        precision: of the layers; by default one after the other.
        segments: computed again, blocks in GPT-2; by default none, and then as many as the square root rule says.
    """
    home, config = import_module(f"{impl.__name__}.accounting"), config or RunConfig()
    cuts = (0, checkpointing.square_root_rule(len(config.hidden) + 1)) if segments is None else (segments,)
    kinds = [(k, cut) for k in ([precision] if precision else ["float32", "float16", "bfloat16"]) for cut in cuts]
    rows = [run_rows(home, replace(config, precision=k, recompute_segments=cut), data) for k, cut in kinds]
    rows += [gpt2_rows(home, precision=k, recompute=cut > 0) for k, cut in kinds if precision or k != "float16"]
    return [row for part in rows for row in part]


def run_rows(home: Any, config: RunConfig, data: Dataset) -> list[Row]:
    """The rows of a run's first step; `home` is the implementation's `accounting`."""
    found, causes = home.measure(config, data), home.differences(config, data)
    causes["checkpoint file"]["header"] = found.header
    segments = config.recompute_segments
    labels = ("MLP", config.precision, f"{segments} segment{'s' * (segments > 1)}" if segments else "nothing")
    return list(_rows(labels, account_run(config, data), found, causes))


def gpt2_rows(home: Any, size: Transformer = GPT2, *, precision: str = "float32", recompute: bool = False) -> list[Row]:
    """The rows of GPT-2's step on one sequence, measured where the implementation can do so without its memory."""
    settings: dict[str, Any] = {"precision": precision, "recompute": recompute}
    found, causes = None, {}
    if hasattr(home, "measure_gpt2"):
        found, causes = home.measure_gpt2(size, **settings), home.gpt2_differences(size, **settings)
    labels = ("GPT-2", precision, "blocks" if recompute else "nothing")
    return list(_rows(labels, account_gpt2(size, **settings), found, causes))


def _rows(
    labels: tuple[str, str, str], account: Account, found: Measured | None, causes: Mapping[str, dict[str, int]]
) -> Iterator[Row]:
    """One row a term."""
    memory = account.memory
    parts = {
        "parameters": (memory.parameters, "parameters"),
        "gradients": (memory.gradients, "gradients"),
        "operands of products": (memory.activations, "activations"),
        "optimizer state": (memory.optimizer, "optimizer"),
    }
    for term, (computed, field) in parts.items():
        yield Row(*labels, term, computed, found and getattr(found, field), causes.get(term, {}))
    everything = {cause: size for term in parts for cause, size in causes.get(term, {}).items()}
    total = found and sum(getattr(found, field) for _, field in parts.values())
    yield Row(*labels, "all of these", memory.total, total, everything)
    if found is not None and found.peak is not None:
        held = {"parameters": memory.parameters, "gradients": memory.gradients, "moments": memory.optimizer}
        held |= causes.get("peak of the step", {})
        held["not derived: activations, temporary arrays"] = found.peak - sum(held.values())
        yield Row(*labels, "peak of the step", None, found.peak, held)
    yield Row(
        *labels, "checkpoint file", account.checkpoint, found and found.checkpoint, causes.get("checkpoint file", {})
    )
    for term, field in (("FLOPs, forward", "forward_flops"), ("FLOPs, step", "step_flops")):
        yield Row(*labels, term, getattr(account, field), found and getattr(found, field), causes.get(term, {}))


@np.errstate(all="ignore")  # as in training
def _one_pass(run: train.Run, data: Dataset, ops: Arithmetic, samples: Array) -> tuple[int, int]:
    """Bytes that a forward pass of these samples and its loss keep, and bytes of the gradients."""
    config, model = run.config, run.state.model
    passes: ModuleType = network
    before = _held_by_numpy()
    x = data.inputs[samples]
    masks = network.draw_masks(generator_from(run.state.rng.dropout), config.hidden, len(samples), config.dropout)
    settings: dict[str, Any] = {"masks": masks, "dropout": config.dropout, "precision": config.precision}
    if config.recompute_segments:
        passes, settings["segments"] = checkpointing, config.recompute_segments
    logits, kept, buffers = passes.forward(model, x, ops, training=True, **settings)
    loss, grad = network.cross_entropy(logits, data.labels[samples], ops, count=len(samples))
    del x, logits, buffers, loss
    held = _held_by_numpy() - before
    return held, _nbytes(passes.backward(model, kept, grad, ops))


@contextmanager
def _tracing() -> Iterator[None]:
    """Memory is traced; whoever traces it already goes on."""
    running = tracemalloc.is_tracing()
    if not running:
        tracemalloc.start()
    try:
        yield
    finally:
        if not running:
            tracemalloc.stop()


def _held_by_numpy() -> int:
    """Bytes of all the arrays' elements that are traced."""
    numpy = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)
    return sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([numpy]).traces)


def _nbytes(tree: Any) -> int:
    """Bytes of a tree's arrays."""
    return sum(leaf.nbytes for leaf in flatten(tree).values() if isinstance(leaf, np.ndarray))


def _blank_model(config: RunConfig, data: Dataset) -> dict[str, Array]:
    return network.blank_model(data.inputs.shape[1], config.hidden, data.classes, batch_norm=config.batch_norm)


def _elements(where: str, shapes: Iterable[Shape]) -> int:
    """The elements of arrays of these shapes."""
    return sum(map(math.prod, _shapes(where, shapes)))


def _shapes(where: str, shapes: Iterable[Shape]) -> list[tuple[int, ...]]:
    """The same, each a sequence of whole numbers >= 0."""
    checked = []
    for i, shape in enumerate(shapes if isinstance(shapes, Iterable) else [shapes]):
        if isinstance(shape, str) or not isinstance(shape, Sequence):
            raise ValueError(f"{where}[{i}]: expected a shape, found {shape!r}. Give a list of shapes: [(3, 2)], say.")
        checked.append(tuple(_size(f"{where}[{i}]", size) for size in shape))
    return checked


def _size(where: str, value: object) -> int:
    """A whole number >= 0, as a Python int."""
    return whole_number(where, value, 0, END)


def _checked(size: Transformer) -> Transformer:
    """Sizes >= 1 of which the heads divide the width."""
    size = Transformer(*(whole_number(f"Transformer.{name}", x, 1, END) for name, x in size._asdict().items()))
    if size.width % size.heads:
        raise ValueError(
            f"Transformer: expected heads that divide the width, found {size.heads} for {size.width}. Choose others."
        )
    return size
