"""Coverage-guided fuzzing of the reader.

`python -m parity_tests.checkpoint.fuzz [--seconds N] [--inputs N] [--seed N]`.

hypothesis draws edits; they change valid files, byte by byte or within the header's and the manifest's JSON, and the
checksums are made right again or left. An input that reaches a new branch of the reader joins the files to be changed.
Every input must be refused with a `CheckpointError`, or read as a checkpoint that is valid in itself.
"""

import argparse
import dis
import io
import json
import sys
import tempfile
import types
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st

import numpy_ref
from numpy_ref.checkpoint import container, save_weights
from numpy_ref.checkpoint import save_and_resume as checkpoint
from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.config import RunConfig
from parity_tests.checkpoint.damage import DATA, VALUES, parse, sealed
from parity_tests.checkpoint.forgeries import CORRUPT, dumps

FILES = {module.__file__ for module in (container, checkpoint)}
CONFIGS = (
    RunConfig(hidden=(), batch_size=4, optimizer="sgd"),
    RunConfig(hidden=(2,), batch_size=4, batch_norm=True, amsgrad=True, schedule="step", step_size=2, gamma=0.5),
)

Edit = tuple[str, int, Any]
# hypothesis prefers small numbers: multiplied by an odd one, they are anywhere in the file.
places = st.integers(0, 2**32 - 1).map(lambda n: n * 2654435761 % 2**32)
edits = st.one_of(
    st.tuples(st.just("flip"), places, st.integers(0, 7)),
    st.tuples(st.just("write"), places, st.binary(min_size=1, max_size=8)),
    st.tuples(st.just("insert"), places, st.binary(min_size=1, max_size=8)),
    st.tuples(st.sampled_from(["delete", "copy", "cut"]), places, st.integers(1, 600)),
    st.tuples(st.just("splice"), places, places),
    st.tuples(st.just("set"), places, st.sampled_from(VALUES)),
    st.tuples(st.sampled_from(["drop", "rename"]), places, st.text(max_size=3)),
    st.tuples(st.just("swap"), places, places),
)


class Figures(NamedTuple):
    """What a run of the fuzzer found."""

    inputs: int
    accepted: int  # read as checkpoints that are valid in themselves
    errors: int  # places in the reader that refused
    kept: int  # inputs that reached something new
    branches: int
    lines: tuple[int, int]  # reached, and all, of the reader's functions that were entered
    failures: list[tuple[str, bytes]]


class Reached:
    """The lines and the branches, from line to line, that a call reaches in the reader's files."""

    def __init__(self) -> None:
        self.branches: set[tuple[types.CodeType, int, int]] = set()
        self.codes: set[types.CodeType] = set()

    def _enter(self, frame: types.FrameType, event: str, _: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in FILES:
            return None
        self.codes.add(code)
        last = 0

        def step(frame: types.FrameType, event: str, _: Any) -> Any:
            nonlocal last
            if event == "line":
                self.branches.add((code, last, frame.f_lineno))
                last = frame.f_lineno
            return step

        return step

    def __enter__(self) -> "Reached":
        self.before = sys.gettrace()
        sys.settrace(self._enter)
        return self

    def __exit__(self, *error: Any) -> None:
        sys.settrace(self.before)

    def lines(self) -> tuple[int, int]:
        """How many lines were reached, of how many."""
        everything = {(code, line) for code in self.codes for _, line in dis.findlinestarts(code) if line}
        everything -= {(code, code.co_firstlineno) for code in self.codes}
        return len({(code, line) for code, _, line in self.branches} & everything), len(everything)


def _nodes(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place of a JSON value: the list or dict, and the index or key."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], (dict, list)):
            yield from _nodes(value[key])


def _edit_structure(data: bytes, edit: Edit) -> bytes:
    """A file with one value of its header or manifest changed, and its digest made right."""
    kind, place, what = edit
    length, header = parse(data)
    metadata = header["__metadata__"]
    inner = {key: json.loads(metadata[key]) for key in ("crc32", "manifest")}
    nodes = list(_nodes({"header": header, **inner}))
    parent, key = nodes[place % len(nodes)]
    if kind == "swap":
        other, index = nodes[what % len(nodes)]
        parent[key], other[index] = other[index], parent[key]
    elif kind == "set":
        parent[key] = what
    else:
        kept = parent.pop(key)
        if kind == "rename" and isinstance(parent, dict):
            parent[what] = kept
    dumps(inner), dumps(header)  # a value that was put within itself is an error here
    return sealed(header, data[length:], **{key: dumps(value) for key, value in inner.items()})


def _edit_bytes(data: bytes, edit: Edit, others: list[bytes]) -> bytes:
    kind, place, what = edit
    place %= len(data) + 1
    if kind == "flip":
        return data[:place] + bytes(byte ^ 1 << what for byte in data[place : place + 1]) + data[place + 1 :]
    if kind in ("write", "insert"):
        return data[:place] + what + data[place + (len(what) if kind == "write" else 0) :]
    if kind == "splice":
        return data[:place] + others[what % len(others)][place:]
    if kind == "cut":
        return data[:place]
    return data[:place] + (data[place : place + what] * 2 if kind == "copy" else b"") + data[place + what :]


def change(data: bytes, edit: Edit, others: list[bytes]) -> bytes:
    """One edit of a file; one of its structure does nothing to a file that has none."""
    if edit[0] in ("set", "drop", "rename", "swap"):
        try:
            return _edit_structure(data, edit)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            return data
    return _edit_bytes(data, edit, others)


def mended(data: bytes) -> bytes:
    """A file whose checksums are made those of its content, where it has a structure to find them by."""
    try:
        length, header = parse(data)
        spans = {name: entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"}
        crc32 = {name: f"{zlib.crc32(data[length + begin : length + end]):08x}" for name, (begin, end) in spans.items()}
        return sealed(header, data[length:], crc32=dumps(crc32))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return data


def _is_canonical(path: Path) -> bool:
    """A file is what the writer writes of its content, but for the numbers in its arrays."""
    try:
        arrays, manifest = container.read_container(path)
    except CheckpointError:  # of another reader's file
        return False
    file = io.BytesIO()
    container.write_container(file, arrays, manifest)
    found, wanted = path.read_bytes(), file.getvalue()
    (length, header), (_, again) = parse(found), parse(wanted)
    for metadata in (header["__metadata__"], again["__metadata__"]):
        del metadata["crc32"], metadata["sha256"]  # of a NaN, which is written in one way only
    return len(found) == len(wanted) and header == again and found[8:length].isascii()


def _origin(error: BaseException) -> tuple[str, int]:
    """The function and line of the reader that refused."""
    place, trace = ("", 0), error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename in FILES and trace.tb_frame.f_code.co_name != "_fail":
            place = trace.tb_frame.f_code.co_name, trace.tb_lineno
        trace = trace.tb_next
    return place


def _valid_files(path: Path) -> Iterator[bytes]:
    for config in CONFIGS:
        run = numpy_ref.train_n_steps(numpy_ref.init_run(config, DATA), DATA, 7)
        for save in (numpy_ref.save_checkpoint, save_weights):
            save(path, run._replace(run_id="0" * 32))
            yield path.read_bytes()


def fuzz(
    *,
    inputs: int,
    seconds: float = float("inf"),
    number: int = 0,
    read: Callable[[Path], Any] = numpy_ref.read_checkpoint,
) -> Figures:
    """Try so many inputs, or as many as the time allows; the same ones each time for the same number.

    Args:
        inputs: to try.
        seconds: to stop after.
        number: the seed.
        read: the reader.
    """
    reached, failures, errors = Reached(), [], set()
    tried = accepted = block = 0
    end = perf_counter() + seconds
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fuzz"
        corpus = list(_valid_files(path))
        attacks = [data for data in CORRUPT.values() if len(data) < 10_000]
        given_files = len(corpus)

        def attempt(data: bytes) -> None:
            nonlocal tried, accepted
            tried += 1
            path.write_bytes(data)
            before = len(reached.branches)
            try:
                with reached:
                    read(path)
                accepted += 1
                if not _is_canonical(path):
                    failures.append(("read, though no writer writes it", data))
            except CheckpointError as error:
                errors.add(_origin(error))
                if isinstance(error.__context__, MemoryError):
                    failures.append(("more memory asked for than there is", data))
            except Exception as error:
                failures.append((f"{type(error).__name__}: {error!a:.200}", data))
            if len(reached.branches) > before and tried > given_files + len(attacks):
                corpus.append(data)

        for data in [*corpus, *attacks]:
            attempt(data)
        while tried < inputs and perf_counter() < end:

            @seed(number * 2**32 + block)
            @settings(
                max_examples=min(200, inputs - tried),
                database=None,
                deadline=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            @given(places, st.lists(edits, min_size=1, max_size=3), st.booleans())
            def examples(which: int, changes: list[Edit], mend: bool) -> None:
                data = corpus[which % len(corpus)] if which % 8 else attacks[which // 8 % len(attacks)]
                for edit in changes:
                    data = change(data, edit, corpus)
                attempt(mended(data) if mend else data)

            examples()
            block += 1
    lines, branches = reached.lines(), len(reached.branches)
    return Figures(tried, accepted, len(errors), len(corpus) - given_files, branches, lines, failures)


def main(words: list[str] | None = None) -> int:
    """Print the figures; 0 if nothing failed."""
    parser = argparse.ArgumentParser("python -m parity_tests.checkpoint.fuzz", description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=60, help="how long")
    parser.add_argument("--inputs", type=int, default=10**9, help="how many at most")
    parser.add_argument("--seed", type=int, default=0, help="of the edits")
    parser.add_argument("--keep", type=Path, help="a directory for inputs that fail")
    options = parser.parse_args(words)
    found = fuzz(inputs=options.inputs, seconds=options.seconds, number=options.seed)
    sys.stdout.write(
        f"{found.inputs} inputs, {found.accepted} read, {found.errors} distinct errors, {found.kept} kept as new, "
        f"{found.branches} branches, {found.lines[0]} of {found.lines[1]} lines of the reader, "
        f"{len(found.failures)} failures\n"
    )
    for index, (failure, data) in enumerate(found.failures[:20]):
        sys.stdout.write(f"    {failure}\n")
        if options.keep:
            options.keep.mkdir(parents=True, exist_ok=True)
            (options.keep / f"{index}.safetensors").write_bytes(data)
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
