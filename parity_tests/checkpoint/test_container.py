"""The file format: what is written comes back, any reader of safetensors opens it, and no damage goes unnoticed."""

import errno
import gzip
import io
import json
import math
import os
import struct
import threading
import time
import tracemalloc
import zipfile
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import safetensors
import safetensors.numpy
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from numpy_ref.checkpoint import chunks, container
from numpy_ref.checkpoint.container import (
    CheckpointError,
    CorruptCheckpoint,
    IncompatibleCheckpoint,
    IncompleteCheckpoint,
    check_storable,
    read_container,
    read_manifest,
    write_container,
)
from numpy_ref.checkpoint.durable import replace_file
from parity_tests.checkpoint.forgeries import CORRUPT, EIGHT, dumps, entry, forge, header, metadata

DTYPES = ["float64", "float32", "float16", "bool"] + [f"{sign}int{n}" for sign in ("", "u") for n in (64, 32, 16, 8)]
QUIET = {"float64": 0x7FF8000000000000, "float32": 0x7FC00000, "float16": 0x7E00}
ODD_NAMES = [
    "file",
    "allow_pickle",
    "self",
    "args",
    "arr_0",
    "w",
    "w.npy",
    "W",
    "/a",
    "a//b",
    "../x",
    "a\\b",
    " ",
    ".",
    "ü☃",
]
ODD_NAMES += ["e\u0301", "é", "\U0001f600", '"', "\x01\n", "x" * 1024, "dtype", "format", "a.b/c d"]


def encode(arrays, manifest=None):
    file = io.BytesIO()
    write_container(file, arrays, {} if manifest is None else manifest)
    return file.getvalue()


def decode(tmp_path, data, reader=read_container):
    path = tmp_path / "a.safetensors"
    path.write_bytes(data)
    return reader(path)


def expected_array(array):
    """What must come back: the same, in C order, with the canonical NaN; by other means than the module's."""
    fresh = np.empty(array.shape, array.dtype)
    fresh[...] = array
    if array.dtype.kind == "f":
        quiet = np.array(QUIET[array.dtype.name], f"u{array.itemsize}").view(array.dtype)
        np.copyto(fresh, quiet, where=fresh != fresh)
    return fresh


def assert_same_bits(found, wanted):
    assert sorted(found) == sorted(wanted)
    for name, array in wanted.items():
        got, want = found[name], expected_array(array)
        assert type(got) is np.ndarray
        assert (got.shape, got.dtype, got.tobytes()) == (want.shape, want.dtype, want.tobytes()), name
        assert got.flags.c_contiguous
        assert got.flags.writeable
        assert got.flags.owndata
        assert got.dtype.isnative


# Arrays of any bits (NaN payloads, -0.0, subnormals) and in any layout.


@st.composite
def layouts(draw, array):
    kind = draw(st.sampled_from(["plain", "fortran", "strided", "reversed", "transposed", "broadcast", "read-only"]))
    if kind == "fortran":
        return np.asfortranarray(array) if array.ndim else array
    if kind == "strided":
        wide = np.zeros((*array.shape, 2), array.dtype)
        wide[..., 0] = array
        return wide[..., 0]
    if kind == "reversed":
        return array[(slice(None, None, -1),) * array.ndim] if array.ndim else array
    if kind == "transposed":
        return array.T
    if kind == "broadcast":
        return np.broadcast_to(array, (2, *array.shape))
    if kind == "read-only":
        array.flags.writeable = False
    return array


@st.composite
def arrays_of_any_bits(draw):
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    size = int(np.prod(shape)) * dtype.itemsize
    bits = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8).copy()
    array = ((bits & 1) if dtype.kind == "b" else bits).view(dtype).reshape(shape)
    if dtype.kind == "f" and array.size and draw(st.booleans()):
        # Drawn bits are seldom NaN: set payloads, signalling and negative ones among them.
        exponent = QUIET[dtype.name] & ~(1 << {8: 51, 4: 22, 2: 9}[dtype.itemsize])
        payload = draw(st.sampled_from([1, 2, 0x155]))
        array.reshape(-1).view(f"u{dtype.itemsize}")[:: draw(st.sampled_from([1, 2]))] = exponent | payload
        np.negative(array, out=array, where=draw(st.booleans()))
    return draw(layouts(array))


names = st.sampled_from(ODD_NAMES) | st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20
)
named_arrays = st.dictionaries(names.filter(lambda name: name != "__metadata__"), arrays_of_any_bits(), max_size=5)
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**127, 2**128)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)
manifests = st.dictionaries(st.text(), values, max_size=4)

SMALL = {
    "w": np.array([[1.0, -0.0, np.nan], [np.inf, 2.5, -3.0]], np.float32),
    "t": np.array(7, np.int64),
    "none": np.zeros((0, 4), np.float16),
    "mask": np.array([True, False, True]),
}
SMALL_MANIFEST = {"kind": "full", "step": 7, "rate": 0.1}


@given(arrays=named_arrays, manifest=manifests)
@example(arrays={name: np.full(index % 3, index) for index, name in enumerate(ODD_NAMES)}, manifest={})
@example(arrays={"a": np.zeros(()), "b": np.zeros((0, 4)), "c": np.zeros((4, 0), order="F")}, manifest={"": []})
@example(arrays={"w": np.array([[1, 2], [3, 4]], np.uint8).view(bool)}, manifest={"x": "\ud800", "y": -0.0})
def test_what_is_written_comes_back_bit_for_bit_and_safetensors_reads_the_same(tmp_path_factory, arrays, manifest):
    path = tmp_path_factory.getbasetemp() / "round-trip.safetensors"
    before = {name: array.tobytes() for name, array in arrays.items()}
    path.write_bytes(encode(arrays, manifest))
    assert {name: array.tobytes() for name, array in arrays.items()} == before
    if any(array.dtype == bool for array in arrays.values()):
        arrays = {name: array.view(np.uint8) != 0 if array.dtype == bool else array for name, array in arrays.items()}
    found, found_manifest = read_container(path)
    assert_same_bits(found, arrays)
    # Text tells 1 from 1.0 and from True, and -0.0 from 0.0.
    assert json.dumps(found_manifest, sort_keys=True) == json.dumps(manifest, sort_keys=True)
    assert read_manifest(path) == ({name: (a.dtype.name, a.shape) for name, a in arrays.items()}, found_manifest)
    for name, array in safetensors.numpy.load_file(path).items():
        assert (array.dtype, array.shape, array.tobytes()) == (
            found[name].dtype,
            found[name].shape,
            found[name].tobytes(),
        )
    with safetensors.safe_open(path, "numpy") as file:
        assert sorted(file.keys()) == sorted(arrays)
        assert file.metadata()["format"] == "bitwise-resume"


@given(arrays=named_arrays, manifest=manifests)
def test_the_bytes_depend_on_the_content_alone(arrays, manifest):
    backwards = {name: np.array(array, order="F") for name, array in reversed(arrays.items())}
    assert encode(backwards, dict(reversed(manifest.items()))) == encode(arrays, manifest)


@given(arrays=named_arrays)
def test_arrays_lie_aligned_without_holes_and_take_no_more_than_their_content(arrays):
    data = encode(arrays)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    del header["__metadata__"]
    end = 0
    assert (8 + length) % 8 == 0
    for name, found in sorted(
        header.items(), key=lambda item: (item[1]["data_offsets"], -arrays[item[0]].itemsize, item[0])
    ):
        begin, stop = found["data_offsets"]
        assert begin == end
        assert begin % arrays[name].itemsize == 0
        assert stop - begin == arrays[name].nbytes
        end = stop
    assert len(data) == 8 + length + end


@pytest.mark.parametrize("dtype", sorted(QUIET))
def test_every_nan_is_written_as_the_positive_quiet_one(tmp_path, dtype):
    word = np.dtype(f"u{np.dtype(dtype).itemsize}")
    bits = QUIET[dtype] & ~(QUIET[dtype] & -QUIET[dtype])  # the exponent alone: infinity
    sign = 1 << (8 * word.itemsize - 1)
    nans = np.array([bits | 1, QUIET[dtype] | 5, sign | bits | 1, sign | QUIET[dtype], QUIET[dtype]], word).view(dtype)
    kept = np.array([bits, sign | bits, sign, 0, 1, sign | 1], word)
    found, _ = decode(tmp_path, encode({"nan": nans, "kept": kept.view(dtype)}))
    assert found["nan"].view(word).tolist() == [QUIET[dtype]] * 5
    assert found["kept"].view(word).tolist() == kept.tolist()


@pytest.mark.parametrize("extra", [-1, 0, 1])
@pytest.mark.parametrize("order", ["C", "F", "reversed"])
def test_arrays_that_straddle_a_chunk_come_back(tmp_path, order, extra):
    array = np.arange(2 * (container.CHUNK_BYTES // 4 + extra), dtype=np.float32).reshape(2, -1)
    array[1, -1] = -np.nan
    array = array[::-1, ::-1] if order == "reversed" else np.array(array, order=order)
    assert_same_bits(decode(tmp_path, encode({"a": array}))[0], {"a": array})


def plainly(arrays, monkeypatch):
    """The file as it is written with every array by itself and in one thread."""
    with monkeypatch.context() as patch:
        patch.setattr(chunks, "JOINED_BYTES", 0)
        patch.setattr(chunks, "LARGE_BYTES", math.inf)
        return encode(arrays)


@pytest.mark.parametrize("seed", range(4))
def test_arrays_that_are_joined_and_a_second_thread_change_no_byte(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 4096)
    monkeypatch.setattr(chunks, "JOINED_BYTES", 512)
    rng = np.random.default_rng(seed)
    arrays = {}
    for i in range(300):
        size = int(rng.choice([0, 1, 7, 64, 127, 128, 129, 1003, 5000]))
        dtype = rng.choice(["float32", "float16", "int32", "bool"])
        array = rng.integers(0, 3, size).astype(dtype)
        if dtype.startswith("float") and size > 1 and i % 2:
            array[1] = -np.nan
        arrays[f"a{rng.integers(10**6)}"] = np.stack([array, array], axis=1)[:, 0] if i % 5 == 0 else array
    arrays["scalar"] = np.array(1.5, np.float32)
    plain = plainly(arrays, monkeypatch)
    found, _ = decode(tmp_path, plain)
    assert_same_bits({name: np.where(a == a, a, np.abs(a)) for name, a in arrays.items()}, found)
    assert encode(arrays) == plain
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    assert encode(arrays) == plain

    def no_more(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(chunks.Thread, "start", no_more)
    assert encode(arrays) == plain


def test_an_error_of_the_second_thread_is_raised_and_the_thread_ends(monkeypatch):
    def exhausted(*arguments):
        raise MemoryError

    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    monkeypatch.setattr(chunks, "zlib", SimpleNamespace(crc32=exhausted))
    before = threading.active_count()
    with pytest.raises(MemoryError):
        encode({f"{i}": np.zeros(chunks.JOINED_BYTES) for i in range(20)})
    assert threading.active_count() == before


def test_an_error_of_the_disk_ends_the_second_thread(monkeypatch):
    class Full(io.BytesIO):
        def write(self, data):
            if self.tell() > 1 << 20:
                raise OSError(errno.ENOSPC, "full")
            return super().write(data)

    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    before = threading.active_count()
    with pytest.raises(OSError, match="full"):
        write_container(Full(), {"a": np.zeros(1 << 20)}, {})
    assert threading.active_count() == before


def slowly(monkeypatch):
    """From here on the container's file pauses between a seek and the read after it; gives the threads that seek."""
    seekers = set()

    class Slow(io.BufferedReader):
        def seek(self, *where):
            seekers.add(threading.get_ident())
            place = super().seek(*where)
            time.sleep(1e-3)
            return place

    monkeypatch.setattr(container, "open", lambda path, mode: Slow(io.FileIO(path, mode)), raising=False)
    return seekers


@pytest.mark.parametrize("verify", [container.read_container, container.verify_container])
def test_two_threads_read_what_one_does_in_the_same_order_and_name_the_same_damage(tmp_path, monkeypatch, verify):
    arrays = {f"a{i}": np.full(7 * i, i, f"u{1 << i % 4}") for i in range(40)}
    path = tmp_path / "file"
    path.write_bytes(encode(arrays, {"step": 3}))
    damaged = bytearray(path.read_bytes())
    damaged[-1] ^= 1
    damaged[-1500] ^= 1
    (tmp_path / "damaged").write_bytes(damaged)

    def told():
        with pytest.raises(CorruptCheckpoint) as error:
            verify(tmp_path / "damaged")
        return str(error.value)

    plain, error = verify(path), told()
    assert error.count("CRC-32") == 2
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    monkeypatch.setattr(container, "CHUNK_BYTES", 64)
    seekers, before = slowly(monkeypatch), threading.active_count()
    found = verify(path)
    assert len(seekers) == 2
    assert told() == error
    assert threading.active_count() == before
    if verify is container.verify_container:
        assert found == plain == {"step": 3}
    else:
        assert found[1] == plain[1]
        assert list(found[0]) == list(plain[0])
        assert_same_bits(found[0], plain[0])


@pytest.mark.parametrize("place", [0, 1])
def test_an_error_of_either_reading_thread_is_raised_and_ends_both(tmp_path, monkeypatch, place):
    path = tmp_path / "file"
    path.write_bytes(encode({f"{i}": np.zeros(9) for i in range(200)}))
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    slowly(monkeypatch)
    before, sums = threading.active_count(), []

    def crc32(*arguments):
        sums.append(threading.get_ident())
        if (sums[-1] == threading.main_thread().ident) == (place == 0):
            raise MemoryError
        return zlib.crc32(*arguments)

    monkeypatch.setattr(container, "zlib", SimpleNamespace(crc32=crc32))
    with pytest.raises(CheckpointError, match="too little memory"):
        container.read_container(path)
    assert len(sums) < 100
    assert threading.active_count() == before


def test_where_no_thread_can_be_had_one_reads_it_all(tmp_path, monkeypatch):
    def no_more(thread):
        raise RuntimeError("can't start new thread")

    path = tmp_path / "file"
    path.write_bytes(encode(SMALL))
    monkeypatch.setattr(chunks, "LARGE_BYTES", 0)
    monkeypatch.setattr(chunks.Thread, "start", no_more)
    assert_same_bits(container.read_container(path)[0], SMALL)


def test_an_unaligned_array_comes_back(tmp_path):
    array = np.frombuffer(b"x" + np.array([1.5, np.nan, -0.0]).tobytes(), np.uint8)[1:].view(np.float64)
    assert not array.flags.aligned
    assert_same_bits(decode(tmp_path, encode({"a": array}))[0], {"a": array})


def test_memory_maps_are_stored_and_arrays_that_come_back_are_not_maps(tmp_path):
    mapped = np.memmap(tmp_path / "raw", np.int16, "w+", shape=(3,))
    mapped[:] = [1, 2, 3]
    assert_same_bits(decode(tmp_path, encode({"a": mapped}))[0], {"a": np.array([1, 2, 3], np.int16)})


def test_what_came_back_is_unchanged_when_the_file_is_overwritten(tmp_path):
    found, _ = decode(tmp_path, encode(SMALL))
    path = tmp_path / "a.safetensors"
    with open(path, "r+b") as file:
        file.write(b"\xff" * path.stat().st_size)
    assert_same_bits(found, SMALL)


def test_a_durable_replacement_takes_a_container(tmp_path):
    path = tmp_path / "a.safetensors"
    with replace_file(path) as file:
        write_container(file, SMALL, SMALL_MANIFEST)
    assert path.read_bytes() == encode(SMALL, SMALL_MANIFEST)
    assert read_container(path)[1] == SMALL_MANIFEST


@pytest.mark.parametrize("order", ["C", "F"])
def test_writing_takes_memory_for_a_few_chunks_whatever_the_size(tmp_path, order):
    array = np.ones((4096, 4096), np.float32, order=order)  # 64 MiB
    array[0, 0] = np.nan
    with open(tmp_path / "a", "wb") as file:
        tracemalloc.start()
        try:
            write_container(file, {"a": array}, {})
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 5 << 20


def test_reading_the_manifest_alone_takes_no_memory_for_the_arrays(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(encode({"a": np.zeros(8 << 20, np.uint8)}, {"step": 1}))
    tracemalloc.start()
    try:
        assert read_manifest(path) == ({"a": ("uint8", (8 << 20,))}, {"step": 1})
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


# What an older version wrote must be read for ever: these bytes may change only together with VERSION. To print them:
#   python -c "import parity_tests.checkpoint.test_container as t; print(t.encode(t.GOLDEN, {'step': 3}).hex())"
GOLDEN = {"b": np.array([1, -2], np.int16), "a": np.array(1.5, np.float32)}
GOLDEN_HEX = """
40010000000000007b225f5f6d657461646174615f5f223a7b226372633332223a227b5c22615c22
3a5c2235636438323536665c222c5c22625c223a5c2233656335396263375c227d222c22666f726d
6174223a22626974776973652d726573756d65222c226d616e6966657374223a227b5c2273746570
5c223a337d222c22736861323536223a226464633238316333346636393633393731343162393961
63303031373037386535393664653739366366343166356436363237306262363334666136356432
33222c2276657273696f6e223a2231227d2c2261223a7b22646174615f6f666673657473223a5b30
2c345d2c226474797065223a22463332222c227368617065223a5b5d7d2c2262223a7b2264617461
5f6f666673657473223a5b342c385d2c226474797065223a22493136222c227368617065223a5b32
5d7d7d20202020200000c03f0100feff
"""


def test_the_bytes_of_a_tiny_file_never_change(tmp_path):
    golden = bytes.fromhex(GOLDEN_HEX)
    assert encode(GOLDEN, {"step": 3}) == golden
    found, manifest = decode(tmp_path, golden)
    assert_same_bits(found, GOLDEN)
    assert manifest == {"step": 3}


# Damage. The small file is read from a path that is rewritten in place, for speed.


def reasons(path, reader=read_container):
    """The kind of error and its message, checked for its four parts."""
    with pytest.raises(CheckpointError) as caught:
        reader(path)
    message = str(caught.value)
    assert message.startswith(f"{path}: ")
    assert "expected " in message
    assert ", found " in message
    assert "\n    " in message
    return caught.type, message


def test_every_flipped_bit_is_detected(tmp_path):
    data = encode(SMALL, SMALL_MANIFEST)
    path = tmp_path / "a"
    path.write_bytes(data)
    header = 8 + int.from_bytes(data[:8], "little")
    with open(path, "r+b", buffering=0) as file:
        for bit in range(8 * len(data)):
            place = bit // 8
            file.seek(place)
            file.write(bytes([data[place] ^ 1 << bit % 8]))
            with pytest.raises(CorruptCheckpoint):
                read_container(path)
            if place < header:
                with pytest.raises(CorruptCheckpoint):
                    read_manifest(path)
            file.seek(place)
            file.write(data[place : place + 1])
    assert read_container(path)[1] == SMALL_MANIFEST


@pytest.mark.parametrize("reader", [read_container, read_manifest])
def test_every_truncation_is_detected(tmp_path, reader):
    data = encode(SMALL, SMALL_MANIFEST)
    path = tmp_path / "a"
    path.write_bytes(data)
    for length in reversed(range(len(data))):
        os.truncate(path, length)
        kind, _ = reasons(path, reader)
        assert kind is CorruptCheckpoint


@pytest.mark.parametrize("reader", [read_container, read_manifest])
@pytest.mark.parametrize("tail", [b"\0", b" ", b"x" * 8, b"\0" * 4096])
def test_trailing_bytes_are_detected(tmp_path, reader, tail):
    path = tmp_path / "a"
    path.write_bytes(encode(SMALL) + tail)
    assert reasons(path, reader)[0] is CorruptCheckpoint


@pytest.mark.parametrize("reader", [read_container, read_manifest])
def test_a_file_whose_header_was_never_written_is_detected(tmp_path, reader):
    data = encode(SMALL)
    length = 8 + int.from_bytes(data[:8], "little")
    (tmp_path / "a").write_bytes(bytes(length) + data[length:])
    assert reasons(tmp_path / "a", reader)[0] is CorruptCheckpoint


def test_all_damaged_arrays_are_named(tmp_path):
    data = encode({"one": np.full(8, 1.0), "two": np.full(8, 2.0), "three": np.full(8, 3.0)})
    damaged = data[:-1] + b"x"  # the last in order is "two"
    damaged = damaged[: -3 * 64] + b"x" + damaged[-3 * 64 + 1 :]  # and the first is "one"
    (tmp_path / "a").write_bytes(damaged)
    kind, message = reasons(tmp_path / "a")
    assert kind is CorruptCheckpoint
    assert "'one'" in message
    assert "'two'" in message
    assert "'three'" not in message


@pytest.mark.parametrize("reader", [read_container, read_manifest])
def test_a_file_that_cannot_be_read_is_one_kind_of_error(tmp_path, reader, monkeypatch):
    kind, message = reasons(tmp_path / "missing", reader)
    assert kind is CheckpointError
    assert "no such file" in message
    assert reasons(tmp_path, reader)[0] is CheckpointError
    (tmp_path / "file").write_bytes(b"")
    assert reasons(tmp_path / "file", reader)[0] is CorruptCheckpoint
    assert reasons(tmp_path / "file" / "below", reader)[0] is CheckpointError
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")  # must not wait for a writer
        assert reasons(tmp_path / "pipe", reader)[0] is CheckpointError

    def refused(*arguments, **settings):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(container, "open", refused, raising=False)
    kind, message = reasons(tmp_path / "file", reader)
    assert kind is CheckpointError
    assert "Permission denied" in message


def test_a_file_that_shrinks_while_it_is_read_is_detected(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(encode({"a": np.zeros(1 << 16)}))
    true = os.fstat
    monkeypatch.setattr(os, "fstat", lambda descriptor: (true(descriptor), os.truncate(path, 10_000))[0])
    kind, message = reasons(path)
    assert kind is CorruptCheckpoint
    assert ": a: " in message


# Attacks: forged files.


def test_the_forger_makes_the_file_that_the_module_writes(tmp_path):
    assert forge(header(), bytes(8)) == encode({"a": np.zeros(2, np.float32)})


@pytest.mark.parametrize("attack", CORRUPT)
def test_an_attack_is_a_corrupt_checkpoint_and_allocates_no_more_than_the_file(tmp_path, attack):
    path = tmp_path / "a"
    path.write_bytes(CORRUPT[attack])
    tracemalloc.start()
    try:
        kind, message = reasons(path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kind is CorruptCheckpoint
    assert len(message) < 2000
    message.encode()  # can be printed
    assert peak < 100 * len(CORRUPT[attack]) + (1 << 20)


def test_nesting_of_any_depth_is_refused_by_the_same_error(tmp_path):
    # Just where the parser still manages and the next call would give up, too.
    for depth in [63, 64, 65, *range(700, 1000)]:
        nest = "[" * depth + "]" * depth
        forged = forge(header(), EIGHT, text=lambda full, nest=nest: dumps(full).replace("[2]", nest))
        (tmp_path / "a").write_bytes(forged)
        assert reasons(tmp_path / "a")[0] is CorruptCheckpoint


def test_a_file_for_which_there_is_too_little_memory_is_one_kind_of_error(tmp_path, monkeypatch):
    (tmp_path / "a").write_bytes(encode(SMALL))

    def exhausted(*arguments):
        raise MemoryError

    monkeypatch.setattr(container, "zlib", SimpleNamespace(crc32=exhausted))
    kind, message = reasons(tmp_path / "a")
    assert kind is CheckpointError
    assert "too little memory" in message


def test_a_name_that_a_terminal_would_obey_is_escaped_in_messages(tmp_path):
    name = "\x1b[31m\n"
    (tmp_path / "a").write_bytes(
        forge(header(meta=metadata({name: "00000000"}), **{name: entry(offsets=(8, 16))}), EIGHT)
    )
    _, message = reasons(tmp_path / "a")
    assert "\\x1b[31m\\n: expected" in message.replace("'", "")
    assert "\x1b" not in message


def test_a_lying_header_length_is_refused_in_a_large_file_too(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(struct.pack("<Q", 100_000_001))
    os.truncate(path, 1 << 30)  # sparse
    tracemalloc.start()
    try:
        assert reasons(path)[0] is CorruptCheckpoint
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


@pytest.mark.parametrize(
    "rewrite",
    [
        lambda text: text + b" " * 8,
        lambda text: text.rstrip(),
        lambda text: text.replace(b'"shape":[2]', b'"shape": [2]'),
        lambda text: text.replace(b'"a":{', b'"\\u0061":{'),
        lambda text: text.replace(b"F32", b"\\u004632"),
        lambda text: json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":")).encode(),
    ],
    ids=["padding", "no padding", "space", "escaped name", "escaped value", "order"],
)
def test_the_same_header_written_otherwise_is_refused(tmp_path, rewrite):
    # Here the digest is that of the canonical form: what was parsed is right, its bytes are not.
    data = encode({"a": np.zeros(2, np.float32)})
    text, body = data[8:-8], data[-8:]
    changed = rewrite(text)
    assert json.loads(changed) == json.loads(text)
    assert changed != text
    (tmp_path / "a").write_bytes(struct.pack("<Q", len(changed)) + changed + body)
    assert reasons(tmp_path / "a")[0] is CorruptCheckpoint


INCOMPATIBLE = {
    "a newer version": (forge(header(meta=metadata(version="2")), EIGHT), "version '2'"),
    "a newer version with other fields": (
        forge(header(meta={"format": "bitwise-resume", "version": "2"}), EIGHT),
        "'2'",
    ),
    "another format": (forge(header(meta=metadata(format="other")), EIGHT), "'other'"),
    "a type of a newer version": (forge(header(a=entry("BF16", (4,))), EIGHT), "'BF16'"),
    "a type that is a number": (forge(header(a=entry(4)), EIGHT), "found 4"),
    "a plain safetensors file": (safetensors.numpy.save(SMALL), "plain safetensors"),
    "a plain file with metadata": (safetensors.numpy.save(SMALL, {"format": "pt"}), "plain safetensors"),
    "a plain file of no arrays": (safetensors.numpy.save({}), "plain safetensors"),
}


@pytest.mark.parametrize("case", INCOMPATIBLE)
@pytest.mark.parametrize("reader", [read_container, read_manifest])
def test_a_sound_file_of_another_kind_is_incompatible(tmp_path, case, reader):
    data, word = INCOMPATIBLE[case]
    (tmp_path / "a").write_bytes(data)
    kind, message = reasons(tmp_path / "a", reader)
    assert kind is IncompatibleCheckpoint
    assert word in message


@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused_by_one_family_of_errors(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "any-bytes"
    path.write_bytes(data)
    with pytest.raises(CheckpointError):
        read_container(path)


@given(place=st.integers(0, 2000), junk=st.binary(min_size=1, max_size=16), seal=st.booleans())
def test_any_change_to_a_header_is_refused_by_one_family_of_errors(tmp_path_factory, place, junk, seal):
    data = encode(SMALL, SMALL_MANIFEST)
    length = int.from_bytes(data[:8], "little")
    place = 8 + place % (length - 16)
    changed = data[:place] + junk + data[place + len(junk) :]
    if seal:  # the length changes instead, and what follows is moved
        changed = struct.pack("<Q", length + len(junk)) + data[8:place] + junk + data[place:]
    path = tmp_path_factory.getbasetemp() / "any-change"
    path.write_bytes(changed)
    if changed != data:
        with pytest.raises(CheckpointError):
            read_container(path)


# Refusals at save.


class Extended(np.ndarray):
    pass


BAD = {
    "": np.zeros(1),
    "\0": np.zeros(1),
    "a\0b": np.zeros(1),
    "\ud800": np.zeros(1),
    "__metadata__": np.zeros(1),
    "ü" * 513: np.zeros(1),
    "object": np.array([None]),
    "integer of 128 bits": np.array([2**127]),
    "complex": np.zeros(1, np.complex64),
    "longdouble": np.zeros(1, np.longdouble),
    "date": np.zeros(1, "datetime64[s]"),
    "text": np.array(["a"]),
    "bytes": np.array([b"a"]),
    "record": np.zeros(1, [("x", np.int8)]),
    "swapped": np.zeros(1, np.dtype(np.float32).newbyteorder()),
    "list": [1.0],
    "scalar": np.float32(1),
    "number": 1,
    "masked": np.ma.masked_array([1.0], [True]),
    "extended": np.zeros(1).view(Extended),
    3: np.zeros(1),
    b"bytes": np.zeros(1),
}


@pytest.mark.parametrize("name", BAD, ids=ascii)
def test_what_could_not_be_loaded_is_refused_at_save(name):
    file = io.BytesIO()
    for refuse in (check_storable, lambda arrays: write_container(file, arrays, {})):
        with pytest.raises(ValueError, match="cannot store these arrays") as caught:
            refuse({"good": np.zeros(1), name: BAD[name]})
        assert len(str(caught.value).splitlines()) == 2
        assert repr(name)[:80] in str(caught.value)
    assert file.getvalue() == b""


def test_all_that_cannot_be_stored_is_named_at_once_and_sorted():
    with pytest.raises(ValueError, match="cannot store these arrays") as caught:
        check_storable({**BAD, "good": np.zeros(1)})
    _, *lines = str(caught.value).splitlines()
    assert lines == sorted(lines)
    assert len(lines) == len(BAD)
    assert "good" not in str(caught.value)
    with pytest.raises(ValueError, match=r"swapped.*newbyteorder"):
        check_storable({"swapped": BAD["swapped"]})


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_of_the_format_is_storable(dtype):
    check_storable({name: np.zeros((), dtype) for name in ODD_NAMES})
    check_storable({})


cyclic = {}
cyclic["again"] = cyclic
deep = 0
for _ in range(64):
    deep = [deep]


@pytest.mark.parametrize(
    ("manifest", "place"),
    [
        ({"a": float("nan")}, "manifest/a"),
        ({"a": [1, float("-inf")]}, "manifest/a/1"),
        ({"a": {"b": np.float64("inf")}}, "manifest/a/b"),
        ({"a": (1, 2)}, "manifest/a"),
        ({"a": {1: 2}}, "manifest/a"),
        ({None: 2}, "manifest"),
        ({True: 2}, "manifest"),
        ({"a": b"x"}, "manifest/a"),
        ({"a": {1, 2}}, "manifest/a"),
        ({"a": np.float32(1)}, "manifest/a"),
        ({"a": np.int64(1)}, "manifest/a"),
        ({"a": np.bool_(True)}, "manifest/a"),
        ({"a": np.zeros(2)}, "manifest/a"),
        ({"a": 10**5000}, "manifest/a"),
        ({"a": 1j}, "manifest/a"),
        (cyclic, "manifest/again"),
        ({"a": deep}, "manifest/a"),
    ],
)
def test_a_manifest_that_json_would_change_is_refused_with_its_place(manifest, place):
    file = io.BytesIO()
    with pytest.raises(ValueError, match=f"cannot store these values of the manifest.*\n +{place}[:/]"):
        write_container(file, {}, manifest)
    assert file.getvalue() == b""


def test_the_deepest_and_longest_legal_values_of_a_manifest_come_back(tmp_path):
    manifest = {"deep": deep[0], "long": -(2**8192 - 1), "key\0": "\0"}
    assert decode(tmp_path, encode({}, manifest)) == ({}, manifest)


def test_a_header_that_safetensors_would_refuse_is_refused_at_save(monkeypatch):
    monkeypatch.setattr(container, "HEADER_LIMIT", 2000)
    encode({}, {"a": "x" * 1500})
    with pytest.raises(ValueError, match="header of at most 2000 bytes"):
        encode({}, {"a": "x" * 2000})


def test_all_errors_are_of_one_family():
    for kind in (CorruptCheckpoint, IncompleteCheckpoint, IncompatibleCheckpoint):
        assert issubclass(kind, CheckpointError)
        assert not issubclass(kind, (OSError, ValueError))


# Verifying without keeping


@pytest.mark.parametrize("size", [0, 1, container.CHUNK_BYTES, container.CHUNK_BYTES + 1, 3 * container.CHUNK_BYTES])
def test_a_file_is_verified_in_the_memory_of_one_chunk_and_judged_as_by_reading_it(tmp_path, size):
    path = tmp_path / "file"
    arrays = {"flags": np.ones(size, np.bool_), "w": np.arange(7, dtype=np.float32)}
    with path.open("wb") as file:
        container.write_container(file, arrays, {"step": 3})
    assert container.verify_container(path) == container.read_container(path)[1] == {"step": 3}
    tracemalloc.start()
    container.verify_container(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * container.CHUNK_BYTES
    content = path.read_bytes()
    for place in {len(content) - 1, len(content) - 28 - size, len(content) // 2}:
        path.write_bytes(content[:place] + bytes([content[place] ^ 2]) + content[place + 1 :])
        errors = []
        for read in (container.read_container, container.verify_container):
            with pytest.raises(CorruptCheckpoint) as error:
                read(path)
            errors.append(str(error.value))
        assert errors[0] == errors[1]


@pytest.mark.parametrize("name", ["zip", "npy", "hdf5", "gzip", "pickle"])
def test_a_file_of_another_format_is_called_by_its_name_and_not_damaged(tmp_path, name):
    path = tmp_path / "other"
    if name == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("a", b"1" * 100)
    elif name == "npy":
        with path.open("wb") as file:
            np.save(file, np.zeros(9))
    elif name == "gzip":
        path.write_bytes(gzip.compress(b"1" * 100))
    else:
        path.write_bytes({"hdf5": b"\x89HDF\r\n\x1a\n", "pickle": b"\x80\x02\x8a\nl\xfc\x9cF"}[name] + bytes(100))
    with pytest.raises(CorruptCheckpoint, match=r"expected a bitwise-resume file, found .*\n.*torch_port inspect"):
        container.verify_container(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes with names on this system")
def test_a_pipe_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert container.is_container(tmp_path / "pipe")  # what reads it tells
    with pytest.raises(CheckpointError, match="expected a file, found a directory or device"):
        read_container(tmp_path / "pipe")
