"""A tiny Whisper of random weights, made by transformers, with all files that a folder has."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

RATE, SECONDS, BANDS, FRAMES = 16000, 1, 20, 50
WINDOW = RATE * SECONDS
CONTEXT = 40
END, START, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE, PREVIOUS, NO_SPEECH, NO_TIMES = range(256, 265)
FIRST = NO_TIMES + 1
VOCABULARY = FIRST + FRAMES + 1
NAMES = [
    "<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>",
    "<|transcribe|>", "<|startofprev|>", "<|nospeech|>", "<|notimestamps|>",
]  # fmt: skip
SUPPRESSED = [5, 9, START, PREVIOUS, NO_SPEECH, ENGLISH, GERMAN, TRANSLATE, TRANSCRIBE]


@dataclass(frozen=True)
class Exported:
    """transformers' model, and the artifact of its folder."""

    model: Any
    artifact: Path


def tokenizer() -> Tokenizer:
    """Bytes, special tokens, timestamps."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: k for k, letter in enumerate(letters)}, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(NAMES)
    made.add_tokens([f"<|{k * 0.02:.2f}|>" for k in range(FRAMES + 1)])
    assert made.get_vocab_size() == VOCABULARY
    return made


def write(folder: Path, spread: float = 1.5, **changes: Any) -> Any:
    """The folder's files; gives transformers' model."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "vocab_size": VOCABULARY, "num_mel_bins": BANDS, "d_model": 24, "encoder_layers": 2,
        "encoder_attention_heads": 2, "encoder_ffn_dim": 40, "decoder_layers": 2,
        "decoder_attention_heads": 3, "decoder_ffn_dim": 36, "max_source_positions": FRAMES,
        "max_target_positions": CONTEXT, "decoder_start_token_id": START, "bos_token_id": END,
        "eos_token_id": END, "pad_token_id": END, "suppress_tokens": None,
        "begin_suppress_tokens": None, **changes,
    }  # fmt: skip
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**sizes))
    model = model.float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "decoder.embed_positions" in name:
                parameter.normal_(0, 0.5)  # so that texts do not repeat one token
            elif parameter.ndim > 1 and "encoder.embed_positions" not in name:
                parameter.normal_(0, spread / parameter[0].numel() ** 0.5)
            elif parameter.ndim == 1:
                parameter.uniform_(*((0.5, 1.5) if "norm.weight" in name else (-0.3, 0.3)))
    said = {
        "lang_to_id": {"<|en|>": ENGLISH, "<|de|>": GERMAN}, "is_multilingual": True,
        "task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        "no_timestamps_token_id": NO_TIMES, "suppress_tokens": SUPPRESSED,
        "begin_suppress_tokens": [7, END], "max_initial_timestamp_index": 20,
        "prev_sot_token_id": PREVIOUS, "max_length": CONTEXT,
    }  # fmt: skip
    for name, value in said.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(folder)
    extractor().save_pretrained(folder)
    tokenizer().save(str(folder / "tokenizer.json"))
    return model


def extractor() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.WhisperFeatureExtractor(feature_size=BANDS, chunk_length=SECONDS)


def features(audio: np.ndarray) -> np.ndarray:
    """What the decoder hears, by transformers: [batch, bands, frames]."""
    rows = [row for row in audio]
    return np.asarray(extractor()(rows, sampling_rate=RATE, return_tensors="np")["input_features"])


def sound(seed: int, samples: int = WINDOW) -> np.ndarray:
    """Tones and noise, f32."""
    rng = np.random.default_rng(seed)
    at = np.arange(samples) / RATE
    tones = sum(np.sin(2 * np.pi * f * at) for f in rng.uniform(80, 5000, 4)) * 0.1
    return (tones + rng.standard_normal(samples) * 10 ** rng.uniform(-4, -2)).astype(np.float32)
