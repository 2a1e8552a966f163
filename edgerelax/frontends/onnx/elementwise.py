"""Importers of element-wise operators: arithmetic, comparisons, logic, activations, casts."""

from edgerelax.frontends.onnx.broadcasting import broadcast_call
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Handler, Result, importer, register
from edgerelax.ir.dtypes import BOOL, DTYPES, STRING, DType
from edgerelax.ir.graph import Value

UNARY = {
    "Abs": "abs", "Neg": "neg", "Sign": "sign", "Floor": "floor", "Ceil": "ceil", "Round": "round",
    "Sqrt": "sqrt", "Reciprocal": "reciprocal", "Exp": "exp", "Log": "log", "Erf": "erf",
    "Sin": "sin", "Cos": "cos", "Tan": "tan", "Asin": "asin", "Acos": "acos", "Atan": "atan",
    "Sinh": "sinh", "Cosh": "cosh", "Tanh": "tanh", "Asinh": "asinh", "Acosh": "acosh",
    "Atanh": "atanh", "Sigmoid": "sigmoid", "Relu": "relu", "Softplus": "softplus",
    "Softsign": "softsign", "Mish": "mish", "HardSwish": "hard_swish", "Not": "not",
    "BitwiseNot": "bitwise_not", "IsNaN": "isnan",
}  # fmt: skip

WITH_ATTRS = {
    "LeakyRelu": ("leaky_relu", ("alpha",)),
    "Elu": ("elu", ("alpha",)),
    "Selu": ("selu", ("alpha", "gamma")),
    "Celu": ("celu", ("alpha",)),
    "ThresholdedRelu": ("thresholded_relu", ("alpha",)),
    "HardSigmoid": ("hard_sigmoid", ("alpha", "beta")),
    "Shrink": ("shrink", ("lambd", "bias")),
    "Gelu": ("gelu", ("approximate",)),
    "Swish": ("swish", ("alpha",)),
}

BINARY = {
    "Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Pow": "pow", "PRelu": "prelu",
    "Equal": "eq", "Less": "lt", "LessOrEqual": "le", "Greater": "gt", "GreaterOrEqual": "ge",
    "And": "and", "Or": "or", "Xor": "xor",
    "BitwiseAnd": "bitwise_and", "BitwiseOr": "bitwise_or", "BitwiseXor": "bitwise_xor",
}  # fmt: skip

VARIADIC = {"Max": "max", "Min": "min", "Sum": "add"}


def _unary(op: str, attrs: tuple[str, ...] = ()) -> Handler:
    return lambda node: node.emit(op, node.value(0), **{a: node.attr(a) for a in attrs})


def _binary(op: str) -> Handler:
    return lambda node: broadcast_call(node, op, node.value(0), node.value(1))


def _variadic(op: str) -> Handler:
    return lambda node: folded_call(node, op, *node.values())


def folded_call(node: Node, op: str, *values: Value) -> Value:
    """A binary operator over several operands, from the left."""
    result = values[0]
    for value in values[1:]:
        result = broadcast_call(node, op, result, value)
    return result


for _name, _op in UNARY.items():
    register(_name, _unary(_op))
for _name, (_op, _attrs) in WITH_ATTRS.items():
    register(_name, _unary(_op, _attrs))
for _name, _op in BINARY.items():
    register(_name, _binary(_op))
for _name, _op in VARIADIC.items():
    register(_name, _variadic(_op))


@importer("Mean")
def _mean(node: Node) -> Result:
    values = node.values()
    total = folded_call(node, "add", *values)
    return node.emit("div", total, node.scalar(len(values), node.dtype(total)))


@importer("Mod")
def _mod(node: Node) -> Result:
    return broadcast_call(node, "fmod" if node.attr("fmod") else "mod", *node.values())


@importer("BitShift")
def _bit_shift(node: Node) -> Result:
    """Signed integers shift as their bits do to the left, arithmetically to the right."""
    direction, (x, count) = node.attr("direction"), node.values()
    if direction not in ("LEFT", "RIGHT"):
        raise node.bad(f"direction {direction!r}, not LEFT or RIGHT")
    op, signed = f"shift_{direction.lower()}", node.dtype(x)
    if signed.kind == "uint":
        return broadcast_call(node, op, x, count)
    unsigned = DTYPES[f"u{signed.bits}"]
    bits, count = node.cast(x, unsigned), node.cast(count, unsigned)
    if direction == "LEFT":
        return node.cast(broadcast_call(node, op, bits, count), signed)
    negative = node.emit("lt", x, node.scalar(0, signed))
    flipped = node.emit("where", negative, node.emit("bitwise_not", bits), bits)
    shifted = broadcast_call(node, op, flipped, count)
    back = broadcast_call(node, "where", negative, node.emit("bitwise_not", shifted), shifted)
    return node.cast(back, signed)


@importer("Where")
def _where(node: Node) -> Result:
    return broadcast_call(node, "where", *node.values())


@importer("IsInf")
def _is_inf(node: Node) -> Result:
    sides = {a: bool(node.attr(a)) for a in ("detect_negative", "detect_positive")}
    return node.emit("isinf", node.value(0), **sides)


@importer("Clip", since=6)
def _clip_attributes(node: Node) -> Result:
    x = node.value(0)
    dtype = node.dtype(x)
    limits = (
        node.scalar(node.attr(a), dtype) if node.has_attr(a) else None for a in ("min", "max")
    )
    return node.emit("clip", x, *limits)


@importer("Clip", since=11)
def _clip(node: Node) -> Result:
    return node.emit("clip", node.value(0), _one(node, 1), _one(node, 2))


def _one(node: Node, k: int) -> Value | None:
    """An optional operand of one element, as a scalar."""
    value = node.input(k)
    return None if value is None else node.reshape(value, ())


@importer("Cast")
def _cast(node: Node) -> Result:
    return cast(node, node.value(0), node.dtype_attr("to"))


@importer("CastLike")
def _cast_like(node: Node) -> Result:
    return cast(node, node.value(0), node.dtype(node.value(1)))


def cast(node: Node, value: Value, dtype: DType) -> Value:
    """A conversion. Sizes that took a way through floats are known integers again."""
    if STRING in (dtype, node.dtype(value)) and dtype != node.dtype(value):
        raise node.unsupported(f"a cast from {node.dtype(value)} to {dtype}")
    if node.attr("round_mode", "up") != "up":
        raise node.unsupported(f"round_mode {node.attr('round_mode')!r}")
    if dtype.is_integer and node.dtype(value).is_float:
        known = node.walk.constants.whole(value)
        if known is not None:
            return node.integers(known, dtype, node.rank(value))
    saturate = bool(node.attr("saturate", 1))
    return node.emit("cast", value, dtype=dtype, saturate=saturate)


@importer("Identity")
def _identity(node: Node) -> Result:
    return (node.inputs[0],)


@importer("Dropout")
def _dropout(node: Node) -> Result:
    """Inference: the operand itself. Training is random unless the ratio is 0."""
    x = node.value(0)
    training, ratio = node.constant(node.input(2)), node.constant(node.input(1))
    may_train = node.input(2) is not None and (training is None or bool(training.item()))
    if may_train and (ratio is None or float(ratio.item()) != 0):
        raise node.unsupported("training mode", "export the model for inference")
    mask = None
    if node.wants(1):
        mask = node.emit("full", dims=node.dims(x), value=True, dtype=BOOL)
    return x, mask
