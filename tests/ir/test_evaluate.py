"""The meaning of graph functions, and what evaluation finds wrong."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError, ShapeError, UnsupportedError, VerifyError
from edgerelax.ir.dtypes import F32, I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Binding, Block, Call, CallLibrary, CallTIR, Module, Var
from edgerelax.ir.op import Operator
from edgerelax.ir.types import IntTensor, tensor
from edgerelax.sym import symbol
from tests.ir.programs import OPS, everything, inputs

N = symbol("n", 1, 64)


@pytest.mark.parametrize("n", [1, 2, 7])
@pytest.mark.parametrize("flag", [True, False])
def test_everything(n: int, flag: bool) -> None:
    seen: dict[str, Any] = {}
    data = inputs(n, flag)
    got = evaluate(everything(), data, observe=lambda var, value: seen.setdefault(var.name, value))
    h = np.maximum(data["x.1"], 0)
    with np.errstate(all="ignore"):
        s = (h + -h) * np.float32(np.inf)
    joined = np.concatenate([s, s]) if flag else (s if n > 1 else -s)
    kept = joined[joined > 0]
    np.testing.assert_array_equal(got["y"], np.concatenate([kept, kept]))
    assert got["half"].dtype == np.float16
    assert seen["sizes_1"] == (4, 5)
    np.testing.assert_array_equal(seen["ints"], [4, 2 * n, 3])


def test_loop_functions_and_their_symbols() -> None:
    f = Function("main")
    x = f.input("x", (2 * N, N), F32)
    y = f.input("y", (N,), F32)
    site = OPS["relu"].lower
    assert site is not None
    from edgerelax.ir.deduce import call_site

    m = symbol("m")
    loop = site(call_site(Call(OPS["relu"], (Var("x", tensor((m, N), F32)),))))
    out = f.call_tir(loop, x, symbols={next(iter(m.symbols())): 2 * N})
    assert out.annotation == tensor((2 * N, N), F32)
    f.output("out", out)
    f.output("y", y)
    module = replace(f.module(), loops={"relu": loop})
    data = np.array([[-1, 2], [3, -4], [5, 6], [0, -0.5]], np.float32)
    got = evaluate(module, {"x": data, "y": data[0]})["out"]
    np.testing.assert_array_equal(got, np.maximum(data, 0))


def test_library_functions_are_given() -> None:
    f = Function("main")
    x = f.input("x", (N,), F32)
    f.output("y", f.emit(CallLibrary("my.double", (x,), {"by": N}), "y", annotation=x.annotation))
    data = {"x": np.ones(3, np.float32)}
    libraries = {"my.double": lambda a, by: a * np.float32(by)}
    assert evaluate(f.module(), data, libraries=libraries)["y"].tolist() == [3, 3, 3]
    with pytest.raises(UnsupportedError, match="no numpy meaning"):
        evaluate(f.module(), data)


def simple() -> Module:
    f = Function("main")
    x, y = f.input("x", (N, 3), F32), f.input("y", (N,), I64)
    f.output("x", f.call(OPS["relu"], x))
    f.output("y", y)
    return f.module()


X, Y = np.zeros((2, 3), np.float32), np.zeros(2, np.int64)


@pytest.mark.parametrize(
    "data,kind,message",
    [
        ({"x": X}, InputError, "main: input y is missing; it takes x, y"),
        ({"x": X, "y": Y, "z": Y}, InputError, "main: no input z; it takes x, y"),
        ({"x": X, "y": X}, ShapeError, "main: y must be i64, got float32"),
        ({"x": X[0], "y": Y}, ShapeError, r"main: x must have rank 2, got shape \[3\]"),
        ({"x": X[:, :2], "y": Y}, ShapeError, "main: dim 1 of x must be 3, got 2"),
        ({"x": X, "y": Y[:1]}, ShapeError, r"dim 0 of y must be n \(n = 2\), got 1"),
        ({"x": X[:0], "y": Y[:0]}, ShapeError, "n must be at least 1 and at most 64, got 0"),
    ],
)
def test_wrong_inputs_are_named(data: Any, kind: type[Exception], message: str) -> None:
    with pytest.raises(kind, match=message):
        evaluate(simple(), data)


def test_unknown_functions_are_named() -> None:
    with pytest.raises(InputError, match="no function other; the module has main"):
        evaluate(simple(), {}, func="other")


def test_run_time_checks_name_both_sizes() -> None:
    f = Function("main")
    a, b = f.input("a", (N,), F32), f.input("b", (symbol("m"),), F32)
    f.output("y", f.call(OPS["add"], a, f.match(b, a.annotation, origin="m.onnx: /Add")))
    arrays = {"a": np.zeros(2, np.float32), "b": np.zeros(3, np.float32)}
    with pytest.raises(ShapeError, match=r"m.onnx: /Add.*dim 0 of b_1 must be n \(n = 2\), got 3"):
        evaluate(f.module(), arrays)


def test_wrong_annotations_are_found_where_they_are() -> None:
    module = simple()
    func = module.funcs["main"]
    (binding,) = func.body.bindings
    wrong = Var("relu", tensor((N, 4), F32), "m.onnx: /Relu")
    body = Block((Binding(wrong, binding.value),), (wrong, func.params[1]))
    bad = module.with_func(replace(func, body=body))
    with pytest.raises(VerifyError) as caught:
        evaluate(bad, {"x": X, "y": Y})
    assert "relu is annotated f32[n, 4]" in str(caught.value)
    assert "from m.onnx: /Relu" in str(caught.value)


def test_known_integers_are_checked_too() -> None:
    lying = Operator("lie", (), lambda site: IntTensor((N,)), lambda: np.array([99]))
    f = Function("main")
    f.input("x", (N,), F32)
    f.output("y", f.call(lying))
    with pytest.raises(VerifyError, match="lie is annotated"):
        evaluate(f.module(), {"x": np.zeros(2, np.float32)})


def test_missing_loop_functions_are_ours() -> None:
    f = Function("main")
    x = f.input("x", (N,), F32)
    f.output("y", f.emit(CallTIR("gone", (x,)), annotation=x.annotation))
    with pytest.raises(VerifyError, match="no loop function gone"):
        evaluate(f.module(), {"x": np.zeros(2, np.float32)})
