"""The same loops in three other tools, each through the interface that it documents, as far as that reaches.

    pytest-torch   a setup of the loop's objects, its real save and load, and its step; the loop draws its own batches,
                   though the tool's own way is to be given them, and then sees nothing of their order
    TrainParity    a case whose process trains to a step; all that the checkpoint holds is declared as observed
    ckpt-chaos     an unmodified script with atomic, synced saves; killed at file events and started again

Also the script itself: `python -m parity_tests.zoo.others NAME FOLDER STEPS [LAST [RESUME]]`.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import torch

from parity_tests.zoo import proof
from parity_tests.zoo.base import LOOPS, STEPS


class Outcome(NamedTuple):
    """What a tool says of a loop."""

    says: str  # "fault", "none", or "abstains"
    named: str = ""  # the state that it names first, as far as it names any
    text: str = ""


def save(loop: Any, path: Path) -> None:
    """To a file beside it, synced and renamed; the loop's own way where it has one."""
    if hasattr(loop, "save"):
        loop.save(str(path))
        return
    beside = path.with_suffix(".tmp")
    with open(beside, "wb") as file:
        torch.save(loop.state_dict(), file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(beside, path)


def load(loop: Any, path: Path) -> None:
    """A file of `save`'s."""
    loop.load(str(path)) if hasattr(loop, "load") else loop.load_state_dict(torch.load(path, weights_only=True))


def train(name: str, folder: Path, steps: int, last: Path | None = None, resume: Path | None = None) -> None:
    """Train to a step and save as `last`; go on from `resume` or from what the folder holds; save at the stop too."""
    folder.mkdir(parents=True, exist_ok=True)
    loop, stop, done = proof.loop_of(name)(), LOOPS[name].at, 0
    resume = resume or next(iter(folder.glob("checkpoint-*.pt")), None)
    if resume is not None:
        load(loop, resume)
        done = int(resume.stem.split("-")[1])
    sys.stdout.write(f"resumed from step {done}\n")
    for step in range(done + 1, steps + 1):
        loop.step()
        if step == stop and step != steps:
            save(loop, folder / f"checkpoint-{step}.pt")
    save(loop, last or folder / "end.pt")
    weights = {path: value for path, value in proof.picture(loop).items() if path.startswith(("model.", "module."))}
    (folder / "weights.txt").write_text(proof.digest(weights))


def by_pytest_torch(name: str) -> Outcome:
    """`assert_resume_equivalent` at its own tolerances."""
    from pytest_torch import TrainingSetup, assert_resume_equivalent

    known = ("model", "optimizer", "schedule", "scaler")
    if not hasattr(proof.loop_of(name), "make_optimizer"):
        return Outcome("abstains", "", "a setup holds model and optimizer, which this framework keeps to itself")

    class Rest:
        """The loop's other state, as the setup wants it: an object with a state_dict."""

        def __init__(self, setup: Any, part: str) -> None:
            self.setup, self.part = setup, part

        def state_dict(self) -> Any:
            value = getattr(self.setup.loop, self.part)
            return value.state_dict() if hasattr(value, "state_dict") else {"value": value}

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError("the loop loads itself")

    def fill(setup: Any) -> Any:
        loop = setup.loop
        setup.model, setup.optimizers = loop.model, {"optimizer": loop.optimizer}
        schedule = getattr(loop, "schedule", None)
        setup.schedulers = {"schedule": schedule} if hasattr(schedule, "get_last_lr") else {}
        setup.scaler = getattr(loop, "scaler", None)
        setup.state = {part: Rest(setup, part) for part in (*loop.parts, *loop.values) if part not in known}
        return setup

    def make_setup() -> Any:
        loop = proof.loop_of(name)()
        setup = TrainingSetup(loop.model, loop.optimizer)
        setup.loop = loop
        return fill(setup)

    phase = [""]

    def step(setup: Any, batch: Any) -> Any:
        phase[0] = f"step {setup.step_index + 1}"
        result = setup.loop.step()
        return fill(setup) and result

    def load_into(setup: Any, path: Path) -> None:
        phase[0] = "load"
        load(setup.loop, path)
        fill(setup)

    try:
        assert_resume_equivalent(
            make_setup,
            [torch.zeros(1)],
            step,
            steps=STEPS,
            resume_at=LOOPS[name].at,
            load=load_into,
            save=lambda setup, path: save(setup.loop, path),
        )
    except Exception as error:
        own = "does not reproduce" in str(error)  # else it is the loop's
        return Outcome("fault", _of_pytest_torch(str(error)) if own else phase[0], f"{type(error).__name__}: {error}")
    return Outcome("none")


def _of_pytest_torch(text: str) -> str:
    """The state that its message names first."""
    for line in text.partition("State after loading")[2].splitlines():
        if found := re.match(r"\W*random number generators \(([a-z_]*)", line):
            return "rng/" + found[1].removesuffix("_cpu")
        if found := re.match(r"  (\w+)\b.*?: .*?(?:\(e\.g\. ([^)]*)\)|lr )?", line):
            what = {"scheduler": "schedule", "GradScaler": "scaler"}.get(found[1], found[1])
            if " lr " in line:
                return "optimizer/lr"
            place = re.search(
                r"\(e\.g\. \w+\['([\w.]+)'\]|\((?:e\.g\. )?(?:state|scheduler|scaler)\S*?\['(\w+)'\]", line
            )
            part = place and (place[1] or place[2])
            return _ours({"optimizer": f"{what}/{part}"}.get(what, f"{what}.{part}") if part else what)
    return ""


def _ours(path: str) -> str:
    """A path as the registry has it."""
    return path.removesuffix(".value").replace("noise_state", "noise").replace("gradients", "model.grad")


def __getattr__(name: str) -> Any:
    """A case of TrainParity for each loop, by its name."""
    try:
        proof.loop_of(name)
    except KeyError:
        raise AttributeError(name) from None
    return type(name, (Case,), {"name": name, "split_step": LOOPS[name].at, "total_step": STEPS})


class Case:
    """What TrainParity asks for."""

    name: str
    split_step: int
    total_step: int

    def command(self, plan: Any) -> list[str]:
        last = plan.run_dir / f"end-{plan.end_step}.pt"
        words = [self.name, plan.run_dir, plan.end_step, last, *([plan.resume_from] if plan.resume_from else [])]
        return [sys.executable, "-m", "parity_tests.zoo.others", *map(str, words)]

    def checkpoint_path(self, run_dir: Path) -> Path:
        return next(run_dir.glob("end-*.pt"))

    def observe_checkpoint(self, path: Path) -> Mapping[str, object]:
        return _plain(torch.load(path, weights_only=True))


def _plain(value: Any) -> Any:
    """With names for keys, and nothing that the tool does not take."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, int) and abs(value) >= 2**63 else value


def by_trainparity(name: str) -> Outcome:
    """`check_resume`, exact as by default."""
    from trainparity.api import check_resume

    result = check_resume(f"parity_tests.zoo.others:{name}", timeout=120)
    first = result.primary_difference
    path = "" if first is None else re.sub(r"['\"\]]", "", str(first.path)).replace("[", ".").strip("$.")
    path = re.sub(r"^optimizer\.state\.\d+\.", "optimizer/", path)
    path = re.sub(r"^optimizer\.param_groups\.\d+\.", "optimizer/", path)
    path = re.sub(r"^rng\.", "rng/", path)
    says = {"PASS": "none", "FAIL": "fault", "ERROR": "fault"}.get(result.outcome.value.upper(), "abstains")
    return Outcome(says, _ours(path), result.message)


def by_ckpt_chaos(name: str) -> Outcome:
    """`ckpt-chaos run` with kills before three file events, after the first save too; it names no state."""
    with tempfile.TemporaryDirectory() as folder:
        command = [
            *(sys.executable, "-m", "ckpt_chaos", "run", "--modes", "before", "--max-points", "3", "--work", folder),
            *("--result-file", "{out}/weights.txt", "--timeout", "120", "--"),
            *(sys.executable, "-m", "parity_tests.zoo.others", name, "{out}", str(STEPS)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    text = done.stdout + done.stderr
    return Outcome({0: "none", 1: "fault"}.get(done.returncode, "abstains"), "", text[-1500:])


TOOLS: dict[str, tuple[str, Callable[[str], Outcome]]] = {
    "pytest-torch": ("pytest-torch", by_pytest_torch),
    "TrainParity": ("trainparity", by_trainparity),
    "ckpt-chaos": ("ckpt-chaos", by_ckpt_chaos),
}


def installed() -> dict[str, str]:
    """The tools that this environment has, with their versions."""
    found = {}
    for tool, (distribution, _) in TOOLS.items():
        try:
            found[tool] = metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return found


if __name__ == "__main__":
    _, chosen, where, until, *files = sys.argv
    train(chosen, Path(where), int(until), *map(Path, files))
