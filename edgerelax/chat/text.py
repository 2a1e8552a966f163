"""What a language model's artifact has beside the model: tokenizer, templates, ends of texts."""

from dataclasses import dataclass

from edgerelax.artifact.store import Artifact
from edgerelax.chat.template import ChatTemplate
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.ir.diagnostics import InputError


@dataclass(frozen=True, slots=True)
class Text:
    """`ends` are the ids that end a text, `vocabulary` is how many logits the model has."""

    tokenizer: Tokenizer
    template: ChatTemplate
    ends: tuple[int, ...]
    vocabulary: int

    @staticmethod
    def of(artifact: Artifact) -> "Text":
        """From an artifact's files. Raises InputError for a model that is of no language."""
        language = artifact.manifest.language
        if language is None or language.tokenizer is None:
            what = "is no language model" if language is None else "has no tokenizer"
            raise InputError(f"this artifact {what}", hint="export a language model's own files")
        chat = b"{}" if language.chat is None else artifact.asset(language.chat)
        return Text(
            Tokenizer(artifact.asset(language.tokenizer), language.tokenizer),
            ChatTemplate(chat, language.chat or "chat.json"),
            tuple(language.eos),
            language.vocabulary,
        )
