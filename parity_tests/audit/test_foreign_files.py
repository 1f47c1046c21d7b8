"""Files of any origin: every leaf is read, no file runs code, and damage is one clear error."""

import argparse
import gzip
import io
import json
import math
import os
import pickle  # noqa: TID251  # the files that must not be loaded are written with it
import re
import struct
import subprocess
import sys
import tarfile
import tempfile
import warnings
import zipfile
from collections import defaultdict, deque
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is missing: there is nothing to read its files with")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is missing: its files cannot be written")

import numpy_ref
from numpy_ref.checkpoint.container import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint
from parity_tests.audit.foreign_cases import (
    DTYPES,
    a_loop,
    calling,
    error_of,
    like,
    mutant_tests,
    returning,
    tensor_of,
)
from parity_tests.strategies import small_data
from torch_port.audit import foreign
from torch_port.audit.foreign import archive as archives
from torch_port.audit.foreign import files, leaves, refusal
from torch_port.interop import errors

nn = torch.nn


MODERN = set(DTYPES) - {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.complex64} - {
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
}  # fmt: skip
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (8, 8), (1003,)]


def same_bytes(a, b):
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(x, y)


class Effect:
    """Pickled, it asks for a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_a_file_that_would_run_code_does_not(tmp_path):
    marker = tmp_path / "marker"
    words = f"open({str(marker)!r}, 'w').close()"
    effects = {
        "posix.system" if os.name == "posix" else "nt.system": Effect(os.system, f"echo > {marker}"),
        "builtins.exec": Effect(exec, words),
        "builtins.eval": Effect(eval, words),
        "subprocess.Popen": Effect(subprocess.Popen, ["touch", str(marker)]),
        "pathlib.Path.touch": Effect(Path.touch, marker),
    }
    for name, effect in effects.items():
        writers = [
            lambda file, effect=effect: torch.save({"model": {"w": torch.zeros(1)}, "x": effect}, file),
            lambda file, effect=effect: torch.save([effect], file, _use_new_zipfile_serialization=False),
            *(lambda file, effect=effect, p=p: file.write(pickle.dumps(effect, protocol=p)) for p in range(2, 6)),
        ]
        for write in writers:
            path = tmp_path / "evil.pt"
            with open(path, "wb") as file:
                write(file)
            error = error_of(path)
            assert not marker.exists()
            if name != "pathlib.Path.touch":
                assert isinstance(error, IncompatibleCheckpoint)
                asked = str(error).partition(" asks for ")[2].partition(".\n")[0]
                assert asked in (name, name.replace("subprocess", "commands"))
                assert "do not trust this file" in str(error)
                with pytest.raises(ValueError, match=f"allow: mend each of these:\n    {asked}: acts on the machine"):
                    foreign.read(path, allow=[asked])
                assert not marker.exists()


def test_what_to_allow_is_said_and_holds_once(tmp_path):
    path = tmp_path / "settings.pt"
    generator = np.random.RandomState(3).get_state()
    torch.save({"w": torch.ones(1), "args": argparse.Namespace(lr=0.5), "rng": generator}, path)
    error = str(error_of(path))
    names = json.loads(error[error.index("allow=") + 6 : error.index("]") + 1])
    assert names == ["argparse.Namespace", "numpy._core.multiarray._reconstruct", "numpy.dtype", "numpy.ndarray"]
    assert "args" not in error
    options = " ".join(f"--allow {name}" for name in names)
    assert f"by name: {options} (in Python: allow=" in error
    with pytest.raises(IncompatibleCheckpoint, match=r"asks for argparse.Namespace\."):
        foreign.read(path, allow=names[1:])
    leaves = foreign.read(path, allow=names).leaves
    assert leaves["args/lr"].value == 0.5
    assert (leaves["rng"].form, leaves["rng"].dtype) == ("generator", "NumPy MT19937")
    error_of(path)  # what was allowed once is not for good


def test_damage_to_an_archive_is_refused(tmp_path):
    """Cut anywhere, with a bit turned anywhere, an archive is refused or reads as it was."""
    path, tensors = tmp_path / "file", {"a": torch.arange(50.0), "b": torch.ones(3, dtype=torch.int64)}
    torch.save(tensors, path)
    data, whole = path.read_bytes(), foreign.leaves_of(tensors)
    for cut in [*range(0, len(data), max(1, len(data) // 60)), len(data) - 1]:
        path.write_bytes(data[:cut])
        assert isinstance(error_of(path), CorruptCheckpoint)
    for at in range(0, len(data), max(1, len(data) // 120)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with suppress(CheckpointError):
            assert foreign.differences(whole, foreign.read(path).leaves) == []


def header_file(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(dtype="F32", shape=(1,), offsets=(0, 4)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


FORGED = {
    "hole": header_file({"a": entry(), "b": entry(offsets=(8, 12))}, bytes(12)),
    "overlap": header_file({"a": entry(), "b": entry()}, bytes(4)),
    "rest": header_file({"a": entry()}, bytes(5)),
    "short": header_file({"a": entry()}, bytes(3)),
    "size": header_file({"a": entry(shape=(2,))}, bytes(4)),
    "type": header_file({"a": entry("F33")}, bytes(4)),
    "type of another type": header_file({"a": entry(["F32"])}, bytes(4)),
    "backwards": header_file({"a": entry(shape=(0,), offsets=(4, 0))}, bytes(4)),
    "negative": header_file({"a": entry(shape=(-1, -1))}, bytes(4)),
    "true": header_file({"a": entry(shape=(True,))}, bytes(4)),
    "float": header_file({"a": entry(shape=(1.0,))}, bytes(4)),
    "huge": header_file({"a": entry(shape=(2**63, 0), offsets=(0, 0))}),
    "huge product": header_file({"a": entry(shape=(2**62, 2**62, 0), offsets=(0, 0))}),
    "three offsets": header_file({"a": entry(offsets=(0, 4, 4))}, bytes(4)),
    "more keys": header_file({"a": entry() | {"x": 1}}, bytes(4)),
    "no dict": header_file({"a": 3}),
    "metadata": header_file({"__metadata__": {"a": 1}}),
    "metadata list": header_file({"__metadata__": []}),
    "twice": header_file(
        b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry()).encode() + b"}", bytes(4)
    ),
    "cut JSON": header_file(b'{"a":'),
    "deep": header_file(b'{"a":' * 100_000),
    "no UTF-8": header_file(b'{"\xff":1}'),
    "bool": header_file({"a": entry("BOOL", (4,))}, b"\0\1\2\0"),
    "long header": struct.pack("<Q", 1000) + b"{}",
    "half a byte": header_file({"a": entry("F4", (1,), (0, 1))}, bytes(1)),
}


def test_forged_headers_are_refused(tmp_path):
    path = tmp_path / "forged.safetensors"
    for data in FORGED.values():
        path.write_bytes(data)
        error = error_of(path)
        assert isinstance(error, CorruptCheckpoint)
        assert "ValueError" not in str(error)
    path.write_bytes(FORGED["short"])
    assert "found the data: expected 4 bytes for the arrays, found 3." in str(error_of(path))


def archive(records, compression=zipfile.ZIP_STORED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as out:
        for name, data in records.items():
            out.writestr(name, data)
    return file.getvalue()


def saved(tree, new=True):
    file = io.BytesIO()
    torch.save(tree, file, _use_new_zipfile_serialization=new)
    return file.getvalue()


def test_what_is_no_checkpoint_is_refused(tmp_path):
    expanded = torch.zeros(1).expand(10**12)
    buffer = io.BytesIO()
    torch.save({"w": expanded}, buffer)
    whole = [saved({"w": torch.ones(100)}, new) for new in (True, False)]
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w") as out:
        member = tarfile.TarInfo("a.pt")
        member.size = len(whole[0])
        out.addfile(member, io.BytesIO(whole[0]))
    tarred = tarred.getvalue()
    contents = {
        "empty": b"", "text": b"hello world", "zeros": bytes(1000), "pickle": pickle.dumps({"a": 1}), "PK": b"PK\3\4",
        "npz": archive({"a.npy": b"x"}), "packed": archive({"x/data.pkl": bytes(10**5)}, zipfile.ZIP_DEFLATED),
        "expanded": buffer.getvalue(), "whole": whole[0], "cut": whole[0][:-40], "old": whole[1][:-40], "tar": tarred,
        "gzip": gzip.compress(whole[0]), "header": struct.pack("<Q", 2**50) + b"{}", "words": b"checkpoint\nmodel\n",
        "LFS": b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 3\n",
        "npy": b"\x93NUMPY\x01\0" + bytes(99), "h5": b"\x89HDF\r\n\x1a\n" + bytes(99), "zip": archive({"a": b"x"}),
        "gguf": b"GGUF" + bytes(99), "zstd": b"\x28\xb5\x2f\xfd" + bytes(9),
    }  # fmt: skip
    (tmp_path / "whole").write_bytes(contents.pop("whole"))
    foreign.read(tmp_path / "whole")
    texts = {}
    for name, data in contents.items():
        path = tmp_path / f"{name}.safetensors"
        path.write_bytes(data)
        texts[name] = str(error_of(path))
    assert not any("Error" in text or "BadZipFile" in text for text in texts.values())
    told = {"text": "text.", "words": "text.", "LFS": "text that points to", "zeros": "zeros", "tar": "a tar archive"}
    told |= {"cut": "one without its end", "PK": "one without its end", "old": "one of before 1.6 that is damaged"}
    told |= {"npz": "an archive of NumPy arrays", "gzip": "a file that gzip has", "empty": "an empty file"}
    told |= {"zip": "a zip archive that torch has not", "npy": "an array of NumPy", "h5": "a file of HDF5"}
    told |= {"gguf": "a file of GGUF", "zstd": "a file that zstd has"}
    told |= {"header": f"a safetensors header of {2**50:,} bytes", "pickle": "what torch refuses to unpickle"}
    for name, words in told.items():
        assert f", found {words}" in texts[name]
    healthy = ["text", "words", "LFS", "tar", "gzip", "zstd", "zip", "npz", "npy", "h5", "gguf"]
    assert not any("damaged" in texts[name] for name in healthy), "sound, and none of ours"
    assert all("damaged" in texts[name] for name in ("zeros", "cut", "old", "PK", "header", "packed"))
    assert "more than the file has room for" in texts["packed"]
    assert "4,000,000,000,000" in texts["expanded"]
    assert "a directory or device" in str(error_of(tmp_path))
    assert "no such file" in str(error_of(tmp_path / "none.pt"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe")
        assert "a directory or device" in str(error_of(tmp_path / "pipe"))


def test_what_has_no_room_is_refused(tmp_path):
    path = tmp_path / "shared.pt"
    shared = []
    for _ in range(10):
        shared = [shared, shared, "x"]
    torch.save(shared, path)
    with mock.patch.object(leaves, "LEAF_LIMIT", 1000):
        assert "at most 1,000 leaves, found more" in str(error_of(path))
    with mock.patch.object(os, "sysconf", return_value=10):
        assert "fits into memory" in str(error_of(path))


@given(
    st.lists(st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES)), min_size=1, max_size=5),
    st.integers(0, 99),
    st.sampled_from(("new", "old", "safetensors")),
)
@example([(dtype, (7,)) for dtype in DTYPES], 0, "safetensors")
@example([(dtype, (7,)) for dtype in DTYPES], 0, "new")
def test_every_leaf_of_every_format_is_read_bit_for_bit(shapes, seed, how):
    tensors = {
        f"layer{i}.weight": tensor_of(*x, seed + i) for i, x in enumerate(shapes) if how != "old" or x[0] not in MODERN
    } or {"w": torch.zeros(1)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file.any"
        if how == "safetensors":
            safetensors.save_file(tensors, path, metadata={"format": "pt", "who": "me"})
        else:
            torch.save(tensors, path, _use_new_zipfile_serialization=how == "new")
        file = foreign.read(path)
        assert file.origin == {"new": "torch.save", "old": "torch.save before 1.6"}.get(how, how)
        assert file.size == path.stat().st_size
        assert file.leaves.keys() == tensors.keys()
        for name, leaf in file.leaves.items():
            assert same_bytes(leaf.value, tensors[name])
            assert (leaf.dtype, leaf.shape) == (str(tensors[name].dtype)[6:], tuple(tensors[name].shape))
        assert file.metadata == ({"format": "pt", "who": "me"} if how == "safetensors" else {})
        assert foreign.diff(path, path).bitwise


def test_no_variable_of_the_environment_makes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    test_a_file_that_would_run_code_does_not(tmp_path)


def test_what_cannot_be_allowed_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no_such\.thing: expected the full name") as caught:
        foreign.read(tmp_path / "x", allow=["no_such.thing", "os.system", "builtins.eval", "word"])
    assert len(str(caught.value).splitlines()) == 5
    with pytest.raises(ValueError, match="expected a list of names"):
        foreign.read(tmp_path / "x", allow="argparse.Namespace")


class Deep(deque):
    """A class that torch's restricted unpickler lets be made, and does not fill."""


def test_a_defaultdict_that_is_allowed_is_read_as_a_dict(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"x": defaultdict(list, {"a": [1, 2]})}, path)
    names = ["builtins.list", "collections.defaultdict"]
    assert f"allow={json.dumps(names)}" in str(error_of(path))
    assert foreign.read(path, allow=names).leaves["x/a"].value == (1, 2)


def test_what_torch_cannot_fill_is_not_called_damaged(tmp_path):
    path = tmp_path / "a.pt"
    torch.save({"x": Deep([1, 2])}, path)
    error = error_of(path, allow=[f"{__name__}.Deep"])
    assert isinstance(error, IncompatibleCheckpoint)
    assert "Deep, which torch cannot fill with weights_only.\n    Where it is saved, make it plain" in str(error)


def test_a_class_of_the_script_itself_is_not_advised_to_be_allowed(tmp_path, monkeypatch):
    path, main = tmp_path / "a.pt", sys.modules["__main__"]
    settings = type("OfTheScript", (), {"__module__": "__main__"})
    monkeypatch.setattr(main, "OfTheScript", settings, raising=False)
    torch.save({"x": settings()}, path)
    assert "allow" in str(error_of(path)), "it is this script's"
    monkeypatch.delattr(main, "OfTheScript")
    error = str(error_of(path))
    assert "--allow" not in error
    assert "__main__.OfTheScript: of the script that saved the file itself" in error
    assert "a plain dict in its place, as of vars(args)" in error
    with pytest.raises(ValueError, match="plain dict in its place"):
        foreign.read(path, allow=["__main__.OfTheScript"])


def test_a_module_that_is_allowed_gives_its_state(tmp_path):
    with torch.random.fork_rng():
        model = nn.Linear(2, 1)
    torch.save(model, tmp_path / "model.pt")
    error = str(error_of(tmp_path / "model.pt"))
    assert "torch.nn.modules.linear.Linear" in error
    names = json.loads(error[error.index("allow=") + 6 : error.index("]") + 1])
    for _ in range(5):  # a class in another is asked for only when that one is allowed
        try:
            leaves = foreign.read(tmp_path / "model.pt", allow=names).leaves
            break
        except IncompatibleCheckpoint as refusal:
            names += json.loads(str(refusal)[str(refusal).index("allow=") + 6 : str(refusal).index("]") + 1])
    assert list(leaves) == ["weight", "bias"]


def test_damage_to_a_header_is_refused(tmp_path):
    path = tmp_path / "file"
    safetensors.save_file({"a": torch.arange(50.0), "b": torch.ones(3, dtype=torch.int64)}, path)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for cut in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:cut])
        error_of(path)
    for at in range(header):  # of the data the format has no checksum
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with suppress(CheckpointError):
            foreign.read(path)


def test_elements_of_less_than_a_byte_are_compared_as_bytes(tmp_path):
    for name, data in (("a", b"\1\2"), ("b", b"\1\3")):
        (tmp_path / name).write_bytes(header_file({"w": entry("F4", (2, 2), (0, 2))}, data))
    found = foreign.diff(tmp_path / "a", tmp_path / "b")
    assert [(c.path, c.change, c.ulps) for c in found.changes] == [("w", "value", None)]
    assert foreign.read(tmp_path / "a").leaves["w"].shape == (2, 2)


def test_our_own_file_is_read_and_verified(tmp_path):
    data = small_data()
    run = numpy_ref.train_n_steps(numpy_ref.init_run(numpy_ref.RunConfig(), data), data, 3)
    path = tmp_path / "run.safetensors"
    numpy_ref.save_checkpoint(path, run)
    kinds = {k.kind for k in foreign.inspect(path).kinds}
    assert {"model", "optimizer", "generator", "counter"} <= kinds
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert isinstance(error_of(path), CorruptCheckpoint)


def test_the_process_is_as_before(tmp_path):
    torch.save(a_loop(), tmp_path / "a.pt")
    before = torch.get_rng_state(), list(warnings.filters), set(torch.serialization.get_safe_globals())
    foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt", allow=["argparse.Namespace"])
    after = torch.get_rng_state(), list(warnings.filters), set(torch.serialization.get_safe_globals())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def unchecked(words):
    """A check of the header that is not made."""
    return calling(lambda right, holds, where, wanted, found: right(holds or words in wanted, where, wanted, found))


class OtherValueError(ValueError):
    """What json and others raise."""


def with_other_errors(right, holds, *texts):
    try:
        right(holds, *texts)
    except ValueError as error:
        raise OtherValueError(*error.args) from None


def without_room(right, *arguments):
    with suppress(ValueError):
        right(*arguments)


def of_size(size):
    """The system says that a file has so many bytes, where it says none."""
    fstat = os.fstat
    return lambda os: like(os, fstat=lambda n: SimpleNamespace(st_size=fstat(n).st_size or size))


def named(right, file, allowed, message):
    return sorted(set(re.findall(r"GLOBAL ([\w.]+)", message)))


CODE, ALLOWED, DAMAGE, FORGERIES, NONE, ROOM = (
    test_a_file_that_would_run_code_does_not,
    test_what_to_allow_is_said_and_holds_once,
    test_damage_to_an_archive_is_refused,
    test_forged_headers_are_refused,
    test_what_is_no_checkpoint_is_refused,
    test_what_has_no_room_is_refused,
)
MUTANTS = [
    (
        archives,
        "torch",
        lambda torch: like(torch, load=lambda *x, **named: torch.load(*x, **named | {"weights_only": False})),
        CODE,
    ),
    (refusal, "_acts", returning(lambda name: False), CODE),
    (refusal, "_globals", returning(lambda file: set()), CODE),
    (archives, "refused", calling(lambda right, *x: [name.removeprefix("builtins.") for name in right(*x)]), CODE),
    (archives, "refused", calling(named), ALLOWED),
    (refusal, "np", lambda np: like(np, dtype=None), ALLOWED),
    (files, "load", calling(lambda right, path, file, allowed: right(path, file, [])), ALLOWED),
    (refusal, "shlex", returning(SimpleNamespace(quote=lambda name: "")), ALLOWED),
    (archives, "interop", returning(SimpleNamespace(damaged_record=lambda file: None)), DAMAGE),
    (files, "check_archive", calling(lambda right, path, file, size: right(path, file, 1 << 60)), NONE),
    (errors, "stat", returning(SimpleNamespace(S_ISREG=lambda mode: True)), NONE),
    (files, "os", of_size(1), NONE),
    (files, "_memory", returning(lambda: math.inf), ROOM),
    (leaves._Walk, "add", calling(without_room), ROOM),
    (files, "ROOM", returning(math.inf), NONE),
    (files, "_check", calling(with_other_errors), FORGERIES),
    (files, "_check", unchecked("data from"), FORGERIES),
    (files, "_check", unchecked("bytes for the arrays"), FORGERIES),
    (files, "_check", unchecked("bytes of data"), FORGERIES),
    (files, "_check", unchecked("texts by name"), FORGERIES),
    (
        files,
        "_are_counts",
        returning(lambda x: isinstance(x, list) and all(item >= 0 for item in x)),
        FORGERIES,
    ),
    (files, "_once", returning(dict), FORGERIES),
    (files, "fail", calling(lambda right, *x: None if "booleans" in x[2] else right(*x)), FORGERIES),
    (files, "RecursionError", returning(KeyError), FORGERIES),
    (files, "RuntimeError", returning(KeyError), FORGERIES),
    (archives, "_is_text", returning(lambda start: False), NONE),
    (archives, "_known_form", returning(lambda file, start: None), NONE),
    (
        archives,
        "_known_form",
        calling(lambda right, *x: (form := right(*x)) and (form[0], archives.DAMAGED)),
        NONE,
    ),
    (
        archives,
        "_known_form",
        calling(lambda right, *x: (form := right(*x)) and (form[0].replace("of NumPy arrays", ""), form[1])),
        NONE,
    ),
    (
        archives,
        "fail",
        calling(
            lambda right, *x: right(*(str(y).replace("without its end", "") if i > 1 else y for i, y in enumerate(x)))
        ),
        NONE,
    ),
    (archives, "OLD", returning(b"never"), NONE),
]


test_every_law_kills_its_mutants = mutant_tests(MUTANTS)
