"""The table of faults: what its command prints, and that what is on record was carried out and lost nothing."""

import re

import pytest

from parity_tests.checkpoint import crash, damage, errors, faults, kills
from parity_tests.checkpoint.faults import Line


def test_the_record_has_every_campaign_each_of_its_kinds_and_no_loss() -> None:
    found = faults.record()
    assert {line.group for line in found} == set(faults.CAMPAIGNS)
    assert all(line.injected > 0 and line.losses == 0 for line in found)
    kinds = {line.kind for line in found}
    assert {f"power fails: {name}" for name in crash.SCENARIOS} <= kinds
    assert set(damage.KINDS) <= kinds
    assert len(kinds) == len(found)
    assert sum(line.injected for line in found if "killed" in line.kind) >= 300


def test_the_command_prints_the_table_and_its_status_tells_of_losses(capsys, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(faults, "RECORD", tmp_path / "faults.json")
    monkeypatch.setattr(faults, "CAMPAIGNS", {"a": lambda: {"x": (3, 0)}, "b": lambda: {"y": (4000, 0), "z": (1, 0)}})
    assert faults.main(["--record"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^all +4,004 +0$", printed, re.MULTILINE)
    assert re.search(r"^b +4,001 +0$", printed, re.MULTILINE)
    assert faults.record() == [Line("a", "x", 3, 0), Line("b", "y", 4000, 0), Line("b", "z", 1, 0)]
    for wrong in ((3, 1), (0, 0)):  # a loss, and a campaign that injects nothing
        monkeypatch.setitem(faults.CAMPAIGNS, "a", lambda wrong=wrong: {"x": wrong})
        assert faults.main([]) == 1
    assert faults.main(["--anew"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize("module", [crash, damage, errors, kills])
def test_every_campaign_is_in_the_table(module) -> None:
    assert module.campaign in faults.CAMPAIGNS.values()
