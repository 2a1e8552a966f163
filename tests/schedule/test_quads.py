"""8-bit products over words of four on the GPU: what is taken, and that it is exact."""

import pytest

from edgerelax.ir.dtypes import I8, U8
from edgerelax.ir.scalar import Op, walk
from edgerelax.schedule.quads import in_quads
from edgerelax.schedule.target import WEBGPU, WEBGPU_SOFTWARE
from tests.schedule.oracle import check
from tests.schedule.test_pairs import CONVOLUTIONS, M, conv, numbers, product


def is_in_quads(func):
    (stage,) = in_quads(func, 8)[0].stages[-1:]
    return any(isinstance(n, Op) and n.fn == "dot_quads" for n in walk(stage.body))


def check_all(func, sizes):
    check(func, sizes, targets=(WEBGPU, WEBGPU_SOFTWARE), arrays=numbers(func, sizes))


@pytest.mark.parametrize(("n", "k"), ((64, 4), (64, 13), (36, 16), (8, 16)))
def test_products(n, k):
    func = product(M, n, k)
    assert is_in_quads(func) == (n > 8)  # a launch more for few columns is not worth it
    check_all(func, {"m": 5})


@pytest.mark.parametrize(
    "more",
    (
        {"turned": True},
        {"zero": -128, "dtypes": (I8, I8)},
        {"zero": 0},
        {"zero": 255},
        {"zero": 0, "dtypes": (I8, I8)},
    ),
)
def test_types_zero_points_and_layouts(more):
    func = product(17, 64, 7, **more)
    assert is_in_quads(func)
    check_all(func, {})


def test_what_needs_more_than_sums_of_weights_stays():
    assert not is_in_quads(product(M, 64, 8, of_weights=1))
    assert not is_in_quads(product(M, 64, 8, dtypes=(U8, U8)))
    assert not is_in_quads(product(M, 64, 8, zero=256))
    assert not is_in_quads(product(M, 64, 8, weights=()))
    assert not in_quads(product(M, 64, 8), 3)[1]  # words, weights, their sums and the result


@pytest.mark.parametrize("case", ("3x3", "1x1", "groups of even size", "depthwise"))
def test_convolutions(case):
    more = CONVOLUTIONS[case] | {"c": 8, "oc": 64 if "group" not in CONVOLUTIONS[case] else 8}
    func = conv(**more)
    assert is_in_quads(func) == (case != "depthwise")
    check_all(func, {"h": 2, "w": 9})
