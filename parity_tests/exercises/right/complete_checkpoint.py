"""A whole checkpoint, written differently."""

RIGHT = {
    "as arrays": (
        """
import io, json, os, tempfile
def atomic(path, data):
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(path)), delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
def allowance(relation):
    return dict(resumed=0, rounded=2**-11 / (1 + 2**-11), reordered=8 * 2**-24)[relation]
import numpy as np
KINDS = {"params": 2, "m": 2, "v": 2}
def halves(number):
    return [number >> 64, number & (2**64 - 1)]
def save_everything(path, run):
    entries = {}
    for key, value in run.items():
        if key in KINDS:
            entries |= {f"{key}.{name}": array for name, array in value.items()}
        elif key.endswith("generator"):
            s = value.bit_generator.state
            numbers = [*halves(s["state"]["state"]), *halves(s["state"]["inc"]), s["has_uint32"], s["uinteger"]]
            entries[key] = np.array(numbers, dtype=np.uint64)
        else:
            entries[key] = np.asarray(value)
    file = io.BytesIO()
    np.savez_compressed(file, **entries)
    atomic(path, file.getbuffer())
def load_everything(path, fresh):
    with open(path, "rb") as file:
        found = dict(np.load(io.BytesIO(file.read())))
    run = {}
    for key, array in found.items():
        first, _, name = key.partition(".")
        if name:
            run.setdefault(first, {})[name] = array
        elif key.endswith("generator"):
            a, b, c, d, e, f = map(int, array)
            bits = np.random.PCG64(0)
            bits.state = {"bit_generator": "PCG64", "state": {"state": a << 64 | b, "inc": c << 64 | d},
                          "has_uint32": e, "uinteger": f}
            run[key] = np.random.Generator(bits)
        else:
            run[key] = array if array.ndim else array.item()
    return run
""",
        ("numpy",),
    ),
    "in a zip": (
        """
import io, json, os, tempfile
def atomic(path, data):
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(path)), delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
def allowance(relation):
    return dict(resumed=0, rounded=2**-11 / (1 + 2**-11), reordered=8 * 2**-24)[relation]
import ast, zipfile
import numpy as np
def save_everything(path, run):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        rest = {}
        for key, value in [*run.items()] + [(f"{k}-{n}", a) for k in ("params", "m", "v") for n, a in run[k].items()]:
            if isinstance(value, np.ndarray):
                with file.open(key, "w") as entry:
                    np.lib.format.write_array(entry, value, allow_pickle=False)
            elif key not in ("params", "m", "v"):
                rest[key] = getattr(value, "bit_generator", value)
        rest = {k: v if isinstance(v, (int, float)) else v.state for k, v in rest.items()}
        file.writestr("rest", repr(rest))
    atomic(path, out.getvalue())
def load_everything(path, fresh):
    with zipfile.ZipFile(path) as file:
        def array(key):
            with file.open(key) as entry:
                return np.lib.format.read_array(entry, allow_pickle=False)
        run = {k: {n: array(f"{k}-{n}") for n in ("bias", "weight")} for k in ("v", "m", "params")}
        run["order"] = array("order")
        for key, value in ast.literal_eval(file.read("rest").decode()).items():
            if isinstance(value, dict):
                fresh[key].bit_generator.state = value
                value = fresh[key]
            run[key] = value
    return run
""",
        ("numpy",),
    ),
    "in torch": (
        """
import io, json, os, tempfile
def atomic(path, data):
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(os.path.abspath(path)), delete=False) as file:
        try:
            file.write(data)
            file.flush()
            os.fsync(file)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
def allowance(relation):
    return dict(resumed=0, rounded=2**-11 / (1 + 2**-11), reordered=8 * 2**-24)[relation]
import torch
def save_everything(path, run):
    file = io.BytesIO()
    plain = {key: value.get_state() if isinstance(value, torch.Generator) else value for key, value in run.items()}
    torch.save({"format": 1, "run": plain}, file)
    atomic(path, file.getvalue())
def load_everything(path, fresh):
    with open(path, "rb") as file:
        saved = torch.load(file, weights_only=True, map_location="cpu")["run"]
    for key, value in saved.items():
        if isinstance(fresh[key], torch.Generator):
            fresh[key].set_state(value)
        elif isinstance(value, dict):
            for name, tensor in value.items():
                fresh[key][name].copy_(tensor)
        else:
            fresh[key] = value
    return fresh
""",
        ("torch",),
    ),
}
