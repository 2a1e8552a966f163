"""Annotations as ONNX types, for the standard's function bodies that depend on them."""

from typing import Any

import onnx

from edgerelax.frontends.onnx.tensors import ONNX_TYPES
from edgerelax.ir.graph import Constant, Var
from edgerelax.ir.types import as_tensor


def type_of(item: Any) -> bytes:
    """The serialized TypeProto of what a name stands for; empty where nothing is known."""
    proto = onnx.TypeProto()
    tensor = as_tensor(item.annotation) if isinstance(item, Var | Constant) else None
    if tensor is None or tensor.dtype is None:
        return bytes(proto.SerializeToString())
    proto.tensor_type.elem_type = ONNX_TYPES[tensor.dtype.name]
    for dim in tensor.dims or ():
        size = dim.as_int()
        entry = proto.tensor_type.shape.dim.add()
        if size is None:
            entry.dim_param = str(dim)
        else:
            entry.dim_value = size
    if tensor.dims == ():
        proto.tensor_type.shape.SetInParent()
    return bytes(proto.SerializeToString())
