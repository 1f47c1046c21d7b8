"""Whatever is killed, a whole checkpoint is left; whoever reads sees one save, whole."""

import os
import re
import sys
from contextlib import contextmanager
from unittest import mock

import pytest

import numpy_ref
from numpy_ref.checkpoint import save_and_resume as checkpoint
from parity_tests.checkpoint import kills
from parity_tests.commands import python
from parity_tests.implementations import NO_TORCH

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


def figures(answer):
    """What the command prints: the numbers of each line by its kind."""
    assert answer.stderr == ""
    lines = answer.stdout.splitlines()
    return {re.split("  +", line)[0]: [int(n) for n in re.findall(r"\b\d+\b", line)] for line in lines}


@pytest.mark.campaign
def test_after_any_of_500_kills_the_newest_checkpoint_is_whole_and_readers_see_whole_saves(tmp_path):
    answer = python("-m", "parity_tests.checkpoint.kills", "--count", 100, cwd=tmp_path)
    found = figures(answer)
    assert answer.returncode == 0, answer.stdout
    reads = found.pop("one name beside three readers")
    assert len(found) == 5
    assert sum(number for number, _, _ in found.values()) >= 300
    assert all(within > 0 for _, within, _ in found.values())  # kills struck in the middle of a save
    assert all(lost == 0 for _, _, lost in found.values())
    assert reads[0] == 2000
    assert reads[1] >= 2000
    assert reads[2] == 0


@pytest.mark.campaign
@NO_TORCH
def test_the_ports_writers_are_killed_too(tmp_path):
    answer = python(
        "-m", "parity_tests.checkpoint.kills", "--impl", "torch_port", "--count", 8, "--overwrites", 0, cwd=tmp_path
    )
    assert answer.returncode == 0, answer.stdout
    assert all(number >= 8 and lost == 0 for number, _, lost in figures(answer).values())


# Mutants, each in a process of its own, which forks.


@contextmanager
def straight(path, **settings):
    """A writer straight to the final name."""
    with open(path, "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def unlinked_first(path, **settings):
    """A writer that removes the old file before it gives the new one its name."""
    with open(f"{path}.new", "wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())
    if os.path.exists(path):
        os.unlink(path)
    os.replace(f"{path}.new", path)


def killed(fault, way):
    with mock.patch.object(checkpoint, "replace_file", globals()[fault]):
        outcome = kills.kill(numpy_ref, kills.SAVES[way], count=300)
    sys.stdout.write(f"{len(outcome.losses)} lost")


def read(fault):
    with mock.patch.object(checkpoint, "replace_file", globals()[fault]):
        found = kills.read_beside(numpy_ref.save_checkpoint, overwrites=300)
    sys.stdout.write(f"{len(found.losses)} lost")


def keeps_temporaries(way):
    with mock.patch.object(kills.store, "remove_stale", return_value=[]):
        outcome = kills.kill(numpy_ref, kills.SAVES[way], count=30)
    sys.stdout.write(f"{len(outcome.losses)} lost")


@pytest.mark.parametrize(
    "call",
    [
        'killed("straight", "one name")',
        'killed("straight", "a directory")',
        'killed("unlinked_first", "one name")',
        'keeps_temporaries("one name")',
        'read("straight")',
        'read("unlinked_first")',
    ],
)
def test_a_writer_with_one_fault_is_caught(tmp_path, call):
    answer = python("-c", f"from parity_tests.checkpoint import test_kills; test_kills.{call}", cwd=tmp_path)
    assert re.fullmatch(r"[1-9]\d* lost", answer.stdout), answer
