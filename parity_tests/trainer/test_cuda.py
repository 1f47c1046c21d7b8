"""Runs on an accelerator: the reference's bits, wherever tensors live and whatever the default device is.

Each law is one body for three devices: the CPU; a device of the tests' own, `elsewhere`, on which tensors in the wrong
place fail as on an accelerator; and CUDA, where there is one. `pytest -m cuda` runs the last alone, within minutes.
"""

import functools
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import numpy_ref
from numpy_ref import rng as reference_rng
from numpy_ref.config import RunConfig
from numpy_ref.data import Dataset
from numpy_ref.proof import laws
from numpy_ref.proof.boundary import SHORT_RUN, SHORT_STEPS, row_for, row_named
from numpy_ref.proof.equivalence import compare, digest, same_bits
from parity_tests.arithmetic import corpus
from parity_tests.commands import call
from parity_tests.strategies import numbers, small_data

torch = pytest.importorskip("torch", reason="torch is missing: the port cannot run on any device")
import torch_port
from parity_tests.proof import cuda_rows
from parity_tests.trainer.elsewhere import DEVICE, Elsewhere, elsewhere
from torch_port import data as data_module
from torch_port import interop, model, optim, rng
from torch_port import proof as measures
from torch_port.arithmetic import operations as arithmetic
from torch_port.arithmetic import rounding

NO_DEVICE = "no CUDA device: the CUDA rows stay unmeasured"
CUDA = [pytest.mark.cuda, pytest.mark.skipif(not torch.cuda.is_available(), reason=NO_DEVICE)]
DEVICES = ["cpu", "elsewhere", pytest.param("cuda", marks=CUDA)]

BASE = RunConfig(
    hidden=(6, 5),
    dropout=0.3,
    batch_norm=True,
    batch_size=4,
    schedule="step",
    step_size=3,
    amsgrad=True,
    weight_decay=0.01,
    noise=0.1,
    evaluate_every=2,
    seed=5,
)
SMALL = small_data(1, samples=23)  # two epochs are 10 steps
WIDE = small_data(2, samples=40, inputs=65, classes=4)  # beyond the registers
RUNS = {
    "adam": (BASE, SMALL),
    "adamw": (
        RunConfig(
            hidden=(7,),
            optimizer="adamw",
            schedule="warmup_cosine",
            warmup_steps=3,
            total_steps=9,
            batch_size=3,
            accumulation=2,
            dropout=0.5,
            evaluate_every=3,
        ),
        SMALL,
    ),
    "sgd": (
        RunConfig(hidden=(70, 67), optimizer="sgd", nesterov=True, weight_decay=0.1, batch_size=16, noise=0.3, seed=7),
        WIDE,
    ),
    "no hidden layer": (RunConfig(hidden=(), optimizer="sgd", momentum=0.0, schedule="constant"), WIDE),
}
STEPS = 12
CPU = torch.device("cpu")
runs = pytest.mark.parametrize("name", RUNS)


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if request.param != "elsewhere":
        yield torch.device(request.param)
        return
    monkeypatch.setattr(rounding, "PLAIN", (*rounding.PLAIN, Elsewhere))
    with elsewhere() as there:
        yield there


@pytest.fixture
def deterministic(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Algorithms that give the same bits each time."""
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # older versions of torch ask for it
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(before)


@functools.cache
def reference_moments(name: str) -> list[laws.Moment]:
    """The reference's run of that name, at rest and after each step."""
    config, data = RUNS[name]
    return list(laws.follow(numpy_ref, numpy_ref.init_run(config, data), data, STEPS))


def run_on(device: Any, config: RunConfig, data: Dataset) -> Any:
    """A run at step 0 that lives on a device."""
    with device:
        return torch_port.init_run(config, data)


class OnDevice:
    """The port's arithmetic as the corpus asks for it: from arrays to arrays, by way of a device."""

    def __init__(self, device: Any) -> None:
        self.device = device

    def __getattr__(self, name: str) -> Any:
        function = getattr(arithmetic, name)

        def on_device(*arguments: Any, **settings: Any) -> np.ndarray:
            given = [torch.tensor(x, device=self.device) if isinstance(x, np.ndarray) else x for x in arguments]
            return as_array(function(*given, **settings), self.device)

        return on_device


def as_array(tensor: Any, device: Any) -> np.ndarray:
    """What a tensor of this device holds."""
    assert tensor.device.type == device.type
    return corpus.as_array(tensor.cpu())


# Arithmetic and streams.


def test_the_recorded_corpus_is_met_to_the_bit(device: Any) -> None:
    found = corpus.results(OnDevice(device), corpus.inputs())
    assert corpus.case_digests(found) == corpus.record()["cases"]


@pytest.mark.parametrize("kind", ["normal", "cancelling", "wide", "special"])
@pytest.mark.parametrize("terms", [1, 7, 64, 1003])
def test_bfloat16_is_the_references_to_the_bit(device: Any, kind: str, terms: int) -> None:
    rng = np.random.default_rng(terms)
    there, here = OnDevice(device), numpy_ref.arithmetic.operations
    a, b = (here.round_to(numbers(rng, kind, shape), "bfloat16") for shape in ((3, terms), (terms, 2)))
    x, y = (torch.tensor(array, device=device).to(torch.bfloat16) for array in (a, b))
    assert same_bits(there.matmul(x, y), here.matmul(a, b, kind="bfloat16"))
    assert same_bits(there.sum(x, 1), here.sum(a, 1, kind="bfloat16"))
    for name in ("exp", "log"):
        assert same_bits(getattr(there, name)(x), getattr(here, name)(a, kind="bfloat16"))
    assert same_bits(there.sqrt(x), here.round_to(here.sqrt(a), "bfloat16"))  # 24 bits are enough for both roundings


DRAWS = {
    "uniform": lambda impl, generator: impl.draw_uniform(generator, (3, 67)),
    "permutation": lambda impl, generator: impl.draw_permutation(generator, 1003),
    "integers": lambda impl, generator: impl.draw_integers(generator, 64, 2**40),
    "bernoulli": lambda impl, generator: impl.draw_bernoulli(generator, 0.3, 129),
    "words": lambda impl, generator: impl.draw_words(generator, 7),
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS)
def test_draws_are_the_cpus_whatever_the_default_device(device: Any, draw: Any) -> None:
    state = reference_rng.init_stream(3, "order")
    ours = reference_rng.generator_from(state)
    expected = [draw(reference_rng, ours) for _ in range(200)]
    with device:
        theirs = rng.generator_from(state)
        found = [draw(rng, theirs) for _ in range(200)]
        assert theirs.device.type == "cpu"
        assert compare(reference_rng.stream_state(ours), rng.stream_state(theirs)).holds
    assert all(same_bits(x, y.numpy()) for x, y in zip(expected, found, strict=True))


def test_masks_reach_the_device_as_the_cpu_has_drawn_them(device: Any) -> None:
    state = reference_rng.init_stream(3, "dropout")
    expected = numpy_ref.model.draw_masks(reference_rng.generator_from(state), (6, 67), 5, 0.3)
    with torch.device("meta"):
        found = model.draw_masks(rng.generator_from(state), (6, 67), 5, 0.3, device=device)
    assert all(same_bits(x, as_array(y, device)) for x, y in zip(expected, found, strict=True))


def test_noise_is_the_same_on_the_device(device: Any) -> None:
    indices = [5, 0, 2**40, 5]
    expected = reference_rng.draw_noise(2**40 + 7, 3, indices, 67)
    with device:
        assert same_bits(rng.draw_noise(2**40 + 7, 3, indices, 67).numpy(), expected)
    found = rng.draw_noise(2**40 + 7, 3, torch.tensor(indices, device=device), 67)
    assert same_bits(as_array(found, device), expected)


# Whole runs.


def fault_of_run(device: Any, name: str) -> str:
    """How a run on a device differs from the reference's, "" if in no bit, where the default device is another."""
    config, data = RUNS[name]
    try:
        run = run_on(device, config, data)
        with torch.device("meta"):  # what is created without a place lands there, and fails
            found = list(laws.follow(torch_port, run, data, STEPS))
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    verdict = laws.compare_runs(reference_moments(name), found)
    return "" if verdict.holds else str(verdict)


@runs
def test_a_run_on_the_device_is_the_references_in_every_state_and_record(device: Any, name: str) -> None:
    assert fault_of_run(device, name) == ""


def test_all_of_a_run_lives_on_the_device_but_counters_and_generators(device: Any) -> None:
    run = run_on(device, BASE, SMALL)
    run = torch_port.train_n_steps(run, SMALL, 7)
    assert run.device.type == device.type
    assert {tensor.device.type for tensor in run.model.state_dict().values()} == {device.type}
    entries = [entry for state in run.optimizer.state.values() for entry in state.items()]
    places = {name: {tensor.device.type for key, tensor in entries if key == name} for name, _ in entries}
    assert places == {"step": {"cpu"}} | {name: {device.type} for name in ("exp_avg", "exp_avg_sq", "max_exp_avg_sq")}
    assert run.dropout.device.type == "cpu"


def test_evaluation_is_the_references_and_leaves_the_mode(device: Any) -> None:
    expected = numpy_ref.evaluate(numpy_ref.init_run(BASE, SMALL), SMALL)
    run = run_on(device, BASE, SMALL)
    for training in (True, False):
        run.model.train(training)
        with torch.device("meta"):
            assert torch_port.evaluate(run, SMALL) == expected
        assert run.model.training == training


def test_best_weights_and_snapshots_are_arrays_that_training_leaves_alone(device: Any) -> None:
    run = torch_port.train_n_steps(run_on(device, BASE, SMALL), SMALL, 4)
    assert run.best.step > 0
    state, best = torch_port.snapshot(run), run.best.model
    before = digest(state), digest(best)
    torch_port.train_n_steps(run, SMALL, 3)
    assert (digest(state), digest(best)) == before
    assert all(type(array) is np.ndarray for array in best.values())


# From Python 3.12 on, a process with threads, as CUDA's driver starts some, is warned when it forks a worker.
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_a_run_on_the_device_change_nothing(device: Any) -> None:
    with device:
        run = torch_port.init_run(BASE, SMALL)
        run.workers = 2
        found = torch_port.snapshot(torch_port.train_n_steps(run, SMALL, 7))
    assert compare(reference_moments("adam")[7].state, found).holds


FAULTS = {
    "batches left on the CPU": (
        (model.MLP, "forward"),
        lambda self, x, masks=(), real=model.MLP.forward: real(self, x.cpu(), masks),
    ),
    "scalars on the default device": (
        (optim, "_scalars_like"),
        lambda w: lambda value: torch.tensor(value, dtype=w.dtype),
    ),
    "division by a plain number": ((model, "_real"), lambda value, like: value),
    "masks left on the CPU": (
        (model, "draw_masks"),
        lambda *given, device="cpu", real=model.draw_masks: real(*given),
    ),
    "uniform draws on the default device": (
        (rng, "draw_uniform"),
        lambda generator, shape, dtype=torch.float32: torch.rand(shape, generator=generator, dtype=dtype),
    ),
    "orders on the default device": (
        (data_module, "draw_permutation"),
        lambda generator, n: torch.randperm(n, generator=generator, dtype=torch.int64),
    ),
}


@pytest.mark.parametrize("device", ["elsewhere"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_run_with_something_in_the_wrong_place_is_found(
    device: Any, fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, wrong = FAULTS[fault]
    monkeypatch.setattr(*place, wrong)
    assert fault_of_run(device, "adam") != ""


# Native arithmetic, and runs that are handed over.


def test_a_native_run_is_within_its_row_of_the_cpus(device: Any) -> None:
    row = row_named("CUDA, native") if device.type == "cuda" else row_named("NumPy against PyTorch, native")
    digits = numpy_ref.load_data("digits")

    def weights(impl: Any, place: Any) -> dict[str, np.ndarray]:
        with place:
            return impl.snapshot(impl.train_n_steps(impl.init_run(SHORT_RUN, digits), digits, SHORT_STEPS)).model

    for impl in (numpy_ref, torch_port):
        verdict = compare(weights(impl, CPU), weights(torch_port, device), tolerance=row.tolerance)
        assert verdict.holds, verdict


@pytest.mark.usefixtures("deterministic")
@pytest.mark.parametrize("arithmetic", ["reproducible", "native"])
@runs
def test_a_resume_on_one_device_equals_never_stopping(device: Any, name: str, arithmetic: str, tmp_path: Path) -> None:
    config, data = RUNS[name]
    with device:
        verdict = laws.check_resume(
            torch_port, replace(config, arithmetic=arithmetic), data, tmp_path, stops=[3], steps=6
        )
    assert verdict.holds, verdict


@runs
def test_a_run_handed_between_numpy_the_cpu_and_the_device_is_one_that_never_left(
    device: Any, name: str, tmp_path: Path
) -> None:
    config, data = RUNS[name]
    numpy, cpu, there = (numpy_ref, CPU), (torch_port, CPU), (torch_port, device)
    run = numpy_ref.init_run(config, data)
    for (impl, place), (heir, home) in pairwise([numpy, there, cpu, there, numpy]):
        with place:
            impl.save_checkpoint(tmp_path / "run", impl.train_n_steps(run, data, 3))
        with home:
            run = heir.resume_from_full_checkpoint(tmp_path / "run", data)
    assert compare(reference_moments(name)[STEPS].state, run.state).holds


def test_the_file_of_a_run_names_its_device_and_the_row_that_holds(device: Any, tmp_path: Path) -> None:
    run = run_on(device, BASE, SMALL)
    torch_port.save_checkpoint(tmp_path / "run", run)
    saved, now = torch_port.read_checkpoint(tmp_path / "run").environment, torch_port.environment(run.device)
    assert saved == now
    assert now["torch"]["device"] == device.type
    if device.type == "cuda":
        assert row_for(saved, now, arithmetic="reproducible").name == "CUDA"
        assert row_for(saved, now, arithmetic="native").name == "CUDA resume"
        assert row_for(numpy_ref.environment(), now, arithmetic="native").name == "CUDA, native"


def test_generators_stay_on_the_cpu_wherever_a_checkpoint_is_loaded(device: Any, tmp_path: Path) -> None:
    with device:
        run = torch_port.train_n_steps(torch_port.init_run(BASE, SMALL), SMALL, 3)
        torch_port.save_checkpoint(tmp_path / "run", run)
        resumed = torch_port.resume_from_full_checkpoint(tmp_path / "run", SMALL)
    assert resumed.device.type == device.type
    assert resumed.dropout.device.type == "cpu"
    assert torch.equal(torch.rand(5, generator=run.dropout), torch.rand(5, generator=resumed.dropout))


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=CUDA)], indirect=True)
def test_a_generator_beside_a_stock_model_on_the_device_comes_back_as_it_was(device: Any, tmp_path: Path) -> None:
    generator = torch.Generator(device="cpu")
    with device:
        layer = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(layer.parameters())
        general = interop.snapshot_general(layer, optimizer, epoch=0, loss=0.0, generator=generator.get_state())
        interop.save_general(tmp_path / "run.tar", general)
        loaded = interop.load_general(tmp_path / "run.tar")
        expected = torch.rand(5, generator=generator, device="cpu")
        generator.set_state(loaded["generator"])
    assert torch.equal(expected, torch.rand(5, generator=generator))
    assert all(tensor.device.type == "cpu" for tensor in loaded["model_state_dict"].values())
    if device.type == "cuda":  # what a map_location does to the state, so that no loader here has one of a device
        moved = torch.load(tmp_path / "run.tar", map_location=device, weights_only=True)
        with pytest.raises(TypeError, match="ByteTensor"):
            generator.set_state(moved["generator"])


def test_the_command_line_trains_on_the_device(device: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--steps", 5, "--every", 5, "--hidden", "7", "--batch-size", 64, "--json"]
    here = call(capsys, "train", "--dir", tmp_path / "here", *words)
    there = call(capsys, "train", "--dir", tmp_path / "there", "--device", str(device), *words, impl=torch_port)
    assert (here.status, there.status) == (0, 0), there
    states = [
        numpy_ref.read_checkpoint(next((tmp_path / name).glob("*.safetensors"))).state for name in ("here", "there")
    ]
    assert compare(*states).holds


# The table's rows.


def test_without_a_device_no_row_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cuda_rows.main() == 2
    assert capsys.readouterr() == ("", "no CUDA device: nothing was measured\n")


def test_the_rows_of_cuda_are_asked_for_and_their_verdict_is_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "a device")
    monkeypatch.setattr(cuda_rows, "command", lambda impl, words: asked.extend(words) or 1)
    assert cuda_rows.main() == 1
    assert asked == ["boundary", "--check", "--row", "CUDA", "--row", "CUDA, native", "--row", "CUDA resume"]


def test_every_row_of_cuda_is_measured_and_holds(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures.machines, "_on_cuda", lambda: device)  # so that the measuring itself runs everywhere
    found = list(torch_port.check_boundary(cuda_rows.NAMES))
    assert [result.row for result in found] == cuda_rows.NAMES
    assert all(result.holds for result in found), found


# The device of the tests' own.


def test_tensors_of_two_devices_do_not_meet_elsewhere() -> None:
    with elsewhere() as device:
        x = torch.arange(3.0, device=device)
        for other in (torch.ones(3), torch.tensor(2.0)):
            with pytest.raises(RuntimeError, match="expected all tensors on one device"):
                x * other
        with pytest.raises(RuntimeError, match="expected a generator"):
            x.uniform_(generator=torch.Generator())
        with pytest.raises(RuntimeError, match="expected a generator"):
            torch.rand(3, generator=torch.Generator(), device=device)
        with pytest.raises((RuntimeError, TypeError)):
            x.numpy()
        assert (x * torch.tensor(2.0, device=device)).cpu().tolist() == [0, 2, 4]
        assert (x + 1).device == device == x.device == torch.zeros_like(x).device == x[1:].device


def test_elsewhere_divides_by_a_plain_number_through_its_reciprocal() -> None:
    with elsewhere() as device:
        x = torch.full((1,), 5.0, dtype=torch.float64, device=device)
        three = torch.tensor(3.0, dtype=torch.float64, device=device)
        assert (x / 3).tolist() == [5 * (1 / 3)] != [5 / 3] == (x / three).tolist()


def test_views_and_writes_in_place_reach_what_they_view_elsewhere() -> None:
    with elsewhere() as device:
        x = torch.zeros(4, device=device)
        x[1:3] += 1
        x[torch.tensor([0])] = 5  # as on CUDA, indices may be the CPU's
        assert x.tolist() == [5, 1, 1, 0]
        x.copy_(torch.ones(4))
        assert x.tolist() == [1, 1, 1, 1]
    with pytest.raises(NotImplementedError):
        torch.zeros(1, device=DEVICE)  # outside it is no device
