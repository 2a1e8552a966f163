"""Deduction on emit, branches, host integers, and rebuilding."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.builder import Builder, Function, make_call
from edgerelax.ir.diagnostics import ShapeError, UnsupportedError
from edgerelax.ir.dtypes import BOOL, F16, F32, I64, U8
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Binding, Call, IfElse, MakeShape, Value
from edgerelax.ir.names import Names, identifier
from edgerelax.ir.rebuild import rebuild
from edgerelax.ir.types import IntTensor, Shape, Tensor, Tuple, tensor
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS as REAL
from edgerelax.sym import Symbol, as_expr, symbol
from tests.ir.programs import OPS, everything, inputs

N = symbol("n", 1, 64)


def test_names_are_clean_and_unique() -> None:
    names = Names({"vec3"})
    hints = ("/mlp/fc1", "/mlp/fc1", "vec3", "0", "for", "", "mlp_fc1")
    picked = [names.pick(hint) for hint in hints]
    assert picked == ["mlp_fc1", "mlp_fc1_1", "vec3_1", "v_0", "v_for", "v", "mlp_fc1_2"]
    assert identifier("é x") == "x"


def test_annotations_are_deduced_and_names_unique() -> None:
    f = Function("main")
    x = f.input("x", (N, 3), F32)
    a, b = f.call(OPS["twice"], x), f.call(OPS["twice"], x)
    assert a.annotation == tensor((2 * N, 3), F32)
    assert (a.name, b.name) == ("twice", "twice_1")
    assert f.call(OPS["both"], x).annotation == Tuple((x.annotation, x.annotation))


def test_attributes_take_defaults_and_are_checked() -> None:
    x = Function("f").input("x", (N,), F32)
    call = make_call(OPS["scale"], (x, None), {"words": ["a", Symbol("n")]})
    assert call.attrs == {"by": 1.0, "words": ("a", symbol("n"))}
    with pytest.raises(TypeError, match="scale has no attribute size; it has by, words"):
        make_call(OPS["scale"], (x,), {"size": 1})


def test_given_annotations_may_say_more_but_not_otherwise() -> None:
    f = Function("main")
    x = f.input("x", (N,), F32)
    kept = Call(OPS["keep"], (x,))
    assert f.emit(kept, annotation=tensor((3,), F32)).annotation == tensor((3,), F32)
    assert f.emit(Call(OPS["relu"], (x,)), annotation=Tensor()).annotation == x.annotation
    with pytest.raises(ShapeError, match=r"is f32\[n\], annotated f16"):
        f.emit(Call(OPS["relu"], (x,)), annotation=Tensor(None, F16))


def test_errors_name_the_call_and_its_origin() -> None:
    f = Function("main")
    a, b = f.input("a", (3,), F32), f.input("b", (4,), F32)
    with pytest.raises(ShapeError) as caught:
        f.call(OPS["add"], a, b, name="sum", origin="m.onnx: /Add")
    assert (caught.value.node, caught.value.origin) == ("sum", "m.onnx: /Add")


def test_branch_keeps_what_both_arms_say_and_names_what_differs() -> None:
    f = Function("main")
    x, c = f.input("x", (N, 3), F32), f.input("c", (), BOOL)
    same, longer, also = f.if_else(
        c,
        lambda: [f.call(OPS["relu"], x), x, x],
        lambda: [f.call(OPS["neg"], x), *[f.call(OPS["twice"], x)] * 2],
    )
    assert same.annotation == x.annotation
    assert isinstance(longer.annotation, Tensor) and longer.annotation.dims is not None
    assert longer.annotation == also.annotation
    assert longer.annotation.dims[0] != N
    branch = next(b.value for b in f.finish(()).bindings if isinstance(b.value, IfElse))
    assert len(branch.symbols) == 1
    assert (branch.then_symbols, branch.other_symbols) == ((N,), (2 * N,))


def test_branch_of_known_integers() -> None:
    f = Function("main")
    c = f.input("c", (), BOOL)
    (k,) = f.if_else(
        c,
        lambda: [f.call(OPS["ints"], values=(1, N))],
        lambda: [f.call(OPS["ints"], values=(2, N))],
    )
    assert isinstance(k.annotation, IntTensor)
    assert k.annotation.values[0].as_int() is None and k.annotation.values[1] != N  # n is unknown


def test_dims_known_in_an_arm_only_get_out_through_symbols() -> None:
    f = Function("main")
    x, c = f.input("x", (N,), F32), f.input("c", (), BOOL)
    (y,) = f.if_else(c, lambda: [f.with_fresh_dims(f.call(OPS["keep"], x))], lambda: [x])
    f.output("y", y)
    module = f.module()
    verify(module)
    data = np.array([1, -1, 2], np.float32)
    for flag, expected in ((True, [1, 2]), (False, [1, -1, 2])):
        got = evaluate(module, {"x": data, "c": np.array(flag)})["y"]
        assert got.tolist() == expected


def test_host_integers() -> None:
    f = Function("main")
    ids = f.input("ids", (2,), I64)
    a, b = f.read_ints(ids)
    assert a.symbols() <= f.visible and b.symbols() <= f.visible
    known = f.call(OPS["ints"], values=(N, 4))
    assert f.read_ints(known) == (N, as_expr(4))
    (small,) = f.read_ints(f.input("k", (), U8))
    assert next(iter(small.symbols())).lo == 0
    with pytest.raises(UnsupportedError, match="how many integers"):
        f.read_ints(f.input("many", (N,), I64))


def test_rank_must_be_known_for_fresh_dims() -> None:
    f = Function("main")
    x = f.param("x", Tensor(None, F32))
    with pytest.raises(UnsupportedError, match="its rank must be known"):
        f.with_fresh_dims(x)


def test_match_refuses_what_cannot_be() -> None:
    f = Function("main")
    x = f.input("x", (3,), F32)
    with pytest.raises(ShapeError, match=r"match_cast: x is f32\[3\], it cannot be f32\[4\]"):
        f.match(x, tensor((4,), F32))


def test_inputs_must_define_their_symbols() -> None:
    f = Function("main")
    f.input("x", (2 * N,), F32)
    with pytest.raises(ShapeError, match="main: nothing defines n"):
        f.module()


def test_a_builder_of_passes_takes_bindings_as_they_are() -> None:
    f = Function("main")
    x = f.input("x", (N,), F32)
    y = f.call(OPS["relu"], x)
    builder = Builder()
    builder.append(Binding(y, Call(OPS["relu"], (x,))))
    assert builder.emit(Call(OPS["relu"], (y,))).name == "relu_1"
    builder.match(builder.emit(MakeShape((N,))), Shape((symbol("q"),)))
    assert {s.name for s in builder.visible} == {"q"}


def observed(module: Any, data: dict[str, Any]) -> dict[str, Any]:
    return evaluate(module, data)


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("n", [1, 3])
def test_rebuilding_keeps_the_meaning(n: int, flag: bool) -> None:
    module = everything()
    again = rebuild(module)
    verify(again)
    for name, value in evaluate(module, inputs(n, flag)).items():
        np.testing.assert_array_equal(evaluate(again, inputs(n, flag))[name], value)


def test_rebuilding_at_one_size() -> None:
    module = rebuild(everything(), symbols={Symbol("n", 1, 64): 3})
    verify(module)
    assert "f32[3]" in str(module.funcs["main"].params[0].annotation)
    for flag in (True, False):
        wanted = evaluate(everything(), inputs(3, flag))
        for name, value in evaluate(module, inputs(3, flag)).items():
            np.testing.assert_array_equal(value, wanted[name])


def test_rebuilding_deduces_what_a_visit_changes() -> None:
    f = Function("main")
    x = f.input("x", (N,), F32)
    c = f.input("c", (), BOOL)
    (y,) = f.if_else(c, lambda: [f.call(OPS["relu"], x)], lambda: [f.call(OPS["neg"], x)])
    f.output("y", f.call(OPS["twice"], y))

    def halve(binding: Binding, builder: Builder) -> Value | None:
        match binding.value:
            case Call(op=op, args=(operand,)) if op.name in ("relu", "neg") and operand is x:
                return builder.call(op, builder.call(OPS["cast"], x, dtype=F16))
        return None

    module = rebuild(f.module(), halve)
    verify(module)
    assert module.funcs["main"].body.results[0].annotation == tensor((2 * N,), F16)


def test_a_visit_may_drop_a_binding() -> None:
    f = Function("main")
    x = f.input("x", (N,), F32)
    f.output("y", f.call(OPS["neg"], f.call(OPS["scale"], x, None)))

    def visit(binding: Binding, builder: Builder) -> Value | None:
        match binding.value:
            case Call(op=op, args=(operand, None)) if op.name == "scale":
                return operand
        return None

    body = rebuild(f.module(), visit).funcs["main"].body
    assert [b.var.name for b in body.bindings] == ["neg"]


UNDEFINED: dict[str, Callable[[Function, Value], Value]] = {
    "attribute": lambda f, x: f.call(REAL["reshape"], x, dims=(M, 3)),
    "unused result": lambda f, x: (f.call(REAL["reshape"], x, dims=(M, 3)), x)[1],
    "annotation": lambda f, x: f.emit(Call(OPS["keep"], (x,)), annotation=tensor((M,), F32)),
    "inside an arm": lambda f, x: f.if_else(
        as_expr(N), lambda: [f.call(REAL["reshape"], x, dims=(M, 3))], lambda: [x]
    )[0],
    "condition": lambda f, x: f.if_else(as_expr(M), lambda: [x], lambda: [x])[0],
    "defined in an arm only": lambda f, x: (
        f.if_else(as_expr(N), lambda: [f.match(x, tensor((M, 3), F32))], lambda: [x]),
        f.call(REAL["reshape"], x, dims=(M, 3)),
    )[1],
}
M = symbol("m")


@pytest.mark.parametrize("where", UNDEFINED)
def test_symbols_that_nothing_defines_are_named(where: str) -> None:
    f = Function("main")
    f.output("y", UNDEFINED[where](f, f.input("x", (N, 3), F32)))
    with pytest.raises(ShapeError, match=r"main: nothing defines m, of which .* speaks"):
        f.module()


def test_a_symbol_of_other_bounds_is_another_one() -> None:
    f = Function("main")
    x = f.input("x", (N, 3), F32)
    with pytest.raises(ShapeError, match="input z has another symbol n"):
        f.input("z", (symbol("n", 1, 9),), F32)
    f.output("y", f.call(REAL["reshape"], x, dims=(symbol("n", 1, 9), 3)))
    with pytest.raises(ShapeError, match="this one has other bounds"):
        f.module()


def test_symbols_may_be_used_before_the_input_that_defines_them() -> None:
    f = Function("main")
    f.output("y", f.call(REAL["reshape"], f.input("x", (N, 3), F32), dims=(M, 3)))
    f.input("z", (M,), F32)
    verify(f.module())
