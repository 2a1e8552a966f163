"""What the loader refuses: each thing that a run trusts."""

import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from edgerelax.codegen.bytecode import (
    Function,
    Input,
    Instruction,
    Kernel,
    Output,
    Program,
    Slab,
    Weight,
    encode,
)
from edgerelax.hosts.vm import Vm
from edgerelax.ir.diagnostics import FormatError
from edgerelax.vm import isa

F32, I64, I4 = (isa.DTYPE_NUMBER[name] for name in ("f32", "i64", "i4"))
GPU, CPU = 0, 1
INPUT, WEIGHT, SLAB = range(3)
NONE = isa.NO_REGISTER
VM = Vm()

RET = Instruction("ret", ((),))
BASE = Program(
    strings=("main", "x", "y"),
    weights=(Weight(16, 1), Weight(16, 2)),
    slabs=(Slab(GPU, 256), Slab(CPU, 256)),
    kernels=(Kernel(GPU, 0, 1, 1), Kernel(CPU, 0, 0, 0)),
    functions=(
        Function(0, 0, 0, 4, (Input(1, F32, 1, 1),), (Output(2, F32),), (RET,)),
        Function(0, 1, 1, 4, (), (), (Instruction("ret", ((0,),)),)),
        Function(0, 0, 0, 4, (Input(1, F32, 1, 2),), (), (RET,)),
    ),
    regions=2,
)

Code = tuple[Instruction, ...]


def I(name: str, *operands: object) -> Instruction:  # noqa: N802, E743
    return Instruction(name, operands)  # type: ignore[arg-type]


def only(*code: Instruction) -> Program:
    main = replace(BASE.functions[0], code=code)
    return replace(BASE, functions=(main, *BASE.functions[1:]))


def with_code(*code: Instruction) -> Program:
    return only(*code, RET)


def in_region(
    *code: Instruction, keys: tuple[int, ...] = (), late: tuple[int, ...] = ()
) -> Program:
    end = len(code) + 2
    return with_code(I("region", 0, GPU, keys, late, end), *code, I("end_region", 0))


SLAB_0, SLAB_1 = (SLAB, 0, NONE, 0), (SLAB, 1, NONE, 0)

CODE = {
    "register written": (with_code(I("const", 4, 1)), "word 0 (const): register 4 of 4"),
    "register read": (with_code(I("add", 0, 1, 9)), "(add): register 9 of 4"),
    "register in a list": (with_code(I("call", 1, (7,), (0,))), "(call): register 7 of 4"),
    "result register": (with_code(I("call", 1, (0,), (7,))), "(call): register 7 of 4"),
    "string": (with_code(I("fail", 3)), "(fail): string 3 of 3"),
    "input": (with_code(I("load_dim", 0, 1, 0)), "(load_dim): input 1 of 1"),
    "dimension": (with_code(I("load_dim", 0, 0, 16)), "(load_dim): dimension 16 of 16"),
    "slab": (with_code(I("ensure", 2, 0)), "(ensure): slab 2 of 2"),
    "function": (with_code(I("call", 3, (), ())), "(call): function 3 of 3"),
    "arguments": (
        with_code(I("call", 1, (), (0,))),
        "0 arguments and 1 results for a function of 1",
    ),
    "places of a callee": (with_code(I("call", 2, (), ())), "needs input 0 on another device"),
    "results": (with_code(I("ret", (0,))), "(ret): 1 results of a function of 0"),
    "kernel": (with_code(I("dispatch", 2, 0, (), ())), "(dispatch): kernel 2 of 2"),
    "buffers": (
        with_code(I("dispatch", 0, 0, (), (0,))),
        "0 buffers and 1 scalars for a kernel of 1",
    ),
    "scalars": (with_code(I("dispatch", 0, 0, (SLAB_0,), ())), "1 buffers and 0 scalars"),
    "kernel's device": (
        with_code(I("dispatch", 0, 0, (SLAB_1,), (0,))),
        "slab 1 is on another device",
    ),
    "binding kind": (with_code(I("fill", GPU, (3, 0, NONE, 0), 0)), "(fill): binding kind 3 of 3"),
    "binding": (with_code(I("fill", GPU, (SLAB, 2, NONE, 0), 0)), "(fill): binding 2 of 2"),
    "offset": (with_code(I("fill", GPU, (SLAB, 0, 4, 0), 0)), "(fill): register 4 of 4"),
    "bytes": (with_code(I("fill", GPU, (SLAB, 0, NONE, NONE), 0)), "register 4294967295 of 4"),
    "device": (with_code(I("fill", 2, SLAB_0, 0)), "(fill): device 2 of 2"),
    "slab's device": (with_code(I("fill", CPU, SLAB_0, 0)), "slab 0 is on another device"),
    "weight's places": (
        with_code(I("copy", CPU, SLAB_1, (WEIGHT, 0, NONE, 0))),
        "weight 0 is not kept",
    ),
    "input's places": (
        with_code(I("copy", CPU, SLAB_1, (INPUT, 0, NONE, 0))),
        "input 0 is not kept",
    ),
    "read of floats": (with_code(I("read", 0, 1, F32, GPU, SLAB_0)), "a read of f32; only bool"),
    "read of nibbles": (with_code(I("read", 0, 1, I4, GPU, SLAB_0)), "a read of i4; only bool"),
    "read of nothing": (with_code(I("read", 0, 0, I64, GPU, SLAB_0)), "registers 0 to 0 of 4"),
    "read of too many": (with_code(I("read", 1, 4, I64, GPU, SLAB_0)), "registers 1 to 5 of 4"),
    "read's device": (with_code(I("read", 1, 1, I64, GPU, SLAB_1)), "slab 1 is on another device"),
    "dtype": (with_code(I("read", 1, 1, 99, GPU, SLAB_0)), "(read): dtype 99 of 24"),
    "to_cpu": (with_code(I("to_cpu", SLAB_0, SLAB_1)), "slab 0 is on another device"),
    "to_gpu": (with_code(I("to_gpu", SLAB_1, SLAB_0)), "slab 1 is on another device"),
    "library": (with_code(I("library", 0, (SLAB_1,), ())), "slab 1 is on another device"),
    "output": (with_code(I("output", 1, GPU, SLAB_0, ())), "(output): output 1 of 1"),
    "rank": (with_code(I("output", 0, GPU, SLAB_0, (0,) * 17)), "(output): rank 17 of 17"),
    "region number": (with_code(I("region", 2, GPU, (), (), 1)), "(region): region 2 of 2"),
    "region label": (
        with_code(I("region", 0, GPU, (), (), 0), I("end_region", 0)),
        "(end_region): the region's label is 0",
    ),
    "open region": (
        only(I("const", 0, 1), I("region", 0, GPU, (), (), 0), I("fail", 0)),
        "word 4 (region): the region does not end",
    ),
    "no region": (with_code(I("end_region", 0)), "(end_region): no region is open"),
    "other region": (
        with_code(I("region", 0, GPU, (), (), 2), I("end_region", 1)),
        "ends region 1 inside region 0",
    ),
    "region twice": (
        with_code(*[I("region", 0, GPU, (), (), 2), I("end_region", 0)] * 2),
        "word 8 (region): region 0 stands twice",
    ),
    "nested": (in_region(I("region", 1, GPU, (), (), 2)), "(region): not inside a region"),
    "call inside": (in_region(I("call", 1, (0,), (0,))), "(call): not inside a region"),
    "ret inside": (in_region(RET), "(ret): not inside a region"),
    "ensure inside": (in_region(I("ensure", 0, 0)), "(ensure): not inside a region"),
    "read inside": (in_region(I("read", 0, 1, I64, GPU, SLAB_0)), "(read): not inside a region"),
    "output inside": (in_region(I("output", 0, GPU, SLAB_0, ())), "(output): not inside a region"),
    "other device inside": (
        in_region(I("fill", CPU, SLAB_1, 0)),
        "the region is on another device",
    ),
    "cpu kernel inside": (
        in_region(I("dispatch", 1, 0, (), ())),
        "the region is on another device",
    ),
    "key written": (
        in_region(I("const", 1, 5), keys=(1,)),
        "register 1 is a key of its region or late and",
    ),
    "late written": (
        in_region(I("const", 1, 5), late=(1,)),
        "register 1 is a key of its region or late and",
    ),
    "late read": (
        in_region(I("move", 0, 1), late=(1,)),
        "register 1 is late in its region and can",
    ),
    "late grid": (
        in_region(I("dispatch", 0, 1, (SLAB_0,), (0,)), late=(1,)),
        "is late in its region",
    ),
    "jump out": (in_region(I("jump", 3)), "the jump to word 10 leaves the region"),
    "jump to its start": (in_region(I("jump", 0)), "the jump to word 0 leaves the region"),
    "jump in": (
        with_code(I("jump", 2), I("region", 0, GPU, (), (), 3), I("end_region", 0)),
        "the jump to word 8 enters a region",
    ),
}


def refusal(data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        VM.open(data)
    assert caught.value.code == "format"
    return str(caught.value)


@pytest.mark.parametrize("name", CODE)
def test_code(name: str) -> None:
    program, words = CODE[name]
    text = refusal(encode(program))
    assert words in text
    assert text.startswith("program: function 'main', word ")


def test_the_base_is_good() -> None:
    VM.open(encode(BASE)).close()
    VM.open(encode(in_region(I("dispatch", 0, 0, (SLAB_0,), (1,)), keys=(0,), late=(1,)))).close()


TABLES: dict[str, tuple[Callable[[Program], Program], str]] = {
    "slab device": (
        lambda p: replace(p, slabs=(Slab(2, 0),)),
        "section slabs, row 0: device 2 of 2",
    ),
    "slab keeps": (
        lambda p: replace(p, slabs=(Slab(GPU, 0, 2),)),
        "section slabs, row 0: keeps 2 of 2",
    ),
    "kernel device": (lambda p: replace(p, kernels=(Kernel(9, 0, 0, 0),)), "row 0: device 9 of 2"),
    "gpu scalars": (
        lambda p: replace(p, kernels=(Kernel(GPU, 0, 0, 64),)),
        "row 0: scalars 64 of 64",
    ),
    "cpu scalars": (
        lambda p: replace(p, kernels=(Kernel(CPU, 0, 0, 1025),)),
        "scalars 1025 of 1025",
    ),
    "buffers": (lambda p: replace(p, kernels=(Kernel(CPU, 0, 257, 0),)), "buffers 257 of 257"),
    "function name": (lambda p: main(p, name=3), "section functions, row 0: name 3 of 3"),
    "registers": (lambda p: main(p, registers=65537), "row 0: registers 65537 of 65537"),
    "parameters": (lambda p: main(p, parameters=5), "row 0: parameters 5 of 5"),
    "input name": (lambda p: main(p, inputs=(Input(3, 0, 0, 0),)), "row 0: input name 3 of 3"),
    "input dtype": (lambda p: main(p, inputs=(Input(0, 24, 0, 0),)), "row 0: input dtype 24 of 24"),
    "input rank": (lambda p: main(p, inputs=(Input(0, 0, 17, 0),)), "row 0: input rank 17 of 17"),
    "output name": (lambda p: main(p, outputs=(Output(3, 0),)), "row 0: output name 3 of 3"),
    "output dtype": (lambda p: main(p, outputs=(Output(0, 24),)), "row 0: output dtype 24 of 24"),
    "no code": (lambda p: main(p, code=()), "function 'main' does not end in ret, jump or fail"),
    "end": (lambda p: main(p, code=(I("const", 0, 1),)), "does not end in ret, jump or fail"),
    "regions": (lambda p: replace(p, regions=99), "99 regions in 7 words"),
}


def main(program: Program, **changes: object) -> Program:
    return replace(
        program, functions=(replace(program.functions[0], **changes), *program.functions[1:])
    )


@pytest.mark.parametrize("name", TABLES)
def test_tables(name: str) -> None:
    change, words = TABLES[name]
    assert words in refusal(encode(change(BASE)))


def patched(at: int, word: int) -> bytes:
    data = bytearray(encode(BASE))
    struct.pack_into("<I", data, at, word)
    return bytes(data)


def test_head() -> None:
    size = len(encode(BASE))
    assert "0 bytes are no program" in refusal(b"")
    assert "13 bytes are no program" in refusal(bytes(13))
    assert "not a program: it begins with 7, not ERX1" in refusal(patched(0, 7))
    assert "program version 9; this virtual machine reads version 3" in refusal(patched(4, 9))
    assert f"says it has 16 bytes; {size} came" in refusal(patched(8, 16))
    assert "section 5 where section 0 (strings) belongs" in refusal(patched(12, 5))
    assert "section strings: 29 bytes are no whole words" in refusal(patched(16, 29))
    assert "section strings: 1073741823 words wanted" in refusal(patched(16, 0xFFFFFFFC))
    assert "section strings: 4294967295 words wanted, 5 left" in refusal(patched(20, 0xFFFFFFFF))
    assert "string 0 of 4294967295 bytes leaves its section" in refusal(patched(24, 0xFFFFFFFF))


def test_words_of_instructions() -> None:
    ret = isa.OPCODE_NUMBER["ret"]
    data = encode(with_code(I("const", 0, (ret | 3 << 8) << 32)))  # its last word can be a ret
    code = len(data) - 4 * (4 + 2 + 3 + 2)

    def broken(at: int, word: int) -> str:
        changed = bytearray(data)
        struct.pack_into("<I", changed, code + 4 * at, word)
        return refusal(bytes(changed))

    const = isa.OPCODE_NUMBER["const"]
    assert "word 0 (?): opcode 255 of" in broken(0, 255 | 4 << 8)
    assert "word 0 (const): 0 words" in broken(0, const)
    assert "word 0 (const): 99 words, 6 left" in broken(0, const | 99 << 8)
    assert "word 0 (const): 2 words of operands wanted, 1 left" in broken(0, const | 3 << 8)
    jump = isa.OPCODE_NUMBER["jump"]
    assert "word 0 (jump): 2 words too many" in broken(0, jump | 4 << 8)
    assert "word 4 (ret): 4294967296 words of operands wanted, 1 left" in broken(5, 0xFFFFFFFF)
    assert "word 4 (ret): an operand is missing" in refusal_of_short_ret(data, code, ret)


def refusal_of_short_ret(data: bytes, code: int, ret: int) -> str:
    """`ret` of one word, then a `ret` that begins where its operand stood."""
    changed = bytearray(data)
    struct.pack_into("<I", changed, code + 16, ret | 1 << 8)
    struct.pack_into("<I", changed, code + 20, ret | 1 << 8)
    return refusal(bytes(changed))


def test_jump_targets() -> None:
    data = bytearray(encode(with_code(I("jump", 1))))
    code = len(data) - 4 * (2 + 2 + 3 + 2)
    for target, words in ((1, "word 1 begins no"), (4, "word 4 begins no"), (1 << 31, "begins no")):
        struct.pack_into("<I", data, code + 4, target)
        assert words in refusal(bytes(data))
