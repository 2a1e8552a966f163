"""Pieces of WAT: value types, constants, and the frame of locals of one function.

Expressions are folded text. Scalars of up to 32 bits and bools are i32 (narrow integers kept in
their range), all floats but f64 are f32, four lanes are a v128 of i32 or f32, for bools a mask.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import DType

_FOREIGN = re.compile(r"[^A-Za-z0-9_.]")  # what we let stand in no identifier


def scalar_type(dtype: DType) -> str:
    """The wasm type of a scalar."""
    if dtype.kind == "string":
        raise UnsupportedError("strings in a kernel")
    if dtype.is_float:
        return "f64" if dtype.bits == 64 else "f32"
    return "i64" if dtype.bits == 64 else "i32"


def value_type(dtype: DType, lanes: int) -> str:
    """The wasm type of a value."""
    if lanes == 1:
        return scalar_type(dtype)
    if dtype.bits == 64 or lanes != 4:
        raise UnsupportedError(f"{lanes} lanes of {dtype} in a CPU kernel", hint="use scalars")
    return "v128"


def shape(dtype: DType) -> str:
    """The interpretation of four lanes."""
    return f"{scalar_type(dtype)}x4"


def constant(value: int | float | bool, dtype: DType, lanes: int) -> str:
    """A literal in every lane."""
    kind = scalar_type(dtype)
    held = np.asarray(value).astype(dtype.numpy).item() if dtype.is_float else int(value)
    if lanes == 1:
        return f"({kind}.const {_number(held)})"
    value_type(dtype, lanes)
    text = _number(-held if dtype.kind == "bool" else held)
    return f"(v128.const {shape(dtype)} {' '.join([text] * 4)})"


def shuffled(sources: Sequence[tuple[str, int]]) -> str:
    """One lane each of four vectors. The rows of a transposed block share what makes its halves."""
    halves: list[str] = []
    lanes: list[int] = []
    for (a, i), (b, j) in (sources[:2], sources[2:]):
        low = i // 2 * 2
        interleaved = (low, low + 4, low + 1, low + 5) if i == j else (i, j + 4, i, j + 4)
        at = len(lanes) * 2 + (i % 2 * 2 if i == j else 0)
        halves.append(_shuffle(a, b, interleaved))
        lanes += (at, at + 1)
    return _shuffle(halves[0], halves[1], lanes)


def _shuffle(a: str, b: str, lanes: Sequence[int]) -> str:
    """Lanes of two vectors, those of the second counted from 4."""
    places = " ".join(str(4 * lane + k) for lane in lanes for k in range(4))
    return f"(i8x16.shuffle {places} {a} {b})"


def _number(value: int | float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isnan(value):
        return "nan"
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    return repr(value)


def is_cheap(code: str) -> bool:
    """Whether evaluating it twice costs nothing."""
    return code.startswith(("(local.get", "(i32.const", "(i64.const", "(f32.const", "(f64.const"))


def _identifier(name: str) -> str:
    return "$" + _FOREIGN.sub(lambda c: f"%{ord(c.group()):x}", name)


@dataclass(slots=True)
class Frame:
    """The locals of a function. A name has one local per type, whatever its scopes."""

    types: dict[str, str] = field(default_factory=dict)
    temps: int = 0

    def has(self, name: str) -> bool:
        return _identifier(name) in self.types

    def local(self, name: str, kind: str) -> str:
        """The local of a name."""
        identifier = _identifier(name)
        while self.types.setdefault(identifier, kind) != kind:
            identifier += ":" + kind
        return identifier

    def temp(self, kind: str) -> str:
        self.temps += 1
        return self.local(f"t{self.temps}", kind)

    def twice(self, code: str, kind: str) -> tuple[str, str]:
        """The code to use first, and the code for each later use of its value."""
        if is_cheap(code):
            return code, code
        name = self.temp(kind)
        return f"(local.tee {name} {code})", f"(local.get {name})"

    def declarations(self) -> str:
        return " ".join(f"(local {name} {kind})" for name, kind in self.types.items())
