"""Layouts: transposes move to where they move the fewest bytes, and cancel where they can.

    conv ─► T ─► add ─► relu ─► T⁻¹ ─► conv      →      conv ─► add' ─► relu' ─► conv

A value is stored in some order of its dims. A transpose is no work but a way of asking for another
order; a loop function asks for orders of its operands, and gives one of its result, that go with
each other (orders.py). Wherever an order is asked for that a value is not stored in, it is copied:
once for each such order. The pass looks for the orders with the fewest bytes copied.

    1. Start with all as it is. Each copy is a seed: let those who ask take what is stored, or let
       the value be stored as asked; and let all that are joined to them follow, as far as they can
       be turned at all.
    2. Of what followed, turn the part that is cheapest: a minimum cut, as each function either
       stays or follows, and each value costs its bytes where the two meet.
    3. Keep that if the cost becomes less at typical sizes and provably not more at any.
    4. In the end, fuse what was and what is: keep it only if neither kernels nor bytes are more.

A copy that fusion will make part of a map beside it costs what reading out of order does; one that
stands alone costs a launch, a pass over the value, and another.

Before: legalised functions, not yet placed. After: as before; the copies are transposes. Inputs,
results, templates, library calls and products of sums stay in their order. Constants are turned
here and now.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edgerelax.ir.graph import (
    Binding,
    Block,
    Call,
    CallGraph,
    CallTIR,
    Constant,
    GraphFunc,
    Module,
    Value,
    Var,
    bodies,
    operands,
    with_bodies,
)
from edgerelax.ir.loop import LoopFunc
from edgerelax.ir.names import Names
from edgerelax.ir.outcome import Outcome
from edgerelax.ir.rewrite import all_bindings, rewrite_block, substitute_operands
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS
from edgerelax.passes.classify import Kind, classify, is_view
from edgerelax.passes.dce import dce
from edgerelax.passes.fold_constants import make_constant
from edgerelax.passes.fold_transposes import dims_of
from edgerelax.passes.fold_transposes import permuted as permuted_annotation
from edgerelax.passes.fuse import fuse
from edgerelax.passes.legalize import legalize
from edgerelax.passes.min_cut import SINK, SOURCE, Cut
from edgerelax.passes.orders import (
    Layouts,
    Perm,
    carried,
    composed,
    identity,
    inverse,
    permuted,
    transposition,
)
from edgerelax.sym import Expr, Symbol, as_expr, product, proves_le

TYPICAL = 64
"""What a size is taken to be, as far as its bounds allow."""
FOREVER = 1 << 60
ALONE, LAUNCH = 8, 1 << 20
"""What a copy of its own costs, in units of one that is part of a map: per byte, and for itself."""
ROUNDS = 16
MOVED = "copies moved or dropped"

States = Mapping[Binding, Layouts]
"""How functions are turned; those that are not are left out."""


def layout(module: Module) -> Module:
    """Choose the orders of every graph function."""
    outcome = Outcome()
    loops = _Loops(dict(module.loops))
    funcs = {name: _function(func, loops, outcome) for name, func in module.funcs.items()}
    if MOVED not in outcome.done:
        return outcome.on(module)
    after = legalize(replace(module, funcs=funcs, loops=loops.by_name))
    if _fuses_no_worse(dce(after), dce(module)):
        return outcome.on(after)
    given_up = Outcome()
    given_up.skip("orders with which less would fuse", next(iter(module.funcs)))
    return given_up.on(module)


def _fuses_no_worse(after: Module, before: Module) -> bool:
    """Whether neither the kernels after fusion are more nor the bytes that they read and write."""
    (kernels, moved), (least, fewest) = traffic(after), traffic(before)
    return kernels <= least and typical(moved) <= typical(fewest)


def traffic(module: Module) -> tuple[int, Expr]:
    """The kernels that fusion makes of a program, and the bytes that they read and write."""
    kernels, moved = 0, as_expr(0)
    for func in fuse(module).funcs.values():
        if func.attrs.get("primitive"):
            continue
        for binding in all_bindings(func.body):
            call = binding.value
            if not isinstance(call, CallTIR | CallGraph):
                continue
            if isinstance(call, CallTIR) and is_view(module.loops[call.func]):
                continue
            values = (binding.var, *(a for a in call.args if isinstance(a, Var)))
            kernels += 1
            moved += sum((bytes_of(v) for v in values if dims_of(v) is not None), as_expr(0))
    return kernels, moved


def _function(func: GraphFunc, loops: "_Loops", outcome: Outcome) -> GraphFunc:
    taken = {b.var.name for b in all_bindings(func.body)} | {p.name for p in func.params}
    return replace(func, body=_block(func.body, loops, Names(taken), outcome))


def _block(block: Block, loops: "_Loops", names: Names, outcome: Outcome) -> Block:
    """Inner blocks first: to them, what is defined outside is stored as it is."""
    inner: list[Binding] = []
    for binding in block.bindings:
        value = binding.value
        if bodies(value):
            within = [_block(body, loops, names, outcome) for body in bodies(value)]
            binding = Binding(binding.var, with_bodies(value, within))
        inner.append(binding)
    block = Block(tuple(inner), block.results)
    graph = _Graph(block, loops)
    states = _Search(graph, outcome).best()
    return _Rewrite(graph, states, names).block() if states else block


@dataclass(slots=True)
class _Loops:
    """The loop functions of a module, and what is known of them."""

    by_name: dict[str, LoopFunc]
    _turned: dict[tuple[str, tuple[tuple[str, Perm], ...]], str] = field(default_factory=dict)
    _carried: dict[tuple[str, str, Perm], Layouts | None] = field(default_factory=dict)
    _transposes: dict[str, Perm | None] = field(default_factory=dict)
    _maps: dict[str, bool] = field(default_factory=dict)

    def carried(self, func: str, buffer: str, perm: Perm) -> Layouts | None:
        key = func, buffer, perm
        if key not in self._carried:
            self._carried[key] = carried(self.by_name[func], buffer, perm)
        return self._carried[key]

    def is_map(self, func: str) -> bool:
        """Whether it is one that fusion makes part of what stands beside it."""
        if func not in self._maps:
            loop = self.by_name[func]
            self._maps[func] = classify(loop) <= Kind.INJECTIVE and not is_view(loop)
        return self._maps[func]

    def transposition(self, func: str) -> Perm | None:
        if func not in self._transposes:
            self._transposes[func] = transposition(self.by_name[func])
        return self._transposes[func]

    def turned(self, func: str, layouts: Layouts) -> str:
        """The name of the function over buffers of those layouts, made if it is new."""
        key = func, tuple(sorted(layouts.items()))
        if key not in self._turned:
            name = Names(self.by_name).pick(f"{func}_turned")
            self.by_name[name] = replace(permuted(self.by_name[func], layouts), name=name)
            self._turned[key] = name
        return self._turned[key]


@dataclass(frozen=True, slots=True)
class _Use:
    """Someone asks for a value, transposed by `perm`.

    A function, through a buffer; or, where there is none, who asks so whatever happens.
    """

    value: Value
    perm: Perm
    binding: Binding | None = None
    buffer: str = ""


class _Graph:
    """A block: its values without the transposes, and who asks for them in which order."""

    def __init__(self, block: Block, loops: _Loops) -> None:
        self.block, self.loops = block, loops
        self.roots: dict[Value, tuple[Value, Perm]] = {}  # of transposes
        self.calls: dict[Value, Binding] = {}  # of functions with one result, transposes aside
        self.uses: dict[Value, list[_Use]] = {}
        self.inputs: dict[Binding, list[_Use]] = {}
        for binding in block.bindings:
            self._add(binding)
        for result in block.results:
            self._ask(result)

    def _add(self, binding: Binding) -> None:
        call = binding.value
        if not isinstance(call, CallTIR) or not isinstance(binding.var.annotation, Tensor):
            for value in operands(call):
                self._ask(value)
            return
        perm = self.loops.transposition(call.func)
        if perm is not None and not isinstance(call.args[0], Constant):
            source, before = self.root(call.args[0])
            self.roots[binding.var] = source, composed(before, perm)
            return
        self.calls[binding.var] = binding
        loop = self.loops.by_name[call.func]
        for buffer, arg in zip(loop.inputs, call.args, strict=True):
            self._ask(arg, binding, buffer.name)

    def _ask(self, value: Value, binding: Binding | None = None, buffer: str = "") -> None:
        if not isinstance(value.annotation, Tensor):
            return
        use = _Use(*self.root(value), binding, buffer)
        self.uses.setdefault(use.value, []).append(use)
        if binding is not None:
            self.inputs.setdefault(binding, []).append(use)

    def root(self, value: Value) -> tuple[Value, Perm]:
        """What a value is a transpose of, and by what."""
        dims = dims_of(value)
        return self.roots.get(value) or (value, identity(len(dims or ())))

    def loop(self, binding: Binding) -> LoopFunc:
        assert isinstance(binding.value, CallTIR)
        return self.loops.by_name[binding.value.func]

    def stored(self, value: Value, states: States) -> Perm:
        binding = self.calls.get(value)
        rank = len(dims_of(value) or ())
        if binding is None or binding not in states:
            return identity(rank)
        return states[binding].get(self.loop(binding).outputs[0].name, identity(rank))

    def takers(self, value: Value, order: Perm) -> list[tuple[Binding, str, Perm]]:
        """All functions that take a value, and the layouts in which they would take that order."""
        uses = self.uses.get(value, ())
        asks = ((use.binding, use.buffer, composed(inverse(use.perm), order)) for use in uses)
        return [(binding, buffer, perm) for binding, buffer, perm in asks if binding is not None]

    def asked(self, use: _Use, states: States) -> Perm:
        if use.binding is None or use.binding not in states:
            return use.perm
        turned = states[use.binding].get(use.buffer)
        return use.perm if turned is None else composed(use.perm, turned)

    def cost(self, value: Value, takers: Iterable[Binding | None]) -> Expr:
        """What a copy of the value costs that these take."""
        if self._is_map(self.calls.get(value)) and not any(
            use.value in self.calls and not self._is_map(self.calls[use.value])
            for use in self.inputs.get(self.calls[value], ())
        ):
            return bytes_of(value)
        if all(self._is_map(taker) for taker in takers):
            return bytes_of(value)
        return bytes_of(value) * ALONE + LAUNCH

    def _is_map(self, binding: Binding | None) -> bool:
        if binding is None:
            return False
        assert isinstance(binding.value, CallTIR)
        return self.loops.is_map(binding.value.func)

    def copies(self, states: States) -> Iterator[tuple[Value, Perm]]:
        """Every copy that has to be made."""
        for value, uses in self.uses.items():
            if isinstance(value, Constant) or dims_of(value) is None:
                continue
            stored = wide(value, self.stored(value, states))
            found = {wide(value, p): p for p in (self.asked(use, states) for use in uses)}
            yield from ((value, perm) for key, perm in found.items() if key != stored)


def wide(value: Value, perm: Perm) -> Perm:
    """A permutation without dims of 1, which can stand anywhere."""
    dims = dims_of(value)
    return tuple(p for p in perm if dims is None or dims[p].as_int() != 1)


def bytes_of(value: Value) -> Expr:
    """The size of a tensor of known dims."""
    annotation = value.annotation
    assert isinstance(annotation, Tensor) and annotation.dims is not None and annotation.dtype
    return product(annotation.dims) * annotation.dtype.bytes


def typical(size: Expr) -> int:
    """A size with all symbols as near to TYPICAL as they can be."""
    return size.eval({s: _typical(s) for s in size.symbols()})


def _typical(symbol: Symbol) -> int:
    size = max(symbol.lo, TYPICAL if symbol.hi is None else min(TYPICAL, symbol.hi))
    return -(-size // symbol.multiple_of) * symbol.multiple_of


@dataclass(slots=True)
class _Search:
    """Descent from the orders at hand."""

    graph: _Graph
    outcome: Outcome
    states: dict[Binding, Layouts] = field(default_factory=dict)
    _tried: set[frozenset[tuple[Binding, tuple[tuple[str, Perm], ...]]]] = field(
        default_factory=set
    )

    def best(self) -> States:
        """How to turn functions; nothing if that is no better."""
        for _ in range(ROUNDS):
            seeds = sorted(self.graph.copies(self.states), key=lambda c: -typical(bytes_of(c[0])))
            if not any([self._try(value, perm) for value, perm in seeds]):
                break
        return self.states

    def _try(self, value: Value, perm: Perm) -> bool:
        """Whether one of two ways to spare a copy was better than what was."""
        graph = self.graph
        takers = [
            (use.binding, use.buffer, composed(inverse(use.perm), graph.stored(value, self.states)))
            for use in graph.uses[value]
            if use.binding is not None
            and wide(value, graph.asked(use, self.states)) == wide(value, perm)
        ]
        maker = graph.calls.get(value)
        makers = [] if maker is None else [(maker, graph.loop(maker).outputs[0].name, perm)]
        return self._follow(takers) or self._follow(makers)

    def _follow(self, starts: Sequence[tuple[Binding, str, Perm]]) -> bool:
        others = self._turned_along(starts)
        key = frozenset((b, tuple(sorted(ls.items()))) for b, ls in others.items())
        if not others or key in self._tried:
            return False
        self._tried.add(key)
        part = _cheapest(self.graph, self.states, others)
        ways = [{b: ls for b, ls in others.items() if b in part}, others]
        before = self._cost(self.states)
        for chosen in ways:
            states = {b: ls for b, ls in {**self.states, **chosen}.items() if _moves(ls)}
            after = self._cost(states)
            if typical(after) >= typical(before):
                continue
            if not proves_le(after, before):
                self.outcome.skip("copies that are fewer only at some sizes", starts[0][0].var.name)
                continue
            self.states = states
            self._tried.clear()
            self.outcome.did(MOVED)
            return True
        return False

    def _cost(self, states: States) -> Expr:
        graph = self.graph
        total = as_expr(0)
        for value, perm in graph.copies(states):
            order = wide(value, perm)
            takers = [
                use.binding
                for use in graph.uses[value]
                if wide(value, graph.asked(use, states)) == order
            ]
            total += graph.cost(value, takers)
        return total

    def _turned_along(self, starts: Sequence[tuple[Binding, str, Perm]]) -> dict[Binding, Layouts]:
        """Functions to turn so that those at the start are, and all joined to them by values."""
        graph, found = self.graph, dict[Binding, Layouts]()
        todo = list(starts)
        while todo:
            binding, buffer, perm = todo.pop()
            assert isinstance(binding.value, CallTIR)
            if binding in found:
                continue
            layouts = graph.loops.carried(binding.value.func, buffer, perm)
            if layouts is None or self._is_so(binding, layouts):
                continue
            found[binding] = layouts
            own = {binding: layouts}
            stored = graph.stored(binding.var, own)
            todo += graph.takers(binding.var, stored)
            for use in graph.inputs.get(binding, ()):
                order, maker = graph.asked(use, own), graph.calls.get(use.value)
                if maker is not None:
                    todo.append((maker, graph.loop(maker).outputs[0].name, order))
                todo += graph.takers(use.value, order)
        return found

    def _is_so(self, binding: Binding, layouts: Layouts) -> bool:
        now = self.states.get(binding, {})
        return all(now.get(name, identity(len(p))) == p for name, p in layouts.items())


def _moves(layouts: Layouts) -> bool:
    return any(perm != identity(len(perm)) for perm in layouts.values())


def _cheapest(graph: _Graph, states: States, others: States) -> set[Binding]:
    """Which functions to turn as `others` says; what copies cost then is the cut."""
    cut = Cut()
    both = {**states, **others}
    touched = dict.fromkeys(
        value
        for binding in others
        for value in (binding.var, *(use.value for use in graph.inputs.get(binding, ())))
    )
    for value in touched:
        if not isinstance(value, Constant) and dims_of(value) is not None:
            _Crossing(graph, cut, value, states, both, others).add()
    side = cut.sink_side()
    return {binding for binding in others if binding in side}


class _Crossing:
    """What a value costs, by who of its maker and takers is turned: edges of the cut.

    A taker that is turned is on the side of the sink.
    """

    def __init__(
        self, graph: _Graph, cut: Cut, value: Value, now: States, then: States, free: States
    ) -> None:
        self.cut, self.value, self.graph = cut, value, graph
        maker = graph.calls.get(value)
        self.maker = maker if maker in free else None
        self.stored = [wide(value, graph.stored(value, states)) for states in (now, then)]
        self.asks = [
            (
                wide(value, graph.asked(use, now)),
                wide(value, graph.asked(use, then)),
                use.binding,
            )
            for use in graph.uses.get(value, ())
        ]

    def add(self) -> None:
        for order in {order for now, then, _ in self.asks for order in (now, then)}:
            missing = [order != stored for stored in self.stored]
            takers = [b for now, then, b in self.asks if order in (now, then)]
            self.cost = typical(self.graph.cost(self.value, takers))
            if any(now == order == then for now, then, _ in self.asks):
                self._always(missing)
                continue
            self._some(order, missing, [b for now, _, b in self.asks if now == order], turned=False)
            self._some(
                order, missing, [b for _, then, b in self.asks if then == order], turned=True
            )

    def _always(self, missing: Sequence[bool]) -> None:
        """It is asked for whoever is turned: only the maker matters."""
        if self.maker is not None and missing[0]:
            self.cut.edge(self.maker, SINK, self.cost)
        if self.maker is not None and missing[1]:
            self.cut.edge(SOURCE, self.maker, self.cost)

    def _some(
        self, order: Perm, missing: Sequence[bool], takers: Iterable[Binding | None], turned: bool
    ) -> None:
        """It is asked for if any of the takers is turned (or not): `any_` stands for that.

        Where a copy would be spared by turning both or neither, the cut cannot say so; the cost of
        the whole is computed anew in the end.
        """
        present = [b for b in takers if b is not None]
        if not present or not any(missing):
            return
        any_ = self.value, order, turned
        for taker in present:
            a, b = (any_, taker) if turned else (taker, any_)
            self.cut.edge(a, b, FOREVER)
        if all(missing) and turned:
            self.cut.edge(SOURCE, any_, self.cost)
        elif all(missing):
            self.cut.edge(any_, SINK, self.cost)
        elif self.maker is not None and turned and missing[0]:
            self.cut.edge(self.maker, any_, self.cost)
        elif self.maker is not None and not turned and missing[1]:
            self.cut.edge(any_, self.maker, self.cost)


class _Rewrite:
    """The block with functions turned and copies where they are needed first."""

    def __init__(self, graph: _Graph, states: States, names: Names) -> None:
        self.graph, self.states, self.names = graph, states, names
        self.made: dict[Value, Value] = {}  # what a value is stored as
        self.copied: dict[tuple[Value, Perm], Value] = {}
        self.out: list[Binding] = []

    def block(self) -> Block:
        for binding in self.graph.block.bindings:
            if binding.var not in self.graph.roots:
                self._binding(binding)
        results = tuple(self._plain(v) for v in self.graph.block.results)
        return Block(tuple(self.out), results)

    def _binding(self, binding: Binding) -> None:
        layouts = self.states.get(binding)
        if layouts is None:
            replaced = {v: self._plain(v) for v in operands(binding.value)}
            value = with_bodies(
                binding.value,
                [
                    rewrite_block(body, lambda b: [b], dict(replaced))
                    for body in bodies(binding.value)
                ],
            )
            self.out.append(Binding(binding.var, substitute_operands(value, replaced)))
            return
        call, var = binding.value, binding.var
        assert isinstance(call, CallTIR)
        args = tuple(
            self._in_order(use.value, self.graph.asked(use, self.states))
            for use in self.graph.inputs.get(binding, ())
        )
        func = self.graph.loops.turned(call.func, layouts)
        stored = self.graph.stored(var, self.states)
        if stored != identity(len(stored)):
            turned = permuted_annotation(var.annotation, stored)
            var = Var(self.names.pick(f"{var.name}_turned"), turned, var.origin)
        self.made[binding.var] = var
        self.out.append(Binding(var, replace(call, func=func, args=args)))

    def _plain(self, value: Value) -> Value:
        """The value as the program speaks of it."""
        return self._in_order(*self.graph.root(value)) if dims_of(value) is not None else value

    def _in_order(self, value: Value, order: Perm) -> Value:
        if isinstance(value, Constant):
            return _turned_constant(value, order)
        source, stored = self.made.get(value, value), self.graph.stored(value, self.states)
        if order == stored:
            return source
        if (value, order) not in self.copied:
            perm = composed(inverse(stored), order)
            annotation = permuted_annotation(source.annotation, perm)
            var = Var(self.names.pick(f"{value.name}_copied"), annotation)
            attrs: dict[str, object] = {"perm": perm}
            name = "transpose"
            if wide(value, order) == wide(value, stored):
                name, attrs = "reshape", {"dims": annotation.dims}
            self.out.append(Binding(var, Call(OPS[name], (source,), attrs)))
            self.copied[value, order] = var
        return self.copied[value, order]


def _turned_constant(constant: Constant, order: Perm) -> Constant:
    if order == identity(len(order)):
        return constant
    return make_constant(constant.name, constant.data.transpose(order).copy())
