"""Small models for tests of the JavaScript runtime, with numpy to say what they must give."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import BOOL, F16, F32, U8
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.frontends.onnx.loop_models import MODELS

Arrays = dict[str, np.ndarray]
MOST_ROWS = 64


@dataclass(frozen=True)
class SmallModel:
    """How it is compiled, and its outputs by numpy."""

    build: Callable[[], api.Executable]
    expected: Callable[[Arrays], Arrays]


def dense(seed: int, fp16: bool = False) -> SmallModel:
    """y = tanh(x w + b), z = softmax(y), for 1 to 64 rows of 16."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((16, 24)).astype(np.float32)
    bias = rng.standard_normal(24).astype(np.float32)

    def build() -> api.Executable:
        n = symbol("n", 1, MOST_ROWS)
        f = Function("main")
        product = f.call(OPS["matmul"], f.input("x", (n, 16), F32), f.constant("w", weights))
        y = f.call(OPS["tanh"], f.call(OPS["add"], product, f.constant("b", bias)))
        f.output("y", y)
        f.output("z", f.call(OPS["softmax"], y, axis=-1))
        return api.compile(f.module(), fp16=fp16)

    def expected(inputs: Arrays) -> Arrays:
        y = np.tanh(inputs["x"] @ weights + bias)
        exponentials = np.exp(y)
        return {"y": y, "z": exponentials / exponentials.sum(-1, keepdims=True)}

    return SmallModel(build, expected)


def narrow() -> SmallModel:
    """Elements of one and two bytes, any number of them."""

    def build() -> api.Executable:
        n = symbol("n", 0, 100)
        f = Function("main")
        bytes_, halves, flags = (
            f.input("u", (n,), U8),
            f.input("h", (n,), F16),
            f.input("b", (n,), BOOL),
        )
        f.output("u", f.call(OPS["add"], bytes_, f.constant("one", np.uint8(1))))
        f.output("h", f.call(OPS["neg"], halves))
        f.output("b", f.call(OPS["not"], flags))
        return api.compile(f.module())

    def expected(inputs: Arrays) -> Arrays:
        return {"u": inputs["u"] + np.uint8(1), "h": -inputs["h"], "b": ~inputs["b"]}

    return SmallModel(build, expected)


def found() -> SmallModel:
    """The places of positive elements: a size that is known only after a read in the middle."""

    def build() -> api.Executable:
        nodes = [
            helper.make_node("Greater", ["x", "zero"], ["positive"]),
            helper.make_node("NonZero", ["positive"], ["places"]),
        ]
        graph = helper.make_graph(
            nodes,
            "found",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n"])],
            [helper.make_tensor_value_info("places", TensorProto.INT64, [1, None])],
            [helper.make_tensor("zero", TensorProto.FLOAT, [], [0.0])],
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
        onnx.checker.check_model(model)
        return api.compile(model, dims={"n": (0, 100)})

    def expected(inputs: Arrays) -> Arrays:
        return {"places": np.stack(np.nonzero(inputs["x"] > 0))}

    return SmallModel(build, expected)


def integers() -> SmallModel:
    """y = (x - 3) w in integers, for rows of 64 bytes."""
    rng = np.random.default_rng(0)
    weights = rng.integers(-128, 128, (64, 48)).astype(np.int8)

    def build() -> api.Executable:
        f = Function("main")
        x = f.input("x", (symbol("n", 1, MOST_ROWS), 64), U8)
        w, zero = f.constant("w", weights), f.constant("zero", np.uint8(3))
        f.output("y", f.call(OPS["matmul_integer"], x, w, zero))
        return api.compile(f.module())

    def expected(inputs: Arrays) -> Arrays:
        return {"y": (inputs["x"].astype(np.int32) - 3) @ weights.astype(np.int32)}

    return SmallModel(build, expected)


def loops(name: str) -> SmallModel:
    """A loop whose length is a size, or that goes on until data say otherwise."""
    case = MODELS[name]()
    return SmallModel(lambda: api.compile(case.proto), case.expected)


SMALL = {
    "dense": dense(0),
    "half": dense(0, fp16=True),
    "other": dense(1),
    "narrow": narrow(),
    "found": found(),
    "integers": integers(),
    "scan": loops("scan"),
    "until": loops("until, with rows"),
}
