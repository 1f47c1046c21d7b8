"""The command line: `python -m numpy_ref VERB`. The exit status is the verdict: 0 holds, 1 does not, 2 wrong usage or a
refusal by the system; 130 after an interrupt and 141 after a closed pipe, as shells report them.
"""

import argparse
import dataclasses
import math
import os
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from numpy_ref import store
from numpy_ref.boundary import ROWS
from numpy_ref.checkpoint import HEX, Checkpoint, read_checkpoint
from numpy_ref.config import RunConfig, describe_config, differing_fields
from numpy_ref.console import OutputLost, Progress, flush, say, say_json, table, warn
from numpy_ref.container import CheckpointError, IncompatibleCheckpoint, read_manifest
from numpy_ref.data import Dataset, load_data
from numpy_ref.equivalence import differences
from numpy_ref.model import BUFFERS
from numpy_ref.train import Run, evaluate, init_run, train_n_steps

HOLDS, BROKEN, FAILED = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: the words after the program's name; default is those of the process.

    Returns:
        The exit status.
    """
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    try:
        try:
            return _run(arguments)
        finally:
            flush()  # here, or the interpreter meets a closed pipe after its end, and complains
    except OutputLost as lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(lost.reason, BrokenPipeError):  # whoever read has seen enough
            return 141  # as a shell reports SIGPIPE
        warn(str(lost))
        return FAILED


def _run(arguments: Sequence[str] | None) -> int:
    """The command's status; what a person can mend becomes a message."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except KeyboardInterrupt:
        warn("interrupted")
        return 130  # as a shell reports SIGINT
    except (CheckpointError, ValueError, OSError, MemoryError, FloatingPointError) as error:
        notes = [f"\n    {note}" for note in getattr(error, "__notes__", [])]
        warn("".join([str(error), *notes]))
        if options.json:
            say_json({"holds": False, "error": str(error)})
        return BROKEN if isinstance(error, CheckpointError) else FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m numpy_ref",
        description="Training that resumes as if it had never stopped, in NumPy one can read.",
        epilog="Exit status: 0 the verdict holds, 1 it does not, 2 wrong usage or a refusal by the system. "
        "First try: python -m numpy_ref demo",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    demo = _verb(verbs, "demo", _demo, "the whole experiment on the digits: table and figure", "demo --figure demo.png")
    demo.add_argument(
        "--figure", type=Path, default=Path("demo.svg"), help="where the figure goes (default: %(default)s)"
    )

    train = _verb(verbs, "train", _train, "train, with checkpoints and resume", "train --steps 1000 --dir run")
    train.add_argument(
        "--data", default="digits", metavar="digits|FILE.npz|FILE.csv", help="data set (default: digits)"
    )
    train.add_argument("--steps", type=_whole, default=1000, help="steps in all, not additional (default: %(default)s)")
    train.add_argument(
        "--dir", type=Path, default=Path("run"), help="directory of the checkpoints (default: %(default)s)"
    )
    train.add_argument(
        "--every", type=_whole, default=100, help="steps between checkpoints; 0: only at the end (default: %(default)s)"
    )
    train.add_argument(
        "--keep", type=_whole, default=3, help="newest checkpoints to keep; 0: all (default: %(default)s)"
    )
    train.add_argument(
        "--resume",
        choices=("auto", "never", "required"),
        default="auto",
        help="auto: continue the run in the directory, or start one; never: the directory must hold none",
    )
    train.add_argument("--quiet", action="store_true", help="print errors only")
    _add_config(train)

    inspect = _verb(verbs, "inspect", _inspect, "what a checkpoint holds, and its sizes", "inspect FILE")
    verify = _verb(verbs, "verify", _verify, "read all of a checkpoint and check every byte", "verify FILE")
    for command in (inspect, verify):
        command.add_argument("file", type=Path)

    diff = _verb(verbs, "diff", _diff, "compare the training state of two checkpoints leaf by leaf", "diff A B")
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)

    _verb(verbs, "boundary", _boundary, "the declared table: what matches bitwise, within, never", "boundary")
    return parser


def _verb(verbs: Any, name: str, run: Any, help: str, example: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(
        name, help=help, description=help[0].upper() + help[1:] + ".", epilog=f"Example: python -m numpy_ref {example}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)
    return parser


def _whole(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 0, found {text!r}")
    return value


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in text.split(",") if word.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected sizes such as 128,128, found {text!r}") from None


def _add_config(parser: argparse.ArgumentParser) -> None:
    """One option for each field of RunConfig; only those given appear in the result."""
    group = parser.add_argument_group("settings of the run (a resumed run has its own; those given must agree with it)")
    for field in dataclasses.fields(RunConfig):
        kind: Any = field.type
        default = ",".join(map(str, field.default)) if isinstance(field.default, tuple) else field.default
        default = "--steps" if field.name == "total_steps" else default
        extra: dict[str, Any] = {"help": f"{field.metadata['help']} (default: {default})", "default": argparse.SUPPRESS}
        if kind is bool:
            extra["action"] = argparse.BooleanOptionalAction
        elif field.metadata["choices"]:
            extra["choices"] = field.metadata["choices"]
        else:
            extra["type"] = _sizes if isinstance(kind, types.GenericAlias) else kind
            extra["metavar"] = "N,N" if isinstance(kind, types.GenericAlias) else "N" if kind is int else "X"
        group.add_argument(f"--{field.name.replace('_', '-')}", **extra)


def _demo(options: argparse.Namespace) -> int:
    from numpy_ref import demo  # here, so that help starts fast

    _check_figure(options.figure)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = demo.run_demo(Path(folder))
    drawn, fault = _try_figure(result, options.figure)
    status = (HOLDS if fault is None else FAILED) if result.right else BROKEN
    if fault is not None:
        warn(drawn)
    if options.json:
        rows = [
            {"resume": o.resume, "left_out": o.left_out, "right": o.right, "largest": o.largest}
            | {k: v for k, v in o.verdict._asdict().items() if k != "leaves"}
            for o in result.outcomes
        ]
        say_json(
            {
                "right": result.right,
                "digest": result.digest,
                "expected_digest": demo.DIGEST,
                "figure": drawn,
                "outcomes": rows,
            }
        )
        return status
    config = describe_config(demo.CONFIG)
    say(f"digits, {demo.STEPS} steps, stopped after step {demo.STOP} and resumed; {config}\n")
    table(
        ("left out", "outcome", "first shows at", "largest", "likely cause"),
        [
            (
                o.left_out,
                ("bitwise" if o.verdict.holds else "differs") + ("" if o.right else ": WRONG"),
                "-" if o.verdict.holds else f"step {o.verdict.step} {o.verdict.leaf}",
                f"{o.largest:.2g}",
                o.verdict.cause or "-",
            )
            for o in result.outcomes
        ],
    )
    say(f"\nfinal state {result.digest}")
    say("the committed digest" if result.digest == demo.DIGEST else f"NOT the committed digest {demo.DIGEST}")
    say(f"{drawn}\n{'every outcome is the right one' if result.right else 'an outcome is WRONG'}"
         f" ({time.perf_counter() - start:.1f} s)")  # fmt: skip
    return status


def _check_figure(path: Path) -> None:
    """Refuse, before the experiment, what could not be drawn after it."""
    if path.suffix not in (".svg", ".png", ".pdf"):
        raise ValueError(f"--figure: expected a file that ends in .svg, .png or .pdf, found {str(path)!r}")
    if not path.parent.is_dir():
        raise ValueError(f"--figure: expected a file in a directory that is there, found {str(path)!r}")


def _try_figure(result: Any, path: Path) -> tuple[str, Exception | None]:
    """Draw, and say where or why not; a path that does not serve must not cost the table."""
    try:
        from numpy_ref.figure import draw_demo
    except ImportError:
        return "no figure: it needs matplotlib; install the 'cli' extra, pip install '.[cli]'", None
    try:
        draw_demo(result, path)
    except (OSError, ValueError) as error:
        return f"no figure {path}: {error}", error
    return f"figure {path}", None


def _train(options: argparse.Namespace) -> int:
    data = load_data(options.data)
    given = {f.name: getattr(options, f.name) for f in dataclasses.fields(RunConfig) if hasattr(options, f.name)}
    if options.resume == "required" and not options.dir.is_dir():
        raise _none_yet(options)
    if options.dir.is_dir():
        with store.sole_writer(options.dir):
            return _train_alone(data, given, options)
    run = _new_run(data, given, options)  # refused, if it must be, before a directory is made
    store.prepare(options.dir)
    with store.sole_writer(options.dir):
        return _report(*_train_to(run, data, options), data, options)


def _train_alone(data: Dataset, given: dict[str, Any], options: argparse.Namespace) -> int:
    """Train in a directory that is there and ours."""
    if options.resume == "never":
        store.check_unused(options.dir)
    run, passed_over = store.resume_newest(options.dir, data)
    for fault in passed_over:
        warn(f"passed over: {fault}")
    if run is None:
        if options.resume == "required":
            raise _none_yet(options)
        run = _new_run(data, given, options)
    else:
        if fields := differing_fields(run.config, dataclasses.replace(run.config, **given)):
            raise IncompatibleCheckpoint(
                f"{options.dir}: the run there has another configuration: {'; '.join(fields)}.\n"
                "    Leave these options out to continue it, or choose another --dir."
            )
        _note(options, f"resumed run {run.run_id[:8]} at step {run.state.step}")
        if run.state.step >= options.steps:
            _note(
                options, f"nothing to do: the run is at step {run.state.step}, and --steps {options.steps} is the total"
            )
            return _report(run, None, data, options)
        if run.config.schedule == "warmup_cosine" and options.steps > run.config.total_steps:
            warn(f"from step {run.config.total_steps} on the schedule's rate is zero: further steps change no weight")
    store.prepare(options.dir)
    return _report(*_train_to(run, data, options), data, options)


def _none_yet(options: argparse.Namespace) -> CheckpointError:
    return CheckpointError(
        f"{options.dir}: expected a checkpoint to resume from, found none yet.\n    Use --resume auto to start."
    )


def _new_run(data: Dataset, given: dict[str, Any], options: argparse.Namespace) -> Run:
    if given.get("schedule") == "warmup_cosine":
        given.setdefault("total_steps", options.steps)
    run = init_run(RunConfig(**given), data)
    _note(options, f"new run {run.run_id[:8]}: {describe_config(run.config)}")
    return run


def _report(run: Run, path: Path | None, data: Dataset, options: argparse.Namespace) -> int:
    """Say where the run stands."""
    result = evaluate(run, data)
    if math.isnan(result.loss):
        warn("the run has diverged: its loss is not a number")
    if options.json:
        say_json({"run_id": run.run_id, "step": run.state.step, "test_loss": result.loss,
                  "test_accuracy": result.accuracy, "best_step": run.state.best.step,
                  "checkpoint": path and str(path)})  # fmt: skip
    if path is not None:
        _note(options, f"saved {path}")
    best = f" (best {run.state.best.loss:.4f} at step {run.state.best.step})" if run.state.best.step else ""
    _note(
        options,
        f"step {run.state.step}: test accuracy {result.accuracy:.2%}, test loss {result.loss:.4f}{best}",
    )
    return HOLDS


def _train_to(run: Run, data: Dataset, options: argparse.Namespace) -> tuple[Run, Path]:
    """Train to the total, with a checkpoint every so often and at the end."""
    progress = Progress(run.state.step, options.steps, quiet=options.quiet or options.json)
    path = None
    try:
        while path is None or run.state.step < options.steps:
            left = options.steps - run.state.step
            n = min(left, options.every - run.state.step % options.every) if options.every else left
            run = train_n_steps(run, data, n, on_step=progress.show)
            path = store.save_newest(options.dir, run, keep=options.keep)
    except KeyboardInterrupt:
        stands = f"{path} stands, and the same command goes on from it" if path else "this call has saved nothing yet"
        warn(f"\n{stands}")
        raise
    progress.end()
    return run, path


def _inspect(options: argparse.Namespace) -> int:
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
        say_json({"kind": manifest.get("kind"), "run_id": manifest.get("run_id"), "step": manifest.get("step"),
                   "leaves": {n: {"dtype": k, "shape": s, "bytes": sizes[n]} for n, (k, s) in leaves.items()},
                   "scalars": scalars, "bytes": groups, "file_bytes": options.file.stat().st_size,
                   "model_and_optimizer_over_model": ratio, "config": manifest.get("config"),
                   "environment": manifest.get("environment")})  # fmt: skip
        return HOLDS
    say(f"{options.file}: kind {manifest.get('kind')}, run {manifest.get('run_id')}, step {manifest.get('step')}\n")
    rows = [(name, kind, str(tuple(shape)), f"{sizes[name]:,}") for name, (kind, shape) in sorted(leaves.items())]
    rows += [(name, "value", "", _readable(value)) for name, value in sorted(scalars.items())]
    table(("leaf", "type", "shape", "bytes or value"), rows)
    say("")
    table(("part", "bytes"), [*((name, f"{size:,}") for name, size in sorted(groups.items())),
                               ("file", f"{options.file.stat().st_size:,}")])  # fmt: skip
    say(f"\nparameters and optimizer: {ratio:.2f} times the parameters")
    say("header verified; `verify` checks the arrays too")
    return HOLDS


def _readable(value: Any) -> str:
    return repr(float.fromhex(value.removeprefix(HEX))) if str(value).startswith(HEX) else str(value)


def _verify(options: argparse.Namespace) -> int:
    checkpoint = read_checkpoint(options.file)
    size = options.file.stat().st_size
    if options.json:
        say_json({"holds": True, "kind": checkpoint.kind, "run_id": checkpoint.run_id, "step": checkpoint.step,
                   "bytes": size})  # fmt: skip
    else:
        say(f"holds: {checkpoint.kind} checkpoint of run {checkpoint.run_id} at step {checkpoint.step}; "
             f"all {size:,} bytes as they were written, every leaf there")  # fmt: skip
    return HOLDS


def _diff(options: argparse.Namespace) -> int:
    a, b = read_checkpoint(options.a), read_checkpoint(options.b)
    found = differences(_state(a), _state(b))
    apart = _apart(a, b)
    settings = [row for row in apart if row[0].startswith(("config/", "fingerprint"))]
    if options.json:
        say_json({"bitwise": not found and not settings, "apart": {name: [x, y] for name, x, y in apart},
                  "leaves": [{"leaf": v.leaf, "a": v.expected, "b": v.found, "distance": v.distance, "ulps": v.ulps}
                             for v in found]})  # fmt: skip
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


def _boundary(options: argparse.Namespace) -> int:
    if options.json:
        say_json([row._asdict() for row in ROWS])
    for row in () if options.json else ROWS:
        allowance = row.tolerance and f" {row.tolerance.absolute:.2g} + {row.tolerance.relative:.2g} times the value"
        say(f"{row.name}: {row.kind}{allowance or ''}")
        for text in (f"{row.compared}; {row.conditions}", f"because {row.reason}", f"evidence {row.evidence}"):
            say(textwrap.fill(text, 110, initial_indent="    ", subsequent_indent="      "))
    return HOLDS


def _note(options: argparse.Namespace, text: str) -> None:
    if not (options.quiet or options.json):
        say(text)
