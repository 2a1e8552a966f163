"""Running one kernel on each host: the interpreter, wgpu (naga) and wasmtime.

Every runner takes the kernel, its arrays by buffer name, its scalars and its grid, leaves the
arrays alone, and gives a dict of all arrays as they are afterwards, in the buffers' dtypes.
"""

import math
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest

from edgerelax.codegen.wasm import build_wasm
from edgerelax.codegen.wgsl import print_wgsl
from edgerelax.hosts.instance import compile_kernels
from edgerelax.hosts.vm import Vm
from edgerelax.ir.kernel import SUBGROUPS, Kernel, for_features
from edgerelax.ir.kernel_interp import run_kernel

Arrays = dict[str, np.ndarray]


def run_interp(
    kernel: Kernel, arrays: Mapping[str, np.ndarray], scalars: Mapping[str, int], grid: int
) -> Arrays:
    result = {name: np.array(a) for name, a in arrays.items()}
    run_kernel(kernel, result, scalars, grid)
    return result


# GPU storage


def pack(array: np.ndarray) -> bytes:
    """An array as the GPU stores it, filled up to 16 bytes."""
    data = np.ascontiguousarray(array).tobytes()
    return data + bytes(-len(data) % 4) + bytes(max(0, 16 - (len(data) + 3) // 4 * 4))


def unpack(data: bytes, like: np.ndarray) -> np.ndarray:
    return np.frombuffer(data[: like.nbytes], like.dtype).reshape(like.shape).copy()


def fold_grid(grid: int) -> tuple[int, int, int]:
    """The workgroup counts that the host dispatches."""
    if grid <= 65535:
        return grid, 1, 1
    y = math.ceil(grid / 65535)
    return math.ceil(grid / y), y, 1


def uniforms(kernel: Kernel, scalars: Mapping[str, int], grid: int) -> bytes:
    values = [grid, *(scalars[name] for name, _ in kernel.scalars)]
    values += [0] * (-len(values) % 4)
    return struct.pack(f"<{len(values)}i", *values)


@cache
def wgpu_device() -> Any:
    """A wgpu device, or None if there is no adapter."""
    try:
        import wgpu

        adapter = wgpu.gpu.request_adapter_sync(power_preference="high-performance")
    except (ImportError, RuntimeError):
        return None
    wanted = [f for f in ("subgroup", "shader-f16") if f in adapter.features]
    return adapter.request_device_sync(required_features=wanted)


def run_wgpu(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, int],
    grid: int,
    halves: bool = False,
    subgroups: bool = False,
) -> Arrays:
    """Skips the test where there is no adapter, or none with the features that are asked for."""
    device = wgpu_device()
    wanted = {"shader-f16"} if halves else set()
    wanted |= {"subgroup"} if subgroups else set()
    if device is None or not wanted <= set(device.features):
        pytest.skip("no WebGPU adapter with what the kernel needs")
    kernel = for_features(kernel, frozenset((SUBGROUPS,) if subgroups else ()))
    import wgpu

    usage = wgpu.BufferUsage.STORAGE | wgpu.BufferUsage.COPY_SRC
    buffers = [
        device.create_buffer_with_data(data=pack(arrays[p.buffer.name]), usage=usage)
        for p in kernel.buffers
    ]
    uniform = device.create_buffer_with_data(
        data=uniforms(kernel, scalars, grid), usage=wgpu.BufferUsage.UNIFORM
    )
    kinds = ["read-only-storage" if p.access == "read" else "storage" for p in kernel.buffers] + [
        "uniform"
    ]
    layout = device.create_bind_group_layout(
        entries=[
            {"binding": k, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kind}}
            for k, kind in enumerate(kinds)
        ]
    )
    module = device.create_shader_module(code=print_wgsl(kernel, halves=halves))
    pipeline = device.create_compute_pipeline(
        layout=device.create_pipeline_layout(bind_group_layouts=[layout]),
        compute={"module": module, "entry_point": "main"},
    )
    group = device.create_bind_group(
        layout=layout,
        entries=[
            {"binding": k, "resource": {"buffer": b, "offset": 0, "size": b.size}}
            for k, b in enumerate((*buffers, uniform))
        ],
    )
    encoder = device.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline)
    compute.set_bind_group(0, group)
    if grid:
        compute.dispatch_workgroups(*fold_grid(grid))
    compute.end()
    device.queue.submit([encoder.finish()])
    return {
        p.buffer.name: unpack(bytes(device.queue.read_buffer(b)), np.asarray(arrays[p.buffer.name]))
        for p, b in zip(kernel.buffers, buffers, strict=True)
    }


# CPU


def run_wasm(
    kernel: Kernel,
    arrays: Mapping[str, np.ndarray],
    scalars: Mapping[str, int],
    grid: int,
    *,
    relaxed: bool = False,
    split: int | None = None,
) -> Arrays:
    """In ranges of `split` iterations, in the memory of a VM, whose libm the kernel uses."""
    vm = Vm()
    slot = vm.instantiate_kernels(compile_kernels(build_wasm([kernel], relaxed)), 1)
    given = [np.ascontiguousarray(arrays[p.buffer.name]) for p in kernel.buffers]
    places = [vm.copy_in(a.reshape(-1).view(np.uint8)) for a in given]
    values = [*places, grid, *(scalars[name] for name, _ in kernel.scalars)]
    args = vm.copy_in(struct.pack(f"<{len(values)}i", *values))
    function = vm.instance.table.get(vm.instance.store, slot)
    step = split or max(grid, 1)
    for begin in range(0, grid, step):
        function(vm.instance.store, args, begin, min(begin + step, grid))
    memory = vm.bytes()
    return {
        p.buffer.name: memory[at : at + a.nbytes].copy().view(a.dtype).reshape(a.shape)
        for p, a, at in zip(kernel.buffers, given, places, strict=True)
    }
