"""The laws about resuming, each written once.

A law takes the implementation as an argument: any module with `init_run`, `train_n_steps`, `save_checkpoint`,
`resume_from_full_checkpoint`, `resume_from_weights_only`, `snapshot` and `restore`. It rebuilds the resumed run from
nothing but the file and the data, and returns a `Verdict` that says what was lost when it does not hold.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref import model as network
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.optim import AdamState, ScalerState
from numpy_ref.proof.equivalence import Tolerance, Verdict, compare, is_below, paired_leaves
from numpy_ref.train import RunState, StepRecord
from numpy_ref.tree import flatten, map_leaves
from numpy_ref.types import Array


class Moment(NamedTuple):
    """One point of a run: its state, and what the step that led there did."""

    state: RunState
    record: StepRecord | None  # None where the run was started or resumed


def follow(impl: Any, run: Any, data: Dataset, steps: int) -> Iterator[Moment]:
    """The run's moments: as it is now, then after each of `steps` more updates."""
    yield Moment(impl.snapshot(run), None)
    for _ in range(steps):
        records: list[StepRecord] = []
        run = impl.train_n_steps(run, data, 1, on_step=records.append)
        yield Moment(impl.snapshot(run), records[0])


def compare_runs(
    expected: Sequence[Moment],
    found: Sequence[Moment],
    *,
    leaves: str | None = None,
    tolerance: Tolerance | None = None,
) -> Verdict:
    """Compare two stretches of a run moment by moment and name the first step that differs.

    Args:
        expected: moments of the uninterrupted run, from the resume on.
        found: moments of the resumed run.
        leaves: compare only leaves at or below this path of the state, as in "model"; default is all of the state and
            the records (loss, rate and sample indices of every step).
        tolerance: as for `compare`.
    """
    if len(expected) != len(found):
        raise ValueError(f"compare_runs: expected {len(expected)} moments, found {len(found)}")
    last = Verdict(True, "bitwise")
    for ours, theirs in zip(expected, found, strict=True):
        sides = []
        for moment in (ours, theirs):
            tree = flatten(moment.state)
            if leaves is None and ours.record is not None and theirs.record is not None:
                tree |= flatten(moment.record, "record")
            sides.append({path: leaf for path, leaf in tree.items() if leaves is None or is_below(path, leaves)})
        verdict = compare(*sides, tolerance=tolerance)
        if not verdict.holds:
            return verdict._replace(step=ours.state.step, cause=likely_cause(expected, found))
        if verdict.share >= last.share and verdict.relation != "bitwise":
            last = verdict
    return last


def likely_cause(expected: Sequence[Moment], found: Sequence[Moment]) -> str:
    """What was lost, in words, from the state at the resume and from what the first step after it did.

    Args:
        expected: moments of the uninterrupted run from the resume on; at least the first.
        found: the same moments of the resumed run.
    """
    here, there = expected[0].state, found[0].state
    lost = compare(here, there).leaves
    if not lost:
        return "the state was whole at the resume: something outside RunState changed"
    groups = {prefix for prefix in CAUSES if any(is_below(path, prefix) for path in lost)}
    if {"step", "optimizer"} <= groups and "model" not in groups:
        text = "a new run on the old weights: step, optimizer, schedule, order, position and dropout start anew"
        return text + _by_the_rate(found)
    texts = [
        CAUSES[prefix](expected, found, [path for path in lost if is_below(path, prefix)])
        for prefix in CAUSES
        if prefix in groups
    ]
    return "; ".join(texts)


Cause = Callable[[Sequence[Moment], Sequence[Moment], list[str]], str]


def _model_cause(expected: Sequence[Moment], found: Sequence[Moment], lost: list[str]) -> str:
    if all(path.endswith(network.BUFFERS) for path in lost):
        return "the running statistics of batch normalisation at the resume are not those that were saved"
    return "the weights at the resume are not those that were saved"


def _optimizer_cause(expected: Sequence[Moment], found: Sequence[Moment], lost: list[str]) -> str:
    here, there = expected[0].state.optimizer, found[0].state.optimizer
    names = [name for name in here._fields if any(is_below(path, f"optimizer/{name}") for path in lost)]
    gone = not any(np.any(x) for name in names for x in flatten(getattr(there, name)).values())
    text = (
        f"{' and '.join(names)} of the optimizer {'was' if len(names) == 1 else 'were'} {'lost' if gone else 'changed'}"
    )
    if names == ["t"]:
        text = f"the optimizer's t is {there.t}, not {here.t}"
    if len(expected) > 1 and len(found) > 1:
        moved, usual = (np.linalg.norm(_moves(side[0].state, side[1].state)) for side in (found, expected))
        times = float(moved) / max(float(usual), 1e-300)
        if not 0.99 < times < 1.01:
            text += f": the first step was {times:.2g} times as long as it should be"
    return text + (_by_the_rate(found) if gone and {"t", "m", "v"} <= set(names) else "")


def _schedule_cause(expected: Sequence[Moment], found: Sequence[Moment], lost: list[str]) -> str:
    here, there = expected[0].state.schedule, found[0].state.schedule
    return (
        f"the schedule is at tick {there.tick}, not {here.tick}: the next rate is {there.rate:.3g}, not {here.rate:.3g}"
    )


def _scaler_cause(expected: Sequence[Moment], found: Sequence[Moment], lost: list[str]) -> str:
    here, there = expected[0].state.scaler, found[0].state.scaler
    if not (isinstance(here, ScalerState) and isinstance(there, ScalerState)):
        return "losses are scaled on one side only"
    text = f"the loss scale is {there.scale:g}, not {here.scale:g}"
    if there.scale == here.scale:
        counts = f"{there.growth_tracker} updates since it changed, not {here.growth_tracker}"
        text = f"the loss scale grows at another step: {counts}"
    records = [side[1].record for side in (expected, found) if len(side) > 1]
    skipped = [record.skipped for record in records if record is not None]
    if len(set(skipped)) == 2:
        text += f": the next update was {'skipped' if skipped[1] else 'not skipped'}"
    return text


def _position_cause(expected: Sequence[Moment], found: Sequence[Moment], lost: list[str]) -> str:
    here, there = expected[0].state.data, found[0].state.data
    text = (
        f"the position is epoch {there.epoch}, sample {there.consumed}, not epoch {here.epoch}, sample {here.consumed}"
    )
    if there.consumed == here.consumed:
        return text + ": epochs are counted otherwise"
    seen = there.consumed < here.consumed
    return text + (": samples already seen come again" if seen else ": samples not yet seen are skipped")


def _order_cause(expected: Sequence[Moment], found: Sequence[Moment], lost: list[str]) -> str:
    text = "the order's generator is not where it was: the epoch is shuffled anew"
    records = [side[1].record if len(side) > 1 else None for side in (expected, found)]
    if records[0] is not None and records[1] is not None:
        ours, theirs = records[0].samples, records[1].samples
        others = int(np.isin(theirs, ours, invert=True).sum())
        text += f" ({others} of {len(theirs)} samples of the next step are others)"
    return text


CAUSES: dict[str, Cause] = {
    "model": _model_cause,
    "mode": lambda e, f, lost: f"the mode is {f[0].state.mode!r}, not {e[0].state.mode!r}",
    "step": lambda e, f, lost: f"the step counter is {f[0].state.step}, not {e[0].state.step}",
    "optimizer": _optimizer_cause,
    "schedule": _schedule_cause,
    "scaler": _scaler_cause,
    "data": _position_cause,
    "rng/order": _order_cause,
    "rng/dropout": lambda e, f, lost: "the dropout generator is not where it was: other units are dropped",
    "best": lambda e, f, lost: f"the best so far is step {f[0].state.best.step}, not {e[0].state.best.step}",
}


def _by_the_rate(found: Sequence[Moment]) -> str:
    """The mark of Adam's first step, if it shows: every weight moves by the learning rate, whatever its gradient."""
    if len(found) < 2 or not isinstance(found[0].state.optimizer, AdamState):
        return ""
    moved = _moves(found[0].state, found[1].state)
    share = float(np.mean(np.abs(moved[moved > 0] / found[0].state.schedule.rate - 1) < 0.01)) if moved.any() else 0.0
    return f"; {share:.0%} of the weights that moved in the first step moved by the learning rate itself"


def _moves(before: RunState, after: RunState) -> Array:
    """The size of every weight's move."""
    pairs = paired_leaves(network.parameters(before.model), network.parameters(after.model))
    moves = [np.abs(y.astype(np.float64) - x).reshape(-1) for x, y in pairs]
    return np.concatenate(moves)


def check_resume(
    impl: Any, config: RunConfig, data: Dataset, directory: str | PathLike[str], *, stops: Sequence[int], steps: int
) -> Verdict:
    """Law: a run stopped after each of `stops` and resumed from the file equals one that never stopped.

    Args:
        impl: the implementation.
        config: the settings.
        data: the data set.
        directory: where the checkpoints go.
        stops: steps after which the run is saved, dropped and resumed, in increasing order.
        steps: steps in all.

    Returns:
        A verdict that holds when every leaf of the state and every record is bitwise equal, at every step.
    """
    reference = list(follow(impl, impl.init_run(config, data), data, steps))
    run = impl.init_run(config, data)
    done = 0
    for stop, end in zip(stops, [*stops[1:], steps], strict=True):
        run = impl.train_n_steps(run, data, stop - done)
        path = Path(directory) / f"step-{stop:08d}.safetensors"
        impl.save_checkpoint(path, run)
        resumed = impl.resume_from_full_checkpoint(path, data)
        verdict = compare_runs(reference[stop : end + 1], list(follow(impl, resumed, data, end - stop)))
        if not verdict.holds:
            return verdict
        run, done = impl.resume_from_full_checkpoint(path, data), stop  # a run that was followed may be used up
    return Verdict(True, "bitwise")


def check_weights_only_differs(
    impl: Any, config: RunConfig, data: Dataset, directory: str | PathLike[str], *, stop: int, steps: int
) -> Verdict:
    """Law: a resume from weights only starts a new run on those weights, and so ends elsewhere.

    Returns:
        A verdict that holds when the resumed state is bitwise the state of a fresh run with the saved weights, and the
        weights differ from the uninterrupted run's within `steps` steps; it then tells where they first do.
    """
    run = impl.train_n_steps(impl.init_run(config, data), data, stop)
    path = Path(directory) / f"step-{stop:08d}.safetensors"
    impl.save_checkpoint(path, run)
    resumed = impl.resume_from_weights_only(path, data, config)
    weights = impl.snapshot(run).model
    fresh = impl.snapshot(impl.init_run(config, data))
    started = compare(fresh._replace(model=weights, best=fresh.best._replace(model=weights)), impl.snapshot(resumed))
    if not started.holds:
        return started._replace(cause="a weights-only resume must take the weights and nothing else")
    reference = list(follow(impl, run, data, steps))
    verdict = compare_runs(reference, list(follow(impl, resumed, data, steps)), leaves="model")
    return verdict._replace(holds=not verdict.holds)


def lose(state: RunState, fresh: RunState, prefix: str) -> RunState:
    """The state with every leaf at or below a path as it is in a fresh run."""
    start = flatten(fresh)
    return map_leaves(lambda path, leaf: start[path] if is_below(path, prefix) else leaf, state)


def resume_with_loss(
    impl: Any, path: str | PathLike[str], data: Dataset, prefix: str, *, seed: int | None = None
) -> Any:
    """A full resume that loses one state: what it held is as in a fresh run, of another seed if one is given."""
    run = impl.resume_from_full_checkpoint(path, data)
    config = run.config if seed is None else replace(run.config, seed=seed)
    fresh = impl.snapshot(impl.init_run(config, data))
    state = lose(impl.snapshot(run), fresh, prefix)
    return impl.restore(config, state, run_id=run.run_id, fingerprint=run.fingerprint)


def check_lost_state_is_caught(
    impl: Any, config: RunConfig, data: Dataset, directory: str | PathLike[str], prefix: str, *, stop: int, steps: int
) -> Verdict:
    """Law: a resume that loses the leaves at or below `prefix` is told from a whole one, and the loss is named.

    Returns:
        A verdict that holds when the comparison finds the difference and every leaf that it finds at the resume itself
        lies at or below the prefix.
    """
    run = impl.train_n_steps(impl.init_run(config, data), data, stop)
    path = Path(directory) / f"step-{stop:08d}.safetensors"
    impl.save_checkpoint(path, run)
    reference = list(follow(impl, run, data, steps))
    resumed = list(follow(impl, resume_with_loss(impl, path, data, prefix), data, steps))
    verdict = compare_runs(reference, resumed)
    named = compare(reference[0].state, resumed[0].state).leaves
    caught = not verdict.holds and bool(named) and all(is_below(leaf, prefix) for leaf in named)
    return verdict._replace(holds=caught)
