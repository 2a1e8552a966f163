"""FuseOps: group call_tirs by post-dominators and outline each group (Relax 4.2; relax.md (5)).

Before: legalised graph functions. After: groups of two or more calls are private graph functions
with attribute `primitive`, called in place of their last member; fuse_loops.py merges each into one
loop function. Kinds come from classify.py. A group never binds more buffers than the target allows,
and has one result. It never holds two anchors (contraction, window, row chain or reduction), unless
all are reductions of the same rows: softmax or a norm written out is one chain. What only moves
elements joins the contraction that reads them if its loads stay affine and contiguous. A map whose
operands hold fewer bytes than its result (weights of few bits made numbers) joins what reads it:
computing an element again costs less than storing and loading it. A map whose result is stored at
computed places of something else (keys and values into a cache) is computed where it is stored.

    conv ──► add ──► relu      conv's post-dominator is add, add's is relu; all edges are
    elementwise: ▲               one group {conv, add, relu}; `scale` joins as a broadcast producer
    scale ─────┘
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from edgerelax.ir.graph import (
    Binding,
    Block,
    CallGraph,
    CallTIR,
    GraphFunc,
    Module,
    Value,
    Var,
    bodies,
    operands,
    with_bodies,
)
from edgerelax.ir.names import Names
from edgerelax.ir.types import Tensor, tensor_bytes
from edgerelax.passes.classify import (
    Kind,
    classify,
    classify_operand,
    is_move,
    is_view,
    loads_stay_contiguous,
    stored_operands,
)
from edgerelax.passes.fuse_loops import merge
from edgerelax.sym import as_expr, proves_lt

ROWS = frozenset((Kind.REDUCTION, Kind.ROW))
MAPS = frozenset((Kind.ELEMENTWISE, Kind.BROADCAST))
ANCHORS = ROWS | {Kind.OUT_FUSIBLE}
MAX_GROUP = 256


class Phase(Enum):
    """What is fused when."""

    EPILOGUES = 0
    ROWS = 1
    INJECTIVE = 2
    UNPACKING = 3
    MOVES = 4
    STORES = 5


@dataclass(slots=True)
class _Node:
    """One call_tir of a block."""

    position: int
    var: Var
    call: CallTIR
    kind: Kind
    consumers: list[tuple[int, Kind]] = field(default_factory=list)  # node, how it uses this one
    external: bool = False  # used outside the block's call_tirs
    dominator: int | None = None
    edge: Kind = Kind.ELEMENTWISE  # the strongest kind on any path to the dominator
    depth: int = 0


def fuse(module: Module, *, max_buffers: int = 8) -> Module:
    """Outline fusible groups of every graph function."""
    outlined: dict[str, GraphFunc] = {}
    funcs = {}
    for name, func in module.funcs.items():
        if func.attrs.get("primitive"):  # a group that a pass before outlined
            funcs[name] = func
            continue
        names = Names((*module.loops, *module.funcs, *outlined))
        fuser = _Fuser(module, max_buffers, names, outlined)
        funcs[name] = replace(func, body=fuser.block(func.body))
    return replace(module, funcs={**funcs, **outlined})


@dataclass(slots=True)
class _Fuser:
    module: Module
    max_buffers: int
    names: Names
    outlined: dict[str, GraphFunc]

    def block(self, block: Block) -> Block:
        """Fuse inside nested bodies first, then this block's own calls."""
        bindings = tuple(self._inside(b) for b in block.bindings)
        block = Block(bindings, block.results)
        nodes = self._nodes(block)
        post_dominate(nodes)
        groups = self._partition(nodes)
        return self._outline(block, nodes, groups)

    def _inside(self, binding: Binding) -> Binding:
        inner = [self.block(body) for body in bodies(binding.value)]
        return Binding(binding.var, with_bodies(binding.value, inner)) if inner else binding

    def _nodes(self, block: Block) -> list[_Node]:
        nodes: list[_Node] = []
        by_var: dict[Value, int] = {}
        for position, binding in enumerate(block.bindings):
            call = binding.value
            if not isinstance(call, CallTIR):
                for used in operands(binding.value):
                    if used in by_var:
                        nodes[by_var[used]].external = True
                continue
            loop = self.module.loops[call.func]
            for buffer, arg in zip(loop.inputs, call.args, strict=True):
                if arg in by_var:
                    producer = nodes[by_var[arg]]
                    edge = classify_operand(loop, buffer)
                    if producer.call.device != call.device:
                        edge = Kind.OPAQUE
                    producer.consumers.append((len(nodes), edge))
            kind = classify(loop) if isinstance(binding.var.annotation, Tensor) else Kind.OPAQUE
            by_var[binding.var] = len(nodes)
            nodes.append(_Node(position, binding.var, call, kind))
        for used in block.results:
            if used in by_var:
                nodes[by_var[used]].external = True
        return nodes

    def _partition(self, nodes: list[_Node]) -> list[int]:
        """The group of each node, by the number of its last; in six phases.

        Epilogues and broadcasts, then rows that are reduced several times, then injective chains,
        then what unpacks its operands, those that only move elements into the contractions that
        read them, last maps whose results are stored at computed places.
        """
        root = list(range(len(nodes)))
        members_of = {k: [k] for k in root}  # by root, in order

        for phase in Phase:
            for k, node in enumerate(nodes):
                sink = node.dominator
                if sink is None or node.kind is Kind.OPAQUE or root[k] == root[sink]:
                    continue
                if phase is Phase.ROWS:
                    sink = self._past_views(nodes, sink)
                path = path_between(nodes, k, sink)
                joined = {root[m] for m in (k, *path, sink)}
                members = sorted(m for r in joined for m in members_of[r])
                own = [nodes[m] for m in members_of[root[k]]]
                kind = max(node.kind for node in own)
                if phase is Phase.ROWS:
                    fits = self._are_rows([nodes[m] for m in members])
                elif phase is Phase.UNPACKING:
                    fits = self._unpacks(own) and self._within_limits([nodes[m] for m in members])
                elif phase is Phase.MOVES:
                    rest = [nodes[m] for m in members_of[root[sink]]]
                    fits = self._moves_into([nodes[m] for m in members], rest)
                elif phase is Phase.STORES:
                    fits = self._is_stored(own, nodes[sink], [nodes[m] for m in members])
                else:
                    fits = _may_fuse(nodes, k, kind, path, phase) and self._fits(nodes, members)
                if fits:
                    for other in joined:
                        del members_of[other]
                    members_of[members[-1]] = members
                    for m in members:
                        root[m] = members[-1]
        return root

    def _past_views(self, nodes: list[_Node], sink: int) -> int:
        """The first post-dominator, from `sink` on, that is no view: there is none to a result."""
        at: int | None = sink
        while at is not None and is_view(self.module.loops[nodes[at].call.func]):
            at = nodes[at].dominator
        return sink if at is None else at

    def _fits(self, nodes: list[_Node], members: Sequence[int]) -> bool:
        anchors = sum(nodes[m].kind in ANCHORS for m in members)
        return anchors <= 1 and self._within_limits([nodes[m] for m in members])

    def _within_limits(self, group: Sequence[_Node]) -> bool:
        return len(group) <= MAX_GROUP and len(_operands_of(group)) + 1 <= self.max_buffers

    def _are_rows(self, group: list[_Node]) -> bool:
        """Whether they would be one chain of reductions of the same rows and maps over them.

        A view among them is of what the chain computes, and for its maps: as those of a group norm,
        which see channels where the reductions see groups.
        """
        kinds = {node.kind for node in group}
        if not kinds & ROWS or not kinds <= {*ROWS, *MAPS, Kind.INJECTIVE}:
            return False
        inner = {node.var for node in group}
        for node in group:
            view = is_view(self.module.loops[node.call.func]) and inner.issuperset(node.call.args)
            if node.kind is Kind.INJECTIVE and not view:
                return False
        if len({node.call.device for node in group}) > 1 or not self._within_limits(group):
            return False
        merged = merge(_group_func("rows", group), self.module.loops)
        return classify(merged) in ROWS

    def _unpacks(self, group: list[_Node]) -> bool:
        """Whether they are maps whose operands are known to hold fewer bytes than their result."""
        if any(node.kind > Kind.INJECTIVE for node in group):
            return False
        given = sum((tensor_bytes(v.annotation) for v in _operands_of(group)), start=as_expr(0))
        return proves_lt(given, tensor_bytes(group[-1].var.annotation))

    def _moves_into(self, group: list[_Node], anchored: list[_Node]) -> bool:
        """Whether all but a contraction's group only move what it loads, for free.

        Free is what leaves its loads affine, and of stride 1 along the axes where they were so.
        """
        moves = [node for node in group if node not in anchored]
        if sum(node.kind is Kind.OUT_FUSIBLE for node in anchored) != 1:
            return False
        if not all(is_move(self.module.loops[node.call.func]) for node in moves):
            return False
        if len({node.call.device for node in group}) > 1 or not self._within_limits(group):
            return False
        before, after = (
            merge(_group_func("moved", g), self.module.loops) for g in (anchored, group)
        )
        return loads_stay_contiguous(before, after)

    def _is_stored(self, maps: list[_Node], store: _Node, group: list[_Node]) -> bool:
        """Whether maps make no more than what a call stores over something that they do not read.

        That may then still be done in place.
        """
        loop, args = self.module.loops[store.call.func], store.call.args
        names = [b.name for b, a in zip(loop.inputs, args, strict=True) if a is maps[-1].var]
        if len(names) != 1 or names[0] not in stored_operands(loop):
            return False
        if any(node.kind > Kind.INJECTIVE for node in maps):
            return False
        first = loop.stages[0].reads()
        beneath = [a for b, a in zip(loop.inputs, args, strict=True) if b in first]
        apart = not set(beneath) & set(_operands_of(maps))
        alike = len({node.call.device for node in group}) == 1
        return apart and alike and self._within_limits(group)

    def _outline(self, block: Block, nodes: list[_Node], groups: list[int]) -> Block:
        members: dict[int, list[int]] = {}
        for k, root in enumerate(groups):
            members.setdefault(root, []).append(k)
        moved = {nodes[k].position for ks in members.values() if len(ks) > 1 for k in ks}
        at_last = {nodes[ks[-1]].position: ks for ks in members.values() if len(ks) > 1}
        bindings: list[Binding] = []
        for position, binding in enumerate(block.bindings):
            if position in at_last:
                bindings.append(self._outline_group([nodes[k] for k in at_last[position]]))
            elif position not in moved:
                bindings.append(binding)
        return Block(tuple(bindings), block.results)

    def _outline_group(self, group: list[_Node]) -> Binding:
        name = self._name([node.call.func for node in group])
        self.outlined[name] = _group_func(name, group)
        return Binding(group[-1].var, CallGraph(name, tuple(_operands_of(group))))

    def _name(self, parts: Sequence[str]) -> str:
        more = [f"{len(parts) - 3}_more"] if len(parts) > 4 else []
        return self.names.pick("_".join((*parts[: 3 if more else 4], *more))[:60])


def _operands_of(group: Sequence[_Node]) -> dict[Value, None]:
    """What a group reads of others, in order of first use, each once."""
    inner = {node.var for node in group}
    return dict.fromkeys(a for node in group for a in node.call.args if a not in inner)


def _group_func(name: str, group: Sequence[_Node]) -> GraphFunc:
    """A private function; a value passed twice is one parameter (a buffer is bound once)."""
    params: dict[Value, Value] = {a: Var(a.name, a.annotation) for a in _operands_of(group)}
    bindings = tuple(
        Binding(node.var, replace(node.call, args=tuple(params.get(a, a) for a in node.call.args)))
        for node in group
    )
    result = group[-1].var
    own = tuple(p for p in params.values() if isinstance(p, Var))
    return GraphFunc(name, own, Block(bindings, (result,)), (result.name,), {"primitive": True})


def post_dominate(nodes: list[_Node]) -> None:
    """Immediate post-dominators, in one reverse sweep by common ancestors of all consumers."""
    for node in reversed(nodes):
        if node.external or not node.consumers:
            continue
        first, edge = node.consumers[0]
        common: int | None = first
        for other, kind in node.consumers[1:]:
            edge = max(edge, kind)
            common, climbed = _common_ancestor(nodes, common, other)
            edge = max(edge, climbed)
        if common is not None:
            node.dominator, node.edge = common, edge
            node.depth = nodes[common].depth + 1


def _common_ancestor(nodes: list[_Node], a: int | None, b: int | None) -> tuple[int | None, Kind]:
    """The nearest node that post-dominates both, and the strongest edge climbed on the way."""
    edge = Kind.ELEMENTWISE
    while a != b:
        if a is None or b is None:
            return None, edge
        if nodes[a].depth < nodes[b].depth or (nodes[a].depth == nodes[b].depth and a > b):
            a, b = b, a
        edge = max(edge, nodes[a].edge)
        a = nodes[a].dominator
    return a, edge


def path_between(nodes: list[_Node], source: int, sink: int) -> list[int]:
    """Every node strictly between a node and its post-dominator, on any path."""
    found: set[int] = set()
    todo = [c for c, _ in nodes[source].consumers]
    while todo:
        k = todo.pop()
        if k != sink and k not in found:
            found.add(k)
            todo.extend(c for c, _ in nodes[k].consumers)
    return sorted(found)


def _may_fuse(nodes: list[_Node], k: int, kind: Kind, path: list[int], phase: Phase) -> bool:
    """The table of relax.md (5); `kind` is the strongest kind in node k's group so far."""
    node = nodes[k]
    assert node.dominator is not None
    target = nodes[node.dominator].kind
    if phase is Phase.EPILOGUES and kind in ANCHORS:
        return (
            node.edge is Kind.ELEMENTWISE
            and target <= Kind.BROADCAST
            and all(nodes[m].kind <= Kind.BROADCAST for m in path)
        )
    if phase is Phase.EPILOGUES and kind <= Kind.BROADCAST:
        return (
            (node.edge <= Kind.INJECTIVE or node.edge in (Kind.REDUCTION, Kind.ROW))
            and target not in (Kind.INJECTIVE, Kind.OPAQUE)
            and all(nodes[m].kind <= Kind.INJECTIVE for m in path)
        )
    return (
        phase is Phase.INJECTIVE
        and kind <= Kind.INJECTIVE
        and target <= Kind.INJECTIVE
        and all(nodes[m].kind <= Kind.INJECTIVE for m in path)
    )
