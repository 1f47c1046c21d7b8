"""What damage does to a checkpoint, by kind, each case tried on the reader: `python -m parity_tests.checkpoint.damage`.

A case is lost unless the reader refuses the file with a `CheckpointError`, or returns the whole content of one save.
Another exception is a loss, as is content that nobody saved, and memory for more than the file holds.
With `--memory MB`, the extra memory of a save of a state of that size instead.
"""

import argparse
import io
import json
import os
import socket
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np

import numpy_ref
from numpy_ref.checkpoint import container
from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.config import RunConfig
from numpy_ref.proof.equivalence import digest
from numpy_ref.train import Run, blank_state
from numpy_ref.tree import map_leaves
from parity_tests.checkpoint.forgeries import CORRUPT, dumps, forge
from parity_tests.strategies import small_data

CONFIG = RunConfig(hidden=(), batch_size=4, optimizer="sgd", momentum=0.9, evaluate_every=2)
DATA = small_data(1, samples=23, inputs=2)
PATTERNS = (0x01, 0x80, 0xFF)
SLACK = 1 << 20  # bytes that a reader may take for itself
FACTOR = 100  # and for a byte of the file: JSON as Python holds it

Reader = Callable[[Path], Any]
Losses = Iterator[str | None]  # for each case what was lost, or None


class Scene(NamedTuple):
    """Two saves of one run, and a place to damage them."""

    path: Path
    first: bytes
    second: bytes
    whole: tuple[str, str]  # digests of their states


def scene(folder: Path) -> Scene:
    """Save a small run twice, a step apart."""
    path, saves, digests = folder / "checkpoint.safetensors", [], []
    run = numpy_ref.train_n_steps(numpy_ref.init_run(CONFIG, DATA), DATA, 7)
    for _ in range(2):
        numpy_ref.save_checkpoint(path, run)
        saves.append(path.read_bytes())
        digests.append(digest(run.state))
        run = numpy_ref.train_n_steps(run, DATA, 1)
    return Scene(path, saves[0], saves[1], (digests[0], digests[1]))


def judge(read: Reader, path: Path, whole: tuple[str, ...] | None) -> str | None:
    """What is lost when this file is read: None if it is refused as it should be, or whole; for None any is whole."""
    try:
        found = read(path)
    except CheckpointError as error:
        return "more memory asked for than there is" if isinstance(error.__context__, MemoryError) else None
    except Exception as error:
        return f"{type(error).__name__}: {error!a:.200}"
    return None if whole is None or digest(found.state) in whole else "content that nobody saved"


def changed_bytes(scene: Scene, read: Reader, patterns: tuple[int, ...] = PATTERNS) -> Losses:
    """Each byte of the file, with each pattern of its bits flipped."""
    scene.path.write_bytes(scene.first)
    with open(scene.path, "r+b", buffering=0) as file:
        for place, byte in enumerate(scene.first):
            for pattern in patterns:
                file.seek(place)
                file.write(bytes([byte ^ pattern]))
                yield judge(read, scene.path, ())
            file.seek(place)
            file.write(bytes([byte]))


def cut_short(scene: Scene, read: Reader) -> Losses:
    """Every length below the whole."""
    scene.path.write_bytes(scene.first)
    for length in reversed(range(len(scene.first))):
        os.truncate(scene.path, length)
        yield judge(read, scene.path, ())


def lengthened(scene: Scene, read: Reader) -> Losses:
    """Something after the end: a few bytes of several kinds, a block, another checkpoint."""
    for tail in [*(byte * n for byte in (b"\0", b" ", b"\xff", b"}") for n in (1, 7, 8, 4096)), scene.second]:
        yield _with(scene, read, scene.first + tail)


def torn_writes(scene: Scene, read: Reader) -> Losses:
    """A block that never arrived, is erased, is that of another save or is in another place; old up to somewhere."""
    first, second = scene.first, scene.second
    for size in (64, 512, 4096):
        for begin in range(0, len(first), size):
            end = min(begin + size, len(first))
            before = first[max(0, begin - size) : begin]
            for block in (bytes(end - begin), b"\xff" * (end - begin), second[begin:end], b"", before):
                yield _with(scene, read, first[:begin] + block + first[end:])
            yield _with(scene, read, first[:begin] + second[begin:])


def exchanged(scene: Scene, read: Reader) -> Losses:
    """The data of two arrays; the checksums of two arrays, sealed again; the header and the data of two saves."""
    length, header = parse(scene.first)
    spans = {name: (*entry["data_offsets"],) for name, entry in header.items() if name != "__metadata__"}
    for a, b in combinations(spans, 2):
        if np.diff(spans[a]) == np.diff(spans[b]):
            data = bytearray(scene.first[length:])
            data[slice(*spans[a])], data[slice(*spans[b])] = data[slice(*spans[b])], data[slice(*spans[a])]
            yield _with(scene, read, scene.first[:length] + data)
        crc32 = json.loads(header["__metadata__"]["crc32"])
        crc32[a], crc32[b] = crc32[b], crc32[a]
        yield _with(scene, read, sealed(header, scene.first[length:], crc32=dumps(crc32)))
    other, _ = parse(scene.second)
    yield _with(scene, read, scene.first[:length] + scene.second[other:])
    yield _with(scene, read, scene.second[:other] + scene.first[length:])


def forged_headers(scene: Scene, read: Reader) -> Losses:
    """Headers that lie, with right checksums: lengths, shapes, offsets, names, types, JSON of every wrong sort."""
    length, header = parse(scene.first)
    data = scene.first[length:]
    forgeries = list(CORRUPT.values())
    for lie in (0, 1, 8, length - 16, length - 9, length - 7, length, len(scene.first), 2**31, 2**32, 2**63, 2**64 - 1):
        forgeries.append(struct.pack("<Q", lie) + scene.first[8:])
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            lies: list[dict[str, Any]] = [
                {"dtype": dtype} for dtype in ("U8", "F64", "BOOL") if dtype != entry["dtype"]
            ]
            lies += [{"shape": shape} for shape in ([], [0], [2**40], [2**62, 4], [-1], [*entry["shape"], 2])]
            lies += [{"data_offsets": list(span)} for span in ((begin, end + 1), (begin + 1, end), (begin, 2**62))]
            lies += [{"shape": [2**40], "data_offsets": [begin, begin + 2**42]}]
            forgeries += [
                sealed(header | {name: entry | lie}, data)
                for lie in lies
                if entry | lie != entry and not (lie == {"shape": []} and entry["shape"] in ([1], []))
            ]
            rest = {other: kept for other, kept in header.items() if other != name}
            forgeries += [
                sealed(rest, data),
                sealed(rest | {name + "\0": entry}, data),
                sealed(rest | {"": entry}, data),
            ]
    for forgery in forgeries:
        tracemalloc.start()
        lost = _with(scene, read, forgery)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        yield lost or (f"{peak} bytes of memory" if peak > FACTOR * len(forgery) + SLACK else None)


def _nested(depth: int) -> Any:
    value: Any = 0
    for _ in range(depth):
        value = [value]
    return value


VALUES: list[Any] = [None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 2**1100, -(2**8000), 0.0, -0.0, 0.5, 1e308]
VALUES += ["", "x", "float ", "float nan", "float -0x1p+9999", "\ud800", "\0", "\x1b[31m", [], {}, [1], [0], [2**40]]
VALUES += [["a"], [None], [1.5], {"a": 1}, {"": {}}, [2**31 - 1] * 3, [3] * 1000, _nested(60)]


def forged_content(scene: Scene, read: Reader) -> Losses:
    """Each value of the manifest made another, or missing, in a file that is sound: refused, or whole as it says."""
    scene.path.write_bytes(scene.first)
    arrays, manifest = container.read_container(scene.path)

    def tried(changed: dict[str, Any]) -> str | None:
        with open(scene.path, "wb") as file:
            container.write_container(file, arrays, changed)
        return judge(read, scene.path, None)

    for name, field in manifest.items():
        yield tried({other: kept for other, kept in manifest.items() if other != name})
        for value in VALUES:
            yield tried(manifest | {name: value})
        if isinstance(field, dict):
            for inner in field:
                yield tried(manifest | {name: {other: kept for other, kept in field.items() if other != inner}})
            for inner in [*field, "another"]:
                for value in VALUES:
                    yield tried(manifest | {name: field | {inner: value}})
    # Weights without a single number that ask for biases of any size, and for the moments of each.
    arrays = {f"model/layer{i}.weight": np.zeros(shape, np.float32) for i, shape in enumerate([(2**30, 0), (0, 2**30)])}
    tracemalloc.start()
    lost = tried(manifest | {"config": manifest["config"] | {"hidden": [2**30]}})
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    yield lost or (f"{peak} bytes of memory" if peak > SLACK else None)


def no_plain_files(scene: Scene, read: Reader) -> Losses:
    """Everything else that a path may lead to."""
    folder = scene.path.parent
    places: dict[str, Callable[[Path], Any]] = {
        "absent": lambda path: None,
        "empty": Path.touch,
        "directory": Path.mkdir,
        "dangling": lambda path: path.symlink_to("nowhere"),
        "loop": lambda path: path.symlink_to(path),
        "to-a-directory": lambda path: path.symlink_to(folder),
    }
    if hasattr(os, "mkfifo"):
        places["pipe"] = os.mkfifo
    for name, make in places.items():
        make(folder / name)
        yield judge(read, folder / name, ())
    for path in (folder / "empty" / "below", folder / ("x" * 300), folder, Path("/")):
        yield judge(read, path, ())
    if os.name == "posix":
        here = socket.socket(socket.AF_UNIX)
        with here, suppress(OSError):  # a path may be too long for one
            here.bind(os.fspath(folder / "socket"))
            yield judge(read, folder / "socket", ())
        for device in ("dev/null", "dev/zero", "dev/full", "dev/random", "dev/tty", "proc/self/mem", "proc/self/fd"):
            yield judge(read, Path("/", device), ())
    closed = folder / "unreadable"
    closed.write_bytes(scene.first)
    closed.chmod(0)
    yield judge(read, closed, scene.whole)  # the superuser reads it


def changed_while_read(scene: Scene, read: Reader) -> Losses:
    """At each read of the file and after the last: it shrinks, grows, is written over, replaced or removed."""
    path, other = scene.path, scene.path.parent / "other"
    size = len(scene.first)
    actions: list[Callable[[], Any]] = [
        *(lambda length=length: os.truncate(path, length) for length in (0, size // 2, size - 1)),
        *(lambda length=length: os.truncate(path, length) for length in (size + 1, 1 << 22)),
        *(lambda place=place: _write_at(path, place, b"\xa5") for place in (0, 9, size // 2, size - 1)),
        lambda: _write_at(path, 0, scene.second),
        lambda: _write_at(path, size // 2, scene.second[size // 2 :]),
        lambda: (other.write_bytes(scene.second), os.replace(other, path)),
        path.unlink,
    ]
    path.write_bytes(scene.first)
    with Meddler.at(-1, lambda: None) as clean:
        read(path)
    for action in actions:
        for moment in range(clean.reads):
            path.unlink(missing_ok=True)
            path.write_bytes(scene.first)
            with Meddler.at(moment, action):
                yield judge(read, path, scene.whole)
        if action in actions[5:]:  # of a file that is cut under a memory map, a reader dies
            path.unlink(missing_ok=True)
            path.write_bytes(scene.first)
            found = read(path)
            action()
            yield None if digest(found.state) == scene.whole[0] else "what was read changed with the file"


class Meddler(io.FileIO):
    """The file that the container reads; an action comes before one of its reads."""

    reads = 0

    @classmethod
    def at(cls, moment: int, action: Callable[[], Any]) -> Any:
        """Take the place of `open` in the container."""

        class Here(cls):  # type: ignore[misc, valid-type]
            def readinto(self, buffer: Any) -> int | None:
                Here.reads += 1
                if Here.reads == moment + 1:
                    action()
                return super().readinto(buffer)

        patch = mock.patch.object(
            container, "open", lambda path, mode: io.BufferedReader(Here(path, mode), 16), create=True
        )
        return _Entered(patch, Here)


class _Entered:
    """A patch that gives the class that it put in place."""

    def __init__(self, patch: Any, value: Any) -> None:
        self.patch, self.value = patch, value

    def __enter__(self) -> Any:
        self.patch.__enter__()
        return self.value

    def __exit__(self, *error: Any) -> None:
        self.patch.__exit__(*error)


def _write_at(path: Path, place: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(place)
        file.write(data)


def _with(scene: Scene, read: Reader, content: bytes) -> str | None:
    """Judge a file of this content, which may happen to be one of the saves."""
    scene.path.write_bytes(content)
    whole = [mark for mark, save in zip(scene.whole, (scene.first, scene.second), strict=True) if save == content]
    return judge(read, scene.path, tuple(whole))


def parse(data: bytes) -> tuple[int, dict[str, Any]]:
    """Where the arrays begin, and the header."""
    length = 8 + int.from_bytes(data[:8], "little")
    return length, json.loads(data[8:length])


def sealed(header: dict[str, Any], data: bytes, **metadata: str) -> bytes:
    """A file of this header, whose digest is made right; and of these arrays, as they are."""
    return forge(header | {"__metadata__": header["__metadata__"] | metadata}, data)


KINDS: dict[str, Callable[[Scene, Reader], Losses]] = {
    "a byte changed": changed_bytes,
    "cut short": cut_short,
    "lengthened": lengthened,
    "a write torn": torn_writes,
    "sections exchanged": exchanged,
    "a header that lies, checksums right": forged_headers,
    "a manifest that lies, checksums right": forged_content,
    "no plain file": no_plain_files,
    "changed while it is read": changed_while_read,
}


def losses(kind: str, read: Reader = numpy_ref.read_checkpoint) -> list[str | None]:
    """Try every case of a kind on a reader."""
    with tempfile.TemporaryDirectory() as folder:
        return list(KINDS[kind](scene(Path(folder)), read))


def campaign() -> dict[str, tuple[int, int]]:
    """For each kind, how many cases were tried and how many were lost."""
    found = {kind: losses(kind) for kind in KINDS}
    return {kind: (len(cases), sum(case is not None for case in cases)) for kind, cases in found.items()}


def extra_memory(folder: Path, megabytes: int) -> tuple[int, int]:
    """The bytes of a state, and those that this process needed beside it at the peak of a save. Call it once."""
    width = round((megabytes * 2**20 / 16) ** 0.5)  # the model, m, v and the best model: four times float32
    config = RunConfig(hidden=(width,))
    content = 0

    def filled(_: str, leaf: Any) -> Any:
        nonlocal content
        if isinstance(leaf, np.ndarray) and leaf.dtype == np.float32:
            content += leaf.nbytes
            return np.ones_like(leaf)  # a page of zeros would take no memory
        return leaf

    state = map_leaves(filled, blank_state(config, width, 10))
    run = Run(config, state, "0" * 32, DATA.fingerprint)
    numpy_ref.save_checkpoint(folder / "small.safetensors", numpy_ref.init_run(CONFIG, DATA))  # what is loaded once
    before = _peak_memory()
    numpy_ref.save_checkpoint(folder / "large.safetensors", run)
    return content, _peak_memory() - before


def _peak_memory() -> int:
    """The most bytes of memory that this process has had."""
    with suppress(OSError):  # on Linux ru_maxrss begins with the peak of the process that started this one
        return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) << 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def limit_memory(extra: int = 1 << 28) -> None:
    """Let this process have little more address space than it has: a file that claims more cannot get it."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + extra, resource.RLIM_INFINITY))


def main(words: list[str] | None = None) -> int:
    """Print the table of all kinds, or the figure of memory; 0 if nothing is lost."""
    parser = argparse.ArgumentParser("python -m parity_tests.checkpoint.damage", description=__doc__.split("\n")[0])
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(map(repr, KINDS))}; all by default")
    parser.add_argument("--memory", type=int, metavar="MB", help="measure a save of a state of this size")
    parser.add_argument("--directory", type=Path, help="where to save it; by default the system's temporary one")
    options = parser.parse_args(words)
    if options.memory:
        with tempfile.TemporaryDirectory(dir=options.directory) as folder:
            content, extra = extra_memory(Path(folder), options.memory)
        sys.stdout.write(
            f"a state of {content / 2**20:.1f} MiB took {extra / 2**20:.1f} MiB more at the peak of a save\n"
        )
        return 0
    if unknown := sorted(set(options.kinds) - KINDS.keys()):
        parser.error(f"KIND: expected {', '.join(map(repr, KINDS))}, found {', '.join(map(repr, unknown))}")
    limit_memory()
    lost = 0
    for kind in options.kinds or KINDS:
        found = losses(kind)
        wrong = [case for case in found if case is not None]
        lost += len(wrong)
        sys.stdout.write(f"{kind:<40} {len(found):>6} cases {len(wrong):>4} losses\n")
        sys.stdout.write("".join(f"    {case}\n" for case in dict.fromkeys(wrong[:5])))
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
