"""Weights read by index where a product has them: the same elements, whatever the layout."""

import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32, I64, U8, DType
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Buffer, cast, gather
from edgerelax.schedule.by_index import over_layouts
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM, WEBGPU, Target
from edgerelax.sym import Expr
from tests.schedule.test_codes import M, asymmetric, by_bytes, scaled_scales, symmetric
from tests.schedule.test_conv import buf

FORMS = (symmetric, asymmetric, scaled_scales, by_bytes)


def plain(dtype: DType):
    def form(n: int, k: int, r, c):
        table = buf("table", dtype, n, k)
        return (table,), cast(table[r, c], F32), dtype.bits

    return form


def product(form, n: int, k: int) -> LoopFunc:
    """x[m, k] by the weight [n, k]."""
    i, j, s = axis("i", M), axis("j", n), axis("s", k)
    sources, weight, _ = form(n, k, j.expr, s.expr)
    x, y = buf("x", F32, M, k), buf("y", F32, M, n)
    stage = Stage(y, (i, j), x[i, s] * weight, (s,), "sum")
    return LoopFunc("product", (x, *sources), (y,), (stage,), frozenset(b.name for b in sources))


def rows(form, n: int, k: int, by_data: bool = True, shift: int = 0) -> LoopFunc:
    """Rows of the weight by their numbers, or the first ones in order."""
    i, j = axis("i", 5), axis("j", k - shift)
    ids, out = buf("ids", I64, 5), buf("out", F32, 5, k - shift)
    row: Expr = gather(ids[i], n) if by_data else i.expr
    sources, weight, _ = form(n, k, row, j.expr + shift)
    inputs = (*([ids] if by_data else []), *sources)
    return LoopFunc(
        "rows", inputs, (out,), (Stage(out, (i, j), weight),), frozenset(b.name for b in sources)
    )


def layouts_of(func: LoopFunc, target: Target) -> dict[str, list[tuple[Packed, ...]]]:
    packed = dict.fromkeys(p for v in schedule(func, target).versions for p in v.packed)
    names = dict.fromkeys(p.source.name for p in packed)
    return {n: [tuple(p for p in packed if p.source.name == n)] for n in names}


def filled(buffer: Buffer, n: int) -> np.ndarray:
    shape, rng = tuple(d.as_int() for d in buffer.dims), np.random.default_rng(len(buffer.name))
    if buffer.dtype == I64:
        return rng.integers(-n, n, shape)
    if buffer.dtype.is_float:
        return rng.standard_normal(shape).astype(buffer.dtype.numpy)
    return rng.integers(*buffer.dtype.int_range, shape, buffer.dtype.numpy, endpoint=True)


@pytest.mark.parametrize(
    ("form", "n", "target", "shift"),
    [
        *((form, n, WASM, 0) for form in (*FORMS, plain(F32), plain(F16)) for n in (8, 27)),
        *((form, 24, WEBGPU, 0) for form in FORMS),
        (plain(F32), 24, WASM, 3),
    ],
)
def test_rows_are_the_same(form, n: int, target: Target, shift: int) -> None:
    """Parts of rows too."""
    wanted = rows(form, n, 128, shift=shift)
    found = over_layouts(wanted, layouts_of(product(form, n, 128), target))
    assert found is not None
    func, packed = found
    assert not {b.name for b in func.inputs} & wanted.weights
    arrays = {b.name: filled(b, n) for b in wanted.inputs}
    arrays["ids"][:2] = n - 1, -n
    made = {p.buffer.name: run_loop(p.make, [arrays[p.source.name]])[0] for p in packed}
    (before,) = run_loop(wanted, [arrays[b.name] for b in wanted.inputs])
    (after,) = run_loop(func, [{**arrays, **made}[b.name] for b in func.inputs])
    np.testing.assert_array_equal(before, after)


@pytest.mark.parametrize("form", (symmetric, plain(F32)))
def test_what_reads_in_order_stays(form) -> None:
    layouts = layouts_of(product(form, 24, 128), WASM)
    assert over_layouts(rows(form, 24, 128, by_data=False), layouts) is None


def test_what_computes_something_else_stays() -> None:
    """A byte of two codes is none of the codes that words are known to hold."""

    def whole_bytes(n: int, k: int, r, c):
        codes = buf("codes", U8, n, k // 2)
        return (codes,), cast(codes[r, c // 2], F32), 4

    layouts = layouts_of(product(symmetric, 24, 128), WASM)
    func = rows(whole_bytes, 24, 128)
    assert over_layouts(func, {"codes": layouts["codes"]}) is None
