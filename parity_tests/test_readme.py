"""What the README shows is what the commands print."""

import json
import os
import pkgutil
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import numpy_ref
import torch_port
from numpy_ref import RunConfig, chunks
from numpy_ref.console import BROKEN, HOLDS
from numpy_ref.tree import flatten
from parity_tests import benchmarks, faults
from parity_tests.commands import PATHS, python
from parity_tests.implementations import EACH
from parity_tests.mutants import FAULTS

SIZES = ("64-128-10, batch 32", "784-256-256-10, batch 128", "784-1024-1024-10, batch 256")
SYNCHRONOUS = "its own synchronous save"
README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    printed = python("-m", "numpy_ref", "demo", cwd=tmp_path, COLUMNS="300").stdout
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    without_seconds = [re.sub(r" \([0-9.]+ s\)$", "", text.rstrip()) for text in (printed, shown[1])]
    assert without_seconds[0] == without_seconds[1]


def snippets() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_the_run_of_the_snippet_goes_on_in_both_packages(tmp_path: Path) -> None:
    run, _ = snippets()
    process = python("-c", run + "\nprint(run.state.step, new.state.step)", cwd=tmp_path)
    assert (process.stdout, process.stderr) == ("100 0\n", "")
    pytest.importorskip("torch", reason="torch is missing: the port cannot be run")
    process = python(
        "-c", run.replace("numpy_ref as nr", "torch_port as nr") + "\nprint(run.step, new.step)", cwd=tmp_path
    )
    assert (process.stdout, process.stderr) == ("100 0\n", "")


def test_the_audit_of_the_loop_shown_names_the_generator_and_with_the_lines_to_add_it_holds(tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="torch is missing: the loop cannot be run")
    _, loop = snippets()
    mended = loop.replace("self.optimizer.state_dict()}", 'self.optimizer.state_dict(), "rng": torch.get_rng_state()}')
    mended += '        torch.set_rng_state(state["rng"])\n'
    found = {}
    for name, text in {"my_training": loop, "mended": mended}.items():
        (tmp_path / f"{name}.py").write_text(text)
        words = ("-m", "torch_port", "audit", f"{name}:Run", "--steps", "8", "--json")
        process = python(*words, cwd=tmp_path, PYTHONPATH=os.pathsep.join([str(tmp_path), PATHS]))
        found[name] = process.returncode, json.loads(process.stdout)
    (lost, report), (held, _) = found.values()
    assert (lost, held) == (BROKEN, HOLDS)
    assert all(stop["lost"] == ["rng/torch"] for stop in report["stops"])
    assert "torch.set_rng_state" in json.dumps(report)


def test_the_readme_counts_and_names_what_is_there() -> None:
    assert f"{len(FAULTS)} subtler mistakes" in README


@pytest.mark.parametrize("package", EACH)
def test_the_rooms_are_those_of_the_docstring(package) -> None:
    home = Path(package.__file__).parent
    rooms = {module.name for module in pkgutil.iter_modules([str(home)])} - {"__main__"}
    listed = re.findall(r"^    (\w[\w, ]*?)  +\w", package.__doc__.partition("The rooms")[2], re.MULTILINE)
    named = [name for line in listed for name in line.split(", ")]
    assert sorted(named) == sorted(rooms)


def test_the_reading_order_has_the_lines_that_the_files_have() -> None:
    section = README.partition("## Reading order")[2].partition("##")[0]
    read = re.findall(r"`(\w+\.py)` \((\d+)(?:, (\d+))?\)", section)
    assert len(read) == 8
    for name, ours, theirs in read:
        counts = [_lines(Path(package.__file__).parent / name) for package in (numpy_ref, torch_port)]
        assert [int(ours), int(theirs or 0)] == counts, name


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


def test_the_table_of_states_names_every_leaf_once() -> None:
    section = README.partition("## What a checkpoint holds")[2].partition("##")[0]
    rows = [row.split("|")[2] for row in section.splitlines() if row.startswith("| ")]
    patterns = [pattern for row in rows[1:] for pattern in re.findall(r"`([^`]+)`", row)]
    adam = RunConfig(optimizer="adam", amsgrad=True, batch_norm=True, precision="float16", evaluate_every=1)
    sgd = RunConfig(optimizer="sgd", momentum=0.9)
    leaves = {path for config in (adam, sgd) for path in flatten(trained(config).state)}
    found = {path: [pattern for pattern in patterns if fnmatchcase(path, pattern)] for path in leaves}
    assert {path: names for path, names in found.items() if len(names) != 1} == {}
    assert {names[0] for names in found.values()} == {*patterns}


def trained(config: RunConfig) -> numpy_ref.Run:
    data = numpy_ref.load_data("digits")
    return numpy_ref.train_n_steps(numpy_ref.init_run(config, data), data, 1)


def test_the_ratios_are_those_on_record() -> None:
    records = [
        json.loads(Path(benchmarks.__file__).with_name(name).read_text())
        for name in ("record.json", "record_2_threads.json")
    ]
    rows = records[0]["rows"]

    def ratio(name: str, side: str) -> str:
        (found,) = (each for row in rows if row["name"] == name for each in row["sides"] if each["name"] == side)
        return f"{found['ratio'][0]:.{2 if found['ratio'][0] < 1.5 else 1}f}"

    def ends(name: str, side: str) -> str:
        found = sorted((ratio(f"{name}, {size}", side) for size in SIZES), key=float)
        return f"{found[0]} to {found[-1]}"

    adam = [ratio(f"Adam step{who}, 16 M parameters in 1", "torch.optim.Adam, foreach") for who in ("", " of the port")]
    own = [ends(f"reproducible training step{who}", "its own native") for who in ("", " of the port")]
    large, small = "1 GB in 48 arrays", "5,000 arrays of 1 KB"
    saves, loads = (
        [ratio(f"{verb} {what}", "torch.save") for what in (large, small)] for verb in ("save", "load and verify")
    )
    others = [ratio(f"load and verify {what}", "safetensors") for what in (large, small)]
    steps, missed = ends("native training step", "stock PyTorch"), [len(record["limits"]) for record in records]
    assert chunks.LARGE_BYTES == 8 << 20
    stall = ratio("stall by the call that begins a save of 1 GB", SYNCHRONOUS)
    lost = ratio("time that a loop loses to a save of 1 GB beside it", SYNCHRONOUS)
    text = (
        f"Adam over 16 M numbers takes {adam[0]} of the time of torch's foreach, the port's {adam[1]}; "
        f"a native step {steps} of eager PyTorch's; "
        f"a reproducible step {own[0]} native ones, the port's {own[1]}. "
        f"A save of 1 GB takes {saves[0]} of `torch.save`, both with fsync, "
        f"of 5,000 arrays {saves[1]}; "
        f"a verified load {loads[0]} and {loads[1]} of `torch.load`, {others[0]} and {others[1]} of safetensors'. "
        f"A save in the background stops training for {stall} of a save, and costs it {lost} in all. "
        "Above 8 MB, saves and loads take a second thread. "
        f"{missed[0]} goals are missed, with two threads {missed[1]}; the records say why."
    )
    assert text in " ".join(README.split())


def test_the_faults_are_those_on_record() -> None:
    *rows, _ = faults.sums(faults.record())
    power, calls, kills, damaged = (injected for _, injected, _ in rows)
    text = (
        f"{power:,} states of a disk after power failed, {calls:,} failing calls and full disks, "
        f"{kills:,} kills and overwrites beside readers, {damaged:,} damaged files. "
        f"Checkpoints lost: {sum(losses for _, _, losses in rows)}."
    )
    assert text in " ".join(README.split())


def test_the_readme_is_no_longer_than_220_lines() -> None:
    assert len(README.splitlines()) <= 220
