"""Convolutions as the operators lower them, through every strategy."""

import pytest

from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.scalar import Acc, Buffer, compare, constant, in_range, op, select
from edgerelax.schedule.contraction import contraction
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check

N, H, W = symbol("n"), symbol("h", 1), symbol("w", 1)


def buf(name, dtype, *dims):
    return Buffer(name, dtype, tuple(as_expr(d) for d in dims))


def conv(n, c, h, w, oc, kh, kw, *, stride=1, pad=0, dilation=1, group=1, bias=True, dtype=F32):
    oh = (as_expr(h) + 2 * pad - (kh - 1) * dilation - 1) // stride + 1
    ow = (as_expr(w) + 2 * pad - (kw - 1) * dilation - 1) // stride + 1
    x, f = buf("x", dtype, n, c, h, w), buf("f", dtype, oc, c // group, kh, kw)
    b, y = buf("b", dtype, oc), buf("y", dtype, n, oc, oh, ow)
    i, o, p, q = (axis(s, d) for s, d in zip("iopq", y.dims, strict=True))
    a, r, t = axis("a", c // group), axis("r", kh), axis("t", kw)
    place = as_expr(a) if group == 1 else o.expr // (oc // group) * (c // group) + a
    u = p.expr * stride + r.expr * dilation - pad
    v = q.expr * stride + t.expr * dilation - pad
    value = x[i, place, u, v]
    if pad:
        inside = op("and", in_range(u, 0, h), in_range(v, 0, w))
        value = select(inside, value, constant(0.0, dtype))
    tail = op("max", Acc(dtype) + b[o], 0.0) if bias else None
    stage = Stage(y, (i, o, p, q), value * f[o, a, r, t], (a, r, t), "sum", epilogue=tail)
    return LoopFunc("conv", (x, f, b) if bias else (x, f), (y,), (stage,))


CASES = {
    "3x3": dict(oc=5, kh=3, kw=3, pad=1),
    "3x3 stride 2": dict(oc=4, kh=3, kw=3, pad=1, stride=2),
    "3x3 valid": dict(oc=4, kh=3, kw=3),
    "5x3 dilated": dict(oc=3, kh=5, kw=3, pad=2, dilation=2),
    "1x1": dict(oc=6, kh=1, kw=1),
    "7x7 stride 2": dict(oc=2, kh=7, kw=7, pad=3, stride=2),
    "3x3 of many channels": dict(oc=20, kh=3, kw=3, pad=1),
    "depthwise": dict(oc=4, kh=3, kw=3, pad=1, group=4),
    "grouped": dict(oc=6, kh=3, kw=3, pad=1, group=2),
}


@pytest.mark.parametrize("case", CASES)
def test_symbolic_images(case):
    for n, h, w in ((1, 7, 9), (2, 9, 14)):
        check(conv(N, 4, H, W, **CASES[case]), {"n": n, "h": h, "w": w}, tolerance=1e-4)


@pytest.mark.parametrize("stride", (1, 2))
def test_few_places_are_computed_in_registers_too(stride):
    """Frames of speech: few of them, their number is that of the samples over 128."""
    frames = (W + 64) // 128 - 1
    x, f = buf("x", F32, N, 9, frames), buf("f", F32, 16, 9, 3)
    y = buf("y", F32, N, 16, (frames - 1) // stride + 1)
    i, o, q = (axis(s, d) for s, d in zip("ioq", y.dims, strict=True))
    a, t = axis("a", 9), axis("t", 3)
    v = q.expr * stride + t.expr - 1
    value = select(in_range(v, 0, frames), x[i, a, v], constant(0.0, F32))
    func = LoopFunc("conv", (x, f), (y,), (Stage(y, (i, o, q), value * f[o, a, t], (a, t), "sum"),))
    assert "gemm_cpu" in schedule(func, WASM).strategies[-1]
    for w in (200, 576):
        check(func, {"n": 1, "w": w}, tolerance=1e-4)


def test_channels_of_a_group_are_rows():
    func = conv(N, 8, H, W, 16, 3, 3, pad=1, group=2)
    assert [str(a.extent) for a in contraction(func.stages[0]).rows] == ["8"]
    check(func, {"n": 2, "h": 3, "w": 9}, tolerance=1e-4)


@pytest.mark.parametrize("case", CASES)
def test_constant_images(case):
    check(conv(1, 4, 6, 12, **CASES[case]), {}, tolerance=1e-4)


@pytest.mark.parametrize("w", (1, 2, 5, 8))
def test_narrow_images(w):
    check(conv(1, 2, 3, W, 5, 3, 3, pad=1), {"w": w}, tolerance=1e-4)


def test_half_floats():
    check(conv(1, 4, 8, 8, 4, 3, 3, pad=1, dtype=F16), {}, tolerance=1e-2)


def test_interiors_are_computed_without_tests():
    """On the CPU the padding is not tested in the inner loop of vectors."""
    func = conv(1, 8, 32, 32, 8, 3, 3, pad=1)
    assert "gemm" in schedule(func, WASM).strategies[0]


def conv_transpose(h, w, k, *, stride, pad, extra=0):
    """Each output sums the taps that an input reaches it by, as the operator is lowered."""
    oh, ow = (stride * (as_expr(d) - 1) + k - 2 * pad + extra for d in (h, w))
    x, f, y = buf("x", F32, 2, 3, h, w), buf("f", F32, 3, 5, k, k), buf("y", F32, 2, 5, oh, ow)
    i, o, p, q = (axis(s, d) for s, d in zip("iopq", y.dims, strict=True))
    c, r, t = axis("c", 3), axis("r", k), axis("t", k)
    guards, places = [], []
    for at, tap, size in ((p, r, h), (q, t, w)):
        reach = at.expr + pad - tap
        guards += [compare("eq", reach % stride, 0), in_range(reach // stride, 0, size)]
        places.append(reach // stride)
    inside = guards[0]
    for guard in guards[1:]:
        inside = op("and", inside, guard)
    value = select(inside, x[i, c, places[0], places[1]], constant(0.0, F32))
    stage = Stage(y, (i, o, p, q), value * f[c, o, r, t], (c, r, t), "sum")
    return LoopFunc("conv_transpose", (x, f), (y,), (stage,))


TRANSPOSED = [(2, 2, 0, 0), (3, 2, 1, 1), (4, 2, 1, 0), (3, 2, 0, 0), (3, 1, 1, 0), (5, 3, 1, 1)]


@pytest.mark.parametrize(("k", "stride", "pad", "extra"), TRANSPOSED)
def test_transposed(k, stride, pad, extra):
    for h, w in ((1, 1), (3, 9)):
        func = conv_transpose(H, W, k, stride=stride, pad=pad, extra=extra)
        check(func, {"h": h, "w": w}, tolerance=1e-4)
    check(conv_transpose(4, 9, k, stride=stride, pad=pad, extra=extra), {}, tolerance=1e-4)
