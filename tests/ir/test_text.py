"""IR text: it reads back, byte for byte, and what is not IR is refused with its line."""

import ast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import FormatError
from edgerelax.ir.dtypes import F16, F32, I32, I64
from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallTIR,
    Constant,
    GraphFunc,
    Module,
    Var,
)
from edgerelax.ir.loop import LoopFunc, Stage, Template, axis, grid
from edgerelax.ir.parser import parse
from edgerelax.ir.printer import binding_text, loop_text, same, weights_of, write
from edgerelax.ir.scalar import (
    Acc,
    Buffer,
    Cast,
    Const,
    Scalar,
    Select,
    cast,
    constant,
    gather,
    op,
    select,
)
from edgerelax.ir.scalar import Value as SizeValue
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
from edgerelax.sym import Opaque, as_expr, symbol
from tests.ir.programs import OPS, everything

N, M = symbol("n", 1, 64), symbol("m")


def round_trip(module: Module) -> Module:
    text = write(module)
    ast.parse(text)
    back = parse(text, OPS, weights_of(module))
    assert write(back) == text
    assert same(module, back)
    return back


def loops(*funcs: LoopFunc) -> Module:
    return Module({}, {f.name: f for f in funcs})


def test_everything_reads_back() -> None:
    round_trip(everything())


def test_text_of_a_small_program() -> None:
    f = Function("main")
    x = f.input("x", (N, 64), F32)
    h = f.call(OPS["scale"], x, None, by=2.0, origin="m.onnx: /Mul")
    f.output("y", f.call(OPS["relu"], h))
    assert write(f.module(), origins=True) == (
        "# edgerelax ir 1\n"
        "n = dim(lo=1, hi=64)\n"
        "\n"
        "@graph\n"
        "def main(x: f32[n, 64]):\n"
        "    scale: f32[n, 64] = scale(x, None, by=2.0)  # from m.onnx: /Mul\n"
        "    relu: f32[n, 64] = relu(scale)\n"
        "    return {'y': relu}\n"
    )


def test_text_of_a_loop_function() -> None:
    a, b, out = (Buffer(k, F32, d) for k, d in (("a", (N, M)), ("b", (M,)), ("out", (N,))))
    i, k = axis("i", N), axis("k", M)
    stage = Stage(out, (i,), a[i, k] * b[k], (k,), "sum", epilogue=op("max", Acc(F32) + 1.0, 0.0))
    func = LoopFunc("gemv", (a, b), (out,), (stage,), frozenset(("b",)))
    assert loop_text(func) == (
        "@loop\n"
        "def gemv(a: f32[n, m], b: weight[f32[m]], out: out[f32[n]]):\n"
        "    for i in grid(n):\n"
        "        for k in reduce(m):\n"
        "            acc = sum(a[i, k] * b[k])\n"
        "        out[i] = max(acc + 1.0, 0.0)"
    )
    assert round_trip(loops(func)).loops["gemv"] == func


ANNOTATIONS: list[Annotation] = [
    Object(),
    Shape(),
    Shape(None, 2),
    Shape(()),
    Shape((N, M * 2 + 1)),
    Tensor(),
    Tensor(None, F16),
    Tensor(None, None, 3),
    Tensor((), F32),
    tensor((N, (M + 3) // 4 * 4, N % 3), I64),
    Tensor((N,), None),
    IntTensor((N,), 0),
    IntTensor((), 1, I32),
    IntTensor((N, as_expr(-1)), 1),
    Prim(),
    Prim(N - 1),
    Tuple(()),
    Tuple((Object(),)),
    Callable((Tensor((N,), F32),), Shape((N,))),
]


@pytest.mark.parametrize("annotation", ANNOTATIONS, ids=str)
def test_annotations_read_back(annotation: Annotation) -> None:
    var = Var("x", annotation)
    func = GraphFunc("main", (var,), Block((), (var,)), ("y",))
    back = round_trip(Module({"main": func}))
    assert back.funcs["main"].params[0].annotation == annotation


def test_names_are_made_identifiers_and_interfaces_keep_theirs() -> None:
    f = Function("main graph")
    size = symbol("seq-len", 1)
    other = symbol("f32")
    x = f.input("input.1:0", (size, other), F32)
    f.output("class", f.call(OPS["relu"], x, name="/a/b"))
    module = f.module()
    text = write(module)
    assert "seq_len = dim('seq-len', lo=1)" in text
    back = round_trip(module).funcs["main graph"]
    assert (back.params[0].name, back.result_names) == ("input.1:0", ("class",))
    assert back.params[0].annotation == x.annotation


def test_symbols_of_one_name_are_told_apart() -> None:
    params = (Var("x", tensor((symbol("n"),), F32)), Var("y", tensor((symbol("n", 5),), F32)))
    module = Module({"main": GraphFunc("main", params, Block((), params), ("a", "b"))})
    assert "n_1 = dim('n', lo=5)" in write(module)
    round_trip(module)


def test_weights_stand_beside_the_text() -> None:
    f = Function("main")
    big = f.constant("w", np.arange(99, dtype=np.float32))
    again = Constant("w", np.ones(50, np.float32), tensor((50,), F32))
    small = f.constant("s", np.array([1, 2], np.int8))
    for k, value in enumerate((big, again, small)):
        f.output(f"y{k}", value)
    module = f.module()
    assert weights_of(module).keys() == {"w", "w_1"}
    assert "array(i8, [2], [1, 2])" in write(module)
    back = round_trip(module)
    changed = parse(write(module), OPS, {"w": big.data, "w_1": 2 * again.data})
    assert same(back, module) and not same(changed, module)
    with pytest.raises(FormatError, match="line 3: weight 'w' is not given"):
        parse(write(module), OPS)


def test_ill_formed_ir_prints() -> None:
    stray = Var("stray", Object())
    call = Call(OPS["relu"], (stray,), {"odd": object})
    binding = Binding(Var("y", tensor((symbol("u"),), F32)), call)
    module = Module(
        {"main": GraphFunc("main", (), Block((binding,), (stray, stray)), ("only one",))}
    )
    assert "y: f32[u] = relu(stray, odd=opaque" in write(module)
    assert binding_text(Binding(stray, CallTIR("no-such", (stray,)))) == (
        "stray: object = call_tir('no-such', stray)"
    )


def test_stages_with_everything() -> None:
    x, ids = Buffer("x", F32, (N, M)), Buffer("ids", I64, (N,))
    out, arg = Buffer("out", F32, (N, M)), Buffer("arg", I64, (N,))
    t, count = Buffer("t", F16, (N,)), Buffer("count", I64, ())
    i, j = axis("i", N), axis("j", M)
    row = gather(ids[i], N)
    shared = op("exp", x[row, j])
    bounded = as_expr(Opaque(ids[i], 0, N - 1))
    stages = (
        Stage(
            t,
            (i,),
            cast(shared * shared, F16),
            (j,),
            "sum",
            init=constant(-0.5, F16),
            where=op("and", op("lt", SizeValue(as_expr(j)), ids[i]), op("ne", x[i, j], 0.0)),
            epilogue=Cast(Acc(F32), F16),
        ),
        Stage(arg, (i,), x[i, j], (j,), "argmax_last"),
        Stage(
            out,
            (i, j),
            select(op("not", op("isnan", x[i, j])), cast(t[i], F32), constant(float("-inf"), F32)),
            where=op("gt", ids[i], 3),
            index=(N - 1 - as_expr(i), as_expr(j)),
        ),
        Stage(out, (i,), x[bounded, 0], index=(bounded, as_expr(0))),
        Stage(count, (), constant(1, I64)),
        Template("topk", (x,), (out, arg), {"k": 3, "largest": True, "words": ("a",), "n": N + 1}),
    )
    func = LoopFunc("all", (x, ids), (out, arg, count), stages, frozenset(("ids",)))
    back = round_trip(loops(func)).loops["all"]
    assert back.stages == func.stages


def test_axis_named_like_a_symbol() -> None:
    x, out = Buffer("x", F32, (N,)), Buffer("out", F32, (N,))
    n = axis("n", N)
    func = LoopFunc("f", (x,), (out,), (Stage(out, (n,), x[N - 1 - as_expr(n)]),))
    assert "out[n_1] = x[n - n_1 - 1]" in loop_text(func)
    round_trip(loops(func))


def test_shared_and_deep_scalars_stay_small() -> None:
    x, out = Buffer("x", F32, (N,)), Buffer("out", F32, (N,))
    (i,) = grid(out)
    body: Scalar = x[i]
    for _ in range(300):
        body = op("tanh", body + body)
    func = LoopFunc("f", (x,), (out,), (Stage(out, (i,), body),))
    assert len(loop_text(func)) < 20_000
    assert round_trip(loops(func)).loops["f"] == func


X, Y, Z = (Buffer(k, F32, (N,)) for k in ("x", "y", "z"))
AT = axis("i", N)
LEAVES = st.sampled_from(
    [X[AT], Y[N - 1 - as_expr(AT)], constant(0.5, F32), constant(-0.0, F32),
     Const(float("nan"), F32), SizeValue(AT * 2 + N, F32)]
)  # fmt: skip


def _grow(inner: st.SearchStrategy[Scalar]) -> st.SearchStrategy[Scalar]:
    pair = st.tuples(inner, inner)
    return st.one_of(
        st.tuples(st.sampled_from(["add", "sub", "mul", "div", "max", "pow"]), pair).map(
            lambda t: op(t[0], *t[1])
        ),
        st.tuples(st.sampled_from(["neg", "exp", "sigmoid"]), inner).map(lambda t: op(*t)),
        st.tuples(st.sampled_from(["lt", "eq", "ne"]), pair, pair).map(
            lambda t: Select(op("not", op(t[0], *t[1])), *t[2])
        ),
        st.tuples(st.sampled_from(["and", "or", "xor"]), pair, inner).map(
            lambda t: Cast(op(t[0], op("lt", *t[1]), op("isnan", t[2])), F32)
        ),
    )


@settings(max_examples=150, deadline=None)
@given(st.recursive(LEAVES, _grow, max_leaves=25))
def test_scalars_read_back(body: Scalar) -> None:
    func = LoopFunc("f", (X, Y), (Z,), (Stage(Z, (AT,), body),))
    back = parse(write(loops(func)), OPS).loops["f"]
    assert back.stages[0].body is body  # type: ignore[union-attr]


REFUSED = {
    "x = 1": "line 2: not a call",
    "n = dim(lo=open('f'))": "line 2: not a size",
    "n = dim(lo=5, hi=2)": "line 2: symbol n: the upper bound 2 is below the lower bound 5",
    "import os": "line 2: not a dim, a constant or a function",
    "@graph\ndef main(x: f32[k]):\n    return {'y': x}": "line 3: no dim k",
    "@graph\ndef main(x: f99[1]):\n    return {'y': x}": "line 3: no dtype f99",
    "@graph\ndef main(x: f32[1]):\n    return {'y': z}": "line 4: no such value here",
    "@graph\ndef main(x: f32[1]):\n    y: f32[1] = exec(x)\n    return {'y': y}": (
        "line 4: no operator exec"
    ),
    "@graph\ndef main(x: f32[1]):\n    y: f32[1] = relu(x, k=1)\n    return {'y': y}": (
        "line 4: relu has no attribute k"
    ),
    "@graph\ndef main(x: f32[1]):\n    pass": "line 4: a graph function ends in return",
    "@graph\ndef main(x: f32[1] = 3):\n    return {'y': x}": (
        "line 3: a function has plain annotated parameters"
    ),
    "@loop\ndef f(x: f32[2], y: out[f32[2]]):\n    for i in grid(2):\n        y[i] = os.system": (
        "line 5: not a scalar"
    ),
    "@loop\ndef f(x: f32[2], y: out[f32[2]]):\n    for i in grid(2):\n        y[i] = x[i, i]": (
        "line 5: 2 indices into x"
    ),
    "def f(": "line 2: not Python syntax",
}


@pytest.mark.parametrize("text", list(REFUSED))
def test_what_is_not_ir_is_refused_with_its_line(text: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse(f"# edgerelax ir 1\n{text}\n", OPS)
    assert REFUSED[text] in str(caught.value)


def test_other_versions_are_refused() -> None:
    with pytest.raises(FormatError, match="version 2, this is version 1"):
        parse("# edgerelax ir 2\n", OPS)
    with pytest.raises(FormatError, match="not IR text"):
        parse("hello", OPS)
