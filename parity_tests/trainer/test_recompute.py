"""Gradient checkpointing: the bits of the plain pass for every number of segments, and the memory it is for."""

import gc
import math
import tracemalloc
from itertools import product
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref import model as network
from numpy_ref.arithmetic.operations import NATIVE, REPRODUCIBLE
from numpy_ref.model import blank_model, draw_masks
from numpy_ref.proof.equivalence import digest
from numpy_ref.rng import generator_from, init_stream, stream_state

# Statistics of two samples nearly alike make gradients beyond float16: infinities, which must come again as well.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

DROPOUT = 0.25
PRECISIONS = (None, "float32", "float16", "bfloat16")


def drawn_model(rng, sizes, batch_norm):
    """Arrays away from their first values; weights that keep the size of activations, for the range of float16."""
    model = blank_model(sizes[0], sizes[1:-1], sizes[-1], batch_norm=batch_norm)
    for name, array in model.items():
        scales = name.endswith("_var") or (name.startswith("norm") and name.endswith("weight"))
        bound = (6 / array.shape[1]) ** 0.5 if array.ndim == 2 else 0.5
        if not name.endswith("tracked"):
            model[name] = rng.uniform(0.5 if scales else -bound, 2 if scales else bound, array.shape).astype(np.float32)
    return model


class Case:
    """A model, a batch, a gradient by its logits, a stream of masks, and how the pass is made."""

    def __init__(self, sizes, batch, *, seed=0, batch_norm=False, training=True, dropout=DROPOUT, precision=None):
        rng = np.random.default_rng(seed)
        self.model = drawn_model(rng, sizes, batch_norm)
        self.x = rng.standard_normal((batch, sizes[0])).astype(np.float32)
        self.grad = rng.standard_normal((batch, sizes[-1])).astype(np.float32)
        self.stream = init_stream(seed, "dropout")
        self.hidden, self.depth = sizes[1:-1], len(sizes) - 1
        self.precision, self.options = precision, {"training": training, "dropout": dropout}

    def __repr__(self):
        norm = "norm0.weight" in self.model
        return f"Case({self.x.shape} to {self.hidden}, batch_norm={norm}, {self.precision}, {self.options})"

    def masks(self):
        """The masks drawn in advance, and the stream after the pass: outside training it draws nothing."""
        generator = generator_from(self.stream)
        masks = draw_masks(generator, self.hidden, len(self.x), self.options["dropout"])
        return masks, stream_state(generator) if self.options["training"] else self.stream

    def plain(self, ops):
        """What must come: of the pass that keeps everything."""
        masks, after = self.masks()
        ops = ops._replace(precision=self.precision)
        logits, kept, buffers = network.forward(self.model, self.x, ops, masks=masks, **self.options)
        grads = network.backward(self.model, kept, self.grad, ops)
        return {"logits": logits, "buffers": buffers, "gradients": grads, "stream": after}

    def found(self, ops, segments, *, within, impl=network):
        """The same with segments, masks handed in or drawn within; "again": of a second backward pass."""
        ops = ops._replace(precision=self.precision)
        generator = generator_from(self.stream)
        masks = {"generator": generator} if within else {"masks": self.masks()[0]}
        logits, kept, buffers = impl.forward(self.model, self.x, ops, segments=segments, **masks, **self.options)
        after = stream_state(generator) if within else self.masks()[1]
        grads, again = (impl.backward(self.model, kept, self.grad, ops) for _ in range(2))
        found = {"logits": logits, "buffers": buffers, "gradients": grads, "stream": after, "again": again}
        return found | ({"stream after backward": stream_state(generator)} if within else {})


def differences(case, ops, *, within, segments=None, impl=network):
    """Names of what is not the plain pass's, for one number of segments or for all."""
    expected = case.plain(ops)
    expected |= {"again": expected["gradients"], "stream after backward": expected["stream"]}
    different = set()
    for number in range(case.depth + 1) if segments is None else [segments]:
        found = case.found(ops, number, within=within, impl=impl)
        assert list(found["gradients"]) == list(expected["gradients"])
        different |= {name for name, tree in found.items() if digest(tree) != digest(expected[name])}
    return different


@st.composite
def cases(draw):
    """Sizes straddle the vector width."""
    inputs, classes = draw(st.sampled_from([1, 7, 64])), draw(st.sampled_from([2, 7]))
    hidden = draw(st.lists(st.sampled_from([1, 7, 64]), max_size=4))
    return Case(
        (inputs, *hidden, classes),
        draw(st.sampled_from([2, 7, 64])),
        seed=draw(st.integers(0, 2**32 - 1)),
        batch_norm=draw(st.booleans()),
        training=draw(st.sampled_from([True, True, False])),
        dropout=draw(st.sampled_from([DROPOUT, DROPOUT, 0.0])),
        precision=draw(st.sampled_from(PRECISIONS)),
    )


WIDE = Case((7, 64, 1, 7, 64, 3), 64, batch_norm=True, precision="bfloat16")


# The plain pass, bit for bit


@given(cases(), st.sampled_from([REPRODUCIBLE, NATIVE, NATIVE]), st.booleans())
@example(WIDE, REPRODUCIBLE, True)
@example(WIDE, REPRODUCIBLE, False)
def test_every_number_of_segments_gives_the_bits_of_the_plain_pass(case, ops, within):
    assert differences(case, ops, within=within) == set()


@pytest.mark.parametrize("ops", [REPRODUCIBLE, NATIVE], ids=lambda ops: ops.name)
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_norm", [True, False])
def test_so_it_does_in_every_mode_precision_and_arithmetic(batch_norm, training, precision, ops):
    case = Case((7, 7, 7, 7, 7), 7, batch_norm=batch_norm, training=training, precision=precision)
    assert differences(case, ops, within=False) == differences(case, ops, within=True) == set()


def test_float64_stays_float64():
    case = Case((7, 7, 7, 7), 7, batch_norm=True)
    case.model = {name: a if a.dtype == np.int64 else a.astype(np.float64) for name, a in case.model.items()}
    case.x, case.grad = case.x.astype(np.float64), case.grad.astype(np.float64)
    assert differences(case, NATIVE, within=True) == set()
    assert case.found(NATIVE, 2, within=True)["gradients"]["layer0.weight"].dtype == np.float64


@given(cases(), st.integers(1, 5), st.integers(1, 5))
def test_passes_interleaved_keep_apart(case, first, second):
    sizes, ops = (len(case.x[0]), *case.hidden, len(case.grad[0])), NATIVE._replace(precision=case.precision)
    other = Case(sizes, 7, seed=1, precision=case.precision, **case.options)
    generator, passes = generator_from(case.stream), []
    for of, number in ((case, first), (other, second)):
        of.model, of.stream = case.model, stream_state(generator)
        segments = min(number, of.depth)
        _, kept, _ = network.forward(of.model, of.x, ops, segments=segments, generator=generator, **of.options)
        passes.append((of, kept))
    for of, kept in (passes[0], passes[1], passes[0]):
        assert digest(network.backward(of.model, kept, of.grad, ops)) == digest(of.plain(NATIVE)["gradients"])


@given(cases(), st.booleans(), st.integers(1, 5))
def test_a_pass_leaves_its_arguments_as_they_are(case, within, segments):
    masks, _ = case.masks()
    given = (case.x, case.grad, *masks, *case.model.values())
    for array in given:
        array.flags.writeable = False
    how = {"generator": generator_from(case.stream)} if within else {"masks": masks}
    ops = NATIVE._replace(precision=case.precision)
    logits, kept, buffers = network.forward(
        case.model, case.x, ops, segments=min(segments, case.depth), **how, **case.options
    )
    before = [array.tobytes() for array in arrays_in(kept).values()]
    grads = network.backward(case.model, kept, case.grad, ops)
    assert [array.tobytes() for array in arrays_in(kept).values()] == before
    for name, array in ({"logits": logits} | grads | buffers).items():
        assert not any(np.shares_memory(array, one) for one in given), name


def test_masks_taken_out_of_the_callers_list_after_the_forward_pass_still_count():
    case = Case((7, 7, 7, 7), 7)
    masks, _ = case.masks()
    _, kept, _ = network.forward(case.model, case.x, NATIVE, segments=2, masks=masks, **case.options)
    masks.clear()
    assert digest(network.backward(case.model, kept, case.grad, NATIVE)) == digest(case.plain(NATIVE)["gradients"])


def products(segments, depth):
    """How many matrix products the backward pass takes."""
    case, taken = Case((7,) * (depth + 1), 7), []

    def counted(a, b):
        taken.append(1)
        return NATIVE.matmul(a, b)

    ops = NATIVE._replace(matmul=counted)
    _, kept, _ = network.forward(case.model, case.x, ops, segments=segments, masks=case.masks()[0], **case.options)
    assert len(taken) == depth
    taken.clear()
    network.backward(case.model, kept, case.grad, ops)
    return len(taken)


@pytest.mark.parametrize("segments", [1, 2, 5])
def test_each_hidden_layer_is_computed_once_more_and_the_logits_are_not(segments):
    assert products(segments, 5) == (5 + 4) + 4  # by weights and by inputs, but not by the first one's; and again


# Segments


def even(layers, segments, segments_of=network.segments_of):
    """Whether the cuts are consecutive, complete and as even as can be, the longer ones first."""
    cuts = segments_of(layers, segments)
    sizes = [len(cut) for cut in cuts]
    consecutive = [i for cut in cuts for i in cut] == list(range(layers))
    return consecutive and len(cuts) == segments and sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


def nearest(layers, square_root_rule=network.square_root_rule):
    """Whether the rule is less than a half from the square root, which never lies in the middle."""
    rule = square_root_rule(layers)
    return (2 * rule - 1) ** 2 < 4 * layers < (2 * rule + 1) ** 2 and 1 <= rule <= layers


@given(st.integers(1, 300), st.data())
def test_segments_are_consecutive_complete_and_even_the_longer_ones_first(layers, data):
    assert even(layers, data.draw(st.integers(1, layers)))


@given(st.one_of(st.integers(1, 300), st.integers(1, 2**31 - 1)))
@example(2**31 - 1)
def test_the_square_root_rule_gives_the_nearest_whole_number(layers):
    assert nearest(layers)


def cut_at(start):
    """Segments that begin where a rule says, of (size, longer, segments, s) and the number of layers."""

    def segments_of(layers, segments):
        size, longer = divmod(layers, segments)
        return [range(*(start(size, longer, segments, i) for i in (s, s + 1))) for s in range(segments)]

    return segments_of


CUTS = {
    "longer ones last": cut_at(lambda size, longer, segments, s: size * s + max(0, s - segments + longer)),
    "uneven": cut_at(lambda size, longer, segments, s: size * s + longer * (s == segments)),
    "last one left out": lambda layers, segments: network.segments_of(layers, segments)[:-1],
}
RULES = {
    "root rounded down": lambda layers: math.isqrt(layers),
    "root rounded up": lambda layers: math.isqrt(layers - 1) + 1,
}


def test_other_cuts_are_told_apart():
    pairs = [(layers, segments) for layers in range(1, 9) for segments in range(1, layers + 1)]
    assert all(even(*pair) for pair in pairs)
    assert {name for name, cut in CUTS.items() if all(even(*pair, cut) for pair in pairs)} == set()
    assert {name for name, rule in RULES.items() if all(nearest(n, rule) for n in range(1, 9))} == set()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: network.segments_of(0, 1), "segments_of: layers: expected an integer from 1 to .*, found 0"),
        (lambda: network.segments_of(5, 0), "segments_of: segments: expected an integer from 1 to 5, found 0"),
        (lambda: network.segments_of(5, 6), "segments_of: segments: expected an integer from 1 to 5, found 6"),
        (lambda: network.segments_of(5, True), "segments_of: segments: .* found True"),
        (lambda: network.segments_of(5, 2.0), r"segments_of: segments: .* found 2\.0"),
        (lambda: network.square_root_rule(0), "square_root_rule: layers: expected an integer from 1 to .*, found 0"),
        (lambda: network.square_root_rule(2.5), r"square_root_rule: layers: .* found 2\.5"),
    ],
)
def test_numbers_out_of_range_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("training", [True, False])
def test_a_pass_that_cannot_be_made_is_refused_before_anything_is_drawn(training):
    case = Case((7, 7, 7, 3), 7, training=training)
    generator = generator_from(case.stream)
    for segments in (-1, 4, True):
        with pytest.raises(ValueError, match="segments: expected an integer from 1 to 3, found"):
            network.forward(case.model, case.x, NATIVE, segments=segments, generator=generator, **case.options)
    with pytest.raises(ValueError, match="expected masks or a generator that draws them, found both"):
        network.forward(
            case.model, case.x, NATIVE, segments=2, masks=[np.ones((7, 7), bool)], generator=generator, **case.options
        )
    assert digest(stream_state(generator)) == digest(case.stream)


# Mutants: passes with one fault, which changes what goes into the right pass, what it keeps, or what it calls.


def other_kept(change):
    """A backward pass that goes wrong about what was kept: change(segment, its number, all segments)."""

    def backward(model, kept, grad, ops):
        return network.backward(model, [change(part, s, kept) for s, part in enumerate(kept)], grad, ops)

    return {"backward": backward}


def other_forward(change):
    """A forward pass followed by change(its results, model, x, ops, settings)."""

    def forward(model, x, ops, **settings):
        return change(network.forward(model, x, ops, **settings), model, x, ops, settings)

    return {"forward": forward}


def draws_anyway(found, model, x, ops, settings):
    """Masks are drawn where nothing is dropped."""
    if settings.get("generator") is not None and not settings["training"]:
        draw_masks(settings["generator"], (1,), 1, DROPOUT)
    return found


def stream_left_behind(found, model, x, ops, settings):
    """The generator is as before the last segment."""
    if settings.get("generator") is not None and found[1][-1].stream is not None:
        settings["generator"].bit_generator.state = generator_from(found[1][-1].stream).bit_generator.state
    return found


def statistics_twice(found, model, x, ops, settings):
    return (*found[:2], network.forward(model | found[2], x, ops, training=settings["training"])[2])


def statistics_of_the_last(found, model, x, ops, settings):
    numbers = {str(i) for i in found[1][-1].layers}
    return (*found[:2], {name: new for name, new in found[2].items() if name[4:].partition(".")[0] in numbers})


def statistics_in_the_backward_pass(model, kept, grad, ops):
    for part in kept:
        for name, new in network._through(model, part, ops, None)[2].items():
            model[name][...] = new
    return network.backward(model, kept, grad, ops)


def inputs_taken_out(model, kept, grad, ops):
    grads = network.backward(model, kept, grad, ops)
    kept.clear()
    return grads


FAULTS = {  # functions in place of others, and a law that falls
    "masks of the stream's first draws in every segment": (
        other_kept(lambda part, s, kept: part._replace(stream=kept[0].stream)),
        "gradients",
    ),
    "stream not put forward": (other_forward(stream_left_behind), "stream"),
    "drawn where nothing is dropped": (other_forward(draws_anyway), "stream"),
    "masks of other layers": (other_kept(lambda part, s, kept: part._replace(masks=part.masks[::-1])), "gradients"),
    "input of another segment": (other_kept(lambda part, s, kept: part._replace(x=kept[s - 1].x)), "gradients"),
    "first segment first": (other_kept(lambda part, s, kept: kept[-1 - s]), "gradients"),
    "inputs taken out": ({"backward": inputs_taken_out}, "error"),
    "precision dropped": (
        {"backward": lambda model, kept, grad, ops: network.backward(model, kept, grad, ops._replace(precision=None))},
        "gradients",
    ),
    "scale of dropout dropped": (other_kept(lambda part, s, kept: part._replace(dropout=0.0)), "gradients"),
    "always as in training": (other_kept(lambda part, s, kept: part._replace(training=True)), "gradients"),
    "statistics moved twice": (other_forward(statistics_twice), "buffers"),
    "statistics of the last segment alone": (other_forward(statistics_of_the_last), "buffers"),
    "statistics moved by the backward pass": ({"backward": statistics_in_the_backward_pass}, "model"),
}


def broken(impl=network):
    """Names of the laws that fall; layers of one size and a format stored as float32, so that few faults are errors."""
    fallen = set()
    for training, precision, within in product((True, False), (None, "bfloat16"), (True, False)):
        case = Case((7,) * 6, 7, batch_norm=True, training=training, precision=precision)
        before = digest(case.model)
        for segments in range(1, case.depth + 1):
            try:
                fallen |= differences(case, REPRODUCIBLE, within=within, segments=segments, impl=impl)
            except (IndexError, TypeError, KeyError):
                fallen.add("error")
        fallen |= {"model"} if digest(case.model) != before else set()
    return fallen


def test_no_law_falls_without_a_fault():
    assert broken() == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_a_law_that_it_breaks(name):
    functions, law = FAULTS[name]
    assert law in broken(SimpleNamespace(**({"forward": network.forward, "backward": network.backward} | functions)))


def test_masks_drawn_again_from_the_live_generator_are_told_apart(monkeypatch):
    monkeypatch.setattr(network, "stream_state", lambda live: live)
    monkeypatch.setattr(network, "generator_from", lambda live: live)
    assert {"gradients", "stream after backward"} <= broken()


# Memory


STREAM = 624 * 4  # bytes of a stream's key
HEADERS = 1024  # bytes of Python's own objects that a segment may bring with it; 16 times that in all
WORKING = 5  # arrays of a layer that a pass has at hand besides what the formulas name
OF_NUMPY = tracemalloc.DomainFilter(True, np.lib.tracemalloc_domain)  # the data of arrays, without their headers


def arrays_in(tree):
    """Every array of a nest of tuples and lists, once."""
    if isinstance(tree, np.ndarray):
        return {id(tree): tree}
    return {key: a for part in tree for key, a in arrays_in(part).items()} if isinstance(tree, (tuple, list)) else {}


def nbytes(tree, *, without=()):
    """Bytes of the arrays in it."""
    own = arrays_in(tree).keys() - arrays_in(without).keys()
    return sum(a.nbytes for key, a in arrays_in(tree).items() if key in own)


def expected_bytes(case, segments, *, within):
    """What is kept: the input of each segment, and either masks of a byte a unit, or a stream a segment."""
    training, dropout = case.options.values()
    widths, size = (len(case.x[0]), *case.hidden), 2 if case.precision == "float16" else 4
    inputs = [len(case.x) * widths[cut.start] * size for cut in network.segments_of(case.depth, segments)]
    drops = training and dropout
    return sum(inputs) + (0 if not drops else segments * STREAM if within else len(case.x) * sum(case.hidden))


@given(cases(), st.booleans())
@example(WIDE, True)
@example(WIDE, False)
def test_only_the_inputs_of_segments_are_kept_with_masks_or_streams(case, within):
    for segments in range(1, case.depth + 1):
        how = {"generator": generator_from(case.stream)} if within else {"masks": case.masks()[0]}
        ops = NATIVE._replace(precision=case.precision)
        _, kept, _ = network.forward(case.model, case.x, ops, segments=segments, **how, **case.options)
        assert nbytes(kept) == expected_bytes(case, segments, within=within)


LAYERS = 36
DEEP = {precision: Case((64,) * (LAYERS + 1), 256, precision=precision) for precision in PRECISIONS}


class Measured(NamedTuple):
    """Bytes over what was there before a step, as tracemalloc has them."""

    kept: int  # between the passes, of arrays made by the forward pass
    objects: int  # and of Python's own
    counted: int  # the same arrays by their sizes
    forward: int  # at the height of the forward pass
    backward: int  # at the height of the backward pass, with what is kept
    gradients: int


def measured(case, segments, *, within=False, impl=network):
    """A step without segments (0) or with some."""
    masks, ops = case.masks()[0], NATIVE._replace(precision=case.precision)
    how = {"segments": segments} | ({"generator": generator_from(case.stream)} if within else {"masks": masks})
    impl.forward(case.model, case.x, ops, **how, **case.options)  # what the first call alone makes is there
    gc.collect()
    tracemalloc.start()
    try:
        kept = impl.forward(case.model, case.x, ops, **how, **case.options)[1]
        now, height = tracemalloc.get_traced_memory()
        arrays = sum(trace.size for trace in tracemalloc.take_snapshot().filter_traces([OF_NUMPY]).traces)
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        grads = impl.backward(case.model, kept, case.grad, ops)
        backward = tracemalloc.get_traced_memory()[1] - before + now
    finally:
        tracemalloc.stop()
    counted = nbytes(kept, without=(case.x, *masks))
    return Measured(arrays, now - arrays, counted, height, backward, sum(g.nbytes for g in grads.values()))


@pytest.mark.parametrize("segments", [0, 1, 6, LAYERS])
@pytest.mark.parametrize("precision", [None, "float16", "bfloat16"])
def test_what_is_kept_as_measured_is_what_was_counted(precision, segments):
    case = DEEP[precision]
    for within in [False, True] if segments else [False]:
        found = measured(case, segments, within=within)
        assert found.kept == found.counted
        if segments:
            own = case.x.nbytes if precision in (None, "float32") else 0  # the caller's array is kept as it is
            own += 0 if within else sum(mask.nbytes for mask in case.masks()[0])
            assert found.kept == expected_bytes(case, segments, within=within) - own
        assert found.objects <= HEADERS * (16 + (segments or LAYERS))


def within_bounds(found, segments, *, within=False):
    """Whether the heights are those of one segment at a time, two arrays a layer and masks drawn, besides the kept."""
    array = 256 * 64 * 4
    longest = -(-LAYERS // segments) * (2 * array + (256 * 64 if within else 0))
    forward = found.forward <= found.kept + longest + WORKING * array
    return forward, found.backward <= found.kept + longest + found.gradients + WORKING * array


@pytest.mark.parametrize("within", [False, True])
def test_the_square_root_rule_holds_less_at_its_height_than_one_segment_and_than_none(within):
    case, rule = DEEP[None], network.square_root_rule(LAYERS)
    plain, one, some = measured(case, 0), measured(case, 1, within=within), measured(case, rule, within=within)
    assert one.kept < some.kept < plain.kept
    assert some.backward < min(one.backward, plain.backward) / 2
    assert some.forward < min(one.forward, plain.forward) / 2
    assert one.backward > plain.kept  # all layers at once again
    for segments in (1, 2, rule, LAYERS):
        assert within_bounds(measured(case, segments, within=within), segments, within=within) == (True, True)


def holding(name, function):
    """A function during which what a name of the module returns stays until the next call of it has returned."""

    def hoarding(*arguments, **settings):
        original, held = getattr(network, name), []

        def hold(*arguments):
            held[:] = [original(*arguments)]
            return held[0]

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(network, name, hold)
            return function(*arguments, **settings)

    return hoarding


@pytest.mark.parametrize(("where", "name"), [("forward", "_through"), ("backward", "_again")])
def test_a_pass_that_holds_two_segments_at_once_is_told_apart(where, name):
    passes = {"forward": network.forward, "backward": network.backward}
    found = measured(DEEP[None], 6, impl=SimpleNamespace(**passes | {where: holding(name, passes[where])}))
    assert within_bounds(found, 6) == (where != "forward", where != "backward")


def test_keeping_a_copy_of_the_callers_input_or_masks_that_drop_nothing_is_told_apart():
    def copies(found, model, x, ops, settings):
        return found[0], [part._replace(x=part.x.copy()) if part.x is x else part for part in found[1]], found[2]

    def masks(found, model, x, ops, settings):
        return found[0], [part._replace(masks=settings["masks"]) for part in found[1]], found[2]

    case, impl = DEEP[None], SimpleNamespace(backward=network.backward, **other_forward(copies))
    assert measured(case, 6, impl=impl).kept == measured(case, 6).kept + case.x.nbytes
    case = Case((64,) * 5, 64, training=False)
    for forward, expected in ((network.forward, 0), (other_forward(masks)["forward"], 3 * 64 * 64)):
        _, kept, _ = forward(case.model, case.x, NATIVE, segments=2, masks=case.masks()[0], **case.options)
        assert nbytes(kept) == expected_bytes(case, 2, within=False) + expected
