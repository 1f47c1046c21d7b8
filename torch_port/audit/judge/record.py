"""What a run left: its leaves at every step, the samples it got, and what else was noted; without torch."""

import json
from pathlib import Path
from typing import Any, NamedTuple

from torch_port.audit.judge.leaves import Leaf, leaf_from_plain


class Delivery(NamedTuple):
    """One batch as the loop got it, or the end of an iterator (`ids` is None and `digest` empty)."""

    loader: str
    iterator: int  # its number in the process, from 0
    ids: Any
    digest: str


class Record:
    """A record read back: the leaves at each step, the first of a resumed run being those right after the load."""

    def __init__(self, path: str) -> None:
        whole = json.loads(Path(path).read_text())
        self.at: dict[int, dict[str, Leaf]] = {}
        self.groups: dict[str, str] = whole["groups"]
        self.facts: dict[str, Any] = whole["facts"]
        self.deliveries = {int(step): [Delivery(*one) for one in found] for step, found in whole["deliveries"].items()}
        leaves: dict[str, Leaf] = {}
        for step, changed, gone in whole["moments"]:
            leaves = {path: one for path, one in leaves.items() if path not in set(gone)}
            leaves.update({path: leaf_from_plain(one) for path, one in changed.items()})
            self.at[step] = leaves


def batch_file(folder: str, step: int, place: int) -> Path:
    """Where the batch that was delivered in this place of a step is kept."""
    return Path(folder, f"{step}-{place}.pt")


def rest_of_iterators(record: Record, stop: int) -> dict[str, dict[str, Any]]:
    """For each loader that was in the middle of its data after a stop: what its iterator still had to issue.

    An iterator that the loop left there, and never came back to, had nothing to issue.

    Args:
        record: of the uninterrupted run.
        stop: the step after which it is stopped.

    Returns:
        Loader -> {"ids": indices of each batch still to come, "end": what its sampler draws when it ends}.
    """
    latest: dict[str, tuple[int, bool]] = {}
    for step in sorted(record.deliveries):
        if step <= stop:
            latest.update({one.loader: (one.iterator, one.digest == "") for one in record.deliveries[step]})
    rest = {}
    for name, (number, ended) in latest.items():
        later = [one for step in sorted(record.deliveries) if step > stop for one in record.deliveries[step]
                 if one.iterator == number]  # fmt: skip
        if later and not ended:
            ids = [one.ids for one in later if one.digest]
            at, draws = record.facts.get("ends", {}).get(str(number), (0, []))
            rest[name] = {"ids": ids, "end": draws if at > stop else []}
    return rest
