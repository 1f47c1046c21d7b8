"""The verb: a script is crashed at the events of its saves, and the judgement printed."""

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from numpy_ref.console import say_json, tell, warn
from torch_port.audit.crash.bench import Bench, Refused
from torch_port.audit.crash.causes import causes_of
from torch_port.audit.crash.judge import Judge
from torch_port.audit.crash.points import chosen
from torch_port.audit.crash.reference import refer
from torch_port.audit.crash.report import RESUMED, Report, as_json, limits, print_report

JOBS = min(os.cpu_count() or 1, 4)
"""Runs at once, where nothing else is said."""
_EVERY = 10.0  # seconds between two lines of progress


def crash(
    command: Sequence[str],
    *,
    directory: str | os.PathLike[str] = ".",
    limit: int = 24,
    timeout: float = 300.0,
    restarts: int = 3,
    jobs: int = JOBS,
    compare: Sequence[str] = (),
    may_lose: int = 0,
    progress: Callable[[str], None] = lambda text: None,
) -> Report:
    """Crash a script at the file events of its saves, and judge whether it comes back.

    Args:
        command: the words that start it, as at a shell's prompt in `directory`.
        directory: it is copied, and the script runs in copies; it must write below it.
        limit: events that are tried: those of the first save and of the last, and an even spread over the others. 0:
            all.
        timeout: seconds for one run.
        restarts: starts after a crash, before there is no way back; one that fails and changes nothing is the last.
        jobs: runs at once.
        compare: patterns of the files to compare at the end; default is all that the run wrote, except files that it
            appends to and those that two uninterrupted runs write differently. One that is of no file is refused.
        may_lose: finished saves that a crash may cost.
        progress: told what is being done.

    Returns:
        The report. A script that fails without a crash, or writes nothing that can be compared, has the verdict
        "failed"; one whose own checkpoint differs between two uninterrupted runs, "not deterministic".

    Raises:
        ValueError: there is no command, or no such directory.
        OSError: the directory cannot be copied.
    """
    source = Path(directory).resolve()
    if not command:
        raise ValueError("crash: expected a command after --, found none; for example: crash -- python train.py")
    if not source.is_dir():
        raise ValueError(f"{directory}: expected a directory to copy, found {'a file' if source.exists() else 'none'}")
    with tempfile.TemporaryDirectory(prefix="crash-") as folder:
        # Every word that names the directory names the copy instead.
        bench = Bench(Path(folder).resolve(), source, tuple(command), timeout)
        try:
            reference = refer(bench, compare, jobs, progress)
        except Refused as refused:
            verdict, error = refused.args
            return Report(tuple(command), verdict, 0.0, 0, "", 0, 0, (), (), (), limits([]), error)
        points, events, saves = reference.points, reference.ran.events, len(reference.saves)
        tried = chosen(points, limit)
        trials = Judge(bench, reference, restarts, may_lose).all(tried, jobs, progress)
        return Report(
            tuple(command),
            "broken" if any(trial.judgement != RESUMED for trial in trials) else "holds",
            reference.ran.seconds,
            saves,
            reference.saved_as,
            len(points),
            len(tried),
            tuple(reference.compared),
            causes_of(trials, points, events, saves),
            tuple(trials),
            limits(events, reference.notes, explained=reference.explained),
        )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb; `--json` is there already."""
    text = "the directory to copy and run in; the command is as in it (default: this one)"
    parser.add_argument("--dir", type=Path, default=Path(), metavar="DIR", help=text)
    text = "events to try: the first save, the last, and an even spread between; 0: all (default: %(default)s)"
    parser.add_argument("--limit", type=int, default=24, metavar="N", help=text)
    text = "seconds for one run (default: %(default)s)"
    parser.add_argument("--timeout", type=float, default=300.0, metavar="SECONDS", help=text)
    text = "starts after a crash before there is no way back (default: %(default)s)"
    parser.add_argument("--restarts", type=int, default=3, metavar="N", help=text)
    text = "runs at once (default: one for each processor, and no more than four)"
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N", help=text)
    text = "finished saves that a crash may cost (default: %(default)s)"
    parser.add_argument("--may-lose", type=int, default=0, metavar="N", help=text)
    text = "a pattern of files to compare at the end; may be given again (default: all that the run writes whole)"
    parser.add_argument("--compare", action="append", default=[], metavar="PATTERN", help=text)
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what starts the script")


def run_crash(impl: Any, options: argparse.Namespace) -> int:
    """Crash a script, and print the judgement."""
    for name, least in {"limit": 0, "timeout": 0.0, "restarts": 1, "jobs": 1, "may_lose": 0}.items():
        value = getattr(options, name)
        if not value >= least or (name == "timeout" and value == 0):
            bound = "more than" if name == "timeout" else "at least"
            raise ValueError(f"--{name.replace('_', '-')}: expected {bound} {least:g}, found {value}")
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    progress = Progress(quiet=options.json)
    report = crash(
        command,
        directory=options.dir,
        limit=options.limit,
        timeout=options.timeout,
        restarts=options.restarts,
        jobs=options.jobs,
        compare=options.compare,
        may_lose=options.may_lose,
        progress=progress.tell,
    )
    progress.end()
    if options.json:
        say_json(as_json(report))
    elif report.error:
        warn(f"{report.verdict}: {report.error}")
    else:
        print_report(report)
    return report.status


class Progress:
    """One line that is rewritten on a terminal, and elsewhere a line every ten seconds; on standard error."""

    def __init__(self, *, quiet: bool) -> None:
        self.quiet, self.live, self.shown = quiet, sys.stderr.isatty(), -math.inf

    def tell(self, text: str) -> None:
        """Say what is being done, if it is time to."""
        now = time.monotonic()
        if self.quiet or (not self.live and now - self.shown < _EVERY):
            return
        self.shown = now
        tell(f"\r{text}\x1b[K" if self.live else f"{text}\n")

    def end(self) -> None:
        """Clear the line."""
        if self.live and not self.quiet:
            tell("\r\x1b[K")
