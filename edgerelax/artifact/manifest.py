"""The manifest: everything a loader must know before it fetches anything else (docs/artifact.md).

JSON, validated by these structs on reading; unknown fields are refused, so that a typo is an error.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from edgerelax.ir.diagnostics import FormatError, InputError
from edgerelax.ir.dtypes import DTYPES

FORMAT = "edgerelax"
VERSION = 7
MANIFEST = "manifest.json"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
VariantName = Annotated[str, msgspec.Meta(pattern=r"\A[a-z][a-z0-9-]*\Z", max_length=30)]
Dim = int | str  # a constant, or an expression over the symbols


class Strict(msgspec.Struct, forbid_unknown_fields=True, frozen=True, kw_only=True):
    """Base of all parts."""


class SymbolInfo(Strict, frozen=True):
    """A symbolic dimension: its bounds (hi None: unbounded) and a known divisor."""

    lo: Count = 0
    hi: Count | None = None
    multiple_of: Annotated[int, msgspec.Meta(ge=1)] = 1


class TensorInfo(Strict, frozen=True):
    """An input or output. `shape` is None where only the rank or nothing is known."""

    name: str
    dtype: str
    shape: list[Dim] | None


class FunctionInfo(Strict, frozen=True):
    """An entry point and its signature; `states` are the names of those that it uses."""

    name: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]
    states: list[str] = []


class FileInfo(Strict, frozen=True):
    """Size and sha256 of a file of the folder."""

    bytes: Count
    sha256: Digest


class WeightPart(Strict, frozen=True):
    """A run of a weight's bytes in a shard."""

    file: FileName
    offset: Count
    bytes: Count


class Weight(Strict, frozen=True):
    """A constant tensor, little-endian and row-major; its parts follow one another.

    `bytes` are those of `dtype`; the parts hold the tensor as `stored`, if that is another.
    """

    name: str
    dtype: str
    shape: list[Count]
    bytes: Count
    parts: list[WeightPart]
    stored: Literal["f16"] | None = None

    @property
    def stored_bytes(self) -> int:
        """What its parts hold: half where f32 is stored as f16."""
        return self.bytes if self.stored is None else self.bytes // 2


class GpuKernel(Strict, frozen=True):
    """A WGSL module: bytes [start, end) of a file."""

    name: str
    file: FileName
    start: Count
    end: Count
    buffers: list[Literal["read", "read_write"]]  # by binding
    scalars: Count  # i32 uniforms, the grid included
    features: list[str] = []


class OperandInfo(Strict, frozen=True):
    """An operand of a library function; its dims come with each call."""

    dtype: str
    rank: Count


class LibraryInfo(Strict, frozen=True):
    """A way of calling a function that the host has to bring along, by name.

    Those of the CPU follow the CPU kernels in the function table, in this order; commands of the
    GPU name theirs by its number among those of the GPU.
    """

    function: str
    device: Literal["gpu", "cpu"]
    inputs: list[OperandInfo]
    outputs: list[OperandInfo]
    attrs: dict[str, Any] = {}


class SlabInfo(Strict, frozen=True):
    """A block of memory; bytes is an expression where a symbol has no bound."""

    device: str
    bytes: Dim


class MemoryInfo(Strict, frozen=True):
    """What running takes. Figures are None where a symbol has no upper bound."""

    slabs: list[SlabInfo]
    planned: Count | None
    lower_bound: Count | None
    unplanned: Count | None


class Needs(Strict, frozen=True):
    """What a machine must offer beyond WebGPU's defaults, or beyond WebAssembly with SIMD."""

    features: list[str] = []
    limits: dict[str, Count] = {}


class ProgramInfo(Strict, frozen=True):
    """A variant: one compiled form of the module.

    It runs on `device`; `adapter` is the class of adapter that its kernels are made for, None on
    the CPU. Others that offer what it needs run it too, more slowly.
    """

    name: VariantName
    device: Literal["gpu", "cpu"]
    adapter: Literal["gpu", "software"] | None
    needs: Needs
    program: FileName
    gpu_kernels: list[GpuKernel]
    cpu_kernels: list[str]  # names by index in the function table
    cpu_kernels_file: FileName | None
    libraries: list[LibraryInfo]
    weights_on_gpu: list[Count]
    weights_on_cpu: list[Count]
    memory: MemoryInfo


class Source(Strict, frozen=True):
    """The model that this was made from. `metadata` is what the model's author put in it."""

    file: str
    kind: str
    sha256: str
    metadata: dict[str, str] = {}


class LanguageInfo(Strict, frozen=True):
    """What turns the functions of a language model into text and back.

    `tokenizer` (a tokenizer.json) and `chat` (templates and special tokens, docs/chat.md) are
    assets. `eos` are all ids that end a text. `context`, `page_size` and `window` are counts of
    tokens; `page_size` is None where no function keeps pages. `functions` are entry points by what
    they do. A token sees no more than `window` tokens, with it; None: all before it.
    """

    architecture: str
    vocabulary: Annotated[int, msgspec.Meta(ge=1, le=2**31)]
    context: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    functions: dict[str, str]
    page_size: Annotated[int, msgspec.Meta(ge=1, le=2**31)] | None = None
    window: Annotated[int, msgspec.Meta(ge=1, le=2**53)] | None = None
    tokenizer: FileName | None = None
    chat: FileName | None = None
    bos: Count | None = None
    eos: list[Count] = []


class Manifest(Strict, frozen=True):
    """The whole folder. `assets` are files that came with the model, by the names they had.

    `states` live on between calls, on the device of the program. They are its first inputs, in this
    order; of their dims each is a number or a symbol, which the host chooses.
    """

    format: str
    version: int
    producer: str
    source: Source
    symbols: dict[str, SymbolInfo]
    functions: list[FunctionInfo]
    states: list[TensorInfo]
    programs: list[ProgramInfo]  # loaders take the first that fits
    vm: FileName
    weights: list[Weight]
    files: dict[FileName, FileInfo]
    assets: list[FileName]
    language: LanguageInfo | None

    def program(self, name: str) -> ProgramInfo:
        """The variant of that name. Raises InputError."""
        for program in self.programs:
            if program.name == name:
                return program
        raise InputError(
            f"this artifact has no variant {name!r}",
            hint=f"it has {', '.join(p.name for p in self.programs)}",
        )

    def files_of(self, program: ProgramInfo) -> list[str]:
        """The files that running a variant takes, the manifest aside."""
        used = (*program.weights_on_gpu, *program.weights_on_cpu)
        names = [self.vm, program.program, *(k.file for k in program.gpu_kernels)]
        names += [] if program.cpu_kernels_file is None else [program.cpu_kernels_file]
        names += [part.file for index in used for part in self.weights[index].parts]
        return list(dict.fromkeys(names))


def encode(manifest: Manifest) -> bytes:
    """JSON text, one field a line."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"


def decode(data: bytes, where: str = MANIFEST) -> Manifest:
    """Read and check a manifest. Raises FormatError with the place of the first fault."""
    raw = _decode_head(data, where)
    version = raw.get("version")
    if raw.get("format") != FORMAT:
        raise FormatError(
            f"{where}: not an edgerelax manifest (format is {raw.get('format')!r}, not {FORMAT!r})"
        )
    if isinstance(version, int) and version > VERSION:
        raise FormatError(
            f"{where}: artifact version {version} is newer than this loader's {VERSION}",
            hint="update edgerelax, or export the model again with this version",
        )
    if version != VERSION:
        raise FormatError(f"{where}: artifact version {version!r} is unknown, expected {VERSION}")
    try:
        manifest = msgspec.convert(raw, Manifest)
    except msgspec.ValidationError as error:
        raise FormatError(f"{where}: {error}", hint="export the model again") from error
    check_references(manifest, where)
    return manifest


def _decode_head(data: bytes, where: str) -> dict[str, Any]:
    try:
        raw = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(
            f"{where}: not JSON: {error}", hint="the file is damaged or was cut off; fetch it again"
        ) from error
    if not isinstance(raw, dict):
        raise FormatError(f"{where}: expected an object, found {type(raw).__name__}")
    return raw


def check_references(manifest: Manifest, where: str) -> None:
    """Every file named anywhere is listed, weights lie inside their shards, indices exist."""
    typed = [(w.name, w.dtype) for w in manifest.weights]
    typed += [(t.name, t.dtype) for f in manifest.functions for t in (*f.inputs, *f.outputs)]
    typed += [(state.name, state.dtype) for state in manifest.states]
    for name, dtype in typed:
        if dtype not in DTYPES:
            raise FormatError(f"{where}: {name} has the unknown dtype {dtype!r}")
    names = [program.name for program in manifest.programs]
    if len(set(names)) < len(names):
        raise FormatError(f"{where}: two variants of one name among {', '.join(names)}")
    for weight in manifest.weights:
        if weight.stored is not None and weight.dtype != "f32":
            raise FormatError(f"{where}: weight {weight.name} of {weight.dtype} is stored as f16")
        if sum(part.bytes for part in weight.parts) != weight.stored_bytes:
            raise FormatError(f"{where}: the parts of weight {weight.name} do not add up")
    for program in manifest.programs:
        _check_program(program, len(manifest.weights), where)
    _check_states(manifest, where)
    if manifest.language is not None:
        _check_language(manifest.language, manifest, where)
    named = {manifest.vm, *(part.file for weight in manifest.weights for part in weight.parts)}
    named.update(manifest.assets)
    for file in named.union(*(manifest.files_of(program) for program in manifest.programs)):
        if file not in manifest.files:
            raise FormatError(f"{where}: {file} is named but not listed under files")
    for program in manifest.programs:
        for kernel in program.gpu_kernels:
            if not kernel.start <= kernel.end <= manifest.files[kernel.file].bytes:
                raise FormatError(f"{where}: kernel {kernel.name} lies outside {kernel.file}")
    for weight in manifest.weights:
        for part in weight.parts:
            if part.offset + part.bytes > manifest.files[part.file].bytes:
                raise FormatError(f"{where}: weight {weight.name} lies outside {part.file}")
    if re.fullmatch(r"[\w .+-]{1,100}", manifest.producer) is None:
        raise FormatError(f"{where}: the producer {manifest.producer!r} is no name")


def _check_states(manifest: Manifest, where: str) -> None:
    known = [state.name for state in manifest.states]
    if len(set(known)) < len(known):
        raise FormatError(f"{where}: two states of one name among {', '.join(known)}")
    for state in manifest.states:
        for dim in (None,) if state.shape is None else state.shape:
            if not isinstance(dim, int) and dim not in manifest.symbols:
                raise FormatError(
                    f"{where}: state {state.name} has the dim {dim!r}, no number and no symbol"
                )
    for function in manifest.functions:
        for name in function.states:
            if name not in known:
                raise FormatError(f"{where}: function {function.name} uses no known state: {name}")


def _check_language(language: LanguageInfo, manifest: Manifest, where: str) -> None:
    for name in (language.tokenizer, language.chat):
        if name is not None and name not in manifest.assets:
            raise FormatError(f"{where}: language names {name}, which is not among the assets")
    known = {function.name for function in manifest.functions}
    for role, name in language.functions.items():
        if name not in known:
            raise FormatError(f"{where}: language has {name!r} to {role}, which is no function")
    for token in (*language.eos, *([] if language.bos is None else [language.bos])):
        if token >= language.vocabulary:
            raise FormatError(
                f"{where}: language names token {token} of a vocabulary of {language.vocabulary}"
            )


def _check_program(program: ProgramInfo, weights: int, where: str) -> None:
    if (program.device == "gpu") != (program.adapter is not None):
        raise FormatError(f"{where}: variant {program.name}: only those of a GPU have an adapter")
    if program.cpu_kernels and program.cpu_kernels_file is None:
        raise FormatError(f"{where}: variant {program.name}: its CPU kernels have no file")
    for entry in program.libraries:
        for operand in (*entry.inputs, *entry.outputs):
            if operand.dtype not in DTYPES:
                raise FormatError(
                    f"{where}: library {entry.function} has the unknown dtype {operand.dtype!r}"
                )
    for index in (*program.weights_on_gpu, *program.weights_on_cpu):
        if index >= weights:
            raise FormatError(f"{where}: no weight {index}, there are {weights}")
