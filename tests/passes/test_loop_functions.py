"""Loop functions written by hand: they are called, bound, fused by analysis and run."""

from collections.abc import Callable

import numpy as np
import pytest

import edgerelax
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError, ShapeError
from edgerelax.ir.dtypes import F32, I64, U8
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module, Value
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.scalar import Buffer, cast
from edgerelax.ir.scalar import Value as IndexValue
from edgerelax.ir.types import tensor
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.sym import symbol

N, ROWS, COLUMNS = symbol("n"), symbol("rows"), symbol("columns")
RNG = np.random.default_rng(0)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def dequantise() -> LoopFunc:
    """(q - 128) * scale, with one scale for each column."""
    q, scale = Buffer("q", U8, (ROWS, COLUMNS)), Buffer("scale", F32, (COLUMNS,))
    out = Buffer("out", F32, (ROWS, COLUMNS))
    i, j = grid(out)
    body = (cast(q[i, j], F32) - 128.0) * scale[j]
    return LoopFunc("dequantise", (q, scale), (out,), (Stage(out, (i, j), body),))


def norm() -> LoopFunc:
    """The sum of squares of each row: a reduction that no operator is."""
    x, out = Buffer("x", F32, (ROWS, COLUMNS)), Buffer("out", F32, (ROWS,))
    i, j = axis("i", ROWS), axis("j", COLUMNS)
    stage = Stage(out, (i,), x[i, j] * x[i, j], (j,), "sum")
    return LoopFunc("norm", (x,), (out,), (stage,))


def launches(module: Module, *inputs: dict[str, np.ndarray]) -> int:
    """How many kernels the program launches; it must give what numpy gives."""
    verify(module)
    executable = edgerelax.compile(module, target="cpu", verify=True)
    session = executable.session("cpu")
    for given in inputs:
        wanted = evaluate(module, given)
        for name, value in session.run(given).items():
            np.testing.assert_allclose(value, wanted[name], rtol=1e-5, atol=1e-5)
    return executable.report.launches["cpu"]


def quantised(*shape: int) -> np.ndarray:
    return RNG.integers(0, 256, shape, dtype=np.uint8)


def test_a_map_goes_into_its_neighbours() -> None:
    f = Function("main")
    q, scale = f.input("q", (N, 6), U8), f.input("scale", (6,), F32)
    x = f.input("x", (N, 6), F32)
    y = f.call_tir(dequantise(), q, scale)
    assert y.annotation == tensor((N, 6), F32)
    f.output("y", f.call(OPS["tanh"], f.call(OPS["add"], y, x)))
    given = ({"q": quantised(n, 6), "scale": data(6), "x": data(n, 6)} for n in (0, 1, 7))
    assert launches(f.module(), *given) == 1


def test_weights_of_a_product_are_made_on_the_way() -> None:
    f = Function("main")
    x = f.input("x", (N, 5), F32)
    w = f.call_tir(
        dequantise(), f.constant("q", quantised(5, 3)), f.constant("scale", data(3) / 100)
    )
    f.output("y", f.call(OPS["matmul"], x, w))
    launches(f.module(), {"x": data(4, 5)}, {"x": data(1, 5)})


def test_a_reduction_takes_its_epilogue_and_producer() -> None:
    f = Function("main")
    x = f.input("x", (N, 5), F32)
    f.output("y", f.call(OPS["sqrt"], f.call_tir(norm(), f.call(OPS["exp"], x))))
    assert launches(f.module(), {"x": data(3, 5)}, {"x": data(0, 5)}) == 1


def test_one_function_at_several_sizes() -> None:
    f = Function("main")
    x = f.input("x", (N, 2 * N), F32)
    first = f.call_tir(norm(), x)
    f.output("first", first)
    f.output("second", f.call_tir("norm", f.call(OPS["transpose"], x, perm=(1, 0))))
    assert f.module().loops == {"norm": norm()}
    launches(f.module(), {"x": data(3, 6)}, {"x": data(1, 2)})


def test_called_from_a_graph_function_that_is_called() -> None:
    g = Function("layer")
    q, scale = g.input("q", (N, COLUMNS), U8), g.input("scale", (COLUMNS,), F32)
    g.output("y", g.call_tir(dequantise(), q, scale))
    f = Function("main", g.module())
    a, b = f.input("a", (N, 4), U8), f.input("b", (3, N), U8)
    s, t = f.input("s", (4,), F32), f.input("t", (N,), F32)
    f.output("y", f.call_graph("layer", a, s))
    f.output("z", f.call_graph("layer", b, t))
    given = {"a": quantised(2, 4), "b": quantised(3, 2), "s": data(4), "t": data(2)}
    launches(f.module(), given)


def test_a_symbol_that_no_dim_says() -> None:
    x, out, shift = (
        Buffer("x", F32, (ROWS,)),
        Buffer("out", F32, (ROWS,)),
        symbol("shift", lo=-(1 << 63)),
    )
    (i,) = grid(out)
    moved = Stage(out, (i,), x[i] + cast(IndexValue(shift + i, I64), F32))
    loop = LoopFunc("shifted", (x,), (out,), (moved,))
    f = Function("main")
    a, by = f.input("a", (N,), F32), f.input("by", (1,), I64)
    with pytest.raises(ShapeError, match="shifted: nothing says what shift is here"):
        f.call_tir(loop, a)
    (count,) = f.read_ints(by)
    f.output("y", f.call_tir(loop, a, symbols={shift.atom: count}))
    launches(f.module(), {"a": data(3), "by": np.array([5])}, {"a": data(1), "by": np.array([-1])})


def _wrong_size(f: Function, q: Value, scale: Value) -> Value:
    return f.call_tir(dequantise(), q, f.constant("s", data(5)))


def _wrong_dtype(f: Function, q: Value, scale: Value) -> Value:
    return f.call_tir(dequantise(), scale, scale)


def _too_few(f: Function, q: Value, scale: Value) -> Value:
    return f.call_tir(dequantise(), q)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (_wrong_size, "dequantise: wants columns, got 5"),
        (_wrong_dtype, r"dequantise: argument 0 must be u8\[rows, columns\], got f32"),
        (_too_few, "dequantise: takes 2 arguments, got 1"),
    ],
)
def test_arguments_that_do_not_fit(call: Callable[..., Value], why: str) -> None:
    f = Function("main")
    q, scale = f.input("q", (N, 6), U8), f.input("scale", (6,), F32)
    with pytest.raises(ShapeError, match=why):
        call(f, q, scale)


def test_bounds_that_may_not_hold() -> None:
    few = symbol("few", lo=1, hi=8)
    x, out = Buffer("x", F32, (few,)), Buffer("out", F32, (few,))
    (i,) = grid(out)
    loop = LoopFunc("short", (x,), (out,), (Stage(out, (i,), -x[i]),))
    f = Function("main")
    with pytest.raises(ShapeError, match=r"few is n here.*at least 1, at most 8"):
        f.call_tir(loop, f.input("x", (N,), F32))
    f = Function("main")
    f.output("y", f.call_tir(loop, f.input("x", (symbol("m", lo=2, hi=5),), F32)))
    launches(f.module(), {"x": data(4)})


def test_sizes_that_may_differ_are_checked_by_the_run() -> None:
    f = Function("main")
    q, scale = f.input("q", (N, symbol("a")), U8), f.input("scale", (symbol("b"),), F32)
    f.output("y", f.call_tir(dequantise(), q, scale))
    launches(f.module(), {"q": quantised(2, 3), "scale": data(3)})
    session = edgerelax.compile(f.module(), target="cpu").session("cpu")
    with pytest.raises(InputError, match=r"argument scale of dequantise.*: 4 is not 3"):
        session.run({"q": quantised(2, 3), "scale": data(4)})
