"""Gradient checkpointing in the port: the reference's bits, only the inputs of segments kept, streams left alone."""

from itertools import product

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from numpy_ref import model as reference
from numpy_ref.arithmetic.operations import REPRODUCIBLE
from numpy_ref.model import blank_model, cross_entropy, segments_of
from numpy_ref.proof.equivalence import digest
from numpy_ref.rng import generator_from, init_stream, stream_state

torch = pytest.importorskip("torch", reason="torch is missing: the port's model cannot be run")
from torch.utils.checkpoint import CheckpointError, checkpoint

from torch_port import model as network
from torch_port import rng as port_rng
from torch_port.arithmetic import operations as arithmetic

# Statistics of two samples nearly alike make gradients beyond float16: infinities, which must come again as well.
pytestmark = pytest.mark.filterwarnings("ignore:(overflow|invalid value) encountered:RuntimeWarning")

DROPOUT = 0.25
PRECISIONS = (None, "float16", "bfloat16")


class Case:
    """A model, a batch with its labels, a stream of masks, and how the pass is made."""

    def __init__(self, sizes, batch, *, seed=0, batch_norm=False, training=True, dropout=DROPOUT, precision=None):
        rng = np.random.default_rng(seed)
        self.sizes, self.depth, self.batch_norm = sizes, len(sizes) - 1, batch_norm
        self.model = blank_model(sizes[0], sizes[1:-1], sizes[-1], batch_norm=batch_norm)
        for name, array in self.model.items():
            scales = name.endswith("_var") or (name.startswith("norm") and name.endswith("weight"))
            low, high = (0.5, 2) if scales else (-0.5, 0.5)
            if not name.endswith("tracked"):
                self.model[name] = rng.uniform(low, high, array.shape).astype(np.float32)
        self.x = rng.standard_normal((batch, sizes[0])).astype(np.float32)
        self.labels = rng.integers(0, sizes[-1], batch)
        self.stream = init_stream(seed, "dropout")
        self.precision, self.options = precision, {"training": training, "dropout": dropout}

    def __repr__(self):
        return f"Case({self.sizes}, {len(self.x)}, batch_norm={self.batch_norm}, {self.precision}, {self.options})"

    def expected(self, segments):
        """What the reference gives, and its stream after the pass."""
        generator = generator_from(self.stream)
        ops = REPRODUCIBLE._replace(precision=self.precision)
        logits, kept, buffers = reference.forward(
            self.model, self.x, ops, segments=segments, generator=generator, **self.options
        )
        loss, grad = cross_entropy(logits, self.labels, ops, count=len(self.labels))
        grads = reference.backward(self.model, kept, grad, ops)
        found = {"logits": logits, "loss": loss, "gradients": grads, "state": self.model | buffers}
        return found | {"stream": stream_state(generator), "stream after backward": stream_state(generator)}

    def module(self):
        """The port's model in the mode of the pass."""
        inputs, *hidden, classes = self.sizes
        ops = arithmetic.arithmetic_named("reproducible", precision=self.precision)
        dropout = self.options["dropout"]
        module = network.MLP(inputs, hidden, classes, batch_norm=self.batch_norm, dropout=dropout, ops=ops)
        module.load_state_dict({name: torch.tensor(array) for name, array in self.model.items()})
        return module.train(self.options["training"])

    def masks(self):
        """The port's masks, drawn in advance; none where the model takes none."""
        generator = port_rng.generator_from(self.stream)
        drops = self.options["training"]
        return network.draw_masks(generator, self.sizes[1:-1], len(self.x), self.options["dropout"]) if drops else []

    def loss(self, logits):
        return network.cross_entropy(logits, torch.tensor(self.labels), arithmetic.REPRODUCIBLE, count=len(self.labels))


def gradients(module):
    return {name: p.grad.numpy().copy() for name, p in module.named_parameters()}


def state(module):
    return {name: tensor.numpy().copy() for name, tensor in module.state_dict().items()}


def found(case, segments, *, within, module=None):
    """A step of the port, in the reference's terms."""
    module = case.module() if module is None else module
    generator = port_rng.generator_from(case.stream)
    how = {"generator": generator} if within else {"masks": case.masks()}
    logits = module(torch.tensor(case.x), segments=segments, **how)
    after = port_rng.stream_state(generator)
    loss = case.loss(logits)
    moved = state(module)
    loss.backward()
    result = {"logits": logits.detach().numpy(), "loss": loss.detach().numpy(), "gradients": gradients(module)}
    result |= {"state": moved, "state after backward": state(module)}
    return result | ({"stream": after, "stream after backward": port_rng.stream_state(generator)} if within else {})


def differences(case, *, within, segments=None, module=None):
    """Names of what is not the reference's, for one number of segments or for all."""
    different = set()
    for number in range(1, case.depth + 1) if segments is None else [segments]:
        expected = case.expected(number)
        expected["state after backward"] = expected["state"]
        result = found(case, number, within=within, module=module)
        different |= {name for name, tree in result.items() if digest(tree) != digest(expected[name])}
    return different


@st.composite
def cases(draw):
    """Sizes straddle the vector width."""
    inputs, classes = draw(st.sampled_from([1, 7, 64])), draw(st.sampled_from([2, 7]))
    return Case(
        (inputs, *draw(st.lists(st.sampled_from([1, 7, 64]), max_size=3)), classes),
        draw(st.sampled_from([2, 7, 64])),
        seed=draw(st.integers(0, 2**32 - 1)),
        batch_norm=draw(st.booleans()),
        training=draw(st.sampled_from([True, True, False])),
        dropout=draw(st.sampled_from([DROPOUT, DROPOUT, 0.0])),
        precision=draw(st.sampled_from(PRECISIONS)),
    )


WIDE = Case((7, 64, 1, 67, 3), 33, batch_norm=True, precision="bfloat16")
NORMED = Case((7,) * 5, 7, batch_norm=True)


# The reference, bit for bit


@given(cases(), st.booleans(), st.integers(1, 4))
@example(WIDE, True, 2)
def test_logits_gradients_statistics_and_streams_are_the_references(case, within, segments):
    assert differences(case, within=within, segments=min(segments, case.depth)) == set()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("within", [True, False])
def test_so_they_are_for_every_number_of_segments(within, training, precision):
    case = Case((7,) * 6, 7, batch_norm=True, training=training, precision=precision)
    assert differences(case, within=within) == set()


@given(cases(), st.integers(1, 4))
def test_a_pass_with_segments_is_the_plain_one(case, segments):
    module, masks = case.module(), case.masks()
    logits = module(torch.tensor(case.x), masks)
    case.loss(logits).backward()
    plain = {"logits": logits.detach().numpy(), "gradients": gradients(module), "state": state(module)}
    result = found(case, min(segments, case.depth), within=False)
    assert digest({name: result[name] for name in plain}) == digest(plain)


def second_backward(within):
    """Whether a second backward pass gives the same gradients, and statistics move once a step."""
    module, fallen = NORMED.module(), set()
    generator = port_rng.generator_from(NORMED.stream)
    how = {"generator": generator} if within else {"masks": NORMED.masks()}
    for step in (1, 2):
        module.zero_grad()
        loss = NORMED.loss(module(torch.tensor(NORMED.x), segments=2, **how))
        loss.backward(retain_graph=True)
        once = gradients(module)
        module.zero_grad()
        loss.backward()
        fallen |= {"second backward pass"} if digest(gradients(module)) != digest(once) else set()
        fallen |= {"next step"} if module.norm0.num_batches_tracked != step else set()
    return fallen


@pytest.mark.parametrize("within", [True, False])
def test_statistics_move_once_a_step_however_often_the_backward_pass_runs(within):
    assert second_backward(within) == set()


def test_passes_interleaved_keep_apart():
    module, losses, each = NORMED.module(), [], []
    generator, alone = (port_rng.generator_from(NORMED.stream) for _ in range(2))
    for _ in range(2):
        losses.append(NORMED.loss(module(torch.tensor(NORMED.x), segments=3, generator=generator)))
    for loss in losses:
        module.zero_grad()
        loss.backward()
        each.append(gradients(module))
    for expected in each:
        module.zero_grad()
        masks = network.draw_masks(alone, NORMED.sizes[1:-1], len(NORMED.x), DROPOUT)
        NORMED.loss(module(torch.tensor(NORMED.x), masks)).backward()
        assert digest(gradients(module)) == digest(expected)


def test_the_input_may_ask_for_its_gradient():
    plain, ours = (torch.tensor(NORMED.x, requires_grad=True) for _ in range(2))
    module, masks = NORMED.module(), NORMED.masks()
    NORMED.loss(module(plain, masks)).backward()
    NORMED.loss(module(ours, masks, segments=2)).backward()
    assert digest(ours.grad.numpy()) == digest(plain.grad.numpy())


# Modes


def test_without_gradients_nothing_is_recorded_and_all_else_is_the_same():
    for within in (True, False):
        module, generator = NORMED.module(), port_rng.generator_from(NORMED.stream)
        how = {"generator": generator} if within else {"masks": NORMED.masks()}
        with torch.no_grad():
            logits = module(torch.tensor(NORMED.x), segments=2, **how)
        expected = NORMED.expected(2)
        assert logits.grad_fn is None
        assert digest(logits.numpy()) == digest(expected["logits"])
        assert digest(state(module)) == digest(expected["state"])
        assert not within or digest(port_rng.stream_state(generator)) == digest(expected["stream"])


def test_evaluation_takes_no_masks_draws_nothing_and_moves_no_statistics():
    case = Case((7,) * 5, 7, batch_norm=True, training=False)
    for how in ({}, {"masks": NORMED.masks()}, {"generator": port_rng.generator_from(case.stream)}):
        module = case.module()
        logits = module(torch.tensor(case.x), segments=2, **how)
        assert digest(logits.detach().numpy()) == digest(case.expected(2)["logits"])
        case.loss(logits).backward()
        assert digest(state(module)) == digest(case.model)
        assert digest(gradients(module)) == digest(case.expected(2)["gradients"])
        assert "generator" not in how or digest(port_rng.stream_state(how["generator"])) == digest(case.stream)


def test_the_backward_pass_repeats_the_mode_of_the_forward_pass_and_leaves_the_models_own():
    expected = NORMED.expected(2)
    for within in (True, False):
        module, generator = NORMED.module(), port_rng.generator_from(NORMED.stream)
        how = {"generator": generator} if within else {"masks": NORMED.masks()}
        loss = NORMED.loss(module(torch.tensor(NORMED.x), segments=2, **how))
        module.eval()
        module.norm1.train()
        loss.backward()
        assert digest(gradients(module)) == digest(expected["gradients"])
        assert digest(state(module)) == digest(expected["state"])
        modes = {name: part.training for name, part in module.named_modules()}
        assert modes == {name: name == "norm1" for name in modes}


def test_statistics_switched_off_by_the_caller_stay_off_and_as_they_are():
    module = NORMED.module()
    module.norm1.track_running_stats = False
    before = state(module)
    result = found(NORMED, 2, within=True, module=module)
    assert digest(result["gradients"]) == digest(NORMED.expected(2)["gradients"])
    assert [module.norm0.track_running_stats, module.norm1.track_running_stats] == [True, False]
    after = state(module)
    same = {name for name in before if digest(before[name]) == digest(after[name])}
    assert {name for name in before if name.endswith(("mean", "var", "tracked"))} & same == {
        f"norm1.{name}" for name in ("running_mean", "running_var", "num_batches_tracked")
    }


def test_masks_taken_out_of_the_callers_list_after_the_forward_pass_still_count():
    module, masks = NORMED.module(), NORMED.masks()
    loss = NORMED.loss(module(torch.tensor(NORMED.x), masks, segments=2))
    masks.clear()
    loss.backward()
    assert digest(gradients(module)) == digest(NORMED.expected(2)["gradients"])


def after_an_error():
    """Whether streams, flags and statistics are as after the forward pass, when its repetition fails."""
    module, generator = NORMED.module(), port_rng.generator_from(NORMED.stream)
    loss = NORMED.loss(module(torch.tensor(NORMED.x), segments=2, generator=generator))
    moved, after = state(module), port_rng.stream_state(generator)

    def fails(*_):
        raise OSError("no more")

    handle = module.layer1.register_forward_pre_hook(fails)
    with pytest.raises(OSError, match="no more"):
        loss.backward()
    handle.remove()
    flags = all(norm.track_running_stats for norm in module.modules() if isinstance(norm, network.BatchNorm))
    return {
        "stream": digest(port_rng.stream_state(generator)) == digest(after),
        "flags": flags and all(part.training for part in module.modules()),
        "state": digest(state(module)) == digest(moved),
    }


def test_an_error_in_the_repetition_leaves_streams_flags_and_statistics_as_they_were():
    assert all(after_an_error().values())


def test_what_is_put_back_only_after_success_is_told_apart(monkeypatch):
    class OnlyAfterSuccess(network._Repetition):
        def __exit__(self, *error):
            if error[0] is not OSError:
                super().__exit__(*error)

    monkeypatch.setattr(network, "_Repetition", OnlyAfterSuccess)
    assert differences(NORMED, within=True) == set()
    assert after_an_error() == {"stream": False, "flags": False, "state": True}


# Memory


class Saved:
    """Bytes of the storages that autograd saves while this is entered, parameters excluded; each once."""

    def __init__(self, module):
        self.module, self.storages = module, {}

    def pack(self, tensor):
        self.storages[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage()  # alive, so no address twice
        return tensor

    def __enter__(self):
        self.hooks = torch.autograd.graph.saved_tensors_hooks(self.pack, lambda tensor: tensor)
        self.hooks.__enter__()
        return self

    def __exit__(self, *error):
        self.hooks.__exit__(*error)

    def nbytes(self):
        own = {parameter.untyped_storage().data_ptr() for parameter in self.module.parameters()}
        return sum(storage.nbytes() for place, storage in self.storages.items() if place not in own)


def saved(case, segments, *, within):
    """Bytes saved by a forward pass with segments, or without (0)."""
    module = case.module()
    how = {"generator": port_rng.generator_from(case.stream)} if within else {"masks": case.masks()}
    with Saved(module) as saving:
        logits = module(torch.tensor(case.x), segments=segments, **how)
    assert logits.requires_grad
    return saving.nbytes()


def inputs_of_segments(case, segments):
    """Bytes of their inputs, 2 a number in 16 bits: the counted ones of the reference, whose bfloat16 takes 4."""
    size = 4 if case.precision is None else 2
    return sum(len(case.x) * case.sizes[cut.start] * size for cut in segments_of(case.depth, segments))


@given(cases(), st.booleans())
@example(WIDE, True)
@example(WIDE, False)
def test_autograd_saves_the_inputs_of_segments_alone(case, within):
    for segments in range(1, case.depth + 1):
        assert saved(case, segments, within=within) == inputs_of_segments(case, segments)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_plain_pass_saves_more_and_so_does_one_without_checkpoints(precision, monkeypatch):
    case = Case((64,) * 17, 64, batch_norm=True, precision=precision)
    some, plain = saved(case, 4, within=True), saved(case, 0, within=True)
    assert some == 4 * 64 * 64 * (4 if precision is None else 2)
    assert plain > 8 * some  # at least the input and the output of each of 16 layers
    monkeypatch.setattr(network, "checkpoint", lambda function, *arguments, **settings: function(*arguments))
    assert saved(case, 4, within=True) >= plain  # the factor of the units that stay is made for each segment


# PyTorch by itself


def of_its_own(generator, *, context=None):
    """A product with a mask drawn within a stock checkpoint: the mask of each of its passes, and the gradient."""
    x, drawn = torch.ones(64, requires_grad=True), []

    def dropped(x):
        drawn.append(torch.rand(64, generator=generator) < 0.5)
        return (x * drawn[-1]) * x  # whose backward pass needs the mask

    checkpoint(dropped, x, use_reentrant=False, **({} if context is None else {"context_fn": context})).sum().backward()
    forward, repeated = drawn
    return forward, repeated, x.grad


def test_a_stock_checkpoint_draws_anew_from_an_explicit_generator_and_moves_it_in_the_backward_pass():
    generator, once = (port_rng.generator_from(init_stream(0, "dropout")) for _ in range(2))
    forward, repeated, gradient = of_its_own(generator)
    torch.rand(64, generator=once)
    assert not torch.equal(forward, repeated)
    assert not torch.equal(gradient, 2.0 * forward)  # of a function that nothing has computed
    assert digest(port_rng.stream_state(generator)) != digest(port_rng.stream_state(once))


def test_a_stock_checkpoint_repeats_what_the_global_generator_gave():
    with torch.random.fork_rng(devices=[]):
        torch.set_rng_state(port_rng.generator_from(init_stream(0, "dropout")).get_state())
        forward, repeated, gradient = of_its_own(None)
    assert torch.equal(forward, repeated)
    assert torch.equal(gradient, 2.0 * forward)


def test_no_global_generator_is_moved():
    before = torch.get_rng_state()
    found(NORMED, 2, within=True)
    assert torch.equal(torch.get_rng_state(), before)


# Bad input


def test_a_pass_that_cannot_be_made_is_refused_before_anything_is_drawn():
    module, x, generator = NORMED.module(), torch.tensor(NORMED.x), port_rng.generator_from(NORMED.stream)
    for segments in (-1, 5, True, 2.0):
        with pytest.raises(ValueError, match="segments: expected an integer from 1 to 4, found"):
            module(x, segments=segments, generator=generator)
    with pytest.raises(ValueError, match="expected masks or a generator that draws them, found both"):
        module(x, NORMED.masks(), segments=2, generator=generator)
    with pytest.raises(ValueError, match="masks: expected 3, one for each hidden layer with dropout, found 0"):
        module(x, segments=2)
    assert digest(port_rng.stream_state(generator)) == digest(NORMED.stream)
    assert digest(state(module)) == digest(NORMED.model)


# Mutants


class Repetition(network._Repetition):
    """What surrounds a repetition, with something else done after one of its ends."""

    def __enter__(self):
        super().__enter__()
        self.entered()

    def __exit__(self, *error):
        inside = [(module, name, getattr(module, name)) for module, name, _ in self.flags]
        stream = None if self.generator is None else self.generator.get_state()
        super().__exit__(*error)
        self.left(inside, stream)

    def entered(self):
        pass

    def left(self, inside, stream):
        pass


def at_the_start(change):
    return "_Repetition", type("Faulty", (Repetition,), {"entered": change})


def at_the_end(change):
    return "_Repetition", type("Faulty", (Repetition,), {"left": change})


def _stream_as_it_is(self):
    if self.generator is not None:
        self.generator.set_state(self.now)


def _forget_the_start(self):
    self.start = None


def _statistics_on(self):
    for module, _ in self.modes:
        if isinstance(module, network.BatchNorm):
            module.track_running_stats = True


def _modes_of_the_backward_pass(self):
    for module, name, flag in self.flags:
        if name == "training":
            module.training = flag


def _keep_flags(self, inside, stream):
    for module, name, flag in inside:
        setattr(module, name, flag)


def _keep_stream(self, inside, stream):
    if self.generator is not None:
        self.generator.set_state(stream)


def late(name):
    """A checkpoint whose function looks an argument up when it runs, as a closure over a loop's variable does."""
    latest = {}

    def checkpointed(function, layers, x, **settings):
        latest.update(layers=layers, x=x)

        def run(layers, x):
            return function(**{"layers": layers, "x": x} | {name: latest[name]})

        return checkpoint(run, layers, x, **settings)

    return "checkpoint", checkpointed


CONTEXTS, DRAW_MASKS = network._contexts, network.draw_masks
FAULTS = {  # a name of the module and what stands in its place, and a law that falls
    "masks drawn anew": (at_the_start(_stream_as_it_is), "gradients"),
    "masks repeated once": (at_the_start(_forget_the_start), "second backward pass"),
    "stream not put forward again": (at_the_end(_keep_stream), "stream after backward"),
    "statistics moved twice": (at_the_start(_statistics_on), "state after backward"),
    "statistics moved by the backward pass": (("_contexts", lambda *given: CONTEXTS(*given)[::-1]), "state"),
    "flags not put back": (at_the_end(_keep_flags), "next step"),
    "mode of the backward pass": (at_the_start(_modes_of_the_backward_pass), "gradients in another mode"),
    "input of another segment": (late("x"), "gradients"),
    "layers of another segment": (late("layers"), "error"),
    "segments reversed": (("segments_of", lambda *sizes: segments_of(*sizes)[::-1]), "logits"),
    "masks of other layers": (
        ("draw_masks", lambda *given, **device: DRAW_MASKS(*given, **device)[::-1]),
        "logits",
    ),
    "precision dropped": (("STORAGE", {"bfloat16": torch.float32}), "logits"),
    "the caller's list of masks": (("tuple", lambda masks: masks), "error"),
}


def another_mode(within):
    """Whether the gradients are the same when the model is in another mode by the backward pass."""
    case = Case((7,) * 5, 7, batch_norm=True, dropout=0.0)
    module, how = case.module(), {"generator": port_rng.generator_from(case.stream)} if within else {}
    loss = case.loss(module(torch.tensor(case.x), segments=2, **how))
    module.eval()
    loss.backward()
    right = digest(gradients(module)) == digest(case.expected(2)["gradients"])
    return set() if right else {"gradients in another mode"}


def masks_taken_out(within):
    """Whether the gradients are the same when the caller's list of masks is empty by the backward pass."""
    module, masks = NORMED.module(), NORMED.masks()
    loss = NORMED.loss(module(torch.tensor(NORMED.x), masks, segments=2))
    masks.clear()
    loss.backward()
    return set() if digest(gradients(module)) == digest(NORMED.expected(2)["gradients"]) else {"gradients"}


def bits(within):
    """What differs from the reference; layers of one size, so that few faults are errors."""
    rounded = Case((7,) * 6, 7, precision="bfloat16")
    return set().union(
        *(differences(case, within=within, segments=n) for case in (NORMED, rounded) for n in range(1, case.depth + 1))
    )


def broken():
    """Names of the laws that fall."""
    fallen = set()
    for law, within in product((bits, second_backward, another_mode, masks_taken_out), (True, False)):
        try:
            fallen |= law(within)
        except (CheckpointError, IndexError):
            fallen.add("error")
    return fallen


def test_no_law_falls_without_a_fault():
    assert broken() == set()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_caught_by_a_law_that_it_breaks(name, monkeypatch):
    (place, faulty), law = FAULTS[name]
    monkeypatch.setattr(network, place, faulty, raising=False)
    assert law in broken()
