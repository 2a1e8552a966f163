"""Program files: what is built, encoded, decoded, disassembled."""

import pytest

from edgerelax.codegen.bytecode import decode, encode
from edgerelax.codegen.disassemble import disassemble
from edgerelax.codegen.program import ProgramBuilder
from edgerelax.ir.diagnostics import FormatError
from edgerelax.vm import isa
from tests.vm.samples import everything


def test_round_trip() -> None:
    program = everything().build()
    data = encode(program)
    assert decode(data) == program
    assert encode(decode(data)) == data


def test_every_opcode_is_sampled() -> None:
    program = everything().build()
    used = {instruction.name for f in program.functions for instruction in f.code}
    assert used == set(isa.OPCODES)


def test_disassembly_names_everything() -> None:
    text = disassemble(everything().encode())
    for name in isa.OPCODES:
        assert f" {name} " in text
    for part in ("'bärt: rank'", "slab 0 [", "@", "0xdeadbeef", "cpu kernel 0", "on gpu and cpu"):
        assert part in text, part


def test_constants_and_strings_are_interned() -> None:
    program = ProgramBuilder()
    f = program.function("main")
    assert f.const(7) == f.const(7)
    f.check_eq(f.const(7), f.const(7), "main")
    f.ret()
    built = program.build()
    assert built.strings == ("main",)
    assert [i.name for i in built.functions[0].code] == ["const", "check_eq", "ret"]


def test_places_come_from_uses_also_through_calls() -> None:
    program = everything().build()
    main = program.functions[0]
    assert [i.places for i in main.inputs] == [3, 1]
    assert [w.places for w in program.weights] == [2, 1]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "0 bytes are no program"),
        (b"ERX2" + bytes(20), "begins with b'ERX2'"),
        (b"ERX1" + (99).to_bytes(4, "little") + bytes(4), "version 99"),
        (b"ERX1" + isa.VERSION.to_bytes(4, "little") + bytes(4), "2 words wanted"),
    ],
)
def test_decode_refuses(data: bytes, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        decode(data)
    with pytest.raises(FormatError):
        disassemble(data)


def test_decode_of_damaged_programs_fails_in_words() -> None:
    data = bytearray(everything().encode())
    for at in range(0, len(data), 4):
        damaged = bytearray(data)
        damaged[at] ^= 0xFF
        try:
            disassemble(bytes(damaged))
        except FormatError as error:
            assert str(error).startswith("program: ")
