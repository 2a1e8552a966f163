"""How elements lie in storage buffers on the GPU, and the text that loads and stores them.

32-bit types are themselves, or vectors of 4 where all accesses allow it. 64-bit integers are
`vec2<u32>`, low word first. Narrower types are packed in u32 words, first element in the low bits;
types of 2 and 4 bits take a byte each, as in numpy, which keeps its other bits zero. Where the
device has `shader-f16`, buffers of f16 are vectors of 4 f16 if all accesses allow that.
"""

from dataclasses import dataclass
from typing import Protocol

from edgerelax.codegen.wgsl_text import (
    ADD,
    LOGIC,
    RELATION,
    UNARY,
    Text,
    base_type,
    call,
    element_type,
    suffix,
    value_type,
)
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.dtypes import F16, F32, I32, DType
from edgerelax.ir.kernel import (
    KCast,
    KConst,
    KernelBuffer,
    KExpr,
    KLoad,
    KOp,
    KStmt,
    KStore,
    walk_exprs,
    walk_stmts,
)
from edgerelax.sym import divisible, product


class Namer(Protocol):
    """What this file needs of a printer."""

    def expr(self, expr: KExpr) -> Text:
        """The text of an expression."""

    def named(self, text: Text) -> Text:
        """The text, if simple, or a fresh name for its value."""

    def line(self, text: str) -> None:
        """Append a line."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Of one storage buffer: `name` in the text; `vector` if declared as vectors of 4.

    One that is combined into is `atomic`: words, which wgsl_atomics accesses.
    """

    name: str
    dtype: DType
    vector: bool
    atomic: bool = False

    @property
    def declared(self) -> str:
        """The type of an element of its declaration."""
        if self.atomic:
            return f"atomic<{self.word}>"
        if not self.vector:
            return element_type(self.dtype)
        return f"vec4<{'f16' if self.is_short else base_type(self.dtype)}>"

    @property
    def word(self) -> str:
        """The type of an atomic word."""
        return "i32" if self.dtype == I32 else "u32"

    @property
    def is_short(self) -> bool:
        """Whether elements are f16 of the language."""
        return self.vector and self.dtype == F16

    @property
    def is_packed(self) -> bool:
        """Whether several elements lie in a u32."""
        return self.dtype.bits < 32 and not self.is_short

    def wide(self, text: Text, lanes: int) -> Text:
        """The value of an element, or of four, as values are computed."""
        return call(value_type(self.dtype, lanes), text) if self.is_short else text


def layouts(
    buffers: tuple[KernelBuffer, ...],
    body: tuple[KStmt, ...],
    names: dict[str, str],
    halves: bool = False,
) -> dict[str, Layout]:
    """Choose the declaration of each buffer from how the kernel accesses it.

    Vectors need an extent that is a multiple of 4: a binding's last bytes, if they fill no vector,
    cannot be reached. A lane is then loaded by a second index; lanes are not stored alone.
    """
    wide = {e.buffer for e in walk_exprs(body) if isinstance(e, KLoad) and _is_wide(e.lanes, e)}
    narrow: set[str] = set()
    atomic = {s.buffer for s in walk_stmts(body) if isinstance(s, KStore) and s.combine}
    for stmt in walk_stmts(body):
        if isinstance(stmt, KStore):
            (wide if _is_wide(stmt.value.lanes, stmt) else narrow).add(stmt.buffer)
    return {
        p.buffer.name: Layout(
            names[p.buffer.name],
            p.buffer.dtype,
            (p.buffer.dtype.bits == 32 or (halves and p.buffer.dtype == F16))
            and p.buffer.name in wide - narrow
            and divisible(product(p.buffer.dims), 4),
            p.buffer.name in atomic,
        )
        for p in buffers
    }


def _is_wide(lanes: int, access: KLoad | KStore) -> bool:
    return lanes == 4 and access.aligned


def load(layout: Layout, load: KLoad, printer: Namer) -> Text:
    """The value of a load from a storage buffer."""
    dtype, lanes = layout.dtype, load.lanes
    if lanes > 1 and not (load.aligned and (layout.is_packed or (layout.vector and lanes == 4))):
        return _load_lanes(layout, load, printer)
    if not layout.is_packed:
        return _load_element(layout, load, printer)
    if lanes == 1:
        index = printer.named(printer.expr(load.index))
        return _unpack(_word(layout, load.index, 0, printer), index, dtype)
    return _load_packed(layout, load, printer)


def _load_lanes(layout: Layout, load: KLoad, printer: Namer) -> Text:
    """Element by element."""
    first = printer.named(printer.expr(load.index))
    lanes = []
    for k in range(load.lanes):
        index = first if k == 0 else printer.named(Text(f"{first.text} + {k}", ADD))
        if not layout.is_packed:
            lanes.append(_pick(layout, index))
        else:
            per_word = 4 // layout.dtype.bytes
            word = Text(f"{layout.name}[{index.text} >> {per_word.bit_length() - 1}u]")
            lanes.append(_unpack(word, index, layout.dtype))
    return call(value_type(layout.dtype, load.lanes), *lanes)


def _load_element(layout: Layout, load: KLoad, printer: Namer) -> Text:
    if load.lanes == 4:
        vector = Text(f"{layout.name}[{printer.expr(shifted(load.index, 2)).text}]")
        return layout.wide(vector, 4)
    if not layout.vector:
        return Text(f"{layout.name}[{printer.expr(load.index).text}]")
    return _pick(layout, printer.named(printer.expr(load.index)))


def _pick(layout: Layout, index: Text) -> Text:
    if not layout.vector:
        return Text(f"{layout.name}[{index.text}]")
    lane = Text(f"{layout.name}[{index.at(UNARY)} >> 2u][{index.at(UNARY)} & 3]")
    return layout.wide(lane, 1)


def _word(layout: Layout, index: KExpr, ahead: int, printer: Namer) -> Text:
    """The word that holds an element, or a later one."""
    per_word = 4 // layout.dtype.bytes
    at = shifted(index, per_word.bit_length() - 1)
    if ahead:
        at = KOp(I32, 1, "add", (at, KConst(I32, 1, ahead)))
    return Text(f"{layout.name}[{printer.expr(at).text}]")


def _load_packed(layout: Layout, load: KLoad, printer: Namer) -> Text:
    """Two or four narrow elements at once."""
    dtype, lanes = layout.dtype, load.lanes
    first = _word(layout, load.index, 0, printer)
    if dtype.bits == 16:
        words = [first] if lanes == 2 else [first, _word(layout, load.index, 1, printer)]
        if dtype.name == "f16":
            halves = [call("unpack2x16float", w) for w in words]
            return halves[0] if lanes == 2 else call("vec4<f32>", *halves)
        return _decode(call(f"er_halves{suffix(lanes)}", *words), dtype, lanes)
    return _decode(call("er_bytes", first), dtype, lanes)


def _unpack(word: Text, index: Text, dtype: DType) -> Text:
    """The element of a given index out of the word that holds it."""
    place = f"{index.at(UNARY)} & {4 // dtype.bytes - 1}"
    if dtype.name == "f16":
        return Text(f"unpack2x16float({word.text})[{place}]")
    offset = f"u32({place}) * {8 * dtype.bytes}u"
    if dtype.kind == "int":
        return Text(f"extractBits(bitcast<i32>({word.text}), {offset}, {dtype.bits}u)")
    return _decode(Text(f"extractBits({word.text}, {offset}, {dtype.bits}u)"), dtype, 1)


def _decode(bits: Text, dtype: DType, lanes: int) -> Text:
    """A value from its bits in the low end of a u32, the others being 0."""
    match dtype.kind:
        case "bool":
            zero = "0u" if lanes == 1 else f"vec{lanes}<u32>(0u)"
            return Text(f"{bits.at(RELATION)} != {zero}", RELATION)
        case "uint":
            return bits
        case "int":
            signed = Text(f"bitcast<{value_type(I32, lanes)}>({bits.text})")
            return call("extractBits", signed, Text("0u"), Text(f"{dtype.bits}u"))
    return call(f"er_decode_{dtype.name}{suffix(lanes)}", bits)


def _encode(value: Text, dtype: DType, lanes: int) -> Text:
    """The bits of a value in the low end of a u32; higher ones may be set."""
    unsigned = "u32" if lanes == 1 else f"vec{lanes}<u32>"
    match dtype.kind:
        case "bool":
            return call(unsigned, value)
        case "uint":
            return value
        case "int":
            raw = f"bitcast<{unsigned}>({value.text})"
            mask = f"{unsigned}({(1 << dtype.bits) - 1}u)"
            return Text(f"{raw} & {mask}", LOGIC) if dtype.bits < 8 else Text(raw)
    return call(f"er_encode_{dtype.name}{suffix(lanes)}", value)


def store(layout: Layout, stmt: KStore, printer: Namer) -> None:
    """Print a store into a storage buffer."""
    lanes, name = stmt.value.lanes, layout.name
    if layout.is_packed:
        _store_packed(layout, stmt, printer)
    elif layout.vector:
        index = printer.expr(shifted(stmt.index, 2)).text
        value = printer.expr(unrounded(stmt.value) if layout.is_short else stmt.value)
        text = call("vec4<f16>", value) if layout.is_short else value
        printer.line(f"{name}[{index}] = {text.text};")
    elif lanes == 1:
        index = printer.expr(stmt.index).text
        printer.line(f"{name}[{index}] = {printer.expr(stmt.value).text};")
    else:
        first = printer.named(printer.expr(stmt.index))
        value = printer.named(printer.expr(stmt.value))
        for k in range(lanes):
            index = first.text if k == 0 else f"{first.text} + {k}"
            printer.line(f"{name}[{index}] = {value.text}.{'xyzw'[k]};")


def _store_packed(layout: Layout, stmt: KStore, printer: Namer) -> None:
    dtype, lanes = layout.dtype, stmt.value.lanes
    if lanes * dtype.bytes % 4 or not stmt.aligned:
        raise UnsupportedError(
            f"a store of {lanes} {dtype} to {stmt.buffer} is no whole word",
            hint="on the GPU 8-bit types are stored 4 at a time, 16-bit types 2 or 4",
        )
    words = lanes * dtype.bytes // 4
    pack = "er_pack_bytes" if dtype.bytes == 1 else "er_pack_halves"
    bits = _encode(printer.expr(stmt.value), dtype, lanes)
    if words == 1:
        printer.line(f"{_word(layout, stmt.index, 0, printer).text} = {call(pack, bits).text};")
        return
    bits = printer.named(bits)
    for k, pair in enumerate(("xy", "zw")):
        place = _word(layout, stmt.index, k, printer).text
        printer.line(f"{place} = {pack}({bits.text}.{pair});")


def unrounded(value: KExpr) -> KExpr:
    """What a value was before it was rounded to f16, if that is how it came about."""
    return value.arg if isinstance(value, KCast) and value.arg.dtype == F32 else value


def shifted(index: KExpr, bits: int) -> KExpr:
    """index >> bits, simplified where the index is visibly a multiple."""
    if isinstance(index, KConst):
        return KConst(I32, 1, int(index.value) >> bits)
    if isinstance(index, KOp) and _is_multiple(index, bits):
        a, b = index.args
        if index.fn == "add":
            return KOp(I32, 1, "add", (shifted(a, bits), shifted(b, bits)))
        factor, other = (a, b) if _is_multiple(a, bits) else (b, a)
        rest = shifted(factor, bits)
        is_one = isinstance(rest, KConst) and rest.value == 1
        return other if is_one else KOp(I32, 1, "mul", (other, rest))
    return KOp(I32, 1, "shr", (index, KConst(I32, 1, bits)))


def _is_multiple(expr: KExpr, bits: int) -> bool:
    match expr:
        case KConst(value=value):
            return int(value) % (1 << bits) == 0
        case KOp(fn="mul", args=args):
            return any(_is_multiple(a, bits) for a in args)
        case KOp(fn="add", args=args):
            return all(_is_multiple(a, bits) for a in args)
    return False
