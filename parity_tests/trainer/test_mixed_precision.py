"""Runs that compute in 16 bits: one state in both packages, and a resume around every overflow, skip and growth."""

from dataclasses import replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import numpy_ref
from numpy_ref import model as network
from numpy_ref import train
from numpy_ref.arithmetic.operations import arithmetic_named
from numpy_ref.checkpoint.container import IncompatibleCheckpoint
from numpy_ref.cli.number_line import cast_to_dtype
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.optim import ScalerState, decode_scaler, encode_scaler
from numpy_ref.proof import laws
from numpy_ref.proof.boundary import row_named
from numpy_ref.proof.equivalence import compare
from numpy_ref.tree import copy_tree
from parity_tests.implementations import EACH, IMPLEMENTATIONS, NO_TORCH
from parity_tests.proof.mutants import losing, resuming
from parity_tests.strategies import run_configs, small_data

DATA = small_data(1, samples=23)
# From this scale on gradients overflow, and after two updates without an overflow the scale grows: its fate changes
# every few steps. A decay of the schedule every third update.
CONFIG = RunConfig(
    hidden=(6, 5),
    dropout=0.3,
    batch_norm=True,
    batch_size=4,
    schedule="step",
    step_size=3,
    seed=5,
    evaluate_every=2,
    precision="float16",
    init_scale=2.0**24,
    growth_interval=2,
    accumulation=2,
)
STEPS = 24


@pytest.fixture(params=EACH)
def impl(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mixed")


def moments_of(impl: Any, config: RunConfig = CONFIG, steps: int = STEPS) -> list[laws.Moment]:
    return list(laws.follow(impl, impl.init_run(config, DATA), DATA, steps))


def fates(moments: list[laws.Moment]) -> list[str]:
    """What each step did to the scale."""
    names = []
    for before, after in pairwise(moments):
        ours, theirs = before.state.scaler.scale, after.state.scaler.scale
        names.append("skip" if after.record.skipped else "growth" if theirs > ours else "update")
    return names


def test_the_case_meets_every_fate_in_a_row() -> None:
    met = fates(moments_of(numpy_ref))
    assert met[:2] == ["skip", "skip"]  # before the first update
    pairs = set(pairwise(met))
    assert pairs >= {("growth", "skip"), ("skip", "update"), ("update", "growth"), ("growth", "update")}


# One state in both packages


@NO_TORCH
@given(run_configs(arithmetic="reproducible"), st.sampled_from(["float16", "bfloat16"]), st.integers(1, 8))
@example((CONFIG, DATA), "float16", 24)
@example((CONFIG, DATA), "bfloat16", 8)
@example((replace(CONFIG, optimizer="sgd", recompute_segments=2), DATA), "float16", 24)
def test_both_packages_reach_the_same_bits(case: tuple[RunConfig, Dataset], precision: str, steps: int) -> None:
    config, data = replace(case[0], precision=precision), case[1]
    reference, port = (list(laws.follow(impl, impl.init_run(config, data), data, steps)) for impl in IMPLEMENTATIONS)
    verdict = laws.compare_runs(reference, port)
    assert verdict.holds, verdict


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
def test_a_format_of_16_bits_changes_the_run_and_float32_is_the_default(impl: ModuleType, precision: str) -> None:
    plain = moments_of(impl, replace(CONFIG, precision="float32"), 3)
    assert plain[-1].state.scaler == {}
    other = moments_of(impl, replace(CONFIG, precision=precision, init_scale=256.0), 3)
    assert not laws.compare_runs(plain, other, leaves="model").holds
    assert {x.dtype for n, x in other[-1].state.model.items() if "tracked" not in n} == {np.dtype(np.float32)}


@pytest.mark.parametrize("precision", ["float16", "bfloat16"])
@pytest.mark.parametrize("arithmetic", ["reproducible", "native"])
def test_layers_hold_numbers_of_the_format_and_gradients_by_weights_are_rounded_to_it(
    precision: str, arithmetic: str
) -> None:
    ops, rng = arithmetic_named(arithmetic, precision=precision), np.random.default_rng(0)
    model = train.init_state(replace(CONFIG, hidden=(7, 64), arithmetic=arithmetic), 5, 3).model
    x = rng.standard_normal((9, 5)).astype(np.float32)
    masks = [rng.random((9, h)) < 0.7 for h in (7, 64)]
    logits, kept, _ = network.forward(model, x, ops, training=True, masks=masks, dropout=0.3)
    (cache,) = kept
    assert isinstance(cache, network.Cache)
    _, grad = network.cross_entropy(logits, rng.integers(0, 3, 9), ops, count=9)
    grads = network.backward(model, kept, grad, ops)
    inner = [logits, cache.last, *(array for layer in cache.hidden for array in (layer.x, layer.z))]
    inner += [g for name, g in grads.items() if name.startswith("layer")]
    assert all((cast_to_dtype(array, precision).astype(np.float64) == array).all() for array in inner)
    assert {g.dtype for g in grads.values()} == {np.dtype(np.float32)}
    normalised = cache.hidden[0].x_hat
    assert normalised is not None
    assert (cast_to_dtype(normalised, precision).astype(np.float64) != normalised).any()  # float32 within


# A step that is skipped


def test_a_skipped_step_moves_the_data_the_streams_and_the_statistics_but_neither_weights_nor_counters(
    impl: ModuleType,
) -> None:
    moments = moments_of(impl)
    updates = 0
    for before, after in pairwise(moments):
        ours, theirs = before.state, after.state
        updates += not after.record.skipped
        assert (theirs.step, theirs.optimizer.t, theirs.schedule.tick) == (ours.step + 1, updates, updates)
        assert after.record.scale == ours.scaler.scale
        assert after.record.rate == ours.schedule.rate
        kept = compare(
            {"w": network.parameters(ours.model), "optimizer": ours.optimizer, "schedule": ours.schedule},
            {"w": network.parameters(theirs.model), "optimizer": theirs.optimizer, "schedule": theirs.schedule},
        ).holds
        assert kept == after.record.skipped
        assert theirs.data != ours.data
        assert not compare(ours.rng.dropout, theirs.rng.dropout).holds
        assert not compare(ours.model["norm0.running_mean"], theirs.model["norm0.running_mean"]).holds
    assert 0 < updates < STEPS


def test_the_scale_follows_the_rule_of_the_stock_scaler(impl: ModuleType) -> None:
    moments = moments_of(impl)
    torch = pytest.importorskip("torch", reason="torch is missing: its GradScaler cannot be compared")
    scaler = torch.amp.GradScaler("cpu", init_scale=CONFIG.init_scale, growth_interval=CONFIG.growth_interval)
    w = torch.zeros(1, requires_grad=True)
    optimizer = torch.optim.SGD([w], lr=1.0)
    for before, after in pairwise(moments):
        assert before.state.scaler == decode_scaler(scaler.state_dict())[0]
        scaler.scale(torch.ones(()))
        w.grad = torch.tensor([np.inf if after.record.skipped else 1.0])
        scaler.step(optimizer)
        scaler.update()


# Resuming


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_a_resume_around_every_overflow_skip_and_growth_equals_never_stopping(
    impl: ModuleType, folder: Path, optimizer: str
) -> None:
    config = replace(CONFIG, optimizer=optimizer, recompute_segments=3 * (optimizer == "sgd"))
    reference = moments_of(impl, config)
    assert {"skip", "growth", "update"} == set(fates(reference))
    run = impl.init_run(config, DATA)
    for stop in range(STEPS):
        impl.save_checkpoint(folder / "every.safetensors", run)
        resumed = impl.resume_from_full_checkpoint(folder / "every.safetensors", DATA)
        verdict = laws.compare_runs(
            reference[stop : stop + 4], list(laws.follow(impl, resumed, DATA, 3))[: STEPS + 1 - stop]
        )
        assert verdict.holds, (stop, verdict)
        run = impl.train_n_steps(impl.resume_from_full_checkpoint(folder / "every.safetensors", DATA), DATA, 1)


@NO_TORCH
def test_what_one_package_saves_within_the_scalers_dance_the_other_goes_on_with(folder: Path) -> None:
    reference = moments_of(numpy_ref)
    path, run = folder / "other.safetensors", numpy_ref.init_run(CONFIG, DATA)
    for step in range(STEPS):
        impl, other = IMPLEMENTATIONS[step % 2], IMPLEMENTATIONS[1 - step % 2]
        impl.save_checkpoint(path, impl.train_n_steps(run, DATA, 1))
        run = other.resume_from_full_checkpoint(path, DATA)
        assert compare(reference[step + 1].state, other.snapshot(run)).holds


STOP = 10
LEAVES = ["scaler", "scaler/scale", "scaler/growth_tracker"]


def test_the_stop_of_the_mutants_lies_between_two_growths() -> None:
    moments = moments_of(numpy_ref)
    scaler = moments[STOP].state.scaler
    assert scaler.growth_tracker == 1
    assert scaler.scale != CONFIG.init_scale


@pytest.mark.parametrize("path", LEAVES)
def test_a_lost_part_of_the_scaler_is_caught_and_named(impl: ModuleType, folder: Path, path: str) -> None:
    verdict = laws.check_lost_state_is_caught(impl, CONFIG, DATA, folder, path, stop=STOP, steps=6)
    assert verdict.holds, verdict
    assert "scale" in verdict.cause
    mutant = resuming(impl, losing(path))
    assert not laws.check_resume(mutant, CONFIG, DATA, folder, stops=[STOP], steps=STOP + 6).holds
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    impl.save_checkpoint(folder / "soon.safetensors", run)
    lost = laws.resume_with_loss(impl, folder / "soon.safetensors", DATA, path)
    whole = impl.resume_from_full_checkpoint(folder / "soon.safetensors", DATA)
    ends = [impl.snapshot(impl.train_n_steps(r, DATA, 6)) for r in (whole, lost)]
    assert any(leaf.startswith("model/") for leaf in compare(*ends).leaves)


def test_causes_of_a_lost_scaler_say_what_follows() -> None:
    run = numpy_ref.train_n_steps(numpy_ref.init_run(CONFIG, DATA), DATA, STOP)
    fresh = run._replace(state=run.state._replace(scaler=ScalerState(2.0**24, 0)))
    later = run._replace(state=run.state._replace(scaler=run.state.scaler._replace(growth_tracker=0)))
    here = list(laws.follow(numpy_ref, run, DATA, 1))
    text = laws.likely_cause(here, list(laws.follow(numpy_ref, fresh, DATA, 1)))
    assert text == f"the loss scale is 1.67772e+07, not {run.state.scaler.scale:g}: the next update was skipped"
    text = laws.likely_cause(here, list(laws.follow(numpy_ref, later, DATA, 1)))
    assert text == "the loss scale grows at another step: 0 updates since it changed, not 1"


def test_weights_that_come_back_through_half_copies_are_caught(impl: ModuleType, folder: Path) -> None:
    def from_half(state: train.RunState, fresh: train.RunState, run: Any) -> train.RunState:
        halves = {
            name: cast_to_dtype(w, "float16").astype(np.float32)
            for name, w in state.model.items()
            if name.startswith("layer")
        }
        return state._replace(model=state.model | halves)

    mutant = resuming(impl, from_half)
    verdict = laws.check_resume(mutant, CONFIG, DATA, folder, stops=[STOP], steps=STOP + 2)
    assert not verdict.holds
    assert verdict.cause == "the weights at the resume are not those that were saved"


# Faults of the step, in each package: functions in place of others


def module_of(impl: Any, name: str) -> Any:
    return import_module(f"{impl.__name__}.{name}")


def after_a_step(patch: pytest.MonkeyPatch, impl: Any, change: Any) -> None:
    """Replace the step by one that makes a change at its end: change(what the step advanced, its record, settings)."""
    original = module_of(impl, "train")._train_step

    def reference_step(state: train.RunState, *settings: Any) -> tuple[train.RunState, train.StepRecord]:
        state, record = original(state, *settings)
        return change(state, record, *settings), record

    def port_step(run: Any, *settings: Any) -> train.StepRecord:
        record: train.StepRecord = original(run, *settings)
        change(run, record)
        return record

    patch.setattr(module_of(impl, "train"), "_train_step", reference_step if impl is numpy_ref else port_step)


def count_skipped(state: train.RunState, record: train.StepRecord, *settings: Any) -> train.RunState:
    t = state.optimizer.t + record.skipped
    return state._replace(optimizer=state.optimizer._replace(t=t))


def count_skipped_live(run: Any, record: train.StepRecord) -> None:
    for entry in run.optimizer.state.values():
        entry["step"] += record.skipped


def tick_skipped(
    state: train.RunState, record: train.StepRecord, config: RunConfig, _: Dataset, ops: Any, *rest: Any
) -> train.RunState:
    if not record.skipped:
        return state
    zeros = {name: np.zeros_like(w) for name, w in network.parameters(state.model).items()}
    return state._replace(schedule=train._update(copy_tree(state), config, zeros, ops).schedule)


def tick_skipped_live(run: Any, record: train.StepRecord) -> None:
    if record.skipped and run.optimizer.state:
        run.schedule.step()


def halve(state: train.RunState, record: train.StepRecord, *settings: Any) -> train.RunState:
    halves = {n: w.astype(np.float16).astype(np.float32) for n, w in network.parameters(state.model).items()}
    return state._replace(model=state.model | halves)


def halve_live(run: Any, record: train.StepRecord) -> None:
    for p in run.model.parameters():
        p.data = p.data.half().float()


def no_step_is_skipped(patch: pytest.MonkeyPatch, impl: Any) -> None:
    patch.setattr(train if impl is numpy_ref else module_of(impl, "optim"), "has_inf_or_nan", lambda gradients: False)
    if impl is not numpy_ref:
        steps = lambda self, optimizer, state, *given, **named: optimizer.step()  # noqa: E731
        patch.setattr(module_of(impl, "train").GradScaler, "_maybe_opt_step", steps)


def gradients_not_unscaled(patch: pytest.MonkeyPatch, impl: Any) -> None:
    if impl is numpy_ref:
        patch.setattr(train, "unscale_gradients", lambda gradients, scale: gradients)
        return
    original = module_of(impl, "train").GradScaler.step

    def step(self: Any, optimizer: Any) -> None:
        for p in optimizer.param_groups[0]["params"]:
            p.grad = p.grad * self.get_scale()
        original(self, optimizer)

    patch.setattr(module_of(impl, "train").GradScaler, "step", step)


def loss_not_scaled(patch: pytest.MonkeyPatch, impl: Any) -> None:
    if impl is numpy_ref:
        step, backward, scale = train._train_step, network.backward, [1.0]

        def scaled_step(state: train.RunState, *settings: Any) -> Any:
            scale[0] = state.scaler.scale
            return step(state, *settings)

        patch.setattr(train, "_train_step", scaled_step)
        patch.setattr(network, "backward", lambda model, kept, g, ops: backward(model, kept, g / scale[0], ops))
        return
    original = module_of(impl, "train").GradScaler.scale

    def scale_nothing(self: Any, loss: Any) -> Any:
        original(self, loss)
        return loss

    patch.setattr(module_of(impl, "train").GradScaler, "scale", scale_nothing)


def changes(*pair: Any) -> Any:
    return lambda patch, impl: after_a_step(patch, impl, pair[impl is not numpy_ref])


FAULTS = {
    "t advanced on a skipped step": changes(count_skipped, count_skipped_live),
    "schedule ticked on a skipped step": changes(tick_skipped, tick_skipped_live),
    "no step is skipped": no_step_is_skipped,
    "gradients not unscaled": gradients_not_unscaled,
    "loss not scaled": loss_not_scaled,
    "primary weights rebuilt from half copies": changes(halve, halve_live),
}


@pytest.mark.parametrize("side", [0, pytest.param(1, marks=NO_TORCH)], ids=["numpy_ref", "torch_port"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_a_scaled_step_is_told_apart(fault: str, side: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = moments_of(numpy_ref, steps=STOP)
    FAULTS[fault](monkeypatch, IMPLEMENTATIONS[side])
    assert not laws.compare_runs(expected, moments_of(IMPLEMENTATIONS[side], steps=STOP)).holds


# What a checkpoint may hold


def saved(folder: Path, impl: ModuleType, **parts: Any) -> None:
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    state = impl.snapshot(run)._replace(**parts)
    impl.save_checkpoint(
        folder / "bad.safetensors", impl.restore(CONFIG, state, run_id="a" * 32, fingerprint=DATA.fingerprint)
    )


def test_counters_and_a_scale_that_no_run_reaches_are_refused(folder: Path) -> None:
    state = numpy_ref.train_n_steps(numpy_ref.init_run(CONFIG, DATA), DATA, STOP).state
    t = state.optimizer.t
    for parts, message in (
        (
            {"optimizer": state.optimizer._replace(t=t + 1)},
            f"schedule/tick: expected {t + 1} as optimizer/t, found {t}",
        ),
        (
            {"schedule": state.schedule._replace(tick=t - 1)},
            f"schedule/tick: expected {t} as optimizer/t, found {t - 1}",
        ),
        (
            {"optimizer": state.optimizer._replace(t=STOP + 1), "schedule": state.schedule._replace(tick=STOP + 1)},
            f"optimizer/t: expected at most the step {STOP}, found {STOP + 1}",
        ),
        ({"scaler": ScalerState(float("inf"), 0)}, "scaler/scale: expected a finite float32 number >= 0, found inf"),
        ({"scaler": ScalerState(0.1, 0)}, "scaler/scale: expected a finite float32 number"),
        ({"scaler": ScalerState(8.0, 2)}, "scaler/growth_tracker: expected at most 1, found 2"),
        ({"scaler": ScalerState(8.0, -1)}, "scaler/growth_tracker: expected an int from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            saved(folder, numpy_ref, **parts)
    for scaler, message in (
        ({}, "scaler/growth_tracker: missing"),
        (ScalerState(8, 0), "scaler/scale: expected float"),
    ):
        with pytest.raises(ValueError, match=message):
            saved(folder, numpy_ref, scaler=scaler)


def test_a_run_without_a_scaler_takes_no_scalers_state(impl: ModuleType) -> None:
    config = replace(CONFIG, precision="bfloat16")
    run = impl.init_run(config, DATA)
    state = impl.snapshot(run)._replace(scaler=ScalerState(8.0, 0))
    with pytest.raises(ValueError, match="scaler/scale: not expected"):
        impl.restore(config, state, run_id=run.run_id, fingerprint=run.fingerprint)


def test_a_resume_in_another_format_is_refused_unless_it_starts_anew(impl: ModuleType, folder: Path) -> None:
    path = folder / "float32.safetensors"
    plain = replace(CONFIG, precision="float32")
    impl.save_checkpoint(path, impl.train_n_steps(impl.init_run(plain, DATA), DATA, 2))
    with pytest.raises(IncompatibleCheckpoint, match="precision: expected 'float16', found 'float32'"):
        impl.resume_from_full_checkpoint(path, DATA, expect=CONFIG)
    new = impl.snapshot(impl.resume_from_weights_only(path, DATA, CONFIG))
    assert new.scaler == ScalerState(CONFIG.init_scale, 0)
    weights = impl.snapshot(impl.resume_from_full_checkpoint(path, DATA)).model
    assert compare(weights, new.model).holds  # not rounded


# The live scaler


@NO_TORCH
def test_the_ports_scaler_is_torchs_own_and_comes_back_before_its_first_use() -> None:
    import torch

    import torch_port

    run = torch_port.init_run(CONFIG, DATA)
    assert type(run.scaler) is torch.amp.GradScaler
    state = torch_port.snapshot(run)._replace(scaler=ScalerState(8.0, 1))
    loaded = torch_port.restore(CONFIG, state, run_id=run.run_id, fingerprint=run.fingerprint)
    assert loaded.scaler.state_dict() == encode_scaler(ScalerState(8.0, 1), growth_interval=2)
    assert torch_port.snapshot(loaded).scaler == ScalerState(8.0, 1)
    assert not torch_port.init_run(replace(CONFIG, precision="bfloat16"), DATA).scaler.is_enabled()
    odd = torch_port.init_run(replace(CONFIG, init_scale=1e5 + 0.1), DATA)
    assert torch_port.snapshot(odd).scaler.scale == float(np.float32(1e5 + 0.1))


@NO_TORCH
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: run.scaler.set_growth_interval(3), "scaler: growth_interval: expected 2, found 3"),
        (lambda run: run.scaler.set_growth_factor(4.0), "scaler: growth_factor: expected 2.0, found 4.0"),
        (lambda run: setattr(run.scaler, "_enabled", False), "scaler: expected it to be enabled for float16"),
        (lambda run: setattr(run, "scaler", None), "scaler: expected torch.amp.grad_scaler.GradScaler, found "),
        (
            lambda run: setattr(run.model, "ops", run.model.ops._replace(precision="bfloat16")),
            "model: ops: expected reproducible arithmetic in float16, found reproducible arithmetic in bfloat16",
        ),
        (
            lambda run: setattr(run.scaler, "_init_scale", float("nan")),
            "scaler/scale: expected a finite float32 number",
        ),
    ],
)
def test_a_live_setting_that_would_not_come_back_is_refused(change: Any, message: str) -> None:
    import torch_port

    run = torch_port.init_run(CONFIG, DATA)
    change(run)
    with pytest.raises(ValueError, match=message):
        torch_port.snapshot(run)


def test_the_rows_of_stock_autocast_are_there() -> None:
    for precision in ("float16", "bfloat16"):
        assert row_named(f"stock autocast, {precision}").kind == "within"
