"""What the script does when nothing happens to it: run twice, its saves, and what every other run must end with."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

from numpy_ref.tree import printable
from torch_port.audit.crash.bench import Bench, Ran, Refused
from torch_port.audit.crash.directory import names_in, unexplained, unlike, unlike_a_copy
from torch_port.audit.crash.disk import Event, State
from torch_port.audit.crash.points import CHANGES, Point, points_of, saves_in, shape


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
