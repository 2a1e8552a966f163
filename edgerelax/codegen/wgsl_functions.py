"""How WGSL spells each function of KERNEL_FUNCTIONS on each family of types."""

from edgerelax.codegen.wgsl_text import (
    ADD,
    LOGIC,
    MUL,
    RELATION,
    UNARY,
    Text,
    call,
    infix,
    literal,
    negated,
    suffix,
    value_type,
)
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import F32, I32, U32, DType
from edgerelax.ir.kernel import KConst, KExpr

# Families: f (floats, computed in f32), i and u (integers of up to 32 bits), q and w (signed and
# unsigned 64-bit integers), b (bool).
_INFIX: dict[str, tuple[str, int, str]] = {
    "add": ("+", ADD, "fiu"),
    "sub": ("-", ADD, "fiu"),
    "mul": ("*", MUL, "fiu"),
    "div": ("/", MUL, "f"),
    "index_div": ("/", MUL, "i"),
    "index_mod": ("%", MUL, "i"),
    "eq": ("==", RELATION, "fiub"),
    "ne": ("!=", RELATION, "iub"),
    "lt": ("<", RELATION, "fiu"),
    "le": ("<=", RELATION, "fiu"),
    "gt": (">", RELATION, "fiu"),
    "ge": (">=", RELATION, "fiu"),
    "bit_and": ("&", LOGIC, "iu"),
    "bit_or": ("|", LOGIC, "iu"),
    "bit_xor": ("^", LOGIC, "iu"),
    "and": ("&", LOGIC, "b"),
    "or": ("|", LOGIC, "b"),
    "xor": ("!=", RELATION, "b"),
    "max": ("|", LOGIC, "b"),
    "min": ("&", LOGIC, "b"),
}

_PREFIX: dict[str, tuple[str, str]] = {
    "neg": ("-", "fi"),
    "bit_not": ("~", "iu"),
    "not": ("!", "b"),
}

# Calls of builtins or of the prelude. Unlisted functions of floats are er_<name>.
_CALLS: dict[tuple[str, str], str] = {
    ("abs", "f"): "abs",
    ("floor", "f"): "floor",
    ("ceil", "f"): "ceil",
    ("trunc", "f"): "trunc",
    ("round", "f"): "round",
    ("fma", "f"): "fma",
    ("min", "i"): "min",
    ("max", "i"): "max",
    ("min", "u"): "min",
    ("max", "u"): "max",
    ("abs", "i"): "abs",
    ("sign", "i"): "sign",
    ("div", "i"): "er_i32_div",
    ("mod", "i"): "er_i32_mod",
    ("fmod", "i"): "er_i32_fmod",
    ("pow", "i"): "er_i32_pow",
    ("dot_pairs", "i"): "er_i32_dot_pairs",
    ("dot_quads", "i"): "er_i32_dot_quads",
    ("widen_pairs", "i"): "er_i32_widen_pairs",
    ("div", "u"): "er_u32_div",
    ("mod", "u"): "er_u32_mod",
    ("fmod", "u"): "er_u32_mod",
    ("pow", "u"): "er_u32_pow",
    ("sign", "u"): "er_u32_sign",
    ("neg", "u"): "er_u32_neg",
}

_FLOAT_ONLY = frozenset(
    (
        "ne", "min", "max", "sign", "mod", "fmod", "pow", "sqrt", "exp", "log", "log1p", "expm1",
        "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh",
        "atanh", "erf", "sigmoid", "isnan", "isinf",
    )
)  # fmt: skip

_WIDE = frozenset(
    (
        "add", "sub", "mul", "div", "mod", "fmod", "pow", "min", "max", "neg", "abs", "sign", "eq",
        "ne", "lt", "le", "gt", "ge", "bit_and", "bit_or", "bit_xor", "bit_not", "shl", "shr",
    )
)  # fmt: skip

# Functions after which a narrow integer must be wrapped.
_OVERFLOWS = frozenset(("add", "sub", "mul", "div", "pow", "neg", "abs", "shl", "bit_not"))


def family(dtype: DType) -> str:
    """The letter of a type's family."""
    match dtype.kind:
        case "float":
            return "f"
        case "int":
            return "q" if dtype.bits == 64 else "i"
        case "uint":
            return "w" if dtype.bits == 64 else "u"
    return "b"


def apply(fn: str, operands: tuple[KExpr, ...], args: list[Text]) -> Text:
    """The text of a function on operands whose texts are `args`."""
    dtype, lanes = operands[0].dtype, operands[0].lanes
    text = _apply(fn, operands, args, dtype, lanes)
    narrow = dtype.bits < 32 and dtype.is_integer and fn in _OVERFLOWS
    return wrap(text, dtype, lanes) if narrow else text


def _apply(
    fn: str, operands: tuple[KExpr, ...], args: list[Text], dtype: DType, lanes: int
) -> Text:
    kind = family(dtype)
    if kind in "qw":
        return _wide(fn, kind, args, lanes)
    operator = _INFIX.get(fn)
    if operator is not None and kind in operator[2]:
        sign, precedence, _ = operator
        if precedence == LOGIC:
            return Text(f"{args[0].at(UNARY)} {sign} {args[1].at(UNARY)}", LOGIC)
        return infix(sign, precedence, args[0], args[1])
    prefix = _PREFIX.get(fn)
    if prefix is not None and kind in prefix[1]:
        return negated(prefix[0], args[0])
    if fn == "abs" and kind == "u":
        return args[0]
    if fn in ("shl", "shr") and kind in "iu":
        return _shift(fn, kind, operands, args, dtype, lanes)
    if fn == "div" and kind in "iu" and _is_plain_divisor(operands[1]):
        return infix("/", MUL, args[0], args[1])
    if fn == "pow" and kind == "f" and isinstance(operands[1], KConst) and args[0].is_simple:
        special = _power(args[0], float(operands[1].value), lanes)
        if special is not None:
            return special
    name = _CALLS.get((fn, kind))
    if name is None and kind == "f" and fn in _FLOAT_ONLY:
        name = f"er_{fn}"
    if name is None:
        raise UnsupportedError(f"{fn} of {dtype} in a GPU kernel")
    return call(name + suffix(lanes) if name.startswith("er_") else name, *args)


def _is_plain_divisor(divisor: KExpr) -> bool:
    """Neither 0 nor, for the quotient that overflows, -1."""
    return isinstance(divisor, KConst) and divisor.value not in (0, -1)


def _shift(
    fn: str, kind: str, operands: tuple[KExpr, ...], args: list[Text], dtype: DType, lanes: int
) -> Text:
    count = operands[1]
    width = 8 * dtype.bytes
    if isinstance(count, KConst) and 0 <= int(count.value) < width:
        by = literal(int(count.value), U32, lanes)
        return Text(f"{args[0].at(UNARY)} {'<<' if fn == 'shl' else '>>'} {by.text}", LOGIC)
    bits = f"{width}u" if kind == "u" else f"{width}"
    name = f"er_{'u32' if kind == 'u' else 'i32'}_{fn}{suffix(lanes)}"
    return call(name, *args, Text(bits))


def _power(base: Text, exponent: float, lanes: int) -> Text | None:
    """Constant exponents that need no general power."""
    if exponent == 1.0:
        return base
    if exponent == 2.0:
        return infix("*", MUL, base, base)
    if exponent == 3.0:
        return infix("*", MUL, infix("*", MUL, base, base), base)
    if exponent == -1.0:
        return infix("/", MUL, literal(1.0, F32, lanes), base)
    return None


def _wide(fn: str, kind: str, args: list[Text], lanes: int) -> Text:
    if fn not in _WIDE or lanes > 1:
        raise UnsupportedError(f"{fn} of {lanes} lanes of 64-bit integers in a GPU kernel")
    if fn in ("bit_and", "bit_or", "bit_xor"):
        sign = {"bit_and": "&", "bit_or": "|", "bit_xor": "^"}[fn]
        return Text(f"{args[0].at(UNARY)} {sign} {args[1].at(UNARY)}", LOGIC)
    if fn == "bit_not":
        return negated("~", args[0])
    return call(f"er_{'i64' if kind == 'q' else 'u64'}_{fn}", *args)


def wrap(text: Text, dtype: DType, lanes: int) -> Text:
    """A 32-bit integer reduced to a narrower type's range, modulo a power of two."""
    if dtype.kind == "uint":
        mask = literal((1 << dtype.bits) - 1, U32, lanes)
        return Text(f"{text.at(UNARY)} & {mask.text}", LOGIC)
    return call("extractBits", text, Text("0u"), Text(f"{dtype.bits}u"))


def cast(text: Text, source: DType, target: DType, lanes: int) -> Text:
    """KCast."""
    if source == target:
        return text
    if "64" in (source.name[1:], target.name[1:]):
        return _cast_wide(text, source, target, lanes)
    result = value_type(target, lanes)
    if target.kind == "bool":
        return _to_bool(text, source, lanes)
    if target.is_float:
        number = text if source.is_float else _int_to_float(text, source, result, lanes)
        return number if target.bits == 32 else _round_float(number, target, lanes)
    if source.is_float:
        return _saturate(text, target, lanes)
    if source.kind == "bool":
        return call(result, text)
    same = value_type(source, lanes) == result
    held = text if same else call(f"bitcast<{result}>", text)
    (low, high), (least, most) = source.int_range, target.int_range
    if target.bits == 32 or (least <= low and high <= most):
        return held
    return wrap(held, target, lanes)


def _to_bool(text: Text, source: DType, lanes: int) -> Text:
    if source.is_float:
        return call(f"er_f32_to_bool{suffix(lanes)}", text)
    zero = literal(0, source, lanes)
    return infix("!=", RELATION, text, zero)


def _int_to_float(text: Text, source: DType, result: str, lanes: int) -> Text:
    exact = source.name != "u32"
    return call(result if exact else f"er_u32_to_f32{suffix(lanes)}", text)


def _round_float(text: Text, target: DType, lanes: int) -> Text:
    """An f32 rounded to a narrower float type, still as an f32."""
    return call(f"er_round_{target.name}{suffix(lanes)}", text)


def _saturate(text: Text, target: DType, lanes: int) -> Text:
    if target.bits == 32:
        return call(f"er_f32_to_{target.name}{suffix(lanes)}", text)
    low, high = target.int_range
    bounds = (literal(float(v), F32, 1) for v in (low, high))
    whole = call(f"er_f32_to_range{suffix(lanes)}", text, *bounds)
    if target.kind == "uint":
        return call(f"bitcast<{value_type(target, lanes)}>", whole)
    return whole


def _cast_wide(text: Text, source: DType, target: DType, lanes: int) -> Text:
    """From or to a 64-bit integer, by way of i32, u32, f32 or bool."""
    if lanes > 1:
        raise UnsupportedError(f"{lanes} lanes of 64-bit integers in a GPU kernel")
    if source.bits == 64 and target.bits == 64:
        return text
    if source.bits < 64:
        middle = {"float": F32, "int": I32, "uint": U32, "bool": U32}[source.kind]
        number = cast(text, source, middle, 1) if source.kind == "bool" else text
        return call(f"er_{middle.name}_to_{target.name}", number)
    if target.kind == "bool":
        return call("er_i64_to_bool", text)
    if target.is_float:
        number = call(f"er_{source.name}_to_f32", text)
        return number if target.bits == 32 else _round_float(number, target, 1)
    low = Text(f"{text.at(UNARY + 1)}.x")
    if target.kind == "int":
        low = Text(f"bitcast<i32>({low.text})")
    return low if target.bits == 32 else wrap(low, target, 1)
