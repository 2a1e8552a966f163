"""The library functions that a program calls: a row for each distinct way of calling one.

A host learns from the row what the operands are; their dims are the call's scalars, operand after
operand. On the CPU a function stands in the table of kernels, after the kernels, and is launched
like one, over a grid of 1 (of 0 where all results are empty).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import DType
from edgerelax.ir.graph import CallLibrary, Value
from edgerelax.ir.types import as_tensor
from edgerelax.sym import Expr, as_expr, minimum, product
from edgerelax.vm import isa

Operand = tuple[DType, int]  # dtype, rank


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """How programs call a function: on which device, on what, with which attributes."""

    function: str
    device: str
    inputs: tuple[Operand, ...]
    outputs: tuple[Operand, ...]
    attrs: tuple[tuple[str, Any], ...]

    @property
    def operands(self) -> tuple[Operand, ...]:
        return (*self.inputs, *self.outputs)


@dataclass(slots=True)
class Libraries:
    """The rows of a program, numbered for each device."""

    of: dict[str, list[LibraryCall]] = field(default_factory=lambda: {"gpu": [], "cpu": []})

    def number(self, call: CallLibrary, device: str, results: Sequence[Value]) -> int:
        """The row's number on its device; it is added if it is new.

        Raises UnsupportedError for more operands or dims than a command can hold.
        """
        row = LibraryCall(
            call.func,
            device,
            tuple(map(_operand, call.args)),
            tuple(map(_operand, results)),
            tuple(sorted(call.attrs.items())),
        )
        rows = self.of[device]
        if row not in rows:
            dims = sum(rank for _, rank in row.operands)
            if len(row.operands) > isa.MAX_BUFFERS or dims >= isa.MAX_SCALARS:
                raise UnsupportedError(
                    f"library {call.func}: {len(row.operands)} operands with {dims} dims",
                    hint=f"at most {isa.MAX_BUFFERS} operands and {isa.MAX_SCALARS - 1} dims",
                )
            rows.append(row)
        return rows.index(row)


def grid_of(results: Sequence[Value]) -> Expr:
    """1, or 0 where there is nothing to compute."""
    elements = sum((product(dims_of(v)) for v in results), as_expr(0))
    return minimum(elements, 1)


def dims_of(value: Value) -> tuple[Expr, ...]:
    """The dims of a tensor; they are known by now."""
    tensor = as_tensor(value.annotation)
    assert tensor is not None and tensor.dims is not None
    return tensor.dims


def _operand(value: Value) -> Operand:
    tensor = as_tensor(value.annotation)
    assert tensor is not None and tensor.dtype is not None
    return tensor.dtype, len(dims_of(value))
