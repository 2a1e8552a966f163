"""Folders of speech models: where settings stand, what is missing, what contradicts config.json."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgerelax.frontends.hf import load
from edgerelax.frontends.hf.reading import read_settings
from edgerelax.frontends.hf.speech import info_of, mel_of
from edgerelax.frontends.speech.info import SpeechInfo
from edgerelax.frontends.speech.whisper import sizes_of
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from tests.frontends.speech import tiny


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whisper")
    tiny.write(folder)
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    """One to change."""
    return Path(shutil.copytree(whole, tmp_path / "whisper"))


def change(file: Path, changes: Mapping[str, Any]) -> None:
    """Set fields of a JSON file; None removes one."""
    fields = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({k: v for k, v in fields.items() if v is not None}))


def info(folder: Path) -> SpeechInfo:
    settings = read_settings(folder)
    return info_of(folder, settings, mel_of(folder, sizes_of(settings)))


@pytest.mark.parametrize(
    "name", ("config", "preprocessor_config", "generation_config", "tokenizer")
)
def test_missing_files(folder: Path, name: str) -> None:
    (folder / f"{name}.json").unlink()
    with pytest.raises(InputError, match=rf"(has no|without) {name}\.json"):
        load(folder)


@pytest.mark.parametrize(
    ("file", "changes", "error", "text"),
    [
        ("config", {"decoder_layers": 3}, InputError, r"24 tensors.*decoder\.layers\.2"),
        ("config", {"encoder_layers": 1}, UnsupportedError, "belong to no part of this arch"),
        ("config", {"d_model": 25}, InputError, "2 heads cannot share d_model 25"),
        ("config", {"vocab_size": 320}, InputError, r"embed_tokens.* make it \[320, 24\]"),
        ("config", {"max_source_positions": 60}, InputError, "100 frames of 20 bands.*120 of 20"),
        ("config", {"max_target_positions": None}, InputError, "no max_target_positions"),
        ("preprocessor_config", {"feature_size": 80}, InputError, "100 frames of 80 .*100 of 20"),
        ("preprocessor_config", {"hop_length": 0}, InputError, "hop of the audio is 0"),
        ("generation_config", {"suppress_tokens": [999]}, InputError, "names token 999 of a"),
        ("generation_config", {"lang_to_id": {"<|en|>": "x"}}, InputError, "'x', not an integer"),
    ],
)  # fmt: skip
def test_settings_that_do_not_fit(
    folder: Path, file: str, changes: dict[str, Any], error: type[Exception], text: str
) -> None:
    change(folder / f"{file}.json", changes)
    with pytest.raises(error, match=text):
        load(folder)


def test_dims_bound_the_text(folder: Path) -> None:
    with pytest.raises(InputError, match="wanted up to 41; the model was trained for 40"):
        load(folder, {"length": (1, 41)})
    with pytest.raises(InputError, match="samples is wanted up to 16001; it ends at 16000"):
        load(folder, {"samples": (1, 16001)})
    with pytest.raises(InputError, match=r"no dim 'width'[\s\S]*batch, length, pages, samples"):
        load(folder, {"width": 3})
    assert load(folder, {"length": (1, 20)}).attrs["language"]["context"] == 20


def test_settings_of_the_audio_within_those_of_a_processor(folder: Path) -> None:
    wanted = info(folder)
    own = folder / "preprocessor_config.json"
    both = {"feature_extractor": json.loads(own.read_text()), "processor_class": "any"}
    (folder / "processor_config.json").write_text(json.dumps(both))
    own.unlink()
    assert info(folder) == wanted


def test_a_model_of_one_language(folder: Path) -> None:
    """As English ones are, and older files: what follows the first token is forced."""
    forced = [[1, tiny.ENGLISH], [2, tiny.TRANSCRIBE], [3, tiny.NO_TIMES]]
    changes = {"lang_to_id": None, "task_to_id": None, "forced_decoder_ids": forced}
    change(folder / "generation_config.json", changes)
    found = info(folder)
    assert (found.languages, found.tasks) == ({}, {})
    assert found.forced == [tiny.ENGLISH, tiny.TRANSCRIBE]


def test_the_token_before_earlier_text_by_its_name(folder: Path) -> None:
    change(folder / "generation_config.json", {"prev_sot_token_id": None})
    assert info(folder).previous == tiny.PREVIOUS


def test_a_head_of_its_own(tmp_path: Path) -> None:
    tiny.write(tmp_path, tie_word_embeddings=False)
    assert load(tmp_path).attrs["language"]["functions"]["encode"] == "encode"
