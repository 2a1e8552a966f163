"""What a schedule may assume of the device that runs its kernels: limits, class, rough speeds."""

from dataclasses import dataclass
from typing import Literal

TargetClass = Literal["gpu", "cpu-adapter", "wasm"]


@dataclass(frozen=True, slots=True)
class Target:
    """One device class.

    A `cpu-adapter` is a GPU interface in software (SwiftShader, lavapipe): barriers and workgroup
    memory are very slow there. The speeds feed the roofline by which strategies are compared,
    nothing else.
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

    @property
    def is_gpu(self) -> bool:
        return self.device == "gpu"

    @property
    def has_fast_barriers(self) -> bool:
        return self.kind == "gpu"


WEBGPU = Target("webgpu", "gpu", "gpu", 8, 256, 16384, 1e11, 2e12, 2e-5, 4096)
WEBGPU_SOFTWARE = Target(
    "webgpu-software", "gpu", "cpu-adapter", 8, 256, 16384, 5e9, 1e10, 2e-5, 64
)
WASM = Target("wasm", "cpu", "wasm", 64, 1, 0, 1e10, 4e10, 1e-6, 4)

TARGETS: dict[str, Target] = {t.name: t for t in (WEBGPU, WEBGPU_SOFTWARE, WASM)}
