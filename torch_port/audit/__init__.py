"""Does a PyTorch training loop resume as if it had never stopped?

All of the user's code runs in worker processes. The process of the audit has no torch:

    drive        one audit from the control to the report
    target       where the loop is to be found
    workers      the worker processes, seen from here
    control      are two uninterrupted runs equal?
    stops        where the run is stopped
    resume       what one resume shows, and why
    judge        are two runs equal after a stop?
    attribution  which lost states make the difference
    trials       runs with lost states put back
    causes       what was lost in words, and the line to add
    states       saved, restored, needed
    power        which losses would be caught
    record       what a run left, made of leaves: digest, sample, distance
    findings     what an audit found, as plain values
    words        what a report says; report (terminal, JSON) and page (HTML) lay it out

In a worker process:

    worker       runs the loop, in a fork for each run
    trial        one run of the loop, as it is asked for
    observe      a run object as a map of its states, with functions, classes and hidden (what is looked into)
    places       where a state lives, paths: how that is written, and expressions: what a user writes to reach it
    values       the value of a state, remembered and in full
    restore      values put where their paths point
    samples      what the DataLoaders deliver, and batches: kept and delivered again
    checks       what a load does beyond its result
    unsaved      what no file can hold
    draws        how far apart two states of a generator are

Beside loops in Python:

    script       a script as it is, by the files at its ends: placeholders (its two commands), saved (what it left) and
                 file_causes (what that tells)
    crash        a script that is killed at the file events of its saves
    foreign      files of any origin: read, compared, inspected
    commands     the verbs
    plugin       the fixture for pytest
"""

from collections.abc import Callable, Sequence
from typing import Any

from torch_port.audit.judge.findings import Report

__all__ = ["Report", "audit"]


def audit(
    target: Any,
    *,
    steps: int = 24,
    at: Sequence[int | Sequence[int]] | None = None,
    every_step: bool = False,
    timeout: float = 60.0,
    keep: str | None = None,
    power: bool = True,
    workers: Any = None,
    note: Callable[[str], None] | None = None,
) -> Report:
    """Whether a training loop that is stopped and resumed equals one that never stopped; if not, what was lost.

    All of the user's code runs in worker processes; this process is as it was before.

    Args:
        target: "module:Name" or "path/file.py:Name" of a class or function that returns an object with step(),
            state_dict() and load_state_dict(state), or save(path) and load(path); or the class or function itself.
        steps: of the uninterrupted run, at least 2.
        at: the steps after which it is stopped, each from 1 to steps - 1; a sequence of steps is one run with several
            stops. By default some are chosen.
        every_step: stop after every step.
        timeout: seconds that each call of the user's code may take.
        keep: a directory for the files of the audit; by default they are deleted.
        power: also lose each restored state in turn, to see which losses would be caught.
        workers: `torch_port.audit.judge.workers.Workers` that several audits share, one after the other.
        note: called with a line about what is going on.

    Returns:
        The report; `str(report.verdict)` is "bitwise" where every resume is equal in every bit.

    Raises:
        ValueError: steps or stops that make no audit, or a target that is not there.
        TypeError: a class or function that no other process can import.
    """
    from torch_port.audit.judge.fold import audit_target
    from torch_port.audit.judge.target import target_of

    return audit_target(
        target_of(target),
        steps=steps,
        at=at,
        every_step=every_step,
        timeout=timeout,
        keep=keep,
        power=power,
        workers=workers,
        note=note or (lambda line: None),
    )
