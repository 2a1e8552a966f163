"""The manifest: everything a loader must know before it fetches anything else (docs/artifact.md).

JSON, validated by these structs on reading; unknown fields are refused, so that a typo is an error.
"""

import re
from typing import Annotated, Any, Literal

import msgspec

from edgerelax.ir.diagnostics import FormatError
from edgerelax.ir.dtypes import DTYPES

FORMAT = "edgerelax"
VERSION = 1
MANIFEST = "manifest.json"

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Digest = Annotated[str, msgspec.Meta(pattern=r"\A[0-9a-f]{64}\Z")]
FileName = Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]*\Z", max_length=200)]
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
    """An entry point and its signature."""

    name: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo]


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
    """A constant tensor, little-endian and row-major; its parts follow one another."""

    name: str
    dtype: str
    shape: list[Count]
    bytes: Count
    parts: list[WeightPart]


class GpuKernel(Strict, frozen=True):
    """A WGSL module: bytes [start, end) of the program's kernels file."""

    name: str
    start: Count
    end: Count
    buffers: list[Literal["read", "read_write"]]  # by binding
    scalars: Count  # i32 uniforms, the grid included
    features: list[str] = []


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


class ProgramInfo(Strict, frozen=True):
    """One compiled form of the module: its main device, VM program, kernels and memory."""

    device: str
    program: FileName
    kernels: FileName | None  # WGSL text of the GPU kernels
    gpu_kernels: list[GpuKernel]
    weights_on_gpu: list[Count]
    weights_on_cpu: list[Count]
    memory: MemoryInfo


class Needs(Strict, frozen=True):
    """What an adapter must offer beyond WebGPU's defaults."""

    features: list[str] = []
    limits: dict[str, Count] = {}


class Source(Strict, frozen=True):
    """The model that this was made from. `metadata` is what the model's author put in it."""

    file: str
    kind: str
    sha256: str
    metadata: dict[str, str] = {}


class Manifest(Strict, frozen=True):
    """The whole folder."""

    format: str
    version: int
    producer: str
    source: Source
    symbols: dict[str, SymbolInfo]
    functions: list[FunctionInfo]
    programs: list[ProgramInfo]
    cpu_kernels: list[str]  # names by index in kernels.wasm
    cpu_kernels_file: FileName | None
    vm: FileName
    weights: list[Weight]
    needs: Needs
    files: dict[FileName, FileInfo]

    def program(self, device: str) -> ProgramInfo:
        """The program whose main device is `device`."""
        for program in self.programs:
            if program.device == device:
                return program
        offered = ", ".join(p.device for p in self.programs)
        raise FormatError(
            f"this artifact has no program for {device}, only for {offered}",
            hint=f"export it with a target that includes {device}",
        )


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
    _check_references(manifest, where)
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


def _check_references(manifest: Manifest, where: str) -> None:
    """Every file named anywhere is listed, weights lie inside their shards, indices exist."""
    typed = [(w.name, w.dtype) for w in manifest.weights]
    typed += [(t.name, t.dtype) for f in manifest.functions for t in (*f.inputs, *f.outputs)]
    for name, dtype in typed:
        if dtype not in DTYPES:
            raise FormatError(f"{where}: {name} has the unknown dtype {dtype!r}")
    devices = [program.device for program in manifest.programs]
    if len(set(devices)) < len(devices):
        raise FormatError(f"{where}: two programs for one device among {', '.join(devices)}")
    named = [manifest.vm, manifest.cpu_kernels_file]
    for program in manifest.programs:
        named += [program.program, program.kernels]
        size = manifest.files[program.kernels].bytes if program.kernels in manifest.files else 0
        for kernel in program.gpu_kernels:
            if not kernel.start <= kernel.end <= size:
                raise FormatError(f"{where}: kernel {kernel.name} lies outside {program.kernels}")
        for index in (*program.weights_on_gpu, *program.weights_on_cpu):
            if index >= len(manifest.weights):
                raise FormatError(f"{where}: no weight {index}, there are {len(manifest.weights)}")
    for weight in manifest.weights:
        named += [part.file for part in weight.parts]
        if sum(part.bytes for part in weight.parts) != weight.bytes:
            raise FormatError(f"{where}: the parts of weight {weight.name} do not add up")
    for file in named:
        if file is not None and file not in manifest.files:
            raise FormatError(f"{where}: {file} is named but not listed under files")
    for weight in manifest.weights:
        for part in weight.parts:
            if part.offset + part.bytes > manifest.files[part.file].bytes:
                raise FormatError(f"{where}: weight {weight.name} lies outside {part.file}")
    if re.fullmatch(r"[\w .+-]{1,100}", manifest.producer) is None:
        raise FormatError(f"{where}: the producer {manifest.producer!r} is no name")
