"""The native GPU host, through wgpu-py.

Recorded command lists keep their bind groups and uniforms: a replay encodes and nothing else. Bind
groups use explicit layouts, one per signature of accesses.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import wgpu

from edgerelax.artifact.manifest import GpuKernel, Needs, ProgramInfo
from edgerelax.artifact.store import Artifact
from edgerelax.hosts.choose import Offer
from edgerelax.hosts.instance import WASM_FEATURES
from edgerelax.hosts.library import Bound, Functions, GpuOperand, bind
from edgerelax.hosts.session import Session
from edgerelax.hosts.vm import Result, VmModel
from edgerelax.ir.diagnostics import EdgeRelaxError, FormatError
from edgerelax.vm import isa

STORAGE = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC | wgpu.BufferUsage.COPY_DST
SLOT = 256  # bytes of one dispatch's uniforms
MAX_GROUPS = 65535
SOFTWARE = re.compile("swiftshader|llvmpipe|basic render", re.IGNORECASE)
FEATURES = {"subgroup": "subgroups"}  # WebGPU's names for wgpu-py's, where they differ
ENABLE_SUBGROUPS = "enable subgroups;\n"  # naga has them without, and refuses the line
COMMANDS = tuple(isa.COMMANDS)
KINDS = isa.BINDING_KINDS


class DeviceError(EdgeRelaxError):
    """The GPU refused something or was lost."""

    default_code = "device"


@contextmanager
def _device_errors(where: str = "") -> Iterator[None]:
    """What the GPU refuses inside, as a DeviceError."""
    try:
        yield
    except wgpu.GPUError as error:
        raise DeviceError(f"{where}{error}") from error


@dataclass(slots=True)
class _Dispatch:
    pipeline: Any
    group: Any
    x: int
    y: int


@dataclass(slots=True)
class _Transfer:
    """A copy between buffers, or a fill where `source` is None."""

    source: Any
    source_offset: int
    target: Any
    target_offset: int
    bytes: int


@dataclass(slots=True)
class _Library:
    """A call of a library function, which encodes what it likes."""

    bound: Bound
    ranges: list[tuple[Any, int, int]]  # buffer, offset, bytes
    scalars: npt.NDArray[np.int32]  # dims

    def encode(self, encoder: Any, device: Any) -> None:
        shapes = self.bound.shapes(self.scalars.tolist())
        operands = [
            GpuOperand(*place, shape, dtype)
            for place, shape, dtype in zip(self.ranges, shapes, self.bound.dtypes, strict=True)
        ]
        if any(operand.bytes for operand in operands[len(self.bound.info.inputs) :]):
            self.bound.call(operands, encoder=encoder, device=device)


@dataclass(slots=True)
class _List:
    """Encodable commands, and the uniforms of their dispatches: one slot each."""

    steps: list[_Dispatch | _Transfer | _Library] = field(default_factory=list)
    scalars: list[npt.NDArray[np.int32]] = field(default_factory=list)
    pending: list[tuple[int, int, list[tuple[int, int, int, int]]]] = field(default_factory=list)
    libraries: dict[int, _Library] = field(default_factory=dict)  # by slot
    uniforms: Any = None


def open_wgpu(
    artifact: Artifact, program: ProgramInfo, adapter: Any, libraries: Functions | None = None
) -> Session:
    """A session on a GPU adapter that offers what the program needs."""
    bound = bind(program, libraries or {})
    device = WgpuDevice(_request_device(adapter, program.needs), artifact, program, bound["gpu"])
    return Session(artifact, program, device, bound["cpu"])


def find_adapter() -> Any:
    """The system's default adapter; None where there is none."""
    try:
        return wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except RuntimeError:
        return None


def offer_of(adapter: Any) -> Offer:
    """What an adapter has: its class, features and limits."""
    info = adapter.info
    told = " ".join(str(info.get(key, "")) for key in ("vendor", "device", "description"))
    software = info.get("adapter_type") == "CPU" or SOFTWARE.search(told) is not None
    features = {FEATURES.get(name, name) for name in adapter.features}
    return Offer(
        "gpu",
        "software" if software else "gpu",
        frozenset(features) | WASM_FEATURES,
        {_webgpu_name(name): value for name, value in adapter.limits.items()},
    )


def _request_device(adapter: Any, needs: Needs) -> Any:
    features = [f for f in adapter.features if FEATURES.get(f, f) in needs.features]
    names = {_webgpu_name(name): name for name in adapter.limits}
    limits = {names[name]: need for name, need in needs.limits.items()}
    return adapter.request_device_sync(required_features=features, required_limits=limits)


def _webgpu_name(name: str) -> str:
    """A limit of wgpu-py's spelling in WebGPU's camelCase."""
    return re.sub("-(.)", lambda found: found[1].upper(), name)


class WgpuDevice:
    """Buffers, pipelines and recorded lists of one model on one device."""

    name = "wgpu"

    def __init__(
        self,
        device: Any,
        artifact: Artifact,
        program: ProgramInfo,
        libraries: Sequence[Bound] = (),
    ) -> None:
        self._device = device
        self.libraries = libraries
        self._queue = device.queue
        self._layouts: dict[tuple[str, ...], tuple[Any, Any]] = {}
        self._buffers: dict[tuple[int, int], Any] = {}  # (kind, index)
        self._empty: dict[str, Any] = {}  # by access
        self._lists: dict[int, _List] = {}
        self._recording: _List | None = None
        self._recording_id = 0
        self._counts = {"pipelines": 0, "bind_groups": 0, "buffers": 0, "buffer_bytes": 0}
        self._kernels = program.gpu_kernels
        self._pipelines = [
            self._pipeline(kernel, artifact.kernel_text(kernel)) for kernel in self._kernels
        ]
        weight_kind = KINDS.index("weight")
        for k in program.weights_on_gpu:
            data = artifact.weight(k)
            buffer = self._make_buffer(len(data), f"weight {artifact.manifest.weights[k].name}")
            self._buffers[weight_kind, k] = buffer
            self._write(buffer, 0, data)

    def set_input(self, k: int, data: npt.NDArray[Any]) -> bool:
        key = (KINDS.index("input"), k)
        buffer = self._buffers.get(key)
        grown = buffer is None or buffer.size < data.nbytes
        if grown:
            if buffer is not None:
                self._destroy(self._buffers.pop(key))  # there may be no other
            buffer = self._make_buffer(data.nbytes, f"input {k}")
            self._buffers[key] = buffer
        self._write(buffer, 0, data.tobytes())
        return grown

    def make_state(self, k: int, size: int) -> None:
        """A new buffer; those of WebGPU are 0."""
        key = (KINDS.index("input"), k)
        if key in self._buffers:
            self._destroy(self._buffers.pop(key))
        self._buffers[key] = self._make_buffer(size, f"state {k}")

    def execute(self, model: VmModel) -> None:
        words = model.commands()
        if len(words):
            with _device_errors():
                _Drain(self, model, words).run()

    def fetch(self, results: Sequence[Result]) -> list[bytes]:
        """Read all in one mapping."""
        with _device_errors():
            return self._fetch(results)

    def _fetch(self, results: Sequence[Result]) -> list[bytes]:
        sizes = [-(-r.bytes // 4) * 4 for r in results]
        total = max(sum(sizes), 4)
        staging = self._device.create_buffer(
            size=total, usage=wgpu.BufferUsage.MAP_READ | wgpu.BufferUsage.COPY_DST
        )
        encoder = self._device.create_command_encoder()
        at = 0
        for result, size in zip(results, sizes, strict=True):
            if size:
                source = self._buffers[KINDS.index(result.kind), result.index]
                encoder.copy_buffer_to_buffer(source, result.offset, staging, at, size)
            at += size
        self._queue.submit([encoder.finish()])
        staging.map_sync(wgpu.MapMode.READ)
        data = bytes(staging.read_mapped(0, total))
        staging.unmap()
        staging.destroy()
        ends = np.cumsum(sizes)
        return [data[e - s : e] for e, s in zip(ends, sizes, strict=True)]

    def stats(self) -> dict[str, int]:
        return dict(self._counts)

    def close(self) -> None:
        for buffer in (*self._buffers.values(), *self._empty.values()):
            self._destroy(buffer)
        self._buffers.clear()
        self._empty.clear()
        for number in list(self._lists):
            self.forget(number)

    # Buffers

    def _make_buffer(self, size: int, label: str, usage: int = STORAGE) -> Any:
        rounded = max(-(-size // 4) * 4, 16)
        with _device_errors():
            buffer = self._device.create_buffer(size=rounded, usage=usage, label=label)
        self._counts["buffers"] += 1
        self._counts["buffer_bytes"] += rounded
        return buffer

    def _destroy(self, buffer: Any) -> None:
        self._counts["buffers"] -= 1
        self._counts["buffer_bytes"] -= buffer.size
        buffer.destroy()

    def _write(self, buffer: Any, offset: int, data: bytes) -> None:
        if data:
            self._queue.write_buffer(buffer, offset, data + bytes(-len(data) % 4))

    def buffer(self, kind: int, index: int) -> Any:
        """The buffer of a place; a slab that was never ensured is empty."""
        if (kind, index) not in self._buffers:
            self._buffers[kind, index] = self._make_buffer(0, f"{KINDS[kind]} {index}")
        return self._buffers[kind, index]

    def outgrown(self, slab: int, size: int) -> Any:
        """Take away the buffer of a slab that is too small for the size."""
        key = (KINDS.index("slab"), slab)
        old = self._buffers.get(key)
        return self._buffers.pop(key) if old is not None and old.size < size else None

    def ensure(self, slab: int, size: int) -> Any:
        """The buffer of a slab, made if there is none."""
        key = (KINDS.index("slab"), slab)
        if key not in self._buffers:
            self._buffers[key] = self._make_buffer(size, f"slab {slab}")
        return self._buffers[key]

    # Pipelines and lists

    def _pipeline(self, kernel: GpuKernel, text: str) -> Any:
        _, pipeline_layout = self._layout(tuple(kernel.buffers))
        with _device_errors(f"kernel {kernel.name}: "):
            code = text.replace(ENABLE_SUBGROUPS, "", 1)
            module = self._device.create_shader_module(code=code, label=kernel.name)
            pipeline = self._device.create_compute_pipeline(
                layout=pipeline_layout,
                compute={"module": module, "entry_point": "main"},
                label=kernel.name,
            )
        self._counts["pipelines"] += 1
        return pipeline

    def _layout(self, accesses: tuple[str, ...]) -> tuple[Any, Any]:
        if accesses not in self._layouts:
            kinds = ["read-only-storage" if a == "read" else "storage" for a in accesses]
            entries = [
                {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
                for k, kind in enumerate([*kinds, "uniform"])
            ]
            group = self._device.create_bind_group_layout(entries=entries)
            layout = self._device.create_pipeline_layout(bind_group_layouts=[group])
            self._layouts[accesses] = (group, layout)
        return self._layouts[accesses]

    def finish(self, commands: _List) -> None:
        """Make the uniforms and bind groups of a list."""
        count = len(commands.pending)
        if not count:
            return
        usage = wgpu.BufferUsage.UNIFORM | wgpu.BufferUsage.COPY_DST
        commands.uniforms = self._make_buffer(count * SLOT, "uniforms", usage)
        slots = np.zeros((count, SLOT // 4), np.int32)
        for k, scalars in enumerate(commands.scalars):
            slots[k, : len(scalars)] = scalars
        self._queue.write_buffer(commands.uniforms, 0, slots.tobytes())
        for slot, (position, kernel, places) in enumerate(commands.pending):
            step = commands.steps[position]
            if isinstance(step, _Library):
                continue
            assert isinstance(step, _Dispatch)
            size = -(-len(commands.scalars[slot]) // 4) * 16
            accesses = tuple(self._kernels[kernel].buffers)
            resources = [
                (self.buffer(p[0], p[1]), p[2], p[3]) if p[3] else self._nothing(access, k)
                for k, (p, access) in enumerate(zip(places, accesses, strict=True))
            ]
            resources.append((commands.uniforms, slot * SLOT, size))
            group, _ = self._layout(accesses)
            step.group = self._device.create_bind_group(
                layout=group,
                entries=[
                    {"binding": k, "resource": {"buffer": b, "offset": o, "size": s}}
                    for k, (b, o, s) in enumerate(resources)
                ],
            )
            self._counts["bind_groups"] += 1
        commands.pending.clear()

    def _nothing(self, access: str, binding: int) -> tuple[Any, int, int]:
        """What stands for an empty range: one element of any type.

        Apart from what else is bound.
        """
        if access not in self._empty:
            bindings = max(len(k.buffers) for k in self._kernels)
            self._empty[access] = self._make_buffer(bindings * SLOT, f"empty, {access}")
        return self._empty[access], binding * SLOT, 16

    def dispatch(self, kernel: int, grid: int) -> _Dispatch:
        """A launch over a linear grid, folded where it is over the limit of one dimension."""
        if kernel >= len(self._pipelines):
            raise FormatError(f"the program launches kernel {kernel}, the manifest has it not")
        y = -(-grid // MAX_GROUPS)
        return _Dispatch(self._pipelines[kernel], None, -(-grid // y), y)

    def set_scalar(self, commands: _List, slot: int, scalar: int, value: int) -> None:
        if slot in commands.libraries:
            commands.libraries[slot].scalars[scalar] = value
            return
        self._queue.write_buffer(
            commands.uniforms, slot * SLOT + 4 * scalar, np.int32(value).tobytes()
        )

    def remember(self, number: int, commands: _List) -> None:
        self._lists[number] = commands

    def recall(self, number: int) -> _List:
        return self._lists[number]

    def forget(self, number: int | None = None) -> None:
        """Free one recorded list, or all."""
        for key in list(self._lists) if number is None else [number]:
            commands = self._lists.pop(key, None)
            if commands is not None and commands.uniforms is not None:
                self._destroy(commands.uniforms)

    def read(self, kind: int, index: int, offset: int, size: int) -> bytes:
        """Bytes of a place, once the GPU is done."""
        start = offset // 4 * 4
        stop = -(-(offset + size) // 4) * 4
        data = self._queue.read_buffer(self.buffer(kind, index), start, max(stop - start, 4))
        return bytes(data)[offset - start : offset - start + size]


class _Drain:
    """Executes one stretch of commands."""

    def __init__(self, device: WgpuDevice, model: VmModel, words: npt.NDArray[np.int32]) -> None:
        self.device, self.model = device, model
        self.words: list[int] = words.view(np.uint32).tolist()
        self.signed: list[int] = words.tolist()
        self.encoder: Any = None
        self.recording: tuple[int, _List] | None = None
        self.retired: list[Any] = []  # buffers that encoded commands may use

    def run(self) -> None:
        at = 0
        while at < len(self.words):
            head = self.words[at]
            name, length = COMMANDS[head & 0xFF], head >> 8
            getattr(self, f"_{name}")(at + 1)
            at += length
        self._submit()

    def _encoder(self) -> Any:
        if self.encoder is None:
            self.encoder = self.device._device.create_command_encoder()
        return self.encoder

    def _submit(self) -> None:
        if self.encoder is not None:
            self.device._queue.submit([self.encoder.finish()])
            self.encoder = None
        for buffer in self.retired:
            self.device._destroy(buffer)
        self.retired.clear()

    def _retire(self, buffer: Any) -> None:
        """Destroy a buffer now, or with the submit of what is encoded."""
        if self.encoder is None:
            self.device._destroy(buffer)
        else:
            self.retired.append(buffer)

    def _place(self, at: int) -> tuple[int, int, int, int]:
        kind, index, offset, size = self.words[at : at + 4]
        return kind, index, offset, size

    def _encode(self, commands: _List) -> None:
        """One compute pass for each run of dispatches."""
        encoder, compute = self._encoder(), None
        for step in commands.steps:
            if isinstance(step, _Dispatch):
                if compute is None:
                    compute = encoder.begin_compute_pass()
                compute.set_pipeline(step.pipeline)
                compute.set_bind_group(0, step.group)
                compute.dispatch_workgroups(step.x, step.y, 1)
                continue
            if compute is not None:
                compute.end()
                compute = None
            if isinstance(step, _Library):
                step.encode(encoder, self.device._device)
            elif step.source is None:
                encoder.clear_buffer(step.target, step.target_offset, step.bytes)
            else:
                encoder.copy_buffer_to_buffer(
                    step.source, step.source_offset, step.target, step.target_offset, step.bytes
                )
        if compute is not None:
            compute.end()

    def _add(self, step: _Dispatch | _Transfer | _Library, pending: Any = None) -> None:
        """Append to the list being recorded, or execute at once."""
        target = self.recording[1] if self.recording else _List()
        if isinstance(step, _Library):
            target.libraries[len(target.scalars)] = step
        target.steps.append(step)
        if pending is not None:
            kernel, places, scalars = pending
            target.pending.append((len(target.steps) - 1, kernel, places))
            target.scalars.append(scalars)
        if not self.recording:
            self.device.finish(target)
            self._encode(target)
            if target.uniforms is not None:
                self._retire(target.uniforms)

    # One method for each command

    def _reset(self, at: int) -> None:
        self._submit()
        self.device.forget()

    def _ensure(self, at: int) -> None:
        slab, size, keeps = self.words[at : at + 3]
        old = self.device.outgrown(slab, size)
        if old is not None and not keeps:
            self._retire(old)
        new = self.device.ensure(slab, size)
        if old is not None and keeps:
            self._encoder().copy_buffer_to_buffer(old, 0, new, 0, old.size)
            self._retire(old)

    def _record(self, at: int) -> None:
        self.recording = (self.words[at], _List())

    def _end_record(self, at: int) -> None:
        assert self.recording is not None
        number, commands = self.recording
        self.recording = None
        self.device.finish(commands)
        self.device.remember(number, commands)
        self._encode(commands)

    def _replay(self, at: int) -> None:
        commands = self.device.recall(self.words[at])
        count = self.words[at + 1]
        if count:
            self._submit()
        for k in range(count):
            slot, scalar = self.words[at + 2 + 3 * k : at + 4 + 3 * k]
            self.device.set_scalar(commands, slot, scalar, self.signed[at + 4 + 3 * k])
        self._encode(commands)

    def _forget(self, at: int) -> None:
        self._submit()
        self.device.forget(self.words[at])

    def _dispatch(self, at: int) -> None:
        kernel, count = self.words[at], self.words[at + 1]
        places = [self._place(at + 2 + 4 * k) for k in range(count)]
        at += 2 + 4 * count
        scalars = np.array(self.signed[at + 1 : at + 1 + self.words[at]], np.int32)
        self._add(self.device.dispatch(kernel, int(scalars[0])), (kernel, places, scalars))

    def _copy(self, at: int) -> None:
        target, source = self._place(at), self._place(at + 4)
        self._add(
            _Transfer(
                self.device.buffer(source[0], source[1]),
                source[2],
                self.device.buffer(target[0], target[1]),
                target[2],
                target[3],
            )
        )

    def _fill(self, at: int) -> None:
        kind, index, offset, size = self._place(at)
        word = self.words[at + 4]
        if word:
            raise DeviceError(f"fill with the pattern {word:#x} is not known to this host")
        self._add(_Transfer(None, 0, self.device.buffer(kind, index), offset, size))

    def _upload(self, at: int) -> None:
        kind, index, offset, _ = self._place(at)
        size, address = self.words[at + 4], self.words[at + 5]
        self._submit()
        data = self.model.vm.bytes()[address : address + size].tobytes()
        self.device._write(self.device.buffer(kind, index), offset, data)

    def _read(self, at: int) -> None:
        kind, index, offset, _ = self._place(at)
        size, address = self.words[at + 4], self.words[at + 5]
        self._submit()
        data = self.device.read(kind, index, offset, size)
        self.model.vm.bytes()[address : address + size] = np.frombuffer(data, np.uint8)

    def _library(self, at: int) -> None:
        length, address, _, count = self.words[at : at + 4]
        number = int(self.model.vm.bytes()[address : address + length].tobytes())
        if number >= len(self.device.libraries):
            raise FormatError(f"the program calls library {number}, the manifest has it not")
        places = [self._place(at + 4 + 4 * k) for k in range(count)]
        at += 4 + 4 * count
        scalars = np.array(self.signed[at + 1 : at + 1 + self.words[at]], np.int32)
        ranges = [(self.device.buffer(kind, k), start, size) for kind, k, start, size in places]
        step = _Library(self.device.libraries[number], ranges, scalars)
        self._add(step, (None, places, np.empty(0, np.int32)))
