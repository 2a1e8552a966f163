"""LSTM, GRU and simple RNN layers: inputs times weights as one contraction, then the time loop.

Layouts are ONNX's with layout 0: x [T, B, I], w [D, G*H, I], r [D, G*H, H], bias [D, 2*G*H],
lengths [B], h and c [D, B, H], p [D, 3*H]; results y [T, D, B, H], h_n [D, B, H] and c_n.
Gates are in ONNX's order. The loop itself is a template (ir/recurrence.py).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from edgerelax.ir.loop import LoopFunc, Stage, Template, axis, grid
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.recurrence import RECURRENCES
from edgerelax.ir.scalar import Acc, Buffer, Scalar, cast, compare, constant, select
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.lowering import wide
from edgerelax.ops.maps import (
    Dims,
    equal_dim,
    exprs,
    fail,
    inputs_of,
    loop_func,
    map_stage,
    outputs_of_site,
    tensor_of,
)
from edgerelax.ops.rules import FLOATS, INTEGERS, allowed, common_dtype
from edgerelax.sym import Expr, as_expr

Activation = tuple[str, float, float]

DIRECTIONS: dict[str, tuple[str, ...]] = {
    "forward": ("forward",),
    "reverse": ("reverse",),
    "bidirectional": ("forward", "reverse"),
}
SETTINGS: dict[str, tuple[float, float]] = {
    "relu": (0, 0),
    "tanh": (0, 0),
    "sigmoid": (0, 0),
    "softsign": (0, 0),
    "softplus": (0, 0),
    "leaky_relu": (0.01, 0),
    "thresholded_relu": (1.0, 0),
    "elu": (1.0, 0),
    "affine": (1.0, 0),
    "scaled_tanh": (1.0, 1.0),
    "hard_sigmoid": (0.2, 0.5),
}
"""Activations with the alpha and beta they have by default."""
_TAKES_ALPHA = ("leaky_relu", "thresholded_relu", "elu", "affine", "scaled_tanh", "hard_sigmoid")
_TAKES_BETA = ("affine", "scaled_tanh", "hard_sigmoid")


def with_settings(
    names: Sequence[str], alphas: Sequence[float], betas: Sequence[float]
) -> tuple[Activation, ...]:
    """Activations with their alpha and beta: given values go to those that take one, in order."""
    left, right = list(alphas), list(betas)
    found = []
    for name in names:
        alpha, beta = SETTINGS[name]
        if left and name in _TAKES_ALPHA:
            alpha = left.pop(0)
        if right and name in _TAKES_BETA:
            beta = right.pop(0)
        found.append((name, float(alpha), float(beta)))
    return tuple(found)


@dataclass(frozen=True, slots=True)
class Layer:
    """A kind of layer: its gates, its functions, and the operands of its template."""

    name: str
    gates: int
    activations: tuple[str, ...]
    states: tuple[str, ...]


LSTM = Layer("lstm", 4, ("sigmoid", "tanh", "tanh"), ("h", "c"))
GRU = Layer("gru", 3, ("sigmoid", "tanh"), ("h",))
RNN = Layer("rnn", 1, ("tanh",), ("h",))

_OPERANDS = ("x", "w", "r", "bias", "lengths", "h", "c", "p")


def _directions(site: CallSite) -> tuple[str, ...]:
    found = DIRECTIONS.get(site.attrs["direction"])
    if found is None:
        raise fail(
            site, f"direction {site.attrs['direction']!r}", f"one of {', '.join(DIRECTIONS)}"
        )
    return found


def _activations(site: CallSite, layer: Layer) -> tuple[Activation, ...]:
    """All directions' activations; the layer's usual ones if none are given."""
    count = len(_directions(site))
    given: tuple[Activation, ...] = tuple(site.attrs["activations"])
    if not given:
        return with_settings(layer.activations * count, (), ())
    if len(given) != count * len(layer.activations):
        raise fail(site, f"{len(given)} activations", f"{len(layer.activations)} per direction")
    unknown = [name for name, _, _ in given if name not in SETTINGS]
    if unknown:
        raise fail(site, f"activations {', '.join(unknown)}", f"known: {', '.join(SETTINGS)}")
    return given


# Annotations


def _infer(site: CallSite, layer: Layer) -> Annotation:
    directions = as_expr(len(_directions(site)))
    _activations(site, layer)
    named = dict(zip(site.op.operands, range(len(site.args)), strict=False))
    floats = [tensor_of(site, k) for name, k in named.items() if name != "lengths"]
    dtype = common_dtype(site, floats, FLOATS)
    lengths = tensor_of(site, named["lengths"]) if "lengths" in named else Tensor()
    if lengths.dtype is not None:
        allowed(site, lengths.dtype, INTEGERS)
    x, w, r = floats[:3]
    for name, tensor in zip("xwr", (x, w, r), strict=True):
        if tensor.rank not in (None, 3):
            raise fail(site, f"{name} has rank {tensor.rank}, not 3")
    if x.dims is None or w.dims is None or r.dims is None:
        states = [Tensor(None, dtype, 3)] * len(layer.states)
        return Tuple((Tensor(None, dtype, 4), *states))
    time, batch, inner = x.dims
    hidden = r.dims[2]
    for name, dims, last in (("w", w.dims, inner), ("r", r.dims, hidden)):
        wanted = (directions, hidden * layer.gates, last)
        for k, (dim, size) in enumerate(zip(dims, wanted, strict=True)):
            equal_dim(site, dim, size, f"dim {k} of {name} and what x and r ask for")
    shapes = {
        "bias": (directions, hidden * (2 * layer.gates)),
        "lengths": (batch,),
        "h": (directions, batch, hidden),
        "c": (directions, batch, hidden),
        "p": (directions, hidden * 3),
    }
    for name, k in named.items():
        if name in shapes:
            _check_dims(site, k, shapes[name])
    state = Tensor((directions, batch, hidden), dtype)
    result = Tensor((time, directions, batch, hidden), dtype)
    return Tuple((result, *[state] * len(layer.states)))


def _check_dims(site: CallSite, k: int, wanted: Dims) -> None:
    tensor, name = tensor_of(site, k), site.op.operands[k]
    if tensor.rank not in (None, len(wanted)):
        raise fail(site, f"{name} has rank {tensor.rank}, not {len(wanted)}")
    for j, (dim, size) in enumerate(zip(tensor.dims or wanted, wanted, strict=True)):
        equal_dim(site, dim, size, f"dim {j} of {name} and what x and r ask for")


# Lowering


def _lower(site: CallSite, layer: Layer) -> LoopFunc:
    given = dict(zip(site.op.operands, inputs_of(site), strict=False))
    x, w, r = given["x"], given["w"], given["r"]
    assert x is not None and w is not None and r is not None
    outs, hidden = outputs_of_site(site), r.dims[2]
    bias = given.get("bias")
    before_reset = bool(site.attrs.get("linear_before_reset", False))
    apart = hidden * 2 if before_reset else None
    projected = Buffer("xw", x.dtype, (w.dims[0], x.dims[0], x.dims[1], hidden * layer.gates))
    stages: list[Stage | Template] = [_project(projected, x, w, bias, apart)]
    operands: dict[str, Buffer | None] = {"xw": projected, "r": r}
    if before_reset and bias is not None:
        inner = Buffer("rb", x.dtype, (w.dims[0], hidden))
        stages.append(map_stage(inner, lambda at: bias[at[0], at[1] + hidden * 5]))
        operands["rb"] = inner
    operands |= {name: given.get(name) for name in ("h", "c", "p", "lengths")}
    present = {name: buffer for name, buffer in operands.items() if buffer is not None}
    params: dict[str, Any] = {
        "operands": tuple(present),
        "directions": _directions(site),
        "activations": _activations(site, layer),
        "clip": site.attrs["clip"],
        **{k: bool(site.attrs[k]) for k in _FLAGS[layer.name]},
    }
    stages.append(Template(layer.name, tuple(present.values()), outs, params))
    return loop_func(site, stages)


def _project(out: Buffer, x: Buffer, w: Buffer, bias: Buffer | None, apart: Expr | None) -> Stage:
    """Inputs times weights plus both biases; from gate row `apart` on only that of the inputs."""
    axes, step = grid(out), axis("k", x.dims[2])
    direction, time, batch, row = exprs(axes)
    dtype, k = wide(out.dtype), as_expr(step)
    body = cast(x[time, batch, k], dtype) * cast(w[direction, row, k], dtype)
    total: Scalar = Acc(dtype)
    if bias is not None:
        total = total + cast(bias[direction, row], dtype)
        recurrent: Scalar = cast(bias[direction, row + out.dims[3]], dtype)
        if apart is not None:
            recurrent = select(compare("lt", row, apart), recurrent, constant(0, dtype))
        total = total + recurrent
    return Stage(out, axes, body, (step,), "sum", epilogue=cast(total, out.dtype))


_FLAGS: dict[str, tuple[str, ...]] = {
    "lstm": ("input_forget",),
    "gru": ("linear_before_reset",),
    "rnn": (),
}


# Reference


def _reference(layer: Layer) -> Callable[..., tuple[Array, ...]]:
    def run(
        *arrays: Array | None,
        direction: str = "forward",
        activations: Sequence[Activation] = (),
        clip: float | None = None,
        **flags: bool,
    ) -> tuple[Array, ...]:
        given = {n: a for n, a in zip(_names(layer), arrays, strict=False) if a is not None}
        x, w, r = (given.pop(n) for n in "xwr")
        rows, hidden = r.shape[1], r.shape[2]
        projected = np.einsum("tbi,dgi->dtbg", x.astype(np.float64), w.astype(np.float64))
        bias = given.pop("bias", None)
        if bias is not None:
            total = bias[:, :rows] + bias[:, rows:]
            if flags.get("linear_before_reset"):
                total[:, 2 * hidden :] = bias[:, 2 * hidden : rows]
                given["rb"] = bias[:, rows + 2 * hidden :]
            projected = projected + total[:, None, None]
        operands = {"xw": projected.astype(x.dtype), "r": r, **given}
        directions = DIRECTIONS[direction]
        return RECURRENCES[layer.name](
            *operands.values(),
            operands=tuple(operands),
            directions=directions,
            activations=activations or with_settings(layer.activations * len(directions), (), ()),
            clip=clip,
            **flags,
        )

    return run


# Records


def _names(layer: Layer) -> tuple[str, ...]:
    return _OPERANDS if layer is LSTM else _OPERANDS[:6]


def _samples(layer: Layer) -> tuple[Sample, ...]:
    flags = [{}, *({f: True} for f in _FLAGS[layer.name])]
    return (
        *(Sample(_arrays(layer, 3, 2, 4, 5, 1, lengths=False), own) for own in flags),
        *(
            Sample(_arrays(layer, 4, 3, 2, 3, 2), {"direction": "bidirectional", **own})
            for own in flags
        ),
        Sample(_arrays(layer, 3, 2, 4, 2, 1), {"direction": "reverse", "clip": 0.3}),
        Sample(_arrays(layer, 2, 1, 3, 2, 1)[:3]),
        Sample(_arrays(layer, 0, 2, 3, 2, 1)),
        Sample(_arrays(layer, 2, 0, 3, 2, 1)),
        Sample(
            _arrays(layer, 2, 1, 3, 2, 1)[:4],
            {
                "activations": with_settings(
                    ("hard_sigmoid", "softsign", "leaky_relu")[: len(layer.activations)], (), ()
                )
            },
        ),
    )


def _arrays(
    layer: Layer, time: int, batch: int, inner: int, hidden: int, ways: int, lengths: bool = True
) -> tuple[Array | None, ...]:
    rows = hidden * layer.gates
    own = {
        "x": normal(time, batch, inner),
        "w": normal(ways, rows, inner, seed=1) * 0.5,
        "r": normal(ways, rows, hidden, seed=2) * 0.5,
        "bias": normal(ways, 2 * rows, seed=3),
        "lengths": np.arange(batch, dtype=np.int32) % (time + 1) if lengths else None,
        "h": normal(ways, batch, hidden, seed=4),
        "c": normal(ways, batch, hidden, seed=5),
        "p": normal(ways, 3 * hidden, seed=6),
    }
    return tuple(own[name] for name in _names(layer))


def _operator(layer: Layer) -> Operator:
    names = _names(layer)
    return Operator(
        layer.name,
        names,
        lambda site: _infer(site, layer),
        _reference(layer),
        lambda site: _lower(site, layer),
        attrs={
            "direction": "forward",
            "activations": (),
            "clip": None,
            **dict.fromkeys(_FLAGS[layer.name], False),
        },
        optional=len(names) - 3,
        samples=_samples(layer),
    )


OPERATORS = tuple(_operator(layer) for layer in (LSTM, GRU, RNN))
