"""The benchmark command: both sides are timed, a missed goal is said and counts, and the record is of these rows."""

import json
from pathlib import Path

import numpy as np
import pytest

from parity_tests.benchmarks import __main__ as command
from parity_tests.benchmarks import measure, rows
from parity_tests.commands import strict_json

RECORD = Path(command.__file__).with_name("record.json")


def work(n):
    """Something that takes long in proportion to n."""
    return lambda: [i * i for i in range(n)]


def row(goal, ours=30_000, other=10_000):
    return measure.Row("matmul", "a row", "the other", goal, lambda: (work(ours), work(other)))


def test_the_ratio_is_ours_over_the_others():
    result = measure.measure(row(None), seconds=0)
    assert result.rounds == 5
    assert result.smallest <= result.ratio <= result.largest
    assert result.ratio > 1
    assert result.ours_ms > result.other_ms
    swapped = measure.measure(row(None, ours=10_000, other=30_000), seconds=0)
    assert swapped.ratio < 1


def test_times_are_those_of_one_step():
    one = measure.measure(row(None), seconds=0)
    ten = measure.measure(row(None)._replace(steps=10), seconds=0)
    assert ten.ours_ms < one.ours_ms / 3


def test_a_row_without_another_side_has_seconds_and_no_ratio():
    result = measure.measure(measure.Row("process", "a process", "", None, lambda: (work(1000),)), seconds=0)
    assert (result.ratio, result.other_ms, result.verdict) == (None, None, "no goal")
    assert measure.line(result).startswith("a process: 0.00 s")


@pytest.mark.parametrize(("goal", "status", "said"), [(1e9, 0, "met"), (1e-9, 1, "missed"), (None, 0, "")])
def test_a_missed_goal_is_said_and_is_the_exit_status(capsys, monkeypatch, goal, status, said):
    monkeypatch.setattr(rows, "ROWS", (row(goal),))
    assert command.main([]) == status
    first, last = capsys.readouterr().out.splitlines()
    assert first.startswith("a row: the other ")
    assert first.endswith(f"goal {goal:g}: {said}" if said else ")")
    assert last == f"goals missed: {'a row' if status else 'none'}"
    assert command.main(["--json"]) == status
    (told,) = strict_json(capsys.readouterr().out)["rows"]
    assert told["verdict"] == (said or "no goal")


def test_rows_are_chosen_by_group(capsys, monkeypatch):
    other = row(None)._replace(group="sum", name="another row")
    monkeypatch.setattr(rows, "ROWS", (row(None), other))
    assert command.main(["--rows", "sum"]) == 0
    assert capsys.readouterr().out.startswith("another row: ")
    with pytest.raises(SystemExit) as end:
        command.main(["--rows", "sum,product"])
    assert end.value.code == 2
    assert "expected some of matmul, sum, found 'product'" in capsys.readouterr().err


def test_the_matrices_are_what_their_names_say():
    for kind in ("normal", "relu", "signs", "cancelling", "wide"):
        a, b = rows.factors(kind, 64)
        assert (a.dtype, b.dtype, a.shape, b.shape) == (np.float32, np.float32, (64, 64), (64, 64))
        assert np.isfinite(a).all()
        assert np.isfinite(b).all()
    assert (rows.factors("relu", 64)[0] == 0).mean() > 0.4
    assert set(np.unique(rows.factors("signs", 64)[0])) == {-1, 1}
    a, b = rows.factors("cancelling", 64)
    assert (np.abs(a @ b) < 1e-4 * (np.abs(a) @ np.abs(b))).all()


def test_the_record_is_of_these_rows_and_goals_and_says_where_it_was_taken():
    record = json.loads(RECORD.read_text())
    assert [(r["group"], r["name"], r["goal"]) for r in record["rows"]] == [
        (r.group, r.name, r.goal) for r in rows.ROWS
    ]
    assert all(record["machine"][field] for field in ("date", "processor", "numpy", "blas", "threads"))
    assert set(record["machine"]["threads"].values()) == {"1"}
