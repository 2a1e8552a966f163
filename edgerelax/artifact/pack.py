"""Put what the compiler made into an artifact: files, hashes, and the manifest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files as resources

from edgerelax.artifact.manifest import (
    FORMAT,
    VERSION,
    FunctionInfo,
    GpuKernel,
    Manifest,
    MemoryInfo,
    Needs,
    ProgramInfo,
    SlabInfo,
    Source,
    SymbolInfo,
    TensorInfo,
)
from edgerelax.artifact.store import Artifact, file_info
from edgerelax.artifact.weights import pack_weights
from edgerelax.ir.graph import Constant, GraphFunc, Value
from edgerelax.ir.kernel import Kernel
from edgerelax.ir.plan import MemoryPlan
from edgerelax.ir.types import as_tensor, symbols_of
from edgerelax.sym import Expr, Symbol

DEFAULT_BINDING_BYTES = 128 << 20
DEFAULT_BUFFER_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class DeviceProgram:
    """One compiled form: its program, the GPU kernels with their texts, and its memory plans."""

    device: str
    program: bytes
    gpu_kernels: Sequence[tuple[Kernel, str]]
    weights_on_gpu: Sequence[int]
    weights_on_cpu: Sequence[int]
    plans: Sequence[MemoryPlan]


def pack(
    functions: Sequence[GraphFunc],
    programs: Sequence[DeviceProgram],
    weights: Sequence[Constant],
    cpu_kernels: Sequence[str],
    kernels_wasm: bytes | None,
    source: Source,
    producer: str,
) -> Artifact:
    """The artifact, in memory."""
    listed, files = pack_weights(weights)
    files["vm.wasm"] = (resources("edgerelax.vm") / "vm.wasm").read_bytes()
    if kernels_wasm is not None:
        files["kernels.wasm"] = kernels_wasm
    infos = [_program(program, files) for program in programs]
    manifest = Manifest(
        format=FORMAT,
        version=VERSION,
        producer=producer,
        source=source,
        symbols=_symbols(functions),
        functions=[_function(f) for f in functions],
        programs=infos,
        cpu_kernels=list(cpu_kernels),
        cpu_kernels_file="kernels.wasm" if kernels_wasm is not None else None,
        vm="vm.wasm",
        weights=listed,
        needs=_needs(infos, [w.bytes for w in listed]),
        files={name: file_info(data) for name, data in files.items()},
    )
    return Artifact(manifest, files)


def _program(program: DeviceProgram, files: dict[str, bytes]) -> ProgramInfo:
    name = f"program-{program.device}.bin"
    files[name] = program.program
    kernels: list[GpuKernel] = []
    text = bytearray()
    for kernel, source in program.gpu_kernels:
        start = len(text)
        text += source.encode()
        kernels.append(
            GpuKernel(
                name=kernel.name,
                start=start,
                end=len(text),
                buffers=[b.access for b in kernel.buffers],
                scalars=1 + len(kernel.scalars),
                features=sorted(kernel.features),
            )
        )
    if kernels:
        files["kernels.wgsl"] = bytes(text)
    return ProgramInfo(
        device=program.device,
        program=name,
        kernels="kernels.wgsl" if kernels else None,
        gpu_kernels=kernels,
        weights_on_gpu=list(program.weights_on_gpu),
        weights_on_cpu=list(program.weights_on_cpu),
        memory=_memory(program.plans),
    )


def _memory(plans: Sequence[MemoryPlan]) -> MemoryInfo:
    slabs = [SlabInfo(device=s.device, bytes=_dim(s.size)) for p in plans for s in p.slabs]
    sizes = [s.bytes for s in slabs]
    known = [s for s in sizes if isinstance(s, int)]
    return MemoryInfo(
        slabs=slabs,
        planned=sum(known) if len(known) == len(sizes) else None,
        lower_bound=_total([p.lower_bound for p in plans]),
        unplanned=_total([p.unplanned for p in plans]),
    )


def _total(figures: Sequence[int | None]) -> int | None:
    known = [f for f in figures if f is not None]
    return sum(known) if len(known) == len(figures) else None


def _function(func: GraphFunc) -> FunctionInfo:
    return FunctionInfo(
        name=func.name,
        inputs=[_tensor(p.name, p) for p in func.params],
        outputs=[
            _tensor(name, value)
            for name, value in zip(func.result_names, func.body.results, strict=True)
        ],
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


def _needs(programs: Sequence[ProgramInfo], weights: Sequence[int]) -> Needs:
    """Limits beyond WebGPU's defaults, from the largest weight, slab and kernel."""
    slabs = [s.bytes for p in programs for s in p.memory.slabs if s.device == "gpu"]
    largest = max((b for b in (*weights, *slabs) if isinstance(b, int)), default=0)
    buffers = max((len(k.buffers) for p in programs for k in p.gpu_kernels), default=0)
    limits: Mapping[str, tuple[int, int]] = {
        "maxStorageBufferBindingSize": (largest, DEFAULT_BINDING_BYTES),
        "maxBufferSize": (largest, DEFAULT_BUFFER_BYTES),
        "maxStorageBuffersPerShaderStage": (buffers, 8),
    }
    return Needs(limits={name: need for name, (need, have) in limits.items() if need > have})
