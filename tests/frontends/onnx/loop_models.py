"""Models with loops whose length is a symbol or data, and what numpy makes of them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

from tests.frontends.onnx.graphs import model, node, value

Arrays = dict[str, np.ndarray]
INT, BOOL, HALF = TensorProto.INT64, TensorProto.BOOL, TensorProto.FLOAT16
WEIGHT = np.random.default_rng(0).standard_normal((4, 4)).astype(np.float32) / 2


@dataclass(frozen=True)
class LoopModel:
    """A model, inputs to run it on, what each run must give."""

    proto: onnx.ModelProto
    runs: list[Arrays]
    expected: Callable[[Arrays], Arrays]


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


def number(n: int) -> np.ndarray:
    return np.array(n, np.int64)


def graph(
    nodes: list[onnx.NodeProto], outputs: list[str], inputs: Sequence[onnx.ValueInfoProto] = ()
) -> onnx.GraphProto:
    """A body or an arm."""
    return helper.make_graph(nodes, "inner", inputs, [onnx.ValueInfoProto(name=o) for o in outputs])


def loop(
    inputs: list[str],
    outputs: list[str],
    nodes: list[onnx.NodeProto],
    *ins: onnx.ValueInfoProto,
    outs: list[str],
) -> onnx.NodeProto:
    """A Loop whose body takes a step's number `i`, the condition `c` and what is carried."""
    carried = [value("i", [], INT), value("c", [], BOOL), *ins]
    return node("Loop", inputs, outputs, body=graph(nodes, outs, carried))


def rnn(axis: int = 0, backwards: int = 0, out: int = 0, out_backwards: int = 0) -> LoopModel:
    """A recurrent layer as exporters write it where they have no operator for it."""
    body = graph(
        [
            node("MatMul", ["h", "W"], ["hw"]),
            node("Add", ["hw", "x"], ["s"]),
            node("Tanh", ["s"], ["next"]),
            node("Identity", ["next"], ["row"]),
        ],
        ["next", "row"],
        [value("h", ["b", 4]), value("x", ["b", 4])],
    )
    scan = node(
        "Scan", ["h0", "xs"], ["h", "rows"], body=body, num_scan_inputs=1,
        scan_input_axes=[axis], scan_input_directions=[backwards],
        scan_output_axes=[out], scan_output_directions=[out_backwards],
    )  # fmt: skip
    shape: list[str | int] = ["b", 4]
    shape.insert(axis, "t")
    proto = model([scan], [value("h0", ["b", 4]), value("xs", shape)], ["h", "rows"], {"W": WEIGHT})

    def expected(inputs: Arrays) -> Arrays:
        h, steps = inputs["h0"], list(np.moveaxis(inputs["xs"], axis, 0))
        rows = []
        for x in reversed(steps) if backwards else steps:
            h = np.tanh(h @ WEIGHT + x)
            rows.append(h)
        stacked = np.array(rows[::-1] if out_backwards else rows, np.float32)
        stacked = stacked.reshape(-1, *h.shape)
        return {"h": h, "rows": np.moveaxis(stacked, 0, out)}

    def run(steps: int) -> Arrays:
        dims = [3, 4]
        dims.insert(axis, steps)
        return {"h0": normal(3, 4), "xs": normal(*dims)}

    return LoopModel(proto, [run(t) for t in (7, 1, 13, 0, 2)], expected)


def swap() -> LoopModel:
    """As often as another input is long; two carried values trade places."""
    nodes = [
        node("Identity", ["b"], ["a2"]),
        node("Identity", ["a"], ["b2"]),
        node("Mul", ["a", "k"], ["row"]),
        node("Identity", ["c"], ["go"]),
    ]
    proto = model(
        [
            node("Shape", ["t"], ["ts"]),
            node("Squeeze", ["ts"], ["m"]),
            loop(["m", "", "x", "y"], ["p", "q", "rows"], nodes, value("a", ["n"]),
                 value("b", ["n"]), outs=["go", "a2", "b2", "row"]),
        ],
        [value("x", ["n"]), value("y", ["n"]), value("t", ["t"])],
        ["p", "q", "rows"],
        {"k": np.float32(0.5)},
    )  # fmt: skip

    def expected(inputs: Arrays) -> Arrays:
        a, b, rows = inputs["x"], inputs["y"], []
        for _ in inputs["t"]:
            rows.append(a * np.float32(0.5))
            a, b = b, a
        return {"p": a, "q": b, "rows": np.array(rows, np.float32).reshape(-1, len(a))}

    runs = [{"x": normal(4), "y": normal(4) + 1, "t": normal(t)} for t in (3, 0, 1, 2)]
    return LoopModel(proto, runs, expected)


def types() -> LoopModel:
    """Steps that are data; a counter that the host keeps; rows of one and two bytes an element."""
    nodes = [
        node("Add", ["v", "x"], ["w"]),
        node("Add", ["s", "one"], ["s2"]),
        node("Cast", ["v"], ["half"], to=HALF),
        node("Greater", ["v", "x"], ["more"]),
        node("Cast", ["s"], ["at"], to=TensorProto.FLOAT),
        node("Identity", ["c"], ["go"]),
    ]
    proto = model(
        [loop(["m", "", "x", "s0"], ["y", "s", "halves", "flags", "ats"], nodes,
              value("v", ["n"]), value("s", [], INT),
              outs=["go", "w", "s2", "half", "more", "at"])],
        [value("x", ["n"]), value("m", [], INT)],
        ["y", "s", "halves", "flags", "ats"],
        {"s0": number(100), "one": number(1)},
    )  # fmt: skip

    def expected(inputs: Arrays) -> Arrays:
        x, steps = inputs["x"], int(inputs["m"])
        v, halves, flags = x, [], []
        for _ in range(steps):
            halves.append(v.astype(np.float16))
            flags.append(v > x)
            v = v + x
        return {
            "y": v,
            "s": number(100 + max(steps, 0)),
            "halves": np.array(halves, np.float16).reshape(-1, len(x)),
            "flags": np.array(flags, bool).reshape(-1, len(x)),
            "ats": np.arange(100, 100 + max(steps, 0), dtype=np.float32),
        }

    runs = [{"x": normal(n), "m": number(t)} for n, t in ((3, 5), (1, 1), (5, 0), (5, -2))]
    return LoopModel(proto, runs, expected)


def until(limited: bool) -> LoopModel:
    """Doubled until the sum is large: steps that only the data know, with rows if limited."""
    nodes = [
        node("Add", ["v", "v"], ["w"]),
        node("ReduceSum", ["w"], ["s"], keepdims=0),
        node("Less", ["s", "limit"], ["go"]),
        node("Add", ["k", "one"], ["k2"]),
        node("Identity", ["w"], ["row"]),
    ]
    rows = ["row"] if limited else []
    proto = model(
        [loop(["m" if limited else "", "begin", "x", "zero"], ["y", "k", *(["rows"] * limited)],
              nodes, value("v", ["n"]), value("k", [], INT), outs=["go", "w", "k2", *rows])],
        [value("x", ["n"]), value("limit", []), value("begin", [], BOOL),
         *([value("m", [], INT)] * limited)],
        ["y", "k", *(["rows"] * limited)],
        {"zero": number(0), "one": number(1)},
    )  # fmt: skip

    def expected(inputs: Arrays) -> Arrays:
        v, rows, going = inputs["x"], [], bool(inputs["begin"])
        while going and len(rows) < inputs.get("m", 99):
            v = v + v
            rows.append(v)
            going = bool(v.sum() < inputs["limit"])
        stacked = {"rows": np.array(rows, np.float32).reshape(-1, len(v))} if limited else {}
        return {"y": v, "k": number(len(rows)), **stacked}

    cases = ((9, 100, True), (3, 1e6, True), (9, 1, True), (9, 50, False), (0, 50, True))
    runs = [
        {"x": np.ones(4, np.float32), "limit": np.float32(e), "begin": np.array(b), "m": number(m)}
        for m, e, b in cases
    ]
    if not limited:
        runs = [{k: v for k, v in run.items() if k != "m"} for run in runs]
    return LoopModel(proto, [{k: np.asarray(v) for k, v in run.items()} for run in runs], expected)


def nested() -> LoopModel:
    """A Loop of steps that are data, in it a Scan of a symbolic length, then an If on data."""
    sums = graph(
        [node("Add", ["acc", "r"], ["acc2"]), node("Identity", ["acc2"], ["o"])],
        ["acc2", "o"],
        [value("acc", [4]), value("r", [4])],
    )
    nodes = [
        node("Scan", ["v", "xs"], ["e", "os"], body=sums, num_scan_inputs=1),
        node("ReduceMax", ["os"], ["most"], keepdims=0),
        node("Greater", ["most", "limit"], ["big"]),
        node(
            "If", ["big"], ["w"],
            then_branch=graph([node("Mul", ["e", "half"], ["t"])], ["t"]),
            else_branch=graph([node("Add", ["e", "half"], ["f"])], ["f"]),
        ),
        node("Identity", ["os"], ["row"]),
        node("Identity", ["c"], ["go"]),
    ]  # fmt: skip
    proto = model(
        [loop(["m", "", "v0"], ["y", "rows"], nodes, value("v", [4]), outs=["go", "w", "row"])],
        [value("xs", ["n", 4]), value("m", [], INT), value("v0", [4]), value("limit", [])],
        ["y", "rows"],
        {"half": np.float32(0.5)},
    )

    def expected(inputs: Arrays) -> Arrays:
        v, xs, rows = inputs["v0"], inputs["xs"], []
        for _ in range(int(inputs["m"])):
            os = np.cumsum(np.concatenate([v[None], xs]), axis=0, dtype=np.float32)[1:]
            e = os[-1]
            rows.append(os)
            v = e * np.float32(0.5) if os.max() > inputs["limit"] else e + np.float32(0.5)
        return {"y": v, "rows": np.array(rows, np.float32).reshape(-1, *xs.shape)}

    runs = [
        {"xs": normal(n, 4), "m": number(t), "v0": normal(4), "limit": np.array(2, np.float32)}
        for n, t in ((3, 5), (1, 1), (5, 2), (2, 0))
    ]
    return LoopModel(proto, runs, expected)


def in_an_arm() -> LoopModel:
    """A loop in one arm of a branch."""
    twice = loop(["m", "", "x"], ["t"], [node("Add", ["v", "v"], ["w"]),
                 node("Identity", ["c"], ["go"])], value("v", ["n"]), outs=["go", "w"])  # fmt: skip
    choice = node(
        "If", ["p"], ["r"],
        then_branch=graph([twice], ["t"]), else_branch=graph([node("Neg", ["x"], ["f"])], ["f"]),
    )  # fmt: skip
    proto = model(
        [choice, node("Add", ["r", "x"], ["y"])],
        [value("x", ["n"]), value("m", [], INT), value("p", [], BOOL)],
        ["y"],
    )

    def expected(inputs: Arrays) -> Arrays:
        x = inputs["x"]
        return {"y": x + (x * 2.0 ** int(inputs["m"]) if inputs["p"] else -x).astype(np.float32)}

    cases = ((3, True), (3, False), (0, True))
    runs = [{"x": normal(5), "m": number(m), "p": np.array(p)} for m, p in cases]
    return LoopModel(proto, runs, expected)


def windows() -> LoopModel:
    """Slices at a carried integer: the host moves it, nothing is read back."""
    nodes = [
        node("Unsqueeze", ["j", "axis"], ["begin"]),
        node("Add", ["begin", "two"], ["end"]),
        node("Slice", ["x", "begin", "end", "axis"], ["part"]),
        node("Add", ["acc", "part"], ["acc2"]),
        node("Add", ["j", "one"], ["j2"]),
        node("Identity", ["c"], ["go"]),
    ]
    proto = model(
        [
            node("Shape", ["x"], ["xs"]),
            node("Squeeze", ["xs"], ["n"]),
            node("Sub", ["n", "one"], ["m"]),
            loop(["m", "", "acc0", "zero"], ["y", "j"], nodes, value("acc", [2]),
                 value("j", [], INT), outs=["go", "acc2", "j2"]),
        ],
        [value("x", ["n"])],
        ["y", "j"],
        {"axis": np.array([0]), "two": np.array([2]), "one": number(1), "zero": number(0),
         "acc0": np.zeros(2, np.float32)},
    )  # fmt: skip

    def expected(inputs: Arrays) -> Arrays:
        x = inputs["x"]
        return {
            "y": np.array([x[:-1].sum(), x[1:].sum()], np.float32),
            "j": number(len(x) - 1),
        }

    return LoopModel(proto, [{"x": normal(n)} for n in (7, 2, 1, 12)], expected)


MODELS: dict[str, Callable[[], LoopModel]] = {
    "scan": rnn,
    "scan along other axes, backwards": lambda: rnn(1, 1, -1, 1),
    "carried values that trade places": swap,
    "elements of all sizes": types,
    "until, with rows": lambda: until(limited=True),
    "until": lambda: until(limited=False),
    "nested": nested,
    "in an arm": in_an_arm,
    "windows": windows,
}


def check(found: Arrays, expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, want in expected.items():
        assert (found[name].dtype, found[name].shape) == (want.dtype, want.shape), name
        tolerance = 1e-2 if want.dtype == np.float16 else 1e-5
        np.testing.assert_allclose(found[name], want, rtol=tolerance, atol=1e-5, err_msg=name)
