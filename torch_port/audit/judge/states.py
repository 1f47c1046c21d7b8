"""The table of states: saved, restored, needed."""

from collections.abc import Sequence

from torch_port.audit.judge import compare
from torch_port.audit.judge.control import Evidence
from torch_port.audit.judge.findings import State
from torch_port.audit.judge.record import DATA, Record
from torch_port.audit.judge.resume import Judged
from torch_port.audit.judge.stored import NAMES, all_saved

FIRST_VALUE = "at every stop it is what a fresh run has, so that nothing tells"


def states(evidence: Evidence, judged: Sequence[Judged]) -> tuple[State, ...]:
    """One row for each group of states that the uninterrupted run has at some stop."""
    a, moving = evidence.a, evidence.moving
    records: dict[int, Record] = {}
    for one in judged:
        if one.record is not None:
            records.setdefault(one.step, one.record)
    lost = {path for one in judged for path in (*one.lost, *(one.stop.lost if one.stop.proved else ()))}
    harmless = {path for one in judged for path in one.harmless}
    groups: dict[str, list[str]] = {}
    moments = [a.at[step] for step in records]
    kinds = {path: compare.kind_of(path, *moments) for leaves in moments for path in leaves}
    for path in sorted(kinds, key=lambda path: compare.telling(path, kinds[path])):
        if kinds[path] not in ("loss", "samples") and path not in evidence.passed:
            groups.setdefault(a.groups.get(path, path), []).append(path)
    rows = []
    for group, paths in groups.items():
        kind, moves = kinds[paths[0]], any(path in moving for path in paths)
        if not moves and kind in (*compare.MARKS, "generator", "optimizer", "schedule", "scaler"):
            continue  # a setting, or a generator that is never drawn from
        other = {
            path
            for step, record in records.items()
            for path in paths
            if a.at[step].get(path) != record.at[step].get(path)
        }
        named = bool(lost & {group, *paths})
        restored: bool | None = not other
        idle = group in harmless or (bool(other) and other <= harmless)
        needed = True if named else False if idle else None
        note = "" if restored or named else "not restored, and not needed here" if needed is False else "not restored"
        saved, shared = all_saved(a, paths), _shared(a, paths)
        if shared and (saved or all_saved(a, [shared])) and not _is_named(a, paths[0]):
            saved = False
            note = f"{note}; " * bool(note) + f"it is the memory of {shared}, and what is saved is that"
        if saved is not True and a.facts.get("saved") and restored and moves and kind != "mode":
            if any(a.at[0].get(path) != a.at[step].get(path) for step in records for path in paths):
                saved = True  # in another form
            else:
                restored, note = None, note or FIRST_VALUE
        rows.append(State(group, kind, saved, restored, needed, note))
    return tuple(rows)


def _shared(a: Record, paths: list[str]) -> str:
    """The state whose memory these have too; empty where they have their own."""
    links = list(a.facts.get("aliases", {}).values())
    return next((found[path + DATA] for found in links for path in paths if path + DATA in found), "")


def _is_named(a: Record, path: str) -> bool:
    """Whether the saved dict has the name of the attribute, or global, under which a state lies."""
    name = NAMES.split(path.removeprefix("globals."))[0]
    return any(name in NAMES.split(saved) for facts in a.facts["saved"].values() for saved in facts)
