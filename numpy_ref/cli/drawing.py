"""A drawing for any page. Needs matplotlib, from the `cli` extra; imported only when a figure is drawn.

It lies on the page's own ground, light or dark: nothing is filled behind it, every colour stands out from white and
from near-black, and what a colour says is said by dashes, shapes or places too. An SVG has its title and text inside.
"""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from matplotlib import style
from matplotlib.figure import Figure

from numpy_ref.checkpoint.durable import replace_file

TEXT, SOUND, TRAP = "#767676", "#1F7FBF", "#D55E00"  # told apart by colour-blind readers too
STYLE: dict[str, Any] = {
    "svg.hashsalt": "drawing",
    "svg.fonttype": "none",  # texts stay texts
    "font.size": 9,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
} | dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), TEXT)


@contextmanager
def drawing(path: str | PathLike[str], size: tuple[float, float], title: str, text: str) -> Iterator[Figure]:
    """A figure to draw on, written when the block ends; the same numbers make the same bytes.

    Args:
        path: the file; its ending chooses the format, .svg, .png or .pdf.
        size: width and height, in inches.
        title: what it shows, in a few words; in an SVG only.
        text: what a reader who cannot see it should know; in an SVG only.
    """
    ending = Path(path).suffix.removeprefix(".")
    with style.context(["default", STYLE]), io.BytesIO() as file:
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        bare = dict.fromkeys(("Date", "Creator", "Format", "Type")) if ending == "svg" else {}
        dates = {"CreationDate": None} if ending == "pdf" else {}
        figure.savefig(file, format=ending, metadata=({"Title": title} if ending == "svg" else {}) | bare | dates)
        written = file.getvalue()
    if ending == "svg":
        written = written.replace(b"<svg ", b'<svg role="img" aria-labelledby="title desc" ', 1)
        written = written.replace(b"<title>", b'<title id="title">', 1)
        desc = f'</title>\n <desc id="desc">{escape(text)}</desc>'
        written = written.replace(b"</title>", desc.encode(), 1)
    with replace_file(path) as target:
        target.write(written)
