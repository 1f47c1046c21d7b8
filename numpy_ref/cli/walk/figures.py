"""The traps' figures. Needs matplotlib, from the `cli` extra; imported only when a figure is drawn."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from numpy_ref.cli.drawing import SOUND, TEXT, TRAP, drawing
from numpy_ref.cli.walk.resume import STOP
from numpy_ref.cli.walk.traps import NEW, OLD, REFUSED, Trap


def draw_trap(trap: Trap, path: Path) -> None:
    """Write a trap's figure, an SVG."""
    with drawing(path, (6.4, 2.8), trap.title, trap.text) as figure:
        DRAWINGS[trap.name](figure, trap.numbers)


def _draw_aliasing(figure: Figure, numbers: dict[str, list[Any]]) -> None:
    axes = figure.subplots()
    axes.plot(numbers["step"], numbers["alias"], color=TRAP, marker="o", markersize=3, label="saved by reference")
    axes.plot(numbers["step"], numbers["copy"], color=SOUND, linestyle="--", label="saved as a copy")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("distance of the saved weights\nfrom those at the stop")
    axes.legend()


def _draw_copied_generator(figure: Figure, numbers: dict[str, list[Any]]) -> None:
    panels = zip(figure.subplots(1, 2), (("copied", TRAP, "o"), ("own", SOUND, "x")), strict=True)
    titles = {"copied": "copies of one generator", "own": "a stream each"}
    for axes, (name, colour, marker) in panels:
        axes.plot(numbers[f"{name} 0"], numbers[f"{name} 1"], color=colour, marker=marker, markersize=3, linestyle="")
        axes.set_aspect("equal")
        axes.set_title(titles[name], fontsize=9)
        axes.set_xlabel("drawn by worker 0")
        axes.set_ylabel("drawn by worker 1")


def _draw_half_written_file(figure: Figure, numbers: dict[str, list[Any]]) -> None:
    axes, heights = figure.subplots(), {REFUSED: 0, OLD: 1, NEW: 2}
    lines = {"straight": (TRAP, "-", "straight to its name"), "renamed": (SOUND, "--", "temporary, fsync, rename")}
    for name, (colour, dashes, label) in lines.items():
        found = [heights[each] for each in numbers[name]]
        axes.plot(found, color=colour, linestyle=dashes, linewidth=2, drawstyle="steps-post", label=label)
        axes.plot(len(found) - 1, found[-1], color=colour, marker="o", markersize=4, linestyle="")
    axes.set_yticks(list(heights.values()), ["refused", "the old file", "the new file"])
    axes.set_ylim(-0.4, 2.4)
    axes.set_xlabel("bytes written before the kill; then fsync, rename")
    axes.set_ylabel("a reader finds")
    axes.legend(loc="center left", bbox_to_anchor=(0, 0.28))


def _draw_lost_t(figure: Figure, numbers: dict[str, list[Any]]) -> None:
    axes, never = figure.subplots(), numbers["never stopped"]
    after = range(STOP + 1, len(never) + 1)
    first = STOP - 11  # a little of what came before
    axes.plot(range(first, len(never) + 1), never[first - 1 :], color=TEXT, linewidth=1, label="never stopped")
    axes.plot(after, numbers["kept"], color=SOUND, marker="x", markersize=5, linestyle="", label="resumed, t kept")
    axes.plot(after, numbers["lost"], color=TRAP, marker="o", markersize=3, linestyle="--", label="resumed, t lost")
    axes.axvline(STOP, color=TEXT, linewidth=0.8, linestyle=":")
    axes.set_ylim(0, None)
    axes.set_xlabel(f"step; the stop is after step {STOP}")
    axes.set_ylabel("length of the update")
    axes.legend()


def _draw_reshuffled_epoch(figure: Figure, numbers: dict[str, list[Any]]) -> None:
    panels: list[Axes] = list(figure.subplots(1, 2, sharey=True))
    titles = {"kept": "position and order kept", "lost": "order lost"}
    for axes, (name, colour) in zip(panels, (("kept", SOUND), ("lost", TRAP)), strict=True):
        bars = axes.bar(["never", "once", "twice"], numbers[name], color=colour, width=0.6)
        axes.bar_label(bars, fmt="{:,.0f}", padding=2)
        axes.set_title(titles[name], fontsize=9)
        axes.margins(y=0.15)
    panels[0].set_ylabel("samples")
    figure.supxlabel("times trained in the epoch of the stop", fontsize=9)


DRAWINGS: dict[str, Callable[[Figure, dict[str, list[Any]]], None]] = {
    "aliasing": _draw_aliasing,
    "copied-generator": _draw_copied_generator,
    "half-written-file": _draw_half_written_file,
    "lost-t": _draw_lost_t,
    "reshuffled-epoch": _draw_reshuffled_epoch,
}
