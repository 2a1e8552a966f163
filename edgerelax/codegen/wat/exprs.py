"""Kernel expressions as WebAssembly text.

How values are held: bool, integers of up to 32 bits and 4-bit ones as i32 (sign- or zero-extended to
it), 64-bit integers as i64, f64 as f64, other floats as f32. Four lanes of 32 bits or less are a v128;
bool lanes are all ones or zeros. There are no vectors of 64-bit elements: they are taken lane by lane.
"""

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import I32, DType
from edgerelax.ir.kernel import (
    LOCAL,
    KCast,
    KConst,
    KExpr,
    KLane,
    KLoad,
    KOp,
    KScalar,
    KSelect,
    KVar,
    KVec,
    operands,
    with_operands,
)
from edgerelax.ir.scalar import PREDICATES

NARROW_FLOATS = frozenset(("f16", "bf16"))
IMPORTED = frozenset(
    "sin cos tan asin acos atan sinh cosh asinh acosh atanh log1p expm1 pow fmod".split()
)
OWN = frozenset("exp log tanh sigmoid erf".split())  # vector functions of the prelude
RELATIONS = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}


def wasm_type(dtype: DType, lanes: int = 1) -> str:
    """The type of a value of that dtype."""
    if lanes > 1:
        return "v128"
    if dtype.is_float:
        return "f64" if dtype.bits == 64 else "f32"
    return "i64" if dtype.bits == 64 else "i32"


@dataclass(frozen=True, slots=True)
class Exprs:
    """Writes expressions of one kernel. `locals` gives the local of a name; `relaxed` allows fused adds."""

    local: Callable[[KVar], str]
    dtypes: Mapping[str, DType]  # of storage buffers
    relaxed: bool = False

    def text(self, e: KExpr) -> str:
        """The expression, leaving one value."""
        if e.lanes > 1 and e.dtype.bits == 64:
            raise UnsupportedError(f"a vector of {e.dtype} cannot be held on the CPU")
        match e:
            case KConst():
                return const(e)
            case KVar():
                return "(i32.const 0)" if e == LOCAL else f"(local.get {self.local(e)})"
            case KScalar():
                return f"(local.get ${e.name})"
            case KLoad():
                return self._load(e)
            case KOp():
                return self._op(e)
            case KCast():
                return self._cast(e)
            case KSelect():
                return self._select(e)
            case KVec():
                return self._vector(e)
            case KLane():
                return self._lane(e)
        raise UnsupportedError(f"{type(e).__name__} has no form on the CPU")

    # Memory

    def address(self, buffer: str, index: KExpr, dtype: DType) -> tuple[str, int]:
        """Base address and constant offset of an element."""
        offset = 0
        if isinstance(index, KOp) and index.fn == "add" and isinstance(index.args[1], KConst):
            value = int(index.args[1].value)
            if value >= 0:
                index, offset = index.args[0], value * dtype.bytes
        if isinstance(index, KConst) and index.value >= 0:
            return f"(local.get ${buffer})", offset + int(index.value) * dtype.bytes
        at = self.text(index)
        shift = dtype.bytes.bit_length() - 1
        if shift:
            at = f"(i32.shl {at} (i32.const {shift}))"
        return f"(i32.add (local.get ${buffer}) {at})", offset

    def _load(self, e: KLoad) -> str:
        dtype = self.dtypes[e.buffer]
        if dtype.bits == 4:
            return self._load_nibble(e, dtype)
        base, offset = self.address(e.buffer, e.index, dtype)
        at = f"offset={offset} {base}" if offset else base
        if e.lanes > 1:
            return self._load_vector(e, dtype, at)
        if dtype.name == "f16":
            return f"(call $f16_to_f32 (i32.load16_u {at}))"
        if dtype.name == "bf16":
            return f"(f32.reinterpret_i32 (i32.shl (i32.load16_u {at}) (i32.const 16)))"
        if dtype.bits >= 32:
            return f"({wasm_type(dtype)}.load {at})"
        if dtype.is_float:
            raise no_form(dtype)
        sign = "s" if dtype.kind == "int" else "u"
        return f"(i32.load{dtype.bits}_{sign} {at})"

    def _load_nibble(self, e: KLoad, dtype: DType) -> str:
        """4-bit elements stand one to a byte: hosts unpack them."""
        base, offset = self.address(e.buffer, e.index, dtype)
        sign = "s" if dtype.kind == "int" else "u"
        if e.lanes > 1:
            return self.text(_by_lane(e))
        return f"(i32.load8_{sign} offset={offset} {base})"

    def _load_vector(self, e: KLoad, dtype: DType, at: str) -> str:
        if dtype.bits == 32:
            return f"(v128.load {at})"
        if dtype.is_float:
            return self.text(_by_lane(e))
        sign = "s" if dtype.kind == "int" else "u"
        if dtype.bits == 16:
            return f"(i32x4.extend_low_i16x8_{sign} (v128.load64_zero {at}))"
        wide = f"(i16x8.extend_low_i8x16_{sign} (v128.load32_zero {at}))"
        wide = f"(i32x4.extend_low_i16x8_{sign} {wide})"
        return f"(i32x4.ne {wide} {ZEROS})" if dtype.kind == "bool" else wide

    def store(self, buffer: str, index: KExpr, value: KExpr) -> list[str]:
        """Statements that store a value, all lanes of it."""
        dtype = self.dtypes[buffer]
        if value.lanes > 1 and dtype.bits != 32:
            return self._store_lanes(buffer, index, value, dtype)
        base, offset = self.address(buffer, index, dtype)
        at = f"offset={offset} {base}" if offset else base
        text = self.text(value)
        if value.lanes > 1:
            return [f"(v128.store {at} {text})"]
        if dtype.name in NARROW_FLOATS:
            return [f"(i32.store16 {at} (call $f32_to_{dtype.name} {text}))"]
        if dtype.bits >= 32:
            return [f"({wasm_type(dtype)}.store {at} {text})"]
        if dtype.is_float:
            raise no_form(dtype)
        return [f"(i32.store{8 if dtype.bits <= 8 else 16} {at} {text})"]

    def _store_lanes(self, buffer: str, index: KExpr, value: KExpr, dtype: DType) -> list[str]:
        out = []
        for k in range(value.lanes):
            at = index if k == 0 else KOp(I32, 1, "add", (index, KConst(I32, 1, k)))
            out += self.store(buffer, at, lane(value, k))
        return out

    # Operations

    def _op(self, e: KOp) -> str:
        held = e.args[0].dtype
        if e.lanes > 1:
            return self._vector_op(e, held)
        args = [self.text(a) for a in e.args]
        if held.is_float:
            return _float_op(e.fn, args, "f64" if held.bits == 64 else "f32")
        if held.kind == "bool":
            return _bool_op(e.fn, args)
        text = _int_op(e.fn, args, held)
        return text if e.fn in PREDICATES else wrap(text, held)

    def _vector_op(self, e: KOp, held: DType) -> str:
        if held.bits == 64:
            return self.text(_by_lane(e))
        args = [self.text(a) for a in e.args]
        if held.is_float:
            return self._float_vector(e.fn, args)
        if held.kind == "bool":
            return _bool_vector(e.fn, args)
        text = _int_vector(e.fn, args, held)
        if text is None or (held.bits < 32 and e.fn not in PREDICATES):
            return self.text(_by_lane(e))
        return text

    def _float_vector(self, fn: str, args: list[str]) -> str:
        if fn == "fma":
            if self.relaxed:
                return f"(f32x4.relaxed_madd {' '.join(args)})"
            return f"(f32x4.add (f32x4.mul {args[0]} {args[1]}) {args[2]})"
        simple = {"round": "nearest"}.get(fn, fn)
        if simple in _FLOAT_SIMPLE:
            return f"(f32x4.{simple} {' '.join(args)})"
        if fn in OWN:
            return f"(call ${fn}_v {args[0]})"
        if fn in IMPORTED:
            return f"(call $lanes_er_{fn}f {' '.join(args)})"
        if fn in ("sign", "mod"):
            return _lanes_of_call(f"{fn}_f32", args)
        if fn == "isnan":
            return f"(v128.not (f32x4.eq {args[0]} {args[0]}))"
        if fn == "isinf":
            return f"(f32x4.eq (f32x4.abs {args[0]}) (v128.const f32x4 inf inf inf inf))"
        raise UnsupportedError(f"{fn} of floats has no form on the CPU")

    def _cast(self, e: KCast) -> str:
        source, target = e.arg.dtype, e.dtype
        if e.lanes > 1:
            text = self._cast_vector(self.text(e.arg), source, target) if max(
                source.bits, target.bits
            ) <= 32 else None
            return self.text(_by_lane(e)) if text is None else text
        return cast(self.text(e.arg), source, target)

    def _cast_vector(self, x: str, source: DType, target: DType) -> str | None:
        if target.kind == "bool":
            if source.kind == "bool":
                return x
            zero = "f32x4" if source.is_float else "i32x4"
            return f"({zero}.ne {x} {ZEROS})"
        if source.kind == "bool":
            one = "v128.const f32x4 1 1 1 1" if target.is_float else "v128.const i32x4 1 1 1 1"
            return f"(v128.and {x} ({one}))"
        if source.is_float and target.is_float:
            return None if target.name in NARROW_FLOATS else x
        if source.is_float:
            sign = "s" if target.kind == "int" else "u"
            return None if target.bits < 32 else f"(i32x4.trunc_sat_f32x4_{sign} {x})"
        if target.is_float:
            sign = "s" if source.kind == "int" else "u"
            return None if target.name in NARROW_FLOATS else f"(f32x4.convert_i32x4_{sign} {x})"
        return None if target.bits < 32 else x

    def _select(self, e: KSelect) -> str:
        then, other = self.text(e.then), self.text(e.other)
        cond = self.text(e.cond)
        if e.lanes == 1:
            return f"(select {then} {other} {cond})"
        if e.cond.lanes == 1:
            return f"(select (result v128) {then} {other} {cond})"
        return f"(v128.bitselect {then} {other} {cond})"

    def _vector(self, e: KVec) -> str:
        kind = "f32x4" if e.dtype.is_float else "i32x4"
        first = e.parts[0]
        if len(e.parts) == 1 and isinstance(first, KLoad) and first.buffer in self.dtypes:
            dtype = self.dtypes[first.buffer]
            if dtype.bits == 32:
                base, offset = self.address(first.buffer, first.index, dtype)
                return f"(v128.load32_splat offset={offset} {base})"
        parts = [self._lane_value(p) for p in e.parts]
        text = f"({kind}.splat {parts[0]})"
        for k, part in enumerate(parts[1:], 1):
            text = f"({kind}.replace_lane {k} {text} {part})"
        return text

    def _lane_value(self, part: KExpr) -> str:
        """A scalar as it stands in a lane."""
        text = self.text(part)
        return f"(i32.sub (i32.const 0) {text})" if part.dtype.kind == "bool" else text

    def _lane(self, e: KLane) -> str:
        vector = e.vector
        if isinstance(vector, KVec) or vector.dtype.bits == 64:
            return self.text(lane(vector, e.lane))
        kind = "f32x4" if e.dtype.is_float else "i32x4"
        text = f"({kind}.extract_lane {e.lane} {self.text(vector)})"
        return f"(i32.and {text} (i32.const 1))" if e.dtype.kind == "bool" else text


ZEROS = "(v128.const i32x4 0 0 0 0)"
_FLOAT_SIMPLE = frozenset(
    "add sub mul div min max neg abs sqrt floor ceil trunc nearest eq ne lt le gt ge".split()
)


def const(e: KConst) -> str:
    """A literal."""
    if e.lanes > 1:
        lane_text = _number(e.dtype, e.value, in_lane=True)
        kind = "f32x4" if e.dtype.is_float else "i32x4"
        return f"(v128.const {kind} {' '.join([lane_text] * e.lanes)})"
    return f"({wasm_type(e.dtype)}.const {_number(e.dtype, e.value)})"


def _number(dtype: DType, value: int | float | bool, in_lane: bool = False) -> str:
    if dtype.kind == "bool":
        return str((-1 if in_lane else 1) if value else 0)
    if not dtype.is_float:
        return str(int(value))
    number = float(value)
    if math.isnan(number):
        return "nan"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    if dtype.bits != 64:
        number = struct.unpack("f", struct.pack("f", number))[0] if abs(number) < 3.5e38 else number
    return number.hex()


def lane(e: KExpr, k: int) -> KExpr:
    """Lane k of a vector, taken inside where that is possible."""
    match e:
        case KVec():
            return e.parts[k] if len(e.parts) > 1 else e.parts[0]
        case KConst():
            return replace(e, lanes=1)
        case KVar():
            return KLane(e.dtype, 1, e, k)
        case KLoad():
            index = e.index if k == 0 else KOp(I32, 1, "add", (e.index, KConst(I32, 1, k)))
            return replace(e, lanes=1, index=index)
    if e.lanes == 1:
        return e
    inside = tuple(a if a.lanes == 1 else lane(a, k) for a in operands(e))
    return replace(with_operands(e, inside), lanes=1)


def _by_lane(e: KExpr) -> KExpr:
    """The same vector put together from scalars."""
    return KVec(e.dtype, e.lanes, tuple(lane(e, k) for k in range(e.lanes)))


def _lanes_of_call(function: str, args: list[str]) -> str:
    text = ZEROS
    for k in range(4):
        lanes = " ".join(f"(f32x4.extract_lane {k} {a})" for a in args)
        text = f"(f32x4.replace_lane {k} {text} (call ${function} {lanes}))"
    return text


def _float_op(fn: str, args: list[str], t: str) -> str:
    both = " ".join(args)
    if fn == "fma":
        return f"({t}.add ({t}.mul {args[0]} {args[1]}) {args[2]})"
    simple = {"round": "nearest"}.get(fn, fn)
    if simple in _FLOAT_SIMPLE:
        return f"({t}.{simple} {both})"
    if fn == "isnan":
        return f"({t}.ne {args[0]} {args[0]})"
    if fn == "isinf":
        return f"({t}.eq ({t}.abs {args[0]}) ({t}.const inf))"
    if fn in ("sign", "mod"):
        return f"(call ${fn}_{t} {both})"
    if fn in OWN and t == "f32":
        return f"(call ${fn}_f32 {both})"
    if fn == "sigmoid":
        return f"(call $sigmoid_f64 {both})"
    if fn in IMPORTED or fn in OWN:
        return f"(call $er_{fn}{'f' if t == 'f32' else ''} {both})"
    raise UnsupportedError(f"{fn} of floats has no form on the CPU")


def _bool_op(fn: str, args: list[str]) -> str:
    names = {"and": "and", "min": "and", "mul": "and", "or": "or", "max": "or", "add": "or"}
    names |= {"xor": "xor", "ne": "ne", "eq": "eq", "lt": "lt_u", "le": "le_u", "gt": "gt_u"}
    if fn in ("not", "bit_not"):
        return f"(i32.eqz {args[0]})"
    if fn == "ge":
        return f"(i32.ge_u {' '.join(args)})"
    if fn not in names:
        raise UnsupportedError(f"{fn} of bool has no form on the CPU")
    return f"(i32.{names[fn]} {' '.join(args)})"


def _bool_vector(fn: str, args: list[str]) -> str:
    names = {"and": "and", "min": "and", "mul": "and", "or": "or", "max": "or", "add": "or"}
    if fn in ("not", "bit_not"):
        return f"(v128.not {args[0]})"
    if fn in ("xor", "ne"):
        return f"(v128.xor {' '.join(args)})"
    if fn == "eq":
        return f"(v128.not (v128.xor {' '.join(args)}))"
    if fn not in names:
        raise UnsupportedError(f"{fn} of bool vectors has no form on the CPU")
    return f"(v128.{names[fn]} {' '.join(args)})"


def _int_op(fn: str, args: list[str], dtype: DType) -> str:
    t, sign = wasm_type(dtype), "s" if dtype.kind == "int" else "u"
    both = " ".join(args)
    if fn in ("add", "sub", "mul"):
        return f"({t}.{fn} {both})"
    if fn == "fma":
        return f"({t}.add ({t}.mul {args[0]} {args[1]}) {args[2]})"
    if fn in RELATIONS:
        return f"({t}.{fn}{'' if fn in ('eq', 'ne') else f'_{sign}'} {both})"
    if fn in ("bit_and", "bit_or", "bit_xor"):
        return f"({t}.{fn.removeprefix('bit_')} {both})"
    if fn == "bit_not":
        return f"({t}.xor {args[0]} ({t}.const -1))"
    if fn == "neg":
        return f"({t}.sub ({t}.const 0) {args[0]})"
    if fn in ("index_div", "index_mod"):
        return f"(i32.{'div' if fn == 'index_div' else 'rem'}_u {both})"
    if fn == "mod" and sign == "u":
        fn = "fmod"
    if fn in ("div", "mod", "fmod", "min", "max", "sign", "pow"):
        return f"(call ${fn}_{sign}_{t} {both})"
    if fn == "abs":
        return args[0] if sign == "u" else f"(call $abs_{t} {both})"
    if fn in ("shl", "shr"):
        op = "shl" if fn == "shl" else f"shr_{sign}"
        wide = f"({t}.ge_u {args[1]} ({t}.const {dtype.bits}))"
        return f"(select ({t}.const 0) ({t}.{op} {both}) {wide})"
    if fn in ("floor", "ceil", "round", "trunc"):
        return args[0]
    raise UnsupportedError(f"{fn} of {dtype} has no form on the CPU")


def _int_vector(fn: str, args: list[str], dtype: DType) -> str | None:
    """32-bit lanes; None where it is done lane by lane."""
    sign = "s" if dtype.kind == "int" else "u"
    both = " ".join(args)
    if fn in ("add", "sub", "mul", "neg", "eq", "ne"):
        return f"(i32x4.{fn} {both})"
    if fn in ("lt", "le", "gt", "ge", "min", "max"):
        return f"(i32x4.{fn}_{sign} {both})"
    if fn == "abs":
        return args[0] if sign == "u" else f"(i32x4.abs {both})"
    if fn in ("bit_and", "bit_or", "bit_xor"):
        return f"(v128.{fn.removeprefix('bit_')} {both})"
    if fn == "bit_not":
        return f"(v128.not {args[0]})"
    return None


def wrap(text: str, dtype: DType) -> str:
    """Bring an i32 back into the range of a narrower integer."""
    if dtype.bits >= 32 or not dtype.is_integer:
        return text
    if dtype.kind == "uint":
        return f"(i32.and {text} (i32.const {(1 << dtype.bits) - 1}))"
    if dtype.bits == 4:
        return f"(i32.shr_s (i32.shl {text} (i32.const 28)) (i32.const 28))"
    return f"(i32.extend{dtype.bits}_s {text})"


def cast(x: str, source: DType, target: DType) -> str:
    """A conversion of one value."""
    have, want = wasm_type(source), wasm_type(target)
    if target.kind == "bool":
        return x if source.kind == "bool" else f"({have}.ne {x} ({have}.const 0))"
    if source.is_float and target.is_float:
        if have != want:
            x = f"(f64.promote_f32 {x})" if want == "f64" else f"(f32.demote_f64 {x})"
        return _round_narrow(x, target) if source != target else x
    if source.is_float:
        return _saturate(x, have, want, target)
    if target.is_float:
        sign = "u" if source.kind in ("uint", "bool") else "s"
        return _round_narrow(f"({want}.convert_{have}_{sign} {x})", target)
    if have == want:
        return wrap(x, target)
    if want == "i32":
        return wrap(f"(i32.wrap_i64 {x})", target)
    return f"(i64.extend_i32_{'s' if source.kind == 'int' else 'u'} {x})"


def _round_narrow(x: str, target: DType) -> str:
    """16-bit floats are computed in f32 and rounded where they are cast."""
    if target.name == "f16":
        return f"(call $f16_to_f32 (call $f32_to_f16 {x}))"
    if target.name == "bf16":
        bits = f"(i32.shl (call $f32_to_bf16 {x}) (i32.const 16))"
        return f"(f32.reinterpret_i32 {bits})"
    if target.bits < 16:
        raise no_form(target)
    return x


def _saturate(x: str, have: str, want: str, target: DType) -> str:
    sign = "s" if target.kind == "int" else "u"
    whole = f"({want}.trunc_sat_{have}_{sign} {x})"
    if target.bits >= 32:
        return whole
    low, high = target.int_range
    clamped = f"(call $min_{sign}_i32 {whole} (i32.const {high}))"
    return clamped if sign == "u" else f"(call $max_s_i32 {clamped} (i32.const {low}))"


def no_form(dtype: DType) -> UnsupportedError:
    """What to say of an element type that CPU kernels cannot hold."""
    return UnsupportedError(
        f"{dtype} is not computed on the CPU yet", hint="cast it to f16 or f32 in the model"
    )


