"""Values bound twice, views, bytes that fill no word, many operands, default limits.

web.md C 33, 34, 40, 41.
"""

import re
from collections.abc import Callable

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.artifact.manifest import Needs
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import DTYPES, F32
from edgerelax.ir.graph import Module, Value
from edgerelax.ops import OPS
from tests.e2e.models import compiled
from tests.faults.hosts import HOSTS, N, along, calling, run
from tests.passes.programs import many_operands

Body = Callable[[Function, Value], Value]


def of(body: Body) -> Module:
    f = Function("main")
    f.output("y", body(f, f.input("x", (N, 6), F32)))
    return f.module()


def exp(f: Function, x: Value) -> Value:
    return f.call(OPS["exp"], x)


ALIASES: dict[str, tuple[Body, Callable[[np.ndarray], np.ndarray]]] = {
    "sum": (lambda f, x: f.call(OPS["add"], x, x), lambda x: x + x),
    "square": (lambda f, x: f.call(OPS["mul"], x, x), lambda x: x * x),
    "square of an intermediate": (
        lambda f, x: f.call(OPS["mul"], *[exp(f, x)] * 2),
        lambda x: np.exp(x) ** 2,
    ),
    "product with itself": (
        lambda f, x: f.call(OPS["matmul"], x, f.call(OPS["transpose"], x, perm=(1, 0))),
        lambda x: x @ x.T,
    ),
    "concat": (lambda f, x: f.call(OPS["concat"], x, x, axis=0), lambda x: np.concatenate([x, x])),
    "concat of an intermediate": (
        lambda f, x: f.call(OPS["concat"], *[exp(f, x)] * 3, axis=1),
        lambda x: np.concatenate([np.exp(x)] * 3, 1),
    ),
    "view beside its source": (
        lambda f, x: f.call(
            OPS["matmul"], x, f.call(OPS["reshape"], x, dims=(6, N)), name="both"
        ),
        lambda x: x @ x.reshape(6, -1),
    ),
    "where of one": (
        lambda f, x: f.call(OPS["where"], f.call(OPS["lt"], x, x), x, x),
        lambda x: x,
    ),
    "gather from itself": (
        lambda f, x: f.call(
            OPS["gather_elements"], x, f.call(OPS["argmax"], x, axis=1), axis=1
        ),
        lambda x: np.take_along_axis(x, x.argmax(1, keepdims=True), 1),
    ),
}  # fmt: skip


@pytest.mark.parametrize("without", [(), ("fuse",), ("fuse", "cse", "reuse")], ids=str)
@pytest.mark.parametrize("name", ALIASES)
def test_bound_twice(name: str, without: tuple[str, ...]) -> None:
    body, meaning = ALIASES[name]
    executable = api.compile(of(body), without=without, verify=True)
    for host in HOSTS:
        with executable.session(host) as session:
            for n in (1, 5, 5, 8):
                x = np.random.default_rng(n).standard_normal((n, 6)).astype(np.float32)
                got = session.run({"x": x})["y"]
                np.testing.assert_allclose(got, meaning(x), rtol=1e-5, atol=1e-5)


def test_one_value_as_several_results() -> None:
    f = Function("main")
    x = f.input("x", (N, 6), F32)
    y = f.call(OPS["exp"], x)
    view = f.call(OPS["reshape"], y, dims=(N * 6,))
    for name, value in {"same": x, "y": y, "again": y, "view": view}.items():
        f.output(name, value)
    data = np.random.default_rng(0).standard_normal((3, 6)).astype(np.float32)
    for got in run(f.module(), {"x": data}).values():
        np.testing.assert_array_equal(got["same"], data)
        np.testing.assert_array_equal(got["again"], got["y"])
        np.testing.assert_array_equal(got["view"], got["y"].reshape(-1))
        np.testing.assert_allclose(got["y"], np.exp(data), rtol=1e-5)


NARROW = ("u8", "i8", "bool", "f16", "bf16", "i16", "u16", "u4", "i4", "i64")


@pytest.mark.parametrize("name", NARROW)
def test_bytes_that_fill_no_word(name: str) -> None:
    """1 to 9 elements: copied, sliced at an odd place, joined with themselves."""
    dtype = DTYPES[name]
    f = Function("main")
    x = f.input("x", (N,), dtype)
    f.output("same", f.call(OPS["concat"], x, axis=0))
    f.output("tail", f.call(OPS["slice"], x, starts=(1,), ends=(N,), axes=(0,), steps=None))
    f.output("twice", f.call(OPS["concat"], x, x, axis=0))
    executable = api.compile(f.module(), verify=True)
    for host in HOSTS:
        with executable.session(host) as session:
            for n in range(1, 10):
                data = np.arange(1, n + 1).astype(dtype.numpy)
                got = session.run({"x": data})
                for key, wanted in {
                    "same": data, "tail": data[1:], "twice": np.concatenate([data, data])
                }.items():  # fmt: skip
                    assert got[key].dtype == wanted.dtype
                    assert got[key].tobytes() == wanted.tobytes(), f"{host} {n} {key}"


@pytest.mark.parametrize("n", [1, 2, 3, 5])
def test_narrow_arithmetic_in_tails(n: int) -> None:
    x = np.arange(250, 250 + n).astype(np.uint8)
    for got in along("add", x, x).values():
        np.testing.assert_array_equal(got, x + x)
    half = np.linspace(-2, 2, n).astype(np.float16)
    for got in along("mul", half, half).values():
        np.testing.assert_array_equal(got, half * half)


def test_twelve_operands() -> None:
    """More than a kernel may bind: several kernels, the right sum."""
    rng = np.random.default_rng(0)
    inputs = {f"x{k}": rng.standard_normal(7).astype(np.float32) for k in range(12)}
    for got in run(many_operands(), inputs).values():
        np.testing.assert_allclose(got["y"], sum(inputs.values()), rtol=1e-5)
    kernels = api.compile(many_operands()).artifact.manifest.program("gpu").gpu_kernels
    assert max(len(k.buffers) for k in kernels) <= 8


def test_concat_of_twelve() -> None:
    module = calling("concat", *[((N, 2), np.float32)] * 12, axis=1)
    inputs = {f"x{k}": np.full((3, 2), k, np.float32) for k in range(12)}
    for got in run(module, inputs).values():
        np.testing.assert_array_equal(got["y0"], np.concatenate(list(inputs.values()), 1))
    kernels = api.compile(module).artifact.manifest.program("gpu").gpu_kernels
    assert max(len(k.buffers) for k in kernels) <= 8


WORKGROUP = re.compile(r"@workgroup_size\((\d+)(?:, *(\d+))?(?:, *(\d+))?\)")
SHARED = re.compile(r"var<workgroup> \w+: array<([\w<>]+), (\d+)>")
SIZES = {"f32": 4, "i32": 4, "u32": 4, "vec2<u32>": 8, "vec4<f32>": 16, "vec4<i32>": 16, "bool": 4}


@pytest.mark.parametrize("name", ["minilm", "ppocr-det", "silero-if"])
def test_real_models_keep_to_default_limits(name: str) -> None:
    """256 invocations, 16 KiB of shared memory, 8 storage buffers; no feature is asked for."""
    artifact = compiled(name).artifact
    programs = [artifact.manifest.program(variant) for variant in ("gpu", "software")]
    assert all(program.gpu_kernels for program in programs)
    for kernel in (kernel for program in programs for kernel in program.gpu_kernels):
        source = artifact.kernel_text(kernel)
        (size,) = WORKGROUP.findall(source)
        assert np.prod([int(n or 1) for n in size]) <= 256, kernel.name
        shared = sum(SIZES[element] * int(n) for element, n in SHARED.findall(source))
        assert source.count("var<workgroup>") == len(SHARED.findall(source))
        assert shared <= 16384, kernel.name
        assert len(kernel.buffers) <= 8
        assert source.count("var<storage") == len(kernel.buffers)
        assert "enable " not in source
        assert "subgroup" not in source
        assert kernel.features == []
    assert all(program.needs == Needs() for program in programs)
