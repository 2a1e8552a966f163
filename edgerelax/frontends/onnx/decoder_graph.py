"""The graph of a decoder, made ready to be walked over a cache.

Of a merged decoder's branch on `use_cache_branch` the arm with a past stays. Inputs that hold keys
and values of earlier tokens are found by what joins them with new ones: a Concat along their
length, or an attention operator with operands for a past. Which keys and values are one layer's say
the numbers in their names, or the operators.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from edgerelax.frontends.onnx.attention import MICROSOFT
from edgerelax.frontends.onnx.ordering import title, used_names
from edgerelax.frontends.onnx.reading import DEFAULT_DOMAINS, Source
from edgerelax.frontends.onnx.wide_graph import MASK, POSITIONS, TOKENS, WideGraph
from edgerelax.ir.diagnostics import UnsupportedError

BRANCH = "use_cache_branch"
KEPT = ("num_logits_to_keep", "logits_to_keep")
"""Inputs that say of how many tokens logits are wanted; 0 means all."""
BESIDE = {
    (MICROSOFT, "GroupQueryAttention"): 3,
    (MICROSOFT, "MultiHeadAttention"): 6,
    ("", "Attention"): 4,
}
"""Attention operators, and which operand is their past keys; the next is their past values."""
NAME = re.compile(r"\D*(\d+)\D*(key|value)s?")
LENGTH_AXES = {1: (0, 2, 1, 3), 2: (0, 1, 2, 3), 3: (0, 1, 3, 2)}
"""Where a past's length may stand, and what brings it to [batch, groups, length, width]."""
HINT = "without config.json, named by its file, it runs with past and present as plain tensors"


@dataclass(frozen=True, slots=True)
class Past:
    """An input with a layer's earlier keys or values: its dims, and which axis is the length."""

    layer: int
    name: str
    dims: tuple[int, ...]
    axis: int

    @property
    def order(self) -> tuple[int, ...]:
        """To and from [batch, groups, length, width]."""
        return LENGTH_AXES[self.axis]

    @property
    def sizes(self) -> tuple[int, int]:
        """Groups and width."""
        _, groups, _, width = (self.dims[k] for k in self.order)
        return groups, width


class DecoderGraph(WideGraph):
    """Nodes, inputs and weights of a decoder; `joins` says what becomes of the pasts, by name."""

    def __init__(self, source: Source) -> None:
        super().__init__(source)
        if TOKENS not in self.inputs or "logits" not in self.outputs:
            raise self.unsupported(f"no graph from {TOKENS} to logits", _of_embeddings(self.inputs))
        known = (TOKENS, MASK, POSITIONS)
        self._users: dict[str, list[onnx.NodeProto]] = {}
        for node in self.graph.node:
            for name in used_names(node):
                self._users.setdefault(name, []).append(node)
        self._makers = {o: n for n in self.graph.node for o in n.output if o}
        self.joins, self.pasts = self._joined([n for n in self.inputs if n not in known])

    def prepare(self) -> None:
        _take_branch(self.graph, self.label)
        _want_all(self.graph)

    def unsupported(self, what: str, hint: str = HINT) -> UnsupportedError:
        return UnsupportedError(f"{self.label}: {what}", hint=hint)

    def origin(self, name: str) -> str:
        """The name that this one is another for."""
        while (node := self._makers.get(name)) is not None and len(node.input) == 1:
            if node.op_type not in ("Identity", "Concat", "Cast"):
                break
            name = node.input[0]
        return name

    def users(self, name: str) -> list[onnx.NodeProto]:
        """The nodes that read a name."""
        return self._users.get(name, [])

    # pasts

    def _joined(self, names: list[str]) -> tuple[dict[str, str], dict[str, Past]]:
        """Which past a node's output extends, and the pasts by input, in pairs by their order."""
        joins: dict[str, tuple[str, int]] = {}
        pairs: list[tuple[str, str]] = []
        for node in self.graph.node:
            domain = "" if node.domain in DEFAULT_DOMAINS else node.domain
            first = BESIDE.get((domain, node.op_type))
            if node.op_type == "Concat" and len(node.input) == 2:
                rank = 4
                axis = next(a.i for a in node.attribute if a.name == "axis") % rank
                joins[node.output[0]] = (self.origin(node.input[0]), axis)
            elif first is not None and len(node.input) > first + 1:
                key, value = (self.origin(node.input[first + k]) for k in (0, 1))
                pairs.append((key, value))
                joins.update({present(node, 0): (key, 2), present(node, 1): (value, 2)})
        found = {out: join for out, join in joins.items() if join[0] in names}
        axes = {past: axis for past, axis in found.values()}
        pasts = self._pasts(names, axes, _numbered(names) or pairs)
        self._check_presents(set(found))
        return {out: past for out, (past, _) in found.items()}, pasts

    def _pasts(
        self, names: list[str], axes: Mapping[str, int], pairs: Sequence[tuple[str, str]]
    ) -> dict[str, Past]:
        if not names:
            raise self.unsupported("no inputs for keys and values of earlier tokens")
        for name in names:
            if name not in axes:
                first = next(iter(self.users(name)), None)
                user = "nothing" if first is None else title(first)
                raise self.unsupported(
                    f"input {name!r} is read by {user}, and joined with nothing new along a length"
                )
            dims = self._dims(name)
            if len(dims) != 4 or axes[name] not in LENGTH_AXES:
                raise self.unsupported(f"input {name!r} has no [batch, groups, length, width]")
        if sorted(n for pair in pairs for n in pair) != sorted(names):
            raise self.unsupported(
                f"which keys and values belong together: {', '.join(names)}",
                "name them past_key_values.0.key, past_key_values.0.value and so on",
            )
        return {
            name: Past(layer, kind, self._dims(name), axes[name])
            for layer, pair in enumerate(pairs)
            for name, kind in zip(pair, ("keys", "values"), strict=True)
        }

    def _dims(self, name: str) -> tuple[int, ...]:
        return tuple(d.dim_value for d in self.inputs[name].type.tensor_type.shape.dim)

    def _check_presents(self, made: set[str]) -> None:
        """Whatever else the graph gives must be the pasts, longer."""
        for output in self.graph.output:
            name = self.origin(output.name)
            if output.name != "logits" and name not in made:
                maker = self._makers.get(name)
                by = name if maker is None else title(maker)
                raise self.unsupported(
                    f"output {output.name!r}, made by {by}, is no past joined with what is new"
                )


def _numbered(names: Sequence[str]) -> list[tuple[str, str]]:
    """Keys and values by the numbers of layers in their names; none where these have no such."""
    found = [NAME.fullmatch(name) for name in names]
    places = {(int(m[1]), m[2]): m.string for m in found if m is not None}
    layers = range(len(names) // 2)
    wanted = {(layer, kind) for layer in layers for kind in ("key", "value")}
    if len(names) != len(wanted) or places.keys() != wanted:
        return []
    return [(places[layer, "key"], places[layer, "value"]) for layer in layers]


def present(node: onnx.NodeProto, k: int) -> str:
    """The name of an operator's present keys or values, which it may leave out."""
    given = node.output[1 + k] if len(node.output) > 1 + k else ""
    return given or f"{node.output[0]}/present.{k}"


def _of_embeddings(inputs: Mapping[str, Any]) -> str:
    if "inputs_embeds" in inputs:
        return "it takes embeddings: part of a model that reads more than text"
    if "encoder_hidden_states" in inputs:
        return "it is the decoder of a model that has an encoder"
    return HINT


def _take_branch(graph: onnx.GraphProto, label: str) -> None:
    """Put the arm with a past in the place of a branch on `use_cache_branch`."""
    if BRANCH not in {i.name for i in graph.input}:
        return
    nodes: list[onnx.NodeProto] = []
    for node in graph.node:
        if node.op_type != "If" or node.input[0] != BRANCH:
            nodes.append(node)
            continue
        arm = next(a.g for a in node.attribute if a.name == "then_branch")
        graph.initializer.extend(arm.initializer)
        nodes.extend(arm.node)
        pairs = zip(arm.output, node.output, strict=True)
        nodes.extend(helper.make_node("Identity", [o.name], [name]) for o, name in pairs if name)
    if len(nodes) == len(graph.node):
        raise UnsupportedError(f"{label}: no branch on its input {BRANCH}", hint=HINT)
    kept = [_copied(n) for n in nodes]
    inputs = [i for i in map(_copied, graph.input) if i.name != BRANCH]
    del graph.node[:], graph.input[:]
    graph.node.extend(kept)
    graph.input.extend(inputs)


def _want_all(graph: onnx.GraphProto) -> None:
    """Logits of all tokens, where an input says of how many."""
    wanted = [_copied(i) for i in graph.input if i.name in KEPT]
    for value in wanted:
        rank = len(value.type.tensor_type.shape.dim)
        zero = np.zeros(
            (1,) * rank, helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        )
        graph.initializer.append(numpy_helper.from_array(zero, value.name))
    inputs = [_copied(i) for i in graph.input if i.name not in KEPT]
    del graph.input[:]
    graph.input.extend(inputs)


def _copied(message: Any) -> Any:
    made = type(message)()
    made.CopyFrom(message)
    return made
