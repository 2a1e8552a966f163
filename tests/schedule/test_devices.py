"""A small set of schedules on real hosts: lavapipe through wgpu, and wasmtime."""

from typing import Any

import pytest

from edgerelax.ir.dtypes import BOOL, F16, F32, I64, U8
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import Acc, Value, cast, gather, op
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from tests.kernel_runners import run_wasm, run_wgpu
from tests.schedule.oracle import assert_close, every_choice, inputs_for, run_version, single
from tests.schedule.test_cascade import Chain, peaks_of_two, softmax_of_columns
from tests.schedule.test_conv import CASES, conv
from tests.schedule.test_gemm import K, M, N, matmul
from tests.schedule.test_pairs import conv as conv_of_bytes
from tests.schedule.test_reduce import buf, reduction
from tests.schedule.test_rows import layer_norm, softmax
from tests.schedule.test_templates import recurrence, template


def biased(lead: Any, i: Any, j: Any, y: Any) -> Any:
    bias = buf("bias", F32, y.dims[1])
    return (bias,), op("tanh", Acc(F32) + bias[j])


def cases() -> dict[str, tuple[LoopFunc, dict[str, int]]]:
    x, flags, small = buf("x", F32, N, 7), buf("flags", BOOL, N, 7), buf("small", U8, N, 8)
    at = buf("at", I64, N)
    return {
        "exp": (single("f", [x], buf("z", F32, N, 7), lambda i, j: op("exp", x[i, j])), {"n": 9}),
        "bool": (
            single("f", [x], flags, lambda i, j: op("gt", x[i, j], 0.0)),
            {"n": 5},
        ),
        "bytes": (
            single("f", [small], buf("z", F32, 8, N), lambda i, j: cast(small[j, i], F32)),
            {"n": 5},
        ),
        "gather": (
            single("f", [x, at], buf("z", F32, N, 7), lambda i, j: x[gather(at[i], N), j]),
            {"n": 6},
        ),
        "range": (single("f", [], buf("z", I64, N), lambda i: Value(i.expr * 3 - 4)), {"n": 6}),
        "sum": (reduction(buf("x", F32, N, K), buf("y", F32, N), "sum"), {"n": 5, "k": 130}),
        "columns": (
            reduction(buf("x", F32, K, 8), buf("y", F32, 8), "max", "kn"),
            {"k": 33},
        ),
        "argmax": (reduction(buf("x", F32, N, K), buf("y", I64, N), "argmax"), {"n": 3, "k": 70}),
        "softmax": (softmax((N,), K), {"n": 5, "k": 67}),
        "softmax f16": (softmax((N,), 8, F16), {"n": 5}),
        "layer norm": (layer_norm(N, (12,), keep_sum=True), {"n": 5}),
        "softmax of columns": (softmax_of_columns(), {"k": 5}),
        "weighted sums": (peaks_of_two(Chain()), {"n": 2, "k": 67}),
        "matmul": (matmul(M, N, K, epilogue=biased), {"m": 5, "n": 7, "k": 9}),
        "matmul aligned": (matmul(M, 36, 8, tb=True), {"m": 34}),
        "split sum": (reduction(buf("x", F32, 1, 8192), buf("y", F32, 1), "sum"), {}),
        "split any": (reduction(buf("x", BOOL, 2, 9001), buf("y", BOOL, 2), "any"), {}),
        "split argmax": (reduction(buf("x", F32, 3, 9001), buf("y", I64, 3), "argmax"), {}),
        "split columns": (reduction(buf("x", F32, 4000, 8), buf("y", F32, 8), "max", "kn"), {}),
        "split matmul": (matmul(3, 8, 518, epilogue=biased), {}),
        "lstm": (
            recurrence("lstm", 8, ("forward", "reverse"), ("h", "c", "lengths")),
            {"t": 3, "b": 2},
        ),
        "gru": (recurrence("gru", 5), {"t": 3, "b": 2}),
        "gru wide": (recurrence("gru", 276), {"t": 3, "b": 2}),
        "topk": (
            template(
                "topk",
                [buf("x", F32, 2, N)],
                [buf("v", F32, 2, 5), buf("i", I64, 2, 5)],
                k=5,
                largest=True,
                sorted=True,
            ),
            {"n": 40},
        ),
        "nonzero": (
            template(
                "nonzero",
                [buf("x", BOOL, 3, N)],
                [buf("p", I64, 2, 900), buf("c", I64, 1)],
                capacity=900,
            ),
            {"n": 300},
        ),
        "8 bits": (conv_of_bytes(c=8, oc=40, kh=3, kw=3, pad=1), {"h": 3, "w": 9}),
        "conv": (conv(1, 4, 7, 9, **CASES["3x3"]), {}),
        "depthwise": (conv(1, 4, 8, 8, **CASES["depthwise"]), {}),
    }


@pytest.mark.parametrize("target", (WEBGPU, WEBGPU_SOFTWARE), ids=lambda t: t.name)
@pytest.mark.parametrize("name", cases())
def test_wgpu(name: str, target: Target) -> None:
    run_case(name, target, run_wgpu)


@pytest.mark.parametrize("name", cases())
def test_wasm(name: str) -> None:
    run_case(name, WASM, run_wasm)


def run_case(name: str, target: Target, runner: Any) -> None:
    func, symbols = cases()[name]
    arrays = inputs_for(func, symbols)
    want = run_loop(func, arrays, symbols)

    def run(kernel: Any, memory: Any, scalars: Any, grid: int) -> None:
        for key, value in runner(kernel, memory, scalars, grid).items():
            memory[key][...] = value

    for version in every_choice(func, target):
        got = run_version(version, func, arrays, symbols, run)
        for g, w in zip(got, want, strict=True):
            assert_close(g, w, 4e-3 if "f16" in name else 1e-4)
