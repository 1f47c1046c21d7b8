"""A run of the port is the reference's run, bit for bit, whatever is asked of it and wherever it is handed over."""

import contextlib
import copy
import pickle  # noqa: TID251 - what people copy runs with
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import numpy_ref
from numpy_ref.config import RunConfig
from numpy_ref.proof import laws
from numpy_ref.proof.equivalence import compare, digest, same_bits
from numpy_ref.tree import flatten
from parity_tests.strategies import run_configs, small_data
from parity_tests.trainer.updates import ADAM_FUSED, plain_port

torch = pytest.importorskip("torch", reason="torch is missing: the port cannot be run")
import torch_port
from torch_port import optim, train
from torch_port.arithmetic import operations as arithmetic

CONFIG = RunConfig(
    hidden=(6, 5),
    dropout=0.3,
    batch_norm=True,
    batch_size=4,
    schedule="step",
    step_size=3,
    amsgrad=True,
    weight_decay=0.01,
    noise=0.1,
    evaluate_every=2,
    seed=5,
)
DATA = small_data(1, samples=23)
WIDE = replace(CONFIG, hidden=(70, 67), batch_size=16)  # beyond the registers, where a wrong square root shows
WIDE_DATA = small_data(2, samples=40, inputs=65, classes=4)


def followed(config, data, steps, impl=torch_port):
    return list(laws.follow(impl, impl.init_run(config, data), data, steps))


FEW = settings(max_examples=settings().max_examples // 3)  # whole runs of both packages


def parity(config, data, steps):
    return laws.compare_runs(followed(config, data, steps, numpy_ref), followed(config, data, steps))


@FEW
@given(run_configs(arithmetic="reproducible"), st.integers(0, 9))
@example((CONFIG, DATA), 12)
@example((WIDE, WIDE_DATA), 4)
@example((replace(WIDE, optimizer="sgd", amsgrad=False, accumulation=2), WIDE_DATA), 4)
def test_every_state_and_record_is_the_references(case, steps):
    verdict = parity(*case, steps)
    assert verdict.holds, verdict


@FEW
@given(run_configs(arithmetic="reproducible"), st.lists(st.integers(0, 4), min_size=2, max_size=4))
def test_a_run_handed_from_package_to_package_equals_one_that_never_left(tmp_path_factory, case, parts):
    config, data = case
    path = tmp_path_factory.mktemp("handed") / "run.safetensors"
    run = numpy_ref.init_run(config, data)
    for i, n in enumerate(parts):
        here, there = (numpy_ref, torch_port) if i % 2 == 0 else (torch_port, numpy_ref)
        here.save_checkpoint(path, here.train_n_steps(run, data, n))
        run = there.resume_from_full_checkpoint(path, data)
    expected = numpy_ref.train_n_steps(numpy_ref.init_run(config, data), data, sum(parts))
    verdict = compare(expected.state, (numpy_ref, torch_port)[len(parts) % 2].snapshot(run))
    assert verdict.holds, verdict


def test_300_steps_in_numpy_then_torch_then_numpy_equal_a_run_that_never_left_either(tmp_path):
    config, digits, path = RunConfig(hidden=(64, 64)), numpy_ref.load_data("digits"), tmp_path / "run.safetensors"
    run = numpy_ref.train_n_steps(numpy_ref.init_run(config, digits), digits, 300)
    numpy_ref.save_checkpoint(path, run)
    moved = torch_port.train_n_steps(torch_port.resume_from_full_checkpoint(path, digits), digits, 60)
    torch_port.save_checkpoint(path, moved)
    back = numpy_ref.train_n_steps(numpy_ref.resume_from_full_checkpoint(path, digits), digits, 40)
    assert digest(back.state) == digest(numpy_ref.train_n_steps(run, digits, 100).state)
    whole = torch_port.train_n_steps(torch_port.init_run(config, digits), digits, 400)
    assert digest(back.state) == digest(torch_port.snapshot(whole))


@given(run_configs())
def test_a_run_starts_as_the_references_in_either_arithmetic(case):
    config, data = case
    expected = numpy_ref.init_run(config, data).state
    assert compare(expected, torch_port.snapshot(torch_port.init_run(config, data))).holds
    assert compare(expected, train.init_state(config, data.inputs.shape[1], data.classes)).holds


@settings(max_examples=3)
@given(run_configs(arithmetic="reproducible", noise=0.3))
def test_workers_that_load_ahead_change_nothing(case):
    config, data = case
    moments = {}
    for workers in (0, 2):
        run = torch_port.init_run(config, data)
        run.workers = workers
        moments[workers] = list(laws.follow(torch_port, torch_port.train_n_steps(run, data, 3), data, 1))
    assert laws.compare_runs(*moments.values()).holds


# Ownership: live objects are advanced, and nothing else follows them.


def test_a_run_that_was_advanced_raises_when_it_is_used_again():
    run = torch_port.init_run(CONFIG, DATA)
    later = torch_port.train_n_steps(run, DATA, 1)
    uses = (
        lambda: torch_port.train_n_steps(run, DATA, 1),
        lambda: torch_port.snapshot(run),
        lambda: torch_port.evaluate(run, DATA),
        lambda: torch_port.save_checkpoint("unwritten.safetensors", run),
        lambda: run.step,
    )
    for use in uses:
        with pytest.raises(RuntimeError, match="Use the run that it returned"):
            use()
    assert (run.config, run.run_id, run.fingerprint) == (later.config, later.run_id, later.fingerprint)
    assert later.step == 1
    with pytest.raises(AttributeError):
        run.nonsense  # noqa: B018 - that it raises


@pytest.mark.parametrize("config", [CONFIG, replace(CONFIG, optimizer="sgd", amsgrad=False)])
def test_a_copy_of_a_run_goes_on_alike_and_shares_nothing(config):
    run = torch_port.train_n_steps(torch_port.init_run(config, DATA), DATA, 3)
    copies = [copy.deepcopy(run), copy.copy(run), pickle.loads(pickle.dumps(run))]
    before = digest(torch_port.snapshot(run))
    expected = digest(torch_port.snapshot(torch_port.train_n_steps(run, DATA, 4)))
    for other in copies:
        assert digest(torch_port.snapshot(other)) == before
        assert digest(torch_port.snapshot(torch_port.train_n_steps(other, DATA, 4))) == expected
    with pytest.raises(RuntimeError, match="Use the run that it returned"):
        copy.deepcopy(run)


@pytest.mark.parametrize("arithmetic_name", ["reproducible", "native"])
@pytest.mark.parametrize("kind", [optim.Adam, optim.AdamW])
def test_a_copied_optimizer_keeps_its_arithmetic(kind, arithmetic_name):
    w = torch.nn.Parameter(torch.ones(3))
    optimizer = kind([w], ops=arithmetic.arithmetic_named(arithmetic_name))
    for other in (copy.deepcopy(optimizer), pickle.loads(pickle.dumps(optimizer))):
        assert other.ops == optimizer.ops
        other.param_groups[0]["params"][0].grad = torch.ones(3)
        other.step()


# An error stops a run between updates, where it goes on, or within one, where it does not.


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_an_error_of_on_step_leaves_the_run_live_at_its_last_update(error):
    def stop(record):
        if record.step == 3:
            raise error

    run = torch_port.init_run(CONFIG, DATA)
    with pytest.raises(error):
        torch_port.train_n_steps(run, DATA, 5, on_step=stop)
    assert run.step == 3
    expected = torch_port.snapshot(torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 5))
    assert compare(expected, torch_port.snapshot(torch_port.train_n_steps(run, DATA, 2))).holds


def test_an_error_within_an_update_ends_the_run_and_says_so():
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 2)
    run.model.layer0.weight.requires_grad_(False)
    with pytest.raises(ValueError, match="expected a dense gradient"):
        torch_port.train_n_steps(run, DATA, 1)
    with pytest.raises(RuntimeError, match=r"stopped within an update, half-way\. Resume from a checkpoint"):
        torch_port.snapshot(run)


@pytest.mark.parametrize("workers", [-1, 2.5, "a", True])
def test_a_wrong_number_of_workers_is_refused_and_leaves_the_run_as_it_was(workers):
    run = torch_port.init_run(CONFIG, DATA)
    run.workers = workers
    with pytest.raises(ValueError, match="workers: expected"):
        torch_port.train_n_steps(run, DATA, 1)
    run.workers = 0
    assert torch_port.train_n_steps(run, DATA, 1).step == 1


def test_runs_of_the_two_packages_are_not_mixed_up():
    ours, theirs = torch_port.init_run(CONFIG, DATA), numpy_ref.init_run(CONFIG, DATA)
    uses = (
        lambda: torch_port.train_n_steps(theirs, DATA, 1),
        lambda: torch_port.snapshot(theirs),
        lambda: torch_port.evaluate(theirs, DATA),
        lambda: torch_port.save_checkpoint("unwritten", theirs),
        lambda: numpy_ref.train_n_steps(ours, DATA, 1),
        lambda: numpy_ref.evaluate(ours, DATA),
        lambda: numpy_ref.save_checkpoint("unwritten", ours),
    )
    for use in uses:
        with pytest.raises(TypeError, match=r"expected a run of \w+, found \w+\.train\.Run"):
            use()


# Modes of torch's own, set by the caller.


@contextlib.contextmanager
def _grad_disabled():
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    try:
        yield
    finally:
        torch.set_grad_enabled(before)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "set_grad_enabled(False)": _grad_disabled,
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
}


@pytest.mark.parametrize("arithmetic_name", ["reproducible", "native"])
@pytest.mark.parametrize("name", MODES)
def test_the_callers_modes_change_nothing(name, arithmetic_name, tmp_path):
    config = replace(CONFIG, arithmetic=arithmetic_name)
    expected = torch_port.snapshot(torch_port.train_n_steps(torch_port.init_run(config, DATA), DATA, 4))
    with MODES[name]():
        run = torch_port.train_n_steps(torch_port.init_run(config, DATA), DATA, 1)
        loss = torch_port.evaluate(run, DATA).loss
        torch_port.save_checkpoint(tmp_path / "run", run)
        resumed = torch_port.resume_from_full_checkpoint(tmp_path / "run", DATA)
    assert torch_port.evaluate(run, DATA).loss == loss
    for each in (run, resumed):
        assert compare(expected, torch_port.snapshot(torch_port.train_n_steps(each, DATA, 3))).holds


def test_subnormals_flushed_after_the_start_are_noticed():
    run = torch_port.init_run(CONFIG, DATA)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor cannot flush subnormal numbers")
    try:
        with pytest.raises(FloatingPointError, match=r"torch\.set_flush_denormal\(False\)"):
            torch_port.train_n_steps(run, DATA, 1)
    finally:
        torch.set_flush_denormal(False)
    assert torch_port.train_n_steps(run, DATA, 1).step == 1


# Live objects can be changed; what then would not come back is not saved.


def _group(**settings):
    return lambda run: run.optimizer.param_groups[0].update(settings)


def _other_optimizer(run):
    run.optimizer = torch.optim.RMSprop(run.model.parameters())


def _uneven(run):
    run.optimizer.state[run.model.layer0.weight]["step"] = torch.tensor(1.0)


CHANGED = {
    "weight decay": (_group(weight_decay=0.5), r"optimizer: weight_decay: expected 0\.01, found 0\.5"),
    "betas": (_group(betas=(0.5, 0.9)), "optimizer: betas: expected"),
    "eps": (_group(eps=1.0), "optimizer: eps: expected"),
    "maximize": (_group(maximize=True), "optimizer: maximize: expected False, found True"),
    "gamma": (lambda run: setattr(run.schedule, "gamma", 0.1), r"schedule: gamma: expected 0\.5, found 0\.1"),
    "scale": (lambda run: setattr(run.model, "scale", 3.0), "model: scale: expected"),
    "arithmetic of a layer": (
        lambda run: setattr(run.model.layer0, "ops", arithmetic.NATIVE),
        r"layer0\.ops: expected reproducible",
    ),
    "arithmetic of the optimizer": (lambda run: setattr(run.optimizer, "ops", arithmetic.NATIVE), "optimizer: ops:"),
    "optimizer": (_other_optimizer, r"optimizer: expected torch_port\.optim\.Adam .* found torch\.optim\.rmsprop"),
    "one parameter's count": (_uneven, r"optimizer: step: expected one number for all parameters, found \[1, 2\]"),
    "module": (lambda run: setattr(run, "model", torch.nn.Sequential(run.model)), r"use run\.model\.compile\(\)"),
    "another module's parameters": (
        lambda run: setattr(run, "model", copy.deepcopy(run.model)),
        "optimizer: expected the model's parameters",
    ),
    "schedule": (
        lambda run: setattr(run, "schedule", torch.optim.lr_scheduler.ConstantLR(run.optimizer, 1.0)),
        r"schedule: expected torch\.optim\.lr_scheduler\.StepLR, found torch\.optim\.lr_scheduler\.ConstantLR",
    ),
}


@pytest.mark.parametrize("name", CHANGED)
def test_a_live_setting_that_would_not_come_back_is_refused_by_name(name, tmp_path):
    change, message = CHANGED[name]
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 2)
    change(run)
    for use in (torch_port.snapshot, lambda r: torch_port.save_checkpoint(tmp_path / "run", r)):
        with pytest.raises(ValueError, match=message):
            use(run)
    assert list(tmp_path.iterdir()) == []


def test_a_rate_set_by_hand_is_state_and_comes_back():
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 2)
    run.optimizer.param_groups[0]["lr"] = 0.25
    assert torch_port.snapshot(copy.deepcopy(run)).schedule.rate == 0.25


@pytest.mark.parametrize(("data", "n"), [(DATA, -1), (DATA, True), (DATA, 1.0), (small_data(9, samples=23), 1)])
def test_a_refused_argument_leaves_the_run_as_it_was(data, n):
    run = torch_port.init_run(CONFIG, DATA)
    with pytest.raises(ValueError, match="expected"):
        torch_port.train_n_steps(run, data, n)
    assert torch_port.train_n_steps(run, DATA, 1).step == 1


@FEW
@given(run_configs(), st.integers(0, 4))
def test_a_snapshot_and_what_was_restored_from_do_not_change_when_training_goes_on(case, steps):
    config, data = case
    run = torch_port.train_n_steps(torch_port.init_run(config, data), data, steps)
    kept = torch_port.snapshot(run)
    before = digest(kept)
    other = torch_port.restore(config, kept, run_id=run.run_id, fingerprint=run.fingerprint)
    assert digest(torch_port.snapshot(other)) == before
    torch_port.train_n_steps(run, data, 4)
    torch_port.train_n_steps(other, data, 4)
    assert digest(kept) == before


def test_a_snapshot_without_copies_would_follow_the_run(monkeypatch):
    monkeypatch.setattr(train, "copy_tree", lambda tree, into=None: tree)
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 1)
    kept = torch_port.snapshot(run)
    before = digest(kept)
    torch_port.train_n_steps(run, DATA, 1)
    assert digest(kept) != before


@FEW
@given(run_configs(), st.integers(1, 4))
def test_no_global_generator_moves_and_no_default_type_matters(case, steps):
    config, data = case
    expected = followed(config, data, steps)
    states = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002 - that it is left alone
    torch.set_default_dtype(torch.float64)
    try:
        found = followed(config, data, steps)
    finally:
        torch.set_default_dtype(torch.float32)
    assert laws.compare_runs(expected, found).holds
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()  # noqa: NPY002


def test_a_run_is_data_and_live_objects_of_torchs_own_kinds():
    run = torch_port.init_run(CONFIG, DATA)
    assert isinstance(run.model, torch.nn.Module)
    assert isinstance(run.optimizer, torch.optim.Adam)
    assert type(run.schedule) is torch.optim.lr_scheduler.StepLR
    assert isinstance(run.dropout, torch.Generator)
    assert list(run.model.state_dict()) == list(torch_port.snapshot(run).model)
    assert run.device == torch.device("cpu")


# Mode


@FEW
@given(run_configs(arithmetic="reproducible"), st.integers(0, 3), st.integers(1, 3))
def test_mode_eval_is_part_of_the_state_and_trains_as_the_references(case, before, steps):
    config, data = case
    sides = []
    for impl in (numpy_ref, torch_port):
        run = impl.train_n_steps(impl.init_run(config, data), data, before)
        state = impl.snapshot(run)._replace(mode="eval")
        run = impl.restore(config, state, run_id=run.run_id, fingerprint=run.fingerprint)
        sides.append(list(laws.follow(impl, run, data, steps)))
    assert laws.compare_runs(*sides).holds
    assert sides[1][-1].state.mode == "eval"


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_evaluation_draws_nothing_and_leaves_the_mode_as_it_is(mode):
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 3)
    run.model.train(mode == "train")
    before, state = torch_port.snapshot(run), torch.get_rng_state()
    found = torch_port.evaluate(run, DATA)
    assert compare(before, torch_port.snapshot(run)).holds
    assert before.mode == mode == torch_port.snapshot(run).mode
    assert torch.equal(torch.get_rng_state(), state)
    assert run.model.training == all(m.training for m in run.model.modules()) == (mode == "train")
    expected = numpy_ref.restore(run.config, before, run_id=run.run_id, fingerprint=run.fingerprint)
    assert same_bits(found.loss, numpy_ref.evaluate(expected, DATA).loss)
    assert found.accuracy == numpy_ref.evaluate(expected, DATA).accuracy


def test_a_mode_that_is_none_is_refused():
    run = torch_port.init_run(CONFIG, DATA)
    state = torch_port.snapshot(run)._replace(mode="test")
    with pytest.raises(ValueError, match="mode: expected 'train' or 'eval', found 'test'"):
        torch_port.restore(CONFIG, state, run_id=run.run_id, fingerprint=run.fingerprint)


# Mutants: the port with one operation of the machine's own.

STOCK = {"sqrt": torch.sqrt, "sum": torch.sum, "matmul": torch.matmul, "exp": torch.exp}
# Stock log is rarely wrong between 1 and the number of classes: test_parity_arithmetic tells it apart.


@contextlib.contextmanager
def one_stock_operation(monkeypatch, name):
    """The port whose reproducible arithmetic has one operation of torch's own."""
    mixed = arithmetic.REPRODUCIBLE._replace(**{name: STOCK[name]})
    with monkeypatch.context() as patch:
        patch.setattr(train, "arithmetic_named", lambda name, **_: mixed)
        yield


@pytest.mark.parametrize("name", STOCK)
def test_a_port_with_one_stock_operation_is_told_apart(monkeypatch, name):
    assert parity(WIDE, WIDE_DATA, 6).holds
    with one_stock_operation(monkeypatch, name):
        assert not parity(WIDE, WIDE_DATA, 6).holds


@pytest.mark.parametrize("fault", ADAM_FUSED)
def test_a_port_whose_optimizer_fuses_is_told_apart(monkeypatch, fault):
    monkeypatch.setattr(train, "optim", plain_port(optim, ADAM_FUSED[fault]))
    if parity(WIDE, WIDE_DATA, 6).holds:
        assert torch.backends.cpu.get_cpu_capability() == "DEFAULT", "this processor's kernels fuse"
        pytest.skip(f"{fault}: not exercised, these kernels do not fuse")


def test_a_port_that_drops_with_stock_dropout_is_told_apart(monkeypatch):
    def stock(generator, hidden, batch, dropout, *, device="cpu"):
        return [torch.empty(batch, h).bernoulli_(1 - dropout, generator=generator) > 0 for h in hidden]

    monkeypatch.setattr(train.network, "draw_masks", stock)
    verdict = parity(WIDE, WIDE_DATA, 2)
    assert not verdict.holds
    assert any(leaf.startswith(("model/", "rng/dropout")) for leaf in verdict.leaves)


def test_every_leaf_of_a_snapshot_is_a_numpy_array_or_a_plain_value():
    state = torch_port.snapshot(torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 2))
    assert {type(leaf) for leaf in flatten(state).values()} <= {np.ndarray, int, float, str}
