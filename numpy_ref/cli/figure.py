"""The demo's figure. Needs matplotlib, from the `cli` extra; imported only when a figure is drawn."""

import math
from os import PathLike

from matplotlib.axes import Axes

from numpy_ref.cli.demo import STEPS, STOP, Demo
from numpy_ref.cli.drawing import SOUND, TEXT, TRAP, drawing

COLOURS = {"full": SOUND, "weights only": TRAP}
TITLE = "Stopped in the middle of an epoch, and resumed"


def draw_demo(demo: Demo, path: str | PathLike[str]) -> None:
    """Write the figure: held-out losses above; below, on a log scale with a line of its own for zero, the distance.

    Args:
        demo: what the demo found.
        path: the file; its ending chooses the format, .svg, .png or .pdf.
    """
    with drawing(path, (7.5, 6), TITLE, _text(demo)) as figure:
        losses, distances = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.2])
        losses.set_title(TITLE)
        _draw_losses(losses, demo)
        _draw_distances(distances, demo)
        for axes in (losses, distances):
            axes.axvline(STOP, color=TEXT, linewidth=0.8, linestyle=":")
        losses.annotate("stop", (STOP, losses.get_ylim()[1]), xytext=(3, -10), textcoords="offset points", fontsize=8)


def _text(demo: Demo) -> str:
    """What the figure shows, in words."""
    ends = (f"{outcome.left_out}: {outcome.curve[-1][2]:.2g}" for outcome in demo.outcomes)
    return (
        f"Above, the held-out loss over {STEPS} steps: resumed from a full checkpoint after step {STOP} it lies on "
        "that of the run that never stopped, and from the weights only it does not. Below, the largest distance of a "
        f"weight from that run. At the end, by what was left out: {'; '.join(ends)}."
    )


def _draw_losses(axes: Axes, demo: Demo) -> None:
    steps, values, _ = zip(*demo.reference, strict=True)
    axes.plot(steps, values, color=TEXT, linewidth=1, zorder=3, label="never stopped")
    for outcome in demo.outcomes:
        if outcome.resume in COLOURS:
            steps, values, _ = zip(*outcome.curve, strict=True)
            line, name, wide = _dashes(outcome.resume), _name(outcome.resume), 4 if outcome.resume == "full" else 2
            axes.plot(steps, values, color=COLOURS[outcome.resume], linestyle=line, linewidth=wide, label=name)
    axes.set_ylabel("held-out loss")
    axes.legend()


def _draw_distances(axes: Axes, demo: Demo) -> None:
    positive = [d for outcome in demo.outcomes for _, _, d in outcome.curve if d > 0]
    floor = min(positive, default=1e-3) / 10
    for outcome in demo.outcomes:
        steps, _, values = zip(*outcome.curve, strict=True)
        special = outcome.resume in COLOURS
        axes.plot(
            steps,
            [max(d, floor) for d in values],
            color=COLOURS.get(outcome.resume, TEXT),
            linestyle=_dashes(outcome.resume),
            linewidth=2 if special else 1,
            zorder=3 if special else 2,
        )
    _label_ends(axes, [(o.left_out, o.curve[-1][2]) for o in demo.outcomes if o.resume not in COLOURS])
    axes.axhline(floor, color=TEXT, linewidth=0.6)
    axes.annotate("zero: the same bits", (0, floor), xytext=(2, 4), textcoords="offset points", fontsize=8)
    axes.set_yscale("log")
    axes.set_ylim(floor / 2, None)
    highest = max(positive, default=1.0)
    decades = range(math.ceil(math.log10(floor)) + 1, math.floor(math.log10(highest)) + 1)
    axes.set_yticks([floor, *(10.0**n for n in decades)], ["0", *(f"{10.0**n:g}" for n in decades)])
    axes.minorticks_off()
    axes.set_xlabel("step")
    axes.set_ylabel("largest distance of a weight\nfrom the run that never stopped")


def _label_ends(axes: Axes, ends: list[tuple[str, float]]) -> None:
    """Names at the right ends of lines, from the bottom up, each a line's height above the one below at least."""
    axes.set_yscale("log")
    low, high = (math.log10(y) for y in axes.get_ylim())
    height, below = (high - low) / 18, -math.inf
    for name, value in sorted(ends, key=lambda end: end[1]):
        below = max(math.log10(value), below + height) if value > 0 else low
        axes.plot([STEPS, STEPS + 1], [max(value, 10**low), 10**below], color=TEXT, linewidth=0.5)
        axes.annotate(f" {name}", (STEPS + 1, 10**below), fontsize=8, va="center", annotation_clip=False)


def _name(resume: str) -> str:
    return "resumed from a full checkpoint" if resume == "full" else f"resumed from {resume}"


def _dashes(resume: str) -> str:
    return {"full": "--", "weights only": "-."}.get(resume, "-")
