"""Which cases of a test stand in the default run; the others are campaigns."""

from collections.abc import Iterable
from typing import Any

import pytest


def default_of(cases: Iterable[Any], *chosen: Any) -> list[Any]:
    """Parameters for all cases; those that are not chosen carry the marker `campaign`."""
    return [pytest.param(case, marks=() if case in chosen else pytest.mark.campaign) for case in cases]
