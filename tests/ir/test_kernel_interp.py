"""The faults that the kernel interpreter finds, and what it lets pass."""

import numpy as np
import pytest

from edgerelax.ir.dtypes import DTYPES, F16, F32, I32, U8, DType
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Array,
    Barrier,
    For,
    If,
    KCast,
    KConst,
    Kernel,
    KernelBuffer,
    KLoad,
    KSelect,
    KStmt,
    KStore,
    KVec,
    Let,
    f32,
    i32,
    kop,
    var,
)
from edgerelax.ir.kernel_interp import convert, run_kernel
from edgerelax.ir.kernel_memory import KernelFault
from edgerelax.ir.scalar import Buffer
from edgerelax.sym import as_expr

SHARED = Array("s", F32, 64, shared=True)
LOCAL_F = KCast(F32, 1, LOCAL)


def run(
    *body: KStmt,
    size: int = 64,
    grid: int = 1,
    dtype: DType = F32,
    device: str = "gpu",
    access: str = "read_write",
) -> np.ndarray:
    buffer = KernelBuffer(Buffer("y", dtype, (as_expr(size),)), access)
    kernel = Kernel("k", device, (buffer,), (), as_expr(grid), 64, body)
    y = np.zeros(size, dtype.numpy)
    run_kernel(kernel, {"y": y}, {}, grid)
    return y


def load(buffer: str, index: object, dtype: DType = F32, lanes: int = 1, **more: bool) -> KLoad:
    return KLoad(dtype, lanes, buffer, index, **more)  # type: ignore[arg-type]


def test_divergent_barrier() -> None:
    with pytest.raises(KernelFault, match="divergent barrier: 3 of 64"):
        run(If(kop("lt", LOCAL, i32(3)), (Barrier(),)))


def test_barrier_in_a_loop_of_different_lengths() -> None:
    with pytest.raises(KernelFault, match="divergent barrier"):
        run(For("k", i32(0), kop("add", LOCAL, i32(1)), (Barrier(),)))


def test_barrier_that_whole_workgroups_skip() -> None:
    run(If(kop("eq", WORKGROUP, i32(0)), (Barrier(),)), grid=3)


def test_shared_memory_needs_a_barrier() -> None:
    mirror = load("s", kop("sub", i32(63), LOCAL))
    with pytest.raises(KernelFault, match="race: load of s"):
        run(SHARED, KStore("s", LOCAL, LOCAL_F), KStore("y", LOCAL, mirror))
    y = run(SHARED, KStore("s", LOCAL, LOCAL_F), Barrier(), KStore("y", LOCAL, mirror))
    np.testing.assert_array_equal(y, np.arange(64)[::-1])


def test_a_store_must_wait_for_the_loads_of_others() -> None:
    body = (
        SHARED, KStore("s", LOCAL, LOCAL_F), Barrier(),
        Let("x", load("s", kop("sub", i32(63), LOCAL))),
    )  # fmt: skip
    with pytest.raises(KernelFault, match="race: store of s"):
        run(*body, KStore("s", LOCAL, var("x", F32)))
    run(*body, Barrier(), KStore("s", LOCAL, var("x", F32)))


def test_two_values_for_one_element() -> None:
    with pytest.raises(KernelFault, match="store of another value"):
        run(KStore("y", i32(0), LOCAL_F))
    assert run(KStore("y", i32(0), f32(2.0)))[0] == 2  # all the same: no harm


def test_workgroups_are_never_ordered() -> None:
    with pytest.raises(KernelFault, match="race: load of y"):
        run(
            If(kop("eq", LOCAL, i32(0)), (KStore("y", WORKGROUP, f32(1.0)),)),
            Barrier(),
            Let("x", load("y", kop("sub", i32(1), WORKGROUP))),
            grid=2,
        )


def test_iterations_of_a_cpu_kernel_are_independent() -> None:
    following = kop("min", kop("add", WORKGROUP, i32(1)), i32(63))
    with pytest.raises(KernelFault, match="race"):
        run(KStore("y", WORKGROUP, load("y", following)), KStore("y", following, f32(1.0)),
            device="cpu", grid=64)  # fmt: skip
    body = (KStore("y", WORKGROUP, kop("add", load("y", WORKGROUP), f32(1.0))),)
    np.testing.assert_array_equal(run(*body, device="cpu", grid=64), np.ones(64))


@pytest.mark.parametrize("index", [-1, 64])
def test_out_of_bounds(index: int) -> None:
    with pytest.raises(KernelFault, match=rf"y\[{index}\]: it has 64 elements"):
        run(Let("x", load("y", i32(index))))
    with pytest.raises(KernelFault, match="store to y"):
        run(KStore("y", i32(index), f32(0.0)))


def test_both_arms_of_a_select_are_computed() -> None:
    guarded = KSelect(
        F32, 1, kop("lt", LOCAL, i32(63)), load("y", kop("add", LOCAL, i32(1))), f32(0)
    )
    with pytest.raises(KernelFault, match=r"y\[64\]"):
        run(Let("x", guarded))


def test_branches_not_taken_are_not() -> None:
    run(If(kop("lt", LOCAL, i32(63)), (Let("x", load("y", kop("add", LOCAL, i32(1)))),)))


def test_misaligned_vectors() -> None:
    with pytest.raises(KernelFault, match="no multiple"):
        run(Let("x", load("y", i32(2), lanes=4)))
    run(Let("x", load("y", i32(2), lanes=4, aligned=False)))
    with pytest.raises(KernelFault, match=r"y\[62 to 65\]"):
        run(Let("x", load("y", i32(62), lanes=4, aligned=False)))


@pytest.mark.parametrize(
    ("dtype", "lanes", "fine"),
    [(U8, 1, False), (U8, 2, False), (U8, 4, True), (F16, 1, False), (F16, 2, True),
     (F16, 4, True), (DTYPES["i4"], 4, True), (DTYPES["u4"], 2, False), (DTYPES["i64"], 1, True)],
    ids=str,
)  # fmt: skip
def test_an_invocation_owns_whole_words(dtype: DType, lanes: int, fine: bool) -> None:
    store = KStore("y", kop("mul", LOCAL, i32(lanes)), KConst(dtype, lanes, 0))
    if fine:
        run(store, dtype=dtype, size=256)
    else:
        with pytest.raises(KernelFault, match="whole words"):
            run(store, dtype=dtype, size=256)


def test_cpu_kernels_store_bytes() -> None:
    run(KStore("y", WORKGROUP, KConst(U8, 1, 3)), dtype=U8, device="cpu", grid=64)


def test_the_padding_of_the_last_word_may_be_stored() -> None:
    run(If(kop("eq", LOCAL, i32(0)), (KStore("y", i32(4), KConst(U8, 4, 1)),)), dtype=U8, size=5)
    with pytest.raises(KernelFault, match=r"y\[8 to 11\]"):
        run(KStore("y", i32(8), KConst(U8, 4, 1)), dtype=U8, size=5)


def test_shared_memory_starts_undefined_and_private_memory_as_zero() -> None:
    with pytest.raises(KernelFault, match="before anything is stored"):
        run(SHARED, KStore("y", LOCAL, load("s", LOCAL)))
    private = Array("p", F32, 4, shared=False)
    again = For("k", i32(0), i32(2), (
        private,
        KStore("y", LOCAL, load("p", i32(1))),
        KStore("p", i32(1), f32(7.0)),
    ))  # fmt: skip
    np.testing.assert_array_equal(run(again), np.zeros(64))


def test_stores_into_what_may_only_be_read() -> None:
    with pytest.raises(KernelFault, match="only read"):
        run(KStore("y", LOCAL, f32(1.0)), access="read")


def test_unknown_names() -> None:
    with pytest.raises(KernelFault, match="not defined"):
        run(KStore("y", LOCAL, var("x", F32)))
    with pytest.raises(KernelFault, match="not declared"):
        run(KStore("z", LOCAL, f32(1.0)))


def test_subwarps_of_lanes_stay_apart() -> None:
    """A vector under a branch that some take, from values that are the same for all."""
    vector = KVec(F32, 4, (f32(1.0), f32(2.0), LOCAL_F, f32(4.0)))
    y = run(
        Let("same", KVec(F32, 4, (f32(5.0),))),
        If(kop("lt", LOCAL, i32(2)), (
            Let("v", kop("add", vector, var("same", F32, 4))),
            KStore("y", kop("mul", LOCAL, i32(4)), var("v", F32, 4)),
        )),
    )  # fmt: skip
    np.testing.assert_array_equal(y[:8], [6, 7, 5, 9, 6, 7, 6, 9])
    assert not y[8:].any()


def test_many_workgroups() -> None:
    at = kop("add", kop("mul", WORKGROUP, i32(64)), LOCAL)
    y = run(KStore("y", at, KCast(F32, 1, at)), size=64 * 5000, grid=5000)
    np.testing.assert_array_equal(y, np.arange(64 * 5000))


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(3e9, I32, 2**31 - 1), (-3e9, I32, -(2**31)), (np.nan, I32, 0), (300.0, U8, 255),
     (-5.0, U8, 0), (-1.9, I32, -1), (1e19, DTYPES["i64"], 2**63 - 1),
     (-1e30, DTYPES["i64"], -(2**63)), (1e20, DTYPES["u64"], 2**64 - 1), (np.inf, U8, 255)],
)  # fmt: skip
def test_floats_saturate(value: float, target: DType, expected: int) -> None:
    assert convert(np.array(value), DTYPES["f64"], target) == expected
