"""Kernels with workgroups, shared memory, loops, arrays and packed storage, on their hosts."""

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from edgerelax.ir.dtypes import BF16, BOOL, DTYPES, F16, F32, I8, I32, I64, U8, U32, U64, DType
from edgerelax.ir.kernel import (
    LOCAL,
    WORKGROUP,
    Array,
    Assign,
    Barrier,
    For,
    If,
    KBits,
    KCast,
    KConst,
    Kernel,
    KernelBuffer,
    KLane,
    KLoad,
    KScalar,
    KSelect,
    KStmt,
    KStore,
    KSubgroup,
    KVec,
    Let,
    VarDecl,
    f32,
    i32,
    kop,
    var,
)
from edgerelax.ir.scalar import Buffer
from edgerelax.sym import as_expr, symbol
from tests.codegen.function_kernels import buffer
from tests.kernel_runners import run_interp, run_wasm, run_wgpu, wgpu_device

Run = Callable[..., dict[str, np.ndarray]]
GPU = pytest.mark.parametrize("run", [run_interp, run_wgpu], ids=["interp", "wgpu"])
BOTH = pytest.mark.parametrize(
    ("run", "device"),
    [(run_interp, "gpu"), (run_interp, "cpu"), (run_wgpu, "gpu"), (run_wasm, "cpu")],
    ids=["interp-gpu", "interp-cpu", "wgpu", "wasm"],
)


def kernel(
    body: tuple[KStmt, ...],
    sizes: Mapping[str, tuple[DType, int]],
    *,
    device: str = "gpu",
    workgroup: int = 64,
    scalars: tuple[str, ...] = (),
    features: frozenset[str] = frozenset(),
) -> Kernel:
    buffers = tuple(buffer(n, d, size) for n, (d, size) in sizes.items())
    return Kernel(
        "k", device, buffers, tuple((s, symbol(s)) for s in scalars), as_expr(1), workgroup, body,
        features,
    )  # fmt: skip


def load(name: str, index: object, dtype: DType = F32, lanes: int = 1) -> KLoad:
    return KLoad(dtype, lanes, name, index)  # type: ignore[arg-type]


# Workgroups


@GPU
@pytest.mark.parametrize("size", [1, 7, 256, 1000])
def test_tree_reduction(run: Run, size: int) -> None:
    """Rows summed by 256 invocations, with a barrier per step of the tree."""
    width, rows = 256, 3
    step = var("step")
    body = (
        Array("part", F32, width, shared=True),
        VarDecl("acc", f32(0.0)),
        For("c", LOCAL, KScalar(I32, 1, "n"), (
            Let("x", load("x", kop("add", kop("mul", WORKGROUP, KScalar(I32, 1, "n")), var("c")))),
            Assign("acc", kop("add", var("acc", F32), var("x", F32))),
        ), step=width),
        KStore("part", LOCAL, var("acc", F32)),
        Barrier(),
        VarDecl("step", i32(width // 2)),
        For("level", i32(0), i32(8), (
            If(kop("lt", LOCAL, step), (
                Let("other", load("part", kop("add", LOCAL, step))),
                KStore("part", LOCAL, kop("add", load("part", LOCAL), var("other", F32))),
            )),
            Assign("step", kop("index_div", step, i32(2))),
            Barrier(),
        )),
        If(kop("eq", LOCAL, i32(0)), (KStore("y", WORKGROUP, load("part", i32(0))),)),
    )  # fmt: skip
    k = kernel(body, {"x": (F32, rows * size), "y": (F32, rows)}, workgroup=width, scalars=("n",))
    x = np.random.default_rng(0).standard_normal((rows, size)).astype(np.float32)
    got = run(k, {"x": x, "y": np.zeros(rows, np.float32)}, {"n": size}, rows)
    np.testing.assert_allclose(got["y"], x.sum(1), rtol=1e-5, atol=1e-5)


@GPU
@pytest.mark.parametrize("grid", [65535, 65536, 100003])
def test_grid_above_65535(run: Run, grid: int) -> None:
    body = (KStore("y", WORKGROUP, kop("add", WORKGROUP, i32(1))),)
    k = kernel(body, {"y": (I32, grid)}, workgroup=1)
    got = run(k, {"y": np.zeros(grid, np.int32)}, {}, grid)
    np.testing.assert_array_equal(got["y"], np.arange(1, grid + 1))


COMBINED = [(d, fn) for d in (F32, I32, U32) for fn in ("add", "mul", "max", "min")]


@GPU
@pytest.mark.parametrize(("dtype", "fn"), [*COMBINED, (I64, "add"), (U64, "add")])
def test_stores_that_combine(run: Run, dtype: DType, fn: str) -> None:
    """Many invocations per element; carries, wrapping, both signs, an index that is computed."""
    count, places = 40 * 64, 7
    i = Let("i", kop("add", kop("mul", WORKGROUP, i32(64)), LOCAL))
    place = kop("index_mod", var("i"), i32(places))
    body = (i, KStore("y", place, load("x", var("i"), dtype), combine=fn))
    k = kernel(body, {"x": (dtype, count), "y": (dtype, places)})
    rng = np.random.default_rng(0)
    if dtype.is_float:
        x = rng.choice([-1, 1], count) if fn == "mul" else rng.integers(-50, 50, count)
    else:
        x = rng.integers(*dtype.int_range, count, dtype=dtype.numpy, endpoint=True)
        x = x | 1 if fn == "mul" else x
    y = np.arange(places).astype(dtype.numpy) - np.array(3).astype(dtype.numpy)
    wanted = y.copy()
    ufunc = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}[fn]
    with np.errstate(all="ignore"):
        ufunc.at(wanted, np.arange(count) % places, x.astype(dtype.numpy))
    got = run(k, {"x": x.astype(dtype.numpy), "y": y}, {}, count // 64)
    np.testing.assert_array_equal(got["y"], wanted)


@GPU
def test_combining_with_nan(run: Run) -> None:
    body = (KStore("y", i32(0), load("x", LOCAL), combine="max"),)
    k = kernel(body, {"x": (F32, 64), "y": (F32, 1)})
    x = np.where(np.arange(64) == 5, np.nan, np.arange(64)).astype(np.float32)
    assert np.isnan(run(k, {"x": x, "y": np.zeros(1, np.float32)}, {}, 1)["y"][0])


@GPU
def test_shared_arrays_of_vectors_and_of_bools(run: Run) -> None:
    body = (
        Array("tile", F32, 16, shared=True, lanes=4),
        Array("odd", BOOL, 16, shared=True),
        Let("at", kop("mul", LOCAL, i32(4))),
        KStore("tile", LOCAL, KLoad(F32, 4, "x", var("at"))),
        KStore("odd", LOCAL, kop("eq", kop("index_mod", LOCAL, i32(2)), i32(1))),
        Barrier(),
        Let("mirror", kop("sub", i32(15), LOCAL)),
        Let("v", KLoad(F32, 4, "tile", var("mirror"))),
        KStore("y", var("at"), KSelect(F32, 4, KLoad(BOOL, 1, "odd", var("mirror")),
                                       kop("neg", var("v", F32, 4)), var("v", F32, 4))),
    )  # fmt: skip
    k = kernel(body, {"x": (F32, 64), "y": (F32, 64)}, workgroup=16)
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    got = run(k, {"x": x, "y": np.zeros(64, np.float32)}, {}, 1)["y"].reshape(16, 4)
    signs = np.where(np.arange(16)[::-1] % 2 == 1, -1, 1)[:, None]
    np.testing.assert_array_equal(got, x[::-1] * signs)


@GPU
def test_private_array_with_a_dynamic_index(run: Run) -> None:
    body = (
        Array("r", F32, 8, shared=False),
        For("k", i32(0), i32(8), (KStore("r", var("k"), KCast(F32, 1, var("k"))),)),
        Let("v", KLoad(F32, 4, "r", i32(4))),
        Let("at", kop("index_mod", LOCAL, i32(8))),
        KStore("y", LOCAL, kop("add", load("r", var("at")), KLane(F32, 1, var("v", F32, 4), 3))),
    )
    k = kernel(body, {"y": (F32, 16)}, workgroup=16)
    got = run(k, {"y": np.zeros(16, np.float32)}, {}, 1)["y"]
    np.testing.assert_array_equal(got, np.arange(16) % 8 + 7)


def test_subgroups() -> None:
    device = wgpu_device()
    if device is None or "subgroup" not in device.features:
        pytest.skip("no subgroups")
    body = (
        Let("s", KSubgroup(F32, 1, "add", KCast(F32, 1, LOCAL))),
        KStore("y", LOCAL, var("s", F32)),
    )
    k = kernel(body, {"y": (F32, 64)}, features=frozenset(("subgroups",)))
    got = run_wgpu(k, {"y": np.zeros(64, np.float32)}, {}, 1)["y"]
    sizes = [s for s in (4, 8, 16, 32, 64) if got[0] == sum(range(s))]
    assert sizes
    np.testing.assert_array_equal(got[:: sizes[0]], np.arange(64).reshape(-1, sizes[0]).sum(1))


# Loops and registers, on both kinds of device


def per_item(*body: KStmt) -> tuple[KStmt, ...]:
    """One invocation works on the item `i`."""
    return (Let("i", WORKGROUP), *body)


@BOTH
def test_register_tile_with_unrolled_loops(run: Run, device: str) -> None:
    """A 2 x 4 tile of a matrix product, its accumulators in an array."""
    m, k_size, n = 4, 5, 8
    row = kop("mul", kop("index_div", var("i"), i32(2)), i32(2))
    column = kop("mul", kop("index_mod", var("i"), i32(2)), i32(4))
    a_at = kop("add", kop("mul", kop("add", var("row"), var("r")), i32(k_size)), var("k"))
    body = per_item(
        Let("row", row),
        Let("col", column),
        Array("acc", F32, 2, shared=False, lanes=4),
        For("k", i32(0), KScalar(I32, 1, "depth"), (
            Let("b", KLoad(F32, 4, "b", kop("add", kop("mul", var("k"), i32(n)), var("col")))),
            For("r", i32(0), i32(2), (
                Let("a", KVec(F32, 4, (load("a", a_at),))),
                KStore("acc", var("r"), kop("fma", var("a", F32, 4), var("b", F32, 4),
                                            KLoad(F32, 4, "acc", var("r")))),
            ), unroll=True),
        )),
        For("r", i32(0), i32(2), (
            Let("to", kop("add", kop("mul", kop("add", var("row"), var("r")), i32(n)), var("col"))),
            KStore("y", var("to"), KLoad(F32, 4, "acc", var("r"))),
        ), unroll=True),
    )  # fmt: skip
    kern = kernel(
        body,
        {"a": (F32, m * k_size), "b": (F32, k_size * n), "y": (F32, m * n)},
        device=device,
        workgroup=1,
        scalars=("depth",),
    )
    rng = np.random.default_rng(1)
    a, b = rng.standard_normal((m, k_size)), rng.standard_normal((k_size, n))
    arrays = {
        "a": a.astype(np.float32),
        "b": b.astype(np.float32),
        "y": np.zeros((m, n), np.float32),
    }
    got = run(kern, arrays, {"depth": k_size}, 4)["y"]
    np.testing.assert_allclose(got, a @ b, rtol=1e-5, atol=1e-5)
    if run is run_wasm:
        fused = run_wasm(kern, arrays, {"depth": k_size}, 4, relaxed=True, split=1)["y"]
        np.testing.assert_allclose(fused, a @ b, rtol=1e-5, atol=1e-5)


@BOTH
def test_bounds_are_evaluated_once(run: Run, device: str) -> None:
    """A loop whose stop is changed inside, and one that does not run."""
    body = per_item(
        VarDecl("end", i32(3)),
        VarDecl("count", i32(0)),
        For("k", i32(0), var("end"), (
            Assign("end", kop("add", var("end"), i32(1))),
            Assign("count", kop("add", var("count"), i32(1))),
        )),
        For("k", i32(5), kop("sub", var("i"), i32(100)), (Assign("count", i32(-1)),)),
        For("k", i32(2), i32(2), (Assign("count", i32(-2)),)),
        For("k", i32(0), var("i"), (
            If(kop("eq", var("k"), i32(1)), (Assign("count", kop("add", var("count"), i32(10))),),
               (Assign("count", kop("add", var("count"), i32(100))),)),
        ), step=2),
        KStore("y", var("i"), var("count")),
    )  # fmt: skip
    k = kernel(body, {"y": (I32, 6)}, device=device, workgroup=1)
    got = run(k, {"y": np.zeros(6, np.int32)}, {}, 6)["y"]
    np.testing.assert_array_equal(got, [3, 103, 103, 203, 203, 303])


@BOTH
def test_names_of_the_ir_may_be_anything(run: Run, device: str) -> None:
    body = per_item(
        Let("self", KLoad(F32, 1, "fn", var("i"))),
        Let("a.b", kop("add", var("self", F32), f32(1.0))),
        Let("a_b", kop("add", var("a.b", F32), f32(1.0))),
        Let("ä b", kop("add", var("a_b", F32), f32(1.0))),
        KStore("target", var("i"), var("ä b", F32)),
    )
    sizes = {"fn": (F32, 4), "target": (F32, 4)}
    k = kernel(body, sizes, device=device, workgroup=1)
    arrays = {"fn": np.arange(4, dtype=np.float32), "target": np.zeros(4, np.float32)}
    np.testing.assert_array_equal(run(k, arrays, {}, 4)["target"], np.arange(4) + 3)


@BOTH
def test_constants(run: Run, device: str) -> None:
    values = [0.0, -0.0, 1.5, -3.4028234663852886e38, np.inf, -np.inf, np.nan, 1e-30, 16777217.0]
    values += [0.1, 1.17549435e-38, 123456.789]
    ints = [0, -1, 2**31 - 1, -(2**31), 7]
    wide = [0, -1, 2**63 - 1, -(2**63), 2**32 + 5]
    stores: list[KStmt] = [KStore("f", i32(k), f32(v)) for k, v in enumerate(values)]
    stores += [KStore("i", i32(k), i32(v)) for k, v in enumerate(ints)]
    stores += [KStore("u", i32(k), KConst(U32, 1, v % 2**32)) for k, v in enumerate(ints)]
    stores += [KStore("q", i32(k), KConst(I64, 1, v)) for k, v in enumerate(wide)]
    sizes = {"f": (F32, 12), "i": (I32, 5), "u": (U32, 5), "q": (I64, 5)}
    k = kernel(tuple(stores), sizes, device=device, workgroup=1)
    got = run(k, {n: np.zeros(s, d.numpy) for n, (d, s) in sizes.items()}, {}, 1)
    np.testing.assert_array_equal(got["f"], np.array(values, np.float32))
    assert np.signbit(got["f"][1]) and not np.signbit(got["f"][0])
    np.testing.assert_array_equal(got["i"], ints)
    np.testing.assert_array_equal(got["u"], np.array(ints).astype(np.uint32))
    np.testing.assert_array_equal(got["q"], wide)


# Packed storage

PACKED = [I8, U8, BOOL, F16, BF16, DTYPES["i16"], DTYPES["u16"], DTYPES["f8e4m3fn"]]


@GPU
@pytest.mark.parametrize("dtype", PACKED, ids=str)
@pytest.mark.parametrize("size", [1, 2, 5, 8, 13])
def test_packed_tails(run: Run, dtype: DType, size: int) -> None:
    """Whole words are stored, the last one beyond the tensor; single elements are loaded."""
    lanes = 4 if dtype.bits == 8 else 2
    last = i32(size - 1)
    parts = tuple(
        KLoad(dtype, 1, "x", kop("sub", last, kop("min", kop("add", var("i"), i32(k)), last)))
        for k in range(lanes)
    )
    body = (
        Let("i", kop("mul", WORKGROUP, i32(lanes))),
        KStore("y", var("i"), KVec(dtype, lanes, parts)),
    )
    k = kernel(body, {"x": (dtype, size), "y": (dtype, size)}, workgroup=1)
    x = np.arange(1, size + 1).astype(dtype.numpy)
    got = run(k, {"x": x, "y": np.zeros_like(x)}, {}, -(-size // lanes))["y"]
    np.testing.assert_array_equal(got.astype(np.float32), x[::-1].astype(np.float32))


@BOTH
@pytest.mark.parametrize("dtype", [DTYPES[name] for name in ("i4", "u4", "i2", "u2")], ids=str)
def test_short_loads(run: Run, device: str, dtype: DType) -> None:
    """Alone, four at a place that is a multiple of four, and four anywhere."""
    size = 24
    one = KCast(I32, 1, KLoad(dtype, 1, "x", var("i")))
    four = KCast(
        I32, 4, KLoad(dtype, 4, "x", kop("mul", kop("index_div", var("i"), i32(4)), i32(4)))
    )
    near = KCast(I32, 4, KLoad(dtype, 4, "x", kop("min", var("i"), i32(size - 4)), aligned=False))
    body = per_item(
        KStore("one", var("i"), one),
        KStore("four", kop("mul", var("i"), i32(4)), four),
        KStore("near", kop("mul", var("i"), i32(4)), near),
    )
    sizes = {
        "x": (dtype, size),
        "one": (I32, size),
        "four": (I32, 4 * size),
        "near": (I32, 4 * size),
    }
    k = kernel(body, sizes, device=device, workgroup=1)
    low, high = dtype.int_range
    x = np.random.default_rng(5).integers(low, high, size, endpoint=True).astype(dtype.numpy)
    arrays = {n: np.zeros(s, np.int32) for n, (_, s) in sizes.items()} | {"x": x}
    got = run(k, arrays, {}, size)
    values = x.astype(np.int32)
    np.testing.assert_array_equal(got["one"], values)
    starts = np.arange(size) // 4 * 4
    np.testing.assert_array_equal(
        got["four"].reshape(-1, 4), values[starts[:, None] + np.arange(4)]
    )
    starts = np.minimum(np.arange(size), size - 4)
    np.testing.assert_array_equal(
        got["near"].reshape(-1, 4), values[starts[:, None] + np.arange(4)]
    )


@BOTH
@pytest.mark.parametrize("size", [8, 9, 12])
def test_vector_and_scalar_accesses_of_one_buffer(run: Run, device: str, size: int) -> None:
    """Aligned lanes, lanes anywhere, and single elements; the extent divides by 4 or does not."""
    body = per_item(
        Let("at", kop("mul", kop("index_div", var("i"), i32(4)), i32(4))),
        Let("whole", KLoad(F32, 4, "x", kop("min", var("at"), i32(4)))),
        Let("near", KLoad(F32, 4, "x", kop("min", var("i"), i32(size - 4)), aligned=False)),
        Let("sum", kop("add", var("whole", F32, 4), var("near", F32, 4))),
        Let("sum2", kop("add", var("sum", F32, 4), KVec(F32, 4, (load("x", var("i")),)))),
        KStore("y", kop("mul", var("i"), i32(4)), var("sum2", F32, 4)),
        KStore("z", kop("add", kop("mul", var("i"), i32(4)), i32(1)), var("sum", F32, 4),
               aligned=False),
    )  # fmt: skip
    sizes = {"x": (F32, size), "y": (F32, 4 * size), "z": (F32, 4 * size + 1)}
    k = kernel(body, sizes, device=device, workgroup=1)
    x = np.random.default_rng(2).standard_normal(size).astype(np.float32)
    arrays = {"x": x, "y": np.zeros(4 * size, np.float32), "z": np.zeros(4 * size + 1, np.float32)}
    got = run(k, arrays, {}, size)
    item, lane = np.arange(size)[:, None], np.arange(4)
    total = x[np.minimum(item // 4 * 4, 4) + lane] + x[np.minimum(item, size - 4) + lane]
    np.testing.assert_allclose(got["y"].reshape(size, 4), total + x[item], rtol=1e-6)
    np.testing.assert_allclose(got["z"][1:].reshape(size, 4), total, rtol=1e-6)


def test_cpu_kernels_run_in_any_split() -> None:
    body = (KStore("y", WORKGROUP, kop("add", load("y", WORKGROUP, I32), WORKGROUP)),)
    k = kernel(body, {"y": (I32, 10)}, device="cpu")
    for split in (1, 3, 10):
        got = run_wasm(k, {"y": np.ones(10, np.int32)}, {}, 10, split=split)["y"]
        np.testing.assert_array_equal(got, np.arange(10) + 1)


def test_read_only_weights() -> None:
    weight = KernelBuffer(Buffer("w", F32, (as_expr(4),)), "read")
    body = (KStore("y", LOCAL, kop("mul", load("w", LOCAL), f32(2.0))),)
    k = Kernel("k", "gpu", (weight, buffer("y", F32, 4)), (), as_expr(1), 4, body)
    w = np.arange(4, dtype=np.float32)
    got = run_wgpu(k, {"w": w, "y": np.zeros(4, np.float32)}, {}, 1)
    np.testing.assert_array_equal(got["y"], w * 2)


@BOTH
@pytest.mark.parametrize("lanes", [1, 4])
def test_the_same_bits_of_another_type(run: Run, device: str, lanes: int) -> None:
    """Floats in the order of their bits, a step apart, and back."""
    index = LOCAL if lanes == 1 else kop("mul", LOCAL, i32(4))
    if device == "cpu":
        index = WORKGROUP if lanes == 1 else kop("mul", WORKGROUP, i32(4))
    bits = KBits(I32, lanes, load("x", index, F32, lanes))
    next_up = KBits(F32, lanes, kop("add", bits, KConst(I32, lanes, 1)))
    body = (KStore("y", index, next_up), KStore("z", index, bits))
    k = kernel(
        body, {"x": (F32, 8), "y": (F32, 8), "z": (I32, 8)}, device=device, workgroup=8 // lanes
    )
    x = np.array([1, 0.5, 3e38, 1e-30, 7, 0.1, 255, 2**-20], np.float32)
    given = {"x": x, "y": np.zeros(8, np.float32), "z": np.zeros(8, np.int32)}
    got = run(k, given, {}, 1 if device == "gpu" else 8 // lanes)
    np.testing.assert_array_equal(got["y"], np.nextafter(x, np.float32(np.inf)))
    np.testing.assert_array_equal(got["z"], x.view(np.int32))
