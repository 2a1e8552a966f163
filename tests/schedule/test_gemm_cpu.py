"""Products on the CPU: packed weights, copied windows, tiles of many sizes."""

from dataclasses import replace

import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import Acc
from edgerelax.schedule.contraction import Contraction, contraction
from edgerelax.schedule.packing import pack_columns, pack_rows
from edgerelax.schedule.select import schedule
from edgerelax.schedule.staging import stage
from edgerelax.schedule.target import WASM
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import check
from tests.schedule.test_conv import buf, conv, conv_transpose

M, H, W = symbol("m"), symbol("h"), symbol("w")


def weighted(func: LoopFunc, *names: str) -> LoopFunc:
    return replace(func, weights=frozenset(names))


def product(m, n, k, dtype=F32):
    x, w, y = buf("x", dtype, m, k), buf("w", dtype, k, n), buf("y", dtype, m, n)
    i, j, r = axis("i", m), axis("j", n), axis("r", k)
    stage = Stage(y, (i, j), x[i, r] * w[r, j], (r,), "sum")
    return weighted(LoopFunc("product", (x, w), (y,), (stage,)), "w")


@pytest.mark.parametrize("n", (1, 4, 7, 8, 9, 13, 24, 36))
def test_products_with_packed_columns(n):
    for m in (0, 1, 5, 6, 7):
        check(product(M, n, 5), {"m": m}, targets=(WASM,))


def added(m, n, k):
    """A product with a bias and a matrix added."""
    func = product(m, n, k)
    (first,) = func.stages
    b, z = buf("b", F32, n), buf("z", F32, m, n)
    i, j = first.axes
    stage = replace(first, init=b[j], epilogue=Acc(F32) + z[i, j])
    return replace(func, inputs=(*func.inputs, b, z), stages=(stage,))


@pytest.mark.parametrize("n", (9, 13, 161))
def test_what_is_added_where_panels_overlap(n):
    func = added(M, n, 3)
    versions = schedule(func, WASM).versions
    assert all(v.packed and not v.in_place for v in versions)
    for m in (1, 6):
        check(func, {"m": m}, targets=(WASM,))


def test_panels_apart_may_be_stored_over_what_is_added():
    assert schedule(added(M, 16, 3), WASM).versions[-1].in_place == (("z", "y"),)


@pytest.mark.parametrize("n", (7, 13, 16))
def test_products_with_transposed_weights(n):
    x, w, y = buf("x", F32, M, 12), buf("w", F32, n, 12), buf("y", F32, M, n)
    i, j, r = axis("i", M), axis("j", n), axis("r", 12)
    stage = Stage(y, (i, j), x[i, r] * w[j, r], (r,), "sum")
    func = weighted(LoopFunc("product", (x, w), (y,), (stage,)), "w")
    assert bool(schedule(func, WASM).versions[-1].packed) == (n > 7)
    for m in (1, 5):
        check(func, {"m": m}, targets=(WASM,))


def test_packed_columns_of_halves():
    check(product(M, 16, 3, F16), {"m": 7}, targets=(WASM,), tolerance=2e-2)


CONVOLUTIONS = {
    "1x1": dict(oc=7, kh=1, kw=1),
    "1x1 stride 2": dict(oc=6, kh=1, kw=1, stride=2),
    "3x3": dict(oc=13, kh=3, kw=3, pad=1),
    "3x3 stride 2": dict(oc=12, kh=3, kw=3, pad=1, stride=2),
    "stride beyond the window": dict(oc=2, kh=2, kw=2, stride=3, pad=1),
    "dilated": dict(oc=3, kh=3, kw=3, pad=2, dilation=2),
    "dilated, stride 2": dict(oc=3, kh=3, kw=3, pad=2, dilation=2, stride=2),
    "more padding than image": dict(oc=2, kh=5, kw=5, pad=4),
    "depthwise": dict(oc=4, kh=5, kw=5, pad=2, group=4),
    "depthwise, stride 2": dict(oc=4, kh=3, kw=3, pad=1, group=4, stride=2),
    "grouped": dict(oc=6, kh=3, kw=3, pad=1, group=2),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolutions(case):
    func = weighted(conv(1, 4, H, W, **CONVOLUTIONS[case]), "f", "b")
    for h, w in ((1, 2), (5, 9), (3, 17)):
        check(func, {"h": h, "w": w}, targets=(WASM,), tolerance=1e-4)


def found(func: LoopFunc) -> Contraction:
    result = contraction(func.stages[0])
    assert isinstance(result, Contraction)
    return result


def test_weights_are_packed_and_windows_copied():
    version = schedule(weighted(conv(1, 4, H, W, 12, 3, 3, pad=1), "f"), WASM).versions[-1]
    copy, tiles = version.kernels
    (packed,) = version.packed
    assert [b.buffer.name for b in copy.buffers] == ["conv_window", "x"]
    assert packed.source.name == "f"
    assert packed.buffer.name in {b.buffer.name for b in tiles.buffers}
    assert not {"f", "x"} & {b.buffer.name for b in tiles.buffers}


def test_only_weights_are_packed():
    free = replace(product(M, 8, 4), weights=frozenset())
    assert pack_columns(found(free), free.weights) is None
    assert not schedule(free, WASM).versions[-1].packed


def test_one_row_reads_the_same_panels():
    row, tiles = schedule(product(M, 64, 24), WASM).versions
    assert row.packed == tiles.packed != ()


def test_panels_end_with_the_last_column():
    assert pack_columns(found(product(M, 7, 4)), frozenset("w")) is None
    weight = np.arange(4 * 13, dtype=np.float32).reshape(4, 13)
    laid = pack_columns(found(product(M, 13, 4)), frozenset("w"))
    assert laid is not None and not laid.apart
    (packed,) = laid.packed
    (panels,) = run_loop(packed.make, [weight])
    np.testing.assert_array_equal(panels, [weight[:, :8], weight[:, 5:]])


def test_rows_past_the_end_repeat_the_last():
    laid = pack_rows(found(conv(1, 4, 4, 4, 7, 1, 1, bias=False)), 6, frozenset("f"))
    assert laid is not None
    (packed,) = laid.packed
    assert [d.as_int() for d in packed.buffer.dims] == [2, 4, 6]


def test_windows_without_padding_or_stride_are_not_copied():
    assert stage(found(conv(1, 4, H, W, 5, 3, 3)), "copy") is None
    strided = stage(found(conv(1, 4, H, W, 5, 1, 1, stride=2)), "copy")
    assert strided is not None
    assert strided.copy.dims[-1] == (as_expr(W) - 1) // 2 + 1


@pytest.mark.parametrize(("k", "stride", "pad"), [(2, 2, 0), (4, 2, 1), (6, 3, 0)])
def test_transposed_convolutions_test_nothing_in_their_loops(k, stride, pad):
    """Taps that are never met are left out, the edges are zeros of the copy."""
    found = contraction(conv_transpose(H, W, k, stride=stride, pad=pad).stages[0])
    assert isinstance(found, Contraction)
    staged = stage(found, "window")
    assert (found if staged is None else staged.found).guards == ()
    assert [a.extent.as_int() for a in found.stage.reduce if a.name.endswith("//")] == (
        [k // stride] * 2 if k > stride else []
    )


@pytest.mark.parametrize(("k", "stride", "pad", "extra"), [(3, 2, 1, 1), (5, 3, 2, 2)])
def test_transposed_convolutions_with_fewer_taps_for_some_outputs(k, stride, pad, extra):
    """Stride does not divide the taps: packed weights hold nothing where there is no tap."""
    func = weighted(conv_transpose(H, W, k, stride=stride, pad=pad, extra=extra), "f")
    assert schedule(func, WASM).versions[0].packed
    check(func, {"h": 3, "w": 5}, tolerance=1e-4)


def test_the_innermost_loop_has_most_steps():
    func = weighted(conv(1, 16, 24, 24, 8, 3, 3, pad=1), "f")
    (packed,) = schedule(func, WASM).versions[0].packed
    assert [d.as_int() for d in packed.buffer.dims] == [2, 3, 3, 16, 4]
