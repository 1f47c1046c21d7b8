"""The exhaustive check can fail, goes on where it was, and was run on the files as they are."""

import json
import shlex
import sys
from pathlib import Path

import mpmath
import numpy as np
import pytest

from numpy_ref.arithmetic import operations as arithmetic
from numpy_ref.arithmetic import rounding
from numpy_ref.cli import number_line
from parity_tests.arithmetic import exhaustive
from parity_tests.arithmetic.exhaustive import (
    BOUNDS,
    CASTS,
    CHUNK,
    EXP_ENDS,
    SHORT,
    TASKS,
    check,
    exp_in_two,
    log_in_two,
    midpoints,
)
from parity_tests.implementations import NO_TORCH
from parity_tests.oracles import FORMATS

FEW = 1 << 14


def on(name: str, *rest):
    """A task and what it is given, as a parameter; the casts need PyTorch."""
    return pytest.param(name, *rest, marks=[NO_TORCH] if name in CASTS else [])


EVERY_TASK = [on(name) for name in TASKS]


def bits_of(x: float, name: str = "exp") -> int:
    """The pattern of a number among a task's inputs."""
    with np.errstate(over="ignore", under="ignore"):
        return int(np.float16(x).view(np.uint16) if name in SHORT else np.float32(x).view(np.uint32))


def share_of_bound(name: str, x: np.ndarray) -> float:
    """The largest error of the two-part evaluation beside mpmath, relative to the result and the stated bound."""
    high, low = {"exp": exp_in_two, "log": log_in_two}[name](x.astype(np.float64))
    with mpmath.workprec(240):
        exact = [getattr(mpmath, name)(mpmath.mpf(value)) for value in x.tolist()]
        errors = [abs((mpmath.mpf(a) + b - y) / y) for a, b, y in zip(high.tolist(), low.tolist(), exact, strict=True)]
        return float(max(errors)) / BOUNDS[name]


def test_exp_in_two_parts_is_within_its_bound():
    rng = np.random.default_rng(20)
    sizes = 2.0 ** rng.uniform(-26, 6.4, 8000) * rng.choice([-1.0, 1.0], 8000)
    ties = (np.arange(-200, 200) + 0.5) / exhaustive.EXP_STEPS  # as far from the table's entries as can be
    ends = np.nextafter(np.float32(EXP_ENDS), np.float32(0))
    x = np.concatenate([sizes, rng.uniform(*EXP_ENDS, 8000), ties, ends, [2.0**-26, -(2.0**-26), 1.0, 88.72284]])
    assert share_of_bound("exp", x.astype(np.float32)) < 1


def test_log_in_two_parts_is_within_its_bound():
    rng = np.random.default_rng(21)
    anything = rng.integers(1, bits_of(np.inf), 8000, dtype=np.uint32).view(np.float32)
    beside_1 = np.concatenate([1 - np.arange(1, 300) * 2.0**-24, 1 + np.arange(1, 300) * 2.0**-23])
    ties = (np.arange(12288, 24576, 23) + 0.5) / exhaustive.LOG_STEPS
    extremes = [2.0**-149, 2.0**-126, 0.75, 1.5, np.nextafter(np.float32(1.5), np.float32(2)), np.finfo(np.float32).max]
    x = np.concatenate([anything, rng.uniform(0.9, 1.1, 8000), beside_1, ties, extremes]).astype(np.float32)
    assert share_of_bound("log", x[x != 1]) < 1


def numbers_in_order(kind: str) -> list[np.ndarray]:
    """Runs of neighbouring numbers >= 0 of a format: all of the 16-bit ones, in float32 those about each power of 2."""
    if kind == "float16":
        return [np.arange(0x7C01, dtype=np.uint16).view(np.float16)]
    if kind == "bfloat16":
        return [(np.arange(0x7F81, dtype=np.uint32) << 16).view(np.float32)]
    about = [np.arange(max(e * 2**23 - 40, 0), min(e * 2**23 + 40, 0x7F800001), dtype=np.uint32) for e in range(256)]
    return [bits.view(np.float32) for bits in about]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32"])
def test_midpoints_lie_halfway_to_both_neighbours(kind):
    _, smallest, end = FORMATS[kind]
    for numbers in numbers_in_order(kind):
        value = np.where(np.isinf(numbers), 2.0**end, numbers.astype(np.float64))
        below, above = midpoints(numbers, kind)
        halfway = (value[1:] + value[:-1]) / 2
        np.testing.assert_array_equal(below[1:], halfway)
        np.testing.assert_array_equal(above[:-1], halfway)
        if numbers[0] == 0:
            assert below[0] == -(2.0 ** (smallest - 1))
    assert np.isinf(numbers[-1])
    assert np.isinf(above[-1])


@pytest.mark.parametrize("name", EVERY_TASK)
def test_a_range_of_every_task_passes(name):
    for x in (0.0, -0.0, 2.0**-127, 2.0**-24, 1.0, 64.0, 65519.0, 3.3895e38, np.inf, -1.0, -103.9, -np.inf):
        first = min(max(bits_of(x, name) - FEW // 2, 0), exhaustive.inputs(name) - FEW)
        outcome = check(name, first, FEW)
        assert (outcome.inputs, outcome.undecided, outcome.wrong, outcome.examples) == (FEW, 0, 0, [])


@pytest.mark.parametrize("name", EVERY_TASK)
def test_the_last_bit_pattern_is_judged(name):
    outcome = check(name, exhaustive.inputs(name) - 3, 3)
    assert (outcome.inputs, outcome.wrong) == (3, 0)


def test_the_inputs_are_all_patterns_of_their_type_once():
    for name, dtype in (("exp", np.float32), ("cast float16", np.float32), ("cast from float16", np.float16)):
        last = exhaustive.inputs(name)
        assert last == 256 ** np.dtype(dtype).itemsize
        x = exhaustive.patterns(name, last - 3, 3)
        assert x.dtype == dtype
        assert x.view(f"u{x.itemsize}").tolist() == [last - 3, last - 2, last - 1]


def change(monkeypatch: pytest.MonkeyPatch, name: str, x: float, mutant) -> None:
    """Let a task's function return mutant(right result) for one input."""
    module, attribute = (rounding, "round_to") if name in FORMATS else (arithmetic, name)
    if name in CASTS:
        module, attribute = number_line, "cast_to_dtype"
    real = getattr(module, attribute)

    def changed(a, *kind):
        out, place = real(a, *kind), a.view(f"u{a.itemsize}") == bits_of(x, name)
        out[place] = mutant(out[place])
        return out

    monkeypatch.setattr(module, attribute, changed)


def up(y: np.ndarray) -> np.ndarray:
    return np.nextafter(y, y.dtype.type(np.inf))


def down(y: np.ndarray) -> np.ndarray:
    return np.nextafter(y, y.dtype.type(-np.inf))


def up_bfloat16(y: np.ndarray) -> np.ndarray:
    return (y.view(np.uint32) + 0x10000).view(np.float32)


FAULTS = [
    *[("exp", x, fault) for x in (-103.5, -87.4, -0.3, 2.0**-26, 0.0, 1.0, 88.5) for fault in (up, down)],
    *[("log", x, fault) for x in (2.0**-149, 0.3, 1 - 2.0**-24, 1.0, 1 + 2.0**-23, 3e38) for fault in (up, down)],
    *[("sqrt", x, fault) for x in (2.0**-149, 0.3, 4.0, 3e38) for fault in (up, down)],
    *[("float16", x, fault) for x in (2.0**-25, 1e-5, 0.1, 1 + 2.0**-11, -65519.0) for fault in (up, down)],
    *[("bfloat16", x, up_bfloat16) for x in (2.0**-134, 0.1, 1 + 2.0**-8, -3.38e38)],
    ("bfloat16", 0.1, up),  # no bfloat16 number, though nearer
    ("float16", 65520.0, down),
    ("exp", 100.0, down),
    ("exp", 88.723, down),
    *[(name, x, np.negative) for name in ("sqrt", "float16", "bfloat16") for x in (0.0, -0.0, 1.0, np.inf)],
    *[("exp", -x, np.negative) for x in (0.3, 103.98, 200.0)],
    *[(name, 1.0, lambda y: y * np.nan) for name in TASKS],
    *[(name, np.nan, lambda y: np.ones_like(y)) for name in TASKS],
    *[(name, -1.0, lambda y: np.ones_like(y)) for name in ("log", "sqrt")],
    ("log", 0.0, np.negative),
    ("log", np.inf, down),
    *[("cast float16", x, fault) for x in (2.0**-25, 1e-5, 0.1, 1 + 2.0**-11, -65519.0) for fault in (up, down)],
    *[("cast bfloat16", x, up_bfloat16) for x in (2.0**-134, 0.1, 1 + 2.0**-8, -3.38e38)],
    *[("cast from float16", x, fault) for x in (2.0**-24, 1.0, -65504.0) for fault in (up, down)],
    *[(name, x, np.negative) for name in CASTS for x in (0.0, -0.0, 1.0, np.inf)],
]


@pytest.mark.parametrize(("name", "x", "fault"), [on(*fault) for fault in FAULTS])
def test_one_wrong_result_is_found_and_named(monkeypatch, name, x, fault):
    first = max(bits_of(x, name) - 5, 0)
    given = exhaustive.patterns(name, bits_of(x, name), 1)
    with np.errstate(all="ignore"):
        right = exhaustive.compute(name, given)[0]
        change(monkeypatch, name, x, fault)
        wrong = exhaustive.compute(name, given)[0]
    outcome = check(name, first, 11)
    assert (outcome.wrong, outcome.undecided) == (1, 0)
    of, answer, found = [exhaustive.shown(value) for value in (given[0], right, wrong)]
    answer = f"{answer} by rounding.cast and {answer} by torch" if name in CASTS else answer
    assert outcome.examples == [f"{name} of {of}: expected {answer}, found {found}"]


@NO_TORCH
@pytest.mark.parametrize("by", exhaustive.WITNESSES)
@pytest.mark.parametrize("name", CASTS)
@pytest.mark.parametrize("x", [2.0**-24, 1.0, np.inf, np.nan])
def test_a_cast_that_one_witness_alone_does_not_bear_out_is_found_and_the_witness_named(monkeypatch, by, name, x):
    bits, real = bits_of(x, name), exhaustive.WITNESSES[by]

    def changed(a, kind):
        return np.where(a.view(f"u{a.itemsize}") == bits, real(a, kind).dtype.type(2), real(a, kind))

    monkeypatch.setitem(exhaustive.WITNESSES, by, changed)
    outcome = check(name, max(bits - 5, 0), 11)
    assert outcome.wrong == 1
    (text,) = outcome.examples
    assert (
        f"expected {exhaustive.shown(changed(np.ones(1, np.float32), CASTS[name])[0].dtype.type(2))} by {by}," in text
    )


@NO_TORCH
def test_torchs_cast_is_its_own_and_keeps_the_bits():
    x = np.array([2.0**-133, -0.0, 1 + 2.0**-8, 3.4e38, np.nan], np.float32)
    assert exhaustive.same(exhaustive.torchs_cast(x, "bfloat16"), rounding.cast(x, "bfloat16")).all()
    assert exhaustive.torchs_cast(x, "bfloat16").dtype == np.float32
    assert exhaustive.torchs_cast(x, "float16").dtype == np.float16


@pytest.mark.parametrize("name", ["exp", "log"])
def test_mpmath_decides_what_the_bound_leaves_open(monkeypatch, name):
    monkeypatch.setitem(BOUNDS, name, 2.0**-30)
    outcome = check(name, bits_of(0.3), 2000)
    assert outcome.undecided > 5
    assert outcome.wrong == 0
    change(monkeypatch, name, 0.3, up)
    monkeypatch.setitem(BOUNDS, name, 1.0)
    assert (check(name, bits_of(0.3), 20).undecided, check(name, bits_of(0.3), 20).wrong) == (20, 1)


def test_many_wrong_results_are_counted_and_a_few_shown(monkeypatch):
    monkeypatch.setattr(arithmetic, "exp", lambda x: np.full_like(x, 2))
    outcome = check("exp", bits_of(0.1), 100)
    assert (outcome.wrong, len(outcome.examples)) == (100, exhaustive.EXAMPLES)


def test_the_command_names_a_wrong_result_and_fails(monkeypatch, capsys, tmp_path):
    change(monkeypatch, "sqrt", 4.0, up)
    words = ["sqrt", "--jobs", "1", "--state", str(tmp_path / "state"), "--record", str(tmp_path / "record")]
    chunk = bits_of(4.0) // CHUNK
    assert exhaustive.main(words, chunks=[chunk]) == 1
    out = capsys.readouterr().out
    assert "sqrt of 4.0 (0x40800000): expected 2.0 (0x40000000), found 2.0000002 (0x40000001)" in out
    assert not (tmp_path / "record").exists()
    monkeypatch.undo()
    assert exhaustive.main(words, chunks=[chunk]) == 0  # a chunk with a wrong result is not finished
    assert f"sqrt: {CHUNK} inputs, 0 undecided, 0 wrong" in capsys.readouterr().out


def test_a_resumed_run_skips_finished_chunks_and_gives_the_same_totals(monkeypatch, capsys, tmp_path):
    state, records = tmp_path / "state", [tmp_path / name for name in ("whole", "resumed", "again")]
    words = ["sqrt", "bfloat16", "--jobs", "1", "--state", str(state), "--record"]
    assert exhaustive.main([*words, str(records[0])], chunks=range(3)) == 0
    state.write_text(state.read_text()[:-30])  # interrupted in the last line
    worked, real = [], exhaustive.check
    monkeypatch.setattr(exhaustive, "check", lambda *job: worked.append(job) or real(*job))
    assert exhaustive.main([*words, str(records[1])], chunks=range(4)) == 0
    assert len(worked) == 3  # the one cut short, and the fourth of both tasks
    assert exhaustive.main([*words, str(records[2])], chunks=range(4)) == 0
    assert len(worked) == 3
    whole, resumed, again = [json.loads(path.read_text())["runs"][0] for path in records]
    assert [record["resumed_chunks"] for record in (whole, resumed, again)] == [0, 5, 8]
    assert again["tasks"] == resumed["tasks"]
    for task in ("sqrt", "bfloat16"):
        assert whole["tasks"][task]["inputs"] == 3 * CHUNK
        assert resumed["tasks"][task]["inputs"] == 4 * CHUNK
        assert resumed["tasks"][task]["wrong"] == 0
    monkeypatch.setattr(exhaustive, "SOURCES", [Path(__file__)])  # other sources: nothing of this counts
    assert exhaustive.main(words[:-1], chunks=range(1)) == 0
    assert len(worked) == 5


def test_two_processes_give_what_one_gives(capsys, tmp_path):
    words = ["sqrt", "--jobs", "2", "--state", str(tmp_path / "state"), "--record", str(tmp_path / "record")]
    assert exhaustive.main(words, chunks=range(2)) == 0
    (run,) = json.loads((tmp_path / "record").read_text())["runs"]
    assert run["tasks"]["sqrt"]["inputs"] == 2 * CHUNK


@NO_TORCH
def test_a_run_of_some_tasks_replaces_these_in_the_record_and_leaves_the_others(tmp_path):
    record = tmp_path / "record"
    words = ["--jobs", "1", "--state", str(tmp_path / "state"), "--record", str(record)]
    found = []
    for tasks in (["sqrt", "bfloat16"], ["cast from float16"], ["bfloat16"], ["sqrt"]):
        assert exhaustive.main([*tasks, *words], chunks=range(1)) == 0
        found.append([list(run["tasks"]) for run in json.loads(record.read_text())["runs"]])
    assert found[0] == [["sqrt", "bfloat16"]]
    assert found[1] == [["sqrt", "bfloat16"], ["cast from float16"]]
    assert found[2] == [["sqrt"], ["cast from float16"], ["bfloat16"]]
    assert found[3] == [["cast from float16"], ["bfloat16"], ["sqrt"]]
    (run, *_) = json.loads(record.read_text())["runs"]
    assert run["tasks"]["cast from float16"]["inputs"] == 2**16
    assert run["torch"]


def test_without_torch_the_casts_are_refused_and_the_other_tasks_are_not(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(exhaustive, "find_spec", lambda name: None)
    words = ["--jobs", "1", "--state", str(tmp_path / "state")]
    with pytest.raises(SystemExit):
        exhaustive.main(words, chunks=range(0))
    assert "cast float16, cast bfloat16, cast from float16 need PyTorch" in capsys.readouterr().err
    assert exhaustive.main(["sqrt", *words], chunks=range(0)) == 0


@pytest.mark.parametrize("words", [["tanh"], ["--jobs", "0"]])
def test_unknown_tasks_and_no_processes_are_refused(words, capsys):
    with pytest.raises(SystemExit):
        exhaustive.main(words)
    assert f"found {words[-1]!r}".replace("'0'", "0") in capsys.readouterr().err


@pytest.mark.parametrize("task", ["exp", "log", "sqrt", "float16", "bfloat16"])
def test_a_change_of_any_function_that_a_task_runs_moves_its_digest(tmp_path, task):
    ran, files = set(), {str(path): path for path in exhaustive.SOURCES}

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename in files:
            ran.add((files[frame.f_code.co_filename], frame.f_code.co_qualname.partition(".")[0]))

    sys.setprofile(note)
    try:
        for pattern in (0x00000001, 0x3F800000, 0x3FC00000, 0x42B17218, 0x7F7FFFFF, 0xBF800001, 0xFF800000):
            exhaustive.compute(task, np.array([pattern], np.uint32).view(np.float32))
    finally:
        sys.setprofile(None)
    assert ran
    root = "round_to" if task in FORMATS else task
    before = exhaustive.digest(exhaustive.SOURCES, [root])
    for path, name in ran:
        if f"def {name}(" in path.read_text():
            other = tmp_path / path.name
            other.write_text(path.read_text().replace(f"def {name}(", f"def {name}(changed, "))
            assert exhaustive.digest([other if p == path else p for p in exhaustive.SOURCES], [root]) != before, name


@pytest.mark.parametrize("name", ["CASTS", "FORMATS", "STORAGE", "cast_to_dtype"])
def test_another_table_or_function_gives_the_casts_another_digest_and_the_other_tasks_none(monkeypatch, name):
    before = {task: exhaustive.source(task) for task in TASKS}
    other = rounding.cast if name == "cast_to_dtype" else type(getattr(number_line, name))()
    monkeypatch.setattr(number_line, name, other)
    changed = {task for task in TASKS if exhaustive.source(task) != before[task]}
    assert changed == set(CASTS)


def test_the_digest_moves_with_the_code_that_a_name_rests_on_and_with_nothing_else(tmp_path):
    text = (
        '"""Top."""\n\nimport os\n\nArray = int\nX = 1  # one\n\n\ndef f(a: Array):\n'
        '    """Doc,\n    of two lines.\n    """\n    return g(a) + X\n\n\ndef g(a):\n    return a\n\n\n'
        "def h():\n    return 0\n"
    )
    found = {}
    for name, old, new in (
        ("itself", "", ""),
        ("module's docstring", "Top.", "Other."),
        ("function's docstring", "of two lines.", "of\n    three lines."),
        ("comment", "# one", "# two"),
        ("import", "import os", "import sys"),
        ("alias", "Array = int", "Array = float"),
        ("function that f does not use", "return 0", "return 1"),
        ("constant", "X = 1", "X = 2"),
        ("body", "return g(a)", "return -g(a)"),
        ("function that f uses", "return a", "return -a"),
        ("text that is no docstring", "return a", 'return """a"""'),
    ):
        path = tmp_path / f"{len(found)}.py"
        path.write_text(text.replace(old, new, 1) if old else text)
        found[name] = exhaustive.digest([path], ["f"])
    same = [name for name, value in found.items() if value == found["itself"]]
    assert same == list(found)[:7]


def test_the_recorded_runs_found_nothing_wrong_and_are_of_these_sources():
    path = exhaustive.HERE / "exhaustive.json"
    command = "python -m parity_tests.arithmetic.exhaustive {} --record parity_tests/arithmetic/exhaustive.json"
    assert path.exists(), f"{path}: expected the record of a full run, found no file; run {command.format('')}"
    totals = {name: total for run in json.loads(path.read_text())["runs"] for name, total in run["tasks"].items()}
    expected = {
        name: {"inputs": exhaustive.inputs(name), "wrong": 0, "source_sha256": exhaustive.source(name)}
        for name in TASKS
    }
    found = {name: {key: total[key] for key in expected[name]} for name, total in totals.items() if name in expected}
    stale = [name for name in TASKS if found.get(name) != expected[name]]
    assert not stale, (
        f"{path}: expected, of the present sources, { ({name: expected[name] for name in stale}) }, "
        f"found { ({name: found.get(name) for name in stale}) }: run {command.format(shlex.join(stale))}"
    )
    assert totals.keys() == set(TASKS)
