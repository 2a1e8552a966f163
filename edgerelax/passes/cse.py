"""Common subexpressions: equal pure calls on equal operands become one, scope by scope.

Constants are equal if dtype, shape and bytes are. A nested body sees what was computed before it;
what it computes stays inside.
"""

from collections.abc import Hashable
from dataclasses import replace

from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    Constant,
    Expression,
    GetItem,
    Module,
    Value,
    bodies,
    with_bodies,
)
from edgerelax.ir.rewrite import substitute_operands

Seen = dict[Hashable, Value]


def cse(module: Module) -> Module:
    """Merge equal calls of every graph function."""
    constants: Seen = {}
    funcs = {
        name: replace(func, body=_block(func.body, {}, {}, constants))
        for name, func in module.funcs.items()
    }
    return replace(module, funcs=funcs)


def _block(block: Block, seen: Seen, replaced: dict[Value, Value], constants: Seen) -> Block:
    out: list[Binding] = []
    for binding in block.bindings:
        value = substitute_operands(_share_constants(binding.value, constants), replaced)
        inner = [_block(b, dict(seen), dict(replaced), constants) for b in bodies(value)]
        value = with_bodies(value, inner)
        key = _key(value)
        if key is not None and key in seen:
            replaced[binding.var] = seen[key]
            continue
        if key is not None:
            seen[key] = binding.var
        out.append(Binding(binding.var, value))
    return Block(tuple(out), tuple(replaced.get(v, v) for v in block.results))


def _key(value: Expression) -> Hashable | None:
    """What makes two expressions equal; None for what must not be merged."""
    if isinstance(value, Call) and value.op.pure:
        return (value.op.name, value.args, repr(sorted(value.attrs.items())))
    if isinstance(value, GetItem):
        return (value.value, value.index)
    return None


def _share_constants(value: Expression, constants: Seen) -> Expression:
    """The same expression over one Constant for each distinct content."""
    if not isinstance(value, Call):
        return value
    shared: dict[Value, Value] = {}
    for arg in value.args:
        if isinstance(arg, Constant):
            shared[arg] = constants.setdefault(arg.content(), arg)
    return substitute_operands(value, shared)
