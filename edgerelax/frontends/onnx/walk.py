"""The walk over a model's graphs: scopes, functions, dispatch to importer rows, what rows emit."""

from collections import ChainMap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import onnx

from edgerelax.frontends.onnx.constants import Constants
from edgerelax.frontends.onnx.external import Beside
from edgerelax.frontends.onnx.node import Node
from edgerelax.frontends.onnx.ordering import needed_nodes, title
from edgerelax.frontends.onnx.reading import DEFAULT_DOMAINS, opsets
from edgerelax.frontends.onnx.registry import Handler, Item, Result, find, nearest
from edgerelax.frontends.onnx.schema import (
    Attributes,
    check_node,
    defaults,
    function_body,
    schema_of,
)
from edgerelax.frontends.onnx.symbols import Dimensions
from edgerelax.frontends.onnx.tensors import array_of, dense
from edgerelax.frontends.onnx.typing import type_of
from edgerelax.ir.builder import Builder, make_call
from edgerelax.ir.diagnostics import (
    EdgeRelaxError,
    FormatError,
    PassError,
    Report,
    ShapeError,
    UnsupportedError,
)
from edgerelax.ir.dtypes import STRING
from edgerelax.ir.graph import (
    Call,
    Constant,
    Expression,
    MakeShape,
    MatchCast,
    ReadInts,
    Value,
    Var,
)
from edgerelax.ir.op import Array
from edgerelax.ir.types import Annotation, IntTensor, Shape, annotation_of, as_tensor
from edgerelax.ops import OPS
from edgerelax.sym import Expr, ExprLike, as_expr, bounds, eq, select

MAX_DEPTH = 64
"""Functions and subgraphs inside each other; more is taken for endless recursion."""
MAX_DIM_TEXT = 160
"""Dims that take more to write down get a name of their own: what is said in them stays short."""


class Unknown:
    """Stands for what an unsupported node would have given: the walk goes on to find the others."""


UNKNOWN = Unknown()


class ImpossibleArmError(Exception):
    """An arm of a branch contradicts the sizes that are known: it is not the one that is taken."""

    def __init__(self, arm: str, problem: ShapeError) -> None:
        super().__init__(arm)
        self.arm, self.problem = arm, problem


class RanksDifferError(Exception):
    """A branch whose arms give other ranks: `split` imports the rest of the graph into each arm."""

    def __init__(self, node: Node, split: "Callable[[Rest], list[Any]]") -> None:
        super().__init__(node.origin)
        self.split = split


@dataclass(frozen=True, slots=True)
class Frame:
    """Where the walk is: names in sight, versions, attributes of the enclosing function call."""

    names: ChainMap[str, Any]
    opsets: dict[str, int]
    attributes: Attributes
    path: str
    depth: int = 0

    def inner(self, path: str = "") -> "Frame":
        """The frame of a graph inside a node."""
        if self.depth >= MAX_DEPTH:
            raise FormatError(
                f"graphs and functions nest more than {MAX_DEPTH} deep at {self.path}"
            )
        return replace(
            self,
            names=self.names.new_child(),
            path=f"{self.path}{path}/" if path else self.path,
            depth=self.depth + 1,
        )


Rest = Callable[[Frame], list[Any]]
"""Imports the rest of a graph in a frame; gives what the graph's outputs stand for."""


@dataclass(slots=True)
class Walk:
    """One import in progress."""

    builder: Builder
    dimensions: Dimensions
    label: str
    beside: Beside | None
    functions: dict[tuple[str, str, str], onnx.FunctionProto] = field(default_factory=dict)
    constants: Constants = field(default_factory=Constants)
    problems: Report = field(default_factory=Report)
    splits: int = 0
    own: Mapping[tuple[str, str], Handler] = field(default_factory=dict)
    """By domain and name, what imports an operator here; it takes unknown operands too."""
    _broadcasts: dict[tuple[Expr, Expr], Expr] = field(default_factory=dict)
    missing: list[tuple[tuple[str, str, int], str]] = field(default_factory=list)

    # Graphs and nodes

    def graph(
        self, graph: onnx.GraphProto, frame: Frame, outputs: Sequence[str] | None = None
    ) -> list[Any]:
        """Import a graph whose inputs are in the frame already; what its outputs stand for.

        Only what `outputs` name is imported, if it is given.
        """
        self._initializers(graph, frame)
        wanted = [o.name for o in graph.output] if outputs is None else outputs
        return self.nodes(graph.node, wanted, frame)

    def _initializers(self, graph: onnx.GraphProto, frame: Frame) -> None:
        for stored in graph.initializer:
            if stored.name in frame.names.maps[0]:  # an input, whose default this is
                continue
            frame.names[stored.name] = self.constant(stored.name, array_of(stored, self.beside))
        for sparse in graph.sparse_initializer:
            name = sparse.values.name
            frame.names[name] = self.constant(name, dense(sparse, self.beside))

    def nodes(
        self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], frame: Frame
    ) -> list[Any]:
        """Import what the outputs need, in order."""
        needed = needed_nodes(nodes, outputs, f"{self.label}: {frame.path or 'graph'}")
        return self._in_order(needed, outputs, frame)

    def _in_order(
        self, nodes: Sequence[onnx.NodeProto], outputs: Sequence[str], frame: Frame
    ) -> list[Any]:
        for k, node in enumerate(nodes):
            try:
                self._node(node, frame)
            except RanksDifferError as differ:
                try:
                    return differ.split(partial(self._in_order, nodes[k + 1 :], outputs))
                except UnsupportedError as problem:
                    self.problems.add(problem)
                    return [UNKNOWN] * len(outputs)
        return [self._look_up(name, frame, "graph output") if name else None for name in outputs]

    def _look_up(self, name: str, frame: Frame, user: str) -> Any:
        if name not in frame.names:
            raise FormatError(
                f"{self.label}: {user} uses {name!r}, which nothing defines before it",
                origin=f"{self.label}: {frame.path}",
            )
        return frame.names[name]

    def _node(self, proto: onnx.NodeProto, frame: Frame) -> None:
        origin = f"{self.label}: {frame.path}{title(proto)}"
        items = [self._look_up(name, frame, title(proto)) if name else None for name in proto.input]
        try:
            results = self._results(proto, frame, items, origin)
        except UnsupportedError as problem:
            self.problems.add(problem)
            results = [UNKNOWN] * len(proto.output)
        for name, result in zip(proto.output, results, strict=False):
            if name:
                frame.names[name] = result

    def _results(
        self, proto: onnx.NodeProto, frame: Frame, items: list[Any], origin: str
    ) -> Sequence[Any]:
        domain = "" if proto.domain in DEFAULT_DOMAINS else proto.domain
        attributes = _attributes(proto, frame)
        function = self.functions.get((domain, proto.op_type, proto.overload))
        if function is None:
            version = self._version(domain, frame, origin, proto)
            schema = schema_of(domain, proto.op_type, version)
            own = self.own.get((domain, proto.op_type))
            handler = own or find(domain, proto.op_type, version)
            proto = _resolved(proto, attributes)
            node = Node(self, frame, proto, schema, version, attributes, tuple(items), origin)
            if schema is not None and not schema.deprecated:
                self._check(node)
            if handler is not None:
                if own is None and any(isinstance(i, Unknown) for i in items):
                    return [UNKNOWN] * len(proto.output)
                return self._handled(handler, node)
            function = self._standard_body(node)
            if function is None:
                self.missing.append(((domain, node.op, version), origin))
                return [UNKNOWN] * len(proto.output)
            attributes = {**defaults(schema), **attributes}
        return self._function(function, proto, attributes, frame, items)

    def _version(self, domain: str, frame: Frame, origin: str, proto: onnx.NodeProto) -> int:
        if domain not in frame.opsets:
            raise FormatError(
                f"{proto.op_type}: domain {domain!r} is not among the operator sets of the model",
                origin=origin,
            )
        return frame.opsets[domain]

    def _check(self, node: Node) -> None:
        assert node.schema is not None
        try:
            check_node(node.schema, node.proto, node.attributes)
        except FormatError as error:
            raise FormatError(f"{node.op}: {error.message}", origin=node.origin) from None

    def _handled(self, handler: Handler, node: Node) -> Sequence[Item]:
        try:
            result: Result = handler(node)
        except (ImpossibleArmError, RanksDifferError):
            raise
        except EdgeRelaxError as error:
            error.origin = error.origin or node.origin
            raise
        except Exception as error:
            raise PassError(
                f"importing {node.op} failed: {type(error).__name__}: {error}",
                origin=node.origin,
                hint="please report this, with the model if you can",
            ) from error
        return [result] if isinstance(result, Var | Constant) else result

    def problems_so_far(self) -> tuple[int, int]:
        """How many nodes could not be imported; compare it before and after."""
        return len(self.problems), len(self.missing)

    def forget_problems(self, before: tuple[int, int]) -> None:
        """Back to what `problems_so_far` said."""
        del self.problems.problems[before[0] :]
        del self.missing[before[1] :]

    def report(self) -> None:
        """Raise UnsupportedError if any node could not be imported, naming all."""
        for key in dict.fromkeys(key for key, _ in self.missing):
            domain, op, version = key
            places = [place for k, place in self.missing if k == key]
            more = f", and {len(places) - 5} more" if len(places) > 5 else ""
            self.problems.add(
                UnsupportedError(
                    f"{op} of {domain or 'ai.onnx'} {version} cannot be imported yet",
                    origin=", ".join(places[:5]) + more,
                    hint=nearest(domain, op),
                )
            )
        self.problems.raise_if_any(self.label)

    # Functions

    def _standard_body(self, node: Node) -> onnx.FunctionProto | None:
        """The standard's own definition of an operator without a row, if it has one."""
        body = None
        if node.schema is not None:
            types = [type_of(i) for i in node.inputs]
            body = function_body(node.schema, node.proto, node.version, types)
        return body

    def _function(
        self,
        function: onnx.FunctionProto,
        proto: onnx.NodeProto,
        attributes: Attributes,
        frame: Frame,
        items: Sequence[Any],
    ) -> list[Any]:
        """A call of a function: its nodes here, in a scope of their own."""
        if len(items) > len(function.input):
            raise FormatError(
                f"{title(proto)}: {len(items)} inputs for function {function.name}, "
                f"which takes {len(function.input)}",
                origin=f"{self.label}: {frame.path}",
            )
        given = [*items, *[None] * (len(function.input) - len(items))]
        inner = replace(
            frame.inner(title(proto)),
            names=ChainMap(dict(zip(function.input, given, strict=True))),
            opsets={**frame.opsets, **opsets(function.opset_import)},
            attributes={**{a.name: a for a in function.attribute_proto}, **attributes},
        )
        wanted = [f if o else "" for o, f in zip(proto.output, function.output, strict=False)]
        return self.nodes(function.node, wanted, inner)

    # What nodes emit

    def constant(self, name: str, data: Array) -> Constant:
        """A constant; small integer ones are known to the host."""
        return Constant(self.builder.names.pick(name), data, annotation_of(data))

    def call(self, node: Node, op: str, args: Sequence[Value | None], attrs: Any) -> Value:
        """A call of one result, all of its dims known, if need be by new names."""
        var = self._bind(node, self._make_call(node, op, args, attrs))
        if as_tensor(var.annotation) is None:
            raise TypeError(f"{op} gives {var.annotation}, not one tensor")
        return self._named_dims(node, var)

    def call_all(
        self, node: Node, op: str, args: Sequence[Value | None], attrs: Any
    ) -> tuple[Value, ...]:
        """A call of several results."""
        var = self._bind(node, self._make_call(node, op, args, attrs))
        return tuple(self._named_dims(node, v) for v in self.builder.fields(var))

    def _make_call(self, node: Node, op: str, args: Sequence[Value | None], attrs: Any) -> Call:
        for arg in args:
            known = None if arg is None else as_tensor(arg.annotation)
            if known is not None and known.dtype == STRING:
                raise node.unsupported("text", hint="turn text into numbers before the model runs")
        return make_call(OPS[op], args, attrs)

    def _bind(self, node: Node, value: Expression, annotation: Annotation | None = None) -> Var:
        name = next((n for n in node.proto.output if n), node.op)
        var = self.builder.emit(value, name, node.origin, annotation)
        self.constants.producers[var] = value
        return var

    def _named_dims(self, node: Node, value: Value) -> Value:
        """The value with every dim known, new symbols for unknown and for too intricate ones."""
        known = as_tensor(value.annotation)
        if known is None or known.rank is None or isinstance(value.annotation, IntTensor):
            return value
        if known.dims is None:
            return self.builder.with_fresh_dims(value, origin=node.origin)
        named = tuple(
            self.builder.fresh(f"{value.name}_d{k}") if len(str(d)) > MAX_DIM_TEXT else d
            for k, d in enumerate(known.dims)
        )
        return value if named == known.dims else self.match(node, value, replace(known, dims=named))

    def match(self, node: Node, value: Value, annotation: Annotation) -> Value:
        """Assert an annotation at run time."""
        return self._bind(node, MatchCast(value), annotation)

    def require(self, node: Node, value: Expr, wanted: ExprLike, need: str) -> None:
        """Check at run time that two integers are equal; `need` says it in words."""
        made, agreed = self._bind(node, MakeShape((value,))), Shape((as_expr(wanted),))
        self.builder.emit(MatchCast(made), origin=f"{node.origin}: {need}", annotation=agreed)

    def broadcast_size(self, node: Node, a: Expr, b: Expr) -> Expr:
        """A symbol for what two sizes broadcast to: two ways to say it, which agree if they do."""
        known = self._broadcasts.get((a, b))
        if known is not None and known.symbols() <= self.builder.visible:
            return known
        least = min(bounds(a)[0] or 0, bounds(b)[0] or 0)
        size = self.builder.fresh(f"{node.proto.output[0]}_n", max(0, least))
        both = (select(eq(a, 1), b, a), select(eq(b, 1), a, b))
        self.match(node, self._bind(node, MakeShape(both)), Shape((size, size)))
        self._broadcasts[a, b] = size
        return size

    def name_dims(self, node: Node, dims: Sequence[Expr], least: int = 0) -> tuple[Expr, ...]:
        """New symbols for sizes that are too intricate to reason about."""
        hint = f"{node.proto.output[0]}_d"
        fresh = tuple(
            d if d.as_int() is not None else self.builder.fresh(f"{hint}{k}", least)
            for k, d in enumerate(dims)
        )
        self.match(node, self._bind(node, MakeShape(tuple(dims))), Shape(fresh))
        return fresh

    def read_ints(
        self, node: Node, value: Value, count: int, lo: int | None, hi: int | None = None
    ) -> tuple[Expr, ...]:
        """The elements of an integer tensor, read from the device, as new symbols."""
        least = as_tensor(value.annotation)
        assert least is not None and least.dtype is not None
        bound = max(least.dtype.int_range[0], -(1 << 63) if lo is None else lo)
        read = self._bind(node, ReadInts(value))
        fresh = tuple(self.builder.fresh(f"{value.name}_{k}", bound, hi) for k in range(count))
        self.match(node, read, Shape(fresh))
        return fresh


def _resolved(proto: onnx.NodeProto, attributes: Attributes) -> onnx.NodeProto:
    """The node without references to attributes of the enclosing function."""
    if not any(a.ref_attr_name for a in proto.attribute):
        return proto
    own = onnx.NodeProto()
    own.CopyFrom(proto)
    del own.attribute[:]
    for name, attribute in attributes.items():
        own.attribute.add().CopyFrom(attribute)
        own.attribute[-1].name = name
    return own


def _attributes(proto: onnx.NodeProto, frame: Frame) -> dict[str, onnx.AttributeProto]:
    """A node's attributes, those that refer to the enclosing function's resolved."""
    found: dict[str, onnx.AttributeProto] = {}
    for attribute in proto.attribute:
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif attribute.ref_attr_name in frame.attributes:
            found[attribute.name] = frame.attributes[attribute.ref_attr_name]
    return found
