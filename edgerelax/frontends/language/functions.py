"""The functions of a language model's module, whatever file the model came from."""

from collections.abc import Mapping

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.context import Decoder, Whole
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.ir.dtypes import I64
from edgerelax.ir.graph import Module


def language_module(
    model: Decoder,
    config: Config,
    dims: Mapping[str, DimSpec] | None = None,
    architecture: str = "",
    text: Text | None = None,
) -> Module:
    """A module with `main`: tokens i64[batch, length] → logits f32[batch, length, vocabulary].

    `dims` may give sizes or bounds of `batch` and `length`; the latter ends at the context that
    the model serves. `text` becomes assets. Raises InputError for a dim that the model does not
    have.
    """
    wanted = Dims(dims)
    batch = wanted.make("batch", "batch")
    length = wanted.make("length", "length", config.context)
    wanted.finish(("batch", "length"))

    def main(tokens: Tensor) -> dict[str, Tensor]:
        return {"logits": model.logits(model.hidden(tokens, Whole(tokens)))}

    module = trace(main, {"tokens": Input((batch, length), I64)})
    module.attrs["language"] = {
        "architecture": architecture,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "functions": {"logits": "main"},
        **(text.language() if text is not None else {}),
    }
    if text is not None:
        module.attrs["assets"] = text.assets()
    return module


def longest(dims: Mapping[str, DimSpec] | None) -> int | None:
    """The greatest length that is wanted, where one is."""
    wanted = (dims or {}).get("length")
    return wanted[1] if isinstance(wanted, tuple) else wanted
