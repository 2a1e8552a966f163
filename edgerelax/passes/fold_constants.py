"""Compute at compile time what depends on constants only, by the operators' own numpy references.

Operators without operands (fills, ranges) are left to the device unless their result is small: a
large constant costs a download. Needs: canonical form. Keeps: names and origins.
"""

from typing import Any

import numpy as np

from edgerelax.ir.graph import Binding, Call, Constant, MakeTuple, Module, Value, Var
from edgerelax.ir.op import Array
from edgerelax.ir.rewrite import rewrite_module
from edgerelax.ir.types import IntTensor, annotation_of
from edgerelax.sym import Expr, product

SMALL = 1024


def fold_constants(module: Module) -> Module:
    """Replace constant calls by constants."""

    def visit(binding: Binding) -> Value | list[Binding]:
        call = binding.value
        if not isinstance(call, Call) or not call.op.pure:
            return [binding]
        arrays = [a.data if isinstance(a, Constant) else None for a in call.args]
        known = all(a is None or isinstance(a, Constant) for a in call.args)
        attrs = concrete(call.attrs)
        if not known or attrs is None or (not any(call.args) and not _is_small(binding.var)):
            return [binding]
        with np.errstate(all="ignore"):
            result = call.op.reference(*arrays, **attrs)
        if isinstance(result, tuple):
            parts = tuple(
                make_constant(f"{binding.var.name}_{k}", np.asarray(r))
                for k, r in enumerate(result)
            )
            return [Binding(binding.var, MakeTuple(parts))]
        return make_constant(binding.var.name, np.asarray(result))

    return rewrite_module(module, visit)


def make_constant(name: str, data: Array) -> Constant:
    """A constant with the annotation that its dtype and size deserve."""
    return Constant(name, data, annotation_of(data))


def concrete(value: Any) -> Any:
    """Attributes with every Expr an int; None where one is symbolic."""
    if isinstance(value, Expr):
        return value.as_int()
    if isinstance(value, dict):
        items = {k: concrete(v) for k, v in value.items()}
        return None if _lost(value, items) else items
    if isinstance(value, tuple):
        parts = tuple(concrete(v) for v in value)
        lost = any(b is None and a is not None for a, b in zip(value, parts, strict=True))
        return None if lost else parts
    return value


def _lost(before: dict[str, Any], after: dict[str, Any]) -> bool:
    return any(after[k] is None and v is not None for k, v in before.items())


def _is_small(var: Var) -> bool:
    if isinstance(var.annotation, IntTensor):
        return True
    dims = getattr(var.annotation, "dims", None)
    size = None if dims is None else product(dims).as_int()
    return size is not None and size <= SMALL
