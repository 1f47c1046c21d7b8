"""What the reports on files share: rows below one another, and values that JSON has."""

from collections.abc import Sequence
from typing import Any

from numpy_ref.tree import printable


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows as lines with their cells below one another."""
    widths = [min(60, max(len(row[i]) for row in rows)) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def plain(value: Any) -> Any:
    """A value that JSON has."""
    return value if value is None or type(value) in (bool, int, float, str) else printable(repr(value))
