"""What WebAssembly text looks like, and what is refused."""

import numpy as np
import pytest
import wasmtime

from edgerelax.codegen.wasm import build_wasm, print_wat
from edgerelax.codegen.wasm_functions import fused
from edgerelax.codegen.wasm_text import constant
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import BOOL, F32, F64, I32, I64, DType
from edgerelax.ir.kernel import (
    WORKGROUP,
    Array,
    For,
    Kernel,
    KLoad,
    KScalar,
    KStmt,
    KStore,
    KVec,
    Let,
    f32,
    i32,
    kop,
    var,
)
from edgerelax.sym import as_expr, symbol
from tests.codegen.function_kernels import buffer


def kernel(*body: KStmt, dtype: DType = F32, name: str = "k") -> Kernel:
    buffers = (buffer("x", dtype, 64), buffer("y", dtype, 64))
    return Kernel(name, "cpu", buffers, (("n", symbol("n")),), as_expr(1), 1, body)


X = KLoad(F32, 1, "x", WORKGROUP)
X4 = KLoad(F32, 4, "x", kop("mul", WORKGROUP, i32(4)))


def test_a_whole_module() -> None:
    assert (
        print_wat([kernel(KStore("y", WORKGROUP, kop("sin", X)))])
        == """\
(module
  (import "env" "memory" (memory 0 65536))
  (import "env" "table" (table 0 funcref))
  (import "env" "base" (global $base i32))
  (import "env" "er_sinf" (func $er_sinf (param f32) (result f32)))
  (elem (global.get $base) func $k0)
  ;; k(x: f32[64], y: f32[64])
  (func $k0 (param $args i32) (param $begin i32) (param $end i32)
    (local $workgroup i32) (local $b_y i32) (local $b_x i32)
    (local.set $b_x (i32.load offset=0 (local.get $args)))
    (local.set $b_y (i32.load offset=4 (local.get $args)))
    (local.set $workgroup (local.get $begin))
    (if (i32.ge_s (local.get $workgroup) (local.get $end)) (then (return)))
    (loop $next
      (f32.store (i32.add (local.get $b_y) (i32.shl (local.get $workgroup) (i32.const 2)))\
 (call $er_sinf (f32.load (i32.add (local.get $b_x)\
 (i32.shl (local.get $workgroup) (i32.const 2))))))
      (br_if $next (i32.lt_s (local.tee $workgroup (i32.add (local.get $workgroup)\
 (i32.const 1))) (local.get $end))))))
"""
    )


def imports(*kernels: Kernel) -> set[str]:
    module = wasmtime.Module(wasmtime.Engine(), build_wasm(kernels))
    return {i.name for i in module.imports} - {"memory", "table", "base"}


def test_only_what_is_called_is_imported() -> None:
    assert imports(kernel(KStore("y", WORKGROUP, kop("exp", X)))) == set()
    assert imports(kernel(KStore("y", WORKGROUP, kop("mod", X, f32(3.0))))) == {"er_fmodf"}
    wide = kernel(KStore("y", WORKGROUP, kop("tanh", KLoad(F64, 1, "x", WORKGROUP))), dtype=F64)
    assert imports(wide, kernel(KStore("y", WORKGROUP, kop("atan", X)))) == {"er_tanh", "er_atanf"}


def test_no_kernels_and_several() -> None:
    assert imports() == set()
    several = [kernel(KStore("y", WORKGROUP, f32(float(k))), name=f"k{k}") for k in range(3)]
    assert "func $k0 $k1 $k2)" in print_wat(several)
    build_wasm(several)


def test_constant_parts_of_an_index_are_offsets() -> None:
    at = kop("mul", WORKGROUP, i32(4))
    near, far = kop("add", at, i32(3)), kop("add", at, i32(1000))
    text = print_wat([kernel(KStore("y", near, f32(0.0)), KStore("y", far, f32(1.0)))])
    assert "(f32.store offset=12 (i32.add (local.get $b_y)" in text
    assert "(i32.const 1000)" in text  # beyond the memory that no tensor lies in
    negative = print_wat([kernel(KStore("y", kop("add", WORKGROUP, i32(-1)), f32(0.0)))])
    assert "offset=4294" not in negative


def test_fused_sums_of_products() -> None:
    total = kop("add", f32_lanes(), kop("mul", X4, X4))
    store = kernel(KStore("y", kop("mul", WORKGROUP, i32(4)), total))
    assert "relaxed_madd" not in print_wat([store])
    assert "f32x4.relaxed_madd" in fused(print_wat([store]))
    build_wasm([store], relaxed=True)


def f32_lanes() -> KVec:
    return KVec(F32, 4, (KLoad(F32, 1, "x", i32(0)),))


def test_a_loaded_scalar_in_every_lane_is_one_instruction() -> None:
    text = print_wat([kernel(KStore("y", kop("mul", WORKGROUP, i32(4)), f32_lanes()))])
    assert "v128.load32_splat" in text


def test_loops_that_are_known_to_run_are_not_tested_first() -> None:
    def looping(stop: object) -> str:
        body = (KStore("y", var("k"), f32(0.0)),)
        return print_wat([kernel(For("k", i32(0), stop, body))])  # type: ignore[arg-type]

    assert "(if (i32.lt_s (local.get $v_k)" not in looping(i32(4))
    assert "(if (i32.lt_s (local.get $v_k)" in looping(KScalar(I32, 1, "n"))
    assert "(loop $l" not in looping(i32(0))


def test_one_name_may_have_several_types() -> None:
    scopes = [
        For(name, i32(0), i32(2), (Let("t", x), KStore("y", i32(0), var("t", F32, x.lanes))))
        for name, x in (("a", X), ("b", X4))
    ]
    text = print_wat([kernel(*scopes)])
    assert "(local $v_t f32)" in text and "(local $v_t:v128 v128)" in text
    wasmtime.wat2wasm(text)


@pytest.mark.parametrize(
    ("value", "dtype", "lanes", "expected"),
    [
        (1, F32, 1, "(f32.const 1.0)"), (float("nan"), F32, 1, "(f32.const nan)"),
        (float("-inf"), F64, 1, "(f64.const -inf)"), (-0.0, F32, 1, "(f32.const -0.0)"),
        (-(2**63), I64, 1, "(i64.const -9223372036854775808)"),
        (True, BOOL, 4, "(v128.const i32x4 -1 -1 -1 -1)"),
        (0.1, F32, 1, f"(f32.const {float(np.float32(0.1))!r})"),
    ],
)  # fmt: skip
def test_constants(value: float, dtype: DType, lanes: int, expected: str) -> None:
    assert constant(value, dtype, lanes) == expected


def test_what_a_cpu_kernel_cannot_do() -> None:
    array = Array("r", F32, 4, shared=False)
    with pytest.raises(UnsupportedError, match="not constant"):
        print_wat([kernel(array, KStore("r", WORKGROUP, f32(1.0)))])
    with pytest.raises(UnsupportedError, match="4 lanes of i64"):
        print_wat([kernel(KStore("y", WORKGROUP, KLoad(I64, 4, "x", WORKGROUP)), dtype=I64)])
