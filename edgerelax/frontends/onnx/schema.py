"""What the ONNX standard says of an operator: arity, attributes and defaults, function bodies."""

from collections.abc import Mapping
from typing import Any

import onnx
from onnx import AttributeProto, defs

from edgerelax.ir.diagnostics import FormatError

Attributes = Mapping[str, onnx.AttributeProto]


def schema_of(domain: str, op: str, version: int) -> "defs.OpSchema | None":
    """The operator's schema in force at that version; None for one that the standard lacks."""
    try:
        return defs.get_schema(op, version, domain)
    except defs.SchemaError:
        return None


def check_node(schema: "defs.OpSchema", node: onnx.NodeProto, attributes: Attributes) -> None:
    """Arity and attribute types. Raises FormatError."""
    _check_count("inputs", len(node.input), schema.min_input, schema.max_input)
    _check_count("outputs", len(node.output), schema.min_output, schema.max_output)
    for name, formal in schema.attributes.items():
        if name not in attributes:
            if formal.required:
                raise FormatError(f"attribute {name} is missing")
        elif attributes[name].type != int(formal.type):
            found = AttributeProto.AttributeType.Name(attributes[name].type)
            raise FormatError(f"attribute {name} is of type {found}, not {formal.type.name}")


def _check_count(what: str, count: int, least: int, most: int) -> None:
    if not least <= count <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        raise FormatError(f"{count} {what} where it has {wanted}")


def default(schema: "defs.OpSchema | None", name: str) -> "onnx.AttributeProto | None":
    """The default of an attribute, if the standard gives one."""
    if schema is None or name not in schema.attributes:
        return None
    found = schema.attributes[name].default_value
    return found if found is not None and found.type != AttributeProto.UNDEFINED else None


def defaults(schema: "defs.OpSchema | None") -> dict[str, onnx.AttributeProto]:
    """All defaults of an operator."""
    names = () if schema is None else schema.attributes
    found = {name: default(schema, name) for name in names}
    return {name: value for name, value in found.items() if value is not None}


def function_body(
    schema: "defs.OpSchema", node: onnx.NodeProto, version: int, types: list[bytes]
) -> "onnx.FunctionProto | None":
    """The operator as a function of simpler ones, where the standard defines it so."""
    if schema.has_function:
        return _parsed(schema.get_function_with_opset_version(version))
    if schema.has_context_dependent_function:
        body = schema.get_context_dependent_function_with_opset_version(
            version, node.SerializeToString(), types
        )
        return _parsed(body)
    return None


def _parsed(data: Any) -> "onnx.FunctionProto | None":
    function = onnx.FunctionProto()
    if not data:
        return None
    function.ParseFromString(data)
    return function if function.node else None
