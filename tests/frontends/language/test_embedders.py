"""Vectors of texts against transformers: encoders, decoders, poolings, padded batches."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import PoolingType
from tokenizers import Tokenizer, models

import edgerelax
from edgerelax.frontends.gguf import load as load_gguf
from edgerelax.frontends.hf.load import load
from edgerelax.frontends.hf.pooling import pooling_of
from edgerelax.ir.diagnostics import UnsupportedError
from edgerelax.ir.evaluate import evaluate
from tests.frontends.language import gguf_files
from tests.frontends.language.cases import SIZES, VOCABULARY

LENGTHS = np.array([9, 4, 1])
DECODERS = ("qwen3",)
CHANGES: dict[str, dict[str, Any]] = {
    "bert": {},
    "xlm-roberta": {},
    "modernbert": {"local_attention": 6, "num_hidden_layers": 4, "norm_bias": True},
    "qwen3": {"head_dim": 16},
}


def write(folder: Path, kind: str, pooling: str | None) -> Any:
    """A folder as sentence-transformers saves it; gives the model."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = SIZES if kind in DECODERS else SIZES | {"num_key_value_heads": 4}
    config = transformers.AutoConfig.for_model(kind, **{**sizes, **CHANGES[kind]})
    model = transformers.AutoModel.from_config(config).float().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, 1.5 / parameter.shape[-1] ** 0.5)
            else:
                parameter.uniform_(0.2, 1.0)
    model.save_pretrained(folder)
    Tokenizer(models.WordLevel({"w": 0}, "w")).save(str(folder / "tokenizer.json"))
    if pooling is not None:
        write_modules(folder, **{f"pooling_mode_{pooling}": True})
    return model


def write_modules(folder: Path, **pooling: bool) -> None:
    kinds = {"": "Transformer", "1_Pooling": "Pooling", "2_Normalize": "Normalize"}
    modules = [
        {"idx": k, "path": path, "type": f"sentence_transformers.models.{kind}"}
        for k, (path, kind) in enumerate(kinds.items())
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def vectors(model: Any, tokens: np.ndarray, pooling: str) -> np.ndarray:
    """Each text by itself, without padding."""
    import torch

    rows = []
    for row, length in zip(tokens, LENGTHS, strict=True):
        with torch.no_grad():
            hidden = model(torch.from_numpy(row[None, :length])).last_hidden_state[0].numpy()
        one = {"cls_token": hidden[0], "lasttoken": hidden[-1], "mean_tokens": hidden.mean(0)}
        rows.append(one[pooling] / np.linalg.norm(one[pooling]))
    return np.array(rows)


@pytest.mark.parametrize(
    ("kind", "pooling"),
    [
        ("bert", None),
        ("bert", "cls_token"),
        ("xlm-roberta", "mean_tokens"),
        ("modernbert", "mean_tokens"),
        ("qwen3", "lasttoken"),
    ],
)
def test_vectors_equal_those_of_transformers(
    kind: str, pooling: str | None, tmp_path: Path
) -> None:
    model = write(tmp_path, kind, pooling)
    tokens = np.random.default_rng(0).integers(2, VOCABULARY, (3, 9))
    modules = [load(tmp_path)]
    if kind in ("bert", "qwen3"):
        type_of = {None: None, "cls_token": PoolingType.CLS, "lasttoken": PoolingType.LAST}
        path = gguf_files.write(tmp_path, tmp_path / "model.gguf", type_of[pooling])
        modules.append(load_gguf(path))
    wanted = vectors(model, tokens, pooling or "mean_tokens")
    for module in modules:
        found = evaluate(module, {"tokens": tokens, "lengths": LENGTHS}, "embed")["embeddings"]
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)


def test_an_artifact_embeds(tmp_path: Path) -> None:
    model = write(tmp_path, "modernbert", "mean_tokens")
    executable = edgerelax.compile(tmp_path, target="cpu", variants=("cpu",), verify=True)
    language = executable.artifact.manifest.language
    assert language is not None
    assert language.functions == {"embed": "embed"}
    tokens = np.random.default_rng(0).integers(2, VOCABULARY, (3, 9))
    inputs = {"tokens": tokens, "lengths": LENGTHS}
    found = executable.session("cpu").run(inputs, function="embed")["embeddings"]
    np.testing.assert_allclose(found, vectors(model, tokens, "mean_tokens"), rtol=1e-4, atol=1e-5)


def test_poolings_that_are_not_known(tmp_path: Path) -> None:
    write_modules(tmp_path, pooling_mode_max_tokens=True)
    with pytest.raises(UnsupportedError, match="pooling by pooling_mode_max_tokens"):
        pooling_of(tmp_path)
    write_modules(tmp_path, pooling_mode_cls_token=True, pooling_mode_mean_tokens=True)
    with pytest.raises(UnsupportedError, match="cls_token, pooling_mode_mean_tokens"):
        pooling_of(tmp_path)
    dense = [{"path": "2_Dense", "type": "sentence_transformers.models.Dense"}]
    (tmp_path / "modules.json").write_text(json.dumps(dense))
    with pytest.raises(UnsupportedError, match="a module Dense"):
        pooling_of(tmp_path)
