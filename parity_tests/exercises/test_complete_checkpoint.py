"""The exercise `complete_checkpoint`: right ones pass; the law meant for it catches each wrong one, with a reason."""

from pathlib import Path

import pytest

from numpy_ref.exercises import exercise_named
from numpy_ref.exercises.grader import grade_against
from numpy_ref.exercises.runner import answer
from parity_tests.exercises.solutions import (
    FRAMEWORKS,
    Mutant,
    check_mutant,
    check_stub,
    graded,
    mutants_of,
    mutated,
    reference,
    told,
)
from parity_tests.implementations import NO_TORCH

NUMPY, TORCH = ("numpy",), ("torch",)
CARRIED, RESUMED = "every-state-is-carried", "a-resumed-run-is-the-run-that-never-stopped"
SEED, UNCHANGED = "the-seed-of-the-fresh-run-does-not-matter", "saving-and-loading-change-nothing"
ONE, CODE = "one-file-holds-it-all", "loading-runs-no-code-from-the-file"
INTERRUPTED, ALLOWED = "an-interrupted-save-leaves-the-old-file", "allowances-are-neither-narrow-nor-wide"

END, SAVE = "    return run\n", "    atomic_write(path, buffer.getvalue())\n"
SAVEZ = '    np.savez(buffer, text=np.array(text), order=run["order"], **arrays)\n'
PUT_BACK = "        run[key] = plain[key]\n"


def lost(entry: str, name: str) -> Mutant:
    """One state that is neither saved nor loaded."""
    return Mutant(CARRIED, f"{name} is that of the fresh run", ((entry, entry.replace(f'"{name}"', '"t"')),))


def after_load(law: str, reason: str, line: str, frameworks: tuple[str, ...] = ("numpy", "torch")) -> Mutant:
    """A line more at the end of the load."""
    return Mutant(law, reason, ((END, f"    {line}\n{END}"),), frameworks)


def allowed(reason: str, old: str, new: str) -> Mutant:
    return Mutant(ALLOWED, reason, ((old, new),))


MUTANTS = {
    "rate lost": lost('"t", "rate",', "rate"),
    "steps until the drop lost": lost('"until_drop", "scale",', "until_drop"),
    "loss scale lost": lost('"scale", "good_steps",', "scale"),
    "good steps lost": lost('"good_steps", "epoch",', "good_steps"),
    "epoch lost": lost('"epoch", "position")', "epoch"),
    "position lost": lost('"position")\n', "position"),
    "t lost": Mutant(CARRIED, "t is that of the fresh run", (('("t", "rate"', '("rate"'),)),
    "m lost": after_load(CARRIED, "m is that of the fresh run", 'run["m"] = fresh["m"]'),
    "v lost": after_load(CARRIED, "v is that of the fresh run", 'run["v"] = fresh["v"]'),
    "order lost": after_load(CARRIED, "order is that of the fresh run", 'run["order"] = fresh["order"]'),
    "order's generator lost": after_load(
        CARRIED, "order_generator is that of the fresh run", 'run["order_generator"] = fresh["order_generator"]'
    ),
    "dropout's generator lost": after_load(
        CARRIED, "after the resume, in params", 'run["dropout_generator"] = fresh["dropout_generator"]'
    ),
    "dropout's generator seeded": after_load(
        CARRIED,
        "a generator is its state",
        'run["dropout_generator"] = new_run(1)["dropout_generator"]',
    ),
    "the bias's moments lost": after_load(
        CARRIED, "v/bias is that of the fresh run: not saved", 'run["v"]["bias"] = run["v"]["bias"] * 0'
    ),
    "the bias's moments are not there": after_load(CARRIED, "found ['weight']", 'run["v"].pop("bias")'),
    "arrays in float16": Mutant(
        CARRIED,
        "params/weight and params/bias were rounded on the way: kept in float16",
        (
            (
                '{name: file[f"{key}/{name}"] for',
                '{name: file[f"{key}/{name}"].astype(np.float16).astype(np.float32) for',
            ),
        ),
        NUMPY,
    ),
    "one moment in float16": after_load(
        CARRIED,
        "m/weight was rounded on the way: kept in float16",
        'run["m"]["weight"] = run["m"]["weight"].astype(np.float16).astype(np.float32)',
    ),
    "weights in bfloat16": after_load(
        CARRIED,
        "params/bias was rounded on the way: kept in bfloat16",
        'run["params"]["bias"] = run["params"]["bias"].to(torch.bfloat16).to(torch.float32)',
        TORCH,
    ),
    "rate in float32": after_load(
        CARRIED,
        "rate was rounded on the way: kept in float32",
        'run["rate"] = run["rate"] + np.zeros(1).astype(np.float32)[0].item() and float(np.float32(run["rate"]))',
        NUMPY,
    ),
    "rate in few digits": after_load(
        CARRIED, "rate was rounded on the way: written with", 'run["rate"] = float(f"{run[\'rate\']:g}")'
    ),
    "weights in few decimals": after_load(
        CARRIED,
        "params/bias was rounded on the way: written with few decimals",
        'run["params"]["bias"] = np.round(run["params"]["bias"], decimals=4)',
    ),
    "weights in float64": Mutant(
        CARRIED,
        "expected float32, found float64",
        (('{name: file[f"{key}/{name}"] for', '{name: file[f"{key}/{name}"].astype(float) for'),),
        NUMPY,
    ),
    "numbers as arrays": Mutant(
        CARRIED,
        "t must be int again, as it was; it came back as",
        ((PUT_BACK, "        run[key] = np.array(plain[key])\n"),),
        NUMPY,
    ),
    "t in float32": after_load(
        CARRIED,
        "t was rounded on the way: kept in float32",
        'run["t"] = int(np.zeros(1).astype(np.float32)[0] + run["t"])',
    ),
    "a key not loaded": after_load(CARRIED, "epoch missing or besides", 'run.pop("epoch")'),
    "nothing returned": Mutant(
        CARRIED, "must return a run, which is a dict; found None", ((END, "    return None\n"),)
    ),
    "the epoch begins again": after_load(
        RESUMED, "position is that of the fresh run: not saved", 'run["position"] = 0'
    ),
    "position computed from t": after_load(
        RESUMED, "position differs right after the load: step", 'run["position"] = (run["t"] - 1) * BATCH % SAMPLES'
    ),
    "t one too large": after_load(RESUMED, "t differs right after the load: step", 'run["t"] += 1'),
    "the schedule begins again": after_load(
        RESUMED, "until_drop differs right after the load: step", 'run["until_drop"] = HALVED_EVERY'
    ),
    "the loss scale begins again": after_load(
        RESUMED, "scale differs right after the load: step", 'run["scale"] = 2.0**14'
    ),
    "a new order drawn": after_load(
        SEED, "order came from the fresh run", 'run["order"] = new_run(0)["order"] if fresh["t"] > 1 else run["order"]'
    ),
    "the fresh run's dropout": after_load(
        SEED, "dropout_generator came from the fresh run", 'run["dropout_generator"] = fresh["dropout_generator"]'
    ),
    "the save draws a seed": Mutant(
        UNCHANGED,
        "the save changed the run",
        ((SAVE, SAVE + '    run["dropout_generator"].random()\n'),),
        NUMPY,
    ),
    "the save draws a seed, in torch": Mutant(
        UNCHANGED,
        "the save changed the run",
        ((SAVE, SAVE + '    np.rand(1, generator=run["dropout_generator"])\n'),),
        TORCH,
    ),
    "the save begins the epoch again": Mutant(
        UNCHANGED, "writes into the run", ((SAVE, SAVE + '    run["position"] = 0\n'),)
    ),
    "what was loaded is kept": Mutant(
        UNCHANGED,
        "the run was kept in memory",
        ((END, "    return _LOADED.setdefault(str(path), run)\n"), ("\nRun = ", "\n_LOADED: dict = {}\nRun = ")),
    ),
    "the name that savez makes": Mutant(
        ONE,
        "a save must make the one file run.ckpt; found run.ckpt.npz",
        ((SAVEZ, SAVEZ.replace("buffer", "path")), (SAVE, "")),
        NUMPY,
    ),
    "a name that fits the format": Mutant(ONE, "found run.ckpt.pt", ((SAVE, SAVE.replace("path", 'f"{path}.pt"')),)),
    "a second file": Mutant(
        ONE,
        "or part of the run went into another file",
        ((SAVE, SAVE + '    atomic_write(f"{path}.seed", b"1")\n'),),
    ),
    "the order in a place of its own": Mutant(
        ONE,
        "some of the run is kept outside the file",
        (
            (SAVE, SAVE + '    _KEPT[str(path)] = list(run["order"])\n'),
            (END, '    if str(path) not in _KEPT:\n        run["order"] = fresh["order"]\n' + END),
            ("\nRun = ", "\n_KEPT: dict = {}\nRun = "),
        ),
    ),
    "the order in memory": Mutant(
        ONE,
        "some of the run is kept outside the file",
        (
            (SAVE, SAVE + '    _KEPT["order"] = run["order"]\n'),
            (END, '    run["order"] = _KEPT.get("order", fresh["order"])\n' + END),
            ("\nRun = ", "\n_KEPT: dict = {}\nRun = "),
        ),
    ),
    "unpickled": Mutant(
        CODE,
        "load_everything unpickles the file; whoever can write the file can run any code",
        (
            (SAVEZ, SAVEZ.replace("order=", "kept=np.array([{}], dtype=object), order=")),
            ("allow_pickle=False", "allow_pickle=True"),
            ('        run["order"] = file', '        file["kept"]\n        run["order"] = file'),
        ),
        NUMPY,
    ),
    "unpickled where the file is another": Mutant(
        CODE,
        "runs the code in a file that holds a pickle in its place",
        (("allow_pickle=False", "allow_pickle=True"),),
        NUMPY,
    ),
    "an array unpickled where the entry is another": Mutant(
        CODE,
        "runs the code in a file that holds an array of objects for",
        (
            (
                "np.load(path, allow_pickle=False)",
                "np.lib.npyio.NpzFile(path, allow_pickle=True)",
            ),
        ),
        NUMPY,
    ),
    "text evaluated": Mutant(
        CODE,
        "load_everything runs text of the file as code",
        (('json.loads(file["text"].item())', 'eval(file["text"].item())'),),
        NUMPY,
    ),
    "text evaluated, in bytes": Mutant(
        CODE,
        "it uses eval or the like",
        (
            ("np.array(text)", "np.array(text.encode())"),
            ('json.loads(file["text"].item())', 'eval(file["text"].item())'),
        ),
        NUMPY,
    ),
    "text evaluated, in torch": Mutant(
        CODE,
        "load_everything runs text of the file as code",
        (
            ("{**plain, ", '{"text": repr(plain), '),
            ('    run["order"] = saved', '    saved.update(eval(saved["text"]))\n    run["order"] = saved'),
        ),
        TORCH,
    ),
    "unpickled by a name of its own": Mutant(
        CODE,
        "runs the code in a file that holds a pickle",
        (
            ("import secrets\n", "import secrets\nfrom pickle import dumps, loads\n"),
            (SAVE, "    atomic_write(path, dumps(buffer.getvalue()))\n"),
            ("np.load(path, ", "np.load(io.BytesIO(loads(np.fromfile(path, np.uint8).tobytes())), "),
        ),
        NUMPY,
    ),
    "unpickled, in torch": Mutant(
        CODE, "load_everything unpickles", (("weights_only=True", "weights_only=False"),), TORCH
    ),
    "written under the final name": Mutant(
        INTERRUPTED,
        "it was written under its final name",
        ((SAVE, '    with open(path, "wb") as file:\n        file.write(buffer.getvalue())\n'),),
    ),
    "the old file is removed first": Mutant(
        INTERRUPTED,
        "the disk was full after 0 bytes, and the old file is gone",
        ((SAVE, f"    if os.path.exists(path):\n        os.unlink(path)\n{SAVE}"),),
    ),
    "the error is swallowed": Mutant(
        INTERRUPTED,
        "returned as if all were well",
        ((SAVE, f"    try:\n    {SAVE}    except OSError:\n        pass\n"),),
    ),
    "the temporary is left": Mutant(
        INTERRUPTED, "is left beside the file", (("        os.unlink(temporary)\n        raise\n", "        raise\n"),)
    ),
    "resumed within 1e-12": allowed("allowance('resumed') is too wide", '"resumed": 0.0', '"resumed": 1e-12'),
    "rounded within a unit": allowed(
        "takes a weight whose last digits were cut off", '"rounded": unit["float16"]', '"rounded": 2.0**-10'
    ),
    "rounded within a little more": allowed(
        "takes a weight whose last digits were cut off", '"rounded": unit["float16"]', '"rounded": 5e-4'
    ),
    "rounded as in float32": allowed(
        "allowance('rounded') is too narrow", '"rounded": unit["float16"]', '"rounded": unit["float32"]'
    ),
    "rounded within a percent": allowed(
        "allowance('rounded') is too wide", '"rounded": unit["float16"]', '"rounded": 0.01'
    ),
    "reordered within the default of many libraries": allowed(
        "takes a sum of eight from which a small number is missing", "2 * (8 - 1) * unit", "1e-5 + 0 * unit"
    ),
    "reordered exactly": allowed("allowance('reordered') is too narrow: 0 refuses", "2 * (8 - 1) *", "0 *"),
    "reordered within one rounding": allowed("allowance('reordered') is too narrow", "2 * (8 - 1) *", "1 *"),
    "reordered within a tree's roundings": allowed(
        "refuses a sum of one large number and seven", "2 * (8 - 1) *", "6 *"
    ),
    "reordered within one sum's roundings": allowed(
        "refuses a sum of one large number and seven tiny ones", "2 * (8 - 1) *", "(8 - 1) *"
    ),
    "reordered, eight additions a sum": allowed("is too wide: 9.54e-07 takes a sum", "2 * (8 - 1) *", "2 * 8 *"),
    "not a number": allowed("must be a number from 0 on", '"resumed": 0.0', '"resumed": float("nan")'),
}


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)


def broken(tmp_path: Path, text: str, framework: str) -> list[object]:
    """What each law says that does not hold, asked in this process."""
    path = tmp_path / "complete_checkpoint.py"
    path.write_text(text)
    laws = exercise_named("complete_checkpoint").laws
    answers = [answer(str(path), "complete_checkpoint", framework, law.name) for law in laws]
    return [value for value in answers if value != {"holds": True}]


def test_the_reference_keeps_every_law(tmp_path: Path) -> None:
    report = graded(tmp_path, "complete_checkpoint", reference("complete_checkpoint", "numpy"), in_process=False)
    assert told(report) == []
    assert len(report.outcomes) == len(exercise_named("complete_checkpoint").laws)


@NO_TORCH
def test_the_reference_in_torch_keeps_every_law(tmp_path: Path) -> None:
    assert broken(tmp_path, reference("complete_checkpoint", "torch"), "torch") == []


@pytest.mark.parametrize(("mutant", "framework"), mutants_of(MUTANTS))
def test_a_wrong_solution_is_caught_by_the_law_meant_for_it_with_the_reason(
    tmp_path: Path, mutant: Mutant, framework: str
) -> None:
    check_mutant(tmp_path, "complete_checkpoint", mutant, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_empty_stub_fails_with_one_clear_line(tmp_path: Path, framework: str) -> None:
    check_stub(tmp_path, "complete_checkpoint", framework)


def test_every_law_has_a_mutant_that_it_kills() -> None:
    assert {mutant.law for mutant in MUTANTS.values()} == {
        law.name for law in exercise_named("complete_checkpoint").laws
    }


ATOMIC = """
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
"""
AS_TEXT = """
import numpy as np
def plain(value):
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, np.ndarray):
        return value.tolist()
    return value.bit_generator.state if isinstance(value, np.random.Generator) else value
def save_everything(path, run):
    atomic(path, json.dumps(plain(run)).encode())
def put(value, saved):
    if isinstance(value, dict):
        return {key: put(child, saved[key]) for key, child in value.items()}
    if isinstance(value, np.ndarray):
        value[...] = saved
        return value
    if isinstance(value, np.random.Generator):
        value.bit_generator.state = saved
        return value
    return saved
def load_everything(path, fresh):
    with open(path) as file:
        return put(fresh, json.load(file))
"""
AS_ARRAYS = """
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
"""
IN_A_ZIP = """
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
"""
IN_TORCH = """
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
"""


@pytest.mark.parametrize("text", [AS_TEXT, AS_ARRAYS, IN_A_ZIP], ids=["as text", "as arrays", "in a zip"])
def test_differently_written_right_solutions_pass(tmp_path: Path, text: str) -> None:
    assert broken(tmp_path, ATOMIC + text, "numpy") == []


@NO_TORCH
def test_a_differently_written_right_solution_in_torch_passes(tmp_path: Path) -> None:
    assert broken(tmp_path, ATOMIC + IN_TORCH, "torch") == []


@NO_TORCH
def test_the_references_agree_with_each_other_and_a_mutant_with_neither(tmp_path: Path) -> None:
    paths = {}
    for framework in ("numpy", "torch"):
        paths[framework] = tmp_path / f"{framework}_complete_checkpoint.py"
        paths[framework].write_text(reference("complete_checkpoint", framework))
    wrong = tmp_path / "wrong.py"
    wrong.write_text(mutated("complete_checkpoint", "numpy", MUTANTS["the bias's moments lost"].changes))
    ours, theirs, exercise = (paths["numpy"], "numpy"), (paths["torch"], "torch"), exercise_named("complete_checkpoint")
    assert grade_against(ours, theirs, exercise).holds
    verdict = grade_against(ours, (wrong, "numpy"), exercise)
    assert (verdict.holds, verdict.leaf) == (False, "v/bias")
