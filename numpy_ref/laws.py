"""The laws about resuming, each written once.

A law takes the implementation as an argument: any module with `init_run`, `train_n_steps`, `save_checkpoint`,
`resume_from_full_checkpoint`, `resume_from_weights_only`, `snapshot` and `restore`. It rebuilds the resumed run from
nothing but the file and the data, and returns a `Verdict` that says what was lost when it does not hold.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.equivalence import Tolerance, Verdict, compare, is_below, paired_leaves
from numpy_ref.train import RunState, StepRecord
from numpy_ref.tree import flatten, map_leaves

Array = np.ndarray[Any, np.dtype[Any]]


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
    lost = set(compare(here, there).leaves)
    if not lost:
        return "the state was whole at the resume: something outside RunState changed"
    causes = []
    steps = [moments[1] for moments in (expected, found) if len(moments) > 1]
    paired = len(steps) == 2

    def lost_below(prefix: str) -> bool:
        return any(is_below(path, prefix) for path in lost)

    if lost_below("step") and lost_below("optimizer") and not lost_below("model"):
        text = "a new run on the old weights: step, optimizer, schedule, order, position and dropout start anew"
        return text + (f"; {_by_the_rate(found[0].state, found[1].state)}" if paired else "")
    if lost_below("model"):
        causes.append("the weights at the resume are not those that were saved")
    if lost_below("mode"):
        causes.append(f"the mode is {there.mode!r}, not {here.mode!r}")
    if lost_below("step"):
        causes.append(f"the step counter is {there.step}, not {here.step}")
    if lost_below("optimizer"):
        causes.append(_optimizer_cause(here, there, lost_below, found[0], found[1] if paired else None, expected))
    if lost_below("schedule"):
        causes.append(
            f"the schedule is at tick {there.schedule.tick}, not {here.schedule.tick}: the next rate is "
            f"{there.schedule.rate:.3g}, not {here.schedule.rate:.3g}"
        )
    if lost_below("data"):
        causes.append(
            f"the position is epoch {there.data.epoch}, sample {there.data.consumed}, not epoch {here.data.epoch}, "
            f"sample {here.data.consumed}: samples already seen come again"
        )
    if lost_below("rng/order"):
        text = "the order's generator is not where it was: the epoch is shuffled anew"
        if paired and steps[0].record is not None and steps[1].record is not None:
            ours, theirs = steps[0].record.samples, steps[1].record.samples
            others = int(np.isin(theirs, ours, invert=True).sum())
            text += f" ({others} of {len(theirs)} samples of the next step are others)"
        causes.append(text)
    if lost_below("rng/dropout"):
        causes.append("the dropout generator is not where it was: other units are dropped")
    if lost_below("best"):
        causes.append(f"the best so far is step {there.best.step}, not {here.best.step}")
    return "; ".join(causes)


def _optimizer_cause(
    here: RunState, there: RunState, lost_below: Any, resumed: Moment, after: Moment | None, expected: Sequence[Moment]
) -> str:
    names = [name for name in here.optimizer._fields if lost_below(f"optimizer/{name}")]
    what = f"{' and '.join(names)} of the optimizer {'was' if len(names) == 1 else 'were'} lost"
    if names == ["t"]:
        what = f"the optimizer's t is {there.optimizer.t}, not {here.optimizer.t}"
    if after is None:
        return what
    moved, usual = _moves(resumed.state, after.state), _moves(expected[0].state, expected[1].state)
    size = float(np.linalg.norm(moved) / max(float(np.linalg.norm(usual)), 1e-300))
    what += f": the first step was {size:.2g} times as long as it should be"
    return f"{what}; {_by_the_rate(resumed.state, after.state)}" if {"t", "m", "v"} <= set(names) else what


def _by_the_rate(before: RunState, after: RunState) -> str:
    """The mark of Adam's first step: every weight moves by the learning rate, whatever its gradient."""
    moved = _moves(before, after)
    share = float(np.mean(np.abs(moved[moved > 0] / before.schedule.rate - 1) < 0.01)) if moved.any() else 0.0
    return f"{share:.0%} of the weights that moved in the first step moved by the learning rate itself"


def _moves(before: RunState, after: RunState) -> Array:
    """The size of every weight's move."""
    pairs = paired_leaves(before.model, after.model)
    moves = [np.abs(y.astype(np.float64) - x).reshape(-1) for x, y in pairs if x.dtype.kind == "f"]
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
        run = impl.resume_from_full_checkpoint(path, data)
        verdict = compare_runs(reference[stop : end + 1], list(follow(impl, run, data, end - stop)))
        if not verdict.holds:
            return verdict
        done = stop
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
