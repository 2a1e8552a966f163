"""Products of few tiles and many steps: every config at odd sizes, low batches, the choice."""

import pytest

from edgerelax.ir.dtypes import F16, F32, I8
from edgerelax.ir.scalar import Acc, op
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import WASM, WEBGPU, WEBGPU_SOFTWARE
from edgerelax.sym import eq, le, symbol
from tests.schedule.oracle import check_strategy, inputs_for, run_schedule
from tests.schedule.test_conv import conv
from tests.schedule.test_gemm import M, buf, matmul

GPUS = (WEBGPU, WEBGPU_SOFTWARE)
LONG = symbol("k", lo=256)


def check(func, symbols, *, targets=(WEBGPU,), tolerance=1e-4, **more):
    check_strategy("gemm_split", func, symbols, targets=targets, tolerance=tolerance, **more)


@pytest.mark.parametrize("tb", (False, True))
@pytest.mark.parametrize(("m", "n", "k"), ((1, 5, 257), (3, 8, 390), (9, 7, 259)))
def test_every_config_at_odd_sizes(m, n, k, tb):
    """Parts are multiples of 4 steps, so the last ones are short or empty."""
    check(matmul(m, n, LONG, tb=tb), {"k": k})
    check(matmul(m, n, k - 1, tb=tb), {}, targets=GPUS)


def test_batches_epilogue_and_start():
    def epilogue(lead, i, j, y):
        bias, rest = buf("bias", F32, y.dims[-1]), buf("rest", F32, *y.dims)
        return (bias, rest), op("tanh", Acc(F32) / 9.0 + bias[j]) + rest[(*lead, i, j)]

    for n in (7, 8):
        func = matmul(3, n, LONG, batch=(2,), epilogue=epilogue)
        check(func, {"k": 301})


@pytest.mark.parametrize("n", (7, 8))
def test_partial_sums_of_short_floats_are_f32(n):
    """Ones and a large number: f16 could not hold the sums of the parts."""
    func = matmul(2, n, 512, dtype=F16)
    a, b = inputs_for(func, {})
    a[:], b[:] = 1, 7
    a[:, 0], a[:, -1] = 4096, -4096
    check(func, {}, arrays=[a, b], tolerance=1e-3)


def test_integers():
    func = matmul(3, 8, LONG, dtype=I8)
    check(func, {"k": 267})


def test_convolution_over_many_channels():
    func = conv(1, 128, 2, 3, 4, 3, 3, pad=1)
    check(func, {}, tolerance=1e-3)


def projection(n=512, k=2048):
    """Any number of rows by a weight."""
    return matmul(M, n, k)


def test_one_few_and_more_rows():
    plan = schedule(projection(), WEBGPU)
    assert [v.guards for v in plan.versions] == [(eq(M, 1),), (le(M, 16),), ()]
    one, few, _ = plan.versions
    assert one.temps and few.temps
    for buffer in (*one.temps, *few.temps):  # no larger for rows that the version never has
        sizes = {tuple(d.eval({"m": m}) for d in buffer.dims) for m in (16, 10_000)}
        assert len(sizes) == 1


def test_rows_take_the_version_that_is_theirs():
    func = projection(8, 1024)
    plan = schedule(func, WEBGPU)
    assert len(plan.versions) == 3
    for m in (1, 2, 16, 17):
        arrays = inputs_for(func, {"m": m})
        (got,) = run_schedule(plan, func, arrays, {"m": m})
        assert abs(got - arrays[0] @ arrays[1]).max() < 1e-3


def test_no_version_where_it_does_not_pay():
    for target in (WASM, WEBGPU_SOFTWARE):
        guards = [v.guards for v in schedule(projection(), target).versions]
        assert (le(M, 16),) not in guards
    assert len(schedule(matmul(M, 8192, 8), WEBGPU).versions) < 3
