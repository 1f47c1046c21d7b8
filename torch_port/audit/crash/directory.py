"""A directory that a script runs in: copied, listed, made to hold what a crash leaves, and compared at the end."""

import os
import shutil
import time
from pathlib import Path

from numpy_ref.checkpoint.container import CheckpointError
from torch_port.audit.crash.disk import State
from torch_port.audit.crash.hook import IGNORED

_FOREIGN = (".pt", ".pth", ".tar", ".bin", ".ckpt", ".safetensors")


def copy(source: Path, target: Path) -> None:
    """Copy what is watched; dates and modes stay, and links are links."""
    shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns(*IGNORED))


def names_in(directory: Path) -> list[tuple[str, str]]:
    """The name and kind of everything below a directory."""
    found = []
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if not set(relative.parts) & set(IGNORED):
            kind = "link" if path.is_symlink() else "directory" if path.is_dir() else "file"
            found.append((os.fspath(relative), kind))
    return found


def materialise(state: State, place: Path) -> None:
    """Make a copy of the directory as it was hold a state; what was changed last is newest."""
    for name, kind in sorted(names_in(place), reverse=True):
        node = state.get(name)
        if name not in state or (node is not None and node.kind != "directory"):
            (place / name).rmdir() if kind == "directory" else (place / name).unlink()
    now = time.time_ns()
    last = max((node.stamp for node in state.values() if node is not None), default=0)
    for name, node in sorted(state.items()):
        path = place / name
        if node is None:
            continue
        if node.kind == "directory":
            path.mkdir(exist_ok=True)
        elif node.kind == "link":
            path.symlink_to(os.fsdecode(node.data))
        else:
            path.write_bytes(node.data)
            stamp = now - (last - node.stamp) * 1_000_000
            os.utime(path, ns=(stamp, stamp))


def unexplained(state: State, place: Path) -> list[str]:
    """What a directory holds otherwise than a state that was made from the record of what was done to it."""
    there = dict(names_in(place))
    notes = [f"{name} changed, and no event says so" for name in sorted(state.keys() ^ there.keys())]
    files = {name: node for name, node in state.items() if name in there and node is not None and node.kind == "file"}
    for name, node in sorted(files.items()):
        if (place / name).read_bytes() != node.data:
            notes.append(f"{name} holds other bytes than the events wrote")
    return notes


def unlike_a_copy(state: State, place: Path) -> list[str]:
    """What a directory that was made from a state would lack: dates that were set, permission to execute."""
    notes, latest = [], 0
    nodes = [(node.stamp, name) for name, node in state.items() if node is not None and node.kind == "file"]
    seen = [(stamp, (place / name).stat(), name) for stamp, name in nodes if (place / name).is_file()]
    for _, found, name in sorted(seen, key=lambda item: (item[0], item[1].st_mtime_ns)):
        if found.st_mtime_ns < latest:
            notes.append(f"{name} has an older date than what was written before it")
        if found.st_mode & 0o111:
            notes.append(f"{name} may be executed, and no event says so")
        latest = max(latest, found.st_mtime_ns)
    return notes


def unlike(expected: Path, found: Path) -> str:
    """How two files differ, leaf by leaf where both can be read so; nothing where they do not."""
    if expected.is_symlink() or found.is_symlink():
        links = [os.readlink(path) if path.is_symlink() else "no link" for path in (expected, found)]
        return "" if links[0] == links[1] else f"expected a link to {links[0]}, found {links[1]}"
    if not found.is_file():
        return "missing"
    if expected.read_bytes() == found.read_bytes():
        return ""
    if expected.suffix not in _FOREIGN:
        return "its bytes differ"
    from torch_port.audit import foreign

    try:
        found_out = foreign.diff(expected, found)
    except CheckpointError:
        return "its bytes differ"
    if found_out.bitwise:
        return ""
    changes = found_out.changes
    return f"{len(changes)} leaves differ, first {changes[0].path}" if changes else "its bytes differ"
