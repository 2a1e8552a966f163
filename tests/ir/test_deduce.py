"""Subsumption, common ancestors, scopes and deduction across calls."""

import pytest

from edgerelax.ir.deduce import (
    Fit,
    defined_by,
    derive_call,
    erase_to,
    lca,
    map_exprs,
    substitute_annotation,
    subsumes,
)
from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.dtypes import F16, F32, I64
from edgerelax.ir.types import (
    Annotation,
    Callable,
    IntTensor,
    Object,
    Prim,
    Shape,
    Tensor,
    Tuple,
    tensor,
)
from edgerelax.sym import Symbol, as_expr, symbol

N, M = symbol("n"), symbol("m")


def t(*dims: object) -> Tensor:
    return tensor(dims, F32)  # type: ignore[arg-type]


ONE = as_expr(1)
CASES: list[tuple[Annotation, Annotation, Fit]] = [
    (Object(), t(1), Fit.PASS),
    (t(1), Object(), Fit.COARSE),
    (Tensor(), t(N), Fit.PASS),
    (t(N), Tensor(), Fit.COARSE),
    (t(N), Tensor(None, F32, 1), Fit.COARSE),
    (t(N), Tensor(None, F32, 2), Fit.IMPOSSIBLE),
    (t(N), t(N), Fit.PASS),
    (t(N), t(M), Fit.SYMBOLIC),
    (t(N), t(N + 1), Fit.IMPOSSIBLE),
    (t(3), t(4), Fit.IMPOSSIBLE),
    (t(3, N), t(3), Fit.IMPOSSIBLE),
    (t(N), tensor((N,), F16), Fit.IMPOSSIBLE),
    (Tensor(None, None, 1), tensor((N,), F16), Fit.PASS),
    (tensor((2,), I64), IntTensor((N, M)), Fit.PASS),
    (IntTensor((N, M)), tensor((2,), I64), Fit.COARSE),
    (IntTensor((N, M)), tensor((3,), I64), Fit.IMPOSSIBLE),
    (IntTensor((N, M)), IntTensor((N, N)), Fit.SYMBOLIC),
    (IntTensor((N,)), IntTensor((N,), 0), Fit.IMPOSSIBLE),
    (Shape(None, 2), Shape((N, M)), Fit.PASS),
    (Shape((N, M)), Shape(None, 2), Fit.COARSE),
    (Shape((N,)), t(N), Fit.IMPOSSIBLE),
    (Prim(), Prim(N), Fit.PASS),
    (Prim(N), Prim(), Fit.COARSE),
    (Prim(ONE), Prim(ONE + 1), Fit.IMPOSSIBLE),
    (Tuple((t(N), t(3))), Tuple((t(M), t(3))), Fit.SYMBOLIC),
    (Tuple((t(N),)), Tuple((t(N), t(3))), Fit.IMPOSSIBLE),
    (Callable((t(N),), t(N)), Callable((Tensor(),), t(N)), Fit.PASS),
    (Callable((Tensor(),), t(N)), Callable((t(N),), t(N)), Fit.COARSE),
]


@pytest.mark.parametrize("wanted,derived,fit", CASES, ids=lambda v: str(v))
def test_subsumes(wanted: Annotation, derived: Annotation, fit: Fit) -> None:
    assert subsumes(wanted, derived) is fit


@pytest.mark.parametrize(
    "a,b,expected",
    [
        (t(N), t(N), t(N)),
        (t(N), t(M), Tensor(None, F32, 1)),
        (t(N), t(N, 1), Tensor(None, F32)),
        (t(N), tensor((N,), F16), Tensor((N,), None)),
        (IntTensor((N,)), IntTensor((N,)), IntTensor((N,))),
        (IntTensor((N,)), IntTensor((M,)), tensor((1,), I64)),
        (Shape((N,)), Shape((M,)), Shape(None, 1)),
        (Prim(N), Prim(M), Prim()),
        (Tuple((t(N), t(1))), Tuple((t(M), t(1))), Tuple((Tensor(None, F32, 1), t(1)))),
        (t(N), Shape((N,)), Object()),
        (Tuple((t(N),)), Tuple(()), Object()),
    ],
    ids=str,
)
def test_lca_is_an_upper_bound(a: Annotation, b: Annotation, expected: Annotation) -> None:
    assert lca(a, b) == lca(b, a) == expected
    assert subsumes(expected, a) is Fit.PASS and subsumes(expected, b) is Fit.PASS


def test_erase_keeps_what_is_visible() -> None:
    whole = Tuple((t(N, 2), t(M), IntTensor((N, M)), Prim(M), Shape((M, M))))
    n = next(iter(N.symbols()))
    assert erase_to(whole, {n}) == Tuple(
        (t(N, 2), Tensor(None, F32, 1), tensor((2,), I64), Prim(), Shape(None, 2))
    )


def test_only_bare_symbols_are_defined() -> None:
    assert {s.name for s in defined_by(Tuple((t(N, M * 2), Prim(M + 1))))} == {"n"}


def test_substitution_keeps_what_it_does_not_change() -> None:
    kind = t(N, 2)
    assert substitute_annotation(kind, {Symbol("m"): 3}) is kind
    assert substitute_annotation(kind, {Symbol("n"): 3}) == t(3, 2)
    assert map_exprs(Callable((kind,), kind), lambda e: None) == Callable(
        (Tensor(None, F32, 2),), Tensor(None, F32, 2)
    )


def test_call_binds_bare_symbols_wherever_they_stand() -> None:
    # the symbol is bound by a later parameter, the compound dim checked after that
    callee = Callable((t(N + 1), Shape((N,))), t(2 * N))
    assert derive_call("f", callee, [t(M + 4), Shape((M + 3,))]) == t(2 * M + 6)


def test_call_solves_linear_dims() -> None:
    assert derive_call("f", Callable((t(2 * N + 1),), t(N)), [t(9)]) == t(4)


def test_call_forgets_what_is_not_bound() -> None:
    callee = Callable((t(N),), Tuple((t(N), t(M))))
    assert derive_call("f", callee, [t(5)]) == Tuple((t(5), Tensor(None, F32, 1)))
    # the caller's own m is another matter than the callee's
    assert derive_call("f", callee, [t(M)]) == Tuple((t(M), Tensor(None, F32, 1)))


@pytest.mark.parametrize(
    "args,message",
    [
        ([t(16, 32)], "f: wants n, got 32"),
        ([tensor((N, N), F16)], r"f: argument 0 must be f32\[n, n\], got f16\[n, n\]"),
        ([t(N)], "argument 0 must be"),
        ([], "takes 1 arguments, got 0"),
    ],
)
def test_call_refuses_what_cannot_be(args: list[Annotation], message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        derive_call("f", Callable((t(N, N),), t(N)), args)
