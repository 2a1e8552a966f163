"""Weights of few bits with a scale, and perhaps an offset, for each group of a row.

    w[r, c] = scale[r, c] · (code[r, c] - centre) + offset[r, c]

A scale is the product of planes [rows, groups], the widths of whose groups may differ (a scale of
scales); so is an offset. Nothing of it is made at import: a loop function computes elements, and
the compiler merges it into what reads them.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from edgerelax.frontends.nn.module import Array
from edgerelax.ir.builder import Builder
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I32, U8, DType, from_numpy
from edgerelax.ir.graph import Value
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.scalar import Buffer, Scalar, cast, op
from edgerelax.ir.scalar import Value as IndexValue
from edgerelax.sym import Expr, as_expr


@dataclass(frozen=True, eq=False)
class Grouped:
    """A matrix in groups. `codes` are [rows, columns] bytes, or two codes of 4 bits to a byte.

    Of two in a byte the lower half is the earlier column.
    """

    shape: tuple[int, int]
    codes: Array
    scales: tuple[Array, ...]
    offsets: tuple[Array, ...] = ()
    centre: int = 0

    def __post_init__(self) -> None:
        rows, columns = self.shape
        if self.codes.shape not in ((rows, columns), (rows, columns / 2)):
            raise InputError(f"codes {list(self.codes.shape)} of a matrix {list(self.shape)}")
        for plane in (*self.scales, *self.offsets):
            if plane.shape[0] != rows or columns % plane.shape[1]:
                raise InputError(f"scales {list(plane.shape)} of a matrix {list(self.shape)}")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 if self.codes.shape[1] == self.shape[1] else 4

    def emit(self, builder: Builder, name: str) -> Value:
        """The matrix as a value, f32[rows, columns]."""
        planes = self._planes()
        constants = [builder.constant(f"{name}.{part}", data) for part, data in planes.items()]
        return builder.call_tir(self._loop(planes), *constants, name=name)

    def _planes(self) -> dict[str, Array]:
        return {
            "codes": self.codes,
            **{f"scales{k}": plane for k, plane in enumerate(self.scales)},
            **{f"offsets{k}": plane for k, plane in enumerate(self.offsets)},
        }

    def _loop(self, planes: dict[str, Array]) -> LoopFunc:
        """The elements from the codes."""
        inputs = {n: _buffer(n, from_numpy(p.dtype), p.shape) for n, p in planes.items()}
        out = _buffer("out", F32, self.shape)
        row, column = (axis.expr for axis in grid(out))

        def product(names: Sequence[str]) -> Scalar:
            parts = [self._at(inputs[name], row, column) for name in names]
            return math.prod(parts[1:], start=parts[0])

        code = self._code(inputs["codes"], row, column)
        body = cast(code - self.centre if self.centre else code, F32)
        body = product([n for n in planes if n.startswith("scales")]) * body
        if self.offsets:
            body = body + product([n for n in planes if n.startswith("offsets")])
        sizes = "x".join(str(n) for n in self.shape)
        widths = "_".join(f"{p.dtype.name}x{self.shape[1] // p.shape[1]}" for p in planes.values())
        name = f"dequantise_{sizes}_{widths}_{self.centre}"
        return LoopFunc(name, tuple(inputs.values()), (out,), (Stage(out, grid(out), body),))

    def _at(self, plane: Buffer, row: Expr, column: Expr) -> Scalar:
        groups = plane.dims[1].as_int()
        assert groups is not None
        return cast(plane[row, column // (self.shape[1] // groups)], F32)

    def _code(self, codes: Buffer, row: Expr, column: Expr) -> Scalar:
        if self.bits == 8:
            return cast(codes[row, column], I32)
        byte = cast(codes[row, column // 2], I32)
        return op("bit_and", op("shr", byte, IndexValue(column % 2 * 4, I32)), 15)


def _buffer(name: str, dtype: DType, shape: Sequence[int]) -> Buffer:
    return Buffer(name, dtype, tuple(as_expr(n) for n in shape))


def halves(codes: Array) -> Array:
    """Codes of 4 bits [rows, columns], two to a byte."""
    low, high = codes[:, 0::2], codes[:, 1::2]
    return np.asarray(low | (high << 4), U8.numpy)
