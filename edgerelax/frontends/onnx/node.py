"""What an importer row sees of a node: typed attributes, operands, known integers, how to emit."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import AttributeProto, defs

from edgerelax.frontends.onnx.registry import Item
from edgerelax.frontends.onnx.schema import Attributes, default
from edgerelax.frontends.onnx.tensors import array_of, dense, element_type
from edgerelax.ir.diagnostics import FormatError, ShapeError, UnsupportedError
from edgerelax.ir.dtypes import DType
from edgerelax.ir.graph import Constant, Value
from edgerelax.ir.op import Array
from edgerelax.ir.types import IntTensor, Tensor, as_tensor
from edgerelax.sym import Expr, ExprLike, as_expr, product, prove_eq

if TYPE_CHECKING:
    from edgerelax.frontends.onnx.walk import Frame, Walk

_REQUIRED = object()


@dataclass(frozen=True, slots=True)
class Node:
    """One node at one place. Everything a handler may know or do goes through it."""

    walk: "Walk"
    frame: "Frame"
    proto: onnx.NodeProto
    schema: "defs.OpSchema | None"
    version: int
    attributes: Attributes
    inputs: tuple[Item, ...]
    origin: str

    @property
    def op(self) -> str:
        return str(self.proto.op_type)

    @property
    def output_count(self) -> int:
        return len(self.proto.output)

    def wants(self, k: int) -> bool:
        """Whether anything may use output k."""
        return k < len(self.proto.output) and self.proto.output[k] != ""

    # Attributes

    def has_attr(self, name: str) -> bool:
        return name in self.attributes

    def attr(self, name: str, fallback: Any = _REQUIRED) -> Any:
        """An attribute as int, float, str, tuple, array or GraphProto.

        The node's, else `fallback`, else the standard's default.
        """
        if name in self.attributes:
            return self._convert(self.attributes[name])
        if fallback is not _REQUIRED:
            return fallback
        standard = default(self.schema, name)
        if standard is None:
            raise FormatError(f"{self.op}: attribute {name} is missing", origin=self.origin)
        return self._convert(standard)

    def _convert(self, proto: onnx.AttributeProto) -> Any:
        beside = self.walk.beside
        match proto.type:
            case AttributeProto.INT:
                return int(proto.i)
            case AttributeProto.FLOAT:
                return float(proto.f)
            case AttributeProto.STRING:
                return proto.s.decode("utf-8", "replace")
            case AttributeProto.INTS:
                return tuple(int(i) for i in proto.ints)
            case AttributeProto.FLOATS:
                return tuple(float(f) for f in proto.floats)
            case AttributeProto.STRINGS:
                return tuple(s.decode("utf-8", "replace") for s in proto.strings)
            case AttributeProto.TENSOR:
                return array_of(proto.t, beside)
            case AttributeProto.SPARSE_TENSOR:
                return dense(proto.sparse_tensor, beside)
            case AttributeProto.GRAPH:
                return proto.g
        kind = AttributeProto.AttributeType.Name(proto.type)
        raise self.unsupported(f"attribute {proto.name} of type {kind}")

    def dtype_attr(self, name: str, fallback: Any = _REQUIRED) -> DType:
        """An attribute that holds an element type."""
        found = self.attr(name, fallback)
        return found if isinstance(found, DType) else element_type(found, f"{self.op}: {name}")

    # Operands

    def input(self, k: int) -> Value | None:
        """Operand k; None if it is absent."""
        item = self.inputs[k] if k < len(self.inputs) else None
        if isinstance(item, tuple):
            raise self.bad(f"input {k} is a sequence, not a tensor")
        return item

    def value(self, k: int) -> Value:
        """Operand k, which must be there."""
        found = self.input(k)
        if found is None:
            raise FormatError(f"{self.op}: input {k} is missing", origin=self.origin)
        return found

    def sequence(self, k: int) -> tuple[Value, ...]:
        """Operand k, a sequence."""
        item = self.inputs[k] if k < len(self.inputs) else None
        if not isinstance(item, tuple):
            raise self.bad(f"input {k} is no sequence")
        return item

    def values(self) -> tuple[Value, ...]:
        """All operands, none of them absent."""
        return tuple(self.value(k) for k in range(len(self.inputs)))

    def tensor(self, value: Value) -> Tensor:
        found = as_tensor(value.annotation)
        if found is None:
            raise self.bad(f"{value.name} is {value.annotation}, no tensor")
        return found

    def dims(self, value: Value) -> tuple[Expr, ...]:
        """A value's dims, which must be known, if only by name."""
        dims = self.tensor(value).dims
        if dims is None:
            raise self.unsupported(f"{value.name} has unknown dims: {value.annotation}")
        return dims

    def rank(self, value: Value) -> int:
        return len(self.dims(value))

    def count(self, value: Value) -> Expr:
        """The number of elements."""
        return product(self.dims(value))

    def is_single(self, value: Value) -> bool:
        """Whether it surely has one element."""
        return self.count(value).as_int() == 1

    def dtype(self, value: Value) -> DType:
        dtype = self.tensor(value).dtype
        if dtype is None:
            raise self.unsupported(f"the element type of {value.name} is unknown")
        return dtype

    def axis(self, value: Value, axis: int) -> int:
        """An axis of a value, counted from the front."""
        rank = self.rank(value)
        if not -rank <= axis < rank:
            raise self.bad(f"axis {axis} of {value.annotation}, which has rank {rank}")
        return axis % rank

    # Known values

    def constant(self, value: Value | None) -> Array | None:
        """A value as an array, if all that it depends on is constant and small."""
        return None if value is None else self.walk.constants.array(value)

    def ints(self, k: int, *, lo: int | None = None, what: str = "") -> tuple[Expr, ...] | None:
        """Operand k as integers that the host knows, None if it is absent.

        Where they are data they are read from the device: symbols of which only `lo` is known.
        """
        value = self.input(k)
        return None if value is None else self.integers_of(value, lo=lo, what=what or f"input {k}")

    def integers_of(self, value: Value, *, lo: int | None, what: str) -> tuple[Expr, ...]:
        """The same of any value."""
        known = self.walk.constants.integers(value)
        if known is not None:
            return known
        tensor = self.tensor(value)
        length = as_expr(1) if tensor.rank == 0 else tensor.dims[0] if tensor.dims else None
        count = None if length is None else length.as_int()
        if count is None or (tensor.rank or 0) > 1 or not _is_whole(tensor.dtype):
            raise self.unsupported(
                f"{what} ({value.annotation}) must be constant or integers of a known number"
            )
        return self.walk.read_ints(self, value, count, lo)

    def numbers(self, k: int, what: str) -> tuple[int, ...] | None:
        """Operand k as constant integers, None if it is absent."""
        value = self.input(k)
        if value is None:
            return None
        known = self.walk.constants.integers(value) or ()
        found = tuple(e.as_int() for e in known)
        exact = tuple(n for n in found if n is not None)
        empty = self.tensor(value).dims == (as_expr(0),)
        if len(exact) < len(found) or not (found or empty):
            raise self.unsupported(f"{what} must be constant, they are {value.annotation}")
        return exact

    # Emitting

    def emit(self, op: str, *args: Value | None, **attrs: Any) -> Value:
        """Call an operator of one result."""
        return self.walk.call(self, op, args, attrs)

    def emit_all(self, op: str, *args: Value | None, **attrs: Any) -> tuple[Value, ...]:
        """Call an operator of several results."""
        return self.walk.call_all(self, op, args, attrs)

    def array(self, data: Array) -> Constant:
        """A constant."""
        return self.walk.constant(self.proto.output[0] or self.op, np.asarray(data))

    def scalar(self, number: float, dtype: DType) -> Constant:
        """A constant of rank 0."""
        return self.array(np.array(number, dtype.numpy))

    def integers(self, values: Sequence[ExprLike], dtype: DType, rank: int = 1) -> Value:
        """A tensor of integers that the host knows."""
        known = tuple(as_expr(v) for v in values)
        return self.emit("integers", values=known, rank=rank, dtype=dtype)

    def reshape(self, value: Value, dims: Sequence[ExprLike]) -> Value:
        """The value under other dims of the same product, checked at run time where unproven."""
        wanted = tuple(as_expr(d) for d in dims)
        if self.dims(value) == wanted:
            return value
        old, new = self.count(value), product(wanted)
        if prove_eq(old, new) is False:
            raise self.bad(f"{value.annotation} has {old} elements, {shape_text(wanted)} has {new}")
        if prove_eq(old, new) is None:  # the check is a step of the value's way: it cannot be lost
            value = self.with_dims(self.reshape(value, (old,)), (new,))
        return self.emit("reshape", value, dims=wanted)

    def cast(self, value: Value, dtype: DType) -> Value:
        return value if self.dtype(value) == dtype else self.emit("cast", value, dtype=dtype)

    def transpose(self, value: Value, perm: Sequence[int]) -> Value:
        if tuple(perm) == tuple(range(self.rank(value))):
            return value
        return self.emit("transpose", value, perm=tuple(perm))

    def with_dims(self, value: Value, dims: Sequence[ExprLike]) -> Value:
        """The same value, asserted to have these dims; checked at run time where unproven."""
        old, new = self.dims(value), tuple(as_expr(d) for d in dims)
        if len(old) != len(new) or any(prove_eq(a, b) is False for a, b in zip(old, new)):  # noqa: B905
            raise self.bad(f"{value.name} has shape {shape_text(old)}, expected {shape_text(new)}")
        if all(prove_eq(a, b) is True for a, b in zip(old, new, strict=True)):
            return value
        return self.walk.match(self, value, Tensor(new, self.tensor(value).dtype))

    def recast(self, value: Value, *shapes: Sequence[Expr]) -> Value:
        """The value asserted to have each of these shapes, one after the other, proven or not."""
        for dims in shapes:
            value = self.walk.match(self, value, Tensor(tuple(dims), self.tensor(value).dtype))
        return value

    def with_dim(self, value: Value, axis: int, dim: ExprLike) -> Value:
        """The same, for one dim."""
        dims = list(self.dims(value))
        dims[axis] = as_expr(dim)
        return self.with_dims(value, dims)

    # Complaints, to raise

    def bad(self, what: str, hint: str = "") -> ShapeError:
        return ShapeError(f"{self.op}: {what}", node=self.proto.name, origin=self.origin, hint=hint)

    def unsupported(self, what: str, hint: str = "") -> UnsupportedError:
        return UnsupportedError(
            f"{self.op}: {what}", node=self.proto.name, origin=self.origin, hint=hint
        )


def shape_text(dims: Sequence[Expr]) -> str:
    """A shape in a message."""
    return f"[{', '.join(map(str, dims))}]"


def known_values(value: Value) -> tuple[Expr, ...] | None:
    """The integers of a value that is annotated with them."""
    return value.annotation.values if isinstance(value.annotation, IntTensor) else None


def _is_whole(dtype: DType | None) -> bool:
    return dtype is not None and (dtype.is_integer or dtype.kind == "bool")
