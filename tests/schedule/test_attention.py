"""Attention without stored scores, on the kernel interpreter for every target."""

from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import BF16, BOOL, F16, F32, I8, I32, DType
from edgerelax.ir.loop import LoopFunc, Template
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.scalar import Buffer
from edgerelax.schedule import runs
from edgerelax.schedule.index import numel
from edgerelax.schedule.select import schedule
from edgerelax.schedule.strategies.templates import attention_split
from edgerelax.schedule.target import TARGETS, WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from edgerelax.sym import Expr, as_expr, symbol, upper_bound
from tests.kernel_runners import run_wasm, run_wgpu
from tests.schedule.oracle import assert_close, check, inputs_for, run_schedule, run_version

S, T = symbol("s"), symbol("t")
HEADS = 2


def row_major(*dims: Expr | int) -> tuple[Expr, ...]:
    """An offset of 0 and strides, 0 along dims of 1."""
    stride, found = as_expr(1), []
    for dim in map(as_expr, reversed(dims)):
        found.append(as_expr(0) if dim.as_int() == 1 else stride)
        stride = stride * dim
    return (as_expr(0), *reversed(found))


def attention(
    width, depth, *, steps=(), others=(), dtype=F32, safe=False, hidden=-1, queries=S, keys=T
):
    """Two heads; `others` are pairs of dtype and dims."""
    queries, keys = as_expr(queries), as_expr(keys)
    spans = [(HEADS, queries, width), (HEADS, keys, width), (HEADS, keys, depth)]
    typed = [(dtype, span) for span in spans] + list(others)
    buffers = tuple(
        Buffer(f"x{k}", kind, tuple(map(as_expr, dims))) for k, (kind, dims) in enumerate(typed)
    )
    out = Buffer("y", dtype, tuple(map(as_expr, (HEADS, queries, depth))))
    params = {
        "batch": (as_expr(HEADS),),
        "sizes": (queries, keys, as_expr(width), as_expr(depth)),
        "views": tuple(row_major(*b.dims) for b in (*buffers, out)),
        "steps": tuple(steps),
        "dims": out.dims,
        "nan_to_zero": safe,
        "hidden": hidden,
        "tables": ((), ()),
        "scales": ((), ()),
    }
    stage = Template("attention", buffers, (out,), params)
    return LoopFunc("attention", buffers, (out,), (stage,))


@pytest.mark.parametrize("width,depth", [(1, 1), (3, 8), (4, 5), (17, 6), (32, 32), (65, 64)])
@pytest.mark.parametrize("queries,keys", [(1, 1), (5, 3), (63, 4), (64, 17), (65, 15), (3, 37)])
def test_sizes(width: int, depth: int, queries: int, keys: int) -> None:
    check(attention(width, depth), {"s": queries, "t": keys})


STEPS = {
    "scale": ((("mul", -1, 0.5),), ()),
    "cap": ((("div", -1, 2.0), ("tanh", -1, 0.0), ("mul", -1, 2.0)), ()),
    "mask per key": ((("add", 0, 0.0),), ((F32, (1, 1, T)),)),
    "mask per head": ((("add", 0, 0.0), ("mul", -1, 0.5)), ((F32, (HEADS, S, T)),)),
    "mask per query": ((("sub", 0, 0.0),), ((F32, (1, S, 1)),)),
    "where": ((("where", 0, float("-inf")),), ((BOOL, (1, S, T)),)),
    "unless": ((("unless", 0, -1e4),), ((BOOL, (HEADS, 1, T)),)),
    "two": ((("where", 1, -1e4), ("add", 0, 0.0)), ((F32, (1, 1, T)), (BOOL, (1, S, 1)))),
}


@pytest.mark.parametrize("name", STEPS)
@pytest.mark.parametrize("safe", [False, True])
def test_steps(name: str, safe: bool) -> None:
    steps, others = STEPS[name]
    func = attention(8, 6, steps=steps, others=others, safe=safe)
    for queries, keys in ((1, 1), (7, 18), (65, 5)):
        check(func, {"s": queries, "t": keys})


@pytest.mark.parametrize("safe", [False, True])
def test_queries_that_give_zero(safe: bool) -> None:
    func = attention(8, 6, others=((BOOL, (1, S, 1)),), hidden=0, safe=safe)
    check(func, {"s": 66, "t": 5})


@pytest.mark.parametrize("dtype,tolerance", [(F16, 4e-3), (BF16, 3e-2)], ids=str)
@pytest.mark.parametrize("width,depth", [(8, 8), (5, 3)])
def test_short_floats(dtype: DType, tolerance: float, width: int, depth: int) -> None:
    func = attention(
        width, depth, dtype=dtype, steps=(("add", 0, 0.0),), others=((dtype, (1, 1, T)),)
    )
    check(func, {"s": 9, "t": 21}, tolerance=tolerance)


@pytest.mark.parametrize("depth,kernels", [(8, 1), (6, 2)])
def test_whole_words_of_short_floats_are_stored_at_once(depth: int, kernels: int) -> None:
    version = schedule(attention(8, depth, dtype=F16), TARGETS["gpu"]).versions[-1]
    assert len(version.kernels) == kernels


def paged(width: int, depth: int, *, one: bool, dtype: DType = F32) -> LoopFunc:
    """Keys and values [slots, heads, width] of a cache by rows that a table names, or two do.

    Those of i8 have a scale for each slot and head.
    """
    slots, count = symbol("slots", lo=1), 1 if one else 2
    scales = [(F32, (slots, HEADS))] * (2 if dtype == I8 else 0)
    shapes = [
        (F32, (HEADS, S, width)),
        (dtype, (slots, HEADS, width)),
        (dtype, (slots, HEADS, depth)),
        *[(I32, (1, 1, T))] * count,
        *scales,
    ]
    buffers = tuple(
        Buffer(f"x{k}", kind, tuple(map(as_expr, dims))) for k, (kind, dims) in enumerate(shapes)
    )
    out = Buffer("y", F32, tuple(map(as_expr, (HEADS, S, depth))))
    rows = [(0, n, 0, 1) for n in (width, depth)]
    tables, by_head = [row_major(1, 1, T)] * count, [(0, 1, 0, 0)] * len(scales)
    views = (row_major(*buffers[0].dims), *rows, *tables, *by_head, row_major(*out.dims))
    none: tuple[tuple[()], tuple[()]] = ((), ())
    params = {
        "batch": (as_expr(HEADS),),
        "sizes": (S, T, as_expr(width), as_expr(depth)),
        "views": tuple(tuple(map(as_expr, view)) for view in views),
        "steps": (("mul", -1, 0.5),),
        "dims": out.dims,
        "nan_to_zero": False,
        "hidden": -1,
        "tables": ((0, HEADS * width), (count - 1, HEADS * depth)),
        "scales": tuple((count + k, k * (count - 1), HEADS) for k in range(2)) if scales else none,
    }
    stage = Template("attention", buffers, (out,), params)
    return LoopFunc("attention", buffers, (out,), (stage,))


@pytest.mark.parametrize("dtype", [F32, F16, I8], ids=str)
@pytest.mark.parametrize("width,depth,one", [(8, 8, True), (5, 3, False)])
@pytest.mark.parametrize("queries,keys", [(1, 67), (65, 7), (2, 0)])
def test_rows_that_tables_name(
    width: int, depth: int, queries: int, keys: int, one: bool, dtype: DType
) -> None:
    """Some numbers count from the end, some are outside and clamped."""
    sizes = {"s": queries, "t": keys, "slots": 9}
    check(paged(width, depth, one=one, dtype=dtype), sizes)


@pytest.mark.parametrize("queries,keys", [(0, 3), (3, 0), (0, 0)])
def test_no_queries_and_no_keys(queries: int, keys: int) -> None:
    check(attention(4, 4), {"s": queries, "t": keys})


@pytest.mark.parametrize("keys", [1, 2, 3, 5])
def test_an_infinite_value_of_the_last_key(keys: int) -> None:
    """Kernels that take the last key more than once must not make it 0 times infinity."""
    func, sizes = attention(4, 4), {"s": 3, "t": keys}
    arrays = inputs_for(func, sizes)
    arrays[2][:, -1, 1] = np.inf
    (want,) = run_loop(func, arrays, sizes)
    assert np.isinf(want[..., 1]).all()
    for target in TARGETS.values():
        (got,) = run_schedule(schedule(func, target), func, arrays, sizes)
        assert_close(got, want, 2e-5)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("keys", [0, 1, 64, 65, 201])
def test_keys_split(queries: int, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two chunks of one tile and of more, one hidden whole; a thread has two columns or one."""
    monkeypatch.setattr(attention_split, "_CHUNKS", 2)
    steps = (("mul", -1, 0.5), ("where", 0, float("-inf")))
    func = attention(6, 66 if queries == 1 else 5, steps=steps, others=((BOOL, (1, S, T)),))
    sizes = {"s": queries, "t": keys}
    *given, shown = inputs_for(func, sizes)
    shown[..., :128] = False
    shown[..., -1:] = True
    arrays = [*given, shown]
    (got,) = run_schedule(schedule(func, WEBGPU), func, arrays, sizes)
    assert_close(got, run_loop(func, arrays, sizes)[0], 2e-5)


def test_few_queries_have_versions() -> None:
    def strategies(func: LoopFunc, target: Target) -> list[list[str]]:
        return [[k.comment for k in v.kernels] for v in schedule(func, target).versions]

    one, few, many = strategies(attention(8, 8), WEBGPU)
    assert len(one) == len(few) == 2 and len(many) == 1
    assert len(strategies(attention(8, 8, queries=1), WEBGPU)) == 1
    assert len(strategies(attention(8, 8, queries=1), WEBGPU)[0]) == 2
    assert len(strategies(attention(8, 8, queries=17), WEBGPU)) == 1
    assert len(strategies(attention(8, 8, keys=S), WEBGPU)) == 1
    assert len(strategies(attention(8, 8, keys=S + 60), WEBGPU)) == 2
    assert len(strategies(attention(8, 8, keys=S + T), WEBGPU)) == 3
    for target, usual in (
        (WASM, "attention, blocks of queries"),
        (WEBGPU_SOFTWARE, "attention, 4 queries each"),
    ):
        assert strategies(attention(8, 8), target) == [["attention, 1 queries each"], [usual]]
    assert strategies(attention(8, 8, queries=4), WASM) == [["attention, 4 queries each"]]


def test_workspaces_of_few_queries_do_not_grow_with_their_bound() -> None:
    many = symbol("s", hi=1 << 16)
    keys = symbol("t", hi=1 << 20)
    versions = schedule(attention(64, 64, queries=many, keys=keys), WEBGPU).versions
    for version in versions:
        for temp in version.temps:
            assert upper_bound(numel(temp)) <= HEADS * 16 * 64 * 64


def test_runs_of_blocks_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six blocks of queries in two runs, two tiles of keys, in workspaces that do not grow."""
    monkeypatch.setattr(runs, "_MOST", 2)
    func, sizes = attention(8, 9), {"s": 66, "t": 37}
    version = schedule(func, WASM).versions[-1]
    assert {upper_bound(b.dims[0]) for b in version.temps} == {2}
    check(func, sizes, targets=(WASM,))


def test_sizes_that_are_known() -> None:
    check(attention(16, 16, queries=64, keys=32), {})
    check(attention(16, 16, queries=1, keys=1), {})


@pytest.mark.parametrize("width", [128, 256])
def test_wide_heads(width: int) -> None:
    check(attention(width, width), {"s": 3, "t": 19})


@pytest.mark.parametrize("safe", [False, True])
def test_scores_that_are_no_numbers(safe: bool) -> None:
    """Rows hidden whole, hidden in the first tile alone, and with infinities and NaN in places."""
    func = attention(4, 4, steps=(("add", 0, 0.0),), others=((F32, (1, S, T)),), safe=safe)
    sizes = {"s": 6, "t": 21}
    *given, mask = inputs_for(func, sizes)
    mask[0, 0] = -np.inf
    mask[0, 1, :17] = -np.inf
    mask[0, 2, 3] = np.inf
    mask[0, 3, 20] = np.nan
    mask[0, 4, 5:] = -np.inf
    check(func, sizes, arrays=[*given, mask])


def test_large_scores_do_not_overflow() -> None:
    func = attention(4, 4, steps=(("mul", -1, 1e4),))
    check(func, {"s": 5, "t": 23}, tolerance=1e-3)


def test_views_of_one_buffer() -> None:
    """Queries, keys and values packed as [s, 3, heads, 4], the result as [s, heads * 4]."""
    packed = Buffer("x", F32, (S, as_expr(3 * HEADS * 4)))
    out = Buffer("y", F32, (S, as_expr(HEADS * 4)))
    row, whole = 3 * HEADS * 4, HEADS * 4
    places = [(k * whole, 4, row, 1) for k in range(3)]
    params = {
        "batch": (as_expr(HEADS),),
        "sizes": (S, S, as_expr(4), as_expr(4)),
        "views": tuple(tuple(map(as_expr, p)) for p in (*places, (0, 4, whole, 1))),
        "steps": (),
        "dims": out.dims,
        "nan_to_zero": False,
        "hidden": -1,
        "tables": ((), ()),
        "scales": ((), ()),
    }
    stage = Template("attention", (packed,) * 3, (out,), params)
    check(LoopFunc("attention", (packed,), (out,), (stage,)), {"s": 19})


def on_hosts() -> dict[str, tuple[LoopFunc, dict[str, int]]]:
    """What hosts could do otherwise than the interpreter: odd sizes, masks, infinities, f16."""
    mask, hidden = ((F32, (1, 1, T)),), (("where", 0, float("-inf")),)
    return {
        "tiles": (attention(32, 32, steps=(("add", 0, 0.0),), others=mask), {"s": 65, "t": 37}),
        "odd": (attention(7, 9), {"s": 5, "t": 3}),
        "f16 in pages": (paged(8, 8, one=True, dtype=F16), {"s": 3, "t": 67, "slots": 9}),
        "codes in pages": (paged(8, 5, one=True, dtype=I8), {"s": 3, "t": 67, "slots": 9}),
        "one": (attention(64, 64), {"s": 1, "t": 16}),
        "hidden": (attention(4, 8, steps=hidden, others=((BOOL, (1, S, T)),)), {"s": 9, "t": 18}),
        "f16": (attention(8, 8, dtype=F16), {"s": 5, "t": 9}),
        "no keys": (attention(4, 4), {"s": 3, "t": 0}),
        "decode": (
            attention(32, 8, steps=hidden, others=((BOOL, (1, S, T)),)),
            {"s": 1, "t": 150},
        ),
        "few": (attention(8, 6), {"s": 6, "t": 129}),
    }


@pytest.mark.parametrize("name", on_hosts())
@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_hosts(name: str, target: Target) -> None:
    func, sizes = on_hosts()[name]
    arrays = inputs_for(func, sizes)
    if name == "hidden":
        arrays[3][0, 2], arrays[3][0, 3, :17] = False, False
    want = run_loop(func, arrays, sizes)

    def run(kernel: Any, memory: Any, scalars: Any, grid: int) -> None:
        runner = run_wgpu if target.is_gpu else run_wasm
        for key, value in runner(kernel, memory, scalars, grid).items():
            memory[key][...] = value

    env = {s: sizes[s.name] for s in func.symbols()}
    version = next(v for v in schedule(func, target).versions if all(c.eval(env) for c in v.guards))
    (got,) = run_version(version, func, arrays, sizes, run)
    assert_close(got, want[0], 4e-3 if name == "f16" else 1e-5)
