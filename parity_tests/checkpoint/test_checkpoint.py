"""A checkpoint comes back whole or not at all, and every bad one gets one clear error."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from safetensors.numpy import load_file

import numpy_ref
from numpy_ref.checkpoint import container
from numpy_ref.checkpoint import save_and_resume as checkpoint
from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
)
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset, init_dataset
from numpy_ref.proof.equivalence import compare, digest
from numpy_ref.train import Run
from numpy_ref.tree import flatten
from parity_tests.strategies import run_configs, small_data

CONFIG = RunConfig(hidden=(3,), batch_size=4, batch_norm=True, dropout=0.3, evaluate_every=2)
DATA = small_data(1, samples=23)


def trained(config: RunConfig = CONFIG, steps: int = 7) -> Run:
    return numpy_ref.train_n_steps(numpy_ref.init_run(config, DATA), DATA, steps)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("checkpoint")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Path:
    path = folder / "saved.safetensors"
    numpy_ref.save_checkpoint(path, trained())
    return path


def rewritten(path: Path, target: Path, **changes: Any) -> Path:
    """A sound file with other content: leaves set or (None) removed, and fields of the manifest replaced."""
    arrays, manifest = container.read_container(path)
    for name, value in changes.pop("leaves", {}).items():
        arrays.pop(name, None)
        manifest["scalars"].pop(name, None)
        if isinstance(value, np.ndarray):
            arrays[name] = value
        elif value is not None:
            manifest["scalars"][name] = value
    manifest |= changes
    manifest = {name: value for name, value in manifest.items() if value is not None}
    with target.open("wb") as file:
        container.write_container(file, arrays, manifest)
    return target


@given(run_configs())
def test_what_is_saved_comes_back_bitwise_and_saving_it_again_gives_the_same_bytes(
    folder: Path, case: tuple[RunConfig, Dataset]
) -> None:
    config, data = case
    run = numpy_ref.train_n_steps(numpy_ref.init_run(config, data), data, 3)
    first, second = folder / "first.safetensors", folder / "second.safetensors"
    numpy_ref.save_checkpoint(first, run)
    resumed = numpy_ref.resume_from_full_checkpoint(first, data)
    assert compare(run.state, resumed.state).holds
    assert (resumed.config, resumed.run_id, resumed.fingerprint) == (run.config, run.run_id, run.fingerprint)
    numpy_ref.save_checkpoint(second, resumed)
    assert first.read_bytes() == second.read_bytes()


def test_the_safetensors_package_reads_every_array(saved: Path) -> None:
    theirs, ours = load_file(saved), flatten(trained().state)
    arrays = {name: leaf for name, leaf in ours.items() if isinstance(leaf, np.ndarray)}
    assert theirs.keys() == arrays.keys()
    assert all(theirs[name].tobytes() == arrays[name].tobytes() for name in arrays)


def test_a_file_is_no_larger_than_its_content_and_a_bounded_overhead(folder: Path) -> None:
    run = trained(replace(CONFIG, hidden=(64,)))
    numpy_ref.save_checkpoint(folder / "size.safetensors", run)
    leaves = flatten(run.state)
    content = sum(leaf.nbytes for leaf in leaves.values() if isinstance(leaf, np.ndarray))
    assert content < (folder / "size.safetensors").stat().st_size < content + 2048 + 256 * len(leaves)


@pytest.mark.campaign
def test_every_truncation_and_every_changed_byte_is_one_checkpoint_error(saved: Path, folder: Path) -> None:
    whole = saved.read_bytes()
    path = folder / "bad.safetensors"
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint, match=r"bad\.safetensors"):
            container.read_container(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ (1 << place % 8)]) + whole[place + 1 :])
        with pytest.raises(CorruptCheckpoint, match=r"bad\.safetensors"):
            container.read_container(path)
    for content in (b"", whole[: len(whole) // 2], whole[:-1], whole + b"\0"):
        path.write_bytes(content)
        for call in (
            lambda: numpy_ref.resume_from_full_checkpoint(path, DATA),
            lambda: numpy_ref.resume_from_weights_only(path, DATA, CONFIG),
            lambda: numpy_ref.read_checkpoint(path),
        ):
            with pytest.raises(CorruptCheckpoint):
                call()


def test_a_missing_file_is_a_checkpoint_error_that_says_so(folder: Path) -> None:
    with pytest.raises(CheckpointError, match=r"none.safetensors"):
        numpy_ref.resume_from_full_checkpoint(folder / "none.safetensors", DATA)


def test_a_weights_file_resumes_weights_only_and_says_so(folder: Path) -> None:
    path, run = folder / "weights.safetensors", trained()
    checkpoint.save_weights(path, run)
    with pytest.raises(IncompleteCheckpoint, match=r"(?s)missing best, data, mode, .*use resume_from_weights_only"):
        numpy_ref.resume_from_full_checkpoint(path, DATA)
    started = numpy_ref.resume_from_weights_only(path, DATA, CONFIG)
    assert compare(run.state.model, started.state.model).holds
    assert started.run_id != run.run_id
    assert started.state.optimizer.t == 0


def test_weights_for_another_model_are_refused_with_every_leaf_named(saved: Path) -> None:
    with pytest.raises(
        IncompatibleCheckpoint, match=r"layer0.bias: expected float32 \(4,\), found float32 \(3,\).*norm0"
    ):
        numpy_ref.resume_from_weights_only(saved, DATA, replace(CONFIG, hidden=(4,)))
    with pytest.raises(IncompatibleCheckpoint, match=r"model/norm0.bias: not expected; .*norm0.weight: not expected"):
        numpy_ref.resume_from_weights_only(saved, DATA, replace(CONFIG, batch_norm=False))
    with pytest.raises(IncompleteCheckpoint, match=r"missing model/layer2.bias, model/layer2.weight"):
        numpy_ref.resume_from_weights_only(saved, DATA, replace(CONFIG, hidden=(3, 3), batch_norm=False))


def test_another_configuration_is_refused_naming_every_field(saved: Path) -> None:
    assert numpy_ref.resume_from_full_checkpoint(saved, DATA, expect=CONFIG).state.step == 7
    other = replace(CONFIG, beta1=0.8, batch_size=5)
    with pytest.raises(
        IncompatibleCheckpoint, match=r"batch_size: expected 5, found 4; beta1: expected 0.8, found 0.9"
    ):
        numpy_ref.resume_from_full_checkpoint(saved, DATA, expect=other)


def test_other_data_are_refused(saved: Path) -> None:
    inputs = np.concatenate([DATA.inputs, DATA.test_inputs])
    labels = np.concatenate([DATA.labels, DATA.test_labels])
    for data in (small_data(2, samples=23), init_dataset(inputs * 2, labels), init_dataset(inputs[:-1], labels[:-1])):
        with pytest.raises(IncompatibleCheckpoint, match="expected the data set with fingerprint"):
            numpy_ref.resume_from_full_checkpoint(saved, data)


@pytest.mark.parametrize("name", list(flatten(trained().state)))
def test_each_missing_leaf_is_named(saved: Path, folder: Path, name: str) -> None:
    path = rewritten(saved, folder / "missing.safetensors", leaves={name: None})
    with pytest.raises(IncompleteCheckpoint, match=f"missing.safetensors: missing {name}"):
        numpy_ref.resume_from_full_checkpoint(path, DATA)


@pytest.mark.parametrize("field", sorted(checkpoint.FIELDS))
def test_each_missing_field_of_the_manifest_is_named(saved: Path, folder: Path, field: str) -> None:
    path = rewritten(saved, folder / "field.safetensors", **{field: None})
    with pytest.raises(IncompleteCheckpoint, match=f"missing {field} in the manifest"):
        numpy_ref.resume_from_full_checkpoint(path, DATA)


BIG_KEY = np.zeros(624, np.uint32)
CONTRADICTIONS: list[tuple[dict[str, Any], type[CheckpointError], str]] = [
    ({"leaves": {"extra": np.zeros(2)}}, IncompatibleCheckpoint, "extra: not expected"),
    ({"leaves": {"extra": 3}}, IncompatibleCheckpoint, "extra: not expected"),
    ({"leaves": {"optimizer/t": -1}}, CorruptCheckpoint, r"optimizer/t: expected >= 0, found -1"),
    ({"leaves": {"optimizer/t": 6}}, CorruptCheckpoint, r"optimizer/t: expected 7 as in the manifest, found 6"),
    ({"leaves": {"optimizer/t": 7.0}}, IncompatibleCheckpoint, "optimizer/t: expected int, found float"),
    ({"leaves": {"optimizer/t": "7"}}, IncompatibleCheckpoint, "optimizer/t: expected int, found str"),
    ({"leaves": {"optimizer/t": True}}, IncompatibleCheckpoint, "optimizer/t: expected int, found bool"),
    ({"leaves": {"optimizer/t": np.array(7)}}, IncompatibleCheckpoint, r"optimizer/t: expected int, found int64 \(\)"),
    (
        {"leaves": {"data/consumed": 19}},
        CorruptCheckpoint,
        "data: expected a position that 7 steps of 4 samples lead to",
    ),
    (
        {"leaves": {"data/consumed": 12}},
        CorruptCheckpoint,
        "data: expected a position that 7 steps of 4 samples lead to",
    ),
    ({"leaves": {"data/epoch": 2}}, CorruptCheckpoint, "data: expected a position that 7 steps of 4 samples lead to"),
    ({"leaves": {"data/epoch": 2**70}}, CorruptCheckpoint, "data/epoch: expected below"),
    ({"leaves": {"best/loss": "float nan"}}, CorruptCheckpoint, "best/loss: expected a number or infinity, found nan"),
    ({"run_id": "\x1b[31mX"}, CorruptCheckpoint, "run_id: expected 32 hexadecimal digits"),
    ({"fingerprint": ""}, CorruptCheckpoint, "fingerprint: expected 64 hexadecimal digits"),
    ({"leaves": {"data/consumed": -4}}, CorruptCheckpoint, "data/consumed: expected >= 0, found -4"),
    ({"leaves": {"mode": "training"}}, CorruptCheckpoint, "mode: expected 'train' or 'eval', found 'training'"),
    ({"leaves": {"schedule/rate": "float nan"}}, CorruptCheckpoint, "schedule/rate: expected a rate >= 0"),
    ({"leaves": {"schedule/rate": "float fast"}}, CorruptCheckpoint, "schedule/rate: expected a float in hexadecimal"),
    ({"leaves": {"schedule/rate": 1}}, IncompatibleCheckpoint, "schedule/rate: expected float, found int"),
    ({"leaves": {"best/step": 8}}, CorruptCheckpoint, "best/step: expected at most 7, found 8"),
    ({"leaves": {"rng/order/pos": 625}}, CorruptCheckpoint, "rng/order/pos"),
    ({"leaves": {"rng/dropout/key": BIG_KEY}}, CorruptCheckpoint, "rng/dropout/key.*all-zero"),
    ({"leaves": {"rng/dropout/key": np.zeros(624, np.int64)}}, IncompatibleCheckpoint, "expected uint32"),
    ({"leaves": {"rng/dropout/key": np.ones(623, np.uint32)}}, IncompatibleCheckpoint, r"expected uint32 \(624,\)"),
    ({"leaves": {"model/layer0.weight": np.zeros((3, 3))}}, IncompatibleCheckpoint, "expected float32"),
    (
        {"leaves": {"model/layer0.weight": np.zeros(3, np.float32)}},
        IncompatibleCheckpoint,
        "expected weights for hidden",
    ),
    (
        {"leaves": {"model/layer1.weight": np.zeros((3, 9), np.float32)}},
        IncompatibleCheckpoint,
        "expected weights for hidden",
    ),
    ({"kind": "whole"}, CorruptCheckpoint, "kind: expected 'full' or 'weights', found 'whole'"),
    ({"step": "7"}, CorruptCheckpoint, "step: expected int, found '7'"),
    ({"step": 8}, CorruptCheckpoint, "step: expected 8 as in the manifest, found 7"),
    ({"scalars": []}, CorruptCheckpoint, "scalars: expected dict"),
    ({"config": {}}, IncompatibleCheckpoint, r"missing fields \['accumulation'"),
    ({"fingerprint": "0" * 64}, IncompatibleCheckpoint, "expected the data set with fingerprint 0"),
]


@pytest.mark.parametrize(("changes", "error", "message"), CONTRADICTIONS, ids=[c[2][:40] for c in CONTRADICTIONS])
def test_a_sound_file_that_contradicts_itself_is_refused(
    saved: Path, folder: Path, changes: dict[str, Any], error: type[CheckpointError], message: str
) -> None:
    path = rewritten(saved, folder / "contradiction.safetensors", **changes)
    with pytest.raises(error, match=message) as caught:
        numpy_ref.resume_from_full_checkpoint(path, DATA)
    assert str(path) in str(caught.value)
    assert "\n    " in str(caught.value)  # what to do


def test_a_configuration_of_another_version_is_refused(saved: Path, folder: Path) -> None:
    _, manifest = container.read_manifest(saved)
    path = rewritten(saved, folder / "config.safetensors", config=manifest["config"] | {"momentum2": 1})
    with pytest.raises(IncompatibleCheckpoint, match=r"unknown fields \['momentum2'\]"):
        numpy_ref.resume_from_full_checkpoint(path, DATA)
    path = rewritten(saved, folder / "config.safetensors", config=manifest["config"] | {"beta1": 2.0})
    with pytest.raises(IncompatibleCheckpoint, match=r"beta1: expected 0 <= beta1 < 1, found 2\.0"):
        numpy_ref.resume_from_full_checkpoint(path, DATA)


def test_a_newer_version_is_refused_as_such(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(container, "VERSION", "2")
    numpy_ref.save_checkpoint(folder / "newer.safetensors", trained())
    monkeypatch.undo()
    with pytest.raises(IncompatibleCheckpoint, match=r"newer.safetensors.*version"):
        numpy_ref.resume_from_full_checkpoint(folder / "newer.safetensors", DATA)


BIAS = np.ones(3, np.float32)
UNLOADABLE: dict[str, tuple[Any, str]] = {
    "an object array": (
        {"model": {"layer0.bias": BIAS.astype(object)}},
        r"expected float32 \(3,\), found object \(3,\)",
    ),
    "a big-endian array": (
        {"model": {"layer0.bias": BIAS.astype(">f4")}},
        r"expected float32 \(3,\), found >f4 \(3,\)",
    ),
    "a name with a NUL": ({"model": {"a\0b": BIAS}}, r"'model/a\\x00b': not expected"),
    "a name no file can hold": ({"model": {"\ud800": BIAS}}, r"'model/\\ud800': not expected"),
    "another type": ({"model": {"layer0.bias": BIAS.astype(np.float64)}}, "expected float32.*found float64"),
    "another shape": ({"model": {"layer0.bias": BIAS[:2]}}, r"expected float32 \(3,\), found float32 \(2,\)"),
    "a list": ({"model": {"layer0.bias": [1.0]}}, "model/layer0.bias: expected an array, int, float or str, found"),
    "a NumPy number": ({"schedule": {"rate": np.float64(1)}}, "schedule/rate: expected an array, int, float or str"),
    "a bool": ({"step": True}, "step: expected an array, int, float or str, found True"),
    "t that is not the step": ({"optimizer": {"t": 3}}, "optimizer/t: expected 7 as in the manifest, found 3"),
    "a mode that is none": ({"mode": "foo"}, "mode: expected 'train' or 'eval', found 'foo'"),
    "a rate that is no number": ({"schedule": {"rate": float("nan")}}, "schedule/rate: expected a rate >= 0"),
    "a position beyond the steps": ({"data": {"consumed": 10**6}}, "data: expected a position that 7 steps of 4"),
    "a position within a window": ({"data": {"consumed": 9}}, "data: expected a position that 7 steps of 4"),
    "an epoch too many": ({"data": {"epoch": 2**70}}, "data/epoch: expected below"),
    "a best loss that is no number": ({"best": {"loss": float("nan")}}, "best/loss: expected a number or infinity"),
    "a position before the start": ({"data": {"consumed": -1}}, "data/consumed: expected >= 0, found -1"),
}


def altered(run: Run, changes: dict[str, Any]) -> Run:
    state = run.state
    for name, change in changes.items():
        part = getattr(state, name)
        if isinstance(part, dict):
            change = part | change
        elif isinstance(change, dict):
            change = part._replace(**change)
        state = state._replace(**{name: change})
    return run._replace(state=state)


@pytest.mark.parametrize("case", UNLOADABLE)
def test_what_could_not_be_loaded_is_refused_when_saving_and_the_old_file_stands(folder: Path, case: str) -> None:
    changes, message = UNLOADABLE[case]
    path = folder / "stands.safetensors"
    run = trained()
    numpy_ref.save_checkpoint(path, run)
    before = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        numpy_ref.save_checkpoint(path, altered(run, changes))
    with pytest.raises(ValueError, match="run_id: expected str, found 5"):
        numpy_ref.save_checkpoint(path, run._replace(run_id=5))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"(?s)fingerprint: expected 64 hexadecimal digits.*Nothing was written"):
        numpy_ref.save_checkpoint(path, run._replace(fingerprint=""))
    fewer = {name: x for name, x in run.state.model.items() if name != "layer1.bias"}
    with pytest.raises(ValueError, match=r"missing model/layer1\.bias"):
        numpy_ref.save_checkpoint(path, run._replace(state=run.state._replace(model=fewer)))
    assert path.read_bytes() == before
    assert [p.name for p in folder.glob(".*")] == []


def test_a_run_whose_rate_has_overflowed_resumes(folder: Path) -> None:
    config = replace(CONFIG, schedule="step", step_size=1, gamma=1e30, batch_norm=False)
    run = trained(config, 14)
    assert run.state.schedule.rate == float("inf")
    numpy_ref.save_checkpoint(folder / "inf.safetensors", run)
    resumed = numpy_ref.resume_from_full_checkpoint(folder / "inf.safetensors", DATA)
    assert compare(*(numpy_ref.train_n_steps(r, DATA, 2).state for r in (run, resumed))).holds


@pytest.mark.parametrize(
    "name", ["file", "allow_pickle", "args", "arr_0", "self", "w.npy", "/a", "a//b", "../x", "A", "é"]
)
def test_names_that_break_other_formats_are_kept_by_the_container(folder: Path, name: str) -> None:
    arrays = {name: np.ones(2, np.float32), "w": np.zeros(3, np.float32)}
    with (folder / "names.safetensors").open("wb") as file:
        container.write_container(file, arrays, {})
    found, _ = container.read_container(folder / "names.safetensors")
    assert compare(arrays, found).holds


def test_a_directory_that_cannot_be_written_is_named_and_nothing_is_left(folder: Path) -> None:
    (folder / "plain").write_text("no directory")
    for place in (folder / "absent" / "x.safetensors", folder / "plain" / "x.safetensors"):
        with pytest.raises(OSError, match=place.parent.name):
            numpy_ref.save_checkpoint(place, trained())
        assert not place.exists()


def test_nothing_live_changes_when_a_load_fails(saved: Path, folder: Path) -> None:
    run = trained()
    before = digest(run.state)
    for name in ("rng/order/key", "best/model/layer1.bias", "optimizer/v/norm0.bias"):
        path = rewritten(saved, folder / "late.safetensors", leaves={name: None})
        with pytest.raises(CheckpointError):
            numpy_ref.resume_from_full_checkpoint(path, DATA)
    assert digest(run.state) == before


def test_a_diverged_run_with_nans_is_saved_and_resumed(folder: Path) -> None:
    run = trained(replace(CONFIG, batch_norm=False))
    model = {name: np.full_like(x, np.nan) for name, x in run.state.model.items()}
    run = run._replace(state=run.state._replace(model=model))
    numpy_ref.save_checkpoint(folder / "nan.safetensors", run)
    resumed = numpy_ref.resume_from_full_checkpoint(folder / "nan.safetensors", DATA)
    assert compare(run.state, resumed.state).holds
    more = [numpy_ref.train_n_steps(r, DATA, 3).state for r in (run, resumed)]
    assert compare(*more).holds


def test_the_manifest_tells_where_and_from_what_the_file_was_written(saved: Path) -> None:
    _, manifest = container.read_manifest(saved)
    assert manifest["environment"]["numpy"] == np.__version__
    assert manifest["fingerprint"] == DATA.fingerprint
    assert json.loads(json.dumps(manifest)) == manifest


def test_the_public_functions_are_the_units_own_names() -> None:
    names = ["save_checkpoint", "train_n_steps", "resume_from_full_checkpoint", "resume_from_weights_only", "init_run"]
    assert all(name in numpy_ref.__all__ and getattr(numpy_ref, name).__doc__ for name in names)


def test_messages_about_a_forged_manifest_are_short_and_hold_nothing_that_a_terminal_obeys(
    saved: Path, folder: Path
) -> None:
    _, manifest = container.read_container(saved)
    escape = "\x1b[31m" * 1000
    forgeries: list[dict[str, Any]] = [
        {"kind": escape},
        {"step": escape},
        {"config": manifest["config"] | {escape: 1}},
        {"config": manifest["config"] | {"optimizer": escape}},
        {"scalars": manifest["scalars"] | {escape: 1}},
        {"scalars": manifest["scalars"] | {"best/loss": "float " + escape}},
    ]
    for changes in forgeries:
        with pytest.raises(CheckpointError) as error:
            numpy_ref.read_checkpoint(rewritten(saved, folder / "forged.safetensors", **changes))
        assert "\x1b" not in str(error.value)
        assert len(str(error.value)) < 3000, changes
