"""What the kernel verifier refuses."""

import pytest

from edgerelax.ir.diagnostics import VerifyError
from edgerelax.ir.dtypes import BOOL, F32, I32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KCast,
    KConst,
    Kernel,
    KernelBuffer,
    KLane,
    KLoad,
    KOp,
    KScalar,
    KSelect,
    KStmt,
    KStore,
    KSubgroup,
    KVec,
    Let,
    VarDecl,
    f32,
    i32,
    kop,
    var,
)
from edgerelax.ir.kernel_verify import verify_kernel
from edgerelax.ir.scalar import Buffer
from edgerelax.sym import as_expr, symbol

N = KScalar(I32, 1, "n")
X = KLoad(F32, 1, "x", LOCAL)
W = KLoad(I32, 1, "w", WORKGROUP)
SHARED = Array("s", F32, 64, shared=True)


def verify(*body: KStmt, device: str = "gpu", subgroups: bool = False) -> None:
    buffers = (
        KernelBuffer(Buffer("x", F32, (as_expr(64),)), "read_write"),
        KernelBuffer(Buffer("w", I32, (as_expr(64),)), "read"),
    )
    features = frozenset(("subgroups",)) if subgroups else frozenset()
    kernel = Kernel("k", device, buffers, (("n", symbol("n")),), as_expr(1), 64, body, features)
    verify_kernel(kernel)


@pytest.mark.parametrize(
    "body",
    [
        (KStore("x", LOCAL, var("a", F32)),),
        (Let("a", f32(1.0)), KStore("x", LOCAL, var("a", I32))),
        (Let("a", f32(1.0)), Let("a", f32(2.0))),
        (If(kop("lt", LOCAL, i32(1)), (Let("a", f32(1.0)),)), KStore("x", LOCAL, var("a", F32))),
        (Let("a", f32(1.0)), Assign("a", f32(2.0))),
        (VarDecl("a", f32(1.0)), Assign("a", i32(2))),
        (KStore("x", LOCAL, i32(1)),),
        (KStore("x", f32(1.0), f32(1.0)),),
        (KStore("z", LOCAL, f32(1.0)),),
        (KStore("w", LOCAL, i32(1)),),
        (KStore("w", LOCAL, i32(1), combine="add"),),
        (KStore("x", LOCAL, f32(1.0), combine="sub"),),
        (KStore("x", LOCAL, KVec(F32, 4, (f32(1.0),)), combine="add"),),
        (KStore("x", LOCAL, f32(1.0), combine="add"), KStore("x", LOCAL, f32(1.0))),
        (KStore("x", LOCAL, X, combine="add"),),
        (SHARED, KStore("s", LOCAL, f32(1.0), combine="add")),
        (Let("a", KScalar(I32, 1, "m")),),
        (Let("a", KOp(F32, 1, "add", (f32(1.0), i32(1)))),),
        (Let("a", KOp(F32, 1, "add", (f32(1.0),))),),
        (Let("a", KOp(F32, 1, "frobnicate", (f32(1.0),))),),
        (Let("a", KOp(F32, 1, "lt", (f32(1.0), f32(2.0)))),),
        (Let("a", KCast(F32, 4, i32(1))),),
        (Let("a", KSelect(F32, 1, i32(1), f32(1.0), f32(2.0))),),
        (Let("a", KSelect(F32, 1, KConst(BOOL, 1, True), f32(1.0), i32(2))),),
        (Let("a", KVec(F32, 4, (f32(1.0), f32(2.0)))),),
        (Let("a", KLane(F32, 1, KVec(F32, 4, (f32(1.0),)), 4)),),
        (If(i32(1), ()),),
        (For("k", i32(0), f32(1.0), ()),),
        (Let("a", KSubgroup(F32, 1, "add", f32(1.0))),),
        (SHARED, Let("a", var("s", F32))),
    ],
    ids=lambda body: " ".join(type(s).__name__ for s in body),
)
def test_ill_formed_kernels(body: tuple[KStmt, ...]) -> None:
    with pytest.raises(VerifyError, match="kernel k"):
        verify(*body)


UNIFORM_BOUND = (
    For("k", i32(0), N, (Barrier(),)),
    For("k", i32(0), W, (Barrier(),)),
    If(kop("lt", WORKGROUP, N), (Barrier(),)),
    For("k", i32(0), i32(4), (If(kop("lt", var("k"), i32(2)), (Barrier(),)),)),
)
VARYING_BOUND = (
    If(kop("lt", LOCAL, i32(3)), (Barrier(),)),
    For("k", LOCAL, i32(64), (Barrier(),)),
    For("k", i32(0), KCast(I32, 1, KLoad(F32, 1, "x", i32(0))), (Barrier(),)),
    If(kop("gt", KLoad(F32, 1, "s", i32(0)), f32(0.0)), (Barrier(),)),
    For("k", i32(0), KLoad(I32, 1, "w", LOCAL), (Barrier(),)),
)


@pytest.mark.parametrize("stmt", UNIFORM_BOUND)
def test_uniform_barriers(stmt: KStmt) -> None:
    verify(SHARED, stmt)


@pytest.mark.parametrize("stmt", VARYING_BOUND)
def test_barriers_that_are_not_uniform(stmt: KStmt) -> None:
    with pytest.raises(VerifyError, match="barrier"):
        verify(SHARED, stmt)


def test_a_register_becomes_varying_late_in_a_loop() -> None:
    """The barrier stands before the assignment that makes its condition differ."""
    with pytest.raises(VerifyError, match="barrier"):
        verify(
            VarDecl("stop", i32(1)),
            For("k", i32(0), N, (
                If(kop("lt", var("k"), var("stop")), (Barrier(),)),
                Assign("stop", LOCAL),
            )),
        )  # fmt: skip


def test_assignments_under_a_varying_branch_vary() -> None:
    with pytest.raises(VerifyError, match="barrier"):
        verify(
            VarDecl("a", i32(1)),
            If(kop("lt", LOCAL, i32(3)), (Assign("a", i32(0)),)),
            If(kop("lt", i32(0), var("a")), (Barrier(),)),
        )


def test_subgroup_operations_are_uniform() -> None:
    total = Let("a", KSubgroup(F32, 1, "add", X))
    verify(total, subgroups=True)
    with pytest.raises(VerifyError, match="subgroup"):
        verify(If(kop("lt", LOCAL, i32(3)), (total,)), subgroups=True)


def test_cpu_kernels_have_no_invocations() -> None:
    verify(KStore("x", WORKGROUP, f32(1.0)), device="cpu")
    for stmt in (Barrier(), KStore("x", LOCAL, f32(1.0))):
        with pytest.raises(VerifyError):
            verify(stmt, device="cpu")
