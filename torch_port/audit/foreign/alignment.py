"""The leaves of two checkpoints side by side: by part and name, and what is left without the prefixes of wrappers."""

from collections.abc import Mapping

from torch_port.audit.foreign.leaf import Leaf

Leaves = Mapping[str, Leaf]
Item = tuple[str, Leaf]  # a leaf and its path


def align(a: Leaves, b: Leaves) -> list[tuple[Item | None, Item | None]]:
    """Each leaf of both sides, beside the one of the other side that it is held against, or None."""
    parts = _parts(a, b)
    a = {path: leaf._replace(part=parts.get(leaf.part, leaf.part)) for path, leaf in a.items()}
    # Moments go by number in an optimizer of which only one side knows the parameters' names.
    unnamed = {leaf.part for leaf in a.values() if leaf.numbered} ^ {leaf.part for leaf in b.values() if leaf.numbered}
    a, b = ({path: _by_number(leaf, unnamed) for path, leaf in leaves.items()} for leaves in (a, b))
    pairs = _pairs(a, b)
    taken = set(pairs.values())
    alone = [path for path in a if path not in pairs], [path for path in b if path not in taken]
    counts = _counts(a, alone[0], b, alone[1])
    counts += [(x, y) for y, x in _counts(b, alone[1], a, alone[0])]
    counted = {path for path, _ in counts}, {path for _, path in counts}
    return [
        *(((x, a[x]), (y, b[y])) for x, y in (*pairs.items(), *counts)),
        *(((path, a[path]), None) for path in alone[0] if path not in counted[0]),
        *((None, (path, b[path])) for path in alone[1] if path not in counted[1]),
    ]


def _parts(a: Leaves, b: Leaves) -> dict[str, str]:
    """Which part of b a part of a is, where its path is another: the only one left of its kind, on both sides."""
    sides = [{leaf.part: leaf.kind for leaf in leaves.values()} for leaves in (a, b)]
    alone = [{part: kind for part, kind in side.items() if part not in other} for side, other in (sides, sides[::-1])]
    renamed = {}
    for kind in ("model", "optimizer", "scheduler", "scaler", "ema"):
        here, there = ([part for part, its in side.items() if its == kind] for side in alone)
        if len(here) == len(there) == 1:
            renamed[here[0]] = there[0]
    return renamed


def _by_number(leaf: Leaf, unnamed: set[str]) -> Leaf:
    return leaf.numbered._replace(part=leaf.part) if leaf.numbered and leaf.part in unnamed else leaf


def _pairs(a: Leaves, b: Leaves) -> dict[str, str]:
    """For paths of a those of b: by part and name, and the rest by part and bare name."""
    by_name = {(leaf.part, leaf.name): path for path, leaf in b.items()}
    pairs = {path: by_name[x.part, x.name] for path, x in a.items() if (x.part, x.name) in by_name}
    taken = set(pairs.values())
    by_bare = {(leaf.part, leaf.bare): path for path, leaf in b.items() if path not in taken}
    for path, leaf in a.items():
        if path not in pairs and (leaf.part, leaf.bare) in by_bare:
            pairs[path] = by_bare.pop((leaf.part, leaf.bare))
    return pairs


def _counts(a: Leaves, alone: list[str], b: Leaves, others: list[str]) -> list[tuple[str, str]]:
    """A count of updates of a that stands for all parameters, beside that of each in b."""
    counts = {a[path].part: path for path in alone if (a[path].form, a[path].name) == ("number", "step")}
    return [
        (counts[b[path].part], path)
        for path in others
        if b[path].part in counts and "step" in (b[path].name.split("/")[0], b[path].name.split("/")[-1])
    ]
