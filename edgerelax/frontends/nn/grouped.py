"""Weights of few bits with a scale, and perhaps an offset, for each group of a row.

    w[…, r, c] = scale[…, r, c] · value(code[…, r, c]) + offset[…, r, c]

The value of a code is code - centre, or what a table of integers has for it. A scale is the product
of planes [..., rows, groups], the widths of whose groups may differ (a scale of scales); so is an
offset. Nothing of it is made at import: a loop function computes elements, and the compiler merges
it into what reads them.
"""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from edgerelax.frontends.nn.module import Array, Stored
from edgerelax.ir.builder import Builder
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.dtypes import F32, I32, U8, DType, from_numpy
from edgerelax.ir.graph import Value
from edgerelax.ir.loop import LoopFunc, Stage, grid
from edgerelax.ir.scalar import Buffer, Scalar, cast, constant, op, select
from edgerelax.ir.scalar import Value as IndexValue
from edgerelax.sym import Expr, as_expr


@dataclass(frozen=True, eq=False)
class Grouped:
    """A tensor in groups along its last axis.

    `codes` are [..., columns] bytes, or bytes that hold two codes of 4 bits or four of 2 bits, the
    lowest bits being the earliest column. Where `table` has numbers (of i8, one for each of 16
    codes), they are what codes stand for; else code - centre is.
    """

    shape: tuple[int, ...]
    codes: Array
    scales: tuple[Array, ...]
    offsets: tuple[Array, ...] = ()
    centre: int = 0
    table: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        *lead, columns = self.shape
        if self.codes.shape not in {(*lead, columns // k) for k in (1, 2, 4) if columns % k == 0}:
            raise InputError(f"codes {list(self.codes.shape)} of a matrix {list(self.shape)}")
        for plane in (*self.scales, *self.offsets):
            if plane.shape[:-1] != tuple(lead) or columns % plane.shape[-1]:
                raise InputError(f"scales {list(plane.shape)} of a matrix {list(self.shape)}")
        if self.table and (len(self.table) != 16 or self.bits != 4):
            raise InputError(f"a table of {len(self.table)} numbers for codes of {self.bits} bits")

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return 8 * int(self.codes.shape[-1]) // self.shape[-1]

    @property
    def nbytes(self) -> int:
        """Bytes of all that is stored."""
        return sum(plane.nbytes for plane in self._planes().values())

    def reshape(self, *shape: int) -> "Grouped":
        """The same numbers with other leading axes, one of which may be -1."""

        def leading(plane: Array) -> Array:
            return plane.reshape(*shape[:-1], plane.shape[-1])

        scales, offsets = (tuple(map(leading, p)) for p in (self.scales, self.offsets))
        codes = leading(self.codes)
        whole = *codes.shape[:-1], shape[-1]
        return replace(self, shape=whole, codes=codes, scales=scales, offsets=offsets)

    def joined(self, others: Sequence["Stored | Array"]) -> "Grouped | None":
        """Its rows and then those of others, if all are stored in one form."""
        parts = [self, *(o for o in others if isinstance(o, Grouped))]
        if len(parts) <= len(others) or any(part._form() != self._form() for part in parts):
            return None
        planes = {
            name: np.concatenate([part._planes()[name] for part in parts])
            for name in self._planes()
        }
        return replace(
            self,
            shape=(sum(part.shape[0] for part in parts), *self.shape[1:]),
            codes=planes["codes"],
            scales=tuple(p for name, p in planes.items() if name.startswith("scales")),
            offsets=tuple(p for name, p in planes.items() if name.startswith("offsets")),
        )

    def _form(self) -> tuple[object, ...]:
        """What must be the same of two for their rows to be of one tensor."""
        planes = [(name, p.dtype, p.shape[1:]) for name, p in self._planes().items()]
        return self.shape[1:], self.centre, self.table, tuple(planes)

    def numbers(self) -> Array:
        """What it stands for, f32, computed as the loop function does."""
        shifts = np.arange(0, 8, self.bits, dtype=np.uint8)
        codes = self.codes
        if self.bits < 8:
            codes = (codes[..., None] >> shifts) & np.uint8((1 << self.bits) - 1)
        codes = codes.reshape(self.shape)
        values = np.array(self.table, np.int8)[codes] if self.table else codes
        out = (values.astype(np.int16) - self.centre).astype(np.float32)
        self._by_groups(out, self.scales, np.multiply)
        if self.offsets:
            self._by_groups(out, self.offsets, np.add)
        return out

    def _by_groups(self, out: Array, planes: Sequence[Array], change: np.ufunc) -> None:
        """Apply the product of planes to what lies in their groups."""
        groups = math.lcm(*(plane.shape[-1] for plane in planes))
        wide = [np.repeat(p.astype(np.float32), groups // p.shape[-1], axis=-1) for p in planes]
        factor = math.prod(wide[1:], start=wide[0])[..., None]
        parts = out.reshape(*factor.shape[:-1], self.shape[-1] // groups)
        change(parts, factor, out=parts)

    def emit(self, builder: Builder, name: str) -> Value:
        """The tensor as a value, f32[..., columns]."""
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
        *lead, column = (axis.expr for axis in grid(out))

        def product(names: Sequence[str]) -> Scalar:
            parts = [self._at(inputs[name], lead, column) for name in names]
            return math.prod(parts[1:], start=parts[0])

        body = cast(self._value(inputs["codes"], lead, column), F32)
        body = product([n for n in planes if n.startswith("scales")]) * body
        if self.offsets:
            body = body + product([n for n in planes if n.startswith("offsets")])
        return LoopFunc(
            self._loop_name(planes), tuple(inputs.values()), (out,), (Stage(out, grid(out), body),)
        )

    def _loop_name(self, planes: dict[str, Array]) -> str:
        """One for each form: sizes, dtypes, widths of groups, what codes stand for."""
        parts = [(name, plane.dtype.name, plane.shape) for name, plane in planes.items()]
        form = zlib.crc32(repr((parts, self.centre, self.table)).encode())
        return f"dequantise_{self.bits}_{'x'.join(map(str, self.shape))}_{form:08x}"

    def _at(self, plane: Buffer, lead: Sequence[Expr], column: Expr) -> Scalar:
        groups = plane.dims[-1].as_int()
        assert groups is not None
        return cast(plane[(*lead, column // (self.shape[-1] // groups))], F32)

    def _value(self, codes: Buffer, lead: Sequence[Expr], column: Expr) -> Scalar:
        """What the code of an element stands for."""
        code = self._code(codes, lead, column)
        if self.table:
            return _looked_up(self.table, code)
        return code - self.centre if self.centre else code

    def _code(self, codes: Buffer, lead: Sequence[Expr], column: Expr) -> Scalar:
        if self.bits == 8:
            return cast(codes[(*lead, column)], I32)
        each = 8 // self.bits
        byte = cast(codes[(*lead, column // each)], I32)
        shift = IndexValue(column % each * self.bits, I32)
        return op("bit_and", op("shr", byte, shift), (1 << self.bits) - 1)


def _buffer(name: str, dtype: DType, shape: Sequence[int]) -> Buffer:
    return Buffer(name, dtype, tuple(as_expr(n) for n in shape))


def _looked_up(table: Sequence[int], code: Scalar) -> Scalar:
    """A table's entry by arithmetic, which works on vectors: four bytes to a literal word."""
    raw = (np.array(table, np.int16) + 128).astype(np.uint8)
    words = [constant(int(w), I32) for w in raw.view("<i4")]
    low, high = (select(op("lt", code, c), a, b) for c, (a, b) in ((4, words[:2]), (12, words[2:])))
    word = select(op("lt", code, 8), low, high)
    shift = op("shl", op("bit_and", code, 3), 3)
    return op("bit_and", op("shr", word, shift), 255) - 128


def packed(codes: Array, bits: int) -> Array:
    """Codes of 2, 4 or 8 bits [..., columns], as many to a byte as it holds."""
    if bits == 8:
        return codes
    parts = [codes[..., k :: 8 // bits] << np.uint8(k * bits) for k in range(8 // bits)]
    return np.asarray(np.bitwise_or.reduce(parts), U8.numpy)


def halves(codes: Array) -> Array:
    """Codes of 4 bits [..., columns], two to a byte."""
    return packed(codes, 4)
