"""8-bit products over pairs on the CPU: what is paired, and that it is exact at every size."""

import numpy as np
import pytest

from edgerelax.codegen.wasm import print_wat
from edgerelax.ir.dtypes import I8, I16, I32, U8
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import Buffer, Op, cast, constant, in_range, op, select, walk
from edgerelax.schedule.pairs import in_pairs
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM
from edgerelax.sym import Axis, as_expr, symbol
from tests.kernel_runners import run_wasm
from tests.schedule.oracle import check, run_version

M, H, W = symbol("m"), symbol("h", 1), symbol("w", 1)


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def product(m, n, k, *, zero=3, of_weights=0, dtypes=(U8, I8), turned=False, weights=("w",)):
    x, y = buf("x", dtypes[0], m, k), buf("y", I32, m, n)
    w = buf("w", dtypes[1], *((n, k) if turned else (k, n)))
    i, j, r = axis("i", m), axis("j", n), axis("r", k)
    right = cast(w[(j, r) if turned else (r, j)], I32) - of_weights
    stage = Stage(y, (i, j), (cast(x[i, r], I32) - zero) * right, (r,), "sum")
    return LoopFunc("product", (x, w), (y,), (stage,), frozenset(weights))


def conv(c, oc, kh, kw, *, stride=1, pad=0, group=1, zero=7):
    oh, ow = ((as_expr(d) + 2 * pad - k) // stride + 1 for d, k in ((H, kh), (W, kw)))
    x, f = buf("x", U8, 1, c, H, W), buf("f", I8, oc, c // group, kh, kw)
    y = buf("y", I32, 1, oc, oh, ow)
    i, o, p, q = (axis(s, d) for s, d in zip("iopq", y.dims, strict=True))
    a, r, t = (
        axis(s, d) if d.as_int() > 1 else as_expr(0) for s, d in zip("art", f.dims[1:], strict=True)
    )
    place = as_expr(a) if group == 1 else o.expr // (oc // group) * (c // group) + a
    u, v = p.expr * stride + r - pad, q.expr * stride + t - pad
    inside = op("and", in_range(u, 0, H), in_range(v, 0, W))
    value = select(inside, cast(x[i, place, u, v], I32) - zero, constant(0, I32))
    body = value * cast(f[o, a, r, t], I32)
    steps = tuple(s for s in (a, r, t) if isinstance(s, Axis))
    stage = Stage(y, (i, o, p, q), body, steps, "sum")
    return LoopFunc("conv", (x, f), (y,), (stage,), frozenset(("f",)))


def numbers(func, sizes, seed=0):
    """Inputs over the whole range of their types."""
    rng = np.random.default_rng(seed)
    env = {s: sizes[s.name] for s in func.symbols()}
    shapes = [(b, tuple(d.eval(env) for d in b.dims)) for b in func.inputs]
    return [
        rng.integers(*b.dtype.int_range, shape, endpoint=True).astype(b.dtype.numpy)
        for b, shape in shapes
    ]


def is_paired(func):
    stage = in_pairs(func)[0].stages[-1]
    return any(isinstance(n, Op) and n.fn == "dot_pairs" for n in walk(stage.body))


def check_all(func, sizes):
    """The schedule, and every strategy and config for the pairs, give what the function says."""
    check(func, sizes, targets=(WASM,), arrays=numbers(func, sizes))


@pytest.mark.parametrize(("n", "k"), ((1, 13), (7, 3), (8, 2), (13, 4), (24, 1), (24, 8), (24, 13)))
def test_products(n, k):
    func = product(M, n, k)
    if n in (1, 24):  # pairs of x for one column would cost what they save
        assert is_paired(func) == (n == 24 and k > 1)
    for m in (0, 5):
        check_all(func, {"m": m})


@pytest.mark.parametrize(
    "more",
    (
        {"turned": True},
        {"of_weights": -128, "dtypes": (I8, I8)},
        {"of_weights": 200, "dtypes": (U8, U8)},
        {"zero": 0, "dtypes": (U8, I16)},
        {"weights": ()},
    ),
)
def test_types_zero_points_and_layouts(more):
    func = product(17, 16, 5, **more)
    assert is_paired(func)
    check_all(func, {})


def test_what_exceeds_16_bits_stays():
    assert not is_paired(product(M, 16, 8, zero=1, dtypes=(U8, I16), of_weights=1))
    assert not is_paired(product(M, 16, 8, dtypes=(I32, I8)))


CONVOLUTIONS = {
    "3x3": dict(c=4, oc=5, kh=3, kw=3, pad=1),
    "odd channels, stride 2": dict(c=3, oc=16, kh=3, kw=3, pad=1, stride=2),
    "line": dict(c=5, oc=9, kh=1, kw=3, pad=1),
    "1x1": dict(c=6, oc=8, kh=1, kw=1),
    "depthwise": dict(c=4, oc=4, kh=3, kw=3, pad=1, group=4),
    "groups of even size": dict(c=8, oc=6, kh=3, kw=3, pad=1, group=2),
    "groups of odd size": dict(c=6, oc=6, kh=3, kw=3, pad=1, group=2),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case):
    func = conv(**CONVOLUTIONS[case])
    assert is_paired(func)
    check_all(func, {"h": 2, "w": 9})


def test_channels_are_paired_where_groups_allow_it():
    for case, wanted in (("3x3", 2), ("groups of even size", 4), ("groups of odd size", 6)):
        func, _ = in_pairs(conv(**CONVOLUTIONS[case]))
        assert func.stages[0].out.dims[1].as_int() == wanted, case


def test_one_row_has_a_version_of_its_own():
    func = product(symbol("m", 1), 64, 40)
    row, other = schedule(func, WASM).versions
    assert row.guards and not other.guards
    assert not {t.name for t in row.temps} & {t.name for t in other.temps}
    for m in (1, 3):
        check_all(func, {"m": m})


def test_columns_of_weights_stay_8_bits_wide():
    func, sizes = product(M, 24, 13), {"m": 5}
    version = schedule(func, WASM).versions[-1]
    text = print_wat(version.kernels)
    assert "v128.load8x8_s" in text and "v128.load64_zero" not in text
    assert version.packed[-1].buffer.dtype == I16  # two numbers

    def run(kernel, memory, scalars, grid):
        for key, value in run_wasm(kernel, memory, scalars, grid).items():
            memory[key][...] = value

    arrays = numbers(func, sizes)
    (got,) = run_version(version, func, arrays, sizes, run)
    np.testing.assert_array_equal(got, run_loop(func, arrays, sizes)[0])
