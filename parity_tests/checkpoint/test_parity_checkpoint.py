"""Files of either package are read by either; what is wrong with them is one error, and nothing live follows them."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import load_file

import numpy_ref
from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
    read_container,
)
from numpy_ref.config import RunConfig
from numpy_ref.proof.boundary import row_for
from numpy_ref.proof.equivalence import compare, digest
from parity_tests.commands import python
from parity_tests.strategies import run_configs, small_data

torch = pytest.importorskip("torch", reason="torch is missing: the port's checkpoints cannot be written")
import torch_port

CONFIG = RunConfig(hidden=(3,), batch_size=4, batch_norm=True, dropout=0.3, evaluate_every=2)
DATA = small_data(1, samples=23)
BOTH = [numpy_ref, torch_port]
SIDES = [(a, b) for a in BOTH for b in BOTH]
NAMES = ["numpy-numpy", "numpy-torch", "torch-numpy", "torch-torch"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("parity")


@given(run_configs(arithmetic="reproducible"), st.integers(0, 5))
def test_both_write_the_same_arrays_and_scalars(folder, case, steps):
    config, data = case
    content = []
    for impl in BOTH:
        path = folder / f"{impl.__name__}.safetensors"
        impl.save_checkpoint(path, impl.train_n_steps(impl.init_run(config, data), data, steps))
        arrays, manifest = read_container(path)
        content.append((digest(arrays), manifest["scalars"], manifest["config"], manifest["step"]))
        assert set(load_file(path)) == set(arrays)
    assert content[0] == content[1]


@pytest.mark.parametrize(("writer", "reader"), SIDES, ids=NAMES)
@given(case=run_configs(), steps=st.integers(0, 5))
def test_a_full_checkpoint_of_either_is_resumed_whole_by_either(folder, writer, reader, case, steps):
    config, data = case
    path = folder / "full.safetensors"
    run = writer.train_n_steps(writer.init_run(config, data), data, steps)
    writer.save_checkpoint(path, run)
    resumed = reader.resume_from_full_checkpoint(path, data, expect=config)
    assert compare(writer.snapshot(run), reader.snapshot(resumed)).holds
    assert (resumed.config, resumed.run_id, resumed.fingerprint) == (run.config, run.run_id, run.fingerprint)
    assert resumed.step == steps


@pytest.mark.parametrize(("writer", "reader"), SIDES, ids=NAMES)
@given(case=run_configs(), full=st.booleans())
def test_weights_of_either_start_a_new_run_of_either(folder, writer, reader, case, full):
    config, data = case
    path = folder / "weights.safetensors"
    run = writer.train_n_steps(writer.init_run(config, data), data, 3)
    (writer.save_checkpoint if full else writer.save_weights)(path, run)
    started = reader.resume_from_weights_only(path, data, config)
    fresh, weights = reader.snapshot(reader.init_run(config, data)), writer.snapshot(run).model
    expected = fresh._replace(model=weights, best=fresh.best._replace(model=weights))
    assert compare(expected, reader.snapshot(started)).holds
    assert started.run_id != run.run_id


def test_the_manifest_tells_in_which_package_and_where_the_file_was_written(folder):
    paths = [folder / f"{impl.__name__}.safetensors" for impl in BOTH]
    for impl, path in zip(BOTH, paths, strict=True):
        impl.save_checkpoint(path, impl.init_run(CONFIG, DATA))
    ours, theirs = (numpy_ref.read_checkpoint(path).environment for path in paths)
    assert theirs["torch"]["version"] == torch.__version__
    assert theirs["torch"]["device"] == "cpu"
    assert {name: value for name, value in theirs.items() if name != "torch"} == ours
    assert row_for(ours, theirs, arithmetic="reproducible").name == "saved in one, resumed in the other"
    assert row_for(ours, theirs, arithmetic="native").name == "NumPy against PyTorch, native"
    assert json.loads(json.dumps(theirs)) == theirs


# Refusals


@pytest.fixture
def saved(folder):
    path = folder / "saved.safetensors"
    torch_port.save_checkpoint(path, torch_port.train_n_steps(torch_port.init_run(CONFIG, DATA), DATA, 3))
    return path


def test_what_the_reference_refuses_the_port_refuses(folder, saved):
    resume, other = torch_port.resume_from_full_checkpoint, small_data(2, samples=23)
    with pytest.raises(IncompatibleCheckpoint, match=r"beta1: expected 0\.8, found 0\.9"):
        resume(saved, DATA, expect=replace(CONFIG, beta1=0.8))
    with pytest.raises(IncompatibleCheckpoint, match="fingerprint"):
        resume(saved, other)
    with pytest.raises(IncompatibleCheckpoint, match="layer0"):
        torch_port.resume_from_weights_only(saved, DATA, replace(CONFIG, hidden=(4,)))
    with pytest.raises(CheckpointError, match="no such file"):
        resume(folder / "none.safetensors", DATA)
    torch_port.save_weights(folder / "weights.safetensors", torch_port.init_run(CONFIG, DATA))
    with pytest.raises(IncompleteCheckpoint, match="use resume_from_weights_only"):
        resume(folder / "weights.safetensors", DATA)


def test_any_changed_byte_is_one_checkpoint_error_and_the_live_run_stays(folder, saved):
    live = torch_port.resume_from_full_checkpoint(saved, DATA)
    before, content = digest(torch_port.snapshot(live)), saved.read_bytes()
    for place in range(0, len(content), 997):
        path = folder / "changed.safetensors"
        path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
        with pytest.raises(CheckpointError):
            torch_port.resume_from_full_checkpoint(path, DATA)
    assert digest(torch_port.snapshot(live)) == before


def test_a_state_that_could_not_be_loaded_is_refused_and_the_old_file_stands(saved):
    content = saved.read_bytes()
    run = torch_port.resume_from_full_checkpoint(saved, DATA)
    run.model.layer0.weight.data = run.model.layer0.weight.data.double()
    with pytest.raises(ValueError, match=r"model/layer0.weight: expected float32 \(3, 3\), found float64 \(3, 3\)"):
        torch_port.save_checkpoint(saved, run)
    assert saved.read_bytes() == content


def test_a_diverged_run_with_nans_is_saved_and_resumed_in_both(folder):
    path = folder / "nan.safetensors"
    run = torch_port.init_run(replace(CONFIG, batch_norm=False), DATA)
    with torch.no_grad():
        run.model.layer0.weight[0] = float("nan")
        run.model.layer1.weight[0] = float("inf")
    run = torch_port.train_n_steps(run, DATA, 3)
    torch_port.save_checkpoint(path, run)
    moments = [impl.train_n_steps(impl.resume_from_full_checkpoint(path, DATA), DATA, 3) for impl in BOTH]
    states = [impl.snapshot(moment) for impl, moment in zip(BOTH, moments, strict=True)]
    assert compare(*states).holds
    assert np.isnan(states[0].model["layer0.weight"]).any()


def test_a_resumed_run_does_not_follow_the_file_nor_another_resume(saved):
    first, second = (torch_port.resume_from_full_checkpoint(saved, DATA) for _ in range(2))
    before = digest(torch_port.snapshot(second))
    torch_port.train_n_steps(first, DATA, 3)
    assert digest(torch_port.snapshot(second)) == before


def test_a_missing_generator_state_is_a_corrupt_file_not_a_traceback_of_torch(folder, saved):
    from parity_tests.checkpoint.test_checkpoint import rewritten

    zero = np.zeros(624, np.uint32)
    path = rewritten(saved, folder / "rng.safetensors", leaves={"rng/dropout/key": zero})
    with pytest.raises(CorruptCheckpoint, match="all-zero"):
        torch_port.resume_from_full_checkpoint(path, DATA)
    path = rewritten(saved, folder / "rng.safetensors", leaves={"rng/dropout/pos": 0})
    with pytest.raises(CorruptCheckpoint, match="pos: expected an integer from 1 to 624, found 0"):
        torch_port.resume_from_full_checkpoint(path, DATA)


MEMORY = """
import re, torch_port
from pathlib import Path

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

data = torch_port.load_data("digits")
run = torch_port.train_n_steps(torch_port.init_run(torch_port.RunConfig(hidden=(1500, 1500)), data), data, 1)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
SAVE
print(run.model.layer1.weight.nbytes, peak() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the peak of memory is read from Linux' /proc")
@pytest.mark.parametrize(
    ("save", "copies"),
    [("torch_port.save_checkpoint('run', run)", False), ("state = torch_port.snapshot(run)", True)],
)
def test_a_save_takes_no_copy_of_the_state_nor_of_one_array(tmp_path, save, copies):
    process = python("-c", MEMORY.replace("SAVE", save), cwd=tmp_path)
    assert process.returncode == 0, process.stderr
    largest, more = map(int, process.stdout.split())
    assert (more > largest) == copies
    assert copies or more < largest // 2
