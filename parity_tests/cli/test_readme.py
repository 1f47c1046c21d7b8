"""What the README shows is what the commands print."""

import json
import os
import re
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

import numpy_ref
from numpy_ref import RunConfig
from numpy_ref.console import BROKEN, HOLDS
from numpy_ref.tree import flatten
from parity_tests import benchmarks
from parity_tests.commands import PATHS, python

README = (Path(__file__).parents[2] / "README.md").read_text()


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


@pytest.mark.campaign
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


def test_the_table_of_ratios_is_the_records() -> None:
    record = json.loads(Path(benchmarks.__file__).with_name("record.json").read_text())
    recorded = {(row["name"], side["name"]): side["ratio"] for row in record["rows"] for side in row["sides"]}
    section = README.partition("## Speed")[2].partition("##")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:4]] for line in section.splitlines() if line.startswith("| ")]
    assert len(rows) > 10
    for name, side, ratio in rows[1:]:
        assert ratio == f"{recorded[name, side][0]:.2f}", (name, side)
