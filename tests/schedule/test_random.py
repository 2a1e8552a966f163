"""Random loop functions: every strategy and config on every target gives what the oracle gives."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from edgerelax.ir.dtypes import BOOL, F16, F32, I8, I32, I64, U8, DType
from edgerelax.ir.loop import LoopFunc, Stage, axis, grid
from edgerelax.ir.scalar import (
    Buffer,
    Scalar,
    Value,
    cast,
    constant,
    gather,
    in_range,
    op,
    select,
)
from edgerelax.sym import Axis, Expr, as_expr, minimum, symbol
from tests.schedule.oracle import check

SYMBOLS = [symbol("n"), symbol("m"), symbol("q", multiple_of=4)]
ODD = ("shift", "strided", "reverse", "half", "pad", "gather")
SIZES = {"n": (0, 1, 2, 3, 5, 8), "m": (1, 4, 7), "q": (0, 4, 8, 12)}
DTYPES = (F32, F32, F32, I32, I64, F16, U8, I8, BOOL)


def dims(draw: st.DrawFn, most: int = 3) -> tuple[Expr, ...]:
    options = [*SYMBOLS, *(as_expr(k) for k in (1, 2, 3, 4, 8)), SYMBOLS[0] + 1]
    return tuple(draw(st.lists(st.sampled_from(options), min_size=0, max_size=most)))


class Builder:
    """Draws scalar trees over given axes; every load is in range, or guarded."""

    def __init__(self, draw: st.DrawFn, axes: tuple[Axis, ...]) -> None:
        self.draw, self.axes = draw, axes
        self.inputs: list[Buffer] = []

    def pick(self, *options: str) -> str:
        return self.draw(st.sampled_from(options))

    def buffer(self, dtype: DType, shape: tuple[Expr, ...]) -> Buffer:
        self.inputs.append(Buffer(f"x{len(self.inputs)}", dtype, shape))
        return self.inputs[-1]

    def load(self, dtype: DType) -> Scalar:
        """A load whose dims are extents of axes in any order, some shifted, reversed, gathered."""
        picked = self.draw(st.permutations(self.axes)) if self.axes else []
        picked = picked[: self.draw(st.integers(0, 3))]
        shape: list[Expr] = []
        index: list[Expr] = []
        guards: list[Scalar] = []
        for a in picked:
            kind = self.pick("plain", "plain", *ODD)
            at, size = as_expr(a), a.extent
            if kind == "shift":
                at, size = at + 2, size + 2
            elif kind == "strided":
                at, size = at * 2, size * 2
            elif kind == "reverse":
                at = size - 1 - at
            elif kind == "half":
                at, size = at // 2, (size + 1) // 2
            elif kind == "pad":
                at = at - 1
                guards.append(in_range(at, 0, size))
            elif kind == "gather":
                positions = self.buffer(self.draw(st.sampled_from((I32, I64))), (size,))
                at, size = gather(positions[a], size), size
            index.append(at)
            shape.append(size)
        value: Scalar = self.buffer(dtype, tuple(shape))[tuple(index)]
        for guard in guards:
            value = select(guard, value, constant(0, dtype)) if guard.dtype == BOOL else value
        return value

    def value(self, dtype: DType, depth: int) -> Scalar:
        leaf = depth == 0 or len(self.inputs) > 5
        kind = (
            self.pick("load", "load", "const", "index")
            if leaf
            else self.pick("load", "op", "op", "op", "cast", "select", "shared")
        )
        match kind:
            case "load":
                return self.load(dtype)
            case "const":
                return constant(self.draw(st.integers(0, 3)), dtype)
            case "index":
                at = as_expr(0)
                for a in self.axes:
                    at = at + as_expr(a) * self.draw(st.integers(0, 2))
                return cast(Value(minimum(at, 100)), dtype)
            case "cast":
                other = self.draw(st.sampled_from((F32, I32, I64, BOOL)))
                return cast(self.value(other, depth - 1), dtype)
            case "select":
                cond = self.value(BOOL, depth - 1)
                return select(cond, self.value(dtype, depth - 1), self.value(dtype, depth - 1))
            case "shared":
                one = self.value(dtype, depth - 1)
                return self.combine(one, one)
        return self.combine(self.value(dtype, depth - 1), self.value(dtype, depth - 1))

    def combine(self, a: Scalar, b: Scalar) -> Scalar:
        if a.dtype == BOOL:
            return op(self.pick("and", "or", "xor"), a, b)
        if self.pick("plain", "plain", "compare") == "compare":
            return cast(op(self.pick("lt", "ge", "eq"), a, b), a.dtype)
        return op(self.pick("add", "sub", "min", "max", "mul"), a, b)


@st.composite
def maps(draw: st.DrawFn) -> LoopFunc:
    dtype = draw(st.sampled_from(DTYPES))
    out = Buffer("y", dtype, dims(draw))
    axes = grid(out)
    build = Builder(draw, axes)
    body = build.value(dtype, draw(st.integers(0, 3)))
    return LoopFunc("f", tuple(build.inputs), (out,), (Stage(out, axes, body),))


@st.composite
def reductions(draw: st.DrawFn) -> LoopFunc:
    dtype = draw(st.sampled_from((F32, F32, I32, I64, BOOL)))
    if dtype is BOOL:
        combiner = draw(st.sampled_from(("any", "all")))
    else:
        combiner = draw(st.sampled_from(("sum", "max", "min", "argmax", "argmin_last")))
    out = Buffer("y", I64 if combiner.startswith("arg") else dtype, dims(draw, 2))
    spatial = grid(out)
    steps = tuple(axis(f"k{j}", d) for j, d in enumerate(dims(draw, 2)))
    build = Builder(draw, (*spatial, *steps))
    body = build.value(dtype, draw(st.integers(0, 2)))
    where = build.value(BOOL, 0) if draw(st.integers(0, 4)) == 0 else None
    if where is not None and not where.axes() & set(steps):
        where = None
    stage = Stage(out, spatial, body, steps, combiner, where=where)
    return LoopFunc("f", tuple(build.inputs), (out,), (stage,))


@st.composite
def products(draw: st.DrawFn) -> LoopFunc:
    """Sums of products of loads: contractions of any kind."""
    dtype = draw(st.sampled_from((F32, F32, I32, F16)))
    out = Buffer("y", dtype, dims(draw, 3))
    spatial = grid(out)
    steps = tuple(axis(f"k{j}", d) for j, d in enumerate(dims(draw, 2)))
    build = Builder(draw, (*spatial, *steps))
    wide = I32 if dtype is I32 else F32
    body = cast(build.load(dtype), wide) * cast(build.load(dtype), wide)
    stage = Stage(out, spatial, body, steps, "sum")
    return LoopFunc("f", tuple(build.inputs), (out,), (stage,))


SIZED = st.fixed_dictionaries({name: st.sampled_from(sizes) for name, sizes in SIZES.items()})
FEW = settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    derandomize=True,
)


@FEW
@given(maps(), SIZED)
def test_maps(func: LoopFunc, sizes: dict[str, int]) -> None:
    check(func, sizes, tolerance=4e-3)


@FEW
@given(reductions(), SIZED)
def test_reductions(func: LoopFunc, sizes: dict[str, int]) -> None:
    check(func, sizes, tolerance=1e-3)


@FEW
@given(products(), SIZED)
def test_products(func: LoopFunc, sizes: dict[str, int]) -> None:
    check(func, sizes, tolerance=1e-2)
