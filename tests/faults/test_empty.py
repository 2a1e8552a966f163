"""Dims of 0 (web.md C 11, 12): every operator, in every dim that its samples vary."""

from collections.abc import Iterator

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.hosts.session import Session
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import EdgeRelaxError, InputError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Module
from edgerelax.ir.op import Operator, Sample
from edgerelax.ops import OPS
from edgerelax.sym import symbol
from tests.faults.hosts import HOSTS, Arrays, N, calling, run
from tests.ops.test_conformance import KNOWN_LAST, check_close


def _samples() -> Iterator[tuple[Operator, Sample]]:
    """One sample for each combination of ranks."""
    for op in OPS.values():
        seen = set()
        for sample in op.samples:
            ranks = tuple(None if a is None else a.ndim for a in sample.args)
            if ranks not in seen and any(a is not None and a.size > 1 for a in sample.args):
                seen.add(ranks)
                yield op, sample


def _symbolic(op: Operator, sample: Sample) -> tuple[Module, set[int]]:
    """The call with equal sizes as one symbol, and the sizes that are symbols."""
    sizes: set[int] = set()
    operands = []
    for k, array in enumerate(sample.args):
        if array is None:
            operands.append(None)
            continue
        fixed = array.ndim - 1 if (op.name, k) in KNOWN_LAST else array.ndim
        sizes |= {n for n in array.shape[:fixed] if n > 1}
        dims = [symbol(f"s{n}") if n > 1 and j < fixed else n for j, n in enumerate(array.shape)]
        operands.append((tuple(dims), array.dtype))
    return calling(op.name, *operands, **sample.attrs), sizes


def _emptied(op: Operator, sample: Sample, size: int) -> list[np.ndarray | None]:
    """The operands, those with dims of that size now with dims of 0."""
    out: list[np.ndarray | None] = []
    for k, array in enumerate(sample.args):
        if array is None or size not in array.shape:
            out.append(array)
            continue
        fixed = array.ndim - 1 if (op.name, k) in KNOWN_LAST else array.ndim
        shape = [0 if n == size and j < fixed else n for j, n in enumerate(array.shape)]
        out.append(np.zeros(shape, array.dtype))
    return out


@pytest.mark.parametrize(("op", "sample"), [pytest.param(*s, id=s[0].name) for s in _samples()])
def test_every_operator(op: Operator, sample: Sample) -> None:
    """Where numpy's meaning knows a result there is the same one; elsewhere no crash."""
    module, sizes = _symbolic(op, sample)
    executable = api.compile(module, verify=True)
    for host in HOSTS:
        with executable.session(host) as session:
            for size in sorted(sizes):
                args = _emptied(op, sample, size)
                inputs = {f"x{k}": a for k, a in enumerate(args) if a is not None}
                try:
                    with np.errstate(all="ignore"):
                        results = op.reference(*args, **{**op.attrs, **sample.attrs})
                except (ValueError, IndexError, ZeroDivisionError, EdgeRelaxError):
                    continue
                expected = results if isinstance(results, tuple) else (results,)
                got = _run(session, inputs)
                for one, wanted in zip(got, expected, strict=False):
                    check_close(one, np.asarray(wanted))


def _run(session: Session, inputs: Arrays) -> list[np.ndarray]:
    """The results; none where an attribute or another operand says that the dim is not 0."""
    try:
        return list(session.run(inputs).values())
    except InputError as error:
        assert "must be equal" in str(error)
        return []


EMPTY = {
    "softmax": ((0, 512), {"axis": -1}, (0, 512)),
    "reduce_max": ((2, 0), {"axes": (1,), "keepdims": False}, (2,)),
    "reduce_sum": ((2, 0), {"axes": (1,), "keepdims": False}, (2,)),
    "reduce_mean": ((2, 0), {"axes": (1,), "keepdims": False}, (2,)),
    "layer_norm": ((0, 8), {}, (0, 8)),
    "transpose": ((0, 5), {"perm": (1, 0)}, (5, 0)),
    "reshape": ((0, 6), {"dims": (3, 0, 2)}, (3, 0, 2)),
}
IDENTITY = {"reduce_max": -np.inf, "reduce_sum": 0.0, "reduce_mean": np.nan}


@pytest.mark.parametrize("static", [True, False], ids=["sizes", "symbols"])
@pytest.mark.parametrize("op", EMPTY)
def test_empty_operand(op: str, static: bool) -> None:
    """The sizes known to be 0 when compiled, and found to be 0 when run."""
    shape, attrs, wanted = EMPTY[op]
    dims = tuple(N if n == 0 and not static else n for n in shape)
    if op == "reshape" and not static:
        attrs = {"dims": (3, N, 2)}
    for got in run(
        calling(op, (dims, np.float32), **attrs), {"x0": np.zeros(shape, "f4")}
    ).values():
        assert got["y0"].shape == wanted
        np.testing.assert_array_equal(got["y0"], np.full(wanted, IDENTITY.get(op, 0), np.float32))


@pytest.mark.parametrize("static", [True, False], ids=["sizes", "symbols"])
def test_product_over_nothing(static: bool) -> None:
    k = 0 if static else N
    module = calling("matmul", ((2, k), np.float32), ((k, 3), np.float32))
    inputs = {"x0": np.zeros((2, 0), np.float32), "x1": np.zeros((0, 3), np.float32)}
    for got in run(module, inputs).values():
        np.testing.assert_array_equal(got["y0"], np.zeros((2, 3), np.float32))


@pytest.mark.parametrize("sizes", [(0, 3), (3, 0), (0, 0), (2, 3)])
def test_concat_with_nothing(sizes: tuple[int, int]) -> None:
    a, b = symbol("a"), symbol("b")
    module = calling("concat", ((a, 2), np.float32), ((b, 2), np.float32), axis=0)
    x, y = (np.arange(2 * n, dtype=np.float32).reshape(n, 2) for n in sizes)
    for got in run(module, {"x0": x, "x1": y}).values():
        np.testing.assert_array_equal(got["y0"], np.concatenate([x, y]))


def test_neighbours_of_an_empty_operator() -> None:
    """What is launched before and after an empty call comes out right (tfjs loses both)."""

    def body(f: Function) -> None:
        x, two = f.input("x", (N, 3), F32), f.input("two", (2,), F32)
        before = f.call(OPS["mul"], two, two)
        f.output("before", before)
        f.output("empty", f.call(OPS["matmul"], x, f.constant("w", np.ones((3, 4), np.float32))))
        total = f.call(OPS["reduce_sum"], x, axes=(0, 1), keepdims=False)
        f.output("total", total)
        f.output("after", f.call(OPS["add"], before, total))

    f = Function("main")
    body(f)
    inputs = {"x": np.zeros((0, 3), np.float32), "two": np.float32([2, 5])}
    for got in run(f.module(), inputs).values():
        np.testing.assert_array_equal(got["before"], [4, 25])
        assert got["empty"].shape == (0, 4)
        assert got["total"] == 0
        np.testing.assert_array_equal(got["after"], [4, 25])


def test_empty_between_full() -> None:
    """One session: full, empty, full again."""
    executable = api.compile(calling("softmax", ((N, 4), np.float32), axis=-1), verify=True)
    x = np.random.default_rng(0).standard_normal((5, 4)).astype(np.float32)
    for host in HOSTS:
        with executable.session(host) as session:
            first = session.run({"x0": x})["y0"]
            assert session.run({"x0": x[:0]})["y0"].shape == (0, 4)
            np.testing.assert_array_equal(session.run({"x0": x})["y0"], first)
