"""Wrong versions of saving and loading all of a run."""

import io
import json
import os
from pathlib import Path
from pickle import dumps, loads  # noqa: TID251 - what the law forbids
from types import SimpleNamespace
from typing import Any

import numpy as np

from numpy_ref.exercises.exercise import Arrays
from numpy_ref.exercises.mistakes import Replacements, Table

NOT_LOADED = (
    "rate",
    "until_drop",
    "scale",
    "good_steps",
    "epoch",
    "position",
    "t",
    "m",
    "v",
    "order",
    "order_generator",
)
ELSEWHERE = "some of the run is kept outside the file"
EVALUATED = "load_everything runs text of the file as code"
PERCENT = "allowance('rounded') is too wide"
CUT = "takes a weight whose last digits were cut off"
REFUSES = "refuses a sum of one large number and seven tiny ones"


class Instead:
    """A module in which some names are others."""

    def __init__(self, module: Any, **names: Any) -> None:
        self._module = module
        vars(self).update(names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def mistakes(right: Any, arrays: Arrays) -> Table:
    """See `numpy_ref.exercises.mistakes`."""
    cast = arrays.cast

    def loaded(change: Any) -> Replacements:
        def load_everything(path: Any, fresh: Any) -> Any:
            run = right.load_everything(path, fresh)
            change(run, fresh)
            return run

        return {"load_everything": load_everything}

    def now(**keys: Any) -> Replacements:
        return loaded(lambda run, fresh: run.update({key: by(run, fresh) for key, by in keys.items()}))

    def not_loaded(key: str) -> Replacements:
        return loaded(lambda run, fresh: run.update({key: fresh[key]}))

    def replaced(key: str, name: str, change: Any) -> Replacements:
        return loaded(lambda run, fresh: run[key].update({name: change(run[key][name])}))

    def every(change: Any) -> Replacements:
        return now(params=lambda run, fresh: {name: change(array) for name, array in run["params"].items()})

    def in_half(array: Any) -> Any:
        return cast(cast(array, "float16"), "float32")

    def saved(also: Any) -> Replacements:
        def save_everything(path: Any, run: Any) -> None:
            right.save_everything(path, run)
            also(path, run)

        return {"save_everything": save_everything}

    def drawn(path: Any, run: Any) -> None:
        generator = run["dropout_generator"]
        if arrays.framework == "numpy":
            generator.random()
        else:
            arrays.xp.rand(1, generator=generator)

    def kept(path: Any, fresh: Any) -> Any:
        return memory.setdefault(str(path), right.load_everything(path, fresh))

    def with_order(key: Any) -> Replacements:
        return saved(lambda path, run: memory.update({key(path): run["order"]})) | loaded_with(key)

    def loaded_with(key: Any) -> Replacements:
        def load_everything(path: Any, fresh: Any) -> Any:
            order = memory.get(key(path), fresh["order"])
            return right.load_everything(path, fresh) | {"order": order}

        return {"load_everything": load_everything}

    def written(path: Any, data: bytes) -> None:
        Path(path).write_bytes(data)

    def removed_first(path: Any, data: bytes) -> None:
        Path(path).unlink(missing_ok=True)
        right.atomic_write(path, data)

    def swallowed(path: Any, data: bytes) -> None:
        try:
            right.atomic_write(path, data)
        except OSError:
            return

    def left_behind(path: Any, data: bytes) -> None:
        written(f"{path}.tmp", data)
        os.replace(f"{path}.tmp", path)

    def allowed(**others: float) -> Replacements:
        return {"allowance": lambda relation: others.get(relation, right.allowance(relation))}

    memory: dict[str, Any] = {}
    table: Table = {
        "every-state-is-carried": [
            *[(f"{key} is that of the fresh run", not_loaded(key)) for key in NOT_LOADED],
            ("the dropout's generator is lost", not_loaded("dropout_generator"), "after the resume, in params"),
            ("a generator is its state", now(dropout_generator=lambda *_: right.new_run(1)["dropout_generator"])),
            ("v/bias is that of the fresh run: not saved", replaced("v", "bias", lambda array: array * 0)),
            ("found ['weight']", loaded(lambda run, fresh: run["v"].pop("bias"))),
            ("params/weight and params/bias were rounded on the way: kept in float16", every(in_half)),
            ("m/weight was rounded on the way: kept in float16", replaced("m", "weight", in_half)),
            (
                "rate was rounded on the way: kept in float32",
                now(rate=lambda run, fresh: float(np.float32(run["rate"]))),
            ),
            ("rate was rounded on the way: written with", now(rate=lambda run, fresh: float(f"{run['rate']:g}"))),
            (
                "params/bias was rounded on the way: written with few decimals",
                replaced("params", "bias", lambda array: arrays.xp.round(array, decimals=4)),
            ),
            ("expected float32, found float64", every(lambda array: cast(array, "float64"))),
            ("t must be int again, as it was; it came back as", now(t=lambda run, fresh: arrays.xp.asarray(run["t"]))),
            ("t was rounded on the way: kept in float32", now(t=lambda run, fresh: int(np.float32(run["t"])))),
            ("epoch missing or besides", loaded(lambda run, fresh: run.pop("epoch"))),
            (
                "must return a run, which is a dict; found None",
                {"load_everything": lambda path, fresh: None},
            ),
        ],
        "a-resumed-run-is-the-run-that-never-stopped": [
            ("position is that of the fresh run: not saved", now(position=lambda run, fresh: 0)),
            (
                "position differs right after the load: step",
                now(position=lambda run, fresh: (run["t"] - 1) * right.BATCH % right.SAMPLES),
            ),
            ("t differs right after the load: step", now(t=lambda run, fresh: run["t"] + 1)),
            (
                "until_drop differs right after the load: step",
                now(until_drop=lambda run, fresh: right.HALVED_EVERY),
            ),
            ("scale differs right after the load: step", now(scale=lambda run, fresh: 2.0**14)),
        ],
        "the-seed-of-the-fresh-run-does-not-matter": [
            (
                "order came from the fresh run",
                now(order=lambda run, fresh: right.new_run(0)["order"] if fresh["t"] > 1 else run["order"]),
            ),
            ("dropout_generator came from the fresh run", not_loaded("dropout_generator")),
        ],
        "saving-and-loading-change-nothing": [
            ("the save changed the run", saved(drawn)),
            ("writes into the run", saved(lambda path, run: run.update(position=0))),
            ("the run was kept in memory", {"load_everything": kept}),
        ],
        "one-file-holds-it-all": [
            (
                "a save must make the one file run.ckpt; found run.ckpt.npz",
                {"save_everything": lambda path, run: right.save_everything(f"{path}.npz", run)},
            ),
            ("or part of the run went into another file", saved(lambda path, run: written(f"{path}.seed", b"1"))),
            ("the order in a place of its own", with_order(str), ELSEWHERE),
            ("the order in memory", with_order(lambda path: ""), ELSEWHERE),
        ],
        "loading-runs-no-code-from-the-file": by_numpy(right) if arrays.framework == "numpy" else by_torch(right),
        "an-interrupted-save-leaves-the-old-file": [
            ("it was written under its final name", {"atomic_write": written}),
            ("the disk was full after 0 bytes, and the old file is gone", {"atomic_write": removed_first}),
            ("returned as if all were well", {"atomic_write": swallowed}),
            ("is left beside the file", {"atomic_write": left_behind}),
        ],
        "allowances-are-neither-narrow-nor-wide": [
            ("allowance('resumed') is too wide", allowed(resumed=1e-12)),
            ("rounded within a unit", allowed(rounded=2.0**-10), CUT),
            ("rounded within a little more", allowed(rounded=5e-4), CUT),
            ("allowance('rounded') is too narrow", allowed(rounded=2.0**-24)),
            (PERCENT, allowed(rounded=0.01)),
            ("takes a sum of eight from which a small number is missing", allowed(reordered=1e-5)),
            ("allowance('reordered') is too narrow: 0 refuses", allowed(reordered=0.0)),
            ("allowance('reordered') is too narrow", allowed(reordered=2.0**-24)),
            ("within a tree's roundings", allowed(reordered=6 * 2.0**-24), REFUSES),
            ("within one sum's roundings", allowed(reordered=7 * 2.0**-24), REFUSES),
            ("is too wide: 9.54e-07 takes a sum", allowed(reordered=16 * 2.0**-24)),
            ("must be a number from 0 on", allowed(resumed=float("nan"))),
        ],
    }
    if arrays.framework == "torch":
        name = "params/bias was rounded on the way: kept in bfloat16"
        change = replaced("params", "bias", lambda array: cast(cast(array, "bfloat16"), "float32"))
        table["every-state-is-carried"] += [(name, change)]
    return table


def by_numpy(right: Any) -> Any:
    """Ways to run code from a file of NumPy's."""

    def instead(**names: Any) -> Replacements:
        return {"np": Instead(np, **names)}

    def opened(path: Any, **_: Any) -> Any:
        file = np.load(path, allow_pickle=True)
        file["kept"]
        return file

    evaluated = {"json": SimpleNamespace(dumps=json.dumps, loads=eval)}
    return [
        (
            "load_everything unpickles the file; whoever can write the file can run any code",
            instead(
                savez=lambda buffer, **entries: np.savez(buffer, kept=np.array([{}], dtype=object), **entries),
                load=opened,
            ),
        ),
        (
            "runs the code in a file that holds a pickle in its place",
            instead(load=lambda path, **_: np.load(path, allow_pickle=True)),
        ),
        (
            "runs the code in a file that holds an array of objects for",
            instead(load=lambda path, **_: np.lib.npyio.NpzFile(path, allow_pickle=True)),
        ),
        (EVALUATED, evaluated),
        (
            "text evaluated, in bytes",
            evaluated
            | instead(
                savez=lambda buffer, text, **entries: np.savez(buffer, text=np.array(text.item().encode()), **entries)
            ),
            "it uses eval or the like",
        ),
        (
            "runs the code in a file that holds a pickle",
            {"atomic_write": lambda path, data: right.atomic_write(path, dumps(data))}
            | instead(load=lambda path, **_: np.load(io.BytesIO(loads(Path(path).read_bytes())))),
        ),
    ]


def by_torch(right: Any) -> Any:
    """Ways to run code from a file of PyTorch's."""
    torch = right.torch

    def saved(tree: Any, buffer: Any) -> None:
        plain = {key: tree[key] for key in right.PLAIN}
        torch.save({"text": repr(plain)} | {key: tree[key] for key in tree if key not in plain}, buffer)

    def loaded(path: Any, **_: Any) -> Any:
        tree = torch.load(path, weights_only=True)
        return tree | eval(tree["text"])

    return [
        (EVALUATED, {"torch": Instead(torch, save=saved, load=loaded)}),
        (
            "load_everything unpickles",
            {"torch": Instead(torch, load=lambda path, **_: torch.load(path, weights_only=False))},
        ),
    ]
