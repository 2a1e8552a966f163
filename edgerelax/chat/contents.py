"""Contents of messages, text and images, as templates and then models take them."""

from collections.abc import Iterator

import numpy as np

from edgerelax.chat.album import Album
from edgerelax.chat.engine import Picture
from edgerelax.chat.images import Images, Seen
from edgerelax.chat.openai import ImagePart, LocalImage, Part, RequestError, TextPart, blaming
from edgerelax.chat.template import ChatTemplate
from edgerelax.chat.tokenizer import Tokenizer
from edgerelax.ir.diagnostics import FormatError, InputError


class Contents:
    """The contents of one chat's messages: what a template takes of them, and then the prompt.

    `album` is what the chat keeps of images, of a model that sees any.
    """

    def __init__(self, template: ChatTemplate, album: Album | None) -> None:
        self._template, self._album = template, album
        self._images = None if album is None else album.images
        self._request = 0 if album is None else album.request()
        self._seen: list[Seen] = []

    def written(self, parts: list[Part], at: str) -> str | list[dict[str, str]]:
        """What the template takes of a message's parts. Raises RequestError.

        Images are opened here: the template gets parts of type image, or the placeholder in a text
        where it takes texts alone.
        """
        for k, part in enumerate(parts):
            self._check(part, f"{at}[{k}]" if len(parts) > 1 else at)
        images = self._images
        if images is None:
            return "".join(part.text for part in parts if isinstance(part, TextPart))
        if self._template.takes_parts:
            return [
                {"type": "text", "text": part.text}
                if isinstance(part, TextPart)
                else {"type": "image"}
                for part in parts
            ]
        mark = f"{images.placeholder}\n"
        return "".join(part.text if isinstance(part, TextPart) else mark for part in parts)

    def _check(self, part: Part, at: str) -> None:
        images = self._images
        match part:
            case TextPart(text=text) if images is not None and images.placeholder in text:
                raise RequestError(
                    f"{at}: a text has {images.placeholder}, which stands for an image", node=at
                )
            case ImagePart(image_url=image):
                self._see(image.url, f"{at}.image_url.url")
            case LocalImage(image=image):
                self._see(image, f"{at}.image")

    def _see(self, image: object, at: str) -> None:
        if self._album is None:
            raise RequestError(f"{at}: this model sees no images", node=at)
        with blaming(at):
            self._seen.append(self._album.seen(image, self._request))

    def prompt(self, text: str, tokenizer: Tokenizer) -> tuple[list[int], list[Picture]]:
        """The tokens of what a template has made, and what of them stands for images.

        Raises InputError for a template that leaves images out, FormatError for a tokenizer that
        does not know the placeholder.
        """
        images = self._images
        if images is None:
            return tokenizer.encode(text, framed=False), []
        between = text.split(images.placeholder)
        if len(between) - 1 != len(self._seen):
            raise InputError(
                f"the chat template wrote {len(between) - 1} of {len(self._seen)} images",
                hint="it may take no images in messages of this role",
            )
        parts = [between[0]]
        for seen, rest in zip(self._seen, between[1:], strict=True):
            parts += [images.text(seen), rest]
        first = self._template.file.special_tokens.get("bos_token")
        framed = not (first and text.startswith(first))  # templates of these leave it to processors
        tokens = tokenizer.encode("".join(parts), framed=framed)
        return tokens, list(self._pictures(tokens, images))

    def _pictures(self, tokens: list[int], images: Images) -> Iterator[Picture]:
        places = np.flatnonzero(np.asarray(tokens) == images.token).astype(np.int32)
        wanted = sum(len(seen.tiles) for seen in self._seen) * images.tokens
        if len(places) != wanted:
            raise FormatError(
                f"tokenizer: {len(places)} tokens {images.token} of {wanted} that images need"
            )
        start = 0
        for seen in self._seen:
            stop = start + len(seen.tiles) * images.tokens
            yield Picture(seen.tiles, places[start:stop].reshape(-1, images.tokens))
            start = stop
