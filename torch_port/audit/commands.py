"""The verbs `audit` and `crash`, and what `diff` and `inspect` do with files of any origin."""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from numpy_ref.console import BROKEN, FAILED, HOLDS, say, say_json, warn
from torch_port.audit.crash import add_arguments as add_crash_arguments
from torch_port.audit.crash import run_crash
from torch_port.audit.judge.findings import Report
from torch_port.audit.judge.stops import steps_of
from torch_port.audit.script.placeholders import check_commands

SUFFIXES = (".html", ".json")
DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler}  # signals that end a verb; what else they do
DEFAULTS |= {getattr(signal, name): signal.SIG_DFL for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)}


def add_audit_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the verb; its own `--json [FILE]` takes the place of the one that is there already."""
    parser.description = (
        f"{parser.description or ''} Runs are processes of their own, and a resumed run is held against one that never "
        "stopped, bit for bit. A loop is a class, or a function that returns an object, with step(), "
        "state_dict() and load_state_dict(state), or save(path) and load(path) of its own. A script is two commands."
    ).strip()
    text = "the loop: module:Name or path/file.py:Name"
    parser.add_argument("target", nargs="?", metavar="TARGET", help=text)
    parser.add_argument("--steps", type=_steps, default=24, metavar="N", help="steps in all (default: %(default)s)")
    where = parser.add_mutually_exclusive_group()
    text = "stop after these steps, each in a run of its own; 7+13: both in one run (default: some that tell much)"
    where.add_argument("--at", type=_stops, metavar="7,12,13", help=text)
    where.add_argument("--every-step", action="store_true", help="stop after every step")
    text = "seconds that a call of the loop, or a command, may take (default: the audit's own)"
    parser.add_argument("--timeout", type=_seconds, metavar="S", help=text)
    text = "write the report there too, as a page or as JSON; may be given several times"
    parser.add_argument("--report", type=_report, action="append", default=[], metavar="FILE.html|FILE.json", help=text)
    output = parser.add_argument_group(conflict_handler="resolve")
    text = "print one JSON object instead of text, or write it to the file"
    output.add_argument("--json", nargs="?", action=_Json, default=False, metavar="FILE.json", help=text)
    script = parser.add_argument_group(
        "a script as it is, instead of TARGET",
        "Two commands, run without a shell. {steps} stands for how many steps the run has then done in all, {left} for "
        "how many of them are left to a resume, {path} for the file or directory that the script saves to at its end "
        "and resumes from.",
    )
    script.add_argument(
        "--script", metavar="COMMAND", help="trains anew: 'python train.py --steps {steps} --out {path}'"
    )
    script.add_argument("--resume", metavar="COMMAND", help="loads {path}, goes on to {steps}, and saves to {path}")
    text = "a class that the saved files may hold beside tensors and plain values; its code runs; may be given again"
    script.add_argument("--allow", action="append", default=[], metavar="MODULE.NAME", help=text)


def add_verbs(verb: Callable[..., argparse.ArgumentParser], impl: Any) -> None:
    """The two verbs; `verb` makes a parser of a name, what runs it, a help text and an example."""
    text = "whether a training loop that is resumed equals one that never stopped, and what it lost"
    add_audit_arguments(verb("audit", partial(run_audit, impl), text, "my_training:Run --steps 24"))
    text = "kill a script at the file events of its saves, and judge whether it comes back"
    add_crash_arguments(verb("crash", partial(_run_crash, impl), text, "-- python train.py"))


def add_foreign_arguments(parser: argparse.ArgumentParser) -> None:
    """What `diff` and `inspect` take beside their own."""
    text = "a class that a file may hold beside tensors and plain values; its code runs; may be given again"
    parser.add_argument("--allow", action="append", default=[], metavar="MODULE.NAME", help=text)


def inspect_foreign(options: argparse.Namespace) -> int:
    """Show a file of any origin."""
    from torch_port.audit import foreign

    return _show(foreign.inspect(options.file, allow=options.allow), True, options)


def diff_foreign(options: argparse.Namespace) -> int:
    """Compare two files of any origin."""
    from torch_port.audit import foreign

    found = foreign.diff(options.a, options.b, allow=options.allow)
    return _show(found, found.bitwise, options)


def _show(found: Any, holds: bool, options: argparse.Namespace) -> int:
    if options.json:
        say_json(found.json())
    else:
        say("\n".join(found.lines()))
    return HOLDS if holds else BROKEN


def run_audit(impl: Any, options: argparse.Namespace) -> int:
    """Audit a loop or a script, and say what was found."""
    _check(options)
    more = {} if options.timeout is None else {"timeout": options.timeout}
    more |= {"steps": options.steps, "at": options.at, "every_step": options.every_step}
    with ended_by_signals() as ending:
        if options.script is not None:
            from torch_port.audit.script.audit import audit_script

            report = audit_script(options.script, options.resume, allow=options.allow, **more)
        else:
            report = _audit(options.target, more, ending)
        return report.status if _tell(report, options) else FAILED


def _audit(target: str, more: dict[str, Any], ending: list[Callable[[], None]]) -> Report:
    """Audit a loop in workers that a signal ends: an audit would wait for what they are doing."""
    from torch_port.audit import audit
    from torch_port.audit.judge.target import target_of
    from torch_port.audit.judge.workers import Workers

    target = target_of(target)  # before any process starts
    with Workers() as workers:
        ending.append(partial(_kill, workers))
        return audit(target, note=warn if sys.stderr.isatty() else None, workers=workers, **more)


def _kill(workers: Any) -> None:
    """Kill workers, and what they have started; who waits for their answers goes on."""
    for worker in workers.all:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(worker.process.pid, signal.SIGKILL)


def _run_crash(impl: Any, options: argparse.Namespace) -> int:
    with ended_by_signals():
        return run_crash(impl, options)


@contextmanager
def ended_by_signals() -> Iterator[list[Callable[[], None]]]:
    """What runs here ends at the first signal, with its processes and its directories; later signals are ignored.

    The list holds what is to be done first.
    """
    ending: list[Callable[[], None]] = []

    def end(number: int, frame: object) -> None:
        for one in ours:
            signal.signal(one, signal.SIG_IGN)
        for first in ending:
            first()
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)  # as a shell reports it

    here = threading.current_thread() is threading.main_thread()  # no other one may set what a signal does
    # What is handled already, or ignored as by nohup, stays so.
    ours = [number for number, default in DEFAULTS.items() if here and signal.getsignal(number) is default]
    for number in ours:
        signal.signal(number, end)
    try:
        yield ending
    finally:
        for number in ours:
            signal.signal(number, DEFAULTS[number])


def _tell(report: Report, options: argparse.Namespace) -> bool:
    """Write the files asked for, and print the report; whether each could be written."""
    from torch_port.audit.report.lines import as_json, lines
    from torch_port.audit.report.page import html

    faults: dict[Path, OSError] = {}
    for path in options.report:
        text = html(report) if path.suffix == ".html" else json.dumps(as_json(report), indent=2) + "\n"
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            faults[path] = error
    if options.json:
        say_json(as_json(report))
    else:
        written = [f"report: {path}" for path in options.report if path not in faults]
        for line in [*lines(report), *written]:
            say(line)
    for path, fault in faults.items():
        warn(f"{path}: the report was not written: {fault.strerror or fault}")
    return not faults


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot be meant, before minutes are spent.

    Raises:
        ValueError: it says which of the options.
    """
    if (options.script is None) != (options.resume is None):
        raise ValueError("audit: expected --script and --resume together: a command that trains, and one that goes on")
    if (options.target is None) == (options.script is None):
        found = "neither" if options.target is None else "both"
        raise ValueError(f"audit: expected a TARGET, or --script with --resume, found {found}")
    if options.allow and options.script is None:
        raise ValueError("--allow: expected --script, whose files it is for; a TARGET loads its own state")
    if options.script is not None:
        check_commands(options.script, options.resume)
    beyond = [step for stop in options.at or () for step in steps_of(stop) if step >= options.steps]
    if beyond:
        raise ValueError(f"--at: expected stops before the last of {options.steps} steps, found {beyond}")
    for path in options.report:
        if not path.absolute().parent.is_dir():
            raise ValueError(f"{path}: expected a directory that is there, found no {path.parent}")


class _Json(argparse.Action):
    """`--json`: print; `--json FILE.json`: as `--report FILE.json`."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        """Take the option."""
        if values is None:
            namespace.json = True
        elif str(values).endswith(".json"):
            namespace.report = [*namespace.report, Path(str(values))]
        else:
            raise argparse.ArgumentError(
                self, f"expected FILE.json or nothing, found {values!r}; TARGET comes before it"
            )


def _steps(text: str) -> int:
    if not text.isdecimal() or int(text) < 2:
        raise argparse.ArgumentTypeError(f"expected a whole number from 2 on, found {text!r}")
    return int(text)


def _stops(text: str) -> list[Any]:
    """Stops, each a step or, for several in one run, a tuple of steps."""
    stops = []
    for part in text.split(","):
        steps = part.split("+")
        if not all(step.strip().isdecimal() and int(step) > 0 for step in steps):
            raise argparse.ArgumentTypeError(f"expected steps from 1 on, as in 7,12,13 or 7+13, found {part!r}")
        numbers = tuple(map(int, steps))
        if list(numbers) != sorted(set(numbers)):
            raise argparse.ArgumentTypeError(f"expected steps in ascending order, found {part!r}")
        stops.append(numbers if len(numbers) > 1 else numbers[0])
    return stops


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"expected seconds, more than 0, found {text!r}")
    return seconds


def _report(text: str) -> Path:
    path = Path(text)
    if path.suffix not in SUFFIXES:
        raise argparse.ArgumentTypeError(f"expected a file that ends in .html or .json, found {text!r}")
    return path
