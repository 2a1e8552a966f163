"""How passes rewrite graph functions: one walk, values replaced, arms of IfElse included."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallLibrary,
    CallTIR,
    Constant,
    Expression,
    GetItem,
    GraphFunc,
    IfElse,
    MakeTuple,
    MatchCast,
    Module,
    ReadInts,
    ToDevice,
    Value,
    Var,
)

Values = dict[Value, Value]
Visit = Callable[[Binding], "Value | list[Binding]"]


def rewrite_module(module: Module, visit: Visit) -> Module:
    """Rewrite the body of every graph function."""
    return replace(module, funcs={n: rewrite_func(f, visit) for n, f in module.funcs.items()})


def rewrite_func(func: GraphFunc, visit: Visit) -> GraphFunc:
    """Rewrite one function's body."""
    return replace(func, body=rewrite_block(func.body, visit, {}))


def rewrite_block(block: Block, visit: Visit, replaced: Values) -> Block:
    """Visit each binding with its operands already replaced.

    `visit` gives a value, which from then on stands for the binding's, or the bindings to keep, the
    last of which defines it (under a new Var, if it likes).
    """
    out: list[Binding] = []
    for binding in block.bindings:
        value = substitute_operands(binding.value, replaced)
        if isinstance(value, IfElse):
            value = replace(
                value,
                then=rewrite_block(value.then, visit, dict(replaced)),
                other=rewrite_block(value.other, visit, dict(replaced)),
            )
        result = visit(binding if value is binding.value else Binding(binding.var, value))
        if isinstance(result, list):
            out.extend(result)
            if result and result[-1].var is not binding.var:
                replaced[binding.var] = result[-1].var
        else:
            replaced[binding.var] = result
    return Block(tuple(out), tuple(replaced.get(v, v) for v in block.results))


def substitute_operands(value: Expression, replaced: Values) -> Expression:
    """The same expression over replaced operands; arms of IfElse are left to the walk."""

    def get(v: Value) -> Value:
        return replaced.get(v, v)

    match value:
        case Call():
            args = tuple(None if a is None else get(a) for a in value.args)
            return value if args == value.args else replace(value, args=args)
        case CallTIR() | CallLibrary() | CallGraph():
            given = tuple(get(a) for a in value.args)
            return value if given == value.args else replace(value, args=given)
        case MatchCast() | ReadInts() | GetItem() | ToDevice():
            new = get(value.value)
            return value if new is value.value else replace(value, value=new)
        case MakeTuple():
            return replace(value, fields=tuple(get(f) for f in value.fields))
        case IfElse(cond=Var() | Constant() as cond) if cond in replaced:
            return replace(value, cond=get(cond))
        case Var() | Constant():
            return get(value)
    return value


def all_bindings(block: Block) -> Iterator[Binding]:
    """Every binding of a block, those inside arms before the IfElse that holds them."""
    for binding in block.bindings:
        if isinstance(binding.value, IfElse):
            yield from all_bindings(binding.value.then)
            yield from all_bindings(binding.value.other)
        yield binding
