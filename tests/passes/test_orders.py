"""Loop functions over buffers whose dims are permuted compute the same, for every operator."""

import math
import random
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest

from edgerelax.ir.loop import LoopFunc, Stage
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.op import Operator, Sample
from edgerelax.ops import OPS
from edgerelax.passes.classify import classify
from edgerelax.passes.min_cut import SINK, SOURCE, Cut
from edgerelax.passes.orders import (
    carried,
    composed,
    identity,
    inverse,
    permuted,
    transposition,
)
from tests.ops.test_conformance import check_close, make_case

TURNED = (
    "add", "batch_norm", "clip", "concat", "expand", "gather", "max_pool", "pad",
    "reduce_sum", "resize", "slice", "softmax", "split", "transpose", "where",
)  # fmt: skip
"""Operators of each kind, as each costs time; the graph tests try more."""


def lowered(op: Operator, sample: Sample) -> tuple[LoopFunc, list[np.ndarray]] | None:
    if op.lower is None:
        return None
    case = make_case(op, sample, symbolic=False)
    site = replace(case.site, result=op.infer(case.site))
    return op.lower(site), [np.asarray(a) for a in sample.args if a is not None]


@pytest.mark.parametrize("name", TURNED)
def test_what_is_carried_computes_the_same(name: str) -> None:
    chosen = random.Random(name)
    turned = 0
    for sample in OPS[name].samples[:6]:
        found = lowered(OPS[name], sample)
        if found is None:
            continue
        loop, arrays = found
        expected = run_loop(loop, arrays, {})
        for buffer in (*loop.inputs, *loop.outputs):
            perms = [p for p in permutations(range(buffer.rank)) if p != identity(buffer.rank)]
            for perm in chosen.sample(perms, min(2, len(perms))):
                layouts = carried(loop, buffer.name, perm)
                if layouts is None:
                    continue
                assert layouts[buffer.name] == perm
                turned += 1
                after = permuted(loop, layouts)
                assert classify(after) is classify(loop)
                given = [
                    a.transpose(layouts.get(b.name, identity(b.rank)))
                    for a, b in zip(arrays, loop.inputs, strict=True)
                ]
                got = run_loop(after, [a.copy() for a in given], {})
                for result, wanted, out in zip(got, expected, loop.outputs, strict=True):
                    check_close(result, wanted.transpose(layouts.get(out.name, identity(out.rank))))
    assert turned, "nothing was tried"


def loop_of(name: str, *shapes: tuple[int, ...], **attrs: object) -> LoopFunc:
    arrays = tuple(np.ones(s, np.float32) for s in shapes)
    found = lowered(OPS[name], Sample(arrays, dict(attrs)))
    assert found is not None
    return found[0]


def summed(**attrs: object) -> LoopFunc:
    return loop_of("reduce_sum", (2, 3, 4), **attrs)


def integer_product() -> LoopFunc:
    """Of differences from zero points: a product though its factors are no loads."""
    codes = (np.ones((3, 4), np.uint8), np.ones((4, 5), np.int8))
    found = lowered(OPS["matmul_integer"], Sample((*codes, np.uint8(3), np.int8(1)), {}))
    assert found is not None
    return found[0]


def names(loop: LoopFunc) -> tuple[list[str], str]:
    return [b.name for b in loop.inputs], loop.outputs[0].name


def test_what_follows_what() -> None:
    for loop, perm, given, result in (
        (loop_of("add", (2, 3, 4), (4,)), (0, 2, 1), [(0, 2, 1), (0,)], (0, 2, 1)),
        (loop_of("add", (2, 3, 4), (3, 1)), (2, 1, 0), [(2, 1, 0), (0, 1)], (2, 1, 0)),
        (loop_of("add", (2, 3, 4), (3, 4)), (0, 2, 1), [(0, 2, 1), (1, 0)], (0, 2, 1)),
        (loop_of("concat", (2, 3), (2, 4), axis=1), (1, 0), [(1, 0), (1, 0)], (1, 0)),
        (
            loop_of("reduce_sum", (2, 3, 4), axes=(1,), keepdims=False),
            (2, 1, 0),
            [(2, 1, 0)],
            (1, 0),
        ),
        (
            loop_of("reduce_sum", (2, 3, 4), axes=(1, 2), keepdims=True),
            (1, 2, 0),
            [(1, 2, 0)],
            None,
        ),
    ):
        inputs, out = names(loop)
        layouts = carried(loop, inputs[0], perm)
        assert layouts is not None
        assert [layouts[n] for n in inputs] == given
        assert result is None or layouts[out] == result


def test_products_and_templates_are_not_turned() -> None:
    for loop in (
        loop_of("matmul", (3, 4), (4, 5)),
        loop_of("conv", (1, 2, 5, 5), (3, 2, 3, 3)),
        loop_of("matmul", (2, 3, 4), (4, 5)),
        integer_product(),
    ):
        inputs, _ = names(loop)
        rank = loop.inputs[0].rank
        assert carried(loop, inputs[0], tuple(reversed(range(rank)))) is None


def test_transposes_are_known_by_their_loops() -> None:
    loop = loop_of("transpose", (2, 3, 1, 4), perm=(3, 2, 0, 1))
    found = transposition(loop)
    assert found is not None and [p for p in found if p != 2] == [3, 0, 1]
    assert transposition(loop_of("neg", (2, 3))) is None
    assert transposition(loop_of("reshape", (2, 3), dims=(3, 2))) is None
    start = loop_of("slice", (4, 3), starts=(0,), ends=(2,), axes=(0,), steps=(1,))
    assert isinstance(start.stages[0], Stage) and transposition(start) is None


def test_permutations_compose() -> None:
    x = np.arange(120).reshape(2, 3, 4, 5)
    a, b = (2, 0, 3, 1), (1, 3, 0, 2)
    np.testing.assert_array_equal(x.transpose(a).transpose(b), x.transpose(composed(a, b)))
    assert composed(a, inverse(a)) == composed(inverse(a), a) == identity(4)


def brute(nodes: list[str], edges: list[tuple[str, str, int]]) -> int:
    best = math.inf
    for mask in range(1 << len(nodes)):
        sink = {SINK, *(n for k, n in enumerate(nodes) if mask >> k & 1)}
        best = min(best, sum(c for a, b, c in edges if a not in sink and b in sink))
    return int(best)


@pytest.mark.parametrize("seed", range(40))
def test_cuts_are_minimal(seed: int) -> None:
    chosen = random.Random(seed)
    nodes = [f"n{k}" for k in range(chosen.randint(1, 7))]
    ends: list[str] = [*nodes, SOURCE, SINK]
    edges = [
        (chosen.choice(ends), chosen.choice(ends), chosen.choice((1, 2, 5, 9, 1000)))
        for _ in range(chosen.randint(1, 22))
    ]
    edges = [(a, b, c) for a, b, c in edges if a != b and a != SINK and b != SOURCE]
    edges = [e for e in edges if e[:2] != (SOURCE, SINK)]
    cut = Cut()
    for a, b, capacity in edges:
        cut.edge(a, b, capacity)
    sink = cut.sink_side()
    assert SINK in sink and SOURCE not in sink
    assert sum(c for a, b, c in edges if a not in sink and b in sink) == brute(nodes, edges)
