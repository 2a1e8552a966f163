"""Memory planning with and without bounds (Relax 4.3, algorithm 3; relax.md (7)).

Before: placed and fused functions, and the workspaces that schedules need. After:
module.attrs["plans"] has a MemoryPlan for each graph function.

* A tensor whose size has an upper bound is packed at that size: offsets by first fit over the
  lifetimes, in the best of several orders, into slabs no larger than a binding may be.
* Any other tensor reuses a slab that is free and provably large enough, or gets one of its own
  whose size is computed at run time.

Nothing is planned in place; a call's results never overlap its operands. check_plan.py proves it
anew.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.graph import Binding, CallTIR, GraphFunc, Module, Value, Var
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.plan import MemoryPlan, Place, Slab
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.scalar import Buffer
from edgerelax.ir.types import Annotation, as_tensor
from edgerelax.passes.liveness import Lifetimes, lifetimes
from edgerelax.sym import Expr, as_expr, bounds, product, prove_le, upper_bound

ALIGNMENT = 256
MAX_SLAB = 128 << 20
ADDRESSABLE = (1 << 32) - ALIGNMENT
"""What a slab can hold. A bound beyond it is as good as none: the sizes at hand may still fit."""

Workspaces = Mapping[tuple[str, str], Sequence[Buffer]]  # (loop function, device) → workspaces


@dataclass(frozen=True, slots=True, eq=False)
class _Token:
    """A tensor or workspace to place."""

    first: int
    last: int
    device: str
    bytes: Expr

    def meets(self, other: "_Token") -> bool:
        return self.first <= other.last and other.first <= self.last


def plan_memory(module: Module, *, workspaces: Workspaces, main: str, reuse: bool = True) -> Module:
    """Plan every graph function. `reuse=False` gives each tensor memory of its own (ablation)."""
    plans = {
        name: plan_function(func, module.loops, workspaces, main, reuse)
        for name, func in module.funcs.items()
    }
    return replace(module, attrs={**module.attrs, "plans": plans})


def plan_function(
    func: GraphFunc, loops: dict[str, LoopFunc], workspaces: Workspaces, main: str, reuse: bool
) -> MemoryPlan:
    """Lifetimes, then places."""
    life = lifetimes(func, loops, main)
    end = life.end + 1
    tokens: dict[Value, _Token] = {}
    for value, first in life.first.items():
        _check_size(value)
        span = (first, life.last[value]) if reuse else (0, end)
        tokens[value] = _Token(*span, life.device[value], tensor_bytes(value.annotation))
    scratch: dict[Binding, tuple[_Token, ...]] = {}
    for binding in all_bindings(func.body):
        call = binding.value
        if isinstance(call, CallTIR) and (temps := workspaces.get((call.func, call.device))):
            point = life.point[binding]
            span = (point, point) if reuse else (0, end)
            scratch[binding] = tuple(_Token(*span, call.device, buffer_bytes(b)) for b in temps)
    every = [*tokens.values(), *(t for ts in scratch.values() for t in ts)]
    slabs, places = _place(every)
    lower, unplanned = _figures(every)
    return MemoryPlan(
        slabs,
        {value: places[token] for value, token in tokens.items()},
        {binding: tuple(places[t] for t in ts) for binding, ts in scratch.items()},
        _flatten_aliases(life),
        life.fields,
        life.device,
        lower,
        unplanned,
    )


def tensor_bytes(annotation: Annotation) -> Expr:
    """Size of a tensor in bytes."""
    tensor = as_tensor(annotation)
    assert tensor is not None and tensor.dims is not None and tensor.dtype is not None
    return product(tensor.dims) * tensor.dtype.bytes


def _check_size(value: Value) -> None:
    """Raise UnsupportedError for a tensor that no slab can hold, whatever the sizes."""
    least = bounds(tensor_bytes(value.annotation))[0]
    if least is not None and least > ADDRESSABLE:
        raise UnsupportedError(
            f"{value.name} takes {least} bytes or more, at most {ADDRESSABLE} are possible",
            node=f"{value.name}: {value.annotation}",
            origin=value.origin if isinstance(value, Var) else "",
        )


def buffer_bytes(buffer: Buffer) -> Expr:
    """Size of a loop buffer in bytes."""
    return product(buffer.dims) * buffer.dtype.bytes


def _flatten_aliases(life: Lifetimes) -> dict[Value, Value]:
    """Views by the value that owns the bytes; fields of tuples by the planned field."""
    return {value: life.root(value) for value in life.aliases}


def _place(tokens: Sequence[_Token]) -> tuple[tuple[Slab, ...], dict[_Token, Place]]:
    bounded: dict[str, list[tuple[_Token, int]]] = {}
    unbounded: list[_Token] = []
    for token in tokens:
        size = _bound(token)
        if size is None:
            unbounded.append(token)
        else:
            aligned = -(-size // ALIGNMENT) * ALIGNMENT
            bounded.setdefault(token.device, []).append((token, aligned))
    slabs: list[Slab] = []
    places: dict[_Token, Place] = {}
    for device, sized in bounded.items():
        _pack(device, sized, slabs, places)
    _assign_symbolic(unbounded, slabs, places)
    return tuple(slabs), places


def _bound(token: _Token) -> int | None:
    """The most bytes that a token takes, if a slab can hold so many."""
    size = upper_bound(token.bytes)
    return None if size is None or size > ADDRESSABLE else size


Order = Callable[[tuple[_Token, int]], tuple[int, ...]]
ORDERS: tuple[Order, ...] = (
    lambda t: (-t[1], t[0].first),  # largest first
    lambda t: (-t[1] * (t[0].last - t[0].first + 1), t[0].first),  # most byte-steps first
    lambda t: (t[0].first, -t[1]),  # program order
)


def _pack(
    device: str,
    sized: list[tuple[_Token, int]],
    slabs: list[Slab],
    places: dict[_Token, Place],
) -> None:
    """First fit in the best of ORDERS; a new slab where one would grow past MAX_SLAB."""
    layouts = [_first_fit(sorted(sized, key=order)) for order in ORDERS]
    sizes, offsets = min(layouts, key=lambda layout: sum(layout[0]))
    base = len(slabs)
    slabs.extend(Slab(device, as_expr(size)) for size in sizes)
    for token, (slab, offset) in offsets.items():
        places[token] = Place(base + slab, as_expr(offset), token.bytes)


def _first_fit(
    sized: list[tuple[_Token, int]],
) -> tuple[list[int], dict[_Token, tuple[int, int]]]:
    """Sizes of the slabs, and slab and offset of each token."""
    sizes: list[int] = []
    placed: list[list[tuple[int, int, _Token]]] = []  # per slab: offset, end, token
    where: dict[_Token, tuple[int, int]] = {}
    for token, size in sized:
        slab, offset = 0, 0
        while slab < len(sizes):
            offset = _lowest_gap([p for p in placed[slab] if p[2].meets(token)], size)
            if offset + size <= max(MAX_SLAB, sizes[slab]):
                break
            slab, offset = slab + 1, 0
        if slab == len(sizes):
            sizes.append(0)
            placed.append([])
        sizes[slab] = max(sizes[slab], offset + size)
        placed[slab].append((offset, offset + size, token))
        where[token] = (slab, offset)
    return sizes, where


def _lowest_gap(taken: list[tuple[int, int, _Token]], size: int) -> int:
    offset = 0
    for start, end, _ in sorted(taken, key=lambda p: p[0]):
        if offset + size <= start:
            break
        offset = max(offset, end)
    return offset


def _assign_symbolic(tokens: list[_Token], slabs: list[Slab], places: dict[_Token, Place]) -> None:
    """Sweep in program order; reuse a free slab that provably holds the tensor."""
    pool: list[tuple[int, int]] = []  # slab, last point of its present tenant
    for token in sorted(tokens, key=lambda t: t.first):
        for k, (slab, last) in enumerate(pool):
            fits = last < token.first and slabs[slab].device == token.device
            if fits and prove_le(token.bytes, slabs[slab].size) is True:
                pool[k] = (slab, token.last)
                break
        else:
            slab = len(slabs)
            slabs.append(Slab(token.device, token.bytes))
            pool.append((slab, token.last))
        places[token] = Place(slab, as_expr(0), token.bytes)


def _figures(tokens: Sequence[_Token]) -> tuple[int | None, int | None]:
    """The largest sum of live bytes and the sum of all, at the upper bounds."""
    sizes = {token: _bound(token) for token in tokens}
    known = {t: s for t, s in sizes.items() if s is not None}
    if len(known) < len(sizes):
        return None, None
    points = {t.first for t in tokens}
    live = (sum(s for t, s in known.items() if t.first <= p <= t.last) for p in points)
    return max(live, default=0), sum(known.values())
