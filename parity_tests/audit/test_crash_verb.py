"""A script that is crashed at the events of its saves: sound ones hold, and of a faulty one the event is named."""

import argparse
import os
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parity_tests import crash as model
from parity_tests.commands import ROOT, strict_json
from torch_port.audit import crash as verb
from torch_port.audit import crash_report, disk
from torch_port.audit.crash_report import LOST, NO_WAY_BACK, RESUMED, Report
from torch_port.audit.disk import Disk, Event

SCRIPTS = Path(__file__).parent / "scripts"
TRIED = 6  # events: those of one save, and the first after it; a few scripts need more
MORE = {"two_files": 10, "pointer_first": 10, "delete_first": 9, "sound_rotation": 9}

SOUND = ["sound_by_hand", "sound_rotation", "sound_replace_file"]

FAULTY = {  # script: judgement, when, what to change
    "straight": (
        NO_WAY_BACK,
        "killed after truncate checkpoint.json (save 2) and before write checkpoint.json (72 bytes) (save 2) was done",
        "never into the file itself",
    ),
    "two_files": (
        NO_WAY_BACK,
        "killed at the latest after rename model.json.tmp -> model.json (save 1) and before rename optimizer.json.tmp "
        "-> optimizer.json (save 1) was done",
        "must change together",
    ),
    "no_fsync": (
        NO_WAY_BACK,
        "after rename checkpoint.json.tmp -> checkpoint.json (save 2), power lost: half of the un-fsynced bytes lost",
        "os.fsync the file",
    ),
    "no_directory_fsync": (
        LOST,
        "after rename checkpoint.json.tmp -> checkpoint.json (save 2), power lost: rename checkpoint.json.tmp -> "
        "checkpoint.json lost",
        "os.fsync the directory",
    ),
    "pointer_first": (
        NO_WAY_BACK,
        "killed after rename latest.tmp -> latest (save 1) and before rename ckpt-8.json.tmp -> ckpt-8.json (save 2) "
        "was done",
        "the pointer to the others last",
    ),
    "delete_first": (
        LOST,
        "killed after unlink ckpt-4.json (save 1) and before rename ckpt-8.json.tmp -> ckpt-8.json (save 2) was done",
        "delete an older checkpoint only when",
    ),
    "newest_by_date": (  # which of the two comes first is a matter of the clock that dates files
        NO_WAY_BACK,
        (
            "killed after create ckpt-8.json (save 2) and before write ckpt-8.json (72 bytes) (save 2) was done",
            "killed in the middle of write ckpt-8.json (72 bytes) (save 2)",
        ),
        "never into the file itself",
    ),
    "from_scratch": (
        LOST,
        "killed after truncate checkpoint.json (save 2) and before write checkpoint.json (72 bytes) (save 2) was done",
        "never into the file itself",
    ),
    "never_loads": (LOST, "stopped at any time after the first save", "does not load what it saves"),
    "forgets": (NO_WAY_BACK, "stopped at any time after the first save", "saves too little"),
}


@pytest.fixture(autouse=True, scope="module")
def _path() -> Iterator[None]:
    """The scripts import this project, whatever directory they run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def crashed(script: str, *, limit: int = 0, restarts: int = 1, **options: Any) -> Report:
    limit = limit or MORE.get(script, TRIED)
    words = [sys.executable, f"{script}.py"]
    return verb.crash(words, directory=SCRIPTS, limit=limit, timeout=60, restarts=restarts, **options)


cached = cache(crashed)


@pytest.mark.parametrize("script", SOUND)
def test_a_sound_script_comes_back_from_every_crash(script: str) -> None:
    report = cached(script)
    assert report.holds
    assert report.status == 0
    assert not report.causes
    assert {trial.judgement for trial in report.trials} == {RESUMED}
    hows = " ".join(trial.how for trial in report.trials)
    assert all(how in hows for how in ("killed before", "in the middle", "power lost", "started again"))


@pytest.mark.parametrize("script", FAULTY)
def test_a_faulty_script_gets_its_judgement_and_the_event_is_named(script: str) -> None:
    judgement, when, advice = FAULTY[script]
    report = cached(script)
    assert report.status == 1
    first = report.causes[0]
    assert first.judgement == judgement
    assert first.crash.startswith(when)
    assert advice in first.advice
    assert {cause.judgement for cause in report.causes} == {judgement}


def test_work_that_was_lost_is_counted_in_saves_and_steps() -> None:
    (trial,) = (
        trial
        for trial in cached("from_scratch").trials
        if trial.event.startswith("write") and "(save 2)" in trial.event and trial.how == "killed before it"
    )
    assert trial.detail == "1 of 1 finished saves lost, 8 steps done again; equal in the end"
    assert (trial.saves_kept, trial.steps_again) == (0, 8)
    assert crashed("from_scratch", limit=3, may_lose=1).holds


def test_numpy_writes_are_seen_and_torn() -> None:
    report = crashed("numpy_save", limit=2)
    assert {"killed in the middle of it", "killed before it"} <= {t.how for t in report.trials if "write" in t.event}
    assert report.causes[0].judgement == NO_WAY_BACK
    assert any("checkpoint.npy" in line for line in report.not_seen)


def bench(tmp_path: Path, script: str) -> verb._Bench:
    return verb._Bench(tmp_path, SCRIPTS, (sys.executable, f"{script}.py"), 60)


def test_torch_save_to_a_path_is_seen_as_an_open_and_a_write_and_is_torn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = (runner := bench(tmp_path, "torch_sound")).fresh("run")
    ran = runner.run(place, keep=True)
    calls = [(event.call, event.name) for event in ran.events if event.call in (*crash_report.CHANGES, "fsync")]
    once = [(call, "checkpoint.pt.tmp") for call in ("create", "write", "fsync", "rename")]
    assert calls == once * 2
    (first, second) = (event for event in ran.events if event.call == "write")
    assert second.data == (place / "checkpoint.pt").read_bytes()
    torn = runner.fresh("torn")
    assert runner.run(torn, kill=first.order, torn=1).killed
    assert (torn / "checkpoint.pt.tmp").read_bytes() == first.data[: len(first.data) // 2]
    assert not (torn / "checkpoint.pt").exists()


def test_however_python_writes_the_record_explains_the_disk_and_changes_nothing(tmp_path: Path) -> None:
    runner = bench(tmp_path, "variety")
    watched, plain = runner.fresh("watched"), runner.fresh("plain")
    ran = runner.run(watched, keep=True)
    other = runner.run(plain, watched=False)
    assert ran.status == other.status == 0, ran.output
    assert ran.output == other.output == ""
    followed = Disk(runner.pristine, verb.names_in(runner.pristine))
    for event in ran.events:
        followed.apply(event)
    assert verb._missed(followed, watched) == []
    assert {name: (watched / name).read_bytes() for name, kind in verb.names_in(watched) if kind == "file"} == {
        name: (plain / name).read_bytes() for name, kind in verb.names_in(plain) if kind == "file"
    }
    natives = {event.name for event in ran.events if event.native}
    assert {"a/array.bin", "a/mapped", "a/child", "a/elsewhere"} <= natives
    assert not natives & {"a/text", "a/raw", "a/low", "a/arrays.npz", "a/b/number", "gone"}


def test_a_script_that_waits_for_a_torn_file_is_no_way_back() -> None:
    report = verb.crash([sys.executable, "waits.py"], directory=SCRIPTS, limit=3, timeout=2.5, restarts=1)
    assert report.causes[0].judgement == NO_WAY_BACK
    assert "had not ended in time" in report.causes[0].detail


def script(folder: Path, text: str) -> Report:
    (folder / "train.py").write_text(text)
    return verb.crash([sys.executable, "train.py"], directory=folder, timeout=20)


def test_what_cannot_be_judged_is_said_with_the_script_s_own_words(tmp_path: Path) -> None:
    report = crashed("undetermined")
    assert (report.verdict, report.status) == ("not deterministic", 2)
    assert "checkpoint.json" in report.error
    report = script(tmp_path, "raise RuntimeError('no data')")
    assert (report.verdict, report.status) == ("failed", 2)
    assert "status 1" in report.error
    assert "no data" in report.error
    assert "wrote no file" in script(tmp_path, "").error
    (tmp_path / "train.py").write_text("open('x', 'w').close()")
    report = verb.crash([sys.executable, "-I", "train.py"], directory=tmp_path)
    assert "hook was not loaded" in report.error
    report = verb.crash([sys.executable, "-c", "import time; time.sleep(60)"], directory=tmp_path, timeout=0.2)
    assert "had not ended after 0.2 s" in report.error


def test_logs_are_not_compared_and_a_file_outside_is_told(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    text = f"open('log', 'a').write('x')\nopen({str(tmp_path / 'outside')!r}, 'w').close()\nopen('end', 'w').write('e')"
    report = script(tmp_path / "work", text)
    assert report.compared == ("end",)
    assert any(str(tmp_path / "outside") in line for line in report.not_seen)


def test_the_users_directory_is_left_alone(tmp_path: Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(SCRIPTS, work, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "data").write_text("far")
    (work / "link").symlink_to("../data")
    before = model.states_of(work)
    text = "import sys\nassert open('link').read() == 'far'\nopen(sys.argv[1], 'w').write('w')"
    (work / "train.py").write_text(text)
    report = verb.crash([sys.executable, "train.py", str(work / "out")], directory=work, timeout=20)
    assert report.saved_as == "out"
    (work / "train.py").unlink()
    assert model.states_of(work) == before


def command(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    verb.add_arguments(parser)
    status = verb.run_crash(None, parser.parse_args([*words]))
    return (status, *capsys.readouterr())


def test_the_verb_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--dir", str(SCRIPTS), "--limit", "3", "--", sys.executable, "straight.py")
    status, out, _ = command(capsys, *words)
    assert status == 1
    assert "no way back: killed after truncate checkpoint.json" in out
    assert out.endswith("does not hold\n")
    status, out, _ = command(capsys, "--json", *words)
    found = strict_json(out)
    assert (status, found["holds"], found["verdict"]) == (1, False, "broken")
    assert found["trials"]
    assert found["causes"][0]["judgement"] == NO_WAY_BACK
    status, out, err = command(capsys, "--", sys.executable, "-c", "raise SystemExit(3)")
    assert (status, out) == (2, "")
    assert "status 3" in err


@pytest.mark.parametrize("words", [["--limit", "-1", "--", "x"], ["--timeout", "0", "--", "x"], ["--"], []])
def test_wrong_usage_is_one_clear_error(capsys: pytest.CaptureFixture[str], words: list[str]) -> None:
    with pytest.raises(ValueError, match="expected"):
        command(capsys, *words)


def test_no_such_directory_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a directory to copy, found none"):
        verb.crash(["python"], directory=tmp_path / "none")


def unchanged(disk: Disk, event: Event) -> None:
    """Applies nothing that synchronises."""
    if not event.call.startswith("fsync"):
        APPLY(disk, event)


APPLY, LOSE = Disk.apply, Disk.lost
MUTANTS: dict[str, tuple[Any, str, Any, str, bool]] = {  # where, what, instead; a script that is then misjudged
    "the ends are not compared": (verb, "unlike", lambda *paths: "", "two_files", True),
    "no power loss": (Disk, "lost", lambda disk: iter(()), "no_fsync", True),
    "bytes are not lost": (Disk, "lost", lambda disk: (x for x in LOSE(disk) if "bytes" not in x[0]), "no_fsync", True),
    "names are not lost": (
        Disk,
        "lost",
        lambda disk: (x for x in LOSE(disk) if "bytes" in x[0]),
        "no_directory_fsync",
        True,
    ),
    "fsync does nothing": (Disk, "apply", unchanged, "sound_by_hand", False),
    "no save is ever over": (verb._Judge, "_saved_after", lambda judge, number: 0, "no_directory_fsync", True),
    "all states of the disk are one": (verb, "_digest", lambda state: "", "no_fsync", True),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_judge_is_told_by_a_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, instead, script, holds = MUTANTS[name]
    assert cached(script).holds is not holds
    monkeypatch.setattr(where, what, instead)
    assert crashed(script).holds is holds


NAMES = ("a", "b")
calls = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(("create", "unlink", "fsync")), st.sampled_from(NAMES)),
        st.tuples(st.just("truncate"), st.sampled_from(NAMES)),
        st.tuples(st.just("write"), st.sampled_from(NAMES), st.integers(0, 3), st.binary(min_size=1, max_size=4)),
        st.tuples(st.just("rename"), st.permutations(NAMES).map(tuple)),
        st.tuples(st.just("fsync directory")),
    ),
    max_size=6,
)


@given(calls)
def test_what_power_loss_leaves_is_allowed_by_the_projects_model(drawn: list[tuple[Any, ...]]) -> None:
    ours, theirs = Disk(Path(), []), model.Model(())
    for number, (call, *more) in enumerate(drawn, 1):
        there = {name for name in NAMES if theirs.current(name) is not None}
        name = more[0][0] if call == "rename" else more[0] if more else ""
        if (call == "create") == (name in there) and call != "fsync directory":
            continue
        if call == "rename":
            source, target = more[0]
            ours.apply(Event("rename", source, target))
            theirs.apply(model.Event("rename", source, target))
        elif call == "write":
            ours.apply(Event("write", name, offset=more[1], data=more[2]))
            held = theirs.current(name)
            assert held is not None
            theirs.apply(model.Event("write", file=held, change=(more[1], more[2])))
            theirs.apply(model.Event("flush", file=held))
        elif call == "fsync":
            ours.apply(Event("fsync", name))
            held = theirs.current(name)
            assert held is not None
            theirs.apply(model.Event("fsync", file=held))
        else:
            ours.apply(Event(call, name))
            theirs.apply(model.Event(call.replace(" ", "_"), name, file=100 + number))
        visible = {name: node.data for name, node in ours.visible().items() if node is not None}
        assert tuple(sorted(visible.items())) == theirs.visible()
    # Their files are torn one at a time, and ours together: each file is held against theirs under the same names.
    allowed = {(tuple(dict(state)), *item) for state in theirs.states() for item in [("", b""), *state]}
    for how, state in ours.lost():
        found = {name: node.data for name, node in state.items() if node is not None}
        assert (tuple(found), "", b"") in allowed, how
        if not how.startswith("half"):  # a size between is none that they try with files as small as these
            assert all((tuple(found), *item) in allowed for item in found.items()), how


def test_what_is_synchronised_is_not_lost() -> None:
    followed = Disk(Path(), [])
    for event in (Event("create", "a"), Event("write", "a", data=b"whole")):
        followed.apply(event)
    assert {how for how, _ in followed.lost()} >= {"un-fsynced bytes lost", "create a lost"}
    followed.apply(Event("fsync", "a"))
    assert {how for how, _ in followed.lost()} == {"create a lost"}
    followed.apply(Event("fsync directory", ""))
    assert list(followed.lost()) == []
    assert disk.changed(b"abc", [(1, None), (3, b"x")]) == b"a\0\0x"


def test_files_are_compared_leaf_by_leaf(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    a, b = tmp_path / "a.pt", tmp_path / "other.pt"
    torch.save({"w": torch.ones(3)}, a)
    torch.save({"w": torch.ones(3)}, b)
    assert a.read_bytes() != b.read_bytes()  # the archive's name is in it
    assert verb.unlike(a, b) == ""
    torch.save({"w": torch.zeros(3)}, b)
    assert "first w" in verb.unlike(a, b)
    b.write_bytes(a.read_bytes()[:-10])
    assert verb.unlike(a, b) == "its bytes differ"
    os.unlink(b)
    assert verb.unlike(a, b) == "missing"
