"""Each faulty loop is faulty where its entry says, and each sound one is sound, by a plain run, stop, load and run."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: the loops are torch's")

from parity_tests.zoo import proof
from parity_tests.zoo.base import FAULTS, SOUND, STEPS

proof.registry()
RAISE = [name for name, fault in FAULTS.items() if fault.raises]
BY_HASH = {"GroupsFromASet"}  # another process, or there is no fault
DIFFER = [name for name in FAULTS if name not in RAISE and name not in BY_HASH]


@pytest.fixture(autouse=True)
def as_before():
    with proof.own_process():
        yield


def shows(fault, found, at):
    """The named state differs after the load or with the first step that differs; nothing else does after the load."""
    first = next(iter(found.values()))
    assert any(map(fault.names, first)) or fault.named[0] == "samples", found
    assert all(map(fault.names, found.get(at, []))), found.get(at)
    return True


@pytest.mark.parametrize("name", DIFFER)
def test_a_faulty_loop_does_not_resume(name, tmp_path):
    fault = FAULTS[name]
    (at,) = fault.at
    whole = proof.uninterrupted(name, at, tmp_path / "state.pt")
    found = proof.differing(whole, proof.resumed(name, at, tmp_path / "state.pt"), at)
    assert found, "the resumed run is the uninterrupted one"
    assert shows(fault, found, at)


@pytest.mark.parametrize("name", RAISE)
def test_a_loop_that_raises_does_so_only_after_the_stop(name, tmp_path):
    fault = FAULTS[name]
    (at,) = fault.at
    proof.uninterrupted(name, at, tmp_path / "state.pt")
    with pytest.raises((TypeError, ValueError, KeyError, AssertionError)):
        proof.resumed(name, at, tmp_path / "state.pt")


@pytest.mark.parametrize("name", sorted(BY_HASH))
def test_a_loop_whose_order_is_the_hash_seeds_does_not_resume_with_another(name, tmp_path):
    def pictures(way, seed):
        command = [sys.executable, "-m", "parity_tests.zoo.proof", name, str(at), str(tmp_path / "state.pt"), way]
        done = subprocess.run(
            command, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": seed}
        )
        return {int(step): picture for step, picture in json.loads(done.stdout).items()}

    fault = FAULTS[name]
    (at,) = fault.at
    whole = pictures("run", "1")
    assert not proof.differing(whole, pictures("resume", "1"), at)
    assert shows(fault, proof.differing(whole, pictures("resume", "2"), at), at)


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_loop_resumes_after_any_of_these_steps(name, tmp_path):
    for at in (7, 10, 13):
        whole = proof.uninterrupted(name, at, tmp_path / "state.pt")
        found = proof.differing(whole, proof.resumed(name, at, tmp_path / "state.pt"), at)
        assert {path for paths in found.values() for path in paths} <= {"seconds"}  # the time that a loop took


def test_there_are_enough_loops():
    assert len(FAULTS) >= 40
    assert len(SOUND) >= 12
    assert STEPS == 24
