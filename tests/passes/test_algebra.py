"""The algebraic passes together: down to loops they compute what the program did, and say so."""

import numpy as np
import pytest

from edgerelax.api import compile
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Value
from edgerelax.ops import OPS
from tests.passes.programs import M, N, build, weights
from tests.passes.test_meaning import check

ALGEBRA = ("fold_transposes", "fold_scales", "sink_factors", "combine_matmuls", "fuse_attention")


def projected(f: Function, x: Value, name: str, *perm: int) -> Value:
    """[n, m, 6] as [n, 2, m, 3], or as `perm` has it."""
    w = f.constant(f"w{name}", weights(6, 6, seed=ord(name)) * 0.5)
    b = f.constant(f"b{name}", weights(6))
    y = f.call(OPS["add"], f.call(OPS["matmul"], x, w), b)
    y = f.call(OPS["reshape"], y, dims=(N, M, 2, 3))
    return f.call(OPS["transpose"], y, perm=perm)


def attention(f: Function) -> None:
    """As exporters write it out: keys copied as [n, heads, 3, m], scores divided by √3."""
    x = f.input("x", (N, M, 6), F32)
    q, v = projected(f, x, "q", 0, 2, 1, 3), projected(f, x, "v", 0, 2, 1, 3)
    scores = f.call(OPS["matmul"], q, projected(f, x, "k", 0, 2, 3, 1))
    scores = f.call(OPS["div"], scores, f.constant("root", np.float32(3**0.5)))
    y = f.call(OPS["matmul"], f.call(OPS["softmax"], scores, axis=-1), v)
    y = f.call(OPS["reshape"], f.call(OPS["transpose"], y, perm=(0, 2, 1, 3)), dims=(N, M, 6))
    f.output("y", y)


def channels_last(f: Function) -> None:
    """Convolutions between transposes, each with a batch norm and an activation."""
    x = f.input("x", (N, M, M, 3), F32)
    for k in range(2):
        x = f.call(OPS["transpose"], x, perm=(0, 3, 1, 2))
        x = f.call(OPS["conv"], x, f.constant(f"w{k}", weights(3, 3, 1, 1) * 0.5), None)
        fitted = [f.constant(f"c{k}_{i}", abs(weights(3, seed=i)) + 0.5) for i in range(4)]
        x = f.call(OPS["batch_norm"], x, *fitted)
        x = f.call(OPS["relu"], f.call(OPS["transpose"], x, perm=(0, 2, 3, 1)))
    f.output("y", f.call(OPS["mul"], x, f.constant("s", np.float32(0.5))))


@pytest.mark.parametrize("n,m", [(1, 1), (2, 5)])
@pytest.mark.parametrize("program", [attention, channels_last])
def test_together(program, n: int, m: int) -> None:
    check(build(program), {"n": n, "m": m})


def test_the_report_says_what_each_did_and_skipped() -> None:
    report = compile(build(attention), target="cpu", verify=True).report.passes
    assert {name: found["done"] for name, found in report.items() if name in ALGEBRA} == {
        "fold_transposes": {"transposes split into whole rows and a matmul's reads": 1},
        "fold_scales": {},
        "sink_factors": {"factors moved into weights": 1},
        "combine_matmuls": {"3 products combined": 1},
        "fuse_attention": {"attention fused": 1},
    }
    assert report["fold_transposes"]["skipped"] == {"transposes that nothing beside them takes": 4}


@pytest.mark.parametrize("name", ALGEBRA)
def test_each_can_be_left_out(name: str) -> None:
    whole = compile(build(attention), target="cpu")
    report = compile(build(attention), target="cpu", without=(name,)).report
    assert set(report.passes) == set(whole.report.passes) - {name}
    if name in ("combine_matmuls", "fuse_attention"):
        assert sum(report.launches.values()) > sum(whole.report.launches.values())
