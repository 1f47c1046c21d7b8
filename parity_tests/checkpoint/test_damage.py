"""No damage loads: every kind of it, a fuzzed reader, the memory of a save, and mutants that each of them catches."""

import re
import sys
from unittest import mock

import numpy as np
import pytest

import numpy_ref
from numpy_ref.checkpoint import container
from numpy_ref.checkpoint import save_and_resume as checkpoint
from parity_tests.checkpoint import damage, fuzz
from parity_tests.checkpoint.damage import KINDS, losses, scene
from parity_tests.commands import python

FEWER = {"a byte changed": lambda scene, read: damage.changed_bytes(scene, read, patterns=(0x01,))}
COUNTS = {"a byte changed": 7000, "cut short": 7000, "lengthened": 17, "a write torn": 700, "sections exchanged": 30}
COUNTS |= {"a header that lies, checksums right": 200, "a manifest that lies, checksums right": 2000}
COUNTS |= {"no plain file": 15, "changed while it is read": 100}


@pytest.mark.parametrize("kind", KINDS)
def test_no_damage_is_read_as_a_checkpoint(kind, monkeypatch):
    if kind in FEWER:
        monkeypatch.setitem(KINDS, kind, FEWER[kind])
    found = losses(kind)
    assert [case for case in found if case is not None] == []
    assert len(found) >= COUNTS[kind]


def test_the_scene_is_read_as_the_two_saves_that_it_is(tmp_path):
    here = scene(tmp_path)
    assert here.whole[0] != here.whole[1]
    assert len(here.first) == len(here.second)
    for content, mark in zip((here.first, here.second), here.whole, strict=True):
        here.path.write_bytes(content)
        assert damage.judge(numpy_ref.read_checkpoint, here.path, (mark,)) is None
        assert damage.judge(numpy_ref.read_checkpoint, here.path, ()) == "content that nobody saved"


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
def test_a_file_that_claims_more_than_there_is_takes_no_memory_for_it(tmp_path):
    kinds = ["a header that lies, checksums right", "no plain file", "changed while it is read", "sections exchanged"]
    answer = python("-m", "parity_tests.checkpoint.damage", *kinds, cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (0, "")
    assert re.findall(r"(\d+) losses", answer.stdout) == ["0"] * len(kinds)


# Readers with one fault


def careless(*expected, **replaced):
    """A reader that says nothing where it refuses what is not as `expected`, or has other functions and values."""
    fail = container._fail

    def silent(path, wanted, found, **more):
        if not any(text in f"{wanted}, found {found}" for text in expected):
            fail(path, wanted, found, **more)

    def read(path):
        with mock.patch.multiple(container, create=True, _fail=silent, **replaced):
            return checkpoint.read_checkpoint(path)

    return read


def caught(kind, read, folder):
    """Whether a case of the kind is lost; the first is enough."""
    return any(FEWER.get(kind, KINDS[kind])(scene(folder), read))


CRC, SIZE, SHORT = "arrays as they were written", "bytes in all", "more bytes"
LAST = "rng/order/key"  # the last array of the file
LIES = "a header that lies, checksums right"


@pytest.mark.parametrize(
    ("kind", "reader"),
    [
        ("a byte changed", careless(f"{CRC}, found {LAST!r}")),
        ("a byte changed", careless("a header in canonical form")),
        ("cut short", careless(SIZE, SHORT, CRC)),
        ("lengthened", careless(SIZE)),
        ("a write torn", careless(f"{CRC}, found {LAST!r}")),
        ("sections exchanged", careless(CRC)),
        (LIES, careless(SIZE)),
        (LIES, careless("the length of a header")),
        (LIES, careless("data_offsets [")),
        (LIES, careless("a CRC-32 for each array")),
        (LIES, careless(RecursionError=KeyError)),
        ("changed while it is read", careless(SHORT, CRC)),
    ],
)
def test_a_reader_with_one_fault_is_caught(kind, reader, tmp_path):
    assert caught(kind, reader, tmp_path)


def lazy(path, *, verify):
    """A reader that leaves the arrays in the file."""
    found = numpy_ref.read_checkpoint(path) if verify else None
    data = path.read_bytes()
    length, header = damage.parse(data)
    mapped = np.memmap(path, np.uint8, "r", offset=length)

    def view(name, like):
        begin, end = header[name]["data_offsets"]
        return mapped[begin:end].view(like.dtype).reshape(like.shape)

    if found is None:
        found = numpy_ref.init_run(damage.CONFIG, damage.DATA)
    model = {name: view(f"model/{name}", array) for name, array in found.state.model.items()}
    return found._replace(state=found.state._replace(model=model))


@pytest.mark.parametrize(("kind", "verify"), [("a write torn", False), ("changed while it is read", True)])
def test_a_reader_that_leaves_arrays_in_the_file_is_caught(kind, verify, tmp_path):
    assert caught(kind, lambda path: lazy(path, verify=verify), tmp_path)


def test_a_reader_that_raises_anything_else_is_caught():
    def other(path):
        raise KeyError("step")

    assert losses("lengthened", other) == ["KeyError: KeyError('step')"] * 17


# The fuzzer.


@pytest.mark.campaign
def test_fuzzing_finds_nothing_and_reaches_most_of_the_reader():
    found = fuzz.fuzz(inputs=900)
    assert found.failures == []
    assert found.inputs == 900
    assert found.accepted > 10
    assert found.errors >= 15
    assert found.kept > 0
    reached, there = found.lines
    assert reached > 0.8 * there


@pytest.mark.campaign
def test_fuzzing_is_the_same_each_time():
    assert fuzz.fuzz(inputs=250, number=1) == fuzz.fuzz(inputs=250, number=1)
    assert fuzz.fuzz(inputs=250, number=1) != fuzz.fuzz(inputs=250, number=2)


def any_shape(path, name, code, shape):
    return container.DTYPES[code], tuple(shape)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "reader", [careless("dtype, shape and"), careless(_leaf=any_shape), careless(CRC), careless(SIZE)]
)
def test_fuzzing_catches_a_reader_with_one_fault(reader):
    assert fuzz.fuzz(inputs=600, read=reader).failures


def test_the_fuzzer_counts_lines_as_they_are_reached(tmp_path):
    with fuzz.Reached() as reached:
        container._offsets({})
    first = reached.lines()
    with reached:
        container._offsets({"a": ("float32", (2,))})
    assert reached.lines()[0] > first[0]
    assert reached.lines()[1] >= first[1]


# Memory.

COPYING = """
import io, sys
from pathlib import Path
from unittest import mock
from numpy_ref.checkpoint import save_and_resume as checkpoint
from parity_tests.checkpoint import damage

def copying(file, arrays, manifest, write=checkpoint.write_container):
    whole = io.BytesIO()
    write(whole, arrays, manifest)
    file.write(whole.getbuffer())

def whole_arrays(file, arrays, manifest, write=checkpoint.write_container):
    write(file, {name: array.copy() for name, array in arrays.items()}, manifest)

with mock.patch.object(checkpoint, "write_container", vars()[sys.argv[1]]):
    content, extra = damage.extra_memory(Path(), 256)
print(f"a state of {content / 2**20:.1f} MiB took {extra / 2**20:.1f} MiB more")
"""


def extra_memory(answer):
    assert answer.stderr == ""
    content, extra = re.findall(r"a state of ([\d.]+) MiB took ([\d.]+) MiB more", answer.stdout)[0]
    assert float(content) > 250
    return float(extra)


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform == "win32", reason="the resource module")
def test_a_save_adds_no_second_copy_of_the_state(tmp_path):
    limit = 64 / 4  # MiB: 64 for a state of 1 GiB, and this is a quarter of one
    measure = ("-m", "parity_tests.checkpoint.damage", "--memory", 256, "--directory", tmp_path)
    assert extra_memory(python(*measure, cwd=tmp_path)) < limit
    for fault in ("copying", "whole_arrays"):
        assert extra_memory(python("-c", COPYING, fault, cwd=tmp_path)) > limit
