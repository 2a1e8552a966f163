"""Workspaces of split reductions: planned with the rest, reported, and used by real hosts."""

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.hosts.wgpu import find_adapter
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module
from edgerelax.ops import OPS
from edgerelax.sym import symbol

TOP = 1 << 16


def total() -> Module:
    """The sum of 64k numbers."""
    f = Function("main")
    x = f.input("x", (1, TOP), F32)
    f.output("y", f.call(OPS["reduce_sum"], x, axes=(1,), keepdims=False))
    return f.module()


def head(rows: int = 4096) -> Module:
    """A few tokens by a wide matrix, and the best of all its columns."""
    f = Function("main")
    x = f.input("x", (symbol("n", 1, rows), 1024), F32)
    w = np.random.default_rng(0).standard_normal((1024, 256)).astype(np.float32)
    y = f.call(OPS["matmul"], x, f.constant("w", w))
    f.output("y", f.call(OPS["tanh"], y))
    return f.module()


def test_the_plan_places_and_counts_them() -> None:
    artifact = api.compile(total(), variants=("gpu",), verify=True).artifact
    memory = artifact.manifest.programs[0].memory
    assert memory.unplanned == memory.lower_bound == 4 + 64 * 4  # the sum and 64 parts
    assert memory.planned == 2 * 256  # each from a multiple of 256


def test_versions_with_workspaces_run() -> None:
    if find_adapter() is None:
        pytest.skip("no GPU adapter")
    built = api.compile(head(), variants=("gpu",), verify=True)
    w = np.random.default_rng(0).standard_normal((1024, 256)).astype(np.float32)
    with built.session("wgpu") as session:
        for n in (1, 7, 17, 1):
            x = np.random.default_rng(n).standard_normal((n, 1024)).astype(np.float32)
            np.testing.assert_allclose(session.run({"x": x})["y"], np.tanh(x @ w), atol=2e-3)
    names = {k.name for p in built.artifact.manifest.programs for k in p.gpu_kernels}
    assert {n.rpartition("_")[2] for n in names} >= {"parts", "few"}, names
