"""Native contenders: each in a process of its own (scripts/benchmark/worker.py)."""

import json
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from typing import Any

from scripts.benchmark.rounds import ContenderError, Sample
from tests.browser.harness import ROOT

PATIENCE = 120  # seconds for one answer


@dataclass(slots=True)
class WorkerProcess:
    """A Python module in a process that answers requests, JSON lines in and out."""

    module: str
    patience: float = PATIENCE
    _process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """A fresh process; returns once it has imported its libraries."""
        self.close()
        self._process = subprocess.Popen(
            [sys.executable, "-m", self.module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self._answer()

    def ask(self, **request: Any) -> Any:
        """What the method named by `do` gives. Raises ContenderError."""
        if self._process is None or self._process.stdin is None:
            raise ContenderError("not started")
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        if self._process is not None:
            self._process.communicate()  # the worker ends where its input does
        self._process = None

    def _answer(self) -> Any:
        assert self._process is not None and self._process.stdout is not None
        limit = threading.Timer(self.patience, self._process.kill)
        limit.start()
        line = self._process.stdout.readline()
        limit.cancel()
        if not line:
            raise ContenderError(f"the process ended with status {self._process.wait()}")
        found = json.loads(line)
        if "failure" in found:
            raise ContenderError(found["failure"])
        return found


@dataclass(slots=True)
class ProcessContender:
    """A library with a model on this machine. `device` is for edgerelax alone."""

    name: str
    library: str
    model: str
    cases: str
    device: str = ""
    threads: int = 1
    _process: WorkerProcess = field(
        default_factory=lambda: WorkerProcess("scripts.benchmark.worker")
    )

    def start(self) -> Sample:
        """A fresh process; the time starts once both libraries are imported."""
        self._process.start()
        found = self._process.ask(
            do="start",
            library=self.library,
            model=self.model,
            cases=self.cases,
            device=self.device,
            threads=self.threads,
        )
        return Sample(found["milliseconds"], found["gap"])

    def again(self) -> Sample:
        """A second session in the same process."""
        found = self._process.ask(do="again")
        return Sample(found["milliseconds"], found["gap"])

    def sample(self, case: int, calls: int) -> Sample:
        found = self._process.ask(do="sample", number=case, calls=calls)
        return Sample(found["milliseconds"], found["gap"], found.get("launches"))

    def facts(self) -> dict[str, Any]:
        found: dict[str, Any] = self._process.ask(do="facts")
        return found

    def close(self) -> None:
        self._process.close()
