"""Checkpoints of any origin: every leaf is read and compared, none runs code, and damage is one clear error."""

import argparse
import gzip
import io
import json
import math
import os
import pickle  # noqa: TID251  # the files that must not be loaded are written with it
import struct
import subprocess
import tarfile
import tempfile
import warnings
import zipfile
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="torch is missing: there is nothing to read its files with")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is missing: its files cannot be written")

import numpy_ref  # noqa: E402
from numpy_ref.container import CheckpointError, CorruptCheckpoint, IncompatibleCheckpoint  # noqa: E402
from parity_tests.commands import strict_json  # noqa: E402
from parity_tests.strategies import small_data  # noqa: E402
from parity_tests.witnesses import with_fault  # noqa: E402
from torch_port.audit import foreign  # noqa: E402

nn = torch.nn
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
FLOATS += [torch.float8_e4m3fnuz, torch.float8_e5m2fnuz]
INTEGERS = [torch.uint8, torch.int8] + [getattr(torch, f"{k}{n}") for k in ("int", "uint") for n in (16, 32, 64)]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, torch.complex64, torch.float8_e8m0fnu]
MODERN = set(DTYPES) - {torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.bool, torch.complex64} - {
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64
}  # fmt: skip
SHAPES = [(), (0,), (1,), (7,), (3, 0, 2), (8, 8), (1003,)]


def tensor_of(dtype, shape, seed):
    """Any bits, NaNs among them."""
    rng = np.random.default_rng(seed)
    if dtype is torch.bool:
        return torch.from_numpy(np.array(rng.integers(0, 2, shape, dtype=np.uint8))).bool()
    data = rng.integers(0, 256, math.prod(shape) * dtype.itemsize, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape) if data.size else torch.zeros(shape, dtype=dtype)


def same_bytes(a, b):
    x, y = (t.contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(x, y)


def a_loop():
    """A general checkpoint, with all kinds of state but a best result."""
    with torch.random.fork_rng():
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 5)
    model(torch.arange(15.0).reshape(5, 3)).square().sum().backward()
    optimizer.step()
    scheduler.step()
    return OrderedDict(
        epoch=1,
        global_step=7,
        model_state_dict=model.state_dict(),
        optimizer_state_dict=optimizer.state_dict(),
        scheduler_state_dict=scheduler.state_dict(),
        scaler_state_dict=torch.amp.GradScaler("cpu").state_dict(),
        rng={"torch": torch.Generator().manual_seed(1).get_state(), "numpy": np.random.PCG64(1).state},
        ema={name: value.clone() for name, value in model.state_dict().items()},
        sampler={"order": torch.arange(5), "index": 3},
    )


def found(a, b, module=foreign):
    return [(c.path, c.change) for c in module.differences(module.leaves_of(a), module.leaves_of(b))]


def error_of(module, path, **settings):
    with pytest.raises(CheckpointError) as caught:
        module.read(path, **settings)
    text = str(caught.value)
    assert text.startswith(f"{path}: expected ")
    assert ".\n    " in text
    assert text.count("\n") == 1
    return caught.value


# Laws, each for a module that may have a fault


def reads_every_leaf(module, folder, tensors, how):
    path = folder / "file.any"
    if how == "safetensors":
        safetensors.save_file(tensors, path, metadata={"format": "pt", "who": "me"})
    else:
        torch.save(tensors, path, _use_new_zipfile_serialization=how == "new")
    file = module.read(path)
    assert file.origin == {"new": "torch.save", "old": "torch.save before 1.6"}.get(how, how)
    assert file.size == path.stat().st_size
    assert file.leaves.keys() == tensors.keys()
    for name, leaf in file.leaves.items():
        assert same_bytes(leaf.value, tensors[name])
        assert (leaf.dtype, leaf.shape) == (str(tensors[name].dtype)[6:], tuple(tensors[name].shape))
    assert file.metadata == ({"format": "pt", "who": "me"} if how == "safetensors" else {})
    assert module.diff(path, path).bitwise


def measures_every_change(module, dtype, size, place, steps):
    """An element moved by so many units in the last place; never over zero, nor into infinity."""
    bits = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    sign = -1 if place % 2 else 1
    x = torch.full((size,), 1.5 * sign).to(dtype)
    y = x.clone()
    y.view(bits)[place % size] += steps
    (change,) = module.differences(module.leaves_of({"a": x, "b": x}), module.leaves_of({"a": y, "b": x}))
    near, far = (t[place % size].double().item() for t in (x, y))
    assert change == ("a", "value", near, far, abs(far - near), steps, 1, "")


def judges_bits(module):
    """-0 is not 0; all NaNs are one; and the worst element is shown."""
    zero, nan = torch.tensor([0.0, 1.0]), torch.tensor([math.nan, 1.0])
    other = nan.clone()
    other.view(torch.int32)[0] ^= 1
    assert found({"w": nan}, {"w": other}, module) == []
    (change,) = module.differences(
        module.leaves_of({"w": zero}), module.leaves_of({"w": -zero * torch.tensor([1, -1])})
    )
    assert change[2:7] == (0.0, -0.0, 0.0, 1, 1)
    assert found({"w": math.nan}, {"w": math.nan}, module) == []
    assert found({"w": 0.0}, {"w": -0.0}, module) == [("w", "value")]
    assert found({"w": zero}, {"w": nan}, module) == [("w", "value")]
    many = torch.zeros(foreign.CHUNK + 5)
    moved = many.clone()
    moved[3], moved[foreign.CHUNK + 1] = 1.0, -3.0
    (change,) = module.differences(module.leaves_of({"w": many}), module.leaves_of({"w": moved}))
    assert (change.b, change.distance, change.elements) == (-3.0, 3.0, 2)
    big = 2**62
    (change,) = module.differences(
        module.leaves_of({"w": torch.tensor([big])}), module.leaves_of({"w": torch.tensor([big + 1])})
    )
    assert (change.distance, change.ulps) == (1.0, None)
    pair = torch.tensor([1 + 2j, 3j])
    (change,) = module.differences(module.leaves_of({"w": pair}), module.leaves_of({"w": pair + torch.tensor([0, 1j])}))
    assert (change.a, change.b, change.distance) == (3.0, 4.0, 1.0)


def tells_each_kind_of_change(module):
    a = {"x": torch.zeros(2), "y": torch.zeros(2), "z": torch.zeros(2), "n": 1, "l": [1, 2.0], "gone": 1, "t": True}
    b = {"x": torch.zeros(3), "y": torch.zeros(2).half(), "z": 0.0, "n": 1.0, "l": [1, 3.0], "new": 1, "t": 1}
    expected = {"x": "shape", "y": "dtype", "z": "type", "n": "type", "l": "value", "t": "type"}
    expected |= {"gone": "missing", "new": "extra"}
    assert dict(found(a, b, module)) == expected
    assert found(a, a, module) == []
    assert found({"l": [1, 2]}, {"l": [1, True]}, module) == [("l", "type")]
    assert found({"l": [1, 2]}, {"l": [1, 2, 3]}, module) == [("l", "shape")]


def aligns_by_name(module):
    whole = a_loop()
    model = whole["model_state_dict"]
    for prefix in ("module.", "_orig_mod.", "module._orig_mod.", "model."):
        wrapped = {prefix + name: value for name, value in model.items()}
        assert found(model, wrapped, module) == found(wrapped, model, module) == []
        assert found(wrapped, wrapped | {f"{prefix}more": torch.zeros(1)}, module) == [(f"{prefix}more", "extra")]
    inner = {name.replace("0.", "0._orig_mod."): value for name, value in model.items()}
    assert found(model, inner, module) == []
    lightning = {
        "epoch": 1, "global_step": 7, "state_dict": {"model." + name: value for name, value in model.items()},
        "optimizer_states": [whole["optimizer_state_dict"]], "lr_schedulers": [whole["scheduler_state_dict"]],
    }  # fmt: skip
    kept = {name: whole[name] for name in ("epoch", "global_step", "model_state_dict", "optimizer_state_dict")}
    kept["scheduler_state_dict"] = whole["scheduler_state_dict"]
    assert found(kept, lightning, module) == []
    (change,) = module.differences(
        module.leaves_of({"net": {"a.w": torch.zeros(1)}}), module.leaves_of({"module.a.w": torch.ones(1)})
    )
    assert (change.path, change.other) == ("net/a.w", "module.a.w")
    partly = {"module.a": torch.zeros(1), "b": torch.zeros(1)}
    assert found(partly, {"a": torch.zeros(1), "b": torch.zeros(1)}, module) == [
        ("a", "extra"),
        ("module.a", "missing"),
    ]


def names_the_moments(module):
    """By the file's own order, beyond doubt or not at all."""
    whole = a_loop()
    names = ["0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias"]
    leaves = module.leaves_of(whole)
    for moment in ("exp_avg", "exp_avg_sq", "step"):
        paths = [path for path in leaves if path.startswith(f"optimizer_state_dict/{moment}/")]
        assert paths == [f"optimizer_state_dict/{moment}/{name}" for name in names]
    alone = module.leaves_of({"optimizer": whole["optimizer_state_dict"]})
    assert "optimizer/state/0/exp_avg" in alone
    other = module.leaves_of(whole | {"critic": {"w": torch.zeros(2)}})
    assert "optimizer_state_dict/exp_avg/0.weight" in other
    twin = {f"other.{name}": value for name, value in whole["model_state_dict"].items()}
    assert "optimizer_state_dict/state/0/exp_avg" in module.leaves_of(whole | {"critic": twin})
    turned = {name: value.t().clone() for name, value in whole["model_state_dict"].items()}
    assert "optimizer_state_dict/state/0/exp_avg" in module.leaves_of(whole | {"model_state_dict": turned})
    named = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(list(named.named_parameters())[::-1], momentum=0.9)
    named(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    leaves = module.leaves_of({"o": optimizer.state_dict()})
    assert list(leaves)[:2] == ["o/momentum_buffer/bias", "o/momentum_buffer/weight"]
    swapped = {**whole["optimizer_state_dict"]["state"]}
    swapped[1], swapped[3] = swapped[3], swapped[1]
    moved = whole | {"optimizer_state_dict": whole["optimizer_state_dict"] | {"state": swapped}}
    assert ("optimizer_state_dict/exp_avg/0.bias", "value") in found(whole, moved, module)


def aligns_moments_by_number_where_one_side_has_no_names(module):
    """A weight of another shape leaves its file's moments without names, and changes no more than that weight."""
    whole = a_loop()
    model = whole["model_state_dict"]
    reshaped = whole | {"model_state_dict": model | {"2.bias": model["2.bias"].reshape(2, 1)}}
    assert "optimizer_state_dict/state/0/exp_avg" in module.leaves_of(reshaped)
    for a, b in ((whole, reshaped), (reshaped, whole)):
        assert found(a, b, module) == [("model_state_dict/2.bias", "shape")]
    old = reshaped["optimizer_state_dict"]
    moved = {number: {**moments} for number, moments in old["state"].items()}
    moved[3]["exp_avg"] = moved[3]["exp_avg"] + 1
    other = reshaped | {"optimizer_state_dict": old | {"state": moved}}
    changes = module.differences(module.leaves_of(whole), module.leaves_of(other))
    assert [(c.path, c.other) for c in changes[1:]] == [
        ("optimizer_state_dict/exp_avg/1.bias", "optimizer_state_dict/state/3/exp_avg")
    ]
    (_, groups) = module.differences(
        module.leaves_of(whole),
        module.leaves_of(
            reshaped
            | {
                "optimizer_state_dict": old
                | {"param_groups": [old["param_groups"][0] | {"params": [1, 0, 2, 3, 4, 5]}]}
            }
        ),
    )
    assert (groups.path, groups.elements) == ("optimizer_state_dict/param_groups/0/params", 2)
    renamed = {name.replace("2.", "head."): value for name, value in model.items()}
    changes = found(whole, whole | {"model_state_dict": renamed}, module)
    assert ("optimizer_state_dict/exp_avg/2.bias", "missing") in changes  # both have names: they decide


def tells_the_drift(module):
    generator = torch.Generator().manual_seed(1)
    before = generator.get_state()
    torch.empty(1, dtype=torch.int64).random_(generator=generator)
    a, b = ({"rng": {"torch": state}} for state in (before, generator.get_state()))
    (change,) = module.differences(module.leaves_of(a), module.leaves_of(b))
    assert (change.path, change.change, change.distance) == ("rng/torch", "generator", 1)
    assert change.b.startswith("ahead by one 64-bit draw")
    assert found(a, a, module) == []
    device = {"cuda_rng_state": torch.zeros(16, dtype=torch.uint8)}
    assert module.leaves_of(device)["cuda_rng_state"].kind == "generator"
    assert module.leaves_of({"mask": torch.zeros(16, dtype=torch.uint8)})["mask"].form == "tensor"


class Effect:
    """Pickled, it asks for a call."""

    def __init__(self, function, *arguments):
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def runs_no_code(module, folder):
    marker = folder / "marker"
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
            path = folder / "evil.pt"
            with open(path, "wb") as file:
                write(file)
            error = error_of(module, path)
            assert not marker.exists()
            if name != "pathlib.Path.touch":
                assert isinstance(error, IncompatibleCheckpoint)
                asked = str(error).partition(" asks for ")[2].partition(".\n")[0]
                assert asked in (name, name.replace("subprocess", "commands"))
                assert "do not trust this file" in str(error)
                with pytest.raises(ValueError, match=f"allow: mend each of these:\n    {asked}: acts on the machine"):
                    module.read(path, allow=[asked])
                assert not marker.exists()


def says_what_to_allow(module, folder):
    path = folder / "settings.pt"
    generator = np.random.RandomState(3).get_state()
    torch.save({"w": torch.ones(1), "args": argparse.Namespace(lr=0.5), "rng": generator}, path)
    error = str(error_of(module, path))
    names = json.loads(error[error.index("allow=") + 6 : error.index("]") + 1])
    assert names == ["argparse.Namespace", "numpy._core.multiarray._reconstruct", "numpy.dtype", "numpy.ndarray"]
    assert "args" not in error
    options = " ".join(f"--allow {name}" for name in names)
    assert f"by name: {options} (in Python: allow=" in error
    with pytest.raises(IncompatibleCheckpoint, match=r"asks for argparse.Namespace\."):
        module.read(path, allow=names[1:])
    leaves = module.read(path, allow=names).leaves
    assert leaves["args/lr"].value == 0.5
    assert (leaves["rng"].form, leaves["rng"].dtype) == ("generator", "NumPy MT19937")
    error_of(module, path)  # what was allowed once is not for good


def refuses_damage(module, path, data, whole):
    """Cut anywhere, with a bit turned anywhere, the file is refused or reads as it was."""
    for cut in [*range(0, len(data), max(1, len(data) // 60)), len(data) - 1]:
        path.write_bytes(data[:cut])
        assert isinstance(error_of(module, path), CorruptCheckpoint)
    for at in range(0, len(data), max(1, len(data) // 120)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with suppress(CheckpointError):
            assert module.differences(whole, module.read(path).leaves) == []


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


def refuses_forgeries(module, folder):
    path = folder / "forged.safetensors"
    for data in FORGED.values():
        path.write_bytes(data)
        assert isinstance(error_of(module, path), CorruptCheckpoint)


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


def refuses_what_is_no_checkpoint(module, folder):
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
    }  # fmt: skip
    (folder / "whole").write_bytes(contents.pop("whole"))
    module.read(folder / "whole")
    texts = {}
    for name, data in contents.items():
        path = folder / f"{name}.safetensors"
        path.write_bytes(data)
        texts[name] = str(error_of(module, path))
    assert not any("Error" in text or "BadZipFile" in text for text in texts.values())
    told = {"text": "text.", "words": "text.", "LFS": "text that points to", "zeros": "zeros", "tar": "a tar archive"}
    told |= {"cut": "one without its end", "PK": "one without its end", "old": "one of before 1.6 that is damaged"}
    told |= {"npz": "a zip archive that torch has not", "gzip": "a file that gzip has", "empty": "an empty file"}
    told |= {"header": f"a safetensors header of {2**50:,} bytes", "pickle": "what torch refuses to unpickle"}
    for name, words in told.items():
        assert f", found {words}" in texts[name]
    assert "more than the file has room for" in texts["packed"]
    assert "4,000,000,000,000" in texts["expanded"]
    assert "a directory or device" in str(error_of(module, folder))
    assert "no such file" in str(error_of(module, folder / "none.pt"))
    if hasattr(os, "mkfifo"):
        os.mkfifo(folder / "pipe")
        assert "a directory or device" in str(error_of(module, folder / "pipe"))


def refuses_what_has_no_room(module, folder):
    path = folder / "shared.pt"
    shared = []
    for _ in range(10):
        shared = [shared, shared, "x"]
    torch.save(shared, path)
    limit, memory = module.LEAF_LIMIT, module._memory
    try:
        module.LEAF_LIMIT = 1000
        assert "at most 1,000 leaves, found more" in str(error_of(module, path))
        module.LEAF_LIMIT, module._memory = limit, lambda: 100
        assert "fits into memory" in str(error_of(module, path))
    finally:
        module.LEAF_LIMIT, module._memory = limit, memory


def tells_the_kinds(module):
    whole = a_loop() | {"best_loss": 0.5, "config": {"epochs": 3}}
    kinds = {k.path: k.kind for k in module.kinds(module.leaves_of(whole))}
    assert kinds == {
        "model_state_dict": "model", "optimizer_state_dict": "optimizer", "scheduler_state_dict": "scheduler",
        "scaler_state_dict": "scaler", "rng": "generator", "epoch": "counter", "global_step": "counter",
        "sampler": "position", "ema": "ema", "best_loss": "best", "config": "other",
    }  # fmt: skip
    texts = {k.path: k.text for k in module.kinds(module.leaves_of(whole))}
    assert texts["optimizer_state_dict"] == "exp_avg of 6, exp_avg_sq of 6, step 1, lr 0.01"
    assert texts["rng"] == "torch, NumPy PCG64"
    assert texts["scheduler_state_dict"] == "last_epoch 1, _last_lr 0.01"
    assert texts["scaler_state_dict"] == "scale 65536.0, _growth_tracker 0"
    assert texts["model_state_dict"] == "43 numbers, float32, int64"
    for key in ("i", "it", "iteration", "iters", "global_step", "n_steps"):
        assert [k.kind for k in module.kinds(module.leaves_of({key: 3}))] == ["counter"]
    assert [k.kind for k in module.kinds(module.leaves_of({"i": "index"}))] == ["other"]
    hidden = {"a": whole["scheduler_state_dict"], "b": whole["scaler_state_dict"], "c": whole["optimizer_state_dict"]}
    hidden |= {"d": whole["model_state_dict"], "e": whole["rng"]["torch"], "f": {"_num_yielded": 3}}
    expected = ["model", "optimizer", "scheduler", "scaler", "generator", "position"]  # by their form alone
    assert [k.kind for k in module.kinds(module.leaves_of(hidden))] == expected
    assert not {"best", "ema"} & {k.kind for k in module.kinds(module.leaves_of(a_loop()["optimizer_state_dict"]))}


PARTS = {
    "model_state_dict": "no model", "optimizer_state_dict": "no optimizer", "scheduler_state_dict": "no scheduler",
    "scaler_state_dict": "no loss scaler", "rng": "no random generator", "sampler": "no position", "ema": "no moving",
    "best_loss": "no best",
}  # fmt: skip


def tells_what_a_resume_would_lack(module):
    whole = a_loop() | {"best_loss": 0.5}
    whole["rng"] |= {"python": (3, (*range(1, 625), 624), None)}
    assert module.lacks(module.leaves_of(whole)) == []
    for part, text in PARTS.items():
        (line,) = module.lacks(module.leaves_of({k: v for k, v in whole.items() if k != part}))
        assert line.startswith(text)
    (line,) = module.lacks(module.leaves_of({k: v for k, v in whole.items() if k not in ("epoch", "global_step")}))
    assert line.startswith("no epoch or step")
    fresh = whole | {"optimizer_state_dict": whole["optimizer_state_dict"] | {"state": {}}}
    (line,) = module.lacks(module.leaves_of(fresh))
    assert line.startswith("no moments or counts in the optimizer")
    (line,) = module.lacks(module.leaves_of(whole | {"rng": {"torch": whole["rng"]["torch"]}}))
    assert line == "no generator of NumPy or Python; needed only if the loop or its data draw from it"


# The module itself


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
    }
    with tempfile.TemporaryDirectory() as folder:
        reads_every_leaf(foreign, Path(folder), tensors or {"w": torch.zeros(1)}, how)


@given(st.sampled_from(FLOATS), st.sampled_from((1, 7, 64, 1003)), st.integers(0, 2000), st.integers(1, 2))
def test_every_change_is_measured(dtype, size, place, steps):
    measures_every_change(foreign, dtype, size, place, steps)


@given(st.sampled_from(DTYPES), st.integers(0, 99), st.integers(0, 63), st.integers(0, 7))
def test_every_turned_bit_is_found(dtype, seed, place, bit):
    x = tensor_of(dtype, (8,), seed)
    y = x.clone()
    raw = y.view(torch.uint8)
    raw[place % raw.numel()] ^= 1 << (0 if dtype is torch.bool else bit)
    numbers = [t.to(torch.complex128) if t.is_complex() else t.double() for t in (x, y)]
    equal_nans = (
        torch.isnan(torch.view_as_real(numbers[0]) if x.is_complex() else numbers[0]).sum()
        == torch.isnan(torch.view_as_real(numbers[1]) if x.is_complex() else numbers[1]).sum()
    )
    changed = found({"w": x}, {"w": y})
    element = place % raw.numel() // (dtype.itemsize // (2 if x.is_complex() else 1))
    flat = [torch.view_as_real(t).reshape(-1) if t.is_complex() else t for t in numbers]
    both_nan = equal_nans and all(torch.isnan(t[element]) for t in flat)
    assert changed == ([] if both_nan else [("w", "value")])


def test_bits_are_judged_as_bits():
    judges_bits(foreign)


def test_each_kind_of_change_is_told():
    tells_each_kind_of_change(foreign)


def test_leaves_are_aligned_by_name():
    aligns_by_name(foreign)


def test_moments_go_by_the_name_of_their_parameter():
    names_the_moments(foreign)


def test_moments_go_by_number_where_one_side_has_no_names():
    aligns_moments_by_number_where_one_side_has_no_names(foreign)


def test_a_generator_that_differs_is_told_in_draws():
    tells_the_drift(foreign)


def test_a_file_that_would_run_code_does_not(tmp_path):
    runs_no_code(foreign, tmp_path)


def test_no_variable_of_the_environment_makes_it(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD", "1")
    runs_no_code(foreign, tmp_path)


def test_what_to_allow_is_said_and_holds_once(tmp_path):
    says_what_to_allow(foreign, tmp_path)


def test_what_cannot_be_allowed_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no_such\.thing: expected the full name") as caught:
        foreign.read(tmp_path / "x", allow=["no_such.thing", "os.system", "builtins.eval", "word"])
    assert len(str(caught.value).splitlines()) == 5
    with pytest.raises(ValueError, match="expected a list of names"):
        foreign.read(tmp_path / "x", allow="argparse.Namespace")


def test_a_module_that_is_allowed_gives_its_state(tmp_path):
    with torch.random.fork_rng():
        model = nn.Linear(2, 1)
    torch.save(model, tmp_path / "model.pt")
    error = str(error_of(foreign, tmp_path / "model.pt"))
    assert "torch.nn.modules.linear.Linear" in error
    names = json.loads(error[error.index("allow=") + 6 : error.index("]") + 1])
    for _ in range(5):  # a class in another is asked for only when that one is allowed
        try:
            leaves = foreign.read(tmp_path / "model.pt", allow=names).leaves
            break
        except IncompatibleCheckpoint as refusal:
            names += json.loads(str(refusal)[str(refusal).index("allow=") + 6 : str(refusal).index("]") + 1])
    assert list(leaves) == ["weight", "bias"]


@pytest.mark.parametrize("how", ["new", "safetensors"])
def test_damage_is_refused(tmp_path, how):
    tensors = {"a": torch.arange(50.0), "b": torch.ones(3, dtype=torch.int64)}
    path = tmp_path / "file"
    if how == "new":
        torch.save(tensors, path)
        refuses_damage(foreign, path, path.read_bytes(), foreign.leaves_of(tensors))
        return
    safetensors.save_file(tensors, path)
    data = path.read_bytes()
    header = 8 + int.from_bytes(data[:8], "little")
    for cut in [*range(0, len(data), 7), len(data) - 1]:
        path.write_bytes(data[:cut])
        error_of(foreign, path)
    for at in range(header):  # of the data the format has no checksum
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        with suppress(CheckpointError):
            foreign.read(path)


def test_forged_headers_are_refused(tmp_path):
    refuses_forgeries(foreign, tmp_path)


def test_what_is_no_checkpoint_is_refused(tmp_path):
    refuses_what_is_no_checkpoint(foreign, tmp_path)


def test_what_has_no_room_is_refused(tmp_path):
    refuses_what_has_no_room(foreign, tmp_path)


def test_elements_of_less_than_a_byte_are_compared_as_bytes(tmp_path):
    for name, data in (("a", b"\1\2"), ("b", b"\1\3")):
        (tmp_path / name).write_bytes(header_file({"w": entry("F4", (2, 2), (0, 2))}, data))
    found = foreign.diff(tmp_path / "a", tmp_path / "b")
    assert [(c.path, c.change, c.ulps) for c in found.changes] == [("w", "value", None)]
    assert foreign.read(tmp_path / "a").leaves["w"].shape == (2, 2)


def test_kinds_are_told():
    tells_the_kinds(foreign)


def test_what_a_resume_would_lack_is_told():
    tells_what_a_resume_would_lack(foreign)


def quantized(tensor):
    return torch.quantize_per_tensor(tensor, 0.1, 0, torch.qint8)


def test_sparse_and_quantized_tensors_are_compared_by_their_parts():
    dense = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    moved = torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    for layout in (lambda t: t.to_sparse(), lambda t: t.to_sparse_csr(), lambda t: t.to_sparse_csc(), quantized):
        with warnings.catch_warnings(action="ignore"):  # they are in beta state, or deprecated
            a, b = ({"w": layout(t)} for t in (dense, moved))
        assert found(a, a) == []
        assert found(a, b) == [("w/integers" if layout is quantized else "w/values", "value")]


def test_what_cannot_be_compared_is_not_called_equal(tmp_path):
    loop = []
    loop.append(loop)
    torch.save({"w": torch.ones(1), "x": loop}, tmp_path / "a.pt")
    compared = foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt")
    assert (compared.bitwise, compared.same, compared.uncompared) == (False, 1, ("x/0",))
    assert "not compared: x/0" in compared.lines()


def test_keys_that_make_one_path_are_kept_apart():
    tree = {"a/b": 1, "a": {"b": 2}, 1: 3, "1": 4}
    assert sorted(leaf.value for leaf in foreign.leaves_of(tree).values()) == [1, 2, 3, 4]
    assert found(tree, tree) == []
    assert len(found(tree, tree | {"a": {"b": 5}})) == 1


def test_lines_and_json_show_all_and_nothing_that_a_terminal_obeys(tmp_path):
    evil = "\x1b[31mred\n"
    a = a_loop() | {evil: torch.ones(1), "text": evil, "nan": math.nan}
    b = a_loop() | {evil: torch.zeros(1), "text": "x", "epoch": 2}
    torch.save(a, tmp_path / "a.pt")
    torch.save(b, tmp_path / "b.pt")
    compared = foreign.diff(tmp_path / "a.pt", tmp_path / "b.pt").json()
    lines = foreign.diff(tmp_path / "a.pt", tmp_path / "b.pt").lines()
    inspected, shown = foreign.inspect(tmp_path / "a.pt").json(), foreign.inspect(tmp_path / "a.pt").lines()
    assert all(line.isprintable() for line in [*lines, *shown])
    assert any(line.startswith("epoch ") for line in lines)
    assert lines[-1].endswith("equal")
    changed = {change["path"] for change in compared["changes"]}
    assert {"epoch", "nan", "text", evil} <= changed
    assert not compared["bitwise"]
    assert len(inspected["leaves"]) == len(foreign.read(tmp_path / "a.pt").leaves)
    assert [kind["kind"] for kind in inspected["kinds"]][:2] == ["model", "optimizer"]
    for value in (compared, inspected):
        text = json.dumps(value).replace("Infinity", '"inf"').replace("NaN", '"nan"')
        strict_json(text)
    equal = foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt").lines()
    assert len(equal) == 1
    assert equal[0].startswith("bitwise: all ")


def test_a_safetensors_file_is_compared_with_one_of_torch(tmp_path):
    model = a_loop()["model_state_dict"]
    safetensors.save_file({f"module.{name}": value for name, value in model.items()}, tmp_path / "a.pt", {"by": "me"})
    torch.save({"model": model}, tmp_path / "b.safetensors")
    compared = foreign.diff(tmp_path / "a.pt", tmp_path / "b.safetensors")
    assert compared.bitwise
    assert compared.same == len(model)
    assert compared.notes == ("the metadata differ: {'by': 'me'} and {}",)
    half = {name: value.half() if value.is_floating_point() else value for name, value in model.items()}
    safetensors.save_file(half, tmp_path / "half")
    assert {c.change for c in foreign.diff(tmp_path / "a.pt", tmp_path / "half").changes} == {"dtype"}


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
    assert isinstance(error_of(foreign, path), CorruptCheckpoint)


def test_the_process_is_as_before(tmp_path):
    torch.save(a_loop(), tmp_path / "a.pt")
    before = torch.get_rng_state(), list(warnings.filters), set(torch.serialization.get_safe_globals())
    foreign.diff(tmp_path / "a.pt", tmp_path / "a.pt", allow=["argparse.Namespace"])
    after = torch.get_rng_state(), list(warnings.filters), set(torch.serialization.get_safe_globals())
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


MUTANTS = [
    ("weights_only=True", "weights_only=False", runs_no_code),
    ("if _acts(name):\n            faults", "if False:\n            faults", runs_no_code),
    ("names |= _globals(file)", "pass", runs_no_code),
    ('if "." in name else f"builtins.{name}"', "", runs_no_code),
    ("names |= set(torch.serialization.get_unsafe", "set(torch.serialization.get_unsafe", says_what_to_allow),
    ("if thing is np.dtype:", "if False:", says_what_to_allow),
    (
        "torch.serialization.safe_globals(allowed):\n            warnings",
        "torch.serialization.safe_globals([]):\n            warnings",
        says_what_to_allow,
    ),
    ("if damaged is not None:", "if False:", refuses_damage),
    ("if sum(record.file_size", "if False and sum(record.file_size", refuses_what_is_no_checkpoint),
    ("if not stat.S_ISREG(os.stat(path).st_mode):", "if False:", refuses_what_is_no_checkpoint),
    ("if size == 0:", "if False:", refuses_what_is_no_checkpoint),
    ("if size > _memory():", "if False:", refuses_what_has_no_room),
    ("if len(self.leaves) >= LEAF_LIMIT:", "if len(self.leaves) >= 99 * LEAF_LIMIT:", refuses_what_has_no_room),
    ("if leaf.size > self.room:", "if False:", refuses_what_is_no_checkpoint),
    ("_check(begin == end,", "_check(True,", refuses_forgeries),
    ("_check(end == size,", "_check(True,", refuses_forgeries),
    ("_check(total == 8 *", "_check(True or total == 8 *", refuses_forgeries),
    ("type(item) is int and item >= 0", "item >= 0", refuses_forgeries),
    ("if len(dict(pairs)) != len(pairs):", "if False:", refuses_forgeries),
    ('if code == "BOOL" and', "if False and", refuses_forgeries),
    ("_check(_is_metadata(metadata),", "_check(True,", refuses_forgeries),
    ("except (ValueError, RecursionError) as error:", "except ValueError as error:", refuses_forgeries),
    ("except RuntimeError as error:", "except KeyError as error:", refuses_forgeries),
    ("np.iinfo(bits.dtype).max, 0)", "0, 0)", judges_bits),
    ("apart &= ~(", "apart |= ~(", judges_bits),
    ("range(0, x.numel(), CHUNK)", "range(0, CHUNK, CHUNK)", judges_bits),
    ("count += found[4]", "count = found[4]", judges_bits),
    ("float(abs(int(a) - int(b)))", "float(distance[last])", judges_bits),
    ("(torch.view_as_real(z).reshape(-1) for z in (x, y))", "(z.real for z in (x, y))", judges_bits),
    ("if a.shape != b.shape:\n        return", "if False:\n        return", tells_each_kind_of_change),
    ("if a.dtype != b.dtype:\n        return", "if False:\n        return", tells_each_kind_of_change),
    ("if type(a) is not type(b):", "if False:", tells_each_kind_of_change),
    ('name.replace("_orig_mod.", "")', "name", aligns_by_name),
    ("if bare and all(name.startswith(p)", "if bare and any(name.startswith(p)", aligns_by_name),
    ("len(here) == len(there) == 1", "False", aligns_by_name),
    ("if path not in pairs and (part, a[path].bare) in by_bare:", "if False:", aligns_by_name),
    (
        "return found[0] if found and all(names == found[0] for names in found) else None",
        "return found[0] if found else None",
        names_the_moments,
    ),
    ("value.shape == model[names[number]].shape", "True", names_the_moments),
    ('if all(isinstance(group.get("param_names"), list) for group in groups):', "if False:", names_the_moments),
    ("a, b = _alike(a, b)", "pass", aligns_moments_by_number_where_one_side_has_no_names),
    ("    named ^= {", "    named |= {", aligns_moments_by_number_where_one_side_has_no_names),
    ("text, numbered=numbered)", "text)", aligns_moments_by_number_where_one_side_has_no_names),
    ('if key == "i" and type(node) is int:', "if False:", tells_the_kinds),
    ('if key == "i" and type(node) is int:', 'if key == "i":', tells_the_kinds),
    ("steps iteration iterations iter iters it ", "steps iteration iter it ", tells_the_kinds),
    ("if _is_text(start) and not _is_pickle(file):", "if False:", refuses_what_is_no_checkpoint),
    ("if found := _known_form(file, start):", "if found := False:", refuses_what_is_no_checkpoint),
    ('if whole else "one without', 'if True else "one without', refuses_what_is_no_checkpoint),
    ("if start.startswith(OLD) else", "if False else", refuses_what_is_no_checkpoint),
    ("{options} (in Python: ", "(in Python: ", says_what_to_allow),
    ('if engine and (engine != "device" or rng):', "if engine:", tells_the_drift),
    ('if a.form == "generator":', "if False:", tells_the_drift),
    ("if SCALER_KEYS <= node.keys():", "if False:", tells_the_kinds),
    ('if "last_epoch" in node and', "if False and", tells_the_kinds),
    ("if LOADER_KEYS &", "if not LOADER_KEYS &", tells_the_kinds),
    ("form = words or place.kind or", "form =", tells_the_kinds),
    ('own = leaf.form == "generator" and', "own = False and", tells_the_kinds),
    ("if kind not in by_kind]", "if kind in by_kind]", tells_what_a_resume_would_lack),
    ('if "optimizer" in by_kind and all(', 'if "optimizer" in by_kind and not all(', tells_what_a_resume_would_lack),
    ("if not any(e.startswith(name) for e in engines)", "if False", tells_what_a_resume_would_lack),
]


LAWS = list(dict.fromkeys(law for _, _, law in MUTANTS))


def holds(law, module, folder):
    """Hold a law to a module."""
    if law is refuses_damage:
        tensors = {"a": torch.arange(50.0)}
        torch.save(tensors, folder / "file")
        law(module, folder / "file", (folder / "file").read_bytes(), foreign.leaves_of(tensors))
    else:
        law(module, *[folder] * ("folder" in law.__code__.co_varnames))


@pytest.mark.parametrize("law", LAWS)
def test_a_copy_without_a_fault_holds_every_law(tmp_path, law):
    holds(law, with_fault(foreign, "CHUNK = 1 << 18", "CHUNK = 1 << 18 "), tmp_path)


@pytest.mark.parametrize(("old", "new", "law"), MUTANTS, ids=[f"{i}-{m[2].__name__}" for i, m in enumerate(MUTANTS)])
def test_every_law_kills_its_mutants(tmp_path, old, new, law):
    mutant = with_fault(foreign, old, new)
    with pytest.raises((Exception, pytest.fail.Exception)):
        holds(law, mutant, tmp_path)
