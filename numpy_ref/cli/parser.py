"""The verbs and their options."""

import argparse
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from numpy_ref.cli.demonstrations import run_demo, run_range, run_walk
from numpy_ref.cli.files import run_diff, run_inspect, run_verify
from numpy_ref.cli.options import SIZES, add_config, add_retention, whole
from numpy_ref.cli.tables import run_account, run_boundary
from numpy_ref.cli.training import run_train
from numpy_ref.console import FAILED, tell
from numpy_ref.exercises.commands import add_arguments, run_exercises, run_grade
from numpy_ref.proof.boundary import ROWS


class WrongUsage(SystemExit):
    """The end of a program whose words it does not understand; `text` says why."""

    def __init__(self, text: str) -> None:
        super().__init__(FAILED)
        self.text = text


class Parser(argparse.ArgumentParser):
    """A parser that ends with `WrongUsage`."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and how it is used."""
        tell(self.format_usage())
        tell(f"{self.prog}: error: {message}\n")
        raise WrongUsage(message)


def parser_of(impl: Any) -> argparse.ArgumentParser:
    """The parser of an implementation's verbs; parsed options have the verb's function as `run`."""
    program = f"python -m {impl.__name__}"
    parser = Parser(
        prog=program,
        description=(impl.__doc__ or "").partition("\n")[0],
        epilog="Exit status: 0 the verdict holds, 1 it does not, 2 wrong usage or a refusal by the system, 130 an "
        "interrupt, 75 `train` was asked to stop and has saved: the same command goes on. "
        f"First try: {program} demo",
    )
    verb = partial(_verb, parser.add_subparsers(dest="verb", required=True, metavar="VERB"), program)

    demo = verb(
        "demo", partial(run_demo, impl), "the whole experiment on the digits: table and figure", "--figure demo.png"
    )
    demo.add_argument(
        "--figure", type=Path, default=Path("demo.svg"), help="where the figure goes (default: %(default)s)"
    )

    text = "one resume followed leaf by leaf, and five traps, each run and drawn"
    walk = verb("walk", partial(run_walk, impl), text, "--figures figures")
    text = "write the traps' figures into this directory (default: draw none)"
    walk.add_argument("--figures", type=Path, metavar="DIR", help=text)

    train = verb("train", partial(run_train, impl), "train, with checkpoints and resume", "--steps 1000 --dir run")
    train.description = (
        f"{train.description} A signal ends it after the step, evaluation or save under way, with a checkpoint of that "
        "step and exit status 75 (SIGTERM, SIGUSR1) or 130 (SIGINT), and the same command goes on from there. A second "
        "signal ends it at once and harms no file."
    )
    train.add_argument(
        "--data", default="digits", metavar="digits|FILE.npz|FILE.csv", help="data set (default: digits)"
    )
    train.add_argument("--steps", type=whole, default=1000, help="steps in all, not additional (default: %(default)s)")
    train.add_argument(
        "--dir", type=Path, default=Path("run"), help="directory of the checkpoints (default: %(default)s)"
    )
    train.add_argument(
        "--every", type=whole, default=100, help="steps between checkpoints; 0: only at the end (default: %(default)s)"
    )
    add_retention(train)
    text = "write checkpoints beside training (default: no)"
    train.add_argument("--background", action=argparse.BooleanOptionalAction, default=False, help=text)
    train.add_argument(
        "--resume",
        choices=("auto", "never", "required"),
        default="auto",
        help="auto: continue the run in the directory, or start one; required: continue, or fail; never: the "
        "directory must hold none (default: %(default)s)",
    )
    train.add_argument("--quiet", action="store_true", help="print errors only")
    account = verb(
        "account", partial(run_account, impl), "bytes and operations of a step, computed beside measured", "--json"
    )
    account.add_argument(
        "--data", default="digits", metavar="digits|FILE.npz|FILE.csv", help="data set (default: digits)"
    )
    add_config(account, "settings of the run that its bytes and operations depend on", SIZES)
    for command in (demo, train, account) if "on_device" in impl.__all__ else ():
        command.add_argument("--device", default="cpu", help="where runs live, such as cuda:0 (default: %(default)s)")
    add_config(train, "settings of the run (a resumed run has its own; those given must agree with it)")

    tools = _tools(impl)
    inspect = verb("inspect", partial(run_inspect, tools), "what a checkpoint holds, and its sizes", "FILE")
    inspect.add_argument("file", type=Path, help="the checkpoint")

    verify = verb("verify", run_verify, "read all of a checkpoint, or of a directory, and check every byte", "FILE")
    what = verify.add_mutually_exclusive_group(required=True)
    what.add_argument("file", type=Path, nargs="?", help="the checkpoint")
    text = "a run's directory: what is there and damaged, what a resume takes, what may be deleted; changes nothing"
    what.add_argument("--all", type=Path, metavar="DIR", dest="directory", help=text)
    add_retention(verify.add_argument_group("what need not be deleted, with --all"))

    text = "compare the training state of two checkpoints leaf by leaf"
    diff = verb("diff", partial(run_diff, tools), text, "A B")
    diff.add_argument("a", type=Path, help="a checkpoint")
    diff.add_argument("b", type=Path, help="the one to compare it with")
    for command in (inspect, diff) if tools else ():
        tools.add_foreign_arguments(command)

    span = verb("range", run_range, "what formats of 16 bits hold, and what they lose of gradients", "--scale 1024")
    span.add_argument("--steps", type=int, default=200, help="of a run on the digits, >= 1 (default: %(default)s)")
    span.add_argument("--scale", type=float, default=2.0**16, help="of the loss, > 0 (default: %(default)s)")

    text = "the declared table: what matches bitwise, within, never"
    boundary = verb("boundary", partial(run_boundary, impl), text, "--json")
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
