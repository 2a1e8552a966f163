"""Each invariant, broken once, is reported; what holds is let through."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.deduce import call_site
from edgerelax.ir.diagnostics import ShapeError, VerifyError
from edgerelax.ir.dtypes import BOOL, F16, F32, I32, I64
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallTIR,
    Constant,
    GraphFunc,
    IfElse,
    MakeShape,
    MatchCast,
    Module,
    ReadInts,
    Repeat,
    Value,
    Var,
)
from edgerelax.ir.loop import LoopFunc, Stage, Template, axis
from edgerelax.ir.scalar import Acc, Buffer, Op, Select, constant, op
from edgerelax.ir.types import Annotation, Shape, Tensor, Tuple, tensor
from edgerelax.ir.verify import verify
from edgerelax.ir.verify_loop import verify_loop
from edgerelax.sym import as_expr, symbol
from tests.ir.programs import OPS, everything

N, M = symbol("n", 1, 64), symbol("m")
X = Var("x", tensor((N,), F32))
FLAG = Var("flag", tensor((), BOOL))


def module(*bindings: Binding, results: tuple[Value, ...] = (X,)) -> Module:
    names = tuple(f"r{k}" for k in range(len(results)))
    func = GraphFunc("main", (X, FLAG), Block(bindings, results), names)
    return Module({"main": func}, {"relu": relu()})


def relu(dims: tuple[Any, ...] = (N,)) -> LoopFunc:
    lower = OPS["relu"].lower
    assert lower is not None
    return lower(call_site(Call(OPS["relu"], (Var("x", tensor(dims, F32)),))))


def bind(value: Any, annotation: Annotation = X.annotation, name: str = "y") -> Binding:
    return Binding(Var(name, annotation), value)


CALL = Call(OPS["relu"], (X,))
STRAY = Var("stray", X.annotation)


def test_what_holds_is_let_through() -> None:
    verify(everything())
    verify(module(bind(CALL), bind(CallTIR("relu", (X,))), bind(CALL, tensor((N,), F32))))


def branch(then: Block, other: Block, **more: Any) -> IfElse:
    return IfElse(FLAG, then, other, **more)


def looped(body: Block, initial: tuple[Value, ...] = (X,), **more: Any) -> Module:
    """A loop that carries one value, bound as `y`."""
    repeat = Repeat(N, next(iter(symbol("i").symbols())), initial, (CARRIED,), body, **more)
    return module(bind(repeat, Tuple((X.annotation,))))


JUST_X = Block((), (X,))
TWICE = bind(Call(OPS["twice"], (X,)), tensor((2 * N,), F32), "two")
m_symbol = next(iter(M.symbols()))
BINDING = bind(CALL)

CARRIED = Var("carried", X.annotation)

BROKEN: dict[str, Callable[[], Module]] = {
    "a loop gives a tuple": lambda: module(
        bind(Repeat(N, m_symbol, (X,), (CARRIED,), Block((), (CARRIED,))))
    ),
    "f32[2*n], carried f32[n]": lambda: looped(Block((TWICE,), (TWICE.var,))),
    "another count of values than it takes": lambda: looped(Block((), (X, X))),
    "other counts of integers in and out": lambda: looped(JUST_X, first=(N,)),
    "other counts of values in and out": lambda: looped(JUST_X, initial=(X, X)),
    "a loop defines new integers": lambda: looped(
        JUST_X, symbols=tuple(N.symbols()), first=(N,), next=(N,), after=(m_symbol,)
    ),
    "nothing defines m before its use\n  y: tuple[f32[n]]\n  for i": lambda: looped(
        JUST_X, going=M
    ),
    "carried is used where it is not defined": lambda: module(
        bind(Repeat(N, m_symbol, (X,), (CARRIED,), JUST_X), Tuple((X.annotation,))),
        results=(CARRIED,),
    ),
    "stray is used where it is not defined": lambda: module(bind(Call(OPS["relu"], (STRAY,)))),
    "results of one name": lambda: Module(
        {"main": GraphFunc("main", (X,), Block((), (X, X)), ("a", "a"))}
    ),
    "y is defined twice": lambda: module(BINDING, BINDING),
    "2 results, 1 names": lambda: Module(
        {"main": GraphFunc("main", (X,), Block((), (X, X)), ("a",))}
    ),
    "nothing defines m before its use": lambda: module(bind(MakeShape((M,)), Shape((M,)))),
    "annotated f32[2*n], deduced f32[n]": lambda: module(bind(CALL, tensor((2 * N,), F32))),
    "annotated f16[n], deduced": lambda: module(bind(CALL, tensor((N,), F16))),
    "says less": lambda: module(bind(CALL, Tensor(None, F32, 1))),
    "cannot match": lambda: module(bind(MatchCast(X), tensor((M, M), F32))),
    "no integers to read": lambda: module(bind(ReadInts(X), Shape(None, 1))),
    "no loop function gone": lambda: module(bind(CallTIR("gone", (X,)))),
    "2 arguments, it takes 1": lambda: module(bind(CallTIR("relu", (X, X)))),
    "flag is bool[()], x f32[n]": lambda: module(bind(CallTIR("relu", (FLAG,)))),
    "x is f32[n], x f32[n + 1]": lambda: module(
        bind(CallTIR("relu", (X,), ((next(iter(N.symbols())), N + 1),)))
    ),
    "the loop function gives": lambda: module(bind(CallTIR("relu", (X,)), tensor((N,), F16))),
    "no function gone": lambda: module(bind(CallGraph("gone", (X,)))),
    "listed as main": lambda: Module({"main": GraphFunc("other", (X,), JUST_X, ("a",))}),
    "annotated f32[3]": lambda: module(
        bind(Constant("w", np.zeros(2, np.float32), tensor((3,), F32)), tensor((3,), F32))
    ),
    "a branch gives a tuple": lambda: module(bind(branch(JUST_X, JUST_X))),
    "promised by the branch": lambda: module(
        bind(branch(JUST_X, Block((TWICE,), (TWICE.var,))), Tuple((X.annotation,)))
    ),
    "other counts": lambda: module(bind(branch(JUST_X, Block((), ())), Tuple((X.annotation,)))),
    "two is used where it is not defined": lambda: module(
        bind(branch(Block((TWICE,), (X,)), Block((), (X,))), Tuple((X.annotation,))),
        results=(TWICE.var,),
    ),
    "nothing defines m": lambda: module(
        bind(branch(JUST_X, JUST_X), Tuple((tensor((M,), F32),))),
    ),
    "defines new dims": lambda: module(
        bind(
            branch(
                JUST_X,
                JUST_X,
                symbols=tuple(N.symbols()),
                then_symbols=(N,),
                other_symbols=(N,),
            ),
            Tuple((X.annotation,)),
        )
    ),
}


@pytest.mark.parametrize("message", list(BROKEN))
def test_broken_modules(message: str) -> None:
    with pytest.raises(VerifyError) as caught:
        verify(BROKEN[message]())
    assert message in str(caught.value)


def test_symbols_of_an_arm_end_with_it() -> None:
    f = Function("main")
    x, c = f.input("x", (N,), F32), f.input("c", (), BOOL)
    inner: list[Value] = []

    def then() -> list[Value]:
        inner.append(f.with_fresh_dims(f.call(OPS["keep"], x)))
        return [x]

    f.if_else(c, then, lambda: [x])
    (k,) = (e for e in inner[0].annotation.dims)  # type: ignore[union-attr]
    f.output("y", f.emit(MakeShape((k,))))
    with pytest.raises(ShapeError, match="nothing defines keep_d0"):
        f.module()
    built = GraphFunc("main", (x, c), f.finish((x,)), ("y",))
    with pytest.raises(VerifyError, match="nothing defines keep_d0 before its use"):
        verify(Module({"main": built}))


def test_messages_show_the_binding_and_its_origin() -> None:
    var = Var("y", tensor((N,), F16), "m.onnx: /Relu")
    with pytest.raises(VerifyError) as caught:
        verify(module(Binding(var, CALL)))
    assert str(caught.value).endswith("\n  y: f16[n] = relu(x)\n  from m.onnx: /Relu")


A, OUT = Buffer("a", F32, (N, M)), Buffer("out", F32, (N,))
I0, R0, STRANGE = axis("i", N), axis("r", M), axis("s", N)
GOOD = Stage(OUT, (I0,), A[I0, R0], (R0,), "sum")
T = Buffer("t", F32, (N,))


def loop(*stages: Stage | Template, weights: frozenset[str] = frozenset()) -> LoopFunc:
    return LoopFunc("f", (A,), (OUT,), stages, weights)


BROKEN_LOOPS: dict[str, LoopFunc] = {
    "reads t before": loop(Stage(OUT, (I0,), T[I0])),
    "nothing writes the output out": loop(replace(GOOD, out=T)),
    "writes the input a": loop(GOOD, Stage(A, (I0, R0), constant(1.0, F32))),
    "writes all of out again": loop(GOOD, GOOD),
    "declared as": loop(replace(GOOD, out=Buffer("out", F32, (N, N)), index=(as_expr(I0),) * 2)),
    "weight w is no input": loop(GOOD, weights=frozenset(("w",))),
    "listed twice": loop(replace(GOOD, reduce=(R0, R0))),
    "without a combiner": loop(replace(GOOD, combiner=None)),
    "epilogue without": loop(Stage(OUT, (I0,), A[I0, 0], epilogue=Acc(F32))),
    "init of argmax": loop(replace(GOOD, combiner="argmax", init=constant(0.0, F32))),
    "2 indices into": loop(replace(GOOD, index=(as_expr(I0), as_expr(I0)))),
    "stores along a dim of n": loop(replace(GOOD, axes=(axis("i", N + 1),), body=A[0, R0])),
    "store index uses s": loop(replace(GOOD, index=(as_expr(STRANGE),))),
    "body uses s": loop(replace(GOOD, body=A[STRANGE, R0])),
    "epilogue uses r": loop(replace(GOOD, epilogue=Acc(F32) + A[I0, R0])),
    "body uses the reduced value": loop(replace(GOOD, body=Acc(F32))),
    "stores i32 into": loop(replace(GOOD, epilogue=constant(1, I32))),
    "where is f32": loop(replace(GOOD, where=A[I0, R0])),
    "init is i64": loop(replace(GOOD, init=constant(1, I64))),
    "any of f32": loop(replace(GOOD, combiner="any")),
    "no function frob": loop(replace(GOOD, body=Op("frob", (A[I0, R0],), F32))),
    "add of 1 operands": loop(replace(GOOD, body=Op("add", (A[I0, R0],), F32))),
    "add on f32, i64": loop(replace(GOOD, body=Op("add", (A[I0, R0], constant(1, I64)), F32))),
    "lt on f32 as f32": loop(replace(GOOD, body=Op("lt", (A[I0, R0], A[I0, R0]), F32))),
    "a choice by f32": loop(replace(GOOD, body=Select(A[I0, R0], A[I0, R0], constant(0.0, F32)))),
    "no template frob": loop(Template("frob", (A,), (OUT,))),
    "extent of k is i": loop(
        replace(GOOD, reduce=(axis("k", as_expr(I0)),), body=A[I0, axis("k", as_expr(I0))])
    ),
}


@pytest.mark.parametrize("message", list(BROKEN_LOOPS))
def test_broken_loops(message: str) -> None:
    verify_loop(loop(GOOD))
    with pytest.raises(VerifyError) as caught:
        verify_loop(BROKEN_LOOPS[message])
    assert message in str(caught.value)
    assert "def f(a: f32[n, m]" in str(caught.value)


def test_partial_stores_may_share_a_buffer() -> None:
    rest = Stage(OUT, (), constant(0.0, F32), index=(as_expr(0),))
    guarded = Stage(OUT, (I0,), A[I0, 0], where=op("gt", A[I0, 0], 0.0))
    verify_loop(loop(GOOD, rest, guarded))
