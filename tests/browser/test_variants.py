"""Which variant of an artifact a page takes, and that it fetches nothing of the others."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.browser.conftest import Publish
from tests.browser.harness import Browser, error_of
from tests.browser.runtime_page import check, runtime_page
from tests.browser.small_models import SMALL

X = {"x": np.linspace(-1, 1, 48, dtype=np.float32).reshape(3, 16)}
DEVICES = {
    "gpu-subgroups": "webgpu",
    "gpu": "webgpu",
    "software": "webgpu",
    "cpu-relaxed": "wasm",
    "cpu": "wasm",
}
HARDWARE = """
Object.defineProperty(GPUAdapter.prototype, 'info', { get: () => ({ vendor: 'nvidia' }) });
"""
TRAVEL = {"features": ["time-travel"]}
LOAD = "await edgerelax.load(argument.url, argument.options)"


def variant_of(page: Browser, url: str, **options: Any) -> str:
    page.open("dense", url, **options)
    check(page.run("dense", X)[0], SMALL["dense"].expected(X))
    return str(page.script("await models.dense.dispose(); return models.dense.variant"))


def files_of(folder: Path, variant: str) -> set[str]:
    """What the manifest says that a variant takes, read without the loader's help."""
    manifest = json.loads((folder / "manifest.json").read_text())
    (program,) = (p for p in manifest["programs"] if p["name"] == variant)
    used = {*program["weights_on_gpu"], *program["weights_on_cpu"]}
    names = {manifest["vm"], program["program"], program["cpu_kernels_file"]}
    names |= {kernel["file"] for kernel in program["gpu_kernels"]}
    names |= {part["file"] for k in used for part in manifest["weights"][k]["parts"]}
    return names - {None}


def test_the_class_of_the_adapter_decides(
    browser: Browser, page: Browser, published: Publish
) -> None:
    url = published("dense")
    assert variant_of(page, url, backend="webgpu") == "software"
    assert variant_of(page, url) == "cpu-relaxed"
    with runtime_page(browser, HARDWARE) as other:
        assert variant_of(other, url) == variant_of(other, url, backend="webgpu")
        assert variant_of(other, url) == "gpu-subgroups"
        assert variant_of(other, url, backend="wasm") == "cpu-relaxed"


@pytest.mark.parametrize("variant", DEVICES)
def test_forced(page: Browser, published: Publish, variant: str) -> None:
    url = published("dense")
    assert variant_of(page, url, variant=variant) == variant
    assert variant_of(page, url, variant=variant, backend=DEVICES[variant]) == variant


@pytest.mark.parametrize("variant", DEVICES)
def test_only_the_files_of_the_variant_are_fetched(
    page: Browser, small: Callable[[str], Path], published: Publish, variant: str
) -> None:
    url, fetched = published("dense"), []
    page.page.on("request", lambda request: fetched.append(urlsplit(request.url).path))
    assert variant_of(page, url, variant=variant) == variant
    names = [path.rsplit("/", 1)[1] for path in fetched]
    assert sorted(names) == sorted({"manifest.json", *files_of(small("dense"), variant)})


def test_progress_counts_the_variants_bytes(
    page: Browser, small: Callable[[str], Path], published: Publish
) -> None:
    last = page.script(
        """let last;
        const onProgress = (p) => { if (p.phase === 'fetch') last = p; };
        const model = await edgerelax.load(argument, { variant: 'gpu', onProgress });
        await model.dispose();
        return [last.loaded, last.total];""",
        published("dense"),
    )
    total = sum((small("dense") / n).stat().st_size for n in files_of(small("dense"), "gpu"))
    assert last == [total, total]


def test_wrong_names(page: Browser, published: Publish) -> None:
    for options, message in (
        (
            {"variant": "tpu"},
            "no variant 'tpu', only gpu-subgroups (gpu), gpu (gpu), cpu-relaxed (cpu), "
            "cpu (cpu), software (gpu)",
        ),
        ({"variant": "cpu", "backend": "webgpu"}, "no variant 'cpu' that is a program for the gpu"),
    ):
        error = error_of(page, LOAD, {"url": published("dense"), "options": options})
        assert error["code"] == "input" and message in error["message"]


def test_f16_is_packed_where_the_adapter_has_none(
    browser: Browser, page: Browser, published: Publish
) -> None:
    url = published("half")
    assert "shader-f16" not in page.script("return (await edgerelax.capabilities()).features")
    with runtime_page(browser, HARDWARE) as other:
        for backend, variant in (("webgpu", "gpu-subgroups"), ("wasm", "cpu-relaxed")):
            other.open("half", url, backend=backend)
            outputs = other.run("half", X)[0]
            for name, wanted in SMALL["half"].expected(X).items():
                np.testing.assert_allclose(outputs[name], wanted, atol=5e-3)
            found = other.script("await models.half.dispose(); return models.half.variant")
            assert found == variant
    error = error_of(page, LOAD, {"url": url, "options": {"variant": "gpu-f16"}})
    assert error["code"] == "limit" and "there is no shader-f16 here" in error["message"]


WITHOUT_DOT = """
Object.defineProperty(GPU.prototype, 'wgslLanguageFeatures', { get: () => new Set() });
"""


@pytest.mark.parametrize("scripts", [(), (WITHOUT_DOT,)], ids=["built in", "written out"])
def test_integer_dot_products(
    browser: Browser, small: Callable[[str], Path], published: Publish, scripts: tuple[str, ...]
) -> None:
    """They are a feature of WGSL's language, which a browser may lack."""
    kernels = [path.read_text() for path in small("integers").glob("kernels-*.wgsl")]
    assert any("dot4I8Packed" in text for text in kernels)
    rng = np.random.default_rng(0)
    with runtime_page(browser, *scripts) as page:
        page.open("integers", published("integers"), variant="gpu")
        for rows in (1, 7, 33):
            given = {"x": rng.integers(0, 256, (rows, 64)).astype(np.uint8)}
            found = page.run("integers", given)[0]["y"]
            np.testing.assert_array_equal(found, SMALL["integers"].expected(given)["y"])
        compiled = "await models.integers.dispose(); return gpu.texts.join('')"
        assert ("fn dot4I8Packed" in page.script(compiled)) == bool(scripts)


def needing(folder: Path, needs: dict[str, dict[str, Any]]) -> None:
    """Say of variants what they need."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for program in manifest["programs"]:
        program["needs"].update(needs.get(program["name"], {}))
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("needs", "options", "wanted"),
    [
        ({"cpu-relaxed": {"features": ["relaxed-simd"]}}, {}, "cpu-relaxed"),
        ({"cpu-relaxed": {"features": ["time-travel"]}}, {}, "cpu"),
        ({"cpu-relaxed": TRAVEL, "cpu": TRAVEL}, {}, "software"),
        ({"software": TRAVEL}, {"backend": "webgpu"}, "gpu-subgroups"),
        ({"software": TRAVEL, "gpu-subgroups": TRAVEL}, {"backend": "webgpu"}, "gpu"),
        (
            {"software": {"limits": {"maxBufferSize": 2**50}}},
            {"backend": "webgpu"},
            "gpu-subgroups",
        ),
        ({"software": {"features": ["relaxed-simd"]}}, {"backend": "webgpu"}, "software"),
    ],
    ids=["relaxed", "plain", "unknown", "missing", "both missing", "small", "both"],
)
def test_needs(
    page: Browser,
    small: Callable[[str], Path],
    tmp_path: Path,
    needs: dict[str, dict[str, Any]],
    options: dict[str, Any],
    wanted: str,
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(small("dense"), folder)
    needing(folder, needs)
    assert variant_of(page, page.publish(folder, tmp_path.name), **options) == wanted


def test_nothing_fits(page: Browser, small: Callable[[str], Path], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(small("dense"), folder)
    huge = {"limits": {"maxBufferSize": 2**50}}
    needing(folder, {"software": TRAVEL, "gpu": huge, "gpu-subgroups": huge})
    url = page.publish(folder, tmp_path.name)
    error = error_of(page, LOAD, {"url": url, "options": {"backend": "webgpu"}})
    assert error["code"] == "limit"
    assert "software: there is no time-travel here" in error["message"]
    assert "gpu: maxBufferSize is" in error["message"]
