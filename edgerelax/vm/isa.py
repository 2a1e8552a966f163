"""The virtual machine's one table: opcodes, commands, codes and layouts.

`python -m edgerelax.vm.isa --write` makes `opcodes.h` for the C sources and `runtime-js/src/isa.ts`
for the JavaScript host; `--check` fails where they are stale.

A program file is 32-bit little-endian words: MAGIC, VERSION, bytes of the file, then the sections
of `SECTIONS` in that order, each `id, bytes, payload`, the payload padded to a whole word:

    strings    count, bytes of each…, UTF-8 texts one after another
    weights    count, (bytes, places)…
    slabs      count, (device, bytes, keeps)…
    kernels    count, (device, index, buffers, scalars, steps)…   scalars: those after the grid
    functions  count, regions, (name, parameters, results, registers, code words, inputs, outputs,
               (name, dtype, rank or ANY_RANK, places)…, (name, dtype)…)…
    code       the functions' instructions, one function after another

`places` has a bit for each device that binds the weight or input. `keeps` is 1 where a slab's
contents must outlive its growing, else 0. `steps` is the number of the
scalar that says about how many wasm instructions an iteration takes; 0 if none does: the grid is
not split among threads. An instruction is a word `opcode | words << 8`, then its operands as
`OPERANDS` says; a command is laid out alike.
"""

import sys
from dataclasses import dataclass
from pathlib import Path

from edgerelax.ir.dtypes import DTYPES

MAGIC = int.from_bytes(b"ERX1", "little")
VERSION = 3
MAX_RANK = 16
ANY_RANK = 0xFFFFFFFF
NO_REGISTER = 0xFFFFFFFF
MAX_REGISTERS = 1 << 16
MAX_BUFFERS = 256
MAX_SCALARS = 1024
GPU_SCALARS = 63  # with the grid they fill a 256-byte uniform slot
GPU_OFFSET_ALIGNMENT = 256
LISTS_PER_REGION = 64
FIRST_PAGES, MOST_PAGES = 16, 1 << 16  # of 64 KiB, of the memory that vm.wasm imports

SECTIONS = ("strings", "weights", "slabs", "kernels", "functions", "code")
DEVICES = ("gpu", "cpu")
BINDING_KINDS = ("input", "weight", "slab")
STATUSES = ("done", "need_read", "flush", "error")
ERRORS = (
    "none",
    "format",  # the program file is damaged or foreign
    "input",  # an input's dtype, rank or size does not fit the signature
    "check",  # a check of the program failed: shapes do not agree
    "value",  # overflow, division by zero, a number out of range
    "limit",  # too many steps or too deep calls
    "memory",  # memory is exhausted
    "binding",  # a binding leaves its slab, input or weight
    "usage",  # the host broke the protocol
    "trap",  # a cpu kernel trapped in a helper
)
STATS = (
    "instructions",
    "dispatches",
    "list_hits",
    "list_misses",
    "lists_forgotten",
    "gpu_slab_bytes",
    "cpu_slab_bytes",
    "helped_pieces",  # of kernels' grids, that other threads took
)

OPERANDS = {
    "dst": "d",  # a register written
    "reg": "r",  # a register read
    "i64": "i",  # two words, low first
    "count": "u",
    "word": "w",  # 32 bits of any meaning
    "label": "l",  # an instruction of this function, as a word offset from its first
    "string": "s",
    "region": "g",
    "device": "v",
    "dtype": "t",
    "input": "n",
    "output": "o",
    "slab": "m",
    "kernel": "k",
    "function": "f",
    "binding": "b",  # kind, index, offset register or NO_REGISTER (0), bytes register
    "dsts": "D",  # a count, then as many
    "regs": "R",
    "bindings": "B",
}


@dataclass(frozen=True, slots=True)
class Opcode:
    """One instruction; `operands` are names of OPERANDS."""

    name: str
    operands: tuple[str, ...]
    effect: str

    @property
    def letters(self) -> str:
        return "".join(OPERANDS[kind] for kind in self.operands)


def _rows(*rows: tuple[str, str, str]) -> dict[str, Opcode]:
    return {name: Opcode(name, tuple(kinds.split()), effect) for name, kinds, effect in rows}


OPCODES = _rows(
    ("jump", "label", "go to label"),
    ("jump_if_zero", "reg label", "go to label if reg is 0"),
    ("call", "function regs dsts", "run a function on copies of regs; its results go to dsts"),
    ("ret", "regs", "end the function; regs are its results"),
    ("const", "dst i64", "dst = i64"),
    ("move", "dst reg", "dst = reg"),
    ("add", "dst reg reg", "dst = a + b"),
    ("sub", "dst reg reg", "dst = a - b"),
    ("mul", "dst reg reg", "dst = a * b"),
    ("floordiv", "dst reg reg", "dst = a / b rounded down"),
    ("mod", "dst reg reg", "dst = a - b * floor(a / b)"),
    ("min", "dst reg reg", "dst = the smaller of a and b"),
    ("max", "dst reg reg", "dst = the greater of a and b"),
    ("ge", "dst reg reg", "dst = 1 if a >= b, else 0"),
    ("eq", "dst reg reg", "dst = 1 if a == b, else 0"),
    ("select", "dst reg reg reg", "dst = b if a is not 0, else c"),
    ("load_dim", "dst input count", "dst = size of dimension `count` of the input"),
    ("check_eq", "reg reg string", "fail with the text and both values unless a == b"),
    ("check_le", "reg reg string", "fail with the text and both values unless a <= b"),
    ("check_divisible", "reg reg string", "fail with the text and both values unless b divides a"),
    ("fail", "string", "fail with the text"),
    ("ensure", "slab reg", "the slab has at least reg bytes; growing loses what is not kept"),
    ("region", "region device regs regs label",
     "keys, late scalars: replay the list of these keys and go to label, or start recording"),
    ("end_region", "region", "stop recording"),
    ("dispatch", "kernel reg bindings regs", "run a kernel over a grid of reg; nothing if it is 0"),
    ("copy", "device binding binding", "the first binding's bytes become the second's"),
    ("fill", "device binding word", "the binding's bytes become repetitions of the word"),
    ("read", "dst count dtype device binding",
     "`count` registers from dst on = the binding's elements as integers; may suspend"),
    ("to_cpu", "binding binding", "cpu binding = gpu binding; suspends"),
    ("to_gpu", "binding binding", "gpu binding = cpu binding"),
    ("library", "string bindings regs", "run a library function of the host on the gpu"),
    ("output", "output device binding regs", "result `output` lies in the binding, dims are regs"),
)  # fmt: skip

COMMANDS: dict[str, tuple[str, str]] = {
    # A place is four words: kind, index, offset, bytes. On the gpu bytes are 4, 8, 12….
    # An address is two words, low first; in wasm the high one is 0.
    "reset": ("", "forget every list; an ensure follows for each slab that has bytes"),
    "ensure": (
        "slab bytes keeps",
        "grow the slab's buffer to at least that size; it loses its contents if keeps is 0",
    ),
    "record": ("list", "execute what follows up to end_record, and remember it"),
    "end_record": ("list", ""),
    "replay": (
        "list count (dispatch scalar value)…",
        "execute the list again, first setting scalars of its dispatches and libraries, from 0",
    ),
    "forget": ("list", "the list will not be replayed again"),
    "dispatch": (
        "kernel count place… count scalar…",
        "kernel is the index in its device's table; scalar 0 is the grid, never 0",
    ),
    "copy": ("place place", "the first becomes the second: of equal bytes, offsets multiples of 4"),
    "fill": ("place word", "the place becomes repetitions of the word"),
    "upload": ("place bytes address", "the place's first bytes become those at the address"),
    "read": ("place bytes address", "bytes at the address become the place's first; then resume"),
    "library": (
        "length address count place… count scalar…",
        "call the library function whose name has that length and address",
    ),
}  # fmt: skip

# Descriptors in memory, in order: name and number of 32-bit words.
INPUT_FIELDS = (("dtype", 1), ("rank", 1), ("dims", MAX_RANK), ("bytes", 1), ("pointer", 1))
OUTPUT_FIELDS = (
    ("dtype", 1),
    ("rank", 1),
    ("dims", MAX_RANK),
    ("device", 1),
    ("kind", 1),
    ("index", 1),
    ("offset", 1),
    ("bytes", 1),
    ("pointer", 1),  # cpu only
)

OPCODE_NUMBER = {name: number for number, name in enumerate(OPCODES)}
COMMAND_NUMBER = {name: number for number, name in enumerate(COMMANDS)}
DTYPE_NUMBER = {name: number for number, name in enumerate(DTYPES)}
DTYPE_NAMES = tuple(DTYPES)


def layout(fields: tuple[tuple[str, int], ...]) -> tuple[dict[str, int], int]:
    """The word offset of each field, and the number of words of all."""
    offsets: dict[str, int] = {}
    at = 0
    for name, words in fields:
        offsets[name] = at
        at += words
    return offsets, at


_LIMITS = {
    "MAGIC": MAGIC,
    "VERSION": VERSION,
    "MAX_RANK": MAX_RANK,
    "ANY_RANK": ANY_RANK,
    "NO_REGISTER": NO_REGISTER,
    "MAX_REGISTERS": MAX_REGISTERS,
    "MAX_BUFFERS": MAX_BUFFERS,
    "MAX_SCALARS": MAX_SCALARS,
    "GPU_SCALARS": GPU_SCALARS,
    "GPU_OFFSET_ALIGNMENT": GPU_OFFSET_ALIGNMENT,
    "LISTS_PER_REGION": LISTS_PER_REGION,
}
_HEAD = "/* Generated by `python -m edgerelax.vm.isa --write`; do not edit. */\n"


def _enum(type_name: str, prefix: str, names: tuple[str, ...]) -> str:
    rows = "".join(f"  {prefix}_{name.upper()},\n" for name in names)
    return f"typedef enum {{\n{rows}}} {type_name};\n"


def _macro_list(macro: str, rows: list[str]) -> str:
    return f"#define {macro}(X) \\\n" + " \\\n".join(f"  X({row})" for row in rows) + "\n"


def header() -> str:
    """The text of `opcodes.h`."""
    opcodes = [f'{op.name.upper()}, "{op.letters}", "{op.name}"' for op in OPCODES.values()]
    dtypes = [f'{d.name.upper()}, "{d.name}", {d.kind.upper()}, {d.bits}' for d in DTYPES.values()]
    kinds = tuple(dict.fromkeys(d.kind for d in DTYPES.values()))
    parts = (
        _HEAD,
        "#ifndef ER_OPCODES_H\n#define ER_OPCODES_H\n",
        "".join(f"#define ER_{name} {value}u\n" for name, value in _LIMITS.items()),
        _enum("ErSection", "ER_SECTION", (*SECTIONS, "count")),
        _enum("ErDevice", "ER_DEVICE", (*DEVICES, "count")),
        _enum("ErKind", "ER_KIND", (*BINDING_KINDS, "count")),
        _enum("ErStatus", "ER", STATUSES),
        _enum("ErError", "ER_ERROR", ERRORS),
        _enum("ErStat", "ER_STAT", (*STATS, "count")),
        _enum("ErCommand", "ER_COMMAND", tuple(COMMANDS)),
        _enum("ErNumberKind", "ER_NUMBER", kinds),
        "/* name, operand letters, text */\n" + _macro_list("ER_OPCODES", opcodes),
        "/* name, text, kind, bits */\n" + _macro_list("ER_DTYPES", dtypes),
        "#endif\n",
    )
    return "\n".join(parts)


def _table(name: str, names: tuple[str, ...]) -> str:
    rows = "".join(f"  {key}: {number},\n" for number, key in enumerate(names))
    return f"export const {name} = {{\n{rows}}} as const;\n"


def _array(name: str, texts: tuple[str, ...]) -> str:
    rows = "".join(f"  '{text}',\n" for text in texts)
    return f"export const {name} = [\n{rows}] as const;\n"


def _ts_layout(name: str, fields: tuple[tuple[str, int], ...]) -> str:
    offsets, words = layout(fields)
    rows = "".join(f"  {field}: {at},\n" for field, at in offsets.items())
    return (
        f"/** Word offsets. */\nexport const {name} = {{\n{rows}  words: {words},\n}} as const;\n"
    )


def typescript() -> str:
    """The text of `runtime-js/src/isa.ts`."""
    commands = "".join(
        f"  /** {operands or '-'}{': ' + effect if effect else ''} */\n  {name}: {number},\n"
        for number, (name, (operands, effect)) in enumerate(COMMANDS.items())
    )
    parts = (
        _HEAD,
        f"export const PROGRAM_VERSION = {VERSION};\nexport const MAX_RANK = {MAX_RANK};\n",
        f"/** Of 64 KiB, of the VM's memory. */\nexport const FIRST_PAGES = {FIRST_PAGES};\n"
        f"export const MOST_PAGES = {MOST_PAGES};\n",
        "/** A command is a word `number | words << 8`, then its operands. A place is four words:\n"
        " * kind, index, offset, bytes. An address is two words, low first. */\n"
        f"export const COMMAND = {{\n{commands}}} as const;\n",
        _table("STATUS", STATUSES),
        _table("DEVICE", DEVICES),
        _table("BINDING", BINDING_KINDS),
        _array("ERRORS", ERRORS),
        f"/** Of Float64Array(memory, er_stats(model)). */\n{_table('STAT', STATS)}",
        _array("DTYPES", DTYPE_NAMES),
        _ts_layout("INPUT", INPUT_FIELDS),
        _ts_layout("OUTPUT", OUTPUT_FIELDS),
    )
    return "\n".join(parts)


def generated() -> dict[Path, str]:
    """Each generated file of a source checkout and the text it must have."""
    here = Path(__file__).parent
    return {
        here / "opcodes.h": header(),
        here.parent.parent / "runtime-js" / "src" / "isa.ts": typescript(),
    }


def main(arguments: list[str]) -> int:
    """`--write` makes the generated files, `--check` compares them."""
    if arguments not in (["--write"], ["--check"]):
        print("usage: python -m edgerelax.vm.isa --write | --check")
        return 2
    stale = 0
    for path, text in generated().items():
        if arguments == ["--write"]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            print(f"{path} is stale: run python -m edgerelax.vm.isa --write")
            stale = 1
    return stale


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
