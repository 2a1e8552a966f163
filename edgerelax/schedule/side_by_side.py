"""Kernels that need nothing of each other as one kernel: the first workgroups are the first's.

    if (workgroup < g0) { kernel 0 } else { w1 = workgroup - g0; if (w1 < g1) { kernel 1 } else … }

A launch costs more than most small kernels do. Kernels with barriers or memory of a workgroup stay
alone, as their groups need every invocation; so do those that store what they read, which a plan
may leave out where it makes in place.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from edgerelax.ir.dtypes import I32
from edgerelax.ir.kernel import (
    LANE,
    LOCAL,
    WORKGROUP,
    Array,
    Barrier,
    Featured,
    If,
    Kernel,
    KernelBuffer,
    KExpr,
    KLoad,
    KScalar,
    KStmt,
    KStore,
    KSubgroup,
    KVar,
    Let,
    kop,
    rewrite_body,
    walk_exprs,
    walk_stmts,
)
from edgerelax.ir.kernel_in_place import over_operands, stores_as_is
from edgerelax.schedule.in_place import Pair
from edgerelax.schedule.writer import ParamSet
from edgerelax.sym import as_expr


def side_by_side(
    kernels: Sequence[Kernel], names: Sequence[str], pairs: Iterable[Pair], most: int
) -> tuple[list[Kernel], list[str]]:
    """The kernels, joined where that is right, and the names of their strategies.

    `pairs` are operands and outputs that may share a place. A kernel binds at most `most` buffers.
    """
    if len(kernels) < 2:
        return list(kernels), list(names)
    places = {a: y for a, y in pairs}
    alone = [_stands_alone(k, places) for k in kernels]
    levels = _levels(kernels, alone, places)
    groups: list[list[int]] = []
    for level in range(max(levels, default=-1) + 1):
        own = [k for k, at in enumerate(levels) if at == level]
        groups += [[k] for k in own if alone[k]]
        first = len(groups)
        for k in (k for k in own if not alone[k]):
            for group in groups[first:]:
                if _fit([kernels[m] for m in group], kernels[k], most):
                    group.append(k)
                    break
            else:
                groups.append([k])
    joined = [_joined([kernels[k] for k in group]) for group in groups]
    return joined, [" + ".join(names[k] for k in group) for group in groups]


def _levels(
    kernels: Sequence[Kernel], alone: Sequence[bool], places: Mapping[str, str]
) -> list[int]:
    """By which levels kernels may run, those of one that stand alone first and in order."""
    touched = [_touched(k, places) for k in kernels]
    levels: list[int] = []
    for k, (reads, writes) in enumerate(touched):
        before = [
            levels[j] + (not alone[j])
            for j, (read, written) in enumerate(touched[:k])
            if written & (reads | writes) or read & writes
        ]
        levels.append(max(before, default=0))
    return levels


def _touched(kernel: Kernel, places: Mapping[str, str]) -> tuple[set[str], set[str]]:
    """The buffers that a kernel reads and writes, an operand as what may lie over it."""
    reads = {e.buffer for e in walk_exprs(kernel.body) if isinstance(e, KLoad)}
    writes = {s.buffer for s in walk_stmts(kernel.body) if isinstance(s, KStore)}
    return {places.get(b, b) for b in reads}, writes


def _stands_alone(kernel: Kernel, places: Mapping[str, str]) -> bool:
    """Whether its invocations work together, or it may be left out."""
    if kernel.features or stores_as_is(over_operands(kernel, places)):
        return True
    for stmt in walk_stmts(kernel.body):
        if isinstance(stmt, Barrier | Featured) or (isinstance(stmt, Array) and stmt.shared):
            return True
    return any(isinstance(e, KSubgroup) or e == LANE for e in walk_exprs(kernel.body))


def _fit(group: Sequence[Kernel], new: Kernel, most: int) -> bool:
    bound = {p.buffer.name for k in (*group, new) for p in k.buffers}
    alike = (new.device, new.workgroup) == (group[0].device, group[0].workgroup)
    return alike and len(bound) <= most


def _joined(group: Sequence[Kernel]) -> Kernel:
    """One kernel for all; itself if there is one."""
    if len(group) == 1:
        return group[0]
    params = ParamSet()
    number: KExpr = WORKGROUP
    starts: list[Let] = []
    parts: list[tuple[KExpr, tuple[KStmt, ...]]] = []
    for k, kernel in enumerate(group):
        size = params.scalar(kernel.grid)
        parts.append((kop("lt", number, size), _renamed(kernel, number, f"k{k}_", params)))
        if k + 1 < len(group):
            starts.append(Let(f"workgroup_{k + 1}", kop("sub", number, size)))
            number = KVar(I32, 1, starts[-1].name)
    body: tuple[KStmt, ...] = parts[-1][1]  # what is left of the grid
    for (cond, part), start in zip(reversed(parts[:-1]), reversed(starts), strict=True):
        body = (If(cond, part, (start, *body)),)
    buffers: dict[str, KernelBuffer] = {}
    for parameter in (p for kernel in group for p in kernel.buffers):
        buffers.setdefault(parameter.buffer.name, parameter)
    return replace(
        group[0],
        buffers=tuple(buffers.values()),
        scalars=tuple((n, e) for e, n in params.names.items()),
        grid=sum((k.grid for k in group), start=as_expr(0)),
        body=body,
        comment="; ".join(k.comment for k in group),
    )


def _renamed(kernel: Kernel, number: KExpr, prefix: str, params: ParamSet) -> tuple[KStmt, ...]:
    """A kernel's body with names and scalars of its own, in the workgroup of that number."""
    scalars = {name: params.scalar(value) for name, value in kernel.scalars}
    arrays = {s.name for s in walk_stmts(kernel.body) if isinstance(s, Array)}

    def change(e: KExpr) -> KExpr:
        match e:
            case KScalar():
                return scalars[e.name]
            case KVar() if e == WORKGROUP:
                return number
            case KVar() if e != LOCAL:
                return replace(e, name=prefix + e.name)
            case KLoad() if e.buffer in arrays:
                return replace(e, buffer=prefix + e.buffer)
        return e

    return rewrite_body(kernel.body, change, lambda name: prefix + name)
