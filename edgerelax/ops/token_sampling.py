"""The operators that draw tokens from logits; ir/token_sampling.py says how."""

import numpy as np

from edgerelax.ir.assumptions import nonzero
from edgerelax.ir.dtypes import F32, I32
from edgerelax.ir.loop import LoopFunc, Template
from edgerelax.ir.op import Array, CallSite, Operator, Sample, normal
from edgerelax.ir.token_sampling import greedy_tokens, sample_tokens
from edgerelax.ir.types import Annotation, Tensor, Tuple
from edgerelax.ops.maps import (
    equal_dim,
    fail,
    inputs_of,
    loop_func,
    outputs_of_site,
    present,
    tensor_of,
)
from edgerelax.sym import Expr, as_expr, prove_le

_COLUMNS = {"numbers": 3, "integers": 2}
_RANKS = {"x": 2, "numbers": 2, "integers": 2, "steps": 1, "raw": 2}
_NAMES = tuple(_RANKS)


def _infer(site: CallSite) -> Annotation:
    found = {
        name: tensor_of(site, k)
        for k, name in enumerate(_NAMES)
        if k < len(site.args) and site.args[k] is not None
    }
    for name, tensor in found.items():
        dtype = I32 if name in ("integers", "steps") else F32
        if tensor.dtype not in (None, dtype):
            raise fail(site, f"{name} of {tensor.dtype}", f"it is {dtype}")
        if tensor.rank not in (None, _RANKS[name]):
            raise fail(site, f"{name} of rank {tensor.rank}", f"it has rank {_RANKS[name]}")
    x = found["x"]
    if x.dims is None:
        return Tuple((Tensor(None, I32, 1), Tensor(None, F32, 1)))
    rows, length = x.dims
    _check_choice(site, length)
    for name, tensor in found.items():
        if tensor.dims is None:
            continue
        rows = equal_dim(site, rows, tensor.dims[0], f"rows of x and {name}")
        if name == "raw":
            equal_dim(site, length, tensor.dims[1], "logits, changed and raw")
        if name in _COLUMNS and prove_le(as_expr(_COLUMNS[name]), tensor.dims[1]) is False:
            raise fail(site, f"{name} has {tensor.dims[1]} columns, needs {_COLUMNS[name]}")
    return Tuple((Tensor((rows,), I32), Tensor((rows,), F32)))


def _check_choice(site: CallSite, length: Expr) -> None:
    if not nonzero(length, "a row of logits must not be empty: nothing to choose from"):
        raise fail(site, "there are no logits to choose from")


def _infer_greedy(site: CallSite) -> Annotation:
    x = tensor_of(site, 0)
    if x.dtype not in (None, F32):
        raise fail(site, f"x of {x.dtype}", "it is f32")
    if x.rank not in (None, 2):
        raise fail(site, f"x of rank {x.rank}", "it has rank 2")
    if x.dims is None:
        return Tensor(None, I32, 1)
    _check_choice(site, x.dims[1])
    return Tensor((x.dims[0],), I32)


def _lower_greedy(site: CallSite) -> LoopFunc:
    return loop_func(
        site, [Template("greedy_tokens", present(inputs_of(site)), outputs_of_site(site))]
    )


def _lower(site: CallSite) -> LoopFunc:
    outs = outputs_of_site(site)
    return loop_func(site, [Template("sample_tokens", present(inputs_of(site)), outs)])


def _settings(rows: int) -> tuple[Array, Array, Array]:
    """Every kind of row in turn."""
    kinds = [
        (0.0, 0.5, 0.0, 2), (1.0, 1.0, 0.0, 0), (0.7, 0.9, 0.0, 0), (1.5, 1.0, 0.0, 3),
        (1.0, 0.8, 0.05, 4), (2.0, 1.0, 0.2, 0),
    ]  # fmt: skip
    chosen = [kinds[k % len(kinds)] for k in range(rows)]
    numbers = np.array([c[:3] for c in chosen], np.float32)
    integers = np.array([(c[3], 7 * k - 3) for k, c in enumerate(chosen)], np.int32)
    return numbers, integers, np.arange(rows, dtype=np.int32)


OPERATORS = (
    Operator(
        "sample_tokens",
        _NAMES,
        _infer,
        sample_tokens,
        _lower,
        optional=1,
        samples=(
            Sample((normal(6, 11), *_settings(6), None)),
            Sample((normal(6, 12) * 4, *_settings(6), normal(6, 12))),
            Sample((normal(1, 1), *_settings(1), None)),
            Sample((normal(0, 5), *(a[:0] for a in _settings(6)), None)),
        ),
    ),
    Operator(
        "greedy_tokens",
        ("x",),
        _infer_greedy,
        greedy_tokens,
        _lower_greedy,
        samples=(
            Sample((normal(3, 11),)),
            Sample((normal(2, 12),)),
            Sample((np.array([[1, 4, 4, np.nan], [-np.inf] * 4, [np.nan] * 4], np.float32),)),
            Sample((normal(0, 5),)),
        ),
    ),
)
