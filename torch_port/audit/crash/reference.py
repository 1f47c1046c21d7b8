"""What the script does when nothing happens to it: run twice, its saves, the events that it can be crashed at."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from numpy_ref.proof.power_failure import State
from numpy_ref.tree import printable
from torch_port.audit.crash.bench import Bench, Event, Ran, Refused, names_in, unexplained, unlike, unlike_a_copy

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


class Reference(NamedTuple):
    """The run that was watched, and what is to be known of it."""

    ran: Ran
    end: Path  # the directory as it left it
    last: State  # the same, by the record
    explained: bool  # whether the record tells all that was done, so that any moment of the run can be made from it
    points: list[Point]
    saves: list[tuple[int, int]]  # of the main file: where in the record it was opened, and published
    saved_as: str
    compared: list[str]
    notes: list[str]


def refer(bench: Bench, compare: Sequence[str], jobs: int, progress: Callable[[str], None]) -> Reference:
    """Run the script twice without a crash, the second time not watched; at once where there are jobs for both."""
    end, other = bench.fresh(), bench.fresh()
    with ThreadPoolExecutor(1) as pool:
        progress("two runs to the end, without a crash")
        second = pool.submit(bench.run, other, watched=False) if jobs > 1 else None
        try:
            ran = bench.run(end, keep=True)
            _check_ended(ran, bench)
            if not ran.events:
                text = "the hook was not loaded: the command must start Python, without -I, -E or -S, on this machine"
                raise Refused("failed", text)
            saves, saved_as = saves_in(ran.events, {name for name, _ in names_in(end)})
            if not saves:
                raise Refused("failed", "the script wrote no file below the directory that was copied; see --dir")
            _check_ended(second.result() if second else bench.run(other, watched=False), bench)
        except BaseException:
            bench.stop()
            raise
    disk = bench.disk()
    for event in ran.events:
        disk.apply(event)
    last = disk.visible()
    notes = unexplained(last, end) + unlike_a_copy(last, end)
    compared, unequal = _to_compare(_written(ran.events, end), end, other, compare)
    if any(shape(name) == saved_as for name, _ in unequal) or (unequal and not compared):
        name, how = next(item for item in unequal if shape(item[0]) == saved_as or not compared)
        raise Refused(
            "not deterministic",
            f"two uninterrupted runs end differently: {name}: {how}; no resumed run can be judged until they agree",
        )
    points = points_of(ran.events, saves)
    explained = not notes
    notes += [f"not compared, for two uninterrupted runs write it differently: {name}" for name, _ in unequal]
    return Reference(ran, end, last, explained, points, saves, saved_as, compared, notes)


def _check_ended(ran: Ran, bench: Bench) -> None:
    if ran.status is None:
        raise Refused("failed", f"the script had not ended after {bench.timeout:g} s, without a crash; see --timeout")
    if ran.status != 0:
        raise Refused("failed", f"the script ended with status {ran.status}, without a crash:\n{_tail(ran.output)}")


def _tail(output: str) -> str:
    return "\n".join(output.rstrip().splitlines()[-12:])


def _written(events: list[Event], end: Path) -> dict[str, bool]:
    """The files of the end that the run wrote; whether it wrote each whole, and did not append to it."""
    changes = [event for event in events if event.call in CHANGES]
    touched = {event.name for event in changes} | {event.target for event in changes if event.call != "symlink"}
    appended = {event.name for event in events if event.call == "append"}
    written = {}
    for name, kind in names_in(end):
        above = map(str, Path(name).parents)  # a directory may be made under another name, and renamed when whole
        if kind != "directory" and not touched.isdisjoint([name, *above]):
            written[name] = name not in appended
    return written


def _to_compare(
    files: dict[str, bool], end: Path, other: Path, patterns: Sequence[str]
) -> tuple[list[str], list[tuple[str, str]]]:
    """The files to compare at the end, and those that cannot be, each with how two runs differ in it."""
    there = ", ".join(map(printable, files)) or "no file that is there at its end"
    matching = {pattern: [name for name in files if _matches(name, pattern)] for pattern in patterns}
    if useless := [pattern for pattern, names in matching.items() if not names]:
        found = f"found {', '.join(map(repr, useless))}; it wrote {there}"
        raise Refused("failed", f"--compare: expected patterns of files that the script wrote, {found}")
    asked = {name for names in matching.values() for name in names}
    wanted = [name for name, whole in files.items() if (name in asked if patterns else whole)]
    if not wanted:
        text = "nothing to compare at the end, so no crash can be judged: give --compare PATTERN; the script wrote"
        raise Refused("failed", f"{text} {there}")
    hows = {name: unlike(end / name, other / name) for name in wanted}
    return [name for name in wanted if not hows[name]], [(name, how) for name, how in hows.items() if how]


def _matches(name: str, pattern: str) -> bool:
    return bool(pattern) and Path(name).match(pattern)
