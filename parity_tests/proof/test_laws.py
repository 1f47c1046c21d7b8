"""The laws about resuming hold for the implementation, and each of the mutants breaks one."""

from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import numpy_ref
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.proof import laws
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.train import RunState
from parity_tests.implementations import EACH, IMPLEMENTATIONS
from parity_tests.proof.mutants import FAULTS, SAMPLES, leaves_of, losing, resuming
from parity_tests.strategies import run_configs, small_data

# Two epochs are 10 steps: 19 samples in batches of 4, the last one partial, with decays at 3, 6 and 9.
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
CAMPAIGN = pytest.mark.campaign
STOP, STEPS = 7, 6  # in the second epoch, after two decays and before the third


@pytest.fixture(params=EACH)
def impl(request: pytest.FixtureRequest) -> ModuleType:
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("laws")


def test_the_case_of_the_mutants_is_what_it_says() -> None:
    assert len(DATA.labels) == SAMPLES
    state = numpy_ref.train_n_steps(numpy_ref.init_run(CONFIG, DATA), DATA, STOP).state
    assert (state.data.epoch, state.data.consumed) == (1, 8)
    assert state.best.step > 0


stops = st.lists(st.integers(0, 14), min_size=1, max_size=5, unique=True).map(sorted)


@settings(max_examples=settings().max_examples // 6)
@given(run_configs(), stops, st.integers(1, 4))
@example((CONFIG, DATA), [0], 3)
@example((CONFIG, DATA), [5], 3)  # an epoch's end
@example((CONFIG, DATA), [4], 1)  # before the last, partial batch
@example((CONFIG, DATA), [5, 6, 7, 8, 9], 2)  # five stops in one epoch
def test_resume_after_any_steps_equals_never_stopping(
    folder: Path, case: tuple[RunConfig, Dataset], at: list[int], more: int
) -> None:
    config, data = case
    for impl in IMPLEMENTATIONS:
        verdict = laws.check_resume(impl, config, data, folder, stops=at, steps=at[-1] + more)
        assert verdict.holds, verdict


@pytest.mark.parametrize(
    ("optimizer", "arithmetic"),
    [
        ("adam", "reproducible"),
        *(pytest.param(name, "reproducible", marks=CAMPAIGN) for name in ("adamw", "sgd")),
        *(pytest.param(name, "native", marks=CAMPAIGN) for name in ("adam", "adamw", "sgd")),
    ],
)
def test_resume_after_every_step_of_two_epochs_equals_never_stopping(
    impl: ModuleType, folder: Path, optimizer: str, arithmetic: str
) -> None:
    config = replace(CONFIG, optimizer=optimizer, arithmetic=arithmetic)
    for stop in (0, 4, 5, 7):  # also before and at the end of an epoch
        verdict = laws.check_resume(impl, config, DATA, folder, stops=[stop], steps=14)
        assert verdict.holds, (stop, verdict)
    verdict = laws.check_resume(impl, config, DATA, folder, stops=list(range(12)), steps=12)
    assert verdict.holds, verdict


def test_a_run_in_eval_mode_resumes_in_eval_mode(impl: ModuleType, folder: Path) -> None:
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    run = impl.restore(
        run.config, impl.snapshot(run)._replace(mode="eval"), run_id="a" * 32, fingerprint=DATA.fingerprint
    )
    impl.save_checkpoint(folder / "eval.safetensors", run)
    resumed = impl.resume_from_full_checkpoint(folder / "eval.safetensors", DATA)
    expected, found = (list(laws.follow(impl, r, DATA, STEPS)) for r in (run, resumed))
    assert laws.compare_runs(expected, found).holds
    assert found[-1].state.mode == "eval"


@settings(max_examples=settings().max_examples // 6)
@given(run_configs(), st.integers(1, 12))
@example((CONFIG, DATA), STOP)
def test_a_resume_from_weights_only_is_another_run(folder: Path, case: tuple[RunConfig, Dataset], stop: int) -> None:
    config, data = case
    for impl in IMPLEMENTATIONS:
        verdict = laws.check_weights_only_differs(impl, config, data, folder, stop=stop, steps=10)
        assert verdict.holds or (verdict.relation == "bitwise" and _at_rest(impl, config, data, stop)), verdict


def _at_rest(impl: ModuleType, config: RunConfig, data: Dataset, stop: int) -> bool:
    """Whether the run no longer moves at all: then any two continuations agree."""
    before = impl.snapshot(impl.train_n_steps(impl.init_run(config, data), data, stop))
    after = impl.snapshot(impl.train_n_steps(impl.init_run(config, data), data, stop + 10))
    return compare(before.model, after.model).holds


def test_weights_only_moves_every_weight_by_the_learning_rate_first(impl: ModuleType, folder: Path) -> None:
    config = replace(CONFIG, weight_decay=0.0, schedule="constant", dropout=0.0, batch_norm=False)
    verdict = laws.check_weights_only_differs(impl, config, DATA, folder, stop=STOP, steps=3)
    assert verdict.holds
    assert verdict.step == STOP + 1
    assert "100% of the weights that moved in the first step moved by the learning rate itself" in verdict.cause


STATE = numpy_ref.init_run(CONFIG, DATA).state
LEAVES = [  # of each group of arrays the first; the others in a campaign
    path
    if (path.count("/") < 2 and not path.startswith("model/")) or path.endswith("layer0.weight")
    else pytest.param(path, marks=CAMPAIGN)
    for path in leaves_of(STATE)
]
GROUPS = ["optimizer", "optimizer/m", "optimizer/v", "optimizer/v_max", "schedule", "rng", "data", "model", "best"]


# A fresh run has the same mode: test_a_lost_mode_is_caught changes it first.
@pytest.mark.parametrize("path", [path for path in GROUPS + LEAVES if path != "mode"])
def test_each_lost_state_is_caught_and_named(impl: ModuleType, folder: Path, path: str) -> None:
    verdict = laws.check_lost_state_is_caught(impl, CONFIG, DATA, folder, path, stop=STOP, steps=STEPS)
    assert verdict.holds, verdict
    assert verdict.step == STOP
    assert verdict.cause
    mutant = resuming(impl, losing(path))
    assert not laws.check_resume(mutant, CONFIG, DATA, folder, stops=[STOP], steps=STOP + STEPS).holds


def test_a_lost_mode_is_caught(impl: ModuleType, folder: Path) -> None:
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    run = impl.restore(
        run.config, impl.snapshot(run)._replace(mode="eval"), run_id="a" * 32, fingerprint=DATA.fingerprint
    )
    impl.save_checkpoint(folder / "mode.safetensors", run)
    lost = laws.resume_with_loss(impl, folder / "mode.safetensors", DATA, "mode")
    moments = [list(laws.follow(impl, r, DATA, 2)) for r in (run, lost)]
    verdict = laws.compare_runs(*moments)
    assert verdict.leaves == ("mode",)
    assert "the mode is 'train', not 'eval'" in verdict.cause
    assert not laws.compare_runs(*moments, leaves="model").holds


@pytest.mark.parametrize(
    "path", [p for p in LEAVES if not str(getattr(p, "values", [p])[0]).startswith(("best", "step", "mode"))]
)
def test_what_is_lost_shows_in_the_weights_or_the_counters_soon(impl: ModuleType, folder: Path, path: str) -> None:
    """No leaf is a mere label: without it the training itself goes elsewhere, or a later checkpoint lies."""
    # Second moments that shrink make the largest so far matter, and that one hides a lost v.
    config = replace(CONFIG, beta2=0.5, amsgrad="v_max" in path)
    run = impl.train_n_steps(impl.init_run(config, DATA), DATA, STOP)
    impl.save_checkpoint(folder / "soon.safetensors", run)
    lost = laws.resume_with_loss(impl, folder / "soon.safetensors", DATA, path)
    expected, found = (impl.snapshot(impl.train_n_steps(r, DATA, 12)) for r in (run, lost))
    differing = compare(expected, found).leaves
    assert any(leaf.startswith("model/") for leaf in differing), differing


@pytest.mark.parametrize("name", FAULTS)
def test_each_faulty_resume_is_caught(impl: ModuleType, folder: Path, name: str) -> None:
    mutant = resuming(impl, FAULTS[name])
    config = replace(CONFIG, batch_norm=name == "running statistics fresh")  # it refuses the odd batches of some faults
    verdict = laws.check_resume(mutant, config, DATA, folder, stops=[STOP], steps=STOP + STEPS)
    assert not verdict.holds
    assert verdict.step == STOP


def test_a_resume_with_another_seed_is_caught(impl: ModuleType, folder: Path) -> None:
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    impl.save_checkpoint(folder / "seed.safetensors", run)
    other = laws.resume_with_loss(impl, folder / "seed.safetensors", DATA, "rng", seed=6)
    verdict = laws.compare_runs(*(list(laws.follow(impl, r, DATA, STEPS)) for r in (run, other)), leaves="model")
    assert not verdict.holds
    assert verdict.step == STOP + 1


def test_a_save_changes_nothing_and_the_file_does_not_follow_the_run(impl: ModuleType, folder: Path) -> None:
    path = folder / "alias.safetensors"
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    before = digest(impl.snapshot(run))
    impl.save_checkpoint(path, run)
    assert digest(impl.snapshot(run)) == before
    kept = impl.snapshot(run)
    impl.train_n_steps(run, DATA, 3)
    assert digest(kept) == before
    first, second = (impl.resume_from_full_checkpoint(path, DATA) for _ in range(2))
    impl.train_n_steps(first, DATA, 3)
    assert digest(impl.snapshot(second)) == before


def test_a_step_counter_beyond_what_float32_counts_goes_on(impl: ModuleType, folder: Path) -> None:
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, STOP)
    state = impl.snapshot(run)
    big = 2**24 + 1  # in the middle of epoch 3355443
    state = state._replace(
        data=state.data._replace(epoch=(big - 2) // 5),
        step=big,
        optimizer=state.optimizer._replace(t=big),
        schedule=state.schedule._replace(tick=big),
    )
    run = impl.restore(run.config, state, run_id="a" * 32, fingerprint=DATA.fingerprint)
    impl.save_checkpoint(folder / "big.safetensors", run)
    resumed = impl.snapshot(
        impl.train_n_steps(impl.resume_from_full_checkpoint(folder / "big.safetensors", DATA), DATA, 1)
    )
    assert (resumed.optimizer.t, resumed.schedule.tick, resumed.step) == (big + 1,) * 3


def test_the_sample_ids_of_a_stopped_epoch_are_those_of_one_that_never_stopped(impl: ModuleType, folder: Path) -> None:
    seen: list[int] = []
    run = impl.init_run(CONFIG, DATA)
    for _ in range(10):
        run = impl.train_n_steps(run, DATA, 1, on_step=lambda record: seen.extend(record.samples.tolist()))
        impl.save_checkpoint(folder / "ids.safetensors", run)
        run = impl.resume_from_full_checkpoint(folder / "ids.safetensors", DATA)
    assert sorted(seen[:SAMPLES]) == sorted(seen[SAMPLES:]) == list(range(SAMPLES))
    assert seen[:SAMPLES] != seen[SAMPLES:]
    assert np.bincount(seen).tolist() == [2] * SAMPLES


def test_a_run_that_is_asked_to_stop_is_the_run_of_the_steps_it_made(impl: ModuleType) -> None:
    asked: list[int] = []
    run = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, 9, stop=lambda: asked.append(1) or len(asked) > 5)
    assert run.step == 5
    expected = impl.train_n_steps(impl.init_run(CONFIG, DATA), DATA, 5)
    assert compare(impl.snapshot(expected), impl.snapshot(run)).holds
    assert impl.train_n_steps(run, DATA, 3, stop=lambda: True).step == 5


def cause_of(change: object, config: RunConfig = CONFIG) -> str:
    run = numpy_ref.train_n_steps(numpy_ref.init_run(config, DATA), DATA, STOP)
    state = change(numpy_ref.snapshot(run))  # type: ignore[operator]
    other = numpy_ref.restore(config, state, run_id="a" * 32, fingerprint=DATA.fingerprint)
    return laws.likely_cause(*(list(laws.follow(numpy_ref, r, DATA, 1)) for r in (run, other)))


PLAIN = replace(CONFIG, batch_norm=False)


def test_causes_say_what_is_so_and_no_more() -> None:
    ahead = cause_of(lambda s: s._replace(data=s.data._replace(consumed=12)), PLAIN)
    assert "samples not yet seen are skipped" in ahead
    behind = cause_of(lambda s: s._replace(data=s.data._replace(consumed=4)), PLAIN)
    assert "samples already seen come again" in behind
    assert "epochs are counted otherwise" in cause_of(lambda s: s._replace(data=s.data._replace(epoch=9)))

    def nudged(s: RunState) -> RunState:
        m = {name: x * np.float32(1 + 2.0**-11) for name, x in s.optimizer.m.items()}
        return s._replace(optimizer=s.optimizer._replace(m=m))

    assert cause_of(nudged, PLAIN) == "m of the optimizer was changed"
    fresh = numpy_ref.init_run(CONFIG, DATA).state
    statistics = cause_of(lambda s: FAULTS["running statistics fresh"](s, fresh, None))
    assert "the running statistics of batch normalisation" in statistics
    sgd = replace(CONFIG, optimizer="sgd")
    start = numpy_ref.init_run(sgd, DATA).state
    assert "learning rate itself" not in cause_of(lambda s: start._replace(model=s.model), sgd)
