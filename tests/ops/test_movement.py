"""Data movement, indexing and shape operators: each sample, with known and symbolic dims."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.loop_interp import run_loop
from edgerelax.ir.op import CallSite, Operator, Sample
from edgerelax.ir.types import Annotation, IntTensor, Tensor, Tuple, as_tensor, tensor
from edgerelax.ops import (
    blocks,
    creation,
    indexing,
    joining,
    resize,
    sampling,
    shaping,
    slicing,
)
from edgerelax.sym import Symbol, as_expr

FAMILIES = (blocks, creation, indexing, joining, resize, sampling, shaping, slicing)
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{k}")
    for family in FAMILIES
    for op in family.OPERATORS
    for k, sample in enumerate(op.samples)
]
KNOWN_DIMS = {("gather_nd", 1), ("grid_sample", 1), ("roi_align", 1)}
"""(operator, operand) whose last dim is part of the operator's form."""


def make_site(op: Operator, sample: Sample, args: tuple[Annotation | None, ...]) -> CallSite:
    site = CallSite(op, args, {**op.attrs, **sample.attrs}, (None,) * len(args), name=op.name)
    return replace(site, result=op.infer(site))


def reference(op: Operator, sample: Sample) -> tuple[np.ndarray[Any, Any], ...]:
    found = op.reference(*sample.args, **{**op.attrs, **sample.attrs})
    return found if isinstance(found, tuple) else (found,)


def fields(result: Annotation | None) -> tuple[Annotation, ...]:
    assert result is not None
    return result.fields if isinstance(result, Tuple) else (result,)


def concrete_args(sample: Sample) -> tuple[Annotation | None, ...]:
    return tuple(None if a is None else tensor(a.shape, from_numpy(a.dtype)) for a in sample.args)


def symbolic_args(
    op: Operator, sample: Sample
) -> tuple[tuple[Annotation | None, ...], dict[Symbol, int]]:
    """Every dim of every operand a fresh symbol; equal sizes are different symbols."""
    env: dict[Symbol, int] = {}
    args: list[Annotation | None] = []
    for j, array in enumerate(sample.args):
        if array is None:
            args.append(None)
            continue
        dims = []
        for k, size in enumerate(array.shape):
            if (op.name, j) in KNOWN_DIMS and k == array.ndim - 1:
                dims.append(as_expr(size))
                continue
            symbol = Symbol(f"d{j}_{k}", 0)
            env[symbol] = size
            dims.append(as_expr(symbol))
        args.append(Tensor(tuple(dims), from_numpy(array.dtype)))
    return tuple(args), env


def check(site: CallSite, sample: Sample, env: dict[Symbol, int]) -> None:
    expected = reference(site.op, sample)
    results = fields(site.result)
    assert len(results) == len(expected)
    for result, array in zip(results, expected, strict=True):
        found = as_tensor(result)
        assert found is not None and found.dims is not None and found.dtype is not None
        assert tuple(d.eval(env) for d in found.dims) == array.shape
        assert found.dtype.numpy == array.dtype
        if isinstance(result, IntTensor):
            values = [v.eval(env) for v in result.values]
            np.testing.assert_array_equal(np.array(values).reshape(array.shape), array)
    assert site.op.lower is not None
    func = site.op.lower(site)
    arrays = [a for a in sample.args if a is not None]
    outputs = run_loop(func, arrays, {s.name: v for s, v in env.items()})
    for output, array in zip(outputs, expected, strict=True):
        assert output.dtype == array.dtype
        np.testing.assert_allclose(
            output.astype(np.float64), array.astype(np.float64), rtol=2e-5, atol=2e-6
        )


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_concrete(op: Operator, sample: Sample) -> None:
    check(make_site(op, sample, concrete_args(sample)), sample, {})


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_symbolic(op: Operator, sample: Sample) -> None:
    args, env = symbolic_args(op, sample)
    check(make_site(op, sample, args), sample, env)


def int_cases() -> Iterator[Any]:
    """Samples whose operands include integer tensors of rank 0 or 1."""
    for case in CASES:
        sample = case.values[1]
        assert isinstance(sample, Sample)
        if any(_tracked(a) for a in sample.args):
            yield case


def _tracked(array: np.ndarray[Any, Any] | None) -> bool:
    return array is not None and array.ndim <= 1 and array.dtype.kind in "iu"


@pytest.mark.parametrize(("op", "sample"), list(int_cases()))
def test_known_integers(op: Operator, sample: Sample) -> None:
    args = tuple(
        IntTensor(tuple(as_expr(int(v)) for v in a.reshape(-1)), a.ndim, from_numpy(a.dtype))
        if _tracked(a) and a is not None
        else c
        for a, c in zip(sample.args, concrete_args(sample), strict=True)
    )
    check(make_site(op, sample, args), sample, {})


@pytest.mark.parametrize(("op", "sample"), CASES)
def test_unknown_dims(op: Operator, sample: Sample) -> None:
    """Inference is coarse, never wrong, where dims are unknown."""
    expected = reference(op, sample)
    for known_rank in (True, False):
        args = tuple(
            None if a is None else Tensor(None, from_numpy(a.dtype), a.ndim if known_rank else None)
            for a in sample.args
        )
        site = CallSite(op, args, {**op.attrs, **sample.attrs}, (None,) * len(args))
        results = fields(op.infer(site))
        for result, array in zip(results, expected, strict=True):
            found = as_tensor(result)
            assert found is not None
            assert found.rank in (None, array.ndim)
            assert found.dtype is None or found.dtype.numpy == array.dtype
