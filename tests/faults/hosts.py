"""Small modules on both native hosts, for the tests of what users of other runtimes ran into."""

from collections.abc import Mapping
from typing import Any

import numpy as np

import edgerelax.api as api
from edgerelax.ir.builder import Function
from edgerelax.ir.dtypes import from_numpy
from edgerelax.ir.graph import Module, Value
from edgerelax.ir.types import Tuple
from edgerelax.ops import OPS
from edgerelax.sym import ExprLike, symbol

HOSTS = ("cpu", "wgpu")
Arrays = dict[str, np.ndarray]
N = symbol("n")
"""A size that may be anything, 0 included."""


def calling(op: str, *operands: tuple[tuple[ExprLike, ...], Any] | None, **attrs: Any) -> Module:
    """A module of one call: inputs x0, x1… of these shapes and numpy dtypes, outputs y0, y1…"""
    f = Function("main")
    values: list[Value | None] = []
    for k, operand in enumerate(operands):
        if operand is None:
            values.append(None)
        else:
            dims, dtype = operand
            values.append(f.input(f"x{k}", dims, from_numpy(np.dtype(dtype))))
    result = f.call(OPS[op], *values, **attrs)
    parts = f.fields(result) if isinstance(result.annotation, Tuple) else (result,)
    for k, part in enumerate(parts):
        f.output(f"y{k}", part)
    return f.module()


def run(module: Module, inputs: Mapping[str, Any]) -> dict[str, Arrays]:
    """The outputs, by variant."""
    executable = api.compile(module, verify=True)
    found: dict[str, Arrays] = {}
    for program in executable.artifact.manifest.programs:
        with executable.session(variant=program.name) as session:
            found[program.name] = session.run(inputs)
    return found


def along(op: str, *arrays: Any, **attrs: Any) -> dict[str, np.ndarray]:
    """One operator on arrays whose first dim is symbolic; its result, by variant."""
    given = [np.asarray(a) for a in arrays]
    shapes = [((N, *a.shape[1:]) if a.ndim else (), a.dtype) for a in given]
    inputs = {f"x{k}": a for k, a in enumerate(given)}
    return {h: out["y0"] for h, out in run(calling(op, *shapes, **attrs), inputs).items()}
