"""Whether a training script, unmodified, comes back after a crash at any file event of its saves.

    python -m torch_port crash -- python train.py --steps 40

The script runs to its end twice, once watched and once not: the files at its end are what every other run must end
with. Then, for each event of its saves, directories are made as a process leaves them that is killed there, before the
event and in the middle of a write, and as power loss could leave them after it. In each the script is started again
until it ends. Three judgements: it *resumed* from a whole checkpoint and ended equal; *work lost*: equal in the end,
and yet it did again what a finished save held; *no way back*: it fails each time, or ends with something else.

    hook         what sees, in the script's own processes, what it does to files
    bench        runs of the script in copies of its directory; a directory copied, made to hold a state, compared
    reference    what the script does without a crash: its saves, and the events to crash at
    judge        crashes, and what came after
    report       the reasons, what to change, and all of that printed
    command      the verb

What power loss may leave is `numpy_ref.proof.power_failure`.
"""

from torch_port.audit.crash.command import add_arguments, run_crash
from torch_port.audit.crash.judge import crash
from torch_port.audit.crash.report import LOST, NO_WAY_BACK, RESUMED, Cause, Report, Trial

__all__ = ["LOST", "NO_WAY_BACK", "RESUMED", "Cause", "Report", "Trial", "add_arguments", "crash", "run_crash"]
