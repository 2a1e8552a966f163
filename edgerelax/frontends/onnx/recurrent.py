"""Importers of recurrent layers: LSTM, GRU, RNN."""

import re
from collections.abc import Sequence

import numpy as np

from edgerelax.frontends.onnx.attention import MICROSOFT
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.packed_weights import Blocks, constant
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ops.recurrent import SETTINGS, with_settings
from edgerelax.sym import Expr, as_expr

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@importer("LSTM", since=7)
def _lstm(node: Node) -> Result:
    return _lstm_layer(node, (node.value(1), node.value(2)))


@importer("DynamicQuantizeLSTM", domain=MICROSOFT)
def _dynamic_quantize_lstm(node: Node) -> Result:
    """Only weights are in 8 bits, [directions, inputs, gates]; what they multiply stays f32."""
    w, r = (_quantised(node, k, scale) for k, scale in ((1, 8), (2, 10)))
    return _lstm_layer(node, (w, r))


def _lstm_layer(node: Node, weights: tuple[Value, Value]) -> Result:
    flags = {"input_forget": bool(node.attr("input_forget", 0))}
    return _layer(node, "LSTM", weights, states=2, peepholes=7, **flags)


def _quantised(node: Node, k: int, scale: int) -> Value:
    """Operand k by its scales and zero points, of directions or of gates, as they are stored."""
    codes = np.swapaxes(constant(node, k, "weights"), 1, 2)
    columns = (len(codes), -1, 1)
    scales, zeros = (
        np.broadcast_to(a.reshape(columns), (*codes.shape[:2], 1))
        for a in (constant(node, scale, "scales"), constant(node, scale + 1, "zero points"))
    )
    if codes.dtype == np.int8:
        codes, zeros = (np.asarray(a.astype(np.int16) + 128, np.uint8) for a in (codes, zeros))
    return Blocks(codes, codes.shape[2], scales, zeros, 8).emit(node)


@importer("GRU", since=7)
def _gru(node: Node) -> Result:
    flags = {"linear_before_reset": bool(node.attr("linear_before_reset"))}
    return _layer(node, "GRU", (node.value(1), node.value(2)), states=1, **flags)


@importer("RNN", since=7)
def _rnn(node: Node) -> Result:
    return _layer(node, "RNN", (node.value(1), node.value(2)), states=1)


def _layer(
    node: Node,
    kind: str,
    weights: tuple[Value, Value],
    states: int,
    peepholes: int | None = None,
    **flags: bool,
) -> Result:
    """A layer of a kind with the node's attributes and the weights of inputs and states."""
    batch_first = bool(node.attr("layout", 0))
    direction = node.attr("direction", "forward")
    if direction not in DIRECTIONS:
        raise node.bad(f"direction {direction!r}, not one of {', '.join(DIRECTIONS)}")
    count, gates = DIRECTIONS[direction], GATES[kind]
    x, (w, r) = node.value(0), weights
    if batch_first:
        x = node.transpose(x, (1, 0, 2))
    if node.rank(x) != 3 or node.rank(r) != 3:
        raise node.bad(f"X is {x.annotation}, R is {r.annotation}: both have rank 3")
    _, batch, inner = node.dims(x)
    hidden = as_expr(node.attr("hidden_size", node.dims(r)[2]))
    wanted: dict[int, Sequence[Expr | int]] = {
        1: (count, hidden * gates, inner),
        2: (count, hidden * gates, hidden),
        3: (count, hidden * (2 * gates)),
        4: (batch,),
        7: (count, hidden * 3),
    }
    given = (w, r, node.input(3), node.input(4))
    operands = [_fitted(node, v, wanted[k]) for k, v in enumerate(given, 1)]
    begin = [_state(node, 5 + k, (count, batch, hidden), batch_first) for k in range(states)]
    if peepholes is not None:
        begin.append(_fitted(node, node.input(peepholes), wanted[7]))
    results = node.emit_all(
        kind.lower(), x, *operands, *begin,
        direction=direction, activations=_activations(node), clip=node.attr("clip", None), **flags,
    )  # fmt: skip
    if not batch_first:
        return results
    perms = [(2, 0, 1, 3), *[(1, 0, 2)] * states]
    return [node.transpose(v, perm) for v, perm in zip(results, perms, strict=True)]


def _fitted(node: Node, value: Value | None, dims: Sequence[Expr | int]) -> Value | None:
    return None if value is None else node.with_dims(value, dims)


def _state(node: Node, k: int, dims: tuple[int, Expr, Expr], batch_first: bool) -> Value | None:
    """An initial state, its directions first."""
    value = node.input(k)
    if value is None:
        return None
    return node.with_dims(node.transpose(value, (1, 0, 2)) if batch_first else value, dims)


def _activations(node: Node) -> tuple[tuple[str, float, float], ...]:
    given = node.attr("activations", ())
    names = tuple(_name(a) for a in given)
    unknown = [a for a, name in zip(given, names, strict=True) if name not in SETTINGS]
    if unknown:
        raise node.unsupported(f"activations {', '.join(unknown)}", f"known: {', '.join(SETTINGS)}")
    alphas, betas = node.attr("activation_alpha", ()), node.attr("activation_beta", ())
    return with_settings(names, alphas, betas)


def _name(activation: str) -> str:
    """ScaledTanh as scaled_tanh; onnxruntime takes any case."""
    known = {name.replace("_", ""): name for name in SETTINGS}
    plain = re.sub(r"[^a-z]", "", activation.lower())
    return known.get(plain, activation)
