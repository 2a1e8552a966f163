"""Importers of recurrent layers: LSTM, GRU, RNN."""

import re
from collections.abc import Sequence

from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.registry import Result, importer
from edgerelax.ir.graph import Value
from edgerelax.ops.recurrent import SETTINGS, with_settings
from edgerelax.sym import Expr, as_expr

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
DIRECTIONS = {"forward": 1, "reverse": 1, "bidirectional": 2}


@importer("LSTM", since=7)
def _lstm(node: Node) -> Result:
    return _layer(node, states=2, peepholes=7, input_forget=bool(node.attr("input_forget")))


@importer("GRU", since=7)
def _gru(node: Node) -> Result:
    return _layer(node, states=1, linear_before_reset=bool(node.attr("linear_before_reset")))


@importer("RNN", since=7)
def _rnn(node: Node) -> Result:
    return _layer(node, states=1)


def _layer(node: Node, states: int, peepholes: int | None = None, **flags: bool) -> Result:
    batch_first = bool(node.attr("layout", 0))
    direction = node.attr("direction")
    if direction not in DIRECTIONS:
        raise node.bad(f"direction {direction!r}, not one of {', '.join(DIRECTIONS)}")
    count, gates = DIRECTIONS[direction], GATES[node.op]
    x, r = node.value(0), node.value(2)
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
    operands = [_fitted(node, k, wanted[k]) for k in range(1, 5)]
    begin = [_state(node, 5 + k, (count, batch, hidden), batch_first) for k in range(states)]
    if peepholes is not None:
        begin.append(_fitted(node, peepholes, wanted[7]))
    results = node.emit_all(
        node.op.lower(), x, *operands, *begin,
        direction=direction, activations=_activations(node), clip=node.attr("clip", None), **flags,
    )  # fmt: skip
    if not batch_first:
        return results
    perms = [(2, 0, 1, 3), *[(1, 0, 2)] * states]
    return [node.transpose(v, perm) for v, perm in zip(results, perms, strict=True)]


def _fitted(node: Node, k: int, dims: Sequence[Expr | int]) -> Value | None:
    value = node.input(k)
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
