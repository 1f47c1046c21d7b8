"""The fixture `resume_audit`: it fails a test where the loop does not resume, and is nothing to any other test."""

import functools
import importlib
import os
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

import pytest

import torch_port.audit
from parity_tests.commands import ROOT
from torch_port.audit import plugin
from torch_port.audit.judge.findings import Report, Stop
from torch_port.audit.judge.target import target_of
from torch_port.audit.loop.worker import find_target
from torch_port.audit.report.lines import lines

NAME = "torch_port.audit.plugin"


class Run:
    """A loop of this module."""

    class Inner:
        """One within."""


def make():
    """A function that returns one."""


def run_tests(folder, *words):
    """Run pytest there in a process of its own, with the plugin as it is when installed."""
    installed = any(entry.value == NAME for entry in entry_points(group="pytest11"))
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *([] if installed else ["-p", NAME]), *words]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def call(monkeypatch):
    """What the fixture gives, with an audit that returns a report; and what that was called with."""
    monkeypatch.setattr("torch_port.audit.judge.target._check", lambda text: None)

    def call_it(report, *words, **named):
        calls = []

        def audit(target, **options):
            calls.append((target, options, os.environ["PYTHONPATH"]))
            return report

        monkeypatch.setattr(torch_port.audit, "audit", audit)
        return plugin.audit_or_fail(*words, **named), calls

    return call_it


def test_it_returns_a_report_that_holds(call):
    report = Report("my:Run", 24, "bitwise")
    found, [(target, options, _)] = call(report, Run, at=(7,), every_step=False)
    assert found is report
    assert target == f"{__name__}:Run"
    assert options == {"steps": 24, "at": (7,), "every_step": False}


@pytest.mark.parametrize("verdict", ["broken", "not deterministic", "failed"])
def test_a_test_fails_with_the_lines_of_a_report_that_does_not_hold(call, verdict):
    report = Report("my:Run", 24, verdict, stops=(Stop((7,), False, "differs"),))
    with pytest.raises(pytest.fail.Exception) as failure:
        call(report, "my:Run")
    assert failure.value.msg.splitlines() == lines(report)


def test_the_environment_is_as_before(call, monkeypatch):
    for before in ("somewhere", None):
        monkeypatch.delenv("PYTHONPATH", raising=False)
        if before is not None:
            monkeypatch.setenv("PYTHONPATH", before)
        _, [(_, _, during)] = call(Report("my:Run", 24, "bitwise"), "my:Run")
        assert str(ROOT) in during.split(os.pathsep)
        assert os.environ.get("PYTHONPATH") == before


# Where the loop is found


@pytest.mark.parametrize("thing", [Run, Run.Inner, make])
def test_a_loop_in_a_package_is_found_by_its_module(thing):
    target = target_of(thing)
    assert target == f"{__name__}:{thing.__qualname__}"
    assert find_target(target)[1] is thing


@pytest.mark.parametrize("package", ["", "package"])
def test_a_loop_elsewhere_is_found_by_its_file(tmp_path, monkeypatch, package):
    name = "test_somewhere_else"
    (tmp_path / f"{name}.py").write_text("class Run:\n    mark = 'here'\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    module = importlib.import_module(name)
    if package:  # as `--import-mode=importlib` names a file of a directory that is no package
        module.__name__ = module.Run.__module__ = f"{package}.{name}"
        sys.modules[module.__name__] = module
    target = target_of(module.Run)
    assert target == f"{tmp_path / name}.py:Run"
    assert find_target(target)[1].mark == "here"


def test_what_no_other_process_can_import_is_refused():
    class Local:
        pass

    for thing in (Local, lambda: None, functools.partial(make), Run(), 7):
        with pytest.raises(TypeError, match="at the top level of a module"):
            target_of(thing)
    with pytest.raises(TypeError, match="a module with a file"):
        target_of(len)


# As installed

LOOP = """
import torch


class Run:
    full = True

    def __init__(self):
        self.model = torch.nn.Linear(4, 2)
        torch.nn.init.constant_(self.model.weight, 0.5)
        torch.nn.init.zeros_(self.model.bias)
        self.optimizer = torch.optim.Adam(self.model.parameters())

    def step(self):
        self.optimizer.zero_grad()
        loss = self.model(torch.ones(5, 4)).square().sum()
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def state_dict(self):
        return {"model": self.model.state_dict()} | ({"optimizer": self.optimizer.state_dict()} if self.full else {})

    def load_state_dict(self, state):
        self.model.load_state_dict(state["model"])
        if self.full:
            self.optimizer.load_state_dict(state["optimizer"])


class Forgets(Run):
    full = False


def test_holds(resume_audit):
    assert resume_audit(Run, steps=4, at=[2], power=False).verdict == "bitwise"


def test_forgets(resume_audit):
    resume_audit(Forgets, steps=4, at=[2], power=False)
"""


def test_loops_of_a_test_file_are_audited_and_the_one_that_forgets_fails_its_test(tmp_path):
    (tmp_path / "test_loop.py").write_text(LOOP)
    answer = run_tests(tmp_path, "-q", "-W", "error", "test_loop.py")
    assert answer.returncode == 1, answer.stdout + answer.stderr
    assert "1 failed, 1 passed" in answer.stdout
    assert "DOES NOT HOLD" in answer.stdout
    assert "optimizer/exp_avg" in answer.stdout
    assert "plugin.py" not in answer.stdout, "the report alone, no traceback through the plugin"


def test_other_tests_see_nothing_of_it(tmp_path):
    text = """
import os, sys

def test_nothing_was_imported():
    assert not {"torch", "numpy", "numpy_ref", "torch_port.audit.judge.fold"} & set(sys.modules)
"""
    (tmp_path / "test_other.py").write_text(text)
    answer = run_tests(tmp_path, "-q", "-W", "error", "--strict-config", "--strict-markers", "test_other.py")
    assert answer.returncode == 0, answer.stdout + answer.stderr
    help_text = run_tests(tmp_path, "--fixtures", "-q")
    assert "resume_audit" in help_text.stdout
    assert Path(plugin.__file__).name in help_text.stdout


WRONG = """
from test_loop import Run

def test_a_word(resume_audit):
    resume_audit(Run, step=4)

def test_stops(resume_audit):
    resume_audit(Run, steps=4, at=[9])

def test_text(resume_audit):
    resume_audit("nowhere:Run")

def test_local(resume_audit):
    class Local(Run):
        pass

    resume_audit(Local)
"""


def test_a_wrong_call_is_shown_where_it_stands_in_the_test_and_no_frame_of_ours(tmp_path):
    (tmp_path / "test_loop.py").write_text(LOOP)
    (tmp_path / "test_wrong.py").write_text(WRONG)
    answer = run_tests(tmp_path, "-q", "test_wrong.py")
    assert "4 failed" in answer.stdout, answer.stdout + answer.stderr
    for line in ("resume_audit(Run, step=4)", "resume_audit(Run, steps=4, at=[9])", 'resume_audit("nowhere:Run")'):
        assert f">       {line}" in answer.stdout or f">   {line}" in answer.stdout
    for text in ("argument 'step'", "found 9", "found no nowhere in", "at the top level of a module"):
        assert text in answer.stdout
    assert "torch_port/audit" not in answer.stdout


def test_what_cannot_be_called_is_no_loop() -> None:
    with pytest.raises(TypeError, match="expected a class, or a function that returns a run, found float"):
        find_target("math:pi")
