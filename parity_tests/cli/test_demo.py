"""The whole experiment: its table, its figure, its digest, and that it notices when an outcome is wrong."""

import math
import re
import sys
from types import SimpleNamespace
from xml.etree import ElementTree

import numpy as np
import pytest

import numpy_ref
from numpy_ref import cli
from numpy_ref.checkpoint import save_and_resume as checkpoint
from numpy_ref.checkpoint.container import CheckpointError
from numpy_ref.checkpoint.save_and_resume import read_checkpoint, save_checkpoint
from numpy_ref.checkpoint.store import checkpoint_path
from numpy_ref.cli import demo
from numpy_ref.data import load_data
from parity_tests.commands import SOURCES, call, python, strict_json
from parity_tests.implementations import EACH, IMPLEMENTATIONS, NO_TORCH

LEFT_OUT = [
    "nothing",
    "all but the weights",
    "t",
    "m",
    "v",
    "schedule",
    "order generator",
    "position",
    "dropout generator",
    "seed (another one)",
]
NOTED = []  # what the demo told of its progress
SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def whole(folder):
    """The demo, carried out once in this process."""
    return demo.run_demo(numpy_ref, folder, note=lambda *count: NOTED.append(count))


@pytest.fixture(scope="module")
def printed(tmp_path_factory):
    """The demo of each package as a person runs it: its process and its directory."""
    folders = {impl: tmp_path_factory.mktemp("a person's place") for impl in IMPLEMENTATIONS}
    return {impl: (python("-m", impl.__name__, "demo", cwd=folder), folder) for impl, folder in folders.items()}


def cells_of(text):
    """The cells of a plain table by the line of dashes below its head; wrapped cells are put together."""
    lines = text.splitlines()
    ruler = next(i for i, line in enumerate(lines) if line and set(line) == {"-", " "})
    starts = [i for i, c in enumerate(lines[ruler]) if c == "-" and (i == 0 or lines[ruler][i - 1] == " ")]
    rows = []
    for line in lines[ruler + 1 :]:
        if not line:
            break
        cells = [line[a:b].strip() for a, b in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{a} {b}".strip() for a, b in zip(rows[-1], cells, strict=True)]
    return rows


def wrong(tmp_path):
    """The experiment's rows that are not the right ones."""
    result = demo.run_demo(numpy_ref, tmp_path)
    return [outcome.left_out for outcome in result.outcomes if not outcome.right], result.right


@pytest.mark.parametrize("impl", EACH)
def test_the_demo_prints_every_row_and_writes_the_figure(printed, impl):
    process, folder = printed[impl]
    assert (process.returncode, process.stderr) == (0, "")
    rows = cells_of(process.stdout)
    assert [row[0] for row in rows] == LEFT_OUT
    assert rows[0][1:] == ["bitwise", "-", "0", "-"]
    for row in rows[1:]:
        assert row[1] == "differs"
        assert row[2].startswith(f"step {demo.STOP + 1} model/layer")
        assert float(row[3]) > 0
        assert len(row[4].split()) > 5
    assert demo.DIGEST in process.stdout
    assert "every outcome is the right one" in process.stdout
    assert "WRONG" not in process.stdout
    assert [path.name for path in folder.iterdir()] == ["demo.svg"]


@NO_TORCH
def test_both_packages_print_the_same_demo_and_draw_the_same_figure(printed):
    """To the last digit of every distance, and word by word of every cause; only the seconds are their own."""
    texts = {re.sub(r" \([0-9.]+ s\)$", "", process.stdout.rstrip()) for process, _ in printed.values()}
    figures = {(folder / "demo.svg").read_bytes() for _, folder in printed.values()}
    assert (len(printed), len(texts), len(figures)) == (2, 1, 1)


def test_the_run_stops_where_every_state_matters():
    """In the middle of an epoch, off the schedule's period, with a decay before the stop and another after it."""
    n, config = len(load_data("digits").labels), demo.CONFIG
    steps_an_epoch = math.ceil(n / config.batch_size)
    assert demo.STOP % steps_an_epoch != 0
    assert demo.STOP // steps_an_epoch >= 1  # at the first epoch a lost order would show nothing
    assert config.schedule == "step"
    assert demo.STOP % config.step_size != 0
    assert 0 < demo.STOP // config.step_size < demo.STEPS // config.step_size
    assert config.dropout > 0
    assert n % config.batch_size != 0
    assert config.arithmetic == "reproducible"


def test_the_outcomes_are_bitwise_for_the_whole_and_apart_for_the_rest(whole):
    assert whole.right
    assert whole.digest == demo.DIGEST
    full, *others = whole.outcomes
    assert (full.resume, full.verdict.relation, full.largest) == ("full", "bitwise", 0.0)
    for outcome in others:
        assert outcome.largest == max(distance for _, _, distance in outcome.curve) > 0
        assert outcome.verdict.step == demo.STOP + 1
        assert outcome.curve[0][2] == 0  # all start at the same weights
    steps = list(range(demo.STOP, demo.STEPS + 1))
    assert all([step for step, _, _ in outcome.curve] == steps for outcome in whole.outcomes)
    assert full.curve == whole.reference[demo.STOP :]
    assert [step for step, _, _ in whole.reference] == list(range(demo.STEPS + 1))


def test_json_says_what_the_table_says(whole, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(demo, "run_demo", lambda *words: whole)
    answer = call(capsys, "demo", "--json", "--figure", tmp_path / "demo.svg")
    assert (answer.status, answer.err) == (0, "")
    told = strict_json(answer.out)
    assert (told["right"], told["digest"], told["expected_digest"]) == (True, whole.digest, demo.DIGEST)
    for row, outcome in zip(told["outcomes"], whole.outcomes, strict=True):
        verdict = outcome.verdict
        assert (row["left_out"], row["right"], row["largest"]) == (outcome.left_out, True, outcome.largest)
        assert (row["relation"], row["step"], row["leaf"]) == (verdict.relation, verdict.step, verdict.leaf)
        assert row["cause"] == verdict.cause
    text = cells_of(call(capsys, "demo", "--figure", tmp_path / "demo.svg").out)
    assert [(row["left_out"], f"{row['largest']:.2g}") for row in told["outcomes"]] == [(r[0], r[3]) for r in text]


@pytest.mark.parametrize("threads", ["1", "2", "4"])
def test_the_final_state_has_one_digest_with_any_number_of_threads(tmp_path, threads):
    program = (
        "from numpy_ref import load_data, init_run, train_n_steps\n"
        "from numpy_ref.cli import demo\n"
        "from numpy_ref.proof.equivalence import digest\n"
        "data = load_data('digits')\n"
        "print(digest(train_n_steps(init_run(demo.CONFIG, data), data, demo.STEPS).state))\n"
    )
    environment = {"OPENBLAS_NUM_THREADS": threads, "OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads}
    process = python("-c", program, cwd=tmp_path, **environment)
    assert (process.stdout.split(), process.stderr) == ([demo.DIGEST], "")


def test_the_resume_happens_in_another_process(tmp_path, monkeypatch):
    calls = []
    run = demo.subprocess.run

    def recorded(command, **options):
        calls.append((command, sorted(path.name for path in tmp_path.iterdir())))
        return run(command, **options)

    monkeypatch.setattr(demo.subprocess, "run", recorded)
    monkeypatch.setattr(demo, "LOSSES", {})
    assert wrong(tmp_path) == ([], True)
    ((command, files),) = calls
    assert command[:4] == [sys.executable, "-m", "numpy_ref", "train"]
    assert files == [checkpoint_path(tmp_path, demo.STOP).name]  # all that the other process is given


def test_the_other_process_runs_the_same_package_with_the_words_that_it_is_given(tmp_path, monkeypatch):
    """Or the demo of the port would be finished by the reference, or on another device, and say nothing about it."""
    commands = []

    def noted(command, **options):
        commands.append(command)
        return SimpleNamespace(returncode=2)

    monkeypatch.setattr(demo.subprocess, "run", noted)
    monkeypatch.setattr(demo, "STOP", 1)
    monkeypatch.setattr(demo, "STEPS", 2)
    names = {name: getattr(numpy_ref, name) for name in numpy_ref.__all__}
    other = SimpleNamespace(**names, __name__="other", __file__=numpy_ref.__file__)
    with pytest.raises(CheckpointError, match="found that it ended with 2"):
        demo.run_demo(other, tmp_path, ("--device", "cuda"))
    assert commands[0][1:4] == ["-m", "other", "train"]
    assert commands[0][-2:] == ["--device", "cuda"]


def test_another_process_that_fails_is_a_wrong_outcome_and_no_traceback(capsys, monkeypatch, tmp_path):
    """As when the disk is full there: the file that it is to resume from is gone."""
    finish = demo._finish_elsewhere

    def without_its_file(impl, directory, words):
        checkpoint_path(directory, demo.STOP).unlink()
        return finish(impl, directory, words)

    monkeypatch.setattr(demo, "_finish_elsewhere", without_its_file)
    monkeypatch.setattr(demo, "STOP", 1)
    monkeypatch.setattr(demo, "STEPS", 2)
    answer = call(capsys, "demo", "--figure", tmp_path / "demo.svg")
    assert (answer.status, answer.out) == (1, "")
    assert "process" in answer.err
    assert list(tmp_path.iterdir()) == []


def test_a_relative_directory_serves_the_other_process_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(demo, "LOSSES", {})
    (tmp_path / "here").mkdir()
    assert wrong(demo.Path("here")) == ([], True)


def test_a_full_resume_that_loses_a_leaf_is_wrong(tmp_path, monkeypatch):
    """The other process finds a file without Adam's m, as a saver that forgets it would leave."""
    finish = demo._finish_elsewhere

    def forgetful(impl, directory, words):
        path = checkpoint_path(directory, demo.STOP)
        found = checkpoint.resume_from_full_checkpoint(path, load_data("digits"))
        m = {name: np.zeros_like(x) for name, x in found.state.optimizer.m.items()}
        save_checkpoint(path, found._replace(state=found.state._replace(optimizer=found.state.optimizer._replace(m=m))))
        return finish(impl, directory, words)

    monkeypatch.setattr(demo, "_finish_elsewhere", forgetful)
    monkeypatch.setattr(demo, "LOSSES", {})
    assert wrong(tmp_path) == (["nothing"], False)


@pytest.mark.parametrize("leaf", ["model", "best", "rng"])
def test_one_bit_of_any_leaf_in_the_last_state_makes_the_full_resume_wrong(tmp_path, monkeypatch, leaf):
    """No training here: the moments are the run's own, and the last one has one bit changed."""
    data = load_data("digits")
    monkeypatch.setattr(demo, "LOSSES", {})
    monkeypatch.setattr(demo, "STOP", 1)
    monkeypatch.setattr(demo, "STEPS", 2)

    def elsewhere(impl, directory, words):
        run = checkpoint.resume_from_full_checkpoint(checkpoint_path(directory, 1), data)
        moments = list(demo.follow(numpy_ref, run, data, 1))
        state = moments[-1].state
        if leaf == "rng":
            state = state._replace(rng=state.rng._replace(dropout=state.rng.dropout._replace(pos=0)))
        else:
            weight = (state if leaf == "model" else state.best).model["layer0.weight"]
            weight.view(np.uint32)[0, 0] ^= 1
        moments[-1] = moments[-1]._replace(state=state)
        return moments

    monkeypatch.setattr(demo, "_finish_elsewhere", elsewhere)
    result = demo.run_demo(numpy_ref, tmp_path)
    assert not result.outcomes[0].right
    assert result.outcomes[0].verdict.step == 2


def test_the_other_seed_is_another_seed(tmp_path, monkeypatch):
    """Not the same one from its start."""
    monkeypatch.setattr(demo, "LOSSES", {"the same seed again": "rng"})
    again, other = demo.run_demo(numpy_ref, tmp_path).outcomes[-2:]
    assert (again.left_out, other.left_out) == ("the same seed again", LEFT_OUT[-1])
    assert again.curve[1:] != other.curve[1:]


def test_a_loss_that_shows_nothing_is_wrong(tmp_path, monkeypatch):
    monkeypatch.setattr(demo, "LOSSES", {"t": "optimizer/t", "harmless": "nothing/of/the/state"})
    assert wrong(tmp_path) == (["harmless"], False)


@pytest.mark.parametrize("fault", ["digest", "full", "loss"])
@pytest.mark.parametrize("json", [False, True])
def test_the_exit_status_is_1_when_one_outcome_is_wrong(whole, capsys, monkeypatch, tmp_path, fault, json):
    outcomes = list(whole.outcomes)
    if fault == "digest":
        monkeypatch.setattr(demo, "DIGEST", "0" * 64)
    else:
        row = 0 if fault == "full" else 5
        other = outcomes[1 if fault == "full" else 0]
        outcomes[row] = outcomes[row]._replace(right=False, verdict=other.verdict)
    result = whole._replace(outcomes=outcomes)
    monkeypatch.setattr(demo, "run_demo", lambda *words: result)
    answer = call(capsys, "demo", "--figure", tmp_path / "demo.svg", *(["--json"] if json else []))
    assert answer.status == 1
    if json:
        assert strict_json(answer.out)["right"] is False
    else:
        assert "an outcome is WRONG" in answer.out
        rows = {row[0]: row[1] for row in cells_of(answer.out)}
        if fault == "digest":
            assert f"NOT the committed digest {'0' * 64}" in answer.out
        else:
            assert [name for name, outcome in rows.items() if "WRONG" in outcome] == [outcomes[row].left_out]


def test_without_matplotlib_the_demo_works_and_says_what_the_figure_needs(whole, capsys, monkeypatch, tmp_path):
    for module in ("numpy_ref.cli.figure", "numpy_ref.cli.drawing"):
        monkeypatch.delitem(sys.modules, module, raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(demo, "run_demo", lambda *words: whole)
    answer = call(capsys, "demo", "--figure", tmp_path / "demo.svg")
    assert (answer.status, answer.err) == (0, "")
    assert [row[0] for row in cells_of(answer.out)] == LEFT_OUT
    assert "matplotlib" in answer.out
    assert "pip install '.[cli]'" in answer.out
    assert list(tmp_path.iterdir()) == []
    assert call(capsys, "demo", "--json").status == 0


@pytest.mark.parametrize("place", ["missing/demo.svg", "demo.unknown"])
def test_a_figure_that_cannot_be_written_is_refused_before_the_experiment(whole, capsys, monkeypatch, tmp_path, place):
    monkeypatch.setattr(demo, "run_demo", lambda *words: whole)
    answer = call(capsys, "demo", "--figure", tmp_path / place)
    assert answer.status != 0
    assert "Traceback" not in answer.err
    assert place.split(".")[-1] in answer.err
    assert list(tmp_path.iterdir()) == []
    assert answer.out == ""  # found before the experiment


@pytest.mark.parametrize("ending", ["svg", pytest.param("png", marks=pytest.mark.campaign)])
def test_the_figure_is_a_valid_file_and_the_same_each_time(whole, tmp_path, ending):
    from matplotlib.image import imread

    from numpy_ref.cli.figure import draw_demo

    paths = [tmp_path / f"{name}.{ending}" for name in ("first", "second")]
    for path in paths:
        draw_demo(whole, path)
    first, second = (path.read_bytes() for path in paths)
    assert first == second
    if ending == "png":
        assert first.startswith(b"\x89PNG\r\n\x1a\n")
        pixels = imread(paths[0])
        assert pixels.shape[0] > 400
        assert pixels.shape[1] > 400
        assert len(np.unique(pixels.reshape(-1, pixels.shape[2]), axis=0)) > 10
    else:
        root = ElementTree.parse(paths[0]).getroot()
        assert root.tag == f"{SVG}svg"
        assert len(list(root.iter(f"{SVG}path"))) > len(LEFT_OUT)


def test_the_figure_shows_three_losses_every_distance_and_zero_as_a_line_of_its_own(whole, tmp_path, monkeypatch):
    from numpy_ref.cli import drawing, figure

    drawn = []

    class Kept(drawing.Figure):
        def savefig(self, *words, **options):
            drawn.append(self)
            super().savefig(*words, **options)

    monkeypatch.setattr(drawing, "Figure", Kept)
    figure.draw_demo(whole, tmp_path / "demo.svg")
    losses, distances = drawn[0].axes
    assert distances.get_yscale() == "log"

    curves = {line.get_label(): line for line in losses.get_lines() if not line.get_label().startswith("_")}
    assert len(curves) == 3
    for label, curve in zip(curves, (whole.reference, whole.outcomes[0].curve, whole.outcomes[1].curve), strict=True):
        np.testing.assert_array_equal(curves[label].get_xdata(), [step for step, _, _ in curve])
        np.testing.assert_array_equal(curves[label].get_ydata(), [loss for _, loss, _ in curve])
    assert "never stopped" in curves
    assert len({line.get_linestyle() for line in curves.values()}) == 3  # seen apart where they lie on one another

    lines = [line for line in distances.get_lines() if len(line.get_xdata()) > 2]
    across = [line for line in distances.get_lines() if list(line.get_xdata()) == [0, 1]]  # of the axes' width
    rulers = [line for line in across if len(set(line.get_ydata())) == 1]
    (floor,) = {float(line.get_ydata()[0]) for line in rulers}
    smallest = min(d for outcome in whole.outcomes for _, _, d in outcome.curve if d > 0)
    assert distances.get_ylim()[0] < floor < smallest
    assert len(lines) == len(whole.outcomes)
    for line, outcome in zip(lines, whole.outcomes, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), [d if d > 0 else floor for _, _, d in outcome.curve])
    (zero,) = [text for text in distances.texts if "zero" in text.get_text()]
    assert zero.xy[1] == floor
    assert next(iter(distances.get_yticklabels())).get_text() == "0"
    assert distances.get_yticks()[0] == floor

    named = {text.get_text().strip() for text in distances.texts}
    assert set(LEFT_OUT[2:]) <= named
    for axes in (losses, distances):
        assert any(set(line.get_xdata()) == {demo.STOP} for line in axes.get_lines())
        assert axes.get_ylabel()


def test_no_text_of_the_figure_lies_on_another(whole, tmp_path, monkeypatch):
    from numpy_ref.cli import figure
    from parity_tests.cli.drawings import crowded

    assert crowded(lambda: figure.draw_demo(whole, tmp_path / "demo.svg"), monkeypatch) == []
    one_place = lambda axes, ends: [axes.annotate(name, (demo.STEPS, 1)) for name, _ in ends]  # noqa: E731
    monkeypatch.setattr(figure, "_label_ends", one_place)
    assert crowded(lambda: figure.draw_demo(whole, tmp_path / "demo.svg"), monkeypatch) != []


def test_the_figure_of_the_readme_is_the_one_drawn_now_legible_on_light_and_dark(whole, tmp_path):
    from numpy_ref.cli.figure import TITLE, draw_demo
    from parity_tests.cli.drawings import faults_of_colours, is_drawn_again, shown

    for name, found in {"demo": whole, "other": whole._replace(outcomes=whole.outcomes[:-1])}.items():
        draw_demo(found, tmp_path / f"{name}.svg")
    committed = SOURCES / "docs" / "demo.svg"
    drawn, other = ((tmp_path / f"{name}.svg").read_text(encoding="utf-8") for name in ("demo", "other"))
    assert is_drawn_again(committed, drawn)
    assert not is_drawn_again(committed, other)
    assert faults_of_colours(drawn) == []
    title, text, *_ = shown(drawn)
    assert title == TITLE
    assert text.endswith("; ".join(f"{o.left_out}: {o.curve[-1][2]:.2g}" for o in whole.outcomes) + ".")
    assert "(docs/demo.svg)" in (SOURCES / "README.md").read_text(encoding="utf-8")


def test_the_demo_leaves_no_checkpoint_behind(whole, capsys, monkeypatch, tmp_path):
    folders = []

    def noted(impl, directory, words, note):
        folders.append(directory)
        assert directory.is_dir()
        return whole

    monkeypatch.setattr(demo, "run_demo", noted)
    assert call(capsys, "demo", "--figure", tmp_path / "demo.svg").status == cli.HOLDS
    assert not folders[0].exists()


def test_the_other_process_leaves_a_state_for_every_step(whole, folder):
    steps = [read_checkpoint(path).step for path in sorted(folder.iterdir())]
    assert steps == list(range(demo.STOP, demo.STEPS + 1))
