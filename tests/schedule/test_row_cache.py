"""What rows keep for their later steps: computed once, loaded once, right at every length."""

import pytest

from edgerelax.ir.dtypes import F32
from edgerelax.ir.kernel import Array, Kernel, KLoad, KOp, walk_exprs, walk_stmts
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.scalar import Acc, op
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS, WEBGPU, Target
from edgerelax.sym import symbol
from tests.schedule.oracle import check
from tests.schedule.test_rows import buf, softmax

N, FREE, SHORT = symbol("n"), symbol("k"), symbol("k", 0, 600)
LENGTHS = (0, 1, 63, 64, 65, 257)


def kernel_of(func: LoopFunc, target: Target) -> Kernel:
    (kernel,) = schedule(func, target).versions[-1].kernels
    return kernel


def count_of(kernel: Kernel, what: str) -> int:
    """How many times the text has a function, or a load of a buffer."""
    nodes = set(walk_exprs(kernel.body))
    calls = sum(isinstance(n, KOp) and n.fn == what for n in nodes)
    return calls + sum(isinstance(n, KLoad) and n.buffer == what for n in nodes)


def log_softmax(length):
    """Two things of an element are needed later: x - max, not its exponential."""
    func = softmax((N,), length)
    x, y = func.inputs[0], func.outputs[0]
    peak, total = (s.out for s in func.stages[:2])
    i, k = grid(x)
    last = Stage(y, (i, k), (x[i, k] - peak[i]) - op("log", total[i]))
    return LoopFunc("log_softmax", (x,), (y,), (*func.stages[:2], last))


def norm_of_map(length):
    """Of exp(x) the mean, then the deviation: the map is computed once."""
    x, y = buf("x", F32, N, length), buf("y", F32, N, length)
    mean, spread = buf("mean", F32, N), buf("spread", F32, N)
    i, k = grid(x)
    e = op("exp", x[i, k])
    d = e - mean[i]
    stages = (
        Stage(mean, (i,), e, (k,), "sum", epilogue=Acc(F32) * 0.01),
        Stage(spread, (i,), d * d, (k,), "sum", epilogue=op("sqrt", Acc(F32) + 1.0)),
        Stage(y, (i, k), d / spread[i]),
    )
    return LoopFunc("norm_of_map", (x,), (y,), stages)


def needed_twice(length):
    """What is kept first is needed to the end: nothing may take its place."""
    x, y = buf("x", F32, N, length), buf("y", F32, N, length)
    first, second = buf("first", F32, N), buf("second", F32, N)
    i, k = grid(x)
    e, t = op("exp", x[i, k]), op("tanh", x[i, k])
    stages = (
        Stage(first, (i,), e, (k,), "max"),
        Stage(second, (i,), t * first[i], (k,), "sum"),
        Stage(y, (i, k), e * second[i] + t * first[i]),
    )
    return LoopFunc("needed_twice", (x,), (y,), stages)


MADE = (softmax, log_softmax, norm_of_map, needed_twice)


def make(maker, length):
    return softmax((N,), length) if maker is softmax else maker(length)


@pytest.mark.parametrize("maker", MADE)
def test_every_length(maker):
    for length in LENGTHS:
        for bound in (FREE, SHORT):
            check(make(maker, bound), {"n": 3, "k": length}, tolerance=1e-4)
        if length:
            check(make(maker, length), {"n": 2}, tolerance=1e-4)


@pytest.mark.parametrize("maker", (softmax, norm_of_map))
@pytest.mark.parametrize("length", (FREE, SHORT, 384))
def test_slow_functions_are_computed_once(maker, length):
    for target in TARGETS.values():
        kernel = kernel_of(make(maker, length), target)
        if " once" in kernel.comment:  # one pass less, for an exponential more
            assert length is FREE and target is WEBGPU
            continue
        vectors = target.device == "cpu"  # with the same for the rest of a row
        assert count_of(kernel, "exp") == (2 if vectors and length != 384 else 1)


@pytest.mark.parametrize("maker", (softmax, log_softmax, norm_of_map))
def test_short_rows_are_loaded_once(maker):
    for length in (SHORT, 384):
        assert count_of(kernel_of(make(maker, length), WEBGPU), "x") == 1


@pytest.mark.parametrize("length", (1 << 11, (1 << 11) + 1, 1 << 20))
def test_workgroup_memory_holds_what_is_kept(length):
    for maker in MADE:
        for kernel in schedule(make(maker, length), WEBGPU).versions[-1].kernels:
            arrays = [s for s in walk_stmts(kernel.body) if isinstance(s, Array) and s.shared]
            used = sum(a.size * a.lanes * a.dtype.bytes for a in arrays)
            assert used <= WEBGPU.workgroup_bytes
