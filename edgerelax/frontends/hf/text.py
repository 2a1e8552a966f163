"""The tokenizer, the chat templates and the special tokens of a Hugging Face folder."""

from pathlib import Path
from typing import Any

from edgerelax.frontends.hf.reading import read_object
from edgerelax.frontends.language.settings import Settings
from edgerelax.frontends.language.text import DEFAULT, TOKENIZER, Text
from edgerelax.ir.diagnostics import InputError

SPECIAL = (
    "bos_token",
    "eos_token",
    "unk_token",
    "pad_token",
    "sep_token",
    "cls_token",
    "mask_token",
)


def text_of(folder: Path, config: Settings) -> Text:
    """What the folder says of text. Raises InputError where it has no tokenizer.json."""
    if not (folder / TOKENIZER).is_file():
        raise InputError(f"{folder.name} has no {TOKENIZER}", hint=_how_to_get_one(folder))
    tokens = added_tokens(folder)
    said = _optional(folder / "tokenizer_config.json")
    special = {name: text for name in SPECIAL if (text := _token(said.get(name))) is not None}
    generation = _optional(folder / "generation_config.json")
    begin, end = special.get("bos_token"), special.get("eos_token")
    bos = _ids(generation, config, "bos_token_id")
    eos = _ids(generation, config, "eos_token_id")
    if not bos and begin in tokens:
        bos = [tokens[begin]]
    if end in tokens:
        eos = [tokens[end], *(number for number in eos if number != tokens[end])]
    return Text(
        (folder / TOKENIZER).read_bytes(),
        _templates(folder, said),
        special,
        bos[0] if bos else None,
        tuple(eos),
    )


def _how_to_get_one(folder: Path) -> str:
    if (folder / "tokenizer.model").is_file() or (folder / "vocab.json").is_file():
        return "transformers makes one: AutoTokenizer.from_pretrained(folder).save_pretrained(it)"
    return "download it from where the model came from"


def _optional(path: Path) -> dict[str, Any]:
    return dict(read_object(path).values) if path.is_file() else {}


def added_tokens(folder: Path) -> dict[str | None, int]:
    """Ids of the tokens that were added to the vocabulary, special ones among them."""
    added = read_object(folder / TOKENIZER).value("added_tokens", default=[])
    return {token["content"]: int(token["id"]) for token in added}


def _token(said: Any) -> str | None:
    """A special token's text, which may stand in an object."""
    text = said.get("content") if isinstance(said, dict) else said
    return text if isinstance(text, str) else None


def _ids(generation: dict[str, Any], config: Settings, name: str) -> list[int]:
    """Ids by generation_config.json, else by config.json: one, several or none."""
    found = generation.get(name)
    if found is None:
        found = config.value(name, default=[])
    numbers = found if isinstance(found, list) else [found]
    if not all(isinstance(number, int) for number in numbers):
        raise InputError(f"{name} is {found!r}, not an id or a list of ids")
    return numbers


def _templates(folder: Path, said: dict[str, Any]) -> dict[str, str]:
    """Chat templates by name, of files of their own or of tokenizer_config.json."""
    found: dict[str, str] = {}
    given = said.get("chat_template")
    if isinstance(given, str):
        found[DEFAULT] = given
    elif isinstance(given, list):
        found.update({entry["name"]: entry["template"] for entry in given})
    for name in ("chat_template.json", "processor_config.json"):  # of models that see images
        of_processor = _optional(folder / name).get("chat_template")
        if isinstance(of_processor, str):
            found[DEFAULT] = of_processor
    if (folder / "chat_template.jinja").is_file():
        found[DEFAULT] = (folder / "chat_template.jinja").read_text(encoding="utf-8")
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = path.read_text(encoding="utf-8")
    return found
