"""The pytest plugin: `def test_resume(resume_audit): resume_audit(Run, steps=24)`.

It imports nothing of torch, and nothing at all is done, before a test calls the fixture.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

__tracebackhide__ = True  # of every frame of this module: a wrong call is shown where it stands in the test

if TYPE_CHECKING:
    from torch_port.audit.judge.findings import Report


@pytest.fixture(scope="session")
def resume_audit() -> Callable[..., "Report"]:
    """Audit a training loop: does a resumed run equal the one that never stopped? The test fails where it does not.

    Call it with a class, or a function that returns an object, with `step()`, `state_dict()` and
    `load_state_dict(state)`; or with text, "module:Name" or "path/file.py:Name". Options are those of
    `torch_port.audit.audit`: `steps=24`, `at=(7, 12)`, `every_step=True`... It returns the report.
    """
    return audit_or_fail


def audit_or_fail(run: Any, steps: int = 24, at: Sequence[Any] | None = None, **options: Any) -> "Report":
    """See `resume_audit`."""
    from torch_port.audit import audit
    from torch_port.audit.judge.target import target_of
    from torch_port.audit.report.lines import lines

    with _modules_found():
        try:
            report = audit(target_of(run), steps=steps, at=at, **options)
        except ValueError as wrong:  # steps, stops or a target that make no audit: the message says which
            raise wrong.with_traceback(None) from None
    if not report.holds:
        pytest.fail("\n".join(lines(report)), pytrace=False)
    return report


@contextmanager
def _modules_found() -> Iterator[None]:
    """New processes find the modules that this one does: pytest may have added to where they are looked for."""
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, dict.fromkeys(sys.path)))
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
