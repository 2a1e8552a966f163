"""Tiny models that see images, with random weights, made by transformers as references."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.chat.fakes import tokenizer_json
from tests.frontends.language.cases import SIZES, randomise

SPECIAL = (
    "<image>",
    "<fake_token_around_image>",
    "<global-img>",
    *(f"<row_{row}_col_{column}>" for row in (1, 2, 3) for column in (1, 2, 3)),
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{% for part in message.content %}"
    "{% if part.type == 'image' %}<image>{% else %}{{ part.text }}{% endif %}{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CLIP = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.25]}


@dataclass(frozen=True)
class Case:
    """A model_type of transformers, and what its text, its tower and the whole differ in."""

    name: str
    kind: str
    text: dict[str, Any] = field(default_factory=dict)
    tower: dict[str, Any] = field(default_factory=dict)
    whole: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    side: int = 12


def _llava(name: str, **parts: Any) -> Case:
    size = {"size": {"shortest_edge": 12}, "crop_size": {"height": 12, "width": 12}}
    processor = {"image_processor_type": "CLIPImageProcessor", "resample": 3, **CLIP, **size}
    return Case(name, "llava", processor={**processor, **parts.pop("processor", {})}, **parts)


def _tiles(name: str, kind: str, **parts: Any) -> Case:
    processor = {
        "image_processor_type": "Idefics3ImageProcessor" if kind == "idefics3"
        else "SmolVLMImageProcessorFast",
        "size": {"longest_edge": 48}, "max_image_size": {"longest_edge": 16}, "resample": 1,
        "image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_image_splitting": True,
    }  # fmt: skip
    processor |= parts.pop("processor", {})
    return Case(name, kind, processor=processor, side=16, **parts)


SIGLIP = {"model_type": "siglip_vision_model"}
CASES = (
    _llava("llava"),
    _llava("llava-full-biasless", whole={
        "vision_feature_select_strategy": "full", "vision_feature_layer": [0, -1],
        "multimodal_projector_bias": False, "projector_hidden_act": "relu",
    }),
    _llava("llava-siglip-qwen3", tower=SIGLIP, text={"model_type": "qwen3", "head_dim": 16},
           whole={"vision_feature_select_strategy": "full", "vision_feature_layer": -1}),
    _llava("llava-granite", text={"model_type": "granite", "embedding_multiplier": 3.0}),
    _llava("llava-gemma-tied", text={"model_type": "gemma", "head_dim": 16}),
    _llava("llava-gpt-neox", text={"model_type": "gpt_neox", "num_key_value_heads": None}),
    _tiles("smolvlm", "smolvlm"),
    _tiles("smolvlm-small-tiles", "smolvlm", tower={"image_size": 24}),
    _tiles("idefics3", "idefics3", whole={"scale_factor": 4}, tower={"hidden_act": "gelu"}),
)  # fmt: skip


def reference(case: Case, folder: Path) -> "Reference":
    """The model of a case, saved to a folder with its tokenizer, template and processor."""
    import torch
    from transformers import AutoConfig, AutoModelForImageTextToText

    tokenizer = tokenizer_json(*SPECIAL)
    tokens = json.loads(tokenizer)["model"]["vocab"]
    token, vocabulary = tokens["<image>"], len(tokens)
    tower = {
        "model_type": "clip_vision_model", "hidden_size": 24, "intermediate_size": 40,
        "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": case.side,
        "patch_size": 4, **case.tower,
    }  # fmt: skip
    if case.kind != "llava":
        tower["model_type"] = f"{case.kind}_vision"
    text = {"model_type": "llama", **SIZES, "vocab_size": vocabulary, **case.text}
    text = {name: value for name, value in text.items() if value is not None}
    text["max_position_embeddings"] = 1024
    config = AutoConfig.for_model(
        case.kind, vision_config=tower, text_config=text, image_token_id=token, **case.whole
    )
    torch.set_num_threads(1)  # threads take longer than these few numbers
    torch.manual_seed(0)
    model = AutoModelForImageTextToText.from_config(config).eval()
    randomise(model)
    model.save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(tokenizer)
    said = {"eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(said))
    (folder / "preprocessor_config.json").write_text(json.dumps(case.processor))
    return Reference(model, token)


@dataclass(frozen=True)
class Reference:
    """A model of transformers, and the token that stands for a feature of an image."""

    model: Any
    token: int

    def inputs(
        self, tokens: NDArray[np.int64], pixels: Sequence[NDArray[np.float32]]
    ) -> dict[str, Any]:
        """`pixels` are normalised tiles [3, side, side] in the order of the texts."""
        import torch

        given: dict[str, Any] = {"input_ids": torch.from_numpy(tokens)}
        if len(pixels):
            stacked = torch.from_numpy(np.stack(pixels))
            given["pixel_values"] = stacked
            if self.model.config.model_type != "llava":
                given["pixel_values"] = stacked[None]
        return given

    def logits(self, tokens: NDArray[np.int64], pixels: Sequence[NDArray[np.float32]]) -> Any:
        """[batch, length, vocabulary]."""
        import torch

        with torch.no_grad():
            return self.model(**self.inputs(tokens, pixels)).logits.numpy()
