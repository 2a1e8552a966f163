"""Maps that read one value and need nothing of each other are one call, and one launch."""

import numpy as np
import pytest

import edgerelax
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32, I32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import CallTIR, Module
from edgerelax.ir.kernel_in_place import over_operands, stores_as_is
from edgerelax.ir.outcome import taken
from edgerelax.ir.plan import Version
from edgerelax.ops import OPS
from edgerelax.passes.fuse_siblings import fuse_siblings
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS
from edgerelax.sym import symbol
from tests.passes.programs import build
from tests.passes.test_fusion import calls, fused
from tests.schedule.oracle import check

N, M, SLOTS = symbol("n"), symbol("m"), symbol("slots", 1)
WIDTH = 8


def stores(f: Function) -> None:
    """Queries, and keys and values stored at computed places, from one product's result."""
    x = f.input("x", (N, 3 * WIDTH), F32)
    keys, values = (f.input(name, (SLOTS, WIDTH), F32) for name in ("keys", "values"))
    at = f.input("at", (N, 1), I32)
    parts = [
        f.call(OPS["slice"], x, axes=(1,), starts=(k * WIDTH,), ends=((k + 1) * WIDTH,), steps=(1,))
        for k in range(3)
    ]
    f.output("q", f.call(OPS["tanh"], parts[0]))
    f.output("k", f.call(OPS["scatter_nd"], keys, at, f.call(OPS["neg"], parts[1])))
    f.output("v", f.call(OPS["scatter_nd"], values, at, parts[2]))


def inputs(n: int, slots: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(n)
    shapes = {"x": (n, 3 * WIDTH), "keys": (slots, WIDTH), "values": (slots, WIDTH)}
    arrays = {k: rng.standard_normal(s).astype(np.float32) for k, s in shapes.items()}
    places = rng.permutation(2 * slots)[:n, None]  # some lie outside: they are left out
    return {**arrays, "at": places.astype(np.int32)}


def joined(module: Module, **options: int) -> Module:
    return taken(fuse_siblings(fused(module), **options))[0]


def launches(version: Version) -> int:
    """The kernels that are left when all that may lie over operands does."""
    over = (over_operands(k, dict(version.in_place)) for k in version.kernels)
    return sum(not stores_as_is(k) for k in over)


def test_one_launch_does_what_several_did() -> None:
    before = build(stores)
    after = joined(before)
    (call,) = calls(after)
    loop = after.loops[call.func]
    assert len(loop.outputs) == 3
    for target in TARGETS.values():
        (version,) = schedule(loop, target).versions
        assert launches(version) == 1
        assert {y for _, y in version.in_place} == {b.name for b in loop.outputs[1:]}
    for n, slots in ((0, 1), (1, 3), (5, 4), (70, 90)):
        given = inputs(n, slots)
        want, got = evaluate(before, given), evaluate(after, given)
        for name, array in want.items():
            np.testing.assert_array_equal(got[name], array)
        arrays = [given[v.name] for v in call.args]
        check(loop, {"n": n, "slots": slots}, arrays=arrays)


@pytest.mark.parametrize("device", ("cpu", "wgpu"))
def test_it_runs(device: str) -> None:
    target = {"cpu": "cpu", "wgpu": "webgpu"}[device]
    module = build(stores)
    with edgerelax.compile(module, target=target).session(device) as session:
        for n, slots in ((1, 3), (70, 90), (0, 2)):
            given = inputs(n, slots)
            for name, want in evaluate(module, given).items():
                np.testing.assert_allclose(session.run(given)[name], want, rtol=1e-6, atol=1e-6)


def test_few_bindings_join_fewer() -> None:
    assert len(calls(joined(build(stores), max_buffers=4))) == 2
    assert len(calls(joined(build(stores), max_buffers=3))) == 3


def test_what_a_sibling_makes_is_not_waited_for() -> None:
    """A use of the first stands before the second."""

    def body(f: Function) -> None:
        x = f.input("x", (N, M), F32)
        turned = f.call(OPS["transpose"], x, perm=(1, 0))
        f.output("s", f.call(OPS["reduce_sum"], turned, axes=(1,), keepdims=False))
        f.output("t", turned)
        f.output("y", f.call(OPS["transpose"], f.call(OPS["tanh"], x), perm=(1, 0)))

    module = joined(build(body))
    found = [b.value for b in module.funcs["main"].body.bindings if isinstance(b.value, CallTIR)]
    assert all(len(module.loops[c.func].outputs) == 1 for c in found)


def test_what_could_lie_over_its_operand_stays_alone() -> None:
    """Together they would need a place more."""

    def body(f: Function) -> None:
        x = f.call(OPS["reduce_sum"], f.input("x", (N, M, 3), F32), axes=(2,), keepdims=False)
        f.output("a", f.call(OPS["transpose"], x, perm=(1, 0)))
        f.output("b", f.call(OPS["tanh"], x))

    module = joined(build(body))
    assert all(len(module.loops[c.func].outputs) == 1 for c in calls(module))
