"""All that a script has saved, as leaves by path: its checkpoints, JSON beside them, and the files that were not read.

A leaf of the file at {path} has its path in it; one of a directory there, or of a file beside it, stands below the
file's name: `state.json/step`.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from numpy_ref.checkpoint.container import CheckpointError, IncompatibleCheckpoint
from torch_port.audit import foreign

Tree = dict[str, foreign.Leaf]
NAME = "checkpoint.pt"  # what {path} stands for, in a directory of the run
READ = (".pt", ".pth", ".tar", ".ckpt", ".safetensors")  # of checkpoints: one that cannot be read is a failure
ROOM = 1 << 26  # bytes of a JSON file
PLAIN = (str, bool, type(None))


class Saved(NamedTuple):
    """What a script has saved."""

    leaves: Tree
    settings: frozenset[str] = frozenset()  # paths of texts and switches of JSON files, which may tell how it was run
    beside: frozenset[str] = frozenset()  # paths of all leaves of JSON files beside a checkpoint
    unread: tuple[str, ...] = ()  # names of files


def read_all(home: Path, names: Iterable[str], allow: Sequence[str]) -> Saved:
    """Read these files of a directory; those that are not there are passed over.

    Raises:
        CheckpointError: a checkpoint cannot be read, or there is none.
    """
    tree: Tree = {}
    settings, unread = list[str](), list[str]()
    beside: list[str] = []
    for name in names:
        file, label = home / name, name.removeprefix(f"{NAME}/")
        if not file.is_file():
            continue
        leaves, is_json = _leaves(file, is_checkpoint=name == NAME or file.suffix in READ, allow=allow)
        if leaves is None:
            if file.suffix != ".log" and "tfevents" not in file.name:  # a log is no state
                unread.append(label)
        elif name == NAME:
            tree |= leaves
        else:
            found = {f"{label}/{path}" if path else label: _below(label, leaf) for path, leaf in leaves.items()}
            tree |= found
            if is_json:
                beside += found
                settings += [path for path, leaf in found.items() if leaf.kind == "other" and _is_setting(leaf)]
    if tree.keys() <= set(beside) and (unread or not tree):
        there = ", ".join(unread) or "no file"
        raise CheckpointError(f"{home}: there is no checkpoint that can be read, only {there}")
    return Saved(tree, frozenset(settings), frozenset(beside), tuple(unread))


def _leaves(file: Path, *, is_checkpoint: bool, allow: Sequence[str]) -> tuple[Tree | None, bool]:
    """The leaves of a file, None where it cannot be read; whether it is JSON."""
    if file.suffix != ".json":
        try:
            return foreign.read(file, allow=allow).leaves, False
        except CheckpointError as error:
            refused = isinstance(error, IncompatibleCheckpoint) and file.suffix == ".bin"
            if refused or (is_checkpoint and (found := _of_json(file)) is None):
                raise
            return (found, True) if is_checkpoint else (None, False)
    return _of_json(file), True


def _of_json(file: Path) -> Tree | None:
    if file.stat().st_size > ROOM:
        return None
    try:
        return foreign.leaves_of(json.loads(file.read_bytes()))
    except (ValueError, RecursionError):  # no JSON, or not UTF-8, or more than can be shown
        return None


def _below(label: str, leaf: foreign.Leaf) -> foreign.Leaf:
    """A leaf whose part is one of this file."""
    numbered = None if leaf.numbered is None else _below(label, leaf.numbered)
    return leaf._replace(part=f"{label}/{leaf.part}" if leaf.part else label, numbered=numbered)


def _is_setting(leaf: foreign.Leaf) -> bool:
    value: Any = leaf.value
    return leaf.form == "value" and isinstance(value, PLAIN)
