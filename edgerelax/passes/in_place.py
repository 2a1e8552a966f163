"""Which results of calls may lie over an operand of their call.

The operand's bytes are the plan's own, they die at this call whatever else renames them, the
result takes as many, and the kernels allow it (Schedule.in_place). A state's bytes are the host's:
only what the state becomes may lie over them. So it is with what a loop carries.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from edgerelax.ir.graph import Binding, CallTIR, GraphFunc, Value, Var, states
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.types import Tuple, tensor_bytes
from edgerelax.passes.liveness import Lifetimes
from edgerelax.sym import prove_eq

Names = tuple[str, str]  # operand, output
Allowed = Mapping[tuple[str, str], Sequence[Names]]
"""(loop function, device) → operands and outputs that its kernels let share a place, by name."""


@dataclass(frozen=True, slots=True)
class Sharing:
    """What one call may do: its pairs of names (operand: output) and of values.

    It must, where that keeps a state in its place.
    """

    binding: Binding
    func: tuple[str, str]
    names: tuple[Names, ...]
    values: tuple[tuple[Value, Value], ...]
    must: bool = False


@dataclass(frozen=True, slots=True)
class Sharings:
    """What each call may do, also if that is nothing; and what keeps the place of something.

    That are values that lie over the bytes of a state or of a loop's parameter.
    """

    sites: list[Sharing]
    kept: dict[Value, Var]


def sharings(
    func: GraphFunc, life: Lifetimes, loops: Mapping[str, LoopFunc], allowed: Allowed
) -> Sharings:
    """What each call may do; pairs that fit all calls of a function first.

    Those need the function in one form.
    """
    sites = []
    for binding in all_bindings(func.body):
        call = binding.value
        if isinstance(call, CallTIR) and binding.var not in life.aliases:
            key = call.func, call.device
            pairs = tuple(_fitting(binding, call, life, loops[call.func], allowed.get(key, ())))
            sites.append((binding, key, pairs))
    own = states(func) | {param: after for param, (_, after) in life.carried.items()}
    kept = _kept(own, life, [pair for _, _, pairs in sites for pair in pairs])
    sites = [(b, key, tuple(_apart(pairs, own, kept))) for b, key, pairs in sites]
    common: dict[tuple[str, str], set[Names]] = {}
    for _, key, pairs in sites:
        names = {p.names for p in pairs}
        common[key] = common.get(key, names) & names
    found = [_first(binding, key, pairs, common[key], kept) for binding, key, pairs in sites]
    return Sharings(found, kept)


@dataclass(frozen=True, slots=True)
class _Pair:
    names: Names
    values: tuple[Value, Value]


def _kept(own: Mapping[Var, Value], life: Lifetimes, pairs: Sequence[_Pair]) -> dict[Value, Var]:
    """The results on the way from each state to what it becomes, if all may share a place."""
    over: dict[Value, list[Value]] = {}
    for pair in pairs:
        over.setdefault(pair.values[1], []).append(pair.values[0])

    def path(value: Value, state: Var) -> list[Value] | None:
        for operand in over.get(value, ()):
            before = [] if operand is state else path(operand, state)
            if before is not None:
                return [*before, value]
        return None

    found: dict[Value, Var] = {}
    for state, after in own.items():
        values = path(life.root(after), state) or ()
        if found.keys().isdisjoint(values):  # what two of them become lies over one
            found.update(dict.fromkeys(values, state))
    return found


def _apart(
    pairs: Sequence[_Pair], own: Mapping[Var, Value], kept: Mapping[Value, Var]
) -> Iterator[_Pair]:
    """The pairs that do not mix a state's bytes with others."""
    for pair in pairs:
        operand, result = pair.values
        home = operand if operand in own else kept.get(operand)
        if home is kept.get(result):
            yield pair


def _fitting(
    binding: Binding,
    call: CallTIR,
    life: Lifetimes,
    loop: LoopFunc,
    pairs: Sequence[Names],
) -> Iterator[_Pair]:
    roots = [life.root(a) for a in call.args]
    operands = {b.name: r for b, r in zip(loop.inputs, roots, strict=True)}
    results = dict(zip((b.name for b in loop.outputs), _results(binding, life), strict=True))
    for names in pairs:
        operand, result = operands[names[0]], results[names[1]]
        dies = life.last.get(operand) == life.point[binding] and roots.count(operand) == 1
        if not dies or life.device[operand] != life.device[result]:
            continue
        sizes = tensor_bytes(operand.annotation), tensor_bytes(result.annotation)
        if prove_eq(*sizes) is True:
            yield _Pair(names, (operand, result))


def _first(
    binding: Binding,
    func: tuple[str, str],
    pairs: Sequence[_Pair],
    common: set[Names],
    kept: Mapping[Value, Var],
) -> Sharing:
    """The first pairs that can be at once, those of states before others."""
    chosen: list[_Pair] = []
    for pair in sorted(pairs, key=lambda p: (p.values[1] not in kept, p.names not in common)):
        if not any(set(pair.values) & set(other.values) for other in chosen):
            chosen.append(pair)
    names, values = tuple(p.names for p in chosen), tuple(p.values for p in chosen)
    return Sharing(binding, func, names, values, any(result in kept for _, result in values))


def _results(binding: Binding, life: Lifetimes) -> tuple[Value, ...]:
    annotation = binding.var.annotation
    if isinstance(annotation, Tuple):
        return tuple(life.fields[binding.var, k] for k in range(len(annotation.fields)))
    return (binding.var,)
