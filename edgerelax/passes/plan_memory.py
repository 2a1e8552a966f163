"""Memory planning with and without bounds (Relax 4.3, algorithm 3; relax.md (7)).

Before: placed and fused functions, and the workspaces that schedules need. After:
module.attrs["plans"] has a MemoryPlan for each graph function.

* A tensor whose size has an upper bound is packed at that size: offsets by first fit over the
  lifetimes, in the best of several orders, into slabs no larger than a binding may be.
* Any other tensor lies in a slab whose size is computed at run time, the largest of those that it
  holds one after the other. What gets together is decided by sizes of some hundreds.

* A result may take the place of an operand (in_place.py); else a call's results never overlap its
  operands. Where a loop function would then be needed in two forms, with one buffer and with two,
  it is done if it makes the plan smaller.
* A state is in the host's memory. What it becomes is written over it, or has a place here and is
  copied at the end.
* What a loop carries has one place (liveness.py). What the next run takes is written over it, or
  copied there at the end of each run; an initial value that dies at the loop may be there already.

check_plan.py proves it anew.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from types import MappingProxyType

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.graph import Binding, CallTIR, GraphFunc, Module, Repeat, Value, Var, states
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.plan import MemoryPlan, Place, Slab, crossing
from edgerelax.ir.rewrite import all_bindings
from edgerelax.ir.scalar import Buffer
from edgerelax.ir.types import symbols_of, tensor_bytes
from edgerelax.passes.in_place import Allowed, Sharing, sharings
from edgerelax.passes.liveness import Lifetimes, lifetimes
from edgerelax.sym import (
    Expr,
    Symbol,
    as_expr,
    bounds,
    maximum,
    product,
    prove_eq,
    proves_le,
    upper_bound,
)

ALIGNMENT = 256
MAX_SLAB = 128 << 20
ADDRESSABLE = (1 << 32) - ALIGNMENT
"""What a slab can hold. A bound beyond it is as good as none: the sizes at hand may still fit."""

_EXAMPLE = 512

Symbols = frozenset[Symbol]
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


def plan_memory(
    module: Module,
    *,
    workspaces: Workspaces,
    main: str,
    in_place: Allowed = MappingProxyType({}),
    reuse: bool = True,
) -> Module:
    """Plan every graph function. `reuse=False` gives each tensor memory of its own (ablation)."""
    outcome = Outcome()
    plans = {}
    for name, func in module.funcs.items():
        planner = _Planner(func, module.loops, workspaces, main, reuse)
        plans[name] = planner.plan(in_place if reuse else {}, outcome)
    return outcome.on(replace(module, attrs={**module.attrs, "plans": plans}))


class _Planner:
    """Plans one function: lifetimes, then what shares a place, then places."""

    def __init__(
        self,
        func: GraphFunc,
        loops: dict[str, LoopFunc],
        workspaces: Workspaces,
        main: str,
        reuse: bool,
    ) -> None:
        self.func, self.loops = func, loops
        self.life = lifetimes(func, loops, main)
        self.states = states(func)
        _check_states(func, self.life)
        self.kept: dict[Value, Var] = {}  # what lies over states and what loops carry
        self.tokens: dict[Value, _Token] = {}
        for value, first in self.life.first.items():
            if value in self.states or value in self.life.carried:
                continue
            _check_size(value)
            span = (first, self.life.last[value]) if reuse else (0, self.life.end + 1)
            device = self.life.device[value]
            self.tokens[value] = _Token(*span, device, tensor_bytes(value.annotation))
        self.scratch: dict[Binding, tuple[_Token, ...]] = {}
        for binding in all_bindings(func.body):
            call, point = binding.value, self.life.point[binding]
            if isinstance(call, CallTIR):
                temps = workspaces.get((call.func, call.device), ())
                device, sizes = call.device, [buffer_bytes(b) for b in temps]
            elif isinstance(call, Repeat):
                crossed = (call.params[k] for k in crossing(call, self.life.root))
                device, sizes = main, [tensor_bytes(p.annotation) for p in crossed]
                point = self.life.closing[binding]
            else:
                continue
            if sizes:
                span = (point, point) if reuse else (0, self.life.end + 1)
                self.scratch[binding] = tuple(_Token(*span, device, s) for s in sizes)
        self.begun = list(_begun(func, self.life, self.tokens)) if reuse else []

    def plan(self, allowed: Allowed, outcome: Outcome) -> MemoryPlan:
        """The plan with all that is in place for free, and what else makes it smaller."""
        free: list[Sharing] = []
        dear: list[list[Sharing]] = []
        found = sharings(self.func, self.life, self.loops, allowed)
        self._keep(found.kept, outcome)
        for sites in _by_func(found.sites):
            sharing = [s for s in sites if s.names]
            if len({s.names for s in sites}) == 1 or any(s.must for s in sites):
                free.extend(sharing)
            elif sharing:
                dear.append(sharing)
        kept, chosen, best = self._worth_it(free, dear), free, self._planned(free)
        if kept:
            more = [*free, *(s for sharing in kept for s in sharing)]
            other = self._planned(more)
            if _about(_total(other)) < _about(_total(best)):
                best, chosen = other, more
                outcome.done["loop function in two forms"] += len(kept)
        outcome.done["in place"] += sum(len(s.names) for s in chosen)
        for site in (s for sharing in dear for s in sharing if s not in chosen):
            outcome.skip("in place, the plan would not be smaller", site.binding.var.name)
        return best

    def _keep(self, kept: dict[Value, Var], outcome: Outcome) -> None:
        """Take what lies over states and what loops carry out of what is to be placed."""
        self.kept = kept
        self.tokens = {v: t for v, t in self.tokens.items() if v not in kept}
        for state, after in self.states.items():
            root = self.life.root(after)
            if root in kept:
                outcome.did("state updated in place")
            elif root is not state:
                outcome.skip("state copied, its kernels need it beside what it becomes", state.name)

    def _worth_it(self, free: list[Sharing], dear: list[list[Sharing]]) -> list[list[Sharing]]:
        """Of the functions that would need two forms, those without which more is live at once."""
        kept = list(dear)

        def live() -> int:
            return _most_live(self._tokens([*free, *(s for sharing in kept for s in sharing)]))

        least = live() if dear else 0
        for sharing in dear:
            kept.remove(sharing)
            if live() > least:
                kept.append(sharing)
        return kept

    def _tokens(self, shared: Sequence[Sharing]) -> list[_Token]:
        """What is to be placed."""
        joined = dict.fromkeys(self._joined(shared).values())
        return [*joined, *(t for ts in self.scratch.values() for t in ts)]

    def _planned(self, shared: Sequence[Sharing]) -> MemoryPlan:
        tokens, scratch = self._joined(shared), [t for ts in self.scratch.values() for t in ts]
        joined, every = ([*dict.fromkeys(ts.values()), *scratch] for ts in (tokens, self.tokens))
        entry = frozenset(s for p in self.func.params for s in symbols_of(p.annotation))
        slabs, places = _place(joined, entry)
        bounded = all(_bound(token) is not None for token in every)
        return MemoryPlan(
            slabs,
            {value: places[token] for value, token in tokens.items()},
            {binding: tuple(places[t] for t in ts) for binding, ts in self.scratch.items()},
            _flatten_aliases(self.life),
            self.life.fields,
            self.life.device,
            {s.binding: dict(s.names) for s in shared},
            {v: state for v, state in self.kept.items() if state in self.states},
            _most_live(joined) if bounded else None,
            sum(_about(t.bytes) for t in every) if bounded else None,
        )

    def _joined(self, shared: Sequence[Sharing]) -> dict[Value, _Token]:
        """The token of each value: one for an operand and the result that takes its place."""
        heads: dict[Value, Value] = {}  # of chains of results
        joined: dict[Value, _Token] = {}
        steps = [(self.life.point[s.binding], s.values) for s in shared]
        for _, pairs in sorted([*steps, *self.begun], key=lambda step: step[0]):
            for operand, result in pairs:
                if operand in self.kept or result in self.kept:
                    continue
                head = heads[result] = heads.get(operand, operand)
                joined[head] = replace(self.tokens[head], last=self.tokens[result].last)
        tokens = {v: joined.get(heads.get(v, v), t) for v, t in self.tokens.items()}
        carried = self.life.carried
        over = [*((p, p) for p in carried), *((v, p) for v, p in self.kept.items() if p in carried)]
        return tokens | {value: tokens[carried[param][0]] for value, param in over}


def _begun(
    func: GraphFunc, life: Lifetimes, tokens: Mapping[Value, _Token]
) -> Iterator[tuple[int, tuple[tuple[Value, Value], ...]]]:
    """The points of loops; initial values that die there, and what is carried in their place."""
    for binding in all_bindings(func.body):
        if isinstance(binding.value, Repeat):
            point, roots = life.point[binding], [life.root(v) for v in binding.value.initial]
            yield (
                point,
                tuple(
                    (root, home)
                    for k, root in enumerate(roots)
                    if root in tokens and life.last[root] == point and roots.count(root) == 1
                    for home in [life.fields[binding.var, k]]
                    if life.device[root] == life.device[home]
                    and prove_eq(tokens[root].bytes, tokens[home].bytes) is True
                ),
            )


def _by_func(sites: Sequence[Sharing]) -> list[list[Sharing]]:
    """The calls of each loop function on each device."""
    found: dict[tuple[str, str], list[Sharing]] = {}
    for site in sites:
        found.setdefault(site.func, []).append(site)
    return list(found.values())


def _total(plan: MemoryPlan) -> Expr:
    """Bytes of all slabs."""
    total = as_expr(0)
    for slab in plan.slabs:
        total = total + slab.size
    return total


def _check_states(func: GraphFunc, life: Lifetimes) -> None:
    """Raise UnsupportedError for a result that is what a changed state was before."""
    changed = {s for s, after in states(func).items() if life.root(after) is not s}
    for name, result in zip(func.result_names, func.body.results, strict=True):
        root = life.root(result)
        if root in changed:
            raise UnsupportedError(
                f"{func.name}: the result {name} is the state {root.name} as it was before",
                hint="give a copy of it as the result, or what it becomes",
            )


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


def _place(
    tokens: Sequence[_Token], entry: Symbols
) -> tuple[tuple[Slab, ...], dict[_Token, Place]]:
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
    _assign_symbolic(unbounded, entry, slabs, places)
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


@dataclass(slots=True)
class _Open:
    """A slab whose size is computed at run time, with what lies in it, one after the other."""

    number: int
    size: Expr
    tenants: list[_Token]

    def is_free(self, token: _Token, entry: Symbols) -> bool:
        """Whether nobody is in it then, and its size is known by then."""
        known = self.size.symbols() <= entry or token.first >= self.tenants[0].first
        return known and not any(other.meets(token) for other in self.tenants)


def _assign_symbolic(
    tokens: list[_Token], entry: Symbols, slabs: list[Slab], places: dict[_Token, Place]
) -> None:
    """The largest first, into the first slab that is free and provably holds it.

    Else, where both sizes are known at entry, into the first free one, which gets as large as the
    larger of both.
    """
    by_device: dict[str, list[_Open]] = {}
    for token in sorted(tokens, key=lambda t: (-_about(t.bytes), t.first)):
        known = by_device.setdefault(token.device, [])
        free = [slab for slab in known if slab.is_free(token, entry)]
        found = next((s for s in free if proves_le(token.bytes, s.size)), None)
        if found is None and token.bytes.symbols() <= entry:
            found = next((s for s in free if s.size.symbols() <= entry), None)
        if found is None:
            found = _Open(len(slabs) + sum(map(len, by_device.values())), token.bytes, [])
            known.append(found)
        elif not proves_le(token.bytes, found.size):
            found.size = maximum(found.size, token.bytes)
        found.tenants.append(token)
        places[token] = Place(found.number, as_expr(0), token.bytes)
    opened = [(s.number, device, s.size) for device, known in by_device.items() for s in known]
    slabs.extend(Slab(device, size) for _, device, size in sorted(opened, key=lambda s: s[0]))


def _about(size: Expr) -> int:
    """The most bytes that it can be; without a bound, as many as at sizes of some hundreds."""
    bound = upper_bound(size)
    if bound is not None and bound <= ADDRESSABLE:
        return bound
    return size.eval({s: _EXAMPLE if s.hi is None else s.hi for s in size.symbols()})


def _most_live(tokens: Sequence[_Token]) -> int:
    """The largest sum of live bytes, by `_about`."""
    change: Counter[int] = Counter()
    for token in tokens:
        size = _about(token.bytes)
        change[token.first] += size
        change[token.last + 1] -= size
    return max(accumulate(change[point] for point in sorted(change)), default=0)
