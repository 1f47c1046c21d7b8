"""The whole experiment on the digits: never stopped, resumed whole, and resumed with one thing left out.

The resumed run crosses a process: this one writes the checkpoint, another one (the `train` command) finishes the run
and leaves a checkpoint after every step, and this one compares them with the run that never stopped. The implementation
is an argument, and the final state's digest is the same for all.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.checkpoint.save_and_resume import read_checkpoint
from numpy_ref.checkpoint.store import checkpoint_path
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.proof.equivalence import Verdict, digest, largest_distance
from numpy_ref.proof.laws import Moment, compare_runs, follow, resume_with_loss

CONFIG = RunConfig(
    hidden=(64, 64), batch_size=64, learning_rate=4e-3, schedule="step", step_size=20, gamma=0.5, evaluate_every=8
)
STOP, STEPS = 33, 60  # in the middle of the second epoch and of the second period, with a decay before and one after
DIGEST = "d0b20147f9412052d812324a8734622a11f2c8fae60a6ec1e89708250574947e"
LOSSES = {
    "t": "optimizer/t",
    "m": "optimizer/m",
    "v": "optimizer/v",
    "schedule": "schedule",
    "order generator": "rng/order",
    "position": "data/consumed",
    "dropout generator": "rng/dropout",
}


class Outcome(NamedTuple):
    """One row of the table."""

    resume: str  # what the resume did
    left_out: str
    right: bool  # is this the outcome that theory asks for
    verdict: Verdict  # on the whole state for a full resume, on the weights otherwise
    largest: float  # largest distance of a weight over all steps after the stop
    curve: list[tuple[int, float, float]]  # step, held-out loss, largest distance of a weight at that step


class Demo(NamedTuple):
    """All that the demo found out."""

    outcomes: list[Outcome]
    reference: list[tuple[int, float, float]]  # the uninterrupted run's curve, from step 0
    digest: str  # of its final state

    @property
    def right(self) -> bool:
        """Whether every outcome is the right one, and the final state has the committed digest."""
        return self.digest == DIGEST and all(outcome.right for outcome in self.outcomes)


def run_demo(
    impl: Any, directory: Path, words: Sequence[str] = (), note: Callable[[int, int], None] = lambda done, total: None
) -> Demo:
    """Carry out the experiment.

    Args:
        impl: the implementation, a package with a `train` command.
        directory: where the checkpoints go.
        words: further ones for that command, in the other process.
        note: told how many resumes are done, and of how many.
    """
    total = len(LOSSES) + 3
    note(0, total)
    data = impl.load_data("digits")
    moments = list(follow(impl, impl.init_run(CONFIG, data), data, STEPS))
    stopped = impl.train_n_steps(impl.init_run(CONFIG, data), data, STOP)
    path = checkpoint_path(directory, STOP)
    impl.save_checkpoint(path, stopped)
    reference = moments[STOP:]

    outcomes = [_judge(impl, "full", "nothing", reference, _finish_elsewhere(impl, directory, words), data, whole=True)]
    resumes: list[tuple[str, str, Any]] = [
        ("weights only", "all but the weights", impl.resume_from_weights_only(path, data, CONFIG))
    ]
    resumes += [("full but one", name, resume_with_loss(impl, path, data, prefix)) for name, prefix in LOSSES.items()]
    resumes.append(
        ("other seed", "seed (another one)", resume_with_loss(impl, path, data, "rng", seed=CONFIG.seed + 1))
    )
    for kind, left_out, run in resumes:
        note(len(outcomes), total)
        found = list(follow(impl, run, data, STEPS - STOP))
        outcomes.append(_judge(impl, kind, left_out, reference, found, data, whole=False))
    curve = [(m.state.step, _held_out_loss(impl, m, data), 0.0) for m in moments]
    return Demo(outcomes, curve, digest(moments[-1].state))


def _finish_elsewhere(impl: Any, directory: Path, words: Sequence[str]) -> list[Moment]:
    """Resume and finish in a new process; its state after every step, from the files it leaves."""
    command = [sys.executable, "-m", impl.__name__, "train", "--dir", str(directory.resolve()), "--resume", "required"]
    command += ["--steps", str(STEPS), "--every", "1", "--keep", "0", "--quiet", *words]
    status = subprocess.run(command, check=False, cwd=Path(impl.__file__).parent.parent).returncode
    if status:
        raise CheckpointError(
            f"{directory}: expected another process to resume and finish, found that it ended with {status}.\n"
            "    Its own message stands above."
        )
    states = [read_checkpoint(checkpoint_path(directory, step)).state for step in range(STOP, STEPS + 1)]
    return [Moment(state, None) for state in states if state is not None]


def _judge(
    impl: Any, kind: str, left_out: str, reference: list[Moment], found: list[Moment], data: Dataset, *, whole: bool
) -> Outcome:
    verdict = compare_runs(reference, found, leaves=None if whole else "model")
    curve = [
        (here.state.step, _held_out_loss(impl, there, data), largest_distance(here.state.model, there.state.model))
        for here, there in zip(reference, found, strict=True)
    ]
    return Outcome(kind, left_out, verdict.holds == whole, verdict, max(distance for _, _, distance in curve), curve)


def _held_out_loss(impl: Any, moment: Moment, data: Dataset) -> float:
    run = impl.restore(CONFIG, moment.state, run_id="", fingerprint=data.fingerprint)
    return float(impl.evaluate(run, data).loss)
