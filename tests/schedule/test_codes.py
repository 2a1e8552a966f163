"""Products with weights of few bits: codes in words, scales once per group, whatever their form."""

from dataclasses import replace

import numpy as np
import pytest

from edgerelax.ir.dtypes import F16, F32, I8, I32, U8, U16, U32, DType
from edgerelax.ir.loop import LoopFunc, Stage, axis
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.plan import Packed, Version
from edgerelax.ir.scalar import Acc, Buffer, Scalar, Value, cast, constant, op, select
from edgerelax.schedule.ranges import range_of
from edgerelax.schedule.select import prepare, schedule
from edgerelax.schedule.specialise import Case, specialise
from edgerelax.schedule.strategies.base import Unit
from edgerelax.schedule.strategies.gemm import GEMM
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE, Target
from edgerelax.sym import as_expr, symbol
from tests.schedule.oracle import ALL_TARGETS, assert_close, run_schedule, run_version
from tests.schedule.test_conv import buf

M = symbol("m")


def nibble(codes: Buffer, row, column) -> Scalar:
    """The lower half of a byte is the earlier column."""
    byte = cast(codes[row, column // 2], I32)
    return op("bit_and", op("shr", byte, Value(column % 2 * 4, I32)), 15)


def plane(buffer: Buffer, row, column, width: int) -> Scalar:
    return cast(buffer[row, column // width], F32)


def symmetric(n, k, r, c):
    codes, scales = buf("codes", U8, n, k // 2), buf("scales", F16, n, k // 32)
    weight = plane(scales, r, c, 32) * cast(nibble(codes, r, c) - 8, F32)
    return (codes, scales), weight, 4


def asymmetric(n, k, r, c):
    codes, scales = buf("codes", U8, n, k // 2), buf("scales", F16, n, k // 32)
    least = buf("least", F16, n, k // 32)
    weight = plane(scales, r, c, 32) * cast(nibble(codes, r, c), F32) + plane(least, r, c, 32)
    return (codes, scales, least), weight, 4


def scaled_scales(n, k, r, c):
    codes, wide = buf("codes", U8, n, k // 2), buf("wide", F32, n, k // 64)
    narrow, least = buf("narrow", U8, n, k // 16), buf("least", I8, n, k // 16)
    fine = cast(cast(narrow[r, c // 16], I32), F32)
    weight = plane(wide, r, c, 64) * fine * cast(nibble(codes, r, c), F32)
    return (codes, wide, narrow, least), weight - plane(least, r, c, 16), 4


def by_bytes(n, k, r, c):
    codes, scales = buf("codes", I8, n, k), buf("scales", F32, n, k // 16)
    return (codes, scales), plane(scales, r, c, 16) * cast(codes[r, c], F32), 8


def six_bits(n, k, r, c):
    """The upper two bits of a code are in another plane."""
    low, high = buf("low", U8, n, k // 2), buf("high", U8, n, k // 4)
    scales = buf("scales", F32, n, k // 16)
    pair = op("bit_and", op("shr", cast(high[r, c // 4], I32), Value(c % 4 * 2, I32)), 3)
    code = op("bit_or", nibble(low, r, c), op("shl", pair, 4)) - 32
    return (low, high, scales), plane(scales, r, c, 16) * cast(code, F32), 4


def one_scale(n, k, r, c):
    """Codes of three bits, five to a number of 16, of one scale for a row; no groups."""
    codes, scales = buf("codes", U16, n, -(-k // 5)), buf("scales", F32, n)
    held = cast(codes[r, c // 5], I32)
    code = op("bit_and", op("shr", held, Value(c % 5 * 3, I32)), 7)
    return (codes, scales), scales[r] * cast(code - 4, F32), 4


def halves(n, k, r, c):
    """Two codes to a word."""
    codes, scales = buf("codes", U16, n, k), buf("scales", F32, n, k // 16)
    code = cast(cast(codes[r, c], I32), F32) * 1e-4
    return (codes, scales), plane(scales, r, c, 16) * code, 16


def signs(n, k, r, c):
    """A bit that chooses between two scales, and no sum of products of a code."""
    codes, scales = buf("codes", U8, n, k // 8), buf("scales", F32, n, k // 32)
    bit = op("bit_and", op("shr", cast(codes[r, c // 8], I32), Value(c % 8, I32)), 1)
    scale = plane(scales, r, c, 32)
    return (codes, scales), select(op("eq", bit, 1), scale, -scale), 2


FORMS = {
    f.__name__: f
    for f in (symmetric, asymmetric, scaled_scales, by_bytes, six_bits, one_scale, halves, signs)
}


def product(form, m, n, k):
    """y = x Wᵀ, and the bits of a code in memory."""
    i, j, r = axis("i", m), axis("j", n), axis("r", k)
    planes, weight, bits = form(n, k, as_expr(j), as_expr(r))
    x, y = buf("x", F32, m, k), buf("y", F32, m, n)
    stage = Stage(y, (i, j), x[i, r] * weight, (r,), "sum")
    names = frozenset(b.name for b in planes)
    return LoopFunc("product", (x, *planes), (y,), (stage,), names), bits


def arrays_for(func: LoopFunc, m: int) -> list[np.ndarray]:
    """Integers of all values, numbers of the size of one."""
    rng = np.random.default_rng(m)
    env = dict.fromkeys(func.symbols(), m)
    arrays = []
    for b in func.inputs:
        shape = tuple(d.eval(env) for d in b.dims)
        if b.dtype.is_float:
            arrays.append(rng.standard_normal(shape).astype(b.dtype.numpy))
        else:
            low, high = b.dtype.int_range
            arrays.append(rng.integers(low, high, shape, b.dtype.numpy, endpoint=True))
    return arrays


def check_taken(func: LoopFunc, m: int, target: Target = WASM) -> None:
    """What the schedule takes for so many rows gives what the loop interpreter gives."""
    arrays, rows = arrays_for(func, m), {"m": m}
    got = run_schedule(schedule(func, target), func, arrays, rows)
    for g, want in zip(got, run_loop(func, arrays, rows), strict=True):
        assert_close(g, want, 3e-3)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_product_of_its_numbers(form):
    func, _ = product(FORMS[form], M, 13, 64)
    for m in (0, 1, 3):
        check_taken(func, m)


@pytest.mark.parametrize("target", (WEBGPU_SOFTWARE, WEBGPU), ids=lambda t: t.name)
@pytest.mark.parametrize("form", ("asymmetric", "by_bytes", "one_scale"))
def test_on_a_gpu(form, target):
    func, _ = product(FORMS[form], M, 8, 64)
    assert packed_codes(func, target)
    for m in (1, 2):
        check_taken(func, m, target)


def check_tile(func: LoopFunc, m: int, config: str, target: Target) -> None:
    """What one configuration of tiles gives is what the loop interpreter gives."""
    own = specialise(func, Case("_row", {M.atom: 1})) if m == 1 else func
    prepared, made = prepare(own, target)
    match = GEMM.match(Unit("product", prepared.stages, frozenset("y"), prepared.weights), target)
    emitted = GEMM.emit(match, config, target)
    arrays = arrays_for(func, m)
    got = run_version(Version(emitted.kernels, packed=made), func, arrays, {"m": m})
    assert_close(got[0], run_loop(func, arrays, {"m": m})[0], 3e-3)


def test_steps_that_threads_share():
    """Slices without steps, tiles past the end, two tiles of rows."""
    func, _ = product(asymmetric, M, 8, 96)
    for config, m in (("1x4 group", 1), ("4x4 group", 5)):
        check_tile(func, m, config, WEBGPU)


@pytest.mark.parametrize("form", FORMS)
def test_codes_where_they_stand(form):
    """On adapters that take the lanes of a shift one by one; signed, unsigned, and as integers."""
    func, _ = product(FORMS[form], M, 8, 64)
    assert packed_codes(func, WEBGPU_SOFTWARE)
    for config, m in (("1x4", 1), ("4x4", 5), ("8x4", 3)):
        check_tile(func, m, config, WEBGPU_SOFTWARE)


def packed_codes(func: LoopFunc, target: Target = WASM) -> list[Packed]:
    made = [p for v in schedule(func, target).versions for p in v.packed]
    return [p for p in made if p.buffer.dtype in (I32, U32)]


def size(dtype: DType, dims) -> int:
    return dtype.bytes * int(np.prod([d.as_int() for d in dims]))


@pytest.mark.parametrize("form", FORMS)
def test_codes_stay_codes_in_memory(form):
    func, bits = product(FORMS[form], M, 24, 128)
    made = dict.fromkeys(packed_codes(func))
    assert made
    for packed in made:
        assert size(I32, packed.buffer.dims) == 24 * 128 * bits // 8


def test_all_devices_read_the_same_words():
    func, _ = product(asymmetric, M, 24, 128)
    versions = [v for t in ALL_TARGETS for v in schedule(func, t).versions]
    assert len(versions) > 3 and len(versions[0].packed) == 3
    assert {v.packed for v in versions} == {versions[0].packed}


def test_a_word_holds_neighbouring_steps():
    func, _ = product(symmetric, M, 16, 64)
    codes = np.random.default_rng(0).integers(0, 256, (16, 32), np.uint8)
    (words,) = run_loop(packed_codes(func)[0].make, [codes])
    assert words.shape == (2, 2, 4, 8)
    steps = np.stack((codes & 15, codes >> 4), axis=2).reshape(2, 8, 64)
    for k in range(64):
        word = words[:, k // 32, k % 32 // 8].astype(np.int64)
        code = (word >> (28 - k % 8 * 4)) & 15
        np.testing.assert_array_equal(np.where(code > 7, code - 16, code), steps[..., k] - 8.0)


@pytest.mark.parametrize("width", (3, 96))
def test_groups_that_do_not_fit_words_are_left_as_they_are(width):
    n, k = 8, 192
    i, j, r = axis("i", M), axis("j", n), axis("r", k)
    codes, scales = buf("codes", I8, n, k), buf("scales", F32, n, k // width)
    other = buf("other", F32, n, k // 64)
    x, y = buf("x", F32, M, k), buf("y", F32, M, n)
    weight = scales[j, r // width] * other[j, r // 64] * cast(codes[j, r], F32)
    stage = Stage(y, (i, j), x[i, r] * weight, (r,), "sum")
    names = frozenset(("codes", "scales", "other"))
    func = LoopFunc("product", (x, codes, scales, other), (y,), (stage,), names)
    assert not packed_codes(func)
    check_taken(func, 2)


def test_what_is_added_to_the_sum():
    func, _ = product(asymmetric, M, 16, 64)
    (stage,) = func.stages
    b, z = buf("b", F32, 16), buf("z", F32, M, 16)
    stage = replace(stage, init=b[stage.axes[1]], epilogue=Acc(F32) * z[stage.axes])
    func = replace(func, inputs=(*func.inputs, b, z), stages=(stage,))
    for m in (1, 4):
        check_taken(func, m)


def test_activations_are_not_packed():
    func, _ = product(symmetric, M, 16, 64)
    assert not packed_codes(replace(func, weights=frozenset(("codes",))))
    assert not packed_codes(replace(func, weights=frozenset()))


BYTE = buf("byte", U8, 4)[axis("e", 4)]
RANGES = {
    "a load": (BYTE, (0, 255)),
    "less a zero point": (cast(BYTE, I32) - 128, (-128, 127)),
    "a mask": (op("bit_and", cast(BYTE, I32) - 300, 6), (0, 6)),
    "a shift": (op("shr", cast(BYTE, I32), Value(axis("e", 8) % 2 * 4, I32)), (0, 255)),
    "a sure shift": (op("shr", cast(BYTE, I32), 4), (0, 15)),
    "bits above": (op("bit_or", op("shl", op("shr", cast(BYTE, I32), 7), 4), 5), (0, 31)),
    "a wrap": (BYTE - constant(1, U8), (0, 255)),
    "a cast that wraps": (cast(cast(BYTE, I32) - 1, I8), (-128, 127)),
    "a choice": (select(op("eq", BYTE, 3), constant(-2, I32), constant(9, I32)), (-2, 9)),
    "a truth": (cast(op("eq", BYTE, 3), I32), (0, 1)),
    "the lesser": (op("min", op("neg", cast(BYTE, I32)), -7), (-255, -7)),
}


@pytest.mark.parametrize("case", RANGES)
def test_ranges(case):
    scalar, wanted = RANGES[case]
    assert range_of(scalar) == wanted
