"""Unrolling, folding and registers."""

import math

import pytest

from edgerelax.codegen.expand import expand, simplify
from edgerelax.ir.dtypes import BOOL, F32, I32, I64, U8
from edgerelax.ir.kernel import (
    WORKGROUP,
    Array,
    Assign,
    For,
    If,
    KCast,
    KConst,
    Kernel,
    KLane,
    KLoad,
    KOp,
    KSelect,
    KStmt,
    KStore,
    KVec,
    Let,
    VarDecl,
    f32,
    i32,
    kop,
    var,
    walk_stmts,
)
from edgerelax.sym import as_expr
from tests.codegen.function_kernels import buffer


def body_of(*body: KStmt, device: str = "gpu") -> tuple[KStmt, ...]:
    kernel = Kernel("k", device, (buffer("y", F32, 64),), (), as_expr(1), 64, body)
    return expand(kernel).body


def loop(name: str, count: int, *body: KStmt) -> For:
    return For(name, i32(0), i32(count), body, unroll=True)


def test_loops_are_written_out() -> None:
    at = kop("add", kop("mul", var("i"), i32(2)), var("j"))
    body = body_of(loop("i", 2, loop("j", 2, Let("at", at), KStore("y", var("at"), f32(1.0)))))
    assert body == tuple(KStore("y", i32(k), f32(1.0)) for k in range(4))


def test_names_of_iterations_differ() -> None:
    body = body_of(
        loop("i", 2, Let("x", kop("add", WORKGROUP, var("i"))), KStore("y", var("x"), f32(0.0)))
    )
    assert [s.name for s in body if isinstance(s, Let)] == ["x.0", "x.1"]
    assert [s.index for s in body if isinstance(s, KStore)] == [var("x.0"), var("x.1")]
    assert body[0] == Let("x.0", WORKGROUP)


def test_steps_and_empty_loops() -> None:
    stepped = For("i", i32(1), i32(8), (KStore("y", var("i"), f32(0.0)),), step=3, unroll=True)
    assert [s.index.value for s in body_of(stepped)] == [1, 4, 7]
    assert body_of(loop("i", 0, KStore("y", var("i"), f32(0.0)))) == ()
    with pytest.raises(ValueError, match="not constant"):
        body_of(For("i", i32(0), WORKGROUP, (), unroll=True))


def test_branches_on_constants() -> None:
    last = If(kop("eq", var("i"), i32(1)), (KStore("y", i32(1), f32(9.0)),),
              (KStore("y", i32(0), f32(8.0)),))  # fmt: skip
    assert body_of(loop("i", 2, last)) == (
        KStore("y", i32(0), f32(8.0)),
        KStore("y", i32(1), f32(9.0)),
    )


def test_registers_of_an_unrolled_loop_are_assigned() -> None:
    body = body_of(
        VarDecl("acc", f32(0.0)),
        loop("i", 2, VarDecl("t", f32(1.0)), Assign("t", f32(2.0)),
             Assign("acc", kop("add", var("acc", F32), var("t", F32)))),
    )  # fmt: skip
    assert Assign("t.1", f32(2.0)) in body
    assert Assign("acc", kop("add", var("acc", F32), var("t.1", F32))) in body


def test_arrays_with_constant_indices_are_registers() -> None:
    body = body_of(
        Array("r", F32, 2, shared=False, lanes=4),
        For("k", i32(0), WORKGROUP, (
            loop("i", 2, KStore("r", var("i"), kop("neg", KLoad(F32, 4, "r", var("i"))))),
        )),
    )  # fmt: skip
    assert not [s for s in walk_stmts(body) if isinstance(s, Array | KStore)]
    assert body[:2] == (VarDecl("r.0", KConst(F32, 4, 0)), VarDecl("r.1", KConst(F32, 4, 0)))
    assert body[2].body[1] == Assign("r.1", kop("neg", var("r.1", F32, 4)))


def test_vectors_in_arrays_of_scalars() -> None:
    body = body_of(
        Array("r", F32, 8, shared=False),
        KStore("r", i32(4), KVec(F32, 4, (f32(1.0),))),
        KStore("y", i32(0), KLoad(F32, 4, "r", i32(4))),
    )
    assert Assign("r.7", KLane(F32, 1, var("r.new4", F32, 4), 3)) in body
    parts = tuple(var(f"r.{k}", F32) for k in range(4, 8))
    assert body[-1] == KStore("y", i32(0), KVec(F32, 4, parts))


def test_arrays_with_other_indices_stay() -> None:
    for device, shared in (("gpu", True), ("gpu", False), ("cpu", False)):
        array = Array("r", F32, 8, shared=shared)
        at = WORKGROUP if not shared else i32(0)
        body = body_of(array, KStore("r", at, f32(1.0)), device=device)
        assert [s for s in body if isinstance(s, Array)]
    body = body_of(Array("r", F32, 8, shared=True), KStore("r", i32(0), f32(1.0)), device="cpu")
    assert not [s for s in body if isinstance(s, Array)]  # nobody to share it with


@pytest.mark.parametrize(
    ("expr", "expected"),
    [
        (kop("add", i32(2**31 - 1), i32(1)), i32(-(2**31))),
        (kop("div", i32(7), i32(0)), i32(0)),
        (kop("mod", i32(-7), i32(3)), i32(2)),
        (kop("add", WORKGROUP, i32(0)), WORKGROUP),
        (kop("mul", i32(1), WORKGROUP), WORKGROUP),
        (kop("mul", WORKGROUP, i32(0)), i32(0)),
        (kop("add", kop("add", WORKGROUP, i32(3)), i32(4)), kop("add", WORKGROUP, i32(7))),
        (kop("add", i32(3), WORKGROUP), kop("add", WORKGROUP, i32(3))),
        (kop("index_mod", WORKGROUP, i32(1)), i32(0)),
        (kop("lt", i32(1), i32(2)), KConst(BOOL, 1, True)),
        (KCast(U8, 1, f32(300.0)), KConst(U8, 1, 255)),
        (KCast(I64, 1, i32(-1)), KConst(I64, 1, -1)),
        (KSelect(I32, 1, KConst(BOOL, 1, False), i32(1), WORKGROUP), WORKGROUP),
        (KVec(F32, 4, (f32(1.5),)), KConst(F32, 4, 1.5)),
        (KLane(I32, 1, KVec(I32, 4, (i32(1), WORKGROUP, i32(3), i32(4))), 1), WORKGROUP),
        (kop("sub", WORKGROUP, i32(0)), WORKGROUP),
    ],
    ids=str,
)  # fmt: skip
def test_simplify(expr: KOp, expected: KOp) -> None:
    assert simplify(expr) == expected


def test_floats_fold_only_when_all_are_constant() -> None:
    x = var("x", F32)
    assert simplify(kop("add", x, f32(0.0))) == kop("add", x, f32(0.0))  # -0 + 0 is 0
    assert simplify(kop("mul", x, f32(0.0))) == kop("mul", x, f32(0.0))  # NaN
    folded = simplify(kop("div", f32(0.0), f32(0.0)))
    assert isinstance(folded, KConst) and math.isnan(folded.value)
    assert simplify(kop("exp", f32(1000.0))) == f32(math.inf)
