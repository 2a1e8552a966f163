"""The tables of targets, what a schedule may assume of a device, and of an artifact's variants."""

from dataclasses import dataclass
from typing import Literal

from edgerelax.ir.kernel import SUBGROUPS

AdapterClass = Literal["gpu", "software"]
TargetClass = Literal["gpu", "software", "wasm"]


@dataclass(frozen=True, slots=True)
class Target:
    """One device class.

    `software` is a GPU interface that a CPU plays (SwiftShader, lavapipe): barriers and workgroup
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
    lanes: int = 1
    """Numbers that a thread computes at once in kernels with vectors, which its speed counts on."""

    @property
    def is_gpu(self) -> bool:
        return self.device == "gpu"

    @property
    def has_fast_barriers(self) -> bool:
        return self.kind == "gpu"

    @property
    def compiles_fast(self) -> bool:
        """Whether copies of text cost little; SwiftShader takes milliseconds for each load."""
        return self.kind != "software"

    @property
    def shifts_vectors(self) -> bool:
        """Whether it shifts all lanes of a vector at once: SwiftShader takes one by one."""
        return self.kind != "software"

    @property
    def adapter(self) -> AdapterClass | None:
        """The class of adapter that this is for; None where no adapter is needed."""
        return None if self.kind == "wasm" else self.kind


WEBGPU = Target("gpu", "gpu", "gpu", 8, 256, 16384, 1e11, 2e12, 2e-5, 4096)
WASM = Target("cpu", "cpu", "wasm", 64, 1, 0, 1e10, 4e10, 1e-6, 1, lanes=4)
WEBGPU_SOFTWARE = Target("software", "gpu", "software", 8, 256, 16384, 5e9, 1e10, 2e-5, 64)

TARGETS: dict[str, Target] = {t.name: t for t in (WEBGPU, WASM, WEBGPU_SOFTWARE)}


@dataclass(frozen=True, slots=True)
class Variant:
    """A program of an artifact, made for a target.

    `features` (of WebGPU, or `relaxed-simd`) are what the code of its kernels uses and a loader
    must find. Variants of one target share all else: schedules, memory plan and bytecode.
    """

    name: str
    target: Target
    features: tuple[str, ...] = ()

    @property
    def relaxed(self) -> bool:
        """Whether CPU kernels may fuse products with sums."""
        return RELAXED_SIMD in self.features

    @property
    def halves(self) -> bool:
        """Whether GPU kernels may use the device's own f16."""
        return SHADER_F16 in self.features

    @property
    def subgroups(self) -> bool:
        """Whether GPU kernels may reduce over subgroups."""
        return SUBGROUPS in self.features


RELAXED_SIMD = "relaxed-simd"
SHADER_F16 = "shader-f16"

VARIANTS: dict[str, Variant] = {
    v.name: v
    for v in (
        Variant("gpu-f16-subgroups", WEBGPU, (SHADER_F16, SUBGROUPS)),
        Variant("gpu-f16", WEBGPU, (SHADER_F16,)),
        Variant("gpu-subgroups", WEBGPU, (SUBGROUPS,)),
        Variant("gpu", WEBGPU),
        Variant("cpu-relaxed", WASM, (RELAXED_SIMD,)),
        Variant("cpu", WASM),
        Variant("software", WEBGPU_SOFTWARE),
    )
}
"""By name, in the order in which loaders prefer them: a CPU computes faster than it plays GPU."""
