"""A program as text, for people: `edgerelax inspect --program`."""

from collections.abc import Iterator

from edgerelax.codegen.bytecode import Function, Instruction, Operand, Place, Program, decode
from edgerelax.vm import isa


def disassemble(data: bytes) -> str:
    """All that a program file says. Raises FormatError where it cannot be read.

    A register is `%3`, a binding `slab 1 [%offset, %bytes]`, instruction number 12 `@12`.
    """
    program = decode(data)
    lines = [f"program version {isa.VERSION}"]
    lines += [
        f"weight {k}: {weight.bytes} bytes on {_places(weight.places)}"
        for k, weight in enumerate(program.weights)
    ]
    lines += [
        f"slab {k}: {slab.bytes} bytes on {_name(isa.DEVICES, slab.device)}"
        + (", kept when it grows" if slab.keeps else "")
        for k, slab in enumerate(program.slabs)
    ]
    lines += [
        f"kernel {k}: {_name(isa.DEVICES, kernel.device)} kernel {kernel.index}, "
        f"{kernel.buffers} buffers, {kernel.scalars} scalars"
        + (f", steps in scalar {kernel.steps}" if kernel.steps else "")
        for k, kernel in enumerate(program.kernels)
    ]
    for function in program.functions:
        lines += ["", *_function(program, function)]
    return "\n".join(lines) + "\n"


def _name(names: tuple[str, ...], number: int) -> str:
    return names[number] if number < len(names) else f"?{number}"


def _places(places: int) -> str:
    return (
        " and ".join(name for k, name in enumerate(isa.DEVICES) if places >> k & 1) or "no device"
    )


def _function(program: Program, function: Function) -> Iterator[str]:
    strings = program.strings
    parameters = ", ".join(f"%{k}" for k in range(function.parameters))
    yield (
        f"function {_name(strings, function.name)}({parameters}): "
        f"{function.registers} registers, {function.results} results"
    )
    for k, row in enumerate(function.inputs):
        rank = "any" if row.rank == isa.ANY_RANK else str(row.rank)
        yield (
            f"  input {k}: {_name(strings, row.name)}, {_name(isa.DTYPE_NAMES, row.dtype)}, "
            f"rank {rank}, on {_places(row.places)}"
        )
    for k, result in enumerate(function.outputs):
        dtype = _name(isa.DTYPE_NAMES, result.dtype)
        yield f"  output {k}: {_name(strings, result.name)}, {dtype}"
    for k, instruction in enumerate(function.code):
        yield f"  {k:4} {_instruction(program, instruction)}"


def _instruction(program: Program, instruction: Instruction) -> str:
    kinds = isa.OPCODES[instruction.name].operands
    parts = [
        text
        for kind, operand in zip(kinds, instruction.operands, strict=True)
        if (text := _operand(program, kind, operand))
    ]
    return " ".join([f"{instruction.name:15}", ", ".join(parts)]).rstrip()


def _binding(place: Place) -> str:
    kind, index, offset, size = place
    start = "0" if offset == isa.NO_REGISTER else f"%{offset}"
    return f"{_name(isa.BINDING_KINDS, kind)} {index} [{start}, %{size}]"


def _operand(program: Program, kind: str, operand: Operand) -> str:
    match kind, operand:
        case (("dst" | "reg"), int()):
            return f"%{operand}"
        case "label", int():
            return f"@{operand}"
        case "string", int():
            return repr(_name(program.strings, operand))
        case "device", int():
            return _name(isa.DEVICES, operand)
        case "dtype", int():
            return _name(isa.DTYPE_NAMES, operand)
        case "word", int():
            return f"{operand:#010x}"
        case "function", int():
            known = operand < len(program.functions)
            name = program.functions[operand].name if known else len(program.strings)
            return f"{_name(program.strings, name)}"
        case (("i64" | "count"), int()):
            return str(operand)
        case _, int():
            return f"{kind} {operand}"
        case "binding", (int(kind_), int(index), int(offset), int(size)):
            return _binding((kind_, index, offset, size))
        case "bindings", tuple():
            return "(" + ", ".join(_operand(program, "binding", place) for place in operand) + ")"
        case _, tuple():
            return "(" + ", ".join(_operand(program, "reg", register) for register in operand) + ")"
    raise TypeError(f"{kind} operand {operand!r}")
