"""Programs of several functions: what inlining makes of them, and that they run."""

import numpy as np
import pytest

import edgerelax
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError, ShapeError, UnsupportedError, VerifyError
from edgerelax.ir.dtypes import BOOL, F32, I64
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import (
    Binding,
    Block,
    CallGraph,
    GraphFunc,
    MatchCast,
    Module,
    Value,
    Var,
)
from edgerelax.ir.printer import module_symbols
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import IntTensor, Tensor, tensor
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.inline import inline
from edgerelax.sym import symbol

N, M, K, Q = symbol("n"), symbol("m"), symbol("k"), symbol("q")
RNG = np.random.default_rng(0)


def data(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def check(module: Module, *inputs: dict[str, np.ndarray], func: str = "main") -> Module:
    """Inlined it means the same, in numpy and compiled; gives the inlined module."""
    verify(module)
    inlined = inline(module)
    verify(inlined)
    calls = [
        b for f in inlined.funcs.values() for b in all_bindings(f.body) if is_plain_call(module, b)
    ]
    assert not calls
    session = edgerelax.compile(module, target="cpu", verify=True).session("cpu")
    for given in inputs:
        wanted = evaluate(module, given, func)
        for got in (evaluate(inlined, given, func), session.run(given, func)):
            assert got.keys() == wanted.keys()
            for name, value in wanted.items():
                np.testing.assert_allclose(got[name], value, rtol=1e-5, atol=1e-6)
    return inlined


def is_plain_call(module: Module, binding: Binding) -> bool:
    call = binding.value
    return isinstance(call, CallGraph) and not module.funcs[call.func].attrs.get("primitive")


def layer() -> Module:
    """tanh(x + b) with one size shared by both."""
    f = Function("layer")
    x, b = f.input("x", (M, K), F32), f.input("b", (K,), F32)
    f.output("y", f.call(OPS["tanh"], f.call(OPS["add"], x, b)))
    return f.module()


def casts(func: GraphFunc) -> list[Binding]:
    return [b for b in all_bindings(func.body) if isinstance(b.value, MatchCast)]


def test_one_function_called_with_different_sizes() -> None:
    f = Function("main", layer())
    x = f.input("x", (2 * N, 4), F32)
    y = f.input("y", (N, 3), F32)
    first = f.call_graph("layer", x, f.constant("b", data(4)))
    second = f.call_graph("layer", y, f.constant("c", data(3)))
    assert first.annotation == tensor((2 * N, 4), F32)
    f.output("first", first)
    f.output("second", second)
    f.output("again", f.call_graph("layer", first, f.constant("d", data(4))))
    inlined = check(f.module(), *({"x": data(2 * n, 4), "y": data(n, 3)} for n in (0, 1, 5)))
    assert list(inlined.funcs) == ["main"]
    assert not casts(inlined.funcs["main"]), "every size was known"
    names = [b.var.name for b in all_bindings(inlined.funcs["main"].body)]
    assert len(names) == len(set(names)) == 6


def test_callee_symbols_of_the_caller_names_are_not_confused() -> None:
    """m and k swap their parts between caller and callee."""
    f = Function("main", layer())
    x = f.input("x", (K, M), F32)
    b = f.input("b", (M,), F32)
    h = f.call_graph("layer", x, b)
    assert h.annotation == tensor((K, M), F32)
    f.output("y", f.call_graph("layer", f.call(OPS["transpose"], h, perm=(1, 0)), x0(f, x)))
    check(f.module(), {"x": data(3, 5), "b": data(5)}, {"x": data(1, 2), "b": data(2)})


def x0(f: Function, x: Value) -> Value:
    """The sum along rows: one number for each."""
    return f.call(OPS["reduce_sum"], x, axes=(1,), keepdims=False)


def test_shared_sizes_are_checked_at_the_boundary() -> None:
    f = Function("main", layer())
    x, b = f.input("x", (N, Q), F32), f.input("b", (symbol("r"),), F32)
    f.output("y", f.call_graph("layer", x, b))
    module = f.module()
    inlined = check(module, {"x": data(2, 7), "b": data(7)})
    assert casts(inlined.funcs["main"])
    session = edgerelax.compile(module, target="cpu").session("cpu")
    wrong = {"x": data(2, 7), "b": data(6)}
    with pytest.raises(InputError, match=r"argument b of layer: dimension 0 .*q.*: 6 is not 7"):
        session.run(wrong)
    with pytest.raises(ShapeError, match="argument b of layer"):
        evaluate(inlined, wrong)
    assert session.run({"x": data(2, 7), "b": data(7)})["y"].shape == (2, 7)


def test_bounds_of_the_callee_are_checked_where_they_are_not_proved() -> None:
    g = Function("small")
    size = symbol("s", lo=2, hi=8, multiple_of=2)
    g.output("y", g.call(OPS["exp"], g.input("x", (size,), F32)))
    f = Function("main", g.module())
    x = f.input("x", (N,), F32)
    y = f.call_graph("small", x)
    assert y.annotation == tensor((N,), F32)
    f.output("y", f.call(OPS["add"], x, y))
    module = f.module()
    check(module, {"x": data(2)}, {"x": data(8)})
    session = edgerelax.compile(module, target="cpu").session("cpu")
    for count, why in ((10, "at most 8"), (0, "at least 2"), (5, "multiple of 2")):
        with pytest.raises(InputError, match=f"argument x of small.*{why}"):
            session.run({"x": data(count)})
    within = Function("main", g.module())
    half = symbol("h", lo=1, hi=4)
    within.output("h", within.input("h", (half,), F32))
    within.output("y", within.call_graph("small", within.input("x", (2 * half,), F32)))
    assert not casts(inline(within.module()).funcs["main"]), "2*h keeps the bounds"


def test_contradictions_name_both() -> None:
    f = Function("main", layer())
    x = f.input("x", (N, 4), F32)
    with pytest.raises(ShapeError, match="layer: wants k, got 3"):
        f.call_graph("layer", x, f.constant("b", data(3)))
    with pytest.raises(InputError, match="no function lair; the module has layer"):
        f.call_graph("lair", x)


def test_results_that_are_parameters_constants_and_several() -> None:
    g = Function("parts")
    x = g.input("x", (M,), F32)
    g.output("same", x)
    g.output("twice", g.call(OPS["add"], x, x))
    g.output("one", g.constant("one", np.ones(3, np.float32)))
    f = Function("main", g.module())
    y = f.input("x", (N,), F32)
    same, twice, one = f.fields(f.call_graph("parts", y))
    same_again, *_ = f.fields(f.call_graph("parts", twice))
    f.output("a", f.call(OPS["mul"], same, twice))
    f.output("b", f.call(OPS["exp"], same_again))
    f.output("c", f.call(OPS["neg"], one))
    check(f.module(), {"x": data(4)}, {"x": data(0)})


def test_calls_of_calls() -> None:
    g = Function("deep", layer())
    x = g.input("x", (N, N), F32)
    g.output("y", g.call_graph("layer", x, x0(g, x)))
    f = Function("main", g.module())
    a = f.input("a", (Q, Q), F32)
    f.output("y", f.call_graph("layer", f.call_graph("deep", a), x0(f, a)))
    inlined = check(f.module(), {"a": data(3, 3)})
    assert list(inlined.funcs) == ["main"]


def head_or_twice() -> Module:
    """The first elements, as many as the data say, or all of it twice: sizes of its own."""
    g = Function("head")
    x, count = g.input("x", (M,), F32), g.input("count", (1,), I64)
    flag = g.input("flag", (), BOOL)

    def head() -> tuple[Value, ...]:
        (end,) = g.read_ints(count)
        return (g.call(OPS["slice"], x, starts=(0,), ends=(end,), axes=(0,), steps=(1,)),)

    def twice() -> tuple[Value, ...]:
        return (g.call(OPS["concat"], x, x, axis=0),)

    (y,) = g.if_else(flag, head, twice)
    g.output("y", g.call(OPS["exp"], y))
    return g.module()


def counted(size: int, count: int, flag: bool) -> dict[str, np.ndarray]:
    return {"x": data(size), "count": np.array([count]), "flag": np.array(flag)}


def test_symbols_defined_inside_get_fresh_names() -> None:
    f = Function("main", head_or_twice())
    x, count = f.input("x", (N,), F32), f.input("count", (1,), I64)
    flag = f.input("flag", (), BOOL)
    first = f.call_graph("head", x, count, flag)
    assert first.annotation == Tensor(None, F32, 1), "its size is not known from outside"
    f.output("first", first)
    f.output("second", f.call_graph("head", first, count, flag))
    inlined = check(f.module(), counted(5, 3, True), counted(5, 3, False), counted(0, 0, False))
    for value in inlined.funcs["main"].body.results:
        assert isinstance(value.annotation, Tensor) and value.annotation.dims is not None
    symbols = set(module_symbols(inlined))
    assert len({s.name for s in symbols}) == len(symbols)


def test_calls_inside_arms() -> None:
    f = Function("main", layer())
    x, b = f.input("x", (N, Q), F32), f.input("b", (Q,), F32)
    flag = f.input("flag", (), BOOL)

    def called() -> tuple[Value, ...]:
        return (f.call_graph("layer", f.call_graph("layer", x, b), b),)

    (y,) = f.if_else(flag, called, lambda: (x,))
    f.output("y", f.call(OPS["neg"], y))
    given = {"x": data(3, 2), "b": data(2)}
    check(f.module(), *({**given, "flag": np.array(v)} for v in (True, False)))


def test_known_integers_bind_symbols() -> None:
    """A parameter of known integers takes them from the annotation, or reads them."""
    g = Function("repeat")
    x = g.input("x", (M,), F32)
    g.param("times", IntTensor((K,)))
    g.output("y", g.call(OPS["expand"], x, dims=(K, M)))
    f = Function("main", g.module())
    v, count = f.input("v", (N,), F32), f.input("count", (1,), I64)
    sizes = f.call(OPS["integers"], values=(N + 1,))
    known = f.call_graph("repeat", v, sizes)
    assert known.annotation == tensor((N + 1, N), F32)
    f.output("known", known)
    f.output("read", f.call_graph("repeat", v, count))
    check(f.module(), *({"v": data(n), "count": np.array([k])} for n, k in ((3, 2), (1, 0))))


def test_what_the_caller_promises_of_a_result_is_checked() -> None:
    g = Function("head", head_or_twice())
    f = Function("main", g.around)
    x, count = f.input("x", (N,), F32), f.input("count", (1,), I64)
    y = f.input("y", (Q,), F32)
    flag = f.constant("flag", np.array(True))
    call = CallGraph("head", (x, count, flag))
    promised = f.emit(call, "promised", annotation=tensor((Q,), F32))
    f.output("y", f.call(OPS["add"], promised, y))
    module = f.module()
    given = {"x": data(5), "count": np.array([3]), "y": data(3)}
    check(module, given)
    session = edgerelax.compile(module, target="cpu").session("cpu")
    with pytest.raises(InputError, match=r"result of head.*3 is not 4"):
        session.run({**given, "y": data(4)})


def test_recursion_is_refused() -> None:
    def calls(name: str, callee: str) -> GraphFunc:
        x = Var("x", tensor((N,), F32))
        y = Var("y", tensor((N,), F32))
        return GraphFunc(name, (x,), Block((Binding(y, CallGraph(callee, (x,))),), (y,)), ("y",))

    ring = Module({n: calls(n, c) for n, c in (("main", "a"), ("a", "b"), ("b", "a"))})
    with pytest.raises(UnsupportedError, match="recursion: a → b → a"):
        inline(ring)
    with pytest.raises(UnsupportedError, match="recursion: main → main"):
        edgerelax.compile(Module({"main": calls("main", "main")}), target="cpu")
    with pytest.raises(VerifyError, match="function main: no function gone"):
        inline(Module({"main": calls("main", "gone")}))


def test_entry_points_stay_and_run() -> None:
    """`main` stays though another calls it; what is only called goes."""
    f = Function("main", layer())
    x, b = f.input("x", (N, Q), F32), f.input("b", (Q,), F32)
    f.output("y", f.call_graph("layer", x, b))
    g = Function("both", f.module())
    x, b = g.input("x", (N, 3), F32), g.input("b", (3,), F32)
    g.output("z", g.call(OPS["neg"], g.call_graph("main", g.call_graph("layer", x, b), b)))
    given = {"x": data(2, 3), "b": data(3)}
    for func in ("main", "both"):
        inlined = check(g.module(), given, func=func)
        assert list(inlined.funcs) == ["main", "both"]


def test_primitive_functions_are_left_alone() -> None:
    x = Var("x", tensor((N,), F32))
    y = Var("y", tensor((N,), F32))
    body = Block((Binding(y, CallGraph("outlined", (x,))),), (y,))
    p = Function("outlined")
    p.output("y", p.call(OPS["exp"], p.input("x", (N,), F32)))
    outlined = p.func(primitive=True)
    module = Module({"outlined": outlined, "main": GraphFunc("main", (x,), body, ("y",))})
    assert inline(module) is module


def test_one_without_calls_is_left_alone() -> None:
    module = layer()
    assert inline(module) is module
