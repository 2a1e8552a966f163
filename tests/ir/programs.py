"""Small operators and programs of the graph level, for tests of floor 1 alone."""

from typing import Any

import numpy as np

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.dtypes import BOOL, F16, F32, I64, DType
from edgerelax.ir.graph import Module
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.op import CallSite, Operator
from edgerelax.ir.scalar import Buffer, op
from edgerelax.ir.types import Annotation, IntTensor, Shape, Tensor, Tuple, as_tensor
from edgerelax.sym import as_expr, prove_eq, symbol


def _same(site: CallSite) -> Annotation:
    assert site.args[0] is not None
    return site.args[0]


def _infer_add(site: CallSite) -> Annotation:
    a, b = (as_tensor(x) for x in site.args if x is not None)
    assert a is not None and b is not None
    if a.dims is None or b.dims is None:
        return Tensor(None, a.dtype, a.rank)
    if any(prove_eq(x, y) is False for x, y in zip(a.dims, b.dims, strict=True)):
        raise ShapeError(f"add: {a} and {b} differ", node=site.name, origin=site.origin)
    return a


def _lower_relu(site: CallSite) -> LoopFunc:
    kind = as_tensor(site.args[0]) if site.args[0] else None
    assert kind is not None and kind.dims is not None and kind.dtype is not None
    x, out = Buffer("x", kind.dtype, kind.dims), Buffer("out", kind.dtype, kind.dims)
    axes = grid(out)
    at = tuple(map(as_expr, axes))
    return LoopFunc("relu", (x,), (out,), (Stage(out, axes, op("max", x[at], 0.0)),))


def _infer_twice(site: CallSite) -> Annotation:
    kind = as_tensor(site.args[0]) if site.args[0] else None
    assert kind is not None and kind.dims is not None
    return Tensor((2 * kind.dims[0], *kind.dims[1:]), kind.dtype)


def _infer_split(site: CallSite) -> Annotation:
    return Tuple((_same(site), _same(site)))


def _infer_keep(site: CallSite) -> Annotation:
    kind = as_tensor(site.args[0]) if site.args[0] else None
    assert kind is not None
    return Tensor(None, kind.dtype, 1)


def _infer_cast(site: CallSite) -> Annotation:
    kind = as_tensor(site.args[0]) if site.args[0] else None
    assert kind is not None
    dtype: DType = site.attrs["dtype"]
    return Tensor(kind.dims, dtype, kind.rank)


def _infer_ints(site: CallSite) -> Annotation:
    return IntTensor(tuple(map(as_expr, site.attrs["values"])))


OPS = {
    o.name: o
    for o in (
        Operator("relu", ("x",), _same, lambda x: np.maximum(x, 0), _lower_relu),
        Operator("neg", ("x",), _same, lambda x: -x),
        Operator("add", ("a", "b"), _infer_add, lambda a, b: a + b),
        Operator("twice", ("x",), _infer_twice, lambda x: np.concatenate([x, x])),
        Operator("both", ("x",), _infer_split, lambda x: (x, -x)),
        Operator("keep", ("x",), _infer_keep, lambda x: x[x > 0].reshape(-1)),
        Operator(
            "cast",
            ("x",),
            _infer_cast,
            lambda x, dtype: x.astype(dtype.numpy),
            attrs={"dtype": F32},
        ),
        Operator(
            "ints",
            (),
            _infer_ints,
            lambda values: np.array(values, np.int64),
            attrs={"values": ()},
        ),
        Operator(
            "scale",
            ("x", "bias"),
            _same,
            lambda x, bias, by, words: x * by,
            attrs={"by": 1.0, "words": ("a",)},
            optional=1,
        ),
    )
}
N = symbol("n", 1, 64)


def everything() -> Module:
    """Every kind of binding once."""
    inner = Function("double")
    m = symbol("m")
    inner.output("y", inner.call(OPS["twice"], inner.input("x", (m,), F32)))
    f = Function("main", inner.module())
    x = f.input("x.1", (N,), F32)
    flag = f.input("flag", (), BOOL)
    sizes = f.input("sizes", (2,), I64)
    h = f.call(OPS["relu"], x, origin="m.onnx: /relu")
    a, b = f.call_all(OPS["both"], h)
    s = f.call(OPS["scale"], f.call(OPS["add"], a, b), None, by=float("inf"), words=("a", "b\n"))
    k, _ = f.read_ints(sizes, "sizes")
    f.call(OPS["ints"], values=(k, 2 * N, 3))
    w = f.constant("fc1.weight", np.arange(20, dtype=np.float32))
    t = f.constant("two", np.array([2.5, -0.0, np.nan], np.float32))
    (joined,) = f.if_else(
        flag,
        lambda: [f.call(OPS["twice"], s)],
        lambda: [f.if_else(N - 1, lambda: [s], lambda: [f.call(OPS["neg"], s)])[0]],
        name="choice",
    )
    kept = f.with_fresh_dims(f.call(OPS["keep"], joined))
    from edgerelax.ir.graph import CallGraph, MakeShape, MakeTuple, ToDevice

    called = f.emit(CallGraph("double", (kept,)), "called")
    shape = f.emit(MakeShape((N + 1, k)))
    f.match(shape, Shape((N + 1, symbol("q"))))
    pair = f.emit(MakeTuple((called, w)))
    moved = f.emit(ToDevice(pair, "cpu"))
    f.output("y", called)
    f.output("z 2", f.fields(moved)[1])
    f.output("t", t)
    f.output("half", f.call(OPS["cast"], s, dtype=F16))
    return f.module()


def inputs(n: int, flag: bool) -> dict[str, Any]:
    x = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    return {"x.1": x, "flag": np.array(flag), "sizes": np.array([4, 5])}
