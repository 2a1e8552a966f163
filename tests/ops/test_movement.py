"""Data movement, indexing and shape operators: operands that are known integers or hardly known.

That samples lower to what the reference says is tested with all other operators.
"""

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
    scattering,
    shaping,
    slicing,
    sorting,
    unique,
)
from edgerelax.sym import Symbol, as_expr

Array = np.ndarray[Any, Any]
FAMILIES = (
    blocks, creation, indexing, joining, resize, sampling, scattering, shaping, slicing, sorting,
    unique,
)  # fmt: skip
CASES = [
    pytest.param(op, sample, id=f"{op.name}-{k}")
    for family in FAMILIES
    for op in family.OPERATORS
    for k, sample in enumerate(op.samples)
]


def is_tracked(array: Array | None) -> bool:
    return array is not None and array.ndim <= 1 and array.dtype.kind in "iub"


INT_CASES = [c for c in CASES if any(is_tracked(a) for a in c.values[1].args)]  # type: ignore[union-attr]


def make_site(op: Operator, sample: Sample, args: tuple[Annotation | None, ...]) -> CallSite:
    site = CallSite(op, args, {**op.attrs, **sample.attrs}, (None,) * len(args), name=op.name)
    return replace(site, result=op.infer(site))


def reference(op: Operator, sample: Sample) -> tuple[Array, ...]:
    found = op.reference(*sample.args, **{**op.attrs, **sample.attrs})
    return found if isinstance(found, tuple) else (found,)


def fields(result: Annotation | None) -> tuple[Annotation, ...]:
    assert result is not None
    return result.fields if isinstance(result, Tuple) else (result,)


@pytest.mark.parametrize(("op", "sample"), INT_CASES)
def test_known_integers(op: Operator, sample: Sample) -> None:
    """Operands whose elements are symbols: folded results and lowerings agree."""
    env: dict[Symbol, int] = {}
    args: list[Annotation | None] = []
    for j, array in enumerate(sample.args):
        if array is None:
            args.append(None)
        elif is_tracked(array):
            values = []
            for k, number in enumerate(array.reshape(-1)):
                symbol = Symbol(f"v{j}_{k}", -100)
                env[symbol] = int(number)
                values.append(symbol.expr)
            args.append(IntTensor(tuple(values), array.ndim, from_numpy(array.dtype)))
        else:
            args.append(tensor(array.shape, from_numpy(array.dtype)))
    check(make_site(op, sample, tuple(args)), sample, env)


@pytest.mark.parametrize(("op", "sample"), INT_CASES)
def test_literal_integers(op: Operator, sample: Sample) -> None:
    """The same where the elements are literals."""
    args = tuple(
        None
        if a is None
        else IntTensor(tuple(as_expr(int(v)) for v in a.reshape(-1)), a.ndim, from_numpy(a.dtype))
        if is_tracked(a)
        else tensor(a.shape, from_numpy(a.dtype))
        for a in sample.args
    )
    check(make_site(op, sample, args), sample, {})


def check(site: CallSite, sample: Sample, env: dict[Symbol, int]) -> None:
    expected = reference(site.op, sample)
    for result, array in zip(fields(site.result), expected, strict=True):
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
    names = {s.name: v for s, v in env.items()}
    for output, array in zip(run_loop(func, arrays, names), expected, strict=True):
        assert output.dtype == array.dtype
        np.testing.assert_allclose(output, array, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(("op", "sample"), CASES)
@pytest.mark.parametrize("known_rank", [True, False], ids=["rank", "nothing"])
def test_unknown_dims(op: Operator, sample: Sample, known_rank: bool) -> None:
    """Inference is coarse, never wrong, where dims are unknown."""
    args = tuple(
        None if a is None else Tensor(None, from_numpy(a.dtype), a.ndim if known_rank else None)
        for a in sample.args
    )
    site = make_site(op, sample, args)
    for result, array in zip(fields(site.result), reference(op, sample), strict=True):
        found = as_tensor(result)
        assert found is not None
        assert found.rank in (None, array.ndim)
        assert found.dtype is None or found.dtype.numpy == array.dtype
