"""The worker processes, seen from the process of the audit, and the runner of one target in them."""

import itertools
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path
from typing import Any

from torch_port.audit.judge.findings import Failure
from torch_port.audit.judge.record import Record


class AuditFailed(Exception):
    """The user's code stopped a run."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"{failure.phase}: {failure.error}")
        self.failure = failure


class Worker:
    """A process that runs one target after the other, one request at a time."""

    def __init__(self, seed: int) -> None:
        environment = dict(os.environ, PYTHONHASHSEED=str(seed), PYTORCH_NVML_BASED_CUDA_CHECK="1")
        ours = str(Path(__file__).parents[3])
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [environment.get("PYTHONPATH"), ours]))
        command = [sys.executable, "-m", "torch_port.audit.loop.worker"]
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
            start_new_session=True,
        )
        self.lock = threading.Lock()
        self.opening = False  # its import has not been waited for yet
        self.failure: Failure | None = None  # of the import

    def open(self, target: str, home: Path, limit: float) -> None:
        """Begin to import a target."""
        name = home / f"import-{self.process.pid}"
        self.limit = limit
        self.opening = True
        self._send({"target": target, "limit": limit, "record": f"{name}.json", "output": f"{name}.output"})

    def run(self, spec: dict[str, Any]) -> Record:
        """Run a request; its record.

        Raises:
            AuditFailed: an exception of the user's code, a hang, or an end of the process.
        """
        with self.lock:
            self._opened()
            spec = {"limit": self.limit, **spec}
            self._send(spec)
            self._answer("run")
        return Record(spec["record"])

    def leave(self) -> None:
        """Be done with a target."""
        with self.lock, suppress(AuditFailed):
            self._opened()
            self._send({})

    def _opened(self) -> None:
        """Wait for the import, once."""
        if self.opening:
            self.opening, self.failure = False, None
            try:
                self._answer("import")
            except AuditFailed as stopped:
                self.failure = stopped.failure
        if self.failure is not None:
            raise AuditFailed(self.failure)

    def close(self) -> None:
        """End the process, and whatever it has started."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        with suppress(OSError):  # it has ended: there will be no answer
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()

    def _answer(self, phase: str) -> None:
        """Wait for the end of a request; `phase` says what it is, where the process has ended."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        found = json.loads(line)["failure"] if line else Failure(phase, "the worker process ended")
        if found is not None:
            raise AuditFailed(Failure(*found))


class Workers:
    """The two processes of an audit; several audits, one after the other, may share them.

        with Workers() as workers:
            reports = [audit(target, workers=workers) for target in targets]

    torch is imported once in each.
    """

    def __init__(self) -> None:
        self.all = [Worker(seed) for seed in (1, 2)]
        self.pool = ThreadPoolExecutor(len(self.all))

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.all:
            worker.close()
        self.pool.shutdown()


class Runner:
    """Runs one target in the workers, from the import to the last run: `with Runner(...) as runner`."""

    def __init__(
        self, workers: Workers, target: str, home: Path, steps: int, limit: float, note: Callable[[str], None]
    ) -> None:
        self.workers, self.target, self.home, self.steps, self.limit = workers, target, home, steps, limit
        self.note = note
        self._numbers = itertools.count(1)
        self._jobs: list[Future[Any]] = []

    def __enter__(self) -> "Runner":
        for worker in self.workers.all:
            worker.open(self.target, self.home, self.limit)
        return self

    def __exit__(self, *_: object) -> None:
        wait(self._jobs)
        for worker in self.workers.all:
            worker.leave()

    def run(self, worker: int, name: str, **spec: Any) -> Record:
        """A run in a worker.

        Args:
            worker: its number.
            name: of the record's file.
            spec: what the run is asked to do, see `loop.trial.Spec`.

        Raises:
            AuditFailed: as `Worker.run`.
        """
        spec["record"] = str(self.home / f"{next(self._numbers):04d}-{name}.json")
        return self.workers.all[worker].run({"steps": self.steps, "start": 0, **spec})

    def submit(self, function: Callable[..., Any], *arguments: Any) -> Future[Any]:
        """Do something in a thread; the runner does not end before. Called from the thread that made the runner."""
        self._jobs.append(self.workers.pool.submit(function, *arguments))
        return self._jobs[-1]
