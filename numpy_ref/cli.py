"""The command line: `python -m numpy_ref VERB`, or `torch_port`. The exit status is the verdict: 0 holds, 1 does not, 2
wrong usage or a refusal by the system; 130 after an interrupt and 141 after a closed pipe, as shells report them; 75
from `train` that was asked to stop and has saved, see `interrupt.py`.

The implementation is an argument. What only one of them has, devices and a boundary that it measures, is an option
where its `__all__` names it: asking the package for it would import torch, and help must not.
"""

import argparse
import dataclasses
import math
import os
import shutil
import signal
import sys
import tempfile
import textwrap
import time
import types
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from numpy_ref import store
from numpy_ref.boundary import KINDS, ROWS, Row, row_for
from numpy_ref.checkpoint import HEX, Checkpoint, read_checkpoint
from numpy_ref.config import RunConfig, describe_config, differing_fields
from numpy_ref.console import OutputLost, Progress, flush, say, say_json, table, warn
from numpy_ref.container import CheckpointError, IncompatibleCheckpoint, is_container, read_manifest
from numpy_ref.data import Dataset
from numpy_ref.equivalence import differences
from numpy_ref.exercises.commands import add_arguments, run_exercises, run_grade
from numpy_ref.interrupt import STATUS, Interruption
from numpy_ref.model import BUFFERS

HOLDS, BROKEN, FAILED = 0, 1, 2
SIZES = (  # settings that what a step holds and computes depends on, temporary arrays included
    "hidden", "dropout", "batch_norm", "noise", "batch_size", "accumulation", "optimizer", "amsgrad", "momentum",
    "dampening", "nesterov", "weight_decay", "precision", "recompute_segments",
)  # fmt: skip


def main(impl: Any, arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        impl: the implementation, a package that can be run as a program.
        arguments: the words after the program's name; default is those of the process.

    Returns:
        The exit status.
    """
    if sys.stdout is None:  # closed by whoever started this
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process
    try:
        try:
            return _run(impl, arguments)
        finally:
            flush()  # here, or the interpreter meets a closed pipe after its end, and complains
    except OutputLost as lost:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(lost.reason, BrokenPipeError):  # whoever read has seen enough
            return 141  # as a shell reports SIGPIPE
        warn(str(lost))
        return FAILED


def _run(impl: Any, arguments: Sequence[str] | None) -> int:
    """The command's status; what a person can mend becomes a message."""
    options = _parser(impl).parse_args(arguments)
    try:
        with impl.on_device(options.device) if "device" in options else nullcontext():
            return int(options.run(options))
    except KeyboardInterrupt:
        warn("interrupted")
        return 130  # as a shell reports SIGINT
    except (CheckpointError, ValueError, OSError, MemoryError, FloatingPointError) as error:
        notes = [f"\n    {note}" for note in getattr(error, "__notes__", [])]
        return _refuse(BROKEN if isinstance(error, CheckpointError) else FAILED, str(error), options, notes)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        advice = "install the 'torch' extra, pip install '.[torch]'"
        return _refuse(FAILED, f"{impl.__name__} needs PyTorch, and cannot import it: {error}; {advice}", options)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        return _refuse(FAILED, str(error).partition("\n")[0], options)  # torch has no MemoryError


def _refuse(status: int, text: str, options: argparse.Namespace, notes: Sequence[str] = ()) -> int:
    """Say why a command ends here."""
    warn("".join([text, *notes]))
    if options.json:
        say_json({"holds": False, "error": text})
    return status


def _parser(impl: Any) -> argparse.ArgumentParser:
    program = f"python -m {impl.__name__}"
    parser = argparse.ArgumentParser(
        prog=program,
        description=(impl.__doc__ or "").partition("\n")[0],
        epilog="Exit status: 0 the verdict holds, 1 it does not, 2 wrong usage or a refusal by the system, 130 an "
        "interrupt, 75 `train` was asked to stop and has saved: the same command goes on. "
        f"First try: {program} demo",
    )
    verb = partial(_verb, parser.add_subparsers(dest="verb", required=True, metavar="VERB"), program)

    demo = verb(
        "demo", partial(_demo, impl), "the whole experiment on the digits: table and figure", "--figure demo.png"
    )
    demo.add_argument(
        "--figure", type=Path, default=Path("demo.svg"), help="where the figure goes (default: %(default)s)"
    )

    text = "one resume followed leaf by leaf, and five traps, each run and drawn"
    walk = verb("walk", partial(_walk, impl), text, "--figures figures")
    text = "write the traps' figures into this directory (default: draw none)"
    walk.add_argument("--figures", type=Path, metavar="DIR", help=text)

    train = verb("train", partial(_train, impl), "train, with checkpoints and resume", "--steps 1000 --dir run")
    train.description = (
        f"{train.description} A signal ends it after the step, evaluation or save under way, with a checkpoint of that "
        "step and exit status 75 (SIGTERM, SIGUSR1) or 130 (SIGINT), and the same command goes on from there. A second "
        "signal ends it at once and harms no file."
    )
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
    _add_retention(train)
    train.add_argument(
        "--background", action=argparse.BooleanOptionalAction, default=False, help="write checkpoints beside training"
    )
    train.add_argument(
        "--resume",
        choices=("auto", "never", "required"),
        default="auto",
        help="auto: continue the run in the directory, or start one; never: the directory must hold none",
    )
    train.add_argument("--quiet", action="store_true", help="print errors only")
    account = verb(
        "account", partial(_account, impl), "bytes and operations of a step, computed beside measured", "--json"
    )
    account.add_argument(
        "--data", default="digits", metavar="digits|FILE.npz|FILE.csv", help="data set (default: digits)"
    )
    _add_config(account, "settings of the run that its bytes and operations depend on", SIZES)
    for command in (demo, train, account) if "on_device" in impl.__all__ else ():
        command.add_argument("--device", default="cpu", help="where runs live, such as cuda:0 (default: %(default)s)")
    _add_config(train, "settings of the run (a resumed run has its own; those given must agree with it)")

    tools = _tools(impl)
    inspect = verb("inspect", partial(_inspect, tools), "what a checkpoint holds, and its sizes", "FILE")
    inspect.add_argument("file", type=Path)

    verify = verb("verify", _verify, "read all of a checkpoint, or of a directory, and check every byte", "FILE")
    what = verify.add_mutually_exclusive_group(required=True)
    what.add_argument("file", type=Path, nargs="?")
    text = "a run's directory: what is there and damaged, what a resume takes, what may be deleted; changes nothing"
    what.add_argument("--all", type=Path, metavar="DIR", dest="directory", help=text)
    _add_retention(verify.add_argument_group("what need not be deleted, with --all"))

    text = "compare the training state of two checkpoints leaf by leaf"
    diff = verb("diff", partial(_diff, tools), text, "A B")
    diff.add_argument("a", type=Path)
    diff.add_argument("b", type=Path)
    for command in (inspect, diff) if tools else ():
        tools.add_foreign_arguments(command)

    span = verb("range", _range, "what formats of 16 bits hold, and what they lose of gradients", "--scale 1024")
    span.add_argument("--steps", type=int, default=200, help="of a run on the digits, >= 1 (default: %(default)s)")
    span.add_argument("--scale", type=float, default=2.0**16, help="of the loss, > 0 (default: %(default)s)")

    text = "the declared table: what matches bitwise, within, never"
    boundary = verb("boundary", partial(_boundary, impl), text, "--json")
    names, text = [row.name for row in ROWS], "only this row; may be given several times"
    boundary.add_argument("--row", action="append", choices=names, metavar="NAME", help=text)
    if "check_boundary" in impl.__all__:
        boundary.add_argument("--check", action="store_true", help="measure what can be measured on this machine")

    text = "functions to write, from the idea to a solution that is graded"
    exercises = verb("exercises", partial(run_exercises, impl), text, "start resume")
    text = "hold a solution of an exercise to its laws, and say what it lost"
    add_arguments(exercises, verb("grade", partial(run_grade, impl), text, "resume.py"))
    if tools:
        tools.add_verbs(verb, impl)
    return parser


def _tools(impl: Any) -> Any:
    """The commands that only a package with an audit has, for loops and files of any origin."""
    has_audit = any((Path(folder) / "audit").is_dir() for folder in getattr(impl, "__path__", ()))
    return import_module(f"{impl.__name__}.audit.commands") if has_audit else None


def _verb(verbs: Any, program: str, name: str, run: Any, help: str, example: str) -> argparse.ArgumentParser:
    description, epilog = help[0].upper() + help[1:] + ".", f"Example: {program} {name} {example}"
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=help, description=description, epilog=epilog)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.set_defaults(run=run)
    return parser


def _add_retention(parser: Any) -> None:
    """Options for `_retention`."""
    text = "newest checkpoints to keep; 0: all (default: %(default)s)"
    parser.add_argument("--keep", type=_whole, default=3, metavar="N", help=text)
    text = "keep those of every Nth step too; 0: none for that (default: %(default)s)"
    parser.add_argument("--keep-every", type=_whole, default=0, metavar="N", help=text)
    text = "keep the first that holds the best weights too; every later one holds a copy of them (default: no)"
    parser.add_argument("--keep-best", action=argparse.BooleanOptionalAction, default=False, help=text)


def _retention(options: argparse.Namespace) -> store.Retention:
    return store.Retention(options.keep, options.keep_every, options.keep_best)


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


def _add_config(parser: argparse.ArgumentParser, title: str, names: Sequence[str] | None = None) -> None:
    """One option for each field of RunConfig, or for those named; only those given appear in the result."""
    group = parser.add_argument_group(title)
    for field in dataclasses.fields(RunConfig):
        if names is not None and field.name not in names:
            continue
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


def _demo(impl: Any, options: argparse.Namespace) -> int:
    from numpy_ref import demo  # here, so that help starts fast

    _check_figure(options.figure)
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        result = demo.run_demo(impl, Path(folder), ("--device", options.device) if "device" in options else ())
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


def _walk(impl: Any, options: argparse.Namespace) -> int:
    from numpy_ref.walk.commands import run_walk  # here, so that help starts fast

    return run_walk(impl, options)


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


def _train(impl: Any, options: argparse.Namespace) -> int:
    data = impl.load_data(options.data)
    given = _given(options)
    if options.resume == "required" and not options.dir.is_dir():
        raise _none_yet(options)
    if options.dir.is_dir():
        with store.sole_writer(options.dir):
            return _train_alone(impl, data, given, options)
    run = _new_run(impl, data, given, options)  # refused, if it must be, before a directory is made
    store.prepare(options.dir)
    with store.sole_writer(options.dir):
        return _train_to(impl, run, None, data, options)


def _train_alone(impl: Any, data: Dataset, given: dict[str, Any], options: argparse.Namespace) -> int:
    """Train in a directory that is there and ours."""
    if options.resume == "never":
        store.check_unused(options.dir)
    run, path, passed_over = store.resume_newest(impl, options.dir, data, set_aside=True)
    for fault in passed_over:
        warn(f"passed over: {fault}")
    if path is None:
        if options.resume == "required":
            raise _none_yet(options)
        run = _new_run(impl, data, given, options)
    else:
        if fields := differing_fields(run.config, dataclasses.replace(run.config, **given)):
            raise IncompatibleCheckpoint(
                f"{options.dir}: the run there has another configuration: {'; '.join(fields)}.\n"
                "    Leave these options out to continue it, or choose another --dir."
            )
        _note(options, f"resumed run {run.run_id[:8]} at step {run.step}")
        if run.step >= options.steps:
            _note(options, f"nothing to do: the run is at step {run.step}, and --steps {options.steps} is the total")
            return _report(impl, run, None, data, options)
        _tell_row(row_for(_written_in(path), impl.environment(), arithmetic=run.config.arithmetic), options)
        if run.config.schedule == "warmup_cosine" and options.steps > run.config.total_steps:
            warn(f"from step {run.config.total_steps} on the schedule's rate is zero: further steps change no weight")
    store.prepare(options.dir)
    return _train_to(impl, run, path, data, options)


def _written_in(path: Path) -> dict[str, Any]:
    """The environment in which a checkpoint was written."""
    environment: dict[str, Any] = read_manifest(path)[1]["environment"]
    return environment


def _tell_row(row: Row, options: argparse.Namespace) -> None:
    """Say what the boundary promises of this resume, and aloud if that is less than the same bits."""
    text = f"row: {row.name}: {row.kind} ({row.conditions})"
    if row.kind == "bitwise":
        _note(options, text)
    else:
        warn(text)


def _none_yet(options: argparse.Namespace) -> CheckpointError:
    return CheckpointError(
        f"{options.dir}: expected a checkpoint to resume from, found none yet.\n    Use --resume auto to start."
    )


def _new_run(impl: Any, data: Dataset, given: dict[str, Any], options: argparse.Namespace) -> Any:
    if given.get("schedule") == "warmup_cosine":
        given.setdefault("total_steps", options.steps)
    run = impl.init_run(RunConfig(**given), data)
    _note(options, f"new run {run.run_id[:8]}: {describe_config(run.config)}")
    return run


def _train_to(impl: Any, run: Any, path: Path | None, data: Dataset, options: argparse.Namespace) -> int:
    """Train to the total or until a signal, with a checkpoint every so often and at the end; one at `path`, if any."""
    progress = Progress(run.step, options.steps, quiet=options.quiet or options.json)
    with Interruption() as interruption:
        with _saving(impl, options) as save:
            while path is None or not (run.step >= options.steps or interruption()):
                start, left = run.step, options.steps - run.step
                n = min(left, options.every - start % options.every) if options.every else left
                run = impl.train_n_steps(run, data, n, on_step=progress.show, stop=interruption)
                if path is None or run.step > start:  # a signal may have come before the first of the n
                    path = save(run)
        progress.end()
        if interruption.requested is not None and run.step < options.steps:
            return _report_stop(impl, run, path, interruption.requested, options)
        return _report(impl, run, path, data, options)


@contextmanager
def _saving(impl: Any, options: argparse.Namespace) -> Iterator[Callable[[Any], Path]]:
    """How a run is saved; when this is left, the last write has ended well."""
    if options.background:
        with store.BackgroundWriter(impl, options.dir, retention=_retention(options)) as writer:
            yield writer.save
    else:
        yield partial(store.save_newest, impl, options.dir, retention=_retention(options))


def _report_stop(impl: Any, run: Any, path: Path, number: signal.Signals, options: argparse.Namespace) -> int:
    """Say what a run that was asked to stop has left; no evaluation, for the time may be short."""
    again = "--resume auto" if options.resume == "never" else "the same command"
    warn(f"interrupted by {number.name} after step {run.step}: saved {path}; {again} goes on from it")
    if options.json:
        say_json({"run_id": run.run_id, "step": run.step, "checkpoint": str(path), "interrupted": number.name})
    return STATUS[number]


def _report(impl: Any, run: Any, path: Path | None, data: Dataset, options: argparse.Namespace) -> int:
    """Say where the run stands."""
    result, best = impl.evaluate(run, data), impl.snapshot(run).best
    if math.isnan(result.loss):
        warn("the run has diverged: its loss is not a number")
    if options.json:
        say_json({"run_id": run.run_id, "step": run.step, "test_loss": result.loss,
                  "test_accuracy": result.accuracy, "best_step": best.step,
                  "checkpoint": path and str(path), "interrupted": None})  # fmt: skip
    if path is not None:
        _note(options, f"saved {path}")
    so_far = f" (best {best.loss:.4f} at step {best.step})" if best.step else ""
    _note(options, f"step {run.step}: test accuracy {result.accuracy:.2%}, test loss {result.loss:.4f}{so_far}")
    return HOLDS


def _inspect(tools: Any, options: argparse.Namespace) -> int:
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
    if options.directory is not None:
        return _verify_all(options)
    checkpoint = read_checkpoint(options.file)
    size = options.file.stat().st_size
    if options.json:
        say_json({"holds": True, "kind": checkpoint.kind, "run_id": checkpoint.run_id, "step": checkpoint.step,
                   "bytes": size})  # fmt: skip
    else:
        say(f"holds: {checkpoint.kind} checkpoint of run {checkpoint.run_id} at step {checkpoint.step}; "
             f"all {size:,} bytes as they were written, every leaf there")  # fmt: skip
    return HOLDS


def _verify_all(options: argparse.Namespace) -> int:
    """Look at all of a directory; it holds when a resume finds a checkpoint and nothing there is damaged."""
    found = store.survey(options.directory, retention=_retention(options))
    damaged = [entry.path.name for entry in found.entries if entry.state.startswith("damaged")]
    holds = found.resumed is not None and not damaged
    if options.json:
        entries = [
            {"path": str(e.path), "step": e.step, "run_id": e.run_id, "best_step": e.best_step, "bytes": e.size,
             "state": e.state} for e in found.entries]  # fmt: skip
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
    verdict = f"{len(damaged)} damaged" if damaged else f"{options.directory} can be resumed, and nothing is damaged"
    say(f"holds: {verdict}" if holds else f"does not hold: {verdict if damaged else 'nothing to go on from'}")
    return HOLDS if holds else BROKEN


def _diff(tools: Any, options: argparse.Namespace) -> int:
    if tools and not (is_container(options.a) and is_container(options.b)):
        return int(tools.diff_foreign(options))
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


def _range(options: argparse.Namespace) -> int:
    from numpy_ref import number_line  # here, so that help starts fast

    result = number_line.run_range(steps=options.steps, scale=options.scale)
    if options.json:
        say_json(result.as_json())
    else:
        say("\n".join(number_line.lines(result)))
    return HOLDS


def _account(impl: Any, options: argparse.Namespace) -> int:
    from numpy_ref.accounting import account_rows  # here, so that help starts fast

    given = _given(options)
    data, config, segments = impl.load_data(options.data), RunConfig(**given), given.get("recompute_segments")
    rows = account_rows(impl, data, config, precision=given.get("precision", ""), segments=segments)
    explained = all(row.explained is not False for row in rows)
    measured = sum(row.measured is not None for row in rows)
    if options.json:
        found = [r._asdict() | {"difference": r.difference, "explained": r.explained} for r in rows]
        say_json({"explained": explained, "measured": measured, "rows": found})
        return HOLDS if explained else BROKEN
    for (model, precision, recompute), group in groupby(rows, key=lambda row: row[:3]):
        say(f"{model}, layers in {precision}, {recompute} computed again\n")
        lines = [
            (r.term, *("-" if n is None else f"{n:,}" for n in (r.computed, r.measured, r.difference)), r.reason or "-")
            for r in group
        ]
        table(("term", "computed", "measured", "difference", "which comes from"), lines)
        say("")
    verdict = "every difference of those is accounted for" if explained else "a difference is NOT accounted for"
    peak = ", but for the peak, which is not derived" if any(row.computed is None for row in rows) else ""
    say(f"{measured} of {len(rows)} rows measured; {verdict}{peak if explained else ''}")
    if any(row.measured is None and row.term == "parameters" for row in rows):
        say("GPT-2's step is measured by: python -m torch_port account")
    return HOLDS if explained else BROKEN


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """The settings of the run that the command line names."""
    return {f.name: getattr(options, f.name) for f in dataclasses.fields(RunConfig) if hasattr(options, f.name)}


def _boundary(impl: Any, options: argparse.Namespace) -> int:
    rows = [row for row in ROWS if not options.row or row.name in options.row]
    if getattr(options, "check", False):
        return _check_boundary(impl, rows, options)
    if options.json:
        say_json([row._asdict() for row in rows])
    for row in () if options.json else rows:
        say(f"{row.name}: {row.kind}{_allowance(row)}")
        loose = [f"loose by {row.loose}"] if row.loose else []
        for text in (f"{row.compared}; {row.conditions}", f"because {row.reason}", *loose, f"evidence {row.evidence}"):
            whole = textwrap.TextWrapper(110, "    ", "      ", break_long_words=False, break_on_hyphens=False)
            say(whole.fill(text))  # evidence stays a word that can be copied
    return HOLDS


def _allowance(row: Row) -> str:
    """The number beside a row's kind."""
    if row.tolerance is not None:
        return f" {row.tolerance.absolute:.2g} + {row.tolerance.relative:.2g} times the value"
    return "" if row.false_alarms is None else f", false alarms {row.false_alarms:g}"


def _check_boundary(impl: Any, rows: Sequence[Row], options: argparse.Namespace) -> int:
    """Measure the rows here, and say of each, as soon as it is known, whether it holds."""
    columns = (["row", *(row.name for row in rows)], KINDS, ["not measured"], ["share"])
    widths = [max(map(len, cells)) for cells in columns]
    results: list[Any] = []
    for result in impl.check_boundary([row.name for row in rows]):
        if not options.json:
            if not results:
                _say_cells(widths, "row", "kind", "here", "share", "found")
            here = "not measured" if result.holds is None else "holds" if result.holds else "BROKEN"
            share = "" if result.share is None else f"{result.share:.0%}"
            found = "; ".join(filter(None, (result.figure, result.note)))
            _say_cells(widths, result.row, result.kind, here, share, found)
            flush()  # the next one may take minutes
        results.append(result)
    verdicts = [result.holds for result in results if result.holds is not None]
    if options.json:
        say_json({"holds": all(verdicts) if verdicts else None, "rows": [result._asdict() for result in results]})
    else:
        say(f"\n{sum(verdicts)} of {len(verdicts)} measured rows hold, {len(results) - len(verdicts)} not measured")
    if not verdicts:
        warn("none of these rows can be measured on this machine, so none is known to hold")
        return FAILED
    return HOLDS if all(verdicts) else BROKEN


def _say_cells(widths: Sequence[int], *cells: str) -> None:
    """One line of a table whose later rows are not known yet; its last cell is wrapped."""
    start = "".join(f"{cell:<{width}}  " for cell, width in zip(cells[:-1], widths, strict=True))
    room = max(shutil.get_terminal_size((120, 24)).columns, len(start) + 30)
    say(textwrap.fill(cells[-1], room, initial_indent=start, subsequent_indent=" " * len(start)) or start.rstrip())


def _note(options: argparse.Namespace, text: str) -> None:
    if not (options.quiet or options.json):
        say(text)
