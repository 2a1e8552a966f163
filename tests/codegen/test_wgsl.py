"""What WGSL text looks like, and what is refused."""

import numpy as np
import pytest

from edgerelax.codegen.wgsl import print_wgsl
from edgerelax.codegen.wgsl_text import MUL, Text, infix, literal, negated
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import F32, F64, I32, I64, U8, U32, DType
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Barrier,
    KConst,
    Kernel,
    KLoad,
    KScalar,
    KStmt,
    KStore,
    KSubgroup,
    Let,
    f32,
    i32,
    kop,
    var,
)
from edgerelax.sym import as_expr, symbol
from tests.codegen.function_kernels import buffer


def text(*body: KStmt, dtype: DType = F32, size: int = 64, subgroups: bool = False) -> str:
    features = frozenset(("subgroups",)) if subgroups else frozenset()
    kernel = Kernel(
        "k", "gpu", (buffer("x", dtype, size), buffer("y", dtype, size)), (("n", symbol("n")),),
        as_expr(1), 64, body, features, "fused: add relu",
    )  # fmt: skip
    return print_wgsl(kernel, enable_line=subgroups)


def statements(*body: KStmt, **more: object) -> list[str]:
    printed = text(*body, **more)  # type: ignore[arg-type]
    lines = printed.split("    return;\n  }\n")[-1].splitlines()[:-1]
    return [line.strip() for line in lines if line != "  let local = i32(lid);"]


def quad(*args: str) -> KLoad:
    return KLoad(F32, 4, "x", kop("mul", WORKGROUP, i32(4)))


def test_a_whole_module() -> None:
    x = KLoad(F32, 1, "x", LOCAL)
    assert (
        text(KStore("y", LOCAL, kop("add", x, f32(1.0))))
        == """\
// k(x: f32[64] read_write, y: f32[64] read_write)
// fused: add relu

@group(0) @binding(0) var<storage, read_write> b_x: array<f32>;
@group(0) @binding(1) var<storage, read_write> b_y: array<f32>;
@group(0) @binding(2) var<uniform> params: array<vec4<i32>, 1>;

@compute @workgroup_size(64)
fn main(
  @builtin(workgroup_id) wid: vec3<u32>,
  @builtin(num_workgroups) groups: vec3<u32>,
  @builtin(local_invocation_index) lid: u32,
) {
  let workgroup = i32(wid.x + wid.y * groups.x);
  if (workgroup >= params[0].x) {
    return;
  }
  let local = i32(lid);
  b_y[local] = b_x[local] + 1.0f;
}
"""
    )


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (1, F32, "1.0f"), (-1.5, F32, "-1.5f"), (0.1, F32, "0.1f"), (1e30, F32, "1e+30f"),
        (3.4028234663852886e38, F32, "3.4028234663852886e+38f"), (-0.0, F32, "-0.0f"),
        (float("inf"), F32, "er_from_bits(0x7f800000u)"),
        (float("-inf"), F32, "er_from_bits(0xff800000u)"),
        (1e39, F32, "er_from_bits(0x7f800000u)"), (5, I32, "5"), (-5, I32, "-5"),
        (-(2**31), I32, "i32(-2147483648)"), (7, U32, "7u"),
        (-2, I64, "vec2<u32>(4294967294u, 4294967295u)"), (True, U8, "1u"),
    ],
)  # fmt: skip
def test_literals(value: float, dtype: DType, expected: str) -> None:
    assert literal(value, dtype, 1).text == expected


def test_float_literals_are_exact() -> None:
    bits = np.random.default_rng(0).integers(0, 0x7F000000, 2000, dtype=np.uint32)
    for value in bits.view(np.float32):
        assert np.float32(literal(float(value), F32, 1).text[:-1]) == value


def test_brackets() -> None:
    a, b, c = Text("a"), Text("b"), Text("c")
    plus, minus = infix("+", 3, a, b), infix("-", 3, a, b)
    assert infix("*", MUL, plus, c).text == "(a + b) * c"
    assert infix("-", 3, minus, c).text == "a - b - c"
    assert infix("-", 3, c, minus).text == "c - (a - b)"
    assert infix("<", 2, plus, c).text == "a + b < c"
    assert infix("==", 2, infix("<", 2, a, b), c).text == "(a < b) == c"
    assert negated("-", negated("-", a)).text == "-(-a)"
    assert negated("-", literal(-1.0, F32, 1)).text == "-(-1.0f)"
    assert negated("-", plus).text == "-(a + b)"


def test_vectors_where_all_accesses_are_aligned() -> None:
    store = KStore("y", kop("mul", WORKGROUP, i32(4)), kop("neg", quad()))
    assert "b_x: array<vec4<f32>>" in text(store)
    assert statements(store)[-1] == "b_y[workgroup] = -b_x[workgroup];"
    odd = text(store, size=63)  # the last three could not be reached
    assert "b_x: array<f32>" in odd
    scalar = KStore("y", WORKGROUP, KLoad(F32, 1, "x", LOCAL))
    mixed = text(store, scalar)
    assert "b_x: array<vec4<f32>>" in mixed and "b_x[local >> 2u][local & 3]" in mixed
    assert "b_y: array<f32>" in mixed  # lanes are not stored alone


def test_constant_exponents_and_divisors() -> None:
    x, n = var("x", F32), var("n")
    lines = statements(
        Let("x", KLoad(F32, 1, "x", LOCAL)), Let("n", KScalar(I32, 1, "n")),
        Let("a", kop("pow", x, f32(2.0))), Let("b", kop("pow", x, f32(0.5))),
        Let("c", kop("div", n, i32(7))), Let("d", kop("div", n, i32(0))),
        Let("e", kop("index_mod", n, i32(8))), Let("f", kop("shl", n, i32(3))),
    )  # fmt: skip
    assert lines == [
        "let s_n = params[0].y;",
        "let v_x = b_x[local];", "let v_n = s_n;", "let v_a = v_x * v_x;",
        "let v_b = er_pow(v_x, 0.5f);", "let v_c = v_n / 7;", "let v_d = er_i32_div(v_n, 0);",
        "let v_e = v_n % 8;", "let v_f = v_n << 3u;",
    ]  # fmt: skip


def test_only_what_is_called_is_included() -> None:
    plain = text(KStore("y", LOCAL, kop("abs", KLoad(F32, 1, "x", LOCAL))))
    assert "er_" not in plain
    wide = text(KStore("y", kop("mul", WORKGROUP, i32(4)), kop("erf", quad())))
    assert "fn er_erf_v4(x: vec4<f32>) -> vec4<f32>" in wide
    assert "fn er_erf(" not in wide and "er_tanh" not in wide
    sine = text(KStore("y", kop("mul", WORKGROUP, i32(4)), kop("sin", quad())))
    assert "fn er_sin_v4" in sine and "fn er_sin(" in sine  # lane by lane
    assert sine.index("fn er_mul_wide") < sine.index("fn er_quadrant") < sine.index("fn er_sin(")


def test_the_line_that_enables_subgroups() -> None:
    total = KStore("y", LOCAL, KSubgroup(F32, 1, "max", KLoad(F32, 1, "x", LOCAL)))
    assert "enable subgroups;" in text(total, subgroups=True)
    assert "enable" not in text(KStore("y", LOCAL, f32(0.0)))


def test_barriers_order_storage_too() -> None:
    lines = statements(Barrier(), KStore("y", WORKGROUP, f32(0.0)))
    assert lines[:2] == ["workgroupBarrier();", "storageBarrier();"]


@pytest.mark.parametrize(
    ("dtype", "lanes", "message"),
    [(F64, 1, "no f64"), (U8, 1, "no whole word"), (I64, 4, "4 lanes")],
    ids=str,
)
def test_what_a_gpu_cannot_do(dtype: DType, lanes: int, message: str) -> None:
    at = kop("mul", LOCAL, i32(4))
    with pytest.raises(UnsupportedError, match=message):
        text(KStore("y", at, KConst(dtype, lanes, 0)), dtype=dtype)
