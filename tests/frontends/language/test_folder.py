"""Hugging Face folders: their files, what is wrong with some, and the artifact that one becomes."""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models

import edgerelax
from edgerelax.frontends.hf.load import decoder_of, load
from edgerelax.frontends.language.architectures import ARCHITECTURES, by_type
from edgerelax.frontends.language.decoder import GeneralDecoder
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.weights import name_of
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from edgerelax.ir.evaluate import evaluate

CONFIG: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 32,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "eos_token_id": [2, 5],
}
TOKENS = np.array([[3, 1, 4, 1, 5]])
INDEX = "model.safetensors.index.json"


def write(folder: Path, shards: int = 1, dtype: Any = np.float32, **changes: Any) -> Path:
    """A model of random weights with a tokenizer, its tensors dealt out to shards."""
    config = {**CONFIG, **changes}
    settings = Settings(config, "config.json")
    architecture = by_type("llama", "")
    model = GeneralDecoder(architecture.config(settings, None))
    rng = np.random.default_rng(0)
    tensors = {
        "model." + name_of(name, architecture.names): rng.uniform(-1, 1, parameter.shape).astype(
            ml_dtypes.bfloat16
        )
        for name, parameter in model.parameters()
    }
    tensors = {name: data.astype(dtype) for name, data in tensors.items()}
    files = [f"model-{k + 1:05}-of-{shards:05}.safetensors" for k in range(shards)]
    files = ["model.safetensors"] if shards == 1 else files
    where = {name: files[k % shards] for k, name in enumerate(tensors)}
    for file in files:
        save_file({n: d for n, d in tensors.items() if where[n] == file}, folder / file)
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"weight_map": where}))
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel({f"w{k}": k for k in range(18)}, "w0"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    said = {"bos_token": "<s>", "eos_token": {"content": "w2"}, "chat_template": "{{ messages }}"}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    return folder


def logits(folder: Path) -> np.ndarray:
    return evaluate(load(folder), {"tokens": TOKENS})["logits"]


@pytest.mark.parametrize("dtype", (np.float32, ml_dtypes.bfloat16), ids=str)
def test_shards_and_types_make_no_difference(tmp_path: Path, dtype: Any) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "more").mkdir()
    wanted = logits(write(tmp_path / "one"))
    np.testing.assert_array_equal(logits(write(tmp_path / "more", 3, dtype)), wanted)


def test_an_artifact_carries_tokenizer_and_template(tmp_path: Path) -> None:
    (tmp_path / "toy").mkdir()
    folder = write(tmp_path / "toy")
    artifact = edgerelax.compile(folder, target="cpu", variants=("cpu",)).artifact
    language, source = artifact.manifest.language, artifact.manifest.source
    assert language is not None
    assert (language.architecture, language.vocabulary, language.context) == ("llama", 20, 32)
    assert (language.bos, language.eos) == (18, [2, 5])
    assert (source.file, source.kind) == ("toy", "hf")
    assert artifact.read("tokenizer.json") == (folder / "tokenizer.json").read_bytes()
    chat = json.loads(artifact.read("chat.json"))
    assert chat["templates"] == {"default": "{{ messages }}"}
    assert chat["special_tokens"] == {"bos_token": "<s>", "eos_token": "w2"}


def test_dims_bound_the_length(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="wanted up to 33; the model was trained for 32"):
        load(write(tmp_path), {"length": (1, 33)})


def test_how_keys_and_values_are_stored(tmp_path: Path) -> None:
    for kind, dtype in (("f16", "f16"), ("int8", "i8"), (None, "f32")):
        step = load(write(tmp_path), cache=kind).funcs["step"]
        stored = {p.name: str(p.annotation.dtype) for p in step.params}
        assert (stored["keys.0"], stored["values.0"]) == (dtype, dtype)


def test_missing_files(tmp_path: Path) -> None:
    folder = write(tmp_path, shards=3)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(InputError, match=r"1 of 3 shards are missing: model-00002-of-00003"):
        edgerelax.compile(folder)
    (folder / INDEX).unlink()
    with pytest.raises(InputError, match=r"no weights: neither model\.safetensors nor"):
        edgerelax.compile(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(InputError, match=r"has no tokenizer\.json"):
        edgerelax.compile(folder)
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"is a folder without config\.json"):
        edgerelax.compile(folder)


def test_a_shard_that_is_cut_off(tmp_path: Path) -> None:
    file = write(tmp_path) / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-10])
    with pytest.raises(InputError, match=r"model\.safetensors is damaged or cut off"):
        load(tmp_path)


def test_an_index_that_promises_too_much(tmp_path: Path) -> None:
    index = json.loads((write(tmp_path, shards=2) / INDEX).read_text())
    index["weight_map"]["model.more"] = "model-00001-of-00002.safetensors"
    (tmp_path / INDEX).write_text(json.dumps(index))
    with pytest.raises(InputError, match=r"00001-of-00002\.safetensors has no model\.more"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "error", "text"),
    [
        ({"num_hidden_layers": 3}, InputError, r"9 tensors are missing: model\.layers\.2"),
        ({"num_hidden_layers": 1}, UnsupportedError, r"9 tensors belong to no part of this arch"),
        ({"vocab_size": 21}, InputError, r"embed_tokens.* \[20, 16\]; .* make it \[21, 16\]"),
        ({"hidden_size": "wide"}, InputError, "hidden_size is 'wide', not an integer"),
        ({"hidden_size": None}, InputError, "has no hidden_size"),
        ({"num_attention_heads": 3}, InputError, "3 heads cannot share hidden_size 16"),
        ({"num_key_value_heads": 4}, InputError, "2 heads cannot share 4 keys"),
        ({"hidden_act": "mish"}, UnsupportedError, "activation mish is not known"),
        ({"rope_scaling": {"type": "odd"}}, UnsupportedError, "rotary scaling 'odd' is not known"),
        ({"rope_scaling": {"type": "linear"}}, InputError, "rope_scaling has no factor"),
        ({"model_type": "rwkv"}, UnsupportedError, r"rwkv[\s\S]*known are llama, mis[\s\S]*llava"),
    ],
)
def test_a_config_that_does_not_fit(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    write(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, **changes}))
    with pytest.raises(error, match=text):
        load(tmp_path)


def test_weights_that_are_no_floats(tmp_path: Path) -> None:
    write(tmp_path, dtype=np.int8)
    with pytest.raises(UnsupportedError, match=r"holds I8; weights of F32"):
        decoder_of(tmp_path)


def test_pickles_are_not_read(tmp_path: Path) -> None:
    (write(tmp_path) / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model\.bin is a pickle"):
        load(tmp_path)


def test_names_of_architectures_are_their_own() -> None:
    types = [name for architecture in ARCHITECTURES for name in architecture.types]
    files = [name for architecture in ARCHITECTURES for name in architecture.gguf]
    assert len(set(types)) == len(types)
    assert len(set(files)) == len(files)
