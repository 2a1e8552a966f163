"""Bring graph functions to one form: no aliases, no tuples taken apart, host integers as such.

After: no binding's right side is a bare value; GetItem of a MakeTuple is the field; a MatchCast
that says nothing new is gone; a call whose result is a known IntTensor is the `integers` operator
(so that the chain that computed it is dead); a condition whose value the host knows is an Expr.
"""

from dataclasses import replace

from edgerelax.ir.graph import (
    Binding,
    Call,
    Constant,
    GetItem,
    IfElse,
    MakeTuple,
    MatchCast,
    Module,
    Value,
    Var,
)
from edgerelax.ir.rewrite import rewrite_module
from edgerelax.ir.types import IntTensor
from edgerelax.ops import OPS


def canonicalize(module: Module) -> Module:
    """Apply the rules above to every binding."""
    tuples: dict[Value, tuple[Value, ...]] = {}

    def visit(binding: Binding) -> Value | list[Binding]:
        match binding.value:
            case Var() | Constant():
                return binding.value
            case MakeTuple(fields):
                tuples[binding.var] = fields
            case GetItem(value, index) if value in tuples:
                return tuples[value][index]
            case MatchCast(value) if value.annotation == binding.var.annotation:
                return value
            case Call() as call:
                return [Binding(binding.var, _as_integers(binding.var, call))]
            case IfElse(cond=Var() | Constant() as cond) as branch:
                if isinstance(cond.annotation, IntTensor):
                    known = replace(branch, cond=cond.annotation.values[0])
                    return [Binding(binding.var, known)]
        return [binding]

    return rewrite_module(module, visit)


def _as_integers(var: Var, call: Call) -> Call:
    """The same known integers, without what computed them."""
    integers = OPS["integers"]
    known = var.annotation
    if not isinstance(known, IntTensor) or call.op is integers:
        return call
    return Call(integers, (), {"values": known.values, "rank": known.rank, "dtype": known.dtype})
