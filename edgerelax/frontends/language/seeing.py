"""Images in texts: vectors of images in a state, and tokens that stand for its rows.

`see` writes an image's vectors into the state `images`; a token that is not in the vocabulary,
vocabulary + r, is row r of it. Steps know nothing else of images, so any decoder may read them.
"""

from collections.abc import Callable, Mapping

from edgerelax.frontends.dims import Dims, DimSpec
from edgerelax.frontends.language.context import Attend, Context, Decoder, Whole
from edgerelax.frontends.language.functions import (
    STEPS,
    Sizes,
    StepSizes,
    add_steps,
    described,
)
from edgerelax.frontends.language.storage import Kind
from edgerelax.frontends.language.text import Text
from edgerelax.frontends.language.vision import Vision
from edgerelax.frontends.nn import Input, Tensor, trace
from edgerelax.frontends.nn.functional import positions
from edgerelax.frontends.nn.tensor import apply
from edgerelax.ir.dtypes import F32, I32, I64, U8
from edgerelax.ir.graph import Module
from edgerelax.sym import symbol

IMAGES = "images"
"""The state that holds vectors of images."""


class Seeing(Context):
    """A context some of whose tokens are rows of `images`, f32[rows, width]."""

    def __init__(self, context: Context, images: Tensor, vocabulary: int) -> None:
        self.positions = context.positions
        self._context, self._images, self._vocabulary = context, images, vocabulary

    def embed(self, tokens: Tensor, table: Callable[[Tensor], Tensor]) -> Tensor:
        batch, length = tokens.dims
        is_text = apply("lt", tokens, self._vocabulary).reshape(batch, length, 1)
        text = table(apply("min", tokens, self._vocabulary - 1))
        rows = apply("max", tokens - self._vocabulary, 0)
        return apply("where", is_text, text, apply("gather", self._images, rows, axis=0))

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, how: Attend) -> Tensor:
        return self._context.attend(layer, q, k, v, how)

    def extended(self, layer: int, name: str, x: Tensor) -> Tensor:
        return self._context.extended(layer, name, x)

    def mask(self, window: int | None) -> Tensor:
        return self._context.mask(window)


def seeing_module(
    model: Decoder,
    vision: Vision,
    config: Sizes,
    dims: Mapping[str, DimSpec] | None = None,
    architecture: str = "",
    text: Text | None = None,
    cache: Kind = "f32",
) -> Module:
    """A module with the functions of a language model that sees images.

    What `language_module` has, and `see`: pixels u8[seen, side, side, channels] and places
    i32[seen] → the state `images` has the vectors of the image number k in the rows from
    places[k] · vision.count on. A step's token that is vocabulary + r is row r of that state.
    """
    wanted = Dims(dims)
    sizes = StepSizes.of(wanted, config.context)
    wanted.finish(("batch", "length", "pages"))
    seen, count = symbol("seen"), vision.count
    images = {IMAGES: Input((symbol("features", count, None, count), vision.width), F32)}

    def main(tokens: Tensor) -> dict[str, Tensor]:
        return {"logits": model.logits(model.hidden(tokens, Whole(tokens)))}

    def see(pixels: Tensor, places: Tensor, states: Mapping[str, Tensor]) -> dict[str, Tensor]:
        within = positions(places, count).cast(I32).reshape(1, count)
        rows = (places.reshape(seen, 1) * count + within).reshape(seen * count, 1)
        vectors = vision(pixels).reshape(seen * count, vision.width)
        return {IMAGES: apply("scatter_nd", states[IMAGES], rows, vectors)}

    def around(context: Context, rows: Tensor, states: Mapping[str, Tensor]) -> Context:
        return Seeing(context, states[IMAGES], config.vocabulary)

    module = trace(main, {"tokens": Input((sizes.batch, sizes.length), I64)})
    module = add_steps(module, model, config.vocabulary, sizes, images, around, cache)
    pixels = Input((seen, vision.side, vision.side, vision.channels), U8)
    given = {"pixels": pixels, "places": Input((seen,), I32)}
    module = trace(see, given, "see", module, images)
    functions = {"whole": "main", **STEPS, "see": "see"}
    return described(module, config, functions, architecture, text)
