"""Tokens drawn from rows of logits: one kernel, a workgroup or a CPU iteration for each row.

The weights are computed once, into a workspace whose rows are filled up to fours with zeros. What
top-k and top-p keep is found without sorting: weights lie in [0, 1], where floats are in the order
of their bits, so the least one that is kept is narrowed down over the integers that those bits are.
Each pass sums up, for a few bounds at once, how many weights reach a bound, or what these hold;
after 30 bits it is exact. The draw is a race between the kept ones (ir/token_sampling.py), so
nothing depends on which invocation has which token.

Passes that a row does not need (top-k off, temperature 0) run over nothing. Batches that are all
greedy have a kernel of their own.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from edgerelax.ir.dtypes import F32, I32, U32
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    KBits,
    KCast,
    KConst,
    Kernel,
    KExpr,
    KLane,
    KSelect,
    KVar,
    KVec,
    f32,
    i32,
    kop,
)
from edgerelax.ir.loop import Template
from edgerelax.ir.scalar import Buffer, Scalar, cast, constant, op, select
from edgerelax.ir.token_sampling import (
    BELOW_ONE,
    GOLDEN,
    LARGEST,
    LAST_SHIFT,
    MIN_P,
    MIX,
    SEED,
    TEMPERATURE,
    TOP_K,
    TOP_P,
)
from edgerelax.schedule.partials import combine
from edgerelax.schedule.reduce import Reduction, begin, fold_lanes, lanes_of, splat
from edgerelax.schedule.strategies.base import Emitted
from edgerelax.schedule.strategies.templates.grids import Body
from edgerelax.schedule.strategies.templates.ordering import index_of
from edgerelax.schedule.target import Target
from edgerelax.schedule.writer import Writer, plus
from edgerelax.sym import Axis, Expr, ceildiv, divisible, proves_le

_ONE = 0x3F800000  # the bits of 1.0
_BLOCK = 1024  # terms that one invocation adds up before it adds them to the rest of a row's
_UNROLL = 4
_SOME = 2.0**-126  # of top-p 0: the most likely token still stays

Write = Callable[[Axis], None]


def emit(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel and the workspace of the weights."""
    body = Body(target, weights)
    row = _Draw(template, body, _threads(template, target))
    return Emitted((row.kernel(name),), (row.e,))


def emit_greedy(template: Template, name: str, weights: frozenset[str], target: Target) -> Emitted:
    """One kernel that reads the row twice."""
    row = _Greedy(template, Body(target, weights), _threads(template, target))
    return Emitted((row.kernel(name, template.outputs[0]),))


def _threads(template: Template, target: Target) -> int:
    """Few where barriers are slow, but then lavapipe ends a shader's loops after 65,535 turns."""
    if not target.is_gpu:
        return 1
    if target.has_fast_barriers:
        return target.workgroup_size
    return 16 if proves_le(template.inputs[0].dims[1], 1 << 16) else 64


@dataclass(frozen=True, slots=True)
class _Totals:
    """Several sums, for `combine`."""

    registers: tuple[KVar, ...]

    def over(self, registers: tuple[KVar, ...]) -> "_Totals":
        return _Totals(registers)

    def merge(self, w: Writer, other: tuple[KExpr, ...]) -> None:
        for register, value in zip(self.registers, other, strict=True):
            w.assign(register, kop("add", register, value))


class _Sums:
    """Sums of a pass over a row, in four lanes each.

    Where one invocation has the whole row it sums up blocks: beside a large weight many small ones
    would be lost one by one.
    """

    def __init__(self, w: Writer, count: int, threads: int) -> None:
        self.w, self.threads = w, threads
        self.totals = [w.var("sum", _ZEROS) for _ in range(count)]
        self.parts = self.totals if threads > 1 else [w.var("part", _ZEROS) for _ in range(count)]

    def add(self, k: int, value: KExpr) -> None:
        """Add four terms, or one, which belongs to no block."""
        register = self.parts[k]
        if value.lanes == 1:
            register = self.totals[k]
            value = KVec(F32, 4, (value, f32(0.0), f32(0.0), f32(0.0)))
        self.w.assign(register, kop("add", register, value))

    def begin_block(self) -> None:
        for part in self.parts:
            self.w.assign(part, _ZEROS)

    def end_block(self) -> None:
        for total, part in zip(self.totals, self.parts, strict=True):
            self.w.assign(total, kop("add", total, part))

    def whole(self) -> tuple[KVar, ...]:
        """The sums over the row, the same for all invocations."""
        folded = [fold_lanes(self.w, Reduction("sum", F32, (t,))) for t in self.totals]
        state = _Totals(tuple(f.registers[0] for f in folded))
        return (combine(self.w, state, self.threads) if self.threads > 1 else state).registers


_ZEROS = KConst(F32, 4, 0.0)


class _Row:
    """What writes kernels whose invocations share a row of logits."""

    def __init__(self, template: Template, body: Body, threads: int) -> None:
        self.body, self.w, self.s, self.threads = body, body.w, body.s, threads
        self.x = template.inputs[0]
        self.rows, self.length = self.x.dims
        self.row = body.bind("row", self.rows, WORKGROUP)

    # passes over a row

    def _quads(
        self, stop: Expr, write: Write, sums: _Sums | None = None, on: KExpr | None = None
    ) -> None:
        """Four elements after another up to a multiple of 4; none of them if not `on`."""
        w = self.w

        def end(size: Expr) -> KExpr:
            known = w.params.scalar(size)
            return known if on is None else w.let("end", _choose(on, known, i32(0)))

        def four(base: KExpr) -> None:
            axis = Axis(w.fresh("i"), stop)
            w.bind_vector(axis, w.let("b", base))
            write(axis)

        if self.threads == 1:
            most = end(stop)
            with w.loop("block", i32(0), most, step=_BLOCK) as block:
                if sums is not None:
                    sums.begin_block()
                last = w.let("end", kop("min", plus(block, _BLOCK), most))
                with w.loop("i", block, last, step=4) as i:
                    four(i)
                if sums is not None:
                    sums.end_block()
            return
        span = 4 * self.threads
        unroll = _UNROLL if self.w.target.has_fast_barriers else 1
        chunk = span * unroll
        full = stop // chunk * chunk
        first = w.share("b", kop("mul", LOCAL, i32(4)))
        if full.as_int() != 0:
            with w.loop("i", first, end(full), step=chunk) as i:
                for k in range(unroll):
                    four(plus(i, k * span))
        if full.as_int() is None or full.as_int() != stop.as_int():
            start = w.let("b", kop("add", w.params.scalar(full), first))
            with w.loop("i", start, end(stop), step=span) as i:
                four(i)

    def _tail(self, stop: Expr, write: Callable[[KExpr], None]) -> None:
        """The elements after the last whole four, up to `stop`."""
        if divisible(self.length, 4):
            return
        start = self.w.params.scalar(self.length // 4 * 4)
        if self.threads > 1:
            start = self.w.let("b", kop("add", start, LOCAL))
        with self.w.loop("i", start, self.w.params.scalar(stop), step=self.threads) as i:
            write(i)

    def _logit(self, source: Buffer, at: Expr | Axis) -> Scalar:
        """Infinities as the largest numbers, NaN as -inf."""
        x = cast(source[self.row, at], F32)
        held = op("max", op("min", x, LARGEST), -LARGEST)
        return self.body.held(self.s.value(select(op("isnan", x), constant(-LARGEST, F32), held)))

    def _greatest(self, source: Buffer) -> Scalar:
        w = self.w
        most = begin(w, "max", F32, lanes=4, init=f32(-LARGEST))

        def take(axis: Axis) -> None:
            most.step(w, self.s.value(self._logit(source, axis)))

        self._quads(self.length // 4 * 4, take)
        self._tail(self.length, lambda i: take(self.body.bind("i", self.length, i)))
        whole = fold_lanes(w, most)
        if self.threads > 1:
            whole = combine(w, whole, self.threads)
        return self.body.held(whole.registers[0])

    def _by_one(self, write: Callable[[], None]) -> None:
        """What one invocation does for the row."""
        if self.threads == 1:
            write()
            return
        with self.w.when(kop("eq", LOCAL, i32(0))):
            write()


class _Greedy(_Row):
    """The kernel of the most likely tokens: the greatest logit, then where it is first."""

    def kernel(self, name: str, tokens: Buffer) -> Kernel:
        w = self.w
        most = self._greatest(self.x)
        first = begin(w, "min", I32)
        (place,) = first.registers

        def take(axis: Axis) -> None:
            equal = self.s.value(op("ge", self._logit(self.x, axis), most))
            bound = w.lanes(axis)
            if bound is None:
                index = self.s.index.value(axis.expr)
                w.assign(place, _choose(equal, kop("min", place, index), place))
                return
            a, b, c, d = lanes_of(w.let("is", equal))
            with w.when(kop("or", kop("or", a, b), kop("or", c, d))):
                for lane, index in zip((a, b, c, d), bound.parts, strict=True):
                    w.assign(place, _choose(lane, kop("min", place, index), place))

        self._quads(self.length // 4 * 4, take)
        self._tail(self.length, lambda i: take(self.body.bind("i", self.length, i)))
        whole = combine(w, first, self.threads) if self.threads > 1 else first
        token = whole.registers[0]
        self._by_one(lambda: self.body.store(tokens, (self.row,), self.body.held(token)))
        return w.kernel(name, self.rows, self.threads, "most likely tokens, a row each")


class _Draw(_Row):
    """The kernel that draws."""

    def __init__(self, template: Template, body: Body, threads: int) -> None:
        super().__init__(template, body, threads)
        self.cuts = 3 if threads > 1 else 1  # passes are dear where they end in barriers
        _, self.numbers, self.integers, self.steps, *others = template.inputs
        self.raw = others[0] if others else self.x
        self.tokens, self.logs = template.outputs
        self.filled = ceildiv(self.length, 4) * 4
        self.e = Buffer(f"{self.tokens.name}_weights", F32, (self.rows, self.filled))
        self.temperature, self.top_p, self.min_p = (
            self.body.held(self.s.value(self.numbers[self.row, k]))
            for k in (TEMPERATURE, TOP_P, MIN_P)
        )
        self.warm = op("gt", self.temperature, 0.0)

    def kernel(self, name: str) -> Kernel:
        w = self.w
        most = self._greatest(self.x)
        most_raw = most if self.raw is self.x else self._greatest(self.raw)
        total = self._weigh(most, most_raw)
        best = self._race(self._least())
        self._by_one(lambda: self._finish(best, most_raw, total))
        return w.kernel(name, self.rows, self.threads, "tokens drawn, a row each")

    def _weigh(self, most: Scalar, most_raw: Scalar) -> Scalar:
        """Store the weights; gives the sum of the exponentials of what is raw."""
        w, s = self.w, self.s
        sums = _Sums(w, 1, self.threads)
        divisor = self.body.held(s.value(select(self.warm, self.temperature, constant(1.0, F32))))

        def exponential(source: Buffer, axis: Axis, scaled: Callable[[Scalar], Scalar]) -> Scalar:
            x = self._logit(source, axis)
            return select(op("gt", x, -LARGEST), scaled(x), constant(0.0, F32))

        def weight(x: Scalar) -> Scalar:
            off = x - most
            cold = select(op("ge", off, 0.0), constant(1.0, F32), constant(0.0, F32))
            return select(self.warm, op("exp", off / divisor), cold)

        def put(axis: Axis) -> None:
            self.body.store(self.e, (self.row, axis), exponential(self.x, axis, weight))
            term = exponential(self.raw, axis, lambda x: op("exp", x - most_raw))
            sums.add(0, s.value(term))

        def put_rest(i: KExpr) -> None:
            axis = self.body.bind("i", self.filled, i)
            w.branch(
                kop("lt", i, w.params.scalar(self.length)),
                lambda: put(axis),
                lambda: self.body.store(self.e, (self.row, axis), constant(0.0, F32)),
            )

        self._quads(self.length // 4 * 4, put, sums)
        self._tail(self.filled, put_rest)
        if self.threads > 1:
            w.barrier()
        return self.body.held(sums.whole()[0])

    def _sums_of(
        self, count: int, terms: Callable[[KExpr], Sequence[KExpr]], on: KExpr
    ) -> tuple[KVar, ...]:
        """Sums over the row of what each four weights give."""
        sums = _Sums(self.w, count, self.threads)

        def take(axis: Axis) -> None:
            e = self.w.let("e", self.s.value(self.e[self.row, axis]))
            for k, term in enumerate(terms(e)):
                sums.add(k, term)

        self._quads(self.filled, take, sums, on)
        return sums.whole()

    # the least weight that is kept

    def _least(self) -> KExpr:
        w, s = self.w, self.s
        top_k = self.integers[self.row, TOP_K]
        few = w.let("on", s.value(op("and", self.warm, op("gt", top_k, 0))))
        ones = KConst(F32, 4, 1.0)
        low = self._narrow(lambda e: ones, s.value(cast(top_k, F32)), few, i32(0))
        nucleus = w.let("on", s.value(op("and", self.warm, op("lt", self.top_p, 1.0))))
        start = w.let("least", KBits(F32, 1, low))
        (mass,) = self._sums_of(1, lambda e: [_reaching(e, start, e)], nucleus)
        share = w.let("p", kop("max", kop("mul", s.value(self.top_p), mass), f32(_SOME)))
        low = self._narrow(lambda e: e, share, nucleus, low)
        relative = w.let("p", s.value(op("min", self.min_p, 1.0)))
        return w.let("least", kop("max", KBits(F32, 1, low), relative))

    def _narrow(self, term: Callable[[KExpr], KExpr], enough: KExpr, on: KExpr, low: KExpr) -> KVar:
        """The bits of the greatest bound, from `low`, that weights of `enough` (> 0) reach."""
        w, parts = self.w, self.cuts + 1
        least, above = w.var("low", low), w.var("high", i32(_ONE + 1))
        passes = math.ceil(30 / math.log2(parts))
        with w.loop("pass", i32(0), i32(passes)):
            width = kop("add", kop("sub", above, least), i32(self.cuts))
            step = w.let("step", kop("index_div", width, i32(parts)))
            marks = [w.let("mark", kop("add", least, step))]
            marks += [
                w.let("mark", kop("add", least, kop("mul", step, i32(k)))) for k in range(2, parts)
            ]
            bounds = [w.let("bound", KBits(F32, 1, m)) for m in marks]
            found = self._sums_of(
                self.cuts, lambda e: [_reaching(e, bound, term(e)) for bound in bounds], on
            )
            for mark, total in zip(marks, found, strict=True):
                reached = w.let("is", kop("and", on, kop("ge", total, enough)))
                higher, lower = kop("max", least, mark), kop("min", above, mark)
                w.assign(least, _choose(reached, higher, least))
                w.assign(above, _choose(reached, above, lower))
        return least

    # the draw

    def _race(self, least: KExpr) -> Reduction:
        """The token that comes first, with the inverse of its time."""
        w = self.w
        warm = w.let("warm", self.s.value(self.warm))
        best = begin(w, "argmax", F32, init=f32(0.0))
        first, second = self._keys()

        def take(axis: Axis) -> None:
            bound = w.lanes(axis)
            assert bound is not None
            e = w.let("e", self.s.value(self.e[self.row, axis]))
            kept = w.let("kept", _reaching(e, least, e))
            a, b, c, d = lanes_of(kept)
            some = kop("gt", kop("max", kop("max", a, b), kop("max", c, d)), f32(0.0))
            with w.when(some):
                ids = w.let("id", KVec(best.registers[1].dtype, 4, bound.parts))
                u = self._uniforms(ids, first, second)
                for k in range(4):
                    one, number = (
                        w.let("e", KLane(F32, 1, kept, k)),
                        w.let("u", KLane(F32, 1, u, k)),
                    )
                    # -log(1 - u) is no less than u: most need no logarithm
                    with w.when(kop("gt", one, kop("mul", best.registers[0], number))):
                        time = kop("neg", kop("log1p", kop("neg", number)))
                        speed = _choose(warm, kop("div", one, time), one)
                        best.step(w, speed, bound.parts[k])

        self._quads(self.filled, take)
        return combine(w, best, self.threads) if self.threads > 1 else best

    def _keys(self) -> tuple[KExpr, KExpr]:
        w, s = self.w, self.s
        seed = w.let("seed", s.value(cast(self.integers[self.row, SEED], U32)))
        step = w.let("step", s.value(cast(self.steps[self.row], U32)))
        golden = KConst(U32, 1, GOLDEN)
        first = self._mix(kop("add", step, self._mix(seed)))
        second = self._mix(kop("add", seed, self._mix(kop("bit_xor", step, golden))))
        return first, second

    def _mix(self, x: KExpr) -> KExpr:
        def folded(x: KExpr, shift: int) -> KExpr:
            by = KConst(U32, x.lanes, shift)
            return kop("bit_xor", x, kop("shr", x, by))

        for shift, factor in MIX:
            x = self.w.let("h", x)
            x = kop("mul", folded(x, shift), KConst(U32, x.lanes, factor))
        return self.w.let("h", folded(self.w.let("h", x), LAST_SHIFT))

    def _uniforms(self, ids: KExpr, first: KExpr, second: KExpr) -> KExpr:
        keyed = self._mix(kop("add", KCast(U32, 4, ids), first))
        bits = self._mix(kop("bit_xor", keyed, second))
        number = kop("mul", kop("add", KCast(F32, 4, bits), f32(0.5)), f32(2.0**-32))
        return self.w.let("u", kop("min", number, f32(BELOW_ONE)))

    def _finish(self, best: Reduction, most_raw: Scalar, total: Scalar) -> None:
        body = self.body
        token = body.held(kop("max", best.registers[1], i32(0)))
        body.store(self.tokens, (self.row,), token)
        x = self._logit(self.raw, index_of(body, self.s.value(token)))
        found = x - most_raw - op("log", total)
        impossible = constant(float("-inf"), F32)
        body.store(self.logs, (self.row,), select(op("gt", x, -LARGEST), found, impossible))


def _reaching(e: KExpr, bound: KExpr, term: KExpr) -> KExpr:
    """The terms of the weights that are not below a bound; 0 of others."""
    return KSelect(F32, 4, kop("ge", e, splat(bound, 4)), term, _ZEROS)


def _choose(cond: KExpr, then: KExpr, other: KExpr) -> KExpr:
    return KSelect(then.dtype, 1, cond, then, other)
