"""Does a PyTorch training loop resume as if it had never stopped?

All of the user's code runs in worker processes; the process of the audit has no torch.

    judge       starts workers, reads their records, decides and explains; without torch
    loop        what runs in a worker: the user's loop, observed
    report      a report as lines for a terminal, JSON and a page
    script      a script as it is, audited from two commands by the files at its ends
    crash       a script that is killed at the file events of its saves
    foreign     files of any origin: read, compared, inspected
    draws       how far apart two states of a generator are
    commands    the verbs
    plugin      the fixture for pytest
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
