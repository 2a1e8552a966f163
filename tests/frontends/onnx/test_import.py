"""What becomes of names, dims, shape arithmetic, branches, loops, functions and old versions."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from edgerelax.frontends.onnx import load
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError, ShapeError, UnsupportedError
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import IfElse, MatchCast, Module, ReadInts
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.passes.canonicalize import canonicalize
from edgerelax.passes.cse import cse
from edgerelax.passes.dce import dce
from edgerelax.passes.fold_constants import fold_constants
from tests.frontends.onnx.graphs import model, node, value

Array = Any


def imported(proto: onnx.ModelProto, **dims: Any) -> Module:
    module = load(proto, dims=dims)
    verify(module)
    return module


def outputs(module: Module) -> list[str]:
    return [str(v.annotation) for v in module.funcs["main"].body.results]


def count(module: Module, kind: type) -> int:
    return sum(isinstance(b.value, kind) for b in all_bindings(module.funcs["main"].body))


def normal(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


# Names and dims


def test_names_are_those_of_the_model() -> None:
    x = value("onnx::x.1", ["batch-size", "?", "?", 4])
    proto = model([node("Relu", ["onnx::x.1"], ["y:0"])], [x], ["y:0"])
    module = imported(proto)
    main = module.funcs["main"]
    assert [p.name for p in main.params] == ["onnx::x.1"]
    assert main.result_names == ("y:0",)
    assert outputs(module) == ["f32[batch_size, onnx_x_1_1, onnx_x_1_2, 4]"]
    found = evaluate(module, {"onnx::x.1": normal(2, 3, 1, 4)})
    assert found["y:0"].shape == (2, 3, 1, 4)


def test_dims_can_be_fixed_bounded_and_made_multiples() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [value("x", ["n", "m.0", 0, "?"])], ["y"])
    module = load(proto, dims={"n": 3, "m.0": (8, 64, 8), "x_3": (1, None)})
    (param,) = module.funcs["main"].params
    assert str(param.annotation) == "f32[3, m_0, x_2, x_3]"
    symbols = {s.name: s for e in param.annotation.dims for s in e.symbols()}  # type: ignore[union-attr]
    assert (symbols["m_0"].lo, symbols["m_0"].hi, symbols["m_0"].multiple_of) == (8, 64, 8)
    assert (symbols["x_2"].lo, symbols["x_3"].lo) == (0, 1)


def test_arithmetic_in_dims() -> None:
    inputs = [value("past", ["b", "p"]), value("new", ["b", "s"]), value("mask", ["b", "p + s"])]
    nodes = [
        node("Concat", ["past", "new"], ["all"], axis=1),
        node("Add", ["all", "mask"], ["y"]),
    ]
    module = imported(model(nodes, inputs, ["y"]))
    assert outputs(module) == ["f32[b, p + s]"]
    assert count(module, MatchCast) == 0


def test_outputs_may_be_inputs_constants_and_the_same_value() -> None:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Relu", ["x"], ["b"]),
        node("Identity", ["b"], ["c"]),
    ]
    proto = model(nodes, [value("x", ["n"])], ["x", "a", "b", "c", "w"], {"w": np.arange(3)})
    x = normal(4)
    found = evaluate(imported(proto), {"x": x})
    assert list(found) == ["x", "a", "b", "c", "w"]
    np.testing.assert_array_equal(found["a"], x)
    np.testing.assert_array_equal(found["c"], np.maximum(x, 0))
    np.testing.assert_array_equal(found["w"], np.arange(3))


def test_initializers_that_are_inputs_too_are_constants() -> None:
    inputs = [value("x", ["n", 4]), value("w", [4])]
    proto = model([node("Add", ["x", "w"], ["y"])], inputs, ["y"], {"w": np.ones(4, np.float32)})
    assert [p.name for p in imported(proto).funcs["main"].params] == ["x"]
    module = load(proto, inputs=["w"])
    assert [p.name for p in module.funcs["main"].params] == ["x", "w"]
    given = {"x": normal(2, 4), "w": normal(4)}
    np.testing.assert_array_equal(evaluate(module, given)["y"], given["x"] + given["w"])
    with pytest.raises(InputError, match=r"'x' is no input with an initializer"):
        load(proto, inputs=["x"])


def test_nodes_in_any_order() -> None:
    nodes = [node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"])]
    found = evaluate(imported(model(nodes, [value("x", ["n"])], ["y"])), {"x": normal(5)})
    np.testing.assert_array_equal(found["y"], -np.maximum(normal(5), 0))


def test_metadata_is_kept() -> None:
    proto = model([node("Relu", ["x"], ["y"])], [value("x", ["n"])], ["y"])
    proto.metadata_props.add(key="classes", value="cat,dog")
    assert load(proto).attrs["metadata"] == {"classes": "cat,dog"}


# Shape arithmetic


def test_a_shape_chain_folds_to_symbols() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "i0"], ["n"], axis=0),
        node("Gather", ["s", "i1"], ["m"], axis=0),
        node("Mul", ["m", "two"], ["m2"]),
        node("Div", ["m2", "two"], ["m3"]),
        node("Unsqueeze", ["n", "axis0"], ["un"]),
        node("Unsqueeze", ["m3", "axis0"], ["um"]),
        node("Concat", ["un", "four", "um"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ]
    constants = {
        "i0": np.array(0), "i1": np.array(1), "two": np.array(2), "axis0": np.array([0]),
        "four": np.array([4]),
    }  # fmt: skip
    module = imported(model(nodes, [value("x", ["n", "m", 4])], ["y"], constants))
    assert outputs(module) == ["f32[n, 4, m]"]
    assert count(module, ReadInts) == count(module, MatchCast) == 0


def test_sizes_that_pass_through_floats_stay_known() -> None:
    nodes = [
        node("Shape", ["x"], ["s"], start=2),
        node("Cast", ["s"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "scale"], ["g"]),
        node("Floor", ["g"], ["h"]),
        node("Cast", ["h"], ["t"], to=TensorProto.INT64),
        node("Shape", ["x"], ["nc"], end=2),
        node("Concat", ["nc", "t"], ["sizes"], axis=0),
        node("Expand", ["one", "sizes"], ["y"]),
    ]
    constants = {"scale": np.array([2, 0.5], np.float32), "one": np.ones(1, np.float32)}
    module = imported(model(nodes, [value("x", ["n", 3, "h", "w"])], ["y"], constants))
    assert outputs(module) == ["f32[n, 3, 2*h, w//2]"]
    assert evaluate(module, {"x": normal(1, 3, 5, 7)})["y"].shape == (1, 3, 10, 3)


def test_integers_that_are_data_are_read_and_checked() -> None:
    shape = value("shape", [2], TensorProto.INT64)
    module = imported(
        model([node("Reshape", ["x", "shape"], ["y"])], [value("x", ["n"]), shape], ["y"])
    )
    assert count(module, ReadInts) == 1
    for target, want in (([2, 3], (2, 3)), ([-1, 2], (3, 2)), ([0, -1], (6, 1))):
        found = evaluate(module, {"x": normal(6), "shape": np.array(target)})
        assert found["y"].shape == want
    with pytest.raises(ShapeError):
        evaluate(module, {"x": normal(6), "shape": np.array([4, 2])})


def test_a_reshape_that_may_not_fit_is_checked() -> None:
    module = imported(
        model(
            [node("Reshape", ["x", "s"], ["y"])],
            [value("x", ["n"])],
            ["y"],
            {"s": np.array([-1, 4])},
        )
    )
    assert evaluate(module, {"x": normal(8)})["y"].shape == (2, 4)
    with pytest.raises(ShapeError):
        evaluate(module, {"x": normal(9)})


# Dims that are not known to agree


def test_dims_of_different_names_may_broadcast() -> None:
    proto = model(
        [node("Add", ["a", "b"], ["y"])], [value("a", ["n", "k"]), value("b", ["m", "k"])], ["y"]
    )
    module = imported(proto)
    for n, m in ((3, 3), (1, 3), (3, 1), (1, 1)):
        a, b = normal(n, 2), normal(m, 2)
        np.testing.assert_array_equal(evaluate(module, {"a": a, "b": b})["y"], a + b)
    with pytest.raises(ShapeError):
        evaluate(module, {"a": normal(3, 2), "b": normal(2, 2)})


def test_sizes_of_one_thing_are_taken_to_agree_and_checked() -> None:
    nodes = [
        node("MaxPool", ["x"], ["half"], kernel_shape=[2], strides=[2]),
        node("Upsample", ["half"], ["again"], scales=[1.0, 1.0, 2.0]),
        node("Add", ["x", "again"], ["y"]),
    ]
    module = imported(model(nodes, [value("x", [1, 1, "n"])], ["y"], opset=8))
    assert count(module, MatchCast) == 1
    assert evaluate(module, {"x": normal(1, 1, 6)})["y"].shape == (1, 1, 6)
    with pytest.raises(ShapeError):
        evaluate(module, {"x": normal(1, 1, 7)})
    even = load(model(nodes, [value("x", [1, 1, "n"])], ["y"], opset=8), dims={"n": (2, None, 2)})
    assert count(even, MatchCast) == 0


def test_a_product_of_sizes_that_differ_by_name() -> None:
    proto = model(
        [node("MatMul", ["a", "b"], ["y"])], [value("a", ["n", "k"]), value("b", ["j", "m"])], ["y"]
    )
    module = imported(proto)
    a, b = normal(2, 3), normal(3, 4)
    np.testing.assert_allclose(evaluate(module, {"a": a, "b": b})["y"], a @ b, rtol=1e-5)
    with pytest.raises(ShapeError):
        evaluate(module, {"a": a, "b": normal(4, 4)})


def test_checks_outlive_the_clean_up_passes() -> None:
    sliced = model(
        [node("Reshape", ["x", "s"], ["y"])], [value("x", ["n"])], ["y"], {"s": np.array([-1, 4])}
    )
    added = model([node("Add", ["x", "b"], ["y"])], [value("x", ["n"]), value("b", ["m"])], ["y"])
    for proto, inputs in (
        (sliced, {"x": normal(9)}),
        (added, {"x": normal(3), "b": normal(2)}),
    ):
        module = load(proto)
        for clean_up in (canonicalize, fold_constants, cse, dce):
            module = clean_up(module)
        with pytest.raises(ShapeError):
            evaluate(module, inputs)


# Branches and loops


def graph(nodes: list[onnx.NodeProto], outs: list[str], ins: Any = ()) -> onnx.GraphProto:
    return helper.make_graph(nodes, "arm", list(ins), [onnx.ValueInfoProto(name=o) for o in outs])


def branch(cond: str, then: onnx.GraphProto, other: onnx.GraphProto) -> onnx.NodeProto:
    return node("If", [cond], ["y"], name="choice", then_branch=then, else_branch=other)


SLICED = graph([node("Slice", ["x", "one", "far"], ["t"])], ["t"])
DOUBLED = graph([node("Concat", ["x", "x"], ["e"], axis=0)], ["e"])
ENDS = {"one": np.array([1]), "far": np.array([1 << 40])}


def test_only_the_arm_that_is_taken_is_imported() -> None:
    mystery = graph([node("Mystery", ["x"], ["m"], domain="strange")], ["m"])
    for cond, arms in ((True, (SLICED, mystery)), (False, (mystery, SLICED))):
        proto = model(
            [branch("c", *arms)], [value("x", ["n"])], ["y"], {"c": np.array(cond), **ENDS},
            domains={"strange": 1},
        )  # fmt: skip
        module = imported(proto, n=(2, None))
        assert outputs(module) == ["f32[n - 1]"]
        assert count(module, IfElse) == 0


def test_a_branch_on_data_gives_new_sizes() -> None:
    proto = model(
        [branch("c", SLICED, DOUBLED)],
        [value("x", ["n"]), value("c", [], TensorProto.BOOL)],
        ["y"],
        ENDS,
    )
    module = imported(proto)
    assert count(module, IfElse) == 1
    x = normal(5)
    assert evaluate(module, {"x": x, "c": np.array(True)})["y"].shape == (4,)
    assert evaluate(module, {"x": x, "c": np.array(False)})["y"].shape == (10,)


def test_a_branch_on_a_size_asks_the_host() -> None:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"], axis=0),
        node("Equal", ["n", "three"], ["c"]),
        branch("c", SLICED, DOUBLED),
    ]
    constants = {**ENDS, "zero": np.array(0), "three": np.array(3)}
    module = imported(model(nodes, [value("x", ["n"])], ["y"], constants))
    assert count(module, ReadInts) == 0
    assert evaluate(module, {"x": normal(3)})["y"].shape == (2,)
    assert evaluate(module, {"x": normal(4)})["y"].shape == (8,)
    decided = imported(model(nodes, [value("x", ["n"])], ["y"], constants), n=(4, None))
    assert count(decided, IfElse) == 0


def test_arms_of_different_ranks_are_refused_with_the_dim_to_fix() -> None:
    flat = graph([node("Squeeze", ["x", "axis1"], ["t"])], ["t"])
    same = graph([node("Identity", ["x"], ["e"])], ["e"])
    nodes = [
        node("Shape", ["x"], ["s"], start=1),
        node("Equal", ["s", "one"], ["c"]),
        branch("c", flat, same),
    ]
    constants = {"one": np.array([1]), "axis1": np.array([1])}
    proto = model(nodes, [value("x", ["n", "m"])], ["y"], constants)
    with pytest.raises(UnsupportedError, match=r"choice[\s\S]*fix m with --dim"):
        load(proto)
    assert outputs(imported(proto, m=1)) == ["f32[n]"]
    assert outputs(imported(proto, m=7)) == ["f32[n, 7]"]


def test_arms_of_different_ranks_take_the_rest_of_the_graph_with_them() -> None:
    flat = graph([node("Flatten", ["x"], ["t"], axis=0)], ["t"])
    deep = graph([node("Unsqueeze", ["x", "axis0"], ["e"])], ["e"])
    nodes = [branch("c", flat, deep), node("ReduceSum", ["y"], ["z"], keepdims=0)]
    inputs = [value("x", ["n"]), value("c", [], TensorProto.BOOL)]
    module = imported(model(nodes, inputs, ["z"], {"axis0": np.array([0, 1, 2])}))
    assert outputs(module) == ["f32[()]"]
    for cond in (True, False):
        found = evaluate(module, {"x": normal(5), "c": np.array(cond)})
        np.testing.assert_allclose(found["z"], normal(5).sum(), rtol=1e-5)


def test_many_such_branches_are_refused_before_they_grow_without_end() -> None:
    nodes, inputs, last = [], [value("x", ["n"])], "x"
    for k in range(24):
        inputs.append(value(f"c{k}", [], TensorProto.BOOL))
        flat = graph([node("Flatten", [last], [f"t{k}"], axis=0)], [f"t{k}"])
        deep = graph([node("Unsqueeze", [last, "axis0"], [f"e{k}"])], [f"e{k}"])
        choice = node("If", [f"c{k}"], [f"y{k}"], then_branch=flat, else_branch=deep)
        total = node("ReduceSum", [f"y{k}"], [f"s{k}"], keepdims=0)
        nodes += [choice, total, node("Add", ["x", f"s{k}"], [f"r{k}"])]
        last = f"r{k}"
    with pytest.raises(UnsupportedError, match="depending on the branch"):
        load(model(nodes, inputs, [last], {"axis0": np.array([0, 1, 2])}))


@pytest.mark.parametrize("strange_first", [True, False])
def test_unsupported_nodes_of_one_arm_are_told_as_such(strange_first: bool) -> None:
    mystery = graph([node("Mystery", ["x"], ["m"], domain="strange", name="odd one")], ["m"])
    arms = (mystery, SLICED) if strange_first else (SLICED, mystery)
    inputs = [value("x", ["n"]), value("c", [], TensorProto.BOOL)]
    proto = model([branch("c", *arms)], inputs, ["y"], ENDS, domains={"strange": 1})
    with pytest.raises(UnsupportedError, match="odd one"):
        load(proto)


def test_an_arm_that_cannot_be_leaves_a_check() -> None:
    good = graph([node("Relu", ["x"], ["t"])], ["t"])
    bad = graph([node("MatMul", ["x", "w"], ["e"])], ["e"])
    proto = model(
        [branch("c", good, bad)],
        [value("x", ["n", 4]), value("c", [], TensorProto.BOOL)],
        ["y"],
        {"w": np.ones((5, 2), np.float32)},
    )
    module = imported(proto)
    assert outputs(module) == ["f32[n, 4]"]
    evaluate(module, {"x": normal(2, 4), "c": np.array(True)})
    for after in (module, dce(canonicalize(module))):
        with pytest.raises(EdgeRelaxError, match="choice"):
            evaluate(after, {"x": normal(2, 4), "c": np.array(False)})


def test_a_loop_of_known_length_unrolls() -> None:
    body = graph(
        [
            node("Add", ["v", "x"], ["w"]),
            node("Identity", ["c"], ["go"]),
            node("Neg", ["w"], ["row"]),
        ],
        ["go", "w", "row"],
        [value("i", [], 7), value("c", [], 9), value("v", ["n"])],
    )
    proto = model(
        [node("Loop", ["three", "", "x"], ["y", "rows"], body=body)],
        [value("x", ["n"])],
        ["y", "rows"],
        {"three": np.array(3)},
    )
    module = imported(proto)
    assert outputs(module) == ["f32[n]", "f32[3, n]"]
    x = normal(4)
    found = evaluate(module, {"x": x})
    np.testing.assert_allclose(found["y"], 4 * x, rtol=1e-6)
    np.testing.assert_allclose(found["rows"], [-2 * x, -3 * x, -4 * x], rtol=1e-6)


# Functions and versions


def test_a_models_own_function_with_attributes() -> None:
    inner = node("LeakyRelu", ["a"], ["t"])
    slope = inner.attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT)
    slope.ref_attr_name = "slope"
    body = [inner, node("Add", ["t", "b"], ["r"])]
    imports = [helper.make_opsetid("", 18)]
    function = helper.make_function("mine", "Leaky", ["a", "b"], ["r"], body, imports, ["slope"])
    nodes = [
        node("Leaky", ["x", "x"], ["h"], domain="mine", slope=0.5, name="first"),
        node("Leaky", ["h", "x"], ["y"], domain="mine", slope=0.0),
    ]
    proto = model(nodes, [value("x", ["n"])], ["y"], functions=[function], domains={"mine": 1})
    module = imported(proto)
    x = normal(6)
    h = np.where(x >= 0, x, 0.5 * x) + x
    np.testing.assert_allclose(evaluate(module, {"x": x})["y"], np.maximum(h, 0) + x, rtol=1e-6)
    origins = {b.var.origin for b in all_bindings(module.funcs["main"].body)}
    assert any("first/" in origin for origin in origins)


def test_a_standard_operator_without_a_row_is_expanded() -> None:
    proto = model([node("AffineGrid", ["t", "size"], ["y"])], [value("t", ["n", 2, 3])], ["y"],
                  {"size": np.array([2, 1, 2, 3])}, opset=20)  # fmt: skip
    module = imported(proto, n=2)
    assert evaluate(module, {"t": normal(2, 2, 3)})["y"].shape == (2, 2, 3, 2)


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_softmax_before_13_is_over_all_later_dims(axis: int) -> None:
    proto = model(
        [node("Softmax", ["x"], ["y"], axis=axis)], [value("x", ["a", "b", "c"])], ["y"], opset=11
    )
    x = normal(2, 3, 4)
    flat = x.reshape(int(np.prod(x.shape[: axis % 3])), -1)
    powers = np.exp(flat - flat.max(1, keepdims=True))
    want = (powers / powers.sum(1, keepdims=True)).reshape(x.shape)
    np.testing.assert_allclose(evaluate(imported(proto), {"x": x})["y"], want, rtol=1e-5)


OLD_FORMS = [
    (7, node("Clip", ["x"], ["y"], min=-0.5, max=0.5), lambda x: np.clip(x, -0.5, 0.5)),
    (10, node("Clip", ["x"], ["y"], max=0.25), lambda x: np.minimum(x, 0.25)),
    (9, node("Slice", ["x"], ["y"], starts=[1], ends=[9], axes=[1]), lambda x: x[:, 1:9]),
    (10, node("Pad", ["x"], ["y"], pads=[0, 1, 0, 2], value=7.0),
     lambda x: np.pad(x, ((0, 0), (1, 2)), constant_values=7)),
    (11, node("Squeeze", ["x"], ["y"], axes=[2]), lambda x: x),
    (12, node("Unsqueeze", ["x"], ["y"], axes=[0, -1]), lambda x: x[None, :, :, None]),
    (12, node("ReduceSum", ["x"], ["y"], axes=[1], keepdims=0), lambda x: x.sum(1)),
    (17, node("ReduceMax", ["x"], ["y"]), lambda x: x.max((0, 1), keepdims=True)),
    (11, node("Split", ["x"], ["y", ""], axis=1, split=[1, 3]), lambda x: x[:, :1]),
    (9, node("TopK", ["x"], ["y", ""], k=2), lambda x: -np.sort(-x, -1)[:, :2]),
    (9, node("Dropout", ["x"], ["y"], ratio=0.5), lambda x: x),
    (9, node("Upsample", ["x", "scales"], ["y"]), lambda x: x.repeat(2, 1)),
    (10, node("Resize", ["x", "scales"], ["y"]), lambda x: x.repeat(2, 1)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("opset", "form", "meaning"), OLD_FORMS, ids=[f"{n.op_type}-{o}" for o, n, _ in OLD_FORMS]
)
def test_old_forms(opset: int, form: onnx.NodeProto, meaning: Any) -> None:
    dims = ["a", "b", 1] if form.op_type == "Squeeze" else ["a", "b"]
    constants = {"scales": np.array([1, 2], np.float32)} if "scales" in form.input else {}
    module = imported(model([form], [value("x", dims)], ["y"], constants, opset=opset), b=(4, None))
    x = normal(3, 4)
    given = x[..., None] if form.op_type == "Squeeze" else x
    np.testing.assert_allclose(evaluate(module, {"x": given})["y"], meaning(x), rtol=1e-5)
