"""What fuses with what, from the loops alone."""

import numpy as np

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import CallTIR, Module
from edgerelax.ops import OPS
from edgerelax.passes.classify import Kind, classify, is_view
from edgerelax.passes.fuse import fuse
from edgerelax.passes.fuse_loops import fuse_loops
from edgerelax.passes.place import place
from edgerelax.pipeline import GRAPH
from tests.passes.programs import M, N, build, diamond, many_operands, mlp, reshaped, softmax_of_sum


def legal(module: Module) -> Module:
    for step in GRAPH:
        module = step(module)
    return place(module, device="gpu")


def fused(module: Module, **options: int) -> Module:
    return fuse_loops(fuse(legal(module), **options))


def calls(module: Module) -> list[CallTIR]:
    return [b.value for b in module.funcs["main"].body.bindings if isinstance(b.value, CallTIR)]


def kind_of(op: str, *shapes: tuple, **attrs: object) -> Kind:
    def body(f):
        args = [f.input(f"x{k}", shape, F32) for k, shape in enumerate(shapes)]
        f.output("y", f.call(OPS[op], *args, **attrs))

    (loop,) = legal(build(body)).loops.values()
    return classify(loop)


def test_kinds_come_from_the_loops() -> None:
    assert kind_of("add", (N, M), (N, M)) is Kind.ELEMENTWISE
    assert kind_of("add", (N, M), (M,)) is Kind.ELEMENTWISE
    assert kind_of("expand", (M,), dims=(8, M)) is Kind.BROADCAST
    assert kind_of("transpose", (N, M), perm=(1, 0)) is Kind.INJECTIVE
    assert kind_of("reduce_sum", (N, M), axes=(1,), keepdims=True) is Kind.REDUCTION
    assert kind_of("softmax", (N, M), axis=-1) is Kind.ROW
    assert kind_of("matmul", (N, 8), (8, M)) is Kind.OUT_FUSIBLE


def test_epilogues_join_their_contraction() -> None:
    module = fused(mlp())
    assert len(calls(module)) == 2
    assert all(len(loop.stages) == 1 for loop in module.loops.values())


def test_a_diamond_is_one_kernel() -> None:
    module = fused(diamond())
    assert len(calls(module)) == 1


def test_a_row_chain_takes_its_producer() -> None:
    assert len(calls(fused(softmax_of_sum()))) == 1


def test_groups_respect_the_limit_of_buffers() -> None:
    """Fault 40: twelve operands never make a kernel of more than eight buffers."""
    for limit in (3, 4, 8):
        for loop in fused(many_operands(), max_buffers=limit).loops.values():
            assert len(loop.inputs) + len(loop.outputs) <= limit


def test_a_reshape_is_a_view() -> None:
    module = legal(reshaped())
    assert [is_view(loop) for loop in module.loops.values()].count(True) == 1


def test_equal_layers_share_a_loop_function() -> None:
    def body(f):
        from edgerelax.ir.dtypes import F32

        x = f.input("x", (N, M), F32)
        for _ in range(3):
            x = f.call(OPS["softmax"], x, axis=-1)
        f.output("y", x)

    module = legal(build(body))
    assert len(calls(module)) == 3
    assert len(module.loops) == 1


def test_equal_fused_layers_share_a_loop_function() -> None:
    def body(f):
        from edgerelax.ir.dtypes import F32

        x = f.input("x", (N, 8), F32)
        for k in range(3):
            weight, bias = f.input(f"weight{k}", (8, 8), F32), f.input(f"bias{k}", (8,), F32)
            product = f.call(OPS["matmul"], x, weight)
            x = f.call(OPS["relu"], f.call(OPS["add"], product, bias))
        f.output("y", x)

    module = fused(build(body))
    assert len(calls(module)) == 3
    assert len(module.loops) == 1


def test_what_unpacks_its_operands_joins_what_reads_it() -> None:
    """A map from few bytes to many goes into a product; one from many bytes to few does not."""
    from edgerelax.ir.dtypes import F16, F32, U8

    def product(dtype):
        def body(f):
            x, w = f.input("x", (N, 8), F32), f.input("w", (8, 4), dtype)
            wide = f.call(
                OPS["transpose"], f.call(OPS["neg"], f.call(OPS["cast"], w, dtype=F32)), perm=(1, 0)
            )
            f.output("y", f.call(OPS["matmul"], x, wide, transpose_b=True))

        return fused(build(body))

    assert len(calls(product(U8))) == len(calls(product(F16))) == 1
    assert len(calls(product(F32))) == 2


def test_groups_of_equal_functions_differ_by_their_wiring() -> None:
    """(a - b) - c twice, and c - (a - b): two functions, and three right results."""
    names = [f"{c}{k}" for k in range(3) for c in "abc"]

    def body(f: Function) -> None:
        for k in range(3):
            a, b, c = (f.input(f"{name}{k}", (N, M), F32) for name in "abc")
            less = f.call(OPS["sub"], a, b)
            f.output(f"y{k}", f.call(OPS["sub"], *((less, c) if k < 2 else (c, less))))

    module = build(body)
    after = fused(module)
    first, second, third = (call.func for call in calls(after))
    assert first == second != third
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((3, 4)).astype(np.float32) for name in names}
    want, got = evaluate(module, given), evaluate(after, given)
    for name, array in want.items():
        np.testing.assert_array_equal(got[name], array)


def test_values_that_are_read_twice_again_and_again() -> None:
    """As a tree, what 40 such steps compute has 2 ** 40 nodes."""

    def body(f):
        x = f.input("x", (4,), F32)
        for _ in range(40):
            x = f.call(OPS["mul"], x, f.call(OPS["sin"], x))
        f.output("y", x)

    assert len(calls(fused(build(body)))) == 1
