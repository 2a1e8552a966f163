"""How wasm computes each function of KERNEL_FUNCTIONS and each cast, on scalars and on lanes."""

from collections.abc import Callable

from edgerelax.codegen.wasm_text import Frame, constant, scalar_type, shape, value_type
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import F16, F32, F64, I32, DType
from edgerelax.ir.kernel import KConst, KExpr, KVar

_FLOAT_NATIVE = {
    "add": "add", "sub": "sub", "mul": "mul", "div": "div", "min": "min", "max": "max",
    "neg": "neg", "abs": "abs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil",
    "trunc": "trunc", "round": "nearest",
}  # fmt: skip
_INT_NATIVE = {
    "add": "add", "sub": "sub", "mul": "mul", "bit_and": "and", "bit_or": "or", "bit_xor": "xor",
}  # fmt: skip
_COMPARE = {"eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge"}
_BOOL = {"and": "and", "min": "and", "or": "or", "max": "or", "xor": "xor", "ne": "xor"}

# Computed here for four lanes of f32, and for a scalar as one lane.
_VECTOR_MATH = frozenset(("exp", "log", "tanh", "erf", "sigmoid", "sign"))
# Imported from the VM for f32, and called lane by lane.
_LIBRARY = frozenset(
    (
        "log1p", "expm1", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh",
        "atanh", "pow", "fmod",
    )
)  # fmt: skip
_LIBRARY_F64 = _LIBRARY | {"exp", "log", "tanh", "erf"}
_PRELUDE_INT = frozenset(("div", "mod", "fmod", "pow"))
_PACKED = frozenset(("dot_pairs", "dot_quads", "widen_pairs"))
_LOW_HALVES = "0 1 4 5 8 9 12 13 16 16 16 16 16 16 16 16"

# Marks, as comments, products that `fused` may join to their sums.
_PRODUCT, _END = "(f32x4.add (f32x4.mul (;+;)", " (;+;))"

_UNKNOWN = KVar(I32, 1, "")  # an operand that is no constant

# Functions after which a narrow integer must be wrapped.
_OVERFLOWS = frozenset(("add", "sub", "mul", "div", "pow", "neg", "abs", "shl", "bit_not"))


def fused(text: str) -> str:
    """A module's text with products fused with sums where lanes allow it: relaxed SIMD."""
    return text.replace(_PRODUCT, "(f32x4.relaxed_madd").replace(_END, "")


class Functions:
    """Writes operations into one frame."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def apply(self, fn: str, operands: tuple[KExpr, ...], args: list[str]) -> str:
        """The code of a function on operands whose codes are `args`."""
        dtype, lanes = operands[0].dtype, operands[0].lanes
        value_type(dtype, lanes)
        if dtype.kind == "bool":
            return self._bool(fn, args, lanes)
        if dtype.is_float:
            return self._float(fn, operands, args, dtype, lanes)
        code = self._int(fn, operands, args, dtype, lanes)
        narrow = dtype.bits < 32 and fn in _OVERFLOWS
        return self.wrap(code, dtype, lanes) if narrow else code

    # Families

    def _bool(self, fn: str, args: list[str], lanes: int) -> str:
        if fn in _BOOL:
            kind = "i32" if lanes == 1 else "v128"
            return f"({kind}.{_BOOL[fn]} {args[0]} {args[1]})"
        if fn == "not":
            return f"(i32.eqz {args[0]})" if lanes == 1 else f"(v128.not {args[0]})"
        if fn == "eq":
            prefix = "i32" if lanes == 1 else "i32x4"
            return f"({prefix}.eq {args[0]} {args[1]})"
        raise UnsupportedError(f"{fn} of bool in a CPU kernel")

    def _float(
        self, fn: str, operands: tuple[KExpr, ...], args: list[str], dtype: DType, lanes: int
    ) -> str:
        prefix = scalar_type(dtype) if lanes == 1 else shape(dtype)
        both = " ".join(args)
        if fn in _FLOAT_NATIVE:
            return f"({prefix}.{_FLOAT_NATIVE[fn]} {both})"
        if fn in _COMPARE:
            return f"({prefix}.{fn} {both})"
        if fn == "fma":
            return self.fma(args, dtype, lanes)
        if fn in ("isnan", "isinf"):
            return self._classify(fn, args[0], dtype, lanes)
        if fn == "pow" and isinstance(operands[1], KConst):
            special = self._power(args[0], float(operands[1].value), dtype, lanes)
            if special is not None:
                return special
        if dtype == F64:
            return self._f64(fn, both)
        if fn in _VECTOR_MATH:
            return self.one_lane(f"er_{fn}_v4", args, lanes)
        if fn in ("mod", "acosh"):
            return self.by_lane(f"er_{fn}_f32", args, F32, F32, lanes)
        if fn in _LIBRARY:
            return self.by_lane(f"er_{fn}f", args, F32, F32, lanes)
        raise UnsupportedError(f"{fn} of {dtype} in a CPU kernel")

    def _f64(self, fn: str, args: str) -> str:
        if fn in ("sign", "sigmoid", "mod", "acosh"):
            return f"(call $er_{fn}_f64 {args})"
        if fn in _LIBRARY_F64:
            return f"(call $er_{fn} {args})"
        raise UnsupportedError(f"{fn} of f64 in a CPU kernel")

    def fma(self, args: list[str], dtype: DType, lanes: int) -> str:
        """a * b + c; on lanes marked for `fused`."""
        a, b, c = args
        if lanes == 4:
            return f"{_PRODUCT} {a} {b}{_END} {c})"
        prefix = scalar_type(dtype)
        return f"({prefix}.add ({prefix}.mul {a} {b}) {c})"

    def _classify(self, fn: str, code: str, dtype: DType, lanes: int) -> str:
        prefix = scalar_type(dtype) if lanes == 1 else shape(dtype)
        if fn == "isinf":
            infinity = constant(float("inf"), F64 if dtype == F64 else F32, lanes)
            return f"({prefix}.eq ({prefix}.abs {code}) {infinity})"
        first, again = self.frame.twice(code, value_type(dtype, lanes))
        return f"({prefix}.ne {first} {again})"

    def _power(self, code: str, exponent: float, dtype: DType, lanes: int) -> str | None:
        """Constant exponents that need no general power."""
        prefix = scalar_type(dtype) if lanes == 1 else shape(dtype)
        if exponent == 1.0:
            return code
        if exponent == -1.0:
            return f"({prefix}.div {constant(1.0, dtype, lanes)} {code})"
        if exponent not in (2.0, 3.0):
            return None
        first, again = self.frame.twice(code, value_type(dtype, lanes))
        square = f"({prefix}.mul {first} {again})"
        return square if exponent == 2.0 else f"({prefix}.mul {square} {again})"

    def _int(
        self, fn: str, operands: tuple[KExpr, ...], args: list[str], dtype: DType, lanes: int
    ) -> str:
        scalar = scalar_type(dtype)
        prefix = scalar if lanes == 1 else shape(dtype)
        sign = "s" if dtype.kind == "int" else "u"
        if fn in _INT_NATIVE:
            bitwise = lanes == 4 and fn.startswith("bit_")
            return f"({'v128' if bitwise else prefix}.{_INT_NATIVE[fn]} {args[0]} {args[1]})"
        if fn in _COMPARE:
            suffix = "" if fn in ("eq", "ne") else f"_{sign}"
            return f"({prefix}.{fn}{suffix} {args[0]} {args[1]})"
        if fn in ("min", "max"):
            return self._extreme(fn, args, dtype, lanes)
        if fn == "neg":
            return f"({prefix}.sub {constant(0, dtype, lanes)} {args[0]})"
        if fn == "bit_not":
            if lanes == 4:
                return f"(v128.not {args[0]})"
            return f"({prefix}.xor {args[0]} ({scalar}.const -1))"
        if fn in ("abs", "sign"):
            return self._magnitude(fn, args[0], dtype, lanes)
        if fn in ("shl", "shr"):
            return self._shift(fn, operands[1], args, dtype, lanes)
        if fn in ("index_div", "index_mod"):
            return self._index_division(fn, operands[1], args, lanes)
        if fn in _PRELUDE_INT:
            return self._division(fn, operands[1], args, dtype, lanes)
        if fn == "fma":
            return f"({prefix}.add ({prefix}.mul {args[0]} {args[1]}) {args[2]})"
        if fn in _PACKED and dtype == I32:
            return self._packed(fn, args, lanes)
        raise UnsupportedError(f"{fn} of {dtype} in a CPU kernel")

    def _packed(self, fn: str, args: list[str], lanes: int) -> str:
        """Functions of several narrow numbers in each i32."""
        if fn == "dot_quads" or (lanes == 1 and fn == "widen_pairs"):
            return self.by_lane(f"er_i32_{fn}", args, I32, I32, lanes)
        if fn == "widen_pairs":
            low = f"(i8x16.swizzle {args[0]} (v128.const i8x16 {_LOW_HALVES}))"
            return f"(i16x8.extend_low_i8x16_s {low})"
        if lanes == 4:
            return f"(i32x4.dot_i16x8_s {args[0]} {args[1]})"
        a, b = (f"(i32x4.splat {code})" for code in args)
        return f"(i32x4.extract_lane 0 (i32x4.dot_i16x8_s {a} {b}))"

    def _extreme(self, fn: str, args: list[str], dtype: DType, lanes: int) -> str:
        sign = "s" if dtype.kind == "int" else "u"
        if lanes == 4:
            return f"(i32x4.{fn}_{sign} {args[0]} {args[1]})"
        scalar = scalar_type(dtype)
        a, a_again = self.frame.twice(args[0], scalar)
        b, b_again = self.frame.twice(args[1], scalar)
        compare = "lt" if fn == "min" else "gt"
        return f"(select {a} {b} ({scalar}.{compare}_{sign} {a_again} {b_again}))"

    def _magnitude(self, fn: str, code: str, dtype: DType, lanes: int) -> str:
        scalar = scalar_type(dtype)
        if fn == "abs" and dtype.kind == "uint":
            return code
        if fn == "abs" and lanes == 4:
            return f"(i32x4.abs {code})"
        zero = constant(0, dtype, lanes)
        first, again = self.frame.twice(code, value_type(dtype, lanes))
        if fn == "abs":
            negative = f"({scalar}.sub {zero} {first})"
            return f"(select {negative} {again} ({scalar}.lt_s {again} {zero}))"
        if lanes == 4:
            # a mask is -1, so that (x < 0) - (x > 0) is the sign
            if dtype.kind == "uint":
                return f"(i32x4.sub {zero} (i32x4.ne {code} {zero}))"
            return f"(i32x4.sub (i32x4.lt_s {first} {zero}) (i32x4.gt_s {again} {zero}))"
        if dtype.kind == "uint":
            return _widen(f"({scalar}.ne {code} {zero})", scalar)
        difference = f"(i32.sub ({scalar}.gt_s {first} {zero}) ({scalar}.lt_s {again} {zero}))"
        return difference if scalar == "i32" else f"(i64.extend_i32_s {difference})"

    def _shift(self, fn: str, count: KExpr, args: list[str], dtype: DType, lanes: int) -> str:
        """A count of at least the width, which is a byte or more, gives 0."""
        width = 8 * dtype.bytes
        scalar = scalar_type(dtype)
        sign = "s" if dtype.kind == "int" else "u"
        name = "shl" if fn == "shl" else f"shr_{sign}"
        if isinstance(count, KConst) and 0 <= int(count.value) < width:
            prefix, kind = (scalar, scalar) if lanes == 1 else ("i32x4", "i32")
            return f"({prefix}.{name} {args[0]} ({kind}.const {int(count.value)}))"
        if lanes == 4:
            return self.by_lane_code(
                args, I32, I32, lambda lane: self._shift(fn, _UNKNOWN, lane, dtype, 1)
            )
        b, again = self.frame.twice(args[1], scalar)
        enough = f"({scalar}.lt_u {again} ({scalar}.const {width}))"
        return f"(select ({scalar}.{name} {args[0]} {b}) ({scalar}.const 0) {enough})"

    def _index_division(self, fn: str, divisor: KExpr, args: list[str], lanes: int) -> str:
        if lanes == 4:
            return self.by_lane_code(
                args, I32, I32, lambda lane: self._index_division(fn, _UNKNOWN, lane, 1)
            )
        if isinstance(divisor, KConst):
            value = int(divisor.value)
            if value & (value - 1) == 0:
                if fn == "index_div":
                    return f"(i32.shr_u {args[0]} (i32.const {value.bit_length() - 1}))"
                return f"(i32.and {args[0]} (i32.const {value - 1}))"
        return f"(i32.{'div_u' if fn == 'index_div' else 'rem_u'} {args[0]} {args[1]})"

    def _division(self, fn: str, divisor: KExpr, args: list[str], dtype: DType, lanes: int) -> str:
        signed = dtype.kind == "int"
        scalar = scalar_type(dtype)
        plain = isinstance(divisor, KConst) and divisor.value not in (0, -1)
        if plain and lanes == 1 and fn != "pow" and not (fn == "mod" and signed):
            name = f"{'div' if fn == 'div' else 'rem'}_{'s' if signed else 'u'}"
            return f"({scalar}.{name} {args[0]} {args[1]})"
        stem = "mod" if fn == "fmod" and not signed else fn
        family = f"{'i' if signed else 'u'}{scalar[1:]}"
        return self.by_lane(f"er_{family}_{stem}", args, dtype, dtype, lanes)

    # Lanes

    def one_lane(self, function: str, args: list[str], lanes: int) -> str:
        """A vector function of f32, or that on a scalar."""
        if lanes == 4:
            return f"(call ${function} {' '.join(args)})"
        wide = " ".join(f"(f32x4.splat {a})" for a in args)
        return f"(f32x4.extract_lane 0 (call ${function} {wide}))"

    def by_lane(
        self, function: str, args: list[str], source: DType, target: DType, lanes: int
    ) -> str:
        """A scalar function, for vectors called for each lane."""
        if lanes == 1:
            return f"(call ${function} {' '.join(args)})"
        return self.by_lane_code(
            args, source, target, lambda lane: f"(call ${function} {' '.join(lane)})"
        )

    def by_lane_code(
        self, args: list[str], source: DType, target: DType, code: Callable[[list[str]], str]
    ) -> str:
        """Four lanes computed one by one."""
        firsts, agains = zip(*(self.frame.twice(a, "v128") for a in args), strict=True)
        result = ""
        for k in range(4):
            vectors = firsts if k == 0 else agains
            lane = code([f"({shape(source)}.extract_lane {k} {v})" for v in vectors])
            if k == 0:
                result = f"({shape(target)}.splat {lane})"
            else:
                result = f"({shape(target)}.replace_lane {k} {result} {lane})"
        return result

    # Casts

    def wrap(self, code: str, dtype: DType, lanes: int) -> str:
        """A 32-bit integer reduced to a narrower type's range, modulo a power of two."""
        if dtype.kind == "uint":
            mask = constant((1 << dtype.bits) - 1, dtype, lanes)
            return f"({'i32' if lanes == 1 else 'v128'}.and {code} {mask})"
        if lanes == 1 and dtype.bits in (8, 16):
            return f"(i32.extend{dtype.bits}_s {code})"
        prefix, by = "i32" if lanes == 1 else "i32x4", f"(i32.const {32 - dtype.bits})"
        return f"({prefix}.shr_s ({prefix}.shl {code} {by}) {by})"

    def cast(self, code: str, source: DType, target: DType, lanes: int) -> str:
        """KCast."""
        value_type(source, lanes)
        value_type(target, lanes)
        if source == target:
            return code
        if target.kind == "bool":
            prefix = scalar_type(source) if lanes == 1 else shape(source)
            return f"({prefix}.ne {code} {constant(0, source, lanes)})"
        if source.kind == "bool":
            return self._from_bool(code, target, lanes)
        if source.is_float:
            if target.is_float:
                return self._float_to_float(code, source, target, lanes)
            return self._saturate(code, source, target, lanes)
        if target.is_float:
            number = _int_to_float(code, source, target, lanes)
            return number if target.bits >= 32 else self.round_to(number, target, lanes)
        return self._int_to_int(code, source, target, lanes)

    def _from_bool(self, code: str, target: DType, lanes: int) -> str:
        if lanes == 4:
            return f"(v128.and {code} {constant(1, target, 4)})"
        kind = scalar_type(target)
        return f"({kind}.convert_i32_u {code})" if target.is_float else _widen(code, kind)

    def round_to(self, code: str, target: DType, lanes: int) -> str:
        """An f32 rounded to a narrower float type, still as an f32."""
        return self.one_lane(f"er_round_{target.name}_v4", [code], lanes)

    def _float_to_float(self, code: str, source: DType, target: DType, lanes: int) -> str:
        if target == F64:
            return f"(f64.promote_f32 {code})"
        if target == F32:
            return f"(f32.demote_f64 {code})" if source == F64 else code
        if source == F64:
            # numpy rounds once on the way to f16, ml_dtypes twice on the way to the others
            code = f"(call $er_demote_odd {code})" if target == F16 else f"(f32.demote_f64 {code})"
        return self.round_to(code, target, lanes)

    def _saturate(self, code: str, source: DType, target: DType, lanes: int) -> str:
        sign = "s" if target.kind == "int" else "u"
        if lanes == 4:
            whole = f"(i32x4.trunc_sat_f32x4_{'s' if target.bits < 32 else sign} {code})"
            if target.bits == 32:
                return whole
            low, high = (constant(v, target, 4) for v in target.int_range)
            return f"(i32x4.min_s (i32x4.max_s {whole} {low}) {high})"
        kind, floats = scalar_type(target), scalar_type(source)
        if target.bits >= 32:
            return f"({kind}.trunc_sat_{floats}_{sign} {code})"
        whole = f"(i32.trunc_sat_{floats}_s {code})"
        low, high = (constant(v, I32, 1) for v in target.int_range)
        return self._extreme("min", [self._extreme("max", [whole, low], I32, 1), high], I32, 1)

    def _int_to_int(self, code: str, source: DType, target: DType, lanes: int) -> str:
        if source.bits == 64 and target.bits == 64:
            return code
        if target.bits == 64:
            return f"(i64.extend_i32_{'s' if source.kind == 'int' else 'u'} {code})"
        if source.bits == 64:
            code = f"(i32.wrap_i64 {code})"
        (low, high), (least, most) = source.int_range, target.int_range
        if target.bits == 32 or (least <= low and high <= most):
            return code
        return self.wrap(code, target, lanes)


def same_bits(code: str, source: DType, target: DType, lanes: int) -> str:
    """KBits: vectors have no type."""
    kind, held = scalar_type(target), scalar_type(source)
    return code if lanes == 4 or kind == held else f"({kind}.reinterpret_{held} {code})"


def _widen(code: str, kind: str) -> str:
    """A 0 or 1 as an integer of that type."""
    return code if kind == "i32" else f"(i64.extend_i32_u {code})"


def _int_to_float(code: str, source: DType, target: DType, lanes: int) -> str:
    sign = "s" if source.kind == "int" else "u"
    if lanes == 4:
        return f"(f32x4.convert_i32x4_{sign} {code})"
    return f"({scalar_type(target)}.convert_{scalar_type(source)}_{sign} {code})"
