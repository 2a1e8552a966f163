"""What reads a weight by index, as a gather does, over a layout that others want the weight in.

    w[row, k]  →  panels[row // 8, k, row % 8]

An element is found where the layout has it, in words of codes as well: the weight itself is then
stored for nobody. Products are left as they are: how fast they read is what layouts are for.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from edgerelax.ir.loop import LoopFunc, Stage, Template
from edgerelax.ir.names import Names
from edgerelax.ir.plan import Packed
from edgerelax.ir.scalar import Load, Scalar, gathers, index_exprs, loads, rewrite
from edgerelax.schedule.points import map_scalars
from edgerelax.sym import Atom, Axis, Expr, ExprLike, FloorDiv, prove_nonneg, proves_lt

Forms = Sequence[Packed]
"""The packed weights that stand together for one weight."""


def over_layouts(
    func: LoopFunc, layouts: Mapping[str, Sequence[Forms]]
) -> tuple[LoopFunc, tuple[Packed, ...]] | None:
    """The function without those weights, each read in the first of its layouts that can be.

    None where one of them is read otherwise than at places that data decides, or is in none of
    its layouts what the function computes with.
    """
    names = Names(b.name for b in (*func.inputs, *func.outputs, *func.temps))
    packed: list[Packed] = []
    for name, choices in layouts.items():
        for forms in choices:
            own = [p.renamed(name, names.pick(p.buffer.name)) for p in forms]
            found = _over_forms(func, name, own)
            if found is not None:
                func, used = found
                packed.extend(used)
                break
        else:
            return None
    return func, tuple(packed)


def _over_forms(
    func: LoopFunc, name: str, forms: Forms
) -> tuple[LoopFunc, tuple[Packed, ...]] | None:
    stages: list[Stage | Template] = []
    for stage in func.stages:
        if all(b.name != name for b in stage.reads()):
            stages.append(stage)
        elif isinstance(stage, Template) or not all(map(_by_data, _of(stage.loads(), name))):
            return None
        else:
            stages.append(_over(stage, forms))
            if any(b.name == name for b in stages[-1].reads()):
                return None
    read = {b.name for s in stages for b in s.reads()}
    used = tuple(p for p in forms if p.buffer.name in read)
    inputs = (*(b for b in func.inputs if b.name != name), *(p.buffer for p in used))
    weights = (func.weights - {name}) | {p.buffer.name for p in used}
    return replace(func, inputs=inputs, stages=tuple(stages), weights=weights), used


def _of(found: Iterator[Load], name: str) -> Iterator[Load]:
    return (load for load in found if load.buffer.name == name)


def _by_data(load: Load) -> bool:
    return any(True for expr in load.index for _ in gathers(expr))


def _over(stage: Stage, forms: Forms) -> Stage:
    def leaf(node: Scalar) -> Scalar | None:
        for form in forms:
            assert form.element is not None and form.read is not None
            at = _places(form.element, node)
            if at is not None:
                return form.read.subs(at)
        return None

    return map_scalars(stage, lambda s: rewrite(s, leaf))


def _places(element: Scalar, node: Scalar) -> dict[Atom, ExprLike] | None:
    """The values of an element's axes for which it is the node, in their ranges; None without."""
    if type(element) is not type(node) or element.dtype != node.dtype:
        return None
    wanted, given = next(loads(element)), next(loads(node), None)
    if given is None or given.buffer != wanted.buffer:
        return None
    at: dict[Atom, ExprLike] = {}
    axes = sorted(element.axes(), key=lambda a: a.name)
    for own, other in zip(wanted.index, given.index, strict=True):
        at.update((a, other) for a in axes if own == a.expr)
    rest = [a for a in axes if a not in at]
    numbers = list(_numbers(node)) if rest else []
    for values in product(numbers, repeat=len(rest)):
        tried = dict(at)
        tried.update(zip(rest, values, strict=True))
        if element.subs(tried) is node:
            inside = all(_is_inside(a, tried[a]) for a in axes)
            return tried if inside else None
    return None


def _numbers(node: Scalar) -> Iterator[Expr]:
    """What an axis that is seen in quotients and remainders alone may stand for."""
    atoms = {a for expr in index_exprs(node) for a in expr.atoms()}
    found = {a.expr for a in atoms if isinstance(a, Axis)}
    found |= {a.num for a in atoms if isinstance(a, FloorDiv)}
    yield from sorted(found, key=str)


def _is_inside(axis: Axis, value: ExprLike) -> bool:
    return prove_nonneg(value) is True and proves_lt(value, axis.extent)
