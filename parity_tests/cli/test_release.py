"""What a release holds, and that a version says when bits move."""

import io
import re
import sys
import tarfile
import tomllib
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from numpy_ref.cli.demo import DIGEST
from parity_tests.cli import release
from parity_tests.commands import ROOT, SOURCES

CHANGES = SOURCES / "CHANGELOG.md"
FILES = ["numpy_ref/__init__.py", "numpy_ref/digits.npz", "numpy_ref/py.typed", "torch_port/__init__.py"]
OURS = ROOT == SOURCES  # the packages are those of the sources, not installed ones


def versions(text: str) -> list[tuple[tuple[int, ...], str]]:
    """The versions of a changelog, newest first, each with its digest."""
    found = re.findall(r"^## ([0-9.]+)\n\ndemo: `([0-9a-f]{64})`$", text, re.MULTILINE)
    return [(tuple(map(int, version.split("."))), digest) for version, digest in found]


def faults_of_versions(text: str, version: str, digest: str) -> list[str]:
    """Where a changelog does not say what the code does, or breaks its own rule."""
    found = versions(text)
    headings = len(re.findall(r"^## (?!Not released)", text, re.MULTILINE))
    faults = [] if headings == len(found) else ["a version without a digest"]
    if found[:1] != [(tuple(map(int, version.split("."))), digest)]:
        faults.append(f"the newest is not {version} with {digest}")
    for (new, after), (old, before) in pairwise(found):
        if new <= old:
            faults.append(f"{new} does not follow {old}")
        breaking = 0 if old[0] else 1
        if after != before and new[: breaking + 1] <= old[: breaking + 1]:
            faults.append(f"bits moved from {old} to {new}")
    return faults


def test_the_newest_version_of_the_changelog_is_this_one_with_its_digest() -> None:
    version = tomllib.loads((SOURCES / "pyproject.toml").read_text())["project"]["version"]
    assert faults_of_versions(CHANGES.read_text(encoding="utf-8"), version, DIGEST) == []


@pytest.mark.parametrize(
    ("version", "digest", "above", "fault"),
    [
        ("0.1.0", "f" * 64, "", "the newest is not 0.1.0"),
        ("0.1.1", DIGEST, "", "the newest is not 0.1.1"),
        ("0.1.0", DIGEST, f"## 0.1.0\n\ndemo: `{DIGEST}`\n\n", "does not follow"),
        ("0.1.1", "f" * 64, f"## 0.1.1\n\ndemo: `{'f' * 64}`\n\n", "bits moved"),
        ("0.2.0", "f" * 64, f"## 0.2.0\n\ndemo: `{'f' * 64}`\n\n", ""),
        ("0.1.1", DIGEST, f"## 0.1.1\n\ndemo: `{DIGEST}`\n\n", ""),
        ("1.1.0", "e" * 64, f"## 1.1.0\n\ndemo: `{'e' * 64}`\n\n## 1.0.0\n\ndemo: `{'f' * 64}`\n\n", "bits moved"),
        ("2.0.0", "e" * 64, f"## 2.0.0\n\ndemo: `{'e' * 64}`\n\n## 1.0.0\n\ndemo: `{'f' * 64}`\n\n", ""),
        ("0.1.0", DIGEST, "## Unreleased\n\n", "without a digest"),
    ],
)
def test_a_version_that_hides_a_change_of_bits_is_found(version: str, digest: str, above: str, fault: str) -> None:
    text = CHANGES.read_text(encoding="utf-8").replace("## 0.1.0", above + "## 0.1.0", 1)
    faults = faults_of_versions(text, version, digest)
    assert [fault in each for each in faults] == ([True] if fault else [])


def archives(folder: Path, wheel: list[str], sdist: list[str]) -> tuple[Path, Path]:
    """A wheel and an sdist with these files in them."""
    paths = folder / "a.whl", folder / "a.tar.gz"
    with zipfile.ZipFile(paths[0], "w") as archive:
        for name in [*wheel, "a.dist-info/METADATA"]:
            archive.writestr(name, b"")
    with tarfile.open(paths[1], "w:gz") as tar:
        for name in sdist:
            tar.addfile(tarfile.TarInfo(f"a-1/{name}"), io.BytesIO())
    return paths


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({}, []),
        ({"wheel": FILES[:1] + FILES[2:]}, ["the wheel lacks numpy_ref/digits.npz"]),
        (
            {"wheel": [*FILES, "parity_tests/cli/test_demo.py"]},
            ["the wheel should not hold parity_tests/cli/test_demo.py"],
        ),
        ({"sdist": FILES[:2] + FILES[3:]}, ["the sdist lacks numpy_ref/py.typed"]),
        ({"sdist": [*FILES, "parity_tests/__init__.py"]}, ["the sdist should not hold parity_tests/__init__.py"]),
    ],
)
def test_an_archive_holds_the_packages_with_their_data_and_no_tests(
    change: dict[str, Any], fault: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(release, "tracked", lambda: [*FILES, "README.md", "parity_tests/cli/test_demo.py"])
    whole = {"wheel": FILES, "sdist": [*FILES, "README.md"]}
    assert release.faults_of(*archives(tmp_path, **whole | change)) == fault


@pytest.mark.skipif(not OURS, reason="the packages are installed: their sources are not here")
def test_what_is_tracked_are_the_packages_and_their_tests() -> None:
    if not (SOURCES / ".git").exists():
        pytest.skip("these are no sources under git")
    assert {*FILES, "parity_tests/cli/test_release.py", "README.md", "CHANGELOG.md"} <= set(release.tracked())


def test_a_release_goes_into_an_empty_directory_only(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit) as end:
        release.main(["--out", str(tmp_path)])
    assert end.value.code == 2
    assert "expected an empty directory" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["old.whl"]


def test_an_interpreter_that_is_not_there_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        release.main(["--out", str(tmp_path / "dist"), "--python", str(tmp_path / "python3")])
    assert end.value.code == 2
    assert f"found none at {tmp_path / 'python3'}" in capsys.readouterr().err
    assert not (tmp_path / "dist").exists()


def test_a_step_that_fails_is_the_verdict(tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]) -> None:
    def build(out: Path, scratch: Path) -> tuple[Path, Path]:
        release.run(sys.executable, "-c", "raise SystemExit(3)", at=scratch)
        raise AssertionError("a failed command went unnoticed")

    monkeypatch.setattr(release, "build", build)
    assert release.main(["--out", str(tmp_path / "dist")]) == 1
    assert "failed with status 3" in capsys.readouterr().out
