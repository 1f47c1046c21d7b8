"""The verbs `inspect`, `verify` and `diff`: what a checkpoint or a directory of them holds, and whether it is sound."""

import argparse
from typing import Any

import numpy as np

from numpy_ref.checkpoint import store
from numpy_ref.checkpoint.container import is_container, read_manifest
from numpy_ref.checkpoint.save_and_resume import HEX, Checkpoint, read_checkpoint
from numpy_ref.cli.options import KEPT, retention_of
from numpy_ref.console import BROKEN, HOLDS, say, say_json, table
from numpy_ref.model import BUFFERS
from numpy_ref.proof.equivalence import differences


def run_inspect(tools: Any, options: argparse.Namespace) -> int:
    """Show what a checkpoint holds."""
    if tools and not is_container(options.file):
        return int(tools.inspect_foreign(options))
    leaves, manifest = read_manifest(options.file)
    sizes = {name: int(np.prod(shape)) * np.dtype(kind).itemsize for name, (kind, shape) in leaves.items()}
    groups: dict[str, int] = {}
    for name, size in sizes.items():
        top = name.split("/")[0]
        groups[top] = groups.get(top, 0) + size
    params = sum(s for name, s in sizes.items() if name.startswith("model/") and not name.endswith(BUFFERS))
    ratio = (params + groups.get("optimizer", 0)) / params if params else 0.0
    scalars = manifest.get("scalars")
    scalars = scalars if isinstance(scalars, dict) else {}  # any file of this format is shown
    if options.json:
        say_json(
            {
                "kind": manifest.get("kind"),
                "run_id": manifest.get("run_id"),
                "step": manifest.get("step"),
                "leaves": {n: {"dtype": k, "shape": s, "bytes": sizes[n]} for n, (k, s) in leaves.items()},
                "scalars": scalars,
                "bytes": groups,
                "file_bytes": options.file.stat().st_size,
                "model_and_optimizer_over_model": ratio,
                "config": manifest.get("config"),
                "environment": manifest.get("environment"),
            }
        )
        return HOLDS
    say(f"{options.file}: kind {manifest.get('kind')}, run {manifest.get('run_id')}, step {manifest.get('step')}\n")
    rows = [(name, kind, str(tuple(shape)), f"{sizes[name]:,}") for name, (kind, shape) in sorted(leaves.items())]
    rows += [(name, "value", "", _readable(value)) for name, value in sorted(scalars.items())]
    table(("leaf", "type", "shape", "bytes or value"), rows)
    say("")
    table(
        ("part", "bytes"),
        [*((name, f"{size:,}") for name, size in sorted(groups.items())), ("file", f"{options.file.stat().st_size:,}")],
    )
    say(f"\nparameters and optimizer: {ratio:.2f} times the parameters")
    say("header verified; `verify` checks the arrays too")
    return HOLDS


def _readable(value: Any) -> str:
    return repr(float.fromhex(value.removeprefix(HEX))) if str(value).startswith(HEX) else str(value)


def run_verify(options: argparse.Namespace) -> int:
    """Read all of a checkpoint, or of a directory."""
    if options.directory is not None:
        return _verify_all(options)
    if retention_of(options) != KEPT:
        raise ValueError(f"{options.file}: --keep and its kin say what a directory keeps: give them with --all DIR.")
    checkpoint = read_checkpoint(options.file)
    size = options.file.stat().st_size
    if options.json:
        say_json(
            {
                "holds": True,
                "kind": checkpoint.kind,
                "run_id": checkpoint.run_id,
                "step": checkpoint.step,
                "bytes": size,
            }
        )
    else:
        say(
            f"holds: {checkpoint.kind} checkpoint of run {checkpoint.run_id} at step {checkpoint.step}; "
            f"all {size:,} bytes as they were written, every leaf there"
        )
    return HOLDS


def _verify_all(options: argparse.Namespace) -> int:
    """Look at all of a directory; it holds when a resume finds a checkpoint and nothing there is damaged."""
    if not options.directory.is_dir():
        there = "another file" if options.directory.exists() else "nothing there"
        raise ValueError(f"{options.directory}: expected the directory of a run, found {there}. Check the path.")
    found = store.survey(options.directory, retention=retention_of(options))
    damaged = [entry.path.name for entry in found.entries if entry.state.startswith("damaged")]
    holds = found.resumed is not None and not damaged
    if options.json:
        entries = [
            {
                "path": str(e.path),
                "step": e.step,
                "run_id": e.run_id,
                "best_step": e.best_step,
                "bytes": e.size,
                "state": e.state,
            }
            for e in found.entries
        ]
        lists = {name: list(map(str, getattr(found, name))) for name in ("stale", "set_aside", "superfluous")}
        resumed = None if found.resumed is None else str(found.resumed)
        say_json({"holds": holds, "entries": entries, **lists, "resumed": resumed, "why": found.why})
        return HOLDS if holds else BROKEN
    if found.entries:
        rows = [(e.path.name, e.step, e.run_id and e.run_id[:8], f"{e.size:,}", e.state) for e in found.entries]
        table(("file", "step", "run", "bytes", "state"), [["-" if c is None else str(c) for c in row] for row in rows])
        say("")
    say(f"a resume goes on from {found.resumed.name if found.resumed else 'nothing'}: {found.why}")
    every = f" --keep-every {options.keep_every}" if options.keep_every else ""
    kept = f"--keep {options.keep}{every}{' --keep-best' if options.keep_best else ''}"
    for paths, reason in (
        (found.superfluous, f"beyond {kept}"),
        (found.set_aside, "damaged, and set aside by a resume"),
        (found.stale, "a temporary whose writer is dead; the next `train` removes it"),
    ):
        for path in paths:
            say(f"may be deleted: {path.name} ({reason})")
    nothing = "nothing else" if found.set_aside else "nothing"
    verdict = f"{len(damaged)} damaged" if damaged else f"{options.directory} can be resumed, and {nothing} is damaged"
    say(f"holds: {verdict}" if holds else f"does not hold: {verdict if damaged else 'nothing to go on from'}")
    return HOLDS if holds else BROKEN


def run_diff(tools: Any, options: argparse.Namespace) -> int:
    """Compare the training state of two checkpoints."""
    if tools and not (is_container(options.a) and is_container(options.b)):
        return int(tools.diff_foreign(options))
    a, b = read_checkpoint(options.a), read_checkpoint(options.b)
    found = differences(_state(a), _state(b))
    apart = _apart(a, b)
    settings = [row for row in apart if row[0].startswith(("config/", "fingerprint"))]
    if options.json:
        say_json(
            {
                "bitwise": not found and not settings,
                "apart": {name: [x, y] for name, x, y in apart},
                "leaves": [
                    {"leaf": v.leaf, "a": v.expected, "b": v.found, "distance": v.distance, "ulps": v.ulps}
                    for v in found
                ],
            }
        )
        return BROKEN if found or settings else HOLDS
    if found:
        units = ["" if v.ulps is None else f"{v.ulps:,}" for v in found]
        rows = [
            (str(v.leaf), repr(v.expected), repr(v.found), f"{v.distance:.3g}", u)
            for v, u in zip(found, units, strict=True)
        ]
        table(("leaf", "a", "b", "distance", "units in the last place"), rows)
    count = f"{len(found)} {'leaf' if len(found) == 1 else 'leaves'} of the training state"
    say(f"{count} differ{'s' if len(found) == 1 else ''}" if found else "bitwise: the training state is the same")
    if settings:
        say("\nthe runs differ in their settings or data, and would part:")
        table(("what", "a", "b"), settings)
    if others := [row for row in apart if row not in settings]:
        say("\napart from the state, and not counted:")
        table(("what", "a", "b"), others)
    return BROKEN if found or settings else HOLDS


def _apart(a: Checkpoint, b: Checkpoint) -> list[tuple[str, str, str]]:
    """What differs beside the training state: who the runs are, where they ran, how they are set."""
    sides = []
    for checkpoint in (a, b):
        values = {name: getattr(checkpoint, name) for name in ("kind", "run_id", "fingerprint")}
        values |= {f"environment/{name}": value for name, value in checkpoint.environment.items()}
        sides.append(values | {f"config/{name}": value for name, value in vars(checkpoint.config).items()})
    names = sorted(sides[0].keys() | sides[1].keys())
    return [(n, str(sides[0].get(n)), str(sides[1].get(n))) for n in names if sides[0].get(n) != sides[1].get(n)]


def _state(checkpoint: Checkpoint) -> Any:
    return {"model": checkpoint.model} if checkpoint.state is None else checkpoint.state
