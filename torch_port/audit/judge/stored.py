"""Whether states stand in what the user saves."""

import re
from collections.abc import Mapping, Sequence

from torch_port.audit.judge.record import Leaf, Record

NAMES = re.compile(r"[.\[\]*]+")  # between the names of a path


def all_saved(a: Record, paths: Sequence[str]) -> bool | None:
    """Whether all of these stand in the saved dict, at every stop."""
    saved = a.facts.get("saved", {})
    if not saved:
        return None
    moments = [(facts, a.at[int(step)]) for step, facts in saved.items()]
    found = {
        is_saved(facts, path, leaves[path], leaves) for facts, leaves in moments for path in paths if path in leaves
    }
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
