"""The worker processes keep no copy of the state for themselves."""

import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from parity_tests.audit import loops
from torch_port.audit import audit

# Of the whole state: a run that goes on holds it once, one that resumes holds the file's too. What a process takes
# for its first operations comes on top.
ONCE, TWICE = 1.5 * loops.Large.STATE, 2.5 * loops.Large.STATE


@pytest.mark.campaign
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
def test_the_state_is_held_once_and_by_a_resume_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = tmp_path / "peaks"
    monkeypatch.setenv("AUDIT_PEAKS", str(peaks))
    report = audit(f"{loops.__name__}:ForgetsALot", steps=3, at=[1], power=False)
    assert report.first_lost == "moment", report
    lines = [line.split() for line in peaks.read_text().splitlines()]
    resumed = {process for process, what, _ in lines if what == "load"}
    most = {"whole": 0, "resumed": 0}
    for process, _, size in lines:
        kind = "resumed" if process in resumed else "whole"
        most[kind] = max(most[kind], int(size))
    assert loops.Large.STATE / 2 < most["whole"] <= ONCE, most
    assert loops.Large.STATE < most["resumed"] <= TWICE, most
