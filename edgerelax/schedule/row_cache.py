"""What a row program computes of each element once and keeps for its later steps.

Steps over the same columns share subexpressions: the row as it was read, its exponentials. One
value per element is kept at a time, in workgroup memory (`Array`) where rows are known to be short
enough, else in the place of the final result (`Home`) until that is stored; there only what costs
more to compute than to store. Every invocation reads what it kept itself: no barriers.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.loop import Stage
from edgerelax.ir.scalar import Load, Op, Scalar, rewrite, walk
from edgerelax.schedule.cost import SLOW
from edgerelax.schedule.points import substitute_stage
from edgerelax.schedule.rows import RowProgram, Step
from edgerelax.schedule.scalars import Held, strict_nodes
from edgerelax.sym import Atom, Axis, ExprLike, upper_bound

KEPT = "row"


@dataclass(frozen=True, slots=True)
class Keeping:
    """A row program whose steps read `leaf` where they need what an earlier one kept.

    `leaves` has, for each step, what it keeps of an element. `size` is the greatest length of a
    row where an array of that many elements is to keep it; None where `leaf` is a load.
    """

    program: RowProgram
    leaf: Scalar | None
    leaves: tuple[Scalar | None, ...]
    size: int | None

    def describe(self) -> str:
        """What a kernel's comment says of it."""
        if self.leaf is None:
            return ""
        return ", kept in the result" if self.size is None else ", kept in workgroup memory"


def keep(
    program: RowProgram, in_vectors: Callable[[Step], bool], *, shared: bool, room: int
) -> Keeping | None:
    """How to keep a value per element; None if there is none worth it.

    `in_vectors` says how a step walks a row; `shared` that several invocations share it; `room` is
    how many elements fit workgroup memory.
    """
    steps = same_columns(program.steps)
    first = next((s for s in steps if s.inner), None)
    if first is None:
        return None
    columns = first.inner
    taking = [k for k, s in enumerate(steps) if s.inner == columns and s.stage.where is None]
    if shared:
        taking = [k for k in taking if in_vectors(steps[k]) == in_vectors(steps[taking[0]])]
    size = 1
    for axis in columns:
        bound = upper_bound(axis.extent)
        size = room + 1 if bound is None else size * bound
    whole = replace(program, steps=steps)
    if shared and 0 < size <= room:
        return _keeping(whole, taking, None, size)
    return _keeping(whole, taking, _home(steps, taking, in_vectors), None)


def _home(
    steps: Sequence[Step], taking: Sequence[int], in_vectors: Callable[[Step], bool]
) -> Load | None:
    """The element of the final result at a step's columns, if it can keep something till then."""
    last = steps[taking[-1]] if taking else None
    if last is None or last.stage.combiner is not None or not last.stored:
        return None
    if any(in_vectors(steps[k]) for k in taking) and not in_vectors(last):
        return None
    return Load(last.stage.out, last.stage.store_index)


def _keeping(
    program: RowProgram, taking: Sequence[int], home: Load | None, size: int | None
) -> Keeping | None:
    if size is None and home is None:
        return None
    columns = set(program.steps[taking[0]].inner) if taking else set()
    bodies = {k: program.steps[k].stage.body for k in taking}
    candidates: dict[int, Scalar] = {}
    content: Scalar | None = None
    for k in taking:
        later = [j for j in taking if j > k]
        found = _most(bodies[k], [bodies[j] for j in later], columns, home, content)
        if found is None or (content is not None and found.dtype != content.dtype):
            continue
        needed = content is not None and any(content in set(walk(bodies[j])) for j in later)
        if found is not content and (not needed or content in set(walk(found))):
            candidates[k] = content = found
    if content is None:
        return None
    leaf = Held(KEPT, content.dtype) if home is None else home
    return _rewritten(program, taking, candidates, leaf, size)


def _most(
    body: Scalar,
    later: Sequence[Scalar],
    columns: set[Axis],
    home: Load | None,
    content: Scalar | None,
) -> Scalar | None:
    """The largest part of a step's body that a later step needs as well.

    For `home` it must take more than a few cheap operations to make it of what is kept.
    """
    known: set[Scalar] = set() if content is None else set(walk(content))
    shared = {node for other in later for node in walk(other)}
    best: tuple[int, Scalar] | None = None
    for node in strict_nodes(body):
        if node not in shared or node.dtype.bits != 32 or not node.axes() & columns:
            continue
        nodes = list(walk(node))
        if home is not None:
            made = (n for n in nodes if isinstance(n, Op) and n not in known)
            slow = any(n.fn in SLOW and n.axes() & columns for n in made)
            if not slow or node.dtype != home.dtype:
                continue
        elif not any(isinstance(n, Load) for n in nodes):
            continue
        if best is None or len(nodes) > best[0]:
            best = len(nodes), node
    return None if best is None else best[1]


def _rewritten(
    program: RowProgram,
    taking: Sequence[int],
    candidates: dict[int, Scalar],
    leaf: Scalar,
    size: int | None,
) -> Keeping:
    steps = list(program.steps)
    leaves: list[Scalar | None] = [None] * len(steps)
    content: Scalar | None = None
    for k in taking:

        def known(node: Scalar, content: Scalar | None = content) -> Scalar | None:
            return leaf if node is content else None

        found = candidates.get(k)
        if content is not None:
            stage = replace(steps[k].stage, body=rewrite(steps[k].stage.body, known))
            steps[k] = replace(steps[k], stage=stage)
        if found is not None:
            leaves[k] = rewrite(found, known)
            content = found
    return Keeping(replace(program, steps=tuple(steps)), leaf, tuple(leaves), size)


def same_columns(steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps with one set of axes for the columns of all that run over equal ones."""
    columns = next((s.inner for s in steps if s.inner), ())
    return tuple(_over(step, columns) for step in steps)


def _over(step: Step, columns: tuple[Axis, ...]) -> Step:
    own, stage = step.inner, step.stage
    if [a.extent for a in own] != [a.extent for a in columns]:
        return step
    swaps: dict[Atom, ExprLike] = dict(zip(own, columns, strict=True))
    names = dict(zip(own, columns, strict=True))
    changed: Stage = substitute_stage(stage, swaps)
    changed = replace(
        changed,
        axes=tuple(names.get(a, a) for a in stage.axes),
        reduce=tuple(names.get(a, a) for a in stage.reduce),
    )
    return replace(step, stage=changed, columns=tuple(names.get(a, a) for a in step.columns))
