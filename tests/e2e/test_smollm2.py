"""SmolLM2-135M-Instruct from its GGUF file: the same logits and the same text as plain numpy."""

from pathlib import Path

import numpy as np
from gguf import GGUFReader
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import edgerelax
from tests.frontends.language.reference import logits, read

MODEL = Path(__file__).resolve().parents[2] / "models" / "smollm2" / "model.gguf"
PROMPT = "The capital of France is"


def tokenizer(reader: GGUFReader) -> Tokenizer:
    """The tokenizer that the file holds."""

    def texts(key: str) -> list[str]:
        field = reader.get_field(f"tokenizer.ggml.{key}")
        assert field is not None
        return list(field.contents())

    merges = [tuple(text.split(" ", 1)) for text in texts("merges")]
    found = Tokenizer(models.BPE({t: k for k, t in enumerate(texts("tokens"))}, merges))
    digits = pre_tokenizers.Digits(individual_digits=True)
    found.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    found.decoder = decoders.ByteLevel()
    return found


def test_it_goes_on_to_paris() -> None:
    assert MODEL.is_file(), f"{MODEL} is missing: run scripts/fetch-models"
    executable = edgerelax.compile(MODEL, target="cpu", variants=("cpu",))
    assert sum(w.bytes for w in executable.artifact.manifest.weights) < 1.02 * MODEL.stat().st_size
    session = executable.session("cpu")
    reader = GGUFReader(str(MODEL))
    weights, sizes = read(reader)
    text = tokenizer(reader)
    ids = text.encode(PROMPT).ids
    for _ in range(3):
        tokens = np.array([ids])
        found, wanted = session.run({"tokens": tokens})["logits"], logits(weights, sizes, tokens)
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-3)
        ids.append(int(found[0, -1].argmax()))
    assert text.decode(ids).startswith(f"{PROMPT} Paris.")
