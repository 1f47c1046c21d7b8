"""The benchmark command: what is compared is measured in turn and does the same; missed goals count; the record."""

import json
import mmap
import os
import threading
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from numpy_ref import init_run, load_data, train_n_steps
from numpy_ref.tree import flatten
from parity_tests.benchmarks import __main__ as command
from parity_tests.benchmarks import measure, rows, rows_compute, rows_disk, rows_growth, rows_processes
from parity_tests.benchmarks.measure import OURS
from parity_tests.commands import strict_json
from parity_tests.implementations import NO_TORCH

RECORDS = {1: "record.json", 2: "record_2_threads.json"}  # of so many threads
SMALL = rows_compute.Size(64, (8,), 4, 2)
FORMATS = rows_disk.FORMATS | rows_disk.LOADS_LAZILY


def readings(*values):
    """A side that reads these one after the other, and the last one for ever."""
    left = list(values)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


def row(goals, **sides):
    return measure.Row("matmul", "a row", lambda _: sides or {OURS: lambda: 3.0, "other": lambda: 2.0}, goals)


def test_medians_extremes_and_ratios_are_those_of_the_rounds():
    sides = {OURS: readings(1, 2, 9, 2, 1), "other": readings(1, 4, 3, 1, 2), "absent": None}
    found = measure.measure(row({OURS: 2, "other": 0.9, "absent": 1}, **sides), seconds=0)
    assert found.rounds == 5
    ours, other, absent = found.sides
    assert (ours.reading, ours.ratio, ours.verdict) == ((2, 1, 9), None, "met")
    assert (other.reading, other.ratio, other.verdict) == ((2, 1, 4), (1, 0.5, 3), "missed")
    assert (absent.reading, absent.ratio, absent.verdict) == (None, None, "not installed")
    assert found.names("missed") == ["a row, other"]


def test_sides_are_measured_in_turn_forwards_and_backwards():
    seen = []
    sides = {name: lambda name=name: seen.append(name) or 1.0 for name in (OURS, "a", "b")}
    measure.measure(row({}, **sides)._replace(rounds=2), seconds=0)
    assert seen == [OURS, "a", "b", "b", "a", OURS]


def test_a_row_without_what_it_needs_is_told_and_not_dropped():
    def prepare(_):
        raise ModuleNotFoundError("No module named 'torch'")

    found = measure.measure(row({"other": 1})._replace(prepare=prepare))
    assert [(side.name, side.verdict) for side in found.sides] == [(OURS, "not installed"), ("other", "not installed")]
    assert found.rounds == 0


def test_times_are_those_of_one_step_after_a_first_call():
    called = []
    reading = measure.spent(lambda: called.append(sum(range(100_000))), steps=10)
    ten = reading()
    assert len(called) >= 3
    one = measure.spent(lambda: sum(range(100_000)))()
    assert 0 < ten < one / 2
    assert measure.waited(lambda: called.clear())() > 0
    assert called == []
    assert measure.beyond(lambda: 3.0, lambda: 1.0)() == 2


def test_a_process_that_fails_ends_the_measurement():
    assert measure.process("-c", "print(3)")() == "3\n"
    assert measure.process("-c", "exit(1)", status=1)() == ""
    with pytest.raises(RuntimeError, match="status 1"):
        measure.process("-c", "exit(1)")()


def test_a_short_time_is_told_in_a_unit_that_suits_it():
    for seconds, said in ((2.0, "2 s (2 to 2)"), (2e-3, "2 ms (2 to 2)"), (2e-6, "2 us (2 to 2)")):
        assert measure.line(measure.measure(row({}, **{OURS: readings(seconds)}), seconds=0)).endswith(said)


@pytest.mark.parametrize(("goal", "status", "said"), [(9, 0, "met"), (1, 1, "missed"), (None, 0, "no goal")])
def test_a_missed_goal_is_said_and_is_the_exit_status(capsys, monkeypatch, goal, status, said):
    monkeypatch.setattr(rows, "ROWS", (row({} if goal is None else {"other": goal}),))
    assert command.main([]) == status
    *_, other, absent, missed = capsys.readouterr().out.splitlines()
    assert other.endswith(f"goal {goal}: {said}" if goal else ")")
    assert absent == "not installed: none"
    assert missed == f"goals missed: {'a row, other' if status else 'none'}"
    assert command.main(["--json"]) == status
    told = strict_json(capsys.readouterr().out)
    assert [side["verdict"] for side in told["rows"][0]["sides"]] == ["no goal", said]
    assert set(told["machine"]["peers"]) == {"torch", "safetensors"}


def test_a_record_keeps_other_groups_and_what_was_said_of_a_missed_goal(tmp_path, monkeypatch, capsys):
    path, other = tmp_path / "record.json", row({"other": 1})._replace(group="sum", name="another row")
    monkeypatch.setattr(rows, "ROWS", (row({"other": 1}), other))
    assert command.main(["--record", str(path)]) == 1
    record = strict_json(path.read_text())
    assert record["limits"] == {"a row": "", "another row": ""}
    record["limits"] = {"a row": "the one", "another row": "the other"}
    path.write_text(json.dumps(record))
    monkeypatch.setattr(rows, "ROWS", (row({"other": 2}), other))
    assert command.main(["--rows", "matmul", "--record", str(path)]) == 0
    record = strict_json(path.read_text())
    assert [(row["name"], row["sides"][1]["goal"]) for row in record["rows"]] == [("a row", 2), ("another row", 1)]
    assert record["limits"] == {"another row": "the other"}
    record["machine"]["cpus"] = -1
    path.write_text(before := json.dumps(record))
    with pytest.raises(SystemExit) as error:
        command.main(["--rows", "matmul", "--record", str(path)])
    assert error.value.code == 2
    assert "another machine" in capsys.readouterr().err
    assert path.read_text() == before
    assert command.main(["--record", str(path)]) == 1
    assert strict_json(path.read_text())["machine"]["cpus"] != -1


@pytest.mark.parametrize("found", ["", "[]", "{}", '{"machine": 1', "directory", "nowhere"])
def test_a_record_that_is_none_is_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys, found):
    path = tmp_path / "gone" / "record.json" if found == "nowhere" else tmp_path / "record.json"
    if found == "directory":
        path.mkdir()
    elif found != "nowhere":
        path.write_text(found)
    monkeypatch.setattr(rows, "ROWS", (row({})._replace(prepare=None),))
    with pytest.raises(SystemExit) as error:
        command.main(["--record", str(path)])
    assert error.value.code == 2
    assert str(path) in capsys.readouterr().err
    assert path.is_dir() or not path.exists() or path.read_text() == found


def test_what_is_measured_before_an_interrupt_is_on_record(tmp_path, monkeypatch):
    def interrupted(_):
        raise KeyboardInterrupt

    path, later = tmp_path / "record.json", row({})._replace(group="sum", prepare=interrupted)
    monkeypatch.setattr(rows, "ROWS", (row({}), row({}), later))
    with pytest.raises(KeyboardInterrupt):
        command.main(["--record", str(path)])
    assert [row["group"] for row in strict_json(path.read_text())["rows"]] == ["matmul", "matmul"]


def test_rows_are_chosen_by_group(capsys, monkeypatch):
    other = row({})._replace(group="sum", name="another row")
    monkeypatch.setattr(rows, "ROWS", (row({}), other))
    assert command.main(["--rows", "sum"]) == 0
    assert capsys.readouterr().out.startswith("another row\n")
    for words in ("", "sum,", "sum,product"):
        with pytest.raises(SystemExit) as end:
            command.main(["--rows", words])
        assert end.value.code == 2
    assert "expected some of matmul, sum, found 'product'" in capsys.readouterr().err


def test_every_library_is_told_the_threads_and_then_the_wall_clock_counts(monkeypatch):
    for name in command.THREADS:
        monkeypatch.setenv(name, "7")
    command.set_threads(["--rows", "sum", "--threads", "2"])
    assert {os.environ[name] for name in command.THREADS} == {"2"}
    assert measure.threads() == 2
    command.set_threads([])
    assert measure.threads() == 1


def test_a_row_is_known_by_its_name():
    names = [row.name for row in rows.ROWS if row.group != "otherway"]
    assert len(set(names)) == len(names)


def test_the_matrices_are_what_their_names_say():
    for kind in ("normal", "relu", "signs", "cancelling", "wide"):
        for factor in rows_compute.factors(kind, 64):
            assert (factor.dtype, factor.shape, np.isfinite(factor).all()) == (np.float32, (64, 64), True)
    assert (rows_compute.factors("relu", 64)[0] == 0).mean() > 0.4
    assert set(np.unique(rows_compute.factors("signs", 64)[0])) == {-1, 1}
    a, b = rows_compute.factors("cancelling", 64)
    assert (np.abs(a @ b) < 1e-4 * (np.abs(a) @ np.abs(b))).all()


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_gives_back_the_bytes_it_saved(tmp_path, name):
    form = rows_disk.made(FORMATS)[name]
    if form is None:
        pytest.skip("not installed")
    arrays = rows_disk.state(7, (3, 5))
    own = form.own(arrays)
    form.save(tmp_path / "file", own)
    loaded = {key: np.asarray(value) for key, value in form.load(tmp_path / "file", own).items()}
    assert {key: (a.shape, a.tobytes()) for key, a in loaded.items()} == {
        key: (a.shape, a.tobytes()) for key, a in arrays.items()
    }
    rows_disk.remove(tmp_path / "file")
    assert list(tmp_path.iterdir()) == []


def test_a_format_that_is_not_installed_is_none():
    def absent():
        raise ModuleNotFoundError("No module named 'peer'")

    assert rows_disk.made({"peer": absent}) == {"peer": None}
    assert measure.installed("no_such_peer") is None


def goals_of(group):
    return {name for row in rows.ROWS if row.group == group for name in row.goals}


@pytest.mark.parametrize("prepare", [rows_disk.saves, rows_disk.loads, rows_disk.memory])
def test_rows_of_the_disk_have_every_format_and_leave_nothing(tmp_path, prepare):
    sides = prepare(3, (4,), tmp_path)
    assert list(sides)[:6] == list(rows_disk.FORMATS)
    assert (goals_of("save") | goals_of("load") | goals_of("memory")) <= sides.keys()
    if prepare is rows_disk.saves:
        assert all(reading() > 0 for reading in sides.values() if reading)
        assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak")
def test_the_peak_of_a_save_counts_what_it_takes_and_not_what_was_there(tmp_path, monkeypatch):
    def takes(size):
        def save(path, _):
            with mmap.mmap(-1, size) as memory:  # of its own, where an allocator may have some left over
                for start in range(0, size, 4096):
                    memory[start] = 1
                path.write_bytes(memory[:1])

        return lambda: rows_disk.ours()._replace(save=save)

    arrays = rows_disk.state(3, (1 << 18,))
    monkeypatch.setitem(rows_disk.FORMATS, "frugal", takes(1))
    monkeypatch.setitem(rows_disk.FORMATS, "wasteful", takes(8 * rows_disk.MIB))
    assert rows_disk.peak("frugal", tmp_path / "a", arrays) < 2
    assert 7 < rows_disk.peak("wasteful", tmp_path / "b", arrays) < 12


def test_the_state_has_as_many_bytes_as_the_row_says():
    count, shape = rows_disk.GIGABYTE
    assert 999 * 10**6 <= 4 * count * np.prod(shape) <= 1001 * 10**6
    run = rows_disk.large_run(8)
    arrays = 64 * 8 + 8 + 8 * 8 + 8 + 8 * 10 + 10
    leaves = [leaf for leaf in flatten(run.state).values() if isinstance(leaf, np.ndarray)]
    assert sum(leaf.size for leaf in leaves) == 4 * arrays + 2 * 624  # and two streams
    assert 99 * 10**7 <= 16 * (64 * 7868 + 7868**2 + 10 * 7868) <= 101 * 10**7


def test_inspect_is_run_on_a_whole_checkpoint(tmp_path):
    sides = rows_disk.inspected(8, tmp_path)
    assert all(reading() > 0 for reading in sides.values())


@pytest.mark.parametrize("kind", ["synchronous", "background", pytest.param("asynchronous", marks=NO_TORCH)])
def test_a_save_beside_the_loop_is_there_when_it_has_ended(tmp_path, kind):
    run = rows_disk.large_run(8)
    save = getattr(rows_disk, kind)(run)
    assert rows_disk.call(save, tmp_path / "run") > 0
    assert list((tmp_path / "run").iterdir())
    assert rows_disk.stalls(rows_disk.call, 8, tmp_path / "other").keys() >= goals_of("stall")


def test_what_a_loop_loses_is_what_its_steps_do_not_account_for(tmp_path):
    hold, steps = threading.Event(), []

    def step():
        steps.append(None)
        hold.wait(0.002)

    def save(_):
        hold.wait(0.1)
        until = len(steps) + 20
        return lambda: len(steps) >= until

    assert 0.09 < rows_disk.lost(step, save, tmp_path) < 5
    assert len(steps) == 50


def test_a_fixed_order_sum_of_rank_one_products_is_the_product_in_that_order():
    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((5, 7)).astype(np.float32), rng.standard_normal((7, 3)).astype(np.float32)
    expected = np.zeros((5, 3), np.float32)
    for k in range(7):
        expected = expected + np.outer(a[:, k], b[k])
    assert rows_compute.rank_one_products(a, b).tobytes() == expected.tobytes()
    losses = [rows_compute.fixed_order_step(SMALL)() for _ in range(2)]
    assert losses[0] == losses[1]


@pytest.mark.parametrize("package", ["numpy_ref", pytest.param("torch_port", marks=NO_TORCH)])
def test_our_steps_are_the_steps_of_a_run(package):
    work = rows_compute.own_steps(package, SMALL, "reproducible")
    work()
    run = init_run(rows_compute.config(SMALL, "reproducible"), load_data("digits"))
    assert work().step == train_n_steps(run, load_data("digits"), 4).step == 4


@NO_TORCH
def test_stock_steps_train_the_same_network():
    losses = [rows_compute.stock_steps(SMALL._replace(steps=n), fused=True)() for n in (1, 400)]
    assert losses[1] < losses[0]


@NO_TORCH
def test_the_optimizers_that_are_compared_take_the_same_step():
    import torch

    from torch_port.optim import Adam

    found = []
    for make, settings in ((Adam, {}), (torch.optim.Adam, {"foreach": True}), (torch.optim.Adam, {"fused": True})):
        work = rows_compute.stock_adam(make, 2, 8, **settings)
        found.append(work.__closure__[0].cell_contents)
        work()
    ours = list(rows_compute.own_adam(2, 8)().values())
    for optimizer in found:
        for p, w in zip(optimizer.param_groups[0]["params"], ours, strict=True):
            assert np.abs(p.detach().numpy() - w).max() < 1e-3 / 100
    assert goals_of("adam") <= rows_compute.adam(2, 8, Path()).keys()


def test_training_rows_prepare(tmp_path):
    if find_spec("torch") is None:
        assert rows_compute.native(SMALL, tmp_path)["stock PyTorch"] is None
        return
    assert goals_of("native") <= rows_compute.native(SMALL, tmp_path).keys()
    assert goals_of("reproducible") <= rows_compute.reproducible("torch_port", SMALL, tmp_path).keys()
    assert goals_of("otherway") <= rows_compute.other_way("numpy_ref", SMALL, tmp_path).keys()


def test_an_exponent_is_the_power_of_the_size():
    sizes = (1e3, 1e4, 1e5)
    for power in (0, 1, 2):
        assert round(rows_growth.exponent(sizes, [3 * n**power for n in sizes]), 6) == power


def test_growth_is_measured_over_the_sizes(tmp_path):
    seen = []

    def task(size, folder):
        seen.append(size)
        return lambda: bytes(size) + bytes(size if size > 10 else 0)

    sides = rows_growth.grows(task, (1000, 10_000, 100_000), rows_growth.mebibytes, tmp_path)
    assert all(round(sides[side](), 1) in (0.9, 1.0, 1.1) for side in (OURS, rows_growth.LARGEST))
    assert seen == [1000, 10_000, 100_000]
    assert rows_growth.seconds(lambda: None) >= 0


@pytest.mark.parametrize(
    "task", ["adam", "saving", "loading", "deep_step", "deep_save", "deep_resume", "steps", "samples"]
)
def test_every_task_that_grows_can_be_done(tmp_path, task):
    work = getattr(rows_growth, task)(40, tmp_path)
    work()
    work()


def test_a_model_has_as_many_arrays_as_its_row_says():
    assert len(rows_growth.deep(10).state.model) == 10
    assert rows_growth.late_step(1, 2, Path()).keys() == {OURS, "a step after 1"}


def test_processes_are_those_of_their_rows(tmp_path):
    assert rows_processes.starts(tmp_path)[OURS]() > 0
    assert OURS in rows_processes.imports_of_the_port(tmp_path)
    assert OURS in rows_processes.audit("Everything", 0, tmp_path)
    assert OURS in rows_processes.demo(tmp_path)
    rows_processes.grade("numpy", tmp_path)
    assert len(list(tmp_path.glob("*.py"))) == 12


@pytest.mark.parametrize("threads", RECORDS)
def test_the_record_is_of_these_rows_and_goals_and_says_where_it_was_taken(threads):
    record = json.loads(Path(command.__file__).with_name(RECORDS[threads]).read_text())
    found = [
        (row["group"], row["name"], {side["name"]: side["goal"] for side in row["sides"] if side["goal"] is not None})
        for row in record["rows"]
    ]
    now = [(row.group, row.name, dict(row.goals)) for row in rows.ROWS]
    assert found == now
    assert all(record["machine"][field] for field in ("date", "processor", "numpy", "blas", "threads", "peers"))
    assert set(record["machine"]["threads"].values()) == {str(threads)}
    missed = {row["name"] for row in record["rows"] for side in row["sides"] if side["verdict"] == "missed"}
    assert missed == record["limits"].keys()  # what keeps each from its goal
    assert all(record["limits"].values())
