"""The functions of a language model's module, whatever file the model came from."""

from collections.abc import Mapping

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.cache import PAGE, cache_states, step
from edgerelax.frontends.language.config import Config
from edgerelax.frontends.language.context import Decoder, Whole
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.ir.dtypes import I32, I64
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol


def language_module(
    model: Decoder,
    config: Config,
    dims: Mapping[str, DimSpec] | None = None,
    architecture: str = "",
    text: Text | None = None,
) -> Module:
    """A module with the functions of a language model.

    `main`: tokens i64[batch, length] → logits f32[batch, length, vocabulary], of whole sequences.
    `step`: the same from where a cache of the earlier tokens ends, logits of one token for each
    sequence (cache.step).

    `dims` may give sizes or bounds of `batch`, `length` and `pages`; the latter two end at what
    the model serves. `text` becomes assets. Raises InputError for a dim that the model does not
    have.
    """
    wanted = Dims(dims)
    batch = wanted.make("batch", "batch")
    length = wanted.make("length", "length", config.context)
    count = wanted.make("pages", "pages", -(-config.context // PAGE))
    slots = symbol("slots", PAGE, None, PAGE)  # the host chooses how many
    wanted.finish(("batch", "length", "pages"))

    def main(tokens: Tensor) -> dict[str, Tensor]:
        return {"logits": model.logits(model.hidden(tokens, Whole(tokens)))}

    def next_logits(
        tokens: Tensor,
        positions: Tensor,
        slots: Tensor,
        pages: Tensor,
        last: Tensor,
        states: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        logits, updated = step(model, tokens, positions, slots, pages, last, states)
        return {"logits": logits, **updated}

    module = trace(main, {"tokens": Input((batch, length), I64)})
    each = Input((batch, length), I32)
    paged = {"pages": Input((batch, count), I32), "last": Input((batch,), I32)}
    given = {"tokens": each, "positions": each, "slots": each, **paged}
    module = trace(next_logits, given, "step", module, cache_states(model.caches, slots))
    module.attrs["language"] = {
        "architecture": architecture,
        "vocabulary": config.vocabulary,
        "context": config.context,
        "functions": {"logits": "main", "step": "step"},
        "page_size": PAGE,
        **(text.language() if text is not None else {}),
    }
    if text is not None:
        module.attrs["assets"] = text.assets()
    return module


def longest(dims: Mapping[str, DimSpec] | None) -> int | None:
    """The greatest length that is wanted, where one is."""
    wanted = (dims or {}).get("length")
    return wanted[1] if isinstance(wanted, tuple) else wanted
