"""The audit names the lost state of every faulty loop first, and finds no fault in a sound one."""

import pytest

torch = pytest.importorskip("torch", reason="torch is missing: the loops are torch's")

from parity_tests.zoo import proof
from parity_tests.zoo.__main__ import summary
from parity_tests.zoo.base import FAULTS, SOUND

proof.registry()


@pytest.mark.parametrize("name", FAULTS)
def test_the_lost_state_is_named_first_and_proved(cells, name):
    cell = cells[name].result()
    assert cell["verdict"] == "named", cell
    assert cell["proved"] or FAULTS[name].raises, cell  # where the resume raises there is no run to be equal


@pytest.mark.parametrize("name", SOUND)
def test_a_sound_loop_has_no_fault(cells, name):
    cell = cells[name].result()
    assert cell["verdict"] == "sound", cell


def test_precision_and_recall_count_what_they_say():
    def row(faulty, verdict):
        return {"faulty": faulty, "audit": {"verdict": verdict}}

    rows = {"a": row(True, "named"), "b": row(True, "found"), "c": row(True, "missed"), "d": row(True, "abstains")}
    rows |= {"e": row(False, "sound"), "f": row(False, "false alarm"), "g": row(False, "abstains")}
    assert summary(rows, "audit") == (
        "audit: precision 67%, recall 50%; 2 of 4 faulty loops reported, 1 with the lost state first; "
        "1 of 3 sound loops reported"
    )
