"""Programs that data steers: branches, counts and shapes known only at run time."""

import itertools

import numpy as np
import onnx
import pytest

import edgerelax.api as api
from edgerelax.codegen.bytecode import decode
from edgerelax.ir.diagnostics import InputError
from tests.faults.hosts import HOSTS
from tests.faults.models import BOOL, F32, I64, by_onnxruntime, graph, model, node

BOTH = pytest.mark.parametrize("host", HOSTS)


def agree(proto: onnx.ModelProto, host: str, *many: dict[str, np.ndarray]) -> None:
    """One session, the questions in this order and then again: equal to onnxruntime."""
    with api.compile(proto, verify=True).session(host) as session:
        for inputs in many * 2:
            got = session.run(inputs)
            for name, wanted in by_onnxruntime(proto, inputs).items():
                assert got[name].dtype == wanted.dtype
                assert got[name].shape == wanted.shape, name
                np.testing.assert_allclose(got[name], wanted, rtol=1e-5, atol=1e-5)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def arm(*nodes: onnx.NodeProto, out: str) -> onnx.GraphProto:
    return graph(nodes, [], [(out, F32, None)])


def branching() -> onnx.ModelProto:
    """If on a value that the model computes; the arms give other sizes."""
    small = arm(node("Relu", ["x"], ["a"]), out="a")
    large = arm(node("Concat", ["x", "x"], ["b"], axis=0), out="b")
    nodes = [
        node("ReduceSum", ["x"], ["total"], keepdims=0),
        node("Greater", ["total", "limit"], ["more"]),
        node("If", ["more"], ["branched"], then_branch=large, else_branch=small),
        node("Exp", ["branched"], ["y"]),
    ]
    limit = {"limit": np.float32(0)}
    return model(nodes, [("x", F32, ["n", 3])], [("y", F32, None)], limit)


@BOTH
def test_branch_on_a_computed_value(host: str) -> None:
    agree(branching(), host, *({"x": np.full((n, 3), v, np.float32)} for n in (1, 4)
                              for v in (-1, 0.5)))  # fmt: skip


def test_only_slabs_sized_by_a_branch_are_kept_when_they_grow() -> None:
    compiled = api.compile(branching())
    for info in compiled.artifact.manifest.programs:
        slabs = decode(compiled.artifact.read(info.program)).slabs
        assert [slab.keeps for slab in slabs].count(True) == 1
        assert len(slabs) > 1


@BOTH
def test_arms_of_one_known_size(host: str) -> None:
    """What an arm gives and where it goes may be parts of one buffer."""
    rising = arm(node("Relu", ["x"], ["p"]), node("CumSum", ["p", "zero"], ["a"]), out="a")
    falling = arm(node("Neg", ["x"], ["q"]), node("CumSum", ["q", "zero"], ["b"]), out="b")
    nodes = [
        node("If", ["more"], ["chosen"], then_branch=rising, else_branch=falling),
        node("Exp", ["chosen"], ["z"]),
    ]
    inputs = [("more", BOOL, []), ("x", F32, [5])]
    proto = model(nodes, inputs, [("z", F32, [5])], {"zero": np.int64(0)})
    agree(proto, host, *({"more": np.array(more), "x": floats(5)} for more in (True, False)))


def arms_of_other_sizes() -> onnx.ModelProto:
    """One arm computes as many elements more as its input has that are not 0.

    What the other one computes, and what comes after, is smaller for sure: it may lie where that
    did.
    """
    counted = arm(
        node("NonZero", ["x"], ["places"]),
        node("Cast", ["places"], ["numbers"], to=F32),
        node("Squeeze", ["numbers", "first"], ["row"]),
        node("Concat", ["row", "y"], ["longer"], axis=0),
        node("CumSum", ["longer", "zero"], ["sums"]),
        node("ReduceSum", ["sums"], ["a"], keepdims=0),
        out="a",
    )
    plain = arm(
        node("CumSum", ["y", "zero"], ["others"]),
        node("ReduceMax", ["others"], ["b"], keepdims=0),
        out="b",
    )
    nodes = [
        node("If", ["more"], ["chosen"], then_branch=counted, else_branch=plain),
        node("CumSum", ["y", "zero"], ["later"]),
        node("ReduceSum", ["later"], ["total"], keepdims=0),
        node("Add", ["chosen", "total"], ["z"]),
    ]
    inputs = [("more", BOOL, []), ("x", F32, ["m"]), ("y", F32, ["n"])]
    return model(nodes, inputs, [("z", F32, [])], {"zero": np.int64(0), "first": np.array([0])})


@BOTH
def test_what_lies_in_a_slab_that_another_arm_sizes(host: str) -> None:
    """The arm that does not know the slab's size comes first, then the one that does, larger."""
    x = np.array([1, 0, 2], np.float32)
    agree(arms_of_other_sizes(), host, *({"more": np.array(more), "x": x, "y": floats(n)}
                                         for n, more in ((700, False), (700, True),
                                                         (900, False), (300, False))))  # fmt: skip


@BOTH
def test_branch_on_an_input(host: str) -> None:
    then = arm(node("Neg", ["x"], ["a"]), out="a")
    other = arm(node("Abs", ["x"], ["b"]), out="b")
    proto = model(
        [node("If", ["flag"], ["y"], then_branch=then, else_branch=other)],
        [("flag", BOOL, []), ("x", F32, ["n"])],
        [("y", F32, None)],
    )
    agree(proto, host, *({"flag": np.array(f), "x": floats(n)} for f in (True, False)
                         for n in (1, 7)))  # fmt: skip


def nested() -> onnx.ModelProto:
    deep_then = arm(node("Mul", ["x", "x"], ["c"]), out="c")
    deep_other = arm(node("Slice", ["x", "one", "end"], ["d"]), out="d")
    inner = node("If", ["second"], ["e"], then_branch=deep_then, else_branch=deep_other)
    then = arm(node("Neg", ["x"], ["neg"]), node("Add", ["neg", "x"], ["zero"]),
               node("Add", ["zero", "x"], ["a"]), out="a")  # fmt: skip
    other = arm(inner, node("Exp", ["e"], ["b"]), out="b")
    nodes = [
        node("If", ["first"], ["mid"], then_branch=then, else_branch=other),
        node("ReduceMean", ["mid"], ["mean"], keepdims=0),
        node("Add", ["mid", "mean"], ["y"]),
    ]
    return model(
        nodes,
        [("first", BOOL, []), ("second", BOOL, []), ("x", F32, ["n"])],
        [("y", F32, None)],
        {"one": np.int64([1]), "end": np.int64([1000])},
    )


@BOTH
def test_nested_branches(host: str) -> None:
    cases = itertools.product((True, False), (True, False), (2, 5))
    agree(nested(), host, *({"first": np.array(a), "second": np.array(b), "x": floats(n)}
                            for a, b, n in cases))  # fmt: skip


@BOTH
def test_nonzero(host: str) -> None:
    """How many there are is read from the device; what follows has that size."""
    nodes = [
        node("Greater", ["x", "zero"], ["positive"]),
        node("NonZero", ["positive"], ["where"]),
        node("Transpose", ["where"], ["rows"], perm=[1, 0]),
        node("GatherND", ["x", "rows"], ["picked"]),
        node("Mul", ["picked", "two"], ["y"]),
        node("Shape", ["picked"], ["count"]),
    ]
    proto = model(
        nodes,
        [("x", F32, ["n", 4])],
        [("y", F32, None), ("where", I64, None), ("count", I64, None)],
        {"zero": np.float32(0), "two": np.float32(2)},
    )
    some = [{"x": floats(n, 4)} for n in (1, 6, 33)]
    none, all_of_them = {"x": -np.ones((2, 4), np.float32)}, {"x": np.ones((2, 4), np.float32)}
    agree(proto, host, *some, none, all_of_them)


@BOTH
def test_reshape_to_an_input(host: str) -> None:
    nodes = [node("Reshape", ["x", "target"], ["r"]), node("Relu", ["r"], ["y"])]
    proto = model(nodes, [("x", F32, ["n"]), ("target", I64, [2])], [("y", F32, None)])
    targets = ([3, 4], [4, 3], [-1, 6], [12, -1], [0, 1], [1, 12])
    agree(proto, host, *({"x": floats(12), "target": np.int64(t)} for t in targets))
    with api.compile(proto).session(host) as session:
        with pytest.raises(InputError, match="Reshape"):
            session.run({"x": floats(12), "target": np.int64([5, 5])})
        with pytest.raises(InputError, match="Reshape"):
            session.run({"x": floats(12), "target": np.int64([-3, -4])})
        assert session.run({"x": floats(12), "target": np.int64([2, 6])})["y"].shape == (2, 6)


@BOTH
def test_sizes_that_are_computed(host: str) -> None:
    """The target of a Reshape and of an Expand come from arithmetic on the device."""
    nodes = [
        node("Mul", ["a", "b"], ["ab"]),
        node("Concat", ["ab", "rest"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["r"]),
        node("Expand", ["c", "target2"], ["wide"]),
        node("ReduceSum", ["wide"], ["y2"], keepdims=0),
        node("Identity", ["r"], ["y"]),
    ]
    proto = model(
        nodes,
        [("x", F32, ["n"]), ("a", I64, [1]), ("b", I64, [1]), ("c", F32, [1, 1]),
         ("target2", I64, [2])],
        [("y", F32, None), ("y2", F32, None)],
        {"rest": np.int64([-1])},
    )  # fmt: skip
    agree(proto, host, *(
        {"x": floats(24), "a": np.int64([a]), "b": np.int64([b]), "c": floats(1, 1),
         "target2": np.int64([a, b])}
        for a, b in ((2, 3), (4, 6), (1, 1))
    ))  # fmt: skip


@BOTH
def test_ranges_slices_and_counts(host: str) -> None:
    nodes = [
        node("Range", ["start", "stop", "step"], ["r"]),
        node("Slice", ["x", "from", "to", "axes"], ["part"]),
        node("TopK", ["x", "k"], ["top", "at"]),
        node("ConstantOfShape", ["k"], ["zeros"]),
    ]
    proto = model(
        nodes,
        [("start", I64, []), ("stop", I64, []), ("step", I64, []), ("x", F32, ["n"]),
         ("from", I64, [1]), ("to", I64, [1]), ("k", I64, [1])],
        [("r", I64, None), ("part", F32, None), ("top", F32, None), ("at", I64, None),
         ("zeros", F32, None)],
        {"axes": np.int64([0])},
    )  # fmt: skip

    def question(start: int, stop: int, step: int, low: int, high: int, k: int) -> dict:
        return {
            "start": np.int64(start), "stop": np.int64(stop), "step": np.int64(step),
            "x": floats(9), "from": np.int64([low]), "to": np.int64([high]), "k": np.int64([k]),
        }  # fmt: skip

    agree(proto, host, question(0, 7, 2, 1, 5, 3), question(5, 0, -2, -4, 100, 9),
          question(3, 3, 1, 5, 2, 1), question(0, 1, 5, -100, -1, 0))  # fmt: skip


@BOTH
def test_loops_that_are_counted(host: str) -> None:
    """A Loop of a known number of turns, with a value carried through."""
    body = graph(
        [node("Mul", ["v", "v"], ["squared"]), node("Add", ["squared", "x"], ["v_out"]),
         node("Identity", ["go"], ["go_out"]), node("Identity", ["v_out"], ["scan"])],
        [("i", I64, []), ("go", BOOL, []), ("v", F32, None)],
        [("go_out", BOOL, []), ("v_out", F32, None), ("scan", F32, None)],
    )  # fmt: skip
    proto = model(
        [node("Loop", ["count", "yes", "x"], ["y", "all"], body=body)],
        [("x", F32, ["n"])],
        [("y", F32, None), ("all", F32, None)],
        {"count": np.int64(3), "yes": np.array(True)},
    )
    agree(proto, host, *({"x": floats(n) * 0.3} for n in (1, 5)))


@BOTH
@pytest.mark.parametrize("centres", (0, 1))
def test_boxes_that_overlap_better_ones_are_suppressed(host: str, centres: int) -> None:
    """How many are chosen depends on all numbers; equal scores and any limit included."""
    nodes = [
        node("NonMaxSuppression", ["b", "s", "k", "iou", "least"], ["y"], center_point_box=centres),
    ]
    inputs = [("b", F32, ["n", "m", 4]), ("s", F32, ["n", "c", "m"]), ("k", I64, [1])]
    bounds = {"iou": np.array([0.3], np.float32), "least": np.array([0.2], np.float32)}
    rng = np.random.default_rng(7)

    def asked(n: int, c: int, m: int, k: int) -> dict[str, np.ndarray]:
        boxes = rng.random((n, m, 4)).astype(np.float32)
        scores = np.round(rng.random((n, c, m)), 1).astype(np.float32)
        return {"b": boxes, "s": scores, "k": np.array([k])}

    sizes = [(2, 3, 9, 3), (1, 1, 150, 1 << 40), (2, 2, 30, 0), (1, 40, 1, 5)]
    agree(model(nodes, inputs, [("y", I64, None)], bounds), host, *(asked(*s) for s in sizes))
