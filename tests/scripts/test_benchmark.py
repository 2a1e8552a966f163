"""The arithmetic of scripts/bench: order of samples, ratios, work of kernels, the page of docs."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

from edgerelax import api
from scripts.benchmark import contest, page_of_docs
from scripts.benchmark.cases import Artifact, Subject, read_cases, write_cases
from scripts.benchmark.roofline import rows
from scripts.benchmark.rounds import ContenderError, Effort, Race, Sample, calls_for
from scripts.benchmark.sizes import activations, sizes_of
from scripts.benchmark.statistics import geometric_mean, median, paired_ratio, spread
from scripts.benchmark.work import scheduling, work

PRODUCT = """
<ir_version: 8, opset_import: ["" : 17]>
product (float[m, 8] a) => (float[m, 4] y)
<float[8, 4] b = {ONES}>
{ y = MatMul(a, b) }
""".replace("ONES", ", ".join("1" * 32))


@dataclass
class Fake:
    """Takes the milliseconds it is told to, in order; None fails."""

    name: str
    times: list[float | None]
    log: list[str]
    gap: float = 0.0
    closed: bool = field(default=False)

    def start(self) -> Sample:
        return self._next("start")

    def again(self) -> Sample:
        return self._next("again")

    def sample(self, case: int, calls: int) -> Sample:
        return self._next(f"{case}" if calls == 1 else f"{case} x{calls}")

    def _next(self, what: str) -> Sample:
        self.log.append(f"{self.name} {what}")
        found = self.times.pop(0) if len(self.times) > 1 else self.times[0]
        if found is None:
            raise ContenderError("it broke")
        return Sample(found, self.gap, 2.0, found / 2)

    def facts(self) -> dict[str, Any]:
        return {"wasm_bytes": 5, "gpu_peak_bytes": 0}

    def close(self) -> None:
        self.closed = True


def subject(tmp_path: Path) -> Subject:
    model = tmp_path / "product.onnx"
    onnx.save(onnx.parser.parse_model(PRODUCT), model)
    inputs = [{"a": np.ones((m, 8), np.float32)} for m in (1, 3)]
    return Subject("product", model, inputs, 1, tmp_path / "product")


def test_statistics() -> None:
    assert median([]) is None and median([3.0, 1.0, 2.0]) == 2.0
    assert spread([1.0]) is None and spread([2.0, 2.0, 2.0]) == 0.0
    assert spread([1.0, 2.0, 3.0]) == pytest.approx(0.5)
    assert paired_ratio([], []) is None
    assert paired_ratio([1.0, 20.0, 3.0], [2.0, 40.0, 6.0]) == 0.5
    assert geometric_mean([None]) is None
    assert geometric_mean([2.0, None, 8.0]) == pytest.approx(4.0)


def test_a_slow_spell_leaves_the_paired_ratio_alone() -> None:
    ours, theirs = [1.0, 1.0, 9.0, 9.0, 9.0], [2.0, 2.0, 18.0, 18.0, 18.0]
    assert paired_ratio(ours, theirs) == 0.5


def test_samples_are_long_enough_for_the_clock() -> None:
    assert calls_for(1000.0) == 1 and calls_for(10.0) == 3 and calls_for(0.0) == 100
    assert calls_for(20.0, 0.5, 3) == 25 and calls_for(9000.0, 0.5, 3) == 3


def test_contenders_take_turns_and_the_order_turns_round() -> None:
    log: list[str] = []
    race = Race([Fake("a", [10.0], log), Fake("b", [20.0], log)], Effort(2, 2, 60.0))
    records = race.run(cases=2, warm=1)
    each = {name: [f"{name} 0", *[f"{name} 1"] * 4] for name in "ab"}  # a usual call before
    new = [each["b"] + each["a"], each["a"] + each["b"]]
    settle = {"a": ["a 0", "a 0 x50"], "b": ["b 0", "b 0 x25"]}
    both = [settle["a"] + settle["b"], settle["b"] + settle["a"]]
    starts = ["a start", "b start", *both[0], *new[0], "b start", "a start", *both[1], *new[1]]
    warm = ["a 1", "a 1", "b 1", "b 1", "a 1 x3", "b 1 x2", "b 1 x2", "a 1 x3"]
    again = [*settle["a"], "a 1", "a 1 x50", "a again", *settle["b"], "b 1", "b 1 x25", "b again"]
    assert log == [*starts, *warm, *again, *both[0], *new[0]]
    assert [s.milliseconds for s in records["b"].warm] == [20.0, 20.0]
    assert records["a"].first == [10.0, 10.0] and records["a"].second == [10.0, 10.0]
    assert len(records["a"].fresh_shapes[1].later) == 6
    assert len(records["a"].new_shapes[1].later) == 3


def test_one_start_and_three_rounds_however_little_time() -> None:
    log: list[str] = []
    fakes = [Fake("a", [1.0], log), Fake("b", [1.0], log)]
    records = Race(fakes, Effort(5, 9, 0.0)).run(1, 0)
    assert len(records["a"].first) == 1 and len(records["a"].warm) == 3
    assert all(fake.closed for fake in fakes)


def test_who_fails_is_told_and_the_other_goes_on(tmp_path: Path) -> None:
    log: list[str] = []
    fakes = [Fake("edgerelax", [1.0], log, gap=0.5), Fake("b", [1.0, None], log)]
    told = contest.told(Race(fakes, Effort(1, 3, 9.0)).run(2, 1), subject(tmp_path))
    assert told["b"]["failure"] == "it broke" and told["b"]["warm_ratio"] is None
    assert len(told["edgerelax"]["warm_ms"]) == 3
    assert contest.failures(told) == ("outputs differ from onnxruntime's: 5.0e-01",)


def test_cases_come_back_from_disk(tmp_path: Path) -> None:
    inputs = [{"x": np.arange(3, dtype=np.int64), "y": np.array(True)}, {"x": np.zeros((2, 0))}]
    expected = [{"z": np.float32([[0.5]])}, {"z": np.array([], np.int8)}]
    write_cases(tmp_path / "some.model", inputs, expected)
    for (given, wanted), i, e in zip(
        read_cases(tmp_path / "some.model"), inputs, expected, strict=True
    ):
        for got, put in ((given, i), (wanted, e)):
            assert got.keys() == put.keys()
            for name, array in put.items():
                assert got[name].dtype == array.dtype
                np.testing.assert_array_equal(got[name], array)


def test_work_of_a_product(tmp_path: Path) -> None:
    model = subject(tmp_path)
    with scheduling() as scheduled:
        executable = api.compile(model.model)
    sizes = sizes_of(executable.artifact.manifest, model.inputs[1])
    assert sizes == {"m": 3}
    (one,) = (s for s in scheduled if s.target.device == "cpu")
    done = work(one.func, sizes)
    assert done is not None
    assert done.bytes == 4 * (3 * 8 + 8 * 4 + 3 * 4)
    assert done.flops == 3 * 4 * 8 * 2
    assert work(one.func, {}) is None
    times = [{"name": k, "milliseconds": 2.0, "launches": 1.0} for k in sorted(one.kernels)[:1]]
    row, other = rows([*times, {"name": "?", "milliseconds": 1.0, "launches": 3.0}], [one], sizes)
    assert row["flops"] == done.flops and row["ms"] == 2.0 and 0 < row["reached"] < 1
    assert other["bound"] is None and other["launches"] == 3.0


def test_activations_need_every_size(tmp_path: Path) -> None:
    manifest = api.compile(subject(tmp_path).model).artifact.manifest
    program = manifest.programs[-1]
    assert activations(program, {"m": 3}) == 3 * activations(program, {"m": 1})  # type: ignore
    assert activations(program, {}) is None


def test_the_page_says_what_was_measured(tmp_path: Path) -> None:
    model = subject(tmp_path)
    executable = api.compile(model.model)
    model.artifacts[()] = Artifact(tmp_path, 1.0, executable.artifact.manifest)
    log: list[str] = []
    times: list[float | None] = [2.0] * 25
    times[4], times[21] = 6.0, 3.0  # the first call at a size: after the start, in the second model
    fakes = [Fake("edgerelax", times, log), Fake("onnxruntime-1", [4.0], log)]
    told = contest.told(Race(fakes, Effort(1, 3, 9.0)).run(2, 1), model)
    (new,) = told["edgerelax"]["new_shapes"]
    assert new == {"shapes": "3x8", "first_ms": 3.0, "fresh_ms": 6.0, "warm_ms": 2.0,
                   "ratio": 1.5, "fresh_ratio": 3.0}  # fmt: skip
    machine = {
        "date": "today", "processor": "p", "cores": 2, "system": "s", "busy": 0.0,
        "adapters": {"webgpu": "google swiftshader", "wgpu": None}, "versions": {"x": "1"},
    }  # fmt: skip
    kernel = {"name": "k", "ms": 1.0, "launches": 1.0, "bytes": 1e6, "flops": 2e6,
              "bound": "memory", "reached": 0.5, "strategy": "map"}  # fmt: skip
    page = page_of_docs.page(
        {
            "machine": machine,
            "hosts": {"cpu": "CPU natively, against onnxruntime"},
            "models": {"product": {"warm_case": "3x8", "hosts": {"cpu": told}}},
            "ablation": {"product": {"cpu": {"all": told["edgerelax"] | {"ratio": 1.0,
                                                                         "activations": 96}}}},
            "roofline": {"product": {"cpu": {"failure": "no clock"},
                                     "wasm": {"failure": None, "rows": [kernel]}}},
        }
    )  # fmt: skip
    assert "| product (3x8) | onnxruntime-1 | 2.00 ±0% | 4.00 ±0% | **0.50** |" in page
    assert "| **0.50** | 2.00 | 4.00 | 1.50 | 1.00 | 3.00 | 1.00 | 0e+00 | 0e+00 |" in page
    assert "Not measured: no clock" in page
    assert "| k | map | 1.000 | 100% | 1 | 1.0 MB | 2.00 | 2.00 | memory | 50% |" in page
    assert "say nothing about real GPUs" in page


def test_a_line_through_the_models_tells_what_a_launch_costs() -> None:
    def page(host: str, counts: dict[int, float]) -> str:
        told = [{"launches": n, "thread_ms": ms} for n, ms in counts.items()]
        models = {str(k): {"hosts": {host: {"edgerelax": data}}} for k, data in enumerate(told)}
        return page_of_docs.straight_line({"models": models}, host)

    assert "edgerelax 3.0 µs a launch and 0.25 ms a call." in page(
        "webgpu", {10: 0.28, 20: 0.31, 100: 0.55}
    )
    assert page("webgpu", {10: 0.28, 20: 0.31}) == ""
