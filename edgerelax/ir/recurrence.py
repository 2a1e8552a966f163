"""What the templates `lstm`, `gru` and `rnn` mean: recurrent time loops over projected inputs.

Operands, named in this order by the parameter `operands` (those that are absent are left out); D
directions, T steps, B batch, H hidden, G gates (LSTM i, o, f, c; GRU z, r, h; RNN one):

    xw [D, T, B, G*H]   inputs times weights plus all biases (but `rb`)
    r [D, G*H, H]       recurrent weights
    rb [D, H]           GRU with linear_before_reset: bias of the hidden gate inside the reset
    h [D, B, H]         initial hidden state; zeros if absent
    c [D, B, H]         LSTM: initial cell; zeros if absent
    p [D, 3*H]          LSTM: peepholes i, o, f
    lengths [B]         steps of each sequence; T if absent

Results: y [T, D, B, H], zero after a sequence's end; h_n [D, B, H], the state after its last step
(the initial one for no step); LSTM also c_n [D, B, H].

Parameters: `directions`, one of 'forward' and 'reverse' for each of D; `activations`, (name, alpha,
beta) per direction and function (LSTM f, g, h; GRU f, g; RNN f); `clip`, a bound on what enters an
activation, or None; LSTM `input_forget`; GRU `linear_before_reset`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.kernel_interp import compute_type

Array = npt.NDArray[Any]
Activation = Callable[[Array], Array]

ACTIVATIONS: dict[str, Callable[[Array, float, float], Array]] = {
    "relu": lambda x, a, b: np.maximum(x, 0),
    "tanh": lambda x, a, b: np.tanh(x),
    "sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "affine": lambda x, a, b: a * x + b,
    "leaky_relu": lambda x, a, b: np.where(x < 0, a * x, x),
    "thresholded_relu": lambda x, a, b: np.where(x > a, x, 0),
    "scaled_tanh": lambda x, a, b: a * np.tanh(b * x),
    "hard_sigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "elu": lambda x, a, b: np.where(x < 0, a * np.expm1(x), x),
    "softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "softplus": lambda x, a, b: np.logaddexp(x, 0),
}


@dataclass(frozen=True, slots=True)
class _Cell:
    """One direction: its weights and functions."""

    weights: Array
    bias: Array | None
    peepholes: Array | None
    functions: tuple[Activation, ...]
    bound: Activation
    input_forget: bool
    linear_before_reset: bool


State = tuple[Array, Array]
Step = Callable[[_Cell, Array, State], State]


def _lstm(cell: _Cell, x: Array, state: State) -> State:
    h, c = state
    f, g, squash = cell.functions
    i, o, forget, new = np.split(x + h @ cell.weights.T, 4, axis=-1)
    if cell.peepholes is not None:
        p_i, p_o, p_f = np.split(cell.peepholes, 3)
        i, forget = i + p_i * c, forget + p_f * c
    i = f(cell.bound(i))
    forget = 1 - i if cell.input_forget else f(cell.bound(forget))
    c = forget * c + i * g(cell.bound(new))
    if cell.peepholes is not None:
        o = o + p_o * c
    return f(cell.bound(o)) * squash(cell.bound(c)), c


def _gru(cell: _Cell, x: Array, state: State) -> State:
    h, _ = state
    f, g = cell.functions
    size = h.shape[-1]
    gates = f(cell.bound(x[:, : 2 * size] + h @ cell.weights[: 2 * size].T))
    update, reset = gates[:, :size], gates[:, size:]
    if cell.linear_before_reset:
        inner = h @ cell.weights[2 * size :].T
        inner = reset * (inner if cell.bias is None else inner + cell.bias)
    else:
        inner = (reset * h) @ cell.weights[2 * size :].T
    new = g(cell.bound(x[:, 2 * size :] + inner))
    return (1 - update) * new + update * h, h


def _rnn(cell: _Cell, x: Array, state: State) -> State:
    h, _ = state
    return cell.functions[0](cell.bound(x + h @ cell.weights.T)), h


def _recurrence(step: Step, functions: int) -> Callable[..., tuple[Array, ...]]:
    """The template of a cell whose directions have that many functions each."""

    def run(
        *arrays: Array,
        operands: Sequence[str],
        directions: Sequence[str],
        activations: Sequence[tuple[str, float, float]],
        clip: float | None = None,
        input_forget: bool = False,
        linear_before_reset: bool = False,
    ) -> tuple[Array, ...]:
        given = dict(zip(operands, arrays, strict=True))
        xw, r = given["xw"], given["r"]
        held = compute_type(from_numpy(xw.dtype))
        time, batch, hidden = xw.shape[1], xw.shape[2], r.shape[2]
        lengths = given.get("lengths", np.full(batch, time))
        y = np.zeros((time, len(directions), batch, hidden), held)
        last = [np.zeros((len(directions), batch, hidden), held) for _ in range(2)]

        def bound(x: Array) -> Array:
            return x if clip is None else np.clip(x, -clip, clip)

        for d, direction in enumerate(directions):
            own = activations[d * functions : (d + 1) * functions]
            cell = _Cell(
                r[d].astype(held),
                given["rb"][d].astype(held) if "rb" in given else None,
                given["p"][d].astype(held) if "p" in given else None,
                tuple(_activation(*a) for a in own),
                bound,
                input_forget,
                linear_before_reset,
            )
            for k, name in enumerate(("h", "c")):
                if name in given:
                    last[k][d] = given[name][d]
            for t in range(time) if direction == "forward" else range(time - 1, -1, -1):
                state = step(cell, xw[d, t].astype(held), (last[0][d], last[1][d]))
                alive = (t < lengths)[:, None]
                y[t, d] = np.where(alive, state[0], 0)
                for k in range(2):
                    last[k][d] = np.where(alive, state[k], last[k][d])
        results = (y, *last) if step is _lstm else (y, last[0])
        return tuple(a.astype(xw.dtype) for a in results)

    return run


def _activation(name: str, alpha: float, beta: float) -> Activation:
    function = ACTIVATIONS[name]
    return lambda x: np.asarray(function(x, alpha, beta)).astype(x.dtype)


RECURRENCES: dict[str, Callable[..., tuple[Array, ...]]] = {
    "lstm": _recurrence(_lstm, 3),
    "gru": _recurrence(_gru, 2),
    "rnn": _recurrence(_rnn, 1),
}
