"""The bytes of arrays as a file holds them, a chunk at a time; and a second thread, where so many take long."""

import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from queue import Queue
from threading import Thread

import numpy as np

CHUNK_BYTES = 1 << 20
JOINED_BYTES = 1 << 16  # smaller arrays are written many at a time
LARGE_BYTES = 8 << 20  # from so much data on, a second thread helps
AHEAD = 2  # chunks that may wait for it
QUIET_NAN = {"float64": 0x7FF8 << 48, "float32": 0x7FC0 << 16, "float16": 0x7E00}

Owners = list[tuple[str, int]]  # of consecutive bytes: names, and how many of them


def chunks_of(
    arrays: Mapping[str, np.ndarray], offsets: Mapping[str, tuple[int, int]]
) -> Iterator[tuple[memoryview, Owners]]:
    """The bytes of the arrays in order, about a chunk at a time, and how many of them belong to which."""
    small: list[np.ndarray] = []
    owners: Owners = []
    first = 0
    for name, (begin, end) in offsets.items():
        array, alone = arrays[name], end - begin >= JOINED_BYTES
        if small and (alone or end - first > CHUNK_BYTES or array.dtype != small[0].dtype):
            yield _bytes(np.concatenate(small, axis=None)), owners
            small, owners = [], []
        if alone:
            for part in _parts(array):
                yield part, [(name, len(part))]
        else:
            first = first if small else begin
            small.append(array)
            owners.append((name, end - begin))
    if small:
        yield _bytes(np.concatenate(small, axis=None)), owners


def _parts(array: np.ndarray) -> Iterator[memoryview]:
    """The bytes of an array in C order, whatever its memory layout, a chunk at a time."""
    # `flat` steps through any layout and copies only what is sliced; reshape would copy the whole array.
    flat = array.reshape(-1) if array.flags.c_contiguous else array.flat
    step = CHUNK_BYTES // array.itemsize
    for start in range(0, array.size, step):
        yield _bytes(flat[start : start + step])


def _bytes(part: np.ndarray) -> memoryview:
    """A vector as the file holds it, in its own memory where that is the same."""
    if part.dtype.kind == "f" and (nan := np.isnan(part)).any():
        part = part.copy()
        part.view(f"u{part.itemsize}")[nan] = QUIET_NAN[part.dtype.name]
    elif part.dtype.kind == "b":
        part = part.view(np.uint8) != 0
    return part.astype(part.dtype.newbyteorder("<"), copy=False).view(np.uint8).data


@contextmanager
def checksums(crc32: dict[str, int], size: int) -> Iterator[Callable[[memoryview, Owners], None]]:
    """What continues the CRC-32 of the owners of some bytes; in a second thread, where so many are to come."""
    waiting: Queue[tuple[memoryview, Owners] | None] = Queue(AHEAD)
    errors: list[BaseException] = []

    def run() -> None:
        while (work := waiting.get()) is not None:
            try:
                if not errors:
                    _count(crc32, *work)
            except BaseException as error:
                errors.append(error)

    thread = _begun(run, size)
    if thread is None:
        yield partial(_count, crc32)
        return
    try:
        yield lambda chunk, owners: waiting.put((chunk, owners))
    finally:
        waiting.put(None)
        thread.join()
    if errors:
        raise errors[0]


def side_by_side(work: Callable[[str], None], names: Iterable[str], size: int) -> None:
    """Do the work for every name; in two threads, where so many bytes are to be worked on."""
    waiting = deque([*names, None, None])  # an end for each; `popleft` is safe between threads
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not errors and (name := waiting.popleft()) is not None:
                work(name)
        except BaseException as error:
            errors.append(error)

    thread = _begun(run, size)
    run()
    if thread is not None:
        thread.join()
    if errors:
        raise errors[0]


def _begun(run: Callable[[], None], size: int) -> Thread | None:
    """A second thread that has begun to run, where there are enough bytes for it to be worth its while."""
    if size < LARGE_BYTES:
        return None
    # A daemon: an interrupt may keep its end from it, and it is not to keep the process from its own.
    thread = Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # there are no more threads, or as in a browser none at all
        return None
    return thread


def _count(crc32: dict[str, int], chunk: memoryview, owners: Owners) -> None:
    """Continue the CRC-32 of each owner with its bytes."""
    start = 0
    for name, length in owners:
        crc32[name] = zlib.crc32(chunk[start : start + length], crc32[name])
        start += length
