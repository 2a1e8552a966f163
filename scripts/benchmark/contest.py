"""The contests: which contenders meet on which host, and what is kept of them as plain data."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edgerelax.artifact.manifest import Manifest, ProgramInfo
from scripts.benchmark import machine
from scripts.benchmark.cases import Artifact, Subject, graph_bytes
from scripts.benchmark.page_of_docs import OURS
from scripts.benchmark.pages import PageContender
from scripts.benchmark.processes import ProcessContender
from scripts.benchmark.rounds import Contender, Effort, Race, Record
from scripts.benchmark.sizes import activations, sizes_of
from scripts.benchmark.statistics import median, paired_ratio, spread
from tests.browser.harness import Browser
from tests.e2e.models import TOLERANCE

THREADS = os.cpu_count() or 1


@dataclass(frozen=True, slots=True)
class Host:
    """Where contenders meet: a backend in a page, or a device of this machine; threads of each."""

    title: str
    backend: str
    in_page: bool = False
    threads: int = 1

    @property
    def on_cpu(self) -> bool:
        """Whether our program is one of the CPU device."""
        return self.backend in ("wasm", "cpu")


HOSTS = {
    "webgpu": Host("WebGPU in Chromium, against onnxruntime-web's WebGPU provider", "webgpu", True),
    "wasm": Host(
        "WebAssembly in Chromium on one thread, against onnxruntime-web's WASM provider",
        "wasm",
        True,
    ),
    "wasm-threads": Host(
        f"WebAssembly in Chromium on {THREADS} threads, against onnxruntime-web's WASM provider",
        "wasm",
        True,
        THREADS,
    ),
    "wgpu": Host("wgpu natively, against onnxruntime's CPU provider on one thread", "wgpu"),
    "cpu": Host("CPU natively on one thread, against onnxruntime", "cpu"),
    "cpu-threads": Host(
        f"CPU natively on {THREADS} threads, against onnxruntime", "cpu", threads=THREADS
    ),
}
RIVAL = "onnxruntime"
Data = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stand:
    """Where contests take place; `adapters` says what plays the GPU on each host that has one."""

    browser: Browser | None
    adapters: Mapping[str, str | None]

    def ours(self, subject: Subject, host: str, artifact: Artifact, name: str = OURS) -> Contender:
        """Our contender with an artifact on a host."""
        at = HOSTS[host]
        if not at.in_page:
            folder, cases = str(artifact.folder), str(subject.cases)
            return ProcessContender(name, "edgerelax", folder, cases, at.backend, at.threads)
        assert self.browser is not None
        url = self.browser.publish(artifact.folder, artifact.folder.name)
        return self._in_page(name, "edgerelax", at, url, subject)

    def rival(self, subject: Subject, host: str) -> Contender:
        """ONNX Runtime on the same host."""
        at = HOSTS[host]
        if not at.in_page:
            model, cases = str(subject.model), str(subject.cases)
            return ProcessContender(RIVAL, "onnxruntime", model, cases, threads=at.threads)
        assert self.browser is not None
        url = self.browser.publish(subject.model, f"{subject.name}.onnx")
        return self._in_page(f"{RIVAL}-web", "onnxruntime", at, url, subject)

    def program(self, manifest: Manifest, host: str) -> ProgramInfo:
        """The program that runs there."""
        if HOSTS[host].on_cpu:
            return next(p for p in manifest.programs if p.device == "cpu")
        kind = "software" if machine.is_software(self.adapters.get(host)) else "gpu"
        offered = [p for p in manifest.programs if p.device == "gpu"]
        return next((p for p in offered if p.adapter == kind), offered[0])

    def activations(self, subject: Subject, host: str, *without: str) -> int | None:
        """Bytes of the memory plan at the warm case."""
        manifest = subject.artifact(*without).manifest
        sizes = sizes_of(manifest, subject.inputs[subject.warm])
        return activations(self.program(manifest, host), sizes)

    def _in_page(
        self, name: str, library: str, at: Host, url: str, subject: Subject
    ) -> PageContender:
        assert self.browser is not None
        cases = f"/cases/{subject.cases.name}"
        return PageContender(name, self.browser, library, at.backend, url, cases, at.threads)


def contest(stand: Stand, subject: Subject, host: str, effort: Effort) -> Data:
    """Our library against its rivals with one model on one host."""
    artifact = subject.artifact()
    race = Race(
        [stand.ours(subject, host, artifact), stand.rival(subject, host)],
        effort,
    )
    records = race.run(len(subject.inputs), subject.warm)
    for name, record in records.items():
        if name == OURS:
            record.facts["activations"] = stand.activations(subject, host)
        if "download" in record.facts and name != OURS:
            record.facts["download"]["graph_bytes"] = graph_bytes(subject.model)
    return told(records, subject)


def told(records: Mapping[str, Record], subject: Subject) -> Data:
    """Records as plain data; ratios are ours over theirs, paired by round."""
    first = records[next(iter(records))]
    return {
        name: describe(record, subject)
        | {
            "warm_ratio": paired_ratio(
                [s.milliseconds for s in first.warm], [s.milliseconds for s in record.warm]
            ),
            "first_ratio": paired_ratio(first.first, record.first),
        }
        for name, record in records.items()
    }


def describe(record: Record, subject: Subject) -> Data:
    """One contender's figures; times in milliseconds."""
    warm = [s.milliseconds for s in record.warm]
    launches = median([s.launches for s in record.warm if s.launches is not None])
    worked = median(
        [s.thread_milliseconds for s in record.warm if s.thread_milliseconds is not None]
    )
    return {
        "failure": record.failure,
        "gap": record.gap if record.gap < float("inf") else None,
        "equal": record.gap <= TOLERANCE and record.failure is None,
        "first_ms": record.first,
        "warm_ms": warm,
        "warm_median_ms": median(warm),
        "warm_spread": spread(warm),
        "first_median_ms": median(record.first),
        "second_median_ms": median(record.second),
        "new_shapes": _new_shapes(record, subject),
        "launches": launches or None,  # nobody can count those of the rival's WebAssembly
        "thread_ms": worked,
        **record.facts,
    }


def _new_shapes(record: Record, subject: Subject) -> list[Data]:
    """Both first calls at each size over a usual one when all code was compiled."""
    out = []
    for case, times in record.new_shapes.items():
        first, usual = median(times.first), median(times.later)
        fresh = median(record.fresh_shapes[case].first)
        out.append(
            {
                "shapes": subject.shapes[case],
                "first_ms": first,
                "fresh_ms": fresh,
                "warm_ms": usual,
                "ratio": first / usual if first and usual else None,
                "fresh_ratio": fresh / usual if fresh and usual else None,
            }
        )
    return out


def failures(data: Mapping[str, Data]) -> Sequence[str]:
    """Why our side of a contest is not right; nothing where it is."""
    ours = data[OURS]
    if ours["failure"] is not None:
        return (str(ours["failure"]),)
    gap = "other shapes, NaNs or infinities" if ours["gap"] is None else f"{ours['gap']:.1e}"
    return () if ours["equal"] else (f"outputs differ from onnxruntime's: {gap}",)
