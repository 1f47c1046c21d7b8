"""One resume, followed leaf by leaf: at the stop, in the file, after the load, and at the end beside a run not stopped.

The run is small and its state is as full as a state gets: batch normalisation, float16 with a loss scale, a schedule.
Its first two updates overflow and are skipped, so that `step`, `t` and `tick` can be told apart.
"""

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from numpy_ref.checkpoint.save_and_resume import read_checkpoint
from numpy_ref.checkpoint.store import checkpoint_path
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.proof.equivalence import Verdict, digest
from numpy_ref.proof.laws import Moment, compare_runs, follow
from numpy_ref.tree import flatten

CONFIG = RunConfig(
    hidden=(32,),
    batch_norm=True,
    batch_size=64,
    learning_rate=4e-3,
    schedule="step",
    step_size=20,
    precision="float16",
    init_scale=2.0**20,
    evaluate_every=8,
)
STOP, STEPS = 33, 50  # in the middle of epoch 1; the rate decays before the stop and after it, and epoch 2 begins
DIGEST = "7d60d3084090521253352edc63457df82efc50e1521859dd72fcda31227750f2"


class Place(NamedTuple):
    """Where a leaf lives, or a group of leaves: its path in the file, and what holds it in a run of each package."""

    leaf: str  # a pattern: "*" stands for the rest of a path, which is `name` in the terms
    what: str
    numpy: str  # Python, after "run."
    torch: str  # the same; p is the parameter called `name`


PLACES = (
    Place("step", "completed steps", "state.step", "step"),
    Place("mode", "training or evaluation", "state.mode", "model.training"),
    Place("model/layer*", "weights and biases", "state.model[name]", "model.state_dict()[name]"),
    Place("model/norm*", "scales, shifts, statistics", "state.model[name]", "model.state_dict()[name]"),
    Place("optimizer/t", "updates, for Adam's correction", "state.optimizer.t", 'optimizer.state[p]["step"]'),
    Place("optimizer/m/*", "first moments", "state.optimizer.m[name]", 'optimizer.state[p]["exp_avg"]'),
    Place("optimizer/v/*", "second moments", "state.optimizer.v[name]", 'optimizer.state[p]["exp_avg_sq"]'),
    Place("schedule/tick", "updates, for the schedule", "state.schedule.tick", "schedule.last_epoch"),
    Place("schedule/rate", "the next learning rate", "state.schedule.rate", 'optimizer.param_groups[0]["lr"]'),
    Place("scaler/scale", "factor of the loss", "state.scaler.scale", "scaler.get_scale()"),
    Place(
        "scaler/growth_tracker",
        "updates since it changed",
        "state.scaler.growth_tracker",
        'scaler.state_dict()["_growth_tracker"]',
    ),
    Place("rng/order/*", "stream at the epoch's start", "state.rng.order", "order"),
    Place("rng/dropout/*", "stream of the masks", "state.rng.dropout", "dropout.get_state()"),
    Place("data/epoch", "epochs completed", "state.data.epoch", "position.epoch"),
    Place("data/consumed", "samples used in this epoch", "state.data.consumed", "position.consumed"),
    Place("best/loss", "lowest held-out loss so far", "state.best.loss", "best.loss"),
    Place("best/step", "the step that had it", "state.best.step", "best.step"),
    Place("best/model/*", "its weights, a copy", "state.best.model[name]", "best.model[name]"),
)


class Row(NamedTuple):
    """A leaf on its way: its value, or for arrays and groups their digest."""

    leaf: str
    stop: Any
    file: Any
    loaded: Any
    resumed: Any  # at the end
    never_stopped: Any  # at the end of the run that had no stop
    stored: str  # how the file holds it

    @property
    def holds(self) -> bool:
        """Whether the way to the file and back changed nothing, and both runs end alike."""
        return bool(self.stop == self.file == self.loaded and self.resumed == self.never_stopped)


class Walk(NamedTuple):
    """All that the walk found out, and what the traps go on from."""

    rows: list[Row]
    verdict: Verdict  # on every leaf and record of every step after the stop
    resumed: str  # digest of the final state
    never_stopped: str
    path: Path  # of the checkpoint
    data: Dataset
    moments: list[Moment]  # of the run without a stop, from step 0

    @property
    def holds(self) -> bool:
        """Whether the resumed run is the run that never stopped, leaf by leaf, and ends at the committed digest."""
        same = self.resumed == self.never_stopped == DIGEST
        return same and self.verdict.holds and all(row.holds for row in self.rows)


def walk_through(impl: Any, directory: Path) -> Walk:
    """Train, stop, save, load into a new object, and go on; beside it, a run without a stop.

    Args:
        impl: the implementation.
        directory: where the checkpoint goes.
    """
    data = impl.load_data("digits")
    moments = list(follow(impl, impl.init_run(CONFIG, data), data, STEPS))

    run = impl.train_n_steps(impl.init_run(CONFIG, data), data, STOP)
    stop = impl.snapshot(run)
    path = checkpoint_path(directory, STOP)
    impl.save_checkpoint(path, run)
    del run  # the interruption: from here on there is the file
    file = read_checkpoint(path).state
    found = list(follow(impl, impl.resume_from_full_checkpoint(path, data), data, STEPS - STOP))

    states = [stop, file, found[0].state, found[-1].state, moments[-1].state]
    rows = [
        Row._make([leaf, *(_value(state, leaf) for state in states), _stored(stop, leaf)])
        for leaf in (place.leaf for place in PLACES)
    ]
    verdict = compare_runs(moments[STOP:], found)
    return Walk(rows, verdict, digest(found[-1].state), digest(moments[-1].state), path, data, moments)


def leaves_of(state: Any, pattern: str) -> dict[str, Any]:
    """The leaves of a state that a place's pattern names."""
    return {path: leaf for path, leaf in flatten(state).items() if fnmatchcase(path, pattern)}


def _value(state: Any, pattern: str) -> Any:
    """A plain leaf itself; of arrays and groups the digest."""
    leaves = leaves_of(state, pattern)
    return digest(leaves) if "*" in pattern else leaves[pattern]


def _stored(state: Any, pattern: str) -> str:
    """How the file holds a place: arrays in its sections, plain values in its header."""
    leaves = leaves_of(state, pattern).values()
    arrays = [leaf for leaf in leaves if isinstance(leaf, np.ndarray)]
    plain = [type(leaf).__name__ for leaf in leaves if not isinstance(leaf, np.ndarray)]
    size = sum(array.nbytes for array in arrays)
    parts = [f"{len(arrays)} array{'s' * (len(arrays) > 1)}, {size:,} bytes"] * bool(arrays)
    return ", ".join(parts + [f"{kind} in the header" for kind in plain])
