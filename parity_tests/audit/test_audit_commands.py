"""The verb `audit`: its words, its files, its status; and scripts as they are, audited from two commands."""

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest

import torch_port
import torch_port.audit
from numpy_ref.cli import _refuse
from parity_tests.commands import ROOT, python, strict_json
from torch_port.audit import commands
from torch_port.audit.judge import target, workers
from torch_port.audit.judge.findings import Failure, Report, Stop, as_plain
from torch_port.audit.report.lines import lines
from torch_port.audit.report.page import html
from torch_port.audit.script import audit as script
from torch_port.audit.script import saved
from torch_port.audit.script.audit import audit_script

REPORTS = {
    0: Report("my:Run", 24, "bitwise", stops=(Stop((7,), True, "bitwise"),)),
    1: Report("my:Run", 24, "broken", stops=(Stop((7,), False, "differs"),)),
    2: Report("my:Run", 24, "failed", failure=Failure("import", "ImportError: \udc80")),
}


def parser():
    """As the command line makes one for each verb."""
    made = argparse.ArgumentParser(prog="audit", description="Resumes?")
    made.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    commands.add_audit_arguments(made)
    return made


def options(*words):
    return parser().parse_args([str(word) for word in words])


@pytest.fixture
def run(monkeypatch, capsys):
    """Run the verb with an audit that gives a report, and no process; status, output, and what it was called with."""

    def run_it(*words, report):
        calls = []
        monkeypatch.setattr(torch_port.audit, "audit", lambda *a, **k: calls.append((a, k)) or report)
        monkeypatch.setattr(workers, "Workers", lambda: nullcontext(SimpleNamespace(all=[])))
        monkeypatch.setattr(target, "target_of", lambda loop: loop)
        status = commands.run_audit(torch_port, options(*words))
        for _, named in calls:
            assert named.pop("workers").all == []
        out, run_it.told = capsys.readouterr()
        return status, out, calls

    return run_it


@pytest.mark.parametrize("status", REPORTS)
def test_the_status_and_the_lines_are_those_of_the_report(run, status):
    found, out, _ = run("my:Run", report=REPORTS[status])
    assert found == status
    assert out.splitlines() == lines(REPORTS[status])


def test_the_words_reach_the_audit(run):
    words = ("my:Run", "--steps", 30, "--at", "7,12,5+13", "--timeout", "2.5")
    _, _, [(args, named)] = run(*words, report=REPORTS[0])
    assert args == ("my:Run",)
    assert named == {"note": None, "steps": 30, "at": [7, 12, (5, 13)], "every_step": False, "timeout": 2.5}
    _, _, [(_, named)] = run("my:Run", "--every-step", report=REPORTS[0])
    assert named == {"note": None, "steps": 24, "at": None, "every_step": True}


def test_json_is_printed_or_goes_to_a_file_and_reports_go_by_their_suffix(run, tmp_path):
    a, b, page = (tmp_path / name for name in ("a.json", "b.json", "page.html"))
    _, out, _ = run("my:Run", "--json", a, "--report", b, "--report", page, report=REPORTS[1])
    assert out.splitlines() == [*lines(REPORTS[1]), *(f"report: {path}" for path in (a, b, page))]
    assert page.read_text(encoding="utf-8") == html(REPORTS[1])
    for path in (a, b):
        assert strict_json(path.read_text()) == {"holds": False} | json.loads(json.dumps(as_plain(REPORTS[1])))
    _, out, _ = run("my:Run", "--json", report=REPORTS[1])
    assert strict_json(out) == strict_json(a.read_text())
    assert options("my:Run").report == [], "the option's default is not what an earlier call appended to"


def test_a_refusal_knows_whether_json_was_asked_for(capsys):
    for words, printed in ((("--json",), True), (("--json", "a.json"), False), ((), False)):
        assert _refuse(2, "no", options("my:Run", *words)) == 2
        assert bool(capsys.readouterr().out) == printed


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--json", "my:Run"], "TARGET comes before it"),
        (["my:Run", "--report", "a.txt"], "ends in .html or .json"),
        (["my:Run", "--at", "7,x"], "as in 7,12,13 or 7+13, found 'x'"),
        (["my:Run", "--at", "0"], "steps from 1 on"),
        (["my:Run", "--at", "13+7"], "ascending order"),
        (["my:Run", "--at", "7", "--every-step"], "not allowed with"),
        (["my:Run", "--steps", "1"], "from 2 on"),
        (["my:Run", "--timeout", "nan"], "more than 0"),
    ],
)
def test_wrong_usage_says_what_is_expected(capsys, words, text):
    with pytest.raises(SystemExit) as end:
        options(*words)
    assert end.value.code == 2
    assert text in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ([], "found neither"),
        (["my:Run", "--script", "a {steps} {path}", "--resume", "b {path}"], "found both"),
        (["--script", "a {steps} {path}"], "--script and --resume together"),
        (["my:Run", "--resume", "a {steps} {path}"], "--script and --resume together"),
        (["--script", "a {path}", "--resume", "b {path}"], "--script: expected {steps} in the command"),
        (["--script", "a {steps} {path}", "--resume", "b"], "--resume: expected {path} in the command"),
        (["--resume", "b {path}"], "--script and --resume together"),
        (["--script", "a 'b {steps} {path}", "--resume", "b {path}"], "--script: expected a command as a shell"),
        (["--script", "a {steps} {path}", "--resume", "b {stpes} {path} {x}"], "--resume: expected no other names"),
        (["my:Run", "--steps", "9", "--at", "3,9+12"], "found [9, 12]"),
        (["my:Run", "--report", "not/there/a.html"], "found no not/there"),
        (["my:Run", "--allow", "argparse.Namespace"], "--allow: expected --script"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(run, words, text):
    with pytest.raises(ValueError, match=re.escape(text)):
        run(*words, report=REPORTS[0])


@pytest.mark.parametrize("words", [(), ("--json",)])
def test_the_verdict_is_told_though_a_report_cannot_be_written(run, tmp_path, words):
    names = [tmp_path / "whole.json", tmp_path / "full.html", tmp_path / "directory.json"]
    names[1].symlink_to("/dev/full")
    names[2].mkdir()
    if not Path("/dev/full").exists():
        del names[1]
    found, out, _ = run("my:Run", *words, *(word for name in names for word in ("--report", name)), report=REPORTS[0])
    assert found == 2
    told = strict_json(names[0].read_text()) if words else [*lines(REPORTS[0]), f"report: {names[0]}"]
    assert (strict_json(out) if words else out.splitlines()) == told
    assert [line.split(": the report was not written: ")[0] for line in run.told.splitlines()] == list(
        map(str, names[1:])
    )


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("no_such_module:Run", "expected a module that Python finds, found no no_such_module in "),
        ("no_such_file.py:Run", "expected a file, found none at "),
        *(
            (text, f"{text!r}: expected 'module:Name' or 'path/file.py:Name' as the loop")
            for text in ("argparse", "argparse:", ":Run", ":", "a.py", f"{__file__}:Run:x", "a b:Run", "argparse:a-b")
        ),
    ],
)
def test_a_loop_that_cannot_be_is_refused_before_any_process_starts(monkeypatch, words, text):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(ValueError, match=re.escape(text)):
        commands.run_audit(torch_port, options(words))
    with pytest.raises(ValueError, match=re.escape(text)):
        torch_port.audit.audit(words)


def test_help_and_wrong_usage_need_no_torch(tmp_path):
    text = (
        "import argparse, sys\nfrom torch_port.audit import commands, plugin\np = argparse.ArgumentParser()\n"
        "p.add_argument('--json', action='store_true')\ncommands.add_audit_arguments(p)\np.format_help()\n"
        "assert 'torch' not in sys.modules and 'numpy_ref.cli' not in sys.modules\n"
    )
    answer = python("-W", "error", "-c", text, cwd=tmp_path)
    assert answer.returncode == 0, answer.stderr


# Scripts: pure Python, which starts fast, on files of the safetensors format

TRAIN = """
import json, os, pathlib, random, struct, sys

words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
steps, out, fault = int(words["--steps"]), pathlib.Path(words["--out"]), words.get("--fault")

def save(path, weight, moment, step):
    if fault == "single":
        weight = [struct.unpack("f", struct.pack("f", w))[0] for w in weight]
    arrays = {"model.weight": weight, "optimizer.exp_avg": moment, "step": [float(step)]}
    head, body = {}, b""
    for name, values in arrays.items():
        data = struct.pack(f"<{len(values)}d", *values)
        head[name] = {"dtype": "F64", "shape": [len(values)], "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    head = json.dumps(head).encode()
    path.write_bytes(struct.pack("<Q", len(head)) + head + body)

def load(path):
    raw = path.read_bytes()
    size, = struct.unpack("<Q", raw[:8])
    head, body = json.loads(raw[8:8 + size]), raw[8 + size:]
    def values(name):
        start, end = head[name]["data_offsets"]
        return list(struct.unpack(f"<{(end - start) // 8}d", body[start:end]))
    return values("model.weight"), values("optimizer.exp_avg"), int(values("step")[0])

weight, moment, step = [0.5, -0.25, 0.125, 2.0, 1.0], [0.0] * 5, 0
if "--from" in words and fault != "anew":
    weight, moment, step = load(pathlib.Path(words["--from"]))
    if fault == "moment":
        moment = [0.0] * 5
if fault == "random":
    weight[0] = random.random()
if "--from" in words:
    if fault == "fails":
        print("on its way", flush=True)
        raise RuntimeError("no way to go on")
    if fault == "hangs":
        import time
        print("waits", flush=True)
        time.sleep(1000)
    if fault == "unsaved":
        sys.exit()
for step in range(step, steps):
    moment = [0.9 * m + 0.1 * w for m, w in zip(moment, weight)]
    weight = [w - 0.1 * m for w, m in zip(weight, moment)]
if fault == "directory":
    out.mkdir(exist_ok=True)
    (out / "log.txt").write_text(str(os.getpid()))
    out = out / f"step-{steps}.safetensors"
if fault != "nothing":
    save(out, weight, moment, steps)
"""


def audit(folder, fault="none", *, more="", **named):
    path = folder / "train.py"
    path.write_text(TRAIN)
    base = f"{shlex.quote(sys.executable)} -S {path} --steps {{steps}} --out {{path}}"
    first = f"{base} --fault {fault}" if fault in ("random", "directory", "nothing", "single") else base
    at = "/step-{left}.safetensors" if fault == "directory" else ""
    return audit_script(first, f"{base} --from {{path}}{at} --fault {fault}", **{"steps": 8, "at": [4], **named})


def test_a_script_that_resumes_holds(tmp_path):
    report = audit(tmp_path, at=[1, 5, (2, 6)])
    assert report.verdict == "bitwise", "\n".join(lines(report))
    assert [(stop.at, stop.holds) for stop in report.stops] == [((1,), True), ((5,), True), ((2, 6), True)]
    assert {state.kind for state in report.states} >= {"model"}
    assert report.seconds > 0


def test_a_script_may_save_a_directory_with_files_of_other_kinds(tmp_path):
    report = audit(tmp_path, "directory")  # resumed at half of its steps: as many are left as are done
    assert report.verdict == "bitwise", "\n".join(lines(report))


def test_a_script_that_drops_a_moment_is_told_and_the_moment_named(tmp_path):
    report = audit(tmp_path, "moment", at=[3, 4])
    assert report.verdict == "broken"
    assert [stop.holds for stop in report.stops] == [False, False]
    assert report.first_lost == "optimizer.exp_avg"
    for stop in report.stops:  # each of them says it
        assert stop.lost == ("optimizer.exp_avg",)
        assert not stop.proved
        assert (stop.first.step, stop.first.path) == (stop.at[0], "optimizer.exp_avg")  # as soon as it is loaded
        assert stop.first.expected != 0 == stop.first.found
        assert "optimizer.exp_avg is 0.0 then, not " in stop.cause
        assert stop.advice == ("optimizer.exp_avg is in the saved file: load it, last if something else sets it too",)


def test_a_script_that_saves_in_half_of_its_precision_is_told(tmp_path):
    report = audit(tmp_path, "single", at=[1, 2])
    assert report.verdict == "broken"
    assert report.first_lost is None
    for stop in report.stops:
        assert stop.first.step == 8
        assert "not in it, or not in full" in stop.cause
        assert "the file has no optimizer, no scheduler, " in stop.cause  # all of it is one model by its form
        assert any("torch.get_rng_state()" in line for line in stop.advice)


def test_a_script_that_cannot_resume_at_its_end_is_asked_once(tmp_path, monkeypatch):
    asked = []

    def refuses(commands, saved, step, name):
        asked.append(step)

    monkeypatch.setattr(script, "_changed_by_load", refuses)
    report = audit(tmp_path, "moment", at=[3, 4])
    assert asked == [3]
    assert all("could not be tried" in stop.cause and stop.first.step == 8 for stop in report.stops)


def test_a_resume_that_trains_anew_is_told_although_its_end_is_equal(tmp_path, monkeypatch):
    report = audit(tmp_path, "anew")
    assert report.stops[0].holds
    assert (report.verdict, report.status) == ("broken", 1)
    assert "trains anew" in report.warnings[0]
    monkeypatch.setattr(script, "_unread", lambda *_: "")
    assert audit(tmp_path, "anew").holds, "without the check nothing tells"


COUNTS = """
import json, sys

steps, out, more = int(sys.argv[1]), sys.argv[2], sys.argv[3:]  # more: the file to go on from
state = json.load(open(more[0])) if more else {"w": 0.5, "n": 0}
for _ in range(state["n"], steps):
    state = {"w": state["w"] * 0.9, "n": state["n"] + 1}
json.dump(state, open(out, "w"))
"""


@pytest.mark.parametrize(
    ("given", "end", "line"),
    [("{left}", 5, "{steps}, not {left}"), ("3", 3, "see what --resume is given")],
)
def test_a_resume_that_ends_at_another_step_is_told_by_the_file_s_own_counter(tmp_path, given, end, line):
    path = tmp_path / "counts.py"
    path.write_text(COUNTS)
    python = f"{shlex.quote(sys.executable)} -S {path}"
    report = audit_script(f"{python} {{steps}} {{path}}", f"{python} {given} {{path}} {{path}}", steps=8, at=[3])
    (stop,) = report.stops
    assert (stop.first.step, stop.first.path, stop.first.expected, stop.first.found) == (8, "n", 8, end)
    assert stop.cause == f"the resumed run did not end at step 8: n is {end} then, not 8"
    assert len(stop.advice) == 1
    assert line in stop.advice[0]
    assert not report.warnings
    assert [state.kind for state in report.states if state.path == "n"] == ["counter"]


BESIDE = """
import json, os, sys, time

steps, out, fault = int(sys.argv[1]), sys.argv[2], sys.argv[3]
resume = len(sys.argv) > 4
folder = fault in ("directory", "unread")
name, main = (out + "/", out + "/weights.json") if folder else (out + ".", out)
state = {"w": 0.5, "n": 0, "ema": 0.25}
if resume:
    state |= json.load(open(main)) | json.load(open(name + "state.json"))
    if folder:
        state["ema"] = 0.25
for n in range(state["n"], steps):
    ema = 0.5 * state["ema"] + state["w"]
    state = {"w": state["w"] - 0.1 * ema, "n": n + 1, "ema": ema}
os.makedirs(os.path.dirname(main), exist_ok=True)
parts = {main: {"w": state["w"]}, name + "state.json": {"n": state["n"], "ema": state["ema"]}}
if fault == "unread":
    del parts[name + "state.json"]["ema"]
    open(name + "x.bin", "w").write("=%r" % state["ema"])
if fault == "settings":
    parts[name + "args.json"] = {"resume": resume, "started": time.time_ns()}
for file, part in parts.items():
    json.dump(part, open(file, "w"))
"""


def audit_beside(folder, fault):
    (folder / "beside.py").write_text(BESIDE)
    base = f"{shlex.quote(sys.executable)} -S {folder / 'beside.py'} {{steps}} {{path}} {fault}"
    return audit_script(base, f"{base} resume", steps=8, at=[3])


def test_json_of_a_directory_is_read_and_what_a_resume_forgets_of_it_is_named(tmp_path):
    report = audit_beside(tmp_path, "directory")
    (stop,) = report.stops
    assert stop.lost == ("state.json/ema",)
    assert stop.advice == ("state.json/ema is in the saved file: load it, last if something else sets it too",)
    assert "no epoch or step" not in stop.cause
    restored = {state.path: state.restored for state in report.states}
    assert restored == {"weights.json": True, "state.json/n": True, "state.json/ema": False}


def test_where_a_file_was_not_read_nothing_is_said_of_what_is_missing(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(saved, "_of_json", lambda file: None)
        report = audit_beside(tmp_path, "directory")
        assert "no checkpoint that can be read, only state.json, weights.json" in report.failure.error
    read = saved._leaves

    def one_is_a_checkpoint(file, **named):  # beside a checkpoint, not only beside JSON
        found, is_json = read(file, **named)
        return found, is_json and file.name != "weights.json"

    monkeypatch.setattr(saved, "_leaves", one_is_a_checkpoint)
    report = audit_beside(tmp_path, "unread")
    (stop,) = report.stops
    assert not stop.holds
    assert (stop.lost, stop.advice) == ((), ())
    assert stop.cause.endswith("in what was not read: x.bin")
    assert report.warnings == ("x.bin was not read by the audit",)


def test_times_and_switches_in_json_beside_a_checkpoint_are_no_state(tmp_path):
    report = audit_beside(tmp_path, "settings")
    assert report.verdict == "bitwise", "\n".join(lines(report))
    assert report.warnings == (
        "not compared, for two uninterrupted runs differ in it: checkpoint.pt.args.json/started",
        "taken for a setting, though the resumed run saved another: checkpoint.pt.args.json/resume",
    )


@pytest.mark.parametrize("at", [[8], [0], [5, 9], [(5, 3)], []])
def test_stops_and_classes_that_make_no_audit_are_refused_before_anything_runs(tmp_path, monkeypatch, at):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a process was started"))
    with pytest.raises(ValueError, match="at: expected rising steps from 1 to 7"):
        audit(tmp_path, at=at)
    with pytest.raises(ValueError, match="allow: mend each of these:\n    nope: expected"):
        audit(tmp_path, allow=["nope"])


def test_a_script_that_is_not_deterministic_is_told(tmp_path):
    report = audit(tmp_path, "random")
    assert (report.verdict, report.status) == ("not deterministic", 1)
    assert report.control.floor
    assert not report.stops


@pytest.mark.parametrize(
    ("fault", "phase", "error", "printed"),
    [
        ("fails", "the resume from step 4 to 8", "exit status 1", "RuntimeError: no way to go on"),
        ("hangs", "hang in the resume from step 4 to 8", "no end within 3 s", "waits"),
        ("unsaved", "the resume from step 4 to 8", "left {path} as it was", ""),
        ("nothing", "the script, 8 steps", "saved nothing at {path}", ""),
    ],
)
def test_a_command_that_fails_is_told_with_its_phase_and_what_it_printed(tmp_path, fault, phase, error, printed):
    report = audit(tmp_path, fault, timeout=3)
    assert (report.verdict, report.status) == ("failed", 2)
    assert report.failure.phase == phase
    assert error in report.failure.error
    assert printed in report.failure.traceback


def test_a_command_that_is_not_there_or_saves_no_checkpoint_is_told(tmp_path):
    report = audit_script("not-a-program {steps} {path}", "not-a-program {path}")
    assert report.failure.phase == "the script, 24 steps"
    assert "FileNotFoundError" in report.failure.error
    (tmp_path / "save.py").write_text("import sys; open(sys.argv[1], 'w').write('no checkpoint')")
    text = f"{shlex.quote(sys.executable)} -S {tmp_path / 'save.py'} {{path}} {{steps}}"
    report = audit_script(text, text)
    assert report.failure.phase == "reading what was saved"


def test_nothing_is_left_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path / "scratch"))
    monkeypatch.setattr("tempfile.tempdir", None)
    Path(os.environ["TMPDIR"]).mkdir()
    before = dict(os.environ), Path.cwd()
    assert audit(tmp_path, "none").holds
    assert not list((tmp_path / "scratch").iterdir())
    assert (dict(os.environ), Path.cwd()) == before


# Signals

WAITS = """
import os, sys, time

def wait(mark):
    open(os.path.join(os.environ["MARKS"], f"{os.getpid()}-{mark}"), "w").close()
    time.sleep(600)

class Run:
    def step(self):
        wait("step")

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass

if __name__ == "__main__":
    wait("script")
"""


def is_alive(number):
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{number}/stat")  # one that has ended and that nobody has asked after is no more
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_for(what, seconds=60):
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.02)
    return found


def test_a_signal_that_comes_again_is_ignored_while_what_was_begun_is_put_away():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    done = []
    try:
        with commands.ended_by_signals() as ending:
            ending.append(lambda: done.append("first"))
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)
    assert done == ["first"]


def test_each_place_where_a_module_was_looked_for_is_named_once(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(tmp_path / "other"), str(tmp_path)]))
    with pytest.raises(ValueError, match="found no nothing_here") as error:
        target.target_of("nothing_here:Run")
    assert f" in {tmp_path}, {tmp_path / 'other'}, nor installed" in str(error.value)


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no signals of POSIX")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("verb", ["audit", "script", "crash"])
def test_a_signal_ends_a_verb_and_leaves_no_process_and_no_directory(tmp_path, number, verb):
    marks, scratch = tmp_path / "marks", tmp_path / "scratch"
    work = tmp_path / "work"
    for folder in (marks, scratch, work):
        folder.mkdir()
    (work / "waits.py").write_text(WAITS)
    text = f"{shlex.quote(sys.executable)} waits.py"
    words = {
        "audit": ["audit", "waits.py:Run", "--timeout", "500"],
        "script": ["audit", "--script", f"{text} {{steps}} {{path}}", "--resume", f"{text} {{path}}"],
        "crash": ["crash", "--", sys.executable, "waits.py"],
    }[verb]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "MARKS": str(marks), "TMPDIR": str(scratch)}
    with subprocess.Popen(
        [sys.executable, "-m", "torch_port", *words],
        cwd=work,
        env=environment,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # it may be ignored in this one
    ) as process:
        try:
            wait_for(lambda: list(marks.iterdir()))
            assert [*scratch.glob(f"{words[0]}-*")]
            for _ in range(4):  # as `timeout` does
                process.send_signal(number)
                time.sleep(0.01)
            assert process.wait(20) in (128 + number, -number)  # the last one may come when all is done
        finally:
            process.kill()
    started = [int(mark.name.partition("-")[0]) for mark in marks.iterdir()]
    wait_for(lambda: not any(map(is_alive, started)), 5)
    assert not [*scratch.glob(f"{words[0]}-*")]
