"""`load`: an ONNX model as a module with one graph function, all its named dims symbolic."""

from collections import ChainMap
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import onnx

from edgerelax.frontends.dims import DimSpec
from edgerelax.frontends.onnx import families
from edgerelax.frontends.onnx.external import Beside
from edgerelax.frontends.onnx.reading import Source, opsets, read_model
from edgerelax.frontends.onnx.symbols import Dimensions
from edgerelax.frontends.onnx.tensors import element_type
from edgerelax.frontends.onnx.walk import Frame, Unknown, Walk
from edgerelax.ir.builder import Builder
from edgerelax.ir.deduce import defined_by
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError
from edgerelax.ir.graph import Constant, GraphFunc, Module, Value, Var
from edgerelax.ir.op import Array
from edgerelax.ir.types import Tensor

assert families.LOADED


def load(
    model: str | Path | bytes | onnx.ModelProto,
    *,
    dims: Mapping[str, DimSpec] | None = None,
    name: str = "main",
    inputs: Collection[str] = (),
) -> Module:
    """Import a model.

    `dims` says of a named dim which size it is, or the least and greatest sizes it may have;
    without it any, 0 included. `inputs` are initializers that are inputs of the graph too and stay
    such: a caller gives them; all others are constants. Raises FormatError, UnsupportedError (for
    all nodes at once), ShapeError or InputError.
    """
    source = read_model(model)
    proto = source.model
    walk, frame, params = begin(proto, source.label, source.beside, dims, kept=inputs)
    results = walk.graph(proto.graph, frame)
    walk.dimensions.finish()
    walk.report()
    outputs = _outputs(source, results)
    body = walk.builder.finish(tuple(outputs.values()))
    func = GraphFunc(name, tuple(params), body, tuple(outputs))
    metadata = {p.key: p.value for p in proto.metadata_props}
    attrs = {"metadata": metadata} if metadata else {}
    return Module({name: func}, walk.builder.loops, attrs)


def begin(
    proto: onnx.ModelProto,
    label: str,
    beside: Beside | None,
    dims: Mapping[str, DimSpec] | None = None,
    weights: Iterable[tuple[str, Array]] = (),
    kept: Collection[str] = (),
) -> tuple[Walk, Frame, list[Var]]:
    """A walk about to start, its frame, and the parameters that stand for the graph's inputs.

    `weights` are in the frame where the walk will not read those that are stored. `kept` are
    inputs although the graph has initializers for them.
    """
    builder = Builder()
    functions = {function_key(f): f for f in proto.functions}
    walk = Walk(builder, Dimensions(dims, builder.names), label, beside, functions)
    frame = Frame(ChainMap(), opsets(proto.opset_import), {}, "")
    params = _params(walk, frame, proto.graph, kept)
    frame.names.update((name, walk.constant(name, data)) for name, data in weights)
    return walk, frame, params


def function_key(function: onnx.FunctionProto) -> tuple[str, str, str]:
    """What a model's function is called by: domain, name and overload."""
    domain = "" if function.domain == "ai.onnx" else function.domain
    return domain, function.name, function.overload


def _params(
    walk: Walk, frame: Frame, graph: onnx.GraphProto, kept: Collection[str] = ()
) -> list[Var]:
    """The graph's inputs; those with an initializer are constants but for the `kept` ones."""
    initializers = {t.name for t in graph.initializer}
    defaults = [i.name for i in graph.input if i.name in initializers]
    for name in kept:
        if name not in defaults:
            raise InputError(
                f"{walk.label}: {name!r} is no input with an initializer",
                hint=f"there are {', '.join(defaults) or 'none'}",
            )
    constants = initializers.difference(kept)
    inputs = [i for i in graph.input if i.name not in constants]
    shapes = [i.type.tensor_type.shape.dim for i in inputs]
    walk.dimensions.declare([d.dim_param.strip() for shape in shapes for d in shape])
    walk.builder.names.taken.update(i.name for i in inputs)
    params: list[Var] = []
    for value in inputs:
        if not value.name or value.name in frame.names:
            raise FormatError(f"{walk.label}: two inputs are called {value.name!r}")
        param = Var(value.name, _annotation(walk, value), f"{walk.label}: input {value.name}")
        walk.builder.define(defined_by(param.annotation))
        frame.names[value.name] = param
        params.append(param)
    return params


def _annotation(walk: Walk, value: onnx.ValueInfoProto) -> Tensor:
    """The annotation of an input. An optional one must be given."""
    declared = value.type
    if declared.HasField("optional_type"):
        declared = declared.optional_type.elem_type
    kind = declared.WhichOneof("value")
    if kind != "tensor_type":
        raise UnsupportedError(
            f"{walk.label}: input {value.name!r} is a {(kind or 'thing').removesuffix('_type')}, "
            "not a tensor"
        )
    tensor = declared.tensor_type
    dtype = element_type(tensor.elem_type, f"{walk.label}: input {value.name!r}")
    if not tensor.HasField("shape"):
        raise UnsupportedError(
            f"{walk.label}: input {value.name!r} has no shape",
            hint="its rank must be known: give it a shape, with names for the dims that vary",
        )
    dims = (walk.dimensions.dim(d, f"{value.name}_{k}") for k, d in enumerate(tensor.shape.dim))
    return Tensor(tuple(dims), dtype)


def _outputs(source: Source, results: list[Any]) -> dict[str, Value]:
    """Results by name. A name that is listed twice is one result."""
    outputs: dict[str, Value] = {}
    for info, item in zip(source.model.graph.output, results, strict=True):
        if not isinstance(item, Var | Constant):
            kind = "sequence" if isinstance(item, tuple) else "optional that is absent"
            assert not isinstance(item, Unknown)
            raise UnsupportedError(
                f"{source.label}: output {info.name!r} is a {kind}, not a tensor",
                hint="give its elements as outputs of their own",
            )
        outputs[info.name] = item
    return outputs
