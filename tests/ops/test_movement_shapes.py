"""Shape rules of data movement: targets, index maps, folded integers, contradictions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.assumptions import collected
from edgerelax.ir.diagnostics import ShapeError
from edgerelax.ir.dtypes import F32, I32, I64
from edgerelax.ir.op import CallSite
from edgerelax.ir.types import Annotation, IntTensor, Tensor, Tuple, tensor
from edgerelax.ops import OPS
from edgerelax.ops.joining import even_split
from edgerelax.ops.shaping import (
    flattened,
    reshape_index,
    resolve_reshape,
    squeezed,
    unsqueezed,
)
from edgerelax.ops.slicing import slice_bounds
from edgerelax.sym import Axis, Expr, ExprLike, Symbol, as_expr, minimum

N, M, S = (Symbol(name, 1).expr for name in "nms")
Z = Symbol("z", 0).expr


def infer(name: str, *args: Annotation | None, **attrs: Any) -> Annotation:
    op = OPS[name]
    return op.infer(CallSite(op, args, {**op.attrs, **attrs}, (None,) * len(args), name="here"))


def ints(*values: ExprLike, rank: int = 1) -> IntTensor:
    return IntTensor(tuple(as_expr(v) for v in values), rank)


def exprs(*values: ExprLike) -> tuple[Expr, ...]:
    return tuple(as_expr(v) for v in values)


# targets


@pytest.mark.parametrize(
    ("dims", "target", "expected"),
    [
        ((N, S, 768), (0, 0, 12, -1), (N, S, 12, 64)),
        ((N, S, 12, 64), (0, -1, 768), (N, S, 768)),
        ((N, S, 12, 64), (-1, 768), (N * S, 768)),
        ((N, 3 * M, S), (0, 3, -1, S), (N, 3, M, S)),
        ((2 * N + 2, S), (-1, 2 * S), (N + 1, 2 * S)),
        ((N, M + S), (-1,), (N * M + N * S,)),
        ((Z, 3), (0, -1), (Z, 3)),
        ((0, 3), (0, -1), (0, 3)),
        ((4, 6), (-1, 8), (3, 8)),
        ((N,), (N, 1), (N, 1)),
    ],
)
def test_resolve_reshape(dims: Any, target: Any, expected: Any) -> None:
    assert resolve_reshape(dims, target) == exprs(*expected)


def test_resolve_reshape_allows_zero() -> None:
    assert resolve_reshape((N, 0), (0, N), allow_zero=True) == exprs(0, N)


@pytest.mark.parametrize(
    ("dims", "target"),
    [((4, 6), (-1, -1)), ((4, 6), (-1, 5)), ((4,), (4, 0)), ((0, 3), (-1, 0))],
)
def test_resolve_reshape_refuses(dims: Any, target: Any) -> None:
    with pytest.raises(ShapeError):
        resolve_reshape(dims, target, allow_zero=target == (-1, 0))


def test_squeeze_unsqueeze_flatten() -> None:
    assert squeezed(exprs(1, N, 1), (0, -1)) == (N,)
    assert squeezed(exprs(1, N, 1, Z), None) == (N, Z)
    assert unsqueezed((N, M), (0, -1)) == exprs(1, N, M, 1)
    assert unsqueezed((), (0,)) == exprs(1)
    assert flattened((N, M, S), 1) == (N, M * S)
    assert flattened((N, M), 0) == (as_expr(1), N * M)
    assert flattened((N, M), -1) == (N, M)
    for wrong in (
        lambda: squeezed((N, as_expr(2)), (1,)),
        lambda: unsqueezed((N,), (0, 0)),
        lambda: unsqueezed((N,), (3,)),
        lambda: flattened((N,), 2),
    ):
        with pytest.raises(ShapeError):
            wrong()


@pytest.mark.parametrize("dim", range(9))
@pytest.mark.parametrize("count", range(1, 4))
def test_even_split(dim: int, count: int) -> None:
    sizes = [s.as_int() for s in even_split(as_expr(dim), count)]
    size = -(-dim // count)
    assert sizes == [size] * (count - 1) + [dim - size * (count - 1)]


def test_slice_bounds_of_symbols() -> None:
    assert slice_bounds(S, 1, 2**63 - 1, 1) == (as_expr(1), S - 1)
    assert slice_bounds(S, 0, -1, 1) == (as_expr(0), S - 1)
    assert slice_bounds(S, -1, -(2**63), -1) == (S - 1, S)
    assert slice_bounds(S + 4, 2, S + 4, 1) == (as_expr(2), S + 2)


def test_a_round_bound_far_out_is_the_end_and_checked() -> None:
    with collected() as pairs:
        assert slice_bounds(S, 1, 10**9, 1) == (as_expr(1), S - 1)
    assert list(pairs) == [(minimum(S, 10**9), S)]
    with collected() as pairs:
        short = Symbol("short", 1, 4096).expr
        assert slice_bounds(short, 0, 10**9, 1) == (as_expr(0), short)
        assert slice_bounds(2 * 10**9, 0, 10**9, 1) == (as_expr(0), as_expr(10**9))
    assert not pairs


# index maps of reshapes


@pytest.mark.parametrize(
    ("source", "result", "index"),
    [
        ((N, S, 768), (N, S, 12, 64), lambda a, b, c, d: (a, b, 64 * c + d)),
        ((N, S, 12, 64), (N, S, 768), lambda a, b, c: (a, b, c // 64, c % 64)),
        ((N, S, M), (N * S, M), lambda a, b: (a // S, a % S, b)),
        ((N * S, M), (N, S, M), lambda a, b, c: (a * S + b, c)),
        ((N, M), (1, N, 1, M, 1), lambda a, b, c, d, e: (b, d)),
        ((1, N, 1, M), (N, M), lambda a, b: (0, a, 0, b)),
        ((N, 6, 4, S), (N, 4, 6, S), lambda a, b, c, d: (a, (6 * b + c) // 4, (6 * b + c) % 4, d)),
        ((N, S, M), (S, N, M), lambda a, b, c: ((a * N + b) // S, (a * N + b) % S, c)),
        ((0, 3), (3, 0), lambda a, b: (0, 0)),
    ],
)
def test_reshape_keeps_plain_indices(source: Any, result: Any, index: Any) -> None:
    axes = tuple(as_expr(Axis(f"i{k}", as_expr(d))) for k, d in enumerate(result))
    assert reshape_index(exprs(*source), exprs(*result), axes) == exprs(*index(*axes))


def test_reshape_of_unproven_sizes() -> None:
    """The last dims match though it is not known that the first do."""
    axes = tuple(as_expr(Axis(f"i{k}", d)) for k, d in enumerate(exprs(S, 64)))
    found = reshape_index(exprs(N, M, 64), exprs(S, 64), axes)
    assert found == (axes[0] // M, axes[0] % M, axes[1])


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_reshape_index_is_flat(data: st.DataObject) -> None:
    """For random groupings of factors, some of them symbols, an element keeps its flat position."""
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=5))
    symbolic = [data.draw(st.booleans()) for _ in sizes]
    env = {Symbol(f"d{k}"): n for k, n in enumerate(sizes) if symbolic[k]}
    factors = [
        Symbol(f"d{k}").expr if s else as_expr(n)
        for k, (n, s) in enumerate(zip(sizes, symbolic, strict=True))
    ]
    source, result = (grouped(data, factors) for _ in range(2))
    shape = [d.eval(env) for d in result]
    axes = [Axis(f"i{k}", d) for k, d in enumerate(result)]
    index = reshape_index(source, result, exprs(*axes))
    old = np.arange(int(np.prod(sizes))).reshape([d.eval(env) for d in source])
    for flat, at in enumerate(np.ndindex(*shape)):
        place = {**env, **dict(zip(axes, at, strict=True))}
        assert old[tuple(e.eval(place) for e in index)] == flat


def grouped(data: st.DataObject, factors: list[Expr]) -> tuple[Expr, ...]:
    """The factors in order, neighbours multiplied at random, ones put between."""
    dims = [factors[0]]
    for factor in factors[1:]:
        match data.draw(st.sampled_from(["join", "part", "one"])):
            case "join":
                dims[-1] = dims[-1] * factor
            case "part":
                dims.append(factor)
            case _:
                dims += [as_expr(1), factor]
    return tuple(dims)


# known integers


def test_shape_arithmetic_folds() -> None:
    """Shape → Gather → Unsqueeze → Concat is known, as exporters write it."""
    shape = ints(N, S, 768)
    batch = infer("gather", shape, ints(0, rank=0))
    assert batch == ints(N, rank=0)
    column = infer("reshape", batch, dims=(1,))
    assert infer("concat", column, ints(-1), ints(64), axis=0) == ints(N, -1, 64)


def test_integers_fold() -> None:
    x = ints(N, M, 3, 4)
    assert infer("gather", x, ints(-1, 0)) == ints(4, N)
    assert infer("slice", x, starts=(1,), ends=(3,)) == ints(M, 3)
    assert infer("slice", x, starts=(-1,), ends=(-9,), steps=(-2,)) == ints(4, M)
    assert infer("expand", ints(S, rank=0), dims=(3,)) == ints(S, S, S)
    assert infer("tile", ints(N, 1), repeats=(2,)) == ints(N, 1, N, 1)
    assert infer("split", x, sizes=(1, 3)) == Tuple((ints(N), ints(M, 3, 4)))
    assert infer("transpose", x) == x
    assert infer("range", start=N, limit=N + 3, delta=1) == ints(N, N + 1, N + 2)
    assert infer("full", dims=(2,), value=7, dtype=I64) == ints(7, 7)
    assert infer("integers", values=(N, 2), dtype=I32) == IntTensor((N, as_expr(2)), 1, I32)
    assert infer("range", start=0, limit=N, delta=2) == Tensor(((N + 1) // 2,), I64)


def test_unknown_integers_stay_tensors() -> None:
    """An index that is out of range, or no literal, is left for the run."""
    x = ints(N, M)
    assert infer("gather", x, ints(5)) == tensor((1,), I64)
    assert infer("gather", x, ints(S)) == tensor((1,), I64)
    assert infer("gather", x, tensor((2,), I64)) == tensor((2,), I64)


# contradictions


@pytest.mark.parametrize(
    ("name", "args", "attrs"),
    [
        ("reshape", [tensor((2, 3), F32)], {"dims": (4, 2)}),
        ("reshape", [tensor((N, 3), F32)], {"dims": (N, 4)}),
        ("transpose", [tensor((2, 3), F32)], {"perm": (0, 0)}),
        ("transpose", [tensor((2, 3), F32)], {"perm": (0,)}),
        ("expand", [tensor((2, 3), F32)], {"dims": (4, 3)}),
        ("concat", [tensor((2, 3), F32), tensor((2, 4), F32)], {"axis": 0}),
        ("concat", [tensor((2, 3), F32), tensor((2,), F32)], {"axis": 0}),
        ("concat", [tensor((2, 3), F32)], {"axis": 2}),
        ("split", [tensor((5,), F32)], {"sizes": (2, 2)}),
        ("slice", [tensor((5,), F32)], {"starts": (0,), "ends": (1,), "steps": (0,)}),
        ("slice", [tensor((5,), F32)], {"starts": (0,), "ends": (1,), "axes": (1,)}),
        ("slice", [tensor((5, 5), F32)], {"starts": (0, 0), "ends": (1, 1), "axes": (0, -2)}),
        ("pad", [tensor((2, 3), F32), None], {"pads": (1, 1)}),
        ("pad", [tensor((2,), F32), None], {"pads": (-2, -1)}),
        ("tile", [tensor((2, 3), F32)], {"repeats": (2,)}),
        ("gather", [tensor((2, 3), F32), tensor((1,), F32)], {}),
        ("gather", [tensor((2, 3), F32), tensor((1,), I64)], {"axis": 3}),
        ("gather_elements", [tensor((2, 3), F32), tensor((1,), I64)], {}),
        ("gather_nd", [tensor((2, 3), F32), tensor((1, 3), I64)], {}),
        ("gather_nd", [tensor((2, 3), F32), tensor((4, 1), I64)], {"batch_dims": 1}),
        ("scatter_nd", [tensor((2, 3), F32), tensor((4, 1), I64), tensor((4, 2), F32)], {}),
        ("scatter_elements", [tensor((4,), F32), tensor((2,), I64), tensor((3,), F32)], {}),
        ("scatter_elements", [tensor((4,), F32), tensor((2,), I64), tensor((2,), I64)], {}),
        ("topk", [tensor((2, 3), F32)], {"k": 4}),
        ("depth_to_space", [tensor((1, 6, 2, 2), F32)], {"block": 2}),
        ("space_to_depth", [tensor((1, 1, 3, 2), F32)], {"block": 2}),
        ("resize", [tensor((2, 3), F32)], {"axes": (0,)}),
        ("range", [], {"delta": 0}),
        ("trilu", [tensor((3,), F32)], {}),
        ("grid_sample", [tensor((1, 1, 4, 4), F32), tensor((1, 2, 2, 3), F32)], {}),
        ("roi_align", [tensor((1, 1, 4, 4), F32), tensor((2, 4), F32), None], {"samples": 0}),
    ],
)
def test_contradictions(name: str, args: list[Annotation | None], attrs: dict[str, Any]) -> None:
    with pytest.raises(ShapeError) as caught:
        infer(name, *args, **attrs)
    assert caught.value.message.startswith(name)
    assert caught.value.node == "here"
