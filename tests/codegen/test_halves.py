"""Kernels for devices with f16: how buffers are declared, and that results are as without it."""

import numpy as np
import pytest

from edgerelax.codegen.wgsl import print_wgsl
from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Array,
    Barrier,
    KCast,
    Kernel,
    KExpr,
    KLoad,
    KStmt,
    KStore,
    KVec,
    Let,
    i32,
    kop,
    var,
)
from edgerelax.sym import as_expr
from tests.codegen.function_kernels import buffer
from tests.kernel_runners import run_wgpu

SIZE = 64
X = np.random.default_rng(0).standard_normal(SIZE).astype(np.float16)


def kernel(*body: KStmt, size: int = SIZE, workgroup: int = 1) -> Kernel:
    buffers = (buffer("x", F16, size), buffer("y", F16, size))
    return Kernel("k", "gpu", buffers, (), as_expr(size // 4), workgroup, body)


def wide(index: KExpr, lanes: int = 4, aligned: bool = True) -> KExpr:
    return KCast(F32, lanes, KLoad(F16, lanes, "x", index, aligned=aligned))


def short(value: KExpr) -> KExpr:
    return KCast(F16, value.lanes, value)


AT = Let("at", kop("mul", WORKGROUP, i32(4)))


@pytest.mark.parametrize("halves", [False, True])
def test_vectors(halves: bool) -> None:
    k = kernel(AT, KStore("y", var("at"), short(kop("mul", wide(var("at")), wide(i32(4))))))
    assert ("array<vec4<f16>>" in print_wgsl(k, halves=halves)) == halves
    got = run_wgpu(k, {"x": X, "y": np.zeros_like(X)}, {}, SIZE // 4, halves=halves)["y"]
    wanted = X.astype(np.float32).reshape(-1, 4) * X[4:8].astype(np.float32)
    np.testing.assert_allclose(got, wanted.reshape(-1).astype(np.float16), rtol=1e-3)


@pytest.mark.parametrize("halves", [False, True])
def test_lanes_of_vectors_and_four_anywhere(halves: bool) -> None:
    """A vector, one of its elements, and four elements that are no vector."""
    last = wide(kop("sub", i32(SIZE - 1), WORKGROUP), 1)
    near = wide(kop("min", kop("add", var("at"), i32(1)), i32(SIZE - 4)), aligned=False)
    total = kop("add", kop("add", near, wide(var("at"))), splat(last))
    k = kernel(AT, KStore("y", var("at"), short(total)))
    got = run_wgpu(k, {"x": X, "y": np.zeros_like(X)}, {}, SIZE // 4, halves=halves)["y"]
    x = X.astype(np.float32)
    at = np.arange(0, SIZE, 4)[:, None] + np.arange(4)
    near_at = np.minimum(np.arange(0, SIZE, 4) + 1, SIZE - 4)[:, None] + np.arange(4)
    wanted = x[near_at] + x[at] + x[SIZE - 1 - np.arange(SIZE // 4)][:, None]
    np.testing.assert_allclose(got, wanted.reshape(-1), rtol=2e-3, atol=2e-3)


def splat(value: KExpr) -> KExpr:
    return KVec(value.dtype, 4, (value,))


def test_sizes_that_fill_no_vectors_are_packed() -> None:
    k = kernel(AT, KStore("y", var("at"), short(wide(var("at")))), size=66)
    text = print_wgsl(k, halves=True)
    assert "vec4<f16>>" not in text and "array<u32>" in text


def test_rounding_in_between() -> None:
    """A value that is rounded and goes on as f32."""
    rounded = KCast(F32, 4, short(kop("mul", wide(var("at")), wide(i32(0)))))
    k = kernel(AT, KStore("y", var("at"), short(kop("mul", rounded, rounded))))
    assert "vec4<f32>(vec4<f16>(" in print_wgsl(k, halves=True)
    got = run_wgpu(k, {"x": X, "y": np.zeros_like(X)}, {}, SIZE // 4, halves=True)["y"]
    product = (X.reshape(-1, 4) * X[:4]).astype(np.float32)
    np.testing.assert_allclose(got, (product**2).reshape(-1), rtol=3e-3, atol=1e-6)


def shared(value: KExpr) -> Kernel:
    """Through workgroup memory, reversed."""
    place = kop("mul", LOCAL, i32(4))
    back = KLoad(F32, 4, "tile", kop("sub", i32(15), LOCAL))
    body = (
        Array("tile", F32, 16, True, 4),
        Let("v", value),
        KStore("tile", LOCAL, var("v", F32, 4)),
        Barrier(),
        KStore("y", place, short(back)),
    )
    buffers = (buffer("x", F16, SIZE), buffer("y", F16, SIZE))
    return Kernel("k", "gpu", buffers, (), as_expr(1), 16, body)


def test_workgroup_memory_of_what_was_loaded_is_short() -> None:
    loaded = wide(kop("mul", LOCAL, i32(4)))
    k = shared(loaded)
    assert "w_tile: array<vec4<f16>, 16>" in print_wgsl(k, halves=True)
    assert "w_tile: array<vec4<f32>, 16>" in print_wgsl(k)
    got = run_wgpu(k, {"x": X, "y": np.zeros_like(X)}, {}, 1, halves=True)["y"]
    np.testing.assert_array_equal(got, X.reshape(-1, 4)[::-1].reshape(-1))


def test_workgroup_memory_of_sums_is_not() -> None:
    loaded = wide(kop("mul", LOCAL, i32(4)))
    text = print_wgsl(shared(kop("add", loaded, loaded)), halves=True)
    assert "w_tile: array<vec4<f32>, 16>" in text


def test_kernels_without_f16_are_as_they_were() -> None:
    body = (KStore("y", WORKGROUP, KLoad(F32, 1, "x", WORKGROUP)),)
    buffers = (buffer("x", F32, 4), buffer("y", F32, 4))
    k = Kernel("k", "gpu", buffers, (), as_expr(4), 1, body)
    assert print_wgsl(k, halves=True) == print_wgsl(k)
