"""Five traps of a resume. Each is run beside what avoids it, and says in numbers what it does.

Aliasing, a copied worker generator, a half-written file, a lost step count, a reshuffled epoch: in all of them the loop
runs on and the loss looks fine.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from numpy_ref.checkpoint.container import CheckpointError, read_container, write_container
from numpy_ref.checkpoint.disk import Disk
from numpy_ref.checkpoint.durable import replace_file
from numpy_ref.cli.walk.resume import CONFIG, STEPS, STOP, Walk
from numpy_ref.model import parameters
from numpy_ref.proof.equivalence import largest_distance, paired_leaves
from numpy_ref.proof.laws import Moment, follow, resume_with_loss
from numpy_ref.train import RunState
from numpy_ref.tree import copy_tree

DRAWS = 100  # of each worker
REFUSED, OLD, NEW = "refused", "old", "new"


class Trap(NamedTuple):
    """What a trap does, beside what avoids it."""

    name: str
    title: str
    text: str  # the alternative to the figure: what it shows, with its numbers
    holds: bool  # whether the trap harms and what avoids it does not
    numbers: dict[str, list[Any]]  # what the figure draws


def all_traps(impl: Any, walk: Walk, directory: Path) -> list[Trap]:
    """Run every trap.

    Args:
        impl: the implementation.
        walk: the resume that they go on from.
        directory: where files are written, one after another.
    """
    return [
        aliasing(walk),
        copied_generator(impl),
        half_written_file(walk, directory),
        lost_t(impl, walk),
        reshuffled_epoch(impl, walk),
    ]


def aliasing(walk: Walk) -> Trap:
    """A "saved" state that is the live arrays under another name: as the optimizer writes into them, it drifts along.

    Numbers: by step from the stop on, the largest distance of the saved weights from those at the stop.
    """
    moments = walk.moments[STOP:]
    stopped = parameters(moments[0].state.model)
    live = copy_tree(stopped)
    alias, copy = dict(live), copy_tree(live)  # the same arrays, as of a `state_dict()`, and new ones
    drift: dict[str, list[float]] = {"alias": [], "copy": []}
    for moment in moments:
        for name, weights in live.items():
            weights[...] = moment.state.model[name]  # in place, as optimizers do
        drift["alias"].append(largest_distance(stopped, alias))
        drift["copy"].append(largest_distance(stopped, copy))
    holds = drift["alias"][0] == 0 < min(drift["alias"][1:]) and not any(drift["copy"])
    text = (
        f"Distance of the saved weights from those at the stop, steps {STOP} to {STEPS}. The alias drifts: "
        f"{drift['alias'][1]:.2g} after one step, {drift['alias'][-1]:.2g} at the end. The copy stays at "
        f"{max(drift['copy']):.2g}."
    )
    steps = [moment.state.step for moment in moments]
    return Trap("aliasing", "Saved by reference: the saved weights move on", text, holds, {"step": steps} | drift)


def copied_generator(impl: Any) -> Trap:
    """Loader workers that each hold a copy of one generator, as forked processes do, and so repeat one stream.

    Numbers: what two workers draw, from copies and from streams of their own.
    """
    rng = import_module(f"{impl.__name__}.rng")
    shared = rng.init_stream(CONFIG.seed, "noise")
    copied = [_drawn(rng, shared) for _ in range(2)]
    own = [_drawn(rng, rng.init_stream(CONFIG.seed, f"noise of worker {worker}")) for worker in range(2)]
    same = [sum(x == y for x, y in zip(*pair, strict=True)) for pair in (copied, own)]
    text = (
        f"Draws of worker 1 against those of worker 0. With copies of one generator {same[0]} of {DRAWS} pairs are "
        f"equal: all lie on the diagonal. With a stream each {same[1]} of {DRAWS} are: they fill the square."
    )
    numbers = {"copied 0": copied[0], "copied 1": copied[1], "own 0": own[0], "own 1": own[1]}
    title = "Copied generator: both workers add the same noise"
    return Trap("copied-generator", title, text, same == [DRAWS, 0], numbers)


def _drawn(rng: Any, stream: Any) -> list[float]:
    """What a worker draws from a generator that it makes of this state."""
    return [float(u) for u in rng.draw_uniform(rng.generator_from(stream), DRAWS)]


def half_written_file(walk: Walk, directory: Path) -> Trap:
    """A writer that is killed after each byte: what a reader then finds under the file's name.

    One writes straight to the name, the other to a temporary that is synchronised and then renamed. The file is a small
    one, in the format of checkpoints. Numbers: "old", "new" or "refused" by the byte after which the kill came; the
    second list ends with kills after the fsync and after the rename.
    """
    old, new = (_content(walk.moments[step].state) for step in (STOP, STEPS))
    straight, renamed = directory / "straight", directory / "renamed"
    with replace_file(renamed) as file:
        write_container(file, *new)
    whole = renamed.read_bytes()
    found: dict[str, list[str]] = {"straight": [], "renamed": []}
    for byte in range(len(whole) + 1):
        straight.write_bytes(whole[:byte])  # what stood there before was gone when the file was opened
        found["straight"].append(_found(straight))
    with replace_file(renamed) as file:
        write_container(file, *old)
    for byte in range(len(whole)):
        found["renamed"].append(_killed(renamed, new, Dying(byte)))
    for call in ("fsync", "replace"):
        found["renamed"].append(_killed(renamed, new, Dying(after=call)))
    counts = {name: Counter(each) for name, each in found.items()}
    text = (
        f"What a reader finds after a kill at each byte of {len(whole)}. Written straight to its name, the file is "
        f"refused after {counts['straight'][REFUSED]} of {len(found['straight'])} kills, and the old one found after "
        f"{counts['straight'][OLD]}. Written to a temporary and renamed: refused after {counts['renamed'][REFUSED]} of "
        f"{len(found['renamed'])}, old after {counts['renamed'][OLD]}, new after {counts['renamed'][NEW]}."
    )
    holds = found == {
        "straight": [REFUSED] * len(whole) + [NEW],
        "renamed": [OLD] * (len(whole) + 1) + [NEW],
    }
    title = "Half-written file: neither the old checkpoint nor the new one"
    return Trap("half-written-file", title, text, holds, dict(found))


class Killed(BaseException):
    """The writer ends here."""


class Dying(Disk):
    """A disk whose writer is killed: after so many bytes, or after a call. The dead clean nothing up."""

    def __init__(self, left: int | None = None, *, after: str = "") -> None:
        self.left, self.after = left, after

    def write(self, file: BinaryIO, data: bytes | memoryview) -> int:
        """Write what is left to write, and die."""
        if self.left is None:
            return super().write(file, data)
        taken = super().write(file, data[: self.left])
        super().flush(file)  # these bytes are on their way
        self.left -= taken
        if taken < len(data):
            raise Killed
        return taken

    def fsync(self, file: BinaryIO) -> None:
        """Synchronise, and perhaps die."""
        super().fsync(file)
        if self.after == "fsync":
            raise Killed

    def replace(self, source: str, target: str) -> None:
        """Rename, and perhaps die."""
        super().replace(source, target)
        if self.after == "replace":
            raise Killed

    def unlink(self, path: str) -> None:
        """Leave everything where it lies."""


def _content(state: RunState) -> tuple[dict[str, Any], dict[str, Any]]:
    """Arrays and manifest of a small file: the last layer's biases, and the step."""
    return {"model/layer1.bias": state.model["layer1.bias"]}, {"step": state.step}


def _killed(path: Path, content: tuple[dict[str, Any], dict[str, Any]], disk: Dying) -> str:
    """What is found at a path whose writer was killed."""
    try:
        with replace_file(path, disk=disk) as file:
            write_container(file, *content)
    except Killed:
        return _found(path)
    raise AssertionError("the writer was not killed")


def _found(path: Path) -> str:
    """What a reader finds."""
    try:
        _, manifest = read_container(path)
    except CheckpointError:
        return REFUSED
    return {STOP: OLD, STEPS: NEW}[manifest["step"]]


def lost_t(impl: Any, walk: Walk) -> Trap:
    """Adam resumed with its moments and without its step count: bias correction starts again, and steps are too long.

    Numbers: the length of the update by step, over all weights; of the run that never stopped, and from the stop on of
    runs resumed with `t` and without.
    """
    kept, lost = (
        lengths(list(follow(impl, run, walk.data, STEPS - STOP)))
        for run in (
            impl.resume_from_full_checkpoint(walk.path, walk.data),
            resume_with_loss(impl, walk.path, walk.data, "optimizer/t"),
        )
    )
    never = lengths(walk.moments)
    ratio = [x / y for x, y in zip(lost, kept, strict=True)]
    text = (
        f"Length of the update by step. With t kept the resumed run repeats the run that never stopped. With t lost "
        f"the first step after the stop is {ratio[0]:.2f} times as long, and later ones are down to {min(ratio):.2f} "
        "times."
    )
    holds = kept == never[STOP:] and ratio[0] > 1 > min(ratio)
    numbers = {"never stopped": never, "kept": kept, "lost": lost}
    return Trap("lost-t", "Lost t: the first step is too long, the next too short", text, holds, numbers)


def lengths(moments: Sequence[Moment]) -> list[float]:
    """The length of each step's update, over all weights and biases."""
    return [_length(before.state, after.state) for before, after in pairwise(moments)]


def _length(before: RunState, after: RunState) -> float:
    """The distance between the weights of two states."""
    pairs = paired_leaves(parameters(before.model), parameters(after.model))
    return float(np.sqrt(sum(np.sum((y.astype(np.float64) - x) ** 2) for x, y in pairs)))


def reshuffled_epoch(impl: Any, walk: Walk) -> Trap:
    """An epoch that goes on in another order: some of its samples come twice, others never.

    Numbers: how many samples were trained never, once, twice in the epoch of the stop.
    """
    epoch = walk.moments[STOP].state.data.epoch
    before = samples_of(walk.moments[: STOP + 1], epoch)
    found: dict[str, list[int]] = {}
    resumes: dict[str, Callable[[], Any]] = {
        "kept": lambda: impl.resume_from_full_checkpoint(walk.path, walk.data),
        "lost": lambda: resume_with_loss(impl, walk.path, walk.data, "rng/order"),
    }
    for name, resume in resumes.items():
        samples = before + samples_of(list(follow(impl, resume(), walk.data, STEPS - STOP)), epoch)
        times = np.bincount(samples, minlength=len(walk.data.labels))
        found[name] = np.bincount(times, minlength=3).tolist()
    (never, _, twice), total = found["lost"], len(walk.data.labels)
    text = (
        f"How often each of {total:,} samples was trained in the epoch of the stop. With position and order kept: "
        f"{found['kept'][1]:,} once. With the order lost: {never:,} never, {found['lost'][1]:,} once, {twice:,} twice."
    )
    holds = found["kept"] == [0, total, 0] and never == twice > 0
    return Trap("reshuffled-epoch", "Reshuffled epoch: some samples twice, others never", text, holds, dict(found))


def samples_of(moments: Sequence[Moment], epoch: int) -> list[int]:
    """The samples that these moments' steps trained in an epoch."""
    steps = pairwise(moments)
    used = [after.record.samples for before, after in steps if after.record and before.state.data.epoch == epoch]
    return [int(sample) for samples in used for sample in samples]
