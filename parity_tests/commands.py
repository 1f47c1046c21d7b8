"""How tests call the command line: in process with what it prints, or as a process of its own."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import numpy_ref
from numpy_ref.cli import main

ROOT = Path(numpy_ref.__file__).parent.parent  # where the packages are, installed or not
SOURCES = Path(__file__).parent.parent  # where these tests are, with README and docs
PATHS = os.pathsep.join(map(str, dict.fromkeys((ROOT, SOURCES))))


class Answer(NamedTuple):
    status: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *words: object, impl: Any = numpy_ref) -> Answer:
    """Run a command of an implementation in this process; argparse's own exit counts as a status."""
    capsys.readouterr()
    try:
        status = main(impl, [str(word) for word in words])
    except SystemExit as end:
        status = int(end.code or 0)
    return Answer(status, *capsys.readouterr())


def strict_json(text: str) -> Any:
    """JSON as every reader has it: one value, no NaN and no infinity, no key twice."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len(dict(pairs)) != len(pairs):
            raise ValueError("one key twice in an object")
        return dict(pairs)

    return json.loads(text, parse_constant=refuse, object_pairs_hook=once)


def python(*words: object, cwd: Path, stdout: Any = subprocess.PIPE, **environment: str) -> Any:
    """Run Python on this package in a process of its own, standard output buffered as users have it."""
    env = os.environ | {"PYTHONPATH": PATHS, "PYTHONUNBUFFERED": "", "COLUMNS": "120"} | environment
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=cwd, env=env, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=120)
