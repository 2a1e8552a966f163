"""Every operator's samples through every target's schedule give what the numpy reference gives."""

from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.op import CallSite, Operator, Sample
from edgerelax.ir.types import Annotation, Tensor
from edgerelax.ops import OPS
from edgerelax.schedule.select import schedule
from edgerelax.schedule.target import TARGETS, WEBGPU, Target
from edgerelax.sym import Symbol, as_expr
from tests.schedule.oracle import run_schedule

CASES = [
    pytest.param(op, sample, id=f"{op.name}-{k}")
    for op in OPS.values()
    if op.lower is not None
    for k, sample in enumerate(op.samples)
]
FORMS = {("gather_nd", 1), ("scatter_nd", 1), ("grid_sample", 1), ("roi_align", 1)}
"""(operator, operand) whose last dim is part of the operator's form."""
TOLERANCE = {"float64": 1e-6, "float32": 2e-4, "float16": 2e-2, "bfloat16": 5e-2}


def call_site(op: Operator, sample: Sample, symbolic: bool) -> tuple[CallSite, dict[str, int]]:
    sizes: dict[str, int] = {}
    annotations: list[Annotation | None] = []
    for k, array in enumerate(sample.args):
        if array is None:
            annotations.append(None)
            continue
        dims = [as_expr(n) for n in array.shape]
        for j in range(array.ndim - ((op.name, k) in FORMS) if symbolic else 0):
            sizes[f"n{k}_{j}"] = array.shape[j]
            dims[j] = as_expr(Symbol(f"n{k}_{j}"))
        annotations.append(Tensor(tuple(dims), from_numpy(array.dtype)))
    constants = (None,) * len(sample.args) if symbolic else sample.args
    attrs = {**op.attrs, **sample.attrs}
    site = CallSite(op, tuple(annotations), attrs, constants, None, op.name)
    return CallSite(op, site.args, attrs, constants, op.infer(site), op.name), sizes


def runs_on(target: Target, given: list[Any], results: list[Any]) -> bool:
    """A GPU has neither f64 nor strings, and stores no 4-bit elements: those are for the CPU."""
    wide = all(a.dtype.kind not in "OU" and a.dtype != "f8" for a in (*given, *results))
    return not target.is_gpu or (wide and all("int4" not in str(a.dtype) for a in results))


WAYS = [
    pytest.param(target, symbolic, id=f"{name}-{'symbols' if symbolic else 'sizes'}")
    for name, target in TARGETS.items()
    for symbolic in ((True, False) if target is WEBGPU else (True,))
]


@pytest.mark.parametrize(("target", "symbolic"), WAYS)
@pytest.mark.parametrize(("op", "sample"), CASES)
def test_samples(op: Operator, sample: Sample, target: Target, symbolic: bool) -> None:
    site, sizes = call_site(op, sample, symbolic)
    with np.errstate(all="ignore"):
        results = op.reference(*sample.args, **site.attrs)
    expected = list(results) if isinstance(results, tuple) else [results]
    given = [a for a in sample.args if a is not None]
    if not runs_on(target, given, expected):
        pytest.skip("not for a GPU")
    assert op.lower is not None
    func = op.lower(site)
    got = run_schedule(schedule(func, target), func, given, sizes)
    for one, want in zip(got, expected, strict=True):
        tolerance = TOLERANCE.get(str(want.dtype))
        if tolerance is None:
            np.testing.assert_array_equal(one.astype(np.float64), want.astype(np.float64))
        else:
            wide = (one.astype(np.float64), want.astype(np.float64))
            np.testing.assert_allclose(*wide, rtol=tolerance, atol=tolerance)
