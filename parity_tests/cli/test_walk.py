"""The walk for teaching: every leaf comes back, every trap harms, and `docs/walk.md` shows what the commands print."""

import importlib.metadata
import itertools
import re
import sys
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import numpy_ref
import torch_port
from numpy_ref import optim
from numpy_ref.cli import BROKEN, FAILED, HOLDS, drawing
from numpy_ref.cli.walk import commands, figures, traps
from numpy_ref.cli.walk.resume import CONFIG, DIGEST, PLACES, STEPS, STOP, Walk, leaves_of, walk_through
from numpy_ref.cli.walk.traps import Trap
from numpy_ref.model import parameters
from numpy_ref.proof.equivalence import largest_distance
from numpy_ref.proof.laws import follow, resume_with_loss
from numpy_ref.tree import copy_tree, flatten, map_leaves
from parity_tests.cli.drawings import SVG, crowded, faults_of_colours, is_drawn_again
from parity_tests.commands import SOURCES, call, python, strict_json
from parity_tests.implementations import EACH, NO_TORCH

DOCS = SOURCES / "docs"
PAGE = (DOCS / "walk.md").read_text(encoding="utf-8")
NAMES = ["aliasing", "copied-generator", "half-written-file", "lost-t", "reshuffled-epoch"]  # as the issue lists them


@cache
def walked(impl: Any, module: Any = traps) -> tuple[Walk, tuple[Trap, ...]]:
    """A walk and its traps; the checkpoint is gone with the directory."""
    with TemporaryDirectory() as folder:
        walk = walk_through(impl, Path(folder))
        return walk, tuple(module.all_traps(impl, walk, Path(folder)))


def trap_named(name: str, impl: Any = numpy_ref, module: Any = traps) -> Trap:
    (trap,) = (trap for trap in walked(impl, module)[1] if trap.name == name)
    return trap


# Leaf by leaf


@pytest.mark.parametrize("impl", EACH)
def test_every_leaf_comes_back_and_both_runs_end_at_the_committed_digest(impl: Any) -> None:
    walk, found = walked(impl)
    assert walk.holds
    assert walk.resumed == walk.never_stopped == DIGEST
    assert [row.leaf for row in walk.rows] == [place.leaf for place in PLACES]
    assert all(row.holds for row in walk.rows)
    assert [trap.name for trap in found] == NAMES
    assert all(trap.holds for trap in found)


@NO_TORCH
def test_both_packages_walk_alike() -> None:
    (ours, our_traps), (theirs, their_traps) = (walked(impl) for impl in (numpy_ref, torch_port))
    assert ours.rows == theirs.rows
    assert our_traps == their_traps


def test_every_leaf_of_the_state_has_one_place() -> None:
    state = walked(numpy_ref)[0].moments[STOP].state
    places = [path for place in PLACES for path in leaves_of(state, place.leaf)]
    assert sorted(places) == sorted(flatten(state))


def test_the_stop_lies_within_an_epoch_and_what_the_page_tells_apart_differs_there() -> None:
    walk, _ = walked(numpy_ref)
    stop, end = (walk.moments[step].state for step in (STOP, STEPS))
    assert 0 < stop.data.consumed < len(walk.data.labels)
    assert [m.state.step for m in walk.moments if m.record is not None and m.record.skipped] == [1, 2]
    assert (stop.step, stop.optimizer.t, stop.schedule.tick) == (33, 31, 31)
    assert CONFIG.learning_rate > stop.schedule.rate > end.schedule.rate
    moving = {row.leaf for row in walk.rows if row.stop != row.resumed}
    assert {place.leaf for place in PLACES} - moving == {"mode", "scaler/scale"}


@pytest.mark.parametrize("impl", EACH)
def test_the_twin_terms_are_where_the_leaf_lives(impl: Any, tmp_path: Path) -> None:
    run = impl.train_n_steps(impl.init_run(CONFIG, impl.load_data("digits")), impl.load_data("digits"), STOP)
    state = impl.snapshot(run)
    for place in PLACES:
        term = place.numpy if impl is numpy_ref else place.torch
        for path, leaf in leaves_of(state, place.leaf).items():
            name = path.rpartition("/")[2]
            named = {} if impl is numpy_ref else dict(run.model.named_parameters())
            p = named.get(name, next(iter(named.values()), None))  # of a count, any parameter's
            found = eval(f"run.{term}", {"run": run, "name": name, "p": p})
            assert same(found, leaf, name), (term, path)


def same(found: Any, leaf: Any, name: str) -> bool:
    """Whether what a term means is the leaf, in the form in which its package holds it."""
    if hasattr(found, "_fields"):  # a stream
        found = getattr(found, name)
    elif hasattr(found, "numpy"):  # a tensor; of a generator's bytes the words, then what else there is
        found = found.detach().numpy()
        if found.dtype == np.uint8:
            import torch

            generator = torch.Generator()
            generator.set_state(torch.from_numpy(found))
            found = getattr(torch_port.rng.stream_state(generator), name)
    if isinstance(leaf, str):
        return bool(found == (leaf if isinstance(found, str) else leaf == "train"))
    return bool(np.array_equal(found, leaf))


@pytest.mark.parametrize("leaf", [place.leaf for place in PLACES])
def test_a_resume_that_loses_a_leaf_does_not_hold_and_its_row_says_so(leaf: str, tmp_path: Path) -> None:
    def losing(path: Path, data: Any) -> Any:
        run = numpy_ref.resume_from_full_checkpoint(path, data)
        lost = leaves_of(run.state, leaf)
        return run._replace(state=map_leaves(lambda path, x: spoiled(path, x) if path in lost else x, run.state))

    walk = walk_through(other(resume_from_full_checkpoint=losing), tmp_path)
    assert not walk.holds
    assert [row.leaf for row in walk.rows if row.stop != row.loaded] == [leaf]
    assert all(row.stop == row.file for row in walk.rows)
    assert not walk.verdict.holds


def spoiled(path: str, leaf: Any) -> Any:
    """Another value that a run can go on from."""
    if path == "mode":
        return "eval"
    return type(leaf)(leaf / 2) if isinstance(leaf, (int, float)) else np.asarray(leaf / 2, leaf.dtype)


def other(**more: Any) -> Any:
    """The reference with other functions."""
    names = {name: getattr(numpy_ref, name) for name in numpy_ref.__all__} | more
    return SimpleNamespace(**names, __name__="numpy_ref")


@pytest.mark.parametrize(
    "change",
    [
        {"resumed": "0" * 64},
        {"never_stopped": "0" * 64},
        {"resumed": "0" * 64, "never_stopped": "0" * 64},
        {"verdict": walk_through.__globals__["Verdict"](False, "differs", 40, "step", 40, 41)},
    ],
    ids=["resumed", "never stopped", "another digest", "verdict"],
)
def test_a_walk_that_ends_elsewhere_does_not_hold(change: dict[str, Any], capsys, monkeypatch) -> None:
    walk, found = walked(numpy_ref)
    assert not walk._replace(**change).holds
    row = walk.rows[0]
    for name in ("stop", "file", "loaded", "resumed", "never_stopped"):
        assert not walk._replace(rows=[row._replace(**{name: -1})]).holds
    monkeypatch.setattr(commands, "walk_through", lambda *words: walk._replace(**change))
    monkeypatch.setattr(commands, "all_traps", lambda *words: list(found))
    answer = call(capsys, "walk")
    assert answer.status == BROKEN
    assert answer.out.endswith("something is WRONG\n")


# The traps


def no_loss(impl: Any, path: Path, data: Any, leaf: str) -> Any:
    return impl.resume_from_full_checkpoint(path, data)


def losing_too(leaf: str) -> Any:
    """A package whose full resume loses a leaf."""
    return SimpleNamespace(
        **{name: getattr(numpy_ref, name) for name in numpy_ref.__all__}
        | {"resume_from_full_checkpoint": lambda path, data: resume_with_loss(numpy_ref, path, data, leaf)}
    )


CALLS = itertools.count()
FAULTS: list[tuple[str, str, Any]] = [  # a trap, and what would make it harmless or its remedy harm
    ("aliasing", "largest_distance", lambda a, b: 0.0),
    ("aliasing", "largest_distance", lambda a, b: 1.0),
    ("copied-generator", "_drawn", lambda rng, stream: [0.5] * traps.DRAWS),
    ("copied-generator", "_drawn", lambda rng, stream: [next(CALLS)] * traps.DRAWS),
    ("half-written-file", "_found", lambda path: traps.OLD),
    ("half-written-file", "_killed", lambda path, content, disk: traps.REFUSED),
    ("half-written-file", "_killed", lambda path, content, disk: traps.OLD),
    ("lost-t", "resume_with_loss", no_loss),
    ("lost-t", "resume_with_loss", lambda impl, path, data, leaf: resume_with_loss(impl, path, data, "optimizer")),
    ("lost-t", "impl", losing_too("rng/dropout")),
    ("reshuffled-epoch", "resume_with_loss", no_loss),
    ("reshuffled-epoch", "impl", losing_too("data/consumed")),
    ("reshuffled-epoch", "samples_of", lambda moments, epoch, real=traps.samples_of: real(moments, epoch)[1:]),
]


@pytest.mark.parametrize(("name", "part", "wrong"), FAULTS)
def test_a_trap_shown_harmless_or_a_remedy_that_harms_is_found(
    name: str, part: str, wrong: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walk, impl = walked(numpy_ref)[0], numpy_ref
    if name in ("lost-t", "reshuffled-epoch"):
        walk = walk_through(numpy_ref, tmp_path)  # these resume from its file
    if part == "impl":
        impl = wrong
    else:
        monkeypatch.setattr(traps, part, wrong)
    run_trap = {
        "aliasing": lambda: traps.aliasing(walk),
        "copied-generator": lambda: traps.copied_generator(impl),
        "half-written-file": lambda: traps.half_written_file(walk, tmp_path),
        "lost-t": lambda: traps.lost_t(impl, walk),
        "reshuffled-epoch": lambda: traps.reshuffled_epoch(impl, walk),
    }[name]
    assert not run_trap().holds


@pytest.mark.parametrize("name", NAMES)
def test_a_trap_that_is_not_shown_is_told_and_is_the_verdict(name: str, capsys, monkeypatch) -> None:
    walk, found = walked(numpy_ref)
    changed = [trap._replace(holds=trap.name != name) for trap in found]
    monkeypatch.setattr(commands, "walk_through", lambda *words: walk)
    monkeypatch.setattr(commands, "all_traps", lambda *words: changed)
    answer = call(capsys, "walk")
    assert answer.status == BROKEN
    assert re.findall(r"^(\S+) +NOT SHOWN", answer.out, re.MULTILINE) == [name]
    answer = call(capsys, "walk", "--json")
    assert (answer.status, strict_json(answer.out)["holds"]) == (BROKEN, False)


@NO_TORCH
def test_the_state_dict_of_a_live_model_drifts_as_the_figure_shows() -> None:
    data = torch_port.load_data("digits")
    run = torch_port.train_n_steps(torch_port.init_run(CONFIG, data), data, STOP)
    saved = run.model.state_dict()
    stopped = parameters(torch_port.snapshot(run).model)
    drift = []
    for _ in follow(torch_port, run, data, STEPS - STOP):
        drift.append(largest_distance(stopped, {name: saved[name].numpy() for name in stopped}))
    assert drift == trap_named("aliasing").numbers["alias"]


def test_an_update_in_place_moves_a_dict_that_was_kept_and_no_copy() -> None:
    state = walked(numpy_ref)[0].moments[STOP].state
    live = copy_tree(parameters(state.model))
    alias, copy = dict(live), copy_tree(live)
    settings = {"learning_rate": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.0}
    grads = {name: np.ones_like(x) for name, x in live.items()}
    ops = importlib.import_module("numpy_ref.arithmetic.operations").arithmetic_named("reproducible")
    optim.adam_step(live, copy_tree(state.optimizer), grads, ops, decoupled=False, in_place=True, **settings)
    assert largest_distance(parameters(state.model), alias) > 0
    assert largest_distance(parameters(state.model), copy) == 0


@NO_TORCH
def test_forked_workers_of_a_stock_loader_repeat_one_stream_and_keyed_noise_does_not() -> None:
    import torch
    from torch.utils.data import DataLoader

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, keyed: bool) -> None:
            self.keyed, self.generator = keyed, torch.Generator().manual_seed(1)

        def __len__(self) -> int:
            return 8

        def __getitem__(self, index: int) -> torch.Tensor:
            if self.keyed:
                return torch_port.rng.draw_noise(1, 0, [index], 4)[0]
            return torch.rand(4, generator=self.generator)

    rows = {}
    for keyed in (False, True):
        loader = DataLoader(Noisy(keyed), batch_size=1, num_workers=2, multiprocessing_context="fork")
        rows[keyed] = [tuple(batch[0].tolist()) for batch in loader]
    assert [len(set(found)) for found in rows.values()] == [4, 8]  # samples come from the workers by turns
    assert rows[False][::2] == rows[False][1::2]


def test_the_first_step_without_t_is_as_long_as_bias_correction_says() -> None:
    trap, t = trap_named("lost-t"), walked(numpy_ref)[0].moments[STOP].state.optimizer.t
    beta1, beta2 = CONFIG.beta1, CONFIG.beta2
    ratio = (1 - beta1 ** (t + 1)) / (1 - beta1) * ((1 - beta2) / (1 - beta2 ** (t + 1))) ** 0.5
    assert f"{ratio:.2f} times as long" in trap.text
    assert trap.numbers["lost"][0] > trap.numbers["kept"][0]
    assert trap.numbers["never stopped"][:2] == [0, 0]  # skipped


def test_every_sample_is_counted_in_the_epoch_of_the_stop() -> None:
    found, total = trap_named("reshuffled-epoch").numbers, len(walked(numpy_ref)[0].data.labels)
    for counts in found.values():
        assert sum(counts) == sum(times * count for times, count in enumerate(counts)) == total


def test_a_kill_leaves_the_temporary_behind_and_the_name_alone(tmp_path: Path) -> None:
    walk, _ = walked(numpy_ref)
    found = traps.half_written_file(walk, tmp_path)
    assert found == trap_named("half-written-file")
    left = [path for path in tmp_path.iterdir() if path.suffix == ".partial"]
    assert len(left) == found.numbers["renamed"].count(traps.OLD)


# The figures


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The figures, made now."""
    return {trap.name: svg_of(trap, tmp_path_factory.mktemp("drawn")) for trap in walked(numpy_ref)[1]}


def svg_of(trap: Trap, folder: Path) -> str:
    figures.draw_trap(trap, folder / "figure.svg")
    return (folder / "figure.svg").read_text(encoding="utf-8")


def test_the_committed_figures_are_those_that_the_command_draws(drawn: dict[str, str]) -> None:
    assert sorted(path.name for path in DOCS.glob("walk-*.svg")) == sorted(f"walk-{name}.svg" for name in NAMES)
    for name, svg in drawn.items():
        assert is_drawn_again(DOCS / f"walk-{name}.svg", svg)
        other = drawn[NAMES[NAMES.index(name) - 1]]
        assert not is_drawn_again(DOCS / f"walk-{name}.svg", other)


@pytest.mark.parametrize("name", NAMES)
def test_the_same_trap_makes_the_same_bytes_whatever_the_readers_settings(
    name: str, drawn: dict[str, str], tmp_path: Path
) -> None:
    import matplotlib as mpl

    with mpl.rc_context({"font.size": 20, "axes.facecolor": "black", "svg.fonttype": "path"}):
        assert svg_of(trap_named(name), tmp_path) == drawn[name]


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_has_its_title_and_text_inside_and_names_nothing_that_changes(
    name: str, drawn: dict[str, str]
) -> None:
    root, trap = ElementTree.fromstring(drawn[name]), trap_named(name)
    assert root.get("role") == "img"
    ids = {element.get("id"): element.text for element in root if element.get("id") in ("title", "desc")}
    assert ids == {"title": trap.title, "desc": trap.text}
    assert root.get("aria-labelledby") == "title desc"
    assert [element.tag for element in root[:2]] == [f"{SVG}title", f"{SVG}desc"]
    assert "dc:date" not in drawn[name]
    assert importlib.metadata.version("matplotlib") not in drawn[name]


DATA = {  # which numbers each figure's lines, points or bars show
    "aliasing": ["alias", "copy"],
    "copied-generator": ["copied 1", "own 1"],
    "lost-t": ["never stopped", "kept", "lost"],
    "reshuffled-epoch": ["kept", "lost"],
    "half-written-file": ["straight", "renamed"],
}


@pytest.mark.parametrize("name", NAMES)
def test_a_figure_shows_the_numbers_of_its_trap(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[Any] = []

    class Kept(drawing.Figure):
        def savefig(self, *words: Any, **options: Any) -> None:
            kept.append(self)
            super().savefig(*words, **options)

    monkeypatch.setattr(drawing, "Figure", Kept)
    trap = trap_named(name)
    svg_of(trap, tmp_path)
    lines = [line for axes in kept[0].axes for line in axes.get_lines() if len(line.get_xdata()) > 2]
    bars = [[bar.get_height() for bar in axes.patches] for axes in kept[0].axes if axes.patches]
    found = [list(line.get_ydata()) for line in lines] or bars
    levels = {traps.REFUSED: 0, traps.OLD: 1, traps.NEW: 2}
    wanted = [[levels.get(x, x) for x in trap.numbers[key]] for key in DATA[name]]
    if name == "lost-t":
        wanted[0] = wanted[0][-len(found[0]) :]
        assert [list(line.get_xdata())[-1] for line in lines] == [STEPS] * 3
        assert [next(iter(line.get_xdata())) for line in lines[1:]] == [STOP + 1] * 2
    if name == "copied-generator":
        assert [list(line.get_xdata()) for line in lines] == [trap.numbers["copied 0"], trap.numbers["own 0"]]
    if name == "aliasing":
        assert all(list(line.get_xdata()) == trap.numbers["step"] for line in lines)
    if name == "half-written-file":
        labels = [label.get_text() for label in kept[0].axes[0].get_yticklabels()]
        assert labels == ["refused", "the old file", "the new file"]
    assert found == wanted
    styles = [(line.get_linestyle(), line.get_marker()) for line in lines]
    assert len(set(styles)) == len(styles)  # told apart without colours; bars stand in panels of their own


@pytest.mark.parametrize("name", NAMES)
def test_every_colour_stands_out_from_a_light_page_and_from_a_dark_one(name: str, drawn: dict[str, str]) -> None:
    assert faults_of_colours(drawn[name]) == []
    assert faults_of_colours((DOCS / f"walk-{name}.svg").read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("place", "name", "fault"),
    [
        (figures, "SOUND", "#00008B"),  # lost on a dark page
        (figures, "TRAP", "#F0E442"),  # lost on a light one
        (figures, "TEXT", "#000000"),
        (drawing.STYLE, "text.color", "#000000"),
        (drawing.STYLE, "savefig.facecolor", "white"),
        (drawing.STYLE, "axes.facecolor", "#f8f8f8"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_colour_that_is_lost_on_a_page_is_found(place, name: str, fault: str, tmp_path: Path, monkeypatch) -> None:
    (monkeypatch.setitem if isinstance(place, dict) else monkeypatch.setattr)(place, name, fault)
    assert faults_of_colours(svg_of(trap_named("lost-t"), tmp_path)) != []


@pytest.mark.parametrize("name", NAMES)
def test_no_text_lies_on_another_or_beyond_the_edge(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert crowded(lambda: svg_of(trap_named(name), tmp_path), monkeypatch) == []
    monkeypatch.setitem(drawing.STYLE, "font.size", 24)
    assert crowded(lambda: svg_of(trap_named(name), tmp_path), monkeypatch) != []


# The command


def test_the_command_writes_the_figures_and_its_json_says_all(capsys, tmp_path: Path) -> None:
    answer = call(capsys, "walk", "--figures", tmp_path / "new", "--json")
    assert (answer.status, answer.err) == (HOLDS, "")
    found, (walk, expected) = strict_json(answer.out), walked(numpy_ref)
    assert found["holds"] is True
    assert found["digest"] == found["never_stopped"] == found["expected_digest"] == DIGEST
    assert [leaf["leaf"] for leaf in found["leaves"]] == [place.leaf for place in PLACES]
    for leaf, row, place in zip(found["leaves"], walk.rows, PLACES, strict=True):
        assert leaf == place._asdict() | row._asdict() | {"holds": True}
    assert found["traps"] == [trap._asdict() for trap in expected]
    assert found["figures"] == [str(tmp_path / "new" / f"walk-{name}.svg") for name in NAMES]
    assert sorted(map(str, (tmp_path / "new").iterdir())) == sorted(found["figures"])


def test_without_matplotlib_the_walk_works_and_figures_are_refused_before_it(capsys, monkeypatch, tmp_path) -> None:
    for module in ("numpy_ref.cli.walk.figures", "numpy_ref.cli.drawing"):
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr(commands, "walk_through", None)
    answer = call(capsys, "walk", "--figures", tmp_path / "new")
    assert (answer.status, answer.out) == (FAILED, "")
    assert answer.err == "--figures needs matplotlib; install the 'cli' extra, pip install '.[cli]'\n"
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert call(capsys, "walk").status == HOLDS


@pytest.mark.parametrize("place", ["file", "nowhere/new"])
def test_a_directory_that_cannot_be_is_refused_before_the_walk(place: str, capsys, monkeypatch, tmp_path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(commands, "walk_through", None)
    answer = call(capsys, "walk", "--figures", tmp_path / place)
    assert (answer.status, answer.out) == (FAILED, "")
    assert str(tmp_path / place) in answer.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


# The page


def blocks(kind: str) -> list[str]:
    return re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("impl", EACH)
def test_the_commands_print_what_the_page_shows(impl: Any, capsys, monkeypatch) -> None:
    assert f"    python -m {impl.__name__} walk  " in PAGE
    monkeypatch.setenv("COLUMNS", "120")
    answer = call(capsys, "walk", impl=impl)
    assert (answer.status, answer.err) == (HOLDS, "")
    *parts, told, end = answer.out.strip().split("\n\n")
    assert [part.strip() for part in blocks("text")] == [part.strip() for part in parts]
    assert [line.split()[0] for line in told.splitlines()[2:] if line[0] != " "] == NAMES
    assert end == "every leaf came back, and every trap is shown"


@NO_TORCH
def test_the_blocks_of_code_print_what_their_comments_say_also_with_one_anothers_files(tmp_path: Path) -> None:
    ours, theirs = blocks("python")
    assert "import numpy_ref as nr" in ours
    assert "import torch_port as tp" in theirs
    said = re.findall(r"^print\(.*\)  # (.*)$", ours, re.MULTILINE)
    assert len(said) == ours.count("print(") == 2
    assert said == re.findall(r"^print\(.*\)  # (.*)$", theirs, re.MULTILINE)
    assert said[1] == DIGEST[:8]
    load = 'resume_from_full_checkpoint("'
    swapped = [ours.replace(f"{load}numpy", f"{load}torch"), theirs.replace(f"{load}torch", f"{load}numpy")]
    assert swapped != [ours, theirs]
    process = python("-c", "\n".join([ours, theirs, *swapped]), cwd=tmp_path)
    assert (process.stdout.splitlines(), process.stderr) == (said * 4, "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["numpy.safetensors", "torch.safetensors"]
