"""Stock PyTorch objects and the reference's tree; general checkpoints as the recipe has them; and what both refuse."""

import errno
import os
import warnings
from collections import OrderedDict
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is missing: its stock objects cannot be converted")

from numpy_ref import optim
from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
)
from numpy_ref.checkpoint.disk import Disk
from numpy_ref.checkpoint.durable import replace_file
from numpy_ref.precision import ScalerState
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.tree import flatten
from torch_port import interop
from torch_port.interop import (
    load_general,
    load_into_stock,
    save_general,
    snapshot_general,
    state_from_stock,
    tree_from_general,
    trees,
)

files, stock = interop.general, interop.objects
nn = torch.nn


# Stock objects and a loop, all numbers from explicit generators


class Nested(nn.Module):
    """Names with dots, a plain parameter, a parameter without axes, and a buffer that no state dict holds."""

    def __init__(self, inputs, hidden):
        super().__init__()
        self.gain = nn.Parameter(torch.empty(()))
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.ModuleDict({"norm": nn.BatchNorm1d(hidden)})["norm"])
        self.head = nn.Sequential(OrderedDict(act=nn.ReLU(), out=nn.Linear(hidden, 2, bias=False)))
        self.register_buffer("scratch", torch.empty(1), persistent=False)

    def forward(self, x):
        return self.gain * self.head(self.body(x))


def architecture(kind, inputs, hidden):
    if kind == "nested":
        return Nested(inputs, hidden)
    if kind == "linear":
        return nn.Sequential(nn.Linear(inputs, 2))
    if kind == "square":  # two weights of one shape
        return nn.Sequential(nn.Linear(inputs, inputs), nn.ReLU(), nn.Linear(inputs, inputs))
    norm = [nn.BatchNorm1d(hidden)] if kind == "norm" else []
    return nn.Sequential(nn.Linear(inputs, hidden), *norm, nn.ReLU(), nn.Linear(hidden, 2))


def build_model(kind, inputs, hidden, seed):
    """A module whose every number comes from the seed; torch's own initial values are never drawn."""
    with torch.device("meta"):
        model = architecture(kind, inputs, hidden)
    model.to_empty(device="cpu")
    rng = np.random.default_rng(seed)
    for name, tensor in model.state_dict().items():
        value = rng.standard_normal(tuple(tensor.shape)) / 2
        value = rng.integers(1, 9, tensor.shape) if name.endswith("tracked") else value
        tensor.copy_(torch.tensor(abs(value) + 0.5 if name.endswith("running_var") else value))
    return model


ADAM = {"amsgrad": [False, True], "betas": [(0.9, 0.999), (0.5, 0.8)], "weight_decay": [0.0, 0.1]}
SGD = {"momentum": [0.9, 0.0], "dampening": [0.0, 0.25], "weight_decay": [0.0, 0.1], "nesterov": [False]}
KINDS = {"Adam": ADAM, "AdamW": ADAM, "SGD": SGD}


@st.composite
def runs(draw, **fixed):
    """What `build` makes objects from: a model, an optimizer, perhaps a scheduler and a scaler."""

    def pick(name, values):
        return fixed[name] if name in fixed else draw(st.sampled_from(values), label=name)

    optimizer = pick("optimizer", list(KINDS))
    options = {name: draw(st.sampled_from(values), label=name) for name, values in KINDS[optimizer].items()}
    if options.get("momentum") and not options["dampening"]:
        options["nesterov"] = draw(st.booleans(), label="nesterov")
    return SimpleNamespace(
        model=pick("model", ["linear", "relu", "norm", "square", "nested"]),
        inputs=draw(st.sampled_from([1, 7])),
        hidden=draw(st.sampled_from([1, 7, 64])),
        optimizer=optimizer,
        options=options | {"lr": 0.1, "foreach": pick("foreach", [False, True])},
        scheduler=pick("scheduler", [None, {"step_size": 2, "gamma": 0.3}, {"step_size": 3, "gamma": 0.7}]),
        scaler=pick("scaler", [None, {"init_scale": 3.0, "growth_interval": 2}, {"init_scale": 2.0**127}]),
        groups=pick("groups", [1, 1, 2]),
        seed=draw(st.integers(0, 2**32 - 1), label="seed"),
    )


def run_of(**changes):
    """One run by hand."""
    run = {"model": "norm", "inputs": 7, "hidden": 7, "optimizer": "Adam", "scheduler": {"step_size": 2, "gamma": 0.3}}
    run |= {"scaler": {"init_scale": 8.0, "growth_interval": 2}, "groups": 1, "seed": 3, "options": {"lr": 0.1}}
    return SimpleNamespace(**run | changes)


MOMENTUM = {"optimizer": "SGD", "options": {"lr": 0.1, "momentum": 0.9, "dampening": 0.25}}


def build(run, seed=0):
    """Stock objects as at the first start."""
    model = build_model(run.model, run.inputs, run.hidden, [run.seed, seed])
    parameters = list(model.parameters())
    if run.groups == 2:  # the optimizer's order is not the model's
        half = len(parameters) // 2
        parameters = [{"params": parameters[half:]}, {"params": parameters[:half]}]
    optimizer = getattr(torch.optim, run.optimizer)(parameters, **run.options)
    scheduler = run.scheduler and torch.optim.lr_scheduler.StepLR(optimizer, **run.scheduler)
    scaler = run.scaler and torch.amp.GradScaler("cpu", **run.scaler)
    return SimpleNamespace(run=run, model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, t=0, step=0)


def train(live, n):
    """The usual loop; the schedule ticks with each completed update. Returns the same objects."""
    for _ in range(n):
        rng = np.random.default_rng([live.run.seed, 1, live.step])
        x, live.step, skipped = (
            torch.tensor(rng.standard_normal((5, live.run.inputs)).astype("f4")),
            live.step + 1,
            False,
        )
        live.optimizer.zero_grad()
        loss = (live.model(x) - 1).square().sum()
        if live.scaler is None:
            loss.backward()
            live.optimizer.step()
        else:
            before = live.scaler.get_scale()
            live.scaler.scale(loss).backward()
            live.scaler.step(live.optimizer)
            live.scaler.update()
            skipped = live.scaler.get_scale() < before
        live.t += not skipped
        if live.scheduler is not None and not skipped:
            live.scheduler.step()
    return live


def objects(live):
    return live.model, live.optimizer, live.scheduler, live.scaler


def tree_of(live):
    return state_from_stock(*objects(live), t=live.t if live.run.optimizer == "SGD" else None)


def facts(value):
    """Nested state of any kind as a tree that can be compared and digested."""
    if isinstance(value, dict):
        return {str(key): facts(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return np.array(value.detach().numpy())
    return value if isinstance(value, np.ndarray) or type(value) in (int, float) else repr(value)


def everything(live):
    """All that torch's own state dicts hold."""
    return {str(i): facts(thing.state_dict()) for i, thing in enumerate(objects(live)) if thing is not None}


def general(live, **extras):
    return snapshot_general(*objects(live), epoch=2, loss=0.25, **extras)


# The tree


def resumed(run, before, after, *, noise=0):
    """A run that never stopped, and one that other objects took over through its tree."""
    live = train(build(run), before)
    tree = tree_of(live)
    other = train(build(run, seed=1), noise)
    load_into_stock(tree, *objects(other))
    other.t, other.step = live.t, live.step
    return train(live, after), train(other, after)


def goes_on(run, *, before=3):
    live, other = resumed(run, before, 3)
    return compare(everything(live), everything(other)).holds


@pytest.mark.parametrize("foreach", [False, True])
@given(data=st.data(), before=st.integers(0, 5), after=st.integers(1, 4), noise=st.integers(0, 2))
def test_a_run_taken_over_through_its_tree_equals_one_that_never_stopped(foreach, data, before, after, noise):
    live, other = resumed(data.draw(runs(foreach=foreach)), before, after, noise=noise)
    verdict = compare(everything(live), everything(other))
    assert verdict.holds, verdict


@pytest.mark.parametrize("changes", [{}, MOMENTUM], ids=["Adam", "SGD"])
def test_a_run_of_long_vectors_is_taken_over_too(changes):
    assert goes_on(run_of(inputs=1003, model="linear", **changes))


@given(run=runs(), steps=st.integers(0, 5))
def test_a_tree_comes_back_from_the_objects_it_was_loaded_into(run, steps):
    live, other = train(build(run), steps), build(run, seed=1)
    tree = tree_of(live)
    load_into_stock(tree, *objects(other))
    verdict = compare(tree, state_from_stock(*objects(other), t=live.t))
    assert verdict.holds, verdict


def names_agree(run, *, steps=3):
    """Whether each moment under a parameter's name is that parameter's in torch, in the model's order."""
    live = train(build(run), steps)
    optimizer = tree_of(live)["optimizer"]
    kinds = {"m": "exp_avg", "v": "exp_avg_sq", "v_max": "max_exp_avg_sq", "momentum_buffer": "momentum_buffer"}
    parameters = dict(live.model.named_parameters())
    for kind in optimizer._fields[1:]:
        moments = getattr(optimizer, kind)
        if moments and list(moments) != list(parameters):
            return False
        for name, moment in moments.items():
            theirs = live.optimizer.state[parameters[name]].get(kinds[kind], torch.zeros_like(parameters[name]))
            if not compare(facts(theirs), moment).holds:
                return False
    return optimizer.t == live.t


@given(run=runs(), steps=st.integers(0, 5))
def test_moments_are_filed_under_the_names_of_their_parameters(run, steps):
    assert names_agree(run, steps=steps)


@given(run=runs(), steps=st.integers(0, 5))
def test_the_tree_holds_weights_count_rate_and_scale_as_torch_has_them(run, steps):
    live = train(build(run), steps)
    tree = tree_of(live)
    assert list(tree["model"]) == list(live.model.state_dict())
    assert compare(facts(live.model.state_dict()), tree["model"]).holds
    assert (tree["optimizer"].t, type(tree["optimizer"].t)) == (live.t, int)
    if run.scheduler:
        assert tree["schedule"] == (live.scheduler.last_epoch, live.optimizer.param_groups[0]["lr"])
    if run.scaler:
        assert tree["scaler"] == (live.scaler.get_scale(), live.scaler.state_dict()["_growth_tracker"])
    assert list(tree) == ["model", "optimizer"] + ["schedule"] * bool(run.scheduler) + ["scaler"] * bool(run.scaler)


@given(run=runs(groups=1))
def test_before_the_first_step_the_tree_is_the_references_initial_state(run):
    live = build(run)
    tree = state_from_stock(live.model, live.optimizer, t=0)
    params = facts(dict(live.model.named_parameters()))
    if run.optimizer == "SGD":
        expected = optim.init_sgd(params, momentum=run.options["momentum"])
    else:
        expected = optim.init_adam(params, amsgrad=run.options["amsgrad"])
    assert compare(expected, tree["optimizer"]).holds


def independent(run, *, steps=3):
    """Whether neither the tree nor the objects, those it is from and those it went into, change with another."""
    live, other = train(build(run), steps), build(run, seed=1)
    tree = tree_of(live)
    taken = digest(tree)
    train(live, 2)
    first = digest(tree) == taken
    load_into_stock(tree, *objects(other))
    loaded = digest(everything(other))
    for leaf in flatten(tree).values():
        if isinstance(leaf, np.ndarray):
            leaf += 1
    second = digest(everything(other)) == loaded
    changed = digest(tree)
    train(other, 2)
    return first and second and digest(tree) == changed


@given(run=runs(), steps=st.integers(0, 3))
def test_a_tree_and_the_objects_share_nothing_either_way(run, steps):
    assert independent(run, steps=steps)


def replaced_by(function):
    """The replacement is given the right function and what it is called with."""
    return lambda right: lambda *arguments, **named: function(right, *arguments, **named)


def then(change):
    """What sets a state dict is followed by a change of it."""

    def wrong(right, *arguments):
        right(*arguments)
        change(arguments[-2], arguments)

    return replaced_by(wrong)


def no_count(state, arguments):
    for entry in state["state"].values():
        entry["step"] = 0.0


def zero_buffers(state, arguments):
    optimizer, parameters, *_ = arguments
    if not optimizer.t:
        buffers = ({"momentum_buffer": torch.zeros_like(p)} for p in parameters.values())
        state["state"] = dict(enumerate(buffers))


SWAPPED = {"m": "exp_avg_sq", "v": "exp_avg", "v_max": "max_exp_avg_sq"}
FAULTS = {  # law, run, where, what, and what makes the wrong one of the right one
    "the load keeps the tree's arrays": (independent, {}, trees, "tensor_of", lambda right: torch.from_numpy),
    "the tree keeps the live arrays": (
        independent,
        {},
        trees,
        "arrays_of",
        lambda right: lambda path, tensors, faults: {name: x.detach().numpy() for name, x in tensors.items()},
    ),
    "t lost at the load": (goes_on, {}, stock, "set_optimizer", then(no_count)),
    "t lost in the tree": (names_agree, {}, trees, "_count", lambda right: lambda step: 0),
    "t counted from 1": (names_agree, {}, trees, "_count", lambda right: lambda step: right(step) + 1),
    "moments swapped": (names_agree, {}, trees, "ADAM_MOMENTS", lambda right: SWAPPED),
    "moments swapped at the load": (
        goes_on,
        {},
        stock,
        "set_optimizer",
        replaced_by(lambda right, optimizer, *x: right(optimizer._replace(m=optimizer.v), *x)),
    ),
    "parameters in the model's order": (
        names_agree,
        {"groups": 2, "model": "square"},
        stock,
        "_names_of",
        lambda right: lambda where, model, optimizer: [name for name, _ in model.named_parameters()],
    ),
    "rate not set": (
        goes_on,
        {},
        stock,
        "set_schedule",
        replaced_by(lambda right, schedule, groups, *x: right(schedule, [dict(group) for group in groups], *x)),
    ),
    "tick lost": (goes_on, {}, stock, "set_schedule", then(lambda state, _: state.update(last_epoch=0))),
    "scale lost": (goes_on, {}, stock, "set_scaler", then(lambda state, _: state.update(scale=8.0))),
    "tracker lost": (goes_on, {}, stock, "set_scaler", then(lambda state, _: state.update(_growth_tracker=0))),
    "first gradient damped": (
        lambda run: goes_on(run, before=0),
        MOMENTUM,
        stock,
        "set_optimizer",
        then(zero_buffers),
    ),
}


@pytest.mark.parametrize(("law", "changes", "where", "name", "wrong"), FAULTS.values(), ids=FAULTS)
def test_a_fault_is_caught_by_the_law_it_breaks(monkeypatch, law, changes, where, name, wrong):
    assert law(run_of(**changes))
    monkeypatch.setattr(where, name, wrong(getattr(where, name)))
    assert not law(run_of(**changes))


def test_arrays_of_any_layout_and_read_only_ones_are_loaded():
    live, other = train(build(run_of()), 2), build(run_of(), seed=1)
    tree = tree_of(live)
    awkward = {
        name: np.asfortranarray(x) if x.ndim > 1 else np.repeat(x, 2)[::2] if x.ndim else x
        for name, x in tree["model"].items()
    }
    for leaf in flatten(awkward).values():
        leaf.flags.writeable = False
    load_into_stock(tree | {"model": awkward}, *objects(other))
    assert compare(tree, tree_of(other)).holds


# Special states


def tied():
    """A module with one weight under two names, and its optimizer."""
    model = build_model("square", 3, 0, 5)
    model[2].weight = model[0].weight
    return model, torch.optim.Adam(model.parameters(), lr=0.1)


def test_a_tied_parameter_has_both_names_in_the_model_and_one_in_the_optimizer():
    model, optimizer = tied()
    model(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    tree = state_from_stock(model, optimizer)
    assert list(tree["model"]) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert list(tree["optimizer"].m) == ["0.weight", "0.bias", "2.bias"]
    other, others = tied()
    load_into_stock(tree, other, others)
    assert compare(tree, state_from_stock(other, others)).holds
    assert other[2].weight is other[0].weight
    tree["model"]["2.weight"] += 1
    assert refused("load_into_stock", load_into_stock, tree, other, others)[0] == ["model/2.weight"]


def test_frozen_parameters_that_the_optimizer_does_not_have_get_no_moments():
    model = build_model("relu", 3, 4, 6)
    tree = state_from_stock(model, torch.optim.Adam(model[2].parameters()))
    assert list(tree["optimizer"].m) == ["2.weight", "2.bias"]


@pytest.mark.parametrize("foreach", [False, True])
def test_a_count_that_float32_cannot_hold_is_loaded_in_float64_and_goes_on(foreach):
    model, optimizer = tied()
    optimizer.param_groups[0]["foreach"] = foreach
    tree = state_from_stock(model, optimizer)
    tree["optimizer"] = tree["optimizer"]._replace(t=2**24 + 1)
    load_into_stock(tree, model, optimizer)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    assert state_from_stock(model, optimizer)["optimizer"].t == 2**24 + 2


def test_a_count_is_loaded_in_the_type_that_torch_counts_in():
    model, optimizer = tied()
    tree = state_from_stock(model, optimizer)
    load_into_stock(tree | {"optimizer": tree["optimizer"]._replace(t=3)}, model, optimizer)
    steps = [entry["step"] for entry in optimizer.state_dict()["state"].values()]
    assert {(step.dtype, step.shape) for step in steps} == {(torch.float32, ())}
    assert len({step.data_ptr() for step in steps}) == 3


def test_groups_of_different_rates_are_fine_where_no_scheduler_makes_the_rate_state():
    model = build_model("linear", 3, 0, 7)
    optimizer = torch.optim.Adam([{"params": [model[0].bias], "lr": 0.5}, {"params": [model[0].weight]}], lr=0.1)
    tree = state_from_stock(model, optimizer)
    load_into_stock(tree, model, optimizer)
    assert [group["lr"] for group in optimizer.param_groups] == [0.5, 0.1]


def test_a_scale_before_its_first_use_is_read_as_float32_will_have_it():
    scaler = torch.amp.GradScaler("cpu", init_scale=1e5 + 0.1)
    tree = state_from_stock(nn.Identity(), scaler=scaler)
    assert tree["scaler"] == ScalerState(100000.1015625, 0)
    load_into_stock(tree, nn.Identity(), scaler=scaler)
    assert scaler.scale(torch.ones(())) == scaler.get_scale() == 100000.1015625


# What is refused


def with_group(**changes):
    """A live Adam whose only group is changed."""
    live = train(build(run_of()), 2)
    live.optimizer.param_groups[0].update(changes)
    return live


def with_entry(changes, **run):
    """A live optimizer whose state of the first parameter is changed."""
    live = train(build(run_of(**run)), 2)
    live.optimizer.state[next(live.model.parameters())].update(changes)
    return live


def without_entry(**run):
    live = train(build(run_of(**run)), 2)
    del live.optimizer.state[live.model[0].weight]
    return live


def replaced(**changes):
    return SimpleNamespace(**vars(train(build(run_of()), 2)) | changes)


def of_model(change):
    live = SimpleNamespace(model=build_model("linear", 3, 0, 1), optimizer=None, scheduler=None, scaler=None)
    change(live.model)
    return live


class Subclass(torch.optim.Adam):
    pass


class WithExtraState(nn.Linear):
    def get_extra_state(self):
        return {"calls": 3}

    def set_extra_state(self, state):
        raise AssertionError


def other_optimizer(kind):
    live = train(build(run_of(scheduler=None)), 1)
    live.optimizer = kind(live.model.parameters())
    return live


def foreign():
    live = train(build(run_of()), 2)
    live.optimizer.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    return live


def two_rates():
    live = train(build(run_of(groups=2)), 2)
    live.optimizer.param_groups[1]["lr"] = 0.5
    return live


def mixed_amsgrad():
    live = build(run_of(groups=2))
    live.optimizer.param_groups[1]["amsgrad"] = True
    return live


def within_a_step():
    live = train(build(run_of()), 2)
    live.model(torch.ones(2, 7)).sum().backward()
    live.scaler.unscale_(live.optimizer)
    return live


def other_scheduler(kind, optimizer=None):
    live = train(build(run_of()), 2)
    live.scheduler = kind(optimizer or live.optimizer)
    return live


def exponential(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)


def step_lr(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 2)


def stranger():
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)


def lazy_linear():
    with warnings.catch_warnings(action="ignore"):  # torch calls its lazy modules new
        return nn.LazyLinear(2)


SGD_RUN = {**MOMENTUM, "scheduler": None, "scaler": None}
DISABLED = torch.amp.GradScaler("cpu", enabled=False)
UNREADABLE = {  # what is made, and the leaves that are named
    "no module": (lambda: replaced(model=3), "model"),
    "another optimizer": (lambda: other_optimizer(torch.optim.RMSprop), "optimizer"),
    "a subclass": (lambda: other_optimizer(Subclass), "optimizer"),
    "another scheduler": (lambda: other_scheduler(exponential), "schedule"),
    "a scheduler elsewhere": (lambda: other_scheduler(step_lr, stranger()), "schedule"),
    "a scheduler alone": (lambda: replaced(optimizer=None), "schedule"),
    "no scaler": (lambda: replaced(scaler=3), "scaler"),
    "a disabled scaler": (lambda: replaced(scaler=DISABLED), "scaler"),
    "within a step": (within_a_step, "scaler"),
    "a foreign parameter": (foreign, "optimizer"),
    "state of no parameter": (lambda: with_state_of_none(), "optimizer"),
    "updates that differ": (without_entry, "optimizer/t"),
    "a buffer missing": (lambda: without_entry(**SGD_RUN), "optimizer/momentum_buffer"),
    "a fraction of a step": (lambda: with_entry({"step": torch.tensor(1.5)}), "optimizer/t"),
    "a negative step": (lambda: with_entry({"step": torch.tensor(-1.0)}), "optimizer/t"),
    "no step": (lambda: with_entry({"step": "2"}), "optimizer/t"),
    "a step that stands": (lambda: with_entry({"step": torch.tensor(2.0**24)}), "optimizer/t"),
    "unknown state": (lambda: with_entry({"drift": 3}), "optimizer"),
    "amsgrad switched on": (lambda: with_group(amsgrad=True), "optimizer/t optimizer"),
    "amsgrad in one group": (mixed_amsgrad, "optimizer"),
    "buffers, no momentum": (lambda: momentum_off(), "optimizer"),
    "a moment of another type": (lambda: with_entry({"exp_avg": torch.zeros(7, 7).double()}), "optimizer/m/0.weight"),
    "two rates": (two_rates, "schedule/rate"),
    "a rate that is a tensor": (lambda: with_group(lr=torch.tensor(0.1)), "schedule/rate"),
    "bfloat16": (lambda: of_model(lambda m: m.bfloat16()), "model/0.bias model/0.weight"),
    "a sparse buffer": (lambda: of_model(lambda m: m.register_buffer("s", torch.eye(2).to_sparse())), "model/s"),
    "a model without numbers": (lambda: of_model(lambda m: m.to("meta")), "model/0.bias model/0.weight"),
    "a lazy parameter": (lambda: of_model(lambda m: m.append(lazy_linear())), "model/1.bias model/1.weight"),
    "extra state": (lambda: of_model(lambda m: m.append(with_extra_state())), "model/1._extra_state"),
}


def with_extra_state():
    return WithExtraState(2, 2, device="meta").to_empty(device="cpu")


def with_state_of_none():
    live = train(build(run_of()), 2)
    live.optimizer.state["epoch"] = {"step": 3}
    return live


def momentum_off():
    live = train(build(run_of(**SGD_RUN)), 2)
    live.optimizer.param_groups[0]["momentum"] = 0.0
    return live


def refused(where, function, *arguments, **named):
    """The leaves that a refusal names, and what it says of them."""
    with pytest.raises(ValueError, match="nothing was done; mend each of these:") as caught:
        function(*arguments, **named)
    first, *lines = str(caught.value).splitlines()
    assert first.startswith(f"{where}: ")
    return [line.strip().partition(": ")[0] for line in lines], str(caught.value)


@pytest.mark.parametrize(("live", "leaves"), UNREADABLE.values(), ids=UNREADABLE)
def test_state_that_the_tree_has_no_place_for_is_refused_by_name(live, leaves):
    live = live()
    named, _ = refused("state_from_stock", state_from_stock, *objects(live), t=getattr(live, "t", None))
    assert list(dict.fromkeys(named)) == leaves.split()


@pytest.mark.parametrize(
    ("run", "steps", "t", "found"),
    [
        (SGD_RUN, 2, None, "give t"),
        (SGD_RUN, 2, 0, "give t"),
        (SGD_RUN, 0, 2, "found 2"),
        (SGD_RUN | {"options": {"lr": 0.1}}, 0, None, "give t"),
        ({}, 2, 3, "found 2"),
        ({}, 2, 2.0, "found 2.0"),
        ({}, 2, True, "found True"),
    ],
)
def test_a_count_is_not_guessed_and_must_agree_with_what_is_known(run, steps, t, found):
    live = train(build(run_of(**run)), steps)
    with pytest.raises(ValueError, match=rf"\bt: .*{found}"):
        state_from_stock(*objects(live), t=t)


def test_a_count_needs_an_optimizer():
    assert refused("state_from_stock", state_from_stock, nn.Identity(), t=3)[0] == ["t"]


def changed(part, **changes):
    return lambda tree: tree | {part: tree[part]._replace(**changes)}


def of_moments(kind, change):
    return lambda tree: changed("optimizer", **{kind: change(dict(getattr(tree["optimizer"], kind)))})(tree)


def without(name):
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


def of_weights(change):
    return lambda tree: tree | {"model": change(tree["model"])}


WEIGHT = "model/0.weight"
UNLOADABLE = {  # what is changed, and the leaf that is named
    "a part missing": (without("scaler"), "scaler"),
    "a part too many": (lambda t: t | {"best": 3}, "best"),
    "a weight missing": (of_weights(without("0.weight")), WEIGHT),
    "a weight too many": (of_weights(lambda m: m | {"9.weight": m["0.weight"]}), "model/9.weight"),
    "a weight of another shape": (of_weights(lambda m: m | {"0.weight": m["0.weight"][:2]}), WEIGHT),
    "a weight of another type": (of_weights(lambda m: m | {"0.weight": m["0.weight"].astype("f8")}), WEIGHT),
    "a weight of another byte order": (of_weights(lambda m: m | {"0.weight": m["0.weight"].astype(">f4")}), WEIGHT),
    "a weight that is a list": (of_weights(lambda m: m | {"0.weight": [0.0]}), WEIGHT),
    "no weights": (lambda t: t | {"model": None}, "model"),
    "another optimizer's state": (lambda t: t | {"optimizer": optim.SGDState(0, {})}, "optimizer"),
    "a plain tuple": (lambda t: t | {"optimizer": tuple(t["optimizer"])}, "optimizer"),
    "a moment missing": (of_moments("v", without("0.bias")), "optimizer/v/0.bias"),
    "a moment too many": (of_moments("m", lambda m: m | {"z": m["0.bias"]}), "optimizer/m/z"),
    "moments without amsgrad": (of_moments("v_max", lambda m: m | {"z": np.zeros(1)}), "optimizer/v_max/z"),
    "a negative count": (changed("optimizer", t=-1), "optimizer/t"),
    "a count that is a float": (changed("optimizer", t=2.0), "optimizer/t"),
    "a count that is a boolean": (changed("optimizer", t=True), "optimizer/t"),
    "no moments yet": (changed("optimizer", t=0), "optimizer/t"),
    "no schedule": (lambda t: t | {"schedule": 3}, "schedule"),
    "a negative tick": (changed("schedule", tick=-1), "schedule/tick"),
    "no rate": (changed("schedule", rate=float("nan")), "schedule/rate"),
    "no scale": (lambda t: t | {"scaler": 3.0}, "scaler"),
    "a scale beyond float32": (changed("scaler", scale=0.1), "scaler/scale"),
    "an infinite scale": (changed("scaler", scale=float("inf")), "scaler/scale"),
    "a negative tracker": (changed("scaler", growth_tracker=-1), "scaler/growth_tracker"),
}


def left_alone(tree, other):
    """The leaves that a refusal to load names; nothing has changed."""
    before = digest(everything(other))
    leaves, _ = refused("load_into_stock", load_into_stock, tree, *objects(other))
    assert digest(everything(other)) == before
    return leaves


@pytest.mark.parametrize(("change", "leaf"), UNLOADABLE.values(), ids=UNLOADABLE)
def test_a_tree_that_does_not_fit_is_refused_by_name_and_changes_nothing(change, leaf):
    tree, other = tree_of(train(build(run_of()), 3)), train(build(run_of(), seed=1), 1)
    assert left_alone(change(tree), other) == [leaf]


def test_all_that_does_not_fit_is_named_at_once():
    tree, other = tree_of(train(build(run_of()), 3)), build(run_of(), seed=1)
    for name in ("a weight missing", "a moment missing", "a negative tick", "an infinite scale"):
        tree = UNLOADABLE[name][0](tree)
    assert left_alone(tree, other) == [WEIGHT, "optimizer/v/0.bias", "scaler/scale", "schedule/tick"]
    assert left_alone(optim.ScheduleState(0, 0.1), other) == ["tree"]


@pytest.mark.parametrize(
    ("prepare", "change", "leaf"),
    [
        (lambda: with_group(amsgrad=True), lambda t: t, "optimizer/v_max/0.bias"),
        (lambda: replaced(scaler=DISABLED), lambda t: t, "scaler"),
        (lambda: with_group(lr=torch.tensor(0.1)), lambda t: t, "schedule/rate"),
        (lambda: with_group(fused=True), changed("optimizer", t=2**24), "optimizer/t"),
        (lambda: train(build(run_of(**MOMENTUM)), 1), lambda t: t, "optimizer"),
        (mixed_amsgrad, lambda t: t, "optimizer"),
        (within_a_step, lambda t: t, "scaler"),
    ],
)
def test_objects_that_cannot_take_the_tree_are_left_as_they_are(prepare, change, leaf):
    assert left_alone(change(tree_of(train(build(run_of()), 3))), prepare())[0] == leaf


def test_buffers_before_the_first_update_are_a_contradiction():
    live = train(build(run_of(**SGD_RUN)), 2)
    assert left_alone(changed("optimizer", t=0)(tree_of(live)), live) == ["optimizer/t"]


# General checkpoints


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("general")


def recipe(live):
    """The dict as people write it."""
    checkpoint = {"epoch": 2, "model_state_dict": live.model.state_dict(), "loss": torch.tensor(0.25)}
    checkpoint["optimizer_state_dict"] = live.optimizer.state_dict()
    checkpoint |= {"scheduler_state_dict": live.scheduler.state_dict()} if live.scheduler else {}
    return checkpoint | ({"scaler_state_dict": live.scaler.state_dict()} if live.scaler else {})


def take_over(live, checkpoint):
    """What the recipe does with a checkpoint: other objects go on from it."""
    other = build(live.run, seed=1)
    for name, thing in zip(("model", "optimizer", "scheduler", "scaler"), objects(other), strict=True):
        if thing is not None:
            thing.load_state_dict(checkpoint[f"{name}_state_dict"])
    other.step = live.step
    return other


@given(run=runs(), steps=st.integers(0, 3))
def test_a_file_of_ours_is_read_as_the_recipe_does_and_the_run_goes_on(folder, run, steps):
    live = train(build(run), steps)
    save_general(folder / "ours.tar", general(live))
    other = take_over(live, torch.load(folder / "ours.tar"))
    assert compare(everything(train(live, 2)), everything(train(other, 2))).holds


@given(run=runs(), steps=st.integers(0, 3))
def test_a_file_written_as_the_recipe_does_is_read_and_the_run_goes_on(folder, run, steps):
    live = train(build(run), steps)
    torch.save(recipe(live), folder / "theirs.tar")
    checkpoint = load_general(folder / "theirs.tar")
    assert list(checkpoint) == list(recipe(live))
    other = take_over(live, checkpoint)
    assert compare(everything(train(live, 2)), everything(train(other, 2))).holds


@given(run=runs(), steps=st.integers(0, 3))
def test_the_tree_of_a_file_is_the_tree_of_the_objects_it_was_saved_from(folder, run, steps):
    live = train(build(run), steps)
    save_general(folder / "tree.tar", general(live))
    names = {id(p): name for name, p in live.model.named_parameters()}
    order = [names[id(p)] for group in live.optimizer.param_groups for p in group["params"]]
    given = {} if run.groups == 1 else {"parameter_names": order}
    tree = tree_from_general(load_general(folder / "tree.tar"), t=live.t, **given)
    verdict = compare(tree_of(live), tree)
    assert verdict.holds, verdict


def test_the_optimizers_own_names_are_taken_where_the_file_has_them(tmp_path):
    model = build_model("square", 3, 0, 8)
    optimizer = torch.optim.Adam(list(model.named_parameters())[::-1])
    for i, p in enumerate(model.parameters()):
        p.grad = torch.full_like(p, i + 1)
    optimizer.step()
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, epoch=0, loss=0.0))
    tree = tree_from_general(load_general(tmp_path / "run.tar"))
    assert compare(state_from_stock(model, optimizer), tree).holds


def test_a_tied_parameter_stays_tied_in_a_file_and_is_named_once(tmp_path):
    model, optimizer = tied()
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, epoch=0, loss=0.0))
    checkpoint = load_general(tmp_path / "run.tar")
    weights = [checkpoint["model_state_dict"][name] for name in ("0.weight", "2.weight")]
    assert weights[0].data_ptr() == weights[1].data_ptr()
    assert compare(state_from_stock(model, optimizer), tree_from_general(checkpoint)).holds


def no_tree(checkpoint, **named):
    return refused("tree_from_general", tree_from_general, checkpoint, **named)


def over(model, kind=torch.optim.Adam):
    """A general checkpoint of an optimizer over all of a model."""
    return snapshot_general(model, kind(model.parameters()), epoch=0, loss=0.0)


def test_names_that_cannot_be_known_are_asked_for():
    model = build_model("relu", 3, 4, 6)
    some = snapshot_general(model, torch.optim.Adam(model[2].parameters()), epoch=0, loss=0.0)
    assert "give parameter_names" in no_tree(some)[1]
    assert list(tree_from_general(some, parameter_names=["2.weight", "2.bias"])["optimizer"].m) == [
        "2.weight",
        "2.bias",
    ]
    assert "9.bias" in no_tree(some, parameter_names=["2.weight", "9.bias"])[1]
    assert no_tree(some, parameter_names=["2.weight", "2.weight"])[0] == ["optimizer"]
    model.register_buffer("scale", torch.ones(2))  # none of batch normalisation's
    assert "give parameter_names" in no_tree(over(model))[1]


def test_names_in_a_wrong_order_are_refused_where_shapes_tell():
    live = train(build(run_of()), 2)
    names = [name for name, _ in live.model.named_parameters()]
    leaves, _ = no_tree(general(live), parameter_names=[names[1], names[0], *names[2:]])
    assert "optimizer/m/0.bias" in leaves


@pytest.mark.parametrize("kind", [torch.optim.RMSprop, torch.optim.NAdam, torch.optim.Adagrad, torch.optim.Adadelta])
def test_a_file_of_another_optimizer_has_no_tree(kind):
    assert no_tree(over(build_model("linear", 3, 0, 9), kind))[0] == ["optimizer"]


@pytest.mark.parametrize(
    ("item", "value", "leaf"),
    [
        ("optimizer_state_dict", {}, "optimizer_state_dict"),
        ("scheduler_state_dict", {"last_epoch": 3}, "schedule"),
        ("scaler_state_dict", {}, "scaler"),
        ("scaler_state_dict", None, "scaler_state_dict"),
        ("scaler_state_dict", {"scale": 1e39, "_growth_tracker": 0}, "scaler/scale"),
    ],
)
def test_a_part_of_a_file_that_is_none_of_stock_has_no_tree(item, value, leaf):
    assert no_tree(general(train(build(run_of()), 2)) | {item: value})[0] == [leaf]


def test_old_files_write_None_for_no_buffer_and_plain_numbers_for_steps():
    live = build(run_of(**SGD_RUN))
    checkpoint = general(live)
    numbers = checkpoint["optimizer_state_dict"]["param_groups"][0]["params"]
    checkpoint["optimizer_state_dict"]["state"] = {n: {"momentum_buffer": None} for n in numbers}
    assert compare(tree_of(live), tree_from_general(checkpoint)).holds
    live = train(build(run_of()), 2)
    checkpoint = general(live)
    for entry in checkpoint["optimizer_state_dict"]["state"].values():
        entry["step"] = 2
    assert compare(tree_of(live), tree_from_general(checkpoint)).holds


def stays(run):
    """Whether a snapshot keeps its values while the run goes on."""
    live = train(build(run), 3)
    checkpoint = snapshot_general(*objects(live), epoch=2, loss=torch.zeros(()))
    before = digest(facts(checkpoint))
    train(live, 2)
    return digest(facts(checkpoint)) == before


@given(run=runs())
def test_a_snapshot_does_not_change_when_the_run_goes_on(run):
    assert stays(run)


def cut_out(path):
    """Whether a slice of a large tensor is saved alone, and keeps its values."""
    large = torch.arange(250_000.0)
    slices = {"columns": large.view(500, 500)[:, 3:5], "head": large[:10]}
    save_general(path, general(build(run_of(model="linear"))) | slices)
    checkpoint = load_general(path)
    return path.stat().st_size < 30_000 and all(torch.equal(checkpoint[name], x) for name, x in slices.items())


def test_a_slice_is_saved_without_the_rest_of_its_storage(tmp_path):
    assert cut_out(tmp_path / "run.tar")


def keeps_ties(path):
    model, optimizer = tied()
    save_general(path, snapshot_general(model, optimizer, epoch=0, loss=0.0))
    weights = load_general(path)["model_state_dict"]
    return weights["0.weight"].data_ptr() == weights["2.weight"].data_ptr() != weights["0.bias"].data_ptr()


def finds_a_flip(path):
    """Whether a flipped bit within an array is found, which torch.load itself does not."""
    live = build(run_of(model="linear"))
    save_general(path, general(live))
    raw, weight = bytearray(path.read_bytes()), live.model[0].weight.detach().numpy().tobytes()
    raw[raw.index(weight)] ^= 1
    path.write_bytes(raw)
    assert not torch.equal(torch.load(path)["model_state_dict"]["0.weight"], live.model[0].weight)
    try:
        load_general(path)
    except CorruptCheckpoint:
        return True
    return False


FILE_FAULTS = {
    "a slice takes its storage along": (cut_out, "storable", lambda right: lambda where, items, copy: dict(items)),
    "ties are cut": (keeps_ties, "region_of", lambda right: lambda tensor: object()),
    "records are not checked": (finds_a_flip, "damaged_record", lambda right: lambda file: None),
    "a snapshot keeps live tensors": (
        lambda path: stays(run_of()),
        "storable",
        replaced_by(lambda right, where, items, copy: right(where, items, copy=False)),
    ),
}


@pytest.mark.parametrize(("law", "name", "wrong"), FILE_FAULTS.values(), ids=FILE_FAULTS)
def test_a_fault_in_the_files_is_caught_by_the_law_it_breaks(tmp_path, monkeypatch, law, name, wrong):
    assert law(tmp_path / "run.tar")
    monkeypatch.setattr(files, name, wrong(getattr(files, name)))
    assert not law(tmp_path / "run.tar")


def test_extras_come_back_and_names_of_the_recipe_are_refused(tmp_path):
    extras = {"rng_state": torch.get_rng_state(), "history": [(0, 0.5), (1, float("inf"))], "note": None}
    save_general(tmp_path / "run.tar", general(build(run_of()), **extras))
    checkpoint = load_general(tmp_path / "run.tar")
    assert compare(facts(extras), facts({name: checkpoint[name] for name in extras})).holds
    with pytest.raises(ValueError, match="scaler_state_dict: a name of the recipe's; choose another"):
        general(build(run_of()), scaler_state_dict={})


def test_versions_of_modules_and_other_schedulers_come_back(tmp_path):
    model = build_model("norm", 3, 4, 5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [3, 3, 5])
    save_general(tmp_path / "run.tar", snapshot_general(model, optimizer, scheduler, epoch=0, loss=0.0))
    checkpoint = load_general(tmp_path / "run.tar")
    assert checkpoint["model_state_dict"]._metadata == model.state_dict()._metadata
    assert checkpoint["scheduler_state_dict"] == scheduler.state_dict()


def test_equal_checkpoints_have_equal_bytes_under_any_name(tmp_path):
    checkpoint = general(train(build(run_of()), 2))
    for name in ("a.tar", "b.tar"):
        save_general(tmp_path / name, checkpoint)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


class Thing:
    pass


def test_what_could_not_be_loaded_is_refused_at_save_by_name(tmp_path):
    path, whole = tmp_path / "run.tar", general(build(run_of()))
    wrong = {
        "extra": {"a": [np.zeros(2), Thing()], (1,): 2},
        "loss": np.float64(0.5),
        "sparse": torch.eye(2).to_sparse(),
    }
    leaves, _ = refused(path, save_general, path, whole | wrong)
    assert leaves == ["extra/a/0", "extra/a/1", "extra", "loss", "sparse"]
    assert refused(path, save_general, path, without("loss")(whole))[0] == ["loss"]
    assert os.listdir(tmp_path) == []


class FullDisk(Disk):
    """A disk that has room for a number of writes."""

    def __init__(self, room):
        self.room = room

    def write(self, file, data):
        self.room -= 1
        if self.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(file, data)


@pytest.mark.parametrize("room", [0, 1, 2, 5, 20])
def test_a_full_disk_leaves_the_old_file_and_says_what_is_wrong(tmp_path, monkeypatch, room):
    path = tmp_path / "run.tar"
    path.write_bytes(b"old")
    monkeypatch.setattr(files, "replace_file", lambda path: replace_file(path, disk=FullDisk(room)))
    with pytest.raises(OSError, match="No space left on device") as caught:
        save_general(path, general(build(run_of())))
    assert caught.value.errno == errno.ENOSPC
    assert "was not replaced" in caught.value.__notes__[0]
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["run.tar"]


# Damaged files


@pytest.fixture(scope="module")
def small(folder):
    """The bytes of a small file, and what is in it."""
    checkpoint = general(train(build(run_of(model="linear", inputs=1)), 1))
    save_general(folder / "small.tar", checkpoint)
    return (folder / "small.tar").read_bytes(), digest(facts(checkpoint))


@given(data=st.data(), bit=st.integers(0, 7))
def test_a_flipped_bit_is_refused_or_changes_nothing(folder, small, data, bit):
    raw, content = bytearray(small[0]), small[1]
    for place in data.draw(st.lists(st.integers(0, len(raw) - 1), min_size=8, max_size=8), label="places"):
        path = folder / "flipped.tar"
        path.write_bytes(raw[:place] + bytes([raw[place] ^ (1 << bit)]) + raw[place + 1 :])
        with suppress(CheckpointError):
            assert digest(facts(load_general(path))) == content


@given(data=st.data())
def test_a_file_cut_short_is_refused(folder, small, data):
    path = folder / "short.tar"
    path.write_bytes(small[0][: data.draw(st.integers(0, len(small[0]) - 1), label="length")])
    with pytest.raises(CorruptCheckpoint, match=r"short\.tar: expected "):
        load_general(path)


@given(raw=st.binary(max_size=200))
def test_a_file_of_anything_else_is_refused(folder, raw):
    path = folder / "other.tar"
    path.write_bytes(raw)
    with pytest.raises(CorruptCheckpoint, match=r"other\.tar: expected "):
        load_general(path)


def test_a_file_that_holds_objects_is_refused_and_runs_nothing(tmp_path):
    class Trap:
        def __reduce__(self):
            return os.mkdir, (os.fspath(tmp_path / "sprung"),)

    path = tmp_path / "run.tar"
    torch.save(recipe(build(run_of())) | {"extra": Trap()}, path)
    with pytest.raises(
        IncompatibleCheckpoint, match=r"expected tensors and plain values, found objects of posix\.mkdir"
    ):
        load_general(path)
    torch.save(recipe(build(run_of())) | {"extra": np.zeros(3)}, path)
    with pytest.raises(IncompatibleCheckpoint, match=r"found objects of .*numpy"):
        load_general(path)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("content", "kind", "found"),
    [
        (lambda c: [1, 2], CorruptCheckpoint, "a list"),
        (lambda c: torch.zeros(3), CorruptCheckpoint, "a Tensor"),
        (without("loss"), IncompleteCheckpoint, "loss"),
        (lambda c: c["model_state_dict"], IncompleteCheckpoint, "epoch, model_state_dict"),
        (lambda c: {}, IncompleteCheckpoint, "nothing"),
        (lambda c: c | {"model_state_dict": 3}, CorruptCheckpoint, "model_state_dict"),
        (lambda c: c | {"scaler_state_dict": []}, CorruptCheckpoint, "scaler_state_dict"),
    ],
)
def test_a_file_without_the_recipes_items_is_refused_by_name(tmp_path, content, kind, found):
    path = tmp_path / "run.tar"
    torch.save(content(recipe(build(run_of()))), path)
    with pytest.raises(kind, match=f"^{path}: expected .*{found}"):
        load_general(path)


def test_a_missing_file_and_a_directory_are_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"none\.tar: expected a checkpoint, found no such file"):
        load_general(tmp_path / "none.tar")
    with pytest.raises(CheckpointError, match="expected a file, found a directory or device"):
        load_general(tmp_path)


def test_a_file_older_than_archives_is_read(tmp_path):
    live = train(build(run_of()), 1)
    torch.save(recipe(live), tmp_path / "run.tar", _use_new_zipfile_serialization=False)
    assert compare(tree_of(live), tree_from_general(load_general(tmp_path / "run.tar"))).holds


def test_what_is_no_general_checkpoint_is_refused_before_it_is_written(tmp_path):
    model, path = nn.Linear(2, 1, device="meta"), tmp_path / "x.tar"
    refused("snapshot_general", snapshot_general, model, None, epoch=0, loss=0.0)
    refused(path, save_general, path, None)
    refused(path, save_general, path, dict.fromkeys(("epoch", "loss", "model_state_dict", "optimizer_state_dict"), 0))
    refused("tree_from_general", tree_from_general, None)
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_the_other_format_is_told_where_it_belongs(tmp_path):
    from numpy_ref import RunConfig, init_run, load_data, save_checkpoint

    save_checkpoint(tmp_path / "run.safetensors", init_run(RunConfig(hidden=(2,)), load_data("digits")))
    with pytest.raises(CorruptCheckpoint, match="resume_from_full_checkpoint"):
        interop.load_general(tmp_path / "run.safetensors")
