"""Pointers that step and loads into all lanes give what plain addresses give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.codegen.wasm import print_wat
from edgerelax.codegen.wasm_loops import COPIES, dead_first, spread_loads
from edgerelax.ir.dtypes import F32, I32, U8, DType
from edgerelax.ir.kernel import (
    WORKGROUP,
    Assign,
    For,
    If,
    KCast,
    Kernel,
    KExpr,
    KLoad,
    KOp,
    KScalar,
    KStmt,
    KStore,
    KVar,
    KVec,
    Let,
    VarDecl,
    f32,
    i32,
    kop,
    var,
)
from edgerelax.sym import as_expr, symbol
from tests.codegen.function_kernels import buffer
from tests.kernel_runners import run_interp, run_wasm

N = KScalar(I32, 1, "n")
AT, OUTER = var("i"), var("j")


def kernel(*body: KStmt, size: int = 64, dtype: DType = F32) -> Kernel:
    buffers = (buffer("x", dtype, size), buffer("y", F32, size))
    return Kernel("k", "cpu", buffers, (("n", symbol("n")),), as_expr(1), 1, body)


def agree(k: Kernel, n: int = 5, grid: int = 1) -> str:
    """Both hosts on the same data; the text, to see how it was done."""
    size = k.buffers[0].buffer.dims[0].eval({})
    x = (np.arange(size) % 199 + 1).astype(k.buffers[0].buffer.dtype.numpy)
    arrays = {"x": x, "y": np.zeros(size, np.float32)}
    want = run_interp(k, arrays, {"n": n}, grid)
    got = run_wasm(k, arrays, {"n": n}, grid)
    np.testing.assert_array_equal(got["y"], want["y"])
    return print_wat([k])


def loop(name: str, stop: KExpr, *body: KStmt, start: int = 0, step: int = 1) -> For:
    return For(name, i32(start), stop, body, step)


def x(at: KExpr, dtype: DType = F32) -> KExpr:
    return KCast(F32, 1, KLoad(dtype, 1, "x", at)) if dtype != F32 else KLoad(F32, 1, "x", at)


def total(*ats: KExpr, dtype: DType = F32) -> tuple[KStmt, ...]:
    return tuple(Assign("acc", kop("add", var("acc", F32), x(at, dtype))) for at in ats)


ACC = VarDecl("acc", f32(0.0))
OUT = KStore("y", i32(0), var("acc", F32))


def test_neighbours_share_a_pointer() -> None:
    ats = [kop("add", kop("mul", AT, i32(3)), i32(k)) for k in (2, 0, 1)]
    text = agree(kernel(ACC, loop("i", N, *total(*ats)), OUT))
    assert "(f32.load offset=8 (local.get $t1))" in text
    assert "(local.set $t1 (i32.add (local.get $t1) (i32.const 12)))" in text


def test_names_inside_and_outside_the_loop_are_seen_through() -> None:
    text = agree(kernel(
        Let("next", kop("add", N, i32(1))), ACC,
        loop("i", N,
             Let("a", kop("add", N, kop("mul", AT, i32(2)))),
             Let("b", kop("add", kop("mul", i32(2), AT), var("next"))),
             *total(var("a"), var("b"))),
        OUT,
    ))  # fmt: skip
    assert "offset=4 (local.get $t1)" in text and "$v_a " not in text  # of no further use


def test_strides_that_are_not_constant() -> None:
    row = kop("mul", kop("add", AT, i32(1)), N)
    text = agree(kernel(ACC, loop("i", N, *total(row), step=2), OUT))
    assert "(i32.add (local.get $t1) (i32.mul (local.get $s_n) (i32.const 8)))" in text


def test_bytes_and_descending_places() -> None:
    down = kop("sub", kop("mul", N, i32(2)), AT)
    text = agree(kernel(ACC, loop("i", N, *total(down, dtype=U8)), OUT, dtype=U8))
    assert "(i32.add (local.get $t1) (i32.const -1))" in text


def test_stores_step_too() -> None:
    text = agree(kernel(loop("i", N, KStore("y", kop("add", AT, i32(3)), x(AT)))))
    assert "(f32.store (local.get $t2) (f32.load (local.get $t1)))" in text


def test_fixed_places_are_computed_once() -> None:
    text = agree(kernel(ACC, loop("i", N, *total(kop("mul", N, i32(3)))), OUT))
    assert "(f32.load (local.get $t1))" in text
    assert "(local.set $t1 (i32.add (local.get $t1)" not in text


@pytest.mark.parametrize(
    "body",
    [
        # an index that is assigned in the loop
        (VarDecl("m", i32(1)), ACC,
         loop("i", N, *total(kop("add", var("m"), AT)), Assign("m", kop("add", var("m"), i32(2)))),
         OUT),
        # a name that means another thing in each branch
        (ACC, loop("i", N,
                   If(kop("lt", AT, i32(2)), (Let("a", kop("mul", AT, i32(2))), *total(var("a"))),
                      (Let("a", kop("mul", AT, i32(3))), *total(var("a")))),
                   ), OUT),
        # a name that was taken from a register which has changed since
        (VarDecl("m", i32(1)), Let("a", kop("add", var("m"), i32(1))), Assign("m", i32(7)), ACC,
         loop("i", N, *total(kop("add", var("a"), AT), kop("add", var("m"), AT))), OUT),
        # the same name again, after its first meaning was used in another
        (Let("b", i32(2)), loop("j", N, Let("a", kop("add", OUTER, N)), ACC,
                                loop("i", N, Let("b", kop("add", var("a"), AT)), *total(var("b"))),
                                KStore("y", OUTER, var("acc", F32)))),
        # accesses under a condition, out of bounds where it is false
        (ACC, loop("i", i32(20),
                   If(kop("lt", AT, N), total(kop("sub", kop("mul", N, i32(2)), AT)))), OUT),
        # gathered places, and products of the variable with itself
        (ACC, loop("i", N, *total(KCast(I32, 1, x(AT)), kop("mul", AT, AT))), OUT),
        # nested: only the inner one has pointers
        (ACC, loop("j", N, *total(OUTER),
                   loop("i", N, *total(kop("add", kop("mul", OUTER, i32(5)), AT)))), OUT),
        # no iteration at all
        (ACC, loop("i", kop("sub", N, i32(9)), *total(AT)), OUT),
    ],
    ids=["assigned", "branches", "stale", "again", "guarded", "nonlinear", "nested", "empty"],
)  # fmt: skip
def test_what_must_not_be_mistaken(body: tuple[KStmt, ...]) -> None:
    agree(kernel(*body))


def test_more_than_there_are_registers_for() -> None:
    ats = [kop("add", kop("mul", AT, i32(k)), i32(k)) for k in range(1, 15)]
    assert "$t1" not in agree(kernel(ACC, loop("i", i32(4), *total(*ats)), OUT))


def lanes(name: str) -> KExpr:
    return KVec(F32, 4, (var(name, F32),))


def test_scalars_are_loaded_into_all_lanes() -> None:
    y4 = KStore("y", kop("mul", WORKGROUP, i32(4)), kop("mul", lanes("a"), lanes("a")))
    text = agree(kernel(Let("a", x(WORKGROUP)), y4), grid=3)
    assert "(local.set $v_a (v128.load32_splat" in text
    both = kernel(Let("a", x(WORKGROUP)), y4, If(kop("lt", var("a", F32), f32(0.0)), ()))
    assert "v128.load32_splat" not in agree(both, grid=3)  # it is needed as a scalar as well


# Random index arithmetic, with bounds known so that nothing leaves the buffer


@st.composite
def index(draw: st.DrawFn, depth: int, names: dict[str, int]) -> tuple[KExpr, int]:
    """An expression of at least 0, and the most it can be; `names` with theirs."""
    kind = draw(st.sampled_from(["leaf"] if depth == 0 else ["leaf", "add", "mul", "sub"]))
    if kind == "leaf":
        name = draw(st.sampled_from([*names, "const"]))
        if name == "const":
            value = draw(st.integers(0, 4))
            return i32(value), value
        return (N if name == "n" else var(name)), names[name]
    (a, most_a), (b, most_b) = draw(index(depth - 1, names)), draw(index(depth - 1, names))
    if kind == "mul" and most_a * most_b <= 400:
        return kop("mul", a, b), most_a * most_b
    if kind == "sub":
        return kop("sub", kop("add", a, i32(most_b)), b), most_a + most_b
    return kop("add", a, b), most_a + most_b


@st.composite
def program(draw: st.DrawFn) -> Kernel:
    names = {"n": 5}
    outer: list[KStmt] = []
    for name in ("p", "q"):
        value, most = draw(index(2, names))
        outer.append(Let(name, value))
        names[name] = most
    inside: list[KStmt] = []
    step, stop = draw(st.integers(1, 3)), draw(st.sampled_from([N, i32(4), var("p")]))
    names["i"] = 5 if stop is N else 4 if stop == i32(4) else names["p"]
    most_of_all = 0
    for name in ("a", "b"):
        value, most = draw(index(2, names))
        inside.append(Let(name, value))
        names[name] = most
    for _ in range(3):
        at, most = draw(index(2, names))
        most_of_all = max(most_of_all, most)
        inside.extend(total(at))
    body = (*outer, ACC, loop("i", stop, *inside, step=step), OUT)
    return kernel(*body, size=most_of_all + 1)


@settings(max_examples=60, deadline=None)
@given(program(), st.integers(0, 5))
def test_random_indices(k: Kernel, n: int) -> None:
    agree(k, n)


def products(n: KExpr, step: int = 1) -> tuple[KStmt, ...]:
    """Four vectors of sums over rows of x from y on, and where their products begin."""
    rows = [Let(f"a{r}", KLoad(F32, 1, "x", kop("add", AT, i32(16 * r)))) for r in range(2)]
    columns = [
        Let(f"b{c}", KLoad(F32, 4, "x", kop("add", kop("mul", AT, i32(8)), i32(4 * c))))
        for c in range(2)
    ]
    sums = [
        Assign(
            f"s{r}{c}",
            kop("fma", KVec(F32, 4, (var(f"a{r}", F32),)), var4(f"b{c}"), var4(f"s{r}{c}")),
        )
        for r in range(2)
        for c in range(2)
    ]
    zero = KVec(F32, 4, (f32(0.0),))
    names = [(r, c) for r in range(2) for c in range(2)]
    return (
        *(VarDecl(f"s{r}{c}", zero) for r, c in names),
        loop("i", n, *columns, *rows, *sums, step=step),
        *(KStore("y", i32(8 * r + 4 * c), var4(f"s{r}{c}")) for r, c in names),
    )


def var4(name: str) -> KVar:
    return KVar(F32, 4, name)


@pytest.mark.parametrize("step", [1, 3])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 4, 5, 8, 9, 15])
def test_loops_over_vectors_of_sums_have_several_turns_in_text(n: int, step: int) -> None:
    text = agree(kernel(*products(N, step), size=160), n=n)
    assert text.count("(f32x4.mul") == 4 * COPIES and text.count("(br_if $l1 ") == COPIES - 1


def test_the_ways_out_of_a_loop_of_known_length() -> None:
    assert "(br_if $l1 " in agree(kernel(*products(i32(10)), size=160))
    assert agree(kernel(*products(i32(7)), size=160)).count("(f32x4.mul") == 4  # too short for it


def test_products_begin_with_a_factor_of_no_further_use() -> None:
    body = spread_loads(kernel(*products(N), size=160).body)
    (turned,) = (dead_first(s.body) for s in body if isinstance(s, For))
    first = [s.value.args[0] for s in turned if isinstance(s, Assign) and isinstance(s.value, KOp)]
    assert first == [var4("a0"), var4("a0"), var4("b0"), var4("a1")]
