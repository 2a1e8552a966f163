"""The architectures of language models that are known."""

from collections.abc import Iterable

from edgerelax.frontends.language.architecture import Architecture
from edgerelax.frontends.language.architectures.bert import BERT, MODERNBERT, ROBERTA
from edgerelax.frontends.language.architectures.gemma import GEMMA, GEMMA2, GEMMA3
from edgerelax.frontends.language.architectures.gpt2 import GPT2
from edgerelax.frontends.language.architectures.gpt_neox import GPT_NEOX
from edgerelax.frontends.language.architectures.granite import GRANITE
from edgerelax.frontends.language.architectures.llama import LLAMA
from edgerelax.frontends.language.architectures.mistral import MISTRAL, MIXTRAL
from edgerelax.frontends.language.architectures.olmo2 import OLMO2
from edgerelax.frontends.language.architectures.phi3 import PHI3
from edgerelax.frontends.language.architectures.qwen import QWEN2, QWEN2_MOE, QWEN3, QWEN3_MOE
from edgerelax.frontends.language.architectures.smollm3 import SMOLLM3
from edgerelax.frontends.language.architectures.stablelm import STABLELM
from edgerelax.ir.diagnostics import UnsupportedError

ARCHITECTURES: list[Architecture] = [
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN2_MOE,
    QWEN3,
    QWEN3_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    PHI3,
    SMOLLM3,
    GPT2,
    GPT_NEOX,
    STABLELM,
    OLMO2,
    GRANITE,
    BERT,
    ROBERTA,
    MODERNBERT,
]
"""One of your own may be appended."""

HOW_TO_ADD = (
    "others: describe it as docs/language.md shows (an Architecture, appended to "
    "edgerelax.frontends.language.architectures.ARCHITECTURES)"
)


def by_type(name: str, origin: str, also: Iterable[str] = ()) -> Architecture:
    """The architecture of a config.json's `model_type`.

    Raises UnsupportedError, which names all that are known, `also` among them.
    """
    return _find(name, origin, {t: a for a in ARCHITECTURES for t in a.types}, also)


def by_gguf(name: str, origin: str) -> Architecture:
    """The architecture of a GGUF file's `general.architecture`."""
    return _find(name, origin, {g: a for a in ARCHITECTURES for g in a.gguf})


def _find(
    name: str, origin: str, known: dict[str, Architecture], also: Iterable[str] = ()
) -> Architecture:
    if name not in known:
        raise UnsupportedError(
            f"{origin} is a model of architecture {name}",
            hint=f"known are {', '.join([*known, *also])}; {HOW_TO_ADD}",
        )
    return known[name]
