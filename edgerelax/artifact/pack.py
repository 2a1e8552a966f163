"""Put what the compiler made into an artifact: files, hashes, and the manifest."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources
from typing import Any, TypeVar

import msgspec

from edgerelax.artifact.manifest import (
    FORMAT,
    MANIFEST,
    VERSION,
    FileName,
    FunctionInfo,
    GpuKernel,
    LanguageInfo,
    LibraryInfo,
    Manifest,
    MemoryInfo,
    Needs,
    OperandInfo,
    ProgramInfo,
    SlabInfo,
    Source,
    SymbolInfo,
    TensorInfo,
    Weight,
    check_references,
)
from edgerelax.artifact.store import Artifact, file_info
from edgerelax.artifact.weights import pack_weights
from edgerelax.codegen.libraries import LibraryCall
from edgerelax.ir.diagnostics import InputError
from edgerelax.ir.graph import (
    Constant,
    GraphFunc,
    Value,
    inputs_of,
    module_states,
    results_of,
    states,
)
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.plan import MemoryPlan, shared_slabs
from edgerelax.ir.types import as_tensor, symbols_of
from edgerelax.schedule.target import Variant
from edgerelax.sym import Expr, Symbol

Piece = TypeVar("Piece", bound=Hashable)
Checked = TypeVar("Checked")

DEFAULT_BINDING_BYTES = 128 << 20
DEFAULT_BUFFER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Compiled:
    """The program of a variant: bytecode, kernels with the GPU's texts, and its memory plans."""

    variant: Variant
    program: bytes
    gpu_kernels: Sequence[tuple[Kernel, str]]
    cpu_kernels: Sequence[Kernel]
    wasm: bytes | None
    weights_on_gpu: Sequence[int]
    weights_on_cpu: Sequence[int]
    plans: Sequence[MemoryPlan]
    libraries: Sequence[LibraryCall] = ()

    @property
    def weights(self) -> list[int]:
        return [*self.weights_on_gpu, *self.weights_on_cpu]


def pack(
    functions: Sequence[GraphFunc],
    programs: Sequence[Compiled],
    weights: Sequence[Constant],
    source: Source,
    producer: str,
    attrs: Mapping[str, Any],
) -> Artifact:
    """The artifact, in memory. `programs` stand in the order in which loaders prefer them.

    Of the module's attributes, `assets` (name → bytes) become files and `language` (fields of
    LanguageInfo) that part of the manifest.
    """
    users = _users(programs, lambda p: p.weights)
    listed, files = pack_weights(weights, [users.get(k, ()) for k in range(len(weights))])
    files["vm.wasm"] = (resources("edgerelax.vm") / "vm.wasm").read_bytes()
    infos = _programs(programs, listed, files)
    assets = _add_assets(attrs.get("assets", {}), files)
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        producer=producer,
        source=source,
        symbols=_symbols(functions),
        functions=[_function(f) for f in functions],
        states=[_tensor(s.name, s) for s in module_states(functions)],
        programs=infos,
        vm="vm.wasm",
        weights=listed,
        files={name: file_info(data) for name, data in files.items()},
        assets=assets,
        language=_language(attrs.get("language")),
    )
    check_references(manifest, "this module")
    return Artifact(manifest, files)


def _add_assets(assets: Mapping[str, bytes], files: dict[str, bytes]) -> list[str]:
    taken = [name for name in assets if name in files or name == MANIFEST]
    if taken:
        raise InputError(f"no asset may be called {taken[0]}: the artifact has a file of that name")
    files.update(assets)
    return _valid(list(assets), list[FileName], "the names of this module's assets")


def _language(fields: Mapping[str, Any] | None) -> LanguageInfo | None:
    if fields is None:
        return None
    return _valid(fields, LanguageInfo, "this module's attribute language")


def _valid(given: object, kind: type[Checked], what: str) -> Checked:
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InputError(f"{what}: {error}") from error


Users = tuple[str, ...]


def _users(
    programs: Sequence[Compiled], pieces: Callable[[Compiled], Iterable[Piece]]
) -> dict[Piece, Users]:
    """For each piece the names of the programs that it is a piece of."""
    found: dict[Piece, Users] = {}
    for program in programs:
        for piece in dict.fromkeys(pieces(program)):
            found[piece] = (*found.get(piece, ()), program.variant.name)
    return found


def _named(stem: str, users: Users, suffix: str) -> str:
    """The file of what exactly these programs use: equal pieces are stored and fetched once."""
    return f"{stem}-{'_'.join(users)}.{suffix}"


def _programs(
    programs: Sequence[Compiled], weights: Sequence[Weight], files: dict[str, bytes]
) -> list[ProgramInfo]:
    codes = {c: _named("program", u, "bin") for c, u in _users(programs, _code).items()}
    wasms = {w: _named("kernels", u, "wasm") for w, u in _users(programs, _wasm).items()}
    files |= {name: code for code, name in codes.items()}
    files |= {name: wasm for wasm, name in wasms.items()}
    texts = _pack_texts(_users(programs, lambda p: (text for _, text in p.gpu_kernels)), files)
    return [
        ProgramInfo(
            name=program.variant.name,
            device=program.variant.target.device,
            adapter=program.variant.target.adapter,
            needs=_needs(program, weights),
            program=codes[program.program],
            gpu_kernels=[_kernel(kernel, *texts[text]) for kernel, text in program.gpu_kernels],
            cpu_kernels=[kernel.name for kernel in program.cpu_kernels],
            cpu_kernels_file=None if program.wasm is None else wasms[program.wasm],
            libraries=[_library(call) for call in program.libraries],
            weights_on_gpu=list(program.weights_on_gpu),
            weights_on_cpu=list(program.weights_on_cpu),
            memory=_memory(program.plans),
        )
        for program in programs
    ]


def _code(program: Compiled) -> list[bytes]:
    return [program.program]


def _wasm(program: Compiled) -> list[bytes]:
    return [] if program.wasm is None else [program.wasm]


def _pack_texts(
    users: Mapping[str, Users], files: dict[str, bytes]
) -> dict[str, tuple[str, int, int]]:
    """WGSL modules one after another, in a file for each set of users: where each text stands."""
    texts: dict[str, bytearray] = {}
    places: dict[str, tuple[str, int, int]] = {}
    for text, names in users.items():
        name = _named("kernels", names, "wgsl")
        data = texts.setdefault(name, bytearray())
        start = len(data)
        data += text.encode()
        places[text] = (name, start, len(data))
    files |= {name: bytes(data) for name, data in texts.items()}
    return places


def _kernel(kernel: Kernel, file: str, start: int, end: int) -> GpuKernel:
    return GpuKernel(
        name=kernel.name,
        file=file,
        start=start,
        end=end,
        buffers=[b.access for b in kernel.buffers],
        scalars=1 + len(kernel.scalars),
        features=sorted(kernel.features),
    )


def _library(call: LibraryCall) -> LibraryInfo:
    return LibraryInfo(
        function=call.function,
        device="gpu" if call.device == "gpu" else "cpu",
        inputs=[OperandInfo(dtype=dtype.name, rank=rank) for dtype, rank in call.inputs],
        outputs=[OperandInfo(dtype=dtype.name, rank=rank) for dtype, rank in call.outputs],
        attrs=dict(call.attrs),
    )


def _memory(plans: Sequence[MemoryPlan]) -> MemoryInfo:
    """Of functions that never run at once: the most that one of them takes."""
    table, _ = shared_slabs([p.slabs for p in plans])
    slabs = [SlabInfo(device=s.device, bytes=_dim(s.size)) for s in table]
    sizes = [s.bytes for s in slabs]
    known = [s for s in sizes if isinstance(s, int)]
    return MemoryInfo(
        slabs=slabs,
        planned=sum(known) if len(known) == len(sizes) else None,
        lower_bound=_most([p.lower_bound for p in plans]),
        unplanned=_most([p.unplanned for p in plans]),
    )


def _most(figures: Sequence[int | None]) -> int | None:
    known = [f for f in figures if f is not None]
    return max(known, default=0) if len(known) == len(figures) else None


def _function(func: GraphFunc) -> FunctionInfo:
    return FunctionInfo(
        name=func.name,
        inputs=[_tensor(p.name, p) for p in inputs_of(func)],
        outputs=[_tensor(name, value) for name, value in results_of(func).items()],
        states=[s.name for s in states(func)],
    )


def _tensor(name: str, value: Value) -> TensorInfo:
    tensor = as_tensor(value.annotation)
    assert tensor is not None and tensor.dims is not None and tensor.dtype is not None
    return TensorInfo(name=name, dtype=str(tensor.dtype), shape=[_dim(d) for d in tensor.dims])


def _dim(dim: Expr) -> int | str:
    value = dim.as_int()
    return str(dim) if value is None else value


def _symbols(functions: Sequence[GraphFunc]) -> dict[str, SymbolInfo]:
    found: set[Symbol] = set()
    for func in functions:
        for value in (*func.params, *func.body.results):
            found |= symbols_of(value.annotation)
    return {
        s.name: SymbolInfo(lo=s.lo, hi=s.hi, multiple_of=s.multiple_of)
        for s in sorted(found, key=lambda s: s.name)
    }


def _needs(program: Compiled, weights: Sequence[Weight]) -> Needs:
    """The variant's features, and limits from the largest weight, slab and kernel."""
    target = program.variant.target
    kernels = [kernel for kernel, _ in program.gpu_kernels]
    features = {*program.variant.features, *(f for kernel in kernels for f in kernel.features)}
    if not target.is_gpu:
        return Needs(features=sorted(features))
    slabs = [s.size.as_int() for p in program.plans for s in p.slabs if s.device == "gpu"]
    sizes = [*(weights[k].bytes for k in program.weights_on_gpu), *slabs]
    largest = max((size for size in sizes if size is not None), default=0)
    limits: Mapping[str, tuple[int, int]] = {
        "maxStorageBufferBindingSize": (largest, DEFAULT_BINDING_BYTES),
        "maxBufferSize": (largest, DEFAULT_BUFFER_BYTES),
        "maxStorageBuffersPerShaderStage": (max((len(k.buffers) for k in kernels), default=0), 8),
        "maxComputeInvocationsPerWorkgroup": (target.workgroup_size, 256),
        "maxComputeWorkgroupSizeX": (target.workgroup_size, 256),
        "maxComputeWorkgroupStorageSize": (target.workgroup_bytes, 16384),
    }
    needed = {name: need for name, (need, have) in limits.items() if need > have}
    return Needs(features=sorted(features), limits=needed)
