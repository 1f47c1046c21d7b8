"""The audit on the held-out loops; that these are what they say is proved without it."""

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: the loops are torch's")

from parity_tests.zoo import held_out

held_out.fill_registries()
NOT_PROVED: set[str] = set()


@pytest.mark.parametrize("name", held_out.HELD_FAULTS)
def test_the_lost_state_is_named_first_and_proved(cells, name):
    cell = cells[name].result()
    assert cell["verdict"] == "named", cell
    assert cell["proved"] is (name not in NOT_PROVED), cell


@pytest.mark.parametrize("name", held_out.HELD_SOUND)
def test_a_sound_loop_has_no_fault(cells, name):
    cell = cells[name].result()
    assert cell["verdict"] == "sound", cell
