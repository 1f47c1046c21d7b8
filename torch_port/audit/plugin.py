"""The pytest plugin: `def test_resume(resume_audit): resume_audit(Run, steps=24)`.

It imports nothing of torch, and nothing at all is done, before a test calls the fixture.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from torch_port.audit.findings import Report


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
    __tracebackhide__ = True
    target = run if isinstance(run, str) else target_of(run)
    from torch_port.audit import audit
    from torch_port.audit.report import lines

    with _modules_found():
        report = audit(target, steps=steps, at=at, **options)
    if not report.holds:
        pytest.fail("\n".join(lines(report)), pytrace=False)
    return report


def target_of(run: Any) -> str:
    """Where another process finds a class or function: by its module in a package, otherwise by its file.

    Raises:
        TypeError: it has no name at a module's top level.
    """
    name, module = getattr(run, "__qualname__", ""), getattr(run, "__module__", None)
    home = sys.modules.get(module) if isinstance(module, str) else None
    found: Any = home
    for part in name.split("."):
        found = getattr(found, part, None)
    if home is None or found is not run:
        raise TypeError(
            f"resume_audit: expected a class or function that is a module's own, by its name, found {run!r}.\n"
            "    The loop is run in new processes, which import it: define it at the top level of a module, or of the "
            'test file, or give "path/file.py:Name".'
        )
    file = getattr(home, "__file__", None)
    if file is None:
        raise TypeError(f"resume_audit: expected a module with a file, found {home!r}, where {name} is defined")
    path, parts = Path(file).resolve(), home.__name__.split(".")
    places = (Path(entry).resolve().joinpath(*parts) for entry in sys.path)
    by_name = len(parts) > 1 and any(path in (place.with_suffix(".py"), place / "__init__.py") for place in places)
    return f"{home.__name__ if by_name else path}:{name}"


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
