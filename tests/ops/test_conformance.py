"""Every operator on its own samples: annotation rule and lowering agree with the numpy reference.

Each call is tried with the sample's sizes and again with every dim of every operand a symbol.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.op import CallSite, Operator, Sample
from edgerelax.ir.types import Annotation, Tensor, Tuple, as_tensor
from edgerelax.ops import OPS
from edgerelax.sym import Symbol, as_expr

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{k}")
    for op in OPS.values()
    for k, sample in enumerate(op.samples)
]
TOLERANCE = {"float64": 1e-9, "float32": 2e-5, "float16": 4e-3, "bfloat16": 2e-2}
KNOWN_LAST = {("gather_nd", 1), ("scatter_nd", 1), ("grid_sample", 1), ("roi_align", 1)}
"""(operator, operand) whose last dim is part of the operator's form."""


@dataclass(frozen=True)
class Case:
    """A call: its site, the sizes its symbols stand for, what it should give."""

    site: CallSite
    sizes: dict[Symbol, int]
    expected: tuple[Any, ...]


def make_case(op: Operator, sample: Sample, symbolic: bool) -> Case:
    attrs = {**op.attrs, **sample.attrs}
    sizes: dict[Symbol, int] = {}
    annotations: list[Annotation | None] = []
    for k, array in enumerate(sample.args):
        if array is None:
            annotations.append(None)
            continue
        dims = [as_expr(n) for n in array.shape]
        if symbolic:
            for j in range(array.ndim - ((op.name, k) in KNOWN_LAST)):
                symbol = Symbol(f"n{k}_{j}")
                sizes[symbol] = array.shape[j]
                dims[j] = symbol.expr
        annotations.append(Tensor(tuple(dims), from_numpy(array.dtype)))
    constants = (None,) * len(sample.args) if symbolic else sample.args
    site = CallSite(op, tuple(annotations), attrs, constants, None, op.name)
    with np.errstate(all="ignore"):
        results = op.reference(*sample.args, **attrs)
    expected = results if isinstance(results, tuple) else (results,)
    return Case(site, sizes, expected)


def fields(annotation: Annotation) -> tuple[Tensor, ...]:
    parts = annotation.fields if isinstance(annotation, Tuple) else (annotation,)
    tensors = tuple(as_tensor(p) for p in parts)
    assert all(t is not None for t in tensors)
    return tensors


def check_close(got: Any, expected: Any) -> None:
    assert got.dtype == expected.dtype
    assert got.shape == expected.shape
    tolerance = TOLERANCE.get(str(expected.dtype))
    if tolerance is None:
        exact = np.float32 if "float8" in str(expected.dtype) else expected.dtype
        np.testing.assert_array_equal(got.astype(exact), expected.astype(exact))
    else:
        wide = np.promote_types(np.float32, np.float64 if expected.itemsize == 8 else np.float32)
        np.testing.assert_allclose(
            got.astype(wide), expected.astype(wide), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize("symbolic", [False, True], ids=["sizes", "symbols"])
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_conformance(op: Operator, sample: Sample, symbolic: bool) -> None:
    case = make_case(op, sample, symbolic)
    annotation = op.infer(case.site)
    tensors = fields(annotation)
    assert len(tensors) == len(case.expected)
    for tensor, expected in zip(tensors, case.expected, strict=True):
        assert tensor.dtype == from_numpy(expected.dtype)
        assert tensor.dims is not None
        assert tuple(d.eval(case.sizes) for d in tensor.dims) == expected.shape
    if op.lower is None:
        return
    site = case.site
    func = op.lower(CallSite(op, site.args, site.attrs, site.constants, annotation, op.name))
    given = [a for a in sample.args if a is not None]
    names = {s.name: n for s, n in case.sizes.items()}
    got = run_loop(func, given, names)
    for one, expected in zip(got, case.expected, strict=True):
        check_close(one, expected)


def test_every_operator_has_samples() -> None:
    assert [name for name, op in OPS.items() if not op.samples] == []
