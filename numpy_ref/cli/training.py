"""The verb `train`: a run in a directory, started or resumed, until its last step or a signal."""

import argparse
import dataclasses
import math
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from numpy_ref.checkpoint import background, store
from numpy_ref.checkpoint.container import CheckpointError, IncompatibleCheckpoint, read_manifest
from numpy_ref.cli.options import given_settings, retention_of
from numpy_ref.config import RunConfig, describe_config, differing_fields
from numpy_ref.console import HOLDS, Progress, say, say_json, warn
from numpy_ref.data import Dataset
from numpy_ref.interrupt import STATUS, Interruption
from numpy_ref.proof.boundary import Row, row_for


def run_train(impl: Any, options: argparse.Namespace) -> int:
    """Train in a directory, alone there."""
    data = impl.load_data(options.data)
    given = given_settings(options)
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
        with background.BackgroundWriter(impl, options.dir, retention=retention_of(options)) as writer:
            yield writer.save
    else:
        yield partial(store.save_newest, impl, options.dir, retention=retention_of(options))


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
        say_json(
            {
                "run_id": run.run_id,
                "step": run.step,
                "test_loss": result.loss,
                "test_accuracy": result.accuracy,
                "best_step": best.step,
                "checkpoint": path and str(path),
                "interrupted": None,
            }
        )
    if path is not None:
        _note(options, f"saved {path}")
    so_far = f" (best {best.loss:.4f} at step {best.step})" if best.step else ""
    _note(options, f"step {run.step}: test accuracy {result.accuracy:.2%}, test loss {result.loss:.4f}{so_far}")
    return HOLDS


def _note(options: argparse.Namespace, text: str) -> None:
    if not (options.quiet or options.json):
        say(text)
