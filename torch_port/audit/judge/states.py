"""The table of states: saved, restored, needed."""

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from torch_port.audit.judge import compare as judge
from torch_port.audit.judge.findings import State
from torch_port.audit.judge.leaves import Leaf
from torch_port.audit.judge.paths import DATA

if TYPE_CHECKING:
    from torch_port.audit.judge.audit import Session

NAMES = re.compile(r"[.\[\]*]+")  # between the names of a path
FIRST_VALUE = "at every stop it is what a fresh run has, so that nothing tells"


def states_of(session: "Session") -> tuple[State, ...]:
    """One row for each group of states that the uninterrupted run has at some stop."""
    a, lost = session.a, session.lost | {name for stop in session.stops for name in stop.lost if stop.proved}
    groups: dict[str, list[str]] = {}
    moments = {step: a.at[step] for step in session.records}
    kinds = {path: judge.kind_of(path, *moments.values()) for leaves in moments.values() for path in leaves}
    for path in sorted(kinds, key=lambda path: judge.telling(path, kinds[path])):
        if kinds[path] not in ("loss", "samples") and path not in session.ground.passed:
            groups.setdefault(a.groups.get(path, path), []).append(path)
    rows = []
    for group, paths in groups.items():
        kind, moves = kinds[paths[0]], any(path in session.moving for path in paths)
        if not moves and kind in (*judge.MARKS, "generator", "optimizer", "schedule", "scaler"):
            continue  # a setting, or a generator that is never drawn from
        other = {
            path for step, record in session.records.items() for path in paths
            if a.at[step].get(path) != record.at[step].get(path)
        }  # fmt: skip
        named = bool(lost & {group, *paths})
        restored: bool | None = not other
        idle = group in session.harmless or (bool(other) and other <= session.harmless)
        needed = True if named else False if idle else None
        note = "" if restored or named else "not restored, and not needed here" if needed is False else "not restored"
        saved, shared = all_saved(session, paths), _shared(session, paths)
        if shared and (saved or all_saved(session, [shared])) and not _is_named(session, paths[0]):
            saved = False
            note = f"{note}; " * bool(note) + f"it is the memory of {shared}, and what is saved is that"
        if saved is not True and session.a.facts.get("saved") and restored and moves and kind != "mode":
            if any(a.at[0].get(path) != a.at[step].get(path) for step in session.records for path in paths):
                saved = True  # in another form
            else:
                restored, note = None, note or FIRST_VALUE
        rows.append(State(group, kind, saved, restored, needed, note))
    return tuple(rows)


def _shared(session: "Session", paths: list[str]) -> str:
    """The state whose memory these have too; empty where they have their own."""
    links = list(session.a.facts.get("aliases", {}).values())
    return next((found[path + DATA] for found in links for path in paths if path + DATA in found), "")


def _is_named(session: "Session", path: str) -> bool:
    """Whether the saved dict has the name of the attribute, or global, under which a state lies."""
    name = NAMES.split(path.removeprefix("globals."))[0]
    return any(name in NAMES.split(saved) for facts in session.a.facts["saved"].values() for saved in facts)


def all_saved(session: "Session", paths: Sequence[str]) -> bool | None:
    """Whether all of these stand in the saved dict, at every stop."""
    saved = session.a.facts.get("saved", {})
    if not saved:
        return None
    found = {is_saved(facts, path, leaves[path], leaves)
             for step, facts in saved.items() for leaves in (session.a.at[int(step)],)
             for path in paths if path in leaves}  # fmt: skip
    return all_of(found)


def all_of(found: set[bool | None]) -> bool | None:
    """No where one answer is no; else not known (None) where one is not; else yes."""
    return False if False in found else None if None in found else True


def is_saved(facts: dict[str, str], path: str, one: Leaf, leaves: Mapping[str, Leaf] = {}) -> bool | None:
    """Whether a state stands in the saved dict; None: its value does, under another name.

    The bytes of a tensor tell by themselves. Of a number, a text or a buffer others may have the same: its name must
    fit too. What stands there once may be one of several states that have one value: it is that whose names it has.

    Args:
        facts: path in the saved dict -> digest.
        path: of the state.
        one: its leaf.
        leaves: all states at that moment.
    """
    names = {saved for saved, digest in facts.items() if digest == one.digest}
    alike = [other for other, leaf in leaves.items() if leaf.digest == one.digest and other != path]
    if not names:
        return False
    if one.kind == "generator" or (one.shape and one.device and one.kind != "buffer"):
        rivals = alike
    elif last_name(path) in map(last_name, names):
        rivals = [other for other in alike if last_name(other) == last_name(path)]
        names = {saved for saved in names if last_name(saved) == last_name(path)}
    else:
        taken = {last_name(other) for other in alike}
        return False if all(last_name(saved) in taken for saved in names) else None
    if len(names) > len(rivals):
        return True
    leads = {_in_common(path, saved) - max(_in_common(other, saved) for other in rivals) for saved in names}
    return True if max(leads) > 0 else None if 0 in leads else False


def _in_common(path: str, saved: str) -> int:
    """How many names two paths share."""
    return len({*NAMES.split(path.replace("/", "."))} & {*NAMES.split(saved)})


def last_name(path: str) -> str:
    """The last name in a path; of an optimizer's, the name of its state."""
    if "/" in path:
        return path.split("/")[1].strip("_")
    names = [part for part in NAMES.split(path) if part and not part.isdigit()]
    return names[-1].strip("_") if names else path
