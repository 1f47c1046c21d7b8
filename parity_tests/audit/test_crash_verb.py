"""A script that is crashed at the events of its saves: sound ones hold, and of a faulty one the event is named."""

import argparse
import os
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numpy_ref.proof.power_failure import DiskModel, Event
from parity_tests.checkpoint.crash import plain, states_of
from parity_tests.commands import ROOT, strict_json
from torch_port.audit import crash as verb
from torch_port.audit.crash import LOST, NO_WAY_BACK, RESUMED, Report, command, judge
from torch_port.audit.crash.bench import Bench, names_in, unexplained, unlike
from torch_port.audit.crash.reference import CHANGES, Point, chosen, refer, written

SCRIPTS = Path(__file__).parent / "scripts"

SOUND = ["sound_by_hand", "sound_rotation", "sound_replace_file"]

INTO, ANY_TIME = "never into the file itself", "stopped at any time after the first save"
FAULTY = {  # script: judgement, the events between which a crash does harm, what to change
    "straight": (NO_WAY_BACK, "killed after create checkpoint.json (save 1)", "before write checkpoint.json", INTO),
    "two_files": (NO_WAY_BACK, "killed after rename model.json", "before rename optimizer.json", "change together"),
    "no_fsync": (NO_WAY_BACK, "after rename checkpoint.json.tmp", "un-fsynced bytes lost", "os.fsync the file"),
    "no_directory_fsync": (LOST, "after rename", "power lost: rename checkpoint.json.tmp", "os.fsync the directory"),
    "pointer_first": (
        NO_WAY_BACK,
        "killed after rename latest.tmp",
        "before rename ckpt-4",
        "pointer to the others last",
    ),
    "delete_first": (LOST, "killed after unlink ckpt-4.json (save 1)", "before rename ckpt-8", "delete an older"),
    "newest_by_date": (NO_WAY_BACK, "killed after create ckpt-4.json", "before write ckpt-4.json", INTO),
    "from_scratch": (LOST, "killed after truncate checkpoint.json (save 2)", "before write checkpoint.json", INTO),
    "never_loads": (LOST, ANY_TIME, "", "does not load what it saves"),
    "forgets": (NO_WAY_BACK, ANY_TIME, "", "saves too little"),
}


@pytest.fixture(autouse=True, scope="module")
def _path() -> Iterator[None]:
    """The scripts import this project, whatever directory they run in."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


def crashed(script: str, *, limit: int = 0, restarts: int = 1, **options: Any) -> Report:
    words = [sys.executable, f"{script}.py"]
    return verb.crash(words, directory=SCRIPTS, limit=limit, timeout=60, restarts=restarts, **options)


cached = cache(crashed)


def judgements(report: Report) -> set[str]:
    return {trial.judgement for trial in report.trials}


def comes_back(report: Report) -> bool:
    """Whether a script that does all of its work again, as it may, ends each time and ends equal."""
    return bool(report.trials) and judgements(report) <= {RESUMED, LOST}


@pytest.mark.parametrize("script", SOUND)
def test_a_sound_script_comes_back_from_every_crash(script: str) -> None:
    report = cached(script)
    assert report.holds
    assert report.status == 0
    assert not report.causes
    assert judgements(report) == {RESUMED}
    hows = " ".join(trial.how for trial in report.trials)
    assert all(how in hows for how in ("killed before", "in the middle", "power lost", "started again"))


@pytest.mark.parametrize("script", FAULTY)
def test_a_faulty_script_gets_its_judgement_and_the_event_is_named(script: str) -> None:
    judgement, start, end, advice = FAULTY[script]
    report = cached(script)
    assert report.status == 1
    first = report.causes[0]
    assert first.judgement == judgement
    assert first.crash.startswith(start)
    assert end in first.crash
    assert advice in first.advice
    assert {cause.judgement for cause in report.causes} == {judgement}


def test_files_that_are_each_replaced_are_not_advised_to_be_where_events_were_left_out() -> None:
    for limit in (6, 8, 10, 14):
        report = crashed("two_files", limit=limit)
        assert all("change together" in cause.advice for cause in report.causes), limit


def test_where_events_were_left_out_the_reason_is_sought_among_them() -> None:
    report = crashed("delete_first", limit=6)
    assert (report.tried, report.events) == (6, 20)
    assert report.causes[0].crash.startswith("killed at the latest after create ckpt-12.json.tmp (save 3) and before")
    assert report.causes[0].crash.endswith("was done or later")
    assert "delete an older checkpoint only when" in report.causes[0].advice


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


def bench(tmp_path: Path, script: str) -> Bench:
    return Bench(tmp_path, SCRIPTS, (sys.executable, f"{script}.py"), 60)


def test_torch_save_to_a_path_is_seen_as_an_open_and_a_write_and_is_torn(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    place = (runner := bench(tmp_path, "torch_sound")).fresh()
    ran = runner.run(place, keep=True)
    calls = [(event.call, event.name) for event in ran.events if event.call in (*CHANGES, "fsync")]
    once = [(call, "checkpoint.pt.tmp") for call in ("create", "write", "fsync", "rename")]
    assert calls == once * 2
    (first, second) = (event for event in ran.events if event.call == "write")
    assert second.data == (place / "checkpoint.pt").read_bytes()
    torn = runner.fresh()
    assert runner.run(torn, kill=first.order, torn=1).killed
    assert (torn / "checkpoint.pt.tmp").read_bytes() == first.data[: len(first.data) // 2]
    assert not (torn / "checkpoint.pt").exists()


def test_however_python_writes_the_record_explains_the_disk_and_changes_nothing(tmp_path: Path) -> None:
    runner = bench(tmp_path, "variety")
    watched, plain = runner.fresh(), runner.fresh()
    ran = runner.run(watched, keep=True)
    other = runner.run(plain, watched=False)
    assert ran.status == other.status == 0, ran.output
    assert ran.output == other.output == ""
    followed = runner.disk()
    for event in ran.events:
        followed.apply(event)
    assert unexplained(followed.visible(), watched) == []
    assert {name: (watched / name).read_bytes() for name, kind in names_in(watched) if kind == "file"} == {
        name: (plain / name).read_bytes() for name, kind in names_in(plain) if kind == "file"
    }
    natives = {event.name for event in ran.events if event.native}
    assert {"a/array.bin", "a/mapped", "a/child", "a/elsewhere"} <= natives
    assert not natives & {"a/text", "a/raw", "a/low", "a/arrays.npz", "a/b/number", "gone"}


@pytest.mark.parametrize("script", ["straight", "sound_rotation", "numpy_save"])
def test_what_a_kill_leaves_is_what_the_record_says(script: str, tmp_path: Path) -> None:
    runner = bench(tmp_path, script)
    reference = refer(runner, (), 2, print)
    assert reference.explained
    known: dict[str, dict[str, bytes]] = {}
    kills = 0
    for crash, leave in judge.Judge(runner, reference, 1, 0)._crashes(list(range(len(reference.points)))):
        if not crash.how.startswith("killed"):
            continue
        point = reference.points[crash.point]
        events = reference.ran.events[point.start : point.end]
        torn = written(events) // 2 if "middle" in crash.how else -1
        place = runner.fresh()
        assert runner.run(place, kill=events[0].order, torn=torn).killed
        kills += 1
        found = contents(place)
        assert contents(leave()[0]) == found
        assert known.setdefault(crash.key, found) == found  # one key, one directory
    assert len(set(map(str, known.values()))) == len(known) <= kills


def contents(place: Path) -> dict[str, bytes]:
    return {name: (place / name).read_bytes() for name, kind in names_in(place) if kind == "file"}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """At which event each run that is watched kills itself, and what it starts from."""
    found: list[tuple[int, str]] = []
    real = Bench.run

    def run(bench: Bench, place: Path, **options: Any) -> Any:
        if options.get("watched", True):
            found.append((options.get("kill", -1), repr(sorted(contents(place).items()))))
        return real(bench, place, **options)

    monkeypatch.setattr(Bench, "run", run)
    return found


def test_the_script_is_started_once_from_each_directory_that_crashes_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = counted(monkeypatch)
    report = crashed("sound_by_hand")
    assert len(runs) == len(set(runs)) < len(report.trials) / 2
    assert all(kill == -1 for kill, _ in runs)
    assert len(report.trials) >= 2 * report.events


@pytest.mark.parametrize("more", ["os.utime('end', (0, 0))", "os.chmod('end', 0o755)", "os.system('echo >end')"])
def test_what_the_record_does_not_tell_is_killed_for_good(
    more: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = counted(monkeypatch)
    text = "import os\nopen('start', 'w').write('start')\nopen('end', 'w').write('end')\n{}\nos._exit(0)"
    report = script(tmp_path, text.format(""))
    assert comes_back(report)
    assert all(kill == -1 for kill, _ in runs)
    assert not any("kills itself" in line for line in report.not_seen)
    report = script(tmp_path, text.format(more))
    assert comes_back(report)
    assert {kill for kill, _ in runs} > {-1, 0}
    assert any("kills itself" in line for line in report.not_seen)
    assert any(line.startswith("end ") for line in report.not_seen)


def test_a_start_that_fails_and_changes_nothing_is_the_last(tmp_path: Path) -> None:
    report = crashed("straight", restarts=3)
    assert {trial.starts for trial in report.trials if trial.judgement == NO_WAY_BACK} == {1}
    text = """import os
if os.path.exists("end") and os.path.getsize("end") < 2:
    open("end", "a").write("!")
    raise SystemExit(1)
open("end", "w").write("end")
"""
    report = script(tmp_path, text)
    assert comes_back(report)
    assert {trial.starts for trial in report.trials} == {1, 2, 3}


def test_both_runs_without_a_crash_are_made_at_once(tmp_path: Path) -> None:
    work, met = tmp_path / "work", tmp_path / "met"
    work.mkdir()
    met.mkdir()
    text = f"""import os
os.mkdir(os.path.join({str(met)!r}, str(os.getpid())))
while len(os.listdir({str(met)!r})) < 2:
    pass
open("end", "w").write("end")
"""
    (work / "train.py").write_text(text)
    assert comes_back(verb.crash([sys.executable, "train.py"], directory=work, timeout=20, jobs=2))


def test_the_hook_brings_nothing_of_the_project_and_the_scripts_own_start_runs(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "sitecustomize.py").write_text("import builtins\nbuiltins.own = 1")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "observer.py").write_text("mine = 1")
    text = """import observer, sys
assert own == observer.mine == 1
assert not {"torch_port", "numpy_ref", "numpy", "torch", "subprocess"} & set(sys.modules)
open("end", "w").write("end")
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(tmp_path / "own"))
        report = script(tmp_path / "work", text)
    assert comes_back(report), report.error


def some_points(saves: int, each: int) -> list[Point]:
    """Saves of so many events, of which the last but one publishes it."""
    found = []
    for i in range(saves * each):
        save, at = divmod(i, each)
        found.append(Point(i, i + 1, save + 1, save, save + (at == each - 1), ""))
    return found


@given(st.integers(2, 30), st.integers(2, 7), st.integers(1, 240))
def test_a_limit_takes_the_first_save_and_the_last_and_an_even_spread_between(
    saves: int, each: int, limit: int
) -> None:
    every = some_points(saves, each)
    tried = chosen(every, limit)
    assert tried == sorted(set(tried))
    assert len(tried) == min(limit, len(every))
    assert chosen(every, 0) == list(range(len(every)))
    ends = [i for i, point in enumerate(every) if {1, saves} & {point.save, point.published + 1}]
    if limit < len(ends):
        assert set(tried) <= set(ends)
        assert limit == 1 or {tried[0], tried[-1]} == {0, len(every) - 1}
        return
    assert set(ends) <= set(tried)
    inner = [i for i in tried if i not in ends]
    gaps = [b - a for a, b in pairwise(inner)]
    assert not gaps or max(gaps) - min(gaps) <= 1


def test_progress_tells_of_the_time_that_is_left() -> None:
    told: list[str] = []
    crashed("sound_by_hand", progress=told.append)
    assert told[0] == "two runs to the end, without a crash"
    assert re.fullmatch(r"crashes at event 15 of 15, about 0 s left", told[-1])
    assert any(re.fullmatch(r"crashes at event \d of 15, about \d+ s left", text) for text in told)


def test_progress_off_a_terminal_is_a_line_in_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = 100.0
    monkeypatch.setattr(command, "time", SimpleNamespace(monotonic=lambda: now))
    progress, quiet = command.Progress(quiet=False), command.Progress(quiet=True)
    for now in (100.0, 101.0, 109.9, 110.0, 119.9, 125.0):
        progress.tell(f"at {now}")
        quiet.tell("never")
    progress.end()
    assert capsys.readouterr().err == "at 100.0\nat 110.0\nat 125.0\n"


def test_a_script_that_waits_for_a_torn_file_is_no_way_back() -> None:
    report = verb.crash([sys.executable, "waits.py"], directory=SCRIPTS, limit=5, timeout=2.5, restarts=1)
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
    before = states_of(work)
    text = "import sys\nassert open('link').read() == 'far'\nopen(sys.argv[1], 'w').write('w')"
    (work / "train.py").write_text(text)
    report = verb.crash([sys.executable, "train.py", str(work / "out")], directory=work, timeout=20)
    assert report.saved_as == "out"
    (work / "train.py").unlink()
    assert states_of(work) == before


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", action="store_true")
    verb.add_arguments(parser)
    status = verb.run_crash(None, parser.parse_args([*words]))
    return (status, *capsys.readouterr())


def test_the_verb_prints_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--dir", str(SCRIPTS), "--limit", "8", "--", sys.executable, "straight.py")
    status, out, _ = run(capsys, *words)
    assert status == 1
    assert "8 of 12 events tried, an even spread from the first save to the last; --limit 0 tries all" in out
    assert "no way back: killed after create checkpoint.json" in out
    assert out.endswith("does not hold\n")
    status, out, _ = run(capsys, "--json", *words)
    found = strict_json(out)
    assert (status, found["holds"], found["verdict"]) == (1, False, "broken")
    assert found["trials"]
    assert found["causes"][0]["judgement"] == NO_WAY_BACK
    status, out, err = run(capsys, "--", sys.executable, "-c", "raise SystemExit(3)")
    assert (status, out) == (2, "")
    assert "status 3" in err


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("--limit -1 -- x", "--limit: expected at least 0, found -1"),
        ("--restarts 0 -- x", "--restarts: expected at least 1, found 0"),
        ("--timeout 0 -- x", "--timeout: expected more than 0, found 0"),
        ("--timeout nan -- x", "--timeout: expected more than 0, found nan"),
        ("--", "expected a command"),
        ("", "expected a command"),
        ("--dir /none -- x", "expected a directory to copy, found none"),
    ],
)
def test_wrong_usage_is_one_clear_error(capsys: pytest.CaptureFixture[str], words: str, text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)):
        run(capsys, *words.split())


def test_where_nothing_is_compared_there_is_no_verdict(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for patterns, useless in ((["nope"], "'nope'"), ([""], "''"), (["checkpoint.json", "*.pt"], "'*.pt'")):
        options = [word for pattern in patterns for word in ("--compare", pattern)]
        words = ("--dir", str(SCRIPTS), *options, "--", sys.executable, "straight.py")
        status, out, err = run(capsys, *words)
        assert (status, out) == (2, "")
        assert f"found {useless}; it wrote checkpoint.json" in err
        assert "equal in the end" not in err
    assert verb.crash([sys.executable, "straight.py"], directory=SCRIPTS, limit=1, compare=["*.json"]).compared
    text = "import os\nopen('log', 'a').write('a')\nopen('end', 'w').write('end')\nos.unlink('end')"
    assert "nothing to compare at the end" in script(tmp_path, text).error


def test_what_lies_in_a_directory_that_was_renamed_is_compared(tmp_path: Path) -> None:
    text = "import os\nif not os.path.isdir('done'):\n    os.makedirs('part', exist_ok=True)\n"
    text += "    open('part/state', 'w').write('state')\n    os.rename('part', 'done')\n"
    report = script(tmp_path, text)
    assert report.compared == ("done/state",), report.error


def unsynchronised(disk: DiskModel, event: Event) -> None:
    """Applies nothing that synchronises."""
    if not event.call.startswith("fsync"):
        APPLY(disk, event)


APPLY, LOSE = DiskModel.apply, DiskModel.lost
MUTANTS: dict[str, tuple[Any, str, Any, str]] = {  # where, what, instead; a script that is then judged otherwise
    "the ends are not compared": (judge, "unlike", lambda *paths: "", "two_files"),
    "no power loss": (DiskModel, "lost", lambda disk: iter(()), "no_fsync"),
    "bytes are not lost": (DiskModel, "lost", lambda disk: (x for x in LOSE(disk) if "bytes" not in x[0]), "no_fsync"),
    "names are not lost": (
        DiskModel,
        "lost",
        lambda disk: (x for x in LOSE(disk) if "bytes" in x[0]),
        "no_directory_fsync",
    ),
    "fsync does nothing": (DiskModel, "apply", unsynchronised, "sound_by_hand"),
    "no save is ever over": (judge.Judge, "_saved_after", lambda judge, number: 0, "no_directory_fsync"),
    "all states of the disk are one": (judge, "digest", lambda state: "", "no_fsync"),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_of_the_judge_is_told_by_a_script(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    where, what, instead, script = MUTANTS[name]
    before = judgements(cached(script))
    monkeypatch.setattr(where, what, instead)
    assert judgements(crashed(script)) != before


NAMES = ("a", "b")
calls = st.lists(
    st.one_of(
        st.builds(Event, st.sampled_from(("create", "unlink", "fsync", "truncate")), st.sampled_from(NAMES)),
        st.builds(
            Event, st.just("write"), st.sampled_from(NAMES), offset=st.integers(0, 3), data=st.binary(max_size=4)
        ),
        st.permutations(NAMES).map(lambda names: Event("rename", *names)),
        st.just(Event("fsync directory")),
    ),
    max_size=6,
)


@given(calls)
def test_what_power_loss_leaves_is_allowed_by_posix(drawn: list[Event]) -> None:
    disk = DiskModel({})
    for event in drawn:
        if event.call == "fsync directory" or (event.call == "create") != (event.name in disk.names):
            disk.apply(event)
    # Files are torn one at a time there, and together here: each file is held against theirs under the same names.
    allowed = {(tuple(dict(state)), *item) for state in map(plain, disk.states()) for item in [("", b""), *state]}
    for how, state in disk.lost():
        found = dict(plain(state))
        assert (tuple(found), "", b"") in allowed, how
        if not how.startswith("half"):  # a size between is not tried with files as small as these
            assert all((tuple(found), *item) in allowed for item in found.items()), how


def test_what_is_synchronised_is_not_lost() -> None:
    disk = DiskModel({})
    for event in (Event("create", "a"), Event("write", "a", data=b"whole")):
        disk.apply(event)
    assert {how for how, _ in disk.lost()} >= {"un-fsynced bytes lost", "create a lost"}
    disk.apply(Event("fsync", "a"))
    assert {how for how, _ in disk.lost()} == {"create a lost"}
    disk.apply(Event("fsync directory"))
    assert list(disk.lost()) == []


def test_files_are_compared_leaf_by_leaf(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    a, b = tmp_path / "a.pt", tmp_path / "other.pt"
    torch.save({"w": torch.ones(3)}, a)
    torch.save({"w": torch.ones(3)}, b)
    assert a.read_bytes() != b.read_bytes()  # the archive's name is in it
    assert unlike(a, b) == ""
    torch.save({"w": torch.zeros(3)}, b)
    assert "first w" in unlike(a, b)
    b.write_bytes(a.read_bytes()[:-10])
    assert unlike(a, b) == "its bytes differ"
    os.unlink(b)
    assert unlike(a, b) == "missing"
