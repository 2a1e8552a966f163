"""Transposes disappear into matmuls, views and each other; what is computed stays the same."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Call, Module, Value
from edgerelax.ir.outcome import Outcome, taken
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.verify import verify
from edgerelax.ops import OPS
from edgerelax.passes.fold_transposes import fold_transposes
from tests.passes.programs import M, N, build, weights
from tests.passes.test_fold_scales import ops, same
from tests.passes.test_meaning import inputs_of


def folded(body: Callable[[Function], None]) -> tuple[Module, Outcome]:
    """The module after, once it is checked to compute what the program did."""
    module = build(body)
    after, outcome = taken(fold_transposes(module))
    verify(after)
    assert outcome is not None
    same(module, after, inputs_of(module, {"n": 3, "m": 5}))
    return after, outcome


def turned(f: Function, x: Value, *perm: int) -> Value:
    return f.call(OPS["transpose"], x, perm=perm)


def call_of(module: Module, name: str) -> Call:
    bindings = all_bindings(module.funcs["main"].body)
    (found,) = (b.value for b in bindings if isinstance(b.value, Call) and b.value.op.name == name)
    return found


@pytest.mark.parametrize("turn_a", [False, True])
@pytest.mark.parametrize("turn_b", [False, True])
@pytest.mark.parametrize("already", [False, True])
def test_matmuls_read_their_operands_turned(turn_a: bool, turn_b: bool, already: bool) -> None:
    def body(f: Function) -> None:
        a = f.input("a", (2, M, N) if turn_a != already else (2, N, M), F32)
        b = f.input("b", (N, M) if turn_b else (M, N), F32)
        a = turned(f, a, 0, 2, 1) if turn_a else a
        b = turned(f, b, 1, 0) if turn_b else b
        f.output("y", f.call(OPS["matmul"], a, b, transpose_a=already))

    module, _ = folded(body)
    assert ops(module) == ["matmul"]
    attrs = call_of(module, "matmul").attrs
    assert attrs == {"transpose_a": turn_a != already, "transpose_b": turn_b}


def test_keys_are_copied_by_whole_rows() -> None:
    """[n, m, h, d] to [n, h, d, m] is a copy to [n, h, m, d] that the matmul reads turned."""

    def body(f: Function) -> None:
        q, k = f.input("q", (N, 2, M, 4), F32), f.input("k", (N, M, 2, 4), F32)
        f.output("y", f.call(OPS["matmul"], q, turned(f, k, 0, 2, 3, 1)))

    module, _ = folded(body)
    assert call_of(module, "transpose").attrs["perm"] == (0, 2, 1, 3)
    assert call_of(module, "matmul").attrs["transpose_b"] is True


def test_a_permutation_that_mixes_batches_stays() -> None:
    def body(f: Function) -> None:
        a, b = f.input("a", (M, N, 4), F32), f.input("b", (4, 3), F32)
        f.output("y", f.call(OPS["matmul"], turned(f, a, 1, 0, 2), b))

    module, outcome = folded(body)
    assert ops(module) == ["transpose", "matmul"]
    assert not outcome.done
    assert [s.at for s in outcome.skipped] == ["transpose"]


@pytest.mark.parametrize("turns", [(False, False), (True, False), (False, True), (True, True)])
def test_a_transposed_product_is_the_product_turned(turns: tuple[bool, bool]) -> None:
    def body(f: Function) -> None:
        a = f.input("a", (2, 4, N) if turns[0] else (2, N, 4), F32)
        b = f.input("b", (M, 4) if turns[1] else (4, M), F32)
        y = f.call(OPS["matmul"], a, b, transpose_a=turns[0], transpose_b=turns[1])
        f.output("y", turned(f, y, 0, 2, 1))

    assert ops(folded(body)[0]) == ["matmul"]


def test_transposes_compose() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 3, M), F32)
        f.output("y", turned(f, turned(f, x, 2, 0, 1), 2, 1, 0))
        f.output("x again", turned(f, turned(f, x, 2, 0, 1), 1, 2, 0))

    module, _ = folded(body)
    assert call_of(module, "transpose").attrs["perm"] == (1, 0, 2)


def test_dims_of_one_move_for_free() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 1, M, 1), F32)
        x = f.call(OPS["relu"], turned(f, x, 1, 0, 3, 2))
        f.output("y", f.call(OPS["reshape"], x, dims=(N, M)))
        f.output("turned", turned(f, x, 1, 3, 0, 2))

    assert "transpose" not in ops(folded(body)[0])


def test_reshapes_merge() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 6, M), F32)
        y = f.call(OPS["reshape"], f.call(OPS["reshape"], x, dims=(N * 6, M)), dims=(N, 2, 3, M))
        f.output("y", f.call(OPS["relu"], y))
        f.output("x again", f.call(OPS["relu"], f.call(OPS["reshape"], y, dims=(N, 6, M))))

    module, _ = folded(body)
    assert sorted(ops(module)) == ["relu", "relu", "reshape"]


def test_layouts_cancel_through_maps() -> None:
    """What tf2onnx leaves around each convolution: maps in the other layout, used twice inside."""

    def body(f: Function) -> None:
        x = f.input("x", (N, 3, M, 4), F32)
        y = f.call(OPS["add"], turned(f, x, 0, 2, 3, 1), f.constant("bias", weights(3)))
        y = f.call(OPS["mul"], y, f.constant("rows", weights(4, 1)))
        y = f.call(OPS["mul"], y, f.call(OPS["sigmoid"], y))
        y = f.call(OPS["clip"], y, None, f.constant("top", weights() * 0 + 2))
        f.output("y", f.call(OPS["abs"], turned(f, y, 0, 3, 1, 2)))

    module, outcome = folded(body)
    assert "transpose" not in ops(module)
    assert outcome.summary()["done"] == {"transposes cancelled through maps": 1}


def test_layouts_that_others_see_stay() -> None:
    def body(f: Function) -> None:
        x = f.input("x", (N, 3, M), F32)
        y = f.call(OPS["exp"], turned(f, x, 0, 2, 1))
        f.output("y", turned(f, y, 0, 2, 1))
        f.output("sums", f.call(OPS["reduce_sum"], y, axes=(1,), keepdims=False))

    assert ops(folded(body)[0]).count("transpose") == 2


def test_operators_with_dims_of_their_own_stay() -> None:
    """They may leave each element in its place, and would not in the other layout."""

    def body(f: Function) -> None:
        for name, attrs in (
            ("slice", {"starts": (0,), "ends": (M,), "axes": (1,), "steps": (1,)}),
            ("expand", {"dims": (N, M)}),
            ("softmax", {"axis": 1}),
        ):
            y = f.call(OPS[name], turned(f, f.input(name, (M, N), F32), 1, 0), **attrs)
            f.output(f"of_{name}", turned(f, y, 1, 0))

    assert ops(folded(body)[0]).count("transpose") == 6


def test_operators_with_an_axis_of_their_own_stay() -> None:
    """Dim 1 of a batch norm is the channel in any layout."""

    def body(f: Function) -> None:
        x = f.input("x", (3, N), F32)
        fitted = [f.constant(f"c{k}", abs(weights(3, seed=k))) for k in range(4)]
        f.output("y", turned(f, f.call(OPS["batch_norm"], turned(f, x, 1, 0), *fitted), 1, 0))

    assert ops(folded(body)[0]) == ["transpose", "batch_norm", "transpose"]


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=10))
def test_random_layouts(choices: list[int]) -> None:
    """Transposes, unit dims, maps and products of values of equal or turned shape, at random."""

    def body(f: Function) -> None:
        values: list[Value] = [f.input("x", (N, 1, M), F32), f.input("y", (M, N, 1), F32)]
        for at, choice in enumerate(choices):
            kind, a = choice % 6, values[choice // 6 % len(values)]
            b = values[choice // 60 % len(values)]
            rank = len(a.annotation.dims)
            if kind < 3:
                orders = ((0, 2, 1), (1, 0, 2), (2, 0, 1), (1, 2, 0), (2, 1, 0))
                made = turned(f, a, *orders[choice // 600 % 5][:rank])
            elif kind == 3:
                made = f.call(OPS["tanh"], a)
            elif kind == 4 and a.annotation.dims == b.annotation.dims:
                made = f.call(OPS["add"], a, b)
            elif kind == 5 and a.annotation.dims[0] == b.annotation.dims[0]:
                inner = a.annotation.dims[2] == b.annotation.dims[1]
                other = a.annotation.dims[2] == b.annotation.dims[2]
                if not inner and not other:
                    continue
                product = f.call(OPS["matmul"], a, b, transpose_b=not inner)
                if product.annotation.dims[1:] == (N, M):
                    continue
                made = f.call(OPS["tanh"], product)
            else:
                row = f.constant(f"c{at}", weights(1, 1, 1, seed=at))
                made = f.call(OPS["mul"], a, row)
            values.append(made)
            if choice // 3000 % 4 == 0:
                f.output(f"o{at}", made)
        f.output("last", values[-1])

    folded(body)
