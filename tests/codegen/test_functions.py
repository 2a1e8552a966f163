"""Every function of every type, on scalars and on lanes, on every host, at the values that hurt."""

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from edgerelax.ir.dtypes import DTYPES, F32, DType
from edgerelax.ir.kernel import KCast, Kernel, KLoad, KStore, Let, kop, var
from edgerelax.sym import as_expr
from tests.codegen.function_kernels import (
    Case,
    all_codes,
    buffer,
    cast_case,
    function_case,
    functions_of,
    quads,
)
from tests.kernel_runners import run_interp, run_wasm, run_wgpu

TYPES = [d for d in DTYPES.values() if d.kind != "string"]
SHAPES = [(d, lanes) for d in TYPES for lanes in (1, 4) if lanes == 1 or d.bits < 64]
GPU_SHAPES = [(d, n) for d, n in SHAPES if d.name != "f64"]

# f8e8m0 holds scales: nothing computes in it.
COMPUTED = [(d, n) for d, n in SHAPES if d.name != "f8e8m0"]
COMPUTED_ON_GPU = [(d, n) for d, n in GPU_SHAPES if d.name != "f8e8m0"]

# WGSL's exp may be off by 3 + 2|x| ulp, and so what is made of it.
GROWING = frozenset(("exp", "expm1", "sinh", "cosh", "sigmoid", "pow"))


def by_name(value: object) -> str:
    return str(value)


def tolerance(fn: str, dtype: DType, host: str) -> float:
    """The relative error that is allowed; 4 ulp of f32 is 4.8e-7."""
    if dtype.bits < 32:
        return {"f16": 1e-3, "bf16": 8e-3}.get(dtype.name, 0.26)
    if dtype.bits == 64:
        return 1e-15
    return 2e-5 if host == "wgpu" and fn in GROWING else 4.8e-7


def check(case: Case, got: dict[str, np.ndarray], host: str) -> None:
    size = len(case.inputs["a"])
    for what, (target, row) in case.rows.items():
        found = got[target][row * size : (row + 1) * size]
        wanted = case.outputs[target][row * size : (row + 1) * size]
        where = f"{what} in {case.kernel.name}"
        if found.dtype.kind in "iub" or what.startswith("to_"):
            np.testing.assert_array_equal(found, wanted, err_msg=where)
            continue
        rtol = tolerance(what, case.kernel.buffers[0].buffer.dtype, host)
        np.testing.assert_allclose(
            found.astype(np.float64), wanted.astype(np.float64), rtol, 2.4e-38, err_msg=where
        )


def groups(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """lavapipe's compile time grows faster than a kernel."""
    return [names[k : k + size] for k in range(0, len(names), size)]


@pytest.mark.parametrize(("dtype", "lanes"), COMPUTED, ids=by_name)
def test_functions_on_the_interpreter(dtype: DType, lanes: int) -> None:
    for device in ("cpu", "gpu"):
        case = function_case(functions_of(dtype), dtype, lanes, device)
        check(case, run_interp(case.kernel, case.arrays, case.scalars, case.grid), "interp")


@pytest.mark.parametrize(("dtype", "lanes"), COMPUTED, ids=by_name)
def test_functions_on_wasm(dtype: DType, lanes: int) -> None:
    case = function_case(functions_of(dtype), dtype, lanes, "cpu")
    check(case, run_wasm(case.kernel, case.arrays, case.scalars, case.grid), "wasm")


@pytest.mark.parametrize(("dtype", "lanes"), COMPUTED_ON_GPU, ids=by_name)
def test_functions_on_wgpu(dtype: DType, lanes: int) -> None:
    for names in groups(functions_of(dtype), 12):
        case = function_case(names, dtype, lanes, "gpu")
        check(case, run_wgpu(case.kernel, case.arrays, case.scalars, case.grid), "wgpu")


def targets(lanes: int, *, gpu: bool) -> list[DType]:
    return [d for d in TYPES if not (lanes == 4 and d.bits == 64) and not (gpu and d.name == "f64")]


def check_casts(
    source: DType, lanes: int, run: Callable[..., dict[str, np.ndarray]], *, gpu: bool
) -> None:
    for some in groups(targets(lanes, gpu=gpu), 6 if gpu else 20):
        case = cast_case(source, some, lanes, "gpu" if gpu else "cpu")
        got = run(case.kernel, case.arrays, case.scalars, case.grid)
        for target in some:
            found, wanted = got[f"to_{target}"], case.outputs[f"to_{target}"]
            if target.is_float:  # numpy sees NaN in its own floats only
                found, wanted = found.astype(np.float64), wanted.astype(np.float64)
            np.testing.assert_array_equal(found, wanted, err_msg=f"{source} to {target}")


@pytest.mark.parametrize(("dtype", "lanes"), SHAPES, ids=by_name)
def test_casts_on_wasm(dtype: DType, lanes: int) -> None:
    check_casts(dtype, lanes, run_interp, gpu=False)
    check_casts(dtype, lanes, run_wasm, gpu=False)


@pytest.mark.parametrize(("dtype", "lanes"), GPU_SHAPES, ids=by_name)
def test_casts_on_wgpu(dtype: DType, lanes: int) -> None:
    check_casts(dtype, lanes, run_wgpu, gpu=True)


# The stated errors of the functions that CPU kernels compute themselves


def map_kernel(fn: str, count: int) -> Kernel:
    body, grid = quads(
        "cpu",
        count // 4,
        [Let("x", KLoad(F32, 4, "x", var("i"))), KStore("y", var("i"), kop(fn, var("x", F32, 4)))],
    )
    buffers = (buffer("x", F32, count), buffer("y", F32, count))
    return Kernel(fn, "cpu", buffers, (), as_expr(grid), 1, body)


def exact(fn: str, x: np.ndarray) -> np.ndarray:
    wide = x.astype(np.float64)
    if fn == "erf":
        return np.array([math.erf(v) for v in wide])
    with np.errstate(all="ignore"):
        return 1 / (1 + np.exp(-wide)) if fn == "sigmoid" else getattr(np, fn)(wide)


@pytest.mark.parametrize(
    ("fn", "ulp", "low", "high"),
    [("exp", 2, -87, 88.7), ("log", 2, 1e-37, 3e38), ("tanh", 6, -12, 12), ("erf", 6, -5, 5),
     ("sigmoid", 3, -80, 80)],
)  # fmt: skip
def test_errors_in_ulp(fn: str, ulp: float, low: float, high: float) -> None:
    rng = np.random.default_rng(1)
    if fn == "log":
        x = np.exp(rng.uniform(np.log(low), np.log(high), 40000))
        x = np.concatenate([x, rng.uniform(0.5, 2, 40000)])
    else:
        sizes = np.exp(rng.uniform(-16, np.log(high), 40000)) * rng.choice([-1, 1], 40000)
        x = np.concatenate([rng.uniform(low, high, 40000), np.clip(sizes, low, high)])
    x = x.astype(np.float32)
    y = run_wasm(map_kernel(fn, len(x)), {"x": x, "y": np.zeros_like(x)}, {}, len(x) // 4)["y"]
    want = exact(fn, x)
    error = np.abs(y - want) / np.spacing(np.abs(want).astype(np.float32))
    assert error.max() <= ulp, x[error.argmax()]


def test_exp_and_log_of_subnormals_on_wasm() -> None:
    x = np.array([-88.0, -100.0, -103.9, -104.5], np.float32)
    y = run_wasm(map_kernel("exp", 4), {"x": x, "y": np.zeros_like(x)}, {}, 1)["y"]
    np.testing.assert_allclose(y, np.exp(x), atol=1.5e-45)
    x = np.array([1e-38, 1e-40, 1.4e-45, 1.1754944e-38], np.float32)
    y = run_wasm(map_kernel("log", 4), {"x": x, "y": np.zeros_like(x)}, {}, 1)["y"]
    np.testing.assert_allclose(y, np.log(x), rtol=2e-7)


# Every code of the narrow floats

NARROW = [d for d in TYPES if d.is_float and d.bits < 32]


@pytest.mark.parametrize("dtype", NARROW, ids=by_name)
@pytest.mark.parametrize("run", [run_wasm, run_wgpu], ids=["wasm", "wgpu"])
def test_every_code_is_decoded_and_encoded(
    dtype: DType, run: Callable[..., dict[str, np.ndarray]]
) -> None:
    codes = all_codes(dtype)
    count = len(codes)
    device = "cpu" if run is run_wasm else "gpu"
    value = KLoad(dtype, 4, "x", var("i"))
    body, grid = quads(
        device, count // 4,
        [KStore("wide", var("i"), KCast(F32, 4, value)), KStore("same", var("i"), value)],
    )  # fmt: skip
    buffers = (buffer("x", dtype, count), buffer("wide", F32, count), buffer("same", dtype, count))
    kernel = Kernel("codes", device, buffers, (("n", as_expr(count)),), as_expr(grid), 64, body)
    got = run(
        kernel,
        {"x": codes, "wide": np.zeros(count, np.float32), "same": np.zeros_like(codes)},
        {"n": count},
        grid,
    )
    values = codes.astype(np.float32)
    np.testing.assert_array_equal(got["wide"], values)
    np.testing.assert_array_equal(got["same"].astype(np.float32), values)
    real = ~np.isnan(values)
    np.testing.assert_array_equal(np.signbit(got["wide"])[real], np.signbit(values)[real])
