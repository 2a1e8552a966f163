"""Time loops of LSTM, GRU and RNN cells over projected inputs (see ir/recurrence.py).

One kernel per direction. GPU: a workgroup per sequence, whose threads share the hidden units;
CPU: an iteration per sequence, whose hidden units go by fours: a load of the state serves four
rows of a gate, and the functions of the gates are of vectors. The state lives in the results
`h_n` and `c_n`; a step writes y from the old state, then, after a barrier, the state from y. Steps
past a sequence's end write zeros and keep the state.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from edgerelax.ir.dtypes import DType
from edgerelax.ir.kernel import LOCAL, WORKGROUP, Kernel, KExpr, KVec, i32
from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Buffer, Scalar, Value, cast, constant, op, select
from edgerelax.schedule.cost import LONGEST_ALONE
from edgerelax.schedule.reduce import Reduction, begin, fold_lanes, state_dtype
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body
from edgerelax.schedule.target import Target
from edgerelax.schedule.tile import multiply_add
from edgerelax.schedule.writer import plus
from edgerelax.sym import Axis, Expr, as_expr, divisible, proves_le

UNROLL = 4
"""Vectors of a product in one turn of its loop. Turns are what costs here, and drivers that run
on a CPU count them: llvmpipe leaves every loop after 65,535 turns in one invocation."""
GATES = 3
"""Gates whose products of four units a CPU sums at once: 12 sums, a state and a product, of which
each is a vector, are what 16 registers hold."""
Function = tuple[str, float, float]


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel per direction."""
    cells = [Cell.of(template, d) for d in range(len(template.params["directions"]))]
    kernels: list[Kernel] = []
    packed: list[Packed] = []
    for d, cell in enumerate(cells):
        panels = None if target.is_gpu else pack(cell, weights)
        if panels is not None:
            packed.append(panels)
        read_only = weights | {p.buffer.name for p in packed}
        loop = _Loop(cell, Body(target, read_only), None if panels is None else panels.buffer)
        kernels.append(loop.kernel(f"{name}_{d}" if d else name))
    temps = tuple(c.reset_h for c in cells if c.reset_h is not None)
    return Emitted(tuple(kernels), temps, tuple(packed))


@dataclass(frozen=True, slots=True)
class Cell:
    """One direction of a template."""

    kind: str
    direction: int
    reverse: bool
    operands: dict[str, Buffer]
    y: Buffer
    h: Buffer
    c: Buffer | None
    functions: tuple[Function, ...]
    clip: float | None
    input_forget: bool
    linear_before_reset: bool
    reset_h: Buffer | None

    @classmethod
    def of(cls, template: Template, direction: int) -> "Cell":
        """The cell of one direction, with the workspace it needs."""
        params: dict[str, Any] = template.params
        operands = dict(zip(params["operands"], template.inputs, strict=True))
        count = {"lstm": 3, "gru": 2, "rnn": 1}[template.kind]
        functions = params["activations"][direction * count : (direction + 1) * count]
        linear = bool(params.get("linear_before_reset", False))
        h = template.outputs[1]
        reset_h = None
        if template.kind == "gru" and not linear:
            reset_h = Buffer(f"{h.name}_reset_{direction}", h.dtype, h.dims[1:])
        return cls(
            template.kind,
            direction,
            params["directions"][direction] == "reverse",
            operands,
            template.outputs[0],
            h,
            template.outputs[2] if len(template.outputs) > 2 else None,
            tuple(functions),
            params.get("clip"),
            bool(params.get("input_forget", False)),
            linear,
            reset_h,
        )

    @property
    def dtype(self) -> DType:
        """The type that states are computed in."""
        return state_dtype("sum", self.operands["xw"].dtype)

    def activate(self, k: int, x: Scalar) -> Scalar:
        """The k-th function of what is clipped first."""
        name, alpha, beta = self.functions[k]
        if self.clip is not None:
            x = op("min", op("max", x, -self.clip), self.clip)
        return ACTIVATIONS[name](x, alpha, beta)


def pack(cell: Cell, weights: frozenset[str]) -> Packed | None:
    """The recurrent weights of a direction in the order in which the CPU reads them.

    As [units / 4, gate, states / 4, unit of four, state of four]; None where they are no weights
    or their units no whole fours.
    """
    r, hidden = cell.operands["r"], cell.y.dims[3].as_int()
    if r.name not in weights or not hidden or hidden % 4:
        return None
    panel, quad = (Axis(name, as_expr(hidden // 4)) for name in ("panel", "quad"))
    unit, lane = (Axis(name, as_expr(4)) for name in ("unit", "lane"))
    gate = Axis("gate", r.dims[1] // hidden)
    axes = (panel, gate, quad, unit, lane)
    row = gate.expr * hidden + panel.expr * 4 + unit
    value = r[as_expr(cell.direction), row, quad.expr * 4 + lane]
    out = Buffer(f"{r.name}_panels{cell.direction}", r.dtype, tuple(a.extent for a in axes))
    return Packed(LoopFunc(out.name, (r,), (out,), (Stage(out, axes, value),)))


def _softplus(x: Scalar) -> Scalar:
    return op("max", x, 0.0) + op("log1p", op("exp", -op("abs", x)))


ACTIVATIONS: dict[str, Callable[[Scalar, float, float], Scalar]] = {
    "relu": lambda x, a, b: op("max", x, 0.0),
    "tanh": lambda x, a, b: op("tanh", x),
    "sigmoid": lambda x, a, b: op("sigmoid", x),
    "affine": lambda x, a, b: x * a + b,
    "leaky_relu": lambda x, a, b: select(op("lt", x, 0.0), x * a, x),
    "thresholded_relu": lambda x, a, b: select(op("gt", x, a), x, constant(0.0, x.dtype)),
    "scaled_tanh": lambda x, a, b: op("tanh", x * b) * a,
    "hard_sigmoid": lambda x, a, b: op("min", op("max", x * a + b, 0.0), 1.0),
    "elu": lambda x, a, b: select(op("lt", x, 0.0), op("expm1", x) * a, x),
    "softsign": lambda x, a, b: x / (op("abs", x) + 1.0),
    "softplus": lambda x, a, b: _softplus(x),
}


class _Loop:
    """Writes the kernel of one direction."""

    def __init__(self, cell: Cell, body: Body, panels: Buffer | None) -> None:
        self.cell, self.body, self.panels = cell, body, panels
        self.w, self.s = body.w, body.s
        self.direction = as_expr(cell.direction)
        self.steps, _, self.batch, self.hidden = cell.y.dims
        self.sequence = body.bind("b", self.batch, WORKGROUP)
        self.group = _group(self.hidden, self.w.target.workgroup_size)

    def kernel(self, name: str) -> Kernel:
        self._units(self._start)
        self._barrier()
        with self.w.loop("t", i32(0), self.w.params.scalar(self.steps)) as t:
            turn = self.body.bind("t", self.steps, t)
            time = self.steps - 1 - turn if self.cell.reverse else as_expr(turn)
            alive = self._alive(time)
            if self.cell.reset_h is not None:
                self._units(lambda j: self._reset(time, j))
                self._barrier()
            self._units(lambda j: self._write(time, alive, j))
            self._barrier()
            self._units(lambda j: self._keep(time, alive, j))
            self._barrier()
        kind = "reverse" if self.cell.reverse else "forward"
        return self.w.kernel(name, self.batch, self.group, f"{self.cell.kind}, {kind}")

    def _barrier(self) -> None:
        if self.w.target.is_gpu:
            self.w.barrier()

    def _units(self, write: Callable[[Axis], None]) -> None:
        """For each hidden unit that this invocation owns."""
        gpu = self.w.target.is_gpu
        stop = self.w.params.scalar(self.hidden)
        if gpu:
            with self.w.loop("j", LOCAL, stop, step=self.group) as j:
                write(self.body.bind("j", self.hidden, j))
            return
        fours = self.w.params.scalar(self.hidden // 4 * 4)
        with self.w.loop("j", i32(0), fours, step=4) as j:
            four = Axis(self.w.fresh("j"), self.hidden)
            self.w.bind_vector(four, j)
            write(four)
        if not divisible(self.hidden, 4):
            with self.w.loop("j", fours, stop) as j:
                write(self.body.bind("j", self.hidden, j))

    # operands

    def _at(self, j: Axis) -> tuple[Expr, Expr, Expr]:
        return self.direction, as_expr(self.sequence), as_expr(j)

    def _load(self, buffer: Buffer, *index: Expr) -> Scalar:
        return cast(buffer[index], self.cell.dtype)

    def _projected(self, time: Expr, gate: int, j: Axis) -> Scalar:
        xw = self.cell.operands["xw"]
        row = self.hidden * gate + j
        return self._load(xw, self.direction, time, as_expr(self.sequence), row)

    def _alive(self, time: Expr) -> Scalar | None:
        """Whether the sequence reaches this step; None if all do."""
        lengths = self.cell.operands.get("lengths")
        if lengths is None:
            return None
        length = lengths[as_expr(self.sequence)]
        return op("lt", cast(Value(time), length.dtype), length)

    # phases

    def _start(self, j: Axis) -> None:
        for name, state in (("h", self.cell.h), ("c", self.cell.c)):
            if state is None:
                continue
            given = self.cell.operands.get(name)
            zero = constant(0.0, self.cell.dtype)
            value = zero if given is None else self._load(given, *self._at(j))
            self.body.store(state, self._at(j), value)

    def _keep(self, time: Expr, alive: Scalar | None, j: Axis) -> None:
        def keep() -> None:
            d, b, unit = self._at(j)
            self.body.store(self.cell.h, (d, b, unit), self._load(self.cell.y, time, d, b, unit))

        self._if(alive, keep)

    def _if(self, alive: Scalar | None, write: Callable[[], None]) -> None:
        if alive is None:
            write()
        else:
            with self.w.when(self.s.value(alive)):
                write()

    def _reset(self, time: Expr, j: Axis) -> None:
        """GRU: the state times the reset gate, which the hidden gate multiplies by its weights."""
        assert self.cell.reset_h is not None
        (inner,) = self._products(j, (1,), self._state)
        gate = self.cell.activate(0, self._projected(time, 1, j) + inner)
        old = self._load(self.cell.h, *self._at(j))
        self.body.store(self.cell.reset_h, self._at(j)[1:], gate * old)

    def _write(self, time: Expr, alive: Scalar | None, j: Axis) -> None:
        d, b, unit = self._at(j)
        at = (time, d, b, unit)
        if alive is not None:
            dead = op("not", alive)
            zero = constant(0.0, self.cell.dtype)
            with self.w.when(self.s.value(dead)):
                self.body.store(self.cell.y, at, zero)
        step = {"lstm": self._lstm, "gru": self._gru, "rnn": self._rnn}[self.cell.kind]
        self._if(alive, lambda: self.body.store(self.cell.y, at, step(time, j)))

    # cells

    def _rnn(self, time: Expr, j: Axis) -> Scalar:
        (inner,) = self._products(j, (0,), self._state)
        return self.cell.activate(0, self._projected(time, 0, j) + inner)

    def _gru(self, time: Expr, j: Axis) -> Scalar:
        cell = self.cell
        if cell.linear_before_reset:
            z_in, r_in, h_in = self._products(j, (0, 1, 2), self._state)
            reset = cell.activate(0, self._projected(time, 1, j) + r_in)
            if "rb" in cell.operands:
                h_in = h_in + self._load(cell.operands["rb"], self.direction, as_expr(j))
            inner = reset * h_in
        else:
            (z_in,) = self._products(j, (0,), self._state)
            (inner,) = self._products(j, (2,), self._reset_state)
        update = cell.activate(0, self._projected(time, 0, j) + z_in)
        new = cell.activate(1, self._projected(time, 2, j) + inner)
        old = self._load(cell.h, *self._at(j))
        return (1.0 - update) * new + update * old

    def _lstm(self, time: Expr, j: Axis) -> Scalar:
        cell = self.cell
        assert cell.c is not None
        sums = self._products(j, (0, 1, 2, 3), self._state)
        i, o, forget, new = (self._projected(time, g, j) + s for g, s in enumerate(sums))
        old = self._load(cell.c, *self._at(j))
        peepholes = cell.operands.get("p")
        if peepholes is not None:
            p_i, p_o, p_f = (
                self._load(peepholes, self.direction, self.hidden * k + j) for k in range(3)
            )
            i, forget = i + p_i * old, forget + p_f * old
        i = cell.activate(0, i)
        forget = 1.0 - i if cell.input_forget else cell.activate(0, forget)
        state = self._named(forget * old + i * cell.activate(1, new))
        self.body.store(cell.c, self._at(j), state)
        if peepholes is not None:
            o = o + p_o * state
        return cell.activate(0, o) * cell.activate(2, state)

    def _named(self, value: Scalar) -> Scalar:
        return self.body.held(self.s.value(value))

    # products of the state and recurrent weights

    def _state(self, k: Expr) -> Scalar:
        return self._load(self.cell.h, self.direction, as_expr(self.sequence), k)

    def _reset_state(self, k: Expr) -> Scalar:
        assert self.cell.reset_h is not None
        return self._load(self.cell.reset_h, as_expr(self.sequence), k)

    def _products(
        self, j: Axis, gates: Sequence[int], state: Callable[[Expr], Scalar]
    ) -> list[Scalar]:
        """Rows of the recurrent weights times the state: of one unit, or of each of four."""
        lanes = self.w.lanes(j)
        if lanes is None:
            return [self.body.held(dot) for dot in self._rows([(g, j) for g in gates], state)]
        sums: list[Scalar] = []
        most = 1 if self.panels is None else GATES
        for start in range(0, len(gates), most):
            some = gates[start : start + most]
            if self.panels is None:
                dots = self._rows([(g, unit) for g in some for unit in lanes.clones], state)
            else:
                dots = self._in_panels(self.panels, as_expr(lanes.clones[0]) // 4, some, state)
            for k in range(0, len(dots), 4):
                sums.append(self.body.held(KVec(dots[k].dtype, 4, tuple(dots[k : k + 4]))))
        return sums

    def _in_panels(
        self, panels: Buffer, panel: Expr, gates: Sequence[int], state: Callable[[Expr], Scalar]
    ) -> list[KExpr]:
        """The four rows of each gate in a panel times the state, all at once."""
        w, quads = self.w, self.hidden // 4
        lane = Axis(w.fresh("lane"), as_expr(4))
        w.bind_vector(lane, i32(0))
        totals = [begin(w, "sum", self.cell.dtype, lanes=4) for _ in gates for _ in range(4)]
        with w.loop("k", i32(0), w.params.scalar(quads)) as k:
            quad = self.body.bind("k", quads, k)
            old = self.s.value(state(quad.expr * 4 + lane))
            rows = ((as_expr(g), as_expr(unit)) for g in gates for unit in range(4))
            for total, (gate, unit) in zip(totals, rows, strict=True):
                at = panel, gate, as_expr(quad), unit, as_expr(lane)
                weight = self.s.value(self._load(panels, *at))
                (register,) = total.registers
                w.assign(register, multiply_add(weight, old, register))
        return [fold_lanes(w, total).registers[0] for total in totals]

    def _is_worth_text(self) -> bool:
        """Whether to write out several vectors: for speed, or to have fewer turns of the loop."""
        few = proves_le(self.steps * self.hidden, LONGEST_ALONE)
        return self.w.target.compiles_fast or not few

    def _rows(
        self, rows: Sequence[tuple[int, Axis]], state: Callable[[Expr], Scalar]
    ) -> list[KExpr]:
        """Rows, each of a gate and a unit, times the state: in vectors with a scalar tail."""
        w, r, hidden = self.w, self.cell.operands["r"], self.hidden

        def run(sums: list[Reduction], k: Axis) -> None:
            at = as_expr(k)
            for total, (gate, unit) in zip(sums, rows, strict=True):
                weight = self._load(r, self.direction, hidden * gate + unit, at)
                total.step(w, self.s.value(weight * state(at)))

        totals = [begin(w, "sum", self.cell.dtype) for _ in rows]
        done: KExpr = i32(0)
        if not w.target.is_gpu or divisible(hidden, 4):
            four = [begin(w, "sum", self.cell.dtype, lanes=4) for _ in rows]
            turn = 4 * (UNROLL if self._is_worth_text() else 1)
            for step in (turn,) if divisible(hidden, turn) else (turn, 4):
                end = w.params.scalar(hidden // step * step)
                with w.loop("k", done, end, step=step) as k:
                    for offset in range(0, step, 4):
                        axis = Axis(w.fresh("k"), hidden)
                        w.bind_vector(axis, plus(k, offset))
                        run(four, axis)
                done = end
            for total, part in zip(totals, four, strict=True):
                total.merge(w, fold_lanes(w, part).registers)
        if not divisible(hidden, 4):
            with w.loop("k", done, w.params.scalar(hidden)) as k:
                run(totals, self.body.bind("k", hidden, k))
        return [total.registers[0] for total in totals]


def _group(hidden: Expr, most: int) -> int:
    """Threads for so many units: as many as there are, in whole subgroups."""
    units = hidden.as_int()
    return most if units is None else min(most, -(-units // 32) * 32)
