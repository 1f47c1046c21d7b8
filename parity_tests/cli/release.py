"""`python -m parity_tests.cli.release [--quick]`: build wheel and sdist, and try each as a stranger would.

Both are built from what git knows, and hold the packages with their data and no tests. Each is installed in
fresh environments, away from the sources: the demo must print the committed digest with NumPy alone, and the tests and
doctests run against what is installed. `--quick` runs those of the command line, the container and one parity module
only. `--exhaustive` computes every float32 again, which is otherwise held to its record. `--python` names another
interpreter than the present one, and may be given more than once.

The exit status is 0 when all of it passed, 1 when not; the archives stand in DIR, by default `dist`. `--quick` takes
about ten minutes on two cores, all of it several times as long.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("numpy_ref", "torch_port")
QUICK = ("test_cli.py", "test_container.py", "test_parity_train.py")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


def say(text: str) -> None:
    sys.stdout.write(f"== {text}\n")
    sys.stdout.flush()


def run(*words: object, at: Path, quiet: bool = False) -> None:
    """A command, in a directory that holds nothing of the sources; what it prints is seen, when quiet its errors."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHONPATH", "VIRTUAL_ENV"))}
    subprocess.run(
        [str(word) for word in words],
        cwd=at,
        env=clean | ONE_THREAD,
        check=True,
        stdout=subprocess.DEVNULL if quiet else None,
    )


def environment(place: Path, *requirements: object, base: str = sys.executable) -> Path:
    """The interpreter of a fresh environment with these installed, made by another interpreter."""
    place.mkdir(parents=True)
    run(base, "-m", "venv", place, at=place)
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    run(python, "-m", "pip", "install", "--quiet", "-c", ROOT / "constraints.txt", *requirements, at=place)
    return python


def tracked() -> list[str]:
    """The files of the project, as far as git knows them."""
    words = ["git", "ls-files", "-z"]
    names = subprocess.run(words, cwd=ROOT, check=True, capture_output=True).stdout.split(b"\0")
    return [name for name in map(os.fsdecode, names) if name and (ROOT / name).is_file()]


def copy(name: str, to: Path) -> None:
    (to / name).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(ROOT / name, to / name)


def build(out: Path, scratch: Path) -> tuple[Path, Path]:
    """The wheel and the sdist, built from a copy, so that no leftover of an earlier build gets in."""
    for name in tracked():
        copy(name, scratch / "source")
    python = environment(scratch / "build", "setuptools>=77")
    for kind in ("wheel", "sdist"):
        code = f"from setuptools import build_meta; build_meta.build_{kind}({str(out)!r})"
        run(python, "-c", code, at=scratch / "source", quiet=True)
    (wheel,), (sdist,) = out.glob("*.whl"), out.glob("*.tar.gz")
    return wheel, sdist


def faults_of(wheel: Path, sdist: Path) -> list[str]:
    """What an archive has too much or too little."""
    expected = {name for name in tracked() if name.startswith(tuple(f"{package}/" for package in PACKAGES))}
    found = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    with tarfile.open(sdist) as archive:
        inner = {name.partition("/")[2] for name in archive.getnames()}
    tests = {name for name in inner if name.startswith("parity_tests")}
    faults = [f"the wheel lacks {name}" for name in sorted(expected - found)]
    faults += [f"the wheel should not hold {name}" for name in sorted(found - expected)]
    faults += [f"the sdist lacks {name}" for name in sorted(expected - inner)]
    return faults + [f"the sdist should not hold {name}" for name in sorted(tests)]


def try_out(archive: Path, home: Path, base: str, *, quick: bool, exhaustive: bool) -> None:
    """Demo with NumPy alone, then the tests against what is installed."""
    home.mkdir()
    say(f"{archive.name}, {base}: the demo, with NumPy alone")
    python = environment(home / "core", archive, base=base)
    run(python, "-m", "numpy_ref", "demo", at=home)
    say(f"{archive.name}, {base}: the tests, against what is installed")
    python = environment(home / "test", f"{archive}[test]", base=base)
    for name in tracked():
        if not name.startswith(tuple(f"{package}/" for package in PACKAGES)):
            copy(name, home)
    run(python, "-c", "".join(f"import {p}; assert 'site-packages' in {p}.__file__; " for p in PACKAGES), at=home)
    chosen = [f"parity_tests/{name}" for name in QUICK] if quick else ["parity_tests", "--pyargs", *PACKAGES]
    run(python, "-m", "pytest", "-q", *chosen, at=home)
    if exhaustive:
        say(f"{archive.name}: every float32")
        run(python, "-m", "parity_tests.arithmetic.exhaustive", at=home)


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m parity_tests.cli.release",
        description="Build wheel and sdist, and try each away from the sources.",
    )
    parser.add_argument("--out", type=Path, default=Path("dist"), help="where the archives go; default dist")
    parser.add_argument("--python", action="append", help="an interpreter to try them on; may be given more than once")
    parser.add_argument("--quick", action="store_true", help="a few of the tests")
    parser.add_argument("--exhaustive", action="store_true", help="every float32 again, half an hour an archive")
    given = parser.parse_args(words)
    if missing := [name for name in given.python or () if shutil.which(name) is None]:
        parser.error(f"--python: expected an interpreter, found none at {', '.join(missing)}")
    if given.out.exists() and not given.out.is_dir():
        parser.error(f"--out: expected a directory, found a file at {given.out}")
    given.out.mkdir(parents=True, exist_ok=True)
    if any(given.out.iterdir()):
        parser.error(f"--out: expected an empty directory, found files in {given.out}. Move them away.")
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        scratch = Path(folder)
        try:
            say("build")
            archives = build(given.out.resolve(), scratch)
            if faults := faults_of(*archives):
                sys.stdout.write("\n".join(faults) + "\n")
                return 1
            for number, (base, archive) in enumerate(product(given.python or [sys.executable], archives)):
                try_out(archive, scratch / f"away-{number}", base, quick=given.quick, exhaustive=given.exhaustive)
        except subprocess.CalledProcessError as error:
            sys.stdout.write(f"failed with status {error.returncode}: {' '.join(map(str, error.cmd))}\n")
            return 1
    say(f"{' and '.join(archive.name for archive in archives)} in {given.out}: all of it passed")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
