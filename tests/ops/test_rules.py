"""Shared rules: broadcasting that is right for every run-time size, errors that say both shapes."""

from itertools import product

import numpy as np
import pytest

from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.dtypes import F16, F32, I32, DType
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.op import CallSite, normal
from edgerelax.ir.types import Annotation, Tensor, tensor
from edgerelax.ops import OPS
from edgerelax.ops.rules import broadcast_dim
from edgerelax.sym import Symbol, as_expr


def site(name: str, *args: Annotation | None, **attrs: object) -> CallSite:
    op = OPS[name]
    none = (None,) * len(args)
    return CallSite(op, args, {**op.attrs, **attrs}, none, None, f"{name}_1", "m.onnx: /x")


def of(*dims: int | Symbol, dtype: DType = F32) -> Tensor:
    return tensor([d.expr if isinstance(d, Symbol) else d for d in dims], dtype)


@pytest.mark.parametrize("low", [0, 1, 2])
def test_broadcast_of_two_symbols(low: int) -> None:
    n, m = Symbol("n", low), Symbol("m", low)
    for a, b in product((0, 1, 2, 3), repeat=2):
        if min(a, b) < low or (a != b and 1 not in (a, b)):
            continue
        found = broadcast_dim(n.expr, m.expr)
        assert found is not None
        assert (found.eval({n: a, m: b}),) == np.broadcast_shapes((a,), (b,))


def test_broadcast_keeps_what_is_known() -> None:
    n = Symbol("n", 0)
    assert broadcast_dim(n.expr, as_expr(4)) == as_expr(4)
    assert broadcast_dim(n.expr, as_expr(1)) == n.expr
    assert broadcast_dim(n.expr, n.expr) == n.expr
    assert broadcast_dim(n.expr, as_expr(0)) == as_expr(0)
    assert broadcast_dim(as_expr(3), as_expr(4)) is None
    assert broadcast_dim(Symbol("k", 5) + 0, as_expr(4)) is None


@pytest.mark.parametrize(("a", "b"), [(1, 3), (3, 1), (3, 3), (1, 1), (0, 1), (1, 0)])
def test_one_lowering_serves_all_sizes(a: int, b: int) -> None:
    call = site("add", of(Symbol("n"), 2), of(Symbol("m"), 1))
    op = call.op
    result = op.infer(call)
    assert op.lower is not None
    func = op.lower(CallSite(op, call.args, call.attrs, call.constants, result, "add"))
    x, y = normal(a, 2), normal(b, 1)
    np.testing.assert_allclose(run_loop(func, [x, y])[0], x + y)


def test_messages() -> None:
    with pytest.raises(ShapeError) as caught:
        OPS["add"].infer(site("add", of(2, 3), of(2, 4)))
    text = str(caught.value)
    assert "[2, 3] and [2, 4]" in text and "add_1" in text and "m.onnx: /x" in text
    with pytest.raises(ShapeError, match="transpose the second operand"):
        OPS["matmul"].infer(site("matmul", of(2, 3), of(4, 3)))
    with pytest.raises(ShapeError, match="f32, f16"):
        OPS["mul"].infer(site("mul", of(2), of(2, dtype=F16)))
    with pytest.raises(ShapeError, match="not defined for i32"):
        OPS["exp"].infer(site("exp", of(2, dtype=I32)))
    with pytest.raises(ShapeError, match="axis 2 of a tensor of rank 2"):
        OPS["softmax"].infer(site("softmax", of(2, 3), axis=2))
    with pytest.raises(ShapeError, match="channels"):
        OPS["conv"].infer(site("conv", of(1, 3, 8, 8), of(4, 2, 3, 3), None))
    with pytest.raises(ShapeError, match="too small"):
        OPS["conv"].infer(site("conv", of(1, 3, 2, 2), of(4, 3, 3, 3), None))
    with pytest.raises(ShapeError, match="nothing to choose from"):
        OPS["argmax"].infer(site("argmax", of(0, 3), axis=0))


@pytest.mark.parametrize("name", sorted(OPS))
def test_unknown_operands_give_a_coarse_answer(name: str) -> None:
    """Nothing known, or the rank only: a rule answers coarsely and does not fail."""
    op = OPS[name]
    for sample in op.samples[:3]:
        args = tuple(None if a is None else Tensor() for a in sample.args)
        attrs = {**op.attrs, **sample.attrs}
        op.infer(CallSite(op, args, attrs, (None,) * len(args), None, name))
        ranks = tuple(None if a is None else Tensor(None, None, a.ndim) for a in sample.args)
        op.infer(CallSite(op, ranks, attrs, (None,) * len(args), None, name))
