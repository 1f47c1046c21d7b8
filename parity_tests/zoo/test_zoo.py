"""Each loop is faulty or sound as its entry says, by plain runs; the audit says the same and names the lost state."""

import json
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: the loops are torch's")

from parity_tests.zoo import proof
from parity_tests.zoo.__main__ import cell_of_audit, summary
from parity_tests.zoo.base import LOOPS
from parity_tests.zoo.faulty_data import Streaming, Working
from torch_port.audit.judge.workers import Workers

AUDITED = (  # about one for each kind of state, and two sound ones
    *("CountsUpdatesAnew", "SetsTicksToEpoch", "StepsWhileLoading", "ForgetsTorchGenerator", "SkipsInEachEpoch"),
    *("DropsTheOpenWindow", "ConvertsTheState", "LearnsSums", "truncated_gru", "ReadsShards", "Plain", "ReadsOn"),
)
BY_HASH = "GroupsFromASet"  # another process, or there is no fault
RAISE = [name for name, loop in LOOPS.items() if loop.raises]
DIFFER = [name for name, loop in LOOPS.items() if loop.proved and name != BY_HASH]
SOUND = [name for name, loop in LOOPS.items() if not loop.faulty]


def campaign(names, chosen):
    """The names, those that are not chosen with the marker."""
    return [pytest.param(name, marks=() if chosen(name) else pytest.mark.campaign) for name in names]


def starts_no_workers(name):
    return not (isinstance(found := proof.loop_of(name), type) and issubclass(found, (Streaming, Working)))


@pytest.fixture(autouse=True)
def as_before():
    with proof.own_process():
        yield


@pytest.fixture(scope="module")
def workers():
    with Workers() as shared:
        yield shared


def shows(loop, found):
    """The named state differs after the load or with the first step that differs; nothing else does after the load."""
    assert any(map(loop.names, next(iter(found.values())))) or loop.named[0] == "samples", found
    assert all(map(loop.names, found.get(loop.at, []))), found[loop.at]


def results(found):
    """Those of the paths that differ which hold losses and weights."""
    return [path for paths in found.values() for path in paths if path == "loss" or path.startswith("model.")]


@pytest.mark.parametrize("name", campaign(DIFFER, starts_no_workers))
def test_a_faulty_loop_does_not_resume(name, tmp_path):
    loop, path = LOOPS[name], tmp_path / "state.pt"
    whole = proof.uninterrupted(name, {loop.at: path})
    found = proof.differing(whole, proof.resumed(name, loop.at, path), loop.at)
    assert found, "the resumed run is the uninterrupted one"
    if loop.back is None:
        shows(loop, found)
    else:
        assert results(found), found
        given_back = proof.differing(whole, proof.resumed(name, loop.at, path, given_back=True), loop.at)
        assert not results(given_back), given_back


@pytest.mark.parametrize("name", RAISE)
def test_a_loop_that_raises_does_so_only_after_the_stop(name, tmp_path):
    loop, path = LOOPS[name], tmp_path / "state.pt"
    proof.uninterrupted(name, {loop.at: path})
    with pytest.raises((TypeError, ValueError, KeyError, AssertionError)):
        proof.resumed(name, loop.at, path)


@pytest.mark.campaign
def test_a_loop_whose_order_is_the_hash_seeds_does_not_resume_with_another(tmp_path):
    loop = LOOPS[BY_HASH]

    def pictures(way, seed):
        command = [sys.executable, "-m", "parity_tests.zoo.proof", BY_HASH, f"{loop.at}", f"{tmp_path / 'file'}", way]
        env = os.environ | {"PYTHONHASHSEED": seed}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=env)
        return {int(step): picture for step, picture in json.loads(done.stdout).items()}

    whole = pictures("run", "1")
    assert not proof.differing(whole, pictures("resume", "1"), loop.at)
    shows(loop, proof.differing(whole, pictures("resume", "2"), loop.at))


@pytest.mark.parametrize("name", campaign(SOUND, starts_no_workers))
def test_a_sound_loop_resumes_after_any_of_these_steps(name, tmp_path):
    saves = {at: tmp_path / f"{at}.pt" for at in (5, 7, 10, 13)}
    whole = proof.uninterrupted(name, saves)
    for at, path in saves.items():
        found = proof.differing(whole, proof.resumed(name, at, path), at)
        paths = {path.split(".")[0].split("[")[0] for paths in found.values() for path in paths}
        assert paths <= {"seconds", "cache", "rng/torch"}  # the time that a loop took; what it computes again


@pytest.mark.parametrize("name", campaign(LOOPS, AUDITED.__contains__))
def test_the_audit_names_the_lost_state_first_and_finds_no_fault_in_a_sound_loop(workers, name):
    cell, loop = cell_of_audit(name, workers), LOOPS[name]
    assert cell["verdict"] == ("named" if loop.faulty else "sound"), cell
    assert cell["proved"] is loop.proved, cell


def test_precision_and_recall_count_what_they_say():
    def row(faulty, verdict):
        return {"faulty": faulty, "audit": {"verdict": verdict}}

    rows = {"a": row(True, "named"), "b": row(True, "found"), "c": row(True, "missed"), "d": row(True, "abstains")}
    rows |= {"e": row(False, "sound"), "f": row(False, "false alarm"), "g": row(False, "abstains")}
    assert summary(rows, "audit") == (
        "audit: precision 67%, recall 50%; 2 of 4 faulty loops reported, 1 with the lost state first; "
        "1 of 3 sound loops reported"
    )
