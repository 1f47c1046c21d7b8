"""The house: a file of the packages is of one idea, and short; a longer one says at its top why."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from parity_tests.commands import ROOT

MOST = 350  # lines
FILES = sorted(path for package in ("numpy_ref", "torch_port") for path in (ROOT / package).glob("**/*.py"))


def reason(source: str) -> str:
    """The sentence of a module's docstring that begins with "Long", on one line; "" if there is none."""
    text = " ".join((ast.get_docstring(ast.parse(source)) or "").split())
    found = re.search(r"(?:^|[.:] )(Long\b.*?\.)(?= |$)", text)
    return found[1] if found else ""


def fault_of(source: str) -> str:
    """What is wrong with a file's length, or with what it says of it."""
    lines, why = len(source.splitlines()), reason(source)
    if lines > MOST and not why:
        return f"{lines} lines, and no sentence of its docstring begins with Long: split it, or say why it is one room"
    if lines <= MOST and why:
        return f"{lines} lines, and said to be long: {why}"
    return ""


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_long_file_says_why_and_no_other_does(path: Path) -> None:
    assert fault_of(path.read_text(encoding="utf-8")) == ""


def test_every_reason_is_the_files_own() -> None:
    reasons = Counter(reason(path.read_text(encoding="utf-8")) for path in FILES)
    assert [why for why, count in reasons.items() if why and count > 1] == []


@pytest.mark.parametrize(
    ("docstring", "lines", "right"),
    [
        ("What it is.", 350, True),
        ("What it is.", 351, False),
        ("What it is.\n\nLong, for it is one table.", 351, True),
        ("What it is. It does that. Long, for it is\none table, no more.", 351, True),
        ("Long, for it is one table.", 350, False),
        ("What it is.\n\nSo Long, for it is one table.", 351, False),
        ("What it is.\n\nLonger than others.", 351, False),
        ("What it is.\n\nLong", 351, False),
    ],
)
def test_length_and_reason_are_held_against_each_other(docstring: str, lines: int, right: bool) -> None:
    source = f'"""{docstring}\n"""\n'
    source += "# Long, for this is a comment.\n" * (lines - len(source.splitlines()))
    assert (fault_of(source) == "") == right
