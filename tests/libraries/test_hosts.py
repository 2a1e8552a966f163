"""Library functions on the native hosts: called with views, planned, placed, replayed, refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
import edgerelax.api as api
from edgerelax.hosts.library import GpuOperand, LibraryError
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module
from edgerelax.ir.pattern import hole, op
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.e2e.models import REAL, run_reference

N = symbol("n", lo=0, hi=40)
X, W, B = hole("x"), hole("w", constant=True), hole("b", constant=True)
RNG = np.random.default_rng(3)
WEIGHT = RNG.standard_normal((8, 12)).astype(np.float32)
BIAS = RNG.standard_normal(12).astype(np.float32)
DENSE = op("relu", op("add", op("matmul", X, W, transpose_a=False, transpose_b=False), B))
Array = np.ndarray[Any, Any]


def network() -> Module:
    """A product that a library takes between operators that it does not."""
    f = Function("main")
    x = f.call(OPS["tanh"], f.input("x", (N, 8), F32))
    h = f.call(OPS["matmul"], x, f.constant("w", WEIGHT))
    h = f.call(OPS["relu"], f.call(OPS["add"], h, f.constant("b", BIAS)))
    f.output("y", f.call(OPS["softmax"], h, axis=-1))
    return f.module()


def expected(x: Array) -> Array:
    h = np.exp(np.maximum(np.tanh(x) @ WEIGHT + BIAS, 0))
    return np.asarray(h / h.sum(-1, keepdims=True))


class Dense:
    """The product in numpy; remembers the sizes that it was called with."""

    def __init__(self) -> None:
        self.rows: list[int] = []

    def __call__(self, x: Array, w: Array, b: Array, out: Array) -> None:
        self.rows.append(len(x))
        assert not x.flags.writeable and not w.flags.writeable and out.flags.writeable
        np.maximum(np.matmul(x, w) + b, 0, out=out)


def with_dense(function: Callable[..., None] | None, **more: Any) -> edgerelax.Library:
    return edgerelax.Library(name="my.dense", pattern=DENSE, function=function, **more)


def check(session: edgerelax.Session, sizes: tuple[int, ...] = (5, 1, 40, 0, 5, 5)) -> None:
    for n in sizes:
        x = RNG.standard_normal((n, 8)).astype(np.float32)
        np.testing.assert_allclose(session.run({"x": x})["y"], expected(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("without", [(), ("capture",), ("reuse",)])
def test_on_the_cpu(without: tuple[str, ...]) -> None:
    dense = Dense()
    made = api.compile(
        network(), target="cpu", libraries=[with_dense(dense)], verify=True, without=without
    )
    with made.session("cpu") as session:
        check(session)
    assert dense.rows == [5, 1, 40, 5, 5]  # nothing to compute for 0


def test_a_program_of_library_calls_alone() -> None:
    f = Function("main")
    x = f.input("x", (N, 8), F32)
    f.output("y", f.call(OPS["exp"], x))
    entry = edgerelax.Library(
        name="my.exp", pattern=op("exp", X), function=lambda x, out: np.exp(x, out=out)
    )
    made = api.compile(f.module(), target="cpu", libraries=[entry])
    assert not made.artifact.manifest.programs[0].cpu_kernels
    x_ = np.float32([[1] * 8] * 3)
    np.testing.assert_allclose(made.session("cpu").run({"x": x_})["y"], np.exp(x_))


def test_several_ways_of_calling_one_function() -> None:
    """Ranks and attributes differ: each way is a row of the manifest."""
    seen: list[tuple[int, int]] = []

    def reverse(x: Array, out: Array, axis: int) -> None:
        seen.append((x.ndim, axis))
        out[...] = np.cumsum(x, axis)

    f = Function("main")
    x, v = f.input("x", (N, 8), F32), f.input("v", (8,), F32)
    zero, one = f.constant("zero", np.int64(0)), f.constant("one", np.int64(1))
    f.output("a", f.call(OPS["cumsum"], x, one))
    f.output("b", f.call(OPS["cumsum"], x, zero))
    f.output("c", f.call(OPS["cumsum"], v, zero))
    entry = edgerelax.Library(
        name="my.cumsum",
        pattern=op("cumsum", X, hole("axis", constant=True)),
        attrs=lambda match: {"axis": int(match["axis"].data)},  # type: ignore[union-attr]
        function=lambda x, _, out, axis: reverse(x, out, axis),
    )
    made = api.compile(f.module(), target="cpu", libraries=[entry])
    assert len(made.artifact.manifest.programs[0].libraries) == 3
    x_, v_ = RNG.standard_normal((3, 8)).astype(np.float32), np.ones(8, np.float32)
    found = made.session("cpu").run({"x": x_, "v": v_})
    for name, wanted in (("a", np.cumsum(x_, 1)), ("b", np.cumsum(x_, 0)), ("c", np.cumsum(v_))):
        np.testing.assert_allclose(found[name], wanted, rtol=1e-5)
    assert seen == [(2, 1), (2, 0), (1, 0)]


def test_what_is_missing_is_named_on_loading(tmp_path: Path) -> None:
    made = api.compile(network(), target="cpu", libraries=[with_dense(None)])
    with pytest.raises(InputError, match=r"not given: my\.dense"):
        made.session("cpu")
    folder = made.save(tmp_path / "artifact")
    with pytest.raises(InputError, match=r"not given: my\.dense"):
        edgerelax.load(folder, "cpu", libraries={"other": Dense()})
    dense = Dense()
    check(edgerelax.load(folder, "cpu", libraries={"my.dense": dense}))
    assert dense.rows


def test_two_functions_of_one_name() -> None:
    with pytest.raises(InputError, match="two functions of one name"):
        api.compile(network(), libraries=[with_dense(Dense()), with_dense(Dense())])


def test_a_function_that_fails_spoils_its_run_alone() -> None:
    dense = Dense()

    def picky(x: Array, w: Array, b: Array, out: Array) -> None:
        if len(x) == 7:
            raise ZeroDivisionError("seven")
        dense(x, w, b, out)

    session = api.compile(network(), target="cpu", libraries=[with_dense(picky)]).session("cpu")
    for _ in range(3):
        check(session, (5, 2))
        with pytest.raises(LibraryError, match=r"my\.dense failed: ZeroDivisionError: seven"):
            session.run({"x": np.zeros((7, 8), np.float32)})
    check(session, (5, 2))


def test_operands_cannot_be_written() -> None:
    def careless(x: Array, w: Array, b: Array, out: Array) -> None:
        x += 1

    session = api.compile(network(), target="cpu", libraries=[with_dense(careless)]).session("cpu")
    with pytest.raises(LibraryError, match="read-only"):
        session.run({"x": np.zeros((3, 8), np.float32)})


def test_cpu_functions_are_not_called_by_gpu_programs_unless_asked() -> None:
    made = api.compile(network(), libraries=[with_dense(Dense())])
    calls = {p.name: [e.function for e in p.libraries] for p in made.artifact.manifest.programs}
    assert {"my.dense"} == {f for n, fs in calls.items() if n.startswith("cpu") for f in fs}
    assert not any(fs for n, fs in calls.items() if not n.startswith("cpu"))


def test_a_cpu_function_in_a_gpu_program() -> None:
    """Copies there and back stand around it."""
    dense = Dense()
    entry = with_dense(dense, everywhere=True)
    made = api.compile(network(), libraries=[entry], variants=("software",), verify=True)
    with made.session("wgpu") as session:
        check(session)
    assert [n for n in dense.rows if n] == [5, 1, 40, 5, 5]


SCALE = """
@group(0) @binding(0) var<storage, read_write> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<f32>;
@compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) {
  if (id.x < arrayLength(&out)) { out[id.x] = exp(x[id.x]); }
}
"""


class GpuExp:
    """exp by a pipeline of its own, encoded between the program's."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, x: GpuOperand, out: GpuOperand, *, encoder: Any, device: Any) -> None:
        self.shapes.append(out.shape)
        pipeline = device.create_compute_pipeline(
            layout="auto",
            compute={"module": device.create_shader_module(code=SCALE), "entry_point": "main"},
        )
        entries = [
            {"binding": k, "resource": {"buffer": o.buffer, "offset": o.offset, "size": o.bytes}}
            for k, o in enumerate((x, out))
        ]
        group = device.create_bind_group(layout=pipeline.get_bind_group_layout(0), entries=entries)
        compute = encoder.begin_compute_pass()
        compute.set_pipeline(pipeline)
        compute.set_bind_group(0, group)
        compute.dispatch_workgroups(-(-out.bytes // 256), 1, 1)
        compute.end()


@pytest.mark.parametrize("without", [(), ("capture",)])
def test_on_the_gpu(without: tuple[str, ...]) -> None:
    f = Function("main")
    x = f.input("x", (N, 8), F32)
    h = f.call(OPS["softmax"], f.call(OPS["exp"], f.call(OPS["neg"], x)), axis=-1)
    f.output("y", h)
    function = GpuExp()
    entry = edgerelax.Library(name="my.exp", pattern=op("exp", X), function=function, device="gpu")
    made = api.compile(f.module(), libraries=[entry], verify=True, without=without)
    calls = {p.name: len(p.libraries) for p in made.artifact.manifest.programs}
    assert calls.pop("cpu") == 0 and set(calls.values()) <= {0, 1}
    with made.session("wgpu") as session:
        for n in (5, 1, 40, 0, 5, 5):
            x_ = RNG.standard_normal((n, 8)).astype(np.float32)
            e = np.exp(np.exp(-x_))
            wanted = e / e.sum(-1, keepdims=True)
            np.testing.assert_allclose(session.run({"x": x_})["y"], wanted, rtol=1e-4, atol=1e-6)
    assert function.shapes == [(5, 8), (1, 8), (40, 8), (5, 8), (5, 8)]


def test_minilm_with_products_of_blas() -> None:
    """A real model: numpy's BLAS computes its products with weights, the CPU host the rest."""
    called = 0

    def product(x: Array, w: Array, out: Array, transpose: bool) -> None:
        nonlocal called
        called += 1
        np.matmul(x, w.T if transpose else w, out=out)

    entry = edgerelax.Library(
        name="blas.product",
        pattern=op("matmul", X, W, transpose_a=False),
        function=product,
        check=lambda m: None if len(m["w"].annotation.dims) == 2 else "a batch of matrices",
        attrs=lambda m: {"transpose": m.attrs("matmul")["transpose_b"]},
    )
    made = api.compile(REAL["minilm"].path, target="cpu", variants=("cpu",), libraries=[entry])
    done = made.report.passes["cpu-dispatch_library"]["done"]["blas.product"]
    assert done >= 12  # at least four products in each of three layers
    with made.session("cpu") as session:
        for count, inputs in enumerate(REAL["minilm"].inputs(), 1):
            found = session.run(inputs)
            for name, wanted in run_reference("minilm", inputs).items():
                np.testing.assert_allclose(found[name], wanted, rtol=2e-3, atol=2e-4)
            assert called == count * done
