"""Worker processes that all audits of a test run share, one after the other: torch is imported once in each."""

from collections.abc import Iterator

import pytest

from torch_port.audit.judge.workers import Workers


@pytest.fixture(scope="session")
def workers() -> Iterator[Workers]:
    with Workers() as shared:
        yield shared
