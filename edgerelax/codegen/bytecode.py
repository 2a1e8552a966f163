"""A VM program as data, and its file: `decode(encode(program)) == program`.

The layout of the file and the table of instructions stand in `edgerelax/vm/isa.py`. The VM checks
what it loads; `decode` checks only what it needs to read on.
"""

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from edgerelax.ir.diagnostics import FormatError
from edgerelax.vm import isa

Place: TypeAlias = tuple[int, int, int, int]  # kind, index, offset register, bytes register
Operand: TypeAlias = int | Place | tuple[int, ...] | tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Instruction:
    """`operands` are as in `isa.OPCODES[name]`; a label is the number of an instruction."""

    name: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Weight:
    """A buffer of constants; `places` has a bit for each device that binds it."""

    bytes: int
    places: int


@dataclass(frozen=True, slots=True)
class Slab:
    """A block of device memory that has `bytes` when a run begins.

    `keeps`: growing does not lose its contents.
    """

    device: int
    bytes: int
    keeps: bool = False


@dataclass(frozen=True, slots=True)
class Kernel:
    """Kernel `index` of its device; `scalars` counts those after the grid.

    `steps` is the number of the scalar that says about how many instructions an iteration takes; 0
    where the grid must not be split.
    """

    device: int
    index: int
    buffers: int
    scalars: int
    steps: int = 0


@dataclass(frozen=True, slots=True)
class Input:
    """`rank` may be `isa.ANY_RANK`."""

    name: int
    dtype: int
    rank: int
    places: int


@dataclass(frozen=True, slots=True)
class Output:
    """A result's name and dtype."""

    name: int
    dtype: int


@dataclass(frozen=True, slots=True)
class Function:
    """Instructions over `registers`, the first of which are the parameters."""

    name: int
    parameters: int
    results: int
    registers: int
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    code: tuple[Instruction, ...]


@dataclass(frozen=True, slots=True)
class Program:
    """All that a program file says; names are indices of `strings`."""

    strings: tuple[str, ...]
    weights: tuple[Weight, ...]
    slabs: tuple[Slab, ...]
    kernels: tuple[Kernel, ...]
    functions: tuple[Function, ...]
    regions: int


def _flat(operand: Operand) -> Iterator[int]:
    if isinstance(operand, int):
        yield operand
        return
    for part in operand:
        yield from _flat(part)


def _operand_words(kind: str, operand: Operand, starts: tuple[int, ...]) -> list[int]:
    match kind, operand:
        case "label", int():
            return [starts[operand]]
        case "i64", int():
            return [operand & 0xFFFFFFFF, operand >> 32 & 0xFFFFFFFF]
        case (("bindings" | "regs" | "dsts"), tuple()):
            return [len(operand), *_flat(operand)]
        case _:
            return list(_flat(operand))


def _instruction_words(instruction: Instruction, starts: tuple[int, ...]) -> list[int]:
    opcode = isa.OPCODES[instruction.name]
    words = [0]
    for kind, operand in zip(opcode.operands, instruction.operands, strict=True):
        words += _operand_words(kind, operand, starts)
    words[0] = isa.OPCODE_NUMBER[instruction.name] | len(words) << 8
    return words


def _code_words(function: Function) -> list[int]:
    """Labels become word offsets: a first walk with any labels finds where instructions start."""
    starts: list[int] = []
    at = 0
    anywhere = (0,) * len(function.code)
    for instruction in function.code:
        starts.append(at)
        at += len(_instruction_words(instruction, anywhere))
    offsets = tuple(starts)
    return [word for i in function.code for word in _instruction_words(i, offsets)]


def _pack(words: list[int]) -> bytes:
    return struct.pack(f"<{len(words)}I", *words)


def _strings_payload(strings: tuple[str, ...]) -> bytes:
    texts = [text.encode() for text in strings]
    blob = b"".join(texts)
    return _pack([len(texts), *map(len, texts)]) + blob + bytes(-len(blob) % 4)


def encode(program: Program) -> bytes:
    """The bytes of the program's file."""
    code: list[int] = []
    functions = [len(program.functions), program.regions]
    for f in program.functions:
        words = _code_words(f)
        code += words
        functions += [f.name, f.parameters, f.results, f.registers, len(words)]
        functions += [len(f.inputs), len(f.outputs)]
        functions += [word for i in f.inputs for word in (i.name, i.dtype, i.rank, i.places)]
        functions += [word for o in f.outputs for word in (o.name, o.dtype)]
    weights = [word for w in program.weights for word in (w.bytes, w.places)]
    slabs = [word for s in program.slabs for word in (s.device, s.bytes, s.keeps)]
    kernels = [
        word for k in program.kernels for word in (k.device, k.index, k.buffers, k.scalars, k.steps)
    ]
    payloads = {
        "strings": _strings_payload(program.strings),
        "weights": _pack([len(program.weights), *weights]),
        "slabs": _pack([len(program.slabs), *slabs]),
        "kernels": _pack([len(program.kernels), *kernels]),
        "functions": _pack(functions),
        "code": _pack(code),
    }
    body = b"".join(
        _pack([number, len(payloads[name])]) + payloads[name]
        for number, name in enumerate(isa.SECTIONS)
    )
    return _pack([isa.MAGIC, isa.VERSION, 12 + len(body)]) + body


class _Reader:
    """Words of one section, taken in order."""

    def __init__(self, section: str, words: tuple[int, ...]) -> None:
        self.section = section
        self.words = words
        self.at = 0

    def take(self, count: int) -> tuple[int, ...]:
        if count > len(self.words) - self.at:
            left = len(self.words) - self.at
            raise FormatError(f"program: section {self.section}: {count} words wanted, {left} left")
        self.at += count
        return self.words[self.at - count : self.at]

    def word(self) -> int:
        return self.take(1)[0]

    def rows(self, count: int, width: int) -> list[tuple[int, ...]]:
        words = self.take(count * width)
        return [words[k : k + width] for k in range(0, len(words), width)]


def _sections(data: bytes) -> dict[str, tuple[int, ...]]:
    if len(data) < 12 or len(data) % 4:
        raise FormatError(f"program: {len(data)} bytes are no program")
    words = struct.unpack(f"<{len(data) // 4}I", data)
    if words[0] != isa.MAGIC:
        raise FormatError(f"program: begins with {data[:4]!r}, not {b'ERX1'!r}")
    if words[1] != isa.VERSION:
        raise FormatError(f"program: version {words[1]}; this edgerelax reads {isa.VERSION}")
    file = _Reader("table", words)
    file.take(3)
    sections: dict[str, tuple[int, ...]] = {}
    for number, name in enumerate(isa.SECTIONS):
        found, size = file.take(2)
        if found != number:
            raise FormatError(f"program: section {found} where {number} ({name}) belongs")
        sections[name] = file.take(size // 4)
    return sections


def _strings(words: tuple[int, ...]) -> tuple[str, ...]:
    reader = _Reader("strings", words)
    lengths = reader.take(reader.word())
    blob = _pack(list(words[reader.at :]))
    if sum(lengths) > len(blob):
        raise FormatError(f"program: strings of {sum(lengths)} bytes in {len(blob)}")
    texts: list[str] = []
    at = 0
    for length in lengths:
        texts.append(blob[at : at + length].decode(errors="replace"))
        at += length
    return tuple(texts)


def _read_place(reader: _Reader) -> Place:
    kind, index, offset, size = reader.take(4)
    return kind, index, offset, size


def _read_operand(kind: str, reader: _Reader) -> Operand:
    match kind:
        case "i64":
            low, high = reader.take(2)
            value = low | high << 32
            return value - (1 << 64) if value >> 63 else value
        case "binding":
            return _read_place(reader)
        case "bindings":
            return tuple(_read_place(reader) for _ in range(reader.word()))
        case "regs" | "dsts":
            return reader.take(reader.word())
    return reader.word()


def _decode_code(words: tuple[int, ...]) -> tuple[Instruction, ...]:
    names = list(isa.OPCODES)
    reader = _Reader("code", words)
    numbers: dict[int, int] = {}  # of instructions, by their word
    found: list[tuple[str, tuple[Operand, ...]]] = []
    while reader.at < len(words):
        numbers[reader.at] = len(found)
        opcode = reader.word() & 255
        if opcode >= len(names):
            raise FormatError(f"program: word {reader.at - 1} of code: opcode {opcode}")
        kinds = isa.OPCODES[names[opcode]].operands
        found.append((names[opcode], tuple(_read_operand(kind, reader) for kind in kinds)))

    def number(kind: str, operand: Operand) -> Operand:
        if kind != "label":
            return operand
        target = numbers.get(operand) if isinstance(operand, int) else None
        if target is None:
            raise FormatError(f"program: a jump to word {operand}, which begins no instruction")
        return target

    return tuple(
        Instruction(name, tuple(map(number, isa.OPCODES[name].operands, operands)))
        for name, operands in found
    )


def _functions(words: tuple[int, ...], code: tuple[int, ...]) -> tuple[tuple[Function, ...], int]:
    reader = _Reader("functions", words)
    all_code = _Reader("code", code)
    count, regions = reader.take(2)
    functions: list[Function] = []
    for _ in range(count):
        name, parameters, results, registers, size, n_inputs, n_outputs = reader.take(7)
        inputs = tuple(Input(*row) for row in reader.rows(n_inputs, 4))
        outputs = tuple(Output(*row) for row in reader.rows(n_outputs, 2))
        body = _decode_code(all_code.take(size))
        functions.append(Function(name, parameters, results, registers, inputs, outputs, body))
    return tuple(functions), regions


def decode(data: bytes) -> Program:
    """The program in a file's bytes. Raises FormatError where they cannot be read."""
    sections = _sections(data)

    def rows(name: str, width: int) -> list[tuple[int, ...]]:
        reader = _Reader(name, sections[name])
        return reader.rows(reader.word(), width)

    functions, regions = _functions(sections["functions"], sections["code"])
    return Program(
        _strings(sections["strings"]),
        tuple(Weight(*row) for row in rows("weights", 2)),
        tuple(Slab(d, size, bool(keeps)) for d, size, keeps in rows("slabs", 3)),
        tuple(Kernel(*row) for row in rows("kernels", 5)),
        functions,
        regions,
    )
