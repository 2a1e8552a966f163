"""The meanings that docs/numerics.md promises, the same on both hosts (web.md C 22-28)."""

from typing import Any

import numpy as np
import pytest

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import DTYPES, F32
from edgerelax.ops import OPS
from tests.faults.hosts import N, along, calling, run

INF, NAN = np.inf, np.nan
HUGE = [50.0, 100.0, 1000.0, 1e30, INF, -50.0, -100.0, -1000.0, -1e30, -INF, NAN]


def check(op: str, wanted: Any, *arrays: Any, **attrs: Any) -> None:
    """Both hosts give what is wanted: integers exactly, floats to a few units in the last place."""
    for host, got in along(op, *arrays, **attrs).items():
        expected = np.asarray(wanted).astype(got.dtype)
        tolerance = 2e-3 if got.dtype == np.float16 else 2e-6
        if got.dtype.kind == "f":
            np.testing.assert_allclose(got, expected, rtol=tolerance, atol=1e-30, err_msg=host)
        else:
            np.testing.assert_array_equal(got, expected, err_msg=host)


def f32(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


# Functions far out (22)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_tanh(dtype: type) -> None:
    with np.errstate(over="ignore"):
        x = np.array(HUGE).astype(dtype)
    check("tanh", np.tanh(np.array(HUGE)), x)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_gelu(approximate: str, dtype: type) -> None:
    x = np.array([-1000, -50, -13.3, 0, 6, 13.3, 50, 1000, INF, NAN]).astype(dtype)
    check("gelu", [-0.0, -0.0, -0.0, 0, 6, 13.3, 50, 1000, INF, NAN], x, approximate=approximate)


def test_exponentials() -> None:
    x = f32(-1000, -INF, 1000, INF, NAN)
    check("sigmoid", [0, 0, 1, 1, NAN], x)
    check("softplus", [0, 0, 1000, INF, NAN], x)
    check("exp", [0, 0, INF, INF, NAN], x)
    check("elu", [-1, -1, 1000, INF, NAN], x)
    check("erf", [-1, -1, 1, 1, NAN], x)


def test_trigonometry_of_large_angles() -> None:
    x = f32(1e30, 1e6, -1e4, 355.0)
    check("sin", np.sin(x.astype(np.float64)), x)
    check("cos", np.cos(x.astype(np.float64)), x)


def test_logarithms_and_roots() -> None:
    check("log", [-INF, -INF, NAN, NAN, INF, NAN], f32(0, -0.0, -1, -INF, INF, NAN))
    check("sqrt", [0, -0.0, NAN, NAN, INF, NAN], f32(0, -0.0, -1, -INF, INF, NAN))
    check("reciprocal", [INF, -INF, 0, -0.0, NAN], f32(0, -0.0, INF, -INF, NAN))


# Powers (23)

POWERS = [
    (-8, 1 / 3, NAN), (-8, 3, -512), (-1, INF, 1), (-1, -INF, 1), (-2, 2, 4), (-2, -3, -0.125),
    (-2, 0.5, NAN), (0, 0, 1), (0, -1, INF), (-0.0, -3, -INF), (-0.0, 3, -0.0), (0, INF, 0),
    (1, NAN, 1), (NAN, 0, 1), (NAN, 1, NAN), (1, INF, 1), (2, INF, INF), (2, -INF, 0),
    (0.5, INF, 0), (-INF, 3, -INF), (-INF, 2, INF), (INF, -1, 0), (2, 1000, INF), (-2, 1001, -INF),
]  # fmt: skip


def test_powers() -> None:
    bases, exponents, wanted = (np.array(c) for c in zip(*POWERS, strict=True))
    check("pow", wanted, bases.astype(np.float32), exponents.astype(np.float32))


def test_powers_of_integers_wrap() -> None:
    check("pow", [8, -8, 1, 0, 1, -1, -(2**31)], *map(np.int32, (
        [2, -2, 0, 3, -1, -1, -2], [3, 3, 0, -1, -2, -3, 31])))  # fmt: skip


# Rows (24)


@pytest.mark.parametrize("width", [4, 70, 1030])
def test_softmax_of_masked_rows(width: int) -> None:
    """A row of -inf alone has no softmax: NaN. A row of any finite number is uniform."""
    rows = np.zeros((6, width), np.float32)
    rows[0], rows[1], rows[2], rows[3] = -INF, -1e9, np.finfo(np.float32).min, 65504
    rows[4, 1:] = -INF
    rows[5, 2] = INF
    wanted = np.full((6, width), 1 / width)
    wanted[0] = wanted[5] = NAN
    wanted[4] = 0
    wanted[4, 0] = 1
    check("softmax", wanted, rows, axis=-1)


def test_reductions_pass_nan_on() -> None:
    rows = f32(1, NAN, 3, -INF, INF, 0, -INF, -INF, -INF).reshape(3, 3)
    check("reduce_max", [[NAN], [INF], [-INF]], rows, axes=(1,))
    check("reduce_min", [[NAN], [-INF], [-INF]], rows, axes=(1,))
    check("reduce_sum", [[NAN], [NAN], [-INF]], rows, axes=(1,))
    check("argmax", [[1], [1], [0]], rows, axis=1)


# NaN and infinities (25)


def test_nan_and_infinity() -> None:
    x = f32(NAN, 1, NAN, INF, -INF, 0, -0.0)
    y = f32(1, NAN, NAN, NAN, 1, -0.0, 0)
    check("isnan", [1, 0, 1, 0, 0, 0, 0], x)
    check("isinf", [0, 0, 0, 1, 1, 0, 0], x)
    check("isinf", [0, 0, 0, 1, 0, 0, 0], x, detect_negative=False)
    check("ne", [1, 0, 1, 0, 0, 0, 0], x, x)
    check("max", [NAN, NAN, NAN, NAN, 1, 0, 0], x, y)
    check("min", [NAN, NAN, NAN, NAN, -INF, 0, 0], x, y)
    check("lt", [0, 0, 0, 0, 1, 0, 0], x, y)
    check("eq", [0, 0, 0, 0, 0, 1, 1], x, y)
    check("sub", [NAN, 0, NAN, NAN, NAN, 0, 0], x, x)
    check("div", [NAN, INF, -INF, NAN, 0], f32(0, 1, -1, INF, 1), f32(0, 0, 0, INF, INF))
    check("clip", [NAN, 1, NAN, 1, -1, 0, 0], x, np.float32(-1), np.float32(1))
    check("relu", [NAN, 1, NAN, INF, 0, 0, 0], x)


def test_infinite_constants() -> None:
    """Constants that no WGSL literal can say."""
    f = Function("main")
    x = f.input("x", (N,), F32)
    for k, value in enumerate((INF, -INF, NAN, np.finfo(np.float32).max, 1e-45)):
        f.output(f"y{k}", f.call(OPS["add"], x, f.constant("c", np.float32(value))))
    for got in run(f.module(), {"x": f32(0, 1)}).values():
        np.testing.assert_array_equal(got["y0"], [INF, INF])
        np.testing.assert_array_equal(got["y1"], [-INF, -INF])
        np.testing.assert_array_equal(got["y2"], [NAN, NAN])
        np.testing.assert_array_equal(got["y3"], f32(3.4028234663852886e38, 3.4028234663852886e38))
        assert got["y4"][1] == 1


# Casts (26)

FLOATS = [NAN, 3e9, -3e9, INF, -INF, 1.9, -1.9, 255.5, 300.0, -129.0, 0.3, -0.0, 1e20, 2147483520.0]
LEAST, MOST = -(2**31), 2**31 - 1
CASTS: dict[str, list[int]] = {
    "i32": [0, MOST, LEAST, MOST, LEAST, 1, -1, 255, 300, -129, 0, 0, MOST, 2147483520],
    "u8": [0, 255, 0, 255, 0, 1, 0, 255, 255, 0, 0, 0, 255, 255],
    "i8": [0, 127, -128, 127, -128, 1, -1, 127, 127, -128, 0, 0, 127, 127],
    "u32": [0, 3 * 10**9, 0, 2**32 - 1, 0, 1, 0, 255, 300, 0, 0, 0, 2**32 - 1, 2147483520],
    "i16": [0, 32767, -32768, 32767, -32768, 1, -1, 255, 300, -129, 0, 0, 32767, 32767],
    "bool": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1],
    "i64": [0, 3 * 10**9, -3 * 10**9, 2**63 - 1, -(2**63), 1, -1, 255, 300, -129, 0, 0,
            2**63 - 1, 2147483520],
}  # fmt: skip


@pytest.mark.parametrize("name", CASTS)
def test_floats_saturate(name: str) -> None:
    wanted = np.array(CASTS[name], object)
    check("cast", wanted, f32(*FLOATS), dtype=DTYPES[name])


INTEGERS = [-1, 256, 300, -129, 2**31, 2**32 + 5, -(2**63), 2**63 - 1]


@pytest.mark.parametrize("name", ["i32", "u8", "i8", "u32", "i16", "u16", "bool"])
def test_integers_wrap(name: str) -> None:
    dtype = DTYPES[name]
    x = np.array(INTEGERS, np.int64)
    check("cast", x.astype(dtype.numpy), x, dtype=dtype)


def test_floats_overflow_to_infinity() -> None:
    x = f32(65504, 65520, 7e4, -7e4, NAN, INF, 1e-8)
    check("cast", [65504, INF, INF, -INF, NAN, INF, 0], x, dtype=DTYPES["f16"])


# Division of integers (27)


@pytest.mark.parametrize("name", ["i8", "i16", "i32", "i64"])
def test_integer_division(name: str) -> None:
    dtype = DTYPES[name]
    least, _ = dtype.int_range
    a = np.array([least, 5, 0, -5, 7, -7, 7, -7], dtype.numpy)
    b = np.array([-1, 0, 0, 0, 2, 2, -2, -2], dtype.numpy)
    check("div", np.array([least, 0, 0, 0, 3, -3, -3, 3], dtype.numpy), a, b)
    check("mod", np.array([0, 0, 0, 0, 1, 1, -1, -1], dtype.numpy), a, b)
    check("fmod", np.array([0, 0, 0, 0, 1, -1, 1, -1], dtype.numpy), a, b)


@pytest.mark.parametrize("name", ["u8", "u32", "u64"])
def test_unsigned_division(name: str) -> None:
    dtype = DTYPES[name]
    a = np.array([dtype.int_range[1], 5, 0], dtype.numpy)
    b = np.array([2, 0, 0], dtype.numpy)
    check("div", np.array([dtype.int_range[1] // 2, 0, 0], dtype.numpy), a, b)
    check("mod", np.array([1, 0, 0], dtype.numpy), a, b)


# Indices out of range (28)


@pytest.mark.parametrize("index", ["i32", "i64"])
def test_gather(index: str) -> None:
    table = f32(1, 2, 3, 4).reshape(2, 2)
    least, most = DTYPES[index].int_range
    at = np.array([0, 1, -1, -2, -3, 5, most, least], DTYPES[index].numpy)
    rows = [0, 1, 1, 0, 0, 1, 1, 0]
    module = calling("gather", ((2, 2), np.float32), ((8,), at.dtype), axis=0)
    for got in run(module, {"x0": table, "x1": at}).values():
        np.testing.assert_array_equal(got["y0"], table[rows])


def test_other_gathers() -> None:
    x = f32(1, 2, 3)
    at = np.array([5, -1, -7], np.int64)
    check("gather_elements", [3, 3, 1], x, at, axis=0)
    module = calling("gather_nd", ((3,), np.float32), ((3, 1), np.int64))
    for got in run(module, {"x0": x, "x1": at[:, None]}).values():
        np.testing.assert_array_equal(got["y0"], [3, 3, 1])


def test_scattering_out_of_range_is_dropped() -> None:
    x = f32(1, 2, 3)
    module = calling(
        "scatter_elements", ((3,), np.float32), ((3,), np.int64), ((3,), np.float32), axis=0
    )
    inputs = {"x0": x, "x1": np.array([5, -1, -7]), "x2": f32(10, 20, 30)}
    for got in run(module, inputs).values():
        np.testing.assert_array_equal(got["y0"], [1, 2, 20])
