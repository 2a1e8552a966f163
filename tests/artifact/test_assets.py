"""Files that come with a model, and what a language model's artifact says of itself."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax.api as api
from edgerelax.artifact.manifest import LanguageInfo, decode, encode
from edgerelax.artifact.store import Artifact
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.ir.diagnostics import FormatError, InputError
from edgerelax.ir.dtypes import F32

ASSETS = {"tokenizer.json": b'{"model": {}}', "chat.json": b"{}", "readme.txt": bytes(range(256))}
LANGUAGE: dict[str, Any] = {
    "architecture": "llama",
    "vocabulary": 100,
    "context": 32,
    "functions": {"step": "main"},
    "page_size": 16,
    "tokenizer": "tokenizer.json",
    "chat": "chat.json",
    "bos": 1,
    "eos": [2, 99],
}


def compiled(**attrs: Any) -> api.Executable:
    def main(x: Tensor) -> dict[str, Tensor]:
        return {"y": x + x}

    module = trace(main, {"x": Input((4,), F32)})
    module.attrs.update(attrs)
    return api.compile(module, target="cpu")


def test_assets_are_files(tmp_path: Path) -> None:
    compiled(assets=ASSETS, language=LANGUAGE).save(tmp_path)
    artifact = Artifact.open(tmp_path)
    assert artifact.manifest.assets == list(ASSETS)
    assert {name: artifact.asset(name) for name in ASSETS} == ASSETS
    assert artifact.manifest.language == LanguageInfo(**LANGUAGE)
    x = np.arange(4, dtype=np.float32)
    with api.open_session(artifact, "cpu") as session:
        np.testing.assert_array_equal(session.run({"x": x})["y"], 2 * x)


def test_without_any() -> None:
    manifest = compiled().artifact.manifest
    assert (manifest.assets, manifest.language) == ([], None)
    with pytest.raises(InputError, match=r"no asset 'vm\.wasm'"):
        compiled().artifact.asset("vm.wasm")


def test_a_damaged_asset(tmp_path: Path) -> None:
    compiled(assets=ASSETS).save(tmp_path)
    (tmp_path / "chat.json").write_bytes(b"[]")
    with pytest.raises(FormatError, match=r"chat\.json: its sha256"):
        Artifact.open(tmp_path).asset("chat.json")


@pytest.mark.parametrize("name", ["vm.wasm", "manifest.json", "../x", "a/b", ".x", ""])
def test_names_of_assets(name: str) -> None:
    with pytest.raises(InputError, match="asset"):
        compiled(assets={name: b""})


FAULTS: list[tuple[dict[str, Any], str]] = [
    ({"chat": "other.json"}, "other.json, which is not among the assets"),
    ({"functions": {"step": "forward"}}, "'forward' to step, which is no function"),
    ({"eos": [100]}, "token 100 of a vocabulary of 100"),
    ({"bos": 100}, "token 100 of a vocabulary of 100"),
]


@pytest.mark.parametrize(("change", "fault"), FAULTS)
def test_what_a_language_model_says(change: dict[str, Any], fault: str) -> None:
    with pytest.raises(FormatError, match=fault):
        compiled(assets=ASSETS, language={**LANGUAGE, **change})
    raw = json.loads(_text())
    raw["language"] |= change
    with pytest.raises(FormatError, match=fault):
        decode(json.dumps(raw).encode())


@pytest.mark.parametrize(
    "change", [{"context": 0}, {"vocabulary": "many"}, {"eos": 2}, {"template": "x"}]
)
def test_fields_of_a_language_model(change: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="attribute language"):
        compiled(language={**LANGUAGE, **change})


def test_listed_assets_are_files() -> None:
    raw = json.loads(_text())
    raw["assets"].append("more.json")
    with pytest.raises(FormatError, match=r"more\.json is named but not listed"):
        decode(json.dumps(raw).encode())


def _text() -> bytes:
    return encode(compiled(assets=ASSETS, language=LANGUAGE).artifact.manifest)
