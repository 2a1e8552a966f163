"""The table of targets: what a schedule may assume of a device, and for whom an artifact has it."""

from dataclasses import dataclass
from typing import Literal

AdapterClass = Literal["gpu", "software"]
TargetClass = Literal["gpu", "software", "wasm"]


@dataclass(frozen=True, slots=True)
class Target:
    """One device class. An artifact holds a program for each that it was made for, by this name.

    `software` is a GPU interface that a CPU plays (SwiftShader, lavapipe): barriers and workgroup
    memory are very slow there. `features` (of WebGPU, or `relaxed-simd`) are what kernels may use
    and a loader must find. The speeds feed the roofline by which strategies are compared, nothing
    else.
    """

    name: str
    device: Literal["gpu", "cpu"]
    kind: TargetClass
    storage_buffers: int
    workgroup_size: int
    workgroup_bytes: int
    bytes_per_second: float
    flops_per_second: float
    launch_seconds: float
    parallel_threads: int
    features: tuple[str, ...] = ()

    @property
    def is_gpu(self) -> bool:
        return self.device == "gpu"

    @property
    def has_fast_barriers(self) -> bool:
        return self.kind == "gpu"

    @property
    def adapter(self) -> AdapterClass | None:
        """The class of adapter that this is for; None where no adapter is needed."""
        return None if self.kind == "wasm" else self.kind


WEBGPU = Target("gpu", "gpu", "gpu", 8, 256, 16384, 1e11, 2e12, 2e-5, 4096)
WASM = Target("cpu", "cpu", "wasm", 64, 1, 0, 1e10, 4e10, 1e-6, 1)
WEBGPU_SOFTWARE = Target("software", "gpu", "software", 8, 256, 16384, 5e9, 1e10, 2e-5, 64)

TARGETS: dict[str, Target] = {t.name: t for t in (WEBGPU, WASM, WEBGPU_SOFTWARE)}
"""By name, in the order in which loaders prefer them: a CPU computes faster than it plays GPU."""
