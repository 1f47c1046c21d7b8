"""What a figure on a page shows, and what is wrong with how it looks."""

import importlib.metadata
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure

from parity_tests.commands import SOURCES

SVG = "{http://www.w3.org/2000/svg}"
GROUNDS = ("#ffffff", "#0d1117")  # a light page and a dark one
CONTRAST = 3.0  # WCAG 2.2, 1.4.11: of what is needed to understand a graphic


def is_drawn_again(committed: Path, drawn: str) -> bool:
    """Whether a committed figure is the one drawn now: its texts; with the pinned matplotlib, its shapes too."""
    kept = committed.read_text(encoding="utf-8")
    pinned = re.search(r"^matplotlib==(.*)$", (SOURCES / "constraints.txt").read_text(), re.MULTILINE)
    same = (
        pinned is not None and importlib.metadata.version("matplotlib") == pinned[1]
    )  # others may set letters otherwise
    return shown(kept) == shown(drawn) and (not same or curves(kept) == curves(drawn))


def shown(svg: str) -> list[str]:
    """All texts of a figure, its title and description first."""
    root = ElementTree.fromstring(svg)
    return [element.text or "" for tag in ("title", "desc", "text") for element in root.iter(SVG + tag)]


def curves(svg: str) -> list[str]:
    """The shapes of a figure, to whole points."""
    root = ElementTree.fromstring(svg)
    return [
        re.sub(r"-?\d+(\.\d+)?", lambda number: f"{float(number[0]):.0f}", element.get("d") or "")
        for element in root.iter(f"{SVG}path")
    ]


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, WCAG 2.2."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [x / 12.92 if x <= 0.04045 else ((x + 0.055) / 1.055) ** 2.4 for x in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a: str, b: str) -> float:
    low, high = sorted(map(luminance, (a, b)))
    return (high + 0.05) / (low + 0.05)


def faults_of_colours(svg: str) -> list[str]:
    """What is too pale or too dark on one of the grounds, half transparent, or fills the ground itself."""
    root = ElementTree.fromstring(svg)
    faults = [f"{word} in it" for word in ("opacity", "url(#h", "<image", "rgba") if word in svg]
    named = {f"#{element.get('id')}": element for element in root.iter() if element.get("id")}
    hidden = {child for each in root.iter(f"{SVG}clipPath") for child in each.iter()}
    width = float(root.get("viewBox", "").split()[2])
    drawn: list[tuple[Any, dict[str, str]]] = []

    def visit(element: Any, inherited: dict[str, str]) -> None:
        own = dict(pair.split(": ", 1) for pair in (element.get("style") or "").split("; ") if ": " in pair)
        if element.tag == f"{SVG}use":
            visit(named[element.get("{http://www.w3.org/1999/xlink}href")], inherited | own)
        drawn.append((element, inherited | own))
        for child in element if element.tag != f"{SVG}defs" else ():  # what is defined is drawn where it is used
            visit(child, inherited | own)

    visit(root, {})
    for element, style in drawn:
        if element in hidden or element.tag not in {SVG + tag for tag in ("path", "text", "rect", "circle", "line")}:
            continue
        fill, stroke = style.get("fill", "#000000"), style.get("stroke", "none")
        places = re.findall(r"-?[\d.]+", element.get("d") or "")
        if element.tag == f"{SVG}path" and len(places) <= 4:
            fill = "none"  # a straight line has nothing to fill
        for colour in {fill, stroke} - {"none"}:
            worst = min(contrast(colour, ground) for ground in GROUNDS)
            if worst < CONTRAST:
                faults.append(f"{colour} of {element.tag}: {worst:.2f}")
        across = [float(x) for x in places[::2]]
        if fill != "none" and across and max(across) - min(across) >= width / 2:
            faults.append(f"{fill} fills the ground")
    return faults


def crowded(draw: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Texts of a figure that lie on another text or go beyond the edge."""
    from matplotlib.text import Text

    kept: list[Any] = []
    texts: list[Text] = []
    with monkeypatch.context() as patch:
        patch.setattr(Figure, "savefig", lambda self, *words, **options: kept.append(self))
        draw()
        patch.setattr(Text, "draw", lambda self, *words: texts.append(self))  # ticks beyond the axes are never drawn
        kept[0].draw_without_rendering()
    shown = [text for text in dict.fromkeys(texts) if text.get_visible() and text.get_text()]
    boxes = {text: text.get_window_extent() for text in shown}
    edge = kept[0].bbox
    assert len(boxes) > 8  # or nothing was looked at
    return [
        text.get_text()
        for text, box in boxes.items()
        if box.x0 < edge.x0
        or box.x1 > edge.x1
        or box.y0 < edge.y0
        or box.y1 > edge.y1
        or any(box.overlaps(there) for other, there in boxes.items() if other is not text)
    ]
