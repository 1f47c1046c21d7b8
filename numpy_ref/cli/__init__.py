"""The command line: `python -m numpy_ref VERB`, or `torch_port`. The exit status is the verdict: 0 holds, 1 does not, 2
wrong usage or a refusal by the system; 130 after an interrupt and 141 after a closed pipe, as shells report them; 75
from `train` that was asked to stop and has saved, see `interrupt.py`.

The implementation is an argument. What only one of them has, devices and a boundary that it measures, is an option
where its `__all__` names it: asking the package for it would import torch, and help must not.

    parser, options                                the words, and what they mean
    training, files, demonstrations, tables        the verbs, by what they are about
"""

import argparse
import io
import os
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.cli.parser import WrongUsage, parser_of
from numpy_ref.console import BROKEN, FAILED, HOLDS, OutputLost, flush, say_json, warn

UNREADABLE = (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError)

__all__ = ["BROKEN", "FAILED", "HOLDS", "main", "parser_of"]


def main(impl: Any, arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        impl: the implementation, a package that can be run as a program.
        arguments: the words after the program's name; default is those of the process.

    Returns:
        The exit status.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a name that the locale cannot print is no failure
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
    try:
        options = parser_of(impl).parse_args(arguments)
    except WrongUsage as wrong:
        if "--json" in (sys.argv[1:] if arguments is None else arguments):
            say_json({"holds": False, "error": wrong.text})
        raise
    try:
        with impl.on_device(options.device) if "device" in options else nullcontext():
            return int(options.run(options))
    except KeyboardInterrupt:
        warn("interrupted")
        return 130  # as a shell reports SIGINT
    except (CheckpointError, ValueError, OSError, MemoryError, FloatingPointError) as error:
        notes = [f"\n    {note}" for note in getattr(error, "__notes__", [])]
        # What the system does not let anybody read, or what is not there, says nothing of what it holds.
        judged = isinstance(error, CheckpointError) and not isinstance(error.__context__, UNREADABLE)
        return _refuse(BROKEN if judged else FAILED, _told(error), options, notes)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != "torch":
            raise
        advice = "install the 'torch' extra, pip install '.[torch]'"
        return _refuse(FAILED, f"{impl.__name__} needs PyTorch, and cannot import it: {error}; {advice}", options)
    except RuntimeError as error:
        if "allocate" not in str(error):
            raise
        return _refuse(FAILED, str(error).partition("\n")[0], options)  # torch has no MemoryError


def _told(error: Exception) -> str:
    """The message; a refusal of the system with the path first, and what to do."""
    if isinstance(error, OSError) and type(error).__str__ is OSError.__str__ and error.strerror and error.filename:
        place = os.fsdecode(error.filename) if isinstance(error.filename, (str, bytes)) else str(error.filename)
        return f"{place}: the system refuses: {error.strerror}.\n    Check the path, its permissions and the disk."
    return str(error)


def _refuse(status: int, text: str, options: argparse.Namespace, notes: Sequence[str] = ()) -> int:
    """Say why a command ends here."""
    warn("".join([text, *notes]))
    if options.json:
        say_json({"holds": False, "error": text})
    return status
