"""The audit of a script as it is, from two commands: one trains N steps and saves, the other resumes and saves.

    reference   the script to N; again in another process: the control
    a stop      the script to s, then the resume of its file to N; the two end files are compared leaf by leaf
    the load    where the ends differ, the resume of a file that has its steps already: it should save it as it was
    the check   the resume of a file in which every tensor has one bit changed: an equal end tells that it was not read

What happens between two saves is not seen, so no cause is proved, and the first difference is one of the load where
the load changes anything, else one of the end.
"""

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.proof.equivalence import is_below
from torch_port.audit import foreign
from torch_port.audit.foreign.refusal import allowed_by_name
from torch_port.audit.judge.findings import Control, Difference, Failure, Report, State, Stop
from torch_port.audit.judge.stops import checked_stops
from torch_port.audit.script.file_causes import differences, miscounted, stop_of, worst
from torch_port.audit.script.placeholders import check_commands, words_of
from torch_port.audit.script.saved import NAME, Saved, Tree, read_all

TIMEOUT = 600.0


def audit_script(
    script: str,
    resume: str,
    *,
    steps: int = 24,
    at: Sequence[int | tuple[int, ...]] | None = None,
    every_step: bool = False,
    timeout: float = TIMEOUT,
    allow: Sequence[str] = (),
) -> Report:
    """Audit a script by its end files.

    Args:
        script: the command that trains anew; {steps} and {path} are replaced. It may save one file, a directory, or
            several files whose names begin with the path.
        resume: the command that loads {path}, goes on to {steps}, which is {left} more, and saves to {path}.
        steps: steps in all, 2 or more.
        at: where to stop, each from 1 to steps - 1, or several for one run; default is the first step, one past the
            middle and the last but one.
        every_step: stop after every step instead.
        timeout: seconds for each command.
        allow: classes that the files may hold, as for `foreign.read`.

    Returns:
        The report; a command that fails, hangs or saves nothing is its failure.

    Raises:
        ValueError: stops or commands that make no audit, or a class that cannot be allowed.
    """
    begun = time.perf_counter()
    check_commands(script, resume)
    allowed_by_name(allow)  # a wrong one is refused before anything runs
    if every_step:
        at = range(1, steps)
    elif at is None:
        at = sorted({1, min(steps // 2 + 1, steps - 1), steps - 1})
    name, stops = f"{script} | {resume}", checked_stops(at, steps)
    with tempfile.TemporaryDirectory(prefix="audit-") as folder:
        commands = _Commands(Path(folder), script, resume, timeout, allow)
        try:
            found = _audit(commands, name, steps, stops)
        except _Failed as failed:
            found = Report(name, steps, "failed", failure=failed.failure)
    return found._replace(seconds=time.perf_counter() - begun)


def _audit(commands: "_Commands", name: str, steps: int, places: Sequence[tuple[int, ...]]) -> Report:
    """The control, the stops and the check."""
    home = commands.train(steps, "reference")
    whole, ends = commands.saved(home), _names(home)
    reference = whole.leaves
    again = commands.read(commands.train(steps, "control"))
    apart = _differences(steps, reference, again)
    if {found.path for found in apart} <= whole.beside < reference.keys():  # times, names: of a run, and no state
        commands.passed_over = {found.path for found in apart}
        reference = {path: leaf for path, leaf in reference.items() if path not in commands.passed_over}
        apart = []
    note = "only what is saved at the end is compared; the first difference may lie further back"
    control = Control(not apart, worst(apart), (note,), {found.path: found.distance for found in apart})
    if apart:
        return Report(name, steps, "not deterministic", control)
    stops: list[Stop] = []
    states, lacks, set_otherwise, can_load = dict[str, State](), dict[str, None](), dict[str, None](), True
    for number, place in enumerate(places):
        home = commands.train(place[0], f"stop-{number}")
        saved = _with_counters(commands.read(home), place[0], reference, steps)
        for step, end in zip(place, (*place[1:], steps), strict=True):
            commands.resume(home, step, end)
        found = _differences(steps, reference, commands.read(home, ends))
        if found and {one.path for one in found} <= whole.settings:
            set_otherwise |= dict.fromkeys(one.path for one in found)
            found = []
        changed = _changed_by_load(commands, saved, place[0], f"load-{number}") if found and can_load else None
        if changed is not None:
            changed = [change for change in changed if change.path not in whole.settings]
        can_load = can_load and (changed is not None or not found)  # as it is at one stop, so at all
        stops.append(stop_of(place, saved, changed, found, whole.unread))
        if not miscounted(saved, found) and not whole.unread:
            lacks |= dict.fromkeys(foreign.lacks(saved))
        for state in _states(saved, changed):
            states[state.path] = state if state.path not in states or changed is not None else states[state.path]
    warnings = [f"not compared: {path}" for path, leaf in reference.items() if leaf.form == "other"]
    warnings += [f"not compared, for two uninterrupted runs differ in it: {path}" for path in commands.passed_over]
    warnings += [f"taken for a setting, though the resumed run saved another: {path}" for path in set_otherwise]
    warnings += [f"{name} was not read by the audit" for name in whole.unread]
    verdict = "bitwise" if all(stop.holds for stop in stops) else "broken"
    if verdict == "broken":
        warnings += [f"what is saved has {text}" for text in lacks if not any(stop.lost for stop in stops)]
    elif fault := _unread(commands, places[0][0], steps, reference, ends):
        verdict, warnings = "broken", [fault, *warnings]
    return Report(name, steps, verdict, control, tuple(stops), tuple(states.values()), tuple(warnings))


def _with_counters(saved: Tree, step: int, reference: Tree, steps: int) -> Tree:
    """What is saved; a number that is the step in both files counts steps, whatever its name."""

    def counts(path: str, leaf: foreign.Leaf) -> bool:
        pair = leaf.value, reference[path].value if path in reference else None
        return leaf.kind == "other" and all(type(value) is int for value in pair) and pair == (step, steps)

    return {path: leaf._replace(kind="counter") if counts(path, leaf) else leaf for path, leaf in saved.items()}


def _changed_by_load(commands: "_Commands", saved: Tree, step: int, name: str) -> list[foreign.Change] | None:
    """What differs when a file is loaded and saved again with no step between; None if that cannot be told."""
    home = commands.train(step, name)
    try:
        commands.resume(home, step, step)
        found = commands.read(home)
    except _Failed:
        return None
    changes = [change for change in foreign.differences(saved, found) if change.path in saved]
    paths = {change.path for change in changes}
    model = {path for path, leaf in saved.items() if leaf.kind == "model"}
    went_on = (model or saved.keys()) <= paths or any(
        saved[path].kind == "counter" for path in paths
    )  # a step further, or more
    return None if went_on else changes


def _states(saved: Tree, changed: Sequence[foreign.Change] | None) -> list[State]:
    """The parts of what is saved; each is restored if none of its leaves is changed by a load."""
    parts = []
    for kind in foreign.kinds(saved):
        leaves = [one.path for one in changed or () if kind.path == "" or is_below(one.path, kind.path)]
        restored = None if changed is None else not leaves
        parts.append(State(kind.path or "all", kind.kind, True, restored, None, kind.text))
    return parts


def _differences(steps: int, expected: Tree, found: Tree) -> list[Difference]:
    """Every leaf of the end files that differs."""
    return differences(steps, foreign.differences(expected, found))


def _unread(commands: "_Commands", step: int, steps: int, reference: Tree, ends: Sequence[str]) -> str:
    """What is amiss if the end does not depend on the file that is resumed from."""
    home = commands.train(step, "changed")
    if not _change(home, commands.read(home)):
        return ""
    try:
        commands.resume(home, step, steps)
        same = not _differences(steps, reference, commands.read(home, ends))
    except _Failed:  # it was read, and refused
        return ""
    text = (
        f"the resume does not use what was saved: with a bit changed in every tensor saved after step {step} it ends "
        "as before, so it trains anew"
    )
    return text if same else ""


def _change(home: Path, tree: Tree) -> bool:
    """Change one bit of every tensor that was saved; whether there was one to change."""
    changed = False
    for file in _files(home):
        content = bytearray(file.read_bytes())
        for leaf in tree.values():
            raw = _raw(leaf.value) if leaf.form == "tensor" else b""
            place = content.find(raw) if len(raw) >= 16 and any(raw) else -1  # fewer could be found anywhere
            if place >= 0:
                content[place] ^= 1
                changed = True
        file.write_bytes(content)
    return changed


def _raw(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _files(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*") if path.is_file())


class _Failed(Exception):
    """A command that did not do its part."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class _Commands:
    """The two commands, with a directory of its own for each run."""

    def __init__(self, folder: Path, script: str, resume: str, timeout: float, allow: Sequence[str]) -> None:
        self.folder, self.texts, self.timeout, self.allow, self.count = folder, (script, resume), timeout, allow, 0
        self.passed_over: set[str] = set()  # paths

    def train(self, steps: int, name: str) -> Path:
        """Train anew for so many steps; the directory in which it was saved."""
        home = self.folder / name
        home.mkdir()
        self._run(self.texts[0], home, steps, steps, f"the script, {steps} steps")
        return home

    def resume(self, home: Path, step: int, steps: int) -> None:
        """Resume from what is saved in a directory, in which `step` steps are done, to `steps`."""
        before = _stamp(home)
        phase = f"the resume from step {step} to {steps}"
        self._run(self.texts[1], home, steps, steps - step, phase)
        if _stamp(home) == before:
            error = "the command ended well and left {path} as it was; it must save there at its end"
            raise _Failed(Failure(phase, error))

    def saved(self, home: Path, names: Sequence[str] | None = None) -> Saved:
        """All that is saved, or these files."""
        try:
            return read_all(home, _names(home) if names is None else names, self.allow)
        except CheckpointError as error:
            raise _Failed(Failure("reading what was saved", f"{error}")) from None

    def read(self, home: Path, names: Sequence[str] | None = None) -> Tree:
        """The leaves of it that are compared."""
        leaves = self.saved(home, names).leaves
        return {path: leaf for path, leaf in leaves.items() if path not in self.passed_over}

    def _run(self, text: str, home: Path, steps: int, left: int, phase: str) -> None:
        """Run a command to its end, under another hash seed each time."""
        self.count += 1
        values = {"{steps}": str(steps), "{left}": str(left), "{path}": str(home / NAME)}
        words = words_of(text, values)
        output = self.folder / "output"
        environment = os.environ | {"PYTHONHASHSEED": str(self.count)}
        with open(output, "wb") as file:
            try:
                child = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, env=environment, start_new_session=True
                )
            except OSError as error:
                raise _Failed(Failure(phase, f"{type(error).__name__}: {error}")) from None
            try:
                status = child.wait(self.timeout)
            except subprocess.TimeoutExpired:
                hang = f"no end within {self.timeout:g} s"
                raise _Failed(Failure(f"hang in {phase}", hang, _tail(output))) from None
            finally:
                _end(child)
        if status:
            ended = f"exit status {status}" if status > 0 else f"killed by {signal.Signals(-status).name}"
            raise _Failed(Failure(phase, ended, _tail(output)))
        if not _files(home):
            text = "the command ended well, and saved nothing at {path}, or in a file whose name begins so"
            raise _Failed(Failure(phase, text, _tail(output)))


def _end(child: "subprocess.Popen[bytes]") -> None:
    """End a command and the processes that it started."""
    if child.poll() is None:
        if hasattr(os, "killpg"):
            os.killpg(child.pid, signal.SIGKILL)
        else:
            child.kill()
        child.wait()


def _tail(output: Path, lines: int = 40) -> str:
    """The last that a command printed."""
    return "\n".join(output.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _names(home: Path) -> list[str]:
    return [file.relative_to(home).as_posix() for file in _files(home)]


def _stamp(home: Path) -> Any:
    """What changes when a file is written."""
    return [(str(file), file.stat().st_mtime_ns, file.stat().st_ino, file.stat().st_size) for file in _files(home)]
