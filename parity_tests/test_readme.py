"""What the README shows is what the commands print."""

import re
from pathlib import Path

import numpy_ref
from parity_tests.commands import python
from parity_tests.mutants import FAULTS

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_demo_prints_what_the_readme_shows(tmp_path: Path) -> None:
    printed = python("-m", "numpy_ref", "demo", cwd=tmp_path, COLUMNS="120").stdout
    shown = re.search(r"```text\n(.*?)```", README, re.DOTALL)
    assert shown is not None
    without_seconds = [re.sub(r" \([0-9.]+ s\)$", "", text.rstrip()) for text in (printed, shown[1])]
    assert without_seconds[0] == without_seconds[1]


def test_the_snippet_runs(tmp_path: Path) -> None:
    snippet = re.search(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippet is not None
    process = python("-c", snippet[1] + "\nprint(run.state.step, new.state.step)", cwd=tmp_path)
    assert process.stdout == "100 0\n"


def test_the_readme_counts_and_names_what_is_there() -> None:
    assert f"{len(FAULTS)} subtler mistakes" in README
    modules = {path.stem for path in Path(numpy_ref.__file__).parent.glob("*.py")} - {"__init__", "__main__"}
    assert modules <= set(re.findall(r"`(\w+)\.py`", README))
