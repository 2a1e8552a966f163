"""Builds VM programs: a typed method for each instruction of `edgerelax/vm/isa.py`.

    program = ProgramBuilder()
    slab = program.slab("cpu", 4096)
    add = program.kernel("cpu", index=0, buffers=3, scalars=1)
    f = program.function("main", inputs=[InputSpec("x", F32, 1)], outputs=[OutputSpec("y", F32)])
    n = f.load_dim(0, 0)
    size = f.mul(n, f.const(4))
    x, y = Binding("input", 0, size), Binding("slab", slab, size)
    f.dispatch(add, n, [x, x, y], [n])
    f.output(0, "cpu", y, [n])
    f.ret()
    data = program.encode()

Constants and strings are interned; constants are set where the function begins, so that they hold
in every branch. The places of weights and inputs are gathered from the instructions that bind them.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NewType

from edgerelax.codegen.bytecode import (
    Function,
    Input,
    Instruction,
    Kernel,
    Operand,
    Output,
    Place,
    Program,
    Slab,
    Weight,
    encode,
)
from edgerelax.ir.dtypes import DType
from edgerelax.vm import isa

Reg = NewType("Reg", int)


@dataclass(frozen=True, slots=True)
class InputSpec:
    """An input of a function; `rank` None accepts any."""

    name: str
    dtype: DType
    rank: int | None


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """A result of a function."""

    name: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Binding:
    """`bytes` from `offset` (None: 0) of input, weight or slab number `index`."""

    kind: str
    index: int
    bytes: Reg
    offset: Reg | None = None


@dataclass(eq=False, slots=True)
class Label:
    """A point in a function's code: made by `label()`, set by `place()`."""

    position: int | None = None


def _place(binding: Binding) -> Place:
    offset = isa.NO_REGISTER if binding.offset is None else binding.offset
    return isa.BINDING_KINDS.index(binding.kind), binding.index, offset, binding.bytes


def _places(bindings: Iterable[Binding]) -> tuple[Place, ...]:
    return tuple(_place(binding) for binding in bindings)


def _device(name: str) -> int:
    return isa.DEVICES.index(name)


@dataclass(eq=False)
class ProgramBuilder:
    """Tables and functions of a program under construction."""

    strings: dict[str, int] = field(default_factory=dict)
    weights: list[Weight] = field(default_factory=list)
    slabs: list[Slab] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    libraries: set[int] = field(default_factory=set)  # places among the kernels
    functions: list["FunctionBuilder"] = field(default_factory=list)
    regions: int = 0
    _aside: int | None = None

    def string(self, text: str) -> int:
        return self.strings.setdefault(text, len(self.strings))

    def weight(self, size: int) -> int:
        """A buffer of `size` bytes that the host fills."""
        self.weights.append(Weight(size, 0))
        return len(self.weights) - 1

    def slab(self, device: str, size: int = 0) -> int:
        """A slab that has `size` bytes when a run begins; `ensure` makes it larger, and empty."""
        self.slabs.append(Slab(_device(device), size))
        return len(self.slabs) - 1

    def aside(self) -> int:
        """The slab by way of which the gpu copies within one of its buffers."""
        if self._aside is None:
            self._aside = self.slab("gpu")
        return self._aside

    def keep(self, slab: int) -> None:
        """Let the slab's contents outlive that it grows."""
        self.slabs[slab] = replace(self.slabs[slab], keeps=True)

    def kernel(self, device: str, index: int, buffers: int, scalars: int, steps: int = 0) -> int:
        """Kernel `index` of the device's table; `scalars` counts those after the grid.

        `steps`: which scalar says about how many instructions an iteration takes. 0: none, the grid
        is not split among threads.
        """
        row = Kernel(_device(device), index, buffers, scalars, steps)
        return self._kernel(row, library=False)

    def library(self, number: int, buffers: int, scalars: int) -> int:
        """Library function `number` of the cpu, as a kernel: those follow all others."""
        return self._kernel(Kernel(_device("cpu"), number, buffers, scalars), library=True)

    def function(
        self,
        name: str,
        inputs: Sequence[InputSpec] = (),
        outputs: Sequence[OutputSpec] = (),
        parameters: int = 0,
        results: int = 0,
    ) -> "FunctionBuilder":
        """A function; the host can run those without parameters and results, in order of making.

        One that is called shares the inputs and outputs of its caller, and may have fewer.
        """
        made = FunctionBuilder(
            self, len(self.functions), name, inputs, outputs, parameters, results
        )
        self.functions.append(made)
        return made

    def build(self) -> Program:
        """The program as data. Call it once all functions are whole."""
        self._share_places()
        functions = tuple(f.build() for f in self.functions)
        return Program(
            tuple(self.strings),
            tuple(self.weights),
            tuple(self.slabs),
            self._kernel_rows(),
            functions,
            self.regions,
        )

    def encode(self) -> bytes:
        return encode(self.build())

    def _kernel(self, row: Kernel, library: bool) -> int:
        for k, known in enumerate(self.kernels):
            if known == row and (k in self.libraries) == library:
                return k
        self.kernels.append(row)
        if library:
            self.libraries.add(len(self.kernels) - 1)
        return len(self.kernels) - 1

    def _kernel_rows(self) -> tuple[Kernel, ...]:
        cpu = _device("cpu")
        own = [row for k, row in enumerate(self.kernels) if k not in self.libraries]
        first = 1 + max((row.index for row in own if row.device == cpu), default=-1)
        return tuple(
            replace(row, index=first + row.index) if k in self.libraries else row
            for k, row in enumerate(self.kernels)
        )

    def _share_places(self) -> None:
        """A caller's inputs are needed wherever those of the functions it calls are."""
        changed = True
        while changed:
            changed = False
            for f in self.functions:
                for callee in f.callees:
                    for k, places in enumerate(callee.places):
                        changed |= f.places[k] | places != f.places[k]
                        f.places[k] |= places


class FunctionBuilder:
    """Instructions of one function. Methods that give a value return its register.

    `into` names the register to write, for variables that change; else it is a new one.
    """

    def __init__(
        self,
        program: ProgramBuilder,
        number: int,
        name: str,
        inputs: Sequence[InputSpec],
        outputs: Sequence[OutputSpec],
        parameters: int,
        results: int,
    ) -> None:
        self.program = program
        self.number = number
        self.name = program.string(name)
        self.inputs = tuple(inputs)
        self.outputs = tuple(outputs)
        self.parameters = tuple(Reg(k) for k in range(parameters))
        self.results = results
        self.places = [0] * len(self.inputs)
        self.callees: list[FunctionBuilder] = []
        self._input_names = [program.string(spec.name) for spec in self.inputs]
        self._output_names = [program.string(spec.name) for spec in self.outputs]
        self._registers = parameters
        self._constants: dict[int, Reg] = {}
        self._code: list[tuple[str, tuple[Operand | Label, ...]]] = []

    # Registers and labels

    def register(self) -> Reg:
        """A new register, 0 until it is written."""
        self._registers += 1
        return Reg(self._registers - 1)

    def const(self, value: int) -> Reg:
        """The register that holds this constant; not to be written."""
        if value not in self._constants:
            if not -(1 << 63) <= value < 1 << 63:
                raise ValueError(f"constant {value} has more than 64 bits")
            self._constants[value] = self.register()
        return self._constants[value]

    def label(self) -> Label:
        return Label()

    def place(self, label: Label) -> None:
        """The next instruction is where the label points."""
        assert label.position is None, "a label is placed once"
        label.position = len(self._code)

    # Control

    def jump(self, label: Label) -> None:
        self._emit("jump", label)

    def jump_if_zero(self, condition: Reg, label: Label) -> None:
        self._emit("jump_if_zero", condition, label)

    def call(self, callee: "FunctionBuilder", *arguments: Reg) -> tuple[Reg, ...]:
        results = tuple(self.register() for _ in range(callee.results))
        self.callees.append(callee)
        self._emit("call", callee.number, arguments, results)
        return results

    def ret(self, *results: Reg) -> None:
        self._emit("ret", results)

    # Integers

    def move(self, source: Reg, into: Reg | None = None) -> Reg:
        return self._value("move", into, source)

    def add(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("add", into, a, b)

    def sub(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("sub", into, a, b)

    def mul(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("mul", into, a, b)

    def floordiv(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("floordiv", into, a, b)

    def mod(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("mod", into, a, b)

    def min(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("min", into, a, b)

    def max(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("max", into, a, b)

    def ge(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("ge", into, a, b)

    def eq(self, a: Reg, b: Reg, into: Reg | None = None) -> Reg:
        return self._value("eq", into, a, b)

    def select(self, condition: Reg, then: Reg, other: Reg, into: Reg | None = None) -> Reg:
        return self._value("select", into, condition, then, other)

    def load_dim(self, k: int, dimension: int, into: Reg | None = None) -> Reg:
        return self._value("load_dim", into, k, dimension)

    # Checks: the text should name what is checked; the VM adds both values.

    def check_eq(self, a: Reg, b: Reg, text: str) -> None:
        self._emit("check_eq", a, b, self.program.string(text))

    def check_le(self, a: Reg, b: Reg, text: str) -> None:
        self._emit("check_le", a, b, self.program.string(text))

    def check_divisible(self, a: Reg, b: Reg, text: str) -> None:
        self._emit("check_divisible", a, b, self.program.string(text))

    def fail(self, text: str) -> None:
        self._emit("fail", self.program.string(text))

    # Memory, regions, commands

    def ensure(self, slab: int, size: Reg) -> None:
        self._emit("ensure", slab, size)

    @contextmanager
    def region(self, device: str, keys: Sequence[Reg], late: Sequence[Reg] = ()) -> Iterator[None]:
        """Instructions whose commands depend on `keys` alone, but for scalars in `late`.

        Registers written inside are not read outside: a replay skips the instructions.
        """
        number = self.program.regions
        self.program.regions += 1
        end = self.label()
        self._emit("region", number, _device(device), tuple(keys), tuple(late), end)
        yield
        self._emit("end_region", number)
        self.place(end)

    def dispatch(
        self, kernel: int, grid: Reg, bindings: Sequence[Binding], scalars: Sequence[Reg]
    ) -> None:
        self._bound(self.program.kernels[kernel].device, bindings)
        self._emit("dispatch", kernel, grid, _places(bindings), tuple(scalars))

    def copy(self, device: str, dst: Binding, src: Binding) -> None:
        """Both bindings have equal bytes; on the gpu they do not overlap.

        There it is no command for a region if both are of one buffer, as WebGPU copies between two.
        """
        if device == "gpu" and (dst.kind, dst.index) == (src.kind, src.index):
            aside = Binding("slab", self.program.aside(), src.bytes)
            self.ensure(aside.index, src.bytes)
            self.copy(device, aside, src)
            src = aside
        self._bound(_device(device), (dst, src))
        self._emit("copy", _device(device), _place(dst), _place(src))

    def fill(self, device: str, dst: Binding, word: int) -> None:
        """Repeat a 32-bit pattern."""
        self._bound(_device(device), (dst,))
        self._emit("fill", _device(device), _place(dst), word)

    def read(self, device: str, src: Binding, dtype: DType, count: int) -> tuple[Reg, ...]:
        """The first `count` elements as integers."""
        self._bound(_device(device), (src,))
        made = tuple(self.register() for _ in range(count))
        number = isa.DTYPE_NUMBER[dtype.name]
        self._emit("read", made[0], count, number, _device(device), _place(src))
        return made

    def to_cpu(self, dst: Binding, src: Binding) -> None:
        self._bound(_device("cpu"), (dst,))
        self._bound(_device("gpu"), (src,))
        self._emit("to_cpu", _place(dst), _place(src))

    def to_gpu(self, dst: Binding, src: Binding) -> None:
        self._bound(_device("gpu"), (dst,))
        self._bound(_device("cpu"), (src,))
        self._emit("to_gpu", _place(dst), _place(src))

    def library(self, name: str, bindings: Sequence[Binding], scalars: Sequence[Reg]) -> None:
        self._bound(_device("gpu"), bindings)
        self._emit("library", self.program.string(name), _places(bindings), tuple(scalars))

    def output(self, k: int, device: str, binding: Binding, dims: Sequence[Reg]) -> None:
        self._bound(_device(device), (binding,))
        self._emit("output", k, _device(device), _place(binding), tuple(dims))

    # The rest is for ProgramBuilder

    def build(self) -> Function:
        code = tuple(
            Instruction("const", (register, value)) for value, register in self._constants.items()
        )
        prologue = len(code)

        def resolve(operand: Operand | Label) -> Operand:
            if not isinstance(operand, Label):
                return operand
            assert operand.position is not None, "a label that is used is placed"
            return operand.position + prologue

        code += tuple(
            Instruction(name, tuple(map(resolve, operands))) for name, operands in self._code
        )
        inputs = tuple(
            Input(
                name,
                isa.DTYPE_NUMBER[spec.dtype.name],
                isa.ANY_RANK if spec.rank is None else spec.rank,
                places,
            )
            for name, spec, places in zip(self._input_names, self.inputs, self.places, strict=True)
        )
        outputs = tuple(
            Output(name, isa.DTYPE_NUMBER[spec.dtype.name])
            for name, spec in zip(self._output_names, self.outputs, strict=True)
        )
        return Function(
            self.name, len(self.parameters), self.results, self._registers, inputs, outputs, code
        )

    def _emit(self, name: str, *operands: Operand | Label) -> None:
        self._code.append((name, operands))

    def _value(self, name: str, into: Reg | None, *operands: int) -> Reg:
        dst = self.register() if into is None else into
        self._emit(name, dst, *operands)
        return dst

    def _bound(self, device: int, bindings: Iterable[Binding]) -> None:
        for binding in bindings:
            if binding.kind == "input":
                self.places[binding.index] |= 1 << device
            elif binding.kind == "weight":
                row = self.program.weights[binding.index]
                self.program.weights[binding.index] = replace(row, places=row.places | 1 << device)
