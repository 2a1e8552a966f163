"""A native contender: a process that loads a model and runs its cases; JSON lines in and out.

Run as `python -m scripts.benchmark.worker`; scripts/benchmark/processes.py talks to it.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from edgerelax import api
from edgerelax.checking import difference
from scripts.benchmark.cases import Arrays, read_cases

Run = Callable[[Arrays], Mapping[str, np.ndarray]]


class Worker:
    """Answers requests; the model is loaded by the first."""

    def __init__(self) -> None:
        self.cases: list[tuple[Arrays, Arrays]] = []
        self.given: Mapping[str, Any] = {}
        self.run: Run | None = None
        self.stats: Callable[[], Mapping[str, int]] = dict
        self.before = 0

    def start(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Load and run the first case. Importing the libraries is not counted."""
        self.cases = read_cases(Path(request["cases"]))
        self.before = resident_peak(afresh=True)
        self.given = request
        return self.again(request)

    def again(self, _: Mapping[str, Any]) -> dict[str, Any]:
        """Load anew and run the first case."""
        request = self.given
        begun = time.perf_counter()
        if request["library"] == "edgerelax":
            session = api.load(request["model"], request["device"], threads=request["threads"])
            self.run, self.stats = session.run, session.stats
        else:
            self.run = open_onnxruntime(request["model"], request["threads"])
        outputs = self.run(self.cases[0][0])
        spent = (time.perf_counter() - begun) * 1e3
        return {"milliseconds": spent, "gap": worst(outputs, self.cases[0][1])}

    def sample(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Run a case `calls` times in a row, compare afterwards."""
        assert self.run is not None
        inputs, expected = self.cases[request["number"]]
        launched = self.stats().get("dispatches")
        begun = time.perf_counter()
        kept = [self.run(inputs) for _ in range(request["calls"])]
        spent = (time.perf_counter() - begun) * 1e3
        gap = max(worst(outputs, expected) for outputs in kept)
        found = {"milliseconds": spent / request["calls"], "gap": gap}
        if launched is not None:
            launches = self.stats()["dispatches"] - launched
            found["launches"] = launches / request["calls"]
        return found

    def facts(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """How far the process grew since loading began, at its peak; counters of the session."""
        grown = resident_peak() - self.before
        return {"resident_growth_bytes": grown, "stats": dict(self.stats())}


def open_onnxruntime(model: str, threads: int) -> Run:
    """A session of the CPU provider on that many threads."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(model, options, ["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, inputs), strict=True))


def worst(outputs: Mapping[str, np.ndarray], expected: Arrays) -> float:
    """The largest difference of any output."""
    return max(difference(outputs[name], wanted) for name, wanted in expected.items())


def resident_peak(*, afresh: bool = False) -> int:
    """The most bytes that this process had in memory; `afresh`: since now.

    Not ru_maxrss, which begins with what the parent process had.
    """
    if afresh:
        Path("/proc/self/clear_refs").write_text("5")
    status = Path("/proc/self/status").read_text()
    (line,) = (text for text in status.splitlines() if text.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def answer(worker: Any) -> None:
    """Answer each line of the input with one line, by the method that it names."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            found = getattr(worker, request["do"])(request)
        except Exception as error:  # whatever it is, the other side must hear of it
            text = str(error).strip().splitlines() or [""]
            found = {"failure": f"{type(error).__name__}: {text[0]}"}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    answer(Worker())
