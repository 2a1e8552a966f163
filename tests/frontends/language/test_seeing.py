"""Models that see images, from the folders that transformers saves, against its logits."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import edgerelax
from edgerelax.frontends.hf import load
from edgerelax.frontends.hf.images import processor_of
from edgerelax.frontends.hf.reading import read_settings
from edgerelax.frontends.hf.seeing import parts_of
from edgerelax.frontends.language.context import Whole
from edgerelax.frontends.language.seeing import Seeing
from edgerelax.frontends.nn import Input, trace
from edgerelax.ir.diagnostics import InputError, UnsupportedError
from edgerelax.ir.dtypes import I64, U8
from edgerelax.ir.evaluate import evaluate
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol
from tests.frontends.language.seeing_cases import CASES, Case, reference


def whole(folder: Path) -> tuple[Module, int]:
    """Logits of texts that read images in the same call, and vectors of an image."""
    model, vision = parts_of(folder, read_settings(folder), processor_of(folder))
    batch, length, seen = symbol("batch"), symbol("length"), symbol("seen")

    def forward(tokens, pixels):
        images = vision(pixels).reshape(seen * vision.count, vision.width)
        context = Seeing(Whole(tokens), images, model.config.vocabulary)
        return {"logits": model.logits(model.hidden(tokens, context))}

    pixels = Input((seen, vision.side, vision.side, 3), U8)
    return trace(forward, {"tokens": Input((batch, length), I64), "pixels": pixels}), vision.count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_logits_equal_those_of_transformers(case: Case, tmp_path: Path) -> None:
    wanted = reference(case, tmp_path)
    module, count = whole(tmp_path)
    vocabulary = wanted.model.config.text_config.vocab_size
    rng = np.random.default_rng(0)
    tiles = rng.integers(0, 256, (3, case.side, case.side, 3), np.uint8)
    mean, std = (np.array(case.processor[name]) for name in ("image_mean", "image_std"))
    pixels = [((t / 255 - mean) / std).astype(np.float32).transpose(2, 0, 1) for t in tiles]
    texts = [rng.integers(0, wanted.token, n) for n in (3, 2, 4)]
    places = [np.full(count, wanted.token)] * 2
    theirs = np.concatenate([texts[0], places[0], texts[1], places[1], texts[2]])
    rows = [vocabulary + np.arange(count) + k * count for k in (2, 0)]
    ours = np.concatenate([texts[0], rows[0], texts[1], rows[1], texts[2]])
    found = evaluate(module, {"tokens": ours[None], "pixels": tiles})["logits"]
    logits = wanted.logits(theirs[None], [pixels[2], pixels[0]])
    np.testing.assert_allclose(found, logits, rtol=5e-4, atol=5e-4)
    swapped = wanted.logits(theirs[None], [pixels[0], pixels[2]])
    assert np.abs(found - swapped).max() > 1e-2  # the pixels matter
    plain = rng.integers(0, wanted.token, (2, 9))
    found = evaluate(module, {"tokens": plain, "pixels": tiles[:1]})["logits"]
    np.testing.assert_allclose(found, wanted.logits(plain, []), rtol=5e-4, atol=5e-4)


def test_a_gpu_sees_what_the_interpreter_sees(tmp_path: Path) -> None:
    case = replace(CASES[0], text={"num_hidden_layers": 1}, tower={"num_hidden_layers": 2})
    reference(case, tmp_path)
    model, vision = parts_of(tmp_path, read_settings(tmp_path), processor_of(tmp_path))
    length, seen, vocabulary = symbol("length"), symbol("seen"), model.config.vocabulary

    def forward(tokens, pixels):
        images = vision(pixels).reshape(seen * vision.count, vision.width)
        return {"y": Seeing(Whole(tokens), images, vocabulary).embed(tokens, model.embedding)}

    pixels = Input((seen, vision.side, vision.side, 3), U8)
    module = trace(forward, {"tokens": Input((1, length), I64), "pixels": pixels})
    rng = np.random.default_rng(0)
    given = {
        "tokens": np.array([[3, vocabulary + 1, vocabulary + vision.count, 0]]),
        "pixels": rng.integers(0, 256, (2, 12, 12, 3), np.uint8),
    }
    compiled = edgerelax.compile(module, target="webgpu", variants=("software",))
    with compiled.session("wgpu") as session:
        found = session.run(given)["y"]
    np.testing.assert_allclose(found, evaluate(module, given)["y"], rtol=1e-3, atol=1e-3)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("llava")
    reference(CASES[0], found)
    return found


FAULTS: list[tuple[str, dict[str, Any], str]] = [
    (
        "preprocessor_config.json",
        {"image_processor_type": "OwlProcessor"},
        "images by OwlProcessor",
    ),
    ("preprocessor_config.json", {"crop_size": {"height": 8, "width": 12}}, "no square"),
    ("preprocessor_config.json", {"do_center_crop": False}, "no square"),
    ("preprocessor_config.json", {"size": {"area": 9}}, "size is"),
    ("preprocessor_config.json", {"image_mean": [0.5]}, "images have 3 channels"),
    ("preprocessor_config.json", {"crop_size": 16}, "16 pixels wide, the vision tower sees 12"),
    ("config.json", {"vision_config": {"model_type": "pixtral"}}, "a vision tower pixtral"),
    ("config.json", {"vision_config": None}, "no vision_config"),
    ("config.json", {"vision_feature_layer": 9}, "features of layer 9, of 3"),
    ("config.json", {"vision_feature_select_strategy": "some"}, "chosen by some"),
    ("config.json", {"image_token_index": 10_000}, "no token 10000"),
    ("config.json", {"image_token_index": 3}, "no added token 3"),
    ("config.json", {"projector_hidden_act": "cube"}, "the activation cube"),
]


@pytest.mark.parametrize(("file", "change", "said"), FAULTS)
def test_faults_of_a_folder(
    file: str, change: dict[str, Any], said: str, folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    values = json.loads((folder / file).read_text())
    (tmp_path / file).write_text(json.dumps({**values, **change}))
    with pytest.raises((InputError, UnsupportedError), match=said):
        load(tmp_path)


def test_a_folder_without_a_preprocessor(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path, dirs_exist_ok=True)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(InputError, match=r"no preprocessor_config.json"):
        load(tmp_path)
