"""Chains of reductions in one pass: which algebra allows it, and that it gives the same."""

from collections.abc import Callable

import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.plan import Version
from edgerelax.ir.scalar import Acc, Const, Load, Scalar, Select, Value, cast, op
from edgerelax.schedule.strategies.base import Unit
from edgerelax.schedule.strategies.row_reduce import ROW_REDUCE
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import assert_close, inputs_for, run_version
from tests.schedule.test_rows import buf

N, K = symbol("n"), symbol("k")
LENGTHS = (0, 1, 70)
INF, NAN = np.float32(np.inf), np.float32(np.nan)
TARGETS_HERE = (WEBGPU, WEBGPU_SOFTWARE, WASM)


class Chain:
    """Reductions of x[n, k] (and of w[k]) a step at a time, then a map over the rows."""

    def __init__(self, length: object = K, dtype=F32) -> None:
        self.x, self.w = buf("x", dtype, N, length), buf("w", F32, length)
        self.y = buf("y", F32, N, length)
        self.i, self.k = grid(self.x)
        self.stages: list[Stage] = []

    @property
    def at(self) -> Scalar:
        return cast(self.x[self.i, self.k], F32)

    @property
    def weight(self) -> Scalar:
        return self.w[self.k]

    @property
    def length(self) -> Scalar:
        """How many terms a sum has, from an index expression."""
        return cast(Value(as_expr(self.x.dims[1])), F32)

    def reduce(self, combiner: str, body: Scalar, epilogue: Scalar | None = None) -> Load:
        out = buf(f"r{len(self.stages)}", F32, N)
        stage = Stage(out, (self.i,), body, (self.k,), combiner, epilogue=epilogue)
        self.stages.append(stage)
        return out[self.i]

    def map(self, body: Scalar) -> LoopFunc:
        last = Stage(self.y, (self.i, self.k), body)
        return LoopFunc("chain", (self.x, self.w), (self.y,), (*self.stages, last))

    def reduced(self) -> LoopFunc:
        """Without a map: the last reduction is the result."""
        out = self.stages[-1].out
        return LoopFunc("chain", (self.x, self.w), (out,), tuple(self.stages))


def softmax(c: Chain) -> LoopFunc:
    m = c.reduce("max", c.at)
    return c.map(op("exp", c.at - m) / c.reduce("sum", op("exp", c.at - m)))


def log_softmax(c: Chain) -> LoopFunc:
    m = c.reduce("max", c.at)
    return c.map(c.at - m - c.reduce("sum", op("exp", c.at - m), op("log", Acc(F32))))


def log_sum_exp(c: Chain) -> LoopFunc:
    m = c.reduce("max", c.at)
    c.reduce("sum", op("exp", c.at - m), op("log", Acc(F32)) + m)
    return c.reduced()


def masked_softmax(c: Chain) -> LoopFunc:
    """A temperature, and a mask of which some is -inf."""
    u = c.at * 0.5 + Select(op("lt", c.weight, -1.0), Const(-INF, F32), c.weight)
    m = c.reduce("max", u)
    return c.map(op("exp", u - m) / c.reduce("sum", op("exp", u - m)))


def late_temperature(c: Chain) -> LoopFunc:
    """The maximum is of x, the exponent speaks of x / 3."""
    m = c.reduce("max", c.at)
    s = c.reduce("sum", op("exp", c.at / 3.0 - m / 3.0))
    return c.map(op("exp", c.at / 3.0 - m / 3.0) / s)


def guarded_softmax(c: Chain) -> LoopFunc:
    """A row of -inf alone is to give zeros."""
    m = c.reduce("max", c.at)
    m = Select(op("isinf", m), Const(0.0, F32), m)
    s = c.reduce("sum", op("exp", c.at - m))
    return c.map(op("exp", c.at - m) / op("max", s, 1e-30))


def softmin_mean(c: Chain) -> LoopFunc:
    """Σ softmin(x) * w: the quotient leaves the sum."""
    m = c.reduce("min", c.at)
    s = c.reduce("sum", op("exp", m - c.at))
    c.reduce("sum", op("exp", m - c.at) / s * c.weight)
    return c.reduced()


def stable_length(c: Chain) -> LoopFunc:
    """sqrt(Σ x²) of numbers whose squares overflow."""
    m = c.reduce("max", op("abs", c.at))
    d = c.at / m
    c.reduce("sum", d * d, op("sqrt", Acc(F32)) * m)
    return c.reduced()


def bounded_length(c: Chain) -> LoopFunc:
    m = op("max", c.reduce("max", op("abs", c.at)), 1e-20)
    s = c.reduce("sum", op("pow", c.at / m, 2.0), op("sqrt", Acc(F32)))
    return c.map(c.at / (s * m))


def deviation(c: Chain) -> LoopFunc:
    """The mean far from 0: squares alone would cancel."""
    u = c.at + 1000.0
    mean = c.reduce("sum", u, Acc(F32) / op("max", c.length, 1.0))
    d = u - mean
    s = c.reduce("sum", d * d, op("sqrt", Acc(F32) / op("max", c.length, 1.0) + 1e-5))
    return c.map(d / s)


def quantised(c: Chain) -> LoopFunc:
    """The least and the greatest know nothing of each other."""
    low, high = c.reduce("min", c.at), c.reduce("max", c.at)
    return c.map((c.at - low) / (high - low + 1.0))


def peaks_of_two(c: Chain) -> LoopFunc:
    """Two sums follow two extremes of different terms; a third is weighted by both."""
    m, p = c.reduce("max", c.at * c.weight), c.reduce("max", op("abs", c.at))
    s = c.reduce("sum", op("exp", c.at * c.weight - m) * c.at)
    t = c.reduce("sum", op("exp", (c.at * c.weight - m) * 2.0) * (c.at / p))
    return c.map(s * c.weight + t)


ONE_PASS = (
    softmax, log_softmax, log_sum_exp, masked_softmax, late_temperature, guarded_softmax,
    softmin_mean, stable_length, bounded_length, deviation, quantised, peaks_of_two,
)  # fmt: skip


# What no rule covers


def not_separable(c: Chain) -> LoopFunc:
    m = c.reduce("max", c.at)
    return c.map(c.at * c.reduce("sum", op("tanh", c.at - m)))


def not_bounded(c: Chain) -> LoopFunc:
    """The exponent is not of what the maximum is of."""
    m = c.reduce("max", c.at)
    return c.map(c.at * c.reduce("sum", op("exp", c.weight - m)))


def growing(c: Chain) -> LoopFunc:
    m = c.reduce("max", c.at)
    return c.map(c.at * c.reduce("sum", op("exp", m - c.at)))


def changing_scale(c: Chain) -> LoopFunc:
    """A divisor that may come near 0 again, below squares that overflow."""
    m = c.reduce("sum", c.at)
    d = c.at / m
    return c.map(c.at * c.reduce("sum", d * d))


def about_another_mean(c: Chain) -> LoopFunc:
    mean = c.reduce("sum", c.weight, Acc(F32) / op("max", c.length, 1.0))
    d = c.at - mean
    return c.map(c.reduce("sum", d * d) * c.weight)


def greatest_of_softmax(c: Chain) -> LoopFunc:
    m = c.reduce("max", c.at)
    return c.map(c.reduce("max", op("exp", c.at - m)) * c.at)


SEVERAL = (
    not_separable, not_bounded, growing, changing_scale, about_another_mean, greatest_of_softmax,
)  # fmt: skip

Make = Callable[[Chain], LoopFunc]


def versions(func: LoopFunc, target: Target) -> dict[str, Version]:
    """The row kernel by config."""
    unit = Unit(func.name, func.stages, frozenset(b.name for b in func.outputs))
    match = ROW_REDUCE.match(unit, target)
    emitted = {c: ROW_REDUCE.emit(match, c, target) for c in ROW_REDUCE.configs(match, target)}
    return {c: Version(e.kernels, e.temps) for c, e in emitted.items()}


def check_all(func: LoopFunc, symbols: dict[str, int], arrays=None, tolerance=1e-4) -> None:
    """Every config that takes one pass gives what the loops mean."""
    given = inputs_for(func, symbols) if arrays is None else arrays
    with np.errstate(all="ignore"):
        want = run_loop(func, given, symbols)
        for target in TARGETS_HERE:
            for config, version in versions(func, target).items():
                if not config.endswith(" once"):
                    continue
                for got, w in zip(run_version(version, func, given, symbols), want, strict=True):
                    assert_close(got, w, tolerance)


@pytest.mark.parametrize("make", ONE_PASS)
def test_one_pass_gives_the_same(make: Make) -> None:
    for target in TARGETS_HERE:
        found = versions(make(Chain()), target)
        assert [c for c in found if c.endswith(" once")], target.name
    tolerance = 1e-3 if make is deviation else 1e-4
    for k in LENGTHS:
        check_all(make(Chain()), {"n": 2, "k": k}, tolerance=tolerance)
    check_all(make(Chain(72)), {"n": 1}, tolerance=tolerance)


def test_half_floats_are_followed_in_f32() -> None:
    check_all(softmax(Chain(dtype=F16)), {"n": 2, "k": 37}, tolerance=2e-3)


def softmax_of_columns() -> LoopFunc:
    """Rows that are neighbours in memory: four may be taken at once."""
    x, y = buf("x", F32, 3, K, 8), buf("y", F32, 3, K, 8)
    m, s, (i, k, j) = buf("m", F32, 3, 8), buf("s", F32, 3, 8), grid(x)
    e = op("exp", x[i, k, j] - m[i, j])
    stages = (
        Stage(m, (i, j), x[i, k, j], (k,), "max"),
        Stage(s, (i, j), e, (k,), "sum"),
        Stage(y, (i, k, j), e / s[i, j]),
    )
    return LoopFunc("columns", (x,), (y,), stages)


def test_four_rows_at_once() -> None:
    func = softmax_of_columns()
    for target in TARGETS_HERE:
        assert "quads once" in versions(func, target)
    special = np.random.default_rng(2).standard_normal((3, 9, 8)).astype(np.float32)
    special[0, :, 1], special[1, 0, 2], special[2, 3, 4] = -INF, -INF, NAN
    for given in ([special], [special[:, :0]], [special[:, :1]]):
        check_all(func, {"k": given[0].shape[1]}, given)


@pytest.mark.parametrize("make", SEVERAL)
def test_no_rule_no_single_pass(make: Make) -> None:
    for target in TARGETS_HERE:
        assert not [c for c in versions(make(Chain()), target) if c.endswith(" once")]


def rows_of(*rows: list[float]) -> np.ndarray:
    """Rows of as many elements, short ones filled by repeating them."""
    width = 71
    return np.array([(row * width)[:width] for row in rows], np.float32)


SPECIAL = rows_of(
    [-INF], [INF], [0.0], [NAN], [-INF, 2.0], [-INF] * 9 + [-3.0, 1.0], [1.0, INF],
    [1.0, -INF, INF], [1.0] * 70 + [NAN], [-INF] * 70 + [-1000.0], [-1e30, 1e30, 1e-30],
    [-1000.0] * 40 + [1000.0], [0.0] * 50 + [1e-30], [1e30] * 3 + [-1e30],
)  # fmt: skip


@pytest.mark.parametrize("make", [f for f in ONE_PASS if f not in (deviation,)])
def test_special_values(make: Make) -> None:
    """Of infinities, NaN and magnitudes at the ends of the range both forms make the same."""
    rng = np.random.default_rng(3)
    weight = rng.standard_normal(SPECIAL.shape[1]).astype(np.float32)
    for x in (SPECIAL, SPECIAL[:, ::-1].copy(), SPECIAL[:, :1].copy()):
        given = [x, weight[: x.shape[1]]]
        check_all(make(Chain()), {"n": x.shape[0], "k": x.shape[1]}, given)


def test_welford_does_not_cancel() -> None:
    x = np.random.default_rng(0).standard_normal((1, 300)).astype(np.float32) + 3e4
    func = deviation(Chain())
    exact = (x - x.mean(1, keepdims=True, dtype=np.float64)) / x.std(
        1, keepdims=True, dtype=np.float64
    )
    for target in TARGETS_HERE:
        for name, version in versions(func, target).items():
            (y,) = run_version(version, func, [x, x[0]], {"n": 1, "k": 300})
            assert np.abs(y - exact).max() < 0.02, (target.name, name)
