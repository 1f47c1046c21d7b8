"""The saves in a record of events, and the points of it at which a script can be crashed."""

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torch_port.audit.crash.disk import Event

CHANGES = ("create", "truncate", "write", "rename", "link", "symlink", "unlink", "mkdir", "rmdir")
_SYNCHRONISES = ("fsync", "fsync directory", "sync")


class Point(NamedTuple):
    """Events that count as one: a call, or writes to one file that follow each other."""

    start: int  # of its events in the record
    end: int
    save: int  # the save it belongs to; from 1, and 0 for what comes before the first
    saved: int  # saves that were over before it, all their events done
    published: int  # saves whose main file stood under its name before it
    text: str

    @property
    def named(self) -> str:
        """The call, and which save it belongs to."""
        return self.text + (f" (save {self.save})" if self.save else "")


def shape(name: str) -> str:
    """A name with its numbers left out: that of every save of one kind."""
    return re.sub(r"\d+", "#", name)


def written(writes: list[Event]) -> int:
    """The bytes that writes to one file put there; what was seen only afterwards tells of all that was in it."""
    size = 0
    for event in writes:
        size = len(event.data) if event.whole else size + len(event.data)
    return size


def published(events: list[Event]) -> Iterator[tuple[str, int, int, int]]:
    """Each time that a file has got its content: its name, where it was opened, where it was done, bytes."""
    opened: dict[str, tuple[int, int]] = {}  # where, and bytes since
    for i, event in enumerate(events):
        name = event.name
        if event.call in ("create", "truncate") and (event.call == "create" or event.offset == 0):
            opened[name] = (i, 0)
        elif event.call == "write":
            start, size = opened.get(name, (i, 0))
            opened[name] = (start, len(event.data) if event.whole else size + len(event.data))
        elif event.call == "rename" and name in opened:
            start, size = opened.pop(name)
            yield event.target, start, i, size
        elif event.call == "close" and name in opened:
            renamed = next((e for e in events[i + 1 :] if name in (e.name, e.target) and e.call in CHANGES), None)
            if renamed is None or renamed.call != "rename" or renamed.name != name:
                start, size = opened.pop(name)
                yield name, start, i, size


def saves_in(events: list[Event], present: set[str]) -> tuple[list[tuple[int, int]], str]:
    """The saves: each opening and publication of the kind of file that holds the most bytes, and stays."""
    appended = {event.name for event in events if event.call == "append"}
    sizes: Counter[str] = Counter()
    found: dict[str, list[tuple[int, int]]] = {}
    for name, start, end, size in published(events):
        if name not in appended:
            sizes[shape(name)] += size
            found.setdefault(shape(name), []).append((start, end))
    stay = {shape(name) for name in present}
    kinds = [kind for kind in found if kind in stay] or list(found)
    if not kinds:
        return [], ""
    main = max(kinds, key=lambda kind: sizes[kind])
    return found[main], main


def points_of(events: list[Event], saves: list[tuple[int, int]]) -> list[Point]:
    """What a crash can come before or after."""
    groups: list[tuple[int, int]] = []
    for i, event in enumerate(events):
        if event.call not in CHANGES + _SYNCHRONISES:
            continue
        goes_on = bool(groups) and groups[-1][1] == i and event.call == "write"
        last = events[i - 1]
        if goes_on and (event.call, event.name, event.order) == (last.call, last.name, last.order):
            groups[-1] = (groups[-1][0], i + 1)
        else:
            groups.append((i, i + 1))
    points = []
    for start, end in groups:
        number = sum(opened <= start for opened, _ in saves)
        begun = saves[number - 1][0] if number else 0
        over = sum(done < begun for _, done in saves)
        event = events[start]
        text = f"{event} ({written(events[start:end])} bytes)" if event.call == "write" else str(event)
        points.append(Point(start, end, number, over, sum(done < start for _, done in saves), text))
    return points


def chosen(points: list[Point], limit: int) -> list[int]:
    """The points to try: the first save and the last, event by event, and as many as are left spread over the rest."""
    if not limit or len(points) <= limit:
        return list(range(len(points)))
    last = max(point.save for point in points)
    ends = [i for i, point in enumerate(points) if {1, last} & {point.save, point.published + 1}]
    between = sorted(set(range(len(points))) - set(ends))
    left = limit - len(ends)
    if left <= 0:
        return _spread(ends, limit)
    return sorted(ends + [between[(2 * i + 1) * len(between) // (2 * left)] for i in range(left)])


def _spread(items: list[int], count: int) -> list[int]:
    """So many of them, evenly, from the first to the last."""
    return [items[i * (len(items) - 1) // max(count - 1, 1)] for i in range(count)]
