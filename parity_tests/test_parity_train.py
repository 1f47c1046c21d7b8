"""A run of the port is the reference's run, bit for bit, whatever is asked of it and wherever it is handed over."""

import contextlib
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import numpy_ref
from numpy_ref import laws
from numpy_ref.config import RunConfig
from numpy_ref.equivalence import compare, digest, same_bits
from numpy_ref.tree import flatten
from parity_tests.strategies import run_configs, small_data

torch = pytest.importorskip("torch", reason="torch is missing: the port cannot be run")
import torch_port  # noqa: E402 - after the skip
from torch_port import arithmetic, optim, train  # noqa: E402

CONFIG = RunConfig(
    hidden=(6, 5), dropout=0.3, batch_norm=True, batch_size=4, schedule="step", step_size=3, amsgrad=True,
    weight_decay=0.01, noise=0.1, evaluate_every=2, seed=5,
)  # fmt: skip
DATA = small_data(1, samples=23)
WIDE = replace(CONFIG, hidden=(70, 67), batch_size=16)  # beyond the registers, where a wrong square root shows
WIDE_DATA = small_data(2, samples=40, inputs=65, classes=4)


def followed(config, data, steps, impl=torch_port):
    return list(laws.follow(impl, impl.init_run(config, data), data, steps))


def parity(config, data, steps):
    return laws.compare_runs(followed(config, data, steps, numpy_ref), followed(config, data, steps))


@given(run_configs(arithmetic="reproducible"), st.integers(0, 9))
@example((CONFIG, DATA), 12)
@example((WIDE, WIDE_DATA), 4)
@example((replace(WIDE, optimizer="sgd", amsgrad=False, accumulation=2), WIDE_DATA), 4)
def test_every_state_and_record_is_the_references(case, steps):
    verdict = parity(*case, steps)
    assert verdict.holds, verdict


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


@pytest.mark.parametrize(("data", "n"), [(DATA, -1), (DATA, True), (DATA, 1.0), (small_data(9, samples=23), 1)])
def test_a_refused_argument_leaves_the_run_as_it_was(data, n):
    run = torch_port.init_run(CONFIG, DATA)
    with pytest.raises(ValueError, match="expected"):
        torch_port.train_n_steps(run, data, n)
    assert torch_port.train_n_steps(run, DATA, 1).step == 1


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
    monkeypatch.setattr(train, "_array", lambda tensor: tensor.detach().numpy())
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 1)
    kept = torch_port.snapshot(run)
    before = digest(kept)
    torch_port.train_n_steps(run, DATA, 1)
    assert digest(kept) != before


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
        patch.setattr(train, "arithmetic_named", lambda _: mixed)
        yield


@pytest.mark.parametrize("name", STOCK)
def test_a_port_with_one_stock_operation_is_told_apart(monkeypatch, name):
    assert parity(WIDE, WIDE_DATA, 6).holds
    with one_stock_operation(monkeypatch, name):
        assert not parity(WIDE, WIDE_DATA, 6).holds


@pytest.mark.parametrize("fault", ["addcmul", "lerp", "add with alpha"])
def test_a_port_whose_optimizer_fuses_is_told_apart(monkeypatch, fault):
    from parity_tests.test_parity_optim import ADAM_FAULTS, with_fault

    monkeypatch.setattr(train, "optim", with_fault(optim, *ADAM_FAULTS[fault]))
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
