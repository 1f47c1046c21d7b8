"""The demo's figure. Needs matplotlib, from the `cli` extra; imported only when a figure is drawn."""

import math
from os import PathLike

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from numpy_ref.demo import STEPS, STOP, Demo

COLOURS = {"full": "#0072B2", "weights only": "#D55E00"}  # told apart by colour-blind readers, and by their dashes
GREY = "#999999"


def draw_demo(demo: Demo, path: str | PathLike[str]) -> None:
    """Write the figure: held-out losses above; below, on a log scale with a line of its own for zero, the distance.

    Args:
        demo: what the demo found.
        path: the file; its ending chooses the format, .svg or .png.
    """
    figure = Figure(figsize=(7.5, 6.5), layout="constrained")
    losses, distances = figure.subplots(2, 1, sharex=True, height_ratios=[1, 1.2])
    steps, values, _ = zip(*demo.reference, strict=True)
    losses.plot(steps, values, color="black", linewidth=4, alpha=0.35, label="never stopped")
    for outcome in demo.outcomes:
        if outcome.resume in COLOURS:
            steps, values, _ = zip(*outcome.curve, strict=True)
            losses.plot(
                steps,
                values,
                color=COLOURS[outcome.resume],
                linestyle=_dashes(outcome.resume),
                label=_name(outcome.resume),
            )
    losses.set_ylabel("held-out loss")
    losses.set_title("Stopped in the middle of an epoch, and resumed")
    losses.legend()

    positive = [d for outcome in demo.outcomes for _, _, d in outcome.curve if d > 0]
    floor = min(positive, default=1e-3) / 10
    for outcome in demo.outcomes:
        steps, _, values = zip(*outcome.curve, strict=True)
        special = outcome.resume in COLOURS
        distances.plot(
            steps,
            [max(d, floor) for d in values],
            color=COLOURS.get(outcome.resume, GREY),
            linestyle=_dashes(outcome.resume),
            linewidth=2 if special else 1,
            zorder=3 if special else 2,
        )
    _label_ends(distances, [(o.left_out, o.curve[-1][2]) for o in demo.outcomes if o.resume not in COLOURS])
    distances.axhline(floor, color="black", linewidth=0.6)
    distances.annotate("zero: the same bits", (0, floor), xytext=(2, 4), textcoords="offset points", fontsize=8)
    distances.set_yscale("log")
    distances.set_ylim(floor / 2, None)
    highest = max(positive, default=1.0)
    decades = range(math.ceil(math.log10(floor)) + 1, math.floor(math.log10(highest)) + 1)
    distances.set_yticks([floor, *(10.0**n for n in decades)], ["0", *(f"$10^{{{n}}}$" for n in decades)])
    distances.minorticks_off()
    distances.set_xlabel("step")
    distances.set_ylabel("largest distance of a weight\nfrom the run that never stopped")
    for axes in (losses, distances):
        axes.axvline(STOP, color="black", linewidth=0.8, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
    losses.annotate("stop", (STOP, losses.get_ylim()[1]), xytext=(3, -10), textcoords="offset points", fontsize=8)
    with mpl.rc_context({"svg.hashsalt": "resume", "svg.fonttype": "path"}):
        figure.savefig(path, metadata={"Date": None} if str(path).endswith(".svg") else None)


def _label_ends(axes: Axes, ends: list[tuple[str, float]]) -> None:
    """Names at the right ends of lines, from the bottom up, each a line's height above the one below at least."""
    axes.set_yscale("log")
    low, high = (math.log10(y) for y in axes.get_ylim())
    height, below = (high - low) / 24, -math.inf
    for name, value in sorted(ends, key=lambda end: end[1]):
        below = max(math.log10(value), below + height) if value > 0 else low
        axes.plot([STEPS, STEPS + 1], [max(value, 10**low), 10**below], color=GREY, linewidth=0.5)
        axes.annotate(
            f" {name}", (STEPS + 1, 10**below), fontsize=7, color="#555555", va="center", annotation_clip=False
        )


def _name(resume: str) -> str:
    return "resumed from a full checkpoint" if resume == "full" else f"resumed from {resume}"


def _dashes(resume: str) -> str:
    return {"full": "--", "weights only": "-."}.get(resume, "-")
