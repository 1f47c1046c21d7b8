"""The verb: its options, its line of progress, and its exit status."""

import argparse
import math
import sys
import time
from pathlib import Path
from typing import Any

from numpy_ref.console import say_json, tell, warn
from torch_port.audit.crash.judge import JOBS, crash
from torch_port.audit.crash.report import as_json, print_report

_EVERY = 10.0  # seconds between two lines of progress


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
