"""How passes rewrite graph functions: one walk, values replaced, nested bodies included."""

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
    Repeat,
    ToDevice,
    Value,
    Var,
    bodies,
    with_bodies,
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
        value = with_bodies(
            value, [rewrite_block(body, visit, dict(replaced)) for body in bodies(value)]
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
    """The same expression over replaced operands; nested bodies are left to the walk."""

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
        case Repeat():
            first = tuple(get(v) for v in value.initial)
            return value if first == value.initial else replace(value, initial=first)
        case Var() | Constant():
            return get(value)
    return value


def all_bindings(block: Block) -> Iterator[Binding]:
    """Every binding of a block, those inside nested bodies before the one that holds them."""
    for binding in block.bindings:
        for body in bodies(binding.value):
            yield from all_bindings(body)
        yield binding
