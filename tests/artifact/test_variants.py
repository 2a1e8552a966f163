"""One artifact for all adapters: what is stored for each variant, and which one a machine takes."""

from functools import cache
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import wasmtime
import wgpu

import edgerelax.api as api
from edgerelax.artifact.manifest import Needs, ProgramInfo
from edgerelax.artifact.store import Artifact
from edgerelax.artifact.weights import pack_weights
from edgerelax.hosts.choose import Offer, candidates, choose
from edgerelax.hosts.wgpu import find_adapter, offer_of
from edgerelax.ir.builder import Function
from edgerelax.ir.diagnostics import FormatError, InputError, UnsupportedError
from edgerelax.ir.dtypes import F32
from edgerelax.ir.graph import Constant, Module
from edgerelax.ir.types import Tensor
from edgerelax.ops import OPS
from edgerelax.schedule.target import VARIANTS
from edgerelax.sym import symbol
from tests.artifact.folders import INPUTS, compiled, expected
from tests.faults.models import perceptron


def shared(module: Module) -> dict[str, set[str]]:
    """For each file the variants that it is fetched for."""
    manifest = api.compile(module).artifact.manifest
    found: dict[str, set[str]] = {}
    for program in manifest.programs:
        for name in manifest.files_of(program):
            found.setdefault(name, set()).add(program.name)
    assert set(found) == set(manifest.files)
    return found


def pointwise() -> Module:
    f = Function("main")
    f.output("y", f.call(OPS["tanh"], f.input("x", (symbol("n"), 8), F32)))
    return f.module()


def test_order_of_preference() -> None:
    """A CPU computes faster than it plays GPU."""
    names = [p.name for p in compiled().artifact.manifest.programs]
    assert names == ["gpu-subgroups", "gpu", "cpu-relaxed", "cpu", "software"]
    half = [p.name for p in halved().artifact.manifest.programs]
    assert half == ["gpu-f16", *names[1:]]
    every = [p.name for p in summed().artifact.manifest.programs]
    assert every == list(VARIANTS)


def test_each_runs_and_is_right() -> None:
    for program in compiled().artifact.manifest.programs:
        with compiled().session(variant=program.name) as session:
            assert session.variant == program.name
            assert session.device_name == {"gpu": "wgpu", "cpu": "cpu"}[program.device]
            np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)


def test_variants_differ_where_barriers_cost() -> None:
    artifact = api.compile(matrix_product()).artifact
    texts = {
        p.name: [artifact.kernel_text(k) for k in p.gpu_kernels]
        for p in artifact.manifest.programs
        if p.device == "gpu"
    }
    assert any("workgroupBarrier" in text for text in texts["gpu"])
    assert not any("workgroupBarrier" in text for text in texts["software"])


def matrix_product() -> Module:
    f = Function("main")
    a, b = f.input("a", (512, 512), F32), f.input("b", (512, 512), F32)
    f.output("y", f.call(OPS["matmul"], a, b))
    return f.module()


@cache
def halved() -> api.Executable:
    return api.compile(matrix_product(), fp16=True)


def test_own_f16_where_the_device_has_it() -> None:
    """The same program and weights, other texts; what holds f16 in one is packed in the other."""
    artifact = halved().artifact
    short, packed = artifact.manifest.programs[:2]
    assert (short.name, short.needs.features) == ("gpu-f16", ["shader-f16"])
    assert (packed.name, packed.needs.features) == ("gpu", [])
    assert short.program == packed.program and short.memory == packed.memory
    assert any("enable f16;" in artifact.kernel_text(k) for k in short.gpu_kernels)
    assert not any("f16>" in artifact.kernel_text(k) for k in packed.gpu_kernels)


@cache
def summed() -> api.Executable:
    """A product in f16, and sums of long rows."""
    f = Function("main")
    a, b = f.input("a", (512, 512), F32), f.input("b", (512, 64), F32)
    f.output("y", f.call(OPS["matmul"], a, b))
    f.output("s", f.call(OPS["reduce_sum"], a, axes=(1,), keepdims=False))
    return api.compile(f.module(), fp16=True)


def test_sums_by_subgroups_where_the_device_has_them() -> None:
    """Only the texts of kernels with such sums differ; each is stored once for all that use it."""
    artifact = summed().artifact
    programs = {p.name: p for p in artifact.manifest.programs}
    for name, other in (("gpu-f16-subgroups", "gpu-f16"), ("gpu-subgroups", "gpu")):
        own, plain = programs[name], programs[other]
        assert set(own.needs.features) == {*plain.needs.features, "subgroups"}
        assert own.program == plain.program and own.memory == plain.memory
        texts, others = ({artifact.kernel_text(k) for k in p.gpu_kernels} for p in (own, plain))
        (changed,) = texts - others
        assert "enable subgroups;" in changed and "subgroupAdd(" in changed
        assert not any("subgroup" in text for text in others)


def test_variants_with_subgroups_agree() -> None:
    if not {"subgroup", "shader-f16"} <= set(find_adapter().features):
        pytest.skip("the adapter has no subgroups or no f16")
    rng = np.random.default_rng(0)
    given = {
        "a": rng.standard_normal((512, 512)).astype(np.float32),
        "b": rng.standard_normal((512, 64)).astype(np.float32),
    }
    for variant in ("gpu-f16-subgroups", "gpu-subgroups"):
        with summed().session(variant=variant) as session:
            got = session.run(given)["s"]
        np.testing.assert_allclose(got, given["a"].sum(1), rtol=1e-2, atol=0.2)


def test_variants_of_f16_agree() -> None:
    if "shader-f16" not in find_adapter().features:
        pytest.skip("the adapter has no f16")
    rng = np.random.default_rng(0)
    given = {name: rng.standard_normal((512, 512)).astype(np.float32) for name in "ab"}
    wanted = given["a"] @ given["b"]
    for variant in ("gpu-f16", "gpu", "software"):
        with halved().session(variant=variant) as session:
            got = session.run(given)["y"]
        np.testing.assert_allclose(got, wanted, rtol=2e-3, atol=2e-3 * np.abs(wanted).max())


def test_what_is_equal_is_stored_once() -> None:
    """The kernel of one element's function is the same on every adapter, and so is the program."""
    found = shared(pointwise())
    assert found["program-gpu_software.bin"] == {"gpu", "software"}
    assert found["kernels-gpu_software.wgsl"] == {"gpu", "software"}
    assert found["kernels-cpu.wasm"] == {"cpu"}  # no products, so no variant with fused ones


def test_products_are_fused_with_sums_where_the_engine_takes_it() -> None:
    """All but the code of the kernels is shared."""
    artifact = api.compile(matrix_product(), target="cpu").artifact
    relaxed, plain = artifact.manifest.programs
    assert (relaxed.name, relaxed.needs.features) == ("cpu-relaxed", ["relaxed-simd"])
    assert (plain.name, plain.needs.features) == ("cpu", [])
    assert relaxed.program == plain.program and relaxed.memory == plain.memory
    assert relaxed.cpu_kernels_file is not None and plain.cpu_kernels_file is not None
    strict = wasmtime.Config()
    strict.wasm_relaxed_simd = False
    engine = wasmtime.Engine(strict)
    wasmtime.Module.validate(engine, artifact.read(plain.cpu_kernels_file))
    with pytest.raises(wasmtime.WasmtimeError, match="relaxed SIMD"):
        wasmtime.Module.validate(engine, artifact.read(relaxed.cpu_kernels_file))


def test_kernels_that_two_variants_share_stand_apart() -> None:
    """A chain of a product and something else: the product differs, the rest need not."""
    f = Function("main")
    a, b = f.input("a", (512, 512), F32), f.input("b", (512, 512), F32)
    f.output("y", f.call(OPS["matmul"], a, b))
    f.output("z", f.call(OPS["tanh"], f.input("c", (symbol("n"), 8), F32)))
    found = shared(f.module())
    assert found["kernels-gpu_software.wgsl"] == {"gpu", "software"}
    assert found["kernels-gpu.wgsl"] == {"gpu"}
    assert found["kernels-software.wgsl"] == {"software"}


def constant(name: str, size: int) -> Constant:
    data = np.full(size, len(name), np.float32)
    return Constant(name, data, Tensor((size,), F32))


def test_shards_hold_weights_of_equal_users() -> None:
    """A loader fetches no weight that its variant does not use."""
    users = [("gpu", "cpu"), ("cpu",), ("gpu", "cpu"), (), ("gpu",), ("cpu",)]
    constants = [constant("w" * (k + 1), 100 * (k != 4)) for k in range(len(users))]
    weights, files = pack_weights(constants, users)
    shards: dict[str, set[tuple[str, ...]]] = {}
    for weight, using, made in zip(weights, users, constants, strict=True):
        data = b"".join(files[p.file][p.offset : p.offset + p.bytes] for p in weight.parts)
        assert data == made.data.tobytes()
        for part in weight.parts:
            shards.setdefault(part.file, set()).add(using)
    assert set(shards) == set(files)
    assert sorted(shards) == [f"weights-{k:05d}-of-00003.safetensors" for k in (1, 2, 3)]
    assert all(len(groups) == 1 for groups in shards.values())


def test_what_f16_can_hold_is_stored_as_f16() -> None:
    """All bits come back: signed zeros, subnormals, infinities; other values stay f32."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)
    exact = halves[~np.isnan(halves)]
    fine = np.full(1000, 0.1, np.float32)
    constants = [Constant("w", a, Tensor(a.shape, F32)) for a in (exact, fine, exact[:9])]
    weights, files = pack_weights(constants, [("cpu",)] * 3)
    assert [w.stored for w in weights] == ["f16", None, None]  # the last would save nothing
    assert [w.bytes for w in weights] == [c.data.nbytes for c in constants]
    artifact = Artifact(
        msgspec.structs.replace(compiled().artifact.manifest, weights=weights), files
    )
    for k, constant in enumerate(constants):
        assert artifact.weight(k) == constant.data.tobytes()


def test_equal_weights_are_one() -> None:
    f = Function("main")
    x = f.input("x", (4,), F32)
    one, same = (np.arange(4, dtype=np.float32) for _ in range(2))
    y = f.call(OPS["add"], x, f.constant("one", one))
    f.output("y", f.call(OPS["mul"], y, f.constant("same", same)))
    artifact = api.compile(f.module(), without=("cse",)).artifact
    assert len(artifact.manifest.weights) == 1
    with api.open_session(artifact, "cpu") as session:
        out = session.run({"x": np.ones(4, np.float32)})["y"]
    np.testing.assert_array_equal(out, (1 + one) * one)


def test_variants_can_be_left_out() -> None:
    def names(**options: Any) -> list[str]:
        artifact = api.compile(perceptron(), **options).artifact
        return [p.name for p in artifact.manifest.programs]

    assert names(variants=("software", "gpu")) == ["gpu", "software"]
    assert names(fallback=False) == ["gpu-subgroups", "gpu", "software"]
    assert names(target="cpu") == ["cpu-relaxed", "cpu"]
    assert names(variants=("cpu",)) == ["cpu"]
    for options in ({"target": "cpu"}, {"fallback": False}):
        variant = "gpu" if "target" in options else "cpu"
        with pytest.raises(InputError, match=f"has no variant {variant}") as caught:
            names(variants=(variant,), **options)
        assert "its variants are" in caught.value.hint
    with pytest.raises(InputError, match="unknown target 'webgpu-software'; known: webgpu, cpu"):
        names(target="webgpu-software")


def test_features_are_asked_of_the_adapter() -> None:
    """A kernel with subgroups, as every browser wants it written."""
    if "subgroup" not in find_adapter().features:
        pytest.skip("the adapter has no subgroups")
    artifact = compiled().artifact
    chosen = artifact.manifest.program("software")
    kernels, data = [], b""
    for kernel in chosen.gpu_kernels:
        body = artifact.kernel_text(kernel).replace(") {\n", ") {\n  _ = subgroupAdd(1u);\n")
        text = f"enable subgroups;\n{body}".encode()
        end = len(data) + len(text)
        kernels.append(msgspec.structs.replace(kernel, file="own.wgsl", start=len(data), end=end))
        data += text
    assert b"subgroupAdd" in data
    changed = msgspec.structs.replace(
        chosen, needs=Needs(features=["subgroups"]), gpu_kernels=kernels
    )
    manifest = msgspec.structs.replace(artifact.manifest, programs=[changed])
    files = {name: artifact.read(name) for name in artifact.manifest.files}
    with api.open_session(Artifact(manifest, {**files, "own.wgsl": data})) as session:
        np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)


# Which one a machine takes


def program(
    name: str, device: str = "gpu", adapter: str | None = "gpu", **needs: Any
) -> ProgramInfo:
    like = compiled().artifact.manifest.programs[0]
    return msgspec.structs.replace(
        like, name=name, device=device, adapter=adapter, needs=Needs(**needs)
    )


F16 = program("gpu-f16", features=["shader-f16"])
LARGE = program("gpu", limits={"maxBufferSize": 1 << 28})
RELAXED = program("cpu-relaxed", "cpu", None, features=["relaxed-simd"])
CPU = program("cpu", "cpu", None)
SOFTWARE = program("software", adapter="software")
ALL = (F16, LARGE, RELAXED, CPU, SOFTWARE)


def gpu(adapter: str, *features: str, size: int = 1 << 28) -> Offer:
    return Offer("gpu", adapter, frozenset(features), {"maxBufferSize": size})


def cpu(*features: str) -> Offer:
    return Offer("cpu", features=frozenset(features))


@pytest.mark.parametrize(
    ("programs", "offers", "wanted"),
    [
        (ALL, (gpu("gpu", "shader-f16"), cpu()), F16),
        (ALL, (gpu("gpu"), cpu()), LARGE),
        (ALL, (gpu("gpu", size=7), cpu()), CPU),
        (ALL, (gpu("software", "shader-f16"), cpu()), CPU),
        (ALL, (cpu("relaxed-simd"),), RELAXED),
        (ALL, (cpu(),), CPU),
        ((LARGE, SOFTWARE), (gpu("software"),), SOFTWARE),
        ((LARGE,), (gpu("software"),), LARGE),
        ((SOFTWARE,), (gpu("gpu"),), SOFTWARE),
    ],
)
def test_choice(
    programs: tuple[ProgramInfo, ...], offers: tuple[Offer, ...], wanted: ProgramInfo
) -> None:
    assert choose(programs, offers) is wanted


def test_nothing_fits() -> None:
    with pytest.raises(UnsupportedError) as caught:
        choose((F16, LARGE), (gpu("gpu", size=7), cpu()))
    text = str(caught.value)
    assert "gpu-f16: there is no shader-f16 here" in text
    assert f"gpu: the adapter's maxBufferSize is 7, it needs {1 << 28}" in text
    with pytest.raises(UnsupportedError, match="no GPU adapter was found"):
        choose((F16, LARGE), (cpu(),))


def test_names_and_devices() -> None:
    manifest = compiled().artifact.manifest
    assert [p.name for p in candidates(manifest, "gpu")] == ["gpu-subgroups", "gpu", "software"]
    assert [p.name for p in candidates(manifest, None, "cpu")] == ["cpu"]
    with pytest.raises(InputError, match="no variant 'tpu'") as caught:
        compiled().session(variant="tpu")
    assert "gpu, cpu-relaxed, cpu, software" in caught.value.hint
    with pytest.raises(InputError, match="variant 'cpu' is for the cpu, not the gpu"):
        compiled().session("wgpu", variant="cpu")
    with pytest.raises(FormatError, match="no program for cpu, only for gpu"):
        api.compile(perceptron(), variants=("gpu",)).session("cpu")


ADAPTERS = {
    "hardware": ({"adapter_type": "DiscreteGPU", "device": "GeForce"}, "gpu"),
    "cpu": ({"adapter_type": "CPU", "device": "whatever"}, "software"),
    "llvmpipe": ({"adapter_type": "Unknown", "vendor": "llvmpipe"}, "software"),
    "swiftshader": ({"device": "SwiftShader Device (Subzero)"}, "software"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_class_of_an_adapter(name: str) -> None:
    info, wanted = ADAPTERS[name]
    adapter = SimpleNamespace(
        info=info, features={"subgroup", "shader-f16"}, limits={"max-buffer-size": 5}
    )
    offer = offer_of(adapter)
    assert offer.adapter == wanted
    assert {"subgroups", "shader-f16"} <= offer.features
    assert offer.limits == {"maxBufferSize": 5}


def pretend(monkeypatch: pytest.MonkeyPatch, kind: str, *without: str) -> None:
    """The real adapter says that it is of another type and lacks features."""
    real = find_adapter()
    fake = SimpleNamespace(
        info={"adapter_type": kind},
        limits=real.limits,
        features=set(real.features) - set(without),
        request_device_sync=real.request_device_sync,
    )
    monkeypatch.setattr(wgpu.gpu, "request_adapter_sync", lambda **_: fake)


@pytest.mark.parametrize("has", [True, False])
def test_f16_is_taken_from_a_gpu_that_has_it(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if "shader-f16" not in find_adapter().features:
        pytest.skip("the adapter has no f16")
    pretend(monkeypatch, "DiscreteGPU", *(() if has else ("shader-f16",)))
    with halved().session() as session:
        assert session.variant == ("gpu-f16" if has else "gpu")


@pytest.mark.parametrize(("kind", "wanted"), [("DiscreteGPU", "gpu"), ("CPU", "software")])
def test_sessions_take_the_variant_of_the_adapter(
    kind: str, wanted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, kind, "subgroup")
    with compiled().session("wgpu") as session:
        assert session.variant == wanted
        np.testing.assert_allclose(session.run(INPUTS)["y"], expected(), rtol=1e-5, atol=1e-6)
    with compiled().session() as session:
        assert session.variant == ("gpu" if wanted == "gpu" else "cpu-relaxed")
