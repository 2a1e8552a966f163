"""Loops whose length is a symbol or data: what the importer makes of them, what it refuses."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from edgerelax.frontends.onnx import load
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import EdgeRelaxError, UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import IfElse, Module, ReadInts, Repeat
from edgerelax.ir.parser import parse
from edgerelax.ir.printer import weights_of, write
from edgerelax.ir.rebuild import rebuild
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.inline import inline
from tests.frontends.onnx.graphs import model, node, value
from tests.frontends.onnx.loop_models import INT, MODELS, check, graph, loop, normal, number

X = value("x", ["n"])


@pytest.mark.parametrize("name", MODELS)
def test_what_a_loop_gives(name: str) -> None:
    case = MODELS[name]()
    module = load(case.proto)
    verify(module)
    for inputs in case.runs:
        check(evaluate(module, inputs), case.expected(inputs))
    text = write(module)
    again = parse(text, OPS, weights_of(module))
    verify(again)
    assert write(again) == text


@pytest.mark.parametrize("name", ["nested", "until, with rows", "windows"])
def test_a_function_with_a_loop_called_twice(name: str) -> None:
    case = MODELS[name]()
    callee = replace(load(case.proto).funcs["main"], name="layer")
    f = Function("main", Module({"layer": callee}))
    given = [f.param(p.name, p.annotation) for p in callee.params]
    for call in ("first", "second"):
        results = f.fields(f.call_graph("layer", *given))
        for result, value_ in zip(callee.result_names, results, strict=True):
            f.output(f"{call} {result}", value_)
    module = inline(f.module())
    verify(module)
    for inputs in case.runs:
        expected, found = case.expected(inputs), evaluate(module, inputs)
        for call in ("first", "second"):
            check({k: found[f"{call} {k}"] for k in expected}, expected)


def test_a_loop_after_its_sizes_were_fixed() -> None:
    case = MODELS["scan"]()
    module = load(case.proto)
    dims = {
        symbol: size
        for param in module.funcs["main"].params
        for dim, size in zip(param.annotation.dims, case.runs[0][param.name].shape, strict=True)
        for symbol in dim.symbols()
    }
    fixed = rebuild(module, symbols=dims)
    verify(fixed)
    check(evaluate(fixed, case.runs[0]), case.expected(case.runs[0]))


def kinds(name: str) -> list[type]:
    module = load(MODELS[name]().proto)
    return [type(b.value) for b in all_bindings(module.funcs["main"].body)]


@pytest.mark.parametrize("name", ["scan", "carried values that trade places", "windows"])
def test_a_symbolic_length_reads_nothing_back(name: str) -> None:
    found = kinds(name)
    assert found.count(Repeat) == 1
    assert ReadInts not in found


def test_a_condition_on_data_is_read_in_the_body() -> None:
    module = load(MODELS["until"]().proto)
    (repeat,) = (b.value for b in module.funcs["main"].body.bindings if isinstance(b.value, Repeat))
    assert [type(b.value) for b in repeat.body.bindings].count(ReadInts) == 1
    assert len(repeat.symbols) == 2  # its own count of steps, and the number of steps taken
    assert IfElse not in kinds("until")


def carrying(nodes: list[onnx.NodeProto], outs: list[str], steps: str = "m") -> onnx.ModelProto:
    nodes = [*nodes, node("Identity", ["c"], ["go"])]
    outputs = ["y", "rows"][: len(outs)]
    return model(
        [loop([steps, "", "x"], outputs, nodes, value("v", ["n"]), outs=["go", *outs])],
        [X, value("m", [], INT)],
        outputs,
        {"axes": np.array([0])},
    )


def test_a_carried_value_of_another_rank() -> None:
    with pytest.raises(UnsupportedError, match=r"shape \[n\] before a step and \[1, n\]"):
        load(carrying([node("Unsqueeze", ["v", "axes"], ["w"])], ["w"]))


def test_a_carried_value_that_grows() -> None:
    proto = carrying([node("Concat", ["v", "x"], ["w"], axis=0)], ["w"])
    module = load(proto)  # n and 2 n are equal where n is 0
    empty = np.zeros(0, np.float32)
    assert evaluate(module, {"x": empty, "m": number(3)})["y"].shape == (0,)
    with pytest.raises(EdgeRelaxError, match="Loop:y"):
        evaluate(module, {"x": normal(2), "m": number(1)})
    proto = carrying([node("Concat", ["v", "v"], ["d"], axis=0)], ["d"])
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 2
    with pytest.raises(UnsupportedError, match=r"shape \[2\] before a step and \[4\]"):
        load(proto)


def test_rows_of_a_size_that_steps_find() -> None:
    nodes = [
        node("NonZero", ["v"], ["found"]),
        node("Cast", ["found"], ["row"], to=1),
        node("Identity", ["v"], ["w"]),
    ]
    with pytest.raises(UnsupportedError, match="rows whose size only they know"):
        load(carrying(nodes, ["w", "row"]))


def test_rows_without_a_greatest_number_of_them() -> None:
    nodes = [
        node("ReduceSum", ["v"], ["s"], keepdims=0),
        node("Less", ["s", "x0"], ["go"]),
        node("Add", ["v", "v"], ["w"]),
        node("Identity", ["v"], ["row"]),
    ]
    proto = model(
        [loop(["", "", "x"], ["y", "rows"], nodes, value("v", ["n"]), outs=["go", "w", "row"])],
        [X],
        ["y", "rows"],
        {"x0": np.float32(1)},
    )
    with pytest.raises(UnsupportedError, match="how many steps there can be"):
        load(proto)


def test_steps_beyond_what_is_unrolled() -> None:
    nodes = [node("Add", ["v", "x"], ["w"]), node("Identity", ["c"], ["go"])]
    proto = model(
        [loop(["many", "", "x"], ["y"], nodes, value("v", ["n"]), outs=["go", "w"])],
        [X],
        ["y"],
        {"many": number(30_000)},
    )
    module = load(proto)
    values = [b.value for b in module.funcs["main"].body.bindings]
    assert [v.trips.as_int() for v in values if isinstance(v, Repeat)] == [30_000]


def test_what_bodies_say_of_sizes_is_said_before_the_loop() -> None:
    body = graph(
        [node("Add", ["h", "x"], ["s"]), node("Identity", ["s"], ["row"])],
        ["s", "row"],
        [value("h", ["a"]), value("x", ["b"])],
    )
    proto = model(
        [node("Scan", ["h0", "xs"], ["h", "rows"], body=body, num_scan_inputs=1)],
        [value("h0", ["a"]), value("xs", ["t", "b"])],
        ["h", "rows"],
    )
    module = load(proto)
    verify(module)
    found = evaluate(module, {"h0": normal(4), "xs": normal(3, 4)})
    np.testing.assert_allclose(found["h"], normal(4) + normal(3, 4).sum(0), rtol=1e-5)
    with pytest.raises(EdgeRelaxError, match="Add:s"):
        evaluate(module, {"h0": normal(4), "xs": normal(3, 1)[:, :0]})


def test_a_condition_that_is_no_scalar() -> None:
    nodes = [node("Identity", ["v"], ["w"]), node("Less", ["v", "x"], ["go"])]
    proto = model(
        [loop(["m", "", "x"], ["y"], nodes, value("v", ["n"]), outs=["go", "w"])],
        [X, value("m", [], INT)],
        ["y"],
    )
    with pytest.raises(UnsupportedError, match=r"the condition \(bool\[n\]\)"):
        load(proto)
